//! Beside a kubelet that assigns CPUs: its choice becomes a partition, and Pinfold writes nothing else.

use std::fs;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use pinfold::cpu::CpuSet;
use pinfold::nri::{Container, ContainerState};
use serde_json::Value;

use super::partition_tests;
use crate::agent::{Agent, Settings, assigned, container, patience};
use crate::gate;
use crate::kernel::{Kernel, Tree, allowed};
use crate::kubelet::{Kubelet, Root};
use crate::runtime::{EventMessage, Synchronize};
use crate::runtime_requests::{Runtime, event_message, path};

/// StopContainer, in the runtime's numbers of events.
const STOP: i32 = 10;

fn set(list: &str) -> CpuSet {
    list.parse().unwrap()
}

/// A node with a kubelet that assigns CPUs, a container runtime, and an agent.
struct Node<'a> {
    kernel: &'a Kernel,
    tree: Tree<'a>,
    root: Root,
    kubelet: Kubelet,
    runtime: Runtime,
    settings: Settings,
    agent: Agent,
    /// A process of a shared container.
    other: u32,
    other_cgroup: String,
}

// === impl Node ===

impl<'a> Node<'a> {
    fn new(kernel: &'a Kernel, assigns: bool) -> Self {
        let mut tree = kernel.tree();
        let (root, mut runtime) = (Root::new(), Runtime::new());
        let kubelet = root.kubelet(assigns);
        let settings = Settings::without_manifests(&tree.path, &kernel.first()).with(&[
            "--api=never",
            "--root-dir",
            root.path(),
            "--reconcile-interval",
            "1s",
        ]);
        let settings = runtime.settings(&settings);
        let agent = settings.start();
        runtime.connect(&agent);
        let web = event_message(&tree, "web", 0);
        runtime.change(1, &web);
        runtime.create(&web);
        let other_cgroup = tree.make(&path(&web));
        let other = tree.start(&other_cgroup);
        runtime.change(6, &web);
        Self {
            kernel,
            tree,
            root,
            kubelet,
            runtime,
            settings,
            agent,
            other,
            other_cgroup,
        }
    }

    /// Starts the agent anew.
    fn restart(mut self) -> Self {
        self.runtime.disconnect();
        self.agent.stop();
        self.agent = self.settings.start();
        self
    }

    /// Creates and starts a container as the kubelet and the runtime do: with the set that the
    /// kubelet writes. Returns the id of its process, whose program begins with the answer.
    fn run(&mut self, message: &EventMessage, cpus: &str) -> u32 {
        self.runtime.change(1, message);
        let created = self.runtime.create(message);
        assert_eq!(created.cpus, None, "the kubelet's set stays");
        let cgroup = self.tree.make(&path(message));
        self.kernel.write_cpus(&cgroup, &set(cpus));
        let pid = self.tree.start(&cgroup);
        self.runtime.change(6, message);
        pid
    }

    fn end(&mut self, message: &EventMessage, pid: u32) {
        let pid = Pid::from_raw(i32::try_from(pid).unwrap());
        kill(pid, Signal::SIGKILL).unwrap();
        let cgroup = path(message);
        let deadline = Instant::now() + patience();
        while !self.kernel.cgroups.processes(&cgroup).unwrap().is_empty() {
            assert!(Instant::now() < deadline, "{cgroup} has a process");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn is_owner(&self, message: &EventMessage, cpus: &str) -> bool {
        let cgroup = path(message);
        self.kernel.partition(&cgroup) == "root"
            && self.kernel.effective(&cgroup) == set(cpus)
            && allowed(self.other).is_disjoint(&set(cpus))
    }

    fn owns(&self, message: &EventMessage, cpus: &str) {
        let cgroup = path(message);
        assert!(
            self.is_owner(message, cpus),
            "{cgroup} is {} on {}, and another container is on {}\n{}",
            self.kernel.partition(&cgroup),
            self.kernel.effective(&cgroup),
            allowed(self.other),
            self.agent.log()
        );
    }

    fn eventually_owns(&self, message: &EventMessage, cpus: &str) {
        let what = format!("{} owns {cpus}", path(message));
        self.agent
            .eventually(&what, |_| self.is_owner(message, cpus));
    }

    /// Nothing was lost, nothing is unexplained, and the shared container's set was never written.
    fn finish(self) {
        let status = self.agent.eventually("a quiet end", |status| {
            status["errors"] == serde_json::json!([])
        });
        assert_eq!(status["lost"], "", "{status:#}");
        assert_eq!(status["unexplained"], serde_json::json!([]), "{status:#}");
        assert_eq!(self.kernel.written(&self.other_cgroup), CpuSet::new());
        self.agent.stop();
    }
}

fn unpinned(status: &Value, pod: &str) -> Option<f64> {
    container(status, pod, "main")?["unpinnedSeconds"].as_f64()
}

#[test]
fn the_kubelets_cpus_are_a_partition_before_the_program_begins() {
    let Some(kernel) = partition_tests() else {
        return;
    };
    let mut node = Node::new(&kernel, true);
    node.kubelet.gives("w-0", "2-3");
    let worker = event_message(&node.tree, "w-0", 2);
    node.runtime.change(1, &worker);
    let created = node.runtime.create(&worker);
    assert_eq!(created.cpus, None, "the kubelet's set stays");
    assert_eq!(created.env["PINFOLD_CPUS"], "2-3");
    assert_eq!(created.env["OMP_NUM_THREADS"], "2");
    let main = node.tree.make(&path(&worker));
    kernel.write_cpus(&main, &set("2-3"));
    kernel.set_quota(&main, 2);
    let pid = node.tree.start(&main);
    node.runtime.change(6, &worker);
    node.owns(&worker, "2-3");
    assert_eq!(allowed(pid), set("2-3"));
    assert_eq!(
        kernel.quota(&main),
        Some(200_000),
        "the quota is the kubelet's"
    );
    let status = node.agent.eventually("the status has the CPUs", |status| {
        assigned(status, "w-0") == Some(set("2-3")) && unpinned(status, "w-0") == Some(0.0)
    });
    assert_eq!(status["placementSource"], "kubelet");
    assert_eq!(status["enforcement"], "partition");
    assert_eq!(status["exclusive"], "2-3");
    // The kubelet writes its set again and again, and also another one.
    for cpus in ["2-3", "0-7", "4-5"] {
        kernel.write_cpus(&main, &set(cpus));
        node.owns(&worker, "2-3");
    }
    node.finish();
}

#[test]
fn a_change_of_the_kubelets_choice_is_followed() {
    let Some(kernel) = partition_tests() else {
        return;
    };
    let mut node = Node::new(&kernel, true);
    let workers = ["w-0", "w-1"].map(|name| event_message(&node.tree, name, 2));
    node.kubelet.gives("w-0", "2-3");
    node.run(&workers[0], "2-3");
    node.kubelet.gives("w-1", "4-5");
    node.run(&workers[1], "4-5");
    node.owns(&workers[0], "2-3");
    node.owns(&workers[1], "4-5");
    for (first, second) in [
        ("2-3,6", "4-5"),
        ("6-7", "4-5"),
        ("4-5", "6-7"),
        ("3-4", "5"),
    ] {
        node.kubelet.gives("w-0", first);
        node.kubelet.gives("w-1", second);
        node.eventually_owns(&workers[0], first);
        node.eventually_owns(&workers[1], second);
    }
    node.finish();
}

#[test]
fn the_newest_owner_wins_within_its_start() {
    let Some(kernel) = partition_tests() else {
        return;
    };
    let mut node = Node::new(&kernel, true);
    let mut earlier = None;
    // The earlier container has ended and its cgroup still stands; or it even runs.
    for (name, ends) in [("w-0", true), ("w-1", false), ("w-2", false)] {
        let worker = event_message(&node.tree, name, 3);
        node.kubelet.gives(name, "3-5");
        let pid = node.run(&worker, "3-5");
        node.owns(&worker, "3-5");
        if let Some(earlier) = earlier.replace(worker) {
            assert_eq!(kernel.partition(&path(&earlier)), "member");
        }
        node.kubelet.forgets(name);
        if ends {
            node.end(earlier.as_ref().unwrap(), pid);
        }
    }
    node.finish();
}

#[test]
fn restarts_and_switches_of_the_policy_move_nothing() {
    let Some(kernel) = partition_tests() else {
        return;
    };
    let mut node = Node::new(&kernel, true);
    let worker = event_message(&node.tree, "w-0", 2);
    node.kubelet.gives("w-0", "2-3");
    node.run(&worker, "2-3");
    node = node.restart();
    node.owns(&worker, "2-3");
    node.runtime.connect(&node.agent);
    // The kubelet restarts, and reports its pods only later.
    node.kubelet.forgets("w-0");
    std::thread::sleep(Duration::from_millis(2500));
    node.owns(&worker, "2-3");

    // A kubelet that starts reports no CPUs at first, like one with policy `none`.
    node.kubelet = node.root.starting_kubelet();
    std::thread::sleep(Duration::from_millis(2500));
    assert!(node.kubelet.calls() > 0);
    let status = node.agent.status().unwrap();
    assert_eq!(status["placementSource"], "kubelet", "{status:#}");
    // It creates containers only once it knows its policy. With policy `none`, Pinfold chooses, and takes nothing away. The
    // agent may even restart.
    let own = event_message(&node.tree, "own", 2);
    node.runtime.change(1, &own);
    node.runtime.create(&own).cpus.expect("Pinfold chooses");
    let is = |source: &'static str| move |status: &Value| status["placementSource"] == source;
    node.agent.eventually("Pinfold chooses", is("pinfold"));
    node.owns(&worker, "2-3");
    node = node.restart();
    node.runtime.connect(&node.agent);
    node.owns(&worker, "2-3");
    node.runtime.change(1, &own);
    let chosen = node.runtime.create(&own).cpus.unwrap().to_string();
    let cgroup = node.tree.make(&path(&own));
    node.tree.start(&cgroup);
    node.runtime.change(6, &own);
    node.owns(&own, &chosen);

    // With policy `static` again, what Pinfold pinned stays, whatever the kubelet says of it.
    node.kubelet.set_assigns(true);
    node.kubelet.gives("own", "6-7");
    node.kubelet.gives("w-0", "2-3");
    node.agent.eventually("the kubelet chooses", is("kubelet"));
    std::thread::sleep(Duration::from_millis(2500));
    node.owns(&own, &chosen);
    node.owns(&worker, "2-3");
    node.finish();
}

#[test]
fn a_slow_or_busy_kubelet_delays_a_start_only_shortly() {
    let Some(kernel) = partition_tests() else {
        return;
    };
    let mut node = Node::new(&kernel, true);
    node.kubelet.gives("w-0", "2-3");
    let first = event_message(&node.tree, "w-0", 2);
    node.runtime.change(1, &first);
    node.runtime.create(&first);
    let cgroup = node.tree.make(&path(&first));
    node.tree.start(&cgroup);
    // Others have asked too much: the next answer comes within the deadline.
    node.kubelet.refuses(3);
    node.runtime.change(6, &first);
    node.owns(&first, "2-3");

    // A kubelet that hangs: the container starts without a partition, which follows.
    node.kubelet.is_slow(Duration::from_secs(60));
    node.kubelet.gives("w-1", "4-5");
    let second = event_message(&node.tree, "w-1", 2);
    let begun = Instant::now();
    node.run(&second, "4-5");
    let waited = begun.elapsed();
    assert!(waited < patience() / 10, "a start took {waited:?}");
    assert_eq!(kernel.partition(&path(&second)), "member");
    node.kubelet.is_slow(Duration::ZERO);
    node.eventually_owns(&second, "4-5");
    node.agent
        .eventually("its unpinned time is known", |status| {
            unpinned(status, "w-1").is_some_and(|seconds| seconds > 0.0)
        });
    node.finish();
}

/// Another container of a worker's pod.
fn mate(of: &EventMessage, name: &str) -> EventMessage {
    let mut mate = of.clone();
    let container = mate.container.as_mut().unwrap();
    let parent = container.id.replace("main", name);
    container.id.clone_from(&parent);
    container.name = name.to_owned();
    let linux = container.linux.as_mut().unwrap();
    linux.cgroups_path = linux.cgroups_path.replace("-main", &format!("-{name}"));
    mate
}

/// On Linux 6.12, a set that meets a partition of the same pod makes it invalid, and its CPUs are
/// lost if its cgroup is removed then.
#[test]
fn a_pod_mates_set_over_an_ended_partition_loses_no_cpu() {
    let Some(kernel) = partition_tests() else {
        return;
    };
    let mut node = Node::new(&kernel, true);
    let main = event_message(&node.tree, "w-0", 2);
    let side = mate(&main, "side");
    node.kubelet.gives("w-0", "2-3");
    let pid = node.run(&main, "2-3");
    node.run(&side, "0-1,4-7");
    node.owns(&main, "2-3");
    assert_eq!(kernel.written(&path(&side)), set("0-1,4-7"));
    node.end(&main, pid);
    node.kubelet.forgets("w-0");
    // The runtime asks before it writes the set.
    node.runtime.update(&side);
    assert_eq!(kernel.partition(&path(&main)), "member");
    kernel.write_cpus(&path(&side), &kernel.online);
    node.tree.remove(&path(&main));
    node.runtime.change(STOP, &main);
    assert_eq!(
        kernel.effective(&node.tree.path),
        kernel.online,
        "no CPU is lost"
    );
    assert_eq!(kernel.written(&path(&side)), kernel.online);
    node.finish();
}

/// The container runs on the kubelet's set meanwhile, but other programs may run there, too.
#[test]
fn the_time_until_a_delayed_partition_counts_as_unpinned() {
    let Some(kernel) = partition_tests() else {
        return;
    };
    let mut node = Node::new(&kernel, true);
    let main = event_message(&node.tree, "w-0", 2);
    let side = mate(&main, "side");
    node.kubelet.gives("w-0", "2-3");
    node.run(&side, "0-7");
    node.run(&main, "2-3");
    assert_eq!(kernel.partition(&path(&main)), "member", "the mate's set");
    std::thread::sleep(Duration::from_millis(200));
    kernel.write_cpus(&path(&side), &set("0-1,4-7"));
    node.eventually_owns(&main, "2-3");
    node.agent
        .eventually("its unpinned time is known", |status| {
            unpinned(status, "w-0").is_some_and(|seconds| seconds > 0.0)
        });
    node.finish();
}

/// The next container of the same name.
fn created_again(first: &EventMessage) -> EventMessage {
    let mut second = first.clone();
    let container = second.container.as_mut().unwrap();
    container.id.push_str("-1");
    let linux = container.linux.as_mut().unwrap();
    linux.cgroups_path.push_str("-1");
    second
}

/// The runtime may end between the answer to StartContainer and the start. It then makes the container anew before a plugin
/// can connect, and the kubelet gives both the same CPUs, which makes the first one's partition invalid.
#[test]
fn a_container_made_anew_while_the_runtime_is_not_connected_loses_no_cpu() {
    let Some(kernel) = partition_tests() else {
        return;
    };
    let mut node = Node::new(&kernel, true);
    node.kubelet.gives("w-0", "2-3");
    let first = event_message(&node.tree, "w-0", 2);
    let pid = node.run(&first, "2-3");
    node.owns(&first, "2-3");
    node.runtime.disconnect();
    let second = created_again(&first);
    let cgroup = node.tree.make(&path(&second));
    node.tree.start(&cgroup);
    kernel.write_cpus(&cgroup, &set("2-3"));
    node.agent
        .eventually("the first container's partition ends", |_| {
            kernel.partition(&path(&first)) == "member"
        });
    node.end(&first, pid);
    node.tree.remove(&path(&first));
    node.runtime.connect(&node.agent);
    node.runtime.change(1, &second);
    node.runtime.change(6, &second);
    node.eventually_owns(&second, "2-3");
    node.finish();
}

/// The first container may even stay for a while. The runtime lists it beside its successor, in any order; or it no longer lists
/// it, as containerd if it can't read the state.
#[test]
fn the_successor_of_a_container_that_never_began_owns_the_cpus() {
    let Some(kernel) = partition_tests() else {
        return;
    };
    for is_listed in [true, false] {
        let mut node = Node::new(&kernel, true);
        node.kubelet.gives("w-0", "2-3");
        let first = event_message(&node.tree, "w-0", 2);
        node.run(&first, "2-3");
        node.runtime.disconnect();
        let second = created_again(&first);
        let cgroup = node.tree.make(&path(&second));
        node.tree.start(&cgroup);
        kernel.write_cpus(&cgroup, &set("2-3"));
        let left_over = [&first].into_iter().filter(|_| is_listed);
        let containers = [&second].into_iter().chain(left_over);
        let containers = containers.map(|message| Container {
            state: ContainerState::Created as i32,
            ..message.container.clone().unwrap()
        });
        let existing = Synchronize {
            pods: first.pod.clone().into_iter().collect(),
            containers: containers.collect(),
            ..Synchronize::default()
        };
        node.runtime.synchronize(&node.agent, 20_000, &existing);
        node.runtime.change(6, &second);
        node.owns(&second, "2-3");
        assert_eq!(kernel.partition(&path(&first)), "member");
        assert!(kernel.effective(&path(&first)).is_disjoint(&set("2-3")));
        // It goes at last, and nothing changes.
        node.runtime.change(STOP, &first);
        node.owns(&second, "2-3");
        node.finish();
    }
}

#[test]
fn an_init_container_is_no_partition_and_no_obstacle() {
    let Some(kernel) = partition_tests() else {
        return;
    };
    let mut node = Node::new(&kernel, true);
    let main = event_message(&node.tree, "w-0", 2);
    let init = mate(&main, "init");
    node.kubelet.gives("w-0", "2-3");
    let pid = node.run(&init, "2-3");
    std::thread::sleep(Duration::from_millis(1500));
    assert_eq!(kernel.partition(&path(&init)), "member");
    assert_eq!(kernel.written(&path(&init)), set("2-3"));
    // Its cgroup may stand a moment longer than its process.
    node.end(&init, pid);
    node.run(&main, "2-3");
    node.owns(&main, "2-3");
    node.finish();
}

#[test]
fn a_kubelet_that_restarts_with_another_policy_is_asked_at_the_next_creation() {
    let Some(kernel) = partition_tests() else {
        return;
    };
    let mut node = Node::new(&kernel, false);
    let asked = node.kubelet.calls();
    assert!(asked > 0);
    // The next kubelet has another socket, and its first container comes at once.
    node.kubelet = node.root.kubelet(true);
    node.kubelet.gives("w-0", "5-6");
    let worker = event_message(&node.tree, "w-0", 2);
    node.run(&worker, "5-6");
    node.owns(&worker, "5-6");
    node.finish();
}

/// A kubelet serves its socket before its CPU Manager has started.
#[test]
fn an_answer_of_a_kubelet_that_starts_is_not_the_last_word() {
    let Some(kernel) = partition_tests() else {
        return;
    };
    let mut node = Node::new(&kernel, false);
    node.kubelet = node.root.starting_kubelet();
    let deadline = Instant::now() + patience();
    while node.kubelet.calls() < 2 {
        assert!(Instant::now() < deadline, "the agent asks in each turn");
        std::thread::sleep(Duration::from_millis(20));
    }
    node.kubelet.set_assigns(true);
    node.kubelet.gives("w-0", "5-6");
    let worker = event_message(&node.tree, "w-0", 2);
    node.run(&worker, "5-6");
    node.owns(&worker, "5-6");
    node.finish();
}

/// Only the machine `isolcpus` of `tests/vm` has such CPUs.
#[test]
fn cpus_isolated_at_boot_become_an_isolated_partition() {
    let Some(kernel) = partition_tests() else {
        return;
    };
    let isolated = fs::read_to_string("/sys/devices/system/cpu/isolated").unwrap();
    if isolated.trim() != "6-7" {
        gate::leave("tests/vm/run isolcpus", "the CPUs 6-7 isolated at boot");
        return;
    }
    let mut node = Node::new(&kernel, true);
    let [wholly, mixed, balanced, both] =
        ["w-0", "w-1", "w-2", "w-4"].map(|name| event_message(&node.tree, name, 2));
    // One of its CPUs goes offline, and comes back.
    node.kubelet.gives("w-4", "6-7");
    let pid = node.run(&both, "6-7");
    for (online, list) in [("0", "6"), ("1", "6-7")] {
        fs::write("/sys/devices/system/cpu/cpu7/online", online).unwrap();
        node.agent.eventually("it stays isolated", |status| {
            status["online"] == if online == "0" { "0-6" } else { "0-7" }
                && status["errors"] == serde_json::json!([])
                && kernel.effective(&path(&both)) == set(list)
        });
        assert_eq!(kernel.partition(&path(&both)), "isolated", "{list}");
    }
    node.kubelet.forgets("w-4");
    node.end(&both, pid);
    node.tree.remove(&path(&both));
    node.runtime.change(STOP, &both);

    node.kubelet.gives("w-0", "7");
    let pid = node.run(&wholly, "7");
    assert_eq!(kernel.partition(&path(&wholly)), "isolated");
    assert_eq!(kernel.effective(&path(&wholly)), set("7"));
    assert_eq!(allowed(pid), set("7"));
    assert!(allowed(node.other).is_disjoint(&set("7")));

    node.kubelet.gives("w-1", "5-6");
    node.run(&mixed, "5-6");
    assert_eq!(kernel.partition(&path(&mixed)), "member");
    assert_eq!(kernel.written(&path(&mixed)), set("5-6"));
    node.agent
        .eventually("the note names both kinds of CPUs", |status| {
            container(status, "w-1", "main")
                .and_then(|container| container["note"].as_str())
                .is_some_and(|note| note.contains("6 are isolated at boot and 5 are not"))
        });

    node.kubelet.gives("w-2", "3-4");
    node.run(&balanced, "3-4");
    node.owns(&balanced, "3-4");
    // The ended owner's CPU goes to another container, and stays isolated.
    node.kubelet.forgets("w-0");
    node.end(&wholly, pid);
    let next = event_message(&node.tree, "w-3", 1);
    node.kubelet.gives("w-3", "7");
    node.run(&next, "7");
    assert_eq!(kernel.partition(&path(&next)), "isolated");
    assert_eq!(kernel.effective(&path(&next)), set("7"));
    node.finish();
}
