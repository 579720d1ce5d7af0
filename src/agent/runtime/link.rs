//! [`RuntimeLink`]: the state of the connection to the container runtime, for `/status`, `/readyz` and `/metrics`.

use std::path::{Path, PathBuf};

use serde::Serialize;
use tokio::sync::watch;

use crate::nri::{ConnectionState, Disconnect};

/// The reading end of the connection's state.
#[derive(Debug, Clone)]
pub(in crate::agent) struct RuntimeLink {
    state: watch::Receiver<ConnectionState>,
    socket: PathBuf,
    /// Whether the configuration requires NRI.
    expected: bool,
    /// Whether the agent tries to connect.
    used: bool,
}

/// The runtime as `/status` shows it.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::agent) struct RuntimeLinkState {
    socket: String,
    /// `away`, `connecting`, `registered` or `synchronized`.
    state: &'static str,
    /// Known once the runtime has registered the plugin.
    name: Option<String>,
    version: Option<String>,
    /// Why containers start without Pinfold.
    problem: Option<String>,
}

// === impl RuntimeLink ===

impl RuntimeLink {
    pub(in crate::agent) fn new(
        state: watch::Receiver<ConnectionState>,
        socket: &Path,
        expected: bool,
    ) -> Self {
        Self {
            state,
            socket: socket.to_owned(),
            expected,
            used: true,
        }
    }

    /// The link of an agent that has not found NRI at its start, although the configuration permits
    /// it.
    pub(in crate::agent) fn unused(socket: &Path) -> Self {
        // The state never changes, so no sender is necessary.
        let (_, state) = watch::channel(ConnectionState::default());
        Self {
            used: false,
            ..Self::new(state, socket, true)
        }
    }

    /// The state of a connection that the agent tries to make; `None` where it uses no NRI.
    pub(in crate::agent) fn used(&self) -> Option<watch::Receiver<ConnectionState>> {
        self.used.then(|| self.state.clone())
    }

    /// The current problem. Containers are pinned nevertheless, once their status is known.
    pub(in crate::agent) fn problem(&self) -> Option<String> {
        match &*self.state.borrow() {
            ConnectionState::Away(Disconnect::NotTried) if !self.expected => None,
            ConnectionState::Away(_) if !self.socket.exists() => Some(self.switched_off()),
            ConnectionState::Away(why) => Some(problem(why)),
            ConnectionState::Connecting | ConnectionState::Registered(_) if self.expected => {
                Some(problem(&"it has not reported its containers yet"))
            }
            _ => None,
        }
    }

    /// Why containers may still be created without Pinfold, although that will end; `None` where NRI is off as well, for good.
    pub(in crate::agent) fn awaited(&self) -> Option<String> {
        let state = self.used.then(|| self.state.borrow())?;
        match &*state {
            ConnectionState::Synchronized(_) => None,
            ConnectionState::Away(_) if !self.expected && !self.socket.exists() => None,
            ConnectionState::Away(why) => {
                Some(format!("no container runtime is synchronized: {why}"))
            }
            ConnectionState::Connecting | ConnectionState::Registered(_) => {
                Some("the container runtime has not reported its containers yet".to_owned())
            }
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
            problem: self.problem(),
        }
    }

    /// Whoever installs Pinfold for its thread counts, and for CPUs from the first instruction on,
    /// has to know that neither works. So a missing socket counts as a problem with `auto`, too.
    fn switched_off(&self) -> String {
        format!(
            "NRI is off: {} does not exist, so containers are pinned one or two seconds after their start and get no thread \
             counts; switch NRI on in the container runtime (pinfold doctor on the node prints the setting), or set \
             runtime.nri to never if this is intended",
            self.socket.display()
        )
    }

    pub(in crate::agent) fn connection(&self) -> watch::Ref<'_, ConnectionState> {
        self.state.borrow()
    }
}

fn problem(why: &impl std::fmt::Display) -> String {
    format!(
        "no container runtime is synchronized, so containers are pinned after their start: {why}"
    )
}
