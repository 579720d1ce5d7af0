//! [`Node`]: what was heard of one agent so far, and its pods as rows: pure, with moments as times since the start.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::numbers::{Numbers, OfContainer, OfPod};
use super::status::{Clean, Container, Status, Stranger};
use crate::cpu::CpuSet;

/// Rates are means over about so long: a scrape may show what was counted up to a second before it.
const RATES_OVER: Duration = Duration::from_secs(6);

/// The letters of owners, in the order in which they are given.
const LETTERS: &str = "abcdefghijklmnopqstuvwyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";

/// What an owner is drawn as when the letters have run out.
pub(super) const NO_LETTER: char = '+';

/// What was counted of a node's containers and pods at one moment.
#[derive(Debug)]
struct Sample {
    at: Duration,
    containers: HashMap<Place, Counted>,
    pods: HashMap<PodKey, OfPod>,
}

/// What tells a container from every other of its node.
type Place = (PodKey, Clean);

/// What was counted of a container, and of which: one that was started anew counts from zero, in a cgroup of its own.
#[derive(Debug)]
struct Counted {
    cgroup: Option<Clean>,
    numbers: OfContainer,
}

/// What tells a pod from every other of its node.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct PodKey {
    pub(super) namespace: Clean,
    pub(super) pod: Clean,
    /// Its uid; its cgroup, where nobody told us of it.
    uid: Option<Clean>,
}

/// One agent, and what it has said.
#[derive(Debug)]
pub(super) struct Node {
    number: usize,
    /// As the user calls it, or by its address.
    name: String,
    given: bool,
    /// What it said last.
    status: Option<Status>,
    /// When the agent that said it has started, by its own word.
    started: Option<f64>,
    /// What it has counted, the newest last.
    samples: VecDeque<Sample>,
    /// Why it does not answer, and since when.
    error: Option<(String, Duration)>,
    letters: BTreeMap<PodKey, char>,
    /// Its pods as of its last answer.
    rows: Vec<Arc<Row>>,
}

/// A pod as it is shown.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Row {
    /// The number of its node.
    pub(super) node: usize,
    pub(super) key: PodKey,
    /// How its CPUs are marked on the map; `None` where it owns none.
    pub(super) letter: Option<char>,
    pub(super) role: Clean,
    pub(super) job: Clean,
    pub(super) qos: Clean,
    /// Of all its containers together.
    pub(super) total: Figures,
    /// Bytes per second.
    pub(super) receive: Option<f64>,
    pub(super) transmit: Option<f64>,
    pub(super) containers: Vec<(Clean, Figures)>,
    /// What a person should know of it.
    pub(super) notes: Vec<String>,
}

/// What is known of one container, or of all of a pod.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Figures {
    pub(super) running: bool,
    /// The CPUs it owns.
    pub(super) own: Option<CpuSet>,
    /// The CPUs it may run on by the kernel's word.
    pub(super) effective: Option<CpuSet>,
    /// Whether these differ.
    pub(super) drift: bool,
    /// CPUs in use.
    pub(super) usage: Option<f64>,
    pub(super) threads: Option<u64>,
    pub(super) runnable: Option<f64>,
    /// Something else than what is expected was found of its threads.
    pub(super) finding: bool,
    /// CPU seconds per second, on its own CPUs, of something else.
    pub(super) foreign: Option<f64>,
    pub(super) foreign_error: Option<f64>,
    /// Seconds from its first instruction to its assignment in force.
    pub(super) window: Option<f64>,
    /// Seconds per second, all threads added up.
    pub(super) run_delay: Option<f64>,
    /// Per second.
    pub(super) switches: Option<f64>,
    pub(super) throttled: Option<f64>,
}

// === impl Figures ===

impl Figures {
    /// The CPUs that its threads have.
    pub(super) fn cpus(&self) -> Option<&CpuSet> {
        self.effective
            .as_ref()
            .or(self.own.as_ref())
            .filter(|cpus| !cpus.is_empty())
    }

    /// Threads for each CPU.
    pub(super) fn crowd(&self) -> Option<f64> {
        Some(self.threads? as f64 / self.cpus()?.len() as f64)
    }

    /// The part of its own CPUs' time that somebody else had.
    pub(super) fn foreign_share(&self) -> Option<f64> {
        Some(self.foreign? / self.own.as_ref().filter(|own| !own.is_empty())?.len() as f64)
    }

    /// Whether the foreign time can't be told from none.
    pub(super) fn foreign_is_doubtful(&self) -> bool {
        self.foreign
            .zip(self.foreign_error)
            .is_some_and(|(foreign, error)| foreign > 0.0 && error >= foreign)
    }

    /// Adds another container's.
    fn add(&mut self, other: &Self) {
        let set = |one: &mut Option<CpuSet>, other: &Option<CpuSet>| {
            if let Some(cpus) = other {
                *one = Some(one.take().unwrap_or_default().union(cpus));
            }
        };
        let sum = |one: &mut Option<f64>, other: Option<f64>| {
            if let Some(value) = other {
                *one.get_or_insert_default() += value;
            }
        };
        self.running |= other.running;
        self.drift |= other.drift;
        self.finding |= other.finding;
        set(&mut self.own, &other.own);
        set(&mut self.effective, &other.effective);
        if let Some(threads) = other.threads {
            let all = self.threads.get_or_insert_default();
            *all = all.saturating_add(threads);
        }
        if let Some(window) = other.window {
            self.window = Some(self.window.map_or(window, |longest| longest.max(window)));
        }
        for (one, other) in [
            (&mut self.usage, other.usage),
            (&mut self.runnable, other.runnable),
            (&mut self.foreign, other.foreign),
            (&mut self.foreign_error, other.foreign_error),
            (&mut self.run_delay, other.run_delay),
            (&mut self.switches, other.switches),
            (&mut self.throttled, other.throttled),
        ] {
            sum(one, other);
        }
    }
}

// === impl Node ===

impl Node {
    /// A node that nothing is known of yet, with its place among the others; a name that was `given` stays.
    pub(super) fn new(number: usize, name: &str, given: bool) -> Self {
        Self {
            number,
            name: Clean::new(name).to_string(),
            given,
            status: None,
            started: None,
            samples: VecDeque::new(),
            error: None,
            letters: BTreeMap::new(),
            rows: Vec::new(),
        }
    }

    /// What it is called: as the user does, as Kubernetes does, or by its address.
    pub(super) fn name(&self) -> &str {
        let told = self
            .status()
            .and_then(|status| status.cluster.as_ref()?.node.as_ref());
        match told.filter(|_| !self.given).map(Clean::as_str) {
            None | Some("") => &self.name,
            Some(told) => told,
        }
    }

    /// The last status.
    pub(super) fn status(&self) -> Option<&Status> {
        self.status.as_ref()
    }

    /// Its pods, in the order in which the agent tells of them.
    pub(super) fn rows(&self) -> &[Arc<Row>] {
        &self.rows
    }

    /// Why it does not answer, and since when.
    pub(super) fn error(&self) -> Option<(&str, Duration)> {
        self.error
            .as_ref()
            .map(|(why, since)| (why.as_str(), *since))
    }

    /// When it last answered.
    pub(super) fn answered(&self) -> Option<Duration> {
        self.samples.back().map(|sample| sample.at)
    }

    /// Takes note of an answer, or of why there is none.
    pub(super) fn note(&mut self, at: Duration, answer: Result<(Status, Numbers), String>) {
        let (status, numbers) = match answer {
            Ok(answer) => answer,
            Err(why) => {
                let since = self.error.take().map_or(at, |(_, since)| since);
                self.error = Some((Clean::new(&why).to_string(), since));
                return;
            }
        };
        self.error = None;
        if self.started != numbers.started || self.samples.back().is_some_and(|last| last.at >= at)
        {
            // Counters of another agent's life tell nothing of this one's.
            self.samples.clear();
        }
        self.started = numbers.started;
        while self.samples.len() > 1
            && self
                .samples
                .get(1)
                .is_some_and(|next| at.saturating_sub(next.at) >= RATES_OVER)
        {
            self.samples.pop_front();
        }
        self.samples.push_back(Sample::new(at, &status, &numbers));
        self.give_letters(&status);
        self.rows = self.arranged(&status);
        self.status = Some(status);
    }

    /// Letters for those who own CPUs: whoever has one keeps it.
    fn give_letters(&mut self, status: &Status) {
        let owns = |container: &&Container| {
            container
                .assigned
                .as_ref()
                .is_some_and(|own| !own.is_empty())
        };
        let known = status.containers.iter().filter(owns).map(key);
        let strangers = status.strangers.iter().map(stranger_key);
        let owners: Vec<PodKey> = known.chain(strangers).collect();
        let all: HashSet<&PodKey> = owners.iter().collect();
        self.letters.retain(|key, _| all.contains(key));
        let given: HashSet<char> = self.letters.values().copied().collect();
        let mut free = LETTERS.chars().filter(|letter| !given.contains(letter));
        for owner in owners {
            self.letters
                .entry(owner)
                .or_insert_with(|| free.next().unwrap_or(NO_LETTER));
        }
    }

    /// The owners of its CPUs, by their letters.
    pub(super) fn owners(&self) -> Vec<(char, CpuSet)> {
        let Some(status) = &self.status else {
            return Vec::new();
        };
        // Containers of a pod may run in each other's sets: nobody owns these twice.
        let mut pods: BTreeMap<PodKey, CpuSet> = BTreeMap::new();
        let known = status
            .containers
            .iter()
            .filter_map(|one| Some((key(one), one.assigned.as_ref()?)));
        for (key, own) in known.chain(
            status
                .strangers
                .iter()
                .map(|one| (stranger_key(one), &one.cpus)),
        ) {
            let cpus = pods.entry(key).or_default();
            *cpus = cpus.union(own);
        }
        let letter = |key: &PodKey| self.letters.get(key).copied().unwrap_or(NO_LETTER);
        pods.into_iter()
            .map(|(key, cpus)| (letter(&key), cpus))
            .collect()
    }

    /// The pods of a status as rows.
    fn arranged(&self, status: &Status) -> Vec<Arc<Row>> {
        let mut rows: Vec<Row> = Vec::new();
        let mut places: HashMap<PodKey, usize> = HashMap::new();
        for container in &status.containers {
            let key = key(container);
            let at = *places.entry(key.clone()).or_insert(rows.len());
            if at == rows.len() {
                // As long as it is the same pod.
                let traffic = |of: fn(&OfPod) -> Option<f64>| {
                    self.rate(|sample| sample.pods.get(&key).and_then(of))
                };
                rows.push(Row {
                    node: self.number,
                    letter: self.letters.get(&key).copied(),
                    role: container.role.clone(),
                    job: container.job.clone().unwrap_or_default(),
                    qos: container.qos.clone(),
                    total: Figures::default(),
                    receive: traffic(OfPod::receive),
                    transmit: traffic(OfPod::transmit),
                    containers: Vec::new(),
                    notes: Vec::new(),
                    key,
                });
            }
            let Some(row) = rows.get_mut(at) else {
                continue;
            };
            let figures = self.figures(container);
            row.total.add(&figures);
            row.containers.push((container.container.clone(), figures));
            row.notes.extend(notes(container));
        }
        for stranger in &status.strangers {
            let key = stranger_key(stranger);
            // Rows that can't be told from each other can't be chosen, either.
            if places.insert(key.clone(), rows.len()).is_some() {
                continue;
            }
            rows.push(Row {
                node: self.number,
                letter: self.letters.get(&key).copied(),
                role: Clean::new("unknown"),
                job: Clean::default(),
                qos: Clean::default(),
                total: Figures {
                    own: Some(stranger.cpus.clone()),
                    ..Figures::default()
                },
                receive: None,
                transmit: None,
                containers: Vec::new(),
                notes: vec![format!(
                    "owns CPUs, and nobody told the agent of it: {}",
                    stranger.cgroup
                )],
                key,
            });
        }
        rows.into_iter().map(Arc::new).collect()
    }

    fn figures(&self, container: &Container) -> Figures {
        let place = (key(container), container.container.clone());
        let rate = |of: fn(&OfContainer) -> Option<f64>| {
            self.rate(|sample| {
                let then = sample.containers.get(&place)?;
                if then.cgroup == container.cgroup {
                    of(&then.numbers)
                } else {
                    None
                }
            })
        };
        let seen = container.seen.as_ref();
        Figures {
            running: container.running,
            drift: container.running
                && container.assigned.is_some()
                && container.effective.is_some()
                && container.assigned != container.effective,
            own: container.assigned.clone(),
            effective: container.effective.clone(),
            usage: rate(|one| one.usage),
            threads: seen.map(|seen| seen.threads),
            runnable: seen.and_then(|seen| seen.runnable),
            finding: seen
                .and_then(|seen| seen.verdict.as_ref())
                .is_some_and(|verdict| {
                    // Pools that have not started yet are nobody's trouble.
                    !matches!(
                        verdict.finding.as_str(),
                        AS_EXPECTED | "fewer than expected"
                    )
                }),
            foreign: rate(|one| one.foreign),
            foreign_error: rate(|one| one.foreign_error),
            window: container
                .window_seconds
                .filter(|seconds| seconds.is_finite()),
            run_delay: rate(|one| one.run_delay),
            switches: rate(|one| one.switches),
            throttled: rate(|one| one.throttled),
        }
    }

    /// How fast a counter has risen per second since the oldest sample that has it; `None` for one sample, one that has
    /// gone, and one that went back: then it counts something else.
    fn rate(&self, counter: impl Fn(&Sample) -> Option<f64>) -> Option<f64> {
        let mut newest_first = self.samples.iter().rev();
        let last = newest_first.next()?;
        let end = counter(last)?;
        let (mut from, mut since) = (end, last.at);
        for sample in newest_first {
            match counter(sample) {
                Some(value) if value <= from => (from, since) = (value, sample.at),
                Some(_) => return None,
                None => break,
            }
        }
        let seconds = last.at.saturating_sub(since).as_secs_f64();
        (seconds > 0.0).then(|| (end - from) / seconds)
    }
}

// === impl Sample ===

impl Sample {
    /// Of a scrape, what belongs to somebody whom the status knows, and who runs: series have names, which others had before.
    fn new(at: Duration, status: &Status, numbers: &Numbers) -> Self {
        let running = || status.containers.iter().filter(|one| one.running);
        let counted = |one: &Container| {
            let numbers = numbers.container(
                one.namespace.as_str(),
                one.pod.as_str(),
                one.container.as_str(),
            );
            (
                (key(one), one.container.clone()),
                Counted {
                    cgroup: one.cgroup.clone(),
                    numbers,
                },
            )
        };
        let pod = |one: &Container| {
            (
                key(one),
                numbers.pod(one.namespace.as_str(), one.pod.as_str()),
            )
        };
        Self {
            at,
            containers: running().map(counted).collect(),
            pods: running().map(pod).collect(),
        }
    }
}

fn key(container: &Container) -> PodKey {
    PodKey {
        namespace: container.namespace.clone(),
        pod: container.pod.clone(),
        uid: container.uid.clone(),
    }
}

fn stranger_key(stranger: &Stranger) -> PodKey {
    let Stranger {
        namespace,
        pod,
        cgroup,
        ..
    } = stranger;
    PodKey {
        namespace: namespace.clone(),
        pod: pod.clone(),
        uid: Some(cgroup.clone()),
    }
}

/// The finding that nothing need be said of.
const AS_EXPECTED: &str = "as expected";

/// What a person should know of a container.
fn notes(container: &Container) -> Vec<String> {
    let mut notes: Vec<String> = container.note.iter().map(ToString::to_string).collect();
    let verdict = container
        .seen
        .as_ref()
        .and_then(|seen| seen.verdict.as_ref());
    let worth_telling = verdict.filter(|verdict| verdict.finding.as_str() != AS_EXPECTED);
    notes.extend(worth_telling.map(|verdict| verdict.sentence.to_string()));
    notes
}
