//! [`reconcile`]: the turn about all pods.

use std::time::Instant;

use super::admit::end_delays_if_enough;
use super::{TurnContext, TurnResult, keep_assignment, note_moves};
use crate::agent::kernel::Kernel;
use crate::agent::mirror::Reading;
use crate::agent::world::World;
use crate::host::cgroup::is_within;
use crate::pin::decide::Decisions;
use crate::pin::{self, AppliedStep, Drift, Reason, Step};
use crate::pod::PodList;

/// How a turn about all pods ended.
#[derive(Debug)]
pub enum TurnEnd {
    /// [`TurnResult::errors`] names the steps that failed.
    Done(Box<TurnResult>),
    /// Everything reads as it did before, and nothing asks for a decision.
    Unchanged,
    /// An urgent event waits. What is done is safe, and a later turn does the rest.
    Interrupted,
    /// The cgroups could not be read.
    Failed(anyhow::Error),
}

/// Why a turn ends before its last stage.
enum EarlyEnd {
    Unchanged,
    Interrupted,
    Failed(anyhow::Error),
}

/// What a turn has decided about all pods.
struct Planned {
    pods: PodList,
    drift: Vec<Drift>,
    decisions: Decisions,
    steps: Vec<Step>,
}

// === impl EarlyEnd ===

impl From<anyhow::Error> for EarlyEnd {
    fn from(error: anyhow::Error) -> Self {
        Self::Failed(error)
    }
}

/// Reads what may have changed, decides about all pods, and carries the plan out. If `is_urgent`
/// returns true between two units of work, because a runtime request or a new pod waits, the turn
/// ends there.
pub fn reconcile(
    world: &mut World,
    kernel: &impl Kernel,
    context: &TurnContext<'_>,
    is_urgent: &mut dyn FnMut() -> bool,
) -> TurnEnd {
    match run(world, kernel, context, is_urgent) {
        Ok(result) => TurnEnd::Done(Box::new(result)),
        Err(EarlyEnd::Unchanged) => TurnEnd::Unchanged,
        Err(EarlyEnd::Interrupted) => {
            world.decide_again();
            TurnEnd::Interrupted
        }
        Err(EarlyEnd::Failed(error)) => {
            world.distrust();
            TurnEnd::Failed(error)
        }
    }
}

/// A turn about all pods for a runtime request that one about its pod could not satisfy. It reads
/// every pod again. For CreateContainer, `creates` has the pod's uid and the container's name. The pod's
/// assignments are kept until the cgroup exists, and delays of shrinks end if the container needs their CPUs and nothing else
/// will be free for it.
pub fn reconcile_for(
    world: &mut World,
    kernel: &impl Kernel,
    context: &TurnContext<'_>,
    creates: Option<(&str, &str)>,
) -> TurnEnd {
    world.sweep();
    let mut end = reconcile(world, kernel, context, &mut || false);
    if let (TurnEnd::Done(result), Some((uid, container))) = (&mut end, creates) {
        keep_assignment(world, uid, &result.pods, &result.decisions);
        result.ended_delays = !result.has_released
            && result.lacks(uid, container)
            && end_delays_if_enough(world, context, (uid, container));
    }
    end
}

fn run(
    world: &mut World,
    kernel: &impl Kernel,
    context: &TurnContext<'_>,
    is_urgent: &mut dyn FnMut() -> bool,
) -> Result<TurnResult, EarlyEnd> {
    let (begun, mut errors) = (Instant::now(), Vec::new());
    world.list_live_files(kernel);
    observe(world, kernel, is_urgent, &mut errors)?;
    if !world.update_must_decide() {
        return Err(EarlyEnd::Unchanged);
    }
    world.choose_reserved(&context.node);
    let planned = plan_from_fresh_values(world, kernel, context, (begun, is_urgent), &mut errors)?;
    let Planned {
        pods,
        drift,
        mut decisions,
        steps,
    } = planned;
    world.note_shrinks(&decisions, None, context.node.policy.shrink_delay);
    note_moves(world, &decisions);
    world.note_drift(&drift);
    let before = (!steps.is_empty()).then(|| world.observed().clone());
    let count = steps.len();
    // Drift and moves must be counted only once, so a turn that repairs one or makes the other runs
    // to its end.
    let may_end = drift.is_empty() && decisions.moves.is_empty() && !world.is_first;
    let mut is_urgent = || may_end && is_urgent();
    let owned = world.ledger.exclusive();
    world.write_live_cpus(kernel, (&decisions, &steps), None);
    let applied = apply(world, kernel, steps, &mut is_urgent);
    errors.extend(world.account(&applied));
    let is_complete = applied.len() == count;
    // Only a complete turn notes when an owner's CPUs came into force.
    let may_end = may_end && applied.iter().all(|done| is_unit(&done.step));
    let mut is_urgent = || may_end && is_urgent();
    if !applied.is_empty() {
        let steps = applied.iter().map(|done| &done.step);
        world.mirror.note_steps(steps, Instant::now());
        // What is read below also covers the events of these steps, so they must not start another
        // turn.
        world.note_changes(&kernel.changes());
    }
    let seen = if is_complete {
        observe(world, kernel, &mut is_urgent, &mut errors)
    } else {
        Err(EarlyEnd::Interrupted)
    };
    if let Err(end) = seen {
        // Some records are written, but perhaps not yet the sets of their containers.
        world.read_recorded(&applied, kernel)?;
        if !applied.is_empty() {
            let recent = world.recently_assigned.union(&owned);
            world.recently_assigned = recent.union(&world.ledger.exclusive());
        }
        return Err(end);
    }
    if !applied.is_empty() {
        world.write_live_cpus(kernel, (&decisions, &[]), None);
    }
    note_drift_left(world, context, &applied);
    world.forget_ended_unrecorded();
    let given_up = owned.difference(&decisions.desired.exclusive());
    // CPUs whose release has failed stay in the ledger.
    let held = world.ledger.exclusive().union(&world.ledger.excluded);
    let has_released = !given_up.is_subset(&held);
    let now = Instant::now();
    world.release_backoff.note(given_up, now, context.interval);
    world.forget_log_lines(&errors, now);
    world.note_refusals(&pods, world.observed(), &mut decisions);
    Ok(TurnResult {
        pods,
        before,
        decisions,
        drift,
        errors,
        has_released,
        ended_delays: false,
    })
}

/// Reads the dirty pods and what is around them, until the mirror shows the node as it is.
fn observe(
    world: &mut World,
    kernel: &impl Kernel,
    is_urgent: &mut dyn FnMut() -> bool,
    errors: &mut Vec<String>,
) -> Result<(), EarlyEnd> {
    world.heartbeat.begin("read the pods' cgroups");
    if world.read_dirty(kernel, is_urgent)? == Reading::Interrupted {
        return Err(EarlyEnd::Interrupted);
    }
    errors.extend(world.note_offline_cpus(kernel)?);
    Ok(())
}

/// Makes a plan, reads what it writes to and was not read since the turn has `begun`, and plans
/// anew if that has changed.
///
/// A running container moves only after the turn has read every pod, so a move that comes up in the
/// second plan may need a third.
fn plan_from_fresh_values(
    world: &mut World,
    kernel: &impl Kernel,
    context: &TurnContext<'_>,
    (begun, is_urgent): (Instant, &mut dyn FnMut() -> bool),
    errors: &mut Vec<String>,
) -> Result<Planned, EarlyEnd> {
    let mut planned = plan(world, kernel, context);
    for _ in 0..2 {
        let is_older = if planned.decisions.moves.is_empty() {
            world.mirror.mark_planned(&planned.steps, begun)
        } else {
            world.mirror.mark_older(begun)
        };
        if !is_older {
            break;
        }
        observe(world, kernel, is_urgent, errors)?;
        if !world.take_changed() {
            break;
        }
        planned = plan(world, kernel, context);
    }
    Ok(planned)
}

/// Compares the mirror with the ledger, decides, and plans the steps.
fn plan(world: &mut World, kernel: &impl Kernel, context: &TurnContext<'_>) -> Planned {
    let (node, enforcement) = (context.node, context.node.enforcement);
    world.heartbeat.begin("decide what each container gets");
    let drift = world.find_drift(node.topology, enforcement);
    let moves = world.moves_left(enforcement, context.moves_per_hour);
    let pods = world.pods_list();
    let mut decisions = world.decide(node, (&pods, world.observed()), moves);
    world.gate_isolated_partitions(&mut decisions, (kernel, enforcement), None);
    let desired = &decisions.desired;
    let steps = pin::plan(world.observed(), &world.ledger, desired, enforcement);
    Planned {
        pods,
        drift,
        decisions,
        steps,
    }
}

/// Notes the drift after the last step. If drift is repaired and returns in a later turn, it counts
/// as new. What another program has written during the turn is counted here, because later turns
/// compare with `world.drift`, which has it by then. Left out is what this turn has written to or
/// knew before: there, the difference may come from a step that failed, or that changed effective
/// CPUs below.
fn note_drift_left(world: &mut World, context: &TurnContext<'_>, applied: &[AppliedStep]) {
    let left = world.find_drift(context.node.topology, context.node.enforcement);
    let is_own = |drift: &Drift| {
        let mut steps = applied.iter().map(|done| &done.step);
        steps.any(|step| is_within(&drift.path, step.path()))
    };
    let is_known = |drift: &Drift| {
        let mut known = world.drift.iter();
        known.any(|known| known.path == drift.path && known.cause == drift.cause)
    };
    let foreign = left
        .iter()
        .filter(|drift| !is_own(drift) && !is_known(drift));
    let foreign: Vec<Drift> = foreign.cloned().collect();
    world.note_drift(&foreign);
    world.drift = left;
}

/// Carries the steps out, and stops between two units for an urgent event. Each leading step that
/// is safe alone ([`is_unit`]) is a unit; the first other step and all that follow it are the last
/// one.
fn apply(
    world: &World,
    kernel: &impl Kernel,
    steps: Vec<Step>,
    is_urgent: &mut dyn FnMut() -> bool,
) -> Vec<AppliedStep> {
    let single = steps.iter().take_while(|step| is_unit(step)).count();
    let mut number = 0;
    kernel.apply(steps, &mut |next| {
        world.heartbeat.begin(next.to_string());
        let goes_on = number > single || !is_urgent();
        number += 1;
        goes_on
    })
}

/// Whether a step is a unit of its own, because the state after it is safe and the next turn can
/// plan the rest anew. After any other step, for example on a partition, only a complete turn notes
/// when an owner's CPUs came into force.
fn is_unit(step: &Step) -> bool {
    matches!(
        step,
        Step::Record { .. }
            | Step::Cpus {
                reason: Reason::Pod | Reason::Narrow | Reason::Share | Reason::Return,
                ..
            }
    )
}
