//! cgroups: the mounted hierarchies, the cgroups of pods and containers, and the CPUs of each.
//!
//! Paths of cgroups are relative to the hierarchy's mount point, without a slash in front:
//! `kubepods/pod1/c0ffee`. On cgroup v1 the same path is looked up in each controller's hierarchy.

mod cgroups;
mod counters;
mod layout;
mod namespace;
mod narrowed;
mod partition;
mod settings;
mod systemd;
mod tree;
mod unified;

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nix::libc::EOPNOTSUPP;

use super::file;
use crate::cpu::CpuSet;

pub(in crate::host) use cgroups::ignore_gone;
pub use cgroups::{CgroupError, CgroupVersion, Cgroups, Cpuset, Partition, PartitionKind, Quota};
use cgroups::{Result, contains_word, cpu_list, cpu_list_optional, directories, join, populated};
pub use counters::{CgroupCounters, Counters, CpuStat, CpuUsage, NumaUsage, Pressure, RESOURCES};
pub use layout::{is_below, is_within};
pub use namespace::join_host;
pub use narrowed::NestedCgroup;
pub use partition::{AncestorCgroup, MissingCpus, PARTITION, PodSurroundings};
pub use settings::{CgroupMemory, NoteSubject};
pub use systemd::SystemdError;
pub use tree::{ContainerCgroup, PodCgroup};
pub use unified::Unified;

/// How often a set is written while new cgroups keep the write from succeeding.
const TRIES: usize = 4;

// === impl Cgroups ===

impl Cgroups {
    /// Finds the hierarchies mounted at or below `root` (`/sys/fs/cgroup` on a usual machine).
    ///
    /// # Errors
    /// [`CgroupError::NoCpuset`] where no hierarchy has the cpuset controller.
    pub fn detect(root: &Path) -> Result<Self> {
        let existing = |names: &[&str]| -> Vec<PathBuf> {
            let paths = names.iter().map(|name| root.join(name));
            paths.filter(|path| path.is_dir()).collect()
        };
        let named = |names: &[&str]| existing(names).into_iter().next();
        let cpu = named(&["cpu", "cpu,cpuacct"]);
        let cpuacct = named(&["cpuacct", "cpu,cpuacct"]);
        let v1 = root.join("cpuset");
        if v1.join("cpuset.cpus").exists() {
            return Ok(Self {
                version: CgroupVersion::V1,
                cpuset: v1,
                cpu,
                cpuacct,
                memory: named(&["memory"]),
                pids: named(&["pids"]),
                systemd: None,
                others: existing(&["memory", "pids", "freezer", "devices", "blkio", "unified"]),
            });
        }
        for v2 in [root.to_owned(), root.join("unified")] {
            let controllers =
                file::read_optional(&v2.join("cgroup.controllers"))?.unwrap_or_default();
            let has = |controller: &str| contains_word(&controllers, controller);
            if !has("cpuset") {
                continue;
            }
            // In a hybrid set-up, other controllers may be v1 hierarchies.
            let hierarchy =
                |controller: &str, v1: Option<PathBuf>| has(controller).then(|| v2.clone()).or(v1);
            return Ok(Self {
                version: CgroupVersion::V2,
                cpu: hierarchy("cpu", cpu),
                cpuacct: hierarchy("cpu", cpuacct),
                memory: hierarchy("memory", named(&["memory"])),
                pids: hierarchy("pids", named(&["pids"])),
                systemd: None,
                others: Vec::new(),
                cpuset: v2,
            });
        }
        Err(CgroupError::NoCpuset {
            root: root.to_owned(),
        })
    }

    /// Detects whether systemd runs on the node. `run` is the `/run` folder that the agent sees.
    ///
    /// systemd matters on cgroup v2 only, where units have a property for their CPUs. On v1 it
    /// leaves cpusets alone.
    pub fn detect_systemd(&mut self, run: &Path) {
        let runs = !self.is_v1() && systemd::runs(run, &self.cpuset);
        self.systemd = runs.then(Arc::default);
    }

    /// Whether the cpuset controller belongs to a hierarchy of cgroup v1.
    fn is_v1(&self) -> bool {
        self.version == CgroupVersion::V1
    }

    /// Whether the CPUs of slices and scopes are set through systemd.
    pub fn uses_systemd(&self) -> bool {
        self.systemd.is_some()
    }

    /// The mount point of the hierarchy with the cpuset controller.
    pub fn root(&self) -> &Path {
        &self.cpuset
    }

    /// The CPUs in force for a cgroup; `None` if it is gone.
    pub fn effective(&self, path: &str) -> Result<Option<CpuSet>> {
        let dir = self.cpuset.join(path);
        let effective = cpu_list_optional(&dir.join(self.effective_file()))?;
        match effective {
            None => ignore_gone(cpu_list(&dir.join("cpuset.cpus"))),
            effective => Ok(effective),
        }
    }

    /// The file of a cgroup's effective CPUs. Before Linux 3.17 a v1 cpuset has no such file, and
    /// the written CPUs are in force.
    fn effective_file(&self) -> &'static str {
        match self.version {
            CgroupVersion::V1 => "cpuset.effective_cpus",
            CgroupVersion::V2 => "cpuset.cpus.effective",
        }
    }

    pub fn cpuset(&self, path: &str) -> Result<Cpuset> {
        let dir = self.cpuset.join(path);
        let cpus = cpu_list(&dir.join("cpuset.cpus"))?;
        let effective = cpu_list_optional(&dir.join(self.effective_file()))?;
        let effective = effective.unwrap_or_else(|| cpus.clone());
        let (exclusive, partition) = match self.version {
            CgroupVersion::V1 => (CpuSet::new(), Partition::Unsupported),
            CgroupVersion::V2 => (self.exclusive(path)?, self.partition(path)?),
        };
        Ok(Cpuset {
            narrowed_from: self.narrowed_from(path)?,
            cpus,
            effective,
            exclusive,
            partition,
        })
    }

    /// Sets the CPUs of a cgroup, through systemd if systemd owns it.
    ///
    /// On v1 a cgroup's set must contain the sets of the cgroups below. If a container has made
    /// cgroups of its own, their sets are narrowed first. When the set becomes wider again, they
    /// follow it, up to their earlier sets.
    pub fn set_cpus(&self, path: &str, cpus: &CpuSet) -> Result<()> {
        let earlier = self.narrowed_from(path)?;
        self.set_cpus_from(path, cpus, earlier.as_ref())
    }

    /// Sets the CPUs of a cgroup that had the CPUs `earlier` before the first narrowing, if any.
    fn set_cpus_from(&self, path: &str, cpus: &CpuSet, earlier: Option<&CpuSet>) -> Result<()> {
        for _ in 1..TRIES {
            match self.write_cpus(path, cpus, earlier) {
                // EBUSY: meanwhile a process has made a cgroup below, with the old CPUs. So try
                // again.
                Err(CgroupError::File(error))
                    if self.is_v1()
                        && error.kernel_error().kind() == io::ErrorKind::ResourceBusy => {}
                done => return done,
            }
        }
        self.write_cpus(path, cpus, earlier)
    }

    fn write_cpus(&self, path: &str, cpus: &CpuSet, earlier: Option<&CpuSet>) -> Result<()> {
        let file = self.file(path, "cpuset.cpus");
        if !self.is_v1() {
            return self.write_set(path, &file, systemd::ALLOWED_CPUS, cpus);
        }
        let followers = self.followers(path)?;
        // The note is made before the write and removed after it, so that a crash in between
        // forgets nothing.
        let lacking = earlier.filter(|earlier| !earlier.is_subset(cpus));
        if let Some(earlier) = lacking {
            self.note_narrowing(path, earlier, cpus)?;
        }
        self.narrow_children(path, &file, cpus)?;
        file::write(&file, &cpus.to_string())?;
        if lacking.is_none() {
            self.forget_earlier_set(path)?;
        }
        self.restore_followers(&followers)
    }

    /// Narrows the sets of the cgroups below to `cpus`. `file` has the set of the cgroup itself.
    fn narrow_children(&self, path: &str, file: &Path, cpus: &CpuSet) -> Result<()> {
        let children = self.children(path)?;
        if children.is_empty() {
            return Ok(());
        }
        let own = cpu_list(file)?;
        if own.is_subset(cpus) {
            return Ok(());
        }
        // The cgroup's set must always contain the sets of the cgroups below, so it gets the new
        // CPUs first, and keeps the old ones meanwhile.
        if !cpus.is_subset(&own) {
            file::write(file, &own.union(cpus).to_string())?;
        }
        for child in children {
            ignore_gone(self.narrow_child(&join(path, &child), cpus))?;
        }
        Ok(())
    }

    /// Narrows a cgroup to `cpus` and notes its earlier set, unless it has an assignment record,
    /// which contains that set already.
    fn narrow_child(&self, child: &str, cpus: &CpuSet) -> Result<()> {
        let before = cpu_list(&self.file(child, "cpuset.cpus"))?;
        // A child that loses no CPU needs no write, and neither do the cgroups below it. The same
        // goes for a new child, whose set is empty until its maker writes it.
        if before.is_subset(cpus) {
            return Ok(());
        }
        let target = narrowed::within(&before, cpus);
        if self.assignment_record(child)?.is_some() {
            return self.set_cpus_from(child, &target, None);
        }
        let earlier = self.narrowed_from(child)?.unwrap_or(before);
        self.set_cpus_from(child, &target, Some(&earlier))
    }

    /// Writes a set to a file of a cgroup, through systemd if systemd owns the cgroup.
    fn write_set(&self, path: &str, file: &Path, property: &str, set: &CpuSet) -> Result<()> {
        if let Some((systemd, unit)) = self.systemd.as_ref().zip(systemd::unit(path)) {
            // The read fails if the cgroup is gone, and callers can recognize and ignore its error.
            file::read(file)?;
            return Ok(systemd.set(unit, property, set, file)?);
        }
        Ok(file::write(file, &set.to_string())?)
    }

    /// The directories in which a tree's changes show: that of the CPU sets, and that of the
    /// quotas.
    pub fn watch_folders(&self, tree: &str) -> Vec<PathBuf> {
        let quotas = self.cpu.iter().filter(|cpu| **cpu != self.cpuset);
        let roots = [&self.cpuset].into_iter().chain(quotas);
        roots.map(|root| root.join(tree)).collect()
    }

    /// Whether the cgroups directly below `path` have CPU sets. On v2, `path` must enable the
    /// cpuset controller for them.
    pub fn has_cpusets_below(&self, path: &str) -> Result<bool> {
        if self.is_v1() {
            return Ok(true);
        }
        let control = file::read_optional(&self.file(path, "cgroup.subtree_control"))?;
        Ok(control.is_none_or(|control| contains_word(&control, "cpuset")))
    }

    /// Whether a CPU controller exists, with quotas and their statistics.
    pub fn has_cpu_controller(&self) -> bool {
        self.cpu.is_some()
    }

    /// Whether a process runs in a cgroup or below it.
    pub fn is_populated(&self, path: &str) -> Result<bool> {
        let dir = self.cpuset.join(path);
        if !self.is_v1()
            && let Some(populated) = populated(&dir)?
        {
            return Ok(populated);
        }
        if !file::read_value(&dir.join("cgroup.procs"))?.is_empty() {
            return Ok(true);
        }
        for child in self.children(path)? {
            if ignore_gone(self.is_populated(&format!("{path}/{child}")))? == Some(true) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The process ids in a cgroup and in those below.
    pub fn processes(&self, path: &str) -> Result<Vec<i32>> {
        let dir = self.cpuset.join(path);
        let text = match file::read_value(&dir.join("cgroup.procs")) {
            // The processes of a threaded cgroup are listed in the domain cgroup above, which has
            // been read before.
            Err(error) if error.kernel_error().raw_os_error() == Some(EOPNOTSUPP) => String::new(),
            text => text?,
        };
        let mut found: Vec<i32> = text.lines().filter_map(|line| line.parse().ok()).collect();
        // A directory has a link from itself, one from its parent and one from each subdirectory.
        if fs::metadata(&dir).is_ok_and(|dir| dir.nlink() <= 2) {
            return Ok(found);
        }
        for child in self.children(path)? {
            let below = ignore_gone(self.processes(&format!("{path}/{child}")))?;
            found.extend(below.unwrap_or_default());
        }
        Ok(found)
    }

    /// The names of the cgroups directly below `path`.
    pub fn children(&self, path: &str) -> Result<Vec<String>> {
        directories(&self.cpuset.join(path))
    }

    /// Like [`Cgroups::children`]; empty for a cgroup that is gone.
    fn children_if_present(&self, path: &str) -> Result<Vec<String>> {
        Ok(ignore_gone(self.children(path))?.unwrap_or_default())
    }
}
