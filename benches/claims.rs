//! Claims of many nodes at once: the agents' own task against the fake API server of the tests, with agents dying, nodes
//! going and being replaced, and the active case changing on the way. No slot is ever held twice, and none is lost.
//! `cargo bench --bench claims` (`-- 100 1000` for other numbers of agents)
//!
//! Time is tokio's paused clock: a request takes 20 ms, everything else no time at all, so the times are the protocol's own.
//! What a request costs the server shows in the last column: the objects that a server before 1.34 reads from etcd for it.
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
    let given: Vec<usize> = std::env::args()
        .skip(1)
        .filter_map(|argument| argument.parse().ok())
        .collect();
    let sizes = if given.is_empty() {
        vec![100, 1_000, 10_000]
    } else {
        given
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
        let began = Instant::now();
        for part in runtime.block_on(simulation::simulate(size)) {
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
        println!(
            "{:>7}  ({:.0} s of this machine's time)\n",
            size,
            began.elapsed().as_secs_f64()
        );
    }
}
