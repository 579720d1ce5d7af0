//! `pinfold top`: one node or many, live.

mod frame;
mod map;
mod model;
mod nodes;
mod numbers;
mod order;
mod screen;
mod status;
mod table;
mod view;
mod words;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::{Args, value_parser};
use ratatui::crossterm::event::Event;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::agent::Endpoint;
use super::run::runtime;
use crate::agent::config::Overrides;
use frame::Picture;
use model::{Node, Row};
use nodes::Asked;
use numbers::Numbers;
use order::Column;
use screen::Screen;
use status::Status;
use view::{Done, View};

/// An agent that is well answers sooner.
const PATIENCE: Duration = Duration::from_secs(5);

/// Answers are drawn together: no more often than this, however many nodes there are.
const PACE: Duration = Duration::from_millis(500);

/// The columns of a frame where nothing tells how many there are.
const WIDTH: u16 = 100;

/// Watch a node, or many: pods, who owns which CPUs, threads, foreign time, windows, traffic.
///
/// Each agent is asked for /status and /metrics; one that does not answer is shown with the reason, and holds up nobody. What is not
/// known is a dash. Keys: ? tells.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  pinfold top                                     the agent of this node
  pinfold top --node node-1 --node ps=10.0.0.2    two others, the second by a name of yours
  pinfold top --nodes nodes.txt --sort foreign    those in a file: URL or NAME=URL in each line
  pinfold top --once --width 120 > frame.txt      one frame, as text
  kubectl proxy &                                 where agents listen within the cluster only
  pinfold top --node http://127.0.0.1:8001/api/v1/namespaces/NAMESPACE/pods/http:POD:9470/proxy")]
pub(super) struct Top {
    /// An agent: URL, HOST:PORT or HOST, with NAME= before it if wanted; may be repeated [default: the agent of this node]
    #[arg(long, value_name = "[NAME=]URL")]
    node: Vec<String>,
    /// File with an agent in each line.
    #[arg(long, value_name = "FILE")]
    nodes: Option<PathBuf>,
    /// Seconds between two looks.
    #[arg(long, value_name = "SECONDS", default_value_t = 2, value_parser = value_parser!(u64).range(1..=3600))]
    interval: u64,
    /// Print one frame, as text, and end: rates are those between two looks.
    #[arg(long)]
    once: bool,
    /// Columns of that frame [default: the terminal's, or 100]
    #[arg(long, value_name = "COLUMNS", requires = "once", value_parser = value_parser!(u16).range(20..=1000))]
    width: Option<u16>,
    /// The column to sort by: names upwards, numbers downwards.
    #[arg(long, value_enum, value_name = "COLUMN", default_value = "pod")]
    sort: Column,
    /// The other way round.
    #[arg(long)]
    reverse: bool,
    /// Words that all have to be in a pod's name, node, role, job or QoS class; own, shared, drift; !WORD must not be.
    #[arg(long, value_name = "WORDS", default_value = "")]
    filter: String,
    /// Only pods with CPUs of their own.
    #[arg(long)]
    own: bool,
    /// Each container of a pod with several in a line of its own.
    #[arg(long)]
    containers: bool,
}

/// An answer of a node, or why there is none.
type Answer = Result<(Status, Numbers), String>;

/// One node's news, with the moment.
type News = (usize, Duration, Answer);

// === impl Top ===

impl Top {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let asked = self.asked()?;
        let mut view = View::new(self.sort, self.reverse, &self.filter);
        (view.owners, view.containers) = (self.own, self.containers);
        let interval = Duration::from_secs(self.interval);
        let nodes: Vec<Node> = asked.iter().map(|one| Node::new(&one.name, one.given)).collect();
        let state =
            State { nodes, view, rows: Vec::new(), names: Vec::new(), pods: 0, begun: Instant::now() };
        if self.once {
            let width = self.width.unwrap_or_else(|| {
                let terminal = console::Term::stdout();
                if terminal.is_term() { terminal.size().1.max(20) } else { WIDTH }
            });
            return runtime()?.block_on(once(state, &asked, interval, width));
        }
        anyhow::ensure!(
            screen::is_there(),
            "no terminal to draw on and to read keys from: pinfold top --once prints a frame"
        );
        let runtime = runtime()?;
        let code = runtime.block_on(live(state, asked, interval));
        // Nobody waits for nodes that don't answer.
        runtime.shutdown_background();
        code
    }

    fn asked(&self) -> anyhow::Result<Vec<Asked>> {
        let text = match &self.nodes {
            Some(path) => Some(
                std::fs::read_to_string(path).with_context(|| format!("can't read {}", path.display()))?,
            ),
            None => None,
        };
        let all = nodes::all(&self.node, self.nodes.as_deref().zip(text.as_deref()))?;
        if !all.is_empty() {
            return Ok(all);
        }
        let endpoint = Endpoint::here(None, Overrides::default())?;
        Ok(vec![Asked { name: endpoint.name(), given: false, endpoint }])
    }
}

/// All that a frame is made from.
struct State {
    nodes: Vec<Node>,
    view: View,
    /// The rows that are wanted, in their order.
    rows: Vec<Row>,
    names: Vec<String>,
    pods: usize,
    begun: Instant,
}

// === impl State ===

impl State {
    fn note(&mut self, (number, at, answer): News) {
        if let Some(node) = self.nodes.get_mut(number) {
            node.note(at, answer);
        }
    }

    /// Makes the rows anew, after news or another choice.
    fn arrange(&mut self) {
        self.names = self.nodes.iter().map(|node| node.name().to_owned()).collect();
        let rows: Vec<Row> =
            self.nodes.iter().enumerate().flat_map(|(number, node)| node.rows(number)).collect();
        let shown = |row: &&Row| self.view.node.is_none_or(|node| node == row.node);
        self.pods = rows.iter().filter(shown).count();
        self.rows = self.view.rows(rows, &self.names);
        self.view.settle(&self.rows);
    }

    fn picture(&self) -> Picture<'_> {
        let Self { nodes, view, rows, names, pods, begun } = self;
        Picture { nodes, names, rows, pods: *pods, view, now: begun.elapsed() }
    }
}

/// Asks one agent.
async fn ask(endpoint: &Endpoint) -> Answer {
    let asked = async {
        let bodies = endpoint.get(&["/status", "/metrics"]).await?;
        let [status, metrics] = &bodies[..] else { anyhow::bail!("no answer") };
        Ok((Status::parse(status)?, Numbers::parse(&String::from_utf8_lossy(metrics))))
    };
    match tokio::time::timeout(PATIENCE, asked).await {
        Ok(answer) => answer.map_err(|error: anyhow::Error| format!("{error:#}")),
        Err(_) => Err(format!("nothing heard within {} s", PATIENCE.as_secs())),
    }
}

/// Prints one frame.
async fn once(mut state: State, asked: &[Asked], interval: Duration, width: u16) -> anyhow::Result<ExitCode> {
    let begun = state.begun;
    for look in 0..2 {
        if look > 0 {
            tokio::time::sleep(interval).await;
        }
        let mut looks = JoinSet::new();
        for (number, one) in asked.iter().enumerate() {
            // One that is away would only be waited for again.
            if look > 0 && state.nodes.get(number).is_some_and(|node| node.error().is_some()) {
                continue;
            }
            let endpoint = one.endpoint.clone();
            looks.spawn(async move {
                let answer = ask(&endpoint).await;
                (number, begun.elapsed(), answer)
            });
        }
        while let Some(news) = looks.join_next().await {
            state.note(news.context("a look at a node has ended early")?);
        }
        if state.nodes.iter().all(|node| node.status().is_none()) {
            let why = |(node, one): (&Node, &Asked)| {
                format!("{}: {}", one.endpoint, node.error().map_or("no answer", |(why, _)| why))
            };
            let all: Vec<String> = state.nodes.iter().zip(asked).map(why).collect();
            anyhow::bail!(
                "{}; start the agent (pinfold run), or say with --node where one listens",
                all.join("; ")
            );
        }
    }
    state.arrange();
    let lines: Vec<String> = state
        .picture()
        .whole(width.into())
        .iter()
        .map(|line| line.to_string().trim_end().to_owned())
        .collect();
    super::emit(&lines.join("\n"))?;
    Ok(ExitCode::SUCCESS)
}

/// Asks one agent for ever.
async fn follow(
    number: usize,
    endpoint: Endpoint,
    interval: Duration,
    begun: Instant,
    news: mpsc::Sender<News>,
) {
    let mut ticks = tokio::time::interval(interval);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let answer = ask(&endpoint).await;
        if news.send((number, begun.elapsed(), answer)).await.is_err() {
            return;
        }
    }
}

/// Draws until it is ended.
async fn live(mut state: State, asked: Vec<Asked>, interval: Duration) -> anyhow::Result<ExitCode> {
    let mut ends = Ends::listen()?;
    let (sender, mut news) = mpsc::channel(asked.len().max(1));
    for (number, one) in asked.into_iter().enumerate() {
        tokio::spawn(follow(number, one.endpoint, interval, state.begun, sender.clone()));
    }
    let mut screen = Screen::take()?;
    let mut events = screen::events()?;
    let mut pace = tokio::time::interval(PACE);
    pace.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let (mut fresh, mut page) = (true, 1);
    state.arrange();
    loop {
        // Each arm only takes what is there: none loses anything when another one is first.
        let done = tokio::select! {
            biased;
            code = ends.any() => return Ok(ExitCode::from(code)),
            event = events.recv() => match event {
                // The terminal is gone.
                None => return Ok(ExitCode::SUCCESS),
                Some(event) => {
                    let mut done = handle(&event, &mut state, page);
                    // Over a slow connection keys come faster than frames leave.
                    while let Ok(event) = events.try_recv() {
                        done = most(done, handle(&event, &mut state, page));
                    }
                    done
                }
            },
            Some(one) = news.recv() => {
                if !state.view.paused {
                    state.note(one);
                    fresh = true;
                }
                Done::Nothing
            }
            _ = pace.tick() => {
                // Ages go on while somebody does not answer.
                let silent = state.nodes.iter().any(|node| node.error().is_some());
                if std::mem::take(&mut fresh) {
                    state.arrange();
                    Done::Draw
                } else if silent {
                    Done::Draw
                } else {
                    Done::Nothing
                }
            }
        };
        match done {
            Done::Nothing => continue,
            Done::Quit => return Ok(ExitCode::SUCCESS),
            Done::Draw => {}
            Done::Clear => screen.clear()?,
            Done::Suspend => screen.suspend()?,
        }
        let (width, height) = screen.size()?;
        let frame = state.picture().on_screen(width, height);
        screen.draw(&frame.lines)?;
        page = frame.page;
    }
}

fn handle(event: &Event, state: &mut State, page: usize) -> Done {
    let done = match event {
        Event::Key(key) => state.view.key(key, &state.rows, page, state.nodes.len()),
        Event::Resize(..) => Done::Draw,
        _ => Done::Nothing,
    };
    if done == Done::Draw {
        state.arrange();
    }
    done
}

/// Of two things to be done the one that leaves nothing of the other undone.
fn most(one: Done, other: Done) -> Done {
    let weight = |done| match done {
        Done::Nothing => 0,
        Done::Draw => 1,
        Done::Clear => 2,
        Done::Suspend => 3,
        Done::Quit => 4,
    };
    if weight(other) > weight(one) { other } else { one }
}

/// The signals that end it.
struct Ends {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
}

// === impl Ends ===

impl Ends {
    fn listen() -> anyhow::Result<Self> {
        let listen = |kind| signal(kind).context("can't listen for signals");
        Ok(Self {
            terminate: listen(SignalKind::terminate())?,
            interrupt: listen(SignalKind::interrupt())?,
            hangup: listen(SignalKind::hangup())?,
        })
    }

    /// Waits for one of them: the exit code, as shells have it.
    async fn any(&mut self) -> u8 {
        tokio::select! {
            _ = self.terminate.recv() => 143,
            _ = self.interrupt.recv() => 130,
            _ = self.hangup.recv() => 129,
        }
    }
}

#[cfg(test)]
mod tests;
