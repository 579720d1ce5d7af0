//! The part of a Pod that decisions need, from any source (manifest, API, container runtime).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::Serialize;

use super::keys::ObjectName;
use super::shared::Shared;
use super::uid::{ApiUid, Mirror, PodUid};
use crate::cpu::CpuSet;

#[derive(Debug, Clone, PartialEq, Default)]
pub struct Pod {
    /// Namespace; `default` if the manifest names none.
    pub namespace: String,
    pub name: String,
    /// The uid in the name of the pod's cgroup, if known. Annotations never change it.
    pub uid: Option<PodUid>,
    /// The object's uid at the API server, if known.
    pub api_uid: Option<ApiUid>,
    /// The static pod that a mirror pod names. The agent decides whether to believe it.
    pub mirror: Option<Mirror>,
    /// Whether the container runtime has confirmed the cgroup's uid of a static pod. A mirror pod
    /// alone doesn't confirm it.
    pub confirmed: bool,
    pub labels: Shared<BTreeMap<String, String>>,
    pub annotations: Shared<BTreeMap<String, String>>,
    /// Whether the pod uses the node's own network.
    pub host_network: bool,
    /// The label keys of nodes in the pod's node selector and required node affinity.
    pub node_keys: BTreeSet<String>,
    /// Whether the pod has finished (phase Succeeded or Failed), and so is entitled to nothing.
    pub finished: bool,
    /// `spec.resources`: pod-level requests and limits.
    pub resources: Resources,
    /// All containers: init containers and sidecars first, in the manifest's order.
    pub containers: Vec<Container>,
    /// `status.qosClass`, if the pod has a status. Decisions use [`qos`](super::qos); this one only
    /// shows a difference.
    pub qos_reported: Option<Qos>,
    /// The source of the runtime ids of the pod's containers.
    pub ids: ContainerIds,
    /// Whether only the container runtime describes the pod: with the containers that exist so far, all as app containers.
    pub is_of_runtime: bool,
}

/// The source of the runtime ids of a pod's containers, which show which cgroup belongs to which
/// container.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ContainerIds {
    /// The agent has neither an API server nor a container runtime, so only a status in the
    /// manifest gives ids.
    #[default]
    NoSource,
    /// The pod's status or the container runtime will give the ids soon. Until then, the sandbox
    /// looks like a container.
    Awaited,
    Runtime,
}

impl Pod {
    /// The uid in the name of the pod's cgroup.
    pub fn cgroup_uid(&self) -> Option<&str> {
        self.uid.as_ref().map(PodUid::as_str)
    }

    pub fn object_name(&self) -> ObjectName {
        ObjectName::new(&*self.namespace, &*self.name)
    }

    /// Whether the pod has the uid, or is a mirror pod that names the static pod with the uid. A
    /// mirror pod alone is no evidence.
    pub fn names(&self, uid: &str) -> bool {
        let mirrored = self.mirror.as_ref().map(|mirror| mirror.uid.as_str());
        [self.cgroup_uid(), mirrored].contains(&Some(uid))
    }

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

#[derive(Debug, Clone, PartialEq, Default)]
pub struct Container {
    /// Name, unique in the pod.
    pub name: String,
    pub kind: ContainerKind,
    /// Requests and limits. A missing request defaults to the limit, as at the API server.
    pub resources: Resources,
    /// The container's environment, by name.
    pub env: Shared<BTreeMap<String, EnvSource>>,
    /// Whether `envFrom` adds variables with unknown names.
    pub env_from: bool,
    pub image: String,
    /// `command` and `args`, joined in order.
    pub args: Shared<Vec<String>>,
    /// The runtime's id, without the prefix `containerd://`, if the status has it.
    pub runtime_id: Option<String>,
    /// The CPUs that Pinfold gave the container in its answer to CreateContainer. The container
    /// runtime remembers this set and writes it again with later changes of the container.
    pub given_cpus: Option<CpuSet>,
    /// Whether the container has ended, and the restart policy does not start it again. It is then
    /// entitled to nothing.
    pub ended: bool,
}

/// Requests and limits of CPU and memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Resources {
    pub cpu_request: Option<u64>,
    pub cpu_limit: Option<u64>,
    /// Memory request in bytes.
    pub memory_request: Option<u64>,
    /// Memory limit in bytes.
    pub memory_limit: Option<u64>,
}

impl Resources {
    /// Whether all fields are unset. Zero counts as set.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ContainerKind {
    /// The container finishes before the pod's app containers start.
    Init,
    /// An init container with `restartPolicy: Always`, which runs beside the app containers.
    Sidecar,
    #[default]
    App,
}

/// The source of a variable's value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EnvSource {
    Value(String),
    /// `valueFrom`: set to an unknown value.
    Reference,
}

/// Quality of service class.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
pub enum Qos {
    /// The CPU and memory requests equal the limits, in every container or at pod level.
    Guaranteed,
    /// At least one request or limit is set.
    Burstable,
    /// No request and no limit is set.
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
