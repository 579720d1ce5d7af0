//! Writes that the kernel refuses: the agent waits for the interval, or until something in the way has changed.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use pinfold::host::cgroup::CgroupVersion;

use crate::agent::{Agent, Manifests, Settings, best_effort, in_force, worker_with};
use crate::kernel::{Kernel, Tree, allowed, kernel_tests};

/// The agent's turns so far, for whatever reason.
fn turns(agent: &Agent) -> f64 {
    agent.metric("pinfold_reconcile_total", &[]).unwrap()
}

/// Waits until no turn ran for half a second, and fails after a while.
fn at_rest(agent: &Agent) {
    let deadline = Instant::now() + crate::agent::patience();
    loop {
        let before = turns(agent);
        std::thread::sleep(Duration::from_millis(500));
        if turns(agent) == before {
            return;
        }
        assert!(
            Instant::now() < deadline,
            "turns follow each other without end: {before} so far\n{}",
            agent.log()
        );
    }
}

/// The paths of a pinned worker, with the id of its process.
struct Worker {
    pod: String,
    main: String,
    pid: u32,
}

/// Starts a worker in the cgroup `class` of the tree, or in the tree itself. It owns the highest CPU.
fn pinned_worker(kernel: &Kernel, tree: &mut Tree<'_>, agent: &Agent, class: &str) -> Worker {
    let pod = tree.pod(class, "worker-uid");
    let main = tree.container(&pod, "main1");
    let pid = tree.start(&main);
    agent.eventually("the worker is pinned", |status| {
        in_force(status, "worker-0") && allowed(pid) == kernel.last()
    });
    Worker { pod, main, pid }
}

/// Leaves the worker and its pod, and then the cgroups `above`, only the first CPU, as an administrator would who takes CPUs
/// away. The agent is stopped meanwhile, because it would repair the container before the cgroup above has lost the CPU.
fn confine(kernel: &Kernel, above: &[&String], agent: &Agent, worker: &Worker) {
    agent.signal(Signal::SIGSTOP);
    // On v1 a cgroup's set contains the sets below.
    kernel.write_cpus(&worker.pod, &kernel.online);
    for path in [&worker.main, &worker.pod].iter().chain(above) {
        kernel.write_cpus(path, &kernel.first());
    }
    agent.signal(Signal::SIGCONT);
}

fn manifests() -> Manifests {
    let pods = Manifests::new();
    let worker = worker_with("worker-0", "worker-uid", 1, "", "main1");
    pods.put("worker.yaml", &worker);
    pods
}

#[test]
fn a_write_that_fails_waits_until_something_in_its_way_has_changed() {
    let Some(kernel) = kernel_tests() else { return };
    // A limit of the whole tree would leave the agent nothing to write, because the CPU would not be on offer.
    let mut tree = kernel.tree_named("kubepods", &["burstable"]);
    let class = format!("{}/burstable", tree.path);
    let pods = manifests();
    // With this interval no timer turn can help.
    let settings = Settings::new(&tree.path, &pods, &kernel.all_but_one())
        .with(&["--reconcile-interval", "3600s"]);
    let agent = settings.start();
    let worker = pinned_worker(&kernel, &mut tree, &agent, "burstable");
    at_rest(&agent);
    let before = turns(&agent);

    confine(&kernel, &[&class], &agent, &worker);
    // On v2 a set may lie outside the set above, so no write is refused there.
    if kernel.cgroups.version == CgroupVersion::V1 {
        let outcome = [("outcome", "failed")];
        agent.eventually("a write is refused", |_| {
            agent.metric("pinfold_reconcile_steps_total", &outcome) > Some(0.0)
        });
    }
    at_rest(&agent);
    let tried = turns(&agent) - before;
    assert!(tried <= 20.0, "{tried} turns\n{}", agent.log());
    // No line of the log comes twice, without the time in front of it.
    let log = agent.log();
    let mut errors: Vec<&str> = log
        .lines()
        .filter_map(|line| line.split_once(" ERROR ").map(|(_, text)| text))
        .collect();
    let all = errors.len();
    errors.sort_unstable();
    errors.dedup();
    assert_eq!(errors.len(), all, "{log}");

    // The cgroup above gets the CPU back: the next write can succeed, and comes at once.
    kernel.write_cpus(&class, &kernel.online);
    agent.eventually("the worker has its CPU again", |status| {
        in_force(status, "worker-0") && allowed(worker.pid) == kernel.last()
    });
    agent.stop();
}

#[test]
fn foreign_writes_beside_each_other_are_repaired_at_once() {
    let Some(kernel) = kernel_tests() else { return };
    let mut tree = kernel.tree_named("kubepods", &["besteffort"]);
    let pods = manifests();
    pods.put("web.yaml", &best_effort("web", "web-uid"));
    let settings = Settings::new(&tree.path, &pods, &kernel.all_but_one())
        .with(&["--reconcile-interval", "1s"]);
    let agent = settings.start();
    let web = tree.pod("besteffort", "web-uid");
    let web = tree.container(&web, "web1");
    let web_pid = tree.start(&web);
    let worker = pinned_worker(&kernel, &mut tree, &agent, "");
    agent.eventually("the other container has left", |_| {
        allowed(web_pid) == kernel.all_but_one()
    });
    // Only the worker is in a confined cgroup. Meanwhile the agent still repairs the other container at once.
    confine(&kernel, &[], &agent, &worker);
    kernel.write_cpus(&web, &kernel.online);
    agent.eventually("both are repaired", |status| {
        in_force(status, "worker-0")
            && allowed(worker.pid) == kernel.last()
            && allowed(web_pid) == kernel.all_but_one()
    });
    let before = turns(&agent);
    std::thread::sleep(Duration::from_secs(3));
    let more = turns(&agent) - before;
    assert!(more <= 12.0, "{more} turns in 3 s\n{}", agent.log());
    agent.stop();
}
