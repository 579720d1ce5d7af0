//! `pinfold top` on a terminal: requests, keys, signals and frames until the user quits.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ratatui_crossterm::crossterm::event::Event;
use tokio::sync::{Semaphore, mpsc};
use tokio::time::MissedTickBehavior;

use super::screen::{self, Screen};
use super::signals::{self, SignalAction};
use super::state::{NodeResponse, TopState};
use super::view::KeyAction;
use crate::client::targets::Target;
use crate::client::{Endpoint, MAX_REQUESTS, fetch};

/// The shortest time between two frames that responses cause, however many nodes there are.
const FRAME_INTERVAL: Duration = Duration::from_millis(500);

/// Sends requests to an agent until the command ends.
async fn follow(
    index: usize,
    endpoint: Endpoint,
    permits: Arc<Semaphore>,
    interval: Duration,
    started: Instant,
    responses: mpsc::Sender<NodeResponse>,
) {
    let mut ticks = tokio::time::interval(interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let response = fetch(&endpoint, &permits).await;
        let response = (index, started.elapsed(), response);
        if responses.send(response).await.is_err() {
            return;
        }
    }
}

/// Draws frames until a key or a signal ends the command.
pub(super) async fn run(
    mut state: TopState,
    targets: Vec<Target>,
    interval: Duration,
) -> anyhow::Result<ExitCode> {
    let mut signals = signals::listen(screen::unset)?;
    let permits = Arc::new(Semaphore::new(MAX_REQUESTS));
    let (sender, mut responses) = mpsc::channel(targets.len().max(1));
    for (index, target) in targets.into_iter().enumerate() {
        tokio::spawn(follow(
            index,
            target.endpoint,
            Arc::clone(&permits),
            interval,
            state.started,
            sender.clone(),
        ));
    }
    let mut screen = Screen::take()?;
    let mut events = screen::events()?;
    let mut frames = tokio::time::interval(FRAME_INTERVAL);
    frames.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut page = 1;
    loop {
        // Each branch only receives, so a cancelled one loses nothing.
        let action = tokio::select! {
            biased;
            Some(signal) = signals.recv() => {
                match signal {
                    SignalAction::Quit(code) => return Ok(ExitCode::from(code)),
                    SignalAction::Suspend => screen.suspend()?,
                    SignalAction::Resume => screen.resume()?,
                }
                KeyAction::Draw
            }
            event = events.recv() => match event {
                Some(event) => handle_waiting(&event, &mut events, &mut state, page),
                // The terminal is gone.
                None => return Ok(ExitCode::SUCCESS),
            },
            _ = frames.tick() => {
                // How long a response has been missing grows without new responses.
                let has_error = state.nodes.iter().any(|node| node.error().is_some());
                if state.stale || has_error { KeyAction::Draw } else { KeyAction::Nothing }
            }
            // Responses come last, because many nodes could keep the channel full.
            Some(response) = responses.recv() => {
                if !state.view.paused {
                    state.record(response);
                }
                KeyAction::Nothing
            }
        };
        match action {
            KeyAction::Nothing => continue,
            KeyAction::Quit => return Ok(ExitCode::SUCCESS),
            KeyAction::Draw => {}
            KeyAction::Clear => screen.clear()?,
            // The signal also reaches this process, as every process of the shell's job.
            KeyAction::Suspend => {
                signals::stop_job()?;
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

/// Handles an event and all that wait behind it, because on a slow connection, keys arrive faster
/// than frames leave.
fn handle_waiting(
    event: &Event,
    events: &mut mpsc::Receiver<Event>,
    state: &mut TopState,
    page: usize,
) -> KeyAction {
    let mut action = handle(event, state, page);
    while let Ok(event) = events.try_recv() {
        action = action.max(handle(&event, state, page));
    }
    action
}

/// Handles an event. `page` is the number of rows on the screen.
pub(super) fn handle(event: &Event, state: &mut TopState, page: usize) -> KeyAction {
    let Event::Key(key) = event else {
        return if matches!(event, Event::Resize(..)) {
            KeyAction::Draw
        } else {
            KeyAction::Nothing
        };
    };
    // A key that selects a row needs the current rows, unlike a letter of the filter.
    if !state.view.editing {
        state.arrange();
    }
    let before = state.view.selection();
    let action = state.view.key(key, &state.rows, page, state.nodes.len());
    state.stale |= state.view.selection() != before;
    action
}
