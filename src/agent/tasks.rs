//! [`Tasks`]: the agent's concurrent tasks.

use std::time::Duration;

use anyhow::Context;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// The agent's tasks. None of them ends on its own, so one that does has failed.
#[derive(Debug)]
pub(super) struct Tasks {
    set: JoinSet<anyhow::Result<()>>,
    stop: CancellationToken,
}

// === impl Tasks ===

impl Tasks {
    /// `stop` ends the tasks of [`Tasks::spawn`].
    pub(super) fn new(stop: CancellationToken) -> Self {
        Self {
            set: JoinSet::new(),
            stop,
        }
    }

    /// Starts a task that is dropped when the agent stops.
    pub(super) fn spawn(
        &mut self,
        task: impl Future<Output = anyhow::Result<()>> + Send + 'static,
    ) {
        let stop = self.stop.clone();
        self.set.spawn(async move {
            tokio::select! {
                () = stop.cancelled() => Ok(()),
                ended = task => ended,
            }
        });
    }

    /// Starts a task that watches the stop token itself, and finishes its work in hand.
    pub(super) fn spawn_to_its_end(
        &mut self,
        task: impl Future<Output = anyhow::Result<()>> + Send + 'static,
    ) {
        self.set.spawn(task);
    }

    /// Waits until a task ends, and returns an error, because none should end on its own.
    pub(super) async fn ended(&mut self) -> anyhow::Result<()> {
        let joined = self.set.join_next().await;
        verdict(joined)
    }

    /// Returns an error if a task has ended on its own.
    pub(super) fn check(&mut self) -> anyhow::Result<()> {
        match self.set.try_join_next() {
            None => Ok(()),
            joined => verdict(joined),
        }
    }

    /// Stops all tasks. Work in hand gets at most the time `grace`.
    pub(super) async fn stop(&mut self, grace: Duration) {
        self.stop.cancel();
        let grace = tokio::time::sleep(grace);
        tokio::pin!(grace);
        loop {
            tokio::select! {
                () = &mut grace => break,
                joined = self.set.join_next() => if joined.is_none() { break },
            }
        }
        self.set.shutdown().await;
    }
}

fn verdict(
    joined: Option<Result<anyhow::Result<()>, tokio::task::JoinError>>,
) -> anyhow::Result<()> {
    match joined {
        Some(Ok(Ok(()))) => anyhow::bail!("a task of the agent ended unexpectedly"),
        Some(Ok(Err(error))) => Err(error),
        Some(Err(error)) => Err(error).context("a task of the agent failed"),
        None => anyhow::bail!("the agent has no tasks"),
    }
}
