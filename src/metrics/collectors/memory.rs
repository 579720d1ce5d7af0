//! The collector `memory`: the containers' memory by NUMA node.

use super::super::families::CONTAINER_MEMORY_NUMA_BYTES;
use super::super::page::Page;
use super::measured::CollectOutcome;
use super::scrape::{Collector, Scrape};

#[derive(Debug)]
pub(super) struct MemoryCollector;

impl Collector for MemoryCollector {
    fn name(&self) -> &'static str {
        "memory"
    }

    fn collect(&mut self, scrape: &mut Scrape<'_>, page: &mut Page) -> CollectOutcome {
        let mut bytes = page.lines(&CONTAINER_MEMORY_NUMA_BYTES);
        let (mut complete, mut supported) = (true, scrape.containers.is_empty());
        for container in &scrape.containers {
            if scrape.deadline.is_over() {
                complete = false;
                break;
            }
            let mut cgroup = scrape.state.counters.of(container.number, container.cgroup);
            let by_numa_node = match cgroup.memory_by_numa() {
                Ok(by_numa_node) => by_numa_node,
                Err(error) => {
                    complete &= error.is_gone();
                    continue;
                }
            };
            supported |= by_numa_node.is_some();
            for memory in by_numa_node.unwrap_or_default() {
                let numa_node = memory.numa.to_string();
                for (kind, count) in [("anon", memory.anonymous), ("file", memory.file)] {
                    let labels = [("numa_node", numa_node.as_str()), ("type", kind)];
                    bytes.put_with(&container.labels, &labels, count);
                }
            }
        }
        page.add(bytes);
        if supported || !complete {
            CollectOutcome::from_complete(complete)
        } else {
            CollectOutcome::unsupported(
                "no_numa_statistics",
                "the memory controller is missing, or the kernel was built without CONFIG_NUMA",
            )
        }
    }
}
