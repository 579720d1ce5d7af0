use proptest::prelude::*;

use super::*;
use crate::cpu::{Cpu, Numbering, Shape};

fn set(list: &str) -> CpuSet {
    list.parse().unwrap()
}

fn shape(numa: u32, llcs: u32, cores: u32, threads: u32) -> Topology {
    Topology::from_shape(Shape {
        sockets: 1,
        numa_per_socket: numa,
        llcs_per_numa: llcs,
        cores_per_llc: cores,
        threads_per_core: threads,
        numbering: Numbering::SiblingsLast,
    })
}

fn divided(cpus: &str, topology: &Topology, processes: usize) -> String {
    RankCpus::of(&set(cpus), topology, processes)
        .map_or_else(String::new, |ranks| ranks.to_string())
}

#[test]
fn slices_are_whole_cores_of_one_cache_and_numa_node() {
    // Two NUMA nodes, each with two LLCs of four cores: CPUs 0-15, and their siblings 16-31.
    let topology = shape(2, 2, 4, 2);
    for (cpus, processes, slices) in [
        ("0-31", 2, "0-7,16-23;8-15,24-31"),
        ("0-31", 4, "0-3,16-19;4-7,20-23;8-11,24-27;12-15,28-31"),
        (
            "0-31",
            8,
            "0-1,16-17;2-3,18-19;4-5,20-21;6-7,22-23;8-9,24-25;10-11,26-27;12-13,28-29;14-15,30-31",
        ),
        // Eleven, eleven and ten CPUs would cut cores.
        ("0-31", 3, "0-5,16-21;6-10,22-26;11-15,27-31"),
        // One CPU of each of eight cores.
        ("0-7", 4, "0-1;2-3;4-5;6-7"),
        // Two cores for three processes: one is cut, because no process may be left without CPUs.
        ("0-1,16-17", 3, "0,16;1;17"),
        ("0,16", 2, "0;16"),
        // Half of three cores is a core and a half: that is what 3 threads for each process are for.
        ("0-2,16-18", 2, "0-1,16;2,17-18"),
        // Four cores for three processes of two threads: the fourth stays whole.
        ("0-3,16-19", 3, "0-1,16-17;2,18;3,19"),
    ] {
        assert_eq!(
            divided(cpus, &topology, processes),
            slices,
            "{cpus} for {processes}"
        );
    }
}

/// Between two LLCs with a CPU each is one that a process fills.
#[test]
fn a_group_that_slices_fill_is_not_cut_because_of_a_smaller_one() {
    let topology = shape(1, 3, 2, 1);
    assert_eq!(divided("1-4", &topology, 2), "1,4;2-3");
    let topology = shape(3, 1, 4, 1);
    assert_eq!(divided("0-2,4-7,8", &topology, 2), "0-2,8;4-7");
}

#[test]
fn without_groups_the_slices_are_even() {
    let topology = Topology::default();
    assert_eq!(divided("0-6", &topology, 3), "0-2;3-4;5-6");
    let topology = Topology {
        online: set("0-5"),
        cpus: (0..6)
            .map(|id| Cpu {
                id,
                ..Cpu::default()
            })
            .collect(),
        ..Topology::default()
    };
    assert_eq!(divided("0-5", &topology, 2), "0-2;3-5");
}

#[test]
fn hybrid_cores_give_equal_numbers_of_cpus() {
    // Four cores with two CPUs, and eight with one.
    let cpu = |id: u32, core| Cpu {
        id,
        core: Some(core),
        numa: Some(0),
        llc: Some(0),
        ..Cpu::default()
    };
    let topology = Topology {
        online: set("0-15"),
        cpus: (0..16)
            .map(|id| cpu(id, if id < 8 { id / 2 } else { id - 4 }))
            .collect(),
        ..Topology::default()
    };
    assert_eq!(divided("0-15", &topology, 2), "0-7;8-15");
    assert_eq!(divided("0-15", &topology, 4), "0-3;4-7;8-11;12-15");
    assert_eq!(divided("4-15", &topology, 3), "4-7;8-11;12-15");
}

#[test]
fn one_process_and_more_processes_than_cpus_have_no_slices() {
    let topology = shape(1, 1, 4, 1);
    for processes in [0, 1, 5, usize::MAX] {
        assert_eq!(
            RankCpus::of(&set("0-3"), &topology, processes),
            None,
            "{processes}"
        );
    }
    assert_eq!(RankCpus::of(&CpuSet::new(), &topology, 2), None);
}

/// A machine whose groups are drawn at random, so that they cross each other, and are unknown for some CPUs.
fn wild() -> impl Strategy<Value = Topology> {
    let group = prop::option::of(0..5u32);
    prop::collection::vec((prop::option::of(0..12u32), group.clone(), group), 1..24).prop_map(
        |groups| {
            let cpus: Vec<Cpu> = groups
                .into_iter()
                .zip(0..)
                .map(|((core, numa, llc), id)| Cpu {
                    id,
                    core,
                    numa,
                    llc,
                    ..Cpu::default()
                })
                .collect();
            Topology {
                online: cpus.iter().map(|cpu| cpu.id).collect(),
                cpus,
                ..Topology::default()
            }
        },
    )
}

fn orderly() -> impl Strategy<Value = Topology> {
    (1..4u32, 1..4u32, 1..5u32, 1..5u32)
        .prop_map(|(numa, llcs, cores, threads)| shape(numa, llcs, cores, threads))
}

/// The largest number of CPUs that the container has of one core.
fn largest_core_of(cpus: &CpuSet, topology: &Topology) -> usize {
    let cores = cpus
        .iter()
        .map(|cpu| topology.core_of(cpu).intersection(cpus).len());
    cores.max().unwrap_or(0).max(1)
}

fn check(topology: &Topology, cpus: &CpuSet, processes: usize) -> Result<(), TestCaseError> {
    let ranks = RankCpus::of(cpus, topology, processes);
    prop_assert_eq!(ranks.is_some(), (2..=cpus.len()).contains(&processes));
    let Some(ranks) = ranks else { return Ok(()) };
    let slices = ranks.slices();
    prop_assert_eq!(slices.len(), processes);
    let sum: usize = slices.iter().map(CpuSet::len).sum();
    let all = slices
        .iter()
        .fold(CpuSet::new(), |all, slice| all.union(slice));
    prop_assert_eq!((sum, &all), (cpus.len(), cpus), "{}", ranks);
    let sizes = || slices.iter().map(CpuSet::len);
    let (least, most) = (sizes().min().unwrap_or(0), sizes().max().unwrap_or(0));
    prop_assert!(least >= cpus.len() / processes, "{}", ranks);
    prop_assert!(most - least <= largest_core_of(cpus, topology), "{}", ranks);
    prop_assert!(slices.is_sorted_by_key(CpuSet::first));
    prop_assert_eq!(RankCpus::of(cpus, topology, processes), Some(ranks));
    Ok(())
}

proptest! {
    #[test]
    fn slices_are_disjoint_equal_and_complete(topology in wild(), bits in any::<u32>(), processes in 0..26usize) {
        let cpus: CpuSet = topology.online.iter().filter(|cpu| bits >> (cpu % 32) & 1 == 1).collect();
        check(&topology, &cpus, processes)?;
    }

    /// Where whole cores can be divided evenly, no core is cut, and where LLCs and NUMA nodes can, neither are these.
    #[test]
    fn even_machines_are_cut_between_groups(topology in orderly(), processes in 2..40usize) {
        check(&topology, &topology.online, processes)?;
        let Some(ranks) = RankCpus::of(&topology.online, &topology, processes) else {
            return Ok(());
        };
        for groups in [topology.cores(), topology.llcs(), topology.numa_nodes()] {
            if groups.len() % processes == 0 {
                let cut = |group: &CpuSet| !ranks.slices().iter().any(|slice| group.is_subset(slice));
                prop_assert!(!groups.iter().any(cut), "{} of {:?}", ranks, groups);
            } else if processes % groups.len() == 0 {
                let inside = |slice: &CpuSet| groups.iter().any(|group| slice.is_subset(group));
                prop_assert!(ranks.slices().iter().all(inside), "{} of {:?}", ranks, groups);
            }
        }
    }
}

/// The largest machine that Linux runs on, and the number of processes that takes longest.
#[test]
fn the_largest_machine_is_divided_in_time() {
    let topology = shape(16, 16, 16, 2);
    assert_eq!(topology.online.len(), 8192);
    let ranks = RankCpus::of(&topology.online, &topology, 5461).unwrap();
    assert_eq!(ranks.slices().len(), 5461);
}
