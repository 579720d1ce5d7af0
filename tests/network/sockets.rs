//! Socket bytes by pod, counted by BPF programs.

#![allow(
    unsafe_code,
    reason = "the test attaches a foreign BPF program with the system call"
)]

use std::collections::HashSet;
use std::fs::File;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use nix::libc;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use pinfold::cpu::CpuSet;
use pinfold::host::bpf::Direction;
use pinfold::host::bpf::sockets::{
    DEFAULT_ENTRIES, SocketCounter, SocketSample, SocketTcpCounts, SocketTraffic, TrafficCount,
};
use pinfold::host::netns::Netns;
use pinfold::host::network_switch::NetworkSwitch;
use pinfold::host::proc::Proc;
use pinfold::metrics::{Format, Sources};
use pinfold::pin::{Enforcement, EnforcementCause, Snapshot};

use crate::agent::{Agent, Manifests, Settings, best_effort};
use crate::kernel::{Kernel, Tree, kernel_tests};
use crate::traffic::{DATAGRAMS, STREAM, tcp, tcp_counts, udp, while_quiet};

const V4: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const V6: IpAddr = IpAddr::V6(Ipv6Addr::LOCALHOST);

fn counter(tree: &Tree<'_>) -> SocketCounter {
    SocketCounter::new(
        Path::new("/sys/fs/cgroup"),
        std::slice::from_ref(&tree.path),
        DEFAULT_ENTRIES,
    )
    .unwrap()
}

fn sample(kernel: &Kernel, counter: &mut SocketCounter, pods: &[&str]) -> SocketSample {
    counter
        .sample(&kernel.cgroups, &HashSet::from_iter(pods.iter().copied()))
        .unwrap()
}

/// The expected counts of [`udp`] with `headers` bytes of headers in each packet.
fn datagrams(headers: u64) -> SocketTraffic {
    let (count, size, replies, reply) = DATAGRAMS;
    let sum = |packets, payload: u64| TrafficCount {
        bytes: packets * (payload + headers),
        packets,
    };
    SocketTraffic {
        receive: sum(replies, reply),
        transmit: sum(count, size),
        tcp: SocketTcpCounts::default(),
    }
}

/// The difference between two samples.
fn gained(before: SocketTraffic, after: SocketTraffic) -> SocketTraffic {
    let sum = |before: TrafficCount, after: TrafficCount| TrafficCount {
        bytes: after.bytes - before.bytes,
        packets: after.packets - before.packets,
    };
    let tcp = SocketTcpCounts {
        sent: after.tcp.sent - before.tcp.sent,
        retransmitted: after.tcp.retransmitted - before.tcp.retransmitted,
        timeouts: after.tcp.timeouts - before.tcp.timeouts,
    };
    let (receive, transmit) = (
        sum(before.receive, after.receive),
        sum(before.transmit, after.transmit),
    );
    SocketTraffic {
        receive,
        transmit,
        tcp,
    }
}

/// A tree's directory in the cgroup v2 hierarchy.
pub(crate) fn unified(tree: &str) -> PathBuf {
    let root = Path::new("/sys/fs/cgroup");
    let hybrid = root.join("unified");
    if hybrid.exists() {
        hybrid.join(tree)
    } else {
        root.join(tree)
    }
}

fn attached(tree: &str) -> [u32; 2] {
    let directory = File::open(unified(tree)).unwrap();
    [Direction::Ingress, Direction::Egress]
        .map(|direction| direction.attached(directory.as_fd()).unwrap())
}

#[test]
fn datagrams_are_counted_to_the_byte() {
    let Some(kernel) = kernel_tests() else { return };
    let tree = kernel.tree();
    let mut counter = counter(&tree);
    assert_eq!(attached(&tree.path), [1, 1]);
    // A Guaranteed pod, a pod in a QoS class, and a pod without traffic.
    let pods = [
        tree.pod("", "one"),
        tree.pod("burstable", "two"),
        tree.pod("besteffort", "three"),
    ];
    let [one, two, silent] = pods.each_ref().map(String::as_str);
    for (pod, host) in [(one, V4), (two, V6)] {
        let main = tree.container(pod, "main");
        udp(&kernel, &main, None, host);
    }
    let counts = sample(&kernel, &mut counter, &[one, two, silent]);
    assert_eq!(counts.pods[one], datagrams(20 + 8));
    assert_eq!(counts.pods[two], datagrams(40 + 8));
    assert_eq!(counts.pods[silent], SocketTraffic::default());
    assert!(!counts.overflowed);
    drop(counter);
    assert_eq!(attached(&tree.path), [0, 0]);
}

/// A foreign program, attached exclusively, so that the cgroup accepts no other until the drop.
struct Exclusive {
    cgroup: File,
    program: OwnedFd,
}

// === impl Exclusive ===

impl Exclusive {
    fn attach(cgroup: &Path) -> Self {
        // The program returns 1: every packet passes.
        let instructions: [u64; 2] = [0x0000_0001_0000_00b7, 0x95];
        let license = c"GPL";
        let mut load = [0_u64; 6];
        load[0] = 8 | (instructions.len() as u64) << 32;
        load[1] = instructions.as_ptr() as u64;
        load[2] = license.as_ptr() as u64;
        let program = bpf(5, &mut load);
        // SAFETY: the kernel has just made this descriptor.
        let program = unsafe { OwnedFd::from_raw_fd(program) };
        let exclusive = Self {
            cgroup: File::open(cgroup).unwrap(),
            program,
        };
        exclusive.call(8);
        exclusive
    }

    /// Attaches (8) or detaches (9) the program, at ingress.
    fn call(&self, command: i64) {
        let [cgroup, program] = [self.cgroup.as_raw_fd(), self.program.as_raw_fd()];
        bpf(
            command,
            &mut [
                u64::from(cgroup.cast_unsigned()) | u64::from(program.cast_unsigned()) << 32,
                0,
            ],
        );
    }
}

impl Drop for Exclusive {
    fn drop(&mut self) {
        self.call(9);
    }
}

/// Calls a BPF command.
fn bpf(command: i64, arguments: &mut [u64]) -> i32 {
    // SAFETY: the kernel reads and writes the arguments, and memory to which they point and that outlives the call.
    let returned = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            command,
            arguments.as_mut_ptr(),
            size_of_val(arguments),
        )
    };
    let error = std::io::Error::last_os_error();
    assert!(returned >= 0, "BPF command {command}: {error}");
    i32::try_from(returned).unwrap()
}

#[test]
fn a_conflicting_program_is_reported_and_counting_starts_after_its_removal() {
    let Some(kernel) = kernel_tests() else { return };
    let tree = kernel.tree();
    let conflicting = Exclusive::attach(&unified(&tree.path));
    let start_counter = || {
        SocketCounter::new(
            Path::new("/sys/fs/cgroup"),
            std::slice::from_ref(&tree.path),
            DEFAULT_ENTRIES,
        )
    };
    let error = start_counter().unwrap_err();
    let message = error.to_string();
    assert!(
        message.contains("another program") && !message.contains("CAP_BPF"),
        "{message}"
    );
    assert!(!error.is_terminal(), "a later scrape tries again");
    drop(conflicting);
    start_counter().unwrap();
}

#[test]
fn streams_are_counted_with_packet_headers() {
    let Some(kernel) = kernel_tests() else { return };
    let tree = kernel.tree();
    let mut counter = counter(&tree);
    let pod = tree.pod("burstable", "uid");
    let main = tree.container(&pod, "main");
    // A private loopback, so that the number of retransmissions is known.
    let network = NetworkSwitch::new()
        .unwrap()
        .join(Ipv4Addr::new(10, 80, 0, 1))
        .unwrap();
    let mut before = SocketTraffic::default();
    for (host, least) in [(V4, 20 + 20), (V6, 40 + 20)] {
        tcp(&kernel, &main, Some((&network, &network)), host);
        let retransmitted = own_tcp(&network).retransmitted * 65536;
        let after = sample(&kernel, &mut counter, &[&pod]).pods[&pod];
        let SocketTraffic {
            receive, transmit, ..
        } = gained(before, after);
        for (sum, payload) in [(transmit, STREAM.0), (receive, STREAM.1)] {
            assert!(sum.packets > payload / 65536, "{sum:?}");
            let headers = sum.bytes - payload;
            // A packet has at most 40 bytes of TCP options.
            let most = sum.packets * (least + 40) + retransmitted;
            assert!(
                headers > least && headers <= most,
                "{host}: {sum:?}, {retransmitted} bytes retransmitted"
            );
        }
        before = after;
    }
}

/// Compares with the namespace's own TCP and interface counters.
#[test]
fn counts_match_the_interface_of_the_namespace() {
    let Some(kernel) = kernel_tests() else { return };
    let tree = kernel.tree();
    let mut counter = counter(&tree);
    let mut switch = NetworkSwitch::new().unwrap();
    let [own, peer] = [1, 2].map(|host| Ipv4Addr::new(10, 79, 0, host));
    let (own_network, peer_network) = (switch.join(own).unwrap(), switch.join(peer).unwrap());
    let pod = tree.pod("", "uid");
    let main = tree.container(&pod, "main");
    let mut counts = || sample(&kernel, &mut counter, &[&pod]).pods[&pod];

    let before = interface(&own_network);
    udp(
        &kernel,
        &main,
        Some((&own_network, &peer_network)),
        peer.into(),
    );
    assert_eq!(counts(), datagrams(20 + 8));
    let interface_bytes: [u64; 2] =
        std::array::from_fn(|at| interface(&own_network)[at] - before[at]);
    for (on_interface, on_socket) in interface_bytes
        .into_iter()
        .zip([counts().receive, counts().transmit])
    {
        // The interface counts 14 bytes of header more for each packet, and a few packets without a socket (ARP,
        // neighbours of IPv6).
        let extra = on_interface - on_socket.bytes - 14 * on_socket.packets;
        assert!(
            extra < 2000,
            "{on_interface} bytes on the interface, {on_socket:?} on the sockets"
        );
    }

    let before = counts();
    tcp(
        &kernel,
        &main,
        Some((&own_network, &peer_network)),
        peer.into(),
    );
    let (sent, counted) = while_quiet(|| own_tcp(&own_network), &mut counts);
    let gained = gained(before, counted);
    assert_eq!(
        gained.transmit.packets,
        sent.sent + sent.retransmitted,
        "{gained:?}"
    );
    assert!(gained.transmit.packets > STREAM.0 / 1500, "{gained:?}");
    assert!(gained.receive.packets > STREAM.1 / 1500, "{gained:?}");
}

/// TCP's own counts in a namespace.
fn own_tcp(network: &Netns) -> SocketTcpCounts {
    network
        .run(|| tcp_counts(nix::unistd::gettid().as_raw()))
        .unwrap()
}

/// Bytes that `eth0` has received and sent.
fn interface(network: &Netns) -> [u64; 2] {
    let read = || std::fs::read_to_string("/proc/thread-self/net/dev").unwrap();
    let text = network.run(read).unwrap();
    let line = text
        .lines()
        .find_map(|line| line.trim().strip_prefix("eth0:"))
        .unwrap();
    let numbers: Vec<u64> = line
        .split_whitespace()
        .map(|number| number.parse().unwrap())
        .collect();
    [numbers[0], numbers[8]]
}

#[test]
fn counts_survive_containers_and_end_with_pods() {
    let Some(kernel) = kernel_tests() else { return };
    let mut tree = kernel.tree();
    let mut counter = counter(&tree);
    let pods = [tree.pod("", "one"), tree.pod("burstable", "two")];
    let [one, two] = pods.each_ref().map(String::as_str);
    let both = [one, two];
    let once = datagrams(28);
    for round in 1..=3 {
        for pod in both {
            let container = tree.container(pod, &format!("main-{round}"));
            udp(&kernel, &container, None, V4);
            tree.remove(&container);
        }
        // Each container is gone before the first sample.
        for pod in both {
            let counts = sample(&kernel, &mut counter, &both).pods[pod];
            let multiplied = |sum: TrafficCount| TrafficCount {
                bytes: round * sum.bytes,
                packets: round * sum.packets,
            };
            let wanted = SocketTraffic {
                receive: multiplied(once.receive),
                transmit: multiplied(once.transmit),
                ..once
            };
            assert_eq!(counts, wanted, "{pod} in round {round}");
        }
    }
    // A pod without a request in this sample keeps the earlier counts.
    assert!(sample(&kernel, &mut counter, &[one]).pods.len() == 1);
    let all = sample(&kernel, &mut counter, &both);
    assert_eq!(all.pods[two].transmit.packets, 3 * once.transmit.packets);
    assert_eq!(
        all.entries, 4,
        "three containers of the first pod, and the second pod"
    );

    tree.remove(two);
    sample(&kernel, &mut counter, &both);
    assert_eq!(sample(&kernel, &mut counter, &both).entries, 3);
    // A new pod with the name of a removed pod starts at zero.
    let again = tree.pod("burstable", "two");
    assert_eq!(
        sample(&kernel, &mut counter, &both).pods[again.as_str()],
        SocketTraffic::default()
    );

    // The tree itself is removed and made again.
    let tree_path = tree.path.clone();
    tree.remove(&tree_path);
    counter.attach().unwrap();
    assert!(sample(&kernel, &mut counter, &both).pods.is_empty());
    for path in [tree_path.as_str(), &format!("{tree_path}/burstable"), two] {
        tree.make(path);
    }
    assert!(
        sample(&kernel, &mut counter, &both).pods.is_empty(),
        "the new tree is counted before the attachment"
    );
    counter.attach().unwrap();
    let main = tree.container(two, "main");
    udp(&kernel, &main, None, V4);
    assert_eq!(sample(&kernel, &mut counter, &both).pods[two], once);
}

#[test]
fn a_pods_counts_include_all_removed_containers() {
    let Some(kernel) = kernel_tests() else { return };
    let mut tree = kernel.tree();
    let mut counter = counter(&tree);
    let pod = tree.pod("", "uid");
    let rounds = 12;
    for round in 0..rounds {
        let container = tree.container(&pod, &format!("main-{round}"));
        udp(&kernel, &container, None, V4);
        tree.remove(&container);
    }
    let once = datagrams(28);
    let multiplied = |rounds: u64| {
        let sum = |sum: TrafficCount| TrafficCount {
            bytes: rounds * sum.bytes,
            packets: rounds * sum.packets,
        };
        SocketTraffic {
            receive: sum(once.receive),
            transmit: sum(once.transmit),
            ..once
        }
    };
    let mut entries = Vec::new();
    for _ in 0..4 {
        let counts = sample(&kernel, &mut counter, &[&pod]);
        assert_eq!(counts.pods[&pod], multiplied(rounds), "{entries:?}");
        entries.push(counts.entries);
    }
    assert_eq!(
        entries,
        [12, 12, 0, 0],
        "two samples with separate entries, then merged entries"
    );
    // A running container's counts continue after the merge of removed containers.
    let lasting = tree.container(&pod, "lasting");
    udp(&kernel, &lasting, None, V4);
    assert_eq!(
        sample(&kernel, &mut counter, &[&pod]).pods[&pod],
        multiplied(rounds + 1)
    );
    // A pod's counts end with the pod.
    tree.remove(&pod);
    sample(&kernel, &mut counter, &[&pod]);
    let again = tree.pod("", "uid");
    assert_eq!(
        sample(&kernel, &mut counter, &[&again]).pods[&again],
        SocketTraffic::default()
    );
}

/// Set for the second start of the test program, with too few file descriptors.
const FEW_DESCRIPTORS: &str = "PINFOLD_TEST_SHORT";

#[test]
fn a_start_without_file_descriptors_is_retried() {
    let Some(kernel) = kernel_tests() else { return };
    if std::env::var_os(FEW_DESCRIPTORS).is_some() {
        let tree = kernel.tree();
        let sources = Sources::new(
            kernel.cgroups.clone(),
            Proc::new(Path::new("/")),
            Path::new("/"),
        );
        let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        setrlimit(Resource::RLIMIT_NOFILE, 0, hard).unwrap();
        let sources = sources.with_sockets(
            Path::new("/sys/fs/cgroup"),
            std::slice::from_ref(&tree.path),
        );
        let scrape = || sources.collect(&empty_snapshot()).text(Format::Text);
        let success = |text: &str| {
            crate::agent::metric(
                text,
                "pinfold_collector_success",
                &[("collector", "sockets")],
            )
        };
        let text = scrape();
        assert_eq!(success(&text), Some(0.0));
        assert!(
            !text.contains("pinfold_collector_unsupported{collector=\"sockets\""),
            "{text}"
        );
        setrlimit(Resource::RLIMIT_NOFILE, soft, hard).unwrap();
        assert_eq!(success(&scrape()), Some(1.0));
        assert_eq!(attached(&tree.path), [1, 1]);
        return;
    }
    let output = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "sockets::a_start_without_file_descriptors_is_retried",
            "--nocapture",
        ])
        .env(FEW_DESCRIPTORS, "1")
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// A snapshot of a node without pods.
fn empty_snapshot() -> Snapshot {
    Snapshot {
        enforcement: Enforcement::Observe,
        enforcement_cause: EnforcementCause::Configuration,
        enforcement_reason: String::new(),
        placement_source: pinfold::pin::PlacementSource::Pinfold,
        online: CpuSet::new(),
        reserved: CpuSet::new(),
        shared: CpuSet::new(),
        exclusive: CpuSet::new(),
        withheld: CpuSet::new(),
        held_by_others: CpuSet::new(),
        lost: CpuSet::new(),
        layout: std::sync::Arc::default(),
        cpu_isolation: None,
        containers: Vec::new(),
        unknown_owners: Vec::new(),
        drift: Vec::new(),
        unexplained: Vec::new(),
        errors: Vec::new(),
        pods_listed: true,
    }
}

#[test]
fn a_full_map_is_reported_as_overflow() {
    let Some(kernel) = kernel_tests() else { return };
    let tree = kernel.tree();
    let mut counter = SocketCounter::new(
        Path::new("/sys/fs/cgroup"),
        std::slice::from_ref(&tree.path),
        1,
    )
    .unwrap();
    let pods = [tree.pod("burstable", "one"), tree.pod("burstable", "two")];
    let paths: Vec<&str> = pods.iter().map(String::as_str).collect();
    for (pod, overflowed) in pods.iter().zip([false, true]) {
        let main = tree.container(pod, "main");
        udp(&kernel, &main, None, V4);
        assert_eq!(
            sample(&kernel, &mut counter, &paths).overflowed,
            overflowed,
            "{pod}"
        );
    }
    assert_eq!(
        sample(&kernel, &mut counter, &paths).pods[paths[0]],
        datagrams(28)
    );
}

/// Set for the second start of the test program, with fewer capabilities.
const FEW_CAPABILITIES: &str = "PINFOLD_TEST_REFUSED";

#[test]
fn without_the_capabilities_the_reason_names_them() {
    let Some(kernel) = kernel_tests() else { return };
    if std::env::var_os(FEW_CAPABILITIES).is_some() {
        let tree = kernel.tree();
        let error = SocketCounter::new(
            Path::new("/sys/fs/cgroup"),
            std::slice::from_ref(&tree.path),
            DEFAULT_ENTRIES,
        )
        .unwrap_err();
        assert!(
            error.is_terminal() && error.to_string().contains("CAP_BPF and CAP_NET_ADMIN"),
            "{error}"
        );
        return;
    }
    let name = "sockets::without_the_capabilities_the_reason_names_them";
    // Loading needs CAP_BPF, attaching needs CAP_NET_ADMIN.
    for dropped in ["-sys_admin,-bpf", "-sys_admin,-net_admin"] {
        let output = Command::new("setpriv")
            .args([&format!("--bounding-set={dropped}"), "--inh-caps=-all"])
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", name, "--nocapture"])
            .env(FEW_CAPABILITIES, "1")
            .output()
            .unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{dropped}: {stderr}");
    }
}

const BYTES: [&str; 2] = [
    "pinfold_pod_network_socket_receive_bytes_total",
    "pinfold_pod_network_socket_transmit_bytes_total",
];

fn bytes(agent: &Agent, pod: &str) -> [Option<f64>; 2] {
    let text = agent.get("/metrics").body;
    BYTES.map(|name| crate::agent::metric(&text, name, &[("namespace", "train"), ("pod", pod)]))
}

/// The agent on a node with a pod on the node's own network.
#[test]
fn with_sockets_enabled_pods_on_the_nodes_network_have_byte_metrics() {
    let Some(kernel) = kernel_tests() else { return };
    let mut tree = kernel.tree();
    let pods = Manifests::new();
    pods.put(
        "a.yaml",
        &best_effort("a", "uid-a").replace("spec:\n", "spec:\n  hostNetwork: true\n"),
    );
    pods.put("b.yaml", &best_effort("b", "uid-b"));
    let settings = Settings::new(&tree.path, &pods, &kernel.first());
    let mains = ["uid-a", "uid-b"].map(|uid| {
        let pod = tree.pod("besteffort", uid);
        let main = tree.container(&pod, &format!("{uid}-main"));
        tree.start(&main);
        main
    });
    let wait_until_both_run = |agent: &Agent| {
        agent.eventually("both containers run", |status| {
            let containers = status["containers"].as_array().unwrap();
            containers.len() == 2 && containers.iter().all(|entry| entry["running"] == true)
        });
    };
    let agent = settings.start();
    wait_until_both_run(&agent);
    assert_eq!(
        attached(&tree.path),
        [0, 0],
        "programs are attached without --sockets"
    );
    assert_eq!(bytes(&agent, "a"), [None, None]);
    assert!(!agent.get("/metrics").body.contains("collector=\"sockets\""));
    agent.stop();

    let agent = settings.clone().with(&["--sockets"]).start();
    wait_until_both_run(&agent);
    assert_eq!(attached(&tree.path), [1, 1]);
    assert_eq!(bytes(&agent, "a"), [Some(0.0); 2]);
    udp(&kernel, &mains[0], None, V4);
    let wanted = datagrams(28);
    let wanted = [wanted.receive, wanted.transmit].map(|sum| Some(sum.bytes as f64));
    // Scrapes within a second share a collection.
    std::thread::sleep(Duration::from_millis(1100));
    assert_eq!(bytes(&agent, "a"), wanted);
    assert_eq!(bytes(&agent, "b"), [Some(0.0); 2]);
    let success = agent.metric("pinfold_collector_success", &[("collector", "sockets")]);
    assert_eq!(success, Some(1.0));

    // A killed agent leaves no attached program.
    agent.kill();
    let deadline = Instant::now() + Duration::from_secs(60);
    while attached(&tree.path) != [0, 0] {
        assert!(
            Instant::now() < deadline,
            "the programs are still attached after the agent's end"
        );
        std::thread::sleep(Duration::from_millis(10));
    }
}
