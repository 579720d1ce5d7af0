//! Scenes: plans, mistakes, slots, labels, and `pinfold scene`.
//!
//! | what holds | tests |
//! |---|---|
//! | A mistake in a plan is named with place and correction, here and by the API server. | `check`, `definition` |
//! | Nodes get the labels of their slots, and random plans keep the rules. | `agent`, `properties` |
//! | Labels that nodes already have become a plan. | `import` |
//! | Rendered jobs are valid, and tell each task what it is. Their names differ, and their pods keep `restricted`. | `render` |
//! | A simulation places each task as the scheduler would. | `simulate` |
//! | A plan's status follows from plans, nodes and claims. | `plan_status` |
//! | The commands answer, refuse and explain. | `command` |

// A failure of a helper fails the test.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

#[path = "support/gate.rs"]
mod gate;
#[allow(dead_code, reason = "the tests of deploy/ use more of it")]
#[path = "support/kubectl.rs"]
mod kubectl;
#[path = "support/strict.rs"]
mod strict;
#[allow(
    dead_code,
    unused_imports,
    reason = "the tests of deploy use more of it"
)]
#[path = "deploy/tools.rs"]
mod tools;
#[allow(dead_code, reason = "the tests of deploy use more of it")]
#[path = "support/yaml.rs"]
mod yaml;

#[path = "scene/agent.rs"]
mod agent;
#[path = "scene/check.rs"]
mod check;
#[path = "scene/command.rs"]
mod command;
#[path = "scene/definition.rs"]
mod definition;
#[path = "scene/import.rs"]
mod import;
#[path = "scene/plan_status.rs"]
mod plan_status;
#[path = "scene/properties.rs"]
mod properties;
#[path = "scene/render.rs"]
mod render;
#[path = "scene/render/faults.rs"]
mod render_faults;
#[path = "scene/render/hosts.rs"]
mod render_hosts;
#[path = "scene/render/names.rs"]
mod render_names;
#[path = "scene/render/operators.rs"]
mod render_operators;
#[path = "scene/render/security.rs"]
mod render_security;
#[path = "scene/render/ways.rs"]
mod render_ways;
#[path = "scene/simulate.rs"]
mod simulate;

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::PathBuf;

use pinfold::experiment::AMOUNTS;
use pinfold::scene::{Document, Finding, Node, ScenePlan, read};

fn here(path: &str) -> PathBuf {
    yaml::here(path)
}

/// The plan of the examples, with eight cases.
fn example() -> String {
    fs::read_to_string(here("deploy/examples/scenes.yaml")).unwrap()
}

fn documents(text: &str) -> Vec<Document> {
    read(text, "plan.yaml").unwrap_or_else(|error| panic!("{error}\n{text}"))
}

/// The only plan in a text, which must be valid by its schema.
fn plan(text: &str) -> ScenePlan {
    let documents = documents(text);
    assert_eq!(documents.len(), 1);
    documents[0]
        .plan
        .clone()
        .unwrap_or_else(|| panic!("{:?}", findings(text, None)))
}

fn findings(text: &str, nodes: Option<&[Node]>) -> Vec<Finding> {
    pinfold::experiment::check(&documents(text), nodes, AMOUNTS)
}

/// The findings, in lines.
fn report(text: &str, nodes: Option<&[Node]>) -> String {
    findings(text, nodes)
        .iter()
        .fold(String::new(), |mut all, finding| {
            writeln!(all, "{finding}").unwrap();
            all
        })
}

fn pairs(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs
        .iter()
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
        .collect()
}

fn node(name: &str, labels: &[(&str, &str)]) -> Node {
    Node {
        name: name.to_owned(),
        labels: pairs(labels),
        ..Node::default()
    }
}

/// Nodes `node-0` and on, each with the given resources.
fn nodes(count: usize, cpu: &str, memory: &str) -> Vec<Node> {
    let amount = |text: &str| pinfold::scene::Amount(text.to_owned());
    let allocatable = BTreeMap::from([
        ("cpu".to_owned(), amount(cpu)),
        ("memory".to_owned(), amount(memory)),
    ]);
    (0..count)
        .map(|index| Node {
            allocatable: allocatable.clone(),
            ..node(&format!("node-{index}"), &[])
        })
        .collect()
}

/// A valid plan with a scene, two groups and a case.
const SMALL: &str = r#"apiVersion: pinfold.io/v1alpha1
kind: ScenePlan
metadata: {name: small}
spec:
  nodes: {selector: {matchLabels: {pool: train}}}
  active: {scene: "2", case: "1"}
  roles:
    worker: {limits: {cpu: 1, memory: 4Gi}}
  scenes:
  - scene: "2"
    groups:
    - {name: w, type: worker, perNode: {worker: 3}}
    - {name: p, type: ps, perNode: {ps: 1}}
    cases:
    - {case: "1", nodes: {w: 2, p: 1}, totals: {servers: 3, worker: 6, ps: 1}}
"#;
