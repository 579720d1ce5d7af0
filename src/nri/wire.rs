//! The messages of the two services, as far as they are not told to the plugin as they are.

use std::collections::BTreeMap;

use super::message::{Container, LinuxResources, PodSandbox, Signed, Unsigned};

/// The service that the runtime calls.
pub(super) const PLUGIN_SERVICE: &str = "nri.pkg.api.v1alpha1.Plugin";

/// The service that the runtime offers.
pub(super) const RUNTIME_SERVICE: &str = "nri.pkg.api.v1alpha1.Runtime";

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
pub(super) struct EventRequest {
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
pub(super) struct UpdateResponse {
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
    pub(super) resources: Option<Given>,
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
    pub(super) resources: Option<Given>,
}

/// The part of `LinuxResources` that is ever changed here.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Given {
    #[prost(message, optional, tag = "2")]
    pub(super) cpu: Option<GivenCpu>,
}

/// The part of `LinuxCPU` that is ever changed here.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct GivenCpu {
    #[prost(message, optional, tag = "1")]
    pub(super) shares: Option<Unsigned>,
    #[prost(message, optional, tag = "2")]
    pub(super) quota: Option<Signed>,
    #[prost(message, optional, tag = "3")]
    pub(super) period: Option<Unsigned>,
    #[prost(string, tag = "6")]
    pub(super) cpus: String,
    #[prost(string, tag = "7")]
    pub(super) mems: String,
}
