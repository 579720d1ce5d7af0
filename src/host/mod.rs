//! The only door to the kernel: /proc, /sys, cgroupfs, netlink; every path under a root given to it.

pub mod topology;
