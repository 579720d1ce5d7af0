//! Training jobs: rendered objects on the nodes that the plan chose, and the reclaim of parameter servers.

use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use crate::report::Verdict;
use crate::scene::{self, SCENE};
use crate::site::Site;

/// The number of the job's workers.
const WORKERS: usize = 2;

/// The output of the program `pinfold` with the cluster's kubeconfig.
async fn pinfold(site: &Site<'_>, arguments: &[&str]) -> Result<String> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pinfold"));
    command
        .args(arguments)
        .arg("--kubeconfig")
        .arg(&site.cluster.settings.kubeconfig)
        .env_remove("KUBECONFIG")
        .env_remove("NODE_NAME")
        .stdin(std::process::Stdio::null());
    let output = tokio::task::spawn_blocking(move || command.output())
        .await?
        .context("the program pinfold can't be started")?;
    let what = arguments.join(" ");
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!(
            "pinfold {what} ended with {}: {}",
            output.status,
            said.trim()
        );
    }
    Ok(String::from_utf8(output.stdout)?)
}

/// The plan of a job with a parameter server and workers on the node.
fn plan(site: &Site<'_>) -> Value {
    let mut plan = scene::plan(site, Some("1"), "force");
    let task = json!({"requests": {"cpu": "10m", "memory": "16Mi"}, "pin": false});
    plan["spec"]["roles"] = json!({"worker": task, "ps": task});
    plan["spec"]["scenes"][0]["groups"][0]["perNode"] = json!({"worker": WORKERS, "ps": 1});
    plan
}

/// Renders a job for the labelled node, applies the objects, and waits until all pods are scheduled.
async fn start(site: &Site<'_>) -> Result<()> {
    let plan = plan(site);
    scene::apply(site, &plan).await?;
    scene::labelled(site, Some("1")).await?;
    let job = json!({
        "name": "e2e", "image": site.cluster.settings.shell_image, "command": ["sleep", "5"],
        "roles": {"ps": {"command": ["sleep", "3600"]}}, "reclaim": {"after": "1s"},
    });
    let folder = tempfile::tempdir()?;
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (plan_file, job_file) = (path("plan.json"), path("job.json"));
    std::fs::write(&plan_file, plan.to_string())?;
    std::fs::write(&job_file, job.to_string())?;
    let mut arguments = vec!["scene", "render", &*plan_file, "--job", &*job_file];
    arguments.extend([
        "--scene",
        SCENE,
        "--case",
        "1",
        "--job-namespace",
        &*site.namespace,
    ]);
    arguments.extend(["-o", "json", "--live"]);
    arguments.extend(["--agent-namespace", &*site.cluster.settings.namespace]);
    let list: Value = serde_json::from_str(&pinfold(site, &arguments).await?)?;
    let objects = list["items"].as_array();
    for object in objects.context("pinfold scene render has printed no List")? {
        site.cluster.apply(object).await?;
    }
    site.cluster
        .wait(
            "the scheduler has placed all tasks on the node",
            async || {
                let pods = site.list("v1", "Pod").await?;
                ensure!(pods.len() == WORKERS + 1, "the job has {} pods", pods.len());
                let elsewhere = pods.iter().find(|pod| pod["spec"]["nodeName"] != site.node);
                if let Some(pod) = elsewhere {
                    bail!("{}: {}", pod["metadata"]["name"], pod["status"]);
                }
                Ok(())
            },
        )
        .await
}

/// The reason why a job can't run on the node.
async fn lacks(site: &Site<'_>) -> Result<Option<Verdict>> {
    if let Some(reason) = scene::lacks(site).await? {
        return Ok(Some(Verdict::Skipped(reason)));
    }
    let node = site.node().await?;
    let taints = &node["spec"]["taints"];
    Ok((!taints.is_null()).then(|| {
        Verdict::Skipped(format!(
            "the Node has taints, and a rendered job has no tolerations: {taints}"
        ))
    }))
}

/// Waits until all workers have succeeded.
async fn finished(site: &Site<'_>) -> Result<()> {
    site.cluster
        .wait("the workers have succeeded", async || {
            let jobs = site.list("batch/v1", "Job").await?;
            ensure!(!jobs.is_empty(), "the job has no workers");
            for job in &jobs {
                let complete = !job["status"]["completionTime"].is_null();
                ensure!(complete, "{}: {}", job["metadata"]["name"], job["status"]);
            }
            Ok(())
        })
        .await
}

/// The real scheduler places the tasks of a rendered job on the node with the slot.
pub(super) async fn render(site: &Site<'_>) -> Result<Verdict> {
    if let Some(skipped) = lacks(site).await? {
        return Ok(skipped);
    }
    start(site).await?;
    finished(site).await?;
    Ok(Verdict::Passed(format!(
        "{WORKERS} workers and 1 parameter server on the node"
    )))
}

/// After the end of a job, the reclaimer deletes the parameter server and keeps the workers.
pub(super) async fn reclaim(site: &Site<'_>) -> Result<Verdict> {
    if let Some(skipped) = lacks(site).await? {
        return Ok(skipped);
    }
    start(site).await?;
    let round = ["scene", "reclaim", "--job-namespace", &*site.namespace];
    pinfold(site, &round).await?;
    let servers = site.list("apps/v1", "Deployment").await?.len();
    let running = site.list("batch/v1", "Job").await?;
    let ended = running
        .iter()
        .all(|job| !job["status"]["completionTime"].is_null());
    ensure!(
        servers == 1 || ended,
        "a parameter server of a running job was deleted"
    );
    finished(site).await?;
    site.cluster
        .wait("the parameter server is deleted", async || {
            let said = pinfold(site, &round).await?;
            let left = site.list("apps/v1", "Deployment").await?.len();
            ensure!(left == 0, "{left} Deployments are left: {said}");
            Ok(())
        })
        .await?;
    let workers = site.list("batch/v1", "Job").await?.len();
    ensure!(workers > 0, "the reclaimer has deleted the workers");
    Ok(Verdict::Passed(format!(
        "1 parameter server deleted, {workers} Jobs kept"
    )))
}
