//! The protocol's messages, with the names of NRI's `api.proto`. They have only the fields that
//! Pinfold reads or writes, and the decoder skips all others.
//!
//! Protobuf omits empty strings and zeros, so a missing string reads as an empty one. Optional
//! numbers are messages of their own, which the methods of [`LinuxCpu`] and [`LinuxMemory`] unpack.

use std::collections::BTreeMap;

use prost::{Enumeration, Message};

/// The service that the runtime calls.
pub(super) const PLUGIN_SERVICE: &str = "nri.pkg.api.v1alpha1.Plugin";

pub(super) const RUNTIME_SERVICE: &str = "nri.pkg.api.v1alpha1.Runtime";

#[derive(Clone, PartialEq, Message)]
pub struct PodSandbox {
    /// The runtime's id of the sandbox.
    #[prost(string, tag = 1)]
    pub id: String,
    #[prost(string, tag = 2)]
    pub name: String,
    /// The pod's uid, as the kubelet knows it.
    #[prost(string, tag = 3)]
    pub uid: String,
    #[prost(string, tag = 4)]
    pub namespace: String,
    /// The pod's labels, and those that the kubelet and the runtime add.
    #[prost(btree_map = "string, string", tag = 5)]
    pub labels: BTreeMap<String, String>,
    /// The pod's annotations, and those that the kubelet and the runtime add.
    #[prost(btree_map = "string, string", tag = 6)]
    pub annotations: BTreeMap<String, String>,
    /// The pod's Linux configuration.
    #[prost(message, optional, tag = 8)]
    pub linux: Option<LinuxPodSandbox>,
    /// The pid of the sandbox's process; 0 without a process.
    #[prost(uint32, tag = 9)]
    pub pid: u32,
}

/// The Linux configuration of a pod. Old runtimes omit it in events that end a pod.
#[derive(Clone, PartialEq, Message)]
pub struct LinuxPodSandbox {
    /// The pod's cgroup: a path with the kubelet's driver `cgroupfs`, the name of a slice with `systemd`.
    #[prost(string, tag = 3)]
    pub cgroup_parent: String,
    /// The sandbox's own cgroup, in the form of the runtime's driver.
    #[prost(string, tag = 4)]
    pub cgroups_path: String,
    /// The sandbox's own namespaces; those of the host are not listed.
    #[prost(message, repeated, tag = 5)]
    pub namespaces: Vec<LinuxNamespace>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct LinuxNamespace {
    /// `network`, `pid` and the like.
    #[prost(string, tag = 1)]
    pub kind: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct Container {
    /// The runtime's id.
    #[prost(string, tag = 1)]
    pub id: String,
    #[prost(string, tag = 2)]
    pub pod_sandbox_id: String,
    /// The container's name in the pod.
    #[prost(string, tag = 3)]
    pub name: String,
    /// A [`ContainerState`].
    #[prost(enumeration = "ContainerState", tag = 4)]
    pub state: i32,
    /// Annotations of the kubelet and the runtime.
    #[prost(btree_map = "string, string", tag = 6)]
    pub annotations: BTreeMap<String, String>,
    /// The whole command line.
    #[prost(string, repeated, tag = 7)]
    pub args: Vec<String>,
    /// The whole environment from the image and the pod, as `NAME=value`.
    #[prost(string, repeated, tag = 8)]
    pub env: Vec<String>,
    /// The mounts of the image, the pod and the runtime.
    #[prost(message, repeated, tag = 9)]
    pub mounts: Vec<Mount>,
    /// The container's Linux configuration.
    #[prost(message, optional, tag = 11)]
    pub linux: Option<LinuxContainer>,
    /// The pid of the first process; 0 before the process exists.
    #[prost(uint32, tag = 12)]
    pub pid: u32,
    /// The time of creation, in nanoseconds since 1970. Zero means unknown: containerd 1.7 and 2.1
    /// do not set it.
    #[prost(int64, tag = 14)]
    pub created_at: i64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Enumeration)]
#[repr(i32)]
pub enum ContainerState {
    /// Not set: the container is being created.
    Unknown = 0,
    /// The container exists and does not run yet.
    Created = 1,
    Paused = 2,
    Running = 3,
    Stopped = 4,
}

/// A mount of a container, as in an OCI configuration.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Mount {
    /// The path in the container.
    #[prost(string, tag = 1)]
    pub destination: String,
    /// The file system, or `bind`.
    #[prost(string, tag = 2)]
    pub kind: String,
    /// For a bind mount, the path on the host.
    #[prost(string, tag = 3)]
    pub source: String,
    #[prost(string, repeated, tag = 4)]
    pub options: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
pub struct LinuxContainer {
    #[prost(message, optional, tag = 3)]
    pub resources: Option<LinuxResources>,
    /// The container's cgroup, in the form of the runtime's driver: a path, or `slice:prefix:name`.
    #[prost(string, tag = 5)]
    pub cgroups_path: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct LinuxResources {
    #[prost(message, optional, tag = 1)]
    pub memory: Option<LinuxMemory>,
    #[prost(message, optional, tag = 2)]
    pub cpu: Option<LinuxCpu>,
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct LinuxMemory {
    /// The limit in bytes: see [`limit`](Self::limit).
    #[prost(message, optional, tag = 1)]
    pub limit: Option<OptionalInt64>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct LinuxCpu {
    /// The weight: see [`shares`](Self::shares).
    #[prost(message, optional, tag = 1)]
    pub shares: Option<OptionalUInt64>,
    /// The quota: see [`quota`](Self::quota).
    #[prost(message, optional, tag = 2)]
    pub quota: Option<OptionalInt64>,
    /// The quota's period: see [`period`](Self::period).
    #[prost(message, optional, tag = 3)]
    pub period: Option<OptionalUInt64>,
    /// The CPU set; empty if unset.
    #[prost(string, tag = 6)]
    pub cpus: String,
    /// The NUMA nodes of the memory; empty if unset.
    #[prost(string, tag = 7)]
    pub mems: String,
}

/// An optional signed number.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct OptionalInt64 {
    #[prost(int64, tag = 1)]
    pub value: i64,
}

/// An optional unsigned number.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct OptionalUInt64 {
    #[prost(uint64, tag = 1)]
    pub value: u64,
}

#[derive(Message)]
pub(super) struct RegisterPluginRequest {
    #[prost(string, tag = 1)]
    pub name: String,
    #[prost(string, tag = 2)]
    pub index: String,
    #[prost(string, tag = 3)]
    pub version: String,
}

#[derive(Message)]
pub(super) struct ConfigureRequest {
    #[prost(string, tag = 2)]
    pub runtime_name: String,
    #[prost(string, tag = 3)]
    pub runtime_version: String,
    #[prost(int64, tag = 5)]
    pub request_timeout_ms: i64,
}

#[derive(Message)]
pub(super) struct ConfigureResponse {
    #[prost(int32, tag = 2)]
    pub events: i32,
}

#[derive(Message)]
pub(super) struct SynchronizeRequest {
    #[prost(message, repeated, tag = 1)]
    pub pods: Vec<PodSandbox>,
    #[prost(message, repeated, tag = 2)]
    pub containers: Vec<Container>,
    #[prost(bool, tag = 3)]
    pub more: bool,
}

#[derive(Message)]
pub(super) struct SynchronizeResponse {
    #[prost(bool, tag = 2)]
    pub more: bool,
}

/// The request of each method for a pod or a container event. All of them number their fields
/// alike.
#[derive(Message)]
pub(super) struct CreateContainerRequest {
    #[prost(message, optional, tag = 1)]
    pub pod: Option<PodSandbox>,
    #[prost(message, optional, tag = 2)]
    pub container: Option<Container>,
}

#[derive(Message)]
pub(super) struct StateChangeEvent {
    #[prost(int32, tag = 1)]
    pub event: i32,
    #[prost(message, optional, tag = 2)]
    pub pod: Option<PodSandbox>,
    #[prost(message, optional, tag = 3)]
    pub container: Option<Container>,
}

#[derive(Message)]
pub(super) struct CreateContainerResponse {
    #[prost(message, optional, tag = 1)]
    pub adjust: Option<ContainerAdjustment>,
}

/// The response to UpdateContainer. Without updates, it encodes to the empty message.
#[derive(Message)]
pub(super) struct UpdateContainerResponse {
    #[prost(message, repeated, tag = 1)]
    pub update: Vec<ContainerUpdate>,
}

#[derive(PartialEq, Message)]
pub(super) struct ContainerAdjustment {
    #[prost(btree_map = "string, string", tag = 2)]
    pub annotations: BTreeMap<String, String>,
    #[prost(message, repeated, tag = 3)]
    pub mounts: Vec<Mount>,
    #[prost(message, repeated, tag = 4)]
    pub env: Vec<KeyValue>,
    #[prost(message, optional, tag = 6)]
    pub linux: Option<LinuxContainerAdjustment>,
}

#[derive(PartialEq, Message)]
pub(super) struct KeyValue {
    #[prost(string, tag = 1)]
    pub key: String,
    #[prost(string, tag = 2)]
    pub value: String,
}

#[derive(PartialEq, Message)]
pub(super) struct LinuxContainerAdjustment {
    #[prost(message, optional, tag = 2)]
    pub resources: Option<LinuxResources>,
}

#[derive(PartialEq, Message)]
pub(super) struct ContainerUpdate {
    #[prost(string, tag = 1)]
    pub container_id: String,
    #[prost(message, optional, tag = 2)]
    pub linux: Option<LinuxContainerUpdate>,
}

#[derive(PartialEq, Message)]
pub(super) struct LinuxContainerUpdate {
    #[prost(message, optional, tag = 1)]
    pub resources: Option<LinuxResources>,
}

// === impl PodSandbox ===

impl PodSandbox {
    /// The pod's cgroup, as the kubelet named it to the runtime; empty if the runtime omits the
    /// field.
    pub fn cgroup_parent(&self) -> &str {
        let linux = self.linux.as_ref();
        linux.map_or("", |linux| linux.cgroup_parent.as_str())
    }
}

// === impl Container ===

impl Container {
    /// The container's resources, if the runtime sends them.
    pub fn resources(&self) -> Option<&LinuxResources> {
        self.linux.as_ref()?.resources.as_ref()
    }

    /// The container's cgroup, in the form of the runtime's driver; empty if the runtime omits the field.
    pub fn cgroups_path(&self) -> &str {
        let linux = self.linux.as_ref();
        linux.map_or("", |linux| linux.cgroups_path.as_str())
    }

    /// The value of an environment variable. The last of several definitions counts, as in runc.
    pub fn variable(&self, name: &str) -> Option<&str> {
        let mut lines = self.env.iter().rev();
        lines.find_map(|line| line.strip_prefix(name)?.strip_prefix('='))
    }
}

// === impl LinuxMemory ===

impl LinuxMemory {
    /// The limit in bytes, if set.
    pub fn limit(&self) -> Option<u64> {
        positive(self.limit?.value)
    }
}

// === impl LinuxCpu ===

impl LinuxCpu {
    /// The weight, in the unit of cgroup v1 on every node.
    pub fn shares(&self) -> Option<u64> {
        positive(self.shares?.value)
    }

    /// The quota in microseconds per [`period`](Self::period), if set.
    pub fn quota(&self) -> Option<u64> {
        positive(self.quota?.value)
    }

    /// The period in microseconds; the kernel's default if unset.
    pub fn period(&self) -> u64 {
        let period = self.period.and_then(|period| positive(period.value));
        period.unwrap_or(100_000)
    }
}

/// A number above zero. Runtimes send zero or a negative number for an unset value.
pub(super) fn positive(number: impl TryInto<u64>) -> Option<u64> {
    number.try_into().ok().filter(|&number| number > 0)
}
