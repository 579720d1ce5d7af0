//! Which pods get CPUs, and which containers move to make room. What pods keep or give back is in [`keep`].

use std::collections::{BTreeMap, BTreeSet};

use super::super::assignment::union;
use super::input::{ContainerMove, DecisionInput, Notes, PodRequest, RefusalSource, ShortfallNote};
use super::known::Description;
use super::shortfall::{Shortfall, shortfall};
use super::shrink::WaitingShrinks;
use crate::cpu::{CoreKinds, Cores, CpuSet, Owner, Placement, PlacementRefusal, Request};
use crate::pin::{Ledger, PodAssignment};
use crate::pod::{last_shared, most_exclusive};

/// Assignments in progress.
pub(super) struct PlacementPass<'a> {
    inputs: &'a DecisionInput<'a>,
    requests: &'a [PodRequest<'a>],
    /// CPUs excluded from new assignments now.
    ///
    /// CPUs that a pod gives up stay excluded until the release is done. Otherwise a crash before
    /// it could leave two owners.
    excluded: CpuSet,
    /// CPUs that neither a pod nor everybody else can use now: those that others own, and those that are being given up.
    unusable: CpuSet,
    /// The online CPUs that pods may use. The others are withheld.
    available: CpuSet,
    pub assignments: BTreeMap<String, PodAssignment>,
    /// The containers whose CPUs the kubelet chose, by pod, according to their records.
    by_kubelet: BTreeMap<String, BTreeSet<String>>,
    /// The recorded CPUs of containers that do not exist, by pod and container. The pod's other
    /// containers get them first.
    spare: BTreeMap<String, BTreeMap<String, SpareCpus>>,
    /// Why containers get fewer CPUs than their entitlements, by pod index and container name.
    pub notes: Notes,
    pub moves: Vec<ContainerMove>,
    /// The shrinks that wait, and what they will leave.
    pub waiting: WaitingShrinks,
}

/// The recorded CPUs of a container that does not exist.
struct SpareCpus {
    cpus: CpuSet,
    /// Whether what no other container takes stays with the container.
    rest_stays: bool,
}

// === impl PlacementPass ===

impl<'a> PlacementPass<'a> {
    pub(super) fn new(
        inputs: &'a DecisionInput<'a>,
        ledger: &Ledger,
        requests: &'a [PodRequest<'a>],
    ) -> Self {
        let unusable = ledger.excluded.union(&ledger.exclusive());
        let by_kubelet = ledger.assignments.iter();
        let by_kubelet = by_kubelet.filter(|(_, pod)| !pod.by_kubelet.is_empty());
        let by_kubelet = by_kubelet.map(|(uid, pod)| (uid.clone(), pod.by_kubelet.clone()));
        Self {
            inputs,
            requests,
            excluded: inputs.context.reserved.union(&unusable),
            unusable,
            available: ledger.available(&inputs.context.topology.online),
            assignments: ledger.assignments.clone(),
            by_kubelet: by_kubelet.collect(),
            spare: BTreeMap::new(),
            notes: BTreeMap::new(),
            moves: Vec::new(),
            waiting: WaitingShrinks::new(),
        }
    }

    /// The CPUs free for assignment. One CPU stays shared if no reserved CPU is, or if the kernel
    /// balances load on none of the shared reserved CPUs.
    fn free(&self) -> CpuSet {
        let owned = union(self.assignments.values().map(PodAssignment::cpus));
        let mut free = self.available.difference(&owned.union(&self.excluded));
        // Reserved CPUs are shared, unless pods can use none of them or all have an owner.
        let reserved = self.inputs.context.reserved.difference(&owned);
        let reserved = reserved.difference(&self.unusable);
        let shared = reserved.intersection(&self.available);
        let balanced = self.inputs.context.topology.balanced();
        if let Some(last) = last_shared(&free, &shared, &balanced) {
            free.remove(last);
        }
        free
    }

    /// The CPUs that everybody else has now, and how many of them must stay.
    fn shared(&self) -> (usize, usize) {
        let owned = union(self.assignments.values().map(PodAssignment::cpus));
        let taken = owned.union(&self.unusable);
        let minimum = self.inputs.context.shared_minimum;
        let left = self.available.difference(&taken).len();
        (left, minimum.of(self.available.len()))
    }

    /// Checks that a placement, with the siblings that it keeps idle, leaves enough CPUs to everybody else.
    fn check_shared(&self, placement: &Placement) -> Result<(), Shortfall> {
        let (shared, minimum) = self.shared();
        let (cpus, idle) = (placement.cpus.len(), placement.idle.len());
        let left = shared.saturating_sub(cpus + idle);
        if left >= minimum {
            return Ok(());
        }
        Err(self.too_few_shared(cpus, idle))
    }

    fn too_few_shared(&self, cpus: usize, idle: usize) -> Shortfall {
        let (shared, minimum) = self.shared();
        Shortfall::SharedMinimum {
            cpus,
            idle,
            left: shared.saturating_sub(cpus.saturating_add(idle)),
            minimum,
            configured: self.inputs.context.shared_minimum,
            possible: 0,
        }
    }

    /// How many CPUs the request takes at least, with the siblings that it keeps idle.
    fn least_taken(&self, request: &Request) -> usize {
        let taken = match request.cores {
            Cores::Single => {
                let cores = self.inputs.context.topology.cores();
                let mut sizes: Vec<usize> = cores.iter().map(CpuSet::len).collect();
                sizes.sort_unstable();
                sizes.iter().take(request.cpus).sum::<usize>()
            }
            Cores::Preferred | Cores::Whole => request.cpus,
        };
        taken.max(request.cpus)
    }

    /// Whether enough CPUs would be left to everybody else if the request got as few CPUs as it can.
    fn may_fit(&self, request: &Request) -> bool {
        let (shared, minimum) = self.shared();
        self.least_taken(request).saturating_add(minimum) <= shared
    }

    /// How many CPUs such a request could get at most, and how many without a shared minimum.
    fn most(&self, request: &Request) -> [usize; 2] {
        let (shared, minimum) = self.shared();
        let (cores, free) = (self.inputs.context.topology.cores(), self.free());
        [shared.saturating_sub(minimum), usize::MAX]
            .map(|room| most_exclusive(&cores, &free, room, request.cores))
    }

    fn withheld(&self) -> CpuSet {
        self.inputs
            .context
            .topology
            .online
            .difference(&self.available)
    }

    fn near(&self, pod: &PodRequest<'_>) -> CpuSet {
        let key = pod.pod.object_name();
        self.inputs
            .context
            .devices
            .get(&key)
            .cloned()
            .unwrap_or_default()
    }

    /// The CPUs of `from` to keep idle, if the pod wants the siblings of its CPUs idle.
    fn idle(&self, pod: &PodRequest<'_>, mine: &PodAssignment, from: &CpuSet) -> CpuSet {
        if pod.preferences.cores != Cores::Single {
            return CpuSet::new();
        }
        self.siblings(mine, from)
    }

    /// The CPUs of `from` that share a core with CPUs of the pod's containers.
    fn siblings(&self, mine: &PodAssignment, from: &CpuSet) -> CpuSet {
        let own = mine.usable();
        let cores = own
            .iter()
            .map(|cpu| self.inputs.context.topology.core_of(cpu));
        union(cores).difference(&own).intersection(from)
    }

    /// The containers that are entitled to CPUs and have none.
    pub(super) fn without_cpus<'p>(&self, pod: &PodRequest<'p>) -> BTreeSet<&'p str> {
        let owed = pod.owed().map(|(container, _)| container.name.as_str());
        owed.filter(|name| self.own(pod, name).is_empty()).collect()
    }

    /// Gives the CPUs of containers that do not exist to those of the pod that lack CPUs, first to those in `first`.
    ///
    /// While a complete list is awaited, only a container that does not run so far gets any,
    /// because each recorded assignment of the pod may still be needed.
    pub(super) fn take_spare(&mut self, pod: &PodRequest<'_>, first: &BTreeSet<&str>) {
        let Some(mut spare) = self.spare.remove(&pod.key) else {
            return;
        };
        let is_awaited = pod.description == Description::Awaited;
        let runs = |name: &str| {
            pod.known
                .is_some_and(|known| known.running.contains_key(name))
        };
        let mut missing = self.missing(pod);
        missing.sort_by_key(|(name, _)| !first.contains(name));
        for (name, missing) in missing {
            let all = union(spare.values().map(|spare| &spare.cpus));
            if all.is_empty() || is_awaited && runs(name) {
                continue;
            }
            let own = self.own(pod, name);
            let taken = self.part(pod, (&all, &own), missing);
            spare.retain(|_, spare| {
                spare.cpus = spare.cpus.difference(&taken);
                !spare.cpus.is_empty()
            });
            let assignment = self.assignments.entry(pod.key.clone()).or_default();
            assignment
                .containers
                .insert(name.to_owned(), own.union(&taken));
        }
        for (name, spare) in spare.into_iter().filter(|(_, spare)| spare.rest_stays) {
            let assignment = self.assignments.entry(pod.key.clone()).or_default();
            assignment.containers.insert(name, spare.cpus);
        }
    }

    /// Gives free CPUs to those of a pod's containers for which `is_meant` holds.
    pub(super) fn gain(&mut self, pod: &PodRequest<'_>, is_meant: impl Fn(&str) -> bool) {
        let mut missing = self.missing(pod);
        missing.retain(|(name, _)| is_meant(name));
        if missing.is_empty() {
            return;
        }
        if let Some(reason) = self.wait_reason(pod, &missing) {
            for (name, _) in missing {
                self.add_note(pod, name, reason.to_owned(), false);
            }
            return;
        }
        // The containers are placed together first and then divided, so that containers of the same
        // pod share a core.
        let total = missing.iter().map(|(_, cpus)| cpus).sum();
        let request = pod.preferences.request(total, &self.near(pod));
        let mut together = self.place(&request).map(|placement| placement.cpus).ok();
        for (name, cpus) in missing {
            let own = self.own(pod, name);
            match self.place_container(pod, &own, cpus, together.as_ref()) {
                Ok(placement) => {
                    together = together
                        .map(|set| set.difference(&placement.cpus).difference(&placement.idle));
                    let assignment = self.assignments.entry(pod.key.clone()).or_default();
                    let cpus = own.union(&placement.cpus);
                    assignment.containers.insert(name.to_owned(), cpus);
                    self.add_idle(pod);
                }
                Err(error) => self.add_note(pod, name, shortfall(&own, &error), true),
            }
        }
    }

    /// The containers with fewer CPUs than their entitlements, and the number of missing CPUs.
    ///
    /// A container that does not exist so far gets the CPUs of a late init container when that
    /// ends. Until then, only the others lack CPUs.
    fn missing<'p>(&mut self, pod: &PodRequest<'p>) -> Vec<(&'p str, usize)> {
        let late = pod.late_init_containers();
        let mut promised: usize = late.map(|init| self.own(pod, &init.name).len()).sum();
        let mut missing = Vec::new();
        for (container, cpus) in pod.owed() {
            let name = container.name.as_str();
            let mut lacks = cpus.saturating_sub(self.own(pod, name).len());
            if promised > 0 && lacks > 0 && !pod.exists(name) {
                let later = promised.min(lacks);
                (promised, lacks) = (promised - later, lacks - later);
                let text = "gets CPUs of its pod's init container when that ends".to_owned();
                // A later pass must not replace what an earlier one has said of the rest.
                if !self.notes.contains_key(&(pod.index, name.to_owned())) {
                    self.add_note(pod, name, text, false);
                }
            }
            if lacks > 0 {
                missing.push((name, lacks));
            }
        }
        missing
    }

    /// The assigned CPUs of a container.
    fn own(&self, pod: &PodRequest<'_>, name: &str) -> CpuSet {
        let own = self.assignments.get(&pod.key);
        own.and_then(|assignment| assignment.containers.get(name))
            .cloned()
            .unwrap_or_default()
    }

    /// Why a pod gets its missing CPUs in a later turn only. Moves other containers if their CPUs
    /// are needed.
    fn wait_reason(&mut self, pod: &PodRequest<'_>, missing: &[(&str, usize)]) -> Option<&'a str> {
        let inputs: &'a DecisionInput<'a> = self.inputs;
        if let Some(reason) = inputs.context.suspended.or_else(|| self.absent(pod)) {
            return Some(reason);
        }
        let owns_none = self
            .assignments
            .get(&pod.key)
            .is_none_or(PodAssignment::is_empty);
        let total = missing.iter().map(|(_, cpus)| cpus).sum();
        let request = pod.preferences.request(total, &self.near(pod));
        (owns_none && self.make_room(&request))
            .then_some("gets its CPUs when other containers have moved away")
    }

    /// Places the missing CPUs of a container: beside its CPUs, else among the CPUs chosen for the
    /// whole pod, else anywhere. Enough CPUs stay with everybody else.
    fn place_container(
        &self,
        pod: &PodRequest<'_>,
        own: &CpuSet,
        missing: usize,
        together: Option<&CpuSet>,
    ) -> Result<Placement, Shortfall> {
        let place = |cpus| -> Result<Placement, Shortfall> {
            let placement = self.choose(pod, own, cpus, together)?;
            self.check_shared(&placement)?;
            Ok(placement)
        };
        let mut shortfall = match place(missing) {
            Err(shortfall) => shortfall,
            placed => return placed,
        };
        let request = pod.preferences.request(missing, &self.near(pod));
        let [most, without_minimum] = self.most(&request);
        // Where the minimum allows fewer CPUs than are free, it is the reason, whatever the placer lacks.
        if most < missing.min(without_minimum) && matches!(shortfall, Shortfall::Placement(_)) {
            let idle = self.least_taken(&request).saturating_sub(missing);
            shortfall = self.too_few_shared(missing, idle);
        }
        if let Shortfall::SharedMinimum { possible, .. } = &mut shortfall
            && most > 0
            && most < missing
            && place(most).is_ok()
        {
            *possible = most;
        }
        Err(shortfall)
    }

    fn choose(
        &self,
        pod: &PodRequest<'_>,
        own: &CpuSet,
        missing: usize,
        together: Option<&CpuSet>,
    ) -> Result<Placement, PlacementRefusal> {
        let request = pod.preferences.request(missing, &self.near(pod));
        if !own.is_empty() {
            return self.place_beside(&self.free(), own, &request);
        }
        let Some(together) =
            together.and_then(|set| self.inputs.context.placer.place_as(set, &request).ok())
        else {
            return self.place(&request);
        };
        if !self.mixes_kinds(&together.cpus, &request) {
            return Ok(together);
        }
        // The pod's containers need several kinds of cores together, but each may still fit one
        // kind.
        let apart = self.place(&request).ok();
        let apart = apart.filter(|placement| !self.mixes_kinds(&placement.cpus, &request));
        Ok(apart.unwrap_or(together))
    }

    /// Whether the CPUs are on cores of several kinds, against the wish of the request.
    fn mixes_kinds(&self, cpus: &CpuSet, request: &Request) -> bool {
        request.core_kinds == CoreKinds::Same && self.inputs.context.placer.is_mixed(cpus)
    }

    fn add_note(&mut self, pod: &PodRequest<'_>, name: &str, text: String, refused: bool) {
        let refused = refused.then_some(RefusalSource::Room);
        let note = ShortfallNote { text, refused };
        self.notes.insert((pod.index, name.to_owned()), note);
    }

    fn add_idle(&mut self, pod: &PodRequest<'_>) {
        let free = self.free();
        let Some(mine) = self.assignments.get(&pod.key) else {
            return;
        };
        let idle = self.idle(pod, mine, &free);
        if let Some(mine) = self.assignments.get_mut(&pod.key) {
            mine.idle = mine.idle.union(&idle);
        }
    }

    /// Why a pod cannot get CPUs yet.
    fn absent(&self, pod: &PodRequest<'_>) -> Option<&'static str> {
        match (self.inputs.here?, pod.pod.cgroup_uid()) {
            (_, None) => {
                Some("stays in the shared pool: its cgroup can't be found without metadata.uid")
            }
            (here, Some(uid)) if !here.contains(uid) => {
                Some("gets its CPUs when its first container exists")
            }
            _ => None,
        }
    }

    fn place(&self, request: &Request) -> Result<Placement, PlacementRefusal> {
        self.inputs.context.placer.place_as(&self.free(), request)
    }

    /// Places more CPUs of `free` for a container with CPUs. The new ones share a last-level cache with the
    /// present ones if possible, else a NUMA node, and otherwise as many as possible do. One kind of
    /// core comes before nearness, if the pod wants it. If the pod wants the fewest NUMA nodes, all
    /// CPUs of the container count.
    fn place_beside(
        &self,
        free: &CpuSet,
        own: &CpuSet,
        request: &Request,
    ) -> Result<Placement, PlacementRefusal> {
        let topology = self.inputs.context.topology;
        let llcs = topology.llcs().into_iter();
        let llcs = llcs.filter(|llc| !llc.is_disjoint(own));
        let numa = topology.numa.iter().map(|numa| &numa.cpus);
        let numa = numa.filter(|numa| !numa.is_disjoint(own));
        let place = |free: &CpuSet| self.inputs.context.placer.place_beside(free, own, request);
        let near = [union(llcs), union(numa)].map(|nearby| free.intersection(&nearby));
        let placed: Vec<Placement> = near.iter().filter_map(|near| place(near).ok()).collect();
        let mixes = |placement: &Placement| self.mixes_kinds(&own.union(&placement.cpus), request);
        let nearest_of_kind = placed.iter().find(|placement| !mixes(placement));
        if let Some(nearest) = nearest_of_kind {
            return Ok(nearest.clone());
        }
        // Farther CPUs of the same kind come before near CPUs of another kind.
        let anywhere = place(free)?;
        if placed.is_empty() {
            let partly = |near: &CpuSet| self.place_partly((free, near), own, request);
            let partly = near.iter().rev().find_map(partly);
            let cost = |placement: &Placement| {
                let all = own.union(&placement.cpus);
                (mixes(placement), self.inputs.context.placer.cost(&all))
            };
            let partly = partly.filter(|partly| cost(partly) <= cost(&anywhere));
            return Ok(partly.unwrap_or(anywhere));
        }
        let nearest = placed.into_iter().next().filter(|_| mixes(&anywhere));
        Ok(nearest.unwrap_or(anywhere))
    }

    /// Places more CPUs for a container with CPUs, where too few are free nearby: all of these, and the rest anywhere.
    fn place_partly(
        &self,
        (free, near): (&CpuSet, &CpuSet),
        own: &CpuSet,
        request: &Request,
    ) -> Option<Placement> {
        let (placer, topology) = (self.inputs.context.placer, self.inputs.context.topology);
        let missing = request.cpus.checked_sub(near.len())?;
        let takes_any = request.cores == Cores::Preferred && near.is_subset(&topology.balanced());
        if near.is_empty() || missing == 0 || !takes_any {
            return None;
        }
        let rest = Request {
            cpus: missing,
            ..request.clone()
        };
        let free = free.difference(near);
        let rest = placer.place_beside(&free, &own.union(near), &rest).ok()?;
        let cpus = near.union(&rest.cpus);
        Some(Placement {
            cost: placer.cost(&cpus),
            idle: CpuSet::new(),
            cpus,
        })
    }

    /// Moves running containers that may be moved, if that keeps a request from being split.
    /// Returns whether any container moves.
    fn make_room(&mut self, request: &Request) -> bool {
        let left = self.inputs.moves.saturating_sub(self.moves.len()).min(2);
        // Nobody moves for a container that may not have the CPUs anyway.
        if left == 0 || !self.may_fit(request) {
            return false;
        }
        let mut names = Vec::new();
        let mut owners = Vec::new();
        let requests = self.requests.iter().rev();
        let by_key: BTreeMap<&str, &PodRequest<'_>> =
            requests.map(|pod| (pod.key.as_str(), pod)).collect();
        for (key, assignment) in &self.assignments {
            let pod = by_key.get(key.as_str()).copied();
            let of_kubelet = self.by_kubelet.get(key);
            for (name, cpus) in &assignment.containers {
                let own = assignment.of_container(name);
                let idle = pod.map(|pod| self.idle(pod, &own, &assignment.idle));
                let movable = pod
                    // The program was told which CPUs it will keep.
                    .filter(|pod| !pod.waiting.contains_key(name))
                    // Until its pod ends, a container keeps the CPUs that the kubelet chose.
                    .filter(|_| !of_kubelet.is_some_and(|names| names.contains(name)))
                    // Moving away from withheld CPUs frees nothing that anybody could use.
                    .filter(|pod| pod.preferences.movable && cpus.is_disjoint(&self.withheld()))
                    .map(|pod| pod.preferences.request(cpus.len(), &self.near(pod)));
                owners.push(Owner {
                    cpus: cpus.clone(),
                    idle: idle.unwrap_or_default(),
                    movable,
                });
                names.push((pod, name.clone()));
            }
        }
        let placer = self.inputs.context.placer;
        let Some(repacking) = placer.repack(&self.free(), &owners, request, left) else {
            return false;
        };
        for step in repacking.moves {
            let (Some((Some(pod), name)), Some(owner)) =
                (names.get(step.owner), owners.get(step.owner))
            else {
                continue;
            };
            if let Some(assignment) = self.assignments.get_mut(&pod.key) {
                let cpus = step.to.cpus.clone();
                assignment.containers.insert(name.clone(), cpus);
                if !assignment.idle.is_empty() {
                    let others = assignment.idle.difference(&owner.idle);
                    assignment.idle = others.union(&step.to.idle);
                }
            }
            self.moves.push(ContainerMove {
                namespace: pod.pod.namespace.clone(),
                pod: pod.pod.name.clone(),
                container: name.clone(),
                from: owner.cpus.clone(),
                to: step.to.cpus,
            });
        }
        true
    }
}

mod keep;
