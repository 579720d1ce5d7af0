//! [`AgentEvent`]: the input of the reconciler, and the answers to runtime requests.

use std::collections::BTreeMap;
use std::path::PathBuf;

use tokio::sync::oneshot;

use crate::cpu::CpuSet;
use crate::host::pod_resources::CpuManager;
use crate::pod::{ApiUid, Pod, ThreadEnvironment};

/// The receiver of the answer to StartContainer. An error is the reason for a refusal.
pub(super) type StartReply = oneshot::Sender<Result<(), String>>;

/// A source of pods. If both sources describe a pod, the API's description counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum PodSource {
    /// The API server.
    Api,
    /// The folder of manifests.
    Folder,
}

/// An input of the reconciler.
#[derive(Debug)]
pub enum AgentEvent {
    /// The complete list of a source's pods, with the errors of reading.
    Pods {
        /// The source of the list.
        source: PodSource,
        /// The pods.
        pods: Vec<Pod>,
        /// Unreadable files or pods, as sentences.
        errors: Vec<String>,
    },
    /// The wait for the API server's first list has ended without a complete list. Passes then rely on the kernel's records.
    PodsWaitEnded,
    /// The uid of this Node at the API server.
    Node(ApiUid),
    /// The NUMA nodes of the devices of pods, by namespace and name.
    Devices(BTreeMap<(String, String), CpuSet>),
    /// The new state of the kubelet's CPU Manager, after a change.
    CpuManager(CpuManager),
    /// An update of the container runtime's pods.
    Runtime(RuntimeUpdate),
    /// The runtime request CreateContainer.
    Create {
        /// The container's pod.
        pod: Box<Pod>,
        /// The container's name.
        container: String,
        /// The receiver of the answer.
        reply: oneshot::Sender<CreateAnswer>,
    },
    /// The runtime request StartContainer. The container's cgroup exists, but its program has not begun.
    Start {
        /// The uid of the container's pod.
        uid: String,
        /// The container's name.
        container: String,
        /// The receiver of the answer.
        reply: StartReply,
    },
    /// The runtime request UpdateContainer, about a container that was created with CPUs of Pinfold's.
    Update {
        /// The uid of the container's pod.
        uid: String,
        /// The container's name.
        container: String,
        /// The receiver of the answer: the CPUs that the runtime shall remember; `None` to leave the runtime's set alone.
        reply: oneshot::Sender<Option<CpuSet>>,
    },
    /// The container runtime has made the sandbox of the pod with this uid. The pod's description came before.
    NewPod(String),
    /// Why changes in a watched tree are not noticed; `None` if all of it is watched.
    Watch {
        /// The tree.
        tree: PathBuf,
        /// The problem, as a sentence with the remedy.
        problem: Option<String>,
    },
    /// The container runtime has changed a container's resources, or has stopped or removed a container.
    CgroupsChanged,
}

// === impl AgentEvent ===

impl AgentEvent {
    /// Whether the event is a request of the container runtime.
    pub(super) fn is_request(&self) -> bool {
        matches!(
            self,
            Self::Create { .. } | Self::Start { .. } | Self::Update { .. }
        )
    }

    /// Whether nobody waits for the answer any more: the request's time was over before its turn came.
    pub(super) fn is_expired(&self) -> bool {
        match self {
            Self::Create { reply, .. } => reply.is_closed(),
            Self::Start { reply, .. } => reply.is_closed(),
            Self::Update { reply, .. } => reply.is_closed(),
            _ => false,
        }
    }
}

/// An update of the container runtime's pods.
#[derive(Debug)]
pub enum RuntimeUpdate {
    /// The complete list of the runtime's pods.
    All(Vec<RuntimePod>),
    /// The present state of a pod.
    Pod(Box<RuntimePod>),
    /// The uid of a removed pod.
    Gone(String),
    /// The connection is lost. Until the next complete list, the runtime says nothing about containers that start again.
    Away,
}

/// A pod as described by the container runtime.
#[derive(Debug, Clone, PartialEq)]
pub struct RuntimePod {
    /// The pod, without the variables injected by Pinfold into the containers' environment.
    pub pod: Pod,
    /// The names of the injected variables, by container.
    pub injected: BTreeMap<String, Vec<String>>,
}

/// The answer to CreateContainer.
#[derive(Debug, Clone, PartialEq)]
pub struct CreateAnswer {
    /// The container's exclusive CPUs; `None` in the shared pool.
    pub cpus: Option<CpuSet>,
    /// The CPUs that the runtime writes to the container's new cgroup: `cpus`, or `None` if the write would meet the
    /// partition of a pod mate.
    pub cpuset: Option<CpuSet>,
    /// The NUMA nodes for the container's memory; `None` for all.
    pub memory: Option<CpuSet>,
    /// The reason for a refusal; `None` if the runtime may create the container.
    pub refused: Option<String>,
    /// Whether the container's pod counts as a training pod.
    pub training: bool,
    /// The thread environment.
    pub threads: ThreadEnvironment,
}
