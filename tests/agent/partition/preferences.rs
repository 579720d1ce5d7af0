//! The preferences of pods, checked in the kernel: memory, idle siblings, room by moves, CPU isolation.

use std::fs;

use pinfold::cpu::CpuSet;
use pinfold::host::topology;

use super::{WORK_QUEUES, partition_tests, work_queues};
use crate::agent::{Manifests, Settings, assigned, in_force, worker_with};
use crate::kernel::{Kernel, allowed};

/// A worker that fits into the memory of a NUMA node of a small guest.
fn small(name: &str, cpus: usize, annotations: &str) -> String {
    worker_with(
        name,
        &format!("{name}-uid"),
        cpus,
        annotations,
        &format!("{name}-main"),
    )
    .replace("1Gi", "64Mi")
}

fn cpus(list: &str) -> CpuSet {
    list.parse().unwrap()
}

/// The NUMA nodes that may supply a cgroup's memory.
fn memory(kernel: &Kernel, path: &str) -> CpuSet {
    let file = kernel
        .cgroups
        .root()
        .join(path)
        .join("cpuset.mems.effective");
    fs::read_to_string(file).unwrap().trim().parse().unwrap()
}

#[test]
fn memory_comes_from_where_the_cpus_are() {
    let Some(kernel) = partition_tests() else {
        return;
    };
    let machine = topology::read(std::path::Path::new("/")).unwrap();
    let mut tree = kernel.tree();
    let pods = Manifests::new();
    pods.put("w0.yaml", &small("w0", 2, ""));
    pods.put("free.yaml", &small("free", 1, "pinfold.io/memory: free"));
    let settings = Settings::new(&tree.path, &pods, &kernel.first());
    let agent = settings.start();
    let mut start = |name: &str| {
        let pod = tree.pod("", &format!("{name}-uid"));
        let main = tree.container(&pod, &format!("{name}-main"));
        // As on a node with a kubelet: memory that no controller counts is not moved.
        let top = tree.path.split('/').next().unwrap();
        for path in ["", top, &tree.path, &pod] {
            assert!(
                kernel.write(path, "cgroup.subtree_control", "+memory"),
                "{path}"
            );
        }
        tree.start(&main);
        main
    };
    let (bound, free) = (start("w0"), start("free"));
    let status = agent.eventually("both are pinned", |status| {
        in_force(status, "w0") && in_force(status, "free")
    });
    let numa = machine.numa_of(&assigned(&status, "w0").unwrap()).unwrap();
    let all = memory(&kernel, &tree.path);
    assert!(
        numa.len() < all.len(),
        "a placement on one of {all}: {numa}"
    );
    agent.eventually("the memory follows", |_| memory(&kernel, &bound) == numa);
    assert_eq!(memory(&kernel, &free), all);
    // A restarted agent knows the old value; release restores the value.
    agent.kill();
    let agent = settings.start();
    agent.eventually("the memory stays", |_| memory(&kernel, &bound) == numa);
    assert_eq!(
        agent
            .metric("pinfold_reconcile_steps_total", &[])
            .unwrap_or(0.0),
        0.0,
        "a restart plans no step"
    );
    agent.stop();
    let output = crate::agent::pinfold()
        .args(["release", "--pod-cgroup", &tree.path])
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(memory(&kernel, &bound), all);
}

#[test]
fn siblings_stay_idle_where_one_cpu_of_each_core_is_wanted() {
    let Some(kernel) = partition_tests() else {
        return;
    };
    let machine = topology::read(std::path::Path::new("/")).unwrap();
    let mut tree = kernel.tree();
    let pods = Manifests::new();
    pods.put("w0.yaml", &small("w0", 2, "pinfold.io/cores: single"));
    let settings = Settings::new(&tree.path, &pods, &machine.core_of(0));
    let agent = settings.start();
    let pod = tree.pod("", "w0-uid");
    let main = tree.container(&pod, "w0-main");
    let pid = tree.start(&main);
    let mut idle = CpuSet::new();
    let rest = |idle: &CpuSet, own: &CpuSet| kernel.online.difference(&own.union(idle));
    agent.eventually("no process runs on the siblings", |status| {
        let Some(own) = assigned(status, "w0") else {
            return false;
        };
        let cores = own
            .iter()
            .fold(CpuSet::new(), |all, cpu| all.union(&machine.core_of(cpu)));
        idle = cores.difference(&own);
        allowed(pid) == own
            && allowed(std::process::id()) == rest(&idle, &own)
            && kernel.partition(&format!("{pod}/pinfold-idle")) == "root"
    });
    let own = allowed(pid);
    assert_eq!((own.len(), idle.len()), (2, 2), "{own} and {idle}");
    // A restart keeps the placement, and the idle CPUs go to no container.
    agent.kill();
    let agent = settings.start();
    assert_eq!(
        agent
            .metric("pinfold_reconcile_steps_total", &[])
            .unwrap_or(0.0),
        0.0,
        "a restart plans no step"
    );
    assert_eq!(allowed(std::process::id()), rest(&idle, &own));
    // The preference is removed: the siblings are shared again, and the cgroup of the siblings is gone.
    pods.put("w0.yaml", &small("w0", 2, ""));
    agent.eventually("the siblings are everybody's", |_| {
        allowed(std::process::id()) == kernel.online.difference(&own)
            && !kernel
                .cgroups
                .root()
                .join(&pod)
                .join("pinfold-idle")
                .exists()
    });
    assert_eq!(allowed(pid), own);
    agent.stop();
}

#[test]
fn a_running_container_that_allows_it_moves_to_make_room() {
    let Some(kernel) = partition_tests() else {
        return;
    };
    let machine = topology::read(std::path::Path::new("/")).unwrap();
    // Two NUMA nodes of four CPUs, of which the first core is reserved: 2-3 and 4-7 can be given.
    assert_eq!(
        machine
            .numa
            .iter()
            .map(|numa| numa.cpus.len())
            .collect::<Vec<_>>(),
        [4, 4],
        "{machine:?}"
    );
    let mut tree = kernel.tree();
    let pods = Manifests::new();
    let config = tempfile::NamedTempFile::with_suffix(".yaml").unwrap();
    fs::write(config.path(), "maxMovesPerHour: 1\n").unwrap();
    let settings = Settings::new(&tree.path, &pods, &machine.core_of(0))
        .with(&["--config", config.path().to_str().unwrap()]);
    let agent = settings.start();
    let mut start = |name: &str, count: usize, annotations: &str| {
        pods.put(&format!("{name}.yaml"), &small(name, count, annotations));
        let pod = tree.pod("", &format!("{name}-uid"));
        let main = tree.container(&pod, &format!("{name}-main"));
        (pod, tree.start(&main))
    };
    let (first, _) = start("first", 2, "");
    agent.eventually("the first is pinned", |status| in_force(status, "first"));
    let (_, moving) = start("moving", 2, "pinfold.io/movable: 'true'");
    agent.eventually("the second is pinned", |status| in_force(status, "moving"));
    assert_eq!(allowed(moving), cpus("4-5"));
    pods.remove("first.yaml");
    tree.remove(&first);
    agent.eventually("the first is gone", |status| status["exclusive"] == "4-5");
    pods.put("big.yaml", &small("big", 4, ""));
    // Beforehand, as a person would ask.
    let mut plan = crate::agent::pinfold();
    plan.args([
        "plan",
        "--live",
        "--moves",
        "1",
        "-o",
        "json",
        "--reserved",
        "0-1",
        "--pod-cgroup",
        &settings.trees[0],
    ]);
    let output = plan.arg("--pods").arg(pods.path()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let planned: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let moves: Vec<_> = planned["moves"].as_array().unwrap().iter().collect();
    assert_eq!(moves.len(), 1, "{planned:#}");
    assert_eq!(
        (&moves[0]["from"], &moves[0]["to"]),
        (&"4-5".into(), &"2-3".into())
    );
    assert_eq!(planned["containers"][0]["cpus"], "4-7", "{planned:#}");
    let pod = tree.pod("", "big-uid");
    let main = tree.container(&pod, "big-main");
    let big = tree.start(&main);
    agent.eventually("the big worker is not split", |status| {
        in_force(status, "big") && in_force(status, "moving")
    });
    assert_eq!((allowed(big), allowed(moving)), (cpus("4-7"), cpus("2-3")));
    assert_eq!(agent.metric("pinfold_moves_total", &[]), Some(1.0));
    agent.stop();
}

#[test]
fn interrupts_and_work_queues_leave_exclusive_cpus_and_return() {
    let Some(kernel) = partition_tests() else {
        return;
    };
    let mut tree = kernel.tree();
    let pods = Manifests::new();
    let config = tempfile::NamedTempFile::with_suffix(".yaml").unwrap();
    fs::write(
        config.path(),
        "cpuIsolation: {irqs: true, workqueues: true}\n",
    )
    .unwrap();
    let before = knobs();
    assert!(before.len() > 1, "interrupts that can be moved: {before:?}");
    let settings = Settings::new(&tree.path, &pods, &kernel.first()).with(&[
        "--reconcile-interval",
        "1s",
        "--config",
        config.path().to_str().unwrap(),
    ]);
    let agent = settings.start();
    pods.put("w0.yaml", &small("w0", 2, ""));
    let pod = tree.pod("", "w0-uid");
    let main = tree.container(&pod, "w0-main");
    tree.start(&main);
    let status = agent.eventually("the worker is pinned", |status| in_force(status, "w0"));
    let own = assigned(&status, "w0").unwrap();
    let off = |knobs: &[(String, CpuSet)]| {
        let moved = |file: &String, cpus: &CpuSet| {
            // Some interrupts cannot be moved by the kernel's rules; the status names them, and no work queue is among them.
            before
                .iter()
                .any(|(other, had)| other == file && had == cpus)
                && !file.contains("workqueue")
        };
        knobs
            .iter()
            .all(|(file, cpus)| cpus.is_disjoint(&own) || moved(file, cpus))
            && knobs
                .iter()
                .filter(|(_, cpus)| cpus.is_disjoint(&own))
                .count()
                > 1
    };
    agent.eventually(
        "interrupts and work queues are off the exclusive CPUs",
        |_| off(&knobs()),
    );
    // The killed agent has left a note of the previous values.
    agent.kill();
    let agent = settings.start();
    assert!(off(&knobs()));
    pods.remove("w0.yaml");
    tree.remove(&pod);
    agent.eventually("every affinity has the earlier value", |_| {
        knobs() == before
    });
    agent.stop();
}

/// Where interrupts and work queues may run: file and CPUs.
fn knobs() -> Vec<(String, CpuSet)> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc/irq").unwrap().flatten() {
        let file = entry.path().join("smp_affinity_list");
        if let Some(cpus) = fs::read_to_string(&file)
            .ok()
            .and_then(|text| text.trim().parse().ok())
        {
            found.push((file.display().to_string(), cpus));
        }
    }
    found.push((WORK_QUEUES.to_owned(), work_queues()));
    found.sort_by(|a, b| a.0.cmp(&b.0));
    found
}
