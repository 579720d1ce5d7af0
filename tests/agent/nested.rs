//! cgroup v1: the cgroups that a container makes inside its own follow the container's set, and get their own sets back. On
//! cgroup v2 the kernel does this by itself.

use std::fs;

use pinfold::host::cgroup::{CgroupVersion, NoteSubject};

use crate::agent::{Agent, Manifests, Settings, best_effort, in_force, pinfold, worker_with};
use crate::gate;
use crate::kernel::{Kernel, Tree, allowed, kernel_tests};

/// The kernel, if its cpusets belong to cgroup v1; see [`kernel_tests`].
pub(crate) fn v1_tests() -> Option<Kernel> {
    let kernel = kernel_tests()?;
    if kernel.cgroups.version != CgroupVersion::V1 {
        gate::leave("a guest with cgroup v1", "cgroup v1");
        return None;
    }
    Some(kernel)
}

/// The cgroups `a`, `a/b` and `single` inside a container, as a container runtime in the container makes them. `single` has
/// the last CPU only.
fn nested(kernel: &Kernel, tree: &Tree<'_>, container: &str) -> [String; 3] {
    let paths = ["a", "a/b", "single"].map(|name| tree.make(&format!("{container}/{name}")));
    kernel.write_cpus(&paths[2], &kernel.last());
    paths
}

fn sets(kernel: &Kernel, paths: &[String]) -> Vec<String> {
    let sets = paths.iter().map(|path| kernel.written(path));
    sets.map(|cpus| cpus.to_string()).collect()
}

/// Whether a cgroup has an attribute of Pinfold.
fn is_noted(kernel: &Kernel, path: &str) -> bool {
    let note = kernel.cgroups.note(path, NoteSubject::NarrowedSet).unwrap();
    note.is_some() || kernel.cgroups.assignment_record(path).unwrap().is_some()
}

#[test]
fn cgroups_inside_a_shared_container_get_their_cpus_back() {
    let Some(kernel) = v1_tests() else { return };
    let mut tree = kernel.tree();
    let (all, rest, last) = (
        kernel.online.to_string(),
        kernel.all_but_one().to_string(),
        kernel.last().to_string(),
    );
    let pods = Manifests::new();
    pods.put("dind.yaml", &best_effort("dind", "dind-uid"));
    let shared = tree.pod("besteffort", "dind-uid");
    let shared = tree.container(&shared, "dind1");
    tree.start(&shared);
    let inside = nested(&kernel, &tree, &shared);
    let pid = tree.start(&inside[1]);
    let settings = Settings::new(&tree.path, &pods, &kernel.all_but_one());
    let settings = settings.with(&["--reconcile-interval=1s"]);
    let mut agent = settings.start();
    let pin = |agent: &Agent, tree: &mut Tree<'_>| -> String {
        pods.put(
            "worker.yaml",
            &worker_with("worker-0", "uid-1", 1, "", "main1"),
        );
        let pod = tree.pod("", "uid-1");
        let main = tree.container(&pod, "main1");
        tree.start(&main);
        agent.eventually("all is settled", |status| {
            in_force(status, "worker-0") && allowed(pid) == kernel.all_but_one()
        });
        assert_eq!(sets(&kernel, &inside), [rest.as_str(); 3]);
        pod
    };
    let back = [all.as_str(), all.as_str(), last.as_str()];
    for restarts in [false, true] {
        let pod = pin(&agent, &mut tree);
        if restarts {
            // The notes outlive the agent that wrote them.
            agent.stop();
            agent = settings.start();
        }
        pods.remove("worker.yaml");
        tree.remove(&pod);
        agent.eventually("the sets are back", |_| sets(&kernel, &inside) == back);
    }
    assert!(!inside.iter().any(|path| is_noted(&kernel, path)));

    // A set that the container writes itself meanwhile stays.
    let pod = pin(&agent, &mut tree);
    kernel.write_cpus(&inside[2], &kernel.first());
    let own = [all.as_str(), all.as_str(), &kernel.first().to_string()].map(str::to_owned);
    pods.remove("worker.yaml");
    tree.remove(&pod);
    agent.eventually("the other sets are back", |_| {
        sets(&kernel, &inside)[..2] == own[..2]
    });
    if kernel.online.len() > 2 {
        assert_eq!(sets(&kernel, &inside), own);
    }
    kernel.write_cpus(&inside[2], &kernel.last());

    // A release restores the sets as well.
    let pod = pin(&agent, &mut tree);
    agent.stop();
    release(&tree.path);
    assert_eq!(sets(&kernel, &inside), back);
    assert!(
        !inside
            .iter()
            .chain([&shared, &pod])
            .any(|path| is_noted(&kernel, path))
    );
}

fn release(tree: &str) {
    let released = pinfold()
        .args(["release", "--pod-cgroup", tree])
        .output()
        .unwrap();
    assert!(released.status.success(), "{released:?}");
}

#[test]
fn cgroups_inside_an_owner_get_their_cpus_back() {
    let Some(kernel) = v1_tests() else { return };
    let mut tree = kernel.tree();
    let (all, last) = (kernel.online.to_string(), kernel.last().to_string());
    let first = kernel.first();
    let pod = tree.pod("", "uid-1");
    let main = tree.container(&pod, "main1");
    let inside = nested(&kernel, &tree, &main);
    // No CPU of this set is among the owner's.
    kernel.write_cpus(&inside[2], &first);
    let pid = tree.start(&inside[1]);
    let pods = Manifests::new();
    pods.put(
        "worker.yaml",
        &worker_with("worker-0", "uid-1", 1, "", "main1"),
    );
    let settings = Settings::new(&tree.path, &pods, &kernel.all_but_one());
    let settings = settings.with(&["--reconcile-interval=1s"]);
    let agent = settings.start();
    agent.eventually("the worker is pinned", |status| {
        in_force(status, "worker-0")
    });
    assert_eq!(allowed(pid), kernel.last());
    assert_eq!(sets(&kernel, &inside), [last.as_str(); 3]);
    // The pod gives its CPUs up and lives on.
    let shared = "pinfold.io/cpus: shared";
    pods.put(
        "worker.yaml",
        &worker_with("worker-0", "uid-1", 1, shared, "main1"),
    );
    let back = [all.as_str(), all.as_str(), &first.to_string()].map(str::to_owned);
    agent.eventually("the sets are back", |_| sets(&kernel, &inside) == back);
    pods.put(
        "worker.yaml",
        &worker_with("worker-0", "uid-1", 1, "", "main1"),
    );
    agent.eventually("the worker is pinned", |status| {
        in_force(status, "worker-0")
    });
    agent.stop();
    release(&tree.path);
    assert_eq!(sets(&kernel, &inside), back);
    assert!(
        !inside
            .iter()
            .chain([&main, &pod])
            .any(|path| is_noted(&kernel, path))
    );
}

/// A CPU that is offline until the drop.
struct Offline(u32);

// === impl Offline ===

impl Offline {
    fn new(cpu: u32) -> Self {
        fs::write(format!("/sys/devices/system/cpu/cpu{cpu}/online"), "0").unwrap();
        Self(cpu)
    }
}

impl Drop for Offline {
    fn drop(&mut self) {
        fs::write(format!("/sys/devices/system/cpu/cpu{}/online", self.0), "1").unwrap();
    }
}

#[test]
fn cpus_that_were_offline_return_to_every_cgroup() {
    let Some(kernel) = v1_tests() else { return };
    if std::env::var_os("PINFOLD_HOTPLUG_TESTS").is_none_or(|value| value != "1") {
        gate::leave(
            "a guest with cgroup v1",
            "a machine whose CPUs may go offline",
        );
        return;
    }
    let mut tree = kernel.tree();
    let web = tree.pod("besteffort", "web-uid");
    let web1 = tree.container(&web, "web1");
    tree.start(&web1);
    let inside = nested(&kernel, &tree, &web1);
    let pod = tree.pod("", "uid-1");
    let main = tree.container(&pod, "main1");
    tree.start(&main);
    let pods = Manifests::new();
    pods.put("web.yaml", &best_effort("web", "web-uid"));
    let class = format!("{}/besteffort", tree.path);
    let top = tree.path.rsplit_once('/').unwrap().0.to_owned();
    let wide = [
        top,
        tree.path.clone(),
        class,
        web.clone(),
        web1.clone(),
        inside[0].clone(),
        pod.clone(),
        main.clone(),
    ];
    let all = kernel.online.to_string();
    let settings = Settings::new(&tree.path, &pods, &kernel.first());
    let settings = settings.with(&["--reconcile-interval=1s"]);
    let mut agent = settings.start();
    let cpus: Vec<u32> = kernel.online.iter().collect();
    let (one, other) = (cpus[1], cpus[cpus.len() - 2]);
    for (has_owner, restarts) in [(false, false), (false, true), (true, false), (true, true)] {
        let size = kernel.online.len() / 2;
        if has_owner {
            pods.put(
                "worker.yaml",
                &worker_with("worker-0", "uid-1", size, "", "main1"),
            );
            agent.eventually("the worker is pinned", |status| {
                in_force(status, "worker-0")
            });
        }
        // A turn must see the sets before the CPUs leave.
        let before = agent.metric("pinfold_reconcile_total", &[]).unwrap();
        agent.eventually("a turn", |_| {
            agent.metric("pinfold_reconcile_total", &[]).unwrap() > before + 1.0
        });
        let offline = [Offline::new(one), Offline::new(other)];
        let left = kernel.online.len() - 2;
        // The kernel takes an offline CPU from one cgroup after another. An agent that stops meanwhile can't know of the rest.
        agent.eventually("the agent has noted the change everywhere", |status| {
            let online: pinfold::cpu::CpuSet = status["online"].as_str().unwrap().parse().unwrap();
            online.len() == left && wide.iter().all(|path| is_noted(&kernel, path))
        });
        if restarts {
            agent.stop();
            agent = settings.start();
        }
        drop(offline);
        if has_owner {
            agent.eventually("the owner has its CPUs", |status| {
                in_force(status, "worker-0") && status["withheld"] == ""
            });
            agent.eventually("the others have the rest", |status| {
                kernel.written(&web1).to_string() == status["shared"].as_str().unwrap()
            });
            pods.remove("worker.yaml");
            let shared = "pinfold.io/cpus: shared";
            pods.put(
                "worker.yaml",
                &worker_with("worker-0", "uid-1", size, shared, "main1"),
            );
        }
        agent.eventually("all sets are as before", |status| {
            sets(&kernel, &wide).iter().all(|set| *set == all)
                && kernel.written(&inside[2]) == kernel.last()
                && status["errors"].as_array().unwrap().is_empty()
        });
        assert!(!is_noted(&kernel, &tree.path));
    }
    assert!(!agent.log().contains("can't write"), "{}", agent.log());

    // An administrator's limit of that time stays.
    let offline = Offline::new(other);
    agent.eventually("the change is noted", |_| is_noted(&kernel, &tree.path));
    agent.stop();
    kernel.write_cpus(&format!("{}/burstable", tree.path), &kernel.first());
    for path in inside.iter().rev().chain(wide.iter().rev()) {
        if *path != wide[0] {
            kernel.write_cpus(path, &kernel.first());
        }
    }
    let agent = settings.start();
    drop(offline);
    agent.eventually("the CPU is back", |status| status["online"] == all);
    let turns = agent.metric("pinfold_reconcile_total", &[]).unwrap();
    agent.eventually("two turns", |_| {
        agent.metric("pinfold_reconcile_total", &[]).unwrap() > turns + 1.0
    });
    assert_eq!(kernel.written(&tree.path), kernel.first());
    agent.stop();
    release(&tree.path);
}
