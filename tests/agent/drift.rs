//! A foreign program writes: the drift is counted once and repaired.

use crate::agent::{Manifests, Settings, best_effort, container, in_force, worker, worker_with};
use crate::kernel::{allowed, kernel_tests};

#[test]
fn drift_is_counted_once_and_repaired() {
    let Some(kernel) = kernel_tests() else { return };
    let mut tree = kernel.tree();
    let pods = Manifests::new();
    pods.put(
        "worker.yaml",
        &worker_with("worker-0", "worker-uid", 1, "", "main1"),
    );
    pods.put("web.yaml", &best_effort("web", "web-uid"));
    let settings = Settings::new(&tree.path, &pods, &kernel.all_but_one())
        .with(&["--reconcile-interval", "1s"]);
    let agent = settings.start();
    let web = tree.pod("besteffort", "web-uid");
    let web = tree.container(&web, "web1");
    let web_pid = tree.start(&web);
    let pod = tree.pod("", "worker-uid");
    // A sandbox, which keeps the pod's cgroup wide: a v1 cgroup cannot have more CPUs than its parent.
    let pause = tree.container(&pod, "pause1");
    tree.start(&pause);
    let main = tree.container(&pod, "main1");
    let pid = tree.start(&main);
    let (own, others) = (kernel.last(), kernel.all_but_one());
    let settled = || allowed(pid) == own && allowed(web_pid) == others;
    // A turn before the sandbox's cgroup appears narrows the pod; a later turn makes the pod wide again.
    agent.eventually("all is settled", |status| {
        let is_wide = others.is_subset(&kernel.written(&pod));
        in_force(status, "worker-0") && settled() && is_wide
    });
    let drift = |cause: &str| agent.metric("pinfold_drift_total", &[("cause", cause)]);
    // The maker of a cgroup writes the CPUs too; the test ignores drift from this race.
    let (written, overlap) = (drift("written").unwrap(), drift("overlap").unwrap());

    // A foreign write moves the owner's set onto another CPU.
    kernel.write_cpus(&main, &kernel.first());
    agent.eventually("the owner is back", |_| settled());
    agent.eventually("the drift is counted", |_| {
        drift("written") == Some(written + 1.0)
    });

    // A foreign write extends another container's set onto the owner's CPU.
    kernel.write_cpus(&web, &kernel.online);
    agent.eventually("the other container is back", |_| settled());
    agent.eventually("the drift is counted", |_| {
        drift("overlap") == Some(overlap + 1.0)
    });
    // The status names the cgroups that were on the owner's CPUs, also after the end of the overlap.
    let status = agent.eventually("the overlap is reported", |status| {
        container(status, "web", "main").is_some_and(|web| web["repaired"]["cause"] == "overlap")
    });
    let reported = container(&status, "web", "main").unwrap()["repaired"]["others"].clone();
    let expected = serde_json::json!([
        {"path": main, "pod": "train/worker-0", "container": "main", "cpus": own.to_string()}
    ]);
    assert_eq!(reported, expected);
    let message = format!(
        "{web} should run on shared CPUs and runs on {}; also on these CPUs: train/worker-0/main ({main}) on {own}",
        kernel.online
    );
    agent.eventually("the overlap is logged", |_| agent.log().contains(&message));

    // Without a further write the counters stay.
    let timer = || {
        agent
            .metric("pinfold_reconcile_total", &[("trigger", "timer")])
            .unwrap_or(0.0)
    };
    let turns = timer();
    agent.eventually("two more reconciles", |_| timer() >= turns + 2.0);
    assert_eq!(
        (drift("written"), drift("overlap")),
        (Some(written + 1.0), Some(overlap + 1.0))
    );
    assert_eq!(
        (drift("ancestor"), drift("offline")),
        (Some(0.0), Some(0.0))
    );
    let status = agent.status().unwrap();
    assert_eq!(status["drift"].as_array().unwrap().len(), 0, "{status:#}");
    agent.stop();
}

#[test]
fn a_runtime_that_writes_after_the_agent_is_noticed_at_once() {
    let Some(kernel) = kernel_tests() else { return };
    let mut tree = kernel.tree();
    let pods = Manifests::new();
    pods.put("worker.yaml", &worker("worker-0", "worker-uid", 1));
    // With this interval no timer turn can help.
    let settings = Settings::new(&tree.path, &pods, &kernel.all_but_one())
        .with(&["--reconcile-interval", "3600s"]);
    let agent = settings.start();
    let pod = tree.pod("", "worker-uid");
    let main = tree.container(&pod, "main1");
    let pid = tree.start(&main);
    agent.eventually("the worker is pinned", |_| allowed(pid) == kernel.last());
    for (class, uid) in [("", "a"), ("burstable", "b"), ("besteffort", "c")] {
        let pod = tree.pod(class, uid);
        let path = tree.container(&pod, "c1");
        let other = tree.start(&path);
        agent.eventually("a new process is shared", |_| {
            allowed(other) == kernel.all_but_one()
        });
        // runc writes the CPUs of a new container after the cgroup has appeared.
        kernel.write_cpus(&pod, &kernel.online);
        kernel.write_cpus(&path, &kernel.online);
        agent.eventually(&format!("{path} is moved away again"), |_| {
            allowed(other) == kernel.all_but_one()
        });
    }
    agent.stop();
}
