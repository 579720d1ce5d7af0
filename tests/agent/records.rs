//! Records: what happens if one can't be read or written, or if an earlier setting can't be restored.

use std::time::Instant;

use pinfold::cpu::CpuSet;
use pinfold::host::cgroup::Quota;
use pinfold::pin::{
    AppliedStep, AssignmentRecord, EarlierSettings, Reason, Step, StepOutcome, apply,
};

use crate::agent::{
    Manifests, Settings, assigned, best_effort, container, in_force, patience, worker, worker_with,
};
use crate::gate;
use crate::kernel::{Kernel, allowed, kernel_tests};
use crate::release::release;

/// Whether the cpuset controller is in a hierarchy of cgroup v1.
fn is_v1(kernel: &Kernel) -> bool {
    kernel.cgroups.root().ends_with("cpuset")
}

/// The kernel, if it has cgroup v1, which refuses writes that cgroup v2 accepts; see [`kernel_tests`].
fn v1_tests() -> Option<Kernel> {
    let kernel = kernel_tests()?;
    if !is_v1(&kernel) {
        gate::leave("cargo test on a machine with cgroup v1", "cgroup v1");
        return None;
    }
    Some(kernel)
}

fn half_a_cpu() -> Quota {
    Quota {
        quota: Some(50_000),
        period: 100_000,
    }
}

fn outcomes(applied: Vec<AppliedStep>) -> Vec<StepOutcome> {
    applied.into_iter().map(|done| done.outcome).collect()
}

/// The text of a cgroup's record.
fn text(kernel: &Kernel, path: &str) -> Option<String> {
    kernel.cgroups.assignment_record(path).unwrap()
}

/// A record that the kernel refuses, because attributes have up to 64 KiB.
fn too_long() -> AssignmentRecord {
    let mut record = AssignmentRecord::new(EarlierSettings::default());
    record.pod = "x".repeat(70_000);
    record
}

#[test]
fn a_container_that_was_not_narrowed_blocks_the_new_owner() {
    let Some(kernel) = kernel_tests() else { return };
    let tree = kernel.tree();
    let (web_pod, pod) = (tree.pod("besteffort", "web-uid"), tree.pod("", "uid"));
    let (web, main) = (
        tree.container(&web_pod, "web"),
        tree.container(&pod, "main"),
    );
    let before = (kernel.written(&web), kernel.written(&main));
    let cpus = |path: &str, cpus: CpuSet, reason| Step::Cpus {
        path: path.to_owned(),
        cpus,
        reason,
    };
    // The record of the container fails, or the record of its pod.
    for recorded in [&web, &web_pod] {
        let plan = vec![
            Step::Record {
                path: recorded.clone(),
                record: Some(too_long()),
            },
            cpus(&web, kernel.first(), Reason::Narrow),
            cpus(&main, kernel.last(), Reason::Own),
        ];
        let outcomes = outcomes(apply(plan, &kernel.cgroups));
        assert!(
            matches!(
                outcomes.as_slice(),
                [
                    StepOutcome::Failed(_),
                    StepOutcome::Unrecorded,
                    StepOutcome::Blocked { cpus }
                ] if *cpus == kernel.last()
            ),
            "{outcomes:?}"
        );
        assert_eq!((kernel.written(&web), kernel.written(&main)), before);
    }
    // CPUs that the container could keep are free to own.
    let plan = vec![
        Step::Record {
            path: web.clone(),
            record: Some(too_long()),
        },
        cpus(&web, kernel.last(), Reason::Narrow),
        cpus(&main, kernel.last(), Reason::Own),
    ];
    let outcomes = outcomes(apply(plan, &kernel.cgroups));
    assert!(
        matches!(outcomes.last(), Some(StepOutcome::Done)),
        "{outcomes:?}"
    );
}

/// Another program writes without pause, so some of Pinfold's writes are gone by the time they are
/// read back.
#[test]
fn quotas_and_memory_nodes_count_as_written_only_if_they_are() {
    let Some(kernel) = kernel_tests() else { return };
    let tree = kernel.tree();
    let pod = tree.pod("", "uid");
    let main = tree.container(&pod, "main");
    let none = Quota {
        quota: None,
        ..half_a_cpu()
    };
    let step = || Step::Quota {
        path: main.clone(),
        quota: none,
    };
    let first = outcomes(apply(vec![step()], &kernel.cgroups));
    assert!(matches!(first.as_slice(), [StepOutcome::Done]), "{first:?}");
    let deadline = Instant::now() + patience();
    let stop = std::sync::atomic::AtomicBool::new(false);
    let seen = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                kernel.cgroups.set_quota(&main, half_a_cpu()).unwrap();
            }
        });
        let mut seen = None;
        while seen.is_none() && Instant::now() < deadline {
            let applied = apply(vec![step()], &kernel.cgroups);
            seen = applied.iter().find_map(AppliedStep::error);
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        seen
    });
    let seen = seen.expect("the other program's value is noticed");
    assert!(
        seen.contains("written, but the kernel reports 50000/100000"),
        "{seen}"
    );
}

#[test]
fn a_record_goes_only_after_everything_on_its_cgroup_is_restored() {
    let Some(kernel) = v1_tests() else { return };
    let tree = kernel.tree();
    let pod = tree.pod("", "uid");
    let main = tree.container(&pod, "main");
    let mut record = AssignmentRecord::new(EarlierSettings {
        quota: Some(Quota {
            quota: Some(100_000),
            period: 100_000,
        }),
        ..EarlierSettings::default()
    });
    let earlier = record.clone();
    let containers = &mut record.assignment.containers;
    containers.insert("main".to_owned(), kernel.last());
    // cgroup v1 refuses a quota above the quota of the pod.
    kernel.cgroups.set_quota(&pod, half_a_cpu()).unwrap();
    let record_step = |record: Option<&AssignmentRecord>| Step::Record {
        path: main.clone(),
        record: record.cloned(),
    };
    let quota = || Step::Quota {
        path: main.clone(),
        quota: earlier.before.quota.unwrap(),
    };
    let shrunk = AssignmentRecord::new(EarlierSettings::default());
    for next in [None, Some(&shrunk)] {
        apply(vec![record_step(Some(&record))], &kernel.cgroups);
        let failed = outcomes(apply(vec![quota(), record_step(next)], &kernel.cgroups));
        assert!(
            matches!(
                failed.as_slice(),
                [StepOutcome::Failed(_), StepOutcome::Done]
            ),
            "{failed:?}"
        );
        assert_eq!(
            text(&kernel, &main),
            Some(earlier.text()),
            "the quota is still to be restored, and the CPUs are not"
        );
    }
    kernel.set_quota(&pod, 1);
    let done = outcomes(apply(vec![quota(), record_step(None)], &kernel.cgroups));
    assert!(
        matches!(done.as_slice(), [StepOutcome::Done, StepOutcome::Done]),
        "{done:?}"
    );
    assert_eq!(text(&kernel, &main), None);
}

#[test]
fn a_second_release_restores_what_the_first_could_not() {
    let Some(kernel) = v1_tests() else { return };
    let mut tree = kernel.tree();
    let pods = Manifests::new();
    pods.put("worker.yaml", &worker("worker-0", "worker-uid", 1));
    pods.put("web.yaml", &best_effort("web", "web-uid"));
    let class = format!("{}/besteffort", tree.path);
    let web_pod = tree.pod("besteffort", "web-uid");
    let web = tree.container(&web_pod, "web1");
    let pod = tree.pod("", "worker-uid");
    let main = tree.container(&pod, "main1");
    let pids = [tree.start(&main), tree.start(&web)];
    let agent = Settings::new(&tree.path, &pods, &kernel.all_but_one()).start();
    agent.eventually("the worker is pinned", |status| {
        in_force(status, "worker-0") && allowed(pids[1]) == kernel.all_but_one()
    });
    agent.stop();
    // Another program narrows the cgroups above the container. cgroup v1 then refuses the container's earlier CPUs.
    for path in [&web_pod, &class] {
        kernel.write_cpus(path, &kernel.all_but_one());
    }
    let (code, out, error) = release(&tree.path, &[]);
    assert_eq!(code, Some(1), "{out}{error}");
    assert!(out.contains("FAILED") && out.contains(&web), "{out}");
    assert!(text(&kernel, &web).is_some(), "the earlier CPUs are known");
    assert_eq!(text(&kernel, &main), None, "the worker's are restored");

    let (code, out, error) = release(&tree.path, &[]);
    assert_eq!(code, Some(1), "tried again: {out}{error}");
    for path in [&class, &web_pod] {
        kernel.write_cpus(path, &kernel.online);
    }
    let (code, out, error) = release(&tree.path, &[]);
    assert_eq!(code, Some(0), "{out}{error}");
    assert_eq!(
        (kernel.written(&web), text(&kernel, &web)),
        (kernel.online.clone(), None)
    );
    let (_, out, _) = release(&tree.path, &[]);
    assert_eq!(out, "nothing is pinned here\n");
}

/// A pod is resized to half a CPU. The kubelet writes the pod's quota first, while the container
/// still has the larger one to restore, which cgroup v1 refuses.
#[test]
fn the_quota_of_a_pod_is_restored_after_a_resize_to_a_fraction() {
    let Some(kernel) = v1_tests() else { return };
    let mut tree = kernel.tree();
    let pods = Manifests::new();
    let manifest = worker_with("worker-0", "worker-uid", 1, "", "main1");
    pods.put("worker.yaml", &manifest);
    let pod = tree.pod("", "worker-uid");
    let main = tree.container(&pod, "main1");
    for path in [&pod, &main] {
        kernel.set_quota(path, 1);
    }
    let pid = tree.start(&main);
    let settings = Settings::new(&tree.path, &pods, &kernel.all_but_one())
        .with(&["--reconcile-interval", "1s"]);
    let agent = settings.start();
    let quotas = || (kernel.quota(&pod), kernel.quota(&main));
    agent.eventually("the worker is pinned without a quota", |_| {
        allowed(pid) == kernel.last() && quotas() == (None, None)
    });
    kernel.cgroups.set_quota(&pod, half_a_cpu()).unwrap();
    agent.eventually("the newer quota is lifted, too", |_| {
        quotas() == (None, None)
    });
    pods.put("worker.yaml", &manifest.replace("cpu: '1'", "cpu: 500m"));
    agent.eventually("the newer quota of the pod is in force", |_| {
        quotas() == (Some(50_000), None)
    });
    assert!(
        text(&kernel, &main).is_some_and(|text| text.contains("100000")),
        "the quota of the container is still to be restored"
    );
    // The kubelet writes the quota of the container.
    kernel.cgroups.set_quota(&main, half_a_cpu()).unwrap();
    agent.eventually("nothing is left to restore", |status| {
        let records = [text(&kernel, &pod), text(&kernel, &main)];
        let is_left =
            |text: &Option<String>| text.as_ref().is_some_and(|text| text.contains("quota"));
        status["errors"].as_array().is_some_and(Vec::is_empty) && !records.iter().any(is_left)
    });
    assert_eq!(quotas(), (Some(50_000), Some(50_000)));
    agent.stop();
}

/// The agent is replaced by an earlier version, or a record is damaged. With `cpuset`, the CPUs show only in the written set.
#[test]
fn the_cpus_of_an_unreadable_record_get_no_second_owner() {
    let Some(kernel) = kernel_tests() else { return };
    let later = r#"{"version":2,"claims":[{"container":"main","cpus":[1]}],"before":null}"#;
    for unreadable in [later, r#"{"version":1,"claims":{"ma"#, ""] {
        let mut tree = kernel.tree();
        let pods = Manifests::new();
        pods.put("worker.yaml", &worker("worker-0", "worker-uid", 1));
        let pod = tree.pod("", "worker-uid");
        let main = tree.container(&pod, "main1");
        let pid = tree.start(&main);
        let settings = Settings::new(&tree.path, &pods, &kernel.all_but_one()).with(&[
            "--enforcement",
            "cpuset",
            "--reconcile-interval",
            "1s",
        ]);
        let agent = settings.start();
        agent.eventually("the worker is pinned", |_| allowed(pid) == kernel.last());
        agent.stop();
        let paths = [&pod, &main];
        let texts = paths.map(|path| text(&kernel, path));
        for path in paths {
            let set = kernel.cgroups.set_assignment_record(path, Some(unreadable));
            set.unwrap();
        }
        pods.put("second.yaml", &worker("worker-1", "second-uid", 1));
        let second = tree.pod("", "second-uid");
        let second_main = tree.container(&second, "main2");
        let second_pid = tree.start(&second_main);
        let agent = settings.start();
        let status = agent.eventually("the second worker stays shared", |status| {
            container(status, "worker-1", "main").is_some_and(|worker| worker["note"].is_string())
        });
        assert_eq!(
            assigned(&status, "worker-1"),
            None,
            "{unreadable}: {status:#}"
        );
        assert_eq!(text(&kernel, &second), None);
        let said = status["unexplained"].to_string();
        for path in paths {
            assert!(said.contains(path.as_str()), "{unreadable}: {said}");
        }
        let only_last = kernel.last().in_words();
        assert!(
            said.contains(&format!("assigns {only_last} to no other container")),
            "{said}"
        );
        assert_eq!(allowed(pid), kernel.last(), "left alone");
        agent.eventually("the second worker stays off these CPUs", |_| {
            allowed(second_pid) == kernel.all_but_one()
        });
        agent.stop();

        let (code, out, _) = release(&tree.path, &[]);
        assert_eq!(code, Some(1), "{out}");
        assert!(out.contains("FAILED") && out.contains(&main), "{out}");
        // The later version runs again: the records count.
        for (path, text) in paths.into_iter().zip(&texts) {
            let set = kernel.cgroups.set_assignment_record(path, text.as_deref());
            set.unwrap();
        }
        let agent = settings.start();
        agent.eventually("the worker owns its CPUs", |status| {
            in_force(status, "worker-0")
                && status["unexplained"].as_array().is_some_and(Vec::is_empty)
        });
        pods.remove("worker.yaml");
        tree.remove(&pod);
        agent.eventually("the second worker gets the CPUs", |_| {
            allowed(second_pid) == kernel.last()
        });
        agent.stop();
    }
}

/// The kubelet's node partitions put system pods one level deeper.
#[test]
fn system_pods_in_a_group_of_their_own_leave_exclusive_cpus() {
    let Some(kernel) = kernel_tests() else { return };
    let classes = [
        "burstable",
        "besteffort",
        "system",
        "system/burstable",
        "system/besteffort",
    ];
    let mut tree = kernel.tree_named("kubepods", &classes);
    let pods = Manifests::new();
    pods.put("worker.yaml", &worker("worker-0", "worker-uid", 1));
    let settings = Settings::new(&tree.path, &pods, &kernel.all_but_one())
        .with(&["--reconcile-interval", "3600s"]);
    let agent = settings.start();
    let pod = tree.pod("", "worker-uid");
    let main = tree.container(&pod, "main1");
    let pid = tree.start(&main);
    agent.eventually("the worker is pinned", |_| allowed(pid) == kernel.last());
    // No timer turn helps: the agent watches the new cgroups.
    for (class, uid) in [
        ("system", "a"),
        ("system/burstable", "b"),
        ("system/besteffort", "c"),
    ] {
        let system = tree.pod(class, uid);
        let system = tree.container(&system, "system1");
        let system = tree.start(&system);
        agent.eventually(&format!("{class} is shared"), |_| {
            allowed(system) == kernel.all_but_one()
        });
    }
    assert_eq!(allowed(pid), kernel.last());
    agent.stop();
    let (code, out, error) = release(&tree.path, &[]);
    assert_eq!(code, Some(0), "{out}{error}");
}
