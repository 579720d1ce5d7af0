//! What can happen: by the kubelet's hand, by a stranger's, to the machine, to the agent.

use std::fmt;

use pinfold::host::cgroup::PartitionKind as Made;
use pinfold::pod::ContainerKind;

use super::agent::{ModelEnforcement, Setup, World};
use super::kernel::{Cpus, KernelKind, STRANGER, TREE, is_leaf, leaf_node, path, pod_node, set};

/// An event in the world. The agent's own actions are not events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Event {
    /// A pod's manifest and cgroup appear.
    Create(usize),
    /// A container's cgroup appears.
    Appear(usize, usize),
    /// The pod's status names a container's cgroup.
    Name(usize, usize),
    /// A container ends, and its cgroup with it.
    End(usize, usize),
    /// A pod disappears with all cgroups.
    Remove(usize),
    /// A pod's manifest disappears, and the cgroups stay.
    Forget(usize),
    /// The manifest is back.
    Learn(usize),
    /// A pod's last container is to have a CPU more, or no longer.
    Resize(usize),
    /// A foreign program writes `cpuset.cpus`.
    Cpus(usize, Cpus),
    /// Somebody writes `member`.
    Member(usize),
    /// A foreign program clears `cpuset.cpus.exclusive`.
    Clear(usize),
    /// An administrator limits the pods' tree to some CPUs, or lifts the limit.
    Limit(Cpus),
    /// A foreign program makes a cgroup beside the tree with the last CPU as exclusive, or removes
    /// it.
    Stranger,
    /// A CPU goes offline.
    Offline(u32),
    /// It comes back.
    Online(u32),
    /// The agent restarts with another enforcement.
    Enforce(ModelEnforcement),
    /// The agent is started again with more or fewer reserved CPUs.
    Reserve,
}

/// The events that a history may contain.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Menu {
    /// Writes by strangers.
    pub(crate) foreign: bool,
    /// An administrator limits the pods' tree.
    pub(crate) limits: bool,
    /// CPUs go offline and come back.
    pub(crate) hotplug: bool,
    /// Another configuration.
    pub(crate) configuration: bool,
}

// === impl Event ===

impl Event {
    /// Whether the event writes a file that belongs to the agent.
    pub(crate) fn is_foreign(self) -> bool {
        matches!(
            self,
            Self::Cpus(..) | Self::Member(_) | Self::Clear(_) | Self::Stranger | Self::Limit(_)
        )
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpus(node, cpus) => {
                write!(
                    f,
                    "somebody writes cpuset.cpus={} to {}",
                    set(*cpus),
                    path(*node)
                )
            }
            Self::Member(node) => write!(f, "somebody writes member to {}", path(*node)),
            Self::Clear(node) => write!(
                f,
                "somebody clears cpuset.cpus.exclusive of {}",
                path(*node)
            ),
            other => write!(f, "{other:?}"),
        }
    }
}

// === impl World ===

impl World {
    /// The events that are possible now.
    pub(crate) fn events(&self, setup: &Setup, menu: Menu) -> Vec<Event> {
        let mut events = Vec::new();
        for (pod, state) in self.pods.iter().enumerate() {
            if self.kernel.get(pod_node(pod)).is_none() {
                if !state.known {
                    events.push(Event::Create(pod));
                }
                continue;
            }
            events.push(Event::Remove(pod));
            events.push(if state.known {
                Event::Forget(pod)
            } else {
                Event::Learn(pod)
            });
            if state.known {
                events.push(Event::Resize(pod));
            }
            let kinds = setup.shapes[pod].containers();
            for (container, (kind, _)) in kinds.iter().enumerate() {
                let Some(incarnation) = self.incarnation(pod, container) else {
                    // Init containers end before the main containers begin. Sidecars run beside both.
                    let other = |kind: ContainerKind| {
                        (0..kinds.len()).any(|other| {
                            kinds[other].0 == kind && self.incarnation(pod, other).is_some()
                        })
                    };
                    let clash = match kind {
                        ContainerKind::Init => other(ContainerKind::App),
                        ContainerKind::App => other(ContainerKind::Init),
                        ContainerKind::Sidecar => false,
                    };
                    if !clash {
                        events.push(Event::Appear(pod, container));
                    }
                    continue;
                };
                events.push(Event::End(pod, container));
                if state.known && state.named[container].map(usize::from) != Some(incarnation) {
                    events.push(Event::Name(pod, container));
                }
            }
        }
        if menu.foreign {
            self.foreign(&mut events);
        }
        if menu.limits {
            let all: Cpus = (1 << setup.cpus) - 1;
            let is_limited = self.kernel.offered() != self.kernel.online;
            let cpus = if is_limited {
                all
            } else {
                all >> (setup.cpus / 4)
            };
            // v1 takes no offline CPU.
            let is_v1 = setup.kind == KernelKind::V1;
            events.push(Event::Limit(if is_v1 {
                cpus & self.kernel.online
            } else {
                cpus
            }));
        }
        if menu.hotplug {
            for cpu in 1..setup.cpus {
                let bit: Cpus = 1 << cpu;
                if self.kernel.online & bit == 0 {
                    events.push(Event::Online(cpu));
                } else if self.kernel.can_go_offline(cpu) {
                    events.push(Event::Offline(cpu));
                }
            }
        }
        if menu.configuration {
            events.push(Event::Reserve);
            let all = [
                ModelEnforcement::Partition,
                ModelEnforcement::Cpuset,
                ModelEnforcement::Observe,
            ];
            for wanted in all.into_iter().filter(|wanted| *wanted != self.enforcement) {
                if wanted != ModelEnforcement::Partition || setup.kind.has_partitions() {
                    events.push(Event::Enforce(wanted));
                }
            }
        }
        events
    }

    fn foreign(&self, events: &mut Vec<Event>) {
        if self.kernel.kind.has_partitions() {
            events.push(Event::Stranger);
        }
        for index in self.kernel.there().filter(|node| *node != STRANGER) {
            let Some(node) = self.kernel.get(index) else {
                continue;
            };
            if index != TREE {
                let last_cpu: Cpus = 1 << self.kernel.online.ilog2();
                for cpus in [self.kernel.online, last_cpu] {
                    if node.cpus != cpus {
                        events.push(Event::Cpus(index, cpus));
                    }
                }
            }
            if is_leaf(index) && node.is_live() {
                events.push(Event::Member(index));
            }
            if node.exclusive != 0 {
                events.push(Event::Clear(index));
            }
        }
    }

    /// The incarnation of a container that has a cgroup now.
    fn incarnation(&self, pod: usize, container: usize) -> Option<usize> {
        (0..2).find(|incarnation| {
            self.kernel
                .get(leaf_node(pod, container, *incarnation))
                .is_some()
        })
    }

    /// Lets something happen.
    pub(crate) fn happen(&mut self, event: Event) {
        let lost = self.kernel.lost;
        let danger = self.kernel.is_in_danger();
        match event {
            Event::Create(pod) => {
                self.pods[pod].known = true;
                self.kernel.make(pod_node(pod));
            }
            Event::Appear(pod, container) => {
                // Never the incarnation that the status names: a container that comes back has a new id.
                let incarnation = usize::from(self.pods[pod].named[container] == Some(0));
                self.kernel.make(leaf_node(pod, container, incarnation));
            }
            Event::Name(pod, container) => {
                let incarnation = self
                    .incarnation(pod, container)
                    .and_then(|number| u8::try_from(number).ok());
                self.pods[pod].named[container] = incarnation;
            }
            Event::End(pod, container) => {
                for incarnation in 0..2 {
                    self.kernel.remove(leaf_node(pod, container, incarnation));
                }
            }
            Event::Remove(pod) => {
                for leaf in self.leaves_of(pod) {
                    self.kernel.remove(leaf);
                }
                self.kernel.remove(pod_node(pod));
                self.pods[pod] = super::agent::PodState::default();
            }
            Event::Forget(pod) => self.pods[pod].known = false,
            Event::Learn(pod) => self.pods[pod].known = true,
            Event::Resize(pod) => self.pods[pod].grown = !self.pods[pod].grown,
            // A foreign write that the kernel refuses has no effect.
            Event::Cpus(node, cpus) => self.kernel.write_foreign(node, cpus),
            Event::Limit(cpus) => self.kernel.write_foreign(TREE, cpus),
            Event::Member(node) => _ = self.kernel.write_partition(node, Made::Member),
            Event::Clear(node) => _ = self.kernel.write_exclusive(node, 0),
            Event::Stranger if self.kernel.get(STRANGER).is_some() => self.kernel.remove(STRANGER),
            Event::Stranger => {
                self.kernel.make(STRANGER);
                _ = self
                    .kernel
                    .write_exclusive(STRANGER, 1 << self.kernel.online.ilog2());
            }
            Event::Offline(cpu) => self.kernel.offline(cpu),
            Event::Online(cpu) => self.kernel.online(cpu),
            Event::Enforce(wanted) => self.enforcement = wanted,
            Event::Reserve => self.wide = !self.wide,
        }
        if matches!(event, Event::Enforce(_) | Event::Reserve) {
            self.refused.clear();
        }
        // Consequences of a foreign write do not count against the agent until the agent has handled the write.
        let endangered = self.kernel.is_in_danger();
        if event.is_foreign() && endangered && !danger {
            self.endangered = true;
        }
        if event.is_foreign() || self.endangered {
            self.forfeited |= self.kernel.lost & !lost;
        }
        self.endangered &= endangered;
    }
}
