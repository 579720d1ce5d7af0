//! The live files of containers: see [`LiveFiles`](crate::agent::live_files::LiveFiles).

use std::time::Instant;

use super::World;
use crate::agent::kernel::Kernel;
use crate::agent::live_files::LiveValues;
use crate::cpu::CpuSet;
use crate::pin::decide::Decisions;
use crate::pod::ContainerKey;

// === impl World ===

impl World {
    /// Makes the folder of a container that is being created. Returns whether its files are written; a failure is logged, and
    /// part of the next snapshot.
    pub fn open_live_files(
        &mut self,
        kernel: &impl Kernel,
        (uid, container): (&str, &str),
        values: &LiveValues,
    ) -> bool {
        let key = ContainerKey::new(uid, container);
        match self.live.open(kernel, &key, values) {
            Ok(()) => true,
            Err(failure) => {
                let line =
                    format!("container {container} of pod {uid} gets no live files: {failure}");
                if self.log.admits(&line, Instant::now()) {
                    tracing::warn!("{line}");
                }
                false
            }
        }
    }

    /// Writes which CPUs the kernel allows now or will allow after the steps that follow from the decisions. A turn calls this
    /// before its first step, so that no program runs on a CPU that its file does not name, and again after it has read what
    /// the steps have changed. `only` are the pods that the decisions are about; `None` for all.
    pub(in crate::agent) fn write_live_cpus(
        &mut self,
        kernel: &impl Kernel,
        decisions: &Decisions,
        only: Option<&[&str]>,
    ) {
        let is_meant =
            |key: &&ContainerKey| only.is_none_or(|only| only.contains(&key.uid.as_str()));
        let containers: Vec<ContainerKey> =
            self.live.containers().filter(is_meant).cloned().collect();
        for key in containers {
            let values = self.live_cpus(&key, decisions);
            self.live.set_cpus(kernel, &key, &values);
        }
    }

    /// The CPUs that a container has by the kernel, by its record and by the decisions. One without CPUs of its own may run on
    /// others at any moment, because these change with each owner that comes or goes, so it has all that pods can use.
    fn live_cpus(&self, key: &ContainerKey, decisions: &Decisions) -> LiveValues {
        let (uid, name) = (key.uid.as_str(), key.container.as_str());
        let desired = &decisions.desired;
        let plan = desired.pod(uid);
        let wanted = plan.and_then(|plan| plan.assignment.containers.get(name));
        let recorded = self.ledger.assignments.get(uid);
        let recorded = recorded.and_then(|recorded| recorded.containers.get(name));
        let observed = self.mirror.observed().container(uid, name);
        let effective = observed
            .filter(|container| container.cgroup.populated)
            .map(|container| &container.cgroup.cpuset.effective);
        let or_shared = |own: Option<&CpuSet>| {
            let own = own.filter(|own| !own.is_empty());
            own.cloned().unwrap_or_else(|| desired.available())
        };
        let upcoming = or_shared(decisions.waiting.get(key).or(wanted));
        let present = [recorded, effective].into_iter().flatten();
        let cpus = present.fold(or_shared(wanted), |all, cpus| all.union(cpus));
        LiveValues {
            cpus,
            upcoming,
            ..LiveValues::default()
        }
    }

    /// Writes what the files of a container say apart from its CPUs, after a turn.
    pub(in crate::agent) fn write_live_others(
        &mut self,
        kernel: &impl Kernel,
        (uid, container): (&str, &str),
        values: &LiveValues,
    ) {
        let key = ContainerKey::new(uid, container);
        self.live.set_others(kernel, &key, values);
    }

    /// Removes the folders of pods without a cgroup that no source knows.
    pub(in crate::agent) fn sweep_live_files(&mut self, kernel: &impl Kernel) {
        let (mirror, pods) = (&self.mirror, &self.pods);
        let is_there = |uid: &str| mirror.pod(uid).is_some() || pods.pod(uid).is_some();
        self.live.retain(kernel, is_there);
    }
}
