//! [`AgentStatus`]: what `top` and `pinfold status` read of `/status`.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::container_status::{SafeText, StatusContainer};
use super::full_status;
use crate::cpu::{CpuSet, Layout};
use crate::text::{counted, parse_errors};

/// The longest accepted list. No node has this many containers, or entries of another list.
const MAX_ENTRIES: usize = 20_000;

/// How many containers a sentence names.
const MAX_NAMES: usize = 3;

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct AgentStatus {
    pub(crate) enforcement: SafeText,
    pub(crate) online: CpuSet,
    pub(crate) reserved: CpuSet,
    pub(crate) shared: CpuSet,
    pub(crate) exclusive: CpuSet,
    /// Empty if the agent's version does not report such CPUs.
    #[serde(default)]
    pub(crate) withheld: CpuSet,
    #[serde(default)]
    pub(crate) lost: CpuSet,
    /// Empty if the agent's version does not report the layout.
    #[serde(default, deserialize_with = "layout")]
    pub(crate) layout: Layout,
    #[serde(deserialize_with = "bounded_list")]
    pub(crate) containers: Vec<StatusContainer>,
    #[serde(default, deserialize_with = "bounded_list")]
    pub(crate) unknown_owners: Vec<StatusUnknownOwner>,
    #[serde(default, deserialize_with = "bounded_list")]
    pub(crate) drift: Vec<StatusDrift>,
    #[serde(default, deserialize_with = "bounded_list")]
    pub(crate) unexplained: Vec<SafeText>,
    #[serde(default, deserialize_with = "bounded_list")]
    pub(crate) errors: Vec<SafeText>,
    pub(crate) cluster: Option<StatusCluster>,
    pub(crate) runtime: Option<StatusRuntime>,
    /// `None` where Pinfold gives no CPUs, and if the agent's version does not report it.
    pub(crate) capacity: Option<StatusCapacity>,
}

/// What the node can give, compared with what the scheduler counts.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct StatusCapacity {
    promises_too_much: Option<bool>,
    sentence: SafeText,
    remedy: Option<SafeText>,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(crate) struct StatusUnknownOwner {
    pub(crate) namespace: SafeText,
    pub(crate) pod: SafeText,
    pub(crate) cgroup: SafeText,
    pub(crate) cpus: CpuSet,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(crate) struct StatusDrift {
    pub(crate) path: SafeText,
    pub(crate) cause: SafeText,
    pub(crate) assigned: CpuSet,
    pub(crate) effective: CpuSet,
}

/// The agent's connection to the Kubernetes API.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct StatusCluster {
    pub(crate) node: Option<SafeText>,

    pub(crate) problem: Option<SafeText>,
    /// Why the Node still has its startup taint.
    pub(crate) startup_taint: Option<SafeText>,
}

/// The agent's connection to the container runtime.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(crate) struct StatusRuntime {
    pub(crate) problem: Option<SafeText>,
}

/// Reads a list of at most [`MAX_ENTRIES`], which bounds the memory: a short text can stand for a
/// large CPU set.
fn bounded_list<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<Vec<T>, D::Error> {
    struct BoundedList<T>(PhantomData<T>);

    impl<'de, T: Deserialize<'de>> Visitor<'de> for BoundedList<T> {
        type Value = Vec<T>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "a list of at most {MAX_ENTRIES} entries")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut all: A) -> Result<Vec<T>, A::Error> {
            let mut list = Vec::new();
            while let Some(entry) = all.next_element()? {
                if list.len() == MAX_ENTRIES {
                    return Err(A::Error::custom(format_args!(
                        "a list of more than {MAX_ENTRIES} entries"
                    )));
                }
                list.push(entry);
            }
            Ok(list)
        }
    }

    deserializer.deserialize_seq(BoundedList(PhantomData))
}

/// Reads the parts of the layout that the CPU map shows.
fn layout<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Layout, D::Error> {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Groups {
        #[serde(deserialize_with = "bounded_list")]
        cores: Vec<CpuSet>,
        #[serde(deserialize_with = "bounded_list")]
        llcs: Vec<CpuSet>,
        numa: BTreeMap<u32, String>,
    }

    let Groups { cores, llcs, numa } = Groups::deserialize(deserializer)?;
    if numa.len() > MAX_ENTRIES {
        return Err(D::Error::custom(format_args!(
            "more than {MAX_ENTRIES} NUMA nodes"
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

// === impl AgentStatus ===

impl AgentStatus {
    /// Parses the body of `/status`.
    ///
    /// # Errors
    /// The body is not the status of an agent, or of an agent of another version, or is the short form for other hosts.
    pub(crate) fn parse(body: &[u8]) -> anyhow::Result<Self> {
        full_status::check(body)?;
        serde_json::from_slice(body).map_err(|error| {
            anyhow::anyhow!(
                "the server is not a Pinfold agent, or the agent has a different version (/status: {})",
                parse_errors::json(&error)
            )
        })
    }

    /// The problems of the node, a sentence each.
    pub(crate) fn problems(&self) -> impl Iterator<Item = String> {
        let lost = (!self.lost.is_empty()).then(|| {
            format!(
                "lost to the kernel until the next boot: {}",
                self.lost.in_words()
            )
        });
        let drift = self.drift.iter().map(|drift| self.drift_in_words(drift));
        let errors = self.errors.iter().map(ToString::to_string);
        let unexplained = self.unexplained.iter().map(ToString::to_string);
        errors
            .chain(lost)
            .chain(drift)
            .chain(unexplained)
            .chain(self.api_problem().map(|problem| format!("API: {problem}")))
            .chain(self.startup_taint().map(ToString::to_string))
            .chain(self.runtime_problem().map(ToString::to_string))
    }

    fn drift_in_words(&self, drift: &StatusDrift) -> String {
        let StatusDrift {
            path,
            cause,
            assigned,
            effective,
        } = drift;
        // People know containers by name; the cgroup's name is a hash.
        let containers = self.containers.iter();
        let mut here = containers.filter(|container| container.cgroup.as_ref() == Some(path));
        let name = here.next().map_or_else(
            || path.to_string(),
            |container| {
                let StatusContainer {
                    namespace,
                    pod,
                    container,
                    ..
                } = container;
                format!("container {container} of {namespace}/{pod}")
            },
        );
        if effective == assigned {
            return format!("drift ({cause}): {name} has {effective}, but not for itself alone");
        }
        format!("drift ({cause}): {name} has {effective} instead of {assigned}")
    }

    /// The number of [`Self::problems`].
    pub(crate) fn problem_count(&self) -> usize {
        self.errors.len()
            + usize::from(!self.lost.is_empty())
            + self.drift.len()
            + self.unexplained.len()
            + usize::from(self.api_problem().is_some())
            + usize::from(self.startup_taint().is_some())
            + usize::from(self.runtime_problem().is_some())
    }

    /// Why pods may come that find no CPUs, and the remedy. The pods that are here have no problem.
    pub(crate) fn capacity_warning(&self) -> Option<String> {
        let capacity = self.capacity.as_ref()?;
        let StatusCapacity {
            sentence, remedy, ..
        } = capacity;
        let remedy = remedy
            .as_ref()
            .map_or_else(String::new, |remedy| format!("; {remedy}"));
        (capacity.promises_too_much == Some(true)).then(|| format!("capacity: {sentence}{remedy}"))
    }

    /// The running containers that lack thread variables, with the remedy. They run on the right CPUs, and nothing can be
    /// added to a container that exists.
    pub(crate) fn variables_warning(&self) -> Option<String> {
        let lacking = self.containers.iter().filter(|one| one.lacks_variables());
        let names: Vec<String> = lacking
            .map(|one| format!("{} of {}/{}", one.container, one.namespace, one.pod))
            .collect();
        let (first, more) = names.split_at(names.len().min(MAX_NAMES));
        let more = match more.len() {
            0 => String::new(),
            count => format!(" and {count} more"),
        };
        let (run, they, pods) = match names.len() {
            0 => return None,
            1 => ("runs", "it was", "its pod gets"),
            _ => ("run", "they were", "their pods get"),
        };
        Some(format!(
            "threads: {} {run} without thread variables, because no agent added them when {they} created ({}{more}); {pods} \
             them with the next start",
            counted(names.len(), "container"),
            first.join(", ")
        ))
    }

    fn runtime_problem(&self) -> Option<&SafeText> {
        self.runtime.as_ref()?.problem.as_ref()
    }

    fn startup_taint(&self) -> Option<&SafeText> {
        self.cluster.as_ref()?.startup_taint.as_ref()
    }

    fn api_problem(&self) -> Option<&SafeText> {
        self.cluster.as_ref()?.problem.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EMPTY: &str = r#"{"enforcement": "cpuset", "online": "0", "reserved": "", "shared": "0", "exclusive": "", "containers": [], MORE}"#;

    #[test]
    fn long_lists_are_refused() {
        let parse = |more: &str| AgentStatus::parse(EMPTY.replace("MORE", more).as_bytes());
        let sets = vec![r#""8191""#; MAX_ENTRIES + 1].join(",");
        let numa: Vec<String> = (0..=MAX_ENTRIES)
            .map(|id| format!(r#""{id}": "1""#))
            .collect();
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
            (status.problem_count(), status.problems().count()),
            (MAX_ENTRIES, MAX_ENTRIES)
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
    fn the_count_of_problems_is_the_number_of_sentences() {
        let more = r#""errors": ["a"], "lost": "1", "unexplained": ["b"], "cluster": {"node": null, "problem": "c", "startupTaint": "t"},
            "runtime": {"socket": "s", "state": "away", "problem": "d"},
            "drift": [{"path": "p", "cause": "restart", "assigned": "0", "effective": "1"}]"#;
        let status = AgentStatus::parse(EMPTY.replace("MORE", more).as_bytes()).unwrap();
        let problems: Vec<String> = status.problems().collect();
        assert_eq!(problems.len(), status.problem_count(), "{problems:?}");
        assert_eq!(problems[problems.len() - 3..], ["API: c", "t", "d"]);
        let without = EMPTY.replace(
            "MORE",
            r#""runtime": {"state": "synchronized", "problem": null}"#,
        );
        assert_eq!(
            AgentStatus::parse(without.as_bytes())
                .unwrap()
                .problem_count(),
            0
        );
    }

    #[test]
    fn a_scheduler_that_counts_too_many_cpus_is_a_warning() {
        let warning = |capacity: &str| {
            let body = EMPTY.replace("MORE", capacity);
            let status = AgentStatus::parse(body.as_bytes()).unwrap();
            assert_eq!(status.problem_count(), 0);
            status.capacity_warning()
        };
        let more = r#""capacity": {"promisesTooMuch": true, "sentence": "a, but b", "remedy": "set c", "assignable": 3}"#;
        assert_eq!(warning(more).as_deref(), Some("capacity: a, but b; set c"));
        for none in [
            r#""capacity": {"promisesTooMuch": false, "sentence": "a, and b"}"#,
            r#""capacity": {"promisesTooMuch": null, "sentence": "unknown"}"#,
            r#""capacity": null"#,
        ] {
            assert_eq!(warning(none), None);
        }
    }

    #[test]
    fn containers_without_thread_variables_are_counted_and_named() {
        let container = |name: &str, running: bool, injected: &str, variables: &str| {
            format!(
                r#"{{"namespace": "t", "pod": "{name}", "container": "main", "uid": null, "role": "worker", "job": null,
                "qos": "Guaranteed", "assigned": null, "effective": null, "cgroup": null, "running": {running},
                "note": null, "unpinnedSeconds": null, "observed": null, "injected": {injected},
                "threads": {{"variables": {variables}}}}}"#
            )
        };
        let some = r#"{"OMP_NUM_THREADS": "2"}"#;
        let warning = |containers: &[String]| {
            let containers = format!(r#""containers": [{}]"#, containers.join(","));
            let body = EMPTY.replace(r#""containers": [], MORE"#, &containers);
            let status = AgentStatus::parse(body.as_bytes()).unwrap();
            assert_eq!(status.problem_count(), 0);
            status.variables_warning()
        };
        // Unknown, injected, not wanted, and ended.
        let fine = [
            container("a", true, "null", some),
            container("b", true, r#"["OMP_NUM_THREADS"]"#, some),
            container("c", true, "[]", "{}"),
            container("d", false, "[]", some),
        ];
        assert_eq!(warning(&fine), None);
        let one = [container("w-0", true, "[]", some)];
        assert_eq!(
            warning(&[&fine[..], &one].concat()).unwrap(),
            "threads: 1 container runs without thread variables, because no agent added them when it was created (main of t/w-0); \
             its pod gets them with the next start"
        );
        let many: Vec<String> = (0..5)
            .map(|index| container(&format!("w-{index}"), true, "[]", some))
            .collect();
        let warning = warning(&many).unwrap();
        assert!(
            warning.starts_with("threads: 5 containers run without"),
            "{warning}"
        );
        assert!(
            warning.contains("main of t/w-2 and 2 more); their pods get them"),
            "{warning}"
        );
    }

    #[test]
    fn drift_names_the_container() {
        let more = r#""containers": [{"namespace": "t", "pod": "w-0", "container": "main", "uid": null, "role": "worker",
            "job": null, "qos": "Guaranteed", "assigned": "4-6", "effective": "4-6", "cgroup": "kubepods/pod1/cri-8f3a",
            "running": true, "note": null, "unpinnedSeconds": null, "observed": null}],
            "drift": [{"path": "kubepods/pod1/cri-8f3a", "cause": "partition", "assigned": "4-6", "effective": "4-6"},
                {"path": "kubepods/pod2", "cause": "written", "assigned": "1", "effective": "0-1"}]"#;
        let body = EMPTY.replace(r#""containers": [], MORE"#, more);
        let status = AgentStatus::parse(body.as_bytes()).unwrap();
        assert_eq!(
            status.problems().collect::<Vec<_>>(),
            [
                "drift (partition): container main of t/w-0 has 4-6, but not for itself alone",
                "drift (written): kubepods/pod2 has 0-1 instead of 1"
            ]
        );
    }

    #[test]
    fn a_body_that_is_no_status_is_an_error() {
        for body in [
            "",
            "{}",
            "[]",
            "not ready\n",
            r#"{"enforcement": "cpuset", "online": "x"}"#,
        ] {
            let error = AgentStatus::parse(body.as_bytes()).unwrap_err().to_string();
            assert!(
                error.contains("not a Pinfold agent, or the agent has a different version"),
                "{error}"
            );
        }
    }
}
