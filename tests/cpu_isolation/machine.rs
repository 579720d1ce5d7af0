//! The whole machine's interrupts and work queues, in a guest that ends afterwards.

use std::collections::BTreeSet;
use std::io::Write;
use std::path::Path;

use pinfold::agent::isolation_problems;
use pinfold::host::cgroup::NoteSubject;
use pinfold::host::knobs::{Knob, KnobKind, Knobs};
use pinfold::pin::cpu_isolation::{CpuIsolationOptions, CpuIsolator};

use super::kernel::kernel_tests;
use super::{ALL, isolation_input};

/// Whether the whole machine belongs to the tests.
pub(crate) fn is_own_guest() -> bool {
    std::env::var_os("PINFOLD_CPU_ISOLATION_TESTS").is_some_and(|value| value == "1")
}

#[test]
fn interrupts_and_work_queues_are_isolated_and_restored() {
    if !is_own_guest() {
        // Bypasses the test harness, which captures the output of a passing test.
        let line = "interrupts_and_work_queues_are_isolated_and_restored: left to a guest (PINFOLD_CPU_ISOLATION_TESTS=1)\n";
        let _ = std::io::stderr().write_all(line.as_bytes());
        return;
    }
    let kernel = kernel_tests().unwrap();
    let tree = kernel.tree();
    let root = Path::new("/");
    let knobs = Knobs::new(root);
    let read_knobs = || knobs.read(&KnobKind::ALL.into()).unwrap();
    let before = read_knobs();
    println!(
        "{} knobs; unreadable: {:?}",
        before.values.len(),
        before.unreadable
    );
    let own = kernel
        .last()
        .union(&kernel.online.iter().nth(2).into_iter().collect());

    let mut isolator = CpuIsolator::new(root);
    let report = isolator.isolate(
        &isolation_input(ALL, &own, &kernel.online),
        &kernel.cgroups,
        &tree.path,
    );
    println!(
        "exclusive {own}: {report:#?}\n{}",
        isolation_problems(&report).join("\n")
    );
    println!(
        "{}",
        kernel
            .cgroups
            .note(&tree.path, NoteSubject::CpuIsolation)
            .unwrap()
            .unwrap()
    );
    assert_eq!(report.failed, []);
    let isolated = read_knobs();
    let touching: BTreeSet<&Knob> = isolated
        .values
        .iter()
        .filter(|(_, cpus)| !cpus.is_disjoint(&own))
        .map(|(knob, _)| knob)
        .collect();
    let managed: BTreeSet<u32> = report.managed.iter().map(|managed| managed.irq).collect();
    for knob in touching {
        let Knob::Irq(irq) = knob else {
            panic!("{knob} touches {own}")
        };
        assert!(
            managed.contains(irq) || knobs.irq_name(*irq).is_empty(),
            "{knob} touches {own}"
        );
    }
    assert!(
        !managed.is_empty(),
        "the kernel lets no program move the timer's interrupt"
    );
    assert!(report.moved.len() > 5, "{report:?}");

    let second_report = isolator.isolate(
        &isolation_input(ALL, &own, &kernel.online),
        &kernel.cgroups,
        &tree.path,
    );
    assert_eq!(
        (second_report.moved.len(), second_report.restored.len()),
        (0, 0),
        "{second_report:?}"
    );
    assert_eq!(
        (second_report.away, &second_report.managed),
        (report.away, &report.managed)
    );

    // An administrator sets another CPU for an interrupt; then the process that moved the interrupts dies.
    let administered = isolated
        .values
        .iter()
        .find(|(knob, cpus)| matches!(knob, Knob::Irq(_)) && before.values[*knob] != **cpus);
    let (administered, administrator_cpus) = (administered.unwrap().0, kernel.first());
    knobs.set(administered, &administrator_cpus).unwrap();
    let mut restarted = CpuIsolator::new(root);
    let report = restarted.isolate(
        &isolation_input(CpuIsolationOptions::default(), &own, &kernel.online),
        &kernel.cgroups,
        &tree.path,
    );
    assert_eq!(report.failed, []);
    let mut expected = before;
    expected
        .values
        .insert(administered.clone(), administrator_cpus);
    assert_eq!(read_knobs(), expected);
    assert_eq!(
        kernel
            .cgroups
            .note(&tree.path, NoteSubject::CpuIsolation)
            .unwrap(),
        None
    );
}
