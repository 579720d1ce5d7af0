//! [`NodeReader`]: reads this node's Node from time to time, for the CPUs that the scheduler counts, and removes the startup
//! taint from it.
//!
//! **The startup taint** keeps pods off a new node until its agent is in step with the container runtime, because a container
//! that is created earlier gets no thread variables. The kubelet or the node's template sets it, and the reader only removes
//! it. A Node gets it when it is made, so the reader needs no watch: it reads the Node at its start, every quarter of an hour,
//! and after each restart of the kubelet, which makes a new Node if somebody has deleted the old one.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::sleep;

use super::backoff::BackoffPolicy;
use super::own_node::{self, ApplyOutcome, OwnNode};
use super::{Api, Backoff, Failure, Jitter};
use crate::pod::Allocatable;
use crate::scene::STARTUP_TAINT;

/// The mean time between two reads of the Node. A kubelet changes the amount of CPUs only when it starts.
const INTERVAL: Duration = Duration::from_secs(900);

/// The mean wait before the kubelet has reported the amount, and the longest one after a failed read.
const RETRY: Duration = Duration::from_secs(60);

/// The first wait after a read or a write that failed, or for a Node that is missing.
const FIRST_RETRY: Duration = Duration::from_secs(1);

/// The first wait after a conflict. On a new Node, the kubelet and the controllers write often.
const CONFLICT: Duration = Duration::from_millis(100);

/// The longest random pause before the first read, so that not all agents ask at once after a rollout.
const FIRST: Duration = Duration::from_secs(10);

/// The longest random pause after a restart of the kubelet, which needs a moment to make its Node.
const RESTARTED: Duration = Duration::from_secs(4);

/// Whether the agent answers the container runtime and knows the node's pods; `Err` with the reason, as a part of a sentence,
/// if it does not yet.
pub type InStep = Result<(), String>;

/// What the reader knows about the startup taint.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum StartupTaint {
    /// The Node does not have the taint, or was not read yet.
    #[default]
    Absent,
    /// The Node has it, and the agent is not in step yet.
    Awaited,
    /// The taint can't be removed, for this reason, with the remedy.
    Refused(String),
}

/// The readable ends of what the reader reports.
#[derive(Debug, Clone)]
pub struct NodeReports {
    /// The CPUs that the scheduler counts, once the kubelet has reported them.
    pub allocatable: watch::Receiver<Option<Allocatable>>,
    pub startup_taint: watch::Receiver<StartupTaint>,
}

#[derive(Debug)]
pub struct NodeReader {
    api: Api,
    name: String,
    in_step: watch::Receiver<InStep>,
    /// Notified when the kubelet has restarted.
    restarted: Arc<Notify>,
    allocatable: watch::Sender<Option<Allocatable>>,
    startup_taint: watch::Sender<StartupTaint>,
    jitter: Jitter,
    failures: BackoffPolicy,
    missing: Backoff,
    conflicts: Backoff,
    /// Why the Node could not be read, if the last read failed.
    last_failure: String,
}

/// What the next read waits for.
#[derive(Debug, Clone, Copy)]
enum Wait {
    For(Duration),
    /// The agent is in step, or the time is over.
    InStep(Duration),
}

// === impl NodeReader ===

impl NodeReader {
    /// A reader of the Node with this name, and what it reports.
    pub fn new(
        api: Api,
        name: &str,
        in_step: watch::Receiver<InStep>,
        restarted: Arc<Notify>,
    ) -> (Self, NodeReports) {
        let (allocatable, allocatable_reports) = watch::channel(None);
        let (startup_taint, taint_reports) = watch::channel(StartupTaint::default());
        let reader = Self {
            api,
            name: name.to_owned(),
            in_step,
            restarted,
            allocatable,
            startup_taint,
            jitter: Jitter::default(),
            failures: BackoffPolicy::new((FIRST_RETRY, RETRY), INTERVAL),
            missing: Backoff::new(FIRST_RETRY, RETRY),
            conflicts: Backoff::new(CONFLICT, RETRY),
            last_failure: String::new(),
        };
        let reports = NodeReports {
            allocatable: allocatable_reports,
            startup_taint: taint_reports,
        };
        (reader, reports)
    }

    /// Reads the Node until nobody needs the reports. After a failed read, the last amount of CPUs stays.
    pub async fn run(mut self) {
        let mut wait = Wait::For(self.jitter.spread(FIRST));
        while self.wait(wait).await {
            wait = self.pass().await;
        }
    }

    /// Waits until the next read. Returns false if the agent stops.
    async fn wait(&mut self, wait: Wait) -> bool {
        let (pause, waits_for_step) = match wait {
            Wait::For(pause) => (pause, false),
            Wait::InStep(pause) => (pause, true),
        };
        let restarted = tokio::select! {
            () = self.allocatable.closed() => return false,
            () = sleep(pause) => false,
            in_step = self.in_step.wait_for(Result::is_ok), if waits_for_step => {
                if in_step.is_err() {
                    return false;
                }
                false
            }
            () = self.restarted.notified() => true,
        };
        if restarted {
            sleep(self.jitter.spread(RESTARTED)).await;
        }
        true
    }

    /// Reads the Node once, and removes its startup taint if the agent is in step.
    async fn pass(&mut self) -> Wait {
        let node = match own_node::read(&self.api, &self.name).await {
            Ok(Some(node)) => node,
            Ok(None) => {
                self.publish(StartupTaint::Absent);
                return Wait::For(self.missing.wait(self.jitter.roll(), None));
            }
            Err(failure) => {
                let failed = failure.to_string();
                if failure.is_terminal() && self.last_failure != failed {
                    tracing::warn!(
                        "Node {} can't be read, so a taint {STARTUP_TAINT} would stay: {failed}; give the agent the right to get \
                         its Node (rbac.yaml)",
                        self.name
                    );
                }
                self.last_failure = failed;
                return self.after(&failure);
            }
        };
        self.last_failure.clear();
        self.missing.reset();
        let allocatable = node.allocatable();
        if allocatable.is_some() {
            self.allocatable.send_replace(allocatable);
        }
        let mean = allocatable.map_or(RETRY, |_| INTERVAL);
        let pause = mean.mul_f64(0.5 + self.jitter.roll());
        let Some(others) = node.without_startup_taint() else {
            self.publish(StartupTaint::Absent);
            self.failures.reset();
            self.conflicts.reset();
            return Wait::For(pause);
        };
        if let Err(why) = self.in_step.borrow().as_ref() {
            tracing::debug!("Node {} keeps the taint {STARTUP_TAINT}: {why}", self.name);
            self.startup_taint.send_replace(StartupTaint::Awaited);
            return Wait::InStep(pause);
        }
        match own_node::set_taints(&self.api, &node, &others).await {
            Ok(ApplyOutcome::Done(_)) => {
                tracing::info!("removed the taint {STARTUP_TAINT} from Node {}", self.name);
                self.publish(StartupTaint::Absent);
                self.failures.reset();
                self.conflicts.reset();
                Wait::For(pause)
            }
            // Whatever has changed since the read, the taints are read again first.
            Ok(_) => Wait::For(self.conflicts.wait(self.jitter.roll(), None)),
            Err(failure) => {
                let refused = self.refused(&node, &failure);
                self.publish(StartupTaint::Refused(refused));
                self.after(&failure)
            }
        }
    }

    fn after(&mut self, failure: &Failure) -> Wait {
        Wait::For(self.failures.after(failure, self.jitter.roll()))
    }

    /// Why the taint stays, with the remedy.
    fn refused(&self, node: &OwnNode, failure: &Failure) -> String {
        let remedy = if failure.is_terminal() {
            "give the agent the right to patch nodes (rbac.yaml), and apply the admission policy pinfold-node of this version \
             (node-policy.yaml), which lets agents remove it"
        } else {
            "the agent tries again"
        };
        format!(
            "Node {name} keeps the taint {STARTUP_TAINT}, so new pods stay off it: it can't be removed: {failure}: {remedy}; \
             kubectl taint node {name} {STARTUP_TAINT}- removes it, too",
            name = node.name
        )
    }

    /// Publishes the state of the taint. A new obstacle is also logged.
    fn publish(&self, new: StartupTaint) {
        self.startup_taint.send_if_modified(|state| {
            if *state == new {
                return false;
            }
            if let StartupTaint::Refused(why) = &new {
                tracing::error!("{why}");
            }
            *state = new;
            true
        });
    }
}
