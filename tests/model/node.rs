//! The node under the agent's real reconcile pass. The node reads and writes a world, and checks each step against the
//! rules.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashSet};
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use pinfold::agent::pass;
use pinfold::agent::pass_model::{PassEnd, PassNode, PassScope, RuntimeRequest};
use pinfold::agent::pass_state::{Heartbeat, PassState, PodStore};
use pinfold::cpu::{CpuSet, Placer, Topology};
use pinfold::host::cgroup::{CgroupError, Cpuset, PodCgroup, PodSurroundings};
use pinfold::metrics::AgentMetrics;
use pinfold::pin::decide::DecisionInput;
use pinfold::pin::{AppliedStep, Enforcement, Ledger, Reason, Step, StepOutcome as Real};
use pinfold::pod::{CpuPreferences, Pod, Policy};

use super::agent::{Held, Outcome, Planned, Setup, World};
use super::events::Event;
use super::kernel::{node_of, path, pod_node, set, uid_of};
use super::machine::{Broken, Watch, excused, list, moment};

/// A mistake of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flaw {
    /// CreateContainer writes no record, and answers as if the record existed.
    NoRecord,
    /// A node pass that yields does not note its writes to shared containers.
    UnnotedShares,
    /// A node pass that yields does not read the written owners again.
    StaleOwners,
}

/// The events during a pass.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Orders {
    /// The agent is killed after this many steps.
    pub(crate) most: usize,
    /// An event, and the number of steps before the event.
    pub(crate) interruption: Option<(usize, Event)>,
    /// Whether something has happened since the pass read the node. Steps may then fail.
    pub(crate) stale: bool,
    /// Cgroups, as bits, whose program has not begun.
    pub(crate) waiting: u32,
}

/// How a pass went.
pub(crate) struct Ran {
    pub(crate) end: PassEnd,
    /// The number of steps carried out.
    pub(crate) done: usize,
    /// Whether the agent was killed before the last step.
    pub(crate) is_cut: bool,
}

/// A pass in progress.
struct Run<'a> {
    world: &'a mut World,
    planned: Option<&'a Planned>,
    orders: Orders,
    /// Whether the steps must equal the steps of `planned`.
    compares: bool,
    /// The number of steps that the pass has planned.
    steps: usize,
    /// The number of steps carried out.
    done: usize,
    /// Whether the agent was killed before the last step.
    is_cut: bool,
    interrupted: bool,
    /// Whether the pass has noted sets from before CPUs went offline. It then knows more than the plan to compare with.
    has_noted: bool,
    broken: Option<Broken>,
    /// The pod of a pod pass.
    pod: Option<String>,
}

/// The node of a pass.
pub(crate) struct ModelNode<'a> {
    setup: &'a Setup,
    machine: Rc<(Topology, Placer)>,
    memory_nodes: CpuSet,
    reserved: CpuSet,
    policy: Policy,
    preferences: CpuPreferences,
    devices: BTreeMap<(String, String), CpuSet>,
    enforcement: Enforcement,
    /// The runtime request of a pod pass.
    request: Option<RuntimeRequest<'a>>,
    run: RefCell<Run<'a>>,
}

thread_local! {
    /// The metrics that a pass counts into. No test reads the values.
    static METRICS: AgentMetrics = AgentMetrics::new().unwrap();
}

impl Orders {
    /// Nothing happens.
    pub(crate) const NONE: Self = Self {
        most: usize::MAX,
        interruption: None,
        stale: false,
        waiting: 0,
    };
}

// === impl Setup ===

impl Setup {
    /// The state of an agent that has just started.
    pub(crate) fn state(&self, store: PodStore) -> PassState {
        let heartbeat = Heartbeat::new(Duration::from_secs(10));
        PassState::new(store, METRICS.with(AgentMetrics::clone), heartbeat)
    }

    /// Runs a real pass. `planned` is the plan of a node pass that would run now.
    ///
    /// A node pass must have the steps of `planned`. After each step the rules for every moment hold.
    pub(crate) fn pass(
        &self,
        world: &mut World,
        state: &mut PassState,
        (scope, planned): (PassScope<'_>, &Planned),
        has_urgent: &mut dyn FnMut() -> bool,
        orders: Orders,
    ) -> Result<Ran, Broken> {
        let is_node = matches!(scope, PassScope::Node(_));
        if is_node {
            self.decided(world, planned)?;
        }
        let is_hopeless = self.is_hopeless(world, planned);
        let orders = Orders {
            stale: orders.stale || is_hopeless,
            ..orders
        };
        let mut run = Run::new(world, orders);
        run.planned = Some(planned);
        run.compares = is_node;
        run.pod = match scope {
            PassScope::Pod(RuntimeRequest::Create { uid, .. } | RuntimeRequest::Start { uid }) => {
                Some(uid.to_owned())
            }
            PassScope::Node(_) => None,
        };
        let mut node = ModelNode::new(self, scope, run);
        let end = pass::run(state, &mut node, scope, has_urgent);
        let run = node.run.into_inner();
        if let Some(broken) = run.broken {
            return Err(broken);
        }
        run.world.endangered &= run.world.kernel.is_in_danger();
        match &end {
            PassEnd::Failed(error) => return Err(format!("the pass failed: {error:#}")),
            // A plan that fails because of a foreign set is not tried again before something changes.
            PassEnd::Done(_)
                if is_node
                    && !run.has_noted
                    && run.steps != planned.steps.len()
                    && !(is_hopeless && run.steps == 0) =>
            {
                return Err(format!("the pass left out\n{}", list(&planned.steps)));
            }
            PassEnd::NeedsNode if is_node => return Err("a node pass needs itself".to_owned()),
            _ => {}
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

    /// Reads a pod that the runtime has just reported.
    pub(crate) fn read_new_pod(&self, world: &mut World, state: &mut PassState, uid: &str) {
        let scope = PassScope::Pod(RuntimeRequest::Start { uid });
        let node = ModelNode::new(self, scope, Run::new(world, Orders::NONE));
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
            self.broken = Some(format!("the pass plans\n{all}\n  instead of\n{planned}"));
            return Vec::new();
        }
        let mut watch = Watch::new(self.world, planned);
        watch.waiting = self.orders.waiting;
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

    /// Writes the notes with which a pass begins.
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
        // A pod pass knows the other pods' containers from an earlier pass. Such a container may have ended.
        let has_ended = outcome == Outcome::Gone
            && (self.pod.as_ref()).is_some_and(|pod| uid_of(node_of(step.path())) != *pod);
        let is_done = outcome == Outcome::Done || has_ended;
        if !stale && !is_done && !excused(world, step, &outcome) {
            return Err(format!("a step of the plan did not come off: {outcome:?}"));
        }
        moment(world)?;
        if !stale {
            watch.look(world, step)?;
        }
        Ok(outcome)
    }
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
    fn new(setup: &'a Setup, scope: PassScope<'a>, run: Run<'a>) -> Self {
        let request = match scope {
            PassScope::Pod(request) => Some(request),
            PassScope::Node(_) => None,
        };
        let world = &*run.world;
        let machine = setup.machine(world.kernel.online);
        Self {
            setup,
            memory_nodes: machine.0.memory_nodes(),
            machine,
            reserved: set(setup.reserved(world)),
            policy: Policy::default(),
            preferences: CpuPreferences::default(),
            devices: BTreeMap::new(),
            enforcement: world.enforcement.enforcement(),
            request,
            run: RefCell::new(run),
        }
    }

    fn node(&self, path: &str) -> anyhow::Result<usize> {
        let node = node_of(path);
        anyhow::ensure!(self.exists(path), "{path} is gone");
        Ok(node)
    }
}

impl PassNode for ModelNode<'_> {
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

    fn pod(&self, path: String, uid: String) -> anyhow::Result<Option<PodCgroup>> {
        let run = self.run.borrow();
        let pod = run.world.kernel.pod(node_of(&path));
        let mut earlier = self.setup.earlier.borrow_mut();
        let is_flawed = self.setup.flaw == Some(Flaw::StaleOwners);
        let is_stale = is_flawed && self.request.is_none() && run.done > 0;
        if is_stale {
            return Ok(earlier.get(&uid).cloned().or(pod));
        }
        if self.request.is_none() {
            earlier.extend(pod.clone().map(|pod| (uid, pod)));
        }
        Ok(pod)
    }

    fn find_pod(&self, uid: &str) -> anyhow::Result<Option<PodCgroup>> {
        let pod = pod_node(uid.parse()?);
        Ok(self.run.borrow().world.kernel.pod(pod))
    }

    fn lost_cpus(&self, _: &mut dyn Iterator<Item = &PodCgroup>) -> anyhow::Result<CpuSet> {
        Ok(self.run.borrow().world.kernel.nowhere())
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

    fn workqueue_cpus(&self) -> Option<CpuSet> {
        None
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
        let steps = (self.setup.mutate)(steps);
        let creates = matches!(self.request, Some(RuntimeRequest::Create { .. }));
        if creates && self.setup.flaw == Some(Flaw::NoRecord) {
            let done = |step| AppliedStep {
                step,
                outcome: Real::Done,
            };
            return steps.into_iter().map(done).collect();
        }
        let planned = steps.len();
        let mut done = self.run.borrow_mut().carry_out(steps, go_on);
        let yields = self.request.is_none() && done.len() < planned;
        if yields && self.setup.flaw == Some(Flaw::UnnotedShares) {
            done.retain(|done| !widens_shared(&done.step));
        }
        done
    }

    fn choose_reserved(&mut self, _: &Ledger) {}

    fn decision_input<'a>(
        &'a self,
        pods: &'a [Pod],
        here: &'a HashSet<&'a str>,
    ) -> DecisionInput<'a> {
        DecisionInput {
            topology: &self.machine.0,
            placer: &self.machine.1,
            memory_nodes: &self.memory_nodes,
            reserved: &self.reserved,
            policy: &self.policy,
            preferences: &self.preferences,
            pods,
            here: Some(here),
            devices: &self.devices,
            moves: 0,
            ids_settled: true,
            suspended: None,
        }
    }

    fn enforcement(&self) -> Enforcement {
        self.enforcement
    }

    fn moves_per_hour(&self) -> usize {
        0
    }

    fn reconcile_interval(&self) -> Duration {
        Duration::from_secs(10)
    }
}
