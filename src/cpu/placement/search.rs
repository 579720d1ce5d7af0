//! [`Search`]: for one free set and one count, the table of every block, and the price of the best placement.

use std::ops::Range;

use super::fewest::Minimum;
use super::leaves::Class;
use super::limits::{Limits, Surroundings};
use super::plan::{BlockShape, Cell, Crossing, Group, GroupKind, Plan, Rules};
use super::price::Price;
use super::request::{Cores, Order, Terms};
use super::weights::{behind, given, prices};
use crate::cpu::CpuSet;

/// One decision under way.
#[derive(Debug)]
pub(super) struct Search<'a, P> {
    pub(super) plan: &'a Plan,
    pub(super) terms: Terms<'a>,
    pub(super) wanted: usize,
    total_free: usize,
    /// For each group of the plan, what touching it costs.
    prices: Vec<P>,
    /// Where a request is spread: for each group of the plan, how many free CPUs it has less than the one of its kind that
    /// has the most.
    behind: Vec<usize>,
    limits: Limits,
    /// No best placement costs more than this.
    bound: P,
    /// For each block of the plan, its part in the joins above it.
    parts: Vec<Part>,
    pub(super) nodes: Vec<SearchNode<'a, P>>,
    pub(super) lists: Vec<List>,
    /// How the lists of two nodes go together, for every join.
    pub(super) pairs: Vec<Pair<P>>,
    /// Counts of CPUs, ascending within each list, and beside each the least price of taking that many.
    pub(super) counts: Vec<usize>,
    pub(super) costs: Vec<P>,
    /// The CPUs that cores give, core by core, for classes and pieces.
    pub(super) threads: Vec<usize>,
    /// Where a join adds up, before it is packed into lists.
    rows: Vec<P>,
}

/// CPUs that have tables together: a class of cores, a piece of a core, or two other nodes.
#[derive(Debug)]
pub(super) struct SearchNode<'a, P> {
    pub(super) shape: NodeShape,
    /// The groups that are exactly this node and whose price depends on how many CPUs are taken.
    pub(super) shared: &'a [usize],
    free: usize,
    pub(super) lists: Range<usize>,
    /// Whether the patterns of these were put in after the node was made.
    pub(super) is_split: bool,
    cheapest: P,
}

#[derive(Debug, Clone)]
pub(super) enum NodeShape {
    /// Nothing is free here.
    Empty,
    /// Alike cores, by the first CPU that each gives.
    Class { class: Class, threads: Range<usize> },
    /// A piece of a core.
    Piece { threads: Range<usize> },
    /// Two other nodes, and how their lists go together.
    Join {
        a: usize,
        b: usize,
        pairs: Range<usize>,
    },
}

/// A node and the rules of the block that it stands for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Part {
    pub(super) node: usize,
    pub(super) implied: u64,
    pub(super) untouched: u64,
}

/// The price of the groups that are exactly a node.
#[derive(Debug, Clone, Copy)]
pub(super) struct OwnPrice<'a, P> {
    /// Whatever is taken.
    fixed: P,
    /// The groups whose price depends on how many CPUs are taken.
    pub(super) shared: &'a [usize],
}

/// What is around a node, in the rest of the machine.
#[derive(Debug, Clone, Copy)]
pub(super) struct OuterPrice<'a, P> {
    /// The price of the groups that contain the node and more.
    price: P,
    /// The same for groups whose price depends on how many CPUs are taken.
    shared: [&'a [usize]; 2],
    /// In a leaf: what will be its pattern for each CPU taken.
    unit: u64,
    /// What may come from groups touched already.
    around: Surroundings,
}

/// The table entries with one pattern of crossing groups.
#[derive(Debug, Clone)]
pub(super) struct List {
    pub(super) pattern: u64,
    pub(super) entries: Range<usize>,
}

/// A list of one node, or nothing taken there, with a list of the other: what the join's pattern is, and what it adds.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pair<P> {
    pub(super) a: Option<usize>,
    pub(super) b: Option<usize>,
    pub(super) pattern: u64,
    pub(super) charge: P,
}

// === impl OwnPrice ===

impl<P: Price> OwnPrice<'_, P> {
    pub(super) const NOTHING: Self = Self {
        fixed: P::NOTHING,
        shared: &[],
    };
}

// === impl Search ===

impl<'a, P: Price> Search<'a, P> {
    /// `least` is what every placement that meets the terms has at least, and some has.
    pub(super) fn new(plan: &'a Plan, terms: Terms<'a>, least: Minimum) -> Self {
        let mut search = Self {
            plan,
            terms,
            wanted: terms.wanted,
            total_free: given(plan, &terms),
            prices: prices(plan, &terms),
            behind: if terms.order == Order::Spread {
                behind(plan, terms.free)
            } else {
                Vec::new()
            },
            limits: Limits::new(plan, &terms, least),
            bound: P::NEVER,
            parts: Vec::with_capacity(plan.blocks.len()),
            nodes: Vec::with_capacity(plan.blocks.len() + 1),
            lists: Vec::new(),
            pairs: Vec::new(),
            counts: Vec::new(),
            costs: Vec::new(),
            threads: Vec::with_capacity(plan.ids.len()),
            rows: Vec::new(),
        };
        if terms.wanted > 0 {
            for bound in search.limits.bounds(least) {
                search.bound = bound;
                search.fill();
                if search.root().is_some() {
                    break;
                }
            }
        }
        search
    }

    /// The best placement and its price; no CPUs and more than any price if there is none.
    pub(super) fn run(self) -> (P, CpuSet) {
        match self.root() {
            Some((node, entry)) => (self.costs[entry], self.recover(node, entry)),
            None => (P::NEVER, CpuSet::new()),
        }
    }

    /// The node of the whole machine and its table's only entry: nothing is open there, and only `wanted` is of use.
    fn root(&self) -> Option<(usize, usize)> {
        let node = self.parts.last()?.node;
        let list = self.nodes[node].lists.clone().next()?;
        Some((node, self.lists[list].entries.start))
    }

    fn fill(&mut self) {
        let plan = self.plan;
        self.parts.clear();
        self.nodes.clear();
        self.lists.clear();
        self.pairs.clear();
        self.counts.clear();
        self.costs.clear();
        self.threads.clear();
        let shape = NodeShape::Empty;
        let is_split = false;
        self.nodes.push(SearchNode {
            shape,
            shared: &[],
            free: 0,
            lists: 0..0,
            is_split,
            cheapest: P::TOO_MUCH,
        });
        let spread = self.terms.order == Order::Spread;
        for block in &plan.blocks {
            let sum = |groups: &[usize]| groups.iter().map(|&group| self.prices[group]).sum();
            let around = self.limits.around(&block.rules);
            let unit = block.rules.unit;
            let (own, outer) = if spread {
                let own = OwnPrice {
                    fixed: P::NOTHING,
                    shared: &block.own[..],
                };
                (
                    own,
                    OuterPrice {
                        price: P::NOTHING,
                        shared: [&block.rules.outer, &[]],
                        unit,
                        around,
                    },
                )
            } else {
                let own = OwnPrice {
                    fixed: sum(&block.own),
                    shared: &[][..],
                };
                (
                    own,
                    OuterPrice {
                        price: sum(&block.rules.outer),
                        shared: [&[], &[]],
                        unit,
                        around,
                    },
                )
            };
            let node = match block.shape {
                BlockShape::Leaf(cell) => match &plan.cells[cell] {
                    Cell::Cores(cores) => {
                        // Seen from a part of the cell, the rest may come from the cell, too.
                        let around = self.limits.around_part(&block.rules, &block.own);
                        let shared = [outer.shared[0], own.shared];
                        let inner = OuterPrice {
                            price: own.fixed + outer.price,
                            shared,
                            unit,
                            around,
                        };
                        self.cores(cores, own, outer, inner)
                    }
                    piece @ Cell::Piece { .. } => self.piece(piece, own, outer),
                },
                BlockShape::Join(a, b) => {
                    let (a, b) = (self.parts[a], self.parts[b]);
                    self.join(a, b, &block.rules, own, OuterPrice { unit: 0, ..outer })
                }
            };
            if unit != 0 && matches!(block.shape, BlockShape::Leaf(_)) {
                self.split(node, unit);
            }
            self.parts.push(Part {
                node,
                implied: block.rules.implied,
                untouched: block.rules.untouched,
            });
        }
    }

    /// The node of two disjoint ones.
    pub(super) fn join(
        &mut self,
        a: Part,
        b: Part,
        rules: &Rules,
        own: OwnPrice<'a, P>,
        outer: OuterPrice<'a, P>,
    ) -> usize {
        let (free_a, free_b) = (self.nodes[a.node].free, self.nodes[b.node].free);
        let free = free_a + free_b;
        if free == 0 {
            return 0;
        }
        // With nothing free on one side and nothing to add, the other side's tables will do.
        let adds = own.fixed != P::NOTHING || !own.shared.is_empty();
        if self.plan.crossing.is_empty() && !adds && (free_a == 0 || free_b == 0) {
            return if free_a == 0 { b.node } else { a.node };
        }
        let pairs = self.pair(a, b, rules, own.fixed);
        let mut patterns: Vec<u64> = self.pairs[pairs.clone()]
            .iter()
            .map(|pair| pair.pattern)
            .collect();
        patterns.sort_unstable();
        patterns.dedup();

        let (low, high) = (self.least(free), free.min(self.wanted));
        let width = (high + 1).saturating_sub(low);
        self.rows.clear();
        self.rows.resize(patterns.len() * width, P::NEVER);
        let mut rows = std::mem::take(&mut self.rows);
        if width > 0 {
            for pair in &self.pairs[pairs.clone()] {
                let slot = patterns.binary_search(&pair.pattern).unwrap_or_default();
                let row = &mut rows[slot * width..(slot + 1) * width];
                self.add_up(a.node, b.node, *pair, outer.price, low, row);
            }
        }
        let first = self.lists.len();
        for (slot, &pattern) in patterns.iter().enumerate() {
            let start = self.counts.len();
            for (count, &price) in (low..).zip(&rows[slot * width..(slot + 1) * width]) {
                if price != P::NEVER {
                    self.enter(
                        count,
                        price + self.shared(own.shared, count),
                        pattern,
                        outer,
                    );
                }
            }
            self.close_list(pattern, start);
        }
        self.rows = rows;
        self.node(
            NodeShape::Join {
                a: a.node,
                b: b.node,
                pairs,
            },
            own.shared,
            free,
            first,
        )
    }

    /// All ways for lists of two nodes to go together.
    fn pair(&mut self, a: Part, b: Part, rules: &Rules, own: P) -> Range<usize> {
        let mut pairs = std::mem::take(&mut self.pairs);
        let start = pairs.len();
        let this = &*self;
        let sides = |part: Part| {
            let lists = this.nodes[part.node].lists.clone();
            let taken =
                lists.map(move |list| (Some(list), this.lists[list].pattern | part.implied));
            std::iter::once((None, part.untouched)).chain(taken)
        };
        for (list_a, pattern_a) in sides(a) {
            for (list_b, pattern_b) in sides(b) {
                if list_a.is_none() && list_b.is_none() {
                    continue;
                }
                let Some(pattern) = this.both(pattern_a, pattern_b) else {
                    continue;
                };
                let charge: Option<P> = rules
                    .closing
                    .iter()
                    .map(|group| this.charge(*group, pattern))
                    .sum();
                if let Some(charge) = charge {
                    let pattern = pattern & rules.keep;
                    pairs.push(Pair {
                        a: list_a,
                        b: list_b,
                        pattern,
                        charge: charge + own,
                    });
                }
            }
        }
        self.pairs = pairs;
        start..self.pairs.len()
    }

    /// The pattern of two disjoint nodes together; none if the terms forbid it.
    fn both(&self, a: u64, b: u64) -> Option<u64> {
        if self.plan.counting {
            return Some(a + b);
        }
        let twice = |group: &Crossing| group.missing != 0 && a & b & group.touched != 0;
        if self.terms.cores == Cores::Single && self.plan.crossing.iter().any(twice) {
            return None;
        }
        Some(a | b)
    }

    /// What a crossing group costs under a pattern in which nothing more will be taken; none if the terms forbid it.
    fn charge(&self, crossing: Crossing, pattern: u64) -> Option<P> {
        let Crossing {
            group,
            touched,
            missing,
            field,
        } = crossing;
        if pattern & field == 0 {
            return Some(P::NOTHING);
        }
        let Group { kind, cpus } = &self.plan.groups[group];
        let count =
            usize::try_from((pattern & field) >> touched.trailing_zeros()).unwrap_or(usize::MAX);
        if self.plan.counting && *kind != GroupKind::Core {
            return Some(self.shared(&[group], count));
        }
        let in_part = if self.plan.counting {
            count < cpus.len()
        } else {
            pattern & missing != 0
        };
        match self.terms.cores {
            Cores::Preferred if in_part => Some(self.prices[group] + P::SPLIT_CORE),
            Cores::Whole if in_part && *kind == GroupKind::Core => None,
            Cores::Single if self.plan.counting && count > 1 => None,
            _ => Some(self.prices[group]),
        }
    }

    /// What groups cost whose price depends on how many CPUs are taken.
    #[inline]
    pub(super) fn shared(&self, groups: &[usize], count: usize) -> P {
        if !P::HAS_PREFERENCES {
            return P::NOTHING;
        }
        let price = |&group: &usize| {
            let (square, behind) = (count * count, count * self.behind[group]);
            match self.plan.groups[group].kind {
                GroupKind::Numa => P::NUMA.times(square) + P::LEFT_IN_NUMA.times(behind),
                GroupKind::Socket => P::SOCKET.times(square),
                GroupKind::Llc => P::LLC.times(square) + P::LEFT_IN_LLC.times(behind),
                GroupKind::Core => P::NOTHING,
            }
        };
        groups.iter().map(price).sum()
    }

    /// What the groups that are exactly a node cost when so many CPUs are taken.
    #[inline]
    pub(super) fn whole(&self, own: OwnPrice<'_, P>, count: usize) -> P {
        own.fixed + self.shared(own.shared, count)
    }

    /// Lowers a row, which begins at `low` CPUs, to what a pair of lists can do.
    fn add_up(&self, a: usize, b: usize, pair: Pair<P>, outer: P, low: usize, row: &mut [P]) {
        let high = low + row.len();
        let alone = match (pair.a, pair.b) {
            (Some(list_a), Some(list_b)) => {
                if self.nodes[a].cheapest + self.nodes[b].cheapest + pair.charge + outer
                    > self.bound
                {
                    return;
                }
                let (list_a, list_b) = (
                    self.lists[list_a].entries.clone(),
                    self.lists[list_b].entries.clone(),
                );
                // The longer list goes inside: its loop is the tight one.
                let (few, many) = if list_a.len() < list_b.len() {
                    (list_a, list_b)
                } else {
                    (list_b, list_a)
                };
                let (counts, costs) = (&self.counts[many.clone()], &self.costs[many]);
                for entry in few {
                    let (count, cost) = (self.counts[entry], self.costs[entry] + pair.charge);
                    let from = counts.partition_point(|&more| count + more < low);
                    let to = counts.partition_point(|&more| count + more < high);
                    for (&more, &extra) in counts[from..to].iter().zip(&costs[from..to]) {
                        let slot = &mut row[count + more - low];
                        *slot = (*slot).min(cost + extra);
                    }
                }
                return;
            }
            (Some(list), None) | (None, Some(list)) => self.lists[list].entries.clone(),
            (None, None) => return,
        };
        for (&count, &cost) in self.counts[alone.clone()].iter().zip(&self.costs[alone]) {
            if (low..high).contains(&count) {
                let slot = &mut row[count - low];
                *slot = (*slot).min(cost + pair.charge);
            }
        }
    }

    /// The fewest CPUs that a node must give, at least one: the rest must come from elsewhere.
    pub(super) fn least(&self, free: usize) -> usize {
        self.wanted.saturating_sub(self.total_free - free).max(1)
    }

    /// Adds a table entry, unless no best placement can contain it. `outer` is what the groups around cost.
    pub(super) fn enter(&mut self, count: usize, price: P, pattern: u64, outer: OuterPrice<'_, P>) {
        let [groups, more] = outer.shared;
        let with_outer =
            price + outer.price + self.shared(groups, count) + self.shared(more, count);
        if with_outer + self.limits.rest(count, outer.around) > self.bound {
            return;
        }
        self.counts.push(count);
        self.costs.push(price);
        if count == self.wanted {
            let leaf = P::HAS_PREFERENCES && outer.unit != 0;
            let pattern = if leaf {
                outer.unit * count as u64
            } else {
                pattern
            };
            let open: Option<P> = self
                .plan
                .crossing
                .iter()
                .map(|group| self.rest_charge(*group, pattern))
                .sum();
            if let Some(open) = open {
                self.bound = self.bound.min(with_outer + open);
            }
        }
    }

    /// Like [`Self::charge`] where all the rest of the machine stays untouched: then a core in pieces is held in part,
    /// if it is held.
    fn rest_charge(&self, group: Crossing, pattern: u64) -> Option<P> {
        self.charge(
            group,
            if group.missing == 0 {
                pattern
            } else {
                pattern | group.missing
            },
        )
    }

    /// Gives each entry of a leaf the pattern that counts it.
    fn split(&mut self, node: usize, unit: u64) {
        let first = self.lists.len();
        for list in self.nodes[node].lists.clone() {
            for entry in self.lists[list].entries.clone() {
                let pattern = unit * self.counts[entry] as u64;
                self.lists.push(List {
                    pattern,
                    entries: entry..entry + 1,
                });
            }
        }
        self.nodes[node].lists = first..self.lists.len();
        self.nodes[node].is_split = true;
    }

    pub(super) fn close_list(&mut self, pattern: u64, start: usize) {
        if start < self.counts.len() {
            self.lists.push(List {
                pattern,
                entries: start..self.counts.len(),
            });
        }
    }

    pub(super) fn node(
        &mut self,
        shape: NodeShape,
        shared: &'a [usize],
        free: usize,
        first_list: usize,
    ) -> usize {
        let lists = first_list..self.lists.len();
        let entries = self.lists[lists.clone()]
            .iter()
            .flat_map(|list| &self.costs[list.entries.clone()]);
        let cheapest = entries.min().copied().unwrap_or(P::TOO_MUCH);
        self.nodes.push(SearchNode {
            shape,
            shared,
            free,
            lists,
            is_split: false,
            cheapest,
        });
        self.nodes.len() - 1
    }
}
