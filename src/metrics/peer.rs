//! The types of peers, which the agent and the collector `connections` share.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use crate::pod::{ObjectName, PodRole};

/// Remote addresses without a known pod, by training job.
pub type UnknownPeers = BTreeMap<ObjectName, BTreeSet<IpAddr>>;

/// A pod at the remote end of a connection. The namespace is the training job's.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Peer {
    pub pod: String,
    pub role: PodRole,
}
