//! Foreign time: CPU time on an exclusive set that its owner did not spend, and how wrong that number may be.
//!
//! What is computed is what the CPUs did less what the owner's cgroup used, over the same time. Neither is read at one
//! instant, nor exactly. So each reading yields an interval that certainly holds the truth, and so does the difference of
//! two readings. What is exported is its middle, with half its width as the error.
//!
//! | source of error | treated as |
//! |---|---|
//! | the two counters are read one after the other | the CPUs' are read before *and* after the owner's |
//! | idle time is shown rounded down to 10 ms, twice per CPU | 20 ms per CPU |
//! | a running task is charged at the next tick only | one tick (10 ms; 1.1 s on a `nohz_full` CPU) per CPU |
//! | short idle spells are sampled (Linux 7.1 and newer, `nohz=off`) | one tick for each turn of a task on the CPU; or, from the time of those turns, the longest that the present one can have lasted: whichever is less |
//! | a hypervisor took the CPU: the owner's time, or nobody's | all of the stolen time |
//! | the set's owner or its CPUs changed between two readings | nothing is said of that time |
//!
//! The error does not grow with the number of readings: within one tenure all of them are compared with its first, so
//! that rounding counts at the two ends only. Interrupts are foreign time where the kernel times them apart
//! ([`Look::interrupts_apart`]); else those that hit the owner's own threads are in the owner's usage and can't be told from it.
//!
//! On cgroup v1 the sum of all tasks is counted by CPU, in the same moment as the owner's: only the reading order and one
//! tick of a foreign task that runs right now are left.

use std::collections::HashMap;
use std::time::Duration;

use crate::cpu::CpuSet;
use crate::host::busy::{Clock, Look, TICK, UNIT};
use crate::host::cgroup::Usage;

/// Readings that contradict the ones before are left out, but after so many the tenure is begun anew.
const MAX_CONTRADICTIONS: u32 = 3;

/// Foreign time of an owner since it was first seen; neither number ever goes back.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Interference {
    /// CPU seconds that other tasks spent on the owner's CPUs.
    pub seconds: f64,
    /// The truth lies within this many seconds of `seconds`.
    pub error_seconds: f64,
}

/// Foreign times of all owners, by cgroup: fed readings, gives totals.
#[derive(Debug, Default)]
pub struct InterferenceTracker {
    owners: HashMap<String, TrackedOwner>,
}

/// A time in nanoseconds; sums of many CPUs since their start are too long for 64 bits.
type Ns = i128;

#[derive(Debug, Default)]
struct TrackedOwner {
    tenure: Option<Tenure>,
    /// The exported total.
    total: Ns,
    error: Ns,
    /// The totals of earlier tenures.
    before: (Ns, Ns),
    updated: bool,
}

/// An owner's time on one set of CPUs, by each way to compute what they did.
#[derive(Debug)]
struct Tenure {
    cpus: CpuSet,
    tracks: Vec<Track>,
    /// When it was last read, and what the owner had used then.
    last: (Ns, Ns),
    contradictions: u32,
}

/// One source's count within a tenure. A track starts anew where a second source knows more.
#[derive(Debug, Clone, Copy)]
struct Track {
    start: Reading,
    /// The interference before the track's start, at least and at most.
    before: (Ns, Ns),
    /// The most that is certain so far: interference never shrinks.
    least: Ns,
}

/// Between `least` and `most`, and about in the middle of what was read.
#[derive(Debug, Clone, Copy)]
struct Bounds {
    least: Ns,
    about: Ns,
    most: Ns,
}

/// The source of the CPUs' busy time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum UsageSource {
    /// By the root cgroup's count of each CPU.
    Counted,
    /// By the clock: what was not idle.
    Clock,
    /// By the turns that tasks had.
    Turns,
}

/// What one reading says of foreign time since the machine's start: somewhere between `low` and `high`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Reading {
    from: Ns,
    to: Ns,
    low: Ns,
    high: Ns,
    /// Time that may have to be subtracted, and added: only growth between two readings counts.
    less: (Ns, Ns),
    more: (Ns, Ns),
    /// How it was read, and whether interrupts were timed apart: only the same can be compared.
    kind: (UsageSource, bool),
    /// The owner's own time, which only shrinks when the cgroup is another.
    used: Ns,
}

// === impl InterferenceTracker ===

impl InterferenceTracker {
    /// Takes note of an owner and returns its totals.
    ///
    /// `usage` is of the owner's cgroup `key`, read between the looks `first` and `second`; `cpus` is what it owns, with all of
    /// it in force. An owner whose CPUs change is to be noted before and after: the time between the two is left out.
    pub fn note(
        &mut self,
        key: &str,
        cpus: &CpuSet,
        first: &Look,
        usage: &Usage,
        second: &Look,
    ) -> Interference {
        let owner = self.owners.entry(key.to_owned()).or_default();
        owner.updated = true;
        let ways: &[UsageSource] = match usage {
            Usage::PerCpu(_) => &[UsageSource::Counted],
            Usage::Total(_) => &[UsageSource::Clock, UsageSource::Turns],
        };
        let points: Vec<Reading> = ways
            .iter()
            .filter_map(|way| point(*way, cpus, first, usage, second))
            .collect();
        owner.note(cpus, &points);
        Interference {
            seconds: seconds(owner.total),
            error_seconds: seconds(owner.error),
        }
    }

    /// Forgets the owners that were not noted since the last call.
    pub fn sweep(&mut self) {
        self.owners
            .retain(|_, owner| std::mem::take(&mut owner.updated));
    }
}

// === impl TrackedOwner ===

impl TrackedOwner {
    /// The totals so far stay; a new tenure begins.
    fn begin(&mut self, cpus: &CpuSet, points: &[Reading]) {
        self.before = (self.total, self.error);
        // A CPU that is offline, or a counter that is missing, says nothing.
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

    fn note(&mut self, cpus: &CpuSet, points: &[Reading]) {
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
    /// Whether what is read now belongs to it: the same CPUs, and the same cgroup, whose usage did not shrink.
    fn goes_on(&self, cpus: &CpuSet, points: &[Reading]) -> bool {
        let Some(now) = points.first() else {
            return false;
        };
        let alike = |track: &Track| now.kind.1 == track.start.kind.1;
        self.cpus == *cpus
            && now.to >= self.last.0
            && now.used >= self.last.1
            && self.tracks.iter().all(alike)
    }

    /// The narrowest bounds that any way gives; `None` for a reading that contradicts those before.
    ///
    /// That happens: idle and waiting-idle time are not read at one instant, and a spell can be in both or in neither.
    fn bounds(&mut self, points: &[Reading]) -> Option<Bounds> {
        let count = Ns::try_from(self.cpus.len()).unwrap_or(Ns::MAX);
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
    fn new(start: Reading, before: (Ns, Ns)) -> Self {
        Self {
            start,
            before,
            least: before.0,
        }
    }

    /// The interference of the tenure on `cpus` CPUs, as far as this source knows; `None` for a contradiction.
    fn bounds(&self, now: &Reading, cpus: Ns) -> Option<Bounds> {
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
    fn width(&self) -> Ns {
        self.most - self.least
    }
}

/// The interval from one reading; `None` if a counter of a CPU is missing.
fn point(
    way: UsageSource,
    cpus: &CpuSet,
    first: &Look,
    usage: &Usage,
    second: &Look,
) -> Option<Reading> {
    let mut point = Reading {
        from: ns(first.from),
        to: ns(second.to),
        low: 0,
        high: 0,
        less: (0, 0),
        more: (0, 0),
        kind: (way, second.interrupts_apart),
        used: 0,
    };
    if first.interrupts_apart != second.interrupts_apart {
        return None;
    }
    for cpu in cpus.iter() {
        let (before, after) = (first.clocks.get(&cpu)?, second.clocks.get(&cpu)?);
        match way {
            UsageSource::Counted => {
                let Usage::PerCpu(own) = usage else {
                    return None;
                };
                let at = cpu as usize;
                let (own, low, high) = (
                    own.get(at)?,
                    first.all.as_ref()?.get(at)?,
                    second.all.as_ref()?.get(at)?,
                );
                point.used += ns(*own);
                point.low += ns(*low) - ns(*own);
                point.high += ns(*high) - ns(*own) + ns(after.lag);
                if second.interrupts_apart {
                    point.low += ns(before.interrupts);
                    point.high += ns(after.interrupts) + 2 * ns(UNIT);
                }
            }
            UsageSource::Clock => point.clock(first.from, before, after, second.to),
            UsageSource::Turns => {
                let (turns, later) = (before.turns?, after.turns?);
                point.low += ns(turns.over) - ns(after.lag);
                point.high += ns(later.over) + ns(later.present);
                point.stolen(before, after);
            }
        }
    }
    if let Usage::Total(own) = usage {
        point.used = ns(*own);
        point.low -= ns(*own);
        point.high -= ns(*own);
    }
    Some(point)
}

// === impl Reading ===

impl Reading {
    /// Adds a CPU that was busy whenever it was not idle.
    fn clock(&mut self, from: Duration, before: &Clock, after: &Clock, to: Duration) {
        self.low += ns(from) - ns(before.idle) - 2 * ns(UNIT) - ns(after.lag);
        self.high += ns(to) - ns(after.idle);
        // The spells that are cut by the two readings count as well.
        let spells = if after.doubt.is_zero() {
            0
        } else {
            ns(after.doubt) + 2 * ns(TICK)
        };
        self.less.0 += ns(before.doubt);
        self.less.1 += spells;
        self.more.0 += ns(before.doubt);
        self.more.1 += spells;
        self.stolen(before, after);
    }

    /// Stolen time is in the owner's usage on some kernels and in nobody's on others.
    fn stolen(&mut self, before: &Clock, after: &Clock) {
        if !after.steal.is_zero() {
            self.low -= ns(UNIT);
        }
        self.less.0 += ns(before.steal);
        self.less.1 += ns(after.steal);
    }
}

fn ns(time: Duration) -> Ns {
    Ns::try_from(time.as_nanos()).unwrap_or(Ns::MAX)
}

fn seconds(time: Ns) -> f64 {
    time as f64 / 1e9
}

#[cfg(test)]
mod tests;
