//! What a runtime asks of the owner: what a container gets that is created, and whether one may start.

use super::super::event::Admission;
use super::super::gate;
use super::super::node::threads;
use super::super::question::Question;
use super::{Owner, Seen};
use crate::host::cgroup::PodCgroup;
use crate::pin::decide::{Decisions, Inputs, decide};
use crate::pin::snapshot::ContainerState;
use crate::pin::{self, Enforcement, Ledger, Outcome, Step};
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
        let Some(mut seen) = self.recall(&question) else { return Some(question) };
        let mut answer = self.recalled(&question, &mut seen);
        if answer.is_none() {
            // Some of those who own CPUs may have gone since.
            let owns = |pod: &PodCgroup| seen.ledger.claims.contains_key(&pod.uid);
            let Ok((observed, ledger)) = self.node.observe_again(seen.observed, &self.told.known(), owns)
            else {
                return Some(question);
            };
            seen = Seen { observed, ledger };
            answer = self.recalled(&question, &mut seen);
        }
        self.seen = Some(seen);
        let Some(answer) = answer else { return Some(question) };
        // Whoever asked may have given up waiting; the promise lapses by itself.
        let _ = question.reply.send(answer);
        None
    }

    /// What was seen last; with the pod that is asked about, which may be new.
    fn recall(&mut self, question: &Question<'_>) -> Option<Seen> {
        let seen = self.seen.take()?;
        let Some(uid) = question.pod.cgroup_uid() else { return Some(seen) };
        if seen.observed.pods.iter().any(|pod| pod.cgroup.uid == uid) {
            return Some(seen);
        }
        let (observed, ledger) = self.node.observe_pod(seen.observed, &self.told.known(), uid).ok()?;
        Some(Seen { observed, ledger })
    }

    fn recalled(&mut self, question: &Question<'_>, seen: &mut Seen) -> Option<Admission> {
        let pods = self.told.known();
        let mut ledger = seen.ledger.clone();
        self.told.enter_promises(&mut ledger);
        let here = self.told.here(&seen.observed);
        let moves = self.moves_left();
        let mut decisions = decide(&Inputs { moves, ..self.inputs(&pods, &here) }, &ledger);
        if self.node.enforcement == Enforcement::Observe {
            decisions.only_what_is(&pods, &ledger);
        }
        if question.lacks(&pods, &decisions) || !decisions.moves.is_empty() {
            return None;
        }
        let gets = question.decided(&pods, &decisions).and_then(|decision| decision.cpus.as_ref());
        if gets.is_some() && self.node.enforcement != Enforcement::Observe {
            self.claim_at_once(question, seen, &ledger, &decisions)?;
        }
        self.answer(&pods, question, &decisions)
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
        let claims = decisions.desired.claims.get(uid)?;
        let at = seen.observed.pods.iter().position(|pod| pod.cgroup.uid == uid)?;
        let pod = seen.observed.pods.get(at)?;
        let path = pod.cgroup.path.clone();
        // One that went and came again has another mark, or none.
        if self.node.cgroups.mark(&path).ok()? != pod.cgroup.mark {
            return None;
        }
        if self.node.enforcement == Enforcement::Cpuset {
            // A runtime can't write a set that the pod does not have.
            let room = self.node.cgroups.cpuset(&path).ok()?.cpus;
            let fits = room.is_empty() || claims.values().all(|cpus| cpus.is_subset(&room));
            // What is noted as having been before must be what is there now.
            if !fits || room != pod.cgroup.cpuset.cpus {
                return None;
            }
        }
        if pod.mark.as_ref().is_some_and(|mark| mark.claims == *claims) {
            return Some(());
        }
        let steps = pin::plan(&seen.observed, ledger, &decisions.desired, self.node.enforcement);
        let of_pod =
            |step: &Step| matches!(step, Step::Mark { path: other, mark: Some(_) } if *other == path);
        let applied = pin::apply(vec![steps.into_iter().find(of_pod)?], &self.node.cgroups);
        self.account(&applied);
        let done = applied.into_iter().find(|done| matches!(done.outcome, Outcome::Done))?;
        let Step::Mark { mark: Some(mark), .. } = done.step else { return None };
        let kept = mark.claims == *claims;
        seen.ledger.claims.insert(uid.to_owned(), mark.claims.clone());
        let pod = seen.observed.pods.get_mut(at)?;
        pod.cgroup.mark = Some(mark.text());
        pod.mark = Some(mark);
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
        let of_pod = |index: usize| pods.get(index).filter(|known| known.cgroup_uid() == Some(uid));
        let mut found = None;
        for decision in &decisions.containers {
            let Some(known) = of_pod(decision.pod) else { continue };
            let Some(asked) = known.containers.get(decision.container) else { continue };
            if let Some(cpus) = decision.cpus.as_ref().filter(|_| decision.entitlement.cpus() > 0) {
                self.told.promises().add(uid, &asked.name, cpus.clone());
            }
            if asked.name == container {
                found = Some((known, decision));
            }
        }
        let policy = &self.node.config.policy;
        let Some((known, decision)) = found else {
            // One that its pod's description does not have, for debugging: it goes its way.
            let known = pods.iter().find(|known| known.cgroup_uid() == Some(uid))?;
            let threads = threads(&self.node, known, usize::MAX, None, &decisions.desired.shared());
            return Some(Admission { cpus: None, memory: None, refused: None, training: false, threads });
        };
        let owed = self.told.is_described(uid).then(|| {
            known.containers.iter().any(|container| pod::entitlement(known, container, policy).cpus() > 0)
        });
        let refused = gate::at_creation(known, decision, owed);
        let owned = decision.cpus.as_ref();
        let memory = decisions.desired.memory.get(uid).and_then(|memory| memory.get(container));
        Some(Admission {
            cpus: owned.cloned(),
            memory: memory.cloned(),
            refused: refused.filter(|_| self.node.enforcement != Enforcement::Observe),
            training: pod::training(known, &decision.recognition, policy).counts,
            threads: threads(&self.node, known, decision.container, owned, &decisions.desired.shared()),
        })
    }

    /// Whether a container may start, by the state that was published last, if that is the state now.
    pub(super) fn gate(&self, uid: &str, container: &str, seen: bool) -> Result<(), String> {
        if !seen && self.told.requires(uid) {
            return Err(gate::UNSEEN.to_owned());
        }
        let snapshot = self.published.borrow();
        let Some(snapshot) = snapshot.as_deref() else { return Ok(()) };
        let same =
            |state: &&ContainerState| state.uid.as_deref() == Some(uid) && state.container == container;
        snapshot.containers.iter().find(same).map_or(Ok(()), |found| gate::at_start(found, snapshot))
    }
}
