use std::os::unix::net::UnixListener;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use zbus::message::Header;

use super::*;

/// The calls of systemd's manager that a write needs. Like systemd, it writes the property to a
/// file.
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
    let directory = tempfile::tempdir().unwrap();
    let (file, socket) = (
        directory.path().join("cpuset.cpus"),
        directory.path().join("bus"),
    );
    let address = format!("unix:path={}", socket.display());
    let callers = Arc::default();
    let systemd = Systemd {
        address: Some(address.clone()),
        ..Systemd::default()
    };
    let set =
        |unit: &str, cpus: &str| systemd.set(unit, ALLOWED_CPUS, &cpus.parse().unwrap(), &file);

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
    let names = std::mem::take(&mut *callers.lock());
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

    drop(bus);
    callers.lock().clear();
    let _ = std::fs::remove_file(&socket);
    let error = set("kubepods.slice", "4").unwrap_err();
    assert!(
        matches!(error, SystemdError::Unreachable { .. }),
        "{error:?}"
    );
    let _bus = Bus::start(&address, &file, &callers);
    set("kubepods.slice", "5").unwrap();
    set("kubepods.slice", "6").unwrap();
    let names = callers.lock().clone();
    assert_eq!(
        names,
        vec![names[0].clone(); 2],
        "one connection to the new bus"
    );
}

#[test]
fn a_bus_that_never_answers_is_given_up() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("bus");
    let _silent = UnixListener::bind(&socket).unwrap();
    let address = format!("unix:path={}", socket.display());
    let systemd = Systemd {
        address: Some(address),
        ..Systemd::default()
    };
    let file = directory.path().join("cpuset.cpus");
    let error = systemd
        .set("kubepods.slice", ALLOWED_CPUS, &CpuSet::new(), &file)
        .unwrap_err();
    let SystemdError::Unreachable { cause, .. } = error else {
        panic!("{error:?}")
    };
    assert!(is_timeout(&cause), "{cause:?}");
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
