//! The program as started by the DaemonSet and by the unit, on the real kernel: with exactly their capabilities, and
//! with a service manager that receives notifications.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::kernel::{Kernel, Tree, kernel_tests};
use crate::tools::{debian, documents};

const UID: &str = "5d0f8a51-6d3e-4a44-9d0b-0a1f5f7a9c11";

/// The time limit for actions that should happen at once. Only a failure takes so long.
const PATIENCE: Duration = Duration::from_secs(60);

fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "{what}: not within {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn get(address: SocketAddr, path: &str) -> Option<String> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).ok()?;
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n"
    )
    .ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    text.split_once("\r\n\r\n").map(|(_, body)| body.to_owned())
}

/// A process that ends with the test.
struct ChildProcess(Child);

impl Drop for ChildProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl ChildProcess {
    /// Waits for a line on stdout or stderr with `word`, and returns the address after `word`.
    fn address_after(&mut self, word: &str) -> SocketAddr {
        let (out, err) = (self.0.stdout.take(), self.0.stderr.take());
        let (sender, lines) = std::sync::mpsc::channel();
        let streams = [
            out.map(|out| Box::new(out) as Box<dyn Read + Send>),
            err.map(|err| Box::new(err) as _),
        ];
        for stream in streams.into_iter().flatten() {
            let sender = sender.clone();
            std::thread::spawn(move || {
                for line in BufReader::new(stream).lines().map_while(Result::ok) {
                    let _ = sender.send(line);
                }
            });
        }
        drop(sender);
        let mut earlier_lines = String::new();
        let deadline = Instant::now() + PATIENCE;
        while let Ok(line) = lines.recv_timeout(deadline.saturating_duration_since(Instant::now()))
        {
            if let Some((_, rest)) = line.split_once(word) {
                return rest.split('/').next().unwrap().trim().parse().unwrap();
            }
            earlier_lines.push_str(&line);
            earlier_lines.push('\n');
        }
        panic!("no line contained {word}:\n{earlier_lines}");
    }

    fn terminate(&mut self) {
        kill(
            Pid::from_raw(i32::try_from(self.0.id()).unwrap()),
            Signal::SIGTERM,
        )
        .unwrap();
        eventually("the process ends", || self.0.try_wait().unwrap().is_some());
    }
}

/// Pinfold with exactly the given capabilities, as root and with `no_new_privs`, like a process of a container runtime.
fn with_capabilities(capabilities: &[&str]) -> Command {
    let mut set = "-all".to_owned();
    for capability in capabilities {
        set.push_str(&format!(",+{}", capability.to_lowercase()));
    }
    let mut command = Command::new(debian("setpriv", "util-linux").unwrap());
    command.args([
        "--bounding-set",
        &set,
        "--inh-caps",
        &set,
        "--no-new-privs",
        "--",
    ]);
    command.arg(env!("CARGO_BIN_EXE_pinfold"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("PINFOLD") {
            command.env_remove(name);
        }
    }
    command
}

/// A folder with the manifest of a worker pod with one exclusive CPU.
fn manifests() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let text = format!(
        "apiVersion: v1\nkind: Pod\nmetadata:\n  name: w\n  namespace: train\n  uid: {UID}\n  labels: {{training.kubeflow.org/replica-type: worker}}\n\
         spec:\n  containers:\n  - {{name: main, image: tf, resources: {{limits: {{cpu: '1', memory: 1Gi}}}}}}\n"
    );
    std::fs::write(folder.path().join("w.yaml"), text).unwrap();
    folder
}

/// The pod's container. Its process has a different user and a network namespace, as in a cluster.
fn container(kernel: &Kernel, tree: &Tree<'_>) -> (String, ChildProcess) {
    let path = tree.container(&tree.pod("", UID), "c0ffee");
    let user = [
        "--reuid",
        "1000",
        "--regid",
        "1000",
        "--clear-groups",
        "sleep",
        "600",
    ];
    let process = Command::new("unshare")
        .args(["-n", "setpriv"])
        .args(user)
        .spawn()
        .unwrap();
    let process = ChildProcess(process);
    eventually("the container's process has the user 1000", || {
        std::fs::read_to_string(format!("/proc/{}/status", process.0.id()))
            .is_ok_and(|status| status.contains("\nUid:\t1000\t"))
    });
    assert!(kernel.write(&path, "cgroup.procs", &process.0.id().to_string()));
    (path, process)
}

fn settings(command: &mut Command, kernel: &Kernel, tree: &Tree<'_>, pods: &tempfile::TempDir) {
    command.args([
        "--listen",
        "127.0.0.1:0",
        "--pod-cgroup",
        &tree.path,
        "--reserved",
        &kernel.first().to_string(),
    ]);
    command.arg("--manifest-dir").arg(pods.path());
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
}

/// The results of an agent with the given capabilities: whether the pod has an exclusive CPU, whether the pod's network
/// is known, and whether the agent uses the kernel's accounting. Without CAP_SYS_ADMIN, the agent must refuse to start.
fn results_with(kernel: &Kernel, capabilities: &[&str]) -> (bool, bool, bool) {
    let (tree, pods) = (kernel.tree(), manifests());
    let (path, process) = container(kernel, &tree);
    let mut command = with_capabilities(capabilities);
    command.arg("run");
    settings(&mut command, kernel, &tree, &pods);
    if !capabilities.contains(&"SYS_ADMIN") {
        let output = command.output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert!(error.contains("needs CAP_SYS_ADMIN"), "{error}");
        drop(process);
        return (false, false, false);
    }
    let mut agent = ChildProcess(command.spawn().unwrap());
    let address = agent.address_after("serving http://");
    eventually("the metrics list the pod", || {
        get(address, "/metrics").is_some_and(|text| text.contains("pinfold_pod_network_scope{"))
    });
    let pinned = kernel.effective(&path).len() == 1;
    let network = get(address, "/metrics")
        .unwrap()
        .contains(r#"pinfold_pod_network_scope{namespace="train",pod="w",scope="pod"} 1"#);
    let accounting = uses_accounting(agent.0.id());
    agent.terminate();
    // SIGTERM keeps the assignment. `release` with the same capabilities returns the CPU.
    if pinned {
        let mut release = with_capabilities(capabilities);
        release.arg("release");
        settings(&mut release, kernel, &tree, &pods);
        assert!(release.output().unwrap().status.success());
        assert!(
            kernel.effective(&path).len() > 1,
            "release returned the CPU"
        );
    }
    drop(process);
    (pinned, network, accounting)
}

/// Whether a process has a socket of generic netlink (protocol 16). The agent keeps its socket only
/// after an answer from the kernel's accounting.
fn uses_accounting(pid: u32) -> bool {
    let sockets = std::fs::read_to_string("/proc/net/netlink").unwrap();
    sockets.lines().any(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        fields.get(1) == Some(&"16") && fields.get(2) == Some(&pid.to_string().as_str())
    })
}

#[test]
fn the_daemonsets_capabilities_are_sufficient_and_necessary() {
    let Some(kernel) = kernel_tests() else { return };
    let manifest = documents("deploy/base/daemonset.yaml").remove(0);
    let add = &manifest["spec"]["template"]["spec"]["containers"][0]["securityContext"]["capabilities"]
        ["add"];
    let all: Vec<&str> = add
        .as_array()
        .unwrap()
        .iter()
        .map(|capability| capability.as_str().unwrap())
        .collect();
    assert_eq!(
        results_with(&kernel, &all),
        (true, true, true),
        "with {all:?}"
    );
    for without in &all {
        let rest: Vec<&str> = all
            .iter()
            .copied()
            .filter(|capability| capability != without)
            .collect();
        assert_ne!(
            results_with(&kernel, &rest),
            (true, true, true),
            "{without} is not needed"
        );
    }
}

/// `doctor` reports no problem with the capabilities of the DaemonSet's pod, of the service, and of a manual start.
#[test]
fn doctor_accepts_the_agents_capabilities() {
    let Some(kernel) = kernel_tests() else { return };
    let (tree, pods) = (kernel.tree(), manifests());
    let doctor = |mut command: Command| {
        command.args(["doctor", "-o", "json"]);
        settings(&mut command, &kernel, &tree, &pods);
        let output = command.output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        (
            output.status.code(),
            serde_json::from_str::<serde_json::Value>(&text).unwrap(),
        )
    };
    let manifest = documents("deploy/base/daemonset.yaml").remove(0);
    let add = &manifest["spec"]["template"]["spec"]["containers"][0]["securityContext"]["capabilities"]
        ["add"];
    let pod: Vec<&str> = add
        .as_array()
        .unwrap()
        .iter()
        .map(|capability| capability.as_str().unwrap())
        .collect();
    let unit = std::fs::read_to_string(crate::tools::here("systemd/pinfold.service")).unwrap();
    let set = unit
        .lines()
        .find_map(|line| line.strip_prefix("CapabilityBoundingSet="))
        .unwrap();
    let service: Vec<&str> = set
        .split(' ')
        .map(|capability| capability.strip_prefix("CAP_").unwrap())
        .collect();
    for capabilities in [pod, service] {
        let (code, report) = doctor(with_capabilities(&capabilities));
        assert_eq!(
            (code, &report["canPin"]),
            (Some(0), &true.into()),
            "{capabilities:?}: {report:#}"
        );
    }
    let (code, report) = doctor(Command::new(env!("CARGO_BIN_EXE_pinfold")));
    assert_eq!(
        (code, &report["canPin"]),
        (Some(0), &true.into()),
        "manual start: {report:#}"
    );
    // `doctor` names a missing capability.
    let (code, report) = doctor(with_capabilities(&["sys_ptrace", "net_admin"]));
    assert_eq!(
        (code, &report["canPin"]),
        (Some(1), &false.into()),
        "{report:#}"
    );
    let findings = report["findings"].as_array().unwrap();
    let marks = findings
        .iter()
        .find(|finding| finding["what"] == "records")
        .unwrap();
    assert!(
        marks["advice"].as_str().unwrap().contains("CAP_SYS_ADMIN"),
        "{marks}"
    );
}

/// A fake cgroup v2 hierarchy with partitions. As in the kernel, only `CAP_DAC_OVERRIDE` permits writes to the root.
fn hierarchy_with_partitions() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let kubepods = folder.path().join("kubepods");
    std::fs::create_dir(&kubepods).unwrap();
    let online = std::fs::read_to_string("/sys/devices/system/cpu/online").unwrap();
    for dir in [folder.path(), &kubepods] {
        let files = [
            ("cgroup.controllers", "cpuset cpu"),
            ("cgroup.subtree_control", "cpuset cpu"),
            ("cgroup.procs", ""),
            ("cpuset.cpus.effective", online.trim()),
            ("cpuset.cpus.isolated", ""),
            ("cpuset.mems.effective", "0"),
        ];
        for (name, text) in files {
            std::fs::write(dir.join(name), format!("{text}\n")).unwrap();
        }
    }
    let files = [
        ("cpuset.cpus", ""),
        ("cpuset.cpus.exclusive", ""),
        ("cpuset.cpus.partition", "member"),
        ("cpuset.mems", ""),
        ("cpu.max", "max 100000"),
    ];
    for (name, text) in files {
        std::fs::write(kubepods.join(name), format!("{text}\n")).unwrap();
    }
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o555)).unwrap();
    folder
}

/// A trial partition that needs more rights than the agent does not make `doctor` fail.
#[test]
fn doctor_skips_the_trial_partition_without_the_right_to_make_a_cgroup() {
    if kernel_tests().is_none() {
        return;
    }
    let cgroups = hierarchy_with_partitions();
    let mut doctor = with_capabilities(&["sys_admin", "sys_ptrace", "net_admin"]);
    doctor
        .args([
            "doctor",
            "-o",
            "json",
            "--enforcement",
            "partition",
            "--cgroup-dir",
        ])
        .arg(cgroups.path());
    let output = doctor.output().unwrap();
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let findings = report["findings"].as_array().unwrap();
    let partitions = findings
        .iter()
        .find(|finding| finding["what"] == "partitions")
        .unwrap();
    assert_eq!(partitions["verdict"], "weak", "{report:#}");
    assert!(
        partitions["finding"]
            .as_str()
            .unwrap()
            .contains("CAP_DAC_OVERRIDE"),
        "{partitions}"
    );
    assert_eq!(
        (output.status.code(), &report["canPin"]),
        (Some(0), &true.into()),
        "{report:#}"
    );
}

#[test]
fn release_with_stay_listens_after_all_cpus_are_returned() {
    let Some(kernel) = kernel_tests() else { return };
    let (tree, pods) = (kernel.tree(), manifests());
    let (path, process) = container(&kernel, &tree);
    let mut command = with_capabilities(&["sys_admin"]);
    command.arg("run");
    settings(&mut command, &kernel, &tree, &pods);
    let mut agent = ChildProcess(command.spawn().unwrap());
    agent.address_after("serving http://");
    eventually("the container has its CPU", || {
        kernel.effective(&path).len() == 1
    });
    // While the agent runs, `release` refuses to work, so no probe can see a finished release.
    let mut early = with_capabilities(&["sys_admin"]);
    early.args(["release", "--stay"]);
    settings(&mut early, &kernel, &tree, &pods);
    assert_eq!(early.output().unwrap().status.code(), Some(2));
    agent.terminate();
    let mut command = with_capabilities(&["sys_admin"]);
    command.args(["release", "--stay"]);
    settings(&mut command, &kernel, &tree, &pods);
    let mut release = ChildProcess(command.spawn().unwrap());
    let address = release.address_after("waiting for SIGTERM on ");
    assert!(
        kernel.effective(&path).len() > 1,
        "release listens before it has returned the CPU"
    );
    // The number of connections of a probe in ten minutes.
    for _ in 0..300 {
        TcpStream::connect_timeout(&address, PATIENCE).unwrap();
    }
    release.terminate();
    drop(process);
}

#[test]
fn the_service_manager_gets_ready_watchdog_and_stopping() {
    let Some(kernel) = kernel_tests() else { return };
    let (tree, pods) = (kernel.tree(), manifests());
    let (_, process) = container(&kernel, &tree);
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("notify");
    let listener = UnixDatagram::bind(&socket).unwrap();
    listener.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut command = with_capabilities(&["sys_admin", "sys_ptrace"]);
    command
        .arg("run")
        .env("NOTIFY_SOCKET", &socket)
        .env("WATCHDOG_USEC", "1500000");
    settings(&mut command, &kernel, &tree, &pods);
    let mut agent = ChildProcess(command.spawn().unwrap());
    agent.address_after("serving http://");
    let wait_for_notification = |wanted: &str| {
        let mut earlier = Vec::new();
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            let mut buffer = [0; 4096];
            let length = listener
                .recv(&mut buffer)
                .unwrap_or_else(|error| panic!("{wanted}: {error} after {earlier:?}"));
            let text = String::from_utf8_lossy(&buffer[..length]).into_owned();
            if text.lines().any(|line| line == wanted) {
                return text;
            }
            earlier.push(text);
        }
        panic!("no {wanted} arrived, only {earlier:?}");
    };
    let ready = wait_for_notification("READY=1");
    assert!(
        ready.contains("STATUS=") && ready.contains("with exclusive CPUs"),
        "{ready}"
    );
    wait_for_notification("WATCHDOG=1");
    wait_for_notification("WATCHDOG=1");
    kill(
        Pid::from_raw(i32::try_from(agent.0.id()).unwrap()),
        Signal::SIGTERM,
    )
    .unwrap();
    wait_for_notification("STOPPING=1");
    eventually("the agent ends", || agent.0.try_wait().unwrap().is_some());
    drop(process);
}
