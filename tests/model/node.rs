//! The node under the agent's real turn of the reconciler. It reads and writes a world, and checks
//! each step against the rules.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use pinfold::agent::kernel::Kernel;
use pinfold::agent::turn::{self, NeedsAllPods, TurnContext, TurnEnd, TurnResult};
use pinfold::agent::world::{CgroupChanges, Heartbeat, LiveValues, PodStore, World as AgentWorld};
use pinfold::cpu::{CpuSet, Placer, SharedMinimum, Topology};
use pinfold::host::cgroup::{CgroupError, Cpuset, MissingCpus, PodCgroup, PodSurroundings};
use pinfold::host::container_files::ListedFolders;
use pinfold::metrics::AgentMetrics;
use pinfold::pin::decide::{DecisionContext, KubeletCpus};
use pinfold::pin::{AppliedStep, Enforcement, Reason, Step, StepOutcome as Real};
use pinfold::pod::{CpuPreferences, ObjectName, Policy};

use super::agent::{Held, Outcome, Planned, Setup, World};
use super::events::Event;
use super::kernel::{bits, node_of, path, pod_node, set, uid_of};
use super::machine::{Broken, Watch, excused, list, moment};

/// A mistake of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flaw {
    /// CreateContainer writes no record, and answers as if the record existed.
    NoRecord,
    /// A node turn that yields does not note its writes to shared containers.
    UnnotedShares,
    /// A node turn that yields does not read the written owners again.
    StaleOwners,
    /// The live files keep what they say at a container's creation.
    OldFiles,
    /// The steps that `Setup::mutate` leaves out fail. Otherwise, the turn never learns of them.
    FailingSteps,
}

/// The events during a turn.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Orders {
    /// The agent is killed after this many steps.
    pub(crate) most: usize,
    /// An event, and the number of steps before the event.
    pub(crate) interruption: Option<(usize, Event)>,
    /// Whether something has happened since the turn read the node. Steps may then fail.
    pub(crate) stale: bool,
    /// Cgroups, as bits, whose program has not begun.
    pub(crate) waiting: u32,
    /// Whether the live files must name each CPU that the kernel allows: nobody but the agent has changed anything.
    pub(crate) has_files: bool,
}

/// One of the agent's turns.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Turn<'a> {
    /// CreateContainer, with the pod's uid and the container's name.
    Admit(&'a str, &'a str),
    /// StartContainer, with the pod's uid.
    Start(&'a str),
    /// All pods.
    All,
    /// All pods for a request. For CreateContainer, the uid of the container's pod.
    AllFor(Option<(&'a str, &'a str)>),
}

/// How a turn ended.
#[derive(Debug)]
pub(crate) enum End {
    Done(Box<TurnResult>),
    Unchanged,
    Interrupted,
    NeedsAllPods,
}

/// How a turn went.
pub(crate) struct Ran {
    pub(crate) end: End,
    /// The number of steps carried out.
    pub(crate) done: usize,
    /// Whether the agent was killed before the last step.
    pub(crate) is_cut: bool,
}

/// A turn in progress.
struct Run<'a> {
    world: &'a mut World,
    planned: Option<&'a Planned>,
    orders: Orders,
    /// Whether the steps must equal those of `planned`.
    compares: bool,
    /// The number of steps that the turn has planned.
    steps: usize,
    /// The number of steps carried out.
    done: usize,
    /// Whether the agent was killed before the last step.
    is_cut: bool,
    interrupted: bool,
    /// Whether the turn has noted sets from before CPUs went offline. It then knows more than the plan to compare with.
    has_noted: bool,
    broken: Option<Broken>,
    /// The pod of a pod turn.
    pod: Option<String>,
}

/// The node of a turn.
pub(crate) struct ModelNode<'a> {
    setup: &'a Setup,
    machine: Rc<(Topology, Placer)>,
    memory_nodes: CpuSet,
    reserved: CpuSet,
    policy: Policy,
    preferences: CpuPreferences,
    devices: BTreeMap<ObjectName, CpuSet>,
    enforcement: Enforcement,
    kubelet: Option<KubeletCpus>,
    turn: Turn<'a>,
    run: RefCell<Run<'a>>,
}

thread_local! {
    /// The metrics that a turn counts into. No test reads the values.
    static METRICS: AgentMetrics = AgentMetrics::new().unwrap();
}

impl Orders {
    /// Nothing happens.
    pub(crate) const NONE: Self = Self {
        most: usize::MAX,
        interruption: None,
        stale: false,
        waiting: 0,
        has_files: false,
    };
}

// === impl Setup ===

impl Setup {
    /// What an agent knows that has just started.
    pub(crate) fn state(&self, store: PodStore) -> AgentWorld {
        let heartbeat = Heartbeat::new(Duration::from_secs(10));
        AgentWorld::new(store, METRICS.with(AgentMetrics::clone), heartbeat)
    }

    /// Runs a real turn. `planned` is the plan of a turn about all pods that would run now.
    ///
    /// A turn about all pods must have the steps of `planned`. After each step the rules for every moment hold.
    pub(crate) fn turn(
        &self,
        world: &mut World,
        state: &mut AgentWorld,
        (turn, planned): (Turn<'_>, &Planned),
        is_urgent: &mut dyn FnMut() -> bool,
        orders: Orders,
    ) -> Result<Ran, Broken> {
        let is_of_all = matches!(turn, Turn::All | Turn::AllFor(_));
        // What the kubelet chooses, it also moves.
        if is_of_all && world.kubelet.is_none() {
            self.decided(world, planned)?;
        }
        let is_hopeless = self.is_hopeless(world, planned);
        let orders = Orders {
            stale: orders.stale || is_hopeless,
            ..orders
        };
        let mut run = Run::new(world, orders);
        run.planned = Some(planned);
        run.compares = is_of_all;
        run.pod = match turn {
            Turn::Admit(uid, _) | Turn::Start(uid) => Some(uid.to_owned()),
            Turn::All | Turn::AllFor(_) => None,
        };
        let node = ModelNode::new(self, turn, run);
        let end = node.run(state, is_urgent);
        let run = node.run.into_inner();
        if let Some(broken) = run.broken {
            return Err(broken);
        }
        run.world.endangered &= run.world.kernel.is_in_danger();
        let end = end?;
        // A plan that fails because of a foreign set is not tried again before something changes.
        let has_steps = !planned.steps.is_empty();
        let left_out = match &end {
            End::Done(_) => !run.has_noted && run.steps != planned.steps.len(),
            End::Unchanged => has_steps,
            End::Interrupted | End::NeedsAllPods => false,
        };
        if is_of_all && left_out && !(is_hopeless && run.steps == 0) {
            return Err(format!("the turn left out\n{}", list(&planned.steps)));
        }
        if !run.is_cut && !run.interrupted {
            let noted: Vec<&str> = state.refused().collect();
            let mut refused: Vec<&str> = run.world.refused.iter().map(|node| path(*node)).collect();
            refused.sort_unstable();
            if noted != refused {
                return Err(format!("refused: {refused:?}, noted: {noted:?}"));
            }
        }
        Ok(Ran {
            end,
            done: run.done,
            is_cut: run.is_cut,
        })
    }

    /// Makes the live files of a container that is being created.
    pub(crate) fn open_live_files(
        &self,
        world: &mut World,
        state: &mut AgentWorld,
        (of, cpus): ((&str, &str), &CpuSet),
    ) {
        let node = ModelNode::new(self, Turn::Start(of.0), Run::new(world, Orders::NONE));
        let values = LiveValues {
            cpus: cpus.clone(),
            upcoming: cpus.clone(),
            ..LiveValues::default()
        };
        state.open_live_files(&node, of, &values);
    }

    /// Reads a pod that the runtime has just reported.
    pub(crate) fn read_new_pod(&self, world: &mut World, state: &mut AgentWorld, uid: &str) {
        let node = ModelNode::new(self, Turn::Start(uid), Run::new(world, Orders::NONE));
        state.read_new_pod(uid, &node);
    }
}

// === impl Run ===

impl<'a> Run<'a> {
    fn new(world: &'a mut World, orders: Orders) -> Self {
        Self {
            world,
            planned: None,
            orders,
            compares: false,
            steps: 0,
            done: 0,
            is_cut: false,
            interrupted: false,
            has_noted: false,
            broken: None,
            pod: None,
        }
    }

    /// Carries steps out, and stops at the first that breaks a rule.
    fn carry_out(
        &mut self,
        steps: Vec<Step>,
        go_on: &mut dyn FnMut(&Step) -> bool,
    ) -> Vec<AppliedStep> {
        let all = list(&steps);
        self.steps = steps.len();
        let Some(planned) = self.planned else {
            return Vec::new();
        };
        if self.compares && !self.has_noted && steps != planned.steps {
            let planned = list(&planned.steps);
            self.broken = Some(format!("the turn plans\n{all}\n  instead of\n{planned}"));
            return Vec::new();
        }
        let mut watch = Watch::new(self.world, planned);
        watch.waiting = self.orders.waiting;
        let has_lost_cpus = !self.world.kernel.missing_cpus().unheld().is_empty();
        let mut held = Held::default();
        let mut done = Vec::new();
        for (number, step) in steps.into_iter().enumerate() {
            if number >= self.orders.most {
                self.is_cut = true;
                break;
            }
            // The kernel can refuse a plan from an older observation once a further event has happened.
            if let Some((_, event)) = self.orders.interruption.filter(|(at, _)| *at == number) {
                self.world.happen(event);
                (self.orders.stale, self.interrupted) = (true, true);
            }
            if !go_on(&step) {
                break;
            }
            if has_lost_cpus && !self.orders.stale && self.world.starts_partition(&step) {
                self.broken = Some(format!("a partition is made while CPUs are lost: {step}"));
                break;
            }
            match self.carry_out_one(&step, &mut held, &mut watch) {
                Ok(outcome) => {
                    self.done += 1;
                    let outcome = real(&step, outcome, &held);
                    done.push(AppliedStep { step, outcome });
                }
                Err(rule) => {
                    self.broken = Some(format!("{rule}\n  at step {} of\n{all}", number + 1));
                    break;
                }
            }
        }
        done
    }

    /// Writes the notes with which a turn begins.
    fn note(&mut self, notes: Vec<Step>) -> Vec<AppliedStep> {
        self.has_noted = true;
        let mut held = Held::default();
        let mut write = |step: Step| {
            let outcome = self.world.apply(&step, &mut held);
            let outcome = real(&step, outcome, &held);
            AppliedStep { step, outcome }
        };
        notes.into_iter().map(&mut write).collect()
    }

    fn carry_out_one(
        &mut self,
        step: &Step,
        held: &mut Held,
        watch: &mut Watch,
    ) -> Result<Outcome, Broken> {
        let (world, stale) = (&mut *self.world, self.orders.stale);
        let lost = world.kernel.lost;
        let outcome = world.apply(step, held);
        if self.interrupted && world.endangered {
            world.forfeited |= world.kernel.lost & !lost;
        }
        // A pod turn knows the other pods' containers from an earlier turn. Such a container may have ended.
        let has_ended = outcome == Outcome::Gone
            && (self.pod.as_ref()).is_some_and(|pod| uid_of(node_of(step.path())) != *pod);
        let is_done = outcome == Outcome::Done || has_ended;
        if !stale && !is_done && !excused(world, step, &outcome) {
            return Err(format!("a step of the plan did not come off: {outcome:?}"));
        }
        moment(world)?;
        if self.orders.has_files && !self.interrupted {
            world.files_name_cpus()?;
        }
        if !stale {
            watch.look(world, step)?;
        }
        Ok(outcome)
    }
}

/// The pod and the container of a live file.
fn file_key(uid: &str, container: &str) -> (usize, usize) {
    let at = container.trim_start_matches('c');
    (uid.parse().unwrap(), at.parse().unwrap())
}

fn widens_shared(step: &Step) -> bool {
    matches!(
        step,
        Step::Cpus {
            reason: Reason::Share,
            ..
        }
    )
}

/// The outcome in the words of the program.
fn real(step: &Step, outcome: Outcome, held: &Held) -> Real {
    match outcome {
        Outcome::Done => Real::Done,
        Outcome::Gone => Real::Gone,
        Outcome::NotInForce(effective) => Real::NotInForce { effective },
        Outcome::Refused(refused) => Real::Failed(CgroupError::Partition {
            path: PathBuf::from(step.path()),
            says: format!("{refused:?}"),
        }),
        Outcome::Invalid(says) => Real::Invalid {
            says: says.to_owned(),
        },
        Outcome::AncestorRefused => Real::AncestorRefused {
            path: step.path().to_owned(),
        },
        Outcome::Blocked => Real::Blocked {
            cpus: held.cpus.clone(),
        },
    }
}

// === impl ModelNode ===

impl<'a> ModelNode<'a> {
    fn new(setup: &'a Setup, turn: Turn<'a>, run: Run<'a>) -> Self {
        let world = &*run.world;
        let machine = setup.machine(world.kernel.online);
        Self {
            setup,
            memory_nodes: machine.0.memory_nodes(),
            machine,
            reserved: set(setup.reserved(world)),
            policy: setup.policy(),
            preferences: CpuPreferences::default(),
            devices: BTreeMap::new(),
            enforcement: world.enforcement.enforcement(),
            kubelet: world.kubelet_cpus(),
            turn,
            run: RefCell::new(run),
        }
    }

    fn run(
        &self,
        state: &mut AgentWorld,
        is_urgent: &mut dyn FnMut() -> bool,
    ) -> Result<End, Broken> {
        let context = TurnContext {
            node: DecisionContext {
                topology: &self.machine.0,
                placer: &self.machine.1,
                memory_nodes: &self.memory_nodes,
                reserved: &self.reserved,
                shared_minimum: SharedMinimum::default(),
                policy: &self.policy,
                preferences: &self.preferences,
                devices: &self.devices,
                ids_settled: true,
                suspended: None,
                kubelet: self.kubelet.as_ref(),
                enforcement: self.enforcement,
            },
            moves_per_hour: 0,
            interval: Duration::from_secs(10),
        };
        let of_pod = |result: Result<TurnResult, NeedsAllPods>| match result {
            Ok(result) => End::Done(Box::new(result)),
            Err(NeedsAllPods) => End::NeedsAllPods,
        };
        let of_all = |end: TurnEnd| match end {
            TurnEnd::Done(result) => Ok(End::Done(result)),
            TurnEnd::Unchanged => Ok(End::Unchanged),
            TurnEnd::Interrupted => Ok(End::Interrupted),
            TurnEnd::Failed(error) => Err(format!("the turn failed: {error:#}")),
        };
        match self.turn {
            Turn::Admit(uid, container) => {
                let request = (uid, container);
                Ok(of_pod(turn::admit(state, self, &context, request)))
            }
            Turn::Start(uid) => Ok(of_pod(turn::start(state, self, &context, uid))),
            Turn::All => of_all(turn::reconcile(state, self, &context, is_urgent)),
            Turn::AllFor(creates) => of_all(turn::reconcile_for(state, self, &context, creates)),
        }
    }

    fn is_plain(&self) -> bool {
        matches!(self.turn, Turn::All)
    }

    fn node(&self, path: &str) -> anyhow::Result<usize> {
        let node = node_of(path);
        anyhow::ensure!(self.exists(path), "{path} is gone");
        Ok(node)
    }
}

impl Kernel for ModelNode<'_> {
    fn surroundings(&self) -> anyhow::Result<PodSurroundings> {
        Ok(self.run.borrow().world.kernel.surroundings())
    }

    fn pod_paths(&self) -> anyhow::Result<Vec<(String, String)>> {
        let kernel = &self.run.borrow().world.kernel;
        let pods = (0..self.setup.shapes.len()).filter(|pod| kernel.get(pod_node(*pod)).is_some());
        Ok(pods
            .map(|pod| (path(pod_node(pod)).to_owned(), pod.to_string()))
            .collect())
    }

    fn pod(&self, path: &str, uid: &str) -> anyhow::Result<Option<PodCgroup>> {
        let run = self.run.borrow();
        let pod = run.world.kernel.pod(node_of(path));
        let mut earlier = self.setup.earlier.borrow_mut();
        let is_flawed = self.setup.flaw == Some(Flaw::StaleOwners);
        let is_stale = is_flawed && self.is_plain() && run.done > 0;
        if is_stale {
            return Ok(earlier.get(uid).cloned().or(pod));
        }
        if self.is_plain() {
            earlier.extend(pod.clone().map(|pod| (uid.to_owned(), pod)));
        }
        Ok(pod)
    }

    fn find_pod(&self, uid: &str) -> anyhow::Result<Option<String>> {
        let pod = path(pod_node(uid.parse()?));
        Ok(self.exists(pod).then(|| pod.to_owned()))
    }

    fn online(&self) -> CpuSet {
        set(self.run.borrow().world.kernel.online)
    }

    fn missing_cpus(&self, _: &CpuSet) -> anyhow::Result<MissingCpus> {
        Ok(self.run.borrow().world.kernel.missing_cpus())
    }

    fn effective(&self, path: &str) -> anyhow::Result<Option<CpuSet>> {
        let node = node_of(path);
        let kernel = &self.run.borrow().world.kernel;
        Ok(kernel.get(node).map(|_| set(kernel.effective(node))))
    }

    fn cpuset(&self, path: &str) -> anyhow::Result<Cpuset> {
        if path.is_empty() {
            let online = set(self.run.borrow().world.kernel.online);
            return Ok(Cpuset {
                cpus: online.clone(),
                effective: online,
                ..Cpuset::default()
            });
        }
        let node = self.node(path)?;
        Ok(self.run.borrow().world.kernel.cpuset(node))
    }

    fn record_text(&self, path: &str) -> anyhow::Result<Option<String>> {
        let node = self.node(path)?;
        let kernel = &self.run.borrow().world.kernel;
        Ok(kernel
            .get(node)
            .and_then(|node| node.mark.as_deref().map(str::to_owned)))
    }

    fn exists(&self, path: &str) -> bool {
        self.run.borrow().world.kernel.get(node_of(path)).is_some()
    }

    /// The tests name changes themselves.
    fn changes(&self) -> CgroupChanges {
        CgroupChanges::default()
    }

    fn workqueue_cpus(&self) -> Option<CpuSet> {
        None
    }

    fn live_folders(&self) -> ListedFolders {
        let run = self.run.borrow();
        let files = run.world.files.keys();
        let folder = |(pod, at): &(usize, usize)| (pod.to_string(), vec![format!("c{at}")]);
        ListedFolders {
            pods: files.map(folder).collect(),
            unreadable: Vec::new(),
        }
    }

    fn make_live_folder(&self, uid: &str, container: &str) -> Result<(), String> {
        let files = &mut self.run.borrow_mut().world.files;
        files.insert(file_key(uid, container), (0, false));
        Ok(())
    }

    fn write_live_file(
        &self,
        (uid, container): (&str, &str),
        name: &str,
        text: Option<&str>,
    ) -> Result<(), String> {
        let files = &mut self.run.borrow_mut().world.files;
        let file = files.get_mut(&file_key(uid, container));
        let (cpus, begun) = file.ok_or("no folder")?;
        let is_flawed = self.setup.flaw == Some(Flaw::OldFiles) && *begun;
        if let ("cpus", Some(text), false) = (name, text, is_flawed) {
            *cpus = bits(&text.trim().parse::<CpuSet>().unwrap());
        }
        Ok(())
    }

    fn apply(&self, steps: Vec<Step>, go_on: &mut dyn FnMut(&Step) -> bool) -> Vec<AppliedStep> {
        let is_note = |step: &Step| {
            matches!(
                step,
                Step::Narrowed {
                    earlier: Some(_),
                    ..
                }
            )
        };
        if steps.iter().all(is_note) && !steps.is_empty() {
            return self.run.borrow_mut().note(steps);
        }
        let mut failing = steps.clone();
        let steps = (self.setup.mutate)(steps);
        failing.retain(|step| !steps.contains(step));
        let creates = matches!(self.turn, Turn::Admit(..));
        if creates && self.setup.flaw == Some(Flaw::NoRecord) {
            let done = |step| AppliedStep {
                step,
                outcome: Real::Done,
            };
            return steps.into_iter().map(done).collect();
        }
        let planned = steps.len();
        let mut done = self.run.borrow_mut().carry_out(steps, go_on);
        let yields = self.is_plain() && done.len() < planned;
        if yields && self.setup.flaw == Some(Flaw::UnnotedShares) {
            done.retain(|done| !widens_shared(&done.step));
        }
        if self.setup.flaw == Some(Flaw::FailingSteps) {
            let failed = |step| AppliedStep {
                step,
                outcome: Real::Differs {
                    says: "it fails".to_owned(),
                },
            };
            done.extend(failing.into_iter().map(failed));
        }
        done
    }
}
