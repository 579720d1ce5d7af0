//! The terminal: taken, drawn on, given back whatever happens.

use std::io::{self, BufWriter, IsTerminal, Stdout, Write};
use std::sync::Once;
use std::time::{Duration, Instant};

use anyhow::Context;
use ratatui_core::style::Color;
use ratatui_core::terminal::Terminal;
use ratatui_core::text::Line;
use ratatui_crossterm::CrosstermBackend;
use ratatui_crossterm::crossterm::cursor::{Hide, Show};
use ratatui_crossterm::crossterm::event::{self, Event};
use ratatui_crossterm::crossterm::execute;
use ratatui_crossterm::crossterm::terminal::{
    self, EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use tokio::sync::mpsc;

use super::signals;

/// A frame leaves in few writes: over a slow connection each would be a packet.
const BUFFER: usize = 64 << 10;

/// Keys that wait; whoever types faster than a terminal draws loses nothing that matters.
const KEYS: usize = 64;

/// Whoever goes on is told so by a signal as well, and soon.
const SOON: Duration = Duration::from_secs(1);

/// The terminal while it is ours.
pub(super) struct Screen {
    terminal: Terminal<CrosstermBackend<BufWriter<Stdout>>>,
    /// Whether colours are wanted.
    colors: bool,
    /// Since when the terminal is ours.
    since: Instant,
}

/// Whether there is a terminal to draw on and to read keys from.
pub(super) fn is_there() -> bool {
    io::stdin().is_terminal()
        && io::stdout().is_terminal()
        && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

// === impl Screen ===

impl Screen {
    /// Takes the terminal; it is given back when this is dropped, and on a panic.
    pub(super) fn take() -> anyhow::Result<Self> {
        static HOOK: Once = Once::new();
        HOOK.call_once(|| {
            let before = std::panic::take_hook();
            // What a panic says is to be read, and the shell to be used, afterwards.
            std::panic::set_hook(Box::new(move |panic| {
                give_back();
                before(panic);
            }));
        });
        let (width, height) = terminal::size().context(NO_SIZE)?;
        anyhow::ensure!(
            width > 0 && height > 0,
            "the terminal does not tell its size, as over a serial line: stty rows 24 cols 80 sets it"
        );
        enter()
            .inspect_err(|_| give_back())
            .context("can't take the terminal (pinfold top --once needs none)")?;
        let backend = CrosstermBackend::new(BufWriter::with_capacity(BUFFER, io::stdout()));
        let terminal = Terminal::new(backend).inspect_err(|_| give_back());
        let colors = std::env::var_os("NO_COLOR").is_none_or(|no| no.is_empty());
        Ok(Self {
            terminal: terminal.context(NO_SIZE)?,
            colors,
            since: Instant::now(),
        })
    }

    /// Columns and lines.
    pub(super) fn size(&self) -> anyhow::Result<(usize, usize)> {
        let size = self
            .terminal
            .size()
            .context("can't tell the terminal's size")?;
        Ok((size.width.into(), size.height.into()))
    }

    /// Draws a frame: only what differs from the one before is written.
    pub(super) fn draw(&mut self, lines: &[Line<'_>]) -> anyhow::Result<()> {
        let draw = |frame: &mut ratatui_core::terminal::Frame<'_>| {
            paint(lines, frame.buffer_mut());
            if !self.colors {
                // The backend would write an empty one, and that takes bold and reversed away with it.
                frame
                    .buffer_mut()
                    .content
                    .iter_mut()
                    .for_each(|cell| cell.fg = Color::Reset);
            }
        };
        self.terminal
            .draw(draw)
            .context("can't write to the terminal")?;
        Ok(())
    }

    /// Has the next frame drawn as a whole.
    pub(super) fn clear(&mut self) -> anyhow::Result<()> {
        let size = self
            .terminal
            .size()
            .context("can't tell the terminal's size")?;
        // Its own `clear` asks the terminal where the cursor is, and the answer would be taken for keys.
        self.terminal
            .resize(ratatui_core::layout::Rect::from(size))
            .context("can't write to the terminal")
    }

    /// Leaves the terminal to the shell until it brings us back.
    pub(super) fn suspend(&mut self) -> anyhow::Result<()> {
        give_back();
        signals::stop()?;
        self.take_again()
    }

    /// Takes the terminal again after a stop that nobody was asked about.
    pub(super) fn go_on(&mut self) -> anyhow::Result<()> {
        if self.since.elapsed() < SOON {
            Ok(())
        } else {
            self.take_again()
        }
    }

    fn take_again(&mut self) -> anyhow::Result<()> {
        // Whoever had it meanwhile may have set it otherwise.
        unset();
        enter().context("can't take the terminal again")?;
        self.since = Instant::now();
        self.clear()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        give_back();
    }
}

/// Writes lines into a buffer of cells.
pub(super) fn paint(lines: &[Line<'_>], buffer: &mut ratatui_core::buffer::Buffer) {
    let area = *buffer.area();
    for (line, y) in lines.iter().zip(area.top()..area.bottom()) {
        buffer.set_style(
            ratatui_core::layout::Rect {
                y,
                height: 1,
                ..area
            },
            line.style,
        );
        buffer.set_line(area.left(), y, line, area.width);
    }
}

fn enter() -> io::Result<()> {
    enable_raw_mode()?;
    execute!(io::stdout(), EnterAlternateScreen, Hide)
}

const NO_SIZE: &str = "can't tell the terminal's size (pinfold top --once needs none)";

/// Sets the terminal as it was before, without a word to it.
pub(super) fn unset() {
    let _ = disable_raw_mode();
}

/// As it was before. What can't be written any more is nobody's loss.
fn give_back() {
    unset();
    let _ = execute!(io::stdout(), LeaveAlternateScreen, Show);
    let _ = io::stdout().flush();
}

/// What is typed and how the size changes, until the terminal is gone.
pub(super) fn events() -> anyhow::Result<mpsc::Receiver<Event>> {
    let (sender, events) = mpsc::channel(KEYS);
    let read = move || {
        while let Ok(event) = event::read() {
            if sender.blocking_send(event).is_err() {
                break;
            }
        }
    };
    std::thread::Builder::new()
        .name("keys".to_owned())
        .spawn(read)
        .context("can't start the thread that reads keys")?;
    Ok(events)
}
