//! Pods and containers of the container runtime, reduced to what Pinfold's decisions use and to a limited size.
//!
//! A pod's author chooses the length of arguments, variables, labels and annotations: up to 1.5 MB for each pod. The agent keeps
//! a copy of every pod, so that without a limit a dozen such pods would take its memory, and with that NRI, from the whole
//! node. The same limits hold at the creation of a container and in the lists after a reconnect. A decision is therefore the
//! same before and after a restart of the agent.

use std::collections::BTreeMap;

use crate::nri::{self, Container, PodSandbox};
use crate::pod::variable_counts;

/// The runtime's annotation with the names of the variables that Pinfold injected. After a restart of Pinfold only the
/// annotation distinguishes injected variables from the user's variables.
pub(super) const INJECTED: &str = "pinfold.io/injected";

/// The prefix of Pinfold's own annotations, which are kept before all others.
const OWN: &str = "pinfold.io/";

/// How many bytes are kept of the beginning and of the end of a container's arguments. Launchers come at the beginning, and an
/// inline script often ends with the program and its options.
const ARGUMENTS: (usize, usize) = (12 << 10, 4 << 10);

/// How many bytes of variables are kept, and of one value among them. A longer value is left out: half a JSON text says nothing.
const VARIABLES: Limit = Limit {
    all: 24 << 10,
    value: 16 << 10,
};

/// How many bytes of a sandbox's labels, and of its annotations, are kept.
const LABELS: Limit = Limit {
    all: 16 << 10,
    value: 1 << 10,
};

/// Limits in bytes.
#[derive(Clone, Copy)]
struct Limit {
    all: usize,
    value: usize,
}

/// A copy of a sandbox with limited labels and annotations.
pub(super) fn reduced_pod(pod: &PodSandbox) -> PodSandbox {
    PodSandbox {
        id: pod.id.clone(),
        name: pod.name.clone(),
        uid: pod.uid.clone(),
        namespace: pod.namespace.clone(),
        labels: limited(&pod.labels),
        annotations: limited(&pod.annotations),
        linux: pod.linux.clone(),
        pid: pod.pid,
    }
}

/// The entries that fit, Pinfold's own first. A value is cut at the limit, and not left out: an unknown value of an annotation
/// has a meaning of its own.
fn limited(entries: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let own = entries.iter().filter(|(key, _)| key.starts_with(OWN));
    let others = entries.iter().filter(|(key, _)| !key.starts_with(OWN));
    let mut left = LABELS.all;
    let mut kept = BTreeMap::new();
    for (key, value) in own.chain(others) {
        let value = beginning(value, LABELS.value);
        let bytes = key.len() + value.len();
        if bytes <= left {
            left -= bytes;
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

/// A copy of a container with only the arguments, variables and annotations that affect Pinfold's decisions. The inventory keeps
/// the copy as long as the container exists, and the kubelet sets seven variables for each Service of the namespace.
pub(super) fn reduced_container(container: &Container) -> Container {
    let is_needed = |key: &str| {
        [INJECTED, nri::GIVEN_CPUS_ANNOTATION].contains(&key)
            || nri::IMAGE_ANNOTATIONS.contains(&key)
    };
    let annotations = container
        .annotations
        .iter()
        .filter(|(key, _)| is_needed(key));
    Container {
        id: container.id.clone(),
        pod_sandbox_id: container.pod_sandbox_id.clone(),
        name: container.name.clone(),
        state: container.state,
        annotations: annotations
            .map(|(key, text)| (key.clone(), text.clone()))
            .collect(),
        args: arguments(&container.args),
        env: variables(container),
        linux: container.linux.clone(),
        pid: container.pid,
        created_at: container.created_at,
    }
}

/// The variables that affect decisions, as far as they fit.
fn variables(container: &Container) -> Vec<String> {
    let counts = |line: &str| variable_counts(line.split_once('=').map_or(line, |(name, _)| name));
    let injected = annotation_values(container, INJECTED);
    let is_users = |line: &&String| {
        line.split_once('=')
            .is_some_and(|(variable, _)| !injected.iter().any(|name| name == variable))
    };
    // One variable of the user shows that the environment is known.
    let first = container.env.iter().position(|line| is_users(&line));
    let needed = container.env.iter().enumerate();
    let needed = needed.filter(|(at, line)| Some(*at) == first || counts(line));
    let mut left = VARIABLES.all;
    let mut kept = Vec::new();
    for (_, line) in needed {
        if line.len() <= VARIABLES.value.min(left) {
            left -= line.len();
            kept.push(line.clone());
        }
    }
    kept
}

/// The arguments, without the middle of arguments that are too long together. No word is cut: half a number is another number.
fn arguments(args: &[String]) -> Vec<String> {
    let total: usize = args.iter().map(String::len).sum();
    let (first, last) = ARGUMENTS;
    if total <= first + last {
        return args.to_vec();
    }
    let mut at = 0;
    let mut kept = Vec::new();
    for arg in args {
        let before = first.saturating_sub(at);
        at += arg.len();
        let after = last.saturating_sub(total - at);
        if arg.len() <= before.max(after) {
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

/// The values of one of Pinfold's annotations on a container of the runtime.
pub(super) fn annotation_values(container: &Container, annotation: &str) -> Vec<String> {
    let values = container
        .annotations
        .get(annotation)
        .map(String::as_str)
        .unwrap_or_default();
    values
        .split(',')
        .filter(|value| !value.is_empty())
        .map(str::to_owned)
        .collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn variables_without_effect_are_not_kept() {
        let env = [
            "odd",
            "PATH=/bin",
            "A_SERVICE_HOST=10.0.0.1",
            "OMP_NUM_THREADS=3",
            "TF_CONFIG={}",
        ];
        let container = Container {
            id: "c".to_owned(),
            args: vec!["python".to_owned()],
            annotations: [
                INJECTED,
                nri::GIVEN_CPUS_ANNOTATION,
                nri::IMAGE_ANNOTATIONS[0],
            ]
            .map(|key| (key.to_owned(), "x".to_owned()))
            .into(),
            env: env.map(str::to_owned).to_vec(),
            ..Container::default()
        };
        let mut reported = container.clone();
        reported
            .annotations
            .insert("io.kubernetes.cri-o.Volumes".to_owned(), "[]".to_owned());
        let kept = reduced_container(&reported);
        assert_eq!(kept.env, ["PATH=/bin", "OMP_NUM_THREADS=3", "TF_CONFIG={}"]);
        assert_eq!(
            kept,
            Container {
                env: kept.env.clone(),
                ..container
            }
        );
    }

    /// The bytes of a container's arguments and variables.
    fn texts(container: &Container) -> usize {
        let all = container.args.iter().chain(&container.env);
        all.map(String::len).sum()
    }

    #[test]
    fn long_arguments_keep_both_ends_and_no_half_words() {
        let launcher = "mpirun -np 4 ".to_owned();
        let script = format!(
            "{launcher}{} python t.py --task_index=12",
            "word ".repeat(280_000)
        );
        for args in [
            vec!["sh".to_owned(), "-c".to_owned(), script],
            std::iter::repeat_n("--option=0123456789".to_owned(), 100_000).collect(),
            vec!["x".repeat(1_400_000)],
            vec!["é ".repeat(700_000), "--task_index=12".to_owned()],
        ] {
            let kept = reduced_container(&Container {
                args: args.clone(),
                ..Container::default()
            });
            assert!(
                texts(&kept) <= ARGUMENTS.0 + ARGUMENTS.1,
                "{}",
                texts(&kept)
            );
            let words = |args: &[String]| -> Vec<String> {
                let words = args.iter().flat_map(|arg| arg.split_whitespace());
                words.map(str::to_owned).collect()
            };
            let (all, kept) = (words(&args), words(&kept.args));
            assert!(kept.iter().all(|word| all.contains(word)));
            if all.len() > 1 {
                assert_eq!((all.first(), all.last()), (kept.first(), kept.last()));
            }
        }
        let short = ["python", "train.py", "--job_name=ps"].map(str::to_owned);
        assert_eq!(arguments(&short), short);
    }

    #[test]
    fn long_variables_labels_and_annotations_are_limited() {
        let env = (0..1000).map(|number| format!("PET_{number}={}", "v".repeat(1400)));
        let container = Container {
            env: env.chain(["TF_CONFIG={}".to_owned()]).collect(),
            ..Container::default()
        };
        assert!(texts(&reduced_container(&container)) <= VARIABLES.all);
        let entries: BTreeMap<String, String> = (0..1000)
            .map(|number| (format!("a{number:04}"), "v".repeat(1400)))
            .chain([
                ("pinfold.io/cpus".to_owned(), "required".to_owned()),
                ("pinfold.io/memory".to_owned(), "z".repeat(1_400_000)),
            ])
            .collect();
        let pod = PodSandbox {
            labels: entries.clone(),
            annotations: entries,
            ..PodSandbox::default()
        };
        let kept = reduced_pod(&pod);
        for entries in [&kept.labels, &kept.annotations] {
            let bytes = entries.iter().map(|(key, value)| key.len() + value.len());
            assert!(bytes.sum::<usize>() <= LABELS.all);
            assert_eq!(entries["pinfold.io/cpus"], "required");
            assert_eq!(entries["pinfold.io/memory"].len(), LABELS.value);
        }
        let small = PodSandbox {
            id: "id".to_owned(),
            name: "name".to_owned(),
            uid: "uid".to_owned(),
            namespace: "namespace".to_owned(),
            labels: [("app".to_owned(), "x".to_owned())].into(),
            annotations: [("volcano.sh/task-index".to_owned(), "0".to_owned())].into(),
            linux: Some(nri::LinuxPodSandbox::default()),
            ..PodSandbox::default()
        };
        assert_eq!(reduced_pod(&small), small);
    }
}
