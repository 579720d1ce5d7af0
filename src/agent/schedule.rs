//! [`Schedule`]: when which turn runs.
//!
//! The schedule is a pure type: the caller passes the time. Triggers that arrive together lead to
//! one turn, which reads at least as much as each of them needs.

use std::time::{Duration, Instant};

/// How long runtime requests may postpone a due turn. After that, the turn runs before the next
/// request, and does not yield.
///
/// On a node with 250 pods, a turn that does not yield takes about 100 ms, and requests wait for its end. With a limit of 1 s,
/// 15 such turns ran during 500 creations, 3 for 100 creations.
pub(super) const LONGEST_DELAY: Duration = Duration::from_secs(5);

/// The pause between the answer to a runtime request and the next turn. The receiver of the answer
/// may wake up on the reconciler's CPU, or on one that a turn keeps busy.
const AFTER_ANSWER: Duration = Duration::from_millis(3);

/// After a turn about all pods, the next turn for changed cgroups waits this many times as long as
/// the turn took. The pauses of several turns add up, up to [`LONGEST_PAUSE`], so a program that keeps
/// writing to cgroups costs at most a fifth of a CPU.
///
/// The pause also spares a busy node useless work. Beside 250 shared containers, it takes 30 ms to
/// hand back the CPUs of an owner that has ended, and as much to take them away again for the next
/// one, which often comes a moment later and would have to wait.
const THROTTLE: u32 = 4;

/// The longest pause after several turns. Only a single long turn for changed cgroups causes a
/// longer one.
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// Why a turn runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Trigger {
    Start,
    /// A source of pods has changed.
    Pods,
    /// Cgroups were made, removed or written.
    Cgroups,
    /// The container runtime has listed its containers, is about to change a container, or went on without an answer.
    Runtime,
    /// CreateContainer was answered. The next turn takes the new owner's CPUs from the shared containers.
    Create,
    /// StartContainer waits for the turn.
    StartContainer,
    /// The reconcile interval has passed.
    Timer,
    /// The state of the kubelet's CPU Manager has changed.
    Kubelet,
}

/// How many pods a turn is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TurnExtent {
    /// One pod, for a runtime request. Such a turn publishes no snapshot, so one about all pods
    /// follows.
    Pod,
    AllPods,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TurnOutcome {
    /// The turn is complete, and its result is published.
    Done,
    /// The turn ended with an error, which is published.
    Failed,
    /// Everything read as it did before, so nothing was decided.
    Unchanged,
    /// The turn was not enough for its request, so the reconciler runs one about all pods at once.
    /// The first one may already have written to the pod.
    NeedsAllPods,
    /// The turn ended between two units for an urgent event. What it wrote is safe, and a later turn does the rest.
    Interrupted,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct TurnReport {
    pub(super) trigger: Trigger,
    pub(super) extent: TurnExtent,
    pub(super) outcome: TurnOutcome,
    pub(super) duration: Duration,
    /// When another turn is necessary even if no cgroup changes.
    pub(super) follow_up: Option<Instant>,
}

/// A due turn about all pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct DueTurn {
    pub(super) trigger: Trigger,
    /// Whether the turn may yield to urgent events.
    pub(super) may_end_early: bool,
}

/// The reconciler's next action.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NextAction {
    /// The turn runs now; with `may_end_early`, after the requests that wait.
    Turn(DueTurn),
    /// No turn is due before this time or, if it is `None`, before the next trigger.
    Wait(Option<Instant>),
}

/// A wanted turn about all pods.
#[derive(Debug, Clone, Copy)]
struct WantedTurn {
    trigger: Trigger,
    /// When its first trigger arrived.
    since: Instant,
    not_before: Instant,
}

#[derive(Debug)]
pub(super) struct Schedule {
    /// Whether the pods are known, or the wait for pods has ended. No turn runs earlier.
    pods_synced: bool,
    wanted: Option<WantedTurn>,
    /// When the first change came that no complete turn has read.
    cgroups_changed: Option<Instant>,
    /// The earliest time of the next turn for changed cgroups.
    throttled_until: Instant,
    /// When the turn is due that the last one asked for.
    follow_up: Option<Instant>,
}

// === impl Trigger ===

impl Trigger {
    /// The trigger's name in the label `trigger` of metrics.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Pods => "pods",
            Self::Cgroups => "cgroups",
            Self::Runtime => "runtime",
            Self::Create => "create",
            Self::StartContainer => "start_container",
            Self::Timer => "timer",
            Self::Kubelet => "kubelet",
        }
    }

    /// Whether the trigger alone gives a turn no reason to write.
    fn only_observes(self) -> bool {
        matches!(self, Self::Cgroups | Self::Timer)
    }
}

// === impl Schedule ===

impl Schedule {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            pods_synced: false,
            wanted: None,
            cgroups_changed: None,
            throttled_until: now,
            follow_up: None,
        }
    }

    /// Whether turns may run: the pods are known, or the wait for pods has ended.
    pub(super) fn are_pods_synced(&self) -> bool {
        self.pods_synced
    }

    /// Lets turns run, because the pods are known or the wait for them has ended.
    pub(super) fn set_pods_synced(&mut self) {
        self.pods_synced = true;
    }

    /// Takes a trigger. Until the pods are synced, it only notes changed cgroups.
    pub(super) fn on(&mut self, trigger: Trigger, now: Instant) {
        match trigger {
            Trigger::Cgroups => {
                self.cgroups_changed.get_or_insert(now);
            }
            _ if !self.pods_synced => {}
            Trigger::Create => self.want(trigger, now, now + AFTER_ANSWER),
            _ => self.want(trigger, now, now),
        }
    }

    /// Notes the answer to a runtime request, so that the next turn waits for its receiver.
    pub(super) fn answered(&mut self, now: Instant) {
        let then = now + AFTER_ANSWER;
        if let Some(wanted) = &mut self.wanted {
            wanted.not_before = wanted.not_before.max(then);
        }
        self.throttled_until = self.throttled_until.max(then);
    }

    /// Whether a turn for changed cgroups will run without a further trigger.
    pub(super) fn knows_cgroup_changes(&self) -> bool {
        self.cgroups_changed.is_some()
    }

    /// Takes the time of the next turn that is necessary even if no cgroup changes.
    pub(super) fn follow_up_at(&mut self, follow_up: Option<Instant>) {
        self.follow_up = follow_up;
    }

    pub(super) fn finished(&mut self, report: &TurnReport, now: Instant) {
        self.follow_up = report.follow_up;
        if report.extent == TurnExtent::AllPods {
            let pause = report.duration * THROTTLE;
            let longest = now
                + match report.trigger {
                    Trigger::Cgroups => LONGEST_PAUSE.max(pause),
                    _ => LONGEST_PAUSE,
                };
            let added = self.throttled_until.max(now) + pause;
            self.throttled_until = self.throttled_until.max(added.min(longest));
        }
        match (report.outcome, report.extent) {
            // A turn about all pods serves all earlier triggers.
            (TurnOutcome::Done | TurnOutcome::Unchanged, TurnExtent::AllPods) => {
                self.wanted = None;
                self.cgroups_changed = None;
            }
            (TurnOutcome::Done, TurnExtent::Pod) if report.trigger == Trigger::Create => {
                self.on(Trigger::Create, now);
            }
            (TurnOutcome::Done, TurnExtent::Pod) => self.on(Trigger::Cgroups, now),
            // The timer starts the next attempt. A follow-up may be due already, and would repeat
            // the failure without a pause.
            (TurnOutcome::Failed, _) => {
                (self.wanted, self.follow_up) = (None, None);
                self.cgroups_changed = None;
            }
            // After `NeedsAllPods`, the reconciler runs the turn about all pods at once. An
            // interrupted turn stays wanted.
            (TurnOutcome::NeedsAllPods | TurnOutcome::Interrupted, _)
            | (TurnOutcome::Unchanged, TurnExtent::Pod) => {}
        }
    }

    pub(super) fn next(&mut self, now: Instant) -> NextAction {
        if !self.pods_synced {
            return NextAction::Wait(None);
        }
        if self.wanted.is_none() {
            let Some(at) = self.cgroups_changed.or(self.follow_up) else {
                return NextAction::Wait(None);
            };
            let at = at.max(self.throttled_until);
            if at > now {
                return NextAction::Wait(Some(at));
            }
            self.cgroups_changed = None;
            self.want(Trigger::Cgroups, now, now);
        }
        let Some(wanted) = &self.wanted else {
            return NextAction::Wait(None);
        };
        if wanted.not_before > now {
            return NextAction::Wait(Some(wanted.not_before));
        }
        NextAction::Turn(DueTurn {
            trigger: wanted.trigger,
            may_end_early: now.saturating_duration_since(wanted.since) <= LONGEST_DELAY,
        })
    }

    /// Adds a trigger to the wanted turn, which is named after the first trigger that gives it a
    /// reason to write.
    fn want(&mut self, trigger: Trigger, now: Instant, not_before: Instant) {
        match &mut self.wanted {
            Some(wanted) if wanted.trigger.only_observes() => wanted.trigger = trigger,
            Some(_) => {}
            wanted => {
                *wanted = Some(WantedTurn {
                    trigger,
                    since: now,
                    not_before,
                });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn synced(now: Instant) -> Schedule {
        let mut schedule = Schedule::new(now);
        schedule.set_pods_synced();
        schedule
    }

    fn due(trigger: Trigger, may_end_early: bool) -> NextAction {
        NextAction::Turn(DueTurn {
            trigger,
            may_end_early,
        })
    }

    fn report(trigger: Trigger, extent: TurnExtent, outcome: TurnOutcome) -> TurnReport {
        TurnReport {
            trigger,
            extent,
            outcome,
            duration: 10 * MS,
            follow_up: None,
        }
    }

    #[test]
    fn a_burst_of_triggers_leads_to_one_turn() {
        use Trigger::{Cgroups, Create, Kubelet, Pods, Runtime, Timer};
        let start = Instant::now();
        for (burst, trigger) in [
            (vec![Timer, Pods], Pods),
            (vec![Pods, Timer], Pods),
            (vec![Timer, Create], Create),
            (vec![Create, Timer], Create),
            (vec![Create, Create], Create),
            (vec![Create, Runtime], Create),
            (vec![Kubelet, Cgroups, Pods, Timer], Kubelet),
        ] {
            let mut schedule = synced(start);
            for trigger in &burst {
                schedule.on(*trigger, start);
            }
            let now = start + AFTER_ANSWER;
            assert_eq!(schedule.next(now), due(trigger, true), "{burst:?}");
            schedule.finished(
                &report(trigger, TurnExtent::AllPods, TurnOutcome::Done),
                now,
            );
            // No turn is left: the burst led to a single turn.
            assert_eq!(schedule.next(now), NextAction::Wait(None), "{burst:?}");
        }
    }

    #[test]
    fn no_turn_runs_before_the_pods_are_synced() {
        let start = Instant::now();
        let mut schedule = Schedule::new(start);
        for trigger in [
            Trigger::Timer,
            Trigger::Pods,
            Trigger::Create,
            Trigger::Cgroups,
        ] {
            schedule.on(trigger, start);
        }
        assert_eq!(schedule.next(start + 60_000 * MS), NextAction::Wait(None));
        schedule.set_pods_synced();
        // Only the changed cgroups are remembered.
        assert_eq!(schedule.next(start), due(Trigger::Cgroups, true));
    }

    #[test]
    fn a_failed_turn_is_repeated_by_the_next_trigger_only() {
        let start = Instant::now();
        let mut schedule = synced(start);
        schedule.on(Trigger::Pods, start);
        schedule.finished(
            &report(Trigger::Pods, TurnExtent::AllPods, TurnOutcome::Failed),
            start,
        );
        assert_eq!(schedule.next(start + 9_000 * MS), NextAction::Wait(None));
        let tick = start + 10_000 * MS;
        schedule.on(Trigger::Timer, tick);
        assert_eq!(schedule.next(tick), due(Trigger::Timer, true));
    }

    #[test]
    fn a_failed_turn_is_not_repeated_for_cpus_that_were_given_up() {
        let start = Instant::now();
        let mut schedule = synced(start);
        schedule.on(Trigger::Pods, start);
        let mut failed = report(Trigger::Pods, TurnExtent::AllPods, TurnOutcome::Failed);
        failed.follow_up = Some(start);
        schedule.finished(&failed, start + MS);
        assert_eq!(schedule.next(start + MS), NextAction::Wait(None));
    }

    #[test]
    fn after_five_seconds_a_turn_runs_to_its_end() {
        let start = Instant::now();
        let mut schedule = synced(start);
        schedule.on(Trigger::Pods, start);
        let interrupted = report(Trigger::Pods, TurnExtent::AllPods, TurnOutcome::Interrupted);
        for at in [0, 2500, 5000] {
            let now = start + at * MS;
            assert_eq!(schedule.next(now), due(Trigger::Pods, true));
            schedule.finished(&interrupted, now);
            // A later trigger does not start the wait anew.
            schedule.on(Trigger::Runtime, now);
        }
        assert_eq!(schedule.next(start + 5001 * MS), due(Trigger::Pods, false));
    }

    #[test]
    fn a_turn_about_all_pods_follows_a_creation() {
        let start = Instant::now();
        let mut schedule = synced(start);
        schedule.finished(
            &report(Trigger::Create, TurnExtent::Pod, TurnOutcome::Done),
            start,
        );
        assert_eq!(
            schedule.next(start),
            NextAction::Wait(Some(start + AFTER_ANSWER))
        );
        let now = start + AFTER_ANSWER;
        assert_eq!(schedule.next(now), due(Trigger::Create, true));
        // A turn about all pods for a request serves the earlier creation, too.
        schedule.finished(
            &report(Trigger::Create, TurnExtent::AllPods, TurnOutcome::Done),
            now,
        );
        assert_eq!(schedule.next(now), NextAction::Wait(None));
    }

    #[test]
    fn a_pinned_pod_is_published_by_a_turn_that_follows() {
        let start = Instant::now();
        let mut schedule = synced(start);
        schedule.finished(
            &report(Trigger::StartContainer, TurnExtent::Pod, TurnOutcome::Done),
            start,
        );
        schedule.answered(start);
        let now = start + AFTER_ANSWER;
        assert_eq!(schedule.next(start), NextAction::Wait(Some(now)));
        assert_eq!(schedule.next(now), due(Trigger::Cgroups, true));
    }

    #[test]
    fn an_answer_reaches_the_runtime_before_the_next_turn() {
        let start = Instant::now();
        let mut schedule = synced(start);
        schedule.on(Trigger::Timer, start);
        schedule.answered(start);
        assert_eq!(
            schedule.next(start),
            NextAction::Wait(Some(start + AFTER_ANSWER))
        );
        let now = start + AFTER_ANSWER;
        assert_eq!(schedule.next(now), due(Trigger::Timer, true));
    }

    #[test]
    fn a_program_that_writes_to_cgroups_without_end_costs_a_fifth_of_a_cpu() {
        let start = Instant::now();
        let (mut schedule, mut now, mut busy) = (synced(start), start, Duration::ZERO);
        for _ in 0..10 {
            schedule.on(Trigger::Cgroups, now);
            if let NextAction::Wait(Some(until)) = schedule.next(now) {
                now = until;
            }
            assert_eq!(schedule.next(now), due(Trigger::Cgroups, true));
            let done = report(Trigger::Cgroups, TurnExtent::AllPods, TurnOutcome::Done);
            now += done.duration;
            busy += done.duration;
            schedule.finished(&done, now);
        }
        assert_eq!(
            now - start,
            busy * 5 - busy / 10 * 4,
            "the first turn runs at once"
        );
        // Only turns for changed cgroups are throttled.
        schedule.on(Trigger::Pods, now);
        assert_eq!(schedule.next(now), due(Trigger::Pods, true));
    }

    #[test]
    fn the_pauses_of_several_turns_add_up_to_half_a_second() {
        let start = Instant::now();
        let mut schedule = synced(start);
        let interrupted = report(
            Trigger::Create,
            TurnExtent::AllPods,
            TurnOutcome::Interrupted,
        );
        let mut pauses = Vec::new();
        for _ in 0..20 {
            schedule.finished(&interrupted, start);
            schedule.on(Trigger::Cgroups, start);
            match schedule.next(start) {
                NextAction::Wait(Some(until)) => pauses.push(until - start),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(pauses[..3], [40 * MS, 80 * MS, 120 * MS]);
        assert_eq!(pauses[19], LONGEST_PAUSE);
        // A turn about one pod, for a runtime request, delays nothing.
        let mut schedule = synced(start);
        let start_container = report(Trigger::StartContainer, TurnExtent::Pod, TurnOutcome::Done);
        schedule.finished(&start_container, start);
        assert_eq!(schedule.next(start), due(Trigger::Cgroups, true));
        // A single long turn has a longer pause, which later turns do not shorten.
        let long = TurnReport {
            trigger: Trigger::Cgroups,
            duration: 1000 * MS,
            ..interrupted
        };
        let mut schedule = synced(start);
        for turn in [long, interrupted] {
            schedule.finished(&turn, start);
            schedule.on(Trigger::Cgroups, start);
            let until = start + 4000 * MS;
            assert_eq!(schedule.next(start), NextAction::Wait(Some(until)));
        }
    }

    #[test]
    fn a_follow_up_runs_at_its_time_once() {
        let start = Instant::now();
        let mut schedule = synced(start);
        let at = start + 2000 * MS;
        let mut done = report(Trigger::Timer, TurnExtent::AllPods, TurnOutcome::Done);
        done.follow_up = Some(at);
        schedule.finished(&done, start);
        assert_eq!(schedule.next(start), NextAction::Wait(Some(at)));
        assert_eq!(schedule.next(at), due(Trigger::Cgroups, true));
        let done = report(Trigger::Cgroups, TurnExtent::AllPods, TurnOutcome::Done);
        schedule.finished(&done, at);
        assert_eq!(schedule.next(at + 60_000 * MS), NextAction::Wait(None));
    }
}
