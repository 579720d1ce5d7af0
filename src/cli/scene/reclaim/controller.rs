//! [`Controller`]: runs `pinfold scene reclaim --watch` with election, rounds, statuses, Events and an HTTP server.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::agent::ControllerProbes;
use crate::agent::config::Log;
use crate::cluster::connect::host_name;
use crate::cluster::events::{self, Recorder};
use crate::cluster::leader::{self, Election};
use crate::cluster::plan_status::{self, PlanStatusWriter};
use crate::cluster::reclaim::{ReclaimRound, Reclaimer};
use crate::cluster::{Api, Failure, Jitter};
use crate::metrics::ReclaimMetrics;

/// The name of the leader's Lease. The manifests in deploy/components/reclaim allow only this name.
const LEASE: &str = "pinfold-reclaim";

/// The longest time for unwritten Events at the end.
const LAST_EVENTS: Duration = Duration::from_secs(2);

/// The choices of the command line.
pub(super) struct Choices {
    /// The time between two complete rounds without a change.
    pub(super) interval: Duration,
    /// Whether the deletes are only reported.
    pub(super) dry_run: bool,
    /// Whether the reclaimer acts only as the leader.
    pub(super) leader_elect: bool,
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
    election: Option<Election>,
    statuses: Option<PlanStatusWriter>,
    metrics: ReclaimMetrics,
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
        let mut controller = Self {
            reclaimer,
            interval: choices.interval,
            dry_run: choices.dry_run,
            election: None,
            statuses: None,
            metrics: ReclaimMetrics::new()?,
            events: None,
        };
        if choices.plan_status {
            let settings = plan_status::PlanStatusSettings::default();
            let writer = PlanStatusWriter::new(api.clone(), namespace, settings);
            controller.statuses = Some(writer);
        }
        if choices.leader_elect {
            super::super::super::run::start_log(&Log::default())?;
            controller.elect(api, namespace);
        }
        if let Some(address) = choices.listen {
            let listener = TcpListener::bind(address).await.with_context(|| {
                format!("can't listen on {address}: choose a free address with --listen")
            })?;
            let standing = controller.election.as_ref().map(Election::standing);
            let probes = ControllerProbes::new(controller.metrics.clone(), standing);
            tokio::spawn(probes.serve(listener, stop.clone()));
        }
        Ok(controller)
    }

    /// Adds the election, and Events on the Jobs.
    fn elect(&mut self, api: Api, namespace: &str) {
        let host = host_name().unwrap_or_else(|| "reclaimer".to_owned());
        let identity = format!("{host}_{:016x}", Jitter::default().bits());
        let settings = events::EventSettings {
            controller: "pinfold.io/reclaimer",
            ..events::EventSettings::default()
        };
        let (recorder, writer) = Recorder::new(api.clone(), &host, settings);
        self.reclaimer = self.reclaimer.clone().with_recorder(recorder);
        self.events = Some(tokio::spawn(writer));
        let settings = leader::ElectionSettings::default();
        self.election = Some(Election::new(api, namespace, LEASE, identity, settings));
    }

    /// Acts until `stop`. With an election, the process acts only while the process leads. Each result goes to `report`.
    pub(super) async fn run(
        self,
        stop: &CancellationToken,
        mut report: impl FnMut(Result<ReclaimRound, Failure>),
    ) {
        let Self {
            reclaimer,
            interval,
            dry_run,
            election,
            statuses,
            metrics,
            events,
        } = self;
        let mut work = async || {
            let rounds = reclaimer.watch(interval, stop, |round| {
                count(&metrics, &round, dry_run);
                report(round);
            });
            match &statuses {
                Some(statuses) => {
                    tokio::join!(rounds, statuses.run(stop));
                }
                None => rounds.await,
            }
        };
        match &election {
            Some(election) => election.run(stop, work).await,
            None => work().await,
        }
        // The task of the Events ends after the last recorder.
        drop(reclaimer);
        if let Some(events) = events {
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
