//! [`import`]: a plan from the `kubectl label` commands that somebody has typed so far.

mod command;

use std::collections::{BTreeMap, BTreeSet};

use kube::core::ObjectMeta;

use super::node::natural;
use super::{
    Active, Case, Group, Holding, LabelKeys, Pool, SERVERS, Scene, ScenePlan, ScenePlanSpec, Slot,
    key_fault, value_fault,
};
use command::{Change, Labelling, commands};

/// What became of the commands.
#[derive(Debug, Clone, PartialEq)]
pub struct Imported {
    /// A plan for each scene and case that nodes were labelled for, each with its nodes by name.
    pub plans: Vec<ScenePlan>,
    /// What the plans do not hold, and why.
    pub notes: Vec<ImportError>,
}

/// A mistake in a command, or something that no plan can give.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
#[error("line {line}: {text}")]
pub struct ImportError {
    /// The line, from 1.
    pub line: usize,
    /// What is wrong, and what to do.
    pub text: String,
}

/// The four labels' names, as people write them; the first is what a plan has by default.
const NAMES: [&[&str]; 4] = [&["SCENCE", "SCENE"], &["CASE"], &["INDEX"], &["TYPE"]];

/// The labels of nodes, each with the line that gave it, in the order in which the nodes were first named.
#[derive(Default)]
struct Cluster {
    names: Vec<String>,
    labels: BTreeMap<String, BTreeMap<String, (String, usize)>>,
}

/// Plans that give nodes the labels that these commands would have left, had they been run one after the other.
///
/// Several commands on a line, several nodes in a command, removals (`KEY-`), `--overwrite`, comments and continued
/// lines are followed as the shell and kubectl do. `name` is the name of the plan, with a number behind it where there are several.
/// Fails with every mistake at once: a command that kubectl would refuse, or labels that are no slot in a case.
pub fn import(text: &str, name: &str) -> Result<Imported, Vec<ImportError>> {
    let (mut errors, mut notes) = (Vec::new(), Vec::new());
    let mut cluster = Cluster::default();
    for command in commands(text) {
        match command {
            Ok(Some(labelling)) => cluster.apply(&labelling, &mut errors),
            Ok(None) => {}
            Err(command::Fault::Error(error)) => errors.push(error),
            Err(command::Fault::Note(note)) => notes.push(note),
        }
    }
    let keys = cluster.keys(&mut errors);
    cluster.leave_out(&keys, &mut notes);
    let cases = cluster.cases(&keys, &mut errors);
    let plans = plans(cases, &keys, name, &mut errors);
    if errors.is_empty() && plans.is_empty() {
        let last = text.lines().count().max(1);
        errors.push(ImportError::new(
            last,
            "no command gives a node a slot: SCENCE, CASE and INDEX are needed",
        ));
    }
    if errors.is_empty() {
        notes.sort();
        Ok(Imported { plans, notes })
    } else {
        errors.sort();
        errors.dedup();
        Err(errors)
    }
}

/// A case's slots: who has them, by which line, in the order in which they were named.
type Places = Vec<(Slot, String, usize)>;

/// The slots of one type, or of none.
#[derive(Default)]
struct OfType {
    kind: Option<String>,
    /// By index: the node, and the line that gave it the slot.
    holders: BTreeMap<u32, (String, usize)>,
}

fn plans(
    cases: Vec<((String, String), Places)>,
    keys: &LabelKeys,
    name: &str,
    errors: &mut Vec<ImportError>,
) -> Vec<ScenePlan> {
    let several = cases.len() > 1;
    let mut plans = Vec::new();
    for (((scene, case), places), number) in cases.into_iter().zip(1..) {
        let mut groups: Vec<OfType> = Vec::new();
        for (slot, node, line) in places {
            let known = groups
                .iter()
                .position(|group| group.kind == slot.kind)
                .unwrap_or(groups.len());
            if known == groups.len() {
                groups.push(OfType {
                    kind: slot.kind.clone(),
                    ..OfType::default()
                });
            }
            let Some(OfType { holders, .. }) = groups.get_mut(known) else {
                continue;
            };
            if let Some((other, before)) = holders.get(&slot.index) {
                let text = format!(
                    "{node} gets {slot}, which {other} already has (line {before}): give it another {}",
                    keys.index
                );
                errors.push(ImportError::new(line, text));
            } else {
                holders.insert(slot.index, (node, line));
            }
        }
        let untyped = groups.iter().find(|group| group.kind.is_none());
        if let (true, Some(OfType { holders, .. })) = (groups.len() > 1, untyped) {
            let (node, line) = holders.values().next().cloned().unwrap_or_default();
            let text = format!(
                "{node} has no {}, and other nodes of scene {scene} case {case} have one: label all of them, or none",
                keys.kind
            );
            errors.push(ImportError::new(line, text));
        }
        let mut names = Vec::new();
        for OfType { kind, holders } in &groups {
            for ((index, (_, line)), expected) in holders.iter().zip(0..) {
                if *index != expected {
                    let kind = kind
                        .as_ref()
                        .map(|kind| format!(" {kind}"))
                        .unwrap_or_default();
                    let text = format!(
                        "scene {scene} case {case}{kind} has {} {index} and no {expected}: indexes start at 0 and have no gaps",
                        keys.index
                    );
                    errors.push(ImportError::new(*line, text));
                    break;
                }
            }
            names.extend(holders.values().map(|(node, _)| node.clone()));
        }
        let name = if several {
            format!("{name}-{number}")
        } else {
            name.to_owned()
        };
        plans.push(plan(name, keys, (scene, case), &groups, names));
    }
    plans
}

fn plan(
    name: String,
    keys: &LabelKeys,
    (scene, case): (String, String),
    groups: &[OfType],
    names: Vec<String>,
) -> ScenePlan {
    let group_name = |kind: &Option<String>| kind.clone().unwrap_or_else(|| "server".to_owned());
    let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    let nodes = groups
        .iter()
        .map(|group| (group_name(&group.kind), count(group.holders.len())))
        .collect();
    let totals = BTreeMap::from([(SERVERS.to_owned(), count(names.len()))]);
    let spec = ScenePlanSpec {
        nodes: Pool {
            selector: None,
            names: Some(names),
        },
        active: Some(Active {
            scene: scene.clone(),
            case: case.clone(),
        }),
        labels: keys.clone(),
        on_busy: super::OnBusy::default(),
        taint: None,
        roles: BTreeMap::new(),
        scenes: vec![Scene {
            scene,
            groups: groups
                .iter()
                .map(|OfType { kind, .. }| Group {
                    name: group_name(kind),
                    kind: kind.clone(),
                    per_node: BTreeMap::new(),
                })
                .collect(),
            cases: vec![Case {
                case,
                nodes,
                totals,
            }],
        }],
    };
    ScenePlan {
        metadata: ObjectMeta {
            name: Some(name),
            ..ObjectMeta::default()
        },
        spec,
    }
}

// === impl Cluster ===

impl Cluster {
    /// What kubectl would do, or why it would refuse.
    fn apply(&mut self, command: &Labelling, errors: &mut Vec<ImportError>) {
        for change in &command.changes {
            let (key, fault) = match change {
                Change::Set(key, value) => (
                    key,
                    value_fault(value)
                        .map(|fault| format!("{value:?} can't be a label's value: {fault}")),
                ),
                Change::Remove(key) => (key, None),
            };
            let fault = key_fault(key)
                .map(|fault| format!("{key:?} can't be a label's key: {fault}"))
                .or(fault);
            if let Some(fault) = fault {
                errors.push(ImportError::new(command.line, fault));
                return;
            }
        }
        let set: BTreeSet<&str> = command.changes.iter().filter_map(Change::set).collect();
        let removed = command.changes.iter().filter_map(Change::removed);
        if let Some(key) = removed.into_iter().find(|key| set.contains(key)) {
            let text = format!(
                "{key} is set and removed in one command, which kubectl refuses: do one after the other"
            );
            errors.push(ImportError::new(command.line, text));
            return;
        }
        for node in &command.nodes {
            if !self.names.contains(node) {
                self.names.push(node.clone());
            }
            let labels = self.labels.entry(node.clone()).or_default();
            let refused = command.changes.iter().find_map(|change| {
                let Change::Set(key, value) = change else { return None };
                let (old, before) = labels.get(key).filter(|(old, _)| old != value)?;
                (!command.overwrite).then(|| {
                    format!(
                        "{node} already has {key}={old} (line {before}), and kubectl changes that only with --overwrite: \
                         add it, or remove the label first with {key}-"
                    )
                })
            });
            if let Some(text) = refused {
                errors.push(ImportError::new(command.line, text));
                continue;
            }
            for change in &command.changes {
                match change {
                    Change::Set(key, value) => {
                        drop(labels.insert(key.clone(), (value.clone(), command.line)));
                    }
                    Change::Remove(key) => drop(labels.remove(key)),
                }
            }
        }
    }

    /// Which of the keys that were used are the four labels', and which are their aliases.
    fn keys(&self, errors: &mut Vec<ImportError>) -> LabelKeys {
        let mut used: BTreeMap<&str, usize> = BTreeMap::new();
        for (key, (_, line)) in self.labels.values().flatten() {
            used.entry(key).or_insert(*line);
        }
        let mut keys = LabelKeys::default();
        let LabelKeys {
            scene,
            case,
            index,
            kind,
            aliases,
        } = &mut keys;
        for (names, main) in NAMES.iter().zip([scene, case, index, kind]) {
            let name = |key: &str| {
                key.rsplit('/')
                    .next()
                    .unwrap_or_default()
                    .to_ascii_uppercase()
            };
            let mut found: Vec<&str> = used
                .keys()
                .copied()
                .filter(|key| names.contains(&name(key).as_str()))
                .collect();
            found.sort_by_key(|key| *key != main.as_str());
            let mut found = found.into_iter();
            let Some(first) = found.next() else { continue };
            first.clone_into(main);
            if let Some(second) = found.next() {
                aliases.insert(first.to_owned(), second.to_owned());
            }
            if let Some(third) = found.next() {
                let line = used.get(third).copied().unwrap_or_default();
                let text = format!(
                    "{third} is the third key for one thing, beside {first} and its alias: a plan gives two"
                );
                errors.push(ImportError::new(line, text));
            }
        }
        keys
    }

    /// Labels that no plan gives.
    fn leave_out(&self, keys: &LabelKeys, notes: &mut Vec<ImportError>) {
        let owned = keys.owned();
        for (node, labels) in &self.labels {
            for (key, (value, line)) in labels
                .iter()
                .filter(|(key, _)| !owned.contains(key.as_str()))
            {
                let text = format!(
                    "{key}={value} of {node} is no scene's label, and the plan doesn't give it"
                );
                notes.push(ImportError::new(*line, text));
            }
        }
    }

    /// The slots that nodes have, by scene and case.
    fn cases(
        &self,
        keys: &LabelKeys,
        errors: &mut Vec<ImportError>,
    ) -> Vec<((String, String), Places)> {
        let mut cases: Vec<((String, String), Places)> = Vec::new();
        for name in &self.names {
            let Some(labels) = self.labels.get(name) else {
                continue;
            };
            let line = labels
                .values()
                .map(|(_, line)| *line)
                .max()
                .unwrap_or_default();
            let values = labels
                .iter()
                .map(|(key, (value, _))| (key.clone(), value.clone()))
                .collect();
            match keys.read(&values) {
                Holding::Nothing => {}
                Holding::Broken { reason } => {
                    let text = format!("the labels of {name} are no slot in a case: {reason}");
                    errors.push(ImportError::new(line, text));
                }
                Holding::Slot(slot) => {
                    let empty = [Some(&slot.scene), Some(&slot.case), slot.kind.as_ref()];
                    if empty.into_iter().flatten().any(String::is_empty) {
                        errors.push(ImportError::new(
                            line,
                            format!("a label of {name} has no value: write KEY=VALUE"),
                        ));
                        continue;
                    }
                    let case = (slot.scene.clone(), slot.case.clone());
                    let place = (slot, name.clone(), line);
                    match cases.iter_mut().find(|(key, _)| *key == case) {
                        Some((_, places)) => places.push(place),
                        None => cases.push((case, vec![place])),
                    }
                }
            }
        }
        cases.sort_by(|((scene, case), _), ((other, another), _)| {
            natural(scene, other).then_with(|| natural(case, another))
        });
        cases
    }
}

// === impl ImportError ===

impl ImportError {
    fn new(line: usize, text: impl Into<String>) -> Self {
        Self {
            line,
            text: text.into(),
        }
    }
}
