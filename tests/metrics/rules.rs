//! Recording rules and alerts: each uses existing families, states the remedy, and has a case for promtool.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use serde_json::Value;

use crate::gate::meant_for_this_machine;
use crate::names::TABLES;
use crate::yaml::{documents, here};

const RULES: &str = "deploy/rules/pinfold.rules.yaml";
const CASES: &str = "tests/prometheus/rules.test.yaml";

/// Series of Prometheus and of kube-state-metrics.
const FOREIGN: [&str; 3] = [
    "up",
    "kube_daemonset_status_desired_number_scheduled",
    "kube_daemonset_status_number_ready",
];

/// The names of the recorded series.
pub(crate) fn recorded() -> BTreeSet<String> {
    rules()
        .iter()
        .filter_map(|rule| rule["record"].as_str())
        .map(str::to_owned)
        .collect()
}

/// The rules in the order of the file.
pub(crate) fn rules() -> Vec<Value> {
    let groups = documents(RULES).remove(0);
    let groups = groups["groups"].as_array().unwrap().clone();
    groups
        .iter()
        .flat_map(|group| group["rules"].as_array().unwrap().clone())
        .collect()
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key]
        .as_str()
        .unwrap_or_else(|| panic!("no {key} in {value:#}"))
}

/// The names of series in an expression: Pinfold's families, recorded series, and the [`FOREIGN`] ones.
pub(crate) fn series(expression: &str) -> BTreeSet<String> {
    // Text in quotes is a label's value.
    let outside: String = expression.split('"').step_by(2).collect();
    let words = outside
        .split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_' && letter != ':');
    let is_name =
        |word: &&str| word.contains(':') || word.starts_with("pinfold_") || FOREIGN.contains(word);
    words.filter(is_name).map(str::to_owned).collect()
}

/// Requires that each series is a known family or a recorded series.
pub(crate) fn known(expression: &str, recorded: &BTreeSet<String>) {
    let names = series(expression);
    assert!(!names.is_empty(), "no series in {expression}");
    for name in names {
        // A histogram is served as three.
        let stem = ["_bucket", "_sum", "_count"]
            .iter()
            .find_map(|end| name.strip_suffix(end))
            .unwrap_or(&name);
        let is = |family: &str| family == name || family == stem;
        let tabled = TABLES
            .iter()
            .any(|table| table.iter().any(|family| is(family.name)));
        assert!(
            tabled || FOREIGN.contains(&name.as_str()) || recorded.contains(&name),
            "{name} is no family, and no rule before has recorded it: {expression}"
        );
    }
}

#[test]
fn rules_are_on_families_that_there_are() {
    let (mut recorded, mut alerts) = (BTreeSet::new(), 0);
    for rule in rules() {
        known(text(&rule, "expr"), &recorded);
        if let Some(name) = rule["record"].as_str() {
            // The name has the form level:metric:operations, as Prometheus recommends.
            assert_eq!(name.split(':').count(), 3, "{name}");
            assert!(recorded.insert(name.to_owned()), "{name} is there twice");
            continue;
        }
        let name = text(&rule, "alert");
        alerts += 1;
        assert!(name.starts_with("Pinfold"), "{name}");
        let severity = text(&rule["labels"], "severity");
        assert!(
            matches!(severity, "info" | "warning" | "critical"),
            "{name}: {severity}"
        );
        let notes = &rule["annotations"];
        assert!(
            text(notes, "summary").ends_with('.') && text(notes, "summary").len() < 200,
            "{name}"
        );
        assert!(
            text(notes, "description").ends_with('.') && text(notes, "description").len() > 60,
            "{name}"
        );
    }
    assert!(
        recorded.len() > 10 && alerts > 15,
        "{} recorded, {alerts} alerts",
        recorded.len()
    );
}

/// Promtool does not report a rule without a case.
#[test]
fn every_rule_has_a_case_and_every_alert_one_where_it_keeps_silent() {
    let cases = documents(CASES).remove(0);
    let mut asked = BTreeSet::new();
    let mut alerts: BTreeMap<String, BTreeSet<bool>> = BTreeMap::new();
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    for case in list(&cases["tests"]) {
        for one in list(&case["promql_expr_test"]) {
            assert!(
                !list(&one["exp_samples"]).is_empty(),
                "{one}: expects nothing"
            );
            asked.extend(series(text(&one, "expr")));
        }
        for one in list(&case["alert_rule_test"]) {
            let fires = !list(&one["exp_alerts"]).is_empty();
            alerts
                .entry(text(&one, "alertname").to_owned())
                .or_default()
                .insert(fires);
        }
    }
    for rule in rules() {
        match rule["record"].as_str() {
            Some(name) => assert!(asked.remove(name), "{name} has no case in {CASES}"),
            None => {
                let both = alerts.remove(text(&rule, "alert"));
                assert_eq!(
                    both,
                    Some(BTreeSet::from([false, true])),
                    "{} in {CASES}",
                    rule["alert"]
                );
            }
        }
    }
    assert!(
        asked.is_empty() && alerts.is_empty(),
        "cases of no rule: {asked:?} {alerts:?}"
    );
}

#[test]
fn promtool_agrees() {
    if !meant_for_this_machine("promtool, from Debian's package prometheus") {
        return;
    }
    for args in [["check", "rules", RULES], ["test", "rules", CASES]] {
        let mut promtool = Command::new("promtool");
        let output = promtool.args(args).current_dir(here("")).output();
        let output = output
            .unwrap_or_else(|error| panic!("promtool is in Debian's package prometheus: {error}"));
        let says = format!(
            "{}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
        assert!(
            output.status.success() && says.contains("SUCCESS"),
            "{args:?}: {says}"
        );
    }
}

/// The object for the Prometheus operator comes from the chart (`deploy/generate`), and the chart reads the file.
#[test]
fn the_prometheus_rule_has_the_same_groups() {
    let file = std::fs::read_to_string(here(RULES)).unwrap();
    let path = "deploy/components/prometheusrule/prometheusrule.yaml";
    assert_eq!(
        documents(path)[0]["spec"],
        documents(RULES)[0],
        "as they are read"
    );
    let chart =
        std::fs::read_to_string(here("deploy/helm/pinfold/rules/pinfold.rules.yaml")).unwrap();
    assert_eq!(chart, file);
}
