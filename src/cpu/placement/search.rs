//! [`Search`]: for one free set and one count, the table of every block, and the price of the best placement.

use std::ops::Range;

use super::limits::{Around, Limits, fewest_strangers};
use super::plan::{Cell, Kind, Plan, Rules, Shape};
use super::price::{
    FREE_CORE, FREE_LLC, FREE_NUMA, LEFT_IN_LLC, LEFT_IN_NUMA, LLC, NEVER, NUMA, Price, SOCKET, STRANGER,
    times,
};
use crate::cpu::CpuSet;

/// One decision under way.
#[derive(Debug)]
pub(super) struct Search<'a> {
    pub(super) plan: &'a Plan,
    pub(super) wanted: usize,
    total_free: usize,
    /// For each group of the plan, what touching it costs, and what it can give.
    prices: Vec<Price>,
    limits: Limits,
    /// No best placement costs more than this.
    bound: Price,
    /// For each block of the plan, its part in the joins above it.
    parts: Vec<Part>,
    pub(super) nodes: Vec<Node>,
    pub(super) lists: Vec<List>,
    /// How the lists of two nodes go together, for every join.
    pub(super) pairs: Vec<Pair>,
    /// Counts of CPUs, ascending within each list, and beside each the least price of taking that many.
    pub(super) counts: Vec<usize>,
    pub(super) costs: Vec<Price>,
    /// The free CPUs of cores, core by core, for classes and pieces.
    pub(super) threads: Vec<usize>,
    /// Where a join adds up, before it is packed into lists.
    rows: Vec<Price>,
}

/// CPUs that have tables together: a class of cores, a piece of a core, or two other nodes.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) shape: NodeShape,
    free: usize,
    pub(super) lists: Range<usize>,
    cheapest: Price,
}

#[derive(Debug, Clone)]
pub(super) enum NodeShape {
    /// Nothing is free here.
    Empty,
    /// Cores with the same number of CPUs and of free CPUs; the cores by their lowest free CPU.
    Class { size: usize, each: usize, threads: Range<usize> },
    /// A piece of a core.
    Piece { threads: Range<usize> },
    /// Two other nodes, and how their lists go together.
    Join { a: usize, b: usize, pairs: Range<usize> },
}

/// A node and the rules of the block that it stands for.
#[derive(Debug, Clone, Copy)]
struct Part {
    node: usize,
    implied: u64,
    untouched: u64,
}

/// What is around a node, in the rest of the machine.
#[derive(Debug, Clone, Copy)]
struct Outer {
    /// The price of the groups that contain the node and more.
    price: Price,
    /// What may come from groups touched already.
    around: Around,
}

/// The table entries with one pattern of crossing groups.
#[derive(Debug, Clone)]
pub(super) struct List {
    pub(super) pattern: u64,
    pub(super) entries: Range<usize>,
}

/// A list of one node, or nothing taken there, with a list of the other: what the join's pattern is, and what it adds.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pair {
    pub(super) a: Option<usize>,
    pub(super) b: Option<usize>,
    pub(super) pattern: u64,
    pub(super) charge: Price,
}

// === impl Search ===

impl<'a> Search<'a> {
    /// `is_free` tells for each CPU of the plan; at least `wanted` must be free.
    pub(super) fn new(plan: &'a Plan, is_free: &[bool], wanted: usize) -> Self {
        let strangers = fewest_strangers(plan, is_free, wanted);
        let limits = Limits::new(plan, is_free, wanted, strangers);
        let mut search = Self {
            plan,
            wanted,
            total_free: is_free.iter().filter(|&&free| free).count(),
            prices: prices(plan, is_free),
            limits,
            bound: NEVER,
            parts: Vec::with_capacity(plan.blocks.len()),
            nodes: Vec::with_capacity(plan.blocks.len() + 1),
            lists: Vec::new(),
            pairs: Vec::new(),
            counts: Vec::new(),
            costs: Vec::new(),
            threads: Vec::with_capacity(plan.ids.len()),
            rows: Vec::new(),
        };
        if wanted > 0 {
            for bound in search.limits.bounds(strangers) {
                search.bound = bound;
                search.fill(is_free);
                if search.root().is_some() {
                    break;
                }
            }
        }
        search
    }

    /// The best placement.
    pub(super) fn run(self) -> CpuSet {
        match self.root() {
            Some((node, entry)) => self.recover(node, entry),
            None => CpuSet::new(),
        }
    }

    /// The node of the whole machine and its table's only entry: nothing is open there, and only `wanted` is of use.
    fn root(&self) -> Option<(usize, usize)> {
        let node = self.parts.last()?.node;
        let list = self.nodes[node].lists.clone().next()?;
        Some((node, self.lists[list].entries.start))
    }

    fn fill(&mut self, is_free: &[bool]) {
        let plan = self.plan;
        self.parts.clear();
        self.nodes.clear();
        self.lists.clear();
        self.pairs.clear();
        self.counts.clear();
        self.costs.clear();
        self.threads.clear();
        self.nodes.push(Node { shape: NodeShape::Empty, free: 0, lists: 0..0, cheapest: NEVER });
        for block in &plan.blocks {
            let own = block.own.iter().map(|&group| self.prices[group]).sum();
            let outer = Outer {
                price: block.rules.outer.iter().map(|&group| self.prices[group]).sum(),
                around: self.limits.around(&block.rules),
            };
            let node = match block.shape {
                Shape::Leaf(cell) => match &plan.cells[cell] {
                    Cell::Cores(cores) => {
                        // Seen from a part of the cell, the rest may come from the cell, too.
                        let around = self.limits.around_part(&block.rules, &block.own);
                        let inner = Outer { price: own + outer.price, around };
                        self.cores(cores, is_free, own, outer, inner)
                    }
                    Cell::Piece { cpus, touched, missing } => {
                        self.piece(cpus, is_free, (*touched, *missing), own, outer)
                    }
                },
                Shape::Join(a, b) => {
                    let (a, b) = (self.parts[a], self.parts[b]);
                    self.join(a, b, &block.rules, own, outer)
                }
            };
            self.parts.push(Part { node, implied: block.rules.implied, untouched: block.rules.untouched });
        }
    }

    /// The node of a cell of whole cores: its classes, joined.
    fn cores(&mut self, cores: &[usize], is_free: &[bool], own: Price, outer: Outer, inner: Outer) -> usize {
        let mut classes: Vec<(usize, usize, usize)> = Vec::with_capacity(cores.len());
        for &core in cores {
            let cpus = &self.plan.cores[core];
            let each = cpus.iter().filter(|&&cpu| is_free[cpu]).count();
            if each > 0 {
                classes.push((cpus.len(), each, core));
            }
        }
        classes.sort_by_key(|&(size, each, core)| {
            (size, each, self.plan.cores[core].iter().find(|&&cpu| is_free[cpu]).copied())
        });
        let mut chunks = classes.chunk_by(|a, b| (a.0, a.1) == (b.0, b.1)).peekable();
        let mut node = 0;
        while let Some(chunk) = chunks.next() {
            let last = chunks.peek().is_none();
            let (own, outer) = if last { (own, outer) } else { (0, inner) };
            let start = self.threads.len();
            for &(_, _, core) in chunk {
                self.threads.extend(self.plan.cores[core].iter().filter(|&&cpu| is_free[cpu]));
            }
            let (size, each, _) = chunk[0];
            let alone = node == 0;
            let (class_own, class_outer) = if alone { (own, outer) } else { (0, inner) };
            let class = self.class(size, each, start..self.threads.len(), class_own, class_outer);
            node = if alone {
                class
            } else {
                let plain = |node| Part { node, implied: 0, untouched: 0 };
                self.join(plain(node), plain(class), &Rules::default(), own, outer)
            };
        }
        node
    }

    /// The node of alike cores. The least price is known without a search: whole cores and at most one part, or as
    /// few of the partly free cores as hold enough.
    fn class(&mut self, size: usize, each: usize, threads: Range<usize>, own: Price, outer: Outer) -> usize {
        let free = threads.len();
        let low = self.least(free);
        let start = self.counts.len();
        for count in low..=free.min(self.wanted) {
            let touched = count.div_ceil(each);
            let price = if each < size {
                times(touched) * STRANGER
            } else {
                times(touched) * FREE_CORE + if count.is_multiple_of(size) { 0 } else { STRANGER }
            };
            self.enter(count, price + own, 0, outer);
        }
        let first = self.lists.len();
        self.close_list(0, start);
        self.node(NodeShape::Class { size, each, threads }, free, first)
    }

    /// The node of a piece of a core, whose pattern says whether some CPU of it is taken, and some not.
    fn piece(
        &mut self,
        cpus: &[usize],
        is_free: &[bool],
        (touched, missing): (u64, u64),
        own: Price,
        outer: Outer,
    ) -> usize {
        let from = self.threads.len();
        self.threads.extend(cpus.iter().filter(|&&cpu| is_free[cpu]));
        let threads = from..self.threads.len();
        let free = threads.len();
        let (low, high) = (self.least(free), free.min(self.wanted));
        let first = self.lists.len();
        for (counts, pattern) in
            [(low..(high + 1).min(cpus.len()), touched | missing), (low.max(cpus.len())..high + 1, touched)]
        {
            let start = self.counts.len();
            for count in counts {
                self.enter(count, own, pattern, outer);
            }
            self.close_list(pattern, start);
        }
        self.node(NodeShape::Piece { threads }, free, first)
    }

    /// The node of two disjoint ones.
    fn join(&mut self, a: Part, b: Part, rules: &Rules, own: Price, outer: Outer) -> usize {
        let (free_a, free_b) = (self.nodes[a.node].free, self.nodes[b.node].free);
        let free = free_a + free_b;
        if free == 0 {
            return 0;
        }
        // With nothing free on one side and nothing to add, the other side's tables will do.
        if self.plan.crossing.is_empty() && own == 0 && (free_a == 0 || free_b == 0) {
            return if free_a == 0 { b.node } else { a.node };
        }
        let pairs = self.pair(a, b, rules, own);
        let mut patterns: Vec<u64> = self.pairs[pairs.clone()].iter().map(|pair| pair.pattern).collect();
        patterns.sort_unstable();
        patterns.dedup();

        let (low, high) = (self.least(free), free.min(self.wanted));
        let width = (high + 1).saturating_sub(low);
        self.rows.clear();
        self.rows.resize(patterns.len() * width, NEVER);
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
                if price != NEVER {
                    self.enter(count, price, pattern, outer);
                }
            }
            self.close_list(pattern, start);
        }
        self.rows = rows;
        self.node(NodeShape::Join { a: a.node, b: b.node, pairs }, free, first)
    }

    /// All ways for lists of two nodes to go together.
    fn pair(&mut self, a: Part, b: Part, rules: &Rules, own: Price) -> Range<usize> {
        let mut pairs = std::mem::take(&mut self.pairs);
        let start = pairs.len();
        let this = &*self;
        let sides = |part: Part| {
            let lists = this.nodes[part.node].lists.clone();
            let taken = lists.map(move |list| (Some(list), this.lists[list].pattern | part.implied));
            std::iter::once((None, part.untouched)).chain(taken)
        };
        for (list_a, pattern_a) in sides(a) {
            for (list_b, pattern_b) in sides(b) {
                if list_a.is_none() && list_b.is_none() {
                    continue;
                }
                let pattern = pattern_a | pattern_b;
                let charge: Price = rules.closing.iter().map(|group| this.charge(*group, pattern)).sum();
                pairs.push(Pair {
                    a: list_a,
                    b: list_b,
                    pattern: pattern & rules.keep,
                    charge: charge + own,
                });
            }
        }
        self.pairs = pairs;
        start..self.pairs.len()
    }

    /// What a crossing group costs under a pattern in which nothing more will be taken.
    fn charge(&self, group: super::plan::Crossing, pattern: u64) -> Price {
        if pattern & group.touched == 0 {
            return 0;
        }
        self.prices[group.group] + if pattern & group.missing != 0 { STRANGER } else { 0 }
    }

    /// Lowers a row, which begins at `low` CPUs, to what a pair of lists can do.
    fn add_up(&self, a: usize, b: usize, pair: Pair, outer: Price, low: usize, row: &mut [Price]) {
        let high = low + row.len();
        let alone = match (pair.a, pair.b) {
            (Some(list_a), Some(list_b)) => {
                if self.nodes[a].cheapest + self.nodes[b].cheapest + pair.charge + outer > self.bound {
                    return;
                }
                let (list_a, list_b) =
                    (self.lists[list_a].entries.clone(), self.lists[list_b].entries.clone());
                // The longer list goes inside: its loop is the tight one.
                let (few, many) =
                    if list_a.len() < list_b.len() { (list_a, list_b) } else { (list_b, list_a) };
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
    fn least(&self, free: usize) -> usize {
        self.wanted.saturating_sub(self.total_free - free).max(1)
    }

    /// Adds a table entry, unless no best placement can contain it. `outer` is what the groups around cost.
    fn enter(&mut self, count: usize, price: Price, pattern: u64, outer: Outer) {
        if price + outer.price + self.limits.rest(count, outer.around) > self.bound {
            return;
        }
        self.counts.push(count);
        self.costs.push(price);
        if count == self.wanted {
            let open: Price = self.plan.crossing.iter().map(|group| self.rest_charge(*group, pattern)).sum();
            self.bound = self.bound.min(price + outer.price + open);
        }
    }

    /// Like [`Self::charge`] where all the rest of the machine stays untouched: then a core in pieces is held in part,
    /// if it is held.
    fn rest_charge(&self, group: super::plan::Crossing, pattern: u64) -> Price {
        self.charge(group, if group.missing == 0 { pattern } else { pattern | group.missing })
    }

    fn close_list(&mut self, pattern: u64, start: usize) {
        if start < self.counts.len() {
            self.lists.push(List { pattern, entries: start..self.counts.len() });
        }
    }

    fn node(&mut self, shape: NodeShape, free: usize, first_list: usize) -> usize {
        let lists = first_list..self.lists.len();
        let entries = self.lists[lists.clone()].iter().flat_map(|list| &self.costs[list.entries.clone()]);
        // Halved, so that two of them can be added.
        let cheapest = entries.min().copied().unwrap_or(NEVER >> 2);
        self.nodes.push(Node { shape, free, lists, cheapest });
        self.nodes.len() - 1
    }
}

/// What touching each group costs.
fn prices(plan: &Plan, is_free: &[bool]) -> Vec<Price> {
    let price = |group: &super::plan::Group| {
        let free = group.cpus.iter().filter(|&&cpu| is_free[cpu]).count();
        let if_entirely_free = |price| if free == group.cpus.len() { price } else { 0 };
        match group.kind {
            Kind::Numa => NUMA + if_entirely_free(FREE_NUMA) + times(free) * LEFT_IN_NUMA,
            Kind::Socket => SOCKET,
            Kind::Llc => LLC + if_entirely_free(FREE_LLC) + times(free) * LEFT_IN_LLC,
            Kind::Core => if_entirely_free(FREE_CORE),
        }
    };
    plan.groups.iter().map(price).collect()
}
