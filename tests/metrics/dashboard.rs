//! The dashboard: the queries of Grafana, against a real Prometheus with data of a real node.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::prometheus::{Demo, Prometheus};
use crate::rules::{known, recorded};
use crate::yaml::here;

/// Panels without data on some machines, and their requirements. The panels state the requirements, too.
const NEEDS: [(&str, &str); 11] = [
    (
        "Pressure",
        "cgroup v2 and a kernel with pressure stall information",
    ),
    ("Instructions per cycle", "hardware counters"),
    ("Cache misses per 1000 instructions", "hardware counters"),
    ("Cache misses by CPU policy", "hardware counters"),
    (
        "Memory by NUMA node",
        "the memory controller and a kernel with NUMA",
    ),
    ("Cache occupancy", "resctrl with cache monitoring"),
    (
        "Memory bandwidth",
        "resctrl with memory bandwidth monitoring",
    ),
    ("RDMA traffic", "an RDMA device"),
    (
        "Containers left out",
        "more containers than the node can count",
    ),
    (
        "Wait of the container runtime",
        "a container runtime with NRI",
    ),
    ("Connection to the API server", "a cluster"),
];

fn dashboard() -> Value {
    let text = std::fs::read_to_string(here("deploy/dashboards/pinfold.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

fn list<'a>(value: &'a Value, key: &str) -> &'a Vec<Value> {
    value[key]
        .as_array()
        .unwrap_or_else(|| panic!("no list {key} in {value:#}"))
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key]
        .as_str()
        .unwrap_or_else(|| panic!("no {key} in {value:#}"))
}

/// Panels with queries.
fn panels(dashboard: &Value) -> impl Iterator<Item = &Value> {
    list(dashboard, "panels")
        .iter()
        .filter(|panel| panel["type"] != "row")
}

/// A query with Grafana's variables filled in: all values are selected, and the step fits a scrape every second.
fn filled(expression: &str) -> String {
    let mut filled = expression.replace("$__rate_interval", "10s");
    for variable in ["$namespace", "$training_job", "$node"] {
        filled = filled.replace(variable, ".*");
    }
    assert!(
        !filled.contains('$'),
        "a variable that nobody fills: {filled}"
    );
    filled
}

/// The query `label_values(selector, label)` as an expression with a value for each label.
fn of_variable(query: &str) -> String {
    let inner = query
        .strip_prefix("label_values(")
        .and_then(|rest| rest.strip_suffix(')'));
    let (selector, label) = inner
        .and_then(|inner| inner.rsplit_once(", "))
        .unwrap_or_else(|| panic!("{query}"));
    format!("group by ({label}) ({})", filled(selector))
}

#[test]
fn it_is_one_that_grafana_takes() {
    let dashboard = dashboard();
    assert_eq!(dashboard["uid"], "pinfold", "links to it would break");
    let variables = list(&dashboard["templating"], "list");
    let names: Vec<&str> = variables
        .iter()
        .map(|variable| text(variable, "name"))
        .collect();
    assert_eq!(names, ["datasource", "namespace", "training_job", "node"]);
    let rows = list(&dashboard, "panels")
        .iter()
        .filter(|panel| panel["type"] == "row");
    assert_eq!(
        rows.count(),
        5,
        "cluster, job, parameter servers, node, agents"
    );
    let (mut ids, mut titles, mut cells) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    for panel in list(&dashboard, "panels") {
        assert!(
            ids.insert(panel["id"].as_u64().unwrap()),
            "an id is there twice: {panel:#}"
        );
        let at = |key: &str| panel["gridPos"][key].as_u64().unwrap();
        assert!(at("x") + at("w") <= 24, "{panel:#}");
        for (x, y) in (at("x")..at("x") + at("w"))
            .flat_map(|x| (at("y")..at("y") + at("h")).map(move |y| (x, y)))
        {
            assert!(
                cells.insert((x, y)),
                "{} lies on another panel",
                panel["title"]
            );
        }
    }
    let recorded = recorded();
    for panel in panels(&dashboard) {
        let title = text(panel, "title");
        assert!(titles.insert(title), "{title} is there twice");
        let description = text(panel, "description");
        assert!(
            description.ends_with('.') && description.len() > 20,
            "{title}: {description}"
        );
        assert_eq!(panel["datasource"]["uid"], "${datasource}", "{title}");
        assert!(
            panel["fieldConfig"]["defaults"]["unit"].is_string(),
            "{title}"
        );
        for target in list(panel, "targets") {
            assert_eq!(target["datasource"]["uid"], "${datasource}", "{title}");
            known(&filled(text(target, "expr")), &recorded);
        }
        match NEEDS.iter().find(|(other, _)| *other == title) {
            Some((_, what)) => {
                assert!(
                    description.starts_with(&format!("Needs {what}")),
                    "{title}: {description}"
                );
            }
            None => assert!(
                !description.starts_with("Needs "),
                "{title} is not named in the test"
            ),
        }
    }
    for (title, _) in NEEDS {
        assert!(titles.contains(title), "{title} is no panel");
    }
}

/// A panel shows a recorded series where a rule computes the same, so that panels and alerts agree.
#[test]
fn it_uses_the_recorded_series() {
    let dashboard = dashboard();
    let expressions: Vec<&str> = panels(&dashboard)
        .flat_map(|panel| list(panel, "targets"))
        .map(|target| text(target, "expr"))
        .collect();
    // The rules that no panel shows: the dashboard shows interference with its error, and by node.
    let left_out = [
        "namespace_pod_container:pinfold_interference_cpu:ratio_rate5m",
        "namespace_training_job_role_policy:pinfold_llc_misses_per_kiloinstruction:avg",
        "namespace_pod_container:pinfold_perf_coverage:ratio_rate5m",
        "namespace_pod_container:pinfold_remote_memory_bandwidth:ratio_rate5m",
    ];
    for name in recorded() {
        let used = expressions
            .iter()
            .any(|expression| expression.contains(&name));
        assert_eq!(used, !left_out.contains(&name.as_str()), "{name}");
    }
    // The training info replaces the join with pinfold_pod_info.
    assert!(
        !expressions
            .iter()
            .any(|expression| expression.contains("pinfold_pod_info")),
        "{expressions:#?}"
    );
}

/// Every panel has something to show of a demo, or needs what not every machine has.
#[test]
fn its_queries_are_answered_by_a_prometheus_that_scraped_a_demo() {
    if !crate::gate::meant_for_this_machine("root, cgroups, and prometheus of Debian's package") {
        return;
    }
    let dashboard = dashboard();
    let mut queries: Vec<(String, String)> = Vec::new();
    for panel in panels(&dashboard) {
        for target in list(panel, "targets") {
            let name = format!("{} {}", text(panel, "title"), text(target, "refId"));
            queries.push((name, filled(text(target, "expr"))));
        }
    }
    for variable in &list(&dashboard["templating"], "list")[1..] {
        queries.push((
            format!("variable {}", variable["name"]),
            of_variable(text(variable, "definition")),
        ));
    }
    let all = queries.len();
    let demo = Demo::start();
    let prometheus = Prometheus::start(demo.address);
    let may_lack = |name: &str| NEEDS.iter().any(|(title, _)| name.starts_with(title));
    let deadline = Instant::now() + Duration::from_secs(150);
    // The first answer of a query with data. The slices of the demo differ.
    while queries.iter().any(|(name, _)| !may_lack(name)) && Instant::now() < deadline {
        queries.retain(|(_, query)| !prometheus.has_data(query));
        std::thread::sleep(Duration::from_millis(500));
    }
    let picture = prometheus.picture();
    for panel in panels(&dashboard) {
        let title = text(panel, "title").replace('\'', "&#x27;");
        assert!(
            picture.contains(&format!(">{title}</text>")),
            "{title} is not drawn"
        );
    }
    assert!(
        picture.ends_with("</svg>\n") && picture.contains("<polyline "),
        "{picture}"
    );
    let mut lacks = String::new();
    queries
        .iter()
        .filter(|(name, _)| !may_lack(name))
        .for_each(|(name, query)| {
            write!(lacks, "\n{name}: {query}\n").unwrap();
        });
    let log = format!("{}{}", demo.stop(), prometheus.stop());
    assert!(!log.contains("Evaluating rule failed"), "{log}");
    assert!(lacks.is_empty(), "no data for {lacks}\n{log}");
    let left: Vec<&str> = queries.iter().map(|(name, _)| name.as_str()).collect();
    println!(
        "{} of {all} queries have data; not here: {left:?}",
        all - left.len()
    );
}
