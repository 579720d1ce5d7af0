//! [`ScrapeValues`]: the counters of pods and containers that `/metrics` has and `/status` lacks.

use std::collections::HashMap;

use crate::pod::ObjectName;
use crate::text::exposition;

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

fn container_field(family: &str) -> Option<ContainerField> {
    let mut families = CONTAINER_FAMILIES.iter();
    families
        .find(|(name, _)| *name == family)
        .map(|(_, field)| *field)
}

fn pod_field(family: &str) -> Option<PodField> {
    let mut families = POD_FAMILIES.iter();
    families
        .find(|(name, _)| *name == family)
        .map(|(_, field)| *field)
}

// === impl ScrapeValues ===

impl ScrapeValues {
    /// Adds up the series that `top` shows; a line that does not parse is skipped.
    pub(crate) fn parse(page: &str) -> Self {
        let mut scrape = Self::default();
        let is_wanted = |name: &str| {
            container_field(name).is_some() || pod_field(name).is_some() || name == START_TIME
        };
        for series in exposition::series(page, is_wanted) {
            if series.name == START_TIME {
                scrape.started = Some(series.value);
            }
            let (Some(namespace), Some(pod)) = (series.label("namespace"), series.label("pod"))
            else {
                continue;
            };
            if let (Some(field), Some(container)) =
                (container_field(series.name), series.label("container"))
            {
                let name = (namespace.to_owned(), pod.to_owned(), container.to_owned());
                let counters = scrape.containers.entry(name).or_default();
                *field(counters).get_or_insert_default() += series.value;
            } else if let Some(field) = pod_field(series.name) {
                let counters = scrape
                    .pods
                    .entry(ObjectName::new(namespace, pod))
                    .or_default();
                *field(counters).get_or_insert_default() += series.value;
            }
        }
        scrape
    }

    pub(crate) fn container(
        &self,
        namespace: &str,
        pod: &str,
        container: &str,
    ) -> ContainerCounters {
        let name = (namespace.to_owned(), pod.to_owned(), container.to_owned());
        self.containers.get(&name).copied().unwrap_or_default()
    }

    pub(crate) fn pod(&self, namespace: &str, pod: &str) -> PodCounters {
        self.pods
            .get(&ObjectName::new(namespace, pod))
            .copied()
            .unwrap_or_default()
    }
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
    use super::*;

    #[test]
    fn series_of_a_container_or_pod_are_added_up() {
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
