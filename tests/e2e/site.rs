//! [`Site`]: the place of a case: a node, and a namespace of its own.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{ListParams, LogParams};
use pinfold::cpu::CpuSet;
use pinfold::text::counted;
use serde_json::{Value, json};

use crate::agent::{self, AgentStatus};
use crate::cluster::{Cluster, name_of, text};
use crate::report::Verdict;

/// The program of a test container. It prints the CPUs at the first instruction, then the
/// environment, and then the CPUs of each later second.
const SCRIPT: &str = "c() { sed -n 's/^Cpus_allowed_list:[[:space:]]*/cpus /p' /proc/self/status; }
c; env | sed 's/^/env /'; while :; do c; sleep 1; done";

/// The place of a case.
pub(crate) struct Site<'a> {
    pub(crate) cluster: &'a Cluster,
    /// The node's name.
    pub(crate) node: &'a str,
    /// The case's namespace, and the name of its plan.
    pub(crate) namespace: String,
    /// Whether the case has made a plan or a label of the node.
    pub(crate) has_plan: Cell<bool>,
    /// Undo actions of the hook: the actions that end an outage.
    pub(crate) undo: RefCell<Vec<&'static str>>,
}

// === impl Site ===

impl<'a> Site<'a> {
    pub(crate) fn new(cluster: &'a Cluster, node: &'a str, case: &str, index: usize) -> Self {
        Self {
            cluster,
            node,
            namespace: format!("pinfold-e2e-{}-{case}-{index}", cluster.run),
            has_plan: Cell::new(false),
            undo: RefCell::new(Vec::new()),
        }
    }

    /// Makes the namespace, and waits until pods may use its default service account.
    pub(crate) async fn open(&self) -> Result<()> {
        let labels = json!({
            "pinfold-e2e": self.cluster.run, "pod-security.kubernetes.io/enforce": "privileged",
        });
        self.cluster
            .apply(&json!({
                "apiVersion": "v1", "kind": "Namespace",
                "metadata": {"name": self.namespace, "labels": labels},
            }))
            .await?;
        let account = self
            .cluster
            .wait("the namespace has its service account", async || {
                self.existing("ServiceAccount", "default").await
            });
        account.await.map(drop)
    }

    /// Ends outages, and removes the namespace, the plan, and the node's labels of the case.
    pub(crate) async fn close(&self) -> Result<()> {
        let undo: Vec<&str> = self.undo.take();
        for action in undo {
            self.cluster.hook(action, self.node).await?;
        }
        self.cluster
            .delete("v1", "Namespace", None, &self.namespace)
            .await?;
        if self.has_plan.get() {
            crate::scene::remove(self).await?;
        }
        Ok(())
    }

    /// The pods and Events of the namespace, to explain why a case failed.
    pub(crate) async fn describe(&self) -> Result<String> {
        let mut lines = Vec::new();
        for pod in self.list("v1", "Pod").await? {
            lines.push(format!("pod {}: {}", name_of(&pod), pod["status"]));
        }
        for event in self.list("events.k8s.io/v1", "Event").await? {
            let about = text(&event["regarding"]["name"]);
            let (reason, note) = (text(&event["reason"]), text(&event["note"]));
            lines.push(format!("event on {about}: {reason}: {note}"));
        }
        Ok(lines.join("\n"))
    }

    /// The objects of a kind in the namespace.
    pub(crate) async fn list(&self, version: &str, kind: &str) -> Result<Vec<Value>> {
        let all = ListParams::default();
        self.cluster
            .list(version, kind, Some(&self.namespace), &all)
            .await
    }

    /// An object of the core group in the namespace.
    pub(crate) async fn existing(&self, kind: &str, name: &str) -> Result<Value> {
        self.cluster
            .existing("v1", kind, Some(&self.namespace), name)
            .await
    }

    /// The Node.
    pub(crate) async fn node(&self) -> Result<Value> {
        self.cluster.existing("v1", "Node", None, self.node).await
    }

    /// The status of the node's agent.
    pub(crate) async fn status(&self) -> Result<AgentStatus> {
        agent::status(self.cluster, self.node).await
    }

    /// Why a case that needs this many free CPUs is skipped, if it is.
    pub(crate) async fn lacks(&self, cpus: usize) -> Result<Option<Verdict>> {
        let status = self
            .cluster
            .wait("the node's agent answers", async || self.status().await)
            .await?;
        if status.enforcement == "observe" {
            let reason = format!("enforcement is observe: {}", status.enforcement_reason);
            return Ok(Some(Verdict::Skipped(reason)));
        }
        let free = status.free();
        Ok((free.len() < cpus).then(|| {
            let reason = format!(
                "the node has {}, and the case needs {cpus}",
                counted(free.len(), "free CPU")
            );
            Verdict::Skipped(reason)
        }))
    }

    /// Why a case that needs NRI is skipped, if it is.
    pub(crate) async fn lacks_runtime(&self) -> Result<Option<Verdict>> {
        let status = self.status().await?;
        Ok((!status.runtime_asks()).then(|| {
            Verdict::Skipped(
                "the container runtime of the node does not ask the agent (NRI)".to_owned(),
            )
        }))
    }

    // --- pods ---

    /// The manifest of a container whose program prints the CPUs and the environment.
    pub(crate) fn container(&self, name: &str, cpus: &str) -> Value {
        let amounts = json!({"cpu": cpus, "memory": "32Mi"});
        json!({
            "name": name, "image": self.cluster.settings.shell_image, "imagePullPolicy": "IfNotPresent",
            "command": ["sh", "-c", SCRIPT], "resources": {"requests": amounts, "limits": amounts},
        })
    }

    /// A pod on the node.
    pub(crate) fn pod(&self, name: &str, containers: &[Value]) -> Value {
        let field = json!({"key": "metadata.name", "operator": "In", "values": [self.node]});
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "namespace": self.namespace},
            "spec": {
                "containers": containers, "terminationGracePeriodSeconds": 1, "enableServiceLinks": false,
                "automountServiceAccountToken": false, "tolerations": [{"operator": "Exists"}],
                "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [{"matchFields": [field]}],
                }}},
            },
        })
    }

    /// A training pod with a container `main`.
    pub(crate) fn training_pod(&self, name: &str, cpus: usize) -> Value {
        let mut pod = self.pod(name, &[self.container("main", &cpus.to_string())]);
        pod["metadata"]["annotations"] = json!({"pinfold.io/cpus": "exclusive"});
        pod
    }

    /// A Burstable pod with a container `main`, which gets no exclusive CPUs.
    pub(crate) fn shared_pod(&self, name: &str, request: &str) -> Value {
        let mut container = self.container("main", request);
        container["resources"] = json!({"requests": {"cpu": request, "memory": "16Mi"}});
        self.pod(name, &[container])
    }

    /// Creates a pod, and waits until all containers run.
    pub(crate) async fn start(&self, pod: &Value) -> Result<()> {
        self.cluster.apply(pod).await?;
        self.running(name_of(pod)).await
    }

    /// Waits until all containers of a pod run.
    pub(crate) async fn running(&self, name: &str) -> Result<()> {
        let what = format!("pod {name} runs on node {}", self.node);
        let waited = self.cluster.wait(&what, async || {
            let pod = self.existing("Pod", name).await?;
            let status = &pod["status"];
            ensure!(status["phase"] == "Running", "{status}");
            let states = status["containerStatuses"].as_array();
            let states = states.context("the pod has no container statuses")?;
            let all = states.iter().all(|of| !of["state"]["running"].is_null());
            ensure!(all, "{}", status["containerStatuses"]);
            Ok(())
        });
        waited.await
    }

    /// Deletes a pod, and waits until it is gone.
    pub(crate) async fn end(&self, name: &str) -> Result<()> {
        self.cluster
            .delete("v1", "Pod", Some(&self.namespace), name)
            .await
    }

    /// The report of a container since its start. After a crash, it is about the last instance.
    pub(crate) async fn reading(&self, pod: &str, container: &str) -> Result<Reading> {
        Reading::parse(&self.log(pod, container).await?)
    }

    /// The report of a container with the complete environment.
    pub(crate) async fn environment(&self, pod: &str, container: &str) -> Result<Reading> {
        let what = format!("container {container} of pod {pod} has reported its environment");
        let waited = self.cluster.wait(&what, async || {
            let reading = self.reading(pod, container).await?;
            // The second report of CPUs follows the environment.
            ensure!(
                reading.cpus.len() >= 2,
                "{} reports of CPUs",
                reading.cpus.len()
            );
            Ok(reading)
        });
        waited.await
    }

    /// The log of a container.
    pub(crate) async fn log(&self, pod: &str, container: &str) -> Result<String> {
        let pods: Api<Pod> = Api::namespaced(self.cluster.client.clone(), &self.namespace);
        let params = LogParams {
            container: Some(container.to_owned()),
            ..LogParams::default()
        };
        let log = pods.logs(pod, &params).await;
        log.with_context(|| format!("container {container} of pod {pod} has no log"))
    }

    /// Waits until the container runs on this number of exclusive CPUs, and returns them.
    ///
    /// The agent's assignment, the kernel's effective CPUs and the CPUs that the container sees are the same.
    pub(crate) async fn pinned(&self, pod: &str, container: &str, count: usize) -> Result<CpuSet> {
        let what = format!("container {container} of pod {pod} has {count} exclusive CPUs");
        let waited = self.cluster.wait(&what, async || {
            let status = self.status().await?;
            let state = status.container(&self.namespace, pod, container)?;
            let note = state.note.as_deref().unwrap_or("no note");
            let assigned = state.assigned.clone();
            let assigned = assigned.with_context(|| format!("no assignment: {note}"))?;
            ensure!(assigned.len() == count, "assigned {assigned}: {note}");
            let effective = state.effective.clone().unwrap_or_default();
            ensure!(
                effective == assigned,
                "assigned {assigned}, effective {effective}: {note}"
            );
            let seen = self.reading(pod, container).await?.last()?;
            ensure!(
                seen == assigned,
                "assigned {assigned}, and the container sees {seen}"
            );
            ensure!(
                assigned.is_subset(&status.exclusive),
                "assigned {assigned}, and the node's exclusive CPUs are {}",
                status.exclusive
            );
            Ok(assigned)
        });
        waited.await
    }

    /// Waits until the pod's container may run on none of the given CPUs.
    pub(crate) async fn kept_off(&self, pod: &str, cpus: &CpuSet) -> Result<()> {
        let what = format!("pod {pod} is off the CPUs {cpus}");
        let waited = self.cluster.wait(&what, async || {
            let seen = self.reading(pod, "main").await?.last()?;
            ensure!(seen.is_disjoint(cpus), "the pod may use {seen}");
            Ok(())
        });
        waited.await
    }

    /// Waits until the pod's container `main` may use these CPUs.
    pub(crate) async fn reaches(&self, pod: &str, cpus: &CpuSet) -> Result<()> {
        let what = format!("pod {pod} may use the CPUs {cpus}");
        let waited = self.cluster.wait(&what, async || {
            let seen = self.reading(pod, "main").await?.last()?;
            ensure!(cpus.is_subset(&seen), "the pod may use {seen}");
            Ok(())
        });
        waited.await
    }

    /// Waits for an Event about an object, and returns its note.
    pub(crate) async fn event(&self, about: &str, reason: &str) -> Result<String> {
        let what = format!("the Event {reason} on {about}");
        let waited = self.cluster.wait(&what, async || {
            let events = self.list("events.k8s.io/v1", "Event").await?;
            let wanted =
                |event: &&Value| event["reason"] == reason && event["regarding"]["name"] == about;
            let found = events.iter().find(wanted);
            let reasons = || {
                let all: Vec<&str> = events.iter().map(|event| text(&event["reason"])).collect();
                format!("Events with the reasons {}", all.join(", "))
            };
            Ok(text(&found.with_context(reasons)?["note"]).to_owned())
        });
        waited.await
    }
}

/// The report of a container.
#[derive(Debug, Default)]
pub(crate) struct Reading {
    /// The environment.
    pub(crate) env: BTreeMap<String, String>,
    /// The CPUs at the first instruction, and at each later second.
    pub(crate) cpus: Vec<CpuSet>,
}

// === impl Reading ===

impl Reading {
    fn parse(log: &str) -> Result<Self> {
        let mut reading = Self::default();
        for line in log.lines() {
            if let Some((name, value)) = line
                .strip_prefix("env ")
                .and_then(|pair| pair.split_once('='))
            {
                reading.env.insert(name.to_owned(), value.to_owned());
            } else if let Some(list) = line.strip_prefix("cpus ") {
                let cpus = list.trim().parse::<CpuSet>();
                let cpus = cpus.with_context(|| format!("{line:?} is no list of CPUs"))?;
                reading.cpus.push(cpus);
            }
        }
        Ok(reading)
    }

    /// The CPUs at the first instruction.
    pub(crate) fn first(&self) -> Result<CpuSet> {
        let first = self.cpus.first().cloned();
        first.context("the container has not yet reported its CPUs")
    }

    /// The CPUs at the last report.
    pub(crate) fn last(&self) -> Result<CpuSet> {
        let last = self.cpus.last().cloned();
        last.context("the container has not yet reported its CPUs")
    }

    /// Requires that the CPUs were the same at each report from this report on.
    pub(crate) fn constant(&self, cpus: &CpuSet, from: usize) -> Result<()> {
        let other = self.cpus.iter().skip(from).find(|other| *other != cpus);
        if let Some(other) = other {
            bail!("the container ran on {other} for a while, and its assignment is {cpus}");
        }
        Ok(())
    }

    /// A variable of the environment.
    pub(crate) fn variable(&self, name: &str) -> Result<&str> {
        let value = self.env.get(name).map(String::as_str);
        value.with_context(|| format!("the container has no variable {name}"))
    }
}
