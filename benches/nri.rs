//! The cost of the plugin: the handlers' time with 0, 100 and 250 containers on the node, the longest time that a request
//! waits because the agent is busy, what the question to a kubelet that chooses the CPUs adds, and the time added to a
//! container's creation by a real containerd. The bench runs two series of containerd, in turns with and without the plugin.
//! `PINFOLD_KERNEL_TESTS=1 cargo bench --bench nri` (`-- handlers`, `-- bursts`, `-- queue`, `-- kubelet` or `-- creation`
//! for one part, `-- handlers 500` for a different number of containers), as root, after `tests/runtime/prepare`
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../tests/support/agent.rs"]
#[allow(dead_code, reason = "shared with tests")]
mod agent;
#[path = "../tests/support/gate.rs"]
#[allow(dead_code, reason = "shared with tests")]
mod gate;
#[path = "../tests/support/http.rs"]
#[allow(dead_code, reason = "shared with tests")]
mod http;
#[path = "../tests/support/kernel.rs"]
#[allow(dead_code, reason = "shared with tests")]
mod kernel;
#[path = "../tests/support/kubelet.rs"]
#[allow(dead_code, reason = "shared with tests")]
mod kubelet;
#[path = "../tests/support/nri.rs"]
#[allow(dead_code, reason = "shared with tests")]
mod runtime;

#[path = "../tests/runtime/cri.rs"]
#[allow(dead_code, reason = "shared with tests")]
mod cri;
#[path = "../tests/runtime/daemon.rs"]
#[allow(dead_code, reason = "shared with tests")]
mod daemon;
#[path = "../tests/runtime/image.rs"]
mod image;
#[path = "../tests/runtime/leftovers.rs"]
mod leftovers;
#[path = "../tests/runtime/messages.rs"]
#[allow(dead_code, reason = "shared with tests")]
mod messages;
#[path = "../tests/runtime/pods.rs"]
#[allow(dead_code, reason = "shared with tests")]
mod pods;
#[path = "../tests/runtime/probe.rs"]
#[allow(dead_code, reason = "shared with tests")]
mod probe;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use pinfold::nri::{
    Container, LinuxContainer, LinuxCpu, LinuxMemory, LinuxPodSandbox, LinuxResources,
    OptionalInt64, OptionalUInt64, PodSandbox,
};
use prost::Message;

use crate::agent::{Agent, Settings, container};
use crate::daemon::{Runtime, suites};
use crate::kernel::{Kernel, Tree, kernel_tests};
use crate::kubelet::Root;
use crate::pods::{ContainerSpec, Pod, PodSpec};
use crate::runtime::{Changed, EventMessage, FakeRuntime, Socket, StateChange, Synchronize};

/// How many containers exist on the node already.
const OTHERS: [usize; 3] = [0, 100, 250];

/// The arrival of containers: the time between creation and start (runc takes at least 50 ms), the
/// time between two containers (in which the agent reconciles all others), and the number of
/// containers. This is small, so that two versions can take turns.
const PACES: [(Duration, Duration, usize); 3] = [
    (Duration::ZERO, Duration::ZERO, 100),
    (Duration::from_millis(50), Duration::ZERO, 100),
    (Duration::from_millis(200), Duration::from_millis(300), 50),
];

/// How many turns there are with each source of placements, and how many containers in each.
const KUBELET_TURNS: (u32, u32) = (5, 40);

/// How many turns there are with and without the plugin, and how many creations in each.
const TURNS: (u32, u32) = (6, 25);

fn main() {
    let Some(kernel) = kernel_tests() else {
        println!("nothing was measured: set PINFOLD_KERNEL_TESTS=1");
        return;
    };
    let parts: Vec<String> = std::env::args()
        .skip(1)
        .filter(|argument| !argument.starts_with('-'))
        .collect();
    let (numbers, parts): (Vec<_>, Vec<_>) = parts
        .into_iter()
        .partition(|part| part.parse::<usize>().is_ok());
    let wanted = |part: &str| parts.is_empty() || parts.iter().any(|argument| argument == part);
    let sizes: Vec<usize> = numbers
        .iter()
        .map(|number| number.parse().unwrap())
        .collect();
    let sizes = if sizes.is_empty() {
        OTHERS.to_vec()
    } else {
        sizes
    };
    if wanted("bursts") {
        let tokio = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .build()
            .unwrap();
        tokio.block_on(bursts(
            &kernel,
            sizes.iter().copied().max().unwrap_or_default(),
        ));
    }
    if wanted("queue") {
        let tokio = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .build()
            .unwrap();
        tokio.block_on(queue(
            &kernel,
            sizes.iter().copied().max().unwrap_or_default(),
        ));
    }
    if wanted("kubelet") {
        let tokio = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .build()
            .unwrap();
        for others in &sizes {
            beside_kubelet(&tokio, &kernel, *others);
        }
    }
    if wanted("handlers") {
        let tokio = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .build()
            .unwrap();
        for (others, pace) in sizes
            .into_iter()
            .flat_map(|others| PACES.map(|pace| (others, pace)))
        {
            tokio.block_on(handlers(&kernel, others, pace));
        }
    }
    if wanted("creation") {
        for suite in suites() {
            creation(&kernel, &suite);
        }
    }
}

// --- the handlers' own time ---

async fn handlers(
    kernel: &Kernel,
    others: usize,
    (pause, rest, lives): (Duration, Duration, usize),
) {
    let mut tree = kernel.tree();
    let (agent, mut runtime, _socket) = synchronized(kernel, &mut tree, others, &[]).await;
    let mut times: BTreeMap<&str, Vec<Duration>> = BTreeMap::new();
    let mut owned = 0;
    for life in 0..lives {
        let new_pod = pod(&tree, "", &format!("worker-{life}"), 1024, Some(100_000));
        change(&mut runtime, 1, &new_pod).await;
        // The start time of a sandbox.
        tokio::time::sleep(Duration::from_millis(30)).await;
        let message = EventMessage {
            pod: Some(new_pod.sandbox.clone()),
            container: Some(new_pod.container.clone()),
        };
        let start = Instant::now();
        let answer = runtime
            .call("CreateContainer", message.encode_to_vec())
            .await
            .unwrap();
        times
            .entry("CreateContainer")
            .or_default()
            .push(start.elapsed());
        owned += usize::from(Changed::decode(answer.as_slice()).is_ok() && !answer.is_empty());
        let cgroup = tree.container(&new_pod.cgroup, &new_pod.container.id);
        tree.start(&cgroup);
        tokio::time::sleep(pause).await;
        let start = Instant::now();
        change(&mut runtime, 6, &new_pod).await;
        times
            .entry("StartContainer")
            .or_default()
            .push(start.elapsed());
        assert_eq!(
            kernel.effective(&cgroup),
            kernel.last(),
            "{}",
            new_pod.container.id
        );
        runtime
            .call("StopContainer", message.encode_to_vec())
            .await
            .unwrap();
        tree.remove(&cgroup);
        change(&mut runtime, 11, &new_pod).await;
        change(&mut runtime, 2, &new_pod).await;
        tree.remove(&new_pod.cgroup);
        change(&mut runtime, 3, &new_pod).await;
        tokio::time::sleep(rest).await;
    }
    assert_eq!(owned, lives, "each container got exclusive CPUs");
    for (call, times) in &mut times {
        println!(
            "{others:>3} containers, {:>3}, {:>3} ms between, {call:15} {}",
            pause.as_millis(),
            rest.as_millis(),
            figures(times)
        );
    }
    for call in ["create", "start"] {
        let of = |what: &str| {
            agent.metric(
                &format!("pinfold_nri_call_duration_seconds_{what}"),
                &[("call", call)],
            )
        };
        let (sum, count) = (of("sum").unwrap(), of("count").unwrap());
        let within = |seconds: &str| {
            let bucket = [("call", call), ("le", seconds)];
            100.0
                * agent
                    .metric("pinfold_nri_call_duration_seconds_bucket", &bucket)
                    .unwrap()
                / count
        };
        println!(
            "{others:>3} containers, {:>3}, {:>3} ms between, {call:15} by the agent's own clock: mean {:.3} ms, {:.0} % within half \
             a millisecond, {:.0} % within one",
            pause.as_millis(),
            rest.as_millis(),
            1000.0 * sum / count,
            within("0.0005"),
            within("0.001")
        );
    }
    agent.stop();
}

/// An agent that knows `others` containers, the connected runtime, and the socket of both.
async fn synchronized(
    kernel: &Kernel,
    tree: &mut Tree<'_>,
    others: usize,
    options: &[&str],
) -> (Agent, FakeRuntime, Socket) {
    let mut pods = Vec::new();
    let mut containers = Vec::new();
    for number in 0..others {
        let described = pod(tree, "besteffort", &format!("web-{number}"), 2, None);
        let cgroup = tree.container(&described.cgroup, &described.container.id);
        tree.start(&cgroup);
        pods.push(described.sandbox);
        containers.push(described.container);
    }
    let mut socket = Socket::new();
    let path = socket.path().display().to_string();
    let args = ["--api=never", "--nri=always", "--nri-socket", &path];
    let agent = Settings::without_manifests(&tree.path, &kernel.all_but_one())
        .with(&args)
        .with(options)
        .start();
    let mut runtime = socket.accept().await;
    runtime.register().await;
    runtime.configure(2000).await;
    // The synchronization comes in parts, as from a real runtime.
    while !pods.is_empty() || !containers.is_empty() {
        let part = |left: usize| left.saturating_sub(50);
        let (pods_now, containers_now) = (
            pods.split_off(part(pods.len())),
            containers.split_off(part(containers.len())),
        );
        let more = !pods.is_empty();
        let message = Synchronize {
            pods: pods_now,
            containers: containers_now,
            more,
        };
        runtime
            .call("Synchronize", message.encode_to_vec())
            .await
            .unwrap();
    }
    if others == 0 {
        runtime.call("Synchronize", Vec::new()).await.unwrap();
    }
    let web = format!("web-{}", others.saturating_sub(1));
    agent.eventually("all are known", |status| {
        others == 0 || container(status, &web, "main").is_some()
    });
    (agent, runtime, socket)
}

/// Bursts of 50 creations beside `others` containers, whose requests are all sent at once. A time
/// is that from the start of the burst to an answer.
async fn bursts(kernel: &Kernel, others: usize) {
    let mut tree = kernel.tree();
    let (agent, mut runtime, _socket) = synchronized(kernel, &mut tree, others, &[]).await;
    let mut times = Vec::new();
    for burst in 0..4 {
        let mut pods = Vec::new();
        for number in 0..50 {
            let name = format!("worker-{burst}-{number}");
            let new_pod = pod(&tree, "", &name, 1024, Some(100_000));
            change(&mut runtime, 1, &new_pod).await;
            pods.push(new_pod);
        }
        let start = Instant::now();
        let mut streams = Vec::new();
        for new_pod in &pods {
            let message = EventMessage {
                pod: Some(new_pod.sandbox.clone()),
                container: Some(new_pod.container.clone()),
            };
            streams.push(
                runtime
                    .begin("CreateContainer", message.encode_to_vec())
                    .await,
            );
        }
        for stream in streams {
            runtime.answer(stream).await.unwrap();
            times.push(start.elapsed());
        }
        for new_pod in &pods {
            let message = EventMessage {
                pod: Some(new_pod.sandbox.clone()),
                container: Some(new_pod.container.clone()),
            };
            runtime
                .call("StopContainer", message.encode_to_vec())
                .await
                .unwrap();
            change(&mut runtime, 11, new_pod).await;
            change(&mut runtime, 2, new_pod).await;
            tree.remove(&new_pod.cgroup);
            change(&mut runtime, 3, new_pod).await;
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    println!(
        "{others:>3} containers, bursts of 50, CreateContainer {}",
        figures(&mut times)
    );
    agent.stop();
}

/// Requests that need no work of their own, one every 2 ms, while pods come and go beside `others`
/// containers. A shared container gets nothing, so the time of its answer is how long the request
/// waits for the agent.
async fn queue(kernel: &Kernel, others: usize) {
    let mut tree = kernel.tree();
    let (agent, mut runtime, _socket) = synchronized(kernel, &mut tree, others, &[]).await;
    let probe = pod(&tree, "besteffort", "probe", 2, None);
    change(&mut runtime, 1, &probe).await;
    let request = EventMessage {
        pod: Some(probe.sandbox.clone()),
        container: Some(probe.container.clone()),
    };
    let mut times = Vec::new();
    let cpu_before = agent.metric("process_cpu_seconds_total", &[]).unwrap();
    let begun = Instant::now();
    let mut probe_for = async |runtime: &mut FakeRuntime, limit: Duration| {
        let until = Instant::now() + limit;
        while Instant::now() < until {
            let start = Instant::now();
            let create = runtime.call("CreateContainer", request.encode_to_vec());
            create.await.unwrap();
            times.push(start.elapsed());
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    for life in 0..60 {
        let new_pod = pod(&tree, "", &format!("worker-{life}"), 1024, Some(100_000));
        let message = EventMessage {
            pod: Some(new_pod.sandbox.clone()),
            container: Some(new_pod.container.clone()),
        };
        change(&mut runtime, 1, &new_pod).await;
        let create = runtime.call("CreateContainer", message.encode_to_vec());
        create.await.unwrap();
        let cgroup = tree.container(&new_pod.cgroup, &new_pod.container.id);
        tree.start(&cgroup);
        probe_for(&mut runtime, Duration::from_millis(50)).await;
        change(&mut runtime, 6, &new_pod).await;
        probe_for(&mut runtime, Duration::from_millis(300)).await;
        let stop = runtime.call("StopContainer", message.encode_to_vec());
        stop.await.unwrap();
        tree.remove(&cgroup);
        change(&mut runtime, 11, &new_pod).await;
        change(&mut runtime, 2, &new_pod).await;
        tree.remove(&new_pod.cgroup);
        change(&mut runtime, 3, &new_pod).await;
        probe_for(&mut runtime, Duration::from_millis(150)).await;
    }
    let cpu = agent.metric("process_cpu_seconds_total", &[]).unwrap() - cpu_before;
    println!(
        "{others:>3} containers, a request every 2 ms beside pods that come and go: {}; the agent took {:.1} % of a CPU",
        figures(&mut times),
        100.0 * cpu / begun.elapsed().as_secs_f64()
    );
    agent.stop();
}

/// The agent's answers beside a kubelet, in turns: Pinfold chooses the CPUs, it observes those of the kubelet without asking for
/// them, and the kubelet chooses them. Without partitions the second and the third way write nothing, so they differ only in
/// the question to the kubelet's socket.
fn beside_kubelet(tokio: &tokio::runtime::Runtime, kernel: &Kernel, others: usize) {
    let ways = [
        ("Pinfold chooses", false, "auto"),
        ("observed, not asked", true, "pinfold"),
        ("the kubelet chooses", true, "auto"),
    ];
    let mut times: [[Vec<Duration>; 2]; 3] = Default::default();
    for turn in 0..KUBELET_TURNS.0 {
        for (way, (_, assigns, source)) in ways.iter().enumerate() {
            let root = Root::new();
            let kubelet = root.kubelet(*assigns);
            // A kubelet that reports a container's CPUs assigns them, whatever it says of its policy.
            let (other, cpu) = if *assigns { ("0", "1") } else { ("", "") };
            for number in 0..others {
                kubelet.gives(&format!("other-{number}"), other);
            }
            // The kubelet has a runtime of its own, so it is made and dropped outside of this one.
            tokio.block_on(async {
                let mut tree = kernel.tree();
                let options = ["--root-dir", root.path(), "--placement-source", source];
                let (agent, mut runtime, _socket) =
                    synchronized(kernel, &mut tree, others, &options).await;
                for life in 0..KUBELET_TURNS.1 {
                    let name = format!("worker-{turn}-{life}");
                    kubelet.gives(&name, cpu);
                    one_life(&mut tree, &mut runtime, &name, &mut times[way]).await;
                    kubelet.forgets(&name);
                }
                agent.stop();
            });
        }
    }
    for (call, name) in ["CreateContainer", "StartContainer"]
        .into_iter()
        .enumerate()
    {
        let mut medians = [0.0; 3];
        for (way, (title, ..)) in ways.iter().enumerate() {
            let of_way = &mut times[way][call];
            println!(
                "{others:>3} containers, {name:15} {title:>19}: {}",
                figures(of_way)
            );
            medians[way] = quantile(of_way, 50).as_secs_f64();
        }
        println!(
            "{others:>3} containers, {name:15} the question adds {:+.3} ms; beside Pinfold's own choice, the ratio of medians is {:.3}",
            1000.0 * (medians[2] - medians[1]),
            medians[2] / medians[0]
        );
    }
}

/// A container comes, starts 50 ms later, and goes. Adds the times of its creation and of its start.
async fn one_life(
    tree: &mut Tree<'_>,
    runtime: &mut FakeRuntime,
    name: &str,
    times: &mut [Vec<Duration>; 2],
) {
    let new_pod = pod(tree, "", name, 1024, Some(100_000));
    change(runtime, 1, &new_pod).await;
    tokio::time::sleep(Duration::from_millis(30)).await;
    let message = EventMessage {
        pod: Some(new_pod.sandbox.clone()),
        container: Some(new_pod.container.clone()),
    };
    let start = Instant::now();
    let create = runtime.call("CreateContainer", message.encode_to_vec());
    create.await.unwrap();
    times[0].push(start.elapsed());
    let cgroup = tree.container(&new_pod.cgroup, &new_pod.container.id);
    tree.start(&cgroup);
    tokio::time::sleep(Duration::from_millis(50)).await;
    let start = Instant::now();
    change(runtime, 6, &new_pod).await;
    times[1].push(start.elapsed());
    let stop = runtime.call("StopContainer", message.encode_to_vec());
    stop.await.unwrap();
    tree.remove(&cgroup);
    change(runtime, 11, &new_pod).await;
    change(runtime, 2, &new_pod).await;
    tree.remove(&new_pod.cgroup);
    change(runtime, 3, &new_pod).await;
}

/// A pod with one container as described by a runtime, and the pod's cgroup.
struct CreatedPod {
    sandbox: PodSandbox,
    container: Container,
    cgroup: String,
}

fn pod(tree: &Tree<'_>, class: &str, name: &str, shares: u64, quota: Option<i64>) -> CreatedPod {
    let cgroup = tree.pod(class, &format!("{name}-uid"));
    let worker = [
        ("training.kubeflow.org/job-name", "job"),
        ("training.kubeflow.org/replica-type", "worker"),
    ];
    let labels = worker
        .into_iter()
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .collect();
    let sandbox = PodSandbox {
        id: format!("sandbox-{name}"),
        name: name.to_owned(),
        uid: format!("{name}-uid"),
        namespace: "train".to_owned(),
        labels: if quota.is_some() {
            labels
        } else {
            BTreeMap::new()
        },
        linux: Some(LinuxPodSandbox {
            cgroup_parent: format!("/{cgroup}"),
            ..LinuxPodSandbox::default()
        }),
        ..PodSandbox::default()
    };
    let cpu = LinuxCpu {
        shares: Some(OptionalUInt64 { value: shares }),
        quota: quota.map(|value| OptionalInt64 { value }),
        period: quota.map(|_| OptionalUInt64 { value: 100_000 }),
        ..LinuxCpu::default()
    };
    let memory = quota.map(|_| LinuxMemory {
        limit: Some(OptionalInt64 { value: 1 << 30 }),
    });
    let env = |number: usize| format!("SERVICE_{number}_HOST=10.0.0.{number}");
    let container = Container {
        id: format!("{name}-main"),
        pod_sandbox_id: sandbox.id.clone(),
        name: "main".to_owned(),
        // Variables that the kubelet adds to every environment.
        env: (0..30).map(env).collect(),
        args: vec!["python".to_owned(), "train.py".to_owned()],
        linux: Some(LinuxContainer {
            resources: Some(LinuxResources {
                cpu: Some(cpu),
                memory,
            }),
            cgroups_path: format!("/{cgroup}/{name}-main"),
        }),
        ..Container::default()
    };
    CreatedPod {
        sandbox,
        container,
        cgroup,
    }
}

async fn change(runtime: &mut FakeRuntime, event: i32, new_pod: &CreatedPod) {
    let of_container = event > 3;
    let message = StateChange {
        event,
        pod: Some(new_pod.sandbox.clone()),
        container: of_container.then(|| new_pod.container.clone()),
    };
    runtime
        .call("StateChange", message.encode_to_vec())
        .await
        .unwrap();
}

// --- the time added to a container's creation ---

fn creation(kernel: &Kernel, suite: &str) {
    let tree = kernel.tree();
    let runtime = Runtime::start(suite);
    let spec = PodSpec::worker("worker", 1);
    let pod = Pod::run(kernel, &tree, &runtime, &spec);
    let mut number = 0;
    // Durations of create and start, without and with the plugin.
    let mut times: [[Vec<Duration>; 2]; 2] = Default::default();
    lives(
        &pod,
        &spec.containers[0],
        &mut number,
        &mut Default::default(),
    );
    for _ in 0..TURNS.0 {
        lives(&pod, &spec.containers[0], &mut number, &mut times[0]);
        let agent = beside(kernel, &tree, &runtime);
        lives(&pod, &spec.containers[0], &mut number, &mut times[1]);
        agent.stop();
    }
    for (call, name) in ["CreateContainer", "StartContainer"]
        .into_iter()
        .enumerate()
    {
        for (with, word) in ["without", "with"].into_iter().enumerate() {
            println!(
                "containerd {}, {name:15} {word:>7} {}",
                runtime.version,
                figures(&mut times[with][call])
            );
        }
        let [without, with] = [0, 1].map(|with| quantile(&times[with][call], 50).as_secs_f64());
        println!(
            "containerd {}, {name:15} median {:+.2} ms, ratio {:.3}",
            runtime.version,
            1000.0 * (with - without),
            with / without
        );
    }
    pod.remove();
    runtime.stop();
}

fn lives(pod: &Pod<'_>, spec: &ContainerSpec, number: &mut u32, times: &mut [Vec<Duration>; 2]) {
    for _ in 0..TURNS.1 {
        *number += 1;
        let start = Instant::now();
        let container = pod
            .create(spec, *number)
            .unwrap_or_else(|refused| panic!("{refused}"));
        let created = Instant::now();
        container
            .begin()
            .unwrap_or_else(|refused| panic!("{refused}"));
        times[0].push(created - start);
        times[1].push(created.elapsed());
        container.remove();
    }
}

fn beside(kernel: &Kernel, tree: &Tree<'_>, runtime: &Runtime) -> Agent {
    let socket = runtime.nri().display().to_string();
    let args = ["--api=never", "--nri=always", "--nri-socket", &socket];
    let agent = Settings::without_manifests(&tree.path, &kernel.all_but_one())
        .with(&args)
        .start();
    agent.eventually("the runtime asks the agent", |status| {
        status["runtime"]["state"] == "synchronized"
    });
    agent
}

// --- figures ---

fn figures(times: &mut [Duration]) -> String {
    times.sort_unstable();
    let at = |percent: usize| format!("{:.3}", 1000.0 * quantile(times, percent).as_secs_f64());
    let mean = times.iter().sum::<Duration>().as_secs_f64() / times.len() as f64;
    format!(
        "median {:>8} ms, mean {:>8.3} ms, p99 {:>8} ms, max {:>8} ms, of {}",
        at(50),
        1000.0 * mean,
        at(99),
        at(100),
        times.len()
    )
}

fn quantile(sorted: &[Duration], percent: usize) -> Duration {
    sorted[(sorted.len() - 1) * percent / 100]
}
