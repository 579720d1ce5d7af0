//! [`Updater`]: changes of containers that nobody asked for, from outside of the runtime's calls.

use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};

use super::adjust::ContainerUpdate;
use super::ttrpc::Status;

tokio::task_local! {
    /// Set while a handler of the plugin runs.
    static INSIDE_A_CALL: ();
}

/// How many updates may wait for the connection to take them.
const WAITING: usize = 16;

/// Why an update came to nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UpdateError {
    /// Asked from inside a call of the runtime, which waits for that call's answer.
    #[error(
        "a runtime can't be called while it waits for an answer: put the updates into the answer"
    )]
    InsideCall,
    /// There is no connection, or it went away before the answer came: whether it was done is not known.
    #[error("no container runtime is connected")]
    Away,
    /// No answer came in time: whether it was done is not known.
    #[error("the container runtime gave no answer within {0:?}")]
    Timeout(Duration),
    /// The runtime said no.
    #[error("the container runtime answered {code}: {message}")]
    Refused {
        /// gRPC's code.
        code: i32,
        /// The reason.
        message: String,
    },
    /// The answer can't be read.
    #[error("the container runtime's answer makes no sense: {0}")]
    Nonsense(String),
    /// More than a message can hold.
    #[error("these are more updates than a message can hold: send them in parts")]
    TooMany,
}

// === impl UpdateError ===

impl From<Status> for UpdateError {
    fn from(Status { code, message }: Status) -> Self {
        Self::Refused { code, message }
    }
}

/// Updates to send, and where the answer goes: the ids of containers that could not be changed.
pub(super) struct Ask {
    pub(super) updates: Vec<ContainerUpdate>,
    pub(super) limit: Duration,
    pub(super) reply: oneshot::Sender<Result<Vec<String>, UpdateError>>,
}

/// The current connection's end, if there is one.
type Link = Option<mpsc::Sender<Ask>>;

/// Asks the runtime for changes of containers. Cheap to clone.
///
/// Not for handlers: [`Plugin`](super::Plugin) says why.
#[derive(Debug, Clone)]
pub struct Updater {
    link: watch::Receiver<Link>,
    limit: Duration,
}

/// Where [`serve`](super::serve()) takes updates from.
#[derive(Debug)]
pub struct Updates {
    link: watch::Sender<Link>,
}

/// An updater, and what [`serve`](super::serve()) takes its updates from. An update that is not answered within `limit` has
/// failed.
pub fn updates(limit: Duration) -> (Updater, Updates) {
    let (sender, link) = watch::channel(None);
    (Updater { link, limit }, Updates { link: sender })
}

// === impl Updater ===

impl Updater {
    /// Asks for changes; the answer is the ids of the containers that the runtime could not change.
    ///
    /// A container that does not exist is not among them, at least with containerd. And what runc could not do, containerd
    /// may only have logged: read back what is in force.
    ///
    /// # Errors
    /// Any [`UpdateError`].
    pub async fn update(&self, updates: Vec<ContainerUpdate>) -> Result<Vec<String>, UpdateError> {
        if INSIDE_A_CALL.try_with(|()| ()).is_ok() {
            return Err(UpdateError::InsideCall);
        }
        let link = self.link.borrow().clone().ok_or(UpdateError::Away)?;
        let (reply, answer) = oneshot::channel();
        let asked = tokio::time::timeout(self.limit, async {
            let ask = Ask {
                updates,
                limit: self.limit,
                reply,
            };
            link.send(ask).await.map_err(|_| UpdateError::Away)?;
            answer.await.unwrap_or(Err(UpdateError::Away))
        });
        asked.await.unwrap_or(Err(UpdateError::Timeout(self.limit)))
    }
}

// === impl Updates ===

impl Updates {
    /// Opens the way for a connection; it is closed when the answer is dropped.
    pub(super) fn open(&self) -> Open<'_> {
        let (sender, asked) = mpsc::channel(WAITING);
        self.link.send_replace(Some(sender));
        Open {
            asked,
            updates: self,
        }
    }
}

/// The way to one connection.
pub(super) struct Open<'a> {
    pub(super) asked: mpsc::Receiver<Ask>,
    updates: &'a Updates,
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.updates.link.send_replace(None);
    }
}

/// Runs a handler so that [`Updater`] knows it is one.
pub(super) async fn inside_a_call<T>(handler: impl Future<Output = T>) -> T {
    INSIDE_A_CALL.scope((), handler).await
}
