//! [`serve()`]: connects to the runtime, for ever, and says how it stands.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::UnixStream;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::event::Runtime;
use super::link::Link;
use super::plugin::Plugin;

/// Where runtimes listen.
pub const SOCKET: &str = "/var/run/nri/nri.sock";

/// How the plugin presents itself, and how patient it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The runtime's socket.
    pub socket: PathBuf,
    /// The plugin's name: letters, digits, `-`, `_` and `.`.
    pub name: String,
    /// Its place among the runtime's plugins, 0 to 99: those with a lower one are asked first.
    pub index: u8,
    /// How long the runtime may take for the registration, and then for the first question.
    pub registration: Duration,
    /// How long a runtime waits for an answer if it does not tell. A handler has three quarters of it.
    pub request: Duration,
    /// The least and the most time between two attempts; it doubles from one to the other.
    pub backoff: (Duration, Duration),
}

/// Settings that no runtime would accept.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    /// A name that is none.
    #[error("{0:?} is no name for an NRI plugin: use letters, digits, - _ and ., at least one")]
    Name(String),
    /// An index with more than two digits.
    #[error("{0} is no index for an NRI plugin: use 0 to 99")]
    Index(u8),
}

// === impl Settings ===

impl Settings {
    /// A plugin of this name and place, at the usual socket, with NRI's usual times.
    ///
    /// # Errors
    /// The name or the index is one that runtimes refuse.
    pub fn new(name: impl Into<String>, index: u8) -> Result<Self, SettingsError> {
        let name = name.into();
        let letter = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
        if name.is_empty() || !name.chars().all(letter) {
            return Err(SettingsError::Name(name));
        }
        if index > 99 {
            return Err(SettingsError::Index(index));
        }
        Ok(Self {
            socket: PathBuf::from(SOCKET),
            name,
            index,
            registration: Duration::from_secs(5),
            request: Duration::from_secs(2),
            backoff: (Duration::from_millis(250), Duration::from_secs(5)),
        })
    }
}

/// Why there is no runtime.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Lost {
    /// Nobody has tried yet.
    #[error("not tried yet")]
    NotTried,
    /// Nobody listens at the socket.
    #[error(
        "{socket}: {error}; does the container runtime run with NRI enabled, and is its socket mounted here?"
    )]
    Unreachable {
        /// The socket.
        socket: String,
        /// The system's words.
        error: String,
    },
    /// The runtime does not want the plugin.
    #[error("the container runtime refused the registration ({code}): {message}")]
    Refused {
        /// gRPC's code.
        code: i32,
        /// The reason.
        message: String,
    },
    /// The runtime did not register or configure the plugin in time.
    #[error("the container runtime did not finish the registration within {0:?}")]
    Registration(Duration),
    /// The runtime is gone, or wants nothing more of the plugin.
    #[error("the container runtime closed the connection")]
    Closed,
    /// The runtime is going down, and said so.
    #[error("the container runtime is shutting down")]
    Shutdown,
    /// The connection broke.
    #[error("the connection to the container runtime broke: {0}")]
    Broken(String),
    /// What the runtime sends makes no sense.
    #[error("the container runtime sends what makes no sense: {0}")]
    Nonsense(String),
    /// The runtime reads nothing any more.
    #[error("the container runtime has read nothing for {0:?}")]
    Stalled(Duration),
    /// The plugin did not accept what exists.
    #[error("what the container runtime told of was not accepted: {0}")]
    Synchronize(String),
    /// The plugin was told to stop.
    #[error("stopped")]
    Stopped,
}

/// How it stands with the runtime.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// There is none.
    Away(Lost),
    /// Somebody listens, and the registration is on its way.
    Connecting,
    /// Registered and configured; what exists is still to be told. No container is told of yet.
    Registered(Runtime),
    /// The plugin knows what exists, and is asked about all that changes.
    Synchronized(Runtime),
}

// === impl State ===

impl Default for State {
    fn default() -> Self {
        Self::Away(Lost::NotTried)
    }
}

impl State {
    /// Its name, for metrics.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Away(_) => "away",
            Self::Connecting => "connecting",
            Self::Registered(_) => "registered",
            Self::Synchronized(_) => "synchronized",
        }
    }

    /// The runtime, once it has said who it is.
    pub fn runtime(&self) -> Option<&Runtime> {
        match self {
            Self::Away(_) | Self::Connecting => None,
            Self::Registered(runtime) | Self::Synchronized(runtime) => Some(runtime),
        }
    }
}

/// Serves the runtime until it is told to stop; connects again, with growing waits, whenever there is no runtime.
///
/// Told to stop, it answers what it was asked before, and closes the connection. The runtime goes on without it.
pub async fn serve<P: Plugin>(
    settings: Settings,
    plugin: Arc<P>,
    state: watch::Sender<State>,
    stop: CancellationToken,
) {
    let (least, most) = settings.backoff;
    let mut wait = least;
    loop {
        let lost = tokio::select! {
            // Neither arm loses anything: a connection that comes about too late is closed.
            () = stop.cancelled() => Lost::Stopped,
            connected = UnixStream::connect(&settings.socket) => match connected {
                Ok(stream) => {
                    tell(&state, State::Connecting);
                    let link = Link::new(&settings, Arc::clone(&plugin), &state, stop.clone());
                    link.run(stream).await
                }
                Err(error) => Lost::Unreachable {
                    socket: settings.socket.display().to_string(),
                    error: error.to_string(),
                },
            },
        };
        // A runtime that came as far as this is worth coming back to at once.
        if matches!(*state.borrow(), State::Synchronized(_)) {
            wait = least;
        }
        let over = lost == Lost::Stopped;
        tell(&state, State::Away(lost));
        if over {
            return;
        }
        tokio::select! {
            // It is only slept here.
            () = stop.cancelled() => return tell(&state, State::Away(Lost::Stopped)),
            () = tokio::time::sleep(wait) => wait = (wait * 2).min(most),
        }
    }
}

/// Publishes a state, and logs it, unless it is what it was.
pub(super) fn tell(state: &watch::Sender<State>, new: State) {
    state.send_if_modified(|old| {
        let differs = *old != new;
        if differs {
            match &new {
                State::Away(Lost::Stopped) | State::Connecting => {
                    tracing::debug!("NRI: {}", new.name());
                }
                State::Away(lost) => tracing::warn!("NRI: {lost}"),
                State::Registered(runtime) => tracing::info!("NRI: registered with {runtime}"),
                State::Synchronized(runtime) => tracing::info!("NRI: in step with {runtime}"),
            }
            *old = new;
        }
        differs
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_places_are_those_that_runtimes_take() {
        assert!(Settings::new("pinfold", 0).is_ok() && Settings::new("a-b_c.9", 99).is_ok());
        for name in ["", "a b", "a/b", "é"] {
            assert_eq!(
                Settings::new(name, 1),
                Err(SettingsError::Name(name.to_owned()))
            );
        }
        assert_eq!(
            Settings::new("pinfold", 100),
            Err(SettingsError::Index(100))
        );
    }

    #[test]
    fn a_state_is_told_once() {
        let (state, mut told) = watch::channel(State::default());
        told.mark_unchanged();
        tell(&state, State::Away(Lost::NotTried));
        assert!(!told.has_changed().unwrap());
        tell(&state, State::Connecting);
        assert!(told.has_changed().unwrap());
        assert_eq!(
            (state.borrow().name(), state.borrow().runtime()),
            ("connecting", None)
        );
    }
}
