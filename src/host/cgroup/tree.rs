//! Scanning the pods' tree, and making and removing Pinfold's own cgroups.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::cgroups::{
    CgroupError, CgroupVersion, Cgroups, Cpuset, Quota, Result, contains_word, cpu_list,
    cpu_list_optional, directories, ignore_gone,
};
use super::layout::{self, PodTreeEntry};
use super::narrowed::{NestedCgroup, within};
use super::settings::CgroupMemory;
use crate::cpu::CpuSet;
use crate::host::file;

/// A pod's cgroup at the time of reading.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PodCgroup {
    /// The cgroup's path, relative to the hierarchy.
    pub path: String,
    /// The pod's uid from the cgroup's name, with dashes.
    pub uid: String,
    pub cpuset: Cpuset,
    pub quota: Option<Quota>,
    pub record_text: Option<String>,
    /// The pod's containers, sandboxes included.
    pub containers: Vec<ContainerCgroup>,
}

/// A container's cgroup at the time of reading.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ContainerCgroup {
    /// The cgroup's path, relative to the hierarchy.
    pub path: String,
    /// The runtime's container id.
    pub id: String,
    pub cpuset: Cpuset,
    pub quota: Option<Quota>,
    pub record_text: Option<String>,
    /// Whether a process runs in the cgroup or below it.
    pub populated: bool,
    pub memory: CgroupMemory,
    /// The cgroups that the container has made inside its own, on v1 only.
    pub nested: Vec<NestedCgroup>,
}

// === impl ContainerCgroup ===

impl ContainerCgroup {
    /// Whether another reading of the cgroup differs only in what changes while the programs inside run.
    pub fn has_same_settings(&self, other: &Self) -> bool {
        let Self {
            path,
            id,
            cpuset,
            quota,
            record_text,
            populated,
            memory,
            nested,
        } = self;
        (path, id, cpuset, quota, record_text, populated, nested)
            == (
                &other.path,
                &other.id,
                &other.cpuset,
                &other.quota,
                &other.record_text,
                &other.populated,
                &other.nested,
            )
            && memory.numa == other.memory.numa
    }

    /// Whether a cgroup inside has lost CPUs that it could have again.
    pub fn has_narrowed_cgroups(&self) -> bool {
        self.nested.iter().any(|nested| {
            let parent = nested
                .path
                .rsplit_once('/')
                .map_or("", |(parent, _)| parent);
            let above = self.nested.iter().find(|above| above.path == parent);
            let limit = above.map_or(&self.cpuset.cpus, |above| &above.cpus);
            let earlier = nested.narrowed_from.as_ref();
            earlier.is_some_and(|earlier| within(earlier, limit) != nested.cpus)
        })
    }
}

// === impl Cgroups ===

impl Cgroups {
    pub fn exists(&self, path: &str) -> bool {
        self.root().join(path).is_dir()
    }

    /// Reads every pod and container below `tree`. Cgroups that vanish meanwhile are left out, and
    /// a missing tree has no pods.
    pub fn scan(&self, tree: &str) -> Result<Vec<PodCgroup>> {
        let pods = self.pods(tree)?.into_iter();
        pods.filter_map(|(path, uid)| self.pod(path, uid).transpose())
            .collect()
    }

    /// The pods below `tree`: the path and the uid of each.
    pub fn pods(&self, tree: &str) -> Result<Vec<(String, String)>> {
        let mut found = Vec::new();
        let mut list = |parent: &str| -> Result<Vec<String>> {
            let mut classes = Vec::new();
            for name in self.children_if_present(parent)? {
                let path = format!("{parent}/{name}");
                match layout::entry(&name) {
                    PodTreeEntry::Pod { uid } => found.push((path, uid)),
                    PodTreeEntry::Class => classes.push(path),
                    PodTreeEntry::Other => {}
                }
            }
            Ok(classes)
        };
        let mut parents = vec![tree.to_owned()];
        for _ in 0..=layout::LEVELS_ABOVE_PODS {
            let mut classes = Vec::new();
            for parent in parents {
                classes.extend(list(&parent)?);
            }
            parents = classes;
        }
        Ok(found)
    }

    /// The path of the pod with the given uid below `tree`; `None` if the tree has no cgroup for
    /// it.
    pub fn find_pod(&self, tree: &str, uid: &str) -> Result<Option<String>> {
        let mut expected = layout::pod_paths(tree, uid).into_iter();
        if let Some(path) = expected.find(|path| self.exists(path)) {
            return Ok(Some(path));
        }
        let mut pods = self.pods(tree)?.into_iter();
        Ok(pods.find(|(_, other)| other == uid).map(|(path, _)| path))
    }

    /// Reads a pod and its containers; `None` if the pod's cgroup is gone.
    pub fn pod(&self, path: String, uid: String) -> Result<Option<PodCgroup>> {
        let read = || {
            let mut containers = Vec::new();
            for name in self.children(&path)? {
                if let Some(id) = layout::container_id(&name) {
                    containers.extend(ignore_gone(self.container(format!("{path}/{name}"), id))?);
                }
            }
            Ok(PodCgroup {
                cpuset: self.cpuset(&path)?,
                quota: self.quota(&path)?,
                record_text: self.assignment_record(&path)?,
                path,
                uid,
                containers,
            })
        };
        ignore_gone(read())
    }

    fn container(&self, path: String, id: &str) -> Result<ContainerCgroup> {
        Ok(ContainerCgroup {
            cpuset: self.cpuset(&path)?,
            quota: self.quota(&path)?,
            record_text: self.assignment_record(&path)?,
            populated: self.is_populated(&path)?,
            memory: self.memory(&path)?,
            nested: self.nested(&path)?,
            id: id.to_owned(),
            path,
        })
    }

    /// Makes a cgroup in every hierarchy, ready for processes: with CPUs and NUMA nodes on v1, with controllers on
    /// v2.
    pub fn create(&self, path: &str) -> Result<()> {
        for root in self.hierarchies() {
            let dir = root.join(path);
            match fs::create_dir(&dir) {
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                made => made.map_err(CgroupError::directory("make", &dir))?,
            }
        }
        let parent = path.rsplit_once('/').map_or("", |(parent, _)| parent);
        match self.version {
            CgroupVersion::V1 => {
                // A new v1 cpuset is empty, and then accepts no process.
                for name in ["cpuset.mems", "cpuset.cpus"] {
                    let copy = || {
                        let parents = file::read(&self.file(parent, name))?;
                        file::write(&self.file(path, name), &parents)
                    };
                    // The parent may be narrowed between the read and the write.
                    copy().or_else(|_| copy())?;
                }
            }
            CgroupVersion::V2 => {
                // In a hybrid set-up the CPU controller belongs to a v1 hierarchy.
                let wanted = if self.cpu_version() == CgroupVersion::V2 {
                    &["cpuset", "cpu"][..]
                } else {
                    &["cpuset"]
                };
                let control = self.file(parent, "cgroup.subtree_control");
                let enabled = file::read(&control)?;
                for name in wanted.iter().filter(|name| !contains_word(&enabled, name)) {
                    file::write(&control, &format!("+{name}"))?;
                }
            }
        }
        Ok(())
    }

    /// The `cgroup.procs` files, one per hierarchy, through which a process joins the cgroup at `path`.
    pub fn procs_files(&self, path: &str) -> Vec<PathBuf> {
        self.hierarchies()
            .map(|root| root.join(path).join("cgroup.procs"))
            .collect()
    }

    /// Whether a process runs in the cgroup itself. A cgroup that can't be read counts as empty.
    pub fn has_process(&self, path: &str, pid: u32) -> bool {
        let procs = file::read(&self.root().join(path).join("cgroup.procs"));
        procs.is_ok_and(|procs| procs.lines().any(|line| line.trim().parse() == Ok(pid)))
    }

    /// Removes a cgroup and all cgroups below it, in every hierarchy. A missing cgroup is no error,
    /// but one with a process is.
    pub fn remove(&self, path: &str) -> Result<()> {
        for root in self.hierarchies() {
            remove_tree(&root.join(path))?;
        }
        Ok(())
    }

    /// Writes a cgroup's CPU weight for a request in thousandths of a CPU, by the kubelet's formula.
    pub fn set_request(&self, path: &str, cpu_request: u64) -> Result<()> {
        let Some(cpu) = &self.cpu else { return Ok(()) };
        let shares = (cpu_request * 1024 / 1000).clamp(2, 262_144);
        let (name, value) = match self.cpu_version() {
            CgroupVersion::V1 => ("cpu.shares", shares),
            // The kubelet's linear map of 2..262144 shares to 1..10000.
            CgroupVersion::V2 => ("cpu.weight", 1 + (shares - 2) * 9999 / 262_142),
        };
        Ok(file::write(&cpu.join(path).join(name), &value.to_string())?)
    }

    /// All CPUs available to a cgroup directly below the root.
    pub fn all_cpus(&self) -> Result<CpuSet> {
        match self.version {
            CgroupVersion::V1 => Ok(self.cpuset("")?.effective),
            CgroupVersion::V2 => cpu_list(&self.root().join("cpuset.cpus.effective")),
        }
    }

    /// CPUs of all isolated partitions on the node; empty where the kernel does not report them.
    pub fn isolated_cpus(&self) -> Result<CpuSet> {
        let path = self.root().join("cpuset.cpus.isolated");
        Ok(cpu_list_optional(&path)?.unwrap_or_default())
    }

    fn hierarchies(&self) -> impl Iterator<Item = &PathBuf> {
        let mut roots: Vec<&PathBuf> = vec![&self.cpuset];
        for root in self.cpu.iter().chain(&self.cpuacct).chain(&self.others) {
            if !roots.contains(&root) {
                roots.push(root);
            }
        }
        roots.into_iter()
    }
}

fn remove_tree(dir: &Path) -> Result<()> {
    let Some(children) = ignore_gone(directories(dir))? else {
        return Ok(());
    };
    for child in children {
        remove_tree(&dir.join(child))?;
    }
    match fs::remove_dir(dir) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        removed => removed.map_err(CgroupError::directory("remove", dir)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(list: &str) -> CpuSet {
        list.parse().unwrap()
    }

    #[test]
    fn a_container_shows_whether_cgroups_inside_lack_cpus() {
        let nested = |path: &str, cpus: &str, earlier: &str| NestedCgroup {
            path: format!("kubepods/podx/c/{path}"),
            cpus: set(cpus),
            narrowed_from: (!earlier.is_empty()).then(|| set(earlier)),
        };
        for (own, inside, expected) in [
            ("0-7", vec![], false),
            ("0-3", vec![nested("a", "0-3", "0-7")], false),
            ("0-7", vec![nested("a", "0-3", "0-7")], true),
            ("0-7", vec![nested("a", "0-3", "")], false),
            // The owner's CPUs and the earlier set have no CPU in common.
            ("4-7", vec![nested("a", "4-7", "2-3")], false),
            ("0-7", vec![nested("a", "4-7", "2-3")], true),
            // The set above is that of a nested cgroup, too.
            (
                "0-7",
                vec![nested("a", "0-3", ""), nested("a/b", "0-3", "0-7")],
                false,
            ),
            (
                "0-7",
                vec![nested("a", "0-7", ""), nested("a/b", "0-3", "0-7")],
                true,
            ),
        ] {
            let mut container = ContainerCgroup {
                path: "kubepods/podx/c".to_owned(),
                nested: inside.clone(),
                ..ContainerCgroup::default()
            };
            container.cpuset.cpus = set(own);
            assert_eq!(
                container.has_narrowed_cgroups(),
                expected,
                "{own} {inside:?}"
            );
        }
    }
}
