//! How far the description of a pod can be trusted, and what follows for the CPUs that the pod has.
//!
//! The API server and the manifests describe a pod with all its containers. The container runtime
//! knows only the containers that exist, and neither their kinds nor the resources of the pod as a
//! whole. So its description alone may add CPUs, but it takes none away. [`Description`] says which
//! descriptions do.

use std::collections::{BTreeMap, BTreeSet};

use crate::cpu::CpuSet;
use crate::pin::PodAssignment;
use crate::pin::assignment::union;
use crate::pod::{Container, ContainerKind, Entitlement};

/// The source of a pod's description.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Description {
    /// The API server or a manifest describes the pod. The description alone decides who has CPUs.
    #[default]
    Complete,
    /// The pod may still come with the first complete list, of the API server or else of the
    /// folder. Until then, all its recorded CPUs stay.
    Awaited,
    /// Nothing but the container runtime describes pods. The CPUs of a container stay until the
    /// runtime removes it, or until the pod's cgroup ends.
    RuntimeOnly,
    /// The lists are complete, and the pod is in none of them. Only containers that exist keep
    /// their CPUs.
    Missing,
}

#[derive(Debug, Clone, Default, PartialEq)]
pub struct KnownPod<'a> {
    pub description: Description,
    /// The existing containers by the runtime's word; `None` for a pod that the runtime does not know.
    pub listed: Option<BTreeSet<&'a str>>,
    /// The containers that the runtime has removed and not created again.
    pub removed: BTreeSet<&'a str>,
    /// The containers that have stopped since the agent's start, and that the runtime has not removed.
    pub stopped: BTreeSet<&'a str>,
    /// The containers with a process, and the CPUs on which they run. A container whose name nobody has told has its id here.
    pub running: BTreeMap<&'a str, &'a CpuSet>,
    /// The containers with a process in the cgroup that is theirs now. While a container is replaced, its former cgroup may still
    /// count as running.
    pub populated: BTreeSet<&'a str>,
}

/// What is known of the pods, by uid.
pub type KnownPods<'a> = BTreeMap<&'a str, KnownPod<'a>>;

// === impl KnownPod ===

impl KnownPod<'_> {
    /// Whether the container exists. The runtime's word counts more than a process: a cgroup with a process may be from
    /// a moment ago.
    pub(super) fn exists(&self, name: &str) -> bool {
        match &self.listed {
            Some(listed) => listed.contains(name),
            None => self.running.contains_key(name),
        }
    }

    /// Whether the container's program runs, so that telling it about a shrink makes sense.
    pub(super) fn is_running(&self, container: &Container) -> bool {
        let name = container.name.as_str();
        !container.ended && self.exists(name) && self.populated.contains(name)
    }

    /// Whether nothing is left of the container. It may come back.
    fn is_absent(&self, name: &str) -> bool {
        !self.exists(name) && !self.running.contains_key(name)
    }

    /// Whether the container has ended since the agent's start, or could not be created.
    fn has_ended(&self, name: &str) -> bool {
        self.stopped.contains(name) || self.removed.contains(name)
    }

    /// Whether a container that the description lacks keeps its recorded CPUs.
    pub(super) fn keeps(&self, name: &str, recorded: &PodAssignment) -> bool {
        match self.description {
            Description::Complete => false,
            Description::Awaited => true,
            Description::RuntimeOnly => !self.removed.contains(name),
            Description::Missing => !self.is_absent(name) || self.is_used(name, recorded),
        }
    }

    /// Whether the container's CPUs may pass to another container of the pod: nothing is left of it, and nobody runs on them.
    /// While a list is awaited, the agent must also have seen it end. It is an init container then, mostly; one that was
    /// absent from the start may be waiting for its next run.
    pub(super) fn can_pass_on(&self, name: &str, recorded: &PodAssignment) -> bool {
        let may_return = self.description == Description::Awaited && !self.has_ended(name);
        self.is_absent(name) && !may_return && !self.is_used(name, recorded)
    }

    /// Whether containers without CPUs of their own run on the recorded CPUs of a container.
    fn is_used(&self, owner: &str, recorded: &PodAssignment) -> bool {
        let own = recorded.containers.get(owner);
        let mut inheriting = self.inheriting(recorded);
        own.is_some_and(|own| inheriting.any(|(_, cpus)| !cpus.is_disjoint(own)))
    }

    /// The containers that run on recorded CPUs of their pod without having any of their own, as
    /// init containers do, and these CPUs. Some of the CPUs belong to containers that do not exist.
    /// The others may belong to a sidecar that is just being created, and so does not have them to
    /// itself yet.
    pub(super) fn inheriting(
        &self,
        recorded: &PodAssignment,
    ) -> impl Iterator<Item = (&str, &CpuSet)> {
        let owners = recorded.containers.iter();
        let missing = owners.filter(|(owner, _)| !self.exists(owner));
        let of_missing = union(missing.map(|(_, cpus)| cpus));
        let usable = recorded.usable();
        let running = self.running.iter().map(|(name, cpus)| (*name, *cpus));
        running.filter(move |(name, cpus)| {
            !recorded.containers.contains_key(*name)
                && !cpus.is_disjoint(&of_missing)
                && cpus.is_subset(&usable)
        })
    }

    /// The entitlement of a container: as `granted` by its description, unless that would take recorded CPUs away without
    /// a reason.
    pub(super) fn entitlement(
        &self,
        container: &Container,
        granted: Entitlement,
        recorded: Option<&PodAssignment>,
    ) -> Entitlement {
        let Some(recorded) = recorded else {
            return granted;
        };
        let name = container.name.as_str();
        let Some(own) = recorded.containers.get(name) else {
            return match self.inherit_reason(name, &granted, recorded) {
                Some(reason) => Entitlement::Inherit {
                    reason: reason.to_owned(),
                },
                None => granted,
            };
        };
        match (
            self.keep_reason(container, &granted, own),
            self.kept_cpus(container, own),
        ) {
            (Some(reason), cpus) if cpus > 0 => Entitlement::Exclusive {
                cpus,
                reason: reason.to_owned(),
            },
            _ => granted,
        }
    }

    /// How many of its CPUs a container keeps: all, unless the container runtime tells of a resize.
    /// The runtime knows the container's own limit, and a limit below its CPUs takes the
    /// difference; a part of a CPU can't be exclusive.
    fn kept_cpus(&self, container: &Container, own: &CpuSet) -> u32 {
        let all = u32::try_from(own.len()).unwrap_or(u32::MAX);
        let limit = container.resources.cpu_limit.filter(|limit| *limit > 0);
        match (self.description, limit) {
            (Description::RuntimeOnly | Description::Missing, Some(limit)) => {
                let whole = if limit.is_multiple_of(1000) {
                    limit / 1000
                } else {
                    0
                };
                let is_resized = limit < 1000 * u64::from(all);
                u32::try_from(whole)
                    .ok()
                    .filter(|_| is_resized)
                    .unwrap_or(all)
            }
            _ => all,
        }
    }

    /// Why a container keeps CPUs that it owns, whatever its description grants.
    fn keep_reason(
        &self,
        container: &Container,
        granted: &Entitlement,
        own: &CpuSet,
    ) -> Option<&'static str> {
        match self.description {
            Description::Complete => {
                let is_late = matches!(granted, Entitlement::Inherit { .. })
                    && container.kind == ContainerKind::Init
                    && self.exists(&container.name);
                is_late.then_some(
                    "an init container that got CPUs of its own before the API server described it keeps them until it ends",
                )
            }
            Description::Awaited => (own.len() > granted.cpus() as usize)
                .then_some("keeps its CPUs until the list of the node's pods is complete"),
            Description::RuntimeOnly | Description::Missing => (granted.cpus() == 0)
                .then_some("keeps its CPUs: only the container runtime describes the pod"),
        }
    }

    /// Why a container without CPUs of its own runs on those of its pod, although nobody has said that it is an init container.
    ///
    /// While a list is awaited, this holds for a new container, too, if CPUs of the pod wait for containers from before the
    /// agent's start: these may follow an init container.
    fn inherit_reason(
        &self,
        name: &str,
        granted: &Entitlement,
        recorded: &PodAssignment,
    ) -> Option<&'static str> {
        let inherits_now = || self.inheriting(recorded).any(|(other, _)| other == name);
        let is_new = || granted.cpus() > 0 && self.exists(name) && !self.running.contains_key(name);
        let waits = |owner: &String| !self.exists(owner) && !self.has_ended(owner);
        let is_like_init = match self.description {
            Description::Complete | Description::RuntimeOnly => false,
            Description::Missing => inherits_now(),
            Description::Awaited => {
                inherits_now() || is_new() && recorded.containers.keys().any(waits)
            }
        };
        is_like_init.then_some(
            "runs on the CPUs of the pod's other containers, as an init container does; neither the API server nor \
             a manifest describes the pod",
        )
    }
}
