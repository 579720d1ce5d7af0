//! TCP's counters in a network namespace.

use super::{Proc, Reader};

/// TCP's counters since the network namespace's creation, for both versions of IP together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tcp {
    /// Segments sent, without segments that only repeat sent data.
    pub sent: u64,
    /// Segments sent again.
    pub retransmitted: u64,
    /// The number of segments whose retransmission timer ran out without an answer.
    pub timeouts: u64,
}

/// TCP's counters of segments and of failed connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Segments {
    /// Segments sent, without segments that only repeat sent data.
    pub sent: u64,
    /// Segments sent again.
    pub retransmitted: u64,
    /// Failed connection attempts, reset connections, and sent reset segments.
    pub failures: [u64; 3],
}

// === impl Proc ===

impl Proc {
    /// TCP's counters in the network namespace of a process; `None` if a counter is missing or can't be read.
    pub fn tcp(&self, pid: i32) -> Option<Tcp> {
        let mut reader = Reader::default();
        let Segments {
            sent,
            retransmitted,
            ..
        } = self.segments(pid, &mut reader)?;
        Some(Tcp {
            sent,
            retransmitted,
            timeouts: self.timeouts(pid, &mut reader)?,
        })
    }
}

// === impl Tcp ===

impl Tcp {
    /// Parses the texts of `net/snmp` and `net/netstat`; `None` if a counter is missing.
    pub fn parse(snmp: &str, netstat: &str) -> Option<Self> {
        let Segments {
            sent,
            retransmitted,
            ..
        } = Segments::parse(snmp)?;
        Some(Self {
            sent,
            retransmitted,
            timeouts: Self::timeouts(netstat)?,
        })
    }

    pub(super) fn timeouts(netstat: &str) -> Option<u64> {
        columns(netstat, "TcpExt")?
            .find(|(name, _)| *name == "TCPTimeouts")?
            .1
            .parse()
            .ok()
    }
}

// === impl Segments ===

impl Segments {
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
            if let Some((_, place)) = names
                .iter()
                .zip(&mut found)
                .find(|(known, _)| **known == name)
            {
                *place = value.parse().ok();
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

/// The names and values of a protocol's counters: a line of names, and then a line of numbers. Kernels add columns,
/// hence the position of a counter varies.
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
    use super::*;

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
        let tcp = Tcp {
            sent: 41_190,
            retransmitted: 17,
            timeouts: 9,
        };
        assert_eq!(Tcp::parse(SNMP, NETSTAT), Some(tcp));
        let expected = Segments {
            sent: 41_190,
            retransmitted: 17,
            failures: [52, 131, 204],
        };
        assert_eq!(Segments::parse(SNMP), Some(expected));
        let other = SNMP
            .replace("OutSegs", "New OutSegs")
            .replace(" 41190 ", " 5 41190 ");
        assert_eq!(Tcp::parse(&other, NETSTAT), Some(tcp));
    }

    #[test]
    fn what_is_not_there_is_not_zero() {
        assert_eq!(Tcp::parse("", ""), None);
        assert_eq!(Tcp::parse(SNMP, ""), None);
        assert_eq!(
            Tcp::parse(&SNMP.replace("RetransSegs", "Retrans"), NETSTAT),
            None
        );
        assert_eq!(Tcp::parse(&SNMP.replace(" 17 ", " -1 "), NETSTAT), None);
        assert_eq!(
            Tcp::parse(&SNMP.replace(" 17 ", " 18446744073709551616 "), NETSTAT),
            None
        );
        assert_eq!(
            Tcp::parse(SNMP, &NETSTAT.replace("TcpExt:", "TcpExt")),
            None
        );
        let end = SNMP.find(" 204 0\n").unwrap();
        for cut in 0..=end {
            assert_eq!(Tcp::parse(&SNMP[..cut], NETSTAT), None, "{cut}");
        }
    }

    #[test]
    fn this_machine_counts() {
        let own = i32::try_from(std::process::id()).unwrap();
        let proc = Proc::new(std::path::Path::new("/"));
        assert!(proc.tcp(own).is_some());
        assert_eq!(proc.tcp(-1), None);
    }
}
