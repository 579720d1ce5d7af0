//! Events on pods: repetitions are counted, writes are limited, and no caller is blocked.

use std::time::Duration;

use pinfold::cluster::Api;
use pinfold::cluster::events::{EventDetails, EventSettings, Recorder};
use serde_json::{Value, json};

use crate::fakeapi::{ADMIN, FakeApi, Fault, FaultScope};

fn news(pod: &str, note: &str) -> EventDetails {
    EventDetails {
        namespace: "default".to_owned(),
        pod: pod.to_owned(),
        uid: format!("uid-{pod}"),
        warning: false,
        action: "Pin",
        reason: "Pinned",
        note: note.to_owned(),
    }
}

fn start(fake: &FakeApi, settings: EventSettings) -> (Recorder, Api) {
    let api = Api::new(fake.client(ADMIN), Duration::from_secs(10));
    let (recorder, task) = Recorder::new(api.clone(), "n1", settings);
    tokio::spawn(task);
    (recorder, api)
}

fn written(fake: &FakeApi) -> Vec<Value> {
    fake.all("events.k8s.io/v1", "Event")
}

#[tokio::test(start_paused = true)]
async fn repetitions_are_counted_on_the_same_event() {
    let fake = FakeApi::direct();
    let (recorder, _) = start(&fake, EventSettings::default());
    for _ in 0..100 {
        recorder.tell(news("p", "CPUs 2-3 are its own"));
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let events = written(&fake);
    assert_eq!(events.len(), 1, "{events:#?}");
    let event = &events[0];
    assert_eq!(event["series"]["count"], json!(64));
    assert_eq!(
        (&event["reason"], &event["type"]),
        (&json!("Pinned"), &json!("Normal"))
    );
    assert_eq!(event["regarding"]["uid"], json!("uid-p"));
    assert_eq!(event["reportingController"], json!("pinfold.io/agent"));
    assert_eq!(
        (
            fake.count("create", "events"),
            fake.count("patch", "events")
        ),
        (1, 6)
    );
    assert!(
        fake.log().iter().all(|logged| logged.status < 300),
        "{:#?}",
        fake.log()
    );
    // A single write within a minute adds the last repetitions.
    tokio::time::sleep(Duration::from_secs(65)).await;
    assert_eq!(written(&fake)[0]["series"]["count"], json!(100));
    tokio::time::sleep(Duration::from_secs(235)).await;
    assert_eq!(fake.count("", ""), 8, "no writes without repetitions");
    recorder.tell(news("p", "CPUs 2-3 are its own"));
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(written(&fake)[0]["series"]["count"], json!(101));
    // A repetition after the window creates a new Event.
    tokio::time::sleep(Duration::from_secs(601)).await;
    recorder.tell(news("p", "CPUs 2-3 are its own"));
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(written(&fake).len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_node_with_many_pods_stays_within_the_write_limit() {
    let fake = FakeApi::direct();
    let (recorder, api) = start(&fake, EventSettings::default());
    for number in 0..200 {
        recorder.tell(news(&format!("p{number}"), "refused"));
    }
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(fake.count("", "events"), 30);
    assert_eq!(api.counters().events_dropped(), 170);
}

#[tokio::test(start_paused = true)]
async fn an_unreachable_api_blocks_no_caller_and_news_are_dropped() {
    let fake = FakeApi::direct();
    fake.go_away();
    let (recorder, api) = start(&fake, EventSettings::default());
    let began = std::time::Instant::now();
    for number in 0..10_000 {
        recorder.tell(news(&format!("p{number}"), "pinned"));
    }
    assert!(began.elapsed() < Duration::from_secs(30));
    assert!(
        api.counters().events_dropped() >= 9_000,
        "{}",
        api.counters().events_dropped()
    );
    tokio::time::sleep(Duration::from_secs(3600)).await;
    fake.come_back();
    recorder.tell(news("late", "pinned"));
    tokio::time::sleep(Duration::from_secs(120)).await;
    let names: Vec<String> = written(&fake)
        .iter()
        .map(|event| event["regarding"]["name"].as_str().unwrap().to_owned())
        .collect();
    assert!(names.contains(&"late".to_owned()), "{names:?}");
}

#[tokio::test(start_paused = true)]
async fn a_deleted_event_is_created_again() {
    let fake = FakeApi::direct();
    let (recorder, _) = start(&fake, EventSettings::default());
    recorder.tell(news("p", "x"));
    tokio::time::sleep(Duration::from_secs(1)).await;
    fake.remove(&written(&fake)[0]);
    for _ in 0..3 {
        recorder.tell(news("p", "x"));
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    assert_eq!(written(&fake).len(), 1);
    assert_eq!(fake.count("create", "events"), 2);
}

#[tokio::test(start_paused = true)]
async fn retryable_failures_are_retried_and_refusals_are_not() {
    let fake = FakeApi::direct();
    let (recorder, api) = start(&fake, EventSettings::default());
    let busy = Fault::Refuse {
        code: 429,
        text: "Too many requests",
        retry_after: Some(1),
    };
    fake.fail(FaultScope::always().on("events").times(2), busy);
    recorder.tell(news("p", "x"));
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(written(&fake).len(), 1);
    fake.clear_log();
    let forbidden = Fault::Refuse {
        code: 403,
        text: "forbidden",
        retry_after: None,
    };
    fake.fail(FaultScope::always().on("events"), forbidden);
    recorder.tell(news("q", "x"));
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(fake.count("create", "events"), 1);
    assert_eq!(api.counters().events_dropped(), 1);
    // A retry after a lost answer creates no second Event.
    fake.heal();
    fake.fail(
        FaultScope::always().verb("create").on("events").times(1),
        Fault::Half,
    );
    recorder.tell(news("r", "x"));
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(
        written(&fake)
            .iter()
            .filter(|event| event["regarding"]["name"] == "r")
            .count(),
        1
    );
}

#[tokio::test(start_paused = true)]
async fn the_last_repetitions_are_written_when_the_agent_stops() {
    let fake = FakeApi::direct();
    let api = Api::new(fake.client(ADMIN), Duration::from_secs(10));
    let (recorder, writer) = Recorder::new(api, "n1", EventSettings::default());
    let writer = tokio::spawn(writer);
    for _ in 0..6 {
        recorder.tell(news("p", "x"));
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(written(&fake)[0]["series"]["count"], json!(4));
    drop(recorder);
    tokio::time::timeout(Duration::from_secs(1), writer)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(written(&fake)[0]["series"]["count"], json!(6));
}
