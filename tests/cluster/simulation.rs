//! A simulation of many agents: they claim slots, some of them die, nodes are replaced, and the
//! case changes.
//!
//! The agents run the real task against the fake API server. Each request takes [`LATENCY`], and
//! the paused clock advances only while all tasks wait, so the times are those of the protocol
//! (pauses, backoff, resyncs) and not of the machine. Agents overlap as with a server without
//! overload.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use pinfold::cluster::scenes::{Phase, SceneSettings};
use pinfold::cluster::{Api, Call};
use serde_json::json;
use tokio::time::Instant;

use crate::agents::{
    self, Agent, claims, cluster, no_place_was_double, places, put_node, remove_node,
};
use crate::fakeapi::{FakeApi, Fault, FaultScope, Logged};

/// The duration of each request.
const LATENCY: Duration = Duration::from_millis(20);

/// Longer than the longest resync interval of a node with a slot (1.5 × 300 s).
const RESYNC: Duration = Duration::from_secs(460);

/// One part of the simulation.
#[allow(dead_code, reason = "the benchmark prints it all")]
#[derive(Debug, Clone)]
pub(crate) struct SimulationPart {
    pub(crate) name: &'static str,
    pub(crate) agents: usize,
    pub(crate) slots: usize,
    /// The time until every slot was claimed and labelled.
    pub(crate) time: Duration,
    pub(crate) requests: usize,
    pub(crate) writes: u64,
    /// The largest number of writes of a node.
    pub(crate) most_writes: u64,
    /// The number of claims that were refused because another node held the slot.
    pub(crate) refused: usize,
    /// The number of objects that the server read from etcd.
    pub(crate) from_etcd: usize,
}

struct Simulation {
    fake: FakeApi,
    agents: BTreeMap<usize, Agent>,
    /// The API clients of each node's current and former agents, for their counters.
    apis: BTreeMap<usize, Vec<Api>>,
    /// The number of writes of each node before the current part.
    before: BTreeMap<usize, u64>,
    began: Instant,
    version: u64,
}

/// Runs `agents` agents, with slots for nine of ten agents at first and for eight of ten later.
pub(crate) async fn simulate(agents: usize) -> Vec<SimulationPart> {
    let mut simulation = Simulation::new();
    let (first, second) = (agents * 9 / 10, agents * 8 / 10);
    let mut parts = Vec::new();
    let fresh: Vec<usize> = (0..agents).collect();

    for number in &fresh {
        put_node(&simulation.fake, &name(*number), &format!("uid-{number}"));
    }
    simulation.activate("1", [first, second]);
    simulation.begin();
    simulation.start(&fresh);
    parts.push(simulation.until_held("install", "1", first).await);

    // Agents die at any point and restart. Their nodes keep the slots.
    simulation.begin();
    let restarted: Vec<usize> = (0..agents).filter(|number| number % 10 == 3).collect();
    let before = places(&simulation.fake);
    simulation.kill(&restarted);
    simulation.start(&restarted);
    simulation.until_known().await;
    parts.push(simulation.until_held("1 in 10 restarts", "1", first).await);
    // By now, every agent has done a resync.
    tokio::time::sleep(RESYNC).await;
    assert_eq!(places(&simulation.fake), before, "a restart moves no node");

    // Some nodes are removed for good, and other nodes are replaced under the same name.
    simulation.begin();
    let (removed, replaced): (Vec<usize>, Vec<usize>) = (
        (0..agents).filter(|n| n % 20 == 7).collect(),
        (0..agents).filter(|n| n % 20 == 11).collect(),
    );
    simulation.kill(&removed);
    for number in removed.iter().chain(&replaced) {
        remove_node(&simulation.fake, &name(*number));
    }
    tokio::time::sleep(Duration::from_secs(2)).await;
    for number in &replaced {
        put_node(
            &simulation.fake,
            &name(*number),
            &format!("uid-{number}-again"),
        );
    }
    parts.push(
        simulation
            .until_held("1 in 20 nodes gone, 1 in 20 replaced", "1", first)
            .await,
    );

    // The case changes, and agents die during the change.
    simulation.begin();
    simulation.activate("2", [first, second]);
    tokio::time::sleep(LATENCY * 100).await;
    let dying: Vec<usize> = simulation
        .agents
        .keys()
        .copied()
        .filter(|number| number % 10 == 5)
        .collect();
    simulation.kill(&dying);
    simulation.start(&dying);
    parts.push(
        simulation
            .until_held("the case changes, 1 in 10 dies", "2", second)
            .await,
    );

    // The part at rest begins after the last agents have released their former claims.
    simulation.until_known().await;
    tokio::time::sleep(RESYNC).await;
    simulation.begin();
    tokio::time::sleep(Duration::from_secs(600)).await;
    let rest = simulation.part("ten minutes of rest", second);
    parts.push(rest);
    no_place_was_double(&simulation.fake);
    parts
}

/// The largest numbers of lists that all agents together send within a second.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BusiestSeconds {
    /// Lists of plans at the first start of all agents. Each agent lists its node's pods at once.
    pub(crate) first_start: usize,
    /// All lists after a restart of the API server. Every resourceVersion of a watch is then too old.
    pub(crate) restart: usize,
    /// The largest number of objects that the server reads from etcd for lists within a second, at the first start.
    pub(crate) first_start_reads: usize,
    /// The same after a restart of the API server.
    pub(crate) restart_reads: usize,
}

/// Starts all agents at the same time, and then restarts the API server. `streaming`: the server has streaming lists. `pods`: the
/// number of pods in the cluster, of which no node has more than one.
pub(crate) async fn busiest_seconds(agents: usize, streaming: bool, pods: usize) -> BusiestSeconds {
    let mut simulation = Simulation::new();
    simulation.fake.set_streaming_lists(streaming);
    for number in 0..agents {
        put_node(&simulation.fake, &name(number), &format!("uid-{number}"));
    }
    for number in 0..pods.min(agents) {
        simulation.fake.put(&json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": format!("pod-{number:05}"), "namespace": "default"},
            "spec": {"nodeName": name(number), "containers": [{"name": "c"}]},
            "status": {"phase": "Running"},
        }));
    }
    let slots = agents * 9 / 10;
    simulation.activate("1", [slots, slots]);
    simulation.begin();
    let running: Vec<Agent> = (0..agents)
        .map(|number| Agent::start_with_pods_of_api(&simulation.fake, &name(number)))
        .collect();
    tokio::time::sleep(RESYNC).await;
    let first_start =
        simulation.busiest_second(|logged| usize::from(logged.plural == "sceneplans"));
    let first_start_reads = simulation.busiest_second(|logged| logged.from_etcd);

    let fake = &simulation.fake;
    fake.go_away();
    fake.compact(fake.revision() + 1);
    fake.set_revision(fake.revision() + 10);
    tokio::time::sleep(Duration::from_secs(1)).await;
    simulation.begin();
    simulation.fake.come_back();
    tokio::time::sleep(RESYNC).await;
    let log = simulation.fake.log();
    for plural in ["pods", "sceneplans"] {
        let lists = log
            .iter()
            .filter(|logged| is_list(logged) && logged.plural == plural && logged.status == 200);
        assert_eq!(lists.count(), running.len(), "lists of {plural}");
    }
    BusiestSeconds {
        first_start,
        restart: simulation.busiest_second(|_| 1),
        first_start_reads,
        restart_reads: simulation.busiest_second(|logged| logged.from_etcd),
    }
}

/// Whether a request is a list, or a watch that begins with a list.
fn is_list(logged: &Logged) -> bool {
    logged.verb == "list" || logged.query.contains("sendInitialEvents")
}

fn name(number: usize) -> String {
    format!("node-{number:05}")
}

// === impl Simulation ===

impl Simulation {
    fn new() -> Self {
        let fake = cluster();
        fake.set_controllers_delay(Duration::from_secs(1));
        fake.fail(FaultScope::always(), Fault::Delay(LATENCY));
        Self {
            fake,
            agents: BTreeMap::new(),
            apis: BTreeMap::new(),
            before: BTreeMap::new(),
            began: Instant::now(),
            version: 0,
        }
    }

    /// The largest sum of `count` over the lists within a second since [`Simulation::begin`].
    fn busiest_second(&self, count: impl Fn(&Logged) -> usize) -> usize {
        let log = self.fake.log();
        let lists = log.iter().filter(|logged| is_list(logged));
        let mut lists: Vec<(Instant, usize)> =
            lists.map(|logged| (logged.at, count(logged))).collect();
        lists.sort();
        let (mut most, mut sum, mut first) = (0, 0, 0);
        for (at, count) in &lists {
            sum += count;
            while lists[first].0 + Duration::from_secs(1) <= *at {
                sum -= lists[first].1;
                first += 1;
            }
            most = most.max(sum);
        }
        most
    }

    fn activate(&mut self, case: &str, [first, second]: [usize; 2]) {
        self.version += 1;
        self.fake.put(&json!({
            "apiVersion": "pinfold.io/v1alpha1", "kind": "ScenePlan",
            "metadata": {"name": "big", "generation": self.version},
            "spec": {
                "nodes": {"selector": {"matchLabels": {"pool": "train"}}},
                "active": {"scene": "1", "case": case},
                "scenes": [{
                    "scene": "1",
                    "groups": [{"name": "mixed"}],
                    "cases": [{"case": "1", "nodes": {"mixed": first}}, {"case": "2", "nodes": {"mixed": second}}],
                }],
            },
        }));
    }

    fn begin(&mut self) {
        self.fake.clear_log();
        self.before = self
            .apis
            .keys()
            .map(|number| (*number, self.written(*number)))
            .collect();
        self.began = Instant::now();
    }

    fn start(&mut self, numbers: &[usize]) {
        for number in numbers {
            let agent = Agent::start_with(
                &self.fake,
                &name(*number),
                SceneSettings::default(),
                Some(Vec::new()),
                false,
            );
            self.apis
                .entry(*number)
                .or_default()
                .push(agent.api.clone());
            self.agents.insert(*number, agent);
        }
    }

    fn kill(&mut self, numbers: &[usize]) {
        for number in numbers {
            self.agents.remove(number).unwrap().kill();
        }
    }

    /// Waits until no agent's phase is `Unknown`.
    async fn until_known(&self) {
        let known = |agent: &Agent| agent.state.borrow().phase != Phase::Unknown;
        agents::eventually("no agent in phase Unknown", || {
            self.agents.values().all(known)
        })
        .await;
    }

    /// Waits until every slot of a case is claimed and labelled, then compares claims and labels.
    async fn until_held(&self, what: &'static str, case: &str, slots: usize) -> SimulationPart {
        let prefix = format!("scene.big.1.{case}.");
        let count = || {
            let store = self.fake.shared.store.lock().unwrap();
            let held = store.objects.iter().filter(|((kind, _, name), _)| {
                kind.starts_with("leases") && name.starts_with(&prefix)
            });
            let labelled = store.objects.iter().filter(|((kind, _, _), node)| {
                kind == "nodes"
                    && agents::place(node)
                        .is_some_and(|place| place.starts_with(&format!("1/{case}/")))
            });
            (held.count(), labelled.count())
        };
        agents::eventually(&format!("{what}: {slots} slots"), || {
            count() == (slots, slots)
        })
        .await;
        let part = self.part(what, slots);
        // Claims and labels agree, and every node has one slot at most.
        let (claims, places) = (claims(&self.fake), places(&self.fake));
        let mut holders = BTreeSet::new();
        for index in 0..slots {
            let holder = &claims[&format!("{prefix}{index}")];
            assert_eq!(places[holder], format!("1/{case}/{index}"), "{what}");
            assert!(
                holders.insert(holder.clone()),
                "{what}: {holder} has two slots"
            );
        }
        part
    }

    fn part(&self, name: &'static str, slots: usize) -> SimulationPart {
        let log = self.fake.log();
        let refused = log
            .iter()
            .filter(|logged| logged.verb == "create" && logged.status == 409)
            .count();
        let writes: Vec<u64> = self
            .apis
            .keys()
            .map(|number| {
                self.written(*number) - self.before.get(number).copied().unwrap_or_default()
            })
            .collect();
        SimulationPart {
            name,
            agents: self.agents.len(),
            slots,
            time: self.began.elapsed(),
            requests: log.len(),
            writes: writes.iter().sum(),
            most_writes: writes.iter().copied().max().unwrap_or_default(),
            refused,
            from_etcd: log.iter().map(|logged| logged.from_etcd).sum(),
        }
    }

    /// The number of write requests of all agents of a node, including refused requests.
    fn written(&self, number: usize) -> u64 {
        let calls = [
            Call::CreateLease,
            Call::DeleteLease,
            Call::ApplyNode,
            Call::TaintNode,
        ];
        let of = |api: &Api| {
            calls
                .into_iter()
                .map(|call| api.counters().requests(call))
                .sum::<u64>()
        };
        self.apis.get(&number).into_iter().flatten().map(of).sum()
    }
}
