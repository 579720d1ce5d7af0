//! Descriptions of pods that come late, with the program, the real kernel, a scripted container runtime and a fake API server:
//! an agent that restarts beside a silent server, and a server that is slower than the runtime.

use std::time::{Duration, Instant};

use pinfold::cpu::CpuSet;
use pinfold::nri::ContainerState;
use pinfold::pin::AssignmentRecord;
use prost::Message;
use serde_json::{Value, json};

use crate::agent::{Agent, Settings, patience};
use crate::api::{Cluster, NODE, mirror_of, pod, two_reconciles};
use crate::fakeapi::{ACCOUNT, Fault, FaultScope};
use crate::kernel::{Kernel, Tree, allowed, kernel_tests};
use crate::runtime::{EventMessage, Synchronize};
use crate::runtime_requests::{Runtime, event_message, path};

/// NRI's numbers of events in StateChange.
const RUN_POD_SANDBOX: i32 = 1;
const REMOVE_POD_SANDBOX: i32 = 3;
const START_CONTAINER: i32 = 6;
const REMOVE_CONTAINER: i32 = 11;

/// How long the API server is silent after the agent's start. The agent decides after three seconds.
const SILENCE: Duration = Duration::from_secs(5);

/// A cluster and a runtime around one tree of pods, in which a single CPU can be owned.
struct Node<'a> {
    kernel: &'a Kernel,
    tree: Tree<'a>,
    cluster: Cluster,
    runtime: Runtime,
    settings: Settings,
}

// === impl Node ===

impl<'a> Node<'a> {
    fn new(kernel: &'a Kernel) -> Self {
        let (tree, cluster, runtime) = (kernel.tree(), Cluster::new(), Runtime::new());
        let settings = cluster.settings(&tree, kernel).with(&["--api=always"]);
        Self {
            settings: runtime.settings(&settings),
            kernel,
            tree,
            cluster,
            runtime,
        }
    }

    /// Starts an agent that has the list of pods and is connected to the runtime.
    fn agent(&mut self) -> Agent {
        let agent = self.settings.start();
        self.listed(&agent);
        self.runtime.connect(&agent);
        agent
    }

    fn listed(&self, agent: &Agent) {
        agent.within(patience() * 9, "the agent has the list", |status| {
            status["cluster"]["complete"] == true
        });
    }

    /// Starts an agent beside a silent API server.
    fn restart(&mut self, pods: &[&EventMessage], running: &[&EventMessage]) -> (Agent, Instant) {
        let scope = FaultScope::always().on("pods");
        self.cluster.fake.fail(scope, Fault::Hang);
        self.start_beside(pods, running)
    }

    /// Starts an agent. The runtime lists its pods as soon as the agent connects.
    fn start_beside(
        &mut self,
        pods: &[&EventMessage],
        running: &[&EventMessage],
    ) -> (Agent, Instant) {
        let (agent, begun) = (self.settings.start_early(), Instant::now());
        let containers = running.iter().map(|one| {
            let mut container = one.container.clone().unwrap();
            container.state = ContainerState::Running as i32;
            container
        });
        let existing = Synchronize {
            pods: pods.iter().map(|one| one.pod.clone().unwrap()).collect(),
            containers: containers.collect(),
            more: false,
        };
        self.runtime.synchronize(&agent, 20_000, &existing);
        (agent, begun)
    }

    /// The API server answers again.
    fn heal(&self, agent: &Agent) {
        let status = agent.status().unwrap();
        assert_eq!(status["cluster"]["complete"], false, "{status:#}");
        self.cluster.fake.heal();
        self.cluster.fake.cut();
        self.listed(agent);
        two_reconciles(agent);
    }

    /// Creates and starts a container. Returns its CPUs and its process.
    fn begin(&mut self, description: &EventMessage) -> (Option<CpuSet>, u32) {
        let cpus = self.runtime.create(description).cpus;
        let cgroup = self.tree.make(&path(description));
        if let Some(cpus) = &cpus {
            self.kernel.write_cpus(&cgroup, cpus);
        }
        let pid = self.tree.start(&cgroup);
        self.runtime.change(START_CONTAINER, description);
        (cpus, pid)
    }

    /// Ends a container. The kubelet removes it later, with the event `REMOVE_CONTAINER`.
    fn end(&mut self, description: &EventMessage) {
        let stopped = description.encode_to_vec();
        self.runtime.call("StopContainer", stopped).unwrap();
        self.tree.remove(&path(description));
    }

    /// The CPUs in the record of a container's pod.
    fn recorded(&self, description: &EventMessage) -> CpuSet {
        let path = path(description);
        let (pod, _) = path.rsplit_once('/').unwrap();
        let text = self.kernel.cgroups.assignment_record(pod).unwrap();
        text.map(|text| AssignmentRecord::parse(&text).unwrap().cpus())
            .unwrap_or_default()
    }

    /// A process stays on the CPU that can be owned until a moment.
    fn stays(&self, pid: u32, description: &EventMessage, until: Instant) {
        loop {
            let last = self.kernel.last();
            assert_eq!(
                (allowed(pid), self.recorded(description)),
                (last.clone(), last)
            );
            if Instant::now() > until {
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// The runtime's description of a container with one CPU. `run` is the number of the container's run.
fn container(tree: &Tree<'_>, pod: &str, name: &str, run: u32) -> EventMessage {
    let mut event = event_message(tree, pod, 1);
    let cgroup = path(&event).rsplit_once('/').unwrap().0.to_owned();
    let container = event.container.as_mut().unwrap();
    container.name = name.to_owned();
    container.id = format!("{name}{run}");
    let id = &container.id;
    container.linux.as_mut().unwrap().cgroups_path = format!("/{cgroup}/{id}");
    event
}

/// A pod with resources of its own. Only the pod is Guaranteed: its worker has no memory limit, and the container beside it has
/// no limit at all. The runtime is told of neither the pod's resources nor the containers that are still to come.
fn with_pod_level_resources(name: &str) -> Value {
    let mut pod = pod(name, NODE);
    let all = json!({"cpu": "2", "memory": "2Gi"});
    pod["spec"]["resources"] = json!({"requests": all, "limits": all});
    let main = json!({
        "name": "main", "image": "tf", "resources": {"requests": {"cpu": "1"}, "limits": {"cpu": "1"}},
    });
    pod["spec"]["containers"] = json!([main, {"name": "log", "image": "log"}]);
    pod["status"] = json!({});
    pod
}

/// Takes limits from a container, as the runtime describes it.
fn without_limits(mut container: EventMessage, with_cpu: bool) -> EventMessage {
    let linux = container.container.as_mut().unwrap().linux.as_mut();
    let resources = linux.unwrap().resources.as_mut().unwrap();
    resources.memory = None;
    resources.cpu.take_if(|_| !with_cpu);
    container
}

/// A pod with an init container before its only container, each with one CPU.
fn with_init_container(name: &str) -> Value {
    let mut pod = pod(name, NODE);
    let fetch = json!({
        "name": "fetch", "image": "tf", "resources": {"limits": {"cpu": "1", "memory": "1Gi"}},
    });
    pod["spec"]["initContainers"] = json!([fetch]);
    pod["status"] = json!({});
    pod
}

#[test]
fn an_init_container_stays_while_the_agent_restarts_beside_a_silent_api_server() {
    let Some(kernel) = kernel_tests() else { return };
    let mut node = Node::new(&kernel);
    node.cluster.put(&with_init_container("worker-0"));
    let agent = node.agent();
    let fetch = container(&node.tree, "worker-0", "fetch", 1);
    node.runtime.change(RUN_POD_SANDBOX, &fetch);
    let (cpus, pid) = node.begin(&fetch);
    assert_eq!(cpus, Some(kernel.last()));
    node.stays(pid, &fetch, Instant::now());
    agent.stop();

    let (agent, begun) = node.restart(&[&fetch], &[&fetch]);
    node.stays(pid, &fetch, begun + SILENCE);
    two_reconciles(&agent);
    node.stays(pid, &fetch, Instant::now());
    assert_eq!(agent.metric("pinfold_reconcile_steps_total", &[]), None);
    node.heal(&agent);
    node.stays(pid, &fetch, Instant::now());

    // The container after the init container gets the CPU.
    node.end(&fetch);
    let main = container(&node.tree, "worker-0", "main", 1);
    let (cpus, pid) = node.begin(&main);
    assert_eq!(cpus, Some(kernel.last()));
    node.stays(pid, &main, Instant::now());
    agent.stop();
}

#[test]
fn a_crash_loop_keeps_its_cpus_while_the_api_server_is_silent() {
    let Some(kernel) = kernel_tests() else { return };
    let mut node = Node::new(&kernel);
    let stored = node.cluster.put(&pod("worker-0", NODE));
    let agent = node.agent();
    let main = container(&node.tree, "worker-0", "main", 1);
    node.runtime.change(RUN_POD_SANDBOX, &main);
    assert_eq!(node.begin(&main).0, Some(kernel.last()));
    node.end(&main);
    agent.stop();

    // Another pod's container is created while the first waits for its next run.
    let other = container(&node.tree, "worker-1", "main", 1);
    let (agent, begun) = node.restart(&[&main, &other], &[]);
    assert_eq!(node.begin(&other).0, None, "{}", agent.log());
    std::thread::sleep((begun + SILENCE).saturating_duration_since(Instant::now()));
    two_reconciles(&agent);
    assert_eq!(node.recorded(&main), kernel.last());
    assert_eq!(node.recorded(&other), CpuSet::new());
    let again = container(&node.tree, "worker-0", "main", 2);
    let (cpus, pid) = node.begin(&again);
    assert_eq!(cpus, Some(kernel.last()), "{}", agent.log());
    node.stays(pid, &again, Instant::now());
    node.heal(&agent);
    node.stays(pid, &again, Instant::now());

    // The pod is deleted by force. Its container still runs, so it keeps the CPU until it ends, although its cgroup lingers.
    node.cluster.remove(&stored);
    agent.eventually("the agent sees the deletion", |status| {
        status["cluster"]["pods"] == 0
    });
    two_reconciles(&agent);
    node.stays(pid, &again, Instant::now());
    node.end(&again);
    node.runtime.change(REMOVE_CONTAINER, &again);
    agent.eventually("the other pod gets the CPU", |_| {
        node.recorded(&other) == kernel.last()
    });
    assert_eq!(node.recorded(&again), CpuSet::new());
    agent.stop();
}

#[test]
fn a_late_description_moves_no_init_container() {
    let Some(kernel) = kernel_tests() else { return };
    let mut node = Node::new(&kernel);
    let agent = node.agent();
    let fetch = container(&node.tree, "worker-0", "fetch", 1);
    node.runtime.change(RUN_POD_SANDBOX, &fetch);
    // The creation waits half a second for the description, which comes later.
    let (cpus, pid) = node.begin(&fetch);
    assert_eq!(cpus, Some(kernel.last()));
    node.cluster.put(&with_init_container("worker-0"));
    agent.eventually("the description is there", |status| {
        status["cluster"]["pods"] == 1
    });
    // A move there and back takes a few milliseconds.
    let steady = Instant::now() + Duration::from_millis(500);
    while Instant::now() < steady {
        assert_eq!(allowed(pid), kernel.last());
    }
    node.stays(pid, &fetch, steady);
    two_reconciles(&agent);
    node.stays(pid, &fetch, Instant::now());
    node.end(&fetch);
    let main = container(&node.tree, "worker-0", "main", 1);
    let (cpus, pid) = node.begin(&main);
    assert_eq!(cpus, Some(kernel.last()), "{}", agent.log());
    node.stays(pid, &main, Instant::now());
    agent.stop();
}

/// The restart, the crash, the back-off and the deletion by force all come within the minute, so that one wait is enough.
#[test]
fn a_pod_with_resources_of_its_own_keeps_its_cpus_while_the_api_server_is_silent_for_a_minute() {
    let Some(kernel) = kernel_tests() else { return };
    let mut node = Node::new(&kernel);
    let stored = node.cluster.put(&with_pod_level_resources("worker-0"));
    let agent = node.agent();
    let main = |node: &Node<'_>, run: u32| {
        without_limits(container(&node.tree, "worker-0", "main", run), true)
    };
    let (first, again) = (main(&node, 1), main(&node, 2));
    let log = without_limits(container(&node.tree, "worker-0", "log", 1), false);
    node.runtime.change(RUN_POD_SANDBOX, &first);
    let (cpus, pid) = node.begin(&first);
    assert_eq!(cpus, Some(kernel.last()));
    let (cpus, log_pid) = node.begin(&log);
    assert_eq!(cpus, None);
    agent.stop();

    let (agent, begun) = node.restart(&[&first], &[&first, &log]);
    let after = |seconds: u64| begun + Duration::from_secs(seconds);
    node.stays(pid, &first, after(15));
    // The worker crashes, and another pod's container is created while it waits for its next run.
    node.end(&first);
    node.runtime.change(REMOVE_CONTAINER, &first);
    let other = container(&node.tree, "worker-1", "main", 1);
    node.runtime.change(RUN_POD_SANDBOX, &other);
    let (cpus, other_pid) = node.begin(&other);
    assert_eq!(cpus, None, "{}", agent.log());
    two_reconciles(&agent);
    assert_eq!(node.recorded(&first), kernel.last());
    let (cpus, pid) = node.begin(&again);
    assert_eq!(cpus, Some(kernel.last()), "{}", agent.log());
    node.stays(pid, &again, after(40));
    assert_eq!(allowed(log_pid), kernel.all_but_one());
    // The pod is deleted by force. Its container ends, and its cgroup lingers. Nobody has told the agent of the deletion.
    node.cluster.remove(&stored);
    node.end(&again);
    node.runtime.change(REMOVE_CONTAINER, &again);
    while Instant::now() < after(60) {
        two_reconciles(&agent);
        assert_eq!(node.recorded(&again), kernel.last());
        assert_eq!(allowed(other_pid), kernel.all_but_one());
    }
    node.heal(&agent);
    agent.eventually("the other pod gets the CPU", |_| {
        node.recorded(&other) == kernel.last()
    });
    assert_eq!(node.recorded(&again), CpuSet::new());
    agent.stop();
}

#[test]
fn rights_that_are_taken_away_take_no_cpus_and_hold_none_back() {
    let Some(kernel) = kernel_tests() else { return };
    let mut node = Node::new(&kernel);
    node.cluster.put(&pod("worker-0", NODE));
    let agent = node.agent();
    let main = container(&node.tree, "worker-0", "main", 1);
    node.runtime.change(RUN_POD_SANDBOX, &main);
    let (cpus, pid) = node.begin(&main);
    assert_eq!(cpus, Some(kernel.last()));
    node.cluster.fake.forbid(ACCOUNT);
    node.cluster.fake.cut();
    let is_reported = |status: &Value| {
        let error = &status["cluster"]["lastError"];
        error.to_string().contains("forbidden")
    };
    agent.within(patience() * 9, "the refusal is reported", is_reported);
    two_reconciles(&agent);
    node.stays(pid, &main, Instant::now());
    agent.stop();

    // No list ever comes. The assignment stays until the pod's cgroup ends.
    let (agent, begun) = node.start_beside(&[&main], &[&main]);
    node.stays(pid, &main, begun + SILENCE);
    two_reconciles(&agent);
    node.stays(pid, &main, Instant::now());
    let status = agent.within(patience() * 9, "the refusal is reported", is_reported);
    assert_eq!(status["cluster"]["complete"], false, "{status:#}");
    node.end(&main);
    node.runtime.change(REMOVE_CONTAINER, &main);
    two_reconciles(&agent);
    assert_eq!(node.recorded(&main), kernel.last());
    let cgroup = path(&main).rsplit_once('/').unwrap().0.to_owned();
    node.tree.remove(&cgroup);
    node.runtime.change(REMOVE_POD_SANDBOX, &main);
    let other = container(&node.tree, "worker-1", "main", 1);
    node.runtime.change(RUN_POD_SANDBOX, &other);
    let (cpus, pid) = node.begin(&other);
    assert_eq!(cpus, Some(kernel.last()), "{}", agent.log());
    node.stays(pid, &other, Instant::now());
    agent.stop();
}

/// Only the runtime describes such a static pod, because the list has no pod that counts as its mirror pod.
#[test]
fn a_static_pod_without_a_mirror_pod_that_counts_has_its_cpus_while_it_runs() {
    let Some(kernel) = kernel_tests() else { return };
    let mut node = Node::new(&kernel);
    node.cluster.put(
        &json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE, "uid": "node-uid"}}),
    );
    node.cluster
        .put(&mirror_of("static-uid", pod("impostor", NODE)));
    let agent = node.agent();
    let is_refused = |status: &Value| {
        let errors = status["errors"].to_string();
        errors.contains("mirror pod of the static pod static-uid")
    };
    let main = container(&node.tree, "static", "main", 1);
    node.runtime.change(RUN_POD_SANDBOX, &main);
    let (cpus, pid) = node.begin(&main);
    assert_eq!(cpus, Some(kernel.last()));
    agent.eventually("the mirror pod is refused", is_refused);
    agent.stop();

    let (agent, begun) = node.restart(&[&main], &[&main]);
    node.stays(pid, &main, begun + SILENCE);
    node.heal(&agent);
    agent.eventually("the mirror pod is refused again", is_refused);
    two_reconciles(&agent);
    node.stays(pid, &main, Instant::now());
    let other = container(&node.tree, "worker-1", "main", 1);
    node.runtime.change(RUN_POD_SANDBOX, &other);
    assert_eq!(node.begin(&other).0, None);
    node.end(&main);
    node.runtime.change(REMOVE_CONTAINER, &main);
    agent.eventually("the other pod gets the CPU", |_| {
        node.recorded(&other) == kernel.last()
    });
    assert_eq!(node.recorded(&main), CpuSet::new());
    agent.stop();
}
