//! [`SlotReconciler`]: reads, asks [`decide()`], carries out, and waits.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::backoff_policy::{BackoffPolicy, advice};
use super::decide::{Action, Memory, Seen, Verdict, decide, version};
use super::labels::{labels_of, named, order, usual, written};
use super::plans::{Plans, name_of, slots_of};
use super::{Phase, Scenes, State};
use crate::cluster::claims::{self, Claims, Guard, Owner, Standing};
use crate::cluster::events::News;
use crate::cluster::node::{self, Applied, OwnNode};
use crate::cluster::{Failure, Jitter};
use crate::scene::ScenePlan;

/// The most actions of one turn: a change of slot is four.
const MOST_ACTIONS: usize = 12;

/// The longest random pause before a lost claim is looked at.
const LOST_SPREAD: Duration = Duration::from_secs(1);

/// What was read of this node at the last look.
#[derive(Debug)]
struct Look {
    node: OwnNode,
    claims: Arc<Claims>,
    mine: BTreeSet<String>,
    /// Whether the server's cache was asked for claims that the labels do not name.
    complete: bool,
}

/// Keeps the node's place.
pub(super) struct SlotReconciler {
    scenes: Scenes,
    plans: watch::Receiver<Plans>,
    look: Option<Look>,
    /// The watch of the own claim.
    guard: Option<Guard>,
    memory: Memory,
    /// The Node's uid as it was last read, for Events on it.
    uid: Option<String>,
    /// What was told as an Event of a failure that lasts; nothing else is told until something works.
    told: Option<String>,
    backoff: BackoffPolicy,
    jitter: Jitter,
}

/// Why a turn ended before all was done.
enum Cut {
    Failed(Failure),
    /// The Node is not there, or another one; it is read again.
    NoNode(&'static str),
}

impl From<Failure> for Cut {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

// === impl SlotReconciler ===

impl SlotReconciler {
    pub(super) fn new(scenes: Scenes, plans: watch::Receiver<Plans>) -> Self {
        let backoff = BackoffPolicy::new(&scenes.settings);
        Self {
            scenes,
            plans,
            look: None,
            guard: None,
            memory: Memory::default(),
            uid: None,
            told: None,
            backoff,
            jitter: Jitter::default(),
        }
    }

    pub(super) async fn run(mut self) {
        self.look_at_labels().await;
        let mut due: Option<Instant> = None;
        let mut pods_told = true;
        loop {
            // All arms are cancel safe: they hold nothing.
            tokio::select! {
                changed = self.plans.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    due = self.plans_changed(due);
                }
                changed = self.scenes.pods.changed(), if pods_told => {
                    pods_told = changed.is_ok();
                    due = self.pods_changed(due);
                }
                () = lost(&mut self.guard) => {
                    let soon = Instant::now() + self.jitter.spread(LOST_SPREAD);
                    due = Some(due.map_or(soon, |due| due.min(soon)));
                }
                () = until(due) => due = Some(Instant::now() + self.turn().await),
            }
        }
    }

    /// When to look after news of the plans.
    fn plans_changed(&mut self, due: Option<Instant>) -> Option<Instant> {
        let (degraded, terminal, slots) = {
            let plans = self.plans.borrow();
            (plans.degraded.clone(), plans.terminal, slots_of(&plans))
        };
        let settings = &self.scenes.settings;
        // All nodes hear of it at the same moment.
        let mut most = settings.spread_over(slots);
        if let Some(degraded) = degraded {
            self.say(Phase::Unknown, format!("nothing is changed: {degraded}"));
            if !terminal {
                return due;
            }
            most = settings.spread.1;
        }
        let soon = Instant::now() + self.jitter.spread(most);
        Some(due.map_or(soon, |due| due.min(soon)))
    }

    /// When to look after news of the pods: only where they have kept the node from changing, and do so no longer.
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

    /// Reads, decides and carries out, until there is nothing left to do; how long to wait.
    async fn turn(&mut self) -> Duration {
        let (degraded, terminal) = {
            let plans = self.plans.borrow();
            (plans.degraded.clone(), plans.terminal)
        };
        if let Some(degraded) = degraded {
            // Without the plans nothing would be done with what is read, but for labels that somebody has set by hand.
            if terminal {
                self.complain("plans", format!("nothing is changed: {degraded}"))
                    .await;
                self.look_at_labels().await;
            }
        } else {
            match self.place().await {
                Ok(()) => {}
                Err(Cut::Failed(failure)) => {
                    // A claim may have been made whose answer was lost.
                    self.look = None;
                    let says = format!("nothing is changed: {failure}{}", advice(&failure));
                    self.say(Phase::Unknown, says.clone());
                    if failure.is_terminal() {
                        self.complain(&about(&failure), says).await;
                    }
                    return self.backoff.after(&failure, self.jitter.roll());
                }
                Err(Cut::NoNode(why)) => {
                    let name = &self.scenes.node;
                    self.say(
                        Phase::Unknown,
                        format!("nothing is changed: there is no Node {name} ({why})"),
                    );
                    (self.look, self.uid) = (None, None);
                    return self.backoff.without(self.jitter.roll());
                }
            }
            self.backoff.reset();
            self.told = None;
        }
        let settings = &self.scenes.settings;
        let slots = slots_of(&self.plans.borrow());
        let pause = match self.scenes.state.borrow().phase {
            Phase::Spare => {
                (settings.spare.0 + settings.spare_per_slot * slots).min(settings.spare.1)
            }
            _ => settings.look,
        };
        pause.mul_f64(0.5 + self.jitter.roll())
    }

    async fn place(&mut self) -> Result<(), Cut> {
        let was_spare = self.scenes.state.borrow().phase == Phase::Spare;
        self.look().await?;
        // What stood in the way is tried again at each look, so that what is said of it ends with its cause.
        (
            self.memory.full,
            self.memory.conflicts,
            self.memory.untaintable,
        ) = (None, Vec::new(), None);
        for _ in 0..MOST_ACTIONS {
            let Some(verdict) = self.verdict() else {
                return Ok(());
            };
            self.remember(&verdict);
            match verdict.action.clone() {
                None => {
                    self.guard();
                    self.publish(&verdict);
                    return Ok(());
                }
                Some(action) => self.carry_out(action, &verdict, was_spare).await?,
            }
        }
        // Somebody undoes what is done: the next look will show.
        tracing::warn!("scenes: {MOST_ACTIONS} actions and still more to do");
        Ok(())
    }

    /// Reads which place the Node's labels name, whoever has set them: what containers are told may not wait for what all
    /// nodes do one after the other. What fails here is read with all else.
    async fn look_at_labels(&self) {
        let Ok(Some(node)) = node::read(&self.scenes.api, &self.scenes.node).await else {
            return;
        };
        let new = Some(usual(&node));
        self.scenes.state.send_if_modified(|state| {
            let old = std::mem::replace(&mut state.usual, new);
            old != state.usual
        });
    }

    /// Reads the own Node and the own claims.
    async fn look(&mut self) -> Result<(), Cut> {
        let Scenes {
            api, node: name, ..
        } = &self.scenes;
        let node = node::read(api, name)
            .await?
            .ok_or(Cut::NoNode("is --node-name right?"))?;
        self.uid = Some(node.uid.clone());
        let look = match self
            .look
            .take()
            .filter(|look| look.claims.owner().uid == node.uid)
        {
            Some(look) => self.look_again(node, look).await?,
            None => self.look_first(node).await?,
        };
        self.look = Some(look);
        Ok(())
    }

    /// Reads the claims that the Node's labels name. Where the labels name none, the server's cache shows them.
    async fn look_first(&self, node: OwnNode) -> Result<Look, Cut> {
        let Scenes {
            api,
            node: name,
            namespace,
            settings,
            ..
        } = &self.scenes;
        let owner = Owner {
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
        Ok(Look {
            node,
            claims: Arc::new(claims),
            mine,
            complete,
        })
    }

    /// Reads the claims that no watch vouches for. The second look also finds claims that the labels do not name: an agent may
    /// have ended before giving them back.
    async fn look_again(&self, node: OwnNode, look: Look) -> Result<Look, Cut> {
        let Look {
            claims,
            mine,
            complete,
            ..
        } = look;
        let vouched = |name: &String| {
            self.guard
                .as_ref()
                .is_some_and(|guard| guard.name == *name && guard.standing() == Standing::Ours)
        };
        let (mut sure, doubtful): (BTreeSet<String>, BTreeSet<String>) =
            mine.into_iter().partition(vouched);
        sure.extend(claims.confirm(doubtful).await?);
        if !complete {
            sure.extend(claims.mine().await?);
        }
        Ok(Look {
            node,
            claims,
            mine: sure,
            complete: true,
        })
    }

    /// Watches the claim that the node holds.
    fn guard(&mut self) {
        let Some(Look { claims, mine, .. }) = &self.look else {
            return;
        };
        let wanted = mine.first();
        let is = self
            .guard
            .as_ref()
            .map(|guard| (&guard.name, guard.owner()));
        if is == wanted.map(|name| (name, claims.owner())) {
            return;
        }
        let settings = &self.scenes.settings;
        let watch_settings = claims::WatchSettings {
            seconds: settings.watch_seconds,
            idle: settings.idle,
            backoff: settings.backoff,
        };
        self.guard = wanted.map(|name| Guard::new(Arc::clone(claims), name, watch_settings));
    }

    fn verdict(&self) -> Option<Verdict> {
        let look = self.look.as_ref()?;
        let (plans, pods) = (self.plans.borrow(), self.scenes.pods.borrow());
        let seen = Seen {
            plans: &plans,
            node: &look.node,
            claims: &look.mine,
            pods: &pods,
        };
        Some(decide(seen, &self.memory))
    }

    fn remember(&mut self, verdict: &Verdict) {
        if verdict.phase == Phase::Refused {
            self.memory.refused.clone_from(&verdict.plan);
        }
        if let (Phase::Placed, Some((plan, _)), Some(slot)) =
            (verdict.phase, &verdict.plan, &verdict.slot)
        {
            self.memory.last = Some((plan.clone(), slot.clone()));
        }
    }

    async fn carry_out(
        &mut self,
        action: Action,
        verdict: &Verdict,
        was_spare: bool,
    ) -> Result<(), Cut> {
        let plan = verdict.plan.as_ref().and_then(|(name, _)| self.plan(name));
        let Self {
            scenes,
            look,
            memory,
            ..
        } = self;
        let Some(Look {
            node,
            claims,
            mine,
            complete,
        }) = look
        else {
            return Ok(());
        };
        match action {
            Action::Claim { slots, only } => {
                let Some(plan) = plan else { return Ok(()) };
                if was_spare || !*complete {
                    // Most of them are taken: better to know which than to try. An own claim may be among them.
                    let own = claims.look_around().await?;
                    let own = claims
                        .confirm(own.difference(mine).cloned().collect::<Vec<_>>())
                        .await?;
                    *complete = true;
                    if !own.is_empty() {
                        mine.extend(own);
                        return Ok(());
                    }
                }
                let names = order(
                    &plan,
                    &slots,
                    only,
                    &scenes.node,
                    node,
                    memory.last.as_ref().or(scenes.before.as_ref()),
                );
                match claims.claim_first(names, &labels_of(&plan)).await? {
                    Some(name) => {
                        tracing::info!("scenes: claimed {name}");
                        mine.insert(name);
                    }
                    None => memory.full = Some(version(&plan)),
                }
            }
            Action::Label(labels) => match node::apply(&scenes.api, node, &labels).await? {
                Applied::Done(now) => {
                    *node = *now;
                    let (reason, note) = if labels.is_empty() {
                        ("LabelsRemoved", format!("no slot: {}", verdict.says))
                    } else {
                        (
                            "Labelled",
                            format!("{}: {}", verdict.says, written(&labels)),
                        )
                    };
                    self.tell(false, reason, note);
                }
                Applied::Conflict(conflicts) => memory.conflicts = conflicts,
                Applied::Gone => return Err(Cut::NoNode("it is gone")),
                Applied::Replaced => return Err(Cut::NoNode("another one has its name")),
            },
            Action::Taint(taints) => match node::set_taints(&scenes.api, node, &taints).await {
                Ok(Applied::Done(now)) => {
                    *node = *now;
                    let wanted = plan
                        .and_then(|plan| plan.spec.taint)
                        .map(|taint| taint.to_k8s());
                    memory.taint = wanted.filter(|wanted| taints.contains(wanted));
                }
                Ok(Applied::Gone) => return Err(Cut::NoNode("it is gone")),
                // Something has changed on the Node; the taints are decided anew.
                Ok(_) => {
                    let read = node::read(&scenes.api, &scenes.node).await?;
                    let same = read.filter(|read| read.uid == node.uid);
                    *node = same.ok_or(Cut::NoNode("another one has its name"))?;
                }
                Err(failure) if failure.is_retryable() => return Err(failure.into()),
                Err(failure) => {
                    let says = format!(
                        "the taint could not be changed: {failure}: the agent needs the right to patch nodes, and the \
                         admission policy pinfold-node knows the keys of taints that `taints` there, or taintKeys of the chart, list"
                    );
                    memory.untaintable = verdict.plan.clone().map(|plan| (plan, says.clone()));
                    // State has what was said before: news are told once.
                    if self.scenes.state.borrow().taint.as_ref() != Some(&says) {
                        tracing::warn!("scenes: {says}");
                        self.tell(true, "TaintRefused", says);
                    }
                }
            },
            Action::Release(name) => {
                claims.release(&name).await?;
                tracing::info!("scenes: gave {name} back");
                mine.remove(&name);
            }
        }
        Ok(())
    }

    fn plan(&self, name: &str) -> Option<ScenePlan> {
        self.plans
            .borrow()
            .plans
            .iter()
            .find(|plan| name_of(plan) == name)
            .cloned()
    }

    /// Publishes where the node stands, and tells as an Event what a person should hear of.
    fn publish(&self, verdict: &Verdict) {
        let Some(Look { node, mine, .. }) = &self.look else {
            return;
        };
        let ours = node
            .labels
            .iter()
            .filter(|(key, _)| node.ours.contains(*key));
        let state = State {
            phase: verdict.phase,
            says: verdict.says.clone(),
            plan: verdict.plan.as_ref().map(|(name, _)| name.clone()),
            slot: verdict.slot.clone(),
            labels: ours
                .map(|(key, value)| (key.clone(), value.clone()))
                .collect(),
            usual: Some(usual(node)),
            claims: mine.clone(),
            conflicts: verdict.conflicts.iter().map(ToString::to_string).collect(),
            taint: self
                .memory
                .untaintable
                .as_ref()
                .map(|(_, says)| says.clone()),
        };
        let before = self.scenes.state.send_replace(state);
        if (before.phase, &before.says) == (verdict.phase, &verdict.says) {
            return;
        }
        tracing::info!("scenes: {:?}: {}", verdict.phase, verdict.says);
        let reason = match verdict.phase {
            // Pods that end one after the other are no news each.
            Phase::Waiting if before.phase != Phase::Waiting => "SwitchWaits",
            Phase::Refused => "SwitchRefused",
            Phase::Conflict => "LabelConflict",
            Phase::Disputed => "PlansDisputed",
            _ => return,
        };
        self.tell(
            verdict.phase != Phase::Waiting,
            reason,
            verdict.says.clone(),
        );
    }

    /// Says why nothing is done; what is known of the node stays.
    fn say(&self, phase: Phase, says: String) {
        self.scenes.state.send_if_modified(|state| {
            if (state.phase, &state.says) == (phase, &says) {
                return false;
            }
            tracing::info!("scenes: {phase:?}: {says}");
            (state.phase, state.says) = (phase, says);
            true
        });
    }

    /// Tells once of a failure that lasts: until something works, or it is about something else.
    async fn complain(&mut self, about: &str, says: String) {
        if self.told.as_deref() == Some(about) {
            return;
        }
        if self.uid.is_none() {
            // Only to tell on whom; where that fails, too, the state has it all the same.
            let read = node::read(&self.scenes.api, &self.scenes.node).await;
            self.uid = read.ok().flatten().map(|node| node.uid);
        }
        self.told = Some(about.to_owned());
        self.tell(true, "ScenesStopped", says);
    }

    fn tell(&self, warning: bool, reason: &'static str, note: String) {
        let (Some(recorder), Some(uid)) = (&self.scenes.recorder, &self.uid) else {
            return;
        };
        recorder.tell_of_node(News {
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

/// What a refusal is about: its code, and the resource.
fn about(failure: &Failure) -> String {
    let Some(status) = failure.status() else {
        return String::new();
    };
    let kind = status
        .details
        .as_ref()
        .map_or("", |details| details.kind.as_str());
    format!("{} {kind}", status.code)
}

/// Waits until the watched claim is lost. Cancel safe.
async fn lost(guard: &mut Option<Guard>) {
    match guard {
        Some(guard) => guard.lost().await,
        None => std::future::pending().await,
    }
}

async fn until(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due).await,
        None => std::future::pending().await,
    }
}
