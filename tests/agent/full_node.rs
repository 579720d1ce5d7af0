//! Synchronize on a full node: 1,000 containers with the variables of 500 services each.

use std::ops::Range;
use std::time::Instant;

use pinfold::nri::{Container, PodSandbox};
use prost::Message;
use prost::encoding::encode_varint;

use crate::agent::{Agent, Settings};
use crate::kernel::kernel_tests;
use crate::runtime::{Socket, Synchronize};

const CONTAINERS: usize = 1000;
const SERVICES: usize = 500;

/// The agent's memory may grow by this much while the runtime tells of the node. The pod's limit is 128 MiB.
const MOST_MEMORY: usize = 40 << 20;

/// The longest message of a runtime is 4 MiB. The envelope needs less than the difference.
const PART: usize = (4 << 20) - 4096;

/// The environment of a container in a namespace with the given number of services. The kubelet sets seven variables for a
/// service with one port without a name.
fn environment(services: usize) -> Vec<String> {
    let variables = |service: usize| {
        let (name, address) = (
            format!("MODEL_SERVER_{service:03}"),
            format!("10.96.{}.{}", service / 250, service % 250 + 1),
        );
        [
            format!("{name}_SERVICE_HOST={address}"),
            format!("{name}_SERVICE_PORT=80"),
            format!("{name}_PORT=tcp://{address}:80"),
            format!("{name}_PORT_80_TCP=tcp://{address}:80"),
            format!("{name}_PORT_80_TCP_PROTO=tcp"),
            format!("{name}_PORT_80_TCP_PORT=80"),
            format!("{name}_PORT_80_TCP_ADDR={address}"),
        ]
    };
    let own = ["PATH=/usr/bin:/bin", "OMP_NUM_THREADS=3"].map(str::to_owned);
    own.into_iter()
        .chain((0..services).flat_map(variables))
        .collect()
}

/// A pod and a container, as protobuf fields 1 and 2 of Synchronize. The encoded environment is the same for all containers.
fn fields(number: usize, environment: &[u8]) -> [Vec<u8>; 2] {
    let text = |what: &str| format!("{what}-{number}");
    let (name, id) = (text("web"), text("sandbox"));
    let namespace = "serving".to_owned();
    let pod = PodSandbox {
        id: id.clone(),
        name,
        namespace,
        uid: text("uid"),
        ..PodSandbox::default()
    };
    let container = Container {
        id: text("container"),
        pod_sandbox_id: id,
        name: "main".to_owned(),
        args: vec!["python".to_owned(), "serve.py".to_owned()],
        ..Container::default()
    };
    let field = |tag: u8, message: &[&[u8]]| {
        let mut field = vec![tag << 3 | 2];
        encode_varint(message.concat().len() as u64, &mut field);
        [field, message.concat()].concat()
    };
    [
        field(1, &[&pod.encode_to_vec()]),
        field(2, &[&container.encode_to_vec(), environment]),
    ]
}

/// Memory of a process in bytes, by the line's name in `/proc/PID/status`.
fn memory(agent: &Agent, line: &str) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{}/status", agent.id())).unwrap();
    let value = status
        .lines()
        .find_map(|other| other.strip_prefix(line)?.strip_prefix(':'))
        .unwrap();
    value
        .split_whitespace()
        .next()
        .unwrap()
        .parse::<usize>()
        .unwrap()
        << 10
}

/// All messages of one Synchronize, each as long as possible.
fn parts(containers: Range<usize>) -> Vec<Vec<u8>> {
    let env = environment(SERVICES);
    let environment = Container {
        env,
        ..Container::default()
    }
    .encode_to_vec();
    let mut parts = vec![Vec::new()];
    for field in containers.flat_map(|number| fields(number, &environment)) {
        if parts
            .last()
            .is_some_and(|part: &Vec<u8>| part.len() + field.len() > PART)
        {
            let more = Synchronize {
                more: true,
                ..Synchronize::default()
            }
            .encode_to_vec();
            parts.last_mut().unwrap().extend(more);
            parts.push(Vec::new());
        }
        parts.last_mut().unwrap().extend(field);
    }
    parts
}

#[test]
fn service_variables_are_dropped_while_synchronize_is_read() {
    let Some(kernel) = kernel_tests() else { return };
    let tree = kernel.tree();
    let tokio = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let mut socket = tokio.block_on(async { Socket::new() });
    let path = socket.path().display().to_string();
    let args = ["--api=never", "--nri=always", "--nri-socket", &path];
    let agent = Settings::without_manifests(&tree.path, &kernel.first())
        .with(&args)
        .start();
    let before = memory(&agent, "VmHWM");
    let parts = parts(0..CONTAINERS);
    let sent: usize = parts.iter().map(Vec::len).sum();
    let start = Instant::now();
    let link = tokio.block_on(async {
        let mut link = socket.accept().await;
        link.register().await;
        // A program without optimizations reads slowly.
        link.configure(600_000).await;
        for (number, part) in parts.iter().enumerate() {
            let answer = link.call("Synchronize", part.clone()).await;
            let peak = memory(&agent, "VmHWM");
            assert!(
                answer.is_ok(),
                "part {number}: {answer:?}, {} MiB\n{}",
                peak >> 20,
                agent.log()
            );
        }
        link
    });
    let took = start.elapsed();
    agent.eventually("the agent is synchronized", |status| {
        status["runtime"]["state"] == "synchronized"
    });
    let grown = memory(&agent, "VmHWM") - before;
    println!(
        "{CONTAINERS} containers with {} variables, {} MiB in {} parts, {took:.1?}: the agent's peak was {} MiB before and grew by {} MiB; now it has {} MiB",
        environment(SERVICES).len(),
        sent >> 20,
        parts.len(),
        before >> 20,
        grown >> 20,
        memory(&agent, "VmRSS") >> 20,
    );
    assert!(grown < MOST_MEMORY, "{} MiB more", grown >> 20);
    drop(link);
    agent.stop();
}
