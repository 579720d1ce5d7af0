//! The `Exporter`: every source of `/metrics`, on one page.

use std::sync::Arc;
use std::time::Instant;

use super::api::{ApiTasks, ClusterLink};
use super::node_capacity::NodeCapacity;
use super::runtime::RuntimeLink;
use crate::cluster::scenes::{Phase, SlotState};
use crate::cluster::{ApiCounters, Call, ErrorKind};
use crate::metrics::families::{
    API_CONNECTED, API_ERRORS, API_EVENTS_DROPPED, API_LAST_ANSWER_TIMESTAMP_SECONDS,
    API_POD_CHANGES, API_PODS, API_REQUESTS, API_RESYNCS, API_RETRIES,
    CONTAINERS_WITHOUT_VARIABLES, Family, NRI_RUNTIME_INFO, NRI_SYNCHRONIZED, SCENE_INFO,
    SCENE_LABEL_CONFLICTS, SCENE_PHASE,
};
use crate::metrics::{AgentMetrics, Chunk, Format, Labels, Lines, Page, Sources, Value};
use crate::nri::ConnectionState;
use crate::pin::Snapshot;

/// The sources of `/metrics`: the node's pods, the agent, and whichever of the API and the
/// container runtime are in use.
#[derive(Debug)]
pub(super) struct Exporter {
    pub(super) sources: Sources,
    metrics: AgentMetrics,
    /// Present where the API is used.
    pub(super) link: Option<ClusterLink>,
    /// Present where NRI is used.
    pub(super) runtime: Option<RuntimeLink>,
    pub(super) capacity: NodeCapacity,
}

// === impl Exporter ===

impl Exporter {
    pub(super) fn new(
        sources: Sources,
        metrics: AgentMetrics,
        cluster: Option<&ApiTasks>,
        runtime: Option<RuntimeLink>,
        capacity: NodeCapacity,
    ) -> Self {
        Self {
            sources,
            metrics,
            link: cluster.map(|cluster| cluster.link.clone()),
            runtime,
            capacity,
        }
    }

    /// The page in pieces; `None` if another page was still being built at `until`.
    pub(super) fn scrape(
        &self,
        snapshot: &Arc<Snapshot>,
        format: Format,
        until: Instant,
    ) -> Option<Vec<Chunk>> {
        let collected = self.sources.collect_shared(snapshot, until)?;
        Some(self.completed(collected, snapshot).chunks(format))
    }

    /// The page as text, with freshly collected families.
    pub(super) fn text(&self, snapshot: &Snapshot) -> String {
        self.completed(self.sources.collect(snapshot), snapshot)
            .text(Format::Text)
    }

    fn completed(&self, mut page: Page, snapshot: &Snapshot) -> Page {
        self.metrics.write(&mut page);
        self.capacity.write(&mut page, snapshot);
        if let Some(link) = &self.link {
            write_requests(&mut page, link.counters());
            let (connected, pods) = link.pods();
            write_connection(&mut page, connected, pods, link.counters().last_success());
            if let Some(slot) = link.slot() {
                write_slot(&mut page, &slot.borrow());
            }
        }
        if let Some(runtime) = &self.runtime {
            let containers = snapshot.containers.iter();
            let without = containers.filter(|one| one.lacks_variables()).count();
            write_runtime(&mut page, &runtime.connection(), without);
        }
        page
    }
}

/// Adds the requests to the Kubernetes API. A kind of error that has not occurred is there with the
/// value 0.
pub fn write_requests(page: &mut Page, counters: &ApiCounters) {
    let requests = Call::ALL.map(|call| (call.name(), counters.requests(call)));
    page.add(by(&API_REQUESTS, "request", requests));
    let errors = ErrorKind::ALL.map(|kind| (kind.name(), counters.errors(kind)));
    page.add(by(&API_ERRORS, "kind", errors));
    page.add_one(&API_RETRIES, counters.retries());
    page.add_one(&API_RESYNCS, counters.resyncs());
    page.add_one(&API_POD_CHANGES, counters.pod_changes());
    page.add_one(&API_EVENTS_DROPPED, counters.events_dropped());
}

/// Adds what the agent knows from the Kubernetes API: the numbers of known and of unreadable pods, and the time of the last
/// answer in seconds since 1970, once there was one.
pub fn write_connection(
    page: &mut Page,
    connected: bool,
    [known, unreadable]: [usize; 2],
    last_answer: Option<f64>,
) {
    page.add_one(&API_CONNECTED, connected);
    let pods = [("known", known), ("unreadable", unreadable)];
    page.add(by(&API_PODS, "state", pods));
    if let Some(last_answer) = last_answer {
        page.add_one(&API_LAST_ANSWER_TIMESTAMP_SECONDS, last_answer);
    }
}

/// Adds the Node's slot in a scene.
pub fn write_slot(page: &mut Page, state: &SlotState) {
    let phases = Phase::ALL.map(|phase| (phase.name(), phase == state.phase));
    page.add(by(&SCENE_PHASE, "phase", phases));
    if let Some(slot) = &state.slot {
        let labels = [
            ("plan", state.plan.as_deref().unwrap_or_default()),
            ("scene", &slot.scene),
            ("case", &slot.case),
            ("type", slot.kind.as_deref().unwrap_or_default()),
            ("index", &slot.index.to_string()),
        ];
        page.add_info(&SCENE_INFO, &labels);
    }
    page.add_one(&SCENE_LABEL_CONFLICTS, state.conflicts.len());
}

/// Adds the connection to the container runtime, and how many of its containers lack thread variables.
pub fn write_runtime(page: &mut Page, state: &ConnectionState, without_variables: usize) {
    let is_synchronized = matches!(state, ConnectionState::Synchronized(_));
    page.add_one(&NRI_SYNCHRONIZED, is_synchronized);
    if is_synchronized {
        page.add_one(&CONTAINERS_WITHOUT_VARIABLES, without_variables);
    }
    if let Some(runtime) = state.runtime().filter(|runtime| !runtime.name.is_empty()) {
        let labels = [("name", &*runtime.name), ("version", &*runtime.version)];
        page.add_info(&NRI_RUNTIME_INFO, &labels);
    }
}

/// A family with one label.
fn by(
    family: &'static Family,
    label: &str,
    values: impl IntoIterator<Item = (&'static str, impl Value)>,
) -> Lines {
    let mut lines = Lines::of(family);
    for (name, value) in values {
        lines.put_with(&Labels::default(), &[(label, name)], value);
    }
    lines
}
