//! [`CpuIsolator`]: reads the knobs, plans, writes, and reports the result.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;

use serde::Serialize;

use super::super::apply::chain;
use super::{IsolationInput, IsolationPlan, KnobHistory, KnobRecord, KnobWrite, plan};
use crate::cpu::CpuSet;
use crate::host::cgroup::{CgroupError, Cgroups, NoteSubject};
use crate::host::knobs::{Knob, Knobs};

/// The result of a call of [`CpuIsolator::isolate`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct IsolationReport {
    /// Knobs that the call moved off exclusive CPUs.
    pub moved: Vec<String>,
    /// Knobs that the call set back to their earlier CPUs.
    pub restored: Vec<String>,
    /// The number of interrupts, masks and queues kept off exclusive CPUs now.
    pub away: usize,
    /// Interrupts on exclusive CPUs that only the kernel can move.
    pub managed: Vec<ManagedIrq>,
    /// Knobs with a read or write error.
    pub failed: Vec<KnobFailure>,
    /// The CPUs of unbound work queues, if read, and whether the call changed them.
    #[serde(skip)]
    pub workqueues: Option<(CpuSet, bool)>,
    /// The CPUs to put on irqbalance's list of banned CPUs; `None` unless irqbalance runs. That
    /// program moves interrupts by its own rules, and may move them back to exclusive CPUs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub irqbalance: Option<CpuSet>,
}

/// An interrupt that only the kernel can move.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ManagedIrq {
    /// The interrupt's number.
    pub irq: u32,
    /// The driver's name for the interrupt's user.
    pub name: String,
    /// The exclusive CPUs among the interrupt's CPUs.
    pub cpus: CpuSet,
}

/// Knobs with the same read or write error.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct KnobFailure {
    pub reason: String,
    /// The names of the knobs; empty if the error concerns all knobs.
    pub what: Vec<String>,
}

/// Keeps the kernel's own work off exclusive CPUs.
#[derive(Debug)]
pub struct CpuIsolator {
    knobs: Knobs,
    /// Interrupts the kernel refused to move, with the names of their users at the time.
    refused: BTreeMap<u32, String>,
    /// Whether irqbalance ran at the last look; `None` before the first look.
    irqbalance: Option<bool>,
}

// === impl CpuIsolator ===

impl CpuIsolator {
    /// The isolator for the machine with `proc` and `sys` below `root`.
    pub fn new(root: &Path) -> Self {
        Self {
            knobs: Knobs::new(root),
            refused: BTreeMap::new(),
            irqbalance: None,
        }
    }

    /// Adds systemd's slices, if systemd owns the cgroups. Slices with pods are excluded.
    #[must_use]
    pub fn with_slices(mut self, cgroups: &Cgroups, trees: &[String]) -> Self {
        if cgroups.uses_systemd() {
            self.knobs = self.knobs.with_slices(cgroups.clone(), trees);
        }
        self
    }

    /// The CPUs on which unbound work queues may run now; `None` if unreadable.
    pub fn workqueues(&self) -> Option<CpuSet> {
        self.knobs.get(&Knob::Workqueues).ok().flatten()
    }

    /// Moves the kernel's own work off exclusive CPUs, or back.
    ///
    /// The record lies on the cgroup at `path`, which must be the same at each call. If no CPU must
    /// be avoided any more, the call restores every knob that Pinfold moved, and removes the
    /// record, while a value that a foreign program wrote later stays. Another call with the same
    /// input changes nothing, and one without a record and without CPUs to avoid reads no knob.
    pub fn isolate(
        &mut self,
        input: &IsolationInput<'_>,
        cgroups: &Cgroups,
        path: &str,
    ) -> IsolationReport {
        let mut report = IsolationReport::default();
        if let Err(reason) = self.try_isolate(&mut report, input, cgroups, path) {
            report.failed.push(KnobFailure {
                reason,
                what: Vec::new(),
            });
        }
        let exclusive = input.exclusive;
        let may_interfere = input.options.irqs && !exclusive.is_empty();
        report.irqbalance =
            (may_interfere && self.irqbalance == Some(true)).then(|| exclusive.clone());
        report
    }

    fn try_isolate(
        &mut self,
        report: &mut IsolationReport,
        input: &IsolationInput<'_>,
        cgroups: &Cgroups,
        path: &str,
    ) -> Result<(), String> {
        let text = match cgroups.note(path, NoteSubject::CpuIsolation) {
            Ok(text) => text,
            // Without the pods' cgroups no CPU is exclusive, and no cgroup can hold the record.
            Err(error) if error.is_gone() && input.exclusive.is_empty() => return Ok(()),
            Err(error) => return Err(chain(&error)),
        };
        let record = KnobRecord::parse(text.as_deref()).map_err(|error| chain(&error))?;
        self.refused
            .retain(|irq, name| self.knobs.irq_name(*irq) == *name);
        let refused = self.refused.keys().copied().map(Knob::Irq).collect();
        let kinds = input.kinds(&record);
        if kinds.is_empty() {
            return Ok(());
        }
        let knobs = self.knobs.read(&kinds).map_err(|error| chain(&error))?;
        let plan = plan(input, &refused, &knobs, &record);
        let keep = |record: &KnobRecord, before: Option<&str>| {
            let text = record.text();
            if text.as_deref() == before {
                return Ok(text);
            }
            cgroups
                .set_note(path, NoteSubject::CpuIsolation, text.as_deref())
                .map_err(|error| chain(&error))
                .map(|()| text)
        };
        // Every write is recorded first: a crash would otherwise lose the earlier value.
        let ahead = keep(&plan.ahead, text.as_deref())?;
        // A look reads a file of each process, so it is taken only when it matters: an irqbalance
        // that starts later moves interrupts and so causes writes, and one that ran at the last
        // look may have ended.
        let reads_processes = !plan.writes.is_empty() || self.irqbalance != Some(false);
        if reads_processes && input.options.irqs && !input.exclusive.is_empty() {
            self.irqbalance = Some(self.knobs.irqbalance_runs());
        }
        let failures = self.write(&plan, report);
        for (knob, error) in knobs.unreadable {
            fail(report, error, knob.to_string());
        }
        let settled = plan.settled(|write| !failures.contains(&write.knob));
        let is_away = |entry: &&KnobHistory| !entry.written.is_empty();
        report.away = settled.entries().values().filter(is_away).count();
        if input.options.irqs {
            report.managed = self.managed(&knobs.values, input.exclusive);
        }
        let is_turned =
            |write: &&KnobWrite| write.knob == Knob::Workqueues && !failures.contains(&write.knob);
        let turned = plan.writes.iter().find(is_turned).map(|write| &write.cpus);
        let allowed = turned.or(knobs.values.get(&Knob::Workqueues)).cloned();
        report.workqueues = allowed.map(|allowed| (allowed, turned.is_some()));
        keep(&settled, ahead.as_deref())?;
        Ok(())
    }

    /// Performs the writes. Returns the knobs with a failed write.
    fn write(&mut self, plan: &IsolationPlan, report: &mut IsolationReport) -> BTreeSet<Knob> {
        let mut failures = BTreeSet::new();
        for write in &plan.writes {
            let KnobWrite {
                knob, cpus, back, ..
            } = write;
            let reason = match self.knobs.set(knob, cpus) {
                Ok(()) => match self.knobs.get(knob) {
                    Ok(Some(now)) if now != *cpus => {
                        format!("written, but the kernel reports {now}")
                    }
                    // A vanished knob counts as done: no work is left to move.
                    Ok(_) => {
                        if *back {
                            &mut report.restored
                        } else {
                            &mut report.moved
                        }
                        .push(knob.to_string());
                        continue;
                    }
                    Err(reason) => reason,
                },
                Err(error) if error.is_gone() => continue,
                Err(error) => match (knob, kernel_error(knob, &error)) {
                    (Knob::Irq(irq), Some(source))
                        if self.knobs.is_placed_by_kernel(*irq, source) =>
                    {
                        self.refused.insert(*irq, self.knobs.irq_name(*irq));
                        failures.insert(knob.clone());
                        continue;
                    }
                    (_, Some(source)) => source.to_string(),
                    (_, None) => chain(&error),
                },
            };
            failures.insert(knob.clone());
            fail(report, reason, format!("{knob} to {cpus}"));
        }
        failures
    }

    /// The refused interrupts that have a user and may go to an exclusive CPU.
    fn managed(&self, values: &BTreeMap<Knob, CpuSet>, exclusive: &CpuSet) -> Vec<ManagedIrq> {
        let refused = self.refused.iter().filter(|(_, name)| !name.is_empty());
        let managed = refused.filter_map(|(irq, name)| {
            let cpus = values.get(&Knob::Irq(*irq))?.intersection(exclusive);
            (!cpus.is_empty()).then(|| ManagedIrq {
                irq: *irq,
                name: name.clone(),
                cpus,
            })
        });
        managed.collect()
    }
}

/// The kernel's error without the file, so that files with the same error share a sentence. `None`
/// for systemd's slices.
fn kernel_error<'a>(knob: &Knob, error: &'a CgroupError) -> Option<&'a io::Error> {
    match (knob, error) {
        (Knob::Slice(_), _) => None,
        (_, CgroupError::File(error)) => Some(error.kernel_error()),
        _ => None,
    }
}

fn fail(report: &mut IsolationReport, reason: String, what: String) {
    let mut known = report.failed.iter_mut();
    match known.find(|failed| failed.reason == reason) {
        Some(failed) => failed.what.push(what),
        None => report.failed.push(KnobFailure {
            reason,
            what: vec![what],
        }),
    }
}
