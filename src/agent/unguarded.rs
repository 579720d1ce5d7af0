//! [`UnguardedStarts`]: containers that started while no agent answered the container runtime, on exclusive CPUs of other pods
//! or without the CPUs that their pod requires.
//!
//! The runtime starts containers without an agent as well. With enforcement `partition`, the kernel
//! still keeps them off exclusive CPUs. With `cpuset` they run on all CPUs until an agent moves
//! them, and without this report nobody would hear of it.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::time::{Duration, Instant};

use super::gate;
use super::history::{History, own_in_force};
use crate::cpu::CpuSet;
use crate::metrics::AgentMetrics;
use crate::pin::snapshot::ContainerState;
use crate::pin::{Enforcement, Observed, ObservedPod};

/// How long `/status` reports containers that ran on exclusive CPUs of others.
const REPORTED: Duration = Duration::from_secs(600);

#[derive(Debug, Default)]
pub(super) struct UnguardedStarts {
    /// The cgroups of counted containers, with the kind, because one container can be of both
    /// kinds.
    counted: BTreeSet<(String, &'static str)>,
    /// Cgroups found on exclusive CPUs of others, with these CPUs. The first turn of an agent moves them before the runtime or the
    /// API has said which of them are containers and which are sandboxes, whose only process sleeps.
    candidates: BTreeMap<String, CpuSet>,
    /// Containers that ran on exclusive CPUs of others: when they were found, and a description.
    unguarded: Vec<(Instant, String)>,
}

/// What a turn about all pods knows about its containers.
#[derive(Clone, Copy)]
pub(super) struct Starts<'a> {
    /// The cgroups before the turn's first step; `None` without steps.
    pub(super) before: Option<&'a Observed>,
    pub(super) observed: &'a Observed,
    pub(super) states: &'a [ContainerState],
    pub(super) history: &'a History,
    pub(super) enforcement: Enforcement,
    pub(super) metrics: &'a AgentMetrics,
    /// Cgroups whose record could not be written: for these, an agent was there and failed.
    pub(super) unrecorded: &'a BTreeSet<String>,
    /// Whether a cgroup is that of the agent's own container. No agent can answer for the start of
    /// its own container, and a problem after each upgrade would tell nobody anything.
    pub(super) is_own: &'a dyn Fn(&str) -> bool,
}

// === impl UnguardedStarts ===

impl UnguardedStarts {
    /// Counts a container once for each kind. Returns whether it is new.
    fn count(&mut self, path: &str, kind: &'static str, metrics: &AgentMetrics) -> bool {
        let is_new = self.counted.insert((path.to_owned(), kind));
        if is_new {
            metrics.unguarded_starts.with_label_values(&[kind]).inc();
        }
        is_new
    }

    /// Notes cgroups without a record on exclusive CPUs of other pods, as the turn has found them. `has_begun` says whether a
    /// container's program runs, by pod uid and container name.
    fn note_candidates(&mut self, before: &Observed, has_begun: impl Fn(&str, &str) -> bool) {
        let owned = |pod: &ObservedPod| -> CpuSet {
            let own = pod.containers.iter();
            own.flat_map(|one| {
                own_in_force(one, Enforcement::Cpuset)
                    .iter()
                    .collect::<Vec<_>>()
            })
            .collect()
        };
        let all = before.pods.iter().map(owned);
        let all = all.fold(CpuSet::new(), |all, own| all.union(&own));
        for pod in &before.pods {
            let of_other_pods = all.difference(&owned(pod));
            let uid = &pod.cgroup.uid;
            let unrecorded = pod.containers.iter();
            let unrecorded = unrecorded.filter(|one| one.record.is_none() && one.cgroup.populated);
            for container in unrecorded {
                let on = container
                    .cgroup
                    .cpuset
                    .effective
                    .intersection(&of_other_pods);
                let name = container.name.as_deref();
                if !on.is_empty() && name.is_none_or(|name| has_begun(uid, name)) {
                    self.candidates.insert(container.cgroup.path.clone(), on);
                }
            }
        }
    }

    /// Counts the candidates that are containers.
    fn note_unguarded(&mut self, states: &[ContainerState], metrics: &AgentMetrics) {
        for state in states {
            let path = state.cgroup.as_deref().unwrap_or_default();
            let Some(on) = self.candidates.remove(path) else {
                continue;
            };
            if self.count(path, "exclusive_cpus", metrics) {
                let unguarded_start = format!(
                    "{}/{}: container {} on {}",
                    state.namespace,
                    state.pod,
                    state.container,
                    on.in_words()
                );
                tracing::warn!(
                    "{}/{}: container {} started while no agent answered the container runtime, and ran on {} of other pods",
                    state.namespace,
                    state.pod,
                    state.container,
                    on.in_words()
                );
                self.unguarded.push((Instant::now(), unguarded_start));
            }
        }
    }

    /// The sentence about containers that ran on exclusive CPUs of others; `None` if it happened long ago.
    fn problem(&mut self) -> Option<String> {
        self.unguarded
            .retain(|(found, _)| found.elapsed() < REPORTED);
        let (_, last) = self.unguarded.last()?;
        let (count, minutes) = (self.unguarded.len(), REPORTED.as_secs() / 60);
        let containers = if count == 1 {
            "1 container"
        } else {
            &format!("{count} containers")
        };
        Some(format!(
            "in the last {minutes} minutes, {containers} ran on exclusive CPUs of other pods (the last: {last}): with \
             enforcement cpuset, a container that starts while no agent answers the container runtime may use all CPUs until \
             an agent moves it"
        ))
    }

    /// Counts containers that started against an assignment, and returns the problems, as sentences.
    pub(super) fn problems(&mut self, starts: &Starts<'_>) -> Vec<String> {
        let Starts {
            before,
            observed,
            states,
            history,
            enforcement,
            metrics,
            unrecorded,
            is_own,
        } = *starts;
        let has_begun = |uid: &str, name: &str| !history.is_waiting(uid, name);
        let there: HashSet<&str> = states
            .iter()
            .filter_map(|state| state.cgroup.as_deref())
            .collect();
        self.counted
            .retain(|(path, _)| there.contains(path.as_str()));
        if let (Enforcement::Cpuset, Some(before)) = (enforcement, before) {
            self.note_candidates(before, has_begun);
            self.candidates.retain(|path, _| !unrecorded.contains(path));
        }
        let observed = observed.containers();
        let present: HashSet<&str> = observed.map(|one| one.cgroup.path.as_str()).collect();
        self.candidates
            .retain(|path, _| present.contains(path.as_str()) && !is_own(path));
        self.note_unguarded(states, metrics);
        let mut problems: Vec<String> = self.problem().into_iter().collect();
        for state in states
            .iter()
            .filter(|state| state.required && state.running)
        {
            let (uid, name) = (state.uid.as_deref().unwrap_or_default(), &state.container);
            if let Err(why) = gate::at_start(state, states, enforcement)
                && has_begun(uid, name)
            {
                let path = state.cgroup.as_deref().unwrap_or_default();
                self.count(path, "required", metrics);
                problems.push(format!(
                    "{}/{}: container {name} runs without the exclusive CPUs that its pod requires: {why}. It started while \
                     no agent answered the container runtime, or lost its CPUs later; delete the pod to start it again",
                    state.namespace, state.pod
                ));
            }
        }
        problems
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {

    use super::*;
    use crate::host::cgroup::{ContainerCgroup, PodCgroup};
    use crate::pin::decide::{Decision, Decisions};
    use crate::pin::snapshot::containers;
    use crate::pin::{AssignmentRecord, EarlierSettings, Scan};
    use crate::pod::{self, Container, Pod, Policy, ThreadPolicy};

    fn set(list: &str) -> CpuSet {
        list.parse().unwrap()
    }

    /// The cgroup of a pod with one container, `main`, which has a process.
    fn cgroup(uid: &str, record: Option<&AssignmentRecord>) -> PodCgroup {
        let mut container = ContainerCgroup {
            path: format!("{uid}/main"),
            id: "main".to_owned(),
            record_text: record.map(AssignmentRecord::text),
            populated: true,
            ..ContainerCgroup::default()
        };
        container.cpuset.effective = set(if record.is_some() { "2-3" } else { "0-7" });
        PodCgroup {
            path: uid.to_owned(),
            uid: uid.to_owned(),
            containers: vec![container],
            ..PodCgroup::default()
        }
    }

    fn described(uid: &str) -> Pod {
        Pod {
            uid: Some(uid.into()),
            name: uid.to_owned(),
            containers: vec![Container {
                name: "main".to_owned(),
                ..Container::default()
            }],
            ..Pod::default()
        }
    }

    /// A turn that has found a container without a record on the CPUs of an owner, and the states of the containers.
    fn found() -> (Observed, Vec<ContainerState>) {
        let mut record = AssignmentRecord::new(EarlierSettings::default());
        let assigned = &mut record.assignment.containers;
        assigned.insert("main".to_owned(), set("2-3"));
        let pods = pod::recognized([described("owner"), described("late")]);
        let scan = Scan {
            pods: vec![cgroup("owner", Some(&record)), cgroup("late", None)],
            ..Scan::default()
        };
        let (observed, _) = Observed::new(scan, &pods);
        let shared = pods.iter().zip(0..);
        let decisions = Decisions {
            containers: shared
                .map(|(pod, index)| Decision::shared(pod, index))
                .collect(),
            ..Decisions::default()
        };
        let topology = crate::cpu::Topology::default();
        let states = containers(&pods, &topology, &decisions, &observed, |pod, index, _| {
            let (policy, threads) = (Policy::default(), ThreadPolicy::default());
            pod::thread_environment(pod, index, &policy, &threads, None)
        });
        (observed, states)
    }

    /// A container whose record the agent failed to write is on the CPUs of others because of this failure, which `/status`
    /// reports.
    #[test]
    fn a_cgroup_that_could_not_be_recorded_is_no_unguarded_start() {
        let (observed, states) = found();
        for (failed, counted) in [(&[][..], 1), (&["late/main"][..], 0)] {
            let metrics = AgentMetrics::new().unwrap();
            let starts = Starts {
                before: Some(&observed),
                observed: &observed,
                states: &states,
                history: &History::default(),
                enforcement: Enforcement::Cpuset,
                metrics: &metrics,
                unrecorded: &failed.iter().map(|path| (*path).to_owned()).collect(),
                is_own: &|_| false,
            };
            let mut unguarded = UnguardedStarts::default();
            // However often a turn finds the container, it counts once.
            let problems: Vec<usize> = (0..2).map(|_| unguarded.problems(&starts).len()).collect();
            assert_eq!(problems, [counted; 2], "{failed:?}");
            let count = metrics
                .unguarded_starts
                .with_label_values(&["exclusive_cpus"]);
            assert_eq!(count.get(), counted as u64, "{failed:?}");
        }
    }
}
