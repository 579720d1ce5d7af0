//! Quiet CPUs: the kernel's own work, and systemd's, kept off exclusive CPUs, where the configuration asks for it.
//!
//! [`plan`] is a pure function: what is now, what was noted and who owns what in; a note and writes out. What was there
//! before the first write is kept by the kernel, in a [`KnobRecord`] on a cgroup: written before the writes it speaks of, so
//! that a crash at any moment leaves enough to put everything back. [`CpuIsolator`] reads, plans and carries out.
//!
//! One rule does it all. Each knob has a *base*: what it held before us, or what somebody else has written since. From
//! the base follows what it shall hold while CPUs are owned (`IsolationInput::target`). When sets shrink, when the last
//! owner goes, when an option is switched off, the same rule yields the base again.

mod isolator;
mod record;

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

pub use isolator::{CpuIsolator, IsolationReport, KnobFailure, ManagedIrq};
pub use record::{KnobRecord, KnobRecordError};

use crate::cpu::CpuSet;
use crate::host::knobs::{Kind, Knob, Seen};

/// Which of the kernel's own work is kept off exclusive CPUs; none by default.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct CpuIsolationOptions {
    /// Interrupts.
    pub irqs: bool,
    /// Unbound work queues.
    pub workqueues: bool,
    /// The steering of network packets (RPS and XPS).
    pub packet_steering: bool,
    /// What systemd runs outside the pods: with enforcement `cpuset`, where the kernel doesn't keep it off by itself.
    pub system_slices: bool,
}

/// The history of a knob that Pinfold turned.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct KnobHistory {
    /// The CPUs before Pinfold's first write.
    pub before: CpuSet,
    /// What Pinfold wrote, or was about to write when this was noted. Anything else in the knob is somebody else's.
    pub ours: BTreeSet<CpuSet>,
}

/// The input of [`plan`]: options and the present owners' CPUs.
#[derive(Debug, Clone, Copy)]
pub struct IsolationInput<'a> {
    /// The configured options.
    pub options: CpuIsolationOptions,
    /// The exclusive CPUs.
    pub exclusive: &'a CpuSet,
    /// CPUs of partitions that are `isolated`, shall be, or were a moment ago: no unbound work queue uses them, whatever is
    /// asked for. While a partition becomes or ceases to be isolated, the kernel takes its CPUs from the work queues or gives
    /// them back, and Linux before 7 does that under a lock with which it hangs, for ever, where a process joins a cgroup at
    /// that moment. Where the common mask leaves them out already, there is nothing to do for it.
    pub isolated: &'a CpuSet,
    /// Online CPUs.
    pub online: &'a CpuSet,
}

/// The plan of one pass. An empty plan has no writes and leaves the record as is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct IsolationPlan {
    /// The note that must be in place before the first write.
    pub ahead: KnobRecord,
    /// The writes, in any order.
    pub writes: Vec<KnobWrite>,
}

/// One write to a knob.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnobWrite {
    /// The knob.
    pub knob: Knob,
    /// What it holds.
    pub now: CpuSet,
    /// The CPUs to write.
    pub cpus: CpuSet,
    /// Whether the write restores the knob's earlier CPUs.
    pub back: bool,
}

// === impl CpuIsolationOptions ===

impl CpuIsolationOptions {
    /// Whether anything is asked for.
    pub fn any(self) -> bool {
        Kind::ALL.into_iter().any(|kind| self.wants(kind))
    }

    /// Whether this kind is asked for.
    pub fn wants(self, kind: Kind) -> bool {
        match kind {
            Kind::Irqs => self.irqs,
            Kind::Workqueues => self.workqueues,
            Kind::PacketSteering => self.packet_steering,
            Kind::SystemSlices => self.system_slices,
        }
    }
}

// === impl IsolationInput ===

impl IsolationInput<'_> {
    /// The kinds that must be looked at: those asked for, and those of which something is to be put back.
    pub fn kinds(&self, note: &KnobRecord) -> BTreeSet<Kind> {
        let wanted = |kind: &Kind| !self.taken(*kind).is_empty();
        Kind::ALL
            .into_iter()
            .filter(wanted)
            .chain(note.entries().keys().map(Knob::kind))
            .collect()
    }

    /// The CPUs that this kind of kernel work must avoid.
    fn taken(&self, kind: Kind) -> CpuSet {
        let asked = if self.options.wants(kind) {
            self.exclusive
        } else {
            &CpuSet::new()
        };
        let isolated = if kind == Kind::Workqueues {
            self.isolated
        } else {
            &CpuSet::new()
        };
        asked.union(isolated)
    }

    /// What a knob shall hold whose base is this.
    ///
    /// Owned CPUs are taken out. If that leaves no online CPU, the work goes to all that are shared; but a transmit queue
    /// stays then, since another would have to take its place, and steering that is off stays off.
    fn target(&self, knob: &Knob, base: &CpuSet) -> CpuSet {
        let taken = &self.taken(knob.kind());
        if base.is_disjoint(taken) {
            return base.clone();
        }
        let rest = base.difference(taken);
        if !rest.is_disjoint(self.online) {
            return rest;
        }
        let shared = self.online.difference(taken);
        if shared.is_empty() || matches!(knob, Knob::Transmit { .. }) {
            base.clone()
        } else {
            shared
        }
    }
}

/// What to note and what to write. On its own result it yields nothing to write, and the same note.
///
/// `refused` are knobs that the kernel has refused to turn.
pub fn plan(
    input: &IsolationInput<'_>,
    refused: &BTreeSet<Knob>,
    seen: &Seen,
    note: &KnobRecord,
) -> IsolationPlan {
    let mut plan = IsolationPlan::default();
    let mut entries = BTreeMap::new();
    let knobs: BTreeSet<&Knob> = seen.values.keys().chain(note.entries().keys()).collect();
    for knob in knobs {
        let noted = note.entries().get(knob);
        let Some(now) = seen.values.get(knob) else {
            // What could not be read is not gone.
            let unknown = seen.unreadable.contains_key(knob) || !seen.kinds.contains(&knob.kind());
            entries.extend(
                noted
                    .filter(|_| unknown)
                    .map(|entry| (knob.clone(), entry.clone())),
            );
            continue;
        };
        let base = noted
            .filter(|entry| entry.before == *now || entry.ours.contains(now))
            .map_or(now, |entry| &entry.before);
        let target = input.target(knob, base);
        let turn = target != *now && !refused.contains(knob);
        let mut ours = BTreeSet::from([now.clone()]);
        if turn {
            ours.insert(target.clone());
            plan.writes.push(KnobWrite {
                knob: knob.clone(),
                now: now.clone(),
                back: target == *base,
                cpus: target,
            });
        }
        ours.remove(base);
        if !ours.is_empty() {
            entries.insert(
                knob.clone(),
                KnobHistory {
                    before: base.clone(),
                    ours,
                },
            );
        }
    }
    plan.ahead = KnobRecord::new(entries);
    plan
}

// === impl IsolationPlan ===

impl IsolationPlan {
    /// The note for afterwards, when some writes are done and the others left their knobs as they were.
    pub fn settled(&self, done: impl Fn(&KnobWrite) -> bool) -> KnobRecord {
        let mut entries = self.ahead.entries().clone();
        for write in &self.writes {
            let holds = if done(write) { &write.cpus } else { &write.now };
            if let Some(entry) = entries.get_mut(&write.knob) {
                entry.ours.retain(|ours| ours == holds);
                if entry.ours.is_empty() {
                    entries.remove(&write.knob);
                }
            }
        }
        KnobRecord::new(entries)
    }
}

#[cfg(test)]
mod tests;
