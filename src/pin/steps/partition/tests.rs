//! Plans for partitions, written out. Whatever else can happen is in `tests/model.rs`, on a model of the kernel.

use super::super::{plan, release};
use crate::cpu::CpuSet;
use crate::host::cgroup::{
    AncestorCgroup, ContainerCgroup, Cpuset, Partition, PartitionKind, PodCgroup, PodSurroundings,
};
use crate::pin::{AssignmentRecord, Desired, EarlierSettings, Enforcement, Observed, Scan, Step};
use crate::pod::{Container, Pod, recognized};

mod init;
mod kubelet;

const ONLINE: &str = "0-7";

fn set(list: &str) -> CpuSet {
    list.parse().unwrap()
}

/// A container's cgroup: pod, name, exclusive CPUs, the kernel's word for the partition, written CPUs.
type CgroupRow<'a> = (&'a str, &'a str, &'a str, Option<&'a str>, &'a str);

fn member() -> Partition {
    Partition::Valid(PartitionKind::Member)
}

fn cpuset(exclusive: &str, cpus: &str, partition: Partition) -> Cpuset {
    Cpuset {
        cpus: set(cpus),
        effective: if partition.is_live() {
            set(exclusive)
        } else {
            set(ONLINE)
        },
        exclusive: set(exclusive),
        partition,
        narrowed_from: None,
    }
}

/// Adds an assignment to the text of a record; without a text, a new record.
fn with_assignment(text: Option<&str>, name: &str, cpus: &str) -> AssignmentRecord {
    let mut record = match text {
        Some(text) => AssignmentRecord::parse(text).unwrap(),
        None => AssignmentRecord::new(EarlierSettings::default()),
    };
    let containers = &mut record.assignment.containers;
    containers.insert(name.to_owned(), set(cpus));
    record
}

fn container_cgroup(
    pod: &str,
    (_, name, exclusive, says, cpus): &CgroupRow<'_>,
) -> ContainerCgroup {
    let partition = match says {
        Some("member") => member(),
        Some(words) => Partition::Invalid((*words).to_owned()),
        None if exclusive.is_empty() => member(),
        None => Partition::Valid(PartitionKind::Root),
    };
    let record = with_assignment(None, name, exclusive);
    ContainerCgroup {
        path: format!("{pod}/{name}"),
        id: (*name).to_owned(),
        cpuset: cpuset(exclusive, cpus, partition),
        record_text: (!exclusive.is_empty()).then(|| record.text()),
        ..ContainerCgroup::default()
    }
}

/// The observed cgroups, with a record on each cgroup that holds CPUs. By default a cgroup with CPUs is a partition.
fn there(tree: &str, containers: &[CgroupRow<'_>]) -> Observed {
    let mut scan = Scan::default();
    let mut known: Vec<Pod> = Vec::new();
    for container in containers {
        let (uid, name, exclusive, ..) = *container;
        if scan.pods.last().is_none_or(|last| last.uid != uid) {
            scan.pods.push(PodCgroup {
                path: format!("kubepods/{uid}"),
                uid: uid.to_owned(),
                cpuset: cpuset("", "", member()),
                ..PodCgroup::default()
            });
            known.push(Pod {
                uid: Some(uid.into()),
                ..Pod::default()
            });
        }
        let (cgroup, pod) = (scan.pods.last_mut().unwrap(), known.last_mut().unwrap());
        cgroup
            .containers
            .push(container_cgroup(&cgroup.path, container));
        if !exclusive.is_empty() {
            let record = with_assignment(cgroup.record_text.as_deref(), name, exclusive);
            cgroup.cpuset.exclusive = record.cpus();
            cgroup.record_text = Some(record.text());
        }
        pod.containers.push(Container {
            name: name.to_owned(),
            runtime_id: Some(name.to_owned()),
            ..Container::default()
        });
    }
    let above = AncestorCgroup {
        path: "kubepods".to_owned(),
        cpuset: cpuset(tree, "", member()),
        ..AncestorCgroup::default()
    };
    scan.surroundings = PodSurroundings {
        above: vec![above],
        ..PodSurroundings::default()
    };
    Observed::new(scan, &recognized(known)).0
}

fn desired(claims: &[(&str, &str, &str)]) -> Desired {
    let mut desired = Desired {
        online: set(ONLINE),
        ..Desired::default()
    };
    for (pod, container, cpus) in claims {
        desired
            .pod_mut(pod)
            .assignment
            .containers
            .insert((*container).to_owned(), set(cpus));
    }
    desired
}

/// The steps in words, without the steps that only write records.
fn steps(observed: &Observed, desired: &Desired) -> Vec<String> {
    let steps = plan(
        observed,
        &crate::pin::Ledger::default(),
        desired,
        Enforcement::Partition,
    );
    words(&steps)
}

fn words(steps: &[Step]) -> Vec<String> {
    let steps = steps
        .iter()
        .filter(|step| !matches!(step, Step::Record { .. }));
    steps
        .map(|step| step.to_string().replace("kubepods/", ""))
        .collect()
}

#[test]
fn a_partition_is_made_from_above_and_ends_from_below() {
    let made = steps(
        &there("", &[("a", "x", "", None, "")]),
        &desired(&[("a", "x", "2-3")]),
    );
    assert_eq!(
        made,
        [
            "kubepods: exclusive 2-3",
            "a: exclusive 2-3",
            "a/x: exclusive 2-3",
            "a/x: root on CPUs 2-3"
        ]
    );
    let lives = there("2-3", &[("a", "x", "2-3", None, "")]);
    assert_eq!(
        steps(&lives, &desired(&[("a", "x", "2-3")])),
        Vec::<String>::new()
    );
    let ended = [
        "a/x: member",
        "a/x: exclusive none",
        "a: exclusive none",
        "kubepods: exclusive none",
    ];
    assert_eq!(steps(&lives, &desired(&[])), ended);
    assert_eq!(words(&release(&lives, &set(ONLINE), &CpuSet::new())), ended);
}

#[test]
fn a_pod_by_itself_takes_from_nobody_above_it() {
    let both = there(
        "2-5",
        &[
            ("a", "x", "2-3", None, ""),
            ("b", "y", "4-5", None, ""),
            ("b", "z", "", None, ""),
        ],
    );
    let claims = [("a", "x", "2-3"), ("b", "y", "4-5"), ("b", "z", "6")];
    let only = both.only("b").unwrap();
    let made = [
        "kubepods: exclusive 2-6",
        "b: exclusive 4-6",
        "b/z: exclusive 6",
        "b/z: root on CPU 6",
    ];
    assert_eq!(steps(&only, &desired(&claims)), made);
    // The plan takes away exactly the CPUs that the pod gives up.
    let ended = [
        "b/y: member",
        "b/y: exclusive none",
        "b: exclusive none",
        "kubepods: exclusive 2-3",
    ];
    assert_eq!(steps(&only, &desired(&claims[..1])), ended);
    assert!(both.only("c").is_none());
}

#[test]
fn partitions_grow_from_above_and_shrink_from_below() {
    let lives = there("2-3", &[("a", "x", "2-3", None, "")]);
    let grown = steps(&lives, &desired(&[("a", "x", "2-4")]));
    assert_eq!(
        grown,
        [
            "kubepods: exclusive 2-4",
            "a: exclusive 2-4",
            "a/x: exclusive 2-4"
        ]
    );
    let shrunk = steps(&lives, &desired(&[("a", "x", "2")]));
    assert_eq!(
        shrunk,
        [
            "a/x: exclusive 2",
            "a: exclusive 2",
            "kubepods: exclusive 2"
        ]
    );
}

#[test]
fn an_owner_moves_as_soon_as_its_new_cpus_are_free() {
    let two = there(
        "2-5",
        &[("a", "x", "2-3", None, ""), ("b", "y", "4-5", None, "")],
    );
    // The second makes room for the first.
    let row = steps(&two, &desired(&[("a", "x", "4-5"), ("b", "y", "6-7")]));
    assert_eq!(
        row[..3],
        [
            "kubepods: exclusive 2-7",
            "b: exclusive 4-7",
            "b/y: exclusive 6-7"
        ]
    );
    assert!(!row.iter().any(|step| step.ends_with("member")), "{row:?}");
    // Each pod gets the CPUs of the other one, so the plan ends one partition first.
    let ring = steps(&two, &desired(&[("a", "x", "4-5"), ("b", "y", "2-3")]));
    assert_eq!(
        ring.iter().filter(|step| step.ends_with("member")).count(),
        1,
        "{ring:?}"
    );
    assert_eq!(ring.last().unwrap(), "a/x: root on CPUs 4-5");
}

#[test]
fn an_invalid_one_is_a_member_before_anything_else() {
    let broken = there(
        "2-3",
        &[
            ("a", "x", "2-3", Some("root invalid"), ""),
            ("a", "z", "", None, "3-4"),
        ],
    );
    let mended = steps(&broken, &desired(&[("a", "x", "2-3")]));
    assert_eq!(
        mended,
        ["a/x: member", "a/z: CPU 4", "a/x: root on CPUs 2-3"]
    );
}

#[test]
fn exclusive_cpus_of_ancestors_are_returned_when_a_pod_ends() {
    let lives = there("", &[("a", "x", "2-3", None, "")]);
    let ended = [
        "kubepods: exclusive 2-3",
        "a/x: member",
        "a/x: exclusive none",
        "a: exclusive none",
        "kubepods: exclusive none",
    ];
    assert_eq!(steps(&lives, &desired(&[])), ended);
    assert_eq!(words(&release(&lives, &set(ONLINE), &CpuSet::new())), ended);
}

/// The record may come from a later version of Pinfold. What the container runtime remembers of the
/// container's CPUs does not make them Pinfold's affair.
#[test]
fn nothing_is_planned_in_a_pod_whose_record_cannot_be_read() {
    let rows: [&[CgroupRow<'_>]; 2] = [
        &[("a", "x", "2-3", None, "2-3")],
        &[("a", "x", "2-3", None, ""), ("a", "z", "", None, "4-5")],
    ];
    for (row, former) in rows.into_iter().zip([0, 1]) {
        let mut lives = there("2-3", row);
        let container = &mut lives.pods[0].containers[former];
        container.given_cpus = Some(container.cgroup.cpuset.cpus.clone());
        // With a readable record, the pod's CPUs are given up.
        assert!(!steps(&lives, &desired(&[])).is_empty());
        lives.pods[0].record = None;
        lives.pods[0].cgroup.record_text = Some("pinfold 2".to_owned());
        assert_eq!(steps(&lives, &desired(&[])), Vec::<String>::new());
    }
}

#[test]
fn one_that_was_refused_more_keeps_what_it_has() {
    let lives = there("2-3", &[("a", "x", "2-3", None, "")]);
    let mut more = desired(&[("a", "x", "2-4")]);
    more.held_back.insert("kubepods/a/x".to_owned());
    assert!(
        !steps(&lives, &more)
            .iter()
            .any(|step| step.starts_with("a/x")),
        "{:?}",
        steps(&lives, &more)
    );
    // A held-back cgroup without a partition gets no step.
    let mut first = desired(&[("a", "x", "2-3")]);
    first.held_back.insert("kubepods/a/x".to_owned());
    let waits = there("", &[("a", "x", "", None, "")]);
    let takes_no_step = |desired: &Desired| {
        let steps = steps(&waits, desired);
        assert!(
            !steps.iter().any(|step| step.starts_with("a/x")),
            "{steps:?}"
        );
    };
    takes_no_step(&first);
    // While CPUs are lost, all are held back.
    first.held_back.clear();
    first.starts_no_partition = true;
    takes_no_step(&first);
    assert_eq!(steps(&lives, &first), [""; 0], "a live partition stays");
}

#[test]
fn a_newer_set_of_another_container_is_what_it_gets_back() {
    let mut lives = there(
        "2-3",
        &[("a", "x", "2-3", None, ""), ("a", "z", "", None, "0-7")],
    );
    let other = &mut lives.pods[0].containers[1];
    // The set was narrowed from 0-2 to 0-1 earlier; then a foreign write gave the container all CPUs.
    other.record = Some(AssignmentRecord::new(EarlierSettings {
        cpus: set("0-2"),
        ..EarlierSettings::default()
    }));
    let wish = desired(&[("a", "x", "2-3")]);
    let steps = plan(
        &lives,
        &crate::pin::Ledger::default(),
        &wish,
        Enforcement::Partition,
    );
    assert_eq!(words(&steps), ["a/z: CPUs 0-1,4-7"]);
    let recorded = steps.iter().find_map(|step| match step {
        Step::Record {
            path,
            record: Some(mark),
        } if path.ends_with("/z") => Some(mark.before.cpus.clone()),
        _ => None,
    });
    assert_eq!(recorded, Some(set("0-7")));
}

#[test]
fn pods_that_nobody_told_of_stay_what_they_are() {
    let mut lives = there("2-3", &[("a", "x", "2-3", None, "")]);
    let claims = desired(&[("a", "x", "2-3")]);
    lives.pods[0].containers[0].cgroup.cpuset.partition = Partition::Valid(PartitionKind::Isolated);
    assert_eq!(
        steps(&lives, &claims),
        ["a/x: root on CPUs 2-3"],
        "its pod asks for nothing else"
    );
    lives.pods[0].is_known = false;
    assert_eq!(steps(&lives, &claims), Vec::<String>::new());
}

#[test]
fn isolated_ones_gain_nothing_before_work_queues_have_left() {
    let mut lives = there("2-3", &[("a", "x", "2-3", None, "")]);
    lives.pods[0].containers[0].cgroup.cpuset.partition = Partition::Valid(PartitionKind::Isolated);
    let mut wish = desired(&[("a", "x", "2-4")]);
    wish.pod_mut("a").isolated = true;
    let grows = [
        "kubepods: exclusive 2-4",
        "a: exclusive 2-4",
        "a/x: exclusive 2-4",
    ];
    assert_eq!(steps(&lives, &wish), grows);
    wish.pod_mut("a").isolation_pending = true;
    let balanced = [&["a/x: root on CPUs 2-3"], &grows[..]].concat();
    assert_eq!(steps(&lives, &wish), balanced);
    // With the same CPUs, or fewer, partitions stay isolated.
    wish.pod_mut("a").assignment = desired(&[("a", "x", "2-3")]).assignment("a");
    assert_eq!(steps(&lives, &wish), Vec::<String>::new());
    wish.pod_mut("a").assignment = desired(&[("a", "x", "2")]).assignment("a");
    assert!(
        !steps(&lives, &wish)
            .iter()
            .any(|step| step.contains("root"))
    );
    // A new partition starts with load balancing.
    let lives = there("", &[("a", "x", "", None, "")]);
    assert!(steps(&lives, &wish).contains(&"a/x: root on CPU 2".to_owned()));
    wish.pod_mut("a").isolation_pending = false;
    assert!(steps(&lives, &wish).contains(&"a/x: isolated on CPU 2".to_owned()));
}

#[test]
fn a_set_that_the_runtime_wrote_for_pinfold_is_no_earlier_value() {
    let before = |written: &str| {
        let plan = plan(
            &there("", &[("a", "x", "", None, written)]),
            &crate::pin::Ledger::default(),
            &desired(&[("a", "x", "2-3")]),
            Enforcement::Partition,
        );
        let mut marks = plan.into_iter().filter_map(|step| match step {
            Step::Record { path, record: mark } if path.ends_with("/x") => mark,
            _ => None,
        });
        marks.next_back().unwrap().before.cpus
    };
    assert_eq!(
        before("2-3"),
        CpuSet::new(),
        "all CPUs, once it is released"
    );
    assert_eq!(before("1-3"), set("1-3"));
}

#[test]
fn idle_cpus_have_a_partition_of_their_own() {
    let mut wish = desired(&[("a", "x", "2-3")]);
    wish.pod_mut("a").assignment.idle = set("6-7");
    let made = steps(&there("", &[("a", "x", "", None, "")]), &wish);
    assert_eq!(
        made,
        [
            "a/pinfold-idle: make",
            "kubepods: exclusive 2-3,6-7",
            "a: exclusive 2-3,6-7",
            "a/x: exclusive 2-3",
            "a/x: root on CPUs 2-3"
        ]
    );
    let empty = [
        ("a", "x", "2-3", None, ""),
        ("a", "pinfold-idle", "", None, ""),
    ];
    let next = steps(&there("2-3", &empty), &wish);
    assert_eq!(
        next,
        [
            "kubepods: exclusive 2-3,6-7",
            "a: exclusive 2-3,6-7",
            "a/pinfold-idle: exclusive 6-7",
            "a/pinfold-idle: root on CPUs 6-7"
        ]
    );
    let both = [
        ("a", "x", "2-3", None, ""),
        ("a", "pinfold-idle", "6-7", None, ""),
    ];
    let lives = there("2-3,6-7", &both);
    assert_eq!(steps(&lives, &wish), Vec::<String>::new());
    let ended = steps(&lives, &desired(&[("a", "x", "2-3")]));
    assert_eq!(ended.last().unwrap(), "a/pinfold-idle: remove");
}

#[test]
fn a_former_owner_that_the_runtime_put_back_gets_all_cpus_but_those_of_its_pod() {
    let former = |containers: &[CgroupRow<'_>]| {
        let mut observed = there("", containers);
        let container = &mut observed.pods[0].containers[0];
        container.given_cpus = Some(set("4-7"));
        observed
    };
    let alone = former(&[("a", "x", "", None, "4-7")]);
    assert_eq!(steps(&alone, &desired(&[])), ["a/x: CPUs 0-7"]);
    // Any other set belongs to somebody else.
    let foreign = former(&[("a", "x", "", None, "4-6")]);
    assert_eq!(steps(&foreign, &desired(&[])), Vec::<String>::new());
    // An owner has the set by right.
    let owner = former(&[("a", "x", "", None, "4-7")]);
    let owned = steps(&owner, &desired(&[("a", "x", "4-7")]));
    assert_eq!(owned.last().unwrap(), "a/x: root on CPUs 4-7");
    // Another container's partition may lie beside the set, or within.
    for (other, back) in [("2-3", "0-1,4-7"), ("5-6", "0-4,7")] {
        let beside = former(&[("a", "x", "", None, "4-7"), ("a", "y", other, None, "")]);
        let wish = desired(&[("a", "y", other)]);
        let plan = plan(
            &beside,
            &crate::pin::Ledger::default(),
            &wish,
            Enforcement::Partition,
        );
        let last = words(&plan).pop().unwrap();
        assert_eq!(last, format!("a/x: CPUs {back}"), "{plan:?}");
        // The record says that the container had no set of its own, so it gets all CPUs when the other one ends.
        let record = plan.iter().find_map(|step| match step {
            Step::Record { path, record } if path.ends_with("/x") => record.as_ref(),
            _ => None,
        });
        assert_eq!(record.unwrap().before.cpus, CpuSet::new(), "{plan:?}");
    }
}
