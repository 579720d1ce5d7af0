//! `pinfold scene labels`: which node gets which labels.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use serde_json::{Map, Value};

use super::case::CaseArgs;
use crate::scene::{Assignment, Node, ScenePlan, assign, candidates};
use crate::text::counted;

/// Print which node gets which labels, without changing anything.
///
/// With an explicit list, the nodes take the slots in the order of the list. With a selector, a node keeps the slot whose
/// labels it has, and the remaining nodes take the free slots in the order of their names. In a cluster, it is the agents'
/// claims that decide about the free slots.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  pinfold scene labels plan.yaml --nodes nodes.yaml
  pinfold scene labels plan.yaml --scene 2 --case 2 --nodes nodes.yaml -o json
  pinfold scene labels plan.yaml --nodes nodes.yaml -o kubectl | sh
  pinfold scene labels plan.yaml --live               use the nodes and claims of the cluster
  pinfold scene labels --live --plan ps-locality      use a plan of the cluster

Exit codes: 0 each slot has a node, 1 too few nodes, 2 bad input.")]
pub(super) struct LabelsArgs {
    #[command(flatten)]
    case: CaseArgs,
    /// File with the cluster's Nodes: a List of them, or several documents.
    #[arg(
        long,
        value_name = "FILE",
        required_unless_present = "live",
        conflicts_with = "live"
    )]
    nodes: Option<PathBuf>,
    /// Output format.
    #[arg(short, long, value_enum, value_name = "FORM", default_value_t)]
    output: LabelsOutput,
}

/// The form of the answer.
#[derive(Debug, Clone, Copy, Default, ValueEnum)]
enum LabelsOutput {
    /// For people.
    #[default]
    Table,
    /// For programs: an object with the labels of each node.
    Json,
    /// The same as YAML.
    Yaml,
    /// Commands for a shell.
    Kubectl,
}

// === impl LabelsArgs ===

impl LabelsArgs {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let (plan, cluster) = self.case.with_cluster(true)?;
        let slots = self.case.slots(&plan)?;
        let nodes = self.case.nodes(self.nodes.as_deref(), cluster.as_ref())?;
        // A claim counts before labels, because they follow it.
        let assignment = match &cluster {
            Some(cluster) => assign(&plan, &slots, &cluster.claimed(&plan, &slots)),
            None => assign(&plan, &slots, &nodes),
        };
        match self.output {
            LabelsOutput::Table => super::super::emit(table(&plan, &assignment))?,
            LabelsOutput::Json => super::super::json(&object(&plan, &assignment))?,
            LabelsOutput::Yaml => super::super::yaml(&object(&plan, &assignment))?,
            LabelsOutput::Kubectl => super::super::emit(commands(&plan, &assignment, &nodes))?,
        }
        for name in &assignment.absent {
            super::super::warn(format_args!(
                "the plan lists {name}, but no node has this name"
            ));
        }
        let missing = assignment
            .given
            .iter()
            .filter(|(_, node)| node.is_none())
            .count();
        if missing > 0 {
            super::super::complain(format_args!(
                "scene {} case {} has {}, but {missing} get no node: add candidate nodes",
                slots.scene(),
                slots.case(),
                counted(slots.len(), "slot")
            ));
            return Ok(ExitCode::from(1));
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn object(plan: &ScenePlan, assignment: &Assignment) -> Value {
    let mut nodes = Map::new();
    for (slot, node) in &assignment.given {
        let Some(node) = node else { continue };
        let labels = plan.spec.labels.labels(slot);
        let labels = labels
            .into_iter()
            .map(|(key, value)| (key, Value::from(value)));
        nodes.insert(node.clone(), Value::Object(labels.collect()));
    }
    Value::Object(nodes)
}

fn table(plan: &ScenePlan, assignment: &Assignment) -> Vec<String> {
    let keys = plan.spec.labels.keys();
    let mut table = super::super::table(&["NODE", keys[0], keys[1], keys[2], keys[3]]);
    // Scene and case are the same in each row.
    table.leave_out(&[1, 2]);
    for (slot, node) in &assignment.given {
        let kind = slot.kind.clone().unwrap_or_else(|| "-".to_owned());
        let node = node.clone().unwrap_or_else(|| "(none)".to_owned());
        table.add_row([
            node,
            slot.scene.clone(),
            slot.case.clone(),
            slot.index.to_string(),
            kind,
        ]);
    }
    let spare = assignment.spare.len();
    let plural = if spare == 1 {
        "further candidate has"
    } else {
        "further candidates have"
    };
    let mut lines = table.lines();
    lines.push(format!("{spare} {plural} no slot"));
    lines
}

/// The `kubectl label` commands that set each node's labels.
fn commands(plan: &ScenePlan, assignment: &Assignment, nodes: &[Node]) -> Vec<String> {
    let keys = &plan.spec.labels;
    let given: BTreeMap<&str, _> = assignment
        .given
        .iter()
        .filter_map(|(slot, node)| Some((node.as_deref()?, slot)))
        .collect();
    let by_name: BTreeMap<&str, &Node> = nodes
        .iter()
        .map(|node| (node.name.as_str(), node))
        .collect();
    let mut lines = Vec::new();
    // Removals come first, so that no two nodes have the same slot at any moment.
    for node in candidates(plan, nodes) {
        let has = keys.of(&node.labels);
        if !has.is_empty() && !given.contains_key(node.name.as_str()) {
            let removals: Vec<String> = has.keys().map(|key| format!("{key}-")).collect();
            lines.push(format!(
                "kubectl label node {} {}",
                node.name,
                removals.join(" ")
            ));
        }
    }
    for (slot, node) in &assignment.given {
        let Some(name) = node else { continue };
        let wanted = keys.labels(slot);
        let has = by_name
            .get(name.as_str())
            .map(|node| keys.of(&node.labels))
            .unwrap_or_default();
        let gone = has
            .keys()
            .filter(|key| !wanted.iter().any(|(wanted, _)| wanted == *key));
        let mut changes: Vec<String> = wanted
            .iter()
            .map(|(key, value)| format!("{key}={value}"))
            .collect();
        changes.extend(gone.map(|key| format!("{key}-")));
        lines.push(format!(
            "kubectl label --overwrite node {name} {}",
            changes.join(" ")
        ));
    }
    lines
}
