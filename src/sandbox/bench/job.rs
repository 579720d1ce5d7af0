//! The pods of a run: the job's pods and the neighbors, in the form that the agent reads.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use anyhow::Context;
use serde_json::json;

use super::plan::{BenchPlan, BenchProgram, Cpus, ThreadChoice, Way};
use crate::pod::{
    self, CPUS_ANNOTATION, Pod, Policy, THREADS_ANNOTATION, ThreadBasis, ThreadPolicy,
    thread_environment,
};

/// The port of a parameter server.
const PORT: u16 = 2222;

/// The first address of the pods.
const NETWORK: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);

/// The most pods with an address: a network has 254 addresses.
pub const MOST_ADDRESSES: u32 = 200;

#[derive(Debug, Clone)]
pub struct BenchPod {
    /// The pod in the form that the agent reads.
    pub pod: Pod,
    pub manifest: String,
    /// The pod's role in the job.
    pub part: PodWork,
    pub args: Vec<String>,
    /// The pod's variables in addition to the agent's.
    pub env: BTreeMap<String, String>,
    /// The pod's address; `None` in the network namespace of the bench.
    pub address: Option<Ipv4Addr>,
    /// Whether the pod gets exclusive CPUs.
    pub exclusive: bool,
    /// Whether the pod runs the command. Its program is then the shell, with the variables of the
    /// bench's environment.
    pub runs_command: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PodWork {
    Ps,
    Worker,
    Command,
    Neighbor,
}

/// The pods of a run, in starting order: servers and neighbors before workers. `number` keeps the
/// uids apart from those of earlier runs.
///
/// # Errors
/// The manifest reader refuses a generated manifest, which would be a defect.
pub fn pods(plan: &BenchPlan, way: Way, number: usize) -> anyhow::Result<Vec<BenchPod>> {
    let address = |index: u32| Ipv4Addr::from(u32::from(NETWORK) + index);
    let hosts: Vec<String> = (0..plan.ps)
        .map(|index| format!("{}:{PORT}", address(index)))
        .collect();
    let hosts = hosts.join(",");
    let mut pods = Vec::new();
    for index in 0..plan.ps {
        let member = BenchMember {
            part: PodWork::Ps,
            index,
            cpus: plan.ps_cpus.max(1),
            own: plan.ps_cpus > 0,
        };
        let mut pod = member.pod(plan, way, &uid(number, pods.len()))?;
        pod.args.extend(train("ps", index, &hosts));
        pod.args
            .extend(["--listen".to_owned(), format!("{}:{PORT}", address(index))]);
        pod.address = Some(address(index));
        pods.push(pod);
    }
    for index in 0..plan.neighbors.count {
        let uid = uid(number, pods.len());
        pods.push(neighbor(plan, index, &uid)?);
    }
    for index in 0..plan.workers {
        let member = BenchMember {
            part: PodWork::Worker,
            index,
            cpus: plan.cpus,
            own: plan.cpus > 0,
        };
        let mut pod = member.pod(plan, way, &uid(number, pods.len()))?;
        match &plan.work {
            BenchProgram::BuiltIn => {
                pod.args.extend(train("worker", index, &hosts));
                pod.args.push("--each-step".to_owned());
                pod.address = Some(address(plan.ps + index));
            }
            BenchProgram::Command { line, .. } => {
                pod.part = PodWork::Command;
                pod.run_command(line.clone(), index);
            }
        }
        pods.push(pod);
    }
    Ok(pods)
}

/// The variables that the agent sets for a worker of a plan, which are the same for exclusive CPUs
/// and for a CPU limit.
pub fn right_variables(plan: &BenchPlan) -> anyhow::Result<BTreeMap<String, String>> {
    let member = BenchMember {
        part: PodWork::Worker,
        index: 0,
        cpus: plan.cpus,
        own: true,
    };
    let right = Way {
        cpus: Cpus::Pinned,
        threads: ThreadChoice::Right,
    };
    let pod = member.pod(plan, right, &uid(0, 0))?;
    Ok(variables(&pod.pod, plan.cpus))
}

/// The variables for a number of CPUs.
fn variables(pod: &Pod, cpus: u32) -> BTreeMap<String, String> {
    let cpus = cpus as usize;
    let basis = ThreadBasis::exclusive(cpus, cpus, 1);
    thread_environment(
        &pod.clone().into(),
        0,
        &Policy::default(),
        &ThreadPolicy::default(),
        Some(basis),
    )
    .variables
}

impl BenchPod {
    /// Makes the pod run a line of the shell. `number` distinguishes the copies.
    fn run_command(&mut self, line: String, number: u32) {
        self.runs_command = true;
        self.args = vec!["-c".to_owned(), line];
        self.env
            .insert("PINFOLD_BENCH_INDEX".to_owned(), number.to_string());
    }
}

struct BenchMember {
    part: PodWork,
    index: u32,
    cpus: u32,
    /// Whether the pod gets exclusive CPUs in the pinned ways.
    own: bool,
}

impl BenchMember {
    fn pod(&self, plan: &BenchPlan, way: Way, uid: &str) -> anyhow::Result<BenchPod> {
        let role = if self.part == PodWork::Ps {
            "ps"
        } else {
            "worker"
        };
        let exclusive = self.own && way.cpus == Cpus::Pinned;
        let manifest = |threads: ThreadChoice| {
            let mut annotations = serde_json::Map::new();
            if !exclusive {
                annotations.insert(CPUS_ANNOTATION.to_owned(), json!("shared"));
            }
            if threads == ThreadChoice::Host {
                annotations.insert(THREADS_ANNOTATION.to_owned(), json!("off"));
            }
            let resources = json!({ "cpu": self.cpus.to_string(), "memory": "1Gi" });
            json!({
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {
                    "name": format!("{role}-{}", self.index),
                    "namespace": "bench",
                    "uid": uid,
                    "labels": {
                        "training.kubeflow.org/job-name": "bench",
                        "training.kubeflow.org/replica-type": role,
                        "training.kubeflow.org/replica-index": self.index.to_string(),
                    },
                    "annotations": annotations,
                },
                "spec": { "containers": [{
                    "name": "task",
                    "image": "bench",
                    "resources": { "requests": resources, "limits": resources },
                }]},
            })
        };
        let mut pod = bench_pod(&manifest(way.threads), self.part, exclusive)?;
        if let (ThreadChoice::Host, Some(host)) = (way.threads, plan.host_threads) {
            pod.env = variables(
                &bench_pod(&manifest(ThreadChoice::Right), self.part, exclusive)?.pod,
                host,
            );
        }
        Ok(pod)
    }
}

fn neighbor(plan: &BenchPlan, index: u32, uid: &str) -> anyhow::Result<BenchPod> {
    let manifest = plan.neighbors.manifest(index, "bench", uid);
    let mut pod = bench_pod(&manifest, PodWork::Neighbor, false)?;
    if !plan.full_node {
        pod.args = plan.neighbors.args(index);
        return Ok(pod);
    }
    // The number goes on from the workers' numbers, so that copies of a command do not use the same
    // files.
    let number = plan.workers + index;
    if let Some(host) = plan.host_threads {
        let member = BenchMember {
            part: PodWork::Worker,
            index: number,
            cpus: plan.cpus,
            own: false,
        };
        let sized = Way {
            cpus: Cpus::Shared,
            threads: ThreadChoice::Right,
        };
        pod.env = variables(&member.pod(plan, sized, uid)?.pod, host);
    }
    match &plan.work {
        BenchProgram::BuiltIn => pod.args = train("worker", number, ""),
        BenchProgram::Command { line, .. } => {
            // The neighbor runs as long as the measurement, so the command is repeated.
            let again = format!("while :; do (\n{line}\n) || exit; done");
            pod.run_command(again, number);
        }
    }
    Ok(pod)
}

fn bench_pod(
    manifest: &serde_json::Value,
    part: PodWork,
    exclusive: bool,
) -> anyhow::Result<BenchPod> {
    let manifest = manifest.to_string();
    let pod = pod::parse(&manifest, "the bench's own manifest")?
        .pop()
        .context("the bench's manifest has no pod")?;
    Ok(BenchPod {
        pod,
        manifest,
        part,
        args: Vec::new(),
        env: BTreeMap::new(),
        address: None,
        exclusive,
        runs_command: false,
    })
}

/// The arguments of the built-in job. Without hosts, a worker keeps the parameters itself.
fn train(role: &str, index: u32, hosts: &str) -> Vec<String> {
    let index = index.to_string();
    let mut args = vec!["train", role, "--task-index", &index];
    match hosts {
        "" => args.push("--own-parameters"),
        hosts => args.extend(["--ps-hosts", hosts]),
    }
    args.into_iter().map(str::to_owned).collect()
}

fn uid(run: usize, pod: usize) -> String {
    format!("be4c0000-{:04x}-4000-8000-{pod:012x}", run & 0xffff)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::{Entitlement, Qos};
    use crate::sandbox::bench::plan::{PlanOptions, tests::machine};

    fn plan(cores: u32, options: PlanOptions) -> BenchPlan {
        let options = PlanOptions {
            rounds: 4,
            seconds: 2,
            ..options
        };
        BenchPlan::new(options, &machine(cores), &"0".parse().unwrap()).unwrap()
    }

    fn owed(pod: &Pod) -> u32 {
        let policy = Policy::default();
        let pod = pod::RecognizedPod::from(pod.clone());
        pod.containers
            .iter()
            .map(|container| Entitlement::cpus(&pod::entitlement(&pod, container, &policy)))
            .sum()
    }

    #[test]
    fn the_agent_reads_the_way_from_the_pods() {
        let plan = plan(8, PlanOptions::default());
        for way in Way::ALL {
            let pods = pods(&plan, way, 3).unwrap();
            assert_eq!(pods.len(), 5);
            for pod in &pods {
                let threads = variables(&pod.pod, 3);
                let job = pod.part != PodWork::Neighbor;
                let own = job && way.cpus == Cpus::Pinned;
                assert_eq!(
                    (owed(&pod.pod) > 0, pod.exclusive),
                    (own, own),
                    "{way:?} {}",
                    pod.pod.name
                );
                let sized = job && way.threads == ThreadChoice::Right;
                assert_eq!(
                    !threads.is_empty(),
                    sized,
                    "{way:?} {}: {threads:?}",
                    pod.pod.name
                );
                assert!(pod.env.is_empty());
                let qos = if job { Qos::Guaranteed } else { Qos::Burstable };
                assert_eq!(pod::qos(&pod.pod), qos);
            }
        }
    }

    #[test]
    fn workers_with_the_hosts_threads_get_the_variables_of_a_larger_host() {
        let plan = plan(
            4,
            PlanOptions {
                host_threads: Some(80),
                ..PlanOptions::default()
            },
        );
        for way in Way::ALL {
            let pods = pods(&plan, way, 0).unwrap();
            for pod in pods.iter().filter(|pod| pod.part != PodWork::Ps) {
                let sets_threads = pod.part == PodWork::Worker && way.threads == ThreadChoice::Host;
                let intra = pod.env.get("TF_NUM_INTRAOP_THREADS").map(String::as_str);
                assert_eq!(
                    intra,
                    sets_threads.then_some("80"),
                    "{way:?} {}",
                    pod.pod.name
                );
            }
        }
        assert_eq!(
            right_variables(&plan).unwrap()["TF_NUM_INTRAOP_THREADS"],
            "1"
        );
    }

    #[test]
    fn a_command_has_no_servers_and_no_network_of_its_own() {
        let command = Some("exec train".to_owned());
        let plan = plan(
            8,
            PlanOptions {
                command,
                workers: Some(2),
                neighbor_pods: Some(0),
                ..PlanOptions::default()
            },
        );
        let pods = pods(&plan, Way::ALL[0], 0).unwrap();
        let parts: Vec<_> = pods.iter().map(|pod| (pod.part, pod.address)).collect();
        assert_eq!(parts, [(PodWork::Command, None); 2]);
        assert_eq!(pods[1].env["PINFOLD_BENCH_INDEX"], "1");
        assert_eq!(pods[1].args, ["-c", "exec train"]);
    }

    #[test]
    fn a_full_node_runs_the_same_program_everywhere() {
        let full = |command: Option<&str>| {
            let plan = plan(
                8,
                PlanOptions {
                    full_node: true,
                    host_threads: Some(80),
                    command: command.map(str::to_owned),
                    ..PlanOptions::default()
                },
            );
            pods(&plan, Way::ALL[3], 0).unwrap()
        };
        let built_in = full(None);
        let [neighbor, worker] = built_in.as_slice() else {
            panic!("{built_in:?}")
        };
        assert_eq!(
            neighbor.args.join(" "),
            "train worker --task-index 1 --own-parameters"
        );
        assert!(
            worker
                .args
                .join(" ")
                .starts_with("train worker --task-index 0 --own-parameters")
        );
        assert_eq!(
            (
                pod::qos(&neighbor.pod),
                owed(&neighbor.pod),
                owed(&worker.pod)
            ),
            (Qos::Burstable, 0, 4)
        );
        assert_eq!(neighbor.env["TF_NUM_INTRAOP_THREADS"], "80");
        assert!(worker.env.is_empty());
        let request = |pod: &BenchPod| pod.pod.containers[0].resources.cpu_request;
        assert_eq!(request(neighbor), request(worker));
        let command = full(Some("true"));
        assert_eq!(
            command[0].args,
            ["-c", "while :; do (\ntrue\n) || exit; done"]
        );
        assert_eq!(command[0].env["PINFOLD_BENCH_INDEX"], "1");
        assert!(command.iter().all(|pod| pod.runs_command));
        assert_eq!(
            (command[0].part, command[1].part),
            (PodWork::Neighbor, PodWork::Command)
        );
    }

    #[test]
    fn servers_and_neighbors_start_before_workers() {
        let order = |options| -> Vec<PodWork> {
            let pods = pods(
                &plan(
                    8,
                    PlanOptions {
                        neighbor_pods: Some(1),
                        ..options
                    },
                ),
                Way::ALL[0],
                0,
            )
            .unwrap();
            pods.iter().map(|pod| pod.part).collect()
        };
        assert_eq!(
            order(PlanOptions::default()),
            [
                PodWork::Ps,
                PodWork::Neighbor,
                PodWork::Worker,
                PodWork::Worker
            ]
        );
        let command = PlanOptions {
            command: Some("true".to_owned()),
            ..PlanOptions::default()
        };
        assert_eq!(order(command), [PodWork::Neighbor, PodWork::Command]);
    }

    #[test]
    fn uids_of_runs_differ() {
        let plan = plan(8, PlanOptions::default());
        let mut uids = std::collections::BTreeSet::new();
        for number in 0..300 {
            for pod in pods(&plan, Way::ALL[number % 4], number).unwrap() {
                assert!(uids.insert(pod.pod.cgroup_uid().unwrap().to_owned()));
            }
        }
    }
}
