//! [`NodeSelector`]: which nodes are candidates, in the form of Kubernetes' label selectors.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::label::{VALUE, key_schema, labels_schema};

/// Conditions on a node's labels, all of which must hold. Without any, every node matches.
#[derive(JsonSchema, Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeSelector {
    /// Labels that a node has, with these values.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "labels_schema")]
    pub match_labels: BTreeMap<String, String>,
    /// Further conditions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub match_expressions: Vec<Requirement>,
}

/// A condition on a label.
#[derive(JsonSchema, Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[schemars(extend("x-kubernetes-validations" = [{
    "rule": "(self.operator in ['In', 'NotIn']) == (has(self.values) && self.values.size() > 0)",
    "message": "In and NotIn need values; Exists and DoesNotExist take none",
}]))]
pub struct Requirement {
    /// The label's key.
    #[schemars(schema_with = "key_schema")]
    pub key: String,
    /// How key and values relate.
    pub operator: Operator,
    /// The values, for In and NotIn.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256), inner(regex(pattern = VALUE)))]
    pub values: Vec<String>,
}

/// How a label relates to a requirement's values.
#[derive(JsonSchema, Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Operator {
    /// The label is there, with one of the values.
    In,
    /// The label is not there, or has another value.
    NotIn,
    /// The label is there.
    Exists,
    /// The label is not there.
    DoesNotExist,
}

// === impl NodeSelector ===

impl NodeSelector {
    /// Whether the selector chooses a node with these labels.
    pub fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        self.match_labels
            .iter()
            .all(|(key, value)| labels.get(key) == Some(value))
            && self
                .match_expressions
                .iter()
                .all(|requirement| requirement.matches(labels))
    }

    /// The keys of all conditions.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.match_labels
            .keys()
            .chain(
                self.match_expressions
                    .iter()
                    .map(|requirement| &requirement.key),
            )
            .map(String::as_str)
    }

    /// Whether no node can match both selectors, judged label by label: `false` means that a node might match both.
    pub fn excludes(&self, other: &Self) -> bool {
        self.contradicts(other) || other.contradicts(self)
    }

    /// Whether a condition of `other` forbids each value that a condition of `self` allows.
    fn contradicts(&self, other: &Self) -> bool {
        let forbids = |key: &str, value: &str| {
            let label = BTreeMap::from([(key.to_owned(), value.to_owned())]);
            other
                .match_labels
                .get(key)
                .is_some_and(|wanted| wanted != value)
                || other
                    .match_expressions
                    .iter()
                    .any(|requirement| requirement.key == key && !requirement.matches(&label))
        };
        let exists = self.match_expressions.iter().any(|mine| {
            mine.operator == Operator::Exists
                && other.match_expressions.iter().any(|requirement| {
                    requirement.key == mine.key && requirement.operator == Operator::DoesNotExist
                })
        });
        exists
            || self
                .match_labels
                .iter()
                .any(|(key, value)| forbids(key, value))
            || self.match_expressions.iter().any(|requirement| {
                requirement.operator == Operator::In
                    && requirement
                        .values
                        .iter()
                        .all(|value| forbids(&requirement.key, value))
            })
    }
}

// === impl Requirement ===

impl Requirement {
    fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        let value = labels.get(&self.key);
        let among = value.is_some_and(|value| self.values.contains(value));
        match self.operator {
            Operator::In => among,
            Operator::NotIn => !among,
            Operator::Exists => value.is_some(),
            Operator::DoesNotExist => value.is_none(),
        }
    }
}
