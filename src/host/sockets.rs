//! What the sockets of pods send and receive, also where many pods share one network: counted by two small BPF programs at the
//! top of each tree of pods.
//!
//! The kernel runs them for every packet of a socket that was made by a process in the tree, on cgroup v2. A packet is
//! counted under two numbers, those of the cgroup one step below the tree's top and of the one two steps below. Either the
//! first is a pod's and the second a container's, or the first is a QoS class's and the second a pod's: the programs need
//! not know which. The leaf's number alone would be cheaper by one call, but containers come and go between two looks and
//! take along whose they were; a pod's cgroup stays as long as the pod, and so does what it has counted.
//!
//! What is counted is what the kernel's IP layer hands over: IP and transport headers and the payload, no link header.
//! A packet that an interface is still to cut into several, or has put together from several, has its headers counted once,
//! and as packets as many as it stands for. What the kernel sends without a socket (a reset, an answer to a ping), and what
//! belongs to a connection whose socket has become a remnant (`TIME_WAIT`), is nobody's.

mod program;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::bpf::{BpfError, Direction, Link, LruMap, PerCpuHash, Program};
use super::cgroup::{CgroupError, Cgroups, Unified, is_below};
use super::file;
use super::proc::Tcp;
use program::program;

/// What one direction has counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Sum {
    /// Bytes, from the IP header on.
    pub bytes: u64,
    /// Packets, as they are on a wire.
    pub packets: u64,
}

/// What the sockets of a cgroup have received and sent since they are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Sockets {
    /// What they received.
    pub receive: Sum,
    /// What they sent.
    pub transmit: Sum,
    /// What TCP did of that.
    pub tcp: Tcp,
}

/// Counts for the pods of some trees, until it is dropped.
#[derive(Debug)]
pub struct Counter {
    /// Where cgroup v2 is mounted.
    hierarchy: PathBuf,
    trees: Vec<String>,
    map: Map,
    /// What the programs keep of sockets whose timers ran out.
    kept: LruMap<1, 2>,
    attached: BTreeMap<String, Attached>,
    /// What ended containers had, whose entries are not kept, by their pods' numbers.
    folded: HashMap<u64, Counts>,
    /// What entries of ended containers held at the last look.
    fading: HashMap<Key, Counts>,
    /// Packets that had found no room by the last look.
    lost: u64,
}

/// The result of a look.
#[derive(Debug, Default)]
pub struct SocketSample {
    /// By the pod's path.
    pub pods: HashMap<String, Sockets>,
    /// Whether packets were lost since the last look: there were more cgroups than the kernel was asked to tell apart.
    pub overflowed: bool,
    /// For how many cgroups it had numbers.
    pub entries: usize,
}

/// A tree as it was when the programs were attached to it.
#[derive(Debug)]
struct Attached {
    id: u64,
    _links: [Link; 2],
}

/// Why nothing is counted.
#[derive(Debug, thiserror::Error)]
pub enum SocketsError {
    /// No cgroup v2.
    #[error("sockets are counted on cgroup v2 only, and it is not mounted at {} nor at {}/unified", root.display(), root.display())]
    NoHierarchy {
        /// Where it was looked for.
        root: PathBuf,
    },
    /// A part of the hierarchy only.
    #[error(
        "{} is a part of the node's cgroup hierarchy, seen from a cgroup namespace: mount the node's own there",
        hierarchy.display()
    )]
    Part {
        /// Where it is mounted.
        hierarchy: PathBuf,
    },
    /// The kernel's answer.
    #[error(transparent)]
    Bpf(#[from] BpfError),
    /// The cgroups.
    #[error(transparent)]
    Cgroups(#[from] CgroupError),
    /// A cgroup.
    #[error("can't open cgroup {}", path.display())]
    Cgroup {
        /// Its directory.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
}

type Key = [u64; 2];
type Counts = [u64; 7];
type Map = PerCpuHash<2, 7>;

/// How many cgroups are told apart on a usual node: containers of Guaranteed pods, and pods of the classes.
pub const ROOM: u32 = 8192;

/// Of so many sockets whose timers ran out the programs know it, of the last ones.
const TIMERS: u32 = 4096;

/// With so many entries of a pod, or fewer, it is not asked which of its containers are still there.
const FEW: usize = 8;

/// The number of no cgroup; what finds no room is counted here.
const OVERFLOW: Key = [0, 0];

/// The number of a hierarchy's outermost cgroup.
const OUTERMOST: u64 = 1;

// === impl Sockets ===

impl Sockets {
    /// Adds what an entry holds.
    fn add(&mut self, counts: Counts) {
        let [
            received,
            received_packets,
            sent,
            sent_packets,
            segments,
            again,
            timeouts,
        ] = counts;
        self.receive.bytes += received;
        self.receive.packets += received_packets;
        self.transmit.bytes += sent;
        self.transmit.packets += sent_packets;
        self.tcp.sent += segments;
        self.tcp.retransmitted += again;
        self.tcp.timeouts += timeouts;
    }
}

// === impl SocketsError ===

impl SocketsError {
    /// Whether the error lasts as long as this process runs.
    pub fn is_lasting(&self) -> bool {
        match self {
            Self::NoHierarchy { .. } | Self::Part { .. } => true,
            Self::Bpf(error) => error.is_lasting(),
            Self::Cgroups(_) | Self::Cgroup { .. } => false,
        }
    }
}

// === impl Counter ===

impl Counter {
    /// Begins to count below the trees that are there, telling so many cgroups apart; for the other trees see
    /// [`Counter::attach`].
    ///
    /// # Errors
    /// See [`SocketsError`].
    pub fn new(cgroup_root: &Path, trees: &[String], room: u32) -> Result<Self, SocketsError> {
        let found = Unified::find(cgroup_root);
        let found = found.ok_or_else(|| SocketsError::NoHierarchy {
            root: cgroup_root.to_owned(),
        })?;
        let hierarchy = found.root().to_owned();
        // The kernel counts a cgroup's depth from there.
        if id(&hierarchy)? != Some(OUTERMOST) {
            return Err(SocketsError::Part { hierarchy });
        }
        // Below a tree that lies in another one packets would be counted twice.
        let inner = |tree: &String| trees.iter().any(|other| is_below(tree, other));
        let trees = trees.iter().filter(|tree| !inner(tree)).cloned().collect();
        let map = Map::new("pinfold_sockets", room.saturating_add(1))?;
        map.add(&OVERFLOW)?;
        let kept = LruMap::new("pinfold_timers", TIMERS)?;
        let (attached, folded, fading) = (BTreeMap::new(), HashMap::new(), HashMap::new());
        let mut counter = Self {
            hierarchy,
            trees,
            map,
            kept,
            attached,
            folded,
            fading,
            lost: 0,
        };
        counter.attach()?;
        Ok(counter)
    }

    /// Begins to count below the trees that have appeared, or were made anew, since the last time.
    ///
    /// # Errors
    /// See [`SocketsError`].
    pub fn attach(&mut self) -> Result<(), SocketsError> {
        for tree in &self.trees {
            let path = self.hierarchy.join(tree);
            let id = id(&path)?;
            if self.attached.get(tree).map(|attached| attached.id) == id {
                continue;
            }
            self.attached.remove(tree);
            let Some(id) = id else { continue };
            let directory = match File::open(&path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                opened => opened.map_err(|source| SocketsError::Cgroup { path, source })?,
            };
            let depth = tree.split('/').count();
            let attach = |title, direction| {
                let program = program(
                    self.map.descriptor(),
                    self.kept.descriptor(),
                    depth,
                    direction,
                );
                Program::load(title, &program, direction)?.attach(directory.as_fd())
            };
            let ingress = attach("pinfold_receive", Direction::Ingress)?;
            let egress = attach("pinfold_send", Direction::Egress)?;
            self.attached.insert(
                tree.clone(),
                Attached {
                    id,
                    _links: [ingress, egress],
                },
            );
        }
        Ok(())
    }

    /// What the sockets of these pods have counted, by the path of each pod's cgroup; without those that have no cgroup on
    /// version 2, or none where it is counted. What belongs to no pod that is there any more is forgotten.
    ///
    /// # Errors
    /// See [`SocketsError`].
    pub fn look(
        &mut self,
        cgroups: &Cgroups,
        pods: &HashSet<&str>,
    ) -> Result<SocketSample, SocketsError> {
        let entries = self.map.entries()?;
        let mut ids = HashMap::new();
        // One is kept for what finds no room.
        let mut look = SocketSample {
            entries: entries.len().saturating_sub(1),
            ..SocketSample::default()
        };
        for pod in pods.iter().filter(|pod| self.is_counted(pod)) {
            if let Some(id) = id(&self.hierarchy.join(pod))? {
                ids.insert(id, *pod);
                look.pods.insert((*pod).to_owned(), Sockets::default());
            }
        }
        let mut others = Vec::new();
        let mut containers: HashMap<u64, Vec<(Key, Counts)>> = HashMap::new();
        for (key, counts) in entries {
            if key == OVERFLOW {
                let lost = counts[1] + counts[3];
                look.overflowed = lost > self.lost;
                self.lost = lost;
                continue;
            }
            let pod = key.iter().find_map(|id| ids.get(id));
            let Some(pod) = pod.and_then(|pod| look.pods.get_mut(*pod)) else {
                others.push(key);
                continue;
            };
            pod.add(counts);
            if ids.contains_key(&key[0]) {
                containers.entry(key[0]).or_default().push((key, counts));
            }
        }
        for (id, folded) in &self.folded {
            let pod = ids.get(id).and_then(|pod| look.pods.get_mut(*pod));
            pod.into_iter().for_each(|pod| pod.add(*folded));
        }
        self.fold(&ids, containers)?;
        self.forget(cgroups, others)?;
        Ok(look)
    }

    /// Takes together what a pod's ended containers have counted, where there are many: a pod may outlive any number of them.
    ///
    /// An entry that has not changed since its container was first seen to be gone changes no more: the last of its sockets has
    /// been closed by then.
    fn fold(
        &mut self,
        ids: &HashMap<u64, &str>,
        containers: HashMap<u64, Vec<(Key, Counts)>>,
    ) -> Result<(), SocketsError> {
        let mut fading = HashMap::new();
        for (pod, entries) in containers
            .into_iter()
            .filter(|(_, entries)| entries.len() > FEW)
        {
            let Some(path) = ids.get(&pod).map(|path| self.hierarchy.join(path)) else {
                continue;
            };
            let there: HashSet<u64> = match file::list(&path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(source) => return Err(SocketsError::Cgroup { path, source }),
                Ok(below) => below.iter().map(|entry| entry.inode).collect(),
            };
            // Without the number of a container it is the pod's own.
            for (key, counts) in entries
                .into_iter()
                .filter(|(key, _)| key[1] != 0 && !there.contains(&key[1]))
            {
                if self.fading.get(&key) == Some(&counts) {
                    self.map.delete(&key)?;
                    let folded = self.folded.entry(pod).or_default();
                    folded
                        .iter_mut()
                        .zip(counts)
                        .for_each(|(sum, count)| *sum += count);
                } else {
                    fading.insert(key, counts);
                }
            }
        }
        self.fading = fading;
        Ok(())
    }

    /// Deletes what belongs to none of the pods that are there. They are listed after the map was read, so that none of them
    /// is newer than the list; a pod that nobody asks for yet may be asked for later.
    fn forget(&mut self, cgroups: &Cgroups, others: Vec<Key>) -> Result<(), SocketsError> {
        if others.is_empty() && self.folded.is_empty() {
            return Ok(());
        }
        let mut there = HashSet::new();
        for tree in self.attached.keys() {
            for (path, _) in cgroups.pods(tree)? {
                there.extend(id(&self.hierarchy.join(path))?);
            }
        }
        for key in others
            .into_iter()
            .filter(|key| !key.iter().any(|id| there.contains(id)))
        {
            self.map.delete(&key)?;
        }
        self.folded.retain(|pod, _| there.contains(pod));
        Ok(())
    }

    fn is_counted(&self, pod: &str) -> bool {
        self.attached.keys().any(|tree| is_below(pod, tree))
    }
}

/// The number by which the kernel knows a cgroup of version 2; `None` where there is none.
fn id(path: &Path) -> Result<Option<u64>, SocketsError> {
    match fs::metadata(path) {
        Ok(directory) => Ok(Some(directory.ino())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(SocketsError::Cgroup {
            path: path.to_owned(),
            source,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_the_whole_of_cgroup_v2_nothing_is_counted() {
        let root = tempfile::tempdir().unwrap();
        let error = Counter::new(root.path(), &[], ROOM).unwrap_err();
        assert!(
            error.is_lasting() && error.to_string().contains("cgroup v2"),
            "{error}"
        );
        fs::create_dir(root.path().join("unified")).unwrap();
        fs::write(root.path().join("unified/cgroup.controllers"), "").unwrap();
        let error = Counter::new(root.path(), &[], ROOM).unwrap_err();
        assert!(
            error.is_lasting() && error.to_string().contains("cgroup namespace"),
            "{error}"
        );
    }
}
