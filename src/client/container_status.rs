//! [`StatusContainer`]: a container in `/status`, as every reader of a running agent reads it.
//!
//! The agent writes its own types (`Snapshot`), in which a role or a cause is one of a list. A
//! reader takes each name as text instead, because an agent of a newer version may have one more,
//! and its node must not vanish from the screen for it.

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Deserializer};

use crate::cpu::CpuSet;
use crate::text::terminal::is_unsafe;

/// A text without control characters, characters that change the text direction, and invisible characters.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub(crate) struct SafeText(Arc<str>);

// === impl SafeText ===

impl SafeText {
    /// Replaces each character that acts on a terminal by U+FFFD, and cuts a text that is too long for a screen.
    pub(crate) fn new(text: &str) -> Self {
        let is_unsafe = |c: char| {
            is_unsafe(c)
                // Combining characters have no width; a text may hold any number of them.
                || !c.is_ascii() && console::measure_text_width(c.encode_utf8(&mut [0; 4])) == 0
        };
        let safe = text.chars().take(MAX_TEXT_CHARS).map(|c| {
            if is_unsafe(c) {
                char::REPLACEMENT_CHARACTER
            } else {
                c
            }
        });
        Self(safe.collect::<String>().into())
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

/// The longest text, in characters.
const MAX_TEXT_CHARS: usize = 2000;

impl Borrow<str> for SafeText {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for SafeText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for SafeText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(|text| Self::new(&text))
    }
}

/// What an agent of an earlier version does not report is `None`, empty or false.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct StatusContainer {
    pub(crate) namespace: SafeText,
    pub(crate) pod: SafeText,
    pub(crate) container: SafeText,
    pub(crate) uid: Option<SafeText>,
    pub(crate) role: SafeText,
    #[serde(default)]
    pub(crate) evidence: SafeText,
    pub(crate) job: Option<SafeText>,
    pub(crate) qos: SafeText,
    #[serde(default)]
    pub(crate) entitlement: StatusEntitlement,
    pub(crate) assigned: Option<CpuSet>,
    pub(crate) effective: Option<CpuSet>,
    pub(crate) partition: Option<SafeText>,
    pub(crate) numa: Option<CpuSet>,
    pub(crate) memory: Option<CpuSet>,
    pub(crate) cgroup: Option<SafeText>,
    pub(crate) running: bool,
    #[serde(default)]
    pub(crate) created: bool,
    #[serde(default)]
    pub(crate) threads: StatusEnvironment,
    /// The assigned CPUs of each local process.
    pub(crate) ranks: Option<StatusRanks>,
    /// Variables that the agent put into the environment; `None` without a runtime request.
    pub(crate) injected: Option<Vec<SafeText>>,
    pub(crate) note: Option<SafeText>,
    /// What the program should do differently on its assigned CPUs.
    #[serde(default)]
    pub(crate) bindings: Vec<SafeText>,
    pub(crate) unpinned_seconds: Option<f64>,
    pub(crate) observed: Option<StatusThreads>,
}

// === impl StatusContainer ===

#[cfg(feature = "top")]
impl StatusContainer {
    /// Whether the container runs without the thread variables that the agent computes, because no agent was asked when it was
    /// created.
    pub(crate) fn lacks_variables(&self) -> bool {
        let is_without = self.injected.as_ref().is_some_and(Vec::is_empty);
        self.running && is_without && !self.threads.variables.is_empty()
    }
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct StatusEntitlement {
    pub(crate) kind: SafeText,
    pub(crate) cpus: u32,
    pub(crate) reason: SafeText,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct StatusEnvironment {
    /// The variables that the agent computed.
    pub(crate) variables: BTreeMap<SafeText, SafeText>,
    /// The variables that the pod sets, and that stay.
    pub(crate) kept: Vec<SafeText>,
    pub(crate) reason: SafeText,
    /// Thread counts in the command line.
    #[serde(rename = "byCommand")]
    pub(crate) by_command: Vec<SafeText>,
    /// Why the variables may not reach the programs.
    pub(crate) caution: Option<SafeText>,
}

/// How the container's CPUs are divided among its processes.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(crate) struct StatusRanks {
    pub(crate) variables: BTreeMap<SafeText, SafeText>,
    pub(crate) reason: SafeText,
}

/// The threads of a running container.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct StatusThreads {
    #[serde(rename = "threads")]
    pub(crate) count: u64,
    pub(crate) runnable: Option<f64>,
    pub(crate) allowed_by_tasks: Option<CpuSet>,
    /// Threads that may run on only a part of the container's CPUs.
    pub(crate) bound: Option<u64>,
    /// The thread variables in the environment of the program.
    pub(crate) variables: Option<BTreeMap<SafeText, SafeText>>,
    pub(crate) verdict: Option<StatusVerdict>,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(crate) struct StatusVerdict {
    pub(crate) finding: SafeText,
    pub(crate) sentence: SafeText,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_that_act_on_a_terminal_are_replaced() {
        let safe = SafeText::new("worker\u{1b}[2J\u{7}-0\r\n\u{9b}31m\u{202e}x\u{200b}é漢");
        assert_eq!(
            safe.as_str(),
            "worker\u{fffd}[2J\u{fffd}-0\u{fffd}\u{fffd}\u{fffd}31m\u{fffd}x\u{fffd}é漢"
        );
        assert_eq!(
            SafeText::new(&"x".repeat(1 << 20)).as_str().len(),
            MAX_TEXT_CHARS
        );
        assert_eq!(
            SafeText::new("e\u{301}\u{301}\u{fe0f}\u{e0041}.").as_str(),
            "e\u{fffd}\u{fffd}\u{fffd}\u{fffd}."
        );
    }
}
