//! [`Request`]: what a container wants of its CPUs beside their number, and [`Refusal`]: why it can't have it.

use serde::{Deserialize, Serialize};

use crate::cpu::{CpuSet, cpu_count};

/// A request for CPUs; by default none, and placed as [`Placer::place`](super::Placer::place) does.
///
/// ```
/// use pinfold::cpu::{Cores, Order, Request};
///
/// let request = Request { cpus: 8, order: Order::Spread, cores: Cores::Whole, ..Request::default() };
/// assert!(request.near.is_empty());
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Request {
    /// How many CPUs.
    pub cpus: usize,
    /// How they should lie.
    pub order: Order,
    /// What may happen to cores.
    pub cores: Cores,
    /// The ids of the NUMA nodes that the CPUs should be near to, as those of a GPU; none for no wish. A NUMA node
    /// that the machine does not have is as far from one CPU as from the other.
    pub near: CpuSet,
    /// What to do about CPUs that were isolated at boot.
    pub isolated: Isolated,
    /// Whether only placements count that touch no more NUMA nodes than so many CPUs need on this machine when all its
    /// online CPUs are free, for the same `cores`. What can't be had so is refused. So a request that fits one NUMA node gets
    /// one, as with the kubelet's `single-numa-node`, and a larger one as few as it can, as with `restricted`.
    pub fewest_numa: bool,
}

/// How CPUs should lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Order {
    /// Together: as few NUMA nodes, sockets and LLCs as possible.
    #[default]
    Pack,
    /// Apart: evenly over all NUMA nodes, sockets and LLCs, for what waits for memory rather than for its other threads.
    Spread,
}

/// What may happen to cores.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Cores {
    /// Whole ones as far as the count allows, and parts for the rest.
    #[default]
    Preferred,
    /// Whole ones only, or a [`Refusal`].
    Whole,
    /// One CPU of each, and the others of it are kept idle: [`Placement::idle`](super::Placement::idle).
    Single,
}

/// How many NUMA nodes the CPUs of a container may lie on; [`Request::fewest_numa`] is the stricter choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Numa {
    /// As few as what is free allows.
    #[default]
    Preferred,
    /// As few as so many CPUs need on the empty machine, or it stays in the shared pool.
    Fewest,
}

/// What to do about CPUs that were isolated at boot: the kernel does not move threads between them, so all threads of a
/// program may end on one of them, unless it gives each its CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Isolated {
    /// As few of them as possible.
    #[default]
    Avoid,
    /// As many of them as possible.
    Prefer,
    /// They are CPUs like others.
    Ignore,
}

/// A request for more CPUs than are free.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("too few free CPUs: {wanted} wanted, {free} free")]
pub struct TooFewCpus {
    /// CPUs asked for.
    pub wanted: usize,
    /// Online CPUs that are free.
    pub free: usize,
}

/// Why a request can't be served.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// More CPUs than are free.
    #[error(transparent)]
    TooFewCpus(#[from] TooFewCpus),
    /// [`Cores::Whole`], and there are not enough entirely free cores.
    #[error("too few CPUs on entirely free cores: {wanted} wanted, {free} free")]
    TooFewOnWholeCores {
        /// CPUs asked for.
        wanted: usize,
        /// Online CPUs on entirely free cores.
        free: usize,
    },
    /// [`Cores::Whole`], and no choice of the entirely free cores has so many CPUs.
    #[error(
        "{} no sum of whole free cores: the nearest counts that are one are {less} and {more}",
        with_verb(*.wanted, ["is", "are"])
    )]
    NotWholeCores {
        /// CPUs asked for.
        wanted: usize,
        /// The next smaller count that can be had now; it may be 0.
        less: usize,
        /// The next larger one.
        more: usize,
    },
    /// [`Cores::Single`], and there are not enough entirely free cores.
    #[error("too few entirely free cores: {wanted} wanted, one for each CPU, {free} free")]
    TooFewCores {
        /// Cores asked for: one for each CPU.
        wanted: usize,
        /// Entirely free cores.
        free: usize,
    },
    /// [`Request::fewest_numa`], and what is free lies on too many NUMA nodes.
    #[error(
        "{} {}, and {}{}",
        with_verb(*.wanted, ["needs", "need"]),
        nodes(*.needs),
        too_few(*.needs, [*.held, *.held_on, *.most], *.cores),
        by_node(.free)
    )]
    TooFewOnNuma {
        /// CPUs asked for, with those that the container has.
        wanted: usize,
        /// The NUMA nodes that so many CPUs touch at least on the empty machine.
        needs: usize,
        /// CPUs that the container has.
        held: usize,
        /// The NUMA nodes that these touch.
        held_on: usize,
        /// The most CPUs that it could be given now, or one for each entirely free core for [`Cores::Single`].
        most: usize,
        /// What each NUMA node could give, by the kernel's id of it: free CPUs, those on entirely free cores for
        /// [`Cores::Whole`], entirely free cores for [`Cores::Single`]. Those that have nothing to give are left out.
        free: Vec<(Option<u32>, usize)>,
        /// What may happen to cores.
        cores: Cores,
    },
}

/// A number of CPUs, and the verb that agrees with the number.
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

/// Why a container can't have its CPUs on so many NUMA nodes.
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

/// What a request and a free set come to, for each CPU of the plan.
#[derive(Debug, Clone, Copy)]
pub(super) struct Terms<'a> {
    pub(super) wanted: usize,
    /// Which CPUs are free.
    pub(super) free: &'a [bool],
    /// Which of these the request may have.
    pub(super) open: &'a [bool],
    /// Which it would rather not have; empty for none.
    pub(super) unwanted: &'a [bool],
    /// How far each is from the devices, counted from the nearest on the machine; empty where all are as far.
    pub(super) distances: &'a [usize],
    pub(super) order: Order,
    pub(super) cores: Cores,
}

// === impl Terms ===

impl Terms<'_> {
    pub(super) fn is_unwanted(&self, cpu: usize) -> bool {
        self.unwanted.get(cpu).copied().unwrap_or_default()
    }

    pub(super) fn distance(&self, cpu: usize) -> usize {
        self.distances.get(cpu).copied().unwrap_or_default()
    }

    /// The CPUs that a core gives, in the order in which they are taken from it.
    pub(super) fn in_order<'b>(&'b self, core: &'b [usize]) -> impl Iterator<Item = usize> + 'b {
        let apart = !self.unwanted.is_empty() && self.cores != Cores::Whole;
        let open_cpus = move |unwanted: bool| {
            let open = core.iter().copied().filter(|&cpu| self.open[cpu]);
            open.filter(move |&cpu| (apart && self.is_unwanted(cpu)) == unwanted)
        };
        open_cpus(false).chain(open_cpus(true).take(if apart { usize::MAX } else { 0 }))
    }

    /// The first of these.
    #[inline]
    pub(super) fn lowest(&self, core: &[usize]) -> Option<usize> {
        if self.is_plain() {
            return core.iter().copied().find(|&cpu| self.open[cpu]);
        }
        self.in_order(core).next()
    }

    /// Whether a core gives all its open CPUs in the order of their ids.
    #[inline]
    pub(super) fn is_plain(&self) -> bool {
        self.unwanted.is_empty() && self.cores != Cores::Single
    }
}
