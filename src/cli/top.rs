//! `pinfold top`: one node or many, live.

mod frame;
mod map;
mod model;
mod nodes;
mod numbers;
mod order;
mod screen;
mod signals;
mod status;
mod table;
mod view;
mod words;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::{Args, value_parser};
use ratatui_crossterm::crossterm::event::Event;
use tokio::sync::{Semaphore, mpsc};
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
use signals::Told;
use status::Status;
use view::{Done, View};

/// An agent that is well answers sooner.
const PATIENCE: Duration = Duration::from_secs(5);

/// Answers are drawn together: no more often than this, however many nodes there are.
const PACE: Duration = Duration::from_millis(500);

/// So many agents are asked at once: no more than there are open files to spare.
const AT_ONCE: usize = 256;

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
    /// Words that all have to be in a pod's name, node, role, job or QoS class; own, shared, drift, running; !WORD must not be.
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
        let node = |(number, one): (usize, &Asked)| Node::new(number, &one.name, one.given);
        let state = State::new(asked.iter().enumerate().map(node).collect(), view);
        if self.once {
            let width = self.width.unwrap_or_else(|| {
                let terminal = console::Term::stdout();
                if terminal.is_term() {
                    terminal.size().1.max(20)
                } else {
                    WIDTH
                }
            });
            let runtime = runtime()?;
            let code = runtime.block_on(once(state, &asked, interval, width));
            // Nor for names that nobody resolves.
            runtime.shutdown_background();
            return code;
        }
        anyhow::ensure!(
            screen::is_there(),
            "no terminal to draw on and to read keys from: pinfold top --once prints a frame"
        );
        signals::hold()?;
        let runtime = runtime()?;
        let code = runtime.block_on(live(state, asked, interval));
        // Nobody waits for nodes that don't answer.
        runtime.shutdown_background();
        code
    }

    fn asked(&self) -> anyhow::Result<Vec<Asked>> {
        let text = self.nodes.as_deref().map(nodes::read).transpose()?;
        let all = nodes::all(&self.node, self.nodes.as_deref().zip(text.as_deref()))?;
        if !all.is_empty() {
            return Ok(all);
        }
        let endpoint = Endpoint::here(None, Overrides::default())?;
        Ok(vec![Asked {
            name: endpoint.name(),
            given: false,
            endpoint,
        }])
    }
}

/// All that a frame is made from.
struct State {
    nodes: Vec<Node>,
    view: View,
    /// The rows that are wanted, in their order.
    rows: Vec<Arc<Row>>,
    names: Vec<String>,
    pods: usize,
    /// Whether these are no longer what they should be.
    stale: bool,
    begun: Instant,
}

// === impl State ===

impl State {
    fn new(nodes: Vec<Node>, view: View) -> Self {
        let begun = Instant::now();
        Self {
            nodes,
            view,
            rows: Vec::new(),
            names: Vec::new(),
            pods: 0,
            stale: true,
            begun,
        }
    }

    fn note(&mut self, (number, at, answer): News) {
        if let Some(node) = self.nodes.get_mut(number) {
            node.note(at, answer);
            self.stale = true;
        }
    }

    /// Makes the rows anew, after news or another choice.
    fn arrange(&mut self) {
        if !std::mem::take(&mut self.stale) {
            return;
        }
        self.names = self
            .nodes
            .iter()
            .map(|node| node.name().to_owned())
            .collect();
        let shown = |row: &&Arc<Row>| self.view.node.is_none_or(|node| node == row.node);
        let rows = self
            .nodes
            .iter()
            .flat_map(Node::rows)
            .filter(shown)
            .cloned();
        let rows: Vec<Arc<Row>> = rows.collect();
        self.pods = rows.len();
        self.rows = self.view.rows(rows, &self.names);
        self.view.settle(&self.rows);
    }

    fn picture(&self) -> Picture<'_> {
        let Self {
            nodes,
            view,
            rows,
            names,
            pods,
            begun,
            ..
        } = self;
        Picture {
            nodes,
            names,
            rows,
            pods: *pods,
            view,
            now: begun.elapsed(),
        }
    }
}

/// Asks one agent, when it is its turn.
async fn ask(endpoint: &Endpoint, turns: &Semaphore) -> Answer {
    let _turn = turns.acquire().await;
    let asked = async {
        let bodies = endpoint.get(&["/status", "/metrics"]).await?;
        let [status, metrics] = &bodies[..] else {
            anyhow::bail!("no answer")
        };
        Ok((
            Status::parse(status)?,
            Numbers::parse(&String::from_utf8_lossy(metrics)),
        ))
    };
    match tokio::time::timeout(PATIENCE, asked).await {
        Ok(answer) => answer.map_err(|error: anyhow::Error| format!("{error:#}")),
        Err(_) => Err(format!("nothing heard within {} s", PATIENCE.as_secs())),
    }
}

/// Prints one frame.
async fn once(
    mut state: State,
    asked: &[Asked],
    interval: Duration,
    width: u16,
) -> anyhow::Result<ExitCode> {
    let (begun, turns) = (state.begun, Arc::new(Semaphore::new(AT_ONCE)));
    for look in 0..2 {
        if look > 0 {
            tokio::time::sleep(interval).await;
        }
        let mut looks = JoinSet::new();
        for (number, one) in asked.iter().enumerate() {
            // One that is away would only be waited for again.
            if look > 0
                && state
                    .nodes
                    .get(number)
                    .is_some_and(|node| node.error().is_some())
            {
                continue;
            }
            let (endpoint, turns) = (one.endpoint.clone(), Arc::clone(&turns));
            looks.spawn(async move {
                let answer = ask(&endpoint, &turns).await;
                (number, begun.elapsed(), answer)
            });
        }
        while let Some(news) = looks.join_next().await {
            state.note(news.context("a look at a node has ended early")?);
        }
        if state.nodes.iter().all(|node| node.status().is_none()) {
            let why = |(node, one): (&Node, &Asked)| {
                format!(
                    "{}: {}",
                    one.endpoint,
                    node.error().map_or("no answer", |(why, _)| why)
                )
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
    turns: Arc<Semaphore>,
    interval: Duration,
    begun: Instant,
    news: mpsc::Sender<News>,
) {
    let mut ticks = tokio::time::interval(interval);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let answer = ask(&endpoint, &turns).await;
        if news.send((number, begun.elapsed(), answer)).await.is_err() {
            return;
        }
    }
}

/// Draws until it is ended.
async fn live(mut state: State, asked: Vec<Asked>, interval: Duration) -> anyhow::Result<ExitCode> {
    let mut told = signals::listen()?;
    let turns = Arc::new(Semaphore::new(AT_ONCE));
    let (sender, mut news) = mpsc::channel(asked.len().max(1));
    for (number, one) in asked.into_iter().enumerate() {
        let turns = Arc::clone(&turns);
        tokio::spawn(follow(
            number,
            one.endpoint,
            turns,
            interval,
            state.begun,
            sender.clone(),
        ));
    }
    let mut screen = Screen::take()?;
    let mut events = screen::events()?;
    let mut pace = tokio::time::interval(PACE);
    pace.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut page = 1;
    loop {
        // Each arm only takes what is there: none loses anything when another one is first.
        let done = tokio::select! {
            biased;
            Some(what) = told.recv() => {
                match what {
                    Told::End(code) => return Ok(ExitCode::from(code)),
                    Told::Stop => screen.suspend()?,
                    Told::GoOn => screen.go_on()?,
                }
                Done::Draw
            }
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
            _ = pace.tick() => {
                // Ages go on while somebody does not answer.
                let silent = state.nodes.iter().any(|node| node.error().is_some());
                if state.stale || silent { Done::Draw } else { Done::Nothing }
            }
            // There may always be some.
            Some(one) = news.recv() => {
                if !state.view.paused {
                    state.note(one);
                }
                Done::Nothing
            }
        };
        match done {
            Done::Nothing => continue,
            Done::Quit => return Ok(ExitCode::SUCCESS),
            Done::Draw => {}
            Done::Clear => screen.clear()?,
            // We are told of it, as all are that were started with us.
            Done::Suspend => {
                signals::ask_to_stop()?;
                continue;
            }
        }
        state.arrange();
        let (width, height) = screen.size()?;
        let frame = state.picture().on_screen(width, height);
        screen.draw(&frame.lines)?;
        page = frame.page;
    }
}

fn handle(event: &Event, state: &mut State, page: usize) -> Done {
    let Event::Key(key) = event else {
        return if matches!(event, Event::Resize(..)) {
            Done::Draw
        } else {
            Done::Nothing
        };
    };
    // What is chosen next depends on what there is; what is written does not.
    if !state.view.editing {
        state.arrange();
    }
    let before = state.view.wants();
    let done = state.view.key(key, &state.rows, page, state.nodes.len());
    state.stale |= state.view.wants() != before;
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
    if weight(other) > weight(one) {
        other
    } else {
        one
    }
}

#[cfg(test)]
mod tests;
