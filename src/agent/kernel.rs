//! [`Kernel`]: the cgroups as turns read and write them.

use std::time::Duration;

use super::agent_node::AgentNode;
use super::changes::CgroupChanges;
use crate::cpu::CpuSet;
use crate::host::cgroup::{Cpuset, MissingCpus, PodCgroup, PodSurroundings};
use crate::host::container_files::{ContainerFolders, ListedFolders};
use crate::pin::cpu_isolation::CpuIsolator;
use crate::pin::{self, AppliedStep, Step};

/// The length of [`Kernel::pause`] on a real machine.
const PAUSE: Duration = Duration::from_millis(5);

/// The cgroups of a node. Implementations read and write, and decide nothing.
pub trait Kernel {
    /// The cgroups above and around the pods.
    fn surroundings(&self) -> anyhow::Result<PodSurroundings>;
    /// The path and the uid of each pod's cgroup.
    fn pod_paths(&self) -> anyhow::Result<Vec<(String, String)>>;
    /// `None` if the cgroup is gone.
    fn pod(&self, path: &str, uid: &str) -> anyhow::Result<Option<PodCgroup>>;
    fn find_pod(&self, uid: &str) -> anyhow::Result<Option<String>>;
    fn online(&self) -> CpuSet;
    /// The online CPUs that are missing. `live` are the CPUs of the known partitions.
    fn missing_cpus(&self, live: &CpuSet) -> anyhow::Result<MissingCpus>;
    /// Waits a few milliseconds, in which the kernel may finish what it does in the background. Returns false if no time passes.
    fn pause(&self) -> bool {
        false
    }
    fn cpuset(&self, path: &str) -> anyhow::Result<Cpuset>;
    /// `None` if the cgroup is gone.
    fn effective(&self, path: &str) -> anyhow::Result<Option<CpuSet>>;
    fn record_text(&self, path: &str) -> anyhow::Result<Option<String>>;
    fn exists(&self, path: &str) -> bool;
    /// Takes what has changed in the watched trees so far, including what Pinfold's own steps have changed.
    fn changes(&self) -> CgroupChanges;
    /// The CPUs allowed for the kernel's work queues, if readable.
    fn workqueue_cpus(&self) -> Option<CpuSet>;
    /// Carries out steps in order, and stops before the first one for which `go_on` returns false.
    fn apply(&self, steps: Vec<Step>, go_on: &mut dyn FnMut(&Step) -> bool) -> Vec<AppliedStep>;

    /// The folders of live files. Without live files there are none.
    fn live_folders(&self) -> ListedFolders {
        ListedFolders::default()
    }
    /// Makes the folder of a container's live files. One that exists stays.
    fn make_live_folder(&self, _uid: &str, _container: &str) -> Result<(), String> {
        Err("live files are off".to_owned())
    }
    /// Writes one of a container's live files, or removes it with `None`.
    fn write_live_file(
        &self,
        _of: (&str, &str),
        _name: &str,
        _text: Option<&str>,
    ) -> Result<(), String> {
        Ok(())
    }
    fn remove_live_folders(&self, _uid: &str) -> Result<(), String> {
        Ok(())
    }
}

impl Kernel for AgentNode {
    fn surroundings(&self) -> anyhow::Result<PodSurroundings> {
        Ok(self.cgroups.surroundings(&self.config.pod_cgroups)?)
    }

    fn pod_paths(&self) -> anyhow::Result<Vec<(String, String)>> {
        self.pod_paths()
    }

    fn pod(&self, path: &str, uid: &str) -> anyhow::Result<Option<PodCgroup>> {
        self.pod(path.to_owned(), uid.to_owned())
    }

    fn find_pod(&self, uid: &str) -> anyhow::Result<Option<String>> {
        self.find_pod(uid)
    }

    fn online(&self) -> CpuSet {
        self.topology.online.clone()
    }

    fn missing_cpus(&self, live: &CpuSet) -> anyhow::Result<MissingCpus> {
        Ok(self.cgroups.missing_cpus(&self.topology.online, live)?)
    }

    fn pause(&self) -> bool {
        std::thread::sleep(PAUSE);
        true
    }

    fn cpuset(&self, path: &str) -> anyhow::Result<Cpuset> {
        Ok(self.cgroups.cpuset(path)?)
    }

    fn effective(&self, path: &str) -> anyhow::Result<Option<CpuSet>> {
        Ok(self.cgroups.effective(path)?)
    }

    fn record_text(&self, path: &str) -> anyhow::Result<Option<String>> {
        Ok(self.cgroups.assignment_record(path)?)
    }

    fn exists(&self, path: &str) -> bool {
        self.cgroups.exists(path)
    }

    fn changes(&self) -> CgroupChanges {
        self.changes.take()
    }

    fn workqueue_cpus(&self) -> Option<CpuSet> {
        CpuIsolator::new(&self.config.root_dir).workqueues()
    }

    fn apply(&self, steps: Vec<Step>, go_on: &mut dyn FnMut(&Step) -> bool) -> Vec<AppliedStep> {
        pin::apply_while(steps, &self.cgroups, go_on)
    }

    fn live_folders(&self) -> ListedFolders {
        let listed = self.live_folders.as_ref().map(ContainerFolders::list);
        listed.unwrap_or_default()
    }

    fn make_live_folder(&self, uid: &str, container: &str) -> Result<(), String> {
        let folders = self.live_folders.as_ref().ok_or("live files are off")?;
        let made = folders.make(uid, container);
        made.map(drop).map_err(|error| error.to_string())
    }

    fn write_live_file(
        &self,
        of: (&str, &str),
        name: &str,
        text: Option<&str>,
    ) -> Result<(), String> {
        let Some(folders) = &self.live_folders else {
            return Ok(());
        };
        let written = folders.write(of, name, text);
        written.map_err(|error| error.to_string())
    }

    fn remove_live_folders(&self, uid: &str) -> Result<(), String> {
        let removed = self
            .live_folders
            .as_ref()
            .map(|folders| folders.remove(uid));
        removed
            .transpose()
            .map(drop)
            .map_err(|error| error.to_string())
    }
}
