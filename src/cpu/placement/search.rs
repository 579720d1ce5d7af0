//! [`Search`]: the tables of all blocks for a free set and a request, and the best placement's price.

use std::ops::Range;

use super::class::Class;
use super::fewest::Minimum;
use super::limits::{Limits, Surroundings};
use super::plan::{Block, BlockShape, Cell, Crossing, GroupKind, PlacementPlan, PriceGroup, Rules};
use super::price::Price;
use super::request::{Cores, Order, SearchInput};
use super::weights::{behind, given, prices};
use crate::cpu::CpuSet;

/// The state of a placement decision.
#[derive(Debug)]
pub(super) struct Search<'a, P> {
    pub(super) plan: &'a PlacementPlan,
    pub(super) terms: SearchInput<'a>,
    pub(super) wanted: usize,
    total_free: usize,
    /// For each group of the plan, the price of touching it.
    prices: Vec<P>,
    /// For [`Order::Spread`]: for each group, how many fewer free CPUs it has than the freest group
    /// of the same kind.
    behind: Vec<usize>,
    limits: Limits,
    /// An upper bound on the best placement's price.
    bound: P,
    /// For each block of the plan, its node with the pattern bits for joins.
    parts: Vec<NodePart>,
    pub(super) nodes: Vec<SearchNode<'a, P>>,
    pub(super) lists: Vec<EntryList>,
    /// For every join, the combinable pairs of lists.
    pub(super) pairs: Vec<ListPair<P>>,
    /// Counts of CPUs, ascending within each list. `costs` holds the least price of each count.
    pub(super) counts: Vec<usize>,
    pub(super) costs: Vec<P>,
    /// The CPUs (hardware threads) of classes and pieces, core by core.
    pub(super) threads: Vec<usize>,
    /// A buffer for a join's prices, before they become lists.
    rows: Vec<P>,
}

/// A set of CPUs with one table: a class of cores, a piece of a core, or the join of two nodes.
#[derive(Debug)]
pub(super) struct SearchNode<'a, P> {
    pub(super) shape: NodeShape,
    /// Groups equal to the node, with a price that depends on the number of CPUs taken.
    pub(super) shared: &'a [usize],
    free: usize,
    pub(super) lists: Range<usize>,
    /// Whether the lists' patterns were set after the node was made.
    pub(super) is_split: bool,
    cheapest: P,
}

#[derive(Debug, Clone)]
pub(super) enum NodeShape {
    /// No CPU is free.
    Empty,
    /// Cores of the same class, ordered by the first available CPU of each.
    Class { class: Class, threads: Range<usize> },
    /// A piece of a core.
    Piece { threads: Range<usize> },
    /// The join of two nodes, with the combinable pairs of lists.
    Join {
        a: usize,
        b: usize,
        pairs: Range<usize>,
    },
}

/// A node and two rules of its block.
#[derive(Debug, Clone, Copy)]
pub(super) struct NodePart {
    pub(super) node: usize,
    pub(super) implied: u64,
    pub(super) untouched: u64,
}

/// The price of the groups equal to a node.
#[derive(Debug, Clone, Copy)]
pub(super) struct OwnPrice<'a, P> {
    /// Price independent of the number of CPUs taken.
    fixed: P,
    /// Groups with a price that depends on the number of CPUs taken.
    pub(super) shared: &'a [usize],
}

/// The part of the price that comes from outside a node, as its table needs it.
#[derive(Debug, Clone, Copy)]
pub(super) struct OuterPrice<'a, P> {
    /// The price of the groups around the node, which have all its CPUs and others.
    price: P,
    /// Groups around the node with a price that depends on the number of CPUs taken.
    shared: [&'a [usize]; 2],
    /// In a leaf: what each taken CPU adds to the pattern.
    unit: u64,
    /// The CPUs available in groups across the node's border.
    around: Surroundings,
}

/// The prices that a node's table needs.
#[derive(Debug, Clone, Copy)]
pub(super) struct NodePrice<'a, P> {
    pub(super) own: OwnPrice<'a, P>,
    pub(super) outer: OuterPrice<'a, P>,
}

/// The table entries with the same pattern of crossing groups.
#[derive(Debug, Clone)]
pub(super) struct EntryList {
    pub(super) pattern: u64,
    pub(super) entries: Range<usize>,
}

/// A combination of two lists from different nodes, where none stands for a node that gives no
/// CPUs. `pattern` is the join's pattern, `charge` the additional price of the combination.
#[derive(Debug, Clone, Copy)]
pub(super) struct ListPair<P> {
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
    /// `least` is the minimum over all placements within the terms.
    pub(super) fn new(plan: &'a PlacementPlan, terms: SearchInput<'a>, least: Minimum) -> Self {
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

    /// The best placement and its price; if there is none, no CPUs, and a price above all
    /// placements.
    pub(super) fn run(self) -> (P, CpuSet) {
        match self.root() {
            Some((node, entry)) => (self.costs[entry], self.recover(node, entry)),
            None => (P::NEVER, CpuSet::new()),
        }
    }

    /// The node of the whole machine, and the only entry of its table. The machine contains every
    /// crossing group, and only the count `wanted` is needed.
    fn root(&self) -> Option<(usize, usize)> {
        let node = self.parts.last()?.node;
        let list = self.nodes[node].lists.clone().next()?;
        Some((node, self.lists[list].entries.start))
    }

    /// Computes the tables of all blocks.
    fn fill(&mut self) {
        let plan = self.plan;
        self.clear();
        for block in &plan.blocks {
            let price = self.block_price(block);
            let node = match block.shape {
                BlockShape::Leaf(cell) => self.leaf(block, &plan.cells[cell], price),
                BlockShape::Join(a, b) => {
                    let (a, b) = (self.parts[a], self.parts[b]);
                    let outer = OuterPrice {
                        unit: 0,
                        ..price.outer
                    };
                    self.join(a, b, &block.rules, NodePrice { outer, ..price })
                }
            };
            self.parts.push(NodePart {
                node,
                implied: block.rules.implied,
                untouched: block.rules.untouched,
            });
        }
    }

    /// Removes all tables, and leaves only a node without free CPUs, with the number 0.
    fn clear(&mut self) {
        self.parts.clear();
        self.nodes.clear();
        self.lists.clear();
        self.pairs.clear();
        self.counts.clear();
        self.costs.clear();
        self.threads.clear();
        self.nodes.push(SearchNode {
            shape: NodeShape::Empty,
            shared: &[],
            free: 0,
            lists: 0..0,
            is_split: false,
            cheapest: P::TOO_MUCH,
        });
    }

    /// The prices that a block's table needs. For [`Order::Spread`], every group's price depends on
    /// the number of CPUs taken.
    fn block_price(&self, block: &'a Block) -> NodePrice<'a, P> {
        let (own, outer) = (&block.own[..], &block.rules.outer[..]);
        let sum = |groups: &[usize]| groups.iter().map(|&group| self.prices[group]).sum();
        let (fixed, shared, price, shared_outer) = if self.terms.order == Order::Spread {
            (P::NOTHING, own, P::NOTHING, outer)
        } else {
            (sum(own), &[][..], sum(outer), &[][..])
        };
        NodePrice {
            own: OwnPrice { fixed, shared },
            outer: OuterPrice {
                price,
                shared: [shared_outer, &[]],
                unit: block.rules.unit,
                around: self.limits.around(&block.rules),
            },
        }
    }

    fn leaf(&mut self, block: &'a Block, cell: &Cell, price: NodePrice<'a, P>) -> usize {
        let NodePrice { own, outer } = price;
        let node = match cell {
            Cell::Cores(cores) => {
                // For a part of the cell, more CPUs may also come from the rest of the cell.
                let inner = OuterPrice {
                    price: own.fixed + outer.price,
                    shared: [outer.shared[0], own.shared],
                    unit: outer.unit,
                    around: self.limits.around_part(&block.rules, &block.own),
                };
                self.cores(cores, price, inner)
            }
            piece @ Cell::Piece { .. } => self.piece(piece, price),
        };
        if outer.unit != 0 {
            self.split(node, outer.unit);
        }
        node
    }

    /// The join of two disjoint nodes.
    pub(super) fn join(
        &mut self,
        a: NodePart,
        b: NodePart,
        rules: &Rules,
        price: NodePrice<'a, P>,
    ) -> usize {
        let NodePrice { own, outer } = price;
        let (free_a, free_b) = (self.nodes[a.node].free, self.nodes[b.node].free);
        let free = free_a + free_b;
        if free == 0 {
            return 0;
        }
        // If one side has no free CPU and the join adds no price, the table of the other side
        // serves as the join's table.
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
                if self.exceeds_bound(a.node, b.node, pair, outer.price) {
                    continue;
                }
                let slot = patterns.binary_search(&pair.pattern).unwrap_or_default();
                let row = &mut rows[slot * width..(slot + 1) * width];
                self.add_up(*pair, low, row);
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

    /// All pairs of lists of two nodes allowed by the terms.
    fn pair(&mut self, a: NodePart, b: NodePart, rules: &Rules, own: P) -> Range<usize> {
        let mut pairs = std::mem::take(&mut self.pairs);
        let start = pairs.len();
        let this = &*self;
        let sides = |part: NodePart| {
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
                    pairs.push(ListPair {
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

    /// The common pattern of two disjoint nodes; none if the terms forbid the combination.
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

    /// The price of a crossing group under a final pattern; none if the terms forbid the pattern.
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
        let PriceGroup { kind, cpus } = &self.plan.groups[group];
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

    /// The price of the groups whose price depends on the number of CPUs taken.
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

    /// The price of the groups equal to a node when `count` CPUs are taken.
    #[inline]
    pub(super) fn whole(&self, own: OwnPrice<'_, P>, count: usize) -> P {
        own.fixed + self.shared(own.shared, count)
    }

    /// Whether even the cheapest entries of both nodes cost more than the bound together, so that
    /// the pair's lists need no combination.
    fn exceeds_bound(&self, a: usize, b: usize, pair: &ListPair<P>, outer: P) -> bool {
        let (a, b) = (&self.nodes[a], &self.nodes[b]);
        pair.a.is_some()
            && pair.b.is_some()
            && a.cheapest + b.cheapest + pair.charge + outer > self.bound
    }

    /// Lowers each price of a row to the best that a pair of lists reaches. The first price of the
    /// row is for `low` CPUs.
    fn add_up(&self, pair: ListPair<P>, low: usize, row: &mut [P]) {
        let high = low + row.len();
        let alone = match (pair.a, pair.b) {
            (Some(list_a), Some(list_b)) => {
                let (list_a, list_b) = (
                    self.lists[list_a].entries.clone(),
                    self.lists[list_b].entries.clone(),
                );
                // The longer list is in the inner loop, which is the faster one.
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

    /// The fewest CPUs that a node must give, at least 1, since the rest of the machine has too few.
    pub(super) fn least(&self, free: usize) -> usize {
        self.wanted.saturating_sub(self.total_free - free).max(1)
    }

    /// Adds a table entry, unless no best placement can contain it. `outer` holds the price of the
    /// groups around the node.
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

    /// As [`Self::charge`], if no CPU outside the node is taken. A touched core in pieces is then
    /// always split.
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

    /// Gives each entry of a leaf a separate list, with the pattern that counts its CPUs.
    fn split(&mut self, node: usize, unit: u64) {
        let first = self.lists.len();
        for list in self.nodes[node].lists.clone() {
            for entry in self.lists[list].entries.clone() {
                let pattern = unit * self.counts[entry] as u64;
                self.lists.push(EntryList {
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
            self.lists.push(EntryList {
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
