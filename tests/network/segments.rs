//! Sent and retransmitted TCP segments by pod, for pods that share a network. BPF programs count
//! them, and the network's own counters and `ss -i` are the reference.

use std::collections::HashSet;
use std::fs;
use std::fs::File;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use pinfold::host::bpf::sockets::{DEFAULT_ENTRIES, SocketCounter, SocketTcpCounts};
use pinfold::host::bpf::{Direction, Program, ProgramLink};
use pinfold::host::netns::Netns;
use pinfold::host::network_switch::NetworkSwitch;

use crate::agent::{Manifests, Settings, best_effort, metric};
use crate::kernel::{Kernel, Tree, kernel_tests};
use crate::sockets::unified;
use crate::traffic::{tcp_counts, while_quiet};

/// The time limit for kernel actions that follow several timers.
const PATIENCE: Duration = Duration::from_secs(30);

/// How many bytes one pod sends to another while packets are lost.
const SENT: usize = 4_000_000;

/// Runs `make` in a cgroup, so that new sockets belong to it as if a process in it had made them.
fn within<T>(cgroup: &str, make: impl FnOnce() -> T) -> T {
    let cgroups = fs::read_to_string("/proc/self/cgroup").unwrap();
    let own_cgroup = cgroups
        .lines()
        .find_map(|line| line.strip_prefix("0::/"))
        .unwrap();
    let enter = |cgroup: &str| {
        let procs = unified(cgroup).join("cgroup.procs");
        fs::write(procs, std::process::id().to_string()).unwrap();
    };
    enter(cgroup);
    let result = make();
    enter(own_cgroup);
    result
}

/// Drops `of_256` of 256 incoming packets of the cgroup's sockets until the link is dropped.
fn loss(cgroup: &str, of_256: u32) -> ProgramLink {
    let instructions = [
        0x0000_0007_0000_0085,                           // r0 = a random number
        0x0000_00ff_0000_0057,                           // r0 &= 255
        u64::from(of_256) << 32 | 0x0000_0000_0002_0035, // if r0 >= of_256, skip 2
        0x0000_0000_0000_00b7,                           // r0 = 0
        0x0000_0000_0000_0095,                           // the packet is lost
        0x0000_0001_0000_00b7,                           // r0 = 1
        0x0000_0000_0000_0095,                           // the packet passes
    ];
    let program = Program::load("pinfold_loss", &instructions, Direction::Ingress).unwrap();
    program
        .attach(File::open(unified(cgroup)).unwrap().as_fd())
        .unwrap()
}

/// A connection between two pods.
struct Connection {
    sender: TcpStream,
    receiver: TcpStream,
}

impl Connection {
    fn new(network: Option<&Netns>, [from, to]: [&str; 2], host: IpAddr) -> Self {
        let make = || {
            let listener = within(to, || TcpListener::bind((host, 0)).unwrap());
            let sender = within(from, || {
                TcpStream::connect(listener.local_addr().unwrap()).unwrap()
            });
            let receiver = listener.accept().unwrap().0;
            receiver.set_read_timeout(Some(PATIENCE)).unwrap();
            Self { sender, receiver }
        };
        match network {
            Some(network) => network.run(make).unwrap(),
            None => make(),
        }
    }

    /// Sends bytes and waits until the receiver has read them.
    fn send(&mut self, bytes: usize) {
        let Self { sender, receiver } = self;
        std::thread::scope(|scope| {
            scope.spawn(|| sender.write_all(&vec![7; bytes]).unwrap());
            receiver.read_exact(&mut vec![0; bytes]).unwrap();
        });
    }

    /// Sends messages, each of which gets an answer.
    fn exchange_messages(&mut self, messages: usize) {
        let Self { sender, receiver } = self;
        let mut buffer = [0; 100];
        for _ in 0..messages {
            sender.write_all(&buffer).unwrap();
            receiver.read_exact(&mut buffer).unwrap();
            receiver.write_all(&buffer).unwrap();
            sender.read_exact(&mut buffer).unwrap();
        }
    }

    /// The counts of both ends from `ss`: segments sent including retransmissions, and retransmissions alone.
    fn ss(&self, network: Option<&Netns>) -> [[i64; 2]; 2] {
        let ports = [&self.sender, &self.receiver].map(|end| end.local_addr().unwrap().port());
        ports.map(|port| {
            let filter = format!("sport = :{port}");
            let run_ss = || {
                Command::new("ss")
                    .args(["-tinHO", &filter])
                    .output()
                    .unwrap()
            };
            let output = network.map_or_else(run_ss, |network| network.run(run_ss).unwrap());
            let text = String::from_utf8(output.stdout).unwrap();
            let number = |key: &str| {
                let value = text
                    .split_whitespace()
                    .find_map(|word| word.strip_prefix(key))?;
                Some(value.rsplit('/').next()?.parse::<i64>().unwrap())
            };
            // `ss` omits counts of zero.
            assert_eq!(text.lines().count(), 1, "{text}");
            ["segs_out:", "retrans:"].map(|key| number(key).unwrap_or(0))
        })
    }
}

fn counted(kernel: &Kernel, counter: &mut SocketCounter, pods: [&str; 2]) -> [SocketTcpCounts; 2] {
    let sample = counter
        .sample(&kernel.cgroups, &HashSet::from(pods))
        .unwrap();
    assert!(!sample.overflowed);
    pods.map(|pod| sample.pods[pod].tcp)
}

fn sum([first, second]: [SocketTcpCounts; 2]) -> SocketTcpCounts {
    SocketTcpCounts {
        sent: first.sent + second.sent,
        retransmitted: first.retransmitted + second.retransmitted,
        timeouts: first.timeouts + second.timeouts,
    }
}

fn gained(before: SocketTcpCounts, after: SocketTcpCounts) -> SocketTcpCounts {
    SocketTcpCounts {
        sent: after.sent - before.sent,
        retransmitted: after.retransmitted - before.retransmitted,
        timeouts: after.timeouts - before.timeouts,
    }
}

fn counter(tree: &Tree<'_>) -> SocketCounter {
    SocketCounter::new(
        Path::new("/sys/fs/cgroup"),
        std::slice::from_ref(&tree.path),
        DEFAULT_ENTRIES,
    )
    .unwrap()
}

/// The network namespace's own TCP counts.
fn network_tcp(network: &Netns) -> SocketTcpCounts {
    network
        .run(|| tcp_counts(nix::unistd::gettid().as_raw()))
        .unwrap()
}

/// Two pods alone in a lossy network: the sum of their counts equals the network's counts.
#[test]
fn counts_of_two_pods_match_a_lossy_network() {
    let Some(kernel) = kernel_tests() else { return };
    let tree = kernel.tree();
    let pods = [tree.pod("", "one"), tree.pod("burstable", "two")];
    let mains = pods.each_ref().map(|pod| tree.container(pod, "main"));
    let pods = pods.each_ref().map(String::as_str);
    let mains = mains.each_ref().map(String::as_str);
    let (v4, v6) = (
        IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(Ipv6Addr::LOCALHOST),
    );
    for (host, big_packets) in [(v4, false), (v6, false), (v6, true)] {
        let network = NetworkSwitch::new()
            .unwrap()
            .join(Ipv4Addr::new(10, 81, 0, 1))
            .unwrap();
        if big_packets {
            // Packets longer than the length field of IP's header allows.
            let args = "link set dev lo gso_max_size 400000 gro_max_size 400000";
            let status = || Command::new("ip").args(args.split(' ')).status().unwrap();
            assert!(network.run(status).unwrap().success());
        }
        assert_eq!(network_tcp(&network), SocketTcpCounts::default());
        // Older kernels hide the SYN-ACK of IPv6 from the program, so the counter starts after the handshake.
        let early_counter = host.is_ipv4().then(|| counter(&tree));
        let mut connection = Connection::new(Some(&network), mains, host);
        let handshake_counts = if early_counter.is_some() {
            SocketTcpCounts::default()
        } else {
            network_tcp(&network)
        };
        // The SYN-ACK precedes the accepted socket, so `ss` omits the SYN-ACK at the receiver.
        let handshake_ss = if early_counter.is_some() {
            [[0, 0], [-1, 0]]
        } else {
            connection.ss(Some(&network))
        };
        let mut counter = early_counter.unwrap_or_else(|| counter(&tree));
        connection.send(SENT);
        std::thread::sleep(Duration::from_millis(500));
        let (of_network, pod_counts) = while_quiet(
            || network_tcp(&network),
            || counted(&kernel, &mut counter, pods),
        );
        assert_eq!(
            sum(pod_counts),
            gained(handshake_counts, of_network),
            "{host}, without loss"
        );

        let lossy = mains.map(|main| loss(main, 8));
        connection.send(SENT);
        connection.exchange_messages(150);
        // Which packets are lost is random.
        while network_tcp(&network).retransmitted <= 5 {
            connection.exchange_messages(10);
        }
        drop(lossy);
        // All packets are lost for several timers.
        let before = network_tcp(&network).timeouts;
        let lossy = mains.map(|main| loss(main, 256));
        connection.sender.write_all(&[7; 1000]).unwrap();
        let deadline = Instant::now() + PATIENCE;
        while network_tcp(&network).timeouts < before + 3 {
            assert!(Instant::now() < deadline, "too few retransmission timeouts");
            std::thread::sleep(Duration::from_millis(20));
        }
        drop(lossy);
        connection.receiver.read_exact(&mut [0; 1000]).unwrap();
        connection.exchange_messages(1);
        // Wait for the delayed last acknowledgement.
        std::thread::sleep(Duration::from_millis(500));

        let (of_network, (pod_counts, of_ss)) = while_quiet(
            || network_tcp(&network),
            || {
                (
                    counted(&kernel, &mut counter, pods),
                    connection.ss(Some(&network)),
                )
            },
        );
        let wanted = gained(handshake_counts, of_network);
        assert_eq!(sum(pod_counts), wanted, "{host}: {pod_counts:?}");
        assert!(
            wanted.retransmitted > 5 && wanted.timeouts >= 3,
            "{wanted:?}"
        );
        for ((pod, before), after) in pod_counts.iter().zip(handshake_ss).zip(of_ss) {
            let total = i64::try_from(pod.sent + pod.retransmitted).unwrap();
            let retransmitted = i64::try_from(pod.retransmitted).unwrap();
            assert_eq!(
                [total, retransmitted],
                [after[0] - before[0], after[1] - before[1]],
                "{host}: {pod_counts:?}"
            );
        }
        assert!(
            pod_counts[0].retransmitted > 0 && pod_counts[0].timeouts > 0,
            "{pod_counts:?}"
        );

        connection.sender.shutdown(Shutdown::Both).unwrap();
        assert_eq!(connection.receiver.read(&mut [0; 1]).unwrap(), 0);
    }
}

const FAMILIES: [&str; 3] = [
    "pinfold_pod_tcp_sent_segments_total",
    "pinfold_pod_tcp_retransmitted_segments_total",
    "pinfold_pod_tcp_timeouts_total",
];

/// The agent on a node with two pods on the node's network, a pod with a network namespace, and traffic outside of
/// pods.
#[test]
fn with_sockets_enabled_pods_on_the_nodes_network_have_segment_metrics() {
    let Some(kernel) = kernel_tests() else { return };
    let mut tree = kernel.tree();
    let manifests = Manifests::new();
    let own_network = NetworkSwitch::new()
        .unwrap()
        .join(Ipv4Addr::new(10, 82, 0, 1))
        .unwrap();
    let mut mains = Vec::new();
    for (name, network) in [("one", None), ("two", None), ("own", Some(&own_network))] {
        let text = best_effort(name, name);
        let text = if network.is_some() {
            text
        } else {
            text.replace("spec:\n", "spec:\n  hostNetwork: true\n")
        };
        manifests.put(&format!("{name}.yaml"), &text);
        let pod = tree.pod("besteffort", name);
        let main = tree.container(&pod, &format!("{name}-main"));
        tree.start_in(&main, network);
        mains.push(main);
    }
    let [one, two, separate] = [0, 1, 2].map(|at| mains[at].as_str());
    let outside = tree.make(&format!("{}/beside", tree.path.rsplit_once('/').unwrap().0));
    let host = IpAddr::V4(Ipv4Addr::LOCALHOST);
    // The connection exists before the counting programs.
    let mut connection = Connection::new(None, [one, two], host);
    let mut outside_connection = Connection::new(None, [&outside, &outside], host);
    connection.send(1000);
    let before = connection.ss(None);

    let settings = Settings::new(&tree.path, &manifests, &kernel.first());
    let agent = settings.clone().with(&["--sockets"]).start();
    agent.eventually("all containers run", |status| {
        let containers = status["containers"].as_array().unwrap();
        containers.len() == 3 && containers.iter().all(|entry| entry["running"] == true)
    });
    let lossy = [one, two, &outside].map(|cgroup| loss(cgroup, 8));
    connection.send(SENT);
    connection.exchange_messages(100);
    // Which packets are lost is random.
    while connection.ss(None)[0][1] == before[0][1] {
        connection.exchange_messages(10);
    }
    outside_connection.send(SENT);
    drop(lossy);
    connection.exchange_messages(1);
    Connection::new(Some(&own_network), [separate, separate], host).exchange_messages(10);
    let read = || (connection.ss(None), network_tcp(&own_network));
    let ((of_ss, of_network), text) = while_quiet(read, || {
        // Wait for the delayed last acknowledgement. Scrapes within a second share a collection.
        std::thread::sleep(Duration::from_millis(1100));
        agent.get("/metrics").body
    });
    let exported = |pod: &str| {
        FAMILIES.map(|name| metric(&text, name, &[("namespace", "train"), ("pod", pod)]))
    };
    for (pod, at) in [("one", 0), ("two", 1)] {
        let gained: [i64; 2] = std::array::from_fn(|which| of_ss[at][which] - before[at][which]);
        let [sent, retransmitted, timeouts] = exported(pod).map(Option::unwrap);
        assert_eq!(
            [sent + retransmitted, retransmitted],
            gained.map(|number| number as f64),
            "{pod}"
        );
        assert!(
            timeouts <= retransmitted,
            "{pod}: {timeouts} timeouts, {retransmitted} retransmitted segments"
        );
    }
    assert!(exported("one")[1].unwrap() > 0.0);
    let SocketTcpCounts {
        sent,
        retransmitted,
        timeouts,
    } = of_network;
    assert_eq!(
        exported("own"),
        [sent, retransmitted, timeouts].map(|number| Some(number as f64))
    );
    for family in FAMILIES {
        assert_eq!(
            text.matches(&format!("# TYPE {family} counter")).count(),
            1,
            "{family}"
        );
    }
    agent.stop();

    let agent = settings.start();
    agent.eventually("all containers run", |status| {
        status["containers"].as_array().unwrap().len() == 3
    });
    let text = agent.get("/metrics").body;
    for pod in ["one", "two"] {
        for family in FAMILIES {
            assert_eq!(
                metric(&text, family, &[("namespace", "train"), ("pod", pod)]),
                None,
                "{pod}"
            );
        }
    }
    agent.stop();
}
