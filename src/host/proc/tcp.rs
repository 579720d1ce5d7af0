//! What TCP counts in a network namespace.

use std::fs;

use super::Proc;

/// What TCP has counted in a network namespace since that was made, both versions of IP together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tcp {
    /// Segments sent, without those that only repeat what was sent before.
    pub sent: u64,
    /// Segments sent again.
    pub retransmitted: u64,
    /// How often nothing was heard of a segment for so long that its timer ran out.
    pub timeouts: u64,
}

// === impl Proc ===

impl Proc {
    /// What TCP has counted in the network namespace of a process; `None` where that can't be read, or is not there.
    pub fn tcp(&self, pid: i32) -> Option<Tcp> {
        let read = |name: &str| fs::read(self.dir.join(format!("{pid}/net/{name}"))).ok();
        Tcp::parse(&String::from_utf8_lossy(&read("snmp")?), &String::from_utf8_lossy(&read("netstat")?))
    }
}

// === impl Tcp ===

impl Tcp {
    /// Reads the texts of `net/snmp` and `net/netstat`; `None` where one of the counters is not in them.
    pub fn parse(snmp: &str, netstat: &str) -> Option<Self> {
        Some(Self {
            sent: counter(snmp, "Tcp", "OutSegs")?,
            retransmitted: counter(snmp, "Tcp", "RetransSegs")?,
            timeouts: counter(netstat, "TcpExt", "TCPTimeouts")?,
        })
    }
}

/// The number below a name: each protocol has a line of names and then a line of numbers. Kernels add columns, so that the
/// place of one tells nothing.
fn counter(text: &str, protocol: &str, name: &str) -> Option<u64> {
    let mut lines = text
        .lines()
        .filter_map(|line| line.strip_prefix(protocol)?.strip_prefix(':'))
        .map(str::split_whitespace);
    let column = lines.next()?.position(|column| column == name)?;
    lines.next()?.nth(column)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As Linux 6.18 shows them; the line of `TcpExt` without most of its hundred columns.
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
        let tcp = Tcp { sent: 41_190, retransmitted: 17, timeouts: 9 };
        assert_eq!(Tcp::parse(SNMP, NETSTAT), Some(tcp));
        let other = SNMP.replace("OutSegs", "New OutSegs").replace(" 41190 ", " 5 41190 ");
        assert_eq!(Tcp::parse(&other, NETSTAT), Some(tcp));
    }

    #[test]
    fn what_is_not_there_is_not_zero() {
        assert_eq!(Tcp::parse("", ""), None);
        assert_eq!(Tcp::parse(SNMP, ""), None);
        assert_eq!(Tcp::parse(&SNMP.replace("RetransSegs", "Retrans"), NETSTAT), None);
        assert_eq!(Tcp::parse(&SNMP.replace(" 17 ", " -1 "), NETSTAT), None);
        assert_eq!(Tcp::parse(&SNMP.replace(" 17 ", " 18446744073709551616 "), NETSTAT), None);
        assert_eq!(Tcp::parse(SNMP, &NETSTAT.replace("TcpExt:", "TcpExt")), None);
        let end = SNMP.find(" 41190 17").unwrap();
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
