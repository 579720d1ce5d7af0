//! A full node: Synchronize with 1,000 containers and the variables of 500 services each, and pods with long texts.

use std::ops::Range;
use std::time::{Duration, Instant};

use pinfold::nri::{Container, PodSandbox};
use prost::Message;
use prost::encoding::encode_varint;
use serde_json::json;

use crate::agent::{Agent, Settings, in_force};
use crate::api;
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

/// A pod of the API with long texts, as its author may write them.
fn wordy(name: &str, containers: usize, bytes: usize) -> serde_json::Value {
    let mut pod = api::pod(name, api::NODE);
    let main = pod["spec"]["containers"][0].clone();
    let containers = (0..containers).map(|number| {
        let mut container = main.clone();
        container["name"] = json!(format!("main{number}"));
        let script = format!("{} python train.py", "word ".repeat(bytes / 5));
        container["args"] = json!(["sh", "-c", script]);
        container["env"] = json!([{"name": "TEXT", "value": "v".repeat(bytes)}]);
        container
    });
    pod["spec"]["containers"] = containers.collect();
    pod["metadata"]["annotations"] = json!({"example.com/text": "a".repeat(bytes)});
    pod["metadata"]["labels"] = json!({"app": "wordy"});
    pod.as_object_mut().unwrap().remove("status");
    pod
}

/// The agent's container has 128 MiB. Six copies of each text would be 72 MiB here.
#[test]
fn the_texts_of_a_full_node_s_pods_fit_into_memory() {
    let Some(kernel) = kernel_tests() else { return };
    let (tree, cluster) = (kernel.tree(), api::Cluster::new());
    let agent = cluster.settings(&tree, &kernel).start();
    agent.eventually("the agent has the first list", |status| {
        status["cluster"]["complete"] == true
    });
    let before = memory(&agent, "VmRSS");
    for number in 0..250 {
        cluster.put(&wordy(&format!("wordy-{number}"), 1, 16 << 10));
    }
    agent.eventually("all pods are known", |status| {
        status["containers"].as_array().map(Vec::len) == Some(250)
    });
    api::two_reconciles(&agent);
    let (now, most) = (memory(&agent, "VmRSS"), memory(&agent, "VmHWM"));
    println!(
        "250 pods with 48 KiB of texts each: {} MiB before, {} MiB now, {} MiB at most",
        before >> 20,
        now >> 20,
        most >> 20
    );
    assert!(now < before + (32 << 20), "{} MiB", now >> 20);
    agent.stop();
}

/// With one pod whose author wrote 1.2 MB of arguments, the other pods are served as usual.
#[test]
fn the_texts_of_one_pod_delay_no_other_pod() {
    let Some(kernel) = kernel_tests() else { return };
    let (mut tree, cluster) = (kernel.tree(), api::Cluster::new());
    let agent = cluster.settings(&tree, &kernel).start();
    agent.eventually("the agent has the first list", |status| {
        status["cluster"]["complete"] == true
    });
    cluster.put(&wordy("wordy", 100, 12_000));
    agent.eventually("the pod is known", |status| {
        status["containers"].as_array().map(Vec::len) == Some(100)
    });
    let start = Instant::now();
    cluster.put(&api::pod("worker-0", api::NODE));
    let cgroup = tree.pod("", "worker-0-uid");
    let main = tree.container(&cgroup, "main1");
    tree.start(&main);
    agent.eventually("the worker is pinned", |status| {
        in_force(status, "worker-0")
    });
    let took = start.elapsed();
    println!("pinned after {took:.1?}");
    assert!(took < Duration::from_secs(2), "{took:.1?}");
    agent.stop();
}
