//! The table of pods: the columns that fit into the width, and their cells.

use std::sync::Arc;

use console::measure_text_width;
use ratatui_core::style::{Color, Modifier, Style};
use ratatui_core::text::{Line, Span};

use super::map;
use super::order::Column;
use super::words::{self, bytes, cut_front, left, number, percent, right, seconds};
use crate::client::{PodKey, PodRow, RowFigures, SafeText};

/// The width of the owner's sign and of the gap after it.
const SIGN_WIDTH: usize = 2;

/// The least width of the pods' names while another column can be left out.
const MIN_POD_WIDTH: usize = 16;

/// The columns in the order in which a narrow table drops them. The pod's name and the sorted
/// column stay.
const DROP_ORDER: [Column; 10] = [
    Column::Runnable,
    Column::Use,
    Column::Role,
    Column::Unpinned,
    Column::Interference,
    Column::Out,
    Column::In,
    Column::Threads,
    Column::Node,
    Column::Cpus,
];

/// A table that makes only the visible lines.
#[derive(Debug)]
pub(super) struct Table<'a> {
    content: &'a TableInput<'a>,
    columns: Vec<(Column, usize)>,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct TableInput<'a> {
    pub(super) rows: &'a [Arc<PodRow>],
    pub(super) names: &'a [String],
    /// Whether the rows belong to several nodes.
    pub(super) has_several_nodes: bool,
    /// For each node, whether the last response is missing and the rows are old.
    pub(super) outdated: &'a [bool],
    pub(super) sort: Column,
    pub(super) containers: bool,
}

// === impl Table ===

impl<'a> Table<'a> {
    pub(super) fn new(content: &'a TableInput<'a>, width: usize) -> Self {
        Self {
            content,
            columns: columns(content, width),
        }
    }

    /// A table for a text, with the columns that fit the width. Names are never cut, because a text
    /// can be scrolled and searched.
    pub(super) fn with_whole_names(content: &'a TableInput<'a>, width: usize) -> Self {
        let mut table = Self::new(content, width);
        let longest = content.rows.iter().flat_map(|row| {
            let containers = table.containers(row).iter();
            let containers = containers.map(|(name, _)| 2 + measure_text_width(name.as_str()));
            std::iter::once(measure_text_width(&full_name(row))).chain(containers)
        });
        let longest = longest.max().unwrap_or(0);
        for (column, width) in &mut table.columns {
            if *column == Column::Pod {
                *width = longest.max(*width);
            }
        }
        table
    }

    pub(super) fn heading(&self) -> Line<'static> {
        let heading = self.columns.iter().flat_map(|&(column, width)| {
            let style = Style::new().add_modifier(if column == self.content.sort {
                Modifier::BOLD | Modifier::UNDERLINED
            } else {
                Modifier::BOLD
            });
            let text = if is_text(column) {
                left(column.heading(), width)
            } else {
                right(column.heading(), width)
            };
            [Span::raw(" "), Span::styled(text, style)]
        });
        // The gap before the first column belongs to the sign.
        Line::from_iter(std::iter::once(Span::raw(" ")).chain(heading))
    }

    pub(super) fn first_line(&self, row: usize) -> usize {
        self.content
            .rows
            .iter()
            .take(row)
            .map(|row| 1 + self.containers(row).len())
            .sum()
    }

    /// At most `count` lines from line `first` on, each with the index of the row.
    pub(super) fn lines(&self, first: usize, count: usize) -> Vec<(usize, Line<'static>)> {
        let all = self
            .content
            .rows
            .iter()
            .enumerate()
            .flat_map(|(number, row)| {
                let containers = self
                    .containers(row)
                    .iter()
                    .map(|(name, figures)| Some((name.as_str(), figures)));
                std::iter::once(None)
                    .chain(containers)
                    .map(move |container| (number, row, container))
            });
        let visible = all.skip(first).take(count);
        visible
            .map(|(number, row, container)| {
                (number, line(self.content, row, &self.columns, container))
            })
            .collect()
    }

    /// The containers that have separate lines.
    fn containers<'r>(&self, row: &'r PodRow) -> &'r [(SafeText, RowFigures)] {
        if self.content.containers && row.containers.len() > 1 {
            &row.containers
        } else {
            &[]
        }
    }
}

fn columns(content: &TableInput<'_>, width: usize) -> Vec<(Column, usize)> {
    let widest = |texts: &mut dyn Iterator<Item = usize>, least: usize, most: usize| {
        texts.max().unwrap_or_default().clamp(least, most)
    };
    let mut columns: Vec<(Column, usize)> = Column::ALL
        .into_iter()
        .filter(|column| *column != Column::Node || content.has_several_nodes)
        .map(|column| {
            let width = match column {
                Column::Node => widest(
                    &mut content.names.iter().map(|name| measure_text_width(name)),
                    4,
                    16,
                ),
                Column::Role => widest(
                    &mut content
                        .rows
                        .iter()
                        .map(|row| measure_text_width(row.role.as_str())),
                    4,
                    9,
                ),
                Column::Cpus => widest(
                    &mut content.rows.iter().map(|row| cpus(&row.total).len()),
                    6,
                    14,
                ),
                Column::Pod => widest(
                    &mut content.rows.iter().map(|row| {
                        let PodKey { namespace, pod, .. } = &row.key;
                        measure_text_width(namespace.as_str())
                            + 1
                            + measure_text_width(pod.as_str())
                    }),
                    MIN_POD_WIDTH,
                    60,
                ),
                Column::Use | Column::Runnable => 5,
                Column::Unpinned => 8,
                Column::Threads | Column::Interference | Column::In | Column::Out => 7,
            };
            (column, width)
        })
        .collect();
    let total = |columns: &[(Column, usize)], pod: usize| {
        let width =
            |(column, width): &(Column, usize)| if *column == Column::Pod { pod } else { *width };
        SIGN_WIDTH - 1
            + columns
                .iter()
                .map(|column| width(column) + 1)
                .sum::<usize>()
    };
    for column in DROP_ORDER {
        if total(&columns, MIN_POD_WIDTH) <= width {
            break;
        }
        columns.retain(|(other, _)| *other != column || column == content.sort);
    }
    let other_columns = total(&columns, 0);
    for (column, pod_width) in &mut columns {
        if *column == Column::Pod {
            *pod_width = (*pod_width).min(width.saturating_sub(other_columns)).max(1);
        }
    }
    columns
}

fn is_text(column: Column) -> bool {
    matches!(
        column,
        Column::Node | Column::Pod | Column::Role | Column::Cpus
    )
}

fn full_name(row: &PodRow) -> String {
    format!("{}/{}", row.key.namespace, row.key.pod)
}

/// The line of a pod, or of one of its containers.
fn line(
    content: &TableInput<'_>,
    row: &PodRow,
    columns: &[(Column, usize)],
    container: Option<(&str, &RowFigures)>,
) -> Line<'static> {
    let figures = container.map_or(&row.total, |(_, figures)| figures);
    let is_outdated = content.outdated.get(row.node).copied().unwrap_or_default();
    let sign = match (row.letter, container) {
        (Some(letter), None) => Span::styled(letter.to_string(), map::style(letter)),
        _ => Span::raw(" "),
    };
    let mut spans = vec![sign];
    for &(column, width) in columns {
        let text = match (column, container) {
            (Column::Pod, Some((name, _))) => {
                format!("  {}", cut_front(name, width.saturating_sub(2)))
            }
            (Column::Pod, None) => name(row, width),
            (Column::Node | Column::Role | Column::In | Column::Out, Some(_)) => String::new(),
            (Column::Node, None) => content.names.get(row.node).cloned().unwrap_or_default(),
            (Column::Role, None) => row.role.to_string(),
            (Column::In, None) => or_dash(row.receive, bytes),
            (Column::Out, None) => or_dash(row.transmit, bytes),
            _ => text(column, figures),
        };
        let text = if is_text(column) {
            left(&text, width)
        } else {
            right(&text, width)
        };
        spans.push(Span::raw(" "));
        spans.push(Span::styled(text, alarm(column, figures)));
    }
    let line = Line::from(spans);
    if is_outdated || !figures.running && row.total.assigned.is_none() {
        line.style(Style::new().add_modifier(Modifier::DIM))
    } else {
        line
    }
}

/// A pod's name. If the width is short, the namespace is left out, and then the beginning of the
/// name.
fn name(row: &PodRow, width: usize) -> String {
    let full = full_name(row);
    if measure_text_width(&full) <= width {
        full
    } else {
        cut_front(row.key.pod.as_str(), width)
    }
}

fn or_dash(value: Option<f64>, word: fn(f64) -> String) -> String {
    value.map_or_else(|| "-".to_owned(), word)
}

fn text(column: Column, figures: &RowFigures) -> String {
    match column {
        Column::Cpus => cpus(figures),
        Column::Use => or_dash(figures.usage, number),
        Column::Threads => match (figures.threads, figures.cpus()) {
            (None, _) => "-".to_owned(),
            (Some(threads), None) => format!("{threads}/-"),
            (Some(threads), Some(cpus)) => format!("{threads}/{}", cpus.len()),
        },
        Column::Runnable => or_dash(figures.runnable, number),
        Column::Interference => match figures.interference_share() {
            None => "-".to_owned(),
            Some(share) if figures.interference_is_uncertain() => format!("~{}", percent(share)),
            Some(share) => percent(share),
        },
        Column::Unpinned => or_dash(figures.unpinned, seconds),
        Column::Node | Column::Pod | Column::Role | Column::In | Column::Out => String::new(),
    }
}

/// The exclusive CPUs, with an exclamation mark if the effective CPUs differ.
fn cpus(figures: &RowFigures) -> String {
    match &figures.assigned {
        Some(cpus) if figures.drift => format!("{}!", words::cpus(cpus)),
        Some(cpus) => words::cpus(cpus),
        None if !figures.running => "-".to_owned(),
        None => "shared".to_owned(),
    }
}

/// The style of a cell: problems have a colour.
fn alarm(column: Column, figures: &RowFigures) -> Style {
    let interference = figures
        .interference_share()
        .filter(|_| !figures.interference_is_uncertain())
        .unwrap_or_default();
    match column {
        Column::Cpus if figures.drift => Style::new().fg(Color::Red),
        Column::Threads if figures.threads_unexpected => Style::new().fg(Color::Yellow),
        Column::Interference if interference >= 0.2 => Style::new().fg(Color::Red),
        Column::Interference if interference >= 0.05 => Style::new().fg(Color::Yellow),
        Column::Unpinned if figures.unpinned.is_some_and(|seconds| seconds >= 1.0) => {
            Style::new().fg(Color::Yellow)
        }
        _ => Style::new(),
    }
}
