//! The reclaimer as a controller: rounds by watches, Events on the Jobs, a single leader, and the program with its probes.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::process::{Command, Stdio};
use std::rc::Rc;
use std::time::Duration;

use kube::core::params::PostParams;
use kube::core::request::Request;
use pinfold::cluster::events::{EventSettings, Recorder};
use pinfold::cluster::leader::{Election, ElectionSettings as LeaderSettings};
use pinfold::cluster::reclaim::ReclaimRound;
use pinfold::cluster::{Api, Call, ErrorKind};
use pinfold::scene::ReclaimVerdict;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::agents::{NAMESPACE, cluster, eventually, install};
use crate::fakeapi::{FakeApi, Fault, FaultScope};
use crate::reclaim::{Cluster, ago, done, succeeded};

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

/// Removes the candidate from the set at the end of its work.
struct WorkGuard(Rc<RefCell<BTreeSet<&'static str>>>, &'static str);

impl Drop for WorkGuard {
    fn drop(&mut self) {
        self.0.borrow_mut().remove(self.1);
    }
}

#[tokio::test(start_paused = true)]
async fn only_one_candidate_works() {
    let fake = cluster();
    fake.install("deploy/components/reclaim/rbac.yaml");
    fake.user("reclaimer", "system:serviceaccount:pinfold:pinfold-reclaim");
    let at_work: Rc<RefCell<BTreeSet<&'static str>>> = Rc::default();
    let start = |name: &'static str| {
        let api = Api::new(fake.client("reclaimer"), Duration::from_secs(5));
        let settings = LeaderSettings::default();
        let election = Election::new(api, NAMESPACE, "pinfold-reclaim", name.to_owned(), settings);
        let stop = CancellationToken::new();
        let (until, at_work) = (stop.clone(), Rc::clone(&at_work));
        tokio::task::spawn_local(async move {
            let work = async || {
                assert!(at_work.borrow_mut().insert(name));
                let _guard = WorkGuard(Rc::clone(&at_work), name);
                assert_eq!(at_work.borrow().len(), 1, "only one candidate works");
                std::future::pending::<()>().await;
            };
            election.run(&until, work).await;
        });
        stop
    };
    let works = |name: &'static str| at_work.borrow().contains(name);
    let lease = || leader_lease(&fake).unwrap();
    let local = tokio::task::LocalSet::new();
    local
        .run_until(async {
            let first = start("a");
            eventually("a leader", || works("a")).await;
            let second = start("b");
            tokio::time::sleep(Duration::from_secs(300)).await;
            assert!(works("a") && !works("b"));
            assert_eq!(lease()["spec"]["holderIdentity"], "a");
            // After a regular end, the second candidate need not wait for the duration of the Lease.
            first.cancel();
            let waited = eventually("a second leader", || works("b")).await;
            assert!(waited < Duration::from_secs(6), "{waited:?}");
            assert_eq!(lease()["spec"]["leaseTransitions"], 1);

            // A leader that can't renew the Lease stops before the duration of the Lease is over.
            let third = start("c");
            fake.fail(
                FaultScope::always().verb("update").on("leases"),
                Fault::Refuse {
                    code: 500,
                    text: "etcd",
                    retry_after: None,
                },
            );
            let waited = eventually("the end of the work", || !works("b")).await;
            assert!(waited < Duration::from_secs(15), "{waited:?}");
            tokio::time::sleep(Duration::from_secs(60)).await;
            assert!(at_work.borrow().is_empty());
            fake.heal();
            eventually("a leader again", || !at_work.borrow().is_empty()).await;
            second.cancel();
            third.cancel();
            eventually("a Lease without a holder", || {
                lease()["spec"]["holderIdentity"].is_null()
            })
            .await;
        })
        .await;
}

/// A candidate with late answers does not lead: a second candidate may have taken the Lease over before the answer.
#[tokio::test(start_paused = true)]
async fn a_late_answer_makes_no_leader() {
    let fake = cluster();
    let election = candidate(&fake);
    let late = LeaderSettings::default().deadline + Duration::from_secs(5);
    fake.fail(FaultScope::always().on("leases"), Fault::Delay(late));
    let (standing, stop) = (election.standing(), CancellationToken::new());
    let work = async || std::future::pending::<()>().await;
    let checks = async {
        for _ in 0..120 {
            tokio::time::sleep(Duration::from_secs(1)).await;
            assert!(!standing.leads() && !standing.is_stuck());
        }
        let problem = standing.problem().unwrap();
        assert!(problem.contains("no answer within 10s"), "{problem}");
        fake.heal();
        eventually("a leader", || standing.leads()).await;
        assert_eq!(standing.problem(), None);
        stop.cancel();
    };
    tokio::join!(election.run(&stop, work), checks);
}

/// The stored Lease of the leader.
fn leader_lease(fake: &FakeApi) -> Option<Value> {
    let version = "coordination.k8s.io/v1";
    fake.get(version, "Lease", NAMESPACE, "pinfold-reclaim")
}

/// A candidate with the default settings and the shipped rights. The deadline of a request is longer than the deadline of the
/// election.
fn candidate(fake: &FakeApi) -> Election {
    fake.install("deploy/components/reclaim/rbac.yaml");
    fake.user("reclaimer", "system:serviceaccount:pinfold:pinfold-reclaim");
    let api = Api::new(fake.client("reclaimer"), Duration::from_secs(30));
    let settings = LeaderSettings::default();
    Election::new(api, NAMESPACE, "pinfold-reclaim", "a".to_owned(), settings)
}

/// The process waits for the request in flight, and then hands the Lease back. A dropped request could take the Lease later.
#[tokio::test(start_paused = true)]
async fn an_end_during_a_request_leaves_no_holder() {
    let fake = cluster();
    let election = candidate(&fake);
    let slow = FaultScope::always().verb("create").on("leases");
    fake.fail(slow, Fault::Delay(Duration::from_secs(1)));
    let stop = CancellationToken::new();
    let checks = async {
        eventually("a request in flight", || {
            fake.count("create", "leases") == 1
        })
        .await;
        assert_eq!(leader_lease(&fake), None);
        stop.cancel();
    };
    let acted = Cell::new(false);
    let work = async || acted.set(true);
    tokio::join!(election.run(&stop, work), checks);
    assert!(!acted.get(), "a process that ends must not act");
    let lease = leader_lease(&fake).expect("the request has created the Lease");
    assert!(lease["spec"]["holderIdentity"].is_null(), "{lease}");
    assert!(!election.standing().leads());
}

/// A hanging API server delays the end of the process by a few seconds only.
#[tokio::test(start_paused = true)]
async fn an_end_without_an_answer_takes_a_few_seconds() {
    let fake = cluster();
    let election = candidate(&fake);
    fake.fail(FaultScope::always().on("leases"), Fault::Hang);
    let stop = CancellationToken::new();
    let checks = async {
        eventually("a request in flight", || fake.count("get", "leases") == 1).await;
        stop.cancel();
        tokio::time::Instant::now()
    };
    let work = async || std::future::pending::<()>().await;
    let ((), cancelled) = tokio::join!(election.run(&stop, work), checks);
    let waited = cancelled.elapsed();
    assert!(waited < Duration::from_secs(5), "{waited:?}");
}

/// A Lease that changes between the read and the write is read again at the end.
#[tokio::test(start_paused = true)]
async fn a_conflict_at_the_end_leaves_no_holder() {
    let fake = cluster();
    let election = candidate(&fake);
    let (standing, stop) = (election.standing(), CancellationToken::new());
    let checks = async {
        eventually("a leader", || standing.leads()).await;
        let writes = FaultScope::always().verb("update").on("leases").times(1);
        let conflict = Fault::Refuse {
            code: 409,
            text: "the object has been modified",
            retry_after: None,
        };
        fake.fail(writes, conflict);
        stop.cancel();
    };
    let work = async || std::future::pending::<()>().await;
    tokio::join!(election.run(&stop, work), checks);
    let lease = leader_lease(&fake).unwrap();
    assert!(lease["spec"]["holderIdentity"].is_null(), "{lease}");
}

/// A leader whose time jumps, as after a suspension of the process, drops the work before the next step of the work.
#[tokio::test(start_paused = true)]
async fn a_suspended_leader_does_not_continue() {
    let fake = cluster();
    let election = candidate(&fake);
    let (standing, stop) = (election.standing(), CancellationToken::new());
    let suspended = Duration::from_secs(60);
    let starts = Cell::new(0);
    let work = async || {
        starts.set(starts.get() + 1);
        let began = tokio::time::Instant::now();
        for _ in 0..3600 {
            tokio::time::sleep(Duration::from_secs(1)).await;
            assert!(began.elapsed() < suspended, "the old work continued");
        }
    };
    let checks = async {
        eventually("a leader", || standing.leads()).await;
        tokio::time::sleep(Duration::from_secs(5)).await;
        tokio::time::advance(suspended).await;
        eventually("a second start", || starts.get() == 2).await;
        stop.cancel();
    };
    tokio::join!(election.run(&stop, work), checks);
}

/// Candidates compare a foreign Lease only with earlier reads. The holder's clock may be days before or after.
#[tokio::test(start_paused = true)]
async fn a_wrong_clock_of_the_holder_changes_no_wait() {
    for renewed in ["2001-01-01T00:00:00.000000Z", "2101-01-01T00:00:00.000000Z"] {
        let fake = cluster();
        let election = candidate(&fake);
        fake.put(&json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": {"name": "pinfold-reclaim", "namespace": NAMESPACE},
            "spec": {"holderIdentity": "b", "leaseDurationSeconds": 15, "renewTime": renewed},
        }));
        let (standing, stop) = (election.standing(), CancellationToken::new());
        let checks = async {
            let waited = eventually("a takeover", || standing.leads()).await;
            let seconds = waited.as_secs();
            assert!((15..25).contains(&seconds), "{renewed}: {waited:?}");
            stop.cancel();
        };
        let work = async || std::future::pending::<()>().await;
        tokio::join!(election.run(&stop, work), checks);
    }
}

/// The account must not be able to take a slot by a false claim.
#[tokio::test]
async fn the_account_creates_only_the_lease_of_the_leader() {
    let fake = cluster();
    let cluster = Cluster::of(fake);
    let create = async |name: &str| {
        let lease = json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": name},
            "spec": {"holderIdentity": "a"},
        });
        let path = format!("/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases");
        let request = Request::new(path)
            .create(&PostParams::default(), lease.to_string().into_bytes())
            .unwrap();
        let api = Api::new(cluster.fake.client("reclaimer"), Duration::from_secs(5));
        let answer = api.ask::<Value>(Call::Other, request).await;
        answer.map(drop).map_err(|failure| failure.kind())
    };
    assert_eq!(create("scene.p.1.1.0").await, Err(ErrorKind::Forbidden));
    assert_eq!(create("pinfold-reclaim").await, Ok(()));
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

/// The program with the arguments of the shipped Deployment leads, reclaims, writes statuses, and answers probes.
#[tokio::test(flavor = "multi_thread")]
async fn the_program_leads_reclaims_and_answers_probes() {
    use nix::sys::signal::{Signal, kill};
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
    // Below the ports that the kernel gives to the sockets of other tests.
    let port = (0..)
        .map(|number| 20_000 + u16::try_from((std::process::id() + number) % 10_000).unwrap())
        .find(|port| std::net::TcpListener::bind(("127.0.0.1", *port)).is_ok())
        .unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_pinfold"))
        .args([
            "scene",
            "reclaim",
            "--watch",
            "--leader-elect",
            "--plan-status",
        ])
        .args(["--listen", &format!("127.0.0.1:{port}"), "--kubeconfig"])
        .arg(&kubeconfig)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let status = || {
        let plan = cluster
            .fake
            .get("pinfold.io/v1alpha1", "ScenePlan", "", "p");
        plan.unwrap()["status"]["claimed"].clone()
    };
    let start = std::time::Instant::now();
    while cluster.servers() != (0, 0) || status() != "0/2" {
        assert!(
            start.elapsed() < Duration::from_secs(60),
            "{:?} {}",
            cluster.servers(),
            status()
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let answer = async |path: &'static str| {
        tokio::task::spawn_blocking(move || request(port, path).unwrap())
            .await
            .unwrap()
    };
    for path in ["/healthz", "/readyz"] {
        let answer = answer(path).await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{path}: {answer}");
    }
    let page = answer("/metrics").await;
    for line in [
        "pinfold_reclaim_leader 1",
        "pinfold_reclaim_deleted_objects_total{kind=\"Deployment\"} 5",
        "pinfold_reclaim_failures_total 0",
    ] {
        assert!(
            page.lines().any(|other| other.trim_end() == line),
            "{line}: {page}"
        );
    }
    assert!(answer("/status").await.starts_with("HTTP/1.1 404"));
    let id = nix::unistd::Pid::from_raw(i32::try_from(child.id()).unwrap());
    kill(id, Signal::SIGTERM).unwrap();
    let (code, stderr) = tokio::task::spawn_blocking(move || {
        let mut stderr = String::new();
        child
            .stderr
            .take()
            .unwrap()
            .read_to_string(&mut stderr)
            .unwrap();
        (child.wait().unwrap().code(), stderr)
    })
    .await
    .unwrap();
    assert_eq!(code, Some(0), "{stderr}");
    let lease = leader_lease(&cluster.fake).unwrap();
    assert!(lease["spec"]["holderIdentity"].is_null(), "{lease}");
}
