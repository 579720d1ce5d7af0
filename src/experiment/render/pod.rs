//! The pod of a task, or of a role whose tasks share a template.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Affinity, ConfigMapKeySelector, Container, ContainerPort, EnvVar, EnvVarSource,
    LocalObjectReference, NodeAffinity, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm,
    ObjectFieldSelector, PodAffinityTerm, PodAntiAffinity, PodSpec, PodTemplateSpec,
    ResourceRequirements, Toleration, TopologySpreadConstraint,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{
    LabelSelector, LabelSelectorRequirement, ObjectMeta,
};
use serde_json::json;

use super::cluster::ResolvedJob;
use super::folder;
use super::job::Folder;
use super::model::{RunTag, WorkloadFormat};
use super::task::{JobTask, RoleTasks};
use super::words::{HOME, literal};
use crate::pod::{CPUS_ANNOTATION, THREADS_ANNOTATION};
use crate::scene::{Amount, PLAN_LABEL, PS, Slot, TASK_LABELS};

/// How long the programs of an experiment's run may go on after their deletion.
const RUN_GRACE_SECONDS: i64 = 5;

/// The annotation by which schedulers find a pod's group.
const GROUP: &str = "scheduling.k8s.io/group-name";

/// The training operator's label with a replica's number.
const REPLICA_INDEX: &str = "training.kubeflow.org/replica-index";

/// The labels by which the training operator's pods are told apart.
const OPERATOR: [&str; 2] = [
    "training.kubeflow.org/job-name",
    "training.kubeflow.org/replica-type",
];

#[derive(Clone, Copy)]
pub(super) enum PodTasks<'a> {
    Task(&'a JobTask),
    /// The tasks of a role, all on servers of one group.
    Role(&'a RoleTasks),
}

impl PodTasks<'_> {
    fn role(&self) -> &str {
        match self {
            Self::Task(task) => &task.role,
            Self::Role(role) => &role.role,
        }
    }
}

fn strings(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs
        .iter()
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
        .collect()
}

fn requirement(key: &str, value: &str) -> NodeSelectorRequirement {
    NodeSelectorRequirement {
        key: key.to_owned(),
        operator: "In".to_owned(),
        values: Some(vec![value.to_owned()]),
    }
}

fn among(key: &str, value: &str) -> LabelSelectorRequirement {
    LabelSelectorRequirement {
        key: key.to_owned(),
        operator: "In".to_owned(),
        values: Some(vec![value.to_owned()]),
    }
}

fn variable(name: &str, value: impl Into<String>) -> EnvVar {
    EnvVar {
        name: name.to_owned(),
        value: Some(value.into()),
        ..EnvVar::default()
    }
}

/// The number of the task within the role. The pods of a template get it from the training
/// operator's label.
fn task_index(of: PodTasks<'_>) -> EnvVar {
    match of {
        PodTasks::Task(task) => variable("TASK_INDEX", task.index.to_string()),
        PodTasks::Role(_) => EnvVar {
            name: "TASK_INDEX".to_owned(),
            value_from: Some(EnvVarSource {
                field_ref: Some(ObjectFieldSelector {
                    api_version: None,
                    field_path: format!("metadata.labels['{REPLICA_INDEX}']"),
                }),
                ..EnvVarSource::default()
            }),
            ..EnvVar::default()
        },
    }
}

impl ResolvedJob<'_> {
    /// What selects a task's pod, or the pods of a role.
    pub(super) fn selector(&self, role: &str, index: Option<u32>) -> BTreeMap<String, String> {
        let [name, job, task] = TASK_LABELS;
        let mut labels = strings(&[(name, &self.name), (job, role)]);
        labels.extend(index.map(|index| (task.to_owned(), index.to_string())));
        labels
    }

    /// The labels of a task's objects, by which the agent knows the pod, too.
    pub(super) fn labels(&self, role: &str, index: Option<u32>) -> BTreeMap<String, String> {
        let mut labels = self.selector(role, index);
        labels.extend(self.origin.clone());
        labels
    }

    /// The labels of an object of all tasks.
    pub(super) fn whole_labels(&self) -> BTreeMap<String, String> {
        let mut labels = strings(&[(TASK_LABELS[0], &self.name)]);
        labels.extend(self.origin.clone());
        labels
    }

    /// The labels of an object that all cases of the plan share.
    pub(super) fn lasting_labels(&self) -> BTreeMap<String, String> {
        let name = self.job.name.clone().unwrap_or_default();
        let plan = self.origin.get_key_value(PLAN_LABEL);
        let plan = plan.map(|(key, value)| (key.clone(), value.clone()));
        plan.into_iter()
            .chain([(TASK_LABELS[0].to_owned(), name)])
            .collect()
    }

    /// The annotations of a role's pods.
    fn annotations(&self, role: &str) -> Option<BTreeMap<String, String>> {
        let mut annotations = BTreeMap::new();
        let pin = self.requested.get(role).and_then(|requested| requested.pin);
        let pin = match self.run.filter(|_| pin == Some(true)) {
            Some(RunTag { way, .. }) => {
                if !way.sized {
                    annotations.insert(THREADS_ANNOTATION.to_owned(), "off".to_owned());
                }
                Some(way.exclusive)
            }
            None => pin,
        };
        if let Some(pin) = pin {
            let cpus = if pin { "exclusive" } else { "shared" };
            annotations.insert(CPUS_ANNOTATION.to_owned(), cpus.to_owned());
        }
        if let Some(group) = self
            .group()
            .filter(|_| matches!(self.format, WorkloadFormat::Native | WorkloadFormat::Jobset))
        {
            annotations.insert(GROUP.to_owned(), group);
        }
        Some(annotations).filter(|annotations| !annotations.is_empty())
    }

    pub(super) fn template(&self, of: PodTasks<'_>, restart: &str) -> PodTemplateSpec {
        let role = of.role();
        let index = match of {
            PodTasks::Task(task) => Some(task.index),
            PodTasks::Role(_) => None,
        };
        // The training operator and JobSet name the hosts themselves.
        let own_host = matches!(
            self.format,
            WorkloadFormat::Native | WorkloadFormat::Volcano
        );
        let hostname = index
            .filter(|_| own_host)
            .map(|index| self.task_name(role, index));
        PodTemplateSpec {
            metadata: Some(ObjectMeta {
                labels: Some(self.labels(role, index)),
                annotations: self.annotations(role),
                ..ObjectMeta::default()
            }),
            spec: Some(PodSpec {
                affinity: Some(self.affinity(of)),
                automount_service_account_token: self.mounts_token(),
                containers: vec![self.container(of)],
                // Other Services of the namespace are no business of the job, and each would be seven variables.
                enable_service_links: Some(false),
                image_pull_secrets: Some(self.job.image_pull_secrets.iter())
                    .map(|names| {
                        names
                            .map(|name| LocalObjectReference { name: name.clone() })
                            .collect()
                    })
                    .filter(|names: &Vec<_>| !names.is_empty()),
                // The training operator has it beside the template, and warns of one inside.
                restart_policy: (self.format != WorkloadFormat::Tfjob).then(|| restart.to_owned()),
                scheduler_name: self.scheduler().map(str::to_owned),
                // Many programs ignore SIGTERM as a container's first process, and half a minute for each run of an experiment
                // adds up. When its pods are deleted, nobody needs their state any more.
                termination_grace_period_seconds: self.run.map(|_| RUN_GRACE_SECONDS),
                security_context: Some(self.pod_security()),
                service_account_name: self.job.service_account.clone(),
                subdomain: hostname.is_some().then(|| self.name.clone()),
                hostname,
                tolerations: self.plan.spec.taint.as_ref().map(|taint| {
                    let taint = taint.to_k8s();
                    vec![Toleration {
                        key: Some(taint.key),
                        operator: Some(
                            if taint.value.is_some() {
                                "Equal"
                            } else {
                                "Exists"
                            }
                            .to_owned(),
                        ),
                        value: taint.value,
                        effect: Some(taint.effect),
                        ..Toleration::default()
                    }]
                }),
                topology_spread_constraints: match of {
                    PodTasks::Role(role) => Some(vec![self.spread(role)]),
                    PodTasks::Task(_) => None,
                },
                volumes: self.volumes(),
                ..PodSpec::default()
            }),
        }
    }

    /// The pod's required nodes, and the pods to keep away from.
    fn affinity(&self, of: PodTasks<'_>) -> Affinity {
        let keys = &self.plan.spec.labels;
        let (kind, index) = match of {
            PodTasks::Task(JobTask {
                slot: Slot { kind, index, .. },
                ..
            }) => (kind.as_deref(), Some(index.to_string())),
            PodTasks::Role(role) => (
                role.groups.first().and_then(|share| share.kind.as_deref()),
                None,
            ),
        };
        let mut wanted = vec![
            requirement(&keys.scene, self.scene),
            requirement(&keys.case, self.case),
        ];
        wanted.extend(index.map(|index| requirement(&keys.index, &index)));
        wanted.extend(kind.map(|kind| requirement(&keys.kind, kind)));
        let term = NodeSelectorTerm {
            match_expressions: Some(wanted),
            match_fields: None,
        };
        Affinity {
            node_affinity: Some(NodeAffinity {
                required_during_scheduling_ignored_during_execution: Some(NodeSelector {
                    node_selector_terms: vec![term],
                }),
                ..NodeAffinity::default()
            }),
            pod_anti_affinity: matches!(of, PodTasks::Task(_))
                .then(|| self.apart(of.role()))
                .flatten(),
            pod_affinity: None,
        }
    }

    /// Keeps two parameter servers of the job off one node where each server has one, even if two
    /// nodes have the same labels by mistake.
    fn apart(&self, role: &str) -> Option<PodAntiAffinity> {
        let tasks = self
            .roles
            .iter()
            .find(|entry| entry.role == role && role == PS)?;
        tasks
            .groups
            .iter()
            .all(|share| share.per_node == 1)
            .then(|| PodAntiAffinity {
                required_during_scheduling_ignored_during_execution: Some(vec![PodAffinityTerm {
                    label_selector: Some(LabelSelector {
                        match_expressions: Some(vec![
                            among(TASK_LABELS[0], &self.name),
                            among(TASK_LABELS[1], PS),
                        ]),
                        match_labels: None,
                    }),
                    topology_key: "kubernetes.io/hostname".to_owned(),
                    ..PodAffinityTerm::default()
                }]),
                ..PodAntiAffinity::default()
            })
    }

    /// An even share of a role's tasks for each INDEX. With the planned number of servers, all servers get the same
    /// number of tasks.
    fn spread(&self, role: &RoleTasks) -> TopologySpreadConstraint {
        let servers: u32 = role.groups.iter().map(|share| share.servers).sum();
        TopologySpreadConstraint {
            label_selector: Some(LabelSelector {
                match_labels: Some(strings(&[
                    (OPERATOR[0], &self.name),
                    (OPERATOR[1], &role.role),
                ])),
                match_expressions: None,
            }),
            max_skew: 1,
            min_domains: i32::try_from(servers).ok(),
            // Only servers of the case count, by the affinity above.
            node_affinity_policy: Some("Honor".to_owned()),
            topology_key: self.plan.spec.labels.index.clone(),
            when_unsatisfiable: "DoNotSchedule".to_owned(),
            ..TopologySpreadConstraint::default()
        }
    }

    fn container(&self, of: PodTasks<'_>) -> Container {
        let role = of.role();
        let own = self.job.roles.get(role);
        let command = own
            .and_then(|own| own.command.as_ref())
            .unwrap_or(&self.job.command);
        let command = if command.is_empty() {
            vec!["python".to_owned(), "$(SCRIPT)".to_owned()]
        } else {
            command.clone()
        };
        let args = own
            .and_then(|own| own.args.as_ref())
            .unwrap_or(&self.job.args);
        let quantities = |amounts: &BTreeMap<String, Amount>| {
            let all = amounts
                .iter()
                .map(|(resource, amount)| (resource.clone(), Quantity(amount.0.clone())));
            Some(all.collect::<BTreeMap<_, _>>()).filter(|all| !all.is_empty())
        };
        let requested = self.requested.get(role).cloned().unwrap_or_default();
        let operator = self.format == WorkloadFormat::Tfjob;
        Container {
            // The training operator looks for a container and a port of these names.
            name: if operator { "tensorflow" } else { role }.to_owned(),
            image: Some(
                own.and_then(|own| own.image.as_deref())
                    .unwrap_or(self.image)
                    .to_owned(),
            ),
            command: Some(command),
            args: Some(args.clone()).filter(|args| !args.is_empty()),
            env: Some(self.env(of)),
            ports: Some(vec![ContainerPort {
                name: Some(if operator { "tfjob-port" } else { "tensorflow" }.to_owned()),
                container_port: i32::from(self.port),
                ..ContainerPort::default()
            }]),
            resources: Some(ResourceRequirements {
                requests: quantities(&requested.requests),
                limits: quantities(&requested.limits),
                claims: None,
            })
            .filter(|all| all.requests.is_some() || all.limits.is_some()),
            security_context: Some(self.container_security()),
            volume_mounts: self.mounts(),
            ..Container::default()
        }
    }

    /// The variables about the cluster and the task, followed by the user's variables.
    fn env(&self, of: PodTasks<'_>) -> Vec<EnvVar> {
        let role = of.role();
        let mut env = self.host_variables();
        env.extend([
            variable("PS_COUNT", self.count(PS).to_string()),
            variable("WORKER_COUNT", self.count("worker").to_string()),
            variable("TASK_TYPE", role),
            task_index(of),
            variable("TASK_PORT", self.port.to_string()),
            variable("TRAINING_JOB", self.name.as_str()),
        ]);
        env.extend(self.path_variables());
        // The training operator sets the value for a TFJob, and like it, a job of one task gets none: TensorFlow would
        // take the cluster of one for a distributed job, which some programs refuse, or wait for.
        if let PodTasks::Task(task) = of
            && self.all() > 1
        {
            env.extend(self.tf_config(task));
        }
        let users = self.user_variables(role);
        // A user without an entry in the image's /etc/passwd has / as home, where nobody but root writes.
        if !self.is_root() && users.iter().all(|variable| variable.name != HOME) {
            env.push(variable(HOME, "/tmp"));
        }
        env.extend(users);
        env
    }

    /// The addresses of each role, from the ConfigMap.
    fn host_variables(&self) -> Vec<EnvVar> {
        let lists = self.hosts.lists.iter();
        lists
            .map(|(name, key, _)| self.config_map_variable(name, key))
            .collect()
    }

    /// The paths of the script and of the folders that the job has.
    fn path_variables(&self) -> Vec<EnvVar> {
        let folder = |name, folder: &Option<Folder>| {
            folder.as_ref().map(|folder| folder::path(name, folder))
        };
        let paths = [
            ("SCRIPT", self.job.script.clone()),
            ("DATA_DIR", folder("data", &self.job.data)),
            ("LOG_DIR", folder("log", &self.job.log)),
        ];
        paths
            .into_iter()
            .filter_map(|(name, path)| Some(variable(name, literal(&path?))))
            .collect()
    }

    /// TF_CONFIG of a task, and the variable from the ConfigMap that it refers to.
    fn tf_config(&self, task: &JobTask) -> [EnvVar; 2] {
        let task = json!({"type": task.role, "index": task.index});
        let config = format!("{{\"cluster\":$(CLUSTER_SPEC),\"task\":{task}}}");
        [
            self.config_map_variable("CLUSTER_SPEC", "cluster"),
            variable("TF_CONFIG", config),
        ]
    }

    /// The variables of the job. A variable of the role overrules the job's.
    fn user_variables(&self, role: &str) -> Vec<EnvVar> {
        let mut users = self.job.env.clone();
        users.extend(
            self.job
                .roles
                .get(role)
                .map(|own| own.env.clone())
                .unwrap_or_default(),
        );
        users
            .into_iter()
            .map(|(name, value)| variable(&name, value))
            .collect()
    }

    fn config_map_variable(&self, name: &str, key: &str) -> EnvVar {
        EnvVar {
            name: name.to_owned(),
            value_from: Some(EnvVarSource {
                config_map_key_ref: Some(ConfigMapKeySelector {
                    name: self.config_name(),
                    key: key.to_owned(),
                    optional: None,
                }),
                ..EnvVarSource::default()
            }),
            ..EnvVar::default()
        }
    }

    /// The name of the ConfigMap with the hosts.
    pub(super) fn config_name(&self) -> String {
        format!("{}-cluster", self.name)
    }
}
