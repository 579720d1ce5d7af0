//! Decisions where the kubelet's CPU Manager chooses the CPUs.
//!
//! Pinfold then chooses none: an owner gets exactly the CPUs that the kubelet reports. What it still
//! has to decide is who must give way. The kubelet frees the CPUs of an ended container at once,
//! while its partition may stand for a moment, so the newest owner wins: earlier CPUs of the
//! kubelet's end first, and the new owner gets its CPUs in the next turn, or in the next pass of the
//! same one. In between nobody owns them, so a crash never leaves two owners.
//!
//! A container that Pinfold itself has pinned before the kubelet assigned CPUs keeps its CPUs until
//! it ends, and so does one of the kubelet's that the kubelet no longer reports: after a restart, it
//! reports its pods one by one.

use std::collections::BTreeMap;

use super::input::{
    DecisionInput, IN_SHARED_POOL, NO_PARTITION, Notes, PodRequest, RefusalSource, ShortfallNote,
};
use super::known::{Description, KnownPod};
use super::kubelet_entitlement::{KubeletCpus, exists, reported};
use crate::cpu::{CpuSet, cpu_count};
use crate::pin::{Ledger, PodAssignment};
use crate::pod::{self, ContainerKind};

/// The CPUs that the kubelet reports for a container.
struct Report<'a> {
    pod: &'a PodRequest<'a>,
    name: &'a str,
    cpus: &'a CpuSet,
}

struct KubeletPass<'a> {
    inputs: &'a DecisionInput<'a>,
    ledger: &'a Ledger,
    kubelet: &'a KubeletCpus,
    requests: &'a [PodRequest<'a>],
    assignments: BTreeMap<String, PodAssignment>,
    notes: Notes,
}

/// The CPUs of each pod, and the notes of containers that lack some.
pub(super) fn assign<'a>(
    inputs: &'a DecisionInput<'a>,
    ledger: &'a Ledger,
    requests: &'a [PodRequest<'a>],
    kubelet: &'a KubeletCpus,
) -> (BTreeMap<String, PodAssignment>, Notes) {
    let mut pass = KubeletPass {
        inputs,
        ledger,
        kubelet,
        requests,
        assignments: BTreeMap::new(),
        notes: Notes::new(),
    };
    pass.keep();
    let reports = pass.reports();
    for report in &reports {
        pass.make_others_give_way(report);
    }
    for report in &reports {
        pass.take(report);
    }
    pass.note_unreported();
    (pass.assignments, pass.notes)
}

// === impl KubeletPass ===

impl<'a> KubeletPass<'a> {
    /// Keeps what running containers have, wherever it came from.
    fn keep(&mut self) {
        for (uid, recorded) in &self.ledger.assignments {
            let mut requests = self.requests.iter();
            let request = requests.find(|request| request.key == *uid);
            let known = self.inputs.known_pod(uid);
            let mut mine = PodAssignment::default();
            for (name, cpus) in &recorded.containers {
                if self.keeps((uid, name), recorded, request, known) {
                    mine.containers.insert(name.clone(), cpus.clone());
                }
            }
            mine.inherit_choices(recorded);
            if mine.containers.len() > mine.by_kubelet.len() {
                mine.idle = recorded.idle.clone();
            }
            if !mine.is_empty() {
                self.assignments.insert(uid.clone(), mine);
            }
        }
    }

    fn keeps(
        &self,
        (uid, name): (&str, &str),
        recorded: &PodAssignment,
        request: Option<&PodRequest<'_>>,
        known: Option<&KnownPod<'_>>,
    ) -> bool {
        let Some(request) = request else {
            // A turn about one pod does not look at the others.
            return known.is_none_or(|known| known.keeps(name, recorded));
        };
        let is_wanted = match request.pod.container(name) {
            Some(container) => {
                !request.pod.finished
                    && !container.ended
                    && !pod::wants_shared(request.pod, container)
            }
            None => request.description != Description::Complete,
        };
        let is_of_kubelet = recorded.by_kubelet.contains(name);
        let is_reported = reported(self.kubelet, uid, name).is_some();
        is_wanted && (!is_of_kubelet || is_reported || exists(known, name))
    }

    /// What the kubelet reports about containers of pods that exist. A container that Pinfold has pinned is left out.
    fn reports(&self) -> Vec<Report<'a>> {
        let mut reports = Vec::new();
        for pod in self.requests {
            let is_here = self
                .inputs
                .here
                .is_none_or(|here| here.contains(pod.key.as_str()));
            let mine = self.assignments.get(&pod.key);
            for (container, _) in pod.owed().filter(|_| is_here) {
                let name = container.name.as_str();
                let is_of_pinfold = mine.is_some_and(|mine| {
                    mine.containers.contains_key(name) && !mine.by_kubelet.contains(name)
                });
                let cpus = reported(self.kubelet, &pod.key, name);
                reports.extend(cpus.filter(|_| !is_of_pinfold).map(|cpus| Report {
                    pod,
                    name,
                    cpus,
                }));
            }
        }
        reports
    }

    /// Takes the reported CPUs from those whom the kubelet gave them to earlier. One that the kubelet
    /// has given others keeps what is still its own.
    fn make_others_give_way(&mut self, report: &Report<'_>) {
        for (uid, mine) in &mut self.assignments {
            for name in mine.by_kubelet.clone() {
                let is_same = *uid == report.pod.key && name == report.name;
                let Some(cpus) = mine.containers.get_mut(&name).filter(|_| !is_same) else {
                    continue;
                };
                if cpus.is_disjoint(report.cpus) {
                    continue;
                }
                match reported(self.kubelet, uid, &name) {
                    // The kubelet's answer contradicts itself, and its next one tells.
                    Some(now) if !now.is_disjoint(report.cpus) => {}
                    Some(now) => *cpus = cpus.intersection(now),
                    None => *cpus = CpuSet::new(),
                }
            }
            mine.containers.retain(|_, cpus| !cpus.is_empty());
            let left = &mine.containers;
            mine.by_kubelet.retain(|name| left.contains_key(name));
        }
    }

    /// Gives a container the reported CPUs, if nobody else has them. While an earlier owner still has
    /// some, it keeps those that it already has; after a refusal, none.
    fn take(&mut self, report: &Report<'_>) {
        let Report { pod, name, cpus } = *report;
        let own = self.ledger.assignments.get(&pod.key);
        let own = own.and_then(|own| own.containers.get(name)).cloned();
        let obstacle = self.obstacle(report);
        let mine = self.assignments.entry(pod.key.clone()).or_default();
        mine.containers.remove(name);
        mine.by_kubelet.remove(name);
        let Some(note) = obstacle else {
            mine.add_of_kubelet(name, cpus.clone());
            return;
        };
        let kept = own.map(|own| own.intersection(cpus));
        let is_lasting = note.refused.is_some();
        if let Some(kept) = kept.filter(|kept| !kept.is_empty() && !is_lasting) {
            mine.add_of_kubelet(name, kept);
        }
        self.notes.insert((pod.index, name.to_owned()), note);
    }

    /// Why a container can't have the reported CPUs now.
    fn obstacle(&self, report: &Report<'_>) -> Option<ShortfallNote> {
        let refused = |text: String, source| {
            Some(ShortfallNote {
                text: format!("{NO_PARTITION}{text}"),
                refused: Some(source),
            })
        };
        let topology = self.inputs.context.topology;
        let cpus = report.cpus;
        let isolated = cpus
            .difference(&topology.balanced())
            .intersection(&topology.online);
        let balanced = cpus.intersection(&topology.balanced());
        if !isolated.is_empty() && !balanced.is_empty() {
            let text = format!(
                "of the CPUs that the kubelet assigned, {} are isolated at boot and {} are not, and a partition of both would lose \
                 load balancing; add the isolated CPUs to the kubelet's reservedSystemCPUs",
                isolated, balanced
            );
            return refused(text, RefusalSource::Kernel);
        }
        if let Some(mate) = self.overlapping_mate(report) {
            let text = format!(
                "the kubelet has given some of its CPUs to container {mate} of the pod, too"
            );
            return refused(text, RefusalSource::Room);
        }
        if let Some((owner, taken)) = self.owner_of(report, &self.assignments) {
            let text = format!(
                "the kubelet's choice includes {}, which {owner} keeps until it ends",
                taken.in_words()
            );
            return refused(text, RefusalSource::Room);
        }
        if let Some((owner, taken)) = self.owner_of(report, &self.ledger.assignments) {
            return Some(ShortfallNote {
                text: format!("gets {} when {owner} has given them up", taken.in_words()),
                refused: None,
            });
        }
        let own = self.ledger.of(&report.pod.key).cpus();
        let excluded = cpus.intersection(&self.ledger.excluded).difference(&own);
        if !excluded.is_empty() {
            let text = format!(
                "{} of the kubelet's choice belong to another program, or are in no cgroup: the kernel returns them in a moment, or \
                 has lost them",
                excluded.in_words()
            );
            return refused(text, RefusalSource::Room);
        }
        let owned = self.assignments.values().map(PodAssignment::cpus);
        let owned = owned.fold(cpus.clone(), |all, more| all.union(&more));
        let available = self.ledger.available(&topology.online);
        available
            .difference(&owned)
            .is_empty()
            .then(|| ShortfallNote {
                text: format!(
                    "{NO_PARTITION}without {} no CPU would be left for all other programs",
                    cpu_count(cpus.len())
                ),
                refused: Some(RefusalSource::Room),
            })
    }

    /// Another container of the pod for which the kubelet reports some of these CPUs, and which has not ended. Its set would make
    /// the partition invalid.
    fn overlapping_mate<'r>(&self, report: &Report<'r>) -> Option<&'r str> {
        let mates = report.pod.pod.containers.iter();
        let mut mates = mates.filter(|mate| {
            let may_run = !mate.ended && mate.kind != ContainerKind::Init;
            may_run && mate.name != report.name
        });
        let found = mates.find(|mate| {
            let cpus = reported(self.kubelet, &report.pod.key, &mate.name);
            cpus.is_some_and(|cpus| !cpus.is_disjoint(report.cpus))
        })?;
        Some(&found.name)
    }

    /// Another container with some of the reported CPUs, as words, and these CPUs.
    fn owner_of(
        &self,
        report: &Report<'_>,
        assignments: &BTreeMap<String, PodAssignment>,
    ) -> Option<(String, CpuSet)> {
        let all = assignments
            .iter()
            .flat_map(|(uid, mine)| mine.entries().map(move |(name, cpus)| (uid, name, cpus)));
        let mut others = all.filter(|(uid, name, cpus)| {
            let is_same = **uid == report.pod.key && *name == Some(report.name);
            !is_same && !cpus.is_disjoint(report.cpus)
        });
        let (uid, name, cpus) = others.next()?;
        let mut pods = self.requests.iter().filter(|pod| pod.key == *uid);
        let pod = pods.next().map_or_else(
            || format!("pod {uid}"),
            |pod| format!("{}/{}", pod.pod.namespace, pod.pod.name),
        );
        let owner = match name {
            Some(name) => format!("container {name} of {pod}"),
            None => format!("the idle siblings of {pod}"),
        };
        Some((owner, cpus.intersection(report.cpus)))
    }

    /// Notes which containers policy entitles to CPUs, and the kubelet has given none.
    fn note_unreported(&mut self) {
        for pod in self.requests {
            let mine = self.assignments.get(&pod.key);
            for (container, _) in pod.owed() {
                let name = &container.name;
                let has_some = mine.is_some_and(|mine| mine.containers.contains_key(name));
                if has_some || reported(self.kubelet, &pod.key, name).is_some() {
                    continue;
                }
                let note = ShortfallNote {
                    text: format!(
                        "{IN_SHARED_POOL}the kubelet's CPU Manager has reported no exclusive CPUs for it"
                    ),
                    refused: None,
                };
                self.notes.insert((pod.index, name.clone()), note);
            }
        }
        self.assignments.retain(|_, mine| !mine.is_empty());
    }
}
