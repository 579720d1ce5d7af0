//! [`Status`]: what `/status` says, as far as it is drawn; its texts come from others, and are made safe to draw.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

use crate::cpu::{CpuSet, Layout};

/// A text that holds no control character, none that would turn round the text after it, and none that can't be seen.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub(super) struct Clean(Arc<str>);

// === impl Clean ===

impl Clean {
    /// What would act on a terminal becomes a sign that something was there; what is too long for any screen is cut.
    pub(super) fn new(text: &str) -> Self {
        let acts = |c: char| {
            c.is_control()
                || matches!(c, '\u{ad}' | '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
                // Signs on top of others, as many as one likes, are no text of ours.
                || !c.is_ascii() && console::measure_text_width(c.encode_utf8(&mut [0; 4])) == 0
        };
        let clean = text.chars().take(LONGEST).map(|c| {
            if acts(c) {
                char::REPLACEMENT_CHARACTER
            } else {
                c
            }
        });
        Self(clean.collect::<String>().into())
    }

    pub(super) fn as_str(&self) -> &str {
        &self.0
    }
}

/// No sentence that is worth reading is longer.
const LONGEST: usize = 2000;

/// No node has more containers, nor more of anything else that is listed: more is nothing that an agent says.
const MOST: usize = 20_000;

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
    #[serde(default, deserialize_with = "together")]
    pub(super) layout: Layout,
    #[serde(deserialize_with = "few")]
    pub(super) containers: Vec<Container>,
    #[serde(default, deserialize_with = "few")]
    pub(super) strangers: Vec<Stranger>,
    #[serde(default, deserialize_with = "few")]
    pub(super) drift: Vec<Drift>,
    #[serde(default, deserialize_with = "few")]
    pub(super) unexplained: Vec<Clean>,
    #[serde(default, deserialize_with = "few")]
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
    pub(super) cgroup: Option<Clean>,
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

/// A list that is not too long to be one of a node: short texts stand for sets that take much more room.
fn few<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<Vec<T>, D::Error> {
    struct Few<T>(PhantomData<T>);

    impl<'de, T: Deserialize<'de>> Visitor<'de> for Few<T> {
        type Value = Vec<T>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "a list of at most {MOST}")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut all: A) -> Result<Vec<T>, A::Error> {
            let mut list = Vec::new();
            while let Some(one) = all.next_element()? {
                if list.len() == MOST {
                    return Err(A::Error::custom(format_args!("a list of more than {MOST}")));
                }
                list.push(one);
            }
            Ok(list)
        }
    }

    deserializer.deserialize_seq(Few(PhantomData))
}

/// Which CPUs are together, as far as it is drawn.
fn together<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Layout, D::Error> {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Together {
        #[serde(deserialize_with = "few")]
        cores: Vec<CpuSet>,
        #[serde(deserialize_with = "few")]
        llcs: Vec<CpuSet>,
        numa: BTreeMap<u32, String>,
    }

    let Together { cores, llcs, numa } = Together::deserialize(deserializer)?;
    if numa.len() > MOST {
        return Err(D::Error::custom(format_args!(
            "more than {MOST} NUMA nodes"
        )));
    }
    let set = |(id, cpus): (u32, String)| {
        cpus.parse()
            .map(|cpus| (id, cpus))
            .map_err(D::Error::custom)
    };
    let numa = numa.into_iter().map(set).collect::<Result<_, _>>()?;
    Ok(Layout {
        cores,
        llcs,
        numa,
        sockets: Vec::new(),
    })
}

// === impl Status ===

impl Status {
    /// Reads what an agent has answered.
    ///
    /// # Errors
    /// Something else has answered, or an agent of another version.
    pub(super) fn parse(body: &[u8]) -> anyhow::Result<Self> {
        serde_json::from_slice(body).map_err(|error| {
            anyhow::anyhow!(
                "what answers is no agent, or one of another version (/status: {error})"
            )
        })
    }

    /// What a person should know of the node, in sentences.
    pub(super) fn troubles(&self) -> impl Iterator<Item = String> {
        let lost = (!self.lost.is_empty()).then(|| {
            format!(
                "lost to the kernel until the next boot: {}",
                self.lost.in_words()
            )
        });
        let drift = self.drift.iter().map(|drift| {
            format!(
                "drift ({}): {} has {} instead of {}",
                drift.cause, drift.path, drift.effective, drift.assigned
            )
        });
        let errors = self.errors.iter().map(ToString::to_string);
        let unexplained = self.unexplained.iter().map(ToString::to_string);
        errors
            .chain(lost)
            .chain(drift)
            .chain(unexplained)
            .chain(self.api().map(|why| format!("API: {why}")))
    }

    /// How many sentences these are.
    pub(super) fn trouble_count(&self) -> usize {
        self.errors.len()
            + usize::from(!self.lost.is_empty())
            + self.drift.len()
            + self.unexplained.len()
            + usize::from(self.api().is_some())
    }

    fn api(&self) -> Option<&Clean> {
        self.cluster.as_ref()?.trouble.as_ref()
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
        assert_eq!(
            Clean::new("e\u{301}\u{301}\u{fe0f}\u{e0041}.").as_str(),
            "e\u{fffd}\u{fffd}\u{fffd}\u{fffd}."
        );
    }

    const EMPTY: &str = r#"{"enforcement": "cpuset", "online": "0", "reserved": "", "shared": "0", "exclusive": "", "containers": [], MORE}"#;

    #[test]
    fn lists_without_end_are_refused() {
        let parse = |more: &str| Status::parse(EMPTY.replace("MORE", more).as_bytes());
        let sets = vec![r#""8191""#; MOST + 1].join(",");
        let numa: Vec<String> = (0..=MOST).map(|id| format!(r#""{id}": "1""#)).collect();
        for more in [
            format!(r#""errors": [{sets}]"#),
            format!(r#""layout": {{"cores": [{sets}]}}"#),
            format!(r#""layout": {{"numa": {{{}}}}}"#, numa.join(",")),
        ] {
            assert!(
                parse(&more)
                    .unwrap_err()
                    .to_string()
                    .contains("more than 20000"),
                "{}",
                &more[..30]
            );
        }
        let status = parse(&format!(r#""errors": [{}]"#, &sets[..sets.len() - 7])).unwrap();
        assert_eq!(
            (status.trouble_count(), status.troubles().count()),
            (MOST, MOST)
        );
        assert!(
            parse(r#""layout": {"numa": {"0": "x"}}"#)
                .unwrap_err()
                .to_string()
                .contains("CPU list")
        );
        let nested = format!(r#""more": {}"#, "[".repeat(1 << 20));
        assert!(parse(&nested).is_err());
    }

    #[test]
    fn troubles_are_counted_as_they_are_told() {
        let more = r#""errors": ["a"], "lost": "1", "unexplained": ["b"], "cluster": {"node": null, "trouble": "c"},
            "drift": [{"path": "p", "cause": "restart", "assigned": "0", "effective": "1"}]"#;
        let status = Status::parse(EMPTY.replace("MORE", more).as_bytes()).unwrap();
        let told: Vec<String> = status.troubles().collect();
        assert_eq!(told.len(), status.trouble_count(), "{told:?}");
        assert_eq!(told.last().unwrap(), "API: c");
    }

    #[test]
    fn what_is_no_status_is_said_to_be_none() {
        for body in [
            "",
            "{}",
            "[]",
            "not ready\n",
            r#"{"enforcement": "cpuset", "online": "x"}"#,
        ] {
            let error = Status::parse(body.as_bytes()).unwrap_err().to_string();
            assert!(
                error.contains("no agent, or one of another version"),
                "{error}"
            );
        }
    }
}
