//! The names of families follow Prometheus' conventions.

use std::collections::BTreeSet;

use pinfold::metrics::{
    AGENT_FAMILIES, API_FAMILIES, FAMILIES, Family, FamilyKind, Format, RECLAIM_FAMILIES,
    RUNTIME_FAMILIES,
};

/// Every table.
pub(crate) const TABLES: [&[&Family]; 5] = [
    FAMILIES,
    AGENT_FAMILIES,
    API_FAMILIES,
    RUNTIME_FAMILIES,
    RECLAIM_FAMILIES,
];

/// Names that all Prometheus clients use.
const CONVENTIONAL: [&str; 5] = [
    "process_cpu_seconds_total",
    "process_max_fds",
    "process_open_fds",
    "process_resident_memory_bytes",
    "process_start_time_seconds",
];

/// Base units, each a whole word of a name.
const UNITS: [&str; 7] = [
    "seconds", "bytes", "ratio", "celsius", "volts", "joules", "hertz",
];

/// Units other than base units, and words for the kinds, which the exposition states anyway.
const WRONG: [&str; 30] = [
    "milliseconds",
    "microseconds",
    "nanoseconds",
    "ms",
    "us",
    "ns",
    "usec",
    "msec",
    "nsec",
    "minutes",
    "hours",
    "days",
    "ticks",
    "jiffies",
    "bits",
    "kilobytes",
    "megabytes",
    "gigabytes",
    "kb",
    "kib",
    "mb",
    "mib",
    "gb",
    "gib",
    "percent",
    "percentage",
    "gauge",
    "counter",
    "histogram",
    "metric",
];

/// Endings that the formats add to a family's name.
const TAKEN: [&str; 4] = ["_bucket", "_count", "_sum", "_created"];

/// Names of labels with a fixed meaning in Prometheus.
const RESERVED: [&str; 4] = ["job", "instance", "le", "quantile"];

fn is_snake_case(name: &str) -> bool {
    name.starts_with(|letter: char| letter.is_ascii_lowercase())
        && name
            .chars()
            .all(|letter| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '_')
        && !name.contains("__")
        && !name.ends_with('_')
}

/// The faults of a family.
fn faults(family: &Family) -> Vec<String> {
    let Family {
        name,
        kind,
        help,
        labels,
    } = *family;
    let mut faults = Vec::new();
    let mut must = |holds: bool, fault: String| {
        if !holds {
            faults.push(format!("{name}: {fault}"));
        }
    };
    must(
        name.starts_with("pinfold_") || CONVENTIONAL.contains(&name),
        "wants the prefix pinfold_".to_owned(),
    );
    must(is_snake_case(name), "is not snake case".to_owned());
    must(
        name.ends_with("_total") == (kind == FamilyKind::Counter),
        format!("_total is for counters; it is a {kind:?}"),
    );
    must(
        name.ends_with("_info") == (kind == FamilyKind::Info),
        format!("_info is for Info; it is a {kind:?}"),
    );
    must(
        !TAKEN.iter().any(|end| name.ends_with(end)),
        "its ending is one that formats add".to_owned(),
    );
    let stem = name
        .strip_suffix("_total")
        .or_else(|| name.strip_suffix("_info"))
        .unwrap_or(name);
    let words: Vec<&str> = stem.split('_').collect();
    let wrong = words.iter().find(|word| WRONG.contains(word));
    must(
        wrong.is_none(),
        format!("{wrong:?} is no base unit, or says the kind"),
    );
    let (last, before) = words.split_last().unwrap();
    // A unit at the end describes the value. A unit in the middle would describe a part of the name.
    must(
        !before.iter().any(|word| UNITS.contains(word)),
        "its unit is not at the end".to_owned(),
    );
    must(
        kind != FamilyKind::Histogram || UNITS.contains(last),
        "a histogram is of some unit".to_owned(),
    );
    let subject: &[&str] = match name.split('_').nth(1) {
        // A histogram over all containers would have too many series per container.
        Some("container") if kind == FamilyKind::Histogram => &[],
        Some("container") => &["namespace", "pod", "container"],
        Some("pod") => &["namespace", "pod"],
        _ => &[],
    };
    must(
        labels.starts_with(subject),
        format!("its labels begin with {subject:?}, by which others are joined"),
    );
    must(
        labels.iter().all(|label| is_snake_case(label)),
        format!("labels {labels:?} are not snake case"),
    );
    must(
        !labels.iter().any(|label| RESERVED.contains(label)),
        format!("a label of {labels:?} is Prometheus' own"),
    );
    must(
        labels.iter().collect::<BTreeSet<_>>().len() == labels.len(),
        "a label is there twice".to_owned(),
    );
    must(
        help.ends_with('.') && !help.ends_with(".."),
        "its help is no sentence with a full stop".to_owned(),
    );
    must(
        help.starts_with(char::is_uppercase) && !help.contains('\n'),
        "its help is no one line".to_owned(),
    );
    let said: Vec<String> = help
        .trim_end_matches('.')
        .to_lowercase()
        .split(' ')
        .map(str::to_owned)
        .collect();
    let own = said.iter().all(|word| words.contains(&word.as_str()));
    must(
        !own && said.len() > 2,
        "its help says no more than its name".to_owned(),
    );
    faults
}

#[test]
fn names_keep_the_conventions() {
    let faults: Vec<String> = TABLES
        .iter()
        .flat_map(|table| table.iter())
        .flat_map(|one| faults(one))
        .collect();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    let mut all = BTreeSet::new();
    for table in TABLES {
        let names: Vec<&str> = table.iter().map(|family| family.name).collect();
        assert!(names.is_sorted(), "not by name: {names:?}");
        for name in names {
            // OpenMetrics removes the suffix of the kind. The remaining names must be unique, too.
            let open = name
                .strip_suffix("_total")
                .or_else(|| name.strip_suffix("_info"))
                .unwrap_or(name);
            assert!(all.insert(open), "{name} is there twice");
        }
    }
}

#[test]
fn a_wrong_name_is_seen() {
    let right = Family {
        name: "pinfold_pod_waits_seconds_total",
        kind: FamilyKind::Counter,
        help: "Time that a pod has waited.",
        labels: &["namespace", "pod", "kind"],
    };
    assert_eq!(faults(&right), Vec::<String>::new());
    for (wrong, says) in [
        (
            Family {
                name: "pod_waits_seconds_total",
                ..right
            },
            "prefix",
        ),
        (
            Family {
                name: "pinfold_pod_Waits_seconds_total",
                ..right
            },
            "snake",
        ),
        (
            Family {
                name: "pinfold_pod__waits_seconds_total",
                ..right
            },
            "snake",
        ),
        (
            Family {
                name: "pinfold_pod_waits_seconds",
                ..right
            },
            "_total",
        ),
        (
            Family {
                kind: FamilyKind::Gauge,
                ..right
            },
            "_total",
        ),
        (
            Family {
                name: "pinfold_pod_info",
                ..right
            },
            "_info",
        ),
        (
            Family {
                name: "pinfold_pod_waits_total",
                kind: FamilyKind::Info,
                ..right
            },
            "_info",
        ),
        (
            Family {
                name: "pinfold_pod_waits_milliseconds_total",
                ..right
            },
            "base unit",
        ),
        (
            Family {
                name: "pinfold_pod_seconds_waits_total",
                ..right
            },
            "at the end",
        ),
        (
            Family {
                name: "pinfold_pod_waits",
                kind: FamilyKind::Histogram,
                ..right
            },
            "some unit",
        ),
        (
            Family {
                name: "pinfold_pod_waits_count",
                kind: FamilyKind::Gauge,
                ..right
            },
            "formats add",
        ),
        (
            Family {
                labels: &["pod", "namespace"],
                ..right
            },
            "begin with",
        ),
        (
            Family {
                labels: &["namespace", "pod", "job"],
                ..right
            },
            "own",
        ),
        (
            Family {
                labels: &["namespace", "pod", "pod"],
                ..right
            },
            "twice",
        ),
        (
            Family {
                help: "Time that a pod has waited",
                ..right
            },
            "full stop",
        ),
        (
            Family {
                help: "Pod waits seconds.",
                ..right
            },
            "no more",
        ),
    ] {
        let found = faults(&wrong).join("\n");
        assert!(
            found.contains(says),
            "{}: {found:?} should say {says:?}",
            wrong.name
        );
    }
}

/// The served families are the families of the tables, including the agent's registry, the API and the runtime.
#[test]
fn every_served_family_is_in_the_tables() {
    let text = crate::node::page().text(Format::Text);
    let served: BTreeSet<(&str, &str)> = text
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '))
        .collect();
    // The families of the pods depend on the machine. The reclaimer, a separate program, serves its own families.
    for table in [AGENT_FAMILIES, API_FAMILIES, RUNTIME_FAMILIES] {
        for family in table {
            let kind = match family.kind {
                FamilyKind::Counter => "counter",
                FamilyKind::Gauge | FamilyKind::Info => "gauge",
                FamilyKind::Histogram => "histogram",
            };
            assert!(
                served.contains(&(family.name, kind)),
                "{} is not served as a {kind}",
                family.name
            );
            assert!(
                text.contains(&format!("# HELP {} {}\n", family.name, family.help)),
                "{}",
                family.name
            );
        }
    }
    let all: BTreeSet<&str> = TABLES
        .iter()
        .flat_map(|table| table.iter())
        .map(|family| family.name)
        .collect();
    for (name, _) in served {
        assert!(all.contains(name), "{name} is in no table");
    }
}
