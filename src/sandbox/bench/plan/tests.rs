use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use crate::cpu::{Numbering, Shape};
use crate::pin::decide::default_reserved;

/// A machine with a thread per core.
pub(in crate::sandbox::bench) fn machine(cores: u32) -> Topology {
    Topology::from_shape(Shape {
        sockets: 1,
        numa_per_socket: 1,
        llcs_per_numa: 1,
        cores_per_llc: cores,
        threads_per_core: 1,
        numbering: Numbering::SiblingsLast,
    })
}

fn plan(cores: u32, preferences: PlanOptions) -> Result<BenchPlan, PlanError> {
    let topology = machine(cores);
    let preferences = PlanOptions {
        rounds: 4,
        seconds: 2,
        ..preferences
    };
    BenchPlan::new(
        preferences,
        &topology,
        &default_reserved(&topology, &CpuSet::new()),
    )
}

fn sizes(plan: &BenchPlan) -> [u32; 5] {
    [
        plan.workers,
        plan.cpus,
        plan.ps,
        plan.ps_cpus,
        plan.neighbors.count,
    ]
}

#[test]
fn four_rounds_are_balanced() {
    let rounds = rounds(8);
    assert_eq!(rounds[..4], rounds[4..]);
    for place in 0..4 {
        let there: BTreeSet<Way> = rounds[..4].iter().map(|round| round[place]).collect();
        assert_eq!(there.len(), 4, "place {place}");
    }
    let followers: BTreeSet<(Way, Way)> = rounds[..4]
        .iter()
        .flat_map(|round| round.windows(2).map(|pair| (pair[0], pair[1])))
        .collect();
    assert_eq!(followers.len(), 12, "each way follows each other way once");
}

#[test]
fn missing_options_follow_from_the_machine() {
    for (cores, expected) in [
        (2, [1, 1, 0, 0, 2]),
        (3, [1, 2, 0, 0, 2]),
        (4, [2, 1, 1, 1, 2]),
        (8, [2, 3, 1, 1, 2]),
        (64, [2, 4, 1, 1, 14]),
    ] {
        assert_eq!(
            sizes(&plan(cores, PlanOptions::default()).unwrap()),
            expected,
            "{cores} cores"
        );
    }
    let command = || PlanOptions {
        command: Some("true".to_owned()),
        ..PlanOptions::default()
    };
    assert_eq!(sizes(&plan(2, command()).unwrap()), [1, 1, 0, 0, 2]);
    assert_eq!(sizes(&plan(8, command()).unwrap()), [1, 4, 0, 0, 2]);
    // The rest of a node of 2 belongs to two neighbors, which together request as much as the
    // command.
    let full = plan(2, command()).unwrap();
    assert_eq!(
        (full.neighbors.request_milli_cpus, full.is_full()),
        (500, true)
    );
    assert!(
        !plan(
            8,
            PlanOptions {
                neighbor_pods: Some(0),
                ..PlanOptions::default()
            }
        )
        .unwrap()
        .is_full()
    );
}

#[test]
fn the_neighbors_follow_from_their_kind() {
    let of = |neighbor_kind, neighbor_pods| {
        let preferences = PlanOptions {
            neighbor_kind,
            neighbor_pods,
            ..PlanOptions::default()
        };
        let plan = plan(16, preferences).unwrap();
        let Neighbors {
            count,
            request_milli_cpus,
            threads,
            ..
        } = plan.neighbors;
        (count, request_milli_cpus, threads, plan.is_full())
    };
    assert_eq!(of(NeighborKind::Full, None), (2, 3500, 16, true));
    assert_eq!(of(NeighborKind::Full, Some(3)), (3, 2333, 16, true));
    assert_eq!(of(NeighborKind::BestEffort, None), (1, 0, 17, false));
    assert_eq!(of(NeighborKind::BestEffort, Some(4)), (4, 0, 17, false));
    assert_eq!(of(NeighborKind::Full, Some(0)), (0, 0, 16, false));
}

#[test]
fn equal_containers_fill_a_full_node() {
    let full = |cores, preferences| {
        plan(
            cores,
            PlanOptions {
                full_node: true,
                ..preferences
            },
        )
    };
    for (cores, expected) in [
        (2, [1, 1, 0, 0, 1]),
        (3, [1, 1, 0, 0, 2]),
        (4, [1, 2, 0, 0, 1]),
        (6, [1, 3, 0, 0, 1]),
        (16, [1, 4, 0, 0, 3]),
    ] {
        let plan = full(cores, PlanOptions::default()).unwrap();
        assert_eq!(sizes(&plan), expected, "{cores} cores");
        assert_eq!(
            (plan.neighbors.request_milli_cpus, plan.is_full()),
            (1000 * u64::from(plan.cpus), true)
        );
    }
    let workers = PlanOptions {
        workers: Some(3),
        ..PlanOptions::default()
    };
    assert_eq!(sizes(&full(16, workers).unwrap()), [3, 4, 0, 0, 1]);
    let odd = PlanOptions {
        cpus: Some(3),
        ..PlanOptions::default()
    };
    let error = full(16, odd).unwrap_err().to_string();
    assert!(
        error.contains("containers of 3 CPUs do not fill the 16 CPUs"),
        "{error}"
    );
}

#[test]
fn an_error_about_too_few_cpus_has_numbers() {
    let error = plan(
        2,
        PlanOptions {
            cpus: Some(2),
            ..PlanOptions::default()
        },
    )
    .unwrap_err()
    .to_string();
    assert!(
        error.contains("2 CPUs for exclusive use")
            && error.contains("only 1 can be exclusive")
            && !error.contains("--ps-cpus"),
        "{error}"
    );
    let error = plan(
        2,
        PlanOptions {
            ps_cpus: Some(1),
            ..PlanOptions::default()
        },
    )
    .unwrap_err()
    .to_string();
    assert!(
        error.contains("1 worker of 1 and 1 server of 1") && error.contains("--ps-cpus 0"),
        "{error}"
    );
    let error = plan(1, PlanOptions::default()).unwrap_err().to_string();
    assert!(error.contains("no CPU for exclusive use"), "{error}");
}

proptest! {
    #[test]
    fn a_plan_fits_or_is_refused(
        cores in 1_u32..200,
        workers in proptest::option::of(0_u32..u32::MAX),
        cpus in proptest::option::of(0_u32..300),
        ps in proptest::option::of(0_u32..u32::MAX),
        ps_cpus in proptest::option::of(0_u32..300),
        command in any::<bool>(),
    ) {
        let command = command.then(String::new);
        let preferences = PlanOptions { workers, cpus, ps, ps_cpus, command, ..PlanOptions::default() };
        if let Ok(plan) = plan(cores, preferences) {
            let own = u64::from(plan.workers) * u64::from(plan.cpus) + u64::from(plan.ps) * u64::from(plan.ps_cpus);
            prop_assert!(own < u64::from(cores) && own > 0);
            prop_assert!(workers.is_none_or(|workers| plan.workers == workers.max(1)));
        }
    }
}
