//! Cpuset partitions: CPUs that the kernel itself takes away from every other cgroup.
//!
//! They exist on cgroup v2 from Linux 6.7 on, and are found by their files, never by a version. Almost no failure is an
//! error of the write: what `cpuset.cpus.partition` says afterwards is what counts, hence [`Partition::Invalid`].

use std::fmt;

use serde::{Deserialize, Serialize};

use super::layout::{self, PodTreeEntry};
use super::{CgroupError, Cgroups, Cpuset, Version, file, ignore_gone, parse};
use crate::cpu::CpuSet;

/// The file that says what a cgroup is; the kernel tells those who watch it when it makes a partition invalid.
pub const PARTITION: &str = "cpuset.cpus.partition";

/// A cgroup that is made for a moment, to see what the kernel offers.
const PROBE: &str = "pinfold-probe";

/// What a cgroup can be made, by a write to `cpuset.cpus.partition`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// No partition: it shares CPUs with others.
    Member,
    /// A partition with a scheduling domain of its own.
    Root,
    /// A partition without load balancing: for programs that bind each of their threads.
    Isolated,
}

impl Kind {
    /// The word that is written.
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

/// What the kernel says that a cgroup is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Partition {
    /// The kernel has no partitions below the top of the hierarchy.
    #[default]
    Unsupported,
    /// What was asked for is in force.
    Valid(Kind),
    /// Something was asked for and is not in force; the kernel's words, like `root invalid (Parent is not a partition root)`.
    Invalid(String),
}

impl Partition {
    /// Whether its exclusive CPUs are its own now.
    pub fn is_live(&self) -> bool {
        self.live().is_some()
    }

    /// Which kind of partition it is, where its exclusive CPUs are its own now.
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

/// A cgroup above the pods: the way from the top of the hierarchy to them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Above {
    /// Path relative to the hierarchy.
    pub path: String,
    /// The cgroup's CPUs.
    pub cpuset: Cpuset,
    /// CPUs that cgroups directly below it hold as exclusive, and that are neither pods nor on the way to pods.
    pub foreign: CpuSet,
}

/// The hierarchy around the pods.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Surroundings {
    /// The cgroups above the pods, the higher the earlier.
    pub above: Vec<Above>,
    /// CPUs that others hold as exclusive, outside the pods' trees: cgroup and CPUs.
    pub outside: Vec<(String, CpuSet)>,
}

// === impl Cgroups ===

impl Cgroups {
    /// Whether this kernel has partitions at any depth, found out by looking for their files.
    ///
    /// Where no cgroup exists yet that could have them, one is made and removed again.
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

    /// Whether a partition of this kernel is made invalid by a neighbour's plain CPU set. CPUs can then be lost until the
    /// next boot, if the partition's cgroup goes before `member` was written to it.
    ///
    /// Tried out on throw-away cgroups with one CPU, which everybody else is without for some milliseconds. Nothing can be
    /// lost on the way: `member` is written before anything is removed.
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
        // In this order, whatever happened.
        let undone = ignore_gone(self.set_partition(&owner, Kind::Member));
        let removed = self.remove(PROBE);
        undone?;
        removed?;
        tried
    }

    /// What the kernel says that a cgroup is.
    pub fn partition(&self, path: &str) -> Result<Partition, CgroupError> {
        let dir = self.root().join(path);
        // Linux before 6.7 has partitions at the top only, and no file of exclusive CPUs.
        if self.version == Version::V1 || !dir.join("cpuset.cpus.exclusive").exists() {
            return Ok(Partition::Unsupported);
        }
        let text = file::read_value_optional(&dir.join(PARTITION))?;
        Ok(text
            .as_deref()
            .map_or(Partition::Unsupported, Partition::read))
    }

    /// The CPUs that a cgroup holds as exclusive (`cpuset.cpus.exclusive`); none where there is no such file.
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
    /// EINVAL where another cgroup holds one of them: see [`Cgroups::in_the_way`].
    pub fn set_exclusive(&self, path: &str, cpus: &CpuSet) -> Result<(), CgroupError> {
        Ok(file::write(
            &self.root().join(path).join("cpuset.cpus.exclusive"),
            &cpus.to_string(),
        )?)
    }

    /// Makes a cgroup a partition, or a member again. It may succeed and not be in force: read [`Cgroups::partition`].
    pub fn set_partition(&self, path: &str, kind: Kind) -> Result<(), CgroupError> {
        Ok(file::write(
            &self.root().join(path).join(PARTITION),
            kind.word(),
        )?)
    }

    /// The cgroups beside `path` that keep it from holding `cpus` as exclusive: they hold one of them themselves, or
    /// would have no CPU left of those that were written to them.
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

    /// Reads the cgroups above the pods of these trees, and what others hold as exclusive around them.
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

    /// CPUs that are online and that no cgroup has: the kernel has lost them, until the next boot.
    ///
    /// `live` are the CPUs of partitions that are known of. Others are looked for only if some CPU is missing then.
    pub fn lost(&self, online: &CpuSet, live: &CpuSet) -> Result<CpuSet, CgroupError> {
        let missing = |live: &CpuSet| -> Result<CpuSet, CgroupError> {
            Ok(online.difference(&self.all_cpus()?).difference(live))
        };
        if self.version == Version::V1 || missing(live)?.is_empty() {
            return Ok(CpuSet::new());
        }
        // A partition may come or go between two reads; what is lost is missing each time.
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
            // At the top there are partitions without a file of exclusive CPUs, on any kernel.
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

/// The path of a cgroup directly below another; the top is the empty path.
fn join(parent: &str, name: &str) -> String {
    if parent.is_empty() {
        name.to_owned()
    } else {
        format!("{parent}/{name}")
    }
}

/// The controllers that [`Cgroups::create`] has enabled, by `cgroup.subtree_control` before and after. Another program may have
/// enabled others meanwhile.
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
        // Somebody else's change.
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
