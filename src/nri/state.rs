//! [`ConnectionState`]: the connection to the container runtime, as the rest of the agent sees it.

use std::time::Duration;

use tokio::sync::watch;

use super::event::RuntimeInfo;

/// Why there is no runtime.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Disconnect {
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
    RegistrationRefused {
        /// gRPC's code.
        code: i32,
        /// The reason.
        message: String,
    },
    /// The runtime did not register or configure the plugin in time.
    #[error("the container runtime did not finish the registration within {0:?}")]
    RegistrationTimeout(Duration),
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
    InvalidResponse(String),
    /// The runtime reads nothing any more.
    #[error("the container runtime has read nothing for {0:?}")]
    Stalled(Duration),
    /// The plugin did not accept what exists.
    #[error("what the container runtime told of was not accepted: {0}")]
    SynchronizeRefused(String),
    /// The plugin was told to stop.
    #[error("stopped")]
    Stopped,
}

/// How it stands with the runtime.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConnectionState {
    /// There is none.
    Away(Disconnect),
    /// Somebody listens, and the registration is on its way.
    Connecting,
    /// Registered and configured; what exists is still to be told. No container is told of yet.
    Registered(RuntimeInfo),
    /// The plugin knows what exists, and is asked about all that changes.
    Synchronized(RuntimeInfo),
}

// === impl ConnectionState ===

impl Default for ConnectionState {
    fn default() -> Self {
        Self::Away(Disconnect::NotTried)
    }
}

impl ConnectionState {
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
    pub fn runtime(&self) -> Option<&RuntimeInfo> {
        match self {
            Self::Away(_) | Self::Connecting => None,
            Self::Registered(runtime) | Self::Synchronized(runtime) => Some(runtime),
        }
    }
}

/// Publishes a state, and logs it, unless it is what it was.
pub(super) fn publish(state: &watch::Sender<ConnectionState>, new: ConnectionState) {
    state.send_if_modified(|old| {
        let differs = *old != new;
        if differs {
            match &new {
                ConnectionState::Away(Disconnect::Stopped) | ConnectionState::Connecting => {
                    tracing::debug!("NRI: {}", new.name());
                }
                ConnectionState::Away(disconnect) => tracing::warn!("NRI: {disconnect}"),
                ConnectionState::Registered(runtime) => {
                    tracing::info!("NRI: registered with {runtime}");
                }
                ConnectionState::Synchronized(runtime) => {
                    tracing::info!("NRI: in step with {runtime}");
                }
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
    fn a_state_is_told_once() {
        let (state, mut receiver) = watch::channel(ConnectionState::default());
        receiver.mark_unchanged();
        publish(&state, ConnectionState::Away(Disconnect::NotTried));
        assert!(!receiver.has_changed().unwrap());
        publish(&state, ConnectionState::Connecting);
        assert!(receiver.has_changed().unwrap());
        assert_eq!(
            (state.borrow().name(), state.borrow().runtime()),
            ("connecting", None)
        );
    }
}
