//! CPU lists and CPU masks. An input has two, one in each line.

#![no_main]

use std::collections::BTreeSet;

use libfuzzer_sys::fuzz_target;
use pinfold::cpu::{CpuSet, MAX_CPU};
use pinfold_fuzz::{says_why, text};

fuzz_target!(|data: &[u8]| {
    let Some(text) = text(data) else { return };
    let (first, second) = text.split_once('\n').unwrap_or((text, ""));
    let sets = [first, second].map(|line| {
        let list = line.parse::<CpuSet>();
        let mask = CpuSet::from_mask(line);
        for error in [list.as_ref().err(), mask.as_ref().err()]
            .into_iter()
            .flatten()
        {
            says_why(error);
        }
        for set in [&list, &mask].into_iter().flatten() {
            survives(set);
        }
        list.or(mask).unwrap_or_default()
    });
    let [left, right] = &sets;
    laws(left, right);
    laws(right, left);
});

/// A written set can be read again, as a list and as a mask.
fn survives(set: &CpuSet) {
    assert_eq!(set.to_string().parse().as_ref(), Ok(set));
    assert_eq!(CpuSet::from_mask(&mask(set)).as_ref(), Ok(set));
    let ids: Vec<u32> = set.iter().collect();
    assert!(ids.is_sorted_by(|a, b| a < b) && ids.iter().all(|&id| id <= MAX_CPU));
    assert_eq!(ids.iter().copied().collect::<CpuSet>(), *set);
    assert_eq!(
        (set.len(), set.first(), set.is_empty()),
        (ids.len(), ids.first().copied(), ids.is_empty())
    );
}

/// The kernel's mask of a set.
fn mask(set: &CpuSet) -> String {
    let highest = set.iter().last().unwrap_or(0);
    let word = |base: u32| {
        (0..32)
            .filter(|bit| set.contains(base + bit))
            .fold(0_u32, |word, bit| word | 1 << bit)
    };
    let words: Vec<String> = (0..=highest / 32)
        .rev()
        .map(|index| format!("{:08x}", word(index * 32)))
        .collect();
    words.join(",")
}

/// A `CpuSet` has the same results as a set of the standard library.
fn laws(left: &CpuSet, right: &CpuSet) {
    let (a, b): (BTreeSet<u32>, BTreeSet<u32>) = (left.iter().collect(), right.iter().collect());
    assert!(left.union(right).iter().eq(a.union(&b).copied()));
    assert!(
        left.intersection(right)
            .iter()
            .eq(a.intersection(&b).copied())
    );
    assert!(left.difference(right).iter().eq(a.difference(&b).copied()));
    assert_eq!(left.is_subset(right), a.is_subset(&b));
    assert_eq!(left.is_disjoint(right), a.is_disjoint(&b));
    assert_eq!((left.cmp(right), left == right), (a.cmp(&b), a == b));
    let (mut more, mut less) = (left.clone(), left.clone());
    for cpu in b {
        assert_eq!(more.insert(cpu), !a.contains(&cpu));
        assert_eq!(less.remove(cpu), a.contains(&cpu));
    }
    assert_eq!((more, less), (left.union(right), left.difference(right)));
}
