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
    /// The online CPUs that the pods' cgroups offer, of which a share must stay.
    pub offered: &'a CpuSet,
    /// Those of them that pods can use: not the lost ones, and not those of owners that nobody knows.
    pub available: &'a CpuSet,
    /// CPUs that are never exclusive. Some of them may be offline.
    pub reserved: &'a CpuSet,
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
    /// The most CPUs that containers can own together: those that have some now, and further ones without a preference.
    pub assignable: usize,
    /// The most CPUs that containers with `pinfold.io/cores: single` can own together; `None` if the node's cores have one CPU
    /// each, or if pods may not ask for that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub single: Option<usize>,
    /// The online CPUs, which the kubelet counts.
    #[serde(skip)]
    online: usize,
    /// The CPUs to name in the kubelet's `reservedSystemCPUs`.
    #[serde(skip)]
    system_cpus: CpuSet,
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
    /// How many CPUs the kubelet must reserve; `None` where nothing needs to change, or where that would not help.
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
        let reserved = input.reserved.intersection(input.available);
        let free = input.available.difference(&reserved);
        let (cpus, shared_minimum) = (
            input.available.len(),
            input.shared_minimum.of(input.offered.len()),
        );
        // One CPU stays shared where no reserved CPU is.
        let shared = shared_minimum.max(usize::from(reserved.is_empty()));
        let none = CpuSet::new();
        let single = further(input, &free, shared, Cores::Single, &none).cpus;
        let taken = input.owned.union(input.idle);
        let more = further(input, &free, shared, input.preference, &taken);
        let has_siblings = input.cores.iter().any(|core| core.len() > 1);
        let asked = input.single_cores && has_siblings && input.preference != Cores::Single;
        let mut capacity = Self {
            cpus,
            reserved: reserved.len(),
            shared_minimum,
            idle: input.idle.len(),
            fragments: more.fragments,
            assignable: input.owned.len() + more.cpus,
            single: asked.then_some(single),
            online: input.online.len(),
            system_cpus: CpuSet::new(),
        };
        capacity.system_cpus = system_cpus(input, capacity.kubelet_reserve());
        capacity
    }

    /// How many CPUs the kubelet must reserve. When it starts, it counts the CPUs that are online.
    fn kubelet_reserve(&self) -> usize {
        self.online.saturating_sub(self.assignable)
    }

    /// Compares what can be given with what the scheduler counts.
    pub fn compare(&self, allocatable: Option<&Allocatable>) -> CapacityFinding {
        let given = self.in_words();
        let Some(allocatable) = allocatable else {
            return CapacityFinding {
                promises_too_much: None,
                sentence: format!(
                    "{given}; the Node's allocatable CPUs, which the scheduler counts, are unknown here and should be no more than {}",
                    self.assignable
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
        let too_much = promised > self.assignable;
        let sentence = if too_much {
            format!(
                "{counts}, but {given}: pods that are sent here for the others run on shared ones"
            )
        } else if promised == 0 {
            format!("{counts}, so it sends no pod that requests a whole CPU; {given}")
        } else {
            format!("{counts}, and {given}")
        };
        CapacityFinding {
            promises_too_much: Some(too_much),
            sentence,
            kubelet_reserve: (too_much && self.assignable > 0).then(|| self.kubelet_reserve()),
            remedy: too_much.then(|| self.remedy(allocatable)),
        }
    }

    fn remedy(&self, allocatable: &Allocatable) -> String {
        if self.assignable == 0 {
            return "reserve fewer CPUs for Pinfold (reserved, sharedMinimum), or keep training pods off this node".to_owned();
        }
        let reserve = self.kubelet_reserve();
        let online = u64::try_from(self.online)
            .unwrap_or(u64::MAX)
            .saturating_mul(1000);
        let counted = allocatable.capacity.unwrap_or(online);
        // Whole cores may be more than is needed.
        let count = self.system_cpus.len();
        let more = match count > reserve {
            true => format!(" ({})", cpu_count(count)),
            false => String::new(),
        };
        let list = format!("reservedSystemCPUs: \"{}\"{more}", self.system_cpus);
        let how = match allocatable.source {
            AllocatableSource::ReservedSystemCpus => list,
            _ => format!(
                "kubeReserved and systemReserved together, for example systemReserved: {{cpu: \"{reserve}\"}} without a cpu in \
                 kubeReserved, or {list}, which replaces both"
            ),
        };
        format!(
            "let the kubelet reserve {} in place of {}: {how}; then restart it on the drained node",
            cpu_count(reserve),
            format_cpu(counted.saturating_sub(allocatable.millicores))
        )
    }

    /// How many CPUs can be given, and why not the others.
    pub fn in_words(&self) -> String {
        let mut parts = Vec::new();
        if self.reserved > 0 {
            parts.push(format!("{} reserved", self.reserved));
        }
        if self.shared_minimum > self.reserved {
            parts.push(format!("at least {} shared", self.shared_minimum));
        }
        if self.idle > 0 {
            let plural = if self.idle == 1 { "" } else { "s" };
            parts.push(format!("{} idle sibling{plural}", self.idle));
        }
        if self.fragments > 0 {
            parts.push(format!("{} on partly owned cores", self.fragments));
        }
        let parts = match parts.is_empty() {
            true => String::new(),
            false => format!(" ({})", parts.join(", ")),
        };
        let single = self.single.map_or_else(String::new, |single| {
            format!(", or {single} with pinfold.io/cores: single")
        });
        format!(
            "{} of {} can be exclusive{parts}{single}",
            self.assignable,
            cpu_count(self.cpus)
        )
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

/// CPUs for further containers.
struct Further {
    /// How many can be given.
    cpus: usize,
    /// How many are free, but on cores of which others own a part.
    fragments: usize,
}

/// How many CPUs further containers can get, where `shared` CPUs must stay and those in `taken` are owned or idle.
fn further(
    input: &CapacityInput<'_>,
    free: &CpuSet,
    shared: usize,
    preference: Cores,
    taken: &CpuSet,
) -> Further {
    let free = free.difference(taken);
    let room = input
        .available
        .difference(taken)
        .len()
        .saturating_sub(shared);
    if preference == Cores::Preferred {
        return Further {
            cpus: free.len().min(room),
            fragments: 0,
        };
    }
    let whole = input.cores.iter().filter(|core| core.is_subset(&free));
    let mut sizes: Vec<usize> = whole.map(CpuSet::len).filter(|size| *size > 0).collect();
    sizes.sort_unstable();
    let cpus = match preference {
        Cores::Single => most(sizes.iter(), room).0,
        _ => most(sizes.iter().rev(), room).1,
    };
    let broken = |core: &&CpuSet| !core.is_disjoint(taken);
    let fragments = input.cores.iter().filter(broken);
    let fragments = fragments.map(|core| core.intersection(&free).len()).sum();
    Further { cpus, fragments }
}

/// How many of the cores fit, in this order, and how many CPUs they have.
fn most<'a>(sizes: impl Iterator<Item = &'a usize>, room: usize) -> (usize, usize) {
    sizes.fold((0, 0), |(cores, cpus), size| {
        if cpus + size <= room {
            (cores + 1, cpus + size)
        } else {
            (cores, cpus)
        }
    })
}

/// At least `count` online CPUs for the kubelet to reserve: Pinfold's reserved ones, those that pods can't use anyway, and then the
/// lowest cores.
fn system_cpus(input: &CapacityInput<'_>, count: usize) -> CpuSet {
    let reserved = input.reserved.intersection(input.online);
    let mut cpus = reserved.union(&input.online.difference(input.available));
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
