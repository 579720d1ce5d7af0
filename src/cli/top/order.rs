//! What of the rows is shown, and in which order: [`Column`], [`Filter`].

use std::cmp::Ordering;
use std::sync::Arc;

use clap::ValueEnum;

use super::model::Row;
use crate::scene::natural;

/// A column of the table; what it can be sorted by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Column {
    /// Name of the node.
    Node,
    /// Namespace and name of the pod.
    Pod,
    /// Its role in its training job.
    Role,
    /// CPUs that it owns.
    Cpus,
    /// CPUs in use.
    Use,
    /// Threads for each of its CPUs.
    Threads,
    /// Threads that run or wait for a CPU.
    Runnable,
    /// The part of its own CPUs' time that others had.
    Foreign,
    /// Time from its first instruction until its CPUs were in force.
    Window,
    /// Bytes received per second.
    In,
    /// Bytes sent per second.
    Out,
}

impl Column {
    /// All of them, from left to right.
    pub(super) const ALL: [Self; 11] = [
        Self::Node,
        Self::Pod,
        Self::Role,
        Self::Cpus,
        Self::Use,
        Self::Threads,
        Self::Runnable,
        Self::Foreign,
        Self::Window,
        Self::In,
        Self::Out,
    ];

    /// What stands above it.
    pub(super) fn heading(self) -> &'static str {
        match self {
            Self::Node => "NODE",
            Self::Pod => "POD",
            Self::Role => "ROLE",
            Self::Cpus => "CPUS",
            Self::Use => "USE",
            Self::Threads => "THR/CPU",
            Self::Runnable => "RUN",
            Self::Foreign => "FOREIGN",
            Self::Window => "WINDOW",
            Self::In => "IN/S",
            Self::Out => "OUT/S",
        }
    }

    /// The column that many (also negative) places further on, around the end.
    pub(super) fn next(self, forward: bool) -> Self {
        let count = Self::ALL.len();
        let at = Self::ALL
            .iter()
            .position(|column| *column == self)
            .unwrap_or_default();
        let step = if forward { 1 } else { count - 1 };
        Self::ALL.get((at + step) % count).copied().unwrap_or(self)
    }

    /// Names and the like go up, numbers down: what a person looks for stands at the top.
    fn is_name(self) -> bool {
        matches!(self, Self::Node | Self::Pod | Self::Role)
    }

    fn number(self, row: &Row) -> Option<f64> {
        match self {
            Self::Node | Self::Pod | Self::Role => None,
            Self::Cpus => row.total.own.as_ref().map(|own| own.len() as f64),
            Self::Use => row.total.usage,
            Self::Threads => row.total.crowd(),
            Self::Runnable => row.total.runnable,
            Self::Foreign => row.total.foreign_share(),
            Self::Window => row.total.window,
            Self::In => row.receive,
            Self::Out => row.transmit,
        }
    }

    fn compare(self, one: &Row, other: &Row, names: &[String]) -> Ordering {
        match self {
            Self::Node => natural(node(one, names), node(other, names)),
            Self::Pod => Ordering::Equal,
            Self::Role => one.role.cmp(&other.role),
            _ => match (self.number(one), self.number(other)) {
                (Some(one), Some(other)) => other.total_cmp(&one),
                _ => Ordering::Equal,
            },
        }
    }
}

fn node<'a>(row: &Row, names: &'a [String]) -> &'a str {
    names.get(row.node).map_or("", String::as_str)
}

/// Sorts rows; `names` are those of the nodes. What is not known stands at the end, whichever way round.
pub(super) fn sort(rows: &mut [Arc<Row>], by: Column, reverse: bool, names: &[String]) {
    let last = |row: &Row| !by.is_name() && by.number(row).is_none();
    let turned = |order: Ordering| if reverse { order.reverse() } else { order };
    let name = |one: &Row, other: &Row| {
        natural(one.key.namespace.as_str(), other.key.namespace.as_str())
            .then_with(|| natural(one.key.pod.as_str(), other.key.pod.as_str()))
    };
    rows.sort_by(|one: &Arc<Row>, other: &Arc<Row>| {
        let by_name = || match by {
            Column::Pod => turned(name(one, other)),
            _ => name(one, other),
        };
        last(one)
            .cmp(&last(other))
            .then_with(|| turned(by.compare(one, other, names)))
            .then_with(by_name)
            .then_with(|| natural(node(one, names), node(other, names)))
            // Whoever took another's place stands above it.
            .then_with(|| other.total.running.cmp(&one.total.running))
            .then_with(|| one.key.cmp(&other.key))
    });
}

/// Words, all of which a pod has to have somewhere: in its name, namespace, node, role, job, QoS class, or in what is said
/// of it (own, shared, drift, running). A word after an exclamation mark must be nowhere.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Filter(Vec<(bool, String)>);

// === impl Filter ===

impl Filter {
    pub(super) fn new(text: &str) -> Self {
        let words = text
            .split_whitespace()
            .map(|word| match word.strip_prefix('!') {
                Some(word) => (false, word.to_lowercase()),
                None => (true, word.to_lowercase()),
            });
        Self(words.filter(|(_, word)| !word.is_empty()).collect())
    }

    /// Whether a row is wanted; `names` are those of the nodes.
    pub(super) fn takes(&self, row: &Row, names: &[String]) -> bool {
        if self.0.is_empty() {
            return true;
        }
        let cpus = if row.total.own.is_some() {
            "own"
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
            .all(|(wanted, word)| text.contains(word.as_str()) == *wanted)
    }
}
