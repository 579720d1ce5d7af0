//! `pinfold explain`: a pod's entitlement, CPUs and threads with the reasons, from a manifest or from the agent on this node.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::Args;
use serde_json::Value;

use super::OutputFormat;
#[cfg(feature = "portforward")]
use super::agents::{ClusterAccess, object_name};
use super::local_agent::local_agent;
use super::plan::{MachineArgs, Planned, PlannedContainer};
use crate::agent::config::{Overrides, address};
use crate::client::{Endpoint, container_report, full_status};
use crate::pod::Entitlement;

/// The examples in the help.
const EXAMPLES: &str = if cfg!(feature = "portforward") {
    "Examples:
  pinfold explain worker-0                    explain a pod of this node, from the agent's status
  pinfold explain worker-0 --pods job.yaml    explain a manifest before the pod runs
  pinfold explain train/worker-0 --pods ./pods --root-dir ./machine
  pinfold explain -n train worker-0           explain a pod of the cluster, from its node's agent
  kubectl pinfold explain -n train worker-0   the same, if the program is named kubectl-pinfold"
} else {
    "Examples:
  pinfold explain worker-0                    explain a pod of this node, from the agent's status
  pinfold explain worker-0 --pods job.yaml    explain a manifest before the pod runs
  pinfold explain train/worker-0 --pods ./pods --root-dir ./machine"
};

/// How many pods an error lists.
const MOST_NAMES: usize = 20;

/// Explain a pod, without changing anything: its entitlement with the reason, its CPUs, thread counts and variables.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Explain {
    /// The pod, as NAME or NAMESPACE/NAME.
    pod: String,
    /// Manifest file, folder of manifests (YAML or JSON) or - for the standard input: Pods, or objects that create pods, such as
    /// Jobs, Deployments, TFJobs and JobSets; may be repeated [default: ask the agent of this node]
    #[arg(long, value_name = "FILE")]
    pods: Vec<PathBuf>,
    /// Address of the agent [default: the address in the configuration]
    #[arg(long, value_name = "ADDRESS", env = "PINFOLD_LISTEN", value_parser = address)]
    agent: Option<std::net::SocketAddr>,
    /// Namespace of a pod in the cluster; implies --cluster [default: the namespace of the context]
    #[cfg(feature = "portforward")]
    #[arg(short, long, value_name = "NAMESPACE", value_parser = object_name, conflicts_with = "pods")]
    namespace: Option<String>,
    #[cfg(feature = "portforward")]
    #[command(flatten)]
    access: ClusterAccess,
    #[command(flatten)]
    input: MachineArgs,
    /// Output format.
    #[arg(short, long, value_enum, value_name = "FORM", default_value_t)]
    output: OutputFormat,
}

// === impl Explain ===

impl Explain {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        if !self.pods.is_empty() {
            #[cfg(feature = "portforward")]
            self.access.args.is_wanted(true)?;
            return self.explain_manifests();
        }
        anyhow::ensure!(
            !self.input.live && self.input.moves.is_none(),
            "--live and --moves need manifests: name the manifests with --pods, or remove both options to ask the agent of \
             this node"
        );
        let containers = self.reported_containers()?;
        match self.output {
            OutputFormat::Text => super::emit(container_report::describe(&containers)?)?,
            form => form.print(&containers)?,
        }
        Ok(ExitCode::SUCCESS)
    }

    fn explain_manifests(&self) -> anyhow::Result<ExitCode> {
        let mut planned = self.input.plan(&self.pods)?;
        let name = |container: &PlannedContainer| {
            let PlannedContainer { namespace, pod, .. } = container;
            (namespace.clone(), pod.clone())
        };
        planned.containers = select(&self.pod, planned.containers, name, "in these manifests")?;
        match self.output {
            OutputFormat::Text => super::emit(describe(&planned))?,
            form => form.print(&planned.containers)?,
        }
        Ok(ExitCode::SUCCESS)
    }

    /// The pod's containers, as an agent reports them in `/status`. They stay documents, because
    /// `-o json` passes on whatever an agent of another version sends.
    ///
    /// # Errors
    /// No agent answers; the server is no agent; no pod or more than one pod has the name.
    fn reported_containers(&self) -> anyhow::Result<Vec<Value>> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        let runtime = runtime.context("can't start the runtime for the request")?;
        runtime.block_on(async {
            #[cfg(feature = "portforward")]
            if self.is_in_cluster()? {
                return self.cluster_containers().await;
            }
            let overrides = Overrides {
                config: self.input.config.clone(),
                ..Overrides::default()
            };
            let endpoint = local_agent(self.agent, overrides)?;
            let remedy = "start the agent (pinfold run), give the agent's address with --agent, or explain a manifest with \
                          --pods";
            let containers = containers(&endpoint, remedy).await?;
            select(&self.pod, containers, full_name, "on this node")
        })
    }

    #[cfg(feature = "portforward")]
    fn is_in_cluster(&self) -> anyhow::Result<bool> {
        let is_named = self.namespace.is_some();
        let elsewhere = self.agent.is_some() && !self.access.args.cluster && !is_named;
        Ok(is_named || self.access.args.is_wanted(elsewhere)?)
    }

    /// The pod's containers, as the agent of its node reports them.
    #[cfg(feature = "portforward")]
    async fn cluster_containers(&self) -> anyhow::Result<Vec<Value>> {
        let cluster = self.access.connect().await?;
        let (namespace, pod) = match (self.pod.split_once('/'), &self.namespace) {
            (Some((namespace, pod)), None) => (namespace, pod),
            (Some(_), Some(_)) => anyhow::bail!(
                "the pod {} has a namespace, and -n names a namespace: remove either",
                self.pod
            ),
            (None, Some(namespace)) => (namespace.as_str(), self.pod.as_str()),
            (None, None) => (cluster.namespace.as_str(), self.pod.as_str()),
        };
        for name in [namespace, pod] {
            object_name(name).map_err(|remedy| {
                anyhow::anyhow!("{name:?} is no name of a pod or namespace: {remedy}")
            })?;
        }
        let target = cluster.target_of(namespace, pod).await?;
        let containers = containers(&target.endpoint, "read the log of the agent's pod").await?;
        let location = format!("on the node {}", target.name);
        select(
            &format!("{namespace}/{pod}"),
            containers,
            full_name,
            &location,
        )
    }
}

/// The containers in the status of an agent. The remedy is for an agent that does not respond.
///
/// # Errors
/// No response, or the response is no status of an agent.
async fn containers(endpoint: &Endpoint, remedy: &str) -> anyhow::Result<Vec<Value>> {
    let body = full_status::request(endpoint)
        .await
        .map_err(|error| anyhow::anyhow!("can't read {endpoint}/status: {error:#}; {remedy}"))?;
    let status: Value = serde_json::from_slice(&body).map_err(|_| {
        anyhow::anyhow!(
            "{endpoint}/status does not return a Pinfold status: give the agent's address with --agent"
        )
    })?;
    let containers = status.get("containers").and_then(Value::as_array).cloned();
    containers.with_context(|| {
        format!(
            "{endpoint}/status lists no containers: give the address of a Pinfold agent with --agent"
        )
    })
}

/// The namespace and the pod's name of a container in the status.
fn full_name(container: &Value) -> (String, String) {
    let text = |key: &str| {
        let text = container.get(key).and_then(Value::as_str);
        text.unwrap_or_default().to_owned()
    };
    (text("namespace"), text("pod"))
}

/// Selects the containers of the pod with the wanted name, which may contain the namespace.
fn select<T>(
    wanted: &str,
    mut containers: Vec<T>,
    name: impl Fn(&T) -> (String, String),
    location: &str,
) -> anyhow::Result<Vec<T>> {
    let full_name = |container: &T| {
        let (namespace, pod) = name(container);
        format!("{namespace}/{pod}")
    };
    let mut names: Vec<String> = containers.iter().map(full_name).collect();
    names.dedup();
    containers.retain(|container| name(container).1 == wanted || full_name(container) == wanted);
    let first = containers.first().map(full_name);
    let first = first.with_context(|| {
        if names.is_empty() {
            format!("no pod {wanted} {location}: the list of pods is empty")
        } else {
            let rest = names.len().saturating_sub(MOST_NAMES);
            names.truncate(MOST_NAMES);
            let rest = match rest {
                0 => String::new(),
                rest => format!(", and {rest} more"),
            };
            format!(
                "no pod {wanted} {location}; the pods are: {}{rest}",
                names.join(", ")
            )
        }
    })?;
    anyhow::ensure!(
        containers
            .iter()
            .all(|container| full_name(container) == first),
        "several pods have the name {wanted}: write NAMESPACE/NAME"
    );
    Ok(containers)
}

/// Puts the planned containers of a pod into words.
pub(super) fn describe(planned: &Planned) -> Vec<String> {
    let mut lines = Vec::new();
    for (index, container) in planned.containers.iter().enumerate() {
        if index == 0 {
            let pod = (container.namespace.as_str(), container.pod.as_str());
            lines.push(container_report::pod_heading(
                pod,
                &container.qos,
                &container.role,
                &container.evidence,
            ));
        }
        lines.push(String::new());
        lines.push(format!("Container {}", container.container));
        lines.push(container_report::entitlement_line(
            container.entitlement.cpus(),
            matches!(container.entitlement, Entitlement::Inherit { .. }),
            container.entitlement.reason(),
        ));
        let cpus = &container.cpus;
        lines.push(match (&container.cost, &container.note) {
            (Some(cost), _) => {
                let cost = super::place::in_words(*cost);
                format!("  CPUs     {cpus}, exclusive: {cost}")
            }
            (None, Some(note)) => format!("  CPUs     {cpus}, shared: {note}"),
            (None, None) => format!("  CPUs     {cpus}, shared"),
        });
        if let (Some(_), Some(note)) = (&container.cost, &container.note) {
            // The remarks name annotations that are ignored, for example.
            lines.push(format!("           {note}"));
        }
        let bindings = container.bindings.iter();
        lines.extend(bindings.map(|advice| format!("           {advice}")));
        lines.extend(container.mems.as_ref().map(container_report::memory));
        lines.push(format!("  threads  {}", container.threads.reason));
        for (name, value) in &container.env {
            lines.push(format!("           {name}={value}"));
        }
        if !container.threads.kept.is_empty() {
            let kept = container.threads.kept.join(", ");
            lines.push(format!("           set by the pod, unchanged: {kept}"));
        }
        lines.extend(container_report::set_by_command(
            &container.threads.by_command,
        ));
        if let Some(caution) = &container.threads.caution {
            lines.push(format!("           {caution}"));
        }
        if let Some(ranks) = &container.ranks {
            let variables = ranks.variables.iter();
            lines.extend(container_report::ranks(&ranks.reason, variables));
        }
    }
    lines
}
