//! Who is entitled to CPUs beside a kubelet whose CPU Manager assigns them, and who keeps such CPUs
//! when it no longer does.

use std::collections::BTreeMap;

use super::known::KnownPod;
use crate::cpu::CpuSet;
use crate::pin::PodAssignment;
use crate::pod::{self, Container, ContainerKind, Entitlement, Policy, RecognizedPod};

/// The exclusive CPUs that the kubelet reports, by the pod's uid and the container's name.
pub type KubeletCpus = BTreeMap<String, BTreeMap<String, CpuSet>>;

/// The CPUs that the kubelet reports for a container, if any.
pub(super) fn reported<'a>(kubelet: &'a KubeletCpus, uid: &str, name: &str) -> Option<&'a CpuSet> {
    let cpus = kubelet.get(uid)?.get(name)?;
    Some(cpus).filter(|cpus| !cpus.is_empty())
}

/// Whether anything of a container exists. In a dry run, everything does.
pub(super) fn exists(known: Option<&KnownPod<'_>>, name: &str) -> bool {
    known.is_none_or(|known| known.exists(name) || known.running.contains_key(name))
}

/// The entitlement of a container beside a kubelet that assigns CPUs. What the kubelet reports
/// counts, whatever the policy says about training pods; only the annotation `shared` wins.
pub(super) fn entitlement(
    pod: &RecognizedPod,
    container: &Container,
    policy: &Policy,
    (kubelet, known, recorded): (&KubeletCpus, Option<&KnownPod<'_>>, Option<&PodAssignment>),
) -> Entitlement {
    let granted = pod::entitlement(pod, container, policy);
    if pod.finished || container.ended || pod::wants_shared(pod, container) {
        return granted;
    }
    let exclusive = |cpus: &CpuSet, reason: &str| Entitlement::Exclusive {
        cpus: u32::try_from(cpus.len()).unwrap_or(u32::MAX),
        reason: reason.to_owned(),
    };
    let shared = |reason: &str, obstacle| Entitlement::Shared {
        reason: reason.to_owned(),
        obstacle,
    };
    let name = &container.name;
    let own = recorded.and_then(|recorded| Some((recorded, recorded.containers.get(name)?)));
    if let Some((recorded, own)) = own {
        let is_of_kubelet = recorded.by_kubelet.contains(name);
        if !is_of_kubelet {
            let reason = "keeps the CPUs that Pinfold chose before the kubelet's CPU Manager assigned CPUs, until the pod ends";
            return exclusive(own, reason);
        }
        let uid = pod.cgroup_uid().unwrap_or_default();
        if reported(kubelet, uid, name).is_none() && exists(known, name) {
            let reason = "keeps the CPUs that the kubelet's CPU Manager assigned to it, until another container gets them";
            return exclusive(own, reason);
        }
    }
    if container.kind == ContainerKind::Init {
        let reason = "an init container runs on the CPU set that the kubelet gives it";
        return shared(reason, None);
    }
    let uid = pod.cgroup_uid().unwrap_or_default();
    if let Some(cpus) = reported(kubelet, uid, name) {
        let reason = format!(
            "the kubelet's CPU Manager has assigned {} to it",
            cpus.in_words()
        );
        return exclusive(cpus, &reason);
    }
    match granted {
        Entitlement::Shared { obstacle: None, .. } => {
            let reason = "the kubelet's CPU Manager has assigned no exclusive CPUs to it; it assigns them to containers of \
                          Guaranteed pods whose CPU limit is a whole number";
            shared(reason, None)
        }
        // A training pod that the kubelet does not pin either, or not yet.
        granted => granted,
    }
}

/// The entitlement of a container whose CPUs the kubelet chose, before Pinfold chose for this node:
/// it keeps them until it ends, whatever policy grants.
pub(super) fn kept(
    pod: &RecognizedPod,
    container: &Container,
    recorded: Option<&PodAssignment>,
) -> Option<Entitlement> {
    let recorded = recorded.filter(|recorded| recorded.by_kubelet.contains(&container.name))?;
    let own = recorded.containers.get(&container.name)?;
    let has_ended = pod.finished || container.ended || pod::wants_shared(pod, container);
    (!has_ended).then(|| Entitlement::Exclusive {
        cpus: u32::try_from(own.len()).unwrap_or(u32::MAX),
        reason: "keeps the CPUs that the kubelet's CPU Manager assigned to it while it assigned CPUs, until the pod ends"
            .to_owned(),
    })
}
