//! Claims of many nodes at once: the agents' real task with the tests' fake API server. Meanwhile
//! agents die, nodes leave and are replaced, and the active case changes, but no slot is ever held
//! twice, and none is lost. `cargo bench --bench claims` (`-- 100 1000` for different numbers of
//! agents; `-- lists 10000` counts only the lists)
//!
//! The clock is tokio's paused clock: a request takes 20 ms and all else takes no time, so the
//! times are those of the protocol alone. The last column shows what the requests cost the server:
//! the objects that a server before 1.34 reads from etcd. Two further lines have the lists of the
//! busiest second, at the first start and after a restart of the API server, and the objects that
//! the server reads from etcd for lists, with streaming lists and without.
#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "../tests/cluster/agents.rs"]
#[allow(dead_code, reason = "tests use the rest")]
mod agents;
#[path = "../tests/fakeapi/mod.rs"]
mod fakeapi;
#[path = "../tests/cluster/simulation.rs"]
mod simulation;

use std::time::Instant;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let mut only_lists = false;
    let mut sizes: Vec<usize> = Vec::new();
    // Cargo adds `--bench`.
    for argument in arguments
        .iter()
        .filter(|argument| !argument.starts_with('-'))
    {
        if argument == "lists" {
            only_lists = true;
        } else {
            sizes.push(
                argument
                    .parse()
                    .expect("a number of agents, or the word lists"),
            );
        }
    }
    let sizes = if sizes.is_empty() {
        vec![100, 1_000, 10_000]
    } else {
        sizes
    };
    for size in sizes {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
            .unwrap();
        let start = Instant::now();
        if !only_lists {
            print_parts(&runtime.block_on(simulation::simulate(size)));
        }
        for streaming in [true, false] {
            let busiest = runtime.block_on(simulation::busiest_seconds(size, streaming, size / 10));
            println!(
                "{size:>7}  {} streaming lists: at most {} lists of plans in a second at the first start, and {} lists after a \
                 restart of the server; for lists the server reads at most {} and {} objects from etcd in a second, of {} pods and one plan",
                if streaming { "with" } else { "without" },
                busiest.first_start,
                busiest.restart,
                busiest.first_start_reads,
                busiest.restart_reads,
                size / 10
            );
        }
        println!(
            "{size:>7}  ({:.0} s of this machine's time)\n",
            start.elapsed().as_secs_f64()
        );
    }
}

fn print_parts(parts: &[simulation::SimulationPart]) {
    println!(
        "{:>7}  {:38} {:>6} {:>9} {:>15} {:>13} {:>12} {:>9} {:>15}",
        "agents",
        "",
        "slots",
        "all held",
        "requests/node",
        "writes/node",
        "at most",
        "refused",
        "from etcd/node"
    );
    for part in parts {
        let each = |count: f64| format!("{:.2}", count / part.agents as f64);
        println!(
            "{:>7}  {:38} {:>6} {:>7} s {:>15} {:>13} {:>12} {:>9} {:>15}",
            part.agents,
            part.name,
            part.slots,
            part.time.as_secs(),
            each(part.requests as f64),
            each(part.writes as f64),
            part.most_writes,
            part.refused,
            each(part.from_etcd as f64)
        );
    }
}
