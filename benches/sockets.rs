//! What counting the pods' sockets costs their packets: 64 bytes go to and fro between two sockets on the loopback, as datagrams
//! and as segments of TCP, without the BPF programs and with them, in turns, in one run. Each packet is sent and received in the
//! tree, so that two programs see it. Segments are looked at more closely on a connection that has ever sent one again.
//! `PINFOLD_KERNEL_TESTS=1 cargo bench --bench sockets`, as root
#![allow(clippy::unwrap_used, clippy::panic, missing_docs)]

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

use pinfold::host::bpf::{Direction, Program};
use pinfold::host::proc::thread_cpu_time;
use pinfold::host::sockets::{DEFAULT_ENTRIES, SocketCounter};

use crate::kernel::kernel_tests;

/// How often it goes to and fro in each round.
const EXCHANGES: u32 = 20_000;

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
    let outside = Pair::datagrams();
    // A socket belongs for ever to the cgroup in which it was made.
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
        let seen = counter
            .sample(&kernel.cgroups, &HashSet::from([pod.as_str()]))
            .unwrap()
            .pods[&pod];
        assert_eq!(seen.receive.packets, seen.transmit.packets);
        let datagrams = seen.transmit.packets - seen.tcp.sent - seen.tcp.retransmitted;
        assert_eq!(datagrams, u64::from(2 * (EXCHANGES + WARM_UP)));
        assert!(seen.tcp.sent >= 2 * datagrams);
        // The first only warms up.
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
    for ((who, _), times) in kinds.iter().zip(times) {
        let [without, with] = times.map(|mut times| {
            times.sort_by(f64::total_cmp);
            times[times.len() / 2]
        });
        println!(
            "  {who}: {without:.0} ns without, {with:.0} ns with the programs; {:+.0} ns, ratio {:.3}",
            with - without,
            with / without
        );
    }
}

/// Moves this process into a cgroup of version 2.
fn enter(cgroup: &str) {
    fs::write(
        directory(cgroup).join("cgroup.procs"),
        std::process::id().to_string(),
    )
    .unwrap();
}

/// A cgroup's directory in the hierarchy of version 2.
fn directory(cgroup: &str) -> PathBuf {
    let hybrid = PathBuf::from(ROOT).join("unified");
    let root = if hybrid.exists() { hybrid } else { ROOT.into() };
    root.join(cgroup)
}

/// Two sockets that know each other.
enum Pair {
    Datagrams(UdpSocket, UdpSocket),
    Segments(TcpStream, TcpStream),
}

// === impl Pair ===

impl Pair {
    fn datagrams() -> Self {
        let [one, other] = [(), ()].map(|()| UdpSocket::bind("127.0.0.1:0").unwrap());
        one.connect(other.local_addr().unwrap()).unwrap();
        other.connect(one.local_addr().unwrap()).unwrap();
        Self::Datagrams(one, other)
    }

    fn segments() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let other = listener.accept().unwrap().0;
        for end in [&one, &other] {
            end.set_nodelay(true).unwrap();
        }
        Self::Segments(one, other)
    }

    /// Loses everything in a cgroup for a while in which both send, so that they have to do it again.
    fn lose(&self, directory: &Path) {
        // Returns 0, so that no packet passes.
        let lose = [0xb7, 0x95];
        let program = Program::load("pinfold_loss", &lose, Direction::Ingress).unwrap();
        let lossy = program
            .attach(fs::File::open(directory).unwrap().as_fd())
            .unwrap();
        let Self::Segments(one, other) = self else {
            return;
        };
        for mut end in [one, other] {
            end.write_all(&[0; 64]).unwrap();
        }
        std::thread::sleep(std::time::Duration::from_millis(500));
        drop(lossy);
        for mut end in [one, other] {
            end.read_exact(&mut [0; 64]).unwrap();
        }
    }

    /// Nanoseconds of CPU time for a packet, its way through both sockets included.
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
                Self::Datagrams(one, other) => {
                    for (from, to) in [(one, other), (other, one)] {
                        assert_eq!(from.send(&buffer).unwrap(), 64);
                        assert_eq!(to.recv(&mut buffer).unwrap(), 64);
                    }
                }
                Self::Segments(one, other) => {
                    for (mut from, mut to) in [(one, other), (other, one)] {
                        from.write_all(&buffer).unwrap();
                        to.read_exact(&mut buffer).unwrap();
                    }
                }
            }
        }
    }
}
