//! Kubernetes' own kinds: a Job for each worker, chief and evaluator, a Deployment for each parameter server, and one Service for
//! the names of all.

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::{Deployment, DeploymentSpec, DeploymentStrategy};
use k8s_openapi::api::batch::v1::{Job, JobSpec};
use k8s_openapi::api::core::v1::{Service, ServicePort, ServiceSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde_json::Value;

use super::cluster::{ResolvedJob, value};
use super::pod::PodTasks;
use super::task::JobTask;
use crate::scene::{
    ALL_WORKERS, PS, RECLAIM_AFTER, RECLAIM_LABEL, SUCCESS_POLICY, TASK_LABELS, WORKERS,
};

impl ResolvedJob<'_> {
    /// The objects of the tasks, after the objects that all tasks share.
    pub(super) fn native(&self, tasks: &[JobTask]) -> Result<Vec<Value>, String> {
        let mut objects = self.shared()?;
        objects.push(value(&self.service())?);
        objects.extend(self.pod_group());
        for task in tasks {
            let metadata = self.metadata(task);
            objects.push(if task.role == PS {
                value(&self.server(metadata, task))?
            } else {
                value(&self.worker(metadata, task))?
            });
        }
        Ok(objects)
    }

    /// The claims and the addresses, which every format needs.
    pub(super) fn shared(&self) -> Result<Vec<Value>, String> {
        let claims = self.claims();
        let mut shared: Vec<Value> = claims.iter().map(value).collect::<Result<_, _>>()?;
        shared.push(self.hosts_config()?);
        Ok(shared)
    }

    fn metadata(&self, task: &JobTask) -> ObjectMeta {
        let mut labels = self.labels(&task.role, Some(task.index));
        let mut annotations = BTreeMap::new();
        if let Some(reclaim) = &self.job.reclaim {
            labels.insert(RECLAIM_LABEL.to_owned(), PS.to_owned());
            annotations.insert(WORKERS.to_owned(), self.workers().to_string());
            if self.job.success_policy.is_some() {
                annotations.insert(SUCCESS_POLICY.to_owned(), ALL_WORKERS.to_owned());
            }
            let after = reclaim.after.clone();
            annotations.extend(after.map(|after| (RECLAIM_AFTER.to_owned(), after)));
        }
        ObjectMeta {
            name: Some(self.task_name(&task.role, task.index)),
            namespace: self.job.namespace.clone(),
            labels: Some(labels),
            annotations: Some(annotations).filter(|annotations| !annotations.is_empty()),
            ..ObjectMeta::default()
        }
    }

    /// The headless Service of the job, which makes `HOSTNAME.SUBDOMAIN` of each pod a name.
    pub(super) fn service(&self) -> Service {
        let [name, ..] = TASK_LABELS;
        Service {
            metadata: self.whole(self.name.clone()),
            spec: Some(ServiceSpec {
                cluster_ip: Some("None".to_owned()),
                ports: Some(vec![ServicePort {
                    name: Some("tensorflow".to_owned()),
                    port: i32::from(self.port),
                    target_port: Some(IntOrString::Int(i32::from(self.port))),
                    ..ServicePort::default()
                }]),
                // Tasks resolve each other's names before they are ready.
                publish_not_ready_addresses: Some(true),
                selector: Some(BTreeMap::from([(name.to_owned(), self.name.clone())])),
                ..ServiceSpec::default()
            }),
            status: None,
        }
    }

    /// The number of restarts after which a task's Job fails, if the job sets one.
    pub(super) fn retries(&self) -> Option<i32> {
        let retries = self.job.retries;
        retries.and_then(|retries| i32::try_from(retries).ok())
    }

    /// The specification of a Job that runs a single pod to completion.
    pub(super) fn job_spec(&self, task: &JobTask, backoff_limit: Option<i32>) -> JobSpec {
        JobSpec {
            backoff_limit,
            completions: Some(1),
            parallelism: Some(1),
            template: self.template(PodTasks::Task(task), "OnFailure"),
            ..JobSpec::default()
        }
    }

    fn worker(&self, metadata: ObjectMeta, task: &JobTask) -> Job {
        Job {
            metadata,
            spec: Some(self.job_spec(task, self.retries())),
            status: None,
        }
    }

    fn server(&self, metadata: ObjectMeta, task: &JobTask) -> Deployment {
        Deployment {
            metadata,
            spec: Some(DeploymentSpec {
                replicas: Some(1),
                selector: LabelSelector {
                    match_labels: Some(self.selector(&task.role, Some(task.index))),
                    match_expressions: None,
                },
                // Two servers with the same variables at once would be wrong, and could not be on one node either.
                strategy: Some(DeploymentStrategy {
                    type_: Some("Recreate".to_owned()),
                    rolling_update: None,
                }),
                template: self.template(PodTasks::Task(task), "Always"),
                ..DeploymentSpec::default()
            }),
            status: None,
        }
    }
}
