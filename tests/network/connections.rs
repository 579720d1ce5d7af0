//! TCP connections of pods, against what `ss` and /proc tell of them.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::time::{Duration, Instant};

use pinfold::host::netns::{Netns, Switch};
use pinfold::host::spawn::Launcher;

use crate::agent::{Agent, Manifests, Settings, best_effort, metric, patience};
use crate::kernel::kernel_tests;
use crate::traffic::start;

const CONNECTIONS: &str = "pinfold_pod_tcp_connections";
const TIMES: [(&str, &str); 3] = [
    ("busy", "pinfold_pod_tcp_busy_seconds_total"),
    ("rwnd_limited", "pinfold_pod_tcp_rwnd_limited_seconds_total"),
    (
        "sndbuf_limited",
        "pinfold_pod_tcp_sndbuf_limited_seconds_total",
    ),
];

/// Looks come every second, and scrapes within a second share what was collected: what is seen after this long is newer.
const NEWER: Duration = Duration::from_millis(2300);

/// Seconds of all connections in a namespace, as `ss` tells them.
fn truth(network: &Netns) -> BTreeMap<&'static str, f64> {
    let output = network
        .run(|| Command::new("ss").args(["-tinHO"]).output().unwrap())
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let mut times: BTreeMap<&str, f64> = TIMES.iter().map(|(name, _)| (*name, 0.0)).collect();
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

/// How many connections in a namespace are in a state, by the kernel's number of it.
fn in_state(network: &Netns, state: &str) -> usize {
    let text = network
        .run(|| std::fs::read_to_string("/proc/thread-self/net/tcp").unwrap())
        .unwrap();
    text.lines()
        .skip(1)
        .filter(|line| line.split_whitespace().nth(3) == Some(state))
        .count()
}

fn of(text: &str, name: &str, pod: &str, more: &[(&str, &str)]) -> Option<f64> {
    metric(
        text,
        name,
        &[&[("namespace", "train"), ("pod", pod)], more].concat(),
    )
}

fn times(text: &str, pod: &str) -> BTreeMap<&'static str, f64> {
    TIMES
        .iter()
        .filter_map(|(name, family)| Some((*name, of(text, family, pod, &[])?)))
        .collect()
}

/// Waits until a pod has so many connections in a state; nothing for none at all.
fn until(agent: &Agent, pod: &str, state: &str, wanted: Option<f64>) -> String {
    let deadline = Instant::now() + patience();
    loop {
        let text = agent.get("/metrics").body;
        let seen = of(&text, CONNECTIONS, pod, &[("state", state)]);
        if seen == wanted {
            return text;
        }
        assert!(
            Instant::now() < deadline,
            "{pod}: {seen:?} {state}, not {wanted:?}\n{}",
            agent.log()
        );
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn all_run(agent: &Agent, count: usize) {
    agent.eventually("all run", |status| {
        let all = status["containers"].as_array().unwrap();
        all.len() == count && all.iter().all(|one| one["running"] == true)
    });
}

/// Both ends of a new connection.
fn connect(listener: &TcpListener, inside: &Netns) -> (TcpStream, TcpStream) {
    let address = listener.local_addr().unwrap();
    let client = inside.run(|| TcpStream::connect(address).unwrap()).unwrap();
    (client, listener.accept().unwrap().0)
}

/// Sends until the other end has no room for more.
fn fill(client: &mut TcpStream) {
    client.set_nonblocking(true).unwrap();
    let end = Instant::now() + Duration::from_millis(300);
    while Instant::now() < end {
        match client.write(&[7; 65536]) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                std::thread::sleep(Duration::from_millis(10));
            }
            written => assert!(written.unwrap() > 0),
        }
    }
}

#[test]
fn connections_are_told_as_the_kernel_tells_them() {
    let Some(kernel) = kernel_tests() else { return };
    let mut tree = kernel.tree();
    let manifests = Manifests::new();
    let mut switch = Switch::new().unwrap();
    let [own, silent, peer] = [1, 2, 3].map(|host| Ipv4Addr::new(10, 81, 0, host));
    let [inside, quiet, outside] = [own, silent, peer].map(|address| switch.join(address).unwrap());
    for (name, network) in [("own", &inside), ("silent", &quiet)] {
        manifests.put(&format!("{name}.yaml"), &best_effort(name, name));
        let pod = tree.pod("besteffort", name);
        let main = tree.container(&pod, &format!("{name}-main"));
        tree.start_in(&main, Some(network));
    }
    let settings = Settings::new(&tree.path, &manifests, &kernel.first());
    let agent = settings.clone().with(&["--connections=1"]).start();
    all_run(&agent, 2);
    until(&agent, "own", "established", Some(0.0));

    let listener = outside
        .run(|| TcpListener::bind((peer, 0)).unwrap())
        .unwrap();
    let (mut talks, mut hears) = connect(&listener, &inside);
    let (_idle, _other) = connect(&listener, &inside);
    let (mut stuck, _full) = connect(&listener, &inside);
    let reads = std::thread::spawn(move || {
        hears.read_exact(&mut vec![0; 2_000_000]).unwrap();
        hears
    });
    talks.write_all(&[7; 2_000_000]).unwrap();
    let hears = reads.join().unwrap();
    fill(&mut stuck);

    let before = truth(&inside);
    std::thread::sleep(NEWER);
    let text = agent.get("/metrics").body;
    let (seen, after) = (times(&text, "own"), truth(&inside));
    for (name, _) in TIMES {
        // It tells whole milliseconds, of three connections.
        assert!(
            before[name] <= seen[name] + 1e-9 && seen[name] <= after[name] + 0.004,
            "{name}: {before:?} {seen:?} {after:?}"
        );
    }
    assert!(
        seen["rwnd_limited"] > 1.0 && seen["busy"] >= seen["rwnd_limited"],
        "{seen:?}"
    );
    assert_eq!(in_state(&inside, "01"), 3);
    assert_eq!(
        of(&text, CONNECTIONS, "own", &[("state", "established")]),
        Some(3.0)
    );
    assert_eq!(
        of(&text, CONNECTIONS, "own", &[]),
        Some(3.0),
        "no other states: {text}"
    );
    assert_eq!(of(&text, CONNECTIONS, "silent", &[]), Some(0.0));
    let count = of(&text, "pinfold_pod_tcp_rtt_seconds_count", "own", &[]).unwrap();
    let sum = of(&text, "pinfold_pod_tcp_rtt_seconds_sum", "own", &[]).unwrap();
    let within = of(
        &text,
        "pinfold_pod_tcp_rtt_seconds_bucket",
        "own",
        &[("le", "0.25")],
    )
    .unwrap();
    assert!(
        count >= 3.0 && sum > 0.0 && within == count,
        "{count} {sum} {within}"
    );
    let success = metric(
        &text,
        "pinfold_collector_success",
        &[("collector", "connections")],
    );
    assert_eq!(success, Some(1.0));

    // Who closes first keeps a remnant.
    drop(talks);
    drop(hears);
    let text = until(&agent, "own", "time_wait", Some(1.0));
    assert_eq!(in_state(&inside, "06"), 1);
    let later = times(&text, "own");
    assert!(
        seen.iter().all(|(name, time)| later[name] >= *time),
        "{seen:?} {later:?}"
    );
    drop((stuck, _full, _idle, _other));
    let text = until(&agent, "own", "established", Some(0.0));
    let last = times(&text, "own");
    assert!(
        later.iter().all(|(name, time)| last[name] >= *time),
        "{later:?} {last:?}"
    );
    agent.stop();

    // Nobody looks where nobody has asked for it.
    let agent = settings.start();
    all_run(&agent, 2);
    let text = agent.get("/metrics").body;
    assert!(
        !text.contains("collector=\"connections\"") && !text.contains(CONNECTIONS),
        "{text}"
    );
    agent.stop();
}

#[test]
fn on_the_nodes_network_the_cgroup_of_a_socket_tells_whose_it_is() {
    let Some(kernel) = kernel_tests() else { return };
    let tree = kernel.tree();
    let manifests = Manifests::new();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let SocketAddr::V4(address) = listener.local_addr().unwrap() else {
        panic!("version 4 was bound")
    };
    let launcher = Launcher::new().unwrap();
    let mut processes = Vec::new();
    let mut ends = Vec::new();
    for (name, count) in [("one", 1), ("two", 2), ("none", 0)] {
        let text = best_effort(name, name).replace("spec:\n", "spec:\n  hostNetwork: true\n");
        manifests.put(&format!("{name}.yaml"), &text);
        let pod = tree.pod("besteffort", name);
        let main = tree.container(&pod, &format!("{name}-main"));
        // One that a program in the container has made: its sockets are the pod's, too.
        let below = tree.make(&format!("{main}/below"));
        let script = format!(
            "for ((i = 0; i < {count}; i++)); do exec {{fd}}<>/dev/tcp/127.0.0.1/{}; printf hello >&$fd; done; exec sleep 600",
            address.port()
        );
        let cgroup = if name == "one" { &below } else { &main };
        processes.push(start(&launcher, &kernel, cgroup, None, &script));
        for _ in 0..count {
            let (mut end, _) = listener.accept().unwrap();
            end.read_exact(&mut [0; 5]).unwrap();
            ends.push(end);
        }
    }
    let settings =
        Settings::new(&tree.path, &manifests, &kernel.first()).with(&["--connections=1"]);
    let agent = settings.start();
    all_run(&agent, 3);
    for (pod, count) in [("one", 1.0), ("two", 2.0), ("none", 0.0)] {
        let text = until(&agent, pod, "established", Some(count));
        assert_eq!(
            of(&text, "pinfold_pod_tcp_rtt_seconds_count", pod, &[]),
            Some(count),
            "{pod}"
        );
        assert_eq!(of(&text, CONNECTIONS, pod, &[]), Some(count), "{pod}");
    }
    let unsupported = agent.metric(
        "pinfold_collector_unsupported",
        &[("collector", "connections")],
    );
    assert_eq!(unsupported, None);
    agent.stop();
}

/// A pod's namespace must not outlive the pod, however often it was looked into.
#[test]
fn a_namespace_ends_with_its_pod() {
    let Some(kernel) = kernel_tests() else { return };
    let mut tree = kernel.tree();
    let manifests = Manifests::new();
    let settings =
        Settings::new(&tree.path, &manifests, &kernel.first()).with(&["--connections=1"]);
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
        // The one end of a pair of interfaces goes when the other one's namespace does.
        let pair = format!("link add {name} type veth peer name eth0 netns {pid}");
        let ip = || Command::new("ip").args(pair.split(' ')).status().unwrap();
        assert!(witness.run(ip).unwrap().success());
        let is_there = || {
            let text = witness
                .run(|| std::fs::read_to_string("/proc/thread-self/net/dev").unwrap())
                .unwrap();
            text.contains(&format!("{name}:"))
        };
        assert!(is_there());
        until(&agent, &name, "established", Some(0.0));
        // At another place between two looks each time.
        std::thread::sleep(Duration::from_millis(300 * round));
        tree.remove(&main);
        let since = Instant::now();
        while is_there() {
            assert!(
                since.elapsed() < Duration::from_secs(1),
                "the namespace of {name} has outlived it"
            );
            std::thread::sleep(Duration::from_millis(10));
        }
        manifests.remove(&format!("{name}.yaml"));
        until(&agent, &name, "established", None);
    }
    agent.stop();
}
