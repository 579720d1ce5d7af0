//! `pinfold status`: the state of agents, a line each.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use hyper::body::Bytes;
use serde_json::{Value, json};

use super::OutputFormat;
use super::agents::{ClusterAccess, statuses};
use super::local_agent::local_agent;
use super::run::runtime;
use crate::agent::config::Overrides;
use crate::client::targets::{self, Target};
use crate::client::{AgentStatus, full_status};

/// Show the state of agents: enforcement, CPUs, pinned containers, problems.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  pinfold status                    the agent of this node
  pinfold status --cluster          every agent of the cluster
  pinfold status --cluster -o json  the complete status of each agent

Exit codes: 0 every agent responds, 1 an agent does not respond.")]
pub(super) struct StatusArgs {
    /// An agent: URL, HOST:PORT or HOST, with an optional NAME= before the address; may be repeated [default: the agent of this node]
    #[arg(long, value_name = "[NAME=]URL")]
    node: Vec<String>,
    /// File with a bearer token for --node, because agents send the full status only to authorized callers
    #[arg(long, value_name = "FILE", requires = "node")]
    token_file: Option<PathBuf>,
    #[command(flatten)]
    access: ClusterAccess,
    /// Output format.
    #[arg(short, long, value_enum, value_name = "FORM", default_value_t)]
    output: OutputFormat,
}

// === impl StatusArgs ===

impl StatusArgs {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let runtime = runtime()?;
        let done = runtime.block_on(self.print());
        // The process does not wait for agents that don't respond.
        runtime.shutdown_background();
        done
    }

    async fn print(&self) -> anyhow::Result<ExitCode> {
        let targets = if self.access.args.is_wanted(!self.node.is_empty())? {
            self.access.connect().await?.targets().await?
        } else {
            self.named()?
        };
        let bodies = statuses(&targets).await?;
        let respond = bodies.iter().all(Result::is_ok);
        match self.output {
            OutputFormat::Text => {
                let mut lines = lines(&targets, &bodies);
                let mut errors = bodies.iter().filter_map(|body| body.as_ref().err());
                if errors.any(full_status::is_absent) {
                    lines.push(self.remedy().to_owned());
                }
                super::emit(lines)?;
            }
            form => form.print(&documents(&targets, &bodies)?)?,
        }
        Ok(ExitCode::from(u8::from(!respond)))
    }

    /// What to do about an agent that does not respond.
    fn remedy(&self) -> &'static str {
        if !self.node.is_empty() {
            "check the address, and that the agent (pinfold run) runs there"
        } else if self.access.args.is_wanted(false).unwrap_or_default() {
            "read the log of the agent's pod on this node"
        } else {
            "start the agent (pinfold run), name another with --node, or ask those of the cluster with --cluster"
        }
    }

    fn named(&self) -> anyhow::Result<Vec<Target>> {
        if !self.node.is_empty() {
            let token = self.token_file.as_deref().map(targets::read_token);
            let token = token.transpose()?;
            let with_token = |target: Target| target.with_authorization(token.clone());
            let named = targets::all(&self.node, None)?;
            return Ok(named.into_iter().map(with_token).collect());
        }
        let endpoint = local_agent(None, Overrides::default())?;
        Ok(vec![Target {
            name: endpoint.name(),
            named_by_user: false,
            endpoint,
        }])
    }
}

/// The agents' documents by node. If an agent doesn't respond, it has an error instead.
fn documents(
    targets: &[Target],
    bodies: &[anyhow::Result<Bytes>],
) -> anyhow::Result<serde_json::Map<String, Value>> {
    let documents = targets.iter().zip(bodies).map(|(target, body)| {
        let document: Value = match body {
            Ok(body) => serde_json::from_slice(body)?,
            Err(error) => json!({"error": format!("{error:#}")}),
        };
        Ok::<_, anyhow::Error>((target.name.clone(), document))
    });
    documents.collect()
}

/// A table of the agents, and a line for each problem.
fn lines(targets: &[Target], bodies: &[anyhow::Result<Bytes>]) -> Vec<String> {
    let headings = [
        "NODE",
        "ENFORCEMENT",
        "EXCLUSIVE",
        "SHARED",
        "PINNED",
        "PROBLEMS",
    ];
    let mut table = super::table(&headings);
    // The sets of CPUs, and then the enforcement, because neither says what needs attention.
    table.leave_out(&[3, 2, 1]);
    let mut problems = Vec::new();
    for (target, body) in targets.iter().zip(bodies) {
        let status = match body {
            Ok(body) => AgentStatus::parse(body),
            Err(error) => Err(anyhow::anyhow!(full_status::reason(error))),
        };
        match status {
            Ok(status) => {
                let pinned = status.containers.iter();
                let pinned = pinned
                    // A container that is being created, or has ended, has an assignment and no
                    // CPUs yet or any more.
                    .filter(|container| {
                        container.assigned.is_some() && container.effective.is_some()
                    })
                    .count();
                table.add_row([
                    target.name.clone(),
                    status.enforcement.to_string(),
                    status.exclusive.to_string(),
                    status.shared.to_string(),
                    pinned.to_string(),
                    status.problem_count().to_string(),
                ]);
                let sentences = status.problems();
                let sentences = sentences
                    .chain(status.capacity_warning())
                    .chain(status.variables_warning());
                problems.extend(sentences.map(|problem| format!("{}: {problem}", target.name)));
            }
            Err(error) => {
                table.add_row([target.name.as_str(), "-", "-", "-", "-", "1"]);
                problems.push(format!("{}: {error:#}", target.name));
            }
        }
    }
    let mut lines = table.lines();
    if !problems.is_empty() {
        lines.push(String::new());
        lines.append(&mut problems);
    }
    lines
}
