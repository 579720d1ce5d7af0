//! Simulated CPUs with a true interference known to the nanosecond, read with Linux's imprecision.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::host::busy::RunSlices;

const MS: u64 = 1_000_000;

/// The users of a CPU's time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CpuUser {
    Idle,
    Waiting,
    TrackedOwner,
    Interference,
    /// A hypervisor takes the CPU while the owner could run. `stolen_is_the_owners` decides whether
    /// the kernel charges the owner.
    Stolen,
}

#[derive(Debug, Clone)]
struct Machine {
    cpus: Vec<Vec<(CpuUser, u64)>>,
    tick: u64,
    stolen_is_the_owners: bool,
    /// Whether the tick samples idle spells, instead of a clock that measures them.
    sampled: bool,
    /// The start of the period with known durations of turns, in nanoseconds.
    turns_known: u64,
    per_cpu: bool,
}

impl Machine {
    /// The CPU time of `who` on a CPU until `at`. With `ticks`, a running task is charged until its
    /// last tick.
    fn time(&self, cpu: usize, at: u64, who: CpuUser, ticks: bool) -> u64 {
        let (mut now, mut sum) = (0, 0);
        for &(one, length) in &self.cpus[cpu] {
            let end = now + length;
            if one == who && now < at {
                let cut = if ticks && end > at {
                    (at - at % self.tick).max(now)
                } else {
                    at.min(end)
                };
                sum += cut - now;
            }
            now = end;
        }
        sum
    }

    fn on_all(&self, at: u64, who: CpuUser, ticks: bool) -> u64 {
        (0..self.cpus.len())
            .map(|cpu| self.time(cpu, at, who, ticks))
            .sum()
    }

    /// Idle time as sampled by the tick: a whole tick for each tick on an idle CPU.
    fn sampled_idle(&self, cpu: usize, at: u64) -> u64 {
        let (mut now, mut idle) = (0, 0);
        for &(who, length) in &self.cpus[cpu] {
            let end = (now + length).min(at.max(now));
            if matches!(who, CpuUser::Idle | CpuUser::Waiting) {
                idle += (end / self.tick - now / self.tick) * self.tick;
            }
            now += length;
        }
        idle
    }

    fn spells(&self, cpu: usize, at: u64) -> u64 {
        let (mut now, mut spells) = (0, 0);
        for &(who, length) in &self.cpus[cpu] {
            if now <= at && !matches!(who, CpuUser::Idle | CpuUser::Waiting) {
                spells += 1;
            }
            now += length;
        }
        spells
    }

    /// The total duration of ended run slices, and the duration of the current slice.
    fn turns(&self, cpu: usize, at: u64) -> RunSlices {
        let (mut now, mut turns) = (0, RunSlices::default());
        for &(who, length) in &self.cpus[cpu] {
            if !matches!(who, CpuUser::Idle | CpuUser::Waiting) && now <= at {
                if now + length <= at {
                    turns.ended += Duration::from_nanos(length);
                } else {
                    turns.current = Duration::from_nanos(at - now);
                }
            }
            now += length;
        }
        turns
    }

    fn sample(&self, from: u64, to: u64) -> CpuSample {
        // Each counter is read at a different moment.
        let at = |part: u64| from + (to - from) * part / 7;
        let shown = |ns: u64| Duration::from_nanos(ns - ns % (10 * MS));
        let cpus = (0..self.cpus.len()).map(|cpu| {
            let id = u32::try_from(cpu).unwrap();
            let spell = at(u64::from(id) % 7);
            let idle = if self.sampled {
                shown(self.sampled_idle(cpu, spell))
            } else {
                shown(self.time(cpu, spell, CpuUser::Idle, false))
                    + shown(self.time(cpu, spell, CpuUser::Waiting, false))
            };
            let clock = CpuTimes {
                idle,
                steal: shown(self.time(cpu, spell, CpuUser::Stolen, false)),
                idle_error: if self.sampled {
                    TICK * u32::try_from(self.spells(cpu, spell)).unwrap()
                } else {
                    Duration::ZERO
                },
                lag: TICK,
                run_slices: (self.sampled && spell >= self.turns_known)
                    .then(|| self.turns(cpu, spell)),
                ..CpuTimes::default()
            };
            (id, clock)
        });
        let all = |cpu| {
            let tasks = [CpuUser::TrackedOwner, CpuUser::Interference]
                .map(|who| self.time(cpu, at(3), who, true));
            Duration::from_nanos(tasks.iter().sum())
        };
        CpuSample {
            began: Duration::from_nanos(from),
            ended: Duration::from_nanos(to),
            cpus: cpus.collect(),
            all_tasks: self
                .per_cpu
                .then(|| (0..self.cpus.len()).map(all).collect()),
            separate_interrupts: false,
        }
    }

    fn usage(&self, at: u64) -> CpuUsage {
        if self.per_cpu {
            let own =
                (0..self.cpus.len()).map(|cpu| self.time(cpu, at, CpuUser::TrackedOwner, true));
            return CpuUsage::PerCpu(own.map(Duration::from_nanos).collect());
        }
        let stolen = if self.stolen_is_the_owners {
            self.on_all(at, CpuUser::Stolen, true)
        } else {
            0
        };
        CpuUsage::Total(Duration::from_nanos(
            self.on_all(at, CpuUser::TrackedOwner, true) + stolen,
        ))
    }

    fn cpu_set(&self) -> CpuSet {
        (0..u32::try_from(self.cpus.len()).unwrap()).collect()
    }
}

fn who() -> impl Strategy<Value = CpuUser> {
    prop_oneof![
        4 => Just(CpuUser::TrackedOwner),
        2 => Just(CpuUser::Idle),
        1 => Just(CpuUser::Waiting),
        2 => Just(CpuUser::Interference),
        1 => Just(CpuUser::Stolen),
    ]
}

fn machine() -> impl Strategy<Value = Machine> {
    let length = prop_oneof![1..5 * MS, 1..80 * MS, Just(4 * MS), Just(10 * MS)];
    let cpu = proptest::collection::vec((who(), length), 1..60);
    let cpus = proptest::collection::vec(cpu, 1..4);
    let ticks = prop_oneof![Just(MS), Just(4 * MS), Just(10 * MS)];
    let known = prop_oneof![Just(0), 0..1000 * MS];
    (
        cpus,
        ticks,
        any::<bool>(),
        any::<bool>(),
        known,
        any::<bool>(),
    )
        .prop_map(
            |(cpus, tick, stolen_is_the_owners, sampled, turns_known, per_cpu)| Machine {
                cpus,
                tick,
                stolen_is_the_owners,
                sampled,
                turns_known,
                per_cpu,
            },
        )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// For all workloads and reading times, the true value lies within the error, and neither
    /// number decreases.
    #[test]
    fn the_truth_is_within_the_error(
        machine in machine(),
        readings in proptest::collection::vec((1..300 * MS, 1..3 * MS, 1..3 * MS), 2..12),
    ) {
        let mut times = InterferenceTracker::default();
        let (mut now, mut first, mut last) = (0, None, Interference::default());
        let mut machine = machine;
        let long = readings.iter().map(|(pause, one, two)| pause + one + two).sum::<u64>() + MS;
        for cpu in &mut machine.cpus {
            // Idle time fills the rest, so that each CPU has a state at every moment.
            let done: u64 = cpu.iter().map(|(_, length)| length).sum();
            cpu.push((CpuUser::Idle, long.saturating_sub(done) + 1));
        }
        for (pause, one, two) in readings {
            let from = now + pause;
            let (middle, to) = (from + one, from + one + two);
            let samples = (machine.sample(from, from + one / 2), machine.sample(middle + two / 2, to));
            let said = times.note("a", &machine.cpu_set(), &machine.usage(middle), (&samples.0, &samples.1));
            let truth = machine.on_all(middle, CpuUser::Interference, false);
            let truth = truth - *first.get_or_insert(truth);
            let off = (said.seconds - truth as f64 / 1e9).abs();
            prop_assert!(off <= said.error_seconds + 1e-9, "{said:?}, but {truth} ns is true: {machine:?}");
            prop_assert!(said.seconds >= last.seconds && said.error_seconds >= last.error_seconds);
            (now, last) = (to, said);
        }
    }
}

/// A scan of a single CPU.
fn sample(ms: u64, idle: u64) -> CpuSample {
    let clock = CpuTimes {
        idle: Duration::from_millis(idle),
        lag: TICK,
        ..CpuTimes::default()
    };
    CpuSample {
        began: Duration::from_millis(ms),
        ended: Duration::from_millis(ms),
        cpus: BTreeMap::from([(1, clock)]),
        all_tasks: None,
        separate_interrupts: false,
    }
}

fn total(ms: u64) -> CpuUsage {
    CpuUsage::Total(Duration::from_millis(ms))
}

#[test]
fn the_error_does_not_grow_with_readings() {
    let (mut times, cpus) = (InterferenceTracker::default(), "1".parse().unwrap());
    let mut said = Interference::default();
    for second in 0..3600 {
        let now = sample(1000 * second, 0);
        said = times.note("a", &cpus, &total(900 * second), (&now, &now));
    }
    assert!((said.seconds - 359.9).abs() < 0.1, "{said:?}");
    assert!(said.error_seconds <= 0.031, "{said:?}");
}

#[test]
fn time_between_two_sets_is_left_out() {
    let mut times = InterferenceTracker::default();
    let mut note = |list: &str, ms, idle, used| {
        let cpus = list.parse().unwrap();
        times.note(
            "a",
            &cpus,
            &total(used),
            (&sample(ms, idle), &sample(ms, idle)),
        )
    };
    note("1", 0, 0, 0);
    // CPU 1 is busy for a second without the owner. Afterwards the owner holds CPU 2, which the
    // scans lack.
    let said = note("1", 1000, 0, 0);
    assert!(
        (said.seconds - 1.0).abs() <= said.error_seconds + 1e-9,
        "{said:?}"
    );
    assert_eq!(note("2", 5000, 0, 0), said);
    assert_eq!(
        note("1", 9000, 0, 0),
        said,
        "the first reading of a tenure says nothing yet"
    );
    let later = note("1", 10_000, 0, 1000);
    assert!(
        (later.seconds - said.seconds).abs() < 0.04 && later.error_seconds > said.error_seconds
    );
    // A usage that starts at zero belongs to a new container of the same name.
    assert_eq!(note("1", 20_000, 0, 5), later);
}

#[test]
fn readings_that_contradict_are_left_out() {
    let (mut times, cpus) = (InterferenceTracker::default(), "1".parse().unwrap());
    let mut note = |ms, idle| {
        times.note(
            "a",
            &cpus,
            &total(0),
            (&sample(ms, idle), &sample(ms, idle)),
        )
    };
    note(0, 0);
    let said = note(1000, 500);
    // The idle time exceeds the elapsed time: a spell was counted twice.
    assert_eq!(note(1100, 1500), said);
    let next = note(2000, 1000);
    assert!(next.seconds > said.seconds);
    for ms in [2100, 2200, 2300] {
        assert_eq!(note(ms, 9000), next);
    }
    // The tracker takes the third contradiction for a counter reset and begins a new tenure.
    assert!(note(3300, 9000).seconds > next.seconds + 0.9);
}

#[test]
fn an_owner_without_new_notes_is_forgotten() {
    let (mut times, cpus) = (InterferenceTracker::default(), "1".parse().unwrap());
    times.note("a", &cpus, &total(0), (&sample(0, 0), &sample(0, 0)));
    times.sweep();
    assert_eq!(times.owners.len(), 1);
    times.sweep();
    assert!(times.owners.is_empty());
}

#[test]
fn every_source_of_error_counts_at_its_worst() {
    let mut times = InterferenceTracker::default();
    let cpus = "1".parse().unwrap();
    let mut note = |ms, idle, used| {
        times.note(
            "a",
            &cpus,
            &total(used),
            (&sample(ms, idle), &sample(ms, idle)),
        )
    };
    note(0, 0, 0);
    // Two idle times of just under 10 ms are invisible, and so is the owner's last tick. All of the
    // difference can be rounding, without any interference.
    let said = note(130, 0, 100);
    assert!(said.seconds <= said.error_seconds, "{said:?}");
    // One more millisecond exceeds all rounding errors.
    assert!(note(131, 0, 100).seconds > 0.0);
    let said = note(140, 0, 100);
    assert!(said.seconds - said.error_seconds > 0.009, "{said:?}");
}
