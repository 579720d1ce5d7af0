//! Peers on other nodes: the addresses come from the API server, with the rights that the agent has in any case.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use pinfold::host::network_switch::NetworkSwitch;
use serde_json::json;

use crate::agent::patience;
use crate::api::{Cluster, NODE, pod};
use crate::kernel::kernel_tests;

const SENT: &str = "pinfold_peer_transmit_bytes_total";

#[test]
fn pods_of_the_job_on_other_nodes_are_known_by_their_addresses() {
    let Some(kernel) = kernel_tests() else { return };
    let mut tree = kernel.tree();
    let cluster = Cluster::new();
    let mut switch = NetworkSwitch::new().unwrap();
    let [own, far] = [1, 2].map(|host| Ipv4Addr::new(10, 83, 0, host));
    let (inside, outside) = (switch.join(own).unwrap(), switch.join(far).unwrap());
    cluster.put(&pod("worker-0", NODE));
    let mut peer = pod("worker-9", "node-2");
    peer["status"] = json!({"phase": "Running", "podIPs": [{"ip": far.to_string()}]});
    cluster.put(&peer);
    let of_pod = tree.pod("", "worker-0-uid");
    let main = tree.container(&of_pod, "main1");
    tree.start_in(&main, Some(&inside));
    let listener = outside
        .run(|| TcpListener::bind((far, 0)).unwrap())
        .unwrap();
    let address = listener.local_addr().unwrap();
    let mut client = inside.run(|| TcpStream::connect(address).unwrap()).unwrap();
    let mut server = listener.accept().unwrap().0;

    let settings = cluster
        .settings(&tree, &kernel)
        .with(&["--connection-interval=1s", "--max-peers=8"]);
    let agent = settings.start();
    let until = |wanted: f64| {
        let deadline = Instant::now() + patience();
        loop {
            let labels = [
                ("pod", "worker-0"),
                ("peer_pod", "worker-9"),
                ("peer_role", "worker"),
            ];
            let sent = agent.metric(SENT, &labels);
            if sent == Some(wanted) {
                return;
            }
            assert!(
                Instant::now() < deadline,
                "{sent:?}, not {wanted}\n{}",
                agent.log()
            );
            std::thread::sleep(Duration::from_millis(100));
        }
    };
    // The zero from the start appeared before the first request to the API.
    until(0.0);
    client.write_all(&[7; 50_000]).unwrap();
    server.read_exact(&mut [0; 50_000]).unwrap();
    until(50_000.0);
    let asked = agent.metric("pinfold_api_requests_total", &[("request", "list_job")]);
    assert_eq!(asked, Some(1.0), "once for all");
    agent.stop();
}
