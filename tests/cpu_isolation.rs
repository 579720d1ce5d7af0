//! CPU isolation and interference: on a tree of files, in a network namespace, and on the real kernel.
//!
//! One test moves the interrupts of the whole machine, so it runs only in a guest, where
//! `PINFOLD_CPU_ISOLATION_TESTS=1` allows it: `PINFOLD_KERNEL_TESTS=1 PINFOLD_CPU_ISOLATION_TESTS=1
//! tests/vm/boot 6.12 -- target/…/deps/cpu_isolation-…`.
//!
//! | what holds | tests |
//! |---|---|
//! | Interrupts, workqueues and packet steering leave exclusive CPUs and return. | `files`, `steering`, `machine` |
//! | Interference is the CPU time of those who interfere. | `interference` |

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

#[path = "support/gate.rs"]
mod gate;
#[allow(dead_code, reason = "these tests need a part of it")]
#[path = "support/kernel.rs"]
mod kernel;

#[path = "cpu_isolation/files.rs"]
mod files;
#[path = "cpu_isolation/interference.rs"]
mod interference;
#[path = "cpu_isolation/machine.rs"]
mod machine;
#[path = "cpu_isolation/steering.rs"]
mod steering;

use std::sync::LazyLock;

use pinfold::cpu::CpuSet;
use pinfold::pin::cpu_isolation::{CpuIsolationOptions, IsolationInput};

const ALL: CpuIsolationOptions = CpuIsolationOptions {
    irqs: true,
    workqueues: true,
    packet_steering: true,
    system_slices: true,
};

fn set(list: &str) -> CpuSet {
    list.parse().unwrap()
}

static NONE: LazyLock<CpuSet> = LazyLock::new(CpuSet::new);

/// The input for exclusive CPUs without a partition of type `isolated`.
fn isolation_input<'a>(
    options: CpuIsolationOptions,
    exclusive: &'a CpuSet,
    online: &'a CpuSet,
) -> IsolationInput<'a> {
    IsolationInput {
        options,
        exclusive,
        isolated: &NONE,
        online,
    }
}
