//! Bridges, veth pairs and addresses over rtnetlink, and the errors of all network operations.

use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsRawFd, BorrowedFd};

use futures_util::TryStreamExt;
use nix::libc;
use rtnetlink::packet_route::link::{InfoData, InfoVeth};
use rtnetlink::{Handle, LinkBridge, LinkUnspec, LinkVeth};

/// Why a network could not be made or entered.
#[derive(Debug, thiserror::Error)]
pub enum NetError {
    /// The kernel refused.
    #[error("cannot {operation} {subject}{remedy}")]
    Refused {
        /// The operation, as a verb.
        operation: &'static str,
        /// The operation's object.
        subject: String,
        /// The remedy after a colon; empty for an unknown cause.
        remedy: &'static str,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
    /// A container of the switch can't have the address.
    #[error("cannot give a container the address {address}: {reason}")]
    Address {
        /// The address.
        address: Ipv4Addr,
        /// What is wrong with the address, and which address to use.
        reason: &'static str,
    },
}

/// The result of a network operation.
pub(super) type Result<T, E = NetError> = std::result::Result<T, E>;

impl NetError {
    /// Names the operation, and chooses the remedy by the kernel's error.
    pub(super) fn new(
        operation: &'static str,
        subject: impl Into<String>,
        source: impl Into<io::Error>,
    ) -> Self {
        let source = source.into();
        let remedy = match source.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => {
                ": run as root, or with CAP_SYS_ADMIN and CAP_NET_ADMIN"
            }
            Some(libc::EOPNOTSUPP | libc::EPROTONOSUPPORT | libc::EAFNOSUPPORT | libc::ENODEV) => {
                ": this kernel has no such device; load the modules bridge and veth, or use a kernel built with \
                 CONFIG_BRIDGE, CONFIG_VETH and CONFIG_NET_NS"
            }
            _ => "",
        };
        Self::Refused {
            operation,
            subject: subject.into(),
            remedy,
            source,
        }
    }
}

/// The links of the network namespace in which the socket was opened.
#[derive(Debug)]
pub(super) struct Links {
    handle: Handle,
}

impl Links {
    /// Opens a netlink socket in the calling thread's namespace. The call needs a tokio runtime,
    /// which drives the socket.
    pub(super) fn open() -> Result<Self> {
        let (connection, handle, _) = rtnetlink::new_connection()
            .map_err(|source| NetError::new("open", "a netlink socket", source))?;
        tokio::spawn(connection);
        Ok(Self { handle })
    }

    /// Adds a bridge and sets the bridge up.
    pub(super) async fn add_bridge(&self, name: &str) -> Result<()> {
        let message = LinkBridge::new(name).build();
        let added = self.handle.link().add(message).execute().await;
        added.map_err(failed("add", format!("bridge {name}")))
    }

    /// Adds a veth pair and sets `name` up. `name` belongs to the current namespace and to the
    /// bridge `bridge`, `peer` belongs to `namespace`.
    pub(super) async fn add_port(
        &self,
        name: &str,
        bridge: &str,
        peer: &str,
        namespace: BorrowedFd<'_>,
    ) -> Result<()> {
        let controller = self.index(bridge).await?;
        // The kernel creates the peer directly in `namespace`. A name like eth0 therefore never
        // collides in the current namespace.
        let peer = LinkUnspec::new_with_name(peer)
            .setns_by_fd(namespace.as_raw_fd())
            .build();
        let message = LinkVeth::new(name, "")
            .set_info_data(InfoData::Veth(InfoVeth::Peer(peer)))
            .controller(controller)
            .up()
            .build();
        let added = self.handle.link().add(message).execute().await;
        added.map_err(failed("add", format!("veth pair {name}")))
    }

    /// Gives a link an address with a prefix of `prefix` bits.
    pub(super) async fn add_address(
        &self,
        name: &str,
        address: Ipv4Addr,
        prefix: u8,
    ) -> Result<()> {
        let index = self.index(name).await?;
        let added = self
            .handle
            .address()
            .add(index, IpAddr::V4(address), prefix)
            .execute()
            .await;
        added.map_err(failed(
            "add",
            format!("address {address}/{prefix} to {name}"),
        ))
    }

    /// Sets a link up.
    pub(super) async fn set_up(&self, name: &str) -> Result<()> {
        let message = LinkUnspec::new_with_name(name).up().build();
        let set = self.handle.link().set(message).execute().await;
        set.map_err(failed("set up", format!("link {name}")))
    }

    async fn index(&self, name: &str) -> Result<u32> {
        let subject = format!("link {name}");
        let mut found = Box::pin(self.handle.link().get().match_name(name).execute());
        match found
            .try_next()
            .await
            .map_err(failed("find", subject.clone()))?
        {
            Some(link) => Ok(link.header.index),
            None => Err(NetError::new("find", subject, io::ErrorKind::NotFound)),
        }
    }
}

/// Adds the operation to the kernel's errno if the kernel answered, else to the error of the library.
fn failed(operation: &'static str, subject: String) -> impl FnOnce(rtnetlink::Error) -> NetError {
    move |error| {
        let source = match error {
            rtnetlink::Error::NetlinkError(message) => message.to_io(),
            other => io::Error::other(other),
        };
        NetError::new(operation, subject, source)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_says_what_to_do() {
        let by_errno = |errno| {
            NetError::new("add", "bridge b", io::Error::from_raw_os_error(errno)).to_string()
        };
        assert_eq!(
            by_errno(libc::EPERM),
            "cannot add bridge b: run as root, or with CAP_SYS_ADMIN and CAP_NET_ADMIN"
        );
        assert!(by_errno(libc::EOPNOTSUPP).contains("CONFIG_BRIDGE"));
        assert_eq!(by_errno(libc::EEXIST), "cannot add bridge b");
    }
}
