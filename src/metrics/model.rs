//! The types of peers, which the agent and the collector `connections` share.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use crate::pod::PodRole;

/// Remote addresses without a known pod, by the namespace and name of the training job.
pub type UnknownPeers = BTreeMap<(String, String), BTreeSet<IpAddr>>;

/// A pod at the remote end of a connection. The namespace is the training job's.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Peer {
    /// The pod's name.
    pub pod: String,
    /// The pod's role in the job.
    pub role: PodRole,
}
