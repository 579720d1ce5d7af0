//! On which NUMA nodes the memory of containers lies.

use super::super::families::CONTAINER_MEMORY_NUMA_BYTES;
use super::super::lock;
use super::super::page::Page;
use super::{Outcome, Scrape};

pub(super) fn collect(page: &mut Page, scrape: &mut Scrape<'_>) -> Outcome {
    let mut counters = lock(&scrape.sources.counters);
    let mut bytes = page.lines(&CONTAINER_MEMORY_NUMA_BYTES);
    let (mut complete, mut counted) = (true, scrape.subjects.is_empty());
    for subject in &scrape.subjects {
        if scrape.is_late() {
            complete = false;
            break;
        }
        match counters.of(subject.number, subject.cgroup).memory_by_numa() {
            Ok(pages) => {
                counted |= pages.is_some();
                for pages in pages.unwrap_or_default() {
                    let numa = pages.numa.to_string();
                    for (kind, count) in [("anon", pages.anonymous), ("file", pages.file)] {
                        bytes.put_with(
                            &subject.labels,
                            &[("numa_node", &numa), ("type", kind)],
                            count,
                        );
                    }
                }
            }
            Err(error) => complete &= error.is_gone(),
        }
    }
    page.add(bytes);
    if counted || !complete {
        Outcome::of(complete)
    } else {
        Outcome::Unsupported(
            "the memory controller is not there, or its kernel was built without CONFIG_NUMA"
                .to_owned(),
        )
    }
}
