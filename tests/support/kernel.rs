//! The real kernel: whether a test may use it, cgroups of its own, and processes in them as a runtime starts them.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use pinfold::cpu::CpuSet;
use pinfold::host::cgroup::{Cgroups, Quota};
use pinfold::host::netns::Netns;
use pinfold::host::spawn::{Launcher, Process, Spawn, Stderr};

/// CPUs and the lock on the hierarchy are the machine's: one test of this program at a time uses them.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Numbers the trees of this program.
static TREES: AtomicU32 = AtomicU32::new(0);

/// The right to use the kernel, while it is held.
pub(crate) struct Kernel {
    _turn: MutexGuard<'static, ()>,
    pub(crate) cgroups: Cgroups,
    pub(crate) online: CpuSet,
}

/// The kernel, where `PINFOLD_KERNEL_TESTS=1` says that this machine is meant for it; else a line that names the test.
///
/// Once it is meant for it, what lacks is a failure: a check that was not made must not look like one that passed.
pub(crate) fn kernel_tests() -> Option<Kernel> {
    if !super::gate::meant_for_this_machine("root, cgroups with cpuset and two CPUs") {
        return None;
    }
    let cgroups = Cgroups::detect(Path::new("/sys/fs/cgroup")).unwrap_or_else(|error| {
        panic!("PINFOLD_KERNEL_TESTS=1 wants a cgroup hierarchy with cpuset: {error}")
    });
    let online = cgroups.all_cpus().unwrap();
    assert!(
        online.len() >= 2,
        "PINFOLD_KERNEL_TESTS=1 wants two CPUs or more, here is {online}"
    );
    let turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    Some(Kernel {
        _turn: turn,
        cgroups,
        online,
    })
}

// === impl Kernel ===

impl Kernel {
    /// The lowest CPU.
    pub(crate) fn first(&self) -> CpuSet {
        self.online.iter().take(1).collect()
    }

    /// All but one CPU: as reserved ones they leave exactly one to be given.
    pub(crate) fn all_but_one(&self) -> CpuSet {
        self.online.iter().take(self.online.len() - 1).collect()
    }

    /// The highest CPU.
    pub(crate) fn last(&self) -> CpuSet {
        self.online.difference(&self.all_but_one())
    }

    /// A tree of our own, made as the kubelet's cgroupfs driver makes it.
    pub(crate) fn tree(&self) -> Tree<'_> {
        self.tree_named("kubepods", &["burstable", "besteffort"])
    }

    /// A tree of our own, with these QoS classes.
    pub(crate) fn tree_named(&self, name: &str, classes: &[&str]) -> Tree<'_> {
        let number = TREES.fetch_add(1, Ordering::Relaxed);
        let top = format!("pinfold-test-{}-{number}", std::process::id());
        let path = format!("{top}/{name}");
        let tree = Tree {
            kernel: self,
            top,
            path,
            launcher: Launcher::new().unwrap(),
            processes: BTreeMap::new(),
        };
        self.cgroups.create(&tree.top).unwrap();
        self.cgroups.create(&tree.path).unwrap();
        for class in classes {
            self.cgroups
                .create(&format!("{}/{class}", tree.path))
                .unwrap();
        }
        tree
    }

    /// `cpuset.cpus` as written.
    pub(crate) fn written(&self, path: &str) -> CpuSet {
        self.cgroups.cpuset(path).unwrap().cpus
    }

    /// What is in force.
    pub(crate) fn effective(&self, path: &str) -> CpuSet {
        self.cgroups.cpuset(path).unwrap().effective
    }

    /// What the kernel says of a cgroup's partition.
    pub(crate) fn partition(&self, path: &str) -> String {
        self.cgroups.partition(path).unwrap().to_string()
    }

    /// What a cgroup holds as exclusive.
    pub(crate) fn exclusive(&self, path: &str) -> CpuSet {
        self.cgroups.exclusive(path).unwrap()
    }

    /// Writes a file of a cgroup as somebody else would; says whether the kernel took it.
    pub(crate) fn write(&self, path: &str, file: &str, text: &str) -> bool {
        fs::write(self.cgroups.root().join(path).join(file), text).is_ok()
    }

    /// The CPU limit in microseconds per period.
    pub(crate) fn quota(&self, path: &str) -> Option<u64> {
        self.cgroups
            .quota(path)
            .unwrap()
            .and_then(|quota| quota.quota)
    }

    /// Writes a limit of whole CPUs, as a runtime does.
    pub(crate) fn set_quota(&self, path: &str, cpus: u64) {
        self.cgroups
            .set_quota(
                path,
                Quota {
                    quota: Some(cpus * 100_000),
                    period: 100_000,
                },
            )
            .unwrap_or_else(|error| panic!("{path}: {error:?}"));
    }

    /// Writes `cpuset.cpus` as somebody else would, past Pinfold's own code.
    pub(crate) fn write_cpus(&self, path: &str, cpus: &CpuSet) {
        fs::write(
            self.cgroups.root().join(path).join("cpuset.cpus"),
            cpus.to_string(),
        )
        .unwrap();
    }
}

/// A pods' tree of our own, with the processes in it; all gone when it is dropped, also by a panic.
pub(crate) struct Tree<'a> {
    kernel: &'a Kernel,
    top: String,
    pub(crate) path: String,
    launcher: Launcher,
    processes: BTreeMap<String, Vec<Process>>,
}

// === impl Tree ===

impl Tree<'_> {
    /// Makes a pod's cgroup, as the kubelet does; `class` is empty for a Guaranteed pod.
    pub(crate) fn pod(&self, class: &str, uid: &str) -> String {
        let slash = if class.is_empty() { "" } else { "/" };
        self.make(&format!("{}{slash}{class}/pod{uid}", self.path))
    }

    /// Makes a container's cgroup, as a runtime does.
    pub(crate) fn container(&self, pod: &str, id: &str) -> String {
        self.make(&format!("{pod}/{id}"))
    }

    /// Makes a cgroup.
    pub(crate) fn make(&self, path: &str) -> String {
        self.kernel
            .cgroups
            .create(path)
            .unwrap_or_else(|error| panic!("{path}: {error:?}"));
        path.to_owned()
    }

    /// Starts a process that lives in a cgroup from its first instruction on, and returns its id.
    pub(crate) fn start(&mut self, path: &str) -> u32 {
        self.start_in(path, None)
    }

    /// The same, in a network namespace of its own.
    pub(crate) fn start_in(&mut self, path: &str, network: Option<&Netns>) -> u32 {
        let spawn = Spawn {
            program: "/bin/sleep".into(),
            args: vec!["600".into()],
            env: BTreeMap::new(),
            cgroup_procs: self.kernel.cgroups.procs_files(path),
            netns: network.cloned(),
            stderr: Stderr::Null,
        };
        let process = self
            .launcher
            .spawn(spawn)
            .unwrap_or_else(|error| panic!("{path}: {error:?}"));
        let pid = process.pid();
        self.processes
            .entry(path.to_owned())
            .or_default()
            .push(process);
        pid
    }

    /// Ends what runs in a cgroup and removes it, with all below it.
    pub(crate) fn remove(&mut self, path: &str) {
        let below = |other: &String| other == path || other.starts_with(&format!("{path}/"));
        // Dropping a process kills it and waits for its end.
        self.processes.retain(|other, _| !below(other));
        let deadline = Instant::now() + Duration::from_secs(5);
        // The kernel may count a dead process for a moment longer.
        while let Err(error) = self.kernel.cgroups.remove(path) {
            assert!(
                Instant::now() < deadline,
                "{path} can't be removed: {error:?}"
            );
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Tree<'_> {
    fn drop(&mut self) {
        self.processes.clear();
        let deadline = Instant::now() + Duration::from_secs(5);
        while self.kernel.cgroups.remove(&self.top).is_err() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// The CPUs on which a process may run, by its own status.
pub(crate) fn allowed(pid: u32) -> CpuSet {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let list = text
        .lines()
        .find_map(|line| line.strip_prefix("Cpus_allowed_list:"))
        .unwrap();
    list.trim().parse().unwrap()
}
