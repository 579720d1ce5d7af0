//! The candidate nodes: whether they exist, are enough, and belong to no second plan.

use std::collections::BTreeSet;

use super::{Finder, repeated};
use crate::scene::{
    Document, Node, NodeSelector, Operator, Path, ScenePlan, Slots, candidates, key_fault,
    subdomain_fault, value_fault,
};
use crate::text::counted;

impl Finder<'_> {
    pub(super) fn pool(&mut self) {
        let pool = &self.plan.spec.nodes;
        let path = Path::of(&["spec", "nodes"]);
        match (&pool.selector, &pool.names) {
            (None, None) => {
                let fix = "write selector: {matchLabels: {KEY: VALUE}}, or names: [NODE, …]";
                self.error(
                    &path,
                    "the plan has neither selector nor names, so no node is a candidate",
                    fix,
                );
            }
            (Some(_), Some(_)) => {
                self.error(
                    &path,
                    "the plan has both selector and names",
                    "remove one of them",
                );
            }
            (Some(_), None) | (None, Some(_)) => {}
        }
        if let Some(selector) = &pool.selector {
            self.selector(selector, &path.key("selector"));
        }
        let path = path.key("names");
        let names = pool.names.as_deref().unwrap_or_default();
        for (index, name) in names.iter().enumerate() {
            if let Some(fault) = subdomain_fault(name) {
                self.error(
                    &path.at(index),
                    format!("{name:?} can't be a node's name: {fault}"),
                    "correct the name",
                );
            }
        }
        for (again, before) in repeated(names.iter().map(String::as_str)) {
            let name = names.get(again).map(String::as_str).unwrap_or_default();
            let text = format!("{name} repeats names[{before}], but a node can have only one slot");
            self.error(
                &path.at(again),
                text,
                "write another node, or remove this name",
            );
        }
        self.enough_names();
    }

    fn enough_names(&mut self) {
        let Some(names) = &self.plan.spec.nodes.names else {
            return;
        };
        let count = names.iter().collect::<BTreeSet<_>>().len();
        self.enough(&Path::of(&["spec", "nodes", "names"]), count, |count| {
            format!("the list has {}", counted(count, "node"))
        });
    }

    /// Each case has no more servers than there are nodes; the worst is named.
    fn enough(&mut self, path: &Path, count: usize, there: impl Fn(u64) -> String) {
        let plan = self.plan;
        let cases = plan
            .spec
            .scenes
            .iter()
            .flat_map(|scene| scene.cases.iter().map(move |case| (scene, case)));
        let short: Vec<(String, usize)> = cases
            .map(|(scene, case)| {
                (
                    format!("scene {} case {}", scene.scene, case.case),
                    Slots::new(scene, case).len(),
                )
            })
            .filter(|(_, servers)| *servers > count)
            .collect();
        let Some((worst, most)) = short.iter().max_by_key(|(_, servers)| *servers) else {
            return;
        };
        let further_cases = match short.len() {
            1 => String::new(),
            more => format!(" ({} have too few nodes)", counted(more as u64, "case")),
        };
        let text = format!(
            "{}, but {worst} needs {most}{further_cases}",
            there(count as u64)
        );
        let fix = format!(
            "add {}, or remove the case",
            counted((most - count) as u64, "node")
        );
        self.error(path, text, fix);
    }

    fn selector(&mut self, selector: &NodeSelector, path: &Path) {
        let owned = self.plan.spec.labels.owned();
        for (key, value) in &selector.match_labels {
            let path = path.key("matchLabels").key(key);
            self.selector_key(&path, key, &owned);
            self.selector_value(&path, value);
        }
        for (index, one) in selector.match_expressions.iter().enumerate() {
            let path = path.key("matchExpressions").at(index);
            self.selector_key(&path.key("key"), &one.key, &owned);
            let wants = matches!(one.operator, Operator::In | Operator::NotIn);
            if wants && one.values.is_empty() {
                self.error(
                    &path,
                    format!("{:?} needs values", one.operator),
                    "add values: [VALUE, …]",
                );
            } else if !wants && !one.values.is_empty() {
                self.error(
                    &path,
                    format!("{:?} takes no values", one.operator),
                    "remove values",
                );
            }
            for (index, value) in one.values.iter().enumerate() {
                self.selector_value(&path.key("values").at(index), value);
            }
        }
    }

    fn selector_key(&mut self, path: &Path, key: &str, owned: &BTreeSet<&str>) {
        if let Some(fault) = key_fault(key) {
            self.error(
                path,
                format!("{key:?} can't be a label's key: {fault}"),
                "correct the key",
            );
        } else if owned.contains(key) {
            let text = format!(
                "{key} is a label that the plan itself writes: labelling would change the candidates"
            );
            self.error(path, text, "choose nodes by another label");
        }
    }

    fn selector_value(&mut self, path: &Path, value: &str) {
        if let Some(fault) = value_fault(value) {
            self.error(
                path,
                format!("{value:?} can't be a label's value: {fault}"),
                "correct the value",
            );
        }
    }

    /// The findings about the plan beside the cluster's nodes.
    pub(super) fn nodes(&mut self, nodes: &[Node]) {
        let plan = self.plan;
        let path = Path::of(&["spec", "nodes"]);
        let chosen = candidates(plan, nodes);
        if let Some(names) = &plan.spec.nodes.names {
            let known: BTreeSet<&str> = nodes.iter().map(|node| node.name.as_str()).collect();
            for (index, name) in names
                .iter()
                .enumerate()
                .filter(|(_, name)| !known.contains(name.as_str()))
            {
                let text = format!("the cluster has no node {name}");
                self.error(
                    &path.key("names").at(index),
                    text,
                    "correct the name, or write another node",
                );
            }
        } else if plan.spec.nodes.selector.is_some() {
            let free: Vec<&&Node> = chosen.iter().filter(|node| !node.cordoned).collect();
            let cordoned = chosen.len() - free.len();
            let path = path.key("selector");
            self.enough(&path, chosen.len(), |count| {
                let matched = if count == 1 { "matches" } else { "match" };
                format!("{} {matched} the selector", counted(count, "node"))
            });
            if cordoned > 0 {
                let verbs = if cordoned == 1 {
                    ["is", "gets"]
                } else {
                    ["are", "get"]
                };
                let [are, get] = verbs;
                let text = format!(
                    "{cordoned} of the nodes that match the selector {are} cordoned and {get} no new slot"
                );
                self.warning(
                    &path,
                    text,
                    "run kubectl uncordon for each, or narrow the selector",
                );
            }
        }
        self.fits(&chosen);
    }

    /// No node may be a candidate of two plans that are active.
    pub(super) fn overlap(&mut self, before: &Document, other: &ScenePlan, nodes: Option<&[Node]>) {
        let (Some(overlap), path) = shared(self.plan, other, nodes) else {
            return;
        };
        let both = self.plan.spec.active.is_some() && other.spec.active.is_some();
        let named = before.name().to_owned();
        match overlap {
            Overlap::Nodes(names) => {
                let some = names.iter().take(3).cloned().collect::<Vec<_>>().join(", ");
                let more = if names.len() > 3 {
                    format!(" and {} more", names.len() - 3)
                } else {
                    String::new()
                };
                let text = format!(
                    "{some}{more} {} of plan {named}",
                    if names.len() == 1 {
                        "is also a candidate"
                    } else {
                        "are also candidates"
                    }
                );
                let fix = "leave each node to one plan";
                if both {
                    self.error(&path, text, fix);
                } else {
                    let fix = "leave each node to one plan, or activate only one of the plans";
                    self.warning(&path, text, fix);
                }
            }
            Overlap::Same if both => {
                let text = format!("plan {named} has the same selector, and both are active");
                self.error(&path, text, "leave each node to one plan");
            }
            Overlap::Possible if both => {
                let text = format!("a node may also be a candidate of plan {named}");
                self.warning(
                    &path,
                    text,
                    "require different values of the same label in both selectors, or check with --nodes",
                );
            }
            Overlap::Same | Overlap::Possible => {}
        }
    }
}

/// How the candidates of two plans overlap.
enum Overlap {
    Nodes(Vec<String>),
    /// A full overlap: both plans have the same selector.
    Same,
    /// A possible overlap: the selectors don't exclude each other.
    Possible,
}

/// How two plans overlap, and where that stands in the first.
fn shared(mine: &ScenePlan, other: &ScenePlan, nodes: Option<&[Node]>) -> (Option<Overlap>, Path) {
    let path = Path::of(&["spec", "nodes"]);
    if let (Some(mine), Some(other)) = (&mine.spec.nodes.names, &other.spec.nodes.names) {
        let taken: BTreeSet<&String> = other.iter().collect();
        let twice: Vec<(usize, &String)> = mine
            .iter()
            .enumerate()
            .filter(|(_, name)| taken.contains(name))
            .collect();
        let place = twice.first().map_or(0, |(index, _)| *index);
        let names: Vec<String> = twice.into_iter().map(|(_, name)| name.clone()).collect();
        return (
            (!names.is_empty()).then_some(Overlap::Nodes(names)),
            path.key("names").at(place),
        );
    }
    if let Some(nodes) = nodes {
        let taken: BTreeSet<&str> = candidates(other, nodes)
            .into_iter()
            .map(|node| node.name.as_str())
            .collect();
        let chosen = candidates(mine, nodes)
            .into_iter()
            .map(|node| node.name.clone());
        let names: Vec<String> = chosen
            .filter(|name| taken.contains(name.as_str()))
            .collect();
        return ((!names.is_empty()).then_some(Overlap::Nodes(names)), path);
    }
    let overlap = match (&mine.spec.nodes.selector, &other.spec.nodes.selector) {
        (Some(mine), Some(other)) if mine == other => Some(Overlap::Same),
        (Some(mine), Some(other)) => (!mine.excludes(other)).then_some(Overlap::Possible),
        _ => Some(Overlap::Possible),
    };
    (overlap, path)
}
