//! What counting the pods' sockets costs their packets: a datagram of 64 bytes goes to and fro between two sockets on the
//! loopback, without the BPF programs and with them, in turns, in one run. Each packet is sent and received in the tree, so
//! that two programs see it.
//! `PINFOLD_KERNEL_TESTS=1 cargo bench --bench sockets`, as root
#![allow(clippy::unwrap_used, clippy::panic, missing_docs)]

#[path = "../tests/support/gate.rs"]
mod gate;
#[path = "../tests/support/kernel.rs"]
#[allow(dead_code, reason = "shared with tests")]
mod kernel;

use std::collections::HashSet;
use std::fs;
use std::net::UdpSocket;
use std::path::{Path, PathBuf};

use pinfold::host::proc::thread_cpu_time;
use pinfold::host::sockets::{Counter, ROOM};

use crate::kernel::kernel_tests;

/// Datagrams in one direction in each round.
const DATAGRAMS: u32 = 20_000;

/// The same before the clock starts: what was attached or detached has emptied caches.
const WARM_UP: u32 = 2_000;

/// Rounds of each kind.
const ROUNDS: usize = 31;

const ROOT: &str = "/sys/fs/cgroup";

fn main() {
    let Some(kernel) = kernel_tests() else {
        println!("nothing was measured: set PINFOLD_KERNEL_TESTS=1");
        return;
    };
    let tree = kernel.tree();
    let pod = tree.pod("burstable", "uid");
    let main = tree.container(&pod, "main");
    let outside = Pair::new();
    // A socket belongs for ever to the cgroup in which it was made.
    let own = fs::read_to_string("/proc/self/cgroup").unwrap();
    let own = own.lines().find_map(|line| line.strip_prefix("0::/")).unwrap();
    enter(&main);
    let inside = Pair::new();
    enter(own);

    let mut times: [Vec<f64>; 4] = Default::default();
    for round in 0..=ROUNDS {
        let mut took = [inside.round(), outside.round(), 0.0, 0.0];
        let mut counter = Counter::new(Path::new(ROOT), std::slice::from_ref(&tree.path), ROOM).unwrap();
        (took[2], took[3]) = (inside.round(), outside.round());
        let packets = u64::from(2 * (DATAGRAMS + WARM_UP));
        let seen = counter.look(&kernel.cgroups, &HashSet::from([pod.as_str()])).unwrap().pods[&pod];
        assert_eq!(seen.transmit.packets, packets);
        assert_eq!(seen.receive, seen.transmit);
        // The first only warms up.
        if round > 0 {
            times.iter_mut().zip(took).for_each(|(times, took)| times.push(took));
        }
    }
    let [inside, outside, counted, beside] = times.map(|mut times| {
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    });
    println!(
        "CPU time of a packet, sent and received, median of {ROUNDS} rounds of {} packets:",
        2 * DATAGRAMS
    );
    for (who, without, with) in [("a pod's packets", inside, counted), ("others' packets", outside, beside)] {
        println!(
            "  {who}: {without:.0} ns without, {with:.0} ns with the programs; {:+.0} ns, ratio {:.3}",
            with - without,
            with / without
        );
    }
}

/// Moves this process into a cgroup of version 2.
fn enter(cgroup: &str) {
    let hybrid = PathBuf::from(ROOT).join("unified");
    let root = if hybrid.exists() { hybrid } else { ROOT.into() };
    fs::write(root.join(cgroup).join("cgroup.procs"), std::process::id().to_string()).unwrap();
}

/// Two sockets that know each other.
struct Pair(UdpSocket, UdpSocket);

// === impl Pair ===

impl Pair {
    fn new() -> Self {
        let [one, other] = [(), ()].map(|()| UdpSocket::bind("127.0.0.1:0").unwrap());
        one.connect(other.local_addr().unwrap()).unwrap();
        other.connect(one.local_addr().unwrap()).unwrap();
        Self(one, other)
    }

    /// Nanoseconds of CPU time for a packet, its way through both sockets included.
    fn round(&self) -> f64 {
        self.exchange(WARM_UP);
        let used = thread_cpu_time();
        self.exchange(DATAGRAMS);
        let used = thread_cpu_time() - used;
        used.as_secs_f64() * 1e9 / f64::from(2 * DATAGRAMS)
    }

    fn exchange(&self, datagrams: u32) {
        let mut buffer = [0; 64];
        for _ in 0..datagrams {
            for (from, to) in [(&self.0, &self.1), (&self.1, &self.0)] {
                assert_eq!(from.send(&buffer).unwrap(), 64);
                assert_eq!(to.recv(&mut buffer).unwrap(), 64);
            }
        }
    }
}
