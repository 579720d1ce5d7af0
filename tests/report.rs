//! `pinfold scene report FOLDER`: what an experiment found, as Markdown, JSON and a page.
//!
//! | what holds | tests |
//! |---|---|
//! | Known effects are named, and losses aren't averaged. | `answers` |
//! | Findings have their numbers, and how often they were seen. | `findings` |
//! | A folder that is damaged is an error that names the file. | `folder` |
//! | The page works in a browser: widths, contrast, keyboard, no errors, the numbers of the JSON. | `page` |

// A failure of a helper fails the test.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

#[path = "report/browser.rs"]
mod browser;
#[path = "support/gate.rs"]
mod gate;
#[path = "report/made.rs"]
mod made;
#[path = "support/ran.rs"]
mod ran;

#[path = "report/answers.rs"]
mod answers;
#[path = "report/findings.rs"]
mod findings;
#[path = "report/folder.rs"]
mod folder;
#[path = "report/page.rs"]
mod page;

use std::path::Path;
use std::process::Command;

use pinfold::experiment::results::{Experiment, Outcome, Results, RunRecord, analyze};

/// Runs `pinfold scene report`: exit code, standard output, standard error.
fn report(folder: &Path, arguments: &[&str]) -> (i32, String, String) {
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("pinfold"));
    command
        .env_remove("PINFOLD_PROMETHEUS")
        .args(["scene", "report"]);
    ran::run(command.arg(folder).args(arguments))
}

/// What runs say, through the texts of their files.
fn outcome(experiment: &Experiment, runs: &[RunRecord]) -> Outcome {
    let texts = runs.iter().map(|run| {
        let name = format!("{:04}.json", run.planned.number);
        (name, serde_json::to_string(run).unwrap())
    });
    let experiment = serde_json::to_string(experiment).unwrap();
    analyze(&Results::read(&experiment, texts).unwrap()).unwrap()
}
