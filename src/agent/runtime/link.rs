//! [`RuntimeLink`]: the state of the connection to the container runtime, for `/status`, `/readyz` and `/metrics`.

use std::path::{Path, PathBuf};

use serde::Serialize;
use tokio::sync::watch;

use crate::metrics::RuntimeNumbers;
use crate::nri::ConnectionState;

/// The reading end of the connection's state.
#[derive(Debug, Clone)]
pub(in crate::agent) struct RuntimeLink {
    state: watch::Receiver<ConnectionState>,
    socket: PathBuf,
    /// Whether the configuration requires NRI.
    expected: bool,
}

/// The runtime as `/status` shows it.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::agent) struct RuntimeLinkState {
    socket: String,
    /// `away`, `connecting`, `registered` or `synchronized`.
    state: &'static str,
    /// The runtime's name, once the runtime has registered the plugin.
    name: Option<String>,
    version: Option<String>,
    /// The reason why the runtime is away.
    problem: Option<String>,
}

// === impl Link ===

impl RuntimeLink {
    pub(super) fn new(
        state: watch::Receiver<ConnectionState>,
        socket: &Path,
        expected: bool,
    ) -> Self {
        Self {
            state,
            socket: socket.to_owned(),
            expected,
        }
    }

    /// The connection's current problem. Containers are still pinned, once their status is known.
    pub(in crate::agent) fn problem(&self) -> Option<String> {
        match &*self.state.borrow() {
            // A missing NRI socket is a problem only if the configuration requires NRI.
            ConnectionState::Away(why) if self.expected || self.socket.exists() => {
                Some(problem(why))
            }
            ConnectionState::Connecting | ConnectionState::Registered(_) if self.expected => {
                Some(problem(&"it has not reported its containers yet"))
            }
            _ => None,
        }
    }

    /// The runtime as `/status` shows it.
    pub(in crate::agent) fn state(&self) -> RuntimeLinkState {
        let state = self.state.borrow();
        let runtime = state.runtime();
        RuntimeLinkState {
            socket: self.socket.display().to_string(),
            state: state.name(),
            name: runtime.map(|runtime| runtime.name.clone()),
            version: runtime.map(|runtime| runtime.version.clone()),
            problem: match &*state {
                ConnectionState::Away(why) => Some(why.to_string()),
                _ => None,
            },
        }
    }

    /// The connection's state for `/metrics`.
    pub(in crate::agent) fn numbers(&self) -> RuntimeNumbers {
        let state = self.state.borrow();
        let runtime = state.runtime();
        RuntimeNumbers {
            synchronized: matches!(&*state, ConnectionState::Synchronized(_)),
            name: runtime
                .map(|runtime| runtime.name.clone())
                .unwrap_or_default(),
            version: runtime
                .map(|runtime| runtime.version.clone())
                .unwrap_or_default(),
        }
    }
}

fn problem(why: &impl std::fmt::Display) -> String {
    format!(
        "no container runtime is synchronized, so containers are pinned after their start: {why}"
    )
}
