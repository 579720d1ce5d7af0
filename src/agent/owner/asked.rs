//! What a runtime asks of the owner: what a container gets that is created, and whether one may start.

use std::sync::Arc;

use super::super::event::Admission;
use super::super::gate;
use super::super::node::threads;
use super::super::question::Question;
use super::{Owner, Seen};
use crate::pin::decide::{DecisionInput, Decisions, decide};
use crate::pin::snapshot::ContainerState;
use crate::pin::{self, Enforcement, Ledger, Observed, Outcome, Scan, Step};
use crate::pod::{self, Pod};

// === impl Owner ===

impl Owner {
    /// Answers a question by what the last reconcile has read, in a fraction of the time of another: a runtime holds up
    /// every creation until then, and gives up after two seconds. The claim is written down before; what it changes for
    /// others follows.
    ///
    /// Returns the question where that won't do: nothing is known, its pod is not as it was seen last, CPUs are lacking that
    /// may be free by now, somebody would have to move, or the pod's cgroup can't take the CPUs yet.
    pub(super) fn answered_at_once<'a>(&mut self, question: Question<'a>) -> Option<Question<'a>> {
        let Some(mut seen) = self.seen.take() else {
            return Some(question);
        };
        self.heartbeat.begin("answer the creation of a container");
        let answer = self.recalled(&question, &mut seen);
        self.heartbeat.idle();
        self.seen = Some(seen);
        let Some(answer) = answer else {
            return Some(question);
        };
        // Whoever asked may have given up waiting; the promise lapses by itself.
        let _ = question.reply.send(answer);
        None
    }

    fn recalled(&mut self, question: &Question<'_>, seen: &mut Seen) -> Option<Admission> {
        let uid = question.pod.cgroup_uid()?;
        // Whoever may have to move must be known. Else the ledger tells what others own, and that is not touched.
        let moves = self.moves_left();
        let pods = match moves {
            0 => Arc::new(self.told.pod(uid).into_iter().collect()),
            _ => self.told.known(),
        };
        if seen.stale.contains(uid) {
            self.read_again(uid, &pods, seen)?;
        }
        self.find(uid, &pods, seen);
        let mut again = true;
        loop {
            let mut ledger = self.with_promises(seen);
            let mut decisions = self.decided(&pods, moves, seen, &ledger);
            // Some of those who own CPUs may have gone since.
            if question.lacks(&pods, &decisions) && self.forget_gone(seen) {
                ledger = self.with_promises(seen);
                decisions = self.decided(&pods, moves, seen, &ledger);
            }
            if question.lacks(&pods, &decisions) || !decisions.moves.is_empty() {
                return None;
            }
            let gets = question
                .decided(&pods, &decisions)
                .and_then(|decision| decision.cpus.as_ref());
            if gets.is_none()
                || self.node.enforcement == Enforcement::Observe
                || self
                    .claim_at_once(question, seen, &ledger, &decisions)
                    .is_some()
            {
                return self.answer(&pods, question, &decisions);
            }
            // Whoever has made the pod's cgroup may have been at it when it was seen.
            if !std::mem::take(&mut again) {
                return None;
            }
            self.read_again(uid, &pods, seen)?;
        }
    }

    pub(super) fn with_promises(&self, seen: &Seen) -> Ledger {
        let mut ledger = seen.ledger.clone();
        self.told.enter_promises(&mut ledger);
        ledger
    }

    pub(super) fn decided(
        &self,
        pods: &[Pod],
        moves: usize,
        seen: &Seen,
        ledger: &Ledger,
    ) -> Decisions {
        let here = self.told.here(&seen.observed, pods);
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

    /// Looks at a pod whose containers are still to be created, before anybody asks for them.
    pub(super) fn foresee(&mut self, uid: &str) {
        let Some(pod) = self.told.pod(uid) else {
            return;
        };
        let Some(mut seen) = self.seen.take() else {
            return;
        };
        self.find(uid, &[pod], &mut seen);
        self.seen = Some(seen);
    }

    /// Looks at a pod that has not been seen yet. One that comes with claims of its own is a matter for the next reconcile.
    fn find(&self, uid: &str, pods: &[Pod], seen: &mut Seen) {
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

    /// Forgets the owners whose pods' cgroups are gone; says whether what they had can be given.
    fn forget_gone(&self, seen: &mut Seen) -> bool {
        let Seen {
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
        // A kernel may have lost their CPUs on the way.
        let lost = self.node.lost(observed.pods.iter().map(|pod| &pod.cgroup));
        observed.pods.len() < before && lost.is_ok_and(|lost| lost.is_empty())
    }

    /// Writes down what a pod's containers are to own; nothing, where its cgroup is not as it was seen, or can't hold it.
    fn claim_at_once(
        &mut self,
        question: &Question<'_>,
        seen: &mut Seen,
        ledger: &Ledger,
        decisions: &Decisions,
    ) -> Option<()> {
        let uid = question.pod.cgroup_uid()?;
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
        // One that went and came again has another mark, or none.
        if self.node.cgroups.assignment_record(&path).ok()? != pod.cgroup.record_text {
            return None;
        }
        if self.node.enforcement == Enforcement::Cpuset {
            // A runtime can't write a set that the pod does not have.
            let room = self.node.cgroups.cpuset(&path).ok()?.cpus;
            let fits = room.is_empty() || assignment.cpus().is_subset(&room);
            // What is noted as having been before must be what is there now.
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
        question: &Question<'_>,
        decisions: &Decisions,
    ) -> Option<Admission> {
        let Question { pod, container, .. } = *question;
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
                self.told.promises().add(uid, &asked.name, cpus.clone());
                self.fresh = self.fresh.union(cpus);
            }
            if asked.name == container {
                found = Some((known, decision));
            }
        }
        let policy = &self.node.config.policy;
        let Some((known, decision)) = found else {
            // One that its pod's description does not have, for debugging: it goes its way.
            let known = pods.iter().find(|known| known.cgroup_uid() == Some(uid))?;
            let threads = threads(
                &self.node,
                known,
                usize::MAX,
                None,
                &decisions.desired.shared(),
            );
            return Some(Admission {
                cpus: None,
                memory: None,
                refused: None,
                training: false,
                threads,
            });
        };
        let owed = self.told.is_described(uid).then(|| {
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
        Some(Admission {
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

    /// Whether a container may start, by the state that was published last, if that was seen for its sake.
    pub(super) fn gate(&self, uid: &str, container: &str, seen: bool) -> Result<(), String> {
        if !seen && self.told.requires(uid) {
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
