//! Counters of pods' interfaces, compared with `ip -s`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::process::Command;
use std::time::Duration;

use pinfold::host::netns::Netns;
use pinfold::host::network_switch::NetworkSwitch;
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

/// The counters of `eth0` from `ip -s`, in the order of the families.
fn ip_counters(network: &Netns) -> [Option<f64>; 8] {
    let links: Value = serde_json::from_str(&ip(network, "-s -j link show dev eth0")).unwrap();
    let counter = |direction: &str, name: &str| links[0]["stats64"][direction][name].as_f64();
    let names = ["bytes", "packets", "errors", "dropped"];
    std::array::from_fn(|at| counter(if at < 4 { "rx" } else { "tx" }, names[at % 4]))
}

fn exported(agent: &Agent, pod: &str) -> [Option<f64>; 8] {
    // Scrapes within a second share a collection.
    std::thread::sleep(Duration::from_millis(1100));
    let text = agent.get("/metrics").body;
    let labels = [("namespace", "train"), ("pod", pod), ("interface", "eth0")];
    FAMILIES.map(|family| metric(&text, family, &labels))
}

/// The exported counters, which must equal `ip -s`. The kernel itself may send packets (neighbours,
/// IPv6) during the comparison, which is then repeated.
fn counters_equal_to_ip(agent: &Agent, pod: &str, network: &Netns) -> [f64; 8] {
    for _ in 0..10 {
        let before = ip_counters(network);
        let exported = exported(agent, pod);
        if before == ip_counters(network) {
            assert_eq!(exported, before, "{pod}");
            return exported.map(Option::unwrap);
        }
    }
    panic!("the counters of {pod}'s interface change all the time");
}

#[test]
fn interface_metrics_match_ip() {
    let Some(kernel) = kernel_tests() else { return };
    let mut tree = kernel.tree();
    let manifests = Manifests::new();
    let mut switch = NetworkSwitch::new().unwrap();
    let [own, shared, peer] = [1, 2, 3].map(|host| Ipv4Addr::new(10, 83, 0, host));
    let [own_network, shared_network, peer_network] =
        [own, shared, peer].map(|address| switch.join(address).unwrap());
    let mut mains = Vec::new();
    for (name, network) in [
        ("own", &own_network),
        ("s1", &shared_network),
        ("s2", &shared_network),
    ] {
        manifests.put(&format!("{name}.yaml"), &best_effort(name, name));
        let pod = tree.pod("besteffort", name);
        let main = tree.container(&pod, &format!("{name}-main"));
        tree.start_in(&main, Some(network));
        mains.push((pod, main));
    }
    let peer_six = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 3);
    ip(&own_network, "-6 address add fd00::1/64 dev eth0 nodad");
    ip(&peer_network, "-6 address add fd00::3/64 dev eth0 nodad");
    let agent = Settings::new(&tree.path, &manifests, &kernel.first()).start();
    agent.eventually("all containers run", |status| {
        let containers = status["containers"].as_array().unwrap();
        containers.len() == 3 && containers.iter().all(|entry| entry["running"] == true)
    });

    let mut before = counters_equal_to_ip(&agent, "own", &own_network);
    // An Ethernet header adds 14 bytes to each IP packet.
    for (host, headers) in [
        (IpAddr::V4(peer), 14 + 20 + 8),
        (IpAddr::V6(peer_six), 14 + 40 + 8),
    ] {
        udp(
            &kernel,
            &mains[0].1,
            Some((&own_network, &peer_network)),
            host,
        );
        let after = counters_equal_to_ip(&agent, "own", &own_network);
        let (count, size, replies, reply) = DATAGRAMS;
        for (bytes, payload) in [
            (4, count * (size + headers)),
            (0, replies * (reply + headers)),
        ] {
            let extra = after[bytes] - before[bytes] - payload as f64;
            assert!(
                (0.0..2000.0).contains(&extra),
                "{host}: {before:?}, {after:?}"
            );
        }
        before = after;
    }
    tcp(
        &kernel,
        &mains[0].1,
        Some((&own_network, &peer_network)),
        peer.into(),
    );
    assert!(counters_equal_to_ip(&agent, "own", &own_network)[4] > before[4] + 3_000_000.0);
    for pod in ["s1", "s2"] {
        assert_eq!(exported(&agent, pod), [None; 8], "{pod}");
    }

    // A new interface with the name and index of the deleted interface starts at zero.
    let links: Value = serde_json::from_str(&ip(&own_network, "-j link show dev eth0")).unwrap();
    let index = links[0]["ifindex"].as_u64().unwrap();
    ip(&own_network, "link del eth0");
    ip(
        &own_network,
        &format!("link add eth0 index {index} type veth peer name eth9"),
    );
    assert_eq!(counters_equal_to_ip(&agent, "own", &own_network), [0.0; 8]);

    // The scrape after the pod's end has no series of the pod.
    let (pod, _) = mains.remove(0);
    manifests.remove("own.yaml");
    tree.remove(&pod);
    agent.eventually("the pod is gone", |status| {
        status["containers"].as_array().unwrap().len() == 2
    });
    assert!(!agent.get("/metrics").body.contains("pod=\"own\""));
    agent.stop();
}
