//! `pinfold plan` and `pinfold explain`: what the agent would do, and why.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::Args;
use serde::Serialize;

use super::Format;
use crate::agent::config::{Config, Overrides};
use crate::agent::{environment, read_pods, reserved};
use crate::cpu::{Cost, CpuSet, Placer, Topology};
use crate::host::topology;
use crate::pin::Ledger;
use crate::pin::decide::{Inputs, decide};
use crate::pod::{ContainerKind, Entitlement, Pod, Qos, Role, ThreadEnvironment};

/// Show what the agent would do with these pods on this or that machine. Nothing is changed.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  pinfold plan --pods job.yaml                       on this machine, all of it free
  pinfold plan --pods job.yaml --root ./machine      on the machine whose sys/ was copied to ./machine
  pinfold plan --pods ps.yaml --pods ./workers -o json")]
pub(super) struct Plan {
    #[command(flatten)]
    input: Input,
    /// Form of the output.
    #[arg(short, long, value_enum, value_name = "FORM", default_value_t)]
    output: Format,
}

/// Explain a pod: what it is owed and why, which CPUs, which thread counts. Nothing is changed.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  pinfold explain worker-0 --pods job.yaml
  pinfold explain train/worker-0 --pods ./pods --root ./machine")]
pub(super) struct Explain {
    /// The pod, as NAME or NAMESPACE/NAME.
    pod: String,
    #[command(flatten)]
    input: Input,
    /// Form of the output.
    #[arg(short, long, value_enum, value_name = "FORM", default_value_t)]
    output: Format,
}

#[derive(Debug, Args)]
struct Input {
    /// Manifest file or folder of them (YAML or JSON); may be repeated; pods are served in this order.
    #[arg(long, value_name = "FILE", required = true)]
    pods: Vec<PathBuf>,
    /// Folder that holds the machine's sys/.
    #[arg(long, value_name = "DIR", default_value = "/", env = "PINFOLD_ROOT")]
    root: PathBuf,
    /// CPUs that no container is given, like 0-1,32 [default: the core of the lowest CPU]
    #[arg(long, value_name = "LIST", env = "PINFOLD_RESERVED")]
    reserved: Option<CpuSet>,
    /// Configuration file, for its policy and threads.
    #[arg(long, value_name = "FILE", env = "PINFOLD_CONFIG")]
    config: Option<PathBuf>,
}

/// What would be done.
#[derive(Debug, Serialize)]
struct Planned {
    reserved: CpuSet,
    shared: CpuSet,
    containers: Vec<PlannedContainer>,
}

#[derive(Debug, Serialize)]
struct PlannedContainer {
    namespace: String,
    pod: String,
    container: String,
    kind: ContainerKind,
    role: Role,
    evidence: String,
    qos: Qos,
    entitlement: Entitlement,
    /// The CPUs it would run on: its own, or the shared ones.
    cpus: CpuSet,
    exclusive: bool,
    /// NUMA nodes of those CPUs; null where the machine doesn't tell.
    mems: Option<CpuSet>,
    cost: Option<Cost>,
    env: BTreeMap<String, String>,
    threads: ThreadEnvironment,
    /// Why it has less than it is owed.
    note: Option<String>,
}

// === impl Input ===

impl Input {
    fn plan(&self) -> anyhow::Result<Planned> {
        let config = Config::load(Overrides { config: self.config.clone(), ..Overrides::default() })?;
        let topology = topology::read(&self.root)?;
        let reserved = reserved(self.reserved.as_ref().or(config.reserved.as_ref()), &topology)?;
        let mut pods = Vec::new();
        for path in &self.pods {
            pods.extend(read_pods(path)?);
        }
        Ok(planned(&pods, &topology, reserved, &config))
    }
}

fn planned(pods: &[Pod], topology: &Topology, reserved: CpuSet, config: &Config) -> Planned {
    let placer = Placer::new(topology);
    let inputs =
        Inputs { topology, placer: &placer, reserved: &reserved, policy: &config.policy, pods, here: None };
    let decisions = decide(&inputs, &Ledger::default());
    let shared = decisions.desired.shared();
    let mut containers = Vec::new();
    for decision in decisions.containers {
        let Some(pod) = pods.get(decision.pod) else { continue };
        let Some(container) = pod.containers.get(decision.container) else { continue };
        let own = decision.cpus.as_ref();
        let policies = (&config.policy, &config.threads);
        let threads = environment(pod, decision.container, own, &shared, topology, policies);
        let cpus = own.unwrap_or(&shared).clone();
        containers.push(PlannedContainer {
            namespace: pod.namespace.clone(),
            pod: pod.name.clone(),
            container: container.name.clone(),
            kind: container.kind,
            role: decision.recognition.role,
            evidence: decision.recognition.evidence,
            qos: decision.qos,
            exclusive: own.is_some(),
            cost: own.map(|own| placer.cost(own)),
            entitlement: decision.entitlement,
            mems: topology.numa_of(&cpus),
            cpus,
            env: threads.variables.clone(),
            threads,
            note: decision.note,
        });
    }
    Planned { reserved, shared, containers }
}

// === impl Plan ===

impl Plan {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let planned = self.input.plan()?;
        match self.output {
            Format::Json => super::json(&planned)?,
            Format::Text => super::emit(&in_table(&planned))?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn in_table(planned: &Planned) -> String {
    let mut table = super::table(&["POD", "CONTAINER", "ROLE", "QOS", "CPUS", "NUMA", "THREADS", "WHY"]);
    for container in &planned.containers {
        let cpus = if container.exclusive {
            container.cpus.to_string()
        } else {
            format!("shared {}", container.cpus)
        };
        let threads = container.threads.threads.map_or_else(|| "-".to_owned(), |threads| threads.to_string());
        table.add_row([
            format!("{}/{}", container.namespace, container.pod),
            container.container.clone(),
            container.role.to_string(),
            container.qos.to_string(),
            cpus,
            container.mems.as_ref().map_or_else(|| "-".to_owned(), CpuSet::to_string),
            threads,
            container.note.clone().unwrap_or_else(|| container.entitlement.reason().to_owned()),
        ]);
    }
    format!("{table}\nreserved {}, shared {}\n", planned.reserved, planned.shared)
}

// === impl Explain ===

impl Explain {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let mut planned = self.input.plan()?;
        let names: Vec<String> =
            planned.containers.iter().map(|one| format!("{}/{}", one.namespace, one.pod)).collect();
        planned
            .containers
            .retain(|one| self.pod == one.pod || self.pod == format!("{}/{}", one.namespace, one.pod));
        let first = planned.containers.first().with_context(|| {
            let mut names = names;
            names.dedup();
            format!("no pod {} in these manifests; there are: {}", self.pod, names.join(", "))
        })?;
        let same = planned.containers.iter().all(|one| one.namespace == first.namespace);
        anyhow::ensure!(same, "there are several pods {}: write NAMESPACE/NAME", self.pod);
        match self.output {
            Format::Json => super::json(&planned.containers)?,
            Format::Text => super::emit(&in_words(&planned))?,
        }
        Ok(ExitCode::SUCCESS)
    }
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
                "  CPUs     {}, its own: {} NUMA node(s), {} socket(s), {} LLC(s), {} core(s) shared with others",
                one.cpus, cost.numa, cost.sockets, cost.llcs, cost.strangers
            ),
            (None, Some(note)) => format!("  CPUs     {}, shared: {note}", one.cpus),
            (None, None) => format!("  CPUs     {}, shared", one.cpus),
        });
        lines.push(format!("  threads  {}", one.threads.reason));
        for (name, value) in &one.env {
            lines.push(format!("           {name}={value}"));
        }
        if !one.threads.kept.is_empty() {
            lines.push(format!("           left as the pod has them: {}", one.threads.kept.join(", ")));
        }
    }
    lines.join("\n")
}
