//! Simulation of forced splits over NUMA nodes, and of the moves that remove them.

use std::time::{Duration, Instant};

use pinfold::cpu::{CpuSet, Owner, Placer, Request, Topology};

use crate::random::Random;

#[derive(Debug, Default)]
pub(crate) struct Forced {
    /// The number of placed requests.
    pub(crate) placements: usize,
    /// Placements on more NUMA nodes than on the empty machine.
    pub(crate) splits: usize,
    /// The number of splits that at most one move, and at most two moves, would remove.
    pub(crate) removed: [usize; 2],
    /// The durations of the searches for at most one move and for at most two moves.
    pub(crate) times: [Vec<Duration>; 2],
    /// The maximum number of owners at the same time.
    pub(crate) owners: usize,
}

/// Simulates containers of 2, 4, … 32 CPUs that arrive and leave. Three of four steps are arrivals
/// while at most `load` % of the machine would be used. The simulation searches for moves but makes
/// none, so that all shares refer to the same splits.
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
        let (arrives, size, leaver) = (
            random.below(4) > 0,
            2 * (random.below(16) + 1),
            random.below(1 << 20),
        );
        let used = usable.len() - free.len();
        if arrives && (used + size) * 100 <= topology.cpus.len() * load {
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
