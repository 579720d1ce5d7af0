//! Leftovers of a container runtime on the machine, and the forced removal after a failed test.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::mount::{MntFlags, umount2};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// The folder of the shims' sockets, which every containerd shares.
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

/// Processes with a folder's path on the command line, such as shims.
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

/// The mount points of all cgroup hierarchies.
fn hierarchies() -> Vec<PathBuf> {
    let text = fs::read_to_string("/proc/self/mounts").unwrap();
    let fields = text.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    fields
        .filter(|fields| fields[2].starts_with("cgroup"))
        .map(|fields| PathBuf::from(fields[1]))
        .collect()
}

/// Cgroups below a cgroup, in all hierarchies.
pub(crate) fn cgroups(path: &str) -> Vec<PathBuf> {
    let mut descendants = Vec::new();
    for root in hierarchies() {
        collect_below(&root.join(path), &mut descendants);
    }
    descendants
}

fn collect_below(folder: &Path, descendants: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            collect_below(&entry.path(), descendants);
            descendants.push(entry.path());
        }
    }
}

/// Removes a pod's cgroup in the hierarchies that Pinfold does not use, because a runtime makes one
/// in each, and the kubelet removes all of them with the pod. Empty parent folders go too, up to
/// the test's folder.
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
        // The list has children before parents.
        let remaining = left
            .iter()
            .filter(|cgroup| fs::remove_dir(cgroup).is_err())
            .count();
        if (pids.is_empty() && remaining == 0) || Instant::now() >= deadline {
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
