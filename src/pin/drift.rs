//! [`drift`]: differences between assigned and effective CPUs, each with a cause.

use std::collections::BTreeSet;
use std::fmt;

use serde::Serialize;

use super::{AssignmentRecord, Enforcement, Ledger, Observed, ObservedContainer, ObservedPod};
use crate::cpu::CpuSet;
use crate::host::cgroup::Cpuset;

/// A difference between the ledger and the kernel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Drift {
    /// The container's cgroup.
    pub path: String,
    /// Namespace and name of the pod, from its assignment record.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod: Option<String>,
    /// The container's name, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
    pub cause: DriftCause,
    pub assigned: CpuSet,
    pub effective: CpuSet,
    /// Neighbours with processes: containers that may run on a drifted owner's CPUs, and owners
    /// whose CPUs the drifted container may use. At most 8, to keep the node's state small.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub others: Vec<Neighbour>,
}

/// The maximum number of neighbours per drift.
const NAMED: usize = 8;

/// The maximum number of drifts per scan with a list of neighbours. If many containers drift at
/// once, their neighbours are among them anyway.
const LISTED: usize = 16;

/// A container that shares CPUs with a drifted container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Neighbour {
    /// The neighbour's cgroup.
    pub path: String,
    /// Namespace and name of the pod, from its assignment record.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod: Option<String>,
    /// The container's name, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
    /// The CPUs open to both containers.
    pub cpus: CpuSet,
}

named! {
    /// Why effective and assigned CPUs differ.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
    #[serde(rename_all = "lowercase")]
    pub enum DriftCause {
        /// A foreign program wrote the owner's `cpuset.cpus`, or with partitions its
        /// `cpuset.cpus.exclusive`.
        Written => "written",
        /// A cgroup above the owner's was narrowed.
        Ancestor => "ancestor",
        /// Some of the owner's CPUs are offline.
        Offline => "offline",
        /// A non-owner's cgroup was widened onto an owner's CPUs. The drift's path is that of the
        /// non-owner.
        Overlap => "overlap",
        /// The container runtime wrote the CPUs that a former owner was given at its creation. The
        /// drift's path is that of the former owner.
        Runtime => "runtime",
        /// The owner's partition has ended, or the kernel has made it invalid.
        Partition => "partition",
    }
}

// === impl Drift ===

impl Drift {
    /// Whether both values describe the same drift. The neighbours are ignored, because they may
    /// have changed meanwhile.
    pub fn is_same(&self, other: &Self) -> bool {
        (&self.path, self.cause, &self.assigned, &self.effective)
            == (&other.path, other.cause, &other.assigned, &other.effective)
    }
}

impl fmt::Display for Drift {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            path,
            pod,
            container,
            cause,
            assigned,
            effective,
            others,
        } = self;
        let name = named(pod.as_ref(), container.as_ref(), path);
        let cause = cause.name();
        let runs = if assigned.is_empty() {
            format!("should run on shared CPUs and runs on {effective}")
        } else if assigned == effective {
            format!("runs on {effective}, but others may, too")
        } else {
            format!("should run on {assigned} and runs on {effective}")
        };
        write!(f, "drift ({cause}): {name} {runs}")?;
        let mut before = "; also on these CPUs:";
        for other in others {
            write!(f, "{before} {other}")?;
            before = ",";
        }
        Ok(())
    }
}

// === impl Neighbour ===

impl fmt::Display for Neighbour {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = named(self.pod.as_ref(), self.container.as_ref(), &self.path);
        write!(f, "{name} on {}", self.cpus)
    }
}

/// `namespace/pod/container (cgroup)`, as far as the names are known. The cgroup alone is a hash
/// that means nothing to a person.
fn named(pod: Option<&String>, container: Option<&String>, path: &str) -> String {
    match (pod, container) {
        (Some(pod), Some(container)) => format!("{pod}/{container} ({path})"),
        (Some(pod), None) => format!("{pod} ({path})"),
        (None, _) => path.to_owned(),
    }
}

/// Namespace and name of a pod, if its record has them.
fn recorded_name(pod: &ObservedPod) -> Option<String> {
    let record = pod
        .record
        .as_ref()
        .filter(|record| !record.pod.is_empty())?;
    Some(format!("{}/{}", record.namespace, record.pod))
}

/// What a comparison needs to know beside the kernel and the ledger.
#[derive(Debug, Clone, Copy)]
pub struct DriftInput<'a> {
    pub online: &'a CpuSet,
    /// CPUs that got their owners after the last complete turn about all pods. The owners' sets may
    /// be unwritten, and other containers may still run on the CPUs. Neither is drift.
    pub recently_assigned: &'a CpuSet,
    /// Cgroups whose record could not be written, so that nothing else was written to them either.
    pub unrecorded: &'a BTreeSet<String>,
    pub enforcement: Enforcement,
}

/// Compares the kernel with the ledger.
///
/// Cgroups without an assignment record are new, not drifted, unless they have the CPUs of an ended
/// assignment, or Pinfold has tried in vain to record them.
pub fn drift(observed: &Observed, ledger: &Ledger, input: &DriftInput<'_>) -> Vec<Drift> {
    let comparison = Comparison {
        input,
        exclusive: ledger.exclusive(),
        available: ledger.available(input.online),
        returning: returning(observed),
    };
    let mut drifts = Vec::new();
    for pod in &observed.pods {
        let own = ledger.of(&pod.cgroup.uid).cpus();
        let foreign = comparison.exclusive.difference(input.recently_assigned);
        let foreign = foreign.difference(&own);
        for container in &pod.containers {
            let Some(cause) = comparison.cause(container, &own, &foreign) else {
                continue;
            };
            let record = container.record.as_ref();
            let assigned = record.map(AssignmentRecord::cpus).unwrap_or_default();
            let others = if drifts.len() < LISTED {
                others(observed, container, &assigned, &foreign)
            } else {
                Vec::new()
            };
            drifts.push(Drift {
                path: container.cgroup.path.clone(),
                pod: recorded_name(pod),
                container: container.name.clone(),
                cause,
                assigned,
                effective: container.cgroup.cpuset.effective.clone(),
                others,
            });
        }
    }
    drifts
}

/// What a container's CPUs are compared with.
struct Comparison<'a> {
    input: &'a DriftInput<'a>,
    /// All exclusive CPUs of the node.
    exclusive: CpuSet,
    /// The online CPUs that pods can use.
    available: CpuSet,
    /// CPUs that were offline and that the cgroups above the pods still lack.
    returning: CpuSet,
}

// === impl Comparison ===

impl Comparison<'_> {
    /// Why a container has drifted; `None` without drift. `own` are the CPUs of the container's pod,
    /// `foreign` those of other pods.
    fn cause(
        &self,
        container: &ObservedContainer,
        own: &CpuSet,
        foreign: &CpuSet,
    ) -> Option<DriftCause> {
        let now = &container.cgroup.cpuset;
        let DriftInput {
            online,
            recently_assigned,
            unrecorded,
            enforcement,
        } = *self.input;
        let assigned = match &container.record {
            Some(record) => record.cpus(),
            // Pinfold can't say what such a container should have, so it leaves it alone.
            None if container.has_unreadable_record() => return None,
            None if self.is_former_owner(container, own) => return Some(DriftCause::Runtime),
            None if unrecorded.contains(&container.cgroup.path) => CpuSet::new(),
            None => return None,
        };
        if !assigned.is_disjoint(recently_assigned) {
            return None;
        }
        let assigned_online = assigned.intersection(online);
        let partition = enforcement == Enforcement::Partition;
        if assigned.is_empty() {
            if self.is_former_owner(container, own) {
                return Some(DriftCause::Runtime);
            }
            // With partitions, the kernel keeps members off all partitions, so a member's written
            // set has no effect on partition CPUs.
            return (!partition && !now.effective.is_disjoint(foreign))
                .then_some(DriftCause::Overlap);
        }
        if partition && !now.partition.is_live() {
            Some(if assigned_online.is_empty() {
                DriftCause::Offline
            } else {
                DriftCause::Partition
            })
        } else if now.effective == assigned {
            None
        } else if self.lacks_only_offline(now, &assigned, &assigned_online) {
            Some(DriftCause::Offline)
        } else if !partition && now.effective == assigned.intersection(&self.available) {
            // All that the cgroups above still offer.
            Some(DriftCause::Ancestor)
        } else if partition || (now.cpus != assigned && now.cpus != assigned_online) {
            Some(DriftCause::Written)
        } else {
            Some(DriftCause::Ancestor)
        }
    }

    /// Whether a container lacks only CPUs that are offline, or were until a moment ago.
    fn lacks_only_offline(
        &self,
        now: &Cpuset,
        assigned: &CpuSet,
        assigned_online: &CpuSet,
    ) -> bool {
        match self.input.enforcement {
            Enforcement::Partition => now.exclusive == *assigned,
            _ => {
                let without_returning = assigned_online.difference(&self.returning);
                now.effective == *assigned_online || now.effective == without_returning
            }
        }
    }

    /// Whether a container without own CPUs has the set that it was given at its creation. If its
    /// pod owns some of the CPUs, it may be an init container, and the shared CPUs may equal the
    /// set by chance.
    fn is_former_owner(&self, container: &ObservedContainer, own: &CpuSet) -> bool {
        let now = &container.cgroup.cpuset.cpus;
        container.has_given_cpus()
            && now.is_disjoint(own)
            && *now != self.available.difference(&self.exclusive)
    }
}

/// CPUs of cgroup v1 that were offline and that the cgroups above the pods still lack.
fn returning(observed: &Observed) -> CpuSet {
    let above = observed
        .surroundings
        .above
        .iter()
        .map(|above| &above.cpuset);
    let lacking = above.filter_map(|set| Some(set.narrowed_from.as_ref()?.difference(&set.cpus)));
    lacking.fold(CpuSet::new(), |all, set| all.union(&set))
}

/// Containers that may run on a container's assigned CPUs, and owners whose CPUs the container may
/// use.
fn others(
    observed: &Observed,
    drifted: &ObservedContainer,
    assigned: &CpuSet,
    foreign: &CpuSet,
) -> Vec<Neighbour> {
    let all = observed
        .pods
        .iter()
        .flat_map(|pod| pod.containers.iter().map(move |other| (pod, other)));
    let others =
        all.filter(|(_, other)| other.cgroup.path != drifted.cgroup.path && other.cgroup.populated);
    let concerned = others.filter_map(|(pod, other)| {
        let mut other_cpus = other
            .record
            .as_ref()
            .map(AssignmentRecord::cpus)
            .unwrap_or_default();
        if assigned.is_empty() {
            // An overlap with other containers of the same pod is no drift.
            other_cpus = other_cpus.intersection(foreign);
        }
        let on_assigned = other.cgroup.cpuset.effective.intersection(assigned);
        let cpus = on_assigned.union(&other_cpus.intersection(&drifted.cgroup.cpuset.effective));
        (!cpus.is_empty()).then(|| Neighbour {
            path: other.cgroup.path.clone(),
            pod: recorded_name(pod),
            container: other.name.clone(),
            cpus,
        })
    });
    concerned.take(NAMED).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::cgroup::{ContainerCgroup, Cpuset, PodCgroup};
    use crate::pin::{EarlierSettings, Scan};

    fn set(list: &str) -> CpuSet {
        list.parse().unwrap()
    }

    fn pod(uid: &str, effective: &str, record: Option<&AssignmentRecord>) -> PodCgroup {
        PodCgroup {
            path: uid.to_owned(),
            uid: uid.to_owned(),
            containers: vec![ContainerCgroup {
                path: format!("{uid}/c"),
                id: "c".to_owned(),
                cpuset: Cpuset {
                    effective: set(effective),
                    ..Cpuset::default()
                },
                record_text: record.map(AssignmentRecord::text),
                ..ContainerCgroup::default()
            }],
            ..PodCgroup::default()
        }
    }

    /// The log's reader knows the pod, not the hash in the name of its cgroup.
    #[test]
    fn a_drifted_owner_is_named_by_its_pod_and_container() {
        let mut drift = Drift {
            path: "kubepods/pod1/cri-8f3a".to_owned(),
            pod: Some("t/w-0".to_owned()),
            container: Some("main".to_owned()),
            cause: DriftCause::Written,
            assigned: set("2-3"),
            effective: set("0-1"),
            others: vec![Neighbour {
                path: "kubepods/pod2/cri-77aa".to_owned(),
                pod: Some("t/w-1".to_owned()),
                container: None,
                cpus: set("2"),
            }],
        };
        assert_eq!(
            drift.to_string(),
            "drift (written): t/w-0/main (kubepods/pod1/cri-8f3a) should run on 2-3 and runs on 0-1; also on these CPUs: \
             t/w-1 (kubepods/pod2/cri-77aa) on 2"
        );
        (drift.pod, drift.others) = (None, Vec::new());
        assert_eq!(
            drift.to_string(),
            "drift (written): kubepods/pod1/cri-8f3a should run on 2-3 and runs on 0-1"
        );
    }

    #[test]
    fn an_owner_s_drift_has_the_names_of_its_record() {
        let mut record = AssignmentRecord::new(EarlierSettings::default());
        (record.namespace, record.pod) = ("t".to_owned(), "w-0".to_owned());
        let containers = &mut record.assignment.containers;
        containers.insert("main".to_owned(), set("2-3"));
        let mut owner = pod("owner", "0-1", Some(&record));
        owner.record_text = Some(record.text());
        let scan = Scan {
            pods: vec![owner],
            ..Scan::default()
        };
        let (observed, ledger) = Observed::new(scan, &[]);
        let input = DriftInput {
            online: &set("0-3"),
            recently_assigned: &CpuSet::new(),
            unrecorded: &BTreeSet::new(),
            enforcement: Enforcement::Cpuset,
        };
        let names: Vec<Option<String>> = drift(&observed, &ledger, &input)
            .into_iter()
            .map(|drift| drift.pod)
            .collect();
        assert_eq!(names, [Some("t/w-0".to_owned())]);
    }

    #[test]
    fn a_container_that_could_not_be_recorded_drifts_on_the_cpus_of_an_owner() {
        let mut record = AssignmentRecord::new(EarlierSettings::default());
        let containers = &mut record.assignment.containers;
        containers.insert("main".to_owned(), set("2-3"));
        let scan = Scan {
            pods: vec![
                pod("owner", "2-3", Some(&record)),
                pod("failed", "0-2", None),
                pod("away", "0-1", None),
                pod("new", "0-3", None),
            ],
            ..Scan::default()
        };
        let (observed, ledger) = Observed::new(scan, &[]);
        let drifts = |enforcement, unrecorded: &[&str]| {
            let input = DriftInput {
                online: &set("0-3"),
                recently_assigned: &CpuSet::new(),
                unrecorded: &unrecorded.iter().map(|path| (*path).to_owned()).collect(),
                enforcement,
            };
            let found = drift(&observed, &ledger, &input).into_iter();
            found
                .map(|drift| (drift.path, drift.cause))
                .collect::<Vec<_>>()
        };
        let failed = ["failed/c", "away/c", "gone/c"];
        assert_eq!(
            drifts(Enforcement::Cpuset, &failed),
            [("failed/c".to_owned(), DriftCause::Overlap)]
        );
        assert_eq!(
            drifts(Enforcement::Cpuset, &[]),
            [],
            "new ones are no drift"
        );
    }

    /// A later version of Pinfold may have assigned the CPUs. Nobody repairs such a container, so it is no drift either.
    #[test]
    fn containers_with_an_unreadable_record_never_drift() {
        let mut record = AssignmentRecord::new(EarlierSettings::default());
        let containers = &mut record.assignment.containers;
        containers.insert("main".to_owned(), set("2-3"));
        let drifts = |record_text: Option<&str>, given: Option<&str>| {
            let mut newer = pod("newer", "2-3", None);
            newer.containers[0].cpuset.cpus = set("2-3");
            newer.containers[0].record_text = record_text.map(str::to_owned);
            let scan = Scan {
                pods: vec![pod("owner", "2-3", Some(&record)), newer],
                ..Scan::default()
            };
            let (mut observed, ledger) = Observed::new(scan, &[]);
            observed.pods[1].containers[0].given_cpus = given.map(set);
            let input = DriftInput {
                online: &set("0-3"),
                recently_assigned: &CpuSet::new(),
                unrecorded: &["newer/c".to_owned()].into(),
                enforcement: Enforcement::Cpuset,
            };
            let found = drift(&observed, &ledger, &input).into_iter();
            found.map(|drift| drift.cause).collect::<Vec<_>>()
        };
        assert_eq!(drifts(None, None), [DriftCause::Overlap]);
        assert_eq!(drifts(None, Some("2-3")), [DriftCause::Runtime]);
        for given in [None, Some("2-3")] {
            assert_eq!(drifts(Some("pinfold 2"), given), [], "{given:?}");
        }
    }
}
