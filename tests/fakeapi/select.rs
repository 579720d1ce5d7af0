//! Field and label selectors.

use serde_json::Value;

use super::kinds::ObjectKind;
use super::status::{self, Answer};

/// A namespace, a field selector and a label selector.
#[derive(Debug, Clone, Default)]
pub(crate) struct Selector {
    namespace: String,
    fields: Vec<(String, bool, String)>,
    labels: Vec<Requirement>,
}

#[derive(Debug, Clone)]
struct Requirement {
    key: String,
    negated: bool,
    /// The allowed values. `None` requires only the key.
    values: Option<Vec<String>>,
}

// === impl Selector ===

impl Selector {
    pub(crate) fn parse(
        kind: &ObjectKind,
        namespace: &str,
        fields: &str,
        labels: &str,
    ) -> Answer<Self> {
        let mut selector = Self {
            namespace: namespace.to_owned(),
            ..Self::default()
        };
        for part in fields.split(',').filter(|part| !part.is_empty()) {
            let (key, rest) = part.split_once(['=', '!']).ok_or_else(|| {
                status::bad_request(&format!("invalid selector: {part:?}; can't understand it"))
            })?;
            let negated = part[key.len()..].starts_with('!');
            let value = rest.trim_start_matches('=');
            if !known_field(kind, key) {
                return Err(status::bad_request(&format!(
                    "field label not supported: {key}"
                )));
            }
            selector
                .fields
                .push((key.to_owned(), !negated, value.to_owned()));
        }
        selector.labels = requirements(labels).ok_or_else(|| {
            status::bad_request(&format!("unable to parse requirement: {labels:?}"))
        })?;
        Ok(selector)
    }

    pub(crate) fn is_all(&self) -> bool {
        self.fields.is_empty() && self.labels.is_empty()
    }

    /// The namespace. Empty for all namespaces.
    pub(crate) fn namespace(&self) -> &str {
        &self.namespace
    }

    /// The first label requirement with exactly one value, for the label index.
    pub(crate) fn label(&self) -> Option<(&str, &str)> {
        let requirement = self.labels.iter().find(|requirement| {
            !requirement.negated
                && requirement
                    .values
                    .as_ref()
                    .is_some_and(|all| all.len() == 1)
        })?;
        Some((&requirement.key, requirement.values.as_ref()?.first()?))
    }

    pub(crate) fn matches(&self, object: &Value) -> bool {
        let place = object["metadata"]["namespace"].as_str().unwrap_or_default();
        if !self.namespace.is_empty() && self.namespace != place {
            return false;
        }
        let field = |key: &str| {
            let value = key.split('.').fold(object, |value, key| &value[key]);
            value.as_str().unwrap_or_default().to_owned()
        };
        let labels = &object["metadata"]["labels"];
        self.fields
            .iter()
            .all(|(key, equal, value)| (field(key) == *value) == *equal)
            && self.labels.iter().all(|requirement| {
                let value = labels[&requirement.key].as_str();
                let holds = match &requirement.values {
                    None => value.is_some(),
                    Some(values) => {
                        value.is_some_and(|value| values.iter().any(|other| other == value))
                    }
                };
                holds != requirement.negated
            })
    }
}

fn known_field(kind: &ObjectKind, key: &str) -> bool {
    let of_pods = [
        "spec.nodeName",
        "spec.restartPolicy",
        "spec.schedulerName",
        "spec.serviceAccountName",
        "status.phase",
        "status.podIP",
    ];
    matches!(key, "metadata.name" | "metadata.namespace")
        || (kind.kind == "Pod" && of_pods.contains(&key))
        || (kind.kind == "Event"
            && (key.starts_with("involvedObject.") || key.starts_with("regarding.")))
        || (kind.kind == "Event" && matches!(key, "reason" | "type" | "reportingController"))
}

fn requirements(text: &str) -> Option<Vec<Requirement>> {
    let (mut found, mut depth, mut part) = (Vec::new(), 0, String::new());
    for letter in text.chars().chain(std::iter::once(',')) {
        match letter {
            ',' if depth == 0 => {
                if !part.trim().is_empty() {
                    found.push(requirement(part.trim())?);
                }
                part.clear();
                continue;
            }
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => {}
        }
        part.push(letter);
    }
    (depth == 0).then_some(found)
}

fn requirement(text: &str) -> Option<Requirement> {
    let make = |key: &str, negated, values| Requirement {
        key: key.trim().to_owned(),
        negated,
        values,
    };
    if let Some((key, list)) = text.split_once('(') {
        let values = list
            .strip_suffix(')')?
            .split(',')
            .map(|value| value.trim().to_owned())
            .collect();
        let key = key.trim();
        return match key.rsplit_once(' ')? {
            (key, "in") => Some(make(key, false, Some(values))),
            (key, "notin") => Some(make(key, true, Some(values))),
            _ => None,
        };
    }
    let single = |value: &str| Some(vec![value.trim().to_owned()]);
    if let Some((key, value)) = text.split_once("!=") {
        return Some(make(key, true, single(value)));
    }
    if let Some((key, value)) = text.split_once("==").or_else(|| text.split_once('=')) {
        return Some(make(key, false, single(value)));
    }
    match text.strip_prefix('!') {
        Some(key) => Some(make(key, true, None)),
        None => Some(make(text, false, None)),
    }
}
