//! A containerd for one test, with its files, sockets and logs in a temporary folder.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use nix::mount::{MsFlags, mount};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

use crate::agent::patience;
use crate::cri::Cri;
use crate::image::{self, IMAGE};
use crate::leftovers;
use crate::messages::{
    Image, ImageStatusRequest, ListPodSandbox, RemovePodSandbox, StatusRequest, StopPodSandbox,
    VersionRequest,
};

/// The Debian releases with the tested runtimes. `PINFOLD_TEST_RUNTIMES` names others.
pub(crate) fn suites() -> Vec<String> {
    let releases =
        std::env::var("PINFOLD_TEST_RUNTIMES").unwrap_or_else(|_| "trixie,sid".to_owned());
    releases.split(',').map(str::to_owned).collect()
}

/// The runtime's time limit for an answer of a plugin. containerd's default of 2 s is too short on a machine that pauses.
pub(crate) const PLUGIN_TIME_LIMIT: Duration = Duration::from_secs(20);

/// The handler behind which `pinfold-runtime` runs.
pub(crate) const HANDLER: &str = "pinfold-required";

/// `pinfold-runtime`, or the program that `PINFOLD_WRAPPER` names.
fn wrapper() -> PathBuf {
    std::env::var_os("PINFOLD_WRAPPER")
        .unwrap_or_else(|| env!("CARGO_BIN_EXE_pinfold-runtime").into())
        .into()
}

/// The folder into which `tests/runtime/prepare` writes the runtimes.
fn tools() -> PathBuf {
    std::env::var_os("PINFOLD_TOOLS")
        .map_or_else(|| "/var/cache/pinfold-tools".into(), PathBuf::from)
}

/// A running containerd. The drop ends it with all of its containers.
pub(crate) struct Runtime {
    /// The Debian release that provides the daemon.
    pub(crate) suite: String,
    /// The version that the daemon reports.
    pub(crate) version: String,
    pub(crate) cri: Cri,
    /// The time limit for an answer of a plugin.
    pub(crate) time_limit: Duration,
    folder: TempDir,
    bin: PathBuf,
    child: Mutex<Option<Child>>,
    /// The cgroups of all pods that the daemon got.
    cgroups: Mutex<BTreeSet<String>>,
    /// Sockets of shims that existed before the test.
    earlier_sockets: BTreeSet<PathBuf>,
}

// === impl Runtime ===

impl Runtime {
    /// Starts the containerd of a Debian release, with the image.
    pub(crate) fn start(suite: &str) -> Self {
        Self::start_within(suite, PLUGIN_TIME_LIMIT)
    }

    /// As `start`, with the time limit for an answer of a plugin.
    pub(crate) fn start_within(suite: &str, time_limit: Duration) -> Self {
        let bin = tools().join(format!("containerd-{suite}/bin"));
        assert!(
            bin.join("containerd").exists(),
            "no {}: run tests/runtime/prepare",
            bin.display()
        );
        let folder = tempfile::Builder::new()
            .prefix("pinfold-containerd-")
            .tempdir()
            .unwrap();
        // A tmpfs saves the wait for the disk: containerd syncs each step to files.
        mount(
            Some("tmpfs"),
            folder.path(),
            Some("tmpfs"),
            MsFlags::empty(),
            Some("size=512m"),
        )
        .unwrap();
        for name in ["reports", "cni", "nri", "opt", "plugins"] {
            fs::create_dir(folder.path().join(name)).unwrap();
        }
        let mut runtime = Self {
            suite: suite.to_owned(),
            version: String::new(),
            cri: Cri::new(&folder.path().join("containerd.sock")),
            time_limit,
            folder,
            bin,
            child: Mutex::new(None),
            cgroups: Mutex::default(),
            earlier_sockets: leftovers::sockets(),
        };
        fs::write(runtime.path("config.toml"), runtime.configuration()).unwrap();
        let runc_wrapper = runtime.path("runc-again");
        fs::write(&runc_wrapper, include_str!("runc-again")).unwrap();
        fs::set_permissions(&runc_wrapper, fs::Permissions::from_mode(0o755)).unwrap();
        fs::copy(wrapper(), runtime.path("pinfold-runtime")).unwrap();
        symlink("runc-again", runtime.path("pinfold-runtime.real")).unwrap();
        runtime.launch();
        runtime.import();
        runtime.version = runtime.cri.call(&VersionRequest {}).version;
        runtime
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The folder with all files of the daemon.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The socket on which the daemon listens for NRI plugins.
    pub(crate) fn nri(&self) -> PathBuf {
        self.path("nri.sock")
    }

    /// The folder for the containers' reports, which containers mount as `/report`.
    pub(crate) fn reports(&self) -> PathBuf {
        self.path("reports")
    }

    /// The daemon's log.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.path("log")).unwrap_or_default()
    }

    /// The configuration file. Versions 1 and 2 have different keys. With `restrict_oom_score_adj`,
    /// containerd never lowers the OOM score below its own, which root in a container may not do. With `pod_annotations`, it
    /// copies the annotations of pods to their containers, as CRI-O does.
    fn configuration(&self) -> String {
        let here = self.folder.path().display();
        let time_limit = self.time_limit.as_secs();
        let is_series_1 = self.suite == "trixie";
        let (version, cri, sandbox, images) = if is_series_1 {
            let cri = "io.containerd.grpc.v1.cri";
            let snapshotter = format!("[plugins.'{cri}'.containerd]\nsnapshotter = 'overlayfs'");
            (2, cri, format!("sandbox_image = '{IMAGE}'"), snapshotter)
        } else {
            let images = "io.containerd.cri.v1.images";
            let images = format!(
                "[plugins.'{images}']\nsnapshotter = 'overlayfs'\n[plugins.'{images}'.pinned_images]\nsandbox = '{IMAGE}'"
            );
            (3, "io.containerd.cri.v1.runtime", String::new(), images)
        };
        format!(
            "version = {version}
root = '{here}/root'
state = '{here}/state'
[grpc]
address = '{here}/containerd.sock'
[ttrpc]
address = '{here}/containerd.sock.ttrpc'
[plugins.'{cri}']
restrict_oom_score_adj = true
{sandbox}
{images}
[plugins.'{cri}'.cni]
bin_dir = '{here}/cni'
conf_dir = '{here}/cni'
[plugins.'{cri}'.containerd.runtimes.runc]
runtime_type = 'io.containerd.runc.v2'
[plugins.'{cri}'.containerd.runtimes.runc.options]
BinaryName = '{here}/runc-again'
Root = '{here}/runc'
SystemdCgroup = false
[plugins.'{cri}'.containerd.runtimes.{HANDLER}]
runtime_type = 'io.containerd.runc.v2'
pod_annotations = ['*', '*/*']
[plugins.'{cri}'.containerd.runtimes.{HANDLER}.options]
BinaryName = '{here}/pinfold-runtime'
Root = '{here}/runc'
SystemdCgroup = false
[plugins.'io.containerd.internal.v1.opt']
path = '{here}/opt'
[plugins.'io.containerd.nri.v1.nri']
disable = false
disable_connections = false
socket_path = '{here}/nri.sock'
plugin_path = '{here}/plugins'
plugin_config_path = '{here}/nri'
plugin_registration_timeout = '30s'
plugin_request_timeout = '{time_limit}s'
"
        )
    }

    /// Starts the daemon and waits until it accepts pods.
    pub(crate) fn launch(&self) {
        let log = fs::OpenOptions::new()
            .append(true)
            .create(true)
            .open(self.path("log"))
            .unwrap();
        let path = format!(
            "{}:{}",
            self.bin.display(),
            std::env::var("PATH").unwrap_or_default()
        );
        let child = Command::new(self.bin.join("containerd"))
            .arg("--config")
            .arg(self.path("config.toml"))
            .env("PATH", path)
            .env("PINFOLD_RUNC", self.bin.join("runc"))
            .env("PINFOLD_STUMBLED", self.path("stumbled"))
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        let mut running = self.child();
        assert!(running.is_none(), "containerd runs already");
        *running = Some(child);
        drop(running);
        self.eventually("containerd accepts pods", || {
            let exit_status = self
                .child()
                .as_mut()
                .and_then(|child| child.try_wait().unwrap());
            assert!(
                exit_status.is_none(),
                "containerd ended: {exit_status:?}\n{}",
                self.log()
            );
            let answer = self
                .cri
                .try_call(&StatusRequest {})
                .ok()
                .and_then(|answer| answer.status);
            answer.is_some_and(|status| {
                status
                    .conditions
                    .iter()
                    .any(|condition| condition.kind == "RuntimeReady" && condition.status)
            })
        });
    }

    fn child(&self) -> std::sync::MutexGuard<'_, Option<Child>> {
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Kills the daemon with SIGKILL. Containers keep running.
    pub(crate) fn kill(&self) {
        if let Some(mut child) = self.child().take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    /// Stops the daemon with SIGTERM and starts it again. Containers keep running.
    pub(crate) fn restart(&self) {
        self.terminate();
        self.launch();
    }

    fn terminate(&self) {
        let Some(mut child) = self.child().take() else {
            return;
        };
        // The daemon may have ended already.
        let _ = kill(
            Pid::from_raw(i32::try_from(child.id()).unwrap()),
            Signal::SIGTERM,
        );
        let deadline = Instant::now() + 3 * patience();
        while child.try_wait().unwrap().is_none() {
            if Instant::now() >= deadline {
                child.kill().unwrap();
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn import(&self) {
        let archive = self.path("image.tar");
        image::write(&tools().join("probe"), &archive);
        let output = Command::new(self.bin.join("ctr"))
            .arg("--address")
            .arg(self.path("containerd.sock"))
            .args([
                "--namespace",
                "k8s.io",
                "images",
                "import",
                "--snapshotter",
                "overlayfs",
            ])
            .arg(archive)
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}\n{}", self.log());
        // The CRI plugin of containerd learns about the image a moment later.
        self.eventually("the CRI plugin knows the image", || {
            let image = Some(Image {
                image: IMAGE.to_owned(),
                user_specified: String::new(),
            });
            self.cri.call(&ImageStatusRequest { image }).image.is_some()
        });
    }

    /// Waits for a condition that should hold soon.
    pub(crate) fn eventually(&self, what: &str, mut condition: impl FnMut() -> bool) {
        let deadline = Instant::now() + 6 * patience();
        while !condition() {
            assert!(
                Instant::now() < deadline,
                "timeout while waiting for: {what}"
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Notes a pod's cgroup, so that the drop can end all processes in it.
    pub(crate) fn record_cgroup(&self, cgroup: &str) {
        self.cgroups.lock().unwrap().insert(cgroup.to_owned());
    }

    /// Stops the daemon and checks the machine for leftovers: sandboxes, processes, mounts, cgroups and sockets.
    pub(crate) fn stop(self) {
        let sandboxes = self.cri.call(&ListPodSandbox {}).items;
        assert!(
            sandboxes.is_empty(),
            "sandboxes that the test did not remove: {sandboxes:?}"
        );
        for cgroup in self.cgroups.lock().unwrap().iter() {
            let left = leftovers::cgroups(cgroup);
            assert!(left.is_empty(), "leftover cgroups: {left:?}");
        }
        // A few retries are runc's fault. More retries point to a fault of the tests or of Pinfold.
        let retries = fs::read_to_string(self.path("stumbled")).unwrap_or_default();
        let retry_count = retries.matches("created again after this").count();
        assert!(
            retry_count <= 3,
            "the wrapper retried runc {retry_count} times:\n{retries}"
        );
        self.terminate();
        let folder = self.folder.path();
        self.eventually("all shims have ended", || {
            leftovers::processes(folder).is_empty()
        });
        let mounts = leftovers::mounts(folder);
        assert_eq!(
            mounts,
            [folder.to_str().unwrap()],
            "leftover mounts (expected: only the daemon's folder)"
        );
        let sockets: Vec<_> = leftovers::sockets()
            .difference(&self.earlier_sockets)
            .cloned()
            .collect();
        assert_eq!(sockets, Vec::<PathBuf>::new(), "leftover sockets");
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        if let Ok(text) = fs::read_to_string(self.path("stumbled")) {
            // Printed to stderr directly, so that passing tests show the text too.
            let _ = writeln!(
                std::io::stderr(),
                "the wrapper retried runc of {}:\n{text}",
                self.suite
            );
        }
        if std::thread::panicking() {
            let log = self.log();
            let lines: Vec<&str> = log
                .lines()
                .filter(|line| !line.contains("level=info"))
                .collect();
            let last = lines.len().saturating_sub(40);
            println!(
                "the last log lines of containerd of {}:\n{}",
                self.suite,
                lines[last..].join("\n")
            );
            // Try an orderly removal of the sandboxes first.
            if let Ok(sandboxes) = self.cri.try_call(&ListPodSandbox {}) {
                for listed in sandboxes.items {
                    let _ = self.cri.try_call(&StopPodSandbox {
                        sandbox: listed.id.clone(),
                    });
                    let _ = self.cri.try_call(&RemovePodSandbox { sandbox: listed.id });
                }
            }
        }
        self.terminate();
        let cgroups = self.cgroups.lock().unwrap_or_else(PoisonError::into_inner);
        leftovers::end(self.folder.path(), &cgroups);
        for socket in leftovers::sockets().difference(&self.earlier_sockets) {
            let _ = fs::remove_file(socket);
        }
    }
}
