//! The kubelet's answers on its PodResources socket (gRPC, `v1.PodResourcesLister`). They tell the
//! devices of each container with their NUMA nodes, and whether the kubelet's own CPU Manager
//! assigns CPUs.
//!
//! The devices come from device plugins. Some of these report no NUMA nodes but name devices by PCI
//! address, for example plugins for network cards; then the NUMA nodes are read from sysfs. Unknown
//! NUMA nodes stay an empty set, never NUMA node 0.
//!
//! The message types declare only the fields that Pinfold reads, and the decoder skips all others.

mod grpc;

use std::path::{Path, PathBuf};
use std::time::Duration;

pub use grpc::CallError;
use prost::{DecodeError, Message};

use super::pci;
use crate::cpu::{CpuSet, MAX_CPU};

/// The path of the kubelet's socket, below the root.
pub const SOCKET: &str = "var/lib/kubelet/pod-resources/kubelet.sock";

/// The length of the longest accepted answer, which is the kubelet's own limit.
pub const MAX_ANSWER: usize = 16 << 20;

const DEADLINE: Duration = Duration::from_secs(5);

/// The error text of a kubelet whose feature gate for `GetAllocatableResources` is off. It comes
/// with the status Unknown.
const GATE_OFF: &str = "API GetAllocatableResources disabled";

/// How long a kubelet may report no CPUs before its policy counts as `none`. A kubelet serves the socket before its CPU Manager
/// has started, and then reports neither assignable nor assigned CPUs. On an emulated machine that took up to 25 s.
const STARTS_WITHIN: Duration = Duration::from_secs(60);

/// The gRPC status of a call above the kubelet's rate limit.
const RESOURCE_EXHAUSTED: u32 = 8;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ContainerDevices {
    pub namespace: String,
    pub pod: String,
    pub container: String,
    /// The container's devices; empty for most containers.
    pub devices: Vec<Device>,
    /// CPUs that the kubelet's own CPU Manager gave to the container alone; empty with policy `none`.
    pub cpus: CpuSet,
}

/// Devices of one resource near the same NUMA nodes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Device {
    /// The resource's name, as in a container's limits: `nvidia.com/gpu`.
    pub resource: String,
    /// The devices' ids, chosen by the plugin.
    pub ids: Vec<String>,
    /// NUMA nodes near the devices; empty if unknown.
    pub numa: CpuSet,
}

/// The state of the kubelet's own CPU Manager.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CpuManager {
    /// The kubelet's socket does not exist.
    NoSocket,
    /// The socket exists, but no kubelet has reported since the agent's start whether it assigns CPUs.
    Unanswered,
    /// The kubelet assigns no CPUs: policy `none`.
    Disabled,
    /// The kubelet assigns CPUs: policy `static`, or another policy that assigns.
    Assigns,
}

/// The kubelet's PodResources socket.
#[derive(Debug, Clone)]
pub struct PodResources {
    root: PathBuf,
    socket: PathBuf,
    deadline: Duration,
}

#[derive(Debug, thiserror::Error)]
pub enum DevicesError {
    /// The call to the kubelet failed.
    #[error("can't ask the kubelet on {}", socket.display())]
    Call { socket: PathBuf, source: CallError },
    #[error("the kubelet's answer on {} can't be read", socket.display())]
    Answer {
        socket: PathBuf,
        /// The decoder's error.
        source: DecodeError,
    },
}

// === impl DevicesError ===

impl DevicesError {
    /// Whether the kubelet has refused the call because it was asked too often a moment ago. Its
    /// limit counts the calls of all its clients.
    pub fn is_rate_limit(&self) -> bool {
        matches!(
            self,
            Self::Call {
                source: CallError::Status {
                    status: RESOURCE_EXHAUSTED,
                    ..
                },
                ..
            }
        )
    }
}

// === impl PodResources ===

impl PodResources {
    /// The kubelet's socket on the machine below `root`. No connection is opened yet.
    pub fn new(root: &Path) -> Self {
        Self {
            root: root.to_owned(),
            socket: root.join(SOCKET),
            deadline: DEADLINE,
        }
    }

    #[must_use]
    pub fn with_deadline(self, deadline: Duration) -> Self {
        Self { deadline, ..self }
    }

    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// The devices of every container on this node, in the kubelet's order.
    ///
    /// # Errors
    /// [`CallError::NoSocket`] if no kubelet listens, which is normal outside a cluster. Every
    /// other error is a failure.
    pub async fn list(&self) -> Result<Vec<ContainerDevices>, DevicesError> {
        let mut containers = self.call("/v1.PodResourcesLister/List", parse_list).await?;
        let all = containers.iter_mut();
        let devices = all.flat_map(|container| &mut container.devices);
        for device in devices.filter(|device| device.numa.is_empty()) {
            let ids = device.ids.iter();
            device.numa = ids
                .filter_map(|id| pci::numa_node(&self.root, id))
                .collect();
        }
        Ok(containers)
    }

    /// The CPUs that the kubelet's CPU Manager may assign; empty with policy `none`, and where the
    /// kubelet does not report them. Kubelets before 1.21 lack the method. Later ones refuse the
    /// call while the feature gate `KubeletPodResourcesGetAllocatable` is off, which it is by
    /// default before 1.23, and never from 1.28 on.
    ///
    /// # Errors
    /// The errors of [`PodResources::list`].
    pub async fn allocatable_cpus(&self) -> Result<CpuSet, DevicesError> {
        let method = "/v1.PodResourcesLister/GetAllocatableResources";
        match self.call(method, parse_allocatable).await {
            Err(DevicesError::Call { source, .. }) if is_unavailable(&source) => Ok(CpuSet::new()),
            answer => answer,
        }
    }

    /// The current state of the kubelet's CPU Manager, given the answer of [`PodResources::list`].
    ///
    /// # Errors
    /// The errors of [`PodResources::list`].
    pub async fn cpu_manager(
        &self,
        containers: &[ContainerDevices],
    ) -> Result<CpuManager, DevicesError> {
        let owns = containers
            .iter()
            .any(|container| !container.cpus.is_empty());
        let assigns = owns || !self.allocatable_cpus().await?.is_empty();
        Ok(if assigns {
            CpuManager::Assigns
        } else {
            CpuManager::Disabled
        })
    }

    /// The state of the CPU Manager of a kubelet that does not answer. `known` is the state from
    /// the last answer, which stays valid.
    pub fn unanswered(&self, known: Option<CpuManager>) -> CpuManager {
        match known {
            Some(known @ (CpuManager::Assigns | CpuManager::Disabled)) => known,
            _ if self.socket.symlink_metadata().is_ok() => CpuManager::Unanswered,
            _ => CpuManager::NoSocket,
        }
    }

    /// Whether the kubelet made its socket so recently that it may report no CPUs although its policy is `static`: its CPU
    /// Manager may not have started. A socket from the future counts as old, since a clock was set back.
    pub fn may_be_starting(&self) -> bool {
        let made = self.socket.symlink_metadata().and_then(|it| it.modified());
        made.is_ok_and(|made| made.elapsed().is_ok_and(|age| age < STARTS_WITHIN))
    }

    /// Asks the kubelet once about the CPU Manager, and blocks until the answer or the deadline. It
    /// is for the agent's start, before any task runs.
    pub fn cpu_manager_blocking(&self) -> CpuManager {
        let ask = async { self.cpu_manager(&self.list().await?).await };
        // The call has a thread of its own, since the caller may already run in a runtime.
        let answer = std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                let runtime = tokio::runtime::Builder::new_current_thread()
                    .enable_all()
                    .build();
                runtime.ok().and_then(|runtime| runtime.block_on(ask).ok())
            });
            thread.join().ok().flatten()
        });
        let answer =
            answer.filter(|answer| *answer != CpuManager::Disabled || !self.may_be_starting());
        answer.unwrap_or_else(|| self.unanswered(None))
    }

    async fn call<T>(
        &self,
        method: &'static str,
        parse: impl FnOnce(&[u8]) -> Result<T, DecodeError>,
    ) -> Result<T, DevicesError> {
        let answer = grpc::call(&self.socket, method, self.deadline, MAX_ANSWER).await;
        let answer = answer.map_err(|source| DevicesError::Call {
            socket: self.socket.clone(),
            source,
        })?;
        parse(&answer).map_err(|source| DevicesError::Answer {
            socket: self.socket.clone(),
            source,
        })
    }
}

/// Whether the kubelet lacks the called method, or has switched it off.
fn is_unavailable(error: &CallError) -> bool {
    match error {
        CallError::Unimplemented => true,
        CallError::Status { message, .. } => message.contains(GATE_OFF),
        _ => false,
    }
}

/// A `ListPodResourcesResponse`.
#[derive(Message)]
struct ListResponse {
    #[prost(message, repeated, tag = 1)]
    pod_resources: Vec<PodMessage>,
}

/// A `PodResources`.
#[derive(Message)]
struct PodMessage {
    #[prost(string, tag = 1)]
    name: String,
    #[prost(string, tag = 2)]
    namespace: String,
    #[prost(message, repeated, tag = 3)]
    containers: Vec<ContainerMessage>,
}

/// A `ContainerResources`.
#[derive(Message)]
struct ContainerMessage {
    #[prost(string, tag = 1)]
    name: String,
    #[prost(message, repeated, tag = 2)]
    devices: Vec<DeviceMessage>,
    #[prost(int64, repeated, tag = 3)]
    cpu_ids: Vec<i64>,
}

/// A `ContainerDevices`: devices of one resource.
#[derive(Message)]
struct DeviceMessage {
    #[prost(string, tag = 1)]
    resource_name: String,
    #[prost(string, repeated, tag = 2)]
    device_ids: Vec<String>,
    #[prost(message, optional, tag = 3)]
    topology: Option<TopologyMessage>,
}

/// A `TopologyInfo`.
#[derive(Message)]
struct TopologyMessage {
    #[prost(message, repeated, tag = 1)]
    nodes: Vec<NumaMessage>,
}

/// A `NUMANode`. An empty message is NUMA node 0.
#[derive(Message)]
struct NumaMessage {
    #[prost(int64, tag = 1)]
    id: i64,
}

/// An `AllocatableResourcesResponse`.
#[derive(Message)]
struct AllocatableResponse {
    #[prost(int64, repeated, tag = 2)]
    cpu_ids: Vec<i64>,
}

/// Reads a `ListPodResourcesResponse`.
///
/// # Errors
/// The bytes are no valid message.
pub fn parse_list(message: &[u8]) -> Result<Vec<ContainerDevices>, DecodeError> {
    let mut all = Vec::new();
    for pod in ListResponse::decode(message)?.pod_resources {
        for container in pod.containers {
            all.push(ContainerDevices {
                namespace: pod.namespace.clone(),
                pod: pod.name.clone(),
                container: container.name,
                devices: container.devices.into_iter().map(device).collect(),
                cpus: ids(container.cpu_ids),
            });
        }
    }
    Ok(all)
}

/// The `cpu_ids` of an `AllocatableResourcesResponse`.
///
/// # Errors
/// The bytes are no valid message.
fn parse_allocatable(message: &[u8]) -> Result<CpuSet, DecodeError> {
    Ok(ids(AllocatableResponse::decode(message)?.cpu_ids))
}

fn device(message: DeviceMessage) -> Device {
    let nodes = message.topology.unwrap_or_default().nodes;
    Device {
        resource: message.resource_name,
        ids: message.device_ids,
        numa: ids(nodes.iter().map(|node| node.id)),
    }
}

/// CPUs or NUMA nodes, without −1 and without numbers that no Linux has.
fn ids(numbers: impl IntoIterator<Item = i64>) -> CpuSet {
    let ids = numbers.into_iter().filter_map(|id| u32::try_from(id).ok());
    ids.filter(|id| *id <= MAX_CPU).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn numbers_are_read_packed_and_one_by_one() {
        for message in [&[0x12, 2, 3, 5][..], &[0x10, 3, 0x10, 5]] {
            assert_eq!(parse_allocatable(message).unwrap().to_string(), "3,5");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_list_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse_list(&bytes);
        }
    }
}
