//! The collector `pressure`: the total time for which tasks waited for CPU, disk and memory.

use super::super::families::CONTAINER_PRESSURE_SECONDS;
use super::super::page::Page;
use super::model::Outcome;
use super::scrape::{Collector, Scrape};
use crate::host::cgroup::RESOURCES;

#[derive(Debug)]
pub(super) struct PressureCollector;

impl Collector for PressureCollector {
    fn name(&self) -> &'static str {
        "pressure"
    }

    fn collect(&mut self, scrape: &mut Scrape<'_>, page: &mut Page) -> Outcome {
        if let Some(detail) = scrape.host.cgroups.no_pressure() {
            return Outcome::unsupported("no_pressure_counters", detail);
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
            for (resource, pressure) in RESOURCES.into_iter().zip(pressures) {
                let some = pressure.map(|pressure| pressure.some);
                let full = pressure.and_then(|pressure| pressure.full);
                for (kind, time) in [("some", some), ("full", full)] {
                    let labels = [("resource", resource), ("kind", kind)];
                    if let Some(time) = time {
                        seconds.put_with(&container.labels, &labels, time);
                    }
                }
            }
        }
        page.add(seconds);
        Outcome::from_complete(complete)
    }
}
