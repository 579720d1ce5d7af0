//! [`FakeKernel`]: cgroups in memory, for unit tests of what the agent reads, and when.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Context as _;

use super::changes::CgroupChanges;
use super::kernel::Kernel;
use crate::cpu::CpuSet;
use crate::host::cgroup::{
    AncestorCgroup, ContainerCgroup, Cpuset, MissingCpus, PodCgroup, PodSurroundings,
};
use crate::pin::{AppliedStep, Step};

/// The cgroups of some pods, each with one container, and what was read of them.
#[derive(Default)]
pub(super) struct FakeKernel {
    pub(super) pods: RefCell<BTreeMap<String, PodCgroup>>,
    pub(super) above: RefCell<Cpuset>,
    reads: RefCell<Vec<String>>,
    /// After how many pauses the kernel returns all CPUs to the cgroups above; 0 for never.
    pub(super) returns_after: Cell<usize>,
    /// How many pauses there were.
    pub(super) pauses: Cell<usize>,
}

pub(super) fn set(list: &str) -> CpuSet {
    list.parse().unwrap()
}

// === impl FakeKernel ===

impl FakeKernel {
    pub(super) fn with_pods(uids: &[&str]) -> Self {
        let kernel = Self::default();
        uids.iter().for_each(|uid| kernel.add(uid));
        kernel
    }

    pub(super) fn add(&self, uid: &str) {
        let path = format!("kubepods/pod{uid}");
        let container = ContainerCgroup {
            path: format!("{path}/c"),
            id: "c".to_owned(),
            populated: true,
            ..ContainerCgroup::default()
        };
        let pod = PodCgroup {
            path: path.clone(),
            uid: uid.to_owned(),
            containers: vec![container],
            ..PodCgroup::default()
        };
        self.pods.borrow_mut().insert(path, pod);
    }

    pub(super) fn change(&self, uid: &str, change: impl FnOnce(&mut Cpuset)) {
        let mut pods = self.pods.borrow_mut();
        let pod = pods.get_mut(&format!("kubepods/pod{uid}")).unwrap();
        change(&mut pod.containers[0].cpuset);
    }

    fn cpuset_of(&self, path: &str) -> Option<(String, Cpuset)> {
        let pods = self.pods.borrow();
        let mut cgroups = pods.values().flat_map(|pod| {
            let containers = pod.containers.iter().map(|one| (&one.path, &one.cpuset));
            containers.chain([(&pod.path, &pod.cpuset)])
        });
        let found = cgroups.find(|(other, _)| *other == path);
        found.map(|(path, cpuset)| (path.clone(), cpuset.clone()))
    }

    pub(super) fn take_reads(&self) -> String {
        self.reads.take().join(" ")
    }
}

impl Kernel for FakeKernel {
    fn surroundings(&self) -> anyhow::Result<PodSurroundings> {
        Ok(PodSurroundings {
            above: vec![AncestorCgroup {
                path: "kubepods".to_owned(),
                cpuset: self.above.borrow().clone(),
                ..AncestorCgroup::default()
            }],
            ..PodSurroundings::default()
        })
    }

    fn pod_paths(&self) -> anyhow::Result<Vec<(String, String)>> {
        self.reads.borrow_mut().push("list".to_owned());
        let pods = self.pods.borrow();
        let paths = pods.values().map(|pod| (pod.path.clone(), pod.uid.clone()));
        Ok(paths.collect())
    }

    fn pod(&self, path: &str, uid: &str) -> anyhow::Result<Option<PodCgroup>> {
        self.reads.borrow_mut().push(uid.to_owned());
        Ok(self.pods.borrow().get(path).cloned())
    }

    fn find_pod(&self, uid: &str) -> anyhow::Result<Option<String>> {
        let path = format!("kubepods/pod{uid}");
        Ok(self.pods.borrow().contains_key(&path).then_some(path))
    }

    fn online(&self) -> CpuSet {
        set("0-3")
    }

    fn pause(&self) -> bool {
        std::thread::sleep(Duration::from_millis(1));
        self.pauses.set(self.pauses.get() + 1);
        if self.returns_after.get() == 1 {
            self.above.borrow_mut().effective = self.online();
        }
        let left = self.returns_after.get().saturating_sub(1);
        self.returns_after.set(left);
        true
    }

    fn missing_cpus(&self, live: &CpuSet) -> anyhow::Result<MissingCpus> {
        let shared = self.above.borrow().effective.clone();
        if shared.is_empty() {
            return Ok(MissingCpus::default());
        }
        Ok(MissingCpus {
            all: self.online().difference(&shared).difference(live),
            held: CpuSet::new(),
        })
    }

    fn cpuset(&self, path: &str) -> anyhow::Result<Cpuset> {
        if path == "kubepods" {
            return Ok(self.above.borrow().clone());
        }
        self.reads.borrow_mut().push(path.replace("kubepods/", ""));
        let found = self.cpuset_of(path).map(|(_, cpuset)| cpuset);
        found.with_context(|| format!("no cgroup {path}"))
    }

    fn effective(&self, path: &str) -> anyhow::Result<Option<CpuSet>> {
        let found = self.cpuset_of(path);
        Ok(found.map(|(_, cpuset)| cpuset.effective))
    }

    fn record_text(&self, _: &str) -> anyhow::Result<Option<String>> {
        Ok(None)
    }

    fn exists(&self, path: &str) -> bool {
        self.pods.borrow().contains_key(path)
    }

    /// The tests name the changes themselves.
    fn changes(&self) -> CgroupChanges {
        CgroupChanges::default()
    }

    fn workqueue_cpus(&self) -> Option<CpuSet> {
        None
    }

    fn apply(&self, _: Vec<Step>, _: &mut dyn FnMut(&Step) -> bool) -> Vec<AppliedStep> {
        Vec::new()
    }
}
