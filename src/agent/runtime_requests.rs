//! The runtime requests CreateContainer, StartContainer and UpdateContainer, for which the container runtime waits.

use std::path::PathBuf;

use tokio::sync::oneshot;

use super::agent_node::threads;
use super::event::{CreateAnswer, RuntimePod, RuntimeUpdate, StartReply};
use super::gate;
use super::reconciler::Reconciler;
use super::schedule::Trigger;
use super::turn::{self, TurnResult};
use super::world::LiveValues;
use crate::cpu::CpuSet;
use crate::pin::decide::Decision;
use crate::pin::snapshot::ContainerState;
use crate::pin::{Desired, Enforcement, ObservedContainer, ObservedPod, PlacementSource};
use crate::pod;

/// What the answer to UpdateContainer depends on.
struct UpdateInput<'a> {
    pod: &'a ObservedPod,
    container: &'a str,
    /// `None` for a container outside the pod's description, for example a debug container.
    decision: Option<&'a Decision>,
    desired: &'a Desired,
    enforcement: Enforcement,
    online: &'a CpuSet,
}

// === impl UpdateInput ===

impl UpdateInput<'_> {
    /// The container's own CPUs, or else the CPUs that every container may use. The CPUs of
    /// partitions of the same pod are left out, because Linux 6.12 makes such a partition invalid
    /// if a sibling's set meets it, and may lose the CPUs. With enforcement `observe`, and beside a
    /// record that can't be read, the container keeps the set that it has.
    fn answer(&self) -> Option<CpuSet> {
        let own = self.pod.container(self.container);
        let is_unreadable = self.pod.has_unreadable_record()
            || own.is_some_and(ObservedContainer::has_unreadable_record);
        if is_unreadable || self.enforcement == Enforcement::Observe {
            return own
                .map(|own| own.cgroup.cpuset.cpus.clone())
                .filter(|cpus| !cpus.is_empty());
        }
        let taken = self.pod.partitions_of_others(self.container);
        let offered = match self.enforcement {
            Enforcement::Partition => self.online.clone(),
            _ => self.desired.shared(),
        };
        let available = self.desired.available();
        let assigned = self.decision?.cpus.as_ref();
        let assigned = assigned.map(|cpus| cpus.intersection(&available));
        assigned
            .into_iter()
            .chain([offered])
            .map(|cpus| cpus.difference(&taken))
            .find(|cpus| !cpus.is_empty())
    }
}

// === impl Reconciler ===

impl Reconciler {
    /// Answers CreateContainer. The runtime delays every creation until the answer, and gives up
    /// after two seconds. The pod's assignment record is written before the answer, and the writes
    /// to the node's other containers follow.
    pub(super) fn handle_create(
        &mut self,
        pod: RuntimePod,
        (container, can_mount_files): (&str, bool),
        reply: oneshot::Sender<CreateAnswer>,
    ) {
        // Without a uid, the container belongs to no pod. The dropped reply lets the creation go on without an answer.
        let Some(uid) = pod.pod.cgroup_uid().map(str::to_owned) else {
            return;
        };
        self.take_runtime(RuntimeUpdate::Pod(Box::new(pod)));
        // Without a runtime, as in the demo, no StartContainer follows.
        if self.node.config.runtime.wanted() {
            self.history.waits(&uid, container);
        }
        let request = (uid.as_str(), container);
        let answer = self.run_for_pod(Trigger::Create, |world, node, context| {
            turn::admit(world, node, context, request)
        });
        let result = answer.or_else(|| {
            let mut run_turn = || self.reconcile_for(Trigger::Create, Some(request));
            turn::admit_with_all_pods(request, &mut run_turn)
        });
        let Some(result) = result else { return };
        let Some(mut answer) = self.create_answer(&uid, container, &result) else {
            return;
        };
        answer.live_folder = self.live_folder(request, &result, (&answer, can_mount_files));
        // The runtime may have given up waiting. The assignment then stays in the record for the
        // next attempt.
        let _ = reply.send(answer);
    }

    fn create_answer(
        &self,
        uid: &str,
        container: &str,
        result: &TurnResult,
    ) -> Option<CreateAnswer> {
        let node = &self.node;
        let shared = result.decisions.desired.shared();
        let Some(decision) = result.decision(uid, container) else {
            // A container outside the pod's description, for example a debug container, gets no CPUs and no refusal.
            let mut pods = result.pods.iter();
            let pod = pods.find(|pod| pod.cgroup_uid() == Some(uid))?;
            return Some(CreateAnswer {
                cpus: None,
                cpuset: None,
                memory: None,
                refused: None,
                checked: None,
                training: false,
                threads: threads(node, pod, usize::MAX, None, &shared),
                ranks: None,
                live_folder: None,
            });
        };
        let pod = result.pods.get(decision.pod)?;
        let policy = &node.config.policy;
        let owed = self.world.pods().is_described(uid).then(|| {
            pod.containers
                .iter()
                .any(|container| pod::entitlement(pod, container, policy).cpus() > 0)
        });
        let refused = gate::at_creation(pod, decision, owed);
        let cpus = decision.cpus.as_ref();
        // The runtime could not write a set with CPUs that the pods' cgroups lack, so
        // StartContainer writes it.
        let available = result.decisions.desired.available();
        let is_of_pinfold = node.placement_source == PlacementSource::Pinfold;
        let is_writable = |cpus: &&CpuSet| {
            is_of_pinfold && (node.enforcement != Enforcement::Cpuset || cpus.is_subset(&available))
        };
        let writable = cpus.filter(is_writable);
        let ranks = pod::rank_environment(pod, decision.container, cpus, &node.topology);
        Some(CreateAnswer {
            cpus: cpus.cloned(),
            cpuset: writable.and_then(|cpus| self.world.cpus_for_runtime(uid, container, cpus)),
            memory: decision.memory.clone(),
            refused: refused.filter(|_| node.enforcement != Enforcement::Observe),
            checked: gate::is_checked(pod, &decision.entitlement).then_some(node.enforcement),
            training: pod::training(pod, policy).counts,
            threads: threads(node, pod, decision.container, cpus, &shared),
            ranks,
            live_folder: None,
        })
    }

    /// Makes the folder of live files for a container that gets CPUs of its own, with what the files say at its start. A
    /// container on shared CPUs gets none: nobody tells the agent before its CPUs change, and they say nothing about how many
    /// threads it should have. An init container has none either, because it mostly ends before anything changes.
    fn live_folder(
        &mut self,
        (uid, container): (&str, &str),
        result: &TurnResult,
        (answer, can_mount_files): (&CreateAnswer, bool),
    ) -> Option<PathBuf> {
        let node = &self.node;
        let folders = node.live_folders.as_ref()?;
        let decision = result.decision(uid, container)?;
        let is_pinned = decision.entitlement.cpus() > 0 && node.enforcement != Enforcement::Observe;
        let cpus = decision.cpus.as_ref().filter(|_| is_pinned)?;
        if answer.refused.is_some() {
            return None;
        }
        let folder = folders.path(uid, container).ok();
        if !can_mount_files {
            // Nobody would see the files.
            return folder;
        }
        let memory = decision.memory.as_ref().unwrap_or(&node.memory_nodes);
        let values = LiveValues {
            cpus: cpus.clone(),
            upcoming: cpus.clone(),
            memory_nodes: memory.clone(),
            threads: answer.threads.threads,
            ranks: answer.ranks.as_ref().map(|ranks| ranks.cpus.clone()),
        };
        let is_open = self.world.open_live_files(node, (uid, container), &values);
        folder.filter(|_| is_open)
    }

    /// Answers StartContainer once the container's CPUs are in force, or a turn has failed to
    /// enforce them.
    ///
    /// With enforcement `cpuset`, a `required` pod needs a turn about all pods, because containers
    /// of other pods may run on its CPUs.
    pub(super) fn handle_start(&mut self, uid: &str, container: &str, reply: StartReply) {
        self.history.waits(uid, container);
        let required = self.world.pods().requires(uid);
        let result = if required && self.node.enforcement == Enforcement::Cpuset {
            self.reconcile_for(Trigger::StartContainer, None)
        } else {
            self.start_pod(Trigger::StartContainer, uid)
        };
        // The program of an accepted container begins with the answer. A refused container never
        // has one.
        self.history.begins(uid, container);
        let answer = match &result {
            _ if !required => Ok(()),
            Some(result) => self.start_answer(uid, container, result),
            None => Err(gate::UNSEEN.to_owned()),
        };
        let _ = reply.send(answer);
        // The container starts meanwhile, because reading each interrupt is slow.
        self.isolate_after_start();
    }

    /// Answers UpdateContainer with the CPUs that the runtime shall remember for the container.
    ///
    /// The runtime remembers the CPUs that it was given at the creation, and writes them with every
    /// later change, for example of the memory limit. If the container no longer owns them, the
    /// turn first ends its partition, and the answer then replaces what the runtime remembers.
    pub(super) fn handle_update(
        &mut self,
        uid: &str,
        container: &str,
        reply: oneshot::Sender<Option<CpuSet>>,
    ) {
        let result = self.start_pod(Trigger::Runtime, uid);
        let answer = result.and_then(|result| self.update_answer(uid, container, &result));
        let _ = reply.send(answer);
    }

    /// Puts a pod's CPUs in force, with a turn about all pods if its own cgroups are not enough.
    fn start_pod(&mut self, trigger: Trigger, uid: &str) -> Option<TurnResult> {
        let result = self.run_for_pod(trigger, |world, node, context| {
            turn::start(world, node, context, uid)
        });
        if let Some(result) = result {
            return Some(result);
        }
        let result = self.reconcile_for(trigger, None)?;
        // Where the kubelet chooses the CPUs, the turn may have taken them from an earlier owner.
        if result.has_released && self.node.placement_source == PlacementSource::Kubelet {
            return self.reconcile_for(trigger, None).or(Some(result));
        }
        Some(result)
    }

    fn update_answer(&self, uid: &str, container: &str, result: &TurnResult) -> Option<CpuSet> {
        let node = &self.node;
        let update = UpdateInput {
            pod: self.world.observed().pod(uid)?,
            container,
            decision: result.decision(uid, container),
            desired: &result.decisions.desired,
            enforcement: node.enforcement,
            online: &node.topology.online,
        };
        update.answer()
    }

    /// Whether a `required` container may start, judged by the effective CPUs that the turn has
    /// read. A container outside the pod's description, for example a debug container, may.
    fn start_answer(&self, uid: &str, container: &str, result: &TurnResult) -> Result<(), String> {
        let containers = self.container_states(result, self.world.observed());
        let same = |state: &&ContainerState| {
            state.uid.as_deref() == Some(uid) && state.container == container
        };
        let state = containers.iter().find(same);
        state.map_or(Ok(()), |state| {
            gate::at_start(state, &containers, self.node.enforcement)
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    fn set(list: &str) -> CpuSet {
        list.parse().unwrap()
    }

    /// A container that owns the CPUs 2-3 and has the CPUs 4-5 in its cgroup.
    fn pod() -> ObservedPod {
        let mut own = ObservedContainer {
            name: Some("main".to_owned()),
            ..ObservedContainer::default()
        };
        own.cgroup.cpuset.cpus = set("4-5");
        ObservedPod {
            containers: vec![own],
            ..ObservedPod::default()
        }
    }

    fn answer(pod: &ObservedPod, enforcement: Enforcement) -> Option<String> {
        let decision = Decision {
            cpus: Some(set("2-3")),
            ..Decision::shared(&pod::RecognizedPod::default(), 0)
        };
        let desired = Desired {
            online: set("0-7"),
            ..Desired::default()
        };
        let update = UpdateInput {
            pod,
            container: "main",
            decision: Some(&decision),
            desired: &desired,
            enforcement,
            online: &set("0-7"),
        };
        update.answer().map(|cpus| cpus.to_string())
    }

    /// A later version of Pinfold may have assigned the CPUs that the container has.
    #[test]
    fn beside_an_unreadable_record_the_runtime_remembers_the_set_in_force() {
        for enforcement in [Enforcement::Partition, Enforcement::Cpuset] {
            assert_eq!(answer(&pod(), enforcement).unwrap(), "2-3");
            let text = Some("pinfold 2".to_owned());
            let mut of_pod = pod();
            of_pod.cgroup.record_text.clone_from(&text);
            let mut of_container = pod();
            of_container.containers[0].cgroup.record_text = text;
            for unreadable in [&mut of_pod, &mut of_container] {
                assert_eq!(answer(unreadable, enforcement).unwrap(), "4-5");
                unreadable.containers[0].cgroup.cpuset.cpus = CpuSet::new();
                assert_eq!(answer(unreadable, enforcement), None);
            }
        }
    }
}
