//! [`ScenePlan`]: the custom resource, as Rust types from which schema, defaults and validation are generated.
//!
//! The bounds (`maxItems`, `maxLength`, `maxProperties`) are not taste: the API server computes the worst case of every
//! CEL rule from them and refuses a definition whose rules could cost too much.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use k8s_openapi::api::core::v1::Taint;
use kube::CustomResource;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use super::label::VALUE;
use super::plan_status::ScenePlanStatus;
use super::{LabelKeys, NodeSelector};

/// The most servers that a group can have in a case, and the most names in an explicit list.
pub const MAX_SERVERS: u32 = 10_000;

/// The name under which `totals` counts servers; no role can have it.
pub const SERVERS: &str = "servers";

/// The prefix of a taint's key. The admission policy lets agents set only keys with this prefix.
pub const TAINT_PREFIX: &str = "pinfold.io/";

/// The key of the taint that a new Node has until its agent is in step with the container runtime. The kubelet or the node's
/// template sets it, and the agent only removes it.
pub const STARTUP_TAINT: &str = "pinfold.io/agent-not-ready";

/// The label of a Node that gives up its slot as soon as pods allow it. The value is the name of the plan that ordered it, or
/// `true` if the name is too long. The label outlives the plan: without it, the node of a deleted plan couldn't tell an order
/// from an accident.
pub const LEAVING_LABEL: &str = "pinfold.io/leaving";

/// The form of a label's value.
const LABEL_VALUE: &str = "^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$";

/// What a quantity looks like that is not negative: a number, and perhaps a suffix or an exponent.
const QUANTITY: &str = "^([+]?([0-9]+[.]?[0-9]*|[.][0-9]+)|-(0+[.]?0*|[.]0+))([numkMGTPE]|[KMGTPE]i|[eE][-+]?[0-9]{1,9})?$";

/// The form of a node's name.
const NODE_NAME: &str = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$";

/// Which nodes are candidates, which scenes and cases exist, and which case is active. Several plans may be active at
/// once, on nodes that no other plan has.
#[derive(CustomResource, JsonSchema, Debug, Clone, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "pinfold.io",
    version = "v1alpha1",
    kind = "ScenePlan",
    plural = "sceneplans",
    singular = "sceneplan",
    category = "pinfold",
    status = "ScenePlanStatus",
    derive = "PartialEq",
    doc = "Scenes and cases of a benchmark, and the nodes that are labelled with their place in the active case.",
    printcolumn = r#"{"name": "Scene", "type": "string", "jsonPath": ".spec.active.scene"}"#,
    printcolumn = r#"{"name": "Case", "type": "string", "jsonPath": ".spec.active.case"}"#,
    printcolumn = r#"{"name": "Claimed", "type": "string", "jsonPath": ".status.claimed"}"#,
    printcolumn = r#"{"name": "Ready", "type": "string", "jsonPath": ".status.conditions[?(@.type=='Placed')].status"}"#,
    printcolumn = r#"{"name": "On busy", "type": "string", "jsonPath": ".spec.onBusy", "priority": 1}"#,
    printcolumn = r#"{"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}"#
)]
#[schemars(extend("x-kubernetes-validations" = [
    {
        "rule": "!has(self.active) || self.scenes.exists(s, s.scene == self.active.scene && \
     s.cases.exists(c, c.case == self.active.case))",
        "message": "active must name a scene of the plan and one of its cases",
    },
]))]
#[serde(rename_all = "camelCase")]
pub struct ScenePlanSpec {
    /// The nodes that may be labelled: by selector or by an explicit list.
    pub nodes: Pool,
    /// The active case, for which nodes are labelled. Without an active case, the plan's labels are withdrawn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub active: Option<ActiveCase>,
    /// The keys of the labels. The admission policy must list each key that is not a default, including aliases: `ours`
    /// in node-policy.yaml, or labelKeys of the chart.
    #[serde(default)]
    pub labels: LabelKeys,
    /// The rule for a change of the active case or of the label keys while pods of the old case run on a node. The node
    /// waits for the pods, changes at once, or refuses until the plan changes again. A restarted agent forgets a
    /// refusal: the agent refuses again while old pods run, and changes the labels after their end.
    #[serde(default)]
    pub on_busy: OnBusy,
    /// A taint on nodes with a slot, for pods without a toleration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub taint: Option<CaseTaint>,
    /// The resources of a task of each role, by the role's name: worker, ps.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "roles_schema")]
    pub roles: BTreeMap<String, Role>,
    /// The scenes.
    #[schemars(
        length(min = 1, max = 16),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["scene"])
    )]
    pub scenes: Vec<Scene>,
}

/// Candidate nodes: either those with certain labels, or an explicit list.
#[derive(JsonSchema, Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[schemars(extend("x-kubernetes-validations" = [
    {
        "rule": "has(self.selector) != has(self.names)",
        "message": "give either selector or names, but not both",
    },
]))]
#[serde(rename_all = "camelCase")]
pub struct Pool {
    /// Nodes with these labels. The claims decide which node gets which slot. An empty selector selects every node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<NodeSelector>,
    /// Nodes by name: the first gets the first slot of a case, and so on. No claims are needed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "names_schema")]
    pub names: Option<Vec<String>>,
}

/// The scene and case that nodes are labelled for.
#[derive(JsonSchema, Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ActiveCase {
    /// A scene of the plan.
    #[schemars(length(min = 1, max = 63), regex(pattern = LABEL_VALUE))]
    pub scene: String,
    /// A case of the scene.
    #[schemars(length(min = 1, max = 63), regex(pattern = LABEL_VALUE))]
    pub case: String,
}

/// What happens when the active case changes while pods of the old one run on a node.
#[derive(JsonSchema, Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnBusy {
    /// The node keeps its labels until those pods have ended.
    #[default]
    Wait,
    /// The labels change at once.
    Force,
    /// The node keeps its labels, and the change has to be made again.
    Refuse,
}

/// A taint that nodes carry while they hold a slot.
#[derive(JsonSchema, Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CaseTaint {
    /// The taint's key. The key starts with pinfold.io/, since agents may set no other taints. The admission policy must
    /// list each key except the default: `taints` in node-policy.yaml, or taintKeys of the chart.
    #[schemars(
        length(min = 1, max = 316),
        regex(pattern = "^([^/]*/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$"),
        extend("x-kubernetes-validations" = [{
            "rule": "self.startsWith('pinfold.io/')",
            "message": "a taint's key must start with pinfold.io/",
        }, {
            "rule": "self != 'pinfold.io/agent-not-ready'",
            "message": "pinfold.io/agent-not-ready is the startup taint, which agents remove",
        }])
    )]
    pub key: TaintKey,
    /// The taint's value.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schemars(regex(pattern = VALUE))]
    pub value: String,
    /// The taint's effect.
    pub effect: TaintEffect,
}

/// A taint's key; `pinfold.io/scene` where the plan doesn't say.
#[derive(JsonSchema, Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TaintKey(pub String);

/// The effect of a taint on pods without a toleration.
#[derive(JsonSchema, Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum TaintEffect {
    /// The scheduler keeps pods without a toleration off the node.
    #[default]
    NoSchedule,
    /// The scheduler prefers other nodes for pods without a toleration.
    PreferNoSchedule,
}

/// The resources of a task. Each task has a pod.
#[derive(JsonSchema, Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Role {
    /// Requests, by resource: `{cpu: 300m, memory: 4Gi}`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "amounts_schema")]
    pub requests: BTreeMap<String, Amount>,
    /// Limits, by resource. A resource with a limit and without a request has the limit as its request.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "amounts_schema")]
    pub limits: BTreeMap<String, Amount>,
    /// Whether the tasks need exclusive CPUs: `pinfold scene check` then checks requests and limits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pin: Option<bool>,
}

/// A quantity as the plan's author wrote it: `300m`, `4Gi`, `2`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct Amount(pub String);

/// A scene: groups of servers, and cases with different numbers of servers.
#[derive(JsonSchema, Debug, Clone, PartialEq, Serialize, Deserialize)]
#[schemars(extend("x-kubernetes-validations" = [
    {
        "rule": "self.groups.size() == 1 || self.groups.all(g, has(g.type))",
        "message": "if a scene has several groups, each group needs a type",
    },
    {
        "rule": "self.groups.all(g, !has(g.type) || self.groups.exists_one(h, has(h.type) && h.type == g.type))",
        "message": "two groups of a scene have the same type",
    },
    {
        "rule": "self.cases.all(c, c.nodes.size() == self.groups.size() && self.groups.all(g, g.name in c.nodes))",
        "message": "nodes of a case must give a count for each group of the scene, and for no other",
    },
    {
        "rule": "self.cases.all(c, !has(c.totals) || !('servers' in c.totals) || \
     c.totals['servers'] == self.groups.map(g, g.name in c.nodes ? c.nodes[g.name] : 0).sum())",
        "message": "totals.servers of a case must be the sum of its nodes; pinfold scene check names the number",
    },
    {
        "rule": "self.cases.all(c, !has(c.totals) || c.totals.all(r, r == 'servers' || c.totals[r] == self.groups.map(g, \
     g.name in c.nodes && has(g.perNode) && r in g.perNode ? c.nodes[g.name] * g.perNode[r] : 0).sum()))",
        "message": "a role's total must be its servers times its tasks per server; pinfold scene check names the number",
    },
]))]
#[serde(rename_all = "camelCase")]
pub struct Scene {
    /// The scene's name: the value of the label SCENCE.
    #[schemars(length(min = 1, max = 63), regex(pattern = LABEL_VALUE))]
    pub scene: String,
    /// Groups of servers of one kind.
    #[schemars(
        length(min = 1, max = 8),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"])
    )]
    pub groups: Vec<Group>,
    /// The cases.
    #[schemars(
        length(min = 1, max = 64),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["case"])
    )]
    pub cases: Vec<Case>,
}

/// Servers of one type.
#[derive(JsonSchema, Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Group {
    /// The group's name within the scene.
    #[schemars(length(min = 1, max = 63))]
    pub name: String,
    /// The value of the label TYPE. All groups of a scene have one, or the only group has none.
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63), regex(pattern = LABEL_VALUE))]
    pub kind: Option<String>,
    /// Tasks on each server, by role.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "counts_schema")]
    pub per_node: BTreeMap<String, u32>,
}

/// A case: how many servers each group has.
#[derive(JsonSchema, Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Case {
    /// The case's name: the value of the label CASE.
    #[schemars(length(min = 1, max = 63), regex(pattern = LABEL_VALUE))]
    pub case: String,
    /// Servers of each group, by its name.
    #[schemars(schema_with = "counts_schema")]
    pub nodes: BTreeMap<String, u32>,
    /// The expected totals: `servers`, and tasks by role. The totals serve only as a check.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "counts_schema")]
    pub totals: BTreeMap<String, u32>,
}

fn names_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "items": {"type": "string", "minLength": 1, "maxLength": 253, "pattern": NODE_NAME},
        "minItems": 1,
        "maxItems": MAX_SERVERS,
        // The API server refuses a name that stands there twice.
        "x-kubernetes-list-type": "set",
    })
}

fn counts_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "additionalProperties": {"type": "integer", "format": "int32", "minimum": 0, "maximum": MAX_SERVERS},
        "maxProperties": 17,
    })
}

pub(crate) fn amounts_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "additionalProperties": {"x-kubernetes-int-or-string": true, "minimum": 0, "pattern": QUANTITY},
        "maxProperties": 16,
    })
}

fn roles_schema(generator: &mut SchemaGenerator) -> Schema {
    let role = generator.subschema_for::<Role>();
    json_schema!({"type": "object", "additionalProperties": role, "maxProperties": 16})
}

// === impl ScenePlanSpec ===

impl ScenePlanSpec {
    /// The scene and the case with the given names.
    pub fn case(&self, scene: &str, case: &str) -> Option<(&Scene, &Case)> {
        let scene = self
            .scenes
            .iter()
            .find(|candidate| candidate.scene == scene)?;
        Some((
            scene,
            scene
                .cases
                .iter()
                .find(|candidate| candidate.case == case)?,
        ))
    }
}

// === impl Role ===

impl Role {
    /// The amounts that a task requests: the requests, or the limits of a resource without a request.
    pub fn requested(&self) -> BTreeMap<&str, &Amount> {
        let all = self.limits.iter().chain(&self.requests);
        all.map(|(resource, amount)| (resource.as_str(), amount))
            .collect()
    }
}

// === impl CaseTaint ===

impl CaseTaint {
    /// The taint in the form of the Node API.
    pub fn to_k8s(&self) -> Taint {
        Taint {
            key: self.key.0.clone(),
            value: Some(self.value.clone()).filter(|value| !value.is_empty()),
            effect: format!("{:?}", self.effect),
            time_added: None,
        }
    }
}

// === impl TaintKey ===

impl Default for TaintKey {
    fn default() -> Self {
        Self("pinfold.io/scene".to_owned())
    }
}

// === impl OnBusy ===

impl fmt::Display for OnBusy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Wait => "wait",
            Self::Force => "force",
            Self::Refuse => "refuse",
        })
    }
}

// === impl Amount ===

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl JsonSchema for Amount {
    fn schema_name() -> Cow<'static, str> {
        "Amount".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"x-kubernetes-int-or-string": true})
    }
}

/// As in Kubernetes, a number may stand for a quantity: `cpu: 2`.
impl<'de> Deserialize<'de> for Amount {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct AmountVisitor;

        impl Visitor<'_> for AmountVisitor {
            type Value = Amount;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a quantity, like 300m, 4Gi or 2")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Amount, E> {
                Ok(Amount(text.to_owned()))
            }

            fn visit_u64<E: de::Error>(self, number: u64) -> Result<Amount, E> {
                Ok(Amount(number.to_string()))
            }

            fn visit_i64<E: de::Error>(self, number: i64) -> Result<Amount, E> {
                Ok(Amount(number.to_string()))
            }

            fn visit_f64<E: de::Error>(self, number: f64) -> Result<Amount, E> {
                Ok(Amount(number.to_string()))
            }
        }

        deserializer.deserialize_any(AmountVisitor)
    }
}
