//! Real frameworks under the agent: CPUs, thread variables and findings agree with what the programs do.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use pinfold::cpu::CpuSet;
use pinfold::host::spawn::{Spawn, Stderr};
use serde_json::Value;
use tempfile::TempDir;

use crate::agent::{Agent, Settings, patience, pinfold};
use crate::fakeapi::yaml::{here, parse};
use crate::gate;
use crate::kernel::{Kernel, Tree, kernel_tests};
use crate::runtime::EventMessage;
use crate::runtime_requests::{
    CreatedContainer, Runtime, event_message, event_message_of_class, path,
};

/// How long a framework may take to start and to train.
fn training_time() -> Duration {
    patience() * 6
}

/// NRI's numbers of the events.
const RUN_POD_SANDBOX: i32 = 1;
const START_CONTAINER: i32 = 6;

/// A task after StartContainer, with the log of its program.
struct RunningTask {
    name: String,
    created: CreatedContainer,
    log: PathBuf,
}

// === impl RunningTask ===

impl RunningTask {
    /// Creates and starts the task's container with the agent's variables. As with a container runtime, the program begins
    /// after the answer to StartContainer.
    fn start(
        runtime: &mut Runtime,
        tree: &mut Tree<'_>,
        logs: &TempDir,
        description: &EventMessage,
        program: &Path,
    ) -> Self {
        runtime.change(RUN_POD_SANDBOX, description);
        let created = runtime.create(description);
        let container = description.container.as_ref().unwrap();
        let name = description.pod.as_ref().unwrap().name.clone();
        let own = container.env.iter().map(|variable| {
            let (key, value) = variable.split_once('=').unwrap();
            (key.to_owned(), value.to_owned())
        });
        let mut env: BTreeMap<String, String> = own.collect();
        env.extend(created.env.clone());
        env.insert("PATH".to_owned(), "/usr/bin:/bin".to_owned());
        let log = logs.path().join(&name);
        let cgroup = tree.make(&path(description));
        let spawn = Spawn {
            program: program.to_owned(),
            args: container.args[1..].iter().map(Into::into).collect(),
            env,
            cgroup_procs: Vec::new(),
            netns: None,
            stderr: Stderr::File(log.clone()),
        };
        runtime.change(START_CONTAINER, description);
        tree.spawn(&cgroup, spawn);
        Self { name, created, log }
    }

    /// Waits until the log has `count` lines with a text, and returns them.
    fn wait_for_lines(&self, text: &str, count: usize) -> Vec<String> {
        let deadline = Instant::now() + training_time();
        loop {
            let log = fs::read_to_string(&self.log).unwrap_or_default();
            let lines = log.lines().filter(|line| line.contains(text));
            let lines: Vec<String> = lines.map(str::to_owned).collect();
            if lines.len() >= count {
                return lines;
            }
            assert!(
                Instant::now() < deadline,
                "{}: no {text:?} in:\n{log}",
                self.name
            );
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// The different checksums of the trained weights, after `count` processes have printed one.
    fn checksums(&self, count: usize) -> BTreeSet<String> {
        let lines = self.wait_for_lines("checksum", count);
        let checksum = |line: &String| line.rsplit(' ').next().unwrap().to_owned();
        lines.iter().map(checksum).collect()
    }

    /// Asserts that the task runs as the agent predicted: every thread on these CPUs only, the
    /// computed variables in the program's environment, and the number of threads as expected.
    /// Returns what `pinfold explain` reports.
    fn assert_as_predicted(&self, agent: &Agent, kernel: &Kernel, cpus: &CpuSet) -> Value {
        let explanation = wait_until_as_expected(agent, &self.name);
        let threads = threads(kernel, explanation["cgroup"].as_str().unwrap());
        let observed = &explanation["observed"];
        assert!(threads.len() > 1, "{}: {threads:?}", self.name);
        for (thread, allowed) in threads {
            assert_eq!(&allowed, cpus, "{}: thread {thread}", self.name);
        }
        let computed = explanation["threads"]["variables"].as_object().unwrap();
        assert_eq!(
            observed["variables"].as_object(),
            Some(computed),
            "{}",
            self.name
        );
        for (name, value) in computed {
            assert_eq!(
                Some(self.created.env[name].as_str()),
                value.as_str(),
                "{}: {name}",
                self.name
            );
        }
        explanation
    }
}

/// An agent that may assign only the highest CPU, and a connected runtime.
fn start_agent(kernel: &Kernel, tree: &Tree<'_>) -> (Agent, Runtime) {
    let mut runtime = Runtime::new();
    let settings = Settings::without_manifests(&tree.path, &kernel.all_but_one());
    let agent = runtime.settings(&settings.with(&["--api=never"])).start();
    runtime.connect(&agent);
    (agent, runtime)
}

/// The CPUs of every thread in a cgroup, by thread id.
fn threads(kernel: &Kernel, cgroup: &str) -> BTreeMap<u32, CpuSet> {
    let mut all = BTreeMap::new();
    for (_, pid, _) in kernel.members(cgroup) {
        // A process may have ended since the list.
        let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else {
            continue;
        };
        for task in tasks.flatten() {
            let Ok(status) = fs::read_to_string(task.path().join("status")) else {
                continue;
            };
            let list = status
                .lines()
                .find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
            let thread = task.file_name().to_string_lossy().parse().unwrap();
            all.insert(thread, list.unwrap().trim().parse().unwrap());
        }
    }
    all
}

/// The first object of `pinfold explain -o json`, which is about the pod's only container.
fn explain(agent: &Agent, pod: &str) -> Value {
    let address = agent.address.to_string();
    let output = pinfold()
        .args(["explain", pod, "-o", "json", "--agent", &address])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let explanation: Value =
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
    explanation[0].clone()
}

/// Waits until the agent has read the environment of a pod's program, and finds the threads as
/// expected. The programs rest after their training, so what counts is the number of threads, and
/// not how many of them want to run.
fn wait_until_as_expected(agent: &Agent, pod: &str) -> Value {
    let deadline = Instant::now() + patience();
    loop {
        let explanation = explain(agent, pod);
        let observed = &explanation["observed"];
        if observed["verdict"]["finding"] == "as_expected" && observed["variables"].is_object() {
            return explanation;
        }
        assert!(Instant::now() < deadline, "{explanation:#}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// The environment of a container as the kubelet makes it: values from the ConfigMap, and `$(NAME)` for the variables before.
fn environment(container: &Value, config: &Value) -> Vec<String> {
    let mut known: Vec<(String, String)> = Vec::new();
    for variable in container["env"].as_array().unwrap() {
        let key = variable["valueFrom"]["configMapKeyRef"]["key"].as_str();
        let value = key.map_or(&variable["value"], |key| &config["data"][key]);
        let mut value = value.as_str().unwrap().to_owned();
        for (name, text) in &known {
            value = value.replace(&format!("$({name})"), text);
        }
        known.push((variable["name"].as_str().unwrap().to_owned(), value));
    }
    let all = known.into_iter();
    all.map(|(name, value)| format!("{name}={value}")).collect()
}

/// The runtime's description of a rendered task. A task with a CPU request below its limit is Burstable.
fn describe_task(tree: &Tree<'_>, name: &str, template: &Value, config: &Value) -> EventMessage {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let millicpus = |text: &str| match text.strip_suffix('m') {
        Some(millis) => millis.parse().unwrap(),
        None => 1000 * text.parse::<i64>().unwrap(),
    };
    let container = &template["spec"]["containers"][0];
    let resources = &container["resources"];
    let limit = millicpus(resources["limits"]["cpu"].as_str().unwrap());
    let request = resources["requests"]["cpu"]
        .as_str()
        .map_or(limit, millicpus);
    let class = if request < limit { "burstable" } else { "" };
    let mut message = event_message_of_class(tree, name, class, request, limit);
    let labels = template["metadata"]["labels"].as_object().unwrap();
    message.pod.as_mut().unwrap().labels = labels
        .iter()
        .map(|(key, value)| (key.clone(), text(value)))
        .collect();
    let described = message.container.as_mut().unwrap();
    described.args = container["command"]
        .as_array()
        .unwrap()
        .iter()
        .map(text)
        .collect();
    described.env = environment(container, config);
    message
}

/// The job of `tests/data/frameworks` in its plan's case.
const JOB: &str = "local-s1-c1";

/// Replaces the tasks' addresses by free ports of this machine.
fn on_this_machine(rendered: &str, tasks: &[&str]) -> String {
    let listeners: Vec<TcpListener> = tasks
        .iter()
        .map(|_| TcpListener::bind("127.0.0.1:0").unwrap())
        .collect();
    let mut text = rendered.to_owned();
    for (task, listener) in tasks.iter().zip(&listeners) {
        let address = listener.local_addr().unwrap().to_string();
        text = text.replace(&format!("{task}.{JOB}:2222"), &address);
    }
    text
}

/// One parameter server, a chief and two workers, from the objects of `pinfold scene render`. `PINFOLD_TENSORFLOW` names a
/// Python with TensorFlow.
#[test]
fn tensorflow_with_a_parameter_server_runs_as_predicted() {
    let Some(python) = std::env::var_os("PINFOLD_TENSORFLOW") else {
        gate::leave(
            "tests/run",
            "PINFOLD_TENSORFLOW, a Python with TensorFlow: tests/tensorflow makes one",
        );
        return;
    };
    let Some(kernel) = kernel_tests() else { return };
    let mut tree = kernel.tree();
    let data = |file: &str| here("tests/data/frameworks").join(file);
    let mut render = pinfold();
    render.args(["scene", "render"]).arg(data("plan.yaml"));
    let output = render.arg("--job").arg(data("job.yaml")).output().unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let names = [
        "local-s1-c1-chief-0",
        "local-s1-c1-ps-0",
        "local-s1-c1-worker-0",
        "local-s1-c1-worker-1",
    ];
    let rendered = on_this_machine(std::str::from_utf8(&output.stdout).unwrap(), &names);
    let objects = parse(&rendered, "scene render");
    let config = objects.iter().find(|one| one["kind"] == "ConfigMap");
    let config = config.unwrap();

    let (agent, mut runtime) = start_agent(&kernel, &tree);
    let logs = TempDir::new().unwrap();
    let script = data("tensorflow_ps.py");
    let tasks: Vec<RunningTask> = names
        .iter()
        .map(|name| {
            let object = objects
                .iter()
                .find(|object| {
                    object["metadata"]["name"] == *name && !object["spec"]["template"].is_null()
                })
                .unwrap();
            let mut description = describe_task(&tree, name, &object["spec"]["template"], config);
            let args = &mut description.container.as_mut().unwrap().args;
            *args.last_mut().unwrap() = script.to_str().unwrap().to_owned();
            RunningTask::start(
                &mut runtime,
                &mut tree,
                &logs,
                &description,
                Path::new(&python),
            )
        })
        .collect();
    let chief = &tasks[0];
    chief.wait_for_lines("trained", 1);
    let exclusive = kernel.last();
    assert_eq!(chief.created.cpus, Some(exclusive.clone()));
    let shared = kernel.all_but_one();
    for task in &tasks {
        let is_chief = task.name == chief.name;
        let cpus = if is_chief { &exclusive } else { &shared };
        let explanation = task.assert_as_predicted(&agent, &kernel, cpus);
        assert_eq!(explanation["entitlement"]["kind"] == "exclusive", is_chief);
        assert_eq!(
            explanation["threads"]["software"]["tensorflow"]["server"],
            true
        );
        // With one inter-op thread in the workers, this job makes no step.
        assert_eq!(
            explanation["threads"]["variables"]["TF_NUM_INTEROP_THREADS"],
            "2"
        );
        assert_eq!(
            explanation["threads"]["variables"]["TF_NUM_INTRAOP_THREADS"],
            "1"
        );
    }
    agent.stop();
}

/// Two processes of PyTorch in one container, started by torchrun. `PINFOLD_PYTORCH` names a Python with PyTorch.
#[test]
fn pytorch_with_two_processes_runs_as_predicted() {
    let Some(python) = std::env::var_os("PINFOLD_PYTORCH") else {
        gate::leave(
            "tests/run",
            "PINFOLD_PYTORCH, a Python with PyTorch: Debian's package python3-torch",
        );
        return;
    };
    let Some(kernel) = kernel_tests() else { return };
    let mut tree = kernel.tree();
    let (agent, mut runtime) = start_agent(&kernel, &tree);

    let mut description = event_message(&tree, "torch", 1);
    let port = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let script = here("tests/data/frameworks/torch_gloo.py");
    // Debian's torchrun 1.13 with Python 3.11 accepts only the values 1 and 2 for --redirects and --tee.
    description.container.as_mut().unwrap().args = [
        "python3",
        "-m",
        "torch.distributed.run",
        "--nproc_per_node=2",
        "--redirects=2",
        "--tee=2",
        "--master_addr=127.0.0.1",
        &format!("--master_port={port}"),
        script.to_str().unwrap(),
    ]
    .map(str::to_owned)
    .to_vec();
    let logs = TempDir::new().unwrap();
    let task = RunningTask::start(
        &mut runtime,
        &mut tree,
        &logs,
        &description,
        Path::new(&python),
    );
    task.wait_for_lines("trained", 2);
    let exclusive = kernel.last();
    assert_eq!(task.created.cpus, Some(exclusive.clone()));
    let explanation = task.assert_as_predicted(&agent, &kernel, &exclusive);
    assert_eq!(explanation["threads"]["software"], "pytorch");
    // Both processes have computed with the gradients of both.
    assert_eq!(task.checksums(2).len(), 1);
    agent.stop();
}
