//! Traffic of the pods' sockets, even of pods that share a network namespace. Two small BPF
//! programs at the top of each tree of pods count the packets.
//!
//! The kernel runs the programs for every packet of a socket that a process in the tree has made,
//! which needs cgroup v2. The key of a count is two cgroup ids: that of the cgroup directly below
//! the tree's top, and that of the cgroup a level deeper. They belong to a pod and its container,
//! or to a QoS class and its pod, and the programs need not distinguish the two cases.
//!
//! A key with only the leaf cgroup's id would save a helper call per packet. But a container can
//! start and end between two readings, and then no pod could be found for the id. A pod's cgroup
//! lasts as long as the pod, so its id always leads there.
//!
//! The programs count packets as passed on by the kernel's IP layer: IP header, transport header
//! and payload, without link header. An interface may segment a packet later, or may have merged
//! several packets. The headers of a merged packet count once, and the number of packets is the
//! number of segments.
//!
//! Two kinds of packets belong to no pod: those that the kernel sends without a socket (a reset, an
//! answer to a ping), and those of connections in `TIME_WAIT`, whose socket is reduced to a
//! remnant.

mod program;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::{self, File};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::{BpfError, Direction, PerCpuHash, Program, ProgramLink, lru_map};
use crate::host::cgroup::{CgroupError, Cgroups, Unified, ignore_gone, is_below};
use crate::host::file;
use program::program;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TrafficCount {
    /// Bytes, including the IP header.
    pub bytes: u64,
    /// Packets as on the wire, after segmentation.
    pub packets: u64,
}

/// TCP's counts of sent segments, for both versions of IP together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SocketTcpCounts {
    /// Segments sent, without segments that only repeat sent data.
    pub sent: u64,
    /// Segments sent again.
    pub retransmitted: u64,
    /// How often a retransmission timer expired without an acknowledgment.
    pub timeouts: u64,
}

/// The traffic of a cgroup's sockets since counting began.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SocketTraffic {
    pub receive: TrafficCount,
    pub transmit: TrafficCount,
    /// TCP segments and timeouts of the sent traffic.
    pub tcp: SocketTcpCounts,
}

/// Counts the traffic of the pods in some trees, until it is dropped.
#[derive(Debug)]
pub struct SocketCounter {
    /// The mount point of cgroup v2.
    hierarchy: PathBuf,
    trees: Vec<String>,
    map: TrafficMap,
    /// The programs' state of sockets with expired retransmission timers.
    timers: OwnedFd,
    attached: BTreeMap<String, AttachedTree>,
    /// The sums of deleted entries of ended containers, by the id of the pod's cgroup.
    ended_counts: HashMap<u64, TrafficCounts>,
    /// The entries of ended containers at the last reading.
    ending: HashMap<TrafficKey, TrafficCounts>,
    /// The packets that found no free entry, as of the last reading.
    overflowed_packets: u64,
}

#[derive(Debug, Default)]
pub struct SocketSample {
    /// The traffic of each pod, by the path of the pod's cgroup.
    pub pods: HashMap<String, SocketTraffic>,
    /// Whether packets have found no free entry since the last reading, because the map is full.
    pub overflowed: bool,
    pub entries: usize,
}

/// A tree with attached programs. `id` is the id that its cgroup had when they were attached.
#[derive(Debug)]
struct AttachedTree {
    id: u64,
    _links: [ProgramLink; 2],
}

/// Why traffic can't be counted.
#[derive(Debug, thiserror::Error)]
pub enum SocketsError {
    /// Cgroup v2 is not mounted.
    #[error("sockets are counted on cgroup v2 only, and cgroup v2 is mounted neither at {} nor at {}/unified", root.display(), root.display())]
    NoHierarchy {
        /// The directory in which cgroup v2 was expected.
        root: PathBuf,
    },
    #[error(
        "{} shows only a part of the node's cgroup hierarchy, because of a cgroup namespace: mount the node's whole \
         hierarchy there",
        hierarchy.display()
    )]
    Part {
        /// The mount point.
        hierarchy: PathBuf,
    },
    #[error(transparent)]
    Bpf(#[from] BpfError),
    /// A cgroup can't be opened, or the pods' cgroups can't be listed.
    #[error(transparent)]
    Cgroups(#[from] CgroupError),
}

type TrafficKey = [u64; 2];
type TrafficCounts = [u64; 7];
type TrafficMap = PerCpuHash<2, 7>;

/// The usual number of entries. An entry belongs to a container of a Guaranteed pod, or to a
/// Burstable or BestEffort pod.
pub const DEFAULT_ENTRIES: u32 = 8192;

/// The number of sockets with expired timers in the programs' state. The least recently used one is
/// dropped first.
const TIMERS: u32 = 4096;

/// The number of entries per pod up to which entries of ended containers stay in the map.
const MAX_ENTRIES_PER_POD: usize = 8;

/// The key for packets that find no free entry. No cgroup has the id 0.
const OVERFLOW: TrafficKey = [0, 0];

/// The id of a hierarchy's root cgroup.
const ROOT_ID: u64 = 1;

// === impl SocketTraffic ===

impl SocketTraffic {
    fn add(&mut self, counts: TrafficCounts) {
        let [
            received,
            received_packets,
            sent,
            sent_packets,
            segments,
            retransmitted,
            timeouts,
        ] = counts;
        self.receive.bytes += received;
        self.receive.packets += received_packets;
        self.transmit.bytes += sent;
        self.transmit.packets += sent_packets;
        self.tcp.sent += segments;
        self.tcp.retransmitted += retransmitted;
        self.tcp.timeouts += timeouts;
    }
}

// === impl SocketsError ===

impl SocketsError {
    /// Whether the error lasts as long as this process runs.
    pub fn is_terminal(&self) -> bool {
        match self {
            Self::NoHierarchy { .. } | Self::Part { .. } => true,
            Self::Bpf(error) => error.is_terminal(),
            Self::Cgroups(_) => false,
        }
    }
}

// === impl SocketCounter ===

impl SocketCounter {
    /// Begins to count in all existing trees, with at most `max_entries` entries.
    /// [`SocketCounter::attach`] adds trees that appear later.
    ///
    /// # Errors
    ///
    /// See [`SocketsError`].
    pub fn new(
        cgroup_root: &Path,
        trees: &[String],
        max_entries: u32,
    ) -> Result<Self, SocketsError> {
        let unified = Unified::find(cgroup_root).ok_or_else(|| SocketsError::NoHierarchy {
            root: cgroup_root.to_owned(),
        })?;
        let hierarchy = unified.root().to_owned();
        // The programs need the depth of a cgroup below the real root of the hierarchy.
        if id(&hierarchy)? != Some(ROOT_ID) {
            return Err(SocketsError::Part { hierarchy });
        }
        // A tree inside another one is left out, because its packets would be counted twice.
        let inner = |tree: &String| trees.iter().any(|other| is_below(tree, other));
        let trees = trees.iter().filter(|tree| !inner(tree)).cloned().collect();
        let map = TrafficMap::new("pinfold_sockets", max_entries.saturating_add(1))?;
        map.add(&OVERFLOW)?;
        let timers = lru_map("pinfold_timers", [1, 2], TIMERS)?;
        let mut counter = Self {
            hierarchy,
            trees,
            map,
            timers,
            attached: BTreeMap::new(),
            ended_counts: HashMap::new(),
            ending: HashMap::new(),
            overflowed_packets: 0,
        };
        counter.attach()?;
        Ok(counter)
    }

    /// Begins to count in trees that were made since the last call, or were removed and made again.
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
            let directory = File::open(&path).map_err(CgroupError::directory("open", &path));
            let Some(directory) = ignore_gone(directory)? else {
                continue;
            };
            let depth = tree.split('/').count();
            let maps = [self.map.descriptor(), self.timers.as_raw_fd()];
            let attach = |title, direction| {
                let instructions = program(maps, depth, direction);
                Program::load(title, &instructions, direction)?.attach(directory.as_fd())
            };
            let ingress = attach("pinfold_receive", Direction::Ingress)?;
            let egress = attach("pinfold_send", Direction::Egress)?;
            self.attached.insert(
                tree.clone(),
                AttachedTree {
                    id,
                    _links: [ingress, egress],
                },
            );
        }
        Ok(())
    }

    /// Reads the traffic of `pods`, by the path of each pod's cgroup. Pods outside the counted
    /// trees, and those without a cgroup v2, are left out. Entries of removed pods are deleted.
    ///
    /// # Errors
    /// See [`SocketsError`].
    pub fn sample(
        &mut self,
        cgroups: &Cgroups,
        pods: &HashSet<&str>,
    ) -> Result<SocketSample, SocketsError> {
        let entries = self.map.entries()?;
        let mut ids = HashMap::new();
        // The entry for packets without a free entry is left out.
        let mut sample = SocketSample {
            entries: entries.len().saturating_sub(1),
            ..SocketSample::default()
        };
        for pod in pods.iter().filter(|pod| self.is_counted(pod)) {
            if let Some(id) = id(&self.hierarchy.join(pod))? {
                ids.insert(id, *pod);
                sample
                    .pods
                    .insert((*pod).to_owned(), SocketTraffic::default());
            }
        }
        let mut others = Vec::new();
        let mut containers: HashMap<u64, Vec<(TrafficKey, TrafficCounts)>> = HashMap::new();
        for (key, counts) in entries {
            if key == OVERFLOW {
                let packets = counts[1] + counts[3];
                sample.overflowed = packets > self.overflowed_packets;
                self.overflowed_packets = packets;
                continue;
            }
            let pod = key.iter().find_map(|id| ids.get(id));
            let Some(pod) = pod.and_then(|pod| sample.pods.get_mut(*pod)) else {
                others.push(key);
                continue;
            };
            pod.add(counts);
            if ids.contains_key(&key[0]) {
                containers.entry(key[0]).or_default().push((key, counts));
            }
        }
        for (id, ended_counts) in &self.ended_counts {
            let pod = ids.get(id).and_then(|pod| sample.pods.get_mut(*pod));
            pod.into_iter().for_each(|pod| pod.add(*ended_counts));
        }
        self.add_up_ended(&ids, containers)?;
        self.forget(cgroups, others)?;
        Ok(sample)
    }

    /// Adds up and deletes the entries of a pod's ended containers, if the pod has many entries,
    /// because a pod can outlive any number of containers.
    ///
    /// An entry is deleted once its counts are the same in two readings after the container's end.
    /// By then the container's last socket has been closed.
    fn add_up_ended(
        &mut self,
        ids: &HashMap<u64, &str>,
        containers: HashMap<u64, Vec<(TrafficKey, TrafficCounts)>>,
    ) -> Result<(), SocketsError> {
        let mut ending = HashMap::new();
        for (pod, entries) in containers
            .into_iter()
            .filter(|(_, entries)| entries.len() > MAX_ENTRIES_PER_POD)
        {
            let Some(path) = ids.get(&pod).map(|path| self.hierarchy.join(path)) else {
                continue;
            };
            let below = file::list(&path).map_err(CgroupError::directory("open", &path));
            let Some(below) = ignore_gone(below)? else {
                continue;
            };
            let existing: HashSet<u64> = below.iter().map(|entry| entry.inode).collect();
            // Traffic of the pod's own cgroup has 0 in place of a container's id.
            for (key, counts) in entries
                .into_iter()
                .filter(|(key, _)| key[1] != 0 && !existing.contains(&key[1]))
            {
                if self.ending.get(&key) == Some(&counts) {
                    self.map.delete(&key)?;
                    let ended_counts = self.ended_counts.entry(pod).or_default();
                    ended_counts
                        .iter_mut()
                        .zip(counts)
                        .for_each(|(sum, count)| *sum += count);
                } else {
                    ending.insert(key, counts);
                }
            }
        }
        self.ending = ending;
        Ok(())
    }

    /// Deletes the entries of removed pods. The pods are listed after the map was read, so every
    /// entry belongs to a listed or to a removed pod. Entries of listed pods stay even if the
    /// caller of [`SocketCounter::sample`] omits the pods, since a later call may include them
    /// again.
    fn forget(&mut self, cgroups: &Cgroups, others: Vec<TrafficKey>) -> Result<(), SocketsError> {
        if others.is_empty() && self.ended_counts.is_empty() {
            return Ok(());
        }
        let mut existing = HashSet::new();
        for tree in self.attached.keys() {
            for (path, _) in cgroups.pods(tree)? {
                existing.extend(id(&self.hierarchy.join(path))?);
            }
        }
        for key in others
            .into_iter()
            .filter(|key| !key.iter().any(|id| existing.contains(id)))
        {
            self.map.delete(&key)?;
        }
        self.ended_counts.retain(|pod, _| existing.contains(pod));
        Ok(())
    }

    fn is_counted(&self, pod: &str) -> bool {
        self.attached.keys().any(|tree| is_below(pod, tree))
    }
}

/// The id of a cgroup v2, which is the inode number of its directory; `None` if it does not exist.
fn id(path: &Path) -> Result<Option<u64>, CgroupError> {
    let id = fs::metadata(path).map(|directory| directory.ino());
    ignore_gone(id.map_err(CgroupError::directory("open", path)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_the_whole_of_cgroup_v2_nothing_is_counted() {
        let root = tempfile::tempdir().unwrap();
        let error = SocketCounter::new(root.path(), &[], DEFAULT_ENTRIES).unwrap_err();
        assert!(
            error.is_terminal() && error.to_string().contains("cgroup v2"),
            "{error}"
        );
        fs::create_dir(root.path().join("unified")).unwrap();
        fs::write(root.path().join("unified/cgroup.controllers"), "").unwrap();
        let error = SocketCounter::new(root.path(), &[], DEFAULT_ENTRIES).unwrap_err();
        assert!(
            error.is_terminal() && error.to_string().contains("cgroup namespace"),
            "{error}"
        );
    }
}
