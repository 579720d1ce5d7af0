use super::*;
use crate::cpu::{Numbering, Shape, TopologyFacts};

fn set(list: &str) -> CpuSet {
    list.parse().unwrap()
}

/// The drawing without a terminal, independent of the test's output.
fn plain(topology: &Topology, owners: &[(&str, &str)]) -> String {
    let owners = owners
        .iter()
        .map(|(label, cpus)| ((*label).to_owned(), set(cpus)))
        .collect();
    let uses = CpuUses {
        owners,
        ..CpuUses::default()
    };
    console::strip_ansi_codes(&render(topology, &uses)).into_owned()
}

fn server(llcs_per_numa: u32, cores_per_llc: u32) -> Topology {
    let numbering = Numbering::SiblingsLast;
    let (sockets, numa_per_socket, threads_per_core) = (2, 4, 2);
    let shape = Shape {
        sockets,
        numa_per_socket,
        llcs_per_numa,
        cores_per_llc,
        threads_per_core,
        numbering,
    };
    Topology::from_shape(shape)
}

/// The ids in the drawing below the summary, in order.
fn drawn(drawing: &str) -> Vec<u32> {
    let body = drawing.split("\n\n").nth(1).unwrap();
    let mut ids: Vec<u32> = body
        .lines()
        .flat_map(|line| {
            // Titles hold numbers, too; each ends before two spaces.
            line.split("   ").flat_map(|segment| {
                match segment.trim_start().split_once("  ") {
                    Some((title, cores)) if title.starts_with(char::is_alphabetic) => {
                        cores.to_owned()
                    }
                    _ if segment.trim_start().starts_with(char::is_alphabetic) => String::new(),
                    _ => segment.to_owned(),
                }
                .split(|c: char| !c.is_ascii_digit())
                .filter_map(|id| id.parse().ok())
                .collect::<Vec<u32>>()
            })
        })
        .collect();
    ids.sort_unstable();
    ids
}

#[test]
fn a_server_of_256_cpus_fits_forty_lines_of_a_hundred_columns() {
    for (llcs, cores) in [(1, 16), (2, 8), (4, 4), (16, 1)] {
        let topology = server(llcs, cores);
        let owners: Vec<(String, String)> = (0..16)
            .map(|i| (format!("train/worker-{i}"), format!("{i}")))
            .collect();
        let owners: Vec<(&str, &str)> = owners
            .iter()
            .map(|(label, cpus)| (label.as_str(), cpus.as_str()))
            .collect();
        for owners in [&[][..], &owners] {
            let drawing = plain(&topology, owners);
            let lines = drawing.lines().count()
                - if owners.is_empty() {
                    0
                } else {
                    owners.len() + 2
                };
            // Letters need room, which costs the machine with the most LLCs a few lines more.
            let most = if owners.is_empty() { 40 } else { 45 };
            assert!(lines <= most, "{lines} lines:\n{drawing}");
            let widest = drawing
                .lines()
                .map(|line| line.chars().count())
                .max()
                .unwrap();
            assert!(widest <= WIDTH, "{widest} columns:\n{drawing}");
        }
    }
}

#[test]
fn every_online_cpu_is_drawn_once() {
    for (llcs, cores) in [(1, 3), (2, 2), (3, 1)] {
        let topology = server(llcs, cores);
        let drawing = plain(&topology, &[]);
        assert_eq!(
            drawn(&drawing),
            topology.online.iter().collect::<Vec<_>>(),
            "{drawing}"
        );
    }
}

#[test]
fn an_llc_of_several_numa_nodes_is_outside_them() {
    let facts = TopologyFacts {
        online: set("0-3"),
        cores: ["0", "1", "2", "3"].map(set).to_vec(),
        llcs: vec![set("0-3")],
        numa: vec![
            numa(0, "0-1", &[10, 21, 80]),
            numa(1, "2-3", &[21, 10, 80]),
            numa(9, "", &[80, 80, 10]),
        ],
        ..TopologyFacts::default()
    };
    assert_eq!(
        plain(&Topology::from_facts(facts), &[]),
        "\
4 CPUs online · 4 cores · 1 LLC · 3 NUMA nodes
not reported by this machine: sockets

LLC 0
  NUMA node 0 · 1.5 GiB · distance 21 to 1; 80 to 9  0 1
  NUMA node 1 · 1.5 GiB · distance 21 to 0; 80 to 9  2 3
NUMA node 9 · no CPUs · 1.5 GiB · distance 80 to 0-1
"
    );
}

fn numa(id: u32, cpus: &str, distances: &[u32]) -> NumaNode {
    NumaNode {
        id,
        cpus: set(cpus),
        memory_bytes: Some(3 << 29),
        distances: distances.to_vec(),
    }
}

#[test]
fn hybrid_cores_offline_cpus_and_owners_are_marked() {
    let facts = TopologyFacts {
        online: set("0-3,8-11"),
        offline: set("4-7"),
        isolated: set("2-3,11"),
        cores: ["0-1", "2-3", "8", "9", "10", "11"].map(set).to_vec(),
        sockets: vec![set("0-11")],
        llcs: vec![set("0-3"), set("8-11")],
        kinds: vec![
            (CoreKind::Performance, set("0-3")),
            (CoreKind::Efficiency, set("8-10")),
            (CoreKind::LowPower(0), set("11")),
        ],
        ..TopologyFacts::default()
    };
    let owners = [
        ("train/ps-0", "0-1,4"),
        ("train/worker-0", "3,8-9"),
        ("train/worker-1", "9-10"),
    ];
    assert_eq!(
        plain(&Topology::from_facts(facts), &owners),
        "\
8 CPUs online · 6 cores · 2 LLCs · 1 socket
not reported by this machine: NUMA nodes
offline: 4-7
isolated at boot: 2-3,11
P performance cores: 0-3
E efficiency cores: 8-10
L low-power cores: 11

socket 0
  LLC 0  P[ 0a  1a] P[ 2   3b]         LLC 1  E[ 8b] E[ 9!] E[10c] L[11 ]

a train/ps-0  3 CPUs: 0-1,4
  of these not online: 4
b train/worker-0  3 CPUs: 3,8-9
c train/worker-1  2 CPUs: 9-10
shared  2 CPUs: 2,11
! more than one owner: 9
"
    );
}

#[test]
fn a_machine_that_tells_nothing_is_its_cpus() {
    let facts = TopologyFacts {
        online: set("0-2"),
        ..TopologyFacts::default()
    };
    assert_eq!(
        plain(&Topology::from_facts(facts), &[]),
        "3 CPUs online\nnot reported by this machine: cores, LLCs, NUMA nodes, sockets\n\n0 1 2\n"
    );
}

#[test]
fn sixty_owners_have_two_letters_each() {
    let owners: Vec<(String, String)> = (0..60)
        .map(|i| (format!("train/worker-{i:02}"), format!("{i}")))
        .collect();
    let owners: Vec<(&str, &str)> = owners
        .iter()
        .map(|(label, cpus)| (label.as_str(), cpus.as_str()))
        .collect();
    let drawing = plain(&server(2, 8), &owners);
    assert!(
        drawing.contains("  0aa") && drawing.contains(" 59bh"),
        "{drawing}"
    );
    assert!(
        drawing.contains("\nbh train/worker-59  1 CPU: 59\n"),
        "{drawing}"
    );
}

#[test]
fn colours_change_no_column() {
    let owners = [("train/ps-0", "0-1"), ("train/worker-0", "8-9,60-70")];
    let topology = server(2, 4);
    let owners = owners
        .iter()
        .map(|(l, c)| ((*l).to_owned(), set(c)))
        .collect();
    let uses = CpuUses {
        owners,
        ..CpuUses::default()
    };
    // The setting holds for the process, but the remaining tests look at plain text only.
    console::set_colors_enabled(false);
    let without = render(&topology, &uses);
    console::set_colors_enabled(true);
    let with = render(&topology, &uses);
    assert!(
        with.contains("\u{1b}[32m"),
        "the first owner is green: {with:?}"
    );
    assert!(!without.contains('\u{1b}'), "{without:?}");
    assert_eq!(console::strip_ansi_codes(&with), without);
}

#[test]
fn withheld_cpus_are_not_shared() {
    let topology = server(1, 2);
    let mut uses = CpuUses {
        withheld: set("0-3"),
        ..CpuUses::default()
    };
    let drawing = console::strip_ansi_codes(&render(&topology, &uses)).into_owned();
    assert!(drawing.ends_with("withheld  4 CPUs: 0-3\n"), "{drawing}");
    uses.owners.insert("train/worker-0".to_owned(), set("4-7"));
    let drawing = console::strip_ansi_codes(&render(&topology, &uses)).into_owned();
    let rest = topology.online.difference(&set("0-7"));
    assert!(
        drawing.contains(&format!("shared  {} CPUs: {rest}\n", rest.len())),
        "{drawing}"
    );
}
