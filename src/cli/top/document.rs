//! `pinfold top --once -o json`: what the frame shows, for programs.

use serde_json::{Map, Value, json};

use super::state::TopState;
use crate::client::{MonitoredNode, PodRow, RowFigures};

/// The nodes, and the pods that the options select, in their order. An unknown value is null, because 0 would be a measurement.
pub(super) fn document(state: &TopState) -> Value {
    let nodes = state.nodes.iter().map(node);
    let pods = state.rows.iter().map(|row| {
        let name = state.nodes.get(row.node).map(MonitoredNode::name);
        pod(row, name.unwrap_or_default())
    });
    json!({ "nodes": nodes.collect::<Vec<_>>(), "pods": pods.collect::<Vec<_>>() })
}

fn node(node: &MonitoredNode) -> Value {
    let status = node.status();
    json!({
        "name": node.name(),
        "error": node.error().map(|(error, _)| error),
        "enforcement": status.map(|status| status.enforcement.as_str()),
        "online": status.map(|status| &status.online),
        "reserved": status.map(|status| &status.reserved),
        "shared": status.map(|status| &status.shared),
        "exclusive": status.map(|status| &status.exclusive),
        "problems": status.map(|status| status.problems().collect::<Vec<_>>()),
    })
}

fn pod(row: &PodRow, node: &str) -> Value {
    let mut pod = Map::new();
    let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    pod.insert("node".to_owned(), json!(node));
    pod.insert("namespace".to_owned(), json!(row.key.namespace.as_str()));
    pod.insert("pod".to_owned(), json!(row.key.pod.as_str()));
    pod.insert("role".to_owned(), json!(row.role.as_str()));
    pod.insert("job".to_owned(), json!(some(row.job.as_str())));
    pod.insert("qos".to_owned(), json!(some(row.qos.as_str())));
    add(&mut pod, &row.total);
    pod.insert("receiveBytesPerSecond".to_owned(), json!(row.receive));
    pod.insert("transmitBytesPerSecond".to_owned(), json!(row.transmit));
    pod.insert("notes".to_owned(), json!(row.notes));
    let containers = row.containers.iter().map(|(name, figures)| {
        let mut container = Map::new();
        container.insert("container".to_owned(), json!(name.as_str()));
        add(&mut container, figures);
        Value::Object(container)
    });
    pod.insert("containers".to_owned(), containers.collect());
    Value::Object(pod)
}

/// Adds the figures of a container, or of a pod's containers together.
fn add(object: &mut Map<String, Value>, figures: &RowFigures) {
    let all = [
        ("running", json!(figures.running)),
        ("assigned", json!(figures.assigned)),
        ("effective", json!(figures.effective)),
        ("drift", json!(figures.drift)),
        ("usedCpus", json!(figures.usage)),
        ("threads", json!(figures.threads)),
        ("threadsUnexpected", json!(figures.threads_unexpected)),
        ("runnableThreads", json!(figures.runnable)),
        ("interferenceShare", json!(figures.interference_share())),
        (
            "interferenceIsUncertain",
            json!(figures.interference_is_uncertain()),
        ),
        ("unpinnedSeconds", json!(figures.unpinned)),
        ("runDelaySecondsPerSecond", json!(figures.run_delay)),
        ("contextSwitchesPerSecond", json!(figures.switches)),
        ("throttledPeriodsPerSecond", json!(figures.throttled)),
    ];
    object.extend(all.map(|(key, value)| (key.to_owned(), value)));
}
