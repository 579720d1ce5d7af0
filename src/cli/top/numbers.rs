//! [`Numbers`]: what `/metrics` says of each pod and container, as far as `/status` does not.

use std::borrow::Cow;
use std::collections::HashMap;

/// What the kernel counts of one container; `None` where there is no series.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct OfContainer {
    pub(super) usage: Option<f64>,
    pub(super) foreign: Option<f64>,
    pub(super) foreign_error: Option<f64>,
    pub(super) run_delay: Option<f64>,
    pub(super) switches: Option<f64>,
    pub(super) throttled: Option<f64>,
}

/// What is counted of one pod's network.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct OfPod {
    receive: Option<f64>,
    transmit: Option<f64>,
    /// By its sockets, whosever network they use.
    socket_receive: Option<f64>,
    socket_transmit: Option<f64>,
}

// === impl OfPod ===

impl OfPod {
    /// Bytes received: by its interfaces, or by its sockets where it has none of its own.
    pub(super) fn receive(&self) -> Option<f64> {
        self.receive.or(self.socket_receive)
    }

    /// Bytes sent, likewise.
    pub(super) fn transmit(&self) -> Option<f64> {
        self.transmit.or(self.socket_transmit)
    }
}

/// Namespace, pod, and container.
type Name = (String, String, String);

/// All that is taken from one scrape.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Numbers {
    containers: HashMap<Name, OfContainer>,
    pods: HashMap<(String, String), OfPod>,
    /// When the agent started.
    pub(super) started: Option<f64>,
}

type PlaceInContainer = fn(&mut OfContainer) -> &mut Option<f64>;
type PlaceInPod = fn(&mut OfPod) -> &mut Option<f64>;

/// The families of containers that are read, and where their values go.
const CONTAINER: [(&str, PlaceInContainer); 6] = [
    ("pinfold_container_cpu_usage_seconds_total", |one| {
        &mut one.usage
    }),
    ("pinfold_container_interference_cpu_seconds_total", |one| {
        &mut one.foreign
    }),
    (
        "pinfold_container_interference_cpu_error_seconds_total",
        |one| &mut one.foreign_error,
    ),
    ("pinfold_container_cpu_run_delay_seconds_total", |one| {
        &mut one.run_delay
    }),
    ("pinfold_container_context_switches_total", |one| {
        &mut one.switches
    }),
    ("pinfold_container_cpu_throttled_periods_total", |one| {
        &mut one.throttled
    }),
];

/// The same of pods; their interfaces are added up.
const POD: [(&str, PlaceInPod); 4] = [
    ("pinfold_pod_network_receive_bytes_total", |one| {
        &mut one.receive
    }),
    ("pinfold_pod_network_transmit_bytes_total", |one| {
        &mut one.transmit
    }),
    ("pinfold_pod_network_socket_receive_bytes_total", |one| {
        &mut one.socket_receive
    }),
    ("pinfold_pod_network_socket_transmit_bytes_total", |one| {
        &mut one.socket_transmit
    }),
];

const STARTED: &str = "process_start_time_seconds";

// === impl Numbers ===

impl Numbers {
    /// Reads Prometheus' text format; what is not understood is passed over.
    pub(super) fn parse(text: &str) -> Self {
        let mut numbers = Self::default();
        for line in text.lines() {
            // Most of a scrape is not for us, and is not looked at any further.
            let name = line.split(['{', ' ']).next().unwrap_or_default();
            let container = CONTAINER.iter().find(|(family, _)| *family == name);
            let pod = POD.iter().find(|(family, _)| *family == name);
            if container.is_none() && pod.is_none() && name != STARTED {
                continue;
            }
            let Some((labels, value)) = line.get(name.len()..).and_then(labels_and_value) else {
                continue;
            };
            let label = |name| {
                labels
                    .iter()
                    .find(|(label, _)| *label == name)
                    .map(|(_, text)| text.to_string())
            };
            if name == STARTED {
                numbers.started = Some(value);
            }
            let (Some(namespace), Some(of)) = (label("namespace"), label("pod")) else {
                continue;
            };
            if let (Some((_, place)), Some(one)) = (container, label("container")) {
                let counters = numbers.containers.entry((namespace, of, one)).or_default();
                *place(counters).get_or_insert_default() += value;
            } else if let Some((_, place)) = pod {
                *place(numbers.pods.entry((namespace, of)).or_default()).get_or_insert_default() +=
                    value;
            }
        }
        numbers
    }

    /// What is known of a container.
    pub(super) fn container(&self, namespace: &str, pod: &str, container: &str) -> OfContainer {
        let name = (namespace.to_owned(), pod.to_owned(), container.to_owned());
        self.containers.get(&name).copied().unwrap_or_default()
    }

    /// What is known of a pod.
    pub(super) fn pod(&self, namespace: &str, pod: &str) -> OfPod {
        self.pods
            .get(&(namespace.to_owned(), pod.to_owned()))
            .copied()
            .unwrap_or_default()
    }
}

type Labels<'a> = Vec<(&'a str, Cow<'a, str>)>;

/// No series of an agent has more labels.
const MOST_LABELS: usize = 64;

/// The labels and the value in what follows a series' name.
fn labels_and_value(rest: &str) -> Option<(Labels<'_>, f64)> {
    let mut labels = Vec::new();
    let mut rest = rest;
    if let Some(inner) = rest.strip_prefix('{') {
        rest = inner.trim_start();
        while !rest.starts_with('}') {
            if labels.len() == MOST_LABELS {
                return None;
            }
            let (name, after) = rest.split_once("=\"")?;
            let (value, after) = quoted(after)?;
            labels.push((name.trim(), value));
            rest = after.trim_start();
            rest = rest.strip_prefix(',').unwrap_or(rest).trim_start();
        }
        rest = rest.strip_prefix('}')?;
    }
    // A timestamp may follow, or an exemplar.
    let value: f64 = rest.split_whitespace().next()?.parse().ok()?;
    value.is_finite().then_some((labels, value))
}

/// A label's value up to its closing quote, and what follows that.
fn quoted(text: &str) -> Option<(Cow<'_, str>, &str)> {
    let end = text.find(['"', '\\'])?;
    if text[end..].starts_with('"') {
        return Some((Cow::Borrowed(&text[..end]), &text[end + 1..]));
    }
    let mut value = String::new();
    let mut letters = text.char_indices();
    while let Some((at, letter)) = letters.next() {
        match letter {
            '"' => return Some((Cow::Owned(value), &text[at + 1..])),
            '\\' => match letters.next()?.1 {
                'n' => value.push('\n'),
                other => value.push(other),
            },
            other => value.push(other),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::metrics::{AGENT_FAMILIES, FAMILIES};

    #[test]
    fn what_is_read_is_what_the_agent_serves() {
        let all: Vec<&str> = FAMILIES
            .iter()
            .chain(AGENT_FAMILIES)
            .map(|family| family.name)
            .collect();
        for name in CONTAINER
            .iter()
            .map(|(name, _)| name)
            .chain(POD.iter().map(|(name, _)| name))
            .chain([&STARTED])
        {
            assert!(all.contains(name), "{name}");
        }
    }

    proptest! {
        #[test]
        fn nothing_that_is_served_is_too_much(
            text in "(process_start_time_seconds|pinfold_pod_network_receive_bytes_total|x)[{}a-z=\",\\\\ 0-9.e漢\n-]{0,60}",
            cut in 0usize..80,
        ) {
            Numbers::parse(&String::from_utf8_lossy(text.as_bytes().get(..cut).unwrap_or(text.as_bytes())));
        }
    }

    #[test]
    fn a_line_of_labels_without_end_is_passed_over() {
        let parsed = |more: usize| {
            let labels: String = (0..more)
                .map(|number| format!("l{number}=\"x\","))
                .collect();
            let name = "pinfold_pod_network_receive_bytes_total";
            Numbers::parse(&format!("{name}{{{labels}namespace=\"a\",pod=\"p\"}} 1\n"))
        };
        assert_eq!(parsed(MOST_LABELS - 2).pod("a", "p").receive(), Some(1.0));
        assert_eq!(parsed(MOST_LABELS - 1), Numbers::default());
    }

    #[test]
    fn series_are_added_up_and_the_rest_is_passed_over() {
        let numbers = Numbers::parse(
            "# HELP pinfold_container_context_switches_total pinfold_container_context_switches_total{} 7\n\
             pinfold_container_context_switches_total{namespace=\"a\",pod=\"p\",container=\"c\",kind=\"voluntary\"} 1e3\n\
             pinfold_container_context_switches_total{kind=\"involuntary\", namespace=\"a\",pod=\"p\",container=\"c\",} 7 17000\n\
             pinfold_container_cpu_usage_seconds_total{namespace=\"a\",pod=\"p\\\"}\\\\\",container=\"c\"} 2.5\n\
             pinfold_pod_network_receive_bytes_total{namespace=\"a\",pod=\"p\",interface=\"eth0\"} 10\n\
             pinfold_pod_network_receive_bytes_total{namespace=\"a\",pod=\"p\",interface=\"eth1\"} 20\n\
             pinfold_pod_network_socket_receive_bytes_total{namespace=\"a\",pod=\"p\"} 500\n\
             pinfold_pod_network_socket_transmit_bytes_total{namespace=\"a\",pod=\"h\"} 600\n\
             pinfold_container_interference_cpu_seconds_total{namespace=\"a\",pod=\"p\",container=\"c\"} NaN\n\
             pinfold_container_cpu_throttled_periods_total{namespace=\"a\",pod=\"p\n\
             pinfold_container_cpu_throttled_periods_total{namespace=\"a\",pod=\"p\",container=\"c\"} x\n\
             process_start_time_seconds 1.7e9\n",
        );
        let one = numbers.container("a", "p", "c");
        assert_eq!(
            one,
            OfContainer {
                switches: Some(1007.0),
                ..OfContainer::default()
            }
        );
        assert_eq!(numbers.container("a", "p\"}\\", "c").usage, Some(2.5));
        assert_eq!(
            numbers.pod("a", "p").receive(),
            Some(30.0),
            "its own interfaces come first"
        );
        assert_eq!(
            (
                numbers.pod("a", "h").receive(),
                numbers.pod("a", "h").transmit()
            ),
            (None, Some(600.0))
        );
        assert_eq!(numbers.started, Some(1.7e9));
        assert_eq!(numbers.containers.len(), 2);
    }
}
