//! The settings of the sources of pods: [`AutoSwitch`], and [`Runtime`] for the container runtime.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::nri;

/// Whether the agent uses a source of pods: the Kubernetes API or the container runtime.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum AutoSwitch {
    /// On if the option's condition holds.
    #[default]
    Auto,
    /// On.
    Always,
    /// Off.
    Never,
}

/// The settings of the connection to the container runtime.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Runtime {
    /// Whether NRI is used. `auto`: if the socket's folder exists when the agent starts.
    pub nri: AutoSwitch,
    /// The runtime's socket.
    pub socket: PathBuf,
    /// The plugin's index, 0 to 99. Later plugins see and overrule the choices of earlier ones.
    pub index: u8,
    /// Whether pinned containers get a folder of live files, which name their CPUs.
    pub live_files: bool,
    /// The folder on the node that holds these folders.
    pub live_dir: PathBuf,
}

impl Default for Runtime {
    fn default() -> Self {
        Self {
            nri: AutoSwitch::Auto,
            socket: PathBuf::from(nri::SOCKET),
            index: 90,
            live_files: true,
            live_dir: PathBuf::from("/run/pinfold"),
        }
    }
}

// === impl Runtime ===

impl Runtime {
    pub fn wanted(&self) -> bool {
        match self.nri {
            AutoSwitch::Always => true,
            AutoSwitch::Never => false,
            AutoSwitch::Auto => self.socket.parent().is_some_and(Path::is_dir),
        }
    }

    /// The folder for live files; `None` if no container gets any, because they are off or the runtime is not asked.
    pub fn live_folder(&self) -> Option<&Path> {
        (self.live_files && self.wanted()).then_some(&*self.live_dir)
    }

    pub(super) fn check(&self) -> anyhow::Result<()> {
        anyhow::ensure!(
            self.index <= 99,
            "runtime.index is {}: use 0 to 99",
            self.index
        );
        anyhow::ensure!(
            self.socket.is_absolute(),
            "runtime.socket {:?} is no absolute path: write it like {}",
            self.socket,
            nri::SOCKET
        );
        // The container runtime mounts by this path, too.
        anyhow::ensure!(
            self.live_dir.is_absolute(),
            "runtime.liveDir {:?} is no absolute path: write it like /run/pinfold",
            self.live_dir
        );
        Ok(())
    }
}
