//! Plans for CPUs that the kubelet chose: it also writes sets, quotas and memory, and Pinfold does
//! not.

use super::*;
use crate::host::cgroup::Quota;

/// The desired state beside a kubelet that chose all of the CPUs.
fn chosen(claims: &[(&str, &str, &str)]) -> Desired {
    let mut desired = desired(claims);
    desired.beside_kubelet = true;
    for (pod, container, _) in claims {
        let assignment = &mut desired.pod_mut(pod).assignment;
        assignment.by_kubelet.insert((*container).to_owned());
    }
    desired
}

/// The observed cgroups, in which each container has a process, the kubelet's set and a quota, and
/// the records say that the kubelet chose.
fn running(tree: &str, containers: &[CgroupRow<'_>]) -> Observed {
    let mut observed = there(tree, containers);
    for pod in &mut observed.pods {
        if let Some(record) = &mut pod.record {
            let names = record.assignment.containers.keys().cloned();
            record.assignment.by_kubelet = names.collect();
        }
        for container in &mut pod.containers {
            container.cgroup.populated = true;
            container.cgroup.quota = Some(Quota {
                quota: Some(200_000),
                period: 100_000,
            });
            if let Some(record) = &mut container.record {
                let names = record.assignment.containers.keys().cloned();
                record.assignment.by_kubelet = names.collect();
            }
        }
    }
    observed
}

fn all_steps(observed: &Observed, desired: &Desired) -> Vec<Step> {
    let ledger = crate::pin::Ledger::default();
    plan(observed, &ledger, desired, Enforcement::Partition)
}

#[test]
fn only_the_partition_is_made_and_ended() {
    let new = running(
        "",
        &[("a", "x", "", None, "2-3"), ("a", "y", "", None, "0-1,4-7")],
    );
    let wanted = chosen(&[("a", "x", "2-3")]);
    let made = [
        "kubepods: exclusive 2-3",
        "a: exclusive 2-3",
        "a/x: exclusive 2-3",
        "a/x: root on CPUs 2-3",
    ];
    assert_eq!(steps(&new, &wanted), made);
    let recorded = all_steps(&new, &wanted)
        .into_iter()
        .find_map(|step| match step {
            Step::Record {
                path,
                record: Some(record),
            } if path == "kubepods/a/x" => Some(record),
            _ => None,
        });
    let recorded = recorded.unwrap();
    assert!(recorded.assignment.by_kubelet.contains("x"));
    assert_eq!(
        recorded.before,
        EarlierSettings::default(),
        "nothing to restore"
    );

    let lives = running(
        "2-3",
        &[
            ("a", "x", "2-3", None, "2-3"),
            ("a", "y", "", None, "0-1,4-7"),
        ],
    );
    assert_eq!(steps(&lives, &wanted), [""; 0]);
    let ended = [
        "a/x: member",
        "a/x: exclusive none",
        "a: exclusive none",
        "kubepods: exclusive none",
    ];
    assert_eq!(steps(&lives, &chosen(&[])), ended);
    assert_eq!(
        words(&release(&lives, &set(ONLINE), &CpuSet::new())),
        ended,
        "the kubelet's sets stay"
    );
}

#[test]
fn a_set_that_the_kubelet_has_changed_is_no_reason_for_a_write() {
    let lives = running(
        "2-3",
        &[("a", "x", "2-3", None, "4-5"), ("a", "y", "", None, "0-7")],
    );
    let mut wanted = chosen(&[("a", "x", "2-3")]);
    assert_eq!(
        steps(&lives, &wanted),
        [""; 0],
        "no set of a running container is written"
    );
    // The set of y meets the partition, so that the partition ends, and waits for the kubelet.
    wanted.met_by_mates.insert("kubepods/a/x".to_owned());
    let ended = ["a/x: member", "a/x: exclusive none"];
    assert_eq!(steps(&lives, &wanted), ended);
}

#[test]
fn the_partition_of_an_ended_container_ends_before_the_kubelet_widens_a_set() {
    let mut lives = running(
        "2-3",
        &[
            ("a", "x", "2-3", None, "2-3"),
            ("a", "y", "", None, "0-1,4-7"),
        ],
    );
    let wanted = chosen(&[("a", "x", "2-3")]);
    assert_eq!(steps(&lives, &wanted), [""; 0]);
    lives.pods[0].containers[0].cgroup.populated = false;
    assert_eq!(
        steps(&lives, &wanted),
        ["a/x: member", "a/x: exclusive none"]
    );
}

#[test]
fn the_set_of_an_ended_container_is_no_obstacle_for_the_next_run() {
    let mut both = running(
        "",
        &[("a", "init", "", None, "2-3"), ("a", "x", "", None, "2-3")],
    );
    both.pods[0].containers[0].cgroup.populated = false;
    let made = steps(&both, &chosen(&[("a", "x", "2-3")]));
    assert_eq!(
        made,
        [
            "a/init: CPUs 0-1,4-7",
            "kubepods: exclusive 2-3",
            "a: exclusive 2-3",
            "a/x: exclusive 2-3",
            "a/x: root on CPUs 2-3"
        ]
    );
}

/// The runtime was interrupted after it had created x, and the kubelet had x created again.
#[test]
fn a_container_that_the_runtime_no_longer_lists_gives_way_to_its_successor() {
    let mut both = running(
        "2-3",
        &[("a", "x", "2-3", None, "2-3"), ("a", "x2", "", None, "2-3")],
    );
    let [first, second] = &mut both.pods[0].containers[..] else {
        unreachable!("two containers");
    };
    first.name = None;
    first.unlisted = true;
    second.name = Some("x".to_owned());
    let wanted = chosen(&[("a", "x", "2-3")]);
    let handed_over = [
        "a/x: CPUs 0-1,4-7",
        "a/x: member",
        "a/x: exclusive none",
        "a/x2: exclusive 2-3",
        "a/x2: root on CPUs 2-3",
    ];
    assert_eq!(steps(&both, &wanted), handed_over);
    // The kubelet's set for the successor has made the first partition invalid.
    let invalid = Partition::Invalid("Cpu list in cpuset.cpus not exclusive".to_owned());
    both.pods[0].containers[0].cgroup.cpuset.partition = invalid;
    let ended_first = ["a/x: member", "a/x: CPUs 0-1,4-7", "a/x: exclusive none"];
    assert_eq!(steps(&both, &wanted)[..3], ended_first);
}

#[test]
fn a_set_of_cpus_isolated_at_boot_becomes_isolated() {
    let new = running("", &[("a", "x", "", None, "6-7")]);
    let mut wanted = chosen(&[("a", "x", "6-7")]);
    wanted.isolated_at_boot = set("5-7");
    let made = steps(&new, &wanted);
    assert_eq!(made.last().unwrap(), "a/x: isolated on CPUs 6-7");
    // The kernel's workqueues would have to leave them first.
    wanted.used_by_workqueues = set("7");
    let made = steps(&new, &wanted);
    assert_eq!(made.last().unwrap(), "a/x: root on CPUs 6-7");
}

/// A change to `root` and back could hang Linux 6.12.
#[test]
fn an_isolated_partition_of_such_cpus_stays_isolated() {
    let stands = Partition::Valid(PartitionKind::Isolated);
    let mut now = running("", &[("a", "x", "6-7", Some("6-7"), "6-7")]);
    now.pods[0].containers[0].cgroup.cpuset.partition = stands;
    for (online, isolated, used) in [
        ("0-7", "5-7", ""),
        ("0-6", "5-6", ""),
        ("0-7", "5-7", "0-7"),
        ("0-6", "5-6", "6"),
    ] {
        let mut wanted = chosen(&[("a", "x", "6-7")]);
        wanted.online = set(online);
        wanted.isolated_at_boot = set(isolated);
        wanted.used_by_workqueues = set(used).intersection(&wanted.isolated_at_boot);
        let steps = steps(&now, &wanted);
        let changes = steps
            .iter()
            .any(|step| step.contains("root") || step.contains("member"));
        assert!(!changes, "{online} {used}: {steps:?}");
    }
}
