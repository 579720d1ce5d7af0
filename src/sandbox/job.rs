//! The demo's pods: a small training job, sized to the machine, and the neighbors.

use std::net::Ipv4Addr;

use anyhow::Context;
use serde_json::json;

use super::neighbors::{NeighborKind, Neighbors};
use crate::cpu::{CpuSet, Topology};
use crate::pod::{self, CPUS_ANNOTATION, Pod, THREADS_ANNOTATION};
use crate::text::counted;

const NAMESPACE: &str = "demo";

/// The port of a parameter server.
const PORT: u16 = 2222;

/// The address of the first neighbor.
const NEIGHBORS: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 100);

/// The fewest CPUs of a machine for a job with a parameter server.
pub const SERVER_CPUS: usize = 4;

/// The CPUs and the threads of the job's pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Shared CPUs, with as many threads as the host has CPUs.
    Shared,
    /// Exclusive CPUs, with as many threads as exclusive CPUs.
    Pinned,
}

#[derive(Debug, Clone)]
pub struct DemoPod {
    /// The pod in the form that the agent reads.
    pub pod: Pod,
    pub manifest: String,
    /// The arguments of the `pinfold` program in the container.
    pub args: Vec<String>,
    pub address: Ipv4Addr,
}

/// How many pods the job has, and their CPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size {
    pub workers: u32,
    pub worker_cpus: u32,
    /// The number of parameter servers with one CPU. Without one, each worker keeps the parameters
    /// itself.
    pub servers: u32,
}

/// The job and the other pods of the node.
#[derive(Debug, Clone)]
pub struct Setting {
    pub size: Size,
    pub kind: NeighborKind,
    pub neighbors: Neighbors,
    /// The number of the machine's CPUs.
    online: usize,
    /// Whether the server gets no exclusive CPU.
    is_server_shared: bool,
    /// Whether all CPUs are known to share a last-level cache.
    has_one_llc: bool,
}

// === impl Size ===

impl Size {
    /// The largest job that fits this machine: two workers of up to 4 CPUs beside a server of 1.
    /// With fewer than [`SERVER_CPUS`] CPUs, the job is a single worker, because a server would
    /// share a CPU with everything else and hold it up. A value of `has_server` overrides this
    /// choice.
    ///
    /// # Errors
    /// No CPU to give away.
    pub fn of(
        topology: &Topology,
        reserved: &CpuSet,
        has_server: Option<bool>,
    ) -> anyhow::Result<Self> {
        let free = u32::try_from(topology.online.difference(reserved).len())?;
        anyhow::ensure!(
            free > 0,
            "no CPU for exclusive use: a core of the CPUs {} is reserved for the system; use a machine with at least two \
             cores",
            topology.online
        );
        let has_server = has_server.unwrap_or(topology.online.len() >= SERVER_CPUS && free > 1);
        let (workers, worker_cpus) = match (free, has_server) {
            (1 | 2, true) => (1, 1),
            (3 | 4, true) => (2, 1),
            (more, true) => (2, ((more - 1) / 2).min(4)),
            (all, false) => (1, all.min(4)),
        };
        Ok(Self {
            workers,
            worker_cpus,
            servers: u32::from(has_server),
        })
    }

    /// The sum of the job's CPU requests, in thousandths of a CPU.
    fn requested(&self) -> u64 {
        1000 * (u64::from(self.workers) * u64::from(self.worker_cpus) + u64::from(self.servers))
    }
}

// === impl Setting ===

impl Setting {
    /// The job that fits this machine, and neighbors of a kind.
    ///
    /// # Errors
    /// No CPU to give away.
    pub fn of(
        topology: &Topology,
        reserved: &CpuSet,
        kind: NeighborKind,
        has_server: Option<bool>,
    ) -> anyhow::Result<Self> {
        let size = Size::of(topology, reserved, has_server)?;
        let online = topology.online.len();
        let rest = (1000 * online as u64).saturating_sub(size.requested());
        let free = topology.online.difference(reserved).len() as u64;
        let known = topology.cpus.iter().all(|cpu| cpu.llc.is_some());
        Ok(Self {
            size,
            kind,
            neighbors: Neighbors::new(kind, online, rest),
            online,
            is_server_shared: size.requested() > 1000 * free,
            has_one_llc: known && topology.llcs().len() == 1,
        })
    }

    /// The comparison, the neighbors, and the limits of this machine, each as a sentence.
    pub fn in_words(&self) -> Vec<String> {
        let Size {
            workers,
            worker_cpus,
            servers,
        } = self.size;
        let online = self.online;
        let job = format!(
            "{} of {}",
            counted(workers, "worker"),
            counted(worker_cpus, "CPU")
        );
        let job = if servers == 0 {
            format!("{job} that keeps its parameters itself")
        } else {
            format!(
                "{job} and {} of 1 CPU",
                counted(servers, "parameter server")
            )
        };
        let mut sentences = vec![
            "The same job runs in turns on shared CPUs with a thread for each CPU of the host, and on exclusive CPUs with a \
             thread for each of them."
                .to_owned(),
            format!("The job is {job}."),
            self.beside(),
        ];
        if self.is_server_shared {
            sentences.push(
                "The server gets no exclusive CPU here, so the worker waits for a server on shared CPUs in both ways."
                    .to_owned(),
            );
        }
        if servers == 0 && online < SERVER_CPUS {
            sentences.push(format!(
                "With {}, the comparison shows the effect on one worker; a job with a parameter server needs a machine with \
                 {SERVER_CPUS} CPUs or more.",
                counted(online, "CPU")
            ));
        }
        if self.has_one_llc {
            sentences.push(
                "All CPUs share one last-level cache, so the neighbors compete for the cache in both ways."
                    .to_owned(),
            );
        }
        sentences
    }

    /// The other pods, as a sentence.
    fn beside(&self) -> String {
        let neighbors = &self.neighbors;
        if neighbors.requested() == 0 {
            return neighbors.without_requests("the job");
        }
        format!(
            "The neighbors ({}) request the other {:.1} of {} CPUs: the node is full.",
            neighbors.in_words("pod"),
            neighbors.requested() as f64 / 1000.0,
            self.online
        )
    }
}

/// The pods of a run, in starting order. `run` keeps their uids apart from those of another run.
///
/// # Errors
/// The manifest reader refuses a generated manifest, which would be a defect.
pub fn pods(setting: &Setting, mode: Mode, run: u32) -> anyhow::Result<Vec<DemoPod>> {
    let Setting {
        size, neighbors, ..
    } = setting;
    let server = Ipv4Addr::new(10, 77, 0, 2);
    let hosts = (size.servers > 0).then(|| format!("{server}:{PORT}"));
    let mut pods = Vec::new();
    for index in 0..size.workers {
        let member = JobPod {
            role: "worker",
            index,
            cpus: size.worker_cpus,
            hosts: hosts.as_deref(),
            address: Ipv4Addr::from(u32::from(server) + 1 + index),
        };
        pods.push(training(member, mode, run)?);
    }
    // Workers come first, because a single available CPU has the greatest effect on them.
    if size.servers > 0 {
        let member = JobPod {
            role: "ps",
            index: 0,
            cpus: 1,
            hosts: hosts.as_deref(),
            address: server,
        };
        pods.push(training(member, mode, run)?);
    }
    for index in 0..neighbors.count {
        let manifest = neighbors.manifest(index, NAMESPACE, &uid(run, 100 + index));
        let address = Ipv4Addr::from(u32::from(NEIGHBORS) + index);
        pods.push(demo_pod(&manifest, neighbors.args(index), address)?);
    }
    Ok(pods)
}

#[derive(Clone, Copy)]
struct JobPod<'a> {
    role: &'a str,
    index: u32,
    cpus: u32,
    /// The addresses of the servers; `None` for a worker that keeps the parameters itself.
    hosts: Option<&'a str>,
    address: Ipv4Addr,
}

fn training(member: JobPod<'_>, mode: Mode, run: u32) -> anyhow::Result<DemoPod> {
    let JobPod {
        role,
        index,
        cpus,
        hosts,
        address,
    } = member;
    let resources = json!({ "cpu": cpus.to_string(), "memory": "256Mi" });
    let annotations = match mode {
        Mode::Shared => json!({ CPUS_ANNOTATION: "shared", THREADS_ANNOTATION: "off" }),
        Mode::Pinned => json!({}),
    };
    let mut args = vec!["train".to_owned(), role.to_owned()];
    args.extend(["--task-index".to_owned(), index.to_string()]);
    match hosts {
        Some(hosts) => args.extend(["--ps-hosts".to_owned(), hosts.to_owned()]),
        None => args.push("--own-parameters".to_owned()),
    }
    if role == "worker" {
        args.push("--each-step".to_owned());
    }
    if let ("ps", Some(hosts)) = (role, hosts) {
        args.extend(["--listen".to_owned(), hosts.to_owned()]);
    }
    let number = if role == "ps" { 0 } else { index + 1 };
    let manifest = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": format!("{role}-{index}"),
            "namespace": NAMESPACE,
            "uid": uid(run, number),
            "labels": {
                "training.kubeflow.org/job-name": "demo",
                "training.kubeflow.org/replica-type": role,
                "training.kubeflow.org/replica-index": index.to_string(),
            },
            "annotations": annotations,
        },
        "spec": { "containers": [{
            "name": "tensorflow",
            "image": "pinfold",
            "args": args,
            "resources": { "requests": resources, "limits": resources },
        }]},
    });
    demo_pod(&manifest, args, address)
}

fn demo_pod(
    manifest: &serde_json::Value,
    args: Vec<String>,
    address: Ipv4Addr,
) -> anyhow::Result<DemoPod> {
    let manifest = manifest.to_string();
    let pod = pod::parse(&manifest, "the demo's own manifest")?
        .pop()
        .context("the demo's manifest has no pod")?;
    Ok(DemoPod {
        pod,
        manifest,
        args,
        address,
    })
}

fn uid(run: u32, number: u32) -> String {
    format!("d3e00000-0000-4000-8{run:03x}-{number:012x}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::{Numbering, Shape};
    use crate::pod::{Entitlement, Policy};

    fn machine(cores: u32, threads: u32) -> Topology {
        Topology::from_shape(Shape {
            sockets: 1,
            numa_per_socket: 1,
            llcs_per_numa: 1,
            cores_per_llc: cores,
            threads_per_core: threads,
            numbering: Numbering::SiblingsLast,
        })
    }

    #[test]
    fn the_job_fits_the_machine() {
        for (cores, threads) in [(2, 1), (3, 1), (4, 1), (4, 2), (8, 1), (64, 2)] {
            let topology = machine(cores, threads);
            let reserved = crate::pin::decide::default_reserved(&topology, &CpuSet::new());
            let size = Size::of(&topology, &reserved, None).unwrap();
            let free = topology.online.len() - reserved.len();
            let servers = u32::from(topology.online.len() >= 4);
            assert_eq!(size.servers, servers, "{cores} cores: {size:?}");
            assert!(
                (size.workers * size.worker_cpus + servers) as usize <= free,
                "{cores} cores: {size:?}"
            );
        }
        let one = machine(1, 2);
        let error = Size::of(&one, &one.online, None).unwrap_err();
        assert!(
            error.to_string().contains("no CPU for exclusive use"),
            "{error}"
        );
    }

    #[test]
    fn the_agent_reads_the_mode_from_the_pods() {
        let setting = setting(8, NeighborKind::Full);
        for (mode, expected) in [(Mode::Shared, 0), (Mode::Pinned, 7)] {
            let pods = pods(&setting, mode, 1).unwrap();
            let owed = |pod: &Pod| -> u32 {
                let pod = pod::RecognizedPod::from(pod.clone());
                let policy = Policy::default();
                pod.containers
                    .iter()
                    .map(|container| pod::entitlement(&pod, container, &policy))
                    .map(|entitlement| Entitlement::cpus(&entitlement))
                    .sum()
            };
            assert_eq!(
                pods.iter().map(|one| owed(&one.pod)).sum::<u32>(),
                expected,
                "{mode:?}"
            );
        }
    }

    fn setting(cores: u32, kind: NeighborKind) -> Setting {
        let topology = machine(cores, 1);
        let reserved = crate::pin::decide::default_reserved(&topology, &CpuSet::new());
        Setting::of(&topology, &reserved, kind, None).unwrap()
    }

    #[test]
    fn the_requests_fill_the_node() {
        for cores in [2, 3, 4, 8, 16, 64] {
            let setting = setting(cores, NeighborKind::Full);
            let pods = pods(&setting, Mode::Pinned, 2).unwrap();
            let requested: u64 = pods
                .iter()
                .flat_map(|one| &one.pod.containers)
                .filter_map(|container| container.resources.cpu_request)
                .sum();
            let rest = u64::from(cores) * 1000 - requested;
            assert!(
                rest < u64::from(setting.neighbors.count),
                "{cores} cores: {rest} thousandths are left"
            );
            for one in pods
                .iter()
                .filter(|one| one.pod.name.starts_with("neighbor"))
            {
                assert_eq!(pod::qos(&one.pod), pod::Qos::Burstable);
            }
        }
        let old = pods(&setting(2, NeighborKind::BestEffort), Mode::Shared, 1).unwrap();
        let names: Vec<_> = old.iter().map(|one| one.pod.name.as_str()).collect();
        assert_eq!(names, ["worker-0", "neighbor-0"]);
        assert_eq!(pod::qos(&old[1].pod), pod::Qos::BestEffort);
    }

    #[test]
    fn a_small_machine_has_a_worker_alone() {
        let small = pods(&setting(2, NeighborKind::Full), Mode::Pinned, 1).unwrap();
        assert_eq!(small.len(), 3);
        assert!(small[0].args.contains(&"--own-parameters".to_owned()));
        let large = pods(&setting(4, NeighborKind::Full), Mode::Pinned, 1).unwrap();
        let servers = large.iter().filter(|one| one.pod.name == "ps-0");
        assert_eq!(servers.count(), 1);
        assert!(
            large
                .iter()
                .all(|one| !one.args.contains(&"--own-parameters".to_owned()))
        );
    }

    #[test]
    fn a_server_can_be_asked_for() {
        let topology = machine(2, 1);
        let reserved = crate::pin::decide::default_reserved(&topology, &CpuSet::new());
        let of = |has_server| Size::of(&topology, &reserved, has_server).unwrap();
        assert_eq!((of(Some(true)).servers, of(Some(false)).servers), (1, 0));
        let setting = Setting::of(&topology, &reserved, NeighborKind::Full, Some(true)).unwrap();
        let pods = pods(&setting, Mode::Pinned, 1).unwrap();
        let names: Vec<_> = pods.iter().map(|one| one.pod.name.as_str()).collect();
        assert_eq!(names, ["worker-0", "ps-0", "neighbor-0", "neighbor-1"]);
        // The job requests both CPUs.
        let words = setting.in_words().join(" ");
        assert!(
            words.contains("request nothing") && words.contains("The server gets no exclusive CPU"),
            "{words}"
        );
    }

    #[test]
    fn the_sentences_have_numbers() {
        let words = |cores, kind| setting(cores, kind).in_words().join(" ");
        let small = words(2, NeighborKind::Full);
        for says in [
            "1 worker of 1 CPU that keeps",
            "(2 pods with 2 threads each) request the other 1.0 of 2 CPUs",
            "With 2 CPUs",
            "one last-level cache",
        ] {
            assert!(small.contains(says), "{says}: {small}");
        }
        let large = words(16, NeighborKind::BestEffort);
        assert!(
            large.contains("2 workers of 4 CPUs and 1 parameter server of 1 CPU")
                && large.contains("(1 BestEffort pod with 17 threads each) request nothing")
                && !large.contains("With 16 CPUs"),
            "{large}"
        );
    }
}
