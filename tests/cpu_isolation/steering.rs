//! RPS and XPS of real interfaces, in a separate network namespace.

use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use pinfold::host::cgroup::NoteSubject;
use pinfold::host::knobs::{Knob, KnobKind, Knobs};
use pinfold::host::network_switch::NetworkSwitch;
use pinfold::pin::cpu_isolation::{CpuIsolationOptions, CpuIsolator};

use super::isolation_input;
use super::kernel::{Kernel, kernel_tests};

#[test]
fn packet_steering_of_a_veth_pair_is_isolated_and_restored() {
    let Some(kernel) = kernel_tests() else { return };
    let mut switch = NetworkSwitch::new().unwrap();
    let container = switch.join(Ipv4Addr::new(10, 77, 1, 1)).unwrap();
    container.run(|| in_namespace(&kernel)).unwrap();
}

fn in_namespace(kernel: &Kernel) {
    // The thread gets separate mounts, and with them a sysfs with the interfaces of the network namespace.
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
    let read_knobs = || knobs.read(&[KnobKind::PacketSteering].into()).unwrap();
    let queue = |device: &str| Knob::Receive {
        device: device.to_owned(),
        queue: 0,
    };
    let (eth0, lo) = (queue("eth0"), queue("lo"));
    let transmit = Knob::Transmit {
        device: "eth0".to_owned(),
        queue: 0,
    };
    let before = read_knobs();
    assert!(
        before.values[&eth0].is_empty(),
        "off is the default: {before:?}"
    );
    assert_eq!(before.unreadable.len(), 0, "{before:?}");
    knobs.set(&eth0, &kernel.online).unwrap();
    knobs.set(&transmit, &kernel.online).unwrap();
    let before = read_knobs();
    assert_eq!(
        (&before.values[&eth0], &before.values[&transmit]),
        (&kernel.online, &kernel.online)
    );

    let (own, shared) = (kernel.last(), kernel.all_but_one());
    let packet_steering = CpuIsolationOptions {
        packet_steering: true,
        ..CpuIsolationOptions::default()
    };
    let mut isolator = CpuIsolator::new(root);
    let report = isolator.isolate(
        &isolation_input(packet_steering, &own, &kernel.online),
        &kernel.cgroups,
        &tree.path,
    );
    assert_eq!(
        (report.moved.len(), report.away, report.failed.len()),
        (2, 2, 0),
        "{report:?}"
    );
    let isolated = read_knobs();
    assert_eq!(
        (&isolated.values[&eth0], &isolated.values[&transmit]),
        (&shared, &shared)
    );
    assert!(
        isolated.values[&lo].is_empty(),
        "a queue without steering stays without steering"
    );
    let note = kernel
        .cgroups
        .note(&tree.path, NoteSubject::CpuIsolation)
        .unwrap()
        .unwrap();
    assert!(note.contains(r#""receive":{"eth0":"0"}"#), "{note}");

    // The process that moved the queues died.
    let mut restarted = CpuIsolator::new(root);
    let report = restarted.isolate(
        &isolation_input(CpuIsolationOptions::default(), &own, &kernel.online),
        &kernel.cgroups,
        &tree.path,
    );
    assert_eq!(report.restored.len(), 2, "{report:?}");
    assert_eq!(read_knobs(), before);
    assert_eq!(
        kernel
            .cgroups
            .note(&tree.path, NoteSubject::CpuIsolation)
            .unwrap(),
        None
    );
}
