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
