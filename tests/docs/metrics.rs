//! The reference of metric families and collectors.

use std::collections::BTreeSet;
use std::fmt::Write;

use pinfold::metrics::{
    AGENT_FAMILIES, API_FAMILIES, COLLECTORS, FAMILIES, Family, FamilyKind, RECLAIM_FAMILIES,
    RUNTIME_FAMILIES,
};

use crate::generated;
use crate::markdown::DocumentPage;
use crate::yaml;

const PAGE: &str = "docs/reference/metrics.md";

/// The longest line of the page.
const WIDTH: usize = 120;

/// The groups of [`FAMILIES`]: the title, and the beginning of the names. The last group holds the remaining families.
const GROUPS: [(&str, &str); 5] = [
    ("Families of containers", "pinfold_container_"),
    ("Families of pods", "pinfold_pod_"),
    ("Families of peers", "pinfold_peer_"),
    ("Families of collectors", "pinfold_collector_"),
    ("Families of the node", ""),
];

/// A list of families under a title.
fn list(page: &mut String, title: &str, families: &[&Family]) {
    write!(page, "## {title}\n\n").unwrap();
    for family in families {
        let kind = match family.kind {
            FamilyKind::Counter => "counter",
            FamilyKind::Gauge => "gauge",
            FamilyKind::Info => "info",
            FamilyKind::Histogram => "histogram",
        };
        let labels: Vec<String> = family
            .labels
            .iter()
            .map(|label| format!("`{label}`"))
            .collect();
        let labels = if labels.is_empty() {
            String::new()
        } else {
            format!("; {}", labels.join(", "))
        };
        let text = format!("- `{}` ({kind}{labels}): {}", family.name, family.help);
        wrap(page, &text);
    }
    page.push('\n');
}

/// Adds a list item, in lines of at most [`WIDTH`] characters.
fn wrap(page: &mut String, text: &str) {
    let mut line = String::new();
    for word in text.split(' ') {
        if !line.is_empty() && line.chars().count() + 1 + word.chars().count() > WIDTH {
            writeln!(page, "{line}").unwrap();
            " ".clone_into(&mut line);
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    writeln!(page, "{line}").unwrap();
}

#[test]
fn the_page_lists_the_families() {
    let mut page = String::new();
    let mut rest: Vec<&Family> = FAMILIES.to_vec();
    for (title, prefix) in GROUPS {
        let (group, others): (Vec<&Family>, Vec<&Family>) = rest
            .into_iter()
            .partition(|family| family.name.starts_with(prefix));
        list(&mut page, title, &group);
        rest = others;
    }
    list(&mut page, "Families of the agent", AGENT_FAMILIES);
    list(&mut page, "Families of the Kubernetes API", API_FAMILIES);
    list(
        &mut page,
        "Families of the container runtime",
        RUNTIME_FAMILIES,
    );
    list(&mut page, "Families of the reclaimer", RECLAIM_FAMILIES);
    generated::same(PAGE, &page);
}

/// The first cells of the tables whose first column has this title.
fn first_column(title: &str) -> BTreeSet<String> {
    let tables = DocumentPage::read(PAGE).tables();
    let tables = tables.iter().filter(|table| table[0][0] == title);
    tables
        .flat_map(|table| &table[1..])
        .map(|row| row[0].trim_matches('`').to_owned())
        .collect()
}

#[test]
fn the_page_lists_the_collectors() {
    let named = first_column("collector");
    let expected: BTreeSet<String> = COLLECTORS.map(str::to_owned).into();
    assert_eq!(named, expected, "{PAGE}: the table of collectors");
}

#[test]
fn the_page_lists_the_recording_rules() {
    let rules = &yaml::documents("deploy/rules/pinfold.rules.yaml")[0];
    let groups = rules["groups"].as_array().unwrap();
    let rules = groups
        .iter()
        .flat_map(|group| group["rules"].as_array().unwrap());
    let expected: BTreeSet<String> = rules
        .filter_map(|rule| rule["record"].as_str())
        .map(str::to_owned)
        .collect();
    assert_eq!(
        first_column("rule"),
        expected,
        "{PAGE}: the table of recording rules"
    );
}
