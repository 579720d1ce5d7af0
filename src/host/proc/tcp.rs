//! TCP's counters in a network namespace.

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
    use super::super::{NetnsHandles, NetnsKey, Proc, Reader};
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
    fn what_is_not_there_is_not_zero() {
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
