//! `pinfold plan` and `pinfold explain`: what the agent would do, and why.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::Args;
use serde::Serialize;

use super::Format;
use crate::agent::config::{Config, Overrides};
use crate::agent::{Node, environment, read_pods, reserved};
use crate::cpu::{Cost, CpuSet, Placer, Topology};
use crate::host::topology;
use crate::pin::Ledger;
use crate::pin::decide::{Inputs, Moved, decide};
use crate::pod::{ContainerKind, Entitlement, Pod, Qos, Role, ThreadEnvironment};

/// Giving up, moving and gaining take three reconciles; more than this come to nothing new.
const MOST_RECONCILES: usize = 8;

/// Show what the agent would do with these pods on this or that machine. Nothing is changed.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  pinfold plan --pods job.yaml                       on this machine, all of it free
  pinfold plan --pods job.yaml --root ./machine      on the machine whose sys/ was copied to ./machine
  pinfold plan --pods ./pods --live --moves 2        on this node as it is: who keeps, who comes, who would move
  pinfold plan --pods ps.yaml --pods ./workers -o json")]
pub(super) struct Plan {
    #[command(flatten)]
    input: Input,
    /// Form of the output.
    #[arg(short, long, value_enum, value_name = "FORM", default_value_t)]
    output: Format,
}

/// Explain a pod: what it is owed and why, which CPUs, which thread counts. Nothing is changed.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  pinfold explain worker-0 --pods job.yaml
  pinfold explain train/worker-0 --pods ./pods --root ./machine")]
pub(super) struct Explain {
    /// The pod, as NAME or NAMESPACE/NAME.
    pod: String,
    #[command(flatten)]
    input: Input,
    /// Form of the output.
    #[arg(short, long, value_enum, value_name = "FORM", default_value_t)]
    output: Format,
}

#[derive(Debug, Args)]
struct Input {
    /// Manifest file or folder of them (YAML or JSON); may be repeated; pods are served in this order.
    #[arg(long, value_name = "FILE", required = true)]
    pods: Vec<PathBuf>,
    /// Folder that holds the machine's sys/.
    #[arg(long, value_name = "DIR", default_value = "/", env = "PINFOLD_ROOT")]
    root: PathBuf,
    /// CPUs that no container is given, like 0-1,32 [default: the core of the lowest CPU]
    #[arg(long, value_name = "LIST", env = "PINFOLD_RESERVED")]
    reserved: Option<CpuSet>,
    /// Configuration file, for its policy and threads.
    #[arg(long, value_name = "FILE", env = "PINFOLD_CONFIG")]
    config: Option<PathBuf>,
    /// Begin with what containers own on this node now, as the kernel says.
    #[arg(long, conflicts_with = "root")]
    live: bool,
    /// Cgroup below which pods are found, with --live; may be repeated [default: the configuration's]
    #[arg(long = "tree", value_name = "CGROUP", env = "PINFOLD_TREES", value_delimiter = ',')]
    trees: Vec<String>,
    /// How many running containers may be moved to make room [default: movesPerHour of the configuration]
    #[arg(long, value_name = "N")]
    moves: Option<u32>,
}

/// What would be done.
#[derive(Debug, Serialize)]
struct Planned {
    reserved: CpuSet,
    shared: CpuSet,
    /// Running containers that would make room for others, in the order in which they move.
    moves: Vec<Moved>,
    containers: Vec<PlannedContainer>,
}

#[derive(Debug, Serialize)]
struct PlannedContainer {
    namespace: String,
    pod: String,
    container: String,
    kind: ContainerKind,
    role: Role,
    evidence: String,
    qos: Qos,
    entitlement: Entitlement,
    /// The CPUs it would run on: its own, or the shared ones.
    cpus: CpuSet,
    exclusive: bool,
    /// NUMA nodes of those CPUs; null where the machine doesn't tell.
    mems: Option<CpuSet>,
    cost: Option<Cost>,
    env: BTreeMap<String, String>,
    threads: ThreadEnvironment,
    /// Why it has less than it is owed.
    note: Option<String>,
}

// === impl Input ===

impl Input {
    fn plan(&self) -> anyhow::Result<Planned> {
        let overrides = Overrides {
            config: self.config.clone(),
            reserved: self.reserved.clone(),
            trees: self.trees.clone(),
            ..Overrides::default()
        };
        let mut config = Config::load(overrides)?;
        if let Some(moves) = self.moves {
            config.moves_per_hour = moves;
        }
        let mut pods = Vec::new();
        for path in &self.pods {
            pods.extend(read_pods(path)?);
        }
        if self.live {
            let node = Node::new(config)?;
            let (_, ledger) = node.observe(&pods)?;
            return Ok(planned(&pods, &node.topology, node.reserved, &node.config, ledger));
        }
        let topology = topology::read(&self.root)?;
        let reserved = reserved(config.reserved.as_ref(), &topology)?;
        Ok(planned(&pods, &topology, reserved, &config, Ledger::default()))
    }
}

fn planned(
    pods: &[Pod],
    topology: &Topology,
    reserved: CpuSet,
    config: &Config,
    mut ledger: Ledger,
) -> Planned {
    let placer = Placer::new(topology);
    let mut inputs = Inputs {
        topology,
        placer: &placer,
        reserved: &reserved,
        policy: &config.policy,
        wishes: &config.cpus,
        pods,
        here: None,
        devices: &BTreeMap::new(),
        moves: config.moves_per_hour as usize,
    };
    let mut moves = Vec::new();
    let mut decisions = decide(&inputs, &ledger);
    // What is given up on the way is free in the next reconcile; one that changes nothing is the last.
    for _ in 0..MOST_RECONCILES {
        if decisions.desired.claims == ledger.claims {
            break;
        }
        inputs.moves = inputs.moves.saturating_sub(decisions.moves.len());
        moves.append(&mut decisions.moves);
        ledger.claims.clone_from(&decisions.desired.claims);
        decisions = decide(&inputs, &ledger);
    }
    let shared = decisions.desired.shared();
    let mut containers = Vec::new();
    for decision in decisions.containers {
        let Some(pod) = pods.get(decision.pod) else { continue };
        let Some(container) = pod.containers.get(decision.container) else { continue };
        let own = decision.cpus.as_ref();
        let policies = (&config.policy, &config.threads);
        let threads = environment(pod, decision.container, own, &shared, topology, policies);
        let cpus = own.unwrap_or(&shared).clone();
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
            mems: topology.numa_of(&cpus),
            cpus,
            env: threads.variables.clone(),
            threads,
            note: decision.note,
        });
    }
    Planned { reserved, shared, moves, containers }
}

// === impl Plan ===

impl Plan {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let planned = self.input.plan()?;
        match self.output {
            Format::Json => super::json(&planned)?,
            Format::Text => super::emit(&in_table(&planned))?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn in_table(planned: &Planned) -> String {
    let mut table = super::table(&["POD", "CONTAINER", "ROLE", "QOS", "CPUS", "NUMA", "THREADS", "WHY"]);
    for container in &planned.containers {
        let cpus = if container.exclusive {
            container.cpus.to_string()
        } else {
            format!("shared {}", container.cpus)
        };
        let threads = container.threads.threads.map_or_else(|| "-".to_owned(), |threads| threads.to_string());
        table.add_row([
            format!("{}/{}", container.namespace, container.pod),
            container.container.clone(),
            container.role.to_string(),
            container.qos.to_string(),
            cpus,
            container.mems.as_ref().map_or_else(|| "-".to_owned(), CpuSet::to_string),
            threads,
            container.note.clone().unwrap_or_else(|| container.entitlement.reason().to_owned()),
        ]);
    }
    let moved = |moved: &Moved| {
        let Moved { namespace, pod, container, from, to } = moved;
        format!("first, container {container} of {namespace}/{pod} moves from {from} to {to} to make room\n")
    };
    let moves: String = planned.moves.iter().map(moved).collect();
    format!("{moves}{table}\nreserved {}, shared {}\n", planned.reserved, planned.shared)
}

// === impl Explain ===

impl Explain {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let mut planned = self.input.plan()?;
        let names: Vec<String> =
            planned.containers.iter().map(|one| format!("{}/{}", one.namespace, one.pod)).collect();
        planned
            .containers
            .retain(|one| self.pod == one.pod || self.pod == format!("{}/{}", one.namespace, one.pod));
        let first = planned.containers.first().with_context(|| {
            let mut names = names;
            names.dedup();
            format!("no pod {} in these manifests; there are: {}", self.pod, names.join(", "))
        })?;
        let same = planned.containers.iter().all(|one| one.namespace == first.namespace);
        anyhow::ensure!(same, "there are several pods {}: write NAMESPACE/NAME", self.pod);
        match self.output {
            Format::Json => super::json(&planned.containers)?,
            Format::Text => super::emit(&in_words(&planned))?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn in_words(planned: &Planned) -> String {
    let mut lines = Vec::new();
    for (index, one) in planned.containers.iter().enumerate() {
        if index == 0 {
            lines.push(format!(
                "Pod {}/{} is {}. Role {}: {}.",
                one.namespace, one.pod, one.qos, one.role, one.evidence
            ));
        }
        lines.push(String::new());
        lines.push(format!("Container {}", one.container));
        lines.push(format!("  owed     {}", one.entitlement.reason()));
        lines.push(match (&one.cost, &one.note) {
            (Some(cost), _) => format!(
                "  CPUs     {}, its own: {} NUMA node(s), {} socket(s), {} LLC(s), {} core(s) shared with others",
                one.cpus, cost.numa, cost.sockets, cost.llcs, cost.strangers
            ),
            (None, Some(note)) => format!("  CPUs     {}, shared: {note}", one.cpus),
            (None, None) => format!("  CPUs     {}, shared", one.cpus),
        });
        lines.push(format!("  threads  {}", one.threads.reason));
        for (name, value) in &one.env {
            lines.push(format!("           {name}={value}"));
        }
        if !one.threads.kept.is_empty() {
            lines.push(format!("           left as the pod has them: {}", one.threads.kept.join(", ")));
        }
    }
    lines.join("\n")
}
