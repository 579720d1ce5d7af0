//! [`SocketDiag`]: the TCP connections of a network namespace, with the kernel's measurements of each
//! connection.
//!
//! For every request, the kernel searches the table of all connections on the machine, even if few
//! of them belong to the namespace. There are two types of requests. The newer one
//! (`SOCK_DIAG_BY_FAMILY`) names one IP version and would need a search for each. This module uses
//! the older one (`TCPDIAG_GETSOCK`), with which a single search finds the connections of both IP
//! versions, on every kernel to date. Listening sockets are in a separate table and are not
//! requested.
//!
//! Formats: include/uapi/linux/{inet_diag,tcp,netlink}.h.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::libc;
use nix::sys::socket::{NetlinkAddr, SockProtocol, recvfrom};

use crate::host::netlink::{self, NetlinkMessage, number32, number64};

/// The time limit for an answer. The kernel answers within milliseconds; only messages from another
/// process can delay the end of the answer up to this limit.
const TIMEOUT: Duration = Duration::from_secs(2);

named! {
    /// The state of a connection, with the kernel's number and the names of RFC 9293.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum TcpState {
        Established = 1 => "established",
        SynSent = 2 => "syn_sent",
        SynReceived = 3 => "syn_received",
        FinWait1 = 4 => "fin_wait_1",
        FinWait2 = 5 => "fin_wait_2",
        TimeWait = 6 => "time_wait",
        Close = 7 => "close",
        CloseWait = 8 => "close_wait",
        LastAck = 9 => "last_ack",
        Closing = 11 => "closing",
    }
}

/// A TCP connection at the time of the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TcpConnection {
    pub state: TcpState,
    /// The socket's number (cookie), which no later socket gets until the next boot.
    pub cookie: u64,
    pub local: IpAddr,
    pub remote: IpAddr,
    /// The id of the cgroup (version 2) in which the socket was made. Linux reports it since 5.9,
    /// except for connections in the states `TIME_WAIT` and `SYN_RECV`.
    pub cgroup: Option<u64>,
    /// The measurements; `None` in the states `TIME_WAIT` and `SYN_RECV`, and before Linux 4.10.
    pub measured: Option<TcpMeasurements>,
}

/// The kernel's measurements of a connection since it was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TcpMeasurements {
    /// The smoothed time from sending to acknowledgement; `None` before the first acknowledgement.
    pub rtt: Option<Duration>,
    /// Microseconds in which some data was not yet sent or not yet acknowledged.
    pub busy: u64,
    /// Microseconds of `busy` in which the receiver had no room for more data.
    pub receiver_limited: u64,
    /// Microseconds of `busy` in which the socket's send buffer was too small.
    pub buffer_limited: u64,
    /// Bytes sent and acknowledged. The kernel counts SYN and FIN as a byte each.
    pub acknowledged: u64,
    pub received: u64,
}

/// A socket for the kernel's socket diagnosis. It belongs to the network namespace in which it was
/// opened, and keeps that namespace alive.
#[derive(Debug)]
pub struct SocketDiag {
    socket: OwnedFd,
    sequence: u32,
    buffer: Vec<u8>,
}

// The request `TCPDIAG_GETSOCK`, and the flags `NLM_F_REQUEST` and `NLM_F_DUMP`.
const GET: u16 = 18;
const REQUEST_DUMP: u16 = 0x301;

/// The length of a request after the netlink header, and the offsets of the requested attributes
/// and of the requested states.
const REQUEST_LENGTH: usize = 60;
const ATTRIBUTES: usize = 3;
const STATES: usize = 52;

/// The length of `struct inet_diag_msg`, and the offsets of used fields.
const MESSAGE: usize = 72;
const LOCAL: usize = 8;
const REMOTE: usize = 24;
const COOKIE: usize = 44;

// The attributes `INET_DIAG_INFO` and `INET_DIAG_CGROUP_ID`.
const INFO: u16 = 2;
const CGROUP_ID: u16 = 21;

/// The state `TCP_NEW_SYN_RECV`, the last state: a connection in setup.
const NEW_SYN_RECEIVED: u8 = 12;

/// All states except that of listening sockets (10).
const ALL_STATES: u32 = 0x1ffe & !(1 << 10);

// Offsets in `struct tcp_info`. New fields have only ever been added at the end.
const RTT: usize = 68;
const ACKNOWLEDGED: usize = 120;
const RECEIVED: usize = 128;
const BUSY: usize = 168;
const RECEIVER_LIMITED: usize = 176;
const BUFFER_LIMITED: usize = 184;

// === impl TcpState ===

impl TcpState {
    fn of(number: u8) -> Option<Self> {
        if number == NEW_SYN_RECEIVED {
            return Some(Self::SynReceived);
        }
        Self::ALL.into_iter().find(|state| *state as u8 == number)
    }
}

// === impl SocketDiag ===

impl SocketDiag {
    /// Opens a socket in the calling thread's network namespace.
    ///
    /// # Errors
    /// The kernel lacks socket diagnosis, or is short of resources.
    pub fn open() -> io::Result<Self> {
        // The kernel fills the whole buffer, up to 32 KiB.
        Ok(Self {
            socket: netlink::open(SockProtocol::NetlinkSockDiag)?,
            sequence: 0,
            buffer: vec![0; 32 * 1024],
        })
    }

    /// The connections of the namespace. One that is opened or closed during the request may be
    /// missing.
    ///
    /// # Errors
    /// The kernel was built without TCP diagnosis (CONFIG_INET_DIAG) or does not answer, or the
    /// namespace has more than `most` connections.
    pub fn connections(&mut self, most: usize) -> io::Result<Vec<TcpConnection>> {
        self.sequence = self.sequence.wrapping_add(1);
        netlink::send(&self.socket, &request(self.sequence)?)?;
        let mut found = Vec::new();
        let until = Instant::now() + TIMEOUT;
        loop {
            // Otherwise messages of another process could keep the loop running for ever.
            if Instant::now() >= until {
                return Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    "the kernel's response took too long",
                ));
            }
            let (length, from) =
                recvfrom::<NetlinkAddr>(self.socket.as_raw_fd(), &mut self.buffer)?;
            // In a pod's network namespace, the pod's processes may be able to send to the socket,
            // too.
            if from.is_none_or(|from| from.pid() != 0) {
                continue;
            }
            let messages = self.buffer.get(..length).unwrap_or_default();
            let ends = read(messages, self.sequence, &mut found)?;
            if found.len() > most {
                return Err(io::Error::other(format!(
                    "there are more than {most} connections"
                )));
            }
            if ends {
                return Ok(found);
            }
        }
    }
}

fn request(sequence: u32) -> io::Result<Vec<u8>> {
    let mut content = vec![0; ATTRIBUTES];
    content.push(1 << (INFO - 1));
    content.resize(STATES, 0);
    content.extend(ALL_STATES.to_ne_bytes());
    content.resize(REQUEST_LENGTH, 0);
    netlink::message(GET, REQUEST_DUMP, sequence, &content)
}

/// Adds the connections in a part of an answer. `sequence` is the number of the request. Returns
/// whether the part was the last one.
///
/// # Errors
/// The kernel reports an error, or the bytes are malformed.
pub fn read(
    mut messages: &[u8],
    sequence: u32,
    found: &mut Vec<TcpConnection>,
) -> io::Result<bool> {
    while !messages.is_empty() {
        let message = NetlinkMessage::take(&mut messages).ok_or_else(malformed_answer)?;
        // A late answer to an earlier request that was given up.
        if message.sequence != sequence {
            continue;
        }
        match message.kind {
            netlink::DONE if message.code() >= 0 => return Ok(true),
            netlink::ERROR | netlink::DONE => return Err(message.error()),
            netlink::NOOP => {}
            _ => found.extend(connection(message.content)?),
        }
    }
    Ok(false)
}

/// Decodes a connection; `None` for a socket in any other state, such as a listening one.
fn connection(message: &[u8]) -> io::Result<Option<TcpConnection>> {
    let (head, mut attributes) = message
        .split_at_checked(MESSAGE)
        .ok_or_else(malformed_answer)?;
    let &[family, state, ..] = head else {
        return Err(malformed_answer());
    };
    let Some(state) = TcpState::of(state) else {
        return Ok(None);
    };
    let address = |at| address(family.into(), head.get(at..)?);
    let ends = address(LOCAL).zip(address(REMOTE));
    let (local, remote) = ends.ok_or_else(malformed_answer)?;
    let [low, high] = [0, 4].map(|half| number32(head, COOKIE + half).map(u64::from));
    let cookie = low
        .zip(high)
        .map(|(low, high)| low | high << 32)
        .ok_or_else(malformed_answer)?;
    let mut connection = TcpConnection {
        state,
        cookie,
        local,
        remote,
        cgroup: None,
        measured: None,
    };
    while !attributes.is_empty() {
        match netlink::take_attribute(&mut attributes).ok_or_else(malformed_answer)? {
            (INFO, value) => connection.measured = measured(value),
            (CGROUP_ID, value) => connection.cgroup = number64(value, 0),
            _ => {}
        }
    }
    Ok(Some(connection))
}

/// An address of either IP version. An IPv4 address mapped into IPv6 becomes an IPv4 address.
fn address(family: i32, bytes: &[u8]) -> Option<IpAddr> {
    match family {
        libc::AF_INET => bytes
            .first_chunk::<4>()
            .map(|bytes| Ipv4Addr::from(*bytes).into()),
        libc::AF_INET6 => bytes
            .first_chunk::<16>()
            .map(|bytes| Ipv6Addr::from(*bytes).to_canonical()),
        _ => None,
    }
}

/// Decodes a `struct tcp_info`; `None` where it is too short (before Linux 4.10).
fn measured(info: &[u8]) -> Option<TcpMeasurements> {
    let rtt = number32(info, RTT)?;
    Some(TcpMeasurements {
        rtt: (rtt > 0).then(|| Duration::from_micros(rtt.into())),
        busy: number64(info, BUSY)?,
        receiver_limited: number64(info, RECEIVER_LIMITED)?,
        buffer_limited: number64(info, BUFFER_LIMITED)?,
        acknowledged: number64(info, ACKNOWLEDGED)?,
        received: number64(info, RECEIVED)?,
    })
}

fn malformed_answer() -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        "the kernel's response about TCP connections is invalid",
    )
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    use super::*;
    use crate::host::netlink::{DONE, ERROR, HEADER, NOOP};

    fn message(kind: u16, sequence: u32, content: &[u8]) -> Vec<u8> {
        netlink::message(kind, 2, sequence, content).unwrap()
    }

    fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
        netlink::attribute(kind, value).unwrap()
    }

    fn content(family: u8, state: u8, addresses: [IpAddr; 2], attributes: &[Vec<u8>]) -> Vec<u8> {
        let mut content = vec![family, state, 0, 0, 1, 2, 3, 4];
        for address in addresses {
            let mut bytes = match address {
                IpAddr::V4(address) => address.octets().to_vec(),
                IpAddr::V6(address) => address.octets().to_vec(),
            };
            bytes.resize(16, 0);
            content.extend(bytes);
        }
        content.extend(7_u32.to_ne_bytes());
        content.extend([9_u32, 1].iter().flat_map(|half| half.to_ne_bytes()));
        content.resize(MESSAGE, 0);
        content.extend(attributes.concat());
        content
    }

    fn info(length: usize) -> Vec<u8> {
        let mut info = vec![0; 280];
        info[RTT..RTT + 4].copy_from_slice(&1500_u32.to_ne_bytes());
        let numbers = [
            BUSY,
            RECEIVER_LIMITED,
            BUFFER_LIMITED,
            ACKNOWLEDGED,
            RECEIVED,
        ];
        for (at, value) in numbers.into_iter().zip(1_u64..) {
            info[at..at + 8].copy_from_slice(&value.to_ne_bytes());
        }
        info.truncate(length);
        info
    }

    const V4: [IpAddr; 2] = [
        IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)),
        IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2)),
    ];

    #[test]
    fn answers_are_read() {
        let whole = [
            attribute(INFO, &info(280)),
            attribute(99, b"new"),
            attribute(CGROUP_ID, &[5; 8]),
        ];
        let mapped = V4.map(|address| match address {
            IpAddr::V4(address) => IpAddr::V6(address.to_ipv6_mapped()),
            IpAddr::V6(_) => address,
        });
        let parts = [
            message(GET, 3, &content(2, 1, V4, &whole)),
            message(GET, 2, &content(2, 1, V4, &[])),
            message(GET, 3, &content(2, 10, V4, &[])),
            message(GET, 3, &content(10, 6, mapped, &[])),
            message(NOOP, 3, &[]),
        ];
        let mut found = Vec::new();
        assert!(!read(&parts.concat(), 3, &mut found).unwrap());
        let measured = TcpMeasurements {
            rtt: Some(Duration::from_micros(1500)),
            busy: 1,
            receiver_limited: 2,
            buffer_limited: 3,
            acknowledged: 4,
            received: 5,
        };
        let remnant = TcpConnection {
            state: TcpState::TimeWait,
            cookie: 1 << 32 | 9,
            local: V4[0],
            remote: V4[1],
            cgroup: None,
            measured: None,
        };
        let first = TcpConnection {
            state: TcpState::Established,
            cgroup: Some(0x0505_0505_0505_0505),
            measured: Some(measured),
            ..remnant
        };
        assert_eq!(found, [first, remnant]);
        assert!(read(&message(DONE, 3, &0_i32.to_ne_bytes()), 3, &mut found).unwrap());
        assert!(!read(&message(DONE, 2, &0_i32.to_ne_bytes()), 3, &mut found).unwrap());
        for kind in [DONE, ERROR] {
            let error =
                read(&message(kind, 3, &(-2_i32).to_ne_bytes()), 3, &mut found).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(2));
        }
        assert_eq!(found.len(), 2);
    }

    #[test]
    fn malformed_answer_is_an_error_and_less_than_all_is_nothing() {
        let short = message(
            GET,
            1,
            &content(2, 1, V4, &[attribute(INFO, &info(BUFFER_LIMITED + 7))]),
        );
        let mut found = Vec::new();
        assert!(!read(&short, 1, &mut found).unwrap());
        assert_eq!(found.remove(0).measured, None, "an older kernel");
        let whole = message(GET, 1, &content(2, 1, V4, &[attribute(INFO, &info(280))]));
        for end in 1..whole.len() {
            read(&whole[..end], 1, &mut found).unwrap_err();
        }
        for (at, byte) in [
            (HEADER, 77),
            (HEADER + MESSAGE, 3),
            (HEADER + MESSAGE + 1, 255),
            (0, 3),
            (0, 20),
        ] {
            let mut broken = whole.clone();
            broken[at] = byte;
            read(&broken, 1, &mut found).unwrap_err();
        }
        assert!(found.is_empty());
    }

    #[test]
    fn this_process_has_a_connection() {
        let listener = TcpListener::bind("[::1]:0").unwrap();
        let begun = Instant::now();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut server, _) = listener.accept().unwrap();
        client.write_all(&[7; 1000]).unwrap();
        server.read_exact(&mut [0; 1000]).unwrap();
        let cookie = |stream: &TcpStream| {
            let mut cookie = 0_u64;
            let cookie_at = std::ptr::from_mut(&mut cookie);
            let mut length = 8;
            let number = stream.as_raw_fd();
            // SAFETY: the kernel writes at most 8 bytes, the size of the number.
            #[allow(unsafe_code)]
            let got = unsafe {
                libc::getsockopt(
                    number,
                    libc::SOL_SOCKET,
                    libc::SO_COOKIE,
                    cookie_at.cast(),
                    &raw mut length,
                )
            };
            assert_eq!(got, 0);
            cookie
        };
        let ends = [cookie(&client), cookie(&server)];
        let mut diag = SocketDiag::open().unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        let (client, server) = loop {
            let found = diag.connections(100_000).unwrap();
            let of = |cookie| {
                *found
                    .iter()
                    .find(|connection| connection.cookie == cookie)
                    .unwrap()
            };
            let [client, server] = ends.map(of);
            // The SYN counts as a byte. The last acknowledgement may arrive a moment later.
            if client.measured.unwrap().acknowledged == 1001 {
                break (client, server);
            }
            assert!(Instant::now() < deadline, "{client:?}");
        };
        let host: IpAddr = "::1".parse().unwrap();
        assert_eq!(
            (client.state, client.local, client.remote),
            (TcpState::Established, host, host)
        );
        let (sent, received) = (client.measured.unwrap(), server.measured.unwrap());
        assert_eq!((sent.received, received.received), (0, 1000));
        assert!(sent.rtt.unwrap() < begun.elapsed() + Duration::from_secs(1));
    }
}
