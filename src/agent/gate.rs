//! The checks for a pod that must not run without exclusive CPUs: at CreateContainer and at StartContainer.
//!
//! Pods without the annotation `required` always pass. If one of their containers is unpinned, it
//! runs in the shared pool, and its note says why.

use crate::cpu::CpuSet;
use crate::pin::Enforcement;
use crate::pin::decide::{Decision, RefusalSource, reason_in};
use crate::pin::snapshot::ContainerState;
use crate::pod::{ContainerKind, Entitlement, Obstacle, Pod, Qos, is_required};

/// Why to refuse a CreateContainer request, if there is a reason. `owed` says whether a container
/// of the pod is entitled to exclusive CPUs; it is `None` if not all containers of the pod are
/// known.
pub fn at_creation(pod: &Pod, decision: &Decision, owed: Option<bool>) -> Option<String> {
    let given = decision.cpus.is_some();
    let why = match &decision.entitlement {
        Entitlement::Shared { reason, .. } if owed == Some(false) => Some(reason.clone()),
        entitlement => why_none(entitlement, decision.qos, decision.note.as_deref()),
    };
    why.filter(|_| is_required(pod) && !given)
        .as_deref()
        .map(refusal)
}

/// Whether `pinfold-runtime` checks the container's CPUs before it starts. An init container is not checked, because the CPUs
/// on which it runs belong to the containers that follow.
pub(super) fn is_checked(pod: &Pod, entitlement: &Entitlement) -> bool {
    is_required(pod) && entitlement.cpus() > 0
}

/// Whether a container may start, judged by its effective CPUs. `all` are the containers that the turn has read.
///
/// # Errors
/// The reason to refuse the start.
pub(super) fn at_start(
    container: &ContainerState,
    all: &[ContainerState],
    enforcement: Enforcement,
) -> Result<(), String> {
    if !container.required || enforcement == Enforcement::Observe {
        return Ok(());
    }
    let why = match (&container.assigned, &container.effective) {
        (Some(_), _) if container.refused == Some(RefusalSource::Kernel) => Some(
            container
                .note
                .as_deref()
                .map_or("the kernel has refused the CPUs", reason_in)
                .to_owned(),
        ),
        (Some(assigned), Some(effective)) if is_in_force(assigned, effective) => {
            others(container, assigned, all, enforcement)
        }
        (Some(assigned), effective) => {
            Some(container.note.clone().unwrap_or_else(|| match effective {
                Some(effective) => {
                    format!("it is assigned {assigned}, and the kernel lets it run on {effective}")
                }
                None => format!(
                    "it is assigned {assigned}, and its cgroup is not below the pods' trees"
                ),
            }))
        }
        (None, _) => why_none(
            &container.entitlement,
            container.qos,
            container.note.as_deref(),
        ),
    };
    why.as_deref().map(refusal).map_or(Ok(()), Err)
}

/// Why the assigned CPUs are not exclusive, if they aren't.
fn others(
    container: &ContainerState,
    assigned: &CpuSet,
    all: &[ContainerState],
    enforcement: Enforcement,
) -> Option<String> {
    if enforcement == Enforcement::Partition {
        let says = container.partition.as_deref().unwrap_or("nothing");
        return (!matches!(says, "root" | "isolated")).then(|| {
            format!(
                "the kernel reports its partition as {says}, so other tasks may run on {assigned}"
            )
        });
    }
    let same = |other: &ContainerState| {
        (&other.uid, &other.container) == (&container.uid, &container.container)
    };
    let inside =
        |other: &ContainerState| other.kind == ContainerKind::Init && other.uid == container.uid;
    let on = |other: &&ContainerState| {
        other.running
            && other
                .effective
                .as_ref()
                .is_some_and(|effective| !effective.is_disjoint(assigned))
    };
    let other = all
        .iter()
        .filter(on)
        .find(|other| !same(other) && !inside(other))?;
    Some(format!(
        "container {} of {}/{} runs on the same CPUs",
        other.container, other.namespace, other.pod
    ))
}

/// Whether the assignment is effective. Offline CPUs may be missing from `effective`.
fn is_in_force(assigned: &CpuSet, effective: &CpuSet) -> bool {
    !effective.is_empty() && effective.is_subset(assigned)
}

/// Why a container lacks exclusive CPUs. `None` for a container that is meant to share: the pod's author says so, or the pod is
/// Guaranteed and the container's limit is no whole number.
fn why_none(entitlement: &Entitlement, qos: Qos, note: Option<&str>) -> Option<String> {
    match entitlement {
        Entitlement::Exclusive { cpus, .. } => {
            // It does not stay there: it is refused.
            let reason = note.map(|note| reason_in(note).to_owned());
            Some(reason.unwrap_or_else(|| none_free(*cpus)))
        }
        Entitlement::Inherit { .. } => Some("its pod's containers have none".to_owned()),
        Entitlement::Shared { reason, obstacle } => {
            let is_meant = match obstacle {
                None => true,
                Some(Obstacle::CpuLimit) => qos == Qos::Guaranteed,
                Some(_) => false,
            };
            (!is_meant).then(|| reason.clone())
        }
    }
}

fn none_free(cpus: u32) -> String {
    if cpus == 1 {
        "no CPU is free".to_owned()
    } else {
        format!("no {cpus} CPUs are free")
    }
}

/// The refusal if the effective CPUs could not be read.
pub(super) const UNSEEN: &str = "the pod is annotated pinfold.io/cpus=required, and Pinfold could not read the container's \
                                 CPUs: see the log of Pinfold on this node";

fn refusal(why: &str) -> String {
    format!(
        "the pod is annotated pinfold.io/cpus=required, and the container can't get exclusive CPUs: {why}"
    )
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::pod::{Obstacle, PodRole, Policy, RecognizedPod, ThreadPolicy, thread_environment};

    #[test]
    fn a_container_without_entitlement_in_a_guaranteed_pod_may_start() {
        let shared = Entitlement::Shared {
            reason: "CPU limit 0.5".to_owned(),
            obstacle: Some(Obstacle::CpuLimit),
        };
        assert_eq!(why_none(&shared, Qos::Guaranteed, None), None);
        assert_eq!(
            why_none(&shared, Qos::Burstable, None).unwrap(),
            "CPU limit 0.5"
        );
        // What a pod's author shares on purpose may start in any pod; any other obstacle is one in a Guaranteed pod, too.
        let shared = |obstacle| Entitlement::Shared {
            reason: "the reason".to_owned(),
            obstacle,
        };
        assert_eq!(why_none(&shared(None), Qos::Burstable, None), None);
        for obstacle in [Obstacle::SingleCores, Obstacle::ContainerCpus] {
            let why = why_none(&shared(Some(obstacle)), Qos::Guaranteed, None);
            assert_eq!(why.as_deref(), Some("the reason"), "{obstacle:?}");
        }
        let owed = Entitlement::Exclusive {
            cpus: 2,
            reason: String::new(),
        };
        assert_eq!(
            why_none(&owed, Qos::Guaranteed, None).unwrap(),
            "no 2 CPUs are free"
        );
        assert_eq!(
            why_none(&owed, Qos::Guaranteed, Some("1 free")).unwrap(),
            "1 free"
        );
    }

    #[test]
    fn only_exclusive_containers_of_required_pods_are_checked() {
        let pod = |cpus: &str| Pod {
            annotations: BTreeMap::from([("pinfold.io/cpus".to_owned(), cpus.to_owned())]).into(),
            ..Pod::default()
        };
        let exclusive = Entitlement::Exclusive {
            cpus: 2,
            reason: String::new(),
        };
        let inherit = Entitlement::Inherit {
            reason: String::new(),
        };
        assert!(is_checked(&pod("required"), &exclusive));
        assert!(
            !is_checked(&pod("required"), &inherit) && !is_checked(&pod("exclusive"), &exclusive)
        );
    }

    #[test]
    fn offline_cpus_don_t_count() {
        let set = |text: &str| text.parse::<CpuSet>().unwrap();
        assert!(is_in_force(&set("2-3"), &set("2-3")) && is_in_force(&set("2-3"), &set("2")));
        assert!(
            !is_in_force(&set("2-3"), &set("1-3")) && !is_in_force(&set("2-3"), &CpuSet::new())
        );
    }

    fn state(container: &str, assigned: Option<&str>, effective: &str) -> ContainerState {
        let set = |text: &str| text.parse::<CpuSet>().unwrap();
        ContainerState {
            namespace: "train".to_owned(),
            pod: "p".to_owned(),
            container: container.to_owned(),
            uid: Some("u-p".to_owned()),
            kind: ContainerKind::App,
            role: PodRole::Worker,
            job: None,
            index: None,
            evidence: String::new(),
            qos: Qos::Guaranteed,
            host_network: false,
            entitlement: Entitlement::Exclusive {
                cpus: 2,
                reason: String::new(),
            },
            assigned: assigned.map(set),
            effective: Some(set(effective)),
            partition: Some("root".to_owned()),
            numa: None,
            memory: None,
            api_uid: None,
            cgroup: None,
            running: true,
            threads: thread_environment(
                &RecognizedPod::default(),
                0,
                &Policy::default(),
                &ThreadPolicy::default(),
                None,
            ),
            ranks: None,
            injected: None,
            required: true,
            note: None,
            bindings: Vec::new(),
            unpinned_seconds: None,
            refused: None,
            created: true,
            finished: false,
            at_start: None,
            repaired: None,
            upcoming: None,
            observed: None,
        }
    }

    #[test]
    fn a_pod_that_requires_cpus_starts_only_on_exclusive_cpus() {
        let own = state("main", Some("2-3"), "2-3");
        let reason = |enforcement, own: &ContainerState, other: Option<&ContainerState>| {
            let all: Vec<ContainerState> = std::iter::once(own).chain(other).cloned().collect();
            at_start(own, &all, enforcement)
        };
        reason(Enforcement::Partition, &own, None).unwrap();
        // The runtime has written the cpuset, but the kernel has made no partition.
        let member = ContainerState {
            partition: Some("member".to_owned()),
            ..own.clone()
        };
        assert!(
            reason(Enforcement::Partition, &member, None)
                .unwrap_err()
                .contains("member")
        );
        let refused = ContainerState {
            refused: Some(RefusalSource::Kernel),
            note: Some("no".to_owned()),
            ..own.clone()
        };
        assert!(
            reason(Enforcement::Partition, &refused, None)
                .unwrap_err()
                .ends_with(": no")
        );
        // Without partitions, other containers must be off the assigned CPUs.
        let (away, near) = (state("other", None, "0-1"), state("other", None, "0-2"));
        reason(Enforcement::Cpuset, &member, Some(&away)).unwrap();
        assert!(
            reason(Enforcement::Cpuset, &member, Some(&near))
                .unwrap_err()
                .contains("other of train/p")
        );
        assert!(
            reason(
                Enforcement::Cpuset,
                &state("main", Some("2-3"), "0-3"),
                None
            )
            .is_err()
        );
        // A pod without `required` starts in any case, and under `observe` every pod does.
        reason(
            Enforcement::Partition,
            &ContainerState {
                required: false,
                ..refused.clone()
            },
            None,
        )
        .unwrap();
        reason(Enforcement::Observe, &refused, None).unwrap();
    }
}
