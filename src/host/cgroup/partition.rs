//! Cpuset partitions: CPUs that the kernel takes away from every cgroup outside the partition.
//!
//! Partitions at any depth exist on cgroup v2 from Linux 6.7 on. Pinfold looks for the partition
//! files, never for a version. The kernel accepts almost every write, even without effect. Only
//! `cpuset.cpus.partition`, read afterwards, shows a failure: hence [`Partition::Invalid`].

use std::fmt;

use serde::{Deserialize, Serialize};

use super::layout::{self, PodTreeEntry};
use super::{CgroupError, Cgroups, Cpuset, Version, file, ignore_gone, parse};
use crate::cpu::CpuSet;

/// The file with a cgroup's partition state. The kernel notifies watchers of the file when a
/// partition becomes invalid.
pub const PARTITION: &str = "cpuset.cpus.partition";

/// The cgroup made for a moment to test the kernel's features.
const PROBE: &str = "pinfold-probe";

/// The kinds of partition to write to `cpuset.cpus.partition`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// No partition: the cgroup shares CPUs with its siblings.
    Member,
    /// A partition with a separate scheduling domain.
    Root,
    /// A partition without load balancing, for programs that bind every thread.
    Isolated,
}

impl Kind {
    /// The word to write to `cpuset.cpus.partition`.
    pub fn word(self) -> &'static str {
        match self {
            Self::Member => "member",
            Self::Root => "root",
            Self::Isolated => "isolated",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// The partition state that the kernel reports for a cgroup.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Partition {
    /// The kernel has no partitions below the top of the hierarchy.
    #[default]
    Unsupported,
    /// The requested kind is in force.
    Valid(Kind),
    /// The requested kind is not in force. The text is the kernel's, like `root invalid (Parent is
    /// not a partition root)`.
    Invalid(String),
}

impl Partition {
    /// Whether the kernel reserves the cgroup's exclusive CPUs for the cgroup now.
    pub fn is_live(&self) -> bool {
        self.live().is_some()
    }

    /// The kind of a partition in force; `None` for a member and for an invalid partition.
    pub fn live(&self) -> Option<Kind> {
        match self {
            Self::Valid(kind @ (Kind::Root | Kind::Isolated)) => Some(*kind),
            _ => None,
        }
    }

    fn read(text: &str) -> Self {
        match text {
            "member" => Self::Valid(Kind::Member),
            "root" => Self::Valid(Kind::Root),
            "isolated" => Self::Valid(Kind::Isolated),
            other => Self::Invalid(other.to_owned()),
        }
    }
}

impl fmt::Display for Partition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unsupported => f.write_str("unsupported"),
            Self::Valid(kind) => kind.fmt(f),
            Self::Invalid(text) => f.write_str(text),
        }
    }
}

/// A cgroup on the path from the top of the hierarchy to the pods.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Above {
    /// The cgroup's path, relative to the hierarchy.
    pub path: String,
    /// The cgroup's CPUs.
    pub cpuset: Cpuset,
    /// Exclusive CPUs of direct child cgroups, without the pods and without cgroups on the path to
    /// pods.
    pub foreign: CpuSet,
}

/// The hierarchy around the pods.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Surroundings {
    /// The cgroups above the pods, from the top down.
    pub above: Vec<Above>,
    /// Cgroups outside the pods' trees with exclusive CPUs: the path and the CPUs of each.
    pub outside: Vec<(String, CpuSet)>,
}

// === impl Cgroups ===

impl Cgroups {
    /// Whether the kernel has partitions at any depth, judged by their files.
    ///
    /// If no cgroup with cpuset files exists yet, a test cgroup is made and removed again.
    pub fn offers_partitions(&self) -> Result<bool, CgroupError> {
        if self.version == Version::V1 {
            return Ok(false);
        }
        for child in self.children("")? {
            let dir = self.root().join(child);
            if dir.join("cpuset.cpus").exists() {
                return Ok(dir.join("cpuset.cpus.exclusive").exists());
            }
        }
        let control = self.root().join("cgroup.subtree_control");
        let before = file::read_value(&control)?;
        let offered = self.create(PROBE).map(|()| {
            self.root()
                .join(PROBE)
                .join("cpuset.cpus.exclusive")
                .exists()
        });
        let removed = self.remove(PROBE);
        let after = file::read_value(&control)?;
        for controller in enabled_by_create(&before, &after) {
            file::write(&control, &format!("-{controller}"))?;
        }
        removed.and(offered)
    }

    /// Whether a neighbour's plain CPU set makes a partition invalid on this kernel. Such a kernel
    /// can lose CPUs until the next boot. CPUs are lost if a partition's cgroup is removed before
    /// `member` is written to the partition.
    ///
    /// The test uses throw-away cgroups with the CPU `cpu`. Every cgroup outside the test lacks the
    /// CPU for some milliseconds. The test itself loses no CPU: `member` is written before any
    /// cgroup is removed.
    pub fn neighbours_can_break_partitions(&self, cpu: u32) -> Result<bool, CgroupError> {
        let one: CpuSet = [cpu].into_iter().collect();
        let (owner, neighbour) = (format!("{PROBE}/owner"), format!("{PROBE}/neighbour"));
        let tried = (|| {
            for path in [PROBE, &owner, &neighbour] {
                self.create(path)?;
            }
            self.set_exclusive(PROBE, &one)?;
            self.set_exclusive(&owner, &one)?;
            self.set_partition(&owner, Kind::Root)?;
            let made = self.partition(&owner)?;
            if !made.is_live() {
                let path = self.root().join(&owner).join(PARTITION);
                return Err(CgroupError::Partition {
                    path,
                    says: made.to_string(),
                });
            }
            self.set_cpus(&neighbour, &one)?;
            Ok(!self.partition(&owner)?.is_live())
        })();
        // After success or failure, `member` is written before the cgroups are removed.
        let undone = ignore_gone(self.set_partition(&owner, Kind::Member));
        let removed = self.remove(PROBE);
        undone?;
        removed?;
        tried
    }

    /// The partition state that the kernel reports for a cgroup.
    pub fn partition(&self, path: &str) -> Result<Partition, CgroupError> {
        let dir = self.root().join(path);
        // Linux before 6.7 has partitions only at the top, and no file of exclusive CPUs.
        if self.version == Version::V1 || !dir.join("cpuset.cpus.exclusive").exists() {
            return Ok(Partition::Unsupported);
        }
        let text = file::read_value_optional(&dir.join(PARTITION))?;
        Ok(text
            .as_deref()
            .map_or(Partition::Unsupported, Partition::read))
    }

    /// The CPUs that a cgroup holds as exclusive (`cpuset.cpus.exclusive`); empty if the file does
    /// not exist.
    pub fn exclusive(&self, path: &str) -> Result<CpuSet, CgroupError> {
        let file = self.root().join(path).join("cpuset.cpus.exclusive");
        match file::read_value_optional(&file)? {
            Some(text) => parse(&file, &text),
            None => Ok(CpuSet::new()),
        }
    }

    /// Sets the CPUs that a cgroup may hold as exclusive; an empty set clears them.
    ///
    /// # Errors
    /// EINVAL if a neighbour holds a CPU of the set: see [`Cgroups::in_the_way`].
    pub fn set_exclusive(&self, path: &str, cpus: &CpuSet) -> Result<(), CgroupError> {
        Ok(file::write(
            &self.root().join(path).join("cpuset.cpus.exclusive"),
            &cpus.to_string(),
        )?)
    }

    /// Makes a cgroup a partition, or a member again. The write can succeed without effect: read
    /// [`Cgroups::partition`] afterwards.
    pub fn set_partition(&self, path: &str, kind: Kind) -> Result<(), CgroupError> {
        Ok(file::write(
            &self.root().join(path).join(PARTITION),
            kind.word(),
        )?)
    }

    /// The neighbours that keep the cgroup `path` from holding `cpus` as exclusive. A neighbour is
    /// in the way if it holds a CPU of `cpus` as exclusive. A neighbour without exclusive CPUs is
    /// in the way if `cpus` contains its whole written set.
    pub fn in_the_way(&self, path: &str, cpus: &CpuSet) -> Vec<String> {
        let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
        let mut found = Vec::new();
        for other in self.children(parent).unwrap_or_default() {
            if other == name {
                continue;
            }
            let other = join(parent, &other);
            let Ok(now) = self.cpuset(&other) else {
                continue;
            };
            let swallowed = !now.cpus.is_empty() && now.cpus.is_subset(cpus);
            if !now.exclusive.is_disjoint(cpus) || (now.exclusive.is_empty() && swallowed) {
                found.push(other);
            }
        }
        found
    }

    /// Reads the cgroups above the pods of `trees`, and the exclusive CPUs of further cgroups
    /// around the pods.
    pub fn surroundings(&self, trees: &[String]) -> Result<Surroundings, CgroupError> {
        let mut found = Surroundings::default();
        if self.version == Version::V1 {
            return Ok(found);
        }
        let mut ways = Vec::new();
        for tree in trees.iter().filter(|tree| self.exists(tree)) {
            let mut way = String::new();
            for part in tree.split('/') {
                way = join(&way, part);
                ways.push((way.clone(), way == *tree));
            }
            for name in ignore_gone(self.children(tree))?.unwrap_or_default() {
                if layout::entry(&name) == PodTreeEntry::Class {
                    ways.push((join(tree, &name), true));
                }
            }
        }
        ways.sort_by_key(|(path, _)| (path.matches('/').count(), path.clone()));
        ways.dedup_by(|one, other| {
            other.1 |= one.1 && one.0 == other.0;
            one.0 == other.0
        });
        let on_the_way = |path: &str| ways.iter().any(|(way, _)| way == path);
        let mut foreign = |parent: &str, holds_pods: bool| -> Result<CpuSet, CgroupError> {
            let mut all = CpuSet::new();
            for name in ignore_gone(self.children(parent))?.unwrap_or_default() {
                let path = join(parent, &name);
                let pod = holds_pods && matches!(layout::entry(&name), PodTreeEntry::Pod { .. });
                if pod || on_the_way(&path) {
                    continue;
                }
                let held = ignore_gone(self.exclusive(&path))?.unwrap_or_default();
                if !held.is_empty() {
                    all = all.union(&held);
                    found.outside.push((path, held));
                }
            }
            Ok(all)
        };
        foreign("", false)?;
        for (path, holds_pods) in &ways {
            let Some(cpuset) = ignore_gone(self.cpuset(path))? else {
                continue;
            };
            let foreign = foreign(path, *holds_pods)?;
            found.above.push(Above {
                path: path.clone(),
                cpuset,
                foreign,
            });
        }
        Ok(found)
    }

    /// Online CPUs without a cgroup: the kernel has lost the CPUs until the next boot.
    ///
    /// `live` are the CPUs of the known partitions. If an online CPU is still missing, the whole
    /// hierarchy is searched for further partitions.
    pub fn lost(&self, online: &CpuSet, live: &CpuSet) -> Result<CpuSet, CgroupError> {
        let missing = |live: &CpuSet| -> Result<CpuSet, CgroupError> {
            Ok(online.difference(&self.all_cpus()?).difference(live))
        };
        if self.version == Version::V1 || missing(live)?.is_empty() {
            return Ok(CpuSet::new());
        }
        // A partition may come or go between two reads. A lost CPU is missing in both rounds.
        let mut lost = online.clone();
        for _ in 0..2 {
            let mut everywhere = CpuSet::new();
            self.collect_live("", &mut everywhere)?;
            lost = lost.intersection(&missing(&everywhere)?);
        }
        Ok(lost)
    }

    fn collect_live(&self, path: &str, live: &mut CpuSet) -> Result<(), CgroupError> {
        for child in ignore_gone(self.children(path))?.unwrap_or_default() {
            let child = join(path, &child);
            // On every kernel, partitions at the top lack the file of exclusive CPUs.
            let text = file::read_optional(&self.root().join(&child).join(PARTITION))?;
            if text.is_some_and(|text| Partition::read(&text).is_live())
                && let Some(cpuset) = ignore_gone(self.cpuset(&child))?
            {
                *live = live.union(&cpuset.effective);
            }
            self.collect_live(&child, live)?;
        }
        Ok(())
    }
}

/// The path of the cgroup `name` directly below `parent`; the top is the empty path.
fn join(parent: &str, name: &str) -> String {
    if parent.is_empty() {
        name.to_owned()
    } else {
        format!("{parent}/{name}")
    }
}

/// The controllers enabled by [`Cgroups::create`], judged by `cgroup.subtree_control` before and
/// after. A different program may have enabled further controllers.
fn enabled_by_create(before: &str, after: &str) -> impl Iterator<Item = &'static str> {
    let has = |text: &str, name: &str| text.split_whitespace().any(|one| one == name);
    ["cpuset", "cpu"]
        .into_iter()
        .filter(move |name| has(after, name) && !has(before, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_probe_leaves_the_controllers_as_they_were() {
        let enabled = |before, after| enabled_by_create(before, after).collect::<Vec<_>>();
        assert_eq!(enabled("", "cpuset cpu\n"), ["cpuset", "cpu"]);
        assert_eq!(
            enabled("memory pids\n", "cpuset cpu memory pids\n"),
            ["cpuset", "cpu"]
        );
        assert_eq!(enabled("cpuset\n", "cpuset cpu\n"), ["cpu"]);
        assert_eq!(
            enabled("cpuset cpu memory\n", "cpuset cpu memory\n"),
            [""; 0]
        );
        // A different program enabled `io`.
        assert_eq!(enabled("cpuset cpu\n", "cpuset cpu io\n"), [""; 0]);
    }

    #[test]
    fn the_kernels_words() {
        assert!(Partition::read("root").is_live());
        assert!(Partition::read("isolated").is_live());
        assert_eq!(Partition::read("member"), Partition::Valid(Kind::Member));
        let invalid = "root invalid (Parent is not a partition root)";
        assert_eq!(
            Partition::read(invalid),
            Partition::Invalid(invalid.to_owned())
        );
        assert!(!Partition::read(invalid).is_live());
    }
}
