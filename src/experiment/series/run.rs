//! [`ObservedRun`]: a run that a Prometheus has watched, and what was measured of it.

use std::collections::BTreeMap;

use super::job::{RunEnd, SeenJob, SeenPod};
use super::query::Measure;
use super::time::time;
use super::usage::SeriesUsage;
use crate::experiment::results::{EvidenceSource, MeasuredRun, TaskRecord};
use crate::text::units;

/// How many names a sentence has.
const NAMED: usize = 5;

/// What a Prometheus knows of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct ObservedRun {
    pub name: String,
    /// The scene and the case of the nodes' labels, if the run was chosen by them.
    pub scene: Option<String>,
    pub case: Option<String>,
    pub job: SeenJob,
    pub end: RunEnd,
    pub used: SeriesUsage,
    /// The metric of the steps, if the user named one.
    pub step_metric: Option<String>,
}

/// A task with its pods in the order of their sightings: several if it was restarted as another pod.
type PodsOfTask<'a> = Vec<(&'a str, &'a SeenPod)>;

// === impl ObservedRun ===

impl ObservedRun {
    /// The run, as it is compared with others.
    pub fn measured(&self) -> MeasuredRun {
        let tasks = self.tasks();
        let steps = tasks.iter().filter(|task| task.trains());
        let steps: Vec<f64> = steps.filter_map(|task| task.steps).collect();
        let seconds = self.job.seconds();
        MeasuredRun {
            began: Some(time(self.job.from)),
            ended: (self.end == RunEnd::Seen).then(|| time(self.job.to)),
            seconds: Some(seconds),
            steps_per_second: (!steps.is_empty()).then(|| steps.iter().sum::<f64>() / seconds),
            warnings: self.doubts(&tasks),
            tasks,
            evidence: Some(EvidenceSource::Prometheus),
        }
    }

    fn tasks(&self) -> Vec<TaskRecord> {
        let pods = self.job.pods.keys().map(String::as_str);
        let sockets = self.used.sockets_know_more(pods);
        let mut tasks: BTreeMap<(&str, Option<u32>, &str), PodsOfTask> = BTreeMap::new();
        for (name, pod) in &self.job.pods {
            // Without an index, nobody can tell which pods are the same task.
            let alone = if pod.index.is_some() { "" } else { name };
            let key = (pod.role.as_str(), pod.index, alone);
            tasks.entry(key).or_default().push((name, pod));
        }
        tasks
            .into_values()
            .filter_map(|pods| self.task(pods, sockets))
            .collect()
    }

    fn task(&self, mut pods: PodsOfTask<'_>, sockets: bool) -> Option<TaskRecord> {
        let times = |pod: &SeenPod| pod.span().unwrap_or_default();
        pods.sort_by(|(_, one), (_, other)| times(one).0.total_cmp(&times(other).0));
        let (first, last) = (pods.first()?.1, pods.last()?);
        let names: Vec<&str> = pods.iter().map(|(name, _)| *name).collect();
        let seconds = self.seconds_of(&pods);
        let steps = self.used.amount(Measure::Steps, &names);
        Some(TaskRecord {
            role: last.1.role.clone(),
            index: last.1.index,
            pod: last.0.to_owned(),
            node: Some(last.1.node.clone()).filter(|node| !node.is_empty()),
            began: Some(time(times(first).0)),
            ended: None,
            restarts: u32::try_from(pods.len() - 1).unwrap_or(u32::MAX),
            steps,
            step_seconds: steps.map(|_| seconds),
            usage: self.used.of(&names, sockets, seconds),
        })
    }

    /// The seconds of the run in which the pods were there, which is what their counters are about. A pod lives up to an interval
    /// longer than its sightings tell, and `increase` adds that, too.
    fn seconds_of(&self, pods: &PodsOfTask<'_>) -> f64 {
        let SeenJob {
            from, to, interval, ..
        } = self.job;
        let lives = pods.iter().flat_map(|(_, pod)| pod.lives());
        let within = lives.filter(|(first, last)| *first <= to && *last >= from);
        let seen = within.map(|(first, last)| last.min(to) - first.max(from) + interval);
        seen.sum::<f64>().min(self.job.seconds())
    }

    /// What makes the run doubtful, in sentences.
    fn doubts(&self, tasks: &[TaskRecord]) -> Vec<String> {
        let mut doubts: Vec<String> = self.doubt_about_the_end().into_iter().collect();
        if self.job.unseen > 0.0 {
            doubts.push(format!(
                "there are no samples for {} of the run; only the counters' growth over that time is known",
                units::seconds(self.job.unseen)
            ));
        }
        let without = |known: &dyn Fn(&TaskRecord) -> bool| -> Vec<String> {
            let tasks = tasks.iter().filter(|task| !known(task));
            tasks.map(TaskRecord::name).collect()
        };
        let network =
            without(&|task| task.usage.sent_bytes.is_some() && task.usage.received_bytes.is_some());
        if !network.is_empty() {
            doubts.push(format!(
                "there are no network bytes of {}: pods on the host's network need metrics.sockets",
                first_names(&network)
            ));
        }
        let cpu = without(&|task| task.usage.cpu_seconds.is_some());
        if !cpu.is_empty() {
            doubts.push(format!("there is no CPU time of {}", first_names(&cpu)));
        }
        doubts.extend(self.doubt_about_steps(tasks));
        if !tasks.iter().any(TaskRecord::trains) {
            doubts.push("the run has no task that trains".to_owned());
        }
        doubts
    }

    fn doubt_about_the_end(&self) -> Option<String> {
        match &self.end {
            RunEnd::Seen => None,
            RunEnd::Cut => Some(
                "the job was still there at the end of the time range, so only the part up to then is known".to_owned(),
            ),
            RunEnd::OutOfSight { targets } => Some(format!(
                "{} {} not scraped after {}, so the job may have gone on; its figures are about the time before",
                first_names(targets),
                if targets.len() == 1 { "was" } else { "were" },
                time(self.job.to)
            )),
        }
    }

    fn doubt_about_steps(&self, tasks: &[TaskRecord]) -> Option<String> {
        let training = tasks.iter().filter(|task| task.trains());
        let (stepping, stepless): (Vec<&TaskRecord>, Vec<&TaskRecord>) =
            training.partition(|task| task.steps.is_some());
        match &self.step_metric {
            None => {
                Some("no steps are known: name the counter of steps with --step-metric".to_owned())
            }
            Some(metric) if stepping.is_empty() => Some(format!(
                "no steps are known: no series of {metric} has the namespace and pod of a task that trains"
            )),
            Some(metric) if !stepless.is_empty() && stepping.len() > 1 => {
                let names: Vec<String> = stepless.iter().map(|task| task.name()).collect();
                Some(format!("{metric} has no steps of {}", first_names(&names)))
            }
            Some(_) => None,
        }
    }
}

/// The first names, and the number of further names.
fn first_names(names: &[String]) -> String {
    let shown = names.get(..NAMED.min(names.len())).unwrap_or_default();
    match names.len() - shown.len() {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}
