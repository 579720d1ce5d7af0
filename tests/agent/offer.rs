//! The pods' top cgroup offers fewer CPUs than the machine has.

use pinfold::cpu::CpuSet;

use crate::agent::{Manifests, Settings, assigned, best_effort, container, in_force, worker_with};
use crate::kernel::{Kernel, Tree, allowed, kernel_tests};

/// Writes the CPUs of a tree as an administrator would: from the lowest cgroup up for fewer CPUs, and from the top down for
/// more.
fn limit(kernel: &Kernel, tree: &Tree<'_>, below: &[&String], cpus: &CpuSet) {
    let classes = ["burstable", "besteffort"].map(|class| format!("{}/{class}", tree.path));
    let mut paths: Vec<&String> = below.iter().copied().chain(&classes).collect();
    paths.push(&tree.path);
    if cpus == &kernel.online {
        paths.reverse();
    }
    for path in paths {
        kernel.write_cpus(path, cpus);
    }
}

#[test]
fn cpus_that_the_pods_top_cgroup_lacks_are_assigned_when_it_gets_them() {
    let Some(kernel) = kernel_tests() else { return };
    let mut tree = kernel.tree();
    limit(&kernel, &tree, &[], &kernel.all_but_one());
    let pods = Manifests::new();
    pods.put(
        "worker.yaml",
        &worker_with("worker-0", "uid-1", 1, "", "main1"),
    );
    let settings = Settings::new(&tree.path, &pods, &kernel.all_but_one());
    let agent = settings.with(&["--reconcile-interval=1s"]).start();
    let pod = tree.pod("", "uid-1");
    let main = tree.container(&pod, "main1");
    let pid = tree.start(&main);
    let status = agent.eventually("the container runs", |status| {
        container(status, "worker-0", "main").is_some_and(|main| main["running"] == true)
    });
    assert_eq!(assigned(&status, "worker-0"), None, "{status:#}");
    assert_eq!(status["withheld"], kernel.last().to_string(), "{status:#}");
    assert_eq!(status["shared"], kernel.all_but_one().to_string());
    assert_eq!(status["exclusive"], "");
    let note = container(&status, "worker-0", "main").unwrap()["note"].to_string();
    assert!(note.contains("shared pool"), "{note}");
    assert_eq!(status["errors"].as_array().unwrap().len(), 0, "{status:#}");

    limit(&kernel, &tree, &[], &kernel.online);
    let status = agent.eventually("the worker is pinned", |status| {
        in_force(status, "worker-0")
    });
    assert_eq!(assigned(&status, "worker-0"), Some(kernel.last()));
    assert_eq!(status["withheld"], "");
    assert_eq!(allowed(pid), kernel.last());
    agent.stop();
}

#[test]
fn an_assignment_outside_a_later_limit_stays_and_is_reported() {
    let Some(kernel) = kernel_tests() else { return };
    let mut tree = kernel.tree();
    let pods = Manifests::new();
    pods.put(
        "worker.yaml",
        &worker_with("worker-0", "uid-1", 1, "", "main1"),
    );
    pods.put("web.yaml", &best_effort("web", "web-uid"));
    let settings = Settings::new(&tree.path, &pods, &kernel.all_but_one());
    let settings = settings.with(&["--reconcile-interval=1s"]);
    let agent = settings.start();
    let web = tree.pod("besteffort", "web-uid");
    let web1 = tree.container(&web, "web1");
    tree.start(&web1);
    let pod = tree.pod("", "uid-1");
    let main = tree.container(&pod, "main1");
    let pid = tree.start(&main);
    agent.eventually("the worker is pinned", |status| {
        in_force(status, "worker-0")
    });

    // A running agent would repair the lower sets before the administrator reaches the tree.
    agent.stop();
    // On cgroup v1, the owner's new CPUs must lie within its pod.
    kernel.write_cpus(&pod, &kernel.online);
    limit(
        &kernel,
        &tree,
        &[&web1, &main, &web, &pod],
        &kernel.all_but_one(),
    );
    let agent = settings.start();
    let says = format!("container main owns {}, but ", kernel.last().in_words());
    let status = agent.eventually("the assignment is reported", |status| {
        status["errors"].to_string().contains(&says)
    });
    assert_eq!(assigned(&status, "worker-0"), Some(kernel.last()));
    // No write outside the limit is tried.
    std::thread::sleep(std::time::Duration::from_millis(2500));
    assert!(!agent.log().contains("can't write"), "{}", agent.log());

    limit(&kernel, &tree, &[], &kernel.online);
    let status = agent.eventually("the worker is back", |status| {
        in_force(status, "worker-0") && allowed(pid) == kernel.last()
    });
    assert_eq!(status["errors"].as_array().unwrap().len(), 0, "{status:#}");
    agent.stop();
}
