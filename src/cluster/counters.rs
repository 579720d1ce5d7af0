//! [`ApiCounters`]: counts of API requests, failures and changes, for `/metrics`.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

named! {
    /// The kinds of requests.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum Call {
        /// A page of this node's pods.
        ListPods => "list_pods",
        /// A watch of this node's pods.
        WatchPods => "watch_pods",
        /// A page of a training job's pods.
        ListJob => "list_job",
        /// A read of this node's Node.
        GetNode => "get_node",
        /// An apply of labels to this node's Node.
        ApplyNode => "apply_node",
        /// A page of the ScenePlans.
        ListPlans => "list_plans",
        /// A watch of the ScenePlans.
        WatchPlans => "watch_plans",
        /// A page of all Nodes, for a command.
        ListNodes => "list_nodes",
        /// A patch of the taints of this node's Node.
        TaintNode => "taint_node",
        /// A page of the claims.
        ListLeases => "list_leases",
        /// A read of a claim.
        GetLease => "get_lease",
        /// A watch of this node's claim.
        WatchLease => "watch_lease",
        /// The creation of a claim.
        CreateLease => "create_lease",
        /// The deletion of a claim.
        DeleteLease => "delete_lease",
        /// The creation of an Event.
        CreateEvent => "create_event",
        /// An update of the count of an Event.
        PatchEvent => "patch_event",
        /// A TokenReview of a caller of the agent.
        ReviewToken => "review_token",
        /// A SubjectAccessReview of a caller of the agent.
        ReviewAccess => "review_access",
        /// Any other request through [`Api`](super::Api).
        Other => "other",
    }
}

named! {
    /// The kinds of failures.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum ErrorKind {
        /// The connection failed or broke.
        Connection => "connection",
        /// No answer within the deadline, or a silent watch.
        Timeout => "timeout",
        /// 401.
        Unauthorized => "unauthorized",
        /// 403.
        Forbidden => "forbidden",
        /// 404.
        NotFound => "not_found",
        /// 409.
        Conflict => "conflict",
        /// 410: the requested resourceVersion is too old.
        Gone => "gone",
        /// 429.
        TooManyRequests => "too_many_requests",
        /// 5xx.
        Server => "server",
        /// A refusal with another code.
        Refused => "refused",
        /// An answer that can't be decoded.
        InvalidResponse => "invalid_response",
        /// A request that can't be built.
        InvalidRequest => "invalid_request",
    }
}

/// Counters since the start of the process. Reads and updates never wait.
#[derive(Debug, Default)]
pub struct ApiCounters {
    requests: [AtomicU64; Call::ALL.len()],
    errors: [AtomicU64; ErrorKind::ALL.len()],
    retries: AtomicU64,
    resyncs: AtomicU64,
    pod_changes: AtomicU64,
    events_dropped: AtomicU64,
    /// The time of the last success in milliseconds since 1970; 0 before the first success.
    last_success: AtomicU64,
    degraded: AtomicBool,
}

// === impl ApiCounters ===

impl ApiCounters {
    /// The number of requests of a kind.
    pub fn requests(&self, call: Call) -> u64 {
        self.requests
            .get(call as usize)
            .map_or(0, |count| count.load(Ordering::Relaxed))
    }

    /// The number of failures of a kind.
    pub fn errors(&self, kind: ErrorKind) -> u64 {
        self.errors
            .get(kind as usize)
            .map_or(0, |count| count.load(Ordering::Relaxed))
    }

    /// The number of retries after failures, of the watch of pods and of Events.
    pub fn retries(&self) -> u64 {
        self.retries.load(Ordering::Relaxed)
    }

    /// The number of complete reads of all pods, the first included.
    pub fn resyncs(&self) -> u64 {
        self.resyncs.load(Ordering::Relaxed)
    }

    /// The number of pod changes that the watch reported.
    pub fn pod_changes(&self) -> u64 {
        self.pod_changes.load(Ordering::Relaxed)
    }

    /// The number of Events that were not written: over the limit, or the request failed.
    pub fn events_dropped(&self) -> u64 {
        self.events_dropped.load(Ordering::Relaxed)
    }

    /// The time of the last successful answer, in seconds since 1970.
    pub fn last_success(&self) -> Option<f64> {
        match self.last_success.load(Ordering::Relaxed) {
            0 => None,
            milliseconds => Some(milliseconds as f64 / 1000.0),
        }
    }

    /// Whether the watch of pods currently fails.
    pub fn is_degraded(&self) -> bool {
        self.degraded.load(Ordering::Relaxed)
    }

    pub(super) fn add_request(&self, call: Call) {
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
