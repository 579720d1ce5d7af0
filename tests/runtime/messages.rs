//! The messages of the Container Runtime Interface (`runtime.v1`) that the tests send and read, and the calls.
//!
//! The structs have only the fields that the tests use, because Prost skips unknown ones.

use std::collections::BTreeMap;

use prost::Message;

/// A request, its method and the type of the answer.
pub(crate) trait Call: Message + std::fmt::Debug {
    type Answer: Message + Default;
    /// Service and method, as in the path of the HTTP request.
    const METHOD: &'static str;
}

macro_rules! calls {
    ($($service:ident $method:ident: $request:ty => $answer:ty;)*) => {
        $(impl Call for $request {
            type Answer = $answer;
            const METHOD: &'static str = concat!("/runtime.v1.", stringify!($service), "/", stringify!($method));
        })*
    };
}

calls! {
    RuntimeService Status: StatusRequest => StatusAnswer;
    RuntimeService Version: VersionRequest => VersionAnswer;
    RuntimeService RunPodSandbox: RunPodSandbox => Sandbox;
    RuntimeService StopPodSandbox: StopPodSandbox => Nothing;
    RuntimeService RemovePodSandbox: RemovePodSandbox => Nothing;
    RuntimeService ListPodSandbox: ListPodSandbox => Sandboxes;
    RuntimeService CreateContainer: CreateContainer => Created;
    RuntimeService StartContainer: StartContainer => Nothing;
    RuntimeService StopContainer: StopContainer => Nothing;
    RuntimeService RemoveContainer: RemoveContainer => Nothing;
    RuntimeService ListContainers: ListContainers => Containers;
    RuntimeService ContainerStatus: ContainerStatusRequest => ContainerStatusAnswer;
    RuntimeService UpdateContainerResources: UpdateContainerResources => Nothing;
    RuntimeService ExecSync: ExecSync => Executed;
    ImageService ImageStatus: ImageStatusRequest => ImageStatusAnswer;
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Nothing {}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct StatusRequest {}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct StatusAnswer {
    #[prost(message, optional, tag = "1")]
    pub(crate) status: Option<RuntimeStatus>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct RuntimeStatus {
    #[prost(message, repeated, tag = "1")]
    pub(crate) conditions: Vec<Condition>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Condition {
    #[prost(string, tag = "1")]
    pub(crate) kind: String,
    #[prost(bool, tag = "2")]
    pub(crate) status: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct VersionRequest {}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct VersionAnswer {
    #[prost(string, tag = "2")]
    pub(crate) name: String,
    #[prost(string, tag = "3")]
    pub(crate) version: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct PodMetadata {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(string, tag = "2")]
    pub(crate) uid: String,
    #[prost(string, tag = "3")]
    pub(crate) namespace: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct PodConfig {
    #[prost(message, optional, tag = "1")]
    pub(crate) metadata: Option<PodMetadata>,
    #[prost(string, tag = "3")]
    pub(crate) log_directory: String,
    #[prost(btree_map = "string, string", tag = "6")]
    pub(crate) labels: BTreeMap<String, String>,
    #[prost(btree_map = "string, string", tag = "7")]
    pub(crate) annotations: BTreeMap<String, String>,
    #[prost(message, optional, tag = "8")]
    pub(crate) linux: Option<LinuxPod>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct LinuxPod {
    #[prost(string, tag = "1")]
    pub(crate) cgroup_parent: String,
    #[prost(message, optional, tag = "2")]
    pub(crate) security: Option<PodSecurity>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct PodSecurity {
    #[prost(message, optional, tag = "1")]
    pub(crate) namespaces: Option<Namespaces>,
}

/// The namespaces of a container: 0 is the pod's namespace, 1 a private namespace, 2 the node's namespace.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Namespaces {
    #[prost(int32, tag = "1")]
    pub(crate) network: i32,
    #[prost(int32, tag = "2")]
    pub(crate) pid: i32,
    #[prost(int32, tag = "3")]
    pub(crate) ipc: i32,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct RunPodSandbox {
    #[prost(message, optional, tag = "1")]
    pub(crate) config: Option<PodConfig>,
    #[prost(string, tag = "2")]
    pub(crate) runtime_handler: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Sandbox {
    #[prost(string, tag = "1")]
    pub(crate) id: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct StopPodSandbox {
    #[prost(string, tag = "1")]
    pub(crate) sandbox: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct RemovePodSandbox {
    #[prost(string, tag = "1")]
    pub(crate) sandbox: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ListPodSandbox {}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Sandboxes {
    #[prost(message, repeated, tag = "1")]
    pub(crate) items: Vec<Sandbox>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ContainerMetadata {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(uint32, tag = "2")]
    pub(crate) attempt: u32,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Image {
    #[prost(string, tag = "1")]
    pub(crate) image: String,
    /// As in the pod's manifest. CRI-O creates no container without it.
    #[prost(string, tag = "18")]
    pub(crate) user_specified: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct KeyValue {
    #[prost(string, tag = "1")]
    pub(crate) key: String,
    #[prost(string, tag = "2")]
    pub(crate) value: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Mount {
    #[prost(string, tag = "1")]
    pub(crate) container_path: String,
    #[prost(string, tag = "2")]
    pub(crate) host_path: String,
}

/// Resources of a container. Zero and the empty string mean: no value requested.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Resources {
    #[prost(int64, tag = "1")]
    pub(crate) cpu_period: i64,
    #[prost(int64, tag = "2")]
    pub(crate) cpu_quota: i64,
    #[prost(int64, tag = "3")]
    pub(crate) cpu_shares: i64,
    #[prost(int64, tag = "4")]
    pub(crate) memory_limit: i64,
    #[prost(int64, tag = "5")]
    pub(crate) oom_score_adj: i64,
    #[prost(string, tag = "6")]
    pub(crate) cpuset_cpus: String,
    #[prost(string, tag = "7")]
    pub(crate) cpuset_mems: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ContainerConfig {
    #[prost(message, optional, tag = "1")]
    pub(crate) metadata: Option<ContainerMetadata>,
    #[prost(message, optional, tag = "2")]
    pub(crate) image: Option<Image>,
    #[prost(string, repeated, tag = "3")]
    pub(crate) command: Vec<String>,
    #[prost(message, repeated, tag = "6")]
    pub(crate) envs: Vec<KeyValue>,
    #[prost(message, repeated, tag = "7")]
    pub(crate) mounts: Vec<Mount>,
    #[prost(btree_map = "string, string", tag = "9")]
    pub(crate) labels: BTreeMap<String, String>,
    #[prost(btree_map = "string, string", tag = "10")]
    pub(crate) annotations: BTreeMap<String, String>,
    #[prost(string, tag = "11")]
    pub(crate) log_path: String,
    #[prost(message, optional, tag = "15")]
    pub(crate) linux: Option<LinuxContainer>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct LinuxContainer {
    #[prost(message, optional, tag = "1")]
    pub(crate) resources: Option<Resources>,
    #[prost(message, optional, tag = "2")]
    pub(crate) security: Option<ContainerSecurity>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ContainerSecurity {
    #[prost(message, optional, tag = "3")]
    pub(crate) namespaces: Option<Namespaces>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct CreateContainer {
    #[prost(string, tag = "1")]
    pub(crate) sandbox: String,
    #[prost(message, optional, tag = "2")]
    pub(crate) config: Option<ContainerConfig>,
    #[prost(message, optional, tag = "3")]
    pub(crate) pod: Option<PodConfig>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Created {
    #[prost(string, tag = "1")]
    pub(crate) id: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct StartContainer {
    #[prost(string, tag = "1")]
    pub(crate) id: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct StopContainer {
    #[prost(string, tag = "1")]
    pub(crate) id: String,
    /// Seconds between SIGTERM and SIGKILL.
    #[prost(int64, tag = "2")]
    pub(crate) grace: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct RemoveContainer {
    #[prost(string, tag = "1")]
    pub(crate) id: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ListContainers {}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Containers {
    #[prost(message, repeated, tag = "1")]
    pub(crate) containers: Vec<Listed>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Listed {
    #[prost(string, tag = "1")]
    pub(crate) id: String,
    #[prost(string, tag = "2")]
    pub(crate) sandbox: String,
    #[prost(message, optional, tag = "3")]
    pub(crate) metadata: Option<ContainerMetadata>,
    #[prost(enumeration = "State", tag = "6")]
    pub(crate) state: i32,
}

/// A container's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, prost::Enumeration)]
#[repr(i32)]
pub(crate) enum State {
    Created = 0,
    Running = 1,
    Exited = 2,
    Unknown = 3,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ContainerStatusRequest {
    #[prost(string, tag = "1")]
    pub(crate) id: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ContainerStatusAnswer {
    #[prost(message, optional, tag = "1")]
    pub(crate) status: Option<ContainerStatus>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ContainerStatus {
    #[prost(string, tag = "1")]
    pub(crate) id: String,
    #[prost(enumeration = "State", tag = "3")]
    pub(crate) state: i32,
    #[prost(int32, tag = "7")]
    pub(crate) exit_code: i32,
    #[prost(string, tag = "11")]
    pub(crate) message: String,
    #[prost(message, optional, tag = "16")]
    pub(crate) resources: Option<ContainerResources>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ContainerResources {
    #[prost(message, optional, tag = "1")]
    pub(crate) linux: Option<Resources>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct UpdateContainerResources {
    #[prost(string, tag = "1")]
    pub(crate) id: String,
    #[prost(message, optional, tag = "2")]
    pub(crate) linux: Option<Resources>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ExecSync {
    #[prost(string, tag = "1")]
    pub(crate) id: String,
    #[prost(string, repeated, tag = "2")]
    pub(crate) command: Vec<String>,
    #[prost(int64, tag = "3")]
    pub(crate) timeout: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Executed {
    #[prost(bytes = "vec", tag = "1")]
    pub(crate) stdout: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub(crate) stderr: Vec<u8>,
    #[prost(int32, tag = "3")]
    pub(crate) exit_code: i32,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ImageStatusRequest {
    #[prost(message, optional, tag = "1")]
    pub(crate) image: Option<Image>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ImageStatusAnswer {
    #[prost(message, optional, tag = "1")]
    pub(crate) image: Option<ImageFound>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ImageFound {
    #[prost(string, tag = "1")]
    pub(crate) id: String,
}
