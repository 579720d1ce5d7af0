//! Families that rules and dashboard use and that a build may not have.

/// What the processor counts, and what TCP does: each is taken as known, whether or not it is in the tables.
pub(crate) const PLANNED: [&str; 11] = [
    "pinfold_container_cpu_cycles_total",
    "pinfold_container_instructions_total",
    "pinfold_container_llc_misses_total",
    "pinfold_container_llc_occupancy_bytes",
    "pinfold_container_llc_references_total",
    "pinfold_container_memory_bandwidth_bytes_total",
    "pinfold_container_perf_enabled_seconds_total",
    "pinfold_container_perf_running_seconds_total",
    "pinfold_pod_tcp_retransmitted_segments_total",
    "pinfold_pod_tcp_sent_segments_total",
    "pinfold_pod_tcp_timeouts_total",
];
