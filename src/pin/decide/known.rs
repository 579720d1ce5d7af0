//! How far the description of a pod can be trusted, and what follows for the CPUs that the pod has.
//!
//! The container runtime knows the containers of a pod that exist. It knows neither their kinds nor the containers that
//! will follow nor the resources of the pod as a whole. So a description from the runtime alone may add CPUs, but it takes
//! none away.

use std::collections::{BTreeMap, BTreeSet};

use crate::cpu::CpuSet;
use crate::pin::PodAssignment;
use crate::pin::assignment::union;
use crate::pod::{Container, ContainerKind, Entitlement};

/// The source of a pod's description.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Description {
    /// The API server or a manifest describes the pod, with all its containers.
    #[default]
    Complete,
    /// The API server, or the folder where there is no API server, has not listed the pods completely so far. All recorded
    /// CPUs stay.
    Awaited,
    /// There is nothing but the container runtime. The CPUs of a container stay until the runtime removes it, or until
    /// the pod's cgroup ends.
    RuntimeOnly,
    /// The lists are complete, and the pod is in none of them. Only containers that exist keep their CPUs.
    Missing,
}

/// What is known of a pod besides its description.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct KnownPod<'a> {
    /// The source of the description.
    pub description: Description,
    /// The existing containers by the runtime's word; `None` for a pod that the runtime does not know.
    pub listed: Option<BTreeSet<&'a str>>,
    /// The containers that the runtime has removed and not created again.
    pub removed: BTreeSet<&'a str>,
    /// The containers that have stopped since the agent's start, and that the runtime has not removed.
    pub stopped: BTreeSet<&'a str>,
    /// The CPUs on which containers run, by the container's name, or by its id if nobody has told the name.
    pub running: BTreeMap<&'a str, &'a CpuSet>,
}

/// What is known of the pods, by uid.
pub type KnownPods<'a> = BTreeMap<&'a str, KnownPod<'a>>;

// === impl KnownPod ===

impl KnownPod<'_> {
    /// Whether the container exists. The runtime's word counts more than a process: a cgroup with a process may be from
    /// a moment ago.
    pub(super) fn is_live(&self, name: &str) -> bool {
        match &self.listed {
            Some(listed) => listed.contains(name),
            None => self.running.contains_key(name),
        }
    }

    /// Whether a container that the description lacks keeps its recorded CPUs. `description` counts instead of the own one.
    pub(super) fn keeps(
        &self,
        description: Description,
        name: &str,
        cpus: &CpuSet,
        recorded: &PodAssignment,
    ) -> bool {
        match description {
            Description::Complete => false,
            Description::Awaited => true,
            Description::RuntimeOnly => !self.removed.contains(name),
            Description::Missing => {
                let is_used = || self.inside(recorded).any(|(_, used)| !used.is_disjoint(cpus));
                self.is_live(name) || self.running.contains_key(name) || is_used()
            }
        }
    }

    /// The containers that run on recorded CPUs of their pod without having any of their own, as init containers do, and these
    /// CPUs. Some of the CPUs belong to containers that do not exist. The others may belong to a sidecar that is just being
    /// created, and so does not have them to itself yet.
    pub(super) fn inside(&self, recorded: &PodAssignment) -> impl Iterator<Item = (&str, &CpuSet)> {
        let owners = recorded.containers.iter();
        let absent = owners.filter(|(owner, _)| !self.is_live(owner));
        let absent = union(absent.map(|(_, cpus)| cpus));
        let usable = recorded.usable();
        let running = self.running.iter().map(|(name, cpus)| (*name, *cpus));
        running.filter(move |(name, cpus)| {
            !recorded.containers.contains_key(*name)
                && !cpus.is_disjoint(&absent)
                && cpus.is_subset(&usable)
        })
    }

    fn runs_inside(&self, name: &str, recorded: &PodAssignment) -> bool {
        self.inside(recorded).any(|(inside, _)| inside == name)
    }

    /// Whether another container of the pod may take over the CPUs of a container. While a list is awaited, only those of a
    /// container that the agent has seen stop: an init container, mostly.
    pub(super) fn can_pass_on(
        &self,
        description: Description,
        name: &str,
        cpus: &CpuSet,
        recorded: &PodAssignment,
    ) -> bool {
        let is_absent = !self.is_live(name) && !self.running.contains_key(name);
        let may_return = description == Description::Awaited && !self.stopped.contains(name);
        is_absent && !may_return && self.inside(recorded).all(|(_, used)| used.is_disjoint(cpus))
    }

    /// Whether the container is about to run, and its pod has recorded CPUs of containers from before the agent's start. It is
    /// an init container, mostly.
    fn may_inherit(&self, name: &str, recorded: &PodAssignment) -> bool {
        let mut owners = recorded.containers.keys().map(String::as_str);
        let is_new = self.is_live(name) && !self.running.contains_key(name);
        is_new && owners.any(|owner| !self.is_live(owner) && !self.stopped.contains(owner))
    }

    /// The entitlement of a container: as `granted`, or more if the container has more CPUs and the description is no
    /// reason to take them.
    pub(super) fn entitlement(
        &self,
        description: Description,
        container: &Container,
        granted: Entitlement,
        recorded: Option<&PodAssignment>,
    ) -> Entitlement {
        let name = container.name.as_str();
        let own = recorded.and_then(|recorded| recorded.containers.get(name));
        let keeps = |reason: &str| match own.map(|own| u32::try_from(own.len())) {
            Some(Ok(cpus)) if cpus > 0 => Some(Entitlement::Exclusive {
                cpus,
                reason: reason.to_owned(),
            }),
            _ => None,
        };
        let inherits = || {
            let is_awaited = description == Description::Awaited;
            let runs_inside = recorded.is_some_and(|recorded| {
                self.runs_inside(name, recorded) || is_awaited && self.may_inherit(name, recorded)
            });
            let reason = "runs on the CPUs of the pod's other containers, as an init container does; neither the API \
                          server nor a manifest describes the pod";
            (own.is_none() && runs_inside && granted.cpus() > 0).then(|| Entitlement::Inherit {
                reason: reason.to_owned(),
            })
        };
        let kept = match description {
            Description::Complete => {
                let is_late = matches!(granted, Entitlement::Inherit { .. })
                    && container.kind == ContainerKind::Init
                    && self.is_live(name);
                let reason = "an init container that got CPUs of its own before the API server described it keeps them \
                              until it ends";
                is_late.then(|| keeps(reason)).flatten()
            }
            Description::Awaited if own.map_or(0, CpuSet::len) > granted.cpus() as usize => {
                keeps("keeps its CPUs until the list of the node's pods is complete")
            }
            Description::Awaited => inherits(),
            Description::RuntimeOnly | Description::Missing if granted.cpus() == 0 => {
                keeps("keeps its CPUs: only the container runtime describes the pod")
            }
            Description::RuntimeOnly => None,
            Description::Missing => inherits(),
        };
        kept.unwrap_or(granted)
    }
}
