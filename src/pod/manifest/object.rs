//! [`ManifestObject`]: the part of a Kubernetes object in a file that leads to its pods.
//!
//! A few types stand for all kinds, because each text format would add another copy of the decoding code of each kind's own types.
//! What a field means depends on the kind of the object, which the reader has checked before.

use std::collections::BTreeMap;

use serde::de::{Error, IgnoredAny};
use serde::{Deserialize, Deserializer};

use crate::pod::object::{
    Affinity, ContainerObject, ObjectMeta, PodObject, PodSpec, PodStatus, ResourceObject,
};

/// An object, an item of a list, or a template. A Pod is one, and so are the template of a Deployment and the `jobTemplate` of a
/// CronJob.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", expecting = "a Kubernetes object")]
pub(super) struct ManifestObject {
    pub(super) api_version: Option<String>,
    pub(super) kind: Option<String>,
    pub(super) metadata: Option<ObjectMeta>,
    pub(super) spec: Option<ManifestSpec>,
    pub(super) status: Option<PodStatus>,
    /// Of a list.
    pub(super) items: Option<Vec<ManifestObject>>,
}

/// The spec of a pod or of an object that creates pods.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", expecting = "a spec")]
pub(super) struct ManifestSpec {
    // Of a pod.
    init_containers: Option<Vec<ContainerObject>>,
    containers: Option<Vec<ContainerObject>>,
    host_network: Option<bool>,
    restart_policy: Option<String>,
    resources: Option<ResourceObject>,
    node_selector: Option<BTreeMap<String, IgnoredAny>>,
    affinity: Option<Affinity>,
    // Of Kubernetes' own workloads.
    pub(super) template: Option<Box<ManifestObject>>,
    #[serde(default, deserialize_with = "whole_number")]
    pub(super) replicas: Option<i64>,
    #[serde(default, deserialize_with = "whole_number")]
    pub(super) parallelism: Option<i64>,
    #[serde(default, deserialize_with = "whole_number")]
    pub(super) completions: Option<i64>,
    pub(super) completion_mode: Option<String>,
    pub(super) job_template: Option<Box<ManifestObject>>,
    /// Of the training operator's kinds, by the type of the replicas.
    #[serde(
        rename = "tfReplicaSpecs",
        alias = "pytorchReplicaSpecs",
        alias = "mpiReplicaSpecs",
        alias = "xgbReplicaSpecs",
        alias = "paddleReplicaSpecs",
        alias = "jaxReplicaSpecs"
    )]
    pub(super) replica_specs: Option<BTreeMap<String, PodGroup>>,
    // Of a PyTorchJob.
    pub(super) nproc_per_node: Option<String>,
    pub(super) elastic_policy: Option<ElasticPolicy>,
    /// Of a LeaderWorkerSet.
    pub(super) leader_worker_template: Option<LeaderWorkerTemplate>,
    // Of an MPIJob.
    #[serde(default, deserialize_with = "whole_number")]
    pub(super) slots_per_worker: Option<i64>,
    pub(super) run_launcher_as_worker: Option<bool>,
    pub(super) mpi_implementation: Option<String>,
    /// Of Volcano's Job.
    pub(super) tasks: Option<Vec<PodGroup>>,
    /// Of a JobSet.
    pub(super) replicated_jobs: Option<Vec<PodGroup>>,
    // Of Ray's kinds.
    pub(super) ray_cluster_spec: Option<Box<ManifestSpec>>,
    pub(super) head_group_spec: Option<Box<PodGroup>>,
    pub(super) worker_group_specs: Option<Vec<PodGroup>>,
    /// Of a TrainJob.
    pub(super) runtime_ref: Option<RuntimeReference>,
}

/// Pods or Jobs of one template, within an object that has several of them.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", expecting = "replicas with a template")]
pub(super) struct PodGroup {
    #[serde(alias = "groupName")]
    pub(super) name: Option<String>,
    #[serde(default, deserialize_with = "whole_number")]
    pub(super) replicas: Option<i64>,
    /// Of a group of Ray's workers, in which every replica may be several pods.
    #[serde(default, deserialize_with = "whole_number")]
    pub(super) num_of_hosts: Option<i64>,
    pub(super) template: Option<Box<ManifestObject>>,
}

/// The pods of each group of a LeaderWorkerSet.
#[derive(Debug, Default, Deserialize)]
#[serde(
    rename_all = "camelCase",
    expecting = "a template for leaders and workers"
)]
pub(super) struct LeaderWorkerTemplate {
    /// The template of the leaders, if it is not that of the workers.
    pub(super) leader_template: Option<Box<ManifestObject>>,
    pub(super) worker_template: Option<Box<ManifestObject>>,
    /// How many pods a group has, the leader included.
    #[serde(default, deserialize_with = "whole_number")]
    pub(super) size: Option<i64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", expecting = "an elastic policy")]
pub(super) struct ElasticPolicy {
    #[serde(default, deserialize_with = "whole_number")]
    pub(super) n_proc_per_node: Option<i64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(expecting = "a reference to a runtime")]
pub(super) struct RuntimeReference {
    pub(super) name: Option<String>,
}

/// A number, or an error in words of people.
fn whole_number<'de, D: Deserializer<'de>>(value: D) -> Result<Option<i64>, D::Error> {
    Option::deserialize(value).map_err(|_| D::Error::custom("write a whole number, like 3"))
}

// === impl ManifestObject ===

impl ManifestObject {
    /// The object as a Pod.
    pub(super) fn into_pod(self) -> PodObject {
        PodObject {
            metadata: self.metadata,
            spec: self.spec.map(ManifestSpec::into_pod),
            status: self.status,
        }
    }

    /// The name, or the beginning of the names that the API server makes up.
    pub(super) fn name(&self) -> Option<&str> {
        let metadata = self.metadata.as_ref()?;
        let names = [&metadata.name, &metadata.generate_name];
        let mut names = names.into_iter().flatten().map(String::as_str);
        names.find(|name| !name.is_empty())
    }
}

// === impl ManifestSpec ===

impl ManifestSpec {
    fn into_pod(self) -> PodSpec {
        PodSpec {
            init_containers: self.init_containers,
            containers: self.containers,
            host_network: self.host_network,
            restart_policy: self.restart_policy,
            resources: self.resources,
            node_selector: self.node_selector,
            affinity: self.affinity,
        }
    }
}
