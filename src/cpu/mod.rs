//! CPU sets, a machine's topology as values, and placement.

mod set;
mod topology;

pub use set::{CpuSet, MAX_CPU, ParseCpuSetError};
pub use topology::{Cpu, Topology};
