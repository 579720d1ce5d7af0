//! An agent whose state lives from turn to turn, and a container runtime that waits for answers.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use pinfold::agent::turn::{self, TurnResult};
use pinfold::agent::world::{PodStore, World as AgentWorld};
use pinfold::agent::{RuntimePod, RuntimeUpdate};
use pinfold::cpu::CpuSet;
use pinfold::pin::decide::Decision;
use pinfold::pin::{DriftCause, Ledger, Observed, PodAssignment};
use pinfold::pod::{ContainerIds, ContainerKind, Entitlement};

use super::agent::{ModelEnforcement, Planned, PodState, Setup, World};
use super::events::{Event, Menu};
use super::kernel::{CONTAINERS, Kernel, KernelKind, bits, leaf_node, path, pod_node, set};
use super::machine::Broken;
use super::node::{End, Orders, Turn};

/// A request of the runtime about a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Request {
    /// CreateContainer, for a pod and a container. The container has no cgroup so far.
    Create(usize, usize),
    /// StartContainer.
    Start(usize, usize),
}

/// One move of a history.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Act {
    /// An event outside of the runtime.
    Happen(Event),
    /// The runtime runs a pod's sandbox.
    Run(usize),
    /// The same, and the API server's description of the pod comes later, with the event `Learn`.
    RunEarly(usize),
    /// The agent restarts. The API server's list comes later, if there is an API server.
    RestartBeforeList,
    /// The API server's list arrives.
    List,
    /// The delays of all announced shrinks are over.
    Elapse,
    /// The runtime waits for the answer to a request.
    Ask(Request),
    /// The agent is killed after this number of steps for a request, and restarts.
    KillIn(usize, Request),
    /// The runtime has given up waiting for the answer to CreateContainer.
    Unheard(usize, usize),
    /// The runtime makes a container's cgroup, with the answered CPUs.
    Appear(usize, usize),
    /// The creation of a container fails.
    Fail(usize, usize),
    /// A container ends together with its cgroup.
    End(usize, usize),
    /// The kubelet removes an ended container.
    Remove(usize, usize),
    /// A node turn of the timer.
    Reconcile,
    /// A node turn for another reason.
    Wake,
    /// The agent is killed after so many steps of a node turn, and starts again.
    Kill(usize),
    /// A node turn yields where it asks the n-th time for waiting requests. A second node turn follows the request.
    Yield(usize, Request),
    /// The same, and the second node turn comes later.
    YieldOnly(usize, Request),
}

/// A container in the runtime's view.
#[derive(Debug, Clone, PartialEq)]
struct Container {
    incarnation: usize,
    /// The CPUs of the answer, until the container has started or something else may change them.
    answer: Option<CpuSet>,
    /// Whether the agent answered that the container runs on the CPUs of its pod.
    inherits: bool,
    has_cgroup: bool,
    started: bool,
}

/// A started container, and those of its CPUs that are its own or, if it may be an init container, its pod's.
struct Pinned {
    pod: usize,
    at: usize,
    leaf: usize,
    cpus: CpuSet,
    /// Whether a record says that the CPUs are the container's.
    is_owner: bool,
}

/// Whether the API server lists the pods.
#[derive(Debug, Clone, Copy, PartialEq)]
enum ApiList {
    /// The list has arrived since the agent's start.
    Arrived,
    Awaited,
    /// There is no API server.
    Never,
}

/// The agent, the runtime and the world.
pub(crate) struct Agent<'a> {
    setup: &'a Setup,
    pub(crate) world: World,
    state: AgentWorld,
    /// The kernel at the last turn that took what the watches have seen.
    watched: Kernel,
    /// The containers of each pod of the runtime.
    runtime: Vec<Option<[Option<Container>; CONTAINERS]>>,
    /// The ended containers, and whether the kubelet has removed them. A new connection does not tell of either.
    ended: BTreeMap<(usize, usize), bool>,
    /// The next incarnation of each container.
    next: BTreeMap<(usize, usize), usize>,
    /// Whether a foreign program has changed the node since the last node turn.
    is_disturbed: bool,
    /// Whether an event has happened that can lead to drift later on: a foreign write, a change of the CPUs or of the
    /// configuration.
    may_drift: bool,
    /// Whether the agent was killed since the last node turn.
    was_killed: bool,
    /// The pods whose entitlement has changed.
    resized: BTreeSet<usize>,
    list: ApiList,
    /// The number of requests served by a pod turn alone, and by node turns.
    pub(crate) served: [usize; 2],
}

// === impl Request ===

impl Request {
    fn of(self) -> (usize, usize) {
        let (Self::Create(pod, container) | Self::Start(pod, container)) = self;
        (pod, container)
    }
}

impl fmt::Display for Act {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Happen(event) => event.fmt(f),
            other => write!(f, "{other:?}"),
        }
    }
}

fn name(container: usize) -> String {
    format!("c{container}")
}

// === impl Agent ===

impl<'a> Agent<'a> {
    pub(crate) fn new(setup: &'a Setup) -> Self {
        let world = setup.world();
        Self {
            setup,
            state: setup.state(setup.store(&world)),
            watched: world.kernel.clone(),
            runtime: vec![None; world.pods.len()],
            ended: BTreeMap::new(),
            world,
            next: BTreeMap::new(),
            is_disturbed: false,
            may_drift: false,
            was_killed: false,
            resized: BTreeSet::new(),
            list: ApiList::Arrived,
            served: [0; 2],
        }
    }

    /// An agent without an API server.
    pub(crate) fn with_runtime_alone(setup: &'a Setup) -> Self {
        let mut agent = Self::new(setup);
        agent.list = ApiList::Never;
        agent.state = setup.state(agent.store(&agent.world));
        agent
    }

    /// An agent after some acts.
    pub(crate) fn after(setup: &'a Setup, acts: &[Act]) -> Result<Self, Broken> {
        Self::new(setup).then(acts)
    }

    pub(crate) fn then(self, acts: &[Act]) -> Result<Self, Broken> {
        let mut agent = self;
        for (number, act) in acts.iter().enumerate() {
            agent
                .go(*act)
                .map_err(|rule| told(&rule, &acts[..=number], &agent.world))?;
        }
        Ok(agent)
    }

    fn container(&self, pod: usize, container: usize) -> Option<&Container> {
        self.runtime[pod].as_ref()?[container].as_ref()
    }

    /// Each possible container: its pod and its number.
    fn containers(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        let pods = 0..self.runtime.len();
        pods.flat_map(|pod| (0..CONTAINERS).map(move |at| (pod, at)))
    }

    /// Whether the API server has described a pod.
    fn is_described(&self, pod: usize) -> bool {
        self.list == ApiList::Arrived && self.world.pods[pod].known
    }

    /// Whether a container runs on the CPUs of its pod: an init container without CPUs of its own. It has some if its description
    /// came late. Without a description, the agent decides which container may be one.
    fn inherits(&self, (pod, at): (usize, usize), owned: &PodAssignment, decided: bool) -> bool {
        let kind = self.setup.shapes[pod].containers()[at].0;
        let is_init = self.is_described(pod) && kind == ContainerKind::Init;
        (is_init || decided) && !owned.containers.contains_key(&name(at))
    }

    /// The CPUs of a pod's record that an init container may use: those without a container.
    fn left_for_init(&self, pod: usize, at: usize) -> CpuSet {
        let (_, ledger) = self.ledger();
        let owned = ledger.of(&pod.to_string());
        let mut left = owned.usable();
        for other in (0..CONTAINERS).filter(|other| *other != at) {
            let one = self.container(pod, other).filter(|one| one.has_cgroup);
            if let Some(cpus) = one.and_then(|_| owned.containers.get(&name(other))) {
                left = left.difference(cpus);
            }
        }
        left
    }

    fn change(&mut self, pod: usize, container: usize) -> Option<&mut Container> {
        self.runtime[pod].as_mut()?[container].as_mut()
    }

    /// The runtime's description of a pod.
    fn runtime_pod(&self, pod: usize) -> Option<RuntimePod> {
        let containers = self.runtime[pod].as_ref()?;
        let state = PodState {
            named: std::array::from_fn(|at| {
                let one = containers[at].as_ref()?;
                u8::try_from(one.incarnation).ok()
            }),
            ..self.world.pods[pod].clone()
        };
        let mut described = self.setup.pod(pod, &state);
        described
            .containers
            .retain(|container| container.runtime_id.is_some());
        // The runtime does not know the kinds of containers.
        let containers = described.containers.iter_mut();
        containers.for_each(|container| container.kind = ContainerKind::App);
        described.ids = ContainerIds::Runtime;
        let ended = |is_removed: bool| {
            let of_pod = self.ended.range((pod, 0)..(pod + 1, 0));
            let ended = of_pod.filter(|(_, removed)| **removed == is_removed);
            ended.map(|((_, at), _)| name(*at)).collect()
        };
        Some(RuntimePod {
            pod: described,
            injected: BTreeMap::new(),
            removed: ended(true),
            stopped: ended(false),
        })
    }

    fn all_of_runtime(&self) -> RuntimeUpdate {
        let pods = 0..self.runtime.len();
        RuntimeUpdate::All(pods.filter_map(|pod| self.runtime_pod(pod)).collect())
    }

    /// A store with the pods that a new agent reads.
    fn store(&self, world: &World) -> PodStore {
        let mut store = match self.list {
            ApiList::Arrived => self.setup.store(world),
            ApiList::Awaited | ApiList::Never => self.store_without_list(),
        };
        store.take_runtime(self.all_of_runtime());
        store
    }

    fn store_without_list(&self) -> PodStore {
        match self.list {
            ApiList::Never => Setup::store_without_api(),
            ApiList::Arrived | ApiList::Awaited => Setup::store_without_list(),
        }
    }

    /// The list that the agent had arrives again without delay.
    fn restart(&mut self) {
        self.was_killed = true;
        self.world.refused.clear();
        self.ended.clear();
        self.state = self.setup.state(self.store(&self.world));
    }

    /// Notes whether a container's program runs, for the check of its live file.
    fn begins(&mut self, container: (usize, usize), begun: bool) {
        if let Some(file) = self.world.files.get_mut(&container) {
            file.1 = begun;
        }
    }

    /// The runtime reports a pod.
    fn tell(&mut self, pod: usize) {
        let uid = pod.to_string();
        let Some(told) = self.runtime_pod(pod) else {
            return self.state.take_runtime(RuntimeUpdate::Gone(uid));
        };
        let is_new = told.pod.containers.is_empty();
        self.state.take_runtime(RuntimeUpdate::Pod(Box::new(told)));
        if is_new {
            self.setup
                .read_new_pod(&mut self.world, &mut self.state, &uid);
        }
    }

    /// The acts that are possible now.
    pub(crate) fn acts(&self, menu: Menu) -> (Vec<Act>, Vec<Act>) {
        let mut acts = Vec::new();
        for (pod, shape) in self.setup.shapes.iter().enumerate() {
            let Some(containers) = &self.runtime[pod] else {
                if self.world.kernel.get(pod_node(pod)).is_none() {
                    acts.push(Act::Run(pod));
                }
                continue;
            };
            let kinds = shape.containers();
            // An init container and an app container never run at the same time. Sidecars run beside both.
            let clashes = |one: usize, other: usize| {
                use ContainerKind::{App, Init};
                matches!((kinds[one].0, kinds[other].0), (Init, App) | (App, Init))
            };
            // The kubelet creates and starts the containers of a pod one after another.
            let is_busy = containers.iter().flatten().any(|one| !one.started);
            for at in 0..kinds.len() {
                let clash = |other: usize| containers[other].is_some() && clashes(other, at);
                match &containers[at] {
                    None if self.list == ApiList::Never
                        && self.ended.get(&(pod, at)) == Some(&false) =>
                    {
                        acts.push(Act::Remove(pod, at));
                        if !is_busy && !(0..kinds.len()).any(clash) {
                            acts.push(Act::Ask(Request::Create(pod, at)));
                        }
                    }
                    None if is_busy || (0..kinds.len()).any(clash) => {}
                    None => {
                        acts.push(Act::Ask(Request::Create(pod, at)));
                        acts.push(Act::Unheard(pod, at));
                    }
                    Some(one) if !one.has_cgroup => {
                        acts.extend([Act::Appear(pod, at), Act::Fail(pod, at)]);
                    }
                    Some(one) => {
                        acts.push(Act::End(pod, at));
                        if !one.started {
                            acts.push(Act::Ask(Request::Start(pod, at)));
                        }
                    }
                }
            }
        }
        let events = self.world.events(self.setup, menu).into_iter();
        let others = events.filter(|event| {
            !matches!(
                event,
                Event::Create(_) | Event::Appear(..) | Event::Name(..) | Event::End(..)
            )
        });
        (acts, others.map(Act::Happen).collect())
    }

    /// The cgroups, as bits, of containers that have not started.
    fn waiting(&self) -> u32 {
        let all = self.containers();
        let waits = |(pod, at): (usize, usize)| {
            let one = self.container(pod, at).filter(|one| !one.started)?;
            Some(1 << leaf_node(pod, at, one.incarnation))
        };
        all.filter_map(waits).fold(0, |bits, leaf| bits | leaf)
    }

    /// The requests that the runtime could make now.
    pub(crate) fn requests(&self) -> Vec<Request> {
        let (acts, _) = self.acts(super::PLAIN);
        let requests = acts.into_iter().filter_map(|act| match act {
            Act::Ask(request) => Some(request),
            _ => None,
        });
        requests.collect()
    }

    /// Makes a move. Whether an ordered kill or yield came about.
    pub(crate) fn go(&mut self, act: Act) -> Result<bool, Broken> {
        let pinned = self.pinned();
        let came = self.act(act)?;
        self.has_one_owner()?;
        if !self.may_drift {
            self.world.files_name_cpus()?;
        }
        self.stay(&pinned, act)?;
        Ok(came)
    }

    fn act(&mut self, act: Act) -> Result<bool, Broken> {
        let mut came = true;
        match act {
            Act::Happen(event) => self.happen(event),
            Act::Run(pod) | Act::RunEarly(pod) => {
                self.world.happen(Event::Create(pod));
                self.world.pods[pod].known = matches!(act, Act::Run(_));
                self.describe();
                self.runtime[pod] = Some(Default::default());
                self.tell(pod);
            }
            Act::RestartBeforeList => {
                if self.list == ApiList::Arrived {
                    self.list = ApiList::Awaited;
                }
                self.was_killed = true;
                self.world.refused.clear();
                self.ended.clear();
                self.state = self.setup.state(self.store_without_list());
                // The runtime lists its pods after the first turn.
                self.turn_of_all(&mut || false, &mut usize::MAX.to_owned())?;
                let all = self.all_of_runtime();
                self.state.take_runtime(all);
            }
            Act::Elapse => self.state.elapse_delays(),
            Act::List if self.list == ApiList::Never => {}
            Act::List => {
                self.list = ApiList::Arrived;
                self.describe();
                // A pod that is not in the list may now own other CPUs than the last answer said, and so may a container that
                // seemed to be an init container.
                for (pod, containers) in self.runtime.iter_mut().enumerate() {
                    let is_listed = self.world.pods[pod].known;
                    let containers = containers.iter_mut().flatten().flatten();
                    let other = containers.filter(|one| !is_listed || one.inherits);
                    other.for_each(|one| one.answer = None);
                }
            }
            Act::Ask(request) => came = self.ask(request, usize::MAX)?,
            Act::KillIn(steps, request) => {
                came = self.ask(request, steps)?;
                self.restart();
            }
            Act::Unheard(pod, container) => {
                self.ask(Request::Create(pod, container), usize::MAX)?;
                if let Some(one) = self.change(pod, container) {
                    one.answer = None;
                }
            }
            Act::Appear(pod, container) => self.appear(pod, container)?,
            Act::Fail(pod, container) => {
                self.runtime[pod].as_mut().unwrap()[container] = None;
                self.ended.insert((pod, container), true);
                self.tell(pod);
            }
            Act::Remove(pod, container) => {
                self.ended.insert((pod, container), true);
                self.tell(pod);
            }
            Act::End(pod, container) => {
                self.runtime[pod].as_mut().unwrap()[container] = None;
                self.ended.insert((pod, container), false);
                self.begins((pod, container), false);
                self.world.happen(Event::End(pod, container));
                self.tell(pod);
            }
            Act::Reconcile | Act::Wake => {
                if act == Act::Reconcile {
                    self.world.refused.clear();
                    self.state.forget_refused();
                    self.state.sweep();
                }
                self.turn_of_all(&mut || false, &mut usize::MAX.to_owned())?;
            }
            Act::Kill(steps) => {
                let mut left = steps;
                came = self.turn_of_all(&mut || false, &mut left)?.is_none();
                self.restart();
            }
            Act::Yield(at, request) | Act::YieldOnly(at, request) => {
                came = self.yields(at, request)?;
                if came && matches!(act, Act::Yield(..)) {
                    self.turn_of_all(&mut || false, &mut usize::MAX.to_owned())?;
                }
            }
        }
        Ok(came)
    }

    /// The started containers that Pinfold has pinned. On cgroup v1 an owner begins with all CPUs of its pod if no agent answers.
    fn pinned(&self) -> Vec<Pinned> {
        let (_, ledger) = self.ledger();
        let kernel = &self.world.kernel;
        let all = self.containers();
        let pinned = all.filter_map(|(pod, at)| {
            let one = self.container(pod, at).filter(|one| one.started)?;
            let leaf = leaf_node(pod, at, one.incarnation);
            let node = kernel.get(leaf)?;
            let effective = set(kernel.effective(leaf));
            let owned = ledger.of(&pod.to_string());
            let own = owned.containers.get(&name(at));
            let kind = self.setup.shapes[pod].containers()[at].0;
            let may_be_init = kind == ContainerKind::Init || !self.is_described(pod);
            let cpus = match own {
                Some(own) => effective.intersection(own),
                None if may_be_init => effective.clone(),
                None => return None,
            };
            // With partitions, a container without one runs on shared CPUs.
            let partition = self.world.enforcement == ModelEnforcement::Partition;
            let is_pinned = !cpus.is_empty() && effective.is_subset(&owned.cpus());
            (is_pinned && (!partition || node.is_live())).then(|| Pinned {
                pod,
                at,
                leaf,
                cpus,
                is_owner: own.is_some(),
            })
        });
        pinned.collect()
    }

    /// A running container keeps the CPUs that it has, unless its pod's entitlement changes. An init container without CPUs of
    /// its own hands CPUs to a sidecar that is created beside it.
    fn stay(&self, pinned: &[Pinned], act: Act) -> Result<(), Broken> {
        let mut pinned = pinned.iter();
        let moved = pinned.find(|one| {
            let now = set(self.world.kernel.effective(one.leaf));
            let lost = one.cpus.difference(&now);
            self.world.kernel.get(one.leaf).is_some()
                && !self.resized.contains(&one.pod)
                && !lost.is_subset(&self.handed_over(one))
        });
        match moved {
            Some(one) if !self.may_drift => Err(format!(
                "{act} moves the running container {} from {} to {}",
                path(one.leaf),
                one.cpus,
                set(self.world.kernel.effective(one.leaf))
            )),
            _ => Ok(()),
        }
    }

    /// The CPUs that a container without CPUs of its own may hand over: an init container to the sidecars beside it, and a
    /// container without a description to all others, because it counts as an init container.
    fn handed_over(&self, one: &Pinned) -> CpuSet {
        let (_, ledger) = self.ledger();
        let owned = ledger.of(&one.pod.to_string());
        let kinds = self.setup.shapes[one.pod].containers();
        let is_described = self.is_described(one.pod);
        let is_init = kinds[one.at].0 == ContainerKind::Init || !is_described;
        let takes = |other: usize| !is_described || kinds[other].0 == ContainerKind::Sidecar;
        let others = (0..kinds.len()).filter(|other| is_init && !one.is_owner && takes(*other));
        let others = others.filter_map(|other| owned.containers.get(&name(other)));
        others.fold(CpuSet::new(), |all, cpus| all.union(cpus))
    }

    fn yields(&mut self, at: usize, request: Request) -> Result<bool, Broken> {
        let mut asked = 0;
        let mut has_urgent = || {
            asked += 1;
            asked > at
        };
        let done = self.turn_of_all(&mut has_urgent, &mut usize::MAX.to_owned())?;
        if done.is_none() {
            self.ask(request, usize::MAX)?;
        }
        Ok(done.is_none())
    }

    /// The API reports the described pods.
    fn describe(&mut self) {
        if self.list == ApiList::Arrived {
            self.state.take_pods(self.setup.described(&self.world));
        }
    }

    fn happen(&mut self, event: Event) {
        self.world.happen(event);
        self.is_disturbed |=
            event.is_foreign() || matches!(event, Event::Offline(_) | Event::Online(_));
        self.may_drift |= self.is_disturbed || matches!(event, Event::Enforce(_) | Event::Reserve);
        match event {
            Event::Resize(pod) => {
                self.resized.insert(pod);
                if self.list == ApiList::Never && self.runtime[pod].is_some() {
                    self.tell(pod);
                }
                self.describe();
            }
            Event::Remove(pod) => {
                self.resized.remove(&pod);
                (0..CONTAINERS).for_each(|at| self.begins((pod, at), false));
                self.runtime[pod] = None;
                self.ended.retain(|(of, _), _| *of != pod);
                self.describe();
                self.tell(pod);
            }
            Event::Enforce(_) | Event::Reserve => self.restart(),
            _ => self.describe(),
        }
        // The pod may now own other CPUs than the last answer said.
        if let Event::Resize(pod) | Event::Forget(pod) = event {
            let containers = self.runtime[pod].iter_mut().flatten().flatten();
            containers.for_each(|one| one.answer = None);
        }
        // On v1 the runtime could not write the CPUs of the last answer, and the kubelet asks again.
        let is_v1 = self.setup.kind == KernelKind::V1;
        let is_narrower = is_v1 && matches!(event, Event::Limit(_) | Event::Offline(_));
        if is_narrower || matches!(event, Event::Enforce(_)) {
            let all = self.runtime.iter_mut().flatten().flatten().flatten();
            all.for_each(|one| one.answer = None);
        }
    }

    /// The runtime makes a container's cgroup, and writes the CPUs of the answer.
    fn appear(&mut self, pod: usize, container: usize) -> Result<(), Broken> {
        let one = self.change(pod, container).unwrap();
        one.has_cgroup = true;
        let (incarnation, answer) = (one.incarnation, one.answer.clone());
        let leaf = leaf_node(pod, container, incarnation);
        self.world.kernel.make(leaf);
        let Some(cpus) = answer else { return Ok(()) };
        let broken = |agent: &Self| {
            let kernel = &agent.world.kernel;
            let stuck = |node: &usize| kernel.get(*node).is_some_and(|node| node.is_stuck());
            kernel.leaves().filter(stuck).count()
        };
        let before = broken(self);
        let written = self.world.kernel.write_cpus(leaf, bits(&cpus));
        if broken(self) > before && !self.is_disturbed {
            return Err(format!(
                "the runtime writes {cpus} to {}, and the partition of another container of the pod breaks",
                path(leaf)
            ));
        }
        match written {
            Err(refused) if !self.is_disturbed => Err(format!(
                "the runtime can't write {cpus} to {}: {refused:?}",
                path(leaf)
            )),
            _ => Ok(()),
        }
    }

    /// The runtime makes a container without asking.
    pub(crate) fn make_unasked(&mut self, pod: usize, container: usize) {
        self.runtime[pod].as_mut().unwrap()[container] = Some(Container {
            incarnation: 1,
            answer: None,
            inherits: false,
            has_cgroup: true,
            started: true,
        });
        self.world.kernel.make(leaf_node(pod, container, 1));
        self.tell(pod);
    }

    /// Serves a request as `runtime_requests.rs` does. Returns whether the agent was killed meanwhile.
    fn ask(&mut self, request: Request, most: usize) -> Result<bool, Broken> {
        let (pod, at) = request.of();
        let (uid, container) = (pod.to_string(), name(at));
        let mut left = most;
        match request {
            Request::Create(..) => {
                let next = self.next.entry((pod, at)).or_default();
                let incarnation = *next;
                *next = 1 - incarnation;
                self.runtime[pod].as_mut().unwrap()[at] = Some(Container {
                    incarnation,
                    answer: None,
                    inherits: false,
                    has_cgroup: false,
                    started: false,
                });
                self.ended.remove(&(pod, at));
                self.tell(pod);
                let turn = Turn::Admit(&uid, &container);
                let Some(result) = self.run_for_request(turn, &mut left)? else {
                    return Ok(true);
                };
                self.created(pod, at, &result)?;
            }
            Request::Start(..) => {
                self.tell(pod);
                let result = self.run_for_request(Turn::Start(&uid), &mut left)?;
                let one = self.change(pod, at).unwrap();
                (one.started, one.answer) = (true, None);
                self.begins((pod, at), true);
                let Some(result) = result else {
                    return Ok(true);
                };
                self.started(pod, at, &result)?;
            }
        }
        Ok(false)
    }

    /// The plan of a turn about all pods that would run now.
    fn plan(&self) -> Planned {
        let (pods, pending) = (self.state.pods(), self.state.pending());
        let shrinks = self.state.announced_shrinks();
        self.setup
            .plan_knowing(&self.world, pods, (pending, &shrinks))
    }

    /// A turn about the request's pod, then one about all pods if necessary. `None`: the agent was killed.
    fn run_for_request(
        &mut self,
        turn: Turn<'_>,
        left: &mut usize,
    ) -> Result<Option<TurnResult>, Broken> {
        let planned = self.plan();
        let orders = Orders {
            most: *left,
            stale: self.is_disturbed,
            waiting: self.waiting(),
            has_files: !self.may_drift,
            ..Orders::NONE
        };
        let ran = self.setup.turn(
            &mut self.world,
            &mut self.state,
            (turn, &planned),
            &mut || false,
            orders,
        )?;
        *left -= ran.done;
        match ran.end {
            _ if ran.is_cut => return Ok(None),
            End::Done(result) => {
                self.served[0] += 1;
                return Ok(Some(*result));
            }
            End::NeedsAllPods => self.served[1] += 1,
            other => return Err(format!("a turn about one pod ended so: {other:?}")),
        }
        let Turn::Admit(uid, container) = turn else {
            return self.run_of_all(Turn::AllFor(None), &mut || false, left);
        };
        let request = (uid, container);
        // A turn that breaks a rule, or in which the agent is killed, is the last one.
        let mut last = Ok(true);
        let result = turn::admit_with_all_pods(request, || {
            let ran = self.run_of_all(Turn::AllFor(Some(request)), &mut || false, left);
            last = ran.as_ref().map(Option::is_some).map_err(Clone::clone);
            ran.ok().flatten()
        });
        last.map(|is_done| result.filter(|_| is_done))
    }

    /// Runs a turn about all pods, which takes what the watches have seen. Whether it was neither interrupted nor cut.
    fn turn_of_all(
        &mut self,
        is_urgent: &mut dyn FnMut() -> bool,
        left: &mut usize,
    ) -> Result<Option<()>, Broken> {
        let changes = self.world.kernel.changed_since(&self.watched);
        self.watched = self.world.kernel.clone();
        self.state.note_changes(&changes);
        let result = self.run_of_all(Turn::All, is_urgent, left)?;
        Ok(result.map(|_| ()))
    }

    /// Runs a turn about all pods as the reconciler does. `None`: the turn was interrupted, or the agent was killed.
    fn run_of_all(
        &mut self,
        turn: Turn<'_>,
        is_urgent: &mut dyn FnMut() -> bool,
        left: &mut usize,
    ) -> Result<Option<TurnResult>, Broken> {
        let planned = self.plan();
        let orders = Orders {
            most: *left,
            has_files: !self.may_drift,
            ..Orders::NONE
        };
        let ran = self.setup.turn(
            &mut self.world,
            &mut self.state,
            (turn, &planned),
            is_urgent,
            orders,
        )?;
        *left -= ran.done;
        let result = match ran.end {
            _ if ran.is_cut => return Ok(None),
            End::Done(result) => result,
            End::Unchanged => Box::default(),
            End::Interrupted | End::NeedsAllPods => return Ok(None),
        };
        // Drift because of offline CPUs lasts until the CPUs return.
        let mut drift = result.drift.iter();
        let drift = drift.find(|drift| drift.cause != DriftCause::Offline);
        if let Some(drift) = drift
            && !self.may_drift
            && !self.was_killed
            && self.world.refused.is_empty()
        {
            return Err(format!("drift that no other program has caused: {drift}"));
        }
        self.was_killed = false;
        let is_quiet = result.before.is_none() && result.drift.is_empty();
        let yielded = is_quiet && is_urgent();
        if yielded {
            self.state.decide_again();
        } else {
            self.state.turn_completed();
        }
        // An agent that only observes repairs nothing.
        let observes = self.world.enforcement == ModelEnforcement::Observe;
        self.is_disturbed &= yielded || observes || !self.world.refused.is_empty();
        Ok((!yielded).then_some(*result))
    }

    /// The ledger as a new agent reads it.
    fn ledger(&self) -> (Observed, Ledger) {
        let pods = self.store(&self.world).known();
        Observed::new(self.world.kernel.scan(), &pods)
    }

    /// After an answer the pod's record holds the assignment.
    fn created(&mut self, pod: usize, at: usize, result: &TurnResult) -> Result<(), Broken> {
        let uid = pod.to_string();
        let Some(decision) = result.decision(&uid, &name(at)) else {
            return Err(format!("no decision about container {at} of pod {pod}"));
        };
        let cpus = decision.cpus.clone();
        let owns = matches!(decision.entitlement, Entitlement::Exclusive { .. });
        let inherits = matches!(decision.entitlement, Entitlement::Inherit { .. });
        // An init container that starts again may still count as running.
        let is_app = self.setup.shapes[pod].containers()[at].0 != ContainerKind::Init;
        if inherits && is_app && self.list != ApiList::Awaited {
            return Err(format!(
                "container {at} of pod {pod} counts as an init container without any reason"
            ));
        }
        if let Some(cpus) = cpus
            .as_ref()
            .filter(|_| self.world.enforcement != ModelEnforcement::Observe)
        {
            let mark = self
                .world
                .kernel
                .get(pod_node(pod))
                .and_then(|node| node.mark.clone());
            let record = mark.and_then(|text| pinfold::pin::AssignmentRecord::parse(&text).ok());
            let recorded = record.map(|record| match owns {
                true => record
                    .assignment
                    .containers
                    .get(&name(at))
                    .cloned()
                    .unwrap_or_default(),
                false => self.left_for_init(pod, at),
            });
            if recorded.as_ref() != Some(cpus) {
                return Err(format!(
                    "the answer is {cpus}, and the record of pod {pod} holds {recorded:?}"
                ));
            }
        }
        if let (Some(cpus), true, false) = (
            &cpus,
            owns,
            self.world.enforcement == ModelEnforcement::Observe,
        ) {
            let of = ((uid.as_str(), &*name(at)), cpus);
            let (setup, world) = (self.setup, &mut self.world);
            setup.open_live_files(world, &mut self.state, of);
        }
        let writable = cpus.filter(|cpus| {
            let available = result.decisions.desired.available();
            self.world.enforcement != ModelEnforcement::Cpuset || cpus.is_subset(&available)
        });
        let answer = writable.and_then(|cpus| self.state.cpus_for_runtime(&uid, &name(at), &cpus));
        let one = self.change(pod, at).unwrap();
        (one.answer, one.inherits) = (answer, inherits);
        Ok(())
    }

    /// No CPU has two owners, in a record or an answer. A record holds what was answered.
    fn has_one_owner(&self) -> Result<(), Broken> {
        let (_, ledger) = self.ledger();
        if let Some(both) = ledger
            .unexplained
            .iter()
            .find(|text| text.contains(" to both "))
        {
            return Err(both.clone());
        }
        for (pod, containers) in self.runtime.iter().enumerate() {
            for (at, one) in containers.iter().flatten().enumerate() {
                let answered = one
                    .as_ref()
                    .and_then(|one| Some((one.answer.as_ref()?, one.inherits)));
                let Some((cpus, inherits)) = answered else {
                    continue;
                };
                let uid = pod.to_string();
                let owned = ledger.of(&uid);
                let is_init = self.inherits((pod, at), &owned, inherits);
                for (owner, assignment) in &ledger.assignments {
                    let others = assignment
                        .containers
                        .iter()
                        .filter(|(other, _)| *owner != uid || (!is_init && **other != name(at)));
                    for (other, owned) in others {
                        if !owned.is_disjoint(cpus) {
                            return Err(format!(
                                "{cpus} was answered for container {at} of pod {pod}, and {other} of pod {owner} owns {owned}"
                            ));
                        }
                    }
                }
                let owned = match is_init {
                    true => owned.usable(),
                    false => owned.containers.get(&name(at)).cloned().unwrap_or_default(),
                };
                // A container that lacks CPUs may get more CPUs later.
                if self.world.enforcement != ModelEnforcement::Observe && !cpus.is_subset(&owned) {
                    return Err(format!(
                        "{cpus} was answered for container {at} of pod {pod}, and the records hold {owned}"
                    ));
                }
            }
        }
        Ok(())
    }

    /// After a start the container's CPUs are effective, and no other started container runs on
    /// them.
    fn started(&mut self, pod: usize, at: usize, result: &TurnResult) -> Result<(), Broken> {
        let decision = result.decision(&pod.to_string(), &name(at));
        let inherits =
            |decision: &Decision| matches!(decision.entitlement, Entitlement::Inherit { .. });
        let decided = decision.is_some_and(inherits) && !self.is_described(pod);
        let planned = self.plan();
        if self.world.enforcement == ModelEnforcement::Observe
            || self.is_disturbed
            || !self.world.refused.is_empty()
            || self.setup.is_hopeless(&self.world, &planned)
        {
            return Ok(());
        }
        let kernel = &self.world.kernel;
        let leaf = |pod: usize, at: usize| {
            let one = self.container(pod, at)?;
            let leaf = leaf_node(pod, at, one.incarnation);
            (one.started && kernel.get(leaf).is_some()).then_some(leaf)
        };
        let own = leaf(pod, at).unwrap();
        let (_, ledger) = self.ledger();
        let owned = ledger.of(&pod.to_string());
        let inherits = self.inherits((pod, at), &owned, decided);
        let cpus = if inherits {
            self.left_for_init(pod, at)
        } else {
            owned.containers.get(&name(at)).cloned().unwrap_or_default()
        };
        let there = bits(&cpus) & self.world.in_reach();
        let effective = kernel.effective(own);
        if there == 0 {
            let exclusive = bits(&ledger.exclusive());
            if effective & exclusive != 0 && exclusive & kernel.online & !kernel.top() == exclusive
            {
                return Err(format!(
                    "{} started on {}, which others own",
                    path(own),
                    set(effective & exclusive)
                ));
            }
            return Ok(());
        }
        // A live partition of an init container does not grow.
        let is_fine = effective == there || inherits && effective != 0 && effective & !there == 0;
        if !is_fine {
            return Err(format!(
                "{} started on {}, not on {}",
                path(own),
                set(effective),
                set(there)
            ));
        }
        let partition = self.world.enforcement == ModelEnforcement::Partition;
        if partition != kernel.get(own).unwrap().is_live() {
            return Err(format!(
                "{} started as {:?}",
                path(own),
                kernel.get(own).unwrap().state
            ));
        }
        for other in self.containers() {
            let beside = leaf(other.0, other.1).filter(|_| other != (pod, at));
            if let Some(beside) = beside.filter(|beside| kernel.effective(*beside) & there != 0) {
                return Err(format!(
                    "{} started on {}, where {} runs, too",
                    path(own),
                    set(there),
                    path(beside)
                ));
            }
        }
        Ok(())
    }

    /// A new agent repairs the remaining differences, and the running agent does too.
    pub(crate) fn quiet(&self) -> Result<(), Broken> {
        self.setup
            .check_settled_with(&self.world, &|world| self.store(world))
    }

    /// The running agent repairs the remaining differences within two node turns.
    pub(crate) fn settle(&mut self) -> Result<(), Broken> {
        let mut blocked = false;
        for _ in 0..4 {
            let planned = self.plan();
            blocked |= self.setup.is_hopeless(&self.world, &planned);
            self.state.elapse_delays();
            self.go(Act::Reconcile)?;
        }
        let planned = self.plan();
        if blocked {
            return Ok(());
        }
        if !planned.steps.is_empty() {
            let steps = super::machine::list(&planned.steps);
            return Err(format!("after four turns the agent still plans\n{steps}"));
        }
        self.setup.settled(&self.world, &planned)
    }

    /// Whether a container was answered without CPUs, and no record holds CPUs of its pod.
    pub(crate) fn lacks(&self, pod: usize, container: usize) -> bool {
        let answer = self.container(pod, container);
        answer.is_some_and(|one| one.answer.is_none()) && !self.owns(pod)
    }

    /// The CPUs of a pod by its records.
    pub(crate) fn owned(&self, pod: usize) -> CpuSet {
        self.ledger().1.of(&pod.to_string()).cpus()
    }

    /// Whether any record holds CPUs of a pod.
    pub(crate) fn owns(&self, pod: usize) -> bool {
        !self.owned(pod).is_empty()
    }
}

/// A container is created and starts.
pub(crate) fn runs(pod: usize, container: usize) -> [Act; 3] {
    [
        Act::Ask(Request::Create(pod, container)),
        Act::Appear(pod, container),
        Act::Ask(Request::Start(pod, container)),
    ]
}

/// A broken rule, and the history that broke it.
pub(crate) fn told(rule: &str, acts: &[Act], world: &World) -> Broken {
    let acts: Vec<String> = acts.iter().map(|act| format!("  {act}")).collect();
    let after = super::machine::describe(world);
    format!("{rule}\n{}\nafterwards:\n{after}", acts.join("\n"))
}
