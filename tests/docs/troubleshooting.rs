//! The page of Events, `doctor` lines and alerts.

use std::collections::BTreeSet;

use crate::markdown::Page;
use crate::yaml;

const PAGE: &str = "docs/troubleshooting.md";

#[test]
fn every_alert_has_a_section() {
    let rules = &yaml::documents("deploy/rules/pinfold.rules.yaml")[0];
    let groups = rules["groups"].as_array().unwrap();
    let alerts: BTreeSet<String> = groups
        .iter()
        .flat_map(|group| group["rules"].as_array().unwrap())
        .filter_map(|rule| rule["alert"].as_str())
        .map(str::to_owned)
        .collect();
    let page = Page::read(PAGE);
    let named: BTreeSet<String> = page
        .headings()
        .into_iter()
        .filter(|heading| heading.starts_with("Pinfold"))
        .map(str::to_owned)
        .collect();
    assert_eq!(named, alerts, "{PAGE}: the sections of alerts");
}
