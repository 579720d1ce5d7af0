//! Containers come, grow, shrink, restart and go; the agent does too.

use pinfold::cpu::CpuSet;

use super::owner::Pair;
use super::partition_tests;
use crate::agent::{Manifests, Settings, assigned, in_force, worker, worker_with};
use crate::kernel::allowed;

#[test]
fn a_live_container_grows_and_shrinks_in_place() {
    let Some(kernel) = partition_tests() else {
        return;
    };
    let pair = Pair::new(&kernel, &[]);
    let mut had = pair.own.clone();
    for size in [3, 5, 2, 1, 4] {
        pair.pods.put(
            "worker.yaml",
            &worker_with("worker-0", "worker-uid", size, "", "main1"),
        );
        let mut now = CpuSet::new();
        pair.agent
            .eventually("the container has the new size", |_| {
                now = allowed(pair.pid);
                assert_eq!(kernel.partition(&pair.main), "root", "all the way");
                assert!(
                    now.is_subset(&had) || had.is_subset(&now),
                    "{had} becomes {now}"
                );
                now.len() == size && kernel.exclusive(&pair.tree.path) == now
            });
        had = now;
    }
    pair.agent.stop();
}

#[test]
fn an_assignment_outlives_its_container_but_not_its_pod() {
    let Some(kernel) = partition_tests() else {
        return;
    };
    let mut pair = Pair::new(&kernel, &[]);
    pair.pods
        .put("worker.yaml", &worker("worker-0", "worker-uid", 2));
    pair.tree.remove(&pair.main);
    // Shared containers may use the CPUs meanwhile, but no container may own them.
    pair.agent
        .eventually("shared containers use the CPUs", |_| {
            allowed(pair.other_pid) == kernel.online
        });
    assert_eq!(kernel.exclusive(&pair.pod), pair.own);
    pair.pods
        .put("second.yaml", &worker("worker-1", "second-uid", 5));
    let second = pair.tree.pod("", "second-uid");
    let second = pair.tree.container(&second, "main2");
    let second = pair.tree.start(&second);
    pair.agent
        .eventually("the other worker is pinned", |_| allowed(second).len() == 5);
    assert!(allowed(second).is_disjoint(&pair.own));
    let main = pair.tree.container(&pair.pod, "main3");
    let pid = pair.tree.start(&main);
    pair.agent
        .eventually("the next container is pinned", |_| allowed(pid) == pair.own);
    pair.tree.remove(&pair.pod);
    pair.pods.remove("worker.yaml");
    pair.agent.eventually("no container owns the CPUs", |_| {
        allowed(pair.other_pid) == kernel.online.difference(&allowed(second))
            && kernel.exclusive(&pair.tree.path) == allowed(second)
    });
    pair.agent.stop();
}

/// A pod with the given containers: name, kind, CPUs.
fn pod(containers: &[(&str, &str, usize)]) -> String {
    let list = |wanted: fn(&str) -> bool| -> String {
        let chosen = containers.iter().filter(|(_, kind, _)| wanted(kind));
        let manifest = |&(name, kind, cpus): &(&str, &str, usize)| {
            let always = if kind == "sidecar" {
                ", restartPolicy: Always"
            } else {
                ""
            };
            format!(
                "\n  - {{name: {name}, image: x, resources: {{limits: {{cpu: '{cpus}', memory: 1Gi}}}}{always}}}"
            )
        };
        chosen.map(manifest).collect()
    };
    let (init, main) = (list(|kind| kind != "main"), list(|kind| kind == "main"));
    let status = |name: &str| {
        format!(
            "{{name: {name}, image: x, imageID: '', ready: true, restartCount: 0, containerID: 'containerd://{name}1'}}"
        )
    };
    let statuses = |wanted: fn(&str) -> bool| -> String {
        let chosen = containers.iter().filter(|(_, kind, _)| wanted(kind));
        chosen
            .map(|(name, _, _)| format!("\n  - {}", status(name)))
            .collect()
    };
    let (init_statuses, main_statuses) = (
        statuses(|kind| kind != "main"),
        statuses(|kind| kind == "main"),
    );
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: p, namespace: train, uid: p-uid, labels: {{training.kubeflow.org/replica-type: worker}}}}\nspec:\n  initContainers:{init}\n  containers:{main}\nstatus:\n  initContainerStatuses:{init_statuses}\n  containerStatuses:{main_statuses}\n"
    )
}

#[test]
fn init_containers_run_inside_the_set_of_their_pod() {
    let Some(kernel) = partition_tests() else {
        return;
    };
    let mut tree = kernel.tree();
    let pods = Manifests::new();
    pods.put(
        "p.yaml",
        &pod(&[
            ("init", "init", 1),
            ("side", "sidecar", 1),
            ("late", "init", 1),
            ("main", "main", 2),
        ]),
    );
    let agent = Settings::new(&tree.path, &pods, &kernel.first()).start();
    let p = tree.pod("", "p-uid");
    let init = tree.container(&p, "init1");
    let init_pid = tree.start(&init);
    agent.eventually("the init container has all CPUs of the pod", |_| {
        allowed(init_pid).len() == 3
    });
    let all = allowed(init_pid);
    assert_eq!(
        (kernel.partition(&init), kernel.exclusive(&p)),
        ("root".to_owned(), all.clone())
    );
    tree.remove(&init);
    let side = tree.container(&p, "side1");
    let side_pid = tree.start(&side);
    agent.eventually("the sidecar has exclusive CPUs", |_| {
        allowed(side_pid).len() == 1
    });
    assert!(allowed(side_pid).is_subset(&all));
    let late = tree.container(&p, "late1");
    let late_pid = tree.start(&late);
    agent.eventually("the next init container has the rest", |_| {
        allowed(late_pid) == all.difference(&allowed(side_pid))
    });
    tree.remove(&late);
    let main = tree.container(&p, "main1");
    let main_pid = tree.start(&main);
    agent.eventually("the container has exclusive CPUs", |_| {
        allowed(main_pid) == all.difference(&allowed(side_pid)) && kernel.partition(&main) == "root"
    });
    agent.stop();
}

#[test]
fn kill_restart_and_upgrade_move_no_container() {
    let Some(kernel) = partition_tests() else {
        return;
    };
    let pair = Pair::new(&kernel, &[]);
    pair.settled(&kernel, "all is settled");
    let Pair {
        tree: _tree,
        pods: _pods,
        settings,
        agent,
        pid,
        other_pid,
        main,
        own,
        ..
    } = pair;
    agent.kill();
    let held = || {
        kernel.partition(&main) == "root"
            && allowed(pid) == own
            && allowed(other_pid).is_disjoint(&own)
    };
    assert!(held());
    for _ in 0..3 {
        let agent = settings.start();
        agent.eventually("the worker is pinned", |status| {
            in_force(status, "worker-0")
        });
        assert!(held());
        assert_eq!(
            agent
                .metric("pinfold_reconcile_steps_total", &[])
                .unwrap_or(0.0),
            0.0,
            "a restart plans no step"
        );
        agent.kill();
        assert!(held());
    }
}

#[test]
fn a_change_of_enforcement_moves_no_running_container() {
    let Some(kernel) = partition_tests() else {
        return;
    };
    let Pair {
        tree,
        pods: _pods,
        settings,
        mut agent,
        pod,
        main,
        pid,
        other_pid,
        own,
    } = Pair::new(&kernel, &[]);
    let others = kernel.online.difference(&own);
    for enforcement in [
        "cpuset",
        "partition",
        "observe",
        "cpuset",
        "observe",
        "partition",
    ] {
        agent.stop();
        agent = settings
            .clone()
            .with(&["--enforcement", enforcement])
            .start();
        agent.eventually("the enforcement is in force", |status| {
            assert_eq!(allowed(pid), own, "{enforcement}: at every moment");
            status["enforcement"] == enforcement && allowed(other_pid) == others
        });
        match enforcement {
            "cpuset" => {
                agent.eventually("no partition is left", |_| {
                    kernel.exclusive(&tree.path).is_empty()
                });
                assert_eq!(
                    (kernel.partition(&main), kernel.written(&main)),
                    ("member".to_owned(), own.clone())
                );
            }
            "partition" => {
                agent.eventually("the container is a partition", |_| {
                    kernel.partition(&main) == "root"
                });
                assert_eq!(kernel.exclusive(&pod), own);
            }
            _ => {}
        }
    }
    agent.stop();
}

#[test]
fn a_container_waits_while_too_few_cpus_are_free() {
    let Some(kernel) = partition_tests() else {
        return;
    };
    let mut pair = Pair::new(&kernel, &[]);
    let size = kernel.online.len() - 2;
    pair.pods.put("big.yaml", &worker("big", "big-uid", size));
    let big = pair.tree.pod("", "big-uid");
    let big = pair.tree.container(&big, "big1");
    let big_pid = pair.tree.start(&big);
    let status = pair.agent.eventually("the worker waits", |status| {
        crate::agent::container(status, "big", "main")
            .is_some_and(|container| container["note"].is_string())
    });
    assert_eq!(assigned(&status, "big"), None);
    pair.pods.remove("worker.yaml");
    pair.tree.remove(&pair.pod);
    pair.agent
        .eventually("the worker gets CPUs", |_| allowed(big_pid).len() == size);
    assert!(
        kernel.first().is_subset(&allowed(pair.other_pid)),
        "reserved CPUs stay shared"
    );
    pair.agent.stop();
}

#[test]
fn partitions_work_in_the_tree_of_the_systemd_driver() {
    let Some(kernel) = partition_tests() else {
        return;
    };
    let mut tree = kernel.tree_named("kubepods.slice", &["kubepods-besteffort.slice"]);
    let pods = Manifests::new();
    pods.put(
        "worker.yaml",
        &worker("worker-0", "8f0d6986-3554-402b-8223-2d69f320df15", 2),
    );
    let agent = Settings::new(&tree.path, &pods, &kernel.first()).start();
    let pod = tree.make(&format!(
        "{}/kubepods-pod8f0d6986_3554_402b_8223_2d69f320df15.slice",
        tree.path
    ));
    let scope = tree.make(&format!("{pod}/cri-containerd-c0ffee.scope"));
    // As crun does: the processes are one level further down.
    let inner = tree.make(&format!("{scope}/container"));
    let pid = tree.start(&inner);
    agent.eventually("the worker is pinned", |_| {
        allowed(pid).len() == 2 && kernel.partition(&scope) == "root"
    });
    assert!(allowed(std::process::id()).is_disjoint(&allowed(pid)));
    agent.stop();
}
