//! [`AgentEvent`]: the input of the reconciler, and the answers to runtime requests.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use tokio::sync::oneshot;

use crate::cpu::CpuSet;
use crate::host::pod_resources::CpuManager;
use crate::pin::Enforcement;
use crate::pod::{ApiUid, ObjectName, Pod, RankEnvironment, ThreadEnvironment};

/// The receiver of the answer to StartContainer. An error is the reason for a refusal.
pub(super) type StartReply = oneshot::Sender<Result<(), String>>;

/// The exclusive CPUs of each container in the kubelet's answer, by pod.
pub(super) type AnsweredCpus = BTreeMap<ObjectName, BTreeMap<String, CpuSet>>;

/// A source of pods. If both sources describe a pod, the API's description counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum PodSource {
    Api,
    Folder,
}

#[derive(Debug)]
pub enum AgentEvent {
    /// A change of a source's pods.
    Pods(PodsUpdate),
    /// The wait for the API server's first list has ended without a complete one. Turns then rely
    /// on the kernel's records.
    PodsWaitEnded,
    Node(ApiUid),
    /// The NUMA nodes of the devices of pods.
    Devices(BTreeMap<ObjectName, CpuSet>),
    /// The new state of the kubelet's CPU Manager, after a change.
    CpuManager(CpuManager),
    /// The exclusive CPUs in an answer of the kubelet.
    KubeletCpus(AnsweredCpus),
    /// An update of the container runtime's pods.
    Runtime(RuntimeUpdate),
    /// The runtime request CreateContainer.
    Create {
        /// The container's pod, with the container.
        pod: Box<RuntimePod>,
        container: String,
        /// Whether live files can be mounted. They can't where the container has a volume of its own.
        can_mount_files: bool,
        reply: oneshot::Sender<CreateAnswer>,
    },
    /// The runtime request StartContainer. The container's cgroup exists, but its program has not begun.
    Start {
        /// The uid of the container's pod.
        uid: String,
        container: String,
        reply: StartReply,
    },
    /// The runtime request UpdateContainer, about a container that was created with CPUs of Pinfold's.
    Update {
        /// The uid of the container's pod.
        uid: String,
        container: String,
        /// The answer: the CPUs that the runtime shall remember; `None` to leave its set alone.
        reply: oneshot::Sender<Option<CpuSet>>,
    },
    /// Why changes in a watched tree are not noticed; `None` if all of it is watched.
    Watch {
        tree: PathBuf,
        /// The problem, as a sentence with the remedy.
        problem: Option<String>,
    },
    /// The container runtime has changed the resources of a container in the pod with this uid.
    CgroupsChanged(String),
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

    /// Whether nobody waits for the answer any more, because the request's time was over before it
    /// was handled.
    pub(super) fn is_expired(&self) -> bool {
        match self {
            Self::Create { reply, .. } => reply.is_closed(),
            Self::Start { reply, .. } => reply.is_closed(),
            Self::Update { reply, .. } => reply.is_closed(),
            _ => false,
        }
    }
}

/// A change of a source's pods, with the errors of reading.
#[derive(Debug)]
pub struct PodsUpdate {
    pub source: PodSource,
    /// What has changed; `None` if only the errors have.
    pub change: Option<PodsChange>,
    /// All unreadable files or pods, as sentences.
    pub errors: Vec<String>,
}

/// What has changed among a source's pods.
#[derive(Debug, Clone)]
pub enum PodsChange {
    Listed(BTreeMap<PodKey, Arc<Pod>>),
    /// A pod is new, or has another description.
    Applied(PodKey, Arc<Pod>),
    Deleted(PodKey),
}

/// The place of a described pod among all others: first the API's pods by name, then the folder's
/// in the order of the files. Earlier ones are served first.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum PodKey {
    Api {
        namespace: String,
        name: String,
        /// The API server's uid.
        uid: String,
    },
    Folder {
        file: PathBuf,
        /// The pod's number in the manifest.
        number: usize,
    },
    /// A pod that only the container runtime knows, by its uid.
    Runtime(String),
}

// === impl PodKey ===

impl PodKey {
    pub fn of_api(pod: &Pod) -> Self {
        let uid = pod.api_uid.as_ref().map(ToString::to_string);
        Self::Api {
            namespace: pod.namespace.clone(),
            name: pod.name.clone(),
            uid: uid.unwrap_or_default(),
        }
    }

    /// The source that describes the pod; `None` for the container runtime.
    pub(super) fn source(&self) -> Option<PodSource> {
        match self {
            Self::Api { .. } => Some(PodSource::Api),
            Self::Folder { .. } => Some(PodSource::Folder),
            Self::Runtime(_) => None,
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
    /// The connection is lost. Until the next complete list, the runtime says nothing about
    /// containers that start again.
    Away,
}

/// A pod as described by the container runtime.
#[derive(Debug, Clone, PartialEq)]
pub struct RuntimePod {
    /// The pod, without the variables injected by Pinfold into the containers' environment.
    pub pod: Pod,
    /// The names of the injected variables, by container.
    pub injected: BTreeMap<String, Vec<String>>,
    /// The containers that the runtime has removed and not created again.
    pub removed: BTreeSet<String>,
    /// The containers that have stopped and were not removed so far.
    pub stopped: BTreeSet<String>,
}

// === impl RuntimePod ===

impl RuntimePod {
    /// A pod into which nothing was injected, and of which no container has ended.
    pub fn new(pod: Pod) -> Self {
        Self {
            pod,
            injected: BTreeMap::new(),
            removed: BTreeSet::new(),
            stopped: BTreeSet::new(),
        }
    }

    /// Whether the runtime has just made the pod's sandbox, and no container so far.
    pub(super) fn is_new(&self) -> bool {
        self.pod.containers.is_empty()
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct CreateAnswer {
    /// The container's exclusive CPUs; `None` in the shared pool.
    pub cpus: Option<CpuSet>,
    /// The CPUs that the runtime writes to the container's new cgroup: `cpus`, or `None` if the write would meet the
    /// partition of another container of the pod.
    pub cpuset: Option<CpuSet>,
    /// The NUMA nodes for the container's memory; `None` for all.
    pub memory: Option<CpuSet>,
    /// The reason for a refusal; `None` if the runtime may create the container.
    pub refused: Option<String>,
    /// How the CPUs are enforced that the container must have before it starts; `None` if it may start on shared CPUs.
    pub checked: Option<Enforcement>,
    /// Whether the container's pod counts as a training pod.
    pub training: bool,
    pub threads: ThreadEnvironment,
    /// The container's CPUs, divided among its processes.
    pub ranks: Option<RankEnvironment>,
    /// The container's folder of live files on the host; `None` if it gets none.
    pub live_folder: Option<PathBuf>,
}
