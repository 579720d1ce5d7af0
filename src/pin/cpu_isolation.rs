//! CPU isolation keeps the kernel's own work, and systemd's, off exclusive CPUs, if the
//! configuration asks for it.
//!
//! [`plan`] is a pure function from the knobs' values, the record and the exclusive CPUs to a new
//! record and writes. The kernel keeps the knobs' earlier values in a [`KnobRecord`] on a cgroup.
//! The record is written before the writes that it describes, so a crash at any moment leaves
//! enough data to restore every knob. [`CpuIsolator`] reads, plans and carries out.
//!
//! A knob is a kernel or systemd setting with a set of CPUs, and a single rule covers every knob.
//! Each has a *base*: its value before Pinfold's first write, or a later value of another program.
//! The base determines the knob's value while CPUs are exclusive (`IsolationInput::target`). The
//! same rule yields the base again when sets shrink, when the last owner goes, or when an option is
//! switched off.

mod isolator;
mod record;

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

pub use isolator::{CpuIsolator, IsolationReport, KnobFailure, ManagedIrq};
pub use record::{KnobHistory, KnobRecord, KnobRecordError};

use crate::cpu::CpuSet;
use crate::host::knobs::{Knob, KnobKind, KnobValues};

/// The kinds of the kernel's own work to keep off exclusive CPUs; empty by default.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct CpuIsolationOptions {
    pub irqs: bool,
    /// Unbound work queues.
    pub workqueues: bool,
    /// Packet steering: RPS and XPS.
    pub packet_steering: bool,
    /// Units that systemd runs outside the pods. The option is for enforcement `cpuset`, because
    /// partitions already keep these units off.
    pub system_slices: bool,
}

#[derive(Debug, Clone, Copy)]
pub struct IsolationInput<'a> {
    pub options: CpuIsolationOptions,
    pub exclusive: &'a CpuSet,
    /// CPUs of partitions that are `isolated`, shall become `isolated`, or were `isolated` a moment
    /// ago. Unbound work queues leave these CPUs, whatever the options say.
    ///
    /// While a partition becomes or ceases to be isolated, the kernel takes its CPUs from the work
    /// queues or gives them back. Linux before 7 does so under a lock, and hangs for ever if a
    /// process joins a cgroup at the same moment. If the work queues' common mask lacks the CPUs
    /// already, the kernel has nothing to do.
    pub isolated: &'a CpuSet,
    pub online: &'a CpuSet,
}

/// The plan of a turn. An empty plan has no writes and leaves the record as is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct IsolationPlan {
    /// The record that must be in place before the first write.
    pub ahead: KnobRecord,
    pub writes: Vec<KnobWrite>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnobWrite {
    pub knob: Knob,
    /// The knob's present CPUs.
    pub now: CpuSet,
    pub cpus: CpuSet,
    /// Whether the write restores the knob's base.
    pub back: bool,
}

// === impl CpuIsolationOptions ===

impl CpuIsolationOptions {
    pub fn any(self) -> bool {
        KnobKind::ALL.into_iter().any(|kind| self.wants(kind))
    }

    pub fn wants(self, kind: KnobKind) -> bool {
        match kind {
            KnobKind::Irqs => self.irqs,
            KnobKind::Workqueues => self.workqueues,
            KnobKind::PacketSteering => self.packet_steering,
            KnobKind::SystemSlices => self.system_slices,
        }
    }
}

// === impl IsolationInput ===

impl IsolationInput<'_> {
    /// The kinds of knobs to read: kinds that must avoid CPUs now, and kinds in the record.
    pub fn kinds(&self, record: &KnobRecord) -> BTreeSet<KnobKind> {
        let wanted = |kind: &KnobKind| !self.taken(*kind).is_empty();
        KnobKind::ALL
            .into_iter()
            .filter(wanted)
            .chain(record.entries().keys().map(Knob::kind))
            .collect()
    }

    /// The CPUs that a kind of kernel work must avoid.
    fn taken(&self, kind: KnobKind) -> CpuSet {
        let exclusive = if self.options.wants(kind) {
            self.exclusive
        } else {
            &CpuSet::new()
        };
        let isolated = if kind == KnobKind::Workqueues {
            self.isolated
        } else {
            &CpuSet::new()
        };
        exclusive.union(isolated)
    }

    /// The CPUs that a knob with the given base shall hold.
    ///
    /// The target is the base without the CPUs to avoid. If no online CPU is left, the work goes to
    /// all shared CPUs, except that a transmit queue keeps its base: its CPUs would otherwise need
    /// another queue. Packet steering that is off stays off.
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

/// Plans the record and the writes. Planning again after the writes yields no write and the same record.
///
/// An interrupt that is set up while Pinfold keeps new interrupts off exclusive CPUs is born with
/// Pinfold's value. Its base is that of the default for new interrupts, so it spreads again once
/// the CPUs are free. Interrupts that had the same CPUs before are in the record, without a value
/// of Pinfold's, and so keep them.
///
/// `refused` are knobs that the kernel has refused to change.
pub fn plan(
    input: &IsolationInput<'_>,
    refused: &BTreeSet<Knob>,
    knobs: &KnobValues,
    record: &KnobRecord,
) -> IsolationPlan {
    let mut plan = IsolationPlan::default();
    let mut entries = BTreeMap::new();
    let all: BTreeSet<&Knob> = knobs.values.keys().chain(record.entries().keys()).collect();
    for knob in all {
        let history = record.entries().get(knob);
        let Some(now) = knobs.values.get(knob) else {
            // An unread or unreadable knob may still exist, so its entry stays.
            let unknown =
                knobs.unreadable.contains_key(knob) || !knobs.kinds.contains(&knob.kind());
            entries.extend(
                history
                    .filter(|_| unknown)
                    .map(|entry| (knob.clone(), entry.clone())),
            );
            continue;
        };
        let is_new = history.is_none() && matches!(knob, Knob::Irq(_));
        let base = history
            .or(record.entries().get(&Knob::NewIrqs).filter(|_| is_new))
            .filter(|entry| entry.before == *now || entry.written.contains(now))
            .map_or(now, |entry| &entry.before);
        let target = input.target(knob, base);
        let turn = target != *now && !refused.contains(knob);
        let mut written = BTreeSet::from([now.clone()]);
        if turn {
            written.insert(target.clone());
            plan.writes.push(KnobWrite {
                knob: knob.clone(),
                now: now.clone(),
                back: target == *base,
                cpus: target,
            });
        }
        written.remove(base);
        if !written.is_empty() {
            entries.insert(
                knob.clone(),
                KnobHistory {
                    before: base.clone(),
                    written,
                },
            );
        }
    }
    keep_apart(&mut entries, knobs);
    plan.ahead = KnobRecord::new(entries);
    plan
}

/// Adds the interrupts whose own CPUs happen to be those that Pinfold gives to new interrupts.
/// Otherwise they would look like new ones.
fn keep_apart(entries: &mut BTreeMap<Knob, KnobHistory>, knobs: &KnobValues) {
    let Some(new) = entries.get(&Knob::NewIrqs).cloned() else {
        return;
    };
    for (knob, cpus) in &knobs.values {
        if matches!(knob, Knob::Irq(_)) && new.written.contains(cpus) {
            entries.entry(knob.clone()).or_insert_with(|| KnobHistory {
                before: cpus.clone(),
                written: BTreeSet::new(),
            });
        }
    }
}

// === impl IsolationPlan ===

impl IsolationPlan {
    /// The record after the writes. A failed write left its knob unchanged.
    pub fn settled(&self, done: impl Fn(&KnobWrite) -> bool) -> KnobRecord {
        let mut entries = self.ahead.entries().clone();
        for write in &self.writes {
            let holds = if done(write) { &write.cpus } else { &write.now };
            if let Some(entry) = entries.get_mut(&write.knob) {
                entry.written.retain(|written| written == holds);
            }
        }
        let new = entries.get(&Knob::NewIrqs);
        let new = new.map(|entry| entry.written.clone()).unwrap_or_default();
        // The interrupts of `keep_apart` stay as long as the default for new interrupts has the same CPUs.
        entries.retain(|knob, entry| {
            let is_apart = matches!(knob, Knob::Irq(_)) && new.contains(&entry.before);
            !entry.written.is_empty() || is_apart
        });
        KnobRecord::new(entries)
    }
}

#[cfg(test)]
mod tests;
