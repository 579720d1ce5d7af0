//! An assignment during the life of the pod and at the end.

use pinfold::cpu::CpuSet;

use crate::agent::{
    Manifests, Settings, assigned, best_effort, container, in_force, worker, worker_with,
};
use crate::kernel::{allowed, kernel_tests};

#[test]
fn an_assignment_outlives_its_container_but_not_its_pod() {
    let Some(kernel) = kernel_tests() else { return };
    let mut tree = kernel.tree();
    let pods = Manifests::new();
    pods.put("worker.yaml", &worker("worker-0", "worker-uid", 1));
    pods.put("web.yaml", &best_effort("web", "web-uid"));
    let agent = Settings::new(&tree.path, &pods, &kernel.first()).start();
    let web = tree.pod("besteffort", "web-uid");
    let web = tree.container(&web, "web1");
    let web_pid = tree.start(&web);
    let pod = tree.pod("", "worker-uid");
    let first = tree.container(&pod, "main1");
    tree.start(&first);
    let status = agent.eventually("the worker is pinned", |status| {
        in_force(status, "worker-0") && kernel.cgroups.assignment_record(&pod).unwrap().is_some()
    });
    let own = assigned(&status, "worker-0").unwrap();

    tree.remove(&first);
    let status = agent.eventually("the container is gone", |status| {
        container(status, "worker-0", "main").is_some_and(|container| container["cgroup"].is_null())
    });
    assert_eq!(
        assigned(&status, "worker-0"),
        Some(own.clone()),
        "the CPUs stay claimed"
    );
    assert!(allowed(web_pid).is_disjoint(&own));

    let second = tree.container(&pod, "main2");
    let pid = tree.start(&second);
    agent.eventually("the next container is pinned", |_| allowed(pid) == own);

    // The end of the pod in the kubelet's order: cgroups first, then the API.
    tree.remove(&pod);
    pods.remove("worker.yaml");
    agent.eventually("the CPUs are free", |status| status["exclusive"] == "");
    agent.eventually("the shared container has all CPUs", |_| {
        allowed(web_pid) == kernel.online
    });
    assert_eq!(kernel.written(&web), kernel.online);
    agent.stop();
}

#[test]
fn an_annotation_releases_a_running_pod() {
    let Some(kernel) = kernel_tests() else { return };
    let mut tree = kernel.tree();
    let pods = Manifests::new();
    pods.put("worker.yaml", &worker("worker-0", "worker-uid", 1));
    let agent = Settings::new(&tree.path, &pods, &kernel.first()).start();
    let pod = tree.pod("", "worker-uid");
    kernel.set_quota(&pod, 1);
    let main = tree.container(&pod, "main1");
    kernel.set_quota(&main, 1);
    let pid = tree.start(&main);
    agent.eventually("the worker is pinned without a quota", |status| {
        in_force(status, "worker-0")
            && kernel.quota(&main).is_none()
            && kernel.quota(&pod).is_none()
    });
    assert_eq!(allowed(pid).len(), 1);

    pods.put(
        "worker.yaml",
        &worker_with("worker-0", "worker-uid", 1, "pinfold.io/cpus: shared", ""),
    );
    let status = agent.eventually("the worker is shared", |status| {
        assigned(status, "worker-0").is_none() && allowed(pid) == kernel.online
    });
    agent.eventually("the quota is back", |_| {
        (kernel.quota(&main), kernel.quota(&pod)) == (Some(100_000), Some(100_000))
    });
    let reason =
        container(&status, "worker-0", "main").unwrap()["entitlement"]["reason"].to_string();
    assert!(reason.contains("pinfold.io/cpus"), "{reason}");

    pods.put("worker.yaml", &worker("worker-0", "worker-uid", 1));
    agent.eventually("and pinned again", |_| {
        allowed(pid).len() == 1 && kernel.quota(&main).is_none()
    });
    agent.stop();
}

#[test]
fn a_container_waits_while_too_few_cpus_are_free() {
    let Some(kernel) = kernel_tests() else { return };
    let mut tree = kernel.tree();
    let pods = Manifests::new();
    let cpus = kernel.online.len() - 1;
    pods.put("a.yaml", &worker("worker-0", "uid-0", cpus));
    let agent = Settings::new(&tree.path, &pods, &kernel.first()).start();
    let first = tree.pod("", "uid-0");
    let main = tree.container(&first, "main0");
    let pid = tree.start(&main);
    let own = kernel.online.difference(&kernel.first());
    agent.eventually("the first is pinned", |_| allowed(pid) == own);

    pods.put("b.yaml", &worker("worker-1", "uid-1", cpus));
    let second = tree.pod("", "uid-1");
    let main = tree.container(&second, "main1");
    kernel.set_quota(&main, u64::try_from(cpus).unwrap());
    let pid = tree.start(&main);
    let status = agent.eventually("the second is in the shared pool", |status| {
        container(status, "worker-1", "main").is_some_and(|container| container["running"] == true)
            && allowed(pid) == kernel.first()
    });
    let worker = container(&status, "worker-1", "main").unwrap();
    assert_eq!(worker["assigned"], serde_json::Value::Null);
    let note = worker["note"].as_str().unwrap();
    assert!(
        note.contains("shared pool") && note.contains("0 free"),
        "{note}"
    );
    assert_eq!(
        kernel.quota(&main),
        Some(u64::try_from(cpus).unwrap() * 100_000),
        "a container without exclusive CPUs keeps its quota"
    );

    tree.remove(&first);
    pods.remove("a.yaml");
    agent.eventually("the second worker gets CPUs", |status| {
        in_force(status, "worker-1") && allowed(pid) == own
    });
    agent.stop();
}

#[test]
fn an_unreadable_manifest_changes_no_assignment() {
    let Some(kernel) = kernel_tests() else { return };
    let mut tree = kernel.tree();
    let pods = Manifests::new();
    pods.put("worker.yaml", &worker("worker-0", "worker-uid", 1));
    let agent = Settings::new(&tree.path, &pods, &kernel.first()).start();
    let pod = tree.pod("", "worker-uid");
    let main = tree.container(&pod, "main1");
    let pid = tree.start(&main);
    let status = agent.eventually("the worker is pinned", |status| {
        in_force(status, "worker-0")
    });
    let own: CpuSet = assigned(&status, "worker-0").unwrap();

    // A new file that is no manifest, and a file that was a valid manifest before.
    for (file, text) in [
        ("broken.yaml", "kind: Pod\nmetadata: ["),
        ("worker.yaml", "kind: Deployment\n"),
    ] {
        pods.put(file, text);
        let status = agent.eventually("the file is named", |status| {
            status["errors"]
                .as_array()
                .unwrap()
                .iter()
                .any(|error| error.as_str().unwrap().contains(file))
        });
        assert_eq!(assigned(&status, "worker-0"), Some(own.clone()));
        assert_eq!(allowed(pid), own);
    }
    assert_eq!(agent.metric("pinfold_manifest_errors", &[]), Some(2.0));
    let ready = agent.get("/readyz");
    assert_eq!(ready.status, 200);
    assert!(ready.body.contains("broken.yaml"), "{}", ready.body);

    pods.remove("broken.yaml");
    pods.put("worker.yaml", &worker("worker-0", "worker-uid", 1));
    agent.eventually("all is well", |status| {
        status["errors"].as_array().unwrap().is_empty()
    });
    assert_eq!(agent.metric("pinfold_manifest_errors", &[]), Some(0.0));
    assert_eq!(allowed(pid), own);
    agent.stop();
}

#[test]
fn a_pipe_in_the_manifest_folder_blocks_no_pod() {
    let Some(kernel) = kernel_tests() else { return };
    let tree = kernel.tree();
    let pods = Manifests::new();
    let pipe = pods.path().join("pipe.yaml");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
    std::fs::create_dir(pods.path().join("folder.yaml")).unwrap();
    pods.put("worker.yaml", &worker("worker-0", "worker-uid", 1));
    let agent = Settings::new(&tree.path, &pods, &kernel.first()).start();
    let status = agent.eventually("the manifest is read", |status| {
        container(status, "worker-0", "main").is_some()
    });
    let errors = status["errors"].to_string();
    assert!(
        errors.contains("pipe.yaml") && errors.contains("folder.yaml"),
        "{errors}"
    );
    agent.stop();
}
