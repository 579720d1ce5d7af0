//! The live files of containers: see [`LiveFiles`](crate::agent::live_files::LiveFiles).

use std::collections::BTreeSet;
use std::time::Instant;

use super::World;
use crate::agent::kernel::Kernel;
use crate::agent::live_files::LiveValues;
use crate::cpu::CpuSet;
use crate::host::cgroup::{Cpuset, PartitionKind};
use crate::pin::Step;
use crate::pin::decide::Decisions;
use crate::pod::{ContainerIds, ContainerKey};

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

    /// Writes `cpus`, with all CPUs that the kernel allows now or after the planned steps, and `upcoming-cpus`. A turn calls this
    /// before its first step, so that no program runs on a CPU that its file does not name, and again without steps after it has
    /// read what they have changed. `only` are the pods that the decisions are about; `None` for all.
    pub(in crate::agent) fn write_live_cpus(
        &mut self,
        kernel: &impl Kernel,
        (decisions, steps): (&Decisions, &[Step]),
        only: Option<&[&str]>,
    ) {
        let losing_partition = steps.iter().filter_map(|step| match step {
            Step::Partition {
                path,
                kind: PartitionKind::Member,
                ..
            } => Some(path.as_str()),
            _ => None,
        });
        let losing_partition: BTreeSet<&str> = losing_partition.collect();
        let is_meant =
            |key: &&ContainerKey| only.is_none_or(|only| only.contains(&key.uid.as_str()));
        let containers: Vec<ContainerKey> =
            self.live.containers().filter(is_meant).cloned().collect();
        for key in containers {
            let values = self.live_cpus(&key, decisions, &losing_partition);
            self.live.set_cpus(kernel, &key, &values);
        }
    }

    /// The CPUs that a container has by the kernel, by its record and by the decisions. One that the kernel does not keep on CPUs
    /// of its own may run on others at any moment, because these change with each owner that comes or goes, so it has all that
    /// pods can use. `losing_partition` are the cgroups whose partition ends, at least for a moment.
    fn live_cpus(
        &self,
        key: &ContainerKey,
        decisions: &Decisions,
        losing_partition: &BTreeSet<&str>,
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
                let Cpuset {
                    cpus: written,
                    effective,
                    partition,
                    ..
                } = &cgroup.cpuset;
                let is_within = |set: &CpuSet| !set.is_empty() && set.is_subset(own);
                // A set that the runtime wrote holds the container also where the kernel refuses the partition.
                is_within(effective)
                    && (partition.is_live() || is_within(written))
                    && !losing_partition.contains(cgroup.path.as_str())
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
    /// Once the runtime tells the ids, a cgroup without a name is the sandbox's.
    fn has_unnamed_program(&self, uid: &str) -> bool {
        let described = self.pods.pod(uid);
        if described.is_some_and(|pod| pod.ids == ContainerIds::Runtime) {
            return false;
        }
        let pod = self.mirror.observed().pod(uid);
        let mut containers = pod.into_iter().flat_map(|pod| &pod.containers);
        containers.any(|container| container.name.is_none() && container.cgroup.populated)
    }

    /// Finds the folders from before the agent's start, until that has worked once.
    pub(in crate::agent) fn list_live_files(&mut self, kernel: &impl Kernel) {
        for line in self.live.list(kernel) {
            if self.log.admits(line, Instant::now()) {
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
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use crate::agent::event::{RuntimePod, RuntimeUpdate};
    use crate::agent::heartbeat::Heartbeat;
    use crate::agent::pod_store::PodStore;
    use crate::host::cgroup::{ContainerCgroup, Partition, PodCgroup};
    use crate::metrics::AgentMetrics;
    use crate::pin::{Observed, Scan};
    use crate::pod::{Container, Pod};

    fn set(list: &str) -> CpuSet {
        list.parse().unwrap()
    }

    fn cgroup(id: &str, effective: &str) -> ContainerCgroup {
        ContainerCgroup {
            id: id.to_owned(),
            path: format!("a/{id}"),
            populated: true,
            cpuset: Cpuset {
                effective: set(effective),
                ..Cpuset::default()
            },
            ..ContainerCgroup::default()
        }
    }

    /// The cgroup of a container that owns a partition.
    fn partition(cpus: &str) -> ContainerCgroup {
        let mut cgroup = cgroup("main", cpus);
        cgroup.cpuset.partition = Partition::Valid(PartitionKind::Root);
        cgroup
    }

    /// The pod as the runtime describes it, with the id of its container.
    fn runtime_pod() -> Pod {
        let main = Container {
            name: "main".to_owned(),
            runtime_id: Some("main".to_owned()),
            ..Container::default()
        };
        Pod {
            uid: Some("a".into()),
            ids: ContainerIds::Runtime,
            is_of_runtime: true,
            containers: vec![main],
            ..Pod::default()
        }
    }

    /// What the file `cpus` says of a container that shall own the CPUs 2-3. Pods can use the CPUs 0-7 of 0-9. Beside the
    /// sandbox, the pod has the cgroups `containers`.
    fn cpus(is_described: bool, containers: Vec<ContainerCgroup>, losing: &[&str]) -> String {
        let mut store = PodStore::new(ContainerIds::Awaited);
        if is_described {
            let pod = RuntimePod::new(runtime_pod());
            store.take_runtime(RuntimeUpdate::Pod(Box::new(pod)));
        }
        let heartbeat = Heartbeat::new(std::time::Duration::from_secs(1));
        let mut world = World::new(store, AgentMetrics::new().unwrap(), heartbeat);
        let pod = PodCgroup {
            uid: "a".to_owned(),
            path: "a".to_owned(),
            containers: [vec![cgroup("sandbox", "0-1,4-7")], containers].concat(),
            ..PodCgroup::default()
        };
        let scan = Scan {
            pods: vec![pod],
            ..Scan::default()
        };
        *world.mirror.observed_mut() = Observed::new(scan, &world.pods_list()).0;
        let mut decisions = Decisions::default();
        decisions.desired.online = set("0-9");
        decisions.desired.withheld = set("8-9");
        let plan = decisions.desired.pod_mut("a");
        let containers = &mut plan.assignment.containers;
        containers.insert("main".to_owned(), set("2-3"));
        let losing = losing.iter().copied().collect();
        let values = world.live_cpus(&ContainerKey::new("a", "main"), &decisions, &losing);
        assert_eq!(values.upcoming.to_string(), "2-3");
        values.cpus.to_string()
    }

    #[test]
    fn a_container_that_nothing_keeps_on_its_cpus_may_run_on_all() {
        assert_eq!(cpus(true, vec![partition("2-3")], &[]), "2-3");
        assert_eq!(cpus(true, vec![partition("2-3")], &["a/other"]), "2-3");
        assert_eq!(cpus(true, vec![partition("2-3")], &["a/main"]), "0-7");
        assert_eq!(cpus(true, vec![partition("0-1,4")], &[]), "0-7");
        assert_eq!(cpus(true, vec![cgroup("main", "0-1,4")], &[]), "0-7");
        // By chance, the other CPUs have owners.
        assert_eq!(cpus(true, vec![cgroup("main", "2-3")], &[]), "0-7");
        let mut ended = cgroup("main", "0-1");
        ended.populated = false;
        assert_eq!(cpus(true, vec![ended], &[]), "2-3");
    }

    /// The file stays the same however often the partition is refused.
    #[test]
    fn a_set_that_the_runtime_wrote_keeps_a_container_on_its_cpus_without_a_partition() {
        let refused = Partition::Invalid("root invalid".to_owned());
        for partition in [Partition::Valid(PartitionKind::Member), refused] {
            let mut main = cgroup("main", "2-3");
            main.cpuset.partition = partition;
            main.cpuset.cpus = set("2-3");
            assert_eq!(cpus(true, vec![main.clone()], &[]), "2-3");
            main.cpuset.cpus = set("2-5");
            assert_eq!(cpus(true, vec![main], &[]), "0-7");
        }
    }

    #[test]
    fn the_sandbox_is_no_program_of_the_container_once_the_runtime_tells_ids() {
        // Between the creation and the start, the container has no cgroup.
        assert_eq!(cpus(true, vec![], &[]), "2-3");
        // After a restart of the agent, the cgroups may be anybody's.
        assert_eq!(cpus(false, vec![], &[]), "0-7");
        assert_eq!(cpus(false, vec![partition("2-3")], &[]), "0-7");
    }
}
