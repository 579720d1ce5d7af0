//! The only door to the kernel: /proc, /sys, cgroupfs, resctrl, perf, netlink, BPF; every path under a root given to it.
//!
//! It knows neither pods nor policy: it reads what is there, and writes what it is told to.

pub mod bpf;
pub mod busy;
pub mod cgroup;
pub mod diag;
pub mod file;
pub mod knobs;
pub mod limits;
mod link;
mod netlink;
pub mod netns;
pub mod notify;
pub mod pci;
pub mod perf;
pub mod pod_resources;
pub mod proc;
pub mod rdma;
pub mod resctrl;
pub mod sockets;
pub mod spawn;
pub mod taskstats;
pub mod topology;
pub mod watch;
