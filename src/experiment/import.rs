//! [`import`]: plans of the labels that nodes already have.

use std::collections::BTreeMap;

use kube::core::ObjectMeta;

use crate::scene::{
    ActiveCase, Case, Group, Holding, LabelKeys, Node, OnBusy, Pool, SERVERS, Scene, ScenePlan,
    ScenePlanSpec, Slot, natural, value_fault,
};

/// The plans of imported nodes.
#[derive(Debug, Clone, PartialEq)]
pub struct Imported {
    /// A plan for each scene and case of the nodes, which it lists by name.
    pub plans: Vec<ScenePlan>,
    /// Nodes that are in no plan, each with the reason.
    pub notes: Vec<String>,
}

/// A reason why no plan can reproduce the labels of the nodes, with the remedy.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
#[error("{0}")]
pub struct ImportError(String);

/// The second spelling of the scene's key. Nodes may have both spellings.
const SCENE: &str = "SCENE";

type CaseKey = (String, String);

/// The servers of one type, by index, each with the name of its node.
type ServerNodes = BTreeMap<u32, String>;

/// The groups of one case, by type.
type TypeGroups = BTreeMap<Option<String>, ServerNodes>;

/// Plans that reproduce the labels SCENCE, CASE, INDEX and TYPE of these nodes.
///
/// The key SCENE counts as an alias of SCENCE, or as the scene's key if no node has SCENCE. `name`
/// becomes the plan's name; plans of several cases get a number behind it.
///
/// # Errors
/// All reasons at once: labels that are no slot, two nodes with one slot, missing indexes, or no node with a slot.
pub fn import(nodes: &[Node], name: &str) -> Result<Imported, Vec<ImportError>> {
    let (mut errors, mut notes) = (Vec::new(), Vec::new());
    let keys = label_keys(nodes);
    let mut cases: BTreeMap<CaseKey, TypeGroups> = BTreeMap::new();
    let mut nodes: Vec<&Node> = nodes.iter().collect();
    nodes.sort_by(|a, b| natural(&a.name, &b.name));
    for node in nodes {
        match slot_of(node, &keys) {
            Ok(Some(slot)) => {
                let groups = cases
                    .entry((slot.scene.clone(), slot.case.clone()))
                    .or_default();
                let servers = groups.entry(slot.kind.clone()).or_default();
                if let Some(first) = servers.get(&slot.index) {
                    errors.push(ImportError(format!(
                        "node {} and node {first} both have {slot}: give one of the nodes another {}",
                        node.name, keys.index
                    )));
                } else {
                    servers.insert(slot.index, node.name.clone());
                }
            }
            Ok(None) if keys.of(&node.labels).is_empty() => {}
            Ok(None) => notes.push(format!(
                "node {} has {} and no other label of a scene: the plan leaves the node out",
                node.name, keys.kind
            )),
            Err(error) => errors.push(error),
        }
    }
    for ((scene, case), groups) in &cases {
        errors.extend(group_faults(
            &format!("scene {scene} case {case}"),
            groups,
            &keys,
        ));
    }
    if errors.is_empty() && cases.is_empty() {
        errors.push(ImportError(format!(
            "no node has a slot: label nodes with {}, {} and {} first, or write a plan by hand",
            keys.scene, keys.case, keys.index
        )));
    }
    if !errors.is_empty() {
        errors.sort();
        return Err(errors);
    }
    let plans = plans(cases, &keys, name);
    Ok(Imported { plans, notes })
}

fn label_keys(nodes: &[Node]) -> LabelKeys {
    let mut keys = LabelKeys::default();
    let is_used = |key: &str| nodes.iter().any(|node| node.labels.contains_key(key));
    if is_used(SCENE) {
        if is_used(&keys.scene) {
            keys.aliases.insert(keys.scene.clone(), SCENE.to_owned());
        } else {
            SCENE.clone_into(&mut keys.scene);
        }
    }
    keys
}

/// The slot that a node's labels describe. A node with TYPE alone has no slot, because other
/// programs use this key, too.
fn slot_of(node: &Node, keys: &LabelKeys) -> Result<Option<Slot>, ImportError> {
    let fault = |reason: String| {
        Err(ImportError(format!(
            "the labels of node {} describe no slot: {reason}; correct the labels, or remove {}, {}, {} and {}",
            node.name, keys.scene, keys.case, keys.index, keys.kind
        )))
    };
    let labels = keys.of(&node.labels);
    if labels.keys().all(|key| *key == keys.kind) {
        return Ok(None);
    }
    for (key, value) in labels {
        if value.is_empty() {
            return fault(format!("the label {key} has no value"));
        }
        if let Some(reason) = value_fault(value) {
            return fault(format!("the label {key} has the value {value:?}: {reason}"));
        }
    }
    match keys.read(&node.labels) {
        Holding::Slot(slot) => Ok(Some(slot)),
        Holding::Broken { reason } => fault(reason),
        Holding::Nothing => Ok(None),
    }
}

/// Reasons why no plan has these groups: only some nodes have a type, or an index is missing.
fn group_faults(case: &str, groups: &TypeGroups, keys: &LabelKeys) -> Vec<ImportError> {
    let mut faults = Vec::new();
    if groups.len() > 1
        && let Some(node) = groups
            .get(&None)
            .and_then(|servers| servers.values().next())
    {
        faults.push(ImportError(format!(
            "node {node} has no {key}, but other nodes of {case} have {key}: label all of these nodes with {key}, or none",
            key = keys.kind
        )));
    }
    for (kind, servers) in groups {
        let gap = servers
            .keys()
            .zip(0..)
            .find(|(index, expected)| *index != expected);
        let Some((index, expected)) = gap else {
            continue;
        };
        let kind = kind.as_ref().map(|kind| format!(" {} {kind}", keys.kind));
        faults.push(ImportError(format!(
            "{case}{} has a node with {key} {index}, but no node with {key} {expected}: number the nodes from 0, without gaps",
            kind.unwrap_or_default(),
            key = keys.index
        )));
    }
    faults
}

fn plans(cases: BTreeMap<CaseKey, TypeGroups>, keys: &LabelKeys, name: &str) -> Vec<ScenePlan> {
    let several = cases.len() > 1;
    let mut cases: Vec<(CaseKey, TypeGroups)> = cases.into_iter().collect();
    cases.sort_by(|((scene, case), _), ((next_scene, next_case), _)| {
        natural(scene, next_scene).then_with(|| natural(case, next_case))
    });
    let numbered = cases.into_iter().zip(1..);
    numbered
        .map(|((key, groups), number)| {
            let name = if several {
                format!("{name}-{number}")
            } else {
                name.to_owned()
            };
            plan(name, keys, key, &groups)
        })
        .collect()
}

fn plan(name: String, keys: &LabelKeys, (scene, case): CaseKey, groups: &TypeGroups) -> ScenePlan {
    let group_name = |kind: &Option<String>| kind.clone().unwrap_or_else(|| "server".to_owned());
    let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    let names: Vec<String> = groups
        .values()
        .flat_map(BTreeMap::values)
        .cloned()
        .collect();
    let sizes = groups
        .iter()
        .map(|(kind, servers)| (group_name(kind), count(servers.len())));
    let groups_of_scene = groups.keys().map(|kind| Group {
        name: group_name(kind),
        kind: kind.clone(),
        per_node: BTreeMap::new(),
    });
    let spec = ScenePlanSpec {
        active: Some(ActiveCase {
            scene: scene.clone(),
            case: case.clone(),
        }),
        labels: keys.clone(),
        on_busy: OnBusy::default(),
        taint: None,
        roles: BTreeMap::new(),
        scenes: vec![Scene {
            scene,
            groups: groups_of_scene.collect(),
            cases: vec![Case {
                case,
                nodes: sizes.collect(),
                totals: BTreeMap::from([(SERVERS.to_owned(), count(names.len()))]),
            }],
        }],
        nodes: Pool {
            selector: None,
            names: Some(names),
        },
    };
    ScenePlan {
        metadata: ObjectMeta {
            name: Some(name),
            ..ObjectMeta::default()
        },
        spec,
        status: None,
    }
}
