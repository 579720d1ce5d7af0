//! `pinfold scene simulate`: which node each task would come to.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::ensure;
use clap::Args;
use serde_json::{Value, json};

use super::super::OutputFormat;

use super::case::CaseArgs;
use crate::cpu::SharedMinimum;
use crate::experiment::{
    AMOUNTS, JobTask, Simulation, claimed, invented, settle, simulate, too_few_cpus,
};
use crate::pod::stay_shared;
use crate::scene::{Amount, Slots, slots};
use crate::text::counted;
use crate::text::values::whole;

/// Show where each task of a case would run, before any object exists, and why tasks would stay pending.
///
/// The simulation checks the nodes' labels, cordons and taints, the allocatable resources that the job's other tasks leave, and
/// whether the nodes can give the exclusive CPUs. It knows neither what other pods use nor how the CPUs of a node lie (see
/// pinfold plan).
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  pinfold scene simulate plan.yaml --scene 2 --case 2 --count 10 --cpu 8 --memory 64Gi
  kubectl get nodes -o yaml | pinfold scene simulate plan.yaml --nodes -
                                                      use the nodes with their current labels
  pinfold scene simulate plan.yaml --nodes nodes.yaml --claim
                                                      use the nodes, labelled as agents would
  pinfold scene simulate --live                       use the plan and the nodes of the cluster
  pinfold scene simulate plan.yaml --job job.yaml --count 10 -o json

Exit codes: 0 every task has a node and its CPUs, 1 a task would stay pending or get too few exclusive CPUs, 2 bad input.")]
pub(super) struct SimulateArgs {
    #[command(flatten)]
    case: CaseArgs,
    /// File with the cluster's Nodes; - is the standard input.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["live", "count"])]
    nodes: Option<PathBuf>,
    /// Invent this many nodes, at most 100000, with the labels that agents would set.
    #[arg(long, value_name = "NODES", conflicts_with = "live", value_parser = whole::<u32>(0..=100_000))]
    count: Option<u32>,
    /// CPUs of each invented node, all of them allocatable [default: not checked]
    #[arg(long, value_name = "CPUS", requires = "count")]
    cpu: Option<String>,
    /// Allocatable memory of each invented node [default: not checked]
    #[arg(long, value_name = "BYTES", requires = "count")]
    memory: Option<String>,
    /// How many CPUs the agent of each node reserves: the threads of a core, so 1 on nodes with one thread per core. This is a
    /// number, while the agents' --reserved is a list. Write 0, and --shared-minimum 0, if the kubelet chooses the exclusive CPUs, or
    /// if --cpu, or a Node without a capacity, is already what the kubelet's reserve leaves.
    #[arg(long, value_name = "CPUS", default_value = "2", value_parser = whole::<u64>(0..=u64::MAX))]
    reserved: u64,
    /// CPUs that exclusive assignments leave to everybody else on each node, reserved ones included: a number, or a share
    #[arg(long, value_name = "MINIMUM", default_value_t)]
    shared_minimum: SharedMinimum,
    /// Label the nodes as agents would, before the simulation.
    #[arg(long)]
    claim: bool,
    /// File with the job's parameters, whose requests overrule those of the plan.
    #[arg(long, value_name = "FILE")]
    job: Option<PathBuf>,
    /// Output format.
    #[arg(short, long, value_enum, value_name = "FORM", default_value_t)]
    output: OutputFormat,
}

// === impl SimulateArgs ===

impl SimulateArgs {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let job = self
            .job
            .as_deref()
            .map(super::render::job)
            .transpose()?
            .unwrap_or_default();
        let (plan, cluster) = self.case.with_cluster(false)?;
        let (scene, case) = self.case.names(&plan, &job)?;
        let slots = slots(&plan, &scene, &case)?;
        let nodes = match self.count {
            Some(count) => {
                let given = [("cpu", &self.cpu), ("memory", &self.memory)];
                let mut allocatable = BTreeMap::new();
                for (resource, amount) in given {
                    let Some(amount) = amount else { continue };
                    (AMOUNTS.read)(resource, amount)
                        .map_err(|fault| anyhow::anyhow!("--{resource} {amount:?}: {fault}"))?;
                    allocatable.insert(resource.to_owned(), Amount(amount.clone()));
                }
                invented(&plan, count, &allocatable)
            }
            None => {
                ensure!(
                    self.nodes.is_some() || cluster.is_some(),
                    "name a file with --nodes, name a number with --count, or use --live"
                );
                self.case.nodes(self.nodes.as_deref(), cluster.as_ref())?
            }
        };
        let nodes = if self.claim || self.count.is_some() {
            claimed(&plan, &slots, &nodes)
        } else {
            nodes
        };
        let requested = settle(&plan, (&scene, &case), &job, AMOUNTS)
            .map_err(|faults| super::render::refused("simulated", &faults))?;
        let simulation = simulate(&plan, (&scene, &case), &requested, &nodes, AMOUNTS)?;
        let kept = |cpus| self.kept(cpus);
        let too_few = too_few_cpus(&simulation, &requested, &nodes, AMOUNTS, kept);
        match self.output {
            OutputFormat::Text => super::super::emit(table(&slots, &simulation, &too_few))?,
            form => form.print(&object(&slots, &simulation, &too_few))?,
        }
        let works = simulation.pending.is_empty() && too_few.is_empty();
        Ok(ExitCode::from(u8::from(!works)))
    }

    /// How many CPUs of a node are for everybody else.
    fn kept(&self, cpus: u64) -> u64 {
        let [cpus, reserved] =
            [cpus, self.reserved].map(|count| usize::try_from(count).unwrap_or(usize::MAX));
        u64::try_from(stay_shared(cpus, reserved, self.shared_minimum)).unwrap_or(u64::MAX)
    }
}

/// Tasks, each with a reason.
type Reasons = [(JobTask, String)];

fn object(slots: &Slots, simulation: &Simulation, too_few: &Reasons) -> Value {
    let task = |task: &JobTask, key: &str, value: &str| {
        let mut object = json!({"role": task.role, "task": task.index, "index": task.slot.index});
        if let Some(fields) = object.as_object_mut() {
            fields.extend(
                task.slot
                    .kind
                    .iter()
                    .map(|kind| ("type".to_owned(), json!(kind))),
            );
            fields.insert(key.to_owned(), json!(value));
        }
        object
    };
    json!({
        "scene": slots.scene(),
        "case": slots.case(),
        "placed": simulation.placed.iter().map(|(one, node)| task(one, "node", node)).collect::<Vec<_>>(),
        "pending": simulation.pending.iter().map(|(one, why)| task(one, "why", why)).collect::<Vec<_>>(),
        "tooFewCpus": too_few.iter().map(|(one, why)| task(one, "why", why)).collect::<Vec<_>>(),
        "notes": simulation.notes,
    })
}

fn table(slots: &Slots, simulation: &Simulation, too_few: &Reasons) -> Vec<String> {
    let mut by_node: BTreeMap<&str, Vec<&JobTask>> = BTreeMap::new();
    for (task, node) in &simulation.placed {
        by_node.entry(node).or_default().push(task);
    }
    let mut nodes: Vec<(&str, Vec<&JobTask>)> = by_node.into_iter().collect();
    nodes.sort_by_key(|(_, tasks)| {
        let slot = tasks.first().and_then(|task| slots.position(&task.slot));
        slot.unwrap_or(usize::MAX)
    });
    let mut table = super::super::table(&["NODE", "TYPE", "INDEX", "TASKS"]);
    table.leave_out(&[2, 1]);
    for (node, tasks) in &nodes {
        let slot = tasks.first().map(|task| &task.slot);
        let kind = slot.and_then(|slot| slot.kind.as_deref()).unwrap_or("-");
        let index = slot.map(|slot| slot.index.to_string()).unwrap_or_default();
        table.add_row([(*node).to_owned(), kind.to_owned(), index, ranges(tasks)]);
    }
    let mut lines = table.lines();
    lines.push(format!(
        "scene {} case {}: {} on {}, {} pending",
        slots.scene(),
        slots.case(),
        counted(simulation.placed.len(), "task"),
        counted(nodes.len(), "node"),
        simulation.pending.len()
    ));
    let mut reasons: BTreeMap<&str, Vec<&JobTask>> = BTreeMap::new();
    for (task, why) in &simulation.pending {
        reasons.entry(why).or_default().push(task);
    }
    let reasons = reasons.iter();
    lines.extend(reasons.map(|(why, tasks)| format!("pending: {}: {why}", ranges(tasks))));
    let too_few = too_few.iter();
    lines.extend(too_few.map(|(task, why)| format!("too few exclusive CPUs: {task} {why}")));
    let notes = simulation.notes.iter();
    lines.extend(notes.map(|note| format!("note: {note}")));
    lines
}

/// Tasks in short form: `ps 0, worker 0-9`.
fn ranges(tasks: &[&JobTask]) -> String {
    let mut parts: Vec<(&str, u32, u32)> = Vec::new();
    for task in tasks {
        match parts.last_mut() {
            Some((role, _, last))
                if *role == task.role && last.checked_add(1) == Some(task.index) =>
            {
                *last = task.index;
            }
            _ => parts.push((&task.role, task.index, task.index)),
        }
    }
    let words = parts.into_iter().map(|(role, first, last)| {
        if first == last {
            format!("{role} {first}")
        } else {
            format!("{role} {first}-{last}")
        }
    });
    words.collect::<Vec<_>>().join(", ")
}
