//! The claims of articles about pinning, the bench's result for each, and why this machine may not
//! confirm it.

use serde::Serialize;

use super::effect::{Comparison, Effect, MachineFacts, Metric, WaySummary};
use super::plan::{BenchPlan, BenchProgram};
use crate::text::counted;

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Claim {
    pub claimed: &'static str,
    pub comparison: Comparison,
    pub metric: Metric,
    /// The bench's result, in words.
    pub here: String,
    /// The differences between the article's setup and this machine, each as a sentence.
    pub but: Vec<String>,
}

/// The claims, all of one article: wide & deep models on hosts with 80 CPUs.
pub(super) fn claims(
    plan: &BenchPlan,
    effects: &[Effect],
    ways: &[WaySummary],
    found: &MachineFacts,
) -> Vec<Claim> {
    let claim = |claimed, comparison, metric, but: Vec<String>| {
        let effect = effects
            .iter()
            .find(|effect| effect.comparison == comparison && effect.metric == metric);
        let here = match found.not_counted.get(&metric) {
            Some(reason) => format!("not measured: {reason}"),
            None => effect.map_or_else(|| "not measured".to_owned(), |effect| effect.words.clone()),
        };
        Claim {
            claimed,
            comparison,
            metric,
            here,
            but,
        }
    };
    let (pinned, threads) = (about_pinning(plan, found), about_threads(plan, ways));
    vec![
        claim(
            "exclusive CPUs: +20 % speed or more, on a full node where all pods have the same requests",
            Comparison::Pinned,
            Metric::StepsPerSecond,
            pinned,
        ),
        // The claim is compared on shared CPUs, because a pinned program may choose the right
        // number without variables, and the bench would then give it a wrong one.
        claim(
            "right thread counts: +5 % speed",
            Comparison::RightShared,
            Metric::StepsPerSecond,
            threads.clone(),
        ),
        claim(
            "right thread counts: -40 % context switches",
            Comparison::RightShared,
            Metric::ContextSwitchesPerStep,
            threads,
        ),
    ]
}

fn about_pinning(plan: &BenchPlan, found: &MachineFacts) -> Vec<String> {
    let mut but = vec![
        "in the article, shared tasks had no limits; here, shared tasks have the CFS quota of a pod with limits"
            .to_owned(),
    ];
    if !plan.is_full() {
        let requested = plan.requested() as f64 / 1000.0;
        but.push(format!(
            "this node was not full: the requests were {requested:.1} of {}",
            counted(plan.online.len(), "CPU")
        ));
    }
    if plan.neighbors.count > 0 && plan.neighbors.request_milli_cpus == 0 {
        but.push(
            "the neighbors are BestEffort, so the kernel prefers the job even on shared CPUs"
                .to_owned(),
        );
    }
    if !plan.full_node {
        but.push(
            "in the article, all containers of the node ran the same program: --full-node does this"
                .to_owned(),
        );
    }
    let (busy, left) = plan.busy();
    if plan.is_full() && busy < left as f64 {
        but.push(format!(
            "the neighbors keep {busy:.1} CPUs busy, of the {left} without exclusive tasks"
        ));
    }
    let free = plan.online.difference(&plan.reserved).len();
    if matches!(plan.work, BenchProgram::BuiltIn) && plan.ps > 0 && plan.ps_cpus == 0 {
        but.push(format!(
            "only {free} of {} can be exclusive: in pinned runs, the parameter server shares the other CPUs with the \
             neighbors and the system, and the workers wait for the server",
            counted(plan.online.len(), "CPU")
        ));
    } else if plan.online.len() < 8 {
        but.push(format!(
            "a machine with {} is small: the reserved CPUs are a large part of the machine",
            counted(plan.online.len(), "CPU")
        ));
    }
    if found.enforcement == "cpuset" {
        but.push(
            "with enforcement cpuset, tasks outside the pods still run on exclusive CPUs"
                .to_owned(),
        );
    }
    but
}

fn about_threads(plan: &BenchPlan, ways: &[WaySummary]) -> Vec<String> {
    let mut but = Vec::new();
    let host = plan
        .host_threads
        .map_or(plan.online.len() as u64, u64::from);
    let times = host as f64 / f64::from(plan.cpus);
    if times < 8.0 {
        but.push(format!(
            "the host's threads are only {times:.1} times the right threads here ({host} and {}), but were 10 times or more \
             in the article: --host-threads 80 simulates such a host",
            plan.cpus
        ));
    } else if let Some(host_cpus) = plan
        .host_threads
        .filter(|&host_cpus| host_cpus as usize != plan.online.len())
    {
        but.push(format!(
            "the host's threads are those of a host with {}, on a machine with {}",
            counted(host_cpus, "CPU"),
            counted(plan.online.len(), "CPU")
        ));
    }
    let threads = |index: usize| ways.get(index).and_then(|way| way.thread_count);
    for (ways, place) in [((0, 1), "in the shared pool"), ((2, 3), "pinned")] {
        if let (Some(host), Some(right)) = (threads(ways.0), threads(ways.1))
            && host == right
            && !plan.runs_to_end()
        {
            but.push(format!(
                "{place}, the job has {} both ways: the job ignores the variables, or chooses the right number without \
                 variables",
                counted(host, "thread")
            ));
        }
    }
    if plan.host_threads.is_some() {
        but.push(
            "pinned, a program that reads its CPUs, like TensorFlow, would not use the host's threads that the bench sets"
                .to_owned(),
        );
    }
    but
}

#[cfg(test)]
mod tests {
    use super::super::report::tests::{plan, runs};
    use super::super::report::{BenchReport, MachineFacts};
    use super::*;

    #[test]
    fn a_small_machine_says_what_it_cannot_show() {
        let found = MachineFacts {
            enforcement: "cpuset".to_owned(),
            ..MachineFacts::default()
        };
        let report = BenchReport::new(
            plan(6),
            runs(6, |_, _| vec![(Metric::StepsPerSecond, 5.0)]),
            found,
        )
        .unwrap();
        let [pinning, speed, switches] = report.claims.as_slice() else {
            unreachable!("three claims")
        };
        assert_eq!(pinning.here, "no effect (0 to 0 %; 1 % would show)");
        let but = pinning.but.join("\n");
        for says in [
            "had no limits",
            "--full-node",
            "2 CPUs is small",
            "enforcement cpuset",
        ] {
            assert!(but.contains(says), "{says}: {but}");
        }
        let but = speed.but.join("\n");
        assert!(
            but.contains("only 2.0 times")
                && but.contains("pinned, the job has 7 threads both ways"),
            "{but}"
        );
        assert_eq!(switches.here, "not measured");
    }

    #[test]
    fn neighbors_that_sleep_fill_no_node() {
        let but = |busy| {
            let mut plan = plan(6);
            plan.neighbors.busy_percent = Some(busy);
            about_pinning(&plan, &MachineFacts::default()).join("\n")
        };
        assert!(
            but(10).contains("the neighbors keep 0.4 CPUs busy, of the 1 without"),
            "{}",
            but(10)
        );
        assert!(!but(100).contains("busy"), "{}", but(100));
    }

    #[test]
    fn threads_of_a_larger_host_are_named() {
        let mut plan = plan(6);
        plan.host_threads = Some(80);
        let report =
            BenchReport::new(plan, runs(6, |_, _| vec![]), MachineFacts::default()).unwrap();
        let but = report.claims[1].but.join("\n");
        assert!(
            but.contains("a host with 80 CPUs, on a machine with 2 CPUs") && !but.contains("only"),
            "{but}"
        );
    }
}
