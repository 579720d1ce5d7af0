//! The cost of a scrape, compared with a minimal program that only reads seven open files of each
//! container, requests the kernel's accounting for each process, and writes as many lines. The
//! bench uses real cgroups, processes and network namespaces, and measures both programs in turns
//! in one run. `PINFOLD_KERNEL_TESTS=1 cargo bench --bench scrape` (`-- 100 250` for different
//! numbers of pods), as root
//!
//! With `-- all 250`, the agent also has all features that are off by default.
//!
//! With `-- lives 10000`, the bench measures the agent's memory and open files while 10000 pods come and go. A scrape
//! follows each arrival and each departure.
//!
//! With `-- page`, the bench compares the writer of the page with the encoder of the crate `prometheus`. This part needs
//! neither root nor `PINFOLD_KERNEL_TESTS`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../tests/support/agent.rs"]
#[allow(dead_code, reason = "shared with tests")]
mod agent;
#[path = "../tests/support/gate.rs"]
#[allow(dead_code, reason = "shared with tests")]
mod gate;
#[path = "../tests/support/http.rs"]
#[allow(dead_code, reason = "shared with tests")]
mod http;
#[path = "../tests/support/kernel.rs"]
#[allow(dead_code, reason = "shared with tests")]
mod kernel;
#[path = "support/page_cost.rs"]
mod page_cost;

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs::{self, File};
use std::net::Ipv4Addr;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use pinfold::host::netlink::taskstats::Taskstats;
use pinfold::host::netns::Netns;
use pinfold::host::network_switch::NetworkSwitch;
use pinfold::host::proc::thread_cpu_time;

use crate::agent::{Agent, Manifests, Settings};
use crate::http::exchange;
use crate::kernel::{Kernel, Tree, kernel_tests};

/// Options of all features that are off by default.
const ALL: [&str; 4] = [
    "--sockets=true",
    "--max-shared-counters=8000",
    "--connection-interval=30s",
    "--max-peers=64",
];

/// Containers of each pod.
const CONTAINERS: usize = 4;

/// The number of measured scrapes.
const SCRAPES: usize = 20;

/// The pause between two scrapes. It is longer than the second in which scrapes share a collection.
const PAUSE: Duration = Duration::from_millis(1200);

/// Pods that a bridge of the local network joins.
const PORTS: usize = 250;

/// The files that the minimal program reads, with cgroup v1 and cgroup v2.
const FILES: [(&str, &str); 7] = [
    ("cpu", "cpu.stat"),
    ("cpuacct", "cpuacct.usage"),
    ("cpuset", "cpuset.effective_cpus"),
    ("cpuset", "cgroup.procs"),
    ("memory", "memory.numa_stat"),
    ("memory", "memory.usage_in_bytes"),
    ("pids", "pids.current"),
];
const UNIFIED: [&str; 7] = [
    "cpu.stat",
    "cpu.pressure",
    "cpuset.cpus.effective",
    "cgroup.procs",
    "memory.numa_stat",
    "memory.current",
    "pids.current",
];

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let has_argument = |word: &str| arguments.iter().any(|argument| argument == word);
    if has_argument("page") {
        return page_cost::print();
    }
    let Some(kernel) = kernel_tests() else {
        println!("nothing was measured: set PINFOLD_KERNEL_TESTS=1");
        return;
    };
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, most, most).unwrap();
    let numbers: Vec<usize> = arguments
        .iter()
        .filter_map(|argument| argument.parse().ok())
        .collect();
    let more: &[&str] = if has_argument("all") { &ALL } else { &[] };
    if has_argument("lives") {
        return lives(&kernel, numbers.first().copied().unwrap_or(10_000), more);
    }
    println!(
        "{:>5} {:>7} {:>9} {:>7} | {:>8} {:>8} {:>8} | {:>8} {:>8} | {:>8} {:>8} {:>8} {:>6} {:>6} | {:>7} {:>6}",
        "pods",
        "series",
        "bytes",
        "gzip",
        "CPU ms",
        "p99",
        "gzip",
        "time ms",
        "p99",
        "floor",
        "reading",
        "asking",
        "ratio",
        "(bare)",
        "KiB",
        "files"
    );
    for pods in if numbers.is_empty() {
        vec![10, 50, 250, 1000]
    } else {
        numbers
    } {
        println!(
            "      CPU by collector, mean, ms: {}",
            measure(&kernel, pods, more)
        );
    }
}

struct Node<'a> {
    kernel: &'a Kernel,
    tree: Tree<'a>,
    manifests: Manifests,
    switches: Vec<NetworkSwitch>,
    cgroups: Vec<String>,
    agent: Agent,
}

// === impl Node ===

impl<'a> Node<'a> {
    fn new(kernel: &'a Kernel, pods: usize, more: &[&str]) -> Self {
        let mut tree = kernel.tree();
        let manifests = Manifests::new();
        let mut switches: Vec<NetworkSwitch> = Vec::new();
        let mut cgroups = Vec::new();
        for number in 0..pods {
            if number % PORTS == 0 {
                switches.push(NetworkSwitch::new().unwrap());
            }
            let [net, host] =
                [number / PORTS, number % PORTS + 1].map(|part| u8::try_from(part).unwrap());
            let address = Ipv4Addr::new(10, 77, net, host);
            let network: Netns = switches.last_mut().unwrap().join(address).unwrap();
            let uid = format!("uid-{number}");
            let pod = tree.pod("besteffort", &uid);
            for container in 0..CONTAINERS {
                let cgroup = tree.container(&pod, &format!("{uid}-{container}"));
                tree.start_in(&cgroup, Some(&network));
                cgroups.push(cgroup);
            }
            manifests.put(&format!("{uid}.yaml"), &manifest(number, &uid, CONTAINERS));
        }
        let agent = Settings::new(&tree.path, &manifests, &kernel.first())
            .with(more)
            .start();
        agent.within(Duration::from_secs(120), "all are known", |status| {
            let all = status["containers"]
                .as_array()
                .map(Vec::as_slice)
                .unwrap_or_default();
            all.len() == pods * CONTAINERS && all.iter().all(|entry| entry["running"] == true)
        });
        Self {
            kernel,
            tree,
            manifests,
            switches,
            cgroups,
            agent,
        }
    }
}

/// Prints a line of the table and returns the cost of each collector.
fn measure(kernel: &Kernel, pods: usize, more: &[&str]) -> String {
    let node = Node::new(kernel, pods, more);
    let agent = &node.agent;
    let mut floor = Floor::new(node.kernel, &node.cgroups);
    let (text, size) = scrape(agent, "");
    let (_, packed) = scrape(agent, "Accept-Encoding: gzip\r\n");
    let series = text.lines().filter(|line| !line.starts_with('#')).count();
    let mut times: [Vec<f64>; 6] = Default::default();
    let mut collected = 0;
    std::thread::sleep(PAUSE);
    let before = collectors(&scrape(agent, "").0);
    for _ in 0..SCRAPES {
        std::thread::sleep(PAUSE);
        for (at, headers) in ["", "Accept-Encoding: gzip\r\n"].into_iter().enumerate() {
            let (start, used) = (Instant::now(), cpu_seconds(agent));
            scrape(agent, headers);
            collected += 1;
            times[at].push(1000.0 * (cpu_seconds(agent) - used));
            if at == 0 {
                times[3].push(1000.0 * start.elapsed().as_secs_f64());
            }
            // The minimal program must not profit from caches that another reader has warmed.
            std::thread::sleep(PAUSE);
        }
        let used = thread_cpu_time();
        let (read, after_accounting) = floor.round(series);
        times[2].push(1000.0 * (thread_cpu_time() - used).as_secs_f64());
        times[4].push(1000.0 * (read - used).as_secs_f64());
        times[5].push(1000.0 * (after_accounting - read).as_secs_f64());
    }
    std::thread::sleep(PAUSE);
    let after = collectors(&scrape(agent, "").0);
    collected += 1;
    let [plain, gzip, floor, wall, reading, asking] = times.map(|mut times| {
        times.sort_by(f64::total_cmp);
        [50, 99].map(|percent| times[(times.len() - 1) * percent / 100])
    });
    println!(
        "{pods:>5} {series:>7} {size:>9} {packed:>7} | {:>8.2} {:>8.2} {:>8.2} | {:>8.2} {:>8.2} | {:>8.2} {:>8.2} {:>8.2} {:>6.2} {:>6.2} | {:>7} {:>6}",
        plain[0],
        plain[1],
        gzip[0],
        wall[0],
        wall[1],
        floor[0],
        reading[0],
        asking[0],
        plain[0] / floor[0],
        plain[0] / (floor[0] - asking[0]),
        resident(agent),
        descriptors(agent),
    );
    let mean = |(name, used): (&String, &f64)| {
        let ms =
            1000.0 * (used - before.get(name).copied().unwrap_or_default()) / f64::from(collected);
        format!("{name} {ms:.2}")
    };
    let costs: Vec<String> = after.iter().map(mean).collect();
    node.agent.stop();
    drop(node.switches);
    costs.join(", ")
}

/// Runs pods that come and go, with a scrape after each arrival and departure, and prints the agent's memory and open
/// files.
fn lives(kernel: &Kernel, lives: usize, more: &[&str]) {
    let mut node = Node::new(kernel, 10, more);
    let mut scrapes = 0;
    let mut there = |agent: &Agent, pod: &str, wanted: bool| {
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            scrapes += 1;
            let text = scrape(agent, "").0;
            let series = format!("pinfold_container_threads{{namespace=\"train\",pod=\"{pod}\"");
            if text.contains(&series) == wanted {
                return scrapes;
            }
            assert!(
                Instant::now() < deadline,
                "{pod}: timeout while waiting for {wanted}"
            );
            std::thread::sleep(Duration::from_millis(2));
        }
    };
    println!("{:>6} {:>8} {:>8} {:>6}", "pods", "scrapes", "KiB", "files");
    let mut scrape_count = 0;
    for life in 0..lives {
        let number = 1000 + life;
        let uid = format!("life-{life}");
        let network = (life % 10 == 0).then(|| Netns::new().unwrap());
        let pod = node.tree.pod("besteffort", &uid);
        let cgroup = node.tree.container(&pod, &format!("{uid}-0"));
        node.tree.start_in(&cgroup, network.as_ref());
        let file = format!("{uid}.yaml");
        node.manifests.put(&file, &manifest(number, &uid, 1));
        let name = format!("web-{number}");
        there(&node.agent, &name, true);
        node.manifests.remove(&file);
        node.tree.remove(&pod);
        scrape_count = there(&node.agent, &name, false);
        if life == 0 || (life + 1) % (lives / 10).max(1) == 0 {
            println!(
                "{:>6} {scrape_count:>8} {:>8} {:>6}",
                life + 1,
                resident(&node.agent),
                descriptors(&node.agent)
            );
        }
    }
    println!("{lives} pods came and went, with {scrape_count} scrapes");
    node.agent.stop();
}

/// CPU seconds of each collector so far.
fn collectors(text: &str) -> BTreeMap<String, f64> {
    let of = |line: &str| {
        let (name, seconds) = line
            .strip_prefix("pinfold_collector_cpu_seconds_total{collector=\"")?
            .split_once("\"} ")?;
        Some((name.to_owned(), seconds.parse().ok()?))
    };
    text.lines().filter_map(of).collect()
}

fn descriptors(agent: &Agent) -> usize {
    fs::read_dir(format!("/proc/{}/fd", agent.id()))
        .unwrap()
        .count()
}

fn manifest(number: usize, uid: &str, containers: usize) -> String {
    let (mut specs, mut statuses) = (String::new(), String::new());
    for container in 0..containers {
        let _ = writeln!(specs, "  - {{name: c{container}, image: web}}");
        let _ = writeln!(
            statuses,
            "  - {{name: c{container}, image: web, imageID: '', ready: true, restartCount: 0, containerID: 'containerd://{uid}-{container}'}}"
        );
    }
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: web-{number}, namespace: train, uid: {uid}}}\nspec:\n  containers:\n{specs}status:\n  containerStatuses:\n{statuses}"
    )
}

fn scrape(agent: &Agent, headers: &str) -> (String, usize) {
    let (head, body) = exchange(agent.address, "GET", "/metrics", headers).unwrap();
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    (String::from_utf8_lossy(&body).into_owned(), body.len())
}

/// CPU time of all threads of the agent, to the nanosecond.
fn cpu_seconds(agent: &Agent) -> f64 {
    let tasks = fs::read_dir(format!("/proc/{}/task", agent.id())).unwrap();
    let used = tasks.flatten().filter_map(|task| {
        let text = fs::read_to_string(task.path().join("schedstat")).ok()?;
        text.split(' ').next()?.parse::<f64>().ok()
    });
    used.sum::<f64>() / 1e9
}

fn resident(agent: &Agent) -> String {
    let text = fs::read_to_string(format!("/proc/{}/status", agent.id())).unwrap();
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .unwrap();
    line.trim().trim_end_matches(" kB").to_owned()
}

/// The minimal program for the same series.
struct Floor {
    files: Vec<File>,
    /// Files above the limit of open files, opened in each round.
    others: Vec<PathBuf>,
    /// The kernel's accounting, if permitted, and the processes.
    taskstats: Option<Taskstats>,
    processes: Vec<i32>,
    page: String,
}

// === impl Floor ===

impl Floor {
    fn new(kernel: &Kernel, cgroups: &[String]) -> Self {
        let root = kernel.cgroups.root();
        let unified = root.join("cgroup.controllers").exists();
        let below = |hierarchy: &str| -> PathBuf {
            if unified {
                root.to_owned()
            } else {
                root.parent().unwrap_or(Path::new("/")).join(hierarchy)
            }
        };
        let open = fs::read_dir("/proc/self/fd").unwrap().count() as u64;
        let room = getrlimit(Resource::RLIMIT_NOFILE)
            .unwrap()
            .0
            .saturating_sub(open + 500);
        let (mut files, mut others) = (Vec::new(), Vec::new());
        for cgroup in cgroups {
            for ((hierarchy, older), newer) in FILES.into_iter().zip(UNIFIED) {
                let path = below(hierarchy)
                    .join(cgroup)
                    .join(if unified { newer } else { older });
                if files.len() as u64 >= room {
                    others.push(path);
                    continue;
                }
                files.push(
                    File::open(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display())),
                );
            }
        }
        let taskstats = Taskstats::open().ok();
        let processes = cgroups
            .iter()
            .flat_map(|cgroup| kernel.cgroups.processes(cgroup).unwrap())
            .collect();
        Self {
            files,
            others,
            taskstats,
            processes,
            page: String::new(),
        }
    }

    /// Returns this thread's CPU time after all reads, and again after all requests for processes.
    fn round(&mut self, series: usize) -> (Duration, Duration) {
        let (mut buffer, mut sum) = ([0; 4096], 0);
        for file in &self.files {
            sum += file.read_at(&mut buffer, 0).unwrap();
        }
        for path in &self.others {
            sum += File::open(path).unwrap().read_at(&mut buffer, 0).unwrap();
        }
        let read = thread_cpu_time();
        if let Some(taskstats) = &mut self.taskstats {
            for pid in &self.processes {
                sum += usize::from(taskstats.of(*pid).unwrap().is_some());
            }
        }
        let after_accounting = thread_cpu_time();
        self.page.clear();
        for number in 0..series {
            let _ = writeln!(
                self.page,
                "pinfold_container_cpu_usage_seconds_total{{namespace=\"train\",pod=\"web-1\",container=\"c1\"}} {}",
                sum + number
            );
        }
        std::hint::black_box(&self.page);
        (read, after_accounting)
    }
}
