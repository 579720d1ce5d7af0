use std::collections::BTreeMap;
use std::time::Duration;

use super::*;
use crate::agent::event::{RuntimePod, RuntimeUpdate};
use crate::agent::fake_kernel::{FakeKernel, set};
use crate::agent::world::{Heartbeat, World};
use crate::host::cgroup::{NestedCgroup, Partition, PartitionKind};
use crate::metrics::AgentMetrics;
use crate::pin::Reason;
use crate::pod::{Container, ContainerIds, Pod};

fn store() -> PodStore {
    PodStore::new(ContainerIds::Awaited)
}

fn paths(paths: &[&str]) -> CgroupChanges {
    let any = |path: &&str| ((*path).to_owned(), CgroupChange::Any);
    CgroupChanges {
        paths: paths.iter().map(any).collect(),
        all: false,
    }
}

/// The change of a cgroup whose CPUs were written.
fn cpus_of(path: &str) -> CgroupChanges {
    CgroupChanges {
        paths: BTreeMap::from([(path.to_owned(), CgroupChange::Cpus)]),
        all: false,
    }
}

fn read(kernel: &FakeKernel) -> Mirror {
    let mut mirror = Mirror::default();
    assert!(!mirror.is_complete());
    read_all(&mut mirror, kernel);
    assert!(mirror.is_complete() && mirror.take_changed());
    kernel.take_reads();
    mirror
}

fn read_all(mirror: &mut Mirror, kernel: &FakeKernel) {
    let reading = mirror.read(kernel, &store(), &mut || false).unwrap();
    assert_eq!(reading, Reading::Complete);
    mirror.read_surroundings(kernel).unwrap();
    let reading = mirror.read_effective(kernel, &mut || false).unwrap();
    assert_eq!(reading, Reading::Complete);
}

fn uids(mirror: &Mirror) -> String {
    let pods = mirror.observed().pods.iter();
    let uids: Vec<&str> = pods.map(|pod| pod.cgroup.uid.as_str()).collect();
    uids.join(" ")
}

#[test]
fn after_a_write_of_cpus_only_cpus_and_records_are_read() {
    let kernel = FakeKernel::with_pods(&["a", "b"]);
    let mut mirror = read(&kernel);
    kernel.change("b", |cpuset| cpuset.cpus = set("2"));
    mirror.note(&cpus_of("kubepods/podb/c"), Instant::now());
    read_all(&mut mirror, &kernel);
    assert_eq!(kernel.take_reads(), "podb/c podb");
    assert!(mirror.take_changed());
    let container = &mirror.pod("b").unwrap().containers[0];
    assert_eq!(container.cgroup.cpuset.cpus, set("2"));

    // More has changed as well, before or after.
    for changes in [
        [cpus_of("kubepods/podb/c"), paths(&["kubepods/podb"])],
        [paths(&["kubepods/podb"]), cpus_of("kubepods/podb/c")],
    ] {
        for changes in changes {
            mirror.note(&changes, Instant::now());
        }
        read_all(&mut mirror, &kernel);
        assert_eq!(kernel.take_reads(), "b");
    }

    // A cgroup that nothing is known about may be a new container.
    mirror.note(&cpus_of("kubepods/podb/new"), Instant::now());
    read_all(&mut mirror, &kernel);
    assert_eq!(kernel.take_reads(), "b");

    // No event tells of a container's first process.
    let populate = |populated| {
        let mut pods = kernel.pods.borrow_mut();
        pods.get_mut("kubepods/podb").unwrap().containers[0].populated = populated;
    };
    populate(false);
    mirror.note(&paths(&["kubepods/podb"]), Instant::now());
    read_all(&mut mirror, &kernel);
    populate(true);
    kernel.take_reads();
    mirror.note(&cpus_of("kubepods/podb/c"), Instant::now());
    read_all(&mut mirror, &kernel);
    assert_eq!(kernel.take_reads(), "b");
    assert!(mirror.pod("b").unwrap().containers[0].cgroup.populated);

    // A cgroup inside the container follows its CPUs, and a cgroup that is gone says nothing.
    let pods = || kernel.pods.borrow_mut();
    let nested = NestedCgroup::default();
    pods().get_mut("kubepods/podb").unwrap().containers[0].nested = vec![nested];
    mirror.note(&paths(&["kubepods/podb"]), Instant::now());
    read_all(&mut mirror, &kernel);
    kernel.take_reads();
    mirror.note(&cpus_of("kubepods/podb/c"), Instant::now());
    read_all(&mut mirror, &kernel);
    assert!(kernel.take_reads().ends_with("b"));
    pods().remove("kubepods/poda");
    mirror.note(&cpus_of("kubepods/poda/c"), Instant::now());
    read_all(&mut mirror, &kernel);
    assert_eq!(uids(&mirror), "b");
}

#[test]
fn a_plan_reads_again_what_its_steps_depend_on() {
    let kernel = FakeKernel::with_pods(&["a", "b"]);
    let mut mirror = read(&kernel);
    let cpus = Step::Cpus {
        path: "kubepods/poda/c".to_owned(),
        cpus: set("1"),
        reason: Reason::Narrow,
    };
    let memory = Step::Memory {
        path: "kubepods/podb/c".to_owned(),
        numa: set("0"),
    };
    let turn = Instant::now();
    assert!(mirror.mark_planned(&[cpus, memory], turn));
    read_all(&mut mirror, &kernel);
    assert_eq!(kernel.take_reads(), "poda/c poda b");
}

#[test]
fn only_changed_pods_are_read_again() {
    let kernel = FakeKernel::with_pods(&["a", "b", "d"]);
    let mut mirror = read(&kernel);
    for (changes, reads, expected) in [
        (paths(&[]), "", "a b d"),
        (paths(&["kubepods/podb/c"]), "b", "a b d"),
        (
            paths(&["kubepods/podb", "kubepods/podd/c/inside"]),
            "b d",
            "a b d",
        ),
        // A pod has come or gone.
        (paths(&["kubepods"]), "list", "a b d"),
        (
            CgroupChanges {
                all: true,
                ..paths(&[])
            },
            "list a b d",
            "a b d",
        ),
    ] {
        mirror.note(&changes, Instant::now());
        read_all(&mut mirror, &kernel);
        assert_eq!(kernel.take_reads(), reads, "{changes:?}");
        assert_eq!(uids(&mirror), expected);
        assert!(
            !mirror.take_changed(),
            "everything reads as before: {changes:?}"
        );
    }
    kernel.add("c");
    kernel.pods.borrow_mut().remove("kubepods/podd");
    mirror.note(&paths(&["kubepods"]), Instant::now());
    read_all(&mut mirror, &kernel);
    assert_eq!(kernel.take_reads(), "list c");
    assert_eq!(uids(&mirror), "a b c", "the pods are in the kernel's order");
    assert!(mirror.take_changed());
}

#[test]
fn a_pod_that_reads_differently_counts_as_changed() {
    let kernel = FakeKernel::with_pods(&["a", "b"]);
    let mut mirror = read(&kernel);
    kernel.change("a", |cpuset| cpuset.cpus = set("2-3"));
    mirror.touch("b", Instant::now());
    read_all(&mut mirror, &kernel);
    assert!(!mirror.take_changed(), "nothing has been said about a");
    mirror.touch("a", Instant::now());
    assert!(!mirror.is_clean("a") && mirror.is_clean("b"));
    read_all(&mut mirror, &kernel);
    assert!(mirror.take_changed() && mirror.is_clean("a"));
    let container = &mirror.pod("a").unwrap().containers[0].cgroup;
    assert_eq!(container.cpuset.cpus, set("2-3"));
    // The pod ends between the list and the reading.
    kernel.pods.borrow_mut().remove("kubepods/poda");
    mirror.touch("a", Instant::now());
    read_all(&mut mirror, &kernel);
    assert_eq!(uids(&mirror), "b");
    assert!(mirror.take_changed());
}

#[test]
fn memory_of_a_running_program_is_no_change() {
    let kernel = FakeKernel::with_pods(&["a"]);
    let mut mirror = read(&kernel);
    let mut pods = kernel.pods.borrow_mut();
    pods.get_mut("kubepods/poda").unwrap().containers[0]
        .memory
        .bytes_to_move = Some(4096);
    drop(pods);
    mirror.touch("a", Instant::now());
    read_all(&mut mirror, &kernel);
    assert!(!mirror.take_changed());
    let memory = &mirror.pod("a").unwrap().containers[0].cgroup.memory;
    assert_eq!(
        memory.bytes_to_move,
        Some(4096),
        "a plan needs the newest number"
    );
}

#[test]
fn an_interrupted_reading_goes_on_with_the_oldest_pod() {
    let kernel = FakeKernel::with_pods(&["a", "b", "c"]);
    let mut mirror = read(&kernel);
    let now = Instant::now();
    assert!(mirror.take_swept(), "the first reading was of all pods");
    mirror.touch("c", now);
    mirror.sweep(now + Duration::from_secs(1));
    let mut left = 1;
    let mut is_urgent = || {
        left -= 1;
        left < 0
    };
    let reading = mirror.read(&kernel, &store(), &mut is_urgent).unwrap();
    assert_eq!(reading, Reading::Interrupted);
    assert!(!mirror.take_swept());
    assert_eq!(kernel.take_reads(), "list c");
    // A later change of a pod that is dirty anyway does not put it behind the others.
    mirror.touch("a", now + Duration::from_secs(2));
    mirror.touch("c", now + Duration::from_secs(2));
    read_all(&mut mirror, &kernel);
    assert_eq!(kernel.take_reads(), "a b c");
    assert!(mirror.take_swept());
    mirror.touch("a", now);
    read_all(&mut mirror, &kernel);
    assert_eq!(kernel.take_reads(), "a");
    assert!(!mirror.take_swept(), "a single pod is no sweep");
    mirror.distrust(now);
    assert!(!mirror.is_complete());
    read_all(&mut mirror, &kernel);
    assert!(mirror.is_complete());
    assert_eq!(kernel.take_reads(), "list a b c");
}

#[test]
fn effective_cpus_are_read_again_after_steps_that_may_change_them_silently() {
    let kernel = FakeKernel::with_pods(&["a", "b"]);
    let mut mirror = read(&kernel);
    let effective = |mirror: &Mirror| {
        let pod = mirror.pod("b").unwrap();
        pod.containers[0].cgroup.cpuset.effective.to_string()
    };
    let partition = Step::Partition {
        path: "kubepods/poda/c".to_owned(),
        kind: PartitionKind::Root,
        in_force: Some(set("2-3")),
    };
    let record = Step::Record {
        path: "kubepods/poda/c".to_owned(),
        record: None,
    };
    kernel.change("b", |cpuset| cpuset.effective = set("0-1"));
    for (step, reads, expected) in [(record, "poda/c poda", ""), (partition, "a", "0-1")] {
        mirror.note_steps([&step].into_iter(), Instant::now());
        read_all(&mut mirror, &kernel);
        assert_eq!(kernel.take_reads(), reads, "only the written pod is read");
        assert_eq!(effective(&mirror), expected, "{step}");
    }
    // A change above the pods may change all below.
    kernel.change("b", |cpuset| cpuset.effective = set("0"));
    kernel.above.borrow_mut().effective = set("0");
    read_all(&mut mirror, &kernel);
    assert_eq!(
        (kernel.take_reads(), effective(&mirror)),
        (String::new(), "0".to_owned())
    );
    // A turn about one pod has read the change above. The next turn about all pods still has to look below.
    kernel.change("b", |cpuset| cpuset.effective = set("1"));
    kernel.above.borrow_mut().effective = set("1");
    mirror.take_changed();
    mirror.read_above(&kernel).unwrap();
    assert!(mirror.take_changed());
    read_all(&mut mirror, &kernel);
    assert_eq!(effective(&mirror), "1");
}

#[test]
fn steps_make_the_pods_dirty_that_they_may_change() {
    let kernel = FakeKernel::with_pods(&["a", "b"]);
    let cpus = |path: &str| Step::Cpus {
        path: path.to_owned(),
        cpus: set("2-3"),
        reason: Reason::Share,
    };
    let exclusive = Step::Exclusive {
        path: "kubepods".to_owned(),
        cpus: set("2-3"),
        in_force: None,
    };
    for (step, written, planned) in [
        (cpus("kubepods/poda/c"), "a", "a"),
        (cpus("kubepods/poda"), "a", "a"),
        (cpus("kubepods"), "a b", ""),
        // Exclusive CPUs of a cgroup permit a partition further down, and take no CPUs from its children.
        (exclusive, "", ""),
        (cpus("kubepods/podx"), "", ""),
    ] {
        let dirty = |note: &dyn Fn(&mut Mirror)| {
            let mut mirror = read(&kernel);
            note(&mut mirror);
            let dirty: Vec<&str> = ["a", "b"]
                .into_iter()
                .filter(|uid| !mirror.is_clean(uid))
                .collect();
            dirty.join(" ")
        };
        let now = Instant::now();
        assert_eq!(
            dirty(&|mirror| mirror.note_steps([&step].into_iter(), now)),
            written,
            "{step}"
        );
        let steps = std::slice::from_ref(&step);
        let mark = |turn: Instant| {
            dirty(&|mirror| {
                mirror.mark_planned(steps, turn);
            })
        };
        assert_eq!(mark(now), "", "the turn itself has read all pods");
        let later = now + Duration::from_secs(60);
        assert_eq!(mark(later), planned, "{step}");
    }
}

#[test]
fn a_new_description_is_matched_with_the_cgroups_that_were_read() {
    let kernel = FakeKernel::with_pods(&["a"]);
    let mut mirror = read(&kernel);
    let name = |mirror: &Mirror| mirror.pod("a").unwrap().containers[0].name.clone();
    assert_eq!(name(&mirror), None);
    let mut store = store();
    let pod = Pod {
        uid: Some("a".into()),
        containers: vec![Container {
            name: "main".to_owned(),
            runtime_id: Some("c".to_owned()),
            ..Container::default()
        }],
        ..Pod::default()
    };
    let update = RuntimeUpdate::Pod(Box::new(RuntimePod::new(pod)));
    let changed = store.take_runtime(update);
    mirror.match_again(&store, &["other".to_owned()].into());
    assert_eq!(name(&mirror), None);
    mirror.match_again(&store, &changed);
    assert_eq!(name(&mirror), Some("main".to_owned()));
    assert_eq!(kernel.take_reads(), "");
    assert!(mirror.take_changed());
    mirror.match_all_again(&store);
    assert!(!mirror.take_changed());
}

/// A turn about one pod does not read the others. The CPUs of a partition that has ended there are not in a partition any more.
#[test]
fn the_cpus_of_an_ended_partition_are_missing_although_its_pod_was_not_read_again() {
    let kernel = FakeKernel::with_pods(&["a", "b"]);
    kernel.above.borrow_mut().effective = set("0-1");
    kernel.change("a", |cpuset| {
        cpuset.effective = set("2-3");
        cpuset.partition = Partition::Valid(PartitionKind::Root);
    });
    let heartbeat = Heartbeat::new(Duration::from_secs(1));
    let mut world = World::new(store(), AgentMetrics::new().unwrap(), heartbeat);
    let reading = world.read_dirty(&kernel, &mut || false).unwrap();
    assert_eq!(reading, Reading::Complete);
    assert_eq!(world.lost_cpus.obstacle(), None);

    world.note_changes(&paths(&["kubepods/poda/c"]));
    assert!(world.read_pod("b", &kernel).unwrap());
    assert_eq!(world.lost_cpus.obstacle(), None, "it still stands");

    kernel.pods.borrow_mut().remove("kubepods/poda");
    world.note_changes(&paths(&["kubepods/poda"]));
    assert!(world.read_pod("b", &kernel).unwrap());
    assert!(world.lost_cpus.obstacle().is_some());
}

#[test]
fn missing_cpus_are_awaited_for_a_moment() {
    for (returns_after, returned) in [(3, true), (0, false)] {
        let kernel = FakeKernel::with_pods(&["a"]);
        kernel.above.borrow_mut().effective = set("0-1");
        kernel.returns_after.set(returns_after);
        let heartbeat = Heartbeat::new(Duration::from_secs(1));
        let mut world = World::new(store(), AgentMetrics::new().unwrap(), heartbeat);
        world.read_dirty(&kernel, &mut || false).unwrap();
        assert!(world.lost_cpus.may_return());
        assert_eq!(world.await_missing_cpus(&kernel).unwrap(), returned);
        assert_eq!(world.lost_cpus.obstacle().is_none(), returned);
    }
}
