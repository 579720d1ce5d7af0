//! The collector `pressure`: the total time for which tasks waited for CPU, disk and memory.

use super::super::families::CONTAINER_PRESSURE_SECONDS;
use super::super::page::{Labels, Lines, Page};
use super::measured::CollectOutcome;
use super::scrape::{Collector, Scrape};
use crate::host::cgroup::{Pressure, RESOURCES};

#[derive(Debug)]
pub(super) struct PressureCollector;

impl Collector for PressureCollector {
    fn name(&self) -> &'static str {
        "pressure"
    }

    fn collect(&mut self, scrape: &mut Scrape<'_>, page: &mut Page) -> CollectOutcome {
        if let Some(detail) = scrape.host.cgroups.no_pressure() {
            return CollectOutcome::unsupported("no_pressure_counters", detail);
        }
        let mut seconds = page.lines(&CONTAINER_PRESSURE_SECONDS);
        let mut complete = true;
        for container in &scrape.containers {
            if scrape.deadline.is_over() {
                complete = false;
                break;
            }
            let mut cgroup = scrape.state.counters.of(container.number, container.cgroup);
            let pressures = match cgroup.pressure() {
                Ok(pressures) => pressures,
                Err(error) => {
                    complete &= error.is_gone();
                    continue;
                }
            };
            write_pressures(&mut seconds, &container.labels, pressures);
        }
        page.add(seconds);
        CollectOutcome::from_complete(complete)
    }
}

/// Writes a container's waiting times. A time that the kernel does not count has no series.
fn write_pressures(
    seconds: &mut Lines,
    labels: &Labels,
    pressures: [Option<Pressure>; RESOURCES.len()],
) {
    for (resource, pressure) in RESOURCES.into_iter().zip(pressures) {
        let some = pressure.map(|pressure| pressure.some);
        let full = pressure.and_then(|pressure| pressure.full);
        for (kind, time) in [("some", some), ("full", full)] {
            if let Some(time) = time {
                seconds.put_with(labels, &[("resource", resource), ("kind", kind)], time);
            }
        }
    }
}
