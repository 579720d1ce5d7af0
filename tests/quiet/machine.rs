//! The machine's own interrupts and work queues: in a guest that goes away afterwards.

use std::collections::BTreeSet;
use std::io::Write;
use std::path::Path;

use pinfold::host::cgroup::NoteSubject;
use pinfold::host::knobs::{Knob, KnobKind, Knobs};
use pinfold::pin::cpu_isolation::{CpuIsolationOptions, CpuIsolator};

use super::kernel::kernel_tests;
use super::{ALL, situation};

/// Whether this whole machine is meant for a test.
pub(crate) fn is_ours() -> bool {
    std::env::var_os("PINFOLD_QUIET_TESTS").is_some_and(|value| value == "1")
}

#[test]
fn all_interrupts_and_work_queues_move_and_come_back() {
    if !is_ours() {
        // Past the capture of the test harness, which keeps what a passing test prints to itself.
        let line = "all_interrupts_and_work_queues_move_and_come_back: left to a guest (PINFOLD_QUIET_TESTS=1)\n";
        let _ = std::io::stderr().write_all(line.as_bytes());
        return;
    }
    let kernel = kernel_tests().unwrap();
    let tree = kernel.tree();
    let root = Path::new("/");
    let knobs = Knobs::new(root);
    let look = || knobs.read(&KnobKind::ALL.into()).unwrap();
    let before = look();
    println!(
        "{} knobs; unreadable: {:?}",
        before.values.len(),
        before.unreadable
    );
    let own = kernel
        .last()
        .union(&kernel.online.iter().nth(2).into_iter().collect());

    let mut keeper = CpuIsolator::new(root);
    let report = keeper.isolate(
        &situation(ALL, &own, &kernel.online),
        &kernel.cgroups,
        &tree.path,
    );
    println!(
        "exclusive {own}: {report:#?}\n{}",
        report.sentences().join("\n")
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
    let quiet = look();
    let touching: BTreeSet<&Knob> = quiet
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
        "the timer's interrupt is nobody's to move"
    );
    assert!(report.moved.len() > 5, "{report:?}");

    let again = keeper.isolate(
        &situation(ALL, &own, &kernel.online),
        &kernel.cgroups,
        &tree.path,
    );
    assert_eq!(
        (again.moved.len(), again.restored.len()),
        (0, 0),
        "{again:?}"
    );
    assert_eq!((again.away, &again.managed), (report.away, &report.managed));

    // Somebody else chooses another CPU for one of them; then the process that moved them dies.
    let other = quiet
        .values
        .iter()
        .find(|(knob, cpus)| matches!(knob, Knob::Irq(_)) && before.values[*knob] != **cpus);
    let (other, chosen) = (other.unwrap().0, kernel.first());
    knobs.set(other, &chosen).unwrap();
    let mut later = CpuIsolator::new(root);
    let report = later.isolate(
        &situation(CpuIsolationOptions::default(), &own, &kernel.online),
        &kernel.cgroups,
        &tree.path,
    );
    assert_eq!(report.failed, []);
    let mut expected = before;
    expected.values.insert(other.clone(), chosen);
    assert_eq!(look(), expected);
    assert_eq!(
        kernel
            .cgroups
            .note(&tree.path, NoteSubject::CpuIsolation)
            .unwrap(),
        None
    );
}
