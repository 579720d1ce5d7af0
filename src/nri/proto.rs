//! What a runtime tells of pods and containers: the fields that we read; all others are skipped, whatever they hold.
//!
//! Protobuf leaves out what is empty or zero, so a missing text is an empty one. Numbers that may be unset come as messages
//! of their own; the methods of [`LinuxCpu`] and [`LinuxMemory`] unpack them.

use std::collections::BTreeMap;

/// The service that the runtime calls.
pub(super) const PLUGIN_SERVICE: &str = "nri.pkg.api.v1alpha1.Plugin";

/// The service that the runtime offers.
pub(super) const RUNTIME_SERVICE: &str = "nri.pkg.api.v1alpha1.Runtime";

/// A pod, by its sandbox.
#[derive(Clone, PartialEq, prost::Message)]
pub struct PodSandbox {
    /// The runtime's id of the sandbox.
    #[prost(string, tag = "1")]
    pub id: String,
    /// The pod's name.
    #[prost(string, tag = "2")]
    pub name: String,
    /// The pod's uid, as the kubelet knows it.
    #[prost(string, tag = "3")]
    pub uid: String,
    /// The pod's namespace.
    #[prost(string, tag = "4")]
    pub namespace: String,
    /// The pod's labels, and some of the kubelet's and the runtime's own.
    #[prost(btree_map = "string, string", tag = "5")]
    pub labels: BTreeMap<String, String>,
    /// The pod's annotations, and some of the kubelet's and the runtime's own.
    #[prost(btree_map = "string, string", tag = "6")]
    pub annotations: BTreeMap<String, String>,
    /// What Linux knows of it.
    #[prost(message, optional, tag = "8")]
    pub linux: Option<LinuxPodSandbox>,
    /// The process that keeps the sandbox, where there is one.
    #[prost(uint32, tag = "9")]
    pub pid: u32,
}

/// What Linux knows of a pod. Events of old runtimes that end a pod come without it.
#[derive(Clone, PartialEq, prost::Message)]
pub struct LinuxPodSandbox {
    /// What its containers are given together, as the kubelet counts it.
    #[prost(message, optional, tag = "2")]
    pub pod_resources: Option<LinuxResources>,
    /// The pod's cgroup: a path with the kubelet's driver `cgroupfs`, the name of a slice with `systemd`.
    #[prost(string, tag = "3")]
    pub cgroup_parent: String,
    /// The sandbox's own cgroup, in the form of the runtime's driver.
    #[prost(string, tag = "4")]
    pub cgroups_path: String,
    /// The namespaces that the sandbox has of its own.
    #[prost(message, repeated, tag = "5")]
    pub namespaces: Vec<LinuxNamespace>,
    /// What the sandbox's own process is given.
    #[prost(message, optional, tag = "6")]
    pub resources: Option<LinuxResources>,
}

/// A namespace.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct LinuxNamespace {
    /// `network`, `pid` and the like.
    #[prost(string, tag = "1")]
    pub kind: String,
    /// Where it is, if it exists already.
    #[prost(string, tag = "2")]
    pub path: String,
}

/// A container.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Container {
    /// The runtime's id.
    #[prost(string, tag = "1")]
    pub id: String,
    /// The id of its pod's sandbox.
    #[prost(string, tag = "2")]
    pub pod_sandbox_id: String,
    /// Its name in the pod.
    #[prost(string, tag = "3")]
    pub name: String,
    /// A [`ContainerState`].
    #[prost(enumeration = "ContainerState", tag = "4")]
    pub state: i32,
    /// The kubelet's and the runtime's own labels.
    #[prost(btree_map = "string, string", tag = "5")]
    pub labels: BTreeMap<String, String>,
    /// The kubelet's and the runtime's own annotations.
    #[prost(btree_map = "string, string", tag = "6")]
    pub annotations: BTreeMap<String, String>,
    /// The whole command line.
    #[prost(string, repeated, tag = "7")]
    pub args: Vec<String>,
    /// The whole environment, `NAME=value` each: that of the image and of the pod.
    #[prost(string, repeated, tag = "8")]
    pub env: Vec<String>,
    /// What Linux knows of it.
    #[prost(message, optional, tag = "11")]
    pub linux: Option<LinuxContainer>,
    /// Its first process; 0 before there is one.
    #[prost(uint32, tag = "12")]
    pub pid: u32,
    /// When it was created, in nanoseconds since 1970; 0 where the runtime does not tell, as containerd 1.7 and 2.1 do not.
    #[prost(int64, tag = "14")]
    pub created_at: i64,
    /// The code that it ended with, where it did.
    #[prost(int32, tag = "17")]
    pub exit_code: i32,
}

/// The state of a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum ContainerState {
    /// Not told: it is being created.
    Unknown = 0,
    /// It exists and does not run yet.
    Created = 1,
    /// It is paused.
    Paused = 2,
    /// It runs.
    Running = 3,
    /// It has ended.
    Stopped = 4,
}

/// What Linux knows of a container.
#[derive(Clone, PartialEq, prost::Message)]
pub struct LinuxContainer {
    /// What it is given.
    #[prost(message, optional, tag = "3")]
    pub resources: Option<LinuxResources>,
    /// Its cgroup, in the form of the runtime's driver: a path, or `slice:prefix:name`.
    #[prost(string, tag = "5")]
    pub cgroups_path: String,
}

/// What a pod or a container is given.
#[derive(Clone, PartialEq, prost::Message)]
pub struct LinuxResources {
    /// Memory.
    #[prost(message, optional, tag = "1")]
    pub memory: Option<LinuxMemory>,
    /// CPUs.
    #[prost(message, optional, tag = "2")]
    pub cpu: Option<LinuxCpu>,
    /// Files of cgroup v2, by name, as they are.
    #[prost(btree_map = "string, string", tag = "6")]
    pub unified: BTreeMap<String, String>,
}

/// Memory that is given.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct LinuxMemory {
    /// The limit in bytes: see [`limit`](Self::limit).
    #[prost(message, optional, tag = "1")]
    pub limit: Option<OptionalInt64>,
}

/// CPUs that are given.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct LinuxCpu {
    /// The weight: see [`shares`](Self::shares).
    #[prost(message, optional, tag = "1")]
    pub shares: Option<OptionalUInt64>,
    /// The quota: see [`quota`](Self::quota).
    #[prost(message, optional, tag = "2")]
    pub quota: Option<OptionalInt64>,
    /// The quota's period: see [`period`](Self::period).
    #[prost(message, optional, tag = "3")]
    pub period: Option<OptionalUInt64>,
    /// The CPU set; empty where none is set.
    #[prost(string, tag = "6")]
    pub cpus: String,
    /// The NUMA nodes of its memory; empty where none are set.
    #[prost(string, tag = "7")]
    pub mems: String,
}

/// A signed number that may be unset.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct OptionalInt64 {
    /// The number.
    #[prost(int64, tag = "1")]
    pub value: i64,
}

/// A number that may be unset.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct OptionalUInt64 {
    /// The number.
    #[prost(uint64, tag = "1")]
    pub value: u64,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct RegisterPluginRequest {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(string, tag = "2")]
    pub(super) index: String,
    #[prost(string, tag = "3")]
    pub(super) version: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct ConfigureRequest {
    #[prost(string, tag = "2")]
    pub(super) runtime_name: String,
    #[prost(string, tag = "3")]
    pub(super) runtime_version: String,
    #[prost(int64, tag = "5")]
    pub(super) request_timeout_ms: i64,
    #[prost(string, tag = "6")]
    pub(super) nri_version: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct ConfigureResponse {
    #[prost(int32, tag = "2")]
    pub(super) events: i32,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct SynchronizeRequest {
    #[prost(message, repeated, tag = "1")]
    pub(super) pods: Vec<PodSandbox>,
    #[prost(message, repeated, tag = "2")]
    pub(super) containers: Vec<Container>,
    #[prost(bool, tag = "3")]
    pub(super) more: bool,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct SynchronizeResponse {
    #[prost(message, repeated, tag = "1")]
    pub(super) update: Vec<ContainerUpdate>,
    #[prost(bool, tag = "2")]
    pub(super) more: bool,
}

/// The request of every method that tells of a pod or of a container: they number their fields alike.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct UpdateContainerRequest {
    #[prost(message, optional, tag = "1")]
    pub(super) pod: Option<PodSandbox>,
    #[prost(message, optional, tag = "2")]
    pub(super) container: Option<Container>,
    #[prost(message, optional, tag = "3")]
    pub(super) resources: Option<LinuxResources>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct StateChangeEvent {
    #[prost(int32, tag = "1")]
    pub(super) event: i32,
    #[prost(message, optional, tag = "2")]
    pub(super) pod: Option<PodSandbox>,
    #[prost(message, optional, tag = "3")]
    pub(super) container: Option<Container>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct CreateContainerResponse {
    #[prost(message, optional, tag = "1")]
    pub(super) adjust: Option<ContainerAdjustment>,
    #[prost(message, repeated, tag = "2")]
    pub(super) update: Vec<ContainerUpdate>,
}

/// What methods answer that may change containers which exist already; to others it is empty, which is the empty message.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct UpdateContainerResponse {
    #[prost(message, repeated, tag = "1")]
    pub(super) update: Vec<ContainerUpdate>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct ContainerAdjustment {
    #[prost(btree_map = "string, string", tag = "2")]
    pub(super) annotations: BTreeMap<String, String>,
    #[prost(message, repeated, tag = "4")]
    pub(super) env: Vec<KeyValue>,
    #[prost(message, optional, tag = "6")]
    pub(super) linux: Option<LinuxContainerAdjustment>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct KeyValue {
    #[prost(string, tag = "1")]
    pub(super) key: String,
    #[prost(string, tag = "2")]
    pub(super) value: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct LinuxContainerAdjustment {
    #[prost(message, optional, tag = "2")]
    pub(super) resources: Option<LinuxResources>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct ContainerUpdate {
    #[prost(string, tag = "1")]
    pub(super) container_id: String,
    #[prost(message, optional, tag = "2")]
    pub(super) linux: Option<LinuxContainerUpdate>,
    #[prost(bool, tag = "3")]
    pub(super) ignore_failure: bool,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct LinuxContainerUpdate {
    #[prost(message, optional, tag = "1")]
    pub(super) resources: Option<LinuxResources>,
}

// === impl PodSandbox ===

impl PodSandbox {
    /// The pod's cgroup, as the kubelet named it to the runtime; empty where the runtime does not tell.
    pub fn cgroup_parent(&self) -> &str {
        self.linux
            .as_ref()
            .map(|linux| linux.cgroup_parent.as_str())
            .unwrap_or_default()
    }
}

// === impl Container ===

impl Container {
    /// What it is given, where the runtime tells.
    pub fn resources(&self) -> Option<&LinuxResources> {
        self.linux.as_ref()?.resources.as_ref()
    }

    /// Its cgroup, in the form of the runtime's driver; empty where the runtime does not tell.
    pub fn cgroups_path(&self) -> &str {
        self.linux
            .as_ref()
            .map(|linux| linux.cgroups_path.as_str())
            .unwrap_or_default()
    }

    /// The value of a variable of its environment. Of several, the last counts, as for the C library's callers.
    pub fn variable(&self, name: &str) -> Option<&str> {
        self.env
            .iter()
            .rev()
            .find_map(|line| line.split_once('=').filter(|(key, _)| *key == name))
            .map(|(_, v)| v)
    }
}

// === impl LinuxMemory ===

impl LinuxMemory {
    /// The limit in bytes, where there is one.
    pub fn limit(&self) -> Option<u64> {
        self.limit
            .and_then(|limit| u64::try_from(limit.value).ok())
            .filter(|&limit| limit > 0)
    }
}

// === impl LinuxCpu ===

impl LinuxCpu {
    /// The weight, in cgroup v1's unit whatever the node has.
    pub fn shares(&self) -> Option<u64> {
        self.shares
            .map(|shares| shares.value)
            .filter(|&shares| shares > 0)
    }

    /// The quota in microseconds per [`period`](Self::period), where there is one.
    pub fn quota(&self) -> Option<u64> {
        self.quota
            .and_then(|quota| u64::try_from(quota.value).ok())
            .filter(|&quota| quota > 0)
    }

    /// The period in microseconds; the kernel's own where none is told.
    pub fn period(&self) -> u64 {
        self.period
            .map(|period| period.value)
            .filter(|&period| period > 0)
            .unwrap_or(100_000)
    }
}
