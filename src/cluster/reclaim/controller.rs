//! [`Reclaimer::watch`]: runs a round as soon as the watches show a job that can be reclaimed.
//!
//! The watches only decide when a round is due. The round lists the objects again and decides by
//! these lists, so a watch with old objects causes no delete. Without working watches, for example
//! without the right to watch, a round follows every [`UNWATCHED`].

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{ReclaimRound, Reclaimer, item, now};
use crate::cluster::informer::Collection;
use crate::cluster::objects::{Objects, follow};
use crate::cluster::{Backoff, Failure, Jitter};
use crate::pod::ObjectName;
use crate::scene::{
    ItemKind, PS, RECLAIM_LABEL, ReclaimItem, ReclaimVerdict, Reclaimable, reclaim,
};

/// The wait after a change, since the changes of a job come in groups.
const SETTLE: Duration = Duration::from_millis(500);

/// The time between two rounds while a watch does not work, unless the interval is shorter.
const UNWATCHED: Duration = Duration::from_secs(15);

/// The first wait after a failed round, unless the interval is shorter.
const FIRST_WAIT: Duration = Duration::from_secs(15);

/// The longest wait after a failed round, unless the interval is longer.
const LONGEST_WAIT: Duration = Duration::from_secs(300);

/// The known objects of jobs that ask to be reclaimed. `None` for an unreadable object.
type Items = watch::Receiver<Objects<Option<Arc<ReclaimItem>>>>;

struct WatchedObjects {
    deployments: Items,
    services: Items,
    jobs: Items,
}

/// The decisions about the jobs.
type ReclaimDecisions = BTreeMap<ObjectName, ReclaimVerdict>;

// === impl WatchedObjects ===

impl WatchedObjects {
    /// Waits for a change. Pends forever if the watches have ended. Cancel safe.
    async fn changed(&mut self) {
        let changed = tokio::select! {
            changed = self.deployments.changed() => changed,
            changed = self.services.changed() => changed,
            changed = self.jobs.changed() => changed,
        };
        if changed.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Whether all watches work. Otherwise an object may be missing or stale.
    fn is_current(&self) -> bool {
        let kinds = [&self.deployments, &self.services, &self.jobs];
        kinds
            .into_iter()
            .all(|objects| objects.borrow().degraded.is_none())
    }

    /// The decisions by the watched objects. `None` while an object may be missing or stale, or is unreadable.
    fn decide(&mut self, now: i64, after: u32) -> Option<Vec<Reclaimable>> {
        let mut items = Vec::new();
        for kind in [&mut self.deployments, &mut self.services, &mut self.jobs] {
            let objects = kind.borrow_and_update();
            if objects.degraded.is_some() {
                return None;
            }
            for object in objects.known.values() {
                items.push(object.clone()?);
            }
        }
        Some(reclaim(&items, now, after))
    }
}

// === impl Reclaimer ===

impl Reclaimer {
    /// Runs rounds until `stop`, and passes each result to `report`, failures included. A round follows as soon as a job can
    /// be reclaimed, and after each `interval`. While a watch does not work, the interval is at most 15 s. A result without lists
    /// has the decisions after a change.
    pub async fn watch(
        &self,
        interval: Duration,
        stop: &CancellationToken,
        report: impl FnMut(Result<ReclaimRound, Failure>),
    ) {
        let (deployments_sender, deployments) = watch::channel(Objects::default());
        let (services_sender, services) = watch::channel(Objects::default());
        let (jobs_sender, jobs) = watch::channel(Objects::default());
        let watched = WatchedObjects {
            deployments,
            services,
            jobs,
        };
        let collection = |kind| self.collection(kind);
        // A round may be cancelled at any time: each delete is correct alone, and the next round finds the other objects.
        tokio::select! {
            () = follow(self.api.clone(), collection(ItemKind::Deployment), deployments_sender) => {}
            () = follow(self.api.clone(), collection(ItemKind::Service), services_sender) => {}
            () = follow(self.api.clone(), collection(ItemKind::Job), jobs_sender) => {}
            () = self.rounds(interval, watched, report) => {}
            () = stop.cancelled() => {}
        }
    }

    /// Runs rounds forever.
    async fn rounds(
        &self,
        interval: Duration,
        mut watched: WatchedObjects,
        mut report: impl FnMut(Result<ReclaimRound, Failure>),
    ) {
        let mut backoff = Backoff::new(interval.min(FIRST_WAIT), longest_wait(interval));
        let mut jitter = Jitter::default();
        let mut reported = ReclaimDecisions::new();
        loop {
            let round = self.once().await;
            if let Some(retry_after) = retry_after_round(&round) {
                if let Ok(round) = &round {
                    self.tell_decisions(&round.jobs, &mut reported);
                }
                report(round);
                tokio::time::sleep(backoff.wait(jitter.roll(), retry_after)).await;
                continue;
            }
            backoff.reset();
            let Ok(round) = round else { continue };
            self.tell_decisions(&round.jobs, &mut reported);
            let (hints, mut due) = (round.hints.clone(), Instant::now() + interval);
            due = due.min(earliest_reclaim(&round.jobs).unwrap_or(due));
            report(Ok(round));
            while let Some(jobs) = self.next_decisions(due, &mut watched).await {
                due = due.min(earliest_reclaim(&jobs).unwrap_or(due));
                if !self.tell_decisions(&jobs, &mut reported) {
                    continue;
                }
                let hints = hints.clone();
                report(Ok(ReclaimRound {
                    jobs,
                    hints,
                    ..ReclaimRound::default()
                }));
            }
        }
    }

    /// The decisions after the next change. `None` if a complete round is due: at the time `due`, after [`UNWATCHED`] without
    /// working watches, or as soon as a job can be reclaimed.
    async fn next_decisions(
        &self,
        due: Instant,
        watched: &mut WatchedObjects,
    ) -> Option<Vec<Reclaimable>> {
        let unwatched_due = due.min(Instant::now() + UNWATCHED);
        loop {
            let due = if watched.is_current() {
                due
            } else {
                unwatched_due
            };
            tokio::select! {
                () = tokio::time::sleep_until(due) => return None,
                () = watched.changed() => {}
            }
            tokio::time::sleep(SETTLE).await;
            let Some(jobs) = watched.decide(now(), self.after) else {
                continue;
            };
            let any_reclaimable = jobs
                .iter()
                .any(|job| job.verdict == ReclaimVerdict::Reclaim);
            return (!any_reclaimable).then_some(jobs);
        }
    }

    /// Writes an Event for each new decision to wait or to keep the servers. Returns whether any decision is new.
    fn tell_decisions(&self, jobs: &[Reclaimable], reported: &mut ReclaimDecisions) -> bool {
        let decisions: ReclaimDecisions = jobs
            .iter()
            .map(|job| {
                let name = ObjectName::new(&*job.namespace, &*job.job);
                (name, job.verdict.clone())
            })
            .collect();
        for job in jobs {
            let name = ObjectName::new(&*job.namespace, &*job.job);
            if reported.get(&name) == Some(&job.verdict) {
                continue;
            }
            match &job.verdict {
                ReclaimVerdict::Running { .. } | ReclaimVerdict::Reclaim => {}
                ReclaimVerdict::Waiting { until } => {
                    let at = Timestamp::from_second(*until)
                        .map_or_else(|_| until.to_string(), |at| at.to_string());
                    let note = format!(
                        "the training job {} has ended: its parameter servers will be deleted at {at}",
                        job.job
                    );
                    self.tell(job, false, "ReclaimScheduled", note);
                }
                ReclaimVerdict::Kept { reason } => {
                    let note = format!(
                        "the parameter servers of the training job {} stay: {reason}",
                        job.job
                    );
                    self.tell(job, true, "ServersKept", note);
                }
            }
        }
        let is_new = *reported != decisions;
        *reported = decisions;
        is_new
    }

    /// The objects of a kind that ask to be reclaimed.
    fn collection(&self, kind: ItemKind) -> Collection<Option<Arc<ReclaimItem>>> {
        let labels = Some(format!("{RECLAIM_LABEL}={PS}"));
        let collection = match kind {
            ItemKind::Deployment => Collection::new(
                self.path("apps/v1", "deployments"),
                "DeploymentList",
                |_, object| item(ItemKind::Deployment, object).ok().map(Arc::new),
            ),
            ItemKind::Service => {
                Collection::new(self.path("v1", "services"), "ServiceList", |_, object| {
                    item(ItemKind::Service, object).ok().map(Arc::new)
                })
            }
            ItemKind::Job => {
                Collection::new(self.path("batch/v1", "jobs"), "JobList", |_, object| {
                    item(ItemKind::Job, object).ok().map(Arc::new)
                })
            }
        };
        Collection {
            labels,
            ..collection
        }
    }
}

/// The server's `Retry-After` for a round that must be repeated soon. The outer `None` means that
/// it needs no repeat.
fn retry_after_round(round: &Result<ReclaimRound, Failure>) -> Option<Option<Duration>> {
    match round {
        Err(failure) => Some(failure.retry_after()),
        Ok(round) => match round.failed.first() {
            Some((_, _, _, failure)) => Some(failure.retry_after()),
            None => (!round.changed.is_empty()).then_some(None),
        },
    }
}

/// The time at which the first waiting job can be reclaimed.
fn earliest_reclaim(jobs: &[Reclaimable]) -> Option<Instant> {
    let now = now();
    let waits = jobs.iter().filter_map(|job| match job.verdict {
        ReclaimVerdict::Waiting { until } => u64::try_from(until.saturating_sub(now)).ok(),
        _ => None,
    });
    waits
        .min()
        .map(|seconds| Instant::now() + Duration::from_secs(seconds.max(1)))
}

/// The longest wait after a failed round, for rounds at this interval.
fn longest_wait(interval: Duration) -> Duration {
    interval.saturating_mul(8).min(LONGEST_WAIT.max(interval))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_backoff_is_bounded_by_five_minutes_or_the_interval() {
        let wait = |seconds| longest_wait(Duration::from_secs(seconds)).as_secs();
        assert_eq!([1, 15, 60, 300, 3600].map(wait), [8, 120, 300, 300, 3600]);
    }
}
