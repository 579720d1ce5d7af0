//! Messages to the service manager: ready, alive and status.
//!
//! While the reconciler's [`Heartbeat`] is on time, the service manager's watchdog gets keep-alive
//! messages. If they stop, the service manager restarts the agent, and the assignments stay.

use std::sync::Arc;
use tokio::sync::watch;

use super::heartbeat::{Health, Heartbeat};
use crate::host::notify;
use crate::pin::Snapshot;
use crate::text::counted;

pub(super) async fn notify(
    mut snapshot: watch::Receiver<Option<Arc<Snapshot>>>,
    heartbeat: Heartbeat,
) {
    let mut problem = None;
    let mut log_failure = |result: std::io::Result<()>| {
        let error = result.err().map(|error| error.to_string());
        if let Some(error) = error.as_ref().filter(|_| problem != error) {
            tracing::warn!("can't send a message to the service manager: {error}");
        }
        problem = error;
    };
    let watchdog_timeout = notify::watchdog();
    let mut timer = watchdog_timeout.map(|watchdog_timeout| {
        let mut timer = tokio::time::interval(watchdog_timeout / 3);
        timer.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        timer
    });
    let mut last_status = None;
    loop {
        tokio::select! {
            changed = snapshot.changed() => if changed.is_err() {
                return;
            },
            // Before the first turn, the service manager waits for `ready`, and applies its start
            // timeout.
            () = tick(timer.as_mut()) => match heartbeat.health() {
                Health::Alive | Health::Starting(_) => log_failure(notify::alive()),
                Health::Stuck(reason) => tracing::error!("the agent does not notify systemd's watchdog: {reason}"),
            }
        }
        let status = snapshot.borrow_and_update().as_deref().map(status);
        if let Some(status) = status.filter(|status| last_status.as_ref() != Some(status)) {
            log_failure(if last_status.is_none() {
                notify::ready(&status)
            } else {
                notify::status(&status)
            });
            last_status = Some(status);
        }
    }
}

/// Waits until the next keep-alive message is due. Without a watchdog, the wait never ends.
async fn tick(timer: Option<&mut tokio::time::Interval>) {
    match timer {
        Some(timer) => drop(timer.tick().await),
        None => std::future::pending().await,
    }
}

fn status(snapshot: &Snapshot) -> String {
    let owned = snapshot
        .containers
        .iter()
        .filter(|container| container.assigned.is_some())
        .count();
    let errors = match snapshot.errors.len() {
        0 => String::new(),
        errors => format!(", {}", counted(errors, "error")),
    };
    format!(
        "{owned} of {} with exclusive CPUs{errors}",
        counted(snapshot.containers.len(), "container")
    )
}
