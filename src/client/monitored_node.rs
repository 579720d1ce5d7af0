//! [`MonitoredNode`]: the responses of an agent so far, and the node's pods as rows. The code is pure: a moment is the time
//! since the start of the command.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::container_status::{SafeText, StatusContainer};
use super::row::{PodKey, PodRow, RowFigures};
use super::scrape::{ContainerCounters, PodCounters, ScrapeValues};
use super::status::{AgentStatus, StatusUnknownOwner};
use crate::cpu::CpuSet;

/// Rates are means over about this time: a counter in a scrape may be up to a second old.
const RATES_OVER: Duration = Duration::from_secs(6);

/// The letters of owners, in the order in which new owners get a letter.
const LETTERS: &str = "abcdefghijklmnopqstuvwyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";

/// The sign of an owner after the last letter is taken.
pub(crate) const NO_LETTER: char = '+';

/// The thread finding that needs no remark.
const AS_EXPECTED: &str = "as_expected";

/// The thread finding of a container whose thread pools have not started yet.
const FEWER_THAN_EXPECTED: &str = "fewer_than_expected";

/// The response of an agent, or the reason for its absence.
pub(crate) type Response = Result<(AgentStatus, ScrapeValues), String>;

/// The identity of a container on a node.
type ContainerKey = (PodKey, SafeText);

/// The counters of a node's containers and pods at a moment.
#[derive(Debug)]
struct NodeSample {
    at: Duration,
    containers: HashMap<ContainerKey, ContainerSample>,
    pods: HashMap<PodKey, PodCounters>,
}

/// The counters of a container. A restarted container counts from zero, in a new cgroup.
#[derive(Debug)]
struct ContainerSample {
    cgroup: Option<SafeText>,
    counters: ContainerCounters,
}

/// A node, as known from the responses of its agent.
#[derive(Debug)]
pub(crate) struct MonitoredNode {
    index: usize,
    /// The name that the user chose, or the agent's address.
    name: String,
    named_by_user: bool,
    /// The last status.
    status: Option<AgentStatus>,
    /// The start time of the agent that sent the last response.
    agent_started: Option<f64>,
    /// The samples of the last seconds, the newest last.
    samples: VecDeque<NodeSample>,
    /// The reason for a missing response, and the moment of the first failure.
    error: Option<(String, Duration)>,
    letters: BTreeMap<PodKey, char>,
    /// The pods of the last status.
    rows: Vec<Arc<PodRow>>,
}

// === impl MonitoredNode ===

impl MonitoredNode {
    /// A node without a response yet. A name chosen by the user stays; any other gives way to the
    /// name in the status.
    pub(crate) fn new(index: usize, name: &str, named_by_user: bool) -> Self {
        Self {
            index,
            name: SafeText::new(name).to_string(),
            named_by_user,
            status: None,
            agent_started: None,
            samples: VecDeque::new(),
            error: None,
            letters: BTreeMap::new(),
            rows: Vec::new(),
        }
    }

    /// The user's name for the node, else the name in Kubernetes, else the agent's address.
    pub(crate) fn name(&self) -> &str {
        let kubernetes_name = self
            .status()
            .and_then(|status| status.cluster.as_ref()?.node.as_ref());
        let name = kubernetes_name.filter(|_| !self.named_by_user);
        match name.map(SafeText::as_str) {
            None | Some("") => &self.name,
            Some(name) => name,
        }
    }

    pub(crate) fn status(&self) -> Option<&AgentStatus> {
        self.status.as_ref()
    }

    pub(crate) fn rows(&self) -> &[Arc<PodRow>] {
        &self.rows
    }

    pub(crate) fn error(&self) -> Option<(&str, Duration)> {
        self.error
            .as_ref()
            .map(|(error, since)| (error.as_str(), *since))
    }

    /// The moment of the last response.
    pub(crate) fn last_response(&self) -> Option<Duration> {
        self.samples.back().map(|sample| sample.at)
    }

    /// Records a response, or the reason why there is none.
    pub(crate) fn record(&mut self, at: Duration, response: Response) {
        let (status, scrape) = match response {
            Ok(response) => response,
            Err(error) => {
                let since = self.error.take().map_or(at, |(_, since)| since);
                self.error = Some((SafeText::new(&error).to_string(), since));
                return;
            }
        };
        self.error = None;
        let is_older = self.samples.back().is_some_and(|last| last.at >= at);
        if self.agent_started != scrape.started || is_older {
            // Counters of a restarted agent can't be compared with those before.
            self.samples.clear();
        }
        self.agent_started = scrape.started;
        let is_long_ago = |sample: &NodeSample| at.saturating_sub(sample.at) >= RATES_OVER;
        while self.samples.get(1).is_some_and(is_long_ago) {
            self.samples.pop_front();
        }
        self.samples
            .push_back(NodeSample::new(at, &status, &scrape));
        self.assign_letters(&status);
        self.rows = self.rows_of(&status);
        self.status = Some(status);
    }

    /// Gives each owner of CPUs a letter. An owner that already has one keeps it.
    fn assign_letters(&mut self, status: &AgentStatus) {
        let has_cpus = |container: &&StatusContainer| {
            let assigned = container.assigned.as_ref();
            assigned.is_some_and(|cpus| !cpus.is_empty())
        };
        let pods = status.containers.iter().filter(has_cpus).map(pod_key);
        let unknown = status.unknown_owners.iter().map(unknown_owner_key);
        let owners: Vec<PodKey> = pods.chain(unknown).collect();
        let all: HashSet<&PodKey> = owners.iter().collect();
        self.letters.retain(|key, _| all.contains(key));
        let taken: HashSet<char> = self.letters.values().copied().collect();
        let mut free = LETTERS.chars().filter(|letter| !taken.contains(letter));
        for owner in owners {
            self.letters
                .entry(owner)
                .or_insert_with(|| free.next().unwrap_or(NO_LETTER));
        }
    }

    /// The owners' letters with the CPUs of each owner.
    pub(crate) fn owners(&self) -> Vec<(char, CpuSet)> {
        let Some(status) = &self.status else {
            return Vec::new();
        };
        // Init containers share CPUs with the containers of their pod, so a union counts each CPU
        // of a pod only once.
        let mut pods: BTreeMap<PodKey, CpuSet> = BTreeMap::new();
        let known = status
            .containers
            .iter()
            .filter_map(|container| Some((pod_key(container), container.assigned.as_ref()?)));
        let unknown = status
            .unknown_owners
            .iter()
            .map(|owner| (unknown_owner_key(owner), &owner.cpus));
        for (key, assigned) in known.chain(unknown) {
            let cpus = pods.entry(key).or_default();
            *cpus = cpus.union(assigned);
        }
        let letter = |key: &PodKey| self.letters.get(key).copied().unwrap_or(NO_LETTER);
        pods.into_iter()
            .map(|(key, cpus)| (letter(&key), cpus))
            .collect()
    }

    /// The pods of a status as rows.
    fn rows_of(&self, status: &AgentStatus) -> Vec<Arc<PodRow>> {
        let mut rows: Vec<PodRow> = Vec::new();
        let mut positions: HashMap<PodKey, usize> = HashMap::new();
        for container in &status.containers {
            let key = pod_key(container);
            let position = *positions.entry(key.clone()).or_insert(rows.len());
            if position == rows.len() {
                rows.push(self.empty_row(key, container));
            }
            let Some(row) = rows.get_mut(position) else {
                continue;
            };
            let figures = self.figures(container);
            row.total.add(&figures);
            row.containers.push((container.container.clone(), figures));
            row.notes.extend(notes(container));
        }
        for owner in &status.unknown_owners {
            let key = unknown_owner_key(owner);
            // The user can't select a row whose key equals that of another.
            if positions.insert(key.clone(), rows.len()).is_none() {
                rows.push(self.unknown_owner_row(key, owner));
            }
        }
        rows.into_iter().map(Arc::new).collect()
    }

    /// The row of a pod, before the figures of its containers are added.
    fn empty_row(&self, key: PodKey, container: &StatusContainer) -> PodRow {
        let traffic = |bytes: fn(&PodCounters) -> Option<f64>| {
            self.rate(|sample| sample.pods.get(&key).and_then(bytes))
        };
        PodRow {
            node: self.index,
            letter: self.letters.get(&key).copied(),
            role: container.role.clone(),
            job: container.job.clone().unwrap_or_default(),
            qos: container.qos.clone(),
            total: RowFigures::default(),
            receive: traffic(PodCounters::receive),
            transmit: traffic(PodCounters::transmit),
            containers: Vec::new(),
            notes: Vec::new(),
            key,
        }
    }

    fn unknown_owner_row(&self, key: PodKey, owner: &StatusUnknownOwner) -> PodRow {
        PodRow {
            node: self.index,
            letter: self.letters.get(&key).copied(),
            role: SafeText::new("unknown"),
            job: SafeText::default(),
            qos: SafeText::default(),
            total: RowFigures {
                assigned: Some(owner.cpus.clone()),
                ..RowFigures::default()
            },
            receive: None,
            transmit: None,
            containers: Vec::new(),
            notes: vec![format!(
                "owns CPUs, but no source reports the pod to the agent: {}",
                owner.cgroup
            )],
            key,
        }
    }

    fn figures(&self, container: &StatusContainer) -> RowFigures {
        let key = (pod_key(container), container.container.clone());
        let rate = |counter: fn(&ContainerCounters) -> Option<f64>| {
            self.rate(|sample| {
                let earlier = sample.containers.get(&key)?;
                let is_same = earlier.cgroup == container.cgroup;
                is_same.then(|| counter(&earlier.counters)).flatten()
            })
        };
        let threads = container.observed.as_ref();
        let verdict = threads.and_then(|threads| threads.verdict.as_ref());
        let expected = [AS_EXPECTED, FEWER_THAN_EXPECTED];
        let is_known = container.assigned.is_some() && container.effective.is_some();
        RowFigures {
            running: container.running,
            drift: container.running && is_known && container.assigned != container.effective,
            assigned: container.assigned.clone(),
            effective: container.effective.clone(),
            usage: rate(|counters| counters.usage),
            threads: threads.map(|threads| threads.count),
            runnable: threads.and_then(|threads| threads.runnable),
            threads_unexpected: verdict
                .is_some_and(|verdict| !expected.contains(&verdict.finding.as_str())),
            interference: rate(|counters| counters.interference),
            interference_error: rate(|counters| counters.interference_error),
            unpinned: container
                .unpinned_seconds
                .filter(|seconds| seconds.is_finite()),
            run_delay: rate(|counters| counters.run_delay),
            switches: rate(|counters| counters.switches),
            throttled: rate(|counters| counters.throttled),
        }
    }

    /// The increase of a counter per second, since the oldest sample that has the counter. `None`
    /// with only one sample, without the counter in the newest sample, and for a counter that
    /// decreased, because it then counts something else.
    fn rate(&self, counter: impl Fn(&NodeSample) -> Option<f64>) -> Option<f64> {
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

// === impl NodeSample ===

impl NodeSample {
    /// The counters of the running containers that the status lists. Series carry only names, and a
    /// terminated container may have had the same one.
    fn new(at: Duration, status: &AgentStatus, scrape: &ScrapeValues) -> Self {
        let running = || {
            let containers = status.containers.iter();
            containers.filter(|container| container.running)
        };
        let container = |container: &StatusContainer| {
            let counters = scrape.container(
                container.namespace.as_str(),
                container.pod.as_str(),
                container.container.as_str(),
            );
            let cgroup = container.cgroup.clone();
            (
                (pod_key(container), container.container.clone()),
                ContainerSample { cgroup, counters },
            )
        };
        let pod = |container: &StatusContainer| {
            let counters = scrape.pod(container.namespace.as_str(), container.pod.as_str());
            (pod_key(container), counters)
        };
        Self {
            at,
            containers: running().map(container).collect(),
            pods: running().map(pod).collect(),
        }
    }
}

fn pod_key(container: &StatusContainer) -> PodKey {
    PodKey {
        namespace: container.namespace.clone(),
        pod: container.pod.clone(),
        uid: container.uid.clone(),
    }
}

fn unknown_owner_key(owner: &StatusUnknownOwner) -> PodKey {
    PodKey {
        namespace: owner.namespace.clone(),
        pod: owner.pod.clone(),
        uid: Some(owner.cgroup.clone()),
    }
}

/// Remarks about a container, for people.
fn notes(container: &StatusContainer) -> Vec<String> {
    let mut notes: Vec<String> = container.note.iter().map(ToString::to_string).collect();
    let threads = container.observed.as_ref();
    let verdict = threads.and_then(|threads| threads.verdict.as_ref());
    let unexpected = verdict.filter(|verdict| verdict.finding.as_str() != AS_EXPECTED);
    notes.extend(unexpected.map(|verdict| verdict.sentence.to_string()));
    notes
}
