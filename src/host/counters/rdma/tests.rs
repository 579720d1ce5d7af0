use std::fs;

use super::*;

/// Writes the files of a device's port in the kernel's format.
pub(crate) fn port(root: &Path, device: &str, counters: &[(&str, &str)]) {
    let port = directory(root).join(device).join("ports/1");
    for (name, text) in counters {
        let file = port.join(name);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, format!("{text}\n")).unwrap();
    }
}

#[test]
fn only_what_the_kernel_shows_is_taken_hold_of() {
    let root = tempfile::tempdir().unwrap();
    port(root.path(), "mlx5_0", &[("state", "4: ACTIVE")]);
    assert!(
        DeviceDirectory::open(root.path()).is_none(),
        "a directory of anybody's"
    );
    // A symbolic link that points outside a container's root is not followed outside.
    let other = tempfile::tempdir().unwrap();
    fs::create_dir_all(other.path().join("sys")).unwrap();
    std::os::unix::fs::symlink("/sys/class", other.path().join("sys/class")).unwrap();
    assert!(DeviceDirectory::open(other.path()).is_none());
    // The machine's own directory, if it has RDMA devices.
    let held = DeviceDirectory::open(Path::new("/"));
    assert_eq!(held.is_some(), directory(Path::new("/")).is_dir());
    if let Some(held) = held {
        assert_eq!(
            ports(&held.path()).len(),
            ports(&directory(Path::new("/"))).len()
        );
    }
}

#[test]
fn devices_of_one_namespace_each_are_told_by_the_module() {
    let root = tempfile::tempdir().unwrap();
    assert!(!is_exclusive(root.path()));
    let mode = root.path().join("sys/module/ib_core/parameters/netns_mode");
    fs::create_dir_all(mode.parent().unwrap()).unwrap();
    for (text, exclusive) in [("Y\n", false), ("N\n", true)] {
        fs::write(&mode, text).unwrap();
        assert_eq!(is_exclusive(root.path()), exclusive);
    }
}

#[test]
fn ports_tell_what_they_count() {
    let root = tempfile::tempdir().unwrap();
    assert_eq!(ports(&directory(root.path())), []);
    let counters = [
        ("state", "4: ACTIVE"),
        ("counters/port_xmit_data", "1000"),
        ("counters/port_rcv_data", "2000"),
        ("counters/port_rcv_packets", "7"),
        ("counters/link_downed", "1"),
        ("counters/symbol_error", "N/A (no PMA)"),
        ("hw_counters/out_of_sequence", "3"),
        ("hw_counters/lifespan", "10"),
    ];
    port(root.path(), "mlx5_0", &counters);
    // The 32-bit counter of an older driver, at its maximum.
    let old = [
        ("counters/port_xmit_data", "4294967295"),
        ("counters_ext/port_xmit_data_64", "5000000000"),
    ];
    port(root.path(), "mlx4_0", &old);
    let ports = ports(&directory(root.path()));
    assert_eq!(
        ports
            .iter()
            .map(|port| port.device.as_str())
            .collect::<Vec<_>>(),
        ["mlx4_0", "mlx5_0"]
    );
    let count = |at: usize, name: &str| {
        ports[at].counts[COUNTERS.iter().position(|other| *other == name).unwrap()]
    };
    assert_eq!(
        count(0, "port_xmit_data"),
        Some(20_000_000_000),
        "words of four bytes"
    );
    assert_eq!(
        (count(1, "port_xmit_data"), count(1, "port_rcv_data")),
        (Some(4000), Some(8000))
    );
    assert_eq!(
        (count(1, "port_rcv_packets"), count(1, "link_downed")),
        (Some(7), Some(1))
    );
    assert_eq!(
        (count(1, "symbol_error"), count(1, "port_xmit_wait")),
        (None, None)
    );
    assert_eq!(
        (ports[1].port.as_str(), ports[1].state.as_deref()),
        ("1", Some("ACTIVE"))
    );
    assert_eq!(
        ports[1].hardware,
        [("out_of_sequence".to_owned(), 3)].into()
    );
    assert_eq!(ports[0].state, None);
}
