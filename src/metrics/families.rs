//! [`FAMILIES`]: every family that depends on the node's pods, in one table for code, documentation and tests; and
//! [`API_FAMILIES`], which are there where the Kubernetes API is used.

/// A family's type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Only goes up while its subject lives.
    Counter,
    /// Goes up and down.
    Gauge,
}

/// What is said of a family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Family {
    /// Its name.
    pub name: &'static str,
    /// Its type.
    pub kind: Kind,
    /// What it is, for people.
    pub help: &'static str,
    /// Its labels.
    pub labels: &'static [&'static str],
}

const POD: &[&str] = &["namespace", "pod"];
const CONTAINER: &[&str] = &["namespace", "pod", "container"];
const INTERFACE: &[&str] = &["namespace", "pod", "interface"];

const fn counter(name: &'static str, labels: &'static [&'static str], help: &'static str) -> Family {
    Family { name, kind: Kind::Counter, help, labels }
}

const fn gauge(name: &'static str, labels: &'static [&'static str], help: &'static str) -> Family {
    Family { name, kind: Kind::Gauge, help, labels }
}

/// The families, by name.
pub const FAMILIES: &[Family] = &[
    gauge("pinfold_collector_duration_seconds", &["collector"], "Time that a collector took in this scrape."),
    gauge(
        "pinfold_collector_success",
        &["collector"],
        "Whether a collector read all it wanted in this scrape.",
    ),
    counter(
        "pinfold_container_context_switches_total",
        &["namespace", "pod", "container", "kind"],
        "Context switches of all threads of the container seen so far: voluntary (it waited) or involuntary.",
    ),
    counter(
        "pinfold_container_cpu_periods_total",
        CONTAINER,
        "CFS periods in which the container ran under a quota.",
    ),
    counter(
        "pinfold_container_cpu_throttled_periods_total",
        CONTAINER,
        "CFS periods in which the container's quota ran out.",
    ),
    counter(
        "pinfold_container_cpu_throttled_seconds_total",
        CONTAINER,
        "Time that the container's threads were held back by its quota.",
    ),
    counter("pinfold_container_cpu_usage_seconds_total", CONTAINER, "CPU time used by the container."),
    gauge(
        "pinfold_container_cpus_allowed",
        CONTAINER,
        "CPUs that the container may run on, by the kernel's word.",
    ),
    gauge(
        "pinfold_container_cpus_assigned",
        CONTAINER,
        "CPUs that the container owns; 0 in the shared pool.",
    ),
    gauge(
        "pinfold_container_cpuset_info",
        &["namespace", "pod", "container", "cpus", "policy"],
        "The CPUs that the container may run on, as a list, and whether they are its own.",
    ),
    counter(
        "pinfold_container_foreign_cpu_error_seconds_total",
        CONTAINER,
        "By how much the foreign CPU time may be wrong, either way.",
    ),
    counter(
        "pinfold_container_foreign_cpu_seconds_total",
        CONTAINER,
        "Time in which the container's own CPUs were busy with something else than the container.",
    ),
    gauge("pinfold_container_threads", CONTAINER, "Threads of the container now."),
    gauge(
        "pinfold_container_threads_expected",
        CONTAINER,
        "Threads that the pools sized by the container's thread environment add up to.",
    ),
    gauge(
        "pinfold_enforcement_info",
        &["enforcement", "reason"],
        "How assignments are enforced on this node, and why.",
    ),
    gauge(
        "pinfold_node_cpus",
        &["state"],
        "CPUs of the node that are online, reserved, shared and exclusive, and online ones that the kernel has lost.",
    ),
    gauge(
        "pinfold_pod_info",
        &["namespace", "pod", "uid", "role", "qos", "host_network"],
        "What a pod is; to be joined with the other families.",
    ),
    counter("pinfold_pod_network_receive_bytes_total", INTERFACE, "Bytes received by the pod's interface."),
    counter(
        "pinfold_pod_network_receive_packets_total",
        INTERFACE,
        "Packets received by the pod's interface.",
    ),
    gauge(
        "pinfold_pod_network_scope",
        &["namespace", "pod", "scope"],
        "Whose the pod's interfaces are: its own (pod), the node's (host), or not known. Only a pod's own are counted.",
    ),
    counter("pinfold_pod_network_transmit_bytes_total", INTERFACE, "Bytes sent by the pod's interface."),
    counter("pinfold_pod_network_transmit_packets_total", INTERFACE, "Packets sent by the pod's interface."),
    gauge("pinfold_pod_owned_cpus", POD, "CPUs that the pod's containers own."),
];

/// The families of the Kubernetes API, by name.
pub const API_FAMILIES: &[Family] = &[
    gauge("pinfold_api_connected", &[], "Whether this node's pods are followed at the API server now."),
    counter(
        "pinfold_api_errors_total",
        &["kind"],
        "Requests to the API server, and watches, that came to nothing, by what went wrong.",
    ),
    counter(
        "pinfold_api_events_dropped_total",
        &[],
        "Events on pods that were not written: too many at once, or the API server was away.",
    ),
    gauge(
        "pinfold_api_last_answer_timestamp_seconds",
        &[],
        "When the API server last answered as it should, in seconds since 1970.",
    ),
    counter("pinfold_api_pod_changes_total", &[], "Changes of this node's pods that the watch has brought."),
    gauge(
        "pinfold_api_pods",
        &["state"],
        "This node's pods that the API server has told of, and those of them that can't be read.",
    ),
    counter(
        "pinfold_api_requests_total",
        &["request"],
        "Requests to the API server by what was asked; watch_pods is how often the watch was opened.",
    ),
    counter("pinfold_api_resyncs_total", &[], "How often all pods of this node were read anew."),
    counter(
        "pinfold_api_retries_total",
        &[],
        "How often something was asked of the API server again because it had failed.",
    ),
    gauge(
        "pinfold_scene_info",
        &["plan", "scene", "case", "type", "index"],
        "The Node's slot in a scene, always 1; no series while it has none.",
    ),
    gauge(
        "pinfold_scene_label_conflicts",
        &[],
        "Labels that somebody else has set on the Node and that a plan would set otherwise.",
    ),
    gauge("pinfold_scene_phase", &["phase"], "How it stands with the Node's place in a scene, always 1."),
];

/// The families of the container runtime, by name.
pub const RUNTIME_FAMILIES: &[Family] = &[
    gauge(
        "pinfold_nri_runtime_info",
        &["name", "version"],
        "The container runtime that is connected, always 1; no series while none is.",
    ),
    gauge(
        "pinfold_nri_synchronized",
        &[],
        "Whether the container runtime asks Pinfold about every container; without it they are pinned once their cgroups are seen.",
    ),
];
