//! The real kernel: whether a test may use it, cgroups of the test's own, and processes in them,
//! started as a runtime starts them.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use pinfold::cpu::CpuSet;
use pinfold::host::cgroup::{Cgroups, Quota};
use pinfold::host::netns::Netns;
use pinfold::host::spawn::{Launcher, Process, Spawn, Stderr};

/// The whole machine shares the CPUs and the lock on the hierarchy, so only one test of a program
/// uses them at a time.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// A number for each tree of the test program.
static TREES: AtomicU32 = AtomicU32::new(0);

/// The right to use the kernel, held until dropped.
pub(crate) struct Kernel {
    _turn: MutexGuard<'static, ()>,
    pub(crate) cgroups: Cgroups,
    pub(crate) online: CpuSet,
}

/// The kernel, where `PINFOLD_KERNEL_TESTS=1` allows the kernel tests. Otherwise `None`, and a line
/// on stderr names the test.
///
/// On an allowed machine, a missing requirement is a failure, because a skipped check must not look
/// like one that passed.
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

    /// All CPUs but the last. If they are reserved, exactly one is left for assignments.
    pub(crate) fn all_but_one(&self) -> CpuSet {
        self.online.iter().take(self.online.len() - 1).collect()
    }

    /// The highest CPU.
    pub(crate) fn last(&self) -> CpuSet {
        self.online.difference(&self.all_but_one())
    }

    /// A test's tree, made as the kubelet's cgroupfs driver makes one.
    pub(crate) fn tree(&self) -> Tree<'_> {
        self.tree_named("kubepods", &["burstable", "besteffort"])
    }

    /// A test's tree with the given QoS classes.
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

    /// The effective CPUs of a cgroup.
    pub(crate) fn effective(&self, path: &str) -> CpuSet {
        self.cgroups.cpuset(path).unwrap().effective
    }

    /// The kernel's text for the partition of a cgroup.
    pub(crate) fn partition(&self, path: &str) -> String {
        self.cgroups.partition(path).unwrap().to_string()
    }

    /// The exclusive CPUs of a cgroup.
    pub(crate) fn exclusive(&self, path: &str) -> CpuSet {
        self.cgroups.exclusive(path).unwrap()
    }

    /// Writes a file of a cgroup as another program would. Returns whether the kernel accepted the
    /// text.
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

    /// The processes in a cgroup and in all cgroups below, in the cpuset hierarchy: the cgroup, the process id and the
    /// program's name.
    pub(crate) fn members(&self, path: &str) -> Vec<(String, u32, String)> {
        let dir = self.cgroups.root().join(path);
        let procs = fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default();
        let mut members: Vec<_> = procs
            .lines()
            .filter_map(|line| line.parse().ok())
            .map(|pid: u32| {
                let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
                (path.to_owned(), pid, name.trim().to_owned())
            })
            .collect();
        for child in fs::read_dir(&dir).into_iter().flatten().flatten() {
            if child.path().is_dir() {
                let name = child.file_name();
                members.extend(self.members(&format!("{path}/{}", name.to_string_lossy())));
            }
        }
        members
    }

    /// Writes `cpuset.cpus` as another program would, without Pinfold's own code.
    pub(crate) fn write_cpus(&self, path: &str, cpus: &CpuSet) {
        fs::write(
            self.cgroups.root().join(path).join("cpuset.cpus"),
            cpus.to_string(),
        )
        .unwrap();
    }
}

/// A tree of pods for a test, with the processes inside. The drop removes everything, even after a
/// panic.
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

    pub(crate) fn make(&self, path: &str) -> String {
        self.kernel
            .cgroups
            .create(path)
            .unwrap_or_else(|error| panic!("{path}: {error:?}"));
        path.to_owned()
    }

    /// Starts a process that runs in a cgroup from its first instruction, and returns its id.
    pub(crate) fn start(&mut self, path: &str) -> u32 {
        self.start_in(path, None)
    }

    /// As `start`, in a network namespace of its own.
    pub(crate) fn start_in(&mut self, path: &str, network: Option<&Netns>) -> u32 {
        self.spawn(
            path,
            Spawn {
                program: "/bin/sleep".into(),
                args: vec!["600".into()],
                env: BTreeMap::new(),
                cgroup_procs: Vec::new(),
                netns: network.cloned(),
                stderr: Stderr::File("/dev/null".into()),
            },
        )
    }

    /// Starts a program in a cgroup, and returns its process id. `spawn.cgroup_procs` is
    /// overwritten with the cgroup's files.
    pub(crate) fn spawn(&mut self, path: &str, mut spawn: Spawn) -> u32 {
        spawn.cgroup_procs = self.kernel.cgroups.procs_files(path);
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

    /// Ends the processes in a cgroup, and removes it with everything below.
    pub(crate) fn remove(&mut self, path: &str) {
        let below = |other: &String| other == path || other.starts_with(&format!("{path}/"));
        // A dropped process is killed; the drop waits for the end.
        self.processes.retain(|other, _| !below(other));
        remove_cgroup(self.kernel, path).unwrap_or_else(|report| panic!("{report}"));
    }
}

impl Drop for Tree<'_> {
    fn drop(&mut self) {
        self.processes.clear();
        // After a panic, a program that the test itself started may still be inside.
        for (_, pid, _) in self.kernel.members(&self.top) {
            // Process 0 stands for a process outside this PID namespace, and a signal to 0 would reach this test program.
            if pid != 0 && pid != std::process::id() {
                let _ = kill(Pid::from_raw(pid.cast_signed()), Signal::SIGKILL);
            }
        }
        if let Err(report) = remove_cgroup(self.kernel, &self.top) {
            // A second panic would end the whole test program.
            assert!(std::thread::panicking(), "{report}");
            eprintln!("{report}");
        }
    }
}

/// Removes a cgroup with everything below. The kernel may count a dead process for a moment, so the
/// removal is repeated for 30 s after the first failure. The first attempt alone may take longer
/// where the tree has hundreds of cgroups.
fn remove_cgroup(kernel: &Kernel, path: &str) -> Result<(), String> {
    let mut deadline = None;
    while let Err(error) = kernel.cgroups.remove(path) {
        let now = Instant::now();
        if now > *deadline.get_or_insert(now + Duration::from_secs(30)) {
            let members = kernel.members(path);
            return Err(format!(
                "{path} can't be removed: {error:?}; inside are {members:?}"
            ));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
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
