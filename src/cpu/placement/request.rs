//! [`Request`]: the number of CPUs and preferences about them. [`PlacementRefusal`]: why a request
//! can't be met.

use serde::{Deserialize, Serialize};

use crate::cpu::{CpuSet, cpu_count};

/// A request for CPUs. The default requests no CPUs, and has the preferences that
/// [`Placer::place`](super::Placer::place) uses.
///
/// ```
/// use pinfold::cpu::{Cores, Order, Request};
///
/// let request = Request { cpus: 8, order: Order::Spread, cores: Cores::Whole, ..Request::default() };
/// assert!(request.near.is_empty());
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Request {
    pub cpus: usize,
    /// Whether CPUs are packed or spread.
    pub order: Order,
    /// How cores are divided.
    pub cores: Cores,
    /// Ids of preferred NUMA nodes, for example a GPU's; empty for no preference. A NUMA node that
    /// the machine lacks is equally far from all CPUs.
    pub near: CpuSet,
    /// How CPUs isolated at boot are treated.
    pub isolated: Isolated,
    /// Whether a placement on cores of one kind comes first, on hybrid machines.
    pub core_kinds: CoreKinds,
    /// Whether the placement must touch the fewest NUMA nodes. The limit is the number of NUMA
    /// nodes that as many CPUs need, with the same `cores`, if all online CPUs are free. If the
    /// free CPUs don't allow that, the request is refused. A request that fits a single NUMA node
    /// thus gets a single one, as with the kubelet's `single-numa-node`, and a larger request gets
    /// the fewest possible, as with `restricted`.
    pub fewest_numa: bool,
}

/// Whether CPUs are packed or spread.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Order {
    /// Together: as few NUMA nodes, sockets and LLCs as possible.
    #[default]
    Pack,
    /// Apart: evenly over all NUMA nodes, sockets and LLCs, for programs limited by memory
    /// bandwidth.
    Spread,
}

/// How cores are divided.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Cores {
    /// Whole cores as far as the count allows, and parts of cores for the rest.
    #[default]
    Preferred,
    /// Whole cores only; a count that needs a part of a core is refused.
    Whole,
    /// A single CPU of each core, whose other CPUs stay idle.
    Single,
}

/// How many NUMA nodes the CPUs of a container may lie on; [`Request::fewest_numa`] is the stricter
/// choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Numa {
    /// As few NUMA nodes as the free CPUs allow.
    #[default]
    Preferred,
    /// Only as few NUMA nodes as the number of CPUs needs on the empty machine; otherwise the
    /// container stays in the shared pool.
    Fewest,
}

/// The treatment of CPUs isolated at boot. The kernel moves no threads between isolated CPUs. All
/// threads of a program may end up on the same CPU, unless the program sets each thread's affinity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Isolated {
    /// As few isolated CPUs as possible.
    #[default]
    Avoid,
    /// As many isolated CPUs as possible.
    Prefer,
    /// Isolated CPUs count like ordinary CPUs.
    Ignore,
}

/// The treatment of cores of different speed on hybrid machines, such as performance and efficiency cores.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum CoreKinds {
    /// Cores of one kind if enough of them are free, otherwise cores of several kinds.
    #[default]
    Same,
    /// All cores count alike.
    Any,
}

/// A request for more CPUs than are free.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("too few free CPUs: {wanted} wanted, {free} free")]
pub struct TooFewCpus {
    /// CPUs requested.
    pub wanted: usize,
    /// Free online CPUs.
    pub free: usize,
}

/// Why a request can't be served.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlacementRefusal {
    /// More CPUs than are free.
    #[error(transparent)]
    TooFewCpus(#[from] TooFewCpus),
    /// Too few entirely free cores for [`Cores::Whole`].
    #[error("too few CPUs on entirely free cores: {wanted} wanted, {free} free")]
    TooFewOnWholeCores {
        /// CPUs requested.
        wanted: usize,
        /// Online CPUs on entirely free cores.
        free: usize,
    },
    /// For [`Cores::Whole`]: no choice of entirely free cores has exactly `wanted` CPUs.
    #[error(
        "{} no sum of whole free cores: the nearest sums are {less} and {more}",
        with_verb(*.wanted, ["is", "are"])
    )]
    NotWholeCores {
        /// CPUs requested.
        wanted: usize,
        /// The next smaller possible count; may be 0.
        less: usize,
        /// The next larger possible count.
        more: usize,
    },
    /// Too few entirely free cores for [`Cores::Single`].
    #[error("too few entirely free cores: {wanted} wanted, one for each CPU, {free} free")]
    TooFewCores {
        /// Requested cores: a core per CPU.
        wanted: usize,
        /// Entirely free cores.
        free: usize,
    },
    /// For [`Request::fewest_numa`]: the free CPUs are on too many NUMA nodes.
    #[error(
        "{} {}, and {}{}",
        with_verb(*.wanted, ["needs", "need"]),
        nodes(*.needs),
        too_few(*.needs, [*.held, *.held_on, *.most], *.cores),
        by_node(.free)
    )]
    TooFewOnNuma {
        /// Requested CPUs, including the container's present CPUs.
        wanted: usize,
        /// The fewest NUMA nodes for `wanted` CPUs on the empty machine.
        needs: usize,
        /// The number of the container's present CPUs.
        held: usize,
        /// How many NUMA nodes those CPUs touch.
        held_on: usize,
        /// The most CPUs available to the container now. For [`Cores::Single`]: entirely free
        /// cores.
        most: usize,
        /// For each NUMA node with CPUs to give: the kernel's id, and the number of free CPUs. With
        /// [`Cores::Whole`], the number of CPUs on entirely free cores; with [`Cores::Single`],
        /// that of entirely free cores.
        free: Vec<(Option<u32>, usize)>,
        /// How cores are divided.
        cores: Cores,
    },
}

/// A number of CPUs, and the verb in singular or plural.
fn with_verb(count: usize, [one, many]: [&str; 2]) -> String {
    format!(
        "{} {}",
        cpu_count(count),
        if count == 1 { one } else { many }
    )
}

fn nodes(count: usize) -> String {
    format!("{count} NUMA node{}", if count == 1 { "" } else { "s" })
}

/// Why a container can't get CPUs on `needs` NUMA nodes.
fn too_few(needs: usize, [held, held_on, most]: [usize; 3], cores: Cores) -> String {
    let what = match (cores, most) {
        (Cores::Preferred, 1) => "free CPU",
        (Cores::Preferred, _) => "free CPUs",
        (Cores::Whole, 1) => "CPU to give on entirely free cores",
        (Cores::Whole, _) => "CPUs to give on entirely free cores",
        (Cores::Single, 1) => "entirely free core",
        (Cores::Single, _) => "entirely free cores",
    };
    match held {
        0 if needs == 1 => format!("no NUMA node has more than {most} {what}"),
        0 => format!("no {} have more than {most} {what} together", nodes(needs)),
        1 if held_on > needs => format!("the 1 that it has is on {held_on}"),
        _ if held_on > needs => format!("the {held} that it has are on {held_on}"),
        _ => {
            let are = if most == 1 { "is" } else { "are" };
            format!(
                "with the {held} that it has on {held_on}, there {are} no more than {most} {what}"
            )
        }
    }
}

fn by_node(free: &[(Option<u32>, usize)]) -> String {
    let one = |(id, count): &(Option<u32>, usize)| match id {
        Some(id) => format!("{count} on {id}"),
        None => format!("{count} on none"),
    };
    let all: Vec<String> = free.iter().map(one).collect();
    if all.is_empty() {
        String::new()
    } else {
        format!(": {}", all.join(", "))
    }
}

/// A request and a free set, in terms of the plan's CPUs.
#[derive(Debug, Clone, Copy)]
pub(super) struct SearchInput<'a> {
    pub(super) wanted: usize,
    /// Which CPUs are free.
    pub(super) free: &'a [bool],
    /// Which free CPUs the request may get.
    pub(super) open: &'a [bool],
    /// Which CPUs are unwanted; empty if all CPUs are welcome.
    pub(super) unwanted: &'a [bool],
    /// Each CPU's distance to the preferred NUMA nodes, less that of the machine's nearest CPU;
    /// empty if all CPUs are equally far.
    pub(super) distances: &'a [usize],
    pub(super) order: Order,
    pub(super) cores: Cores,
}

// === impl SearchInput ===

impl SearchInput<'_> {
    pub(super) fn is_unwanted(&self, cpu: usize) -> bool {
        self.unwanted.get(cpu).copied().unwrap_or_default()
    }

    pub(super) fn distance(&self, cpu: usize) -> usize {
        self.distances.get(cpu).copied().unwrap_or_default()
    }

    /// The available CPUs of a core, in the order of taking: wanted ones first.
    pub(super) fn in_order<'b>(&'b self, core: &'b [usize]) -> impl Iterator<Item = usize> + 'b {
        let apart = !self.unwanted.is_empty() && self.cores != Cores::Whole;
        let open_cpus = move |unwanted: bool| {
            let open = core.iter().copied().filter(|&cpu| self.open[cpu]);
            open.filter(move |&cpu| (apart && self.is_unwanted(cpu)) == unwanted)
        };
        open_cpus(false).chain(open_cpus(true).take(if apart { usize::MAX } else { 0 }))
    }

    /// The first CPU to take from a core; none if it gives no CPU.
    #[inline]
    pub(super) fn lowest(&self, core: &[usize]) -> Option<usize> {
        if self.is_plain() {
            return core.iter().copied().find(|&cpu| self.open[cpu]);
        }
        self.in_order(core).next()
    }

    /// Whether every core gives all open CPUs in the order of ids.
    #[inline]
    pub(super) fn is_plain(&self) -> bool {
        self.unwanted.is_empty() && self.cores != Cores::Single
    }
}
