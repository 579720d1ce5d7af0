//! The dashboard: the queries of Grafana, against a real Prometheus with data of a real node.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::Value;

use crate::prometheus::{Demo, Prometheus};
use crate::rules::{known, recorded, rules, series};
use crate::yaml::here;

/// Panels without data on some machines, and their requirements. The panels state the requirements, too.
const NEEDS: [(&str, &str); 10] = [
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
        "Wait of the container runtime",
        "a container runtime with NRI",
    ),
    ("Connection to the API server", "a cluster"),
];

/// Panels about faults. Without data, they say that there are none.
const FAULTS: [&str; 4] = [
    "Not pinned, by reason",
    "Which pods are not pinned",
    "Nodes that need attention",
    "Containers left out",
];

/// Panels with the threshold of an alert. The alert's expression ends in the number, or has it before an `and`.
const ALERTS: [(&str, &str); 7] = [
    ("Most uneven parameter servers", "PinfoldServerHotSpot"),
    ("Run delay per CPU", "PinfoldThreadsWait"),
    ("Throttled periods", "PinfoldThrottled"),
    ("Retransmitted TCP segments", "PinfoldRetransmits"),
    ("Limits of sending", "PinfoldReceiverLimits"),
    ("Received packets dropped, servers", "PinfoldReceiveDrops"),
    ("Interference on exclusive CPUs", "PinfoldInterference"),
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

/// Panels with queries, also those of collapsed rows.
fn panels(dashboard: &Value) -> impl Iterator<Item = &Value> {
    list(dashboard, "panels")
        .iter()
        .flat_map(|panel| {
            let of_row = panel["panels"].as_array().map(Vec::as_slice);
            std::iter::once(panel).chain(of_row.unwrap_or_default())
        })
        .filter(|panel| panel["type"] != "row")
}

/// The panels of each row.
fn rows(dashboard: &Value) -> Vec<(&str, Vec<&Value>)> {
    let mut rows: Vec<(&str, Vec<&Value>)> = Vec::new();
    for panel in list(dashboard, "panels") {
        if panel["type"] == "row" {
            rows.push((text(panel, "title"), list(panel, "panels").iter().collect()));
        } else {
            rows.last_mut().unwrap().1.push(panel);
        }
    }
    rows
}

/// A query with Grafana's variables filled in: all values are selected, and the step fits a scrape every second.
fn filled(expression: &str) -> String {
    let mut filled = expression
        .replace("$__rate_interval", "10s")
        .replace("$__range", "60s")
        .replace("$top", "20");
    for variable in ["$namespace", "$training_job", "$pod", "$node"] {
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
    assert_eq!(
        names,
        [
            "datasource",
            "namespace",
            "training_job",
            "pod",
            "node",
            "top"
        ]
    );
    assert_eq!(
        rows(&dashboard).len(),
        6,
        "cluster, job, parameter servers, node, optional measurements, agent"
    );
    let mut ids = BTreeSet::new();
    // Grafana makes room for the panels of a row when somebody opens the row.
    let rows = list(&dashboard, "panels");
    let inside = rows.iter().map(|row| &row["panels"]);
    for panels in std::iter::once(&dashboard["panels"]).chain(inside.filter(|list| list.is_array()))
    {
        places(panels.as_array().unwrap(), &mut ids);
    }
    let mut titles = BTreeSet::new();
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
        let says = &panel["fieldConfig"]["defaults"]["noValue"];
        assert!(
            says.is_string() || !FAULTS.contains(&title),
            "{title}: an empty panel looks like a failure"
        );
    }
    for title in NEEDS.map(|(title, _)| title).iter().chain(&FAULTS) {
        assert!(titles.contains(title), "{title} is no panel");
    }
}

/// Checks the ids of panels, and that none lies on another one.
fn places(panels: &[Value], ids: &mut BTreeSet<u64>) {
    let mut cells = BTreeSet::new();
    for panel in panels {
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
}

/// On a cluster with 10,000 nodes, the page reads the series of the chosen job and node, and sums of the rest.
#[test]
fn it_reads_only_what_is_chosen_and_sums_of_all_nodes() {
    let dashboard = dashboard();
    for variable in &list(&dashboard["templating"], "list")[1..] {
        let name = text(variable, "name");
        // All pods are those of the chosen jobs: without `allValue`, Grafana writes their names.
        assert_eq!(variable["includeAll"] == true, name == "pod", "{name}");
        assert_eq!(variable["allValue"], Value::Null, "{name}");
    }
    for (row, panels) in rows(&dashboard) {
        for (panel, target) in panels.iter().flat_map(|panel| {
            list(panel, "targets")
                .iter()
                .map(move |target| (panel, target))
        }) {
            let (title, expression) = (text(panel, "title"), text(target, "expr"));
            if row == "Cluster" {
                assert!(!expression.contains('$'), "{title}: {expression}");
                // Single pods and nodes are in a table of the first ones.
                let sums = series(expression).iter().all(|name| name.contains(':'));
                let few = ["topk(", "count("];
                let few = few.iter().any(|start| expression.starts_with(start));
                assert!(sums || (few && target["instant"] == true), "{title}");
                continue;
            }
            for (at, name) in names(expression) {
                let selector = expression[at + name.len()..].split('}').next().unwrap();
                let chosen = ["training_job=~\"$", "pod=~\"$", "node=~\"$"];
                assert!(
                    selector.starts_with('{') && chosen.iter().any(|it| selector.contains(it)),
                    "{title}: {name} reads all nodes"
                );
            }
            // A job and a node may have hundreds of pods.
            let by_pod = expression.contains("pod, ") || expression.contains("namespace, pod)");
            let bounded = [
                "topk($top",
                "bottomk($top",
                "cpus_assigned",
                "cpuset_info",
                "avg by",
            ];
            assert!(
                !by_pod || bounded.iter().any(|word| expression.contains(word)),
                "{title} may have a curve for each pod"
            );
        }
    }
}

/// The names of series in an expression, with their places.
fn names(expression: &str) -> Vec<(usize, &str)> {
    let is_name = |letter: char| letter.is_ascii_alphanumeric() || letter == '_' || letter == ':';
    let mut names = Vec::new();
    let mut rest = 0;
    while let Some(start) = expression[rest..].find(is_name).map(|at| at + rest) {
        let tail = &expression[start..];
        let end = tail.find(|letter| !is_name(letter)).unwrap_or(tail.len());
        let word = &tail[..end];
        if word.contains(':') || word.starts_with("pinfold_") || word.starts_with("process_") {
            names.push((start, word));
        }
        rest = start + end;
    }
    names
}

/// A line in a panel is where an alert begins.
#[test]
fn its_thresholds_are_those_of_the_alerts() {
    let (dashboard, rules) = (dashboard(), rules());
    for (title, alert) in ALERTS {
        let panel = panels(&dashboard).find(|panel| panel["title"] == title);
        let steps = &panel.unwrap()["fieldConfig"]["defaults"]["thresholds"]["steps"];
        let line = steps.as_array().unwrap().last().unwrap()["value"].as_f64();
        let rule = rules.iter().find(|rule| rule["alert"] == alert).unwrap();
        let expression = text(rule, "expr").lines().next().unwrap();
        let number = expression.rsplit("> ").next().unwrap();
        assert_eq!(line, Some(number.parse::<f64>().unwrap()), "{title}");
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
    let variables = list(&dashboard["templating"], "list").iter();
    for variable in variables.filter(|variable| variable["type"] == "query") {
        queries.push((
            format!("variable {}", variable["name"]),
            of_variable(text(variable, "definition")),
        ));
    }
    let all = queries.len();
    let demo = Demo::start();
    let prometheus = Prometheus::start(demo.address);
    let lacking = NEEDS.map(|(title, _)| title);
    let may_lack = |name: &str| lacking.iter().chain(&FAULTS).any(|it| name.starts_with(it));
    let deadline = Instant::now() + Duration::from_secs(150);
    // The first answer of a query with data. The slices of the demo differ.
    while queries.iter().any(|(name, _)| !may_lack(name)) && Instant::now() < deadline {
        queries.retain(|(_, query)| !prometheus.has_data(query));
        std::thread::sleep(Duration::from_millis(500));
    }
    let (picture, page) = (prometheus.picture(&["--all"]), prometheus.picture(&[]));
    for panel in panels(&dashboard) {
        let title = text(panel, "title").replace('\'', "&#x27;");
        let drawn = format!(">{title}</text>");
        assert!(picture.contains(&drawn), "{title} is not drawn");
        let opened = list(&dashboard, "panels").contains(panel);
        assert_eq!(page.contains(&drawn), opened, "{title}");
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

/// The series of a cluster with so many nodes, as of now and of two earlier minutes. The node `n-0000`, … has the pod `p-0000`,
/// …: the first 1,000 are of the job `big`, the others of jobs with 10 pods. Every tenth pod is not pinned.
fn series_of_a_cluster(nodes: u64) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let mut families: BTreeMap<&str, String> = BTreeMap::new();
    let mut add = |family: &'static str, labels: &str, value: u64, at: u64| {
        let lines = families.entry(family).or_default();
        writeln!(lines, "{family}{{{labels}}} {value} {at}").unwrap();
    };
    for before in [240, 120, 0] {
        let at = now.as_secs() - before;
        for node in 0..nodes {
            let labels = format!("node=\"n-{node:04}\",instance=\"n-{node:04}:9470\"");
            for (state, cpus) in [("exclusive", 32), ("shared", 32), ("lost", 0)] {
                let labels = format!("{labels},state=\"{state}\"");
                add("pinfold_node_cpus", &labels, cpus, at);
            }
            let enforcement = "enforcement=\"partition\",reason=\"partitions_supported\"";
            let enforced = format!("{labels},{enforcement}");
            add("pinfold_enforcement_info", &enforced, 1, at);
            add("pinfold_api_connected", &labels, 1, at);
            let success = format!("{labels},collector=\"state\"");
            add("pinfold_collector_success", &success, 1, at);
            let pod = format!("{labels},namespace=\"train\",pod=\"p-{node:04}\"");
            let container = format!("{pod},container=\"main\"");
            let job = if node < 1000 {
                "big".to_owned()
            } else {
                format!("job-{:04}", node / 10)
            };
            let info = format!("{pod},training_job=\"{job}\",role=\"worker\"");
            add("pinfold_pod_info", &info, 1, at);
            let cpus = if node % 10 == 0 { 0 } else { 32 };
            add("pinfold_pod_owned_cpus", &pod, cpus, at);
            add("pinfold_container_cpus_assigned", &container, cpus, at);
            add("pinfold_container_cpus_allowed", &container, 32, at);
            add("pinfold_container_threads", &container, 33, at);
            if cpus == 0 {
                let reason = format!("{pod},reason=\"too_few_cpus\"");
                add("pinfold_pod_not_pinned", &reason, 1, at);
            }
            let seconds = (240 - before) * 20 + node;
            let usage = "pinfold_container_cpu_usage_seconds_total";
            add(usage, &container, seconds, at);
            let bytes = "pinfold_pod_network_transmit_bytes_total";
            add(bytes, &pod, seconds * 1_000_000, at);
        }
    }
    let text = families
        .iter()
        .fold(String::new(), |mut text, (name, lines)| {
            let (name, kind) = match name.strip_suffix("_total") {
                Some(name) => (name, "counter"),
                None => (*name, "gauge"),
            };
            write!(text, "# TYPE {name} {kind}\n{lines}").unwrap();
            text
        });
    text + "# EOF\n"
}

/// With 10,000 nodes, the page as it opens gets a few series for each panel.
#[test]
fn it_opens_on_a_cluster_with_10000_nodes() {
    if !crate::gate::meant_for_this_machine("prometheus of Debian's package") {
        return;
    }
    let prometheus = Prometheus::recording(&series_of_a_cluster(10_000));
    let deadline = Instant::now() + Duration::from_secs(120);
    let recorded = [
        "namespace_reason:pinfold_pods_not_pinned:count",
        "namespace_pod:pinfold_transmit_bytes:rate5m",
        "namespace_pod_container:pinfold_cpu_per_allowed:ratio_rate5m",
    ];
    while !recorded.iter().all(|name| prometheus.has_data(name)) {
        assert!(Instant::now() < deadline, "no recorded series");
        std::thread::sleep(Duration::from_millis(500));
    }
    let pods: Vec<String> = (0..1000).map(|pod| format!("p-{pod:04}")).collect();
    let pods = format!("({})", pods.join("|"));
    let values = [
        ("$__rate_interval", "5m"),
        ("$__range", "60s"),
        ("$namespace", "train"),
        ("$training_job", "big"),
        ("$pod", &pods),
        ("$node", "n-0000"),
        ("$top", "20"),
    ];
    let (mut most, mut slowest) = ((0, ""), (Duration::ZERO, ""));
    let mut found = BTreeMap::new();
    let dashboard = dashboard();
    for panel in panels(&dashboard) {
        let title = text(panel, "title");
        for target in list(panel, "targets") {
            let expression = values
                .iter()
                .fold(text(target, "expr").to_owned(), |filled, (name, value)| {
                    filled.replace(name, value)
                });
            let start = Instant::now();
            let answer = prometheus.answer(&expression, target["instant"] != true);
            slowest = slowest.max((start.elapsed(), title));
            most = most.max((answer.len(), title));
            found.insert(title, answer.len());
        }
    }
    println!("the most series: {most:?}; the slowest: {slowest:?}");
    assert!(most.0 <= 50, "{most:?}");
    for (title, series) in [
        ("Pods not pinned", 1),
        ("Not pinned, by reason", 1),
        ("Which pods are not pinned", 20),
        ("CPUs of all nodes", 3),
        ("Sent by replica", 20),
        ("CPU use of allowed CPUs", 20),
        ("CPUs by state", 3),
    ] {
        assert_eq!(found[title], series, "{title}");
    }
}
