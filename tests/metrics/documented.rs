//! The list of families in the README.

use std::fmt::Write;
use std::path::Path;

use pinfold::metrics::{AGENT_FAMILIES, API_FAMILIES, FAMILIES, Family, Kind, RUNTIME_FAMILIES};

use crate::renewed::same;

const BEGIN: &str =
    "<!-- The families, made from the code: PINFOLD_RENEW=1 cargo test --test metrics -->\n";
const END: &str = "<!-- The end of the families. -->\n";

fn rows(text: &mut String, title: &str, families: &[&Family]) {
    write!(
        text,
        "\n{title}\n\n| family | kind | labels | |\n|---|---|---|---|\n"
    )
    .unwrap();
    for Family {
        name,
        kind,
        help,
        labels,
    } in families
    {
        let kind = match kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Info => "info",
            Kind::Histogram => "histogram",
        };
        let labels: Vec<String> = labels.iter().map(|label| format!("`{label}`")).collect();
        writeln!(
            text,
            "| `{name}` | {kind} | {} | {help} |",
            labels.join(" ")
        )
        .unwrap();
    }
}

#[test]
fn the_readme_lists_the_families() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md");
    let readme = std::fs::read_to_string(file).unwrap();
    let (before, rest) = readme
        .split_once(BEGIN)
        .expect("the README has lost the mark where the families begin");
    let (_, after) = rest
        .split_once(END)
        .expect("the README has lost the mark where the families end");
    let mut text = format!("{before}{BEGIN}");
    rows(&mut text, "Families of the node's pods:", FAMILIES);
    rows(&mut text, "Families of the agent itself:", AGENT_FAMILIES);
    rows(
        &mut text,
        "Families of the Kubernetes API, if the API is in use:",
        API_FAMILIES,
    );
    rows(
        &mut text,
        "Families of the container runtime, if NRI is in use:",
        RUNTIME_FAMILIES,
    );
    write!(text, "\n{END}{after}").unwrap();
    same("README.md", &text);
}
