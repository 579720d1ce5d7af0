//! The only module that talks to the kernel: /proc, /sys, cgroupfs, resctrl, perf, netlink, BPF.
//! The node's files are looked up below a root given by the caller, and those about this process or
//! its own kernel below the real root.
//!
//! The module contains no policy: functions read the state of the host, and write what callers give
//! them.

#![warn(clippy::too_many_lines, clippy::excessive_nesting)]

pub mod bpf;
pub mod busy;
pub mod cgroup;
pub mod container_files;
pub mod counters;
pub mod file;
pub mod knobs;
pub mod limits;
pub mod machine;
pub mod netlink;
pub mod netns;
#[cfg(feature = "sandbox")]
pub mod network_switch;
pub mod notify;
pub mod pci;
pub mod pod_resources;
pub mod proc;
#[cfg(feature = "sandbox")]
pub mod spawn;
pub mod topology;
pub mod watch;
