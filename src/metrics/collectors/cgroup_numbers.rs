//! [`CgroupNumbers`]: a small number for each live cgroup.
//!
//! Collectors keep the state of a cgroup at the index of its number, because a scrape would
//! otherwise look up a long path a dozen times. After a pause between scrapes the path's memory is
//! out of the caches, and a look-up costs more than reading a file.

use std::collections::HashMap;

/// The numbers of the live cgroups. That of a removed one is used again.
#[derive(Debug, Default)]
pub(super) struct CgroupNumbers {
    /// The cgroup of each number; `None` for a free number.
    cgroups: Vec<Option<NumberedCgroup>>,
    numbers: HashMap<String, usize>,
    free: Vec<usize>,
    /// The numbers of the last scrape's cgroups, in the scrape's order.
    last: Vec<usize>,
    scrape: u64,
}

#[derive(Debug)]
struct NumberedCgroup {
    path: String,
    /// The first scrape that listed the cgroup; 1 is the agent's first.
    first_scrape: u64,
    /// The last scrape that listed the cgroup.
    scrape: u64,
}

// === impl CgroupNumbers ===

impl CgroupNumbers {
    /// Returns the number of each cgroup in the list of all live cgroups. Calls `gone` with the
    /// number of each one that is missing in it.
    pub(super) fn assign<'a>(
        &mut self,
        cgroups: impl Iterator<Item = &'a str>,
        mut gone: impl FnMut(usize),
    ) -> Vec<usize> {
        self.scrape += 1;
        let last = std::mem::take(&mut self.last);
        let mut assigned = Vec::with_capacity(last.len());
        for (index, path) in cgroups.enumerate() {
            // Most scrapes list the same cgroups in the same order.
            let same = last
                .get(index)
                .copied()
                .filter(|number| self.path(*number) == Some(path));
            let number = same
                .or_else(|| self.numbers.get(path).copied())
                .unwrap_or_else(|| self.add(path));
            if let Some(Some(cgroup)) = self.cgroups.get_mut(number) {
                cgroup.scrape = self.scrape;
            }
            assigned.push(number);
        }
        for (number, cgroup) in self.cgroups.iter_mut().enumerate() {
            if let Some(removed) = cgroup.take_if(|cgroup| cgroup.scrape != self.scrape) {
                self.numbers.remove(&removed.path);
                self.free.push(number);
                gone(number);
            }
        }
        self.last.clone_from(&assigned);
        assigned
    }

    /// The number of a cgroup of the last scrape.
    pub(super) fn number(&self, cgroup: &str) -> Option<usize> {
        self.numbers.get(cgroup).copied()
    }

    /// Whether the cgroup with this number was there at the agent's first scrape. What its tasks had counted before then
    /// either stands in the series of the agent's predecessor, or happened before anybody measured.
    pub(super) fn was_there_first(&self, number: usize) -> bool {
        let cgroup = self.cgroups.get(number).and_then(Option::as_ref);
        cgroup.is_some_and(|cgroup| cgroup.first_scrape == 1)
    }

    /// The count of live cgroups.
    #[cfg(test)]
    pub(super) fn kept(&self) -> usize {
        self.numbers.len()
    }

    fn path(&self, number: usize) -> Option<&str> {
        Some(&self.cgroups.get(number)?.as_ref()?.path)
    }

    fn add(&mut self, path: &str) -> usize {
        let cgroup = Some(NumberedCgroup {
            path: path.to_owned(),
            first_scrape: self.scrape,
            scrape: 0,
        });
        let number = match self.free.pop() {
            Some(number) => number,
            None => {
                self.cgroups.push(None);
                self.cgroups.len() - 1
            }
        };
        if let Some(free) = self.cgroups.get_mut(number) {
            *free = cgroup;
        }
        self.numbers.insert(path.to_owned(), number);
        number
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use proptest::prelude::*;

    use super::*;

    fn assign(numbers: &mut CgroupNumbers, cgroups: &[&str]) -> (Vec<usize>, Vec<usize>) {
        let mut gone = Vec::new();
        let assigned = numbers.assign(cgroups.iter().copied(), |number| gone.push(number));
        (assigned, gone)
    }

    #[test]
    fn only_cgroups_of_the_first_scrape_were_there_first() {
        let mut numbers = CgroupNumbers::default();
        assign(&mut numbers, &["a", "b"]);
        assign(&mut numbers, &["a", "c"]);
        let first = |numbers: &CgroupNumbers, cgroup| {
            numbers.was_there_first(numbers.number(cgroup).unwrap())
        };
        assert!(first(&numbers, "a"));
        assert!(!first(&numbers, "c"), "it has the number of b");
    }

    #[test]
    fn a_live_cgroup_keeps_its_number_and_a_removed_cgroup_frees_its_number() {
        let mut numbers = CgroupNumbers::default();
        assert_eq!(
            assign(&mut numbers, &["a", "b", "c"]),
            (vec![0, 1, 2], vec![])
        );
        assert_eq!(
            assign(&mut numbers, &["a", "b", "c"]),
            (vec![0, 1, 2], vec![])
        );
        assert_eq!(
            assign(&mut numbers, &["c", "a", "a"]),
            (vec![2, 0, 0], vec![1])
        );
        assert_eq!(
            assign(&mut numbers, &["d", "a", "e", "c"]),
            (vec![1, 0, 3, 2], vec![])
        );
        assert_eq!(assign(&mut numbers, &[]), (vec![], vec![0, 1, 2, 3]));
        assert_eq!((numbers.numbers.len(), numbers.free.len()), (0, 4));
    }

    proptest! {
        #[test]
        fn numbers_are_unique_and_every_removed_cgroup_is_reported(
            scrapes in prop::collection::vec(prop::collection::vec("[a-f]", 0..9), 1..12),
        ) {
            let mut numbers = CgroupNumbers::default();
            let mut listed: BTreeMap<String, usize> = BTreeMap::new();
            for cgroups in scrapes {
                let mut gone = BTreeSet::new();
                let assigned =
                    numbers.assign(cgroups.iter().map(String::as_str), |number| assert!(gone.insert(number)));
                let now: BTreeMap<String, usize> = cgroups.iter().cloned().zip(assigned).collect();
                prop_assert_eq!(now.values().collect::<BTreeSet<_>>().len(), now.len());
                for (path, number) in &listed {
                    match now.get(path) {
                        Some(kept) => prop_assert_eq!(kept, number),
                        None => prop_assert!(gone.remove(number)),
                    }
                }
                prop_assert!(gone.is_empty());
                prop_assert!(numbers.cgroups.len() <= 6);
                listed = now;
            }
        }
    }
}
