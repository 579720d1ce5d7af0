//! What the agent takes of the machine: nothing while nothing happens, and no more after many scrapes and pods than before.

use std::fs;
use std::time::{Duration, Instant};

use pinfold::host::netns::Netns;

use crate::agent::{Agent, Manifests, Settings, best_effort, patience};
use crate::kernel::kernel_tests;

/// How long an agent at rest is watched.
const REST: Duration = Duration::from_secs(15);

/// The voluntary and involuntary context switches of a process's threads, by thread name.
fn switches(agent: &Agent) -> Vec<(String, u64)> {
    let mut switches = Vec::new();
    for task in fs::read_dir(format!("/proc/{}/task", agent.id()))
        .unwrap()
        .flatten()
    {
        let Ok(status) = fs::read_to_string(task.path().join("status")) else {
            continue;
        };
        let field = |name: &str| {
            status
                .lines()
                .find_map(|line| line.strip_prefix(name))
                .unwrap()
                .trim()
        };
        let id = task.file_name().into_string().unwrap();
        switches.push((
            format!("{} {id}", field("Name:")),
            field("voluntary_ctxt_switches:").parse().unwrap(),
        ));
    }
    switches.sort();
    switches
}

/// Waits until ten looks in a row have found the agent's threads asleep.
///
/// A thread that read files for the runtime waits ten seconds for more work before it ends, and on
/// a busy machine that end comes late.
fn wait_for_sleep(agent: &Agent) {
    std::thread::sleep(Duration::from_secs(10));
    let deadline = Instant::now() + patience();
    let (mut last, mut quiet) = (switches(agent), 0);
    while quiet < 10 {
        assert!(
            Instant::now() < deadline,
            "the agent never sleeps: {last:?}"
        );
        std::thread::sleep(Duration::from_millis(100));
        let now = switches(agent);
        quiet = if now == last { quiet + 1 } else { 0 };
        last = now;
    }
}

#[test]
fn an_agent_at_rest_sleeps() {
    let Some(kernel) = kernel_tests() else { return };
    let mut tree = kernel.tree();
    let manifests = Manifests::new();
    for name in ["a", "b"] {
        manifests.put(&format!("{name}.yaml"), &best_effort(name, name));
        let pod = tree.pod("besteffort", name);
        let main = tree.container(&pod, &format!("{name}-main"));
        tree.start(&main);
    }
    let settings = Settings::new(&tree.path, &manifests, &kernel.first())
        .with(&["--reconcile-interval", "3600s"]);
    let agent = settings.start();
    agent.eventually("both run", |status| {
        let all = status["containers"].as_array().unwrap();
        all.len() == 2 && all.iter().all(|container| container["running"] == true)
    });
    assert!(
        agent
            .get("/metrics")
            .body
            .contains("pinfold_container_threads{")
    );
    wait_for_sleep(&agent);
    let before = switches(&agent);
    std::thread::sleep(REST);
    let after = switches(&agent);
    assert!(before.len() > 1, "{before:?}");
    assert_eq!(before, after, "a thread woke up without a cause");
    agent.stop();
}

#[test]
fn only_reconciles_wake_an_agent_at_rest() {
    let Some(kernel) = kernel_tests() else { return };
    let tree = kernel.tree();
    let manifests = Manifests::new();
    let settings = Settings::new(&tree.path, &manifests, &kernel.first())
        .with(&["--reconcile-interval", "1s"]);
    let agent = settings.start();
    std::thread::sleep(Duration::from_secs(11));
    let reconciles = || {
        agent
            .metric("pinfold_reconcile_total", &[("trigger", "timer")])
            .unwrap()
    };
    let woken = || switches(&agent).iter().map(|(_, count)| count).sum::<u64>();
    let first = reconciles();
    std::thread::sleep(Duration::from_secs(1));
    let before = woken();
    std::thread::sleep(Duration::from_secs(10));
    let after = woken();
    // The two scrapes are outside of the counted time, and each scrape falls into a separate second.
    let made = reconciles() - first - 1.0;
    // A wheel of timers turns in steps of 64 ms and then of 1 ms, and the receiver of the new state may be on another
    // thread. Measured: six or seven switches, eleven on a machine with further load. A thread without work also ends. A
    // machine that stands still for a moment makes fewer reconciles.
    let most = 16.0 * made + 8.0;
    assert!(
        made >= 4.0 && ((after - before) as f64) < most,
        "{} wake-ups, {made} reconciles",
        after - before
    );
    agent.stop();
}

fn descriptors(agent: &Agent) -> Vec<String> {
    let fds = fs::read_dir(format!("/proc/{}/fd", agent.id()))
        .unwrap()
        .flatten();
    let mut open: Vec<String> = fds
        .filter_map(|fd| {
            Some(
                fs::read_link(fd.path())
                    .ok()?
                    .to_string_lossy()
                    .into_owned(),
            )
        })
        // The number in a socket's name carries no information.
        .map(|name| name.split(":[").next().unwrap_or_default().to_owned())
        .collect();
    open.sort();
    open
}

#[test]
fn scrapes_of_removed_pods_leave_no_descriptor_open() {
    let Some(kernel) = kernel_tests() else { return };
    let mut tree = kernel.tree();
    let manifests = Manifests::new();
    manifests.put("stays.yaml", &best_effort("stays", "stays"));
    let pod = tree.pod("besteffort", "stays");
    let main = tree.container(&pod, "stays-main");
    tree.start(&main);
    let agent = Settings::new(&tree.path, &manifests, &kernel.first()).start();
    let wait_for_series = |pod: &str, wanted: bool| {
        let deadline = Instant::now() + patience();
        let series = format!("pinfold_container_threads{{namespace=\"train\",pod=\"{pod}\"");
        loop {
            let text = agent.get("/metrics").body;
            if text.contains(&series) == wanted {
                return;
            }
            assert!(
                Instant::now() < deadline,
                "{pod}: presence {wanted} never came\n{text}"
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    wait_for_series("stays", true);
    // Descriptors of closing connections exist for a moment longer.
    let descriptors_at_rest = || {
        let mut least = descriptors(&agent);
        for _ in 0..20 {
            std::thread::sleep(Duration::from_millis(20));
            least = std::cmp::min_by_key(least, descriptors(&agent), Vec::len);
        }
        least
    };
    let before = descriptors_at_rest();
    for life in 0..30 {
        let uid = format!("life{life}");
        let file = format!("{uid}.yaml");
        let network = Netns::new().unwrap();
        let pod = tree.pod("besteffort", &uid);
        let cgroup = tree.container(&pod, &format!("{uid}-main"));
        tree.start_in(&cgroup, Some(&network));
        manifests.put(&file, &best_effort(&uid, &uid));
        wait_for_series(&uid, true);
        if life == 0 {
            assert!(
                descriptors_at_rest().len() > before.len() + 2,
                "the agent keeps no descriptor of a live pod open"
            );
        }
        tree.remove(&pod);
        manifests.remove(&file);
        wait_for_series(&uid, false);
    }
    // The agent may close the last descriptors a moment after the page without the pod.
    let deadline = Instant::now() + patience();
    let mut after = descriptors_at_rest();
    while after != before && Instant::now() < deadline {
        after = descriptors_at_rest();
    }
    assert_eq!(after, before);
    agent.stop();
}
