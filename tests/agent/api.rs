//! Pods from the Kubernetes API: the program, the real kernel, and a fake API server on a real socket.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::runtime::Runtime;

use crate::agent::{Agent, Settings, assigned, container, in_force, patience};
use crate::fakeapi::{FakeApi, Fault, FaultScope, WatchFault};
use crate::kernel::{Kernel, Tree, allowed, kernel_tests};
use crate::runtime_requests::{Runtime as ContainerRuntime, event_message, path};
use crate::serving::promtool;

pub(crate) const NODE: &str = "node-1";

/// An API server and the way to it.
pub(crate) struct Cluster {
    pub(crate) fake: FakeApi,
    runtime: Runtime,
    folder: TempDir,
}

// === impl Cluster ===

impl Cluster {
    pub(crate) fn new() -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let fake = runtime.block_on(FakeApi::start());
        fake.put(&json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "train"}}));
        let folder = TempDir::new().unwrap();
        // The agent has the shipped rights, and the shipped policies limit the agent to its node.
        fake.install_shipped();
        let token = fake.agent_on(NODE);
        std::fs::write(folder.path().join("kubeconfig"), fake.kubeconfig(&token)).unwrap();
        Self {
            fake,
            runtime,
            folder,
        }
    }

    pub(crate) fn kubeconfig(&self) -> String {
        self.folder
            .path()
            .join("kubeconfig")
            .to_str()
            .unwrap()
            .to_owned()
    }

    pub(crate) fn settings(&self, tree: &Tree<'_>, kernel: &Kernel) -> Settings {
        let kubeconfig = self.kubeconfig();
        Settings::without_manifests(&tree.path, &kernel.all_but_one()).with(&[
            "--kubeconfig",
            &kubeconfig,
            "--node-name",
            NODE,
            "--reconcile-interval",
            "1s",
        ])
    }

    pub(crate) fn put(&self, pod: &Value) -> Value {
        let _here = self.runtime.enter();
        self.fake.put(pod)
    }

    /// Stores the pod of the node's agent, which listens on `address`.
    #[cfg(feature = "portforward")]
    pub(crate) fn put_agent(&self, name: &str, address: std::net::SocketAddr) {
        let _here = self.runtime.enter();
        self.fake.put_agent(name, NODE, address);
    }

    /// The fake server serves a kind only some time after its definition, as a real server does.
    pub(crate) fn establish(&self) {
        let _here = self.runtime.enter();
        self.fake.run_controllers();
    }

    pub(crate) fn remove(&self, object: &Value) {
        let _here = self.runtime.enter();
        self.fake.remove(object);
    }

    /// The Events, as reason, pod's name and note.
    pub(crate) fn events(&self) -> Vec<(String, String, String)> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let events = self.fake.all("events.k8s.io/v1", "Event").into_iter();
        events
            .map(|event| {
                (
                    text(&event["reason"]),
                    text(&event["regarding"]["name"]),
                    text(&event["note"]),
                )
            })
            .collect()
    }

    /// Waits for an Event and returns its note.
    pub(crate) fn event(&self, agent: &Agent, reason: &str, pod: &str) -> String {
        let deadline = Instant::now() + patience();
        loop {
            let found = self
                .events()
                .into_iter()
                .find(|event| event.0 == reason && event.1 == pod);
            if let Some((_, _, note)) = found {
                return note;
            }
            assert!(
                Instant::now() < deadline,
                "no {reason} on {pod}: {:?}\n{}",
                self.events(),
                agent.log()
            );
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// The write requests that the server has received.
    pub(crate) fn writes(&self) -> Vec<String> {
        let log = self.fake.log().into_iter();
        let writes = log.filter(|asked| !matches!(&*asked.verb, "get" | "list" | "watch"));
        writes
            .map(|asked| format!("{} {} {}", asked.verb, asked.plural, asked.name))
            .collect()
    }
}

/// A worker of a TFJob with one CPU. The container runs as `main1`.
pub(crate) fn pod(name: &str, node: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": name, "namespace": "train", "uid": format!("{name}-uid"),
            "labels": {"training.kubeflow.org/job-name": "job", "training.kubeflow.org/replica-type": "worker"},
        },
        "spec": {
            "nodeName": node,
            "containers": [{
                "name": "main", "image": "tf",
                "env": [{"name": "OMP_NUM_THREADS", "value": "7"}],
                "resources": {"limits": {"cpu": "1", "memory": "1Gi"}},
            }],
        },
        "status": status_of("main1"),
    })
}

/// The status that the kubelet writes once the container of a pod has the id.
pub(crate) fn status_of(id: &str) -> Value {
    json!({"containerStatuses": [{
        "name": "main", "image": "tf", "imageID": "", "ready": true, "restartCount": 0,
        "containerID": format!("containerd://{id}"),
    }]})
}

/// Waits until the clock has made the agent look twice more.
pub(crate) fn two_reconciles(agent: &Agent) {
    let timer = || {
        agent
            .metric("pinfold_reconcile_total", &[("trigger", "timer")])
            .unwrap_or(0.0)
    };
    let turns = timer();
    agent.eventually("two more reconciles", |_| timer() >= turns + 2.0);
}

/// The limit for steps that take several attempts, with waits between the attempts.
pub(crate) fn long() -> Duration {
    patience() * 9
}

#[test]
fn a_pod_is_pinned_and_reported_and_the_agent_then_writes_nothing() {
    let Some(kernel) = kernel_tests() else { return };
    let mut tree = kernel.tree();
    let cluster = Cluster::new();
    let agent = cluster.settings(&tree, &kernel).start();
    agent.eventually("the agent has the first list", |status| {
        status["cluster"]["complete"] == true
    });
    assert_eq!(agent.get("/readyz").status, 200);

    let stored = cluster.put(&pod("worker-0", NODE));
    cluster.put(&pod("stranger", "node-2"));
    let cgroup = tree.pod("", "worker-0-uid");
    // A sandbox, which keeps the pod's cgroup wide: a v1 cgroup cannot have more CPUs than its parent.
    let pause = tree.container(&cgroup, "pause1");
    tree.start(&pause);
    let main = tree.container(&cgroup, "main1");
    let pid = tree.start(&main);
    // The agent may be faster than the program that makes the cgroup; the program's first write is then a drift to repair.
    let status = agent.eventually("the worker is pinned", |status| {
        in_force(status, "worker-0") && allowed(pid) == kernel.last()
    });
    let own = assigned(&status, "worker-0").unwrap();
    assert_eq!(own, kernel.last());
    assert!(
        container(&status, "stranger", "main").is_none(),
        "{status:#}"
    );
    let note = cluster.event(&agent, "Pinned", "worker-0");
    let enforcement = status["enforcement"].as_str().unwrap();
    assert!(
        note.contains(&format!("exclusive CPU {own}")) && note.contains(enforcement),
        "{note}"
    );
    let kept = cluster.event(&agent, "ValueKept", "worker-0");
    assert!(kept.contains("OMP_NUM_THREADS"), "{kept}");

    // The only CPU is given away.
    cluster.put(&pod("worker-1", NODE));
    let second = tree.pod("", "worker-1-uid");
    let second = tree.container(&second, "main1");
    tree.start(&second);
    let note = cluster.event(&agent, "Refused", "worker-1");
    assert!(
        note.contains("too few free CPUs: 1 wanted, 0 free"),
        "{note}"
    );

    if enforcement == "cpuset" {
        kernel.write_cpus(&main, &kernel.first());
        agent.eventually("the CPUs are restored", |_| allowed(pid) == own);
        let note = cluster.event(&agent, "DriftRepaired", "worker-0");
        assert!(note.contains(&format!("instead of {own}")), "{note}");
    }

    let kept = || {
        let events = cluster.events().into_iter();
        events.filter(|event| event.0 == "ValueKept").count()
    };
    agent.eventually("both Events about values are written", |_| kept() == 2);

    // A foreign change of the pod's status triggers nothing, and an agent at rest writes nothing.
    two_reconciles(&agent);
    cluster.fake.clear_log();
    let mut beat = stored.clone();
    beat["metadata"]["resourceVersion"] = Value::Null;
    beat["status"]["conditions"] = json!([{"type": "Ready", "status": "True"}]);
    cluster.put(&beat);
    two_reconciles(&agent);
    assert_eq!(cluster.writes(), Vec::<String>::new());
    let events = cluster.events();
    let reasons = |wanted: &str| events.iter().filter(|event| event.0 == wanted).count();
    assert_eq!(
        (reasons("Pinned"), reasons("Refused"), reasons("ValueKept")),
        (1, 1, 2),
        "{events:?}"
    );

    let status = agent.status().unwrap();
    let shown = &status["cluster"];
    assert_eq!(
        (
            &shown["connected"],
            &shown["pods"],
            &shown["unreadablePods"]
        ),
        (&json!(true), &json!(2), &json!(0))
    );
    assert_eq!(
        (&shown["node"], &shown["namespace"]),
        (&json!(NODE), &json!("pinfold"))
    );
    let text = agent.get("/metrics").body;
    promtool(&text);
    // The series of the slot exist only while the node has a slot: see scenes.rs.
    let families = pinfold::metrics::API_FAMILIES
        .iter()
        .filter(|family| family.name != "pinfold_scene_info");
    for family in families {
        assert!(
            text.contains(&format!("# HELP {} {}\n", family.name, family.help)),
            "{}",
            family.name
        );
    }
    assert_eq!(agent.metric("pinfold_api_connected", &[]), Some(1.0));
    assert_eq!(
        agent.metric("pinfold_api_pods", &[("state", "known")]),
        Some(2.0)
    );
    assert_eq!(
        agent.metric("pinfold_api_requests_total", &[("request", "create_event")]),
        Some(cluster.events().len() as f64)
    );

    // The end of the pod in the kubelet's order.
    tree.remove(&cgroup);
    cluster.remove(&stored);
    agent.eventually("the second worker gets the CPU", |status| {
        in_force(status, "worker-1")
    });
    agent.stop();
}

#[test]
fn an_unreachable_api_changes_no_assignment() {
    let Some(kernel) = kernel_tests() else { return };
    let mut tree = kernel.tree();
    let cluster = Cluster::new();
    cluster.put(&pod("worker-0", NODE));
    // On a node of a cluster, a runtime without NRI would be another problem.
    let settings = cluster.settings(&tree, &kernel).with(&["--nri=never"]);
    let agent = settings.start();
    let cgroup = tree.pod("", "worker-0-uid");
    let main = tree.container(&cgroup, "main1");
    let pid = tree.start(&main);
    let status = agent.eventually("the worker is pinned", |status| {
        in_force(status, "worker-0")
    });
    let own = assigned(&status, "worker-0").unwrap();
    cluster.event(&agent, "Pinned", "worker-0");

    cluster.fake.go_away();
    let status = agent.within(long(), "the outage is reported", |status| {
        status["cluster"]["connected"] == false
    });
    let error = status["cluster"]["lastError"].as_str().unwrap();
    // What the HTTP client calls its own layers tells nobody anything.
    let is_plain = !error.contains("ServiceError") && !error.contains("client error");
    assert!(error.contains("can't be reached") && is_plain, "{error}");
    assert_eq!(assigned(&status, "worker-0"), Some(own.clone()));
    // The wait on purpose is announced with its end.
    let status = agent.within(long(), "a wait of some seconds", |status| {
        let problem = status["cluster"]["problem"].as_str().unwrap_or_default();
        problem.contains("; the agent tries again at 20")
    });
    let until = status["cluster"]["waitsUntil"].as_str().unwrap();
    let problem = status["cluster"]["problem"].as_str().unwrap();
    assert!(problem.ends_with(until), "{status:#}");
    let ready = agent.get("/readyz");
    assert!(
        ready.status == 200 && ready.body.contains("the known pods stay"),
        "{ready:?}"
    );
    assert_eq!(agent.metric("pinfold_api_connected", &[]), Some(0.0));
    agent.stop();

    // A restart without the API: the kernel holds all assignments.
    let mark = kernel.cgroups.assignment_record(&cgroup).unwrap();
    let agent = settings.start();
    two_reconciles(&agent);
    let status = agent.status().unwrap();
    assert_eq!(
        status["unknownOwners"][0]["cpus"],
        own.to_string(),
        "{status:#}"
    );
    assert_eq!(
        (status["cluster"]["complete"].as_bool(), allowed(pid)),
        (Some(false), own.clone())
    );
    let ready = agent.get("/readyz");
    assert!(
        ready.status == 503 && ready.body.contains("waits for the first list"),
        "{ready:?}"
    );
    assert_eq!(
        agent.metric("pinfold_reconcile_steps_total", &[]),
        None,
        "the agent wrote nothing"
    );
    // Pods from before the restart cause no new Events.
    let events = cluster.events();
    cluster.fake.come_back();
    agent.within(long(), "the pods are known again", |status| {
        status["cluster"]["connected"] == true && in_force(status, "worker-0")
    });
    assert_eq!(agent.get("/readyz").body, "ready\n");
    two_reconciles(&agent);
    assert_eq!(
        agent.metric("pinfold_reconcile_steps_total", &[]),
        None,
        "the agent wrote nothing"
    );
    assert_eq!(
        (
            kernel.cgroups.assignment_record(&cgroup).unwrap(),
            allowed(pid)
        ),
        (mark, own)
    );
    assert_eq!(cluster.events(), events);
    agent.stop();
}

/// Waits until the given number of Events with a reason exist, and a little longer to find a surplus Event.
pub(crate) fn count_events(cluster: &Cluster, agent: &Agent, reason: &str, pod: &str) -> usize {
    cluster.event(agent, reason, pod);
    two_reconciles(agent);
    cluster
        .events()
        .iter()
        .filter(|event| event.0 == reason && event.1 == pod)
        .count()
}

#[test]
fn a_sandbox_is_no_container() {
    let Some(kernel) = kernel_tests() else { return };
    let mut tree = kernel.tree();
    let cluster = Cluster::new();
    let agent = cluster.settings(&tree, &kernel).start();
    // The image is missing: the pod has a sandbox, and will have nothing else for long.
    let mut worker = pod("worker-0", NODE);
    worker["status"] = json!({"containerStatuses": [{
        "name": "main", "image": "tf", "imageID": "", "ready": false, "restartCount": 0,
        "state": {"waiting": {"reason": "ErrImagePull"}},
    }]});
    let stored = cluster.put(&worker);
    let cgroup = tree.pod("", "worker-0-uid");
    let pause = tree.container(&cgroup, "pause1");
    let pause = tree.start(&pause);
    agent.eventually("the pod is known", |status| {
        container(status, "worker-0", "main").is_some()
    });
    two_reconciles(&agent);
    let status = agent.status().unwrap();
    let main = container(&status, "worker-0", "main").unwrap();
    assert_eq!(
        (&main["assigned"], &main["cgroup"]),
        (&Value::Null, &Value::Null),
        "{main:#}"
    );
    assert_eq!(allowed(pause), kernel.online);
    assert_eq!(
        agent.metric("pinfold_container_unpinned_seconds_count", &[]),
        Some(0.0)
    );
    assert_eq!(
        agent
            .metric("pinfold_container_cpus_assigned", &[("pod", "worker-0")])
            .unwrap_or(0.0),
        0.0
    );
    assert_eq!(cluster.events(), []);

    // A running pod is not refused in its place.
    let other = cluster.put(&pod("worker-1", NODE));
    let second = tree.pod("", "worker-1-uid");
    let running = tree.container(&second, "main1");
    tree.start(&running);
    agent.eventually("the second pod is pinned", |status| {
        in_force(status, "worker-1")
    });
    tree.remove(&second);
    cluster.remove(&other);

    // The container appears first, and its status second.
    let main = tree.container(&cgroup, "main2");
    let pid = tree.start(&main);
    two_reconciles(&agent);
    assert_ne!(
        allowed(pid),
        kernel.last(),
        "no source says yet which cgroup is the container's"
    );
    let mut named = stored.clone();
    named["metadata"]["resourceVersion"] = Value::Null;
    named["status"] = status_of("main2");
    cluster.put(&named);
    agent.eventually("the container is pinned", |status| {
        in_force(status, "worker-0") && allowed(pid) == kernel.last()
    });
    assert_eq!(
        count_events(&cluster, &agent, "Pinned", "worker-0"),
        1,
        "{:?}",
        cluster.events()
    );
    assert_eq!(
        agent.metric("pinfold_container_unpinned_seconds_count", &[]),
        Some(2.0)
    );
    assert_ne!(allowed(pause), kernel.last());
    agent.stop();
}

#[test]
fn an_upgrade_frees_what_a_sandbox_holds() {
    let Some(kernel) = kernel_tests() else { return };
    let mut tree = kernel.tree();
    let cgroup = tree.pod("", "worker-0-uid");
    let pause = tree.container(&cgroup, "pause1");
    let pid = tree.start(&pause);
    // Without an API no source reports container ids, and the record has the format of earlier versions everywhere.
    let pods = crate::agent::Manifests::new();
    pods.put(
        "worker.yaml",
        &crate::agent::worker("worker-0", "worker-0-uid", 1),
    );
    let before = Settings::new(&tree.path, &pods, &kernel.all_but_one()).start();
    before.eventually("the sandbox is pinned", |status| {
        in_force(status, "worker-0")
    });
    before.stop();
    assert!(
        kernel
            .cgroups
            .assignment_record(&pause)
            .unwrap()
            .unwrap()
            .contains("main")
    );
    assert_eq!(allowed(pid), kernel.last());

    let cluster = Cluster::new();
    let mut worker = pod("worker-0", NODE);
    worker.as_object_mut().unwrap().remove("status");
    cluster.put(&worker);
    let agent = cluster.settings(&tree, &kernel).start();
    agent.eventually("the sandbox is free", |_| allowed(pid) == kernel.online);
    cluster.put(&pod("worker-1", NODE));
    let second = tree.pod("", "worker-1-uid");
    let running = tree.container(&second, "main1");
    tree.start(&running);
    agent.eventually("the CPU goes to a container", |status| {
        in_force(status, "worker-1")
    });
    assert_eq!(kernel.cgroups.assignment_record(&cgroup).unwrap(), None);
    agent.stop();
}

/// The annotations and the owner of a mirror pod.
pub(crate) fn mirror_of(uid: &str, mut pod: Value) -> Value {
    pod["metadata"]["annotations"] = json!({
        "kubernetes.io/config.hash": uid, "kubernetes.io/config.mirror": uid, "kubernetes.io/config.source": "file",
    });
    pod["metadata"]["ownerReferences"] = json!([{"apiVersion": "v1", "kind": "Node", "name": NODE, "uid": "node-uid", "controller": true}]);
    pod
}

/// An unrelated pod that claims to be the mirror of another pod.
fn impostor(name: &str, uid: &str) -> Value {
    let mut impostor = pod(name, NODE);
    impostor["metadata"]["namespace"] = json!("default");
    impostor["spec"]["containers"][0]["resources"] = json!({});
    mirror_of(uid, impostor)
}

#[test]
fn an_annotation_takes_nothing_from_the_pod_that_has_the_uid() {
    let Some(kernel) = kernel_tests() else { return };
    let mut tree = kernel.tree();
    let cluster = Cluster::new();
    cluster.put(
        &json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE, "uid": "node-uid"}}),
    );
    let agent = cluster.settings(&tree, &kernel).start();
    cluster.put(&pod("worker-0", NODE));
    let cgroup = tree.pod("", "worker-0-uid");
    let main = tree.container(&cgroup, "main1");
    let pid = tree.start(&main);
    agent.eventually("the worker is pinned", |status| {
        in_force(status, "worker-0")
    });

    cluster.put(&impostor("a", "worker-0-uid"));
    let status = agent.eventually("the error is reported", |status| {
        status["errors"]
            .to_string()
            .contains("pod train/worker-0 has that uid")
    });
    assert!(in_force(&status, "worker-0"), "{status:#}");
    two_reconciles(&agent);
    assert!(in_force(&agent.status().unwrap(), "worker-0"));
    assert_eq!(allowed(pid), kernel.last());
    assert_eq!(agent.metric("pinfold_drift_total", &[]), Some(0.0));
    agent.stop();
}

#[test]
fn a_static_pod_is_pinned_by_its_mirror_pod_and_keeps_its_cpus() {
    let Some(kernel) = kernel_tests() else { return };
    let mut tree = kernel.tree();
    let cluster = Cluster::new();
    cluster.put(
        &json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE, "uid": "node-uid"}}),
    );
    let settings = cluster.settings(&tree, &kernel);
    let agent = settings.start();
    cluster.put(&mirror_of("hash", pod("worker-0", NODE)));
    let cgroup = tree.pod("", "hash");
    let main = tree.container(&cgroup, "main1");
    let pid = tree.start(&main);
    agent.eventually("the static pod is pinned", |status| {
        in_force(status, "worker-0")
    });
    assert!(
        cluster
            .event(&agent, "Pinned", "worker-0")
            .contains("exclusive CPU")
    );
    // Metrics name the Pod object, as other metrics about pods do.
    let object = cluster.fake.get("v1", "Pod", "train", "worker-0").unwrap();
    let uid = object["metadata"]["uid"].as_str().unwrap().to_owned();
    assert_eq!(
        agent.metric("pinfold_pod_info", &[("uid", &uid)]),
        Some(1.0)
    );

    cluster.put(&impostor("a", "hash"));
    let reported = |status: &Value| {
        let errors = status["errors"].to_string();
        let named = [
            "pod default/a has the annotations",
            "pod train/worker-0 has the annotations",
            "CPUs of the static pod stay assigned",
        ];
        named.iter().all(|part| errors.contains(part))
    };
    agent.eventually("the error is reported", reported);
    two_reconciles(&agent);
    assert_eq!(allowed(pid), kernel.last());
    agent.stop();
    let agent = settings.start();
    let status = agent.eventually("the error is reported again", reported);
    two_reconciles(&agent);
    assert_eq!(allowed(pid), kernel.last(), "{status:#}");
    assert_eq!(
        agent.metric("pinfold_reconcile_steps_total", &[]),
        None,
        "the agent wrote nothing"
    );
    cluster.remove(&impostor("a", "hash"));
    let status = agent.eventually("the pod is known again", |status| {
        in_force(status, "worker-0")
    });
    assert!(!reported(&status), "{status:#}");
    agent.stop();
}

#[test]
fn two_mirror_pods_of_one_static_pod_get_no_cpus() {
    let Some(kernel) = kernel_tests() else { return };
    let mut tree = kernel.tree();
    let cluster = Cluster::new();
    cluster.put(
        &json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE, "uid": "node-uid"}}),
    );
    cluster.put(&mirror_of("hash", pod("worker-0", NODE)));
    cluster.put(&mirror_of("hash", pod("worker-1", NODE)));
    let agent = cluster.settings(&tree, &kernel).start();
    let cgroup = tree.pod("", "hash");
    let main = tree.container(&cgroup, "main1");
    let pid = tree.start(&main);
    agent.eventually("both are reported", |status| {
        let errors = status["errors"].to_string();
        errors.contains("pod train/worker-0 has the annotations")
            && errors.contains("pod train/worker-1 has the annotations")
    });
    two_reconciles(&agent);
    assert_eq!(allowed(pid), kernel.online);
    // The first pod is deleted, and the second pod remains.
    cluster.remove(&pod("worker-1", NODE));
    agent.eventually("the static pod is pinned", |status| {
        in_force(status, "worker-0")
    });
    agent.stop();
}

#[test]
fn invalid_api_responses_are_retried() {
    let Some(kernel) = kernel_tests() else { return };
    let mut tree = kernel.tree();
    let cluster = Cluster::new();
    cluster.put(&pod("worker-0", NODE));
    let agent = cluster.settings(&tree, &kernel).start();
    let cgroup = tree.pod("", "worker-0-uid");
    let main = tree.container(&cgroup, "main1");
    let pid = tree.start(&main);
    agent.eventually("the worker is pinned", |status| {
        in_force(status, "worker-0")
    });
    let refuse = |code, retry_after| Fault::Refuse {
        code,
        text: "not now",
        retry_after,
    };
    let faults = [
        ("429", refuse(429, Some(1))),
        ("503", refuse(503, None)),
        ("garbage", Fault::Garbage),
        (
            "a line that is none",
            Fault::Watch(WatchFault::Garbage { after: 0 }),
        ),
        ("410", Fault::Watch(WatchFault::Gone { after: 0 })),
    ];
    for (number, (name, fault)) in faults.into_iter().enumerate() {
        cluster.fake.fail(
            FaultScope::always().verb("watch").on("pods").times(1),
            fault,
        );
        cluster.fake.cut();
        let newcomer = format!("newcomer-{number}");
        cluster.put(&pod(&newcomer, NODE));
        let status = agent.within(long(), name, |status| {
            container(status, &newcomer, "main").is_some()
        });
        assert!(in_force(&status, "worker-0"), "{name}: {status:#}");
        assert_eq!(allowed(pid), kernel.last(), "{name}");
        cluster.fake.heal();
    }
    assert_eq!(
        agent.metric("pinfold_api_errors_total", &[("kind", "too_many_requests")]),
        Some(1.0)
    );
    assert_eq!(
        agent.metric("pinfold_api_errors_total", &[("kind", "gone")]),
        Some(1.0)
    );
    assert!(agent.metric("pinfold_api_retries_total", &[]).unwrap() >= 4.0);
    assert_eq!(agent.metric("pinfold_drift_total", &[]), Some(0.0));
    agent.stop();
}

#[test]
fn shutdown_waits_for_no_api_request() {
    let Some(kernel) = kernel_tests() else { return };
    let mut tree = kernel.tree();
    let cluster = Cluster::new();
    cluster.fake.fail(
        FaultScope::always().verb("create").on("events"),
        Fault::Hang,
    );
    cluster.put(&pod("worker-0", NODE));
    let agent = cluster.settings(&tree, &kernel).start();
    let cgroup = tree.pod("", "worker-0-uid");
    let main = tree.container(&cgroup, "main1");
    tree.start(&main);
    agent.eventually("the worker is pinned", |status| {
        in_force(status, "worker-0")
    });
    let asked = || agent.metric("pinfold_api_requests_total", &[("request", "create_event")]);
    agent.eventually("an Event is being sent", |_| asked() == Some(1.0));
    // `stop` requires that the agent ends at once.
    agent.stop();
}

#[test]
fn pods_come_from_the_api_and_from_a_folder() {
    let Some(kernel) = kernel_tests() else { return };
    let tree = kernel.tree();
    let cluster = Cluster::new();
    let pods = crate::agent::Manifests::new();
    // A pod that both sources know, and a pod that only the folder knows.
    cluster.put(&pod("worker-0", NODE));
    pods.put(
        "both.yaml",
        &crate::agent::worker("of-the-folder", "worker-0-uid", 2),
    );
    pods.put("more.yaml", &crate::agent::best_effort("web", "web-uid"));
    let settings = Settings {
        pods: Some(pods.path().to_owned()),
        ..cluster.settings(&tree, &kernel)
    };
    let agent = settings.start();
    let status = agent.eventually("both sources have reported", |status| {
        container(status, "worker-0", "main").is_some()
            && container(status, "web", "main").is_some()
    });
    assert!(
        container(&status, "of-the-folder", "main").is_none(),
        "the API's word counts: {status:#}"
    );
    // A folder that cannot be read leaves pods from the API untouched.
    pods.put("both.yaml", "kind: [");
    let status = agent.eventually("the file is named", |status| {
        status["errors"].to_string().contains("both.yaml")
    });
    assert!(
        container(&status, "worker-0", "main").is_some(),
        "{status:#}"
    );
    agent.stop();
}

#[test]
fn a_failed_first_turn_is_repeated_without_a_trigger() {
    let Some(kernel) = kernel_tests() else { return };
    let tree = kernel.tree();
    let cluster = Cluster::new();
    // No source reports pods, and no answer reports an error.
    cluster
        .fake
        .fail(FaultScope::always().on("pods"), Fault::Hang);
    let agent = cluster.settings(&tree, &kernel).start();
    let descriptors = |most: u32| {
        let (pid, limit) = (format!("--pid={}", agent.id()), format!("--nofile={most}:"));
        assert!(
            std::process::Command::new("prlimit")
                .args([pid, limit])
                .status()
                .unwrap()
                .success()
        );
    };
    let until = |what: &str, there: &dyn Fn() -> bool| {
        let deadline = Instant::now() + long();
        while !there() {
            assert!(Instant::now() < deadline, "{what}: {}", agent.log());
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    descriptors(0);
    until("the first look fails", &|| {
        agent.log().contains("a turn of the reconciler failed")
    });
    descriptors(1024);
    until("it looks again", &|| agent.status().is_some());
    agent.stop();
}

#[test]
fn a_container_that_restarts_while_the_runtime_is_away_is_pinned_by_the_api() {
    let Some(kernel) = kernel_tests() else { return };
    let mut tree = kernel.tree();
    let (cluster, mut runtime) = (Cluster::new(), ContainerRuntime::new());
    let agent = runtime.settings(&cluster.settings(&tree, &kernel)).start();
    runtime.connect(&agent);
    let worker = event_message(&tree, "worker", 1);
    let mut described = pod("worker", NODE);
    described["status"] = status_of("worker-main");
    cluster.put(&described);
    runtime.change(1, &worker);
    assert_eq!(runtime.create(&worker).cpus, Some(kernel.last()));
    tree.make(&path(&worker));
    tree.start(&path(&worker));
    runtime.change(6, &worker);
    agent.eventually("the worker is pinned", |status| in_force(status, "worker"));
    two_reconciles(&agent);

    runtime.disconnect();
    agent.eventually("the runtime is away", |status| {
        status["runtime"]["state"] != "synchronized"
    });
    // What the runtime has reported still holds.
    two_reconciles(&agent);
    assert_eq!(kernel.effective(&path(&worker)), kernel.last());
    tree.remove(&path(&worker));
    let cgroup = path(&worker).rsplit_once('/').unwrap().0.to_owned();
    let again = tree.container(&cgroup, "again");
    tree.start(&again);
    described["status"] = status_of("again");
    cluster.put(&described);
    agent.eventually("the container that started again is pinned", |_| {
        kernel.effective(&again) == kernel.last()
    });
    agent.stop();
}

#[test]
fn a_short_time_limit_of_the_runtime_leaves_time_for_the_decision() {
    let Some(kernel) = kernel_tests() else { return };
    let tree = kernel.tree();
    let (cluster, mut runtime) = (Cluster::new(), ContainerRuntime::new());
    let agent = runtime.settings(&cluster.settings(&tree, &kernel)).start();
    // The agent has 450 ms, less than its longest wait for the API server, which does not know the pod.
    runtime.connect_with_limit(&agent, 600);
    let worker = event_message(&tree, "worker", 1);
    runtime.change(1, &worker);
    assert_eq!(runtime.create(&worker).cpus, Some(kernel.last()));
    agent.stop();
}
