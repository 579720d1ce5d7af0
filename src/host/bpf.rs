//! BPF maps, programs and links, made directly by the `bpf` system call.
//!
//! The crate `aya` (0.14) is pure Rust and needs no C library either, but it costs more than it
//! saves: a static program that loads an object, attaches a program to a cgroup and reads a map has
//! 1.23 MB without aya and 1.83 MB with it, built like a release of Pinfold. Pinfold contains the
//! compiled instructions of two programs and needs only seven commands of the system call. All
//! maps, programs and links are held by file descriptors, and nothing is pinned in a BPF file
//! system, so the kernel removes everything when the process ends, for whatever reason.

#![allow(unsafe_code)]

pub mod sockets;

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::Path;

use nix::libc;

use super::file;
use crate::cpu::CpuSet;

/// The packets of a cgroup that a program processes. The numbers are the kernel's attach types.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// Packets received by the cgroup's sockets.
    Ingress = 0,
    /// Packets sent by the cgroup's sockets.
    Egress = 1,
}

/// Why BPF can't be used.
#[derive(Debug, thiserror::Error)]
pub enum BpfError {
    /// The kernel refuses the operation for lack of a capability or of locked memory.
    #[error(
        "the kernel does not let this process {operation}: give it CAP_BPF and CAP_NET_ADMIN (and, before Linux 5.11, enough \
         locked memory)"
    )]
    NotPermitted {
        operation: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
    /// Another program is attached to the cgroup, or to a cgroup above, and admits no second
    /// program.
    #[error(
        "the kernel does not let this process attach a BPF program to a cgroup: another program is attached to this \
         cgroup or to one above without BPF_F_ALLOW_MULTI; find the program with `bpftool cgroup tree`, and detach it \
         or attach it with that flag"
    )]
    Conflict {
        /// The kernel's error.
        source: io::Error,
    },
    #[error(
        "this kernel can't {operation}: Linux 5.8 or newer with CONFIG_BPF_SYSCALL and CONFIG_CGROUP_BPF is \
         needed{says}"
    )]
    Unsupported {
        operation: &'static str,
        /// The last line of the verifier's log.
        says: String,
        source: io::Error,
    },
    #[error("can't {operation}")]
    Other {
        operation: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
}

/// A hash map in which each CPU has its own value for a key. A key is `K` numbers, a value is `V`
/// numbers.
#[derive(Debug)]
pub struct PerCpuHash<const K: usize, const V: usize> {
    map: OwnedFd,
    /// The number of possible CPUs of the machine, because the kernel copies a value for each of
    /// them.
    cpus: usize,
}

/// A key, and the sum of its values on all CPUs.
pub type MapEntry<const K: usize, const V: usize> = ([u64; K], [u64; V]);

/// A program that processes the packets of cgroups.
#[derive(Debug)]
pub struct Program {
    program: OwnedFd,
    direction: Direction,
}

/// The attachment of a program to a cgroup. Dropping the link, the end of the process, or the
/// removal of the cgroup ends it.
#[derive(Debug)]
pub struct ProgramLink {
    _link: OwnedFd,
}

// The commands of the system call, by number.
const MAP_CREATE: libc::c_int = 0;
const MAP_UPDATE: libc::c_int = 2;
const MAP_DELETE: libc::c_int = 3;
const PROGRAM_LOAD: libc::c_int = 5;
const PROGRAM_QUERY: libc::c_int = 16;
const MAP_LOOKUP_BATCH: libc::c_int = 24;
const LINK_CREATE: libc::c_int = 28;

// Each of the following structures is the command's part of the kernel's `union bpf_attr`, without
// padding between fields.

#[derive(Default)]
#[repr(C)]
struct MapCreate {
    kind: u32,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
    flags: u32,
    inner_map: u32,
    numa_node: u32,
    name: [u8; 16],
}

#[derive(Default)]
#[repr(C)]
struct Element {
    map: u32,
    _gap: u32,
    key: u64,
    value: u64,
    flags: u64,
}

#[repr(C)]
struct BatchCommand {
    from: u64,
    to: u64,
    keys: u64,
    values: u64,
    count: u32,
    map: u32,
    element_flags: u64,
    flags: u64,
}

#[derive(Default)]
#[repr(C)]
struct ProgramLoad {
    kind: u32,
    instruction_count: u32,
    instructions: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log: u64,
    kernel_version: u32,
    flags: u32,
    name: [u8; 16],
    interface: u32,
    attach_type: u32,
}

#[repr(C)]
struct LinkCreate {
    program: u32,
    target: u32,
    attach_type: u32,
    flags: u32,
}

#[derive(Default)]
#[repr(C)]
struct ProgramQuery {
    target: u32,
    attach_type: u32,
    flags: u32,
    attach_flags: u32,
    programs: u64,
    count: u32,
    _gap: u32,
    /// Fields of newer kernels, unused and zero. Such kernels always write a revision into the last
    /// one.
    newer: [u64; 4],
}

/// Makes the system call. For some commands the result is a file descriptor; for the others it has
/// no meaning.
///
/// # Safety
///
/// `argument` must be the argument of the command, as declared above. The addresses in it must
/// point to memory that the command may read and write.
unsafe fn bpf<A>(command: libc::c_int, argument: &mut A) -> io::Result<libc::c_int> {
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
unsafe fn make<A>(command: libc::c_int, argument: &mut A) -> io::Result<OwnedFd> {
    // SAFETY: the caller guarantees that the argument is valid.
    let descriptor = unsafe { bpf(command, argument) }?;
    // SAFETY: the kernel has just made the descriptor, so it has no owner yet.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

const MAKE_MAP: &str = "make a BPF map";

// The map types `BPF_MAP_TYPE_PERCPU_HASH` and `BPF_MAP_TYPE_LRU_HASH`.
const PER_CPU_HASH: u32 = 5;
const LRU_HASH: u32 = 9;
/// A map flag: the kernel allocates memory per entry, not for `max_entries` in advance.
const NO_PREALLOCATION: u32 = 1;
/// The program type `BPF_PROG_TYPE_CGROUP_SKB`.
const CGROUP_SKB: u32 = 8;

/// The usual maximum number of entries per read. If a hash bucket has more, the buffer grows.
const BATCH: usize = 256;

/// The usual size of the values per read in bytes.
const READ: usize = 1 << 20;

/// The size of the buffer for the verifier's log in bytes.
const LOG: usize = 64 * 1024;

/// A file descriptor as a field of the kernel's arguments. File descriptors are never negative.
fn number(descriptor: BorrowedFd<'_>) -> u32 {
    descriptor.as_raw_fd().cast_unsigned()
}

fn address<T>(slice: &[T]) -> u64 {
    slice.as_ptr() as u64
}

fn address_mut<T>(slice: &mut [T]) -> u64 {
    slice.as_mut_ptr() as u64
}

fn name(name: &str) -> [u8; 16] {
    let mut letters = name.bytes().take(15);
    std::array::from_fn(|_| letters.next().unwrap_or_default())
}

/// Makes a map. `key` and `value` are the sizes in numbers of 8 bytes.
fn map(
    title: &str,
    kind: u32,
    [key, value]: [usize; 2],
    entries: u32,
    flags: u32,
) -> Result<OwnedFd, BpfError> {
    let mut argument = MapCreate {
        kind,
        key_size: size(key),
        value_size: size(value),
        max_entries: entries,
        flags,
        name: name(title),
        ..MapCreate::default()
    };
    // SAFETY: the argument contains no address, and the command returns a new descriptor.
    unsafe { make(MAP_CREATE, &mut argument) }.map_err(|error| BpfError::new(MAKE_MAP, error))
}

/// Makes a hash map for the state of a program, with room for `max_entries` keys. `sizes` are the
/// sizes of a key and of a value, in numbers of 8 bytes. When the map is full, it drops the least
/// recently used entry.
///
/// # Errors
/// See [`BpfError`].
pub fn lru_map(title: &str, sizes: [usize; 2], max_entries: u32) -> Result<OwnedFd, BpfError> {
    // The kernel requires preallocation for LRU maps, so this one takes its full memory now.
    map(title, LRU_HASH, sizes, max_entries, 0)
}

fn size(numbers: usize) -> u32 {
    u32::try_from(8 * numbers).unwrap_or(u32::MAX)
}

/// The number of entries per read. Each entry has a value for every possible CPU.
fn batch<const V: usize>(cpus: usize) -> usize {
    let entry = cpus.saturating_mul(8 * V).max(1);
    (READ / entry).clamp(1, BATCH)
}

// === impl Direction ===

impl Direction {
    /// The number of programs attached directly to a cgroup, whoever owns them.
    ///
    /// # Errors
    /// See [`BpfError`].
    pub fn attached(self, cgroup: BorrowedFd<'_>) -> Result<u32, BpfError> {
        let mut argument = ProgramQuery {
            target: number(cgroup),
            attach_type: self as u32,
            ..ProgramQuery::default()
        };
        // SAFETY: the argument has no buffer for programs, so the kernel writes only into the
        // argument itself.
        let result = unsafe { bpf(PROGRAM_QUERY, &mut argument) };
        result
            .map(|_| argument.count)
            .map_err(|error| BpfError::new("ask for a cgroup's BPF programs", error))
    }
}

// === impl BpfError ===

impl BpfError {
    fn new(operation: &'static str, source: io::Error) -> Self {
        match source.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => Self::NotPermitted { operation, source },
            Some(libc::ENOSYS | libc::EINVAL | libc::EOPNOTSUPP) => Self::Unsupported {
                operation,
                says: String::new(),
                source,
            },
            _ => Self::Other { operation, source },
        }
    }

    /// Whether the error lasts as long as this process runs.
    pub fn is_terminal(&self) -> bool {
        !matches!(self, Self::Conflict { .. } | Self::Other { .. })
    }
}

// === impl PerCpuHash ===

impl<const K: usize, const V: usize> PerCpuHash<K, V> {
    /// Makes a map with room for `max_entries` keys.
    ///
    /// # Errors
    /// See [`BpfError`].
    pub fn new(title: &str, max_entries: u32) -> Result<Self, BpfError> {
        // The values are copied by the kernel that runs this process. Its path therefore lies below
        // the real root, not below a configured one.
        let possible = file::read_value(Path::new("/sys/devices/system/cpu/possible"));
        let cpus: Option<CpuSet> = possible.ok().and_then(|list| list.parse().ok());
        let cpus = cpus.unwrap_or_default().len();
        if cpus == 0 {
            let source = io::Error::other("/sys/devices/system/cpu/possible holds no list of CPUs");
            return Err(BpfError::new(MAKE_MAP, source));
        }
        Ok(Self {
            map: map(title, PER_CPU_HASH, [K, V], max_entries, NO_PREALLOCATION)?,
            cpus,
        })
    }

    /// The descriptor of the map for a program's instructions.
    pub fn descriptor(&self) -> i32 {
        self.map.as_raw_fd()
    }

    /// Reads all entries.
    ///
    /// # Errors
    /// See [`BpfError`].
    pub fn entries(&self) -> Result<Vec<MapEntry<K, V>>, BpfError> {
        let mut found = Vec::new();
        let mut size = batch::<V>(self.cpus);
        let (mut keys, mut values) = (Vec::new(), Vec::new());
        let mut from: Option<[u64; 1]> = None;
        loop {
            keys.resize(size, [0_u64; K]);
            values.resize(size * self.cpus, [0_u64; V]);
            let mut to = [0_u64; 1];
            let mut argument = BatchCommand {
                from: from.as_ref().map_or(0, |from| address(from)),
                to: address_mut(&mut to),
                keys: address_mut(&mut keys),
                values: address_mut(&mut values),
                count: u32::try_from(size).unwrap_or(u32::MAX),
                map: number(self.map.as_fd()),
                element_flags: 0,
                flags: 0,
            };
            // SAFETY: the kernel writes at most `count` keys of `8 * K` bytes, and per key a value
            // of `8 * V` bytes for each possible CPU, which is exactly the size of both buffers.
            // The position in the map takes 4 of the 8 bytes in `to`.
            let read = unsafe { bpf(MAP_LOOKUP_BATCH, &mut argument) };
            let is_last = read.is_err();
            if let Err(error) = read {
                match error.raw_os_error() {
                    // ENOENT means that this batch is the last.
                    Some(libc::ENOENT) => {}
                    // ENOSPC means that a hash bucket has more keys than fit into the buffer.
                    Some(libc::ENOSPC) => {
                        size *= 2;
                        continue;
                    }
                    _ => return Err(BpfError::new("read a BPF map", error)),
                }
            }
            let sum = |sum: [u64; V], one: &[u64; V]| {
                std::array::from_fn(|at| sum[at].wrapping_add(one[at]))
            };
            let sums = values
                .chunks(self.cpus)
                .map(|values| values.iter().fold([0; V], sum));
            let count = argument.count as usize;
            found.extend(keys.iter().copied().zip(sums).take(count));
            if is_last {
                return Ok(found);
            }
            from = Some(to);
        }
    }

    /// Adds an entry of zeros, unless the key exists.
    ///
    /// # Errors
    /// See [`BpfError`].
    pub fn add(&self, key: &[u64; K]) -> Result<(), BpfError> {
        const NO_EXIST: u64 = 1;
        let values = vec![[0_u64; V]; self.cpus];
        let mut argument = Element {
            map: number(self.map.as_fd()),
            key: address(key),
            value: address(&values),
            flags: NO_EXIST,
            ..Element::default()
        };
        // SAFETY: the kernel reads the key, and a value for each possible CPU.
        match unsafe { bpf(MAP_UPDATE, &mut argument) } {
            Err(error) if error.raw_os_error() != Some(libc::EEXIST) => {
                Err(BpfError::new("write to a BPF map", error))
            }
            _ => Ok(()),
        }
    }

    /// Deletes an entry. A missing entry is no error.
    ///
    /// # Errors
    /// See [`BpfError`].
    pub fn delete(&self, key: &[u64; K]) -> Result<(), BpfError> {
        let mut argument = Element {
            map: number(self.map.as_fd()),
            key: address(key),
            ..Element::default()
        };
        // SAFETY: the kernel reads the key only.
        match unsafe { bpf(MAP_DELETE, &mut argument) } {
            Err(error) if error.raw_os_error() != Some(libc::ENOENT) => {
                Err(BpfError::new("delete from a BPF map", error))
            }
            _ => Ok(()),
        }
    }
}

// === impl Program ===

impl Program {
    /// Loads a program into the kernel, which verifies and compiles it, and keeps it until the
    /// handle and all links are dropped. An instruction is a word of 8 bytes, with the operation in
    /// the lowest byte and the operand in the upper half.
    ///
    /// # Errors
    ///
    /// See [`BpfError`]. The error contains the last line of the verifier's log, unless the log is
    /// empty.
    pub fn load(title: &str, instructions: &[u64], direction: Direction) -> Result<Self, BpfError> {
        let load = |log: &mut [u8]| {
            let mut argument = ProgramLoad {
                kind: CGROUP_SKB,
                instruction_count: u32::try_from(instructions.len()).unwrap_or(u32::MAX),
                instructions: address(instructions),
                license: c"Apache-2.0".as_ptr() as u64,
                log_level: u32::from(!log.is_empty()),
                log_size: u32::try_from(log.len()).unwrap_or(0),
                log: if log.is_empty() { 0 } else { address_mut(log) },
                name: name(title),
                attach_type: direction as u32,
                ..ProgramLoad::default()
            };
            // SAFETY: the kernel reads the instructions and the license, and writes at most
            // `log_size` bytes of the log. The command returns a new descriptor.
            unsafe { make(PROGRAM_LOAD, &mut argument) }
        };
        let error = match load(&mut []) {
            Ok(program) => return Ok(Self { program, direction }),
            Err(error) => BpfError::new("load a BPF program", error),
        };
        let mut log = vec![0; LOG];
        let again = load(&mut log);
        let text = String::from_utf8_lossy(&log);
        let said = text
            .trim_end_matches('\0')
            .lines()
            .rfind(|line| !line.trim().is_empty() && !line.starts_with("processed"));
        match (again, error, said) {
            (Ok(program), ..) => Ok(Self { program, direction }),
            (
                Err(_),
                BpfError::NotPermitted { operation, source }
                | BpfError::Unsupported {
                    operation, source, ..
                },
                Some(said),
            ) => Err(BpfError::Unsupported {
                operation,
                says: format!("; it says: {said}"),
                source,
            }),
            (Err(_), error, _) => Err(error),
        }
    }

    /// Attaches the program to a cgroup v2, given by its open directory. The program then processes
    /// the packets of all sockets made in the cgroup or below. Other programs of the cgroup stay in
    /// effect.
    ///
    /// # Errors
    /// See [`BpfError`].
    pub fn attach(&self, cgroup: BorrowedFd<'_>) -> Result<ProgramLink, BpfError> {
        let mut argument = LinkCreate {
            program: number(self.program.as_fd()),
            target: number(cgroup),
            attach_type: self.direction as u32,
            flags: 0,
        };
        // SAFETY: the argument contains no address, and the command returns a new descriptor.
        let link = unsafe { make(LINK_CREATE, &mut argument) };
        link.map(|link| ProgramLink { _link: link })
            .map_err(|source| match source.raw_os_error() {
                // EPERM has two causes: missing capabilities, or an attached program that admits no
                // second one. A successful query rules out the first.
                Some(libc::EPERM) if self.direction.attached(cgroup).is_ok() => {
                    BpfError::Conflict { source }
                }
                _ => BpfError::new("attach a BPF program to a cgroup", source),
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_as_long_as_the_kernel_has_them() {
        assert_eq!(size_of::<MapCreate>(), 44);
        assert_eq!(size_of::<Element>(), 32);
        assert_eq!(size_of::<BatchCommand>(), 56);
        assert_eq!(size_of::<ProgramLoad>(), 72);
        assert_eq!(size_of::<LinkCreate>(), 16);
        assert_eq!(size_of::<ProgramQuery>(), 64);
    }

    #[test]
    fn an_error_says_what_to_do() {
        let by = |errno| BpfError::new("make a BPF map", io::Error::from_raw_os_error(errno));
        assert!(
            by(libc::EPERM)
                .to_string()
                .contains("CAP_BPF and CAP_NET_ADMIN")
        );
        assert!(by(libc::ENOSYS).to_string().contains("CONFIG_BPF_SYSCALL"));
        assert!(
            by(libc::EPERM).is_terminal()
                && by(libc::EINVAL).is_terminal()
                && !by(libc::ENOMEM).is_terminal()
        );
        assert_eq!(by(libc::ENOMEM).to_string(), "can't make a BPF map");
        let conflict = BpfError::Conflict {
            source: io::Error::from_raw_os_error(libc::EPERM),
        };
        assert!(
            !conflict.is_terminal() && !conflict.to_string().contains("CAP_BPF"),
            "{conflict}"
        );
    }

    #[test]
    fn the_buffer_of_a_read_is_bounded() {
        assert_eq!((batch::<7>(2), batch::<7>(64)), (BATCH, BATCH));
        for cpus in [0, 1, 128, 1024, 8192, 100_000] {
            let entries = batch::<7>(cpus);
            assert!(
                entries >= 1 && (entries == 1 || entries * cpus * 7 * 8 <= READ),
                "{cpus} CPUs"
            );
        }
        assert_eq!(batch::<7>(usize::MAX), 1);
    }
}
