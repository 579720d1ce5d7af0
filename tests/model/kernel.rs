//! The kernel's cpuset rules as a value: the answer to each write, and the effective CPUs afterwards.
//!
//! Cgroups are numbered. The tree of pods contains pods, and each pod contains up to three containers, each in one of two
//! incarnations. A foreign cgroup lies beside the tree. CPU sets are bits, which keeps a state small.
//!
//! Differences between kernels were observed on Linux 6.12.107, 6.12.117 and 7.2.13; `facts.rs`
//! compares the model with the observations. Where some kernel refuses a write that another
//! accepts, the model accepts it and shows the worse outcome. For example, the last CPU of a
//! partition can go offline here, which Linux 6.12 refuses with EBUSY.

use std::fmt;
use std::sync::{Arc, LazyLock};

use pinfold::agent::world::{CgroupChange, CgroupChanges};
use pinfold::cpu::CpuSet;
use pinfold::host::cgroup::PartitionKind as Made;
use pinfold::host::cgroup::{
    AncestorCgroup, CgroupMemory, ContainerCgroup, Cpuset, MissingCpus, Partition, PodCgroup,
    PodSurroundings, Quota,
};
use pinfold::pin::Scan;

/// CPU `i` is bit `i`.
pub(crate) type Cpus = u16;

/// The pods' tree.
pub(crate) const TREE: usize = 0;
/// A foreign cgroup beside the tree.
pub(crate) const STRANGER: usize = 1;
/// The largest number of pods.
pub(crate) const PODS: usize = 4;
/// The largest number of containers in a pod.
pub(crate) const CONTAINERS: usize = 3;
/// Cgroups of containers in a pod: each container in two incarnations.
pub(crate) const SLOTS: usize = 2 * CONTAINERS;
/// The initial quota of every container.
const LIMITED: Quota = Quota {
    quota: Some(100_000),
    period: 100_000,
};

/// How the kernel behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum KernelKind {
    /// cgroup v1.
    V1,
    /// cgroup v2 without partitions below the top: Linux 6.1.
    V2,
    /// A neighbour's plain CPU set makes a partition invalid, and the partition keeps its CPUs from every cgroup. An
    /// ancestor that releases live CPUs below makes the kernel forget their owner: Linux 6.12.107.
    Early612,
    /// Only the first of the two defects: Linux 6.12.117.
    Late612,
    /// Neither: Linux 7.2.
    Linux72,
}

/// The partition state of a cgroup.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum State {
    Member,
    Live(Made),
    /// The kernel's reason.
    Invalid(&'static str),
}

/// A write that the kernel refuses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refused {
    Einval,
    Enospc,
    Eacces,
    Ebusy,
    Enoent,
}

/// The kernel's data of one cgroup.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct Node {
    pub(crate) cpus: Cpus,
    pub(crate) exclusive: Cpus,
    pub(crate) state: State,
    /// CPUs that the kernel has reserved for this cgroup, offline CPUs included.
    pub(crate) held: Cpus,
    /// CPUs that `member` would lose.
    ghost: Cpus,
    pub(crate) mark: Option<Arc<str>>,
    /// Whether the cgroup has a quota.
    pub(crate) limited: bool,
    /// The noted set from before CPUs went offline. Only on v1.
    narrowed: Option<Cpus>,
    /// Whether the cgroup's process has ended.
    pub(crate) has_ended: bool,
}

/// A kernel with its cgroups.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct Kernel {
    pub(crate) kind: KernelKind,
    pub(crate) online: Cpus,
    /// CPUs that no cgroup gets until the next boot.
    pub(crate) lost: Cpus,
    pub(crate) nodes: Vec<Option<Node>>,
}

/// Paths by number.
static PATHS: LazyLock<Vec<String>> = LazyLock::new(|| {
    let mut paths = vec!["kubepods".to_owned(), "stranger".to_owned()];
    for pod in 0..PODS {
        paths.push(format!("kubepods/pod{pod}"));
        for slot in 0..SLOTS {
            paths.push(format!("kubepods/pod{pod}/{}", id(slot / 2, slot % 2)));
        }
    }
    paths
});

pub(crate) fn path(node: usize) -> &'static str {
    &PATHS[node]
}

pub(crate) fn node_of(path: &str) -> usize {
    PATHS.iter().position(|other| other == path).unwrap()
}

/// The cgroup of a pod.
pub(crate) fn pod_node(pod: usize) -> usize {
    2 + pod * (SLOTS + 1)
}

/// The uid of the pod of a cgroup.
pub(crate) fn uid_of(node: usize) -> String {
    ((node - 2) / (SLOTS + 1)).to_string()
}

/// The cgroup of a pod's container in one of the incarnations.
pub(crate) fn leaf_node(pod: usize, container: usize, incarnation: usize) -> usize {
    pod_node(pod) + 1 + container * 2 + incarnation
}

/// The runtime's id of a container's incarnation.
pub(crate) fn id(container: usize, incarnation: usize) -> String {
    format!("c{container}-{incarnation}")
}

fn parent(node: usize) -> Option<usize> {
    match node {
        TREE | STRANGER => None,
        _ if is_pod(node) => Some(TREE),
        _ => Some(node - (node - 2) % (SLOTS + 1)),
    }
}

pub(crate) fn is_pod(node: usize) -> bool {
    node >= 2 && (node - 2).is_multiple_of(SLOTS + 1)
}

pub(crate) fn is_leaf(node: usize) -> bool {
    node >= 2 && !is_pod(node)
}

fn is_below(node: usize, above: usize) -> bool {
    parent(node).is_some_and(|parent| parent == above || is_below(parent, above))
}

pub(crate) fn set(cpus: Cpus) -> CpuSet {
    (0..16).filter(|cpu| cpus & 1 << cpu != 0).collect()
}

pub(crate) fn bits(set: &CpuSet) -> Cpus {
    set.iter().fold(0, |bits, cpu| bits | 1 << cpu)
}

fn subset(one: Cpus, other: Cpus) -> bool {
    one & !other == 0
}

/// All kinds of kernels.
pub(crate) const KINDS: [KernelKind; 5] = [
    KernelKind::V1,
    KernelKind::V2,
    KernelKind::Early612,
    KernelKind::Late612,
    KernelKind::Linux72,
];

// === impl KernelKind ===

impl KernelKind {
    pub(crate) fn has_partitions(self) -> bool {
        !matches!(self, Self::V1 | Self::V2)
    }

    fn neighbours_break(self) -> bool {
        matches!(self, Self::Early612 | Self::Late612)
    }
}

// === impl Node ===

impl Node {
    pub(crate) fn is_live(&self) -> bool {
        matches!(self.state, State::Live(_))
    }

    /// Whether the partition is invalid and still keeps its CPUs from all cgroups.
    pub(crate) fn is_stuck(&self) -> bool {
        !self.is_live() && self.held != 0
    }

    /// The CPUs that count in the check against the siblings.
    fn user(&self) -> Cpus {
        if self.exclusive == 0 {
            self.cpus
        } else {
            self.exclusive
        }
    }
}

// === impl Kernel ===

impl Kernel {
    /// A kernel with `cpus` CPUs and an empty tree.
    pub(crate) fn new(kind: KernelKind, cpus: u32, pods: usize) -> Self {
        let mut kernel = Self {
            kind,
            online: (1 << cpus) - 1,
            lost: 0,
            nodes: vec![None; pod_node(pods)],
        };
        kernel.make(TREE);
        kernel
    }

    /// The cgroups that watches of the pods' tree report as changed since `before`. They see written files and new or removed
    /// cgroups. A new cgroup counts as changed itself, because nobody watched it when it appeared. They see no record, which is an
    /// attribute, unless the cgroup is another one.
    pub(crate) fn changed_since(&self, before: &Self) -> CgroupChanges {
        let mut changes = CgroupChanges {
            all: self.online != before.online,
            ..CgroupChanges::default()
        };
        let files = |node: &Node| (node.cpus, node.exclusive, node.state, node.limited);
        for (index, pair) in self.nodes.iter().zip(&before.nodes).enumerate() {
            let path = path(index);
            match pair {
                (None, None) => {}
                (Some(now), Some(then))
                    if files(now) == files(then) && now.mark.is_some() >= then.mark.is_some() => {}
                (Some(now), Some(then)) => {
                    let others = |node: &Node| (node.exclusive, node.state, node.limited);
                    let is_same =
                        others(now) == others(then) && now.mark.is_some() >= then.mark.is_some();
                    let change = if is_same {
                        CgroupChange::Cpus
                    } else {
                        CgroupChange::Any
                    };
                    changes.paths.insert(path.to_owned(), change);
                }
                (now, _) => {
                    let above = path.rsplit_once('/').map_or("", |(above, _)| above);
                    let new = now.as_ref().map(|_| path);
                    for path in [above].into_iter().chain(new) {
                        changes.paths.insert(path.to_owned(), CgroupChange::Any);
                    }
                }
            }
        }
        changes
    }

    pub(crate) fn get(&self, node: usize) -> Option<&Node> {
        self.nodes.get(node).and_then(Option::as_ref)
    }

    fn node(&mut self, node: usize) -> Result<&mut Node, Refused> {
        self.nodes
            .get_mut(node)
            .and_then(Option::as_mut)
            .ok_or(Refused::Enoent)
    }

    /// The numbers of the existing cgroups.
    pub(crate) fn there(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.nodes.len()).filter(|node| self.nodes[*node].is_some())
    }

    /// The existing cgroups of containers.
    pub(crate) fn leaves(&self) -> impl Iterator<Item = usize> + '_ {
        self.there().filter(|node| is_leaf(*node))
    }

    fn siblings(&self, node: usize) -> impl Iterator<Item = usize> + '_ {
        self.there()
            .filter(move |other| *other != node && parent(*other) == parent(node))
    }

    pub(crate) fn make(&mut self, node: usize) {
        let cpus = match self.kind {
            // runc copies the parent's set on v1; on v2 a new cgroup has none.
            KernelKind::V1 => parent(node).map_or(self.online, |parent| {
                self.nodes[parent].as_ref().unwrap().cpus
            }),
            _ => 0,
        };
        let state = State::Member;
        let new = Node {
            cpus,
            exclusive: 0,
            state,
            held: 0,
            ghost: 0,
            mark: None,
            limited: true,
            narrowed: None,
            has_ended: false,
        };
        self.nodes[node] = Some(new);
    }

    /// Removes a cgroup without children.
    pub(crate) fn remove(&mut self, node: usize) {
        let Some(gone) = self.get(node) else { return };
        match gone.state {
            State::Live(_) => self.give_back(node),
            // The kernel ignores the exclusive CPUs of an invalid partition.
            _ => self.lost |= gone.held,
        }
        self.nodes[node] = None;
    }

    /// The CPUs that a cgroup may hold as exclusive, according to its own files and those above.
    fn allowed(&self, node: usize) -> Cpus {
        let above = parent(node).map_or(Cpus::MAX, |parent| self.allowed(parent));
        self.get(node).map_or(0, |node| node.exclusive & above)
    }

    fn taken(&self) -> Cpus {
        self.nodes
            .iter()
            .flatten()
            .fold(self.lost, |taken, node| taken | node.held)
    }

    /// The effective CPUs at the top: the shared CPUs.
    pub(crate) fn top(&self) -> Cpus {
        self.online & !self.taken()
    }

    /// The online CPUs that the pods' tree offers. CPUs that return from being offline count, because a plan widens the tree
    /// first.
    pub(crate) fn offered(&self) -> Cpus {
        let tree = self.get(TREE);
        let written = tree.map_or(0, |tree| tree.cpus | tree.narrowed.unwrap_or_default());
        match written {
            0 => self.online,
            _ => self.online & written,
        }
    }

    /// Writes or removes the note of a set from before CPUs went offline.
    pub(crate) fn note(&mut self, node: usize, earlier: Option<Cpus>) -> Result<(), Refused> {
        self.node(node)?.narrowed = earlier;
        Ok(())
    }

    /// The effective CPUs of a cgroup.
    pub(crate) fn effective(&self, node: usize) -> Cpus {
        let above = parent(node).map_or(self.top(), |parent| self.effective(parent));
        let Some(node) = self.get(node) else {
            return above;
        };
        if node.held != 0 && node.state != State::Invalid(ROOT_ALONE) {
            return node.held & self.online;
        }
        match node.cpus & above {
            0 => above,
            both => both,
        }
    }

    /// Takes a partition's CPUs away. What the cgroup may have at present decides which cgroup gets
    /// them.
    fn give_back(&mut self, node: usize) {
        let back = self.allowed(node);
        let forgets = self.kind == KernelKind::Early612;
        let Ok(gone) = self.node(node) else { return };
        let held = std::mem::take(&mut gone.held);
        if forgets {
            self.lost |= held & !back;
        }
    }

    fn invalidate(&mut self, node: usize, why: &'static str) {
        self.give_back(node);
        if let Ok(node) = self.node(node) {
            node.state = State::Invalid(why);
        }
    }

    /// Whether a cgroup with the given sets can exist beside the siblings; `exclusive_flag` where the cgroup is or becomes a
    /// partition.
    fn fits(&self, node: usize, cpus: Cpus, exclusive: Cpus, flag: bool) -> bool {
        let user = if exclusive == 0 { cpus } else { exclusive };
        self.siblings(node).all(|other| {
            let Some(other) = self.get(other) else {
                return true;
            };
            let flagged = self.kind.neighbours_break() && (flag || other.is_live());
            if flagged || (exclusive != 0 && other.exclusive != 0) {
                user & other.user() == 0
            } else if exclusive != 0 {
                other.cpus == 0 || !subset(other.cpus, exclusive)
            } else {
                other.exclusive == 0 || cpus == 0 || !subset(cpus, other.exclusive)
            }
        })
    }

    /// A write to `cpuset.cpus`.
    pub(crate) fn write_cpus(&mut self, node: usize, cpus: Cpus) -> Result<(), Refused> {
        let now = self.get(node).ok_or(Refused::Enoent)?.clone();
        if self.kind == KernelKind::V1 {
            let above = parent(node).and_then(|parent| self.get(parent));
            if above.is_some_and(|above| !subset(cpus, above.cpus)) {
                return Err(Refused::Eacces);
            }
            let mut below = self.there().filter(|other| is_below(*other, node));
            if below.any(|other| {
                self.get(other)
                    .is_some_and(|other| !subset(other.cpus, cpus))
            }) {
                return Err(Refused::Ebusy);
            }
        }
        if cpus == 0 && now.cpus != 0 && self.kind != KernelKind::Linux72 {
            let populated = is_leaf(node) || self.leaves().any(|leaf| is_below(leaf, node));
            if populated {
                return Err(Refused::Enospc);
            }
        }
        if self.kind.neighbours_break() && !self.fits(node, cpus, now.exclusive, now.is_live()) {
            let user = if now.exclusive == 0 {
                cpus
            } else {
                now.exclusive
            };
            let broken: Vec<usize> = self
                .siblings(node)
                .filter(|other| {
                    self.get(*other)
                        .is_some_and(|other| other.is_live() && other.held & user != 0)
                })
                .collect();
            for other in broken {
                // The CPUs of the partition are still kept from every cgroup.
                self.node(other)?.state = State::Invalid("");
            }
        }
        self.node(node)?.cpus = cpus;
        Ok(())
    }

    /// A foreign write to `cpuset.cpus`. The note of an earlier set then no longer counts.
    pub(crate) fn write_foreign(&mut self, node: usize, cpus: Cpus) {
        if self.get(node).is_some_and(|node| node.cpus != cpus)
            && self.write_cpus(node, cpus).is_ok()
        {
            _ = self.note(node, None);
        }
    }

    /// A write to `cpuset.cpus.exclusive`.
    pub(crate) fn write_exclusive(&mut self, node: usize, exclusive: Cpus) -> Result<(), Refused> {
        let now = self.get(node).ok_or(Refused::Enoent)?.clone();
        if !self.kind.has_partitions() {
            return Err(Refused::Enoent);
        }
        if now.exclusive == exclusive {
            return Ok(());
        }
        if !self.fits(node, now.cpus, exclusive, now.is_live()) {
            return Err(Refused::Einval);
        }
        if now.is_live() {
            let above = parent(node).map_or(Cpus::MAX, |parent| self.allowed(parent));
            let new = exclusive & above;
            let more = new & !now.held;
            if new == 0 {
                self.invalidate(node, "Invalid cpu list in cpuset.cpus.exclusive");
            } else if more != 0 && (more & self.taken() != 0 || subset(self.top(), more)) {
                self.invalidate(node, "Parent is not a partition root");
            } else if new & self.online == 0 {
                self.invalidate(node, HOTPLUG);
            } else {
                self.node(node)?.held = new;
            }
            self.node(node)?.exclusive = exclusive;
            return Ok(());
        }
        let below: Vec<usize> = self
            .there()
            .filter(|other| is_below(*other, node) && self.get(*other).is_some_and(Node::is_live))
            .collect();
        let allowed = self.allowed(node);
        if self.kind == KernelKind::Early612 {
            // The kernel checks the children only if a CPU is left here, and then forgets the children without an error.
            let above = parent(node).map_or(Cpus::MAX, |parent| self.allowed(parent));
            let gone = allowed & !(exclusive & above);
            for leaf in below.into_iter().filter(|_| exclusive != 0) {
                let leaf = self.node(leaf)?;
                if leaf.held & gone != 0 {
                    leaf.ghost = std::mem::take(&mut leaf.held);
                    leaf.state = State::Member;
                }
            }
            self.node(node)?.exclusive = exclusive;
            return Ok(());
        }
        self.node(node)?.exclusive = exclusive;
        for leaf in below {
            let new = self.allowed(leaf);
            let more = new & !self.get(leaf).map_or(0, |leaf| leaf.held);
            if new == 0 || more & self.taken() != 0 || (more != 0 && subset(self.top(), more)) {
                self.invalidate(leaf, "Parent is not a partition root");
            } else {
                self.node(leaf)?.held = new;
            }
        }
        Ok(())
    }

    /// A write to `cpuset.cpus.partition`.
    pub(crate) fn write_partition(&mut self, node: usize, kind: Made) -> Result<(), Refused> {
        let now = self.get(node).ok_or(Refused::Enoent)?.clone();
        if !self.kind.has_partitions() {
            return Err(Refused::Enoent);
        }
        if kind == Made::Member {
            self.give_back(node);
            let node = self.node(node)?;
            let ghost = std::mem::take(&mut node.ghost);
            node.state = State::Member;
            self.lost |= ghost;
            return Ok(());
        }
        if now.is_live() {
            self.node(node)?.state = State::Live(kind);
            return Ok(());
        }
        let above = parent(node).map_or(Cpus::MAX, |parent| self.allowed(parent));
        let wanted = now.user() & above;
        let state = if now.is_stuck() {
            State::Invalid(ROOT_ALONE)
        } else if now.user() == 0 {
            State::Invalid("cpuset.cpus and cpuset.cpus.exclusive are empty")
        } else if self.kind.neighbours_break() && !self.fits(node, now.cpus, now.exclusive, true) {
            State::Invalid("Cpu list in cpuset.cpus not exclusive")
        } else if wanted == 0 || wanted & self.taken() != 0 || subset(self.top(), wanted) {
            State::Invalid("Invalid cpu list in cpuset.cpus.exclusive")
        } else if wanted & self.online == 0 {
            State::Invalid(HOTPLUG)
        } else {
            State::Live(kind)
        };
        let node = self.node(node)?;
        node.state = state;
        if node.is_live() {
            node.held = wanted;
            node.ghost = 0;
        }
        Ok(())
    }

    /// Whether a CPU can go offline here. On v1, the tasks of a cgroup that has no CPU left move to
    /// its parent, which the model lacks.
    pub(crate) fn can_go_offline(&self, cpu: u32) -> bool {
        let bit: Cpus = 1 << cpu;
        let keeps = |node: &Node| self.kind != KernelKind::V1 || node.cpus != bit;
        self.top() & !bit != 0 && self.nodes.iter().flatten().all(keeps)
    }

    pub(crate) fn offline(&mut self, cpu: u32) {
        self.online &= !(1 << cpu);
        if self.kind == KernelKind::V1 {
            // The CPU does not return to these sets by itself.
            let online = self.online;
            let nodes = self.nodes.iter_mut().flatten();
            nodes.for_each(|node| node.cpus &= online);
        }
        let empty: Vec<usize> = self
            .there()
            .filter(|node| {
                self.get(*node)
                    .is_some_and(|node| node.is_live() && node.held & self.online == 0)
            })
            .collect();
        for node in empty {
            self.invalidate(node, HOTPLUG);
        }
    }

    pub(crate) fn online(&mut self, cpu: u32) {
        self.online |= 1 << cpu;
    }

    /// Whether some CPUs will be lost without an action, or after the wrong action.
    pub(crate) fn is_in_danger(&self) -> bool {
        self.there().any(|index| {
            self.get(index).is_some_and(|node| {
                node.is_stuck()
                    || node.ghost != 0
                    || (self.kind == KernelKind::Early612
                        && !subset(node.held, self.allowed(index)))
            })
        })
    }

    pub(crate) fn cpuset(&self, index: usize) -> Cpuset {
        let Some(node) = self.get(index) else {
            return Cpuset::default();
        };
        let partition = match node.state {
            _ if !self.kind.has_partitions() => Partition::Unsupported,
            State::Member => Partition::Valid(Made::Member),
            State::Live(kind) => Partition::Valid(kind),
            State::Invalid(why) => Partition::Invalid(format!("root invalid ({why})")),
        };
        Cpuset {
            cpus: set(node.cpus),
            effective: set(self.effective(index)),
            exclusive: set(node.exclusive),
            partition,
            narrowed_from: node.narrowed.map(set),
        }
    }

    fn quota(&self, node: usize) -> Option<Quota> {
        let limited = self.get(node)?.limited;
        Some(Quota {
            quota: LIMITED.quota.filter(|_| limited),
            ..LIMITED
        })
    }

    fn record_text(&self, index: usize) -> Option<String> {
        self.get(index)?.mark.as_deref().map(str::to_owned)
    }

    fn container(&self, index: usize) -> ContainerCgroup {
        let path = path(index).to_owned();
        ContainerCgroup {
            id: path.rsplit('/').next().unwrap().to_owned(),
            path,
            cpuset: self.cpuset(index),
            quota: self.quota(index),
            record_text: self.record_text(index),
            populated: self.get(index).is_some_and(|node| !node.has_ended),
            memory: CgroupMemory::default(),
            nested: Vec::new(),
        }
    }

    /// A pod's cgroup with the cgroups below, as the agent reads them.
    pub(crate) fn pod(&self, index: usize) -> Option<PodCgroup> {
        self.get(index)?;
        let leaves = self.leaves().filter(|leaf| is_below(*leaf, index));
        Some(PodCgroup {
            path: path(index).to_owned(),
            uid: uid_of(index),
            cpuset: self.cpuset(index),
            quota: self.quota(index),
            record_text: self.record_text(index),
            containers: leaves.map(|leaf| self.container(leaf)).collect(),
        })
    }

    /// The cgroups above and around the pods, as the agent reads them.
    pub(crate) fn surroundings(&self) -> PodSurroundings {
        let mut around = PodSurroundings {
            trees: vec![path(TREE).to_owned()],
            sets_are_nested: self.kind == KernelKind::V1,
            ..PodSurroundings::default()
        };
        if self.kind == KernelKind::V1 {
            around.above.push(AncestorCgroup {
                path: path(TREE).to_owned(),
                cpuset: self.cpuset(TREE),
                ..AncestorCgroup::default()
            });
        }
        if self.kind != KernelKind::V1 {
            let (path, cpuset) = (path(TREE).to_owned(), self.cpuset(TREE));
            around.above.push(AncestorCgroup {
                path,
                cpuset,
                other_exclusive: CpuSet::new(),
            });
            if let Some(stranger) = self
                .get(STRANGER)
                .filter(|stranger| stranger.exclusive != 0)
            {
                around
                    .outside
                    .push((self::path(STRANGER).to_owned(), set(stranger.exclusive)));
            }
        }
        around
    }

    /// Online CPUs that no cgroup has. Those of an invalid partition come back when it ends.
    pub(crate) fn missing_cpus(&self) -> MissingCpus {
        let nodes = || self.nodes.iter().flatten();
        let live = nodes().filter(|node| node.is_live());
        let had = live.fold(self.top(), |had, node| had | node.held);
        let all = self.online & !had;
        let invalid = nodes().filter(|node| matches!(node.state, State::Invalid(_)));
        let held = invalid.fold(0, |held, node| held | node.exclusive);
        MissingCpus {
            all: set(all),
            held: set(all & held),
        }
    }

    /// The scan that the agent reads.
    pub(crate) fn scan(&self) -> Scan {
        Scan {
            pods: self
                .there()
                .filter_map(|index| self.pod_at(index))
                .collect(),
            surroundings: self.surroundings(),
            missing: self.missing_cpus().all,
        }
    }

    fn pod_at(&self, index: usize) -> Option<PodCgroup> {
        is_pod(index).then(|| self.pod(index)).flatten()
    }
}

/// The kernel's reason for a partition without an online CPU.
const HOTPLUG: &str = "No cpu available due to hotplug";
/// The result of `root` for a partition that a neighbour has broken: no cgroup has the CPUs, not even the partition.
const ROOT_ALONE: &str = "Invalid cpu list in cpuset.cpus.exclusive, and held";

impl fmt::Display for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "online {}, shared {}, lost {}",
            set(self.online),
            set(self.top()),
            set(self.lost)
        )?;
        for index in self.there() {
            let Some(node) = self.get(index) else {
                continue;
            };
            write!(
                f,
                "\n    {}: cpus {:?} exclusive {:?} {:?} effective {} held {:?} {}{}",
                path(index),
                set(node.cpus).to_string(),
                set(node.exclusive).to_string(),
                node.state,
                set(self.effective(index)),
                set(node.held).to_string(),
                if node.limited { "" } else { "no quota " },
                node.mark.as_deref().unwrap_or_default()
            )?;
        }
        Ok(())
    }
}
