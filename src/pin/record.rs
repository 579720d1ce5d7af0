//! [`AssignmentRecord`]: Pinfold's record on a cgroup, in an extended attribute that lasts as long
//! as the cgroup.
//!
//! A record holds the CPUs of each container and the cgroup's earlier settings, so that a restarted
//! agent knows all assignments, and a release can restore all settings. Pinfold keeps no state
//! file, which could contradict the kernel.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::assignment::PodAssignment;
use crate::cpu::CpuSet;
use crate::host::cgroup::Quota;

/// The format version of assignment records and of CPU isolation's records, the only one so far.
pub(super) const VERSION: u32 = 1;

/// Pinfold's record on the cgroup of a pod or a container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AssignmentRecord {
    version: u32,
    /// Namespace of the pod, if known.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// Name of the pod, if known.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub pod: String,
    /// The exclusive CPUs. A pod's cgroup has those of all its containers, and a container's cgroup
    /// has those of at most one container.
    #[serde(
        rename = "claims",
        default,
        with = "assignments",
        skip_serializing_if = "PodAssignment::is_empty"
    )]
    pub assignment: PodAssignment,
    /// [`PodAssignment::by_kubelet`] in the text of a record; empty in every other place. Earlier
    /// versions skip it.
    #[serde(
        rename = "kubelet",
        default,
        skip_serializing_if = "BTreeSet::is_empty"
    )]
    by_kubelet: BTreeSet<String>,
    /// Whether a status or the container runtime identified the container by its runtime id.
    /// Records of earlier versions lack this, and some of them lie on a sandbox's cgroup.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub by_id: bool,
    /// On a static pod's cgroup: whether the container runtime has told namespace and name. What a
    /// mirror pod alone says is no evidence.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub confirmed: bool,
    /// The cgroup's settings from before Pinfold's first write.
    pub before: EarlierSettings,
}

/// A cgroup's settings from before Pinfold's first write.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct EarlierSettings {
    /// `cpuset.cpus`; empty if the set was unwritten (cgroup v2).
    pub cpus: CpuSet,
    /// The quota before Pinfold lifted it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quota: Option<Quota>,
    /// The NUMA nodes in `cpuset.mems` before Pinfold's first choice; empty if the set was
    /// unwritten. `None` if Pinfold never bound the memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub numa: Option<CpuSet>,
}

#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The text is damaged, or no record of Pinfold.
    #[error("its record {text:?} is damaged or not from Pinfold")]
    Malformed {
        text: String,
        /// The parser's error.
        source: serde_json::Error,
    },
    #[error(
        "a later version of Pinfold wrote its record (version {version}; this one reads version {VERSION}): run that version \
         again, or end the pod"
    )]
    Version { version: u32 },
}

// === impl RecordError ===

impl RecordError {
    pub(super) fn malformed(text: &str) -> impl Fn(serde_json::Error) -> Self {
        move |source| Self::Malformed {
            text: text.to_owned(),
            source,
        }
    }
}

/// Checks a record's version. The version is read before anything else, because a later version may have other fields.
///
/// # Errors
/// The text is no record, or a later version of Pinfold wrote it.
pub(super) fn check_version(text: &str) -> Result<(), RecordError> {
    #[derive(Deserialize)]
    struct Versioned {
        version: u32,
    }
    let Versioned { version } = serde_json::from_str(text).map_err(RecordError::malformed(text))?;
    match version {
        VERSION => Ok(()),
        version => Err(RecordError::Version { version }),
    }
}

// === impl AssignmentRecord ===

impl AssignmentRecord {
    pub fn new(before: EarlierSettings) -> Self {
        Self {
            version: VERSION,
            namespace: String::new(),
            pod: String::new(),
            assignment: PodAssignment::default(),
            by_kubelet: BTreeSet::new(),
            by_id: false,
            confirmed: false,
            before,
        }
    }

    pub fn parse(text: &str) -> Result<Self, RecordError> {
        check_version(text)?;
        let mut record: Self = serde_json::from_str(text).map_err(RecordError::malformed(text))?;
        record.assignment.by_kubelet = std::mem::take(&mut record.by_kubelet);
        Ok(record)
    }

    pub fn cpus(&self) -> CpuSet {
        self.assignment.cpus()
    }

    /// The text for the extended attribute.
    pub fn text(&self) -> String {
        let written = Self {
            by_kubelet: self.assignment.by_kubelet.clone(),
            ..self.clone()
        };
        // Serialisation of strings, numbers and maps with string keys always succeeds.
        serde_json::to_string(&written).unwrap_or_default()
    }

    /// Whether the kubelet chose any of the CPUs. The sets of such a cgroup are the kubelet's.
    pub(super) fn is_of_kubelet(&self) -> bool {
        !self.assignment.by_kubelet.is_empty()
    }
}

/// Assignments as JSON: the CPUs of each container by name, and the idle CPUs under a name that no
/// container can have.
mod assignments {
    use std::collections::BTreeMap;

    use serde::{Deserialize, Deserializer, Serializer};

    use super::{CpuSet, PodAssignment};

    const IDLE: &str = "/idle";

    pub(super) fn serialize<S: Serializer>(
        assignment: &PodAssignment,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        let entries = assignment.entries();
        serializer.collect_map(entries.map(|(name, cpus)| (name.unwrap_or(IDLE), cpus)))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<PodAssignment, D::Error> {
        let mut containers: BTreeMap<String, CpuSet> = BTreeMap::deserialize(deserializer)?;
        let idle = containers.remove(IDLE).unwrap_or_default();
        Ok(PodAssignment {
            containers,
            idle,
            ..PodAssignment::default()
        })
    }
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
        let mut record = AssignmentRecord::new(EarlierSettings {
            cpus: "0-7".parse().unwrap(),
            quota,
            numa: None,
        });
        record
            .assignment
            .containers
            .insert("main".to_owned(), "2-3".parse().unwrap());
        assert_eq!(AssignmentRecord::parse(&record.text()).unwrap(), record);
        assert!(
            record.text().contains(r#""claims":{"main":"2-3"}"#),
            "{}",
            record.text()
        );
    }

    #[test]
    fn a_record_says_whose_choice_the_cpus_were() {
        let mut record = AssignmentRecord::new(EarlierSettings::default());
        record
            .assignment
            .add_of_kubelet("main", "2-3".parse().unwrap());
        let text = record.text();
        assert!(text.contains(r#""kubelet":["main"]"#), "{text}");
        assert_eq!(AssignmentRecord::parse(&text).unwrap(), record);
    }

    #[test]
    fn foreign_marks_are_named() {
        assert!(matches!(
            AssignmentRecord::parse("hello"),
            Err(RecordError::Malformed { .. })
        ));
        let later = r#"{"version":2,"before":{"cpus":""}}"#;
        assert!(matches!(
            AssignmentRecord::parse(later),
            Err(RecordError::Version { version: 2 })
        ));
        // A later version may write other fields, or other forms of the same fields.
        for later in [
            r#"{"version":3}"#,
            r#"{"version":2,"claims":[{"container":"main","cpus":[2,3]}],"before":null}"#,
        ] {
            let error = AssignmentRecord::parse(later).unwrap_err();
            assert!(matches!(error, RecordError::Version { .. }), "{later}");
        }
        for damaged in ["", "{", "[]", r#"{"version":"1"}"#, r#"{"version":1}"#] {
            let error = AssignmentRecord::parse(damaged).unwrap_err();
            assert!(matches!(error, RecordError::Malformed { .. }), "{damaged}");
        }
    }

    #[test]
    fn idle_cpus_are_written_as_every_version_so_far_has_written_them() {
        let text = r#"{"version":1,"namespace":"train","pod":"w","claims":{"/idle":"6-7","main":"2-3"},"before":{"cpus":"0-7"}}"#;
        let record = AssignmentRecord::parse(text).unwrap();
        assert_eq!(record.assignment.idle, "6-7".parse().unwrap());
        assert_eq!(record.assignment.usable(), "2-3".parse().unwrap());
        assert_eq!(record.cpus(), "2-3,6-7".parse().unwrap());
        assert_eq!(record.text(), text);
    }
}
