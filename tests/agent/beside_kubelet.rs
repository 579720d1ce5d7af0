//! The agent beside a kubelet whose own CPU Manager assigns CPUs, stops assigning, restarts, or is missing. What it makes of
//! assigned CPUs on kernels with partitions is in `partition::kubelet`.

use std::time::Duration;

use pinfold::cpu::CpuSet;
use serde_json::Value;

use crate::agent::{Agent, Manifests, Settings, assigned, container, in_force, worker};
use crate::kernel::{Kernel, allowed, kernel_tests};
use crate::kubelet::Root;

/// Settings with this root, and a reconcile interval of one second.
fn settings(kernel: &Kernel, tree: &str, pods: &Manifests, root: &Root) -> Settings {
    Settings::new(tree, pods, &kernel.first()).with(&[
        "--root-dir",
        root.path(),
        "--reconcile-interval",
        "1s",
    ])
}

/// Whether the kubelet chooses the CPUs. Without partitions, Pinfold then only observes.
fn is_observing(status: &Value) -> bool {
    status["placementSource"] == "kubelet" && status["enforcement"] != "cpuset"
}

/// Waits until the agent reports a running container and observes only. Until the kubelet's first answer, which may be late,
/// the agent assigns nothing either.
fn runs_unpinned(agent: &Agent, pod: &str) -> Value {
    let status = agent.eventually("the container is seen running beside a kubelet", |status| {
        let running =
            container(status, pod, "main").is_some_and(|container| container["running"] == true);
        running && is_observing(status)
    });
    assert_eq!(assigned(&status, pod), None, "{status:#}");
    status
}

#[test]
fn pinfold_chooses_nothing_beside_a_kubelet_that_assigns_cpus() {
    let Some(kernel) = kernel_tests() else { return };
    let mut tree = kernel.tree();
    let (pods, root) = (Manifests::new(), Root::new());
    pods.put("worker.yaml", &worker("worker-0", "uid-1", 1));
    let kubelet = root.kubelet(true);
    let agent = settings(&kernel, &tree.path, &pods, &root).start();
    let pod = tree.pod("", "uid-1");
    let main = tree.container(&pod, "c0ffee");
    kernel.set_quota(&main, 1);
    let before = (kernel.written(&pod), kernel.written(&main));
    let pid = tree.start(&main);
    let status = runs_unpinned(&agent, "worker-0");
    assert!(
        status["enforcementReason"]
            .as_str()
            .unwrap()
            .contains("static"),
        "{status:#}"
    );
    assert_eq!((kernel.written(&pod), kernel.written(&main)), before);
    assert_eq!(allowed(pid), kernel.online);
    assert_eq!(kernel.quota(&main), Some(100_000));
    assert_eq!(kernel.cgroups.assignment_record(&pod).unwrap(), None);
    assert_eq!(kernel.cgroups.assignment_record(&main).unwrap(), None);
    assert_eq!(agent.metric("pinfold_reconcile_steps_total", &[]), None);
    let reason = if status["enforcement"] == "observe" {
        "cpu_manager"
    } else {
        "partitions_supported"
    };
    assert_eq!(
        agent.metric(
            "pinfold_enforcement_info",
            &[("reason", reason), ("source", "kubelet")]
        ),
        Some(1.0)
    );
    // The kubelet has given the container no CPUs.
    let exclusive: CpuSet = status["exclusive"].as_str().unwrap().parse().unwrap();
    let labels = [("pod", "worker-0"), ("container", "main")];
    let exported = agent.metric("pinfold_container_cpus_assigned", &labels);
    assert_eq!(
        (exclusive.to_string().as_str(), exported),
        ("", Some(0.0)),
        "{status:#}"
    );

    // The policy changes to `none` and back. The assignment of the time between stays.
    kubelet.set_assigns(false);
    let status = agent.eventually("the container is pinned", |status| {
        in_force(status, "worker-0")
    });
    let own = assigned(&status, "worker-0").unwrap();
    kubelet.set_assigns(true);
    let status = agent.eventually("the kubelet assigns again", is_observing);
    assert_eq!(
        (assigned(&status, "worker-0"), allowed(pid)),
        (Some(own.clone()), own)
    );
    agent.stop();
}

#[test]
fn without_partitions_the_kubelets_cpus_are_shown_and_nothing_is_written() {
    let Some(kernel) = kernel_tests() else { return };
    let mut tree = kernel.tree();
    let (pods, root) = (Manifests::new(), Root::new());
    pods.put("worker.yaml", &worker("worker-0", "uid-1", 1));
    let kubelet = root.kubelet(true);
    let last = kernel.last();
    kubelet.gives("worker-0", &last.to_string());
    let settings = settings(&kernel, &tree.path, &pods, &root);
    let agent = settings.with(&["--enforcement=cpuset"]).start();
    let pod = tree.pod("", "uid-1");
    let main = tree.container(&pod, "c0ffee");
    kernel.write_cpus(&main, &last);
    kernel.set_quota(&main, 1);
    let before = (kernel.written(&pod), kernel.written(&main));
    let pid = tree.start(&main);
    let status = agent.eventually("the kubelet's choice is in force", |status| {
        in_force(status, "worker-0")
    });
    assert_eq!(assigned(&status, "worker-0"), Some(last.clone()));
    assert_eq!(allowed(pid), last);
    assert_eq!(status["enforcement"], "observe");
    let reason = status["enforcementReason"].as_str().unwrap();
    assert!(reason.contains("enforces nothing"), "{reason}");
    assert_eq!((kernel.written(&pod), kernel.written(&main)), before);
    assert_eq!(kernel.quota(&main), Some(100_000));
    assert_eq!(kernel.cgroups.assignment_record(&main).unwrap(), None);
    assert_eq!(agent.metric("pinfold_reconcile_steps_total", &[]), None);
    agent.stop();
}

#[test]
fn pinfold_as_the_source_only_observes_while_the_kubelet_assigns() {
    let Some(kernel) = kernel_tests() else { return };
    let mut tree = kernel.tree();
    let (pods, root) = (Manifests::new(), Root::new());
    pods.put("worker.yaml", &worker("worker-0", "uid-1", 1));
    let kubelet = root.kubelet(true);
    kubelet.gives("worker-0", &kernel.last().to_string());
    let settings = settings(&kernel, &tree.path, &pods, &root);
    let agent = settings.with(&["--placement-source=pinfold"]).start();
    let pod = tree.pod("", "uid-1");
    let main = tree.container(&pod, "c0ffee");
    tree.start(&main);
    let status = agent.eventually("the agent observes", |status| {
        status["enforcement"] == "observe"
    });
    assert_eq!(status["placementSource"], "pinfold");
    assert_eq!(assigned(&status, "worker-0"), None, "{status:#}");
    agent.stop();
}

#[test]
fn the_kubelets_last_policy_applies_while_the_kubelet_restarts() {
    let Some(kernel) = kernel_tests() else { return };
    let mut tree = kernel.tree();
    let (pods, root) = (Manifests::new(), Root::new());
    pods.put("worker.yaml", &worker("worker-0", "uid-1", 1));
    let kubelet = root.kubelet(true);
    let agent = settings(&kernel, &tree.path, &pods, &root).start();
    let pod = tree.pod("", "uid-1");
    let main = tree.container(&pod, "c0ffee");
    tree.start(&main);
    runs_unpinned(&agent, "worker-0");

    // The kubelet is away: the socket remains at first, then disappears.
    drop(kubelet);
    let several = Duration::from_millis(2500);
    std::thread::sleep(several);
    runs_unpinned(&agent, "worker-0");
    std::fs::remove_file(root.socket()).unwrap();
    std::thread::sleep(several);
    runs_unpinned(&agent, "worker-0");

    // The next kubelet reports no CPUs. It has policy `none`, or has not started its CPU Manager yet, which takes up to a minute.
    let kubelet = root.kubelet_of_age(false, Duration::from_secs(50));
    std::thread::sleep(several);
    runs_unpinned(&agent, "worker-0");
    agent.eventually("the container is pinned", |status| {
        in_force(status, "worker-0")
    });
    drop(kubelet);
    std::thread::sleep(several);
    assert!(!is_observing(&agent.status().unwrap()));
    let _kubelet = root.kubelet(true);
    agent.eventually("the next kubelet assigns CPUs", is_observing);
    agent.stop();
}

#[test]
fn nothing_is_assigned_before_a_kubelet_has_answered() {
    let Some(kernel) = kernel_tests() else { return };
    let mut tree = kernel.tree();
    let (pods, root) = (Manifests::new(), Root::new());
    pods.put("worker.yaml", &worker("worker-0", "uid-1", 1));
    root.leave_socket();
    let agent = settings(&kernel, &tree.path, &pods, &root).start();
    let pod = tree.pod("", "uid-1");
    let main = tree.container(&pod, "c0ffee");
    tree.start(&main);
    let status = agent.eventually("the container is seen running", |status| {
        container(status, "worker-0", "main").is_some_and(|container| container["running"] == true)
    });
    assert_eq!(assigned(&status, "worker-0"), None, "{status:#}");
    assert_ne!(
        status["enforcement"], "observe",
        "a pod that requires CPUs is refused meanwhile"
    );
    let errors = status["errors"].to_string();
    assert!(
        errors.contains("reports whether it assigns CPUs") && errors.contains("remove the socket"),
        "{errors}"
    );
    // It reports no CPUs, which counts once it must have started its CPU Manager.
    let _kubelet = root.kubelet_of_age(false, Duration::from_secs(50));
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(assigned(&agent.status().unwrap(), "worker-0"), None);
    agent.eventually("the kubelet has told its policy", |status| {
        in_force(status, "worker-0")
    });
    agent.stop();
}

#[test]
fn a_node_without_a_kubelets_socket_pins_until_a_kubelet_assigns() {
    let Some(kernel) = kernel_tests() else { return };
    let mut tree = kernel.tree();
    let (pods, root) = (Manifests::new(), Root::new());
    pods.put("worker.yaml", &worker("worker-0", "uid-1", 1));
    let agent = settings(&kernel, &tree.path, &pods, &root).start();
    let pod = tree.pod("", "uid-1");
    let main = tree.container(&pod, "c0ffee");
    tree.start(&main);
    agent.eventually("the container is pinned", |status| {
        in_force(status, "worker-0")
    });
    let _kubelet = root.kubelet(true);
    agent.eventually("the kubelet assigns CPUs", is_observing);
    agent.stop();
}

#[test]
fn assignments_stay_while_the_kubelet_has_not_answered() {
    let Some(kernel) = kernel_tests() else { return };
    let mut tree = kernel.tree();
    let (pods, root) = (Manifests::new(), Root::new());
    pods.put("worker.yaml", &worker("worker-0", "uid-1", 1));
    let settings = settings(&kernel, &tree.path, &pods, &root);
    let agent = settings.start();
    let pod = tree.pod("", "uid-1");
    let main = tree.container(&pod, "c0ffee");
    let pid = tree.start(&main);
    let status = agent.eventually("the container is pinned", |status| {
        in_force(status, "worker-0")
    });
    let own = assigned(&status, "worker-0").unwrap();
    agent.stop();
    // The agent starts again while the kubelet is away.
    root.leave_socket();
    let agent = settings.start();
    agent.eventually("the agent waits for the kubelet", |status| {
        status["errors"]
            .to_string()
            .contains("reports whether it assigns CPUs")
    });
    std::thread::sleep(Duration::from_millis(2500));
    let status = agent.status().unwrap();
    assert_eq!(
        (assigned(&status, "worker-0"), allowed(pid)),
        (Some(own.clone()), own),
        "{status:#}"
    );
    agent.stop();
}
