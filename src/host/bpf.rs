//! BPF: maps, programs and links, by the system call itself.
//!
//! The crates that know more of it load programs from ELF objects, which takes a compiler or a library in C when Pinfold is
//! built. Five commands of one call are enough here. Everything is held by descriptors and pinned nowhere: it is gone with
//! the process, however that ends.

#![allow(unsafe_code)]

mod assembly;
mod call;

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use nix::libc;

pub use assembly::{Assembly, Jump, Register};

use super::file;
use crate::cpu::CpuSet;
use call::{Batch, Element, LinkCreate, MapCreate, ProgramLoad, ProgramQuery, bpf, make};

/// Which of a cgroup's packets a program sees; the numbers are the kernel's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// Those that its sockets receive.
    Ingress = 0,
    /// Those that its sockets send.
    Egress = 1,
}

/// Why BPF can't be used.
#[derive(Debug, thiserror::Error)]
pub enum BpfError {
    /// The kernel does not let this process.
    #[error(
        "the kernel does not let this process {operation}: give it CAP_BPF and CAP_NET_ADMIN (and, before Linux 5.11, enough \
         locked memory)"
    )]
    NotPermitted {
        /// The operation.
        operation: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
    /// Another program keeps the cgroup for itself.
    #[error(
        "the kernel does not let this process attach a BPF program to a cgroup: another program is attached to this cgroup or \
         to one above without BPF_F_ALLOW_MULTI, so no second program may be; find that program with `bpftool cgroup tree`, \
         and detach it or attach it with that flag"
    )]
    Conflict {
        /// The kernel's error.
        source: io::Error,
    },
    /// The kernel can't do it.
    #[error(
        "this kernel can't {operation}: it takes Linux 5.8 or newer, with CONFIG_BPF_SYSCALL and CONFIG_CGROUP_BPF{says}"
    )]
    Unsupported {
        /// The operation.
        operation: &'static str,
        /// The last line of what its verifier said.
        says: String,
        /// The kernel's error.
        source: io::Error,
    },
    /// Something else.
    #[error("can't {operation}")]
    Other {
        /// The operation.
        operation: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
}

/// A hash map with values of each CPU's own. Keys are `K` and values `V` numbers.
#[derive(Debug)]
pub struct PerCpuHash<const K: usize, const V: usize> {
    map: OwnedFd,
    /// For how many CPUs the kernel writes values: all that the machine can ever have.
    cpus: usize,
}

/// What a program keeps for itself, `V` numbers for each of `K`; where there is no room, what was not used for long is
/// forgotten.
#[derive(Debug)]
pub struct LruMap<const K: usize, const V: usize> {
    map: OwnedFd,
}

/// A key, and the sum of what the CPUs have.
pub type Entry<const K: usize, const V: usize> = ([u64; K], [u64; V]);

/// A program that sees the packets of cgroups.
#[derive(Debug)]
pub struct Program {
    program: OwnedFd,
    direction: Direction,
}

/// A program attached to a cgroup: until this is dropped, or the process ends, or the cgroup is removed.
#[derive(Debug)]
pub struct Link {
    _link: OwnedFd,
}

const MAP_CREATE: libc::c_int = 0;
const MAP_UPDATE: libc::c_int = 2;
const MAP_DELETE: libc::c_int = 3;
const PROGRAM_LOAD: libc::c_int = 5;
const PROGRAM_QUERY: libc::c_int = 16;
const MAP_LOOKUP_BATCH: libc::c_int = 24;
const LINK_CREATE: libc::c_int = 28;

const MAKE_MAP: &str = "make a BPF map";

const PER_CPU_HASH: u32 = 5;
const RECENT_HASH: u32 = 9;
/// Of a map: memory is taken for entries that are there, not for all that may come.
const NO_PREALLOCATION: u32 = 1;
const CGROUP_SKB: u32 = 8;

/// Entries read at once, at most.
const BATCH: usize = 256;

/// Bytes of values read at once, unless the entries of one hash bucket need more.
const READ: usize = 1 << 20;

/// What a verifier may say.
const LOG: usize = 64 * 1024;

/// A descriptor as the kernel's arguments have it. It is never negative.
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
    let mut bytes = [0; 16];
    bytes
        .iter_mut()
        .zip(name.bytes().take(15))
        .for_each(|(byte, letter)| *byte = letter);
    bytes
}

/// A new map, with keys and values of so many numbers.
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
        inner_map: 0,
        numa_node: 0,
        name: name(title),
    };
    // SAFETY: the argument points to nothing, and the command returns a new descriptor.
    unsafe { make(MAP_CREATE, &mut argument) }.map_err(|error| BpfError::new(MAKE_MAP, error))
}

fn size(numbers: usize) -> u32 {
    u32::try_from(8 * numbers).unwrap_or(u32::MAX)
}

/// How many entries to read at once. Each entry has values for all CPUs that the machine can ever have.
fn batch<const V: usize>(cpus: usize) -> usize {
    let entry = cpus.saturating_mul(8 * V).max(1);
    (READ / entry).clamp(1, BATCH)
}

// === impl Direction ===

impl Direction {
    /// How many programs, anybody's, are attached to a cgroup itself.
    ///
    /// # Errors
    /// See [`BpfError`].
    pub fn attached(self, cgroup: BorrowedFd<'_>) -> Result<u32, BpfError> {
        let mut argument = ProgramQuery {
            target: number(cgroup),
            attach_type: self as u32,
            flags: 0,
            attach_flags: 0,
            programs: 0,
            count: 0,
            _gap: 0,
            newer: [0; 4],
        };
        // SAFETY: with no room for any program, the kernel writes into the argument only.
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
    pub fn is_lasting(&self) -> bool {
        !matches!(self, Self::Conflict { .. } | Self::Other { .. })
    }
}

// === impl PerCpuHash ===

impl<const K: usize, const V: usize> PerCpuHash<K, V> {
    /// A new map for so many keys.
    ///
    /// # Errors
    /// See [`BpfError`].
    pub fn new(title: &str, max_entries: u32) -> Result<Self, BpfError> {
        // How much the kernel writes depends on the machine, so it is result there and not below the root of a configuration.
        let possible = file::read_value(Path::new("/sys/devices/system/cpu/possible")).ok();
        let cpus = possible
            .and_then(|list| list.parse::<CpuSet>().ok())
            .filter(|cpus| !cpus.is_empty());
        let unknown = || BpfError::Other {
            operation: MAKE_MAP,
            source: io::Error::other("/sys/devices/system/cpu/possible holds no list of CPUs"),
        };
        let cpus = cpus.ok_or_else(unknown)?.len();
        Ok(Self {
            map: map(title, PER_CPU_HASH, [K, V], max_entries, NO_PREALLOCATION)?,
            cpus,
        })
    }

    /// The descriptor by which a program names the map.
    pub fn descriptor(&self) -> i32 {
        self.map.as_raw_fd()
    }

    /// All entries.
    ///
    /// # Errors
    /// See [`BpfError`].
    pub fn entries(&self) -> Result<Vec<Entry<K, V>>, BpfError> {
        let mut found = Vec::new();
        let mut size = batch::<V>(self.cpus);
        let (mut keys, mut values) = (Vec::new(), Vec::new());
        let mut from: Option<[u64; 1]> = None;
        loop {
            keys.resize(size, [0_u64; K]);
            values.resize(size * self.cpus, [0_u64; V]);
            let mut to = [0_u64; 1];
            let mut argument = Batch {
                from: from.as_ref().map_or(0, |from| address(from)),
                to: address_mut(&mut to),
                keys: address_mut(&mut keys),
                values: address_mut(&mut values),
                count: u32::try_from(size).unwrap_or(u32::MAX),
                map: number(self.map.as_fd()),
                element_flags: 0,
                flags: 0,
            };
            // SAFETY: the kernel writes at most `count` keys of `8 * K` bytes, and as many values of `8 * V` bytes for each
            // CPU that the machine can have, which is the size of the two; a place in the map is four bytes.
            let read = unsafe { bpf(MAP_LOOKUP_BATCH, &mut argument) };
            let (last, count) = match read {
                Ok(_) => (false, argument.count),
                // There is nothing after these.
                Err(error) if error.raw_os_error() == Some(libc::ENOENT) => (true, argument.count),
                // More keys than this have the same hash.
                Err(error) if error.raw_os_error() == Some(libc::ENOSPC) => {
                    size *= 2;
                    continue;
                }
                Err(error) => return Err(BpfError::new("read a BPF map", error)),
            };
            let sum = |sum: [u64; V], one: &[u64; V]| {
                std::array::from_fn(|at| sum[at].wrapping_add(one[at]))
            };
            let sums = values
                .chunks(self.cpus)
                .map(|values| values.iter().fold([0; V], sum));
            found.extend(
                keys.iter()
                    .copied()
                    .zip(sums)
                    .take(usize::try_from(count).unwrap_or(0)),
            );
            if last {
                return Ok(found);
            }
            from = Some(to);
        }
    }

    /// Adds an entry of zeros, unless there is one.
    ///
    /// # Errors
    /// See [`BpfError`].
    pub fn add(&self, key: &[u64; K]) -> Result<(), BpfError> {
        const UNLESS_THERE: u64 = 1;
        let values = vec![[0_u64; V]; self.cpus];
        let map = number(self.map.as_fd());
        let mut argument = Element {
            map,
            _gap: 0,
            key: address(key),
            value: address(&values),
            flags: UNLESS_THERE,
        };
        // SAFETY: the kernel reads a key, and a value for each CPU that the machine can have.
        match unsafe { bpf(MAP_UPDATE, &mut argument) } {
            Err(error) if error.raw_os_error() != Some(libc::EEXIST) => {
                Err(BpfError::new("write to a BPF map", error))
            }
            _ => Ok(()),
        }
    }

    /// Deletes an entry; one that is not there is none.
    ///
    /// # Errors
    /// See [`BpfError`].
    pub fn delete(&self, key: &[u64; K]) -> Result<(), BpfError> {
        let mut argument = Element {
            map: number(self.map.as_fd()),
            _gap: 0,
            key: address(key),
            value: 0,
            flags: 0,
        };
        // SAFETY: the kernel reads a key.
        match unsafe { bpf(MAP_DELETE, &mut argument) } {
            Err(error) if error.raw_os_error() != Some(libc::ENOENT) => {
                Err(BpfError::new("delete from a BPF map", error))
            }
            _ => Ok(()),
        }
    }
}

// === impl LruMap ===

impl<const K: usize, const V: usize> LruMap<K, V> {
    /// A new one for so many keys.
    ///
    /// # Errors
    /// See [`BpfError`].
    pub fn new(title: &str, max_entries: u32) -> Result<Self, BpfError> {
        // Memory for all of them is taken now: the kernel refuses this kind without.
        Ok(Self {
            map: map(title, RECENT_HASH, [K, V], max_entries, 0)?,
        })
    }

    /// The descriptor by which a program names the map.
    pub fn descriptor(&self) -> i32 {
        self.map.as_raw_fd()
    }
}

// === impl Program ===

impl Program {
    /// Gives the kernel a program to check and translate. It stays as long as it is held here or attached.
    ///
    /// # Errors
    /// See [`BpfError`]; with what the verifier said last, where it said something.
    pub fn load(title: &str, assembly: &Assembly, direction: Direction) -> Result<Self, BpfError> {
        let bytes = assembly.bytes();
        let load = |log: &mut [u8]| {
            let mut argument = ProgramLoad {
                kind: CGROUP_SKB,
                instruction_count: u32::try_from(bytes.len() / 8).unwrap_or(u32::MAX),
                instructions: address(&bytes),
                license: c"Apache-2.0".as_ptr() as u64,
                log_level: u32::from(!log.is_empty()),
                log_size: u32::try_from(log.len()).unwrap_or(0),
                log: if log.is_empty() { 0 } else { address_mut(log) },
                kernel_version: 0,
                flags: 0,
                name: name(title),
                interface: 0,
                attach_type: direction as u32,
            };
            // SAFETY: the kernel reads the instructions and the license, and writes at most `log_size` bytes of the log; the
            // command returns a new descriptor.
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

    /// Attaches it to a cgroup of version 2, given by its open directory: it then sees the packets of all sockets that were
    /// made there and in cgroups below, beside what other programs do.
    ///
    /// # Errors
    /// See [`BpfError`].
    pub fn attach(&self, cgroup: BorrowedFd<'_>) -> Result<Link, BpfError> {
        let mut argument = LinkCreate {
            program: number(self.program.as_fd()),
            target: number(cgroup),
            attach_type: self.direction as u32,
            flags: 0,
        };
        // SAFETY: the argument points to nothing, and the command returns a new descriptor.
        let link = unsafe { make(LINK_CREATE, &mut argument) };
        link.map(|link| Link { _link: link })
            .map_err(|source| match source.raw_os_error() {
                // A process without the capabilities may not ask for the attached programs, either.
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
    fn an_error_says_what_to_do() {
        let by = |errno| BpfError::new("make a BPF map", io::Error::from_raw_os_error(errno));
        assert!(
            by(libc::EPERM)
                .to_string()
                .contains("CAP_BPF and CAP_NET_ADMIN")
        );
        assert!(by(libc::ENOSYS).to_string().contains("CONFIG_BPF_SYSCALL"));
        assert!(
            by(libc::EPERM).is_lasting()
                && by(libc::EINVAL).is_lasting()
                && !by(libc::ENOMEM).is_lasting()
        );
        assert_eq!(by(libc::ENOMEM).to_string(), "can't make a BPF map");
        let conflict = BpfError::Conflict {
            source: io::Error::from_raw_os_error(libc::EPERM),
        };
        assert!(
            !conflict.is_lasting() && !conflict.to_string().contains("CAP_BPF"),
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
