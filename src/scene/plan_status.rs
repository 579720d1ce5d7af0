//! [`ScenePlanStatus`]: the type of a plan's status. [`plan_status()`](super::plan_status()) computes the values.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

/// The state of the plan in the cluster. Only the reclaimer writes the status.
#[derive(JsonSchema, Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ScenePlanStatus {
    /// The generation of the plan that the status describes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "generation_schema")]
    pub observed_generation: Option<i64>,
    /// The claimed and the wanted slots of the active case, as in 18/20.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 32))]
    pub claimed: String,
    /// The numbers of slots of the active case.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slots: Option<SlotCounts>,
    /// The conditions Accepted, Placed and Conflicted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "conditions_schema")]
    pub conditions: Vec<Condition>,
}

/// Numbers of slots.
#[derive(JsonSchema, Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlotCounts {
    /// The slots of the active case.
    #[schemars(schema_with = "count_schema")]
    pub wanted: u32,
    /// The slots with a claim. In a plan with a list of names, the slots whose node exists.
    #[schemars(schema_with = "count_schema")]
    pub claimed: u32,
    /// The claimed slots whose node alone has the labels of the slot.
    #[schemars(schema_with = "count_schema")]
    pub ready: u32,
}

// === impl ScenePlanStatus ===

impl ScenePlanStatus {
    /// The condition with the given type.
    pub fn condition(&self, kind: &str) -> Option<&Condition> {
        self.conditions
            .iter()
            .find(|condition| condition.type_ == kind)
    }
}

fn generation_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "integer", "format": "int64", "minimum": 0})
}

fn count_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "integer", "format": "int32", "minimum": 0})
}

/// The schema of the Kubernetes type Condition.
fn conditions_schema(generator: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "items": {
            "type": "object",
            "properties": {
                "lastTransitionTime": {"type": "string", "format": "date-time"},
                "message": {"type": "string", "maxLength": 32768},
                "observedGeneration": generation_schema(generator),
                "reason": {"type": "string", "minLength": 1, "maxLength": 1024},
                "status": {"type": "string", "enum": ["True", "False", "Unknown"]},
                "type": {"type": "string", "minLength": 1, "maxLength": 316},
            },
            "required": ["lastTransitionTime", "message", "reason", "status", "type"],
        },
        "maxItems": 8,
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type"],
    })
}
