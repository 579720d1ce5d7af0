//! Interference: the CPU time of foreign tasks on an owner's exclusive CPUs, with an error bound.
//!
//! The interference of a period is the CPUs' busy time minus the CPU time of the owner's cgroup.
//! The kernel's counters are neither exact nor readable at the same instant, so each reading yields
//! an interval that certainly contains the true value. The difference of two readings is an
//! interval, too. Pinfold exports its middle, with half the width as the error.
//!
//! Sources of error, each with the bound that the interval allows for:
//!
//! - The two counters are read one after the other. The CPUs are read before *and* after the owner.
//! - Idle time is shown rounded down to 10 ms, twice per CPU. Bound: 20 ms per CPU.
//! - A running task is charged at the next tick only. Bound: one tick per CPU (10 ms; 1.1 s on a
//!   `nohz_full` CPU).
//! - Short idle spells are only sampled (Linux 7.1 and newer, `nohz=off`). Bound: one tick for each
//!   run slice of a task, or the longest possible duration of the current run slice, whichever is
//!   less. The second bound needs the time of all run slices.
//! - A hypervisor takes the CPU. Some kernels charge the stolen time to the owner, others to no
//!   task. Bound: all of it.
//! - A set of CPUs gets another owner, or an owner gets other CPUs. The period between the two
//!   readings is left out.
//!
//! A tenure is a period in which an owner keeps the same CPUs. Within it, every reading is compared
//! with the first one. Rounding therefore counts at the two ends only, and the error does not grow
//! with the number of readings.
//!
//! Interrupts count as interference if the kernel times them apart
//! ([`CpuSample::separate_interrupts`]). Otherwise, those during the owner's threads are
//! indistinguishable from the owner's usage.
//!
//! On cgroup v1, the kernel counts the sum of all tasks for each CPU at the same moment as the
//! owner's time. Only two errors remain: the order of the readings, and one tick of a foreign task
//! that runs during the reading.

use std::collections::HashMap;
use std::time::Duration;

use crate::cpu::CpuSet;
use crate::host::busy::{CpuSample, CpuTimes, TICK, UNIT};
use crate::host::cgroup::CpuUsage;

/// Readings that contradict earlier ones are left out. After this many contradictions in a row, a
/// new tenure begins.
const MAX_CONTRADICTIONS: u32 = 3;

/// The interference of an owner since the first reading. Neither number ever decreases.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Interference {
    /// CPU seconds of foreign tasks on the owner's CPUs.
    pub seconds: f64,
    /// The true value differs from `seconds` by at most this many seconds.
    pub error_seconds: f64,
}

/// Interference totals of all owners, by cgroup.
#[derive(Debug, Default)]
pub struct InterferenceTracker {
    owners: HashMap<String, TrackedOwner>,
}

/// A time in nanoseconds. Sums over many CPUs since boot exceed 64 bits.
type BootNanos = i128;

#[derive(Debug, Default)]
struct TrackedOwner {
    tenure: Option<Tenure>,
    total: BootNanos,
    error: BootNanos,
    /// The totals of earlier tenures: interference and error.
    before: (BootNanos, BootNanos),
    updated: bool,
}

/// A period in which an owner keeps the same CPUs, with a track for each source of busy time.
#[derive(Debug)]
struct Tenure {
    cpus: CpuSet,
    tracks: Vec<Track>,
    /// The time of the last reading, and the owner's usage then.
    last: (BootNanos, BootNanos),
    contradictions: u32,
}

/// The count of a source within a tenure. A track starts anew if another source has much narrower
/// bounds.
#[derive(Debug, Clone, Copy)]
struct Track {
    start: InterferenceBounds,
    /// The lower and upper bound of the interference before the track's start.
    before: (BootNanos, BootNanos),
    /// The highest lower bound of earlier readings: interference never decreases.
    least: BootNanos,
}

/// Interference between `least` and `most`; `about` is near the middle.
#[derive(Debug, Clone, Copy)]
struct Bounds {
    least: BootNanos,
    about: BootNanos,
    most: BootNanos,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum UsageSource {
    /// The root cgroup's counter for each CPU (cgroup v1).
    Counted,
    /// The clock: all time except idle time.
    Clock,
    /// The durations of tasks' run slices on the CPU, from `/proc/schedstat`.
    RunSlices,
}

/// The interference since boot according to a reading: between `low` and `high`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct InterferenceBounds {
    from: BootNanos,
    to: BootNanos,
    low: BootNanos,
    high: BootNanos,
    /// Time that may have to be subtracted (`less`) or added (`more`). The first number counts for
    /// a track's start, the second one for a later reading.
    less: (BootNanos, BootNanos),
    more: (BootNanos, BootNanos),
    /// The source, and whether interrupts were timed apart. Only readings of the same kind are
    /// comparable.
    kind: (UsageSource, bool),
    /// The owner's CPU time, which decreases only if a new cgroup replaces the old one.
    used: BootNanos,
}

// === impl InterferenceTracker ===

impl InterferenceTracker {
    /// Adds a reading of an owner and returns the owner's totals.
    ///
    /// `usage` belongs to the owner's cgroup `key`, read between the samples `first` and `second`.
    /// `cpus` is the owner's full set, with all CPUs in force. Before and after a change of CPUs,
    /// the caller adds a reading for each set. The time in between is left out.
    pub fn note(
        &mut self,
        key: &str,
        cpus: &CpuSet,
        usage: &CpuUsage,
        (first, second): (&CpuSample, &CpuSample),
    ) -> Interference {
        let owner = self.owners.entry(key.to_owned()).or_default();
        owner.updated = true;
        let sources: &[UsageSource] = match usage {
            CpuUsage::PerCpu(_) => &[UsageSource::Counted],
            CpuUsage::Total(_) => &[UsageSource::Clock, UsageSource::RunSlices],
        };
        let points: Vec<InterferenceBounds> = sources
            .iter()
            .filter_map(|source| point(*source, cpus, first, usage, second))
            .collect();
        owner.note(cpus, &points);
        Interference {
            seconds: seconds(owner.total),
            error_seconds: seconds(owner.error),
        }
    }

    /// Drops the owners without a reading since the last call.
    pub fn sweep(&mut self) {
        self.owners
            .retain(|_, owner| std::mem::take(&mut owner.updated));
    }
}

// === impl TrackedOwner ===

impl TrackedOwner {
    /// Keeps the totals and begins a new tenure.
    fn begin(&mut self, cpus: &CpuSet, points: &[InterferenceBounds]) {
        self.before = (self.total, self.error);
        // Without a reading, because a CPU is offline or a counter is missing, no tenure begins.
        self.tenure = points.first().map(|point| Tenure {
            cpus: cpus.clone(),
            last: (point.to, point.used),
            tracks: points
                .iter()
                .map(|start| Track::new(*start, (0, 0)))
                .collect(),
            contradictions: 0,
        });
    }

    fn note(&mut self, cpus: &CpuSet, points: &[InterferenceBounds]) {
        let Some(tenure) = self
            .tenure
            .as_mut()
            .filter(|tenure| tenure.goes_on(cpus, points))
        else {
            return self.begin(cpus, points);
        };
        let best = tenure.bounds(points);
        let Some(Bounds { least, about, most }) = best else {
            tenure.contradictions += 1;
            if tenure.contradictions >= MAX_CONTRADICTIONS {
                self.begin(cpus, points);
            }
            return;
        };
        tenure.contradictions = 0;
        let (total, error) = self.before;
        self.total = self.total.max(total + about);
        let within = self.total - total;
        self.error = self.error.max(error + (most - within).max(within - least));
    }
}

// === impl Tenure ===

impl Tenure {
    /// Whether a new reading belongs to the tenure. For that, the CPUs and the cgroup must be the
    /// same, and the usage must not decrease.
    fn goes_on(&self, cpus: &CpuSet, points: &[InterferenceBounds]) -> bool {
        let Some(now) = points.first() else {
            return false;
        };
        let alike = |track: &Track| now.kind.1 == track.start.kind.1;
        self.cpus == *cpus
            && now.to >= self.last.0
            && now.used >= self.last.1
            && self.tracks.iter().all(alike)
    }

    /// The narrowest bounds among all sources; `None` if the reading contradicts earlier readings.
    /// Contradictions happen because the kernel reads idle time and waiting-idle time at different
    /// instants, so a spell can count in both or in neither.
    fn bounds(&mut self, points: &[InterferenceBounds]) -> Option<Bounds> {
        let count = BootNanos::try_from(self.cpus.len()).unwrap_or(BootNanos::MAX);
        let mut best: Option<Bounds> = None;
        for track in &mut self.tracks {
            let Some(now) = points.iter().find(|now| now.kind == track.start.kind) else {
                continue;
            };
            let Some(bounds) = track.bounds(now, count) else {
                continue;
            };
            track.least = bounds.least;
            if best.is_none_or(|best| bounds.width() < best.width()) {
                best = Some(bounds);
            }
        }
        let known = best?;
        for now in points {
            self.last = (now.to, now.used);
            let anew = Track::new(*now, (known.least, known.most));
            match self
                .tracks
                .iter_mut()
                .find(|track| track.start.kind == now.kind)
            {
                Some(track) => {
                    let poor = track
                        .bounds(now, count)
                        .is_none_or(|own| own.width() > 2 * known.width());
                    if poor {
                        *track = anew;
                    }
                }
                None => self.tracks.push(anew),
            }
        }
        best
    }
}

// === impl Track ===

impl Track {
    fn new(start: InterferenceBounds, before: (BootNanos, BootNanos)) -> Self {
        Self {
            start,
            before,
            least: before.0,
        }
    }

    /// The interference of the tenure on `cpus` CPUs according to the track's source; `None` for a
    /// contradiction.
    fn bounds(&self, now: &InterferenceBounds, cpus: BootNanos) -> Option<Bounds> {
        let start = &self.start;
        let all = (now.to - start.from).saturating_mul(cpus);
        let low = self.before.0 + now.low - start.high - (now.less.1 - start.less.0);
        let most = self.before.1 + (now.high - start.low + (now.more.1 - start.more.0)).min(all);
        let least = low.max(self.least);
        (least <= most).then(|| Bounds {
            least,
            about: ((low + most) / 2).clamp(least, most),
            most,
        })
    }
}

// === impl Bounds ===

impl Bounds {
    fn width(&self) -> BootNanos {
        self.most - self.least
    }
}

/// The reading from a usage and the CPU samples before and after; `None` if a CPU's counter is
/// missing.
fn point(
    source: UsageSource,
    cpus: &CpuSet,
    first: &CpuSample,
    usage: &CpuUsage,
    second: &CpuSample,
) -> Option<InterferenceBounds> {
    let mut point = InterferenceBounds {
        from: ns(first.began),
        to: ns(second.ended),
        low: 0,
        high: 0,
        less: (0, 0),
        more: (0, 0),
        kind: (source, second.separate_interrupts),
        used: 0,
    };
    if first.separate_interrupts != second.separate_interrupts {
        return None;
    }
    for cpu in cpus.iter() {
        let (before, after) = (first.cpus.get(&cpu)?, second.cpus.get(&cpu)?);
        match source {
            UsageSource::Counted => {
                let CpuUsage::PerCpu(own) = usage else {
                    return None;
                };
                let at = cpu as usize;
                let (own, low, high) = (
                    own.get(at)?,
                    first.all_tasks.as_ref()?.get(at)?,
                    second.all_tasks.as_ref()?.get(at)?,
                );
                point.used += ns(*own);
                point.low += ns(*low) - ns(*own);
                point.high += ns(*high) - ns(*own) + ns(after.lag);
                if second.separate_interrupts {
                    point.low += ns(before.interrupts);
                    point.high += ns(after.interrupts) + 2 * ns(UNIT);
                }
            }
            UsageSource::Clock => point.clock(first.began, before, after, second.ended),
            UsageSource::RunSlices => {
                let (turns, later) = (before.run_slices?, after.run_slices?);
                point.low += ns(turns.ended) - ns(after.lag);
                point.high += ns(later.ended) + ns(later.current);
                point.stolen(before, after);
            }
        }
    }
    if let CpuUsage::Total(own) = usage {
        point.used = ns(*own);
        point.low -= ns(*own);
        point.high -= ns(*own);
    }
    Some(point)
}

// === impl InterferenceBounds ===

impl InterferenceBounds {
    /// Adds a CPU whose busy time is all time except idle time.
    fn clock(&mut self, from: Duration, before: &CpuTimes, after: &CpuTimes, to: Duration) {
        self.low += ns(from) - ns(before.idle) - 2 * ns(UNIT) - ns(after.lag);
        self.high += ns(to) - ns(after.idle);
        // Idle spells cut by the two readings count as well.
        let spells = if after.idle_error.is_zero() {
            0
        } else {
            ns(after.idle_error) + 2 * ns(TICK)
        };
        self.less.0 += ns(before.idle_error);
        self.less.1 += spells;
        self.more.0 += ns(before.idle_error);
        self.more.1 += spells;
        self.stolen(before, after);
    }

    /// Adds stolen time to the bounds. Some kernels charge it to the owner's usage, and others to
    /// no task.
    fn stolen(&mut self, before: &CpuTimes, after: &CpuTimes) {
        if !after.steal.is_zero() {
            self.low -= ns(UNIT);
        }
        self.less.0 += ns(before.steal);
        self.less.1 += ns(after.steal);
    }
}

fn ns(time: Duration) -> BootNanos {
    BootNanos::try_from(time.as_nanos()).unwrap_or(BootNanos::MAX)
}

fn seconds(time: BootNanos) -> f64 {
    time as f64 / 1e9
}

#[cfg(test)]
mod tests;
