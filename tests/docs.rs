//! The documentation: generated sections, links, command lines, YAML, named tests, the README's limits.
//!
//! `PINFOLD_UPDATE_DOCS=1 cargo test --test docs` writes the sections that are generated from the code, for a look at
//! `git diff`.
//!
//! | what holds | tests |
//! |---|---|
//! | What the pages say about commands, keys, metrics, annotations and alerts is generated from the code. | `commands`, `configuration`, `metrics`, `annotations`, `troubleshooting`, `chart`, `generated` |
//! | Links lead somewhere, and examples are valid. | `links`, `examples` |
//! | The specification names tests that exist. | `specification` |
//! | The README stays a first page. | `readme` |
//! | The wrapper that gives each process CPUs of its own does so. | `ranks` |
//! | The guide to the end-to-end suite names its cases. | `live` |

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

#[path = "support/gate.rs"]
#[allow(dead_code, reason = "other tests use more of it")]
mod gate;
#[path = "support/values.rs"]
mod values;
#[allow(dead_code, reason = "other tests use more of it")]
#[path = "support/yaml.rs"]
mod yaml;

#[path = "docs/annotations.rs"]
mod annotations;
#[path = "docs/chart.rs"]
mod chart;
#[path = "docs/commands.rs"]
mod commands;
#[path = "docs/configuration.rs"]
mod configuration;
#[path = "docs/examples.rs"]
mod examples;
#[path = "docs/generated.rs"]
mod generated;
#[path = "docs/links.rs"]
mod links;
#[path = "docs/live.rs"]
mod live;
#[path = "docs/markdown.rs"]
mod markdown;
#[path = "docs/metrics.rs"]
mod metrics;
#[path = "docs/ranks.rs"]
mod ranks;
#[path = "docs/readme.rs"]
mod readme;
#[path = "docs/shell.rs"]
mod shell;
#[path = "docs/specification.rs"]
mod specification;
#[path = "docs/troubleshooting.rs"]
mod troubleshooting;
