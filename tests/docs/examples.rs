//! The examples in code blocks: command lines, YAML, JSON.

use pinfold::agent::config::Config;
use pinfold::experiment::{AMOUNTS, check};
use pinfold::pod;
use pinfold::scene::{Severity, read};
use serde_json::{Value, json};

use crate::markdown::{Block, pages};
use crate::shell::pinfold_arguments;
use crate::yaml;

/// The first line of a configuration file of the agent.
const CONFIGURATION: &str = "# /etc/pinfold.yaml";

/// The code blocks of all pages in these languages, with their places.
fn blocks(languages: &[&str]) -> Vec<(String, Block)> {
    let mut found = Vec::new();
    for page in pages() {
        for block in page.blocks {
            if languages.contains(&block.language.as_str()) {
                found.push((format!("{}:{}", page.path, block.line), block));
            }
        }
    }
    found
}

/// The part of a block that a shell would read. In a console block only lines with a prompt are commands.
fn script(block: &Block) -> String {
    if block.language != "console" {
        return block.text.clone();
    }
    let prompts = ["$ ", "# "];
    let lines = block
        .text
        .lines()
        .filter_map(|line| prompts.iter().find_map(|prompt| line.strip_prefix(*prompt)));
    lines.map(|line| format!("{line}\n")).collect()
}

#[test]
fn every_block_has_a_language() {
    for page in pages() {
        for block in &page.blocks {
            assert!(
                !block.language.is_empty(),
                "{}:{}: name the language of the code block, like sh, yaml or text",
                page.path,
                block.line
            );
        }
    }
}

#[test]
fn command_lines_parse() {
    let mut wrong = Vec::new();
    let mut parsed = 0;
    for (place, block) in blocks(&["sh", "bash", "shell", "console"]) {
        for arguments in pinfold_arguments(&script(&block)) {
            parsed += 1;
            let words = std::iter::once("pinfold".to_owned()).chain(arguments.clone());
            if let Err(error) = pinfold::cli::command().try_get_matches_from(words)
                && error.use_stderr()
            {
                wrong.push(format!("{place}: pinfold {}\n{error}", arguments.join(" ")));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(parsed > 10, "only {parsed} command lines were found");
}

/// A value that looks like a pod or a pod template, as a pod.
fn as_pod(value: &Value) -> Option<Value> {
    let spec = value.get("spec")?;
    spec.get("containers")?.as_array()?;
    let mut metadata = value.get("metadata").cloned().unwrap_or_else(|| json!({}));
    if metadata.get("name").is_none() && metadata.get("generateName").is_none() {
        metadata
            .as_object_mut()?
            .insert("name".to_owned(), json!("template"));
    }
    Some(json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}))
}

/// Checks a pod, or the pod templates in an object.
fn check_pods(value: &Value, place: &str, wrong: &mut Vec<String>) {
    if let Some(pod) = as_pod(value) {
        if let Err(error) = pod::parse(&pod.to_string(), place) {
            let error = anyhow::Error::new(error);
            wrong.push(format!("{error:#}"));
        }
        return;
    }
    let children: Vec<&Value> = match value {
        Value::Object(map) => map.values().collect(),
        Value::Array(list) => list.iter().collect(),
        _ => Vec::new(),
    };
    for child in children {
        check_pods(child, place, wrong);
    }
}

/// Checks a ScenePlan with the definition's rules and the rules of `pinfold scene check`.
fn check_plan(plan: &Value, place: &str, wrong: &mut Vec<String>) {
    match read(&plan.to_string(), place) {
        Err(error) => wrong.push(error.to_string()),
        Ok(documents) => {
            let findings = check(&documents, None, AMOUNTS);
            let errors = findings
                .iter()
                .filter(|one| one.severity == Severity::Error);
            wrong.extend(errors.map(ToString::to_string));
        }
    }
}

/// Kubernetes objects are valid for the strict readers. A fragment of an object has no kind and only has to be YAML.
#[test]
fn yaml_is_valid() {
    let mut wrong = Vec::new();
    for (place, block) in blocks(&["yaml", "yml"]) {
        if block.text.starts_with(CONFIGURATION) {
            if let Err(error) = Config::parse(&block.text) {
                wrong.push(format!("{place}: {error:#}"));
            }
            continue;
        }
        for document in yaml::parse(&block.text, &place) {
            match document.get("kind").and_then(Value::as_str) {
                Some("ScenePlan") => check_plan(&document, &place, &mut wrong),
                Some(_) => check_pods(&document, &place, &mut wrong),
                None => {}
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn json_is_valid() {
    for (place, block) in blocks(&["json"]) {
        if let Err(error) = serde_json::from_str::<Value>(&block.text) {
            panic!("{place}: {error}");
        }
    }
}
