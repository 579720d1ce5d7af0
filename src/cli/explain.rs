//! `pinfold explain`: a pod's entitlement, CPUs and threads with the reasons, from a manifest or from the agent on this node.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use serde_json::Value;

use super::Format;
use super::local_agent::local_agent;
use super::plan::{Input, Planned, PlannedContainer};
use crate::agent::config::Overrides;
use crate::client::container_report;

/// The time limit of the request; a healthy agent answers sooner.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Explain a pod: the entitlement and the reason, the CPUs, the thread counts, the variables. The command changes nothing.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  pinfold explain worker-0                    explain a pod of this node, from the agent's status
  pinfold explain worker-0 --pods job.yaml    explain a manifest before the pod runs
  pinfold explain train/worker-0 --pods ./pods --root-dir ./machine")]
pub(super) struct Explain {
    /// The pod, as NAME or NAMESPACE/NAME.
    pod: String,
    /// Manifest file or folder of manifests (YAML or JSON); may be repeated [default: ask the agent of this node]
    #[arg(long, value_name = "FILE")]
    pods: Vec<PathBuf>,
    /// Address of the agent [default: the address in the configuration]
    #[arg(long, value_name = "ADDRESS", env = "PINFOLD_LISTEN")]
    agent: Option<std::net::SocketAddr>,
    #[command(flatten)]
    input: Input,
    /// Form of the output.
    #[arg(short, long, value_enum, value_name = "FORM", default_value_t)]
    output: Format,
}

// === impl Explain ===

impl Explain {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        if !self.pods.is_empty() {
            return self.explain_manifests();
        }
        anyhow::ensure!(
            !self.input.live && self.input.moves.is_none(),
            "--live and --moves need manifests: name the manifests with --pods, or remove both options to ask the agent of \
             this node"
        );
        let containers = self.reported_containers()?;
        match self.output {
            Format::Json => super::json(&containers)?,
            Format::Text => super::emit(&container_report::describe(&containers)?)?,
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
            Format::Json => super::json(&planned.containers)?,
            Format::Text => super::emit(&describe(&planned))?,
        }
        Ok(ExitCode::SUCCESS)
    }

    /// The pod's containers, as the agent reports the containers in `/status`.
    ///
    /// # Errors
    /// No agent answers; the server is no agent; no pod or more than one pod has the name.
    fn reported_containers(&self) -> anyhow::Result<Vec<Value>> {
        let overrides = Overrides {
            config: self.input.config.clone(),
            ..Overrides::default()
        };
        let endpoint = local_agent(self.agent, overrides)?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        let runtime = runtime.context("can't start the runtime for the request")?;
        let request = runtime
            .block_on(async { tokio::time::timeout(TIMEOUT, endpoint.get(&["/status"])).await });
        let bodies = request
            .unwrap_or_else(|_| Err(anyhow::anyhow!("no response within {} s", TIMEOUT.as_secs())))
            .with_context(|| {
                format!(
                    "can't read {endpoint}/status: start the agent (pinfold run), give the agent's address with --agent, or \
                     explain a manifest with --pods"
                )
            })?;
        let status: Value = serde_json::from_slice(&bodies.concat()).with_context(|| {
            format!(
                "{endpoint}/status does not return a Pinfold status: give the agent's address with --agent"
            )
        })?;
        let containers = status.get("containers").and_then(Value::as_array).cloned();
        let containers = containers.with_context(|| {
            format!("{endpoint}/status lists no containers: give the address of a Pinfold agent with --agent")
        })?;
        let text = |container: &Value, key: &str| {
            let text = container.get(key).and_then(Value::as_str);
            text.unwrap_or_default().to_owned()
        };
        let name = |container: &Value| (text(container, "namespace"), text(container, "pod"));
        select(&self.pod, containers, name, "on this node")
    }
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
            format!(
                "no pod {wanted} {location}; the pods are: {}",
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
fn describe(planned: &Planned) -> String {
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
        lines.push(format!("  entitled {}", container.entitlement.reason()));
        let cpus = &container.cpus;
        lines.push(match (&container.cost, &container.note) {
            (Some(cost), _) => {
                let cost = super::place::in_words(*cost);
                format!("  CPUs     {cpus}, exclusive: {cost}")
            }
            (None, Some(note)) => format!("  CPUs     {cpus}, shared: {note}"),
            (None, None) => format!("  CPUs     {cpus}, shared"),
        });
        lines.push(format!("  threads  {}", container.threads.reason));
        for (name, value) in &container.env {
            lines.push(format!("           {name}={value}"));
        }
        if !container.threads.kept.is_empty() {
            let kept = container.threads.kept.join(", ");
            lines.push(format!("           set by the pod, unchanged: {kept}"));
        }
    }
    lines.join("\n")
}
