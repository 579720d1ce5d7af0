//! [`Screen`]: the terminal in raw mode, restored on every exit.

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

/// The size of the output buffer, in bytes. A few large writes suit a slow connection, where each
/// write is a packet.
const BUFFER_BYTES: usize = 64 << 10;

/// The capacity of the channel of events.
const MAX_WAITING: usize = 64;

/// After [`Screen::suspend`], SIGCONT follows the resume within this time, and asks for no second
/// one.
const RESUME_SIGNAL_DELAY: Duration = Duration::from_secs(1);

/// The terminal, from [`Screen::take`] until the drop.
pub(super) struct Screen {
    terminal: Terminal<CrosstermBackend<BufWriter<Stdout>>>,
    /// Whether frames have colours; NO_COLOR switches them off.
    colors: bool,
    /// When the terminal was taken last.
    taken: Instant,
}

/// Whether standard input and output are a terminal that can move the cursor.
pub(super) fn is_terminal() -> bool {
    io::stdin().is_terminal()
        && io::stdout().is_terminal()
        && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

// === impl Screen ===

impl Screen {
    /// Switches the terminal to raw mode and the alternate screen. A drop or a panic restores it.
    pub(super) fn take() -> anyhow::Result<Self> {
        static HOOK: Once = Once::new();
        HOOK.call_once(|| {
            let before = std::panic::take_hook();
            // A restored terminal shows the panic's message and leaves the shell usable.
            std::panic::set_hook(Box::new(move |panic| {
                restore();
                before(panic);
            }));
        });
        let (width, height) = terminal::size().context(NO_SIZE)?;
        anyhow::ensure!(
            width > 0 && height > 0,
            "the terminal reports no size, as on a serial line: set the size with stty rows 24 cols 80"
        );
        enter().inspect_err(|_| restore()).map_err(|error| {
            anyhow::anyhow!("can't set up the terminal: {error}; pinfold top --once needs none")
        })?;
        let backend = CrosstermBackend::new(BufWriter::with_capacity(BUFFER_BYTES, io::stdout()));
        let terminal = Terminal::new(backend).inspect_err(|_| restore());
        let colors = std::env::var_os("NO_COLOR").is_none_or(|no| no.is_empty());
        Ok(Self {
            terminal: terminal.context(NO_SIZE)?,
            colors,
            taken: Instant::now(),
        })
    }

    /// The terminal's columns and lines.
    pub(super) fn size(&self) -> anyhow::Result<(usize, usize)> {
        let size = self
            .terminal
            .size()
            .context("can't read the terminal's size")?;
        Ok((size.width.into(), size.height.into()))
    }

    /// Draws a frame. Only cells that differ from the last frame are written.
    pub(super) fn draw(&mut self, lines: &[Line<'_>]) -> anyhow::Result<()> {
        let draw = |frame: &mut ratatui_core::terminal::Frame<'_>| {
            paint(lines, frame.buffer_mut());
            if !self.colors {
                // For no colour, the backend writes a reset, which would remove bold and reversed
                // as well.
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

    /// Makes the next frame write every cell.
    pub(super) fn clear(&mut self) -> anyhow::Result<()> {
        let size = self
            .terminal
            .size()
            .context("can't read the terminal's size")?;
        // `Terminal::clear` asks the terminal for the cursor's position, and the answer would
        // arrive among the keys.
        self.terminal
            .resize(ratatui_core::layout::Rect::from(size))
            .context("can't write to the terminal")
    }

    /// Leaves the terminal to the shell until that resumes the command.
    pub(super) fn suspend(&mut self) -> anyhow::Result<()> {
        restore();
        signals::stop()?;
        self.take_again()
    }

    /// Takes the terminal again after SIGSTOP, which comes without notice.
    pub(super) fn resume(&mut self) -> anyhow::Result<()> {
        if self.taken.elapsed() < RESUME_SIGNAL_DELAY {
            Ok(())
        } else {
            self.take_again()
        }
    }

    fn take_again(&mut self) -> anyhow::Result<()> {
        // Another program may have changed the settings.
        unset();
        enter().context("can't set up the terminal again")?;
        self.taken = Instant::now();
        self.clear()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        restore();
    }
}

/// Writes lines into a buffer of cells, a line per row.
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

const NO_SIZE: &str = "can't read the terminal's size; pinfold top --once needs no terminal";

/// Restores the terminal's settings without writing to it.
pub(super) fn unset() {
    let _ = disable_raw_mode();
}

/// Restores settings and screen of the terminal. If a write fails, the terminal is gone, so that is
/// ignored.
fn restore() {
    unset();
    let _ = execute!(io::stdout(), LeaveAlternateScreen, Show);
    let _ = io::stdout().flush();
}

/// Keys and changes of the terminal's size, until it is gone.
pub(super) fn events() -> anyhow::Result<mpsc::Receiver<Event>> {
    let (sender, events) = mpsc::channel(MAX_WAITING);
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
