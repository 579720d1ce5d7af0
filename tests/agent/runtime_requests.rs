//! The agent as a container runtime's plugin, where a real runtime can't be brought into the situation: the program, the
//! real kernel, and the runtime's half of the protocol.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use pinfold::cpu::CpuSet;
use pinfold::nri::{
    Container, LinuxContainer, LinuxCpu, LinuxMemory, LinuxPodSandbox, LinuxResources, Mount,
    OptionalInt64, OptionalUInt64, PodSandbox,
};
use pinfold::scene::definition;
use prost::Message;
use serde_json::json;

use crate::agent::{Agent, Settings, container, patience};
use crate::api::{Cluster, NODE, count_events, pod, two_reconciles};
use crate::kernel::{Kernel, Tree, allowed, kernel_tests};
use crate::kubelet::Root;
use crate::runtime::{
    Changed, EventMessage, FakeRuntime, PLUGIN, Reply, Socket, StateChange, Synchronize,
};

/// How long an agent whose reconciler hangs may take to read a request or a file.
const READ: Duration = Duration::from_millis(300);

/// How often a check that needs the agent's answer within its short wait is tried on a busy machine.
const ATTEMPTS: usize = 5;

// The answers, by field numbers.

#[derive(Clone, PartialEq, Message)]
struct Created {
    #[prost(message, optional, tag = "1")]
    adjust: Option<Adjustment>,
}

#[derive(Clone, PartialEq, Message)]
struct Adjustment {
    #[prost(message, repeated, tag = "3")]
    mounts: Vec<Mount>,
    #[prost(message, repeated, tag = "4")]
    env: Vec<Variable>,
    #[prost(message, optional, tag = "6")]
    linux: Option<LinuxAdjustment>,
}

#[derive(Clone, PartialEq, Message)]
struct Variable {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(string, tag = "2")]
    value: String,
}

#[derive(Clone, PartialEq, Message)]
struct LinuxAdjustment {
    #[prost(message, optional, tag = "2")]
    resources: Option<LinuxResources>,
}

#[derive(Clone, PartialEq, Message)]
struct Update {
    #[prost(message, optional, tag = "1")]
    pod: Option<PodSandbox>,
    #[prost(message, optional, tag = "2")]
    container: Option<Container>,
    #[prost(message, optional, tag = "3")]
    resources: Option<LinuxResources>,
}

/// The properties with which a container was created.
#[derive(Debug)]
pub(crate) struct CreatedContainer {
    pub(crate) cpus: Option<CpuSet>,
    pub(crate) env: BTreeMap<String, String>,
    pub(crate) mounts: Vec<Mount>,
}

// === impl CreatedContainer ===

impl CreatedContainer {
    /// Reads the answer to CreateContainer.
    pub(crate) fn read(answer: &[u8]) -> Self {
        let adjust = Created::decode(answer).unwrap().adjust.unwrap_or_default();
        let cpu = adjust.linux.and_then(|linux| linux.resources?.cpu);
        let cpus = cpu.map(|cpu| cpu.cpus).filter(|cpus| !cpus.is_empty());
        let env = adjust
            .env
            .into_iter()
            .map(|variable| (variable.key, variable.value));
        Self {
            cpus: cpus.map(|cpus| cpus.parse().unwrap()),
            env: env.collect(),
            mounts: adjust.mounts,
        }
    }
}

/// A fake runtime that calls the plugin and waits for answers.
pub(crate) struct Runtime {
    tokio: tokio::runtime::Runtime,
    socket: Socket,
    link: Option<FakeRuntime>,
}

// === impl Runtime ===

impl Runtime {
    pub(crate) fn new() -> Self {
        let tokio = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let socket = tokio.block_on(async { Socket::new() });
        Self {
            tokio,
            socket,
            link: None,
        }
    }

    pub(crate) fn settings(&self, settings: &Settings) -> Settings {
        settings.clone().with(&[
            "--nri=always",
            "--nri-socket",
            self.socket.path().to_str().unwrap(),
        ])
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.socket.path()
    }

    /// Accepts the plugin and synchronizes an empty list. A slow machine has 15 seconds for each answer.
    pub(crate) fn connect(&mut self, agent: &Agent) {
        self.connect_with_limit(agent, 20_000);
    }

    /// Like [`Runtime::connect`], with the runtime's limit for an answer in milliseconds.
    pub(crate) fn connect_with_limit(&mut self, agent: &Agent, limit: i64) {
        let existing = Synchronize::default();
        let answer = self.synchronize(agent, limit, &existing);
        assert_eq!(answer, Changed::default());
    }

    /// Ends the connection, if any, and takes the plugin in anew. Returns the plugin's answer to
    /// the list of pods and containers that it gets.
    pub(crate) fn synchronize(
        &mut self,
        agent: &Agent,
        limit: i64,
        existing: &Synchronize,
    ) -> Changed {
        self.link = None;
        let socket = &mut self.socket;
        let (link, answer) = self.tokio.block_on(async {
            let mut link = socket.accept().await;
            link.register().await;
            link.configure(limit).await;
            let answer = link.call("Synchronize", existing.encode_to_vec()).await;
            (link, answer.unwrap())
        });
        self.link = Some(link);
        agent.eventually("the plugin gets requests", |status| {
            status["runtime"]["state"] == "synchronized"
        });
        Changed::decode(answer.as_slice()).unwrap()
    }

    /// Whether the plugin has connected, or connects within the time.
    pub(crate) fn is_connected_within(&mut self, time: Duration) -> bool {
        let connection = self.socket.accept();
        self.tokio
            .block_on(async { tokio::time::timeout(time, connection).await })
            .is_ok()
    }

    /// Ends the connection.
    pub(crate) fn disconnect(&mut self) {
        self.link = None;
    }

    pub(crate) fn call(&mut self, method: &str, payload: Vec<u8>) -> Result<Vec<u8>, String> {
        let stream = self.begin(method, payload);
        self.answer(stream)
    }

    /// Calls without waiting for the answer. Returns the number of the call.
    pub(crate) fn begin(&mut self, method: &str, payload: Vec<u8>) -> u32 {
        let link = self.link.as_mut().unwrap();
        self.tokio.block_on(link.begin(method, payload))
    }

    /// The answer to the oldest call without an answer.
    pub(crate) fn answer(&mut self, stream: u32) -> Result<Vec<u8>, String> {
        let link = self.link.as_mut().unwrap();
        self.tokio
            .block_on(link.answer(stream))
            .map_err(|(_, words)| words)
    }

    pub(crate) fn change(&mut self, event: i32, description: &EventMessage) {
        self.call("StateChange", state_change(event, description))
            .unwrap();
    }

    pub(crate) fn create(&mut self, description: &EventMessage) -> CreatedContainer {
        self.try_create(description).unwrap()
    }

    /// As `create`, for a creation that may be refused.
    pub(crate) fn try_create(
        &mut self,
        description: &EventMessage,
    ) -> Result<CreatedContainer, String> {
        let answer = self.call("CreateContainer", description.encode_to_vec())?;
        Ok(CreatedContainer::read(&answer))
    }

    /// The CPUs that an answer updates, by container.
    pub(crate) fn update(&mut self, description: &EventMessage) -> Vec<u8> {
        let EventMessage { pod, container } = description.clone();
        let cpu = LinuxCpu {
            shares: Some(OptionalUInt64 { value: 512 }),
            ..LinuxCpu::default()
        };
        let resources = Some(LinuxResources {
            cpu: Some(cpu),
            ..LinuxResources::default()
        });
        self.call(
            "UpdateContainer",
            Update {
                pod,
                container,
                resources,
            }
            .encode_to_vec(),
        )
        .unwrap()
    }
}

/// Makes a pod's cgroup, and returns the runtime's description of a worker with `cpus` CPUs. Without CPUs, the pod is
/// BestEffort.
pub(crate) fn event_message(tree: &Tree<'_>, name: &str, cpus: i64) -> EventMessage {
    let class = if cpus > 0 { "" } else { "besteffort" };
    event_message_of_class(tree, name, class, cpus * 1000, cpus * 1000)
}

/// Like [`event_message`], for a pod of any QoS class. `class` is the folder of the class; empty for Guaranteed. Only a
/// Guaranteed pod has a worker's labels and a memory limit. A limit of 0 is no limit.
pub(crate) fn event_message_of_class(
    tree: &Tree<'_>,
    name: &str,
    class: &str,
    requested_millicpus: i64,
    limit_millicpus: i64,
) -> EventMessage {
    let uid = format!("{name}-uid");
    let cgroup = tree.pod(class, &uid);
    let is_guaranteed = class.is_empty();
    let worker = [
        ("training.kubeflow.org/job-name", "job"),
        ("training.kubeflow.org/replica-type", "worker"),
    ];
    let labels = worker.into_iter().filter(|_| is_guaranteed);
    let cpu = LinuxCpu {
        shares: Some(OptionalUInt64 {
            value: u64::try_from(requested_millicpus * 1024 / 1000)
                .unwrap()
                .max(2),
        }),
        quota: (limit_millicpus > 0).then_some(OptionalInt64 {
            value: limit_millicpus * 100,
        }),
        period: (limit_millicpus > 0).then_some(OptionalUInt64 { value: 100_000 }),
        ..LinuxCpu::default()
    };
    let memory = is_guaranteed.then_some(LinuxMemory {
        limit: Some(OptionalInt64 { value: 1 << 30 }),
    });
    let linux = LinuxPodSandbox {
        cgroup_parent: format!("/{cgroup}"),
        ..LinuxPodSandbox::default()
    };
    EventMessage {
        pod: Some(PodSandbox {
            id: format!("sandbox-{name}"),
            name: name.to_owned(),
            uid,
            namespace: "train".to_owned(),
            labels: labels
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .collect(),
            linux: Some(linux),
            ..PodSandbox::default()
        }),
        container: Some(Container {
            id: format!("{name}-main"),
            pod_sandbox_id: format!("sandbox-{name}"),
            name: "main".to_owned(),
            linux: Some(LinuxContainer {
                resources: Some(LinuxResources {
                    cpu: Some(cpu),
                    memory,
                }),
                cgroups_path: format!("/{cgroup}/{name}-main"),
            }),
            ..Container::default()
        }),
    }
}

/// The message StateChange about a pod and, from event 4 on, about its container.
pub(crate) fn state_change(event: i32, description: &EventMessage) -> Vec<u8> {
    let EventMessage { pod, container } = description.clone();
    let container = container.filter(|_| event > 3);
    StateChange {
        event,
        pod,
        container,
    }
    .encode_to_vec()
}

pub(crate) fn path(description: &EventMessage) -> String {
    description
        .container
        .as_ref()
        .unwrap()
        .cgroups_path()
        .trim_start_matches('/')
        .to_owned()
}

/// Waits until no turn has run for 400 ms. Four equal counts in sequence show that the machine did not stand still meanwhile.
pub(crate) fn wait_for_rest(agent: &Agent) {
    let pass_count = || agent.metric("pinfold_reconcile_total", &[]);
    let deadline = Instant::now() + patience();
    let (mut last, mut same, mut since) = (pass_count(), 0, Instant::now());
    while same < 4 || since.elapsed() < Duration::from_millis(400) {
        assert!(
            Instant::now() < deadline,
            "the turns do not end: {}",
            agent.log()
        );
        std::thread::sleep(Duration::from_millis(20));
        let now = pass_count();
        if now == last {
            same += 1;
        } else {
            (last, same, since) = (now, 0, Instant::now());
        }
    }
}

/// Lets the agent read a request or a file while its reconciler hangs. The agent also answers probes meanwhile, so that a
/// slow agent has more time.
pub(crate) fn let_read(agent: &Agent) {
    for _ in 0..3 {
        agent.get("/healthz");
    }
    std::thread::sleep(READ);
}

/// An agent that hears of pods from the runtime alone; all but the first CPU can be owned.
pub(crate) fn alone(kernel: &Kernel, tree: &Tree<'_>) -> Settings {
    Settings::without_manifests(&tree.path, &kernel.first())
        .with(&["--api=never", "--reconcile-interval=3600s"])
}

#[test]
fn creations_in_sequence_get_disjoint_cpus() {
    let Some(kernel) = kernel_tests() else { return };
    let mut tree = kernel.tree();
    let mut runtime = Runtime::new();
    let agent = runtime.settings(&alone(&kernel, &tree)).start();
    runtime.connect(&agent);
    // Creations in sequence, before any cgroup exists. Each answer has CPUs that no pending assignment holds.
    let count = kernel.online.len() - 1;
    let messages: Vec<EventMessage> = (0..count)
        .map(|number| event_message(&tree, &format!("worker-{number}"), 1))
        .collect();
    messages
        .iter()
        .for_each(|message| runtime.change(1, message));
    let mut assigned = CpuSet::new();
    let mut answers = Vec::new();
    for message in &messages {
        let cpus = runtime.create(message).cpus.unwrap();
        assert!(
            cpus.len() == 1 && cpus.is_disjoint(&assigned),
            "{cpus} after {assigned}\n{}",
            agent.log()
        );
        assigned = assigned.union(&cpus);
        answers.push(cpus);
    }
    assert_eq!(assigned, kernel.online.difference(&kernel.first()));
    let late = event_message(&tree, "late", 1);
    runtime.change(1, &late);
    assert_eq!(runtime.create(&late).cpus, None, "no CPU is left");
    for (message, cpus) in messages.iter().zip(&answers) {
        tree.make(&path(message));
        tree.start(&path(message));
        runtime.change(6, message);
        assert_eq!(
            kernel.effective(&path(message)),
            *cpus,
            "the assigned CPU, before the program begins"
        );
    }
    let status = agent.eventually("the late worker is known", |status| {
        container(status, "late", "main").is_some()
    });
    assert!(
        container(&status, "late", "main").unwrap()["note"]
            .as_str()
            .unwrap()
            .contains("too few free CPUs")
    );
    // The next container gets the freed CPUs at once, although no turn ran since.
    let gone = &messages[0];
    runtime.call("StopContainer", gone.encode_to_vec()).unwrap();
    tree.remove(&path(gone));
    [11, 2, 3]
        .into_iter()
        .for_each(|event| runtime.change(event, gone));
    tree.remove(path(gone).trim_end_matches("/worker-0-main"));
    assert_eq!(
        runtime.create(&late).cpus.as_ref(),
        Some(&answers[0]),
        "{}",
        agent.log()
    );
    agent.stop();
}

#[test]
fn shutdown_answers_every_request_that_was_read() {
    let Some(kernel) = kernel_tests() else { return };
    // The agent leaves 1.8 s for the answers. A machine that stands still meanwhile cuts the answers off; only such an attempt
    // is repeated.
    let done = (1..=ATTEMPTS).any(|attempt| answers_at_shutdown(&kernel, attempt == ATTEMPTS));
    assert!(done);
}

/// Checks the answers of an agent that is shut down. Returns `false` if the machine was too slow, unless it is the last
/// attempt.
fn answers_at_shutdown(kernel: &Kernel, last_attempt: bool) -> bool {
    let tree = kernel.tree();
    let root = Root::new();
    let mut runtime = Runtime::new();
    let settings = Settings::without_manifests(&tree.path, &kernel.first()).with(&[
        "--api=never",
        "--root-dir",
        root.path(),
        "--reconcile-interval=1s",
    ]);
    let agent = runtime.settings(&settings).start();
    runtime.connect(&agent);
    // Few enough for a busy machine to answer all before the agent ends.
    let burst: Vec<EventMessage> = (0..8)
        .map(|number| event_message(&tree, &format!("worker-{number}"), 1))
        .collect();
    burst.iter().for_each(|message| runtime.change(1, message));
    let pipe = root.hang();
    let link = runtime.link.as_mut().unwrap();
    for message in &burst {
        runtime
            .tokio
            .block_on(link.begin("CreateContainer", message.encode_to_vec()));
    }
    // The agent reads the requests while the reconciler hangs.
    let_read(&agent);
    let begun = Instant::now();
    agent.signal(Signal::SIGTERM);
    std::thread::sleep(Duration::from_millis(200));
    drop(pipe);
    let mut frames = Vec::new();
    while let Some(frame) = runtime.tokio.block_on(link.next(PLUGIN)) {
        frames.push(frame);
    }
    let was_slow = begun.elapsed() > Duration::from_millis(1500);
    if frames.len() < burst.len() && was_slow && !last_attempt {
        agent.kill();
        return false;
    }
    let (answers, mut owners) = (frames.len(), 0);
    for frame in frames {
        let reply = Reply::decode(frame.data.as_slice()).unwrap();
        assert_eq!(reply.status, None, "{}", agent.log());
        let adjust = Created::decode(reply.payload.as_slice())
            .unwrap()
            .adjust
            .unwrap_or_default();
        assert!(
            adjust
                .env
                .iter()
                .any(|variable| variable.key == "TF_NUM_INTRAOP_THREADS"),
            "{adjust:?}\n{}",
            agent.log()
        );
        let cpu = adjust.linux.and_then(|linux| linux.resources?.cpu);
        owners += usize::from(cpu.is_some_and(|cpu| !cpu.cpus.is_empty()));
    }
    assert_eq!(
        answers,
        burst.len(),
        "each is answered before the connection ends: {}",
        agent.log()
    );
    // The first containers got the free CPUs, and the records outlive the agent.
    let free = kernel.online.len() - 1;
    assert_eq!(owners, free);
    let owned = burst.iter().filter(|message| {
        let pod = path(message);
        let pod = pod.rsplit_once('/').unwrap().0;
        kernel.cgroups.assignment_record(pod).unwrap().is_some()
    });
    assert_eq!(owned.count(), free);
    let (status, _, log) = agent.terminate();
    assert_eq!(status.code(), Some(0), "{log}");
    true
}

/// Gives a root the machine's own `proc`, without the processes, and with a single interrupt of the test's own.
fn with_one_interrupt(root: &Root, affinity: &CpuSet) -> PathBuf {
    let proc = Path::new(root.path()).join("proc");
    fs::remove_file(&proc).unwrap();
    fs::create_dir_all(proc.join("irq/24")).unwrap();
    for entry in fs::read_dir("/proc").unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        if name != "irq" && name.parse::<u32>().is_err() {
            symlink(entry.path(), proc.join(name)).unwrap();
        }
    }
    let file = proc.join("irq/24/smp_affinity_list");
    fs::write(&file, affinity.to_string()).unwrap();
    file
}

#[test]
fn interrupts_are_read_after_a_start_is_answered() {
    let Some(kernel) = kernel_tests() else { return };
    let mut tree = kernel.tree();
    let root = Root::new();
    // An interrupt with a correct affinity is read too.
    let others = kernel.all_but_one();
    let irq = with_one_interrupt(&root, &others);
    let config = Path::new(root.path()).join("pinfold.yaml");
    fs::write(&config, "cpuIsolation: {irqs: true}\n").unwrap();
    let mut runtime = Runtime::new();
    let settings = alone(&kernel, &tree).with(&[
        "--root-dir",
        root.path(),
        "--config",
        config.to_str().unwrap(),
    ]);
    let agent = runtime.settings(&settings).start();
    runtime.connect(&agent);
    let worker = event_message(&tree, "worker", 1);
    runtime.change(1, &worker);
    let own = runtime.create(&worker).cpus.unwrap();
    tree.make(&path(&worker));
    tree.start(&path(&worker));
    agent.eventually("the agent has read the cgroup", |_| {
        kernel.effective(&path(&worker)) == own
    });
    wait_for_rest(&agent);
    // A read of the interrupt's affinity hangs from here on.
    fs::remove_file(&irq).unwrap();
    nix::unistd::mkfifo(&irq, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let begun = Instant::now();
    runtime.change(6, &worker);
    let answered = begun.elapsed();
    let reader = || {
        let flags = nix::fcntl::OFlag::O_NONBLOCK.bits();
        fs::OpenOptions::new()
            .write(true)
            .custom_flags(flags)
            .open(&irq)
    };
    let mut writer = reader();
    while writer.is_err() && begun.elapsed() < answered + patience() {
        std::thread::sleep(Duration::from_millis(1));
        writer = reader();
    }
    // An answer that waited for the read would come at its deadline, after 15 seconds.
    assert!(
        answered < Duration::from_secs(10),
        "{answered:?}: {}",
        agent.log()
    );
    // The pipe is removed before the writer, so that a reader does not find the pipe again.
    fs::remove_file(&irq).unwrap();
    fs::write(&irq, others.to_string()).unwrap();
    drop(writer.expect("the interrupts are read soon"));
    assert_eq!(kernel.effective(&path(&worker)), own);
    agent.stop();
}

#[test]
fn cpus_just_assigned_are_exempt_from_drift() {
    let Some(kernel) = kernel_tests() else { return };
    let mut tree = kernel.tree();
    let mut runtime = Runtime::new();
    let agent = runtime.settings(&alone(&kernel, &tree)).start();
    runtime.connect(&agent);
    let web = event_message(&tree, "web", 0);
    runtime.change(1, &web);
    runtime.create(&web);
    tree.make(&path(&web));
    tree.start(&path(&web));
    runtime.change(6, &web);
    for life in ["one", "two", "three"] {
        let worker = event_message(&tree, life, 1);
        runtime.change(1, &worker);
        let own = runtime.create(&worker).cpus.unwrap();
        tree.make(&path(&worker));
        tree.start(&path(&worker));
        runtime.change(6, &worker);
        assert_eq!(kernel.effective(&path(&worker)), own);
        assert!(
            kernel.effective(&path(&web)).is_disjoint(&own),
            "{}",
            agent.log()
        );
        runtime
            .call("StopContainer", worker.encode_to_vec())
            .unwrap();
        tree.remove(&path(&worker));
        [11, 2, 3]
            .into_iter()
            .for_each(|event| runtime.change(event, &worker));
        tree.remove(path(&worker).trim_end_matches(&format!("/{life}-main")));
        agent.eventually("the CPU is shared again", |_| {
            kernel.effective(&path(&web)) == kernel.online
        });
    }
    assert_eq!(
        agent.metric("pinfold_drift_total", &[("cause", "overlap")]),
        Some(0.0),
        "{}",
        agent.log()
    );
    agent.stop();
}

#[test]
fn an_update_gets_cpus_only_where_the_runtime_has_a_set_of_pinfolds() {
    let Some(kernel) = kernel_tests() else { return };
    let mut tree = kernel.tree();
    let mut runtime = Runtime::new();
    let agent = runtime.settings(&alone(&kernel, &tree)).start();
    runtime.connect(&agent);
    let (web, mut worker) = (
        event_message(&tree, "web", 0),
        event_message(&tree, "worker", 1),
    );
    for message in [&web, &worker] {
        runtime.change(1, message);
        runtime.create(message);
        tree.make(&path(message));
        tree.start(&path(message));
        runtime.change(6, message);
    }
    // The turn after the start reports the known state of a container.
    agent.eventually("both run", |status| {
        let runs = |pod: &str| {
            container(status, pod, "main").is_some_and(|container| container["running"] == true)
        };
        runs("web") && runs("worker")
    });
    assert_eq!(
        runtime.update(&web),
        Vec::<u8>::new(),
        "the shared container's CPUs stay as requested"
    );
    assert_eq!(
        runtime.update(&worker),
        Vec::<u8>::new(),
        "a set that the runtime does not have from Pinfold stays as requested"
    );
    let own = kernel.effective(&path(&worker));
    // A runtime keeps the annotation of the answer to CreateContainer.
    let annotations = &mut worker.container.as_mut().unwrap().annotations;
    annotations.insert("pinfold.io/assigned-cpus".to_owned(), own.to_string());
    let answer = runtime.update(&worker);
    let text = own.to_string();
    let written = answer
        .windows(text.len())
        .any(|part| part == text.as_bytes());
    assert!(
        written && own.len() == 1,
        "the worker keeps {own}: {answer:?}"
    );
    agent.stop();
}

#[test]
fn enforcement_observe_sets_only_environment_variables() {
    let Some(kernel) = kernel_tests() else { return };
    let mut tree = kernel.tree();
    let mut runtime = Runtime::new();
    let mut settings = alone(&kernel, &tree);
    settings
        .more
        .retain(|argument| !argument.starts_with("--enforcement"));
    let agent = runtime
        .settings(&settings)
        .with(&["--enforcement=observe"])
        .start();
    runtime.connect(&agent);
    let mut worker = event_message(&tree, "worker", 1);
    worker
        .pod
        .as_mut()
        .unwrap()
        .annotations
        .insert("pinfold.io/cpus".to_owned(), "required".to_owned());
    runtime.change(1, &worker);
    let created = runtime.create(&worker);
    assert_eq!(created.cpus, None);
    assert_eq!(
        created
            .env
            .get("TF_NUM_INTRAOP_THREADS")
            .map(String::as_str),
        Some("1"),
        "{created:?}"
    );
    assert!(!created.env.contains_key("PINFOLD_CPUS"), "{created:?}");
    tree.make(&path(&worker));
    tree.start(&path(&worker));
    runtime.change(6, &worker);
    assert_eq!(kernel.effective(&path(&worker)), kernel.online);
    agent.stop();
}

#[test]
fn a_pod_gets_the_slot_of_its_node_in_the_environment() {
    let Some(kernel) = kernel_tests() else { return };
    // A creation waits 400 ms for the slot. Only an attempt in which the wait passed on a busy machine is repeated.
    let done = (1..=ATTEMPTS).any(|attempt| slot_is_given(&kernel, attempt == ATTEMPTS));
    assert!(done);
}

/// Checks the environment of an early creation. Returns `false` if the machine was too slow, unless it is the last attempt.
fn slot_is_given(kernel: &Kernel, last_attempt: bool) -> bool {
    let tree = kernel.tree();
    let cluster = Cluster::new();
    cluster.put(&serde_json::to_value(definition()).unwrap());
    cluster.establish();
    let labels = json!({"SCENCE": "2", "CASE": "3", "INDEX": "4", "TYPE": "worker", "zone": "a"});
    cluster.put(&json!({
        "apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE, "uid": "node-uid", "labels": labels},
    }));
    let mut runtime = Runtime::new();
    let settings = cluster.settings(&tree, kernel).with(&["--api=always"]);
    let agent = runtime.settings(&settings).start();
    // Asked at once: the place may have yet to be read.
    runtime.connect(&agent);
    let (worker, web) = (
        event_message(&tree, "worker", 1),
        event_message(&tree, "web", 0),
    );
    runtime.change(1, &worker);
    let begun = Instant::now();
    let created = runtime.create(&worker);
    let was_slow = begun.elapsed() >= Duration::from_millis(400);
    let place = |name: &str| created.env.get(name).map(String::as_str);
    if place("SCENCE").is_none() && was_slow && !last_attempt {
        agent.kill();
        return false;
    }
    assert_eq!(
        (place("SCENCE"), place("CASE")),
        (Some("2"), Some("3")),
        "{created:?}\n{}",
        agent.log()
    );
    assert_eq!(
        (place("INDEX"), place("TYPE"), place("zone")),
        (Some("4"), Some("worker"), None)
    );
    assert_eq!(
        place("PINFOLD_CPUS"),
        Some(kernel.last().to_string().as_str())
    );
    runtime.change(1, &web);
    assert!(
        runtime.create(&web).env.is_empty(),
        "a pod that does not train has no slot"
    );
    agent.stop();
    true
}

#[test]
fn a_sandbox_cgroup_that_appears_before_its_event_is_no_container() {
    let Some(kernel) = kernel_tests() else { return };
    let mut tree = kernel.tree();
    let cluster = Cluster::new();
    let mut runtime = Runtime::new();
    let agent = runtime.settings(&cluster.settings(&tree, &kernel)).start();
    runtime.connect(&agent);
    let worker = event_message(&tree, "worker-0", 1);
    let pause = tree.make(&path(&worker).replace("worker-0-main", "crio-pause1.scope"));
    let pause = tree.start(&pause);
    let mut known = pod("worker-0", NODE);
    known.as_object_mut().unwrap().remove("status");
    cluster.put(&known);
    agent.eventually("the API's pod is known", |status| {
        container(status, "worker-0", "main").is_some()
    });
    two_reconciles(&agent);
    runtime.change(1, &worker);
    two_reconciles(&agent);
    let status = agent.status().unwrap();
    let main = container(&status, "worker-0", "main").unwrap();
    assert_eq!(
        (&main["assigned"], &main["cgroup"]),
        (&json!(null), &json!(null)),
        "{main:#}"
    );
    assert_eq!(allowed(pause), kernel.online);

    assert_eq!(
        runtime.create(&worker).cpus,
        Some(kernel.last()),
        "{}",
        agent.log()
    );
    tree.make(&path(&worker));
    tree.start(&path(&worker));
    runtime.change(6, &worker);
    assert_eq!(
        kernel.effective(&path(&worker)),
        kernel.last(),
        "before the program begins"
    );
    assert_eq!(
        count_events(&cluster, &agent, "Pinned", "worker-0"),
        1,
        "{:?}",
        cluster.events()
    );
    let window =
        |part: &str| agent.metric(&format!("pinfold_container_unpinned_seconds_{part}"), &[]);
    assert_eq!((window("count"), window("sum")), (Some(1.0), Some(0.0)));
    assert_ne!(allowed(pause), kernel.last());
    agent.stop();
}

#[test]
fn pod_level_limits_count_although_the_api_reports_them_late() {
    let Some(kernel) = kernel_tests() else { return };
    let tree = kernel.tree();
    let cluster = Cluster::new();
    let mut runtime = Runtime::new();
    let settings = cluster.settings(&tree, &kernel).with(&["--api=always"]);
    let agent = runtime.settings(&settings).start();
    agent.eventually("the agent has the first list", |status| {
        status["cluster"]["complete"] == true
    });
    runtime.connect(&agent);
    // The limit of the pod is the only limit. A kubelet passes the limit on as the container's, or passes no limit on.
    // A creation waits 500 ms for the server's description. Only an attempt in which the wait passed on a busy machine is
    // repeated.
    for (kind, passed_on) in [("passed-on", true), ("kept", false)] {
        let done = (1..=ATTEMPTS).any(|attempt| {
            let name = format!("{kind}-{attempt}");
            let last_attempt = attempt == ATTEMPTS;
            pod_limit_counts(
                &tree,
                &cluster,
                &mut runtime,
                &agent,
                (&name, passed_on),
                last_attempt,
            )
        });
        assert!(done);
    }
    agent.stop();
}

/// Checks the threads of a container in a pod with a limit of its own. Returns `false` if the machine was too slow, unless it
/// is the last attempt.
fn pod_limit_counts(
    tree: &Tree<'_>,
    cluster: &Cluster,
    runtime: &mut Runtime,
    agent: &Agent,
    (name, passed_on): (&str, bool),
    last_attempt: bool,
) -> bool {
    let mut worker = event_message(tree, name, 1);
    if !passed_on {
        let of_container = worker.container.as_mut().unwrap().linux.as_mut().unwrap();
        let cpu = LinuxCpu {
            shares: Some(OptionalUInt64 { value: 2 }),
            ..LinuxCpu::default()
        };
        of_container.resources = Some(LinuxResources {
            cpu: Some(cpu),
            ..LinuxResources::default()
        });
    }
    runtime.change(1, &worker);
    let amounts = json!({"cpu": "1", "memory": "1Gi"});
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": name, "namespace": "train", "uid": format!("{name}-uid"),
            "labels": worker.pod.as_ref().unwrap().labels,
        },
        "spec": {
            "nodeName": NODE,
            "resources": {"limits": amounts, "requests": amounts},
            "containers": [{"name": "main", "image": "tf"}],
        },
    });
    let begun = Instant::now();
    let created = std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(100));
            cluster.put(&pod);
        });
        runtime.create(&worker)
    });
    let threads = created
        .env
        .get("TF_NUM_INTRAOP_THREADS")
        .map(String::as_str);
    let was_slow = begun.elapsed() >= Duration::from_millis(500);
    if threads != Some("1") && was_slow && !last_attempt {
        // The server's update ends the time in which requests do not wait.
        std::thread::sleep(Duration::from_millis(500));
        return false;
    }
    assert_eq!(threads, Some("1"), "{name}: {created:?}\n{}", agent.log());
    assert_eq!(
        created.cpus, None,
        "{name}: a limit of the pod gives the container no CPUs: {created:?}"
    );
    true
}

#[test]
fn containers_that_start_while_no_agent_answers_are_counted_and_reported() {
    let Some(kernel) = kernel_tests() else { return };
    let mut tree = kernel.tree();
    let mut runtime = Runtime::new();
    let settings = Settings::without_manifests(&tree.path, &kernel.all_but_one())
        .with(&["--api=never", "--reconcile-interval=1s"]);
    let settings = runtime.settings(&settings);
    let agent = settings.start();
    runtime.connect(&agent);
    let owner = event_message(&tree, "owner", 1);
    runtime.change(1, &owner);
    assert_eq!(runtime.create(&owner).cpus, Some(kernel.last()));
    tree.make(&path(&owner));
    tree.start(&path(&owner));
    runtime.change(6, &owner);
    agent.eventually("the owner runs", |status| {
        container(status, "owner", "main").is_some_and(|main| main["running"] == true)
    });
    let kinds = ["exclusive_cpus", "required"];
    let counts = |agent: &Agent| {
        kinds.map(|kind| agent.metric("pinfold_unguarded_starts_total", &[("kind", kind)]))
    };
    assert_eq!(counts(&agent), [Some(0.0); 2]);
    agent.kill();

    // Nobody answers the runtime. One container starts on the owner's CPU, and one that must not run without a CPU of its own.
    let web = event_message(&tree, "web", 0);
    let mut second = event_message(&tree, "second", 1);
    let annotations = &mut second.pod.as_mut().unwrap().annotations;
    annotations.insert("pinfold.io/cpus".to_owned(), "required".to_owned());
    // The next agent's own container starts without an agent as well, which is no problem.
    let own = event_message(&tree, "own", 0);
    for message in [&web, &second, &own] {
        tree.make(&path(message));
        tree.start(&path(message));
        assert_eq!(kernel.effective(&path(message)), kernel.online);
    }
    let agent = settings.start();
    for file in kernel.cgroups.procs_files(&path(&own)) {
        fs::write(file, agent.id().to_string()).unwrap();
    }
    let messages = [owner, web.clone(), second, own];
    let existing = Synchronize {
        pods: messages.iter().flat_map(|one| one.pod.clone()).collect(),
        containers: messages
            .iter()
            .flat_map(|one| one.container.clone())
            .collect(),
        more: false,
    };
    runtime.synchronize(&agent, 20_000, &existing);
    let errors = |status: &serde_json::Value| status["errors"].to_string();
    let status = agent.eventually("both are reported", |status| {
        let errors = errors(status);
        errors.contains("ran on exclusive CPUs of other pods")
            && errors.contains("train/second: container main runs without the exclusive CPUs that its pod requires")
    });
    assert_eq!(kernel.effective(&path(&web)), kernel.all_but_one());
    assert!(errors(&status).contains("web: container main on CPU"));
    two_reconciles(&agent);
    // Each is counted once, and stays reported. The container `second` ran on the owner's CPU if the first turn came before the list.
    let [intruders, required] = counts(&agent).map(Option::unwrap);
    assert!((1.0..=2.0).contains(&intruders) && required == 1.0);
    assert!(
        !agent.log().contains("train/own: container"),
        "{}",
        agent.log()
    );
    let status = agent.status().unwrap();
    assert_eq!(status["errors"].as_array().unwrap().len(), 2, "{status:#}");
    agent.stop();
}

#[test]
fn pods_with_long_arguments_do_not_switch_nri_off() {
    let Some(kernel) = kernel_tests() else { return };
    let tree = kernel.tree();
    let mut runtime = Runtime::new();
    let agent = runtime.settings(&alone(&kernel, &tree)).start();
    let long = "word ".repeat(280_000);
    let parts = 24;
    let socket = &mut runtime.socket;
    let answers = runtime.tokio.block_on(async {
        let mut link = socket.accept().await;
        link.register().await;
        link.configure(60_000).await;
        let mut answers = Vec::new();
        for number in 0..parts {
            let name = format!("long-{number}");
            let mut message = event_message(&tree, &name, 1);
            let (pod, container) = (
                message.pod.as_mut().unwrap(),
                message.container.as_mut().unwrap(),
            );
            // Arguments, variables, annotations and labels in turn.
            match number % 4 {
                0 => container.args = vec!["sh".to_owned(), "-c".to_owned(), long.clone()],
                1 => container.env = vec![format!("TF_CONFIG={long}")],
                2 => drop(pod.annotations.insert("a".to_owned(), long.clone())),
                _ => pod
                    .labels
                    .extend((0..20_000).map(|number| (format!("l{number:060}"), String::new()))),
            }
            let part = Synchronize {
                pods: message.pod.into_iter().collect(),
                containers: message.container.into_iter().collect(),
                more: number + 1 < parts,
            };
            answers.push(link.call("Synchronize", part.encode_to_vec()).await);
        }
        (link, answers)
    });
    let (_link, answers) = answers;
    assert!(answers.iter().all(Result::is_ok), "{answers:?}");
    agent.eventually("the runtime is synchronized", |status| {
        status["runtime"]["state"] == "synchronized"
    });
    agent.stop();
}
