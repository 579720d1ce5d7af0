//! A kubelet that assigns CPUs itself, and stops or begins to at any moment.
//!
//! It gives CPUs to a pod when it admits the pod, and takes those of an ended one back while its
//! cgroups still stand. It writes the sets of all containers, and after a restart it reports its
//! pods only one by one. In every order, also with an agent that is killed between two steps: no CPU
//! has two owners or is lost, Pinfold writes no set of a running container, and in the end the
//! kubelet's choice is in force.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};

use pinfold::agent::world::PendingAssignments;
use pinfold::pin::{AssignmentRecord, Step};
use pinfold::pod::ContainerKind;
use proptest::prelude::*;

use super::agent::{Runtime, Setup, Shape, World};
use super::events::Event;
use super::kernel::{Cpus, KernelKind, bits, leaf_node, path, pod_node, set};
use super::machine::{Broken, Move, describe, moment};
use super::node::{End, Orders, Turn};

const CPUS: u32 = 8;
const SHAPES: [Shape; 4] = [
    Shape::One(2),
    Shape::Two(1, 2),
    Shape::InitBesideSidecar(2),
    Shape::One(3),
];

/// After so many turns without a further event, nothing is left to do.
const MOST_TURNS: usize = 3;

#[derive(Debug, Clone, Copy)]
enum Act {
    /// The kubelet admits a pod, or ends it with all cgroups.
    Pod(usize),
    /// A container starts; or its process ends; or its cgroup goes.
    Container(usize, usize),
    /// The runtime is interrupted and no longer lists a running container, so that the kubelet has it created again beside
    /// the first one.
    Again(usize, usize),
    /// The kubelet forgets the CPUs of a pod whose processes have ended.
    Free(usize),
    /// The kubelet exchanges the CPUs of two pods' last containers.
    Exchange(usize, usize),
    /// The kubelet gives the last container of a pod other CPUs.
    Shift(usize),
    /// The kubelet writes all sets.
    Write,
    /// The kubelet does not report a pod for a while, or reports it again.
    Silence(usize),
    /// The policy changes.
    Policy,
    Reconcile,
    /// The agent is killed after this number of steps.
    Kill(usize),
    /// It is killed while a container's start waits.
    KillStart(usize, usize),
}

struct Kubelet<'a> {
    setup: &'a Setup,
    world: World,
    /// The CPUs of each container that it has given CPUs to.
    given: BTreeMap<(usize, usize), Cpus>,
    silent: BTreeSet<usize>,
    assigns: bool,
    /// How often a container was created again while it ran.
    made_again: usize,
}

// === impl Kubelet ===

impl<'a> Kubelet<'a> {
    fn new(setup: &'a Setup) -> Self {
        let mut world = setup.world();
        world.runtime = Runtime::Connected;
        Self {
            setup,
            world,
            made_again: 0,
            given: BTreeMap::new(),
            silent: BTreeSet::new(),
            assigns: true,
        }
    }

    /// The containers of a pod to which the kubelet gives CPUs, and how many.
    fn owed(&self, pod: usize) -> Vec<(usize, u32)> {
        let containers = self.setup.shapes[pod].containers().into_iter().enumerate();
        let owed = containers
            .filter(|(_, (kind, cpu))| *kind != ContainerKind::Init && cpu.is_multiple_of(1000));
        owed.map(|(at, (_, cpu))| (at, u32::try_from(cpu / 1000).unwrap()))
            .collect()
    }

    fn free(&self) -> Cpus {
        let all: Cpus = (1 << CPUS) - 1;
        let given = self.given.values().fold(1, |all, cpus| all | cpus);
        all & !given
    }

    /// Some free CPUs, beginning with the highest or the lowest.
    fn take(&self, count: u32, from_above: bool) -> Option<Cpus> {
        let mut free: Vec<u32> = (0..CPUS)
            .filter(|cpu| self.free() & (1 << cpu) != 0)
            .collect();
        if from_above {
            free.reverse();
        }
        let taken = free.get(..count as usize)?;
        Some(taken.iter().fold(0, |all, cpu| all | 1 << cpu))
    }

    /// The cgroup of a container, the newest if it was created again.
    fn leaf(&self, pod: usize, container: usize) -> Option<usize> {
        let leaves = (0..2).map(|incarnation| leaf_node(pod, container, incarnation));
        let present: Vec<usize> = leaves
            .filter(|leaf| self.world.kernel.get(*leaf).is_some())
            .collect();
        let named = present.iter().find(|leaf| self.is_named(**leaf));
        named.or(present.first()).copied()
    }

    /// The running cgroups that a newer container of the same name has replaced, or that nobody has named yet.
    fn left_over(&self) -> Vec<usize> {
        let leaves = self.world.kernel.leaves();
        leaves.filter(|leaf| !self.is_named(*leaf)).collect()
    }

    fn is_named(&self, leaf: usize) -> bool {
        let pods = self.world.pods.iter().enumerate();
        let mut named = pods.flat_map(|(pod, state)| {
            let named = state.named.iter().enumerate();
            named.filter_map(move |(at, incarnation)| {
                Some(leaf_node(pod, at, usize::from((*incarnation)?)))
            })
        });
        named.any(|named| named == leaf)
    }

    fn runs(&self, pod: usize) -> bool {
        let leaves = self.world.leaves_of(pod);
        let mut nodes = leaves
            .iter()
            .filter_map(|leaf| self.world.kernel.get(*leaf));
        nodes.any(|node| !node.has_ended)
    }

    /// The set that the kubelet writes to a container.
    fn set_of(&self, pod: usize, container: usize) -> Cpus {
        let own = self.given.get(&(pod, container)).copied();
        // An init container uses the CPUs of the containers that follow.
        let reused = (self.kind(pod, container) == ContainerKind::Init)
            .then(|| self.given.get(&(pod, container + 1)).copied());
        own.or(reused.flatten()).unwrap_or_else(|| self.free() | 1)
    }

    fn kind(&self, pod: usize, container: usize) -> ContainerKind {
        self.setup.shapes[pod].containers()[container].0
    }

    /// Whether a container may start now: init containers end before the others begin.
    fn may_start(&self, pod: usize, container: usize) -> bool {
        let is_clash = |other: usize| {
            let pair = [self.kind(pod, container), self.kind(pod, other)];
            let leaf = self.leaf(pod, other);
            let runs = leaf.is_some_and(|leaf| {
                let node = self.world.kernel.get(leaf).unwrap();
                !node.has_ended || self.kind(pod, other) == ContainerKind::App
            });
            let is_pair = pair == [ContainerKind::Init, ContainerKind::App]
                || pair == [ContainerKind::App, ContainerKind::Init];
            runs && is_pair
        };
        !(0..self.setup.shapes[pod].containers().len()).any(is_clash)
    }

    /// A kubelet that begins to assign CPUs admits the running pods again, as far as they fit.
    fn admit_all(&mut self) {
        for pod in (0..SHAPES.len()).filter(|_| self.assigns) {
            let is_there = self.world.kernel.get(pod_node(pod)).is_some();
            for (container, cpus) in self.owed(pod).into_iter().filter(|_| is_there) {
                if !self.given.contains_key(&(pod, container))
                    && let Some(taken) = self.take(cpus, false)
                {
                    self.given.insert((pod, container), taken);
                }
            }
        }
    }

    /// What the kubelet reports now.
    fn report(&mut self) {
        let reported = self.given.iter();
        let reported = reported.filter(|((pod, _), _)| !self.silent.contains(pod));
        let reported = reported.map(|((pod, container), cpus)| (*pod, *container, *cpus));
        self.world.kubelet = self.assigns.then(|| reported.collect());
    }

    fn act(&mut self, act: Act) -> Result<(), Broken> {
        let pods = SHAPES.len();
        match act {
            Act::Pod(pod) => self.come_or_go(pod % pods),
            Act::Container(pod, at) => self.container(pod % pods, at, usize::MAX)?,
            Act::KillStart(pod, steps) => self.container(pod % pods, 0, steps)?,
            Act::Again(pod, at) => self.again(pod % pods, at)?,
            Act::Free(pod) => {
                let pod = pod % pods;
                if !self.runs(pod) {
                    self.given.retain(|(of, _), _| *of != pod);
                }
            }
            Act::Exchange(one, other) => self.exchange(one % pods, other % pods),
            Act::Shift(pod) => {
                let last = self.given.keys().filter(|(of, _)| *of == pod % pods).max();
                if let Some(key) = last.copied() {
                    let had = self.given.remove(&key).unwrap_or_default();
                    let taken = self.take(had.count_ones(), true);
                    self.given.insert(key, taken.unwrap_or(had));
                }
            }
            Act::Silence(pod) => {
                let pod = pod % pods;
                if !self.silent.remove(&pod) {
                    self.silent.insert(pod);
                }
            }
            Act::Policy => {
                self.assigns = !self.assigns;
                self.admit_all();
            }
            Act::Write => return self.write_sets(),
            Act::Reconcile => {}
            Act::Kill(steps) => {
                self.report();
                return self.agent(Move::Kill(steps));
            }
        }
        self.report();
        if matches!(act, Act::Reconcile) {
            self.agent(Move::Reconcile)?;
        }
        moment(&self.world)
    }

    /// A turn about all pods. It writes no set of a container with a process.
    fn agent(&mut self, to: Move) -> Result<(), Broken> {
        let sets = self.sets();
        self.setup.go(&mut self.world, to)?;
        self.are_same(&sets)
    }

    /// The sets of the containers with a process, which the kubelet writes.
    fn sets(&self) -> Vec<(usize, Cpus)> {
        let left_over = self.left_over();
        let leaves = self.world.kernel.leaves();
        let leaves = leaves.filter(|leaf| !left_over.contains(leaf));
        let nodes = leaves.filter_map(|leaf| Some((leaf, self.world.kernel.get(leaf)?)));
        let running = nodes.filter(|(_, node)| !node.has_ended);
        running.map(|(leaf, node)| (leaf, node.cpus)).collect()
    }

    fn are_same(&self, before: &[(usize, Cpus)]) -> Result<(), Broken> {
        let now = self.sets();
        // Beside a partition of Pinfold's own, sets are kept apart as ever.
        let mut changed = before.iter().filter(|set| !now.contains(set));
        let changed = changed.find(|(leaf, _)| self.of_pinfold(pod_node_of(*leaf)) == 0);
        match changed.filter(|_| self.assigns) {
            Some((leaf, _)) => Err(format!("Pinfold wrote the set of {}", path(*leaf))),
            None => Ok(()),
        }
    }

    fn come_or_go(&mut self, pod: usize) {
        if self.world.kernel.get(pod_node(pod)).is_some() {
            self.world.happen(Event::Remove(pod));
            self.given.retain(|(of, _), _| *of != pod);
            self.silent.remove(&pod);
            return;
        }
        let mut given = self.given.clone();
        for (container, cpus) in self.owed(pod) {
            let Some(taken) = self.take(cpus, false) else {
                // The pod does not fit, and the kubelet refuses it.
                self.given = given;
                return;
            };
            self.given.insert((pod, container), taken);
        }
        std::mem::swap(&mut given, &mut self.given);
        if self.assigns {
            self.given = given;
        }
        self.world.happen(Event::Create(pod));
    }

    fn exchange(&mut self, one: usize, other: usize) {
        let last = |pod: usize| {
            self.given
                .keys()
                .filter(|(of, _)| *of == pod)
                .max()
                .copied()
        };
        if let (Some(one), Some(other)) = (last(one), last(other))
            && one != other
        {
            let (first, second) = (self.given[&one], self.given[&other]);
            self.given.insert(one, second);
            self.given.insert(other, first);
        }
    }

    /// A container starts with the kubelet's set, its process ends, or its cgroup goes.
    fn container(&mut self, pod: usize, at: usize, most: usize) -> Result<(), Broken> {
        if self.world.kernel.get(pod_node(pod)).is_none() {
            return Ok(());
        }
        let container = at % self.setup.shapes[pod].containers().len();
        if self.end_left_over(pod, container) {
            return Ok(());
        }
        if let Some(leaf) = self.leaf(pod, container) {
            let has_ended = self
                .world
                .kernel
                .get(leaf)
                .is_some_and(|node| node.has_ended);
            if has_ended {
                self.world.happen(Event::End(pod, container));
            } else if let Some(Some(node)) = self.world.kernel.nodes.get_mut(leaf) {
                node.has_ended = true;
            }
            return Ok(());
        }
        let is_admitted = self
            .owed(pod)
            .iter()
            .all(|(at, _)| self.given.contains_key(&(pod, *at)));
        if self.assigns && !is_admitted || !self.may_start(pod, container) {
            return Ok(());
        }
        self.world.happen(Event::Appear(pod, container));
        self.world.happen(Event::Name(pod, container));
        let leaf = self.leaf(pod, container).unwrap();
        self.begin(leaf, (pod, container), most)
    }

    /// Ends the container that a newer one of this name has replaced, if there is one.
    fn end_left_over(&mut self, pod: usize, container: usize) -> bool {
        let leaves = (0..2).map(|incarnation| leaf_node(pod, container, incarnation));
        let present: Vec<usize> = leaves
            .filter(|leaf| self.world.kernel.get(*leaf).is_some())
            .collect();
        let is_replaced = |leaf: &&usize| present.len() == 2 && !self.is_named(**leaf);
        let Some(replaced) = present.iter().find(is_replaced) else {
            return false;
        };
        self.world.kernel.remove(*replaced);
        true
    }

    /// A running container is created again while no runtime can ask the agent, which sees a cgroup without a name.
    fn again(&mut self, pod: usize, at: usize) -> Result<(), Broken> {
        let container = at % self.setup.shapes[pod].containers().len();
        let leaves = (0..2).map(|incarnation| leaf_node(pod, container, incarnation));
        let nodes: Vec<_> = leaves.map(|leaf| self.world.kernel.get(leaf)).collect();
        let earlier = match nodes[..] {
            [Some(node), None] if !node.has_ended => 0,
            [None, Some(node)] if !node.has_ended => 1,
            _ => return Ok(()),
        };
        let newer = 1 - earlier;
        let leaf = leaf_node(pod, container, newer);
        self.world.kernel.make(leaf);
        if self.assigns {
            let cpus = self.set_of(pod, container);
            self.world.kernel.write_foreign(leaf, cpus);
        }
        self.report();
        self.world.runtime = Runtime::Away;
        self.setup.go(&mut self.world, Move::Reconcile)?;
        self.world.runtime = Runtime::Connected;
        self.world.pods[pod].named[container] = u8::try_from(newer).ok();
        self.made_again += 1;
        self.begin(leaf, (pod, container), usize::MAX)
    }

    /// A new container gets the kubelet's set and starts.
    fn begin(
        &mut self,
        leaf: usize,
        (pod, container): (usize, usize),
        most: usize,
    ) -> Result<(), Broken> {
        if self.assigns {
            let cpus = self.set_of(pod, container);
            self.world.kernel.write_foreign(leaf, cpus);
        }
        self.silent.remove(&pod);
        self.report();
        self.start(pod, most)?;
        let own = self.given.get(&(pod, container)).copied();
        let is_own = own.is_some_and(|own| self.can_own(leaf, own));
        let node = self.world.kernel.get(leaf).unwrap();
        if self.assigns
            && most == usize::MAX
            && is_own
            && !(node.is_live() && Some(node.exclusive) == own)
        {
            return Err(format!(
                "{} begins on {}, not on {}\n{}",
                path(leaf),
                set(self.world.kernel.effective(leaf)),
                set(own.unwrap_or_default()),
                self.world.kernel
            ));
        }
        Ok(())
    }

    /// Whether nothing that the kubelet does not know of is in the way of a container's CPUs: a pod
    /// that Pinfold pinned, or CPUs that the kubelet has given others and not yet reported.
    fn can_own(&self, leaf: usize, own: Cpus) -> bool {
        let left_over = self.left_over();
        let has_mate = self.world.kernel.leaves().any(|other| {
            let node = self.world.kernel.get(other).unwrap();
            let is_mate = pod_node_of(other) == pod_node_of(leaf) && !node.has_ended;
            let is_mate = is_mate && !left_over.contains(&other);
            other != leaf && is_mate && node.cpus & own != 0
        });
        let mut of_pinfold = (0..SHAPES.len()).map(|pod| {
            let is_own = pod_node(pod) == pod_node_of(leaf);
            (is_own, self.of_pinfold(pod_node(pod)))
        });
        !has_mate && !of_pinfold.any(|(is_own, cpus)| cpus & own != 0 || is_own && cpus != 0)
    }

    /// The CPUs in a pod's record that Pinfold chose. They last as long as the pod.
    fn of_pinfold(&self, pod: usize) -> Cpus {
        let node = self.world.kernel.get(pod);
        let Some(mark) = node.and_then(|node| node.mark.as_deref()) else {
            return 0;
        };
        let assignment = AssignmentRecord::parse(mark).unwrap().assignment;
        let cpus = assignment.containers.iter();
        let of_pinfold = cpus.filter(|(name, _)| !assignment.by_kubelet.contains(*name));
        of_pinfold.fold(0, |all, (_, cpus)| all | bits(cpus))
    }

    /// The turn of StartContainer, which may be killed after a number of steps.
    fn start(&mut self, pod: usize, most: usize) -> Result<(), Broken> {
        let sets = self.sets();
        let uid = pod.to_string();
        let store = self.setup.store(&self.world);
        let mut state = self.setup.state(self.setup.store(&self.world));
        // The agent has read every pod before.
        let pending = PendingAssignments::default();
        let planned = self.setup.plan_with(&self.world, &store, &pending);
        let orders = Orders {
            most: 0,
            ..Orders::NONE
        };
        let turn = (Turn::All, &planned);
        let mut world = self.world.clone();
        self.setup
            .turn(&mut world, &mut state, turn, &mut || false, orders)?;
        for all in [false, true, true] {
            let planned = self.setup.plan_with(&self.world, &store, &pending);
            let turn = if all {
                Turn::AllFor(None)
            } else {
                Turn::Start(&uid)
            };
            let orders = Orders {
                most,
                ..Orders::NONE
            };
            let ran = self.setup.turn(
                &mut self.world,
                &mut state,
                (turn, &planned),
                &mut || false,
                orders,
            )?;
            self.are_same(&sets)?;
            if ran.is_cut || !all && !matches!(ran.end, End::NeedsAllPods) {
                return Ok(());
            }
        }
        Ok(())
    }

    /// The kubelet writes what has changed, each after the runtime has asked the plugins.
    fn write_sets(&mut self) -> Result<(), Broken> {
        self.report();
        if !self.assigns {
            return Ok(());
        }
        for pod in 0..SHAPES.len() {
            for container in 0..self.setup.shapes[pod].containers().len() {
                let cpus = self.set_of(pod, container);
                let Some(leaf) = self.leaf(pod, container) else {
                    continue;
                };
                let node = self.world.kernel.get(leaf).unwrap();
                if node.has_ended || node.cpus == cpus {
                    continue;
                }
                self.start(pod, usize::MAX)?;
                self.world.kernel.write_foreign(leaf, cpus);
                moment(&self.world)?;
            }
        }
        Ok(())
    }

    /// When nothing more happens, the kubelet's choice is in force.
    fn settle(&mut self) -> Result<(), Broken> {
        self.silent.clear();
        self.assigns = true;
        for _ in 0..3 {
            self.act(Act::Reconcile)?;
            self.write_sets()?;
        }
        // What a turn changes needs another decision, which follows at once: the kubelet may have written a set over a partition
        // that Pinfold chose, which then ends, and is made again beside a narrower set.
        for _ in 0..MOST_TURNS {
            self.act(Act::Reconcile)?;
        }
        for ((pod, container), own) in self.given.clone() {
            let Some(leaf) = self.leaf(pod, container) else {
                continue;
            };
            let node = self.world.kernel.get(leaf).unwrap().clone();
            if node.has_ended || !self.can_own(leaf, own) {
                continue;
            }
            if !(node.is_live() && node.exclusive == own) {
                return Err(format!(
                    "{} runs on {}, and the kubelet has given it {}",
                    path(leaf),
                    set(self.world.kernel.effective(leaf)),
                    set(own)
                ));
            }
        }
        let planned = self.setup.plan(&self.world);
        match planned.steps.first() {
            Some(step) => Err(format!("a plan without an event: {step}")),
            None => Ok(()),
        }
    }
}

fn pod_node_of(leaf: usize) -> usize {
    (0..SHAPES.len())
        .map(pod_node)
        .rfind(|pod| *pod <= leaf)
        .unwrap()
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let pod = || 0..SHAPES.len();
    let act = prop_oneof![
        6 => pod().prop_map(Act::Pod),
        12 => (pod(), 0_usize..3).prop_map(|(pod, at)| Act::Container(pod, at)),
        2 => (pod(), 0_usize..3).prop_map(|(pod, at)| Act::Again(pod, at)),
        2 => pod().prop_map(Act::Free),
        2 => (pod(), pod()).prop_map(|(one, other)| Act::Exchange(one, other)),
        2 => pod().prop_map(Act::Shift),
        3 => Just(Act::Write),
        2 => pod().prop_map(Act::Silence),
        4 => Just(Act::Reconcile),
        3 => (0_usize..10).prop_map(Act::Kill),
        3 => (pod(), 0_usize..10).prop_map(|(pod, steps)| Act::KillStart(pod, steps)),
    ];
    prop::collection::vec(act, 1..40)
}

/// Returns how often a container was created again beside the first one.
fn run(
    kind: KernelKind,
    acts: &[Act],
    mutate: fn(Vec<Step>) -> Vec<Step>,
) -> Result<usize, String> {
    let mut setup = Setup::new(kind, CPUS, 1, &SHAPES);
    setup.mutate = mutate;
    let mut kubelet = Kubelet::new(&setup);
    let told = |rule: &str, done: &[Act], world: &World| {
        format!("{rule}\n  after {done:?}\n{}", describe(world))
    };
    for (number, act) in acts.iter().enumerate() {
        let went = kubelet.act(*act);
        went.map_err(|rule| told(&rule, &acts[..=number], &kubelet.world))?;
    }
    let settled = kubelet.settle();
    settled.map_err(|rule| told(&rule, acts, &kubelet.world))?;
    Ok(kubelet.made_again)
}

#[test]
fn the_kubelets_choice_is_in_force_in_every_order() {
    let config = ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    for kind in super::kernel::KINDS
        .into_iter()
        .filter(|kind| kind.has_partitions())
    {
        let made_again = Cell::new(0);
        proptest!(config.clone(), |(acts in acts())| {
            let count = run(kind, &acts, |steps| steps).map_err(TestCaseError::fail)?;
            made_again.set(made_again.get() + count);
        });
        assert!(made_again.get() > 0, "no container was created again");
    }
}

/// With changes of the policy, and pods that Pinfold has pinned in between.
#[test]
fn changes_of_the_policy_lose_nothing_and_give_no_cpu_to_two() {
    let config = ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    let with_policy = (acts(), prop::collection::vec(0_usize..40, 0..4)).prop_map(|(acts, at)| {
        let mut acts = acts;
        for at in at {
            acts.insert(at.min(acts.len()), Act::Policy);
        }
        acts
    });
    for kind in super::kernel::KINDS
        .into_iter()
        .filter(|kind| kind.has_partitions())
    {
        proptest!(config.clone(), |(acts in &with_policy)| {
            run(kind, &acts, |steps| steps).map_err(TestCaseError::fail)?;
        });
    }
}
