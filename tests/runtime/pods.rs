//! Pods and containers, created as the kubelet creates them: first the cgroups, then the calls to the runtime.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use pinfold::host::cgroup::Quota;

use crate::cri::Refused;
use crate::daemon::Runtime;
use crate::image::IMAGE;
use crate::kernel::{Kernel, Tree};
use crate::leftovers;
use crate::messages::{
    ContainerConfig, ContainerMetadata, ContainerSecurity, ContainerStatus, ContainerStatusRequest,
    CreateContainer, ExecSync, Image, KeyValue, LinuxContainer, LinuxPod, Mount, Namespaces,
    PodConfig, PodMetadata, PodSecurity, RemoveContainer, RemovePodSandbox, Resources,
    RunPodSandbox, StartContainer, StopContainer, StopPodSandbox, UpdateContainerResources,
};
use crate::probe::Report;

/// The namespace of all pods.
const NAMESPACE: &str = "train";

/// Memory of each container, in bytes.
const MEMORY: i64 = 128 << 20;

/// The kubelet's period, in microseconds.
const PERIOD: i64 = 100_000;

/// A container of a pod spec.
#[derive(Debug, Clone)]
pub(crate) struct ContainerSpec {
    pub(crate) name: String,
    /// CPU limit and request in thousandths; `None` without limit and request.
    pub(crate) milli: Option<u64>,
    pub(crate) env: Vec<(String, String)>,
}

/// A pod spec.
#[derive(Debug, Clone)]
pub(crate) struct PodSpec {
    pub(crate) name: String,
    pub(crate) uid: String,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) annotations: BTreeMap<String, String>,
    /// The handler of the pod's RuntimeClass; empty for the default.
    pub(crate) handler: String,
    /// Init containers. Each ends before the next begins.
    pub(crate) init: Vec<ContainerSpec>,
    /// Init containers that keep running.
    pub(crate) sidecars: Vec<ContainerSpec>,
    pub(crate) containers: Vec<ContainerSpec>,
}

// === impl ContainerSpec ===

impl ContainerSpec {
    pub(crate) fn new(name: &str, cpus: u64) -> Self {
        Self {
            name: name.to_owned(),
            milli: Some(1000 * cpus),
            env: Vec::new(),
        }
    }

    pub(crate) fn without_limits(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            milli: None,
            env: Vec::new(),
        }
    }

    pub(crate) fn with_env(mut self, name: &str, value: &str) -> Self {
        self.env.push((name.to_owned(), value.to_owned()));
        self
    }

    fn manifest(&self, policy: &str) -> String {
        let resources = self.milli.map_or_else(String::new, |milli| {
            format!(", resources: {{limits: {{cpu: {milli}m, memory: '{MEMORY}'}}}}")
        });
        let env = |(name, value): &(String, String)| format!("{{name: {name}, value: '{value}'}}");
        let env: Vec<String> = self.env.iter().map(env).collect();
        format!(
            "  - {{name: {}, image: probe{policy}{resources}, env: [{}]}}\n",
            self.name,
            env.join(", ")
        )
    }

    /// The same container with a new limit.
    pub(crate) fn with_milli(self, milli: u64) -> Self {
        Self {
            milli: Some(milli),
            ..self
        }
    }

    /// The resources that the kubelet derives from the limit.
    pub(crate) fn resources(&self) -> Resources {
        let Some(milli) = self.milli else {
            return Resources {
                cpu_shares: 2,
                ..Resources::default()
            };
        };
        let milli = i64::try_from(milli).unwrap();
        Resources {
            cpu_period: PERIOD,
            cpu_quota: milli * PERIOD / 1000,
            cpu_shares: (milli * 1024 / 1000).max(2),
            memory_limit: MEMORY,
            ..Resources::default()
        }
    }
}

// === impl PodSpec ===

impl PodSpec {
    /// A pod with the container `main` and without labels.
    pub(crate) fn new(name: &str, main: ContainerSpec) -> Self {
        Self {
            name: name.to_owned(),
            uid: format!("{name}-uid"),
            labels: BTreeMap::new(),
            annotations: BTreeMap::new(),
            handler: String::new(),
            init: Vec::new(),
            sidecars: Vec::new(),
            containers: vec![main],
        }
    }

    /// A worker of a TFJob.
    pub(crate) fn worker(name: &str, cpus: u64) -> Self {
        Self::new(name, ContainerSpec::new("main", cpus))
            .labelled("training.kubeflow.org/job-name", "job")
            .labelled("training.kubeflow.org/replica-type", "worker")
    }

    pub(crate) fn labelled(mut self, name: &str, value: &str) -> Self {
        self.labels.insert(name.to_owned(), value.to_owned());
        self
    }

    pub(crate) fn annotated(mut self, name: &str, value: &str) -> Self {
        self.annotations.insert(name.to_owned(), value.to_owned());
        self
    }

    fn all(&self) -> impl Iterator<Item = &ContainerSpec> {
        self.init
            .iter()
            .chain(&self.sidecars)
            .chain(&self.containers)
    }

    /// The folder of the pod's QoS class below the pods' tree; empty for a Guaranteed pod.
    fn class(&self) -> &'static str {
        if self.all().all(|container| container.milli.is_some()) {
            ""
        } else if self.all().any(|container| container.milli.is_some()) {
            "burstable"
        } else {
            "besteffort"
        }
    }

    /// The pod's manifest.
    pub(crate) fn manifest(&self) -> String {
        let pairs = |map: &BTreeMap<String, String>| {
            let pairs: Vec<String> = map
                .iter()
                .map(|(name, value)| format!("{name}: '{value}'"))
                .collect();
            pairs.join(", ")
        };
        let mut text = format!(
            "apiVersion: v1\nkind: Pod\nmetadata:\n  name: {}\n  namespace: {NAMESPACE}\n  uid: {}\n  labels: {{{}}}\n  annotations: {{{}}}\nspec:\n",
            self.name,
            self.uid,
            pairs(&self.labels),
            pairs(&self.annotations)
        );
        if !self.init.is_empty() || !self.sidecars.is_empty() {
            text += "  initContainers:\n";
            text.extend(self.init.iter().map(|container| container.manifest("")));
            text.extend(
                self.sidecars
                    .iter()
                    .map(|container| container.manifest(", restartPolicy: Always")),
            );
        }
        text += "  containers:\n";
        text.extend(
            self.containers
                .iter()
                .map(|container| container.manifest("")),
        );
        text
    }
}

/// A pod whose sandbox runs.
pub(crate) struct Pod<'a> {
    pub(crate) runtime: &'a Runtime,
    kernel: &'a Kernel,
    pub(crate) spec: PodSpec,
    /// The pod's cgroup.
    pub(crate) cgroup: String,
    pub(crate) sandbox: String,
    config: PodConfig,
}

/// A container that the runtime has created.
pub(crate) struct Container<'a> {
    runtime: &'a Runtime,
    pub(crate) id: String,
    pub(crate) cgroup: String,
    report: PathBuf,
}

fn namespaces() -> Namespaces {
    // The node's network needs no CNI plugin. Each container has a PID namespace, as with the kubelet's defaults.
    Namespaces {
        network: 2,
        pid: 1,
        ipc: 0,
    }
}

// === impl Pod ===

impl<'a> Pod<'a> {
    /// Makes a pod's cgroup and runs its sandbox.
    pub(crate) fn run(
        kernel: &'a Kernel,
        tree: &Tree<'_>,
        runtime: &'a Runtime,
        spec: &PodSpec,
    ) -> Self {
        let cgroup = tree.pod(spec.class(), &spec.uid);
        let milli: u64 = spec
            .sidecars
            .iter()
            .chain(&spec.containers)
            .filter_map(|container| container.milli)
            .sum();
        kernel.cgroups.set_request(&cgroup, milli).unwrap();
        if spec.class().is_empty() {
            kernel
                .cgroups
                .set_quota(
                    &cgroup,
                    Quota {
                        quota: Some(milli * 100),
                        period: 100_000,
                    },
                )
                .unwrap();
        }
        runtime.record_cgroup(&cgroup);
        let logs = runtime.folder().join("pods").join(&spec.uid);
        fs::create_dir_all(&logs).unwrap();
        let mut labels = spec.labels.clone();
        for (name, value) in [
            ("name", spec.name.as_str()),
            ("namespace", NAMESPACE),
            ("uid", &spec.uid),
        ] {
            labels.insert(format!("io.kubernetes.pod.{name}"), value.to_owned());
        }
        let config = PodConfig {
            metadata: Some(PodMetadata {
                name: spec.name.clone(),
                uid: spec.uid.clone(),
                namespace: NAMESPACE.to_owned(),
            }),
            log_directory: logs.display().to_string(),
            labels,
            annotations: spec.annotations.clone(),
            linux: Some(LinuxPod {
                cgroup_parent: format!("/{cgroup}"),
                security: Some(PodSecurity {
                    namespaces: Some(namespaces()),
                }),
            }),
        };
        let sandbox = runtime
            .cri
            .call(&RunPodSandbox {
                config: Some(config.clone()),
                runtime_handler: spec.handler.clone(),
            })
            .id;
        Self {
            runtime,
            kernel,
            spec: spec.clone(),
            cgroup,
            sandbox,
            config,
        }
    }

    /// Creates a container without starting it. `attempt` distinguishes containers of one name.
    pub(crate) fn create(
        &self,
        spec: &ContainerSpec,
        attempt: u32,
    ) -> Result<Container<'a>, Refused> {
        self.create_with_command(spec, attempt, "report")
    }

    /// Creates a container that ends after its report, as an init container does.
    pub(crate) fn create_init(
        &self,
        spec: &ContainerSpec,
        attempt: u32,
    ) -> Result<Container<'a>, Refused> {
        self.create_with_command(spec, attempt, "once")
    }

    fn create_with_command(
        &self,
        spec: &ContainerSpec,
        attempt: u32,
        probe_command: &str,
    ) -> Result<Container<'a>, Refused> {
        let file = format!("{}-{}-{attempt}", self.spec.uid, spec.name);
        let mut labels: BTreeMap<String, String> = self.config.labels.clone();
        labels.retain(|name, _| name.starts_with("io.kubernetes."));
        labels.insert("io.kubernetes.container.name".to_owned(), spec.name.clone());
        let config = ContainerConfig {
            metadata: Some(ContainerMetadata {
                name: spec.name.clone(),
                attempt,
            }),
            image: Some(Image {
                image: IMAGE.to_owned(),
                user_specified: IMAGE.to_owned(),
            }),
            command: vec![
                "/probe".to_owned(),
                probe_command.to_owned(),
                format!("/report/{file}"),
            ],
            envs: spec
                .env
                .iter()
                .map(|(key, value)| KeyValue {
                    key: key.clone(),
                    value: value.clone(),
                })
                .collect(),
            mounts: vec![Mount {
                container_path: "/report".to_owned(),
                host_path: self.runtime.reports().display().to_string(),
            }],
            labels,
            annotations: BTreeMap::from([(
                "io.kubernetes.container.restartCount".to_owned(),
                attempt.to_string(),
            )]),
            log_path: format!("{}-{attempt}.log", spec.name),
            linux: Some(LinuxContainer {
                resources: Some(spec.resources()),
                security: Some(ContainerSecurity {
                    namespaces: Some(namespaces()),
                }),
            }),
        };
        let created = self.runtime.cri.try_call(&CreateContainer {
            sandbox: self.sandbox.clone(),
            config: Some(config),
            pod: Some(self.config.clone()),
        })?;
        Ok(Container {
            runtime: self.runtime,
            cgroup: format!("{}/{}", self.cgroup, created.id),
            id: created.id,
            report: self.runtime.reports().join(file),
        })
    }

    /// Raises the pod cgroup's limit to `milli` thousandths of a CPU, as the kubelet does when it
    /// begins a resize to a higher limit.
    pub(crate) fn raise_limit(&self, milli: u64) {
        self.kernel
            .cgroups
            .set_request(&self.cgroup, milli)
            .unwrap();
        self.kernel
            .cgroups
            .set_quota(
                &self.cgroup,
                Quota {
                    quota: Some(milli * 100),
                    period: 100_000,
                },
            )
            .unwrap();
    }

    /// Ends the sandbox and ignores failures, because the runtime's drop removes what is left.
    pub(crate) fn remove_if_possible(self) {
        // The runtime may fail on half-created containers.
        let _ = self.runtime.cri.try_call(&StopPodSandbox {
            sandbox: self.sandbox.clone(),
        });
        let _ = self.runtime.cri.try_call(&RemovePodSandbox {
            sandbox: self.sandbox,
        });
    }

    /// Ends the pod as the kubelet does: first the sandbox with all containers, then the cgroup.
    pub(crate) fn remove(self) {
        self.runtime.cri.call(&StopPodSandbox {
            sandbox: self.sandbox.clone(),
        });
        self.runtime.cri.call(&RemovePodSandbox {
            sandbox: self.sandbox.clone(),
        });
        // A leftover cgroup of a container fails the test here.
        let left = leftovers::cgroups(&self.cgroup);
        assert!(left.is_empty(), "leftover cgroups of the runtime: {left:?}");
        self.kernel.cgroups.remove(&self.cgroup).unwrap();
        leftovers::remove_elsewhere(&self.cgroup);
    }
}

// === impl Container ===

impl Container<'_> {
    /// Starts the container and waits for the report.
    pub(crate) fn start(&self) -> Report {
        self.try_start()
            .unwrap_or_else(|refused| panic!("{} can't be started: {refused}", self.id))
    }

    /// Starts the container without waiting for the report.
    pub(crate) fn begin(&self) -> Result<(), Refused> {
        self.runtime
            .cri
            .try_call(&StartContainer {
                id: self.id.clone(),
            })
            .map(|_| ())
    }

    pub(crate) fn try_start(&self) -> Result<Report, Refused> {
        self.begin()?;
        self.runtime
            .eventually("the container's report", || self.report.exists());
        Ok(Report::parse(&fs::read_to_string(&self.report).unwrap()).unwrap())
    }

    pub(crate) fn status(&self) -> ContainerStatus {
        self.runtime
            .cri
            .call(&ContainerStatusRequest {
                id: self.id.clone(),
            })
            .status
            .unwrap()
    }

    /// The report of a program that `exec` runs in the container.
    pub(crate) fn exec(&self) -> Report {
        let command = vec!["/probe".to_owned(), "show".to_owned()];
        let executed = self.runtime.cri.call(&ExecSync {
            id: self.id.clone(),
            command,
            timeout: 0,
        });
        assert_eq!(executed.exit_code, 0, "{executed:?}");
        Report::parse(&String::from_utf8(executed.stdout).unwrap()).unwrap()
    }

    /// Changes the container's resources, as an in-place resize does.
    pub(crate) fn update(&self, resources: Resources) -> Result<(), Refused> {
        let request = UpdateContainerResources {
            id: self.id.clone(),
            linux: Some(resources),
        };
        self.runtime.cri.try_call(&request).map(|_| ())
    }

    /// Whether the container's program has begun.
    pub(crate) fn has_reported(&self) -> bool {
        self.report.exists()
    }

    /// Kills the container without a grace period and removes it.
    pub(crate) fn remove(&self) {
        self.try_remove()
            .unwrap_or_else(|refused| panic!("{} can't be removed: {refused}", self.id));
    }

    pub(crate) fn try_remove(&self) -> Result<(), Refused> {
        self.runtime.cri.try_call(&StopContainer {
            id: self.id.clone(),
            grace: 0,
        })?;
        self.runtime
            .cri
            .try_call(&RemoveContainer {
                id: self.id.clone(),
            })
            .map(|_| ())
    }
}
