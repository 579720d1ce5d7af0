//! [`TopState`]: the nodes and the user's view, from which a [`FrameInput`] is drawn.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::frame::FrameInput;
use super::view::View;
use crate::client::{MonitoredNode, PodRow, Response};

/// The response of an agent, with the node's index and when it arrived.
pub(super) type NodeResponse = (usize, Duration, Response);

/// The input of a frame.
pub(super) struct TopState {
    pub(super) nodes: Vec<MonitoredNode>,
    pub(super) view: View,
    /// The rows that the view selects, in its order.
    pub(super) rows: Vec<Arc<PodRow>>,
    names: Vec<String>,
    /// The number of pods before the filter.
    pub(super) pods: usize,
    /// Whether nodes or view have changed since the rows were arranged.
    pub(super) stale: bool,
    pub(super) started: Instant,
}

// === impl TopState ===

impl TopState {
    pub(super) fn new(nodes: Vec<MonitoredNode>, view: View) -> Self {
        Self {
            nodes,
            view,
            rows: Vec::new(),
            names: Vec::new(),
            pods: 0,
            stale: true,
            started: Instant::now(),
        }
    }

    pub(super) fn record(&mut self, (index, at, response): NodeResponse) {
        if let Some(node) = self.nodes.get_mut(index) {
            node.record(at, response);
            self.stale = true;
        }
    }

    /// Arranges the rows again if nodes or view have changed.
    pub(super) fn arrange(&mut self) {
        if !std::mem::take(&mut self.stale) {
            return;
        }
        let names = self.nodes.iter().map(|node| node.name().to_owned());
        self.names = names.collect();
        let is_shown = |row: &&Arc<PodRow>| self.view.node.is_none_or(|node| node == row.node);
        let rows = self.nodes.iter().flat_map(MonitoredNode::rows);
        let rows: Vec<Arc<PodRow>> = rows.filter(is_shown).cloned().collect();
        self.pods = rows.len();
        self.rows = self.view.rows(rows, &self.names);
        self.view.settle(&self.rows);
    }

    pub(super) fn picture(&self) -> FrameInput<'_> {
        FrameInput {
            nodes: &self.nodes,
            names: &self.names,
            rows: &self.rows,
            pods: self.pods,
            view: &self.view,
            now: self.started.elapsed(),
        }
    }
}
