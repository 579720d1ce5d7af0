//! [`Guard`]: a watch of one claim, so that a claim that somebody deletes is noticed at once.

use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use super::{Brief, Claims, Owner};
use crate::cluster::{Backoff, Failure, Jitter};

/// A watch that ends sooner counts as failed.
const SHORT_LIVED: Duration = Duration::from_secs(2);

/// What the watch says of the claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// No watch stands, so nothing is known.
    Unknown,
    /// The node holds the claim.
    Ours,
    /// The claim is gone, or another node holds it.
    Lost,
}

/// The watch of a claim; dropping it ends the watch.
#[derive(Debug)]
pub struct Guard {
    /// The claim's name.
    pub name: String,
    owner: Owner,
    standing: watch::Receiver<Standing>,
    _task: AbortOnDropHandle<()>,
}

/// How a claim is watched.
#[derive(Debug, Clone)]
pub struct WatchSettings {
    /// How long the server is asked to keep one watch, in seconds.
    pub seconds: u32,
    /// How long a watch may be silent.
    pub idle: Duration,
    /// The shortest and the longest wait after a failure.
    pub backoff: (Duration, Duration),
}

/// A line of the watch.
#[derive(Deserialize)]
struct Line {
    r#type: String,
    object: serde_json::Value,
}

// === impl Guard ===

impl Guard {
    /// Watches the claim of this name.
    pub fn new(claims: Arc<Claims>, name: &str, settings: WatchSettings) -> Self {
        let owner = claims.owner().clone();
        let (said, standing) = watch::channel(Standing::Unknown);
        let watcher = Watcher {
            claims,
            name: name.to_owned(),
            settings,
            said,
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

    /// Whose claim is watched.
    pub fn owner(&self) -> &Owner {
        &self.owner
    }

    /// What is known now.
    pub fn standing(&self) -> Standing {
        *self.standing.borrow()
    }

    /// Waits until the claim is found lost. Cancel safe.
    pub async fn lost(&mut self) {
        loop {
            if self.standing.changed().await.is_err() {
                return std::future::pending().await;
            }
            if *self.standing.borrow_and_update() == Standing::Lost {
                return;
            }
        }
    }
}

struct Watcher {
    claims: Arc<Claims>,
    name: String,
    settings: WatchSettings,
    said: watch::Sender<Standing>,
    /// The version up to which every change was seen.
    version: Option<String>,
}

// === impl Watcher ===

impl Watcher {
    async fn run(mut self) {
        let mut backoff = Backoff::new(self.settings.backoff.0, self.settings.backoff.1);
        let mut jitter = Jitter::default();
        loop {
            let began = Instant::now();
            let ended = self.turn().await;
            let lasted = began.elapsed() >= SHORT_LIVED;
            if lasted {
                backoff.reset();
            }
            let pause = match ended {
                Ok(()) if lasted => jitter.spread(self.settings.backoff.0),
                Ok(()) => backoff.wait(jitter.roll(), None),
                Err(failure) => {
                    tracing::debug!("the watch of claim {} broke: {failure}", self.name);
                    self.said.send_replace(Standing::Unknown);
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

    /// One connection's life.
    async fn turn(&mut self) -> Result<(), Failure> {
        let version = self.version.clone();
        let from = version.as_deref().unwrap_or("0");
        let mut lines = self
            .claims
            .watch(&self.name, from, self.settings.seconds)
            .await?;
        if version.is_none() || *self.said.borrow() == Standing::Unknown {
            // The watch may begin with a stale state. The GET is current, and the watch reports all later changes.
            let held = !self.claims.confirm([self.name.clone()]).await?.is_empty();
            self.say(held);
        }
        while let Some(line) = lines.next(self.settings.idle).await? {
            self.line(&line)?;
        }
        Ok(())
    }

    /// Takes one line.
    fn line(&mut self, line: &[u8]) -> Result<(), Failure> {
        let nonsense = |error: serde_json::Error| {
            Failure::InvalidResponse(format!("a line of the watch: {error}"))
        };
        let line: Line = serde_json::from_slice(line).map_err(nonsense)?;
        let version = line
            .object
            .pointer("/metadata/resourceVersion")
            .and_then(|version| version.as_str());
        let version = version.map(str::to_owned);
        match line.r#type.as_str() {
            "BOOKMARK" => {}
            "DELETED" => self.say(false),
            "ADDED" | "MODIFIED" => {
                let lease: Brief = serde_json::from_value(line.object).map_err(nonsense)?;
                let uid = &self.claims.owner().uid;
                self.say(lease.metadata.owners.iter().any(|owner| owner.uid == *uid));
            }
            _ => {
                let status = serde_json::from_value(line.object).map_err(nonsense)?;
                return Err(Failure::refused(status));
            }
        }
        if version.is_some() {
            self.version = version;
        }
        Ok(())
    }

    fn say(&self, held: bool) {
        let standing = if held { Standing::Ours } else { Standing::Lost };
        self.said
            .send_if_modified(|said| std::mem::replace(said, standing) != standing);
    }
}
