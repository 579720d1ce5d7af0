//! [`ScrapeValues`]: the counters of pods and containers that `/metrics` has and `/status` lacks.

use crate::pod::ObjectName;
use std::borrow::Cow;
use std::collections::HashMap;

/// Counters of a container; `None` without a series.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct ContainerCounters {
    pub(crate) usage: Option<f64>,
    pub(crate) interference: Option<f64>,
    pub(crate) interference_error: Option<f64>,
    pub(crate) run_delay: Option<f64>,
    pub(crate) switches: Option<f64>,
    pub(crate) throttled: Option<f64>,
}

/// Network counters of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct PodCounters {
    receive: Option<f64>,
    transmit: Option<f64>,
    /// Counted by socket, also in the host's network namespace.
    socket_receive: Option<f64>,
    socket_transmit: Option<f64>,
}

// === impl PodCounters ===

impl PodCounters {
    /// Received bytes of the pod's interfaces; of the pod's sockets if the pod has no interface.
    pub(crate) fn receive(&self) -> Option<f64> {
        self.receive.or(self.socket_receive)
    }

    /// Sent bytes, chosen in the same way.
    pub(crate) fn transmit(&self) -> Option<f64> {
        self.transmit.or(self.socket_transmit)
    }
}

/// Namespace, pod and container.
type ContainerName = (String, String, String);

/// The values of one scrape.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct ScrapeValues {
    containers: HashMap<ContainerName, ContainerCounters>,
    pods: HashMap<ObjectName, PodCounters>,
    /// The start time of the agent, in seconds since the epoch.
    pub(crate) started: Option<f64>,
}

type ContainerField = fn(&mut ContainerCounters) -> &mut Option<f64>;
type PodField = fn(&mut PodCounters) -> &mut Option<f64>;

/// The metric families of containers, and the field of each.
const CONTAINER_FAMILIES: [(&str, ContainerField); 6] = [
    ("pinfold_container_cpu_usage_seconds_total", |counters| {
        &mut counters.usage
    }),
    (
        "pinfold_container_interference_cpu_seconds_total",
        |counters| &mut counters.interference,
    ),
    (
        "pinfold_container_interference_cpu_error_seconds_total",
        |counters| &mut counters.interference_error,
    ),
    (
        "pinfold_container_cpu_run_delay_seconds_total",
        |counters| &mut counters.run_delay,
    ),
    ("pinfold_container_context_switches_total", |counters| {
        &mut counters.switches
    }),
    (
        "pinfold_container_cpu_throttled_periods_total",
        |counters| &mut counters.throttled,
    ),
];

/// The metric families of pods, and the field of each; the interfaces of a pod are added up.
const POD_FAMILIES: [(&str, PodField); 4] = [
    ("pinfold_pod_network_receive_bytes_total", |counters| {
        &mut counters.receive
    }),
    ("pinfold_pod_network_transmit_bytes_total", |counters| {
        &mut counters.transmit
    }),
    (
        "pinfold_pod_network_socket_receive_bytes_total",
        |counters| &mut counters.socket_receive,
    ),
    (
        "pinfold_pod_network_socket_transmit_bytes_total",
        |counters| &mut counters.socket_transmit,
    ),
];

const START_TIME: &str = "process_start_time_seconds";

// === impl ScrapeValues ===

impl ScrapeValues {
    /// Parses Prometheus' text format; a line that does not parse is skipped.
    pub(crate) fn parse(text: &str) -> Self {
        let mut scrape = Self::default();
        for line in text.lines() {
            // Most lines belong to other families; comparing the name skips them early.
            let name = line.split(['{', ' ']).next().unwrap_or_default();
            let container = CONTAINER_FAMILIES
                .iter()
                .find(|(family, _)| *family == name);
            let pod = POD_FAMILIES.iter().find(|(family, _)| *family == name);
            if container.is_none() && pod.is_none() && name != START_TIME {
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
            if name == START_TIME {
                scrape.started = Some(value);
            }
            let (Some(namespace), Some(pod_name)) = (label("namespace"), label("pod")) else {
                continue;
            };
            if let (Some((_, field)), Some(name)) = (container, label("container")) {
                let counters = scrape
                    .containers
                    .entry((namespace, pod_name, name))
                    .or_default();
                *field(counters).get_or_insert_default() += value;
            } else if let Some((_, field)) = pod {
                *field(
                    scrape
                        .pods
                        .entry(ObjectName::new(namespace, pod_name))
                        .or_default(),
                )
                .get_or_insert_default() += value;
            }
        }
        scrape
    }

    /// The counters of a container.
    pub(crate) fn container(
        &self,
        namespace: &str,
        pod: &str,
        container: &str,
    ) -> ContainerCounters {
        let name = (namespace.to_owned(), pod.to_owned(), container.to_owned());
        self.containers.get(&name).copied().unwrap_or_default()
    }

    /// The counters of a pod.
    pub(crate) fn pod(&self, namespace: &str, pod: &str) -> PodCounters {
        self.pods
            .get(&ObjectName::new(namespace, pod))
            .copied()
            .unwrap_or_default()
    }
}

type LineLabels<'a> = Vec<(&'a str, Cow<'a, str>)>;

/// The most labels of a series; the agent's series have fewer.
const MAX_LABELS: usize = 64;

/// Parses the labels and the value after the name of a series.
fn labels_and_value(rest: &str) -> Option<(LineLabels<'_>, f64)> {
    let mut labels = Vec::new();
    let mut rest = rest;
    if let Some(inner) = rest.strip_prefix('{') {
        rest = inner.trim_start();
        while !rest.starts_with('}') {
            if labels.len() == MAX_LABELS {
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
    // A timestamp or an exemplar may follow the value.
    let value: f64 = rest.split_whitespace().next()?.parse().ok()?;
    value.is_finite().then_some((labels, value))
}

/// Parses a label's value up to the closing quote, and returns the text after the quote.
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

/// The names of the families that `top` reads.
#[cfg(test)]
pub(crate) fn family_names() -> Vec<&'static str> {
    let containers = CONTAINER_FAMILIES.iter().map(|(name, _)| *name);
    let pods = POD_FAMILIES.iter().map(|(name, _)| *name);
    containers.chain(pods).chain([START_TIME]).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn no_text_makes_the_parser_panic(
            text in "(process_start_time_seconds|pinfold_pod_network_receive_bytes_total|x)[{}a-z=\",\\\\ 0-9.e漢\n-]{0,60}",
            cut in 0usize..80,
        ) {
            ScrapeValues::parse(&String::from_utf8_lossy(text.as_bytes().get(..cut).unwrap_or(text.as_bytes())));
        }
    }

    #[test]
    fn a_line_with_too_many_labels_is_skipped() {
        let parsed = |more: usize| {
            let labels: String = (0..more)
                .map(|number| format!("l{number}=\"x\","))
                .collect();
            let name = "pinfold_pod_network_receive_bytes_total";
            ScrapeValues::parse(&format!("{name}{{{labels}namespace=\"a\",pod=\"p\"}} 1\n"))
        };
        assert_eq!(parsed(MAX_LABELS - 2).pod("a", "p").receive(), Some(1.0));
        assert_eq!(parsed(MAX_LABELS - 1), ScrapeValues::default());
    }

    #[test]
    fn series_are_added_up_and_other_lines_are_skipped() {
        let scrape = ScrapeValues::parse(
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
        let one = scrape.container("a", "p", "c");
        assert_eq!(
            one,
            ContainerCounters {
                switches: Some(1007.0),
                ..ContainerCounters::default()
            }
        );
        assert_eq!(scrape.container("a", "p\"}\\", "c").usage, Some(2.5));
        assert_eq!(
            scrape.pod("a", "p").receive(),
            Some(30.0),
            "interfaces come before sockets"
        );
        assert_eq!(
            (
                scrape.pod("a", "h").receive(),
                scrape.pod("a", "h").transmit()
            ),
            (None, Some(600.0))
        );
        assert_eq!(scrape.started, Some(1.7e9));
        assert_eq!(scrape.containers.len(), 2);
    }
}
