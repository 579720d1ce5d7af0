//! Network namespaces: those of containers, which the metrics visit, and new ones for the demo.
//!
//! Only a file descriptor holds a new namespace: no name under /run/netns, no bind mount, no
//! process. A namespace ends with its last open descriptor and its last process. The kernel then
//! removes it and every link inside, even if this program is killed.

use std::fs::File;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;

use nix::libc;
use nix::sched::{CloneFlags, setns, unshare};

/// A network namespace, kept alive by an open file. Clones refer to the same namespace.
#[derive(Debug, Clone)]
pub struct Netns {
    file: Arc<OwnedFd>,
}

/// A reference to the network namespace of a process, for [`for_each_netns`]. If the process has
/// another namespace by now, it is skipped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetnsRef {
    pub file: PathBuf,
    /// The number of the namespace, to compare, because another process may have the process id by
    /// now.
    pub number: u64,
}

/// Why a network could not be made or entered.
#[derive(Debug, thiserror::Error)]
pub enum NetError {
    #[error("cannot {operation} {subject}: {cause}{remedy}")]
    Refused {
        /// The operation, as a verb.
        operation: &'static str,
        /// What the operation works on.
        subject: String,
        cause: io::Error,
        /// The remedy after a semicolon; empty for an unknown cause.
        remedy: &'static str,
    },
    /// A container of the switch can't have the address.
    #[error("cannot give a container the address {address}: {reason}")]
    Address {
        address: Ipv4Addr,
        /// What is wrong with the address, and which address to use.
        reason: &'static str,
    },
}

pub(super) type Result<T, E = NetError> = std::result::Result<T, E>;

// === impl Netns ===

impl Netns {
    /// A new namespace with only a loopback, which is down. Threads of this process stay in their namespace.
    ///
    /// # Errors
    ///
    /// The kernel refuses, because `CAP_SYS_ADMIN` is missing or the kernel was built without namespaces.
    pub fn new() -> Result<Self> {
        // Unsharing moves the calling thread for good, so a thread does it that ends right after.
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

    /// Runs `work` on a thread inside this namespace and returns its result.
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
}

impl AsFd for Netns {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Visits namespaces one after the other, and calls `work` in each with its index in the list. All
/// visits run on one thread, which ends after the last one. Namespaces that are gone, or can't be
/// entered, are left out.
///
/// After a visit, no descriptor holds the namespace, unless `work` keeps one. If all its processes
/// have ended meanwhile, the namespace ends when the thread moves on.
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

// === impl NetError ===

impl NetError {
    /// Names the operation, and chooses the remedy by the kernel's error.
    pub(super) fn new(
        operation: &'static str,
        subject: impl Into<String>,
        cause: impl Into<io::Error>,
    ) -> Self {
        let cause = cause.into();
        let remedy = match cause.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => {
                "; run as root, or with CAP_SYS_ADMIN and CAP_NET_ADMIN"
            }
            Some(libc::EOPNOTSUPP | libc::EPROTONOSUPPORT | libc::EAFNOSUPPORT | libc::ENODEV) => {
                "; this kernel has no such device: load the modules bridge and veth, or use a kernel built with \
                 CONFIG_BRIDGE, CONFIG_VETH and CONFIG_NET_NS"
            }
            _ => "",
        };
        Self::Refused {
            operation,
            subject: subject.into(),
            cause,
            remedy,
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
            "cannot add bridge b: Operation not permitted (os error 1); run as root, or with CAP_SYS_ADMIN and CAP_NET_ADMIN"
        );
        assert!(by_errno(libc::EOPNOTSUPP).contains("CONFIG_BRIDGE"));
        assert_eq!(
            by_errno(libc::EEXIST),
            "cannot add bridge b: File exists (os error 17)"
        );
    }
}
