//! How long tasks waited for CPU, disk and memory: totals, never averages.

use super::super::families::CONTAINER_PRESSURE_SECONDS;
use super::super::lock;
use super::super::page::Page;
use super::{Outcome, Scrape};
use crate::host::cgroup::RESOURCES;

pub(super) fn collect(page: &mut Page, scrape: &mut Scrape<'_>) -> Outcome {
    if let Some(reason) = scrape.sources.cgroups.no_pressure() {
        return Outcome::Unsupported(reason.to_owned());
    }
    let mut counters = lock(&scrape.sources.counters);
    let mut seconds = page.lines(&CONTAINER_PRESSURE_SECONDS);
    let mut complete = true;
    for subject in &scrape.subjects {
        if scrape.is_late() {
            complete = false;
            break;
        }
        match counters.of(subject.number, subject.cgroup).pressure() {
            Ok(pressures) => {
                for (resource, pressure) in RESOURCES.into_iter().zip(pressures) {
                    let some = pressure.map(|pressure| pressure.some);
                    let kinds = [
                        ("some", some),
                        ("full", pressure.and_then(|pressure| pressure.full)),
                    ];
                    for (kind, time) in kinds
                        .into_iter()
                        .filter_map(|(kind, time)| Some((kind, time?)))
                    {
                        let more = [("resource", resource), ("kind", kind)];
                        seconds.put_with(&subject.labels, &more, time);
                    }
                }
            }
            Err(error) => complete &= error.is_gone(),
        }
    }
    page.add(seconds);
    Outcome::of(complete)
}
