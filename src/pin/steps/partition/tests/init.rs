//! Partitions of init containers.

use super::*;

#[test]
fn the_cpus_of_an_ended_init_container_go_to_the_next() {
    let mut observed = there(
        "2-3",
        &[("a", "first", "2-3", None, ""), ("a", "next", "", None, "")],
    );
    let mut desired = desired(&[("a", "main", "2-3")]);
    desired.pod_mut("a").init_containers = vec!["first".to_owned(), "next".to_owned()];
    // The runtime has not removed the first one's cgroup, which has no process.
    observed.pods[0].containers[1].cgroup.populated = true;
    assert_eq!(
        steps(&observed, &desired),
        [
            "a/first: member",
            "a/first: exclusive none",
            "a/next: exclusive 2-3",
            "a/next: root on CPUs 2-3"
        ]
    );
    // The first one still runs.
    observed.pods[0].containers[0].cgroup.populated = true;
    observed.pods[0].containers[1].cgroup.populated = false;
    assert_eq!(steps(&observed, &desired), Vec::<String>::new());
}

/// A sidecar has ended, and is being created again: the runtime writes its CPUs to the new cgroup at any moment.
#[test]
fn a_live_partition_of_an_init_container_does_not_grow() {
    let mut wish = desired(&[("a", "side", "2"), ("a", "main", "3")]);
    wish.pod_mut("a").init_containers = vec!["init".to_owned()];
    let of_init = |exclusive: &str| -> Vec<String> {
        let mut lives = there("2-3", &[("a", "init", exclusive, None, "")]);
        let record = with_assignment(None, "side", "2").text();
        let record = with_assignment(Some(&record), "main", "3");
        lives.pods[0].cgroup.cpuset.exclusive = record.cpus();
        lives.pods[0].record = Some(record);
        let init = &mut lives.pods[0].containers[0];
        init.record = Some(AssignmentRecord::new(EarlierSettings::default()));
        steps(&lives, &wish)
    };
    assert_eq!(of_init("3"), Vec::<String>::new());
    assert_eq!(
        of_init(""),
        ["a/init: exclusive 2-3", "a/init: root on CPUs 2-3"]
    );
}
