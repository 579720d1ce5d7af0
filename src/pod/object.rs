//! [`Object`]: the part of a Kubernetes Pod that Pinfold reads.
//!
//! The types of the Kubernetes library have every field, in about two hundred structs. Each text format would add
//! another copy of their decoding code. Fields that no struct here names are skipped, since newer versions of
//! Kubernetes add fields.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use serde::de::IgnoredAny;

use crate::text::part;

part! {
    /// A Pod as the API server or a manifest's author writes it: see [`Pod::from_k8s`](super::Pod::from_k8s).
    pub struct Object: "a Kubernetes object" {
        pub(super) metadata: ObjectMeta = "metadata",
        pub(super) spec: PodSpec = "spec",
        pub(super) status: PodStatus = "status",
    }
}

part! {
    pub(super) struct ObjectMeta: "an object's metadata" {
        pub(super) name: String = "name",
        pub(super) generate_name: String = "generateName",
        pub(super) namespace: String = "namespace",
        pub(super) uid: String = "uid",
        pub(super) generation: i64 = "generation",
        pub(super) labels: BTreeMap<String, String> = "labels",
        pub(super) annotations: BTreeMap<String, String> = "annotations",
        pub(super) owners: Vec<OwnerReference> = "ownerReferences",
    }
}

part! {
    pub(super) struct OwnerReference: "an owner reference" {
        pub(super) api_version: String = "apiVersion",
        pub(super) kind: String = "kind",
        pub(super) uid: String = "uid",
    }
}

part! {
    pub(super) struct PodSpec: "a pod's spec" {
        pub(super) init_containers: Vec<Container> = "initContainers",
        pub(super) containers: Vec<Container> = "containers",
        pub(super) host_network: bool = "hostNetwork",
        pub(super) resources: Resources = "resources",
        pub(super) node_selector: BTreeMap<String, IgnoredAny> = "nodeSelector",
        pub(super) affinity: Affinity = "affinity",
    }
}

part! {
    pub(super) struct Affinity: "a pod's affinity" {
        pub(super) node: NodeAffinity = "nodeAffinity",
    }
}

part! {
    pub(super) struct NodeAffinity: "a pod's node affinity" {
        pub(super) required: NodeSelector = "requiredDuringSchedulingIgnoredDuringExecution",
    }
}

part! {
    pub(super) struct NodeSelector: "a node selector" {
        pub(super) terms: Vec<NodeSelectorTerm> = "nodeSelectorTerms",
    }
}

part! {
    pub(super) struct NodeSelectorTerm: "a term of a node selector" {
        pub(super) expressions: Vec<NodeSelectorRequirement> = "matchExpressions",
    }
}

part! {
    pub(super) struct NodeSelectorRequirement: "a requirement of a node selector" {
        pub(super) key: String = "key",
    }
}

part! {
    pub(super) struct Container: "a container" {
        pub(super) name: String = "name",
        pub(super) image: String = "image",
        pub(super) command: Vec<String> = "command",
        pub(super) args: Vec<String> = "args",
        pub(super) env: Vec<EnvVar> = "env",
        /// Sources of more variables. Only the presence of a source counts.
        pub(super) env_from: Vec<IgnoredAny> = "envFrom",
        pub(super) restart_policy: String = "restartPolicy",
        pub(super) resources: Resources = "resources",
    }
}

part! {
    pub(super) struct EnvVar: "an environment variable" {
        pub(super) name: String = "name",
        pub(super) value: String = "value",
        /// The source of the value. Only the presence counts.
        pub(super) value_from: IgnoredAny = "valueFrom",
    }
}

part! {
    pub(super) struct Resources: "resources" {
        pub(super) requests: ResourceAmounts = "requests",
        pub(super) limits: ResourceAmounts = "limits",
    }
}

part! {
    pub(super) struct ResourceAmounts: "amounts of resources" {
        pub(super) cpu: Quantity = "cpu",
        pub(super) memory: Quantity = "memory",
    }
}

part! {
    pub(super) struct PodStatus: "a pod's status" {
        pub(super) phase: String = "phase",
        pub(super) qos_class: String = "qosClass",
        /// The generation of the spec that the kubelet has observed.
        pub(super) observed_generation: i64 = "observedGeneration",
        pub(super) conditions: Vec<PodCondition> = "conditions",
        /// The state of a resize, from a kubelet older than the resize conditions.
        pub(super) resize: String = "resize",
        pub(super) allocated: ResourceAmounts = "allocatedResources",
        pub(super) init_container_statuses: Vec<ContainerStatus> = "initContainerStatuses",
        pub(super) container_statuses: Vec<ContainerStatus> = "containerStatuses",
    }
}

part! {
    pub(super) struct PodCondition: "a pod's condition" {
        pub(super) kind: String = "type",
        pub(super) status: String = "status",
    }
}

part! {
    pub(super) struct ContainerStatus: "a container's status" {
        pub(super) name: String = "name",
        pub(super) container_id: String = "containerID",
        /// The requests that the kubelet has allocated.
        pub(super) allocated: ResourceAmounts = "allocatedResources",
        /// The requests and limits in force.
        pub(super) resources: Resources = "resources",
    }
}
