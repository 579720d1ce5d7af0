//! [`unread`]: what Pinfold's annotations of a pod say in vain, because a name is mistyped.

use super::cpu_preferences::{NAMES, PREFIX};
use super::{CONTAINER_CPUS_ANNOTATION, ContainerCpus, POD_ANNOTATIONS, Pod};
use crate::text::nearest;

/// How many sentences a pod gets. Its author chooses the annotations.
const MOST: usize = 4;

/// The names of annotations that other parts read or write: the agent on containers, and scenes on the pods that they render.
const OTHERS: [&str; 11] = [
    "assigned-cpus",
    "case",
    "experiment",
    "injected",
    "plan",
    "reclaim-after",
    "run",
    "scene",
    "start-check",
    "success-policy",
    "workers",
];

/// A sentence for each annotation with Pinfold's prefix that nothing reads, and for each container that
/// [`CONTAINER_CPUS_ANNOTATION`] names and the pod lacks.
pub(super) fn unread(pod: &Pod, container_cpus: &ContainerCpus) -> Vec<String> {
    let of_pod = POD_ANNOTATIONS.map(|key| key.strip_prefix(PREFIX).unwrap_or(key));
    let known = [&of_pod[..], &NAMES[..]].concat();
    let names = pod.annotations.keys();
    let names = names.filter_map(|key| key.strip_prefix(PREFIX));
    let names = names.filter(|name| !known.contains(name) && !OTHERS.contains(name));
    let names = names.map(|name| {
        let near = nearest(name, &known).map(|near| format!("; did you mean {PREFIX}{near}?"));
        format!(
            "annotation {PREFIX}{name} is ignored: no annotation has this name{}",
            near.unwrap_or_default()
        )
    });
    // The runtime describes only the containers that exist so far.
    let named = container_cpus.named().filter(|_| !pod.is_of_runtime);
    let lacking = named.filter(|name| {
        let mut containers = pod.containers.iter();
        !containers.any(|container| container.name == **name)
    });
    let lacking = lacking.map(|name| {
        format!(
            "annotation {CONTAINER_CPUS_ANNOTATION} names container {name:?}, which the pod lacks"
        )
    });
    names.chain(lacking).take(MOST).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::Container;

    fn of(annotations: &[(&str, &str)]) -> Vec<String> {
        let pod = pod(annotations);
        unread(&pod, &ContainerCpus::of(&pod))
    }

    fn pod(annotations: &[(&str, &str)]) -> Pod {
        let annotations = annotations
            .iter()
            .map(|&(key, text)| (key.to_owned(), text.to_owned()))
            .collect();
        Pod {
            annotations,
            containers: vec![Container {
                name: "logger".to_owned(),
                ..Container::default()
            }],
            ..Pod::default()
        }
    }

    #[test]
    fn mistyped_names_are_said_with_what_was_probably_meant() {
        assert_eq!(
            of(&[("pinfold.io/cpu", "required"), ("pinfold.io/colour", "red")]),
            [
                "annotation pinfold.io/colour is ignored: no annotation has this name",
                "annotation pinfold.io/cpu is ignored: no annotation has this name; did you mean pinfold.io/cpus?",
            ]
        );
        assert_eq!(
            of(&[("pinfold.io/container-cpus", "loger=shared")]),
            ["annotation pinfold.io/container-cpus names container \"loger\", which the pod lacks"]
        );
        // The runtime may tell the container a moment later.
        let mut early = pod(&[("pinfold.io/container-cpus", "loger=shared")]);
        early.is_of_runtime = true;
        assert_eq!(
            unread(&early, &ContainerCpus::of(&early)),
            Vec::<String>::new()
        );
    }

    #[test]
    fn everything_that_somebody_reads_is_fine() {
        let known = ["cpus", "threads", "processes"].map(|name| format!("{PREFIX}{name}"));
        let preferences = NAMES.iter().chain(&OTHERS);
        let keys = known
            .into_iter()
            .chain(preferences.map(|name| format!("{PREFIX}{name}")))
            .chain(["example.com/cpu".to_owned()]);
        for key in keys {
            assert_eq!(of(&[(&key, "x")]), Vec::<String>::new(), "{key}");
        }
        let right = ("pinfold.io/container-cpus", "logger=shared");
        assert_eq!(of(&[right]), Vec::<String>::new());
    }

    #[test]
    fn an_author_can_not_make_the_list_long() {
        let many: Vec<String> = (0..1000).map(|n| format!("pinfold.io/x{n}")).collect();
        let many: Vec<(&str, &str)> = many.iter().map(|key| (key.as_str(), "")).collect();
        assert_eq!(of(&many).len(), MOST);
    }
}
