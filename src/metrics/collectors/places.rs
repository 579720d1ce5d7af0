//! [`Places`]: a number for each cgroup, for as long as it is there.
//!
//! What collectors keep of a cgroup from one scrape to the next lies at its number: looking up a long path a dozen times in each
//! scrape, with memory that has grown cold since the last, costs more than reading a file.

use std::collections::HashMap;

/// The numbers of cgroups. They are small, and used again.
#[derive(Debug, Default)]
pub(in crate::metrics) struct Places {
    /// Which cgroup has each number; nothing for one that nobody has.
    taken: Vec<Option<Place>>,
    numbers: HashMap<String, usize>,
    free: Vec<usize>,
    /// The numbers of the last scrape's cgroups, in their order.
    last: Vec<usize>,
    scrape: u64,
}

#[derive(Debug)]
struct Place {
    path: String,
    /// The last scrape in which it was there.
    seen: u64,
}

// === impl Places ===

impl Places {
    /// The number of each of these cgroups, which are all that are there now. `gone` hears the numbers of those that are not
    /// any more.
    pub(super) fn assign<'a>(
        &mut self,
        cgroups: impl Iterator<Item = &'a str>,
        mut gone: impl FnMut(usize),
    ) -> Vec<usize> {
        self.scrape += 1;
        let last = std::mem::take(&mut self.last);
        let mut assigned = Vec::with_capacity(last.len());
        for (at, path) in cgroups.enumerate() {
            // Mostly they are those of the last time, in the same order.
            let same = last
                .get(at)
                .copied()
                .filter(|number| self.path(*number) == Some(path));
            let number = same
                .or_else(|| self.numbers.get(path).copied())
                .unwrap_or_else(|| self.take(path));
            if let Some(Some(place)) = self.taken.get_mut(number) {
                place.seen = self.scrape;
            }
            assigned.push(number);
        }
        for (number, place) in self.taken.iter_mut().enumerate() {
            if let Some(left) = place.take_if(|place| place.seen != self.scrape) {
                self.numbers.remove(&left.path);
                self.free.push(number);
                gone(number);
            }
        }
        self.last.clone_from(&assigned);
        assigned
    }

    /// The number of a cgroup, if it was there at the last scrape.
    pub(in crate::metrics) fn number(&self, cgroup: &str) -> Option<usize> {
        self.numbers.get(cgroup).copied()
    }

    /// How many cgroups have a number.
    #[cfg(test)]
    pub(super) fn kept(&self) -> usize {
        self.numbers.len()
    }

    fn path(&self, number: usize) -> Option<&str> {
        Some(&self.taken.get(number)?.as_ref()?.path)
    }

    fn take(&mut self, path: &str) -> usize {
        let place = Some(Place {
            path: path.to_owned(),
            seen: 0,
        });
        let number = match self.free.pop() {
            Some(number) => number,
            None => {
                self.taken.push(None);
                self.taken.len() - 1
            }
        };
        if let Some(free) = self.taken.get_mut(number) {
            *free = place;
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

    fn assign(places: &mut Places, cgroups: &[&str]) -> (Vec<usize>, Vec<usize>) {
        let mut gone = Vec::new();
        let assigned = places.assign(cgroups.iter().copied(), |number| gone.push(number));
        (assigned, gone)
    }

    #[test]
    fn who_stays_keeps_the_number_and_who_goes_leaves_it() {
        let mut places = Places::default();
        assert_eq!(
            assign(&mut places, &["a", "b", "c"]),
            (vec![0, 1, 2], vec![])
        );
        assert_eq!(
            assign(&mut places, &["a", "b", "c"]),
            (vec![0, 1, 2], vec![])
        );
        assert_eq!(
            assign(&mut places, &["c", "a", "a"]),
            (vec![2, 0, 0], vec![1])
        );
        assert_eq!(
            assign(&mut places, &["d", "a", "e", "c"]),
            (vec![1, 0, 3, 2], vec![])
        );
        assert_eq!(assign(&mut places, &[]), (vec![], vec![0, 1, 2, 3]));
        assert_eq!((places.numbers.len(), places.free.len()), (0, 4));
    }

    proptest! {
        #[test]
        fn nobody_shares_a_number_and_everybody_who_goes_is_told(
            scrapes in prop::collection::vec(prop::collection::vec("[a-f]", 0..9), 1..12),
        ) {
            let mut places = Places::default();
            let mut there: BTreeMap<String, usize> = BTreeMap::new();
            for cgroups in scrapes {
                let mut gone = BTreeSet::new();
                let numbers =
                    places.assign(cgroups.iter().map(String::as_str), |number| assert!(gone.insert(number)));
                let now: BTreeMap<String, usize> = cgroups.iter().cloned().zip(numbers).collect();
                prop_assert_eq!(now.values().collect::<BTreeSet<_>>().len(), now.len());
                for (path, number) in &there {
                    match now.get(path) {
                        Some(kept) => prop_assert_eq!(kept, number),
                        None => prop_assert!(gone.remove(number)),
                    }
                }
                prop_assert!(gone.is_empty());
                prop_assert!(places.taken.len() <= 6);
                there = now;
            }
        }
    }
}
