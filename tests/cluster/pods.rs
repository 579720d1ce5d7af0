//! Tests of the pod follower of one node: faults of the API server and of the connection.

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use pinfold::cluster::pods::{PodCache, PodWatchSettings, PodsEvent, follow};
use pinfold::cluster::{Api, Call, ErrorKind};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};

use crate::fakeapi::{ADMIN, FakeApi, Fault, FaultScope, WatchFault};

const NODE: &str = "n1";

fn pod(name: &str, node: &str, cpu: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "managedFields": [{"manager": "kubelet", "operation": "Update"}]},
        "spec": {"nodeName": node, "containers": [{"name": "c", "resources": {"limits": {"cpu": cpu, "memory": "1Gi"}}}]},
        "status": {"phase": "Running"},
    })
}

/// A pod follower, with all its events that have changed something.
struct Listener {
    api: Api,
    cache: PodCache,
    events: mpsc::Receiver<PodsEvent>,
    received: Vec<PodsEvent>,
}

impl Listener {
    fn new(fake: &FakeApi, token: &str, settings: PodWatchSettings) -> Self {
        let api = Api::new(fake.client(token), Duration::from_secs(10));
        let (out, events) = mpsc::channel(16);
        tokio::spawn(follow(api.clone(), NODE.to_owned(), settings, out));
        Self {
            api,
            cache: PodCache::default(),
            events,
            received: Vec::new(),
        }
    }

    /// A listener that reads the pods by plain lists.
    fn plain(fake: &FakeApi) -> Self {
        let settings = PodWatchSettings {
            streaming: false,
            ..PodWatchSettings::default()
        };
        Self::new(fake, ADMIN, settings)
    }

    /// Receives events until `holds` returns true, for an hour at most, which costs no real time: the clock is paused. Three silent
    /// watches take 450 s, and the random pause before the list up to 150 s more.
    async fn until(&mut self, what: &str, mut holds: impl FnMut(&PodCache, &[PodsEvent]) -> bool) {
        let end = Instant::now() + Duration::from_secs(3600);
        while !holds(&self.cache, &self.received) {
            let next = tokio::time::timeout_at(end, self.events.recv()).await;
            let event = next
                .unwrap_or_else(|_| panic!("{what}: received {:?}, {}", self.names(), self.tail()));
            let event = event.expect("the follower ended");
            self.take(event);
        }
    }

    /// Takes an event. One that changes nothing about the pods is dropped, as the agent does.
    fn take(&mut self, event: PodsEvent) {
        if self.cache.take(&event) || !event.is_of_pods() {
            self.received.push(event);
        }
    }

    async fn until_names(&mut self, names: &[&str]) {
        self.until(&format!("{names:?}"), |cache, _| {
            cache.is_complete() && names_of(cache) == names
        })
        .await;
    }

    /// Receives events for the given time.
    async fn listen_for(&mut self, time: Duration) {
        let end = Instant::now() + time;
        while let Ok(event) = tokio::time::timeout_at(end, self.events.recv()).await {
            let event = event.expect("the follower ended");
            self.take(event);
        }
    }

    fn names(&self) -> Vec<String> {
        names_of(&self.cache)
    }

    fn tail(&self) -> String {
        format!(
            "{:?}",
            self.received.iter().rev().take(5).collect::<Vec<_>>()
        )
    }

    fn degraded_messages(&self) -> Vec<&str> {
        let messages = self.received.iter().filter_map(|event| match event {
            PodsEvent::Degraded(message) => Some(message.as_str()),
            _ => None,
        });
        messages.collect()
    }

    fn requests(&self) -> u64 {
        let counters = self.api.counters();
        counters.requests(Call::ListPods) + counters.requests(Call::WatchPods)
    }
}

fn names_of(cache: &PodCache) -> Vec<String> {
    let mut names: Vec<String> = cache.pods().map(|pod| pod.name.clone()).collect();
    names.sort();
    names
}

#[tokio::test(start_paused = true)]
async fn one_streaming_list_then_one_watch() {
    let fake = FakeApi::direct();
    fake.put(&pod("a", NODE, "1"));
    fake.put(&pod("stranger", "n2", "1"));
    let mut listener = Listener::new(&fake, ADMIN, PodWatchSettings::default());
    listener.until_names(&["a"]).await;
    let mut moved = fake.put(&pod("b", NODE, "2"));
    listener.until_names(&["a", "b"]).await;
    fake.put(&pod("b", NODE, "3"));
    listener
        .until("b grows", |cache, _| {
            let mut pods = cache.pods();
            pods.any(|pod| pod.containers[0].resources.cpu_limit == Some(3000))
        })
        .await;
    fake.remove(&fake.get("v1", "Pod", "default", "a").unwrap());
    listener.until_names(&["b"]).await;
    assert_eq!(
        (fake.count("watch", "pods"), fake.count("list", "pods")),
        (1, 0)
    );

    // A change of the status alone changes no pod. In the next hour, the follower only renews its watch.
    let received = listener.received.len();
    moved["status"]["conditions"] = json!([{"type": "Ready", "status": "True"}]);
    moved["spec"]["containers"][0]["resources"]["limits"]["cpu"] = json!("3");
    moved["metadata"]["resourceVersion"] = Value::Null;
    fake.put(&moved);
    listener.listen_for(Duration::from_secs(3600)).await;
    assert_eq!(listener.received.len(), received, "{}", listener.tail());
    let watches = fake.count("watch", "pods");
    assert!(
        (12..=14).contains(&watches),
        "{watches} watches in an hour of 290 s each"
    );
    assert_eq!(fake.count("list", "pods"), 0);
    assert_eq!(listener.api.counters().resyncs(), 1);
    assert!(
        fake.log()
            .iter()
            .all(|logged| matches!(&*logged.verb, "watch" | "list")),
        "nothing is written"
    );
}

#[tokio::test(start_paused = true)]
async fn plain_lists_from_the_cache_replace_refused_or_silent_streaming_lists() {
    for silent in [false, true] {
        let fake = FakeApi::direct();
        if silent {
            // An old server ignores `sendInitialEvents` and opens a plain watch, without the bookmark at the end of the list. The
            // fault sends nothing at all.
            let fault = Fault::Watch(WatchFault::Silent);
            fake.fail(
                FaultScope::always().verb("watch").on("pods").times(1),
                fault,
            );
        } else {
            fake.set_streaming_lists(false);
        }
        for number in 0..1201 {
            fake.put(&pod(&format!("p{number:04}"), NODE, "1"));
        }
        let mut listener = Listener::new(&fake, ADMIN, PodWatchSettings::default());
        listener
            .until("all pods", |cache, _| cache.pods().len() == 1201)
            .await;
        let lists: Vec<_> = fake
            .log()
            .into_iter()
            .filter(|logged| logged.verb == "list")
            .collect();
        assert_eq!(lists.len(), 1);
        assert_eq!(lists[0].from_etcd, 0, "{}", lists[0].query);
        fake.put(&pod("new", NODE, "1"));
        listener
            .until("one more", |cache, _| cache.pods().len() == 1202)
            .await;
        assert!(
            listener.degraded_messages().is_empty(),
            "{:?}",
            listener.degraded_messages()
        );
    }
}

#[tokio::test(start_paused = true)]
async fn three_slow_streaming_lists_switch_to_plain_lists() {
    let unended = Fault::Watch(WatchFault::Unended);
    for (slow, streams) in [(1, true), (2, true), (3, false)] {
        let fake = FakeApi::direct();
        fake.put(&pod("a", NODE, "1"));
        let mut listener = Listener::new(&fake, ADMIN, PodWatchSettings::default());
        for round in 0..slow {
            // A later resync needs two watch requests: the first gets 410 Gone, the second is the streaming list.
            let times = if round == 0 { 1 } else { 2 };
            fake.fail(
                FaultScope::always().verb("watch").on("pods").times(times),
                unended.clone(),
            );
            match round {
                0 => listener.until_names(&["a"]).await,
                _ => force_resync(&fake, &mut listener).await,
            }
        }
        let lists = fake.count("list", "pods");
        assert_eq!(
            lists, slow,
            "each slow streaming list is replaced by a plain list"
        );
        force_resync(&fake, &mut listener).await;
        assert_eq!(
            fake.count("list", "pods") == lists,
            streams,
            "after {slow} slow streaming lists"
        );
    }
}

/// A listener that knows the pods `a` and `b`, and the version of the server's cache, which lacks
/// `b`. The watch can't continue.
async fn beside_a_cache_that_lags() -> (FakeApi, Listener, u64) {
    let fake = FakeApi::direct();
    let mut listener = Listener::plain(&fake);
    fake.put(&pod("a", NODE, "1"));
    listener.until_names(&["a"]).await;
    let before = fake.revision();
    fake.put(&pod("b", NODE, "1"));
    listener.until_names(&["a", "b"]).await;
    fake.put(&pod("stranger", "n2", "1"));
    fake.set_cached(Some(before));
    let gone = Fault::Watch(WatchFault::Gone { after: 0 });
    fake.fail(FaultScope::always().verb("watch").on("pods").times(1), gone);
    fake.cut();
    fake.put(&pod("b", NODE, "2"));
    fake.clear_log();
    (fake, listener, before)
}

#[tokio::test(start_paused = true)]
async fn a_plain_list_is_never_older_than_the_known_pods() {
    let (fake, mut listener, _) = beside_a_cache_that_lags().await;
    let resyncs = listener.api.counters().resyncs();
    listen_for_lists(&fake, &mut listener, 2).await;
    fake.set_cached(None);
    let until = Instant::now() + Duration::from_secs(1200);
    while listener.api.counters().resyncs() == resyncs && Instant::now() < until {
        listener.listen_for(Duration::from_secs(1)).await;
        assert_eq!(listener.names(), ["a", "b"]);
    }
    let lists = plain_lists(&fake);
    assert_eq!(
        lists,
        [(504, 0), (504, 0), (200, 0)],
        "the cache catches up"
    );
}

#[tokio::test(start_paused = true)]
async fn a_cache_that_never_catches_up_and_a_restored_etcd_lead_to_the_newest_list() {
    for is_restored in [false, true] {
        let fake = FakeApi::direct();
        let settings = PodWatchSettings {
            streaming: false,
            spread: Duration::from_secs(10),
            ..PodWatchSettings::default()
        };
        let mut listener = Listener::new(&fake, ADMIN, settings);
        fake.put(&pod("a", NODE, "1"));
        listener.until_names(&["a"]).await;
        let before = fake.revision();
        fake.put(&pod("b", NODE, "1"));
        listener.until_names(&["a", "b"]).await;
        fake.clear_log();
        let names: &[&str] = if is_restored {
            // The watch from a future version stays silent.
            let silent = Fault::Watch(WatchFault::Silent);
            fake.fail(
                FaultScope::always().verb("watch").on("pods").times(3),
                silent,
            );
            fake.restore(before);
            &["a"]
        } else {
            fake.set_cached(Some(before));
            fake.put(&pod("c", NODE, "1"));
            let gone = Fault::Watch(WatchFault::Gone { after: 0 });
            fake.fail(FaultScope::always().verb("watch").on("pods").times(1), gone);
            fake.cut();
            fake.put(&pod("c", NODE, "2"));
            &["a", "b", "c"]
        };
        listener.until_names(names).await;
        let log = fake.log();
        let lists: Vec<u16> = log
            .iter()
            .filter(|logged| logged.verb == "list")
            .map(|logged| logged.status)
            .collect();
        assert_eq!(lists, [504, 504, 504, 200], "{is_restored}");
        // Later lists name a version again.
        fake.set_cached(None);
        fake.clear_log();
        force_resync(&fake, &mut listener).await;
        let log = fake.log();
        let lists: Vec<_> = log.iter().filter(|logged| logged.verb == "list").collect();
        assert_eq!(lists.len(), 1);
        assert_eq!(lists[0].from_etcd, 0, "{lists:?}");
    }
}

/// Other failures between two answers "too large" show a server in trouble, not one that lacks the
/// version for good. If each of thousands of nodes then asked for the newest list, each would cost
/// it a scan of all pods.
#[tokio::test(start_paused = true)]
async fn only_answers_in_a_row_that_the_version_is_too_large_lead_to_the_newest_list() {
    let (fake, mut listener, before) = beside_a_cache_that_lags().await;
    for number in 1..=7 {
        if number % 3 == 0 {
            let fault = Fault::Refuse {
                code: 500,
                text: "",
                retry_after: None,
            };
            fake.fail(FaultScope::always().verb("list").on("pods").times(1), fault);
        }
        listen_for_lists(&fake, &mut listener, number).await;
    }
    fake.set_cached(None);
    listen_for_lists(&fake, &mut listener, 8).await;
    // A list counts like any other answer. Silent watches lead to the next one.
    let silent = Fault::Watch(WatchFault::Silent);
    fake.fail(FaultScope::always().verb("watch").on("pods"), silent);
    listener.listen_for(Duration::from_secs(10)).await;
    fake.set_cached(Some(before));
    fake.cut();
    listen_for_lists(&fake, &mut listener, 11).await;
    let lists = plain_lists(&fake);
    let statuses: Vec<u16> = lists.iter().map(|(status, _)| *status).collect();
    assert_eq!(
        statuses,
        [504, 504, 500, 504, 504, 500, 504, 200, 504, 504, 504]
    );
    assert!(lists.iter().all(|(_, read)| *read == 0), "{lists:?}");
}

#[tokio::test(start_paused = true)]
async fn the_first_plain_lists_of_a_rollout_are_spread() {
    let fake = FakeApi::direct();
    fake.set_streaming_lists(false);
    fake.put(&pod("a", NODE, "1"));
    let began = Instant::now();
    let mut listeners: Vec<Listener> = (0..100)
        .map(|_| Listener::new(&fake, ADMIN, PodWatchSettings::default()))
        .collect();
    for listener in &mut listeners {
        listener.until_names(&["a"]).await;
    }
    let log = fake.log();
    let lists = log.iter().filter(|logged| logged.verb == "list");
    let times: Vec<Duration> = lists.map(|logged| logged.at - began).collect();
    assert_eq!(times.len(), 100);
    let within = |from: u64, to: u64| {
        let range = Duration::from_millis(from)..Duration::from_millis(to);
        times.iter().filter(|time| range.contains(time)).count()
    };
    for quarter in 0..4 {
        let count = within(500 * quarter, 500 * (quarter + 1));
        assert!((5..60).contains(&count), "{count} in quarter {quarter}");
    }
    assert_eq!(within(0, 2_100), 100, "the reconciler waits 3 s");
}

/// The plain lists that the server was asked for: the status, and the number of objects read from etcd.
fn plain_lists(fake: &FakeApi) -> Vec<(u16, usize)> {
    let log = fake.log().into_iter();
    log.filter(|logged| logged.verb == "list")
        .map(|logged| (logged.status, logged.from_etcd))
        .collect()
}

/// Waits until the server was asked for this number of plain lists. The pods must stay the same meanwhile.
async fn listen_for_lists(fake: &FakeApi, listener: &mut Listener, number: usize) {
    let names = listener.names();
    let until = Instant::now() + Duration::from_secs(1200);
    while plain_lists(fake).len() < number {
        let (lists, tail) = (plain_lists(fake), listener.tail());
        assert!(Instant::now() < until, "{lists:?}: {tail}");
        listener.listen_for(Duration::from_millis(100)).await;
        assert_eq!(listener.names(), names);
    }
}

/// Forces a resync, and waits for it.
async fn force_resync(fake: &FakeApi, listener: &mut Listener) {
    let resyncs = listener.api.counters().resyncs();
    // The server compacts the resourceVersion that the follower has.
    fake.put(&pod("stranger", "n2", "1"));
    fake.compact(fake.revision());
    fake.cut();
    let until = Instant::now() + Duration::from_secs(900);
    while listener.api.counters().resyncs() == resyncs {
        assert!(Instant::now() < until, "no resync: {}", listener.tail());
        listener.listen_for(Duration::from_secs(1)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn faults_at_start_delay_the_first_snapshot() {
    let page = "<html><head><title>502 Bad Gateway</title></head></html>";
    let refuse = |code, text, retry_after| Fault::Refuse {
        code,
        text,
        retry_after,
    };
    let faults = [
        ("drop", Fault::Drop, ErrorKind::Connection),
        (
            "slow",
            Fault::Delay(Duration::from_secs(30)),
            ErrorKind::Timeout,
        ),
        ("hang", Fault::Hang, ErrorKind::Timeout),
        (
            "429",
            refuse(429, "Too many requests, please try again later.\n", Some(7)),
            ErrorKind::TooManyRequests,
        ),
        ("500", refuse(500, "", None), ErrorKind::Server),
        ("502", refuse(502, page, None), ErrorKind::Server),
        (
            "503",
            refuse(503, "service unavailable\n", Some(1)),
            ErrorKind::Server,
        ),
        (
            "401",
            refuse(401, "Unauthorized", None),
            ErrorKind::Unauthorized,
        ),
        ("garbage", Fault::Garbage, ErrorKind::InvalidResponse),
        ("half", Fault::Half, ErrorKind::Connection),
        (
            "ends",
            Fault::Watch(WatchFault::CloseAtOnce),
            ErrorKind::Connection,
        ),
    ];
    for streaming in [true, false] {
        for (name, fault, kind) in &faults {
            let fake = FakeApi::direct();
            fake.set_streaming_lists(streaming);
            fake.put(&pod("a", NODE, "1"));
            let verb = if streaming { "watch" } else { "list" };
            if !streaming && *name == "ends" {
                continue;
            }
            fake.fail(
                FaultScope::always().verb(verb).on("pods").times(4),
                fault.clone(),
            );
            let began = Instant::now();
            let settings = PodWatchSettings {
                streaming,
                ..PodWatchSettings::default()
            };
            let mut listener = Listener::new(&fake, ADMIN, settings);
            listener.until_names(&["a"]).await;
            let taken = began.elapsed();
            let counters = std::sync::Arc::clone(listener.api.counters());
            // Garbage without a newline is not a line of the stream. The stream simply ends.
            let kind = if streaming && *name == "garbage" {
                &ErrorKind::Connection
            } else {
                kind
            };
            // `Fault::Half` cuts complete bodies only. A stream is not affected.
            if !(streaming && *name == "half") {
                assert_eq!(
                    counters.errors(*kind),
                    4,
                    "{name} {streaming}: {}",
                    listener.tail()
                );
                assert!(taken < Duration::from_secs(150), "{name}: {taken:?}");
                assert!(
                    !listener.degraded_messages().is_empty()
                        && listener.degraded_messages().len() <= 2,
                    "{name}"
                );
            }
            if *name == "429" {
                assert!(
                    taken >= Duration::from_secs(28),
                    "Retry-After counts: {taken:?}"
                );
            }
            let complete = listener
                .received
                .iter()
                .filter(|event| matches!(event, PodsEvent::Listed { .. }));
            assert_eq!(
                complete.count(),
                1,
                "{name}: exactly one snapshot, after the complete list"
            );
            fake.heal();
            listener
                .until("recovered", |_, received| {
                    !received.iter().any(is_trouble) || received.iter().any(is_recovery)
                })
                .await;
            assert!(!counters.is_degraded(), "{name}");
            assert!(listener.requests() < 12, "{name}: {}", listener.requests());
        }
    }
}

/// A proxy may answer with status 200 and a body that is no list of pods.
#[tokio::test(start_paused = true)]
async fn a_body_that_is_no_pod_list_removes_no_pod() {
    for text in [
        "{}",
        r#"{"items":[],"metadata":{"resourceVersion":"9"}}"#,
        r#"{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"9"}}"#,
        r#"{"kind":"NodeList","apiVersion":"v1","metadata":{"resourceVersion":"9"},"items":[]}"#,
    ] {
        let fake = FakeApi::direct();
        fake.set_streaming_lists(false);
        fake.put(&pod("a", NODE, "1"));
        let mut listener = Listener::new(&fake, ADMIN, PodWatchSettings::default());
        listener.until_names(&["a"]).await;
        let refuse = Fault::Refuse {
            code: 200,
            text,
            retry_after: None,
        };
        fake.fail(
            FaultScope::always().verb("list").on("pods").times(2),
            refuse,
        );
        let lists = fake.count("list", "pods");
        force_resync(&fake, &mut listener).await;
        // Two refused lists, and a good list.
        while fake.count("list", "pods") < lists + 3 {
            listener.listen_for(Duration::from_secs(1)).await;
        }
        let counters = listener.api.counters();
        assert_eq!(counters.errors(ErrorKind::InvalidResponse), 2, "{text}");
        let removed =
            |event: &PodsEvent| matches!(event, PodsEvent::Listed { pods, .. } if pods.is_empty());
        assert!(!listener.received.iter().any(removed), "{text}");
        assert!(!listener.degraded_messages().is_empty(), "{text}");
        assert_eq!(listener.names()[0], "a", "{text}");
    }
}

fn is_trouble(event: &PodsEvent) -> bool {
    matches!(event, PodsEvent::Degraded(_))
}

fn is_recovery(event: &PodsEvent) -> bool {
    matches!(event, PodsEvent::Recovered)
}

#[tokio::test(start_paused = true)]
async fn watch_faults_lose_no_changes() {
    let faults = [
        WatchFault::HalfLine { after: 1 },
        WatchFault::Garbage { after: 1 },
        WatchFault::Gone { after: 1 },
        WatchFault::CloseAtOnce,
        WatchFault::Silent,
    ];
    for fault in faults {
        let fake = FakeApi::direct();
        fake.put(&pod("a", NODE, "1"));
        let mut listener = Listener::plain(&fake);
        listener.until_names(&["a"]).await;
        // The open watch ends, and the next two watches have the fault.
        fake.fail(
            FaultScope::always().verb("watch").on("pods").times(2),
            Fault::Watch(fault),
        );
        fake.cut();
        listener.listen_for(Duration::from_secs(1)).await;
        for name in ["b", "c", "d"] {
            fake.put(&pod(name, NODE, "1"));
        }
        fake.remove(&fake.get("v1", "Pod", "default", "b").unwrap());
        let began = Instant::now();
        listener.until_names(&["a", "c", "d"]).await;
        // Two silent watches take two idle timeouts of 150 s.
        assert!(
            began.elapsed() < Duration::from_secs(330),
            "{fault:?}: {:?}",
            began.elapsed()
        );
        let resyncs = listener.api.counters().resyncs();
        let gone = matches!(fault, WatchFault::Gone { .. });
        assert_eq!(
            resyncs > 1,
            gone,
            "{fault:?}: only 410 Gone needs a resync, not {resyncs} resyncs"
        );
        assert!(
            listener.requests() < 14,
            "{fault:?}: {}",
            listener.requests()
        );
    }
}

#[tokio::test(start_paused = true)]
async fn watches_that_end_at_once_cause_few_requests() {
    // The time until the server's answer is no lifetime of a watch.
    for fault in [WatchFault::CloseAtOnce, WatchFault::CloseLate] {
        let fake = FakeApi::direct();
        fake.put(&pod("a", NODE, "1"));
        let mut listener = Listener::plain(&fake);
        fake.fail(
            FaultScope::always().verb("watch").on("pods"),
            Fault::Watch(fault),
        );
        listener.until_names(&["a"]).await;
        listener.listen_for(Duration::from_secs(600)).await;
        assert!(
            listener.requests() <= 30,
            "{fault:?}: {} requests in ten minutes",
            listener.requests()
        );
        assert_eq!(listener.names(), ["a"]);
        assert_eq!(listener.degraded_messages().len(), 1, "{fault:?}");
    }
}

/// After an old backup of etcd is restored, the last resourceVersion lies in the future. The server
/// then accepts each watch and sends nothing.
#[tokio::test(start_paused = true)]
async fn silent_watches_lead_to_a_new_list() {
    let fake = FakeApi::direct();
    fake.put(&pod("a", NODE, "1"));
    let settings = PodWatchSettings {
        streaming: false,
        ..PodWatchSettings::default()
    };
    let mut listener = Listener::new(&fake, ADMIN, settings);
    listener.until_names(&["a"]).await;
    let silent = Fault::Watch(WatchFault::Silent);
    fake.fail(FaultScope::always().verb("watch").on("pods"), silent);
    fake.cut();
    listener.listen_for(Duration::from_secs(1)).await;
    fake.put(&pod("b", NODE, "1"));
    listener.until_names(&["a", "b"]).await;
    assert_eq!(listener.api.counters().resyncs(), 2);
    assert_eq!(listener.names(), ["a", "b"], "known pods stay");
}

#[tokio::test(start_paused = true)]
async fn ten_minutes_without_an_api_server_keep_the_known_pods() {
    for compacted in [false, true] {
        let fake = FakeApi::direct();
        for name in ["a", "b"] {
            fake.put(&pod(name, NODE, "1"));
        }
        let mut listener = Listener::new(&fake, ADMIN, PodWatchSettings::default());
        listener.until_names(&["a", "b"]).await;
        fake.go_away();
        listener.listen_for(Duration::from_secs(300)).await;
        fake.put(&pod("c", NODE, "2"));
        fake.remove(&fake.get("v1", "Pod", "default", "a").unwrap());
        if compacted {
            fake.compact(fake.revision() + 1);
            fake.set_revision(fake.revision() + 10);
        }
        listener.listen_for(Duration::from_secs(300)).await;
        assert_eq!(listener.names(), ["a", "b"], "known pods stay");
        assert_eq!(
            listener.degraded_messages().len(),
            1,
            "{:?}",
            listener.degraded_messages()
        );
        assert!(listener.api.counters().is_degraded());
        let requests = listener.requests();
        assert!(requests < 30, "{requests} tries in ten minutes");
        fake.come_back();
        let back = Instant::now();
        listener.until_names(&["b", "c"]).await;
        // A retry of the watch waits for at most 60 s. A list then follows after at most 150 s.
        let limit = Duration::from_secs(if compacted { 225 } else { 75 });
        assert!(back.elapsed() < limit, "{:?}", back.elapsed());
        listener
            .until("recovered", |_, received| received.iter().any(is_recovery))
            .await;
        assert_eq!(
            listener.api.counters().resyncs(),
            if compacted { 2 } else { 1 }
        );
        assert!(!listener.api.counters().is_degraded());
    }
}

#[tokio::test(start_paused = true)]
async fn waits_on_purpose_after_an_outage_are_announced() {
    // The pause before the list is random. One of five pauses is long enough for a report, but for one of 10^9 runs.
    let mut announced = 0;
    for _ in 0..5 {
        let fake = FakeApi::direct();
        fake.put(&pod("a", NODE, "1"));
        let mut listener = Listener::new(&fake, ADMIN, PodWatchSettings::default());
        listener.until_names(&["a"]).await;
        fake.go_away();
        listener.listen_for(Duration::from_secs(62)).await;
        let waits = listener.received.iter().filter_map(|event| match event {
            PodsEvent::Waits { lists, .. } => Some(*lists),
            _ => None,
        });
        let waits: Vec<bool> = waits.collect();
        assert!(waits.len() >= 3 && !waits.contains(&true), "{waits:?}");

        fake.compact(fake.revision() + 1);
        fake.set_revision(fake.revision() + 10);
        fake.come_back();
        let mut list_at = None;
        loop {
            match listener.events.recv().await.unwrap() {
                PodsEvent::Waits { until, lists: true } => {
                    let pause = until.duration_since(Timestamp::now());
                    list_at = Some(Instant::now() + Duration::try_from(pause).unwrap());
                }
                PodsEvent::Listed { .. } => break,
                _ => {}
            }
        }
        if let Some(list_at) = list_at {
            let late = Instant::now().duration_since(list_at);
            let early = list_at.duration_since(Instant::now());
            assert!(
                late.max(early) < Duration::from_secs(2),
                "{late:?} {early:?}"
            );
            announced += 1;
        }
    }
    assert!(announced > 0);
}

#[tokio::test(start_paused = true)]
async fn resyncs_of_many_nodes_are_spread() {
    let fake = FakeApi::direct();
    fake.put(&pod("a", NODE, "1"));
    let mut listeners: Vec<Listener> = (0..100)
        .map(|_| Listener::new(&fake, ADMIN, PodWatchSettings::default()))
        .collect();
    for listener in &mut listeners {
        listener.until_names(&["a"]).await;
    }
    fake.go_away();
    fake.put(&pod("b", NODE, "1"));
    fake.compact(fake.revision() + 1);
    fake.set_revision(fake.revision() + 10);
    tokio::time::sleep(Duration::from_secs(1)).await;
    fake.clear_log();
    fake.come_back();
    for listener in &mut listeners {
        listener.until_names(&["a", "b"]).await;
    }
    let log = fake.log();
    let full: Vec<Instant> = log
        .iter()
        .filter(|logged| logged.query.contains("sendInitialEvents"))
        .map(|logged| logged.at)
        .collect();
    assert_eq!(full.len(), 100);
    let most_per_second = full.iter().map(|from| {
        full.iter()
            .filter(|at| **at >= *from && **at < *from + Duration::from_secs(1))
            .count()
    });
    let most_per_second = most_per_second.max().unwrap();
    assert!(
        most_per_second < 10,
        "{most_per_second} of 100 within a second"
    );
}

#[tokio::test(start_paused = true)]
async fn a_missing_permission_to_list_pods_is_reported_once() {
    let fake = FakeApi::direct();
    let user = "system:serviceaccount:pinfold:pinfold";
    fake.user("agent", user);
    let mut listener = Listener::new(&fake, "agent", PodWatchSettings::default());
    listener.listen_for(Duration::from_secs(600)).await;
    assert!(!listener.cache.is_complete());
    assert_eq!(listener.degraded_messages().len(), 1);
    let message = listener.degraded_messages()[0];
    assert!(
        message.contains("pods is forbidden")
            && message.contains("allow the agent to list and watch pods"),
        "{message}"
    );
    assert!(listener.requests() < 30, "{}", listener.requests());
    fake.allow(user, &["list", "watch"], "", "pods", &[]);
    listener.until_names(&[]).await;
    assert!(listener.received.iter().any(is_recovery) || !listener.api.counters().is_degraded());
}

#[tokio::test(start_paused = true)]
async fn an_unreadable_pod_hides_no_other_pod() {
    for streaming in [true, false] {
        let fake = FakeApi::direct();
        fake.set_streaming_lists(streaming);
        let mut odd = pod("odd", NODE, "1");
        odd["spec"]["containers"] = json!({"not": "a list"});
        fake.put(&odd);
        fake.put(&pod("a", NODE, "1"));
        let mut listener = Listener::new(&fake, ADMIN, PodWatchSettings::default());
        listener.until_names(&["a"]).await;
        assert!(
            listener
                .cache
                .unreadable()
                .next()
                .unwrap()
                .contains("default/odd"),
            "{:?}",
            listener.cache
        );
        // A pod with an unreadable update keeps its last readable state, and the watch goes on.
        let mut worse = pod("a", NODE, "1");
        worse["spec"]["containers"][0]["resources"]["limits"]["cpu"] = json!("many");
        fake.put(&worse);
        fake.put(&pod("b", NODE, "1"));
        listener.until_names(&["a", "b"]).await;
        assert_eq!(
            listener.cache.pods().next().unwrap().containers[0]
                .resources
                .cpu_limit,
            Some(1000)
        );
        assert!(
            listener
                .received
                .iter()
                .any(|event| matches!(event, PodsEvent::Unreadable { .. }))
        );
        assert!(listener.degraded_messages().is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn the_follower_ends_when_its_receiver_is_dropped() {
    let fake = FakeApi::direct();
    let api = Api::new(fake.client(ADMIN), Duration::from_secs(10));
    let (out, mut events) = mpsc::channel(4);
    let task = tokio::spawn(follow(
        api,
        NODE.to_owned(),
        PodWatchSettings::default(),
        out,
    ));
    assert!(matches!(
        events.recv().await,
        Some(PodsEvent::Listed { .. })
    ));
    drop(events);
    timeout(Duration::from_secs(5), task)
        .await
        .unwrap()
        .unwrap();
}

/// The lifecycles of four pods, as recorded from a real server.
#[tokio::test(start_paused = true)]
async fn recorded_pod_lifecycles() {
    let file = crate::repository::here("tests/data/apiserver/03-watch-pods-lifecycle.http");
    let text = std::fs::read_to_string(file).unwrap();
    let lines: Vec<Value> = text
        .lines()
        .filter(|line| line.starts_with("{\"type\""))
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let fake = FakeApi::direct();
    let api = Api::new(fake.client(ADMIN), Duration::from_secs(10));
    let (out, mut events) = mpsc::channel(256);
    tokio::spawn(follow(
        api,
        "bench-node".to_owned(),
        PodWatchSettings::default(),
        out,
    ));
    let mut cache = PodCache::default();
    cache.take(&events.recv().await.unwrap());
    assert!(
        cache.is_complete() && cache.pods().len() == 0,
        "the server sent an empty list"
    );
    let mut changes = 0;
    let (mut most_pods, mut restarted) = (0, Vec::new());
    for line in lines.iter().filter(|line| line["type"] != "BOOKMARK") {
        match line["type"].as_str().unwrap() {
            "DELETED" => fake.remove(&line["object"]),
            _ => {
                fake.put(&line["object"]);
            }
        }
        while let Ok(Some(event)) = timeout(Duration::from_millis(50), events.recv()).await {
            changes += usize::from(cache.take(&event));
        }
        most_pods = most_pods.max(cache.pods().len());
        let ids = cache.pods().filter(|pod| pod.name == "fx-guaranteed");
        restarted.extend(ids.flat_map(|pod| {
            pod.containers
                .iter()
                .filter_map(|container| container.runtime_id.clone())
        }));
    }
    restarted.dedup();
    assert_eq!((most_pods, cache.pods().len()), (4, 0));
    assert_eq!(restarted.len(), 2, "a crash creates a second container");
    assert!(
        changes < 30,
        "{changes} changes of what Pinfold reads, among 45 changes"
    );
}

/// The same over sockets, with a running clock: cut connections, half a line, and a silent open connection.
#[tokio::test]
async fn over_tcp() {
    let fake = FakeApi::start().await;
    fake.put(&pod("a", NODE, "1"));
    let settings = PodWatchSettings {
        idle: Duration::from_millis(700),
        backoff: (Duration::from_millis(20), Duration::from_millis(200)),
        spread: Duration::from_millis(50),
        ..PodWatchSettings::default()
    };
    fake.set_bookmark_every(Duration::from_millis(200));
    let mut listener = Listener::new(&fake, ADMIN, settings);
    listener.until_names(&["a"]).await;
    fake.cut();
    fake.put(&pod("b", NODE, "1"));
    listener.until_names(&["a", "b"]).await;

    fake.fail(
        FaultScope::always().verb("watch").times(1),
        Fault::Watch(WatchFault::HalfLine { after: 0 }),
    );
    fake.cut();
    fake.put(&pod("c", NODE, "1"));
    listener.until_names(&["a", "b", "c"]).await;

    let before = listener.api.counters().errors(ErrorKind::Timeout);
    fake.fail(
        FaultScope::always().verb("watch").times(1),
        Fault::Watch(WatchFault::Silent),
    );
    fake.cut();
    tokio::time::sleep(Duration::from_millis(300)).await;
    fake.put(&pod("d", NODE, "1"));
    listener.until_names(&["a", "b", "c", "d"]).await;
    assert!(
        listener.api.counters().errors(ErrorKind::Timeout) > before,
        "the idle timeout detects the silent watch"
    );

    fake.go_away();
    tokio::time::sleep(Duration::from_millis(500)).await;
    fake.remove(&fake.get("v1", "Pod", "default", "a").unwrap());
    fake.come_back();
    listener.until_names(&["b", "c", "d"]).await;
    assert_eq!(listener.api.counters().resyncs(), 1);
}
