//! [`simulate`]: the node of each task of a case, and the reasons of tasks without a node.
//!
//! The simulation checks what the rendered pods demand of the scheduler: slot labels, room for
//! requests beside the job's other tasks, cordons, and taints. Two parameter servers never share a
//! node if each server has a single one. What other pods use on a node is unknown.

use std::collections::{BTreeMap, BTreeSet};

use super::render::{JobTask, TaskResources, roles, tasks};
use crate::scene::{
    Amount, Amounts, NoSuchCase, Node, NodeLabels, NodeSelector, NodeTaint, Operator, PS,
    ScenePlan, Slot, Slots, assign, natural,
};

/// Which node each task would come to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Simulation {
    /// Tasks in order, each with the name of the node.
    pub placed: Vec<(JobTask, String)>,
    /// Tasks that would stay pending, each with the reason.
    pub pending: Vec<(JobTask, String)>,
    /// Further notes about the nodes.
    pub notes: Vec<String>,
}

/// The tasks and resources that a node already has.
#[derive(Default)]
struct NodeUse {
    used: BTreeMap<String, u64>,
    tasks: usize,
    server: bool,
}

/// A simulation in progress.
struct Scheduler<'a> {
    plan: &'a ScenePlan,
    requested: &'a BTreeMap<String, TaskResources>,
    amounts: Amounts,
    /// Whether two parameter servers never share a node.
    apart: bool,
    /// The nodes by the value of the index label, so that ten thousand servers are not compared
    /// with ten thousand nodes.
    by_index: BTreeMap<&'a str, Vec<&'a Node>>,
    /// The use of each node by the placed tasks.
    given: BTreeMap<&'a str, NodeUse>,
    /// The slots whose labels several nodes have.
    double: BTreeSet<Slot>,
    simulation: Simulation,
}

/// Which of these nodes each task of a case would come to. `requested` is what the tasks of each role ask for.
///
/// # Errors
/// The plan has no such scene or case.
pub fn simulate(
    plan: &ScenePlan,
    (scene, case): (&str, &str),
    requested: &BTreeMap<String, TaskResources>,
    nodes: &[Node],
    amounts: Amounts,
) -> Result<Simulation, NoSuchCase> {
    let all = tasks(plan, scene, case)?;
    let apart = roles(plan, scene, case)?
        .iter()
        .any(|role| role.role == PS && role.groups.iter().all(|share| share.per_node == 1));
    let mut scheduler = Scheduler {
        plan,
        requested,
        amounts,
        apart,
        by_index: by_index(plan, nodes),
        given: BTreeMap::new(),
        double: BTreeSet::new(),
        simulation: Simulation::default(),
    };
    for task in all {
        scheduler.place(task);
    }
    Ok(scheduler.simulation)
}

/// The tasks of a simulation that would come to a node with too few exclusive CPUs, each with the reason. `kept` says how many of a
/// node's CPUs are for everybody else. A node with an unknown number of CPUs has enough.
///
/// The scheduler knows nothing of exclusive CPUs: it sends a task wherever its requests fit.
pub fn too_few_cpus(
    simulation: &Simulation,
    requested: &BTreeMap<String, TaskResources>,
    nodes: &[Node],
    amounts: Amounts,
    kept: impl Fn(u64) -> u64,
) -> Vec<(JobTask, String)> {
    let by_name: BTreeMap<&str, &Node> = nodes
        .iter()
        .map(|node| (node.name.as_str(), node))
        .collect();
    let mut owned: BTreeMap<&str, u64> = BTreeMap::new();
    let mut too_few = Vec::new();
    for (task, name) in &simulation.placed {
        let wanted = requested.get(&task.role);
        let wanted = wanted.map_or(0, |resources| resources.exclusive_cpus(amounts));
        let cpus = by_name
            .get(name.as_str())
            .and_then(|node| cpus_of(node, amounts));
        let Some(cpus) = cpus.filter(|_| wanted > 0) else {
            continue;
        };
        let can_give = cpus.saturating_sub(kept(cpus));
        let owned = owned.entry(name).or_default();
        let left = can_give.saturating_sub(*owned);
        if left < wanted {
            let why = format!(
                "is entitled to {wanted}, and {name} has {left} left: it can give {can_give} of its {cpus} ({} stay shared), and the \
                 job's other tasks there own {owned}",
                cpus - can_give
            );
            too_few.push((task.clone(), why));
        } else {
            *owned = owned.saturating_add(wanted);
        }
    }
    too_few
}

/// The whole CPUs of a node: all that its kubelet counts, else as many as pods may request.
fn cpus_of(node: &Node, amounts: Amounts) -> Option<u64> {
    let cpu = node.capacity_cpu.as_ref().or(node.allocatable.get("cpu"))?;
    let millis = (amounts.read)("cpu", &cpu.0).ok()?;
    Some(millis.div_ceil(1000))
}

fn by_index<'a>(plan: &ScenePlan, nodes: &'a [Node]) -> BTreeMap<&'a str, Vec<&'a Node>> {
    let mut by_index: BTreeMap<&str, Vec<&Node>> = BTreeMap::new();
    for node in nodes {
        if let Some(index) = node.labels.get(&plan.spec.labels.index) {
            by_index.entry(index).or_default().push(node);
        }
    }
    by_index
}

// === impl Scheduler ===

impl<'a> Scheduler<'a> {
    /// Places a task on a node with the labels of the slot, or notes why it stays pending.
    fn place(&mut self, task: JobTask) {
        let labels = self.labels(&task.slot);
        let labelled = self.labelled(&task.slot, &labels);
        self.note_double(&task.slot, &labelled);
        let requested = self
            .requested
            .get(&task.role)
            .map(TaskResources::requested)
            .unwrap_or_default();
        let needs = TaskNeeds {
            plan: self.plan,
            role: &task.role,
            needs: &requested,
            apart: self.apart,
            amounts: self.amounts,
        };
        match self.choose(&needs, &labelled) {
            Ok(node) => {
                self.add_use(&needs, &node.name);
                self.simulation.placed.push((task, node.name.clone()));
            }
            Err(reason) => {
                let reason = if labelled.is_empty() {
                    without_node(&labels)
                } else {
                    reason
                };
                self.simulation.pending.push((task, reason));
            }
        }
    }

    /// The labels that the pods of a slot ask for. Aliases are for people: pods ask for the four keys.
    fn labels(&self, slot: &Slot) -> NodeLabels {
        let keys = &self.plan.spec.labels;
        keys.labels(slot)
            .into_iter()
            .filter(|(key, _)| keys.keys().contains(&key.as_str()))
            .collect()
    }

    /// The nodes with the labels of a slot, by name.
    fn labelled(&self, slot: &Slot, labels: &NodeLabels) -> Vec<&'a Node> {
        let has = |node: &Node| {
            labels
                .iter()
                .all(|(key, value)| node.labels.get(key) == Some(value))
        };
        let same_index = self.by_index.get(slot.index.to_string().as_str());
        let mut labelled: Vec<&Node> = same_index
            .into_iter()
            .flatten()
            .copied()
            .filter(|node| has(node))
            .collect();
        labelled.sort_by(|a, b| natural(&a.name, &b.name));
        labelled
    }

    /// Notes once if several nodes have the labels of a slot.
    fn note_double(&mut self, slot: &Slot, labelled: &[&Node]) {
        if labelled.len() > 1 && self.double.insert(slot.clone()) {
            let names: Vec<&str> = labelled.iter().map(|node| node.name.as_str()).collect();
            self.simulation.notes.push(format!(
                "{} have the same labels, {slot}: the scheduler may spread the tasks of this slot over these nodes",
                names.join(" and ")
            ));
        }
    }

    /// Chooses the node with the fewest tasks, as in the scheduler. The error has the reason of each node that can't take the
    /// task.
    fn choose(&self, needs: &TaskNeeds<'_>, labelled: &[&'a Node]) -> Result<&'a Node, String> {
        let mut reasons = Vec::new();
        let mut free = Vec::new();
        for node in labelled {
            match needs.refusal(node, self.given.get(node.name.as_str())) {
                Some(reason) => reasons.push(format!("{} {reason}", node.name)),
                None => free.push(*node),
            }
        }
        free.into_iter()
            .min_by_key(|node| {
                self.given
                    .get(node.name.as_str())
                    .map_or(0, |given| given.tasks)
            })
            .ok_or_else(|| reasons.join("; "))
    }

    fn add_use(&mut self, needs: &TaskNeeds<'_>, node: &'a str) {
        let given = self.given.entry(node).or_default();
        given.tasks += 1;
        given.server |= needs.role == PS;
        for (resource, amount) in needs.amounts() {
            let used = given.used.entry(resource.to_owned()).or_default();
            *used = used.saturating_add(amount);
        }
    }
}

/// The reason of a task without any labelled node.
fn without_node(labels: &NodeLabels) -> String {
    let pairs: Vec<String> = labels
        .iter()
        .map(|(key, value)| format!("{key}={value}"))
        .collect();
    format!("no node has {}", pairs.join(", "))
}

/// The nodes with the labels that the agents would set: each slot goes to one candidate.
pub fn claimed(plan: &ScenePlan, slots: &Slots, nodes: &[Node]) -> Vec<Node> {
    let keys = &plan.spec.labels;
    let assignment = assign(plan, slots, nodes);
    let given = assignment
        .given
        .iter()
        .filter_map(|(slot, name)| Some((name.as_deref()?, slot)));
    let given: BTreeMap<&str, &Slot> = given.collect();
    let spare: BTreeSet<&str> = assignment.spare.iter().map(String::as_str).collect();
    let owned = keys.owned();
    let mut nodes = nodes.to_vec();
    for node in &mut nodes {
        let slot = given.get(node.name.as_str());
        // A candidate without a slot of the case loses the labels of another case.
        if slot.is_some() || spare.contains(node.name.as_str()) {
            node.labels.retain(|key, _| !owned.contains(key.as_str()));
        }
        node.labels
            .extend(slot.into_iter().flat_map(|slot| keys.labels(slot)));
    }
    nodes
}

/// `count` invented candidates of a plan, each with the given allocatable amounts; missing amounts are unknown.
///
/// Nodes of an explicit list have the listed names; further nodes are `node-1`, `node-2`, ….
pub fn invented(plan: &ScenePlan, count: u32, allocatable: &BTreeMap<String, Amount>) -> Vec<Node> {
    let pool = &plan.spec.nodes;
    let labels = pool.selector.as_ref().map(satisfying).unwrap_or_default();
    (0..count)
        .map(|index| {
            let listed = pool
                .names
                .as_ref()
                .and_then(|names| names.get(index as usize));
            Node {
                name: listed
                    .cloned()
                    .unwrap_or_else(|| format!("node-{}", index.saturating_add(1))),
                labels: labels.clone(),
                allocatable: allocatable.clone(),
                ..Node::default()
            }
        })
        .collect()
}

/// Labels that a selector chooses, where single conditions can be fulfilled at once.
fn satisfying(selector: &NodeSelector) -> BTreeMap<String, String> {
    let mut labels = selector.match_labels.clone();
    for one in &selector.match_expressions {
        let value = match one.operator {
            Operator::In => one.values.first().cloned(),
            Operator::Exists => Some(String::new()),
            Operator::NotIn | Operator::DoesNotExist => None,
        };
        if let Some(value) = value {
            labels.entry(one.key.clone()).or_insert(value);
        }
    }
    labels
}

struct TaskNeeds<'a> {
    plan: &'a ScenePlan,
    role: &'a str,
    needs: &'a BTreeMap<&'a str, &'a Amount>,
    apart: bool,
    amounts: Amounts,
}

// === impl TaskNeeds ===

impl TaskNeeds<'_> {
    fn amounts(&self) -> impl Iterator<Item = (&str, u64)> {
        let all = self
            .needs
            .iter()
            .map(|(resource, amount)| (*resource, self.read(resource, amount)));
        all.chain([("pods", 1)])
    }

    fn read(&self, resource: &str, amount: &Amount) -> u64 {
        (self.amounts.read)(resource, &amount.0).unwrap_or_default()
    }

    /// Why the task can't come to a node with its labels, as the rest of a sentence that begins with the node's name.
    fn refusal(&self, node: &Node, given: Option<&NodeUse>) -> Option<String> {
        if node.cordoned {
            return Some("is cordoned".to_owned());
        }
        if let Some(taint) = node.taints.iter().find(|taint| !self.tolerates(taint)) {
            let [key, value, effect] =
                [&taint.key, &taint.value, &taint.effect].map(|part| part.as_deref().unwrap_or(""));
            let value = if value.is_empty() {
                String::new()
            } else {
                format!("={value}")
            };
            return Some(format!(
                "has the taint {key}{value}:{effect}, which the pods don't tolerate"
            ));
        }
        if self.apart && self.role == PS && given.is_some_and(|given| given.server) {
            return Some("already has a parameter server of the job".to_owned());
        }
        if node.allocatable.is_empty() {
            return None;
        }
        self.amounts().find_map(|(resource, needed)| {
            let Some(has) = node.allocatable.get(resource) else {
                // Every node has the basic resources, so a missing amount of them is unknown.
                let every = ["pods", "cpu", "memory", "ephemeral-storage"].contains(&resource);
                return (!every && needed > 0).then(|| format!("has no {resource}"));
            };
            let has = self.read(resource, has);
            let used = given.and_then(|given| given.used.get(resource)).copied().unwrap_or(0);
            let left = has.saturating_sub(used);
            let write = |amount: u64| (self.amounts.write)(resource, amount);
            (left < needed).then(|| {
                format!(
                    "has too little {resource}: {} requested, {} of {} left beside the job's other tasks",
                    write(needed),
                    write(left),
                    write(has)
                )
            })
        })
    }

    /// The pods tolerate only the plan's own taint.
    fn tolerates(&self, taint: &NodeTaint) -> bool {
        let keeps_off = matches!(taint.effect.as_deref(), Some("NoSchedule" | "NoExecute"));
        let is_own_taint = self.plan.spec.taint.as_ref().is_some_and(|own_taint| {
            let plan_taint = own_taint.to_k8s();
            taint.key.as_deref() == Some(plan_taint.key.as_str())
                && taint.effect.as_deref() == Some(plan_taint.effect.as_str())
                && plan_taint
                    .value
                    .is_none_or(|value| taint.value.as_deref() == Some(value.as_str()))
        });
        !keeps_off || is_own_taint
    }
}
