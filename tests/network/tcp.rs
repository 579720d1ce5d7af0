//! TCP's own counters, of pods with a network namespace of their own.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, TcpStream};
use std::time::Duration;

use pinfold::host::netns::Switch;
use pinfold::host::sockets::SocketTcpCounts;

use crate::agent::{Manifests, Settings, best_effort, metric};
use crate::kernel::kernel_tests;
use crate::traffic::{STREAM, tcp, tcp_counts};

const FAMILIES: [&str; 3] = [
    "pinfold_pod_tcp_sent_segments_total",
    "pinfold_pod_tcp_retransmitted_segments_total",
    "pinfold_pod_tcp_timeouts_total",
];

#[test]
fn segments_are_the_pods_own() {
    let Some(kernel) = kernel_tests() else { return };
    let mut tree = kernel.tree();
    let manifests = Manifests::new();
    let mut switch = Switch::new().unwrap();
    let [own, shared, peer] = [1, 2, 3].map(|host| Ipv4Addr::new(10, 78, 0, host));
    let [inside, between, outside] =
        [own, shared, peer].map(|address| switch.join(address).unwrap());
    // One has a network of its own, two share one, and one uses the node's.
    let networks = [
        ("own", Some(&inside)),
        ("s1", Some(&between)),
        ("s2", Some(&between)),
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
    agent.eventually("all run", |status| {
        let all = status["containers"].as_array().unwrap();
        all.len() == 4 && all.iter().all(|one| one["running"] == true)
    });
    tcp(&kernel, &mains[0], Some((&inside, &outside)), peer.into());
    // The peer is gone, and its address still known: what is sent there is sent again after a second without an answer.
    drop(outside);
    let ask = |ms| {
        let ask = || TcpStream::connect_timeout(&(peer, 9).into(), Duration::from_millis(ms));
        inside.run(ask).unwrap().unwrap_err().kind()
    };
    while ask(200) != ErrorKind::TimedOut {
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(ask(1500), ErrorKind::TimedOut);

    std::thread::sleep(Duration::from_millis(1100));
    let text = agent.get("/metrics").body;
    let seen = |pod: &str| {
        FAMILIES.map(|name| metric(&text, name, &[("namespace", "train"), ("pod", pod)]))
    };
    let SocketTcpCounts {
        sent,
        retransmitted,
        timeouts,
    } = tcp_counts(i32::try_from(pids[0]).unwrap());
    assert_eq!(
        seen("own"),
        [sent, retransmitted, timeouts].map(|number| Some(number as f64))
    );
    assert!(
        sent > STREAM.0 / 1500 && retransmitted >= 1 && timeouts >= 1,
        "{sent} {retransmitted} {timeouts}"
    );
    for pod in ["s1", "s2", "host"] {
        assert_eq!(seen(pod), [None; 3], "{pod}");
    }
    agent.stop();
}
