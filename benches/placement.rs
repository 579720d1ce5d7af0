//! The duration of a placement decision. `cargo bench --bench placement`
//!
//! The bench prints two tables with the spread over many free sets, including the worst known sets: for plain requests
//! and for requests with preferences. Then divan measures single decisions.
#![allow(clippy::unwrap_used)]

#[path = "../tests/placement/machines.rs"]
mod machines;
#[path = "../tests/placement/random.rs"]
mod random;
#[path = "support/spread.rs"]
mod spread;

use std::time::{Duration, Instant};

use machines::{cpu, even, machine};
use pinfold::cpu::{Cores, CpuSet, NumaNode, Order, PlacementRefusal, Placer, Request, Topology};
use random::Random;
use spread::spread;

/// The number of free sets per row of the table.
const DRAWS: usize = 400;

fn main() {
    table();
    preferences();
    divan::main();
}

/// Machines of 224 to 512 CPUs.
fn large_machines() -> Vec<(&'static str, Topology)> {
    let mixed = (0..512).map(|id: i32| {
        // Cores of 8, 4, 2, 1 and 1 CPUs in every 16.
        let core = id / 16 * 5
            + [0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 3, 4][usize::try_from(id % 16).unwrap()];
        cpu(id.cast_unsigned(), core, id / 256, id / 64, id / 16)
    });
    let crossing =
        (0..512).map(|id: i32| cpu(id.cast_unsigned(), id / 2, id / 96, id / 64, id / 40));
    vec![
        ("256: EPYC, 2 NUMA, 16 LLC", machines::epyc_nps1()),
        ("256: EPYC, 8 NUMA, 16 LLC", machines::epyc_nps4()),
        ("224: Xeon, 4 NUMA, 2 LLC", machines::xeon_snc2()),
        ("512: 2 NUMA, 32 LLC, SMT2", even(256, 2, 128, 128, 8)),
        ("512: 8 NUMA, 32 LLC, SMT2", even(256, 2, 128, 32, 8)),
        ("512: 64 NUMA, 64 LLC, SMT1", even(512, 1, 64, 8, 8)),
        ("512: 8 NUMA, 64 sockets, SMT4", even(128, 4, 2, 16, 1)),
        ("512: 4 NUMA, 32 LLC, SMT8", even(64, 8, 32, 16, 2)),
        ("512: one NUMA node, SMT8", even(64, 8, 64, 64, 64)),
        ("512: nothing known, SMT1", even(512, 1, 0, 0, 0)),
        ("512: cores of 8, 4, 2, 1, 1", machine(mixed.collect())),
        ("512: groups that cross", machine(crossing.collect())),
    ]
}

/// States of a machine before a decision.
const STATES: [&str; 6] = [
    "fresh",
    "whole cores at random",
    "CPUs at random",
    "halves of cores",
    "each LLC differs",
    "after churn",
];

fn free_set(state: &str, topology: &Topology, placer: &Placer, random: &mut Random) -> CpuSet {
    let share = 20 + random.below(70);
    let mut whole = std::collections::BTreeMap::new();
    let mut per_llc = std::collections::BTreeMap::new();
    let mut free = CpuSet::new();
    for cpu in &topology.cpus {
        let keep = match state {
            "fresh" => true,
            "whole cores at random" => *whole
                .entry(cpu.core)
                .or_insert_with(|| random.below(100) < share),
            "CPUs at random" => random.below(100) < share,
            // Most cores lack a CPU.
            "halves of cores" => {
                let first = !whole.contains_key(&cpu.core);
                let spoiled = *whole
                    .entry(cpu.core)
                    .or_insert_with(|| random.below(10) < 8);
                !(first && spoiled)
            }
            "each LLC differs" => {
                random.below(100) < *per_llc.entry(cpu.llc).or_insert_with(|| random.below(101))
            }
            _ => true,
        };
        if keep {
            free.insert(cpu.id);
        }
    }
    if state == "after churn" {
        let mut held = Vec::new();
        for _ in 0..60 {
            let size = 1 + random.below(48);
            if random.below(3) > 0
                && let Ok(placement) = placer.place(&free, size)
            {
                free = free.difference(&placement.cpus);
                held.push(placement.cpus);
            } else if !held.is_empty() {
                free = free.union(&held.swap_remove(random.below(held.len())));
            }
        }
    }
    free
}

fn table() {
    println!("one decision, any count, {DRAWS} free sets per row, best of three measurements each");
    println!(
        "{:31} {:22} {:>9} {:>9} {:>9}   hardest",
        "machine", "state", "median", "p99", "max"
    );
    for (name, topology) in large_machines() {
        let placer = Placer::new(&topology);
        assert!(placer.is_exact());
        for state in STATES {
            let mut random = Random(20_240_229);
            let mut times = Vec::new();
            let mut hardest = (Duration::ZERO, 0, 0);
            for _ in 0..DRAWS {
                let free = free_set(state, &topology, &placer, &mut random);
                let n = random.below(free.len() + 1);
                let time = (0..3).map(|_| {
                    let start = Instant::now();
                    std::hint::black_box(placer.place(std::hint::black_box(&free), n)).unwrap();
                    start.elapsed()
                });
                let time = time.min().unwrap();
                hardest = hardest.max((time, n, free.len()));
                times.push(time);
            }
            let [median, p99, max] =
                spread(&mut times).map(|time| format!("{:.1} µs", time.as_secs_f64() * 1e6));
            let (_, n, of) = hardest;
            println!("{name:31} {state:22} {median:>9} {p99:>9} {max:>9}   {n} of {of}");
        }
    }
}

/// The machine with distances between its NUMA nodes, and a quarter of its CPUs isolated.
fn with_distances_and_isolated_cpus(mut topology: Topology) -> Topology {
    let nodes = topology.numa_nodes();
    let ids = || (0..).take(nodes.len());
    let distance = |a: u32, b: u32| if a == b { 10 } else { 11 + a.abs_diff(b) };
    let node = |(id, cpus): (u32, &CpuSet)| NumaNode {
        id,
        cpus: cpus.clone(),
        memory_bytes: None,
        distances: ids().map(|to| distance(id, to)).collect(),
    };
    topology.numa = ids().zip(&nodes).map(node).collect();
    topology.isolated = topology.online.iter().filter(|id| id % 4 == 3).collect();
    topology
}

/// Requests with different preferences.
fn requests() -> Vec<(&'static str, Request)> {
    let near: CpuSet = "0".parse().unwrap();
    let plain = Request::default();
    vec![
        (
            "spread",
            Request {
                order: Order::Spread,
                ..plain.clone()
            },
        ),
        (
            "whole",
            Request {
                cores: Cores::Whole,
                ..plain.clone()
            },
        ),
        (
            "single",
            Request {
                cores: Cores::Single,
                ..plain.clone()
            },
        ),
        (
            "near",
            Request {
                near: near.clone(),
                ..plain.clone()
            },
        ),
        ("avoid isolated", plain.clone()),
        (
            "all",
            Request {
                order: Order::Spread,
                near,
                ..plain
            },
        ),
    ]
}

fn preferences() {
    println!(
        "\none decision with wishes, any count, {DRAWS} free sets per row, the best of three; refusals left out"
    );
    println!(
        "{:31} {:15} {:22} {:>9} {:>9} {:>9}   hardest",
        "machine", "wish", "state", "median", "p99", "max"
    );
    for (name, topology) in large_machines() {
        let isolated = with_distances_and_isolated_cpus(topology.clone());
        let not_isolated = Topology {
            isolated: CpuSet::new(),
            ..isolated.clone()
        };
        let placers = [isolated, not_isolated].map(|topology| Placer::new(&topology));
        for (wish, request) in requests() {
            let placer = if ["all", "avoid isolated"].contains(&wish) {
                &placers[0]
            } else {
                &placers[1]
            };
            let note = if placer.is_exact_for(request.order) {
                ""
            } else {
                "; not exact"
            };
            for state in ["fresh", "CPUs at random", "each LLC differs", "after churn"] {
                let mut random = Random(20_240_229);
                let mut times = Vec::new();
                let mut hardest = (Duration::ZERO, 0, 0);
                for _ in 0..DRAWS / 4 {
                    let free = free_set(state, &topology, placer, &mut random);
                    let most = if request.cores == Cores::Single {
                        free.len() / 2
                    } else {
                        free.len()
                    };
                    let mut request = Request {
                        cpus: random.below(most + 1),
                        ..request.clone()
                    };
                    match placer.place_as(&free, &request) {
                        Ok(_) => {}
                        Err(PlacementRefusal::NotWholeCores { less, .. }) => request.cpus = less,
                        Err(_) => continue,
                    }
                    let time = (0..3).map(|_| {
                        let start = Instant::now();
                        std::hint::black_box(
                            placer.place_as(std::hint::black_box(&free), &request),
                        )
                        .unwrap();
                        start.elapsed()
                    });
                    let time = time.min().unwrap();
                    hardest = hardest.max((time, request.cpus, free.len()));
                    times.push(time);
                }
                if times.is_empty() {
                    println!("{name:31} {wish:15} {state:22} every request refused");
                    continue;
                }
                let [median, p99, max] =
                    spread(&mut times).map(|time| format!("{:.1} µs", time.as_secs_f64() * 1e6));
                let (_, n, of) = hardest;
                println!(
                    "{name:31} {wish:15} {state:22} {median:>9} {p99:>9} {max:>9}   {n} of {of}{note}"
                );
            }
        }
    }
}

/// CPUs wanted.
const COUNTS: [usize; 5] = [2, 7, 16, 48, 120];

fn decide(bencher: divan::Bencher, topology: &Topology, state: &str, n: usize) {
    let placer = Placer::new(topology);
    let free = free_set(state, topology, &placer, &mut Random(7));
    assert!(n <= free.len(), "the bench would measure a refusal");
    bencher.bench_local(|| placer.place(divan::black_box(&free), divan::black_box(n)));
}

#[divan::bench(args = COUNTS)]
fn cpus_256_fresh(bencher: divan::Bencher, n: usize) {
    decide(bencher, &machines::epyc_nps4(), "fresh", n);
}

#[divan::bench(args = COUNTS)]
fn cpus_256_fragmented(bencher: divan::Bencher, n: usize) {
    decide(bencher, &machines::epyc_nps4(), "halves of cores", n);
}

#[divan::bench(args = COUNTS)]
fn cpus_512_fresh(bencher: divan::Bencher, n: usize) {
    decide(bencher, &even(256, 2, 128, 32, 8), "fresh", n);
}

#[divan::bench(args = COUNTS)]
fn cpus_512_fragmented(bencher: divan::Bencher, n: usize) {
    decide(bencher, &even(256, 2, 128, 32, 8), "halves of cores", n);
}

#[divan::bench]
fn planning_512(bencher: divan::Bencher) {
    let topology = even(256, 2, 128, 32, 8);
    bencher.bench_local(|| Placer::new(divan::black_box(&topology)));
}
