use std::time::Duration;

use super::*;
use crate::host::cgroup::{ContainerCgroup, PodCgroup};
use crate::pin::{AppliedStep, Scan, Step, StepOutcome};
use crate::pod::ContainerIds;

fn world() -> World {
    let heartbeat = Heartbeat::new(Duration::from_secs(1));
    let store = PodStore::new(ContainerIds::NoSource);
    World::new(store, AgentMetrics::new().unwrap(), heartbeat)
}

#[test]
fn a_note_that_could_not_be_written_is_tried_again_by_the_next_turn() {
    let observed = |cpus: &str| {
        let mut pod = PodCgroup {
            path: "pod".to_owned(),
            ..PodCgroup::default()
        };
        pod.cpuset.cpus = cpus.parse().unwrap();
        let scan = Scan {
            pods: vec![pod],
            ..Scan::default()
        };
        Observed::new(scan, &[]).0
    };
    let mut world = world();
    world
        .seen_sets
        .notes(&mut observed("0-3"), &"0-3".parse().unwrap());
    let online = "0-2".parse().unwrap();
    let mut notes = world.seen_sets.notes(&mut observed("0-2"), &online);
    let failed = StepOutcome::Differs {
        says: String::new(),
    };
    for (outcome, remaining) in [(failed, 1), (StepOutcome::Done, 0)] {
        let step = notes.pop().unwrap();
        let applied = [AppliedStep { step, outcome }];
        assert_eq!(world.account_notes(&applied).len(), remaining);
        notes = world.seen_sets.notes(&mut observed("0-2"), &online);
        assert_eq!(notes.len(), remaining);
    }
}

#[test]
fn a_cgroup_without_a_record_is_remembered_until_it_has_one_or_goes() {
    let mut world = world();
    let step = |path: &str, outcome| AppliedStep {
        step: Step::Record {
            path: path.to_owned(),
            record: None,
        },
        outcome,
    };
    let failed = || StepOutcome::Differs {
        says: "no record".to_owned(),
    };
    let paths = ["pod/a", "pod/b", "pod/c"];
    let applied = paths.map(|path| step(path, failed()));
    let errors = world.account(&applied);
    assert_eq!(errors.len(), 3, "{errors:?}");
    world.account(&[step("pod/a", StepOutcome::Done)]);
    assert_eq!(
        world.unrecorded,
        ["pod/b", "pod/c"].map(str::to_owned).into()
    );
    let container = ContainerCgroup {
        path: "pod/c".to_owned(),
        ..ContainerCgroup::default()
    };
    let pod = PodCgroup {
        containers: vec![container],
        ..PodCgroup::default()
    };
    let scan = Scan {
        pods: vec![pod],
        ..Scan::default()
    };
    *world.mirror.observed_mut() = Observed::new(scan, &[]).0;
    world.forget_ended_unrecorded();
    assert_eq!(world.unrecorded, ["pod/c"].map(str::to_owned).into());
}
