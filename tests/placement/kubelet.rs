//! The kubelet's own test cases: the requests and the kubelet's answers.

use std::collections::BTreeMap;

use pinfold::cpu::{CpuSet, Topology};
use serde::Deserialize;

use crate::machines::{cpu, machine};

#[derive(Deserialize)]
pub(crate) struct Cases {
    topologies: BTreeMap<String, Machine>,
    pub(crate) cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Machine {
    cpus: Vec<Member>,
}

#[derive(Deserialize)]
struct Member {
    cpu: u32,
    core: i32,
    socket: i32,
    numa: i32,
    uncore: i32,
}

#[derive(Deserialize)]
pub(crate) struct Case {
    pub(crate) name: String,
    topology: String,
    #[serde(flatten)]
    pub(crate) requests: Requests,
    #[serde(default)]
    options: BTreeMap<String, serde_json::Value>,
    /// The CPUs of the last request.
    pub(crate) expected: Option<Vec<u32>>,
    /// The LLCs that all requests together touch.
    pub(crate) expected_uncore_ids: Option<Vec<u32>>,
    pub(crate) expected_error: Option<String>,
}

#[derive(Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub(crate) enum Requests {
    /// A single request out of a free set.
    Take { available: Vec<u32>, num: usize },
    /// The containers of one pod, in order.
    Policy {
        default_cpuset: Vec<u32>,
        reserved: Vec<u32>,
        requests: Vec<usize>,
        numa_hint: Option<Vec<u32>>,
        /// `init` containers give their CPUs to the containers after them; `sidecar` and `app` containers keep theirs.
        #[serde(default)]
        container_kinds: Vec<String>,
    },
}

/// A request in the state at which the kubelet serves it.
pub(crate) struct Request {
    pub(crate) free: CpuSet,
    /// The CPUs that the kubelet takes first, because the hint names them and they do not suffice.
    pub(crate) first: CpuSet,
    pub(crate) n: usize,
}

impl Cases {
    pub(crate) fn load() -> Self {
        let path = crate::repository::here("tests/data/kubelet-cases.json");
        serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
    }

    pub(crate) fn topology(&self, case: &Case) -> Topology {
        let members = self.topologies[&case.topology].cpus.iter();
        machine(
            members
                .map(|member| {
                    cpu(
                        member.cpu,
                        member.core,
                        member.socket,
                        member.numa,
                        member.uncore,
                    )
                })
                .collect(),
        )
    }
}

impl Case {
    pub(crate) fn option(&self, name: &str) -> bool {
        self.options.get(name).is_some_and(|value| *value == true)
    }

    /// Serves all requests with one chooser and returns each with its answer.
    ///
    /// A hint confines the kubelet to the CPUs of the hinted NUMA nodes (of their sockets under
    /// `align-by-socket`) while these suffice. Otherwise the kubelet takes all of them first and
    /// the rest from anywhere. The chooser gets the same choice: the confined free set where it
    /// suffices, else all CPUs, and the CPUs that the kubelet takes first.
    pub(crate) fn serve(
        &self,
        topology: &Topology,
        mut choose: impl FnMut(&Request) -> CpuSet,
    ) -> Vec<(Request, CpuSet)> {
        let (default, reserved, requests, hint, kinds) = match &self.requests {
            Requests::Take { available, num } => {
                let free = available.iter().copied().collect();
                let request = Request {
                    free,
                    first: CpuSet::new(),
                    n: *num,
                };
                let answer = choose(&request);
                return vec![(request, answer)];
            }
            Requests::Policy {
                default_cpuset,
                reserved,
                requests,
                numa_hint,
                container_kinds,
            } => (
                default_cpuset,
                reserved,
                requests,
                numa_hint,
                container_kinds,
            ),
        };
        let reserved: CpuSet = reserved.iter().copied().collect();
        let mut free = default
            .iter()
            .copied()
            .collect::<CpuSet>()
            .difference(&reserved);
        let mut from_init = CpuSet::new();
        let mut served = Vec::new();
        for (turn, &n) in requests.iter().enumerate() {
            // CPUs of a finished init container are used before all other CPUs.
            let mut allowed = if from_init.len() >= n {
                from_init.clone()
            } else {
                free.union(&from_init)
            };
            let mut first = CpuSet::new();
            if let Some(hint) = hint {
                let hinted = topology
                    .cpus
                    .iter()
                    .filter(|cpu| cpu.numa.is_some_and(|numa| hint.contains(&numa)));
                let by_socket = self.option("align-by-socket");
                let near = |other: &pinfold::cpu::Cpu| {
                    hinted
                        .clone()
                        .any(|cpu| cpu.id == other.id || by_socket && cpu.socket == other.socket)
                };
                let near: CpuSet = topology
                    .cpus
                    .iter()
                    .filter(|cpu| near(cpu))
                    .map(|cpu| cpu.id)
                    .collect();
                let confined = allowed.intersection(&near);
                if confined.len() >= n {
                    allowed = confined;
                } else {
                    first = confined;
                }
            }
            let request = Request {
                free: allowed,
                first,
                n,
            };
            let answer = choose(&request);
            free = free.difference(&answer);
            from_init = from_init.difference(&answer);
            if kinds.get(turn).is_some_and(|kind| kind == "init") {
                from_init = answer.clone();
            }
            served.push((request, answer));
        }
        served
    }
}
