//! Who took part: the tasks' pods, where they ran, and when they were seen.

use std::collections::{BTreeMap, BTreeSet};

use super::answer::Series;

/// A break between two scrapes counts as one if it is this many times as long as usual.
const BREAK: f64 = 3.0;

/// A pod of a task.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Member {
    /// What it is in its job.
    pub role: String,
    /// Which one of its role; empty where nothing tells.
    pub index: String,
    /// The nodes that it was seen on, or the agents' targets where no label names a node.
    pub nodes: BTreeSet<String>,
    /// The places of these nodes in the scene: type, if there are types, and index.
    pub slots: BTreeSet<String>,
    /// When it was scraped, in seconds since 1970, without gaps' insides: distinct, in order.
    seen: Vec<f64>,
}

/// The pods of one training job in one time.
#[derive(Debug, Clone, PartialEq)]
pub struct Members {
    /// The job's namespace.
    pub namespace: String,
    /// The job's name.
    pub job: String,
    /// Its pods by name.
    pub pods: BTreeMap<String, Member>,
    /// When the first of them was seen first, in seconds since 1970.
    pub from: f64,
    /// When the last of them was seen last.
    pub to: f64,
    /// The time between two scrapes, as far as could be seen, in seconds.
    pub interval: f64,
    /// Seconds in which none of them was seen.
    pub unseen: f64,
}

/// Why nobody took part.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoMembers {
    /// No series.
    #[error("no training pod was seen")]
    Nobody,
    /// One scrape makes no rate.
    #[error("{namespace}/{job} was seen in a single scrape: a longer time is needed")]
    Once {
        /// The job's namespace.
        namespace: String,
        /// The job.
        job: String,
    },
    /// More than one job.
    #[error("several jobs ran, {}: choose one with --job and --namespace, or tell them apart by time", .0.join(", "))]
    Several(Vec<String>),
}

// === impl Members ===

impl Members {
    /// Reads the answer to [`presence`](super::presence), asked each `step` seconds from `from` to `to`.
    ///
    /// # Errors
    /// Nobody, or several jobs.
    pub fn read(series: &[Series], from: f64, to: f64, step: f64) -> Result<Self, NoMembers> {
        let mut jobs: BTreeMap<(String, String), BTreeMap<String, Member>> = BTreeMap::new();
        for one in series {
            // A scrape before the time that was asked for, which still held then, is none within it.
            let seen = one.points.iter().map(|(_, at)| *at).filter(|at| (from..=to).contains(at));
            let seen: Vec<f64> = seen.collect();
            if seen.is_empty() {
                continue;
            }
            let job = (one.label("namespace").to_owned(), one.label("training_job").to_owned());
            let member = jobs.entry(job).or_default().entry(one.label("pod").to_owned()).or_default();
            member.role = one.label("role").to_owned();
            member.index = one.label("replica_index").to_owned();
            let node = [one.label("node"), one.label("instance")].into_iter().find(|name| !name.is_empty());
            member.nodes.extend(node.map(str::to_owned));
            let slot = [one.label("type"), one.label("index")];
            let slot: Vec<&str> = slot.into_iter().filter(|part| !part.is_empty()).collect();
            member.slots.extend((!slot.is_empty()).then(|| slot.join(" ")));
            member.seen.extend(seen);
        }
        if jobs.len() > 1 {
            let names = jobs.into_keys().map(|(namespace, job)| format!("{namespace}/{job}"));
            return Err(NoMembers::Several(names.collect()));
        }
        let ((namespace, job), mut pods) = jobs.into_iter().next().ok_or(NoMembers::Nobody)?;
        for member in pods.values_mut() {
            distinct(&mut member.seen);
        }
        let mut all: Vec<f64> = pods.values().flat_map(|member| member.seen.iter().copied()).collect();
        distinct(&mut all);
        let (Some(&from), Some(&to)) = (all.first(), all.last()) else { return Err(NoMembers::Nobody) };
        // Of one pod, since agents are scraped one after the other.
        let mut apart: Vec<f64> = pods.values().flat_map(|member| gaps(&member.seen)).collect();
        apart.sort_by(f64::total_cmp);
        let Some(&interval) = apart.get(apart.len() / 2) else {
            return Err(NoMembers::Once { namespace, job });
        };
        let longest = BREAK * interval.max(step);
        let unseen = gaps(&all).filter(|gap| *gap > longest).sum();
        Ok(Self { namespace, job, pods, from, to, interval, unseen })
    }

    /// Reads the answer to [`scrapes`](super::scrapes), which tells of scrapes that are closer to each other than the looks were.
    pub fn count(&mut self, series: &[Series]) {
        let apart = |one: &Series| {
            let (from, to) = self.pods.get(one.label("pod"))?.span()?;
            let scrapes = one.last().filter(|scrapes| *scrapes >= 2.0)?;
            Some((to - from) / (scrapes - 1.0)).filter(|apart| *apart > 0.0)
        };
        let mut all: Vec<f64> = series.iter().filter_map(apart).collect();
        all.sort_by(f64::total_cmp);
        self.interval = all.get(all.len() / 2).copied().unwrap_or(self.interval);
    }

    /// How long the job was seen, in seconds.
    pub fn seconds(&self) -> f64 {
        self.to - self.from
    }
}

// === impl Member ===

impl Member {
    /// When it was seen first and last.
    pub fn span(&self) -> Option<(f64, f64)> {
        Some((*self.seen.first()?, *self.seen.last()?))
    }
}

fn distinct(times: &mut Vec<f64>) {
    times.sort_by(f64::total_cmp);
    times.dedup();
}

fn gaps(times: &[f64]) -> impl Iterator<Item = f64> {
    times.windows(2).filter_map(|two| Some(two.last()? - two.first()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(labels: &[(&str, &str)], at: &[f64]) -> Series {
        let labels = labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        Series { labels: labels.collect(), points: at.iter().map(|at| (at + 2.0, *at)).collect() }
    }

    #[test]
    fn pods_are_joined_over_nodes_and_scrapes() {
        let ps = [("namespace", "t"), ("training_job", "j"), ("pod", "ps-0"), ("role", "ps")];
        let mut moved = ps.to_vec();
        moved.extend([("node", "n2"), ("instance", "10.0.0.2:9"), ("index", "1"), ("type", "ps")]);
        let mut before = ps.to_vec();
        before.extend([("instance", "10.0.0.1:9"), ("index", "0")]);
        // Scraped each 10 s and asked for each 5 s: the same scrape is there twice. The first was before the time.
        let series =
            [seen(&before, &[95.0, 105.0, 105.0, 115.0, 115.0, 125.0]), seen(&moved, &[200.0, 210.0, 220.0])];
        let members = Members::read(&series, 100.0, 300.0, 5.0).unwrap();
        assert_eq!((members.namespace.as_str(), members.job.as_str()), ("t", "j"));
        let pod = &members.pods["ps-0"];
        assert_eq!(pod.nodes, BTreeSet::from(["n2".to_owned(), "10.0.0.1:9".to_owned()]));
        assert_eq!(pod.slots, BTreeSet::from(["ps 1".to_owned(), "0".to_owned()]));
        assert_eq!((members.from, members.to, members.interval), (105.0, 220.0, 10.0));
        assert_eq!(pod.span(), Some((105.0, 220.0)));
        assert!((members.unseen - 75.0).abs() < 1e-9, "from 125 to 200: {}", members.unseen);
    }

    #[test]
    fn scrapes_closer_than_looks_are_counted() {
        let pod = [("namespace", "t"), ("training_job", "j"), ("pod", "p")];
        // Looked at each 33 s, scraped each 15 s.
        let mut members = Members::read(&[seen(&pod, &[15.0, 45.0, 75.0, 105.0])], 0.0, 120.0, 33.0).unwrap();
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
    }

    #[test]
    fn nobody_and_several_are_no_answer() {
        assert_eq!(Members::read(&[], 0.0, 9.0, 1.0), Err(NoMembers::Nobody));
        let a = [("namespace", "t"), ("training_job", "a"), ("pod", "p")];
        let b = [("namespace", "t"), ("training_job", "b"), ("pod", "p")];
        assert_eq!(Members::read(&[seen(&a, &[20.0])], 0.0, 9.0, 1.0), Err(NoMembers::Nobody), "later");
        let once = Members::read(&[seen(&a, &[5.0, 5.0])], 0.0, 9.0, 1.0).unwrap_err();
        assert!(once.to_string().starts_with("t/a was seen in a single scrape"), "{once}");
        let several = [seen(&a, &[5.0, 6.0]), seen(&b, &[5.0, 6.0])];
        let several = Members::read(&several, 0.0, 9.0, 1.0).unwrap_err();
        assert!(several.to_string().starts_with("several jobs ran, t/a, t/b: choose one"), "{several}");
    }
}
