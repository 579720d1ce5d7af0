//! The cost of sampling the pods' TCP connections. An agent samples pods with private network
//! namespaces every second and reports the CPU time that it has used, first without connections and
//! then with many in one pod. `PINFOLD_KERNEL_TESTS=1 cargo bench --bench connections`, as root
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../tests/support/agent.rs"]
#[allow(dead_code, reason = "shared with tests")]
mod agent;
#[path = "../tests/support/gate.rs"]
mod gate;
#[path = "../tests/support/http.rs"]
#[allow(dead_code, reason = "shared with tests")]
mod http;
#[path = "../tests/support/kernel.rs"]
#[allow(dead_code, reason = "shared with tests")]
mod kernel;

use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::Duration;

use pinfold::host::netns::Netns;

use crate::agent::{Agent, Manifests, Settings, best_effort};
use crate::kernel::kernel_tests;

/// Each pod has a network namespace.
const PODS: usize = 100;

/// How many connections the first pod has, each with both ends.
const CONNECTIONS: usize = 2_000;

/// How long a measurement takes in seconds, which is also the number of samples.
const SECONDS: u64 = 10;

fn main() {
    let Some(kernel) = kernel_tests() else {
        println!("nothing was measured: set PINFOLD_KERNEL_TESTS=1");
        return;
    };
    let mut tree = kernel.tree();
    let manifests = Manifests::new();
    let mut networks = Vec::new();
    for number in 0..PODS {
        let name = format!("p{number}");
        manifests.put(&format!("{name}.yaml"), &best_effort(&name, &name));
        let pod = tree.pod("besteffort", &name);
        let main = tree.container(&pod, &format!("{name}-main"));
        let network = Netns::new().unwrap();
        tree.start_in(&main, Some(&network));
        networks.push(network);
    }
    let settings = Settings::new(&tree.path, &manifests, &kernel.first());
    let agent = settings
        .with(&["--connection-interval=1s", "--reconcile-interval=60s"])
        .start();
    agent.eventually("all containers run", |status| {
        let containers = status["containers"].as_array().unwrap();
        containers.len() == PODS && containers.iter().all(|entry| entry["running"] == true)
    });
    let each = micros(&agent) / PODS as f64;
    println!("{PODS} pods without connections: {each:.0} µs of CPU for each pod and sample");

    let open = || {
        std::process::Command::new("ip")
            .args(["link", "set", "lo", "up"])
            .status()
            .unwrap();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let pair = |_| {
            (
                TcpStream::connect(address).unwrap(),
                listener.accept().unwrap().0,
            )
        };
        (0..CONNECTIONS).map(pair).collect::<Vec<_>>()
    };
    let _open = networks[0].run(open).unwrap();
    let all = micros(&agent) - each * PODS as f64;
    println!(
        "{} connection ends in one pod: {:.2} µs more for each",
        2 * CONNECTIONS,
        all / (2 * CONNECTIONS) as f64
    );
    agent.stop();
}

/// Microseconds of CPU time for a sample.
fn micros(agent: &Agent) -> f64 {
    std::thread::sleep(Duration::from_millis(1500));
    let used = || {
        let labels = [("collector", "connections")];
        agent
            .metric("pinfold_collector_cpu_seconds_total", &labels)
            .unwrap()
    };
    let before = used();
    std::thread::sleep(Duration::from_secs(SECONDS));
    (used() - before) * 1e6 / SECONDS as f64
}
