//! The names of families, the exposition, the rules and the dashboard.
//!
//! `PINFOLD_RENEW=1 cargo test --test metrics` writes the files that are made from the code, for a look at `git diff`.
//!
//! | what holds | tests |
//! |---|---|
//! | Families are named by Prometheus' conventions, and the exposition of a known node is as recorded. | `names`, `golden` |
//! | Rules, alerts and the dashboard use families that exist, and answer in a real Prometheus. | `rules`, `dashboard`, `prometheus` |
//! | A report of a known experiment finds what is known. | `report` |
//! | Ports of RDMA devices are counted once, for the node or the pod. | `rdma` |
//! | Files that are generated from the code are up to date. | `renewed` |

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

#[path = "support/gate.rs"]
mod gate;
#[allow(dead_code, reason = "other tests use more of it")]
#[path = "support/http.rs"]
mod http;
#[path = "support/yaml.rs"]
mod yaml;

#[path = "metrics/dashboard.rs"]
mod dashboard;
#[path = "metrics/golden.rs"]
mod golden;
#[path = "metrics/names.rs"]
mod names;
#[path = "metrics/node.rs"]
mod node;
#[path = "metrics/prometheus.rs"]
mod prometheus;
#[path = "metrics/rdma.rs"]
mod rdma;
#[path = "metrics/renewed.rs"]
mod renewed;
#[path = "metrics/report.rs"]
mod report;
#[path = "metrics/rules.rs"]
mod rules;
