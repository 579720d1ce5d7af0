//! The `bpf` system call and the arguments of its commands.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

use nix::libc;

// The layout of each command's argument equals the command's part of the kernel's `union bpf_attr`,
// without padding between fields.

#[derive(Default)]
#[repr(C)]
pub(super) struct MapCreate {
    pub(super) kind: u32,
    pub(super) key_size: u32,
    pub(super) value_size: u32,
    pub(super) max_entries: u32,
    pub(super) flags: u32,
    pub(super) inner_map: u32,
    pub(super) numa_node: u32,
    pub(super) name: [u8; 16],
}

#[derive(Default)]
#[repr(C)]
pub(super) struct Element {
    pub(super) map: u32,
    pub(super) _gap: u32,
    pub(super) key: u64,
    pub(super) value: u64,
    pub(super) flags: u64,
}

#[repr(C)]
pub(super) struct Batch {
    pub(super) from: u64,
    pub(super) to: u64,
    pub(super) keys: u64,
    pub(super) values: u64,
    pub(super) count: u32,
    pub(super) map: u32,
    pub(super) element_flags: u64,
    pub(super) flags: u64,
}

#[derive(Default)]
#[repr(C)]
pub(super) struct ProgramLoad {
    pub(super) kind: u32,
    pub(super) instruction_count: u32,
    pub(super) instructions: u64,
    pub(super) license: u64,
    pub(super) log_level: u32,
    pub(super) log_size: u32,
    pub(super) log: u64,
    pub(super) kernel_version: u32,
    pub(super) flags: u32,
    pub(super) name: [u8; 16],
    pub(super) interface: u32,
    pub(super) attach_type: u32,
}

#[repr(C)]
pub(super) struct LinkCreate {
    pub(super) program: u32,
    pub(super) target: u32,
    pub(super) attach_type: u32,
    pub(super) flags: u32,
}

#[derive(Default)]
#[repr(C)]
pub(super) struct ProgramQuery {
    pub(super) target: u32,
    pub(super) attach_type: u32,
    pub(super) flags: u32,
    pub(super) attach_flags: u32,
    pub(super) programs: u64,
    pub(super) count: u32,
    pub(super) _gap: u32,
    /// Fields of newer kernels, unused and zero. Newer kernels always write a revision into the
    /// last field.
    pub(super) newer: [u64; 4],
}

/// Makes the system call. For some commands the result is a file descriptor; for all further
/// commands the result has no meaning.
///
/// # Safety
///
/// `argument` must be the argument of the command, as declared above. The addresses in `argument` must
/// point to memory that the command may read and write.
pub(super) unsafe fn bpf<A>(command: libc::c_int, argument: &mut A) -> io::Result<libc::c_int> {
    // SAFETY: the kernel reads and writes `size` bytes of the argument, which is borrowed
    // exclusively. The caller guarantees that the addresses in the argument are valid.
    let returned = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            command,
            std::ptr::from_mut(argument),
            size_of::<A>(),
        )
    };
    match libc::c_int::try_from(returned) {
        Ok(value) if value >= 0 => Ok(value),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Makes the system call for a command that returns a new file descriptor.
///
/// # Safety
///
/// As for [`bpf`]. The command must return a new file descriptor.
pub(super) unsafe fn make<A>(command: libc::c_int, argument: &mut A) -> io::Result<OwnedFd> {
    // SAFETY: the caller guarantees that the argument is valid.
    let descriptor = unsafe { bpf(command, argument) }?;
    // SAFETY: the kernel has just made the descriptor, so the descriptor has no owner yet.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_as_long_as_the_kernel_has_them() {
        assert_eq!(size_of::<MapCreate>(), 44);
        assert_eq!(size_of::<Element>(), 32);
        assert_eq!(size_of::<Batch>(), 56);
        assert_eq!(size_of::<ProgramLoad>(), 72);
        assert_eq!(size_of::<LinkCreate>(), 16);
        assert_eq!(size_of::<ProgramQuery>(), 64);
    }
}
