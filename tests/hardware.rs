//! The events that this machine can count. The output is *supported* with a fresh count, or *not
//! here* with the reason. An event that is supported and does not count fails the test.
//!
//! `PINFOLD_KERNEL_TESTS=1 cargo test --test hardware`, as root: the test makes a monitoring group for a moment.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "it fails by panicking"
)]

#[path = "support/events.rs"]
mod events;

use std::hint::black_box;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::sched::{CpuSet as Mask, sched_setaffinity};
use nix::unistd::Pid;
use pinfold::cpu::CpuSet;
use pinfold::host::counters::perf::{
    CounterGroup, PerfError, PerfEvent, hardware_events, second_level_cache_events,
};
use pinfold::host::counters::rdma;
use pinfold::host::counters::resctrl::{Count, GROUP_PREFIX, Resctrl, ResctrlError};
use pinfold::host::proc::Proc;
use pinfold::host::topology::online_cpus;

use events::SOFTWARE;

/// The duration of the work on each CPU.
const SPELL: Duration = Duration::from_millis(100);

/// The size of the memory for the work: more than most caches hold.
const BYTES: usize = 64 << 20;

fn main() {
    // Like a test harness, the program runs only the tests named in the arguments.
    let mut names = std::env::args()
        .skip(1)
        .filter(|word| !word.starts_with('-'))
        .peekable();
    if names.peek().is_some() && !names.any(|name| "hardware".contains(&name)) {
        return;
    }
    let online = online_cpus(Path::new("/sys")).unwrap();
    let hard = [
        "cycles",
        "instructions",
        "references of the last-level cache",
        "misses of the last-level cache",
    ];
    counters(&online, &hardware_events(Path::new("/")), &hard);
    let second = [
        "references of the second-level cache",
        "misses of the second-level cache",
    ];
    match second_level_cache_events(Path::new("/")) {
        Ok(events) => counters(&online, &events, &second),
        Err(reason) => second
            .iter()
            .for_each(|name| println!("{name}: not here: {reason}")),
    }
    counters(
        &online,
        &SOFTWARE,
        &[
            "context switches",
            "page faults",
            "minor page faults",
            "migrations",
        ],
    );
    threads();
    ports();
    let meant = std::env::var_os("PINFOLD_KERNEL_TESTS").is_some_and(|value| value == "1");
    if meant {
        monitors(&online);
    } else {
        println!("monitoring groups: left to PINFOLD_KERNEL_TESTS=1");
    }
}

/// Counts the events on each CPU during work.
fn counters(online: &CpuSet, events: &[PerfEvent], names: &[&str]) {
    let mut sums = [None; 4];
    let mut refused = None;
    for cpu in online.iter() {
        let group = match CounterGroup::open(cpu, events) {
            Ok(group) => group,
            Err(error @ (PerfError::NoCounters | PerfError::NotPermitted)) => {
                refused = Some(error.to_string());
                continue;
            }
            Err(error) => panic!("{error}"),
        };
        assert!(work_on(cpu), "the process may not use CPU {cpu}");
        let reading = group
            .read()
            .unwrap()
            .unwrap_or_else(|| panic!("CPU {cpu} is offline"));
        assert!(
            reading.running > 0,
            "CPU {cpu} has not counted at all: {reading:?}"
        );
        for (sum, value) in sums.iter_mut().zip(reading.values) {
            *sum = value.map(|value| sum.unwrap_or(0) + value).or(*sum);
        }
    }
    for (name, sum) in names.iter().zip(sums) {
        match (sum, &refused) {
            (Some(0), _) => {
                panic!("{name}: offered, and nothing was counted in {SPELL:?} of work on each CPU")
            }
            (Some(sum), _) => println!("{name}: supported, {sum} on CPUs {online}"),
            (None, Some(reason)) => println!("{name}: not here: {reason}"),
            (None, None) => println!("{name}: not here: these CPUs don't have this event"),
        }
    }
}

/// Counts the moves of a thread that binds itself to one CPU and then to another.
fn threads() {
    let (proc, own) = (
        Proc::new(Path::new("/")),
        i32::try_from(std::process::id()).unwrap(),
    );
    if let Some(reason) = proc.no_migrations() {
        return println!("moves of threads: not here: {reason}");
    }
    let online: Vec<u32> = online_cpus(Path::new("/sys")).unwrap().iter().collect();
    let moves = || {
        proc.tasks(own)
            .iter()
            .find(|task| task.tid == own)
            .unwrap()
            .migrations
            .unwrap()
    };
    let before = moves();
    if let [first, .., last] = online[..] {
        for cpu in [first, last, first, last] {
            assert!(work_on(cpu), "the process may not use CPU {cpu}");
        }
        assert!(
            moves() >= before + 3,
            "{before} moves before, {} after",
            moves()
        );
    }
    println!("moves of threads: supported, {}", moves() - before);
}

/// Prints the RDMA ports.
fn ports() {
    let folder = rdma::directory(Path::new("/"));
    let ports = rdma::ports(&folder);
    if ports.is_empty() {
        return println!(
            "ports of RDMA devices: not here: there is none below {}",
            folder.display()
        );
    }
    for port in ports {
        let counted = port.counts.iter().flatten().count();
        assert!(
            counted > 0 || !port.hardware.is_empty(),
            "{} counts nothing",
            port.device
        );
        println!(
            "RDMA port {}/{}: supported, {counted} counters",
            port.device, port.port
        );
    }
}

/// Binds a monitoring group to a busy CPU.
fn monitors(online: &CpuSet) {
    let resctrl = Resctrl::new(Path::new("/"));
    let room = match resctrl.available_groups() {
        Err(ResctrlError::Unsupported(reason)) => {
            return println!("monitoring groups: not here: {reason}");
        }
        other => other.unwrap(),
    };
    assert!(room > 0, "all monitors are in use");
    let cpu = online.iter().last().unwrap();
    let name = format!("{GROUP_PREFIX}test-{}", std::process::id());
    resctrl.make(&name).unwrap();
    let bound = resctrl.bind(&name, &[cpu].into_iter().collect());
    let worked = bound.is_ok() && work_on(cpu);
    let domains = resctrl.read(&name);
    resctrl.remove(&name).unwrap();
    bound.unwrap();
    assert!(worked, "the process may not use CPU {cpu}");
    let domains = domains.unwrap();
    let of = |pick: fn(&pinfold::host::counters::resctrl::CacheCounters) -> Option<Count>| -> Vec<Count> {
        domains.iter().filter_map(pick).collect()
    };
    for (name, counts) in [
        (
            "occupancy of the last-level cache",
            of(|domain| domain.occupancy),
        ),
        ("memory bandwidth, all", of(|domain| domain.total)),
        ("memory bandwidth, local", of(|domain| domain.local)),
    ] {
        let bytes: u64 = counts
            .iter()
            .map(|count| {
                if let Count::Bytes(bytes) = count {
                    *bytes
                } else {
                    0
                }
            })
            .sum();
        if counts.iter().all(|count| *count == Count::Unassigned) {
            println!("{name}: not here: this CPU can't tell it, or has no counter assigned to it");
        } else {
            assert!(
                bytes > 0,
                "{name}: offered, and nothing was counted: {counts:?}"
            );
            println!("{name}: supported, {bytes} bytes after {SPELL:?} of work on CPU {cpu}");
        }
    }
}

/// Works on a CPU for a while with pauses. Returns false if the process may not use the CPU.
fn work_on(cpu: u32) -> bool {
    let mut mask = Mask::new();
    if mask.set(cpu as usize).is_err() || sched_setaffinity(Pid::from_raw(0), &mask).is_err() {
        return false;
    }
    let start = Instant::now();
    while start.elapsed() < SPELL {
        let mut memory = vec![0_u8; BYTES];
        memory
            .iter_mut()
            .step_by(64)
            .for_each(|byte| *byte = black_box(1));
        std::thread::sleep(Duration::from_millis(1));
        black_box(&memory);
    }
    true
}
