//! RDMA devices (InfiniBand, RoCE, iWARP): the counters of each port, read from sysfs.
//!
//! Formats: Documentation/ABI/stable/sysfs-class-infiniband. In the shared mode of `rdma system`,
//! all network namespaces show a device. In the exclusive mode, only its own does.

use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};
use nix::sys::stat::Mode;
use nix::sys::statfs::{FsType, fstatfs};

use crate::host::file;

/// The file system type of sysfs (`SYSFS_MAGIC`).
const SYSFS: FsType = FsType(0x6265_6572);

/// The kernel's unit for counters of data, in bytes.
const WORD: u64 = 4;

/// The standard counters of a port, by file name.
pub const COUNTERS: [&str; 21] = [
    "port_xmit_data",
    "port_rcv_data",
    "port_xmit_packets",
    "port_rcv_packets",
    "unicast_xmit_packets",
    "unicast_rcv_packets",
    "multicast_xmit_packets",
    "multicast_rcv_packets",
    "port_xmit_discards",
    "port_xmit_wait",
    "port_xmit_constraint_errors",
    "port_rcv_errors",
    "port_rcv_constraint_errors",
    "port_rcv_remote_physical_errors",
    "port_rcv_switch_relay_errors",
    "symbol_error",
    "link_error_recovery",
    "link_downed",
    "local_link_integrity_errors",
    "excessive_buffer_overrun_errors",
    "VL15_dropped",
];

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RdmaPort {
    pub device: String,
    pub port: String,
    /// The port's state, like `ACTIVE`; `None` if unreadable.
    pub state: Option<String>,
    /// The counts in the order of [`COUNTERS`], data in bytes; `None` for a counter that the port
    /// lacks.
    pub counts: [Option<u64>; COUNTERS.len()],
    /// Additional counters of the driver, by the driver's own names.
    pub hardware: BTreeMap<String, u64>,
}

/// The directory of the devices below a root: the machine's, or that of a process, whose `/sys` may
/// show another network namespace.
pub fn directory(root: &Path) -> PathBuf {
    root.join("sys/class/infiniband")
}

/// Whether each device belongs to a single network namespace (`rdma system set netns exclusive`).
/// Otherwise all network namespaces show all devices.
pub fn is_exclusive(root: &Path) -> bool {
    let mode = root.join("sys/module/ib_core/parameters/netns_mode");
    file::read_value(&mode).is_ok_and(|mode| mode == "N")
}

/// An open directory of devices. A container can replace what is at a path, but not an open
/// directory.
#[derive(Debug)]
pub struct DeviceDirectory(OwnedFd);

// === impl DeviceDirectory ===

impl DeviceDirectory {
    /// Opens the directory below the root of a process, with symbolic links resolved within the root.
    /// `None` where the directory cannot be opened or is not part of sysfs.
    pub fn open(root: &Path) -> Option<Self> {
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let root = nix::fcntl::open(root, flags, Mode::empty()).ok()?;
        let within = ResolveFlag::RESOLVE_IN_ROOT | ResolveFlag::RESOLVE_NO_MAGICLINKS;
        let how = OpenHow::new().flags(flags).resolve(within);
        let directory = openat2(&root, directory(Path::new("")).as_path(), how).ok()?;
        let genuine = fstatfs(&directory).is_ok_and(|found| found.filesystem_type() == SYSFS);
        genuine.then_some(Self(directory))
    }

    pub fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.0.as_raw_fd()))
    }
}

/// All ports of all devices in a directory. An unreadable file counts as missing.
pub fn ports(directory: &Path) -> Vec<RdmaPort> {
    let mut ports = Vec::new();
    for device in names(directory) {
        let all = directory.join(&device).join("ports");
        for port in names(&all) {
            ports.push(read(&all.join(&port), &device, &port));
        }
    }
    ports
}

fn read(port: &Path, device: &str, number: &str) -> RdmaPort {
    let counters = port.join("counters");
    let counts = COUNTERS.map(|name| {
        // Older drivers have 32-bit counters, which stop at their maximum. The directory
        // `counters_ext` then holds 64-bit versions.
        let wide = count(&port.join("counters_ext").join(format!("{name}_64")));
        let count = wide.or_else(|| count(&counters.join(name)))?;
        Some(if matches!(name, "port_xmit_data" | "port_rcv_data") {
            count.saturating_mul(WORD)
        } else {
            count
        })
    });
    let directory = port.join("hw_counters");
    let hardware = names(&directory)
        .into_iter()
        .filter(|name| name != "lifespan");
    let hardware = hardware
        .filter_map(|name| Some((name.clone(), count(&directory.join(name))?)))
        .collect();
    // For example `4: ACTIVE`.
    let state = file::read_value(&port.join("state")).ok();
    let state = state.and_then(|text| Some(text.split_once(": ")?.1.to_owned()));
    RdmaPort {
        device: device.to_owned(),
        port: number.to_owned(),
        state,
        counts,
        hardware,
    }
}

/// The number in a file; `None` without a number, for example for `N/A (no PMA)`.
fn count(path: &Path) -> Option<u64> {
    file::read_value(path).ok()?.parse().ok()
}

/// The names in a directory; empty where the directory can't be listed.
fn names(directory: &Path) -> Vec<String> {
    let entries = file::list(directory).unwrap_or_default();
    entries.into_iter().map(|entry| entry.name).collect()
}

#[cfg(test)]
pub(crate) mod tests;
