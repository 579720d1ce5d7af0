//! What TCP sends and sends again, by pod, where many pods share a network: counted by BPF programs, against the counters of
//! the network and against what `ss -i` tells of each connection.

use std::collections::HashSet;
use std::fs;
use std::fs::File;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use pinfold::host::bpf::{Direction, Link, Program};
use pinfold::host::netns::{Netns, Switch};
use pinfold::host::sockets::{DEFAULT_ENTRIES, SocketCounter, SocketTcpCounts};

use crate::agent::{Manifests, Settings, best_effort, metric};
use crate::kernel::{Kernel, Tree, kernel_tests};
use crate::sockets::unified;
use crate::traffic::tcp_counts;

/// How long the kernel may take for what it does after some timers.
const PATIENCE: Duration = Duration::from_secs(30);

/// Bytes that one pod sends another while some are lost.
const SENT: usize = 4_000_000;

/// Sockets that are made meanwhile belong to a cgroup, as if a process in it had made them.
fn within<T>(cgroup: &str, make: impl FnOnce() -> T) -> T {
    let own = fs::read_to_string("/proc/self/cgroup").unwrap();
    let own = own
        .lines()
        .find_map(|line| line.strip_prefix("0::/"))
        .unwrap();
    let enter = |cgroup: &str| {
        let procs = unified(cgroup).join("cgroup.procs");
        fs::write(procs, std::process::id().to_string()).unwrap();
    };
    enter(cgroup);
    let made = make();
    enter(own);
    made
}

/// Loses, of what the sockets of a cgroup are to receive, so many packets of 256, until it is dropped.
fn loss(cgroup: &str, of_256: u32) -> Link {
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

/// A connection from a pod to another.
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

    /// Sends so much, and waits until it has arrived.
    fn send(&mut self, bytes: usize) {
        let Self { sender, receiver } = self;
        std::thread::scope(|scope| {
            scope.spawn(|| sender.write_all(&vec![7; bytes]).unwrap());
            receiver.read_exact(&mut vec![0; bytes]).unwrap();
        });
    }

    /// Sends so many messages, each of which is answered.
    fn talk(&mut self, messages: usize) {
        let Self { sender, receiver } = self;
        let mut buffer = [0; 100];
        for _ in 0..messages {
            sender.write_all(&buffer).unwrap();
            receiver.read_exact(&mut buffer).unwrap();
            receiver.write_all(&buffer).unwrap();
            sender.read_exact(&mut buffer).unwrap();
        }
    }

    /// What `ss` tells of both ends: segments sent with those sent again, and those alone.
    fn ss(&self, network: Option<&Netns>) -> [[i64; 2]; 2] {
        let ports = [&self.sender, &self.receiver].map(|end| end.local_addr().unwrap().port());
        ports.map(|port| {
            let filter = format!("sport = :{port}");
            let ask = || {
                Command::new("ss")
                    .args(["-tinHO", &filter])
                    .output()
                    .unwrap()
            };
            let output = network.map_or_else(ask, |network| network.run(ask).unwrap());
            let text = String::from_utf8(output.stdout).unwrap();
            let number = |key: &str| {
                let value = text
                    .split_whitespace()
                    .find_map(|word| word.strip_prefix(key))?;
                Some(value.rsplit('/').next()?.parse::<i64>().unwrap())
            };
            // What is zero is left out.
            assert_eq!(text.lines().count(), 1, "{text}");
            ["segs_out:", "retrans:"].map(|key| number(key).unwrap_or(0))
        })
    }
}

fn counted(kernel: &Kernel, counter: &mut SocketCounter, pods: [&str; 2]) -> [SocketTcpCounts; 2] {
    let look = counter
        .sample(&kernel.cgroups, &HashSet::from(pods))
        .unwrap();
    assert!(!look.overflowed);
    pods.map(|pod| look.pods[pod].tcp)
}

fn sum([one, other]: [SocketTcpCounts; 2]) -> SocketTcpCounts {
    SocketTcpCounts {
        sent: one.sent + other.sent,
        retransmitted: one.retransmitted + other.retransmitted,
        timeouts: one.timeouts + other.timeouts,
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

/// What a network has counted.
fn network_tcp(network: &Netns) -> SocketTcpCounts {
    network
        .run(|| tcp_counts(nix::unistd::gettid().as_raw()))
        .unwrap()
}

/// Two pods alone in a network that is lossy: what is counted of both is what the network has counted.
#[test]
fn two_pods_in_a_lossy_network() {
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
    for (host, long) in [(v4, false), (v6, false), (v6, true)] {
        let network = Switch::new()
            .unwrap()
            .join(Ipv4Addr::new(10, 81, 0, 1))
            .unwrap();
        if long {
            // Longer than IP's header can say.
            let args = "link set dev lo gso_max_size 400000 gro_max_size 400000";
            let status = || Command::new("ip").args(args.split(' ')).status().unwrap();
            assert!(network.run(status).unwrap().success());
        }
        assert_eq!(network_tcp(&network), SocketTcpCounts::default());
        // Older kernels do not show a program how IPv6 answers who wants to connect: there it begins when that is over.
        let early = host.is_ipv4().then(|| counter(&tree));
        let mut connection = Connection::new(Some(&network), mains, host);
        let older = if early.is_some() {
            SocketTcpCounts::default()
        } else {
            network_tcp(&network)
        };
        // At this end the answer is older than the socket.
        let older_ends = if early.is_some() {
            [[0, 0], [-1, 0]]
        } else {
            connection.ss(Some(&network))
        };
        let mut counter = early.unwrap_or_else(|| counter(&tree));
        connection.send(SENT);
        std::thread::sleep(Duration::from_millis(500));
        let wanted = gained(older, network_tcp(&network));
        assert_eq!(
            sum(counted(&kernel, &mut counter, pods)),
            wanted,
            "{host}, nothing lost"
        );

        let lossy = mains.map(|main| loss(main, 8));
        connection.send(SENT);
        connection.talk(150);
        drop(lossy);
        // Nobody hears anything of the other for some timers.
        let before = network_tcp(&network).timeouts;
        let lossy = mains.map(|main| loss(main, 256));
        connection.sender.write_all(&[7; 1000]).unwrap();
        let deadline = Instant::now() + PATIENCE;
        while network_tcp(&network).timeouts < before + 3 {
            assert!(Instant::now() < deadline, "no timer has run out");
            std::thread::sleep(Duration::from_millis(20));
        }
        drop(lossy);
        connection.receiver.read_exact(&mut [0; 1000]).unwrap();
        connection.talk(1);
        // The last acknowledgement waits a moment for something to go with.
        std::thread::sleep(Duration::from_millis(500));

        let seen = counted(&kernel, &mut counter, pods);
        let wanted = gained(older, network_tcp(&network));
        assert_eq!(sum(seen), wanted, "{host}: {seen:?}");
        assert!(
            wanted.retransmitted > 5 && wanted.timeouts >= 3,
            "{wanted:?}"
        );
        for ((pod, before), after) in seen
            .iter()
            .zip(older_ends)
            .zip(connection.ss(Some(&network)))
        {
            let all = i64::try_from(pod.sent + pod.retransmitted).unwrap();
            let again = i64::try_from(pod.retransmitted).unwrap();
            assert_eq!(
                [all, again],
                [after[0] - before[0], after[1] - before[1]],
                "{host}: {seen:?}"
            );
        }
        assert!(
            seen[0].retransmitted > 0 && seen[0].timeouts > 0,
            "{seen:?}"
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

/// The agent on a node with pods on its network, one with a network of its own, and traffic that is no pod's.
#[test]
fn pods_on_the_nodes_network_have_segments_of_their_own_where_it_is_asked_for() {
    let Some(kernel) = kernel_tests() else { return };
    let mut tree = kernel.tree();
    let manifests = Manifests::new();
    let own = Switch::new()
        .unwrap()
        .join(Ipv4Addr::new(10, 82, 0, 1))
        .unwrap();
    let mut mains = Vec::new();
    for (name, network) in [("one", None), ("two", None), ("own", Some(&own))] {
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
    let [one, two, alone] = [0, 1, 2].map(|at| mains[at].as_str());
    let outside = tree.make(&format!("{}/beside", tree.path.rsplit_once('/').unwrap().0));
    let host = IpAddr::V4(Ipv4Addr::LOCALHOST);
    // Older than the programs that count.
    let mut connection = Connection::new(None, [one, two], host);
    let mut others = Connection::new(None, [&outside, &outside], host);
    connection.send(1000);
    let before = connection.ss(None);

    let settings = Settings::new(&tree.path, &manifests, &kernel.first());
    let agent = settings.clone().with(&["--sockets"]).start();
    agent.eventually("all run", |status| {
        let all = status["containers"].as_array().unwrap();
        all.len() == 3 && all.iter().all(|one| one["running"] == true)
    });
    let lossy = [one, two, &outside].map(|cgroup| loss(cgroup, 8));
    connection.send(SENT);
    connection.talk(100);
    others.send(SENT);
    drop(lossy);
    connection.talk(1);
    // The last acknowledgement waits a moment for something to go with; and scrapes within a second share what was collected.
    Connection::new(Some(&own), [alone, alone], host).talk(10);
    std::thread::sleep(Duration::from_millis(1100));
    let text = agent.get("/metrics").body;
    let seen = |pod: &str| {
        FAMILIES.map(|name| metric(&text, name, &[("namespace", "train"), ("pod", pod)]))
    };
    for (pod, at) in [("one", 0), ("two", 1)] {
        let gained: [i64; 2] =
            std::array::from_fn(|which| connection.ss(None)[at][which] - before[at][which]);
        let [sent, again, timeouts] = seen(pod).map(Option::unwrap);
        assert_eq!(
            [sent + again, again],
            gained.map(|number| number as f64),
            "{pod}"
        );
        assert!(
            timeouts <= again,
            "{pod}: {timeouts} timeouts, {again} sent again"
        );
    }
    assert!(seen("one")[1].unwrap() > 0.0);
    let SocketTcpCounts {
        sent,
        retransmitted,
        timeouts,
    } = network_tcp(&own);
    assert_eq!(
        seen("own"),
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
    agent.eventually("all run", |status| {
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
