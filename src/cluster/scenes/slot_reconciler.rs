//! [`SlotReconciler`]: reads the node's state, carries out the actions of [`decide()`], and waits.

mod actions;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::decide::{SlotDecision, decide};
use super::labels::{named, usual};
use super::plans::{Plans, name_of, slots_of};
use super::slot_state::{DecisionState, Phase, Scenes, SlotDecisionInput, SlotState};
use crate::cluster::backoff::BackoffPolicy;
use crate::cluster::claims::{self, ClaimGuard, ClaimOwner, ClaimState, Claims};
use crate::cluster::events::EventDetails;
use crate::cluster::own_node::{self, OwnNode};
use crate::cluster::{ErrorKind, Failure, Jitter};
use crate::scene::ScenePlan;

/// The maximum number of actions in one pass. A change of slot takes four actions.
const MAX_ACTIONS: usize = 12;

/// The longest random pause between the loss of the claim and the next pass.
const LOST_SPREAD: Duration = Duration::from_secs(1);

const NODE_DELETED: &str = "the Node was deleted";
const NODE_REPLACED: &str = "a new Node has the same name";

/// The own Node and the own claims, as of the last read.
#[derive(Debug)]
struct NodeState {
    node: OwnNode,
    claims: Arc<Claims>,
    mine: BTreeSet<String>,
    /// The claims that the labels name and that other nodes hold.
    lost: BTreeSet<String>,
    /// Whether the claims were also listed, since the labels do not name every claim.
    complete: bool,
}

/// Keeps the node's slot.
pub(super) struct SlotReconciler {
    scenes: Scenes,
    plans: watch::Receiver<Plans>,
    observed: Option<NodeState>,
    /// The watch of the own claim.
    guard: Option<ClaimGuard>,
    memory: DecisionState,
    /// The Node's last known uid, for Events on the Node.
    uid: Option<String>,
    /// The terminal failure of the last Event. A repetition gets no further Event until a pass succeeds.
    reported_failure: Option<String>,
    backoff: BackoffPolicy,
    jitter: Jitter,
}

/// Why a pass ended early.
enum PassError {
    Failed(Failure),
    /// The Node does not exist, or a new Node has the same name. The next pass reads the Node again.
    NoNode(&'static str),
}

impl From<Failure> for PassError {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

// === impl SlotReconciler ===

impl SlotReconciler {
    pub(super) fn new(scenes: Scenes, plans: watch::Receiver<Plans>) -> Self {
        let backoff = scenes.settings.backoff_policy();
        Self {
            scenes,
            plans,
            observed: None,
            guard: None,
            memory: DecisionState::default(),
            uid: None,
            reported_failure: None,
            backoff,
            jitter: Jitter::default(),
        }
    }

    pub(super) async fn run(mut self) {
        self.publish_default_labels().await;
        let mut due: Option<Instant> = None;
        let mut pods_open = true;
        loop {
            // All arms are cancel safe: a dropped future loses no state.
            tokio::select! {
                changed = self.plans.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    due = self.plans_changed(due);
                }
                changed = self.scenes.pods.changed(), if pods_open => {
                    pods_open = changed.is_ok();
                    due = self.pods_changed(due);
                }
                () = claim_lost(&mut self.guard) => {
                    let soon = Instant::now() + self.jitter.spread(LOST_SPREAD);
                    due = Some(due.map_or(soon, |due| due.min(soon)));
                }
                () = sleep_until(due) => {
                    let pause = self.reconcile().await;
                    due = Some(Instant::now() + pause);
                }
            }
        }
    }

    /// The time of the next pass after a change of the plans.
    fn plans_changed(&mut self, due: Option<Instant>) -> Option<Instant> {
        let (degraded, terminal, slots) = {
            let plans = self.plans.borrow();
            (plans.degraded.clone(), plans.terminal, slots_of(&plans))
        };
        let settings = &self.scenes.settings;
        // All nodes see the change at the same moment.
        let mut spread = settings.spread_over(slots);
        if let Some(degraded) = degraded {
            self.publish_phase(Phase::Unknown, format!("nothing is changed: {degraded}"));
            if !terminal {
                return due;
            }
            spread = settings.spread.1;
        }
        let soon = Instant::now() + self.jitter.spread(spread);
        Some(due.map_or(soon, |due| due.min(soon)))
    }

    /// The time of the next pass after a change of the pods. An earlier pass is useful only if pods blocked a change and
    /// no longer do.
    fn pods_changed(&mut self, due: Option<Instant>) -> Option<Instant> {
        let waiting = matches!(
            self.scenes.state.borrow().phase,
            Phase::Waiting | Phase::Refused
        );
        let Some(verdict) = self.verdict().filter(|_| waiting) else {
            return due;
        };
        if verdict.action.is_none() {
            self.publish(&verdict);
            return due;
        }
        let soon = Instant::now() + self.jitter.spread(self.scenes.settings.spread.0);
        Some(due.map_or(soon, |due| due.min(soon)))
    }

    /// Runs one pass, and returns the pause before the next pass.
    async fn reconcile(&mut self) -> Duration {
        let (degraded, terminal) = {
            let plans = self.plans.borrow();
            (plans.degraded.clone(), plans.terminal)
        };
        if let Some(degraded) = degraded {
            // Without current plans, a pass only publishes the labels: an administrator may have set labels by hand.
            if terminal {
                self.report_terminal("plans", format!("nothing is changed: {degraded}"))
                    .await;
                self.publish_default_labels().await;
            }
        } else {
            match self.run_actions().await {
                Ok(()) => {}
                Err(PassError::Failed(failure)) => {
                    // The server may have created a claim although the answer was lost, so the next pass reads the claims again.
                    self.observed = None;
                    let reason = format!("nothing is changed: {failure}{}", advice(&failure));
                    self.publish_phase(Phase::Unknown, reason.clone());
                    if failure.is_terminal() {
                        self.report_terminal(&failure_key(&failure), reason).await;
                    }
                    return self.backoff.after(&failure, self.jitter.roll());
                }
                Err(PassError::NoNode(why)) => {
                    let name = &self.scenes.node;
                    self.publish_phase(
                        Phase::Unknown,
                        format!("nothing is changed: there is no Node {name} ({why})"),
                    );
                    (self.observed, self.uid) = (None, None);
                    return self.backoff.without(self.jitter.roll());
                }
            }
            self.backoff.reset();
            self.reported_failure = None;
        }
        let settings = &self.scenes.settings;
        let slots = slots_of(&self.plans.borrow());
        let pause = match self.scenes.state.borrow().phase {
            Phase::Spare => {
                (settings.spare.0 + settings.spare_per_slot * slots).min(settings.spare.1)
            }
            _ => settings.node_read_interval,
        };
        pause.mul_f64(0.5 + self.jitter.roll())
    }

    /// Reads the Node and the claims, and carries out actions until [`decide()`] returns none.
    async fn run_actions(&mut self) -> Result<(), PassError> {
        let was_spare = self.scenes.state.borrow().phase == Phase::Spare;
        self.observe().await?;
        // Each pass tries blocked actions again, so that a published obstacle disappears with the cause.
        (
            self.memory.full,
            self.memory.conflicts,
            self.memory.untaintable,
            self.memory.unnoted,
        ) = (None, Vec::new(), None, false);
        for _ in 0..MAX_ACTIONS {
            let Some(verdict) = self.verdict() else {
                return Ok(());
            };
            self.remember(&verdict);
            match verdict.action.clone() {
                None => {
                    self.watch_claim();
                    self.publish(&verdict);
                    return Ok(());
                }
                Some(action) => self.carry_out(action, &verdict, was_spare).await?,
            }
        }
        // Probably a second writer reverts the actions. The next pass reads the Node again.
        tracing::warn!("scenes: {MAX_ACTIONS} actions in one pass; the next pass continues");
        Ok(())
    }

    /// Reads the Node's labels with the default keys, from any field manager, and publishes them.
    /// Variables of containers need them before the first pass, which waits for a random time and
    /// repeats a failed read.
    async fn publish_default_labels(&self) {
        let Ok(Some(node)) = own_node::read(&self.scenes.api, &self.scenes.node).await else {
            return;
        };
        let new = Some(usual(&node));
        self.scenes.state.send_if_modified(|state| {
            let old = std::mem::replace(&mut state.usual, new);
            old != state.usual
        });
    }

    /// Reads the own Node and the own claims.
    async fn observe(&mut self) -> Result<(), PassError> {
        let Scenes {
            api, node: name, ..
        } = &self.scenes;
        let node = own_node::read(api, name)
            .await?
            .ok_or(PassError::NoNode("is --node-name right?"))?;
        self.uid = Some(node.uid.clone());
        let mut observed = match self
            .observed
            .take()
            .filter(|observed| observed.claims.owner().uid == node.uid)
        {
            Some(observed) => self.observe_again(node, observed).await?,
            None => self.observe_first(node).await?,
        };
        let labelled = named(&self.plans.borrow(), &observed.node);
        // Usually the node holds the claim that its labels name.
        observed.lost = match labelled.is_disjoint(&observed.mine) {
            true => observed.claims.held_by_others(labelled).await?,
            false => BTreeSet::new(),
        };
        self.observed = Some(observed);
        Ok(())
    }

    /// Reads the claims that the Node's labels name. If the node holds none of them, a list from
    /// the server's cache finds those that it has.
    async fn observe_first(&self, node: OwnNode) -> Result<NodeState, PassError> {
        let Scenes {
            api,
            node: name,
            namespace,
            settings,
            ..
        } = &self.scenes;
        let owner = ClaimOwner {
            node: name.clone(),
            uid: node.uid.clone(),
        };
        let claims = Claims::new(api.clone(), namespace, owner, settings.claims.clone());
        let names = named(&self.plans.borrow(), &node);
        let mut mine = claims.confirm(names).await?;
        let complete = mine.is_empty();
        if complete {
            mine = claims.mine().await?;
        }
        Ok(NodeState {
            node,
            claims: Arc::new(claims),
            mine,
            lost: BTreeSet::new(),
            complete,
        })
    }

    /// Reads the claims that no watch confirms. The second read also lists the claims, because an
    /// agent may have ended before it released a claim that the labels do not name.
    async fn observe_again(&self, node: OwnNode, last: NodeState) -> Result<NodeState, PassError> {
        let NodeState {
            claims,
            mine,
            complete,
            ..
        } = last;
        let watched = |name: &String| {
            self.guard
                .as_ref()
                .is_some_and(|guard| guard.name == *name && guard.standing() == ClaimState::Ours)
        };
        let (mut confirmed, unconfirmed): (BTreeSet<String>, BTreeSet<String>) =
            mine.into_iter().partition(watched);
        confirmed.extend(claims.confirm(unconfirmed).await?);
        if !complete {
            confirmed.extend(claims.mine().await?);
        }
        Ok(NodeState {
            node,
            claims,
            mine: confirmed,
            lost: BTreeSet::new(),
            complete: true,
        })
    }

    /// Starts, keeps or ends the watch, so that the node's first claim is watched.
    fn watch_claim(&mut self) {
        let Some(NodeState { claims, mine, .. }) = &self.observed else {
            return;
        };
        let wanted = mine.first();
        let watched = self
            .guard
            .as_ref()
            .map(|guard| (&guard.name, guard.owner()));
        if watched == wanted.map(|name| (name, claims.owner())) {
            return;
        }
        let settings = &self.scenes.settings;
        let watch_settings = claims::WatchSettings {
            seconds: settings.watch_seconds,
            idle: settings.idle,
            backoff: settings.backoff,
        };
        self.guard = wanted.map(|name| ClaimGuard::new(Arc::clone(claims), name, watch_settings));
    }

    fn verdict(&self) -> Option<SlotDecision> {
        let observed = self.observed.as_ref()?;
        let (plans, pods) = (self.plans.borrow(), self.scenes.pods.borrow());
        let input = SlotDecisionInput {
            plans: &plans,
            node: &observed.node,
            claims: &observed.mine,
            lost: &observed.lost,
            pods: &pods,
        };
        Some(decide(input, &self.memory))
    }

    fn remember(&mut self, verdict: &SlotDecision) {
        if verdict.phase == Phase::Refused {
            self.memory.refused.clone_from(&verdict.plan);
        }
        if let (Phase::Placed, Some((plan, _)), Some(slot)) =
            (verdict.phase, &verdict.plan, &verdict.slot)
        {
            self.memory.last = Some((plan.clone(), slot.clone()));
        }
    }

    fn plan(&self, name: &str) -> Option<ScenePlan> {
        self.plans
            .borrow()
            .plans
            .iter()
            .find(|plan| name_of(plan) == name)
            .cloned()
    }

    /// Publishes the state. A new obstacle or conflict also becomes an Event.
    fn publish(&self, verdict: &SlotDecision) {
        let Some(NodeState { node, mine, .. }) = &self.observed else {
            return;
        };
        let own_labels = node
            .labels
            .iter()
            .filter(|(key, _)| node.own_labels.contains(*key));
        let state = SlotState {
            phase: verdict.phase,
            says: verdict.says.clone(),
            plan: verdict.plan.as_ref().map(|(name, _)| name.clone()),
            slot: verdict.slot.clone(),
            labels: own_labels
                .map(|(key, value)| (key.clone(), value.clone()))
                .collect(),
            usual: Some(usual(node)),
            claims: mine.clone(),
            conflicts: verdict.conflicts.iter().map(ToString::to_string).collect(),
            taint: self
                .memory
                .untaintable
                .as_ref()
                .map(|(_, reason)| reason.clone()),
        };
        let before = self.scenes.state.send_replace(state);
        if (before.phase, &before.says) == (verdict.phase, &verdict.says) {
            return;
        }
        tracing::info!("scenes: {:?}: {}", verdict.phase, verdict.says);
        let reason = match verdict.phase {
            // The whole wait gets a single Event, not an Event for each pod that ends.
            Phase::Waiting if before.phase != Phase::Waiting => "SwitchWaits",
            Phase::Refused => "SwitchRefused",
            Phase::Conflict => "LabelConflict",
            Phase::Disputed => "PlansDisputed",
            _ => return,
        };
        self.emit_event(
            verdict.phase != Phase::Waiting,
            reason,
            verdict.says.clone(),
        );
    }

    /// Publishes a phase and the reason. The rest of the published state stays.
    fn publish_phase(&self, phase: Phase, reason: String) {
        self.scenes.state.send_if_modified(|state| {
            if (state.phase, &state.says) == (phase, &reason) {
                return false;
            }
            tracing::info!("scenes: {phase:?}: {reason}");
            (state.phase, state.says) = (phase, reason);
            true
        });
    }

    /// Reports a terminal failure as an Event. A repeated `key` gets an Event only after a success
    /// or another key.
    async fn report_terminal(&mut self, key: &str, reason: String) {
        if self.reported_failure.as_deref() == Some(key) {
            return;
        }
        if self.uid.is_none() {
            // The Event needs the Node's uid. If the read fails, only the published state has the failure.
            let read = own_node::read(&self.scenes.api, &self.scenes.node).await;
            self.uid = read.ok().flatten().map(|node| node.uid);
        }
        self.reported_failure = Some(key.to_owned());
        self.emit_event(true, "ScenesStopped", reason);
    }

    fn emit_event(&self, warning: bool, reason: &'static str, note: String) {
        let (Some(recorder), Some(uid)) = (&self.scenes.recorder, &self.uid) else {
            return;
        };
        recorder.tell_of_node(EventDetails {
            namespace: String::new(),
            pod: self.scenes.node.clone(),
            uid: uid.clone(),
            warning,
            action: "Label",
            reason,
            note,
        });
    }
}

/// A key for refusals with the same cause: the status code and the resource.
fn failure_key(failure: &Failure) -> String {
    let Some(status) = failure.status() else {
        return String::new();
    };
    let kind = status
        .details
        .as_ref()
        .map_or("", |details| details.kind.as_str());
    format!("{} {kind}", status.code)
}

/// The remedy for a failure to keep the node's slot, as the end of a sentence.
fn advice(failure: &Failure) -> &'static str {
    match failure.kind() {
        ErrorKind::Forbidden => ": does the agent have the rights that deploy/ gives it?",
        ErrorKind::Unauthorized => ": check the agent's token",
        ErrorKind::NotFound => {
            ": create the namespace of the claims, or set a different namespace (--agent-namespace)"
        }
        ErrorKind::Refused => {
            ": do the policies list the label keys of the plans (labelKeys of the chart, ours in node-policy.yaml), \
             and does pinfold scene check find a mistake?"
        }
        _ => "",
    }
}

/// Waits until the watched claim is lost. Cancel safe.
async fn claim_lost(guard: &mut Option<ClaimGuard>) {
    match guard {
        Some(guard) => guard.lost().await,
        None => std::future::pending().await,
    }
}

async fn sleep_until(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due).await,
        None => std::future::pending().await,
    }
}
