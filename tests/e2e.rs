//! Pinfold on a live cluster: rollout, pinning, containers, resizes, scenes, policies, outages and removal.
//!
//! The program needs a cluster: `PINFOLD_E2E_KUBECONFIG=FILE PINFOLD_E2E_NODES=NAME,NAME cargo test
//! --test e2e`. Without a kubeconfig, it names each case as skipped. The output is a table in
//! Markdown.

#[path = "e2e/agent.rs"]
mod agent;
#[path = "e2e/cases/mod.rs"]
mod cases;
#[path = "e2e/cluster.rs"]
mod cluster;
#[path = "e2e/report.rs"]
mod report;
#[path = "support/repository.rs"]
mod repository;
#[path = "e2e/scene.rs"]
mod scene;
#[path = "e2e/settings.rs"]
mod settings;
#[path = "e2e/site.rs"]
mod site;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, bail};

use cases::{CASES, Case};
use cluster::Cluster;
use report::{Report, Row, Verdict};
use settings::{KUBECONFIG, Settings};
use site::Site;

/// The longest duration of a case, in waits.
const WAITS: u32 = 8;

fn main() -> ExitCode {
    match run() {
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("e2e: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// Runs the cases that the arguments name, and returns the number of failures.
fn run() -> Result<usize> {
    let words = std::env::args().skip(1);
    let words: Vec<String> = words.filter(|word| !word.starts_with('-')).collect();
    let wanted = |case: &&Case| {
        let named =
            |word: &String| case.name.contains(word.as_str()) || "e2e".contains(word.as_str());
        words.is_empty() || words.iter().any(named)
    };
    let cases: Vec<&Case> = CASES.iter().filter(wanted).collect();
    if cases.is_empty() {
        return Ok(0);
    }
    let Some(settings) = Settings::read(|name| std::env::var(name).ok())? else {
        for case in cases {
            println!("{}: skipped: {KUBECONFIG} is not set", case.name);
        }
        return Ok(0);
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let cluster = Cluster::connect(settings).await?;
        let report = run_all(&cluster, &cases).await;
        println!("{}", report.table());
        Ok(report.failures())
    })
}

async fn run_all(cluster: &Cluster, cases: &[&Case]) -> Report {
    let mut report = Report::default();
    let mut installed = true;
    for case in cases {
        let nodes = if case.each_node {
            cluster.nodes.len()
        } else {
            1
        };
        for (index, node) in cluster.nodes.iter().take(nodes).enumerate() {
            let site = Site::new(cluster, node, case.name, index);
            let start = Instant::now();
            let result = if installed {
                run_case(case, &site).await
            } else {
                Ok(Verdict::Skipped("the installation has failed".to_owned()))
            };
            installed &= result.is_ok() || case.name != "install";
            let row = Row {
                case: case.name,
                node: case.each_node.then(|| node.clone()),
                result: result.map_err(|error| format!("{error:#}")),
                took: start.elapsed(),
            };
            let seconds = row.took.as_secs_f64();
            eprintln!(
                "{} {node}: {} after {seconds:.1} s: {}",
                row.case,
                row.word(),
                row.note()
            );
            report.push(row);
        }
    }
    report
}

/// Runs a case in a namespace of its own, and removes everything that it has made.
async fn run_case(case: &Case, site: &Site<'_>) -> Result<Verdict> {
    let opened = site.open().await;
    let limit: Duration = site.cluster.settings.deadline * WAITS + site.cluster.settings.rest * 2;
    let outcome = match opened {
        Ok(()) => match tokio::time::timeout(limit, (case.run)(site)).await {
            Ok(outcome) => outcome,
            Err(_) => Err(anyhow!(
                "the case has not ended within {} s",
                limit.as_secs()
            )),
        },
        Err(error) => Err(error.context("the case's namespace can't be made")),
    };
    if outcome.is_err() {
        match site.describe().await {
            Ok(text) => eprintln!("{text}"),
            Err(error) => eprintln!("the objects of the case can't be read: {error:#}"),
        }
    }
    match (outcome, site.close().await) {
        (Ok(_), Err(error)) => {
            bail!("the case has passed, and its objects can't be removed: {error:#}")
        }
        (Err(failure), Err(error)) => {
            bail!("{failure:#}; and the objects of the case can't be removed: {error:#}")
        }
        (outcome, Ok(())) => outcome,
    }
}
