//! A scripted day: install, a case, other cases with each rule for busy nodes, a dead node, an
//! absent API server, an upgrade, and uninstall. The test checks every label, claim and Event, and
//! the shipped roles and admission policies apply to every write.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use pinfold::cluster::scenes::{Phase, leave};
use pinfold::scene::{ScenePlan, read};
use serde_json::{Value, json};

use crate::agents::{
    Agent, NAMESPACE, claims, client, cluster, eventually, no_place_was_double, place, places,
    put_node, remove_node, writes,
};
use crate::fakeapi::FakeApi;

/// Eleven nodes: one more than the largest case of the day needs.
const NODES: usize = 11;

struct Day {
    fake: FakeApi,
    plan: ScenePlan,
    agents: BTreeMap<String, Agent>,
    /// The names of the Events already checked.
    checked_events: BTreeSet<String>,
}

// === impl Day ===

impl Day {
    /// Changes the plan as kubectl does: a new generation, without a resourceVersion.
    fn change(&mut self, active: Option<(&str, &str)>, rule: &str) {
        let mut plan = serde_json::to_value(&self.plan).unwrap();
        plan["spec"].as_object_mut().unwrap().shift_remove("active");
        if let Some((scene, case)) = active {
            plan["spec"]["active"] = json!({"scene": scene, "case": case});
        }
        plan["spec"]["onBusy"] = json!(rule);
        plan["metadata"]["generation"] =
            json!(self.plan.metadata.generation.unwrap_or_default() + 1);
        plan["metadata"]["resourceVersion"] = Value::Null;
        self.plan = serde_json::from_value(plan.clone()).unwrap();
        self.fake.put(&plan);
    }

    /// Makes the named pods the only ones of a node, which they select by its scene labels. Waits
    /// until the node's agent has received the change.
    async fn run_pods(&self, node: &str, names: &[&str]) {
        let names: Vec<String> = names
            .iter()
            .map(|name| format!("{name}-on-{node}"))
            .collect();
        let pods_of_node = self
            .fake
            .all("v1", "Pod")
            .into_iter()
            .filter(|pod| pod["spec"]["nodeName"] == node);
        let name_of = |pod: &Value| pod["metadata"]["name"].as_str().unwrap().to_owned();
        let (kept, removed): (Vec<Value>, Vec<Value>) =
            pods_of_node.partition(|pod| names.contains(&name_of(pod)));
        removed.iter().for_each(|pod| self.fake.remove(pod));
        let kept: BTreeSet<String> = kept.iter().map(name_of).collect();
        for name in names.iter().filter(|name| !kept.contains(*name)) {
            self.fake.put(&json!({
                "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "train"},
                "spec": {
                    "nodeName": node, "nodeSelector": {"SCENCE": "1", "INDEX": "0"},
                    "containers": [{"name": "main", "resources": {"limits": {"cpu": "1", "memory": "1Gi"}}}],
                },
                "status": {"phase": "Running"},
            }));
        }
        let pods_of_agent = || self.agents[node].pods.borrow().as_ref().map(Vec::len);
        eventually("the agent knows the pods", || {
            pods_of_agent() == Some(names.len())
        })
        .await;
    }

    /// The nodes by phase.
    fn phases(&self) -> BTreeMap<String, Vec<String>> {
        let mut phases: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (name, agent) in &self.agents {
            phases
                .entry(format!("{:?}", agent.state().phase))
                .or_default()
                .push(name.clone());
        }
        phases
    }

    fn count(&self, phase: Phase) -> usize {
        self.agents
            .values()
            .filter(|agent| agent.state().phase == phase)
            .count()
    }

    /// Waits until `places_there` nodes have labels and claims of a case, and all agents are at rest.
    async fn until_placed(&self, case: &str, expected: usize) {
        let what = format!("{expected} places of {case}");
        eventually(&what, || {
            let current = places(&self.fake);
            let of_case: Vec<_> = current
                .iter()
                .filter(|(_, place)| place.starts_with(case))
                .collect();
            of_case.len() == expected
                && of_case.iter().all(|(node, place)| {
                    let lease = format!("scene.ps-locality.{}", place.replace('/', "."));
                    claims(&self.fake).get(&lease) == Some(node)
                })
        })
        .await;
        // Events and deletions of claims may follow a moment later. After that, no agent writes.
        tokio::time::sleep(Duration::from_secs(900)).await;
        let before = writes(&self.fake);
        tokio::time::sleep(Duration::from_secs(900)).await;
        assert_eq!(
            writes(&self.fake),
            before,
            "{what}: nothing is written at rest"
        );
        let places: BTreeSet<String> = places(&self.fake).into_values().collect();
        assert_eq!(
            claims(&self.fake).len(),
            places.len(),
            "{what}: as many claims as places"
        );
    }

    /// The Events since the last call: each reason with its nodes.
    fn new_events(&mut self) -> BTreeMap<String, BTreeSet<String>> {
        let mut new_events: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for event in self.fake.all("events.k8s.io/v1", "Event") {
            let text = |value: &Value| value.as_str().unwrap().to_owned();
            assert_eq!(
                (&event["regarding"]["kind"], &event["metadata"]["namespace"]),
                (&json!("Node"), &json!("default"))
            );
            if self.checked_events.insert(text(&event["metadata"]["name"])) {
                new_events
                    .entry(text(&event["reason"]))
                    .or_default()
                    .insert(text(&event["regarding"]["name"]));
            }
        }
        new_events
    }

    fn restart(&mut self) {
        for name in self.agents.keys().cloned().collect::<Vec<_>>() {
            let agent = Agent::start_with_pods_of_api(&self.fake, &name);
            self.agents.insert(name, agent);
        }
    }
}

fn set<'a>(names: impl IntoIterator<Item = &'a String>) -> BTreeSet<String> {
    names.into_iter().cloned().collect()
}

#[tokio::test(start_paused = true)]
async fn from_install_to_uninstall() {
    let text = include_str!("../../deploy/examples/scenes.yaml");
    let plan = read(text, "scenes.yaml").unwrap().remove(0).plan.unwrap();
    let mut day = Day {
        fake: cluster(),
        plan,
        agents: BTreeMap::new(),
        checked_events: BTreeSet::new(),
    };

    // Install: agents first, then the plan, scene 1 case 2.
    for number in 0..NODES {
        let name = format!("node-{number}");
        put_node(&day.fake, &name, &format!("uid-{number}"));
        day.agents.insert(
            name.clone(),
            Agent::start_with_pods_of_api(&day.fake, &name),
        );
    }
    eventually("all agents know that there is no plan", || {
        day.count(Phase::Free) == NODES
    })
    .await;
    assert_eq!((writes(&day.fake), day.new_events()), (0, BTreeMap::new()));
    day.change(Some(("1", "2")), "wait");
    day.until_placed("1/2/", 5).await;
    let first = places(&day.fake);
    let indices: BTreeSet<&String> = first.values().collect();
    assert_eq!(
        indices,
        set(&["1/2/0", "1/2/1", "1/2/2", "1/2/3", "1/2/4"].map(str::to_owned))
            .iter()
            .collect()
    );
    assert_eq!(
        (day.count(Phase::Placed), day.count(Phase::Spare)),
        (5, 6),
        "{:?}",
        day.phases()
    );
    assert_eq!(
        day.new_events(),
        BTreeMap::from([("Labelled".to_owned(), set(first.keys()))])
    );

    // Pods of scene 1 run on one node. The plan changes to scene 2 with the rule `wait`. Ten nodes are enough for scene 2.
    let busy = first.keys().next().unwrap().clone();
    day.run_pods(&busy, &["worker-0", "worker-1"]).await;
    day.change(Some(("2", "2")), "wait");
    day.until_placed("2/2/", 10).await;
    assert_eq!(places(&day.fake)[&busy], first[&busy], "{busy} waits");
    let state = day.agents[&busy].state();
    assert_eq!(state.phase, Phase::Waiting);
    assert!(
        state
            .says
            .starts_with("2 pods still run here and need the labels of scene 1 case 2"),
        "{}",
        state.says
    );
    let second = places(&day.fake);
    let mut others = set(second.keys());
    others.remove(&busy);
    assert_eq!(
        day.new_events(),
        BTreeMap::from([
            ("Labelled".to_owned(), others),
            ("SwitchWaits".to_owned(), BTreeSet::from([busy.clone()]))
        ])
    );
    // Both pods end, one after the other. No slot is left for the node.
    day.run_pods(&busy, &["worker-1"]).await;
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(day.agents[&busy].state().phase, Phase::Waiting);
    day.run_pods(&busy, &[]).await;
    eventually("the labels go", || {
        place(&day.fake.get("v1", "Node", "", &busy).unwrap()).is_none()
    })
    .await;
    day.until_placed("2/2/", 10).await;
    assert_eq!(day.agents[&busy].state().phase, Phase::Spare);
    assert_eq!(
        day.new_events(),
        BTreeMap::from([("LabelsRemoved".to_owned(), BTreeSet::from([busy.clone()]))])
    );

    // A node is deleted, and garbage collection deletes its claim. The spare node takes the slot.
    let dead = second.keys().find(|name| **name != busy).unwrap().clone();
    day.agents.remove(&dead).unwrap().kill();
    remove_node(&day.fake, &dead);
    day.until_placed("2/2/", 10).await;
    assert_eq!(places(&day.fake)[&busy], second[&dead]);
    assert_eq!(
        day.new_events(),
        BTreeMap::from([("Labelled".to_owned(), BTreeSet::from([busy.clone()]))])
    );

    // The plan changes back to scene 1 with the rule `refuse`. A node with pods keeps its slot, even after the pods end.
    let before = places(&day.fake);
    let refusing = before.keys().last().unwrap().clone();
    day.run_pods(&refusing, &["ps-0"]).await;
    day.change(Some(("1", "2")), "refuse");
    day.until_placed("1/2/", 5).await;
    assert_eq!(day.agents[&refusing].state().phase, Phase::Refused);
    day.run_pods(&refusing, &[]).await;
    tokio::time::sleep(Duration::from_secs(1800)).await;
    assert_eq!(places(&day.fake)[&refusing], before[&refusing]);
    let new_events = day.new_events();
    assert_eq!(
        new_events["SwitchRefused"],
        BTreeSet::from([refusing.clone()])
    );
    assert_eq!(
        (
            new_events["Labelled"].len(),
            new_events["LabelsRemoved"].len(),
            new_events.len()
        ),
        (5, 4, 3),
        "{new_events:?}"
    );
    // After another change of the plan, the node gets a new slot.
    day.change(Some(("1", "3")), "refuse");
    day.until_placed("1/3/", 10).await;
    assert!(places(&day.fake)[&refusing].starts_with("1/3/"));
    assert_eq!(
        day.new_events(),
        BTreeMap::from([("Labelled".to_owned(), set(day.agents.keys()))])
    );

    // The plan changes to scene 2 with the rule `force`.
    for node in day.agents.keys() {
        day.run_pods(node, &["worker-7"]).await;
    }
    day.change(Some(("2", "2")), "force");
    day.until_placed("2/2/", 10).await;
    assert_eq!(
        day.new_events(),
        BTreeMap::from([("Labelled".to_owned(), set(day.agents.keys()))])
    );
    let before_outage = (places(&day.fake), claims(&day.fake));

    // The API server is away for ten minutes. The agents change nothing and report the outage.
    let before = writes(&day.fake);
    day.fake.go_away();
    eventually("all have noticed", || day.count(Phase::Unknown) == 10).await;
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert!(
        day.agents
            .values()
            .all(|agent| agent.state().says.contains("can't be reached"))
    );
    assert!(
        day.agents
            .values()
            .all(|agent| agent.state().labels.len() == 4),
        "known labels stay"
    );
    day.fake.come_back();
    eventually("all are back", || day.count(Phase::Placed) == 10).await;

    // Upgrade: every agent ends and starts again.
    for (_, agent) in std::mem::take(&mut day.agents) {
        let node = agent.node.clone();
        agent.end().await;
        day.agents.insert(
            node.clone(),
            Agent::start_with_pods_of_api(&day.fake, &node),
        );
    }
    day.until_placed("2/2/", 10).await;
    eventually("all know their slots", || day.count(Phase::Placed) == 10).await;
    assert_eq!((places(&day.fake), claims(&day.fake)), before_outage);
    assert_eq!(
        (writes(&day.fake), day.new_events()),
        (before, BTreeMap::new()),
        "no writes"
    );
    // An agent that starts during an outage changes nothing either.
    day.fake.go_away();
    day.restart();
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!((day.count(Phase::Unknown), writes(&day.fake)), (10, before));
    day.fake.come_back();
    eventually("all are back", || day.count(Phase::Placed) == 10).await;

    // Uninstall: the agents end, and `leave` cleans up each node.
    for (name, agent) in std::mem::take(&mut day.agents) {
        agent.end().await;
        let left = leave(&client(&day.fake, &name), &name, NAMESPACE, &[], false)
            .await
            .unwrap();
        assert_eq!((left.labels.len(), left.claims.len()), (4, 1), "{name}");
    }
    assert_eq!(
        (places(&day.fake), claims(&day.fake)),
        (BTreeMap::new(), BTreeMap::new())
    );
    for node in day.fake.all("v1", "Node") {
        assert_eq!(node["metadata"]["labels"], json!({"pool": "train"}));
    }
    assert_eq!(day.new_events(), BTreeMap::new());
    no_place_was_double(&day.fake);
    let refused = day
        .fake
        .log()
        .into_iter()
        .filter(|logged| matches!(logged.status, 403 | 422));
    let refused: Vec<_> = refused.collect();
    assert!(
        refused.is_empty(),
        "the permissions suffice, and no policy refuses a write: {refused:#?}"
    );
}
