//! The cost of a switch between two containers whose counters are switched too (`metrics.maxSharedCounters`). Two
//! processes in separate cgroups exchange a byte on one CPU. The events are software events of the kernel; hardware
//! events also cost the writes to their registers. The bench also measures the memory of a container's counters in this
//! process. `PINFOLD_KERNEL_TESTS=1 cargo bench --bench switches`, as root
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../tests/support/events.rs"]
mod events;
#[path = "../tests/support/gate.rs"]
#[allow(dead_code, reason = "shared with tests")]
mod gate;
#[path = "../tests/support/kernel.rs"]
#[allow(dead_code, reason = "shared with tests")]
mod kernel;

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Instant;

use nix::sched::{CpuSet as Mask, sched_setaffinity};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::unistd::Pid;
use pinfold::host::counters::perf::CounterGroup;

use crate::events::SOFTWARE;
use crate::kernel::{Kernel, kernel_tests};

/// The number of round trips of a measurement.
const TRIPS: usize = 30_000;

/// The number of measurements of each kind, in turns.
const ROUNDS: usize = 15;

/// The number of further containers with counters.
const OTHERS: usize = 100;

/// The number of repetitions for the measurement of memory.
const TIMES: usize = 10;

fn main() {
    match std::env::args().nth(1).as_deref() {
        Some("--echo") => echo(),
        Some("--drive") => drive(),
        _ => match kernel_tests() {
            Some(kernel) => measure(&kernel),
            None => println!("nothing was measured: set PINFOLD_KERNEL_TESTS=1"),
        },
    }
}

/// Sends each received byte back.
fn echo() {
    let (mut from, mut to, mut byte) = (std::io::stdin(), std::io::stdout(), [0]);
    while from.read_exact(&mut byte).is_ok() {
        to.write_all(&byte).and_then(|()| to.flush()).unwrap();
    }
}

/// Exchanges bytes with the echo process on request, and prints the duration of a switch in nanoseconds.
fn drive() {
    let mut other = start("--echo");
    println!("{}", other.0.id());
    let (mut lines, mut byte) = (std::io::stdin().lines(), [1]);
    while let Some(Ok(_)) = lines.next() {
        let start = Instant::now();
        for _ in 0..TRIPS {
            other.1.write_all(&byte).unwrap();
            other.2.read_exact(&mut byte).unwrap();
        }
        println!("{}", start.elapsed().as_nanos() / (2 * TRIPS as u128));
    }
    drop(other.1);
    other.0.wait().unwrap();
}

fn start(what: &str) -> (Child, ChildStdin, ChildStdout) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    let mut child = command
        .arg(what)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let (to, from) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    (child, to, from)
}

fn put(kernel: &Kernel, cgroup: &str, pid: u32) {
    kernel
        .cgroups
        .procs_files(cgroup)
        .iter()
        .for_each(|file| fs::write(file, pid.to_string()).unwrap());
}

fn open(kernel: &Kernel, cgroups: &[String]) -> Vec<CounterGroup> {
    let mut groups = Vec::new();
    for cgroup in cgroups {
        let folder = kernel
            .cgroups
            .event_directory(cgroup)
            .unwrap_or_else(|| panic!("{cgroup} has no processes"));
        let folder = File::open(folder).unwrap();
        groups.extend(
            kernel
                .online
                .iter()
                .map(|cpu| CounterGroup::open_in(Some(&folder), cpu, &SOFTWARE).unwrap()),
        );
    }
    groups
}

fn measure(kernel: &Kernel) {
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, most, most).unwrap();
    let mut tree = kernel.tree();
    let pod = tree.pod("", "switched");
    let pair = ["a", "b"].map(|name| tree.container(&pod, name));
    let others: Vec<String> = (0..OTHERS)
        .map(|number| tree.container(&pod, &format!("o{number}")))
        .collect();
    for path in [&tree.path, &pod].into_iter().chain(&pair).chain(&others) {
        kernel.write_cpus(path, &kernel.online);
        kernel.write(path, "cpuset.mems", "0");
    }
    for other in &others {
        tree.start(other);
    }
    let mut mask = Mask::new();
    mask.set(kernel.last().first().unwrap() as usize).unwrap();
    sched_setaffinity(Pid::from_raw(0), &mask).unwrap();
    let (mut driver, mut to, from) = start("--drive");
    let mut lines = BufReader::new(from).lines().map_while(Result::ok);
    let mut next = || lines.next().unwrap().parse::<u32>().unwrap();
    put(kernel, &pair[0], driver.id());
    put(kernel, &pair[1], next());
    let all: Vec<String> = pair.iter().chain(&others).cloned().collect();
    let kinds: [(&str, &[String]); 3] = [
        ("no counters", &[]),
        ("both are counted", &pair),
        ("and a hundred others are", &all),
    ];
    let mut times: [Vec<u32>; 3] = Default::default();
    for _ in 0..ROUNDS {
        for ((_, counted), times) in kinds.iter().zip(&mut times) {
            let groups = open(kernel, counted);
            to.write_all(b"go\n").unwrap();
            times.push(next());
            drop(groups);
        }
    }
    drop(to);
    driver.wait().unwrap();
    let medians = times.map(|mut times| {
        times.sort_unstable();
        times[times.len() / 2]
    });
    for ((name, _), median) in kinds.iter().zip(medians) {
        let more = i64::from(median) - i64::from(medians[0]);
        println!(
            "{name}: {median} ns a switch, {more:+} ns, {:.2} times",
            f64::from(median) / f64::from(medians[0])
        );
    }
    println!("medians of {ROUNDS} measurements of {TRIPS} round trips each, in turns, over pipes");
    let before = resident();
    let groups: Vec<Vec<CounterGroup>> = (0..TIMES).map(|_| open(kernel, &others)).collect();
    let (bytes, containers) = (resident() - before, TIMES * OTHERS);
    println!(
        "{} descriptors of {containers} containers on {} CPUs: {} KiB, {} bytes a container",
        groups.iter().map(Vec::len).sum::<usize>() * SOFTWARE.len(),
        kernel.online.len(),
        bytes / 1024,
        bytes / containers
    );
}

/// The resident memory of this process in bytes.
fn resident() -> usize {
    let text = fs::read_to_string("/proc/self/statm").unwrap();
    text.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}
