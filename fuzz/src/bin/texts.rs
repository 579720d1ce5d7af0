//! Short texts of Pinfold and of Kubernetes: selectors, quantities, profiles, assignment records and notes on cgroups.
//!
//! Every input is parsed as each kind. Further lines are labels, `key=value`, for a selector in the first line.

#![no_main]

use std::collections::BTreeMap;

use libfuzzer_sys::fuzz_target;
use pinfold::cpu::CpuSet;
use pinfold::host::proc::NamespaceTcpCounts;
use pinfold::pin::AssignmentRecord;
use pinfold::pin::cpu_isolation::KnobRecord;
use pinfold::pod::quantity::{bytes, cpu_millis, format_bytes, format_cpu};
use pinfold::pod::{Profile, Selector};
use pinfold_fuzz::{says_why, text};

/// The largest amount of a quantity.
const MOST: u64 = i64::MAX.unsigned_abs();

fuzz_target!(|data: &[u8]| {
    let Some(text) = text(data) else { return };
    let (first, rest) = text.split_once('\n').unwrap_or((text, ""));
    quantity(first);
    selector(first, rest);
    assignment_record(text);
    note(text);
    // TCP's counts are a number or `None` for every text.
    let _ = NamespaceTcpCounts::parse(text);
    match text.parse::<Profile>() {
        Ok(profile) => assert_eq!(profile.to_string(), text),
        Err(error) => says_why(&error),
    }
});

fn quantity(text: &str) {
    let (millis, bytes_value) = match (cpu_millis(text), bytes(text)) {
        (Ok(millis), Ok(bytes_value)) => (millis, bytes_value),
        (Err(error), Err(other)) => {
            assert_eq!(error, other);
            return says_why(&error);
        }
        (millis, bytes_value) => panic!("a quantity of one kind only: {millis:?}, {bytes_value:?}"),
    };
    assert!(millis <= MOST && bytes_value <= MOST);
    // Rounding up in one step or in two steps gives the same number below the limit.
    if millis < MOST {
        assert_eq!(millis.div_ceil(1000), bytes_value);
    } else {
        assert!(bytes_value >= MOST / 1000);
    }
    assert_eq!(cpu_millis(&format_cpu(millis)), Ok(millis));
    assert_eq!(bytes(&format_bytes(bytes_value)), Ok(bytes_value));
}

fn selector(text: &str, labels: &str) {
    let selector: Selector = match text.parse() {
        Ok(selector) => selector,
        Err(error) => return says_why(&error),
    };
    let printed = selector.to_string();
    let again: Selector = match printed.parse() {
        Ok(again) => again,
        Err(error) => panic!("{printed:?} can't be read: {error}"),
    };
    assert_eq!(again, selector, "{printed:?}");
    let labels: BTreeMap<String, String> = labels
        .lines()
        .filter_map(|line| line.split_once('='))
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .collect();
    let chosen = selector.matches(&labels);
    assert_eq!(again.matches(&labels), chosen);
    // A selector matches if all conditions hold, so a further condition never adds matches.
    if let Ok(narrower) = format!("{printed},!none-such").parse::<Selector>() {
        assert_eq!(
            narrower.matches(&labels),
            chosen && !labels.contains_key("none-such")
        );
    }
}

fn assignment_record(text: &str) {
    let assignment_record = match AssignmentRecord::parse(text) {
        Ok(assignment_record) => assignment_record,
        Err(error) => return says_why(&error),
    };
    let all = assignment_record
        .assignment
        .entries()
        .fold(CpuSet::new(), |all, (_, cpus)| all.union(cpus));
    assert_eq!(assignment_record.cpus(), all);
    assert_eq!(
        AssignmentRecord::parse(&assignment_record.text()).expect("a mark that was written"),
        assignment_record
    );
}

fn note(text: &str) {
    let note = match KnobRecord::parse(Some(text)) {
        Ok(note) => note,
        Err(error) => return says_why(&error),
    };
    let again = KnobRecord::parse(note.text().as_deref()).expect("a note that was written");
    assert_eq!(again, note);
}
