//! Bytes between the pods of a training job, with known traffic between real namespaces.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use pinfold::host::netns::Netns;
use pinfold::host::network_switch::NetworkSwitch;

use super::connections::wait_for_connections;
use crate::agent::{Agent, Manifests, Settings, best_effort, metric, patience};
use crate::kernel::kernel_tests;

const SENT: &str = "pinfold_peer_transmit_bytes_total";
const RECEIVED: &str = "pinfold_peer_receive_bytes_total";

fn member(name: &str, job: &str, role: &str) -> String {
    let labels = format!(
        "labels: {{training.kubeflow.org/job-name: {job}, training.kubeflow.org/replica-type: {role}}}"
    );
    best_effort(name, name).replace("metadata: {", &format!("metadata: {{{labels}, "))
}

/// A connection over which the client has sent `send` bytes and received `receive` bytes.
fn exchange(
    listener: &TcpListener,
    client: &Netns,
    send: usize,
    receive: usize,
) -> (TcpStream, TcpStream) {
    let address = listener.local_addr().unwrap();
    let mut client = client.run(|| TcpStream::connect(address).unwrap()).unwrap();
    let mut server = listener.accept().unwrap().0;
    let serving = std::thread::spawn(move || {
        server.read_exact(&mut vec![0; send]).unwrap();
        server.write_all(&vec![7; receive]).unwrap();
        server
    });
    client.write_all(&vec![7; send]).unwrap();
    client.read_exact(&mut vec![0; receive]).unwrap();
    (client, serving.join().unwrap())
}

fn peer_metric(text: &str, family: &str, pod: &str, peer: &str) -> Option<f64> {
    metric(text, family, &[("pod", pod), ("peer_pod", peer)])
}

/// Waits until the exported bytes equal the wanted bytes. A SYN may count as a further byte.
fn wait_for_bytes(agent: &Agent, wanted: &[(&str, &str, f64, f64)]) -> String {
    let deadline = Instant::now() + patience();
    loop {
        let text = agent.get("/metrics").body;
        let near = |exported: Option<f64>, wanted: f64| {
            exported.is_some_and(|exported| (wanted..=wanted + 1.0).contains(&exported))
        };
        let wrong = wanted.iter().find(|(pod, peer, sent, received)| {
            !near(peer_metric(&text, SENT, pod, peer), *sent)
                || !near(peer_metric(&text, RECEIVED, pod, peer), *received)
        });
        let Some((pod, peer, ..)) = wrong else {
            return text;
        };
        let exported = [SENT, RECEIVED].map(|family| peer_metric(&text, family, pod, peer));
        assert!(
            Instant::now() < deadline,
            "expected {wrong:?}, got {exported:?}\n{}",
            agent.log()
        );
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn bytes_are_counted_by_peer_pod_of_the_same_job() {
    let Some(kernel) = kernel_tests() else { return };
    let mut tree = kernel.tree();
    let manifests = Manifests::new();
    let mut switch = NetworkSwitch::new().unwrap();
    let address = |host| Ipv4Addr::new(10, 82, 0, host);
    let pods = [
        ("ps-0", "job", "ps"),
        ("w-0", "job", "worker"),
        ("w-1", "job", "worker"),
        ("o-0", "other", "worker"),
    ];
    let networks: Vec<Netns> = (1..=5)
        .map(|host| switch.join(address(host)).unwrap())
        .collect();
    for ((name, job, role), network) in pods.iter().zip(&networks) {
        manifests.put(&format!("{name}.yaml"), &member(name, job, role));
        let pod = tree.pod("besteffort", name);
        let main = tree.container(&pod, &format!("{name}-main"));
        tree.start_in(&main, Some(network));
    }
    let [ps, first, second, other, outside] = &networks[..] else {
        panic!("expected five networks")
    };
    let listen = |network: &Netns, host| {
        network
            .run(|| TcpListener::bind((address(host), 0)).unwrap())
            .unwrap()
    };
    let (server, elsewhere) = (listen(ps, 1), listen(outside, 5));
    let settings = Settings::new(&tree.path, &manifests, &kernel.first());
    let agent = settings
        .clone()
        .with(&["--connection-interval=1s", "--max-peers=8"])
        .start();
    // What is there at the agent's first sample counts from there.
    wait_for_connections(&agent, "o-0", "established", Some(0.0));
    let mut open = vec![
        exchange(&server, first, 3_000_000, 1_000_000),
        exchange(&server, second, 500_000, 20_000),
        exchange(&server, other, 7_000, 70),
        exchange(&elsewhere, first, 60_000, 100),
        // A connection from w-0 to itself counts for no peer.
        exchange(&listen(first, 2), first, 0, 0),
    ];
    let own = first
        .run(|| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap())
        .unwrap();
    open.push(exchange(&own, first, 9_000_000, 1));

    let wanted = [
        ("w-0", "ps-0", 3_000_000.0, 1_000_000.0),
        ("w-1", "ps-0", 500_000.0, 20_000.0),
        ("ps-0", "w-0", 1_000_000.0, 3_000_000.0),
        ("ps-0", "w-1", 20_000.0, 500_000.0),
        // Bytes to and from a pod of another job, and an address outside of all pods.
        ("ps-0", "", 70.0, 7_000.0),
        ("w-0", "", 60_000.0, 100.0),
        ("o-0", "", 7_000.0, 70.0),
    ];
    let text = wait_for_bytes(&agent, &wanted);
    let roles = [
        ("ps-0", "w-0", "worker"),
        ("w-0", "ps-0", "ps"),
        ("w-0", "", "other"),
    ];
    for (pod, peer, role) in roles {
        let labels = [
            ("namespace", "train"),
            ("pod", pod),
            ("peer_pod", peer),
            ("peer_role", role),
        ];
        assert!(
            metric(&text, SENT, &labels).is_some(),
            "{pod} {peer} {role}: {text}"
        );
    }
    // Later bytes are added.
    let (client, server_end) = &mut open[0];
    client.write_all(&[7; 4_000]).unwrap();
    server_end.read_exact(&mut [0; 4_000]).unwrap();
    wait_for_bytes(
        &agent,
        &[
            ("w-0", "ps-0", 3_004_000.0, 1_000_000.0),
            ("ps-0", "w-0", 1_000_000.0, 3_004_000.0),
        ],
    );
    agent.stop();

    // With `--max-peers=1` only one peer has a name, and no byte is lost. Bytes from before this agent's first sample are the
    // first agent's.
    let agent = settings
        .with(&["--connection-interval=1s", "--max-peers=1"])
        .start();
    wait_for_bytes(&agent, &[("w-1", "ps-0", 0.0, 0.0), ("o-0", "", 0.0, 0.0)]);
    for (connection, bytes) in open.iter_mut().zip([3_000, 500, 70]) {
        connection.0.write_all(&vec![7; bytes]).unwrap();
        connection.1.read_exact(&mut vec![0; bytes]).unwrap();
    }
    wait_for_bytes(
        &agent,
        &[("w-1", "ps-0", 500.0, 0.0), ("o-0", "", 70.0, 0.0)],
    );
    // A sample may have visited the server's namespace before the last bytes came.
    std::thread::sleep(Duration::from_secs(2));
    let text = agent.get("/metrics").body;
    let named = ["w-0", "w-1"].map(|peer| peer_metric(&text, RECEIVED, "ps-0", peer));
    assert_eq!(named.iter().flatten().count(), 1, "{named:?}");
    let of_server = format!("{RECEIVED}{{namespace=\"train\",pod=\"ps-0\",");
    let lines = text.lines().filter(|line| line.starts_with(&of_server));
    let sum: f64 = lines
        .map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap())
        .sum();
    assert!((3_570.0..=3_573.0).contains(&sum), "{sum}");
    agent.stop();
}
