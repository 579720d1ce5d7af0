//! The state machine: events, the agent's reactions, and the rules that hold after every step.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use pinfold::agent::world::{PendingAssignments, PodStore};
use pinfold::cpu::CpuSet;
use pinfold::pin::{
    Drift, DriftCause, DriftInput, ObservedContainer, PodAssignment, Reason, Step, drift,
};
use pinfold::pod::{ContainerKind, Entitlement};

use super::agent::{ModelEnforcement, Outcome, Planned, Setup, World};
use super::events::Event;
use super::kernel::{
    Cpus, Node, Refused, STRANGER, State, TREE, bits, is_leaf, node_of, path, pod_node, set,
};
use super::node::{Orders, Turn};

/// One move of a history.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Move {
    /// Something happens while the agent waits.
    Happen(Event),
    /// A timer turn: the agent observes, decides, and carries the plan out.
    Reconcile,
    /// The same on account of a changed cgroup: what was refused is not tried again.
    Wake,
    /// The agent is killed after this number of steps of the plan, and restarted.
    Kill(usize),
    /// An event happens after this number of steps of the agent's plan, which goes on.
    Interrupt(usize, Event),
}

impl fmt::Display for Move {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Happen(event) => event.fmt(f),
            Self::Reconcile => f.write_str("reconcile"),
            Self::Wake => f.write_str("reconcile, without the timer"),
            Self::Kill(steps) => write!(f, "reconcile, killed after {steps} steps"),
            Self::Interrupt(steps, event) => {
                write!(f, "reconcile, and after {steps} steps: {event}")
            }
        }
    }
}

/// The text of a broken rule.
pub(crate) type Broken = String;

// === impl Setup ===

impl Setup {
    /// Makes a move. Returns the number of steps in the plan, if the move has a plan.
    pub(crate) fn go(&self, world: &mut World, to: Move) -> Result<usize, Broken> {
        if to == Move::Reconcile {
            world.refused.clear();
        }
        let planned = self.plan(world);
        self.go_with(world, to, &planned)
    }

    /// As `go`, where the present plan is known.
    pub(crate) fn go_with(
        &self,
        world: &mut World,
        to: Move,
        planned: &Planned,
    ) -> Result<usize, Broken> {
        match to {
            Move::Happen(event) => {
                world.happen(event);
                moment(world)?;
                Ok(0)
            }
            Move::Reconcile | Move::Wake => {
                self.reconcile(world, (self.store(world), planned), usize::MAX, None)
            }
            Move::Kill(steps) => {
                let steps = self.reconcile(world, (self.store(world), planned), steps, None)?;
                world.refused.clear();
                Ok(steps)
            }
            Move::Interrupt(steps, event) => {
                let happens = Some((steps, event));
                self.reconcile(world, (self.store(world), planned), usize::MAX, happens)
            }
        }
    }

    fn reconcile(
        &self,
        world: &mut World,
        (store, planned): (PodStore, &Planned),
        most: usize,
        interruption: Option<(usize, Event)>,
    ) -> Result<usize, Broken> {
        let mut state = self.state(store);
        let refused = world.refused.iter().map(|node| path(*node).to_owned());
        state.note_refused(refused);
        let orders = Orders {
            most,
            interruption,
            ..Orders::NONE
        };
        self.turn(
            world,
            &mut state,
            (Turn::All, planned),
            &mut || false,
            orders,
        )?;
        Ok(planned.steps.len())
    }

    /// The rules for decisions.
    pub(crate) fn decided(&self, world: &World, planned: &Planned) -> Result<(), Broken> {
        let (ledger, desired) = (&planned.ledger, &planned.decisions.desired);
        if desired.shared().is_empty() {
            return Err("no shared CPU is left".to_owned());
        }
        let mut owned = CpuSet::new();
        for (uid, claims) in &desired.assignments() {
            for (entry, cpus) in claims.entries() {
                let name = entry.unwrap_or("the idle part");
                if cpus.is_empty() {
                    return Err(format!("{name} of pod {uid} owns no CPU"));
                }
                if !cpus.is_disjoint(&owned) {
                    return Err(format!(
                        "CPUs {} have two owners",
                        cpus.intersection(&owned)
                    ));
                }
                owned = owned.union(cpus);
                let had = ledger.of(uid);
                let had = entry.map_or(had.idle.clone(), |name| {
                    had.containers.get(name).cloned().unwrap_or_default()
                });
                // What the pod has already may pass to another of its containers.
                let gained = cpus.difference(&ledger.of(uid).cpus());
                let never = set(self.reserved(world)).union(&ledger.excluded);
                if !gained.is_disjoint(&never) || !gained.is_subset(&set(world.kernel.offered())) {
                    return Err(format!(
                        "{name} of pod {uid} is given {gained}, of which {never} are not to be had"
                    ));
                }
                if !had.is_subset(cpus) && !cpus.is_subset(&had) {
                    return Err(format!("{name} of pod {uid} is moved from {had} to {cpus}"));
                }
            }
        }
        if world.enforcement == ModelEnforcement::Observe {
            return Ok(());
        }
        let excluded = owned
            .union(&set(self.reserved(world)))
            .union(&ledger.excluded)
            .union(&ledger.exclusive());
        let free = set(world.kernel.offered()).difference(&excluded).len();
        let mut promised: BTreeMap<usize, usize> = BTreeMap::new();
        for decision in &planned.decisions.containers {
            let Entitlement::Exclusive { cpus: owed, .. } = &decision.entitlement else {
                continue;
            };
            let pod = &planned.pods[decision.pod];
            let has_cgroup = |uid: &&str| {
                let mut observed = planned.observed.pods.iter();
                observed.any(|pod| pod.cgroup.uid == **uid)
            };
            let uid = pod.cgroup_uid().filter(has_cgroup);
            let here = uid.is_some_and(|uid| planned.here.contains(uid));
            let has = decision.cpus.as_ref().map_or(0, CpuSet::len);
            let mut lacks = (*owed as usize).saturating_sub(has);
            // An init container whose description came late hands its CPUs on to new containers when it ends.
            if pod.containers[decision.container].runtime_id.is_none() {
                let left = promised
                    .entry(decision.pod)
                    .or_insert_with(|| late_init_cpus(planned, decision.pod));
                let later = lacks.min(*left);
                *left -= later;
                lacks -= later;
            }
            if here && lacks > 0 && lacks <= free {
                return Err(format!(
                    "{} owns {has} CPUs, is owed {owed}, and {free} are free",
                    pod.name
                ));
            }
        }
        Ok(())
    }

    /// After the last event at most two reconciles change the kernel, and then it agrees with the
    /// ledger. A reconcile that begins while a foreign setting blocks an assignment is not counted,
    /// because its steps may remove the block.
    pub(crate) fn check_settled(&self, world: &World) -> Result<(), Broken> {
        self.check_settled_with(world, &|world| self.store(world))
    }

    /// As `check_settled`, with an agent that starts with the pods of a store.
    pub(crate) fn check_settled_with(
        &self,
        world: &World,
        store: &dyn Fn(&World) -> PodStore,
    ) -> Result<(), Broken> {
        let mut world = world.clone();
        let mut plans = Vec::new();
        let mut counted = 0;
        while counted < 3 {
            world.refused.clear();
            let planned = self.plan_with(&world, &store(&world), &PendingAssignments::default());
            let blocked = self.is_hopeless(&world, &planned);
            // Each reconcile tries a refused assignment again: the block may end one day.
            if plans.len() >= 2 && blocked {
                return Ok(());
            }
            let known = (store(&world), &planned);
            let steps = self.reconcile(&mut world, known, usize::MAX, None);
            if steps.map_err(|rule| format!("{rule}\n  without events"))? == 0 {
                return self
                    .settled(&world, &planned)
                    .map_err(|rule| format!("{rule}\n  after the last reconcile"));
            }
            counted += usize::from(!blocked);
            plans.push(planned);
        }
        let plans: Vec<String> = plans.iter().map(|planned| list(&planned.steps)).collect();
        Err(format!(
            "three plans in a row without events:\n{}",
            plans.join("\n    then\n")
        ))
    }

    /// Whether an assignment contains CPUs that the kernel has lost, or that a foreign program holds.
    pub(crate) fn is_hopeless(&self, world: &World, planned: &Planned) -> bool {
        planned
            .decisions
            .desired
            .assignments()
            .iter()
            .any(|(uid, claims)| {
                let all = bits(&claims.cpus());
                let pod = uid.parse().map_or(TREE, pod_node);
                all & world.kernel.lost != 0 || world.is_walled(pod, all)
            })
            || world.is_confined(bits(&planned.decisions.desired.shared()))
    }

    pub(crate) fn settled(&self, world: &World, planned: &Planned) -> Result<(), Broken> {
        if world.enforcement == ModelEnforcement::Observe {
            return Ok(());
        }
        let partition = world.enforcement == ModelEnforcement::Partition;
        let desired = &planned.decisions.desired;
        let mut tree: Cpus = 0;
        for pod in &planned.observed.pods {
            let uid = &pod.cgroup.uid;
            let claims = desired.assignment(uid);
            let all = bits(&claims.cpus());
            tree |= all;
            let walled = self.is_hopeless(world, planned);
            if !walled {
                holds(
                    world,
                    node_of(&pod.cgroup.path),
                    if partition { all } else { 0 },
                )?;
            }
            let inside = desired
                .pod(uid)
                .map(|plan| plan.init_containers.clone())
                .unwrap_or_default();
            for container in &pod.containers {
                let (path, index) = (&container.cgroup.path, node_of(&container.cgroup.path));
                let name = container.name.as_deref().unwrap_or_default();
                let effective = world.kernel.effective(index);
                let Some(node) = world.kernel.get(index) else {
                    continue;
                };
                let mut wanted = claims.containers.get(name).map_or(0, bits);
                let key = container.name.as_ref().unwrap_or(&container.cgroup.id);
                if inside.contains(key) && wanted == 0 {
                    wanted = all & !others(&pod.containers, &claims, name);
                    // A live partition of an init container does not grow.
                    let kept = wanted & node.exclusive;
                    if node.is_live() && kept != 0 {
                        wanted = kept;
                    }
                }
                let wanted_online = wanted & world.in_reach();
                let possible = wanted_online != 0 && wanted & world.kernel.lost == 0;
                if wanted & world.kernel.lost != 0 || walled {
                    continue;
                }
                if possible && effective != wanted_online {
                    return Err(format!(
                        "{path} runs on {}, not on {}",
                        set(effective),
                        set(wanted_online)
                    ));
                }
                if node.is_live() != (partition && possible) {
                    return Err(format!("{path} is {:?}", node.state));
                }
                let shared = bits(&desired.shared());
                if !partition && !possible && effective & !shared != 0 && !world.is_confined(shared)
                {
                    return Err(format!(
                        "{path} runs on {}, which others own",
                        set(effective)
                    ));
                }
                holds(world, index, if partition && possible { wanted } else { 0 })?;
                let owner = claims.containers.contains_key(name);
                // A container whose CPUs are all offline may count as an owner or not.
                if node.limited == owner && (wanted_online != 0 || !owner) {
                    return Err(format!(
                        "{path}: an owner's quota is lifted, another's is not"
                    ));
                }
            }
        }
        if !self.is_hopeless(world, planned) {
            holds(world, TREE, if partition { tree } else { 0 })?;
        }
        let online = set(world.kernel.online);
        let here = |drift: &Drift| {
            drift.cause != DriftCause::Offline
                && bits(&drift.assigned) & world.kernel.online & !world.in_reach() == 0
                && drift.assigned.is_disjoint(&set(world.kernel.lost))
        };
        let input = DriftInput {
            online: &online,
            recently_assigned: &CpuSet::new(),
            unrecorded: &BTreeSet::new(),
            enforcement: world.enforcement.enforcement(),
        };
        let drift = drift(&planned.observed, &planned.ledger, &input);
        if let Some(drift) = drift.iter().find(|drift| here(drift)) {
            return Err(format!("the kernel differs from the ledger: {drift:?}"));
        }
        let strange = world.kernel.get(STRANGER).is_some();
        match planned.ledger.unexplained.iter().find(|_| !strange) {
            Some(sentence) => Err(sentence.clone()),
            None => Ok(()),
        }
    }
}

/// The number of CPUs of a pod's init containers that own some.
fn late_init_cpus(planned: &Planned, pod: usize) -> usize {
    let of_pod = planned.decisions.containers.iter();
    let of_pod = of_pod.filter(|decision| decision.pod == pod && decision.entitlement.cpus() > 0);
    let late = of_pod.filter(|decision| {
        planned.pods[pod].containers[decision.container].kind == ContainerKind::Init
    });
    late.filter_map(|init| init.cpus.as_ref())
        .map(CpuSet::len)
        .sum()
}

/// The CPUs of the existing containers of a pod, without the container `name`.
fn others(containers: &[ObservedContainer], claims: &PodAssignment, name: &str) -> Cpus {
    let names = containers.iter().filter_map(|other| other.name.as_deref());
    let others = names.filter(|other| *other != name);
    let cpus = others.filter_map(|other| claims.containers.get(other));
    cpus.fold(0, |all, cpus| all | bits(cpus))
}

/// The rules for every moment.
pub(crate) fn moment(world: &World) -> Result<(), Broken> {
    let kernel = &world.kernel;
    let gone = kernel.lost & !world.forfeited;
    if gone != 0 {
        return Err(format!("CPUs {} are lost until the next boot", set(gone)));
    }
    if kernel.top() == 0 {
        return Err("no shared CPU is left".to_owned());
    }
    let mut all = kernel.top() | (kernel.lost & kernel.online);
    for index in kernel.there() {
        let Some(node) = kernel.get(index).filter(|node| node.held != 0) else {
            continue;
        };
        if node.held & all != 0 {
            return Err(format!(
                "CPUs {} of {} have a second owner",
                set(node.held & all),
                path(index)
            ));
        }
        if node.is_live() && node.held & kernel.online == 0 {
            return Err(format!("{} owns no CPU", path(index)));
        }
        all |= node.held & kernel.online;
    }
    if all != kernel.online {
        return Err(format!(
            "CPUs {} are neither shared nor owned",
            set(kernel.online & !all)
        ));
    }
    Ok(())
}

/// Whether the kernel cannot reach the state that a step wants, because some CPUs are lost or a
/// foreign program has confined another pod to them.
pub(crate) fn excused(world: &World, step: &Step, outcome: &Outcome) -> bool {
    let wanted = match step {
        Step::Exclusive { cpus, .. } | Step::Cpus { cpus, .. } => bits(cpus),
        Step::Partition { in_force, .. } => in_force.as_ref().map_or(0, bits),
        _ => 0,
    };
    wanted & world.kernel.lost != 0
        || *outcome == Outcome::AncestorRefused
        || (matches!(outcome, Outcome::NotInForce(_)) && world.is_confined(wanted))
        || (*outcome == Outcome::Refused(Refused::Einval)
            && world.is_walled(node_of(step.path()), wanted))
}

fn holds(world: &World, node: usize, exclusive: Cpus) -> Result<(), Broken> {
    match world.kernel.get(node) {
        Some(now) if now.exclusive != exclusive => Err(format!(
            "{} holds {:?} as exclusive, not {:?}",
            path(node),
            set(now.exclusive).to_string(),
            set(exclusive).to_string()
        )),
        _ => Ok(()),
    }
}

pub(crate) fn list(steps: &[Step]) -> String {
    let lines = steps.iter().map(|step| format!("    {step}"));
    lines.collect::<Vec<String>>().join("\n")
}

/// Owners whose CPUs are effective while a plan is carried out, and must stay so.
pub(crate) struct Watch {
    partition: bool,
    /// A cgroup, and the CPUs that it keeps.
    owners: Vec<(usize, Cpus)>,
    /// Containers that nobody has named, with their pod. Two of them may run on the same CPUs of
    /// the pod, because the agent does not know which is an owner, and leaves both where they are.
    unnamed: BTreeMap<usize, usize>,
    /// Cgroups, as bits, whose program has not begun. A pod turn may ignore them, because their
    /// start moves them off.
    pub(crate) waiting: u32,
}

// === impl Watch ===

impl Watch {
    pub(crate) fn new(world: &World, planned: &Planned) -> Self {
        let mut owners = Vec::new();
        let mut unnamed = BTreeMap::new();
        let desired_met = &planned.decisions.desired.met_by_mates;
        let partition = world.enforcement == ModelEnforcement::Partition;
        for pod in &planned.observed.pods {
            let claims = planned.decisions.desired.assignment(&pod.cgroup.uid);
            for container in &pod.containers {
                let index = node_of(&container.cgroup.path);
                if container.name.is_none() {
                    unnamed.insert(index, node_of(&pod.cgroup.path));
                }
                let Some(claim) = container
                    .name
                    .as_ref()
                    .and_then(|name| claims.containers.get(name))
                else {
                    continue;
                };
                // Beside a kubelet that chooses the CPUs, the partition of an ended container ends.
                let ends = desired_met.contains(&container.cgroup.path)
                    || world.kernel.get(index).is_some_and(|node| node.has_ended);
                if ends {
                    continue;
                }
                let effective = world.kernel.effective(index);
                let alone =
                    |other: usize| other == index || world.kernel.effective(other) & effective == 0;
                let Some(node) = world.kernel.get(index) else {
                    continue;
                };
                let in_force = match partition {
                    true => node.is_live(),
                    // A foreign program may have written CPUs that only the pod's cgroup keeps from being effective.
                    false => effective == node.cpus && world.kernel.leaves().all(alone),
                };
                if in_force && effective & !bits(claim) == 0 {
                    owners.push((index, effective & bits(claim)));
                }
            }
        }
        Self {
            partition,
            owners,
            unnamed,
            waiting: 0,
        }
    }

    pub(crate) fn look(&mut self, world: &World, step: &Step) -> Result<(), Broken> {
        if let Step::Cpus { path, cpus, reason } = step
            && !self.partition
            && is_leaf(node_of(path))
        {
            let index = node_of(path);
            let had = self
                .owners
                .iter()
                .find(|(owner, _)| *owner == index)
                .map(|(_, cpus)| *cpus);
            self.owners.retain(|(owner, _)| *owner != index);
            match (reason, had) {
                // A write to a partition takes effect once the partition ends.
                (Reason::Own, _) if world.kernel.get(index).is_some_and(Node::is_live) => {}
                (Reason::Own, _) => self.owners.push((index, bits(cpus))),
                (Reason::Narrow, Some(had)) => self.owners.push((index, had)),
                _ => {}
            }
        }
        for (owner, cpus) in &self.owners {
            let effective = world.kernel.effective(*owner);
            if cpus & !effective != 0 {
                return Err(format!(
                    "{} had {} and has {} now",
                    path(*owner),
                    set(*cpus),
                    set(effective)
                ));
            }
            let pod = self.unnamed.get(owner);
            let counts = |other: &usize| {
                let are_unnamed = pod.is_some() && pod == self.unnamed.get(other);
                other != owner && self.waiting & (1 << other) == 0 && !are_unnamed
            };
            for other in world.kernel.leaves().filter(counts) {
                if world.kernel.effective(other) & cpus != 0 {
                    return Err(format!(
                        "CPUs {} of {} are in reach of {}",
                        set(*cpus),
                        path(*owner),
                        path(other)
                    ));
                }
            }
        }
        Ok(())
    }
}

/// A state in words.
pub(crate) fn describe(world: &World) -> String {
    let states = world.kernel.there().filter(|node| {
        world
            .kernel
            .get(*node)
            .is_some_and(|n| n.state != State::Member)
    });
    let states: Vec<&str> = states.map(path).collect();
    let pods: Vec<usize> = (0..world.pods.len())
        .filter(|pod| world.kernel.get(pod_node(*pod)).is_some())
        .collect();
    format!(
        "  pods {pods:?}, no members {states:?}, {:?}\n  {}",
        world.enforcement, world.kernel
    )
}
