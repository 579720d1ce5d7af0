//! The collector `cgroup`: the counters of the CPU controller, and the process ids for later collectors.

use super::super::families::{
    CONTAINER_CPU_PERIODS, CONTAINER_CPU_THROTTLED_PERIODS, CONTAINER_CPU_THROTTLED_SECONDS,
    CONTAINER_CPU_USAGE_SECONDS,
};
use super::super::page::Page;
use super::measured::CollectOutcome;
use super::scrape::{Collector, Scrape};

#[derive(Debug)]
pub(super) struct CgroupCollector;

impl Collector for CgroupCollector {
    fn name(&self) -> &'static str {
        "cgroup"
    }

    fn collect(&mut self, scrape: &mut Scrape<'_>, page: &mut Page) -> CollectOutcome {
        let mut usage = page.lines(&CONTAINER_CPU_USAGE_SECONDS);
        let mut periods = page.lines(&CONTAINER_CPU_PERIODS);
        let mut throttled_periods = page.lines(&CONTAINER_CPU_THROTTLED_PERIODS);
        let mut throttled = page.lines(&CONTAINER_CPU_THROTTLED_SECONDS);
        let mut complete = true;
        for container in &mut scrape.containers {
            if scrape.deadline.is_over() {
                complete = false;
                break;
            }
            let mut cgroup = scrape.state.counters.of(container.number, container.cgroup);
            match cgroup.cpu_stat() {
                Ok(stat) => {
                    container.cpu_seconds = stat.usage.map(|usage| usage.as_secs_f64());
                    usage.put_known(&container.labels, stat.usage);
                    periods.put_known(&container.labels, stat.periods);
                    throttled_periods.put_known(&container.labels, stat.throttled_periods);
                    throttled.put_known(&container.labels, stat.throttled);
                }
                Err(error) => complete &= error.is_gone(),
            }
            complete &= container.list_processes(&mut cgroup);
        }
        [usage, periods, throttled_periods, throttled]
            .into_iter()
            .for_each(|lines| page.add(lines));
        CollectOutcome::from_complete(complete)
    }
}
