//! [`TestNode`]: a node with default settings, for unit tests of turns.

use std::collections::BTreeMap;
use std::time::Duration;

use super::TurnContext;
use crate::cpu::{CpuSet, Placer, SharedMinimum, Topology};
use crate::pin::Enforcement;
use crate::pin::decide::DecisionContext;
use crate::pod::{CpuPreferences, ObjectName, Policy};

pub(super) struct TestNode {
    topology: Topology,
    placer: Placer,
    memory_nodes: CpuSet,
    reserved: CpuSet,
    policy: Policy,
    preferences: CpuPreferences,
    devices: BTreeMap<ObjectName, CpuSet>,
}

// === impl TestNode ===

impl TestNode {
    pub(super) fn new(topology: Topology, reserved: CpuSet) -> Self {
        Self {
            placer: Placer::new(&topology),
            memory_nodes: topology.memory_nodes(),
            topology,
            reserved,
            policy: Policy::default(),
            preferences: CpuPreferences::default(),
            devices: BTreeMap::new(),
        }
    }

    pub(super) fn context(&self) -> TurnContext<'_> {
        TurnContext {
            node: DecisionContext {
                topology: &self.topology,
                placer: &self.placer,
                memory_nodes: &self.memory_nodes,
                reserved: &self.reserved,
                shared_minimum: SharedMinimum::default(),
                policy: &self.policy,
                preferences: &self.preferences,
                devices: &self.devices,
                ids_settled: true,
                suspended: None,
                kubelet: None,
                enforcement: Enforcement::Partition,
            },
            moves_per_hour: 0,
            interval: Duration::from_secs(10),
        }
    }
}
