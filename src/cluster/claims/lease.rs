//! The fields of a claim's Lease, and who holds it.

use serde::Deserialize;
#[cfg(feature = "reclaim")]
use serde_json::value::RawValue;

/// The node that owns the claims.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ClaimOwner {
    pub node: String,
    pub uid: String,
}

/// The node that holds a slot.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Holder {
    /// The holding Node's name.
    pub node: String,
    /// The holding Node's uid.
    pub uid: String,
    /// The Lease's uid.
    pub lease: String,
}

/// The fields of a Lease that name the holder. There are few, because the agent often reads many
/// Leases.
#[derive(Deserialize)]
pub(super) struct BriefLease {
    pub(super) metadata: BriefMetadata,
}

#[derive(Deserialize)]
pub(super) struct BriefMetadata {
    pub(super) name: String,
    #[serde(rename = "ownerReferences", default)]
    pub(super) owners: Vec<BriefOwner>,
}

#[derive(Deserialize)]
pub(super) struct BriefOwner {
    #[serde(default)]
    pub(super) name: String,
    pub(super) uid: String,
}

/// The fields of a Lease that identify the holder and the Lease.
#[derive(Deserialize)]
pub(super) struct Lease {
    pub(super) metadata: Option<LeaseMetadata>,
    pub(super) spec: Option<LeaseSpec>,
}

#[derive(Default, Deserialize)]
pub(super) struct LeaseMetadata {
    pub(super) name: Option<String>,
    pub(super) uid: Option<String>,
    #[serde(rename = "ownerReferences")]
    pub(super) owners: Option<Vec<LeaseOwner>>,
}

#[derive(Deserialize)]
pub(super) struct LeaseOwner {
    pub(super) kind: Option<String>,
    pub(super) name: Option<String>,
    pub(super) uid: Option<String>,
}

#[derive(Deserialize)]
pub(super) struct LeaseSpec {
    #[serde(rename = "holderIdentity")]
    pub(super) holder: Option<String>,
}

/// The holder of a claim. The names and uids are empty for an unreadable Lease.
#[cfg(feature = "reclaim")]
pub(in crate::cluster) fn holder_of(lease: &RawValue) -> Holder {
    let lease = serde_json::from_str::<Lease>(lease.get());
    lease.map_or_else(|_| Holder::default(), |lease| lease.held().1)
}

// === impl BriefMetadata ===

impl BriefMetadata {
    /// Whether the claim belongs to an earlier Node with the name of `owner`.
    pub(super) fn is_of_earlier(&self, owner: &ClaimOwner) -> bool {
        let mut owners = self.owners.iter();
        owners.any(|of| of.name == owner.node && of.uid != owner.uid)
    }
}

// === impl Lease ===

impl Lease {
    /// The Lease's name, and its holder: the owner of kind Node, else the node in `holderIdentity`.
    pub(super) fn held(self) -> (Option<String>, Holder) {
        let metadata = self.metadata.unwrap_or_default();
        let mut owners = metadata.owners.unwrap_or_default().into_iter();
        let owner = owners.find(|owner| owner.kind.as_deref() == Some("Node"));
        let (node, uid) = match owner {
            Some(owner) => (owner.name, owner.uid),
            None => (self.spec.and_then(|spec| spec.holder), None),
        };
        let holder = Holder {
            node: node.unwrap_or_default(),
            uid: uid.unwrap_or_default(),
            lease: metadata.uid.unwrap_or_default(),
        };
        (metadata.name, holder)
    }
}
