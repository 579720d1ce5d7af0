//! A drawing of a machine as text, with the owners of CPUs.
//!
//! Sockets, NUMA nodes and LLCs become nested headings, with the fewest groups outermost: on some
//! machines a NUMA node holds many sockets, and on some an LLC spans many NUMA nodes. Levels with
//! equal groups share a heading, so that a machine with a NUMA node per socket is drawn only once.
//! The cores stand under the last heading.

use std::collections::BTreeMap;
use std::fmt::Write;

use console::{Color, Style, measure_text_width};

use crate::cpu::{CoreKind, Cpu, CpuSet, NumaNode, Topology};
use crate::text::terminal::escape;
use crate::text::{counted, units};

/// Columns of a drawing. A wider line continues on the next one.
const WIDTH: usize = 100;
const GAP: &str = "   ";
const COLORS: [Color; 6] = [
    Color::Green,
    Color::Yellow,
    Color::Cyan,
    Color::Magenta,
    Color::Blue,
    Color::Red,
];
const LETTERS: &[u8; 52] = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";

/// What the CPUs of a machine are used for.
#[derive(Debug, Default)]
pub(crate) struct CpuUses {
    /// The exclusive CPUs of each owner, by a label such as `train/worker-0`.
    pub(crate) owners: BTreeMap<String, CpuSet>,
    /// Online CPUs that the cgroups above the pods do not offer.
    pub(crate) withheld: CpuSet,
}

/// Draws a machine with the uses of its CPUs.
///
/// Owned CPUs are followed by their owner's letter, explained in a legend, and coloured when standard output is a
/// terminal. The text ends in a newline.
pub(crate) fn render(topology: &Topology, uses: &CpuUses) -> String {
    let marks = OwnerLegend::new(&uses.owners);
    let mut out = String::new();
    summarize(&mut out, topology);
    out.push('\n');
    let drawing = Drawing {
        topology,
        marks: &marks,
        levels: levels(topology),
    };
    drawing.draw(&mut out, 0, &topology.online);
    for node in topology.numa.iter().filter(|node| node.cpus.is_empty()) {
        line(
            &mut out,
            0,
            &format!("NUMA node {} · no CPUs{}", node.id, details(topology, node)),
        );
    }
    marks.legend(&mut out, topology, &uses.withheld);
    if !uses.withheld.is_empty() {
        let title = format!("withheld  {}: ", counted(uses.withheld.len(), "CPU"));
        wrapped(&mut out, &title, items(&uses.withheld));
    }
    out
}

/// The id of a CPU's group of one kind.
type IdOf = fn(&Cpu) -> Option<u32>;

/// How many of everything, and which CPUs are off.
fn summarize(out: &mut String, topology: &Topology) {
    let mut parts = vec![format!("{} online", counted(topology.online.len(), "CPU"))];
    let has_id = |of: IdOf| topology.cpus.iter().any(|cpu| of(cpu).is_some());
    let mut untold = Vec::new();
    let levels: [(&str, usize, IdOf); 4] = [
        ("core", topology.cores().len(), |cpu| cpu.core),
        ("LLC", topology.llcs().len(), |cpu| cpu.llc),
        ("NUMA node", topology.numa.len(), |cpu| cpu.numa),
        ("socket", topology.sockets().len(), |cpu| cpu.socket),
    ];
    for (name, groups, of) in levels {
        if has_id(of) {
            parts.push(counted(groups, name));
        } else {
            untold.push(format!("{name}s"));
        }
    }
    line(out, 0, &parts.join(" · "));
    if !untold.is_empty() {
        line(
            out,
            0,
            &format!("not reported by this machine: {}", untold.join(", ")),
        );
    }
    if !topology.offline.is_empty() {
        wrapped(out, "offline: ", items(&topology.offline));
    }
    if !topology.isolated.is_empty() {
        wrapped(out, "isolated at boot: ", items(&topology.isolated));
    }
    let mut kinds: BTreeMap<CoreKind, CpuSet> = BTreeMap::new();
    for cpu in &topology.cpus {
        if let Some(kind) = cpu.kind {
            kinds.entry(kind).or_default().insert(cpu.id);
        }
    }
    for (kind, cpus) in kinds {
        let title = format!("{} {kind} cores: ", letter(kind));
        wrapped(out, &title, items(&cpus));
    }
}

/// The letter of a kind of core: `P`, `E`, then `L` to `O`. No known machine has more kinds.
fn letter(kind: CoreKind) -> char {
    match kind {
        CoreKind::Performance => 'P',
        CoreKind::Efficiency => 'E',
        CoreKind::LowPower(further) => char::from(b'L' + further.min(3)),
    }
}

// === the nested groups ===

/// A kind of group, or several kinds with equal groups.
struct Level {
    names: Vec<GroupName>,
    groups: Vec<CpuSet>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum GroupName {
    Socket,
    Numa,
    Llc,
}

impl GroupName {
    fn id(self, cpu: &Cpu) -> Option<u32> {
        match self {
            Self::Socket => cpu.socket,
            Self::Numa => cpu.numa,
            Self::Llc => cpu.llc,
        }
    }
}

/// The levels that get a heading, outermost first.
fn levels(topology: &Topology) -> Vec<Level> {
    let cores = topology.cores();
    let mut levels: Vec<Level> = Vec::new();
    let all = [
        (GroupName::Socket, topology.sockets()),
        (GroupName::Numa, topology.numa_nodes()),
        (GroupName::Llc, topology.llcs()),
    ];
    for (name, groups) in all {
        let has_id = topology.cpus.iter().any(|cpu| name.id(cpu).is_some());
        // A heading per core says nothing, except of a NUMA node, which has memory.
        let per_core = groups == cores && cores.len() > 1 && name != GroupName::Numa;
        if !has_id || per_core {
            continue;
        }
        match levels.iter_mut().find(|level| level.groups == groups) {
            Some(level) => level.names.push(name),
            None => levels.push(Level {
                names: vec![name],
                groups,
            }),
        }
    }
    levels.sort_by_key(|level| level.groups.len());
    levels
}

struct Drawing<'a> {
    topology: &'a Topology,
    marks: &'a OwnerLegend<'a>,
    levels: Vec<Level>,
}

impl Drawing<'_> {
    /// Draws the part of the machine that is in `within`, from the given level inwards.
    fn draw(&self, out: &mut String, depth: usize, within: &CpuSet) {
        let indent = 2 * depth;
        let Some(level) = self.levels.get(depth) else {
            return self.rows(out, indent, "", &self.cores(within));
        };
        let groups = level
            .groups
            .iter()
            .map(|group| group.intersection(within))
            .filter(|group| !group.is_empty());
        if depth + 1 < self.levels.len() {
            for group in groups {
                line(out, indent, &self.title(level, &group));
                self.draw(out, depth + 1, &group);
            }
            return;
        }
        // The innermost groups stand before the cores: several to a line if the titles are short, a
        // line each if all groups fit, and above the cores otherwise.
        let segments: Vec<_> = groups
            .map(|group| (self.title(level, &group), self.cores(&group)))
            .collect();
        if !level.names.contains(&GroupName::Numa) {
            return self.side_by_side(out, indent, &segments);
        }
        let column = level
            .groups
            .iter()
            .map(|group| measure_text_width(&self.title(level, group)))
            .max()
            .unwrap_or(0);
        let widest = level
            .groups
            .iter()
            .map(|group| measure_text_width(&self.cores(group).join(" ")))
            .max()
            .unwrap_or(0);
        for (title, cores) in segments {
            if indent + column + 2 + widest <= WIDTH {
                self.rows(out, indent, &padded(&title, column), &cores);
            } else {
                line(out, indent, &title);
                self.rows(out, indent + 2, "", &cores);
            }
        }
    }

    /// The heading of a group: `socket 0 · NUMA node 0 · 15.6 GiB`.
    fn title(&self, level: &Level, group: &CpuSet) -> String {
        let cpu = group.first().and_then(|id| self.topology.cpu(id));
        let names = level.names.iter().map(|name| {
            let word = match name {
                GroupName::Socket => "socket",
                GroupName::Numa => "NUMA node",
                GroupName::Llc => "LLC",
            };
            match cpu.and_then(|cpu| name.id(cpu)) {
                Some(id) => format!("{word} {id}"),
                None => format!("{word} unknown"),
            }
        });
        let title = names.collect::<Vec<_>>().join(" · ");
        let numa = cpu
            .and_then(|cpu| cpu.numa)
            .filter(|_| level.names.contains(&GroupName::Numa));
        let node = self.topology.numa.iter().find(|node| Some(node.id) == numa);
        title
            + &node
                .map(|node| details(self.topology, node))
                .unwrap_or_default()
    }

    /// A text per core with CPUs in the set, all padded to the same columns.
    fn cores(&self, within: &CpuSet) -> Vec<String> {
        let all = self.topology.cores();
        let threads = all.iter().map(CpuSet::len).max().unwrap_or(1);
        let hybrid = self.topology.cpus.iter().any(|cpu| cpu.kind.is_some());
        let digits = self
            .topology
            .online
            .iter()
            .last()
            .unwrap_or(0)
            .to_string()
            .len();
        let cores = all
            .iter()
            .map(|core| core.intersection(within))
            .filter(|core| !core.is_empty());
        let texts = cores.map(|core| {
            let cpus: Vec<String> = core
                .iter()
                .map(|id| self.marks.paint(id, &format!("{id:>digits$}")))
                .collect();
            let kind = core
                .first()
                .and_then(|id| self.topology.cpu(id))
                .and_then(|cpu| cpu.kind);
            let kind = if hybrid {
                String::from(kind.map_or(' ', letter))
            } else {
                String::new()
            };
            if threads > 1 {
                format!("{kind}[{}]", cpus.join(" "))
            } else {
                format!("{kind}{}", cpus.join(" "))
            }
        });
        let texts: Vec<String> = texts.collect();
        let width = texts
            .iter()
            .map(|text| measure_text_width(text))
            .max()
            .unwrap_or(0);
        texts.iter().map(|text| padded(text, width)).collect()
    }

    /// Cores after a title, continued under the first one where a line is full.
    fn rows(&self, out: &mut String, indent: usize, title: &str, cores: &[String]) {
        let title = if title.is_empty() {
            String::new()
        } else {
            format!("{title}  ")
        };
        let margin = indent + measure_text_width(&title);
        let room = WIDTH.saturating_sub(margin);
        let core = cores.first().map_or(0, |core| measure_text_width(core));
        // Brackets keep cores apart well enough where spaces would cost a line.
        let bracketed = cores.first().is_some_and(|core| core.ends_with(']'));
        let tight = bracketed && cores.len() * (core + 1) > room + 1 && cores.len() * core <= room;
        let gap = if tight { "" } else { " " };
        let per_line = ((room + gap.len()) / (core + gap.len()).max(1)).max(1);
        for (index, row) in cores.chunks(per_line).enumerate() {
            let row = row.join(gap);
            if index == 0 {
                line(out, indent, &format!("{title}{row}"));
            } else {
                line(out, margin, &row);
            }
        }
    }

    /// Titled groups of cores: as many on a line as there is room for, in columns.
    fn side_by_side(&self, out: &mut String, indent: usize, segments: &[(String, Vec<String>)]) {
        let titles = segments
            .iter()
            .map(|(title, _)| measure_text_width(title))
            .max()
            .unwrap_or(0);
        let texts: Vec<String> = segments
            .iter()
            .map(|(title, cores)| format!("{}  {}", padded(title, titles), cores.join(" ")))
            .collect();
        let width = texts
            .iter()
            .map(|text| measure_text_width(text))
            .max()
            .unwrap_or(0);
        if indent + width > WIDTH {
            for (title, cores) in segments {
                self.rows(out, indent, &padded(title, titles), cores);
            }
            return;
        }
        let per_line = ((WIDTH - indent + GAP.len()) / (width + GAP.len())).max(1);
        for row in texts.chunks(per_line) {
            let row: Vec<String> = row.iter().map(|text| padded(text, width)).collect();
            line(out, indent, &row.join(GAP));
        }
    }
}

/// A NUMA node's memory and distances, each after a dot.
fn details(topology: &Topology, node: &NumaNode) -> String {
    let mut text = String::new();
    if let Some(bytes) = node.memory_bytes {
        let _ = write!(text, " · {}", units::bytes(bytes as f64));
    }
    // A NUMA node is at distance 10 from itself on every machine, so that is left out.
    let mut others: BTreeMap<u32, CpuSet> = BTreeMap::new();
    for (other, &distance) in topology
        .numa
        .iter()
        .zip(&node.distances)
        .filter(|(other, _)| other.id != node.id)
    {
        others.entry(distance).or_default().insert(other.id);
    }
    let distances: Vec<String> = others
        .iter()
        .map(|(distance, ids)| format!("{distance} to {ids}"))
        .collect();
    if !distances.is_empty() {
        let _ = write!(text, " · distance {}", distances.join("; "));
    }
    text
}

// === owners ===

/// The owners with their letters and colours.
struct OwnerLegend<'a> {
    owners: Vec<(&'a str, &'a CpuSet, String, Style)>,
    /// Columns of a letter; 0 without owners.
    width: usize,
}

impl<'a> OwnerLegend<'a> {
    fn new(owners: &'a BTreeMap<String, CpuSet>) -> Self {
        let width = if owners.is_empty() {
            0
        } else {
            1 + usize::from(owners.len() > LETTERS.len())
        };
        let letters = LETTERS.iter().map(|&letter| char::from(letter));
        let one = letters.clone().map(String::from);
        let two = letters
            .clone()
            .flat_map(|a| letters.clone().map(move |b| String::from_iter([a, b])));
        // Where even pairs of letters run out, at 2704 owners, the rest share a mark.
        let marks: Vec<String> = if width == 2 {
            two.collect()
        } else {
            one.collect()
        };
        let owners = owners
            .iter()
            .zip(
                marks
                    .into_iter()
                    .chain(std::iter::repeat("+".repeat(width))),
            )
            .zip(COLORS.iter().cycle())
            .map(|(((label, cpus), mark), &color)| {
                (label.as_str(), cpus, mark, Style::new().fg(color).bold())
            })
            .collect();
        Self { owners, width }
    }

    /// The text of a CPU with its owner's letter, or as much room.
    fn paint(&self, cpu: u32, text: &str) -> String {
        let width = self.width;
        let mut owners = self
            .owners
            .iter()
            .filter(|(_, cpus, ..)| cpus.contains(cpu));
        match (owners.next(), owners.next()) {
            (None, _) => format!("{text}{:width$}", ""),
            (Some((_, _, mark, style)), None) => {
                style.apply_to(format!("{text}{mark}")).to_string()
            }
            (Some(_), Some(_)) => format!("{text}{}", "!".repeat(width)),
        }
    }

    fn legend(&self, out: &mut String, topology: &Topology, withheld: &CpuSet) {
        if self.owners.is_empty() {
            return;
        }
        out.push('\n');
        let mut owned = CpuSet::new();
        let mut twice = CpuSet::new();
        for (label, cpus, mark, style) in &self.owners {
            twice = twice.union(&owned.intersection(cpus));
            owned = owned.union(cpus);
            let title = format!(
                "{} {}  {}: ",
                style.apply_to(mark),
                escape(label),
                counted(cpus.len(), "CPU")
            );
            wrapped(out, &title, items(cpus));
            let off = cpus.difference(&topology.online);
            if !off.is_empty() {
                wrapped(out, "  of these not online: ", items(&off));
            }
        }
        let shared = topology.online.difference(&owned).difference(withheld);
        wrapped(
            out,
            &format!("shared  {}: ", counted(shared.len(), "CPU")),
            items(&shared),
        );
        if !twice.is_empty() {
            wrapped(out, "! more than one owner: ", items(&twice));
        }
    }
}

// === lines ===

fn line(out: &mut String, indent: usize, text: &str) {
    let text = format!("{:indent$}{text}", "");
    out.push_str(text.trim_end());
    out.push('\n');
}

/// The items of a CPU list, each with the comma that follows it.
fn items(cpus: &CpuSet) -> Vec<String> {
    cpus.to_string()
        .split_inclusive(',')
        .map(str::to_owned)
        .collect()
}

/// A title and items, continued under the first item where a line is full.
fn wrapped(out: &mut String, title: &str, items: Vec<String>) {
    let margin = measure_text_width(title);
    let mut row = title.to_owned();
    let mut used = margin;
    for item in items {
        if used + item.len() > WIDTH && used > margin {
            line(out, 0, &row);
            row = " ".repeat(margin);
            used = margin;
        }
        used += item.len();
        row.push_str(&item);
    }
    line(out, 0, &row);
}

fn padded(text: &str, width: usize) -> String {
    let missing = width.saturating_sub(measure_text_width(text));
    format!("{text}{:missing$}", "")
}

#[cfg(test)]
mod tests;
