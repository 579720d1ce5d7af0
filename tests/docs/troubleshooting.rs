//! The page of Events, `doctor` lines and alerts.

use std::collections::BTreeSet;

use crate::markdown::DocumentPage;
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
    let page = DocumentPage::read(PAGE);
    let named: BTreeSet<String> = page
        .headings()
        .into_iter()
        .filter(|heading| heading.starts_with("Pinfold"))
        .map(str::to_owned)
        .collect();
    assert_eq!(named, alerts, "{PAGE}: the sections of alerts");
}

/// The address before the anchor is a placeholder, which the chart's value `prometheusRule.runbookUrl` replaces.
#[test]
fn the_runbook_of_every_alert_is_its_section() {
    let anchors = DocumentPage::read(PAGE).anchors();
    let rules = &yaml::documents("deploy/rules/pinfold.rules.yaml")[0];
    let groups = rules["groups"].as_array().unwrap();
    for rule in groups
        .iter()
        .flat_map(|group| group["rules"].as_array().unwrap())
    {
        let Some(alert) = rule["alert"].as_str() else {
            continue;
        };
        let address = rule["annotations"]["runbook_url"].as_str();
        let (page, anchor) = address
            .and_then(|address| address.split_once('#'))
            .unwrap_or_else(|| panic!("{alert} has no runbook_url with an anchor"));
        assert_eq!(page, format!("https://pinfold.example/{PAGE}"), "{alert}");
        assert_eq!(anchor, alert.to_lowercase(), "{alert}");
        assert!(anchors.iter().any(|one| one == anchor), "{PAGE}#{anchor}");
    }
}
