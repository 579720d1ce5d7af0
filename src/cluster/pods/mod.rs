//! This node's pods, by one watch.
//!
//! [`follow`] is a task that reads all pods of the node once and then watches for changes. It keeps
//! no pods: a pod is read and reduced once, and its receivers share it. [`PodCache`] tells them
//! what has changed. The rules:
//!
//! - **An empty cache does not mean "no pods".** The task sends no pods before the first complete
//!   list. A pod is gone if the server reports the deletion, or if a complete list lacks it. A
//!   failed read removes none.
//! - **The known pods stay** while the API is unreachable, slow or sends invalid answers. The task sends
//!   [`PodsEvent::Degraded`] once per reason.
//! - **An unreadable pod keeps its last state.** [`PodsEvent::Unreadable`] names it, and the others
//!   are still read.
//!
//! The module `cluster::informer` sends the requests, and has the rules for broken watches, repeated lists and silent
//! connections.

mod cache;
mod follower;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;

use super::informer::RELIST_SPREAD;
use crate::pod::Pod;

pub use cache::PodCache;
pub use follower::follow;

/// A change of this node's pods, or of the connection to the API.
#[derive(Debug, Clone, PartialEq)]
pub enum PodsEvent {
    /// A complete list of all pods: the first list, and any later list.
    Listed {
        /// The readable pods.
        pods: Vec<Arc<Pod>>,
        /// A sentence for each unreadable pod, by uid. The last readable state of these pods stays.
        unreadable: BTreeMap<String, String>,
    },
    /// A pod is new or has changed, perhaps only in fields that Pinfold does not read.
    Applied(Arc<Pod>),
    /// The server reported the deletion of a pod.
    Deleted {
        /// The API server's uid.
        uid: String,
        namespace: String,
        name: String,
    },
    /// The new state of a pod is unreadable. The last readable state stays.
    Unreadable {
        /// The API server's uid.
        uid: String,
        /// A sentence with the pod's name and the error.
        says: String,
    },
    /// The watch fails for the given reason. The known pods stay. Sent again only for another
    /// reason.
    Degraded(String),
    /// The watch works again.
    Recovered,
    /// The agent sends no request until the time `until`, on purpose.
    Waits {
        /// The time of the next request.
        until: Timestamp,
        /// Whether the agent then lists all pods, at a random time, because the server lost the watches of all nodes.
        lists: bool,
    },
}

#[derive(Debug, Clone, PartialEq)]
pub struct PodWatchSettings {
    /// Whether to try a streaming list before a plain list.
    pub streaming: bool,
    /// The requested duration of a watch, in seconds.
    pub watch_seconds: u32,
    /// The longest time without data before the watch is closed. Bookmarks come about every minute,
    /// but no server guarantees them, and closing a working connection costs a request.
    pub idle: Duration,
    /// The longest time until the final bookmark of a streaming list.
    pub initial: Duration,
    /// The shortest and the longest wait between two tries.
    pub backoff: (Duration, Duration),
    /// The longest random pause before the first list, if the server has no streaming lists. It is shorter than the time for which
    /// the reconciler waits for the first list.
    pub first_spread: Duration,
    /// The longest random pause before all pods are read again.
    pub spread: Duration,
}

impl Default for PodWatchSettings {
    fn default() -> Self {
        Self {
            streaming: true,
            watch_seconds: 290,
            idle: Duration::from_secs(150),
            initial: Duration::from_secs(60),
            backoff: (Duration::from_millis(800), Duration::from_secs(60)),
            first_spread: Duration::from_secs(2),
            spread: RELIST_SPREAD,
        }
    }
}
