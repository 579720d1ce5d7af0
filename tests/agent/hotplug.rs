//! CPUs that go offline and come back, according to fake kernel files. The real CPUs stay online,
//! because other programs use the machine.

use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use pinfold::cpu::CpuSet;
use serde_json::Value;

use crate::agent::{Manifests, Settings, assigned, container, in_force, worker};
use crate::kernel::kernel_tests;
use crate::kubelet::Root;
use crate::release::release;
use crate::runtime_requests::{Runtime, event_message, path, wait_for_rest};

/// NRI's numbers of events in StateChange.
const RUN_POD_SANDBOX: i32 = 1;
const START_CONTAINER: i32 = 6;

/// A machine's `sys` in a folder.
pub(crate) struct Machine {
    pub(crate) root: Root,
    system: PathBuf,
}

impl Machine {
    pub(crate) fn new(online: &CpuSet) -> Self {
        let root = Root::new();
        let sys = PathBuf::from(root.path()).join("sys");
        fs::remove_file(&sys).unwrap();
        let machine = Self {
            root,
            system: sys.join("devices/system"),
        };
        for cpu in online.iter() {
            machine.write(
                &format!("cpu/cpu{cpu}/topology/thread_siblings_list"),
                &cpu.to_string(),
            );
        }
        machine.write("cpu/present", &online.to_string());
        machine.write("cpu/online", &online.to_string());
        machine.write("node/has_memory", "0");
        machine.write("node/online", "0");
        machine.write("node/node0/cpulist", &online.to_string());
        machine.write("node/node0/meminfo", "Node 0 MemTotal:  1000 kB");
        machine
    }

    /// Writes a file in place, as sysfs does. All texts are equally long, so that no reader sees parts
    /// of two.
    pub(crate) fn write(&self, name: &str, text: &str) {
        let path = self.system.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let file = fs::OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(path);
        let text = format!("{text:64}\n");
        file.unwrap().write_all(text.as_bytes()).unwrap();
    }
}

#[test]
fn topology_files_are_read_only_after_cpus_or_numa_nodes_came_or_went() {
    let Some(kernel) = kernel_tests() else { return };
    let tree = kernel.tree();
    let (machine, pods) = (Machine::new(&kernel.online), Manifests::new());
    let settings = Settings::new(&tree.path, &pods, &CpuSet::new());
    let agent = settings
        .with(&["--root-dir", machine.root.path(), "--reconcile-interval=1s"])
        .start();
    // Every reader of the file reports invalid content.
    let first = kernel.first().to_string();
    let siblings = format!("cpu/cpu{first}/topology/thread_siblings_list");
    machine.write(&siblings, "nonsense");
    std::thread::sleep(Duration::from_millis(2500));
    assert!(
        !agent.log().contains("the old topology stays in use"),
        "{}",
        agent.log()
    );
    machine.write("cpu/online", &first);
    agent.eventually("the file is read", |_| {
        agent.log().contains("the old topology stays in use")
    });
    machine.write(&siblings, &first);
    agent.eventually("one CPU is online", |status| status["online"] == first);
    agent.stop();
}

#[test]
fn default_reserved_cpus_never_move_onto_an_owned_core() {
    let Some(kernel) = kernel_tests() else { return };
    let mut tree = kernel.tree();
    let machine = Machine::new(&kernel.online);
    let pods = Manifests::new();
    // A worker that owns every CPU but the first, which is the default reserved core.
    let (first, others) = (kernel.first(), kernel.online.difference(&kernel.first()));
    pods.put("worker.yaml", &worker("worker-0", "uid-1", others.len()));
    let settings = Settings::new(&tree.path, &pods, &CpuSet::new());
    let agent = settings
        .with(&["--root-dir", machine.root.path(), "--reconcile-interval=1s"])
        .start();
    let pod = tree.pod("", "uid-1");
    let main = tree.container(&pod, "main");
    tree.start(&main);
    let status = agent.eventually("the worker is pinned", |status| {
        in_force(status, "worker-0")
    });
    assert_eq!(status["reserved"], first.to_string());

    // More memory is no change of the machine.
    machine.write("node/node0/meminfo", "Node 0 MemTotal:  2000 kB");
    std::thread::sleep(Duration::from_millis(2500));
    assert!(
        !agent.log().contains("the topology has changed: "),
        "{}",
        agent.log()
    );

    machine.write("cpu/online", &others.to_string());
    let status = agent.eventually("the first CPU is offline", |status| {
        status["online"] == others.to_string()
    });
    assert_eq!(
        assigned(&status, "worker-0"),
        Some(others.clone()),
        "{status:#}"
    );
    let status = agent.eventually("no CPU is reserved", |status| status["reserved"] == "");
    assert!(
        status["errors"]
            .to_string()
            .contains("no reserved CPU is online"),
        "{status:#}"
    );
    // A further pod gets nothing.
    pods.put("late.yaml", &worker("late", "uid-2", 1));
    let late = tree.pod("", "uid-2");
    tree.start(&tree.container(&late, "late"));
    let status = agent.eventually("the container runs", |status| {
        container(status, "late", "main").is_some_and(|container| container["running"] == true)
    });
    assert_eq!(assigned(&status, "late"), None);

    machine.write("cpu/online", &kernel.online.to_string());
    let status = agent.eventually("the CPU is reserved again", |status| {
        status["reserved"] == first.to_string()
    });
    assert_eq!(assigned(&status, "worker-0"), Some(others));
    let changes = || agent.log().matches("the topology has changed: ").count();
    agent.eventually("both changes are logged", |_| changes() >= 2);
    assert_eq!(changes(), 2, "{}", agent.log());
    agent.stop();
}

#[test]
fn an_agent_starts_with_the_online_part_of_its_reserved_cpus() {
    let Some(kernel) = kernel_tests() else { return };
    let tree = kernel.tree();
    let (machine, pods) = (Machine::new(&kernel.online), Manifests::new());
    let (first, last) = (kernel.first(), kernel.last());
    machine.write("cpu/online", &first.to_string());
    let root = ["--root-dir", machine.root.path()];
    let both = Settings::new(&tree.path, &pods, &first.union(&last));
    let agent = both.with(&root).with(&["--reconcile-interval=1s"]).start();
    let missing = format!("reserved, but not online: {}", last.in_words());
    let is_warned = |status: &Value| status["errors"].to_string().contains(&missing);
    let status = agent.status().unwrap();
    assert!(is_warned(&status), "{status:#}");
    assert!(agent.log().contains(&missing), "{}", agent.log());
    assert_eq!(agent.get("/readyz").status, 200);
    // The CPU is reserved again as soon as it is back.
    machine.write("cpu/online", &kernel.online.to_string());
    let status = agent.eventually("the CPU is online", |status| !is_warned(status));
    let reserved: CpuSet = status["reserved"].as_str().unwrap().parse().unwrap();
    assert_eq!(reserved, first.union(&last));
    // The same holds for an agent whose CPU goes offline while it runs.
    machine.write("cpu/online", &first.to_string());
    agent.eventually("the CPU is offline", is_warned);
    agent.stop();
    // Assignments are given back on such a node, too.
    let reserved = first.union(&last).to_string();
    let more = [&root[..], &["--reserved", &reserved]].concat();
    let (code, _, errors) = release(&tree.path, &more);
    assert_eq!(code, Some(0), "{errors}");
}

#[test]
fn no_agent_starts_without_any_online_reserved_cpu() {
    let Some(kernel) = kernel_tests() else { return };
    let tree = kernel.tree();
    let (machine, pods) = (Machine::new(&kernel.online), Manifests::new());
    machine.write("cpu/online", &kernel.first().to_string());
    let output = Settings::new(&tree.path, &pods, &kernel.last())
        .with(&["--root-dir", machine.root.path()])
        .command()
        .output()
        .unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{errors}");
    assert!(errors.contains("no reserved CPU is online"), "{errors}");
}

#[test]
fn a_cpu_that_has_just_gone_offline_is_not_assigned() {
    let Some(kernel) = kernel_tests() else { return };
    let mut tree = kernel.tree();
    let machine = Machine::new(&kernel.online);
    let mut runtime = Runtime::new();
    // No timer reads the topology, and no turn for all pods runs before the requests.
    let settings = Settings::without_manifests(&tree.path, &kernel.all_but_one()).with(&[
        "--api=never",
        "--reconcile-interval=3600s",
        "--root-dir",
        machine.root.path(),
    ]);
    let agent = runtime.settings(&settings).start();
    runtime.connect(&agent);
    let worker = event_message(&tree, "worker", 1);
    runtime.change(RUN_POD_SANDBOX, &worker);
    wait_for_rest(&agent);
    let back = kernel.online.to_string();
    machine.write("cpu/online", &kernel.all_but_one().to_string());
    assert_eq!(runtime.create(&worker).cpus, None, "{}", agent.log());
    // The CPU comes back before the container starts.
    tree.make(&path(&worker));
    tree.start(&path(&worker));
    wait_for_rest(&agent);
    machine.write("cpu/online", &back);
    runtime.change(START_CONTAINER, &worker);
    assert_eq!(
        kernel.effective(&path(&worker)),
        kernel.last(),
        "{}",
        agent.log()
    );
    agent.stop();
}
