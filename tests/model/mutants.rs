//! Mistakes that a planner could make. The search finds each of them, so it would have found a
//! mistake of ours.

use pinfold::host::cgroup::PartitionKind as Made;
use pinfold::pin::{Reason, Step};

use super::agent::{Setup, Shape};
use super::events::Menu;
use super::explore::{Bounds, explore};
use super::kernel::{KernelKind, is_leaf, node_of};
use super::{PLAIN, running};

/// The violations that the search reports for a planner with changed plans.
fn found(kind: KernelKind, menu: Menu, mutate: fn(Vec<Step>) -> Vec<Step>) -> String {
    let mut setup = Setup::new(kind, 4, 1, &[Shape::Two(1, 1), Shape::One(1)]);
    setup.mutate = mutate;
    let start = if menu.foreign {
        running(&setup, &[0])
    } else {
        vec![]
    };
    let broken = explore(
        &setup,
        &[start],
        menu,
        Bounds {
            events: if menu.foreign { 2 } else { 5 },
            kills: 1,
            interruptions: 0,
        },
    );
    let broken = broken.err().unwrap_or_default();
    assert!(!broken.is_empty(), "the mutant lives");
    broken
        .iter()
        .map(ToString::to_string)
        .collect::<Vec<String>>()
        .join("\n")
}

const FOREIGN: Menu = Menu {
    foreign: true,
    ..PLAIN
};

fn first(steps: Vec<Step>, is_first: impl Fn(&Step) -> bool) -> Vec<Step> {
    let (mut one, other): (Vec<Step>, Vec<Step>) =
        steps.into_iter().partition(|step| is_first(step));
    one.extend(other);
    one
}

#[test]
fn partitions_made_before_their_cgroups_hold_the_cpus() {
    fn makes(step: &Step) -> bool {
        matches!(step, Step::Partition { kind, .. } if *kind != Made::Member)
    }
    let says = found(KernelKind::Linux72, PLAIN, |steps| first(steps, makes));
    assert!(says.contains("did not come off: Invalid"), "{says}");
}

#[test]
fn invalid_partitions_left_as_they_are() {
    fn member(step: &Step) -> bool {
        matches!(
            step,
            Step::Partition {
                kind: Made::Member,
                ..
            }
        )
    }
    let says = found(KernelKind::Late612, FOREIGN, |steps| {
        steps.into_iter().filter(|step| !member(step)).collect()
    });
    assert!(says.contains("did not come off: Invalid"), "{says}");
}

pub(crate) fn trimmed_first(steps: Vec<Step>) -> Vec<Step> {
    first(
        steps,
        |step| matches!(step, Step::Exclusive { path, .. } if !is_leaf(node_of(path))),
    )
}

#[test]
fn cgroups_above_trimmed_before_the_partitions_below() {
    let says = found(KernelKind::Early612, PLAIN, trimmed_first);
    assert!(says.contains("are lost until the next boot"), "{says}");
}

#[test]
fn assignments_without_a_record() {
    let says = found(KernelKind::Linux72, PLAIN, |steps| {
        steps
            .into_iter()
            .filter(|step| {
                !matches!(
                    step,
                    Step::Record {
                        record: Some(_),
                        ..
                    }
                )
            })
            .collect()
    });
    assert!(says.contains("three plans in a row"), "{says}");
}

#[test]
fn assignments_recorded_last() {
    fn rest(step: &Step) -> bool {
        !matches!(
            step,
            Step::Record {
                record: Some(_),
                ..
            }
        )
    }
    let says = found(KernelKind::Linux72, PLAIN, |steps| first(steps, rest));
    assert!(says.contains("as exclusive, not"), "{says}");
}

#[test]
fn owners_get_their_cpus_before_shared_containers_leave_them() {
    fn own(step: &Step) -> bool {
        matches!(
            step,
            Step::Cpus {
                reason: Reason::Own | Reason::Pod,
                ..
            }
        )
    }
    let says = found(KernelKind::V2, PLAIN, |steps| first(steps, own));
    assert!(says.contains("are in reach of"), "{says}");
}
