//! `pinfold top`: the pods of nodes, on a terminal or as text.

mod document;
mod frame;
mod live;
mod map;
mod once;
mod order;
mod screen;
mod signals;
mod state;
mod table;
mod view;
mod words;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;

use super::OutputFormat;
#[cfg(feature = "portforward")]
use super::agents::ClusterAccess;
use super::interval::interval;
use super::local_agent::local_agent;
use super::run::runtime;
use crate::agent::config::Overrides;
use crate::client::MonitoredNode;
use crate::client::targets::{self, Target};
use crate::text::values::whole;
use order::Column;
use state::TopState;
use view::View;

/// The time between two requests to an agent with an address.
const DEFAULT_INTERVAL: Duration = Duration::from_secs(2);

/// The time between two requests to an agent behind a port-forward, longer because each request
/// opens one.
#[cfg(feature = "portforward")]
const CLUSTER_INTERVAL: Duration = Duration::from_secs(10);

/// The columns of a printed frame without a terminal.
const DEFAULT_WIDTH: u16 = 100;

/// The examples in the help.
const EXAMPLES: &str = if cfg!(feature = "portforward") {
    "Examples:
  pinfold top                                         watch this node
  pinfold top --cluster                               watch every agent of the cluster
  kubectl pinfold top                                 the same, if the program is kubectl-pinfold
  pinfold top --node node-1 --node ps=10.0.0.2        watch two nodes, and call the second one ps
  pinfold top --nodes nodes.txt --sort interference   watch the nodes in a file, one on each line
  pinfold top --once --width 120 > frame.txt          print a frame as text
  pinfold top --once -o json                          print nodes and pods for programs"
} else {
    "Examples:
  pinfold top                                         watch this node
  pinfold top --node node-1 --node ps=10.0.0.2        watch two nodes, and call the second one ps
  pinfold top --nodes nodes.txt --sort interference   watch the nodes in a file, one on each line
  pinfold top --once --width 120 > frame.txt          print a frame as text
  pinfold top --once -o json                          print nodes and pods for programs"
};

/// Watch nodes: pods, owners of CPUs, threads, interference, unpinned time, traffic.
///
/// The values come from /status and /metrics of each agent. If a node does not respond, the frame shows why, and the other
/// nodes don't wait for it. A dash stands for an unknown value. The key ? shows all keys.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct TopArgs {
    /// An agent: URL, HOST:PORT or HOST, with an optional NAME= before the address; may be repeated [default: the agent of this node]
    #[arg(long, value_name = "[NAME=]URL")]
    node: Vec<String>,
    /// File with an agent on each line, written as for --node.
    #[arg(long, value_name = "FILE")]
    nodes: Option<PathBuf>,
    /// File with a bearer token for --node and --nodes, because agents send the full status only to authorized callers
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    #[cfg(feature = "portforward")]
    #[command(flatten)]
    access: ClusterAccess,
    /// Time between two requests to an agent, 1s to 24h [default: 2s, or 10s with --cluster]
    #[arg(long, value_name = "DURATION", value_parser = interval)]
    interval: Option<Duration>,
    /// Print a frame and exit; rates are means over the interval.
    #[arg(long)]
    once: bool,
    /// Output format of --once; null in JSON and YAML stands for an unknown value
    #[arg(
        short,
        long,
        value_enum,
        value_name = "FORM",
        default_value_t,
        requires = "once"
    )]
    output: OutputFormat,
    /// Columns of the printed frame [default: the terminal's columns, or 100]
    #[arg(long, value_name = "COLUMNS", requires = "once", value_parser = whole::<u16>(20..=1000))]
    width: Option<u16>,
    /// The column to sort by: names ascending, numbers descending.
    #[arg(long, value_enum, value_name = "COLUMN", default_value = "pod")]
    sort: Column,
    /// Reverse the order.
    #[arg(long)]
    reverse: bool,
    /// Words that a pod's name, node, role, job, QoS class or state (exclusive, shared, drift, running) must contain; !WORD excludes pods.
    #[arg(long, value_name = "WORDS", default_value = "")]
    filter: String,
    /// Show only pods with exclusive CPUs.
    #[arg(long, alias = "own")]
    exclusive: bool,
    /// Show each container of a pod on a line of its own.
    #[arg(long)]
    containers: bool,
}

// === impl TopArgs ===

impl TopArgs {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let named = self.named_targets()?;
        if !self.once {
            anyhow::ensure!(
                screen::is_terminal(),
                "pinfold top needs a terminal: print a frame with pinfold top --once"
            );
            signals::block()?;
        }
        let runtime = runtime()?;
        let done = runtime.block_on(self.watch(named));
        // The process waits neither for nodes that don't respond nor for a name resolution that
        // takes long.
        runtime.shutdown_background();
        done
    }

    async fn watch(self, named: Vec<Target>) -> anyhow::Result<ExitCode> {
        let (targets, default_interval) = self.targets(named).await?;
        let interval = self.interval.unwrap_or(default_interval);
        let mut view = View::new(self.sort, self.reverse, &self.filter);
        (view.exclusive_only, view.containers) = (self.exclusive, self.containers);
        let node = |(index, target): (usize, &Target)| {
            MonitoredNode::new(index, &target.name, target.named_by_user)
        };
        let state = TopState::new(targets.iter().enumerate().map(node).collect(), view);
        if self.once {
            let width = self.width.unwrap_or_else(terminal_width);
            once::print(state, &targets, interval, (self.output, width)).await?;
            return Ok(ExitCode::SUCCESS);
        }
        live::run(state, targets, interval).await
    }

    /// The agents that the options name.
    fn named_targets(&self) -> anyhow::Result<Vec<Target>> {
        let text = self.nodes.as_deref().map(targets::read).transpose()?;
        let named = targets::all(&self.node, self.nodes.as_deref().zip(text.as_deref()))?;
        anyhow::ensure!(
            self.token_file.is_none() || !named.is_empty(),
            "--token-file has an effect only with --node or --nodes: name the agents, or remove --token-file"
        );
        let token = self.token_file.as_deref().map(targets::read_token);
        let token = token.transpose()?;
        let with_token = |target: Target| target.with_authorization(token.clone());
        Ok(named.into_iter().map(with_token).collect())
    }

    /// The agents to watch, and the default time between two requests.
    async fn targets(&self, named: Vec<Target>) -> anyhow::Result<(Vec<Target>, Duration)> {
        #[cfg(feature = "portforward")]
        if self.access.args.is_wanted(!named.is_empty())? {
            let targets = self.access.connect().await?.targets().await?;
            let interval = if self.once {
                DEFAULT_INTERVAL
            } else {
                CLUSTER_INTERVAL
            };
            return Ok((targets, interval));
        }
        if !named.is_empty() {
            return Ok((named, DEFAULT_INTERVAL));
        }
        let endpoint = local_agent(None, Overrides::default())?;
        let local = Target {
            name: endpoint.name(),
            named_by_user: false,
            endpoint,
        };
        Ok((vec![local], DEFAULT_INTERVAL))
    }
}

fn terminal_width() -> u16 {
    let terminal = console::Term::stdout();
    if terminal.is_term() {
        terminal.size().1.max(20)
    } else {
        DEFAULT_WIDTH
    }
}

#[cfg(test)]
mod tests;
