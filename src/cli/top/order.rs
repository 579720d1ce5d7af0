//! Which rows are shown, and in which order: [`Column`], [`Filter`].

use std::cmp::Ordering;
use std::sync::Arc;

use clap::ValueEnum;

use crate::client::PodRow;
use crate::scene::natural;

/// A column of the table. Each column can sort the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Column {
    /// Name of the node.
    Node,
    /// Namespace and name of the pod.
    Pod,
    /// Role of the pod in the training job.
    Role,
    /// Number of exclusive CPUs.
    Cpus,
    /// CPUs in use.
    Use,
    /// Threads per CPU.
    Threads,
    /// Runnable threads: running, or waiting for a CPU.
    Runnable,
    /// Share of the exclusive CPUs' time spent on other work.
    Interference,
    /// Time from the first instruction until the assignment took effect.
    Unpinned,
    /// Bytes received per second.
    In,
    /// Bytes sent per second.
    Out,
}

impl Column {
    /// All columns, from left to right.
    pub(super) const ALL: [Self; 11] = [
        Self::Node,
        Self::Pod,
        Self::Role,
        Self::Cpus,
        Self::Use,
        Self::Threads,
        Self::Runnable,
        Self::Interference,
        Self::Unpinned,
        Self::In,
        Self::Out,
    ];

    pub(super) fn heading(self) -> &'static str {
        match self {
            Self::Node => "NODE",
            Self::Pod => "POD",
            Self::Role => "ROLE",
            Self::Cpus => "CPUS",
            Self::Use => "USE",
            Self::Threads => "THR/CPU",
            Self::Runnable => "RUN",
            Self::Interference => "INTERF",
            Self::Unpinned => "UNPINNED",
            Self::In => "IN/S",
            Self::Out => "OUT/S",
        }
    }

    /// The next or the previous column, in a circle.
    pub(super) fn next(self, forward: bool) -> Self {
        let count = Self::ALL.len();
        let position = Self::ALL
            .iter()
            .position(|column| *column == self)
            .unwrap_or_default();
        let step = if forward { 1 } else { count - 1 };
        Self::ALL
            .get((position + step) % count)
            .copied()
            .unwrap_or(self)
    }

    /// Whether the column sorts ascending, as names do. Numbers sort descending, because large ones
    /// matter most.
    fn is_name(self) -> bool {
        matches!(self, Self::Node | Self::Pod | Self::Role)
    }

    fn number(self, row: &PodRow) -> Option<f64> {
        match self {
            Self::Node | Self::Pod | Self::Role => None,
            Self::Cpus => row.total.assigned.as_ref().map(|cpus| cpus.len() as f64),
            Self::Use => row.total.usage,
            Self::Threads => row.total.threads_per_cpu(),
            Self::Runnable => row.total.runnable,
            Self::Interference => row.total.interference_share(),
            Self::Unpinned => row.total.unpinned,
            Self::In => row.receive,
            Self::Out => row.transmit,
        }
    }

    fn compare(self, left: &PodRow, right: &PodRow, names: &[String]) -> Ordering {
        match self {
            Self::Node => natural(node(left, names), node(right, names)),
            Self::Pod => Ordering::Equal,
            Self::Role => left.role.cmp(&right.role),
            _ => match (self.number(left), self.number(right)) {
                (Some(left), Some(right)) => right.total_cmp(&left),
                _ => Ordering::Equal,
            },
        }
    }
}

fn node<'a>(row: &PodRow, names: &'a [String]) -> &'a str {
    names.get(row.node).map_or("", String::as_str)
}

/// Sorts rows; `names` are the names of the nodes. Unknown numbers stand at the end in both orders.
pub(super) fn sort(rows: &mut [Arc<PodRow>], by: Column, reverse: bool, names: &[String]) {
    let is_unknown = |row: &PodRow| !by.is_name() && by.number(row).is_none();
    let directed = |order: Ordering| if reverse { order.reverse() } else { order };
    let name = |left: &PodRow, right: &PodRow| {
        natural(left.key.namespace.as_str(), right.key.namespace.as_str())
            .then_with(|| natural(left.key.pod.as_str(), right.key.pod.as_str()))
    };
    rows.sort_by(|left: &Arc<PodRow>, right: &Arc<PodRow>| {
        let by_name = || match by {
            Column::Pod => directed(name(left, right)),
            _ => name(left, right),
        };
        is_unknown(left)
            .cmp(&is_unknown(right))
            .then_with(|| directed(by.compare(left, right, names)))
            .then_with(by_name)
            .then_with(|| natural(node(left, names), node(right, names)))
            // A running pod stands above a terminated one of the same name.
            .then_with(|| right.total.running.cmp(&left.total.running))
            .then_with(|| left.key.cmp(&right.key))
    });
}

/// The words of a filter. A pod passes if each word is a part of its namespace, name, node, role,
/// job, QoS class or state (exclusive, shared, drift, running). A word after an exclamation mark
/// must be a part of none.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Filter(Vec<FilterWord>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct FilterWord {
    text: String,
    /// Whether the text must be absent.
    is_excluded: bool,
}

// === impl FilterWord ===

impl FilterWord {
    fn new(text: &str, is_excluded: bool) -> Self {
        Self {
            text: text.to_lowercase(),
            is_excluded,
        }
    }
}

// === impl Filter ===

impl Filter {
    pub(super) fn new(text: &str) -> Self {
        let words = text
            .split_whitespace()
            .map(|word| match word.strip_prefix('!') {
                Some(word) => FilterWord::new(word, true),
                None => FilterWord::new(word, false),
            });
        Self(words.filter(|word| !word.text.is_empty()).collect())
    }

    /// Whether a row passes; `names` are the names of the nodes.
    pub(super) fn passes(&self, row: &PodRow, names: &[String]) -> bool {
        if self.0.is_empty() {
            return true;
        }
        let cpus = if row.total.assigned.is_some() {
            "exclusive"
        } else {
            "shared"
        };
        let drift = if row.total.drift { "drift" } else { "" };
        let running = if row.total.running { "running" } else { "" };
        let (namespace, pod) = (&row.key.namespace, &row.key.pod);
        let text = format!(
            "{namespace}/{pod} {} {} {} {} {cpus} {drift} {running}",
            node(row, names),
            row.role,
            row.job,
            row.qos
        );
        let text = text.to_lowercase();
        self.0
            .iter()
            .all(|word| text.contains(&word.text) != word.is_excluded)
    }
}
