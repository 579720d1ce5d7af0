//! The kinds of operators: TFJob, Volcano's Job, JobSet. Only the fields that are set stand in the types.

use std::collections::BTreeMap;

use k8s_openapi::api::batch::v1::JobTemplateSpec;
use k8s_openapi::api::core::v1::PodTemplateSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Serialize;
use serde_json::Value;

use super::cluster::{RETRIES, ResolvedJob, value};
use super::pod::PodTasks;
use crate::scene::{ALL_WORKERS, CHIEF, EVALUATOR, PS};

/// Without a policy, a pod in the phase Failed stays, for example after an eviction by the node. A
/// deleted pod (PodEvicted) needs no policy: it is created again, and a policy would count it as a
/// retry.
const LOST: Lifecycle = Lifecycle {
    event: "PodFailed",
    action: "RestartTask",
};

/// A worker whose container restarted more often than its task's `maxRetry`. Without the policy, neither the worker nor
/// the job would end.
const BROKEN: Lifecycle = Lifecycle {
    event: "TaskFailed",
    action: "TerminateJob",
};

/// A task whose success ends the whole job.
const DECIDES: Lifecycle = Lifecycle {
    event: "TaskCompleted",
    action: "CompleteJob",
};

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct OperatorObject<S> {
    api_version: &'static str,
    kind: &'static str,
    metadata: ObjectMeta,
    spec: S,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct TfJobSpec {
    run_policy: RunPolicy,
    #[serde(skip_serializing_if = "Option::is_none")]
    success_policy: Option<&'static str>,
    tf_replica_specs: BTreeMap<&'static str, ReplicaSpec>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct RunPolicy {
    clean_pod_policy: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    backoff_limit: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    scheduling_policy: Option<SchedulingPolicy>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct SchedulingPolicy {
    min_available: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    queue: Option<String>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ReplicaSpec {
    replicas: u32,
    restart_policy: &'static str,
    template: PodTemplateSpec,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct VolcanoSpec {
    scheduler_name: String,
    min_available: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    min_success: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    queue: Option<String>,
    max_retry: u32,
    policies: [Lifecycle; 1],
    tasks: Vec<VolcanoTask>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct VolcanoTask {
    name: String,
    replicas: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_retry: Option<u32>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    policies: Vec<Lifecycle>,
    template: PodTemplateSpec,
}

/// What Volcano does after an event of a task.
#[derive(Serialize)]
struct Lifecycle {
    event: &'static str,
    action: &'static str,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct JobSetSpec {
    network: Network,
    success_policy: OperatorSuccessPolicy,
    replicated_jobs: Vec<ReplicatedJob>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Network {
    #[serde(rename = "enableDNSHostnames")]
    enable_dns_hostnames: bool,
    subdomain: String,
    publish_not_ready_addresses: bool,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct OperatorSuccessPolicy {
    operator: &'static str,
    target_replicated_jobs: Vec<String>,
}

#[derive(Serialize)]
struct ReplicatedJob {
    name: String,
    replicas: u32,
    template: JobTemplateSpec,
}

impl ResolvedJob<'_> {
    pub(super) fn whole(&self, name: String) -> ObjectMeta {
        ObjectMeta {
            name: Some(name),
            namespace: self.job.namespace.clone(),
            labels: Some(self.whole_labels()),
            ..ObjectMeta::default()
        }
    }

    fn queue(&self) -> Option<String> {
        self.job.gang.as_ref().and_then(|gang| gang.queue.clone())
    }

    pub(super) fn tfjob(&self, warnings: &mut Vec<String>) -> Result<Vec<Value>, String> {
        self.check_one_template()?;
        self.warn_tfjob(warnings);
        let mut objects = self.shared()?;
        objects.push(value(&OperatorObject {
            api_version: "kubeflow.org/v1",
            kind: "TFJob",
            metadata: self.whole(self.name.clone()),
            spec: TfJobSpec {
                run_policy: RunPolicy {
                    // The default keeps parameter servers for ever.
                    clean_pod_policy: "Running",
                    backoff_limit: self.job.retries,
                    scheduling_policy: self.group().map(|_| SchedulingPolicy {
                        min_available: self.all(),
                        queue: self.queue(),
                    }),
                },
                // The default is that the chief has succeeded, or without a chief the first worker.
                success_policy: (!self.ends_with_chief()).then_some(ALL_WORKERS),
                tf_replica_specs: self.replica_specs(),
            },
        })?);
        Ok(objects)
    }

    /// Refuses a role that groups run in different ways, because a TFJob has a single template for
    /// all replicas of a role.
    fn check_one_template(&self) -> Result<(), String> {
        for role in &self.roles {
            let uneven = role.groups.windows(2).any(|pair| match pair {
                [a, b] => a.kind != b.kind || a.per_node != b.per_node,
                _ => false,
            });
            if uneven {
                return Err(format!(
                    "several groups run {}, but a TFJob has one template for all its replicas: render the job as native, volcano \
                     or jobset",
                    role.role
                ));
            }
        }
        Ok(())
    }

    /// Warns of the settings that a TFJob applies differently or not at all.
    fn warn_tfjob(&self, warnings: &mut Vec<String>) {
        warnings.push(
            "a TFJob has one template for each role: a spread constraint gives each server its number of tasks, but the \
             scheduler chooses the server of each task"
                .to_owned(),
        );
        self.no_reclaim(
            "the training operator ends the parameter servers (cleanPodPolicy: Running)",
            warnings,
        );
        if self.count(CHIEF) > 0 && self.job.success_policy.is_some() {
            warnings.push(
                "successPolicy AllWorkers: with any policy, the training operator ends a TFJob when its chief has succeeded: \
                 render the job as native, volcano or jobset"
                    .to_owned(),
            );
        }
        if let Some(retries) = self.job.retries {
            warnings.push(format!(
                "retries: a TFJob has one limit (backoffLimit: {retries}) for the restarts of all tasks together, including \
                 parameter servers: at the limit, the job fails"
            ));
        }
    }

    /// The replicas of each role, by the training operator's name of the role.
    fn replica_specs(&self) -> BTreeMap<&'static str, ReplicaSpec> {
        let replicas = self.roles.iter().map(|role| {
            let (name, restart_policy) = match role.role.as_str() {
                PS => ("PS", "Always"),
                CHIEF => ("Chief", "OnFailure"),
                EVALUATOR => ("Evaluator", "OnFailure"),
                _ => ("Worker", "OnFailure"),
            };
            let template = self.template(PodTasks::Role(role), restart_policy);
            (
                name,
                ReplicaSpec {
                    replicas: role.count(),
                    restart_policy,
                    template,
                },
            )
        });
        replicas.collect()
    }

    pub(super) fn volcano(&self, warnings: &mut Vec<String>) -> Result<Vec<Value>, String> {
        let by_chief = self.ends_with_chief();
        let ends = if by_chief {
            "the chief has succeeded"
        } else {
            "minSuccess tasks have succeeded"
        };
        self.no_reclaim(
            &format!("Volcano ends the parameter servers when {ends}"),
            warnings,
        );
        let mut objects = self.shared()?;
        objects.push(value(&self.service())?);
        let retries = self.job.retries.unwrap_or(RETRIES);
        let tasks = self.tasks().map(|task| {
            // As natively, parameter servers are started again without an end, and no job waits for an evaluator.
            let limited = task.role != PS && task.role != EVALUATOR;
            // Volcano counts the success of any task, so where tasks are counted, evaluators never end.
            let can_succeed = limited || by_chief && task.role == EVALUATOR;
            let decides = (by_chief && self.decides(&task.role)).then_some(DECIDES);
            VolcanoTask {
                name: format!("{}-{}", task.role, task.index),
                replicas: 1,
                // Volcano acts when the number is reached, and takes 0 for its own default.
                max_retry: limited.then(|| retries.saturating_add(1)),
                policies: decides
                    .into_iter()
                    .chain(limited.then_some(BROKEN))
                    .collect(),
                // A parameter server's end never counts as the success of a worker.
                template: self.template(
                    PodTasks::Task(&task),
                    if can_succeed { "OnFailure" } else { "Always" },
                ),
            }
        });
        // Lost pods count for the entire Job: a lost node takes several tasks along.
        let lost = retries.saturating_mul(self.all()).saturating_add(1);
        objects.push(value(&OperatorObject {
            api_version: "batch.volcano.sh/v1alpha1",
            kind: "Job",
            metadata: self.whole(self.name.clone()),
            spec: VolcanoSpec {
                scheduler_name: self.scheduler().unwrap_or("volcano").to_owned(),
                min_available: self.all(),
                min_success: (!by_chief).then(|| self.workers()),
                queue: self.queue(),
                max_retry: lost.min(i32::MAX.unsigned_abs()),
                policies: [LOST],
                tasks: tasks.collect(),
            },
        })?);
        Ok(objects)
    }

    pub(super) fn jobset(&self, warnings: &mut Vec<String>) -> Result<Vec<Value>, String> {
        let ends = if self.ends_with_chief() {
            "the chief has succeeded"
        } else {
            "all workers have succeeded"
        };
        self.no_reclaim(
            &format!("JobSet ends the parameter servers by its success policy when {ends}"),
            warnings,
        );
        let mut objects = self.shared()?;
        objects.extend(self.pod_group());
        let name = |role: &str, index: u32| format!("{role}-{index}");
        let jobs = self.tasks().map(|task| ReplicatedJob {
            name: name(&task.role, task.index),
            replicas: 1,
            template: JobTemplateSpec {
                metadata: Some(ObjectMeta {
                    labels: Some(self.labels(&task.role, Some(task.index))),
                    ..ObjectMeta::default()
                }),
                spec: Some(self.job_spec(&task, self.jobset_retries(&task.role))),
            },
        });
        let targets = self.tasks().filter(|task| self.decides(&task.role));
        let targets = targets.map(|task| name(&task.role, task.index));
        objects.push(value(&OperatorObject {
            api_version: "jobset.x-k8s.io/v1alpha2",
            kind: "JobSet",
            metadata: self.whole(self.name.clone()),
            spec: JobSetSpec {
                network: Network {
                    enable_dns_hostnames: true,
                    subdomain: self.name.clone(),
                    publish_not_ready_addresses: true,
                },
                success_policy: OperatorSuccessPolicy {
                    operator: "All",
                    target_replicated_jobs: targets.collect(),
                },
                replicated_jobs: jobs.collect(),
            },
        })?);
        Ok(objects)
    }

    /// A JobSet fails with the first of its Jobs that fails. As natively, servers are started again without an end, and no job
    /// waits for an evaluator.
    fn jobset_retries(&self, role: &str) -> Option<i32> {
        if role == PS || role == EVALUATOR {
            Some(i32::MAX)
        } else {
            self.retries()
        }
    }

    /// The label is for native objects; operators end parameter servers themselves.
    fn no_reclaim(&self, why: &str, warnings: &mut Vec<String>) {
        if self.job.reclaim.is_some() {
            warnings.push(format!("reclaim has no effect in this format: {why}"));
        }
    }
}
