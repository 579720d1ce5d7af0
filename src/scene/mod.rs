//! Scenes: plans, cases, slots, labels, and the rules of reclaim. The agent and the reclaimer use this module.
//!
//! A benchmark runs in *scenes*: how parameter servers and workers share servers. Each scene has *cases*: how many servers
//! take part. A [`ScenePlan`] names the candidate nodes and the active case. Every server of the active case is a [`Slot`].
//! A node with a slot carries the slot's labels, and the training pods select nodes by these labels.
//!
//! All functions work on values. [`read`] and [`read_nodes`] take texts from the caller. A plan or a node may also come
//! from the API ([`Document::from_plan`], `Node::from`).
//!
//! 1. [`read`] makes documents of a text, with the schema's findings and their lines. [`definition`] is the custom resource
//!    definition.
//! 2. [`slots`] lists the slots of a case. [`LabelKeys`] turns a slot into labels and labels into a slot.
//!    [`Slot::lease_name`] names the claim.
//! 3. [`assign`] gives the slots to a list of nodes. [`status()`] compares the slots with the nodes' labels.
//! 4. An agent asks [`duty`] for the slot that all plans give to the node, [`WantedSlot::order`] for the slots to try first, and
//!    [`switch`] whether the node may give up its slot.
//! 5. [`reclaim()`] lists the parameter servers of jobs that have ended. [`plan_status()`] compares a plan with the cluster.
//!    [`several_claims`] finds claims that do not count.
//!
//! Invariants: two slots never share labels or a name. A label is removed only if a plan that was read says so.

#![warn(clippy::too_many_lines, clippy::excessive_nesting)]

mod assign;
#[cfg(feature = "reclaim")]
mod conditions;
mod document;
mod finding;
mod label;
mod name;
mod native_job;
mod node;
mod plan;
mod plan_status;
#[cfg(feature = "reclaim")]
mod reclaim;
mod schema;
mod selector;
mod slot;
mod slots;
mod status;
mod surplus;
mod tree;
mod want;

pub use assign::{Assignment, assign, candidates, is_candidate};
#[cfg(feature = "reclaim")]
pub use conditions::{ACCEPTED, CONFLICTED, ClusterView, PLACED, plan_status, unreadable_status};
pub use document::{Document, ReadError, read};
pub use finding::{Amounts, Finding, Severity, SourcePlace};
pub use label::{Holding, LabelKeys, NodeLabels};
pub use name::{key_fault, reserved_domain, subdomain_fault, value_fault};
pub use native_job::{
    ALL_WORKERS, CASE_LABEL, CHIEF, EVALUATOR, EXPERIMENT_LABEL, PLAN_LABEL, PS, RECLAIM_AFTER,
    RECLAIM_LABEL, RUN_LABEL, SCENE_LABEL, SUCCESS_POLICY, TASK_LABELS, WAY_LABEL, WORKERS,
};
pub use node::{Node, NodeTaint, natural, read_nodes};
#[cfg(feature = "experiments")]
pub(crate) use plan::amounts_schema;
pub use plan::{
    ActiveCase, Amount, Case, CaseTaint, Group, LEAVING_LABEL, MAX_SERVERS, OnBusy, Pool, Role,
    SERVERS, STARTUP_TAINT, Scene, ScenePlan, ScenePlanSpec, TAINT_PREFIX, TaintEffect, TaintKey,
};
pub use plan_status::{ScenePlanStatus, SlotCounts};
#[cfg(feature = "reclaim")]
pub use reclaim::{
    ItemKind, JobOutcome, ReclaimAnnotations, ReclaimItem, ReclaimLabels, ReclaimVerdict,
    Reclaimable, reclaim,
};
pub use schema::definition;
#[cfg(feature = "experiments")]
pub(crate) use schema::violations_of;
pub use selector::{NodeSelector, Operator, Requirement};
pub use slot::{Slot, is_hashed_lease, is_lease_of};
pub use slots::{NoSuchCase, Slots, slots, try_order};
pub use status::{CaseStatus, status};
pub use surplus::{SeveralClaims, several_claims};
pub use tree::Path;
#[cfg(feature = "experiments")]
pub(crate) use tree::Tree;
pub use want::{SlotDuty, SwitchDecision, WantedSlot, duty, switch, want};
