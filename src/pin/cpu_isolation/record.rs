//! [`KnobRecord`]: the knobs' values before Pinfold's writes, small enough for an extended attribute.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::super::record::{RecordError, VERSION, check_version};
use crate::cpu::{CpuSet, NumberList};
use crate::host::knobs::Knob;

/// The most sets of CPUs in a record, over all knobs. A knob has two or three sets, but a few bytes of foreign text
/// can describe a million knobs.
const MOST: usize = 1 << 18;

/// The history of a knob that Pinfold turned.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct KnobHistory {
    /// The base: the CPUs before Pinfold's first write, or a later value of another program.
    pub before: CpuSet,
    /// The values that Pinfold wrote, or was about to write. Any other value in the knob comes from
    /// another program. Empty for an interrupt that has by itself the CPUs which Pinfold gives to
    /// new interrupts.
    pub written: BTreeSet<CpuSet>,
}

/// The history of each knob that Pinfold turned.
///
/// The record's text is JSON. Knobs with the same history share a group, and numbers are written as
/// ranges, so a machine with thousands of interrupts and queues needs a few KiB; an extended
/// attribute holds 64 KiB.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KnobRecord {
    entries: BTreeMap<Knob, KnobHistory>,
}

#[derive(Debug, thiserror::Error)]
pub enum KnobRecordError {
    /// The text is no record, or a later version of Pinfold wrote the record.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// Numbers that are not ranges, or far too many numbers.
    #[error("the record has {text:?} in place of numbers like 24-31,40")]
    Numbers {
        /// The text in place of the ranges.
        text: String,
    },
}

#[derive(Serialize, Deserialize)]
struct RecordText {
    version: u32,
    groups: Vec<KnobGroup>,
}

/// Knobs with the same history.
#[derive(Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct KnobGroup {
    before: CpuSet,
    ours: Vec<CpuSet>,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    irqs: String,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    new_irqs: bool,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    workqueues: bool,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    receive: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    transmit: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    slices: Vec<String>,
}

// === impl KnobRecord ===

impl KnobRecord {
    pub(super) fn new(entries: BTreeMap<Knob, KnobHistory>) -> Self {
        Self { entries }
    }

    pub fn entries(&self) -> &BTreeMap<Knob, KnobHistory> {
        &self.entries
    }

    /// Reads the text of a record. Without a text, the record is empty.
    ///
    /// # Errors
    /// See [`KnobRecordError`]. After an error no knob may be turned, because the earlier values are unknown.
    pub fn parse(text: Option<&str>) -> Result<Self, KnobRecordError> {
        let Some(text) = text else {
            return Ok(Self::default());
        };
        check_version(text)?;
        let read: RecordText = serde_json::from_str(text).map_err(RecordError::malformed(text))?;
        let mut entries = BTreeMap::new();
        let mut left = MOST;
        for group in read.groups {
            let entry = KnobHistory {
                before: group.before,
                written: group.ours.into_iter().collect(),
            };
            let mut numbers = |text: &str| numbers(text, 1 + entry.written.len(), &mut left);
            let mut knobs: Vec<Knob> = numbers(&group.irqs)?.into_iter().map(Knob::Irq).collect();
            knobs.extend(group.new_irqs.then_some(Knob::NewIrqs));
            knobs.extend(group.workqueues.then_some(Knob::Workqueues));
            let receive: QueueKnob = |device, queue| Knob::Receive { device, queue };
            let transmit: QueueKnob = |device, queue| Knob::Transmit { device, queue };
            for (devices, knob) in [(group.receive, receive), (group.transmit, transmit)] {
                for (device, queues) in devices {
                    let queues = numbers(&queues)?.into_iter();
                    knobs.extend(queues.map(|queue| knob(device.clone(), queue)));
                }
            }
            knobs.extend(group.slices.into_iter().map(Knob::Slice));
            entries.extend(knobs.into_iter().map(|knob| (knob, entry.clone())));
        }
        Ok(Self { entries })
    }

    /// The record's text; `None` for an empty record.
    pub fn text(&self) -> Option<String> {
        if self.entries.is_empty() {
            return None;
        }
        let mut histories: BTreeMap<&KnobHistory, Vec<&Knob>> = BTreeMap::new();
        for (knob, entry) in &self.entries {
            histories.entry(entry).or_default().push(knob);
        }
        let groups = histories
            .into_iter()
            .map(|(entry, knobs)| group(entry, &knobs))
            .collect();
        // Strings, numbers and maps with string keys always serialise.
        serde_json::to_string(&RecordText {
            version: VERSION,
            groups,
        })
        .ok()
    }
}

/// Makes the knob of a queue, from the network interface and the queue's number.
type QueueKnob = fn(String, u32) -> Knob;

/// The queues of each network interface.
type DeviceQueues<'a> = BTreeMap<&'a str, BTreeSet<u32>>;

fn group(entry: &KnobHistory, knobs: &[&Knob]) -> KnobGroup {
    let mut group = KnobGroup {
        before: entry.before.clone(),
        ours: entry.written.iter().cloned().collect(),
        ..KnobGroup::default()
    };
    let mut irqs = BTreeSet::new();
    let (mut receive, mut transmit) = (DeviceQueues::new(), DeviceQueues::new());
    for knob in knobs {
        match knob {
            Knob::Irq(irq) => {
                irqs.insert(*irq);
            }
            Knob::NewIrqs => group.new_irqs = true,
            Knob::Workqueues => group.workqueues = true,
            Knob::Slice(name) => group.slices.push(name.clone()),
            Knob::Receive { device, queue } => {
                receive.entry(device).or_default().insert(*queue);
            }
            Knob::Transmit { device, queue } => {
                transmit.entry(device).or_default().insert(*queue);
            }
        }
    }
    group.irqs = NumberList(&irqs).to_string();
    let texts = |devices: DeviceQueues<'_>| {
        let devices = devices.into_iter();
        devices
            .map(|(device, queues)| (device.to_owned(), NumberList(&queues).to_string()))
            .collect()
    };
    (group.receive, group.transmit) = (texts(receive), texts(transmit));
    group
}

/// The numbers of knobs with `sets` sets of CPUs each. `left` is how many sets the rest of the
/// record may have.
fn numbers(text: &str, sets: usize, left: &mut usize) -> Result<Vec<u32>, KnobRecordError> {
    let wrong = || KnobRecordError::Numbers {
        text: text.to_owned(),
    };
    let mut numbers = Vec::new();
    for part in text.split(',').filter(|_| !text.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u32, u32) = (
            first.parse().map_err(|_| wrong())?,
            last.parse().map_err(|_| wrong())?,
        );
        let count = last.checked_sub(first).ok_or_else(wrong)? as usize;
        let wanted = count.saturating_add(1).saturating_mul(sets);
        *left = left.checked_sub(wanted).ok_or_else(wrong)?;
        numbers.extend(first..=last);
    }
    Ok(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(before: &str, written: &[&str]) -> KnobHistory {
        let written = written
            .iter()
            .map(|written| written.parse().unwrap())
            .collect();
        KnobHistory {
            before: before.parse().unwrap(),
            written,
        }
    }

    fn queue(queue: u32) -> Knob {
        Knob::Receive {
            device: "eth0".to_owned(),
            queue,
        }
    }

    #[test]
    fn text_and_back() {
        let wide = entry("0-7", &["0-1,4-7", "0-3"]);
        let mut entries: BTreeMap<Knob, KnobHistory> = [24, 25, 26, 40]
            .into_iter()
            .map(|irq| (Knob::Irq(irq), wide.clone()))
            .collect();
        entries.insert(Knob::Workqueues, wide);
        entries.insert(queue(0), entry("2", &["0"]));
        entries.insert(queue(1), entry("2", &["0"]));
        let note = KnobRecord::new(entries);
        let text = note.text().unwrap();
        assert_eq!(
            text,
            r#"{"version":1,"groups":[{"before":"0-7","ours":["0-3","0-1,4-7"],"irqs":"24-26,40","workqueues":true},{"before":"2","ours":["0"],"receive":{"eth0":"0-1"}}]}"#
        );
        assert_eq!(KnobRecord::parse(Some(&text)).unwrap(), note);
        assert_eq!(KnobRecord::default().text(), None);
        assert_eq!(KnobRecord::parse(None).unwrap(), KnobRecord::default());
    }

    #[test]
    fn foreign_notes_are_named() {
        let parse = |text: &str| KnobRecord::parse(Some(text)).unwrap_err();
        assert!(matches!(
            parse("hello"),
            KnobRecordError::Record(RecordError::Malformed { .. })
        ));
        assert!(matches!(
            parse(r#"{"version":2,"other":1}"#),
            KnobRecordError::Record(RecordError::Version { version: 2 })
        ));
        for irqs in ["x", "3-1", "0-4294967295", "1,,2", "0-1048575,5"] {
            let text =
                format!(r#"{{"version":1,"groups":[{{"before":"0","ours":[],"irqs":"{irqs}"}}]}}"#);
            assert!(
                matches!(parse(&text), KnobRecordError::Numbers { .. }),
                "{irqs}"
            );
        }
    }

    #[test]
    fn a_record_too_large_for_memory_is_refused() {
        let note = |groups: &[&str]| {
            KnobRecord::parse(Some(&format!(
                r#"{{"version":1,"groups":[{}]}}"#,
                groups.join(",")
            )))
        };
        let many = r#"{"before":"0","ours":["1"],"irqs":"0-99999"}"#;
        let others = r#"{"before":"0","ours":["1"],"receive":{"a":"0-99999"}}"#;
        let sets = r#"{"before":"0","ours":["1","2","3"],"irqs":"0-99999"}"#;
        assert_eq!(note(&[many]).unwrap().entries().len(), 100_000);
        assert!(matches!(
            note(&[many, others]),
            Err(KnobRecordError::Numbers { .. })
        ));
        assert!(matches!(
            note(&[sets]),
            Err(KnobRecordError::Numbers { .. })
        ));
    }

    #[test]
    fn a_large_machine_fits() {
        // 512 CPUs, 8,000 interrupts bound to the CPUs in turn, 1,024 queues; half of the CPUs are exclusive.
        let mut entries = BTreeMap::new();
        for irq in 0..8000 {
            let before = CpuSet::from_iter([irq % 512]);
            if irq % 512 < 256 {
                entries.insert(
                    Knob::Irq(24 + irq),
                    KnobHistory {
                        before,
                        written: ["256-511".parse().unwrap()].into(),
                    },
                );
            }
        }
        for queue in 0..1024 {
            let device = format!("eth{}", queue / 128);
            entries.insert(
                Knob::Receive {
                    device,
                    queue: queue % 128,
                },
                entry("0-511", &["256-511"]),
            );
        }
        let length = KnobRecord::new(entries).text().unwrap().len();
        assert!(length < 48 * 1024, "{length} bytes");
    }
}
