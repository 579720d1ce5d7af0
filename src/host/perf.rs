//! Counters of a CPU, whatever runs on it: cycles, instructions, and what its last-level cache was asked for.
//!
//! They belong to a CPU and not to a cgroup or a process: nothing is done when tasks take turns, and where a CPU has one owner
//! what it counts is the owner's. Those that are opened for a cgroup count on a CPU while its tasks run there; the kernel
//! switches them with the tasks, which costs every switch between cgroups something. The counters of a CPU are one group, counted at the same times and read with one call. A
//! read interrupts the CPU for a moment.

// There are no safe bindings that open each event of a group by itself. The call and the descriptor that it returns are here.
#![allow(unsafe_code)]

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, FromRawFd};
use std::path::Path;

use nix::errno::Errno;
use nix::sys::resource::{Resource, getrlimit};
use perf_event_open_sys::{bindings, perf_event_open};

use super::file;

/// Events that are counted together.
pub const EVENTS: usize = 4;

/// What the kernel writes before the values of a group: how many there are, and two times.
const HEAD: usize = 3;

/// The length of a number.
const WORD: usize = size_of::<u64>();

/// One kind of event, as the kernel names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event {
    /// Hardware, software, a cache.
    kind: u32,
    /// Which of that kind.
    config: u64,
}

/// What is counted, in this order.
pub type Events = [Event; EVENTS];

/// Events that the kernel counts by itself, on any machine. What counts these is what counts in hardware. The clocks are not
/// among them: Linux 6.18 was seen to leave events of another kind out of a group that a clock leads, and clocks out of others.
pub const SOFTWARE: Events = [
    software(bindings::PERF_COUNT_SW_CONTEXT_SWITCHES),
    software(bindings::PERF_COUNT_SW_PAGE_FAULTS),
    software(bindings::PERF_COUNT_SW_PAGE_FAULTS_MIN),
    software(bindings::PERF_COUNT_SW_CPU_MIGRATIONS),
];

const fn software(config: u32) -> Event {
    Event {
        kind: bindings::PERF_TYPE_SOFTWARE,
        config: config as u64,
    }
}

const fn hardware_event(config: u32) -> Event {
    Event {
        kind: bindings::PERF_TYPE_HARDWARE,
        config: config as u64,
    }
}

/// What is read from the last-level cache, by its result.
const fn last_level(result: u32) -> Event {
    let read = (bindings::PERF_COUNT_HW_CACHE_OP_READ as u64) << 8;
    let config = bindings::PERF_COUNT_HW_CACHE_LL as u64 | read | (result as u64) << 16;
    Event {
        kind: bindings::PERF_TYPE_HW_CACHE,
        config,
    }
}

/// Cycles, instructions, references and misses of the last-level cache, on the machine whose `proc` lies below `root`.
///
/// What Linux calls "cache references" is the last-level cache on Intel's CPUs alone: on AMD's it is the second level, and on
/// Arm's the first. Elsewhere the last-level cache is asked for by its name, and a CPU that can't count it says so.
pub fn hardware(root: &Path) -> Events {
    let info = file::read_optional(&root.join("proc/cpuinfo"))
        .ok()
        .flatten()
        .unwrap_or_default();
    let vendor = info
        .lines()
        .find_map(|line| line.strip_prefix("vendor_id")?.split_once(':'));
    let [references, misses] = match vendor.map(|(_, name)| name.trim()) {
        Some("GenuineIntel") => [
            bindings::PERF_COUNT_HW_CACHE_REFERENCES,
            bindings::PERF_COUNT_HW_CACHE_MISSES,
        ]
        .map(hardware_event),
        _ => [
            bindings::PERF_COUNT_HW_CACHE_RESULT_ACCESS,
            bindings::PERF_COUNT_HW_CACHE_RESULT_MISS,
        ]
        .map(last_level),
    };
    let [cycles, instructions] = [
        bindings::PERF_COUNT_HW_CPU_CYCLES,
        bindings::PERF_COUNT_HW_INSTRUCTIONS,
    ]
    .map(hardware_event);
    [cycles, instructions, references, misses]
}

/// References and misses of the second-level cache, on the machine whose `proc` and `sys` lie below `root`; or why there are
/// none. Only events that Linux itself names are taken: raw numbers differ from one model to the next.
///
/// # Errors
/// The kernel has no names for them here.
pub fn second_level(root: &Path) -> Result<[Event; 2], String> {
    let info = file::read_optional(&root.join("proc/cpuinfo"))
        .ok()
        .flatten()
        .unwrap_or_default();
    let of = |name: &str| {
        info.lines()
            .find_map(|line| Some(line.strip_prefix(name)?.split_once(':')?.1.trim()))
    };
    let family = of("cpu family").and_then(|family| family.parse::<u32>().ok());
    // What Linux calls "cache references" is the second level on AMD's CPUs since Zen (arch/x86/events/amd/core.c).
    if of("vendor_id") == Some("AuthenticAMD") && family.is_some_and(|family| family >= ZEN) {
        return Ok([
            bindings::PERF_COUNT_HW_CACHE_REFERENCES,
            bindings::PERF_COUNT_HW_CACHE_MISSES,
        ]
        .map(hardware_event));
    }
    // Arm's architecture has numbers for them, and the driver names those that the CPU has.
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
            "this machine has CPUs of several kinds, whose second-level caches count differently"
                .to_owned(),
        ),
        None => Ok(events),
    }
}

/// The first family of Zen.
const ZEN: u32 = 0x17;

/// An event that a driver names: `event=0x0016` in its folder, and the number of its kind.
fn named(device: &Path, event: &str) -> Option<Event> {
    let number = |text: &str| u64::from_str_radix(text.trim().strip_prefix("0x")?, 16).ok();
    let text = file::read_value_optional(&device.join("events").join(event))
        .ok()
        .flatten()?;
    let kind = file::read_value_optional(&device.join("type"))
        .ok()
        .flatten()?;
    Some(Event {
        kind: kind.parse().ok()?,
        config: number(text.strip_prefix("event=")?)?,
    })
}

/// How many descriptors counters may take: half of what the process may have open.
pub fn descriptors() -> usize {
    let soft = getrlimit(Resource::RLIMIT_NOFILE).map_or(0, |(soft, _)| soft);
    usize::try_from(soft / 2).unwrap_or(usize::MAX)
}

/// Why there are no counters.
#[derive(Debug, thiserror::Error)]
pub enum PerfError {
    /// None of the events can be counted.
    #[error(
        "this machine has no such counters that Linux knows of; a virtual machine has them if its hypervisor passes the \
         CPU's performance monitoring unit on"
    )]
    NotHere,
    /// The kernel does not let us.
    #[error(
        "counting on whole CPUs is not permitted: give Pinfold CAP_PERFMON (or CAP_SYS_ADMIN) and a seccomp profile that \
         allows perf_event_open, or set /proc/sys/kernel/perf_event_paranoid to 0 or less"
    )]
    NotPermitted,
    /// The CPU is not online.
    #[error("CPU {0} is offline")]
    Offline(u32),
    /// Something else: descriptors have run out, for example.
    #[error(
        "can't open counters on CPU {cpu}; too many open files are cured by a higher limit (LimitNOFILE=)"
    )]
    Open {
        /// The CPU.
        cpu: u32,
        /// The kernel's error.
        source: io::Error,
    },
    /// What was opened can't be read.
    #[error("can't read the counters of CPU {cpu}")]
    Read {
        /// The CPU.
        cpu: u32,
        /// The kernel's error.
        source: io::Error,
    },
}

/// What a group has counted since it was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Reading {
    /// For how long it was to count, in nanoseconds.
    pub enabled: u64,
    /// For how long it did: less where there are more events than the CPU can count at once, and they take turns.
    pub running: u64,
    /// Each event's count while it ran; `None` for one that this CPU does not have.
    pub values: [Option<u64>; EVENTS],
}

/// The open counters of one CPU.
#[derive(Debug)]
pub struct Group {
    cpu: u32,
    /// The first of them stands for all; the others are kept open and never read.
    files: Vec<File>,
    /// Which of the events were opened.
    has: [bool; EVENTS],
}

// === impl Group ===

impl Group {
    /// Opens counters on a CPU, which count from now on. An event that the CPU does not have is left out.
    ///
    /// # Errors
    /// Not one of the events is to be had, or none may be, or the CPU is not online.
    pub fn open(cpu: u32, events: &[Event]) -> Result<Self, PerfError> {
        Self::of(cpu, events, None)
    }

    /// The same, of the tasks of a cgroup alone, whose folder this is.
    ///
    /// # Errors
    /// As of a whole CPU; or the hierarchy is not one by which events are counted.
    pub fn open_in(cgroup: &File, cpu: u32, events: &[Event]) -> Result<Self, PerfError> {
        Self::of(cpu, events, Some(cgroup))
    }

    fn of(cpu: u32, events: &[Event], cgroup: Option<&File>) -> Result<Self, PerfError> {
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
            Err(PerfError::NotHere)
        } else {
            Ok(group)
        }
    }

    /// Which of the events this CPU has.
    pub fn has(&self) -> [bool; EVENTS] {
        self.has
    }

    /// Reads them all; `None` where the counters have ended, because the CPU went offline.
    ///
    /// # Errors
    /// The kernel refuses to read.
    pub fn read(&self) -> Result<Option<Reading>, PerfError> {
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

/// What becomes of the group when an event can't be opened: nothing, if the CPU just doesn't have it, or can't count it beside
/// the others (EINVAL).
fn refused(cpu: u32, errno: Errno) -> Result<(), PerfError> {
    match errno {
        Errno::ENOENT | Errno::EOPNOTSUPP | Errno::EINVAL => Ok(()),
        Errno::ENOSYS => Err(PerfError::NotHere),
        Errno::EACCES | Errno::EPERM => Err(PerfError::NotPermitted),
        Errno::ENODEV => Err(PerfError::Offline(cpu)),
        errno => Err(PerfError::Open {
            cpu,
            source: errno.into(),
        }),
    }
}

/// Opens one event on a CPU, whoever runs there or of a cgroup alone, as the first of a group or as one more in it.
fn open(
    cpu: u32,
    event: Event,
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
        Some(folder) => (folder.as_raw_fd(), bindings::PERF_FLAG_PID_CGROUP),
        None => (-1, 0),
    };
    let flags = bindings::PERF_FLAG_FD_CLOEXEC | mode;
    // SAFETY: `attr` is a whole structure that outlives the call, which reads it, and may write to it the size that it wanted.
    // It asks for counting alone: no samples, so that the kernel writes to no other memory of ours.
    let fd = unsafe { perf_event_open(&raw mut attr, of, cpu, leader, flags.into()) };
    let fd = Errno::result(fd)?;
    // SAFETY: the kernel has just made this descriptor, and nobody else knows it.
    Ok(unsafe { File::from_raw_fd(fd) })
}

/// The numbers as the kernel writes them: how many values, the time enabled, the time running, the values. Nothing at all, or
/// fewer values than were opened, come from a group that has ended.
fn decode(bytes: &[u8], has: [bool; EVENTS]) -> Option<Reading> {
    let mut words = bytes
        .chunks_exact(WORD)
        .filter_map(|word| Some(u64::from_ne_bytes(word.try_into().ok()?)));
    let opened = has.iter().filter(|has| **has).count();
    if usize::try_from(words.next()?).ok()? != opened {
        return None;
    }
    let (enabled, running) = (words.next()?, words.next()?);
    let mut values = [None; EVENTS];
    for (value, _) in values.iter_mut().zip(has).filter(|(_, has)| *has) {
        *value = Some(words.next()?);
    }
    Some(Reading {
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
            Some(Reading {
                enabled: 100,
                running: 50,
                values
            })
        );
        let some = decode(&bytes(&[2, 100, 50, 1, 2]), [true, false, false, true]).unwrap();
        assert_eq!(some.values, [Some(1), None, None, Some(2)]);
    }

    #[test]
    fn what_has_ended_is_no_reading() {
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
        assert!(matches!(refused(3, Errno::ENOSYS), Err(PerfError::NotHere)));
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
            second_level(root.path()).map(|events| events.map(|event| (event.kind, event.config)))
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
            hardware(root.path()).map(|event| (event.kind, event.config))
        };
        let intel = of("processor\t: 0\nvendor_id\t: GenuineIntel\n");
        assert_eq!(intel, [(0, 0), (0, 1), (0, 2), (0, 3)]);
        // The third cache, reads, results 0 (accesses) and 1 (misses).
        for other in ["vendor_id\t: AuthenticAMD\n", "CPU implementer\t: 0x41\n"] {
            assert_eq!(
                of(other),
                [(0, 0), (0, 1), (3, 2), (3, 0x1_0002)],
                "{other}"
            );
        }
    }
}
