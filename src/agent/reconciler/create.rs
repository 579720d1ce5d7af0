//! The runtime request CreateContainer, and the answer to StartContainer after a pass.

use std::sync::Arc;
use std::time::Instant;

use tokio::sync::oneshot;

use super::super::event::CreateAnswer;
use super::super::gate;
use super::super::node::threads;
use super::super::pending_create::PendingCreate;
use super::{CachedState, Reconciler, Trigger};
use crate::pin::decide::{DecisionInput, Decisions, decide};
use crate::pin::snapshot::ContainerState;
use crate::pin::{self, Enforcement, Ledger, Observed, Outcome, Scan, Step};
use crate::pod::{self, Pod};

// === impl Reconciler ===

impl Reconciler {
    /// Answers CreateContainer: from the cached state if possible, else with a node pass.
    pub(super) fn handle_create(
        &mut self,
        pod: &Pod,
        container: &str,
        reply: oneshot::Sender<CreateAnswer>,
    ) {
        match pod.cgroup_uid().filter(|uid| self.pods.is_of_runtime(uid)) {
            Some(uid) => self.history.waits(uid, container),
            // The runtime has not reported the pod. The pod's cgroup may not exist yet.
            None => self.pods.pending().announce(pod.clone()),
        }
        let create = PendingCreate {
            pod,
            container,
            reply,
            patient: true,
        };
        match self.answer_from_cache(create) {
            None => self.schedule.on(Trigger::Create, Instant::now()),
            Some(create) => self.run_create_pass(create),
        }
    }

    /// Answers CreateContainer from the cached state. The runtime delays every creation until the answer, and gives up after
    /// two seconds. The assignment record is written before the answer. The writes to the node's remaining containers follow.
    ///
    /// Returns the request if a node pass is necessary:
    ///
    /// - No state is cached, or the pod differs from the cached state.
    /// - CPUs are missing, or a running container would have to move.
    /// - The pod's cgroup can't hold the CPUs yet.
    fn answer_from_cache<'a>(&mut self, create: PendingCreate<'a>) -> Option<PendingCreate<'a>> {
        let Some(mut cached) = self.cached.take() else {
            return Some(create);
        };
        self.heartbeat.begin("answer the creation of a container");
        let answer = self.decide_from_cache(&create, &mut cached);
        self.heartbeat.idle();
        self.cached = Some(cached);
        let Some(answer) = answer else {
            return Some(create);
        };
        // The runtime may have given up waiting. The pending assignment then expires.
        let _ = create.reply.send(answer);
        None
    }

    fn decide_from_cache(
        &mut self,
        create: &PendingCreate<'_>,
        seen: &mut CachedState,
    ) -> Option<CreateAnswer> {
        let uid = create.pod.cgroup_uid()?;
        // A move needs the descriptions of all pods. Without moves, the pod's own description and the ledger suffice.
        let moves = self.moves_left();
        let pods = match moves {
            0 => Arc::new(self.pods.pod(uid).into_iter().collect()),
            _ => self.pods.known(),
        };
        if seen.stale.contains(uid) {
            self.read_again(uid, &pods, seen)?;
        }
        self.find(uid, &pods, seen);
        let mut again = true;
        loop {
            let mut ledger = self.with_pending(seen);
            let mut decisions = self.decided(&pods, moves, seen, &ledger);
            // Owners of CPUs may have ended since the last scan.
            if create.lacks(&pods, &decisions) && self.forget_gone(seen) {
                ledger = self.with_pending(seen);
                decisions = self.decided(&pods, moves, seen, &ledger);
            }
            if create.lacks(&pods, &decisions) || !decisions.moves.is_empty() {
                return None;
            }
            let gets = create
                .decided(&pods, &decisions)
                .and_then(|decision| decision.cpus.as_ref());
            if gets.is_none()
                || self.node.enforcement == Enforcement::Observe
                || self
                    .claim_at_once(create, seen, &ledger, &decisions)
                    .is_some()
            {
                return self.answer(&pods, create, &decisions);
            }
            // The last read may have seen a half-configured pod cgroup. Read the pod once more.
            if !std::mem::take(&mut again) {
                return None;
            }
            self.read_again(uid, &pods, seen)?;
        }
    }

    pub(super) fn with_pending(&self, seen: &CachedState) -> Ledger {
        let mut ledger = seen.ledger.clone();
        self.pods.enter_pending(&mut ledger);
        ledger
    }

    pub(super) fn decided(
        &self,
        pods: &[Pod],
        moves: usize,
        seen: &CachedState,
        ledger: &Ledger,
    ) -> Decisions {
        let here = self.pods.here(&seen.observed, pods);
        let mut decisions = decide(
            &DecisionInput {
                moves,
                ..self.inputs(pods, &here)
            },
            ledger,
        );
        if self.node.enforcement == Enforcement::Observe {
            decisions.keep_ledger_assignments(pods, ledger);
        }
        decisions
    }

    /// Reads a new pod into the cached state, before the first CreateContainer of the pod.
    pub(super) fn read_new_pod(&mut self, uid: &str) {
        let Some(pod) = self.pods.pod(uid) else {
            return;
        };
        let Some(mut seen) = self.cached.take() else {
            return;
        };
        self.find(uid, &[pod], &mut seen);
        self.cached = Some(seen);
    }

    /// Adds a pod to the cached state, if missing. A pod with assignments in the kernel waits for the next pass.
    fn find(&self, uid: &str, pods: &[Pod], seen: &mut CachedState) {
        if seen.observed.pods.iter().any(|pod| pod.cgroup.uid == uid) {
            return;
        }
        let Ok(Some(cgroup)) = self.node.find_pod(uid) else {
            return;
        };
        let (found, ledger) = Observed::new(
            Scan {
                pods: vec![cgroup],
                ..Scan::default()
            },
            pods,
        );
        if ledger == Ledger::default() {
            seen.observed.pods.extend(found.pods);
        }
    }

    /// Forgets owners whose pod cgroups were removed. Returns whether the owners' CPUs can be assigned.
    fn forget_gone(&self, seen: &mut CachedState) -> bool {
        let CachedState {
            observed, ledger, ..
        } = seen;
        let before = observed.pods.len();
        observed.pods.retain(|pod| {
            let uid = &pod.cgroup.uid;
            let stays =
                !ledger.assignments.contains_key(uid) || self.node.cgroups.exists(&pod.cgroup.path);
            if !stays {
                ledger.assignments.remove(uid);
                ledger.memory.remove(uid);
            }
            stays
        });
        // The kernel may have lost the owners' CPUs.
        let lost = self.node.lost(observed.pods.iter().map(|pod| &pod.cgroup));
        observed.pods.len() < before && lost.is_ok_and(|lost| lost.is_empty())
    }

    /// Writes the pod's assignment record. Returns `None` if the write fails. Writes nothing and returns `None` if the pod's
    /// cgroup differs from the cached state or can't hold the CPUs.
    fn claim_at_once(
        &mut self,
        create: &PendingCreate<'_>,
        seen: &mut CachedState,
        ledger: &Ledger,
        decisions: &Decisions,
    ) -> Option<()> {
        let uid = create.pod.cgroup_uid()?;
        let assignment = decisions.desired.assignment(uid);
        if assignment.is_empty() {
            return None;
        }
        let at = seen
            .observed
            .pods
            .iter()
            .position(|pod| pod.cgroup.uid == uid)?;
        let pod = seen.observed.pods.get(at)?;
        let path = pod.cgroup.path.clone();
        // A removed and recreated cgroup has a different record, or no record.
        if self.node.cgroups.assignment_record(&path).ok()? != pod.cgroup.record_text {
            return None;
        }
        if self.node.enforcement == Enforcement::Cpuset {
            // The runtime can't give a container CPUs outside the pod's set.
            let room = self.node.cgroups.cpuset(&path).ok()?.cpus;
            let fits = room.is_empty() || assignment.cpus().is_subset(&room);
            // The record keeps the cgroup's earlier CPUs, so the cached CPUs must be current.
            if !fits || room != pod.cgroup.cpuset.cpus {
                return None;
            }
        }
        if pod
            .record
            .as_ref()
            .is_some_and(|mark| mark.assignment == assignment)
        {
            return Some(());
        }
        let alone = Observed {
            pods: vec![pod.clone()],
            surroundings: seen.observed.surroundings.clone(),
        };
        let steps = pin::plan(&alone, ledger, &decisions.desired, self.node.enforcement);
        let of_pod = |step: &Step| matches!(step, Step::Record { path: other, record: Some(_) } if *other == path);
        let applied = self.apply(vec![steps.into_iter().find(of_pod)?]);
        self.account(&applied);
        let done = applied
            .into_iter()
            .find(|done| matches!(done.outcome, Outcome::Done))?;
        let Step::Record {
            record: Some(mark), ..
        } = done.step
        else {
            return None;
        };
        let kept = mark.assignment == assignment;
        seen.ledger
            .assignments
            .insert(uid.to_owned(), mark.assignment.clone());
        let pod = seen.observed.pods.get_mut(at)?;
        pod.cgroup.record_text = Some(mark.text());
        pod.record = Some(mark);
        kept.then_some(())
    }

    pub(super) fn answer(
        &mut self,
        pods: &[Pod],
        create: &PendingCreate<'_>,
        decisions: &Decisions,
    ) -> Option<CreateAnswer> {
        let PendingCreate { pod, container, .. } = *create;
        let uid = pod.cgroup_uid()?;
        let of_pod = |index: usize| {
            pods.get(index)
                .filter(|known| known.cgroup_uid() == Some(uid))
        };
        let mut found = None;
        for decision in &decisions.containers {
            let Some(known) = of_pod(decision.pod) else {
                continue;
            };
            let Some(asked) = known.containers.get(decision.container) else {
                continue;
            };
            if let Some(cpus) = decision
                .cpus
                .as_ref()
                .filter(|_| decision.entitlement.cpus() > 0)
            {
                self.pods.pending().add(uid, &asked.name, cpus.clone());
                self.recently_assigned = self.recently_assigned.union(cpus);
            }
            if asked.name == container {
                found = Some((known, decision));
            }
        }
        let policy = &self.node.config.policy;
        let Some((known, decision)) = found else {
            // A container outside the pod's description, for example a debug container, gets no CPUs and no refusal.
            let known = pods.iter().find(|known| known.cgroup_uid() == Some(uid))?;
            let threads = threads(
                &self.node,
                known,
                usize::MAX,
                None,
                &decisions.desired.shared(),
            );
            return Some(CreateAnswer {
                cpus: None,
                memory: None,
                refused: None,
                training: false,
                threads,
            });
        };
        let owed = self.pods.is_described(uid).then(|| {
            known
                .containers
                .iter()
                .any(|container| pod::entitlement(known, container, policy).cpus() > 0)
        });
        let refused = gate::at_creation(known, decision, owed);
        let owned = decision.cpus.as_ref();
        let memory = decisions
            .desired
            .pod(uid)
            .map(|plan| &plan.memory)
            .and_then(|memory| memory.get(container));
        Some(CreateAnswer {
            cpus: owned.cloned(),
            memory: memory.cloned(),
            refused: refused.filter(|_| self.node.enforcement != Enforcement::Observe),
            training: pod::training(known, &decision.recognition, policy).counts,
            threads: threads(
                &self.node,
                known,
                decision.container,
                owned,
                &decisions.desired.shared(),
            ),
        })
    }

    /// Whether a container may start, according to the last snapshot. `seen` is whether a pass for the container published the
    /// snapshot. Without such a pass, a `required` pod's container must not start.
    pub(super) fn start_answer(
        &self,
        uid: &str,
        container: &str,
        seen: bool,
    ) -> Result<(), String> {
        if !seen && self.pods.requires(uid) {
            return Err(gate::UNSEEN.to_owned());
        }
        let snapshot = self.published.borrow();
        let Some(snapshot) = snapshot.as_deref() else {
            return Ok(());
        };
        let same = |state: &&ContainerState| {
            state.uid.as_deref() == Some(uid) && state.container == container
        };
        snapshot
            .containers
            .iter()
            .find(same)
            .map_or(Ok(()), |found| gate::at_start(found, snapshot))
    }
}
