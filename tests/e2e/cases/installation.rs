//! The installation, the rollout, an upgrade under load, and the removal.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, anyhow, bail, ensure};
use kube::api::{ListParams, Patch, PatchParams};
use pinfold::text::counted;
use serde_json::{Value, json};

use crate::agent::{self, SELECTOR};
use crate::cluster::{Cluster, name_of, text};
use crate::report::Verdict;
use crate::site::Site;

/// The name of the definition of ScenePlan.
const DEFINITION: &str = "sceneplans.pinfold.io";

/// The kinds of Pinfold's objects outside of its namespace.
const KINDS: [(&str, &str); 6] = [
    (
        "admissionregistration.k8s.io/v1",
        "ValidatingAdmissionPolicy",
    ),
    (
        "admissionregistration.k8s.io/v1",
        "ValidatingAdmissionPolicyBinding",
    ),
    ("rbac.authorization.k8s.io/v1", "ClusterRole"),
    ("rbac.authorization.k8s.io/v1", "ClusterRoleBinding"),
    ("scheduling.k8s.io/v1", "PriorityClass"),
    ("v1", "Namespace"),
];

/// The documents of a YAML file of the repository.
pub(super) fn documents(path: &str) -> Result<Vec<Value>> {
    let file = crate::repository::here(path);
    let text = std::fs::read_to_string(&file).with_context(|| format!("{path} can't be read"))?;
    parse(&text).with_context(|| format!("{path} is not valid"))
}

fn parse(text: &str) -> Result<Vec<Value>> {
    let documents: Vec<Value> =
        serde_saphyr::from_multiple(text).map_err(|error| anyhow!("{error}"))?;
    Ok(documents.into_iter().filter(|of| !of.is_null()).collect())
}

/// The objects of the folder of `PINFOLD_E2E_INSTALL`, with the image of the run.
fn objects(cluster: &Cluster, folder: &Path) -> Result<Vec<Value>> {
    let tools = std::env::var_os("PINFOLD_TOOLS")
        .map_or_else(|| PathBuf::from("/var/cache/pinfold-tools"), PathBuf::from);
    let fetched = tools.join("kubectl");
    let kubectl = if fetched.exists() {
        fetched
    } else {
        "kubectl".into()
    };
    let folder = crate::repository::here("").join(folder);
    let output = Command::new(&kubectl)
        .arg("kustomize")
        .arg(&folder)
        .output();
    let output = output.with_context(|| {
        format!(
            "{} can't be started: run tests/deploy/tools, or put kubectl on the PATH",
            kubectl.display()
        )
    })?;
    ensure!(
        output.status.success(),
        "kubectl kustomize {}: {}",
        folder.display(),
        String::from_utf8_lossy(&output.stderr)
    );
    let mut objects = parse(&String::from_utf8(output.stdout)?)?;
    if let Some(image) = &cluster.settings.agent_image {
        let sets = objects.iter_mut().filter(|of| of["kind"] == "DaemonSet");
        for set in sets {
            set["spec"]["template"]["spec"]["containers"][0]["image"] = json!(image);
        }
    }
    Ok(objects)
}

/// The DaemonSet of the agents.
async fn daemonset(cluster: &Cluster) -> Result<Value> {
    let settings = &cluster.settings;
    cluster
        .existing("apps/v1", "DaemonSet", Some(&settings.namespace), &settings.daemonset)
        .await
        .context(
            "Pinfold is not installed: install Pinfold, set PINFOLD_E2E_INSTALL to a kustomize folder, or name the installation with PINFOLD_E2E_NAMESPACE and PINFOLD_E2E_DAEMONSET",
        )
}

/// Changes the DaemonSet by a strategic merge patch.
async fn patch(cluster: &Cluster, patch: Value) -> Result<()> {
    let settings = &cluster.settings;
    cluster
        .objects("apps/v1", "DaemonSet", Some(&settings.namespace))
        .patch(
            &settings.daemonset,
            &PatchParams::default(),
            &Patch::Strategic(patch),
        )
        .await
        .context("the DaemonSet can't be patched")?;
    Ok(())
}

/// Waits until each node has an available pod of the newest template.
async fn rolled_out(cluster: &Cluster) -> Result<u64> {
    cluster
        .wait("the rollout of the DaemonSet is complete", async || {
            let set = daemonset(cluster).await?;
            let status = &set["status"];
            let number = |field: &str| status[field].as_u64().unwrap_or_default();
            let wanted = number("desiredNumberScheduled");
            ensure!(
                status["observedGeneration"] == set["metadata"]["generation"]
                    && wanted > 0
                    && number("updatedNumberScheduled") == wanted
                    && number("numberAvailable") == wanted,
                "{status}"
            );
            Ok(wanted)
        })
        .await
}

/// Applies the manifests. Without a folder, the case checks that an installation exists.
pub(super) async fn install(site: &Site<'_>) -> Result<Verdict> {
    let cluster = site.cluster;
    let Some(folder) = &cluster.settings.install else {
        daemonset(cluster).await?;
        return Ok(Verdict::Skipped(
            "PINFOLD_E2E_INSTALL is not set: the existing installation is tested".to_owned(),
        ));
    };
    let objects = objects(cluster, folder)?;
    for object in &objects {
        // A new kind or a new namespace may need a moment.
        let what = format!("{} {} is applied", text(&object["kind"]), name_of(object));
        cluster
            .wait(&what, async || cluster.apply(object).await)
            .await?;
    }
    let pods = rolled_out(cluster).await?;
    Ok(Verdict::Passed(format!(
        "{} objects, {pods} agents",
        objects.len()
    )))
}

/// The node's agent is ready, is connected, and reports no error.
pub(super) async fn rollout(site: &Site<'_>) -> Result<Verdict> {
    daemonset(site.cluster).await?;
    let status = site
        .cluster
        .wait("the node's agent is ready and without errors", async || {
            agent::ask(site.cluster, site.node, "readyz").await?;
            let status = site.status().await?;
            ensure!(status.cluster["connected"] == true, "{}", status.cluster);
            status.check()?;
            Ok(status)
        })
        .await?;
    let runtime = if status.runtime_asks() {
        "with NRI"
    } else {
        "without NRI"
    };
    Ok(Verdict::Passed(format!(
        "{}, {runtime}",
        status.enforcement
    )))
}

/// A place of the same case on another node.
fn on_node<'a>(site: &Site<'a>, node: &'a str) -> Site<'a> {
    let mut other = Site::new(site.cluster, node, "upgrade", 0);
    other.namespace.clone_from(&site.namespace);
    other
}

/// A rolling change of all agents moves no container, and pods that start meanwhile are pinned.
pub(super) async fn upgrade(site: &Site<'_>) -> Result<Verdict> {
    let cluster = site.cluster;
    let mut pods = Vec::new();
    for (at, node) in cluster.nodes.iter().enumerate() {
        let there = on_node(site, node);
        if there.lacks(2).await?.is_some() {
            continue;
        }
        let name = format!("train-{at}");
        there.start(&there.training_pod(&name, 1)).await?;
        let cpus = there.pinned(&name, "main", 1).await?;
        let reports = there.reading(&name, "main").await?.cpus.len();
        pods.push((there, name, cpus, reports));
    }
    if pods.is_empty() {
        let reason = "no test node has 2 free CPUs and enforces assignments";
        return Ok(Verdict::Skipped(reason.to_owned()));
    }
    let annotations = json!({"pinfold-e2e": cluster.run});
    patch(
        cluster,
        json!({"spec": {"template": {"metadata": {"annotations": annotations}}}}),
    )
    .await?;
    for (there, name, ..) in &pods {
        there
            .start(&there.training_pod(&format!("{name}-later"), 1))
            .await?;
    }
    rolled_out(cluster).await?;
    for (there, name, cpus, reports) in &pods {
        let again = there.pinned(name, "main", 1).await?;
        ensure!(again == *cpus, "pod {name} moved from {cpus} to {again}");
        there
            .reading(name, "main")
            .await?
            .constant(cpus, *reports)?;
        there.pinned(&format!("{name}-later"), "main", 1).await?;
    }
    let annotations = json!({"pinfold-e2e": null});
    patch(
        cluster,
        json!({"spec": {"template": {"metadata": {"annotations": annotations}}}}),
    )
    .await?;
    rolled_out(cluster).await?;
    Ok(Verdict::Passed(format!(
        "{} with the same CPUs as before, {} pinned during the upgrade",
        counted(pods.len(), "pod"),
        counted(pods.len(), "new pod")
    )))
}

/// The partitions that are left on the node, as a pod with the host's cgroups sees them.
async fn partitions(site: &Site<'_>) -> Result<String> {
    let mut pod = site.shared_pod("cgroups", "10m");
    let find = "find /host -name cpuset.cpus.partition -exec grep -lE 'root|isolated' {} +; echo end; sleep 3600";
    pod["spec"]["containers"][0]["command"] = json!(["sh", "-c", find]);
    pod["spec"]["containers"][0]["volumeMounts"] =
        json!([{"name": "cgroup", "mountPath": "/host", "readOnly": true}]);
    pod["spec"]["volumes"] = json!([{"name": "cgroup", "hostPath": {"path": "/sys/fs/cgroup"}}]);
    site.start(&pod).await?;
    let found = site
        .cluster
        .wait("the list of partitions", async || {
            let log = site.log("cgroups", "main").await?;
            let (found, _) = log
                .split_once("end\n")
                .context("the list is not complete")?;
            Ok(found.to_owned())
        })
        .await?;
    site.end("cgroups").await?;
    Ok(found)
}

/// Requires that the Node has no label and no taint of a scene.
fn is_clean(node: &Value) -> Result<()> {
    let labels = &node["metadata"]["labels"];
    for key in ["SCENCE", "CASE", "INDEX", "TYPE"] {
        ensure!(
            labels[key].is_null(),
            "the Node still has the label {key}={}",
            labels[key]
        );
    }
    let taints = node["spec"]["taints"].to_string();
    ensure!(
        !taints.contains("pinfold.io/"),
        "the Node still has the taints {taints}"
    );
    Ok(())
}

/// The removal gives all CPUs back under running pods, and leaves no object, label, claim or partition.
pub(super) async fn uninstall(site: &Site<'_>) -> Result<Verdict> {
    let cluster = site.cluster;
    let Some(folder) = &cluster.settings.install else {
        return Ok(Verdict::Skipped(
            "PINFOLD_E2E_INSTALL is not set: the suite removes only an installation of the suite"
                .to_owned(),
        ));
    };
    let mut pods = Vec::new();
    for (at, node) in cluster.nodes.iter().enumerate() {
        let there = on_node(site, node);
        if there.lacks(1).await?.is_some() {
            continue;
        }
        let name = format!("train-{at}");
        let status = there.status().await?;
        there.start(&there.training_pod(&name, 1)).await?;
        there.pinned(&name, "main", 1).await?;
        pods.push((there, name, status.shared.union(&status.exclusive)));
    }
    let release = documents("deploy/uninstall.yaml")?;
    let release = release.first().context("deploy/uninstall.yaml is empty")?;
    patch(cluster, release.clone()).await?;
    rolled_out(cluster).await?;
    for (there, name, cpus) in &pods {
        there.reaches(name, cpus).await?;
        let left = partitions(there).await?;
        ensure!(
            left.is_empty(),
            "node {} still has partitions: {left}",
            there.node
        );
    }
    for node in &cluster.nodes {
        let node = cluster.existing("v1", "Node", None, node).await?;
        is_clean(&node).with_context(|| format!("node {}", name_of(&node)))?;
    }
    let managed = ListParams::default().labels("app.kubernetes.io/managed-by=pinfold");
    let claims = cluster
        .list("coordination.k8s.io/v1", "Lease", None, &managed)
        .await?;
    ensure!(claims.is_empty(), "{} claims are left", claims.len());
    let objects = objects(cluster, folder)?;
    for object in objects.iter().rev() {
        let namespace = object["metadata"]["namespace"].as_str();
        let (version, kind) = (text(&object["apiVersion"]), text(&object["kind"]));
        cluster
            .delete(version, kind, namespace, name_of(object))
            .await?;
    }
    nothing_left(cluster).await?;
    let (objects, pods) = (objects.len(), pods.len());
    Ok(Verdict::Passed(format!(
        "{objects} objects removed, {pods} running pods got all CPUs"
    )))
}

/// Requires that no object with the label of the agent is left.
async fn nothing_left(cluster: &Cluster) -> Result<()> {
    let ours = ListParams::default().labels(SELECTOR);
    for (version, kind) in KINDS {
        let left = cluster.list(version, kind, None, &ours).await?;
        let names: Vec<&str> = left.iter().map(name_of).collect();
        ensure!(
            names.is_empty(),
            "objects of kind {kind} are left: {}",
            names.join(", ")
        );
    }
    let version = "apiextensions.k8s.io/v1";
    let kind = "CustomResourceDefinition";
    if cluster
        .get(version, kind, None, DEFINITION)
        .await?
        .is_some()
    {
        bail!("the definition {DEFINITION} is left");
    }
    Ok(())
}
