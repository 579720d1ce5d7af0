//! The cost of counting sockets for the pods' packets. Two sockets exchange 64 bytes over the loopback, as datagrams
//! and as TCP segments, without and with the BPF programs, in turns in one run. Each packet is sent and received in the
//! tree, so two programs run. A connection that has ever retransmitted needs more work for each segment.
//! `PINFOLD_KERNEL_TESTS=1 cargo bench --bench sockets`, as root
#![allow(clippy::unwrap_used, clippy::panic)]

#[path = "../tests/support/gate.rs"]
mod gate;
#[path = "../tests/support/kernel.rs"]
#[allow(dead_code, reason = "shared with tests")]
mod kernel;

use std::collections::HashSet;
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use pinfold::host::bpf::sockets::{DEFAULT_ENTRIES, SocketCounter};
use pinfold::host::bpf::{Direction, Program};
use pinfold::host::proc::thread_cpu_time;

use crate::kernel::kernel_tests;

/// The number of exchanges in each round.
const EXCHANGES: u32 = 20_000;

/// How many exchanges come before the measurement, because attaching or detaching programs empties
/// caches.
const WARM_UP: u32 = 2_000;

/// The number of rounds of each kind.
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
    let outside = Pair::datagrams();
    // A socket belongs forever to the cgroup of its creator.
    let own = fs::read_to_string("/proc/self/cgroup").unwrap();
    let own = own
        .lines()
        .find_map(|line| line.strip_prefix("0::/"))
        .unwrap();
    enter(&main);
    let (datagrams, segments, again) = (Pair::datagrams(), Pair::segments(), Pair::segments());
    enter(own);
    again.lose(&directory(&main));
    let kinds = [
        ("others' datagrams", outside),
        ("a pod's datagrams", datagrams),
        ("a pod's segments", segments),
        (
            "a pod's segments, of a connection that has sent some again",
            again,
        ),
    ];

    let mut times = vec![[const { Vec::new() }; 2]; kinds.len()];
    for round in 0..=ROUNDS {
        let without: Vec<f64> = kinds.iter().map(|(_, pair)| pair.round()).collect();
        let mut counter = SocketCounter::new(
            Path::new(ROOT),
            std::slice::from_ref(&tree.path),
            DEFAULT_ENTRIES,
        )
        .unwrap();
        let with: Vec<f64> = kinds.iter().map(|(_, pair)| pair.round()).collect();
        let counts = counter
            .sample(&kernel.cgroups, &HashSet::from([pod.as_str()]))
            .unwrap()
            .pods[&pod];
        assert_eq!(counts.receive.packets, counts.transmit.packets);
        let datagrams = counts.transmit.packets - counts.tcp.sent - counts.tcp.retransmitted;
        assert_eq!(datagrams, u64::from(2 * (EXCHANGES + WARM_UP)));
        assert!(counts.tcp.sent >= 2 * datagrams);
        // The first round only warms up.
        if round > 0 {
            for (times, took) in times.iter_mut().zip(without.into_iter().zip(with)) {
                times[0].push(took.0);
                times[1].push(took.1);
            }
        }
    }
    println!(
        "CPU time of a packet, sent and received, median of {ROUNDS} rounds of {} packets:",
        2 * EXCHANGES
    );
    for ((kind, _), times) in kinds.iter().zip(times) {
        let [without, with] = times.map(|mut times| {
            times.sort_by(f64::total_cmp);
            times[times.len() / 2]
        });
        println!(
            "  {kind}: {without:.0} ns without, {with:.0} ns with the programs; {:+.0} ns, ratio {:.3}",
            with - without,
            with / without
        );
    }
}

/// Moves this process into a cgroup v2 cgroup.
fn enter(cgroup: &str) {
    fs::write(
        directory(cgroup).join("cgroup.procs"),
        std::process::id().to_string(),
    )
    .unwrap();
}

/// A cgroup's directory in the cgroup v2 hierarchy.
fn directory(cgroup: &str) -> PathBuf {
    let hybrid = PathBuf::from(ROOT).join("unified");
    let root = if hybrid.exists() { hybrid } else { ROOT.into() };
    root.join(cgroup)
}

/// Two connected sockets.
enum Pair {
    Datagrams(UdpSocket, UdpSocket),
    Segments(TcpStream, TcpStream),
}

// === impl Pair ===

impl Pair {
    fn datagrams() -> Self {
        let [first, second] = [(), ()].map(|()| UdpSocket::bind("127.0.0.1:0").unwrap());
        first.connect(second.local_addr().unwrap()).unwrap();
        second.connect(first.local_addr().unwrap()).unwrap();
        Self::Datagrams(first, second)
    }

    fn segments() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let first = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let second = listener.accept().unwrap().0;
        for end in [&first, &second] {
            end.set_nodelay(true).unwrap();
        }
        Self::Segments(first, second)
    }

    /// Drops all packets in a cgroup for a while, so that both ends retransmit.
    fn lose(&self, directory: &Path) {
        // The program returns 0 and drops every packet.
        let lose = [0xb7, 0x95];
        let program = Program::load("pinfold_loss", &lose, Direction::Ingress).unwrap();
        let lossy = program
            .attach(fs::File::open(directory).unwrap().as_fd())
            .unwrap();
        let Self::Segments(first, second) = self else {
            return;
        };
        for mut end in [first, second] {
            end.write_all(&[0; 64]).unwrap();
        }
        std::thread::sleep(std::time::Duration::from_millis(500));
        drop(lossy);
        for mut end in [first, second] {
            end.read_exact(&mut [0; 64]).unwrap();
        }
    }

    /// Nanoseconds of CPU time for a packet, including the way through both sockets.
    fn round(&self) -> f64 {
        self.exchange(WARM_UP);
        let used = thread_cpu_time();
        self.exchange(EXCHANGES);
        let used = thread_cpu_time() - used;
        used.as_secs_f64() * 1e9 / f64::from(2 * EXCHANGES)
    }

    fn exchange(&self, times: u32) {
        let mut buffer = [0; 64];
        for _ in 0..times {
            match self {
                Self::Datagrams(first, second) => {
                    for (from, to) in [(first, second), (second, first)] {
                        assert_eq!(from.send(&buffer).unwrap(), 64);
                        assert_eq!(to.recv(&mut buffer).unwrap(), 64);
                    }
                }
                Self::Segments(first, second) => {
                    for (mut from, mut to) in [(first, second), (second, first)] {
                        from.write_all(&buffer).unwrap();
                        to.read_exact(&mut buffer).unwrap();
                    }
                }
            }
        }
    }
}
