//! Pods and containers of the container runtime, reduced to what Pinfold's decisions use and to a limited size.
//!
//! The limits are those of `pod::reduced`, for the reasons given there. They hold in the same way
//! when a container is created and in the lists after a reconnect.

use crate::nri::{self, Container, PodSandbox};
use crate::pod::reduced::{
    ARGUMENTS, VARIABLES, reduced_annotations, reduced_arguments, reduced_labels,
};
use crate::pod::{THREAD_VARIABLES, variable_counts};

/// The runtime's annotation with the names of the variables that Pinfold injected. After a restart
/// of Pinfold, nothing else tells injected variables from the user's.
pub(super) const INJECTED: &str = "pinfold.io/injected";

/// A copy of a sandbox with limited labels and annotations.
pub(super) fn reduced_pod(pod: &PodSandbox) -> PodSandbox {
    PodSandbox {
        id: pod.id.clone(),
        name: pod.name.clone(),
        uid: pod.uid.clone(),
        namespace: pod.namespace.clone(),
        labels: reduced_labels(&pod.labels),
        annotations: reduced_annotations(&pod.annotations),
        linux: pod.linux.clone(),
        pid: pod.pid,
    }
}

/// A copy of a container with only the arguments, variables and annotations that affect Pinfold's
/// decisions. Size matters, because the inventory keeps the copy as long as the container exists,
/// and the kubelet sets seven variables for each Service of the namespace.
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
        args: reduced_arguments(&container.args, ARGUMENTS),
        env: variables(container),
        // Only the answer to the creation depends on them.
        mounts: Vec::new(),
        linux: container.linux.clone(),
        pid: container.pid,
        created_at: container.created_at,
    }
}

/// The name of the variable that a line of an environment sets.
fn name(line: &str) -> &str {
    line.split_once('=').map_or(line, |(name, _)| name)
}

/// The variables that affect decisions, as far as they fit, beginning with those that size thread
/// pools. Of a variable that is too long, only the name is kept.
fn variables(container: &Container) -> Vec<String> {
    let injected = annotation_values(container, INJECTED);
    let is_users = |line: &&String| {
        line.split_once('=')
            .is_some_and(|(variable, _)| !injected.iter().any(|name| name == variable))
    };
    // A single variable of the user's shows that the environment is known.
    let first = container.env.iter().position(|line| is_users(&line));
    let needed = container.env.iter().enumerate();
    let needed = needed.filter(|(at, line)| Some(*at) == first || variable_counts(name(line)));
    let sizes = |line: &str| THREAD_VARIABLES.contains(&name(line));
    let (sizing, others): (Vec<_>, Vec<_>) = needed.partition(|(_, line)| sizes(line));
    let mut left = VARIABLES.all;
    let mut kept = Vec::new();
    for (at, line) in sizing.into_iter().chain(others) {
        let is_long = line.len() > VARIABLES.value.min(left);
        let line = if is_long { name(line) } else { line };
        if line.len() <= left {
            left -= line.len();
            kept.push((at, line.to_owned()));
        }
    }
    kept.sort_unstable_by_key(|(at, _)| *at);
    kept.into_iter().map(|(_, line)| line).collect()
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
    use std::collections::BTreeMap;

    use super::*;
    use crate::pod::reduced::LABELS;

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
                texts(&kept) <= ARGUMENTS.first + ARGUMENTS.last,
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
        assert_eq!(reduced_arguments(&short, ARGUMENTS), short);
    }

    #[test]
    fn long_variables_labels_and_annotations_are_limited() {
        let env = (0..1000).map(|number| format!("PET_{number}={}", "v".repeat(1400)));
        let container = Container {
            env: env.chain(["TF_CONFIG={}".to_owned()]).collect(),
            ..Container::default()
        };
        assert!(texts(&reduced_container(&container)) <= VARIABLES.all);
        let long = Container {
            env: vec![format!("TF_CONFIG={}", "x".repeat(20_000))],
            ..Container::default()
        };
        assert_eq!(reduced_container(&long).env, ["TF_CONFIG"]);
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
        let bytes = kept
            .labels
            .iter()
            .map(|(key, value)| key.len() + value.len());
        assert!(bytes.sum::<usize>() <= LABELS.all);
        assert_eq!(kept.annotations.len(), 2);
        assert_eq!(kept.annotations["pinfold.io/cpus"], "required");
        assert_eq!(kept.annotations["pinfold.io/memory"].len(), LABELS.value);
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
