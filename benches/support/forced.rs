//! How many forced splits moves remove.

use std::time::{Duration, Instant};

use pinfold::cpu::{CpuSet, Owner, Placer, Request, Topology};

use crate::random::Random;

/// What came of one run.
#[derive(Debug, Default)]
pub(crate) struct Forced {
    /// Requests that were placed.
    pub(crate) placements: usize,
    /// Those that one NUMA node could hold if it were empty, and that none could hold as it was.
    pub(crate) splits: usize,
    /// Of these, those that one move removes, and those that one or two remove.
    pub(crate) removed: [usize; 2],
    /// How long a search for at most one move took, and for at most two.
    pub(crate) times: [Vec<Duration>; 2],
    /// The most owners at one time.
    pub(crate) owners: usize,
}

/// Lets containers of 2, 4, … 32 CPUs come and go, three of four steps a coming while no more than `load` % of the machine
/// are then taken. Moves are only asked for, never made, so that every share is of the same splits.
pub(crate) fn run(topology: &Topology, load: usize, steps: usize, seed: u64) -> Forced {
    let placer = Placer::new(topology);
    let mut random = Random(seed);
    let first_core = topology.cpus[0].core;
    let usable: CpuSet = topology
        .cpus
        .iter()
        .filter(|cpu| cpu.core != first_core)
        .map(|cpu| cpu.id)
        .collect();
    let mut free = usable.clone();
    let mut owners: Vec<Owner> = Vec::new();
    let mut outcome = Forced::default();
    for _ in 0..steps {
        let (comes, size, leaver) = (
            random.below(4) > 0,
            2 * (random.below(16) + 1),
            random.below(1 << 20),
        );
        let used = usable.len() - free.len();
        if comes && (used + size) * 100 <= topology.cpus.len() * load {
            let placement = placer.place(&free, size).unwrap();
            outcome.placements += 1;
            if placement.cost.numa > placer.place(&usable, size).unwrap().cost.numa {
                outcome.splits += 1;
                let request = Request {
                    cpus: size,
                    ..Request::default()
                };
                for moves in [1, 2] {
                    let start = Instant::now();
                    let repacking = placer.repack(&free, &owners, &request, moves);
                    outcome.times[moves - 1].push(start.elapsed());
                    outcome.removed[moves - 1] += usize::from(repacking.is_some());
                }
            }
            free = free.difference(&placement.cpus);
            let movable = Some(Request::default());
            owners.push(Owner {
                cpus: placement.cpus,
                movable,
                ..Owner::default()
            });
            outcome.owners = outcome.owners.max(owners.len());
        } else if !owners.is_empty() {
            let leaver = owners.swap_remove(leaver % owners.len());
            free = free.union(&leaver.cpus);
        }
    }
    outcome
}
