//! [`Status`]: what `/status` says, as far as it is drawn; its texts come from others, and are made safe to draw.

use std::fmt;

use serde::{Deserialize, Deserializer};

use crate::cpu::{CpuSet, Layout};

/// A text that holds no control character and none that would turn round the text after it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub(super) struct Clean(String);

// === impl Clean ===

impl Clean {
    /// What would act on a terminal becomes a sign that something was there; what is too long for any screen is cut.
    pub(super) fn new(text: &str) -> Self {
        let acts = |c: char| {
            c.is_control()
                || matches!(c, '\u{ad}' | '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
        };
        Self(text.chars().take(LONGEST).map(|c| if acts(c) { '\u{fffd}' } else { c }).collect())
    }

    pub(super) fn as_str(&self) -> &str {
        &self.0
    }
}

/// No sentence that is worth reading is longer.
const LONGEST: usize = 2000;

impl fmt::Display for Clean {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Clean {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(|text| Self::new(&text))
    }
}

/// What an agent says of its node.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Status {
    pub(super) enforcement: Clean,
    pub(super) online: CpuSet,
    pub(super) reserved: CpuSet,
    pub(super) shared: CpuSet,
    pub(super) exclusive: CpuSet,
    #[serde(default)]
    pub(super) lost: CpuSet,
    /// Empty from an agent that does not tell it yet.
    #[serde(default)]
    pub(super) layout: Layout,
    pub(super) containers: Vec<Container>,
    #[serde(default)]
    pub(super) strangers: Vec<Stranger>,
    #[serde(default)]
    pub(super) drift: Vec<Drift>,
    #[serde(default)]
    pub(super) unexplained: Vec<Clean>,
    #[serde(default)]
    pub(super) errors: Vec<Clean>,
    pub(super) cluster: Option<Cluster>,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Container {
    pub(super) namespace: Clean,
    pub(super) pod: Clean,
    pub(super) container: Clean,
    pub(super) uid: Option<Clean>,
    pub(super) role: Clean,
    pub(super) job: Option<Clean>,
    pub(super) qos: Clean,
    pub(super) assigned: Option<CpuSet>,
    pub(super) effective: Option<CpuSet>,
    pub(super) cgroup: Option<String>,
    pub(super) running: bool,
    pub(super) note: Option<Clean>,
    pub(super) window_seconds: Option<f64>,
    pub(super) seen: Option<Seen>,
}

/// What is seen of a container's threads.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Seen {
    pub(super) threads: u64,
    pub(super) runnable: Option<f64>,
    pub(super) verdict: Option<Verdict>,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(super) struct Verdict {
    pub(super) finding: Clean,
    pub(super) sentence: Clean,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(super) struct Stranger {
    pub(super) namespace: Clean,
    pub(super) pod: Clean,
    pub(super) cgroup: Clean,
    pub(super) cpus: CpuSet,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(super) struct Drift {
    pub(super) path: Clean,
    pub(super) cause: Clean,
    pub(super) assigned: CpuSet,
    pub(super) effective: CpuSet,
}

/// How it stands with the Kubernetes API.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(super) struct Cluster {
    pub(super) node: Option<Clean>,
    pub(super) trouble: Option<Clean>,
}

// === impl Status ===

impl Status {
    /// Reads what an agent has answered.
    ///
    /// # Errors
    /// Something else has answered, or an agent of another version.
    pub(super) fn parse(body: &[u8]) -> anyhow::Result<Self> {
        serde_json::from_slice(body).map_err(|error| {
            anyhow::anyhow!("what answers is no agent, or one of another version (/status: {error})")
        })
    }

    /// What a person should know of the node, in sentences.
    pub(super) fn troubles(&self) -> Vec<String> {
        let mut troubles: Vec<String> = self.errors.iter().map(ToString::to_string).collect();
        if !self.lost.is_empty() {
            troubles.push(format!("CPUs {} are lost to the kernel until the next boot", self.lost));
        }
        troubles.extend(self.drift.iter().map(|drift| {
            format!(
                "drift ({}): {} has {} instead of {}",
                drift.cause, drift.path, drift.effective, drift.assigned
            )
        }));
        troubles.extend(self.unexplained.iter().map(ToString::to_string));
        troubles.extend(
            self.cluster
                .iter()
                .filter_map(|cluster| cluster.trouble.as_ref())
                .map(|why| format!("API: {why}")),
        );
        troubles
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_acts_on_a_terminal_comes_through() {
        let clean = Clean::new("worker\u{1b}[2J\u{7}-0\r\n\u{9b}31m\u{202e}x\u{200b}é漢");
        assert_eq!(
            clean.as_str(),
            "worker\u{fffd}[2J\u{fffd}-0\u{fffd}\u{fffd}\u{fffd}31m\u{fffd}x\u{fffd}é漢"
        );
        assert_eq!(Clean::new(&"x".repeat(1 << 20)).as_str().len(), LONGEST);
    }

    #[test]
    fn what_is_no_status_is_said_to_be_none() {
        for body in ["", "{}", "[]", "not ready\n", r#"{"enforcement": "cpuset", "online": "x"}"#] {
            let error = Status::parse(body.as_bytes()).unwrap_err().to_string();
            assert!(error.contains("no agent, or one of another version"), "{error}");
        }
    }
}
