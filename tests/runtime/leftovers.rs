//! What a container runtime may leave behind on the machine, and how it is removed when all else failed.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::mount::{MntFlags, umount2};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Where shims of any containerd listen, whatever its own folders are.
const SHIM_SOCKETS: &str = "/run/containerd/s";

/// Mount points below a folder, the innermost last.
pub(crate) fn mounts(folder: &Path) -> Vec<String> {
    let text = fs::read_to_string("/proc/self/mounts").unwrap();
    let points = text.lines().filter_map(|line| line.split(' ').nth(1));
    points
        .filter(|point| Path::new(point).starts_with(folder))
        .map(str::to_owned)
        .collect()
}

/// Processes that name a folder on their command line, as shims do.
pub(crate) fn processes(folder: &Path) -> Vec<i32> {
    let folder = folder.to_str().unwrap();
    let names = fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let named = |pid: &i32| {
        fs::read(format!("/proc/{pid}/cmdline"))
            .is_ok_and(|line| String::from_utf8_lossy(&line).contains(folder))
    };
    names
        .filter_map(|name| name.parse().ok())
        .filter(named)
        .collect()
}

/// Sockets of shims.
pub(crate) fn sockets() -> BTreeSet<PathBuf> {
    let Ok(entries) = fs::read_dir(SHIM_SOCKETS) else {
        return BTreeSet::new();
    };
    entries.map(|entry| entry.unwrap().path()).collect()
}

/// The folders in which a cgroup's path may be, one per hierarchy.
fn hierarchies() -> Vec<PathBuf> {
    let text = fs::read_to_string("/proc/self/mounts").unwrap();
    let fields = text.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    fields
        .filter(|fields| fields[2].starts_with("cgroup"))
        .map(|fields| PathBuf::from(fields[1]))
        .collect()
}

/// Cgroups below one, in all hierarchies.
pub(crate) fn cgroups(path: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for root in hierarchies() {
        below(&root.join(path), &mut found);
    }
    found
}

fn below(folder: &Path, into: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            below(&entry.path(), into);
            into.push(entry.path());
        }
    }
}

/// Removes a pod's cgroup in hierarchies that Pinfold doesn't look at: a runtime makes one in each, and the kubelet
/// removes them with the pod. Folders above it that are empty then go too, up to the test's own.
pub(crate) fn remove_elsewhere(path: &str) {
    for root in hierarchies() {
        let mut folder = root.join(path);
        while folder != root && fs::remove_dir(&folder).is_ok() {
            folder.pop();
        }
    }
}

/// Ends shims and containers, and removes mounts and cgroups.
pub(crate) fn end(folder: &Path, pods: &BTreeSet<String>) {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        let mut pids = processes(folder);
        let mut left = Vec::new();
        for pod in pods {
            left.extend(cgroups(pod));
        }
        for cgroup in &left {
            let text = fs::read_to_string(cgroup.join("cgroup.procs")).unwrap_or_default();
            pids.extend(text.lines().filter_map(|line| line.parse::<i32>().ok()));
        }
        for &pid in &pids {
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
        // The innermost come first.
        let stuck = left
            .iter()
            .filter(|cgroup| fs::remove_dir(cgroup).is_err())
            .count();
        if (pids.is_empty() && stuck == 0) || Instant::now() >= deadline {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    for pod in pods {
        remove_elsewhere(pod);
    }
    for point in mounts(folder).iter().rev() {
        let _ = umount2(point.as_str(), MntFlags::MNT_DETACH);
    }
}
