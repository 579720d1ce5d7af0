//! A containerd of a test's own: its files, sockets and logs are in a folder that goes away with it.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
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

/// The Debian releases whose runtimes are tried, or those named by `PINFOLD_TEST_RUNTIMES`.
pub(crate) fn suites() -> Vec<String> {
    let named = std::env::var("PINFOLD_TEST_RUNTIMES").unwrap_or_else(|_| "trixie,sid".to_owned());
    named.split(',').map(str::to_owned).collect()
}

/// Where `tests/runtime/prepare` puts them.
fn tools() -> PathBuf {
    std::env::var_os("PINFOLD_TOOLS")
        .map_or_else(|| "/var/cache/pinfold-tools".into(), PathBuf::from)
}

/// A running containerd. What it runs is ended with it, when it is dropped.
pub(crate) struct Runtime {
    /// The Debian release it comes from.
    pub(crate) suite: String,
    /// What it says of itself.
    pub(crate) version: String,
    pub(crate) cri: Cri,
    folder: TempDir,
    bin: PathBuf,
    child: Mutex<Option<Child>>,
    /// The pods' cgroups that were handed to it.
    cgroups: Mutex<BTreeSet<String>>,
    /// Sockets of shims that are not ours.
    sockets: BTreeSet<PathBuf>,
}

// === impl Runtime ===

impl Runtime {
    /// Starts the containerd of a Debian release, with the image.
    pub(crate) fn start(suite: &str) -> Self {
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
        // In memory: it writes each step to its files and waits until they are on the disk.
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
            folder,
            bin,
            child: Mutex::new(None),
            cgroups: Mutex::default(),
            sockets: leftovers::sockets(),
        };
        fs::write(runtime.path("config.toml"), runtime.configuration()).unwrap();
        let again = runtime.path("runc-again");
        fs::write(&again, include_str!("runc-again")).unwrap();
        fs::set_permissions(&again, fs::Permissions::from_mode(0o755)).unwrap();
        runtime.launch();
        runtime.import();
        runtime.version = runtime.cri.call(&VersionRequest {}).version;
        runtime
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The folder of everything that it has.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The socket on which it waits for plugins.
    pub(crate) fn nri(&self) -> PathBuf {
        self.path("nri.sock")
    }

    /// Where containers leave their reports; they see it as `/report`.
    pub(crate) fn reports(&self) -> PathBuf {
        self.path("reports")
    }

    /// What it has logged.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.path("log")).unwrap_or_default()
    }

    /// Version 1 and 2 have their settings in different places. The score of who is killed first when memory is short is
    /// left to root itself to lower: on machines that are containers, root may not.
    fn configuration(&self) -> String {
        let here = self.folder.path().display();
        let old = self.suite == "trixie";
        let (version, cri, sandbox, images) = if old {
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
[plugins.'io.containerd.internal.v1.opt']
path = '{here}/opt'
[plugins.'io.containerd.nri.v1.nri']
disable = false
disable_connections = false
socket_path = '{here}/nri.sock'
plugin_path = '{here}/plugins'
plugin_config_path = '{here}/nri'
"
        )
    }

    /// Starts the daemon and waits until it takes pods.
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
        let mut place = self.child();
        assert!(place.is_none(), "containerd runs already");
        *place = Some(child);
        drop(place);
        self.eventually("containerd takes pods", || {
            let ended = self
                .child()
                .as_mut()
                .and_then(|child| child.try_wait().unwrap());
            assert!(
                ended.is_none(),
                "containerd ended: {ended:?}\n{}",
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
                    .any(|one| one.kind == "RuntimeReady" && one.status)
            })
        });
    }

    fn child(&self) -> std::sync::MutexGuard<'_, Option<Child>> {
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Kills the daemon; containers live on.
    pub(crate) fn kill(&self) {
        if let Some(mut child) = self.child().take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    /// Stops the daemon in good order and starts it again; containers live on.
    pub(crate) fn restart(&self) {
        self.terminate();
        self.launch();
    }

    fn terminate(&self) {
        let Some(mut child) = self.child().take() else {
            return;
        };
        // It may have ended by itself.
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
        // The part that serves pods hears of it a moment later.
        self.eventually("the image is known", || {
            let image = Some(Image {
                image: IMAGE.to_owned(),
            });
            self.cri.call(&ImageStatusRequest { image }).image.is_some()
        });
    }

    /// Waits for something that should come soon.
    pub(crate) fn eventually(&self, what: &str, mut condition: impl FnMut() -> bool) {
        let deadline = Instant::now() + 6 * patience();
        while !condition() {
            assert!(Instant::now() < deadline, "never seen: {what}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Remembers a pod's cgroup, so that what runs in it can be ended whatever happens.
    pub(crate) fn hand_over(&self, cgroup: &str) {
        self.cgroups.lock().unwrap().insert(cgroup.to_owned());
    }

    /// Ends it, and requires that nothing of it is left on the machine: no sandbox, process, mount, cgroup or socket.
    pub(crate) fn stop(self) {
        let sandboxes = self.cri.call(&ListPodSandbox {}).items;
        assert!(
            sandboxes.is_empty(),
            "sandboxes that nobody removed: {sandboxes:?}"
        );
        for cgroup in self.cgroups.lock().unwrap().iter() {
            let left = leftovers::cgroups(cgroup);
            assert!(left.is_empty(), "cgroups that were left behind: {left:?}");
        }
        // Now and then it is runc's own doing; more often it would be ours.
        let stumbled = fs::read_to_string(self.path("stumbled")).unwrap_or_default();
        let times = stumbled.matches("created again after this").count();
        assert!(times <= 3, "runc stumbled {times} times:\n{stumbled}");
        self.terminate();
        let folder = self.folder.path();
        self.eventually("no shim is left", || {
            leftovers::processes(folder).is_empty()
        });
        let mounts = leftovers::mounts(folder);
        assert_eq!(
            mounts,
            [folder.to_str().unwrap()],
            "mounts that were left behind, but for its files"
        );
        let sockets: Vec<_> = leftovers::sockets()
            .difference(&self.sockets)
            .cloned()
            .collect();
        assert_eq!(
            sockets,
            Vec::<PathBuf>::new(),
            "sockets that were left behind"
        );
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        if let Ok(text) = fs::read_to_string(self.path("stumbled")) {
            // Aloud, also where the test passes.
            let _ = writeln!(
                std::io::stderr(),
                "runc of {} stumbled:\n{text}",
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
                "the last words of containerd of {}:\n{}",
                self.suite,
                lines[last..].join("\n")
            );
            // In good order as far as it still goes.
            if let Ok(sandboxes) = self.cri.try_call(&ListPodSandbox {}) {
                for one in sandboxes.items {
                    let _ = self.cri.try_call(&StopPodSandbox {
                        sandbox: one.id.clone(),
                    });
                    let _ = self.cri.try_call(&RemovePodSandbox { sandbox: one.id });
                }
            }
        }
        self.terminate();
        let cgroups = self.cgroups.lock().unwrap_or_else(PoisonError::into_inner);
        leftovers::end(self.folder.path(), &cgroups);
        for socket in leftovers::sockets().difference(&self.sockets) {
            let _ = fs::remove_file(socket);
        }
    }
}
