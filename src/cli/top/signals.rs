//! Signals: those that end it, and those by which a shell has it stop and go on.

use std::time::Duration;

use anyhow::Context;
use nix::sys::signal::{self, SigSet, Signal};
use nix::unistd::Pid;
use tokio::sync::mpsc;

use super::screen;

/// What a signal asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Told {
    /// The end, with the exit code that shells have for it.
    End(u8),
    /// To leave the terminal to the shell for a while.
    Stop,
    /// To go on, with a terminal that anybody may have used meanwhile.
    GoOn,
}

/// For so long may a terminal that takes nothing hold up the end.
const GRACE: Duration = Duration::from_secs(2);

/// Signals that wait; the same again asks for nothing new.
const WAITING: usize = 16;

const ALL: [Signal; 5] = [
    Signal::SIGTERM,
    Signal::SIGINT,
    Signal::SIGHUP,
    Signal::SIGTSTP,
    Signal::SIGCONT,
];

/// Keeps the signals for [`listen`], in this thread and in all that it starts from now on.
///
/// They are waited for rather than handled: what SIGTSTP does by default is needed once the terminal is given back.
pub(super) fn hold() -> anyhow::Result<()> {
    SigSet::from_iter(ALL)
        .thread_block()
        .context("can't hold back signals")
}

/// Says what signals ask for; after one that ends it, nothing holds up the end for long.
pub(super) fn listen() -> anyhow::Result<mpsc::Receiver<Told>> {
    let (sender, told) = mpsc::channel(WAITING);
    let listen = move || {
        let all = SigSet::from_iter(ALL);
        while let Ok(signal) = all.wait() {
            let what = match signal {
                Signal::SIGTSTP => Told::Stop,
                Signal::SIGCONT => Told::GoOn,
                Signal::SIGINT => Told::End(130),
                Signal::SIGHUP => Told::End(129),
                _ => Told::End(143),
            };
            // Where so many wait, this one is among them, or there is an end.
            let _ = sender.try_send(what);
            if let Told::End(code) = what {
                std::thread::sleep(GRACE);
                // Whoever draws waits for the terminal, which would not take the sequences that give it back, either.
                screen::unset();
                std::process::exit(code.into());
            }
        }
    };
    std::thread::Builder::new()
        .name("signals".to_owned())
        .spawn(listen)
        .context("can't start the thread that waits for signals")?;
    Ok(told)
}

/// What a terminal does itself, while it is not ours, on Ctrl-Z: all that were started together are to stop.
pub(super) fn ask_to_stop() -> anyhow::Result<()> {
    signal::kill(Pid::from_raw(0), Signal::SIGTSTP).context("can't stop")
}

/// Stops until it is told to go on, or not at all where nobody could tell it to.
pub(super) fn stop() -> anyhow::Result<()> {
    let stop = SigSet::from_iter([Signal::SIGTSTP]);
    let stopped = stop
        .thread_unblock()
        .and_then(|()| signal::raise(Signal::SIGTSTP));
    stop.thread_block().and(stopped).context("can't stop")
}
