//! CPU sets, a machine's topology as values, and placement.

#![warn(clippy::too_many_lines, clippy::excessive_nesting)]

mod placement;
mod rank_cpus;
mod set;
mod shared_minimum;
mod topology;

pub use placement::{
    CoreKinds, Cores, Cost, Isolated, Move, Numa, Order, Owner, Placement, PlacementRefusal,
    Placer, Repacking, Request, TooFewCpus, place,
};
pub use rank_cpus::RankCpus;
pub use set::{CpuSet, MAX_CPU, NumberList, ParseCpuSetError, cpu_count};
pub use shared_minimum::{ParseSharedMinimumError, SharedMinimum};
pub use topology::{CoreKind, Cpu, Layout, NumaNode, Numbering, Shape, Topology, TopologyFacts};
