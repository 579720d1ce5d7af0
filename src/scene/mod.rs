//! Scenes: plans, cases, slots, labels.
//!
//! A benchmark runs in *scenes* (how parameter servers and workers share servers), each with *cases* (how many of
//! them). A [`ScenePlan`] says which nodes may take part and which case is active; every server of that case is a
//! [`Slot`], and a node that has one carries its labels, by which the training pods find it.
//!
//! Everything here is a function of values. [`read`] and [`read_nodes`] take texts that somebody else has read, so a plan
//! or a node may as well come from the API ([`Document::from_plan`], `Node::from`).
//!
//! 1. [`check`] says what is wrong with plans, where, and what to write instead.
//! 2. [`slots`] lists the slots of a case; [`LabelKeys`] turns a slot into labels and labels into a slot;
//!    [`Slot::lease_name`] names the claim.
//! 3. [`assign`] gives the slots to a list of nodes; [`status()`] compares them with the labels that are there.
//! 4. An agent asks [`duty`] what its node is to have by all plans, [`Want::order`] which slots to try first, and
//!    [`switch`] whether it may give up what it has.
//! 5. [`import`] makes a plan of `kubectl label` commands, [`definition`] the custom resource definition.
//! 6. [`tasks`] says which task of a training job belongs to which slot; [`render()`] makes the job's objects from that,
//!    and [`simulate()`] shows which node each task would come to. [`reclaim()`] says when its parameter servers have nobody left to serve.
//! 7. [`report`] says what a training job did in a case, from what a Prometheus has.
//!
//! Invariant: two slots never share labels or a name, and a label is only ever taken away because a plan that was read
//! says so.

mod assign;
mod check;
mod document;
mod import;
mod label;
mod node;
mod plan;
mod reclaim;
mod render;
pub mod report;
mod schema;
mod selector;
mod simulate;
mod slot;
mod status;
mod tree;
mod want;

pub use assign::{Assignment, assign, candidates, is_candidate};
pub use check::{Amounts, Finding, Severity, check};
pub use document::{Document, Place, ReadError, read};
pub use import::{ImportError, Imported, import};
pub use label::{
    Holding, LabelKeys, Labels, key_fault, reserved_domain, subdomain_fault, value_fault,
};
pub use node::{Node, NodeTaint, natural, read_nodes};
pub use plan::{
    Active, Amount, Case, CaseTaint, Group, MAX_SERVERS, OnBusy, Pool, Role, SERVERS, Scene,
    ScenePlan, ScenePlanSpec, TAINT_PREFIX, TaintEffect, TaintKey,
};
pub use reclaim::{Item, ItemKind, Outcome, Reclaimable, Verdict, reclaim};
pub use render::{
    ALL_WORKERS, Asked, CHIEF, EVALUATOR, Faults, Folder, Format, Gang, PS, RECLAIM_AFTER,
    RECLAIM_LABEL, ROLES, Reclaim, Rendered, RoleTasks, SUCCESS_POLICY, Share, Slice,
    SuccessPolicy, TASK_LABELS, Task, TaskOf, TrainingJob, WORKERS, asked, render, roles, settle,
    tasks,
};
pub use schema::definition;
pub use selector::{NodeSelector, Operator, Requirement};
pub use simulate::{Simulation, claimed, invented, simulate};
pub use slot::{NoSuchCase, Slot, Slots, is_lease_of, slots, try_order};
pub use status::{Status, status};
pub use tree::Path;
pub use want::{Duty, Switch, Want, duty, switch, want};
