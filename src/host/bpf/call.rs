//! The system call, and its commands' arguments.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

use nix::libc;

// The arguments of the commands, laid out as in the kernel's `union bpf_attr`, with no gaps between the fields.

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

#[repr(C)]
pub(super) struct ProgramQuery {
    pub(super) target: u32,
    pub(super) attach_type: u32,
    pub(super) flags: u32,
    pub(super) attach_flags: u32,
    pub(super) programs: u64,
    pub(super) count: u32,
    pub(super) _gap: u32,
    /// Newer kernels write a revision at the end of these, whether it is asked for or not.
    pub(super) newer: [u64; 4],
}

/// The types that the kernel reads as a command's arguments.
///
/// # Safety
/// The type must be `repr(C)` and laid out as the kernel's for its command, without padding.
pub(super) unsafe trait Argument {}

// SAFETY: their fields stand in the order, and have the sizes, of the kernel's; each is aligned without gaps.
unsafe impl Argument for MapCreate {}
// SAFETY: the same.
unsafe impl Argument for Element {}
// SAFETY: the same.
unsafe impl Argument for Batch {}
// SAFETY: the same.
unsafe impl Argument for ProgramLoad {}
// SAFETY: the same.
unsafe impl Argument for LinkCreate {}
// SAFETY: the same.
unsafe impl Argument for ProgramQuery {}

/// Makes the call; what it returns is a descriptor or means nothing.
///
/// # Safety
/// What the addresses in `argument` point to must be there for the command to read and write.
pub(super) unsafe fn bpf<A: Argument>(
    command: libc::c_int,
    argument: &mut A,
) -> io::Result<libc::c_int> {
    // SAFETY: the kernel reads and writes `size` bytes of the argument, which is borrowed for us alone; the caller answers
    // for what it points to.
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

/// The same for a command that makes something.
///
/// # Safety
/// As for [`bpf`]; and the command must be one that returns a new descriptor.
pub(super) unsafe fn make<A: Argument>(
    command: libc::c_int,
    argument: &mut A,
) -> io::Result<OwnedFd> {
    // SAFETY: the caller answers for the argument.
    let descriptor = unsafe { bpf(command, argument) }?;
    // SAFETY: the kernel has just made it, and nobody else has it.
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
