//! The demo's pods: a small training job, sized to the machine, and a noisy neighbor.

use std::net::Ipv4Addr;

use anyhow::Context;
use serde_json::json;

use crate::cpu::{CpuSet, Topology};
use crate::pod::{self, CPUS_ANNOTATION, Pod, THREADS_ANNOTATION};

/// The namespace in the manifests.
const NAMESPACE: &str = "demo";

/// The port of a parameter server.
const PORT: u16 = 2222;

/// How the job's pods are run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// In the shared pool, threads as many as the host has.
    Shared,
    /// Exclusive CPUs, with threads sized to the CPUs.
    Pinned,
}

/// A pod of the demo.
#[derive(Debug, Clone)]
pub struct DemoPod {
    /// The pod, as the agent reads the pod.
    pub pod: Pod,
    /// Its manifest.
    pub manifest: String,
    /// The arguments of the `pinfold` program in the container.
    pub args: Vec<String>,
    /// Its address.
    pub address: Ipv4Addr,
}

/// How many pods, and how large.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size {
    /// Workers.
    pub workers: u32,
    /// CPUs of each.
    pub worker_cpus: u32,
}

impl Size {
    /// The largest job that fits this machine: two workers of up to 4 CPUs beside a server of 1. With a single CPU to
    /// give away there is one worker, and the server stays in the shared pool.
    ///
    /// # Errors
    /// No CPU to give away.
    pub fn of(topology: &Topology, reserved: &CpuSet) -> anyhow::Result<Self> {
        let free = u32::try_from(topology.online.difference(reserved).len())?;
        anyhow::ensure!(
            free > 0,
            "no CPU for exclusive use: a core of the CPUs {} is reserved for the system; use a machine with at least two \
             cores",
            topology.online
        );
        Ok(match free {
            1 | 2 => Self {
                workers: 1,
                worker_cpus: 1,
            },
            3 | 4 => Self {
                workers: 2,
                worker_cpus: 1,
            },
            more => Self {
                workers: 2,
                worker_cpus: ((more - 1) / 2).min(4),
            },
        })
    }
}

/// The pods of a run, in starting order. `run` makes the uids of a run differ from the uids of another run.
///
/// # Errors
/// The manifest reader refuses a generated manifest, which would be a defect.
pub fn pods(size: Size, mode: Mode, run: u32) -> anyhow::Result<Vec<DemoPod>> {
    let server = Ipv4Addr::new(10, 77, 0, 2);
    let hosts = format!("{server}:{PORT}");
    let mut pods = vec![training(
        Member {
            role: "ps",
            index: 0,
            cpus: 1,
            hosts: &hosts,
            address: server,
        },
        mode,
        run,
    )?];
    for index in 0..size.workers {
        let address = Ipv4Addr::from(u32::from(server) + 1 + index);
        let member = Member {
            role: "worker",
            index,
            cpus: size.worker_cpus,
            hosts: &hosts,
            address,
        };
        pods.push(training(member, mode, run)?);
    }
    // Workers come first: a single available CPU has the greatest effect on a worker.
    pods.rotate_left(1);
    pods.push(neighbor(run)?);
    Ok(pods)
}

#[derive(Clone, Copy)]
struct Member<'a> {
    role: &'a str,
    index: u32,
    cpus: u32,
    hosts: &'a str,
    address: Ipv4Addr,
}

fn training(member: Member<'_>, mode: Mode, run: u32) -> anyhow::Result<DemoPod> {
    let Member {
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
    args.extend([
        "--ps-hosts".to_owned(),
        hosts.to_owned(),
        "--task-index".to_owned(),
        index.to_string(),
    ]);
    if role == "ps" {
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

fn neighbor(run: u32) -> anyhow::Result<DemoPod> {
    let args = vec!["train".to_owned(), "neighbor".to_owned()];
    let manifest = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": { "name": "neighbor", "namespace": NAMESPACE, "uid": uid(run, 99) },
        "spec": { "containers": [{ "name": "noise", "image": "pinfold", "args": args }] },
    });
    demo_pod(&manifest, args, Ipv4Addr::new(10, 77, 0, 100))
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
            let size = Size::of(&topology, &reserved).unwrap();
            let free = topology.online.len() - reserved.len();
            assert!(
                (size.workers * size.worker_cpus) as usize <= free,
                "{cores} cores: {size:?}"
            );
        }
        let one = machine(1, 2);
        let error = Size::of(&one, &one.online).unwrap_err();
        assert!(
            error.to_string().contains("no CPU for exclusive use"),
            "{error}"
        );
    }

    #[test]
    fn the_mode_is_what_the_agent_reads() {
        let size = Size {
            workers: 2,
            worker_cpus: 3,
        };
        for (mode, expected) in [(Mode::Shared, 0), (Mode::Pinned, 7)] {
            let pods = pods(size, mode, 1).unwrap();
            let owed = |pod: &Pod| -> u32 {
                let policy = Policy::default();
                pod.containers
                    .iter()
                    .map(|one| pod::entitlement(pod, one, &policy))
                    .map(|one| Entitlement::cpus(&one))
                    .sum()
            };
            assert_eq!(
                pods.iter().map(|one| owed(&one.pod)).sum::<u32>(),
                expected,
                "{mode:?}"
            );
        }
    }
}
