//! [`Node`]: the machine, its cgroups and the configuration, and what follows from them at the start.

use anyhow::Context;
use serde::Deserialize;

use super::config::{Config, Wanted};
use crate::cpu::{CpuSet, Topology};
use crate::host::cgroup::{Cgroups, Version};
use crate::host::{file, proc::Proc, topology};
use crate::pin::decide::default_reserved;
use crate::pin::{Enforcement, Ledger, Observed, Scan};
use crate::pod::{Pod, ThreadBasis, ThreadEnvironment, ThreadPolicy, thread_environment};

/// The node as it was found at the start.
#[derive(Debug, Clone)]
pub struct Node {
    /// The effective configuration.
    pub config: Config,
    /// The machine.
    pub topology: Topology,
    /// Its cgroups.
    pub cgroups: Cgroups,
    /// Its processes.
    pub proc: Proc,
    /// CPUs that nobody is given.
    pub reserved: CpuSet,
    /// How assignments are enforced.
    pub enforcement: Enforcement,
    /// Why so.
    pub enforcement_reason: String,
}

// === impl Node ===

impl Node {
    /// Looks at the node.
    ///
    /// # Errors
    /// No topology, no cpuset controller, reserved CPUs that don't exist.
    pub fn new(config: Config) -> anyhow::Result<Self> {
        let kubelet = kubelet_pins(&config);
        let mut node = Self::apart(config)?;
        if let Some(reason) = kubelet.filter(|_| node.enforcement != Enforcement::Observe) {
            (node.enforcement, node.enforcement_reason) = (Enforcement::Observe, reason);
        }
        Ok(node)
    }

    /// Looks at the node for the sake of pods that no kubelet knows of, whatever a kubelet may pin here.
    ///
    /// # Errors
    /// As [`Node::new`].
    pub fn apart(config: Config) -> anyhow::Result<Self> {
        let topology = topology::read(&config.root)?;
        let mut cgroups = Cgroups::detect(&config.cgroup_root)?;
        cgroups.heed_systemd(&config.root.join("run"));
        let reserved = reserved(config.reserved.as_ref(), &topology)?;
        let (enforcement, enforcement_reason) = enforcement(&config, &cgroups)?;
        let proc = Proc::new(&config.root);
        Ok(Self { topology, cgroups, proc, reserved, enforcement, enforcement_reason, config })
    }

    /// Reads the pods' trees as they are now, and finds which of the pods is where.
    pub fn observe(&self, pods: &[Pod]) -> anyhow::Result<(Observed, Ledger)> {
        let mut scan = Scan { around: self.cgroups.surroundings(&self.config.trees)?, ..Scan::default() };
        for tree in &self.config.trees {
            scan.pods.extend(
                self.cgroups.scan(tree).with_context(|| format!("can't read the pods' tree {tree}"))?,
            );
        }
        let mut live = CpuSet::new();
        for container in scan.pods.iter().flat_map(|pod| &pod.containers) {
            if container.cpuset.partition.is_live() {
                live = live.union(&container.cpuset.effective);
            }
        }
        scan.lost = self.cgroups.lost(&self.topology.online, &live)?;
        Ok(Observed::new(scan, pods))
    }
}

/// The reserved CPUs: those asked for, else the core of the lowest CPU.
///
/// # Errors
/// Reserved CPUs that are not online here.
pub fn reserved(asked: Option<&CpuSet>, topology: &Topology) -> anyhow::Result<CpuSet> {
    let Some(asked) = asked.filter(|asked| !asked.is_empty()) else { return Ok(default_reserved(topology)) };
    let missing = asked.difference(&topology.online);
    anyhow::ensure!(
        missing.is_empty(),
        "reserved CPUs {missing} are not online here: the online ones are {}",
        topology.online
    );
    Ok(asked.clone())
}

/// The one field of the kubelet's CPU Manager state that matters.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct CpuManagerState {
    policy_name: String,
}

/// Why the kubelet's own CPU Manager leaves nothing to pin, if it does.
fn kubelet_pins(config: &Config) -> Option<String> {
    let state = config.root.join("var/lib/kubelet/cpu_manager_state");
    let text = file::read_optional(&state).ok().flatten()?;
    let policy = serde_json::from_str::<CpuManagerState>(&text).ok()?.policy_name;
    (policy != "none").then(|| {
        format!(
            "the kubelet's CPU Manager policy is {policy} ({}): two managers would undo each other; set it to none to \
             let Pinfold pin",
            state.display()
        )
    })
}

fn enforcement(config: &Config, cgroups: &Cgroups) -> anyhow::Result<(Enforcement, String)> {
    if config.enforcement == Wanted::Observe {
        return Ok((Enforcement::Observe, "the configuration says so".to_owned()));
    }
    let weaker = if cgroups.systemd {
        "the pods' CPUs are set through systemd (AllowedCPUs); tasks outside the pods are not moved"
    } else {
        "cpuset.cpus of the pods' cgroups is written; tasks outside them are not moved"
    };
    if config.enforcement == Wanted::Cpuset {
        return Ok((Enforcement::Cpuset, format!("the configuration says so: {weaker}")));
    }
    let offered =
        cgroups.offers_partitions().context("can't find out whether the kernel offers cpuset partitions")?;
    if offered {
        let reason = "the kernel offers cpuset partitions: it keeps everybody else off an owner's CPUs";
        return Ok((Enforcement::Partition, reason.to_owned()));
    }
    let lacking = match cgroups.version {
        Version::V1 => "cgroup v1 has no cpuset partitions",
        Version::V2 => {
            "this kernel has no cpuset partitions below the top of the hierarchy (Linux 6.7 or newer does)"
        }
    };
    anyhow::ensure!(
        config.enforcement != Wanted::Partition,
        "enforcement partition is not to be had: {lacking}; use auto or cpuset, or boot a newer kernel with cgroup v2"
    );
    Ok((Enforcement::Cpuset, format!("{lacking}: {weaker}")))
}

/// The thread environment of a container that owns `cpus`, or runs in the shared pool.
pub(super) fn threads(
    node: &Node,
    pod: &Pod,
    index: usize,
    cpus: Option<&CpuSet>,
    shared: &CpuSet,
) -> ThreadEnvironment {
    let config = &node.config;
    environment(pod, index, cpus, shared, &node.topology, (&config.policy, &config.threads))
}

/// The thread environment of a pod's container, from the CPUs it owns or its quota in the shared pool.
pub fn environment(
    pod: &Pod,
    index: usize,
    cpus: Option<&CpuSet>,
    shared: &CpuSet,
    topology: &Topology,
    (policy, threads): (&crate::pod::Policy, &ThreadPolicy),
) -> ThreadEnvironment {
    let missing = crate::pod::Container::default();
    let container = pod.containers.get(index).unwrap_or(&missing);
    let basis = match cpus {
        Some(cpus) => Some(ThreadBasis::of_set(cpus, topology)),
        None => ThreadBasis::of_quota(pod, container, threads).map(|basis| basis.at_most(shared.len())),
    };
    thread_environment(pod, container, policy, threads, basis)
}
