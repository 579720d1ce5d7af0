//! Threads, their context switches, and how long they waited for a CPU.

use std::collections::HashSet;

use super::collect::{Outcome, Scrape};
use super::families::{CONTAINER_CONTEXT_SWITCHES, CONTAINER_CPU_RUN_DELAY_SECONDS, CONTAINER_THREADS};
use super::lock;
use super::page::{Lines, Page};

pub(super) fn collect(page: &mut Page, scrape: &mut Scrape<'_>) -> Outcome {
    let (mut threads, mut switches) = (Lines::of(&CONTAINER_THREADS), Lines::of(&CONTAINER_CONTEXT_SWITCHES));
    let mut delay = Lines::of(&CONTAINER_CPU_RUN_DELAY_SECONDS);
    let unsupported = scrape.sources.proc.no_run_delay();
    let mut board = lock(&scrape.sources.switches);
    let mut complete = true;
    for subject in &scrape.subjects {
        if scrape.is_late() {
            complete = false;
            break;
        }
        // Without them nothing is known of its threads, and what was counted of them stays.
        let Some(processes) = &subject.processes else {
            complete = false;
            continue;
        };
        let seen: Vec<_> = processes.iter().flat_map(|pid| scrape.sources.proc.threads(*pid)).collect();
        let total = board.add(subject.cgroup, &seen);
        threads.put(&subject.labels, seen.len());
        switches.put_with(&subject.labels, &[("kind", "voluntary")], total.voluntary);
        switches.put_with(&subject.labels, &[("kind", "involuntary")], total.involuntary);
        if unsupported.is_none() {
            delay.put(&subject.labels, total.run_delay as f64 / 1e9);
        }
    }
    let there: HashSet<&str> = scrape.subjects.iter().map(|subject| subject.cgroup).collect();
    board.keep(|cgroup| there.contains(cgroup));
    [threads, switches, delay].into_iter().for_each(|lines| page.add(lines));
    match unsupported.filter(|_| complete) {
        Some(reason) => Outcome::Unsupported(reason.to_owned()),
        None => Outcome::of(complete),
    }
}
