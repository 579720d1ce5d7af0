//! The tables of all metric families: [`FAMILIES`] of the node's pods, [`AGENT_FAMILIES`] of the agent, [`API_FAMILIES`] and
//! [`RUNTIME_FAMILIES`] of the Kubernetes API and the container runtime, if in use. [`RECLAIM_FAMILIES`] are the families of
//! the reclaimer, a separate program. `docs/reference/metrics.md` is generated from the tables. `tests/metrics` checks the
//! names against Prometheus' conventions.

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FamilyKind {
    /// A value that never decreases while the object lives.
    Counter,
    /// A value that increases and decreases.
    Gauge,
    /// Always 1. The labels hold the information.
    Info,
    /// Counts of values by size.
    Histogram,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Family {
    pub name: &'static str,
    pub kind: FamilyKind,
    pub help: &'static str,
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
        kind: FamilyKind::Counter,
        help,
        labels,
    }
}

const fn gauge(name: &'static str, labels: &'static [&'static str], help: &'static str) -> Family {
    Family {
        name,
        kind: FamilyKind::Gauge,
        help,
        labels,
    }
}

const fn info(name: &'static str, labels: &'static [&'static str], help: &'static str) -> Family {
    Family {
        name,
        kind: FamilyKind::Info,
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
        kind: FamilyKind::Histogram,
        help,
        labels,
    }
}

/// Defines a constant for each family, and the table of all families, sorted by name.
macro_rules! families {
    ($(#[$doc:meta])* $table:ident: $($family:ident = $kind:ident($name:literal, $labels:expr, $help:literal);)*) => {
        $(pub(crate) static $family: Family = $kind($name, $labels, $help);)*

        $(#[$doc])*
        pub static $table: &[&Family] = &[$(&$family),*];
    };
}

families! {
    /// The families of the node's pods, by name.
    FAMILIES:
    COLLECTOR_CONTAINERS_LEFT_OUT = gauge("pinfold_collector_containers_left_out", &["collector", "reason"],
        "Containers without series of a collector that the machine supports, by reason.");
    COLLECTOR_CPU_SECONDS = counter("pinfold_collector_cpu_seconds_total", &["collector"],
        "CPU time of a collector in all scrapes.");
    COLLECTOR_DURATION_SECONDS = gauge("pinfold_collector_duration_seconds", &["collector"],
        "Duration of a collector in this scrape.");
    COLLECTOR_SUCCESS = gauge("pinfold_collector_success", &["collector"],
        "Whether a collector read everything in this scrape.");
    COLLECTOR_UNSUPPORTED = gauge("pinfold_collector_unsupported", &["collector", "reason"],
        "A collector without series on this machine, always 1, by reason. The log has the details.");
    CONTAINER_CONTEXT_SWITCHES = counter("pinfold_container_context_switches_total", &["namespace", "pod", "container", "kind"],
        "Context switches of all threads of the container: voluntary (waiting) or involuntary. Those before the agent's first scrape are not counted.");
    CONTAINER_CPU_CYCLES = counter("pinfold_container_cpu_cycles_total", CONTAINER,
        "Unhalted cycles of the container's exclusive CPUs, or of its threads on shared CPUs (metrics.maxSharedCounters).");
    CONTAINER_CPU_MIGRATIONS = counter("pinfold_container_cpu_migrations_total", CONTAINER,
        "Migrations of the container's threads to another CPU. Migrations between a thread's last sample and its end are missing.");
    CONTAINER_CPU_PERIODS = counter("pinfold_container_cpu_periods_total", CONTAINER,
        "CFS periods in which the container ran under a quota.");
    CONTAINER_CPU_RUN_DELAY_SECONDS = counter("pinfold_container_cpu_run_delay_seconds_total", CONTAINER,
        "Time in which runnable threads of the container waited for a CPU, summed over all threads. The time before the agent's first scrape is not counted.");
    CONTAINER_CPU_THROTTLED_PERIODS = counter("pinfold_container_cpu_throttled_periods_total", CONTAINER,
        "CFS periods in which the container's quota ran out.");
    CONTAINER_CPU_THROTTLED_SECONDS = counter("pinfold_container_cpu_throttled_seconds_total", CONTAINER,
        "Time in which the quota throttled the container's threads.");
    CONTAINER_CPU_USAGE_SECONDS = counter("pinfold_container_cpu_usage_seconds_total", CONTAINER,
        "CPU time used by the container.");
    CONTAINER_CPUS_ALLOWED = gauge("pinfold_container_cpus_allowed", CONTAINER,
        "CPUs that the container may run on, as the kernel reports.");
    CONTAINER_CPUS_ALLOWED_BY_TASKS = gauge("pinfold_container_cpus_allowed_by_tasks", CONTAINER,
        "CPUs in the affinity mask of at least one thread of the container, as of the last sample.");
    CONTAINER_CPUS_ASSIGNED = gauge("pinfold_container_cpus_assigned", CONTAINER,
        "Exclusive CPUs of the container; 0 in the shared pool.");
    CONTAINER_CPUSET_INFO = info("pinfold_container_cpuset_info", &["namespace", "pod", "container", "cpus"],
        "The container's exclusive CPUs as a list, always 1. Containers on shared CPUs have no series.");
    CONTAINER_INSTRUCTIONS = counter("pinfold_container_instructions_total", CONTAINER,
        "Completed instructions of the container's exclusive CPUs, or of its threads on shared CPUs (metrics.maxSharedCounters).");
    CONTAINER_INTERFERENCE_CPU_ERROR_SECONDS = counter("pinfold_container_interference_cpu_error_seconds_total", CONTAINER,
        "The error bound of the interference: the true value may be lower or higher by this time.");
    CONTAINER_INTERFERENCE_CPU_SECONDS = counter("pinfold_container_interference_cpu_seconds_total", CONTAINER,
        "Time in which the container's exclusive CPUs ran something other than the container.");
    CONTAINER_L2_MISSES = counter("pinfold_container_l2_misses_total", CONTAINER,
        "Second-level cache misses of the container's exclusive CPUs, if the kernel names the event.");
    CONTAINER_L2_REFERENCES = counter("pinfold_container_l2_references_total", CONTAINER,
        "Second-level cache references of the container's exclusive CPUs, if the kernel names the event.");
    CONTAINER_LLC_MISSES = counter("pinfold_container_llc_misses_total", CONTAINER,
        "Last-level cache misses of the container's exclusive CPUs. Only reads count, except on Intel CPUs.");
    CONTAINER_LLC_OCCUPANCY_BYTES = gauge("pinfold_container_llc_occupancy_bytes", &["namespace", "pod", "container", "l3_domain"],
        "Last-level cache occupied by the container's exclusive CPUs.");
    CONTAINER_LLC_REFERENCES = counter("pinfold_container_llc_references_total", CONTAINER,
        "Last-level cache references of the container's exclusive CPUs. Only reads count, except on Intel CPUs.");
    CONTAINER_MEMORY_BANDWIDTH_BYTES = counter("pinfold_container_memory_bandwidth_bytes_total", &["namespace", "pod", "container", "l3_domain", "scope"],
        "Bytes between a last-level cache and memory, for the container's exclusive CPUs. The scope total covers all memory, local only the cache's own NUMA node.");
    CONTAINER_MEMORY_NUMA_BYTES = gauge("pinfold_container_memory_numa_bytes", &["namespace", "pod", "container", "numa_node", "type"],
        "The container's memory on a NUMA node: anonymous (anon), and file-backed (file).");
    CONTAINER_PERF_ENABLED_SECONDS = counter("pinfold_container_perf_enabled_seconds_total", CONTAINER,
        "Time in which the container's hardware counters were enabled, summed over all CPUs.");
    CONTAINER_PERF_RUNNING_SECONDS = counter("pinfold_container_perf_running_seconds_total", CONTAINER,
        "Time in which the container's hardware counters ran. Less than the enabled time means that the counts are estimates.");
    CONTAINER_PRESSURE_SECONDS = counter("pinfold_container_pressure_seconds_total", &["namespace", "pod", "container", "resource", "kind"],
        "Time in which some, or all (full), of the container's tasks waited for cpu, io or memory.");
    CONTAINER_THREADS = gauge("pinfold_container_threads", CONTAINER,
        "Threads of the container now.");
    CONTAINER_THREADS_BOUND = gauge("pinfold_container_threads_bound", CONTAINER,
        "Threads whose affinity mask lacks some of the container's CPUs, as of the last sample.");
    CONTAINER_THREADS_EXPECTED = gauge("pinfold_container_threads_expected", CONTAINER,
        "Expected threads: the sum of the pools that the container's thread environment sizes.");
    CONTAINER_THREADS_VERDICT = gauge("pinfold_container_threads_verdict", &["namespace", "pod", "container", "verdict", "cause"],
        "The verdict on the container's number of threads, and the likely cause, always 1.");
    ENFORCEMENT_INFO = info("pinfold_enforcement_info", &["enforcement", "reason", "source"],
        "How Pinfold enforces assignments on this node, and why, always 1. The agent's /status has the details.");
    MACHINE_INFO = info("pinfold_machine_info", &["cpu_model", "emulated"],
        "The model of the node's CPUs, and whether they are emulated, so that times mean nothing; always 1.");
    NODE_ALLOCATABLE_CPUS = gauge("pinfold_node_allocatable_cpus", &[],
        "CPUs that the scheduler counts on the node: the Node's allocatable, else by the kubelet's configuration file.");
    NODE_ASSIGNABLE_CPUS = gauge("pinfold_node_assignable_cpus", &[],
        "CPUs that containers can own together on the node without the pods that run: the online CPUs without those that are reserved or must stay shared, that are withheld, lost or held by other programs, or that cpus.cores leaves idle on every node. What running pods keep idle doesn't change it.");
    NODE_CPUS = gauge("pinfold_node_cpus", &["state"],
        "CPUs of the node by state: online, reserved, shared, exclusive, and lost (online CPUs that no cpuset has).");
    NODE_RDMA_PORT_EVENTS = counter("pinfold_node_rdma_port_events_total", &["device", "port", "event"],
        "Errors, discards, waits and other events of an RDMA port of the node. The label event has the kernel's name.");
    NODE_RDMA_HW = counter("pinfold_node_rdma_port_hardware_events_total", &["device", "port", "counter"],
        "Driver-specific counters of an RDMA port of the node. The label counter has the driver's name.");
    NODE_RDMA_PORT_RECEIVE_BYTES = counter("pinfold_node_rdma_port_receive_bytes_total", PORT,
        "Bytes received by an RDMA port of the node, for all users together.");
    NODE_RDMA_PORT_RECEIVE_PACKETS = counter("pinfold_node_rdma_port_receive_packets_total", PORT,
        "Packets received by an RDMA port of the node, for all users together.");
    NODE_RDMA_PORT_STATE = gauge("pinfold_node_rdma_port_state", &["device", "port", "state"],
        "The state of an RDMA port of the node: 1 for the current state, 0 for the rest.");
    NODE_RDMA_PORT_TRANSMIT_BYTES = counter("pinfold_node_rdma_port_transmit_bytes_total", PORT,
        "Bytes sent by an RDMA port of the node, for all users together.");
    NODE_RDMA_PORT_TRANSMIT_PACKETS = counter("pinfold_node_rdma_port_transmit_packets_total", PORT,
        "Packets sent by an RDMA port of the node, for all users together.");
    PEER_RECEIVE_BYTES = counter("pinfold_peer_receive_bytes_total", PEER,
        "Payload received by a training pod's TCP connections, by peer pod of the job. Empty names stand for all remaining peers.");
    PEER_TRANSMIT_BYTES = counter("pinfold_peer_transmit_bytes_total", PEER,
        "Acknowledged payload of a training pod's TCP connections, by peer pod of the job. Empty names stand for all remaining peers. Bytes between the last sample and a connection's end are missing.");
    POD_INFO = info("pinfold_pod_info", &["namespace", "pod", "uid", "training_job", "role", "replica_index", "qos", "host_network"],
        "Properties of a pod as labels, always 1, from the creation of its first container until its end. Join on namespace and pod. The uid is that of the Pod object; for a static pod, of its mirror pod.");
    POD_NETWORK_RECEIVE_BYTES = counter("pinfold_pod_network_receive_bytes_total", INTERFACE,
        "Bytes received by the pod's interface.");
    POD_NETWORK_RECEIVE_ERRORS = counter("pinfold_pod_network_receive_errors_total", INTERFACE,
        "Packets that the pod's interface could not receive.");
    POD_NETWORK_RECEIVE_PACKETS_DROPPED = counter("pinfold_pod_network_receive_packets_dropped_total", INTERFACE,
        "Packets that the pod's interface received and dropped.");
    POD_NETWORK_RECEIVE_PACKETS = counter("pinfold_pod_network_receive_packets_total", INTERFACE,
        "Packets received by the pod's interface.");
    POD_NETWORK_SCOPE = gauge("pinfold_pod_network_scope", &["namespace", "pod", "scope"],
        "The owner of the pod's network: the pod, the host, or unknown. 1 for the current scope, 0 for the rest. Only a pod's own network is counted.");
    POD_NETWORK_SOCKET_RECEIVE_BYTES = counter("pinfold_pod_network_socket_receive_bytes_total", POD,
        "Bytes received by the pod's sockets on any network, with IP and transport headers.");
    POD_NETWORK_SOCKET_RECEIVE_PACKETS = counter("pinfold_pod_network_socket_receive_packets_total", POD,
        "Packets received by the pod's sockets on any network.");
    POD_NETWORK_SOCKET_TRANSMIT_BYTES = counter("pinfold_pod_network_socket_transmit_bytes_total", POD,
        "Bytes sent by the pod's sockets on any network, with IP and transport headers.");
    POD_NETWORK_SOCKET_TRANSMIT_PACKETS = counter("pinfold_pod_network_socket_transmit_packets_total", POD,
        "Packets sent by the pod's sockets on any network.");
    POD_NETWORK_TRANSMIT_BYTES = counter("pinfold_pod_network_transmit_bytes_total", INTERFACE,
        "Bytes sent by the pod's interface.");
    POD_NETWORK_TRANSMIT_ERRORS = counter("pinfold_pod_network_transmit_errors_total", INTERFACE,
        "Packets that the pod's interface could not send.");
    POD_NETWORK_TRANSMIT_PACKETS_DROPPED = counter("pinfold_pod_network_transmit_packets_dropped_total", INTERFACE,
        "Outgoing packets that the pod's interface dropped.");
    POD_NETWORK_TRANSMIT_PACKETS = counter("pinfold_pod_network_transmit_packets_total", INTERFACE,
        "Packets sent by the pod's interface.");
    POD_NOT_PINNED = gauge("pinfold_pod_not_pinned", &["namespace", "pod", "reason"],
        "A pod that trains or asks for exclusive CPUs, and runs without them, always 1, by reason. A pod that asks for shared CPUs has no series.");
    POD_OWNED_CPUS = gauge("pinfold_pod_owned_cpus", POD,
        "Exclusive CPUs of the pod's containers.");
    POD_RDMA_RECEIVE_BYTES = counter("pinfold_pod_rdma_port_receive_bytes_total", POD_PORT,
        "Bytes received by an RDMA port that only the pod's network namespace has.");
    POD_RDMA_RECEIVE_PACKETS = counter("pinfold_pod_rdma_port_receive_packets_total", POD_PORT,
        "Packets received by an RDMA port that only the pod's network namespace has.");
    POD_RDMA_TRANSMIT_BYTES = counter("pinfold_pod_rdma_port_transmit_bytes_total", POD_PORT,
        "Bytes sent by an RDMA port that only the pod's network namespace has.");
    POD_RDMA_TRANSMIT_PACKETS = counter("pinfold_pod_rdma_port_transmit_packets_total", POD_PORT,
        "Packets sent by an RDMA port that only the pod's network namespace has.");
    POD_TCP_BUSY_SECONDS = counter("pinfold_pod_tcp_busy_seconds_total", POD,
        "Time in which the pod's TCP connections had unsent or unacknowledged data, summed over all connections. Time between the last sample and a connection's end is missing.");
    POD_TCP_CONNECTIONS = gauge("pinfold_pod_tcp_connections", &["namespace", "pod", "state"],
        "TCP connections of the pod in the last sample, by state. On the node's network, connections without a process (time_wait, syn_received) belong to no pod.");
    POD_TCP_RETRANSMITTED_SEGMENTS = counter("pinfold_pod_tcp_retransmitted_segments_total", POD,
        "Retransmitted TCP segments in the pod's own network namespace, or of the pod's sockets on the node's network (metrics.sockets, without retransmitted SYN-ACKs).");
    POD_TCP_RTT_SECONDS = histogram("pinfold_pod_tcp_rtt_seconds", POD,
        "Smoothed round-trip times of the pod's TCP connections. Each sample adds the connections with new acknowledgements.");
    POD_TCP_RWND_LIMITED_SECONDS = counter("pinfold_pod_tcp_rwnd_limited_seconds_total", POD,
        "The part of the busy time in which the receive window limited the connection.");
    POD_TCP_SENT_SEGMENTS = counter("pinfold_pod_tcp_sent_segments_total", POD,
        "TCP segments sent in the pod's own network namespace, or by the pod's sockets on the node's network (metrics.sockets), without retransmissions.");
    POD_TCP_SNDBUF_LIMITED_SECONDS = counter("pinfold_pod_tcp_sndbuf_limited_seconds_total", POD,
        "The part of the busy time in which the send buffer limited the connection.");
    POD_TCP_TIMEOUTS = counter("pinfold_pod_tcp_timeouts_total", POD,
        "Expired TCP timers in the pod's own network namespace, or of the pod's sockets on the node's network (metrics.sockets, only timers with a retransmission).");
}

families! {
    /// The families of the agent itself, by name. The names `process_…` are the same in all Prometheus clients.
    AGENT_FAMILIES:
    BUILD_INFO = info("pinfold_build_info", &["version", "commit", "features"],
        "The version, the commit and the Cargo features of the agent, always 1.");
    CONTAINER_UNPINNED_SECONDS = histogram("pinfold_container_unpinned_seconds", &[],
        "Time from a container's first instruction to the effective assignment, with a resolution of 0.01 s.");
    DRIFT = counter("pinfold_drift_total", &["cause"],
        "Differences between effective and assigned CPUs, by cause.");
    MANIFEST_ERRORS = gauge("pinfold_manifest_errors", &[],
        "Pod manifests that the agent can't read now.");
    MOVES = counter("pinfold_moves_total", &[],
        "Running containers that were moved for a new container.");
    NRI_CALL_DURATION_SECONDS = histogram("pinfold_nri_call_duration_seconds", &["call"],
        "Time for which the container runtime waited for the agent's answer.");
    NRI_UNANSWERED = counter("pinfold_nri_unanswered_total", &[],
        "Requests of the container runtime that the agent did not answer in time.");
    RECONCILE_DURATION_SECONDS = histogram("pinfold_reconcile_duration_seconds", &[],
        "Duration of a turn of the reconciler.");
    RECONCILE_FAILURES = counter("pinfold_reconcile_failures_total", &[],
        "Turns of the reconciler that failed, because the pods' cgroups could not be read for example. Assignments stay as they are.");
    STEPS = counter("pinfold_reconcile_steps_total", &["outcome"],
        "Writes to cgroups by outcome.");
    RECONCILES = counter("pinfold_reconcile_total", &["trigger"],
        "Turns of the reconciler by trigger.");
    SWEEP_TIMESTAMP_SECONDS = gauge("pinfold_sweep_timestamp_seconds", &[],
        "When the agent had last read the cgroups of all pods, in seconds since 1970. 0 before the first time.");
    UNGUARDED_STARTS = counter("pinfold_unguarded_starts_total", &["kind"],
        "Containers that started while no agent answered the container runtime. Kind exclusive_cpus: the container ran on exclusive CPUs of another pod. Kind required: it ran without the exclusive CPUs that its pod requires.");
    PROCESS_CPU_SECONDS = counter("process_cpu_seconds_total", &[],
        "CPU time used by the agent.");
    PROCESS_MAX_FDS = gauge("process_max_fds", &[],
        "The limit on open file descriptors of the agent.");
    PROCESS_OPEN_FDS = gauge("process_open_fds", &[],
        "Open file descriptors of the agent.");
    PROCESS_RESIDENT_MEMORY_BYTES = gauge("process_resident_memory_bytes", &[],
        "Resident memory of the agent.");
    PROCESS_START_TIME_SECONDS = gauge("process_start_time_seconds", &[],
        "The agent's start time, in seconds since 1970.");
}

families! {
    /// The families of the Kubernetes API, by name.
    API_FAMILIES:
    API_CONNECTED = gauge("pinfold_api_connected", &[],
        "Whether the watch on this node's pods is open.");
    API_ERRORS = counter("pinfold_api_errors_total", &["kind"],
        "Failed requests to the API server and failed watches, by kind of error.");
    API_EVENTS_DROPPED = counter("pinfold_api_events_dropped_total", &[],
        "Events on pods that were dropped: too many at a time, or the API server was unreachable.");
    API_LAST_ANSWER_TIMESTAMP_SECONDS = gauge("pinfold_api_last_answer_timestamp_seconds", &[],
        "The time of the API server's last valid response, in seconds since 1970.");
    API_POD_CHANGES = counter("pinfold_api_pod_changes_total", &[],
        "Changes of this node's pods that the watch reported.");
    API_PODS = gauge("pinfold_api_pods", &["state"],
        "This node's pods from the API server by state: known, or unreadable.");
    API_REQUESTS = counter("pinfold_api_requests_total", &["request"],
        "Requests to the API server by kind. The kind watch_pods counts opened watches.");
    API_RESYNCS = counter("pinfold_api_resyncs_total", &[],
        "Repeated lists of this node's pods.");
    API_RETRIES = counter("pinfold_api_retries_total", &[],
        "Requests to the API server that were repeated after a failure.");
    SCENE_INFO = info("pinfold_scene_info", &["plan", "scene", "case", "type", "index"],
        "The Node's slot in a scene, always 1. A Node without a slot has no series.");
    SCENE_LABEL_CONFLICTS = gauge("pinfold_scene_label_conflicts", &[],
        "Labels of the Node that another program has set and that a plan would set differently.");
    SCENE_PHASE = gauge("pinfold_scene_phase", &["phase"],
        "The phase of the Node's slot in a scene: 1 for the current phase, 0 for the rest.");
}

families! {
    /// The families of the container runtime, by name.
    RUNTIME_FAMILIES:
    CONTAINERS_WITHOUT_VARIABLES = gauge("pinfold_containers_without_thread_variables", &[],
        "Running containers without the thread variables that Pinfold computes for them, because no agent added them when they were created. Only while the runtime is synchronized.");
    NRI_RUNTIME_INFO = info("pinfold_nri_runtime_info", &["name", "version"],
        "The connected container runtime, always 1. Without a connection, no series exists.");
    NRI_SYNCHRONIZED = gauge("pinfold_nri_synchronized", &[],
        "Whether the container runtime asks Pinfold about every new container. If not, a container is pinned after its start.");
}

families! {
    /// The families of the reclaimer, by name.
    RECLAIM_FAMILIES:
    RECLAIM_DELETED_OBJECTS = counter("pinfold_reclaim_deleted_objects_total", &["kind"],
        "Objects that the reclaimer deleted, by kind.");
    RECLAIM_FAILURES = counter("pinfold_reclaim_failures_total", &[],
        "Failed lists and deletes of the reclaimer.");
    RECLAIM_JOBS = gauge("pinfold_reclaim_jobs", &["verdict"],
        "Training jobs with parameter servers that ask to be reclaimed, by the last decision.");
    RECLAIM_ROUNDS = counter("pinfold_reclaim_rounds_total", &[],
        "Decisions about all training jobs, by lists or by watches.");
}
