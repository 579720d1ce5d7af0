//! What the owner is told, and what it answers.

use std::collections::BTreeMap;

use tokio::sync::oneshot;

use crate::cpu::CpuSet;
use crate::host::pod_resources::CpuManager;
use crate::pod::{ApiUid, Pod, ThreadEnvironment};

/// Where the answer to a start goes: why the container must not start, if it must not.
pub(super) type Reply = oneshot::Sender<Result<(), String>>;

/// Who tells of pods. Where both know a pod, the first of these counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    /// The API server.
    Api,
    /// The folder of manifests.
    Folder,
}

/// What the owner is told.
#[derive(Debug)]
pub enum Event {
    /// The pods of a source, all of them, and what could not be read.
    Pods {
        /// Who tells.
        source: Source,
        /// The pods.
        pods: Vec<Pod>,
        /// Files or pods that could not be read, as sentences.
        errors: Vec<String>,
    },
    /// The API server has told nothing so far: what the kernel says is all there is.
    Unheard,
    /// The uid of this Node at the API server.
    Node(ApiUid),
    /// The NUMA nodes of the devices of pods, by namespace and name.
    Devices(BTreeMap<(String, String), CpuSet>),
    /// What the kubelet's CPU Manager does, when that has changed.
    CpuManager(CpuManager),
    /// What a container runtime has, or what is new there.
    Runtime(RuntimeNews),
    /// A runtime is about to create a container.
    Create {
        /// Its pod.
        pod: Box<Pod>,
        /// The container's name.
        container: String,
        /// Where the answer goes.
        reply: oneshot::Sender<Admission>,
    },
    /// A runtime is about to let a container's program begin: its cgroup is there.
    Start {
        /// The uid of its pod.
        uid: String,
        /// The container's name.
        container: String,
        /// Where the answer goes.
        reply: Reply,
    },
    /// A runtime has changed what a container may use.
    Changed,
}

/// What a container runtime tells.
#[derive(Debug)]
pub enum RuntimeNews {
    /// Everything that it has.
    All(Vec<RuntimePod>),
    /// One pod, as it is now.
    Pod(Box<RuntimePod>),
    /// The uid of a pod that is gone.
    Gone(String),
}

// === impl RuntimeNews ===

impl RuntimeNews {
    /// The uid of a pod whose containers are still to be created.
    pub fn of_new_pod(&self) -> Option<&str> {
        match self {
            Self::Pod(told) if told.pod.containers.is_empty() => told.pod.cgroup_uid(),
            _ => None,
        }
    }
}

/// A pod, as a container runtime tells of it.
#[derive(Debug, Clone, PartialEq)]
pub struct RuntimePod {
    /// The pod, without what we have put into its containers' environment.
    pub pod: Pod,
    /// By container, the names of variables that were put there.
    pub injected: BTreeMap<String, Vec<String>>,
}

/// What a runtime is told of a container that it is about to create.
#[derive(Debug, Clone, PartialEq)]
pub struct Admission {
    /// The CPUs it will own; `None` in the shared pool.
    pub cpus: Option<CpuSet>,
    /// The NUMA nodes that its memory is to come from; `None` for all.
    pub memory: Option<CpuSet>,
    /// Why it must not be created, if it must not.
    pub refused: Option<String>,
    /// Whether its pod counts as a training pod.
    pub training: bool,
    /// The thread environment.
    pub threads: ThreadEnvironment,
}
