//! [`LabelKeys`]: which labels a slot in a case becomes, and what labels that are there already mean.

use std::collections::{BTreeMap, BTreeSet};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use super::Slot;

/// The longest key of a label: a prefix of 253 characters, a slash and a name of 63.
const LONGEST_KEY: u32 = 253 + 1 + 63;

/// What the value of a label, or of a taint, looks like; it may be empty.
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
        "message": "an alias must stand after one of the plan's four label keys",
    },
    {
        "rule": "!has(self.aliases) || self.aliases.all(k, self.aliases.exists_one(o, self.aliases[o] == self.aliases[k]) && \
             !(self.aliases[k] in [self.scene, self.case, self.index, self.type]))",
        "message": "an alias must be a key that the plan does not have already",
    },
]))]
#[serde(rename_all = "camelCase", default)]
pub struct LabelKeys {
    /// The key whose value is the scene. The spelling of the default is what existing templates match.
    #[schemars(schema_with = "own_key_schema")]
    pub scene: String,
    /// The key whose value is the case.
    #[schemars(schema_with = "own_key_schema")]
    pub case: String,
    /// The key whose value is the server's index within its type.
    #[schemars(schema_with = "own_key_schema")]
    pub index: String,
    /// The key whose value is the group's type, where the scene has types.
    #[serde(rename = "type")]
    #[schemars(schema_with = "own_key_schema")]
    pub kind: String,
    /// A second key with the same value, by the first: `{SCENCE: SCENE}`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "aliases_schema")]
    pub aliases: BTreeMap<String, String>,
}

/// A node's labels, in the order scene, case, index, type, each followed by its alias.
pub type Labels = Vec<(String, String)>;

/// What a node's labels say about its slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Holding {
    /// None of the plan's keys is there.
    Nothing,
    /// A slot, whether or not the plan has it.
    Slot(Slot),
    /// Some keys are there, and no slot follows from them.
    Broken {
        /// Why not.
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
    /// The four keys, in the order of [`Labels`].
    pub fn keys(&self) -> [&str; 4] {
        [&self.scene, &self.case, &self.index, &self.kind]
    }

    /// Every key that the plan owns, aliases included: what it may write, and what it removes when a node has no slot.
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
    pub fn labels(&self, slot: &Slot) -> Labels {
        let index = slot.index.to_string();
        let values = [
            Some(&slot.scene),
            Some(&slot.case),
            Some(&index),
            slot.kind.as_ref(),
        ];
        let mut labels = Labels::new();
        for (key, value) in self.keys().into_iter().zip(values) {
            let Some(value) = value else { continue };
            labels.push((key.to_owned(), value.clone()));
            if let Some(alias) = self.aliases.get(key) {
                labels.push((alias.clone(), value.clone()));
            }
        }
        labels
    }

    /// The labels of these that belong to the plan.
    pub fn of<'a>(&self, labels: &'a BTreeMap<String, String>) -> BTreeMap<&'a str, &'a str> {
        let owned = self.owned();
        let pairs = labels
            .iter()
            .map(|(key, value)| (key.as_str(), value.as_str()));
        pairs.filter(|(key, _)| owned.contains(key)).collect()
    }

    /// What a node's labels say about its slot. Aliases only count as the plan's own: what they say must agree.
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
                "it lacks {}",
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
                "{key} should be {value}, like the label it is an alias of"
            )),
            None if wanted.len() != held.len() => {
                broken("it has an alias without the label it belongs to".to_owned())
            }
            None => Holding::Slot(slot),
        }
    }
}

/// The rule of the definition on a label's key: the same as [`key_fault`]. `key` is the name of the key in the rule.
fn key_rule(key: &str) -> String {
    let form = "^([a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?\
                [A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$";
    format!("{key}.matches('{form}') && {key}.matches('^([^/]{{1,253}}/)?[^/]+$')")
}

/// What the definition says where [`key_rule`] fails.
const KEY_MESSAGE: &str = "a label's key is a name of at most 63 letters, digits, '-', '_' and '.', or a DNS name, '/' and such a name";

/// Any label's key.
pub(super) fn key_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "string",
        "minLength": 1,
        "maxLength": LONGEST_KEY,
        "x-kubernetes-validations": [{"rule": key_rule("self"), "message": KEY_MESSAGE}],
    })
}

/// The key of a label that the plan writes: see [`reserved_domain`].
fn own_key_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "string",
        "minLength": 1,
        "maxLength": LONGEST_KEY,
        "x-kubernetes-validations": [
            {"rule": key_rule("self"), "message": KEY_MESSAGE},
            {
                "rule": "!self.matches('^([^/]*[.])?(kubernetes|k8s)[.]io/')",
                "message": "Kubernetes keeps keys in the domains kubernetes.io and k8s.io for itself",
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

/// Labels by key, as a selector has them.
pub(super) fn labels_schema(_: &mut SchemaGenerator) -> Schema {
    let rule = format!("self.all(k, {})", key_rule("k"));
    json_schema!({
        "type": "object",
        "additionalProperties": {"type": "string", "pattern": VALUE},
        "maxProperties": 32,
        "x-kubernetes-validations": [{"rule": rule, "message": KEY_MESSAGE}],
    })
}

/// An index as the plan writes it: nodeAffinity's Gt and Lt read numbers, so `01` would be another label and the same number.
pub(super) fn canonical(text: &str) -> Option<u32> {
    text.parse::<u32>()
        .ok()
        .filter(|number| number.to_string() == text)
}

/// Why a text can't be a label's value, and what to do about it; `None` if it can.
pub fn value_fault(value: &str) -> Option<String> {
    if value.len() > 63 {
        return Some(format!(
            "it has {} characters, and a label's value has at most 63",
            value.len()
        ));
    }
    name_fault(value).filter(|_| !value.is_empty())
}

/// Why a text can't be a label's key; `None` if it can.
pub fn key_fault(key: &str) -> Option<String> {
    let (prefix, name) = match key.split_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, key),
    };
    if let Some(prefix) = prefix
        && let Some(fault) = subdomain_fault(prefix)
    {
        return Some(format!("its prefix {prefix:?} is no DNS name: {fault}"));
    }
    if name.is_empty() {
        return Some("it has no name".to_owned());
    }
    if name.len() > 63 {
        return Some(format!(
            "its name has {} characters, and a label's has at most 63",
            name.len()
        ));
    }
    name_fault(name)
}

/// Why a text can't be the name of an object; `None` if it can.
pub fn subdomain_fault(name: &str) -> Option<String> {
    if name.is_empty() {
        return Some("it is empty".to_owned());
    }
    if name.len() > 253 {
        return Some(format!(
            "it has {} characters, and at most 253 are allowed",
            name.len()
        ));
    }
    let part = |part: &str| {
        let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        !part.is_empty()
            && part.chars().all(inner)
            && !part.starts_with('-')
            && !part.ends_with('-')
    };
    (!name.split('.').all(part)).then(|| {
        "use lower-case letters, digits, '-' and '.', with a letter or digit at the start and end of each part".to_owned()
    })
}

/// The domains that Kubernetes keeps for itself; a node may not even label itself with most of them.
pub fn reserved_domain(key: &str) -> Option<&'static str> {
    let (prefix, _) = key.split_once('/')?;
    ["kubernetes.io", "k8s.io"].into_iter().find(|domain| {
        prefix
            .strip_suffix(domain)
            .is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
    })
}

fn name_fault(text: &str) -> Option<String> {
    let strange = text
        .chars()
        .find(|&c| !(c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.')));
    if let Some(strange) = strange {
        return Some(format!(
            "it has {strange:?}; use letters, digits, '-', '_' and '.'"
        ));
    }
    let edge = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    (!edge(text.chars().next()) || !edge(text.chars().next_back()))
        .then(|| "it must start and end with a letter or a digit".to_owned())
}
