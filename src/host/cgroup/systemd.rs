//! The CPUs and NUMA nodes of a cgroup that systemd owns are set through systemd. A value written to the cgroup's
//! file would be lost when systemd reloads. The value would also be lost when another property of the unit is set.

use std::io;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures_util::future::{Either, select};
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

/// A property of a unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Property {
    /// The CPUs on which the unit's processes may run.
    Cpus,
    /// The NUMA nodes of the unit's memory.
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

/// Why systemd did not set a property.
#[derive(Debug, thiserror::Error)]
pub enum SystemdError {
    /// The bus can't be reached, or systemd does not answer there.
    #[error(
        "can't set {property}={set} of unit {unit}: systemd can't be reached over D-Bus; is its socket \
         (/run/dbus/system_bus_socket) mounted, and does dbus run?"
    )]
    Unreachable {
        /// The unit.
        unit: String,
        /// The property's name.
        property: &'static str,
        /// The set.
        set: CpuSet,
        /// The failure of the connection.
        source: Box<zbus::Error>,
    },
    /// systemd refused the call.
    #[error("systemd refused {property}={set} for unit {unit}")]
    Refused {
        /// The unit.
        unit: String,
        /// The property's name.
        property: &'static str,
        /// The set.
        set: CpuSet,
        /// systemd's answer.
        source: Box<zbus::Error>,
    },
    /// systemd accepted the call, and the cgroup's file has another value.
    #[error("systemd accepted {property}={set} for unit {unit}, but {} has another value", path.display())]
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

/// The unit of a cgroup; `None` for a cgroup that systemd does not manage, for example inside a delegated scope.
pub(super) fn unit(path: &str) -> Option<&str> {
    let mut parts = path.split('/');
    let last = parts.next_back()?;
    let is_unit = |name: &str| name.ends_with(".slice") || name.ends_with(".scope");
    // The owner of a delegated scope manages all cgroups below the scope.
    let delegated = parts.any(|above| !above.ends_with(".slice"));
    (is_unit(last) && !delegated).then_some(last)
}

/// systemd's manager, reached over D-Bus.
///
/// One connection serves all calls. The first call opens the connection, and a call on a broken connection opens another.
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
        property: Property,
        set: &CpuSet,
        file: &Path,
    ) -> Result<(), SystemdError> {
        let property = property.name();
        self.call(unit, property, set).map_err(|source| {
            let (unit, set, source) = (unit.to_owned(), set.clone(), Box::new(source));
            match *source {
                zbus::Error::MethodError(..) => SystemdError::Refused {
                    unit,
                    property,
                    set,
                    source,
                },
                _ => SystemdError::Unreachable {
                    unit,
                    property,
                    set,
                    source,
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

    /// Calls systemd on the kept connection, or on a new connection if the kept connection is broken or missing.
    fn call(&self, unit: &str, property: &str, set: &CpuSet) -> zbus::Result<()> {
        let mut current = self
            .connection
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(connection) = current.take() {
            let done = set_property(&connection, unit, property, set);
            let broken = |error: &zbus::Error| {
                !matches!(error, zbus::Error::MethodError(..)) && !is_timeout(error)
            };
            if !done.as_ref().is_err_and(broken) {
                // A call that timed out closes the connection, too: a late answer would belong to no call.
                if !done.as_ref().is_err_and(is_timeout) {
                    *current = Some(connection);
                }
                return done;
            }
        }
        let connection = self.connect()?;
        let done = set_property(&connection, unit, property, set);
        if matches!(done, Ok(()) | Err(zbus::Error::MethodError(..))) {
            *current = Some(connection);
        }
        done
    }

    fn connect(&self) -> zbus::Result<Connection> {
        let builder = match &self.address {
            Some(address) => Builder::address(address.as_str())?,
            None => Builder::system()?,
        };
        let connecting = builder.method_timeout(ANSWER_WITHIN).build();
        // The limit for calls does not cover the handshake.
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
    // The unit must exist: setting a property of a missing slice would make systemd create the slice.
    connection.call_method(Some(SERVICE), MANAGER, Some(INTERFACE), "GetUnit", &unit)?;
    let (runtime, properties) = (true, [(property, Value::from(mask(set)))]);
    let arguments = (unit, runtime, properties.as_slice());
    connection.call_method(
        Some(SERVICE),
        MANAGER,
        Some(INTERFACE),
        "SetUnitProperties",
        &arguments,
    )?;
    Ok(())
}

fn is_timeout(error: &zbus::Error) -> bool {
    matches!(error, zbus::Error::InputOutput(error) if error.kind() == io::ErrorKind::TimedOut)
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
#[allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]
mod tests {
    use std::os::unix::net::UnixListener;
    use std::process::{Child, Command, Stdio};
    use std::sync::Arc;

    use zbus::message::Header;

    use super::*;

    /// The calls of systemd's manager that a write needs. The manager writes the property to a file, like systemd.
    struct Manager {
        file: PathBuf,
        callers: Arc<Mutex<Vec<String>>>,
    }

    #[allow(
        clippy::needless_pass_by_value,
        reason = "zbus gives the header by value"
    )]
    #[zbus::interface(name = "org.freedesktop.systemd1.Manager")]
    impl Manager {
        fn get_unit(&self, unit: &str) -> zbus::fdo::Result<zbus::zvariant::OwnedObjectPath> {
            match unit {
                "kubepods.slice" => {
                    Ok(zbus::zvariant::ObjectPath::from_static_str_unchecked("/unit").into())
                }
                _ => Err(zbus::fdo::Error::Failed(format!("Unit {unit} not loaded."))),
            }
        }

        fn set_unit_properties(
            &self,
            _unit: &str,
            runtime: bool,
            mut properties: Vec<(String, zbus::zvariant::OwnedValue)>,
            #[zbus(header)] header: Header<'_>,
        ) -> zbus::fdo::Result<()> {
            assert_eq!(properties.len(), 1);
            let (name, value) = properties.remove(0);
            let bytes = Vec::<u8>::try_from(value).unwrap();
            assert_eq!((name.as_str(), runtime), ("AllowedCPUs", true));
            let cpus = (0..8 * bytes.len()).filter(|cpu| bytes[cpu / 8] >> (cpu % 8) & 1 == 1);
            let cpus: CpuSet = cpus.map(|cpu| u32::try_from(cpu).unwrap()).collect();
            std::fs::write(&self.file, cpus.to_string()).unwrap();
            self.callers
                .lock()
                .unwrap()
                .push(header.sender().unwrap().to_string());
            Ok(())
        }
    }

    /// Debian's message bus, with a fake systemd.
    struct Bus {
        daemon: Child,
        _systemd: Connection,
    }

    impl Bus {
        fn start(address: &str, file: &Path, callers: &Arc<Mutex<Vec<String>>>) -> Self {
            let mut command = Command::new("dbus-daemon");
            command.args([
                "--session",
                "--nofork",
                "--nopidfile",
                "--nosyslog",
                &format!("--address={address}"),
            ]);
            let daemon = command
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .expect("dbus-daemon starts");
            let manager = || Manager {
                file: file.to_owned(),
                callers: Arc::clone(callers),
            };
            let deadline = Instant::now() + Duration::from_secs(20);
            let systemd = loop {
                let builder = zbus::blocking::connection::Builder::address(address).unwrap();
                let builder = builder
                    .name(SERVICE)
                    .unwrap()
                    .serve_at(MANAGER, manager())
                    .unwrap();
                match builder.build() {
                    Ok(systemd) => break systemd,
                    Err(error) => {
                        assert!(Instant::now() < deadline, "no bus at {address}: {error}");
                    }
                }
                std::thread::sleep(Duration::from_millis(10));
            };
            Self {
                daemon,
                _systemd: systemd,
            }
        }
    }

    impl Drop for Bus {
        fn drop(&mut self) {
            let _ = self.daemon.kill();
            let _ = self.daemon.wait();
        }
    }

    #[test]
    fn all_writes_share_one_connection_until_the_bus_restarts() {
        let folder = tempfile::tempdir().unwrap();
        let (file, socket) = (folder.path().join("cpuset.cpus"), folder.path().join("bus"));
        let address = format!("unix:path={}", socket.display());
        let callers = Arc::default();
        let systemd = Systemd {
            address: Some(address.clone()),
            ..Systemd::default()
        };
        let set = |unit: &str, cpus: &str| {
            systemd.set(unit, Property::Cpus, &cpus.parse().unwrap(), &file)
        };

        let error = set("kubepods.slice", "1").unwrap_err();
        assert!(
            matches!(error, SystemdError::Unreachable { .. }),
            "{error:?}"
        );
        assert!(
            error.to_string().contains("/run/dbus/system_bus_socket"),
            "{error}"
        );

        let bus = Bus::start(&address, &file, &callers);
        for cpus in ["0-1,9", "2", "16"] {
            set("kubepods.slice", cpus).unwrap();
            assert_eq!(std::fs::read_to_string(&file).unwrap(), cpus);
        }
        let error = set("gone.slice", "1").unwrap_err();
        assert!(matches!(error, SystemdError::Refused { .. }), "{error:?}");
        set("kubepods.slice", "3").unwrap();
        let names = std::mem::take(&mut *callers.lock().unwrap());
        assert_eq!(
            names,
            vec![names[0].clone(); 4],
            "one connection for all writes"
        );

        let process = nix::unistd::Pid::from_raw(i32::try_from(bus.daemon.id()).unwrap());
        nix::sys::signal::kill(process, nix::sys::signal::SIGSTOP).unwrap();
        let error = set("kubepods.slice", "3").unwrap_err();
        assert!(
            matches!(error, SystemdError::Unreachable { .. }),
            "{error:?}"
        );
        nix::sys::signal::kill(process, nix::sys::signal::SIGCONT).unwrap();
        set("kubepods.slice", "7").unwrap();
        callers.lock().unwrap().clear();

        drop(bus);
        let _ = std::fs::remove_file(&socket);
        let error = set("kubepods.slice", "4").unwrap_err();
        assert!(
            matches!(error, SystemdError::Unreachable { .. }),
            "{error:?}"
        );
        let _bus = Bus::start(&address, &file, &callers);
        set("kubepods.slice", "5").unwrap();
        set("kubepods.slice", "6").unwrap();
        let names = callers.lock().unwrap().clone();
        assert_eq!(
            names,
            vec![names[0].clone(); 2],
            "one connection to the new bus"
        );
    }

    #[test]
    fn a_bus_that_never_answers_is_given_up() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("bus");
        let _silent = UnixListener::bind(&socket).unwrap();
        let address = format!("unix:path={}", socket.display());
        let systemd = Systemd {
            address: Some(address),
            ..Systemd::default()
        };
        let file = folder.path().join("cpuset.cpus");
        let error = systemd
            .set("kubepods.slice", Property::Cpus, &CpuSet::new(), &file)
            .unwrap_err();
        let SystemdError::Unreachable { source, .. } = error else {
            panic!("{error:?}")
        };
        assert!(is_timeout(&source), "{source:?}");
    }

    #[test]
    fn masks() {
        assert_eq!(mask(&"0-1,9".parse().unwrap()), [3, 2]);
        assert_eq!(mask(&"16".parse().unwrap()), [0, 0, 1]);
    }

    #[test]
    fn units() {
        let scope = "kubepods.slice/kubepods-podx.slice/cri-containerd-c0ffee.scope";
        assert_eq!(unit(scope), Some("cri-containerd-c0ffee.scope"));
        assert_eq!(
            unit("kubepods.slice/kubepods-podx.slice"),
            Some("kubepods-podx.slice")
        );
        for path in [
            "kubepods/podx",
            "kubepods/podx/c0ffee",
            &format!("{scope}/inner.scope"),
            "",
        ] {
            assert_eq!(unit(path), None, "{path}");
        }
    }
}
