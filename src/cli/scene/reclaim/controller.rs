//! [`Controller`]: runs `pinfold scene reclaim --watch` with rounds, statuses, Events and an HTTP
//! server.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::agent::ControllerProbes;
use crate::agent::config::Log;
use crate::cluster::connect::host_name;
use crate::cluster::events::{self, Recorder};
use crate::cluster::plan_status::{self, PlanStatusWriter};
use crate::cluster::reclaim::{ReclaimRound, Reclaimer};
use crate::cluster::{Api, Failure};
use crate::metrics::ReclaimMetrics;

/// The longest time for unwritten Events at the end.
const LAST_EVENTS: Duration = Duration::from_secs(2);

/// The choices of the command line.
pub(super) struct Choices {
    /// The time between two complete rounds without a change.
    pub(super) interval: Duration,
    /// Whether the deletes are only reported.
    pub(super) dry_run: bool,
    /// Whether the reclaimer also writes the statuses of the plans.
    pub(super) plan_status: bool,
    /// The address of the HTTP server, if any.
    pub(super) listen: Option<SocketAddr>,
}

/// The parts of a reclaimer that runs until a signal.
pub(super) struct Controller {
    reclaimer: Reclaimer,
    interval: Duration,
    dry_run: bool,
    statuses: Option<PlanStatusWriter>,
    metrics: ReclaimMetrics,
    /// Why the last round failed, for the readiness probe.
    problem: watch::Sender<Option<String>>,
    /// The task that writes the Events.
    events: Option<JoinHandle<()>>,
}

// === impl Controller ===

impl Controller {
    /// Starts the log, the HTTP server and the task of the Events. The rounds start with [`Controller::run`].
    pub(super) async fn start(
        choices: &Choices,
        reclaimer: Reclaimer,
        api: Api,
        namespace: &str,
        stop: &CancellationToken,
    ) -> anyhow::Result<Self> {
        super::super::super::run::start_log(&Log::default())?;
        let mut controller = Self {
            reclaimer,
            interval: choices.interval,
            dry_run: choices.dry_run,
            statuses: None,
            metrics: ReclaimMetrics::new()?,
            problem: watch::Sender::new(Some("no round has ended yet".to_owned())),
            events: None,
        };
        if choices.plan_status {
            let settings = plan_status::PlanStatusSettings::default();
            let writer = PlanStatusWriter::new(api.clone(), namespace, settings);
            controller.statuses = Some(writer);
        }
        controller.write_events(api);
        if let Some(address) = choices.listen {
            let listener = TcpListener::bind(address).await.map_err(|error| {
                anyhow::anyhow!(
                    "can't listen on {address}: {error}; choose a free address with --listen"
                )
            })?;
            let problem = controller.problem.subscribe();
            let probes = ControllerProbes::new(controller.metrics.clone(), problem);
            tokio::spawn(probes.serve(listener, stop.clone()));
        }
        Ok(controller)
    }

    /// Writes Events on the Jobs from now on.
    fn write_events(&mut self, api: Api) {
        let host = host_name().unwrap_or_else(|| "reclaimer".to_owned());
        let settings = events::EventSettings {
            controller: "pinfold.io/reclaimer",
            ..events::EventSettings::default()
        };
        let (recorder, writer) = Recorder::new(api, &host, settings);
        self.reclaimer = self.reclaimer.clone().with_recorder(recorder);
        self.events = Some(tokio::spawn(writer));
    }

    /// Acts until `stop`. Each result goes to `report`.
    pub(super) async fn run(
        self,
        stop: &CancellationToken,
        mut report: impl FnMut(Result<ReclaimRound, Failure>),
    ) {
        let rounds = self.reclaimer.watch(self.interval, stop, |round| {
            count(&self.metrics, &round, self.dry_run);
            let problem = round.as_ref().err().map(ToString::to_string);
            self.problem.send_replace(problem);
            report(round);
        });
        match &self.statuses {
            Some(statuses) => {
                tokio::join!(rounds, statuses.run(stop));
            }
            None => rounds.await,
        }
        // The task of the Events ends when the last recorder is gone.
        drop(self.reclaimer);
        if let Some(events) = self.events {
            let _ = tokio::time::timeout(LAST_EVENTS, events).await;
        }
    }
}

fn count(metrics: &ReclaimMetrics, round: &Result<ReclaimRound, Failure>, dry_run: bool) {
    let Ok(round) = round else {
        return metrics.failed(1);
    };
    metrics.decided(round.verdicts());
    metrics.failed(round.failed.len());
    if !dry_run {
        for (kind, _, _) in &round.deleted {
            metrics.deleted(&kind.to_string());
        }
    }
}
