//! [`ManagedNode`]: the node of a running agent, as reconcile passes read and write it.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use super::node::AgentNode;
use super::pass_model::PassNode;
use crate::cpu::{CpuSet, Layout, Placer};
use crate::host::cgroup::{Cpuset, PodCgroup, PodSurroundings};
use crate::host::topology;
use crate::pin::cpu_isolation::CpuIsolator;
use crate::pin::decide::DecisionInput;
use crate::pin::{self, AppliedStep, Enforcement, Ledger, Step};
use crate::pod::RecognizedPod;

/// The node, and what changes while the agent runs.
#[derive(Debug)]
pub(super) struct ManagedNode {
    pub(super) node: AgentNode,
    placer: Placer,
    /// The machine's present layout, for the snapshot.
    pub(super) layout: Arc<Layout>,
    /// The CPUs and NUMA nodes present when the topology was read.
    hotplug_state: topology::HotplugState,
    /// NUMA nodes of the pods' devices, by namespace and name.
    pub(super) devices: BTreeMap<(String, String), CpuSet>,
    /// Whether the container runtime has had time to report the existing containers.
    pub(super) ids_settled: bool,
    pub(super) isolator: CpuIsolator,
    /// Why the changed topology can't be read, as logged.
    topology_error: Option<String>,
}

// === impl ManagedNode ===

impl ManagedNode {
    pub(super) fn new(mut node: AgentNode) -> Self {
        node.forget_default_reserved();
        let isolator = CpuIsolator::new(&node.config.root_dir)
            .with_slices(&node.cgroups, &node.config.pod_cgroups);
        Self {
            placer: Placer::new(&node.topology),
            layout: Arc::new(node.topology.layout()),
            hotplug_state: node.hotplug_state.clone(),
            devices: BTreeMap::new(),
            ids_settled: !node.config.runtime.wanted(),
            isolator,
            topology_error: None,
            node,
        }
    }

    /// Takes changes of the online CPUs and NUMA nodes, and the NUMA nodes that the cgroups above the pods allow.
    pub(super) fn read_topology_changes(&mut self) {
        if !self.read_hotplug() {
            self.node.read_memory_nodes();
        }
    }

    /// Takes changes of the online CPUs and NUMA nodes. Without a change, the rest of the topology is not read. Returns whether
    /// there was a change.
    ///
    /// Every pass that decides begins with this comparison, because a CPU that has gone offline must not be assigned. It reads
    /// four small files, which took 45 to 75 µs on a busy virtual machine with two CPUs.
    pub(super) fn read_hotplug(&mut self) -> bool {
        let root = &self.node.config.root_dir;
        let hotplug_state = topology::HotplugState::read(root);
        if hotplug_state == self.hotplug_state {
            return false;
        }
        match topology::read(root) {
            Ok(topology) => {
                tracing::info!(
                    "the topology has changed: online CPUs are now {}",
                    topology.online
                );
                self.placer = Placer::new(&topology);
                self.layout = Arc::new(topology.layout());
                self.node.topology = topology;
                self.node.read_memory_nodes();
                self.hotplug_state = hotplug_state;
                self.topology_error = None;
            }
            Err(error) => {
                let error = format!("{:#}", anyhow::Error::new(error));
                if self.topology_error.as_ref() != Some(&error) {
                    tracing::error!(
                        "the topology has changed and can't be read, so the old topology stays in use: {error}"
                    );
                }
                self.topology_error = Some(error);
            }
        }
        true
    }
}

impl PassNode for ManagedNode {
    fn surroundings(&self) -> anyhow::Result<PodSurroundings> {
        Ok(self
            .node
            .cgroups
            .surroundings(&self.node.config.pod_cgroups)?)
    }

    fn pod_paths(&self) -> anyhow::Result<Vec<(String, String)>> {
        self.node.pod_paths()
    }

    fn pod(&self, path: String, uid: String) -> anyhow::Result<Option<PodCgroup>> {
        self.node.pod(path, uid)
    }

    fn find_pod(&self, uid: &str) -> anyhow::Result<Option<PodCgroup>> {
        self.node.find_pod(uid)
    }

    fn lost_cpus(&self, pods: &mut dyn Iterator<Item = &PodCgroup>) -> anyhow::Result<CpuSet> {
        self.node.lost(pods)
    }

    fn cpuset(&self, path: &str) -> anyhow::Result<Cpuset> {
        Ok(self.node.cgroups.cpuset(path)?)
    }

    fn record_text(&self, path: &str) -> anyhow::Result<Option<String>> {
        Ok(self.node.cgroups.assignment_record(path)?)
    }

    fn exists(&self, path: &str) -> bool {
        self.node.cgroups.exists(path)
    }

    fn workqueue_cpus(&self) -> Option<CpuSet> {
        self.isolator.workqueues()
    }

    fn apply(&self, steps: Vec<Step>, go_on: &mut dyn FnMut(&Step) -> bool) -> Vec<AppliedStep> {
        pin::apply_while(steps, &self.node.cgroups, go_on)
    }

    fn choose_reserved(&mut self, ledger: &Ledger) {
        self.node.choose_reserved(ledger);
    }

    fn decision_input<'a>(
        &'a self,
        pods: &'a [Arc<RecognizedPod>],
        here: &'a HashSet<&'a str>,
    ) -> DecisionInput<'a> {
        let node = &self.node;
        DecisionInput {
            topology: &node.topology,
            placer: &self.placer,
            memory_nodes: &node.memory_nodes,
            reserved: &node.reserved,
            policy: &node.config.policy,
            preferences: &node.config.cpus,
            pods,
            here: Some(here),
            devices: &self.devices,
            moves: 0,
            ids_settled: self.ids_settled,
            known: None,
            suspended: node.suspended(),
        }
    }

    fn enforcement(&self) -> Enforcement {
        self.node.enforcement
    }

    fn moves_per_hour(&self) -> usize {
        self.node.config.max_moves_per_hour as usize
    }

    fn reconcile_interval(&self) -> Duration {
        self.node.config.reconcile_interval
    }
}
