//! Tables of the smallest blocks: the price of taking each number of CPUs from cores of the same
//! class.

use std::ops::Range;

use super::class::Class;
use super::plan::{Cell, Rules};
use super::price::Price;
use super::request::Cores;
use super::search::{NodePart, NodePrice, NodeShape, OuterPrice, OwnPrice, Search};

/// The free cores of a class in a cell.
#[derive(Debug)]
struct ClassCores<P> {
    class: Class,
    cores: usize,
    /// The cores' available CPUs, by index into the search's threads.
    threads: Range<usize>,
    /// The price of each CPU's distance.
    step: P,
}

// === impl Search ===

impl<'a, P: Price> Search<'a, P> {
    /// The node of a cell of whole cores: the join of the cell's classes.
    pub(super) fn cores(
        &mut self,
        cores: &[usize],
        price: NodePrice<'a, P>,
        inner: OuterPrice<'a, P>,
    ) -> usize {
        // The prices for a node that has only some of the cell's classes.
        let partial = NodePrice {
            own: OwnPrice::NOTHING,
            outer: inner,
        };
        let plan = self.plan;
        let mut classes: Vec<(Class, usize, usize)> = Vec::with_capacity(cores.len());
        for &core in cores {
            if let Some(class) = Class::of(&plan.cores[core], &self.terms) {
                let lowest = self.terms.lowest(&plan.cores[core]).unwrap_or_default();
                classes.push((class, lowest, core));
            }
        }
        classes.sort_unstable();
        let mut chunks = classes.chunk_by(|a, b| a.0 == b.0).peekable();
        let mut node = 0;
        while let Some(chunk) = chunks.next() {
            let last = chunks.peek().is_none();
            let joined_price = if last { price } else { partial };
            let (class, lowest, _) = chunk[0];
            let start = self.threads.len();
            for &(_, _, core) in chunk {
                let open = self.terms.open;
                if self.terms.is_plain() {
                    self.threads
                        .extend(plan.cores[core].iter().filter(|&&cpu| open[cpu]));
                } else {
                    self.threads
                        .extend(self.terms.in_order(&plan.cores[core]).take(class.each));
                }
            }
            let alone = node == 0;
            let class_price = if alone { joined_price } else { partial };
            let class_cores = ClassCores {
                class,
                cores: chunk.len(),
                threads: start..self.threads.len(),
                step: P::DISTANCE.times(self.terms.distance(lowest)),
            };
            let class = self.class(class_cores, class_price);
            node = if alone {
                class
            } else {
                let plain = |node| NodePart {
                    node,
                    implied: 0,
                    untouched: 0,
                };
                self.join(plain(node), plain(class), &Rules::default(), joined_price)
            };
        }
        node
    }

    fn class(&mut self, class_cores: ClassCores<P>, price: NodePrice<'a, P>) -> usize {
        let ClassCores {
            class,
            cores,
            threads,
            step,
        } = class_cores;
        let NodePrice { own, outer } = price;
        let free = threads.len();
        let low = self.least(free);
        let start = self.counts.len();
        for count in low..=free.min(self.wanted) {
            if let Some(taken) = class.taken(cores, self.terms.cores, count) {
                let steps = if P::HAS_PREFERENCES {
                    step.times(count)
                } else {
                    P::NOTHING
                };
                let price = taken.price::<P>() + steps + self.whole(own, count);
                self.enter(count, price, 0, outer);
            }
        }
        let first = self.lists.len();
        self.close_list(0, start);
        self.node(NodeShape::Class { class, threads }, own.shared, free, first)
    }

    /// The node of a piece of a core. The pattern says whether any CPU of the core is taken, and
    /// whether any is left.
    pub(super) fn piece(&mut self, cell: &Cell, price: NodePrice<'a, P>) -> usize {
        let NodePrice { own, outer } = price;
        let Cell::Piece {
            cpus,
            touched,
            missing,
        } = cell
        else {
            return 0;
        };
        let Some(class) = Class::of(cpus, &self.terms) else {
            return 0;
        };
        let from = self.threads.len();
        self.threads
            .extend(self.terms.in_order(cpus).take(class.each));
        let threads = from..self.threads.len();
        let free = threads.len();
        let (low, high) = (self.least(free), free.min(self.wanted));
        let step = P::DISTANCE.times(self.terms.distance(self.threads[from]));
        let all = cpus.len();
        let mut ways = [
            (low..(high + 1).min(all), touched | missing),
            (low.max(all)..high + 1, *touched),
        ];
        if self.terms.cores == Cores::Whole {
            ways[0].0 = 0..0;
        }
        let first = self.lists.len();
        for (counts, pattern) in ways {
            let start = self.counts.len();
            for count in counts {
                let unwanted = count.saturating_sub(class.each - class.unwanted);
                let price =
                    P::UNWANTED.times(unwanted) + step.times(count) + self.whole(own, count);
                self.enter(count, price, pattern, outer);
            }
            self.close_list(pattern, start);
        }
        self.node(NodeShape::Piece { threads }, own.shared, free, first)
    }
}
