//! [`NetnsHandles`]: handles to the counters of processes' network namespaces. They are kept, so
//! that a scrape need not search for the namespace.
//!
//! A handle holds `O_PATH` descriptors of entries in /proc, not open files. An entry belongs to one
//! process for ever, and a later process with the same id has different entries. A descriptor keeps
//! neither the process nor its namespace alive.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::Path;

use nix::fcntl::{OFlag, openat, readlinkat};
use nix::sys::stat::Mode;

use super::net::{self, InterfaceTraffic, NamespaceTcpCounts};
use super::{Proc, Reader};

/// The number of descriptors of a handle.
const EACH: usize = 2;

/// A process, with the number of its container. The caller chooses that number, which is an index
/// and should be small. No other container may have it until [`NetnsHandles::forget`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NetnsKey {
    pub pid: i32,
    pub number: usize,
}

/// Kept handles, by the containers' numbers. Beyond the limit, a namespace is looked up for each reading.
#[derive(Debug)]
pub struct NetnsHandles {
    handles: Vec<Option<NetnsHandle>>,
    count: usize,
    most: usize,
}

#[derive(Debug)]
struct NetnsHandle {
    pid: i32,
    /// The directory with the counters of the process's current namespace.
    directory: OwnedFd,
    /// The link with the namespace's number.
    namespace: OwnedFd,
}

// === impl NetnsHandles ===

impl NetnsHandles {
    /// Keeps handles with at most `descriptors` descriptors together.
    pub fn new(descriptors: usize) -> Self {
        Self {
            handles: Vec::new(),
            count: 0,
            most: descriptors / EACH,
        }
    }

    /// Closes the handle of the container with the given number.
    pub fn forget(&mut self, number: usize) {
        let closed = self.handles.get_mut(number).and_then(Option::take);
        self.count -= usize::from(closed.is_some());
    }

    /// The number of a process's network namespace; see [`Proc::network_namespace`]. The handle is
    /// kept.
    pub fn network_namespace(&mut self, proc: &Proc, key: NetnsKey) -> Option<u64> {
        if let Some(handle) = self.handle(key) {
            if let Some(number) = handle.number() {
                return Some(number);
            }
            // The process is gone, and a new one may have its id by now.
            self.forget(key.number);
        }
        if self.count >= self.most {
            return proc.network_namespace(key.pid);
        }
        let handle = NetnsHandle::find(&proc.dir, key.pid)?;
        let number = handle.number()?;
        if self.handles.len() <= key.number {
            self.handles.resize_with(key.number + 1, || None);
        }
        if let Some(entry) = self.handles.get_mut(key.number) {
            self.count += usize::from(entry.replace(handle).is_none());
        }
        Some(number)
    }

    /// The counters of each interface in the network namespace of a process, without the loopback;
    /// `None` if they can't be read.
    pub fn traffic(
        &mut self,
        proc: &Proc,
        key: NetnsKey,
        reader: &mut Reader,
    ) -> Option<Vec<(String, InterfaceTraffic)>> {
        net::interfaces(self.read(proc, key, "dev", reader)?)
    }

    /// TCP's segment counters in the network namespace of a process; `None` if they can't be read.
    pub fn segments(
        &mut self,
        proc: &Proc,
        key: NetnsKey,
        reader: &mut Reader,
    ) -> Option<NamespaceTcpCounts> {
        NamespaceTcpCounts::parse(self.read(proc, key, "snmp", reader)?)
    }

    /// TCP's timeouts in the network namespace of a process; `None` if they can't be read.
    pub fn timeouts(&mut self, proc: &Proc, key: NetnsKey, reader: &mut Reader) -> Option<u64> {
        net::timeouts(self.read(proc, key, "netstat", reader)?)
    }

    fn read<'a>(
        &mut self,
        proc: &Proc,
        key: NetnsKey,
        name: &str,
        reader: &'a mut Reader,
    ) -> Option<&'a str> {
        match self.handle(key) {
            Some(handle) => reader.read(&handle.open(name)?).ok(),
            None => proc.read(key.pid, name, reader),
        }
    }

    fn handle(&self, key: NetnsKey) -> Option<&NetnsHandle> {
        self.handles
            .get(key.number)?
            .as_ref()
            .filter(|handle| handle.pid == key.pid)
    }
}

// === impl NetnsHandle ===

impl NetnsHandle {
    fn find(proc: &Path, pid: i32) -> Option<Self> {
        let open = |name: &str, flags: OFlag| {
            let path = proc.join(format!("{pid}/{name}"));
            nix::fcntl::open(
                &path,
                flags | OFlag::O_PATH | OFlag::O_CLOEXEC,
                Mode::empty(),
            )
            .ok()
        };
        let namespace = open("ns/net", OFlag::O_NOFOLLOW)?;
        Some(Self {
            pid,
            directory: open("net", OFlag::O_DIRECTORY)?,
            namespace,
        })
    }

    fn number(&self) -> Option<u64> {
        net::number(readlinkat(&self.namespace, "").ok()?.to_str()?)
    }

    fn open(&self, name: &str) -> Option<File> {
        openat(
            &self.directory,
            name,
            OFlag::O_RDONLY | OFlag::O_CLOEXEC,
            Mode::empty(),
        )
        .ok()
        .map(File::from)
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    impl NetnsHandles {
        pub(crate) fn open_count(&self) -> usize {
            self.count
        }
    }

    #[test]
    fn a_way_is_kept_until_its_process_is_gone_and_is_never_anothers() {
        let (proc, mut reader) = (Proc::new(Path::new("/")), Reader::default());
        let (mut handles, mut no_room) = (NetnsHandles::new(EACH), NetnsHandles::new(EACH - 1));
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let key = NetnsKey {
            pid: i32::try_from(child.id()).unwrap(),
            number: 3,
        };
        let number = proc.network_namespace(key.pid);
        assert!(number.is_some());
        let dev = |handles: &mut NetnsHandles, reader: &mut Reader| {
            let interfaces = handles.traffic(&proc, key, reader)?;
            Some(
                interfaces
                    .into_iter()
                    .map(|(name, _)| name)
                    .collect::<Vec<_>>(),
            )
        };
        let names = dev(&mut NetnsHandles::new(0), &mut reader).unwrap();
        for kept in [&mut handles, &mut no_room] {
            for _ in 0..2 {
                assert_eq!(kept.network_namespace(&proc, key), number);
                assert_eq!(dev(kept, &mut reader).as_ref(), Some(&names));
                assert!(kept.segments(&proc, key, &mut reader).is_some());
                assert!(kept.timeouts(&proc, key, &mut reader).is_some());
            }
        }
        assert_eq!((handles.open_count(), no_room.open_count()), (1, 0));
        // The limit leaves no room for a second handle.
        let own = NetnsKey {
            pid: i32::try_from(std::process::id()).unwrap(),
            number: 4,
        };
        assert_eq!(handles.network_namespace(&proc, own), number);
        assert_eq!(handles.open_count(), 1);
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(dev(&mut handles, &mut reader), None);
        assert_eq!(handles.network_namespace(&proc, key), None);
        assert_eq!(handles.open_count(), 0, "what is gone is not kept");
        handles.forget(9);
    }

    #[test]
    fn another_process_with_the_id_gets_a_way_of_its_own() {
        let directory = tempfile::tempdir().unwrap();
        let process = directory.path().join("proc/7");
        let make = |namespace: u64, sent: u64| {
            std::fs::create_dir_all(process.join("net")).unwrap();
            std::fs::create_dir_all(process.join("ns")).unwrap();
            let text = format!(
                "Tcp: AttemptFails EstabResets OutSegs RetransSegs OutRsts\nTcp: 1 2 {sent} 4 5\n"
            );
            std::fs::write(process.join("net/snmp"), text).unwrap();
            std::os::unix::fs::symlink(format!("net:[{namespace}]"), process.join("ns/net"))
                .unwrap();
        };
        make(1, 30);
        let (proc, mut reader) = (Proc::new(directory.path()), Reader::default());
        let (mut handles, key) = (NetnsHandles::new(2 * EACH), NetnsKey { pid: 7, number: 0 });
        assert_eq!(handles.network_namespace(&proc, key), Some(1));
        assert_eq!(handles.segments(&proc, key, &mut reader).unwrap().sent, 30);
        // The number now stands for another process in the same container.
        let other = NetnsKey { pid: 8, ..key };
        assert_eq!(handles.network_namespace(&proc, other), None);
        assert_eq!(handles.segments(&proc, other, &mut reader), None);
        // The container is gone, and a new one has its number.
        handles.forget(0);
        std::fs::remove_dir_all(&process).unwrap();
        make(2, 40);
        assert_eq!(handles.network_namespace(&proc, key), Some(2));
        assert_eq!(handles.segments(&proc, key, &mut reader).unwrap().sent, 40);
        assert_eq!(handles.open_count(), 1);
    }
}
