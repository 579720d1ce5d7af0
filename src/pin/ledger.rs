//! [`Ledger`]: the owner of each exclusive CPU, and the container of each cgroup, as read from the
//! kernel.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use super::assignment::union;
use super::desired::{IDLE_CGROUP, PodPlan};
use super::{AssignmentRecord, PodAssignment};
use crate::cpu::CpuSet;
use crate::host::cgroup::{
    ContainerCgroup, Cpuset, Partition, PartitionKind, PodCgroup, PodSurroundings,
};
use crate::pod::{Container, ContainerIds, Pod, RecognizedPod};

/// The cgroups as read from the kernel.
#[derive(Debug, Clone, Default)]
pub struct Scan {
    pub pods: Vec<PodCgroup>,
    /// The cgroups above and around the pods.
    pub surroundings: PodSurroundings,
    /// Online CPUs in no cgroup's set and in no valid partition.
    pub missing: CpuSet,
}

/// The present cgroup tree of the pods, with parsed records and known names.
#[derive(Debug, Clone, Default)]
pub struct Observed {
    pub pods: Vec<ObservedPod>,
    /// The cgroups above and around the pods.
    pub surroundings: PodSurroundings,
}

/// A pod's cgroup.
#[derive(Debug, Clone, Default)]
pub struct ObservedPod {
    /// The cgroup, without its containers.
    pub cgroup: PodCgroup,
    /// The pod's assignment record, if readable.
    pub record: Option<AssignmentRecord>,
    pub containers: Vec<ObservedContainer>,
    /// Whether a source describes the pod.
    pub is_known: bool,
    /// Whether the pod may own CPUs. True if one of its containers exists, the pod is unknown, or
    /// no source gives container ids.
    pub may_own_cpus: bool,
}

/// A container's cgroup.
#[derive(Debug, Clone, Default)]
pub struct ObservedContainer {
    pub cgroup: ContainerCgroup,
    /// The container's assignment record, if readable.
    pub record: Option<AssignmentRecord>,
    /// The container's name, if known. It comes from the pod's status, the container runtime, the
    /// record, or from being the pod's only cgroup. A pod sandbox has no name.
    pub name: Option<String>,
    /// Whether the container runtime lists its containers, and none has this cgroup. It is then a pod sandbox's, or that of a
    /// container that a newer one has replaced before it ended.
    pub unlisted: bool,
    /// Whether Pinfold made the cgroup to keep CPUs idle. It then belongs to no container.
    pub idle: bool,
    /// Whether a status or the container runtime told the name, now or before the record was
    /// written.
    pub by_id: bool,
    /// The CPUs that Pinfold gave the container at its creation, if the container runtime tells
    /// them.
    pub given_cpus: Option<CpuSet>,
}

/// All assignments of the node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ledger {
    /// The CPUs of each pod, by pod uid. An assignment outlives the container's cgroup and lasts as
    /// long as the pod's cgroup.
    pub assignments: BTreeMap<String, PodAssignment>,
    /// The NUMA nodes of containers with memory bound by Pinfold, by pod uid and container name.
    pub memory: BTreeMap<String, BTreeMap<String, CpuSet>>,
    /// CPUs excluded from assignments: unexplained exclusive CPUs, the sets of cgroups with an
    /// unreadable record, missing CPUs, and CPUs that are barred, which means given up and not yet
    /// handed back.
    pub excluded: CpuSet,
    /// Those of them that a cgroup holds as exclusive without a record of Pinfold: another program's.
    pub held_by_others: CpuSet,
    /// Online CPUs in no cgroup's set and in no valid partition, because an invalid one holds them, because they return in a moment,
    /// or because the kernel has lost them.
    pub missing: CpuSet,
    /// The CPUs that the cgroups above the pods offer; `None` if none of these has a set. An online
    /// CPU outside is for other programs: an administrator has limited the pods, or another program
    /// holds the CPU as exclusive.
    pub offered: Option<CpuSet>,
    /// Unexplained exclusive CPUs and records, as sentences. Pinfold leaves their cgroups alone.
    pub unexplained: Vec<String>,
    /// The sentences of `unexplained` about records that this version can't read.
    pub unreadable: Vec<String>,
    /// The written sets of the cgroups with an unreadable record. Each may belong to an owner.
    pub unreadable_sets: Vec<CpuSet>,
}

// === impl Observed ===

impl Observed {
    /// Matches each cgroup with its pod and container, and reads the ledger from the cgroups.
    pub fn new(scan: Scan, pods: &[Arc<RecognizedPod>]) -> (Self, Ledger) {
        // Of several pods with the same uid, the first counts.
        let from_last = pods.iter().rev();
        let by_uid: HashMap<&str, &Arc<RecognizedPod>> = from_last
            .filter_map(|pod| Some((pod.cgroup_uid()?, pod)))
            .collect();
        let matched = |cgroup: PodCgroup| {
            let pod = by_uid.get(cgroup.uid.as_str()).map(|pod| &***pod);
            ObservedPod::new(cgroup, pod)
        };
        let observed = Self {
            pods: scan.pods.into_iter().map(matched).collect(),
            surroundings: scan.surroundings,
        };
        let ledger = Ledger::read(&observed, scan.missing);
        (observed, ledger)
    }

    /// The observed state reduced to a single pod. A plan for the pod may write to its cgroup and
    /// to those below and above it, and takes no CPUs from other pods.
    pub fn only(&self, uid: &str) -> Option<Self> {
        self.only_with(uid, &BTreeSet::new())
    }

    /// The observed state reduced to a pod and those of `others` that exist.
    pub fn only_with(&self, uid: &str, others: &BTreeSet<String>) -> Option<Self> {
        self.pod(uid)?;
        let is_meant =
            |pod: &&ObservedPod| pod.cgroup.uid == uid || others.contains(&pod.cgroup.uid);
        let pods: Vec<ObservedPod> = self.pods.iter().filter(is_meant).cloned().collect();
        let held = union(pods.iter().map(|pod| &pod.cgroup.cpuset.exclusive));
        let mut surroundings = self.surroundings.clone();
        for above in &mut surroundings.above {
            let for_others = above.cpuset.exclusive.difference(&held);
            above.other_exclusive = above.other_exclusive.union(&for_others);
        }
        Some(Self { pods, surroundings })
    }

    pub fn containers(&self) -> impl Iterator<Item = &ObservedContainer> {
        self.pods.iter().flat_map(|pod| &pod.containers)
    }

    pub fn pod(&self, uid: &str) -> Option<&ObservedPod> {
        self.pods.iter().find(|pod| pod.cgroup.uid == uid)
    }

    /// The cgroup of a pod's container.
    pub fn container(&self, uid: &str, name: &str) -> Option<&ObservedContainer> {
        self.pod(uid)?.container(name)
    }
}

// === impl ObservedContainer ===

impl ObservedContainer {
    /// Whether the cgroup has an unreadable record, which makes Pinfold leave it alone.
    pub fn has_unreadable_record(&self) -> bool {
        self.record.is_none() && self.cgroup.record_text.is_some()
    }

    /// Whether the container has exactly the CPUs that Pinfold gave it at its creation. The
    /// container runtime then wrote the set at Pinfold's request, and nobody else asked for it.
    pub(super) fn has_given_cpus(&self) -> bool {
        let given = self.given_cpus.as_ref().filter(|cpus| !cpus.is_empty());
        given == Some(self.cgroup.cpuset.earlier())
    }

    /// The set that somebody else has given the container. With a record, the set is Pinfold's.
    pub fn set_of_others(&self) -> Option<&CpuSet> {
        let written = &self.cgroup.cpuset.cpus;
        let is_foreign =
            self.record.is_none() && !self.has_unreadable_record() && !self.has_given_cpus();
        (is_foreign && !written.is_empty()).then_some(written)
    }

    /// The CPUs that the cgroup holds as a partition. An invalid partition counts too: Linux 6.12
    /// still keeps its CPUs from every other cgroup, and loses them if the cgroup is removed in
    /// this state.
    pub fn partition_cpus(&self) -> CpuSet {
        let cpuset = &self.cgroup.cpuset;
        match cpuset.partition {
            Partition::Valid(PartitionKind::Member) | Partition::Unsupported => CpuSet::new(),
            Partition::Valid(_) => cpuset.exclusive.union(&cpuset.effective),
            Partition::Invalid(_) => cpuset.exclusive.clone(),
        }
    }

    /// Whether a kubelet that chooses the CPUs writes the set: for running containers, and of several with one name the newest.
    pub(super) fn kubelet_writes_set(&self) -> bool {
        self.cgroup.populated && !self.unlisted
    }

    /// Whether the container is to run on the CPUs of its pod without owning any.
    pub(super) fn is_init(&self, plan: &PodPlan) -> bool {
        let name = self.name.as_ref().unwrap_or(&self.cgroup.id);
        plan.init_containers.contains(name)
    }

    /// Whether Pinfold has bound the container's memory to NUMA nodes.
    pub(super) fn has_bound_memory(&self) -> bool {
        let record = self.record.as_ref();
        record.is_some_and(|record| record.before.numa.is_some())
    }
}

// === impl ObservedPod ===

impl ObservedPod {
    /// Matches a pod's cgroups with the pod and its containers; `None` for an unknown pod.
    pub fn new(mut cgroup: PodCgroup, pod: Option<&RecognizedPod>) -> Self {
        let cgroups = std::mem::take(&mut cgroup.containers);
        let real = cgroups.iter().filter(|one| one.id != IDLE_CGROUP);
        let alone = real.count() == 1;
        let matched = |cgroup: ContainerCgroup| {
            let record = parsed(cgroup.record_text.as_deref());
            let (name, by_id) = match pod {
                Some(pod) => name_of(pod, &cgroup.id, alone, record.as_ref()),
                None => (
                    recorded_name(record.as_ref()),
                    record.as_ref().is_some_and(|record| record.by_id),
                ),
            };
            let described = pod.zip(name.as_deref());
            let described = described.and_then(|(pod, name)| pod.container(name));
            let idle = cgroup.id == IDLE_CGROUP;
            let has_list = pod.is_some_and(|pod| pod.ids == ContainerIds::Runtime);
            ObservedContainer {
                unlisted: has_list && name.is_none() && !idle,
                given_cpus: described.and_then(|described| described.given_cpus.clone()),
                record,
                name,
                idle,
                by_id,
                cgroup,
            }
        };
        let containers: Vec<ObservedContainer> = cgroups.into_iter().map(matched).collect();
        Self {
            record: parsed(cgroup.record_text.as_deref()),
            is_known: pod.is_some(),
            may_own_cpus: pod.is_none_or(|pod| may_own_cpus(pod, &containers)),
            cgroup,
            containers,
        }
    }

    /// The pod's cgroup with its containers.
    pub fn into_cgroup(self) -> PodCgroup {
        let containers = self.containers.into_iter();
        PodCgroup {
            containers: containers.map(|container| container.cgroup).collect(),
            ..self.cgroup
        }
    }

    /// Whether the cgroup has an unreadable record, which makes Pinfold leave it alone.
    pub fn has_unreadable_record(&self) -> bool {
        self.record.is_none() && self.cgroup.record_text.is_some()
    }

    /// The CPUs in the pod's record; empty without a record.
    pub(super) fn recorded_cpus(&self) -> CpuSet {
        let record = self.record.as_ref();
        record.map(AssignmentRecord::cpus).unwrap_or_default()
    }

    /// The CPUs that the partitions of the other cgroups in the pod hold. If the runtime wrote one
    /// of them to the container, Linux 6.12 would make that partition invalid.
    pub fn partitions_of_others(&self, name: &str) -> CpuSet {
        union(self.others(name).map(ObservedContainer::partition_cpus))
    }

    /// The CPUs that an init container must leave alone: those of the partitions of the pod's other containers, and those of
    /// each of them with a cgroup, which may become a partition at any moment. A partition whose container has ended ends with
    /// the start of the next one.
    pub(super) fn cpus_of_others(&self, name: &str, assignment: &PodAssignment) -> CpuSet {
        let assigned = |other: &ObservedContainer| match &other.name {
            Some(name) => assignment.containers.get(name).cloned(),
            None => Some(assignment.idle.clone()).filter(|_| other.idle),
        };
        let cpus = |other: &ObservedContainer| {
            let assigned = assigned(other).unwrap_or_default();
            if other.idle || other.cgroup.populated {
                assigned.union(&other.partition_cpus())
            } else {
                assigned
            }
        };
        union(self.others(name).map(cpus))
    }

    /// The cgroups in the pod that do not belong to the named container. One that an earlier run of
    /// the container left behind has no name, so it counts.
    fn others(&self, name: &str) -> impl Iterator<Item = &ObservedContainer> {
        let containers = self.containers.iter();
        containers.filter(move |container| container.name.as_deref() != Some(name))
    }

    /// The cgroup of a container. While a container is replaced, two cgroups exist for a moment.
    pub fn container(&self, name: &str) -> Option<&ObservedContainer> {
        let named = |container: &&ObservedContainer| container.name.as_deref() == Some(name);
        let mut matching = self.containers.iter().filter(named);
        let first = matching.next()?;
        let populated = matching.find(|container| container.cgroup.populated);
        Some(populated.unwrap_or(first))
    }
}

/// The record in a text, if there is one and this version can read it.
fn parsed(text: Option<&str>) -> Option<AssignmentRecord> {
    AssignmentRecord::parse(text?).ok()
}

/// The container name in the record of a container's cgroup.
fn recorded_name(record: Option<&AssignmentRecord>) -> Option<String> {
    record.and_then(|record| record.assignment.containers.keys().next().cloned())
}

/// The name of the container with this runtime id, and whether a status or the runtime told the id.
///
/// A pod sandbox has a cgroup like a container's, so a cgroup has no name until a status or the
/// runtime tells its id. Records matter only until then:
///
/// - With the runtime as source of ids, no record counts.
/// - With a status as source, a record counts if a runtime id was known when Pinfold wrote it.
/// - Without any source, every record counts. A pod's only cgroup belongs to the pod's only
///   container.
fn name_of(
    pod: &Pod,
    id: &str,
    alone: bool,
    record: Option<&AssignmentRecord>,
) -> (Option<String>, bool) {
    if id == IDLE_CGROUP {
        return (None, false);
    }
    let same = |container: &&Container| container.runtime_id.as_deref() == Some(id);
    if let Some(container) = pod.containers.iter().find(same) {
        return (Some(container.name.clone()), true);
    }
    let by_id = record.is_some_and(|record| record.by_id);
    let silent = pod
        .containers
        .iter()
        .all(|container| container.runtime_id.is_none());
    let unknown = |name: &String| {
        pod.container(name)
            .is_none_or(|container| container.runtime_id.is_none())
    };
    match (pod.ids, pod.containers.as_slice()) {
        (ContainerIds::Runtime, _) => (None, false),
        (ContainerIds::Awaited, _) => (
            recorded_name(record).filter(|name| by_id && unknown(name)),
            by_id,
        ),
        (ContainerIds::NoSource, [only]) if silent && alone => (Some(only.name.clone()), false),
        (ContainerIds::NoSource, _) => (recorded_name(record).filter(unknown), by_id),
    }
}

/// Whether a known pod may own CPUs, which takes a container that exists. A pod still pulling
/// images has only a sandbox, and owns no CPUs yet.
fn may_own_cpus(pod: &Pod, cgroups: &[ObservedContainer]) -> bool {
    pod.ids == ContainerIds::NoSource
        || pod
            .containers
            .iter()
            .any(|container| container.runtime_id.is_some())
        || cgroups.iter().any(|container| container.name.is_some())
}

// === impl Ledger ===

impl Ledger {
    /// Reads the ledger from the cgroups, and takes the missing CPUs.
    pub fn read(observed: &Observed, missing: CpuSet) -> Self {
        let mut ledger = Self {
            offered: observed.offered(&missing),
            excluded: missing.clone(),
            missing,
            ..Self::default()
        };
        for (path, cpus) in &observed.surroundings.outside {
            ledger.exclude(path, cpus);
        }
        for pod in &observed.pods {
            if pod.has_unreadable_record() {
                let PodCgroup {
                    path,
                    record_text,
                    cpuset,
                    ..
                } = &pod.cgroup;
                ledger.note_unreadable(path, record_text.as_deref(), cpuset);
            }
            let containers = pod.containers.iter();
            for container in containers.filter(|one| one.has_unreadable_record()) {
                let ContainerCgroup {
                    path,
                    record_text,
                    cpuset,
                    ..
                } = &container.cgroup;
                ledger.note_unreadable(path, record_text.as_deref(), cpuset);
            }
            ledger.enter(pod);
        }
        ledger.find_overlaps();
        ledger
    }

    /// All exclusive CPUs of the node.
    pub fn exclusive(&self) -> CpuSet {
        union(self.assignments.values().map(PodAssignment::cpus))
    }

    /// The assignment of a pod; empty for a pod without CPUs.
    pub fn of(&self, uid: &str) -> PodAssignment {
        self.assignments.get(uid).cloned().unwrap_or_default()
    }

    /// Adds an assignment, from the kernel or pending. An earlier entry of the container stays, so
    /// that a pending assignment never replaces the kernel's.
    pub fn add_if_missing(&mut self, uid: &str, name: &str, cpus: &CpuSet) {
        let pod = self.assignments.entry(uid.to_owned()).or_default();
        pod.containers
            .entry(name.to_owned())
            .or_insert_with(|| cpus.clone());
    }

    /// Adds the CPUs of a container, or the idle CPUs without a name.
    fn add_entry(&mut self, uid: &str, name: Option<&str>, cpus: &CpuSet) {
        match name {
            Some(name) => self.add_if_missing(uid, name, cpus),
            None => self.add_idle(uid, cpus),
        }
    }

    fn add_idle(&mut self, uid: &str, cpus: &CpuSet) {
        let pod = self.assignments.entry(uid.to_owned()).or_default();
        if pod.idle.is_empty() {
            pod.idle = cpus.clone();
        }
    }

    /// Notes a record that this version can't read.
    ///
    /// It may assign CPUs. With enforcement `cpuset` an assignment shows nowhere else but in the
    /// written set, so nobody else may get any CPU of this set.
    fn note_unreadable(&mut self, path: &str, text: Option<&str>, cpuset: &Cpuset) {
        let Some(Err(error)) = text.map(AssignmentRecord::parse) else {
            return;
        };
        let cpus = cpuset.cpus.union(&cpuset.exclusive);
        let consequence = if cpus.is_empty() {
            String::new()
        } else {
            format!(", and assigns {} to no other container", cpus.in_words())
        };
        self.excluded = self.excluded.union(&cpus);
        self.unreadable_sets.push(cpus);
        let sentence = format!("Pinfold does not change cgroup {path}{consequence}: {error}");
        self.unexplained.push(sentence.clone());
        self.unreadable.push(sentence);
    }

    fn enter(&mut self, pod: &ObservedPod) {
        let uid = &pod.cgroup.uid;
        // With `cpuset`, a container's record is written before the pod's record, and with
        // partitions it is the other way round. After a crash in between, only one of them exists,
        // so both count. CPUs that the pod's record gives to another container are that one's: the
        // container whose record has them, too, has ended, or is to get them.
        let recorded = pod.record.as_ref().map(|record| &record.assignment);
        for (name, cpus) in recorded.into_iter().flat_map(PodAssignment::entries) {
            self.add_entry(uid, name, cpus);
        }
        let of_mates = |name: Option<&str>| {
            let entries = recorded.into_iter().flat_map(PodAssignment::entries);
            union(
                entries
                    .filter(|(mate, _)| *mate != name)
                    .map(|(_, cpus)| cpus),
            )
        };
        let records = pod
            .containers
            .iter()
            .filter_map(|container| container.record.as_ref());
        for (name, cpus) in records.flat_map(|record| record.assignment.entries()) {
            let own = cpus.difference(&of_mates(name));
            if !own.is_empty() {
                self.add_entry(uid, name, &own);
            }
        }
        self.note_choices(pod);
        for container in &pod.containers {
            if container.has_bound_memory()
                && let Some(name) = &container.name
            {
                let numa = container.cgroup.memory.numa.clone();
                let memory = self.memory.entry(uid.clone()).or_default();
                memory.insert(name.clone(), numa);
            }
        }
        // An unrecorded partition counts as the assignment of its container, provided that the
        // container is known.
        let containers = pod.containers.iter();
        let holders = containers.filter(|one| !one.cgroup.cpuset.exclusive.is_empty());
        for container in holders {
            let cpuset = &container.cgroup.cpuset;
            let assigned = self.of(uid).cpus();
            // The CPUs of an unreadable record are excluded already.
            let is_recorded = container.cgroup.record_text.is_some();
            if cpuset.exclusive.is_subset(&assigned) || is_recorded {
                continue;
            }
            let unrecorded_partition =
                cpuset.partition.is_live() && cpuset.exclusive.is_disjoint(&assigned);
            match &container.name {
                Some(name) if unrecorded_partition => {
                    self.add_if_missing(uid, name, &cpuset.exclusive);
                }
                None if unrecorded_partition && container.idle => {
                    self.add_idle(uid, &cpuset.exclusive);
                }
                _ => self.exclude(&container.cgroup.path, &cpuset.exclusive),
            }
        }
        let held = &pod.cgroup.cpuset.exclusive;
        if held.is_empty() || pod.record.is_some() {
            return;
        }
        let unrecorded = held
            .difference(&self.of(uid).cpus())
            .difference(&self.excluded);
        if !unrecorded.is_empty() {
            self.exclude(&pod.cgroup.path, &unrecorded);
        }
    }

    /// Notes which of the pod's CPUs the kubelet has chosen, according to its records.
    fn note_choices(&mut self, pod: &ObservedPod) {
        let Some(assignment) = self.assignments.get_mut(&pod.cgroup.uid) else {
            return;
        };
        let of_containers = pod.containers.iter().map(|container| &container.record);
        for record in of_containers.chain([&pod.record]).flatten() {
            assignment.inherit_choices(&record.assignment);
        }
    }

    /// Reports exclusive CPUs without any record, and excludes them from assignments.
    fn exclude(&mut self, path: &str, cpus: &CpuSet) {
        self.excluded = self.excluded.union(cpus);
        self.held_by_others = self.held_by_others.union(cpus);
        self.unexplained.push(format!(
            "cgroup {path} has exclusive {} that Pinfold did not assign: Pinfold does not change the cgroup",
            cpus.in_words()
        ));
    }

    fn find_overlaps(&mut self) {
        let all = self.assignments.values().flat_map(PodAssignment::entries);
        if all.map(|(_, cpus)| cpus.len()).sum::<usize>() == self.exclusive().len() {
            return;
        }
        let label = |uid: &str, name: Option<&str>| match name {
            Some(name) => format!("container {name} of pod {uid}"),
            None => format!("the idle siblings of pod {uid}"),
        };
        let assignments: Vec<(String, &CpuSet)> = self
            .assignments
            .iter()
            .flat_map(|(uid, pod)| {
                pod.entries()
                    .map(move |(name, cpus)| (label(uid, name), cpus))
            })
            .collect();
        let mut overlaps = Vec::new();
        for (index, (one, cpus)) in assignments.iter().enumerate() {
            for (other, more) in assignments.iter().skip(index + 1) {
                let both = cpus.intersection(more);
                if !both.is_empty() {
                    let both = both.in_words();
                    overlaps.push(format!(
                        "the records assign {both} to both {one} and {other}"
                    ));
                }
            }
        }
        self.unexplained.extend(overlaps);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::cgroup::{Partition, PartitionKind};
    use crate::pin::EarlierSettings;

    fn pod(ids: ContainerIds, runtime_id: Option<&str>) -> Pod {
        let main = Container {
            name: "main".to_owned(),
            runtime_id: runtime_id.map(str::to_owned),
            ..Container::default()
        };
        Pod {
            uid: Some("uid".into()),
            ids,
            containers: vec![main],
            ..Pod::default()
        }
    }

    /// The observed pod with the given cgroups. `marked` names the cgroup with a record of
    /// container `main`.
    fn observe(pod: &Pod, cgroups: &[&str], marked: Option<(&str, bool)>) -> ObservedPod {
        let mark = |by_id| {
            let mut mark = AssignmentRecord::new(EarlierSettings::default());
            mark.assignment
                .containers
                .insert("main".to_owned(), "1".parse().unwrap());
            mark.by_id = by_id;
            mark.text()
        };
        let container = |id: &&str| ContainerCgroup {
            path: format!("kubepods/poduid/{id}"),
            id: (*id).to_owned(),
            record_text: marked
                .filter(|(marked, _)| marked == id)
                .map(|(_, by_id)| mark(by_id)),
            ..ContainerCgroup::default()
        };
        let containers = cgroups.iter().map(container).collect();
        let cgroup = PodCgroup {
            uid: "uid".to_owned(),
            containers,
            ..PodCgroup::default()
        };
        let scan = Scan {
            pods: vec![cgroup],
            ..Scan::default()
        };
        let (mut observed, _) = Observed::new(scan, &crate::pod::recognized([pod.clone()]));
        observed.pods.remove(0)
    }

    fn names(pod: &Pod, cgroups: &[&str], marked: Option<(&str, bool)>) -> Vec<Option<String>> {
        observe(pod, cgroups, marked)
            .containers
            .into_iter()
            .map(|container| container.name)
            .collect()
    }

    fn main() -> Option<String> {
        Some("main".to_owned())
    }

    #[test]
    fn an_only_cgroup_is_the_only_container_where_nobody_will_ever_tell() {
        use ContainerIds::{Awaited, NoSource, Runtime};
        assert_eq!(names(&pod(NoSource, None), &["c0ffee"], None), [main()]);
        assert_eq!(
            names(&pod(NoSource, None), &["c0ffee", "pause"], None),
            [None, None]
        );
        // Before a status or the runtime tells ids, the only cgroup is the sandbox's.
        for ids in [Awaited, Runtime] {
            assert_eq!(names(&pod(ids, None), &["pause"], None), [None]);
        }
    }

    #[test]
    fn a_status_names_its_cgroup_and_no_other() {
        let pod = pod(ContainerIds::Awaited, Some("c0ffee"));
        assert_eq!(names(&pod, &["c0ffee", "pause"], None), [main(), None]);
        assert_eq!(names(&pod, &["pause"], None), [None]);
    }

    #[test]
    fn a_record_for_an_id_counts_until_somebody_says_otherwise() {
        use ContainerIds::{Awaited, Runtime};
        assert_eq!(
            names(
                &pod(Awaited, None),
                &["c0ffee", "pause"],
                Some(("c0ffee", true))
            ),
            [main(), None]
        );
        assert_eq!(
            names(
                &pod(Awaited, Some("new")),
                &["c0ffee"],
                Some(("c0ffee", true))
            ),
            [None]
        );
        assert_eq!(
            names(&pod(Runtime, None), &["c0ffee"], Some(("c0ffee", true))),
            [None]
        );
    }

    #[test]
    fn a_record_of_an_earlier_version_may_lie_on_the_sandbox() {
        use ContainerIds::{Awaited, NoSource, Runtime};
        for ids in [Awaited, Runtime] {
            let pod = pod(ids, None);
            assert_eq!(names(&pod, &["pause"], Some(("pause", false))), [None]);
            assert!(!observe(&pod, &["pause"], Some(("pause", false))).may_own_cpus);
        }
        let named = pod(Awaited, Some("c0ffee"));
        assert_eq!(
            names(&named, &["c0ffee", "pause"], Some(("pause", false))),
            [main(), None]
        );
        assert_eq!(
            names(&named, &["c0ffee"], Some(("c0ffee", false))),
            [main()]
        );
        assert_eq!(
            names(&pod(NoSource, None), &["a", "b"], Some(("b", false))),
            [None, main()]
        );
    }

    #[test]
    fn a_pod_begins_with_its_first_container() {
        use ContainerIds::{Awaited, NoSource};
        assert!(!observe(&pod(Awaited, None), &["pause"], None).may_own_cpus);
        assert!(observe(&pod(Awaited, Some("c0ffee")), &["pause"], None).may_own_cpus);
        assert!(observe(&pod(Awaited, None), &["c0ffee"], Some(("c0ffee", true))).may_own_cpus);
        assert!(observe(&pod(NoSource, None), &["a", "b"], None).may_own_cpus);
    }

    #[test]
    fn the_written_sets_of_unreadable_records_are_barred() {
        let cpus = |list: &str| Cpuset {
            cpus: list.parse().unwrap(),
            ..Cpuset::default()
        };
        let later = Some(r#"{"version":2,"claims":[]}"#.to_owned());
        let container = |id: &str, list: &str, record_text: Option<String>| ContainerCgroup {
            path: format!("pod/{id}"),
            id: id.to_owned(),
            cpuset: cpus(list),
            record_text,
            ..ContainerCgroup::default()
        };
        let pod = PodCgroup {
            path: "pod".to_owned(),
            uid: "uid".to_owned(),
            cpuset: cpus("1-5"),
            record_text: Some("damaged".to_owned()),
            containers: vec![
                container("a", "2-3", later.clone()),
                container("b", "7", later),
                container("c", "6", None),
            ],
            ..PodCgroup::default()
        };
        let scan = Scan {
            pods: vec![pod],
            ..Scan::default()
        };
        let (_, ledger) = Observed::new(scan, &[]);
        assert_eq!(ledger.excluded, "1-5,7".parse().unwrap());
        assert_eq!(ledger.unreadable.len(), 3, "{:?}", ledger.unreadable);
        assert_eq!(ledger.unexplained, ledger.unreadable);
        assert!(
            ledger.unreadable[1].contains("CPUs 2-3") && ledger.unreadable[1].contains("version 2")
        );
    }

    #[test]
    fn an_init_container_leaves_the_other_containers_their_cpus() {
        let partition = |id: &str, cpus: &str, partition| ObservedContainer {
            cgroup: ContainerCgroup {
                id: id.to_owned(),
                populated: id != "ended",
                cpuset: Cpuset {
                    exclusive: cpus.parse().unwrap(),
                    partition,
                    ..Cpuset::default()
                },
                ..ContainerCgroup::default()
            },
            name: (!id.is_empty()).then(|| id.to_owned()),
            ..ObservedContainer::default()
        };
        let root = || Partition::Valid(PartitionKind::Root);
        let member = Partition::Valid(PartitionKind::Member);
        let invalid = Partition::Invalid("root invalid".to_owned());
        let pod = ObservedPod {
            containers: vec![
                partition("init", "0", root()),
                partition("side", "1", root()),
                partition("broken", "2", invalid),
                partition("", "3", root()),
                partition("ended", "6", root()),
                partition("new", "", member),
            ],
            ..ObservedPod::default()
        };
        let mut assignment = PodAssignment::default();
        for (name, cpus) in [("side", "1"), ("new", "4"), ("absent", "5"), ("init", "0")] {
            let cpus = cpus.parse().unwrap();
            assignment.containers.insert(name.to_owned(), cpus);
        }
        assert_eq!(pod.partitions_of_others("init"), "1-3,6".parse().unwrap());
        assert_eq!(
            pod.cpus_of_others("init", &assignment),
            "1-4".parse().unwrap()
        );
    }
}
