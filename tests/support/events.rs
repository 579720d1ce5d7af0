//! Events that the kernel counts in software, on any machine. Tests use them where the machine has no hardware counters.
//!
//! The kernel's software clocks are no substitute: on Linux 6.18, a group can't hold both a clock and an event of another
//! kind.

use perf_event_open_sys::bindings;
use pinfold::host::counters::perf::{PerfEvent, PerfEvents};

pub(crate) const SOFTWARE: PerfEvents = [
    software(bindings::PERF_COUNT_SW_CONTEXT_SWITCHES),
    software(bindings::PERF_COUNT_SW_PAGE_FAULTS),
    software(bindings::PERF_COUNT_SW_PAGE_FAULTS_MIN),
    software(bindings::PERF_COUNT_SW_CPU_MIGRATIONS),
];

const fn software(config: u32) -> PerfEvent {
    PerfEvent {
        kind: bindings::PERF_TYPE_SOFTWARE,
        config: config as u64,
    }
}
