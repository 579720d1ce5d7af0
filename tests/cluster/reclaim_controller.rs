//! The reclaimer as a controller: rounds by watches, Events on the Jobs, two reclaimers at once, and the program with its
//! probes.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use kube::core::params::PostParams;
use kube::core::request::Request;
use nix::sys::signal::Signal;
use pinfold::cluster::events::{EventSettings, Recorder};
use pinfold::cluster::reclaim::ReclaimRound;
use pinfold::cluster::{Api, Call, ErrorKind, Failure};
use pinfold::scene::ReclaimVerdict;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::agents::{NAMESPACE, cluster, eventually, install};
use crate::fakeapi::{FakeApi, Fault, FaultScope, Logged};
use crate::reclaim::{Cluster, Watching, ago, done, succeeded, with_chief};

/// A job whose last worker still runs, and the last worker.
fn running(name: &str) -> (Vec<Value>, Value) {
    let mut all = succeeded(name, 600);
    let last = all
        .iter_mut()
        .rfind(|object| object["kind"] == "Job")
        .unwrap();
    last["status"] = json!({"active": 1, "startTime": ago(3600)});
    let last = last.clone();
    (all, last)
}

/// An hour between two rounds, so that only changes can start a round.
const HOUR: Duration = Duration::from_secs(3600);

#[tokio::test(start_paused = true)]
async fn a_change_starts_a_round_and_a_calm_cluster_needs_no_list() {
    let cluster = Cluster::of(FakeApi::direct());
    let (all, mut last) = running("a");
    cluster.put(&all);
    let (sender, mut rounds) = mpsc::unbounded_channel::<ReclaimRound>();
    let stop = CancellationToken::new();
    let reclaimer = cluster.reclaimer();
    let watching = reclaimer.watch(HOUR, &stop, |round| {
        sender.send(round.unwrap()).unwrap();
    });
    let checks = async {
        let first = rounds.recv().await.unwrap();
        assert!(matches!(
            first.jobs[0].verdict,
            ReclaimVerdict::Running {
                succeeded: 49,
                of: 50
            }
        ));
        tokio::time::sleep(Duration::from_secs(60)).await;
        cluster.fake.clear_log();
        tokio::time::sleep(Duration::from_secs(1200)).await;
        assert_eq!(cluster.fake.count("list", ""), 0, "no polling");
        // Each of the three watches is opened again every 290 s.
        let watches = cluster.fake.count("watch", "");
        assert!((3..=18).contains(&watches), "{watches} watches");

        done(&mut last, "Complete", 600);
        cluster.put(&[last]);
        let began = tokio::time::Instant::now();
        let round = loop {
            let round = rounds.recv().await.unwrap();
            if !round.deleted.is_empty() {
                break round;
            }
        };
        assert!(
            began.elapsed() < Duration::from_secs(5),
            "{:?}",
            began.elapsed()
        );
        assert_eq!(round.deleted.len(), 10);
        assert_eq!(cluster.servers(), (0, 0));
        stop.cancel();
    };
    tokio::join!(watching, checks);
}

/// Without the right to watch, a round follows every 15 s, whatever the interval is.
#[tokio::test(start_paused = true)]
async fn without_watches_a_round_follows_every_15_seconds() {
    let cluster = Cluster::of(FakeApi::direct());
    let (all, mut last) = running("a");
    cluster.put(&all);
    cluster.fake.fail(
        FaultScope::always().verb("watch"),
        Fault::Refuse {
            code: 403,
            text: "no",
            retry_after: None,
        },
    );
    let stop = CancellationToken::new();
    let reclaimer = cluster.reclaimer();
    let watching = reclaimer.watch(HOUR, &stop, |round| drop(round.unwrap()));
    let checks = async {
        tokio::time::sleep(Duration::from_secs(60)).await;
        cluster.fake.clear_log();
        tokio::time::sleep(Duration::from_secs(150)).await;
        let rounds = cluster.fake.count("list", "deployments");
        assert!((9..=11).contains(&rounds), "{rounds} rounds");
        done(&mut last, "Complete", 600);
        cluster.put(&[last]);
        let waited = eventually("the end of the servers", || cluster.servers() == (0, 0)).await;
        assert!(waited < Duration::from_secs(20), "{waited:?}");
        // With the right, changes start the rounds again. The longest wait of a refused watch is 300 s.
        cluster.fake.heal();
        tokio::time::sleep(Duration::from_secs(600)).await;
        cluster.fake.clear_log();
        tokio::time::sleep(Duration::from_secs(600)).await;
        assert_eq!(cluster.fake.count("list", ""), 0);
        stop.cancel();
    };
    tokio::join!(watching, checks);
}

#[tokio::test(start_paused = true)]
async fn the_jobs_get_events() {
    let cluster = Cluster::of(FakeApi::direct());
    cluster
        .fake
        .put(&json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "train"}}));
    // Job a can be reclaimed, job b lacks a worker, and job c has just ended.
    cluster.put(&succeeded("a", 600));
    let mut missing = succeeded("b", 600);
    missing.retain(|object| object["metadata"]["name"] != "b-worker-49");
    cluster.put(&missing);
    cluster.put(&succeeded("c", 0));
    let settings = EventSettings {
        controller: "pinfold.io/reclaimer",
        ..EventSettings::default()
    };
    let api = Api::new(cluster.fake.client("reclaimer"), Duration::from_secs(5));
    let (recorder, writer) = Recorder::new(api, "reclaim-1", settings);
    tokio::spawn(writer);
    let reclaimer = cluster.reclaimer().with_recorder(recorder);
    let stop = CancellationToken::new();
    let watching = reclaimer.watch(HOUR, &stop, |round| drop(round.unwrap()));
    let events = || {
        let mut found: Vec<String> = cluster
            .fake
            .all("events.k8s.io/v1", "Event")
            .iter()
            .map(|event| {
                let text =
                    |pointer: &str| event.pointer(pointer).unwrap().as_str().unwrap().to_owned();
                assert_eq!(text("/regarding/kind"), "Job");
                assert_eq!(text("/regarding/apiVersion"), "batch/v1");
                assert_eq!(text("/reportingController"), "pinfold.io/reclaimer");
                format!(
                    "{} {} {}",
                    text("/regarding/name"),
                    text("/type"),
                    text("/reason")
                )
            })
            .collect();
        found.sort();
        found
    };
    let checks = async {
        let expected = [
            "a-worker-0 Normal Reclaimed",
            "b-worker-0 Warning ServersKept",
            "c-worker-0 Normal ReclaimScheduled",
        ];
        eventually("three Events", || events() == expected).await;
        stop.cancel();
    };
    tokio::join!(watching, checks);
}

/// Everything in the cluster that a reclaimer may delete: kind, name and uid.
fn all_objects(cluster: &Cluster) -> BTreeSet<(String, String, String)> {
    let kinds = [
        ("batch/v1", "Job"),
        ("apps/v1", "Deployment"),
        ("v1", "Service"),
    ];
    let objects = kinds.map(|(version, kind)| cluster.fake.all(version, kind));
    objects
        .iter()
        .flatten()
        .map(|object| {
            let text = |pointer: &str| object.pointer(pointer).unwrap().as_str().unwrap();
            let names =
                ["/kind", "/metadata/name", "/metadata/uid"].map(|key| text(key).to_owned());
            names.into()
        })
        .collect()
}

/// Five jobs: two with everything of theirs to delete, a and e, and three that lose nothing. The objects of the first two that a
/// reclaimer deletes are returned.
fn put_five_jobs(cluster: &Cluster) -> BTreeSet<(String, String, String)> {
    cluster.put(&succeeded("a", 600));
    let mut missing = succeeded("b", 600);
    missing.retain(|object| object["metadata"]["name"] != "b-worker-49");
    cluster.put(&missing);
    cluster.put(&running("c").0);
    // Nobody asked for the end of these servers.
    let mut silent = succeeded("d", 600);
    for object in &mut silent {
        let labels = object["metadata"]["labels"].as_object_mut().unwrap();
        labels.remove("pinfold.io/reclaim");
    }
    cluster.put(&silent);
    cluster.put(&with_chief("e", Some(600)));
    let goes = |(kind, name, _): &(String, String, String)| {
        let server = name.starts_with("a-ps-") || name.starts_with("e-ps-");
        let task = kind == "Job" && (name.starts_with("e-worker-") || name.starts_with("e-eval"));
        server || task
    };
    all_objects(cluster).into_iter().filter(goes).collect()
}

/// Nothing elects one of them. The second starts at different times, so that their lists and deletes interleave differently,
/// and meanwhile somebody changes the servers of job a, so that the server refuses deletes by older lists.
#[tokio::test(start_paused = true)]
async fn two_reclaimers_delete_what_one_would_and_each_object_once() {
    let mut statuses = BTreeSet::new();
    for offset in [0, 3, 10, 25, 60, 130, 400] {
        let cluster = Cluster::of(FakeApi::direct());
        let goes = put_five_jobs(&cluster);
        let stays: BTreeSet<_> = &all_objects(&cluster) - &goes;
        assert_eq!(goes.len(), 10 + 7);
        let latency = Fault::Delay(Duration::from_millis(10));
        cluster.fake.fail(FaultScope::always(), latency);
        let stop = CancellationToken::new();
        let (first, second) = (cluster.reclaimer(), cluster.reclaimer());
        let report = |round: Result<ReclaimRound, Failure>| {
            let round = round.expect("lists work");
            assert!(round.failed.is_empty(), "{offset} ms: {:?}", round.failed);
        };
        let later = async {
            tokio::time::sleep(Duration::from_millis(offset)).await;
            second.watch(HOUR, &stop, report).await;
        };
        let checks = async {
            while cluster.fake.count("delete", "") == 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            for object in cluster.fake.all("apps/v1", "Deployment") {
                let name = object["metadata"]["name"].as_str().unwrap();
                if name.starts_with("a-ps-") {
                    let mut changed = object.clone();
                    changed["metadata"]["annotations"]["seen"] = json!("yes");
                    cluster.fake.put(&changed);
                }
            }
            eventually("the end of both jobs", || all_objects(&cluster) == stays).await;
            // Nothing else follows, at no later time.
            tokio::time::sleep(2 * HOUR).await;
            assert_eq!(all_objects(&cluster), stays, "{offset} ms");
            stop.cancel();
        };
        tokio::join!(first.watch(HOUR, &stop, report), later, checks);
        let log = cluster.fake.log();
        let deletes = log.iter().filter(|logged| logged.verb == "delete");
        let done = deletes.clone().filter(|logged| logged.status == 200);
        assert_eq!(done.count(), goes.len(), "{offset} ms: each object once");
        statuses.extend(deletes.map(|logged| logged.status));
    }
    assert_eq!(statuses, BTreeSet::from([200, 404, 409]), "all were tried");
}

/// The account must not be able to take a slot by a false claim.
#[tokio::test]
async fn the_account_creates_no_lease() {
    let fake = cluster();
    let cluster = Cluster::of(fake);
    let lease = json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "scene.p.1.1.0"},
        "spec": {"holderIdentity": "a"},
    });
    let path = format!("/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases");
    let request = Request::new(path)
        .create(&PostParams::default(), lease.to_string().into_bytes())
        .unwrap();
    let api = Api::new(cluster.fake.client("reclaimer"), Duration::from_secs(5));
    let answer = api.ask::<Value>(Call::Other, request).await;
    assert_eq!(answer.unwrap_err().kind(), ErrorKind::Forbidden);
}

/// The body of an answer, and the status line.
fn request(port: u16, path: &str) -> Option<String> {
    let mut stream = std::net::TcpStream::connect(("127.0.0.1", port)).ok()?;
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    )
    .ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    Some(answer)
}

/// Starts the program with the arguments of the shipped Deployment, and more.
fn program(kubeconfig: &Path, more: &[&str]) -> Watching {
    let child = Command::new(env!("CARGO_BIN_EXE_pinfold"))
        .args(["scene", "reclaim", "--watch", "--plan-status"])
        .args(more)
        .arg("--kubeconfig")
        .arg(kubeconfig)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    Watching(child.unwrap())
}

/// A port below those that the kernel gives to the sockets of other tests.
fn free_port() -> u16 {
    (0..)
        .map(|number| 20_000 + u16::try_from((std::process::id() + number) % 10_000).unwrap())
        .find(|port| std::net::TcpListener::bind(("127.0.0.1", *port)).is_ok())
        .unwrap()
}

/// Two programs with the arguments of the shipped Deployment reclaim, write statuses, and answer probes.
#[tokio::test(flavor = "multi_thread")]
async fn two_programs_reclaim_and_answer_probes() {
    let fake = FakeApi::start().await;
    install(&fake);
    let cluster = Cluster::of(fake);
    cluster.put(&succeeded("a", 600));
    cluster.put(&[json!({
        "apiVersion": "pinfold.io/v1alpha1", "kind": "ScenePlan", "metadata": {"name": "p", "generation": 1},
        "spec": {
            "nodes": {"selector": {}}, "active": {"scene": "1", "case": "1"},
            "scenes": [{"scene": "1", "groups": [{"name": "g"}], "cases": [{"case": "1", "nodes": {"g": 2}}]}],
        },
    })]);
    let folder = tempfile::tempdir().unwrap();
    let kubeconfig = folder.path().join("reclaimer.conf");
    std::fs::write(&kubeconfig, cluster.fake.kubeconfig("reclaimer")).unwrap();
    let refusal = Fault::Refuse {
        code: 500,
        text: "etcd",
        retry_after: None,
    };
    let lists = FaultScope::always().verb("list").on("deployments");
    cluster.fake.fail(lists, refusal);
    let port = free_port();
    let listen = format!("127.0.0.1:{port}");
    let first = program(&kubeconfig, &["--interval", "1s", "--listen", &listen]);
    let second = program(&kubeconfig, &[]);
    let answer = async |path: &'static str| {
        let answer = tokio::task::spawn_blocking(move || request(port, path));
        answer.await.unwrap().unwrap_or_default()
    };
    // Without a list of the jobs, the program is not ready.
    let start = std::time::Instant::now();
    loop {
        let answer = answer("/readyz").await;
        if answer.starts_with("HTTP/1.1 503") && answer.contains("etcd") {
            break;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "{answer}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    cluster.fake.heal();
    let status = || {
        let plan = cluster
            .fake
            .get("pinfold.io/v1alpha1", "ScenePlan", "", "p");
        plan.unwrap()["status"]["claimed"].clone()
    };
    while cluster.servers() != (0, 0) || status() != "0/2" {
        let servers = cluster.servers();
        assert!(
            start.elapsed() < Duration::from_secs(60),
            "{servers:?} {}",
            status()
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    for path in ["/healthz", "/readyz"] {
        let answer = answer(path).await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{path}: {answer}");
    }
    let page = answer("/metrics").await;
    let deleted = "pinfold_reclaim_deleted_objects_total{kind=\"Deployment\"}";
    assert!(page.contains(deleted), "{page}");
    assert!(answer("/status").await.starts_with("HTTP/1.1 404"));
    for program in [first, second] {
        let ended = tokio::task::spawn_blocking(|| program.end(Signal::SIGTERM));
        let (code, _, stderr) = ended.await.unwrap();
        assert_eq!(code, Some(0), "{stderr}");
    }
    let log = cluster.fake.log();
    let done = |logged: &&Logged| logged.verb == "delete" && logged.status == 200;
    assert_eq!(log.iter().filter(done).count(), 10, "each object once");
}

/// Arguments of an older Deployment get an answer that says what to do.
#[test]
fn the_removed_option_is_refused_with_a_remedy() {
    let said = Command::new(env!("CARGO_BIN_EXE_pinfold"))
        .args(["scene", "reclaim", "--watch", "--leader-elect"])
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&said.stderr);
    assert_eq!(said.status.code(), Some(2), "{stderr}");
    assert!(stderr.contains("leave the option out"), "{stderr}");
}
