//! [`CaseArgs`]: a plan and a case, from a file or from the cluster.

use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use clap::Args;

use super::files;
use super::live::{LiveArgs, LiveCluster, Remains};
use crate::experiment::{AMOUNTS, TrainingJob, check};
use crate::scene::{Document, Node, ScenePlan, Severity, Slots, slots};

/// The choice of a plan and a case.
#[derive(Debug, Args)]
pub(super) struct CaseArgs {
    /// File with a ScenePlan (YAML or JSON); - is the standard input [default with --live: the cluster's plan]
    #[arg(value_name = "FILE", required_unless_present = "live")]
    file: Option<PathBuf>,
    #[command(flatten)]
    live: LiveArgs,
    /// The plan's name, if the file or the cluster has several plans.
    #[arg(long, value_name = "NAME")]
    plan: Option<String>,
    /// The scene [default: the one that the job's file names, else the plan's active scene]
    #[arg(long, value_name = "SCENE", requires = "case")]
    scene: Option<String>,
    /// The case [default: the one that the job's file names, else the plan's active case]
    #[arg(long, value_name = "CASE", requires = "scene")]
    case: Option<String>,
}

// === impl CaseArgs ===

impl CaseArgs {
    /// The chosen plan. An invalid one is refused with its first mistake.
    fn choose(&self, documents: &[Document], origin: &str) -> anyhow::Result<ScenePlan> {
        let names: Vec<&str> = documents.iter().map(Document::name).collect();
        let names = names.join(", ");
        let mut chosen = documents.iter().filter(|document| {
            self.plan
                .as_ref()
                .is_none_or(|name| document.name() == name)
        });
        let document = chosen.next().with_context(|| {
            format!(
                "{origin} has no plan {}: choose one of {names}",
                self.plan.as_deref().unwrap_or_default()
            )
        })?;
        ensure!(
            chosen.next().is_none(),
            "{origin} has several plans ({names}): choose one with --plan NAME"
        );
        // Too few nodes for another case do not matter for the chosen one.
        let wrong = check(std::slice::from_ref(document), None, AMOUNTS)
            .into_iter()
            .find(|one| one.severity == Severity::Error && one.place.path != "spec.nodes.names");
        if let Some(finding) = wrong {
            anyhow::bail!("{finding} (pinfold scene check prints all mistakes)");
        }
        document
            .plan
            .clone()
            .with_context(|| format!("{origin} holds no valid ScenePlan"))
    }

    /// The slots of the chosen case.
    pub(super) fn slots(&self, plan: &ScenePlan) -> anyhow::Result<Slots> {
        let (scene, case) = self.names(plan, &TrainingJob::default())?;
        Ok(slots(plan, &scene, &case)?)
    }

    /// The chosen scene and case: from the flags, or else the job, or else the plan's active case.
    pub(super) fn names(
        &self,
        plan: &ScenePlan,
        job: &TrainingJob,
    ) -> anyhow::Result<(String, String)> {
        let active = plan.spec.active.as_ref();
        let named = [
            (self.scene.as_ref(), self.case.as_ref()),
            (job.scene.as_ref(), job.case.as_ref()),
            (
                active.map(|active| &active.scene),
                active.map(|active| &active.case),
            ),
        ];
        match named
            .into_iter()
            .find(|(scene, case)| scene.is_some() || case.is_some())
        {
            Some((Some(scene), Some(case))) => Ok((scene.clone(), case.clone())),
            Some(_) => anyhow::bail!(
                "the job names only a scene or only a case: name both, or remove both for the active case"
            ),
            None => anyhow::bail!(
                "plan {} has no active case: choose one with --scene and --case",
                plan.metadata.name.as_deref().unwrap_or_default()
            ),
        }
    }

    /// Whether the plan's active case is meant, and the plan has none.
    pub(super) fn is_inactive(&self, plan: &ScenePlan) -> bool {
        self.scene.is_none() && plan.spec.active.is_none()
    }

    /// What remains in a cluster without a plan; `None` if a plan is named or exists.
    pub(super) fn left_without_plan(&self) -> anyhow::Result<Option<Remains>> {
        if self.file.is_some() || self.plan.is_some() {
            return Ok(None);
        }
        self.live.left_without_plan()
    }

    /// The chosen plan, and the cluster if queried.
    pub(super) fn with_cluster(
        &self,
        claims: bool,
    ) -> anyhow::Result<(ScenePlan, Option<LiveCluster>)> {
        let cluster = self.live.ask(self.file.is_none(), claims)?;
        let plan = match (&self.file, &cluster) {
            (Some(file), _) => {
                self.choose(&files::documents(file)?, &file.display().to_string())?
            }
            (None, Some(cluster)) => self.choose(
                &cluster.plans,
                &format!("the cluster at {}", cluster.origin),
            )?,
            (None, None) => {
                anyhow::bail!("name a file with a plan, or use --live for the cluster's plans")
            }
        };
        Ok((plan, cluster))
    }

    /// The nodes from a file, or from the cluster.
    pub(super) fn nodes(
        &self,
        file: Option<&Path>,
        cluster: Option<&LiveCluster>,
    ) -> anyhow::Result<Vec<Node>> {
        match (file, cluster) {
            (Some(file), _) => files::nodes(file),
            (None, cluster) => Ok(cluster
                .context("name a file with --nodes, or use --live")?
                .nodes
                .clone()),
        }
    }
}
