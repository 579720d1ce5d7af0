//! A pod appears and is pinned, in every order of events and with every naming of cgroups.

use pinfold::cpu::CpuSet;

use crate::agent::{
    Agent, Manifests, Settings, assigned, best_effort, container, in_force, pinfold, worker,
    worker_with,
};
use crate::kernel::{allowed, kernel_tests};

#[test]
fn manifest_then_cgroup() {
    let Some(kernel) = kernel_tests() else { return };
    let mut tree = kernel.tree();
    let pods = Manifests::new();
    let agent = Settings::new(&tree.path, &pods, &kernel.all_but_one()).start();
    let own = kernel.last();
    let others = kernel.all_but_one();

    let web = tree.pod("besteffort", "web-uid");
    let web = tree.container(&web, "web1");
    let web_pid = tree.start(&web);
    assert_eq!(allowed(web_pid), kernel.online);
    pods.put("web.yaml", &best_effort("web", "web-uid"));
    pods.put("worker.yaml", &worker("worker-0", "worker-uid", 1));
    let status = agent.eventually("the worker is known", |status| {
        container(status, "worker-0", "main").is_some()
    });
    assert_eq!(
        assigned(&status, "worker-0"),
        None,
        "a pod without a cgroup narrows no container"
    );
    assert_eq!(allowed(web_pid), kernel.online);

    let pod = tree.pod("", "worker-uid");
    kernel.set_quota(&pod, 1);
    let main = tree.container(&pod, "main1");
    kernel.set_quota(&main, 1);
    let pid = tree.start(&main);
    let status = agent.eventually("the worker is pinned", |status| {
        in_force(status, "worker-0")
            && container(status, "worker-0", "main").is_some_and(|container| {
                container["running"] == true && container["unpinnedSeconds"].is_number()
            })
            && kernel.quota(&main).is_none()
            && kernel.quota(&pod).is_none()
            && kernel.effective(&web) == others
    });

    // The kernel's own words.
    assert_eq!(kernel.written(&main), own);
    assert_eq!(kernel.effective(&main), own);
    assert_eq!(kernel.effective(&pod), own);
    assert_eq!(kernel.written(&web), others);
    assert_eq!(allowed(pid), own);
    assert_eq!(allowed(web_pid), others);
    assert_eq!(kernel.quota(&main), None, "quota of the container");
    assert_eq!(kernel.quota(&pod), None, "quota of the pod");

    // The agent's status.
    assert_eq!(status["exclusive"], own.to_string());
    assert_eq!(status["shared"], others.to_string());
    assert_eq!(status["reserved"], others.to_string());
    let reported = container(&status, "worker-0", "main").unwrap();
    assert_eq!(reported["role"], "worker");
    assert_eq!(reported["qos"], "Guaranteed");
    assert_eq!(reported["cgroup"], main.as_str());
    assert_eq!(
        container(&status, "web", "main").unwrap()["assigned"],
        serde_json::Value::Null
    );
    assert_eq!(status["errors"].as_array().unwrap().len(), 0, "{status:#}");

    // A plan that begins with the node's present state: the newcomer's name sorts first and changes nothing.
    pods.put("newcomer.yaml", &worker("newcomer", "newcomer-uid", 1));
    let mut plan = pinfold();
    plan.args([
        "plan",
        "--live",
        "-o",
        "json",
        "--reserved",
        &others.to_string(),
        "--pod-cgroup",
        &tree.path,
    ]);
    let output = plan.arg("--pods").arg(pods.path()).output().unwrap();
    // The newcomer finds no CPU, and the plan says so.
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let planned: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let of = |pod: &str| {
        let mut containers = planned["containers"].as_array().unwrap().iter();
        containers
            .find(|container| container["pod"] == pod)
            .unwrap()
            .clone()
    };
    assert_eq!(
        (&of("worker-0")["cpus"], &of("worker-0")["exclusive"]),
        (&own.to_string().into(), &true.into())
    );
    assert_eq!(of("newcomer")["exclusive"], false, "{planned:#}");

    let labels = [
        ("namespace", "train"),
        ("pod", "worker-0"),
        ("container", "main"),
    ];
    assert_eq!(
        agent.metric("pinfold_container_cpus_assigned", &labels),
        Some(1.0)
    );
    assert_eq!(
        agent.metric("pinfold_container_cpus_allowed", &labels),
        Some(1.0)
    );
    assert_eq!(
        agent.metric("pinfold_pod_owned_cpus", &labels[..2]),
        Some(1.0)
    );
    assert!(
        agent
            .metric("pinfold_container_threads_expected", &labels)
            .unwrap()
            >= 1.0
    );
    assert_eq!(
        agent.metric("pinfold_container_threads", &labels),
        Some(1.0)
    );
    assert!(
        agent
            .metric("pinfold_container_context_switches_total", &labels)
            .is_some()
    );
    agent.eventually("every collector has read all in its time", |_| {
        agent.metric("pinfold_collector_success", &[]) == Some(13.0)
    });
    assert_eq!(
        agent
            .metric("pinfold_reconcile_steps_total", &[("outcome", "failed")])
            .unwrap_or(0.0),
        0.0
    );
    assert_eq!(
        agent.metric("pinfold_container_unpinned_seconds_count", &[]),
        Some(1.0)
    );
    let window = agent
        .metric("pinfold_container_unpinned_seconds_sum", &[])
        .unwrap();
    assert!(
        window < 1.0,
        "pinned {window} s after the first instruction"
    );
    // Both texts are decimals and are parsed separately.
    assert!(
        (reported["unpinnedSeconds"].as_f64().unwrap() - window).abs() < 1e-9,
        "{reported}"
    );
    let web = [("pod", "web"), ("container", "main")];
    assert_eq!(
        agent.metric("pinfold_container_cpus_assigned", &web),
        Some(0.0)
    );
    agent.stop();
}

#[test]
fn cgroup_then_manifest_with_a_sandbox() {
    let Some(kernel) = kernel_tests() else { return };
    let mut tree = kernel.tree();
    let pods = Manifests::new();
    let agent = Settings::new(&tree.path, &pods, &kernel.all_but_one()).start();
    let pod = tree.pod("", "0a-1b");
    let pause = tree.container(&pod, "5a4db0e5");
    let pause_pid = tree.start(&pause);
    let main = tree.container(&pod, "c0ffee");
    let pid = tree.start(&main);
    let id = "containerd://other";
    assert!(!worker("x", "y", 1).contains(id));

    // Two cgroups and no status: the agent cannot know which cgroup is the container's.
    pods.put("worker.yaml", &worker("worker-0", "0a-1b", 1));
    agent.eventually("the pod is known", |status| {
        assigned(status, "worker-0").is_some()
    });
    assert_eq!(
        allowed(pid),
        kernel.all_but_one(),
        "no container runs alone on the assigned CPU yet"
    );

    pods.put(
        "worker.yaml",
        &worker_with("worker-0", "0a-1b", 1, "", "c0ffee"),
    );
    agent.eventually("the container is pinned", |status| {
        in_force(status, "worker-0")
    });
    assert_eq!(allowed(pid), kernel.last());
    assert_eq!(kernel.written(&main), kernel.last());
    assert_eq!(
        allowed(pause_pid),
        kernel.all_but_one(),
        "the sandbox stays in the shared pool"
    );
    assert_eq!(
        kernel.effective(&pod),
        kernel.online,
        "the pod holds the CPUs of both cgroups"
    );
    agent.stop();
}

#[test]
fn systemd_names() {
    let Some(kernel) = kernel_tests() else { return };
    let mut tree = kernel.tree_named("kubepods.slice", &["kubepods-besteffort.slice"]);
    let pods = Manifests::new();
    pods.put("worker.yaml", &worker("worker-0", "8f0d6986-3554-402b", 1));
    let agent = Settings::new(&tree.path, &pods, &kernel.first()).start();
    let web = tree.make(&format!(
        "{0}/kubepods-besteffort.slice/kubepods-besteffort-podbe_1.slice",
        tree.path
    ));
    let web = tree.make(&format!("{web}/cri-containerd-beef.scope"));
    let web_pid = tree.start(&web);
    let pod = tree.make(&format!(
        "{}/kubepods-pod8f0d6986_3554_402b.slice",
        tree.path
    ));
    let main = tree.make(&format!("{pod}/cri-containerd-c0ffee.scope"));
    let pid = tree.start(&main);
    let status = agent.eventually("the worker is pinned", |status| {
        in_force(status, "worker-0")
    });
    let own = assigned(&status, "worker-0").unwrap();
    assert_eq!(own.len(), 1);
    assert_eq!(allowed(pid), own);
    agent.eventually("the shared container is moved away", |_| {
        allowed(web_pid).is_disjoint(&own)
    });
    agent.stop();
}

#[test]
fn a_live_plan_reserves_no_core_that_is_owned() {
    let Some(kernel) = kernel_tests() else { return };
    let mut tree = kernel.tree();
    let pods = Manifests::new();
    pods.put("worker.yaml", &worker("worker-0", "worker-uid", 1));
    let others = kernel.online.difference(&kernel.first());
    let agent = Settings::new(&tree.path, &pods, &others).start();
    let pod = tree.pod("", "worker-uid");
    let main = tree.container(&pod, "main1");
    tree.start(&main);
    agent.eventually("the worker owns the first CPU", |status| {
        in_force(status, "worker-0") && assigned(status, "worker-0") == Some(kernel.first())
    });
    agent.stop();
    let mut plan = pinfold();
    plan.args([
        "plan",
        "--live",
        "-o",
        "json",
        "--pod-cgroup",
        &tree.path,
        "--pods",
    ])
    .arg(pods.path());
    let output = plan.output().unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let planned: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let reserved: CpuSet = planned["reserved"].as_str().unwrap().parse().unwrap();
    assert!(
        !reserved.is_empty() && reserved.is_disjoint(&kernel.first()),
        "{planned:#}"
    );
    let own = &planned["containers"][0]["cpus"];
    assert_eq!(own, &kernel.first().to_string(), "{planned:#}");
}

#[test]
fn a_container_that_ended_for_good_gives_its_cpus_to_the_next_pod() {
    let Some(kernel) = kernel_tests() else { return };
    let mut tree = kernel.tree();
    let pods = Manifests::new();
    let all = kernel.online.len() - 1;
    // One container computes first and ends; the other waits on shared CPUs. Both are in one pod.
    let manifest = |policy: &str, state: &str| {
        format!(
            "{}  - name: rest\n    image: tf\n    resources: {{limits: {{cpu: 500m, memory: 1Gi}}}}
  restartPolicy: {policy}
status:
  phase: Running
  containerStatuses:
  - {{name: main, containerID: 'containerd://main', state: {state}}}
  - {{name: rest, containerID: 'containerd://rest', state: {{running: {{}}}}}}
",
            worker("both", "both-uid", all)
        )
    };
    let pod = tree.pod("", "both-uid");
    let (main, rest) = (tree.container(&pod, "main"), tree.container(&pod, "rest"));
    tree.start(&main);
    tree.start(&rest);
    pods.put("both.yaml", &manifest("Never", "{running: {}}"));
    let agent = Settings::new(&tree.path, &pods, &kernel.first())
        .with(&["--reconcile-interval=1s"])
        .start();
    let own = kernel.online.difference(&kernel.first());
    agent.eventually("the first container owns the CPUs", |status| {
        in_force(status, "both") && status["exclusive"] == own.to_string()
    });
    tree.remove(&main);
    // A container that is started again keeps its CPUs.
    let failed = "{terminated: {exitCode: 1}}";
    pods.put("both.yaml", &manifest("OnFailure", failed));
    agent.eventually("the failed container is known", |status| {
        container(status, "both", "main").is_some_and(|main| main["running"] == false)
    });
    two_intervals(&agent);
    let status = agent.status().unwrap();
    assert_eq!(assigned(&status, "both"), Some(own.clone()));
    pods.put("both.yaml", &manifest("Never", failed));
    let status = agent.eventually("no CPU is exclusive any more", |status| {
        status["exclusive"] == ""
    });
    let main = container(&status, "both", "main").unwrap();
    let reason = main["entitlement"]["reason"].as_str().unwrap();
    assert!(reason.contains("has ended"), "{reason}");
    assert_eq!(status["shared"], kernel.online.to_string());
    assert_eq!(kernel.effective(&rest), kernel.online);
    // The next pod gets all of them.
    let next = tree.pod("", "next-uid");
    let next = tree.container(&next, "next");
    tree.start(&next);
    pods.put(
        "next.yaml",
        &worker_with("next", "next-uid", all, "", "next"),
    );
    agent.eventually("the next pod owns the CPUs", |status| {
        in_force(status, "next")
    });
    assert_eq!(kernel.effective(&next), own);
    assert_eq!(kernel.effective(&rest), kernel.first());
    agent.stop();
}

/// Waits until two more turns have run.
fn two_intervals(agent: &Agent) {
    let turns = || agent.metric("pinfold_reconcile_total", &[]).unwrap_or(0.0);
    let before = turns();
    agent.eventually("two more turns", |_| turns() >= before + 2.0);
}
