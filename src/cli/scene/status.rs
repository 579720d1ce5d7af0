//! `pinfold scene status`: how the labels on nodes compare with a case.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use serde_json::{Value, json};

use super::super::OutputFormat;
use super::case::CaseArgs;
use super::live::{LiveCluster, Remains};
use crate::scene::{
    CaseStatus, Holding, Node, ScenePlan, Slot, Slots, is_lease_of, several_claims, slots, status,
};
use crate::text::counted;

/// Compare the nodes' labels with a case: print claimed, missing and double slots.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kubectl get nodes -o yaml | pinfold scene status plan.yaml --nodes -
  pinfold scene status plan.yaml --scene 2 --case 2 --nodes nodes.yaml -o json
  pinfold scene status --live                         use plan, nodes and claims of the cluster

Exit codes: 0 each slot has exactly one node and no other node has slot labels, 1 otherwise, 2 bad input.
If the plan has no active case: 0 no node has its labels or claims any more, 1 some still do.
If the cluster has no plan (--live): 0 no claim remains, 1 some remain.")]
pub(super) struct SceneStatusArgs {
    #[command(flatten)]
    case: CaseArgs,
    /// File with the cluster's Nodes: a List of them, or several documents; - is the standard input.
    #[arg(
        long,
        value_name = "FILE",
        required_unless_present = "live",
        conflicts_with = "live"
    )]
    nodes: Option<PathBuf>,
    /// Output format.
    #[arg(short, long, value_enum, value_name = "FORM", default_value_t)]
    output: OutputFormat,
}

// === impl SceneStatusArgs ===

impl SceneStatusArgs {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        if let Some(remains) = self.case.left_without_plan()? {
            return self.left(&remains);
        }
        let (plan, cluster) = self.case.with_cluster(true)?;
        let nodes = self.case.nodes(self.nodes.as_deref(), cluster.as_ref())?;
        if self.case.is_inactive(&plan) {
            return self.inactive(&plan, &nodes, cluster.as_ref());
        }
        let slots = self.case.slots(&plan)?;
        let status = status(&plan, &slots, &nodes);
        let claims = cluster
            .as_ref()
            .map(|cluster| ClaimComparison::new(&plan, &slots, &status, cluster));
        match self.output {
            OutputFormat::Text => {
                let mut lines = table(&slots, &status);
                if let Some(claims) = &claims {
                    lines.push(format!(
                        "{} on this case, {} on other cases or plans",
                        counted(claims.holders.len(), "claim"),
                        claims.others
                    ));
                    lines.extend(claims.problems.iter().cloned());
                }
                super::super::emit(lines)?;
            }
            form => {
                let mut object = object(&slots, &status);
                if let (Some(claims), Some(fields)) = (&claims, object.as_object_mut()) {
                    fields.insert("claims".to_owned(), json!(claims.holders));
                    fields.insert("problems".to_owned(), json!(claims.problems));
                }
                form.print(&object)?;
            }
        }
        let well = status.is_well() && claims.is_none_or(|claims| claims.problems.is_empty());
        Ok(if well {
            ExitCode::SUCCESS
        } else {
            ExitCode::from(1)
        })
    }

    /// Names the nodes that still have labels or claims of a plan without an active case.
    fn inactive(
        &self,
        plan: &ScenePlan,
        nodes: &[Node],
        cluster: Option<&LiveCluster>,
    ) -> anyhow::Result<ExitCode> {
        let name = plan.metadata.name.as_deref().unwrap_or_default();
        let labelled: Vec<(&Node, Slot)> = nodes
            .iter()
            .filter_map(|node| Some((node, slot_of(plan, node)?)))
            .collect();
        let claims = cluster.map(|cluster| &cluster.claims);
        let claims: BTreeMap<&String, &String> = claims
            .into_iter()
            .flatten()
            .filter(|(lease, _)| is_lease_of(lease, name))
            .map(|(lease, holder)| (lease, &holder.node))
            .collect();
        match self.output {
            OutputFormat::Text => {
                let heading = format!(
                    "plan {name} has no active case: {} still with its labels, {}",
                    counted(labelled.len(), "node"),
                    counted(claims.len(), "claim"),
                );
                let labelled = labelled.iter().map(|(node, slot)| {
                    let waits = if node.is_leaving() { WAITS } else { "" };
                    format!("  {} has {slot}{waits}", node.name)
                });
                let claims = claims.iter();
                let claims = claims.map(|(lease, node)| format!("  claim {lease} of node {node}"));
                let lines = std::iter::once(heading).chain(labelled).chain(claims);
                super::super::emit(lines)?;
            }
            form => {
                let labelled = labelled.iter().map(|(node, slot)| {
                    json!({"node": node.name, "slot": slot, "leaving": node.is_leaving()})
                });
                let labelled: Vec<Value> = labelled.collect();
                form.print(
                    &json!({"plan": name, "active": null, "labelled": labelled, "claims": claims}),
                )?;
            }
        }
        let is_done = labelled.is_empty() && claims.is_empty();
        Ok(ExitCode::from(u8::from(!is_done)))
    }

    /// Names what remains in a cluster without a plan.
    fn left(&self, Remains { claims, leaving }: &Remains) -> anyhow::Result<ExitCode> {
        match self.output {
            OutputFormat::Text if claims.is_empty() => {
                super::super::emit(["the cluster has no ScenePlan and no claims"])?;
            }
            OutputFormat::Text => {
                let verb = if claims.len() == 1 {
                    "remains"
                } else {
                    "remain"
                };
                let heading = format!(
                    "the cluster has no ScenePlan, but {} {verb}:",
                    counted(claims.len(), "claim")
                );
                let remedy = "pinfold release --cluster-only --node-name NODE removes the labels and claims of a node";
                let claims = claims.iter().map(|(lease, holder)| {
                    let waits = if leaving.contains(&holder.node) {
                        WAITS
                    } else {
                        ""
                    };
                    format!("  {lease} of node {}{waits}", holder.node)
                });
                let lines = std::iter::once(heading).chain(claims);
                super::super::emit(lines.chain([remedy.to_owned()]))?;
            }
            form => {
                let holders: BTreeMap<&String, &String> = claims
                    .iter()
                    .map(|(lease, holder)| (lease, &holder.node))
                    .collect();
                form.print(&json!({"plan": null, "claims": holders, "leaving": leaving}))?;
            }
        }
        Ok(if claims.is_empty() {
            ExitCode::SUCCESS
        } else {
            ExitCode::from(1)
        })
    }
}

/// The end of a sentence about a node with the label of a leaving node.
const WAITS: &str = ", which it gives up when its pods have ended";

/// The slot of the plan, in any of its cases, that the node's labels name.
fn slot_of(plan: &ScenePlan, node: &Node) -> Option<Slot> {
    match plan.spec.labels.read(&node.labels) {
        Holding::Slot(slot) => {
            let slots = slots(plan, &slot.scene, &slot.case).ok()?;
            slots.position(&slot).map(|_| slot)
        }
        Holding::Nothing | Holding::Broken { .. } => None,
    }
}

/// The comparison of a cluster's claims and labels.
struct ClaimComparison {
    /// The holders of claims on slots of the case, by the Lease's name.
    holders: BTreeMap<String, String>,
    /// Claims of other cases and plans.
    others: usize,
    /// Where claims and labels differ, as sentences.
    problems: Vec<String>,
}

impl ClaimComparison {
    fn new(plan: &ScenePlan, slots: &Slots, status: &CaseStatus, cluster: &LiveCluster) -> Self {
        let name = plan.metadata.name.as_deref().unwrap_or_default();
        let claims = cluster.holders();
        let several = several_claims(plan, slots, &cluster.nodes, &claims);
        let surplus: BTreeSet<&String> = several.values().flat_map(|of| &of.surplus).collect();
        let (mut holders, mut problems) = (BTreeMap::new(), Vec::new());
        for (slot, nodes) in &status.slots {
            let lease = slot.lease_name(name);
            match claims.get(&lease) {
                Some(node) => {
                    // A node that waits has a line of its own, which gives the reason.
                    if !nodes.contains(node)
                        && !surplus.contains(&lease)
                        && status.kept_by(node).is_none()
                    {
                        problems.push(format!(
                            "{node} holds the claim on {slot}, but lacks its labels: read /status of the agent on {node}"
                        ));
                    }
                    holders.insert(lease, node.clone());
                }
                // The nodes of an explicit list need no claims.
                None if plan.spec.nodes.names.is_none() && !nodes.is_empty() => {
                    problems.push(format!(
                        "{slot} has labels on {}, but no claim",
                        nodes.join(", ")
                    ));
                }
                None => {}
            }
        }
        problems.extend(several.iter().map(|(node, of)| {
            format!(
                "{node} holds {} claims of the case, and only {} counts: the reclaimer removes the others of an active \
                 case; without it, delete the agent's pod on {node}, and the next agent gives them up",
                of.surplus.len() + 1,
                of.counts
            )
        }));
        Self {
            others: claims.len() - holders.len(),
            holders,
            problems,
        }
    }
}

fn object(slots: &Slots, status: &CaseStatus) -> Value {
    let place = |slot, more: (&str, Value)| {
        let mut place = json!(slot);
        if let Some(fields) = place.as_object_mut() {
            fields.insert(more.0.to_owned(), more.1);
        }
        place
    };
    json!({
        "scene": slots.scene(),
        "case": slots.case(),
        "slots": slots.len(),
        "claimed": status.claimed().map(|(slot, node)| place(slot, ("node", json!(node)))).collect::<Vec<_>>(),
        "missing": status.missing().collect::<Vec<_>>(),
        "double": status.double().map(|(slot, nodes)| place(slot, ("nodes", json!(nodes)))).collect::<Vec<_>>(),
        "waiting": status
            .waiting
            .iter()
            .map(|(node, slot)| place(slot, ("node", json!(node))))
            .collect::<Vec<_>>(),
        "mismatches": status
            .mismatches
            .iter()
            .map(|(node, why)| json!({ "node": node, "why": why }))
            .collect::<Vec<_>>(),
        "spare": status.spare,
    })
}

fn table(slots: &Slots, status: &CaseStatus) -> Vec<String> {
    let mut table = super::super::table(&["TYPE", "INDEX", "STATE", "NODE"]);
    table.leave_out(&[0]);
    for (slot, nodes) in &status.slots {
        let (state, node) = match nodes.as_slice() {
            [] => ("missing", "-".to_owned()),
            [node] => ("claimed", node.clone()),
            several => ("double", several.join(", ")),
        };
        let kind = slot.kind.clone().unwrap_or_else(|| "-".to_owned());
        table.add_row([kind, slot.index.to_string(), state.to_owned(), node]);
    }
    let mut lines = table.lines();
    lines.push(format!(
        "scene {} case {}: {}, {} claimed, {} missing, {} double; {} waiting, {} spare",
        slots.scene(),
        slots.case(),
        counted(slots.len(), "slot"),
        status.claimed().count(),
        status.missing().count(),
        status.double().count(),
        status.waiting.len(),
        status.spare.len()
    ));
    lines.extend(status.waiting.iter().map(|(node, slot)| {
        format!("{node} keeps the labels of {slot} until its pods have ended")
    }));
    let mismatches = status.mismatches.iter();
    lines.extend(mismatches.map(|(node, why)| format!("{node}: {why}")));
    lines
}
