//! [`NetworkSwitch`]: a bridge that joins the network namespaces of the demo's containers.
//!
//! The bridge lives in its own namespace. No interface, address, route or firewall rule of the host is touched.

use std::collections::BTreeSet;
use std::future::Future;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use futures_util::TryStreamExt;
use rtnetlink::packet_route::link::{InfoData, InfoVeth};
use rtnetlink::{Handle, LinkBridge, LinkUnspec, LinkVeth};

use super::netns::{NetError, Netns, Result};

const BRIDGE: &str = "switch";
const PREFIX: u8 = 24;

/// A bridge in a private namespace. Each container that joins gets a namespace of its own with an
/// `eth0`.
///
/// Dropping the switch unplugs every container, because each `eth0` vanishes with the bridge's end
/// of the pair.
#[derive(Debug)]
pub struct NetworkSwitch {
    namespace: Netns,
    taken: BTreeSet<Ipv4Addr>,
}

/// The links of the network namespace in which the socket was opened.
#[derive(Debug)]
pub(super) struct Links {
    handle: Handle,
}

// === impl NetworkSwitch ===

impl NetworkSwitch {
    /// A bridge in a new namespace, set up, with no ports.
    ///
    /// # Errors
    ///
    /// See [`NetError`]: no privilege, or a kernel without bridges.
    pub fn new() -> Result<Self> {
        let namespace = Netns::new()?;
        with_links(
            &namespace,
            |links| async move { links.add_bridge(BRIDGE).await },
        )?;
        Ok(Self {
            namespace,
            taken: BTreeSet::new(),
        })
    }

    /// A new namespace, plugged into the bridge. Its `lo` is up, and its `eth0` has the given
    /// address and a /24.
    ///
    /// # Errors
    ///
    /// The address is not a host's address in 10.0.0.0/8, is taken, or lies in another /24 than earlier addresses.
    /// The kernel may also refuse (see [`NetError`]), and nothing stays behind then.
    pub fn join(&mut self, address: Ipv4Addr) -> Result<Netns> {
        self.check(address)?;
        let container = Netns::new()?;
        let port = format!("port{}", address.octets()[3]);
        with_links(&self.namespace, |links| {
            let container = &container;
            async move {
                links
                    .add_port(&port, BRIDGE, "eth0", container.as_fd())
                    .await
            }
        })?;
        with_links(&container, |links| async move {
            links.set_up("lo").await?;
            links.add_address("eth0", address, PREFIX).await?;
            links.set_up("eth0").await
        })?;
        self.taken.insert(address);
        Ok(container)
    }

    fn check(&self, address: Ipv4Addr) -> Result<()> {
        let [a, b, c, host] = address.octets();
        let refuse = |reason| Err(NetError::Address { address, reason });
        if a != 10 || host == 0 || host == 255 {
            return refuse("use one from 10.x.y.1 to 10.x.y.254");
        }
        if self.taken.contains(&address) {
            return refuse("another container of this switch has it");
        }
        match self.taken.first() {
            Some(first) if first.octets()[..3] != [a, b, c] => refuse(
                "it lies in another /24 than the first container of this switch, which could not reach it",
            ),
            _ => Ok(()),
        }
    }
}

// === impl Links ===

impl Links {
    /// Opens a netlink socket in the calling thread's namespace. Needs a tokio runtime, which
    /// drives the socket.
    pub(super) fn open() -> Result<Self> {
        let (connection, handle, _) = rtnetlink::new_connection()
            .map_err(|source| NetError::new("open", "a netlink socket", source))?;
        tokio::spawn(connection);
        Ok(Self { handle })
    }

    /// Adds a bridge and sets it up.
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
        // The kernel creates the peer directly in `namespace`, so a name like eth0 never collides
        // in the current one.
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

/// Runs `work` inside a namespace, with the namespace's links, which need an async runtime.
fn with_links<F>(namespace: &Netns, work: impl FnOnce(Links) -> F + Send) -> Result<()>
where
    F: Future<Output = Result<()>>,
{
    // The runtime is built before the namespace is entered: the first runtime of a process makes a
    // pair of sockets for signals and keeps it for ever, and a socket keeps the namespace of its
    // creation alive.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()
        .map_err(|source| NetError::new("start", "a runtime for netlink", source))?;
    namespace.run(|| runtime.block_on(async { work(Links::open()?).await }))?
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
