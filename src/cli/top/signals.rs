//! Signals that end the command, and those by which a shell stops and resumes it.

use std::time::Duration;

use anyhow::Context;
use nix::sys::signal::{self, SigSet, Signal};
use nix::unistd::Pid;
use tokio::sync::mpsc;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SignalAction {
    /// End the command with this exit code, 128 plus the signal's number.
    Quit(u8),
    /// Leave the terminal to the shell until SIGCONT.
    Suspend,
    /// Take the terminal again, in an unknown state.
    Resume,
}

/// The longest time that a blocked terminal may delay the end of the command.
const QUIT_TIMEOUT: Duration = Duration::from_secs(2);

/// The capacity of the channel. A full one loses nothing, because a repeated signal asks for the
/// same action.
const MAX_WAITING: usize = 16;

const ALL: [Signal; 5] = [
    Signal::SIGTERM,
    Signal::SIGINT,
    Signal::SIGHUP,
    Signal::SIGTSTP,
    Signal::SIGCONT,
];

/// Blocks the signals in this thread and in those started later, so that [`listen`] receives them.
///
/// A signal handler would replace the default action of SIGTSTP, which stops the process after the
/// terminal is restored.
pub(super) fn block() -> anyhow::Result<()> {
    SigSet::from_iter(ALL)
        .thread_block()
        .context("can't block signals")
}

/// Starts a thread that receives the signals. If a signal should end the command and that does not
/// happen in time, the thread restores the terminal's settings with `restore_settings` and ends the
/// process.
pub(super) fn listen(restore_settings: fn()) -> anyhow::Result<mpsc::Receiver<SignalAction>> {
    let (sender, actions) = mpsc::channel(MAX_WAITING);
    let listen = move || {
        let all = SigSet::from_iter(ALL);
        while let Ok(signal) = all.wait() {
            let action = match signal {
                Signal::SIGTSTP => SignalAction::Suspend,
                Signal::SIGCONT => SignalAction::Resume,
                Signal::SIGINT => SignalAction::Quit(130),
                Signal::SIGHUP => SignalAction::Quit(129),
                _ => SignalAction::Quit(143),
            };
            // A full channel already holds the same action, or the end.
            let _ = sender.try_send(action);
            if let SignalAction::Quit(code) = action {
                std::thread::sleep(QUIT_TIMEOUT);
                // The drawing thread waits for the terminal, which would block escape sequences as
                // well.
                restore_settings();
                std::process::exit(code.into());
            }
        }
    };
    std::thread::Builder::new()
        .name("signals".to_owned())
        .spawn(listen)
        .context("can't start the thread that waits for signals")?;
    Ok(actions)
}

/// Stops all processes of the shell's job, as the terminal does on Ctrl-Z outside of raw mode.
pub(super) fn stop_job() -> anyhow::Result<()> {
    signal::kill(Pid::from_raw(0), Signal::SIGTSTP).context("can't stop the processes of the job")
}

/// Stops the process until SIGCONT. The kernel ignores the stop in an orphaned process group.
pub(super) fn stop() -> anyhow::Result<()> {
    let stop = SigSet::from_iter([Signal::SIGTSTP]);
    let stopped = stop
        .thread_unblock()
        .and_then(|()| signal::raise(Signal::SIGTSTP));
    stop.thread_block()
        .and(stopped)
        .context("can't stop the process")
}
