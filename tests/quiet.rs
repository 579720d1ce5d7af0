//! Quiet CPUs and foreign time: on a tree of files, on a namespace of its own, and on the real kernel.
//!
//! What moves the interrupts of the machine itself is left to a guest, where `PINFOLD_QUIET_TESTS=1` asks for it:
//! `PINFOLD_KERNEL_TESTS=1 PINFOLD_QUIET_TESTS=1 tests/vm/boot 6.12 -- target/…/deps/quiet-…`.

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

#[path = "quiet/files.rs"]
mod files;
#[path = "quiet/foreign.rs"]
mod foreign;
#[path = "quiet/machine.rs"]
mod machine;
#[path = "quiet/steering.rs"]
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

/// What is asked for, for CPUs that are somebody's own and not isolated.
fn situation<'a>(
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
