//! The objects of an experiment in the cluster: creation, deletion, and the wait until they are gone.

use std::time::Duration;

use anyhow::{Context, bail, ensure};
use k8s_openapi::jiff::Timestamp;
use kube::core::params::ListParams;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::EXPERIMENT_LABEL;
use crate::cluster::patient::{Creation, PatientApi};
use crate::cluster::{ErrorKind, Failure};

/// A kind that scene render makes.
struct ObjectKind {
    kind: &'static str,
    /// The path before the namespace.
    group: &'static str,
    plural: &'static str,
    /// Whether most jobs have none, so that the cluster may lack the kind and the user the right to list it.
    is_rare: bool,
}

const fn kind(
    kind: &'static str,
    group: &'static str,
    plural: &'static str,
    is_rare: bool,
) -> ObjectKind {
    ObjectKind {
        kind,
        group,
        plural,
        is_rare,
    }
}

/// Claims are created and never deleted, because they hold data, and all runs share them.
const CLAIM: ObjectKind = kind(
    "PersistentVolumeClaim",
    "/api/v1",
    "persistentvolumeclaims",
    true,
);

/// The kinds in the order of deletion. The Deployments of servers come first, as at the end of a job; nothing waits for the order.
const KINDS: [ObjectKind; 8] = [
    kind("Deployment", "/apis/apps/v1", "deployments", false),
    kind("Job", "/apis/batch/v1", "jobs", false),
    kind("Service", "/api/v1", "services", false),
    kind("ConfigMap", "/api/v1", "configmaps", false),
    kind("JobSet", "/apis/jobset.x-k8s.io/v1alpha2", "jobsets", true),
    kind("TFJob", "/apis/kubeflow.org/v1", "tfjobs", true),
    kind("Job", "/apis/batch.volcano.sh/v1alpha1", "jobs", true),
    kind(
        "PodGroup",
        "/apis/scheduling.volcano.sh/v1beta1",
        "podgroups",
        true,
    ),
];

/// Between two looks at what goes away.
const POLL_INTERVAL: Duration = Duration::from_secs(2);

/// The most names in a message.
const MOST_NAMED: usize = 5;

/// The objects of an experiment in its namespace.
#[derive(Debug, Clone)]
pub(super) struct Objects {
    api: PatientApi,
    namespace: String,
    experiment: String,
}

// === impl Objects ===

impl Objects {
    pub(super) fn new(api: PatientApi, namespace: &str, experiment: &str) -> Self {
        Self {
            api,
            namespace: namespace.to_owned(),
            experiment: experiment.to_owned(),
        }
    }

    /// The path of the collection of an object's kind.
    fn collection(&self, object: &Value) -> anyhow::Result<String> {
        let text = |key: &str| object[key].as_str().unwrap_or_default();
        let (version, kind) = (text("apiVersion"), text("kind"));
        let mut kinds = KINDS.iter().chain([&CLAIM]);
        let found = kinds.find(|known| {
            known.kind == kind
                && known
                    .group
                    .trim_start_matches("/apis/")
                    .trim_start_matches("/api/")
                    == version
        });
        let found =
            found.with_context(|| format!("objects of kind {kind} ({version}) are unknown"))?;
        Ok(self.path(found))
    }

    fn path(&self, kind: &ObjectKind) -> String {
        format!(
            "{}/namespaces/{}/{}",
            kind.group, self.namespace, kind.plural
        )
    }

    /// Creates the objects in their order. One that exists must be this experiment's own, from a request whose answer got lost.
    /// Returns how far this machine's clock is before the server's, in seconds, by the first object's time.
    ///
    /// # Errors
    /// The server refuses an object, or a name is taken.
    pub(super) async fn create(&self, objects: &[Value], limit: Duration) -> anyhow::Result<f64> {
        let mut ahead = None;
        for object in objects {
            let created = self.create_one(object, limit).await?;
            ahead = ahead.or_else(|| {
                let text = created.as_ref()?["metadata"]["creationTimestamp"].as_str()?;
                let at: Timestamp = text.parse().ok()?;
                Some(Timestamp::now().duration_since(at).as_secs_f64())
            });
        }
        Ok(ahead.unwrap_or_default())
    }

    /// Creates an object, and returns it, unless it was there.
    async fn create_one(&self, object: &Value, limit: Duration) -> anyhow::Result<Option<Value>> {
        let collection = self.collection(object)?;
        let kind = object["kind"].as_str().unwrap_or_default();
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        let until = Instant::now() + limit;
        loop {
            let created = self.api.create(&collection, object).await;
            let created = created.with_context(|| {
                format!("can't create {kind} {name} in namespace {}", self.namespace)
            })?;
            if let Creation::Created(object) = created {
                return Ok(Some(object));
            }
            let existing: Option<Value> = self.api.get(&format!("{collection}/{name}")).await?;
            let is_going = existing
                .as_ref()
                .is_none_or(|object| !object["metadata"]["deletionTimestamp"].is_null());
            let label = existing
                .as_ref()
                .and_then(|object| object["metadata"]["labels"][EXPERIMENT_LABEL].as_str());
            if !is_going && (label == Some(self.experiment.as_str()) || kind == CLAIM.kind) {
                return Ok(None);
            }
            ensure!(
                is_going && Instant::now() < until,
                "{kind} {name} exists in namespace {} and is not of this experiment: delete it, or choose another namespace \
                 with --job-namespace",
                self.namespace
            );
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// Deletes all objects of the experiment.
    ///
    /// # Errors
    /// A request fails.
    pub(super) async fn delete_all(&self) -> anyhow::Result<()> {
        for kind in &KINDS {
            let api = if kind.is_rare {
                // Whoever has no rights there has no such objects, either, and should not wait.
                self.api.clone().forgiving(Duration::ZERO)
            } else {
                self.api.clone()
            };
            let deleted = api.delete_all(&self.path(kind), self.selector()).await;
            match deleted {
                Err(failure) if kind.is_rare && is_absent(&failure) => {}
                deleted => deleted.with_context(|| {
                    format!(
                        "can't delete {} in namespace {}",
                        kind.plural, self.namespace
                    )
                })?,
            }
        }
        Ok(())
    }

    fn selector(&self) -> ListParams {
        ListParams::default().labels(&format!("{EXPERIMENT_LABEL}={}", self.experiment))
    }

    /// The pods of the experiment.
    ///
    /// # Errors
    /// A request fails.
    pub(super) async fn pods(&self) -> Result<Vec<Value>, Failure> {
        let path = format!("/api/v1/namespaces/{}/pods", self.namespace);
        self.api.list(&path, "PodList", self.selector()).await
    }

    /// Waits until no pod of the experiment is left.
    ///
    /// # Errors
    /// Pods are left after the time limit; they are named.
    pub(super) async fn wait_until_gone(&self, limit: Duration) -> anyhow::Result<()> {
        let until = Instant::now() + limit;
        loop {
            let pods = self.pods().await?;
            if pods.is_empty() {
                return Ok(());
            }
            if Instant::now() > until {
                let names = pods.iter().map(|pod| {
                    let name = pod["metadata"]["name"].as_str().unwrap_or_default();
                    let node = pod["spec"]["nodeName"].as_str();
                    format!("{name} on {}", node.unwrap_or("no node"))
                });
                let names: Vec<String> = names.take(MOST_NAMED).collect();
                bail!(
                    "{} pods of the run still exist {} s after their deletion, among them {}: look at kubectl describe pod -n {}, and then use --resume \
                     or --abort",
                    pods.len(),
                    limit.as_secs(),
                    names.join(", "),
                    self.namespace
                );
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// Creates the namespace with the experiment's label.
    ///
    /// # Errors
    /// A request fails.
    pub(super) async fn create_namespace(&self) -> anyhow::Result<()> {
        let object = json!({
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {"name": self.namespace, "labels": {EXPERIMENT_LABEL: self.experiment}},
        });
        let created = self.api.create("/api/v1/namespaces", &object).await;
        let created =
            created.with_context(|| format!("can't create the namespace {}", self.namespace))?;
        if created != Creation::Exists {
            return Ok(());
        }
        let path = format!("/api/v1/namespaces/{}", self.namespace);
        let found: Value = self.api.get(&path).await?.unwrap_or_default();
        ensure!(
            found["metadata"]["labels"][EXPERIMENT_LABEL] == json!(self.experiment),
            "somebody else has created the namespace {} meanwhile: choose another one with --job-namespace",
            self.namespace
        );
        ensure!(
            found["metadata"]["deletionTimestamp"].is_null(),
            "the namespace {} is being deleted: try again when it is gone",
            self.namespace
        );
        Ok(())
    }

    /// Deletes the namespace if it has the experiment's label, and waits until it is gone.
    ///
    /// # Errors
    /// A request fails, or the namespace is still there after the time limit.
    pub(super) async fn delete_namespace(&self, limit: Duration) -> anyhow::Result<()> {
        let path = format!("/api/v1/namespaces/{}", self.namespace);
        let until = Instant::now() + limit;
        loop {
            let Some(found) = self.api.get::<Value>(&path).await? else {
                return Ok(());
            };
            if found["metadata"]["labels"][EXPERIMENT_LABEL] != json!(self.experiment) {
                return Ok(());
            }
            if found["metadata"]["deletionTimestamp"].is_null() {
                let deleted = self.api.delete(&path).await;
                deleted
                    .with_context(|| format!("can't delete the namespace {}", self.namespace))?;
            }
            ensure!(
                Instant::now() < until,
                "the namespace {} is still there {} s after its deletion: look at kubectl get namespace {} -o yaml",
                self.namespace,
                limit.as_secs(),
                self.namespace
            );
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }
}

/// Whether a deletion that failed means that there is nothing.
fn is_absent(failure: &Failure) -> bool {
    matches!(failure.kind(), ErrorKind::NotFound | ErrorKind::Forbidden)
}
