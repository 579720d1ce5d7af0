//! Performance counters of a CPU: cycles, instructions, and accesses to the last-level cache.
//!
//! There are two ways of counting:
//!
//! - Counters of a whole CPU count all tasks on it, at no cost for context switches. On an
//!   exclusive CPU, the counts are the owner's.
//! - Counters of a cgroup on a CPU count only while one of its tasks runs there. The kernel starts
//!   and stops them at every switch between cgroups, which costs time.
//!
//! The counters of a CPU form a group: they all count at the same times, and a single system call
//! reads all counts. The call interrupts the counted CPU for a moment.

// No safe bindings open each event of a group separately, so this module makes the system call
// itself and takes ownership of the returned descriptor.
#![allow(unsafe_code)]

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, FromRawFd};
use std::path::Path;

use nix::errno::Errno;
use nix::sys::resource::{Resource, getrlimit};
use perf_event_open_sys::{bindings, perf_event_open};

use crate::host::file;

/// The number of events in a group.
pub const EVENTS: usize = 4;

/// The number of words before a group's counts: the number of counts, the time enabled, and the
/// time running.
const HEAD: usize = 3;

const WORD: usize = size_of::<u64>();

/// An event, in the numbers of `perf_event_attr`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PerfEvent {
    /// The event's type: hardware, software, cache, or the type number of a driver.
    pub kind: u32,
    /// The event's number within the type.
    pub config: u64,
}

/// The events of a group, in the order of [`GroupCounts::values`].
pub type PerfEvents = [PerfEvent; EVENTS];

/// The general events "cache references" and "cache misses". Each kind of CPU counts another level.
const CACHE_EVENTS: [PerfEvent; 2] = [
    hardware(bindings::PERF_COUNT_HW_CACHE_REFERENCES),
    hardware(bindings::PERF_COUNT_HW_CACHE_MISSES),
];

const fn hardware(config: u32) -> PerfEvent {
    PerfEvent {
        kind: bindings::PERF_TYPE_HARDWARE,
        config: config as u64,
    }
}

/// The event of reads from the last-level cache with a given result: access or miss.
const fn last_level(result: u32) -> PerfEvent {
    let read = (bindings::PERF_COUNT_HW_CACHE_OP_READ as u64) << 8;
    let config = bindings::PERF_COUNT_HW_CACHE_LL as u64 | read | (result as u64) << 16;
    PerfEvent {
        kind: bindings::PERF_TYPE_HW_CACHE,
        config,
    }
}

/// Cycles, instructions, references and misses of the last-level cache. The machine's `proc` lies
/// below `root`.
///
/// The general event "cache references" counts another cache on each kind of CPU: the last level on
/// Intel CPUs, the second level on AMD CPUs, the first level on Arm CPUs. On all CPUs except
/// Intel's, references and misses are therefore counted by the events that Linux defines for the
/// last-level cache alone. If a CPU lacks these, the kernel refuses to open them.
pub fn hardware_events(root: &Path) -> PerfEvents {
    let [references, misses] = match cpu_info(root, "vendor_id").as_deref() {
        Some("GenuineIntel") => CACHE_EVENTS,
        _ => [
            bindings::PERF_COUNT_HW_CACHE_RESULT_ACCESS,
            bindings::PERF_COUNT_HW_CACHE_RESULT_MISS,
        ]
        .map(last_level),
    };
    let cycles = hardware(bindings::PERF_COUNT_HW_CPU_CYCLES);
    let instructions = hardware(bindings::PERF_COUNT_HW_INSTRUCTIONS);
    [cycles, instructions, references, misses]
}

/// References and misses of the second-level cache. The machine's `proc` and `sys` lie below
/// `root`. Only events with a name in Linux are used, because the number of an event without one
/// differs between CPU models.
///
/// # Errors
/// The reason, in words: the kernel has no names for the events, or the machine has CPUs of several
/// kinds.
pub fn second_level_cache_events(root: &Path) -> Result<[PerfEvent; 2], String> {
    let is_amd = cpu_info(root, "vendor_id").is_some_and(|vendor| vendor == "AuthenticAMD");
    let family = cpu_info(root, "cpu family").and_then(|family| family.parse::<u32>().ok());
    // On AMD CPUs since Zen, "cache references" means the second level
    // (arch/x86/events/amd/core.c).
    if is_amd && family.is_some_and(|family| family >= ZEN) {
        return Ok(CACHE_EVENTS);
    }
    // The Arm architecture defines numbers for the events, and the driver names those of the CPU in
    // sysfs.
    let devices = root.join("sys/bus/event_source/devices");
    let mut found = file::list(&devices)
        .unwrap_or_default()
        .into_iter()
        .filter_map(|device| {
            let named = |event: &str| named(&devices.join(&device.name), event);
            Some([named("l2d_cache")?, named("l2d_cache_refill")?])
        });
    let reason = "the kernel has no names for events of this CPU's second-level cache";
    let events = found.next().ok_or_else(|| reason.to_owned())?;
    match found.next() {
        Some(_) => Err(
            "this machine has several kinds of CPUs, and their second-level caches count differently"
                .to_owned(),
        ),
        None => Ok(events),
    }
}

/// A property of the first CPU, from `/proc/cpuinfo`.
fn cpu_info(root: &Path, name: &str) -> Option<String> {
    let info = file::read(&root.join("proc/cpuinfo")).ok()?;
    let mut lines = info.lines();
    let value = lines
        .find_map(|line| line.strip_prefix(name)?.split_once(':'))?
        .1;
    Some(value.trim().to_owned())
}

/// The family of the first Zen CPUs.
const ZEN: u32 = 0x17;

/// An event named by a driver: the number in the event's file (`event=0x0016`), and the driver's
/// type number.
fn named(device: &Path, event: &str) -> Option<PerfEvent> {
    let number = |text: &str| u64::from_str_radix(text.trim().strip_prefix("0x")?, 16).ok();
    let text = file::read_value(&device.join("events").join(event)).ok()?;
    let kind = file::read_value(&device.join("type")).ok()?;
    Some(PerfEvent {
        kind: kind.parse().ok()?,
        config: number(text.strip_prefix("event=")?)?,
    })
}

/// The number of descriptors available for counters: half of the process's soft limit.
pub fn descriptor_limit() -> usize {
    let soft = getrlimit(Resource::RLIMIT_NOFILE).map_or(0, |(soft, _)| soft);
    usize::try_from(soft / 2).unwrap_or(usize::MAX)
}

/// Why counters are unavailable.
#[derive(Debug, thiserror::Error)]
pub enum PerfError {
    /// The machine counts none of the events.
    #[error(
        "Linux finds no such hardware counters on this machine; a virtual machine needs a hypervisor that exposes the \
         CPU's performance monitoring unit"
    )]
    NoCounters,
    /// The kernel denies permission.
    #[error(
        "counting on whole CPUs is not permitted: give Pinfold CAP_PERFMON (or CAP_SYS_ADMIN) and a seccomp profile that \
         allows perf_event_open, or set /proc/sys/kernel/perf_event_paranoid to 0 or less"
    )]
    NotPermitted,
    /// The CPU is not online.
    #[error("CPU {0} is offline")]
    Offline(u32),
    /// Another error, for example too many open files.
    #[error("can't open counters on CPU {cpu}; if too many files are open, raise LimitNOFILE")]
    Open {
        cpu: u32,
        /// The kernel's error.
        source: io::Error,
    },
    /// Open counters can't be read.
    #[error("can't read the counters of CPU {cpu}")]
    Read {
        cpu: u32,
        /// The kernel's error.
        source: io::Error,
    },
}

/// The counts of a group since it was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct GroupCounts {
    /// Nanoseconds in which the group was enabled.
    pub enabled: u64,
    /// Nanoseconds in which the group counted. If the CPU has too few counters for all groups, they
    /// take turns, and this is less than `enabled`.
    pub running: u64,
    /// Each event's count during `running`; `None` for an event missing on the CPU.
    pub values: [Option<u64>; EVENTS],
}

/// The open counters of a CPU.
#[derive(Debug)]
pub struct CounterGroup {
    cpu: u32,
    /// The descriptors of the counters. Reading the first one returns all counts.
    files: Vec<File>,
    has: [bool; EVENTS],
}

// === impl CounterGroup ===

impl CounterGroup {
    /// Opens counters on a CPU and starts to count. Events missing on the CPU are left out.
    ///
    /// # Errors
    /// The CPU has none of the events, the kernel denies permission, or the CPU is offline.
    pub fn open(cpu: u32, events: &[PerfEvent]) -> Result<Self, PerfError> {
        Self::open_in(None, cpu, events)
    }

    /// Opens counters on a CPU for the tasks of a cgroup, given by its open directory; `None`
    /// counts all tasks.
    ///
    /// # Errors
    /// As for [`CounterGroup::open`]. Also, the cgroup hierarchy may not support performance
    /// counters.
    pub fn open_in(
        cgroup: Option<&File>,
        cpu: u32,
        events: &[PerfEvent],
    ) -> Result<Self, PerfError> {
        let mut group = Self {
            cpu,
            files: Vec::with_capacity(EVENTS),
            has: [false; EVENTS],
        };
        for (event, has) in events.iter().zip(&mut group.has) {
            match open(cpu, *event, group.files.first(), cgroup) {
                Ok(file) => {
                    group.files.push(file);
                    *has = true;
                }
                Err(errno) => refused(cpu, errno)?,
            }
        }
        if group.files.is_empty() {
            Err(PerfError::NoCounters)
        } else {
            Ok(group)
        }
    }

    pub fn has(&self) -> [bool; EVENTS] {
        self.has
    }

    /// Reads all counts; `None` if the counters ended because the CPU went offline.
    ///
    /// # Errors
    /// The kernel refuses to read.
    pub fn read(&self) -> Result<Option<GroupCounts>, PerfError> {
        let mut bytes = [0; (HEAD + EVENTS) * WORD];
        let Some(mut leader) = self.files.first() else {
            return Ok(None);
        };
        match leader.read(&mut bytes) {
            Ok(length) => Ok(decode(bytes.get(..length).unwrap_or_default(), self.has)),
            Err(error) if error.raw_os_error() == Some(Errno::ENODEV as i32) => Ok(None),
            Err(source) => Err(PerfError::Read {
                cpu: self.cpu,
                source,
            }),
        }
    }
}

/// What follows from an event that could not be opened: an error for the whole group, or `Ok` to
/// leave the event out. It is left out if the CPU lacks it, or can't count it together with the
/// rest of the group (EINVAL).
fn refused(cpu: u32, errno: Errno) -> Result<(), PerfError> {
    match errno {
        Errno::ENOENT | Errno::EOPNOTSUPP | Errno::EINVAL => Ok(()),
        Errno::ENOSYS => Err(PerfError::NoCounters),
        Errno::EACCES | Errno::EPERM => Err(PerfError::NotPermitted),
        Errno::ENODEV => Err(PerfError::Offline(cpu)),
        errno => Err(PerfError::Open {
            cpu,
            source: errno.into(),
        }),
    }
}

/// Opens an event on a CPU, for all tasks or for those of a cgroup. Without a leader, it leads a
/// new group.
fn open(
    cpu: u32,
    event: PerfEvent,
    leader: Option<&File>,
    cgroup: Option<&File>,
) -> Result<File, Errno> {
    let mut attr = bindings::perf_event_attr::default();
    attr.type_ = event.kind;
    attr.size = u32::try_from(size_of::<bindings::perf_event_attr>()).unwrap_or_default();
    attr.config = event.config;
    let times = bindings::PERF_FORMAT_TOTAL_TIME_ENABLED | bindings::PERF_FORMAT_TOTAL_TIME_RUNNING;
    attr.read_format = u64::from(bindings::PERF_FORMAT_GROUP | times);
    let cpu = i32::try_from(cpu).map_err(|_| Errno::ENODEV)?;
    let leader = leader.map_or(-1, AsRawFd::as_raw_fd);
    let (of, mode) = match cgroup {
        Some(directory) => (directory.as_raw_fd(), bindings::PERF_FLAG_PID_CGROUP),
        None => (-1, 0),
    };
    let flags = bindings::PERF_FLAG_FD_CLOEXEC | mode;
    // SAFETY: `attr` is a complete structure and outlives the call. The kernel reads it, and may
    // write the expected size into it. The request asks for counts without samples, so the kernel
    // writes to no other memory of the process.
    let fd = unsafe { perf_event_open(&raw mut attr, of, cpu, leader, flags.into()) };
    let fd = Errno::result(fd)?;
    // SAFETY: the kernel has just made the descriptor, and nobody else has it.
    Ok(unsafe { File::from_raw_fd(fd) })
}

/// Decodes the kernel's words: the number of values, the time enabled, the time running, the
/// values. `None` for a group that has ended: the kernel returns no words, or fewer values than
/// events were opened.
fn decode(bytes: &[u8], has: [bool; EVENTS]) -> Option<GroupCounts> {
    let mut words = bytes
        .chunks_exact(WORD)
        .filter_map(|word| Some(u64::from_ne_bytes(word.try_into().ok()?)));
    let opened = has.iter().filter(|has| **has).count();
    if words.next()? != opened as u64 {
        return None;
    }
    let (enabled, running) = (words.next()?, words.next()?);
    let mut values = [None; EVENTS];
    for (value, _) in values.iter_mut().zip(has).filter(|(_, has)| *has) {
        *value = Some(words.next()?);
    }
    Some(GroupCounts {
        enabled,
        running,
        values,
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn bytes(words: &[u64]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_ne_bytes()).collect()
    }

    #[test]
    fn a_reading_is_what_the_kernel_wrote() {
        let all = decode(&bytes(&[4, 100, 50, 1, 2, 3, 4]), [true; 4]);
        let values = [Some(1), Some(2), Some(3), Some(4)];
        assert_eq!(
            all,
            Some(GroupCounts {
                enabled: 100,
                running: 50,
                values
            })
        );
        let some = decode(&bytes(&[2, 100, 50, 1, 2]), [true, false, false, true]).unwrap();
        assert_eq!(some.values, [Some(1), None, None, Some(2)]);
    }

    #[test]
    fn an_ended_or_malformed_group_gives_no_reading() {
        for words in [
            &[][..],
            &[4],
            &[1, 100, 50, 1],
            &[4, 100, 50, 1, 2, 3],
            &[0, 0, 0],
        ] {
            assert_eq!(decode(&bytes(words), [true; 4]), None, "{words:?}");
        }
        assert_eq!(
            decode(&bytes(&[4, 100, 50, 1, 2, 3, 4])[..55], [true; 4]),
            None
        );
    }

    #[test]
    fn an_event_that_is_not_there_costs_only_itself() {
        for errno in [Errno::ENOENT, Errno::EOPNOTSUPP, Errno::EINVAL] {
            assert!(refused(3, errno).is_ok(), "{errno}");
        }
        assert!(matches!(
            refused(3, Errno::ENOSYS),
            Err(PerfError::NoCounters)
        ));
        assert!(matches!(
            refused(3, Errno::ENODEV),
            Err(PerfError::Offline(3))
        ));
        assert!(matches!(
            refused(3, Errno::EMFILE),
            Err(PerfError::Open { cpu: 3, .. })
        ));
        for errno in [Errno::EACCES, Errno::EPERM] {
            let text = refused(3, errno).unwrap_err().to_string();
            assert!(
                text.contains("perf_event_paranoid") && text.contains("CAP_PERFMON"),
                "{text}"
            );
        }
    }

    #[test]
    fn the_second_level_is_counted_where_linux_names_it() {
        let root = tempfile::tempdir().unwrap();
        let put = |file: &str, text: &str| {
            let file = root.path().join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        };
        let found = || {
            second_level_cache_events(root.path())
                .map(|events| events.map(|event| (event.kind, event.config)))
        };
        let intel = "vendor_id\t: GenuineIntel\ncpu family\t: 6\n";
        put("proc/cpuinfo", intel);
        assert!(found().unwrap_err().contains("no names"));
        put(
            "proc/cpuinfo",
            "vendor_id\t: AuthenticAMD\ncpu family\t: 21\n",
        );
        found().unwrap_err();
        put(
            "proc/cpuinfo",
            "vendor_id\t: AuthenticAMD\ncpu family\t: 25\n",
        );
        assert_eq!(found(), Ok([(0, 2), (0, 3)]));
        put("proc/cpuinfo", "CPU implementer\t: 0x41\n");
        let device = "sys/bus/event_source/devices/armv8_pmuv3_0";
        put(&format!("{device}/type"), "10\n");
        put(&format!("{device}/events/l2d_cache"), "event=0x0016\n");
        found().unwrap_err();
        put(
            &format!("{device}/events/l2d_cache_refill"),
            "event=0x0017\n",
        );
        assert_eq!(found(), Ok([(10, 0x16), (10, 0x17)]));
        for file in ["type", "events/l2d_cache", "events/l2d_cache_refill"] {
            put(
                &format!("sys/bus/event_source/devices/armv8_pmuv3_1/{file}"),
                "event=0x0016\n",
            );
        }
        put("sys/bus/event_source/devices/armv8_pmuv3_1/type", "11\n");
        assert!(found().unwrap_err().contains("several kinds"));
    }

    #[test]
    fn the_last_level_is_asked_for_by_name_where_the_general_events_are_another() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("proc")).unwrap();
        let of = |info: &str| {
            fs::write(root.path().join("proc/cpuinfo"), info).unwrap();
            hardware_events(root.path()).map(|event| (event.kind, event.config))
        };
        let intel = of("processor\t: 0\nvendor_id\t: GenuineIntel\n");
        assert_eq!(intel, [(0, 0), (0, 1), (0, 2), (0, 3)]);
        // The last-level cache (number 2), reads, results 0 (accesses) and 1 (misses).
        for other in ["vendor_id\t: AuthenticAMD\n", "CPU implementer\t: 0x41\n"] {
            assert_eq!(
                of(other),
                [(0, 0), (0, 1), (3, 2), (3, 0x1_0002)],
                "{other}"
            );
        }
    }
}
