//! Tests of `pinfold scene run` against the fake API server. Kubelets, controllers and agents are small stand-ins here; the live
//! cluster has the real ones.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use pinfold::scene::{Node, ScenePlan, assign, slots};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use crate::agents::{install, put_node};
use crate::fakeapi::{ADMIN, FakeApi};

/// How long a worker trains.
const TRAINS: Duration = Duration::from_millis(1500);

/// A cluster whose jobs run, with a folder for results.
struct Cluster {
    fake: Arc<FakeApi>,
    folder: TempDir,
    life: JoinHandle<()>,
    /// How many workers are to be evicted.
    evictions: Arc<AtomicU32>,
    /// Whether workers end.
    ends: Arc<AtomicBool>,
}

/// How a command ended.
#[derive(Debug)]
struct Ended {
    code: Option<i32>,
    out: String,
    error: String,
}

// === impl Cluster ===

impl Drop for Cluster {
    fn drop(&mut self) {
        self.life.abort();
    }
}

impl Cluster {
    async fn new(nodes: u32) -> Self {
        let fake = Arc::new(FakeApi::start().await);
        install(&fake);
        let pages = serve_pages(Arc::clone(&fake)).await;
        for number in 0..nodes {
            let node = format!("n{number}");
            put_node(&fake, &node, &format!("uid-{node}"));
            fake.put_agent(&format!("agent-{node}"), &node, pages);
        }
        let folder = TempDir::new().unwrap();
        std::fs::write(folder.path().join("admin.conf"), fake.kubeconfig(ADMIN)).unwrap();
        std::fs::write(folder.path().join("plan.yaml"), plan()).unwrap();
        std::fs::write(folder.path().join("job.yaml"), JOB).unwrap();
        let (evictions, ends) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicBool::new(true)));
        let life = tokio::spawn(live(
            Arc::clone(&fake),
            Arc::clone(&evictions),
            Arc::clone(&ends),
        ));
        Self {
            fake,
            folder,
            life,
            evictions,
            ends,
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn command(&self, args: &[&str]) -> tokio::process::Command {
        let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_pinfold"));
        command
            .args(["scene", "run"])
            .args(args)
            .args(["--kubeconfig", "admin.conf"])
            .current_dir(self.folder.path())
            .env_remove("KUBECONFIG")
            .env_remove("KUBERNETES_SERVICE_HOST")
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        command
    }

    async fn run(&self, args: &[&str]) -> Ended {
        let done = self.command(args).output();
        let done = tokio::time::timeout(Duration::from_secs(240), done).await;
        let done = done.expect("the command ends").unwrap();
        Ended {
            code: done.status.code(),
            out: String::from_utf8(done.stdout).unwrap(),
            error: String::from_utf8(done.stderr).unwrap(),
        }
    }

    fn records(&self, folder: &str) -> Vec<Value> {
        let mut files: Vec<PathBuf> = std::fs::read_dir(self.path(folder).join("runs"))
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .collect();
        files.sort();
        files.iter().map(|file| json_of(file)).collect()
    }

    /// Whether nothing of an experiment is left: objects, pods, namespaces, plans, labels of scenes.
    fn is_clean(&self) -> bool {
        let kinds = [
            ("v1", "ConfigMap"),
            ("v1", "Service"),
            ("apps/v1", "Deployment"),
            ("batch/v1", "Job"),
            ("pinfold.io/v1alpha1", "ScenePlan"),
        ];
        let agent = |pod: &Value| pod["metadata"]["namespace"] == "pinfold";
        let labelled = |node: &Value| !node["metadata"]["labels"]["SCENCE"].is_null();
        kinds
            .iter()
            .all(|(version, kind)| self.fake.all(version, kind).is_empty())
            && self.fake.all("v1", "Pod").iter().all(agent)
            && self.fake.all("v1", "Namespace").len() == 1
            && !self.fake.all("v1", "Node").iter().any(labelled)
    }
}

/// Waits until something is so.
async fn until(is_so: impl Fn() -> bool) {
    for _ in 0..1200 {
        if is_so() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("it did not become so within a minute");
}

fn json_of(file: &Path) -> Value {
    serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap()
}

const JOB: &str = "
name: train
image: example/train:1
command: [train]
roles:
  worker: {limits: {cpu: 1, memory: 1Gi}}
  ps: {limits: {cpu: 1, memory: 1Gi}}
";

fn plan() -> String {
    json!({
        "apiVersion": "pinfold.io/v1alpha1", "kind": "ScenePlan", "metadata": {"name": "p"},
        "spec": {
            "nodes": {"selector": {"matchLabels": {"pool": "train"}}},
            "scenes": [
                {"scene": "1", "groups": [{"name": "m", "perNode": {"worker": 2, "ps": 1}}],
                 "cases": [{"case": "1", "nodes": {"m": 1}}, {"case": "4", "nodes": {"m": 20}}]},
                {"scene": "2", "groups": [
                    {"name": "w", "type": "worker", "perNode": {"worker": 2}},
                    {"name": "p", "type": "ps", "perNode": {"ps": 1}},
                 ], "cases": [{"case": "1", "nodes": {"w": 1, "p": 1}}]},
            ],
        },
    })
    .to_string()
}

/// Serves the same page of metrics for each agent: the machine, its CPUs, and the usage of all pods.
async fn serve_pages(fake: Arc<FakeApi>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let fake = Arc::clone(&fake);
            tokio::spawn(async move {
                let mut head = [0; 4096];
                let _ = stream.read(&mut head).await;
                let page = page(&fake);
                let answer = format!(
                    "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{page}",
                    page.len()
                );
                let _ = stream.write_all(answer.as_bytes()).await;
            });
        }
    });
    address
}

fn page(fake: &FakeApi) -> String {
    let mut page =
        "pinfold_node_cpus{state=\"online\"} 8\npinfold_node_cpus{state=\"reserved\"} 2\n\
        pinfold_enforcement_info{enforcement=\"partition\",reason=\"x\"} 1\n\
        pinfold_machine_info{cpu_model=\"some\",emulated=\"true\"} 1\n"
            .to_owned();
    for pod in fake.all("v1", "Pod") {
        let (namespace, name) = (&pod["metadata"]["namespace"], &pod["metadata"]["name"]);
        page += &format!(
            "pinfold_container_cpu_usage_seconds_total{{namespace={namespace},pod={name},container=\"c\"}} 1.5\n"
        );
    }
    page
}

/// The life of the cluster: nodes follow the active plan, controllers make pods, kubelets run them.
async fn live(fake: Arc<FakeApi>, evictions: Arc<AtomicU32>, ends: Arc<AtomicBool>) {
    let mut ages: BTreeMap<String, Duration> = BTreeMap::new();
    let step = Duration::from_millis(100);
    loop {
        label_nodes(&fake);
        for (version, kind) in [("apps/v1", "Deployment"), ("batch/v1", "Job")] {
            for owner in fake.all(version, kind) {
                make_pod(&fake, version, kind, &owner);
            }
        }
        for pod in fake.all("v1", "Pod") {
            if pod["metadata"]["namespace"] == "pinfold" {
                continue;
            }
            let uid = pod["metadata"]["uid"].as_str().unwrap().to_owned();
            let age = ages.entry(uid).or_default();
            *age += step;
            let is_worker = pod["metadata"]["labels"]["job"] == "worker";
            let phase = pod["status"]["phase"].as_str().unwrap_or_default();
            if phase == "Running" && is_worker && evictions.load(Ordering::SeqCst) > 0 {
                evictions.fetch_sub(1, Ordering::SeqCst);
                set_status(
                    &fake,
                    &pod,
                    json!({"phase": "Failed", "reason": "Evicted", "message": "low on memory"}),
                );
            } else if phase.is_empty() {
                set_status(
                    &fake,
                    &pod,
                    status(
                        "Running",
                        &json!({"running": {"startedAt": "2026-11-28T10:00:00Z"}}),
                    ),
                );
            } else if phase == "Running"
                && is_worker
                && *age > TRAINS
                && ends.load(Ordering::SeqCst)
            {
                let ended = json!({"terminated": {
                    "exitCode": 0, "startedAt": "2026-11-28T10:00:00Z", "finishedAt": "2026-11-28T10:01:40Z",
                }});
                write_log(&fake, &pod);
                set_status(&fake, &pod, status("Succeeded", &ended));
            }
        }
        tokio::time::sleep(step).await;
    }
}

/// Gives each node the labels of its slot in the active case, as the agents do.
fn label_nodes(fake: &FakeApi) {
    let objects = fake.all("v1", "Node");
    let nodes: Vec<Node> = objects
        .iter()
        .map(|node| serde_json::from_value(node.clone()).unwrap())
        .collect();
    let mut wanted: BTreeMap<String, Vec<(String, String)>> = BTreeMap::new();
    for plan in fake.all("pinfold.io/v1alpha1", "ScenePlan") {
        let plan: ScenePlan = serde_json::from_value(plan).unwrap();
        let Some(active) = plan.spec.active.clone() else {
            continue;
        };
        let of_case = slots(&plan, &active.scene, &active.case).unwrap();
        for (slot, node) in assign(&plan, &of_case, &nodes).given {
            wanted.extend(node.map(|node| (node, plan.spec.labels.labels(&slot))));
        }
    }
    for mut node in objects {
        let before = node.clone();
        let name = node["metadata"]["name"].as_str().unwrap().to_owned();
        let labels = node["metadata"]["labels"].as_object_mut().unwrap();
        labels.retain(|key, _| !["SCENCE", "CASE", "INDEX", "TYPE"].contains(&key.as_str()));
        for (key, value) in wanted.remove(&name).unwrap_or_default() {
            labels.insert(key, json!(value));
        }
        if node != before {
            node["metadata"]["resourceVersion"] = Value::Null;
            fake.put(&node);
        }
    }
}

/// Makes the pod of a Job or a Deployment, on the node with the labels that its template asks for.
fn make_pod(fake: &FakeApi, version: &str, kind: &str, owner: &Value) {
    let (name, namespace) = (&owner["metadata"]["name"], &owner["metadata"]["namespace"]);
    let pod_name = format!("{}-x", name.as_str().unwrap());
    if fake
        .get("v1", "Pod", namespace.as_str().unwrap(), &pod_name)
        .is_some()
    {
        return;
    }
    let template = &owner["spec"]["template"];
    let terms = &template["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        ["nodeSelectorTerms"][0]["matchExpressions"];
    let fits = |node: &Value| {
        terms.as_array().unwrap().iter().all(|term| {
            node["metadata"]["labels"][term["key"].as_str().unwrap()] == term["values"][0]
        })
    };
    let Some(node) = fake.all("v1", "Node").into_iter().find(|node| fits(node)) else {
        return;
    };
    let mut spec = template["spec"].clone();
    spec["nodeName"] = node["metadata"]["name"].clone();
    fake.put(&json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": pod_name, "namespace": namespace, "uid": format!("uid-{pod_name}-{}", fake.revision()),
            "labels": template["metadata"]["labels"], "annotations": template["metadata"]["annotations"],
            "ownerReferences": [{"apiVersion": version, "kind": kind, "name": name, "uid": owner["metadata"]["uid"]}],
        },
        "spec": spec,
    }));
}

fn status(phase: &str, state: &Value) -> Value {
    json!({"phase": phase, "containerStatuses": [{"name": "NAME", "restartCount": 0, "state": state}]})
}

fn set_status(fake: &FakeApi, pod: &Value, mut status: Value) {
    let mut pod = pod.clone();
    if status["containerStatuses"].is_array() {
        status["containerStatuses"][0]["name"] = pod["spec"]["containers"][0]["name"].clone();
    }
    pod["status"] = status;
    pod["metadata"]["resourceVersion"] = Value::Null;
    // The object may be gone by now, and must not come back.
    let (namespace, name) = (&pod["metadata"]["namespace"], &pod["metadata"]["name"]);
    let there = fake.get(
        "v1",
        "Pod",
        namespace.as_str().unwrap(),
        name.as_str().unwrap(),
    );
    if there.is_some_and(|there| there["metadata"]["uid"] == pod["metadata"]["uid"]) {
        fake.put(&pod);
    }
}

/// Workers on exclusive CPUs make 20 steps a second, others 10.
fn write_log(fake: &FakeApi, pod: &Value) {
    let is_exclusive = pod["metadata"]["annotations"]["pinfold.io/cpus"] == "exclusive";
    let rate = if is_exclusive { 20 } else { 10 };
    let lines: String = (0..100)
        .map(|second| {
            format!(
                "2026-11-28T10:{:02}:{:02}Z step {}\n",
                second / 60,
                second % 60,
                second * rate
            )
        })
        .collect();
    let name = pod["metadata"]["name"].as_str().unwrap().to_owned();
    fake.shared.logs.lock().unwrap().insert(name, lines);
}

const SMALL: [&str; 10] = [
    "plan.yaml",
    "--job",
    "job.yaml",
    "--cases",
    "1",
    "--repeats",
    "1",
    "--out",
    "results",
    "--seed=1",
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_scene_and_way_runs_and_nothing_is_left() {
    let cluster = Cluster::new(3).await;
    let dry = cluster.run(&[&SMALL[..], &["--dry-run"]].concat()).await;
    assert_eq!(dry.code, Some(0), "{dry:?}");
    assert!(
        dry.out.contains("9 runs in random order (seed 1)"),
        "{dry:?}"
    );
    assert!(cluster.is_clean() && !cluster.path("results").exists());

    let done = cluster.run(&SMALL).await;
    assert_eq!(done.code, Some(0), "{done:?}");
    assert!(cluster.is_clean());
    let records = cluster.records("results");
    assert_eq!(records.len(), 9);
    assert_eq!(
        records[0]["block"],
        Value::Null,
        "the first run is the warm-up"
    );
    for record in &records {
        let exclusive = record["condition"]["way"]["exclusive"].as_bool().unwrap();
        let rate = record["stepsPerSecond"].as_f64().unwrap();
        assert_eq!(
            rate.round(),
            if exclusive { 40.0 } else { 20.0 },
            "{record}"
        );
        assert_eq!(
            (&record["failure"], &record["seconds"]),
            (&Value::Null, &json!(100.0))
        );
        let tasks = record["tasks"].as_array().unwrap();
        assert_eq!(tasks.len(), 3);
        assert!(
            tasks.iter().all(|task| task["cpuSeconds"] == 1.5),
            "{record}"
        );
    }
    let experiment = json_of(&cluster.path("results/experiment.json"));
    assert_eq!(experiment["cluster"]["nodes"][0]["emulated"], true);
    assert_eq!(experiment["scenes"][1]["cases"][0]["servers"], 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_experiment_is_resumed_or_aborted() {
    let cluster = Cluster::new(3).await;
    let args = [&SMALL[..], &["--scenes", "1", "--ways", "usual,both"]].concat();
    let mut child = cluster.command(&args).spawn().unwrap();
    // In the middle of the second run.
    let begun = || {
        let jobs = cluster.fake.all("batch/v1", "Job");
        jobs.iter()
            .any(|job| job["metadata"]["labels"]["pinfold.io/run"] == "2")
    };
    until(begun).await;
    child.kill().await.unwrap();
    assert_eq!(cluster.records("results").len(), 1);
    // Another experiment finds the plan taken.
    let other = cluster
        .run(&[&args[..7], &["--out", "other"]].concat())
        .await;
    assert_eq!(other.code, Some(2), "{other:?}");
    assert!(
        other.error.contains("has the plan p: wait for its end"),
        "{other:?}"
    );

    let done = cluster.run(&["--resume", "results"]).await;
    assert_eq!(done.code, Some(0), "{done:?}");
    assert_eq!(cluster.records("results").len(), 3);
    assert!(cluster.is_clean());

    // Killed again, and given up.
    let again = [&args[..7], &["--out", "second", "--scenes", "1"]].concat();
    let mut child = cluster.command(&again).spawn().unwrap();
    until(|| !cluster.fake.all("batch/v1", "Job").is_empty()).await;
    child.kill().await.unwrap();
    let aborted = cluster.run(&["--abort", "second"]).await;
    assert_eq!(aborted.code, Some(0), "{aborted:?}");
    assert!(cluster.is_clean());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ctrl_c_puts_everything_back() {
    let cluster = Cluster::new(3).await;
    cluster.ends.store(false, Ordering::SeqCst);
    let child = cluster.command(&SMALL).spawn().unwrap();
    until(|| !cluster.fake.all("batch/v1", "Job").is_empty()).await;
    let pid = nix::unistd::Pid::from_raw(i32::try_from(child.id().unwrap()).unwrap());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGINT).unwrap();
    let done = child.wait_with_output().await.unwrap();
    assert_eq!(done.status.code(), Some(130));
    assert!(cluster.is_clean());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_evicted_pod_repeats_the_run_and_many_make_it_a_failure() {
    let cluster = Cluster::new(3).await;
    let args = [&SMALL[..], &["--scenes", "1", "--ways", "usual"]].concat();
    cluster.evictions.store(2, Ordering::SeqCst);
    let done = cluster.run(&args).await;
    assert_eq!(done.code, Some(0), "{done:?}");
    let records = cluster.records("results");
    assert_eq!(records[0]["attempts"], 2);
    assert_eq!(
        records[0]["failures"][0],
        "worker 0 failed: Evicted: low on memory"
    );
    // More than it may be repeated. A warm-up that can't work ends the experiment.
    cluster.evictions.store(1000, Ordering::SeqCst);
    let failed = cluster
        .run(&[&args[..7], &["--out", "second", "--retries", "0"]].concat())
        .await;
    assert_eq!(failed.code, Some(2), "{failed:?}");
    assert!(failed.error.contains("the warm-up failed"), "{failed:?}");
    assert!(cluster.is_clean());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plan_of_the_cluster_is_put_back() {
    let cluster = Cluster::new(3).await;
    let mut plan: Value = serde_json::from_str(&plan()).unwrap();
    plan["spec"]["active"] = json!({"scene": "2", "case": "1"});
    cluster.fake.put(&plan);
    let file = cluster.run(&SMALL).await;
    assert_eq!(file.code, Some(2), "{file:?}");
    assert!(file.error.contains("use it with --use-plan p"), "{file:?}");
    let args = [
        "--use-plan",
        "p",
        "--job",
        "job.yaml",
        "--scenes",
        "1",
        "--cases",
        "1",
        "--ways",
        "both",
        "--repeats",
        "1",
    ];
    let done = cluster.run(&args).await;
    assert_eq!(done.code, Some(0), "{done:?}");
    let after = cluster
        .fake
        .get("pinfold.io/v1alpha1", "ScenePlan", "", "p")
        .unwrap();
    assert_eq!(after["spec"]["active"], json!({"scene": "2", "case": "1"}));
    assert_eq!(
        after["metadata"]["annotations"]["pinfold.io/experiment"],
        Value::Null
    );
    // A second active plan on the same nodes, and one whose case has the same labels.
    plan["metadata"]["name"] = json!("q");
    std::fs::write(cluster.path("q.yaml"), plan.to_string()).unwrap();
    let rival = cluster
        .run(&["q.yaml", "--job", "job.yaml", "--dry-run"])
        .await;
    assert_eq!(rival.code, Some(2), "{rival:?}");
    assert!(
        rival
            .error
            .contains("the plan p is active, too, and wants 3 of the same nodes"),
        "{rival:?}"
    );
    plan["spec"]["nodes"] = json!({"names": ["n9"]});
    put_node(&cluster.fake, "n9", "uid-n9");
    let address = serve_pages(Arc::clone(&cluster.fake)).await;
    cluster.fake.put_agent("agent-n9", "n9", address);
    let mut active = cluster
        .fake
        .get("pinfold.io/v1alpha1", "ScenePlan", "", "p")
        .unwrap();
    active["spec"]["nodes"] = json!({"names": ["n0", "n1", "n2"]});
    active["metadata"]["resourceVersion"] = Value::Null;
    cluster.fake.put(&active);
    std::fs::write(cluster.path("q.yaml"), plan.to_string()).unwrap();
    let rival = cluster
        .run(&[
            "q.yaml",
            "--job",
            "job.yaml",
            "--dry-run",
            "--scenes",
            "1",
            "--cases",
            "1",
        ])
        .await;
    assert_eq!(rival.code, Some(2), "{rival:?}");
    assert!(
        rival
            .error
            .contains("has a scene 1 case 1 with the same labels"),
        "{rival:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_can_not_work_is_refused_before_the_first_change() {
    let cluster = Cluster::new(3).await;
    cluster.fake.user("person-token", "person");
    std::fs::write(
        cluster.path("person.conf"),
        cluster.fake.kubeconfig("person-token"),
    )
    .unwrap();
    let refused = |args: &'static [&'static str]| async {
        let ended = cluster.run(args).await;
        assert_eq!(ended.code, Some(2), "{ended:?}");
        assert!(cluster.is_clean());
        ended.error
    };
    let job = |text: &str| std::fs::write(cluster.path("big.yaml"), text).unwrap();
    let error = refused(&[
        "plan.yaml",
        "--job",
        "job.yaml",
        "--cases",
        "4",
        "--dry-run",
    ])
    .await;
    assert!(
        error.contains("scene 1 case 4 does not fit: 51 of its tasks have no node"),
        "{error}"
    );
    job(&JOB.replace("cpu: 1", "cpu: 3"));
    let error = refused(&[
        "plan.yaml",
        "--job",
        "big.yaml",
        "--cases",
        "1",
        "--dry-run",
    ])
    .await;
    assert!(error.contains("does not fit"), "{error}");
    let error = refused(&[
        "plan.yaml",
        "--job",
        "job.yaml",
        "--scenes",
        "9",
        "--dry-run",
    ])
    .await;
    assert!(
        error.contains("the plan has no scene 9: choose among 1, 2"),
        "{error}"
    );
    let error = refused(&[
        "plan.yaml",
        "--job",
        "job.yaml",
        "--step-pattern",
        "step",
        "--dry-run",
    ])
    .await;
    assert!(error.contains("has no group"), "{error}");
    let error = refused(&["--resume", "nothing"]).await;
    assert!(error.contains("has no experiment.json"), "{error}");

    let mut command = cluster.command(&[
        "plan.yaml",
        "--job",
        "job.yaml",
        "--cases",
        "1",
        "--dry-run",
    ]);
    command
        .args(["--context", "fake"])
        .env("KUBECONFIG", "person.conf");
    std::fs::write(
        cluster.path("admin.conf"),
        cluster.fake.kubeconfig("person-token"),
    )
    .unwrap();
    let done = command.output().await.unwrap();
    let error = String::from_utf8(done.stderr).unwrap();
    // Without any right, even the look at the plans is refused.
    assert_eq!(done.status.code(), Some(2), "{error}");
    for (group, resource, verbs) in [
        ("pinfold.io", "sceneplans", &["get", "list"][..]),
        ("", "namespaces", &["get"]),
        (
            "authorization.k8s.io",
            "selfsubjectaccessreviews",
            &["create"],
        ),
    ] {
        cluster.fake.allow("person", verbs, group, resource, &[]);
    }
    let done = cluster
        .command(&[
            "plan.yaml",
            "--job",
            "job.yaml",
            "--cases",
            "1",
            "--dry-run",
        ])
        .output()
        .await
        .unwrap();
    let error = String::from_utf8(done.stderr).unwrap();
    assert!(
        error.contains("lacks rights: list nodes, patch sceneplans (pinfold.io)"),
        "{error}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_role_that_the_plan_keeps_shared_needs_no_whole_cpus() {
    let cluster = Cluster::new(3).await;
    let mut plan: Value = serde_json::from_str(&plan()).unwrap();
    plan["spec"]["roles"] =
        json!({"ps": {"requests": {"cpu": "300m", "memory": "1Gi"}, "pin": false}});
    std::fs::write(cluster.path("plan.yaml"), plan.to_string()).unwrap();
    let job = JOB.replace("  ps: {limits: {cpu: 1, memory: 1Gi}}\n", "");
    std::fs::write(cluster.path("job.yaml"), job).unwrap();
    let dry = cluster.run(&[&SMALL[..], &["--dry-run"]].concat()).await;
    assert_eq!(dry.code, Some(0), "{dry:?}");
    // Two workers; the server takes nothing.
    assert!(
        dry.out.contains(
            "scene 1 case 1: 3 pods on 1 node, up to 2 exclusive CPUs on a node, which can give 6"
        ),
        "{dry:?}"
    );
}

/// The numbers for the documentation: a run of the largest case on 1,000 nodes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_on_a_thousand_nodes_needs_the_requests_that_were_announced() {
    let cluster = Cluster::new(1000).await;
    let args = [
        "plan.yaml",
        "--job",
        "job.yaml",
        "--scenes",
        "1",
        "--cases",
        "4",
        "--ways",
        "both",
        "--repeats",
        "1",
        "--out",
        "results",
    ];
    let dry = cluster.run(&[&args[..], &["--dry-run"]].concat()).await;
    let announced: usize = dry
        .out
        .split("about ")
        .nth(1)
        .and_then(|rest| rest.split(' ').next()?.parse().ok())
        .unwrap_or_else(|| panic!("{dry:?}"));
    cluster.fake.clear_log();
    let began = std::time::Instant::now();
    let done = cluster.run(&args).await;
    assert_eq!(done.code, Some(0), "{done:?}");
    let log = cluster.fake.log();
    let requests = log
        .iter()
        .filter(|logged| logged.plural != "selfsubjectaccessreviews");
    // Two runs, the warm-up included, and what comes before and after them.
    let used = requests
        .clone()
        .filter(|logged| !logged.query.contains("ports="))
        .count();
    println!(
        "{used} requests in {:?}, {announced} announced a run",
        began.elapsed()
    );
    assert!(
        used <= announced * 2 + 60,
        "{used} requests, {announced} announced a run"
    );
    let records = cluster.records("results");
    assert_eq!(records[1]["tasks"].as_array().unwrap().len(), 60);
}
