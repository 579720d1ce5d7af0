//! `pinfold scene status`: how the labels on nodes compare with a case.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use serde_json::{Value, json};

use super::super::Format;
use crate::scene::{Slots, Status, status};

/// Compare the labels that nodes carry with a case: what is claimed, missing, double.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kubectl get nodes -o yaml | pinfold scene status plan.yaml --nodes -
  pinfold scene status plan.yaml --scene 2 --case 2 --nodes nodes.yaml -o json

Exit codes: 0 each slot has one node and nothing else is labelled, 1 not so, 2 bad input.")]
pub(super) struct StatusArgs {
    #[command(flatten)]
    case: super::CaseOf,
    /// File with the cluster's Nodes: a List of them, or several documents; - is the standard input.
    #[arg(long, value_name = "FILE")]
    nodes: PathBuf,
    /// Form of the output.
    #[arg(short, long, value_enum, value_name = "FORM", default_value_t)]
    output: Format,
}

// === impl StatusArgs ===

impl StatusArgs {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let plan = self.case.plan()?;
        let slots = self.case.slots(&plan)?;
        let status = status(&plan, &slots, &super::nodes(&self.nodes)?);
        match self.output {
            Format::Json => super::super::json(&object(&slots, &status))?,
            Format::Text => super::super::emit(&table(&slots, &status))?,
        }
        Ok(if status.is_well() { ExitCode::SUCCESS } else { ExitCode::from(1) })
    }
}

fn object(slots: &Slots, status: &Status) -> Value {
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
        "strangers": status
            .strangers
            .iter()
            .map(|(node, why)| json!({ "node": node, "why": why }))
            .collect::<Vec<_>>(),
        "spare": status.spare,
    })
}

fn table(slots: &Slots, status: &Status) -> String {
    let mut table = super::super::table(&["TYPE", "INDEX", "STATE", "NODE"]);
    for (slot, nodes) in &status.slots {
        let (state, node) = match nodes.as_slice() {
            [] => ("missing", "-".to_owned()),
            [node] => ("claimed", node.clone()),
            several => ("double", several.join(", ")),
        };
        let kind = slot.kind.clone().unwrap_or_else(|| "-".to_owned());
        table.add_row([kind, slot.index.to_string(), state.to_owned(), node]);
    }
    let mut text = format!(
        "{table}\nscene {} case {}: {}, {} claimed, {} missing, {} double; {} spare\n",
        slots.scene(),
        slots.case(),
        super::many(slots.len(), "slot"),
        status.claimed().count(),
        status.missing().count(),
        status.double().count(),
        status.spare.len()
    );
    for (node, why) in &status.strangers {
        text += &format!("{node}: {why}\n");
    }
    text
}
