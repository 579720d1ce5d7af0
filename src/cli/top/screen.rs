//! The terminal: taken, drawn on, given back whatever happens.

use std::io::{self, BufWriter, IsTerminal, Stdout, Write};
use std::sync::Once;

use anyhow::Context;
use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::cursor::{Hide, Show};
use ratatui::crossterm::event::{self, Event};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use ratatui::text::Line;
use tokio::sync::mpsc;

/// A frame leaves in few writes: over a slow connection each would be a packet.
const BUFFER: usize = 64 << 10;

/// Keys that wait; whoever types faster than a terminal draws loses nothing that matters.
const KEYS: usize = 64;

/// The terminal while it is ours.
pub(super) struct Screen {
    terminal: Terminal<CrosstermBackend<BufWriter<Stdout>>>,
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
        enter()
            .inspect_err(|_| give_back())
            .context("can't take the terminal (pinfold top --once needs none)")?;
        let backend = CrosstermBackend::new(BufWriter::with_capacity(BUFFER, io::stdout()));
        let terminal = Terminal::new(backend).inspect_err(|_| give_back());
        Ok(Self {
            terminal: terminal.context("can't tell the terminal's size (pinfold top --once needs none)")?,
        })
    }

    /// Columns and lines.
    pub(super) fn size(&self) -> anyhow::Result<(usize, usize)> {
        let size = self.terminal.size().context("can't tell the terminal's size")?;
        Ok((size.width.into(), size.height.into()))
    }

    /// Draws a frame: only what differs from the one before is written.
    pub(super) fn draw(&mut self, lines: &[Line<'_>]) -> anyhow::Result<()> {
        let draw = |frame: &mut ratatui::Frame<'_>| paint(lines, frame.buffer_mut());
        self.terminal.draw(draw).context("can't write to the terminal")?;
        Ok(())
    }

    /// Has the next frame drawn as a whole.
    pub(super) fn clear(&mut self) -> anyhow::Result<()> {
        let size = self.terminal.size().context("can't tell the terminal's size")?;
        // Its own `clear` asks the terminal where the cursor is, and the answer would be taken for keys.
        self.terminal.resize(ratatui::layout::Rect::from(size)).context("can't write to the terminal")
    }

    /// Leaves the terminal to the shell until it brings us back.
    pub(super) fn suspend(&mut self) -> anyhow::Result<()> {
        give_back();
        nix::sys::signal::raise(nix::sys::signal::Signal::SIGTSTP).context("can't stop")?;
        enter().context("can't take the terminal again")?;
        self.clear()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        give_back();
    }
}

/// Writes lines into a buffer of cells.
pub(super) fn paint(lines: &[Line<'_>], buffer: &mut ratatui::buffer::Buffer) {
    let area = *buffer.area();
    for (line, y) in lines.iter().zip(area.top()..area.bottom()) {
        buffer.set_style(ratatui::layout::Rect { y, height: 1, ..area }, line.style);
        buffer.set_line(area.left(), y, line, area.width);
    }
}

fn enter() -> io::Result<()> {
    enable_raw_mode()?;
    execute!(io::stdout(), EnterAlternateScreen, Hide)
}

/// As it was before. What can't be written any more is nobody's loss.
fn give_back() {
    let _ = disable_raw_mode();
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
