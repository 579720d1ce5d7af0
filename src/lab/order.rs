//! [`order`]: which run comes when.

use crate::experiment::results::PlannedRun;
use crate::experiment::statistics::{Condition, Design};

/// The runs of a design in their order: a warm-up, then blocks that each hold every condition once, in an order of their own.
/// Whatever drifts over hours then drifts for all conditions alike.
///
/// The warm-up should be a run on as many nodes as possible: it pulls the images and fills the page caches, which otherwise the first
/// runs would pay for.
pub fn order(design: &Design, seed: u64, warm_up: Condition) -> Vec<PlannedRun> {
    let warm_up = PlannedRun {
        number: 0,
        block: None,
        condition: warm_up,
    };
    numbered([warm_up].into_iter().chain(blocks(design, seed, 0)), 0)
}

/// The runs of the blocks that an extension adds after the first `before`, without a warm-up.
pub fn extension(design: &Design, seed: u64, before: usize, last: u32) -> Vec<PlannedRun> {
    numbered(blocks(design, seed, before).into_iter(), last)
}

fn blocks(design: &Design, seed: u64, from: usize) -> Vec<PlannedRun> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut runs = Vec::new();
    for block in 0..design.repeats() {
        let mut conditions: Vec<Condition> = design.conditions().collect();
        random.shuffle(&mut conditions);
        let of_block = conditions.into_iter().map(|condition| PlannedRun {
            number: 0,
            block: Some(block),
            condition,
        });
        if block >= from {
            runs.extend(of_block);
        }
    }
    runs
}

fn numbered(runs: impl Iterator<Item = PlannedRun>, last: u32) -> Vec<PlannedRun> {
    let numbers = last.saturating_add(1)..;
    runs.zip(numbers)
        .map(|(run, number)| PlannedRun { number, ..run })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::experiment::statistics::{DesignOptions, Way};

    fn design(repeats: usize) -> Design {
        let options = DesignOptions {
            repeats,
            extendable: true,
            ..DesignOptions::default()
        };
        Design::new(Condition::all(2, 2, &Way::ALL), options).unwrap()
    }

    fn warm_up(design: &Design) -> Condition {
        design.conditions().last().unwrap()
    }

    #[test]
    fn each_block_holds_every_condition_once_in_its_own_order() {
        let design = design(6);
        let runs = order(&design, 7, warm_up(&design));
        assert_eq!(runs.len(), 1 + 6 * 16);
        assert_eq!(runs[0].block, None);
        assert_eq!(runs[0].condition, warm_up(&design));
        let numbers: Vec<u32> = runs.iter().map(|run| run.number).collect();
        assert_eq!(numbers, (1..=97).collect::<Vec<u32>>());
        let mut orders = BTreeSet::new();
        for block in runs[1..].chunks(16) {
            let conditions: BTreeSet<Condition> = block.iter().map(|run| run.condition).collect();
            assert_eq!(conditions.len(), 16);
            assert!(block.iter().all(|run| run.block == block[0].block));
            orders.insert(block.iter().map(|run| run.condition).collect::<Vec<_>>());
        }
        assert_eq!(orders.len(), 6);
        assert_eq!(order(&design, 7, warm_up(&design)), runs);
        assert_ne!(order(&design, 8, warm_up(&design)), runs);
    }

    #[test]
    fn an_extension_continues_the_same_order() {
        let short = design(3);
        let before = order(&short, 7, warm_up(&short));
        let longer = short.extend(2).unwrap();
        let added = extension(&longer, 7, 3, before.last().unwrap().number);
        let whole = order(&longer, 7, warm_up(&longer));
        assert_eq!([before, added].concat(), whole);
    }
}
