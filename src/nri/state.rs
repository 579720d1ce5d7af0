//! [`ConnectionState`]: the state of the connection to the container runtime.

use std::time::Duration;

use tokio::sync::watch;

use super::event::RuntimeInfo;

/// Why there is no connection.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Disconnect {
    /// The first attempt is still to come.
    #[error("no connection attempt yet")]
    NotTried,
    /// The socket does not accept connections.
    #[error(
        "{socket}: {error}; does the container runtime run with NRI enabled, and is its socket mounted here?"
    )]
    Unreachable {
        socket: String,
        /// The error of the operating system.
        error: String,
    },
    /// The runtime refused the plugin.
    #[error("the container runtime refused the registration ({code}): {message}")]
    RegistrationRefused {
        /// The gRPC status code.
        code: i32,
        message: String,
    },
    /// The runtime did not register or configure the plugin in time.
    #[error("the container runtime did not finish the registration within {0:?}")]
    RegistrationTimeout(Duration),
    /// The runtime closed the connection.
    #[error("the container runtime closed the connection")]
    Closed,
    /// The runtime is shutting down, and said so.
    #[error("the container runtime is shutting down")]
    Shutdown,
    /// Reading from or writing to the socket failed.
    #[error("the connection to the container runtime broke: {0}")]
    Broken(String),
    /// The runtime sent an oversized frame or an unreadable response.
    #[error("the container runtime sent invalid data: {0}")]
    InvalidResponse(String),
    /// The runtime does not read the plugin's messages.
    #[error("the container runtime has read nothing for {0:?}")]
    Stalled(Duration),
    /// The plugin refused the list of pods and containers.
    #[error("the plugin refused the container runtime's pods and containers: {0}")]
    SynchronizeRefused(String),
    /// The agent stops.
    #[error("stopped")]
    Stopped,
}

/// The state of the connection to the container runtime.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConnectionState {
    Away(Disconnect),
    /// The socket is connected; the registration is in progress.
    Connecting,
    /// Registered and configured. The list of existing pods and containers is still to come, and no
    /// event comes before it.
    Registered(RuntimeInfo),
    /// The plugin knows the existing pods and containers, and receives all events.
    Synchronized(RuntimeInfo),
}

// === impl ConnectionState ===

impl Default for ConnectionState {
    fn default() -> Self {
        Self::Away(Disconnect::NotTried)
    }
}

impl ConnectionState {
    /// The state's name, for metrics.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Away(_) => "away",
            Self::Connecting => "connecting",
            Self::Registered(_) => "registered",
            Self::Synchronized(_) => "synchronized",
        }
    }

    /// The runtime's description, known after the registration.
    pub fn runtime(&self) -> Option<&RuntimeInfo> {
        match self {
            Self::Away(_) | Self::Connecting => None,
            Self::Registered(runtime) | Self::Synchronized(runtime) => Some(runtime),
        }
    }
}

/// Publishes and logs a state, unless it is the current one.
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
                    tracing::info!("NRI: synchronized with {runtime}");
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
    fn an_unchanged_state_is_not_published() {
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
