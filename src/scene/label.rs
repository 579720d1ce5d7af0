//! [`LabelKeys`]: the labels of a slot, and the slot of existing labels.

use std::collections::{BTreeMap, BTreeSet};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use super::name::{LONGEST_NAME, LONGEST_PREFIX, RESERVED_DOMAINS};
use super::slot::Slot;

/// The longest key of a label: a prefix of 253 characters, a slash and a name of 63.
const LONGEST_KEY: usize = LONGEST_PREFIX + 1 + LONGEST_NAME;

/// The form of a label's or taint's value; may be empty.
pub(super) const VALUE: &str = "^([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?$";

/// The keys of the labels that a plan owns.
#[derive(JsonSchema, Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[schemars(extend("x-kubernetes-validations" = [
    {
        "rule": "self.scene != self.case && self.scene != self.index && self.scene != self.type && \
             self.case != self.index && self.case != self.type && self.index != self.type",
        "message": "the four label keys must differ",
    },
    {
        "rule": "!has(self.aliases) || self.aliases.all(k, k in [self.scene, self.case, self.index, self.type])",
        "message": "the key of an alias must be one of the plan's four label keys",
    },
    {
        "rule": "!has(self.aliases) || self.aliases.all(k, self.aliases.exists_one(o, self.aliases[o] == self.aliases[k]) && \
             !(self.aliases[k] in [self.scene, self.case, self.index, self.type]))",
        "message": "an alias must differ from all other keys of the plan",
    },
]))]
#[serde(rename_all = "camelCase", default)]
pub struct LabelKeys {
    /// The key whose value is the scene. Existing templates match the spelling of the default.
    #[schemars(schema_with = "own_key_schema")]
    pub scene: String,
    /// The key whose value is the case.
    #[schemars(schema_with = "own_key_schema")]
    pub case: String,
    /// The key whose value is the server's index within its type.
    #[schemars(schema_with = "own_key_schema")]
    pub index: String,
    /// The key whose value is the group's type, if the scene has types.
    #[serde(rename = "type")]
    #[schemars(schema_with = "own_key_schema")]
    pub kind: String,
    /// A second key with the same value, for each key: `{SCENCE: SCENE}`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "aliases_schema")]
    pub aliases: BTreeMap<String, String>,
}

/// A node's labels, in the order scene, case, index, type, each followed by its alias.
pub type NodeLabels = Vec<(String, String)>;

/// The slot that a node's labels describe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Holding {
    /// The node has no key of the plan.
    Nothing,
    /// A slot, whether or not the plan has it.
    Slot(Slot),
    /// Some keys exist, but no slot follows from them.
    Broken {
        /// The reason.
        reason: String,
    },
}

// === impl LabelKeys ===

impl Default for LabelKeys {
    fn default() -> Self {
        Self {
            scene: "SCENCE".to_owned(),
            case: "CASE".to_owned(),
            index: "INDEX".to_owned(),
            kind: "TYPE".to_owned(),
            aliases: BTreeMap::new(),
        }
    }
}

impl LabelKeys {
    /// The four keys, in the order of [`NodeLabels`].
    pub fn keys(&self) -> [&str; 4] {
        [&self.scene, &self.case, &self.index, &self.kind]
    }

    /// All keys of the plan, aliases included. The agent writes these keys, and removes them from a node without a
    /// slot.
    pub fn owned(&self) -> BTreeSet<&str> {
        let aliases = self
            .aliases
            .iter()
            .filter(|(key, _)| self.keys().contains(&key.as_str()));
        self.keys()
            .into_iter()
            .chain(aliases.map(|(_, alias)| alias.as_str()))
            .collect()
    }

    /// The labels of a slot: all of them belong on the node, and no other of the [owned](Self::owned) keys.
    pub fn labels(&self, slot: &Slot) -> NodeLabels {
        let index = slot.index.to_string();
        let values = [
            Some(&slot.scene),
            Some(&slot.case),
            Some(&index),
            slot.kind.as_ref(),
        ];
        let mut labels = NodeLabels::new();
        for (key, value) in self.keys().into_iter().zip(values) {
            let Some(value) = value else { continue };
            labels.push((key.to_owned(), value.clone()));
            if let Some(alias) = self.aliases.get(key) {
                labels.push((alias.clone(), value.clone()));
            }
        }
        labels
    }

    /// The labels with a key of the plan.
    pub fn of<'a>(&self, labels: &'a BTreeMap<String, String>) -> BTreeMap<&'a str, &'a str> {
        let owned = self.owned();
        let pairs = labels
            .iter()
            .map(|(key, value)| (key.as_str(), value.as_str()));
        pairs.filter(|(key, _)| owned.contains(key)).collect()
    }

    /// The slot that a node's labels describe. An alias must agree with the label that it repeats.
    pub fn read(&self, labels: &BTreeMap<String, String>) -> Holding {
        let held = self.of(labels);
        if held.is_empty() {
            return Holding::Nothing;
        }
        let broken = |reason: String| Holding::Broken { reason };
        let value = |key: &str| held.get(key).map(|&value| value.to_owned());
        let [Some(scene), Some(case), Some(index)] =
            [&self.scene, &self.case, &self.index].map(|key| value(key))
        else {
            let missing = [&self.scene, &self.case, &self.index]
                .into_iter()
                .filter(|key| value(key).is_none());
            return broken(format!(
                "missing {}",
                missing.cloned().collect::<Vec<_>>().join(" and ")
            ));
        };
        let Some(number) = canonical(&index) else {
            return broken(format!(
                "{}={index} is not a number, or has leading zeros",
                self.index
            ));
        };
        let slot = Slot {
            scene,
            case,
            kind: value(&self.kind),
            index: number,
        };
        let wanted = self.labels(&slot);
        let differs = wanted
            .iter()
            .find(|(key, value)| held.get(key.as_str()) != Some(&value.as_str()));
        match differs {
            Some((key, value)) => broken(format!(
                "{key} should be {value}, as in the label of which {key} is an alias"
            )),
            None if wanted.len() != held.len() => {
                broken("the node has an alias without its label".to_owned())
            }
            None => Holding::Slot(slot),
        }
    }
}

/// The rule of the definition on a label's key: the same as [`key_fault`](super::key_fault). `key` is the name of the key in the rule.
fn key_rule(key: &str) -> String {
    let form = "^([a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?\
                [A-Za-z0-9]([-A-Za-z0-9_.]{0,INNER}[A-Za-z0-9])?$";
    let form = form.replace("INNER", &(LONGEST_NAME - 2).to_string());
    format!("{key}.matches('{form}') && {key}.matches('^([^/]{{1,{LONGEST_PREFIX}}}/)?[^/]+$')")
}

/// The definition's message for a failure of [`key_rule`].
const KEY_MESSAGE: &str = "a label's key is a name of at most 63 letters, digits, '-', '_' and '.', and an optional prefix \
                           of a DNS name and '/'";

/// Any label's key.
pub(super) fn key_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "string",
        "minLength": 1,
        "maxLength": LONGEST_KEY,
        "x-kubernetes-validations": [{"rule": key_rule("self"), "message": KEY_MESSAGE}],
    })
}

/// The definition's rule against keys of [`RESERVED_DOMAINS`]: the same as [`reserved_domain`](super::reserved_domain).
fn reserved_rule() -> String {
    let domains = RESERVED_DOMAINS.map(|domain| domain.replace('.', "[.]"));
    format!("!self.matches('^([^/]*[.])?({})/')", domains.join("|"))
}

/// The key of a label that the plan writes: see [`reserved_domain`](super::reserved_domain).
fn own_key_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "string",
        "minLength": 1,
        "maxLength": LONGEST_KEY,
        "x-kubernetes-validations": [
            {"rule": key_rule("self"), "message": KEY_MESSAGE},
            {
                "rule": reserved_rule(),
                "message": "Kubernetes reserves keys in the domains kubernetes.io and k8s.io",
            },
        ],
    })
}

fn aliases_schema(generator: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "additionalProperties": own_key_schema(generator),
        "maxProperties": 4,
    })
}

/// Labels by key, in the form of a selector.
pub(super) fn labels_schema(_: &mut SchemaGenerator) -> Schema {
    let rule = format!("self.all(k, {})", key_rule("k"));
    json_schema!({
        "type": "object",
        "additionalProperties": {"type": "string", "pattern": VALUE},
        "maxProperties": 32,
        "x-kubernetes-validations": [{"rule": rule, "message": KEY_MESSAGE}],
    })
}

/// An index in the plan's form. nodeAffinity's Gt and Lt compare numbers, so `01` would be another
/// label with the same number.
pub(super) fn canonical(text: &str) -> Option<u32> {
    text.parse::<u32>()
        .ok()
        .filter(|number| number.to_string() == text)
}
