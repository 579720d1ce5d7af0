//! This node's pods, by one watch.
//!
//! [`follow`] is a task that reads all pods of the node once and follows their changes from there. Its rules:
//!
//! - **An empty cache is not "no pods".** Nothing is said before the server has told everything once; and a pod is gone when
//!   the server says so, or when a complete list lacks it, never because something could not be read.
//! - **What is known stays** while the API is away, slow, or talks nonsense. [`PodsEvent::Degraded`] says so once.
//! - **A pod that can't be read** keeps the state it had, is named, and keeps nobody else from being read.
//! - **Coming back is cheap**: a broken watch goes on from the last version; only a version that is too old (410) makes all
//!   pods be read anew, after a random pause, so that ten thousand nodes don't ask at once.
//! - **A silent connection is noticed**: bookmarks come every minute; after [`Settings::idle`] without a byte it is given up.
//!
//! `kube::runtime::watcher` (read in `kube-runtime` 5.0.0) cannot carry these rules:
//!
//! - `Retry-After` of a refused list or watch reaches only kube's own retry layer, not the watcher's backoff.
//! - A refused streaming list starts another streaming list. Pages never replace the stream.
//! - The end of a watch is no failure, so a proxy that ends each watch at once causes requests without a pause.
//! - The initial stream has no deadline of its own, and kube bounds neither a line of a watch nor an answer.
//! - The watcher has no random pause before a repeated list, and no counters.
//!
//! The wrapper `DeserializeGuard` covers objects that cannot be decoded. The wrapper first decodes each object into a generic
//! tree of values and copies the tree, which costs more memory than a small struct from text.

mod cache;
mod follower;

use std::collections::BTreeMap;
use std::time::Duration;

use crate::pod::Pod;

pub use cache::PodCache;
pub use follower::follow;

/// What is heard of this node's pods.
#[derive(Debug, Clone, PartialEq)]
pub enum PodsEvent {
    /// All pods, complete: at the start, and whenever they were read anew.
    Snapshot {
        /// The pods, by namespace and name.
        pods: Vec<Pod>,
        /// Pods that can't be read, by uid, as sentences; those that were known keep what was known of them.
        unreadable: BTreeMap<String, String>,
    },
    /// A pod that is new or has changed in a way that matters to us.
    Changed(Box<Pod>),
    /// The server says that a pod is gone.
    Gone {
        /// The API server's uid.
        uid: String,
        /// Namespace.
        namespace: String,
        /// Name.
        name: String,
    },
    /// A pod has come to a state that can't be read; what was known of it stays.
    Unreadable {
        /// The API server's uid.
        uid: String,
        /// A sentence that names the pod and what is wrong.
        says: String,
    },
    /// The API can't be heard, and why; what is known stays. Said again only when the reason is another.
    Degraded(String),
    /// It is heard again.
    Recovered,
}

/// How the pods are followed.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// Pods of a page, where the server has no streaming lists.
    pub page: u32,
    /// Whether to ask for a streaming list first.
    pub streaming: bool,
    /// How long the server is asked to keep one watch, in seconds.
    pub watch_seconds: u32,
    /// How long a watch may be silent. Bookmarks come about every minute, but no server promises them; giving up a good
    /// connection costs one request.
    pub idle: Duration,
    /// How long a streaming list may take until its end is marked.
    pub initial: Duration,
    /// The shortest and the longest wait between two tries.
    pub backoff: (Duration, Duration),
    /// The longest random pause before everything is read anew.
    pub spread: Duration,
    /// A watch that ends before this has failed, however politely.
    pub short_lived: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            page: 500,
            streaming: true,
            watch_seconds: 290,
            idle: Duration::from_secs(150),
            initial: Duration::from_secs(60),
            backoff: (Duration::from_millis(800), Duration::from_secs(60)),
            spread: Duration::from_secs(10),
            short_lived: Duration::from_secs(2),
        }
    }
}
