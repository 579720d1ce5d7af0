//! `pinfold scene run`: a whole experiment on a cluster.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, ensure};
use clap::{Args, ValueEnum};
use tokio_util::sync::CancellationToken;

use super::super::interrupt::{INTERRUPTED, cancel_on_signal};
use super::super::interval::interval;
use super::files;
use super::render::WorkloadKind;
use crate::cluster::agents::Agents;
use crate::cluster::connect::{Connection, connect_user};
use crate::cluster::patient::PatientApi;
use crate::cluster::{Api, scenes};
use crate::experiment::results::StepSource;
use crate::experiment::series::StepMetric;
use crate::experiment::statistics::{DesignOptions, USUAL_MARGIN, USUAL_REPEATS, Way};
use crate::experiment::{AMOUNTS, TrainingJob, check};
use crate::lab::{
    Conclusion, Lab, LabTools, Limits, Request, ResultsFolder, StepPattern, USUAL_PATTERN, begin,
    check_plan, extension,
};
use crate::promql::{Prometheus, PrometheusAccess};
use crate::scene::{Document, ScenePlan, Severity};
use crate::text::counted;
use crate::text::values::whole;

/// The longest times where the user names none, in seconds.
const USUAL_LIMITS: Limits = Limits {
    switch: 600,
    start: 600,
    run: 7200,
};

const USUAL_RETRIES: u32 = 2;

/// How long an answer may take.
const DEADLINE: Duration = Duration::from_secs(30);

/// How long requests are repeated while the API server is away.
const PATIENCE: Duration = Duration::from_secs(600);

/// What an experiment fixes before its first run, so that nothing of it can be named again.
const FIXED: [&str; 16] = [
    "file",
    "plan",
    "use_plan",
    "job",
    "job_namespace",
    "format",
    "scenes",
    "cases",
    "ways",
    "repeats",
    "seed",
    "extendable",
    "margin",
    "step_pattern",
    "step_metric",
    "out",
];

/// Run an experiment on a cluster: every scene and case of a plan, in several ways, several times.
///
/// The ways are the four combinations of shared or exclusive CPUs with the program's own thread counts or those that Pinfold computes. Each repeat runs
/// every scene, case and way once, in random order. For each run the command switches the case, creates the job's objects, waits for
/// the job's end, notes its steps and what it used, and deletes the objects. At the end the cluster is as before, and the folder has
/// the results. Ctrl-C ends the experiment and puts everything back; --resume continues it, also after a crash.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  pinfold scene run plan.yaml --job job.yaml --dry-run    check everything, and print what would be done
  pinfold scene run plan.yaml --job job.yaml              run all scenes and cases in four ways, six times
  pinfold scene run plan.yaml --job job.yaml --scenes 1 --cases 1,2 --ways usual,both --repeats 5
  pinfold scene run --use-plan ps-locality --job job.yaml use a plan of the cluster, and put it back at the end
  pinfold scene run --resume ps-locality-k3n8xw           continue an experiment
  pinfold scene run --abort ps-locality-k3n8xw            clean up after an experiment, and keep its results

Exit codes: 0 done, 1 done but some runs failed, 2 bad input or the experiment can't go on, 130 interrupted.")]
pub(super) struct SceneRunArgs {
    /// File with a ScenePlan (YAML or JSON); - is the standard input.
    #[arg(value_name = "FILE", required_unless_present_any = ["use_plan", "resume", "abort"])]
    file: Option<PathBuf>,
    /// The plan's name, if the file has several plans.
    #[arg(long, value_name = "NAME")]
    plan: Option<String>,
    /// Use this plan of the cluster instead of a file, and put its active case back at the end.
    #[arg(long, value_name = "NAME", conflicts_with_all = ["file", "plan"])]
    use_plan: Option<String>,
    /// File with the job's parameters, as for scene render; - is the standard input.
    #[arg(long, value_name = "FILE", required_unless_present_any = ["resume", "abort"])]
    job: Option<PathBuf>,
    /// The namespace of the job's objects. A missing one is created, and deleted at the end [default: the job's, else PLAN-ID]
    #[arg(long, value_name = "NAMESPACE")]
    job_namespace: Option<String>,
    /// The kind of the job's objects.
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t)]
    format: WorkloadKind,
    /// Only these scenes, separated by commas [default: all of the plan]
    #[arg(long, value_name = "SCENES", value_delimiter = ',')]
    scenes: Vec<String>,
    /// Only these cases, separated by commas [default: all of the scenes]
    #[arg(long, value_name = "CASES", value_delimiter = ',')]
    cases: Vec<String>,
    /// Only these ways, separated by commas.
    #[arg(long, value_enum, value_name = "WAYS", value_delimiter = ',', default_values_t = WayName::ALL)]
    ways: Vec<WayName>,
    /// The number of repeats; a verdict needs 5.
    #[arg(long, value_name = "NUMBER", default_value_t = USUAL_REPEATS as u32, value_parser = whole::<u32>(1..=1000))]
    repeats: u32,
    /// Seed of the order of the runs [default: random]
    #[arg(long, value_name = "NUMBER", value_parser = whole::<u64>(0..=u64::MAX))]
    seed: Option<u64>,
    /// Allow one extension by more repeats after a look at the results. All intervals are wider for it.
    #[arg(long)]
    extendable: bool,
    /// Differences up to this ratio, in either direction, count as no effect.
    #[arg(long, value_name = "RATIO", default_value_t = USUAL_MARGIN, value_parser = ratio)]
    margin: f64,
    #[command(flatten)]
    steps: StepArgs,
    /// How often a failed run is tried again [default: 2, so three attempts in all]
    #[arg(long, value_name = "NUMBER", value_parser = whole::<u32>(0..=100))]
    retries: Option<u32>,
    #[command(flatten)]
    limits: LimitArgs,
    /// The folder for the results [default: PLAN-ID]
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
    /// Check everything and print what would be done, without a change of the cluster.
    #[arg(long)]
    dry_run: bool,
    /// Continue the experiment of this folder.
    #[arg(long, value_name = "FOLDER", conflicts_with_all = ["abort", "dry_run"], conflicts_with_all = FIXED)]
    resume: Option<PathBuf>,
    /// With --resume: add this number of repeats to an extendable experiment.
    #[arg(long, value_name = "NUMBER", requires = "resume", value_parser = whole::<u32>(1..=1000))]
    extend: Option<u32>,
    /// Delete the objects of the experiment of this folder, and put the plan back. Its results stay.
    #[arg(long, value_name = "FOLDER", conflicts_with_all = ["dry_run"], conflicts_with_all = FIXED)]
    abort: Option<PathBuf>,
    /// Kubeconfig of the cluster [default: KUBECONFIG, ~/.kube/config, or the pod's service account]
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig [default: the current context]
    #[arg(long, value_name = "NAME")]
    context: Option<String>,
    /// Namespace of the agents.
    #[arg(long, value_name = "NAMESPACE", default_value = "pinfold", value_parser = super::super::agents::object_name)]
    agent_namespace: String,
}

/// Where steps and usage come from.
#[derive(Debug, Args)]
struct StepArgs {
    /// Regular expression that is searched in each line of the workers' logs; its group has the steps so far.
    #[arg(long, value_name = "REGEX", default_value = USUAL_PATTERN, hide_default_value = true)]
    step_pattern: StepPattern,
    /// A counter of steps with the labels namespace and pod, instead of the logs; needs --prometheus.
    #[arg(long, value_name = "METRIC", requires = "prometheus")]
    step_metric: Option<String>,
    /// URL of a Prometheus that scrapes the agents. Without one, the agents are asked through port-forwards.
    #[arg(long, value_name = "URL", env = "PINFOLD_PROMETHEUS")]
    prometheus: Option<String>,
    /// File with a bearer token for Prometheus.
    #[arg(long, value_name = "FILE", requires = "prometheus")]
    token_file: Option<PathBuf>,
    /// File with name:password for Prometheus.
    #[arg(
        long,
        value_name = "FILE",
        requires = "prometheus",
        conflicts_with = "token_file"
    )]
    user_file: Option<PathBuf>,
    /// File with the certificates (PEM) of the authorities that sign Prometheus' certificate.
    #[arg(long, value_name = "FILE", requires = "prometheus")]
    ca_file: Option<PathBuf>,
}

/// The longest times. With --resume and --abort, those that are given replace the experiment's.
#[derive(Debug, Args)]
struct LimitArgs {
    /// The longest time until nodes have the labels of a case, and until deleted pods are gone [default: 10m]
    #[arg(long, value_name = "DURATION", value_parser = interval)]
    switch_limit: Option<Duration>,
    /// The longest time from the creation of the objects until every task has begun [default: 10m]
    #[arg(long, value_name = "DURATION", value_parser = interval)]
    start_limit: Option<Duration>,
    /// The longest time of the job from then on [default: 2h]
    #[arg(long, value_name = "DURATION", value_parser = interval)]
    run_limit: Option<Duration>,
}

/// A way to run the job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum WayName {
    /// Shared CPUs, the program's own thread counts.
    Usual,
    /// Shared CPUs, thread counts that fit.
    Sized,
    /// Exclusive CPUs, the program's own thread counts.
    Exclusive,
    /// Exclusive CPUs, thread counts that fit.
    Both,
}

/// Reads a ratio above 1.
fn ratio(text: &str) -> Result<f64, String> {
    let ratio = text
        .parse()
        .ok()
        .filter(|ratio: &f64| ratio.is_finite() && *ratio > 1.0);
    ratio.ok_or_else(|| "write a ratio above 1, for example 1.1 for effects of 10 %".to_owned())
}

/// A connection to the cluster for an experiment.
struct Access {
    connection: Connection,
    api: PatientApi,
}

// === impl WayName ===

impl WayName {
    const ALL: [Self; 4] = [Self::Usual, Self::Sized, Self::Exclusive, Self::Both];

    fn way(self) -> Way {
        Way {
            exclusive: matches!(self, Self::Exclusive | Self::Both),
            sized: matches!(self, Self::Sized | Self::Both),
        }
    }
}

impl std::fmt::Display for WayName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.way().name())
    }
}

// === impl SceneRunArgs ===

impl SceneRunArgs {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        super::super::run::runtime()?.block_on(self.run_async())
    }

    async fn run_async(self) -> anyhow::Result<ExitCode> {
        // Mistakes in the arguments and files come first, without a cluster.
        let job = self.job.as_deref().map(super::render::job).transpose()?;
        let plan = self
            .file
            .as_deref()
            .map(|file| self.plan_of_file(file))
            .transpose()?;
        let access = self.access().await?;
        if let Some(folder) = &self.abort {
            let folder_of_lab = ResultsFolder::open(folder)?;
            self.limits.overrule(&folder_of_lab, self.retries)?;
            let lab = self.lab(folder_of_lab, &access)?;
            lab.put_back().await?;
            super::super::emit([format!(
                "nothing of the experiment is left in the cluster; its results stay in {}",
                folder.display()
            )])?;
            return Ok(ExitCode::SUCCESS);
        }
        let folder = match &self.resume {
            Some(folder) => {
                let folder = ResultsFolder::open(folder)?;
                self.extend_by(&folder)?;
                self.limits.overrule(&folder, self.retries)?;
                folder
            }
            None => match self
                .new_folder(&access, plan, job.unwrap_or_default())
                .await?
            {
                Some(folder) => folder,
                None => return Ok(ExitCode::SUCCESS),
            },
        };
        let path = folder.path().to_owned();
        let mut lab = self.lab(folder, &access)?;
        conduct(&mut lab, &path).await
    }

    async fn access(&self) -> anyhow::Result<Access> {
        let environment = |name: &str| std::env::var(name).ok();
        let connection = connect_user(
            self.kubeconfig.as_deref(),
            self.context.as_deref(),
            environment,
        )
        .await?;
        let api = Api::new(connection.client.clone(), DEADLINE).naming(&connection.server);
        Ok(Access {
            api: PatientApi::new(api, PATIENCE),
            connection,
        })
    }

    fn lab(&self, folder: ResultsFolder, access: &Access) -> anyhow::Result<Lab> {
        let (_, settings) = folder.read()?;
        let prometheus = self.steps.prometheus()?;
        let client = access.connection.client.clone();
        let agents = Agents::new(access.api.api().clone(), client, &settings.agent_namespace);
        Lab::new(
            folder,
            LabTools {
                api: access.api.clone(),
                agents,
                prometheus,
                say: Box::new(super::super::output::progress),
            },
        )
    }

    /// Checks a new experiment, and makes its folder; `None` after a dry run.
    async fn new_folder(
        &self,
        access: &Access,
        plan: Option<ScenePlan>,
        mut job: TrainingJob,
    ) -> anyhow::Result<Option<ResultsFolder>> {
        let plan = match plan {
            Some(plan) => plan,
            None => self.plan_of_cluster(access).await?,
        };
        check_plan(&plan)?;
        job.namespace = self.job_namespace.clone().or(job.namespace);
        let mut ways: Vec<Way> = self.ways.iter().map(|way| way.way()).collect();
        ways.sort_unstable();
        ways.dedup();
        let request = Request {
            plan,
            use_plan: self.use_plan.is_some(),
            job,
            format: self.format.into(),
            scenes: self.scenes.clone(),
            cases: self.cases.clone(),
            ways,
            options: DesignOptions {
                repeats: usize::try_from(self.repeats)?,
                extendable: self.extendable,
                margin: self.margin,
            },
            seed: self.seed.unwrap_or_else(|| fastrand::u64(0..1_000_000)),
            steps: self.steps.source()?,
            agent_namespace: self.agent_namespace.clone(),
            retries: self.retries.unwrap_or(USUAL_RETRIES),
            limits: self.limits.limits(),
            has_prometheus: self.steps.prometheus.is_some(),
        };
        let client = access.connection.client.clone();
        let agents = Agents::new(access.api.api().clone(), client, &self.agent_namespace);
        let server = &access.connection.server;
        let prepared = begin(&access.api, &agents, server, request).await?;
        super::super::emit(prepared.preview)?;
        for warning in &prepared.warnings {
            super::super::warn(warning);
        }
        if self.dry_run {
            return Ok(None);
        }
        let usual = format!("{}-{}", prepared.experiment.plan, prepared.experiment.id);
        let path = self.out.clone().unwrap_or_else(|| PathBuf::from(usual));
        let folder = ResultsFolder::create(&path)?;
        folder.write(&prepared.experiment, &prepared.settings)?;
        super::super::emit([format!("results: {}", path.display())])?;
        Ok(Some(folder))
    }

    /// The plan of a file, without mistakes.
    fn plan_of_file(&self, file: &Path) -> anyhow::Result<ScenePlan> {
        let documents = files::documents(file)?;
        let is_wanted = |document: &&Document| {
            let mut named = self.plan.iter();
            named.all(|name| document.name() == name)
        };
        let mut chosen = documents.iter().filter(is_wanted);
        let shown = file.display();
        let document = chosen.next().with_context(|| {
            let name = self.plan.as_deref().unwrap_or_default();
            format!("{shown} has no plan {name}")
        })?;
        ensure!(
            chosen.next().is_none(),
            "{shown} has several plans: choose one with --plan NAME"
        );
        valid(document)
    }

    /// The plan of the cluster that --use-plan names.
    async fn plan_of_cluster(&self, access: &Access) -> anyhow::Result<ScenePlan> {
        let plans = scenes::plans(access.api.api()).await;
        let server = &access.connection.server;
        let plans = plans.with_context(|| format!("can't list the plans at {server}"))?;
        let documents = super::live::documents(plans)?;
        let name = self.use_plan.as_deref().unwrap_or_default();
        let mut named = documents.iter().filter(|document| document.name() == name);
        let document = named.next().with_context(|| {
            format!("{server} has no plan {name}: look at kubectl get sceneplans")
        })?;
        valid(document)
    }

    /// Adds the repeats of --extend to the experiment.
    fn extend_by(&self, folder: &ResultsFolder) -> anyhow::Result<()> {
        let Some(repeats) = self.extend else {
            return Ok(());
        };
        let (mut experiment, settings) = folder.read()?;
        let before = experiment.design.repeats();
        let last = experiment.order.last().map_or(0, |run| run.number);
        experiment.design = experiment.design.extend(usize::try_from(repeats)?)?;
        let added = extension(&experiment.design, experiment.seed, before, last);
        experiment.order.extend(added);
        folder.write(&experiment, &settings)
    }
}

/// The plan of a document without mistakes.
fn valid(document: &Document) -> anyhow::Result<ScenePlan> {
    let findings = check(std::slice::from_ref(document), None, AMOUNTS);
    // Too few names for a case that doesn't run do not matter, and those that run are checked with the cluster's nodes.
    let wrong = findings.iter().find(|finding| {
        finding.severity == Severity::Error && finding.place.path != "spec.nodes.names"
    });
    if let Some(finding) = wrong {
        anyhow::bail!("{finding} (pinfold scene check prints all mistakes)");
    }
    let plan = document.plan.clone();
    plan.with_context(|| format!("{} holds no valid ScenePlan", document.origin))
}

/// Carries the experiment out, and tells its end.
async fn conduct(lab: &mut Lab, folder: &Path) -> anyhow::Result<ExitCode> {
    let stop = CancellationToken::new();
    let listener = cancel_on_signal(stop.clone())?;
    // Whoever interrupts the cleaning as well wants an end at once.
    let second = tokio::spawn({
        let stop = stop.clone();
        async move {
            stop.cancelled().await;
            let again = CancellationToken::new();
            if cancel_on_signal(again.clone()).is_ok() {
                again.cancelled().await;
                std::process::exit(i32::from(INTERRUPTED));
            }
        }
    });
    let shown = folder.display();
    let stopped = |error: anyhow::Error| {
        anyhow::anyhow!(
            "{error:#}; pinfold scene run --resume {shown} continues the experiment, and --abort {shown} cleans up"
        )
    };
    let conclusion = lab.conduct(&stop).await.map_err(stopped)?;
    if let Conclusion::Done { .. } = conclusion {
        report(folder)?;
    }
    lab.put_back().await.map_err(stopped)?;
    listener.abort();
    second.abort();
    match conclusion {
        Conclusion::Done { failed } => {
            if failed == 0 {
                return Ok(ExitCode::SUCCESS);
            }
            super::super::complain(format_args!(
                "{} failed for good: the report names the reasons",
                counted(failed, "run")
            ));
            Ok(ExitCode::FAILURE)
        }
        Conclusion::WarmUpFailed { why } => anyhow::bail!(
            "the warm-up failed, and the other runs would, too: {why}; nothing is left in the cluster"
        ),
        Conclusion::Interrupted => {
            super::super::emit([format!(
                "everything is put back: pinfold scene run --resume {shown} continues"
            )])?;
            Ok(ExitCode::from(INTERRUPTED))
        }
    }
}

/// Writes the report into the folder, and prints the answers.
fn report(folder: &Path) -> anyhow::Result<()> {
    let (outcome, _) = super::results::read(folder)?;
    super::report::write_outcome(folder, &outcome)?;
    let caution = outcome.caution.iter().map(String::clone);
    let answers = outcome.answers.iter().map(|answer| answer.sentence.clone());
    let last = format!("report: {}", folder.join("report.html").display());
    super::super::emit(caution.chain(answers).chain([last]))
}

// === impl StepArgs ===

impl StepArgs {
    fn source(&self) -> anyhow::Result<StepSource> {
        let Some(name) = &self.step_metric else {
            return Ok(StepSource::Lines {
                pattern: self.step_pattern.to_string(),
            });
        };
        name.parse::<StepMetric>()
            .map_err(|remedy| anyhow::anyhow!("--step-metric {name:?}: {remedy}"))?;
        Ok(StepSource::Metric { name: name.clone() })
    }

    fn prometheus(&self) -> anyhow::Result<Option<Prometheus>> {
        let access = PrometheusAccess {
            token: self.token_file.as_deref(),
            user: self.user_file.as_deref(),
            authority: self.ca_file.as_deref(),
        };
        let made = self
            .prometheus
            .as_ref()
            .map(|url| Prometheus::new(url, access, DEADLINE));
        Ok(made.transpose()?)
    }
}

// === impl LimitArgs ===

impl LimitArgs {
    fn limits(&self) -> Limits {
        self.over(USUAL_LIMITS)
    }

    /// The given limits, and the others as they were.
    fn over(&self, before: Limits) -> Limits {
        let seconds =
            |given: Option<Duration>, before| given.map_or(before, |given| given.as_secs());
        Limits {
            switch: seconds(self.switch_limit, before.switch),
            start: seconds(self.start_limit, before.start),
            run: seconds(self.run_limit, before.run),
        }
    }

    /// Replaces limits and retries of an experiment by those that are given.
    fn overrule(&self, folder: &ResultsFolder, retries: Option<u32>) -> anyhow::Result<()> {
        let (experiment, mut settings) = folder.read()?;
        settings.limits = self.over(settings.limits);
        settings.retries = retries.unwrap_or(settings.retries);
        folder.write(&experiment, &settings)
    }
}
