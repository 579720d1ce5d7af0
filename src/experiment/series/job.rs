//! [`SeenJob`]: when a Prometheus saw the pods of a training job, and so when the job ran.
//!
//! An agent reports a pod as long as the pod is there, and each scrape of it is a sighting. A run begins with the first sighting
//! of a pod that trains, and its counters are about the time up to the last one. That this is the end of the job is true only if
//! the agent was scraped afterwards and no longer reported the pod: [`RunEnd`].

use std::collections::{BTreeMap, BTreeSet};

use super::answer::Series;
use crate::experiment::results::TRAINING;
use crate::experiment::statistics::quantile;
use crate::pod::ObjectName;

/// A gap of more than this many scrape intervals is time in which nobody saw the pods.
const GAP: f64 = 3.0;

/// A pod that was not reported for this many scrape intervals has ended, if its agent was scraped.
const SCRAPES_AFTER: f64 = 2.0;

/// The pods of a training job in a time range. Times are seconds since 1970.
#[derive(Debug, Clone, PartialEq)]
pub struct SeenJob {
    pub namespace: String,
    pub job: String,
    /// The pods by name.
    pub pods: BTreeMap<String, SeenPod>,
    /// The first sighting of a pod that trains; if none trains, of any.
    pub from: f64,
    /// The last one.
    pub to: f64,
    /// The usual time between two scrapes.
    pub interval: f64,
    /// Seconds in which no pod was seen.
    pub unseen: f64,
}

/// A pod, with the times at which it was seen.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct SeenPod {
    pub role: String,
    /// The index within the role, if it has one.
    pub index: Option<u32>,
    /// The node on which it was seen last, or the agent's target where no label names the node.
    pub node: String,
    reports: Vec<Reports>,
}

/// What a target reported of a pod.
#[derive(Debug, Clone, PartialEq)]
struct Reports {
    target: String,
    /// Several pods may have the name, as a StatefulSet makes one after the other.
    uid: String,
    /// When: in order, each time once.
    at: Vec<f64>,
}

/// How a run ended, as far as can be told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RunEnd {
    /// An agent was scraped and no longer reported the pod that was seen last.
    Seen,
    /// The job was still there when the time range ended.
    Cut,
    /// The agents weren't scraped after the last sighting, so the job may have gone on.
    OutOfSight { targets: Vec<String> },
}

/// The reason why a time range has no run.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoRun {
    #[error("the time range has no training pod")]
    Nobody,
    /// A single scrape gives no rate.
    #[error("{namespace}/{job} has samples of a single scrape: choose a longer time range")]
    Once { namespace: String, job: String },
    #[error("several jobs ran, {}: choose one with --job and --job-namespace, or choose a shorter time range", .0.join(", "))]
    Several(Vec<String>),
}

/// The pods of a job, by name.
type Pods = BTreeMap<String, SeenPod>;

// === impl SeenJob ===

impl SeenJob {
    /// Reads the answer to [`presence`](super::presence), asked each `step` seconds from `from` to `to`.
    ///
    /// # Errors
    /// Nobody, or several jobs.
    pub fn read(series: &[Series], from: f64, to: f64, step: f64) -> Result<Self, NoRun> {
        let (job, mut pods) = single_job(series, from, to)?;
        let (from, to) = time_of_run(&pods);
        // A pod that lived only before or after the run takes no part.
        pods.retain(|_, pod| {
            pod.span()
                .is_some_and(|(first, last)| first <= to && last >= from)
        });
        // Prometheus scrapes the targets in turn, so each of them tells alone how far apart scrapes are.
        let reports = pods.values().flat_map(|pod| &pod.reports);
        let distances: Vec<f64> = reports.flat_map(|one| distances(&one.at)).collect();
        let ObjectName { namespace, name } = job;
        let Some(interval) = quantile(&distances, 0.5).filter(|_| from < to) else {
            return Err(NoRun::Once {
                namespace,
                job: name,
            });
        };
        Ok(Self {
            unseen: unseen(&pods, (from, to), GAP * interval.max(step)),
            namespace,
            job: name,
            pods,
            from,
            to,
            interval,
        })
    }

    /// How long the job was seen, in seconds.
    pub fn seconds(&self) -> f64 {
        self.to - self.from
    }

    /// When the answer to [`scraped`](super::scraped) tells whether the job has ended, and the targets to ask about; `None` if the
    /// time range, which ends at `until`, is too short for that.
    pub fn after_the_end(&self, until: f64) -> Option<(f64, Vec<&str>)> {
        let at = self.to + SCRAPES_AFTER * self.interval;
        (at <= until).then(|| (at, self.last_targets()))
    }

    /// Takes the time between two scrapes from the answer to [`scrapes`](super::scrapes) over `seconds`: where the points of a query
    /// are further apart than scrapes, sightings don't tell it.
    pub fn take_interval(&mut self, scrapes: &[Series], seconds: f64) {
        let most = scrapes.iter().filter_map(Series::last).fold(0.0, f64::max);
        if most >= 2.0 {
            self.interval = self.interval.min(seconds / most);
        }
    }

    /// How the run ended, from the answer about [`Self::after_the_end`]: an agent of each pod that was seen last must have been
    /// scraped without it.
    pub fn end(&self, scraped: &[Series]) -> RunEnd {
        let is_after = |target: &str| {
            let mut of_target = scraped.iter().filter(|one| one.label("instance") == target);
            of_target.any(|one| one.last().is_some_and(|at| at > self.to))
        };
        let lost = self.last_pods().filter(|pod| {
            let mut reports = pod.reports.iter();
            !reports.any(|one| is_after(&one.target))
        });
        let targets: BTreeSet<&str> = lost.flat_map(SeenPod::targets).collect();
        if targets.is_empty() {
            return RunEnd::Seen;
        }
        RunEnd::OutOfSight {
            targets: targets.into_iter().map(str::to_owned).collect(),
        }
    }

    /// The targets that reported the pods that were seen last.
    pub fn last_targets(&self) -> Vec<&str> {
        let targets: BTreeSet<&str> = self.last_pods().flat_map(SeenPod::targets).collect();
        targets.into_iter().collect()
    }

    /// The pods with which the run ended.
    fn last_pods(&self) -> impl Iterator<Item = &SeenPod> {
        let any = any_trains(&self.pods);
        let pods = self.pods.values().filter(move |pod| !any || pod.trains());
        pods.filter(|pod| {
            pod.span()
                .is_some_and(|(_, last)| last > self.to - self.interval)
        })
    }

    /// What a pod used, from what each target reported of it.
    ///
    /// Targets that reported the same pod (by its uid) are one agent, scraped under several names, so only the greatest of their
    /// reports counts. Others are agents of the nodes on which pods of this name were one after the other, and add up.
    pub fn sum(&self, pod: &str, reports: &[(&str, f64)]) -> f64 {
        let agents = self.pods.get(pod).map(SeenPod::agents).unwrap_or_default();
        let of_agent = |targets: &BTreeSet<&str>| {
            let reports = reports
                .iter()
                .filter(|(target, _)| targets.contains(target));
            greatest(reports)
        };
        let known: Vec<f64> = agents.iter().filter_map(of_agent).collect();
        if known.is_empty() {
            greatest(reports.iter()).unwrap_or_default()
        } else {
            known.iter().sum()
        }
    }
}

// === impl SeenPod ===

impl SeenPod {
    /// The times of the first and the last sighting.
    pub fn span(&self) -> Option<(f64, f64)> {
        let spans = self.reports.iter().filter_map(Reports::span);
        spans.reduce(joined)
    }

    fn targets(&self) -> impl Iterator<Item = &str> {
        self.reports.iter().map(|one| one.target.as_str())
    }

    pub fn trains(&self) -> bool {
        TRAINING.contains(&self.role.as_str())
    }

    /// Adds a series of the pod, with its sightings in the requested time. A pod has a series for each target and uid.
    fn add(&mut self, series: &Series, sightings: Vec<f64>) {
        let last = sightings.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        if self.span().is_none_or(|(_, known)| last >= known) {
            let node = [series.label("node"), series.label("instance")];
            let node = node.into_iter().find(|name| !name.is_empty());
            self.node = node.unwrap_or_default().to_owned();
        }
        self.role = series.label("role").to_owned();
        self.index = series.label("replica_index").parse().ok();
        let (target, uid) = (series.label("instance"), series.label("uid"));
        let is_same = |one: &&mut Reports| one.target == target && one.uid == uid;
        match self.reports.iter_mut().find(is_same) {
            Some(known) => known.add(sightings),
            None => {
                let mut new = Reports {
                    target: target.to_owned(),
                    uid: uid.to_owned(),
                    at: Vec::new(),
                };
                new.add(sightings);
                self.reports.push(new);
            }
        }
    }

    /// The time of each pod of this name, one after the other.
    pub fn lives(&self) -> impl Iterator<Item = (f64, f64)> {
        let mut lives: BTreeMap<&str, (f64, f64)> = BTreeMap::new();
        for one in &self.reports {
            if let Some(span) = one.span() {
                let life = lives.entry(&one.uid).or_insert(span);
                *life = joined(*life, span);
            }
        }
        lives.into_values()
    }

    /// The targets of each agent: those that are joined by a pod, or by several.
    fn agents(&self) -> Vec<BTreeSet<&str>> {
        let mut agents: Vec<(BTreeSet<&str>, BTreeSet<&str>)> = Vec::new();
        for one in &self.reports {
            let mut agent = (
                BTreeSet::from([one.target.as_str()]),
                BTreeSet::from([one.uid.as_str()]),
            );
            agents.retain(|(targets, uids)| {
                let is_other = targets.is_disjoint(&agent.0) && uids.is_disjoint(&agent.1);
                if !is_other {
                    agent.0.extend(targets);
                    agent.1.extend(uids);
                }
                is_other
            });
            agents.push(agent);
        }
        agents.into_iter().map(|(targets, _)| targets).collect()
    }
}

// === impl Reports ===

impl Reports {
    fn add(&mut self, sightings: Vec<f64>) {
        self.at.extend(sightings);
        self.at.sort_by(f64::total_cmp);
        self.at.dedup();
    }

    fn span(&self) -> Option<(f64, f64)> {
        Some((*self.at.first()?, *self.at.last()?))
    }
}

/// From the first to the last of two times.
fn joined(one: (f64, f64), other: (f64, f64)) -> (f64, f64) {
    (one.0.min(other.0), one.1.max(other.1))
}

/// The only job in a time range, with its pods.
fn single_job(series: &[Series], from: f64, to: f64) -> Result<(ObjectName, Pods), NoRun> {
    let mut jobs: BTreeMap<ObjectName, Pods> = BTreeMap::new();
    for of_pod in series {
        // A scrape before the requested time does not count, even if its value still held.
        let sightings = of_pod.points.iter().map(|(_, at)| *at);
        let sightings: Vec<f64> = sightings.filter(|at| (from..=to).contains(at)).collect();
        if sightings.is_empty() {
            continue;
        }
        let job = ObjectName::new(of_pod.label("namespace"), of_pod.label("training_job"));
        let pods = jobs.entry(job).or_default();
        let pod = pods.entry(of_pod.label("pod").to_owned()).or_default();
        pod.add(of_pod, sightings);
    }
    if jobs.len() > 1 {
        let names = jobs.keys().map(ObjectName::to_string);
        return Err(NoRun::Several(names.collect()));
    }
    jobs.into_iter().next().ok_or(NoRun::Nobody)
}

fn any_trains(pods: &Pods) -> bool {
    pods.values().any(SeenPod::trains)
}

/// The first and the last sighting of a pod that trains, because parameter servers wait before and after. Without such a pod, all
/// count.
fn time_of_run(pods: &Pods) -> (f64, f64) {
    let any = any_trains(pods);
    let spans = pods.values().filter(|pod| !any || pod.trains());
    let spans = spans.filter_map(SeenPod::span);
    spans.fold((f64::INFINITY, f64::NEG_INFINITY), joined)
}

/// The seconds of a run's gaps longer than `longest`, in which no pod was seen.
fn unseen(pods: &Pods, (from, to): (f64, f64), longest: f64) -> f64 {
    let reports = pods.values().flat_map(|pod| &pod.reports);
    let all = reports.flat_map(|one| one.at.iter().copied());
    let mut all: Vec<f64> = all.filter(|at| (from..=to).contains(at)).collect();
    all.sort_by(f64::total_cmp);
    distances(&all).filter(|gap| *gap > longest).sum()
}

fn distances(times: &[f64]) -> impl Iterator<Item = f64> {
    times
        .windows(2)
        .filter_map(|two| Some(two.last()? - two.first()?))
}

fn greatest<'a>(reports: impl Iterator<Item = &'a (&'a str, f64)>) -> Option<f64> {
    reports.map(|(_, value)| *value).max_by(f64::total_cmp)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sightings(labels: &[(&str, &str)], at: &[f64]) -> Series {
        let labels = labels
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        Series {
            labels: labels.collect(),
            points: at.iter().map(|at| (at + 2.0, *at)).collect(),
        }
    }

    #[test]
    fn pods_are_joined_over_nodes_and_scrapes() {
        let ps = [
            ("namespace", "t"),
            ("training_job", "j"),
            ("pod", "ps-0"),
            ("role", "ps"),
            ("replica_index", "0"),
        ];
        let mut moved = ps.to_vec();
        moved.extend([("node", "n2"), ("instance", "10.0.0.2:9"), ("uid", "b")]);
        let mut before = ps.to_vec();
        before.extend([("instance", "10.0.0.1:9"), ("uid", "a")]);
        // Scraped each 10 s and asked for each 5 s: the same scrape is there twice. The first was before the time.
        let series = [
            sightings(&moved, &[200.0, 210.0, 220.0]),
            sightings(&before, &[95.0, 105.0, 105.0, 115.0, 115.0, 125.0]),
        ];
        let job = SeenJob::read(&series, 100.0, 300.0, 5.0).unwrap();
        assert_eq!((job.namespace.as_str(), job.job.as_str()), ("t", "j"));
        let pod = &job.pods["ps-0"];
        assert_eq!((pod.node.as_str(), pod.index), ("n2", Some(0)));
        assert_eq!((job.from, job.to, job.interval), (105.0, 220.0, 10.0));
        assert_eq!(pod.span(), Some((105.0, 220.0)));
        assert!(pod.lives().eq([(105.0, 125.0), (200.0, 220.0)]));
        assert!(
            (job.unseen - 75.0).abs() < 1e-9,
            "from 125 to 200: {}",
            job.unseen
        );
    }

    #[test]
    fn agents_add_up_and_names_of_an_agent_do_not() {
        let every: Vec<f64> = (10..=20).map(|at| f64::from(at) * 10.0).collect();
        let seen = |pod: &'static str, target: &'static str, uid: &'static str| {
            let labels = [
                ("training_job", "j"),
                ("pod", pod),
                ("role", "worker"),
                ("instance", target),
                ("uid", uid),
            ];
            sightings(&labels, &every)
        };
        let series = [
            seen("moved", "a", "1"),
            seen("moved", "b", "2"),
            seen("twice", "a", "3"),
            seen("twice", "b", "3"),
            // Two names of an agent, on which a second pod came after the first, and which a third name joins.
            seen("again", "a", "4"),
            seen("again", "c", "5"),
            seen("again", "b", "4"),
            seen("again", "b", "5"),
        ];
        let job = SeenJob::read(&series, 0.0, 999.0, 1.0).unwrap();
        let reports = [("a", 30.0), ("b", 40.0)];
        assert_eq!(job.sum("moved", &reports), 70.0);
        assert_eq!(job.sum("twice", &reports), 40.0);
        assert_eq!(job.sum("twice", &[("b", 40.0)]), 40.0);
        assert_eq!(job.sum("again", &[("a", 5.0), ("b", 7.0), ("c", 2.0)]), 7.0);
        // A target that didn't report the pod itself, or a pod that nobody saw.
        assert_eq!(job.sum("twice", &[("z", 7.0)]), 7.0);
        assert_eq!(job.sum("nobody", &reports), 40.0);
        assert_eq!(job.sum("nobody", &[]), 0.0);
    }

    fn pod(pod: &'static str, role: &'static str) -> [(&'static str, &'static str); 5] {
        [
            ("namespace", "t"),
            ("training_job", "j"),
            ("pod", pod),
            ("role", role),
            ("instance", pod),
        ]
    }

    fn every_ten(from: u32, to: u32) -> Vec<f64> {
        (from..=to).step_by(10).map(f64::from).collect()
    }

    #[test]
    fn servers_that_wait_for_others_do_not_make_a_run_longer() {
        let series = [
            sightings(&pod("ps-0", "ps"), &every_ten(0, 5000)),
            sightings(&pod("w-0", "worker"), &every_ten(100, 400)),
            sightings(&pod("w-1", "worker"), &every_ten(150, 700)),
            sightings(&pod("late", "evaluator"), &every_ten(710, 5000)),
        ];
        let job = SeenJob::read(&series, 0.0, 9000.0, 1.0).unwrap();
        assert_eq!((job.from, job.to, job.unseen), (100.0, 700.0, 0.0));
        assert_eq!(job.pods.keys().collect::<Vec<_>>(), ["ps-0", "w-0", "w-1"]);
        // Without a training role, the servers' time is the run's time.
        let alone = SeenJob::read(&series[..1], 0.0, 9000.0, 1.0).unwrap();
        assert_eq!((alone.from, alone.to), (0.0, 5000.0));
        // The training pods were seen once, which is too little for a report, even if other pods ran longer.
        let once = [
            series[0].clone(),
            sightings(&pod("w-0", "worker"), &[100.0]),
        ];
        assert!(matches!(
            SeenJob::read(&once, 0.0, 9000.0, 1.0),
            Err(NoRun::Once { .. })
        ));
    }

    #[test]
    fn a_job_has_ended_if_its_agent_was_scraped_without_it() {
        let series = [
            sightings(&pod("ps-0", "ps"), &every_ten(0, 900)),
            sightings(&pod("w-0", "worker"), &every_ten(100, 400)),
            sightings(&pod("w-1", "worker"), &every_ten(103, 403)),
        ];
        let job = SeenJob::read(&series, 0.0, 420.0, 1.0).unwrap();
        assert_eq!(job.after_the_end(420.0), None, "the range ends too early");
        let asked = job.after_the_end(500.0);
        assert_eq!(asked, Some((423.0, vec!["w-0", "w-1"])), "not the server's");
        let scraped = |target: &str, at: f64| Series {
            labels: BTreeMap::from([("instance".to_owned(), target.to_owned())]),
            points: vec![(423.0, at)],
        };
        let both = |at: f64| [scraped("w-0", at), scraped("w-1", at)];
        let lost = |targets: &[&str]| RunEnd::OutOfSight {
            targets: targets.iter().map(|one| (*one).to_owned()).collect(),
        };
        assert_eq!(job.end(&both(413.0)), RunEnd::Seen);
        assert_eq!(
            job.end(&both(403.0)),
            lost(&["w-0", "w-1"]),
            "the same scrape"
        );
        assert_eq!(job.end(&[]), lost(&["w-0", "w-1"]));
        // The agent of one of the last pods was lost, so that pod may have gone on.
        assert_eq!(job.end(&[scraped("w-1", 413.0)]), lost(&["w-0"]));
    }

    #[test]
    fn nobody_and_several_are_no_answer() {
        assert_eq!(SeenJob::read(&[], 0.0, 9.0, 1.0), Err(NoRun::Nobody));
        let a = [("namespace", "t"), ("training_job", "a"), ("pod", "p")];
        let b = [("namespace", "t"), ("training_job", "b"), ("pod", "p")];
        assert_eq!(
            SeenJob::read(&[sightings(&a, &[20.0])], 0.0, 9.0, 1.0),
            Err(NoRun::Nobody),
            "later"
        );
        let once = SeenJob::read(&[sightings(&a, &[5.0, 5.0])], 0.0, 9.0, 1.0).unwrap_err();
        assert!(
            once.to_string()
                .starts_with("t/a has samples of a single scrape"),
            "{once}"
        );
        let several = [sightings(&a, &[5.0, 6.0]), sightings(&b, &[5.0, 6.0])];
        let several = SeenJob::read(&several, 0.0, 9.0, 1.0).unwrap_err();
        assert!(
            several
                .to_string()
                .starts_with("several jobs ran, t/a, t/b: choose one"),
            "{several}"
        );
    }
}
