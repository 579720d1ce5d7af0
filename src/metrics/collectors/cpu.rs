//! What the CPU controller counts, and which processes there are.

use std::collections::HashSet;

use super::super::families::{
    CONTAINER_CPU_PERIODS, CONTAINER_CPU_THROTTLED_PERIODS, CONTAINER_CPU_THROTTLED_SECONDS,
    CONTAINER_CPU_USAGE_SECONDS,
};
use super::super::lock;
use super::super::page::{Lines, Page};
use super::{Outcome, Scrape};

pub(super) fn collect(page: &mut Page, scrape: &mut Scrape<'_>) -> Outcome {
    let mut counters = lock(&scrape.sources.counters);
    let mut usage = Lines::of(&CONTAINER_CPU_USAGE_SECONDS);
    let mut periods = Lines::of(&CONTAINER_CPU_PERIODS);
    let mut throttled = Lines::of(&CONTAINER_CPU_THROTTLED_PERIODS);
    let mut held_back = Lines::of(&CONTAINER_CPU_THROTTLED_SECONDS);
    let mut complete = true;
    for index in 0..scrape.subjects.len() {
        let late = scrape.is_late();
        let Some(subject) = scrape.subjects.get_mut(index).filter(|_| !late) else {
            complete = false;
            break;
        };
        match counters.cpu_stat(subject.cgroup) {
            Ok(stat) => {
                lock(&scrape.sources.tasks).note_usage(subject.cgroup, stat.usage_seconds);
                usage.put_known(&subject.labels, stat.usage_seconds);
                periods.put_known(&subject.labels, stat.periods);
                throttled.put_known(&subject.labels, stat.throttled_periods);
                held_back.put_known(&subject.labels, stat.throttled_seconds);
            }
            Err(error) => complete &= error.is_gone(),
        }
        match counters.processes(subject.cgroup) {
            Ok(processes) => subject.processes = Some(processes),
            Err(error) if error.is_gone() => subject.processes = Some(Vec::new()),
            Err(_) => complete = false,
        }
    }
    let there: HashSet<&str> = scrape.subjects.iter().map(|subject| subject.cgroup).collect();
    counters.keep(|cgroup| there.contains(cgroup));
    [usage, periods, throttled, held_back].into_iter().for_each(|lines| page.add(lines));
    Outcome::of(complete)
}
