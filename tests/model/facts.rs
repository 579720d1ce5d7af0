//! The model against observations of real kernels.

use pinfold::host::cgroup::PartitionKind as Made;

use super::kernel::{Kernel, KernelKind, Refused, State, TREE, leaf_node, pod_node, set};

const PARTITIONS: [KernelKind; 3] = [
    KernelKind::Early612,
    KernelKind::Late612,
    KernelKind::Linux72,
];

/// Two pods, the first with two containers, on 8 CPUs.
fn kernel(kind: KernelKind) -> (Kernel, [usize; 5]) {
    let mut kernel = Kernel::new(kind, 8, 2);
    let nodes = [
        pod_node(0),
        pod_node(1),
        leaf_node(0, 0, 0),
        leaf_node(0, 1, 0),
        leaf_node(1, 0, 0),
    ];
    for node in nodes {
        kernel.make(node);
    }
    (kernel, nodes)
}

/// A partition, made from above.
fn own(kernel: &mut Kernel, way: [usize; 3], cpus: u16) {
    for node in way {
        let held = kernel.get(node).unwrap().exclusive;
        assert_eq!(kernel.write_exclusive(node, held | cpus), Ok(()));
    }
    assert_eq!(kernel.write_partition(way[2], Made::Root), Ok(()));
}

fn effective(kernel: &Kernel, node: usize) -> String {
    set(kernel.effective(node)).to_string()
}

fn state(kernel: &Kernel, node: usize) -> State {
    kernel.get(node).unwrap().state
}

const LIVE: State = State::Live(Made::Root);
const C2_3: u16 = 0b1100;
const C3_4: u16 = 0b1_1000;
const C4_5: u16 = 0b11_0000;

#[test]
fn a_partition_takes_its_cpus_from_everybody() {
    for kind in PARTITIONS {
        let (mut kernel, [pod, other, main, sandbox, second]) = kernel(kind);
        own(&mut kernel, [TREE, pod, main], C2_3);
        assert_eq!(
            (state(&kernel, main), effective(&kernel, main)),
            (LIVE, "2-3".to_owned())
        );
        for member in [TREE, pod, other, sandbox, second] {
            assert_eq!(effective(&kernel, member), "0-1,4-7");
        }
        // After every write to the partition or above.
        for node in [main, pod] {
            assert_eq!(kernel.write_cpus(node, 1), Ok(()));
            assert_eq!(effective(&kernel, main), "2-3");
        }
        // In place: more CPUs, fewer CPUs, different CPUs.
        own(&mut kernel, [TREE, pod, main], C4_5);
        assert_eq!(effective(&kernel, main), "2-5");
        assert_eq!(kernel.write_exclusive(main, C4_5), Ok(()));
        assert_eq!(
            (effective(&kernel, main), kernel.top()),
            ("4-5".to_owned(), 0xff & !C4_5)
        );
        kernel.offline(4);
        assert_eq!(effective(&kernel, main), "5");
        kernel.offline(5);
        assert_eq!(
            state(&kernel, main),
            State::Invalid("No cpu available due to hotplug")
        );
        kernel.online(4);
        assert_eq!((kernel.top(), kernel.lost), (0xff & !(1 << 5), 0));
    }
}

#[test]
fn a_second_owner_is_refused() {
    for kind in PARTITIONS {
        let (mut kernel, [pod, other, main, _, second]) = kernel(kind);
        own(&mut kernel, [TREE, pod, main], C2_3);
        assert_eq!(kernel.write_exclusive(TREE, C2_3 | C3_4), Ok(()));
        assert_eq!(kernel.write_exclusive(other, C3_4), Err(Refused::Einval));
        assert_eq!(kernel.write_exclusive(second, C3_4), Ok(()));
        assert_eq!(kernel.write_partition(second, Made::Root), Ok(()));
        assert_eq!(
            state(&kernel, second),
            State::Invalid("Invalid cpu list in cpuset.cpus.exclusive")
        );
        assert_eq!(
            (state(&kernel, main), effective(&kernel, main)),
            (LIVE, "2-3".to_owned())
        );
        assert_eq!(kernel.write_partition(second, Made::Member), Ok(()));
        // All CPUs, including the last shared CPU.
        let (mut kernel, [pod, _, main, _, _]) = self::kernel(kind);
        own(&mut kernel, [TREE, pod, main], 0xff);
        assert_eq!(
            state(&kernel, main),
            State::Invalid("Invalid cpu list in cpuset.cpus.exclusive")
        );
        assert_eq!(kernel.top(), 0xff);
    }
}

#[test]
fn cpus_of_a_neighbour() {
    for kind in PARTITIONS {
        let breaks = kind != KernelKind::Linux72;
        let (mut kernel, [pod, _, main, sandbox, _]) = kernel(kind);
        // A set beside the future partition: fully inside is refused everywhere, partly inside before 7.2.
        assert_eq!(kernel.write_cpus(sandbox, C2_3), Ok(()));
        for node in [TREE, pod] {
            assert_eq!(kernel.write_exclusive(node, C2_3), Ok(()));
        }
        assert_eq!(kernel.write_exclusive(main, C2_3), Err(Refused::Einval));
        assert_eq!(kernel.write_cpus(sandbox, C3_4), Ok(()));
        assert_eq!(kernel.write_exclusive(main, C2_3), Ok(()));
        assert_eq!(kernel.write_partition(main, Made::Root), Ok(()));
        let refused = State::Invalid("Cpu list in cpuset.cpus not exclusive");
        assert_eq!(state(&kernel, main), if breaks { refused } else { LIVE });
        assert_eq!(kernel.write_partition(main, Made::Member), Ok(()));
        // While the partition is live.
        assert_eq!(kernel.write_cpus(sandbox, 1), Ok(()));
        assert_eq!(kernel.write_partition(main, Made::Root), Ok(()));
        assert_eq!(state(&kernel, main), LIVE);
        assert_eq!(kernel.write_cpus(sandbox, C3_4), Ok(()));
        assert_eq!(
            state(&kernel, main),
            if breaks { State::Invalid("") } else { LIVE }
        );
        assert_eq!(kernel.top(), 0xff & !C2_3);
        // `root` alone takes the CPUs from every cgroup and `member` brings the CPUs back; an end without `member` does not.
        let mut root = kernel.clone();
        assert_eq!(root.write_partition(main, Made::Root), Ok(()));
        assert_eq!(root.top(), 0xff & !C2_3);
        assert_eq!(
            effective(&root, main),
            if breaks { "0-1,4-7" } else { "2-3" }
        );
        assert_eq!(root.write_partition(main, Made::Member), Ok(()));
        assert_eq!((root.top(), root.lost), (0xff, 0));
        kernel.remove(main);
        assert_eq!(kernel.lost, if breaks { C2_3 } else { 0 });
    }
}

#[test]
fn exclusive_cpus_of_an_ancestor_cleared() {
    for kind in PARTITIONS {
        let early = kind == KernelKind::Early612;
        let (mut kernel, [pod, _, main, _, _]) = kernel(kind);
        own(&mut kernel, [TREE, pod, main], C2_3);
        assert_eq!(kernel.write_exclusive(TREE, 0), Ok(()));
        let parent = State::Invalid("Parent is not a partition root");
        assert_eq!(state(&kernel, main), if early { LIVE } else { parent });
        let mut mended = kernel.clone();
        assert_eq!(mended.write_exclusive(TREE, C2_3), Ok(()));
        for kernel in [&mut kernel, &mut mended] {
            assert_eq!(kernel.write_partition(main, Made::Member), Ok(()));
        }
        assert_eq!(
            (kernel.lost, mended.lost),
            (if early { C2_3 } else { 0 }, 0)
        );
    }
}

#[test]
fn exclusive_cpus_of_an_ancestor_shrunk() {
    for kind in PARTITIONS {
        let (mut kernel, [pod, _, main, _, _]) = kernel(kind);
        own(&mut kernel, [TREE, pod, main], C2_3);
        assert_eq!(kernel.write_exclusive(TREE, 0b100), Ok(()));
        if kind == KernelKind::Early612 {
            assert_eq!((state(&kernel, main), kernel.top()), (State::Member, 0xff));
            continue;
        }
        assert_eq!(
            (state(&kernel, main), effective(&kernel, main)),
            (LIVE, "2".to_owned())
        );
        assert_eq!(kernel.write_exclusive(TREE, C2_3), Ok(()));
        assert_eq!(
            (state(&kernel, main), effective(&kernel, main)),
            (LIVE, "2-3".to_owned())
        );
    }
}

#[test]
fn an_empty_cpuset() {
    for (kind, answer) in [
        (KernelKind::V2, Err(Refused::Enospc)),
        (KernelKind::Late612, Err(Refused::Enospc)),
        (KernelKind::Linux72, Ok(())),
    ] {
        let (mut kernel, [_, _, main, _, _]) = kernel(kind);
        assert_eq!(kernel.write_cpus(main, C2_3), Ok(()));
        assert_eq!(kernel.write_cpus(main, 0), answer, "{kind:?}");
    }
}

#[test]
fn an_end_opens_the_cpus_and_the_ancestors_still_hold_them() {
    for kind in PARTITIONS {
        let (mut kernel, [pod, _, main, _, _]) = kernel(kind);
        own(&mut kernel, [TREE, pod, main], C2_3);
        kernel.remove(main);
        assert_eq!(
            (
                kernel.top(),
                kernel.lost,
                kernel.get(pod).unwrap().exclusive
            ),
            (0xff, 0, C2_3)
        );
        kernel.make(main);
        assert_eq!(kernel.write_exclusive(main, C2_3), Ok(()));
        assert_eq!(kernel.write_partition(main, Made::Root), Ok(()));
        assert_eq!(effective(&kernel, main), "2-3");
    }
}
