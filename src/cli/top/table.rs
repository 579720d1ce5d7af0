//! The table of pods: which columns there is room for, and what stands in them.

use std::sync::Arc;

use console::measure_text_width;
use ratatui_core::style::{Color, Modifier, Style};
use ratatui_core::text::{Line, Span};

use super::map;
use super::model::{Figures, PodKey, Row};
use super::order::Column;
use super::status::Clean;
use super::words::{self, bytes, cut_front, left, number, percent, right, seconds};

/// Columns of the owner's sign, and of the gap after it.
const SIGN: usize = 2;

/// No name of a pod is squeezed into less, as long as there is another column to leave out.
const NARROWEST_POD: usize = 16;

/// In which order columns are left out where there is no room: never a pod's name, nor what it is sorted by.
const EXPENDABLE: [Column; 10] = [
    Column::Runnable,
    Column::Use,
    Column::Role,
    Column::Window,
    Column::Foreign,
    Column::Out,
    Column::In,
    Column::Threads,
    Column::Node,
    Column::Cpus,
];

/// A table, of which only those lines are made that are seen.
#[derive(Debug)]
pub(super) struct Table<'a> {
    content: &'a Content<'a>,
    columns: Vec<(Column, usize)>,
}

/// What is drawn.
#[derive(Debug, Clone, Copy)]
pub(super) struct Content<'a> {
    pub(super) rows: &'a [Arc<Row>],
    /// Of the nodes.
    pub(super) names: &'a [String],
    /// Whether rows of several nodes may be among them.
    pub(super) nodes: bool,
    /// Which nodes don't answer: what is known of them is old.
    pub(super) silent: &'a [bool],
    pub(super) sort: Column,
    pub(super) containers: bool,
}

// === impl Table ===

impl<'a> Table<'a> {
    /// A table in so many columns.
    pub(super) fn new(content: &'a Content<'a>, width: usize) -> Self {
        Self {
            content,
            columns: columns(content, width),
        }
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
        // The first gap is the second column of the sign.
        Line::from_iter(std::iter::once(Span::raw(" ")).chain(heading))
    }

    /// In which line a row begins.
    pub(super) fn place(&self, row: usize) -> usize {
        self.content
            .rows
            .iter()
            .take(row)
            .map(|row| 1 + self.inner(row).len())
            .sum()
    }

    /// So many lines from this one on, each with the number of the row that it shows.
    pub(super) fn lines(&self, first: usize, most: usize) -> Vec<(usize, Line<'static>)> {
        let all = self
            .content
            .rows
            .iter()
            .enumerate()
            .flat_map(|(number, row)| {
                let inner = self
                    .inner(row)
                    .iter()
                    .map(|(name, figures)| Some((name.as_str(), figures)));
                std::iter::once(None)
                    .chain(inner)
                    .map(move |container| (number, row, container))
            });
        let seen = all.skip(first).take(most);
        seen.map(|(number, row, container)| {
            (number, line(self.content, row, &self.columns, container))
        })
        .collect()
    }

    /// The containers that have lines of their own.
    fn inner<'r>(&self, row: &'r Row) -> &'r [(Clean, Figures)] {
        if self.content.containers && row.containers.len() > 1 {
            &row.containers
        } else {
            &[]
        }
    }
}

/// The columns that there is room for, with their widths.
fn columns(content: &Content<'_>, width: usize) -> Vec<(Column, usize)> {
    let widest = |texts: &mut dyn Iterator<Item = usize>, least: usize, most: usize| {
        texts.max().unwrap_or_default().clamp(least, most)
    };
    let mut columns: Vec<(Column, usize)> = Column::ALL
        .into_iter()
        .filter(|column| *column != Column::Node || content.nodes)
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
                    NARROWEST_POD,
                    60,
                ),
                Column::Use | Column::Runnable => 5,
                Column::Window => 6,
                Column::Threads | Column::Foreign | Column::In | Column::Out => 7,
            };
            (column, width)
        })
        .collect();
    let total = |columns: &[(Column, usize)], pod: usize| {
        let width =
            |(column, width): &(Column, usize)| if *column == Column::Pod { pod } else { *width };
        SIGN - 1
            + columns
                .iter()
                .map(|column| width(column) + 1)
                .sum::<usize>()
    };
    for column in EXPENDABLE {
        if total(&columns, NARROWEST_POD) <= width {
            break;
        }
        columns.retain(|(other, _)| *other != column || column == content.sort);
    }
    let others = total(&columns, 0);
    for (column, wide) in &mut columns {
        if *column == Column::Pod {
            *wide = (*wide).min(width.saturating_sub(others)).max(1);
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

fn full_name(row: &Row) -> String {
    format!("{}/{}", row.key.namespace, row.key.pod)
}

/// A pod, or one of its containers.
fn line(
    content: &Content<'_>,
    row: &Row,
    columns: &[(Column, usize)],
    container: Option<(&str, &Figures)>,
) -> Line<'static> {
    let figures = container.map_or(&row.total, |(_, figures)| figures);
    let silent = content.silent.get(row.node).copied().unwrap_or_default();
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
            (Column::In, None) => told(row.receive, bytes),
            (Column::Out, None) => told(row.transmit, bytes),
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
    if silent || !figures.running && row.total.own.is_none() {
        line.style(Style::new().add_modifier(Modifier::DIM))
    } else {
        line
    }
}

/// A pod's name in so many columns: without its namespace first, without its beginning then.
fn name(row: &Row, width: usize) -> String {
    let full = full_name(row);
    if measure_text_width(&full) <= width {
        full
    } else {
        cut_front(row.key.pod.as_str(), width)
    }
}

fn told(value: Option<f64>, word: fn(f64) -> String) -> String {
    value.map_or_else(|| "-".to_owned(), word)
}

fn text(column: Column, figures: &Figures) -> String {
    match column {
        Column::Cpus => cpus(figures),
        Column::Use => told(figures.usage, number),
        Column::Threads => match (figures.threads, figures.cpus()) {
            (None, _) => "-".to_owned(),
            (Some(threads), None) => format!("{threads}/-"),
            (Some(threads), Some(cpus)) => format!("{threads}/{}", cpus.len()),
        },
        Column::Runnable => told(figures.runnable, number),
        Column::Foreign => match figures.foreign_share() {
            None => "-".to_owned(),
            Some(share) if figures.foreign_is_doubtful() => format!("~{}", percent(share)),
            Some(share) => percent(share),
        },
        Column::Window => told(figures.window, seconds),
        Column::Node | Column::Pod | Column::Role | Column::In | Column::Out => String::new(),
    }
}

/// The CPUs that it owns, with a mark where the kernel says otherwise.
fn cpus(figures: &Figures) -> String {
    match &figures.own {
        Some(own) if figures.drift => format!("{}!", words::cpus(own)),
        Some(own) => words::cpus(own),
        None if !figures.running => "-".to_owned(),
        None => "shared".to_owned(),
    }
}

/// How what a person should look at stands out.
fn alarm(column: Column, figures: &Figures) -> Style {
    let foreign = figures
        .foreign_share()
        .filter(|_| !figures.foreign_is_doubtful())
        .unwrap_or_default();
    match column {
        Column::Cpus if figures.drift => Style::new().fg(Color::Red),
        Column::Threads if figures.finding => Style::new().fg(Color::Yellow),
        Column::Foreign if foreign >= 0.2 => Style::new().fg(Color::Red),
        Column::Foreign if foreign >= 0.05 => Style::new().fg(Color::Yellow),
        Column::Window if figures.window.is_some_and(|seconds| seconds >= 1.0) => {
            Style::new().fg(Color::Yellow)
        }
        _ => Style::new(),
    }
}
