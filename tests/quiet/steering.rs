//! RPS and XPS of real interfaces, in a network namespace of their own.

use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use pinfold::host::cgroup::NoteSubject;
use pinfold::host::knobs::{Knob, KnobKind, Knobs};
use pinfold::host::netns::Switch;
use pinfold::pin::cpu_isolation::{CpuIsolationOptions, CpuIsolator};

use super::kernel::{Kernel, kernel_tests};
use super::situation;

#[test]
fn a_veth_pair_is_steered_away_and_back() {
    let Some(kernel) = kernel_tests() else { return };
    let mut switch = Switch::new().unwrap();
    let container = switch.join(Ipv4Addr::new(10, 77, 1, 1)).unwrap();
    container.run(|| in_namespace(&kernel)).unwrap();
}

fn in_namespace(kernel: &Kernel) {
    // This thread gets mounts of its own, and with them a sysfs that shows this namespace's interfaces.
    let root = tempfile::tempdir().unwrap();
    let sys = root.path().join("sys");
    fs::create_dir(&sys).unwrap();
    unshare(CloneFlags::CLONE_NEWNS).unwrap();
    let none = None::<&str>;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).unwrap();
    mount(Some("sysfs"), &sys, Some("sysfs"), MsFlags::empty(), none).unwrap();
    steer(kernel, root.path());
    nix::mount::umount(&sys).unwrap();
}

fn steer(kernel: &Kernel, root: &Path) {
    let tree = kernel.tree();
    let knobs = Knobs::new(root);
    let look = || knobs.read(&[KnobKind::PacketSteering].into()).unwrap();
    let queue = |device: &str| Knob::Receive {
        device: device.to_owned(),
        queue: 0,
    };
    let (eth0, lo) = (queue("eth0"), queue("lo"));
    let send = Knob::Transmit {
        device: "eth0".to_owned(),
        queue: 0,
    };
    let before = look();
    assert!(
        before.values[&eth0].is_empty(),
        "off is the default: {before:?}"
    );
    assert_eq!(before.unreadable.len(), 0, "{before:?}");
    knobs.set(&eth0, &kernel.online).unwrap();
    knobs.set(&send, &kernel.online).unwrap();
    let before = look();
    assert_eq!(
        (&before.values[&eth0], &before.values[&send]),
        (&kernel.online, &kernel.online)
    );

    let (own, rest) = (kernel.last(), kernel.all_but_one());
    let only = CpuIsolationOptions {
        packet_steering: true,
        ..CpuIsolationOptions::default()
    };
    let mut keeper = CpuIsolator::new(root);
    let report = keeper.isolate(
        &situation(only, &own, &kernel.online),
        &kernel.cgroups,
        &tree.path,
    );
    assert_eq!(
        (report.moved.len(), report.away, report.failed.len()),
        (2, 2, 0),
        "{report:?}"
    );
    let quiet = look();
    assert_eq!((&quiet.values[&eth0], &quiet.values[&send]), (&rest, &rest));
    assert!(quiet.values[&lo].is_empty(), "what is off stays off");
    let note = kernel
        .cgroups
        .note(&tree.path, NoteSubject::CpuIsolation)
        .unwrap()
        .unwrap();
    assert!(note.contains(r#""receive":{"eth0":"0"}"#), "{note}");

    // The process that moved them died.
    let mut later = CpuIsolator::new(root);
    let report = later.isolate(
        &situation(CpuIsolationOptions::default(), &own, &kernel.online),
        &kernel.cgroups,
        &tree.path,
    );
    assert_eq!(report.restored.len(), 2, "{report:?}");
    assert_eq!(look(), before);
    assert_eq!(
        kernel
            .cgroups
            .note(&tree.path, NoteSubject::CpuIsolation)
            .unwrap(),
        None
    );
}
