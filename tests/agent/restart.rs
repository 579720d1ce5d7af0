//! Ending and starting again moves nothing.

use pinfold::cpu::CpuSet;

use crate::agent::{Agent, Manifests, Settings, assigned, best_effort, in_force, worker};
use crate::kernel::{Kernel, Tree, allowed, kernel_tests};

/// A worker on one CPU and a pod without requests, both settled.
struct Scene {
    paths: Vec<String>,
    pids: Vec<u32>,
    own: CpuSet,
}

fn settle(kernel: &Kernel, tree: &mut Tree<'_>, pods: &Manifests, agent: &Agent) -> Scene {
    pods.put("worker.yaml", &worker("worker-0", "worker-uid", 1));
    pods.put("web.yaml", &best_effort("web", "web-uid"));
    let web_pod = tree.pod("besteffort", "web-uid");
    let web = tree.container(&web_pod, "web1");
    let pod = tree.pod("", "worker-uid");
    let main = tree.container(&pod, "main1");
    kernel.set_quota(&main, 1);
    let pids = vec![tree.start(&main), tree.start(&web)];
    let status = agent.eventually("all is settled", |status| {
        in_force(status, "worker-0")
            && kernel.quota(&main).is_none()
            && kernel.effective(&web).is_disjoint(&kernel.effective(&main))
    });
    let own = assigned(&status, "worker-0").unwrap();
    Scene {
        paths: vec![pod, main, web_pod, web],
        pids,
        own,
    }
}

/// The present values of all files that Pinfold may write.
fn state(kernel: &Kernel, scene: &Scene) -> Vec<String> {
    let describe = |path: &String| {
        let (cpus, quota) = (
            kernel.cgroups.cpuset(path).unwrap(),
            kernel.cgroups.quota(path).unwrap(),
        );
        format!(
            "{path}: {cpus:?} {quota:?} {:?}",
            kernel.cgroups.assignment_record(path).unwrap()
        )
    };
    scene
        .paths
        .iter()
        .map(describe)
        .chain(scene.pids.iter().map(|pid| allowed(*pid).to_string()))
        .collect()
}

#[test]
fn a_restart_moves_no_container() {
    let Some(kernel) = kernel_tests() else { return };
    let mut tree = kernel.tree();
    let pods = Manifests::new();
    let settings = Settings::new(&tree.path, &pods, &kernel.first());
    let agent = settings.start();
    let scene = settle(&kernel, &mut tree, &pods, &agent);
    let before = state(&kernel, &scene);

    agent.stop();
    assert_eq!(
        state(&kernel, &scene),
        before,
        "SIGTERM leaves every assignment"
    );

    for end in ["SIGTERM", "SIGKILL"] {
        let agent = settings
            .clone()
            .with(&["--reconcile-interval", "1s"])
            .start();
        agent.eventually("the worker has a CPU", |status| {
            assigned(status, "worker-0") == Some(scene.own.clone())
        });
        let timer = || {
            agent
                .metric("pinfold_reconcile_total", &[("trigger", "timer")])
                .unwrap_or(0.0)
        };
        agent.eventually("a reconcile by the clock", |_| timer() >= 1.0);
        assert_eq!(
            agent.metric("pinfold_reconcile_steps_total", &[]),
            None,
            "no writes after a restart"
        );
        assert_eq!(agent.metric("pinfold_drift_total", &[]), Some(0.0));
        assert_eq!(
            agent.metric("pinfold_container_unpinned_seconds_count", &[]),
            Some(0.0),
            "the unpinned time is missing"
        );
        assert_eq!(
            state(&kernel, &scene),
            before,
            "a restart moves no container"
        );
        if end == "SIGTERM" {
            agent.stop();
        } else {
            agent.kill();
        }
        assert_eq!(
            state(&kernel, &scene),
            before,
            "{end} leaves every assignment"
        );
    }
}

#[test]
fn pods_that_no_source_reports_keep_their_assignments() {
    let Some(kernel) = kernel_tests() else { return };
    let mut tree = kernel.tree();
    let pods = Manifests::new();
    let settings = Settings::new(&tree.path, &pods, &kernel.first());
    let agent = settings.start();
    let scene = settle(&kernel, &mut tree, &pods, &agent);
    agent.kill();
    let before = state(&kernel, &scene);

    let empty = Manifests::new();
    let agent = Settings::new(&tree.path, &empty, &kernel.first()).start();
    let status = agent.eventually("the pod is listed", |status| {
        !status["unknownOwners"].as_array().unwrap().is_empty()
    });
    let stranger = &status["unknownOwners"][0];
    assert_eq!(stranger["cgroup"], scene.paths[0].as_str());
    assert_eq!(
        (&stranger["namespace"], &stranger["pod"]),
        (&"train".into(), &"worker-0".into())
    );
    assert_eq!(stranger["cpus"], scene.own.to_string());
    assert_eq!(status["exclusive"], scene.own.to_string());
    assert_eq!(agent.metric("pinfold_reconcile_steps_total", &[]), None);
    assert_eq!(state(&kernel, &scene), before);

    // The assignment ends with the pod's cgroup.
    tree.remove(&scene.paths[0]);
    agent.eventually("the CPUs are free", |status| status["exclusive"] == "");
    agent.eventually("the shared container has all CPUs", |_| {
        allowed(scene.pids[1]) == kernel.online
    });
    agent.stop();
}
