//! Counters of a process's network namespace, of its interfaces and of TCP, read through the process.
//!
//! No file stays open, because it would keep the namespace alive after the pod's end.

use super::Proc;
use crate::host::file::Reader;
use crate::host::netns::NetnsRef;

/// Counters of a network interface since it was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct InterfaceTraffic {
    pub receive: PacketCounts,
    /// Sent data.
    pub transmit: PacketCounts,
}

/// Counters of received or of sent data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PacketCounts {
    pub bytes: u64,
    pub packets: u64,
    pub errors: u64,
    pub dropped: u64,
}

// === impl Proc ===

impl Proc {
    /// The number of a process's network namespace, which all processes in the namespace share.
    /// `None` if the link can't be read, or the process is gone.
    pub fn network_namespace(&self, pid: i32) -> Option<u64> {
        self.netns_ref(pid).map(|namespace| namespace.number)
    }

    /// A reference to a process's network namespace; `None` as for [`Proc::network_namespace`].
    pub fn netns_ref(&self, pid: i32) -> Option<NetnsRef> {
        let file = self.dir.join(format!("{pid}/ns/net"));
        let number = number(std::fs::read_link(&file).ok()?.to_str()?)?;
        Some(NetnsRef { file, number })
    }

    pub(super) fn read<'a>(&self, pid: i32, name: &str, reader: &'a mut Reader) -> Option<&'a str> {
        reader
            .once(&self.dir.join(format!("{pid}/net/{name}")))
            .ok()
    }
}

/// The number in the name of a network namespace: `net:[4026531840]`.
pub(super) fn number(name: &str) -> Option<u64> {
    name.strip_prefix("net:[")?.strip_suffix(']')?.parse().ok()
}

/// Parses the text of `net/dev`: two lines of column headings, then a line for each interface.
pub(super) fn interfaces(text: &str) -> Option<Vec<(String, InterfaceTraffic)>> {
    let lines = text.lines().skip(2).map(interface);
    lines
        .filter(|line| !matches!(line, Some((name, _)) if name == "lo"))
        .collect()
}

fn interface(line: &str) -> Option<(String, InterfaceTraffic)> {
    let (name, counters) = line.split_once(':')?;
    let mut values = [0; 16];
    let mut columns = counters.split_ascii_whitespace();
    for value in &mut values {
        *value = columns.next()?.parse().ok()?;
    }
    // Eight columns of received data come before eight columns of sent data.
    let [receive, transmit] = [0, 8].map(|first| PacketCounts {
        bytes: values[first],
        packets: values[first + 1],
        errors: values[first + 2],
        dropped: values[first + 3],
    });
    Some((
        name.trim().to_owned(),
        InterfaceTraffic { receive, transmit },
    ))
}

/// TCP's counters of segments and of failed connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NamespaceTcpCounts {
    /// Segments sent, without segments that only repeat sent data.
    pub sent: u64,
    /// Segments sent again.
    pub retransmitted: u64,
    /// Failed connection attempts, reset connections, and sent reset segments.
    pub failures: [u64; 3],
}

// === impl NamespaceTcpCounts ===

impl NamespaceTcpCounts {
    /// Parses the text of `net/snmp`; `None` if a counter is missing.
    pub fn parse(snmp: &str) -> Option<Self> {
        let names = [
            "OutSegs",
            "RetransSegs",
            "AttemptFails",
            "EstabResets",
            "OutRsts",
        ];
        let mut found = [None; 5];
        for (name, value) in columns(snmp, "Tcp")? {
            let mut counters = names.iter().zip(&mut found);
            if let Some((_, number)) = counters.find(|(known, _)| **known == name) {
                *number = value.parse().ok();
            }
        }
        let [sent, retransmitted, attempts, resets, reset_segments] = found;
        Some(Self {
            sent: sent?,
            retransmitted: retransmitted?,
            failures: [attempts?, resets?, reset_segments?],
        })
    }
}

/// The number of TCP's timeouts in the text of `net/netstat`; `None` if the counter is missing.
pub(super) fn timeouts(netstat: &str) -> Option<u64> {
    let mut counters = columns(netstat, "TcpExt")?;
    counters
        .find(|(name, _)| *name == "TCPTimeouts")?
        .1
        .parse()
        .ok()
}

/// The names and values of a protocol's counters: a line of names, and then a line of numbers.
/// Kernels add columns, so the position of a counter varies.
fn columns<'a>(text: &'a str, protocol: &str) -> Option<impl Iterator<Item = (&'a str, &'a str)>> {
    let mut lines = text
        .lines()
        .filter_map(|line| line.strip_prefix(protocol)?.strip_prefix(':'));
    let (names, numbers) = (lines.next()?, lines.next()?);
    Some(
        names
            .split_ascii_whitespace()
            .zip(numbers.split_ascii_whitespace()),
    )
}

#[cfg(test)]
mod tests {
    use super::super::{NetnsHandles, NetnsKey};
    use super::*;

    /// The format of Linux 6.18. Older kernels print no space before a long number.
    const DEV: &str = "\
Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    lo:     100       1    0    0    0     0          0         0      100       1    0    0    0     0       0          0
  eth0:18446744073709551615 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16
veth-very-long1: 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0
";

    #[test]
    fn interfaces_are_read_in_their_order() {
        let receive = PacketCounts {
            bytes: u64::MAX,
            packets: 2,
            errors: 3,
            dropped: 4,
        };
        let transmit = PacketCounts {
            bytes: 9,
            packets: 10,
            errors: 11,
            dropped: 12,
        };
        let eth0 = ("eth0".to_owned(), InterfaceTraffic { receive, transmit });
        let other = ("veth-very-long1".to_owned(), InterfaceTraffic::default());
        assert_eq!(interfaces(DEV), Some(vec![eth0, other]));
    }

    #[test]
    fn truncated_or_malformed_lines_are_left_out() {
        assert_eq!(
            interfaces(""),
            Some(Vec::new()),
            "a namespace without interfaces"
        );
        let last = DEV.find("eth0:").unwrap();
        for cut in last + 1..DEV.find(" 16\nveth").unwrap() {
            assert_eq!(interfaces(&DEV[..cut]), None, "{:?}", &DEV[last..cut]);
        }
        assert_eq!(
            interfaces(&DEV.replace("18446744073709551615", "18446744073709551616")),
            None
        );
        assert_eq!(interfaces(&DEV.replace(" 11 12 ", " -1 12 ")), None);
    }

    #[test]
    fn this_process_has_a_network() {
        let proc = Proc::new(std::path::Path::new("/"));
        let own = i32::try_from(std::process::id()).unwrap();
        let mut reader = Reader::default();
        let interfaces = interfaces(proc.read(own, "dev", &mut reader).unwrap()).unwrap();
        assert!(
            interfaces.iter().all(|(name, _)| name != "lo"),
            "{interfaces:?}"
        );
        assert!(proc.network_namespace(own).unwrap() > 0);
        assert_eq!(proc.read(-1, "dev", &mut reader), None);
        assert_eq!(proc.network_namespace(-1), None);
    }

    /// The format of Linux 6.18. The line of `TcpExt` lacks most of its hundred columns.
    const SNMP: &str = "\
Ip: Forwarding DefaultTTL InReceives InHdrErrors
Ip: 2 64 41872 0
Icmp: InMsgs InErrors
Icmp: 40 0
IcmpMsg: InType3
IcmpMsg: 40
Tcp: RtoAlgorithm RtoMin RtoMax MaxConn ActiveOpens PassiveOpens AttemptFails EstabResets CurrEstab InSegs OutSegs RetransSegs InErrs OutRsts InCsumErrors
Tcp: 1 200 120000 -1 1067 402 52 131 4 40958 41190 17 0 204 0
Udp: InDatagrams NoPorts
Udp: 874 40
";
    const NETSTAT: &str = "\
TcpExt: SyncookiesSent SyncookiesRecv TCPLossProbes TCPTimeouts TCPSpuriousRTOs
TcpExt: 0 0 25 9 0
IpExt: InNoRoutes InTruncatedPkts
IpExt: 0 0
";

    #[test]
    fn counters_are_found_by_their_names() {
        let expected = NamespaceTcpCounts {
            sent: 41_190,
            retransmitted: 17,
            failures: [52, 131, 204],
        };
        assert_eq!(NamespaceTcpCounts::parse(SNMP), Some(expected));
        assert_eq!(timeouts(NETSTAT), Some(9));
        let other = SNMP
            .replace("OutSegs", "New OutSegs")
            .replace(" 41190 ", " 5 41190 ");
        assert_eq!(NamespaceTcpCounts::parse(&other), Some(expected));
    }

    #[test]
    fn a_missing_counter_is_none_instead_of_zero() {
        assert_eq!((NamespaceTcpCounts::parse(""), timeouts("")), (None, None));
        for other in [
            SNMP.replace("RetransSegs", "Retrans"),
            SNMP.replace(" 17 ", " -1 "),
            SNMP.replace(" 17 ", " 18446744073709551616 "),
        ] {
            assert_eq!(NamespaceTcpCounts::parse(&other), None, "{other}");
        }
        assert_eq!(timeouts(&NETSTAT.replace("TcpExt:", "TcpExt")), None);
        let end = SNMP.find(" 204 0\n").unwrap();
        for cut in 0..=end {
            assert_eq!(NamespaceTcpCounts::parse(&SNMP[..cut]), None, "{cut}");
        }
    }

    #[test]
    fn this_machine_counts() {
        let own = i32::try_from(std::process::id()).unwrap();
        let (proc, mut reader) = (Proc::new(std::path::Path::new("/")), Reader::default());
        let mut handles = NetnsHandles::new(0);
        let [own, none] = [own, -1].map(|pid| NetnsKey { pid, number: 0 });
        assert!(handles.segments(&proc, own, &mut reader).is_some());
        assert!(handles.timeouts(&proc, own, &mut reader).is_some());
        assert_eq!(handles.segments(&proc, none, &mut reader), None);
        assert_eq!(handles.timeouts(&proc, none, &mut reader), None);
    }
}
