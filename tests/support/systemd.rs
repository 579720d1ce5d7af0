//! systemd's manager on a message bus of its own, for tests of the agent. It writes the CPUs of a
//! unit to the unit's cgroup, as systemd does, after a chosen time or never.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use pinfold::cpu::CpuSet;
use zbus::blocking::Connection;
use zbus::blocking::connection::Builder;
use zbus::fdo;
use zbus::zvariant::{ObjectPath, OwnedObjectPath, OwnedValue};

const SERVICE: &str = "org.freedesktop.systemd1";
const MANAGER: &str = "/org/freedesktop/systemd1";

/// The calls of systemd's manager that a write needs.
struct Manager {
    /// The cgroup's folder of each unit.
    units: BTreeMap<String, PathBuf>,
    /// When the manager writes the CPUs; `None` for never.
    delay: Arc<Mutex<Option<Duration>>>,
    /// The units whose CPUs were set.
    set: Arc<Mutex<Vec<String>>>,
}

#[zbus::interface(name = "org.freedesktop.systemd1.Manager")]
impl Manager {
    fn get_unit(&self, unit: &str) -> fdo::Result<OwnedObjectPath> {
        if self.units.contains_key(unit) {
            Ok(ObjectPath::from_static_str_unchecked("/unit").into())
        } else {
            Err(fdo::Error::Failed(format!("Unit {unit} not loaded.")))
        }
    }

    fn set_unit_properties(
        &self,
        unit: &str,
        _runtime: bool,
        properties: Vec<(String, OwnedValue)>,
    ) {
        self.set.lock().unwrap().push(unit.to_owned());
        let Some(delay) = *self.delay.lock().unwrap() else {
            return;
        };
        let (name, value) = properties.into_iter().next().unwrap();
        assert_eq!(name, "AllowedCPUs");
        let bytes = Vec::<u8>::try_from(value).unwrap();
        let cpus = (0..8 * bytes.len()).filter(|cpu| bytes[cpu / 8] >> (cpu % 8) & 1 == 1);
        let cpus: CpuSet = cpus.map(|cpu| u32::try_from(cpu).unwrap()).collect();
        let file = self.units[unit].join("cpuset.cpus");
        std::thread::spawn(move || {
            std::thread::sleep(delay);
            // The cgroup may be gone by then.
            let _ = std::fs::write(file, cpus.to_string());
        });
    }
}

/// A process that is killed when dropped.
struct Daemon(Child);

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Debian's message bus, with a fake systemd. Both end when dropped.
pub(crate) struct Systemd {
    _daemon: Daemon,
    folder: tempfile::TempDir,
    delay: Arc<Mutex<Option<Duration>>>,
    set: Arc<Mutex<Vec<String>>>,
    _connection: Connection,
}

// === impl Systemd ===

impl Systemd {
    /// Starts a fake systemd with a unit for each of the cgroups.
    pub(crate) fn start(cgroups: &[PathBuf]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let address = address(folder.path());
        let daemon = Command::new("dbus-daemon")
            .args(["--session", "--nofork", "--nopidfile", "--nosyslog"])
            .arg(format!("--address={address}"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| panic!("dbus-daemon is in its package of Debian: {error}"));
        let daemon = Daemon(daemon);
        let (delay, set) = (Arc::default(), Arc::default());
        let name = |path: &PathBuf| path.file_name().unwrap().to_str().unwrap().to_owned();
        let deadline = Instant::now() + Duration::from_secs(60);
        let connection = loop {
            let manager = Manager {
                units: cgroups
                    .iter()
                    .map(|path| (name(path), path.clone()))
                    .collect(),
                delay: Arc::clone(&delay),
                set: Arc::clone(&set),
            };
            let builder = Builder::address(address.as_str()).unwrap();
            let builder = builder.name(SERVICE).unwrap();
            match builder.serve_at(MANAGER, manager).unwrap().build() {
                Ok(connection) => break connection,
                Err(error) => assert!(Instant::now() < deadline, "no bus at {address}: {error}"),
            }
            std::thread::sleep(Duration::from_millis(10));
        };
        Self {
            _daemon: daemon,
            folder,
            delay,
            set,
            _connection: connection,
        }
    }

    /// The variable by which a program finds the bus.
    pub(crate) fn variable(&self) -> (String, String) {
        (
            "DBUS_SYSTEM_BUS_ADDRESS".to_owned(),
            address(self.folder.path()),
        )
    }

    /// From the call on, the CPUs of a unit are written after the delay; `None` for never.
    pub(crate) fn write_after(&self, delay: Option<Duration>) {
        *self.delay.lock().unwrap() = delay;
    }

    /// How often the CPUs of any unit were set.
    pub(crate) fn count_all(&self) -> usize {
        self.set.lock().unwrap().len()
    }

    /// How often the CPUs of a unit were set.
    pub(crate) fn count(&self, unit: &str) -> usize {
        let set = self.set.lock().unwrap();
        set.iter().filter(|other| *other == unit).count()
    }
}

fn address(folder: &Path) -> String {
    format!("unix:path={}", folder.join("bus").display())
}
