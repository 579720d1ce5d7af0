//! The cases of the suite, in the order of a run.

mod admission;
mod containers;
mod definition;
mod faults;
mod installation;
mod jobs;
mod pinning;
mod resize;
mod scenes;

use std::pin::Pin;

use anyhow::Result;

use crate::report::Verdict;
use crate::site::Site;

/// The work of a case.
type CaseFuture<'a> = Pin<Box<dyn Future<Output = Result<Verdict>> + 'a>>;

/// A case: a row of the table for each node, or a single row.
pub(crate) struct Case {
    /// The name in the table and in the arguments of a run.
    pub(crate) name: &'static str,
    /// Whether the case runs once on each test node.
    pub(crate) each_node: bool,
    /// The work.
    pub(crate) run: for<'a> fn(&'a Site<'a>) -> CaseFuture<'a>,
}

/// Makes the table of cases.
macro_rules! cases {
    ($($each:ident $name:literal => $path:path,)*) => {
        &[$(Case {
            name: $name,
            each_node: cases!(@ $each),
            run: |site| Box::pin($path(site)),
        },)*]
    };
    (@ each) => { true };
    (@ once) => { false };
}

/// All cases. The installation comes first, and the removal comes last.
pub(crate) const CASES: &[Case] = cases! {
    once "install" => installation::install,
    each "rollout" => installation::rollout,
    once "definition-rules" => definition::rules,
    each "agent-rights" => admission::rights,
    each "node-policy" => admission::node,
    each "claim-policy" => admission::claims,
    each "event-policy" => admission::events,
    once "thread-policy" => admission::threads,
    each "pinning" => pinning::pinning,
    each "environment" => pinning::environment,
    each "own-values" => pinning::own_values,
    each "exclusion" => pinning::exclusion,
    each "not-pinned" => pinning::not_pinned,
    each "required" => pinning::required,
    each "required-refused" => pinning::required_refused,
    each "init-container" => containers::init_container,
    each "sidecar" => containers::sidecar,
    each "crash-loop" => containers::crash_loop,
    each "missing-image" => containers::missing_image,
    each "ephemeral" => containers::ephemeral,
    each "resize-grow" => resize::grow,
    each "resize-shrink" => resize::shrink,
    each "resize-deferred" => resize::deferred,
    each "resize-infeasible" => resize::infeasible,
    each "scene-labels" => scenes::labels,
    each "scene-wait" => scenes::wait,
    each "scene-force" => scenes::force,
    each "scene-refuse" => scenes::refuse,
    each "scene-taint" => scenes::taint,
    each "scene-conflict" => scenes::conflict,
    each "render" => jobs::render,
    each "reclaim" => jobs::reclaim,
    each "agent-restart" => faults::agent_restart,
    each "agent-killed" => faults::agent_killed,
    each "runtime-killed" => faults::runtime_killed,
    each "kubelet-killed" => faults::kubelet_killed,
    each "kubelet-static" => faults::kubelet_static,
    each "api-away" => faults::api_away,
    each "node-replaced" => faults::node_replaced,
    once "upgrade" => installation::upgrade,
    each "at-rest" => faults::at_rest,
    once "uninstall" => installation::uninstall,
};
