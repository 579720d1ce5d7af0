//! The live files of containers: see [`LiveFiles`](crate::agent::live_files::LiveFiles).

use std::collections::BTreeSet;
use std::time::Instant;

use super::World;
use crate::agent::kernel::Kernel;
use crate::agent::live_files::LiveValues;
use crate::cpu::CpuSet;
use crate::host::cgroup::PartitionKind;
use crate::pin::Step;
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

    /// Writes `cpus` and `upcoming-cpus`: what the kernel allows now, and what it will allow after the planned steps. A turn
    /// calls this before its first step, so that no program runs on a CPU that its file does not name, and again without steps
    /// after it has read what they have changed. `only` are the pods that the decisions are about; `None` for all.
    pub(in crate::agent) fn write_live_cpus(
        &mut self,
        kernel: &impl Kernel,
        (decisions, steps): (&Decisions, &[Step]),
        only: Option<&[&str]>,
    ) {
        let ended = steps.iter().filter_map(|step| match step {
            Step::Partition {
                path,
                kind: PartitionKind::Member,
                ..
            } => Some(path.as_str()),
            _ => None,
        });
        let ended: BTreeSet<&str> = ended.collect();
        let is_meant =
            |key: &&ContainerKey| only.is_none_or(|only| only.contains(&key.uid.as_str()));
        let containers: Vec<ContainerKey> =
            self.live.containers().filter(is_meant).cloned().collect();
        for key in containers {
            let values = self.live_cpus(&key, decisions, &ended);
            self.live.set_cpus(kernel, &key, &values);
        }
    }

    /// The CPUs that a container has by the kernel, by its record and by the decisions. One that the kernel does not keep on CPUs
    /// of its own may run on others at any moment, because these change with each owner that comes or goes, so it has all that
    /// pods can use. `ended` are the cgroups whose partition ends, at least for a moment.
    fn live_cpus(
        &self,
        key: &ContainerKey,
        decisions: &Decisions,
        ended: &BTreeSet<&str>,
    ) -> LiveValues {
        let (uid, name) = (key.uid.as_str(), key.container.as_str());
        let desired = &decisions.desired;
        let plan = desired.pod(uid);
        let wanted = plan.and_then(|plan| plan.assignment.containers.get(name));
        let recorded = self.ledger.assignments.get(uid);
        let recorded = recorded.and_then(|recorded| recorded.containers.get(name));
        let observed = self.mirror.observed().container(uid, name);
        let running = observed
            .map(|container| &container.cgroup)
            .filter(|cgroup| cgroup.populated);
        let effective = running.map(|cgroup| &cgroup.cpuset.effective);
        let or_shared = |own: Option<&CpuSet>| {
            let own = own.filter(|own| !own.is_empty());
            own.cloned().unwrap_or_else(|| desired.available())
        };
        let upcoming = or_shared(decisions.waiting.get(key).or(wanted));
        let mut cpus = or_shared(wanted).union(&recorded.cloned().unwrap_or_default());
        let is_kept_on = |own: &CpuSet| match running {
            Some(cgroup) => {
                let path = cgroup.path.as_str();
                let effective = &cgroup.cpuset.effective;
                let is_within = !effective.is_empty() && effective.is_subset(own);
                is_within && !self.refused.contains_key(path) && !ended.contains(path)
            }
            None => observed.is_some() || !self.has_unnamed_program(uid),
        };
        if !is_kept_on(&cpus) {
            cpus = cpus.union(&desired.available());
        }
        if let Some(effective) = effective {
            cpus = cpus.union(effective);
        }
        LiveValues {
            cpus,
            upcoming,
            ..LiveValues::default()
        }
    }

    /// Whether a program runs in the pod of which nobody has told to which container it belongs, as after an agent's restart.
    fn has_unnamed_program(&self, uid: &str) -> bool {
        let pod = self.mirror.observed().pod(uid);
        let mut containers = pod.into_iter().flat_map(|pod| &pod.containers);
        containers.any(|container| container.name.is_none() && container.cgroup.populated)
    }

    /// Finds the folders from before the agent's start, until that has worked once.
    pub(in crate::agent) fn list_live_files(&mut self, kernel: &impl Kernel) {
        if let Err(failure) = self.live.list(kernel) {
            let line = format!("can't read the folders of live files: {failure}");
            if self.log.admits(&line, Instant::now()) {
                tracing::warn!("{line}");
            }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::heartbeat::Heartbeat;
    use crate::agent::pod_store::PodStore;
    use crate::host::cgroup::PodCgroup;
    use crate::metrics::AgentMetrics;
    use crate::pin::{Observed, ObservedContainer, Scan};
    use crate::pod::ContainerIds;

    /// What the file `cpus` says of a container that shall own the CPUs 2-3 of the CPUs 0-7 and runs on `effective`.
    fn cpus(effective: &str, change: impl FnOnce(&mut World), ended: &[&str]) -> String {
        let store = PodStore::new(ContainerIds::NoSource);
        let heartbeat = Heartbeat::new(std::time::Duration::from_secs(1));
        let mut world = World::new(store, AgentMetrics::new().unwrap(), heartbeat);
        let pod = PodCgroup {
            uid: "a".to_owned(),
            path: "a".to_owned(),
            ..PodCgroup::default()
        };
        let scan = Scan {
            pods: vec![pod],
            ..Scan::default()
        };
        let mut observed = Observed::new(scan, &[]).0;
        let mut container = ObservedContainer {
            name: Some("main".to_owned()),
            ..ObservedContainer::default()
        };
        container.cgroup.path = "a/main".to_owned();
        container.cgroup.populated = true;
        container.cgroup.cpuset.effective = effective.parse().unwrap();
        observed.pods[0].containers.push(container);
        *world.mirror.observed_mut() = observed;
        change(&mut world);
        let mut decisions = Decisions::default();
        decisions.desired.online = "0-7".parse().unwrap();
        let plan = decisions.desired.pod_mut("a");
        let containers = &mut plan.assignment.containers;
        containers.insert("main".to_owned(), "2-3".parse().unwrap());
        let ended = ended.iter().copied().collect();
        let values = world.live_cpus(&ContainerKey::new("a", "main"), &decisions, &ended);
        assert_eq!(values.upcoming.to_string(), "2-3");
        values.cpus.to_string()
    }

    #[test]
    fn a_container_that_nothing_keeps_on_its_cpus_may_run_on_all() {
        let same = |_: &mut World| {};
        assert_eq!(cpus("2-3", same, &[]), "2-3");
        assert_eq!(cpus("2-3", same, &["a/other"]), "2-3");
        assert_eq!(cpus("0-1,4", same, &[]), "0-7");
        assert_eq!(cpus("2-3", same, &["a/main"]), "0-7");
        let refused = |world: &mut World| world.note_refused(["a/main".to_owned()]);
        assert_eq!(cpus("2-3", refused, &[]), "0-7");
        let unnamed = |world: &mut World| {
            world.mirror.observed_mut().pods[0].containers[0].name = None;
        };
        assert_eq!(cpus("2-3", unnamed, &[]), "0-7");
        let ended = |world: &mut World| {
            let containers = &mut world.mirror.observed_mut().pods[0].containers;
            containers[0].cgroup.populated = false;
        };
        assert_eq!(cpus("0-1", ended, &[]), "2-3");
    }
}
