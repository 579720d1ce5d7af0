//! The share of placements that are worse than the best when containers arrive and leave. The bench
//! compares Pinfold with the kubelet's packed assignment, each on the machine that its own choices
//! have left. It also counts Pinfold's forced splits over NUMA nodes, and those of them that one or
//! two moves would remove. `cargo bench --bench churn`
#![allow(clippy::unwrap_used)]

#[path = "../tests/placement/churn.rs"]
mod churn;
#[path = "support/forced.rs"]
mod forced;
#[path = "../tests/placement/machines.rs"]
mod machines;
#[path = "../tests/placement/random.rs"]
mod random;
#[path = "../tests/placement/rival.rs"]
mod rival;
#[path = "support/spread.rs"]
mod spread;

use churn::{Chooser, Sizes, run};
use pinfold::cpu::Topology;
use spread::spread;

const STEPS: usize = 1500;
const SEED: u64 = 20_240_229;

fn main() {
    let machines = [
        ("EPYC NPS1: 2 NUMA, 16 LLC, 256 CPUs", machines::epyc_nps1()),
        ("EPYC NPS4: 8 NUMA, 16 LLC, 256 CPUs", machines::epyc_nps4()),
        ("Xeon SNC2: 4 NUMA,  2 LLC, 224 CPUs", machines::xeon_snc2()),
    ];
    let choosers = [
        ("pinfold", Chooser::Pinfold),
        ("kubelet packed", Chooser::KubeletPacked),
        ("kubelet packed, by LLC", Chooser::KubeletPackedByLlc),
    ];
    for (sizes_text, sizes) in [("2, 4, … 32", Sizes::Even), ("2, 3, … 32", Sizes::Any)] {
        println!(
            "{STEPS} steps, sizes {sizes_text}, at most 80 % full, one core reserved; share of placements worse than the best"
        );
        println!(
            "{:38}{:25}{:>6} {:>8} {:>10} {:>7} {:>7}  {:>9} {:>9} {:>9}",
            "machine",
            "chooser",
            "placed",
            "any",
            "split core",
            "NUMA",
            "LLC",
            "median",
            "p99",
            "max"
        );
        for (machine, topology) in &machines {
            for (name, chooser) in choosers {
                let mut outcome = run(topology, chooser, sizes, STEPS, SEED);
                let share = |count: usize| {
                    format!("{:.1} %", 100.0 * count as f64 / outcome.placements as f64)
                };
                let shares = [
                    outcome.worse,
                    outcome.worse_strangers,
                    outcome.worse_numa,
                    outcome.worse_llcs,
                ]
                .map(share);
                // The kubelet column has no times, because the bench runs an unoptimized copy of the kubelet's
                // algorithm.
                let times = if chooser == Chooser::Pinfold {
                    spread(&mut outcome.times)
                        .map(|time| format!("{:.1} µs", time.as_secs_f64() * 1e6))
                } else {
                    Default::default()
                };
                println!(
                    "{machine:38}{name:25}{:>6} {:>8} {:>10} {:>7} {:>7}  {:>9} {:>9} {:>9}",
                    outcome.placements,
                    shares[0],
                    shares[1],
                    shares[2],
                    shares[3],
                    times[0],
                    times[1],
                    times[2]
                );
            }
        }
        println!();
    }
    forced_splits(&machines);
}

/// The maximum load of the machine, in percent.
const LOADS: [usize; 3] = [70, 80, 90];

fn forced_splits(machines: &[(&str, Topology)]) {
    println!(
        "{STEPS} steps, sizes 2, 4, … 32, every owner movable; the share of forced splits that moves would remove"
    );
    println!(
        "{:38}{:>6} {:>7} {:>7} {:>7} {:>9} {:>9}  {:>29}  {:>29}",
        "machine",
        "load",
        "owners",
        "placed",
        "split",
        "one move",
        "two",
        "one: median, p99, max",
        "two: median, p99, max"
    );
    for (machine, topology) in machines {
        for load in LOADS {
            let mut outcome = forced::run(topology, load, STEPS, SEED);
            let share = |count: usize| match outcome.splits {
                0 => "-".to_owned(),
                splits => format!("{:.0} %", 100.0 * count as f64 / splits as f64),
            };
            let removed = outcome.removed.map(share);
            let [one_move, two_moves] =
                outcome
                    .times
                    .each_mut()
                    .map(|times| match times.is_empty() {
                        true => "-".to_owned(),
                        false => spread(times)
                            .map(|time| format!("{:.2} ms", time.as_secs_f64() * 1e3))
                            .join(" "),
                    });
            println!(
                "{machine:38}{load:>4} % {:>7} {:>7} {:>7} {:>9} {:>9}  {one_move:>29}  {two_moves:>29}",
                outcome.owners, outcome.placements, outcome.splits, removed[0], removed[1]
            );
        }
    }
}
