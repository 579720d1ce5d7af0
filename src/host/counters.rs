//! What the machine counts by itself: cycles and cache misses, traffic of memory and caches, RDMA.

pub mod perf;
pub mod rdma;
pub mod resctrl;
