//! [`UsageBook`]: what the tasks of a run used, from the agents' pages that were read while the run lasted.
//!
//! A counter of a container vanishes with its cgroup, so the pages are read every few seconds, and a task's figures are about the
//! time from its start to the last page that had it.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use crate::experiment::results::TaskUsage;
use crate::text::exposition::{self, Series};

/// Where a family is added up.
type Field = fn(&mut TaskUsage) -> &mut Option<f64>;

/// A label and its value, which a series must have.
type Wanted = Option<(&'static str, &'static str)>;

/// The families that have a number for the record.
const COUNTERS: [(&str, Wanted, Field); 14] = [
    ("pinfold_container_cpu_usage_seconds_total", None, |usage| {
        &mut usage.cpu_seconds
    }),
    (SWITCHES, Some(("kind", "voluntary")), |usage| {
        &mut usage.voluntary_switches
    }),
    (SWITCHES, Some(("kind", "involuntary")), |usage| {
        &mut usage.involuntary_switches
    }),
    (
        "pinfold_container_cpu_run_delay_seconds_total",
        None,
        |usage| &mut usage.run_delay_seconds,
    ),
    ("pinfold_pod_network_transmit_bytes_total", None, |usage| {
        &mut usage.sent_bytes
    }),
    ("pinfold_pod_network_receive_bytes_total", None, |usage| {
        &mut usage.received_bytes
    }),
    ("pinfold_container_instructions_total", None, |usage| {
        &mut usage.instructions
    }),
    ("pinfold_container_llc_misses_total", None, |usage| {
        &mut usage.llc_misses
    }),
    ("pinfold_container_cpu_periods_total", None, |usage| {
        &mut usage.quota_periods
    }),
    (
        "pinfold_container_cpu_throttled_periods_total",
        None,
        |usage| &mut usage.throttled_periods,
    ),
    (
        "pinfold_container_interference_cpu_seconds_total",
        None,
        |usage| &mut usage.interference_seconds,
    ),
    ("pinfold_container_cpus_assigned", None, |usage| {
        &mut usage.exclusive_cpus
    }),
    ("pinfold_container_threads", None, |usage| {
        &mut usage.threads
    }),
    ("pinfold_container_threads_expected", None, |usage| {
        &mut usage.threads_expected
    }),
];

/// How many seconds of history are kept.
const HISTORY: f64 = 600.0;

const SWITCHES: &str = "pinfold_container_context_switches_total";

/// The counter of bytes by peer.
const PEERS: &str = "pinfold_peer_transmit_bytes_total";

/// The families whose label says something, and the label.
const CPUSET: (&str, &str) = ("pinfold_container_cpuset_info", "cpus");
const VERDICT: (&str, &str) = ("pinfold_container_threads_verdict", "verdict");
const NOT_PINNED: (&str, &str) = ("pinfold_pod_not_pinned", "reason");

/// The usage of the tasks of a run, by the pod's name.
#[derive(Debug, Default)]
pub(super) struct UsageBook {
    namespace: String,
    pods: BTreeMap<String, TaskUsage>,
    /// The last value of each counter, by the series as written.
    last: HashMap<String, f64>,
    /// The usage of each pod after each page that had it, with the page's time. Only the last minutes stay, because the end of a
    /// run is known some seconds after it.
    history: BTreeMap<String, VecDeque<(f64, TaskUsage)>>,
}

// === impl UsageBook ===

impl UsageBook {
    /// A book about the pods of a namespace.
    pub(super) fn new(namespace: &str) -> Self {
        Self {
            namespace: namespace.to_owned(),
            ..Self::default()
        }
    }

    /// Adds a page (`/metrics`) that an agent answered at a time, in seconds since any fixed moment. Pods for which `is_ours` is
    /// false are left out.
    ///
    /// Counters begin at 0 with the pod, so the first value counts, too. A value below the last one means that the agent has begun to
    /// count again, and counts whole.
    pub(super) fn read(&mut self, page: &str, at: f64, is_ours: impl Fn(&str) -> bool) {
        let mut seen = BTreeSet::new();
        for series in exposition::series(page, is_wanted) {
            let (Some(namespace), Some(pod)) = (series.label("namespace"), series.label("pod"))
            else {
                continue;
            };
            if namespace != self.namespace || !is_ours(pod) {
                continue;
            }
            seen.insert(pod.to_owned());
            self.take(pod.to_owned(), &series);
        }
        for pod in seen {
            let usage = self.pods.get(&pod).cloned().unwrap_or_default();
            let history = self.history.entry(pod).or_default();
            history.push_back((at, usage));
            while history
                .front()
                .is_some_and(|(first, _)| at - first > HISTORY)
            {
                history.pop_front();
            }
        }
    }

    fn take(&mut self, pod: String, series: &Series<'_>) {
        if series.name == PEERS {
            if let Some(peer) = series.label("peer_pod").filter(|peer| !peer.is_empty()) {
                let peer = peer.to_owned();
                let more = self.increase(format!("{PEERS} {pod} {peer}"), series.value);
                let usage = self.pods.entry(pod).or_default();
                *usage.sent_to.entry(peer).or_default() += more;
            }
            return;
        }
        for (name, label, field) in COUNTERS {
            let fits = label.is_none_or(|(key, value)| series.label(key) == Some(value));
            if series.name != name || !fits {
                continue;
            }
            let parts =
                ["container", "interface", "kind"].map(|key| series.label(key).unwrap_or_default());
            let key = format!("{name} {pod} {}", parts.join(" "));
            let is_gauge = !name.ends_with("_total");
            let more = if is_gauge {
                series.value
            } else {
                self.increase(key, series.value)
            };
            let usage = self.pods.entry(pod.clone()).or_default();
            let total = field(usage);
            *total = Some(if is_gauge {
                more.max(total.unwrap_or_default())
            } else {
                total.unwrap_or_default() + more
            });
            return;
        }
        self.note_label(pod, series);
    }

    /// Notes what a label says. The last page counts, and a reason why a pod isn't pinned stays.
    fn note_label(&mut self, pod: String, series: &Series<'_>) {
        if series.value <= 0.0 {
            return;
        }
        let usage = self.pods.entry(pod).or_default();
        let fields = [
            (CPUSET, &mut usage.cpus),
            (VERDICT, &mut usage.threads_verdict),
            (NOT_PINNED, &mut usage.not_pinned),
        ];
        for ((name, label), field) in fields {
            if series.name == name {
                *field = series.label(label).map(str::to_owned);
            }
        }
    }

    fn increase(&mut self, key: String, value: f64) -> f64 {
        let last = self.last.insert(key, value).unwrap_or_default();
        if value < last { value } else { value - last }
    }

    /// The usage of a pod that began at a time, up to the last page that was read at or before `until`; if the first page came later,
    /// that one counts. `None` if no page had the pod.
    pub(super) fn of(&self, pod: &str, began: Option<f64>, until: f64) -> Option<TaskUsage> {
        let history = self.history.get(pod)?;
        let in_time = history.iter().rev().find(|(at, _)| *at <= until);
        let (at, usage) = in_time.or_else(|| history.front())?;
        let seconds = began.map(|began| at.min(until) - began);
        Some(TaskUsage {
            observed_seconds: seconds.filter(|seconds| *seconds > 0.0),
            ..usage.clone()
        })
    }
}

fn is_wanted(name: &str) -> bool {
    name == PEERS
        || COUNTERS.iter().any(|(wanted, ..)| *wanted == name)
        || [CPUSET, VERDICT, NOT_PINNED]
            .iter()
            .any(|(wanted, _)| *wanted == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(cpu: u32, voluntary: u32, bytes: u32) -> String {
        format!(
            "pinfold_container_cpu_usage_seconds_total{{namespace=\"a\",pod=\"w\",container=\"worker\"}} {cpu}\n\
             pinfold_container_cpu_usage_seconds_total{{namespace=\"b\",pod=\"w\",container=\"worker\"}} 900\n\
             pinfold_container_cpu_usage_seconds_total{{namespace=\"a\",pod=\"other\",container=\"worker\"}} 900\n\
             pinfold_container_context_switches_total{{namespace=\"a\",pod=\"w\",container=\"worker\",kind=\"voluntary\"}} {voluntary}\n\
             pinfold_container_context_switches_total{{namespace=\"a\",pod=\"w\",container=\"worker\",kind=\"involuntary\"}} 3\n\
             pinfold_pod_network_transmit_bytes_total{{namespace=\"a\",pod=\"w\",interface=\"eth0\"}} {bytes}\n\
             pinfold_pod_network_transmit_bytes_total{{namespace=\"a\",pod=\"w\",interface=\"eth1\"}} {bytes}\n\
             pinfold_peer_transmit_bytes_total{{namespace=\"a\",pod=\"w\",peer_namespace=\"a\",peer_pod=\"p\",peer_role=\"ps\"}} {bytes}\n\
             pinfold_container_cpuset_info{{namespace=\"a\",pod=\"w\",container=\"worker\",cpus=\"2-3\"}} 1\n\
             pinfold_container_cpus_assigned{{namespace=\"a\",pod=\"w\",container=\"worker\"}} 2\n\
             pinfold_container_threads_verdict{{namespace=\"a\",pod=\"w\",container=\"worker\",verdict=\"ok\",cause=\"\"}} 1\n\
             pinfold_container_threads_verdict{{namespace=\"a\",pod=\"w\",container=\"worker\",verdict=\"more\",cause=\"x\"}} 0\n"
        )
    }

    #[test]
    fn pages_are_added_up_and_a_new_count_counts_whole() {
        let mut book = UsageBook::new("a");
        let ours = |pod: &str| pod == "w";
        for (at, page) in [
            (10.0, page(5, 100, 1000)),
            (20.0, page(9, 150, 3000)),
            (30.0, page(12, 20, 4000)),
        ] {
            book.read(&page, at, ours);
        }
        book.read("", 40.0, ours);
        let usage = book.of("w", Some(4.0), 100.0).unwrap();
        assert_eq!(usage.cpu_seconds, Some(12.0));
        assert_eq!(usage.voluntary_switches, Some(170.0));
        assert_eq!(usage.involuntary_switches, Some(3.0));
        assert_eq!(usage.sent_bytes, Some(8000.0));
        assert_eq!(usage.received_bytes, None);
        assert_eq!(usage.sent_to["p"], 4000.0);
        assert_eq!(usage.exclusive_cpus, Some(2.0));
        assert_eq!(usage.cpus.as_deref(), Some("2-3"));
        assert_eq!(usage.threads_verdict.as_deref(), Some("ok"));
        assert_eq!(usage.observed_seconds, Some(26.0));
        assert_eq!(book.of("other", None, 100.0), None);
        // Of a run that ended before the last page, only the pages up to then count.
        let ended = book.of("w", Some(4.0), 24.0).unwrap();
        assert_eq!(
            (ended.observed_seconds, ended.cpu_seconds),
            (Some(16.0), Some(9.0))
        );
        let early = book.of("w", Some(4.0), 6.0).unwrap();
        assert_eq!(
            (early.observed_seconds, early.cpu_seconds),
            (Some(2.0), Some(5.0))
        );
    }

    #[test]
    fn every_family_is_one_of_the_agent() {
        let listed = include_str!("../../docs/reference/metrics.md");
        let names = COUNTERS.map(|(name, ..)| name);
        for name in names
            .into_iter()
            .chain([PEERS, CPUSET.0, VERDICT.0, NOT_PINNED.0])
        {
            assert!(listed.contains(&format!("- `{name}` (")), "{name}");
        }
    }
}
