//! `pinfold top`: the pods of nodes, on a terminal or as text.

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

use clap::{Args, value_parser};

use super::interval::interval;
use super::local_agent::local_agent;
use super::run::runtime;
use crate::agent::config::Overrides;
use crate::client::MonitoredNode;
use crate::client::targets::{self, Target};
use order::Column;
use state::State;
use view::View;

/// The columns of a printed frame without a terminal.
const DEFAULT_WIDTH: u16 = 100;

/// Watch nodes: pods, owners of CPUs, threads, interference, unpinned time, traffic.
///
/// The command requests /status and /metrics of each agent. For a node without a response, the frame shows the reason. Such a
/// node delays no other node. An unknown value is a dash. The key ? shows all keys.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  pinfold top                                         watch this node
  pinfold top --node node-1 --node ps=10.0.0.2        watch two nodes, and call the second node ps
  pinfold top --nodes nodes.txt --sort interference   watch the nodes in a file: URL or NAME=URL in each line
  pinfold top --once --width 120 > frame.txt          print a frame as text
  kubectl proxy &                                     reach agents that listen only within the cluster
  pinfold top --node http://127.0.0.1:8001/api/v1/namespaces/NAMESPACE/pods/http:POD:9470/proxy")]
pub(super) struct Top {
    /// An agent: URL, HOST:PORT or HOST, with an optional NAME= before the address; may be repeated [default: the agent of this node]
    #[arg(long, value_name = "[NAME=]URL")]
    node: Vec<String>,
    /// File with an agent in each line.
    #[arg(long, value_name = "FILE")]
    nodes: Option<PathBuf>,
    /// Time between two requests to an agent, 1s to 24h.
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = interval)]
    interval: Duration,
    /// Print a frame as text and exit; rates are means over the interval.
    #[arg(long)]
    once: bool,
    /// Columns of the printed frame [default: the terminal's columns, or 100]
    #[arg(long, value_name = "COLUMNS", requires = "once", value_parser = value_parser!(u16).range(20..=1000))]
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
    /// Show each container of a pod in a separate line.
    #[arg(long)]
    containers: bool,
}

// === impl Top ===

impl Top {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let targets = self.targets()?;
        let mut view = View::new(self.sort, self.reverse, &self.filter);
        (view.exclusive_only, view.containers) = (self.exclusive, self.containers);
        let interval = self.interval;
        let node = |(index, target): (usize, &Target)| {
            MonitoredNode::new(index, &target.name, target.named_by_user)
        };
        let state = State::new(targets.iter().enumerate().map(node).collect(), view);
        if self.once {
            let width = self.width.unwrap_or_else(terminal_width);
            let runtime = runtime()?;
            let printed = runtime.block_on(once::print(state, &targets, interval, width));
            // The process does not wait for a name resolution that takes long.
            runtime.shutdown_background();
            return printed.map(|()| ExitCode::SUCCESS);
        }
        anyhow::ensure!(
            screen::is_terminal(),
            "pinfold top needs a terminal: print a frame with pinfold top --once"
        );
        signals::block()?;
        let runtime = runtime()?;
        let code = runtime.block_on(live::run(state, targets, interval));
        // The process does not wait for nodes without a response.
        runtime.shutdown_background();
        code
    }

    /// The agents to watch.
    fn targets(&self) -> anyhow::Result<Vec<Target>> {
        let text = self.nodes.as_deref().map(targets::read).transpose()?;
        let all = targets::all(&self.node, self.nodes.as_deref().zip(text.as_deref()))?;
        if !all.is_empty() {
            return Ok(all);
        }
        let endpoint = local_agent(None, Overrides::default())?;
        Ok(vec![Target {
            name: endpoint.name(),
            named_by_user: false,
            endpoint,
        }])
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
