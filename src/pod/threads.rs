//! [`thread_environment`]: the sizes of a container's thread pools, as variables that the libraries read.
//!
//! Let N be the container's future CPUs: the CPUs of the exclusive set, or the rounded quota. P
//! processes share them, so each process has T = max(1, N / P). A [`Profile`] turns T into sizes:
//!
//! | profile | intra-op | inter-op | other pools of an operator | pools of the input pipeline | besides |
//! |---|---|---|---|---|---|
//! | `limit` | T | T | T | T | |
//! | `openmp` | cores / P | NUMA nodes spanned / P | cores / P | T | `KMP_BLOCKTIME=1` |
//! | `embedding` | 1 | T | 1 | T | |
//! | `ps` | max(1, T / 2) | T | max(1, T / 2) | T | gRPC queues and threads |
//! | `off` | | | | | |
//!
//! No size is below 1. The variable of the inter-op pool is at least [`MIN_TENSORFLOW_INTER`].
//!
//! The variables, with the reason for each:
//!
//! - `TF_NUM_INTRAOP_THREADS`, `TF_NUM_INTEROP_THREADS`: TensorFlow ≥ 1.14 counts the CPUs of the affinity mask,
//!   and ignores the quota.
//! - `OMP_NUM_THREADS`: the pool size of PyTorch and OpenMP programs. Without it, PyTorch ignores the
//!   quota, and before 2.14 could take the whole machine's cores even on exclusive CPUs. torchrun sets a
//!   missing variable to 1 for several processes.
//! - `NUMEXPR_NUM_THREADS`: numexpr follows `OMP_NUM_THREADS`, but runs a single thread if the
//!   number is above its maximum, 64 or the container's `NUMEXPR_MAX_THREADS`. The variable is
//!   added if numexpr needs another number.
//! - `NUMBA_NUM_THREADS`: numba does not read `OMP_NUM_THREADS`, and has no maximum.
//! - `TF_GRPC_WORKER_CACHE_QUEUES`, `TF_GRPC_WORKER_CACHE_THREADS` (profile `ps`): a TensorFlow server starts 64
//!   queue threads on every machine.
//! - `KMP_BLOCKTIME` (profile `openmp`): Intel's OpenMP threads spin for 200 ms after each parallel region, on CPUs
//!   that the next operator needs; 1 ms is the smallest value above zero.
//!
//! `MKL_NUM_THREADS` and `OPENBLAS_NUM_THREADS` are left out, because MKL, PyTorch and OpenBLAS
//! follow `OMP_NUM_THREADS`, and prefer their own variables. Many programs set `OMP_NUM_THREADS`
//! themselves before they load a library, and other variables with Pinfold's number would override
//! what they set. OpenBLAS cuts the number off at the maximum that it was compiled with, 64 in
//! NumPy's packages.
//!
//! Other variables are left out, too. `NUMEXPR_MAX_THREADS` and `OMP_THREAD_LIMIT` would cap a
//! number that the program sets. Scripts use `NPROC`, which JAX reads, as a name of their own.
//! `GOMAXPROCS` switches off Go's own watching of the quota. `TOKIO_WORKER_THREADS`,
//! `RAYON_NUM_THREADS` and `POLARS_MAX_THREADS` belong to programs that read the quota themselves.
//!
//! A value that the pod's owner has set wins, under any name that sizes the same pool. If the owner has set
//! `OMP_NUM_THREADS`, in the pod or in the command line, Pinfold does not set `NUMEXPR_NUM_THREADS`, which numexpr would prefer.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::own_counts::OwnCounts;
use super::processes::Processes;
use super::variables::{GRPC_QUEUES, GRPC_THREADS, INTER, INTRA, OMP};
use super::{
    Container, ContainerKind, EnvSource, PROCESSES_ANNOTATION, Pod, PodRole, Policy, RecognizedPod,
    Software, THREADS_ANNOTATION, training,
};
use crate::cpu::{CpuSet, Topology};
use crate::text::counted;

/// The rule by which thread counts follow from CPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Profile {
    /// As many threads as CPUs.
    #[default]
    Limit,
    /// For programs whose operators start teams of OpenMP threads, so that the intra-op and
    /// inter-op numbers multiply.
    Openmp,
    /// For models of many small operators, such as embedding lookups: many operators at once, one thread each.
    Embedding,
    /// For parameter servers.
    Ps,
    /// No variables.
    Off,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{word:?} is not a thread profile: write limit, openmp, embedding, ps or off")]
pub struct UnknownProfile {
    word: String,
}

const PROFILES: [Profile; 5] = [
    Profile::Limit,
    Profile::Openmp,
    Profile::Embedding,
    Profile::Ps,
    Profile::Off,
];

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Limit => "limit",
            Self::Openmp => "openmp",
            Self::Embedding => "embedding",
            Self::Ps => "ps",
            Self::Off => "off",
        })
    }
}

impl FromStr for Profile {
    type Err = UnknownProfile;

    fn from_str(word: &str) -> Result<Self, UnknownProfile> {
        let found = PROFILES
            .into_iter()
            .find(|profile| profile.to_string() == word);
        found.ok_or_else(|| UnknownProfile {
            word: word.to_owned(),
        })
    }
}

/// The treatment of a fraction of a CPU in a quota.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Rounding {
    /// Drop the fraction, because a surplus thread is throttled, and the slowest worker delays all
    /// workers.
    #[default]
    Floor,
    /// Round the fraction up to a whole CPU.
    Ceil,
}

/// The treatment of a container without a CPU limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NoLimit {
    /// Add no variables.
    #[default]
    Leave,
    Request,
}

/// The configuration of thread counts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ThreadPolicy {
    /// The profile for roles outside `roles`.
    pub profile: Profile,
    pub roles: BTreeMap<PodRole, Profile>,
    /// The treatment of a fraction of a CPU in a quota.
    pub rounding: Rounding,
    /// The treatment of a container without a CPU limit.
    pub no_limit: NoLimit,
}

impl Default for ThreadPolicy {
    fn default() -> Self {
        Self {
            profile: Profile::default(),
            roles: BTreeMap::from([(PodRole::Ps, Profile::Ps)]),
            rounding: Rounding::default(),
            no_limit: NoLimit::default(),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum BasisOrigin {
    /// The container's exclusive CPUs.
    Exclusive,
    /// The container's CPU limit.
    Limit,
    /// The container's CPU request.
    Request,
}

/// The CPUs that thread counts follow from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct ThreadBasis {
    /// CPUs of the exclusive set, or of the quota, rounded.
    pub cpus: usize,
    /// Cores among the CPUs; as many as CPUs if unknown.
    pub cores: usize,
    /// NUMA nodes that the CPUs span; 1 if unknown.
    pub numa: usize,
    pub origin: BasisOrigin,
}

impl ThreadBasis {
    /// Exclusive CPUs by their numbers: CPUs, cores, NUMA nodes.
    pub fn exclusive(cpus: usize, cores: usize, numa: usize) -> Self {
        Self {
            cpus,
            cores,
            numa,
            origin: BasisOrigin::Exclusive,
        }
    }

    /// Exclusive CPUs of a machine. A CPU whose core is unknown counts as a core.
    pub fn of_set(set: &CpuSet, topology: &Topology) -> Self {
        let known: Vec<_> = topology
            .cpus
            .iter()
            .filter(|cpu| set.contains(cpu.id))
            .collect();
        let distinct = |mut ids: Vec<u32>| {
            ids.sort_unstable();
            ids.dedup();
            ids.len()
        };
        let alone = set.len() - known.iter().filter(|cpu| cpu.core.is_some()).count();
        let cores = alone + distinct(known.iter().filter_map(|cpu| cpu.core).collect());
        let numa = distinct(known.iter().filter_map(|cpu| cpu.numa).collect()).max(1);
        Self::exclusive(set.len(), cores, numa)
    }

    /// The container's share of the shared pool: the CPU limit of the container or else its part of the pod's limit,
    /// rounded, at least 1. Without a limit the policy decides: `None`, or the request.
    pub fn of_quota(pod: &Pod, container: &Container, policy: &ThreadPolicy) -> Option<Self> {
        let positive = |amount: Option<u64>| amount.filter(|&amount| amount > 0);
        let limit = positive(container.resources.cpu_limit).or_else(|| part_of_pod(pod));
        let request = || match policy.no_limit {
            NoLimit::Leave => None,
            NoLimit::Request => positive(container.resources.cpu_request),
        };
        let (millis, origin) = limit
            .map(|limit| (limit, BasisOrigin::Limit))
            .or_else(|| request().map(|request| (request, BasisOrigin::Request)))?;
        let whole = match policy.rounding {
            Rounding::Floor => millis / 1000,
            Rounding::Ceil => millis.div_ceil(1000),
        };
        let cpus = usize::try_from(whole).unwrap_or(usize::MAX).max(1);
        Some(Self {
            cpus,
            cores: cpus,
            numa: 1,
            origin,
        })
    }

    /// The same basis, limited to the CPUs that the container may run on: a limit may be larger than the machine.
    #[must_use]
    pub fn at_most(self, cpus: usize) -> Self {
        let most = cpus.max(1);
        Self {
            cpus: self.cpus.min(most),
            cores: self.cores.min(most),
            ..self
        }
    }
}

/// The part of the pod's own CPU limit, in thousandths, for each app container without a limit.
/// They run at the same time, so what the limits of the others leave is divided equally among them.
fn part_of_pod(pod: &Pod) -> Option<u64> {
    let whole = pod.resources.cpu_limit.filter(|&limit| limit > 0)?;
    let apps = pod.containers.iter().filter(|container| {
        container.kind == ContainerKind::App && infrastructure(container).is_none()
    });
    let (mut left, mut others) = (whole, 0u64);
    for container in apps {
        match container.resources.cpu_limit.filter(|&limit| limit > 0) {
            Some(own) => left = left.saturating_sub(own),
            None => others += 1,
        }
    }
    Some((left / others.max(1)).max(1))
}

/// The variables to add to a container, and the reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ThreadEnvironment {
    /// The applied profile; [`Profile::Off`] without variables.
    pub profile: Profile,
    /// The intra-op threads of each process; `None` if the profile computes no number.
    pub threads: Option<usize>,
    /// The variables to add, none of which the container sets itself.
    pub variables: BTreeMap<String, String>,
    /// The container's own variables, left unchanged.
    pub kept: Vec<String>,
    pub reason: String,
    /// Thread counts in the container's command line, which are stronger than the variables.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub by_command: Vec<String>,
    /// Why the variables may not reach the programs that compute, and the remedy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub caution: Option<String>,
    /// The number of pool threads in all processes, from the pools that the profile considers; `None` if unknown.
    pub expected_threads: Option<usize>,
    /// The number of CPUs behind the counts; `None` without a computation.
    pub cpus: Option<usize>,
    pub software: Software,
}

impl ThreadEnvironment {
    fn none(reason: impl Into<String>) -> Self {
        Self {
            profile: Profile::Off,
            threads: None,
            variables: BTreeMap::new(),
            kept: Vec::new(),
            by_command: Vec::new(),
            reason: reason.into(),
            caution: None,
            expected_threads: None,
            cpus: None,
            software: Software::Unknown,
        }
    }
}

/// The variables to add to a container with the CPUs of `basis`; none without a basis.
///
/// Only app containers get variables, and only in training pods or in pods whose annotation names a
/// profile. Variables of the container stay. Because `envFrom` hides names, a container that has it
/// gets no variables.
pub fn thread_environment(
    pod: &RecognizedPod,
    index: usize,
    policy: &Policy,
    threads: &ThreadPolicy,
    basis: Option<ThreadBasis>,
) -> ThreadEnvironment {
    let software = pod.software(index);
    match decide(pod, index, policy, threads, basis) {
        Ok(environment) => ThreadEnvironment {
            software,
            ..environment
        },
        Err(reason) => ThreadEnvironment {
            software,
            ..ThreadEnvironment::none(reason)
        },
    }
}

fn decide(
    pod: &RecognizedPod,
    index: usize,
    policy: &Policy,
    threads: &ThreadPolicy,
    basis: Option<ThreadBasis>,
) -> Result<ThreadEnvironment, String> {
    let missing = Container::default();
    let container = pod.containers.get(index).unwrap_or(&missing);
    let program = pod.program(index).cloned().unwrap_or_default();
    if container.kind != ContainerKind::App {
        return Err("only the pod's app containers get thread counts".to_owned());
    }
    if let Some(what) = infrastructure(container) {
        return Err(format!("{what} sizes its own pools"));
    }
    let (profile, by) = profile(pod, policy, threads)?;
    if profile == Profile::Off {
        return Err(format!("profile off, by {by}"));
    }
    let basis = basis.ok_or_else(|| {
        "the container has no CPU limit to compute a thread count from".to_owned()
    })?;
    if container.env_from {
        return Err(
            "envFrom may set any variable, and Pinfold can't see which: Pinfold adds no variables"
                .into(),
        );
    }
    let (processes, shared_by) = match program.processes {
        Processes::Known { count, evidence } => (count.get(), evidence),
        Processes::Unknown { evidence } => {
            return Err(format!(
                "the number of processes is unknown ({evidence}): annotate the pod with {PROCESSES_ANNOTATION}"
            ));
        }
    };
    let sizes = PoolSizes::of(profile, basis, processes);
    let own = &program.own_counts;
    let (variables, kept) = variables(profile, &sizes, (container, own));
    let from = match basis.origin {
        BasisOrigin::Exclusive => counted(basis.cpus, "exclusive CPU"),
        BasisOrigin::Limit => format!("a CPU limit that gives {}", basis.cpus),
        BasisOrigin::Request => format!("a CPU request that gives {}", basis.cpus),
    };
    let divided = shared_by.map_or_else(String::new, |by| {
        format!(", shared by {} ({by})", counted(processes, "process"))
    });
    Ok(ThreadEnvironment {
        profile,
        threads: Some(sizes.intra),
        expected_threads: expected(profile, &sizes, (container, own), processes),
        cpus: Some(basis.cpus),
        software: Software::Unknown,
        by_command: own.described(sizes.input),
        caution: program.fresh.map(caution).filter(|_| !variables.is_empty()),
        variables,
        kept,
        reason: format!("profile {profile}, by {by}: {from}{divided}"),
    })
}

/// The container's profile, and the reason for the choice.
fn profile(
    pod: &RecognizedPod,
    policy: &Policy,
    threads: &ThreadPolicy,
) -> Result<(Profile, String), String> {
    if let Some(word) = pod.annotations.get(THREADS_ANNOTATION) {
        let profile = word
            .parse()
            .map_err(|unknown| format!("annotation {THREADS_ANNOTATION}: {unknown}"))?;
        return Ok((profile, format!("annotation {THREADS_ANNOTATION}")));
    }
    let recognition = pod.recognition();
    let training = training(pod, policy);
    if !training.counts {
        return Err(format!("not a training pod: {}", training.evidence));
    }
    Ok(match threads.roles.get(&recognition.role) {
        Some(&profile) => (profile, format!("role {}", recognition.role)),
        None => (threads.profile, "default".to_owned()),
    })
}

/// The name of the container's program, if a service mesh or the container runtime added it.
fn infrastructure(container: &Container) -> Option<&'static str> {
    let image = container.image.split('@').next().unwrap_or_default();
    let last = image.rsplit('/').next().unwrap_or_default();
    match (
        container.name.as_str(),
        last.split(':').next().unwrap_or_default(),
    ) {
        ("istio-proxy", _) => Some("Istio's proxy"),
        ("linkerd-proxy", _) => Some("Linkerd's proxy"),
        ("POD", _) | (_, "pause") => Some("the pod's sandbox"),
        _ => None,
    }
}

/// The smallest value of `TF_NUM_INTEROP_THREADS`. An operator that keeps the only inter-op thread
/// while it waits for another operator never ends. Workers of a `ParameterServerStrategy` do this,
/// and make no step (TensorFlow 2.21; see also issues 38969 and 39006 of TensorFlow).
pub(super) const MIN_TENSORFLOW_INTER: usize = 2;

/// The sizes of a process's pools.
struct PoolSizes {
    intra: usize,
    inter: usize,
    /// Pools of the input pipeline, which belong to no operator.
    input: usize,
}

impl PoolSizes {
    fn of(profile: Profile, basis: ThreadBasis, processes: usize) -> Self {
        let each = |amount: usize| (amount / processes).max(1);
        let all = each(basis.cpus);
        let (intra, inter) = match profile {
            Profile::Limit | Profile::Off => (all, all),
            Profile::Openmp => (each(basis.cores), each(basis.numa)),
            Profile::Embedding => (1, all),
            Profile::Ps => ((all / 2).max(1), all),
        };
        Self {
            intra,
            inter,
            input: all,
        }
    }
}

/// The variables to add, and the container's own variables. Each name must stand in [`THREAD_VARIABLES`](crate::pod::THREAD_VARIABLES), so that
/// an owner's value is known and wins.
fn variables(
    profile: Profile,
    sizes: &PoolSizes,
    (container, own): (&Container, &OwnCounts),
) -> (BTreeMap<String, String>, Vec<String>) {
    let mut table = vec![
        (INTRA, sizes.intra),
        (INTER, sizes.inter.max(MIN_TENSORFLOW_INTER)),
        (OMP, sizes.intra),
        ("NUMBA_NUM_THREADS", sizes.input),
    ];
    match profile {
        Profile::Ps => {
            table.extend([
                (GRPC_QUEUES, sizes.inter.clamp(4, 16)),
                (GRPC_THREADS, sizes.inter),
            ]);
        }
        Profile::Openmp => table.push(("KMP_BLOCKTIME", 1)),
        Profile::Limit | Profile::Embedding | Profile::Off => {}
    }
    let is_set = |name: &str| container.env.contains_key(name);
    let table_names = table.iter().map(|(name, _)| *name);
    let mut kept: Vec<String> = table_names
        .chain(FOLLOW_OMP)
        .filter(|name| is_set(name))
        .map(str::to_owned)
        .collect();
    kept.sort_unstable();
    table.extend(numexpr(sizes, (container, own)).map(|size| (NUMEXPR, size)));
    let added = table
        .into_iter()
        .filter(|(name, _)| !is_set(name))
        .map(|(name, size)| (name.to_owned(), size.to_string()))
        .collect();
    (added, kept)
}

/// Variables of libraries that follow `OMP_NUM_THREADS` without them.
const FOLLOW_OMP: [&str; 5] = [
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "GOTO_NUM_THREADS",
    NUMEXPR,
    NUMEXPR_MAX,
];

const NUMEXPR: &str = "NUMEXPR_NUM_THREADS";
const NUMEXPR_MAX: &str = "NUMEXPR_MAX_THREADS";

/// The most threads of numexpr without `NUMEXPR_MAX_THREADS`. To a larger number, it answers with
/// an error message and a single thread.
const MOST_NUMEXPR: usize = 64;

/// The number for numexpr, unless it follows from `OMP_NUM_THREADS` or the container's own variables.
fn numexpr(sizes: &PoolSizes, (container, own): (&Container, &OwnCounts)) -> Option<usize> {
    if container.env.contains_key(OMP) || own.sets(OMP) {
        return None;
    }
    let most = match container.env.get(NUMEXPR_MAX) {
        None => MOST_NUMEXPR,
        Some(EnvSource::Value(text)) => text.trim().parse().ok().filter(|&most| most > 0)?,
        Some(EnvSource::Reference) => return None,
    };
    Some(sizes.input.min(most)).filter(|&size| size != sizes.intra)
}

/// Why the variables may not reach the programs that compute.
fn caution(fresh: &'static str) -> String {
    match fresh {
        "sshd" => "programs that sshd starts, such as the ranks of MPI, do not get these variables: pass them on with \
                   mpirun -x NAME=VALUE, or with SetEnv in sshd_config"
            .to_owned(),
        program => format!(
            "programs that {program} starts get a fresh environment without these variables: set them there, too"
        ),
    }
}

/// The number of pool threads in all processes. The sizes of TensorFlow's own pools add up, while
/// those for OpenMP multiply, because each thread of the inter-op pool starts a team.
///
/// The inter-op size counts without [`MIN_TENSORFLOW_INTER`], because only TensorFlow reads the
/// variable. The verdict's allowance for TensorFlow covers the additional thread.
fn expected(
    profile: Profile,
    sizes: &PoolSizes,
    (container, own): (&Container, &OwnCounts),
    processes: usize,
) -> Option<usize> {
    // If the command line or the container sets the variable, its value counts; none if that is unreadable.
    let size = |name: &str, computed: usize| match container.env.get(name) {
        _ if own.sets(name) => own.value(name)?,
        None => Some(computed),
        Some(EnvSource::Value(text)) => text.trim().parse().ok().filter(|&size| size > 0),
        Some(EnvSource::Reference) => None,
    };
    let inter = size(INTER, sizes.inter)?;
    let each = match profile {
        Profile::Limit | Profile::Embedding | Profile::Off => {
            size(INTRA, sizes.intra)?.checked_add(inter)?
        }
        Profile::Openmp => size(OMP, sizes.intra)?.checked_mul(inter)?,
        Profile::Ps => {
            let queues = size(GRPC_QUEUES, sizes.inter.clamp(4, 16))?;
            let grpc = queues.checked_add(size(GRPC_THREADS, sizes.inter)?)?;
            size(INTRA, sizes.intra)?
                .checked_add(inter)?
                .checked_add(grpc)?
        }
    };
    each.checked_mul(processes)
}

#[cfg(test)]
mod tests;
