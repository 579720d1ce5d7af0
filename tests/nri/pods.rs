//! The pods built from containerd's messages.

use std::collections::BTreeSet;

use pinfold::nri::{Event, Inventory};
use pinfold::pod::{EnvSource, Pod, Qos, qos};

use crate::listening::{RecordingPlugin, Serving};

/// The pods of a recording: the existing pods, and the created pods with all their containers.
async fn pods(version: &str) -> Vec<Pod> {
    let mut serving = Serving::new(RecordingPlugin::subscribed_to(Event::ALL));
    let mut runtime = serving.socket.accept().await;
    let recorded = crate::replay::bytes(version, "runtime-to-plugin");
    runtime.send(&recorded).await;
    for _ in crate::replay::answers(version) {
        runtime.next(crate::runtime::PLUGIN).await.unwrap();
    }
    let mut inventory = Inventory::default();
    let (pods, containers) = serving.plugin.existing.lock().unwrap().clone();
    let mut sandboxes: BTreeSet<String> = pods.iter().map(|pod| pod.id.clone()).collect();
    inventory.replace(pods, containers);
    for (pod, container) in serving.plugin.created.lock().unwrap().iter() {
        sandboxes.insert(pod.id.clone());
        inventory.put(pod.clone(), container.clone());
    }
    serving.end().await;
    let pods = sandboxes.iter().map(|id| inventory.pod(id).unwrap());
    let mut pods: Vec<Pod> = pods.collect();
    pods.sort_by(|left, right| left.name.cmp(&right.name));
    pods
}

/// A pod as a line: the QoS class by cgroup, the computed QoS class, and the containers' requests and limits.
fn pod_line(pod: &Pod) -> String {
    let amount = |amount: Option<u64>| amount.map_or("-".to_owned(), |amount| amount.to_string());
    let containers = pod.containers.iter().map(|container| {
        let resources = container.resources;
        let [request, limit, memory] = [
            resources.cpu_request,
            resources.cpu_limit,
            resources.memory_limit,
        ]
        .map(amount);
        format!(" {}:{request}/{limit}/{memory}", container.name)
    });
    let class = pod
        .qos_reported
        .map_or("?".to_owned(), |class| class.to_string());
    format!(
        "{pod} {class} {}{}",
        qos(pod),
        containers.collect::<String>()
    )
}

#[tokio::test]
async fn pods_match_the_manifests_of_the_recorded_kubelet() {
    for version in ["2.1.9", "1.7.24"] {
        let pods = pods(version).await;
        let lines: Vec<String> = pods
            .iter()
            .map(pod_line)
            .filter(|line| !line.contains("agentpod"))
            .collect();
        assert_eq!(lines, LINES, "{version}");
        for pod in &pods {
            assert!(!pod.host_network);
            assert!(
                pod.labels
                    .keys()
                    .chain(pod.annotations.keys())
                    .all(|key| !key.contains("cri")),
                "{pod:?}"
            );
        }
        let live = pods.iter().find(|pod| pod.name == "live").unwrap();
        assert_eq!(live.labels.get("app").map(String::as_str), Some("live"));
        assert_eq!(
            live.annotations.get("pf/cpus").map(String::as_str),
            Some("0")
        );
        let container = live.container("c").unwrap();
        assert_eq!(container.image, "bench.local/busybox:1");
        assert_eq!(container.args[..2], ["sh", "-c"]);
        let value = |name: &str| container.env.get(name).cloned();
        let set = |text: &str| Some(EnvSource::Value(text.to_owned()));
        assert_eq!(value("KUBERNETES_SERVICE_HOST"), set("10.96.0.1"));
        // In one of the two clusters, an admission policy sets the variable.
        let at_admission = if version == "2.1.9" { set("1") } else { None };
        assert_eq!(value("TF_NUM_INTRAOP_THREADS"), at_admission);
        assert_eq!(live.qos_reported, Some(Qos::Guaranteed));
        assert!(live.cgroup_uid().is_some_and(|uid| uid.len() == 36));
    }
}

/// Name, QoS class by cgroup, computed QoS class, and each container's CPU request, CPU limit and memory limit.
const LINES: [&str; 6] = [
    // The pod was resized and then restarted: the later container counts.
    "default/live Guaranteed Guaranteed c:300/300/33554432",
    "default/live-be BestEffort BestEffort c:-/-/-",
    "default/pre-besteffort BestEffort BestEffort c:-/-/-",
    "default/pre-burstable Burstable Burstable c:100/-/33554432",
    "default/pre-guaranteed Guaranteed Guaranteed c:200/200/33554432",
    "default/pre-init-sidecar Guaranteed Guaranteed c1:200/200/33554432 c2:200/200/33554432 \
     sidecar:200/200/33554432",
];
