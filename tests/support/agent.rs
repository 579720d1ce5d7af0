//! The agent as a child process with a folder of manifests.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use pinfold::cpu::CpuSet;
use serde_json::Value;
use tempfile::TempDir;

use super::http::{self, Answer};

/// How long anything may take that should happen at once: 30 s, or `PINFOLD_TEST_PATIENCE` where a
/// machine is slow. Only a failure takes that long.
pub(crate) fn patience() -> Duration {
    let seconds =
        std::env::var("PINFOLD_TEST_PATIENCE").map_or(30, |seconds| seconds.parse().unwrap());
    Duration::from_secs(seconds)
}

/// The program, or the one that `PINFOLD` names, without the settings of the test's environment.
pub(crate) fn pinfold() -> Command {
    let program =
        std::env::var_os("PINFOLD").unwrap_or_else(|| env!("CARGO_BIN_EXE_pinfold").into());
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("PINFOLD") {
            command.env_remove(name);
        }
    }
    // The variables of a pod or of a cluster user are removed too.
    for name in [
        "KUBECONFIG",
        "KUBERNETES_SERVICE_HOST",
        "NODE_NAME",
        "POD_NAMESPACE",
    ] {
        command.env_remove(name);
    }
    command
}

/// A folder of manifests inside a folder of its own, because the agent also watches the folder
/// above, and other programs write to the system's folder for temporary files.
pub(crate) struct Manifests {
    _above: TempDir,
    path: PathBuf,
}

// === impl Manifests ===

impl Manifests {
    pub(crate) fn new() -> Self {
        let above = TempDir::new().unwrap();
        let path = above.path().join("pods");
        fs::create_dir(&path).unwrap();
        Self {
            _above: above,
            path,
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Writes a file as careful writers do: under a temporary name in the folder, then renamed.
    pub(crate) fn put(&self, name: &str, text: &str) {
        let beside = self.path().join(format!(".{name}"));
        fs::write(&beside, text).unwrap();
        fs::rename(beside, self.path().join(name)).unwrap();
    }

    pub(crate) fn remove(&self, name: &str) {
        fs::remove_file(self.path().join(name)).unwrap();
    }
}

/// How an agent is to be started.
#[derive(Clone)]
pub(crate) struct Settings {
    pub(crate) trees: Vec<String>,
    /// The folder of manifests, if any.
    pub(crate) pods: Option<PathBuf>,
    pub(crate) reserved: CpuSet,
    pub(crate) more: Vec<String>,
    /// Variables of the agent's environment.
    pub(crate) environment: Vec<(String, String)>,
}

// === impl Settings ===

impl Settings {
    pub(crate) fn new(tree: &str, pods: &Manifests, reserved: &CpuSet) -> Self {
        Self {
            pods: Some(pods.path().to_owned()),
            ..Self::without_manifests(tree, reserved)
        }
    }

    /// An agent that gets its pods from elsewhere than manifests.
    pub(crate) fn without_manifests(tree: &str, reserved: &CpuSet) -> Self {
        Self {
            trees: vec![tree.to_owned()],
            pods: None,
            reserved: reserved.clone(),
            // Where a kernel offers several enforcements, the person who runs the tests names the enforcement under test.
            more: std::env::var("PINFOLD_TEST_ENFORCEMENT")
                .map(|enforcement| vec![format!("--enforcement={enforcement}")])
                .unwrap_or_default(),
            // The folder is the node's, and another agent may use it.
            environment: [
                ("PINFOLD_LIVE_FILES", "false"),
                ("PINFOLD_LIVE_DIR", "/proc/nowhere"),
            ]
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .to_vec(),
        }
    }

    pub(crate) fn with(mut self, args: &[&str]) -> Self {
        self.more.extend(args.iter().map(|&arg| arg.to_owned()));
        self
    }

    /// The command line of `pinfold run`.
    pub(crate) fn command(&self) -> Command {
        let mut command = pinfold();
        command.arg("run").args([
            "--listen",
            "127.0.0.1:0",
            "--reserved",
            &self.reserved.to_string(),
        ]);
        if let Some(pods) = &self.pods {
            command.arg("--manifest-dir").arg(pods);
        }
        for tree in &self.trees {
            command.args(["--pod-cgroup", tree]);
        }
        command.args(&self.more);
        command.envs(self.environment.iter().cloned());
        command
    }

    /// Starts an agent and waits until it is ready.
    pub(crate) fn start(&self) -> Agent {
        let agent = self.start_early();
        agent.eventually("the agent is ready", |_| true);
        agent
    }

    /// Starts an agent and waits until it serves HTTP, ready or not.
    pub(crate) fn start_early(&self) -> Agent {
        let mut child = self
            .command()
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let log = Arc::new(Mutex::new(Vec::new()));
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let copy = Arc::clone(&log);
        let reader = std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                copy.lock().unwrap().push(line);
            }
        });
        let mut agent = Agent {
            child,
            log,
            reader: Some(reader),
            address: SocketAddr::from(([0; 4], 0)),
        };
        let deadline = Instant::now() + patience();
        loop {
            let text = agent.log();
            let found = text
                .split("serving http://")
                .nth(1)
                .and_then(|rest| rest.split('/').next());
            if let Some(address) = found {
                agent.address = address.parse().unwrap();
                return agent;
            }
            let ended = agent.child.try_wait().unwrap();
            assert!(
                ended.is_none() && Instant::now() < deadline,
                "no agent: {ended:?}\n{text}"
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// A running agent, killed when dropped.
pub(crate) struct Agent {
    child: Child,
    log: Arc<Mutex<Vec<String>>>,
    reader: Option<std::thread::JoinHandle<()>>,
    pub(crate) address: SocketAddr,
}

// === impl Agent ===

impl Agent {
    /// The log lines of the agent so far.
    pub(crate) fn log(&self) -> String {
        self.log.lock().unwrap().join("\n")
    }

    pub(crate) fn get(&self, path: &str) -> Answer {
        http::ask(self.address, "GET", path)
            .unwrap_or_else(|error| panic!("GET {path}: {error}\n{}", self.log()))
    }

    /// The body of `/status`; `None` before the first snapshot.
    pub(crate) fn status(&self) -> Option<Value> {
        let answer = self.get("/status");
        (answer.status == 200).then(|| serde_json::from_str(&answer.body).unwrap())
    }

    /// Waits until the status is as wanted, and returns it.
    pub(crate) fn eventually(&self, what: &str, wanted: impl FnMut(&Value) -> bool) -> Value {
        self.within(patience(), what, wanted)
    }

    /// As `eventually`, for a status that takes longer than usual.
    pub(crate) fn within(
        &self,
        time: Duration,
        what: &str,
        mut wanted: impl FnMut(&Value) -> bool,
    ) -> Value {
        let deadline = Instant::now() + time;
        loop {
            let status = self.status();
            if let Some(status) = status.as_ref().filter(|status| wanted(status)) {
                return status.clone();
            }
            if Instant::now() >= deadline {
                let status = status
                    .map(|status| format!("{status:#}"))
                    .unwrap_or_default();
                panic!("never seen: {what}\n{status}\n{}", self.log());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// The sum of the series of a family with the given labels; `None` without a series.
    pub(crate) fn metric(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        metric(&self.get("/metrics").body, name, labels)
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(
            Pid::from_raw(i32::try_from(self.child.id()).unwrap()),
            signal,
        )
        .unwrap();
    }

    /// Kills the agent as the kernel does when memory is short.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Sends SIGTERM and waits for the end. Returns the exit status, the duration and the log.
    pub(crate) fn terminate(mut self) -> (ExitStatus, Duration, String) {
        let start = Instant::now();
        self.signal(Signal::SIGTERM);
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                let took = start.elapsed();
                if let Some(reader) = self.reader.take() {
                    reader.join().unwrap();
                }
                return (status, took, self.log());
            }
            assert!(
                start.elapsed() < patience(),
                "SIGTERM doesn't end the agent\n{}",
                self.log()
            );
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Stops the agent as a node's shutdown does, and requires a clean exit within the ten seconds that the manifests allow.
    pub(crate) fn stop(self) {
        let (status, took, log) = self.terminate();
        assert!(
            status.success() && took < patience() / 3,
            "{status}, {took:?}\n{log}"
        );
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("what the agent said:\n{}", self.log());
        }
        // The agent may have ended already; then the kill has no effect.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The sum of the series of a family with the given labels, in the text of a scrape.
pub(crate) fn metric(text: &str, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
    let fits = |line: &&str| {
        let series = line.split(['{', ' ']).next() == Some(name);
        series
            && labels
                .iter()
                .all(|(label, value)| line.contains(&format!("{label}=\"{value}\"")))
    };
    let values = text
        .lines()
        .filter(fits)
        .map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap());
    values.fold(None, |sum, value| Some(sum.unwrap_or(0.0) + value))
}

/// One container in a status.
pub(crate) fn container<'a>(status: &'a Value, pod: &str, name: &str) -> Option<&'a Value> {
    let containers = status["containers"].as_array().unwrap();
    containers
        .iter()
        .find(|container| container["pod"] == pod && container["container"] == name)
}

/// The CPUs that a pod's container `main` owns according to the status.
pub(crate) fn assigned(status: &Value, pod: &str) -> Option<CpuSet> {
    container(status, pod, "main")?["assigned"]
        .as_str()
        .map(|list| list.parse().unwrap())
}

/// Whether the kernel has applied the assignment of a pod's container `main`.
pub(crate) fn in_force(status: &Value, pod: &str) -> bool {
    container(status, pod, "main").is_some_and(|container| {
        container["assigned"].is_string() && container["assigned"] == container["effective"]
    })
}

/// A manifest of a TFJob's worker with one container `main`.
pub(crate) fn worker(name: &str, uid: &str, cpus: usize) -> String {
    worker_with(name, uid, cpus, "", "")
}

/// The same with annotations (as lines) and a status (the ids of containers by name).
pub(crate) fn worker_with(
    name: &str,
    uid: &str,
    cpus: usize,
    annotation: &str,
    id: &str,
) -> String {
    let annotations = if annotation.is_empty() {
        String::new()
    } else {
        format!("\n  annotations: {{{annotation}}}")
    };
    let status = if id.is_empty() {
        String::new()
    } else {
        format!(
            "\nstatus:\n  containerStatuses:\n  - {{name: main, image: tf, imageID: '', ready: true, restartCount: 0, containerID: 'containerd://{id}'}}"
        )
    };
    format!(
        "apiVersion: v1
kind: Pod
metadata:
  name: {name}
  namespace: train
  uid: {uid}
  labels: {{training.kubeflow.org/job-name: job, training.kubeflow.org/replica-type: worker}}{annotations}
spec:
  containers:
  - name: main
    image: tf
    resources: {{limits: {{cpu: '{cpus}', memory: 1Gi}}}}{status}
"
    )
}

/// A manifest of a pod without resource requests.
pub(crate) fn best_effort(name: &str, uid: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, namespace: train, uid: {uid}}}\nspec:\n  containers:\n  - {{name: main, image: web}}\n"
    )
}
