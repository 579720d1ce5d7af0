//! The part of a Pod that decisions are made from, whatever it was read from (manifest, API, container runtime).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::Serialize;

use super::uid::{ApiUid, Mirror, PodUid};

/// A pod.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Pod {
    /// Namespace; `default` where the manifest names none.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// The uid in the name of the pod's cgroup, where known. An annotation has no say in it.
    pub uid: Option<PodUid>,
    /// The object's uid at the API server, where known.
    pub api_uid: Option<ApiUid>,
    /// What the pod says as a mirror pod. The agent decides whether that counts.
    pub mirror: Option<Mirror>,
    /// Whether a static pod has its cgroup's uid by the word of the container runtime, and not of a mirror pod alone.
    pub confirmed: bool,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Annotations.
    pub annotations: BTreeMap<String, String>,
    /// Whether the pod uses the node's own network.
    pub host_network: bool,
    /// The label keys of nodes that its node selector and its required node affinity name.
    pub node_keys: BTreeSet<String>,
    /// Whether the pod has run to its end (phase Succeeded or Failed): it is owed nothing.
    pub finished: bool,
    /// `spec.resources`: pod-level requests and limits.
    pub resources: Resources,
    /// All containers: init containers and sidecars first, in the manifest's order.
    pub containers: Vec<Container>,
    /// `status.qosClass`, where a status tells it. What counts is [`qos`](super::qos); this is kept so that a
    /// difference can be shown.
    pub qos_reported: Option<Qos>,
    /// Who tells the runtime ids of the pod's containers.
    pub ids: ContainerIds,
}

/// Who tells the runtime ids of a pod's containers, and with them which cgroup is which container's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ContainerIds {
    /// Nobody, unless the manifest has a status: the agent has neither an API server nor a container runtime to ask.
    #[default]
    Untold,
    /// The pod's status or the container runtime, in a moment. Until then the pod sandbox can't be told from a container.
    Awaited,
    /// The container runtime has told all containers that exist.
    Runtime,
}

impl Pod {
    /// The uid in the name of the pod's cgroup.
    pub fn cgroup_uid(&self) -> Option<&str> {
        self.uid.as_ref().map(PodUid::as_str)
    }

    /// Whether the pod has this uid, or says that it is the mirror of the static pod that has. The latter is no evidence.
    pub fn names(&self, uid: &str) -> bool {
        let mirrored = self.mirror.as_ref().map(|mirror| mirror.uid.as_str());
        [self.cgroup_uid(), mirrored].contains(&Some(uid))
    }

    /// The container of that name.
    pub fn container(&self, name: &str) -> Option<&Container> {
        self.containers
            .iter()
            .find(|container| container.name == name)
    }
}

impl fmt::Display for Pod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// One container of a pod.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Container {
    /// Name, unique in the pod.
    pub name: String,
    /// When it runs.
    pub kind: ContainerKind,
    /// Requests and limits, with the request defaulted from the limit as the API server does.
    pub resources: Resources,
    /// The environment the container has already, by name.
    pub env: BTreeMap<String, EnvSource>,
    /// Whether `envFrom` brings variables whose names are not known here.
    pub env_from: bool,
    /// Image reference.
    pub image: String,
    /// `command` and `args`, joined in that order.
    pub args: Vec<String>,
    /// The runtime's id, without the `containerd://` in front, where a status tells it.
    pub runtime_id: Option<String>,
}

/// CPU and memory, asked for and capped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Resources {
    /// CPU request in thousandths.
    pub cpu_request: Option<u64>,
    /// CPU limit in thousandths.
    pub cpu_limit: Option<u64>,
    /// Memory request in bytes.
    pub memory_request: Option<u64>,
    /// Memory limit in bytes.
    pub memory_limit: Option<u64>,
}

impl Resources {
    /// Whether nothing is set, not even to zero.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// When a container runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ContainerKind {
    /// Runs to its end before the pod's containers start.
    Init,
    /// An init container with `restartPolicy: Always`: runs beside the pod's containers.
    Sidecar,
    /// One of the pod's containers.
    #[default]
    App,
}

/// Where a variable's value comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EnvSource {
    /// A literal value.
    Value(String),
    /// `valueFrom`: set, to something not known here.
    Reference,
}

/// Quality of service class.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
pub enum Qos {
    /// Every container has equal CPU and memory requests and limits.
    Guaranteed,
    /// Something is asked for or capped.
    Burstable,
    /// Nothing is asked for or capped.
    BestEffort,
}

impl fmt::Display for Qos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Guaranteed => "Guaranteed",
            Self::Burstable => "Burstable",
            Self::BestEffort => "BestEffort",
        })
    }
}
