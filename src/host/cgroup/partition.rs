//! Cpuset partitions: CPUs that the kernel takes away from every cgroup outside the partition.
//!
//! Partitions at any depth exist on cgroup v2 from Linux 6.7 on, but Pinfold looks for the
//! partition files, never for a version. The kernel accepts almost every write, even one without
//! effect, and only `cpuset.cpus.partition`, read afterwards, shows a failure: hence
//! [`Partition::Invalid`].

use super::cgroups::{
    CgroupError, Cgroups, Cpuset, Partition, PartitionKind, Result, contains_word, cpu_list,
    cpu_list_optional, ignore_gone, join,
};
use super::layout::{self, PodTreeEntry};
use crate::cpu::CpuSet;
use crate::host::file;

/// The file with a cgroup's partition state. The kernel notifies those who watch it when a
/// partition becomes invalid.
pub const PARTITION: &str = "cpuset.cpus.partition";

/// The file with the CPUs that a cgroup may hold as exclusive.
const EXCLUSIVE: &str = "cpuset.cpus.exclusive";

/// The name of the temporary cgroup for testing the kernel's features.
const PROBE: &str = "pinfold-probe";

/// Online CPUs that no cgroup outside the partitions has, and no valid partition either.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MissingCpus {
    pub all: CpuSet,
    /// Those that an invalid partition holds. They come back when it ends.
    pub held: CpuSet,
}

impl MissingCpus {
    /// Those that nothing holds: if they stay missing, the kernel has lost them.
    pub fn unheld(&self) -> CpuSet {
        self.all.difference(&self.held)
    }
}

/// A cgroup on the path from the top of the hierarchy to the pods.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AncestorCgroup {
    /// The cgroup's path, relative to the hierarchy.
    pub path: String,
    pub cpuset: Cpuset,
    /// Exclusive CPUs of direct child cgroups, except for the pods and the cgroups on the path to
    /// them.
    pub other_exclusive: CpuSet,
}

/// The hierarchy around the pods.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PodSurroundings {
    /// The cgroups above the pods, from the top down.
    pub above: Vec<AncestorCgroup>,
    /// Cgroups with exclusive CPUs outside the pods' trees: the path and the CPUs of each.
    pub outside: Vec<(String, CpuSet)>,
    /// The pods' top cgroups that exist. Pods can get no CPUs beyond theirs.
    pub trees: Vec<String>,
    /// Whether a cgroup's written set must lie within its parent's written set, as on cgroup v1. On
    /// v2 a set may name more CPUs, which come into force once the parent has them.
    pub sets_are_nested: bool,
}

// === impl Cgroups ===

impl Cgroups {
    /// Whether the kernel has partitions at any depth, judged by their files.
    ///
    /// If no cgroup with cpuset files exists yet, a test cgroup is made and removed again.
    pub fn offers_partitions(&self) -> Result<bool> {
        if self.is_v1() {
            return Ok(false);
        }
        for child in self.children("")? {
            if self.file(&child, "cpuset.cpus").exists() {
                return Ok(self.file(&child, EXCLUSIVE).exists());
            }
        }
        let control = self.root().join("cgroup.subtree_control");
        let before = file::read_value(&control)?;
        let offered = self
            .create(PROBE)
            .map(|()| self.file(PROBE, EXCLUSIVE).exists());
        let removed = self.remove(PROBE);
        let after = file::read_value(&control)?;
        for controller in enabled_by_create(&before, &after) {
            file::write(&control, &format!("-{controller}"))?;
        }
        removed.and(offered)
    }

    /// Whether a neighbour's plain CPU set makes a partition invalid on this kernel. Such a kernel
    /// can lose CPUs until the next boot, namely if a partition's cgroup is removed before `member`
    /// is written to it.
    ///
    /// The test uses throw-away cgroups with the CPU `cpu`, which every other cgroup lacks for some
    /// milliseconds. It loses no CPU itself, because it writes `member` before it removes any
    /// cgroup.
    pub fn siblings_can_break_partitions(&self, cpu: u32) -> Result<bool> {
        let cpu_set: CpuSet = [cpu].into_iter().collect();
        let (owner, neighbour) = (format!("{PROBE}/owner"), format!("{PROBE}/neighbour"));
        let tried = (|| {
            for path in [PROBE, &owner, &neighbour] {
                self.create(path)?;
            }
            self.set_exclusive(PROBE, &cpu_set)?;
            self.set_exclusive(&owner, &cpu_set)?;
            self.set_partition(&owner, PartitionKind::Root)?;
            let made = self.partition(&owner)?;
            if !made.is_live() {
                return Err(CgroupError::Partition {
                    path: self.file(&owner, PARTITION),
                    says: made.to_string(),
                });
            }
            self.set_cpus(&neighbour, &cpu_set)?;
            Ok(!self.partition(&owner)?.is_live())
        })();
        // Whether the test succeeded or not, `member` is written before the cgroups are removed.
        let undone = ignore_gone(self.set_partition(&owner, PartitionKind::Member));
        let removed = self.remove(PROBE);
        undone?;
        removed?;
        tried
    }

    /// The partition state that the kernel reports for a cgroup.
    pub fn partition(&self, path: &str) -> Result<Partition> {
        // Linux before 6.7 has partitions only at the top, and no file of exclusive CPUs.
        if self.is_v1() || !self.file(path, EXCLUSIVE).exists() {
            return Ok(Partition::Unsupported);
        }
        let text = file::read_value_optional(&self.file(path, PARTITION))?;
        Ok(text.as_deref().map(Partition::read).unwrap_or_default())
    }

    /// The CPUs that a cgroup holds as exclusive (`cpuset.cpus.exclusive`); empty if the file does
    /// not exist.
    pub fn exclusive(&self, path: &str) -> Result<CpuSet> {
        Ok(cpu_list_optional(&self.file(path, EXCLUSIVE))?.unwrap_or_default())
    }

    /// The CPUs that no sibling of the cgroup can have: its exclusive CPUs, or on v1 the whole set
    /// of a cgroup with `cpuset.cpu_exclusive`.
    fn claimed(&self, path: &str) -> Result<CpuSet> {
        if !self.is_v1() {
            return self.exclusive(path);
        }
        match file::read_value_optional(&self.file(path, "cpuset.cpu_exclusive"))?.as_deref() {
            Some("1") => cpu_list(&self.file(path, "cpuset.cpus")),
            _ => Ok(CpuSet::new()),
        }
    }

    /// Sets the CPUs that a cgroup may hold as exclusive; an empty set clears them.
    ///
    /// # Errors
    /// EINVAL if a neighbour holds a CPU of the set: see [`Cgroups::blocking_siblings`].
    pub fn set_exclusive(&self, path: &str, cpus: &CpuSet) -> Result<()> {
        Ok(file::write(&self.file(path, EXCLUSIVE), &cpus.to_string())?)
    }

    /// Makes a cgroup a partition, or a member again. The write can succeed without effect, so read
    /// [`Cgroups::partition`] afterwards.
    pub fn set_partition(&self, path: &str, kind: PartitionKind) -> Result<()> {
        Ok(file::write(&self.file(path, PARTITION), kind.name())?)
    }

    /// The neighbours that keep the cgroup `path` from holding `cpus` as exclusive. A neighbour is
    /// in the way if it holds one of `cpus` as exclusive, or if it has no exclusive CPUs and `cpus`
    /// contains its whole written set.
    pub fn blocking_siblings(&self, path: &str, cpus: &CpuSet) -> Vec<String> {
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

    /// Reads the cgroups above the pods of `trees`, and the exclusive CPUs of other cgroups around
    /// the pods.
    pub fn surroundings(&self, trees: &[String]) -> Result<PodSurroundings> {
        let trees = trees.iter().filter(|tree| self.exists(tree));
        let mut found = PodSurroundings {
            trees: trees.cloned().collect(),
            sets_are_nested: self.is_v1(),
            ..PodSurroundings::default()
        };
        let trees = found.trees.clone();
        let ancestors = self.ancestors_of_pods(&trees)?;
        let mut other_exclusive = |parent: &str, holds_pods: bool| -> Result<CpuSet> {
            let mut all = CpuSet::new();
            for name in self.children_if_present(parent)? {
                let path = join(parent, &name);
                let pod = holds_pods && matches!(layout::entry(&name), PodTreeEntry::Pod { .. });
                if pod || ancestors.iter().any(|(ancestor, _)| *ancestor == path) {
                    continue;
                }
                let exclusive = ignore_gone(self.claimed(&path))?.unwrap_or_default();
                if !exclusive.is_empty() {
                    all = all.union(&exclusive);
                    found.outside.push((path, exclusive));
                }
            }
            Ok(all)
        };
        other_exclusive("", false)?;
        for (path, holds_pods) in &ancestors {
            let Some(cpuset) = ignore_gone(self.cpuset(path))? else {
                continue;
            };
            found.above.push(AncestorCgroup {
                path: path.clone(),
                cpuset,
                other_exclusive: other_exclusive(path, *holds_pods)?,
            });
        }
        Ok(found)
    }

    /// The paths of the cgroups above the pods, from the top down, each with whether pods lie
    /// directly below it.
    fn ancestors_of_pods(&self, trees: &[String]) -> Result<Vec<(String, bool)>> {
        let mut ancestors = Vec::new();
        for tree in trees {
            let mut path = String::new();
            for part in tree.split('/') {
                path = join(&path, part);
                ancestors.push((path.clone(), path == *tree));
            }
            let mut parents = vec![tree.clone()];
            for _ in 0..layout::LEVELS_ABOVE_PODS {
                let mut classes = Vec::new();
                for parent in parents {
                    let names = self.children_if_present(&parent)?.into_iter();
                    let names = names.filter(|name| layout::entry(name) == PodTreeEntry::Class);
                    classes.extend(names.map(|name| (join(&parent, &name), name)));
                }
                ancestors.extend(classes.iter().map(|(class, _)| (class.clone(), true)));
                classes.retain(|(_, name)| layout::is_system_group(name));
                parents = classes.into_iter().map(|(class, _)| class).collect();
            }
        }
        ancestors.sort_by_key(|(path, _)| (path.matches('/').count(), path.clone()));
        ancestors.dedup_by(|removed, kept| {
            kept.1 |= removed.1 && removed.0 == kept.0;
            removed.0 == kept.0
        });
        Ok(ancestors)
    }

    /// The CPUs of `online` that are missing.
    ///
    /// `live` are the CPUs of the known partitions. If an online CPU is still missing, the whole
    /// hierarchy is searched for further partitions.
    pub fn missing_cpus(&self, online: &CpuSet, live: &CpuSet) -> Result<MissingCpus> {
        let missing = |live: &CpuSet| -> Result<CpuSet> {
            Ok(online.difference(&self.all_cpus()?).difference(live))
        };
        if self.is_v1() || missing(live)?.is_empty() {
            return Ok(MissingCpus::default());
        }
        // A partition may come or go between two reads, but a lost CPU is missing in both rounds.
        let mut all = online.clone();
        let mut held = online.clone();
        for _ in 0..2 {
            let (mut valid, mut invalid) = (CpuSet::new(), CpuSet::new());
            self.collect_partitions("", &mut valid, &mut invalid)?;
            all = all.intersection(&missing(&valid)?);
            held = held.intersection(&invalid);
        }
        Ok(MissingCpus {
            held: held.intersection(&all),
            all,
        })
    }

    /// Adds the CPUs of the valid and of the invalid partitions below `path`.
    fn collect_partitions(
        &self,
        path: &str,
        valid: &mut CpuSet,
        invalid: &mut CpuSet,
    ) -> Result<()> {
        for child in self.children_if_present(path)? {
            let child = join(path, &child);
            // The state is read directly, because [`Cgroups::partition`] ignores partitions without
            // a file of exclusive CPUs, and before Linux 6.7 none has that file.
            let text = file::read_optional(&self.file(&child, PARTITION))?;
            let state = text.map(|text| Partition::read(&text));
            let is_live = state.as_ref().is_some_and(Partition::is_live);
            if (is_live || matches!(state, Some(Partition::Invalid(_))))
                && let Some(cpuset) = ignore_gone(self.cpuset(&child))?
            {
                let Cpuset {
                    effective,
                    exclusive,
                    ..
                } = &cpuset;
                if is_live {
                    *valid = valid.union(effective);
                } else {
                    *invalid = invalid.union(effective).union(exclusive);
                }
            }
            self.collect_partitions(&child, valid, invalid)?;
        }
        Ok(())
    }
}

/// The controllers enabled by [`Cgroups::create`], judged by `cgroup.subtree_control` before and
/// after. Another program may have enabled more meanwhile.
fn enabled_by_create(before: &str, after: &str) -> impl Iterator<Item = &'static str> {
    ["cpuset", "cpu"]
        .into_iter()
        .filter(move |name| contains_word(after, name) && !contains_word(before, name))
}

#[cfg(test)]
mod tests {
    use std::fs;

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
        // Another program enabled `io`.
        assert_eq!(enabled("cpuset cpu\n", "cpuset cpu io\n"), [""; 0]);
    }

    #[test]
    fn the_surroundings_on_v1_have_the_sets_above_and_foreign_exclusive_sets() {
        let root = tempfile::tempdir().unwrap();
        for (path, cpus, exclusive) in [
            ("", "0-7", "1"),
            ("special", "6-7", "1"),
            ("plain", "0-5", "0"),
            ("kubepods", "0-5", "0"),
            ("kubepods/burstable", "0-4", "0"),
            ("kubepods/podx", "0-5", "0"),
        ] {
            let dir = root.path().join("cpuset").join(path);
            fs::create_dir_all(&dir).unwrap();
            fs::write(dir.join("cpuset.cpus"), cpus).unwrap();
            fs::write(dir.join("cpuset.cpu_exclusive"), exclusive).unwrap();
        }
        let cgroups = Cgroups::detect(root.path()).unwrap();
        let trees = ["kubepods", "kubepods.slice"].map(str::to_owned);
        let found = cgroups.surroundings(&trees).unwrap();
        assert!(found.sets_are_nested);
        assert_eq!(found.trees, ["kubepods"]);
        assert_eq!(
            found.outside,
            [("special".to_owned(), "6-7".parse().unwrap())]
        );
        let above = found.above.iter();
        let above: Vec<_> = above
            .map(|above| (above.path.as_str(), above.cpuset.effective.to_string()))
            .collect();
        let expected = [("kubepods", "0-5"), ("kubepods/burstable", "0-4")];
        assert_eq!(above, expected.map(|(path, cpus)| (path, cpus.to_owned())));
    }

    /// Also a partition outside the pods' cgroups counts, for example that of a virtual machine.
    #[test]
    fn an_invalid_partition_holds_missing_cpus() {
        let root = tempfile::tempdir().unwrap();
        let file = |path: &str, name: &str, text: &str| {
            let dir = root.path().join(path);
            fs::create_dir_all(&dir).unwrap();
            fs::write(dir.join(name), text).unwrap();
        };
        file("", "cgroup.controllers", "cpuset cpu");
        file("", "cpuset.cpus.effective", "0-2");
        for (path, state, effective) in [
            ("machines/vm", "root", "3"),
            (
                "machines/broken",
                "root invalid (Parent unpartitionable)",
                "4",
            ),
        ] {
            file(path, PARTITION, state);
            file(path, "cpuset.cpus", effective);
            file(path, "cpuset.cpus.effective", effective);
            file(path, EXCLUSIVE, effective);
        }
        let cgroups = Cgroups::detect(root.path()).unwrap();
        let online = CpuSet::from_iter(0..6);
        let missing = cgroups.missing_cpus(&online, &CpuSet::new()).unwrap();
        let found = (missing.all.to_string(), missing.held.to_string());
        assert_eq!(found, ("4-5".to_owned(), "4".to_owned()));
        assert_eq!(missing.unheld().to_string(), "5");
    }
}
