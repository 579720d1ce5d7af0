//! The end of a demo, a bench or an experiment by a signal.

use anyhow::Context;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// The exit code of a command that SIGINT ended: 128 plus the signal's number.
pub(super) const INTERRUPTED: u8 = 130;

/// Cancels `stop` at Ctrl-C or SIGTERM. The caller aborts the task when the work is done.
pub(super) fn cancel_on_signal(stop: CancellationToken) -> anyhow::Result<JoinHandle<()>> {
    let mut terminate = signal(SignalKind::terminate()).context("can't listen for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("can't listen for Ctrl-C")?;
    Ok(tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        stop.cancel();
    }))
}
