//! What failed steps forbid. Folders stand for cgroups; `tests/agent/records.rs` has the same on real cgroups.

use std::fs;

use super::*;
use crate::cpu::CpuSet;

fn set(list: &str) -> CpuSet {
    list.parse().unwrap()
}

/// Folders with the given texts of `cpuset.cpus`.
fn cgroups(sets: &[(&str, &str)]) -> (tempfile::TempDir, Cgroups) {
    let root = tempfile::tempdir().unwrap();
    for (path, text) in [("", "0-7")].iter().chain(sets) {
        let dir = root.path().join("cpuset").join(path);
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join("cpuset.cpus"), text).unwrap();
    }
    let cgroups = Cgroups::detect(root.path()).unwrap();
    (root, cgroups)
}

fn failed() -> StepOutcome {
    StepOutcome::Differs {
        says: String::new(),
    }
}

fn own(cpus: &str) -> Step {
    Step::cpus("pod/main", set(cpus), Reason::Own)
}

#[test]
fn a_failed_narrowing_blocks_the_cpus_that_the_container_may_use() {
    let (_root, cgroups) = cgroups(&[("web", "0-5"), ("unwritten", "\n"), ("damaged", "x")]);
    for outcome in [StepOutcome::Unrecorded, failed()] {
        let mut held = Exclusions::default();
        let narrow = Step::cpus("web", set("0-1"), Reason::Narrow);
        held.note(&narrow, &outcome, &cgroups);
        assert!(held.skipped(&own("1,6-7")).is_none(), "web is off these");
        let blocked = held.skipped(&own("4-7"));
        assert!(
            matches!(&blocked, Some(StepOutcome::Blocked { cpus }) if *cpus == set("4-5")),
            "{blocked:?}"
        );
    }
    // The set is unknown, or follows the pod's set, which a later step may widen.
    for path in ["damaged", "unwritten"] {
        let mut held = Exclusions::default();
        let narrow = Step::cpus(path, set("0-3"), Reason::Narrow);
        held.note(&narrow, &failed(), &cgroups);
        assert!(held.skipped(&own("2-3")).is_none(), "{path}");
        let blocked = held.skipped(&own("3-4"));
        assert!(
            matches!(&blocked, Some(StepOutcome::Blocked { cpus }) if *cpus == set("4")),
            "{path}: {blocked:?}"
        );
    }
    // A container that is gone needs no CPUs.
    let mut held = Exclusions::default();
    held.note(
        &Step::cpus("gone", set("0-3"), Reason::Narrow),
        &failed(),
        &cgroups,
    );
    assert!(held.skipped(&own("4-7")).is_none());
}

#[test]
fn a_record_stays_while_a_partition_below_could_not_be_ended() {
    let (_root, cgroups) = cgroups(&[]);
    let member = Step::Partition {
        path: "pod/main".to_owned(),
        kind: PartitionKind::Member,
        in_force: None,
    };
    let removal = |path: &str| Step::Record {
        path: path.to_owned(),
        record: None,
    };
    let mut held = Exclusions::default();
    held.note(&member, &failed(), &cgroups);
    for path in ["pod", "pod/main"] {
        let skipped = held.skipped(&removal(path));
        assert!(matches!(skipped, Some(StepOutcome::Unrestored)), "{path}");
    }
    assert!(held.skipped(&removal("pod/other")).is_none());
    assert!(held.skipped(&removal("pod2")).is_none());
    // A later step ends it, or the cgroup goes.
    for outcome in [StepOutcome::Done, StepOutcome::Gone] {
        held.note(&member, &failed(), &cgroups);
        held.note(&member, &outcome, &cgroups);
        assert!(held.skipped(&removal("pod")).is_none(), "{outcome:?}");
    }
}

/// The kernel ends a partition whose CPUs leave a cgroup above, so these CPUs stay until the partition has given them up.
#[test]
fn cgroups_above_keep_the_cpus_of_a_partition_that_could_not_shrink() {
    let (root, cgroups) = cgroups(&[("kubepods/pod/main", "2-5"), ("kubepods/pod2", "")]);
    let main = root.path().join("cpuset/kubepods/pod/main");
    fs::write(main.join("cpuset.cpus.exclusive"), "2-5").unwrap();
    let exclusive = |path: &str, cpus: &str| Step::Exclusive {
        path: path.to_owned(),
        cpus: set(cpus),
        in_force: None,
    };
    let shrink = exclusive("kubepods/pod/main", "2-3");
    let mut held = Exclusions::default();
    for outcome in [StepOutcome::Unrecorded, failed()] {
        held.note(&shrink, &outcome, &cgroups);
        for (path, wanted, written) in [
            ("kubepods/pod", "2-3", "2-5"),
            ("kubepods", "2-3,6", "2-6"),
            ("kubepods/pod2", "6", "6"),
            ("kubepods/pod/main", "2-3", "2-3"),
        ] {
            let step = held.keep_unended(exclusive(path, wanted), &cgroups);
            assert_eq!(step, exclusive(path, written), "{outcome:?}");
        }
    }
    held.note(&shrink, &StepOutcome::Done, &cgroups);
    let step = held.keep_unended(exclusive("kubepods/pod", "2-3"), &cgroups);
    assert_eq!(step, exclusive("kubepods/pod", "2-3"));
}
