//! [`Mark`]: what Pinfold notes on a cgroup, in an extended attribute that lives and dies with it.
//!
//! A mark says which containers own which CPUs, and what was there before, so that a restart knows everything and a
//! release puts everything back. There is no file of ours to get out of step with the kernel.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::cpu::CpuSet;
use crate::host::cgroup::Quota;

/// The only version of the format so far.
const VERSION: u32 = 1;

/// What Pinfold notes on the cgroup of a pod or a container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mark {
    version: u32,
    /// Namespace of the pod, where known.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// Name of the pod, where known.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub pod: String,
    /// Container names and the CPUs each owns: all of the pod's on a pod's cgroup; one, or none, on a container's.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub claims: BTreeMap<String, CpuSet>,
    /// Whether a status or the container runtime said which container the cgroup is, by its id. Earlier versions wrote
    /// no such field, sometimes on a sandbox's cgroup.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub by_id: bool,
    /// On a static pod's cgroup: whether the container runtime has told namespace and name. A record for the word of a mirror
    /// pod alone is no evidence.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub confirmed: bool,
    /// What the cgroup had before Pinfold's first write.
    pub before: Before,
}

/// What a cgroup had before Pinfold's first write.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Before {
    /// `cpuset.cpus`; empty where nothing had been written (cgroup v2).
    pub cpus: CpuSet,
    /// The quota that was lifted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quota: Option<Quota>,
    /// The NUMA nodes that were written to `cpuset.mems` before we chose some; empty where nothing had been.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub numa: Option<CpuSet>,
}

/// A mark that can't be read.
#[derive(Debug, thiserror::Error)]
pub enum MarkError {
    /// It is not what Pinfold writes.
    #[error("the mark {text:?} is not one of Pinfold's")]
    Malformed {
        /// The mark.
        text: String,
        /// What is wrong with it.
        source: serde_json::Error,
    },
    /// It was written by a later version.
    #[error(
        "the mark has version {version}, and this Pinfold knows version {VERSION} only: run the later one"
    )]
    Version {
        /// Its version.
        version: u32,
    },
}

// === impl Mark ===

impl Mark {
    /// A mark without claims.
    pub fn new(before: Before) -> Self {
        Self {
            version: VERSION,
            namespace: String::new(),
            pod: String::new(),
            claims: BTreeMap::new(),
            by_id: false,
            confirmed: false,
            before,
        }
    }

    /// Reads the text of a mark.
    pub fn parse(text: &str) -> Result<Self, MarkError> {
        let mark: Self = serde_json::from_str(text).map_err(|source| MarkError::Malformed {
            text: text.to_owned(),
            source,
        })?;
        if mark.version == VERSION {
            Ok(mark)
        } else {
            Err(MarkError::Version {
                version: mark.version,
            })
        }
    }

    /// All CPUs it claims.
    pub fn cpus(&self) -> CpuSet {
        union(self.claims.values())
    }

    /// The text to be kept.
    pub fn text(&self) -> String {
        // Strings, numbers and maps with string keys always serialise.
        serde_json::to_string(self).unwrap_or_default()
    }
}

/// The name under which a pod claims CPUs that nobody is to use: the siblings of those that its containers own. No
/// container can be called so.
pub(super) const IDLE: &str = "/idle";

/// What a pod's containers can use of its claims.
pub(super) fn usable(claims: &BTreeMap<String, CpuSet>) -> CpuSet {
    union(
        claims
            .iter()
            .filter(|(name, _)| *name != IDLE)
            .map(|(_, cpus)| cpus),
    )
}

/// The CPUs in any of several sets.
pub(super) fn union<'a>(sets: impl Iterator<Item = &'a CpuSet>) -> CpuSet {
    sets.fold(CpuSet::new(), |all, set| all.union(set))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_back() {
        let quota = Some(Quota {
            quota: Some(200_000),
            period: 100_000,
        });
        let mut mark = Mark::new(Before {
            cpus: "0-7".parse().unwrap(),
            quota,
            numa: None,
        });
        mark.claims
            .insert("main".to_owned(), "2-3".parse().unwrap());
        assert_eq!(Mark::parse(&mark.text()).unwrap(), mark);
        assert!(
            mark.text().contains(r#""claims":{"main":"2-3"}"#),
            "{}",
            mark.text()
        );
    }

    #[test]
    fn foreign_marks_are_named() {
        assert!(matches!(
            Mark::parse("hello"),
            Err(MarkError::Malformed { .. })
        ));
        let later = r#"{"version":2,"before":{"cpus":""}}"#;
        assert!(matches!(
            Mark::parse(later),
            Err(MarkError::Version { version: 2 })
        ));
    }
}
