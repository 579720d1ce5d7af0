//! What a scrape costs, beside the floor: a program that only reads seven files of each container, kept open, and writes as
//! many lines. Real cgroups, processes and network namespaces; in turns, in one run.
//! `PINFOLD_KERNEL_TESTS=1 cargo bench --bench scrape` (`-- 10 250 1000` for other numbers of pods), as root
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

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

use std::fmt::Write;
use std::fs::{self, File};
use std::net::Ipv4Addr;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use pinfold::host::netns::{Netns, Switch};
use pinfold::host::proc::thread_cpu_time;

use crate::agent::{Agent, Manifests, Settings};
use crate::http::exchange;
use crate::kernel::{Kernel, kernel_tests};

/// Containers of each pod.
const CONTAINERS: usize = 4;

/// Scrapes that count.
const SCRAPES: usize = 20;

/// Between two scrapes: more than the second in which they share what was collected.
const PAUSE: Duration = Duration::from_millis(1200);

/// Pods that a bridge of the local network joins.
const PORTS: usize = 250;

/// The files that the floor reads, as the hierarchies of cgroup v1 have them, or cgroup v2.
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
    let Some(kernel) = kernel_tests() else {
        println!("nothing was measured: set PINFOLD_KERNEL_TESTS=1");
        return;
    };
    let sizes: Vec<usize> = std::env::args().skip(1).filter_map(|argument| argument.parse().ok()).collect();
    for pods in if sizes.is_empty() { vec![10, 250] } else { sizes } {
        measure(&kernel, pods);
    }
}

fn measure(kernel: &Kernel, pods: usize) {
    let mut tree = kernel.tree();
    let manifests = Manifests::new();
    let mut switches: Vec<Switch> = Vec::new();
    let mut cgroups = Vec::new();
    for number in 0..pods {
        if number % PORTS == 0 {
            switches.push(Switch::new().unwrap());
        }
        let [net, host] = [number / PORTS, number % PORTS + 1].map(|part| u8::try_from(part).unwrap());
        let address = Ipv4Addr::new(10, 77, net, host);
        let network: Netns = switches.last_mut().unwrap().join(address).unwrap();
        let uid = format!("uid-{number}");
        let pod = tree.pod("besteffort", &uid);
        for container in 0..CONTAINERS {
            let cgroup = tree.container(&pod, &format!("{uid}-{container}"));
            tree.start_in(&cgroup, Some(&network));
            cgroups.push(cgroup);
        }
        manifests.put(&format!("{uid}.yaml"), &manifest(number, &uid));
    }
    let agent = Settings::new(&tree.path, &manifests, &kernel.first()).start();
    agent.within(Duration::from_secs(60), "all are known", |status| {
        let all = status["containers"].as_array().map(Vec::as_slice).unwrap_or_default();
        all.len() == pods * CONTAINERS && all.iter().all(|one| one["running"] == true)
    });
    let mut floor = Floor::new(kernel, &cgroups);
    let (text, size) = scrape(&agent, "");
    let (_, packed) = scrape(&agent, "Accept-Encoding: gzip\r\n");
    let series = text.lines().filter(|line| !line.starts_with('#')).count();
    println!("{pods} pods × {CONTAINERS} containers: {series} series, {size} bytes, {packed} compressed");
    let mut times: [Vec<f64>; 4] = Default::default();
    for _ in 0..SCRAPES {
        std::thread::sleep(PAUSE);
        for (at, headers) in ["", "Accept-Encoding: gzip\r\n"].into_iter().enumerate() {
            let (start, used) = (Instant::now(), cpu_seconds(&agent));
            scrape(&agent, headers);
            times[at].push(1000.0 * (cpu_seconds(&agent) - used));
            if at == 0 {
                times[3].push(1000.0 * start.elapsed().as_secs_f64());
            }
            // The floor gets no kernel whose caches are warm from somebody else's reading.
            std::thread::sleep(PAUSE);
        }
        let used = thread_cpu_time();
        floor.round(series);
        times[2].push(1000.0 * (thread_cpu_time() - used).as_secs_f64());
    }
    let [plain, gzip, floor, wall] = times.map(|mut times| {
        times.sort_by(f64::total_cmp);
        [50, 99].map(|percent| times[(times.len() - 1) * percent / 100])
    });
    println!(
        "  CPU of a scrape: median {:.1} ms, p99 {:.1} ms; compressed {:.1} ms",
        plain[0], plain[1], gzip[0]
    );
    println!("  time of a scrape: median {:.1} ms, p99 {:.1} ms", wall[0], wall[1]);
    println!("  the floor: median {:.1} ms; ratio of the medians {:.2}", floor[0], plain[0] / floor[0]);
    let text = scrape(&agent, "").0;
    let of = |line: &str| {
        let (name, seconds) =
            line.strip_prefix("pinfold_collector_duration_seconds{collector=\"")?.split_once("\"} ")?;
        Some(format!("{name} {:.1} ms", 1000.0 * seconds.parse::<f64>().ok()?))
    };
    println!("  the collectors, once: {}", text.lines().filter_map(of).collect::<Vec<_>>().join(", "));
    println!("  resident memory of the agent: {} KiB", resident(&agent));
    agent.stop();
}

fn manifest(number: usize, uid: &str) -> String {
    let (mut containers, mut statuses) = (String::new(), String::new());
    for container in 0..CONTAINERS {
        let _ = writeln!(containers, "  - {{name: c{container}, image: web}}");
        let _ = writeln!(
            statuses,
            "  - {{name: c{container}, image: web, imageID: '', ready: true, restartCount: 0, containerID: 'containerd://{uid}-{container}'}}"
        );
    }
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: web-{number}, namespace: train, uid: {uid}}}\nspec:\n  containers:\n{containers}status:\n  containerStatuses:\n{statuses}"
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
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").to_owned()
}

/// The least that a program could do for the same series.
struct Floor {
    files: Vec<File>,
    page: String,
}

// === impl Floor ===

impl Floor {
    fn new(kernel: &Kernel, cgroups: &[String]) -> Self {
        let root = kernel.cgroups.root();
        let unified = root.join("cgroup.controllers").exists();
        let below = |hierarchy: &str| -> PathBuf {
            if unified { root.to_owned() } else { root.parent().unwrap_or(Path::new("/")).join(hierarchy) }
        };
        let mut files = Vec::new();
        for cgroup in cgroups {
            for ((hierarchy, older), newer) in FILES.into_iter().zip(UNIFIED) {
                let path = below(hierarchy).join(cgroup).join(if unified { newer } else { older });
                files.push(File::open(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display())));
            }
        }
        Self { files, page: String::new() }
    }

    fn round(&mut self, series: usize) {
        let (mut buffer, mut sum) = ([0; 4096], 0);
        for file in &self.files {
            sum += file.read_at(&mut buffer, 0).unwrap();
        }
        self.page.clear();
        for number in 0..series {
            let _ = writeln!(
                self.page,
                "pinfold_container_cpu_usage_seconds_total{{namespace=\"train\",pod=\"web-1\",container=\"c1\"}} {}",
                sum + number
            );
        }
        std::hint::black_box(&self.page);
    }
}
