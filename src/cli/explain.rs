//! `pinfold explain`: what a pod is owed and why, by its manifest or by the agent that runs here.

mod running;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::Args;

use super::Format;
use super::plan::{Input, Planned, PlannedContainer};

/// Explain a pod: what it is owed and why, which CPUs, which thread counts, which variables. Nothing is changed.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  pinfold explain worker-0                                     a pod of this node, as the agent here knows it
  pinfold explain worker-0 --pods job.yaml                     a manifest, before it runs
  pinfold explain train/worker-0 --pods ./pods --root ./machine")]
pub(super) struct Explain {
    /// The pod, as NAME or NAMESPACE/NAME.
    pod: String,
    /// Manifest file or folder of them (YAML or JSON); may be repeated [default: the agent of this node is asked]
    #[arg(long, value_name = "FILE")]
    pods: Vec<PathBuf>,
    /// Where that agent listens [default: where the configuration says]
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
            return self.of_manifests();
        }
        anyhow::ensure!(
            !self.input.live && self.input.moves.is_none(),
            "--live and --moves are about manifests: name them with --pods, or leave both out to ask the agent of this node"
        );
        let pod = running::pod(self.agent, self.input.config.clone(), &self.pod)?;
        match self.output {
            Format::Json => super::json(&pod)?,
            Format::Text => super::emit(&running::in_words(&pod)?)?,
        }
        Ok(ExitCode::SUCCESS)
    }

    fn of_manifests(&self) -> anyhow::Result<ExitCode> {
        let mut planned = self.input.plan(&self.pods)?;
        let name = |one: &PlannedContainer| (one.namespace.clone(), one.pod.clone());
        planned.containers = only(&self.pod, planned.containers, name, "in these manifests")?;
        match self.output {
            Format::Json => super::json(&planned.containers)?,
            Format::Text => super::emit(&in_words(&planned))?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// The containers of the one pod that is meant.
fn only<T>(
    wanted: &str,
    mut containers: Vec<T>,
    name: impl Fn(&T) -> (String, String),
    place: &str,
) -> anyhow::Result<Vec<T>> {
    let whole = |one: &T| {
        let (namespace, pod) = name(one);
        format!("{namespace}/{pod}")
    };
    let mut names: Vec<String> = containers.iter().map(whole).collect();
    names.dedup();
    containers.retain(|one| name(one).1 == wanted || whole(one) == wanted);
    let first = containers.first().map(&whole);
    let first = first.with_context(|| {
        if names.is_empty() {
            format!("no pod {wanted} {place}: there is none at all")
        } else {
            format!("no pod {wanted} {place}; there are: {}", names.join(", "))
        }
    })?;
    let same = containers.iter().all(|one| whole(one) == first);
    anyhow::ensure!(
        same,
        "there are several pods {wanted}: write NAMESPACE/NAME"
    );
    Ok(containers)
}

fn in_words(planned: &Planned) -> String {
    let mut lines = Vec::new();
    for (index, one) in planned.containers.iter().enumerate() {
        if index == 0 {
            lines.push(format!(
                "Pod {}/{} is {}. Role {}: {}.",
                one.namespace, one.pod, one.qos, one.role, one.evidence
            ));
        }
        lines.push(String::new());
        lines.push(format!("Container {}", one.container));
        lines.push(format!("  owed     {}", one.entitlement.reason()));
        lines.push(match (&one.cost, &one.note) {
            (Some(cost), _) => format!(
                "  CPUs     {}, its own: {}",
                one.cpus,
                super::place::in_words(*cost)
            ),
            (None, Some(note)) => format!("  CPUs     {}, shared: {note}", one.cpus),
            (None, None) => format!("  CPUs     {}, shared", one.cpus),
        });
        lines.push(format!("  threads  {}", one.threads.reason));
        for (name, value) in &one.env {
            lines.push(format!("           {name}={value}"));
        }
        if !one.threads.kept.is_empty() {
            lines.push(format!(
                "           left as the pod has them: {}",
                one.threads.kept.join(", ")
            ));
        }
    }
    lines.join("\n")
}
