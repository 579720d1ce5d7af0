//! Where systemd owns a cgroup, its CPUs and NUMA nodes are set through systemd: it forgets what others write there, at its
//! next reload or when another property of the unit is set.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use cgroups_rs::systemd::SystemdClient;

use crate::cpu::CpuSet;

/// How long systemd may take to write what it was told.
const PATIENCE: Duration = Duration::from_millis(500);

/// What is set of a unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Property {
    /// The CPUs it may run on.
    Cpus,
    /// The NUMA nodes its memory may come from.
    Memory,
}

// === impl Property ===

impl Property {
    fn name(self) -> &'static str {
        match self {
            Self::Cpus => "AllowedCPUs",
            Self::Memory => "AllowedMemoryNodes",
        }
    }
}

/// A set that systemd was told and did not set.
#[derive(Debug, thiserror::Error)]
pub enum SystemdError {
    /// It can't be reached, or it refused.
    #[error("can't set {property}={set} of unit {unit} over D-Bus")]
    Refused {
        /// The unit.
        unit: String,
        /// The property's name.
        property: &'static str,
        /// The set.
        set: CpuSet,
        /// What it said.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// It took the call, and the cgroup's file says something else.
    #[error(
        "unit {unit} was given {property}={set}, and {} says otherwise: is systemd's D-Bus socket in reach \
         (/run/dbus/system_bus_socket)?", path.display()
    )]
    NotWritten {
        /// The unit.
        unit: String,
        /// The property's name.
        property: &'static str,
        /// The set.
        set: CpuSet,
        /// The file.
        path: PathBuf,
    },
}

/// Whether systemd runs on the node whose `/run` is at `run`.
pub(super) fn runs(run: &Path) -> bool {
    run.join("systemd/system").is_dir()
}

/// The unit that a cgroup is; `None` for one that systemd does not know, such as those inside a delegated scope.
pub(super) fn unit(path: &str) -> Option<&str> {
    let mut parts = path.split('/');
    let last = parts.next_back()?;
    let is_unit = |name: &str| name.ends_with(".slice") || name.ends_with(".scope");
    // Below a scope everything is its owner's business.
    let delegated = parts.any(|above| !above.ends_with(".slice"));
    (is_unit(last) && !delegated).then_some(last)
}

/// Sets a property of a unit, and waits until `file` says so.
pub(super) fn set(unit: &str, property: Property, set: &CpuSet, file: &Path) -> Result<(), SystemdError> {
    let property = property.name();
    let refused =
        |source| SystemdError::Refused { unit: unit.to_owned(), property, set: set.clone(), source };
    let mut client = SystemdClient::new(unit, Vec::new()).map_err(|error| refused(error.into()))?;
    client.set_properties(&[(property, mask(set).into())]).map_err(|error| refused(error.into()))?;
    let deadline = Instant::now() + PATIENCE;
    loop {
        let now = std::fs::read_to_string(file).ok().and_then(|text| text.parse::<CpuSet>().ok());
        if now.as_ref() == Some(set) {
            return Ok(());
        }
        if Instant::now() > deadline {
            return Err(SystemdError::NotWritten {
                unit: unit.to_owned(),
                property,
                set: set.clone(),
                path: file.to_owned(),
            });
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// A set as systemd takes it: bit j of byte i is CPU 8i + j.
fn mask(cpus: &CpuSet) -> Vec<u8> {
    let mut bytes = Vec::new();
    for cpu in cpus.iter() {
        let index = (cpu / 8) as usize;
        if bytes.len() <= index {
            bytes.resize(index + 1, 0);
        }
        if let Some(byte) = bytes.get_mut(index) {
            *byte |= 1_u8 << (cpu % 8);
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks() {
        assert_eq!(mask(&"0-1,9".parse().unwrap()), [3, 2]);
        assert_eq!(mask(&"16".parse().unwrap()), [0, 0, 1]);
    }

    #[test]
    fn units() {
        let scope = "kubepods.slice/kubepods-podx.slice/cri-containerd-c0ffee.scope";
        assert_eq!(unit(scope), Some("cri-containerd-c0ffee.scope"));
        assert_eq!(unit("kubepods.slice/kubepods-podx.slice"), Some("kubepods-podx.slice"));
        for path in ["kubepods/podx", "kubepods/podx/c0ffee", &format!("{scope}/inner.scope"), ""] {
            assert_eq!(unit(path), None, "{path}");
        }
    }
}
