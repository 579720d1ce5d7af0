//! Every family of series, in tables for code, documentation and tests: [`FAMILIES`], which depend on the node's pods,
//! [`AGENT_FAMILIES`] of the agent's own doings, [`API_FAMILIES`] and [`RUNTIME_FAMILIES`], which are there where the
//! Kubernetes API and a container runtime are used. The list in the README is made from them, and `tests/metrics` holds
//! their names to Prometheus' conventions.

/// A family's type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Only goes up while its subject lives.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Always 1: what it says is in its labels.
    Info,
    /// How often values of each size were seen.
    Histogram,
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
const PORT: &[&str] = &["device", "port"];
const POD_PORT: &[&str] = &["namespace", "pod", "device", "port"];
const PEER: &[&str] = &[
    "namespace",
    "pod",
    "peer_namespace",
    "peer_pod",
    "peer_role",
];
const INTERFACE: &[&str] = &["namespace", "pod", "interface"];

const fn counter(
    name: &'static str,
    labels: &'static [&'static str],
    help: &'static str,
) -> Family {
    Family {
        name,
        kind: Kind::Counter,
        help,
        labels,
    }
}

const fn gauge(name: &'static str, labels: &'static [&'static str], help: &'static str) -> Family {
    Family {
        name,
        kind: Kind::Gauge,
        help,
        labels,
    }
}

const fn info(name: &'static str, labels: &'static [&'static str], help: &'static str) -> Family {
    Family {
        name,
        kind: Kind::Info,
        help,
        labels,
    }
}

const fn histogram(
    name: &'static str,
    labels: &'static [&'static str],
    help: &'static str,
) -> Family {
    Family {
        name,
        kind: Kind::Histogram,
        help,
        labels,
    }
}

/// One table, from which come a constant for each family and the list of all of them, by name.
macro_rules! families {
    ($(#[$doc:meta])* $table:ident: $($family:ident = $kind:ident($name:literal, $labels:expr, $help:literal);)*) => {
        $(pub(super) static $family: Family = $kind($name, $labels, $help);)*

        $(#[$doc])*
        pub static $table: &[&Family] = &[$(&$family),*];
    };
}

families! {
    /// The families that depend on the node's pods, by name.
    FAMILIES:
    COLLECTOR_CONTAINERS_LEFT_OUT = gauge("pinfold_collector_containers_left_out", &["collector", "reason"],
        "Containers of which a collector has no series although this machine offers them, and why.");
    COLLECTOR_CPU_SECONDS = counter("pinfold_collector_cpu_seconds_total", &["collector"],
        "CPU time that a collector has used in all scrapes.");
    COLLECTOR_DURATION_SECONDS = gauge("pinfold_collector_duration_seconds", &["collector"],
        "Time that a collector took in this scrape.");
    COLLECTOR_SUCCESS = gauge("pinfold_collector_success", &["collector"],
        "Whether a collector read all it wanted in this scrape.");
    COLLECTOR_UNSUPPORTED = gauge("pinfold_collector_unsupported", &["collector", "reason"],
        "What this machine does not offer a collector, always 1: what it would tell has no series then.");
    CONTAINER_CONTEXT_SWITCHES = counter("pinfold_container_context_switches_total", &["namespace", "pod", "container", "kind"],
        "Context switches of all threads of the container seen so far: voluntary (it waited) or involuntary.");
    CONTAINER_CPU_CYCLES = counter("pinfold_container_cpu_cycles_total", CONTAINER,
        "Cycles of the container's own CPUs, or of its threads on shared ones (metrics.sharedCounters), in which they were not halted.");
    CONTAINER_CPU_MIGRATIONS = counter("pinfold_container_cpu_migrations_total", CONTAINER,
        "How often threads of the container were moved to another CPU, of those seen when it was their turn to be looked at.");
    CONTAINER_CPU_PERIODS = counter("pinfold_container_cpu_periods_total", CONTAINER,
        "CFS periods in which the container ran under a quota.");
    CONTAINER_CPU_RUN_DELAY_SECONDS = counter("pinfold_container_cpu_run_delay_seconds_total", CONTAINER,
        "Time in which threads of the container could have run and had no CPU, all threads seen so far added up.");
    CONTAINER_CPU_THROTTLED_PERIODS = counter("pinfold_container_cpu_throttled_periods_total", CONTAINER,
        "CFS periods in which the container's quota ran out.");
    CONTAINER_CPU_THROTTLED_SECONDS = counter("pinfold_container_cpu_throttled_seconds_total", CONTAINER,
        "Time that the container's threads were held back by its quota.");
    CONTAINER_CPU_USAGE_SECONDS = counter("pinfold_container_cpu_usage_seconds_total", CONTAINER,
        "CPU time used by the container.");
    CONTAINER_CPUS_ALLOWED = gauge("pinfold_container_cpus_allowed", CONTAINER,
        "CPUs that the container may run on, by the kernel's word.");
    CONTAINER_CPUS_ALLOWED_BY_TASKS = gauge("pinfold_container_cpus_allowed_by_tasks", CONTAINER,
        "CPUs that at least one thread of the container may run on by its own mask, when they were last looked at.");
    CONTAINER_CPUS_ASSIGNED = gauge("pinfold_container_cpus_assigned", CONTAINER,
        "CPUs that the container owns; 0 in the shared pool.");
    CONTAINER_CPUSET_INFO = info("pinfold_container_cpuset_info", &["namespace", "pod", "container", "cpus"],
        "The exclusive CPUs on which the container runs, as a list; no series for a container on shared CPUs.");
    CONTAINER_FOREIGN_CPU_ERROR_SECONDS = counter("pinfold_container_foreign_cpu_error_seconds_total", CONTAINER,
        "By how much the foreign CPU time may be wrong, either way.");
    CONTAINER_FOREIGN_CPU_SECONDS = counter("pinfold_container_foreign_cpu_seconds_total", CONTAINER,
        "Time in which the container's own CPUs were busy with something else than the container.");
    CONTAINER_INSTRUCTIONS = counter("pinfold_container_instructions_total", CONTAINER,
        "Instructions that the container's own CPUs have completed, or its threads on shared ones (metrics.sharedCounters).");
    CONTAINER_L2_MISSES = counter("pinfold_container_l2_misses_total", CONTAINER,
        "What the container's own CPUs did not find in their second-level cache, where Linux names such an event.");
    CONTAINER_L2_REFERENCES = counter("pinfold_container_l2_references_total", CONTAINER,
        "What the container's own CPUs asked of their second-level cache, where Linux names such an event.");
    CONTAINER_LLC_MISSES = counter("pinfold_container_llc_misses_total", CONTAINER,
        "What the container's own CPUs did not find in their last-level cache; reads alone on other CPUs than Intel's.");
    CONTAINER_LLC_OCCUPANCY_BYTES = gauge("pinfold_container_llc_occupancy_bytes", &["namespace", "pod", "container", "l3_domain"],
        "What the container's own CPUs hold of a last-level cache.");
    CONTAINER_LLC_REFERENCES = counter("pinfold_container_llc_references_total", CONTAINER,
        "What the container's own CPUs asked of their last-level cache; reads alone on other CPUs than Intel's.");
    CONTAINER_MEMORY_BANDWIDTH_BYTES = counter("pinfold_container_memory_bandwidth_bytes_total", &["namespace", "pod", "container", "l3_domain", "scope"],
        "Bytes that the container's own CPUs moved between a last-level cache and memory: all (total), or the memory beside it (local).");
    CONTAINER_MEMORY_NUMA_BYTES = gauge("pinfold_container_memory_numa_bytes", &["namespace", "pod", "container", "numa_node", "type"],
        "The container's memory on a NUMA node: its own (anon), and of files (file).");
    CONTAINER_PERF_ENABLED_SECONDS = counter("pinfold_container_perf_enabled_seconds_total", CONTAINER,
        "Time in which the container's own CPUs were to count cycles and the like, all CPUs added up.");
    CONTAINER_PERF_RUNNING_SECONDS = counter("pinfold_container_perf_running_seconds_total", CONTAINER,
        "Time in which they did; where it is less, others counted in turns, and the counts are estimates.");
    CONTAINER_PRESSURE_SECONDS = counter("pinfold_container_pressure_seconds_total", &["namespace", "pod", "container", "resource", "kind"],
        "Time in which some of the container's tasks, or all of them at once (full), waited for cpu, io or memory.");
    CONTAINER_THREADS = gauge("pinfold_container_threads", CONTAINER,
        "Threads of the container now.");
    CONTAINER_THREADS_BOUND = gauge("pinfold_container_threads_bound", CONTAINER,
        "Threads whose own mask leaves out some of the container's CPUs, when they were last looked at.");
    CONTAINER_THREADS_EXPECTED = gauge("pinfold_container_threads_expected", CONTAINER,
        "Threads that the pools sized by the container's thread environment add up to.");
    CONTAINER_THREADS_VERDICT = gauge("pinfold_container_threads_verdict", &["namespace", "pod", "container", "verdict", "cause"],
        "What is to be said of the container's threads beside those that its environment explains, always 1.");
    ENFORCEMENT_INFO = info("pinfold_enforcement_info", &["enforcement", "reason"],
        "How assignments are enforced on this node, and why.");
    NODE_CPUS = gauge("pinfold_node_cpus", &["state"],
        "CPUs of the node that are online, reserved, shared and exclusive, and online ones that the kernel has lost.");
    NODE_RDMA_PORT_EVENTS = counter("pinfold_node_rdma_port_events_total", &["device", "port", "event"],
        "Errors, discards, waits and other events of an RDMA port of the node, by the kernel's names.");
    NODE_RDMA_HW = counter("pinfold_node_rdma_port_hardware_events_total", &["device", "port", "counter"],
        "What the driver of an RDMA port of the node counts by itself, by its own names.");
    NODE_RDMA_PORT_RECEIVE_BYTES = counter("pinfold_node_rdma_port_receive_bytes_total", PORT,
        "Bytes received by an RDMA port of the node, whoever used it.");
    NODE_RDMA_PORT_RECEIVE_PACKETS = counter("pinfold_node_rdma_port_receive_packets_total", PORT,
        "Packets received by an RDMA port of the node, whoever used it.");
    NODE_RDMA_PORT_STATE = gauge("pinfold_node_rdma_port_state", &["device", "port", "state"],
        "The state of an RDMA port of the node, always 1.");
    NODE_RDMA_PORT_TRANSMIT_BYTES = counter("pinfold_node_rdma_port_transmit_bytes_total", PORT,
        "Bytes sent by an RDMA port of the node, whoever used it.");
    NODE_RDMA_PORT_TRANSMIT_PACKETS = counter("pinfold_node_rdma_port_transmit_packets_total", PORT,
        "Packets sent by an RDMA port of the node, whoever used it.");
    PEER_RECEIVE_BYTES = counter("pinfold_peer_receive_bytes_total", PEER,
        "Payload that a training pod's TCP connections have received from another pod of its job; without names: from everybody else.");
    PEER_TRANSMIT_BYTES = counter("pinfold_peer_transmit_bytes_total", PEER,
        "Payload that a training pod's TCP connections have sent to another pod of its job, and that was acknowledged; without names: to everybody else. What a connection sent between the last look and its end is missing.");
    POD_INFO = info("pinfold_pod_info", &["namespace", "pod", "uid", "training_job", "role", "replica_index", "qos", "host_network"],
        "What a pod is; to be joined with the other families.");
    POD_NETWORK_RECEIVE_BYTES = counter("pinfold_pod_network_receive_bytes_total", INTERFACE,
        "Bytes received by the pod's interface.");
    POD_NETWORK_RECEIVE_ERRORS = counter("pinfold_pod_network_receive_errors_total", INTERFACE,
        "Packets that the pod's interface could not receive.");
    POD_NETWORK_RECEIVE_PACKETS_DROPPED = counter("pinfold_pod_network_receive_packets_dropped_total", INTERFACE,
        "Packets that the pod's interface received and dropped.");
    POD_NETWORK_RECEIVE_PACKETS = counter("pinfold_pod_network_receive_packets_total", INTERFACE,
        "Packets received by the pod's interface.");
    POD_NETWORK_SCOPE = gauge("pinfold_pod_network_scope", &["namespace", "pod", "scope"],
        "Whose the pod's interfaces are: its own (pod), the node's (host), or not known. Only a pod's own are counted.");
    POD_NETWORK_SOCKET_RECEIVE_BYTES = counter("pinfold_pod_network_socket_receive_bytes_total", POD,
        "Bytes that the pod's sockets received, whosever network they use, with IP and transport headers.");
    POD_NETWORK_SOCKET_RECEIVE_PACKETS = counter("pinfold_pod_network_socket_receive_packets_total", POD,
        "Packets that the pod's sockets received, whosever network they use.");
    POD_NETWORK_SOCKET_TRANSMIT_BYTES = counter("pinfold_pod_network_socket_transmit_bytes_total", POD,
        "Bytes that the pod's sockets sent, whosever network they use, with IP and transport headers.");
    POD_NETWORK_SOCKET_TRANSMIT_PACKETS = counter("pinfold_pod_network_socket_transmit_packets_total", POD,
        "Packets that the pod's sockets sent, whosever network they use.");
    POD_NETWORK_TRANSMIT_BYTES = counter("pinfold_pod_network_transmit_bytes_total", INTERFACE,
        "Bytes sent by the pod's interface.");
    POD_NETWORK_TRANSMIT_ERRORS = counter("pinfold_pod_network_transmit_errors_total", INTERFACE,
        "Packets that the pod's interface could not send.");
    POD_NETWORK_TRANSMIT_PACKETS_DROPPED = counter("pinfold_pod_network_transmit_packets_dropped_total", INTERFACE,
        "Packets that were to be sent by the pod's interface and were dropped there.");
    POD_NETWORK_TRANSMIT_PACKETS = counter("pinfold_pod_network_transmit_packets_total", INTERFACE,
        "Packets sent by the pod's interface.");
    POD_OWNED_CPUS = gauge("pinfold_pod_owned_cpus", POD,
        "CPUs that the pod's containers own.");
    POD_RDMA_RECEIVE_BYTES = counter("pinfold_pod_rdma_port_receive_bytes_total", POD_PORT,
        "Bytes received by an RDMA port that is in the pod's own network namespace alone.");
    POD_RDMA_RECEIVE_PACKETS = counter("pinfold_pod_rdma_port_receive_packets_total", POD_PORT,
        "Packets received by an RDMA port that is in the pod's own network namespace alone.");
    POD_RDMA_TRANSMIT_BYTES = counter("pinfold_pod_rdma_port_transmit_bytes_total", POD_PORT,
        "Bytes sent by an RDMA port that is in the pod's own network namespace alone.");
    POD_RDMA_TRANSMIT_PACKETS = counter("pinfold_pod_rdma_port_transmit_packets_total", POD_PORT,
        "Packets sent by an RDMA port that is in the pod's own network namespace alone.");
    POD_TCP_BUSY_SECONDS = counter("pinfold_pod_tcp_busy_seconds_total", POD,
        "Time in which the pod's TCP connections had something to send or to be acknowledged, all added up; what passed between the last look at a connection and its end is missing.");
    POD_TCP_CONNECTIONS = gauge("pinfold_pod_tcp_connections", &["namespace", "pod", "state"],
        "TCP connections of the pod at the last look, by state. On the node's network those of no process (time_wait, syn_received) are nobody's.");
    POD_TCP_RETRANSMITTED_SEGMENTS = counter("pinfold_pod_tcp_retransmitted_segments_total", POD,
        "TCP segments that were sent again in the pod's own network namespace; on the node's network by the pod's sockets (metrics.sockets), without resent answers to who wants to connect.");
    POD_TCP_RTT_SECONDS = histogram("pinfold_pod_tcp_rtt_seconds", POD,
        "Smoothed round-trip times of the pod's TCP connections: at each look, of each that was acknowledged something since the look before.");
    POD_TCP_RWND_LIMITED_SECONDS = counter("pinfold_pod_tcp_rwnd_limited_seconds_total", POD,
        "The part of the busy time in which the receiver had no room for more.");
    POD_TCP_SENT_SEGMENTS = counter("pinfold_pod_tcp_sent_segments_total", POD,
        "TCP segments sent in the pod's own network namespace, or on the node's network by the pod's sockets (metrics.sockets), without those sent again.");
    POD_TCP_SNDBUF_LIMITED_SECONDS = counter("pinfold_pod_tcp_sndbuf_limited_seconds_total", POD,
        "The part of the busy time in which the sending sockets' own buffers were too small.");
    POD_TCP_TIMEOUTS = counter("pinfold_pod_tcp_timeouts_total", POD,
        "How often a TCP timer ran out in the pod's own network namespace because nothing was heard; on the node's network of the pod's sockets (metrics.sockets), and only where that had something sent again.");
}

families! {
    /// The families of the agent's own doings, by name; the last two are what Prometheus' clients call them everywhere.
    AGENT_FAMILIES:
    DRIFT = counter("pinfold_drift_total", &["cause"],
        "Differences of kernel and ledger found, by cause.");
    MANIFEST_ERRORS = gauge("pinfold_manifest_errors", &[],
        "Pod manifests that can't be read now.");
    MOVES = counter("pinfold_moves_total", &[],
        "Running containers that were moved to make room for others.");
    NRI_CALL_DURATION_SECONDS = histogram("pinfold_nri_call_duration_seconds", &["call"],
        "Time that the container runtime has waited for an answer.");
    NRI_UNANSWERED = counter("pinfold_nri_unanswered_total", &[],
        "Calls of the container runtime that were not answered in time.");
    RECONCILE_DURATION_SECONDS = histogram("pinfold_reconcile_duration_seconds", &[],
        "Time of one reconcile.");
    RECONCILES = counter("pinfold_reconcile_total", &["reason"],
        "Reconciles, by what caused them.");
    STEPS = counter("pinfold_steps_total", &["outcome"],
        "Writes to cgroups, by what became of them.");
    WINDOW_SECONDS = histogram("pinfold_window_seconds", &[],
        "Time from a container's first instruction to its assignment in force; the kernel counts in hundredths.");
    PROCESS_CPU_SECONDS = counter("process_cpu_seconds_total", &[],
        "CPU time used by the agent.");
    PROCESS_START_TIME_SECONDS = gauge("process_start_time_seconds", &[],
        "When the agent started, in seconds since 1970.");
}

families! {
    /// The families of the Kubernetes API, by name.
    API_FAMILIES:
    API_CONNECTED = gauge("pinfold_api_connected", &[],
        "Whether this node's pods are followed at the API server now.");
    API_ERRORS = counter("pinfold_api_errors_total", &["kind"],
        "Requests to the API server, and watches, that came to nothing, by what went wrong.");
    API_EVENTS_DROPPED = counter("pinfold_api_events_dropped_total", &[],
        "Events on pods that were not written: too many at once, or the API server was away.");
    API_LAST_ANSWER_TIMESTAMP_SECONDS = gauge("pinfold_api_last_answer_timestamp_seconds", &[],
        "When the API server last answered as it should, in seconds since 1970.");
    API_POD_CHANGES = counter("pinfold_api_pod_changes_total", &[],
        "Changes of this node's pods that the watch has brought.");
    API_PODS = gauge("pinfold_api_pods", &["state"],
        "This node's pods that the API server has told of, and those of them that can't be read.");
    API_REQUESTS = counter("pinfold_api_requests_total", &["request"],
        "Requests to the API server by what was asked; watch_pods is how often the watch was opened.");
    API_RESYNCS = counter("pinfold_api_resyncs_total", &[],
        "How often all pods of this node were read anew.");
    API_RETRIES = counter("pinfold_api_retries_total", &[],
        "How often something was asked of the API server again because it had failed.");
    SCENE_INFO = info("pinfold_scene_info", &["plan", "scene", "case", "type", "index"],
        "The Node's slot in a scene, always 1; no series while it has none.");
    SCENE_LABEL_CONFLICTS = gauge("pinfold_scene_label_conflicts", &[],
        "Labels that somebody else has set on the Node and that a plan would set otherwise.");
    SCENE_PHASE = gauge("pinfold_scene_phase", &["phase"],
        "How it stands with the Node's place in a scene, always 1.");
}

families! {
    /// The families of the container runtime, by name.
    RUNTIME_FAMILIES:
    NRI_RUNTIME_INFO = info("pinfold_nri_runtime_info", &["name", "version"],
        "The container runtime that is connected, always 1; no series while none is.");
    NRI_SYNCHRONIZED = gauge("pinfold_nri_synchronized", &[],
        "Whether the container runtime asks Pinfold about every container; without it they are pinned once their status is known.");
}
