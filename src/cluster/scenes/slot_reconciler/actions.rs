//! The actions of a decision: claims, labels and taints of the node.

use k8s_openapi::api::core::v1::Taint;

use super::{NODE_DELETED, NODE_REPLACED, PassError, SlotReconciler};
use crate::cluster::own_node::{self, ApplyOutcome};
use crate::cluster::scenes::decide::{SlotAction, SlotDecision, version};
use crate::cluster::scenes::labels::{labels_of, order, written};
use crate::scene::{LEAVING_LABEL, ScenePlan, Slot, Slots};

// === impl SlotReconciler ===

impl SlotReconciler {
    pub(super) async fn carry_out(
        &mut self,
        action: SlotAction,
        verdict: &SlotDecision,
        was_spare: bool,
    ) -> Result<(), PassError> {
        let plan = verdict.plan.as_ref().and_then(|(name, _)| self.plan(name));
        let Some(state) = &mut self.observed else {
            return Ok(());
        };
        match action {
            SlotAction::Claim { slots, only } => match plan {
                Some(plan) => self.claim(&plan, &slots, only, was_spare).await,
                None => Ok(()),
            },
            SlotAction::Label(labels) => {
                let notes_leaving = labels.contains_key(LEAVING_LABEL);
                let applied = match own_node::apply(&self.scenes.api, &state.node, &labels).await {
                    // Without the note, the node still gives up its slot as long as the plan exists.
                    Err(failure) if notes_leaving && !failure.is_retryable() => {
                        tracing::warn!(
                            "scenes: the Node can't get the label {LEAVING_LABEL}: {failure}: apply the policy \
                             pinfold-node of this version, which allows it; until then, do not delete the plan before all \
                             nodes have given up their slots"
                        );
                        self.memory.unnoted = true;
                        return Ok(());
                    }
                    applied => applied?,
                };
                match applied {
                    // The wait for pods has an Event of its own.
                    ApplyOutcome::Done(now) if notes_leaving => state.node = *now,
                    ApplyOutcome::Done(now) => {
                        state.node = *now;
                        let (reason, note) = if labels.is_empty() {
                            ("LabelsRemoved", format!("no slot: {}", verdict.says))
                        } else {
                            let labels = written(&labels);
                            ("Labelled", format!("{}: {labels}", verdict.says))
                        };
                        self.emit_event(false, reason, note);
                    }
                    ApplyOutcome::Conflict(conflicts) => self.memory.conflicts = conflicts,
                    ApplyOutcome::Gone => return Err(PassError::NoNode(NODE_DELETED)),
                    ApplyOutcome::Replaced => return Err(PassError::NoNode(NODE_REPLACED)),
                }
                Ok(())
            }
            SlotAction::Taint(taints) => self.taint(&taints, plan, verdict).await,
            SlotAction::Release(name) => {
                state.claims.release(&name).await?;
                tracing::info!("scenes: released {name}");
                state.mine.remove(&name);
                Ok(())
            }
        }
    }

    /// Claims the first free slot. After a list that shows an own claim, the next decision uses that claim instead.
    async fn claim(
        &mut self,
        plan: &ScenePlan,
        slots: &Slots,
        only: Option<Slot>,
        was_spare: bool,
    ) -> Result<(), PassError> {
        let Some(state) = &mut self.observed else {
            return Ok(());
        };
        let (claims, mine) = (&state.claims, &mut state.mine);
        if was_spare || !state.complete {
            // A list costs less than many failed tries, and may also show a forgotten own claim.
            let own = claims.look_around().await?;
            let own = claims
                .confirm(own.difference(mine).cloned().collect::<Vec<_>>())
                .await?;
            state.complete = true;
            if !own.is_empty() {
                mine.extend(own);
                return Ok(());
            }
        }
        let scenes = &self.scenes;
        let last = self.memory.last.as_ref().or(scenes.before.as_ref());
        let names = order(plan, slots, only, &scenes.node, &state.node, last);
        match claims.claim_first(names, &labels_of(plan)).await? {
            Some(name) => {
                tracing::info!("scenes: claimed {name}");
                mine.insert(name);
            }
            None => self.memory.full = Some(version(plan)),
        }
        Ok(())
    }

    /// Sets the Node's taints. A refused taint is remembered until the plan changes.
    async fn taint(
        &mut self,
        taints: &[Taint],
        plan: Option<ScenePlan>,
        verdict: &SlotDecision,
    ) -> Result<(), PassError> {
        let (scenes, memory) = (&self.scenes, &mut self.memory);
        let Some(state) = &mut self.observed else {
            return Ok(());
        };
        match own_node::set_taints(&scenes.api, &state.node, taints).await {
            Ok(ApplyOutcome::Done(now)) => {
                state.node = *now;
                let wanted = plan
                    .and_then(|plan| plan.spec.taint)
                    .map(|taint| taint.to_k8s());
                memory.taint = wanted.filter(|wanted| taints.contains(wanted));
            }
            Ok(ApplyOutcome::Gone) => return Err(PassError::NoNode(NODE_DELETED)),
            // The Node has changed since the read, so the next decision uses the new taints.
            Ok(_) => {
                let read = own_node::read(&scenes.api, &scenes.node).await?;
                let same = read.filter(|read| read.uid == state.node.uid);
                state.node = same.ok_or(PassError::NoNode(NODE_REPLACED))?;
            }
            Err(failure) if failure.is_retryable() => return Err(failure.into()),
            Err(failure) => {
                let reason = format!(
                    "the taint could not be changed: {failure}: the agent needs permission to patch nodes, and the admission \
                     policy pinfold-node must list the taint's key (`taints` in the policy, or taintKeys of the chart)"
                );
                memory.untaintable =
                    Some((verdict.plan.clone().unwrap_or_default(), reason.clone()));
                // The published state still has the reason of the last pass, and the same reason
                // gets only one Event.
                if scenes.state.borrow().taint.as_ref() != Some(&reason) {
                    tracing::warn!("scenes: {reason}");
                    self.emit_event(true, "TaintRefused", reason);
                }
            }
        }
        Ok(())
    }
}
