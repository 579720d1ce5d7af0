//! [`Taskstats`]: the sum of the scheduler's counts of all threads of a process, including ended
//! ones. A single request over generic netlink gives it; otherwise two files of each thread would
//! have to be read.
//!
//! Formats: Documentation/accounting/taskstats.rst and
//! include/uapi/linux/{taskstats,genetlink,netlink}.h.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::thread;
use std::time::Duration;

use nix::sys::socket::{MsgFlags, SockProtocol, recv};

use crate::host::netlink::{self, HEADER, number64};
use crate::host::proc::SchedulerCounts;

/// The netlink family that reports the numbers of all generic families.
const CONTROLLER: u16 = 0x10;
// The controller's command `CTRL_CMD_GETFAMILY`, and its attributes.
const GET_FAMILY: u8 = 3;
const FAMILY_ID: u16 = 1;
const FAMILY_NAME: u16 = 2;

// The command `TASKSTATS_CMD_GET` with the attribute `TASKSTATS_CMD_ATTR_TGID`. The answer has the
// attribute `TASKSTATS_TYPE_STATS` inside `TASKSTATS_TYPE_AGGR_TGID`.
const GET: u8 = 1;
const OF_PROCESS: u16 = 2;
const PROCESS: u16 = 5;
const STATS: u16 = 3;

/// The flag `NLM_F_REQUEST`.
const REQUEST: u16 = 1;

/// The length of the header of a generic netlink message.
const GENERIC: usize = 4;

/// The offset of the number of times that threads started to run on a CPU, which is 0 in a kernel
/// without delay accounting.
const RUNS: usize = 16;
/// Offsets of counters in `struct taskstats`. New fields have only ever been added at the end.
const RUN_DELAY: usize = 24;
const VOLUNTARY: usize = 272;
const INVOLUNTARY: usize = 280;

/// How often the test thread of `counts_ended_threads` sleeps. Each sleep is a voluntary context
/// switch.
const WAITS: u64 = 20;

/// A connection to the kernel's task accounting.
#[derive(Debug)]
pub struct Taskstats {
    socket: OwnedFd,
    family: u16,
    sequence: u32,
    buffer: Vec<u8>,
}

// === impl Taskstats ===

impl Taskstats {
    /// Connects, and requests the counts of the calling process once.
    ///
    /// # Errors
    /// The kernel lacks the accounting, or denies permission. Requests need CAP_NET_ADMIN and the
    /// machine's own process ids (`hostPID`). Kernels before 2026 forget the context switches of
    /// ended threads, which is an error, too.
    pub fn open() -> io::Result<Self> {
        let mut taskstats = Self {
            socket: netlink::open(SockProtocol::NetlinkGeneric)?,
            family: CONTROLLER,
            sequence: 0,
            buffer: vec![0; 8192],
        };
        let answer = taskstats.request(GET_FAMILY, FAMILY_NAME, b"TASKSTATS\0")?;
        let id = attribute(answer, FAMILY_ID).and_then(|id| id.first_chunk().copied());
        taskstats.family = u16::from_ne_bytes(
            id.ok_or_else(|| invalid_data("no number of the family TASKSTATS"))?,
        );
        let own = i32::try_from(std::process::id()).map_err(io::Error::other)?;
        let stats = taskstats
            .stats(own)?
            .ok_or_else(|| invalid_data("nothing about this process"))?;
        if number64(stats, RUNS).is_none_or(|runs| runs == 0) {
            return Err(invalid_data(
                "the kernel was built without CONFIG_TASK_DELAY_ACCT",
            ));
        }
        if !taskstats.counts_ended_threads(own)? {
            return Err(invalid_data(
                "the kernel forgets the context switches of threads that have ended",
            ));
        }
        Ok(taskstats)
    }

    /// Whether the counts of a process include the context switches of ended threads. To find out,
    /// a test thread sleeps some times and ends; its context switches must then be part of the
    /// process's count.
    fn counts_ended_threads(&mut self, own: i32) -> io::Result<bool> {
        let waits = |taskstats: &mut Self| -> io::Result<u64> {
            Ok(taskstats
                .of(own)?
                .map_or(0, |scheduled| scheduled.voluntary))
        };
        let before = waits(self)?;
        let waiting = || (0..WAITS).for_each(|_| thread::sleep(Duration::from_micros(50)));
        thread::Builder::new()
            .name("pinfold-probe".to_owned())
            .spawn(waiting)?
            .join()
            .ok();
        Ok(waits(self)?.saturating_sub(before) >= WAITS)
    }

    /// The counts of a process since its start; `None` for a missing process.
    ///
    /// # Errors
    /// The kernel refuses to answer.
    pub fn of(&mut self, pid: i32) -> io::Result<Option<SchedulerCounts>> {
        let too_few = || invalid_data("too few counters of a process");
        let stats = self.stats(pid)?;
        stats
            .map(|stats| scheduled(stats).ok_or_else(too_few))
            .transpose()
    }

    fn stats(&mut self, pid: i32) -> io::Result<Option<&[u8]>> {
        let answer = match self.request(GET, OF_PROCESS, &pid.to_ne_bytes()) {
            Ok(answer) => answer,
            Err(error) if error.raw_os_error() == Some(nix::libc::ESRCH) => return Ok(None),
            Err(error) => return Err(error),
        };
        let stats = attribute(answer, PROCESS).and_then(|process| attribute(process, STATS));
        stats
            .map(Some)
            .ok_or_else(|| invalid_data("no counters of a process"))
    }

    /// Sends a command with one attribute and returns the attributes of the answer.
    fn request(&mut self, command: u8, kind: u16, value: &[u8]) -> io::Result<&[u8]> {
        self.sequence = self.sequence.wrapping_add(1);
        let request = request_message(self.family, self.sequence, command, kind, value)?;
        // The kernel answers before `send` returns, or never.
        netlink::send(&self.socket, &request)?;
        let length = loop {
            let length = recv(self.socket.as_raw_fd(), &mut self.buffer, MsgFlags::empty())?;
            let mut received = self.buffer.get(..length).unwrap_or_default();
            // A late answer to an earlier request that was given up.
            let message = netlink::NetlinkMessage::take(&mut received);
            let Some(message) = message.filter(|message| message.sequence == self.sequence) else {
                continue;
            };
            if message.kind == netlink::ERROR {
                return Err(message.error());
            }
            break HEADER + message.content.len();
        };
        self.buffer
            .get(HEADER + GENERIC..length)
            .ok_or_else(|| invalid_data("an answer without content"))
    }
}

fn request_message(
    family: u16,
    sequence: u32,
    command: u8,
    kind: u16,
    value: &[u8],
) -> io::Result<Vec<u8>> {
    let attribute = netlink::attribute(kind, value)?;
    let content = [&[command, 1, 0, 0][..], &attribute].concat();
    netlink::message(family, REQUEST, sequence, &content)
}

fn attribute(mut attributes: &[u8], kind: u16) -> Option<&[u8]> {
    loop {
        let (found, value) = netlink::take_attribute(&mut attributes)?;
        if found == kind {
            return Some(value);
        }
    }
}

fn scheduled(stats: &[u8]) -> Option<SchedulerCounts> {
    Some(SchedulerCounts {
        voluntary: number64(stats, VOLUNTARY)?,
        involuntary: number64(stats, INVOLUNTARY)?,
        run_delay: number64(stats, RUN_DELAY)?,
    })
}

fn invalid_data(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn field(kind: u16, value: &[u8]) -> Vec<u8> {
        netlink::attribute(kind, value).unwrap()
    }

    #[test]
    fn attributes_are_found_and_malformed_bytes_are_nothing() {
        let mut stats = vec![0; 400];
        for (at, value) in [(RUN_DELAY, 7_u64), (VOLUNTARY, 8), (INVOLUNTARY, 9)] {
            stats[at..at + 8].copy_from_slice(&value.to_ne_bytes());
        }
        let inner = [field(OF_PROCESS, &[1, 2, 3]), field(STATS, &stats)].concat();
        let whole = [field(9, b"x"), field(PROCESS, &inner)].concat();
        let found = attribute(&whole, PROCESS).and_then(|inner| attribute(inner, STATS));
        let expected = SchedulerCounts {
            voluntary: 8,
            involuntary: 9,
            run_delay: 7,
        };
        assert_eq!(found.and_then(scheduled), Some(expected));
        assert_eq!(attribute(&whole, 77), None);
        assert_eq!(scheduled(&stats[..INVOLUNTARY + 7]), None);
        for end in 0..whole.len() {
            let cut = attribute(&whole[..end], PROCESS).and_then(|inner| attribute(inner, STATS));
            assert_eq!(cut.and_then(scheduled), None, "{end}");
        }
        // Lengths below the header's length, and a length beyond the end.
        for length in [0_u16, 1, 3, u16::MAX] {
            assert_eq!(
                attribute(&[&length.to_ne_bytes()[..], &[9, 0, 0, 0]].concat(), STATS),
                None
            );
        }
    }

    #[test]
    fn requests_are_padded() {
        let request = request_message(7, 3, GET, OF_PROCESS, &[1, 2, 3, 4, 5]).unwrap();
        let message = netlink::NetlinkMessage::take(&mut &request[..]).unwrap();
        assert_eq!((request.len(), message.kind, message.sequence), (32, 7, 3));
        assert_eq!(
            attribute(&request[HEADER + GENERIC..], OF_PROCESS),
            Some(&[1, 2, 3, 4, 5][..])
        );
    }
}
