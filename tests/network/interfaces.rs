//! What pods' own interfaces count, against `ip -s`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::process::Command;
use std::time::Duration;

use pinfold::host::netns::{Netns, Switch};
use serde_json::Value;

use crate::agent::{Agent, Manifests, Settings, best_effort, metric};
use crate::kernel::kernel_tests;
use crate::traffic::{DATAGRAMS, tcp, udp};

const FAMILIES: [&str; 8] = [
    "pinfold_pod_network_receive_bytes_total",
    "pinfold_pod_network_receive_packets_total",
    "pinfold_pod_network_receive_errors_total",
    "pinfold_pod_network_receive_packets_dropped_total",
    "pinfold_pod_network_transmit_bytes_total",
    "pinfold_pod_network_transmit_packets_total",
    "pinfold_pod_network_transmit_errors_total",
    "pinfold_pod_network_transmit_packets_dropped_total",
];

fn ip(network: &Netns, args: &str) -> String {
    let run = || Command::new("ip").args(args.split(' ')).output().unwrap();
    let output = network.run(run).unwrap();
    assert!(
        output.status.success(),
        "ip {args}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}

/// What `ip -s` tells of `eth0`, in the order of the families.
fn told(network: &Netns) -> [Option<f64>; 8] {
    let all: Value = serde_json::from_str(&ip(network, "-s -j link show dev eth0")).unwrap();
    let of = |way: &str, what: &str| all[0]["stats64"][way][what].as_f64();
    let names = ["bytes", "packets", "errors", "dropped"];
    std::array::from_fn(|at| of(if at < 4 { "rx" } else { "tx" }, names[at % 4]))
}

fn seen(agent: &Agent, pod: &str) -> [Option<f64>; 8] {
    // Scrapes within a second share what was collected.
    std::thread::sleep(Duration::from_millis(1100));
    let text = agent.get("/metrics").body;
    let labels = [("namespace", "train"), ("pod", pod), ("interface", "eth0")];
    FAMILIES.map(|family| metric(&text, family, &labels))
}

/// The kernel itself may send something (neighbours, IPv6) between two looks: then it is looked at again.
fn same(agent: &Agent, pod: &str, network: &Netns) -> [f64; 8] {
    for _ in 0..10 {
        let before = told(network);
        let seen = seen(agent, pod);
        if before == told(network) {
            assert_eq!(seen, before, "{pod}");
            return seen.map(Option::unwrap);
        }
    }
    panic!("{pod}'s interface never rests");
}

#[test]
fn interfaces_count_what_ip_tells() {
    let Some(kernel) = kernel_tests() else { return };
    let mut tree = kernel.tree();
    let manifests = Manifests::new();
    let mut switch = Switch::new().unwrap();
    let [own, shared, peer] = [1, 2, 3].map(|host| Ipv4Addr::new(10, 83, 0, host));
    let [inside, between, outside] =
        [own, shared, peer].map(|address| switch.join(address).unwrap());
    let mut mains = Vec::new();
    for (name, network) in [("own", &inside), ("s1", &between), ("s2", &between)] {
        manifests.put(&format!("{name}.yaml"), &best_effort(name, name));
        let pod = tree.pod("besteffort", name);
        let main = tree.container(&pod, &format!("{name}-main"));
        tree.start_in(&main, Some(network));
        mains.push((pod, main));
    }
    let peer_six = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 3);
    ip(&inside, "-6 address add fd00::1/64 dev eth0 nodad");
    ip(&outside, "-6 address add fd00::3/64 dev eth0 nodad");
    let agent = Settings::new(&tree.path, &manifests, &kernel.first()).start();
    agent.eventually("all run", |status| {
        let all = status["containers"].as_array().unwrap();
        all.len() == 3 && all.iter().all(|one| one["running"] == true)
    });

    let mut before = same(&agent, "own", &inside);
    // A packet has 14 bytes more on the interface than in IP.
    for (host, headers) in [
        (IpAddr::V4(peer), 14 + 20 + 8),
        (IpAddr::V6(peer_six), 14 + 40 + 8),
    ] {
        udp(&kernel, &mains[0].1, Some((&inside, &outside)), host);
        let after = same(&agent, "own", &inside);
        let (count, size, replies, reply) = DATAGRAMS;
        for (bytes, payload) in [
            (4, count * (size + headers)),
            (0, replies * (reply + headers)),
        ] {
            let more = after[bytes] - before[bytes] - payload as f64;
            assert!(
                (0.0..2000.0).contains(&more),
                "{host}: {before:?}, {after:?}"
            );
        }
        before = after;
    }
    tcp(&kernel, &mains[0].1, Some((&inside, &outside)), peer.into());
    assert!(same(&agent, "own", &inside)[4] > before[4] + 3_000_000.0);
    for pod in ["s1", "s2"] {
        assert_eq!(seen(&agent, pod), [None; 8], "{pod}");
    }

    // Another interface with its name and its index.
    let all: Value = serde_json::from_str(&ip(&inside, "-j link show dev eth0")).unwrap();
    let index = all[0]["ifindex"].as_u64().unwrap();
    ip(&inside, "link del eth0");
    ip(
        &inside,
        &format!("link add eth0 index {index} type veth peer name eth9"),
    );
    assert_eq!(same(&agent, "own", &inside), [0.0; 8]);

    // It is told of nobody any more in the scrape after its end.
    let (pod, _) = mains.remove(0);
    manifests.remove("own.yaml");
    tree.remove(&pod);
    agent.eventually("it is gone", |status| {
        status["containers"].as_array().unwrap().len() == 2
    });
    assert!(!agent.get("/metrics").body.contains("pod=\"own\""));
    agent.stop();
}
