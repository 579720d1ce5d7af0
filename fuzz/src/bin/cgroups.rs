//! Cgroups: the names of pods and containers, the cgroup files, and the assignment records.
//!
//! An input is a tree of files in the format of `pinfold_fuzz::Tree`. The root has the mounted hierarchies. The content
//! of a file `mark` is also the assignment record of the cgroup.

#![no_main]

use std::cell::RefCell;

use libfuzzer_sys::fuzz_target;
use pinfold::cpu::CpuSet;
use pinfold::host::cgroup::{CgroupError, Cgroups, Counters, PodCgroup};
use pinfold::pin::{AssignmentRecord, Observed, Scan, release};
use pinfold_fuzz::{Node, Tree, files, says_why, text};

/// The folders of the pods, as in the default configuration.
const TREES: [&str; 2] = ["kubepods", "kubepods.slice"];

thread_local! {
    static TREE: RefCell<Tree> = RefCell::new(Tree::new());
}

fuzz_target!(|data: &[u8]| {
    let Some(text) = text(data) else { return };
    TREE.with_borrow_mut(|tree| {
        let nodes = files(text);
        let records: Vec<(String, String)> = nodes
            .iter()
            .filter_map(|(path, node)| record_of(path, node))
            .collect();
        tree.set(nodes);
        let cgroups = match Cgroups::detect(tree.root()) {
            Ok(cgroups) => cgroups,
            Err(error) => return says_why(&error),
        };
        let mut counters = Counters::new(cgroups.clone(), 64);
        let pods = TREES
            .iter()
            .filter_map(|name| checked(cgroups.scan(name)))
            .flatten();
        let pods: Vec<PodCgroup> = pods.map(|pod| with_records(pod, &records)).collect();
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
                // Two reads: the first opens the files, the second uses the open files.
                for _ in 0..2 {
                    let mut of = counters.of(number, &container.path);
                    checked(of.cpu_stat());
                    checked(of.processes(None));
                    checked(of.threads());
                    checked(of.memory_by_numa());
                    checked(of.pressure());
                }
                counters.forget(number);
                checked(cgroups.usage(&container.path));
                cgroups.blocking_siblings(&container.path, &container.cpuset.cpus);
            }
        }
        let online: CpuSet = (0..8).collect();
        let trees = TREES.map(str::to_owned);
        let all_memory = checked(cgroups.memory_nodes(&trees)).unwrap_or_default();
        let around = checked(cgroups.surroundings(&trees)).unwrap_or_default();
        let missing = checked(cgroups.missing_cpus(&online, &CpuSet::new())).unwrap_or_default();
        assert!(missing.all.is_subset(&online));
        assert!(missing.held.is_subset(&missing.all));
        checked(cgroups.all_cpus());
        checked(cgroups.has_cpusets_below("kubepods"));
        let (observed, ledger) = Observed::new(
            Scan {
                pods,
                surroundings: around,
                missing: missing.all,
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

/// The result of a call. An error must have a message.
fn checked<T>(result: Result<T, CgroupError>) -> Option<T> {
    result.inspect_err(|error| says_why(error)).ok()
}

fn record_of(path: &str, node: &Node) -> Option<(String, String)> {
    let (cgroup, Node::File(content)) = (path.strip_suffix("/mark")?, node) else {
        return None;
    };
    Some((
        cgroup.to_owned(),
        String::from_utf8_lossy(content).into_owned(),
    ))
}

/// A pod with the input's assignment records. The kernel's tmpfs lets only root set extended attributes, and the
/// targets run as any user, so the records are added here.
fn with_records(mut pod: PodCgroup, records: &[(String, String)]) -> PodCgroup {
    let of = |path: &str| {
        records
            .iter()
            .find(|(cgroup, _)| cgroup == path)
            .map(|(_, record)| record.clone())
    };
    pod.record_text = of(&pod.path);
    for container in &mut pod.containers {
        container.record_text = of(&container.path);
        if let Some(Ok(record)) = container
            .record_text
            .as_deref()
            .map(AssignmentRecord::parse)
        {
            assert!(
                record
                    .assignment
                    .entries()
                    .all(|(_, cpus)| cpus.is_subset(&record.cpus()))
            );
        }
    }
    pod
}
