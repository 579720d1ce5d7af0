//! [`PlacementPlan`]: a tree of blocks for the search of a machine, built once per machine.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use crate::cpu::{CpuSet, Topology};

/// The most table steps of a search. If a plan needs more, the next plan ignores one more kind of
/// groups. A step takes about a nanosecond.
const MOST_WORK: f64 = 6.0e7;

/// The most bits of a pattern of crossing groups.
const MOST_BITS: u32 = 64;

/// A machine, divided into cells and joined into a tree of blocks.
#[derive(Debug, Clone)]
pub(super) struct PlacementPlan {
    /// The ids of the online CPUs, ascending. The search names a CPU by its index here.
    pub(super) ids: Vec<u32>,
    /// The CPUs of each core, ascending.
    pub(super) cores: Vec<Vec<usize>>,
    pub(super) cells: Vec<Cell>,
    pub(super) groups: Vec<PriceGroup>,
    /// Children come before parents, and the last block is the whole machine. Empty only for a
    /// machine without CPUs.
    pub(super) blocks: Vec<Block>,
    /// Groups that equal no block, and all cores in pieces. The patterns of tables tell which
    /// crossing groups are touched.
    pub(super) crossing: Vec<Crossing>,
    /// Whether patterns count the CPUs taken of each crossing group, or only tell taken from
    /// untouched.
    pub(super) counting: bool,
}

/// CPUs with the same groups.
#[derive(Debug, Clone)]
pub(super) enum Cell {
    /// Whole cores, by index into [`PlacementPlan::cores`].
    Cores(Vec<usize>),
    /// A part of a core whose CPUs are in different groups, as virtual machines can report.
    Piece {
        cpus: Vec<usize>,
        touched: u64,
        missing: u64,
    },
}

/// CPUs with a common price.
#[derive(Debug, Clone)]
pub(super) struct PriceGroup {
    pub(super) kind: GroupKind,
    pub(super) cpus: Vec<usize>,
}

/// The kind of a group. A core is a group only if it is in pieces.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum GroupKind {
    Core,
    Llc,
    Numa,
    Socket,
}

/// The kinds of groups of which a placement should touch few.
pub(super) const SPANNED: [GroupKind; 3] = [GroupKind::Numa, GroupKind::Socket, GroupKind::Llc];

/// A group that equals no block, or a core in pieces, with its bits in patterns.
#[derive(Debug, Clone, Copy)]
pub(super) struct Crossing {
    pub(super) group: usize,
    /// The pattern bit for a taken CPU of the group. Where patterns count, it is the lowest bit of
    /// `field`.
    pub(super) touched: u64,
    /// For a core in pieces, the bit for a CPU that is not taken. 0 for every other kind of group,
    /// and where patterns count.
    pub(super) missing: u64,
    /// All bits of the group, without `missing`.
    pub(super) field: u64,
}

/// A part of the machine.
#[derive(Debug, Clone)]
pub(super) struct Block {
    pub(super) shape: BlockShape,
    /// The groups with exactly the CPUs of the block.
    pub(super) own: Vec<usize>,
    pub(super) rules: Rules,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum BlockShape {
    Leaf(usize),
    Join(usize, usize),
}

/// The groups around a block, and its part in patterns of crossing groups.
#[derive(Debug, Clone, Default)]
pub(super) struct Rules {
    /// Groups with all CPUs of the block and others. Groups that patterns count are left out.
    pub(super) outer: Vec<usize>,
    /// Bits set by every taken CPU of the block, which its patterns therefore leave out.
    pub(super) implied: u64,
    /// The bits of the block's patterns.
    pub(super) keep: u64,
    /// Bits set if no CPU of the block is taken.
    pub(super) untouched: u64,
    /// Where patterns count: the number that each taken CPU adds to a leaf's pattern.
    pub(super) unit: u64,
    /// Crossing groups with all CPUs in the block, but in neither of its two parts alone.
    pub(super) closing: Vec<Crossing>,
    /// For each of [`SPANNED`], the groups with CPUs inside and outside of the block.
    pub(super) astride: [Vec<usize>; 3],
}

/// The NUMA node, socket and LLC of a CPU. CPUs with equal keys form cells.
type CellKey = (Option<u32>, Option<u32>, Option<u32>);

/// The CPUs of a machine, by core and by group.
#[derive(Debug)]
struct GroupedCpus {
    ids: Vec<u32>,
    keys: Vec<CellKey>,
    cores: Vec<Vec<usize>>,
    /// All groups but cores.
    groups: Vec<PriceGroup>,
}

// === impl GroupedCpus ===

impl GroupedCpus {
    /// Groups the CPUs, without some kinds of groups.
    fn new(topology: &Topology, forgotten: &[GroupKind]) -> Self {
        let mut cpus = topology.cpus.clone();
        cpus.sort_unstable_by_key(|cpu| cpu.id);
        cpus.dedup_by_key(|cpu| cpu.id);
        let known = |kind, id: Option<u32>| if forgotten.contains(&kind) { None } else { id };

        let mut core_of: BTreeMap<(Option<u32>, Option<u32>), Vec<usize>> = BTreeMap::new();
        let mut group_of: BTreeMap<(GroupKind, Option<u32>), Vec<usize>> = BTreeMap::new();
        let mut keys = Vec::with_capacity(cpus.len());
        for (index, cpu) in cpus.iter().enumerate() {
            keys.push((
                known(GroupKind::Numa, cpu.numa),
                known(GroupKind::Socket, cpu.socket),
                known(GroupKind::Llc, cpu.llc),
            ));
            let alone = if cpu.core.is_none() {
                Some(cpu.id)
            } else {
                None
            };
            core_of.entry((cpu.core, alone)).or_default().push(index);
            for (kind, id) in [
                (GroupKind::Numa, cpu.numa),
                (GroupKind::Socket, cpu.socket),
                (GroupKind::Llc, cpu.llc),
            ] {
                if !forgotten.contains(&kind) {
                    group_of.entry((kind, id)).or_default().push(index);
                }
            }
        }
        let groups = group_of.into_iter();
        Self {
            ids: cpus.iter().map(|cpu| cpu.id).collect(),
            keys,
            cores: core_of.into_values().collect(),
            groups: groups
                .map(|((kind, _), cpus)| PriceGroup { kind, cpus })
                .collect(),
        }
    }
}

// === impl PlacementPlan ===

impl PlacementPlan {
    /// The plan, and whether it keeps every group.
    pub(super) fn new(topology: &Topology, counting: bool) -> (Self, bool) {
        let forgettable = [
            GroupKind::Llc,
            GroupKind::Socket,
            GroupKind::Numa,
            GroupKind::Core,
        ];
        for forgotten in 0..forgettable.len() {
            if let Some(plan) = Self::without(topology, &forgettable[..forgotten], counting) {
                return (plan, forgotten == 0);
            }
        }
        (
            Self::without(topology, &forgettable, counting).unwrap_or_else(Self::empty),
            false,
        )
    }

    fn empty() -> Self {
        let (ids, cores, cells, groups) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        Self {
            ids,
            cores,
            cells,
            groups,
            blocks: Vec::new(),
            crossing: Vec::new(),
            counting: false,
        }
    }

    /// The plan without some kinds of groups; none if the search would take too long.
    fn without(topology: &Topology, forgotten: &[GroupKind], counting: bool) -> Option<Self> {
        let GroupedCpus {
            ids,
            keys,
            cores,
            groups,
        } = GroupedCpus::new(topology, forgotten);
        let mut plan = Self {
            ids,
            groups,
            counting,
            ..Self::empty()
        };
        let keeps_pieces = !forgotten.contains(&GroupKind::Core);
        let (leaves, pieces) = plan.add_cells(cores, &keys, keeps_pieces);
        let group_sets: Vec<CpuSet> = plan.groups.iter().map(|group| set(&group.cpus)).collect();
        let (shapes, sets) = tree(leaves, &group_sets);
        plan.add_crossing(&group_sets, &sets)?;
        plan.add_piece_bits(&pieces);
        plan.blocks = shapes
            .iter()
            .zip(&sets)
            .map(|(&shape, cpus)| plan.block(shape, cpus, &sets, &group_sets))
            .collect();
        (plan.work(&sets) <= MOST_WORK).then_some(plan)
    }

    /// Adds the cells, first whole cores, then pieces. The result is the CPUs of each cell, and for
    /// each piece the group of its core.
    fn add_cells(
        &mut self,
        cores: Vec<Vec<usize>>,
        keys: &[CellKey],
        keeps_pieces: bool,
    ) -> (Vec<CpuSet>, Vec<usize>) {
        let mut whole: BTreeMap<CellKey, Vec<usize>> = BTreeMap::new();
        let mut pieces = Vec::new();
        for core in cores {
            let mut parts: BTreeMap<CellKey, Vec<usize>> = BTreeMap::new();
            for &cpu in &core {
                parts.entry(keys[cpu]).or_default().push(cpu);
            }
            if parts.len() > 1 && keeps_pieces {
                pieces.extend(parts.into_values().map(|cpus| (self.groups.len(), cpus)));
                self.groups.push(PriceGroup {
                    kind: GroupKind::Core,
                    cpus: core.clone(),
                });
                self.cores.push(core);
                continue;
            }
            // The core has a single part, unless the plan ignores cores in pieces and counts each
            // part as a core.
            for (key, cpus) in parts {
                whole.entry(key).or_default().push(self.cores.len());
                self.cores.push(cpus);
            }
        }
        let mut leaves: Vec<CpuSet> = Vec::new();
        for cores in whole.into_values() {
            leaves.push(set(cores.iter().flat_map(|&core| &self.cores[core])));
            self.cells.push(Cell::Cores(cores));
        }
        let mut piece_groups = Vec::new();
        for (group, cpus) in pieces {
            leaves.push(set(&cpus));
            piece_groups.push(group);
            self.cells.push(Cell::Piece {
                cpus,
                touched: 0,
                missing: 0,
            });
        }
        (leaves, piece_groups)
    }

    /// Adds the groups that equal no block, and the cores in pieces, with bits in patterns. None if
    /// a pattern has too few bits.
    fn add_crossing(&mut self, group_sets: &[CpuSet], sets: &[CpuSet]) -> Option<()> {
        let mut bits = 0;
        for (number, group) in self.groups.iter().enumerate() {
            if group.kind != GroupKind::Core && sets.contains(&group_sets[number]) {
                continue;
            }
            let tells_missing = group.kind == GroupKind::Core && !self.counting;
            let width = if self.counting {
                group.cpus.len().ilog2() + 1
            } else {
                1
            };
            let all = width + u32::from(tells_missing);
            if bits + all > MOST_BITS {
                return None;
            }
            let missing = if tells_missing {
                1 << (bits + width)
            } else {
                0
            };
            let field = (u64::MAX >> (u64::BITS - width)) << bits;
            self.crossing.push(Crossing {
                group: number,
                touched: 1 << bits,
                missing,
                field,
            });
            bits += all;
        }
        Some(())
    }

    /// Gives each piece the pattern bits of its core. `groups` are the groups of the cores.
    fn add_piece_bits(&mut self, groups: &[usize]) {
        let crossing = &self.crossing;
        let first_piece = self.cells.len() - groups.len();
        for (cell, core) in self.cells[first_piece..].iter_mut().zip(groups) {
            let bits = crossing.iter().find(|crossing| crossing.group == *core);
            if let (
                Cell::Piece {
                    touched, missing, ..
                },
                Some(bits),
            ) = (cell, bits)
            {
                (*touched, *missing) = (bits.touched, bits.missing);
            }
        }
    }

    fn block(
        &self,
        shape: BlockShape,
        cpus: &CpuSet,
        sets: &[CpuSet],
        group_sets: &[CpuSet],
    ) -> Block {
        let mut own = Vec::new();
        let mut rules = Rules::default();
        for (number, (group, members)) in self.groups.iter().zip(group_sets).enumerate() {
            if group.kind == GroupKind::Core {
                continue;
            }
            if members == cpus {
                own.push(number);
            } else if cpus.is_subset(members)
                && !(self.counting
                    && self
                        .crossing
                        .iter()
                        .any(|crossing| crossing.group == number))
            {
                rules.outer.push(number);
            }
            if let Some(kind) = SPANNED.iter().position(|&kind| kind == group.kind)
                && !members.is_disjoint(cpus)
                && !members.is_subset(cpus)
            {
                rules.astride[kind].push(number);
            }
        }
        for crossing in &self.crossing {
            let members = &group_sets[crossing.group];
            let in_pieces = crossing.missing != 0;
            if members.is_disjoint(cpus) {
                continue;
            }
            if self.counting && cpus.is_subset(members) {
                rules.unit |= crossing.touched;
            }
            if members.is_subset(cpus) {
                let complete = |part: usize| members.is_subset(&sets[part]);
                if let BlockShape::Join(a, b) = shape
                    && !complete(a)
                    && !complete(b)
                {
                    rules.closing.push(*crossing);
                }
            } else if self.counting {
                rules.keep |= crossing.field;
            } else if in_pieces {
                rules.keep |= crossing.touched | crossing.missing;
                rules.untouched |= crossing.missing;
            } else if cpus.is_subset(members) {
                rules.implied |= crossing.touched;
            } else {
                rules.keep |= crossing.touched;
            }
        }
        Block { shape, own, rules }
    }

    /// An estimate of the most table steps of a search.
    fn work(&self, sets: &[CpuSet]) -> f64 {
        // The binary logarithm of the number of possible patterns of each block's leaves.
        let mut leaves = vec![0.0_f64; self.blocks.len()];
        let mut total = 0.0;
        for (number, block) in self.blocks.iter().enumerate() {
            match block.shape {
                BlockShape::Leaf(_) if self.counting => {
                    leaves[number] = (sets[number].len() as f64 + 1.0).log2();
                }
                BlockShape::Leaf(_) => leaves[number] = 1.0,
                BlockShape::Join(a, b) => {
                    leaves[number] = leaves[a] + leaves[b];
                    let entries = |part: usize| {
                        let open = f64::from(self.blocks[part].rules.keep.count_ones());
                        open.min(leaves[part]).exp2() * sets[part].len() as f64
                    };
                    total += if self.crossing.is_empty() {
                        0.0
                    } else {
                        entries(a) * entries(b)
                    };
                }
            }
        }
        total
    }
}

fn set<'a>(cpus: impl IntoIterator<Item = &'a usize>) -> CpuSet {
    cpus.into_iter()
        .filter_map(|&cpu| u32::try_from(cpu).ok())
        .collect()
}

/// Joins leaves into a tree, the smallest groups first. Where groups nest, each becomes a block.
fn tree(leaves: Vec<CpuSet>, groups: &[CpuSet]) -> (Vec<BlockShape>, Vec<CpuSet>) {
    let mut shapes: Vec<BlockShape> = (0..leaves.len()).map(BlockShape::Leaf).collect();
    let mut sets = leaves;
    let mut tops: Vec<usize> = (0..sets.len()).collect();
    let mut by_size: Vec<&CpuSet> = groups.iter().collect();
    by_size.sort_by_key(|group| group.len());
    let everything = sets.iter().fold(CpuSet::new(), |all, leaf| all.union(leaf));
    for group in by_size.into_iter().chain([&everything]) {
        let (inside, outside): (Vec<usize>, Vec<usize>) =
            tops.iter().partition(|&&top| !sets[top].is_disjoint(group));
        tops = outside;
        // The two smallest blocks are joined first, which keeps tables small for as long as
        // possible.
        let mut heap: BinaryHeap<_> = inside
            .iter()
            .map(|&top| Reverse((sets[top].len(), top)))
            .collect();
        while let Some(Reverse((_, a))) = heap.pop() {
            let Some(Reverse((_, b))) = heap.pop() else {
                tops.push(a);
                break;
            };
            let joined = sets[a].union(&sets[b]);
            heap.push(Reverse((joined.len(), sets.len())));
            sets.push(joined);
            shapes.push(BlockShape::Join(a, b));
        }
    }
    (shapes, sets)
}
