//! The frames of netlink messages and of their attributes.
//!
//! Shapes: include/uapi/linux/netlink.h.

pub mod diag;
pub mod taskstats;

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, sendto, setsockopt,
    socket, sockopt,
};
use nix::sys::time::TimeVal;

/// The length of a message's header.
pub(super) const HEADER: usize = 16;

/// The length of an attribute's header.
const ATTRIBUTE_HEADER: usize = 4;

/// A message's kind: no content.
pub(super) const NOOP: u16 = 1;
/// A message's kind: an error, or an acknowledgement.
pub(super) const ERROR: u16 = 2;
/// A message's kind: the end of an answer in parts.
pub(super) const DONE: u16 = 3;

/// Opens a socket in the calling thread's network namespace. A receive call waits for at most a second.
pub(super) fn open(protocol: SockProtocol) -> io::Result<OwnedFd> {
    let flags = SockFlag::SOCK_CLOEXEC;
    let socket = socket(AddressFamily::Netlink, SockType::Raw, flags, Some(protocol))?;
    setsockopt(&socket, sockopt::ReceiveTimeout, &TimeVal::new(1, 0))?;
    Ok(socket)
}

/// Sends a message to the kernel.
pub(super) fn send(socket: &OwnedFd, message: &[u8]) -> io::Result<()> {
    let kernel = NetlinkAddr::new(0, 0);
    sendto(socket.as_raw_fd(), message, &kernel, MsgFlags::empty())?;
    Ok(())
}

#[derive(Debug)]
pub(super) struct NetlinkMessage<'a> {
    pub kind: u16,
    /// The sequence number of the request that the message answers.
    pub sequence: u32,
    /// The bytes after the header.
    pub content: &'a [u8],
}

// === impl NetlinkMessage ===

impl<'a> NetlinkMessage<'a> {
    /// Splits the first message off; `None` where the bytes are no message.
    pub(super) fn take(bytes: &mut &'a [u8]) -> Option<Self> {
        let length = number32(bytes, 0)? as usize;
        let message = Self {
            kind: number16(bytes, 4)?,
            sequence: number32(bytes, 8)?,
            content: bytes.get(HEADER..length)?,
        };
        *bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(message)
    }

    /// The number in a message of kind [`ERROR`] or [`DONE`]: 0 or a negative errno.
    pub(super) fn code(&self) -> i32 {
        number32(self.content, 0).map_or(0, u32::cast_signed)
    }

    pub(super) fn error(&self) -> io::Error {
        io::Error::from_raw_os_error(self.code().saturating_neg())
    }
}

/// Splits the first attribute off, and returns its kind and value; `None` where the bytes are no attribute.
pub(super) fn take_attribute<'a>(bytes: &mut &'a [u8]) -> Option<(u16, &'a [u8])> {
    let length = usize::from(number16(bytes, 0)?);
    let attribute = (number16(bytes, 2)?, bytes.get(ATTRIBUTE_HEADER..length)?);
    *bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
    Some(attribute)
}

pub(super) fn message(kind: u16, flags: u16, sequence: u32, content: &[u8]) -> io::Result<Vec<u8>> {
    let length = u32::try_from(HEADER + content.len()).map_err(io::Error::other)?;
    let mut message = length.to_ne_bytes().to_vec();
    message.extend(kind.to_ne_bytes());
    message.extend(flags.to_ne_bytes());
    message.extend(sequence.to_ne_bytes());
    // The kernel fills in the sender.
    message.extend(0_u32.to_ne_bytes());
    message.extend(content);
    Ok(message)
}

/// An attribute to send, padded to a multiple of four bytes.
pub(super) fn attribute(kind: u16, value: &[u8]) -> io::Result<Vec<u8>> {
    let length = u16::try_from(ATTRIBUTE_HEADER + value.len()).map_err(io::Error::other)?;
    let mut attribute = length.to_ne_bytes().to_vec();
    attribute.extend(kind.to_ne_bytes());
    attribute.extend(value);
    attribute.resize(attribute.len().next_multiple_of(4), 0);
    Ok(attribute)
}

pub(super) fn number64(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

pub(super) fn number32(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn number16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}
