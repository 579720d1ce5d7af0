//! [`PodObject`]: the part of a Kubernetes Pod that Pinfold reads.
//!
//! The types of the Kubernetes library have every field, in about two hundred structs, and each
//! text format would add another copy of their decoding code. Fields that no struct here names are
//! skipped, since newer versions of Kubernetes add fields.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use serde::Deserialize;
use serde::de::IgnoredAny;

/// A Pod as the API server or a manifest's author writes it: see [`Pod::from_k8s`](super::Pod::from_k8s).
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(expecting = "a Kubernetes object")]
pub struct PodObject {
    pub(super) metadata: Option<ObjectMeta>,
    pub(super) spec: Option<PodSpec>,
    pub(super) status: Option<PodStatus>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", expecting = "an object's metadata")]
pub(super) struct ObjectMeta {
    pub(super) name: Option<String>,
    pub(super) generate_name: Option<String>,
    pub(super) namespace: Option<String>,
    pub(super) uid: Option<String>,
    pub(super) generation: Option<i64>,
    pub(super) labels: Option<BTreeMap<String, String>>,
    pub(super) annotations: Option<BTreeMap<String, String>>,
    #[serde(rename = "ownerReferences")]
    pub(super) owners: Option<Vec<OwnerReference>>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", expecting = "an owner reference")]
pub(super) struct OwnerReference {
    pub(super) api_version: Option<String>,
    pub(super) kind: Option<String>,
    pub(super) uid: Option<String>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", expecting = "a pod's spec")]
pub(super) struct PodSpec {
    pub(super) init_containers: Option<Vec<ContainerObject>>,
    pub(super) containers: Option<Vec<ContainerObject>>,
    pub(super) host_network: Option<bool>,
    pub(super) restart_policy: Option<String>,
    pub(super) resources: Option<ResourceObject>,
    pub(super) node_selector: Option<BTreeMap<String, IgnoredAny>>,
    pub(super) affinity: Option<Affinity>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(expecting = "a pod's affinity")]
pub(super) struct Affinity {
    #[serde(rename = "nodeAffinity")]
    pub(super) node: Option<NodeAffinity>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(expecting = "a pod's node affinity")]
pub(super) struct NodeAffinity {
    #[serde(rename = "requiredDuringSchedulingIgnoredDuringExecution")]
    pub(super) required: Option<RequiredNodeSelector>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(expecting = "a node selector")]
pub(super) struct RequiredNodeSelector {
    #[serde(rename = "nodeSelectorTerms")]
    pub(super) terms: Option<Vec<NodeSelectorTerm>>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(expecting = "a term of a node selector")]
pub(super) struct NodeSelectorTerm {
    #[serde(rename = "matchExpressions")]
    pub(super) expressions: Option<Vec<NodeSelectorRequirement>>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(expecting = "a requirement of a node selector")]
pub(super) struct NodeSelectorRequirement {
    pub(super) key: Option<String>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", expecting = "a container")]
pub(super) struct ContainerObject {
    pub(super) name: Option<String>,
    pub(super) image: Option<String>,
    pub(super) command: Option<Vec<String>>,
    pub(super) args: Option<Vec<String>>,
    pub(super) env: Option<Vec<EnvVar>>,
    /// Sources of more variables. All that counts is whether there is one.
    pub(super) env_from: Option<Vec<IgnoredAny>>,
    pub(super) restart_policy: Option<String>,
    /// Exceptions to the restart policy. All that counts is whether there is one.
    pub(super) restart_policy_rules: Option<Vec<IgnoredAny>>,
    pub(super) resources: Option<ResourceObject>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", expecting = "an environment variable")]
pub(super) struct EnvVar {
    pub(super) name: Option<String>,
    pub(super) value: Option<String>,
    /// The source of the value. All that counts is whether there is one.
    pub(super) value_from: Option<IgnoredAny>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(expecting = "resources")]
pub(super) struct ResourceObject {
    pub(super) requests: Option<ResourceAmounts>,
    pub(super) limits: Option<ResourceAmounts>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(expecting = "amounts of resources")]
pub(super) struct ResourceAmounts {
    pub(super) cpu: Option<Quantity>,
    pub(super) memory: Option<Quantity>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", expecting = "a pod's status")]
pub(super) struct PodStatus {
    pub(super) phase: Option<String>,
    pub(super) qos_class: Option<String>,
    /// The generation of the spec that the kubelet has observed.
    pub(super) observed_generation: Option<i64>,
    pub(super) conditions: Option<Vec<PodCondition>>,
    /// The state of a resize, from a kubelet older than the resize conditions.
    pub(super) resize: Option<String>,
    #[serde(rename = "allocatedResources")]
    pub(super) allocated: Option<ResourceAmounts>,
    pub(super) init_container_statuses: Option<Vec<ContainerStatus>>,
    pub(super) container_statuses: Option<Vec<ContainerStatus>>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(expecting = "a pod's condition")]
pub(super) struct PodCondition {
    #[serde(rename = "type")]
    pub(super) kind: Option<String>,
    pub(super) status: Option<String>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(expecting = "a container's status")]
pub(super) struct ContainerStatus {
    pub(super) name: Option<String>,
    #[serde(rename = "containerID")]
    pub(super) container_id: Option<String>,
    /// The requests that the kubelet has allocated.
    #[serde(rename = "allocatedResources")]
    pub(super) allocated: Option<ResourceAmounts>,
    /// The requests and limits in force.
    pub(super) resources: Option<ResourceObject>,
    pub(super) state: Option<ContainerState>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(expecting = "a container's state")]
pub(super) struct ContainerState {
    pub(super) terminated: Option<TerminatedState>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(
    rename_all = "camelCase",
    expecting = "the state of a container that has ended"
)]
pub(super) struct TerminatedState {
    pub(super) exit_code: Option<i32>,
}
