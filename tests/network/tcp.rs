//! TCP's own counters of pods with a network namespace.

use std::net::{Ipv4Addr, TcpStream};
use std::process::Command;
use std::time::{Duration, Instant};

use pinfold::host::bpf::sockets::SocketTcpCounts;
use pinfold::host::netns::Netns;
use pinfold::host::network_switch::NetworkSwitch;

use crate::agent::{Manifests, Settings, best_effort, metric};
use crate::kernel::kernel_tests;
use crate::traffic::{STREAM, tcp, tcp_counts, while_quiet};

const FAMILIES: [&str; 3] = [
    "pinfold_pod_tcp_sent_segments_total",
    "pinfold_pod_tcp_retransmitted_segments_total",
    "pinfold_pod_tcp_timeouts_total",
];

/// Connects to an address without an answer until the end. TCP retransmits after a second.
fn unanswered_connections(network: &Netns, peer: Ipv4Addr, is_end: impl Fn() -> bool) {
    // No interface has this address, and the entry never expires.
    let entry = format!("neighbor replace {peer} lladdr 02:00:00:00:00:99 dev eth0 nud permanent");
    let ip = || Command::new("ip").args(entry.split(' ')).status().unwrap();
    assert!(network.run(ip).unwrap().success());
    let deadline = Instant::now() + Duration::from_secs(60);
    while !is_end() {
        assert!(Instant::now() < deadline, "no retransmission");
        let connect = || TcpStream::connect_timeout(&(peer, 9).into(), Duration::from_millis(1500));
        assert!(network.run(connect).unwrap().is_err(), "{peer} answers");
    }
}

#[test]
fn pods_with_a_network_namespace_have_segment_metrics() {
    let Some(kernel) = kernel_tests() else { return };
    let mut tree = kernel.tree();
    let manifests = Manifests::new();
    let mut switch = NetworkSwitch::new().unwrap();
    let [own, shared, peer] = [1, 2, 3].map(|host| Ipv4Addr::new(10, 78, 0, host));
    let [own_network, shared_network, peer_network] =
        [own, shared, peer].map(|address| switch.join(address).unwrap());
    // The pod `own` has a private network, `s1` and `s2` share a network, and `host` uses the node's network.
    let networks = [
        ("own", Some(&own_network)),
        ("s1", Some(&shared_network)),
        ("s2", Some(&shared_network)),
        ("host", None),
    ];
    let mut pids = Vec::new();
    let mut mains = Vec::new();
    for (name, network) in networks {
        let text = best_effort(name, name);
        let text = if network.is_some() {
            text
        } else {
            text.replace("spec:\n", "spec:\n  hostNetwork: true\n")
        };
        manifests.put(&format!("{name}.yaml"), &text);
        let pod = tree.pod("besteffort", name);
        let main = tree.container(&pod, &format!("{name}-main"));
        pids.push(tree.start_in(&main, network));
        mains.push(main);
    }
    let agent = Settings::new(&tree.path, &manifests, &kernel.first()).start();
    agent.eventually("all containers run", |status| {
        let containers = status["containers"].as_array().unwrap();
        containers.len() == 4 && containers.iter().all(|entry| entry["running"] == true)
    });
    tcp(
        &kernel,
        &mains[0],
        Some((&own_network, &peer_network)),
        peer.into(),
    );
    let own_counts = || tcp_counts(i32::try_from(pids[0]).unwrap());
    let before = own_counts().timeouts;
    unanswered_connections(&own_network, peer, || own_counts().timeouts > before);

    let (counts, text) = while_quiet(own_counts, || {
        // Scrapes within a second share a collection.
        std::thread::sleep(Duration::from_millis(1100));
        agent.get("/metrics").body
    });
    let exported = |pod: &str| {
        FAMILIES.map(|name| metric(&text, name, &[("namespace", "train"), ("pod", pod)]))
    };
    let SocketTcpCounts {
        sent,
        retransmitted,
        timeouts,
    } = counts;
    assert_eq!(
        exported("own"),
        [sent, retransmitted, timeouts].map(|number| Some(number as f64))
    );
    assert!(
        sent > STREAM.0 / 1500 && retransmitted >= 1 && timeouts >= 1,
        "{sent} {retransmitted} {timeouts}"
    );
    for pod in ["s1", "s2", "host"] {
        assert_eq!(exported(pod), [None; 3], "{pod}");
    }
    agent.stop();
}
