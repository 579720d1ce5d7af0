//! The events of months in minutes: the agent is killed, foreign programs write against it, pods
//! come and go.
//!
//! `PINFOLD_TEST_KILLS`, `PINFOLD_TEST_HOSTILE_SECONDS` and `PINFOLD_TEST_LIFETIMES` set the amounts.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use pinfold::cpu::CpuSet;

use crate::agent::{Agent, patience, worker};
use crate::churn::random::Random;
use crate::churn::{Churn, say, seed, settled};
use crate::kernel::{Kernel, kernel_tests};

fn count(name: &str, usual: u64) -> u64 {
    std::env::var(name).map_or(usual, |text| text.parse().unwrap())
}

#[test]
fn kills_at_random_moments_move_no_container() {
    let Some(kernel) = kernel_tests() else { return };
    let kills = count("PINFOLD_TEST_KILLS", 200);
    let mut churn = Churn::new(&kernel, seed("kills"));
    let settings = churn.settings();
    let (mut compared, start) = (0, Instant::now());
    let mut agent = settings.start();
    for kill in 0..kills {
        for _ in 0..=churn.random.below(4) {
            churn.event();
        }
        if kill % 3 == 0 {
            settled(&churn, &agent);
            churn.event();
        }
        // The kill comes while the agent handles the events.
        std::thread::sleep(Duration::from_micros(churn.random.below(8000) as u64));
        agent.kill();
        let before = churn.in_force();
        agent = settings.start();
        let after = churn.in_force();
        for (path, cpus) in &before {
            assert_eq!(
                after.get(path),
                Some(cpus),
                "kill {kill}: {path} was moved\n{}",
                agent.log()
            );
        }
        compared += before.len();
    }
    settled(&churn, &agent);
    churn.clear();
    agent.eventually("all CPUs are shared", |status| {
        status["exclusive"] == "" && status["lost"] == ""
    });
    let enforcement = agent.status().unwrap()["enforcement"].to_string();
    agent.stop();
    say(&format!(
        "kills ({enforcement}): {kills} kills, {compared} containers compared across one, 0 moved, 0 violations, {:.0} s",
        start.elapsed().as_secs_f64()
    ));
}

/// A thread that writes the containers' CPU sets as a runtime or a kubelet would, as fast as possible.
struct Hostile {
    stop: Arc<AtomicBool>,
    writes: Arc<AtomicU64>,
    thread: Option<std::thread::JoinHandle<()>>,
}

// === impl Hostile ===

impl Hostile {
    fn new(root: PathBuf, targets: Arc<Mutex<Vec<String>>>, online: CpuSet, seed: u64) -> Self {
        let (stop, writes) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(AtomicU64::new(0)),
        );
        let (ended, written) = (Arc::clone(&stop), Arc::clone(&writes));
        let thread = std::thread::spawn(move || {
            let mut random = Random(seed);
            while !ended.load(Ordering::Relaxed) {
                let targets = targets.lock().unwrap().clone();
                if !targets.is_empty() {
                    let path = &targets[random.below(targets.len())];
                    // All CPUs, as a runtime without a set writes; or some CPUs, as a runtime with a set of its own writes.
                    let some: CpuSet = online.iter().filter(|_| random.below(3) == 0).collect();
                    let list = if random.below(2) == 0 || some.is_empty() {
                        &online
                    } else {
                        &some
                    };
                    // A cgroup may be gone by now.
                    if fs::write(root.join(path).join("cpuset.cpus"), list.to_string()).is_ok() {
                        written.fetch_add(1, Ordering::Relaxed);
                    }
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        Self {
            stop,
            writes,
            thread: Some(thread),
        }
    }

    fn end(mut self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap();
        self.writes.load(Ordering::Relaxed)
    }
}

#[test]
fn invariants_return_after_hostile_writes() {
    let Some(kernel) = kernel_tests() else { return };
    let seconds = count("PINFOLD_TEST_HOSTILE_SECONDS", 20);
    let seed = seed("hostile");
    let mut churn = Churn::new(&kernel, seed);
    let agent = churn.settings().start();
    let targets = Arc::new(Mutex::new(Vec::new()));
    let hostile = Hostile::new(
        kernel.cgroups.root().to_owned(),
        Arc::clone(&targets),
        kernel.online.clone(),
        seed,
    );
    let start = Instant::now();
    let mut events = 0;
    while start.elapsed() < Duration::from_secs(seconds) {
        churn.event();
        events += 1;
        *targets.lock().unwrap() = churn.containers();
        std::thread::sleep(Duration::from_millis(churn.random.below(60) as u64));
        churn.claims("meanwhile");
    }
    let writes = hostile.end();
    settled(&churn, &agent);
    let drift = agent.metric("pinfold_drift_total", &[]).unwrap();
    let cpu = agent.metric("process_cpu_seconds_total", &[]).unwrap();
    churn.clear();
    agent.eventually("all CPUs are shared", |status| {
        status["exclusive"] == "" && status["lost"] == ""
    });
    let enforcement = agent.status().unwrap()["enforcement"].to_string();
    agent.stop();
    say(&format!(
        "hostile ({enforcement}): {writes} hostile writes in {seconds} s ({:.0} a second), {events} events, drift counted {drift}, \
         0 violations, {:.1} % of a CPU for the agent",
        writes as f64 / seconds as f64,
        cpu / start.elapsed().as_secs_f64() * 100.0
    ));
    assert!(writes > 0);
}

/// The resources of a process: memory in KiB, open files, and directories that the kernel watches for the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Footprint {
    kib: u64,
    files: usize,
    watches: usize,
}

/// The footprint of a process at rest: the median of several looks. A connection or a file in use exists only for a moment, and the
/// timer closes the files of the online CPUs for a moment before it opens them again.
fn footprint(agent: &Agent) -> Footprint {
    let looks: Vec<_> = (0..21)
        .map(|_| {
            std::thread::sleep(Duration::from_millis(50));
            footprint_now(agent)
        })
        .collect();
    Footprint {
        kib: median(looks.iter().map(|look| look.kib)),
        files: median(looks.iter().map(|look| look.files)),
        watches: median(looks.iter().map(|look| look.watches)),
    }
}

fn median<T: Ord + Copy>(values: impl Iterator<Item = T>) -> T {
    let mut values: Vec<T> = values.collect();
    values.sort_unstable();
    values[values.len() / 2]
}

fn footprint_now(agent: &Agent) -> Footprint {
    let proc = PathBuf::from(format!("/proc/{}", agent.id()));
    let status = fs::read_to_string(proc.join("status")).unwrap();
    // Anonymous memory only. The mapped code grows with every function that ran since the start, and debug information
    // makes the code large.
    let resident = status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:"))
        .unwrap();
    let files: Vec<_> = fs::read_dir(proc.join("fdinfo"))
        .unwrap()
        .flatten()
        .collect();
    let texts = files
        .iter()
        .filter_map(|file| fs::read_to_string(file.path()).ok());
    let watches = texts.map(|text| {
        text.lines()
            .filter(|line| line.starts_with("inotify "))
            .count()
    });
    Footprint {
        kib: resident.split_whitespace().next().unwrap().parse().unwrap(),
        watches: watches.sum(),
        files: files.len(),
    }
}

/// The life of a pod: manifest, cgroups, a process, CPUs, and the end.
fn lifetime(churn: &mut Churn<'_>, number: u64) {
    let uid = format!("soak{number}");
    let file = format!("{uid}.yaml");
    churn.manifests.put(&file, &worker(&uid, &uid, 1));
    let pod = churn.tree.pod("", &uid);
    let main = churn.tree.container(&pod, &format!("c{number}"));
    churn.tree.start(&main);
    churn.tree.remove(&pod);
    churn.manifests.remove(&file);
}

fn quiet(agent: &Agent, kernel: &Kernel, tree: &str) {
    let deadline = Instant::now() + patience();
    loop {
        let left = kernel.cgroups.scan(tree).unwrap().len();
        let status = agent.status().unwrap();
        if left == 0
            && status["exclusive"] == ""
            && status["containers"].as_array().unwrap().is_empty()
        {
            return;
        }
        assert!(
            Instant::now() < deadline,
            "{left} pods are left: {status:#}"
        );
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn many_pod_lifetimes_leak_nothing() {
    let Some(kernel) = kernel_tests() else { return };
    let lifetimes = count("PINFOLD_TEST_LIFETIMES", 2000);
    let mut churn = Churn::new(&kernel, 1);
    let agent = churn.settings().start();
    let start = Instant::now();
    let warm = lifetimes / 5;
    for number in 0..warm {
        lifetime(&mut churn, number);
    }
    quiet(&agent, &kernel, &churn.tree.path);
    let before = footprint(&agent);
    for number in warm..lifetimes {
        lifetime(&mut churn, number);
    }
    quiet(&agent, &kernel, &churn.tree.path);
    // The last cgroup's watch goes when the agent has heard of its end, which may be a moment after the reconcile.
    let deadline = Instant::now() + patience();
    let mut after = footprint(&agent);
    while (after.watches, after.files) != (before.watches, before.files)
        && Instant::now() < deadline
    {
        after = footprint(&agent);
    }
    let enforcement = agent.status().unwrap()["enforcement"].to_string();
    say(&format!(
        "soak ({enforcement}): {lifetimes} lifetimes in {:.0} s; after {warm} of them {} KiB, {} files and {} watches, at \
         the end {} KiB, {} and {}",
        start.elapsed().as_secs_f64(),
        before.kib,
        before.files,
        before.watches,
        after.kib,
        after.files,
        after.watches
    ));
    assert_eq!(before.files, after.files, "descriptors");
    assert_eq!(before.watches, after.watches, "watches");
    assert!(
        after.kib < before.kib + 4096,
        "memory grows: {before:?}, {after:?}"
    );
    assert!(kernel.exclusive(&churn.tree.path).is_empty());
    agent.stop();
}
