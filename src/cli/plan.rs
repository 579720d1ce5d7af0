//! `pinfold plan`: the agent's decisions for given pods.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use clap::Args;
use serde::Serialize;

use super::OutputFormat;
use crate::agent::config::{Config, Overrides, SourceChoice};
use crate::agent::kubelet_config::KubeletConfig;
use crate::agent::{AgentNode, allocatable, capacity, environment, gate, read_pods, reserved};
use crate::cpu::{Cost, CpuSet, Placer, SharedMinimum, Topology, cpu_count};
use crate::host::topology;
use crate::pin::decide::{
    ContainerMove, Decision, DecisionContext, DecisionInput, Decisions, decide,
};
use crate::pin::{Enforcement, Ledger, PlacementSource};
use crate::pod::quantity::cpu_millis;
use crate::pod::{
    Allocatable, AllocatableSource, Capacity, CapacityFinding, ContainerKind, Entitlement,
    ObjectName, Obstacle, PodRole, Qos, RankEnvironment, RecognizedPod, ThreadEnvironment,
    rank_environment, recognized,
};
use crate::text::values::whole;

/// Giving up, moving and gaining take three reconciles; more than this come to nothing new.
const MOST_RECONCILES: usize = 8;

/// Show the agent's decisions for pods on a machine, without changing anything.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  pinfold plan --pods job.yaml                       plan for this machine, with all CPUs free
  pinfold plan --pods job.yaml --root-dir ./machine  plan for a machine whose sys/ is in ./machine
  pinfold plan --pods ./pods --live --moves 2        plan for this node as it is, with two moves
  pinfold plan --pods ps.yaml --pods ./workers -o json
  kubectl get jobset a -o yaml | pinfold plan --pods -
  pinfold plan --pods job.yaml --allocatable 39500m  compare with what the scheduler counts on the node

Exit codes: 0 each entitled container gets its CPUs, or the kubelet chooses them, 1 one gets too few or would be refused, \
2 bad input.")]
pub(super) struct PlanArgs {
    /// Manifest file, folder of manifests (YAML or JSON) or - for the standard input: Pods, or objects that create pods, such as
    /// Jobs, Deployments, TFJobs and JobSets; may be repeated, and the agent decides about the pods in this order.
    #[arg(long, value_name = "FILE", required = true)]
    pods: Vec<PathBuf>,
    #[command(flatten)]
    input: MachineArgs,
    /// Output format.
    #[arg(short, long, value_enum, value_name = "FORM", default_value_t)]
    output: OutputFormat,
}

/// Which machine, in which state.
#[derive(Debug, Args)]
pub(super) struct MachineArgs {
    /// Folder that holds the machine's sys/.
    #[arg(
        long,
        value_name = "DIR",
        default_value = "/",
        env = "PINFOLD_ROOT_DIR"
    )]
    root_dir: PathBuf,
    /// Reserved CPUs, like 0-1,32 [default: the lowest core without an owner and without a CPU isolated at boot]
    #[arg(long, value_name = "LIST", env = "PINFOLD_RESERVED")]
    reserved: Option<CpuSet>,
    /// CPUs that exclusive assignments leave to everybody else, reserved ones included: a number, or a share like 10%
    /// [default: sharedMinimum of the configuration]
    #[arg(long, value_name = "MINIMUM", env = "PINFOLD_SHARED_MINIMUM")]
    shared_minimum: Option<SharedMinimum>,
    /// CPUs that the scheduler counts on the node, like 39500m: the Node's allocatable [default: as the Node says, with
    /// --live; else as the kubelet's configuration file in DIR says]
    #[arg(long, value_name = "CPUS", value_parser = millicores)]
    allocatable: Option<u64>,
    /// Configuration file (YAML) of the agent [default: /etc/pinfold.yaml, if the file exists]
    #[arg(long, value_name = "FILE", env = "PINFOLD_CONFIG")]
    pub(super) config: Option<PathBuf>,
    /// Start from the current assignments on this node, as the kernel reports them.
    #[arg(long, conflicts_with = "root_dir")]
    pub(super) live: bool,
    /// Cgroup that contains the pods' cgroups, with --live; may be repeated [default: podCgroups of the configuration]
    #[arg(
        long = "pod-cgroup",
        value_name = "CGROUP",
        env = "PINFOLD_POD_CGROUPS",
        value_delimiter = ','
    )]
    pod_cgroups: Vec<String>,
    /// How many running containers may be moved to make room [default: maxMovesPerHour of the configuration]
    #[arg(long, value_name = "N", value_parser = whole::<u32>(0..=u64::MAX))]
    pub(super) moves: Option<u32>,
}

/// The planned decisions.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Planned {
    pub(super) reserved: CpuSet,
    pub(super) shared: CpuSet,
    /// Running containers that would make room, in the order of the moves.
    pub(super) moves: Vec<ContainerMove>,
    pub(super) containers: Vec<PlannedContainer>,
    /// Why containers would get other CPUs than these, because the kubelet chooses them; or why too many came here.
    pub(super) note: Option<String>,
    /// What the node can give; null where the kubelet chooses the CPUs, which never promises more than it has.
    pub(super) capacity: Option<Capacity>,
    /// That, compared with what the scheduler counts.
    pub(super) finding: Option<CapacityFinding>,
    /// The containers that would get fewer CPUs than they are entitled to, or be refused; none where the kubelet chooses.
    pub(super) too_few: Vec<TooFew>,
}

/// A container that would get fewer CPUs than it is entitled to.
#[derive(Debug, Serialize)]
pub(super) struct TooFew {
    pub(super) namespace: String,
    pub(super) pod: String,
    pub(super) container: String,
    /// The sentence that says how many CPUs it is entitled to, and why it gets fewer.
    pub(super) why: String,
}

#[derive(Debug, Serialize)]
pub(super) struct PlannedContainer {
    pub(super) namespace: String,
    pub(super) pod: String,
    pub(super) container: String,
    pub(super) kind: ContainerKind,
    pub(super) role: PodRole,
    pub(super) evidence: String,
    pub(super) qos: Qos,
    pub(super) entitlement: Entitlement,
    /// The CPUs of the container: exclusive or shared.
    pub(super) cpus: CpuSet,
    pub(super) exclusive: bool,
    /// NUMA nodes of the CPUs; null if the machine does not report NUMA nodes.
    pub(super) numa: Option<CpuSet>,
    /// The NUMA nodes that the memory is bound to; null if the memory may come from anywhere.
    pub(super) mems: Option<CpuSet>,
    pub(super) cost: Option<Cost>,
    pub(super) env: BTreeMap<String, String>,
    pub(super) threads: ThreadEnvironment,
    /// The exclusive CPUs of each local process; null without exclusive CPUs, and unless several processes are known.
    pub(super) ranks: Option<RankEnvironment>,
    /// Why the container got fewer CPUs than the entitlement.
    pub(super) note: Option<String>,
    /// Why the container would be refused, because its pod requires exclusive CPUs.
    #[serde(skip)]
    pub(super) refused: Option<String>,
    /// What the program should do differently on its exclusive CPUs: where it counts CPUs on the machine.
    pub(super) bindings: Vec<String>,
}

/// The machine to plan for.
pub(super) struct Machine<'a> {
    pub(super) topology: &'a Topology,
    pub(super) memory_nodes: &'a CpuSet,
    pub(super) reserved: CpuSet,
    pub(super) lost: CpuSet,
    /// What the scheduler counts.
    pub(super) allocatable: Option<Allocatable>,
    /// How one knows that the kubelet chooses the CPUs here, if it does.
    pub(super) kubelet_chooses: Option<String>,
}

/// How one knows that the kubelet chooses the CPUs of the machine below `root`, without a word from the kubelet itself.
fn kubelet_chooses(choice: SourceChoice, root: &Path) -> Option<String> {
    match choice {
        SourceChoice::Pinfold => None,
        SourceChoice::Kubelet => Some("placement.source is kubelet".to_owned()),
        SourceChoice::Auto => {
            let (file, config) = KubeletConfig::find(root)?;
            let says = || format!("{} has cpuManagerPolicy static", file.display());
            config.assigns_cpus().then(says)
        }
    }
}

/// Reads a quantity of CPUs, in thousandths.
fn millicores(text: &str) -> Result<u64, String> {
    let remedy = |_| format!("{text:?} is no number of CPUs: write something like 40 or 39500m");
    cpu_millis(text).map_err(remedy)
}

// === impl MachineArgs ===

impl MachineArgs {
    pub(super) fn plan(&self, manifests: &[PathBuf]) -> anyhow::Result<Planned> {
        let overrides = Overrides {
            config: self.config.clone(),
            reserved: self.reserved.clone(),
            shared_minimum: self.shared_minimum,
            pod_cgroups: self.pod_cgroups.clone(),
            ..Overrides::default()
        };
        let mut config = Config::load(overrides)?;
        if let Some(moves) = self.moves {
            config.max_moves_per_hour = moves;
        }
        let pods = recognized(read_pods(manifests)?);
        if self.live {
            super::rights::check(
                &config,
                ("pinfold plan --live", "read assignment records"),
                "run the command with sudo, or plan for an empty node without --live",
            )?;
            let mut node = AgentNode::new(config)?;
            let (_, ledger) = node.observe(&pods)?;
            node.reserve_beside(&ledger);
            let runtime = super::run::runtime()?;
            let read = allocatable::find(&node.config, &node.topology.online);
            let read = || runtime.block_on(read);
            let machine = Machine {
                allocatable: self.given_allocatable().or_else(read),
                kubelet_chooses: (node.placement_source == PlacementSource::Kubelet)
                    .then(|| "its CPU Manager assigns CPUs".to_owned()),
                topology: &node.topology,
                memory_nodes: &node.memory_nodes,
                lost: node.lost_cpus()?,
                reserved: node.reserved,
            };
            return Ok(planned(&pods, &machine, &node.config, ledger));
        }
        let topology = topology::read(&self.root_dir)?;
        let reserved = reserved(config.reserved.as_ref(), &topology)?;
        let read = || allocatable::of_kubelet_config(&self.root_dir, &topology.online);
        let machine = Machine {
            allocatable: self.given_allocatable().or_else(read),
            kubelet_chooses: kubelet_chooses(config.placement.source, &self.root_dir),
            memory_nodes: &topology.memory_nodes(),
            topology: &topology,
            reserved,
            lost: CpuSet::new(),
        };
        Ok(planned(&pods, &machine, &config, Ledger::default()))
    }

    fn given_allocatable(&self) -> Option<Allocatable> {
        Some(Allocatable {
            millicores: self.allocatable?,
            capacity: None,
            source: AllocatableSource::Given,
        })
    }
}

// === impl Machine ===

impl Machine<'_> {
    fn context<'a>(
        &'a self,
        placer: &'a Placer,
        config: &'a Config,
        devices: &'a BTreeMap<ObjectName, CpuSet>,
    ) -> DecisionContext<'a> {
        DecisionContext {
            topology: self.topology,
            placer,
            memory_nodes: self.memory_nodes,
            reserved: &self.reserved,
            shared_minimum: config.shared_minimum,
            policy: &config.policy,
            preferences: &config.cpus,
            devices,
            ids_settled: true,
            suspended: None,
            enforcement: Enforcement::Partition,
            kubelet: None,
        }
    }
}

/// Decides about the pods until nothing changes any more. What an assignment frees, the next one can use.
fn settle(inputs: &mut DecisionInput<'_>, ledger: &mut Ledger) -> (Decisions, Vec<ContainerMove>) {
    let mut moves = Vec::new();
    let mut decisions = decide(inputs, ledger);
    for _ in 0..MOST_RECONCILES {
        let owners = decisions.desired.assignments();
        if owners == ledger.assignments {
            break;
        }
        inputs.moves = inputs.moves.saturating_sub(decisions.moves.len());
        moves.append(&mut decisions.moves);
        ledger.assignments = owners;
        decisions = decide(inputs, ledger);
    }
    (decisions, moves)
}

pub(super) fn planned(
    pods: &[Arc<RecognizedPod>],
    machine: &Machine<'_>,
    config: &Config,
    mut ledger: Ledger,
) -> Planned {
    let (topology, reserved) = (machine.topology, machine.reserved.clone());
    let (placer, devices) = (Placer::new(topology), BTreeMap::new());
    let mut inputs = DecisionInput {
        context: machine.context(&placer, config, &devices),
        pods,
        here: None,
        moves: config.max_moves_per_hour as usize,
        shrinks: None,
        known: None,
    };
    let (decisions, moves) = settle(&mut inputs, &mut ledger);
    let shared = decisions.desired.shared();
    let containers = described(
        pods,
        decisions.containers,
        &placer,
        (topology, &shared),
        config,
    );
    let mut planned = Planned {
        note: None,
        reserved,
        shared,
        moves,
        capacity: None,
        finding: None,
        too_few: Vec::new(),
        containers,
    };
    if let Some(evidence) = &machine.kubelet_chooses {
        planned.note = Some(format!(
            "the kubelet chooses the CPUs here ({evidence}), and Pinfold keeps those; these are the CPUs that Pinfold would choose, and \
             don't tell how many the kubelet can give"
        ));
        return planned;
    }
    let capacity = capacity(
        config,
        (topology, &machine.reserved),
        (&ledger, &machine.lost),
    );
    planned.finding = Some(capacity.compare(machine.allocatable.as_ref()));
    planned.capacity = Some(capacity);
    planned.too_few = planned.containers.iter().filter_map(too_few).collect();
    planned.note = too_many_for_node(&planned, machine.allocatable.as_ref());
    planned
}

/// The containers with their decisions, for people and programs.
fn described(
    pods: &[Arc<RecognizedPod>],
    decisions: Vec<Decision>,
    placer: &Placer,
    (topology, shared): (&Topology, &CpuSet),
    config: &Config,
) -> Vec<PlannedContainer> {
    let mut containers = Vec::new();
    let is_owed = |decision: &&Decision| decision.entitlement.cpus() > 0;
    let owed = decisions.iter().filter(is_owed);
    let owed: BTreeSet<usize> = owed.map(|decision| decision.pod).collect();
    for decision in decisions {
        let pod = pods.get(decision.pod);
        let found = pod.and_then(|pod| Some((pod, pod.containers.get(decision.container)?)));
        let Some((pod, container)) = found else {
            continue;
        };
        // A container that runs was let in.
        let is_new = !pod.finished && !container.ended && container.runtime_id.is_none();
        let refused = gate::at_creation(pod, &decision, Some(owed.contains(&decision.pod)));
        let refused = refused.filter(|_| is_new);
        let own = decision.cpus.as_ref();
        let policies = (&config.policy, &config.threads);
        let threads = environment(pod, decision.container, own, shared, topology, policies);
        let cpus = own.unwrap_or(shared).clone();
        containers.push(PlannedContainer {
            namespace: pod.namespace.clone(),
            pod: pod.name.clone(),
            container: container.name.clone(),
            kind: container.kind,
            role: decision.recognition.role,
            evidence: decision.recognition.evidence,
            qos: decision.qos,
            exclusive: own.is_some(),
            cost: own.map(|own| placer.cost(own)),
            entitlement: decision.entitlement,
            numa: topology.numa_of(&cpus),
            mems: decision.memory,
            bindings: pod.binding_advice(decision.container, own),
            ranks: rank_environment(pod, decision.container, own, topology),
            cpus,
            env: threads.variables.clone(),
            threads,
            note: decision.note,
            refused,
        });
    }
    containers
}

/// Says that the scheduler would not send all of the pods to one node, if some get too few CPUs.
fn too_many_for_node(planned: &Planned, allocatable: Option<&Allocatable>) -> Option<String> {
    let wanted = planned.containers.iter();
    let wanted: u64 = wanted.map(|one| u64::from(one.entitlement.cpus())).sum();
    let is_more = wanted.saturating_mul(1000) > allocatable?.millicores;
    (is_more && !planned.too_few.is_empty()).then(|| {
        format!(
            "these pods together are entitled to {wanted} CPUs, more than the scheduler counts: it would not send all of them here"
        )
    })
}

/// A container that gets fewer CPUs than it is entitled to.
fn too_few(container: &PlannedContainer) -> Option<TooFew> {
    let wanted = container.entitlement.cpus() as usize;
    let owned = if container.exclusive {
        container.cpus.len()
    } else {
        0
    };
    let forbidden = container.entitlement.obstacle() == Some(Obstacle::SingleCores);
    if owned >= wanted && !forbidden && container.refused.is_none() {
        return None;
    }
    let PlannedContainer {
        namespace,
        pod,
        container: name,
        entitlement,
        note,
        refused,
        ..
    } = container;
    let reason = note.as_deref().unwrap_or(entitlement.reason());
    let why = match (wanted, owned, refused) {
        (0, _, Some(refused)) => format!("would be refused: {refused}"),
        (0, _, None) => format!("gets no exclusive CPUs: {reason}"),
        (_, 0, Some(refused)) => format!(
            "is entitled to {} and would be refused: {refused}",
            cpu_count(wanted)
        ),
        (_, 0, _) => format!("is entitled to {} and {reason}", cpu_count(wanted)),
        _ => format!(
            "is entitled to {}, gets {owned}, and {reason}",
            cpu_count(wanted)
        ),
    };
    Some(TooFew {
        namespace: namespace.clone(),
        pod: pod.clone(),
        container: name.clone(),
        why,
    })
}

// === impl PlanArgs ===

impl PlanArgs {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let planned = self.input.plan(&self.pods)?;
        match self.output {
            OutputFormat::Text => super::emit(in_table(&planned))?,
            form => form.print(&planned)?,
        }
        Ok(ExitCode::from(u8::from(!planned.too_few.is_empty())))
    }
}

/// A container's row of the table.
fn row(container: &PlannedContainer) -> [String; 9] {
    let cpus = if container.refused.is_some() {
        "refused".to_owned()
    } else if container.exclusive {
        container.cpus.to_string()
    } else {
        format!("shared {}", container.cpus)
    };
    let why = container.refused.as_ref().or(container.note.as_ref());
    let runs = container.refused.is_none();
    let threads = container.threads.threads.filter(|_| runs);
    let threads = threads.map_or_else(|| "-".to_owned(), |threads| threads.to_string());
    let list = |cpus: Option<&CpuSet>| {
        let cpus = cpus.filter(|_| runs);
        cpus.map_or_else(|| "-".to_owned(), CpuSet::to_string)
    };
    [
        format!("{}/{}", container.namespace, container.pod),
        container.container.clone(),
        container.role.to_string(),
        container.qos.to_string(),
        cpus,
        list(container.numa.as_ref()),
        list(container.mems.as_ref()),
        threads,
        why.map_or_else(|| container.entitlement.reason().to_owned(), String::clone),
    ]
}

pub(super) fn in_table(planned: &Planned) -> Vec<String> {
    let mut table = super::table(&[
        "POD",
        "CONTAINER",
        "ROLE",
        "QOS",
        "CPUS",
        "NUMA",
        "MEMORY",
        "THREADS",
        "WHY",
    ]);
    // Memory, NUMA nodes, QoS, role, reason, container.
    table.leave_out(&[6, 5, 3, 2, 8, 1]);
    for container in &planned.containers {
        table.add_row(row(container));
    }
    let moved = |moved: &ContainerMove| {
        let ContainerMove {
            namespace,
            pod,
            container,
            from,
            to,
        } = moved;
        format!(
            "move first: container {container} of {namespace}/{pod} from {from} to {to}, to make room"
        )
    };
    let mut lines: Vec<String> = planned.moves.iter().map(moved).collect();
    lines.extend(table.lines());
    lines.extend(planned.note.iter().map(|note| format!("note: {note}")));
    lines.push(format!(
        "reserved {}, shared {}",
        planned.reserved, planned.shared
    ));
    if let Some(finding) = &planned.finding {
        lines.push(format!("capacity: {}", finding.sentence));
        let remedy = finding.remedy.iter();
        lines.extend(remedy.map(|remedy| format!("  → {remedy}")));
    }
    let too_few = planned.too_few.iter();
    lines.extend(too_few.map(|one| {
        let TooFew {
            namespace,
            pod,
            container,
            why,
        } = one;
        format!("too few CPUs: container {container} of {namespace}/{pod} {why}")
    }));
    lines
}
