//! This node's Node: its labels and taints. Labels are written by server-side apply, all keys at once, only on a difference,
//! and never with force.
//!
//! **An apply never recreates a deleted Node.** Server-side apply creates a missing object, so
//! every apply carries the uid of the Node that was read. The server then answers 409 Conflict if
//! the Node is missing, and 422 if a new Node has the name. A `resourceVersion` would not protect,
//! because the server creates the object anyway. In addition, the agent has no permission to create
//! Nodes.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::Taint;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::core::Status;
use kube::core::params::{GetParams, Patch, PatchParams};
use kube::core::request;
use serde::Deserialize;
use serde_json::json;

use super::{Api, Call, ErrorKind, Failure, MANAGER};
use crate::pod::quantity::cpu_millis;
use crate::pod::{Allocatable, AllocatableSource};
use crate::scene::STARTUP_TAINT;

const NODES: &str = "/api/v1/nodes";

/// The fields of a Node that the agent reads.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct OwnNode {
    pub name: String,
    /// The API server's uid. A replaced Node has a new one.
    pub uid: String,
    /// All labels.
    pub labels: BTreeMap<String, String>,
    /// The resourceVersion, for writes that must fail after a change.
    pub version: String,
    pub cordoned: bool,
    pub taints: Vec<Taint>,
    /// The CPUs that pods may request together, in thousandths, if the kubelet has reported them.
    pub allocatable_cpu: Option<u64>,
    /// The CPUs that the kubelet counts, in thousandths.
    pub capacity_cpu: Option<u64>,
    /// The keys of the labels that the agent applied.
    pub own_labels: BTreeSet<String>,
    /// The field manager of each label that was set by a write other than the agent's apply, as in `managedFields`.
    pub owners: BTreeMap<String, String>,
}

// === impl OwnNode ===

impl OwnNode {
    /// The CPUs that the scheduler counts; `None` if the kubelet has not reported any.
    pub fn allocatable(&self) -> Option<Allocatable> {
        Some(Allocatable {
            millicores: self.allocatable_cpu?,
            capacity: self.capacity_cpu,
            source: AllocatableSource::Node,
        })
    }

    /// The taints without the startup taint, whatever its value and effect; `None` if the Node does not have it.
    pub fn without_startup_taint(&self) -> Option<Vec<Taint>> {
        let others = self
            .taints
            .iter()
            .filter(|taint| taint.key != STARTUP_TAINT);
        let others: Vec<Taint> = others.cloned().collect();
        (others.len() < self.taints.len()).then_some(others)
    }
}

/// A label that the agent wants to set, and that another manager has set to another value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LabelConflict {
    pub key: String,
    /// The wanted value. Empty if the label should be absent, or if the value is not known yet.
    pub wanted: String,
    /// The current value.
    pub found: Option<String>,
    /// The field manager that set the label.
    pub manager: String,
}

impl std::fmt::Display for LabelConflict {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            key,
            wanted,
            manager,
            ..
        } = self;
        let found = self.found.as_deref().unwrap_or("another value");
        let should = if wanted.is_empty() {
            "should not be there"
        } else {
            "should be"
        };
        let wanted = if wanted.is_empty() {
            ""
        } else {
            &format!(" {wanted}")
        };
        write!(
            f,
            "label {key} {should}{wanted} and is {found}, set by {manager}: remove it (kubectl label node NODE {key}-), then the agent continues within minutes"
        )
    }
}

/// The next step for the labels.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LabelStep {
    /// The labels are as wanted.
    Nothing,
    /// Apply exactly these labels. The server removes any label that the agent applied before and that is missing here.
    Apply(BTreeMap<String, String>),
    /// Other managers have set some of the labels, so nothing is written.
    Conflict(Vec<LabelConflict>),
}

/// The outcome of an apply.
#[derive(Debug, Clone, PartialEq)]
pub enum ApplyOutcome {
    /// The write succeeded. The value is the new state of the Node.
    Done(Box<OwnNode>),
    /// Other managers have set some of the labels, so nothing was written.
    Conflict(Vec<LabelConflict>),
    /// The Node was deleted. Nothing was written.
    Gone,
    /// A new Node has the name, or the Node has changed. Nothing was written, and the caller must
    /// read the Node again.
    Replaced,
}

/// Reads this node's Node; `None` if the Node does not exist.
///
/// # Errors
/// Any [`Failure`] except 404. An answer without the requested Node is [`Failure::InvalidResponse`].
pub async fn read(api: &Api, name: &str) -> Result<Option<OwnNode>, Failure> {
    let request = request::Request::new(NODES)
        .get(name, &GetParams::default())
        .map_err(|error| api.unbuilt(error))?;
    match api.ask::<NodeAnswer>(Call::GetNode, request).await {
        Ok(read) => own(read, name).map(Some),
        Err(failure) if failure.kind() == ErrorKind::NotFound => Ok(None),
        Err(failure) => Err(failure),
    }
}

/// The step after which the agent applies exactly the labels in `wanted`. After a successful step, the next step is
/// [`LabelStep::Nothing`].
///
/// The step removes any label that the agent applied and that is missing from `wanted`, so the
/// caller must know from a ScenePlan that the label should go.
pub fn plan(node: &OwnNode, wanted: &BTreeMap<String, String>) -> LabelStep {
    let conflicts: Vec<LabelConflict> = wanted
        .iter()
        .filter_map(|(key, value)| {
            let found = node.labels.get(key).filter(|found| *found != value)?;
            // The agent may change the value of a label that no other manager owns.
            let manager = node.owners.get(key);
            if node.own_labels.contains(key) && manager.is_none() {
                return None;
            }
            Some(LabelConflict {
                key: key.clone(),
                wanted: value.clone(),
                found: Some(found.clone()),
                manager: manager
                    .cloned()
                    .unwrap_or_else(|| "an unknown program".to_owned()),
            })
        })
        .collect();
    if !conflicts.is_empty() {
        return LabelStep::Conflict(conflicts);
    }
    let held = wanted
        .iter()
        .all(|(key, value)| node.labels.get(key) == Some(value));
    if held && node.own_labels.iter().eq(wanted.keys()) {
        return LabelStep::Nothing;
    }
    LabelStep::Apply(wanted.clone())
}

/// Applies the labels to the Node that was read. A new Node of the same name is not changed.
///
/// # Errors
/// Any [`Failure`] that is not one of the outcomes of [`ApplyOutcome`].
pub async fn apply(
    api: &Api,
    node: &OwnNode,
    labels: &BTreeMap<String, String>,
) -> Result<ApplyOutcome, Failure> {
    let mut patch = json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": node.name, "uid": node.uid},
    });
    // Whoever applies an empty map owns that map, and then an empty entry of this agent would stay in `managedFields` after
    // its last label is gone. The server drops the entry of a manager that applies no field at all.
    if !labels.is_empty() {
        patch["metadata"]["labels"] = json!(labels);
    }
    let request = request::Request::new(NODES)
        .patch(
            &node.name,
            &PatchParams::apply(MANAGER),
            &Patch::Apply(patch),
        )
        .map_err(|error| api.unbuilt(error))?;
    match api.ask::<NodeAnswer>(Call::ApplyNode, request).await {
        Ok(read) => Ok(ApplyOutcome::Done(Box::new(own(read, &node.name)?))),
        Err(failure) => match failure
            .status()
            .and_then(|status| outcome(status, node, labels))
        {
            Some(applied) => Ok(applied),
            None => Err(failure),
        },
    }
}

/// Sets the taints of the Node that was read. The write fails if the Node has changed since the read.
///
/// A write replaces the whole list of taints, and the node controller writes the same list. Like
/// the node controller, the agent therefore sends a merge patch with the `resourceVersion` of the
/// read. After any change of the Node, the server refuses it with a conflict, and the result is
/// [`ApplyOutcome::Replaced`].
///
/// # Errors
/// Any [`Failure`] that is not one of the outcomes of [`ApplyOutcome`].
pub async fn set_taints(
    api: &Api,
    node: &OwnNode,
    taints: &[Taint],
) -> Result<ApplyOutcome, Failure> {
    let patch = json!({
        "metadata": {"uid": node.uid, "resourceVersion": node.version},
        "spec": {"taints": taints},
    });
    let params = PatchParams {
        field_manager: Some(MANAGER.to_owned()),
        ..PatchParams::default()
    };
    let request = request::Request::new(NODES)
        .patch(&node.name, &params, &Patch::Merge(patch))
        .map_err(|error| api.unbuilt(error))?;
    match api.ask::<NodeAnswer>(Call::TaintNode, request).await {
        Ok(read) => Ok(ApplyOutcome::Done(Box::new(own(read, &node.name)?))),
        Err(failure) if failure.kind() == ErrorKind::NotFound => Ok(ApplyOutcome::Gone),
        Err(failure) if failure.kind() == ErrorKind::Conflict => Ok(ApplyOutcome::Replaced),
        Err(failure) => Err(failure),
    }
}

/// Checks that the answer is the requested Node and has a uid, because claims need it as owner and
/// as label.
fn own(read: NodeAnswer, name: &str) -> Result<OwnNode, Failure> {
    let node = OwnNode::from(read);
    if node.name != name || node.uid.is_empty() {
        let OwnNode {
            name: found, uid, ..
        } = node;
        return Err(Failure::InvalidResponse(format!(
            "Node {found:?} with the uid {uid:?} instead of Node {name}"
        )));
    }
    Ok(node)
}

/// The outcome for an expected refusal of an apply; `None` for any other.
fn outcome(
    status: &Status,
    node: &OwnNode,
    labels: &BTreeMap<String, String>,
) -> Option<ApplyOutcome> {
    let causes = status
        .details
        .as_ref()
        .map(|details| details.causes.as_slice())
        .unwrap_or_default();
    let conflicts: Vec<LabelConflict> = causes
        .iter()
        .filter(|cause| cause.reason == "FieldManagerConflict")
        .map(|cause| {
            let key = cause
                .field
                .strip_prefix(".metadata.labels.")
                .unwrap_or(&cause.field)
                .to_owned();
            LabelConflict {
                wanted: labels.get(&key).cloned().unwrap_or_default(),
                found: node
                    .labels
                    .get(&key)
                    .filter(|found| labels.get(&key) != Some(found))
                    .cloned(),
                manager: manager_of(&cause.message),
                key,
            }
        })
        .collect();
    match status.code {
        409 if !conflicts.is_empty() => Some(ApplyOutcome::Conflict(conflicts)),
        409 if status.message.contains("uid mismatch") => Some(ApplyOutcome::Gone),
        // An apply without a uid would create the Node, which the agent's role does not permit.
        403 if status.message.contains("cannot create resource") => Some(ApplyOutcome::Gone),
        404 => Some(ApplyOutcome::Gone),
        422 if causes.iter().any(|cause| cause.field == "metadata.uid") => {
            Some(ApplyOutcome::Replaced)
        }
        _ => None,
    }
}

/// `conflict with "kubectl-label" using v1` → `kubectl-label`.
fn manager_of(message: &str) -> String {
    let quoted = message
        .split_once('"')
        .and_then(|(_, rest)| rest.split_once('"'));
    quoted.map_or_else(|| message.to_owned(), |(name, _)| name.to_owned())
}

/// A Node in the server's answer.
#[derive(Deserialize)]
struct NodeAnswer {
    metadata: ObjectMeta,
    #[serde(default)]
    spec: NodeAnswerSpec,
    #[serde(default)]
    status: NodeAnswerStatus,
}

#[derive(Deserialize, Default)]
struct NodeAnswerStatus {
    #[serde(default)]
    allocatable: BTreeMap<String, Quantity>,
    #[serde(default)]
    capacity: BTreeMap<String, Quantity>,
}

#[derive(Deserialize, Default)]
struct NodeAnswerSpec {
    #[serde(default)]
    taints: Vec<Taint>,
    #[serde(default)]
    unschedulable: bool,
}

impl From<NodeAnswer> for OwnNode {
    fn from(read: NodeAnswer) -> Self {
        let NodeAnswer {
            metadata,
            spec,
            status,
        } = read;
        let cpu = |amounts: &BTreeMap<String, Quantity>| cpu_millis(&amounts.get("cpu")?.0).ok();
        let (mut own_labels, mut owners) = (BTreeSet::new(), BTreeMap::new());
        for entry in metadata.managed_fields.into_iter().flatten() {
            let manager = entry.manager.unwrap_or_default();
            let applied = manager == MANAGER && entry.operation.as_deref() == Some("Apply");
            let fields = entry.fields_v1.map(|fields| fields.0).unwrap_or_default();
            let labels = fields
                .pointer("/f:metadata/f:labels")
                .and_then(serde_json::Value::as_object);
            let keys = labels
                .into_iter()
                .flatten()
                .filter_map(|(key, _)| key.strip_prefix("f:"));
            for key in keys {
                if applied {
                    own_labels.insert(key.to_owned());
                } else {
                    owners.insert(key.to_owned(), manager.clone());
                }
            }
        }
        Self {
            name: metadata.name.unwrap_or_default(),
            uid: metadata.uid.unwrap_or_default(),
            labels: metadata.labels.unwrap_or_default(),
            version: metadata.resource_version.unwrap_or_default(),
            cordoned: spec.unschedulable,
            taints: spec.taints,
            allocatable_cpu: cpu(&status.allocatable),
            capacity_cpu: cpu(&status.capacity),
            own_labels,
            owners,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect()
    }

    fn node(labels: &[(&str, &str)], own_labels: &[&str], owners: &[(&str, &str)]) -> OwnNode {
        OwnNode {
            name: "n".to_owned(),
            uid: "u".to_owned(),
            labels: map(labels),
            own_labels: own_labels.iter().map(|key| (*key).to_owned()).collect(),
            owners: map(owners),
            ..OwnNode::default()
        }
    }

    #[test]
    fn labels_are_applied_on_difference_only() {
        let wanted = map(&[("SCENCE", "1"), ("CASE", "2")]);
        let os = [("kubernetes.io/os", "linux")];
        let bare = node(&os, &[], &[("kubernetes.io/os", "kubelet")]);
        assert_eq!(plan(&bare, &wanted), LabelStep::Apply(wanted.clone()));
        let held = node(
            &[("SCENCE", "1"), ("CASE", "2"), os[0]],
            &["SCENCE", "CASE"],
            &[],
        );
        assert_eq!(plan(&held, &wanted), LabelStep::Nothing);
        let changed = map(&[("SCENCE", "1"), ("CASE", "3")]);
        assert_eq!(plan(&held, &changed), LabelStep::Apply(changed));
        // A missing key is a difference, and so is an empty map.
        assert_eq!(
            plan(&held, &map(&[("CASE", "2")])),
            LabelStep::Apply(map(&[("CASE", "2")]))
        );
        assert_eq!(plan(&held, &map(&[])), LabelStep::Apply(map(&[])));
        assert_eq!(plan(&bare, &map(&[])), LabelStep::Nothing);
    }

    #[test]
    fn a_different_value_of_another_manager_is_a_conflict_and_an_equal_value_is_not() {
        let wanted = map(&[("SCENCE", "1"), ("CASE", "2")]);
        let other = node(&[("SCENCE", "9")], &[], &[("SCENCE", "kubectl-label")]);
        let LabelStep::Conflict(conflicts) = plan(&other, &wanted) else {
            panic!("no conflict")
        };
        assert_eq!(
            (&*conflicts[0].key, &*conflicts[0].manager),
            ("SCENCE", "kubectl-label")
        );
        assert!(
            conflicts[0]
                .to_string()
                .contains("is 9, set by kubectl-label"),
            "{}",
            conflicts[0]
        );
        let same = node(&[("SCENCE", "1")], &[], &[("SCENCE", "kubectl-label")]);
        assert_eq!(plan(&same, &wanted), LabelStep::Apply(wanted.clone()));
        let shared = node(
            &[("SCENCE", "1"), ("CASE", "2")],
            &["SCENCE", "CASE"],
            &[("SCENCE", "other")],
        );
        assert_eq!(plan(&shared, &wanted), LabelStep::Nothing);
        assert!(matches!(
            plan(&shared, &map(&[("SCENCE", "2")])),
            LabelStep::Conflict(_)
        ));
        let unmanaged = node(&[("SCENCE", "9")], &[], &[]);
        assert!(matches!(plan(&unmanaged, &wanted), LabelStep::Conflict(_)));
    }
}
