//! Sentences about what a bench compares, and about the limits of the machine.

use super::plan::{BenchPlan, BenchProgram};
use crate::sandbox::job::SERVER_CPUS;
use crate::text::counted;

impl BenchPlan {
    /// The comparison, the neighbors, and the limits of this machine, each as a sentence.
    pub fn compared(&self) -> Vec<String> {
        let task = match self.work {
            BenchProgram::BuiltIn => "job",
            BenchProgram::Command { .. } => "command",
        };
        let mut sentences = vec![
            format!(
                "Each round runs the same {task} in four ways: on shared CPUs with the CPU limit as a quota, or on exclusive \
                 CPUs; with the host's threads, or with as many threads as CPUs."
            ),
            self.beside(),
        ];
        let online = self.online.len();
        if self.ps == 0 && online < SERVER_CPUS && matches!(self.work, BenchProgram::BuiltIn) {
            sentences.push(format!(
                "With {}, the bench shows the effect on one worker; a job with a parameter server needs a machine with \
                 {SERVER_CPUS} CPUs or more.",
                counted(online, "CPU")
            ));
        }
        sentences
    }

    /// The other pods, as a sentence.
    fn beside(&self) -> String {
        let neighbors = &self.neighbors;
        let online = counted(self.online.len(), "CPU");
        if self.full_node {
            return format!(
                "{} of {} fill the {online}: {} measured, and the others run the same program without a limit.",
                counted(self.workers + neighbors.count, "equal container"),
                counted(self.cpus, "CPU"),
                match self.workers {
                    1 => "1 is".to_owned(),
                    workers => format!("{workers} are"),
                }
            );
        }
        if neighbors.count == 0 {
            return "No other pods run, so the measured pods have all shared CPUs for themselves."
                .to_owned();
        }
        if neighbors.request_milli_cpus == 0 {
            return neighbors.without_requests("the measured pods");
        }
        format!(
            "The neighbors ({}) request {:.1} of {online}: the node is {}.",
            neighbors.in_words("pod"),
            neighbors.requested() as f64 / 1000.0,
            if self.is_full() { "full" } else { "not full" }
        )
    }
}

#[cfg(test)]
mod tests {
    use super::super::plan::PlanOptions;
    use super::super::plan::tests::machine;
    use super::*;
    use crate::sandbox::neighbors::NeighborKind;

    fn words(cores: u32, options: PlanOptions) -> String {
        let plan = BenchPlan::new(options, &machine(cores), &"0".parse().unwrap()).unwrap();
        plan.compared().join(" ")
    }

    #[test]
    fn a_paragraph_says_what_runs_beside_the_job() {
        let small = words(2, PlanOptions::default());
        assert!(
            small.contains("(2 pods with 2 threads each) request 1.0 of 2 CPUs: the node is full")
                && small.contains("With 2 CPUs"),
            "{small}"
        );
        let equal = PlanOptions {
            full_node: true,
            ..PlanOptions::default()
        };
        let equal = words(16, equal);
        assert!(
            equal.contains("4 equal containers of 4 CPUs fill the 16 CPUs: 1 is measured")
                && !equal.contains("With 16"),
            "{equal}"
        );
        let old = PlanOptions {
            neighbor_kind: NeighborKind::BestEffort,
            command: Some("true".to_owned()),
            ..PlanOptions::default()
        };
        let old = words(2, old);
        assert!(
            old.contains("the same command")
                && old.contains("1 BestEffort pod with 3 threads each"),
            "{old}"
        );
        let alone = PlanOptions {
            neighbor_pods: Some(0),
            ..PlanOptions::default()
        };
        assert!(words(8, alone).contains("No other pods run"));
    }
}
