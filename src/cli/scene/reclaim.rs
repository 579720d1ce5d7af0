//! `pinfold scene reclaim`: deletes the parameter servers of jobs that have ended.

mod controller;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;
use serde_json::{Value, json};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use self::controller::{Choices, Controller};
use super::super::OutputFormat;
use super::super::api_failure::explained;
use super::super::interval::interval;
use crate::agent::config::address;
use crate::cluster::connect::{Connection, connect_user};
use crate::cluster::reclaim::{ReclaimRound, Reclaimer};
use crate::cluster::{Api, Failure};
use crate::scene::{ReclaimItem, ReclaimVerdict, Reclaimable};
use crate::text;

/// How long an answer may take.
const DEADLINE: Duration = Duration::from_secs(30);

/// Delete the parameter servers of jobs that have ended.
///
/// A job asks for this with the label pinfold.io/reclaim=ps, which pinfold scene render --reclaim sets. A job with a chief
/// has ended when the chief has succeeded. Without a chief, or with the annotation pinfold.io/success-policy=AllWorkers, it
/// has ended when every worker has succeeded.
///
/// After the wait of --after, the command deletes the Jobs that still run, and then the Deployments and Services of the
/// parameter servers. But if a chief or worker that must succeed has failed or is missing, it deletes nothing of the job. It
/// keeps no state, so several copies may run at the same time. TFJobs don't need it, because the training operator deletes
/// their pods.
///
/// With --watch, the command follows the objects, acts as soon as a job can be reclaimed, and writes Events on the Jobs. With
/// --plan-status, it also writes the status of the ScenePlans.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  pinfold scene reclaim --dry-run                     show deletions, and why other servers stay
  pinfold scene reclaim                               run a single round
  pinfold scene reclaim --watch --after 30s           run until a signal
  pinfold scene reclaim --watch --plan-status --listen 0.0.0.0:9471
                                                      as in deploy/components/reclaim
  pinfold scene reclaim --job-namespace train -o json

Exit codes: 0 done, 2 no answer from the API server, or an object could not be deleted.")]
pub(super) struct ReclaimArgs {
    /// Only jobs of this namespace.
    #[arg(long, value_name = "NAMESPACE")]
    job_namespace: Option<String>,
    /// Wait after the end of a job, at most 24h; a job's annotation pinfold.io/reclaim-after overrules it.
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = text::duration::read_seconds)]
    after: u32,
    /// Print what would be deleted, and delete nothing.
    #[arg(long)]
    dry_run: bool,
    /// Follow the objects until SIGTERM or SIGINT, and run a round whenever a job can be reclaimed.
    #[arg(long)]
    watch: bool,
    /// Time between two complete rounds of --watch without a change, 1s to 24h.
    #[arg(long, value_name = "DURATION", default_value = "10m", requires = "watch", value_parser = interval)]
    interval: Duration,
    /// Also write the status of the ScenePlans, from the claims in the namespace of this copy.
    #[arg(long, requires = "watch", conflicts_with = "dry_run")]
    plan_status: bool,
    /// A removed option, so that old arguments get an answer that says what to do.
    #[arg(long, hide = true)]
    leader_elect: bool,
    /// Address for /metrics, /healthz and /readyz, for example 0.0.0.0:9471.
    #[arg(long, value_name = "ADDRESS:PORT", requires = "watch", value_parser = address)]
    listen: Option<SocketAddr>,
    /// Kubeconfig of the cluster [default: KUBECONFIG, ~/.kube/config, or the pod's service account]
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Output format; with --watch, a line for each change, or an object for each round.
    #[arg(short, long, value_enum, value_name = "FORM", default_value_t)]
    output: OutputFormat,
}

// === impl ReclaimArgs ===

impl ReclaimArgs {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        if self.leader_elect {
            bail!(
                "--leader-elect no longer exists, because a second copy does no harm; leave the option out, and run one copy"
            );
        }
        let runtime = super::super::run::runtime()?;
        runtime.block_on(async {
            let environment = |key: &str| std::env::var(key).ok();
            let way = connect_user(self.kubeconfig.as_deref(), None, environment).await?;
            let api = Api::new(way.client.clone(), DEADLINE);
            let reclaimer = Reclaimer::new(
                api.clone(),
                self.job_namespace.clone(),
                self.after,
                self.dry_run,
            );
            if self.watch {
                self.watch(reclaimer, api, &way).await
            } else {
                self.once(&reclaimer, &way).await
            }
        })
    }

    async fn once(&self, reclaimer: &Reclaimer, way: &Connection) -> anyhow::Result<ExitCode> {
        let round = match reclaimer.once().await {
            Ok(round) => round,
            Err(failure) => return Err(failed_request(&failure, way)),
        };
        match self.output {
            OutputFormat::Text => {
                let mut lines: Vec<String> = round.jobs.iter().map(line).collect();
                lines.extend(deleted(&round, self.dry_run));
                if lines.is_empty() {
                    lines.push(
                        "no job with parameter servers has the label pinfold.io/reclaim=ps"
                            .to_owned(),
                    );
                }
                lines.extend(round.hints.iter().cloned());
                super::super::emit(lines)?;
            }
            form => form.print(&object(&round, self.dry_run))?,
        }
        if let Some((kind, namespace, name, failure)) = round.failed.first() {
            bail!(
                "can't delete {}; the first is {kind} {namespace}/{name}: {failure}; run the command again",
                text::counted(round.failed.len(), "object")
            );
        }
        if let Some((kind, namespace, name)) = round.changed.first() {
            bail!(
                "{}; the first is {kind} {namespace}/{name}, whose job is undecided; run the command again",
                kept(round.changed.len())
            );
        }
        Ok(ExitCode::SUCCESS)
    }

    async fn watch(
        &self,
        reclaimer: Reclaimer,
        api: Api,
        way: &Connection,
    ) -> anyhow::Result<ExitCode> {
        let stop = CancellationToken::new();
        let mut terminate = signal(SignalKind::terminate()).context("can't listen for SIGTERM")?;
        let ended = stop.clone();
        let signals = tokio::spawn(async move {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = tokio::signal::ctrl_c() => {}
            }
            ended.cancel();
        });
        let mut said: BTreeMap<String, String> = BTreeMap::new();
        let mut broken = Ok(());
        let choices = Choices {
            interval: self.interval,
            dry_run: self.dry_run,
            plan_status: self.plan_status,
            listen: self.listen,
        };
        let controller = Controller::start(&choices, reclaimer, api, &way.namespace, &stop).await?;
        controller
            .run(&stop, |round| {
                let done = self.tell(round, way, &mut said);
                if done.is_err() {
                    broken = done;
                    stop.cancel();
                }
            })
            .await;
        signals.abort();
        broken?;
        Ok(ExitCode::SUCCESS)
    }

    /// Each message is printed once, and again when it changes.
    fn tell(
        &self,
        round: Result<ReclaimRound, Failure>,
        way: &Connection,
        said: &mut BTreeMap<String, String>,
    ) -> anyhow::Result<()> {
        let round = match round {
            Ok(round) => round,
            Err(failure) => {
                let words = format!("{:#}", failed_request(&failure, way));
                if said
                    .insert("the API server".to_owned(), words.clone())
                    .as_ref()
                    != Some(&words)
                {
                    super::super::warn(words);
                }
                return Ok(());
            }
        };
        if self.output != OutputFormat::Text {
            // The API server answers again, so the next failure is a new one to report.
            said.clear();
            if self.output == OutputFormat::Yaml {
                super::super::emit(["---"])?;
            }
            return self.output.print(&object(&round, self.dry_run));
        }
        let jobs = round
            .jobs
            .iter()
            .map(|job| (format!("{}/{}", job.namespace, job.job), line(job)));
        let gone = deleted(&round, self.dry_run).map(|words| (words.clone(), words));
        let hints = round.hints.iter().map(|hint| (hint.clone(), hint.clone()));
        let failed = round.failed.iter().map(|(kind, namespace, name, failure)| {
            (
                format!("{kind} {namespace}/{name}"),
                format!("{kind} {namespace}/{name} can't be deleted: {failure}"),
            )
        });
        let changed = round.changed.iter().map(|(kind, namespace, name)| {
            let what = format!("{kind} {namespace}/{name}");
            (
                what.clone(),
                format!("{what} is not deleted: the object changed before each deletion; the next round tries again"),
            )
        });
        let all = jobs.chain(gone).chain(hints).chain(failed).chain(changed);
        let now: BTreeMap<String, String> = all.collect();
        for (key, words) in &now {
            if said.get(key) != Some(words) {
                super::super::emit([words])?;
            }
        }
        *said = now;
        Ok(())
    }
}

/// A job in a sentence.
fn line(job: &Reclaimable) -> String {
    let ended = if job.by_chief {
        "the chief has succeeded"
    } else {
        "every worker has succeeded"
    };
    let running = match job.running.len() {
        0 => String::new(),
        count => format!(" and {} still running", text::counted(count, "task")),
    };
    let what = match &job.verdict {
        ReclaimVerdict::Running { .. } if job.by_chief => {
            "the chief has not succeeded yet".to_owned()
        }
        ReclaimVerdict::Running { of: 1, .. } => "the worker has not succeeded yet".to_owned(),
        ReclaimVerdict::Running { succeeded, of } => {
            let have = if *succeeded == 1 { "has" } else { "have" };
            format!("{succeeded} of {of} workers {have} succeeded")
        }
        ReclaimVerdict::Waiting { until } => {
            let at = jiff::Timestamp::from_second(*until)
                .map_or_else(|_| until.to_string(), |at| at.to_string());
            format!("{ended}; the parameter servers{running} will be deleted at {at}")
        }
        ReclaimVerdict::Reclaim => {
            format!("{ended}; the parameter servers{running} are no longer needed")
        }
        ReclaimVerdict::Kept { reason } => format!("the parameter servers stay: {reason}"),
    };
    format!("{}/{}: {what}", job.namespace, job.job)
}

/// The number of objects that changed before each deletion.
fn kept(count: usize) -> String {
    let was = if count == 1 { "was" } else { "were" };
    format!(
        "{} {was} changed before each deletion",
        text::counted(count, "object")
    )
}

/// The deleted objects, in a sentence.
fn deleted(round: &ReclaimRound, dry_run: bool) -> Option<String> {
    let names = round
        .deleted
        .iter()
        .map(|(kind, namespace, name)| format!("{kind} {namespace}/{name}"));
    let names = names.collect::<Vec<_>>().join(", ");
    (!names.is_empty()).then(|| {
        format!(
            "{}: {names}",
            if dry_run {
                "would be deleted"
            } else {
                "deleted"
            }
        )
    })
}

fn object(round: &ReclaimRound, dry_run: bool) -> Value {
    let jobs = round.jobs.iter().map(|job| {
        let (verdict, more) = match &job.verdict {
            ReclaimVerdict::Running { succeeded, of } => {
                ("running", json!({"succeeded": succeeded, "of": of}))
            }
            ReclaimVerdict::Waiting { until } => ("waiting", json!({"until": until})),
            ReclaimVerdict::Reclaim => ("reclaim", json!({})),
            ReclaimVerdict::Kept { reason } => ("kept", json!({"reason": reason})),
        };
        let mut object = json!({"namespace": job.namespace, "job": job.job, "verdict": verdict});
        if let (Some(fields), Some(more)) = (object.as_object_mut(), more.as_object()) {
            fields.extend(more.clone());
            let named =
                |item: &Arc<ReclaimItem>| json!({"kind": item.kind.to_string(), "name": item.name});
            fields.insert(
                "servers".to_owned(),
                job.servers.iter().map(named).collect(),
            );
            fields.insert(
                "running".to_owned(),
                job.running.iter().map(named).collect(),
            );
            fields.insert("byChief".to_owned(), json!(job.by_chief));
        }
        object
    });
    let named = |kind: &crate::scene::ItemKind, namespace: &str, name: &str| json!({"kind": kind.to_string(), "namespace": namespace, "name": name});
    json!({
        "dryRun": dry_run,
        "jobs": jobs.collect::<Vec<_>>(),
        "deleted": round.deleted.iter().map(|(kind, namespace, name)| named(kind, namespace, name)).collect::<Vec<_>>(),
        "failed": round.failed.iter().map(|(kind, namespace, name, _)| named(kind, namespace, name)).collect::<Vec<_>>(),
        "changed": round.changed.iter().map(|(kind, namespace, name)| named(kind, namespace, name)).collect::<Vec<_>>(),
        "hints": round.hints,
    })
}

/// A failure with the remedy.
fn failed_request(failure: &Failure, way: &Connection) -> anyhow::Error {
    let doing = format!("can't read the jobs at {} (by {})", way.server, way.origin);
    explained(
        failure,
        &doing,
        "allow your account to list and delete jobs, deployments and services, or name a different kubeconfig",
    )
}
