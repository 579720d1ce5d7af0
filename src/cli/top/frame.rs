//! A whole frame in lines: on a screen of a certain size, or as long as it gets.

use std::sync::Arc;
use std::time::Duration;

use ratatui_core::style::{Color, Modifier, Style};
use ratatui_core::text::{Line, Span};

use super::map::{LEGEND, Map};
use super::model::{Node, Row};
use super::status::Status;
use super::table::{Content, Table};
use super::view::View;
use super::words::{cut, left, number, percent, seconds};
use crate::text::counted;

/// What is drawn.
#[derive(Debug)]
pub(super) struct Picture<'a> {
    pub(super) nodes: &'a [Node],
    /// Their names.
    pub(super) names: &'a [String],
    /// Those that are wanted, in their order.
    pub(super) rows: &'a [Arc<Row>],
    /// How many pods there are, wanted or not.
    pub(super) pods: usize,
    pub(super) view: &'a View,
    /// Since the start.
    pub(super) now: Duration,
}

/// A frame on a screen.
#[derive(Debug)]
pub(super) struct Frame {
    pub(super) lines: Vec<Line<'static>>,
    /// How many lines of the table there was room for.
    pub(super) page: usize,
}

/// Below this height only the table is shown, and what can't be left out.
const LOW: usize = 10;

const DIM: Style = Style::new().add_modifier(Modifier::DIM);
const RED: Style = Style::new().fg(Color::Red);
const YELLOW: Style = Style::new().fg(Color::Yellow);

impl Picture<'_> {
    /// The frame on a screen of this size.
    pub(super) fn on_screen(&self, width: usize, height: usize) -> Frame {
        if self.view.help {
            let lines = help().into_iter().map(|line| Line::raw(cut(line, width)));
            return Frame {
                lines: lines.take(height).collect(),
                page: height,
            };
        }
        let foot = self.keys(width);
        let mut lines = self.head(width, if height < LOW { 1 } else { (height / 3).max(2) });
        let silent = self.silent();
        let content = self.content(&silent);
        let table = Table::new(&content, width);
        let chosen = self.view.chosen(self.rows);
        let details = if height < LOW {
            Vec::new()
        } else {
            self.details(chosen, width)
        };
        // The heading and the keys take a line each.
        let page = height
            .saturating_sub(lines.len() + details.len() + 2)
            .max(1);
        let at = chosen.map(|row| table.place(row)).unwrap_or_default();
        // A page at a time: going up and down within it changes two lines only.
        let first = at / page * page;
        lines.push(table.heading());
        let body = lines.len();
        for (row, line) in table.lines(first, page) {
            let is_chosen = Some(row) == chosen;
            lines.push(if is_chosen {
                line.patch_style(Style::new().add_modifier(Modifier::REVERSED))
            } else {
                line
            });
        }
        if self.rows.is_empty() {
            lines.push(Line::styled(cut(&self.nothing(), width), DIM));
        }
        lines.resize(body + page, Line::default());
        lines.extend(details);
        lines.truncate(height.saturating_sub(1));
        lines.push(foot);
        Frame { lines, page }
    }

    /// The frame as a text without end: every node, every map, every note.
    pub(super) fn whole(&self, width: usize) -> Vec<Line<'static>> {
        let mut lines = Vec::new();
        let shown = self.shown();
        for &(number, node) in &shown {
            // Why a node is silent is worth a longer line.
            lines.push(self.title(
                number,
                node,
                if node.error().is_some() {
                    usize::MAX
                } else {
                    width
                },
            ));
            lines.extend(self.map(node).iter().flat_map(|map| map.lines(width)));
            lines.extend(troubles(node).map(|trouble| Line::raw(format!("! {trouble}"))));
        }
        if shown.iter().any(|(_, node)| node.status().is_some()) {
            lines.push(Line::raw(cut(LEGEND, width)));
        }
        lines.push(Line::default());
        let silent = self.silent();
        let content = self.content(&silent);
        let table = Table::new(&content, width);
        lines.push(table.heading());
        lines.extend(table.lines(0, usize::MAX).into_iter().map(|(_, line)| line));
        if self.rows.is_empty() {
            lines.push(Line::raw(self.nothing()));
        }
        for row in self.rows {
            lines.extend(
                row.notes.iter().map(|note| {
                    Line::raw(format!("{}/{}: {note}", row.key.namespace, row.key.pod))
                }),
            );
        }
        lines
    }

    fn content<'s>(&'s self, silent: &'s [bool]) -> Content<'s> {
        Content {
            rows: self.rows,
            names: self.names,
            nodes: self.nodes.len() > 1 && self.view.node.is_none(),
            silent,
            sort: self.view.sort,
            containers: self.view.containers,
        }
    }

    /// Which nodes don't answer.
    fn silent(&self) -> Vec<bool> {
        self.nodes
            .iter()
            .map(|node| node.error().is_some())
            .collect()
    }

    /// The nodes that are shown, with their numbers.
    fn shown(&self) -> Vec<(usize, &Node)> {
        let wanted = |number: usize| self.view.node.is_none_or(|node| node == number);
        self.nodes
            .iter()
            .enumerate()
            .filter(|(number, _)| wanted(*number))
            .collect()
    }

    /// What stands above the table, in at most so many lines.
    fn head(&self, width: usize, most: usize) -> Vec<Line<'static>> {
        let shown = self.shown();
        if let [(number, node)] = shown[..] {
            return self.one(number, node, width, most);
        }
        let mut lines = vec![self.sum(&shown, width)];
        // Those that don't answer, or have troubles, are what a person looks for.
        let mut order: Vec<(usize, &Node)> = shown;
        order.sort_by_key(|(_, node)| (node.error().is_none(), trouble_count(node) == 0));
        let room = most.saturating_sub(1);
        let all = order.len();
        let fit = if all > room {
            room.saturating_sub(1)
        } else {
            all
        };
        let wide = self
            .names
            .iter()
            .map(|name| console::measure_text_width(name))
            .max()
            .unwrap_or(0)
            .clamp(4, 24);
        lines.extend(
            order
                .into_iter()
                .take(fit)
                .map(|(number, node)| self.node_line(number, node, wide, width)),
        );
        if fit < all && room > 0 {
            lines.push(Line::styled(
                cut(
                    &format!(
                        "… and {}; n shows one after the other",
                        counted(all - fit, "more node")
                    ),
                    width,
                ),
                DIM,
            ));
        }
        lines.truncate(most);
        lines
    }

    /// One node, with its map and its troubles.
    fn one(&self, number: usize, node: &Node, width: usize, most: usize) -> Vec<Line<'static>> {
        let mut lines = vec![self.title(number, node, width)];
        let troubles = trouble_count(node);
        let room = most.saturating_sub(1);
        let told = troubles.min(2).min(room);
        let mut map: Vec<Line<'static>> = self
            .map(node)
            .iter()
            .flat_map(|map| map.lines(width))
            .collect();
        let rows = room.saturating_sub(told);
        if map.len() > rows {
            map.truncate(rows.saturating_sub(1));
            if rows > 0 {
                map.push(Line::styled(
                    cut(
                        "… the map goes on: pinfold top --once shows all of it",
                        width,
                    ),
                    DIM,
                ));
            }
        }
        let spare = rows.saturating_sub(map.len());
        let drawn = !map.is_empty();
        lines.extend(map);
        if drawn && spare > 0 {
            lines.push(Line::styled(cut(LEGEND, width), DIM));
        }
        for (index, trouble) in self::troubles(node).take(told).enumerate() {
            let more = if index + 1 == told && troubles > told {
                format!(" (and {} more)", troubles - told)
            } else {
                String::new()
            };
            lines.push(Line::styled(
                cut(&format!("! {trouble}{more}"), width),
                YELLOW,
            ));
        }
        lines
    }

    fn map<'n>(&self, node: &'n Node) -> Option<Map<'n>> {
        let status = node.status()?;
        Some(Map {
            layout: &status.layout,
            online: &status.online,
            reserved: &status.reserved,
            lost: &status.lost,
            owners: node.owners(),
        })
    }

    /// How it stands with a node, in one line.
    fn title(&self, number: usize, node: &Node, width: usize) -> Line<'static> {
        let name = self.names.get(number).map_or("", String::as_str);
        let mut parts = vec![(name.to_owned(), Style::new().add_modifier(Modifier::BOLD))];
        parts.extend(self.silence(node).map(|why| (why, RED)));
        if let Some(status) = node.status() {
            let reserved = status.reserved.intersection(&status.shared).len();
            let cpus = format!(
                "{}: {} own, {} shared ({reserved} reserved)",
                counted(status.online.len(), "CPU"),
                status.exclusive.len(),
                status.shared.len()
            );
            parts.push((cpus, Style::new()));
            if self.nodes.len() == 1 || self.view.node.is_some() {
                parts.extend(self.count());
            }
            parts.push((status.enforcement.to_string(), Style::new()));
        } else if node.error().is_none() {
            parts.push(("asked, no answer yet".to_owned(), DIM));
        }
        joined(parts, width)
    }

    /// Why a node is silent, and for how long.
    fn silence(&self, node: &Node) -> Option<String> {
        let (why, since) = node.error()?;
        let known = node
            .answered()
            .map(|at| format!("; what is shown is {} old", age(self.now, at)));
        let long = if self.now.saturating_sub(since).as_secs() > 0 {
            format!(" for {}", age(self.now, since))
        } else {
            String::new()
        };
        Some(format!(
            "no answer{long}: {why}{}",
            known.unwrap_or_default()
        ))
    }

    fn count(&self) -> Vec<(String, Style)> {
        let mut parts = Vec::new();
        let of = if self.rows.len() == self.pods {
            String::new()
        } else {
            format!("{} of ", self.rows.len())
        };
        let pods = format!("{of}{}", counted(self.pods, "pod"));
        parts.push((pods, Style::new()));
        if self.view.paused {
            parts.push(("paused".to_owned(), YELLOW));
        }
        parts
    }

    /// All nodes together.
    fn sum(&self, shown: &[(usize, &Node)], width: usize) -> Line<'static> {
        let statuses = || shown.iter().filter_map(|(_, node)| node.status());
        let silent = shown
            .iter()
            .filter(|(_, node)| node.error().is_some())
            .count();
        let online: usize = statuses().map(|status| status.online.len()).sum();
        let own: usize = statuses().map(|status| status.exclusive.len()).sum();
        let mut parts = vec![(
            counted(shown.len(), "node"),
            Style::new().add_modifier(Modifier::BOLD),
        )];
        if silent > 0 {
            parts.push((format!("{silent} without an answer"), RED));
        }
        parts.push((
            format!("{}: {own} own", counted(online, "CPU")),
            Style::new(),
        ));
        parts.extend(self.count());
        joined(parts, width)
    }

    /// One of many nodes.
    fn node_line(&self, number: usize, node: &Node, wide: usize, width: usize) -> Line<'static> {
        let name = left(self.names.get(number).map_or("", String::as_str), wide);
        if let Some(why) = self.silence(node) {
            return Line::from(vec![
                Span::raw(name),
                Span::styled(cut(&format!(" {why}"), width.saturating_sub(wide)), RED),
            ]);
        }
        let Some(status) = node.status() else {
            return Line::from(vec![
                Span::raw(name),
                Span::styled(
                    cut(" asked, no answer yet", width.saturating_sub(wide)),
                    DIM,
                ),
            ]);
        };
        let trouble = troubles(node)
            .next()
            .map(|trouble| format!("  ! {trouble}"))
            .unwrap_or_default();
        let text = format!(
            " {:>4} of {:<4} own  {:<9}",
            status.exclusive.len(),
            status.online.len(),
            status.enforcement.as_str()
        );
        let room = width.saturating_sub(wide + text.len() + 1);
        let mut line = Line::from(vec![
            Span::raw(name),
            Span::raw(cut(&text, width.saturating_sub(wide))),
        ]);
        if !trouble.is_empty() {
            line.push_span(Span::styled(cut(&trouble, room), YELLOW));
        } else if let Some(strip) = self.map(node).and_then(|map| map.strip(room)) {
            line.push_span(Span::raw(" "));
            line.spans.extend(strip.spans);
        }
        line
    }

    /// What is known of the chosen pod and has no column.
    fn details(&self, chosen: Option<usize>, width: usize) -> Vec<Line<'static>> {
        let Some(row) = chosen.and_then(|at| self.rows.get(at)) else {
            return Vec::new();
        };
        let total = &row.total;
        let mut parts = vec![format!("{}/{}", row.key.namespace, row.key.pod)];
        let words = [&row.qos, &row.role].into_iter().map(ToString::to_string);
        parts.extend(words.filter(|word| !word.is_empty()));
        if !row.job.as_str().is_empty() {
            parts.push(format!("job {}", row.job));
        }
        if let Some(effective) = total
            .effective
            .as_ref()
            .filter(|_| total.drift || total.own.is_none())
        {
            parts.push(format!("in force {effective}"));
        }
        parts.extend(
            total
                .runnable
                .map(|runnable| format!("{} runnable", number(runnable))),
        );
        parts.extend(
            total
                .run_delay
                .map(|delay| format!("waits {}/s", seconds(delay))),
        );
        parts.extend(
            total
                .switches
                .map(|switches| format!("{} switches/s", number(switches))),
        );
        parts.extend(
            total
                .throttled
                .filter(|times| *times > 0.0)
                .map(|times| format!("{} throttled/s", number(times))),
        );
        parts.extend(total.foreign_share().map(|share| {
            let error = total.foreign_error.zip(total.own.as_ref());
            let error = error
                .map(|(error, own)| format!(" ± {}", percent(error / own.len().max(1) as f64)));
            format!("foreign {}{}", percent(share), error.unwrap_or_default())
        }));
        let first = Line::styled(
            cut(&parts.join("  "), width),
            Style::new().add_modifier(Modifier::BOLD),
        );
        let note = row.notes.first().map(String::as_str).unwrap_or_default();
        let more = if row.notes.len() > 1 {
            format!(" (and {} more)", row.notes.len() - 1)
        } else {
            String::new()
        };
        vec![
            first,
            Line::styled(cut(&format!("{note}{more}"), width), YELLOW),
        ]
    }

    fn nothing(&self) -> String {
        if self.pods > 0 {
            return "no pod is wanted by the filter".to_owned();
        }
        if self.nodes.iter().any(|node| node.status().is_some()) {
            "no pods".to_owned()
        } else {
            "nothing is known yet".to_owned()
        }
    }

    /// The last line: keys, or the filter while it is written.
    fn keys(&self, width: usize) -> Line<'static> {
        let view = self.view;
        if view.editing {
            // The end of what is written is what is seen.
            let text = super::words::cut_front(&view.filter, width.saturating_sub(9));
            return Line::from(vec![
                Span::styled("filter: ", YELLOW),
                Span::raw(text),
                Span::raw("_"),
            ]);
        }
        let sort = format!(
            "s sort:{}{}",
            view.sort.heading().to_lowercase(),
            if view.reverse { "-" } else { "" }
        );
        let filter = if view.filter.is_empty() {
            "/ filter".to_owned()
        } else {
            format!("/ filter:{}", cut(&view.filter, 24))
        };
        let mut keys = vec![
            "q quit".to_owned(),
            "? help".to_owned(),
            sort,
            "r reverse".to_owned(),
            filter,
        ];
        if self.nodes.len() > 1 {
            keys.push("n node".to_owned());
        }
        keys.extend(["o own", "c containers", "p pause"].map(str::to_owned));
        Line::styled(cut(&keys.join("  "), width), DIM)
    }
}

fn troubles(node: &Node) -> impl Iterator<Item = String> {
    node.status().into_iter().flat_map(Status::troubles)
}

fn trouble_count(node: &Node) -> usize {
    node.status().map_or(0, Status::trouble_count)
}

fn age(now: Duration, then: Duration) -> String {
    format!("{} s", now.saturating_sub(then).as_secs())
}

/// Parts of a line side by side, as far as there is room.
fn joined(parts: Vec<(String, Style)>, width: usize) -> Line<'static> {
    let mut spans = Vec::new();
    let mut room = width;
    for (text, style) in parts {
        if !spans.is_empty() {
            let gap = 2.min(room);
            spans.push(Span::raw(" ".repeat(gap)));
            room -= gap;
        }
        let text = cut(&text, room);
        room = room.saturating_sub(console::measure_text_width(&text));
        spans.push(Span::styled(text, style));
    }
    Line::from(spans)
}

fn help() -> Vec<&'static str> {
    vec![
        "q, Esc, Ctrl-C  quit                   up, down, PgUp, PgDn  choose a pod",
        "s, S            sort by the next,      r  the other way round",
        "                the previous column    o  only pods with CPUs of their own",
        "/               filter: words that all have to be in a pod's name, node,",
        "                role, job, QoS class, own|shared|drift|running; !word: no such",
        "n, N, Enter     one node, the next, the chosen pod's; Esc: all of them",
        "c               containers             p  pause",
        "Ctrl-L          draw everything anew   Ctrl-Z  to the shell (fg: back)",
        "",
        "CPUS     the CPUs that it owns; ! if the kernel has something else in force",
        "USE      CPUs in use                   THR/CPU  threads, and CPUs for them",
        "RUN      threads that run or wait for a CPU",
        "FOREIGN  part of its own CPUs' time in which they did something else;",
        "         ~ where that can't be told from none",
        "WINDOW   from its first instruction until its CPUs were in force; 0: before",
        "IN/S     bytes per second by its interfaces, or by its sockets where it has",
        "OUT/S    none of its own (metrics.sockets)",
        "-        is not known; rates are means over the last six seconds or so",
        "",
        "any key: back to the table",
    ]
}
