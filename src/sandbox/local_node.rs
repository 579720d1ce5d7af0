//! [`LocalNode`]: the work of a kubelet and a container runtime for a pod: cgroups, namespaces, processes.
//!
//! The cgroups lie in a separate tree, never in the tree of a real kubelet. All parts end with the
//! local node: processes with the launcher, namespaces with the last process, cgroups on close.
//! After a kill -9 only the cgroups and the folder of manifests remain, and the next local node or
//! [`clear`] removes them.

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

use super::train::progress::ProgressLine;
use crate::host::cgroup::{Cgroups, Quota};
use crate::host::network_switch::NetworkSwitch;
use crate::host::spawn::{Launcher, Process, Spawn, Stderr};
use crate::pod::{self, Pod, Qos};

/// The cgroup above all cgroups of the local node.
const TOP: &str = "pinfold-demo";

/// The agent's cgroup tree of pods.
pub(super) const TREE: &str = "pinfold-demo/kubepods";

const FOLDER: &str = "/run/pinfold-demo";

/// The longest time until the kernel removes a killed process from its cgroup.
const CGROUP_RELEASE_TIMEOUT: Duration = Duration::from_secs(5);

/// The longest time from SIGTERM until all processes have ended.
const GRACE: Duration = Duration::from_secs(2);

/// The longest line that is read from a process, in bytes.
const LONGEST_LINE: u64 = 1 << 20;

/// The CFS period of the kubelet, in microseconds.
const PERIOD: u64 = 100_000;

/// A node on this machine, without a cluster.
#[derive(Debug)]
pub(super) struct LocalNode {
    cgroups: Cgroups,
    launcher: Launcher,
    switch: NetworkSwitch,
    running: BTreeMap<String, StartedPod>,
    /// The sum of the CPU requests of the Burstable pods, in thousandths of a CPU.
    burstable: u64,
    _lock: Flock<fs::File>,
}

#[derive(Debug)]
struct StartedPod {
    cgroup: String,
    manifest: PathBuf,
    process: Process,
    latest: Arc<Mutex<Option<ProgressLine>>>,
}

/// The listener for a process's lines, called when a line arrives.
pub(super) type LineListener = Box<dyn FnMut(&[u8], Instant) + Send>;

/// A pod to start, with a single container.
pub(super) struct PodStart<'a> {
    pub(super) pod: &'a Pod,
    pub(super) manifest: &'a str,
    /// The program of the container; the running `pinfold` program by default.
    pub(super) program: Option<PathBuf>,
    pub(super) args: Vec<String>,
    /// Variables for the environment.
    pub(super) env: BTreeMap<String, String>,
    /// The address in a separate network namespace; `None` for the namespace of the caller.
    pub(super) address: Option<Ipv4Addr>,
    /// Where standard error goes.
    pub(super) stderr: Stderr,
    /// The listener for lines. Without one, [`LocalNode::line`] returns the last line.
    pub(super) hear: Option<LineListener>,
}

// === impl LocalNode ===

impl LocalNode {
    /// Removes the remains of a killed predecessor, then creates the tree and the network.
    ///
    /// # Errors
    /// Another local node is running, or the kernel refuses a cgroup or a namespace.
    pub(super) fn open(cgroups: Cgroups) -> anyhow::Result<Self> {
        cgroups.create(TOP)?;
        let lock = crate::agent::lock(&cgroups.root().join(TOP))
            .context("another pinfold demo or bench is running: wait for its end")?;
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
                // The next local node removes the remains. The first error is the useful one.
                let _ = sweep(&cgroups);
                let _ = cgroups.remove(TOP);
                Err(error)
            }
        }
    }

    pub(super) fn folder(&self) -> &'static Path {
        Path::new(FOLDER)
    }

    /// Whether the kernel can enforce CPU limits by CFS quotas.
    pub(super) fn has_quotas(&self) -> bool {
        matches!(self.cgroups.quota(TREE), Ok(Some(_)))
    }

    /// The processes of a pod, including descendants.
    pub(super) fn processes(&self, pod: &str) -> Vec<i32> {
        let running = self.running.get(pod);
        running
            .and_then(|running| self.cgroups.processes(&running.cgroup).ok())
            .unwrap_or_default()
    }

    /// The folder of a pod's container in the hierarchy with the CPU sets; `None` for an unknown pod.
    pub(super) fn cpuset_folder(&self, pod: &str) -> Option<PathBuf> {
        let running = self.running.get(pod)?;
        Some(self.cgroups.root().join(&running.cgroup).join(pod))
    }

    /// Starts a pod: first its manifest appears, then the cgroups, then the process in the
    /// container's cgroup. Returns the starting time of the process.
    pub(super) fn start(&mut self, start: PodStart<'_>) -> anyhow::Result<Instant> {
        let PodStart {
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
        let path = self.write_manifest(&pod.name, manifest)?;
        let cgroup = self.create_pod_cgroup(pod, uid)?;
        let container = self.create_container_cgroup(pod, &cgroup)?;
        let began = Instant::now();
        let mut process = self.launcher.spawn(Spawn {
            program: match program {
                Some(program) => program,
                None => {
                    std::env::current_exe().context("can't find the file of the pinfold program")?
                }
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
            StartedPod {
                cgroup,
                manifest: path,
                process,
                latest,
            },
        );
        Ok(began)
    }

    fn write_manifest(&self, pod: &str, manifest: &str) -> anyhow::Result<PathBuf> {
        let path = self.folder().join(format!("{pod}.json"));
        // A rename replaces the file, so that the agent never reads a part of the manifest.
        let draft = path.with_extension("new");
        fs::write(&draft, manifest).with_context(|| format!("can't write {}", draft.display()))?;
        fs::rename(&draft, &path).with_context(|| format!("can't write {}", path.display()))?;
        Ok(path)
    }

    /// Creates the cgroup of a pod, below that of its QoS class.
    fn create_pod_cgroup(&mut self, pod: &Pod, uid: &str) -> anyhow::Result<String> {
        let class = match pod::qos(pod) {
            Qos::BestEffort => "besteffort/",
            Qos::Burstable => {
                self.burstable += resources(pod).cpu_request.unwrap_or(0);
                let class = format!("{TREE}/burstable");
                self.cgroups.create(&class)?;
                self.cgroups.set_request(&class, self.burstable)?;
                "burstable/"
            }
            Qos::Guaranteed => "",
        };
        let cgroup = format!("{TREE}/{class}pod{uid}");
        self.create_with_limits(pod, &cgroup)?;
        Ok(cgroup)
    }

    fn create_container_cgroup(&self, pod: &Pod, pod_cgroup: &str) -> anyhow::Result<String> {
        let cgroup = format!("{pod_cgroup}/{}", pod.name);
        self.create_with_limits(pod, &cgroup)?;
        Ok(cgroup)
    }

    /// Creates a cgroup with the CPU request and the CPU limit of the pod's container.
    fn create_with_limits(&self, pod: &Pod, cgroup: &str) -> anyhow::Result<()> {
        let resources = resources(pod);
        self.cgroups.create(cgroup)?;
        self.cgroups
            .set_request(cgroup, resources.cpu_request.unwrap_or(0))?;
        if let Some(limit) = resources.cpu_limit {
            let quota = Quota {
                quota: Some(limit * PERIOD / 1000),
                period: PERIOD,
            };
            self.cgroups.set_quota(cgroup, quota)?;
        }
        Ok(())
    }

    /// The last line of a pod's process.
    pub(super) fn line(&self, pod: &str) -> Option<ProgressLine> {
        let latest = &self.running.get(pod)?.latest;
        latest
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Checks that all processes run.
    ///
    /// # Errors
    /// A process has ended.
    pub(super) fn check(&mut self) -> anyhow::Result<()> {
        for (name, running) in &mut self.running {
            if let Some(status) = running.process.try_wait()? {
                anyhow::bail!(
                    "the process of pod {name} ended early ({status}); see the messages of the process above"
                );
            }
        }
        Ok(())
    }

    /// The exit status of a pod's process; `None` for a running process or an unknown pod.
    pub(super) fn ended(&mut self, pod: &str) -> anyhow::Result<Option<ExitStatus>> {
        match self.running.get_mut(pod) {
            Some(running) => Ok(running.process.try_wait()?),
            None => Ok(None),
        }
    }

    /// Ends every pod, as a deletion does: processes, then cgroups, then manifests.
    pub(super) fn stop_all(&mut self) -> anyhow::Result<()> {
        // All processes get the signal first, so that none waits for a peer that is gone.
        for running in self.running.values_mut() {
            running.process.kill(Signal::SIGTERM)?;
            signal(&self.cgroups, &running.cgroup, Signal::SIGTERM);
        }
        self.burstable = 0;
        let deadline = Instant::now() + GRACE;
        for (_, mut running) in std::mem::take(&mut self.running) {
            running.process.stop_by(deadline)?;
            retry_until_released(|| {
                // Descendants of the process, such as a shell's commands, must not outlive the pod.
                signal(&self.cgroups, &running.cgroup, Signal::SIGKILL);
                self.cgroups.remove(&running.cgroup)
            })?;
            // Another program may have removed the manifest, so the error is ignored.
            let _ = fs::remove_file(&running.manifest);
        }
        // The addresses are free again.
        self.switch = NetworkSwitch::new()?;
        Ok(())
    }

    /// Ends every pod and removes all remains.
    pub(super) fn close(mut self) -> anyhow::Result<()> {
        let stopped = self.stop_all();
        sweep(&self.cgroups)?;
        retry_until_released(|| self.cgroups.remove(TOP))?;
        stopped
    }
}

/// The resources of the pod's container.
fn resources(pod: &Pod) -> pod::Resources {
    let container = pod.containers.first();
    container
        .map(|container| container.resources)
        .unwrap_or_default()
}

/// Sends a signal to all processes in a cgroup. Errors are ignored, because processes may end at
/// any moment.
fn signal(cgroups: &Cgroups, cgroup: &str, signal: Signal) {
    for pid in cgroups.processes(cgroup).unwrap_or_default() {
        let _ = nix::sys::signal::kill(Pid::from_raw(pid), signal);
    }
}

/// Removes the remains of a killed local node, unless another one runs.
///
/// # Errors
/// The kernel refuses.
pub(super) fn clear(cgroups: &Cgroups) -> anyhow::Result<()> {
    if !cgroups.exists(TOP) {
        return Ok(());
    }
    // A killed process may still be closing files.
    let Ok(_lock) = retry_until_released(|| crate::agent::lock(&cgroups.root().join(TOP))) else {
        return Ok(());
    };
    sweep(cgroups)?;
    retry_until_released(|| cgroups.remove(TOP)).context("can't remove the remaining cgroups")
}

/// Removes the remains of a killed predecessor, then creates the parts of a node.
///
/// The top cgroup and the tree get the weight that a kubelet gives its pods: a request of all CPUs.
fn furnish(cgroups: &Cgroups) -> anyhow::Result<(Launcher, NetworkSwitch)> {
    sweep(cgroups)?;
    cgroups.create(TREE)?;
    let all = 1000 * cgroups.all_cpus()?.len() as u64;
    for cgroup in [TOP, TREE] {
        cgroups.set_request(cgroup, all)?;
    }
    let besteffort = format!("{TREE}/besteffort");
    cgroups.create(&besteffort)?;
    cgroups.set_request(&besteffort, 0)?;
    fs::create_dir_all(FOLDER).with_context(|| format!("can't make {FOLDER}"))?;
    let launcher = Launcher::new().context("can't start the launcher's thread")?;
    Ok((launcher, NetworkSwitch::new()?))
}

/// Removes the remains of a predecessor: processes (only if it died a moment ago), cgroups,
/// manifests.
fn sweep(cgroups: &Cgroups) -> anyhow::Result<()> {
    retry_until_released(|| {
        // Again and again, because a process may fork between being listed and being killed.
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

/// Repeats a failing action until the timeout, because a cgroup stays busy until the kernel has
/// removed its last process.
fn retry_until_released<T, E>(mut action: impl FnMut() -> Result<T, E>) -> Result<T, E> {
    let deadline = Instant::now() + CGROUP_RELEASE_TIMEOUT;
    loop {
        match action() {
            Err(_) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(10)),
            done => return done,
        }
    }
}

/// Calls the listener for each line of a process until the end of the output.
fn follow(stdout: std::process::ChildStdout, mut hear: LineListener) {
    let mut stdout = BufReader::new(stdout);
    let mut line = Vec::new();
    loop {
        line.clear();
        // A line without an end is cut, so that a program can't fill the memory.
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
fn keep(text: &[u8], latest: &Mutex<Option<ProgressLine>>) {
    if let Ok(line) = serde_json::from_slice(text) {
        *latest.lock().unwrap_or_else(PoisonError::into_inner) = Some(line);
    }
}
