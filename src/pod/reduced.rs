//! What Pinfold keeps of a pod's texts: what a rule reads, up to a limit.
//!
//! A pod's author chooses the length of arguments, variables, labels and annotations, up to 1.5 MB
//! for each pod. Without a limit, a dozen such pods would take the agent's memory, and reading the
//! command line of one would take the reconciler's time, from the whole node. The limits are the
//! same for pods from the API server, from manifests and from the container runtime, so a decision
//! depends neither on the source nor on a restart of the agent. `docs/limits.md` names the limits.

use std::collections::BTreeMap;

use super::cpu_preferences::{PREFIX, is_preference};
use super::operator_labels::ROLE_KEYS;
use super::variables::THREAD_VARIABLES;
use super::{EnvSource, POD_ANNOTATIONS, Pod, variable_counts};

/// How many bytes are kept of the beginning and of the end of a container's arguments. Launchers
/// come at the beginning, and an inline script often ends with the program and its options.
pub(crate) const ARGUMENTS: Ends = Ends {
    first: 12 << 10,
    last: 4 << 10,
};

/// How many bytes of a container's variables are kept, and of one value among them.
pub(crate) const VARIABLES: Limit = Limit {
    all: 24 << 10,
    value: 16 << 10,
};

/// How many bytes of a pod's labels, of its annotations and of the label keys in its node selector are kept.
pub(crate) const LABELS: Limit = Limit {
    all: 16 << 10,
    value: 1 << 10,
};

/// How many bytes of arguments, and of variables, are kept of all containers of a pod together.
/// With more text, each container keeps an equal part.
const OF_POD: usize = 64 << 10;

/// The longest image reference, in bytes. The longest valid one is half as long.
const IMAGE: usize = 1 << 10;

/// What a text in a list or a map takes in memory besides its bytes. Otherwise a million empty arguments would be short.
const TEXT: usize = size_of::<String>();

/// Limits in bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limit {
    pub(crate) all: usize,
    /// Of one entry's value.
    pub(crate) value: usize,
}

/// The kept ends of a text, in bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ends {
    pub(crate) first: usize,
    pub(crate) last: usize,
}

// === impl Pod ===

impl Pod {
    /// Drops the texts that no rule uses, and the rest beyond the limits.
    pub(crate) fn reduce(&mut self) {
        self.labels = reduced_labels(&self.labels).into();
        self.annotations = reduced_annotations(&self.annotations).into();
        let mut left = LABELS.all;
        self.node_keys
            .retain(|key| takes(&mut left, key.len() + TEXT));
        for container in &mut self.containers {
            if container.image.len() > IMAGE {
                container.image = beginning(&container.image, IMAGE).to_owned();
            }
            if arguments_length(&container.args) > ARGUMENTS.first + ARGUMENTS.last {
                container.args = reduced_arguments(&container.args, ARGUMENTS).into();
            }
            let is_needed = |(name, source): (&String, &EnvSource)| {
                variable_counts(name)
                    && !matches!(source, EnvSource::Value(text) if text.len() > VARIABLES.value)
            };
            if !container.env.iter().all(is_needed)
                || variables_length(&container.env) > VARIABLES.all
            {
                container.env = reduced_variables(&container.env, VARIABLES.all).into();
            }
        }
        self.share_limits();
    }

    /// Gives each container of a pod with too much text an equal part of what a pod may have.
    pub(crate) fn share_limits(&mut self) {
        let count = self.containers.len().max(1);
        let part = OF_POD / count;
        let arguments = self
            .containers
            .iter()
            .map(|container| arguments_length(&container.args));
        if arguments.sum::<usize>() > OF_POD {
            let last = part / 4;
            let ends = Ends {
                first: part - last,
                last,
            };
            for container in &mut self.containers {
                if arguments_length(&container.args) > part {
                    container.args = reduced_arguments(&container.args, ends).into();
                }
            }
        }
        let variables = self
            .containers
            .iter()
            .map(|container| variables_length(&container.env));
        if variables.sum::<usize>() > OF_POD {
            for container in &mut self.containers {
                if variables_length(&container.env) > part {
                    container.env = reduced_variables(&container.env, part).into();
                }
            }
        }
    }
}

fn arguments_length(args: &[String]) -> usize {
    args.iter().map(|arg| arg.len() + TEXT).sum()
}

fn variables_length(env: &BTreeMap<String, EnvSource>) -> usize {
    env.iter()
        .map(|(name, source)| variable_length(name, source))
        .sum()
}

fn variable_length(name: &str, source: &EnvSource) -> usize {
    let value = match source {
        EnvSource::Value(text) => text.len(),
        EnvSource::Reference => 0,
    };
    name.len() + value + 2 * TEXT
}

/// Takes bytes from what is left, if as many are left.
fn takes(left: &mut usize, bytes: usize) -> bool {
    let fits = bytes <= *left;
    if fits {
        *left -= bytes;
    }
    fits
}

/// The variables that affect decisions, as far as they fit, those that size thread pools first. A
/// value that is too long becomes unknown: half a JSON text says nothing, but a variable that is
/// set must not be set again.
fn reduced_variables(
    env: &BTreeMap<String, EnvSource>,
    mut left: usize,
) -> BTreeMap<String, EnvSource> {
    let sizes = |name: &str| THREAD_VARIABLES.contains(&name);
    let needed = env.iter().filter(|(name, _)| variable_counts(name));
    let (first, then): (Vec<_>, Vec<_>) = needed.partition(|(name, _)| sizes(name));
    let mut kept = BTreeMap::new();
    for (name, source) in first.into_iter().chain(then) {
        let is_long =
            matches!(source, EnvSource::Value(text) if text.len() > VARIABLES.value.min(left));
        let source = if is_long {
            &EnvSource::Reference
        } else {
            source
        };
        if takes(&mut left, variable_length(name, source)) {
            kept.insert(name.clone(), source.clone());
        }
    }
    kept
}

/// The annotations that a rule reads, Pinfold's own first. Mistyped ones of Pinfold's are kept, so that somebody can say so.
pub(crate) fn reduced_annotations(
    annotations: &BTreeMap<String, String>,
) -> BTreeMap<String, String> {
    let used = annotations
        .iter()
        .filter(|(key, _)| key.starts_with(PREFIX) || ROLE_KEYS.contains(&key.as_str()));
    limited(used, is_own)
}

/// A pod's labels, those that show a role first. Any of them can matter, because the configured
/// selector may name it.
pub(crate) fn reduced_labels(labels: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    limited(labels.iter(), |key| ROLE_KEYS.contains(&key))
}

/// Whether a key is one of Pinfold's annotations for all pods.
fn is_own(key: &str) -> bool {
    POD_ANNOTATIONS.contains(&key) || is_preference(key)
}

/// The entries that fit. A value is cut at the limit rather than left out, because an unknown value
/// of an annotation has a meaning of its own.
fn limited<'a>(
    entries: impl Iterator<Item = (&'a String, &'a String)>,
    is_first: impl Fn(&str) -> bool,
) -> BTreeMap<String, String> {
    let (first, then): (Vec<_>, Vec<_>) = entries.partition(|(key, _)| is_first(key));
    let mut left = LABELS.all;
    let mut kept = BTreeMap::new();
    for (key, value) in first.into_iter().chain(then) {
        let value = beginning(value, LABELS.value);
        if takes(&mut left, key.len() + value.len() + 2 * TEXT) {
            kept.insert(key.clone(), value.to_owned());
        }
    }
    kept
}

/// The first bytes of a text, up to a limit and to the end of a character.
fn beginning(text: &str, bytes: usize) -> &str {
    text.get(..text.floor_char_boundary(bytes)).unwrap_or(text)
}

/// The last bytes of a text.
fn end(text: &str, bytes: usize) -> &str {
    let from = text.ceil_char_boundary(text.len().saturating_sub(bytes));
    text.get(from..).unwrap_or_default()
}

/// The arguments, without the middle of those that are too long together. No word is cut, because
/// half a number is another number.
pub(crate) fn reduced_arguments(args: &[String], Ends { first, last }: Ends) -> Vec<String> {
    let total = arguments_length(args);
    if total <= first + last {
        return args.to_vec();
    }
    let mut at = 0;
    let mut kept = Vec::new();
    for arg in args {
        let before = first.saturating_sub(at);
        at += arg.len() + TEXT;
        let after = last.saturating_sub(total - at);
        if arg.len() + TEXT <= before.max(after) {
            kept.push(arg.clone());
            continue;
        }
        let whole = |c: char| c.is_ascii_whitespace();
        let begin = beginning(arg, before);
        let begin = begin.rfind(whole).and_then(|space| begin.get(..space));
        let rest = end(arg, after);
        let rest = rest.find(whole).and_then(|space| rest.get(space..));
        let text = [begin, rest].map(Option::unwrap_or_default).concat();
        if !text.is_empty() {
            kept.push(text);
        }
    }
    kept
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use crate::pod::{CPUS_ANNOTATION, Container, PROCESSES_ANNOTATION, RecognizedPod, Shared};

    /// How many bytes a pod's texts take.
    fn bytes(pod: &Pod) -> usize {
        let map = |map: &BTreeMap<String, String>| {
            let entries = map.iter().map(|(key, value)| key.len() + value.len());
            entries.sum::<usize>()
        };
        let containers = pod.containers.iter().map(|container| {
            let image = container.image.len();
            arguments_length(&container.args) + variables_length(&container.env) + image
        });
        map(&pod.labels) + map(&pod.annotations) + containers.sum::<usize>()
    }

    fn container(args: Vec<String>, env: Vec<(String, String)>) -> Container {
        let value = |(name, value)| (name, EnvSource::Value(value));
        Container {
            args: args.into(),
            env: env.into_iter().map(value).collect(),
            ..Container::default()
        }
    }

    #[test]
    fn a_pod_keeps_a_limited_amount_of_text_whatever_its_author_writes() {
        let long = "x".repeat(1_400_000);
        let short = |number: usize| (format!("TF_CONFIG{number}"), "y".repeat(50));
        let empty = vec![String::new(); 400_000];
        for containers in [
            vec![container(
                vec![long.clone()],
                vec![("TF_CONFIG".to_owned(), long.clone())],
            )],
            vec![container(empty, (0..10_000).map(short).collect())],
            vec![
                container(
                    vec!["word ".repeat(2400)],
                    vec![("PET_X".to_owned(), "z".repeat(9000))]
                );
                100
            ],
        ] {
            let entries =
                (0..50_000).map(|number| (format!("volcano.sh/{number}"), "v".repeat(20)));
            let mut pod = Pod {
                labels: entries.clone().collect(),
                annotations: entries
                    .chain([(
                        "kubectl.kubernetes.io/last-applied".to_owned(),
                        long.clone(),
                    )])
                    .chain([(CPUS_ANNOTATION.to_owned(), "required".to_owned())])
                    .collect(),
                containers,
                ..Pod::default()
            };
            pod.reduce();
            assert!(
                bytes(&pod) <= LABELS.all + 2 * OF_POD + 4096,
                "{}",
                bytes(&pod)
            );
            assert_eq!(pod.annotations.len(), 1);
            assert_eq!(pod.annotations[CPUS_ANNOTATION], "required");
        }
    }

    #[test]
    fn texts_that_a_rule_reads_are_kept() {
        fn texts(keys: &[&str]) -> Vec<(String, String)> {
            let texts = keys.iter().map(|key| ((*key).to_owned(), "0".to_owned()));
            texts.collect()
        }
        let own = [CPUS_ANNOTATION, "pinfold.io/movable", PROCESSES_ANNOTATION];
        let args = ["python", "train.py", "--job_name=worker", "--task_index=3"];
        let mut pod = Pod {
            labels: texts(&["app", "tier", "volcano.sh/task-index"])
                .into_iter()
                .collect(),
            annotations: [texts(&ROLE_KEYS), texts(&own)]
                .into_iter()
                .flatten()
                .collect(),
            containers: vec![container(
                args.map(str::to_owned).to_vec(),
                vec![("OMP_NUM_THREADS".to_owned(), "3".to_owned())],
            )],
            ..Pod::default()
        };
        let before = pod.clone();
        pod.reduce();
        assert_eq!(pod, before);
        let (one, other) = (&pod.containers[0], &before.containers[0]);
        assert!(Shared::is_same(&one.args, &other.args) && Shared::is_same(&one.env, &other.env));
    }

    #[test]
    fn a_variable_with_a_value_that_is_too_long_counts_as_set() {
        let long = vec![
            ("TF_CONFIG".to_owned(), "x".repeat(20_000)),
            ("PATH".to_owned(), "/bin".to_owned()),
        ];
        let mut pod = Pod {
            containers: vec![container(Vec::new(), long)],
            ..Pod::default()
        };
        pod.reduce();
        let env = &pod.containers[0].env;
        assert_eq!(
            env.iter().collect::<Vec<_>>(),
            [(&"TF_CONFIG".to_owned(), &EnvSource::Reference)]
        );
        let found = RecognizedPod::from(pod);
        assert!(
            found
                .recognition()
                .evidence
                .contains("that Pinfold can't read")
        );
    }
}
