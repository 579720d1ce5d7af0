//! The guide to the end-to-end suite lists the suite's cases and variables.

use std::collections::BTreeSet;
use std::fs;

use crate::yaml::here;

const PAGE: &str = "docs/guides/test-a-cluster.md";

/// The names in backticks in the first column of the page's tables.
fn first_column(text: &str) -> BTreeSet<String> {
    let rows = text.lines().filter_map(|line| line.strip_prefix("| "));
    let cells = rows.filter_map(|row| row.split(" | ").next());
    let names = cells.flat_map(|cell| cell.split(", "));
    names
        .filter_map(|name| name.strip_prefix('`')?.strip_suffix('`'))
        .map(str::to_owned)
        .collect()
}

/// The texts between quotes in a file, for which `wanted` is true. `wanted` gets the line and the text.
fn quoted(path: &str, wanted: impl Fn(&str, &str) -> bool) -> BTreeSet<String> {
    let text = fs::read_to_string(here(path)).unwrap();
    let lines = text.lines().map(str::trim);
    let parts = lines.flat_map(|line| {
        let odd = line.split('"').skip(1).step_by(2);
        odd.map(move |part| (line, part))
    });
    parts
        .filter(|(line, part)| wanted(line, part))
        .map(|(_, part)| part.to_owned())
        .collect()
}

#[test]
fn the_page_lists_the_cases_and_the_variables() {
    let listed = first_column(&fs::read_to_string(here(PAGE)).unwrap());
    let cases = quoted("tests/e2e/cases/mod.rs", |line, _| {
        line.starts_with("each \"") || line.starts_with("once \"")
    });
    assert!(
        cases.len() > 30,
        "the table of cases has another form: {cases:?}"
    );
    let variables = quoted("tests/e2e/settings.rs", |_, part| {
        part.starts_with("PINFOLD_E2E_")
            && part
                .chars()
                .all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_')
    });
    let actions = quoted("tests/e2e/cases/faults.rs", |_, part| {
        ["agent-", "runtime-", "kubelet-", "node-", "api-"]
            .iter()
            .any(|start| part.starts_with(start))
    });
    let actions: BTreeSet<String> = actions
        .into_iter()
        .map(|action| format!("{action} NODE"))
        .collect();
    let wanted: BTreeSet<String> = cases.into_iter().chain(variables).chain(actions).collect();
    assert_eq!(listed, wanted, "{PAGE} and the suite differ");
}
