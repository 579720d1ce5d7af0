//! The only door to the kernel: /proc, /sys, cgroupfs, netlink; every path under a root given to it.

mod link;
pub mod netns;
pub mod online;
pub mod spawn;
