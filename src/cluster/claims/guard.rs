//! [`ClaimGuard`]: watches a claim, to notice its deletion at once.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use super::Claims;
use super::lease::{BriefLease, ClaimOwner};
use crate::cluster::watch::{Change, ChangeKind, Identity};
use crate::cluster::{Backoff, Failure, Jitter};

/// A watch with a shorter lifetime counts as failed.
const SHORT_LIVED: Duration = Duration::from_secs(2);

/// The state of the claim, as the watch reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClaimState {
    /// The watch is not open, so the state is unknown.
    Unknown,
    /// The node holds the claim.
    Ours,
    /// The claim was deleted, or another node holds the slot.
    Lost,
}

/// The watch of a claim. Dropping the guard ends the watch.
#[derive(Debug)]
pub struct ClaimGuard {
    pub name: String,
    owner: ClaimOwner,
    standing: watch::Receiver<ClaimState>,
    _task: AbortOnDropHandle<()>,
}

#[derive(Debug, Clone)]
pub struct WatchSettings {
    /// The requested duration of a watch, in seconds.
    pub seconds: u32,
    /// The longest time without data before the watch is closed.
    pub idle: Duration,
    /// The shortest and the longest wait after a failure.
    pub backoff: (Duration, Duration),
}

// === impl ClaimGuard ===

impl ClaimGuard {
    /// Starts to watch the claim with the given name.
    pub fn new(claims: Arc<Claims>, name: &str, settings: WatchSettings) -> Self {
        let owner = claims.owner().clone();
        let (sender, standing) = watch::channel(ClaimState::Unknown);
        let watcher = Watcher {
            claims,
            name: name.to_owned(),
            settings,
            sender,
            version: None,
        };
        let task = AbortOnDropHandle::new(tokio::spawn(watcher.run()));
        Self {
            name: name.to_owned(),
            owner,
            standing,
            _task: task,
        }
    }

    /// The node whose claim is watched.
    pub fn owner(&self) -> &ClaimOwner {
        &self.owner
    }

    /// The current state of the claim.
    pub fn standing(&self) -> ClaimState {
        *self.standing.borrow()
    }

    /// Waits until the claim is lost. Cancel safe.
    pub async fn lost(&mut self) {
        loop {
            if self.standing.changed().await.is_err() {
                return std::future::pending().await;
            }
            if *self.standing.borrow_and_update() == ClaimState::Lost {
                return;
            }
        }
    }
}

/// The task of a guard.
///
/// It is no informer, because a collection of one object needs no list: a GET after the start of
/// the watch confirms the claim, and the watch can begin from the server's cache. After a failure,
/// the state of the claim is unknown.
struct Watcher {
    claims: Arc<Claims>,
    name: String,
    settings: WatchSettings,
    sender: watch::Sender<ClaimState>,
    /// The resourceVersion of the last received line. `None` if the next watch must start from the server's cache.
    version: Option<String>,
}

// === impl Watcher ===

impl Watcher {
    async fn run(mut self) {
        let mut backoff = Backoff::new(self.settings.backoff.0, self.settings.backoff.1);
        let mut jitter = Jitter::default();
        loop {
            let mut opened = None;
            let ended = self.watch_once(&mut opened).await;
            let lasted = opened.is_some_and(|opened: Instant| opened.elapsed() >= SHORT_LIVED);
            if lasted {
                backoff.reset();
            }
            let pause = match ended {
                Ok(()) if lasted => jitter.spread(self.settings.backoff.0),
                Ok(()) => backoff.wait(jitter.roll(), None),
                Err(failure) => {
                    tracing::debug!("the watch of claim {} broke: {failure}", self.name);
                    self.sender.send_replace(ClaimState::Unknown);
                    if failure.status().is_some() || matches!(failure, Failure::InvalidResponse(_))
                    {
                        self.version = None;
                    }
                    backoff.wait(jitter.roll(), failure.retry_after())
                }
            };
            tokio::time::sleep(pause).await;
        }
    }

    /// Opens a watch and reads its lines until the end. `opened` gets the time from which its
    /// lifetime counts, so that the wait for a slow server's answers is no part of it.
    async fn watch_once(&mut self, opened: &mut Option<Instant>) -> Result<(), Failure> {
        let version = self.version.clone();
        let from = version.as_deref().unwrap_or("0");
        let mut changes = self
            .claims
            .watch(&self.name, from, self.settings.seconds)
            .await?;
        if version.is_none() || *self.sender.borrow() == ClaimState::Unknown {
            // The watch may begin with a stale state, but the GET is current, and the watch reports
            // all later changes.
            let held = !self.claims.confirm([self.name.clone()]).await?.is_empty();
            self.publish(held);
        }
        *opened = Some(Instant::now());
        while let Some(change) = changes.next(self.settings.idle).await? {
            self.apply(&change)?;
        }
        Ok(())
    }

    /// Applies a change of the claim.
    fn apply(&mut self, change: &Change) -> Result<(), Failure> {
        match change.kind {
            ChangeKind::Bookmark => {}
            ChangeKind::Deleted => self.publish(false),
            ChangeKind::Put => {
                let lease: BriefLease =
                    serde_json::from_str(change.object.get()).map_err(Failure::invalid)?;
                let uid = &self.claims.owner().uid;
                self.publish(lease.metadata.owners.iter().any(|owner| owner.uid == *uid));
            }
        }
        if let Some(version) = Identity::of(&change.object).take_version() {
            self.version = Some(version);
        }
        Ok(())
    }

    fn publish(&self, held: bool) {
        let standing = if held {
            ClaimState::Ours
        } else {
            ClaimState::Lost
        };
        self.sender
            .send_if_modified(|current| std::mem::replace(current, standing) != standing);
    }
}
