//! The CPUs and NUMA nodes of a cgroup that systemd owns are set through systemd. If they were
//! written to the cgroup's file, they would be lost when systemd reloads, or when another property
//! of the unit is set.

use std::io;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::time::{Duration, Instant};

use futures_util::future::{Either, select};
use parking_lot::Mutex;
use zbus::blocking::Connection;
use zbus::connection::Builder;
use zbus::zvariant::Value;

use crate::cpu::CpuSet;

/// How long systemd may take to write a set to the cgroup's file after the call.
const WRITTEN_WITHIN: Duration = Duration::from_millis(500);

/// How long the bus may take to accept a connection, and systemd to answer a call.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);

/// systemd's D-Bus name, and the object and interface of its manager.
const SERVICE: &str = "org.freedesktop.systemd1";
const MANAGER: &str = "/org/freedesktop/systemd1";
const INTERFACE: &str = "org.freedesktop.systemd1.Manager";

/// The property with the CPUs on which a unit's processes may run.
pub(super) const ALLOWED_CPUS: &str = "AllowedCPUs";
/// The property with the NUMA nodes of a unit's memory.
pub(super) const ALLOWED_MEMORY_NODES: &str = "AllowedMemoryNodes";

/// Why systemd did not set a property.
#[derive(Debug, thiserror::Error)]
pub enum SystemdError {
    /// The bus can't be reached, or systemd does not answer there.
    #[error(
        "can't set {setting} of unit {unit}: systemd can't be reached over D-Bus: {cause}; is its socket \
         (/run/dbus/system_bus_socket) mounted, and does dbus run?"
    )]
    Unreachable {
        unit: String,
        setting: String,
        /// The failure of the connection.
        cause: Box<zbus::Error>,
    },
    #[error("systemd refused {setting} for unit {unit}")]
    Refused {
        unit: String,
        setting: String,
        /// systemd's answer.
        source: Box<zbus::Error>,
    },
    /// systemd accepted the call, and the cgroup's file has another value.
    #[error("systemd accepted {setting} for unit {unit}, but {} has another value", path.display())]
    NotWritten {
        unit: String,
        setting: String,
        path: PathBuf,
    },
}

/// Whether systemd is the node's first process.
///
/// systemd itself tells that it runs by its folder in `/run`. The agent's pod does not see this
/// folder: a required mount would keep the pod from starting on nodes without systemd, and a mount
/// that makes the folder would let other programs on such a node believe that systemd runs there.
/// But the pod sees the cgroup root with `init.scope`, into which systemd puts itself.
pub(super) fn runs(run: &Path, cgroup_root: &Path) -> bool {
    run.join("systemd/system").is_dir() || cgroup_root.join("init.scope").is_dir()
}

/// The unit of a cgroup; `None` for a cgroup that systemd does not manage, for example inside a delegated scope.
pub(super) fn unit(path: &str) -> Option<&str> {
    let mut parts = path.split('/');
    let last = parts.next_back()?;
    let is_unit = |name: &str| name.ends_with(".slice") || name.ends_with(".scope");
    // The owner of a delegated scope manages all cgroups below it.
    let delegated = parts.any(|above| !above.ends_with(".slice"));
    (is_unit(last) && !delegated).then_some(last)
}

/// systemd's manager, reached over D-Bus.
///
/// One connection serves all calls. The first call opens it, and a call that finds it broken opens
/// another.
#[derive(Debug, Default)]
pub(super) struct Systemd {
    /// The bus's address; `None` for the system bus.
    address: Option<String>,
    connection: Mutex<Option<Connection>>,
}

// === impl Systemd ===

impl Systemd {
    /// Sets a property of a unit, and waits until the cgroup's `file` has the value.
    pub(super) fn set(
        &self,
        unit: &str,
        property: &str,
        set: &CpuSet,
        file: &Path,
    ) -> Result<(), SystemdError> {
        let names = || (unit.to_owned(), format!("{property}={set}"));
        self.call(unit, property, set).map_err(|source| {
            let ((unit, setting), source) = (names(), Box::new(source));
            match *source {
                zbus::Error::MethodError(..) => SystemdError::Refused {
                    unit,
                    setting,
                    source,
                },
                _ => SystemdError::Unreachable {
                    unit,
                    setting,
                    cause: source,
                },
            }
        })?;
        let deadline = Instant::now() + WRITTEN_WITHIN;
        loop {
            let now = std::fs::read_to_string(file)
                .ok()
                .and_then(|text| text.parse::<CpuSet>().ok());
            if now.as_ref() == Some(set) {
                return Ok(());
            }
            if Instant::now() > deadline {
                let ((unit, setting), path) = (names(), file.to_owned());
                return Err(SystemdError::NotWritten {
                    unit,
                    setting,
                    path,
                });
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Calls systemd on the kept connection, or on a new one if that is broken or missing.
    fn call(&self, unit: &str, property: &str, set: &CpuSet) -> zbus::Result<()> {
        let mut current = self.connection.lock();
        let kept = current.take();
        let is_kept = kept.is_some();
        let connection = kept.map_or_else(|| self.connect(), Ok)?;
        let done = set_property(&connection, unit, property, set);
        // Only a connection that answered is kept. After a timeout, a late answer would belong to
        // no call.
        if matches!(done, Ok(()) | Err(zbus::Error::MethodError(..))) {
            *current = Some(connection);
        } else if is_kept && !done.as_ref().is_err_and(is_timeout) {
            drop(current);
            return self.call(unit, property, set);
        }
        done
    }

    fn connect(&self) -> zbus::Result<Connection> {
        let builder = match &self.address {
            Some(address) => Builder::address(address.as_str())?,
            None => Builder::system()?,
        };
        let connecting = builder.method_timeout(ANSWER_WITHIN).build();
        // The time limit of calls does not cover the handshake.
        let limit = async_io::Timer::after(ANSWER_WITHIN);
        async_io::block_on(async {
            match select(pin!(connecting), limit).await {
                Either::Left((connection, _)) => Ok(connection?.into()),
                Either::Right(_) => {
                    Err(zbus::Error::from(io::Error::from(io::ErrorKind::TimedOut)))
                }
            }
        })
    }
}

/// Sets a property of a unit until the next boot.
fn set_property(
    connection: &Connection,
    unit: &str,
    property: &str,
    set: &CpuSet,
) -> zbus::Result<()> {
    // The unit must exist, because systemd would create a missing slice when a property of it is
    // set.
    connection.call_method(Some(SERVICE), MANAGER, Some(INTERFACE), "GetUnit", &unit)?;
    let (runtime, properties) = (true, [(property, Value::from(mask(set)))]);
    let (method, arguments) = ("SetUnitProperties", (unit, runtime, properties.as_slice()));
    connection.call_method(Some(SERVICE), MANAGER, Some(INTERFACE), method, &arguments)?;
    Ok(())
}

fn is_timeout(error: &zbus::Error) -> bool {
    matches!(error, zbus::Error::InputOutput(error) if error.kind() == io::ErrorKind::TimedOut)
}

/// A set as systemd takes it: bit j of byte i is CPU 8i + j.
fn mask(cpus: &CpuSet) -> Vec<u8> {
    let length = cpus.iter().last().map_or(0, |last| last / 8 + 1);
    let bit = |cpu: u32| u8::from(cpus.contains(cpu)) << (cpu % 8);
    let byte = |index: u32| (8 * index..8 * index + 8).map(bit).sum::<u8>();
    (0..length).map(byte).collect()
}

#[cfg(test)]
mod tests;
