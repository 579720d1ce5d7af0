//! `NodeCapacity`: how many CPUs this node can give, and how many the scheduler counts.

use std::path::PathBuf;

use serde::Serialize;
use tokio::sync::watch;

use super::agent_node::AgentNode;
use super::allocatable;
use super::api::ApiTasks;
use crate::cpu::{Cores, CpuSet, SharedMinimum};
use crate::metrics::Page;
use crate::metrics::families::{NODE_ALLOCATABLE_CPUS, NODE_ASSIGNABLE_CPUS};
use crate::pin::snapshot::ContainerState;
use crate::pin::{Enforcement, PlacementSource, Snapshot};
use crate::pod::{Allocatable, Capacity, CapacityFinding, CapacityInput};

/// What is needed to compare a snapshot with what the scheduler counts.
#[derive(Debug)]
pub(super) struct NodeCapacity {
    preference: Cores,
    single_cores: bool,
    shared_minimum: SharedMinimum,
    /// CPUs isolated at boot.
    isolated: CpuSet,
    /// The root below which the kubelet's configuration file lies, which counts while the Node is unknown. It is read for each
    /// answer, because somebody may have changed it.
    root_dir: PathBuf,
    /// As the Node says, where the API is used.
    reported: Option<watch::Receiver<Option<Allocatable>>>,
}

/// The capacity as `/status` shows it.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct CapacityState {
    #[serde(flatten)]
    capacity: Capacity,
    /// What the scheduler counts; null if unknown.
    allocatable: Option<Allocatable>,
    #[serde(flatten)]
    finding: CapacityFinding,
}

// === impl NodeCapacity ===

impl NodeCapacity {
    pub(super) fn new(node: &AgentNode, cluster: Option<&ApiTasks>) -> Self {
        let config = &node.config;
        Self {
            preference: config.cpus.cores,
            single_cores: config.policy.single_cores,
            shared_minimum: config.shared_minimum,
            isolated: node.topology.isolated.clone(),
            root_dir: config.root_dir.clone(),
            reported: cluster.map(|cluster| cluster.node.allocatable.clone()),
        }
    }

    fn allocatable(&self, online: &CpuSet) -> Option<Allocatable> {
        let reported = self.reported.as_ref();
        let configured = || allocatable::of_kubelet_config(&self.root_dir, online);
        reported.and_then(|node| *node.borrow()).or_else(configured)
    }

    /// How many CPUs the node can give; `None` where Pinfold gives none, because it only observes or because the kubelet chooses
    /// them, which never promises more than it has.
    fn capacity(&self, snapshot: &Snapshot) -> Option<Capacity> {
        let is_of_kubelet = snapshot.placement_source == PlacementSource::Kubelet;
        if is_of_kubelet || snapshot.enforcement == Enforcement::Observe {
            return None;
        }
        let Snapshot {
            online,
            withheld,
            held_by_others,
            lost,
            ..
        } = snapshot;
        let idle = idle(snapshot);
        Some(Capacity::new(&CapacityInput {
            online,
            withheld,
            held_by_others,
            lost,
            reserved: &snapshot.reserved,
            isolated: &self.isolated,
            cores: &snapshot.layout.cores,
            preference: self.preference,
            single_cores: self.single_cores,
            shared_minimum: self.shared_minimum,
            owned: &snapshot.exclusive.difference(&idle),
            idle: &idle,
        }))
    }

    pub(super) fn state(&self, snapshot: &Snapshot) -> Option<CapacityState> {
        let capacity = self.capacity(snapshot)?;
        let allocatable = self.allocatable(&snapshot.online);
        Some(CapacityState {
            finding: capacity.compare(allocatable.as_ref()),
            capacity,
            allocatable,
        })
    }

    /// Adds both numbers. What the scheduler counts is absent if it is unknown.
    pub(super) fn write(&self, page: &mut Page, snapshot: &Snapshot) {
        if let Some(capacity) = self.capacity(snapshot) {
            let allocatable = self.allocatable(&snapshot.online);
            write_capacity(page, &capacity, allocatable.as_ref());
        }
    }
}

/// Adds what a node can give, and what the scheduler counts.
pub fn write_capacity(page: &mut Page, capacity: &Capacity, allocatable: Option<&Allocatable>) {
    page.add_one(&NODE_ASSIGNABLE_CPUS, capacity.assignable);
    if let Some(allocatable) = allocatable {
        #[expect(
            clippy::cast_precision_loss,
            reason = "no node has as many thousandths of a CPU"
        )]
        page.add_one(
            &NODE_ALLOCATABLE_CPUS,
            allocatable.millicores as f64 / 1000.0,
        );
    }
}

/// The exclusive CPUs that no container has: the idle siblings of `pinfold.io/cores: single`. Pods that Pinfold can't explain have
/// theirs for themselves.
fn idle(snapshot: &Snapshot) -> CpuSet {
    let owned = snapshot.containers.iter().filter_map(ContainerState::own);
    let owned = owned.chain(snapshot.unknown_owners.iter().map(|owner| &owner.cpus));
    owned.fold(snapshot.exclusive.clone(), |idle, cpus| {
        idle.difference(cpus)
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::cpu::{Layout, Numbering, Shape, Topology};
    use crate::pin::EnforcementCause;
    use crate::pin::snapshot::UnknownOwner;
    use crate::pod::AllocatableSource;

    fn set(list: &str) -> CpuSet {
        list.parse().unwrap()
    }

    /// A node of 8 cores with 2 threads each, of which an owner has CPU 2, and CPU 3 is idle.
    fn snapshot(enforcement: Enforcement) -> Snapshot {
        let topology = Topology::from_shape(Shape {
            sockets: 1,
            numa_per_socket: 1,
            llcs_per_numa: 1,
            cores_per_llc: 8,
            threads_per_core: 2,
            numbering: Numbering::SiblingsAdjacent,
        });
        let layout: Layout = topology.layout();
        Snapshot {
            enforcement,
            enforcement_cause: EnforcementCause::Configuration,
            enforcement_reason: String::new(),
            placement_source: PlacementSource::Pinfold,
            online: topology.online,
            reserved: set("0-1"),
            shared: set("0-1,4-13"),
            exclusive: set("2-3"),
            withheld: set("14"),
            held_by_others: CpuSet::new(),
            lost: set("15"),
            layout: Arc::new(layout),
            cpu_isolation: None,
            containers: Vec::new(),
            unknown_owners: vec![UnknownOwner {
                cgroup: "kubepods/poda".to_owned(),
                namespace: "train".to_owned(),
                pod: "a".to_owned(),
                cpus: set("2"),
            }],
            drift: Vec::new(),
            unexplained: Vec::new(),
            errors: Vec::new(),
            pods_listed: true,
        }
    }

    fn on_node(reported: Option<Allocatable>) -> NodeCapacity {
        NodeCapacity {
            preference: Cores::Preferred,
            single_cores: true,
            shared_minimum: SharedMinimum::default(),
            isolated: CpuSet::new(),
            root_dir: PathBuf::from("/nonexistent"),
            reported: Some(watch::channel(reported).1),
        }
    }

    fn allocatable(millicores: u64) -> Allocatable {
        Allocatable {
            millicores,
            capacity: Some(16_000),
            source: AllocatableSource::Node,
        }
    }

    #[test]
    fn status_and_metrics_compare_the_node_with_what_it_can_give() {
        let node = on_node(Some(allocatable(15_980)));
        let status = node.state(&snapshot(Enforcement::Partition)).unwrap();
        let status = serde_json::to_value(&status).unwrap();
        // Of 14 CPUs on offer, 2 are reserved. The idle one will be given when its pod has ended, and the lost one after a reboot, so
        // the kubelet must reserve neither.
        for (key, value) in [
            ("cpus", 14),
            ("reserved", 2),
            ("idle", 1),
            ("assignable", 12),
            ("assignableNow", 11),
            ("kubeletReserve", 3),
        ] {
            assert_eq!(status[key], value, "{key}: {status:#}");
        }
        assert_eq!(status["allocatable"]["millicores"], 15_980);
        assert_eq!(status["promisesTooMuch"], true);
        let mut page = Page::default();
        node.write(&mut page, &snapshot(Enforcement::Cpuset));
        let text = page.text(crate::metrics::Format::Text);
        for line in [
            "pinfold_node_assignable_cpus 12\n",
            "pinfold_node_allocatable_cpus 15.98\n",
        ] {
            assert!(text.contains(line), "{text}");
        }
    }

    #[test]
    fn a_node_where_pinfold_gives_no_cpus_reports_none() {
        let node = on_node(Some(allocatable(16_000)));
        let of_kubelet = Snapshot {
            placement_source: PlacementSource::Kubelet,
            ..snapshot(Enforcement::Partition)
        };
        for snapshot in [snapshot(Enforcement::Observe), of_kubelet] {
            assert!(node.state(&snapshot).is_none());
            let mut page = Page::default();
            node.write(&mut page, &snapshot);
            assert_eq!(page.text(crate::metrics::Format::Text), "");
        }
    }

    /// The file may change while the agent runs.
    #[test]
    fn the_kubelets_file_counts_until_the_node_is_read() {
        let (folder, online) = (tempfile::tempdir().unwrap(), set("0-15"));
        let file = folder.path().join("var/lib/kubelet/config.yaml");
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        let mut node = on_node(None);
        node.root_dir = folder.path().to_owned();
        assert_eq!(node.allocatable(&online), None);
        for (reserve, millicores) in [("1", 15_000), ("1500m", 14_500)] {
            let text =
                format!("kind: KubeletConfiguration\nsystemReserved: {{cpu: \"{reserve}\"}}\n");
            std::fs::write(&file, text).unwrap();
            assert_eq!(node.allocatable(&online).unwrap().millicores, millicores);
        }
        node.reported = Some(watch::channel(Some(allocatable(2000))).1);
        assert_eq!(node.allocatable(&online), Some(allocatable(2000)));
    }
}
