//! Which CPUs the pods keep, before any pod gets more.

use std::collections::{BTreeMap, BTreeSet};

use super::super::input::PodRequest;
use super::super::known::Description;
use super::{PlacementPass, SpareCpus};
use crate::cpu::{CpuSet, Request};
use crate::pin::PodAssignment;
use crate::pod::ContainerIds;

// === impl PlacementPass ===

impl PlacementPass<'_> {
    /// Keeps the CPUs of pods that no source describes and the runtime does not know, as far as
    /// their containers exist.
    pub(in super::super) fn keep_undescribed(&mut self) {
        let Some(known_pods) = self.inputs.known else {
            return;
        };
        let described: BTreeSet<&str> = self.requests.iter().map(|pod| pod.key.as_str()).collect();
        let uids = known_pods.keys().filter(|uid| !described.contains(*uid));
        for uid in uids {
            let (Some(known), Some(recorded)) =
                (known_pods.get(uid), self.assignments.get(*uid).cloned())
            else {
                continue;
            };
            let mut mine = recorded.clone();
            mine.containers
                .retain(|name, _| known.keeps(name, &recorded));
            if mine.containers.len() < recorded.containers.len() {
                mine.idle = self.siblings(&mine, &recorded.idle);
                self.assignments.insert((*uid).to_owned(), mine);
            }
        }
    }

    /// Keeps the CPUs a pod's containers are still entitled to, and removes the rest.
    pub(in super::super) fn keep(&mut self, pod: &PodRequest<'_>) {
        let recorded = self.assignments.remove(&pod.key).unwrap_or_default();
        let is_complete = pod.description == Description::Complete;
        // A pod without a container owns no CPUs. Earlier versions gave CPUs to the sandbox, and
        // these become free now.
        let ids_known = self.inputs.context.ids_settled || pod.pod.ids == ContainerIds::Runtime;
        if is_complete && ids_known && self.absent(pod).is_some() {
            return;
        }
        let mut mine = PodAssignment::default();
        let mut spare = BTreeMap::new();
        for (name, cpus) in &recorded.containers {
            let wanted = pod.wanted(name);
            if let Some(wanted) = wanted {
                let kept = self.shrunk(pod, (name, cpus), wanted);
                mine.containers.insert(name.clone(), kept);
                if let Some(left) = pod.waiting.get(name) {
                    let left = self.shrunk(pod, (name, cpus), *left as usize);
                    self.waiting.insert(pod.container_key(name), left);
                }
                continue;
            }
            let Some(known) = pod.known else {
                continue;
            };
            // What only the runtime describes has kept its CPUs already, unless a resize took them.
            let is_of_runtime = matches!(
                pod.description,
                Description::RuntimeOnly | Description::Missing
            );
            if is_of_runtime && pod.has(name) {
                continue;
            }
            let (cpus, rest_stays) = (cpus.clone(), known.keeps(name, &recorded));
            if known.can_pass_on(name, &recorded) {
                spare.insert(name.clone(), SpareCpus { cpus, rest_stays });
            } else if rest_stays {
                mine.containers.insert(name.clone(), cpus);
            }
        }
        mine.idle = if is_complete {
            self.idle(pod, &mine, &recorded.idle)
        } else {
            self.siblings(&recorded, &recorded.idle)
        };
        if !spare.is_empty() {
            self.spare.insert(pod.key.clone(), spare);
        }
        // Only owners are kept, because `free` goes through all of them for each pod, and there are
        // at most as many as CPUs.
        if !mine.is_empty() {
            self.assignments.insert(pod.key.clone(), mine);
        }
    }

    /// The CPUs that a container keeps if it is entitled to `wanted`. Those that were announced to stay come first, also if the
    /// number has changed since. CPUs that are not on offer go first, even if it was announced that they would stay.
    fn shrunk(&self, pod: &PodRequest<'_>, (name, cpus): (&str, &CpuSet), wanted: usize) -> CpuSet {
        let announced = self.inputs.shrinks;
        let announced = announced.and_then(|shrinks| shrinks.left(&pod.container_key(name)));
        let announced = announced.map_or_else(CpuSet::new, |left| left.intersection(cpus));
        let offered = cpus.intersection(&self.available);
        let first = announced.intersection(&offered);
        [&first, &offered, &announced, cpus]
            .into_iter()
            .fold(CpuSet::new(), |kept, from| {
                let missing = wanted.saturating_sub(kept.len());
                let more = self.part(pod, (&from.difference(&kept), &kept), missing);
                kept.union(&more)
            })
    }

    /// So many CPUs of a set that the pod has already, if possible near those in `own`; all if the set has no more.
    pub(super) fn part(
        &self,
        pod: &PodRequest<'_>,
        (cpus, own): (&CpuSet, &CpuSet),
        wanted: usize,
    ) -> CpuSet {
        if wanted == 0 || wanted >= cpus.len() {
            return cpus.iter().take(wanted).collect();
        }
        // The remaining CPUs may not fill whole cores. If they can't be placed in whole cores, any
        // of them may stay. The pod already owns the CPUs, so too many NUMA nodes are no reason to
        // drop its other preferences.
        let request = pod.preferences.request(wanted, &self.near(pod));
        let anywhere = Request {
            fewest_numa: false,
            ..request.clone()
        };
        let plain = Request {
            cpus: wanted,
            ..Request::default()
        };
        let requests = [request, anywhere, plain];
        let place = |request| self.place_beside(cpus, own, request).ok();
        let placement = requests.iter().find_map(place);
        // The placer ignores CPUs that are offline.
        let online = cpus.intersection(&self.inputs.context.topology.online);
        let offline = cpus.difference(&online);
        let any = || online.iter().chain(offline.iter()).take(wanted).collect();
        placement.map_or_else(any, |placement| placement.cpus)
    }
}
