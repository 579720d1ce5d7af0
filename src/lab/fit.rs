//! [`check_cases`]: whether every case fits on the cluster.

use std::collections::BTreeMap;

use anyhow::{Context, bail, ensure};

use super::ID_LENGTH;
use super::cluster_state::ClusterState;
use super::request::Request;
use crate::experiment::results::SceneFacts;
use crate::experiment::{
    AMOUNTS, RenderRequest, RunTag, Slice, TaskResources, TrainingJob, claimed, render, settle_run,
    simulate,
};
use crate::scene::{Node, ScenePlan, assign, slots};
use crate::text::counted;

/// What the cases need.
pub(super) struct Sizes {
    /// A line for each scene and case.
    pub(super) lines: Vec<String>,
    /// The objects of the largest run.
    pub(super) objects: usize,
    /// The pods of the largest run.
    pub(super) pods: u32,
    pub(super) warnings: Vec<String>,
}

/// Checks that each case can be rendered, has enough nodes, and fits on them.
pub(super) fn check_cases(
    request: &Request,
    job: &TrainingJob,
    scenes: &[SceneFacts],
    state: &ClusterState,
) -> anyhow::Result<Sizes> {
    let mut sizes = Sizes {
        lines: Vec::new(),
        objects: 0,
        pods: 0,
        warnings: Vec::new(),
    };
    for scene in scenes {
        for case in scene.cases.iter().filter(|case| case.servers > 0) {
            let name = format!("scene {} case {}", scene.scene, case.case);
            let named = (scene.scene.as_str(), case.case.as_str());
            for &way in &request.ways {
                let tag = RunTag {
                    experiment: "x".repeat(ID_LENGTH),
                    way,
                    run: 9999,
                };
                let rendered = render(&RenderRequest {
                    plan: &request.plan,
                    scene: named.0,
                    case: named.1,
                    job,
                    format: request.format,
                    slice: &Slice::default(),
                    run: Some(&tag),
                    amounts: AMOUNTS,
                });
                let rendered = rendered.with_context(|| format!("{name} can't be rendered"))?;
                sizes.objects = sizes.objects.max(rendered.objects.len());
                sizes.warnings.extend(rendered.warnings);
            }
            let pods: u32 = case.tasks.values().sum();
            sizes.pods = sizes.pods.max(pods);
            let requested = settle_run(&request.plan, named, job, AMOUNTS)?;
            fits(&request.plan, named, &requested, state)
                .with_context(|| format!("{name} does not fit"))?;
            let needs = exclusive_need(&request.plan, named, &requested)?;
            check_givable(&request.plan, named, &needs, state)
                .with_context(|| format!("{name} does not fit"))?;
            let most = needs.values().copied().max().unwrap_or_default();
            sizes.lines.push(format!(
                "{name}: {} on {}, up to {} on a node{}",
                counted(pods, "pod"),
                counted(case.servers, "node"),
                counted(most, "exclusive CPU"),
                can_give(state)
            ));
        }
    }
    sizes.warnings.sort();
    sizes.warnings.dedup();
    Ok(sizes)
}

/// How many CPUs the candidates can give, as the end of a sentence.
fn can_give(state: &ClusterState) -> String {
    let given = || state.givable.values();
    match (given().min(), given().max()) {
        (Some(least), Some(most)) if least == most => format!(", which can give {most}"),
        (Some(least), Some(most)) => format!(", which can give {least} to {most}"),
        _ => String::new(),
    }
}

/// Checks that the scheduler would find a node for every task.
fn fits(
    plan: &ScenePlan,
    (scene, case): (&str, &str),
    requested: &BTreeMap<String, TaskResources>,
    state: &ClusterState,
) -> anyhow::Result<()> {
    let slots = slots(plan, scene, case)?;
    let bare: Vec<Node> = state
        .nodes
        .iter()
        .map(|node| {
            let owned = plan.spec.labels.owned();
            let mut node = node.clone();
            node.labels.retain(|key, _| !owned.contains(key.as_str()));
            node
        })
        .collect();
    let labelled = claimed(plan, &slots, &bare);
    let simulation = simulate(plan, (scene, case), requested, &labelled, AMOUNTS)?;
    if let Some((task, why)) = simulation.pending.first() {
        bail!(
            "{} of its tasks have no node, for example {task}: {why}",
            simulation.pending.len()
        );
    }
    Ok(())
}

/// The whole CPUs that a server of each group needs, by the group's name.
fn exclusive_need(
    plan: &ScenePlan,
    (scene, case): (&str, &str),
    requested: &BTreeMap<String, TaskResources>,
) -> anyhow::Result<BTreeMap<String, u32>> {
    let Some((scene, _)) = plan.spec.case(scene, case) else {
        return Ok(BTreeMap::new());
    };
    let mut needs = BTreeMap::new();
    for group in &scene.groups {
        let mut cpus = 0_u64;
        for (role, count) in &group.per_node {
            let Some(resources) = requested.get(role) else {
                continue;
            };
            let limit = resources.limits.get("cpu");
            let millis = limit.map_or(Ok(0), |amount| (AMOUNTS.read)("cpu", &amount.0));
            let millis = millis.map_err(anyhow::Error::msg)?;
            if resources.pin == Some(true) {
                cpus = cpus.saturating_add(millis / 1000 * u64::from(*count));
            }
        }
        needs.insert(group.name.clone(), u32::try_from(cpus).unwrap_or(u32::MAX));
    }
    Ok(needs)
}

/// Checks that the agents can give the CPUs. With a list of names, the plan tells which node has which slot. With a selector, the
/// agents choose, so every candidate must be large enough for every slot.
fn check_givable(
    plan: &ScenePlan,
    (scene, case): (&str, &str),
    needs: &BTreeMap<String, u32>,
    state: &ClusterState,
) -> anyhow::Result<()> {
    let slots = slots(plan, scene, case)?;
    let need_at = |place: usize| {
        let group = slots.group(place)?;
        needs.get(group).copied()
    };
    let mut wanted: BTreeMap<&str, u32> = BTreeMap::new();
    if plan.spec.nodes.names.is_some() {
        for (place, (_, node)) in assign(plan, &slots, &state.nodes).given.iter().enumerate() {
            let node = node
                .as_deref()
                .and_then(|node| state.givable.get_key_value(node));
            wanted.extend(node.and_then(|(node, _)| Some((node.as_str(), need_at(place)?))));
        }
    } else {
        let most = (0..slots.len())
            .filter_map(need_at)
            .max()
            .unwrap_or_default();
        wanted.extend(state.givable.keys().map(|node| (node.as_str(), most)));
    }
    let small: Vec<String> = wanted
        .iter()
        .filter_map(|(node, cpus)| {
            let given = state.givable.get(*node)?;
            (given < cpus).then(|| {
                format!(
                    "{node} is to give {} and has {given}",
                    counted(*cpus, "exclusive CPU")
                )
            })
        })
        .collect();
    ensure!(
        small.is_empty(),
        "{}: reserve fewer CPUs there, ask for fewer, or take the node out of the plan's candidates",
        small.join(", ")
    );
    Ok(())
}
