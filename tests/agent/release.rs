//! `pinfold release` hands everything back.

use std::fs;
use std::os::unix::fs::symlink;
use std::process::Output;

use pinfold::cpu::CpuSet;

use crate::agent::{Manifests, Settings, best_effort, in_force, pinfold, worker};
use crate::kernel::{allowed, kernel_tests};

pub(crate) fn release(tree: &str, more: &[&str]) -> (Option<i32>, String, String) {
    let Output {
        status,
        stdout,
        stderr,
    } = pinfold()
        .args(["release", "--pod-cgroup", tree])
        .args(more)
        .output()
        .unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (status.code(), text(stdout), text(stderr))
}

#[test]
fn release_restores_every_value() {
    let Some(kernel) = kernel_tests() else { return };
    let mut tree = kernel.tree();
    let pods = Manifests::new();
    pods.put("worker.yaml", &worker("worker-0", "worker-uid", 1));
    pods.put("web.yaml", &best_effort("web", "web-uid"));
    let web_pod = tree.pod("besteffort", "web-uid");
    let web = tree.container(&web_pod, "web1");
    let pod = tree.pod("", "worker-uid");
    let main = tree.container(&pod, "main1");
    let paths = [&web_pod, &web, &pod, &main];
    // The values are written on both cgroup versions, so that the release has exact values to restore.
    for path in paths {
        kernel.write_cpus(path, &kernel.online);
        kernel.set_quota(path, 1);
    }
    let pids = [tree.start(&main), tree.start(&web)];
    let state = || -> Vec<(CpuSet, CpuSet, Option<u64>, Option<String>)> {
        let values = |path: &&String| {
            let cpus = kernel.cgroups.cpuset(path).unwrap();
            (
                cpus.cpus,
                cpus.effective,
                kernel.quota(path),
                kernel.cgroups.assignment_record(path).unwrap(),
            )
        };
        paths.iter().map(values).collect()
    };
    let before = state();
    let agent = Settings::new(&tree.path, &pods, &kernel.all_but_one()).start();
    agent.eventually("the worker is pinned", |status| {
        in_force(status, "worker-0")
            && kernel.quota(&pod).is_none()
            && allowed(pids[1]) == kernel.all_but_one()
    });

    let (code, out, error) = release(&tree.path, &[]);
    assert_eq!(
        (code, out.as_str()),
        (Some(2), ""),
        "not while an agent runs"
    );
    assert!(
        error.contains("another pinfold") && error.contains("stop it first"),
        "{error}"
    );
    agent.stop();

    let pinned = state();
    assert_ne!(pinned, before);
    let (code, out, error) = release(&tree.path, &["--dry-run"]);
    assert_eq!(code, Some(0), "{error}");
    assert!(
        out.contains(&main) && out.contains("would be done"),
        "{out}"
    );
    assert_eq!(state(), pinned, "a dry run changes no file");

    let (code, out, error) = release(&tree.path, &["-o", "json"]);
    assert_eq!(code, Some(0), "{error}");
    let answer: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!(answer["dryRun"], false);
    assert!(
        answer["steps"]
            .as_array()
            .unwrap()
            .iter()
            .all(|step| step["error"].is_null()),
        "{out}"
    );
    assert_eq!(state(), before, "every file has the earlier value");
    assert_eq!(allowed(pids[0]), kernel.online);

    let (code, out, _) = release(&tree.path, &[]);
    assert_eq!((code, out.as_str()), (Some(0), "nothing is pinned here\n"));
}

#[test]
fn release_removes_only_monitoring_groups_of_pinfold() {
    let Some(kernel) = kernel_tests() else { return };
    let tree = kernel.tree();
    // The tree of the machine without the resctrl groups.
    let root = tempfile::tempdir().unwrap();
    let groups = root.path().join("sys/fs/resctrl/mon_groups");
    for group in ["theirs", "pinfold-uid-main"] {
        fs::create_dir_all(groups.join(group)).unwrap();
    }
    symlink("/proc", root.path().join("proc")).unwrap();
    symlink("/sys/devices", root.path().join("sys/devices")).unwrap();
    let names = || {
        let entries = fs::read_dir(&groups).unwrap();
        let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
        names.sort_unstable();
        names
    };
    let more = ["--root-dir", root.path().to_str().unwrap()];
    let (code, out, error) = release(&tree.path, &[&more[..], &["--dry-run"]].concat());
    assert_eq!(code, Some(0), "{error}");
    assert!(
        out.contains("remove monitoring group pinfold-uid-main\n"),
        "{out}"
    );
    assert_eq!(names(), ["pinfold-uid-main", "theirs"]);
    let (code, out, error) = release(&tree.path, &[&more[..], &["-o", "json"]].concat());
    assert_eq!(code, Some(0), "{error}");
    let answer: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!(
        answer["monitoringGroups"],
        serde_json::json!(["pinfold-uid-main"]),
        "{out}"
    );
    assert_eq!(names(), ["theirs"]);
}
