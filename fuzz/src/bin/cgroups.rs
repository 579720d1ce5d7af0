//! Cgroups: the names of pods and containers, and what their files and marks say.
//!
//! An input is a tree of files, as `pinfold_fuzz::Tree` takes it; its root is where the hierarchies are mounted. The
//! content of a file called `mark` is also put on its cgroup as the mark.

#![no_main]

use std::cell::RefCell;

use libfuzzer_sys::fuzz_target;
use pinfold::cpu::CpuSet;
use pinfold::host::cgroup::{CgroupError, Cgroups, Counters, PodCgroup};
use pinfold::pin::{AssignmentRecord, Observed, Scan, release};
use pinfold_fuzz::{Node, Tree, files, says_why, text};

/// Where pods are looked for, as the configuration has it by default.
const TREES: [&str; 2] = ["kubepods", "kubepods.slice"];

thread_local! {
    static TREE: RefCell<Tree> = RefCell::new(Tree::new());
}

fuzz_target!(|data: &[u8]| {
    let Some(text) = text(data) else { return };
    TREE.with_borrow_mut(|tree| {
        let nodes = files(text);
        let marks: Vec<(String, String)> = nodes
            .iter()
            .filter_map(|(path, node)| mark(path, node))
            .collect();
        tree.set(nodes);
        let cgroups = match Cgroups::detect(tree.root()) {
            Ok(cgroups) => cgroups,
            Err(error) => return says_why(&error),
        };
        let mut counters = Counters::new(cgroups.clone(), 64);
        let pods = TREES
            .iter()
            .filter_map(|name| well(cgroups.scan(name)))
            .flatten();
        let pods: Vec<PodCgroup> = pods.map(|pod| marked(pod, &marks)).collect();
        for pod in &pods {
            assert!(
                !pod.uid.is_empty() && TREES.iter().any(|name| pod.path.starts_with(name)),
                "{pod:?}"
            );
            assert!(cgroups.exists(&pod.path));
            for (number, container) in pod.containers.iter().enumerate() {
                assert!(
                    !container.id.is_empty() && container.path.starts_with(&pod.path),
                    "{container:?}"
                );
                // Twice: opened, and from what is kept open then.
                for _ in 0..2 {
                    let mut of = counters.of(number, &container.path);
                    well(of.cpu_stat());
                    well(of.processes(None));
                    well(of.threads());
                    well(of.memory_by_numa());
                    well(of.pressure());
                }
                counters.forget(number);
                well(cgroups.usage(&container.path));
                cgroups.blocking_siblings(&container.path, &container.cpuset.cpus);
            }
        }
        let online: CpuSet = (0..8).collect();
        let all_memory = well(cgroups.memory_nodes()).unwrap_or_default();
        let around = well(cgroups.surroundings(&TREES.map(str::to_owned))).unwrap_or_default();
        let lost = well(cgroups.lost_cpus(&online, &CpuSet::new())).unwrap_or_default();
        assert!(lost.is_subset(&online));
        well(cgroups.all_cpus());
        well(cgroups.has_cpusets_below("kubepods"));
        let (observed, ledger) = Observed::new(
            Scan {
                pods,
                surroundings: around,
                lost,
            },
            &[],
        );
        for owned in ledger.assignments.values() {
            assert!(owned.cpus().is_subset(&ledger.exclusive()));
        }
        for step in release(&observed, &online, &all_memory) {
            assert!(
                TREES.iter().any(|name| step.path().starts_with(name)),
                "{step:?}"
            );
        }
    });
});

/// What a call came to; an error must say why.
fn well<T>(result: Result<T, CgroupError>) -> Option<T> {
    result.inspect_err(|error| says_why(error)).ok()
}

fn mark(path: &str, node: &Node) -> Option<(String, String)> {
    let (cgroup, Node::File(content)) = (path.strip_suffix("/mark")?, node) else {
        return None;
    };
    Some((
        cgroup.to_owned(),
        String::from_utf8_lossy(content).into_owned(),
    ))
}

/// A pod with the marks that the input has for it. Folders in memory take extended attributes only from root, and the
/// targets run as anybody, so marks are handed over here.
fn marked(mut pod: PodCgroup, marks: &[(String, String)]) -> PodCgroup {
    let of = |path: &str| {
        marks
            .iter()
            .find(|(cgroup, _)| cgroup == path)
            .map(|(_, mark)| mark.clone())
    };
    pod.record_text = of(&pod.path);
    for container in &mut pod.containers {
        container.record_text = of(&container.path);
        if let Some(Ok(mark)) = container
            .record_text
            .as_deref()
            .map(AssignmentRecord::parse)
        {
            assert!(
                mark.assignment
                    .entries()
                    .all(|(_, cpus)| cpus.is_subset(&mark.cpus()))
            );
        }
    }
    pod
}
