//! The members of a run: the tasks' pods with their nodes and times.

use std::collections::{BTreeMap, BTreeSet};

use super::answer::Series;
use super::figures::median;
use crate::pod::ObjectName;

/// The factor above the usual distance of scrapes that makes a break.
const BREAK: f64 = 3.0;

/// Roles that train. The run lasts while a training role is present. Parameter servers wait before and after the run.
pub(super) const TRAINING: [&str; 3] = ["worker", "chief", "master"];

/// A pod of a task.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Member {
    /// The pod's task in the job.
    pub role: String,
    /// The index within the role; empty if unknown.
    pub index: String,
    /// The nodes that it was seen on, or the agents' targets where no label names a node.
    pub nodes: BTreeSet<String>,
    /// The places of the nodes in the scene: the type, if any, and the index.
    pub slots: BTreeSet<String>,
    /// When it was scraped, in seconds since 1970, without gaps' insides: distinct, in order.
    sightings: Vec<f64>,
    /// The first and the last report of each target.
    reports: BTreeMap<String, (f64, f64)>,
}

/// The pods of a training job in a time range.
#[derive(Debug, Clone, PartialEq)]
pub struct Members {
    /// The job's namespace.
    pub namespace: String,
    /// The job's name.
    pub job: String,
    /// The pods by name.
    pub pods: BTreeMap<String, Member>,
    /// When the first of them that trains was seen first, in seconds since 1970; if none trains, the first of all.
    pub from: f64,
    /// The time of the last sighting of any pod.
    pub to: f64,
    /// The time between two scrapes, as far as could be seen, in seconds.
    pub interval: f64,
    /// Seconds in which no pod was seen.
    pub unseen: f64,
    /// The number of breaks without any pod.
    breaks: u32,
}

/// The pods of a job, by name.
type JobPods = BTreeMap<String, Member>;

/// The time of a pod on one node, from all targets that reported the pod.
struct NodeStay<'a> {
    targets: Vec<&'a str>,
    from: f64,
    to: f64,
}

/// The reason why no pod took part.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoMembers {
    /// No series.
    #[error("the time range has no training pod")]
    Nobody,
    /// A single scrape gives no rate.
    #[error("{namespace}/{job} has samples of a single scrape: choose a longer time range")]
    Once {
        /// The job's namespace.
        namespace: String,
        /// The job.
        job: String,
    },
    /// Several jobs.
    #[error("several jobs ran, {}: choose one with --job and --job-namespace, or choose a shorter time range", .0.join(", "))]
    Several(Vec<String>),
}

// === impl Members ===

impl Members {
    /// Reads the answer to [`presence`](super::presence), asked each `step` seconds from `from` to `to`.
    ///
    /// # Errors
    /// Nobody, or several jobs.
    pub fn read(series: &[Series], from: f64, to: f64, step: f64) -> Result<Self, NoMembers> {
        let mut jobs: BTreeMap<ObjectName, JobPods> = BTreeMap::new();
        for pod_series in series {
            // A scrape before the requested time does not count, even if its value still held.
            let sightings = pod_series
                .points
                .iter()
                .map(|(_, at)| *at)
                .filter(|at| (from..=to).contains(at));
            let sightings: Vec<f64> = sightings.collect();
            if sightings.is_empty() {
                continue;
            }
            let (namespace, job) = (
                pod_series.label("namespace"),
                pod_series.label("training_job"),
            );
            let job = ObjectName::new(namespace, job);
            jobs.entry(job)
                .or_default()
                .entry(pod_series.label("pod").to_owned())
                .or_default()
                .add(pod_series, sightings);
        }
        let (
            ObjectName {
                namespace,
                name: job,
            },
            mut pods,
        ) = single_job(jobs)?;
        for member in pods.values_mut() {
            distinct(&mut member.sightings);
        }
        let (from, to) = time_of_run(&pods);
        // A pod that lived only before or after the run takes no part.
        pods.retain(|_, member| {
            member
                .span()
                .is_some_and(|(first, last)| first <= to && last >= from)
        });
        let Some(interval) = scrape_interval(&pods).filter(|_| from < to) else {
            return Err(NoMembers::Once { namespace, job });
        };
        let (unseen, breaks) = breaks(&pods, (from, to), BREAK * interval.max(step));
        Ok(Self {
            namespace,
            job,
            pods,
            from,
            to,
            interval,
            unseen,
            breaks,
        })
    }

    /// Takes the time between two scrapes from the answer to [`scrapes`](super::scrapes), which has the number of each pod's
    /// scrapes. [`Self::read`] can't see scrapes that are closer to each other than the steps of its query.
    pub fn count(&mut self, series: &[Series]) {
        let apart = |one: &Series| {
            let (first, last) = self.pods.get(one.label("pod"))?.span()?;
            let seconds = last.min(self.to) - first.max(self.from) - self.unseen;
            let times = one.last()? - 1.0 - f64::from(self.breaks);
            Some(seconds / times).filter(|apart| times >= 1.0 && *apart > 0.0)
        };
        self.interval = median(series.iter().filter_map(apart)).unwrap_or(self.interval);
    }

    /// How long the job was seen, in seconds.
    pub fn seconds(&self) -> f64 {
        self.to - self.from
    }

    /// The amount that a pod used, from the amount that each target reported.
    ///
    /// A pod that was on two nodes one after the other used what both agents report together. An agent that is scraped as two
    /// targets reports the same amount twice, so of the targets of one stay, only the greatest report counts.
    pub fn sum(&self, pod: &str, reports: &[(&str, f64)]) -> f64 {
        let stays = self.stays(pod);
        let known: Vec<f64> = stays.iter().filter_map(|stay| stay.most(reports)).collect();
        if known.is_empty() {
            greatest(reports.iter()).unwrap_or_default()
        } else {
            known.iter().sum()
        }
    }

    /// The average of something over the whole run, such as of a pod's CPUs, from the average that each target reported over the
    /// time in which it saw the pod. The averages of stays on several nodes are weighted by their time.
    pub fn average(&self, pod: &str, reports: &[(&str, f64)]) -> f64 {
        let share_of_run = |stay: &NodeStay| {
            let seconds = stay.to.min(self.to) - stay.from.max(self.from);
            // The pod lived before its first scrape and after its last one, on average half an interval each.
            ((seconds + self.interval) / self.seconds()).clamp(0.0, 1.0)
        };
        let stays = self.stays(pod);
        let known = stays
            .iter()
            .filter_map(|stay| Some(share_of_run(stay) * stay.most(reports)?));
        let known: Vec<f64> = known.collect();
        if known.is_empty() {
            greatest(reports.iter()).unwrap_or_default()
        } else {
            known.iter().sum()
        }
    }

    /// The pod's stays on nodes, one after the other. Targets that saw it at the same time belong to one stay.
    fn stays(&self, pod: &str) -> Vec<NodeStay<'_>> {
        let reports = self
            .pods
            .get(pod)
            .into_iter()
            .flat_map(|member| &member.reports);
        let mut reports: Vec<(&str, (f64, f64))> = reports
            .map(|(target, span)| (target.as_str(), *span))
            .collect();
        reports.sort_by(|one, other| one.1.0.total_cmp(&other.1.0));
        let mut stays: Vec<NodeStay> = Vec::new();
        for (target, (from, to)) in reports {
            let near = |one: f64, other: f64| (one - other).abs() <= self.interval;
            // While a pod moves, both nodes' agents may report it, but no longer than for an interval.
            let is_same_stay = |stay: &&mut NodeStay| {
                from < stay.to - self.interval || near(stay.from, from) && near(stay.to, to)
            };
            if let Some(stay) = stays.last_mut().filter(is_same_stay) {
                stay.targets.push(target);
                stay.to = stay.to.max(to);
            } else {
                stays.push(NodeStay {
                    targets: vec![target],
                    from,
                    to,
                });
            }
        }
        stays
    }
}

// === impl NodeStay ===

impl NodeStay<'_> {
    /// The greatest report of the stay's targets.
    fn most(&self, reports: &[(&str, f64)]) -> Option<f64> {
        greatest(
            reports
                .iter()
                .filter(|(target, _)| self.targets.contains(target)),
        )
    }
}

// === impl Member ===

impl Member {
    /// The times of the first and the last sighting.
    pub fn span(&self) -> Option<(f64, f64)> {
        Some((*self.sightings.first()?, *self.sightings.last()?))
    }

    fn trains(&self) -> bool {
        TRAINING.contains(&self.role.as_str())
    }

    /// Adds a series of the pod, with its sightings in the requested time. A pod has a series for each node and target.
    fn add(&mut self, series: &Series, sightings: Vec<f64>) {
        self.role = series.label("role").to_owned();
        self.index = series.label("replica_index").to_owned();
        let node = [series.label("node"), series.label("instance")]
            .into_iter()
            .find(|name| !name.is_empty());
        self.nodes.extend(node.map(str::to_owned));
        let slot = [series.label("type"), series.label("index")];
        let slot: Vec<&str> = slot.into_iter().filter(|part| !part.is_empty()).collect();
        self.slots
            .extend((!slot.is_empty()).then(|| slot.join(" ")));
        let first = sightings.iter().copied().fold(f64::INFINITY, f64::min);
        let last = sightings.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let reports = self
            .reports
            .entry(series.label("instance").to_owned())
            .or_insert((first, last));
        *reports = (reports.0.min(first), reports.1.max(last));
        self.sightings.extend(sightings);
    }
}

/// The only job, with its pods.
fn single_job(jobs: BTreeMap<ObjectName, JobPods>) -> Result<(ObjectName, JobPods), NoMembers> {
    if jobs.len() > 1 {
        let names = jobs.keys().map(ObjectName::to_string);
        return Err(NoMembers::Several(names.collect()));
    }
    jobs.into_iter().next().ok_or(NoMembers::Nobody)
}

/// The first and the last sighting of a training pod. Without a training pod, all pods count.
fn time_of_run(pods: &JobPods) -> (f64, f64) {
    let any = pods.values().any(Member::trains);
    let spans = pods
        .values()
        .filter(|member| !any || member.trains())
        .filter_map(Member::span);
    spans.fold((f64::INFINITY, f64::NEG_INFINITY), |all, span| {
        (all.0.min(span.0), all.1.max(span.1))
    })
}

/// The median of the seconds between two sightings of a pod. Prometheus scrapes the agents in turn, so each pod counts alone.
fn scrape_interval(pods: &JobPods) -> Option<f64> {
    median(pods.values().flat_map(|member| gaps(&member.sightings)))
}

/// The gaps of a run above `longest`, in which no pod was seen: the seconds of all gaps, and the number.
fn breaks(pods: &JobPods, (from, to): (f64, f64), longest: f64) -> (f64, u32) {
    let all = pods
        .values()
        .flat_map(|member| member.sightings.iter().copied());
    let mut all: Vec<f64> = all.filter(|at| (from..=to).contains(at)).collect();
    distinct(&mut all);
    gaps(&all)
        .filter(|gap| *gap > longest)
        .fold((0.0, 0), |(seconds, many), gap| (seconds + gap, many + 1))
}

fn greatest<'a>(reports: impl Iterator<Item = &'a (&'a str, f64)>) -> Option<f64> {
    reports.map(|(_, value)| *value).max_by(f64::total_cmp)
}

fn distinct(times: &mut Vec<f64>) {
    times.sort_by(f64::total_cmp);
    times.dedup();
}

fn gaps(times: &[f64]) -> impl Iterator<Item = f64> {
    times
        .windows(2)
        .filter_map(|two| Some(two.last()? - two.first()?))
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
        ];
        let mut moved = ps.to_vec();
        moved.extend([
            ("node", "n2"),
            ("instance", "10.0.0.2:9"),
            ("index", "1"),
            ("type", "ps"),
        ]);
        let mut before = ps.to_vec();
        before.extend([("instance", "10.0.0.1:9"), ("index", "0")]);
        // Scraped each 10 s and asked for each 5 s: the same scrape is there twice. The first was before the time.
        let series = [
            sightings(&before, &[95.0, 105.0, 105.0, 115.0, 115.0, 125.0]),
            sightings(&moved, &[200.0, 210.0, 220.0]),
        ];
        let members = Members::read(&series, 100.0, 300.0, 5.0).unwrap();
        assert_eq!(
            (members.namespace.as_str(), members.job.as_str()),
            ("t", "j")
        );
        let pod = &members.pods["ps-0"];
        assert_eq!(
            pod.nodes,
            BTreeSet::from(["n2".to_owned(), "10.0.0.1:9".to_owned()])
        );
        assert_eq!(
            pod.slots,
            BTreeSet::from(["ps 1".to_owned(), "0".to_owned()])
        );
        assert_eq!(
            (members.from, members.to, members.interval),
            (105.0, 220.0, 10.0)
        );
        assert_eq!(pod.span(), Some((105.0, 220.0)));
        assert!(
            (members.unseen - 75.0).abs() < 1e-9,
            "from 125 to 200: {}",
            members.unseen
        );
    }

    /// A run of workers from 100 to 200; more of each pod, by target.
    fn of_targets(reports: &[(&str, &str, &[f64])]) -> Members {
        let series = reports.iter().map(|(pod, target, at)| {
            sightings(
                &[
                    ("training_job", "j"),
                    ("pod", pod),
                    ("role", "worker"),
                    ("instance", target),
                ],
                at,
            )
        });
        let all = (10..=20).map(|at| f64::from(at) * 10.0).collect::<Vec<_>>();
        let all = sightings(
            &[
                ("training_job", "j"),
                ("pod", "all"),
                ("role", "worker"),
                ("instance", "x"),
            ],
            &all,
        );
        Members::read(&series.chain([all]).collect::<Vec<_>>(), 0.0, 999.0, 1.0).unwrap()
    }

    #[test]
    fn places_add_up_and_those_who_tell_the_same_do_not() {
        let near =
            |one: f64, other: f64| assert!((one - other).abs() < 1e-9, "{one} is not {other}");
        let members = of_targets(&[
            ("moved", "a", &[100.0, 110.0, 120.0, 130.0, 140.0]),
            (
                "moved",
                "b",
                &[135.0, 145.0, 155.0, 165.0, 175.0, 185.0, 195.0],
            ),
            ("twice", "a", &[100.0, 110.0, 120.0, 130.0, 140.0, 200.0]),
            ("twice", "b", &[103.0, 113.0, 123.0, 133.0, 143.0, 193.0]),
            ("short", "a", &[120.0]),
            ("short", "b", &[123.0]),
        ]);
        assert_eq!(members.interval, 10.0);
        let reports = [("a", 30.0), ("b", 40.0)];
        near(members.sum("moved", &reports), 70.0);
        near(members.sum("twice", &reports), 40.0);
        near(members.sum("short", &reports), 40.0);
        near(members.sum("twice", &[("b", 40.0)]), 40.0);
        // A target without data of the pod, or a pod without any data.
        near(members.sum("twice", &[("c", 7.0)]), 7.0);
        near(members.sum("nobody", &reports), 40.0);
        near(members.sum("nobody", &[]), 0.0);
        // 40 s and a scrape's time of 100 s with 2, 60 s and one with 1.
        near(
            members.average("moved", &[("a", 2.0), ("b", 1.0)]),
            0.5 * 2.0 + 0.7,
        );
        near(members.average("twice", &[("a", 2.0), ("b", 2.0)]), 2.0);
        near(members.average("short", &[("a", 2.0)]), 0.13 * 2.0);
    }

    #[test]
    fn servers_that_wait_for_others_do_not_make_a_run_longer() {
        let pod = |pod: &'static str, role: &'static str| {
            [
                ("namespace", "t"),
                ("training_job", "j"),
                ("pod", pod),
                ("role", role),
            ]
        };
        let every =
            |from: u32, to: u32| -> Vec<f64> { (from..=to).step_by(10).map(f64::from).collect() };
        let series = [
            sightings(&pod("ps-0", "ps"), &every(0, 5000)),
            sightings(&pod("w-0", "worker"), &every(100, 400)),
            sightings(&pod("w-1", "worker"), &every(150, 700)),
            sightings(&pod("late", "evaluator"), &every(710, 5000)),
        ];
        let members = Members::read(&series, 0.0, 9000.0, 1.0).unwrap();
        assert_eq!(
            (members.from, members.to, members.unseen),
            (100.0, 700.0, 0.0)
        );
        assert_eq!(
            members.pods.keys().collect::<Vec<_>>(),
            ["ps-0", "w-0", "w-1"]
        );
        // Without a training role, the servers' time is the run's time.
        let alone = Members::read(&series[..1], 0.0, 9000.0, 1.0).unwrap();
        assert_eq!((alone.from, alone.to), (0.0, 5000.0));
        // The training pods were seen once, which is too little for a report, even if other pods ran longer.
        let once = [
            series[0].clone(),
            sightings(&pod("w-0", "worker"), &[100.0]),
        ];
        assert!(matches!(
            Members::read(&once, 0.0, 9000.0, 1.0),
            Err(NoMembers::Once { .. })
        ));
    }

    #[test]
    fn scrapes_closer_than_looks_are_counted() {
        let pod = [("namespace", "t"), ("training_job", "j"), ("pod", "p")];
        // Looked at each 33 s, scraped each 15 s.
        let mut members = Members::read(
            &[sightings(&pod, &[15.0, 45.0, 75.0, 105.0])],
            0.0,
            120.0,
            33.0,
        )
        .unwrap();
        assert_eq!((members.interval, members.unseen), (30.0, 0.0));
        let counted = |value: f64| Series {
            labels: BTreeMap::from([("pod".to_owned(), "p".to_owned())]),
            points: vec![(120.0, value)],
        };
        members.count(&[]);
        members.count(&[counted(1.0)]);
        assert_eq!(members.interval, 30.0, "one scrape tells nothing");
        members.count(&[counted(7.0)]);
        assert_eq!(members.interval, 15.0);
        // A time without scrapes makes the others no further apart.
        (members.unseen, members.breaks) = (30.0, 1);
        members.count(&[counted(6.0)]);
        assert_eq!(members.interval, 15.0);
    }

    #[test]
    fn nobody_and_several_are_no_answer() {
        assert_eq!(Members::read(&[], 0.0, 9.0, 1.0), Err(NoMembers::Nobody));
        let a = [("namespace", "t"), ("training_job", "a"), ("pod", "p")];
        let b = [("namespace", "t"), ("training_job", "b"), ("pod", "p")];
        assert_eq!(
            Members::read(&[sightings(&a, &[20.0])], 0.0, 9.0, 1.0),
            Err(NoMembers::Nobody),
            "later"
        );
        let once = Members::read(&[sightings(&a, &[5.0, 5.0])], 0.0, 9.0, 1.0).unwrap_err();
        assert!(
            once.to_string()
                .starts_with("t/a has samples of a single scrape"),
            "{once}"
        );
        let several = [sightings(&a, &[5.0, 6.0]), sightings(&b, &[5.0, 6.0])];
        let several = Members::read(&several, 0.0, 9.0, 1.0).unwrap_err();
        assert!(
            several
                .to_string()
                .starts_with("several jobs ran, t/a, t/b: choose one"),
            "{several}"
        );
    }
}
