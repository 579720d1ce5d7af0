//! What the CPU controller counts, and which processes there are.

use super::super::families::{
    CONTAINER_CPU_PERIODS, CONTAINER_CPU_THROTTLED_PERIODS, CONTAINER_CPU_THROTTLED_SECONDS,
    CONTAINER_CPU_USAGE_SECONDS,
};
use super::super::lock;
use super::super::page::Page;
use super::{Outcome, Scrape};

pub(super) fn collect(page: &mut Page, scrape: &mut Scrape<'_>) -> Outcome {
    let (mut counters, mut tasks) = (lock(&scrape.sources.counters), lock(&scrape.sources.tasks));
    let mut usage = page.lines(&CONTAINER_CPU_USAGE_SECONDS);
    let mut periods = page.lines(&CONTAINER_CPU_PERIODS);
    let mut throttled = page.lines(&CONTAINER_CPU_THROTTLED_PERIODS);
    let mut held_back = page.lines(&CONTAINER_CPU_THROTTLED_SECONDS);
    let mut complete = true;
    for index in 0..scrape.subjects.len() {
        let late = scrape.is_late();
        let Some(subject) = scrape.subjects.get_mut(index).filter(|_| !late) else {
            complete = false;
            break;
        };
        let mut of = counters.of(subject.number, subject.cgroup);
        match of.cpu_stat() {
            Ok(stat) => {
                tasks.note_usage(subject.number, stat.usage.map(|usage| usage.as_secs_f64()));
                usage.put_known(&subject.labels, stat.usage);
                periods.put_known(&subject.labels, stat.periods);
                throttled.put_known(&subject.labels, stat.throttled_periods);
                held_back.put_known(&subject.labels, stat.throttled);
            }
            Err(error) => complete &= error.is_gone(),
        }
        subject.threads = of.threads().ok().flatten();
        match of.processes(subject.threads) {
            Ok(processes) => subject.processes = Some(processes),
            Err(error) if error.is_gone() => subject.processes = Some(Vec::new()),
            Err(_) => complete = false,
        }
    }
    [usage, periods, throttled, held_back]
        .into_iter()
        .for_each(|lines| page.add(lines));
    Outcome::of(complete)
}
