//! What the kubelet says on its PodResources socket: the devices of each container with their NUMA nodes, and whether the
//! kubelet's own CPU Manager assigns CPUs.
//!
//! The kubelet answers on its PodResources socket (gRPC, `v1.PodResourcesLister`). What it says comes from device plugins.
//! A plugin that says nothing of NUMA nodes but names devices by PCI address, as those for network cards do, is helped out
//! with sysfs. What nobody knows stays unknown: an empty set, never NUMA node 0.
//!
//! The messages are read by a small reader of our own (`wire`): five messages with a dozen fields don't pay for a code
//! generator, and fields that later kubelets add are passed over.

mod grpc;
mod wire;

use std::path::{Path, PathBuf};
use std::time::Duration;

pub use grpc::CallError;
pub use wire::WireError;
use wire::{Reader, Value};

use super::pci;
use crate::cpu::{CpuSet, MAX_CPU};

/// Where the kubelet listens, below the root.
pub const SOCKET: &str = "var/lib/kubelet/pod-resources/kubelet.sock";

/// The longest answer that is read: what the kubelet itself allows.
pub const MAX_ANSWER: usize = 16 << 20;

/// How long an answer is waited for.
const DEADLINE: Duration = Duration::from_secs(5);

/// The words of a kubelet whose feature gate for `GetAllocatableResources` is off. They come with the status Unknown.
const GATE_OFF: &str = "API GetAllocatableResources disabled";

/// The devices of one container.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ContainerDevices {
    /// Namespace of its pod.
    pub namespace: String,
    /// Its pod.
    pub pod: String,
    /// Its name.
    pub container: String,
    /// What it was given; empty for most.
    pub devices: Vec<Device>,
    /// CPUs that the kubelet's own CPU Manager gave it alone; empty with policy `none`.
    pub cpus: CpuSet,
}

/// Devices of one resource that are near the same NUMA nodes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Device {
    /// The resource's name, as in a container's limits: `nvidia.com/gpu`.
    pub resource: String,
    /// The devices' ids, as the plugin made them up.
    pub ids: Vec<String>,
    /// NUMA nodes that they are near; empty where nobody knows.
    pub numa: CpuSet,
}

/// What is known about the kubelet's own CPU Manager.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CpuManager {
    /// The kubelet's socket does not exist.
    NoSocket,
    /// The socket exists, and no kubelet has answered on it since the agent's start.
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

/// Why the kubelet's answer is not known.
#[derive(Debug, thiserror::Error)]
pub enum DevicesError {
    /// The kubelet could not be asked.
    #[error("can't ask the kubelet on {}", socket.display())]
    Call {
        /// The socket.
        socket: PathBuf,
        /// What went wrong.
        source: CallError,
    },
    /// Its answer makes no sense.
    #[error("the kubelet's answer on {} can't be read", socket.display())]
    Answer {
        /// The socket.
        socket: PathBuf,
        /// What is wrong with it.
        source: WireError,
    },
}

// === impl PodResources ===

impl PodResources {
    /// The kubelet of the machine below `root`; nothing is opened yet.
    pub fn new(root: &Path) -> Self {
        Self {
            root: root.to_owned(),
            socket: root.join(SOCKET),
            deadline: DEADLINE,
        }
    }

    /// The same with another time to wait.
    #[must_use]
    pub fn with_deadline(self, deadline: Duration) -> Self {
        Self { deadline, ..self }
    }

    /// The socket.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// The devices of every container on this node, in the kubelet's order.
    ///
    /// # Errors
    /// [`CallError::NoSocket`] where no kubelet listens, which is ordinary off a cluster; everything else is trouble.
    pub async fn list(&self) -> Result<Vec<ContainerDevices>, DevicesError> {
        let mut containers = self.call("/v1.PodResourcesLister/List", parse_list).await?;
        for device in containers
            .iter_mut()
            .flat_map(|container| &mut container.devices)
        {
            if device.numa.is_empty() {
                device.numa = device
                    .ids
                    .iter()
                    .filter_map(|id| pci::numa_node(&self.root, id))
                    .collect();
            }
        }
        Ok(containers)
    }

    /// The CPUs that the kubelet's CPU Manager may assign. The set is empty with policy `none`, and where the kubelet does not
    /// tell. Kubelets before 1.21 lack the method. Later ones refuse the call while the feature gate
    /// `KubeletPodResourcesGetAllocatable` is off: by default before 1.23, never from 1.28 on.
    ///
    /// # Errors
    /// As [`PodResources::list`].
    pub async fn allocatable_cpus(&self) -> Result<CpuSet, DevicesError> {
        match self
            .call(
                "/v1.PodResourcesLister/GetAllocatableResources",
                parse_allocatable,
            )
            .await
        {
            Err(DevicesError::Call {
                source: CallError::Unimplemented,
                ..
            }) => Ok(CpuSet::new()),
            Err(DevicesError::Call {
                source: CallError::Status { message, .. },
                ..
            }) if message.contains(GATE_OFF) => Ok(CpuSet::new()),
            answer => answer,
        }
    }

    /// What the kubelet's CPU Manager does now, given the answer of [`PodResources::list`].
    ///
    /// # Errors
    /// As [`PodResources::list`].
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

    /// What is known about the CPU Manager of a kubelet that does not answer. The last answer stands.
    pub fn unanswered(&self, known: Option<CpuManager>) -> CpuManager {
        match known {
            Some(CpuManager::Assigns) => CpuManager::Assigns,
            Some(CpuManager::Disabled) => CpuManager::Disabled,
            _ if self.socket.symlink_metadata().is_ok() => CpuManager::Unanswered,
            _ => CpuManager::NoSocket,
        }
    }

    /// Asks once about the CPU Manager and blocks until the answer or the deadline. For the start, before any task runs.
    pub fn cpu_manager_blocking(&self) -> CpuManager {
        let ask = async { self.cpu_manager(&self.list().await?).await };
        // A thread of its own, since the caller may run in a runtime already.
        let answer = std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                let runtime = tokio::runtime::Builder::new_current_thread()
                    .enable_all()
                    .build();
                runtime.ok().and_then(|runtime| runtime.block_on(ask).ok())
            });
            thread.join().ok().flatten()
        });
        answer.unwrap_or_else(|| self.unanswered(None))
    }

    async fn call<T>(
        &self,
        method: &'static str,
        parse: impl FnOnce(&[u8]) -> Result<T, WireError>,
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

/// The NUMA nodes that a pod's devices are near; empty where it has none, or nobody knows.
pub fn numa_of_pod(containers: &[ContainerDevices], namespace: &str, pod: &str) -> CpuSet {
    containers
        .iter()
        .filter(|container| container.namespace == namespace && container.pod == pod)
        .flat_map(|container| &container.devices)
        .fold(CpuSet::new(), |all, device| all.union(&device.numa))
}

/// Reads a `ListPodResourcesResponse`.
///
/// # Errors
/// What is no protobuf message. Unknown fields are passed over.
pub fn parse_list(message: &[u8]) -> Result<Vec<ContainerDevices>, WireError> {
    let mut all = Vec::new();
    for field in Reader::new(message) {
        if let (1, Value::Bytes(pod)) = field? {
            pod_resources(pod, &mut all)?;
        }
    }
    Ok(all)
}

/// The `cpu_ids` of an `AllocatableResourcesResponse`.
///
/// # Errors
/// Bytes that are no protobuf message. Unknown fields are passed over.
pub fn parse_allocatable(message: &[u8]) -> Result<CpuSet, WireError> {
    let mut cpus = CpuSet::new();
    for field in Reader::new(message) {
        if let (2, value) = field? {
            cpu_ids(value, &mut cpus)?;
        }
    }
    Ok(cpus)
}

/// Adds the numbers of a repeated field, which proto3 packs into one field.
fn cpu_ids(value: Value<'_>, cpus: &mut CpuSet) -> Result<(), WireError> {
    match value {
        Value::Varint(cpu) => cpus.extend(id(cpu)),
        Value::Bytes(packed) => {
            for cpu in wire::packed(packed) {
                cpus.extend(id(cpu?));
            }
        }
        Value::Fixed => {}
    }
    Ok(())
}

fn pod_resources(message: &[u8], into: &mut Vec<ContainerDevices>) -> Result<(), WireError> {
    let (mut pod, mut namespace, mut containers) = (String::new(), String::new(), Vec::new());
    for field in Reader::new(message) {
        match field? {
            (1, Value::Bytes(text)) => pod = string(text),
            (2, Value::Bytes(text)) => namespace = string(text),
            (3, Value::Bytes(message)) => containers.push(container_resources(message)?),
            _ => {}
        }
    }
    for mut container in containers {
        (container.namespace, container.pod) = (namespace.clone(), pod.clone());
        into.push(container);
    }
    Ok(())
}

fn container_resources(message: &[u8]) -> Result<ContainerDevices, WireError> {
    let mut container = ContainerDevices::default();
    for field in Reader::new(message) {
        match field? {
            (1, Value::Bytes(text)) => container.container = string(text),
            (2, Value::Bytes(message)) => container.devices.push(device(message)?),
            (3, value) => cpu_ids(value, &mut container.cpus)?,
            _ => {}
        }
    }
    Ok(container)
}

fn device(message: &[u8]) -> Result<Device, WireError> {
    let mut device = Device::default();
    for field in Reader::new(message) {
        match field? {
            (1, Value::Bytes(text)) => device.resource = string(text),
            (2, Value::Bytes(text)) => device.ids.push(string(text)),
            (3, Value::Bytes(topology)) => {
                for field in Reader::new(topology) {
                    if let (1, Value::Bytes(numa)) = field? {
                        device.numa.extend(numa_node(numa)?);
                    }
                }
            }
            _ => {}
        }
    }
    Ok(device)
}

fn numa_node(message: &[u8]) -> Result<Option<u32>, WireError> {
    // Zero is what a number is that was left out: an empty message is NUMA node 0.
    let mut numa = 0;
    for field in Reader::new(message) {
        if let (1, Value::Varint(number)) = field? {
            numa = number;
        }
    }
    Ok(id(numa))
}

/// A CPU or NUMA node; −1 and what no Linux has are nobody.
fn id(number: u64) -> Option<u32> {
    u32::try_from(number).ok().filter(|id| *id <= MAX_CPU)
}

fn string(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
