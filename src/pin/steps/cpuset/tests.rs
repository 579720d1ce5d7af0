//! This planner against a model of the kernel's plain cpuset rules, for both cgroup versions.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::super::{plan, release};
use crate::cpu::CpuSet;
use crate::host::cgroup::{
    AncestorCgroup, CgroupVersion, ContainerCgroup, Cpuset, PodCgroup, Quota,
};
use crate::pin::{
    AssignmentRecord, Desired, DriftCause, DriftInput, Enforcement, Ledger, Observed, Reason, Scan,
    Step, drift,
};

const ONLINE: &str = "0-7";

fn set(list: &str) -> CpuSet {
    list.parse().unwrap()
}

/// The kernel's values for one cgroup.
#[derive(Debug, Clone, Default, PartialEq)]
struct CgroupValues {
    cpus: CpuSet,
    quota: Option<Quota>,
    mark: Option<String>,
}

/// A kernel with pods and containers as its two levels. The model refuses the same writes as the real kernel.
#[derive(Debug, Clone)]
struct CgroupKernel {
    version: CgroupVersion,
    nodes: BTreeMap<String, CgroupValues>,
    /// What each container owns: assigned, and in force.
    owned: BTreeMap<String, CpuSet>,
}

impl CgroupKernel {
    fn new(version: CgroupVersion) -> Self {
        Self {
            version,
            nodes: BTreeMap::new(),
            owned: BTreeMap::new(),
        }
    }

    fn make(&mut self, path: &str) {
        let parent = path.rsplit_once('/').map(|(parent, _)| parent);
        let cpus = match (self.version, parent) {
            // runc copies the parent's set on v1; on v2 a new cgroup has none.
            (CgroupVersion::V1, Some(parent)) => self.nodes[parent].cpus.clone(),
            (CgroupVersion::V1, None) => set(ONLINE),
            (CgroupVersion::V2, _) => CpuSet::new(),
        };
        let quota = Some(Quota {
            quota: Some(100_000),
            period: 100_000,
        });
        self.nodes.insert(
            path.to_owned(),
            CgroupValues {
                cpus,
                quota,
                mark: None,
            },
        );
    }

    fn remove(&mut self, path: &str) {
        self.nodes
            .retain(|other, _| other != path && !other.starts_with(&format!("{path}/")));
        let nodes = &self.nodes;
        self.owned.retain(|other, _| nodes.contains_key(other));
    }

    fn effective(&self, path: &str) -> CpuSet {
        let above = match path.rsplit_once('/') {
            Some((parent, _)) => self.effective(parent),
            None => set(ONLINE),
        };
        let both = self.nodes[path].cpus.intersection(&above);
        if both.is_empty() { above } else { both }
    }

    fn containers(&self) -> impl Iterator<Item = &String> {
        self.nodes.keys().filter(|path| path.contains('/'))
    }

    fn observe(&self) -> (Observed, Ledger) {
        let mut pods: Vec<PodCgroup> = Vec::new();
        for (path, node) in &self.nodes {
            let (cpus, effective) = (node.cpus.clone(), self.effective(path));
            let cpuset = Cpuset {
                cpus,
                effective,
                ..Cpuset::default()
            };
            let (record_text, quota, path) = (node.mark.clone(), node.quota, path.clone());
            if let Some((_, id)) = path.rsplit_once('/') {
                let id = id.to_owned();
                pods.last_mut().unwrap().containers.push(ContainerCgroup {
                    path,
                    id,
                    cpuset,
                    quota,
                    record_text,
                    populated: true,
                    memory: Default::default(),
                    nested: Vec::new(),
                });
            } else {
                pods.push(PodCgroup {
                    uid: path.clone(),
                    path,
                    cpuset,
                    quota,
                    record_text,
                    containers: Vec::new(),
                });
            }
        }
        let known = pods.iter().map(|cgroup| crate::pod::Pod {
            uid: Some(cgroup.uid.clone().into()),
            containers: cgroup
                .containers
                .iter()
                .map(|container| crate::pod::Container {
                    name: container.id.clone(),
                    runtime_id: Some(container.id.clone()),
                    ..Default::default()
                })
                .collect(),
            ..Default::default()
        });
        let known = crate::pod::recognized(known);
        Observed::new(
            Scan {
                pods,
                ..Scan::default()
            },
            &known,
        )
    }

    /// Carries out one step as the kernel would, and checks what must hold at every moment.
    fn step(&mut self, step: &Step) {
        match step {
            Step::Record { path, record: mark } => {
                self.nodes.get_mut(path).unwrap().mark = mark.as_ref().map(AssignmentRecord::text);
            }
            Step::Quota { path, quota } => self.nodes.get_mut(path).unwrap().quota = Some(*quota),
            Step::Cpus { path, cpus, reason } => self.write(path, cpus, *reason),
            Step::Exclusive { .. }
            | Step::Partition { .. }
            | Step::Memory { .. }
            | Step::Narrowed { .. }
            | Step::Make { .. }
            | Step::Remove { .. } => panic!("{step}: neither partitions nor NUMA nodes here"),
        }
        for (owner, cpus) in &self.owned {
            for other in self.containers().filter(|other| *other != owner) {
                let both = self.effective(other).intersection(cpus);
                assert!(
                    both.is_empty(),
                    "{step}: CPUs {both} of {owner} are in reach of {other}"
                );
            }
        }
    }

    fn write(&mut self, path: &str, cpus: &CpuSet, reason: Reason) {
        assert!(!cpus.is_empty(), "{path}: nothing written");
        if self.version == CgroupVersion::V1 {
            if let Some((parent, _)) = path.rsplit_once('/') {
                let above = &self.nodes[parent].cpus;
                assert!(
                    cpus.is_subset(above),
                    "{path}: {cpus} is not within its pod's {above}"
                );
            }
            for (child, node) in &self.nodes {
                if child.starts_with(&format!("{path}/")) {
                    assert!(
                        node.cpus.is_subset(cpus),
                        "{path}: {cpus} leaves out {} of {child}",
                        node.cpus
                    );
                }
            }
        }
        self.nodes.get_mut(path).unwrap().cpus = cpus.clone();
        if path.contains('/') {
            match reason {
                Reason::Own => self.owned.insert(path.to_owned(), cpus.clone()),
                _ => self.owned.remove(path),
            };
        }
    }

    /// Plans and carries out, the first `steps` steps at most.
    fn reconcile(&mut self, desired: &Desired, steps: usize) -> usize {
        let (observed, ledger) = self.observe();
        let plan = plan(&observed, &ledger, desired, Enforcement::Cpuset);
        // If a container has appeared with everybody's CPUs, that is not our step's doing.
        self.owned.clear();
        for step in plan.iter().take(steps) {
            self.step(step);
        }
        plan.len()
    }

    fn settle(&mut self, desired: &Desired) {
        self.reconcile(desired, usize::MAX);
        let (observed, ledger) = self.observe();
        assert_eq!(
            plan(&observed, &ledger, desired, Enforcement::Cpuset),
            Vec::new(),
            "the second plan is not empty"
        );
        for path in self.containers() {
            let (pod, name) = path.split_once('/').unwrap();
            let claim = desired
                .pod(pod)
                .and_then(|plan| plan.assignment.containers.get(name));
            let node = &self.nodes[path];
            match claim {
                Some(claim) => {
                    assert_eq!(self.effective(path), *claim, "{path}");
                    assert_eq!(node.quota.unwrap().quota, None, "{path} keeps its quota");
                }
                None => {
                    assert!(self.effective(path).is_subset(&desired.shared()), "{path}");
                    assert_eq!(node.quota.unwrap().quota, Some(100_000), "{path}");
                }
            }
        }
    }
}

fn desired(claims: &[(&str, &str, &str)]) -> Desired {
    let mut desired = Desired {
        online: set(ONLINE),
        ..Desired::default()
    };
    for (pod, container, cpus) in claims {
        desired
            .pod_mut(pod)
            .assignment
            .containers
            .insert((*container).to_owned(), set(cpus));
        desired.pod_mut(pod).name = Some(crate::pod::ObjectName::new("train", *pod));
    }
    desired
}

fn kernel(version: CgroupVersion, paths: &[&str]) -> CgroupKernel {
    let mut kernel = CgroupKernel::new(version);
    for path in paths {
        kernel.make(path);
    }
    kernel
}

#[test]
fn nothing_owned_nothing_written() {
    for version in [CgroupVersion::V1, CgroupVersion::V2] {
        let mut kernel = kernel(version, &["a", "a/x", "b", "b/y"]);
        assert_eq!(kernel.reconcile(&desired(&[]), usize::MAX), 0);
    }
}

#[test]
fn one_owner_then_none() {
    for version in [CgroupVersion::V1, CgroupVersion::V2] {
        let mut kernel = kernel(version, &["a", "a/sandbox", "a/x", "b", "b/y"]);
        kernel.settle(&desired(&[("a", "x", "2-3")]));
        assert_eq!(kernel.effective("b/y"), set("0-1,4-7"));
        assert_eq!(kernel.effective("a/sandbox"), set("0-1,4-7"));
        kernel.settle(&desired(&[]));
        assert_eq!(kernel.effective("a/x"), set(ONLINE));
        assert_eq!(kernel.effective("b/y"), set(ONLINE));
        assert_eq!(kernel.nodes["a"].mark, None);
    }
}

#[test]
fn two_owners_swap() {
    for version in [CgroupVersion::V1, CgroupVersion::V2] {
        let mut kernel = kernel(version, &["a", "a/x", "b", "b/y"]);
        kernel.settle(&desired(&[("a", "x", "2-3"), ("b", "y", "4-5")]));
        kernel.settle(&desired(&[("a", "x", "4-5"), ("b", "y", "2-3")]));
    }
}

#[test]
fn everything_goes_back() {
    for version in [CgroupVersion::V1, CgroupVersion::V2] {
        let mut kernel = kernel(version, &["a", "a/sandbox", "a/x", "b", "b/y"]);
        let mut wish = desired(&[("a", "x", "2-3")]);
        wish.pod_mut("a").lifts_pod_quota = true;
        kernel.settle(&wish);
        assert_eq!(kernel.nodes["a"].quota.unwrap().quota, None);
        let (observed, _) = kernel.observe();
        // From now on no container owns CPUs, in any order of the release.
        kernel.owned.clear();
        for step in release(&observed, &set(ONLINE), &CpuSet::new()) {
            kernel.step(&step);
        }
        for (path, node) in &kernel.nodes {
            assert_eq!(kernel.effective(path), set(ONLINE), "{path}");
            assert_eq!(node.mark, None, "{path}");
            assert_eq!(node.quota.unwrap().quota, Some(100_000), "{path}");
        }
        let (observed, _) = kernel.observe();
        assert_eq!(release(&observed, &set(ONLINE), &CpuSet::new()), Vec::new());
    }
}

#[test]
fn an_init_container_runs_inside_its_pods_set() {
    for version in [CgroupVersion::V1, CgroupVersion::V2] {
        let mut kernel = kernel(version, &["a", "a/init", "b", "b/y"]);
        let mut wish = desired(&[("a", "x", "2-3"), ("a", "z", "4")]);
        wish.pod_mut("a").init_containers = vec!["init".to_owned()];
        kernel.reconcile(&wish, usize::MAX);
        assert_eq!(kernel.effective("a/init"), set("2-4"));
        assert_eq!(kernel.reconcile(&wish, usize::MAX), 0);
    }
}

#[test]
fn an_init_container_shares_while_its_pods_cpus_are_offline() {
    for version in [CgroupVersion::V1, CgroupVersion::V2] {
        let mut kernel = kernel(version, &["a", "a/init", "b", "b/y"]);
        let mut wish = desired(&[("a", "x", "2-3"), ("b", "y", "5")]);
        wish.pod_mut("a").init_containers = vec!["init".to_owned()];
        kernel.reconcile(&wish, usize::MAX);
        assert_eq!(kernel.effective("a/init"), set("2-3"));
        wish.online = set("0-1,4-7");
        kernel.reconcile(&wish, usize::MAX);
        assert_eq!(kernel.nodes["a/init"].cpus, set("0-1,4,6-7"));
        assert_eq!(kernel.reconcile(&wish, usize::MAX), 0);
    }
}

#[test]
fn a_mark_that_is_not_ours_is_left_alone() {
    let mut kernel = kernel(CgroupVersion::V1, &["a", "a/x", "b", "b/y"]);
    kernel.nodes.get_mut("b/y").unwrap().mark = Some("something else".to_owned());
    kernel.nodes.get_mut("b").unwrap().mark = Some("something else".to_owned());
    let (_, ledger) = kernel.observe();
    assert_eq!(ledger.unexplained.len(), 2);
    kernel.reconcile(&desired(&[("a", "x", "2-3")]), usize::MAX);
    assert_eq!(kernel.nodes["b/y"].cpus, set(ONLINE));
}

#[test]
fn a_pod_nobody_tells_of_keeps_its_lifted_quota() {
    for version in [CgroupVersion::V1, CgroupVersion::V2] {
        let mut kernel = kernel(version, &["a", "a/x"]);
        let mut wish = desired(&[("a", "x", "2-3")]);
        wish.pod_mut("a").lifts_pod_quota = true;
        kernel.settle(&wish);
        // After a restart without its manifest, only the claim in the kernel is known.
        let mut silent = desired(&[("a", "x", "2-3")]);
        silent.pod_mut("a").name = None;
        assert_eq!(kernel.reconcile(&silent, usize::MAX), 0);
        assert_eq!(kernel.nodes["a"].quota.unwrap().quota, None);
    }
}

/// A history: each entry gives or takes containers, or deals the CPUs anew.
#[derive(Debug, Clone)]
enum HistoryEntry {
    Make(u8, u8),
    RemoveContainer(u8, u8),
    RemovePod(u8),
    /// For each of CPUs 1 to 7, the pod and container that shall own it, if any.
    Deal([Option<(u8, u8)>; 7]),
}

fn change() -> impl Strategy<Value = HistoryEntry> {
    let owner = prop::option::of((0..4u8, 0..3u8));
    prop_oneof![
        3 => (0..4u8, 0..3u8).prop_map(|(pod, container)| HistoryEntry::Make(pod, container)),
        1 => (0..4u8, 0..3u8).prop_map(|(pod, container)| HistoryEntry::RemoveContainer(pod, container)),
        1 => (0..4u8).prop_map(HistoryEntry::RemovePod),
        4 => prop::array::uniform7(owner).prop_map(HistoryEntry::Deal),
    ]
}

fn run(version: CgroupVersion, history: &[(HistoryEntry, usize)]) {
    let mut kernel = CgroupKernel::new(version);
    let mut wish = desired(&[]);
    for (change, crash) in history {
        match change {
            HistoryEntry::Make(pod, container) => {
                let (pod, path) = (format!("p{pod}"), format!("p{pod}/c{container}"));
                for path in [pod, path] {
                    if !kernel.nodes.contains_key(&path) {
                        kernel.make(&path);
                    }
                }
            }
            HistoryEntry::RemoveContainer(pod, container) => {
                kernel.remove(&format!("p{pod}/c{container}"));
            }
            HistoryEntry::RemovePod(pod) => {
                kernel.remove(&format!("p{pod}"));
                wish.pods.remove(format!("p{pod}").as_str());
            }
            HistoryEntry::Deal(owners) => {
                wish.pods.clear();
                let pods: BTreeSet<String> = kernel.nodes.keys().cloned().collect();
                for (cpu, owner) in (1..).zip(owners) {
                    let Some((pod, container)) = owner else {
                        continue;
                    };
                    let uid = format!("p{pod}");
                    if pods.contains(&uid) {
                        wish.pod_mut(&uid)
                            .assignment
                            .containers
                            .entry(format!("c{container}"))
                            .or_default()
                            .insert(cpu);
                    }
                }
            }
        }
        // Killed after some steps, then started again: the outcome is the same.
        kernel.reconcile(&wish, *crash);
        kernel.settle(&wish);
    }
}

proptest! {
    #[test]
    fn any_history_keeps_the_rules(history in prop::collection::vec((change(), 0..12usize), 1..12)) {
        run(CgroupVersion::V1, &history);
        run(CgroupVersion::V2, &history);
    }
}

/// Deals CPUs to containers: the pod, the container, the CPU.
fn deal(owners: &[(u8, u8, usize)]) -> HistoryEntry {
    let mut dealt = [None; 7];
    for (pod, container, cpu) in owners {
        dealt[cpu - 1] = Some((*pod, *container));
    }
    HistoryEntry::Deal(dealt)
}

#[test]
fn one_that_waits_for_its_cpus_is_not_let_onto_a_neighbours_by_its_pod() {
    let histories = [
        vec![
            (HistoryEntry::Make(2, 0), 0),
            (HistoryEntry::Make(1, 0), 0),
            (deal(&[(1, 0, 3), (1, 0, 6)]), 0),
            (HistoryEntry::Make(2, 2), 0),
            (deal(&[(2, 2, 3), (2, 0, 6)]), 10),
        ],
        vec![
            (HistoryEntry::Make(0, 0), 0),
            (HistoryEntry::Make(2, 1), 0),
            (deal(&[(0, 0, 2), (0, 0, 3), (0, 0, 4), (0, 0, 5)]), 0),
            (HistoryEntry::Make(2, 0), 0),
            (deal(&[(2, 1, 3), (2, 0, 4)]), 0),
        ],
    ];
    for history in histories {
        run(CgroupVersion::V1, &history);
        run(CgroupVersion::V2, &history);
    }
}

#[test]
fn a_former_owner_that_the_runtime_put_back_gets_the_shared_cpus() {
    let mut kernel = kernel(CgroupVersion::V2, &["p0", "p0/c0", "p1", "p1/c0"]);
    kernel.settle(&desired(&[("p1", "c0", "6-7")]));
    kernel.nodes.get_mut("p0/c0").unwrap().cpus = set("4-5");
    kernel.nodes.get_mut("p0/c0").unwrap().mark = None;
    let (mut observed, ledger) = kernel.observe();
    let wish = desired(&[("p1", "c0", "6-7")]);
    // Such a set may be the container's own setting.
    assert_eq!(plan(&observed, &ledger, &wish, Enforcement::Cpuset), []);
    observed.pods[0].containers[0].given_cpus = Some(set("4-5"));
    let steps = plan(&observed, &ledger, &wish, Enforcement::Cpuset);
    let [
        Step::Record {
            record: Some(record),
            ..
        },
        Step::Cpus { cpus, .. },
    ] = &steps[..]
    else {
        panic!("{steps:?}")
    };
    assert_eq!((&record.before.cpus, cpus), (&CpuSet::new(), &set("0-5")));
    // By chance, the shared CPUs can be the same set.
    observed.pods[0].containers[0].given_cpus = Some(set("0-5"));
    observed.pods[0].containers[0].cgroup.cpuset.cpus = set("0-5");
    observed.pods[0].containers[0].cgroup.cpuset.effective = set("0-5");
    assert_eq!(plan(&observed, &ledger, &wish, Enforcement::Cpuset), []);
}

#[test]
fn an_owner_beyond_the_offer_runs_on_the_rest_without_another_write() {
    let tree = |cpus: &str| AncestorCgroup {
        path: "kubepods".to_owned(),
        cpuset: Cpuset {
            cpus: set(cpus),
            effective: set(cpus),
            ..Cpuset::default()
        },
        ..AncestorCgroup::default()
    };
    let mut kernel = kernel(CgroupVersion::V1, &["a", "a/x", "b", "b/y"]);
    kernel.settle(&desired(&[("a", "x", "4-7")]));
    // An administrator limits the pods to the CPUs 0-5, from the containers up.
    for path in ["a/x", "b/y", "a", "b"] {
        let node = kernel.nodes.get_mut(path).unwrap();
        node.cpus = node.cpus.intersection(&set("0-5"));
    }
    kernel.owned.insert("a/x".to_owned(), set("4-5"));
    let mut wish = desired(&[("a", "x", "4-7")]);
    wish.withheld = set("6-7");
    let observe = |kernel: &CgroupKernel| {
        let (mut observed, mut ledger) = kernel.observe();
        observed.surroundings.above = vec![tree("0-5")];
        observed.surroundings.trees = vec!["kubepods".to_owned()];
        observed.surroundings.sets_are_nested = true;
        ledger.offered = Some(set("0-5"));
        (observed, ledger)
    };
    let (observed, ledger) = observe(&kernel);
    let steps = plan(&observed, &ledger, &wish, Enforcement::Cpuset);
    assert_eq!(steps, Vec::new());
    let nothing = CpuSet::new();
    let input = DriftInput {
        online: &set(ONLINE),
        recently_assigned: &nothing,
        unrecorded: &BTreeSet::new(),
        enforcement: Enforcement::Cpuset,
    };
    let drift = drift(&observed, &ledger, &input);
    let drift: Vec<_> = drift
        .iter()
        .map(|drift| (drift.path.as_str(), drift.cause))
        .collect();
    assert_eq!(drift, [("a/x", DriftCause::Ancestor)]);
    // A release hands back what the tree has.
    for step in release(&observed, &set(ONLINE), &nothing) {
        kernel.step(&step);
        if let Step::Cpus { cpus, .. } = &step {
            assert!(cpus.is_subset(&set("0-5")), "{step}");
        }
    }
    assert_eq!(kernel.nodes["a/x"].cpus, set("0-5"));
}

#[test]
fn cpus_that_return_on_v1_were_offline_and_not_taken_by_another_program() {
    let mut kernel = kernel(CgroupVersion::V1, &["a", "a/x"]);
    kernel.settle(&desired(&[("a", "x", "4-7")]));
    // The kernel takes an offline CPU out of every set, and does not put it back.
    for node in kernel.nodes.values_mut() {
        node.cpus.remove(5);
    }
    let causes = |earlier: Option<&str>| -> Vec<DriftCause> {
        let (mut observed, ledger) = kernel.observe();
        observed.surroundings.above.push(AncestorCgroup {
            path: "kubepods".to_owned(),
            cpuset: Cpuset {
                cpus: set("0-4,6-7"),
                narrowed_from: earlier.map(set),
                ..Cpuset::default()
            },
            ..AncestorCgroup::default()
        });
        let nothing = CpuSet::new();
        let input = DriftInput {
            online: &set(ONLINE),
            recently_assigned: &nothing,
            unrecorded: &BTreeSet::new(),
            enforcement: Enforcement::Cpuset,
        };
        let drifts = drift(&observed, &ledger, &input);
        drifts.iter().map(|drift| drift.cause).collect()
    };
    assert_eq!(causes(Some(ONLINE)), [DriftCause::Offline]);
    assert_eq!(causes(None), [DriftCause::Written]);
}
