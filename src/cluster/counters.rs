//! What was asked of the API, and what came of it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

macro_rules! names {
    ($(#[$doc:meta])* $kind:ident { $($(#[$of:meta])* $variant:ident = $name:literal,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $kind {
            $($(#[$of])* $variant,)*
        }

        impl $kind {
            /// All of them, in order.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// The value of a metric's label.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }
        }
    };
}

names! {
    /// A kind of request.
    Call {
        /// A page of this node's pods.
        ListPods = "list_pods",
        /// A watch of this node's pods.
        WatchPods = "watch_pods",
        /// A page of a training job's pods.
        ListJob = "list_job",
        /// This node's Node.
        GetNode = "get_node",
        /// Labels of this node's Node.
        ApplyNode = "apply_node",
        /// All ScenePlans.
        ListPlans = "list_plans",
        /// A watch of the ScenePlans.
        WatchPlans = "watch_plans",
        /// All Nodes, for a command.
        ListNodes = "list_nodes",
        /// Taints of this node's Node.
        TaintNode = "taint_node",
        /// Claims.
        ListLeases = "list_leases",
        /// One claim.
        GetLease = "get_lease",
        /// A watch of the own claim.
        WatchLease = "watch_lease",
        /// A new claim.
        CreateLease = "create_lease",
        /// A claim given up.
        DeleteLease = "delete_lease",
        /// A new Event.
        CreateEvent = "create_event",
        /// An Event that happened again.
        PatchEvent = "patch_event",
        /// Anything that others ask through [`Api`](super::Api).
        Other = "other",
    }
}

names! {
    /// What went wrong with a request.
    ErrorKind {
        /// No connection, or one that broke.
        Connection = "connection",
        /// No answer in time, or a watch that fell silent.
        Timeout = "timeout",
        /// 401.
        Unauthorized = "unauthorized",
        /// 403.
        Forbidden = "forbidden",
        /// 404.
        NotFound = "not_found",
        /// 409.
        Conflict = "conflict",
        /// 410: what was asked for is too old.
        Gone = "gone",
        /// 429.
        TooManyRequests = "too_many_requests",
        /// 5xx.
        Server = "server",
        /// Any other refusal.
        Refused = "refused",
        /// An answer that can't be read.
        InvalidResponse = "invalid_response",
    }
}

/// Counters since the start; reading and counting never waits.
#[derive(Debug, Default)]
pub struct Counters {
    requests: [AtomicU64; Call::ALL.len()],
    errors: [AtomicU64; ErrorKind::ALL.len()],
    retries: AtomicU64,
    resyncs: AtomicU64,
    pod_changes: AtomicU64,
    events_dropped: AtomicU64,
    /// Milliseconds since 1970; 0 before the first.
    last_success: AtomicU64,
    degraded: AtomicBool,
}

// === impl Counters ===

impl Counters {
    /// Requests of a kind.
    pub fn requests(&self, call: Call) -> u64 {
        self.requests
            .get(call as usize)
            .map_or(0, |count| count.load(Ordering::Relaxed))
    }

    /// Errors of a kind.
    pub fn errors(&self, kind: ErrorKind) -> u64 {
        self.errors
            .get(kind as usize)
            .map_or(0, |count| count.load(Ordering::Relaxed))
    }

    /// How often something was tried again because it had failed.
    pub fn retries(&self) -> u64 {
        self.retries.load(Ordering::Relaxed)
    }

    /// How often all pods were read anew.
    pub fn resyncs(&self) -> u64 {
        self.resyncs.load(Ordering::Relaxed)
    }

    /// Changes of pods that the watch brought.
    pub fn pod_changes(&self) -> u64 {
        self.pod_changes.load(Ordering::Relaxed)
    }

    /// Events that were not written: too many, or the API was away.
    pub fn events_dropped(&self) -> u64 {
        self.events_dropped.load(Ordering::Relaxed)
    }

    /// When the API last answered as it should, in seconds since 1970.
    pub fn last_success(&self) -> Option<f64> {
        match self.last_success.load(Ordering::Relaxed) {
            0 => None,
            milliseconds => Some(milliseconds as f64 / 1000.0),
        }
    }

    /// Whether the watch of pods fails at present.
    pub fn is_degraded(&self) -> bool {
        self.degraded.load(Ordering::Relaxed)
    }

    pub(super) fn asked(&self, call: Call) {
        if let Some(count) = self.requests.get(call as usize) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(super) fn failed(&self, kind: ErrorKind) {
        if let Some(count) = self.errors.get(kind as usize) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(super) fn succeeded(&self) {
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        self.last_success.store(
            u64::try_from(now.as_millis()).unwrap_or(u64::MAX),
            Ordering::Relaxed,
        );
    }

    pub(super) fn retried(&self) {
        self.retries.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn resynced(&self) {
        self.resyncs.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn pod_changed(&self) {
        self.pod_changes.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn event_dropped(&self) {
        self.events_dropped.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn set_degraded(&self, degraded: bool) {
        self.degraded.store(degraded, Ordering::Relaxed);
    }
}
