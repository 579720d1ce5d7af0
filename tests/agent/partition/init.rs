//! Init containers that run beside a sidecar's partition. The container runtime writes the CPUs of the answer to
//! CreateContainer, and on Linux 6.12 a set that meets the partition of another container of the pod would make the partition invalid.

use prost::Message;

use pinfold::cpu::CpuSet;

use super::partition_tests;
use crate::agent::{Agent, Manifests, Settings};
use crate::kernel::{Kernel, Tree, allowed};
use crate::runtime::EventMessage;
use crate::runtime_requests::{Runtime, event_message, path, wait_for_rest};

/// NRI's number of the event StartContainer.
const START_CONTAINER: i32 = 6;

/// A pod with a sidecar of two CPUs, two init containers after it, and a container with the given CPU limit.
fn manifest(main: &str) -> String {
    let container = |name: &str, cpu: &str, more: &str| {
        format!(
            "\n  - {{name: {name}, image: x, resources: {{limits: {{cpu: {cpu}, memory: 1Gi}}}}{more}}}"
        )
    };
    let init = [
        container("fetch", "'1'", ""),
        container("side", "'2'", ", restartPolicy: Always"),
        container("late", "'1'", ""),
        container("last", "'1'", ""),
    ];
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: p, namespace: train, uid: p-uid, labels: \
         {{training.kubeflow.org/replica-type: worker}}}}\nspec:\n  initContainers:{}\n  containers:{}\n",
        init.concat(),
        container("main", main, "")
    )
}

/// A pod whose containers the runtime creates, starts and ends.
struct Pod<'a> {
    kernel: &'a Kernel,
    tree: Tree<'a>,
    runtime: Runtime,
    agent: Agent,
    _pods: Manifests,
    number: usize,
}

/// A running container.
struct Running {
    event: EventMessage,
    pid: u32,
}

impl<'a> Pod<'a> {
    fn new(kernel: &'a Kernel, main: &str) -> Self {
        let tree = kernel.tree();
        let pods = Manifests::new();
        pods.put("p.yaml", &manifest(main));
        let mut runtime = Runtime::new();
        let settings = Settings::new(&tree.path, &pods, &kernel.first())
            .with(&["--api=never", "--reconcile-interval=1s"]);
        let agent = runtime.settings(&settings).start();
        runtime.connect(&agent);
        let mut pod = Self {
            kernel,
            tree,
            runtime,
            agent,
            _pods: pods,
            number: 0,
        };
        let event = pod.event("fetch");
        pod.runtime.change(1, &event);
        pod
    }

    /// The runtime's description of a new container.
    fn event(&mut self, name: &str) -> EventMessage {
        self.number += 1;
        let mut event = event_message(&self.tree, "p", 2);
        let id = format!("{name}-{}", self.number);
        let pod = path(&event).rsplit_once('/').unwrap().0.to_owned();
        let container = event.container.as_mut().unwrap();
        container.name = name.to_owned();
        container.linux.as_mut().unwrap().cgroups_path = format!("/{pod}/{id}");
        container.id = id;
        event
    }

    /// Creates and starts a container as runc does: the CPUs of the answer are written before StartContainer.
    fn begin(&mut self, name: &str) -> (Option<CpuSet>, Running) {
        let event = self.event(name);
        let cpus = self.runtime.create(&event).cpus;
        let cgroup = self.tree.make(&path(&event));
        if let Some(cpus) = &cpus {
            self.kernel.write_cpus(&cgroup, cpus);
        }
        let pid = self.tree.start(&cgroup);
        (cpus, Running { event, pid })
    }

    fn start(&mut self, running: &Running) {
        self.runtime.change(START_CONTAINER, &running.event);
    }

    fn end(&mut self, running: &Running) {
        let stopped = running.event.encode_to_vec();
        self.runtime.call("StopContainer", stopped).unwrap();
        self.tree.remove(&path(&running.event));
    }

    fn partition(&self, running: &Running) -> String {
        self.kernel.partition(&path(&running.event))
    }
}

/// The pod's CPUs, with a main container of `main` CPUs: the sidecar stays a partition while init containers come and go.
fn sidecar_keeps_its_cpus(kernel: &Kernel, main: &str, left: usize) {
    let mut pod = Pod::new(kernel, main);
    let (cpus, fetch) = pod.begin("fetch");
    let all = cpus.unwrap();
    assert_eq!(all.len(), 2 + left, "the first init container has all CPUs");
    pod.start(&fetch);
    assert_eq!(allowed(fetch.pid), all);
    pod.end(&fetch);
    let (cpus, mut side) = pod.begin("side");
    let own = cpus.unwrap();
    pod.start(&side);
    assert_eq!((allowed(side.pid), own.len()), (own.clone(), 2));
    let rest = all.difference(&own);
    let shared = kernel.online.difference(&all);
    for name in ["late", "last"] {
        let (cpus, init) = pod.begin(name);
        let answered = cpus.unwrap_or_default();
        assert_eq!(answered, rest, "the CPUs that no container has");
        assert_eq!(pod.partition(&side), "root", "{name} was created");
        pod.start(&init);
        let runs_on = if left == 0 { &shared } else { &rest };
        assert_eq!(allowed(init.pid), *runs_on, "{name}");
        assert_eq!(
            (pod.partition(&side), allowed(side.pid)),
            ("root".to_owned(), own.clone())
        );

        // The sidecar restarts. Meanwhile an init container without a partition may use its CPUs. A live partition does not
        // grow, because the runtime may be about to write the CPUs to the sidecar's next cgroup.
        let grows = left == 0;
        pod.end(&side);
        if grows {
            pod.agent
                .eventually("the init container uses the CPUs", |_| {
                    allowed(init.pid) == all
                });
        } else {
            wait_for_rest(&pod.agent);
            assert_eq!(allowed(init.pid), rest, "{name}");
        }
        let (cpus, again) = pod.begin("side");
        let free = (!grows).then(|| own.clone());
        assert_eq!(cpus, free, "unless the init container still has them");
        // A turn may have given the CPUs to the sidecar already.
        let now = pod.partition(&init);
        assert!(now == "root" || grows && now == "member", "{now}");
        pod.start(&again);
        assert_eq!(
            (pod.partition(&again), allowed(again.pid)),
            ("root".to_owned(), own.clone())
        );
        assert_eq!(allowed(init.pid), *runs_on);
        side = again;
        pod.end(&init);
    }
    wait_for_rest(&pod.agent);
    let status = pod.agent.status().unwrap();
    assert_eq!(status["drift"].as_array().unwrap().len(), 0, "{status:#}");
    pod.end(&side);
    pod.agent.eventually("no CPU is lost", |status| {
        assert_eq!(status["lost"], "", "{status:#}");
        allowed(std::process::id()) == kernel.online
    });
    pod.agent.stop();
}

#[test]
fn a_sidecar_keeps_its_partition_beside_init_containers() {
    let Some(kernel) = partition_tests() else {
        return;
    };
    sidecar_keeps_its_cpus(&kernel, "'2'", 2);
}

#[test]
fn init_containers_beside_a_sidecar_that_owns_all_cpus_of_the_pod_are_shared() {
    let Some(kernel) = partition_tests() else {
        return;
    };
    sidecar_keeps_its_cpus(&kernel, "500m", 0);
}

/// Some runtimes remove an ended container's cgroup late. Its partition still lives when the next container is created.
#[test]
fn an_ended_init_container_whose_cgroup_stays_hands_its_cpus_on() {
    let Some(kernel) = partition_tests() else {
        return;
    };
    let mut pod = Pod::new(&kernel, "'2'");
    let (cpus, fetch) = pod.begin("fetch");
    let all = cpus.unwrap();
    pod.start(&fetch);
    let cgroup = path(&fetch.event);
    assert_eq!(kernel.partition(&cgroup), "root");
    let stopped = fetch.event.encode_to_vec();
    pod.runtime.call("StopContainer", stopped).unwrap();
    let (cpus, side) = pod.begin("side");
    assert_eq!(cpus, None, "the ended container's partition has the CPUs");
    pod.start(&side);
    assert_eq!(pod.partition(&side), "root");
    assert!(allowed(side.pid).len() == 2 && allowed(side.pid).is_subset(&all));
    pod.tree.remove(&cgroup);
    pod.agent.eventually("no CPU is lost", |status| {
        assert_eq!(status["lost"], "", "{status:#}");
        kernel.online == allowed(std::process::id()).union(&all)
    });
    pod.agent.stop();
}
