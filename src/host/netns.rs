//! Network namespaces for local containers, joined by a bridge outside the host's namespace.
//!
//! Only a file descriptor holds a namespace: no name under /run/netns, no bind mount, no process. The bridge lives in
//! its own namespace. No interface, address, route or firewall rule of the host is touched. A namespace ends with its
//! last open descriptor and its last process. The kernel then removes the namespace and every link inside, also if
//! this program is killed.

use std::collections::BTreeSet;
use std::fs::File;
use std::future::Future;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;

use nix::sched::{CloneFlags, setns, unshare};

pub use super::link::NetError;
use super::link::{Links, Result};

const BRIDGE: &str = "switch";
const PREFIX: u8 = 24;

/// A network namespace, kept alive by an open file. Clones refer to the same namespace.
#[derive(Debug, Clone)]
pub struct Netns {
    file: Arc<OwnedFd>,
}

/// A reference to the network namespace of a process, for [`for_each_netns`]. A namespace with a different number is
/// skipped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetnsRef {
    /// The process's namespace file, like `/proc/7/ns/net`.
    pub file: PathBuf,
    /// The number of the namespace. Another process may have the process id by now.
    pub number: u64,
}

/// A bridge in a private namespace. Each container that joins gets its own namespace with an `eth0`.
///
/// Dropping the switch unplugs every container: each `eth0` vanishes with the bridge's end of the pair.
#[derive(Debug)]
pub struct NetworkSwitch {
    namespace: Netns,
    taken: BTreeSet<Ipv4Addr>,
}

// === impl Netns ===

impl Netns {
    /// A new namespace with only a loopback, which is down. Threads of this process stay in their namespace.
    ///
    /// # Errors
    ///
    /// The kernel refuses, because `CAP_SYS_ADMIN` is missing or the kernel was built without namespaces.
    pub fn new() -> Result<Self> {
        // Unsharing moves the calling thread for good, hence the call is made by a thread that ends right after.
        in_thread(|| {
            unshare(CloneFlags::CLONE_NEWNET)
                .map_err(|errno| NetError::new("create", "a network namespace", errno))?;
            let path = "/proc/thread-self/ns/net";
            let file = File::open(path).map_err(|source| NetError::new("open", path, source))?;
            Ok(Self {
                file: Arc::new(file.into()),
            })
        })
    }

    /// Runs `work` on a thread inside this namespace and returns the result of `work`.
    ///
    /// Sockets opened by `work` belong to this namespace for ever, wherever they are used later.
    ///
    /// # Errors
    ///
    /// The namespace can't be entered.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T> {
        in_thread(|| {
            setns(&*self.file, CloneFlags::CLONE_NEWNET)
                .map_err(|errno| NetError::new("enter", "a network namespace", errno))?;
            Ok(work())
        })
    }

    /// Like [`Netns::run`] with the namespace's links, which need an async runtime.
    fn with_links<F>(&self, work: impl FnOnce(Links) -> F + Send) -> Result<()>
    where
        F: Future<Output = Result<()>>,
    {
        // The runtime is built before the namespace is entered. The first runtime of a process makes a pair of
        // sockets for signals and keeps the pair for ever. A socket keeps the namespace of its creation alive.
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .build()
            .map_err(|source| NetError::new("start", "a runtime for netlink", source))?;
        self.run(|| runtime.block_on(async { work(Links::open()?).await }))?
    }
}

impl AsFd for Netns {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Visits namespaces one after the other, and calls `work` in each with the namespace's index in the list. All visits
/// run on one thread, which ends after the last visit. Namespaces that are gone, or can't be entered, are left out.
///
/// After a visit, no descriptor holds the namespace, unless `work` keeps a descriptor. If all processes of the
/// namespace have ended meanwhile, the namespace ends when the thread moves on.
///
/// # Errors
/// No namespace could be entered, because `CAP_SYS_ADMIN` is missing.
pub fn for_each_netns(namespaces: &[NetnsRef], mut work: impl FnMut(usize) + Send) -> Result<()> {
    in_thread(|| {
        let (mut entered, mut refused) = (false, None);
        for (index, namespace) in namespaces.iter().enumerate() {
            let Ok(file) = File::open(&namespace.file) else {
                continue;
            };
            if file.metadata().map_or(0, |file| file.ino()) != namespace.number {
                continue;
            }
            if let Err(errno) = setns(&file, CloneFlags::CLONE_NEWNET) {
                refused = Some(NetError::new(
                    "enter",
                    namespace.file.display().to_string(),
                    errno,
                ));
                continue;
            }
            drop(file);
            entered = true;
            work(index);
        }
        refused.filter(|_| !entered).map_or(Ok(()), Err)
    })
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
        namespace.with_links(|links| async move { links.add_bridge(BRIDGE).await })?;
        Ok(Self {
            namespace,
            taken: BTreeSet::new(),
        })
    }

    /// A new namespace, plugged into the bridge. Its `lo` is up, and its `eth0` has the given address and a /24.
    ///
    /// # Errors
    ///
    /// The address is not a host's address in 10.0.0.0/8, is taken, or lies in another /24 than earlier addresses.
    /// The kernel may also refuse (see [`NetError`]), and nothing stays behind then.
    pub fn join(&mut self, address: Ipv4Addr) -> Result<Netns> {
        self.check(address)?;
        let container = Netns::new()?;
        let port = format!("port{}", address.octets()[3]);
        self.namespace.with_links(|links| {
            let container = &container;
            async move {
                links
                    .add_port(&port, BRIDGE, "eth0", container.as_fd())
                    .await
            }
        })?;
        container.with_links(|links| async move {
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

/// Runs `work` on a new thread, because namespaces belong to threads.
fn in_thread<T: Send>(work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    thread::scope(|scope| {
        let thread = thread::Builder::new()
            .name("pinfold-netns".to_owned())
            .spawn_scoped(scope, work)
            .map_err(|source| NetError::new("start", "a thread for a namespace", source))?;
        thread
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}
