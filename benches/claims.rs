//! Claims of many nodes at once: the agents' real task with the tests' fake API server. During the run agents die,
//! nodes leave and are replaced, and the active case changes. No slot is ever held twice, and no slot is lost. `cargo
//! bench --bench claims` (`-- 100 1000` for different numbers of agents)
//!
//! The clock is tokio's paused clock: a request takes 20 ms and all else takes no time, so the times belong to the
//! protocol. A further line has the lists of the busiest second. The last column shows the requests' cost for the server: the objects that a server before 1.34 reads from
//! etcd.
#![allow(clippy::unwrap_used, missing_docs)]

#[path = "../tests/cluster/agents.rs"]
#[allow(dead_code, reason = "tests use the rest")]
mod agents;
#[path = "../tests/fakeapi/mod.rs"]
mod fakeapi;
#[path = "../tests/cluster/simulation.rs"]
mod simulation;

use std::time::Instant;

fn main() {
    let arguments: Vec<usize> = std::env::args()
        .skip(1)
        .filter_map(|argument| argument.parse().ok())
        .collect();
    let sizes = if arguments.is_empty() {
        vec![100, 1_000, 10_000]
    } else {
        arguments
    };
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
    for size in sizes {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
            .unwrap();
        let start = Instant::now();
        for phase in runtime.block_on(simulation::simulate(size)) {
            let each = |count: f64| format!("{:.2}", count / phase.agents as f64);
            println!(
                "{:>7}  {:38} {:>6} {:>7} s {:>15} {:>13} {:>12} {:>9} {:>15}",
                phase.agents,
                phase.name,
                phase.slots,
                phase.time.as_secs(),
                each(phase.requests as f64),
                each(phase.writes as f64),
                phase.most_writes,
                phase.refused,
                each(phase.from_etcd as f64)
            );
        }
        let busiest = runtime.block_on(simulation::busiest_seconds(size));
        println!(
            "{:>7}  at most {} lists of plans in a second at the first start, and {} lists after a restart of the server",
            size, busiest.first_start, busiest.restart
        );
        println!(
            "{:>7}  ({:.0} s of this machine's time)\n",
            size,
            start.elapsed().as_secs_f64()
        );
    }
}
