//! The complete exposition of a node of plain files, in both formats.

use std::fmt::Write;

use pinfold::metrics::Format;

use crate::node;
use crate::renewed::same;

/// Families whose values differ between builds, runs or machines.
const VARIES: [&str; 10] = [
    "pinfold_build",
    "pinfold_collector_",
    "pinfold_container_cpu_cycles",
    "pinfold_container_interference_",
    "pinfold_container_instructions",
    "pinfold_container_l2_",
    "pinfold_container_llc_",
    "pinfold_container_memory_bandwidth_",
    "pinfold_container_perf_",
    "process_",
];

/// Leaves out values that depend on the build, the clock or the machine.
fn without_what_varies(text: &str) -> String {
    let varies = |name: &str| VARIES.iter().any(|start| name.starts_with(start));
    let mut kept = String::new();
    for line in text.lines() {
        let name = line
            .strip_prefix("# HELP ")
            .or_else(|| line.strip_prefix("# TYPE "))
            .unwrap_or(line);
        if !varies(name) {
            writeln!(kept, "{line}").unwrap();
        }
    }
    kept
}

#[test]
fn the_exposition_is_as_recorded() {
    let page = node::page();
    same(
        "tests/metrics/golden.txt",
        &without_what_varies(&page.text(Format::Text)),
    );
    same(
        "tests/metrics/golden.openmetrics",
        &without_what_varies(&page.text(Format::OpenMetrics)),
    );
}
