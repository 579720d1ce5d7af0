//! Replays every recorded exchange with a real 1.36 API server against the fake server.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::fakeapi::{ADMIN, FakeApi, Fault, FaultScope};

/// Files without an HTTP exchange.
const NO_EXCHANGE: [&str; 1] = ["47-lease-gc-timing.txt"];

fn folder() -> PathBuf {
    crate::repository::here("tests/data/apiserver")
}

/// A recorded HTTP request or response.
#[derive(Debug, Clone)]
struct Message {
    line: String,
    headers: String,
    body: String,
}

impl Message {
    fn parse(text: &str) -> Self {
        let (head, body) = text.split_once("\n\n").unwrap_or((text, ""));
        let (line, headers) = head.split_once('\n').unwrap_or((head, ""));
        Self {
            line: line.to_owned(),
            headers: headers.to_owned(),
            body: body.to_owned(),
        }
    }

    fn header(&self, name: &str) -> Option<String> {
        let lines = self.headers.lines().filter_map(|line| line.split_once(':'));
        lines
            .filter(|(key, _)| key.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.trim().to_owned())
            .next()
    }

    fn status(&self) -> u16 {
        self.line.split(' ').nth(1).unwrap().parse().unwrap()
    }

    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }
}

/// The request and the response of a file.
fn recorded(file: &str) -> (Message, Message) {
    let text = fs::read_to_string(folder().join(file)).unwrap();
    let (request, response) = text.split_once("### response\n").unwrap();
    (
        Message::parse(request.trim_start_matches("### request\n").trim_end()),
        Message::parse(response),
    )
}

pub(crate) fn answer_of(file: &str) -> Value {
    recorded(file).1.json()
}

/// Sends the recorded request to the fake, with the given token.
async fn ask(api: &FakeApi, request: &Message, token: Option<&str>) -> Message {
    let mut stream = tokio::net::TcpStream::connect(api.address()).await.unwrap();
    let mut parts = request.line.split(' ');
    let (method, path) = (parts.next().unwrap(), parts.next().unwrap());
    let mut text = format!("{method} {path} HTTP/1.1\r\nHost: api\r\nConnection: close\r\n");
    for header in ["Accept", "Content-Type", "User-Agent"] {
        if let Some(value) = request.header(header) {
            text.push_str(&format!("{header}: {value}\r\n"));
        }
    }
    if let Some(token) = token {
        text.push_str(&format!("Authorization: Bearer {token}\r\n"));
    }
    text.push_str(&format!(
        "Content-Length: {}\r\n\r\n{}",
        request.body.len(),
        request.body
    ));
    stream.write_all(text.as_bytes()).await.unwrap();
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).await.unwrap();
    let text = String::from_utf8(bytes).unwrap().replace("\r\n", "\n");
    let mut message = Message::parse(&text);
    if message.header("transfer-encoding").is_some() {
        let mut rest = message.body.as_str();
        let mut body = String::new();
        while let Some((size, after)) = rest.split_once('\n') {
            let Ok(size) = usize::from_str_radix(size.trim(), 16) else {
                break;
            };
            if size == 0 {
                break;
            }
            body.push_str(&after[..size]);
            rest = after[size..].trim_start_matches('\n');
        }
        message.body = body;
    }
    message
}

fn remove(value: &mut Value, pointer: &str) {
    let (parent, key) = pointer.rsplit_once('/').unwrap();
    match value.pointer_mut(parent) {
        Some(Value::Object(map)) => {
            map.shift_remove(key);
        }
        Some(Value::Array(items)) => {
            let index: usize = key.parse().unwrap();
            if index < items.len() {
                items.remove(index);
            }
        }
        _ => {}
    }
}

/// Collects the differences of two values, each with its path and both values.
fn differences(path: &str, fake: &Value, real: &Value, into: &mut Vec<String>) {
    match (fake, real) {
        (Value::Object(a), Value::Object(b)) => {
            let keys: BTreeSet<&String> = a.keys().chain(b.keys()).collect();
            for key in keys {
                let at = format!("{path}/{key}");
                match (a.get(key), b.get(key)) {
                    (Some(a), Some(b)) => differences(&at, a, b, into),
                    (a, b) => into.push(format!("{at}: fake {a:?}, real {b:?}")),
                }
            }
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            for (index, (a, b)) in a.iter().zip(b).enumerate() {
                differences(&format!("{path}/{index}"), a, b, into);
            }
        }
        (a, b) if a == b => {}
        (a, b) => into.push(format!("{path}: fake {a}, real {b}")),
    }
}

/// Sends the recorded request and compares status, content type, Retry-After and body with the recording, except for the JSON
/// pointers in `except`.
pub(crate) async fn holds_except(api: &FakeApi, file: &str, token: Option<&str>, except: &[&str]) {
    let (request, real) = recorded(file);
    let fake = ask(api, &request, token).await;
    assert_eq!(fake.status(), real.status(), "{file}: {}", fake.body);
    assert_eq!(
        fake.header("content-type"),
        real.header("content-type"),
        "{file}"
    );
    assert_eq!(
        fake.header("retry-after"),
        real.header("retry-after"),
        "{file}"
    );
    let plain = real
        .header("content-type")
        .is_some_and(|kind| kind.starts_with("text/plain"));
    if plain {
        assert_eq!(fake.body.trim_end(), real.body.trim_end(), "{file}");
        return;
    }
    let (fakes, reals): (Vec<&str>, Vec<&str>) =
        (fake.body.lines().collect(), real.body.lines().collect());
    let values = |message: &Message, lines: &[&str]| match lines {
        [first, ..] if first.starts_with("{\"type\"") => lines
            .iter()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect(),
        _ if message.body.trim().is_empty() => Vec::new(),
        _ => vec![message.json()],
    };
    let (mut fakes, mut reals): (Vec<Value>, Vec<Value>) =
        (values(&fake, &fakes), values(&real, &reals));
    for value in fakes.iter_mut().chain(&mut reals) {
        for pointer in except {
            remove(value, pointer);
        }
    }
    assert_eq!(fakes.len(), reals.len(), "{file}: {fakes:#?}");
    let mut found = Vec::new();
    for (index, (fake, real)) in fakes.iter().zip(&reals).enumerate() {
        differences(&format!("[{index}]"), fake, real, &mut found);
    }
    assert!(found.is_empty(), "{file}:\n{}", found.join("\n"));
}

async fn holds(api: &FakeApi, file: &str) {
    holds_except(api, file, Some(ADMIN), &[]).await;
}

/// The items of a list, as complete objects with kind and apiVersion.
fn items(list: &Value, kind: &str) -> Vec<Value> {
    let items = list["items"].as_array().unwrap().clone();
    items
        .into_iter()
        .map(|mut item| {
            item["kind"] = json!(kind);
            item["apiVersion"] = list["apiVersion"].clone();
            item
        })
        .collect()
}

/// The Node before a recorded apply: without Pinfold's labels, or with the label `SCENCE` of another manager.
fn node_before(file: &str, other: Option<&str>) -> Value {
    let mut node = answer_of(file);
    let labels = node["metadata"]["labels"].as_object_mut().unwrap();
    labels.retain(|key, _| key.contains('/'));
    let managers = node["metadata"]["managedFields"].as_array_mut().unwrap();
    managers.retain(|manager| manager["manager"] != "pinfold");
    if let Some(value) = other {
        managers.push(json!({
            "manager": "other", "operation": "Apply", "apiVersion": "v1", "time": "2026-11-20T15:57:00Z",
            "fieldsType": "FieldsV1", "fieldsV1": {"f:metadata": {"f:labels": {"f:SCENCE": {}}}},
        }));
        node["metadata"]["labels"]["SCENCE"] = json!(value);
    }
    let version: u64 = node["metadata"]["resourceVersion"]
        .as_str()
        .unwrap()
        .parse()
        .unwrap();
    node["metadata"]["resourceVersion"] = json!((version - 1).to_string());
    node
}

pub(crate) async fn fresh(revision: u64, time: &str) -> FakeApi {
    let api = FakeApi::start().await;
    // The tests run the controllers explicitly.
    api.set_controllers_delay(Duration::from_secs(3600));
    api.set_second(Duration::from_millis(10));
    api.set_revision(revision);
    if !time.is_empty() {
        api.set_time(time);
    }
    api
}

#[tokio::test]
async fn lists_and_versions() {
    let api = fresh(683, "").await;
    holds(&api, "00-version.http").await;
    holds(&api, "01-list-pods-empty-node.http").await;
    holds(&api, "09-list-exact-old-rv.http").await;
    holds(&api, "10-watch-future-rv.http").await;
    holds(&api, "11-list-bad-continue.http").await;

    let api = fresh(1, "").await;
    for pod in items(&answer_of("04-list-pods-node.http"), "Pod") {
        let mut elsewhere = pod.clone();
        elsewhere["metadata"]["name"] = json!("a-stranger");
        elsewhere["metadata"]["resourceVersion"] = Value::Null;
        elsewhere["spec"]["nodeName"] = json!("bench-vm");
        api.put(&elsewhere);
    }
    let mut pods = items(&answer_of("04-list-pods-node.http"), "Pod");
    pods.sort_by_key(|pod| {
        pod["metadata"]["resourceVersion"]
            .as_str()
            .unwrap()
            .parse::<u64>()
            .unwrap()
    });
    for pod in &pods {
        api.put(pod);
    }
    api.set_revision(743);
    holds(&api, "04-list-pods-node.http").await;
    holds(&api, "05-list-pods-limit2-continue.http").await;
    api.set_revision(1814);
    holds(&api, "12-list-future-rv-504.http").await;

    let api = fresh(1, "").await;
    for event in items(&answer_of("13-list-page1.http"), "Event") {
        api.put(&event);
    }
    for number in 0..206 {
        api.put(&json!({"apiVersion": "v1", "kind": "Event", "metadata": {"namespace": "default", "name": format!("b{number}")}}));
    }
    api.set_revision(2215);
    holds(&api, "13-list-page1.http").await;
    api.set_revision(2400);
    api.compact(2186);
    holds(&api, "08-watch-too-old-rv-after-apiserver-restart.http").await;
    holds(&api, "14-list-exact-compacted-410.http").await;
    api.compact(2300);
    holds(&api, "15-list-continue-expired-410.http").await;
}

#[tokio::test]
async fn a_continue_token_returns_the_next_page() {
    let api = fresh(1, "").await;
    for pod in items(&answer_of("04-list-pods-node.http"), "Pod") {
        api.put(&pod);
    }
    let mut names = Vec::new();
    let mut token = String::new();
    for _ in 0..4 {
        let line = format!("GET /api/v1/pods?limit=3&continue={token} HTTP/1.1");
        let page = ask(
            &api,
            &Message {
                line,
                headers: String::new(),
                body: String::new(),
            },
            Some(ADMIN),
        )
        .await
        .json();
        names.extend(
            page["items"]
                .as_array()
                .unwrap()
                .iter()
                .map(|item| item["metadata"]["name"].clone()),
        );
        match page["metadata"]["continue"].as_str() {
            Some(next) => token = next.to_owned(),
            None => break,
        }
    }
    assert_eq!(
        names,
        [
            "fx-fails",
            "fx-guaranteed",
            "fx-init-sidecar",
            "fx-succeeds"
        ]
    );
}

#[tokio::test]
async fn pods() {
    let api = fresh(683, "2026-11-20T15:54:51Z").await;
    api.next_suffix("8767q");
    api.next_uid("51bcf44f-7205-4ff0-a304-d820edd9d0ab");
    // The recorded server was a fork with one more source in the projected volume: a certificate.
    holds_except(
        &api,
        "02-create-pod-guaranteed.http",
        Some(ADMIN),
        &["/spec/volumes/0/projected/sources/3"],
    )
    .await;

    let api = fresh(1, "2026-11-20T15:55:03Z").await;
    let pods = items(&answer_of("04-list-pods-node.http"), "Pod");
    api.put(
        pods.iter()
            .find(|pod| pod["metadata"]["name"] == "fx-guaranteed")
            .unwrap(),
    );
    api.set_revision(743);
    holds(&api, "06-patch-resize.http").await;
    holds(&api, "07-patch-resize-422.http").await;

    let api = fresh(1, "").await;
    api.put(&json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pdb", "namespace": "default"}}));
    api.protect("pdb", "pdb");
    holds(&api, "62-eviction-pdb-429.http").await;
    let api = fresh(1, "").await;
    api.put(&json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pdb", "namespace": "default"}}));
    holds(&api, "63-eviction-201.http").await;
}

#[tokio::test]
async fn a_watch_of_four_pod_lifecycles() {
    let file = "03-watch-pods-lifecycle.http";
    let lines: Vec<Value> = recorded(file)
        .1
        .body
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let api = fresh(683, "").await;
    // The watch selects pods by node, so a pod appears when it is scheduled.
    for event in &lines[..4] {
        let mut pod = event["object"].clone();
        assert_eq!(event["type"], "ADDED");
        remove(&mut pod, "/spec/nodeName");
        remove(&mut pod, "/metadata/resourceVersion");
        api.put(&pod);
    }
    api.set_second(Duration::from_millis(50));
    let script = async {
        // The watch starts at resourceVersion 683, so a late start misses no change.
        for event in &lines {
            match event["type"].as_str().unwrap() {
                "BOOKMARK" => {
                    let version = event["object"]["metadata"]["resourceVersion"]
                        .as_str()
                        .unwrap();
                    // Short sleeps let the server begin the watch, also after a pause of the machine.
                    for _ in 0..6 {
                        tokio::time::sleep(Duration::from_millis(50)).await;
                    }
                    api.set_revision(version.parse().unwrap());
                    api.bookmark();
                }
                "DELETED" => api.remove(&event["object"]),
                _ => {
                    api.put(&event["object"]);
                }
            }
        }
    };
    tokio::join!(holds(&api, file), script);
}

#[tokio::test]
async fn labels_by_server_side_apply() {
    let api = fresh(1, "2026-11-20T15:56:45Z").await;
    api.put(&node_before("20-node-ssa-first.http", None));
    holds(&api, "20-node-ssa-first.http").await;
    holds(&api, "21-node-ssa-noop-repeat.http").await;
    assert_eq!(api.revision(), 866, "a repeat writes nothing");
    holds(&api, "22-node-ssa-empty-gives-up-labels.http").await;

    let api = fresh(1, "2026-11-20T15:58:03Z").await;
    api.put(&node_before("24-node-ssa-force-200.http", Some("9")));
    holds(&api, "23-node-ssa-conflict-409.http").await;
    holds(&api, "24-node-ssa-force-200.http").await;
    holds(&api, "25-node-ssa-invalid-422.http").await;
    holds(&api, "25b-node-ssa-integer-label-value.http").await;
    holds(&api, "26-node-ssa-no-fieldmanager.http").await;

    for user in ["agent", "agent-any"] {
        api.user(user, &format!("system:serviceaccount:default:{user}"));
    }
    api.allow(
        "system:serviceaccount:default:agent",
        &["get", "patch"],
        "",
        "nodes",
        &["bench-node"],
    );
    api.allow(
        "system:serviceaccount:default:agent-any",
        &["get", "patch"],
        "",
        "nodes",
        &[],
    );
    api.put(&json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "bench-vm"}}));
    holds_except(
        &api,
        "27b-node-ssa-nonexistent-node-patch-only-rbac.http",
        Some("agent-any"),
        &[],
    )
    .await;
    holds_except(&api, "28-node-ssa-forbidden-403.http", Some("agent"), &[]).await;
    holds_except(
        &api,
        "29-node-ssa-own-node-rbac-ok-200.http",
        Some("agent"),
        &[],
    )
    .await;
    holds_except(&api, "30-unauthorized-401.http", Some("nobody's"), &[]).await;
    holds_except(&api, "31-anonymous-403.http", None, &[]).await;

    let api = fresh(980, "2026-11-20T15:58:03Z").await;
    api.next_uid("81c2bcbc-bf5c-4452-b840-b9856030e4ab");
    holds(&api, "27-node-ssa-nonexistent-node-201-creates-it.http").await;
}

/// No recording covers these rules of the server's `patch.go`. The agent's guard against deleted Nodes depends on them.
#[tokio::test]
async fn an_applied_uid_requires_an_existing_object() {
    let api = fresh(1, "").await;
    let apply = |uid: &str| {
        Message {
        line: "PATCH /api/v1/nodes/n1?fieldManager=pinfold HTTP/1.1".to_owned(),
        headers: "Content-Type: application/apply-patch+yaml".to_owned(),
        body: json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1", "uid": uid, "labels": {"A": "1"}}})
            .to_string(),
    }
    };
    let answer = ask(&api, &apply("u1"), Some(ADMIN)).await;
    assert_eq!(answer.status(), 409, "{}", answer.body);
    assert!(answer.body.contains("uid mismatch"), "{}", answer.body);
    assert_eq!(api.get("v1", "Node", "", "n1"), None);
    api.put(&json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1", "uid": "u2"}}));
    let answer = ask(&api, &apply("u1"), Some(ADMIN)).await;
    assert_eq!(answer.status(), 422, "{}", answer.body);
    assert!(
        answer.body.contains("field is immutable"),
        "{}",
        answer.body
    );
    assert_eq!(ask(&api, &apply("u2"), Some(ADMIN)).await.status(), 200);
}

#[tokio::test]
async fn leases() {
    let api = fresh(875, "2026-11-20T15:56:46Z").await;
    let uid = "fdd1b22f-7347-4ee3-9d12-3319b8b5737d";
    api.put(
        &json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "fake-1", "uid": uid}}),
    );
    api.next_uid("18899c74-fac8-4256-8e2c-260886bdd01d");
    holds(&api, "40-lease-create-201.http").await;
    holds(&api, "41-lease-create-again-409.http").await;
    holds(&api, "42-lease-get.http").await;
    holds(&api, "43-lease-renew-put.http").await;
    holds(&api, "44-lease-renew-stale-resourceversion-409.http").await;
    holds(&api, "45-node-delete.http").await;
    api.run_controllers();
    holds(&api, "46-lease-after-gc-404.http").await;
    assert!(api.all("coordination.k8s.io/v1", "Lease").is_empty());
}

#[tokio::test]
async fn custom_resources() {
    let api = fresh(882, "2026-11-20T15:56:46Z").await;
    api.next_uid("489c3e19-e14e-4555-9dcf-6c46872c84f6");
    holds(&api, "50-crd-create-201.http").await;
    holds(&api, "51-cr-list-before-established.http").await;
    api.set_revision(885);
    api.run_controllers();
    holds(&api, "52-crd-established.http").await;

    api.set_time("2026-11-20T15:56:49Z");
    let mut before = answer_of("53-cr-status-apply.http");
    remove(&mut before, "/status");
    remove(&mut before, "/metadata/managedFields/0");
    before["metadata"]["resourceVersion"] = json!("891");
    api.put(&before);
    holds(&api, "53-cr-status-apply.http").await;
    holds(&api, "54-cr-status-apply-wrong-type.http").await;
}

#[tokio::test]
async fn refusals_and_events() {
    let api = fresh(925, "2026-11-20T15:57:06Z").await;
    // The text comes from the injected fault. The test compares only how the server sends the text.
    let text = "Too many requests, please try again later.\n";
    api.fail(
        FaultScope::always().on("pods").times(1),
        Fault::Refuse {
            code: 429,
            text,
            retry_after: Some(1),
        },
    );
    holds(&api, "60-apf-429.http").await;
    api.set_unavailable("nowhere.example.io");
    holds(&api, "61-apiservice-503.http").await;

    api.next_suffix("486k5");
    api.next_uid("21127565-17fb-4138-87ae-f593263cee2b");
    holds(&api, "70-event-create-201.http").await;
    api.next_suffix("44qzg");
    holds(&api, "71-event-invalid-422.http").await;
    api.user("agent", "system:serviceaccount:default:agent");
    holds_except(&api, "72-event-forbidden-403.http", Some("agent"), &[]).await;
}

#[test]
fn every_recording_is_replayed() {
    let text: String = include_str!("replay.rs").split_whitespace().collect();
    for entry in fs::read_dir(folder()).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if !NO_EXCHANGE.contains(&name.as_str()) {
            let call_prefixes = ["holds(&api,", "holds_except(&api,", "letfile="];
            let replayed = call_prefixes
                .iter()
                .any(|prefix| text.contains(&format!("{prefix}\"{name}\"")));
            assert!(replayed, "{name} is not replayed");
        }
    }
}

/// Features without a recording that tests rely on: selectors, deletecollection, and a skewed clock.
#[tokio::test]
async fn selectors_deletions_and_the_clock() {
    let api = fresh(1, "").await;
    for (name, labels) in [
        ("a", json!({"x": "1"})),
        ("b", json!({"x": "2", "y": ""})),
        ("c", json!({})),
    ] {
        api.put(&json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "default", "labels": labels}}));
    }
    let request = |line: String| Message {
        line,
        headers: String::new(),
        body: String::new(),
    };
    let path = "/api/v1/namespaces/default/configmaps";
    for (selector, names) in [
        ("x%3D1", "a"),
        ("x%21%3D1", "b c"),
        ("x+in+(1,2),y", "b"),
        ("x+notin+(2)", "a c"),
        ("%21x", "c"),
        ("", "a b c"),
    ] {
        let line = format!("GET {path}?labelSelector={selector} HTTP/1.1");
        let found = ask(&api, &request(line), Some(ADMIN)).await.json();
        let found: Vec<&str> = found["items"]
            .as_array()
            .unwrap()
            .iter()
            .map(|item| item["metadata"]["name"].as_str().unwrap())
            .collect();
        assert_eq!(found.join(" "), names, "{selector}");
    }
    let line = "GET /api/v1/pods?fieldSelector=spec.nosuch%3D1 HTTP/1.1".to_owned();
    let answer = ask(&api, &request(line), Some(ADMIN)).await;
    assert_eq!(
        (
            answer.status(),
            answer
                .body
                .contains("field label not supported: spec.nosuch")
        ),
        (400, true)
    );

    let line = format!("DELETE {path}?labelSelector=x HTTP/1.1");
    assert_eq!(ask(&api, &request(line), Some(ADMIN)).await.status(), 200);
    assert_eq!(api.all("v1", "ConfigMap").len(), 1);

    let time = |object: &Value| {
        object["metadata"]["creationTimestamp"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    let now =
        time(&api.put(&json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "now"}})));
    api.set_skew(-86_400);
    let before = time(
        &api.put(&json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "before"}})),
    );
    assert!(before < now && before[..10] != now[..10], "{before} {now}");
}
