//! [`Placer::repack`]: which running containers to move in order to place a new container without a
//! split.
//!
//! A request is *split* if its best placement now touches more groups of a kind than it would
//! without any owner. Of NUMA nodes, sockets and LLCs, the first kind with more groups is the kind
//! to mend. A repacking is a list of moves, carried out in sequence. After the moves, the best
//! placement touches as few groups of the kind to mend as without any owner, no more groups of
//! earlier kinds than now, and has no more split cores than now.
//!
//! A request for the [fewest NUMA nodes](Request::fewest_numa) may be refused now. The placement
//! without the rule then counts as its best placement now, and after the moves it may have the
//! split cores that the rule needs.
//!
//! A move takes all CPUs of an owner to the best free CPUs for its request within a single group.
//! CPUs freed by earlier moves are free. Of the kinds of which the owner touches a single group
//! now, the finest is the kind of the new group. An owner with CPUs in several groups of each kind,
//! or with [`Order::Spread`], may move within the whole machine. No move makes an owner's unwanted
//! CPUs, kinds of cores, split cores, distance, NUMA nodes, sockets or LLCs worse, so no move
//! splits an owner.
//!
//! The best repacking has the fewest moves; then the fewest CPUs moved; then the placement of least
//! [`Cost`]; then the first owners in the list, and the lowest groups.
//!
//! # Why the search is fast
//!
//! A sum gives the number of free CPUs in each group after some moves, so counting rejects nearly
//! all choices. Only the others are placed, with at most [`MOST_DECISIONS`] placements. When the
//! limit is reached, the best repacking found so far is the result.

use super::{
    CoreKinds, Cost, CpuSet, Isolated, Order, Placement, PlacementRefusal, Placer, Request,
};

/// The most placements tried per repacking. A placement takes some ten microseconds.
const MOST_DECISIONS: usize = 2_000;

/// A container with exclusive CPUs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Owner {
    pub cpus: CpuSet,
    /// Siblings of the owner's CPUs, kept idle.
    pub idle: CpuSet,
    /// The owner's preferences, if it may move. The request's number of CPUs is ignored, because an
    /// owner keeps the number it has.
    pub movable: Option<Request>,
}

/// The move of an owner to different CPUs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Move {
    /// The owner's index in the list of owners.
    pub owner: usize,
    pub to: Placement,
}

/// Moves of owners, and the resulting placement of the new container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Repacking {
    /// The moves, in the order to carry out.
    pub moves: Vec<Move>,
    /// The new container's placement after the moves.
    pub placement: Placement,
}

/// The costs to reach through the moves.
#[derive(Debug, Clone, Copy)]
struct RepackGoal {
    now: Cost,
    need: Cost,
    /// The kind to mend: 0 for NUMA nodes, 1 for sockets, 2 for LLCs.
    kind: usize,
    /// Whether the request gets cores of several kinds now, although it wants one kind.
    mixes: bool,
}

/// The state of a search for a repacking.
#[derive(Debug)]
struct Repacker<'a> {
    placer: &'a Placer,
    request: &'a Request,
    free: &'a CpuSet,
    owners: Vec<Mover<'a>>,
    goal: RepackGoal,
    /// The groups of each kind.
    kinds: &'a [Vec<CpuSet>; 3],
    /// The groups of the kind to mend. `free_in` is the number of free CPUs in each group.
    groups: &'a [CpuSet],
    free_in: Vec<usize>,
    decisions: usize,
    best: Option<Repacking>,
}

/// A movable owner.
#[derive(Debug)]
struct Mover<'a> {
    owner: usize,
    held: CpuSet,
    request: Request,
    /// The owner's numbers before a move, none of which may get worse.
    score: OwnerScore,
    regions: Vec<Region<'a>>,
    /// How many of the owner's CPUs are in each group.
    held_in: Vec<usize>,
}

#[derive(Debug)]
struct Region<'a> {
    cpus: &'a CpuSet,
    /// The group of the kind to mend that contains the region, if any.
    group: Option<usize>,
    /// The best placement in the region before any move, once computed. The inner option is none if
    /// no placement fits.
    place: Option<Option<Placement>>,
}

/// The numbers of an owner's request, none of which may grow in a move.
type OwnerScore = [usize; 7];

// === impl RepackGoal ===

impl RepackGoal {
    fn new(now: Cost, need: Cost, mixes: bool) -> Option<Self> {
        let kind = spans(now)
            .iter()
            .zip(spans(need))
            .position(|(&now, need)| now > need)?;
        Some(Self {
            now,
            need,
            kind,
            mixes,
        })
    }

    fn is_met(&self, cost: Cost) -> bool {
        let (now, need) = (spans(self.now), spans(self.need));
        let before = spans(cost)
            .into_iter()
            .zip(now)
            .take(self.kind)
            .all(|(cost, now)| cost <= now);
        cost.split_cores <= self.now.split_cores
            && before
            && spans(cost)[self.kind] <= need[self.kind]
    }
}

// === impl Placer ===

impl Placer {
    /// Finds one or two moves after which a split request is no longer split.
    ///
    /// None if the request is not split now, can't be placed at all, wants to be spread, or if no
    /// moves help. `owners` are all owners of CPUs, `free` the CPUs without an owner.
    pub fn repack(
        &self,
        free: &CpuSet,
        owners: &[Owner],
        request: &Request,
        max_moves: usize,
    ) -> Option<Repacking> {
        if request.order == Order::Spread {
            return None;
        }
        let all = owners.iter().fold(free.clone(), |all, owner| {
            all.union(&owner.cpus).union(&owner.idle)
        });
        let goal = self.goal(free, &all, request)?;
        let kinds = [0, 1, 2].map(|kind| self.groups(kind));
        let groups = &kinds[goal.kind][..];
        let mut repacker = Repacker {
            placer: self,
            request,
            free,
            owners: Vec::new(),
            goal,
            kinds: &kinds,
            groups,
            free_in: counts_in(groups, free),
            decisions: 0,
            best: None,
        };
        let numbered = owners.iter().enumerate();
        repacker.owners = numbered
            .filter_map(|(index, owner)| repacker.mover(index, owner))
            .collect();
        for moves in 1..=max_moves.min(2) {
            repacker.search(moves);
            if repacker.best.is_some() {
                break;
            }
        }
        repacker.best
    }

    /// The goal of moves for a request: its cost with the CPUs `free` and with the CPUs `all`. None
    /// if the request is not split, or can't be placed at all.
    fn goal(&self, free: &CpuSet, all: &CpuSet, request: &Request) -> Option<RepackGoal> {
        let need = || Some(self.place_as(all, request).ok()?.cost);
        match self.place_as(free, request) {
            Ok(now) => RepackGoal::new(now.cost, need()?, self.mixes(&now.cpus, request)),
            Err(PlacementRefusal::TooFewOnNuma { .. }) => {
                let split = Request {
                    fewest_numa: false,
                    ..request.clone()
                };
                let (now, need) = (self.place_as(free, &split).ok()?, need()?);
                let split_cores = now.cost.split_cores.max(need.split_cores);
                let cost = Cost {
                    split_cores,
                    ..now.cost
                };
                RepackGoal::new(cost, need, self.mixes(&now.cpus, request))
            }
            Err(_) => None,
        }
    }

    /// Whether the CPUs are on cores of several kinds, and the request wants one kind.
    fn mixes(&self, cpus: &CpuSet, request: &Request) -> bool {
        request.core_kinds == CoreKinds::Same && self.is_mixed(cpus)
    }

    /// The groups of a kind: 0 for NUMA nodes, 1 for sockets, 2 for LLCs.
    fn groups(&self, kind: usize) -> Vec<CpuSet> {
        let mut groups: Vec<CpuSet> = Vec::new();
        for (member, &id) in self.membership.iter().zip(&self.plan.ids) {
            let group = [member.numa, member.socket, member.llc][kind];
            if groups.len() <= group {
                groups.resize(group + 1, CpuSet::new());
            }
            groups[group].insert(id);
        }
        groups
    }

    /// The numbers of a request for an owner of the given CPUs.
    fn score(
        &self,
        cpus: &CpuSet,
        idle: &CpuSet,
        request: &Request,
        kinds: &[Vec<CpuSet>; 3],
    ) -> OwnerScore {
        let isolated = cpus.intersection(&self.isolated).len();
        let unwanted = match request.isolated {
            Isolated::Avoid => isolated,
            Isolated::Prefer => cpus.len() - isolated,
            Isolated::Ignore => 0,
        };
        let distances = self.distances(&request.near);
        let far = distances
            .iter()
            .zip(&self.plan.ids)
            .filter(|(_, id)| cpus.contains(**id));
        let distance = far.map(|(distance, _)| distance).sum();
        let split_cores = self.cost(&cpus.union(idle)).split_cores;
        let [numa, sockets, llcs] = match request.order {
            Order::Pack => spans(self.cost(cpus)),
            Order::Spread => kinds.each_ref().map(|groups| {
                let square = |group: &CpuSet| cpus.intersection(group).len().pow(2);
                groups.iter().map(square).sum()
            }),
        };
        let mixed = usize::from(self.mixes(cpus, request));
        [unwanted, mixed, split_cores, distance, numa, sockets, llcs]
    }
}

// === impl Repacker ===

impl<'a> Repacker<'a> {
    /// The owner with the given index as a mover; none if it has no CPUs or may not move.
    fn mover(&self, index: usize, owner: &Owner) -> Option<Mover<'a>> {
        let Owner {
            cpus,
            idle,
            movable,
        } = owner;
        let request = Request {
            cpus: cpus.len(),
            ..movable.clone()?
        };
        if cpus.is_empty() {
            return None;
        }
        let (groups, kinds) = (self.groups, self.kinds);
        let region = |cpus: &'a CpuSet| Region {
            cpus,
            group: groups.iter().position(|group| cpus.is_subset(group)),
            place: None,
        };
        let spans = spans(self.placer.cost(cpus));
        let of_one = (0..3).filter(|&kind| spans[kind] == 1 && request.order == Order::Pack);
        let regions = match of_one.max_by_key(|&kind| (kinds[kind].len(), kind)) {
            Some(kind) => kinds[kind].iter().map(region).collect(),
            None => vec![Region {
                cpus: self.free,
                group: None,
                place: None,
            }],
        };
        let held = cpus.union(idle);
        Some(Mover {
            owner: index,
            score: self.placer.score(cpus, idle, &request, kinds),
            held_in: counts_in(groups, &held),
            held,
            request,
            regions,
        })
    }

    /// Tries all choices of `moves` moves, from the fewest CPUs moved to the most.
    fn search(&mut self, moves: usize) {
        let movers = 0..self.owners.len();
        let mut orders: Vec<Vec<usize>> = match moves {
            1 => movers.map(|mover| vec![mover]).collect(),
            _ => movers
                .clone()
                .flat_map(|first| movers.clone().map(move |second| vec![first, second]))
                .filter(|order| order[0] != order[1])
                .collect(),
        };
        let moved = |this: &Self, order: &[usize]| -> usize {
            order
                .iter()
                .map(|&mover| this.owners[mover].request.cpus)
                .sum()
        };
        orders.sort_by_key(|order| moved(self, order));
        let mut least = None;
        for order in orders {
            let cpus = moved(self, &order);
            if least.is_some_and(|least| least < cpus) || self.is_over() {
                return;
            }
            let mut counts = self.free_in.clone();
            for &mover in &order {
                add(&mut counts, &self.owners[mover].held_in);
            }
            if self.can_hold(&counts) {
                self.try_moves(&order, self.free, &counts, Vec::new());
            }
            if self.best.is_some() {
                least = Some(cpus);
            }
        }
    }

    /// Whether further tries can't improve the result.
    fn is_over(&self) -> bool {
        self.decisions >= MOST_DECISIONS
            || self
                .best
                .as_ref()
                .is_some_and(|best| best.placement.cost == self.goal.need)
    }

    /// Tries every target for the next owner of an order. `counts` are the free CPUs in each group
    /// after all owners of the order have left and the earlier ones have arrived.
    fn try_moves(&mut self, order: &[usize], free: &CpuSet, counts: &[usize], moves: Vec<Move>) {
        let Some((&mover, rest)) = order.split_first() else {
            return self.finish(free, moves);
        };
        for region in 0..self.owners[mover].regions.len() {
            if self.is_over() {
                return;
            }
            let Mover {
                request, regions, ..
            } = &self.owners[mover];
            if let Some(group) = regions[region].group {
                let mut counts = counts.to_vec();
                counts[group] = counts[group].saturating_sub(request.cpus);
                if !self.can_hold(&counts) {
                    continue;
                }
            }
            let Some(to) = self.place(mover, region, free, moves.last()) else {
                continue;
            };
            let target = to.cpus.union(&to.idle);
            let Mover { owner, held, .. } = &self.owners[mover];
            // Both moves in the reverse order were tried before, unless the second one needs CPUs
            // freed by the first.
            if let Some(before) = moves.last()
                && before.owner > *owner
                && target.is_disjoint(&self.held_by(before.owner))
            {
                continue;
            }
            let mut counts = counts.to_vec();
            for (count, group) in counts.iter_mut().zip(self.groups) {
                *count = count.saturating_sub(target.intersection(group).len());
            }
            if self.can_hold(&counts) {
                let free = free.difference(&target).union(held);
                let mut moves = moves.clone();
                moves.push(Move { owner: *owner, to });
                self.try_moves(rest, &free, &counts, moves);
            }
        }
    }

    /// The best placement for an owner in a region; none if no placement fits or a number would be
    /// worse.
    fn place(
        &mut self,
        mover: usize,
        region: usize,
        free: &CpuSet,
        before: Option<&Move>,
    ) -> Option<Placement> {
        let held = before.map(|before| self.held_by(before.owner));
        let Mover {
            request,
            score,
            regions,
            ..
        } = &self.owners[mover];
        let Region { cpus, place, .. } = &regions[region];
        // A region with the machine's free CPUs stands for the whole machine. What counts is the
        // CPUs that are free after the earlier moves.
        let is_machine = std::ptr::eq(*cpus, self.free);
        let untouched = !is_machine
            && before.zip(held).is_none_or(|(before, held)| {
                let touched = before.to.cpus.union(&before.to.idle).union(&held);
                touched.is_disjoint(cpus)
            });
        if let (Some(place), true) = (place, untouched) {
            return place.clone();
        }
        let free = if is_machine {
            free.clone()
        } else {
            free.intersection(cpus)
        };
        let place = if free.len() < request.cpus {
            None
        } else {
            self.decisions += 1;
            self.placer.place_as(&free, request).ok().filter(|to| {
                let new = self.placer.score(&to.cpus, &to.idle, request, self.kinds);
                new.iter().zip(score).all(|(new, old)| new <= old)
            })
        };
        if untouched {
            self.owners[mover].regions[region].place = Some(place.clone());
        }
        place
    }

    /// The CPUs of an owner before the move.
    fn held_by(&self, owner: usize) -> CpuSet {
        let mover = self.owners.iter().find(|mover| mover.owner == owner);
        mover.map(|mover| mover.held.clone()).unwrap_or_default()
    }

    /// Places the new container after all moves.
    fn finish(&mut self, free: &CpuSet, moves: Vec<Move>) {
        self.decisions += 1;
        let Ok(placement) = self.placer.place_as(free, self.request) else {
            return;
        };
        let is_better = self
            .best
            .as_ref()
            .is_none_or(|best| placement.cost < best.placement.cost);
        let worse_kinds = self.placer.mixes(&placement.cpus, self.request) && !self.goal.mixes;
        if self.goal.is_met(placement.cost) && is_better && !worse_kinds {
            self.best = Some(Repacking { moves, placement });
        }
    }

    /// Whether the request fits into the groups with the most free CPUs, as many of them as the
    /// goal allows.
    fn can_hold(&self, counts: &[usize]) -> bool {
        let most = spans(self.goal.need)[self.goal.kind];
        let wanted = self.request.cpus;
        if most == 1 {
            return counts.iter().any(|&count| count >= wanted);
        }
        let mut counts = counts.to_vec();
        counts.sort_unstable_by(|a, b| b.cmp(a));
        counts.iter().take(most).sum::<usize>() >= wanted
    }
}

/// The number of groups touched by a placement, by kind.
fn spans(cost: Cost) -> [usize; 3] {
    [cost.numa, cost.sockets, cost.llcs]
}

/// How many CPUs of a set are in each group.
fn counts_in(groups: &[CpuSet], cpus: &CpuSet) -> Vec<usize> {
    let count = |group: &CpuSet| group.intersection(cpus).len();
    groups.iter().map(count).collect()
}

fn add(counts: &mut [usize], more: &[usize]) {
    for (count, more) in counts.iter_mut().zip(more) {
        *count += more;
    }
}
