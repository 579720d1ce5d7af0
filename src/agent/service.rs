//! What the service manager is told of the agent: ready, alive, and how it is.
//!
//! The sign of life is the owner's: it publishes the state after every reconcile, and without one for too long there is none.
//! A service manager that waits for it then starts the agent anew, which loses nothing.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use crate::host::notify::Notifier;
use crate::pin::Snapshot;

/// Tells the service manager until the agent stops.
pub(super) async fn tell(mut snapshot: watch::Receiver<Option<Arc<Snapshot>>>, reconcile: Duration) {
    let notifier = Notifier;
    let told = |result: std::io::Result<()>| {
        if let Err(error) = result {
            tracing::warn!("can't tell the service manager: {error}");
        }
    };
    let patience = notifier.watchdog();
    let mut timer = patience.map(|patience| {
        let mut timer = tokio::time::interval(patience / 3);
        timer.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        timer
    });
    let (mut seen, mut said) = (Instant::now(), None);
    loop {
        tokio::select! {
            changed = snapshot.changed() => match changed {
                Ok(()) => seen = Instant::now(),
                Err(_) => return,
            },
            () = tick(timer.as_mut()) => {
                if is_alive(seen.elapsed(), reconcile) {
                    told(notifier.alive());
                }
            }
        }
        let status = snapshot.borrow_and_update().as_deref().map(status);
        if let Some(status) = status.filter(|status| said.as_ref() != Some(status)) {
            told(if said.is_none() { notifier.ready(&status) } else { notifier.status(&status) });
            said = Some(status);
        }
    }
}

/// Waits for the next sign of life that is due; for ever where nobody waits for one.
async fn tick(timer: Option<&mut tokio::time::Interval>) {
    match timer {
        Some(timer) => drop(timer.tick().await),
        None => std::future::pending().await,
    }
}

/// Whether the owner is alive, by the time since it published: it looks at the node at least once in `reconcile`.
fn is_alive(since: Duration, reconcile: Duration) -> bool {
    since < reconcile.saturating_mul(2).saturating_add(Duration::from_secs(5))
}

fn status(snapshot: &Snapshot) -> String {
    let owned = snapshot.containers.iter().filter(|container| container.assigned.is_some()).count();
    let errors = match snapshot.errors.len() {
        0 => String::new(),
        1 => ", 1 error".to_owned(),
        errors => format!(", {errors} errors"),
    };
    format!("{owned} of {} containers with CPUs of their own{errors}", snapshot.containers.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_that_misses_two_looks_is_dead() {
        let seconds = Duration::from_secs;
        assert!(is_alive(seconds(0), seconds(10)) && is_alive(seconds(24), seconds(10)));
        assert!(!is_alive(seconds(25), seconds(10)));
        assert!(is_alive(seconds(6), seconds(1)) && !is_alive(seconds(7), seconds(1)));
        // No overflow, whatever the configuration says.
        assert!(is_alive(seconds(9), Duration::MAX));
    }
}
