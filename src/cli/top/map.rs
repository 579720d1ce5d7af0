//! The CPU map of a node: a sign for each CPU. The CPUs of a core stand side by side, and gaps
//! separate last-level caches and NUMA nodes.

use std::collections::BTreeMap;

use ratatui_core::style::{Color, Modifier, Style};
use ratatui_core::text::{Line, Span};

use crate::client::NO_LETTER;
use crate::cpu::{CpuSet, Layout};

const COLORS: [Color; 6] = [
    Color::Green,
    Color::Yellow,
    Color::Cyan,
    Color::Magenta,
    Color::Blue,
    Color::Red,
];

/// The sign of a shared CPU.
const SHARED: char = '.';
/// The sign of a reserved CPU.
const RESERVED: char = 'r';
/// The sign of a withheld CPU: the pods' top cgroup does not offer it.
const WITHHELD: char = '-';
/// The sign of a lost CPU.
const LOST: char = 'x';
/// The sign of a CPU with two owners, which is an error.
const TWO_OWNERS: char = '!';

/// The meaning of the signs. Few machines withhold CPUs from pods, so only their legend has that sign.
pub(super) fn legend(has_withheld: bool) -> &'static str {
    if has_withheld {
        ". shared  r reserved  - withheld  x lost  ! two owners; letter: owned by a pod"
    } else {
        ". shared  r reserved  x lost  ! two owners; letter: owned by a pod"
    }
}

#[derive(Debug)]
pub(super) struct Map<'a> {
    pub(super) layout: &'a Layout,
    pub(super) online: &'a CpuSet,
    pub(super) reserved: &'a CpuSet,
    pub(super) withheld: &'a CpuSet,
    pub(super) lost: &'a CpuSet,
    /// The owners' letters and CPUs.
    pub(super) owners: Vec<(char, CpuSet)>,
}

/// The colour of an owner's sign, on the map and in the table.
pub(super) fn style(letter: char) -> Style {
    let color = COLORS
        .get(letter as usize % COLORS.len())
        .copied()
        .unwrap_or(Color::Reset);
    match letter {
        TWO_OWNERS | LOST => Style::new().fg(Color::Red).add_modifier(Modifier::REVERSED),
        SHARED | RESERVED | WITHHELD => Style::new().add_modifier(Modifier::DIM),
        NO_LETTER => Style::new().add_modifier(Modifier::BOLD),
        _ => Style::new().fg(color).add_modifier(Modifier::BOLD),
    }
}

// === impl Map ===

impl Map<'_> {
    /// The map in lines of a width. Each NUMA node begins a line, but short ones share it.
    pub(super) fn lines(&self, width: usize) -> Vec<Line<'static>> {
        let blocks = self.blocks();
        let titles = blocks
            .iter()
            .map(|(title, _)| title.len())
            .max()
            .unwrap_or_default();
        let mut lines: Vec<Vec<LinePart>> = Vec::new();
        let mut open = false;
        for (title, caches) in &blocks {
            let (title, signs) = (format!("{title:titles$}"), caches.join(" "));
            let length_of_block = title.len() + signs.len();
            if let Some(line) = lines
                .last_mut()
                .filter(|line| open && length(line) + GAP.len() + length_of_block <= width)
            {
                line.extend([
                    LinePart::Text(GAP.to_owned()),
                    LinePart::Text(title),
                    LinePart::Signs(signs),
                ]);
                continue;
            }
            open = length_of_block <= width;
            lines.extend(wrapped(title, caches, width));
        }
        lines.into_iter().map(painted).collect()
    }

    /// All signs in a line; `None` if the line is wider than `width`.
    pub(super) fn strip(&self, width: usize) -> Option<Line<'static>> {
        let caches: Vec<String> = self
            .blocks()
            .into_iter()
            .flat_map(|(_, caches)| caches)
            .collect();
        let text = caches.join(" ");
        (text.len() <= width).then(|| painted(vec![LinePart::Signs(text)]))
    }

    fn signs(&self) -> BTreeMap<u32, char> {
        let mut signs: BTreeMap<u32, char> = self.online.iter().map(|cpu| (cpu, SHARED)).collect();
        let mut put = |cpus: &CpuSet, sign| {
            signs.extend(cpus.intersection(self.online).iter().map(|cpu| (cpu, sign)));
        };
        put(self.withheld, WITHHELD);
        put(self.reserved, RESERVED);
        let (mut owned, mut two_owners) = (CpuSet::new(), CpuSet::new());
        for (letter, cpus) in &self.owners {
            // Set operations keep the time linear in the owners, of which an agent may report many.
            put(&cpus.difference(&owned), *letter);
            two_owners = two_owners.union(&cpus.intersection(&owned));
            owned = owned.union(cpus);
        }
        put(&two_owners, TWO_OWNERS);
        put(self.lost, LOST);
        signs
    }

    /// The title of each NUMA node, with the signs of its CPUs by last-level cache. A single NUMA
    /// node has no title. The CPUs of a core stand side by side. Each online CPU appears exactly
    /// once, even if the layout is wrong.
    fn blocks(&self) -> Vec<(String, Vec<String>)> {
        let Layout {
            cores, llcs, numa, ..
        } = self.layout;
        let ids: Vec<u32> = numa.keys().copied().collect();
        let numa = self.ranks(numa.values().filter(|_| ids.len() > 1));
        let (llcs, cores) = (self.ranks(llcs), self.ranks(cores));
        // A CPU outside of all groups stands at the end.
        let rank =
            |ranks: &BTreeMap<u32, usize>, cpu| ranks.get(&cpu).copied().unwrap_or(usize::MAX);
        let mut order: Vec<(usize, usize, usize, u32, char)> = self
            .signs()
            .into_iter()
            .map(|(cpu, sign)| {
                (
                    rank(&numa, cpu),
                    rank(&llcs, cpu),
                    rank(&cores, cpu),
                    cpu,
                    sign,
                )
            })
            .collect();
        order.sort_unstable();
        let block = |cpus: &[(usize, usize, usize, u32, char)]| {
            let title = cpus.first().and_then(|cpu| ids.get(cpu.0));
            let caches = cpus.chunk_by(|left, right| left.1 == right.1);
            let signs = caches
                .map(|cpus| cpus.iter().map(|cpu| cpu.4).collect())
                .collect();
            (
                title.map(|id| format!("NUMA {id} ")).unwrap_or_default(),
                signs,
            )
        };
        order
            .chunk_by(|left, right| left.0 == right.0)
            .map(block)
            .collect()
    }

    /// The index of the first group that contains each online CPU.
    fn ranks<'g>(&self, groups: impl IntoIterator<Item = &'g CpuSet>) -> BTreeMap<u32, usize> {
        let mut rest = self.online.clone();
        let mut ranks = BTreeMap::new();
        for (rank, group) in groups.into_iter().enumerate() {
            let cpus = group.intersection(&rest);
            if !cpus.is_empty() {
                rest = rest.difference(&cpus);
                ranks.extend(cpus.iter().map(|cpu| (cpu, rank)));
            }
        }
        ranks
    }
}

const GAP: &str = "   ";

/// A part of a line, in ASCII.
enum LinePart {
    Text(String),
    Signs(String),
}

fn length(line: &[LinePart]) -> usize {
    line.iter()
        .map(|(LinePart::Text(text) | LinePart::Signs(text))| text.len())
        .sum()
}

/// Words of signs after a title. Long lines continue below the first word, and a word that is
/// longer than a line is broken.
fn wrapped(title: String, words: &[String], width: usize) -> Vec<Vec<LinePart>> {
    let margin = title.len().min(width.saturating_sub(1));
    let room = width.saturating_sub(margin).max(1);
    let mut rows = vec![String::new()];
    for word in words {
        let mut rest = word.as_str();
        while !rest.is_empty() {
            let used = rows.last().map_or(0, String::len);
            let gap = usize::from(used > 0);
            if used > 0 && used + gap + rest.len() > room {
                rows.push(String::new());
                continue;
            }
            let (part, after) = rest.split_at(rest.len().min(room));
            if let Some(row) = rows.last_mut() {
                row.push_str(if gap > 0 { " " } else { "" });
                row.push_str(part);
            }
            rest = after;
        }
    }
    let mut titles = std::iter::once(title).chain(std::iter::repeat(" ".repeat(margin)));
    let titled = |row| {
        vec![
            LinePart::Text(titles.next().unwrap_or_default()),
            LinePart::Signs(row),
        ]
    };
    rows.into_iter().map(titled).collect()
}

/// A line of signs with colours.
fn painted(line: Vec<LinePart>) -> Line<'static> {
    let mut spans = Vec::new();
    for piece in line {
        let signs = match piece {
            LinePart::Text(text) => {
                spans.push(Span::raw(text));
                continue;
            }
            LinePart::Signs(signs) => signs,
        };
        let mut run = String::new();
        let mut last = ' ';
        for sign in signs.chars() {
            if sign != last && !run.is_empty() {
                spans.push(Span::styled(std::mem::take(&mut run), sign_style(last)));
            }
            last = sign;
            run.push(sign);
        }
        spans.push(Span::styled(run, sign_style(last)));
    }
    Line::from(spans)
}

fn sign_style(sign: char) -> Style {
    if sign == ' ' {
        Style::new()
    } else {
        style(sign)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::{Shape, Topology};

    fn set(text: &str) -> CpuSet {
        text.parse().unwrap()
    }

    fn drawn(topology: &Topology, owners: &[(char, &str)], width: usize) -> Vec<String> {
        let layout = topology.layout();
        let map = Map {
            layout: &layout,
            online: &topology.online,
            reserved: &set("0"),
            withheld: &CpuSet::new(),
            lost: &set("3"),
            owners: owners
                .iter()
                .map(|(letter, cpus)| (*letter, set(cpus)))
                .collect(),
        };
        map.lines(width).iter().map(ToString::to_string).collect()
    }

    fn machine(sockets: u32, llcs_per_numa: u32, cores_per_llc: u32) -> Topology {
        Topology::from_shape(Shape {
            sockets,
            numa_per_socket: 1,
            llcs_per_numa,
            cores_per_llc,
            threads_per_core: 2,
            numbering: crate::cpu::Numbering::SiblingsLast,
        })
    }

    #[test]
    fn cpus_of_a_core_stand_together_and_a_gap_separates_caches() {
        let single = machine(1, 2, 2);
        assert_eq!(
            drawn(&single, &[('a', "1,5"), ('b', "2,6"), ('c', "6")], 80),
            ["r.aa b!x."]
        );
        let two = machine(2, 1, 2);
        assert_eq!(
            drawn(&two, &[('a', "1,5")], 80),
            ["NUMA 0 r.aa   NUMA 1 ..x."]
        );
        assert_eq!(
            drawn(&two, &[('a', "1,5")], 20),
            ["NUMA 0 r.aa", "NUMA 1 ..x."]
        );
    }

    #[test]
    fn a_wide_map_continues_below() {
        let big = machine(2, 2, 16);
        let lines = drawn(&big, &[('a', "16-31")], 60);
        assert_eq!(
            lines,
            [
                "NUMA 0 r.....x.........................",
                "       a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.",
                "NUMA 1 ................................",
                "       ................................",
            ]
        );
        for width in 1..90 {
            let lines = drawn(&big, &[('a', "16-31")], width);
            let signs: usize = lines
                .iter()
                .map(|line| line.matches(['.', 'a', 'r', 'x']).count())
                .sum();
            assert_eq!(signs, 128, "{width}: {lines:?}");
            assert!(
                width < 8 || lines.iter().all(|line| line.len() <= width),
                "{width}: {lines:?}"
            );
        }
    }

    #[test]
    fn a_wrong_layout_loses_no_cpu() {
        let topology = Topology {
            online: set("0-5"),
            ..Topology::default()
        };
        assert_eq!(drawn(&topology, &[('a', "1-2")], 80), ["raax.."]);
        let layout = Layout {
            cores: vec![set("0-1"), set("1-2"), set("9")],
            llcs: vec![set("0-2"), set("2-3")],
            numa: [(0, set("0-3")), (7, set("2-4,9")), (8, set("77"))].into(),
            sockets: Vec::new(),
        };
        let none = CpuSet::new();
        let map = Map {
            layout: &layout,
            online: &set("0-5"),
            reserved: &none,
            withheld: &none,
            lost: &none,
            owners: Vec::new(),
        };
        let lines: Vec<String> = map.lines(80).iter().map(ToString::to_string).collect();
        assert_eq!(lines, ["NUMA 0 ... .   NUMA 7 .          ."]);
    }
}
