//! [`FrameInput`]: a frame in lines, for a screen or as text of any length.

use std::sync::Arc;
use std::time::Duration;

use ratatui_core::style::{Color, Modifier, Style};
use ratatui_core::text::{Line, Span};

use super::map::{Map, legend};
use super::table::{Table, TableInput};
use super::view::View;
use super::words::{cut, left, number, percent, seconds};
use crate::client::{AgentStatus, MonitoredNode, PodRow};
use crate::text::counted;

#[derive(Debug)]
pub(super) struct FrameInput<'a> {
    pub(super) nodes: &'a [MonitoredNode],
    pub(super) names: &'a [String],
    /// The rows that the view selects, in its order.
    pub(super) rows: &'a [Arc<PodRow>],
    /// The number of pods before the filter.
    pub(super) pods: usize,
    pub(super) view: &'a View,
    /// The time since the start of the command.
    pub(super) now: Duration,
}

#[derive(Debug)]
pub(super) struct Frame {
    pub(super) lines: Vec<Line<'static>>,
    /// The number of the table's lines that fit.
    pub(super) page: usize,
}

/// A lower screen shows only the title, the table and the keys.
const MIN_FULL_HEIGHT: usize = 10;

const DIM: Style = Style::new().add_modifier(Modifier::DIM);
const RED: Style = Style::new().fg(Color::Red);
const YELLOW: Style = Style::new().fg(Color::Yellow);

impl FrameInput<'_> {
    pub(super) fn on_screen(&self, width: usize, height: usize) -> Frame {
        if self.view.help {
            let lines = help().into_iter().map(|line| Line::raw(cut(line, width)));
            return Frame {
                lines: lines.take(height).collect(),
                page: height,
            };
        }
        let keys = self.keys(width);
        let mut lines = self.head(
            width,
            if height < MIN_FULL_HEIGHT {
                1
            } else {
                (height / 3).max(2)
            },
        );
        let outdated = self.outdated();
        let content = self.content(&outdated);
        let table = Table::new(&content, width);
        let selected = self.view.selected(self.rows);
        let details = if height < MIN_FULL_HEIGHT {
            Vec::new()
        } else {
            self.details(selected, width)
        };
        // The heading and the keys take two lines.
        let page = height
            .saturating_sub(lines.len() + details.len() + 2)
            .max(1);
        let line = selected
            .map(|row| table.first_line(row))
            .unwrap_or_default();
        // The table scrolls by pages, so that a step within a page changes only two lines.
        let first = line / page * page;
        lines.push(table.heading());
        let body = lines.len();
        for (row, line) in table.lines(first, page) {
            let is_selected = Some(row) == selected;
            lines.push(if is_selected {
                line.patch_style(Style::new().add_modifier(Modifier::REVERSED))
            } else {
                line
            });
        }
        if self.rows.is_empty() {
            lines.push(Line::styled(cut(&self.empty_text(), width), DIM));
        }
        lines.resize(body + page, Line::default());
        lines.extend(details);
        lines.truncate(height.saturating_sub(1));
        lines.push(keys);
        Frame { lines, page }
    }

    /// The frame as text: every node, every map, every note.
    pub(super) fn as_text(&self, width: usize) -> Vec<Line<'static>> {
        let mut lines = Vec::new();
        let shown = self.shown();
        for &(number, node) in &shown {
            // An error may take a longer line.
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
            lines.extend(problems(node).map(|problem| Line::raw(format!("! {problem}"))));
        }
        let mut statuses = shown
            .iter()
            .filter_map(|(_, node)| node.status())
            .peekable();
        if statuses.peek().is_some() {
            let has_withheld = statuses.any(|status| !status.withheld.is_empty());
            lines.push(Line::raw(cut(legend(has_withheld), width)));
        }
        lines.push(Line::default());
        let outdated = self.outdated();
        let content = self.content(&outdated);
        let table = Table::with_whole_names(&content, width);
        lines.push(table.heading());
        lines.extend(table.lines(0, usize::MAX).into_iter().map(|(_, line)| line));
        if self.rows.is_empty() {
            lines.push(Line::raw(self.empty_text()));
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

    fn content<'s>(&'s self, outdated: &'s [bool]) -> TableInput<'s> {
        TableInput {
            rows: self.rows,
            names: self.names,
            has_several_nodes: self.nodes.len() > 1 && self.view.node.is_none(),
            outdated,
            sort: self.view.sort,
            containers: self.view.containers,
        }
    }

    /// For each node, whether the last response is missing.
    fn outdated(&self) -> Vec<bool> {
        self.nodes
            .iter()
            .map(|node| node.error().is_some())
            .collect()
    }

    fn shown(&self) -> Vec<(usize, &MonitoredNode)> {
        let is_shown = |number: usize| self.view.node.is_none_or(|node| node == number);
        self.nodes
            .iter()
            .enumerate()
            .filter(|(number, _)| is_shown(*number))
            .collect()
    }

    /// The lines above the table, at most `max_lines`.
    fn head(&self, width: usize, max_lines: usize) -> Vec<Line<'static>> {
        let shown = self.shown();
        if let [(number, node)] = shown[..] {
            return self.single_node(number, node, width, max_lines);
        }
        let mut lines = vec![self.sum(&shown, width)];
        // Nodes without a response and nodes with problems come first.
        let mut order: Vec<(usize, &MonitoredNode)> = shown;
        order.sort_by_key(|(_, node)| (node.error().is_none(), problem_count(node) == 0));
        let room = max_lines.saturating_sub(1);
        let all = order.len();
        let fit = if all > room {
            room.saturating_sub(1)
        } else {
            all
        };
        let name_width = self
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
                .map(|(number, node)| self.node_line(number, node, name_width, width)),
        );
        if fit < all && room > 0 {
            lines.push(Line::styled(
                cut(
                    &format!(
                        "… and {}; the key n shows the nodes in turn",
                        counted(all - fit, "more node")
                    ),
                    width,
                ),
                DIM,
            ));
        }
        lines.truncate(max_lines);
        lines
    }

    /// A node, with its CPU map and its problems.
    fn single_node(
        &self,
        number: usize,
        node: &MonitoredNode,
        width: usize,
        max_lines: usize,
    ) -> Vec<Line<'static>> {
        let mut lines = vec![self.title(number, node, width)];
        let problems = problem_count(node);
        let room = max_lines.saturating_sub(1);
        let shown = problems.min(2).min(room);
        let mut map: Vec<Line<'static>> = self
            .map(node)
            .iter()
            .flat_map(|map| map.lines(width))
            .collect();
        let rows = room.saturating_sub(shown);
        if map.len() > rows {
            map.truncate(rows.saturating_sub(1));
            if rows > 0 {
                map.push(Line::styled(
                    cut(
                        "… the map is cut: pinfold top --once shows the full map",
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
            let status = node.status();
            let has_withheld = status.is_some_and(|status| !status.withheld.is_empty());
            lines.push(Line::styled(cut(legend(has_withheld), width), DIM));
        }
        for (index, problem) in self::problems(node).take(shown).enumerate() {
            let more = if index + 1 == shown && problems > shown {
                format!(" (and {} more)", problems - shown)
            } else {
                String::new()
            };
            lines.push(Line::styled(
                cut(&format!("! {problem}{more}"), width),
                YELLOW,
            ));
        }
        lines
    }

    fn map<'n>(&self, node: &'n MonitoredNode) -> Option<Map<'n>> {
        let status = node.status()?;
        Some(Map {
            layout: &status.layout,
            online: &status.online,
            reserved: &status.reserved,
            withheld: &status.withheld,
            lost: &status.lost,
            owners: node.owners(),
        })
    }

    fn title(&self, number: usize, node: &MonitoredNode, width: usize) -> Line<'static> {
        let name = self.names.get(number).map_or("", String::as_str);
        let mut parts = vec![(name.to_owned(), Style::new().add_modifier(Modifier::BOLD))];
        parts.extend(self.error(node).map(|error| (error, RED)));
        if let Some(status) = node.status() {
            let reserved = status.reserved.intersection(&status.shared).len();
            let cpus = format!(
                "{}: {} exclusive, {} shared ({reserved} reserved)",
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
            parts.push(("no response yet".to_owned(), DIM));
        }
        joined(parts, width)
    }

    /// Why the last response is missing, and the time since the first failure.
    fn error(&self, node: &MonitoredNode) -> Option<String> {
        let (error, since) = node.error()?;
        let age_of_values = node
            .last_response()
            .map(|at| format!("; the values are {} old", age(self.now, at)));
        let duration = if self.now.saturating_sub(since).as_secs() > 0 {
            format!(" for {}", age(self.now, since))
        } else {
            String::new()
        };
        Some(format!(
            "no response{duration}: {error}{}",
            age_of_values.unwrap_or_default()
        ))
    }

    /// The number of pods, before and after the filter.
    fn count(&self) -> Vec<(String, Style)> {
        let mut parts = Vec::new();
        let selected = if self.rows.len() == self.pods {
            String::new()
        } else {
            format!("{} of ", self.rows.len())
        };
        let pods = format!("{selected}{}", counted(self.pods, "pod"));
        parts.push((pods, Style::new()));
        if self.view.paused {
            parts.push(("paused".to_owned(), YELLOW));
        }
        parts
    }

    fn sum(&self, shown: &[(usize, &MonitoredNode)], width: usize) -> Line<'static> {
        let statuses = || shown.iter().filter_map(|(_, node)| node.status());
        let failed = shown
            .iter()
            .filter(|(_, node)| node.error().is_some())
            .count();
        let online: usize = statuses().map(|status| status.online.len()).sum();
        let exclusive: usize = statuses().map(|status| status.exclusive.len()).sum();
        let mut parts = vec![(
            counted(shown.len(), "node"),
            Style::new().add_modifier(Modifier::BOLD),
        )];
        if failed > 0 {
            parts.push((format!("{failed} without a response"), RED));
        }
        parts.push((
            format!("{}: {exclusive} exclusive", counted(online, "CPU")),
            Style::new(),
        ));
        parts.extend(self.count());
        joined(parts, width)
    }

    fn node_line(
        &self,
        number: usize,
        node: &MonitoredNode,
        name_width: usize,
        width: usize,
    ) -> Line<'static> {
        let name = left(
            self.names.get(number).map_or("", String::as_str),
            name_width,
        );
        if let Some(error) = self.error(node) {
            return Line::from(vec![
                Span::raw(name),
                Span::styled(
                    cut(&format!(" {error}"), width.saturating_sub(name_width)),
                    RED,
                ),
            ]);
        }
        let Some(status) = node.status() else {
            return Line::from(vec![
                Span::raw(name),
                Span::styled(
                    cut(" no response yet", width.saturating_sub(name_width)),
                    DIM,
                ),
            ]);
        };
        let problem = problems(node)
            .next()
            .map(|problem| format!("  ! {problem}"))
            .unwrap_or_default();
        let text = format!(
            " {:>4} of {:<4} exclusive  {:<9}",
            status.exclusive.len(),
            status.online.len(),
            status.enforcement.as_str()
        );
        let room = width.saturating_sub(name_width + text.len() + 1);
        let mut line = Line::from(vec![
            Span::raw(name),
            Span::raw(cut(&text, width.saturating_sub(name_width))),
        ]);
        if !problem.is_empty() {
            line.push_span(Span::styled(cut(&problem, room), YELLOW));
        } else if let Some(strip) = self.map(node).and_then(|map| map.strip(room)) {
            line.push_span(Span::raw(" "));
            line.spans.extend(strip.spans);
        }
        line
    }

    /// The values of the selected pod that have no column.
    fn details(&self, selected: Option<usize>, width: usize) -> Vec<Line<'static>> {
        let Some(row) = selected.and_then(|position| self.rows.get(position)) else {
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
            .filter(|_| total.drift || total.assigned.is_none())
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
        parts.extend(total.interference_share().map(|share| {
            let error = total.interference_error.zip(total.assigned.as_ref());
            let error = error
                .map(|(error, cpus)| format!(" ± {}", percent(error / cpus.len().max(1) as f64)));
            format!(
                "interference {}{}",
                percent(share),
                error.unwrap_or_default()
            )
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

    fn empty_text(&self) -> String {
        if self.pods > 0 {
            return "no pod passes the filter".to_owned();
        }
        if self.nodes.iter().any(|node| node.status().is_some()) {
            "no pods".to_owned()
        } else {
            "no response yet".to_owned()
        }
    }

    /// The last line: the keys, or the filter while the user types it.
    fn keys(&self, width: usize) -> Line<'static> {
        let view = self.view;
        if view.editing {
            // The end of a long filter is what the user sees.
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
        keys.extend(["o owners", "c containers", "p pause"].map(str::to_owned));
        Line::styled(cut(&keys.join("  "), width), DIM)
    }
}

fn problems(node: &MonitoredNode) -> impl Iterator<Item = String> {
    node.status().into_iter().flat_map(AgentStatus::problems)
}

fn problem_count(node: &MonitoredNode) -> usize {
    node.status().map_or(0, AgentStatus::problem_count)
}

fn age(now: Duration, then: Duration) -> String {
    format!("{} s", now.saturating_sub(then).as_secs())
}

/// The parts of a line side by side, cut to the width.
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
        "q, Esc, Ctrl-C  quit                    up, down, PgUp, PgDn  select a pod",
        "s, S            sort by the next,       r  reverse the order",
        "                the previous column     o  only pods with exclusive CPUs",
        "/               filter: words that a pod's name, node, role, job, QoS class or",
        "                state (exclusive, shared, drift, running) contains; !word excludes",
        "n, N, Enter     next, previous, selected pod's node; Esc: all nodes",
        "c               containers              p  pause",
        "Ctrl-L          draw every cell again   Ctrl-Z  back to the shell (fg resumes)",
        "",
        "CPUS     exclusive CPUs; ! if the kernel reports different effective CPUs",
        "USE      CPUs in use                    THR/CPU  threads, and their CPUs",
        "RUN      threads that run or wait for a CPU",
        "INTERF   share of the exclusive CPUs' time that was spent on other work;",
        "         ~ if the measurement error is as large",
        "UNPINNED time from the first instruction until the CPUs were in force;",
        "         0: the CPUs were in force before",
        "IN/S     bytes per second of the pod's interfaces, or of the pod's sockets",
        "OUT/S    if the pod uses the host's network (metrics.sockets)",
        "-        unknown; rates are means over about six seconds",
        "",
        "any key  return to the table",
    ]
}
