//! [`Capacity`]: how many CPUs a node can give exclusively, how many the scheduler counts, and what the kubelet must reserve so
//! that both agree.
//!
//! The scheduler sends pods to a node until their requests reach the Node's *allocatable* CPUs. It knows neither the CPUs that
//! Pinfold reserves nor the siblings that it keeps idle, so with too much allocatable, it sends pods that find no CPUs.

use serde::Serialize;

use super::quantity::format_cpu;
use crate::cpu::{Cores, CpuSet, SharedMinimum, cpu_count};

/// What decides how many CPUs a node can give.
#[derive(Debug, Clone, Copy)]
pub struct CapacityInput<'a> {
    pub online: &'a CpuSet,
    /// The online CPUs that the pods' top cgroups do not offer.
    pub withheld: &'a CpuSet,
    /// CPUs that a cgroup holds as exclusive without a record of Pinfold: another program's.
    pub held_by_others: &'a CpuSet,
    /// The online CPUs that the kernel has lost until the next boot.
    pub lost: &'a CpuSet,
    /// CPUs that are never exclusive. Some of them may be offline.
    pub reserved: &'a CpuSet,
    /// CPUs isolated at boot, over which the kernel balances no load.
    pub isolated: &'a CpuSet,
    /// The online CPUs of each core.
    pub cores: &'a [CpuSet],
    /// How containers without a preference of their own divide cores.
    pub preference: Cores,
    /// Whether pods may ask for a single CPU of each core.
    pub single_cores: bool,
    pub shared_minimum: SharedMinimum,
    /// The CPUs that containers own now.
    pub owned: &'a CpuSet,
    /// The siblings that are kept idle now.
    pub idle: &'a CpuSet,
}

/// How many CPUs a node can give exclusively.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Capacity {
    /// The online CPUs that pods can use.
    pub cpus: usize,
    /// How many of these are reserved.
    pub reserved: usize,
    /// How many of these must stay shared, the reserved ones included.
    pub shared_minimum: usize,
    /// How many of these are idle siblings now, which the scheduler counts and nobody can use.
    pub idle: usize,
    /// How many free CPUs are on cores that others own in part, on a node whose containers share no core by default.
    pub fragments: usize,
    /// The most CPUs that containers without a preference can own together on the node without its pods. What the kubelet should
    /// reserve follows from this number, because it must not change with the pods that run.
    pub assignable: usize,
    /// The same with the pods that have CPUs now: theirs, and those that further containers without a preference can get.
    pub assignable_now: usize,
    /// The most CPUs that containers with `pinfold.io/cores: single` can own together; `None` if the node's cores have one CPU
    /// each, or if pods may not ask for that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub single: Option<usize>,
    /// The online CPUs, which the kubelet counts.
    #[serde(skip)]
    online: usize,
    /// How many online CPUs are lost.
    #[serde(skip)]
    lost: usize,
    /// How many online CPUs another program holds.
    #[serde(skip)]
    held_by_others: usize,
    /// `assignable`, as it will be after the reboot that brings lost CPUs back.
    #[serde(skip)]
    after_reboot: usize,
    /// How containers divide cores; [`Cores::Preferred`] where the cores have one CPU each.
    #[serde(skip)]
    preference: Cores,
    /// The CPUs to name in the kubelet's `reservedSystemCPUs`; `None` if Pinfold could not reserve the same and give as many.
    #[serde(skip)]
    system_cpus: Option<CpuSet>,
    /// Whether other settings would let the node give CPUs.
    #[serde(skip)]
    gives_with_less: bool,
}

/// The CPUs that the scheduler counts on a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Allocatable {
    /// What pods may request together, in thousandths of a CPU.
    pub millicores: u64,
    /// All that the kubelet counts, before it reserves; `None` if only the rest is known.
    #[serde(skip)]
    pub capacity: Option<u64>,
    pub source: AllocatableSource,
}

/// Where the amount comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum AllocatableSource {
    /// The Node's status at the API server.
    Node,
    /// The kubelet's configuration file, by `kubeReserved` and `systemReserved`. Flags of the kubelet may overrule it.
    KubeletConfig,
    /// The kubelet's configuration file, by `reservedSystemCPUs`, which replaces both amounts.
    ReservedSystemCpus,
    /// The user of a command.
    Given,
}

/// What follows from a node's capacity and its allocatable CPUs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CapacityFinding {
    /// Whether the scheduler may send pods for more CPUs than can be given; `None` if its number is unknown.
    pub promises_too_much: Option<bool>,
    /// Both numbers, and what they consist of.
    pub sentence: String,
    /// How many CPUs the kubelet must reserve; `None` where nothing needs to change, or where that would not help, as against lost
    /// CPUs and the idle siblings of the pods that run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kubelet_reserve: Option<usize>,
    /// What to set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}

// === impl Capacity ===

impl Capacity {
    /// How many CPUs the node can give.
    pub fn new(input: &CapacityInput<'_>) -> Self {
        let (available, none) = (input.available(), CpuSet::new());
        let (empty, now) = (
            input.room(&none),
            input.room(&input.owned.union(input.idle)),
        );
        let most = |preference| most_exclusive(input.cores, &empty.free, empty.cpus, preference);
        let has_siblings = input.cores.iter().any(|core| core.len() > 1);
        let preference = match has_siblings {
            true => input.preference,
            false => Cores::Preferred,
        };
        let asked = input.single_cores && has_siblings && preference != Cores::Single;
        let more = most_exclusive(input.cores, &now.free, now.cpus, input.preference);
        let rebooted = CapacityInput {
            lost: &none,
            ..*input
        };
        let least = CapacityInput {
            reserved: &none,
            shared_minimum: SharedMinimum::Cpus(0),
            ..*input
        };
        let not_of_others = available.union(input.lost).union(input.withheld);
        let mut capacity = Self {
            cpus: available.len(),
            reserved: input.reserved.intersection(&available).len(),
            shared_minimum: empty.shared,
            idle: input.idle.len(),
            fragments: input.fragments(&now.free),
            assignable: most(input.preference),
            assignable_now: input.owned.len() + more,
            single: asked.then(|| most(Cores::Single)),
            online: input.online.len(),
            lost: input.lost.intersection(input.online).len(),
            held_by_others: input.online.difference(&not_of_others).len(),
            after_reboot: rebooted.without_pods(),
            preference,
            system_cpus: None,
            gives_with_less: least.without_pods() > 0,
        };
        let list = system_cpus(&rebooted, capacity.kubelet_reserve());
        let same = CapacityInput {
            reserved: &list,
            ..rebooted
        };
        let agrees = same.without_pods() + list.len() >= capacity.online;
        capacity.system_cpus = agrees.then_some(list);
        capacity
    }

    /// How many CPUs the kubelet must reserve, which it will still do after a reboot. When it starts, it counts the CPUs that are
    /// online.
    fn kubelet_reserve(&self) -> usize {
        self.online.saturating_sub(self.after_reboot)
    }

    /// Compares what can be given with what the scheduler counts.
    pub fn compare(&self, allocatable: Option<&Allocatable>) -> CapacityFinding {
        let given = self.in_words();
        let Some(allocatable) = allocatable else {
            return CapacityFinding {
                promises_too_much: None,
                sentence: format!(
                    "{given}; the Node's allocatable CPUs, which the scheduler counts, are unknown here and should be less than {}",
                    self.after_reboot + 1
                ),
                kubelet_reserve: None,
                remedy: None,
            };
        };
        let online = u64::try_from(self.online).unwrap_or(u64::MAX);
        let counts = format!(
            "the scheduler counts {} ({}{})",
            cpus_in_words(allocatable.millicores),
            allocatable.source.in_words(),
            if allocatable.millicores > online.saturating_mul(1000) {
                ", more than are online"
            } else {
                ""
            }
        );
        // Containers own whole CPUs, so a part of a CPU promises nothing.
        let promised = usize::try_from(allocatable.millicores / 1000).unwrap_or(usize::MAX);
        let by_kubelet = promised > self.assignable;
        let too_much = by_kubelet || promised > self.assignable_now;
        let sentence = if too_much {
            format!("{counts}, but {given}: pods that find no free CPUs stay on shared ones")
        } else if promised == 0 {
            format!("{counts}, so it sends no pod that requests a whole CPU; {given}")
        } else {
            format!("{counts}, and {given}")
        };
        let lacks_reserve = promised > self.after_reboot;
        let remedy = || match (by_kubelet, lacks_reserve) {
            (true, true) if self.after_reboot == 0 => self.remedy_without_any(),
            (true, true) => self.remedy(allocatable),
            (true, false) => self.reboot(),
            (false, _) => self.remedy_for_pods(),
        };
        let reserve_helps = lacks_reserve && self.after_reboot > 0;
        CapacityFinding {
            promises_too_much: Some(too_much),
            sentence,
            kubelet_reserve: reserve_helps.then(|| self.kubelet_reserve()),
            remedy: too_much.then(remedy),
        }
    }

    fn reboot(&self) -> String {
        format!(
            "drain and reboot the node, which alone brings the {} back that the kernel has lost",
            cpu_count(self.lost)
        )
    }

    fn remedy(&self, allocatable: &Allocatable) -> String {
        let reserve = self.kubelet_reserve();
        let thousands = |cpus| u64::try_from(cpus).unwrap_or(u64::MAX).saturating_mul(1000);
        let counted = allocatable.capacity.unwrap_or(thousands(self.online));
        let amount = format_cpu(thousands(reserve).saturating_sub(500));
        // The kubelet ignores the amounts beside a list, and the Node doesn't tell whether it has one.
        let amounts = format!(
            "systemReserved: {{cpu: \"{amount}\"}}, with no cpu in kubeReserved and no reservedSystemCPUs (half a CPU is left to DaemonSets)"
        );
        let list = self.system_cpus.as_ref().map(|cpus| {
            let more = match cpus.len() > reserve {
                true => format!(" ({}, so that no core is divided)", cpu_count(cpus.len())),
                false => String::new(),
            };
            format!("reservedSystemCPUs: \"{cpus}\"{more}")
        });
        let has_list = allocatable.source == AllocatableSource::ReservedSystemCpus;
        let how = match list {
            Some(list) if has_list => list,
            Some(list) => format!("either {amounts}, or {list}"),
            None => amounts,
        };
        let remedy = format!(
            "let the kubelet reserve {} instead of {}: {how}; then restart it on the drained node",
            cpu_count(reserve),
            format_cpu(counted.saturating_sub(allocatable.millicores))
        );
        match self.lost {
            0 => remedy,
            _ => format!("{}; and {remedy}", self.reboot()),
        }
    }

    /// What helps on a node that can give no CPU at all, not even without its pods.
    pub fn remedy_without_any(&self) -> String {
        if self.after_reboot > 0 {
            return self.reboot();
        }
        let what = if self.gives_with_less {
            "reserve fewer CPUs for Pinfold (reserved, sharedMinimum), or"
        } else if self.cpus < self.online {
            "let pods use more CPUs of the node (the other findings of pinfold doctor name them), or"
        } else {
            "this node has too few CPUs to give any:"
        };
        format!("{what} keep training pods off it")
    }

    /// What helps where the pods that have CPUs leave too few to others, which no setting of the kubelet can know.
    fn remedy_for_pods(&self) -> String {
        let how = match (self.idle, self.fragments) {
            (0, 0) => {
                return "nothing needs to change: it ends with the pods that own reserved CPUs"
                    .to_owned();
            }
            (0, _) => {
                "let the pods that own a part of a core ask for whole cores (pinfold.io/cores: whole), or "
            }
            _ if self.preference == Cores::Single => "",
            _ => {
                "set cpus.cores: single if all pods here want idle siblings, or forbid them with policy.singleCores: false, or "
            }
        };
        format!(
            "don't let the kubelet reserve more for these pods, because the number changes with them: {how}limit such pods for each \
             node with a topology spread constraint"
        )
    }

    /// How many CPUs can be given, and why not the others.
    pub fn in_words(&self) -> String {
        let mut parts = Vec::new();
        let (reserved, shared) = (self.reserved, self.shared_minimum);
        if self.lost > 0 {
            parts.push(format!("{} lost", self.lost));
        }
        if self.held_by_others > 0 {
            parts.push(format!("{} held by other programs", self.held_by_others));
        }
        let explained = self.cpus + self.lost + self.held_by_others;
        if self.online > explained {
            parts.push(format!("{} withheld", self.online - explained));
        }
        if shared > reserved {
            let verb = if shared == 1 { "stays" } else { "stay" };
            parts.push(format!("at least {shared} {verb} shared"));
        }
        match reserved {
            0 => {}
            _ if shared > reserved => parts.push(format!("{reserved} of them reserved")),
            _ => parts.push(format!("{reserved} reserved")),
        }
        match self.preference {
            Cores::Preferred => {}
            Cores::Whole => parts.push("only whole cores".to_owned()),
            Cores::Single => parts.push("one CPU of each core".to_owned()),
        }
        let parts = match parts.is_empty() {
            true => String::new(),
            false => format!(" ({})", parts.join(", ")),
        };
        let single = self.single.filter(|_| self.assignable > 0);
        let single = single.map_or_else(String::new, |single| {
            format!(", or {single} with pinfold.io/cores: single")
        });
        format!(
            "{} of {} can be exclusive{parts}{single}{}",
            self.assignable,
            cpu_count(self.online),
            self.now_in_words()
        )
    }

    /// How many CPUs can be given with the pods that have some, if these leave fewer than an empty node has.
    fn now_in_words(&self) -> String {
        if self.assignable_now >= self.assignable {
            return String::new();
        }
        let plural = if self.idle == 1 { "" } else { "s" };
        let idle = (self.idle > 0).then(|| format!("{} idle sibling{plural}", self.idle));
        let fragments = self.fragments;
        let fragments =
            (fragments > 0).then(|| format!("{} on partly owned cores", cpu_count(fragments)));
        let causes: Vec<String> = idle.into_iter().chain(fragments).collect();
        let causes = match causes.is_empty() {
            true => String::new(),
            false => format!(", because of {}", causes.join(" and ")),
        };
        format!("; with the pods here, only {}{causes}", self.assignable_now)
    }
}

// === impl CapacityInput ===

/// The CPUs that further containers may own.
struct Room {
    free: CpuSet,
    /// How many of these may be taken, with idle siblings.
    cpus: usize,
    /// How many CPUs must stay shared.
    shared: usize,
}

impl CapacityInput<'_> {
    /// The CPUs that pods can use.
    fn available(&self) -> CpuSet {
        let offered = self.online.difference(self.withheld);
        offered
            .difference(self.held_by_others)
            .difference(self.lost)
    }

    /// The CPUs over which the kernel balances load: all of them if all are isolated, as in [`Topology::balanced`].
    ///
    /// [`Topology::balanced`]: crate::cpu::Topology::balanced
    fn balanced(&self) -> CpuSet {
        let balanced = self.online.difference(self.isolated);
        if balanced.is_empty() {
            return self.online.clone();
        }
        balanced
    }

    /// What is left to give where the CPUs in `taken` are owned or idle.
    fn room(&self, taken: &CpuSet) -> Room {
        let available = self.available();
        let left = available.difference(taken);
        let reserved = self.reserved.intersection(&left);
        let mut free = left.difference(&reserved);
        let last = last_shared(&free, &reserved, &self.balanced());
        if let Some(last) = last {
            free.remove(last);
        }
        // The share is one of all that is on offer, as at each assignment.
        let offered = self.online.difference(self.withheld).len();
        let minimum = self.shared_minimum.of(offered);
        let kept = reserved.len() + usize::from(last.is_some());
        Room {
            cpus: left.len().saturating_sub(minimum),
            shared: stay_shared(offered, kept, self.shared_minimum),
            free,
        }
    }

    /// How many CPUs containers without a preference can own together on the node without pods.
    fn without_pods(&self) -> usize {
        let Room { free, cpus, .. } = self.room(&CpuSet::new());
        most_exclusive(self.cores, &free, cpus, self.preference)
    }

    /// How many CPUs of `free` are on cores that others own in part, if containers share no core.
    fn fragments(&self, free: &CpuSet) -> usize {
        if self.preference == Cores::Preferred {
            return 0;
        }
        let taken = self.owned.union(self.idle);
        let broken = |core: &&CpuSet| !core.is_disjoint(&taken);
        let fragments = self.cores.iter().filter(broken);
        fragments.map(|core| core.intersection(free).len()).sum()
    }
}

// === impl AllocatableSource ===

impl AllocatableSource {
    fn in_words(self) -> &'static str {
        match self {
            Self::Node => "the Node's allocatable",
            Self::KubeletConfig | Self::ReservedSystemCpus => {
                "allocatable by the kubelet's configuration file"
            }
            Self::Given => "allocatable, as given",
        }
    }
}

/// How many CPUs of a node stay shared, where pods can use `cpus` and Pinfold reserves `reserved` of them.
pub fn stay_shared(cpus: usize, reserved: usize, minimum: SharedMinimum) -> usize {
    minimum.of(cpus).max(reserved)
}

/// The CPU of `free` that stays shared because no reserved CPU is, or because the kernel balances load on none of the `reserved` CPUs
/// that are shared.
pub fn last_shared(free: &CpuSet, reserved: &CpuSet, balanced: &CpuSet) -> Option<u32> {
    if !reserved.is_disjoint(balanced) {
        return None;
    }
    let any = || free.first().filter(|_| reserved.is_empty());
    free.intersection(balanced).first().or_else(any)
}

/// The most CPUs that containers can get together out of `free` if `room` CPUs may be taken, idle siblings included.
pub fn most_exclusive(cores: &[CpuSet], free: &CpuSet, room: usize, preference: Cores) -> usize {
    if preference == Cores::Preferred {
        return free.len().min(room);
    }
    let whole = cores.iter().filter(|core| core.is_subset(free));
    let mut sizes: Vec<usize> = whole.map(CpuSet::len).filter(|size| *size > 0).collect();
    sizes.sort_unstable();
    let mut left = room;
    let mut fits = |size: &usize| {
        let rest = left.checked_sub(*size);
        left = rest.unwrap_or(left);
        rest.is_some()
    };
    match preference {
        Cores::Single => sizes.into_iter().filter(fits).count(),
        _ => sizes.into_iter().rev().filter(|size| fits(size)).sum(),
    }
}

/// At least `count` online CPUs for the kubelet to reserve: Pinfold's reserved ones, those that pods can't use anyway, and then the
/// lowest cores.
fn system_cpus(input: &CapacityInput<'_>, count: usize) -> CpuSet {
    let reserved = input.reserved.intersection(input.online);
    let mut cpus = reserved.union(&input.online.difference(&input.available()));
    for core in input.cores {
        if cpus.len() >= count {
            break;
        }
        cpus = cpus.union(core);
    }
    cpus
}

/// `39.98 CPUs` for 39980 thousandths.
fn cpus_in_words(millicores: u64) -> String {
    let (whole, part) = (millicores / 1000, millicores % 1000);
    if part == 0 {
        return cpu_count(usize::try_from(whole).unwrap_or(usize::MAX));
    }
    let part = format!("{part:03}");
    format!("{whole}.{} CPUs", part.trim_end_matches('0'))
}

#[cfg(test)]
mod tests;
