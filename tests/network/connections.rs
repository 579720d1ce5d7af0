//! TCP connections of pods, compared with `ss` and /proc.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::time::{Duration, Instant};

use pinfold::host::netns::Netns;
use pinfold::host::network_switch::NetworkSwitch;
use pinfold::host::spawn::Launcher;

use crate::agent::{Agent, Manifests, Settings, best_effort, metric, patience};
use crate::kernel::kernel_tests;
use crate::traffic::start;

const CONNECTIONS: &str = "pinfold_pod_tcp_connections";
const TIME_FAMILIES: [(&str, &str); 3] = [
    ("busy", "pinfold_pod_tcp_busy_seconds_total"),
    ("rwnd_limited", "pinfold_pod_tcp_rwnd_limited_seconds_total"),
    (
        "sndbuf_limited",
        "pinfold_pod_tcp_sndbuf_limited_seconds_total",
    ),
];

/// Times of all connections in a namespace in seconds, from `ss`.
fn ss_times(network: &Netns) -> BTreeMap<&'static str, f64> {
    let output = network
        .run(|| Command::new("ss").args(["-tinHO"]).output().unwrap())
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let mut times: BTreeMap<&str, f64> =
        TIME_FAMILIES.iter().map(|(name, _)| (*name, 0.0)).collect();
    for (name, value) in text
        .split_whitespace()
        .filter_map(|word| word.split_once(':'))
    {
        if let Some(time) = times.get_mut(name) {
            *time += value.split("ms").next().unwrap().parse::<f64>().unwrap() / 1000.0;
        }
    }
    times
}

/// The number of connections in a state in a namespace, by the kernel's number of the state.
fn in_state(network: &Netns, state: &str) -> usize {
    let text = network
        .run(|| std::fs::read_to_string("/proc/thread-self/net/tcp").unwrap())
        .unwrap();
    text.lines()
        .skip(1)
        .filter(|line| line.split_whitespace().nth(3) == Some(state))
        .count()
}

fn pod_metric(text: &str, name: &str, pod: &str, more: &[(&str, &str)]) -> Option<f64> {
    metric(
        text,
        name,
        &[&[("namespace", "train"), ("pod", pod)], more].concat(),
    )
}

fn times(text: &str, pod: &str) -> BTreeMap<&'static str, f64> {
    TIME_FAMILIES
        .iter()
        .filter_map(|(name, family)| Some((*name, pod_metric(text, family, pod, &[])?)))
        .collect()
}

/// Waits until a pod has the wanted number of connections in a state; `None` waits for no sample.
pub(super) fn wait_for_connections(
    agent: &Agent,
    pod: &str,
    state: &str,
    wanted: Option<f64>,
) -> String {
    let deadline = Instant::now() + patience();
    loop {
        let text = agent.get("/metrics").body;
        let count = pod_metric(&text, CONNECTIONS, pod, &[("state", state)]);
        if count == wanted {
            return text;
        }
        assert!(
            Instant::now() < deadline,
            "{pod}: {count:?} {state} connections, expected {wanted:?}\n{}",
            agent.log()
        );
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn wait_until_all_run(agent: &Agent, count: usize) {
    agent.eventually("all containers run", |status| {
        let containers = status["containers"].as_array().unwrap();
        containers.len() == count && containers.iter().all(|entry| entry["running"] == true)
    });
}

/// A new connection's client and server streams.
fn connect(listener: &TcpListener, inside: &Netns) -> (TcpStream, TcpStream) {
    let address = listener.local_addr().unwrap();
    let client = inside.run(|| TcpStream::connect(address).unwrap()).unwrap();
    (client, listener.accept().unwrap().0)
}

/// Sends until the receiver's buffer is full, so that for a while no byte finds room.
fn fill(client: &mut TcpStream) {
    client.set_nonblocking(true).unwrap();
    let mut attempts = 0;
    while attempts < 20 {
        match client.write(&[7; 65536]) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                attempts += 1;
                std::thread::sleep(Duration::from_millis(10));
            }
            result => {
                assert!(result.unwrap() > 0);
                attempts = 0;
            }
        }
    }
}

/// Waits for a scrape with a sample that is newer than the given times, and with more than a second of waiting for the
/// receiver. Returns the scrape and the times of `own`.
fn newer_sample(
    agent: &Agent,
    before: &BTreeMap<&'static str, f64>,
) -> (String, BTreeMap<&'static str, f64>) {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let text = agent.get("/metrics").body;
        let exported = times(&text, "own");
        let is_newer = before.iter().all(|(name, time)| {
            exported
                .get(name)
                .is_some_and(|newer| *time <= newer + 1e-9)
        });
        if is_newer && exported["rwnd_limited"] > 1.0 {
            return (text, exported);
        }
        assert!(Instant::now() < deadline, "{before:?} {exported:?}");
        std::thread::sleep(Duration::from_millis(200));
    }
}

#[test]
fn connection_metrics_match_ss() {
    let Some(kernel) = kernel_tests() else { return };
    let mut tree = kernel.tree();
    let manifests = Manifests::new();
    let mut switch = NetworkSwitch::new().unwrap();
    let [own, silent, peer] = [1, 2, 3].map(|host| Ipv4Addr::new(10, 81, 0, host));
    let [own_network, silent_network, peer_network] =
        [own, silent, peer].map(|address| switch.join(address).unwrap());
    for (name, network) in [("own", &own_network), ("silent", &silent_network)] {
        manifests.put(&format!("{name}.yaml"), &best_effort(name, name));
        let pod = tree.pod("besteffort", name);
        let main = tree.container(&pod, &format!("{name}-main"));
        tree.start_in(&main, Some(network));
    }
    let settings = Settings::new(&tree.path, &manifests, &kernel.first());
    let agent = settings.clone().with(&["--connection-interval=1s"]).start();
    wait_until_all_run(&agent, 2);
    wait_for_connections(&agent, "own", "established", Some(0.0));

    let listener = peer_network
        .run(|| TcpListener::bind((peer, 0)).unwrap())
        .unwrap();
    let (mut sender, mut receiver) = connect(&listener, &own_network);
    let (_idle, _idle_server) = connect(&listener, &own_network);
    let (mut full_sender, _full_receiver) = connect(&listener, &own_network);
    let reading = std::thread::spawn(move || {
        receiver.read_exact(&mut vec![0; 2_000_000]).unwrap();
        receiver
    });
    sender.write_all(&[7; 2_000_000]).unwrap();
    let receiver = reading.join().unwrap();
    fill(&mut full_sender);

    let before = ss_times(&own_network);
    let (text, exported) = newer_sample(&agent, &before);
    let after = ss_times(&own_network);
    for (name, _) in TIME_FAMILIES {
        // `ss` rounds to milliseconds for each of the three connections.
        assert!(
            exported[name] <= after[name] + 0.004,
            "{name}: {before:?} {exported:?} {after:?}"
        );
    }
    assert!(exported["busy"] >= exported["rwnd_limited"], "{exported:?}");
    assert_eq!(in_state(&own_network, "01"), 3);
    assert_eq!(
        pod_metric(&text, CONNECTIONS, "own", &[("state", "established")]),
        Some(3.0)
    );
    assert_eq!(
        pod_metric(&text, CONNECTIONS, "own", &[]),
        Some(3.0),
        "no other states: {text}"
    );
    assert_eq!(pod_metric(&text, CONNECTIONS, "silent", &[]), Some(0.0));
    let count = pod_metric(&text, "pinfold_pod_tcp_rtt_seconds_count", "own", &[]).unwrap();
    let sum = pod_metric(&text, "pinfold_pod_tcp_rtt_seconds_sum", "own", &[]).unwrap();
    let within = pod_metric(
        &text,
        "pinfold_pod_tcp_rtt_seconds_bucket",
        "own",
        &[("le", "0.25")],
    )
    .unwrap();
    // A round trip outside of the bucket, as on a machine that pauses, takes longer than 0.25 s.
    assert!(
        count >= 3.0 && sum > 0.0 && within <= count && sum >= 0.25 * (count - within),
        "{count} {sum} {within}"
    );
    assert!(within < count || sum <= 0.25 * count, "{count} {sum}");
    let success = metric(
        &text,
        "pinfold_collector_success",
        &[("collector", "connections")],
    );
    assert_eq!(success, Some(1.0));

    // The side that closes first keeps a connection in TIME_WAIT.
    drop(sender);
    drop(receiver);
    let text = wait_for_connections(&agent, "own", "time_wait", Some(1.0));
    assert_eq!(in_state(&own_network, "06"), 1);
    let later = times(&text, "own");
    assert!(
        exported.iter().all(|(name, time)| later[name] >= *time),
        "{exported:?} {later:?}"
    );
    drop((full_sender, _full_receiver, _idle, _idle_server));
    let text = wait_for_connections(&agent, "own", "established", Some(0.0));
    let last = times(&text, "own");
    assert!(
        later.iter().all(|(name, time)| last[name] >= *time),
        "{later:?} {last:?}"
    );
    agent.stop();

    // Without `--connection-interval` the agent samples no connections.
    let agent = settings.start();
    wait_until_all_run(&agent, 2);
    let text = agent.get("/metrics").body;
    assert!(
        !text.contains("collector=\"connections\"") && !text.contains(CONNECTIONS),
        "{text}"
    );
    agent.stop();
}

#[test]
fn on_the_nodes_network_a_sockets_cgroup_names_its_pod() {
    let Some(kernel) = kernel_tests() else { return };
    let tree = kernel.tree();
    let manifests = Manifests::new();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let SocketAddr::V4(address) = listener.local_addr().unwrap() else {
        panic!("the listener has no IPv4 address")
    };
    let launcher = Launcher::new().unwrap();
    let mut processes = Vec::new();
    let mut ends = Vec::new();
    for (name, count) in [("one", 1), ("two", 2), ("none", 0)] {
        let text = best_effort(name, name).replace("spec:\n", "spec:\n  hostNetwork: true\n");
        manifests.put(&format!("{name}.yaml"), &text);
        let pod = tree.pod("besteffort", name);
        let main = tree.container(&pod, &format!("{name}-main"));
        // A cgroup made by a program in the container: the cgroup's sockets belong to the pod, too.
        let nested = tree.make(&format!("{main}/below"));
        let script = format!(
            "for ((i = 0; i < {count}; i++)); do exec {{fd}}<>/dev/tcp/127.0.0.1/{}; printf hello >&$fd; done; exec sleep 600",
            address.port()
        );
        let cgroup = if name == "one" { &nested } else { &main };
        processes.push(start(&launcher, &kernel, cgroup, None, &script));
        for _ in 0..count {
            let (mut end, _) = listener.accept().unwrap();
            end.read_exact(&mut [0; 5]).unwrap();
            ends.push(end);
        }
    }
    let settings =
        Settings::new(&tree.path, &manifests, &kernel.first()).with(&["--connection-interval=1s"]);
    let agent = settings.start();
    wait_until_all_run(&agent, 3);
    for (pod, count) in [("one", 1.0), ("two", 2.0), ("none", 0.0)] {
        let text = wait_for_connections(&agent, pod, "established", Some(count));
        assert_eq!(
            pod_metric(&text, "pinfold_pod_tcp_rtt_seconds_count", pod, &[]),
            Some(0.0),
            "the round trips of {pod} were before the agent's first sample"
        );
        assert_eq!(
            pod_metric(&text, CONNECTIONS, pod, &[]),
            Some(count),
            "{pod}"
        );
    }
    let unsupported = agent.metric(
        "pinfold_collector_unsupported",
        &[("collector", "connections")],
    );
    assert_eq!(unsupported, None);
    agent.stop();
}

/// The agent's sampling must not keep a pod's namespace alive after the pod's end.
#[test]
fn a_namespace_ends_with_its_pod() {
    let Some(kernel) = kernel_tests() else { return };
    let mut tree = kernel.tree();
    let manifests = Manifests::new();
    let settings =
        Settings::new(&tree.path, &manifests, &kernel.first()).with(&["--connection-interval=1s"]);
    let agent = settings.start();
    let witness = Netns::new().unwrap();
    for round in 0..4 {
        let name = format!("p{round}");
        manifests.put(&format!("{name}.yaml"), &best_effort(&name, &name));
        let pod = tree.pod("besteffort", &name);
        let main = tree.container(&pod, &format!("{name}-main"));
        let network = Netns::new().unwrap();
        let pid = tree.start_in(&main, Some(&network));
        drop(network);
        // A veth interface disappears when the peer interface's namespace ends.
        let pair = format!("link add {name} type veth peer name eth0 netns {pid}");
        let ip = || Command::new("ip").args(pair.split(' ')).status().unwrap();
        assert!(witness.run(ip).unwrap().success());
        let exists = || {
            let text = witness
                .run(|| std::fs::read_to_string("/proc/thread-self/net/dev").unwrap())
                .unwrap();
            text.contains(&format!("{name}:"))
        };
        assert!(exists());
        wait_for_connections(&agent, &name, "established", Some(0.0));
        // Each round ends the pod at a different time between two samples.
        std::thread::sleep(Duration::from_millis(300 * round));
        tree.remove(&main);
        let since = Instant::now();
        while exists() {
            // The kernel alone may take seconds on a slow machine. A kept handle would last as long as the pod's manifest.
            assert!(
                since.elapsed() < Duration::from_secs(30),
                "the namespace of {name} still exists after the pod's end"
            );
            std::thread::sleep(Duration::from_millis(10));
        }
        manifests.remove(&format!("{name}.yaml"));
        wait_for_connections(&agent, &name, "established", None);
    }
    agent.stop();
}
