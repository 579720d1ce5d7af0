//! [`LocalNode`]: what a kubelet and a container runtime do for a pod, done here: cgroups, namespaces, processes.
//!
//! Its cgroups lie in a tree of their own, never in a real kubelet's. Everything it makes ends with it: processes when
//! their launcher goes, namespaces with the last process, cgroups when it is closed. After a kill -9 only cgroups are
//! left (and the folder of manifests); the next one finds and removes them, or [`clear`] does.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context;
use nix::fcntl::Flock;
use nix::sys::signal::Signal;
use nix::unistd::Pid;

use super::train::progress::Line;
use crate::host::cgroup::{Cgroups, Quota};
use crate::host::netns::Switch;
use crate::host::spawn::{Launcher, Process, Spawn, Stderr};
use crate::pod::{self, Pod, Qos};

/// The cgroup that holds everything.
const TOP: &str = "pinfold-demo";

/// The tree that the agent is pointed at.
pub(super) const TREE: &str = "pinfold-demo/kubepods";

/// Where the manifests lie.
const FOLDER: &str = "/run/pinfold-demo";

/// The kernel takes a moment to let go of a killed process.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long processes may take to end when they are asked to, all together.
const GRACE: Duration = Duration::from_secs(2);

/// The longest line of a process that is heard in one piece.
const LONGEST_LINE: u64 = 1 << 20;

/// A CFS period, as the kubelet sets it.
const PERIOD: u64 = 100_000;

/// A node of one machine, without a cluster.
#[derive(Debug)]
pub(super) struct LocalNode {
    cgroups: Cgroups,
    launcher: Launcher,
    switch: Switch,
    running: BTreeMap<String, Running>,
    /// What the pods of class Burstable ask for together, in thousandths of a CPU.
    burstable: u64,
    _lock: Flock<fs::File>,
}

/// A pod that was started.
#[derive(Debug)]
struct Running {
    cgroup: String,
    manifest: PathBuf,
    process: Process,
    latest: Arc<Mutex<Option<Line>>>,
}

/// Who hears a line that a process writes, at the moment when it comes.
pub(super) type Hear = Box<dyn FnMut(&[u8], Instant) + Send>;

/// One pod to start, of one container.
pub(super) struct Start<'a> {
    /// The pod, with a uid.
    pub(super) pod: &'a Pod,
    /// Its manifest, as JSON.
    pub(super) manifest: &'a str,
    /// The program that the container runs; this one where none is named.
    pub(super) program: Option<PathBuf>,
    /// Its arguments.
    pub(super) args: Vec<String>,
    /// Variables for its environment.
    pub(super) env: BTreeMap<String, String>,
    /// Its address, in a network namespace of its own; `None` for this program's namespace.
    pub(super) address: Option<Ipv4Addr>,
    /// Where its standard error goes.
    pub(super) stderr: Stderr,
    /// Who hears its lines; without anybody the last one is kept for [`LocalNode::line`].
    pub(super) hear: Option<Hear>,
}

// === impl LocalNode ===

impl LocalNode {
    /// Makes the tree and the network, after clearing away what a killed predecessor left.
    ///
    /// # Errors
    /// Another one is running, or the kernel refuses a cgroup or a namespace.
    pub(super) fn open(cgroups: Cgroups) -> anyhow::Result<Self> {
        cgroups.create(TOP)?;
        let lock = crate::agent::lock(&cgroups.root().join(TOP))
            .context("another pinfold demo is running, or a bench")?;
        match furnish(&cgroups) {
            Ok((launcher, switch)) => Ok(Self {
                cgroups,
                launcher,
                switch,
                running: BTreeMap::new(),
                burstable: 0,
                _lock: lock,
            }),
            Err(error) => {
                // What can't be removed either is the next one's to find; this error is the one to tell.
                let _ = sweep(&cgroups);
                let _ = cgroups.remove(TOP);
                Err(error)
            }
        }
    }

    /// The folder of manifests.
    pub(super) fn folder(&self) -> &'static Path {
        Path::new(FOLDER)
    }

    /// Whether pods can be held to a quota, as a limit does it.
    pub(super) fn has_quotas(&self) -> bool {
        matches!(self.cgroups.quota(TREE), Ok(Some(_)))
    }

    /// The processes of a pod, whatever they have started included.
    pub(super) fn processes(&self, pod: &str) -> Vec<i32> {
        let running = self.running.get(pod);
        running
            .and_then(|running| self.cgroups.processes(&running.cgroup).ok())
            .unwrap_or_default()
    }

    /// Starts a pod: its manifest appears, then its cgroups, then its process in them. Returns when the process began.
    pub(super) fn start(&mut self, start: Start<'_>) -> anyhow::Result<Instant> {
        let Start {
            pod,
            manifest,
            program,
            args,
            env,
            address,
            stderr,
            hear,
        } = start;
        let uid = pod.cgroup_uid().context("a pod of the demo has no uid")?;
        let path = self.folder().join(format!("{}.json", pod.name));
        // Written beside and renamed, so that the agent never reads half of it.
        let draft = path.with_extension("new");
        fs::write(&draft, manifest).with_context(|| format!("can't write {}", draft.display()))?;
        fs::rename(&draft, &path).with_context(|| format!("can't write {}", path.display()))?;

        let resources = pod
            .containers
            .first()
            .map(|container| container.resources)
            .unwrap_or_default();
        let class = match pod::qos(pod) {
            Qos::BestEffort => "besteffort/",
            Qos::Burstable => {
                self.burstable += resources.cpu_request.unwrap_or(0);
                let class = format!("{TREE}/burstable");
                self.cgroups.create(&class)?;
                self.cgroups.set_request(&class, self.burstable)?;
                "burstable/"
            }
            Qos::Guaranteed => "",
        };
        let cgroup = format!("{TREE}/{class}pod{uid}");
        let container = format!("{cgroup}/{}", pod.name);
        for one in [&cgroup, &container] {
            self.cgroups.create(one)?;
            self.cgroups
                .set_request(one, resources.cpu_request.unwrap_or(0))?;
            if let Some(limit) = resources.cpu_limit {
                self.cgroups.set_quota(
                    one,
                    Quota {
                        quota: Some(limit * PERIOD / 1000),
                        period: PERIOD,
                    },
                )?;
            }
        }
        let began = Instant::now();
        let mut process = self.launcher.spawn(Spawn {
            program: match program {
                Some(program) => program,
                None => std::env::current_exe().context("can't find this program's own file")?,
            },
            args: args.into_iter().map(OsString::from).collect(),
            env,
            cgroup_procs: self.cgroups.procs_files(&container),
            netns: address
                .map(|address| self.switch.join(address))
                .transpose()?,
            stderr,
        })?;
        let latest = Arc::new(Mutex::new(None));
        if let Some(stdout) = process.take_stdout() {
            let kept = Arc::clone(&latest);
            let hear = hear.unwrap_or_else(|| Box::new(move |text, _| keep(text, &kept)));
            std::thread::spawn(move || follow(stdout, hear));
        }
        self.running.insert(
            pod.name.clone(),
            Running {
                cgroup,
                manifest: path,
                process,
                latest,
            },
        );
        Ok(began)
    }

    /// What a pod's process said last.
    pub(super) fn line(&self, pod: &str) -> Option<Line> {
        let latest = &self.running.get(pod)?.latest;
        latest
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// An error if a process has ended, which none should do by itself.
    pub(super) fn check(&mut self) -> anyhow::Result<()> {
        for (name, running) in &mut self.running {
            if let Some(status) = running.process.try_wait()? {
                anyhow::bail!(
                    "the process of pod {name} ended by itself ({status}); see above for what it said"
                );
            }
        }
        Ok(())
    }

    /// How the process of a pod ended; `None` while it runs, or where there is no such pod.
    pub(super) fn ended(&mut self, pod: &str) -> anyhow::Result<Option<ExitStatus>> {
        match self.running.get_mut(pod) {
            Some(running) => Ok(running.process.try_wait()?),
            None => Ok(None),
        }
    }

    /// Ends every pod, as a deletion does: processes, then cgroups, then manifests.
    pub(super) fn stop_all(&mut self) -> anyhow::Result<()> {
        // All are asked at once, so that nobody waits for a peer that is gone.
        for running in self.running.values_mut() {
            running.process.kill(Signal::SIGTERM)?;
            signal(&self.cgroups, &running.cgroup, Signal::SIGTERM);
        }
        self.burstable = 0;
        let deadline = Instant::now() + GRACE;
        for (_, mut running) in std::mem::take(&mut self.running) {
            running.process.stop_by(deadline)?;
            patiently(|| {
                // What the process has started itself, such as a shell's commands, must not outlive it.
                signal(&self.cgroups, &running.cgroup, Signal::SIGKILL);
                self.cgroups.remove(&running.cgroup)
            })?;
            // Somebody may have tidied the folder; the pod is gone either way.
            let _ = fs::remove_file(&running.manifest);
        }
        // The addresses are free again.
        self.switch = Switch::new()?;
        Ok(())
    }

    /// Ends every pod and removes all that was made.
    pub(super) fn close(mut self) -> anyhow::Result<()> {
        let stopped = self.stop_all();
        sweep(&self.cgroups)?;
        patiently(|| self.cgroups.remove(TOP))?;
        stopped
    }
}

/// Sends a signal to whatever runs in a cgroup; some of it may end meanwhile, or have ended.
fn signal(cgroups: &Cgroups, cgroup: &str, signal: Signal) {
    for pid in cgroups.processes(cgroup).unwrap_or_default() {
        let _ = nix::sys::signal::kill(Pid::from_raw(pid), signal);
    }
}

/// Removes what a local node that was killed has left, unless there is another by now.
///
/// # Errors
/// The kernel refuses.
pub(super) fn clear(cgroups: &Cgroups) -> anyhow::Result<()> {
    if !cgroups.exists(TOP) {
        return Ok(());
    }
    // Whoever was killed may still be closing its files.
    let Ok(_lock) = patiently(|| crate::agent::lock(&cgroups.root().join(TOP))) else {
        return Ok(());
    };
    sweep(cgroups)?;
    patiently(|| cgroups.remove(TOP)).context("can't remove the cgroups that were left")
}

/// Makes what a node needs, after clearing away what a killed predecessor left.
fn furnish(cgroups: &Cgroups) -> anyhow::Result<(Launcher, Switch)> {
    sweep(cgroups)?;
    cgroups.create(TREE)?;
    let besteffort = format!("{TREE}/besteffort");
    cgroups.create(&besteffort)?;
    cgroups.set_request(&besteffort, 0)?;
    fs::create_dir_all(FOLDER).with_context(|| format!("can't make {FOLDER}"))?;
    let launcher = Launcher::new().context("can't start the launcher's thread")?;
    Ok((launcher, Switch::new()?))
}

/// Removes what a predecessor left: processes (there are none unless it died a moment ago), cgroups, manifests.
fn sweep(cgroups: &Cgroups) -> anyhow::Result<()> {
    patiently(|| {
        // Again and again: a process may fork between being listed and being killed.
        signal(cgroups, TREE, Signal::SIGKILL);
        cgroups.remove(TREE)
    })?;
    match fs::remove_dir_all(FOLDER) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("can't remove {FOLDER}"))
        }
        _ => Ok(()),
    }
}

/// Tries again for a while: a cgroup stays busy until the kernel has let go of its last process.
fn patiently<T, E>(mut action: impl FnMut() -> Result<T, E>) -> Result<T, E> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match action() {
            Err(_) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(10)),
            done => return done,
        }
    }
}

/// Lets somebody hear each line that a process writes, for as long as it writes.
fn follow(stdout: std::process::ChildStdout, mut hear: Hear) {
    let mut stdout = BufReader::new(stdout);
    let mut line = Vec::new();
    loop {
        line.clear();
        // A line without an end is cut: what writes gigabytes of dots must not be kept.
        match Read::by_ref(&mut stdout)
            .take(LONGEST_LINE)
            .read_until(b'\n', &mut line)
        {
            Ok(0) | Err(_) => return,
            Ok(_) => hear(line.trim_ascii_end(), Instant::now()),
        }
    }
}

/// Keeps a line of the job's own processes.
fn keep(text: &[u8], latest: &Mutex<Option<Line>>) {
    if let Ok(line) = serde_json::from_slice(text) {
        *latest.lock().unwrap_or_else(PoisonError::into_inner) = Some(line);
    }
}
