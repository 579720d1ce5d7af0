//! Enforcement `partition`, on kernels with remote partitions: cgroup v2 with eight CPUs, Linux 6.7 or newer.
//!
//! `tests/vm/run` runs the tests in guests and sets `PINFOLD_PARTITION_TESTS=1`. Elsewhere, each test without partitions
//! prints its name.

mod foreign;
mod init;
mod isolated;
mod kubelet;
mod lifetime;
mod owner;
mod preferences;

use std::fs;

use pinfold::cpu::CpuSet;

use crate::gate;
use crate::kernel::{Kernel, kernel_tests};

/// The kernel, if it has partitions and eight CPUs; see [`kernel_tests`].
pub(crate) fn partition_tests() -> Option<Kernel> {
    let kernel = kernel_tests()?;
    let offered = kernel.cgroups.offers_partitions().unwrap() && kernel.online.len() >= 8;
    if std::env::var_os("PINFOLD_PARTITION_TESTS").is_some_and(|value| value == "1") {
        assert!(
            offered,
            "PINFOLD_PARTITION_TESTS=1 wants cpuset partitions and eight CPUs"
        );
    } else if !offered {
        gate::leave("tests/vm/run", "cpuset partitions and eight CPUs");
        return None;
    }
    Some(kernel)
}

/// The common mask of unbound work queues.
const WORK_QUEUES: &str = "/sys/devices/virtual/workqueue/cpumask";

/// Where unbound work queues may run.
pub(crate) fn work_queues() -> CpuSet {
    CpuSet::from_mask(&fs::read_to_string(WORK_QUEUES).unwrap()).unwrap()
}
