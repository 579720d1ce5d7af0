//! The world that the agent works on, the plan that a turn must carry out, and the steps by the rules of `src/pin/apply.rs`,
//! which writes to a real kernel and cannot run in a test.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use pinfold::agent::world::{PendingAssignments, PodStore};
use pinfold::agent::{PodKey, PodSource, PodsChange, PodsUpdate};
use pinfold::agent::{RuntimePod, RuntimeUpdate};
use pinfold::cpu::TopologyFacts;
use pinfold::cpu::{CpuSet, Numbering, Placer, Shape as Machine, SharedMinimum, Topology};
use pinfold::host::cgroup::{PartitionKind as Made, PodCgroup};
use pinfold::pin::decide::{
    AnnouncedShrinks, DecisionContext, DecisionInput, Decisions, KubeletCpus, decide,
};
use pinfold::pin::{AssignmentRecord, Enforcement, Ledger, Observed, Reason, Step, plan};
use pinfold::pod::{
    CONTAINER_CPUS_ANNOTATION, Container, ContainerIds, ContainerKind, CpuPreferences, Pod,
    PodList, Policy, Resources,
};

use super::kernel::{
    self, CONTAINERS, Cpus, Kernel, KernelKind, Refused, State, bits, id, is_leaf, node_of,
    pod_node, set,
};
use super::node::Flaw;

/// The containers of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Shape {
    /// A single container, with its number of CPUs.
    One(u64),
    /// Two containers.
    Two(u64, u64),
    /// An init container, then the container.
    Init(u64),
    /// A sidecar with one CPU beside the container.
    Sidecar(u64),
    /// A sidecar with one CPU, then an init container that runs beside it, then the container.
    InitBesideSidecar(u64),
    /// The same, with a container of half a CPU: the sidecar owns all CPUs of the pod.
    InitBesideOwner,
    /// A container with half a CPU, which is never pinned.
    Shared,
    /// A Burstable pod: a container on shared CPUs beside one that owns its CPUs by an annotation.
    OneOwner(u64),
}

// === impl Shape ===

impl Shape {
    /// Kind and CPUs in thousandths of each container.
    pub(crate) fn containers(self) -> Vec<(ContainerKind, u64)> {
        use ContainerKind::{App, Init, Sidecar};
        match self {
            Self::One(cpus) => vec![(App, cpus * 1000)],
            Self::Two(one, other) => vec![(App, one * 1000), (App, other * 1000)],
            Self::Init(cpus) => vec![(Init, 1000), (App, cpus * 1000)],
            Self::Sidecar(cpus) => vec![(Sidecar, 1000), (App, cpus * 1000)],
            Self::InitBesideSidecar(cpus) => {
                vec![(Sidecar, 1000), (Init, 1000), (App, cpus * 1000)]
            }
            Self::InitBesideOwner => vec![(Sidecar, 1000), (Init, 1000), (App, 500)],
            Self::Shared => vec![(App, 500)],
            Self::OneOwner(cpus) => vec![(App, 500), (App, cpus * 1000)],
        }
    }
}

/// What the agent knows of a pod, and what the kubelet does for it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(crate) struct PodState {
    /// Whether a source describes the pod.
    pub(crate) known: bool,
    /// Whether a resize has added a CPU to the pod's last container.
    pub(crate) grown: bool,
    /// The incarnation that the pod's status names, per container.
    pub(crate) named: [Option<u8>; CONTAINERS],
}

/// The complete state, except for a half-applied plan.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct World {
    pub(crate) kernel: Kernel,
    pub(crate) pods: Vec<PodState>,
    pub(crate) enforcement: ModelEnforcement,
    /// Whether two cores are reserved instead of one.
    pub(crate) wide: bool,
    /// The connection to a container runtime, which lists the containers that the statuses name.
    pub(crate) runtime: Runtime,
    /// What the kubelet reports, if it chooses the CPUs: pod, container and CPUs.
    pub(crate) kubelet: Option<Vec<(usize, usize, Cpus)>>,
    /// Cgroups whose partition the kernel refused since the last timer turn.
    pub(crate) refused: BTreeSet<usize>,
    /// Whether a foreign program has brought the kernel to a state that may lose CPUs.
    pub(crate) endangered: bool,
    /// CPUs that were lost through a foreign program.
    pub(crate) forfeited: Cpus,
    /// What the file `cpus` of a container says, by pod and container, and whether the container's program has begun.
    pub(crate) files: BTreeMap<(usize, usize), (Cpus, bool)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Runtime {
    /// None, or one that the history itself reports to the agent.
    Unconnected,
    Connected,
    /// The connection is lost.
    Away,
}

/// [`Enforcement`], with an order and a hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum ModelEnforcement {
    Partition,
    Cpuset,
    Observe,
}

/// The constants of a history.
pub(crate) struct Setup {
    pub(crate) kind: KernelKind,
    pub(crate) cpus: u32,
    pub(crate) threads: u32,
    pub(crate) shapes: Vec<Shape>,
    /// A change of a plan before it is carried out. A mutant of the planner changes the steps.
    pub(crate) mutate: fn(Vec<Step>) -> Vec<Step>,
    /// A mistake of the node that turns work on.
    pub(crate) flaw: Option<Flaw>,
    /// Whether the CPUs of a shrink go only after a delay, which the act `Elapse` ends.
    pub(crate) delays: bool,
    /// The pods in the observed state of the last node turn, for a flaw.
    pub(crate) earlier: RefCell<BTreeMap<String, PodCgroup>>,
    machines: RefCell<BTreeMap<Cpus, Rc<(Topology, Placer)>>>,
}

/// The steps of a plan, with the pods, the observed state, the ledger and the decisions that led to
/// them.
pub(crate) struct Planned {
    pub(crate) steps: Vec<Step>,
    pub(crate) pods: PodList,
    pub(crate) observed: Observed,
    pub(crate) ledger: Ledger,
    pub(crate) decisions: Decisions,
    /// The uids of pods with a container, now or soon.
    pub(crate) here: BTreeSet<String>,
}

/// The outcome of a step.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Outcome {
    Done,
    Gone,
    NotInForce(CpuSet),
    Refused(Refused),
    Invalid(&'static str),
    AncestorRefused,
    Blocked,
}

/// The cgroups and CPUs that later steps of a plan must avoid.
#[derive(Debug, Clone, Default)]
pub(crate) struct Held {
    pub(crate) cpus: CpuSet,
    refused: Vec<String>,
    /// Cgroups with a step that failed, with the number of the setting.
    unrestored: BTreeSet<(String, u8)>,
}

/// The number of a step's setting: CPUs, or the partition.
fn setting(step: &Step) -> Option<u8> {
    match step {
        Step::Cpus { .. } => Some(0),
        Step::Exclusive { .. } | Step::Partition { .. } => Some(PARTITION),
        _ => None,
    }
}

const PARTITION: u8 = 1;

// === impl ModelEnforcement ===

impl ModelEnforcement {
    pub(crate) fn enforcement(self) -> Enforcement {
        match self {
            Self::Partition => Enforcement::Partition,
            Self::Cpuset => Enforcement::Cpuset,
            Self::Observe => Enforcement::Observe,
        }
    }
}

// === impl Setup ===

impl Setup {
    pub(crate) fn new(kind: KernelKind, cpus: u32, threads: u32, shapes: &[Shape]) -> Self {
        let machines = RefCell::default();
        Self {
            kind,
            cpus,
            threads,
            shapes: shapes.to_vec(),
            mutate: |steps| steps,
            flaw: None,
            delays: false,
            earlier: RefCell::default(),
            machines,
        }
    }

    /// A world without pods.
    pub(crate) fn world(&self) -> World {
        let enforcement = if self.kind.has_partitions() {
            ModelEnforcement::Partition
        } else {
            ModelEnforcement::Cpuset
        };
        World {
            kernel: Kernel::new(self.kind, self.cpus, self.shapes.len()),
            pods: vec![PodState::default(); self.shapes.len()],
            enforcement,
            wide: false,
            runtime: Runtime::Unconnected,
            kubelet: None,
            refused: BTreeSet::new(),
            endangered: false,
            forfeited: 0,
            files: BTreeMap::new(),
        }
    }

    /// The CPUs that are never assigned: the first core, or the first two.
    pub(crate) fn reserved(&self, world: &World) -> Cpus {
        let cores = if world.wide { 2 } else { 1 };
        (1 << (cores * self.threads)) - 1
    }

    pub(crate) fn machine(&self, online: Cpus) -> Rc<(Topology, Placer)> {
        let mut machines = self.machines.borrow_mut();
        let machine = machines.entry(online).or_insert_with(|| {
            let whole = Topology::from_shape(Machine {
                sockets: 1,
                numa_per_socket: 1,
                llcs_per_numa: 1,
                cores_per_llc: self.cpus / self.threads,
                threads_per_core: self.threads,
                numbering: Numbering::SiblingsAdjacent,
            });
            let (cores, llcs, sockets) = (whole.cores(), whole.llcs(), whole.sockets());
            let offline = whole.online.difference(&set(online));
            let facts = TopologyFacts {
                online: set(online),
                offline,
                cores,
                llcs,
                sockets,
                numa: whole.numa,
                ..TopologyFacts::default()
            };
            let topology = Topology::from_facts(facts);
            let placer = Placer::new(&topology);
            Rc::new((topology, placer))
        });
        Rc::clone(machine)
    }

    /// The manifest of a pod, with the status that the kubelet has written so far.
    pub(crate) fn pod(&self, index: usize, state: &PodState) -> Pod {
        let mut pod = Pod {
            namespace: "train".to_owned(),
            name: format!("worker-{index}"),
            uid: Some(index.to_string().into()),
            labels: [(
                "training.kubeflow.org/replica-type".to_owned(),
                "worker".to_owned(),
            )]
            .into(),
            ..Pod::default()
        };
        let has_one_owner = matches!(self.shapes[index], Shape::OneOwner(_));
        if has_one_owner {
            let wish = "c0=shared,c1=exclusive".to_owned();
            pod.annotations
                .insert(CONTAINER_CPUS_ANNOTATION.to_owned(), wish);
        }
        for (number, (kind, cpu)) in self.shapes[index].containers().into_iter().enumerate() {
            let last = number + 1 == self.shapes[index].containers().len();
            let cpu = Some(if state.grown && last { cpu + 1000 } else { cpu });
            let memory = Some(1 << 20);
            pod.containers.push(Container {
                name: format!("c{number}"),
                kind,
                resources: Resources {
                    cpu_request: cpu.filter(|_| !has_one_owner || last),
                    cpu_limit: cpu,
                    memory_request: memory,
                    memory_limit: memory,
                },
                runtime_id: state.named[number]
                    .map(|incarnation| id(number, usize::from(incarnation))),
                ..Container::default()
            });
        }
        pod
    }

    /// The pods that the API describes.
    pub(crate) fn described(&self, world: &World) -> PodsUpdate {
        let known = world
            .pods
            .iter()
            .enumerate()
            .filter(|(_, state)| state.known);
        let pods = known.map(|(index, state)| {
            let pod = self.pod(index, state);
            (PodKey::of_api(&pod), Arc::new(pod))
        });
        PodsUpdate {
            source: PodSource::Api,
            change: Some(PodsChange::Listed(pods.collect())),
            errors: Vec::new(),
        }
    }

    /// A store with the pods of the API.
    pub(crate) fn store(&self, world: &World) -> PodStore {
        let mut store = Self::store_without_list();
        store.take_pods(self.described(world));
        if world.runtime != Runtime::Unconnected {
            store.take_runtime(self.listed(world));
        }
        if world.runtime == Runtime::Away {
            store.take_runtime(RuntimeUpdate::Away);
        }
        store
    }

    /// The pods that the runtime lists, with the containers that have a name.
    fn listed(&self, world: &World) -> RuntimeUpdate {
        let known = world.pods.iter().enumerate();
        let known = known.filter(|(_, state)| state.known);
        let listed = known.map(|(index, state)| {
            let mut pod = self.pod(index, state);
            pod.ids = ContainerIds::Runtime;
            pod.containers
                .retain(|container| container.runtime_id.is_some());
            RuntimePod::new(pod)
        });
        RuntimeUpdate::All(listed.collect())
    }

    /// A store before the API's first list.
    pub(crate) fn store_without_list() -> PodStore {
        PodStore::new(ContainerIds::Awaited).listed_by(&[PodSource::Api])
    }

    /// A store for an agent without an API server.
    pub(crate) fn store_without_api() -> PodStore {
        PodStore::new(ContainerIds::Awaited)
    }

    /// The plan of an agent that starts now, with the pods of the API.
    pub(crate) fn plan(&self, world: &World) -> Planned {
        self.plan_with(world, &self.store(world), &PendingAssignments::default())
    }

    /// The policy of the agent.
    pub(crate) fn policy(&self) -> Policy {
        let seconds = if self.delays { 3600 } else { 0 };
        Policy {
            shrink_delay: Duration::from_secs(seconds),
            ..Policy::default()
        }
    }

    /// The plan of a node turn with the given pods, composed of the parts that a turn uses.
    pub(crate) fn plan_with(
        &self,
        world: &World,
        store: &PodStore,
        pending: &PendingAssignments,
    ) -> Planned {
        self.plan_knowing(world, store, (pending, &AnnouncedShrinks::default()))
    }

    /// As `plan_with`, by an agent that has announced some shrinks.
    pub(crate) fn plan_knowing(
        &self,
        world: &World,
        store: &PodStore,
        (pending, shrinks): (&PendingAssignments, &AnnouncedShrinks),
    ) -> Planned {
        let pods = store.known();
        let (observed, mut ledger) = Observed::new(world.kernel.scan(), &pods);
        pending.enter(&mut ledger);
        let machine = self.machine(world.kernel.online);
        let here = store.here(&observed, pending, &pods);
        let known = store.known_pods(&observed, &pods, true);
        let kubelet = world.kubelet_cpus();
        let inputs = DecisionInput {
            context: DecisionContext {
                topology: &machine.0,
                placer: &machine.1,
                memory_nodes: &machine.0.memory_nodes(),
                reserved: &set(self.reserved(world)),
                shared_minimum: SharedMinimum::default(),
                policy: &self.policy(),
                preferences: &CpuPreferences::default(),
                devices: &BTreeMap::new(),
                ids_settled: true,
                suspended: None,
                kubelet: kubelet.as_ref(),
                enforcement: Enforcement::Partition,
            },
            pods: &pods,
            here: Some(&here),
            known: Some(&known),
            moves: 0,
            shrinks: (self.delays && kubelet.is_none()).then_some(shrinks),
        };
        let mut decisions = decide(&inputs, &ledger);
        match world.enforcement {
            _ if kubelet.is_some() => decisions.keep_apart_from_mates(&pods, &observed),
            ModelEnforcement::Observe => decisions.keep_ledger_assignments(&pods, &ledger),
            ModelEnforcement::Partition | ModelEnforcement::Cpuset => {
                decisions.keep_init_containers_off_others(&pods, &observed);
            }
        }
        decisions.desired.held_back = world
            .refused
            .iter()
            .map(|node| kernel::path(*node).to_owned())
            .collect();
        decisions.desired.starts_no_partition = world.enforcement == ModelEnforcement::Partition
            && !world.kernel.missing_cpus().unheld().is_empty();
        let steps = plan(
            &observed,
            &ledger,
            &decisions.desired,
            world.enforcement.enforcement(),
        );
        let here = here.into_iter().map(str::to_owned).collect();
        Planned {
            steps: (self.mutate)(steps),
            pods,
            observed,
            ledger,
            decisions,
            here,
        }
    }
}

// === impl World ===

impl World {
    /// What the kubelet reports, as decisions take it.
    pub(crate) fn kubelet_cpus(&self) -> Option<KubeletCpus> {
        let mut cpus = KubeletCpus::new();
        for (pod, container, own) in self.kubelet.as_ref()? {
            let of_pod = cpus.entry(pod.to_string()).or_default();
            of_pod.insert(format!("c{container}"), set(*own));
        }
        Some(cpus)
    }

    /// Whether a step makes a cgroup a partition that is none.
    pub(crate) fn starts_partition(&self, step: &Step) -> bool {
        let Step::Partition { path, kind, .. } = step else {
            return false;
        };
        let node = self.kernel.get(node_of(path));
        *kind != Made::Member && node.is_some_and(|node| !node.is_live())
    }

    /// Carries out one step and reads the result back, as `apply` does.
    pub(crate) fn apply(&mut self, step: &Step, held: &mut Held) -> Outcome {
        let within = |cgroup: &String| {
            step.path()
                .strip_prefix(cgroup.as_str())
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        let gives = match step {
            Step::Exclusive { cpus, .. } => !cpus.is_empty(),
            Step::Partition { kind, .. } => *kind != Made::Member,
            _ => false,
        };
        let asked = matches!(
            step,
            Step::Partition { .. }
                | Step::Exclusive {
                    in_force: Some(_),
                    ..
                }
        );
        if gives && held.refused.iter().any(within) {
            if asked {
                self.refused.insert(node_of(step.path()));
            }
            held.unrestored.insert((step.path().to_owned(), PARTITION));
            return Outcome::AncestorRefused;
        }
        let node = node_of(step.path());
        let kernel = &mut self.kernel;
        if kernel.get(node).is_none() {
            return Outcome::Gone;
        }
        let result = match step {
            Step::Record { path, record: mark } => {
                let below = format!("{path}/");
                let is_within = |other: &str| other == path || other.starts_with(&below);
                let mut unrestored = held.unrestored.iter();
                if mark.is_none()
                    && unrestored.any(|(path, setting)| *setting == PARTITION && is_within(path))
                {
                    return Outcome::Blocked;
                }
                let is_kept = held.unrestored.iter().any(|(other, _)| other == path);
                if let Some(Some(node)) = kernel.nodes.get_mut(node) {
                    let before = node.mark.as_deref().map(AssignmentRecord::parse);
                    let kept = before
                        .and_then(Result::ok)
                        .filter(|_| is_kept && mark.is_none())
                        .map(|record| AssignmentRecord::new(record.before));
                    node.mark = mark
                        .as_ref()
                        .or(kept.as_ref())
                        .map(|mark| Arc::from(AssignmentRecord::text(mark)));
                }
                Ok(())
            }
            Step::Quota { quota, .. } => {
                if let Some(Some(node)) = kernel.nodes.get_mut(node) {
                    node.limited = quota.quota.is_some();
                }
                Ok(())
            }
            Step::Narrowed { earlier, .. } => kernel.note(node, earlier.as_ref().map(bits)),
            // The model requests neither idle siblings nor memory.
            Step::Make { .. } | Step::Remove { .. } | Step::Memory { .. } => {
                panic!("{step}: not asked for")
            }
            Step::Exclusive { cpus, .. } => kernel.write_exclusive(node, bits(cpus)),
            Step::Partition { kind, .. } => kernel.write_partition(node, *kind),
            Step::Cpus {
                cpus,
                reason: Reason::Own,
                ..
            } if !cpus.is_disjoint(&held.cpus) => {
                return Outcome::Blocked;
            }
            Step::Cpus { cpus, .. } => kernel.write_cpus(node, bits(cpus)),
        };
        let outcome = match result {
            Ok(()) => self.read_back(step, node),
            Err(refused) => Outcome::Refused(refused),
        };
        let failed = matches!(outcome, Outcome::Refused(_) | Outcome::Invalid(_));
        if let Some(setting) = setting(step) {
            let entry = (step.path().to_owned(), setting);
            if matches!(outcome, Outcome::Done) {
                held.unrestored.remove(&entry);
            } else {
                held.unrestored.insert(entry);
            }
        }
        match step {
            Step::Exclusive { path, .. } if failed => held.refused.push(path.clone()),
            Step::Cpus {
                cpus,
                reason: Reason::Narrow,
                ..
            } if failed || matches!(outcome, Outcome::NotInForce(_)) => {
                let written = self.kernel.get(node).map_or(0, |node| node.cpus);
                let open = set(self.kernel.effective(node) | written).difference(cpus);
                held.cpus = held.cpus.union(&open);
            }
            _ => {}
        }
        if asked && !matches!(outcome, Outcome::Done | Outcome::Gone) {
            self.refused.insert(node);
        }
        outcome
    }

    fn read_back(&mut self, step: &Step, node: usize) -> Outcome {
        let effective = set(self.kernel.effective(node));
        let done = match step {
            Step::Cpus {
                cpus,
                reason:
                    Reason::Separate | Reason::Share | Reason::Release | Reason::Return | Reason::Pod,
                ..
            } => self
                .kernel
                .get(node)
                .is_some_and(|node| node.cpus == bits(cpus)),
            Step::Cpus { cpus, .. } => match self.kernel.get(node) {
                Some(node) if node.is_live() => node.cpus == bits(cpus),
                _ => effective == *cpus,
            },
            Step::Exclusive {
                in_force: Some(cpus),
                ..
            }
            | Step::Partition {
                in_force: Some(cpus),
                ..
            } => match self.kernel.get(node).map(|node| node.state) {
                Some(State::Live(_)) => effective == *cpus,
                state => {
                    let _ = self.kernel.write_partition(node, Made::Member);
                    let Some(State::Invalid(why)) = state else {
                        return Outcome::Invalid("member");
                    };
                    return Outcome::Invalid(why);
                }
            },
            _ => true,
        };
        if done {
            Outcome::Done
        } else {
            Outcome::NotInForce(effective)
        }
    }

    /// The online CPUs on which an owner can run. A limit of the pods' tree does not concern partitions.
    pub(crate) fn in_reach(&self) -> Cpus {
        match self.enforcement {
            ModelEnforcement::Partition => self.kernel.online,
            _ => self.kernel.offered(),
        }
    }

    /// Whether a foreign program has confined another pod to CPUs that this pod should get, or
    /// holds a wanted CPU as exclusive. The kernel then refuses them.
    pub(crate) fn is_walled(&self, pod: usize, wanted: Cpus) -> bool {
        let others = (0..self.pods.len())
            .map(pod_node)
            .filter(|other| *other != pod && pod != kernel::TREE);
        let mut others = others.filter_map(|other| self.kernel.get(other));
        let stranger = self.kernel.get(kernel::STRANGER);
        self.enforcement == ModelEnforcement::Partition
            && (stranger.is_some_and(|stranger| stranger.exclusive & wanted != 0)
                || others.any(|other| {
                    other.exclusive == 0 && other.cpus != 0 && other.cpus & !wanted == 0
                }))
    }

    /// Whether a foreign program has confined a pod without exclusive CPUs to a part of the shared
    /// CPUs, or to others. The enforcement writes nothing to the pod, and writes to its containers
    /// have no effect.
    pub(crate) fn is_confined(&self, shared: Cpus) -> bool {
        let pods = (0..self.pods.len()).filter_map(|pod| self.kernel.get(pod_node(pod)));
        let mut free = pods.filter(|pod| pod.mark.is_none());
        self.enforcement == ModelEnforcement::Cpuset
            && free.any(|pod| pod.cpus != 0 && shared & !pod.cpus != 0)
    }

    /// No program runs on a CPU that the file of its container does not name.
    pub(crate) fn files_name_cpus(&self) -> Result<(), String> {
        for ((pod, at), (named, begun)) in &self.files {
            let leaves = (0..2).map(|incarnation| kernel::leaf_node(*pod, *at, incarnation));
            for leaf in leaves.filter(|leaf| *begun && self.kernel.get(*leaf).is_some()) {
                let effective = self.kernel.effective(leaf);
                if effective & !named != 0 {
                    return Err(format!(
                        "{} runs on {}, and its file names {}",
                        kernel::path(leaf),
                        set(effective),
                        set(*named)
                    ));
                }
            }
        }
        Ok(())
    }

    /// The containers' cgroups of a pod.
    pub(crate) fn leaves_of(&self, pod: usize) -> Vec<usize> {
        (1..=kernel::SLOTS)
            .map(|slot| pod_node(pod) + slot)
            .filter(|node| is_leaf(*node) && self.kernel.get(*node).is_some())
            .collect()
    }
}
