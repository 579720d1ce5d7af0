//! Properties of every topology and of every placement.

use pinfold::cpu::{
    CoreKinds, Cores, Cost, CpuSet, Isolated, Order, Placement, PlacementRefusal, Placer, Request,
    Topology,
};

/// Checks a topology's groups: all CPUs are online, and each kind of group has every CPU once.
pub fn check_groups(topology: &Topology) {
    let Topology {
        online,
        offline,
        isolated,
        cpus,
        numa,
    } = topology;
    assert!(
        cpus.iter().map(|cpu| cpu.id).eq(online.iter()),
        "one entry for each online CPU, in order"
    );
    assert!(offline.is_disjoint(online));
    assert!(isolated.is_subset(online));
    assert!(numa.is_sorted_by_key(|node| node.id));
    assert!(numa.iter().all(|node| node.cpus.is_subset(online)));
    for groups in [
        topology.cores(),
        topology.llcs(),
        topology.numa_nodes(),
        topology.sockets(),
    ] {
        let mut all = CpuSet::new();
        for group in &groups {
            assert!(
                !group.is_empty() && group.is_disjoint(&all),
                "{group:?} overlaps another group"
            );
            all = all.union(group);
        }
        assert_eq!(all, *online, "a CPU is in no group");
    }
    for cpu in cpus {
        assert!(topology.core_of(cpu.id).contains(cpu.id));
    }
}

/// Places requests in turn, each on the CPUs that the earlier requests have left, and checks every result.
pub fn check_places(topology: &Topology, placer: &Placer, free: &CpuSet, requests: &[Request]) {
    let mut free = free.clone();
    for request in requests {
        let answer = placer.place_as(&free, request);
        assert_eq!(
            answer,
            placer.place_as(&free, request),
            "the same question, another answer"
        );
        match answer {
            Ok(placement) => {
                check_placement(topology, placer, &free, request, &placement);
                free = free.difference(&placement.cpus).difference(&placement.idle);
            }
            Err(refusal) => check_refusal(topology, &free, request, refusal),
        }
    }
}

fn check_placement(
    topology: &Topology,
    placer: &Placer,
    free: &CpuSet,
    request: &Request,
    placement: &Placement,
) {
    let Placement { cpus, idle, cost } = placement;
    assert_eq!(cpus.len(), request.cpus, "{request:?} got {placement:?}");
    let taken = cpus.union(idle);
    assert!(cpus.is_disjoint(idle));
    assert!(
        taken.is_subset(&free.intersection(&topology.online)),
        "{placement:?} is not all free"
    );
    let cores = topology.cores();
    let touched = |groups: &[CpuSet]| {
        groups
            .iter()
            .filter(|group| !group.is_disjoint(cpus))
            .count()
    };
    match request.cores {
        Cores::Preferred => assert!(idle.is_empty()),
        Cores::Whole => {
            assert!(idle.is_empty());
            assert!(
                cores
                    .iter()
                    .all(|core| core.is_subset(cpus) || core.is_disjoint(cpus))
            );
        }
        Cores::Single => {
            assert_eq!(touched(&cores), cpus.len(), "two CPUs of one core");
            assert!(
                cores
                    .iter()
                    .all(|core| core.is_subset(&taken) || core.is_disjoint(&taken))
            );
        }
    }
    if request.fewest_numa {
        let needs = least_numa(topology, request.cpus, request.cores);
        assert!(
            cost.numa <= needs,
            "{request:?} got {placement:?}, and {needs} NUMA nodes would do"
        );
    }
    let held_in_part = |core: &&CpuSet| !core.is_disjoint(&taken) && !core.is_subset(&taken);
    let counted = Cost {
        split_cores: cores.iter().filter(held_in_part).count(),
        numa: touched(&topology.numa_nodes()),
        sockets: touched(&topology.sockets()),
        llcs: touched(&topology.llcs()),
    };
    assert_eq!(*cost, counted, "{placement:?}");
    // Without further preferences, neither the lowest nor the highest ids may be cheaper.
    let plain = request.order == Order::Pack
        && request.cores == Cores::Preferred
        && request.near.is_empty();
    let isolated = request.isolated == Isolated::Ignore || topology.isolated.is_empty();
    let alike = request.core_kinds == CoreKinds::Any || !placer.is_mixed(&topology.online);
    if plain && isolated && alike && placer.is_exact() {
        let usable: Vec<u32> = free.intersection(&topology.online).iter().collect();
        let lowest: CpuSet = usable.iter().copied().take(request.cpus).collect();
        let highest: CpuSet = usable.iter().rev().copied().take(request.cpus).collect();
        // Choices on too many NUMA nodes do not count.
        let most = if request.fewest_numa {
            least_numa(topology, request.cpus, request.cores)
        } else {
            usize::MAX
        };
        for other in [lowest, highest]
            .into_iter()
            .filter(|other| placer.cost(other).numa <= most)
        {
            assert!(
                *cost <= placer.cost(&other),
                "{other:?} is cheaper than {placement:?}"
            );
        }
    }
}

fn check_refusal(topology: &Topology, free: &CpuSet, request: &Request, refusal: PlacementRefusal) {
    let free = free.intersection(&topology.online);
    assert!(!refusal.to_string().is_empty());
    let cores = topology.cores();
    let free_cores: Vec<&CpuSet> = cores.iter().filter(|core| core.is_subset(&free)).collect();
    let cpus_on_free_cores: usize = free_cores.iter().map(|core| core.len()).sum();
    match refusal {
        PlacementRefusal::TooFewCpus(refusal) => {
            assert_eq!((refusal.wanted, refusal.free), (request.cpus, free.len()));
            assert!(free.len() < request.cpus);
        }
        PlacementRefusal::TooFewOnWholeCores { wanted, free } => {
            assert_eq!(
                (request.cores, wanted, free),
                (Cores::Whole, request.cpus, cpus_on_free_cores)
            );
            assert!(free < wanted);
        }
        PlacementRefusal::NotWholeCores { wanted, less, more } => {
            assert_eq!((request.cores, wanted), (Cores::Whole, request.cpus));
            assert!(less < wanted && wanted < more && more <= cpus_on_free_cores);
        }
        PlacementRefusal::TooFewCores { wanted, free } => {
            assert_eq!(
                (request.cores, wanted, free),
                (Cores::Single, request.cpus, free_cores.len())
            );
            assert!(free < wanted);
        }
        PlacementRefusal::TooFewOnNuma {
            wanted,
            needs,
            held,
            held_on,
            most,
            ..
        } => {
            assert!(request.fewest_numa && (wanted, held, held_on) == (request.cpus, 0, 0));
            assert!(most < wanted && needs > 0);
            // Without a preference for cores, `needs` NUMA nodes really have too few CPUs.
            if request.cores == Cores::Preferred {
                let mut sizes: Vec<usize> = topology
                    .numa_nodes()
                    .iter()
                    .map(|numa| numa.intersection(&free).len())
                    .collect();
                sizes.sort_unstable_by(|a, b| b.cmp(a));
                assert_eq!(sizes.iter().take(needs).sum::<usize>(), most);
            }
        }
    }
}

/// The number of NUMA nodes that `cpus` CPUs need on the empty machine, taken from the largest NUMA nodes. The number
/// is the minimum for [`Cores::Preferred`]. With different core rules, split or odd cores may need all NUMA nodes.
fn least_numa(topology: &Topology, cpus: usize, cores: Cores) -> usize {
    let mut sizes: Vec<usize> = topology.numa_nodes().iter().map(CpuSet::len).collect();
    if cores != Cores::Preferred {
        return sizes.len();
    }
    sizes.sort_unstable_by(|a, b| b.cmp(a));
    (0..=sizes.len())
        .find(|&count| sizes[..count].iter().sum::<usize>() >= cpus)
        .unwrap_or(sizes.len())
}
