//! The custom resource definition, and the violations of its schema in a document.
//!
//! The schema is applied as in the API server, except patterns and rules. Those are applied by
//! `check`, which also names the corrections.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSON, JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
};
use kube::CustomResourceExt;
use serde_json::Value;

use super::ScenePlan;
use super::tree::{Path, Tree, ValueKind};
use crate::text::nearest;

/// The definition of ScenePlan, to be applied to a cluster.
pub fn definition() -> CustomResourceDefinition {
    ScenePlan::crd()
}

/// A violation: the place, the mistake, and the correction.
pub(crate) type Violation = (Path, String, String);

fn schema() -> Option<JSONSchemaProps> {
    let version = definition().spec.versions.into_iter().next()?;
    version.schema?.open_api_v3_schema
}

/// The probable meaning of a refused value. Numbers become texts where the schema wants a text, and
/// optional values that can't be mended are removed, so that a single mistake does not hide the
/// others.
pub(super) fn mended(mut value: Value) -> Value {
    let schema = schema();
    let spec = schema
        .as_ref()
        .and_then(|schema| schema.properties.as_ref()?.get("spec"));
    if let (Some(spec), Some(value)) = (spec, value.get_mut("spec")) {
        mend(value, spec);
    }
    value
}

fn mend(value: &mut Value, schema: &JSONSchemaProps) {
    match (schema.type_.as_deref(), &mut *value) {
        (Some("string"), Value::Number(_) | Value::Bool(_)) => {
            *value = Value::String(value.to_string());
        }
        (Some("integer"), Value::String(text)) => {
            if let Ok(number) = text.parse::<u32>() {
                *value = number.into();
            }
        }
        (Some("object"), Value::Object(entries)) => {
            let of = |key: &str| match (
                schema.properties.as_ref(),
                schema.additional_properties.as_ref(),
            ) {
                (Some(properties), _) => properties.get(key),
                (None, Some(JSONSchemaPropsOrBool::Schema(schema))) => Some(schema.as_ref()),
                _ => None,
            };
            let needed = |key: &str| {
                schema
                    .required
                    .iter()
                    .flatten()
                    .any(|required| required == key)
            };
            entries.retain(|key, value| {
                let Some(schema) = of(key) else { return true };
                mend(value, schema);
                needed(key) || fits(value, schema)
            });
        }
        (Some("array"), Value::Array(items)) => {
            if let Some(JSONSchemaPropsOrArray::Schema(schema)) = &schema.items {
                items.iter_mut().for_each(|item| mend(item, schema));
            }
        }
        _ => {}
    }
}

/// Whether a value has the schema's type and is a word of the schema's list.
fn fits(value: &Value, schema: &JSONSchemaProps) -> bool {
    match schema.type_.as_deref() {
        Some("object") => value.is_object(),
        Some("array") => value.is_array(),
        Some("boolean") => value.is_boolean(),
        Some("integer") => value
            .as_u64()
            .is_some_and(|number| u32::try_from(number).is_ok()),
        Some("string") => {
            let known = |words: &Vec<_>| words.iter().any(|word: &JSON| word.0 == *value);
            value.is_string() && schema.enum_.as_ref().is_none_or(known)
        }
        _ => value.is_string() || value.is_number(),
    }
}

/// The schema's violations in a document.
pub(super) fn violations(tree: &Tree) -> Vec<Violation> {
    let mut found = Vec::new();
    let Some(schema) = schema() else { return found };
    let ValueKind::Map(entries) = &tree.node else {
        return found;
    };
    let known = ["apiVersion", "kind", "metadata", "spec", "status"];
    for (key, _) in entries {
        if !known.contains(&key.as_str()) {
            found.push(unknown(&Path::default(), key, known.iter().copied()));
        }
    }
    let spec = schema
        .properties
        .as_ref()
        .and_then(|properties| properties.get("spec"));
    match (tree.get("spec"), spec) {
        (Some(tree), Some(schema)) => walk(tree, schema, &Path::of(&["spec"]), &mut found),
        (None, _) => found.push((
            Path::default(),
            "the spec is missing".to_owned(),
            "write spec: with nodes and scenes below it".to_owned(),
        )),
        (Some(_), None) => {}
    }
    if let Some(tree) = tree.get("metadata") {
        let typed = serde_json::from_value::<
            k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta,
        >(tree.value());
        if let Err(error) = typed {
            found.push((
                Path::of(&["metadata"]),
                format!("the field is not the metadata of an object: {error}"),
                "write metadata: {name: NAME}, with texts for labels and annotations".to_owned(),
            ));
        }
    }
    found
}

#[cfg(feature = "experiments")]
pub(crate) fn violations_of(tree: &Tree, schema: &JSONSchemaProps) -> Vec<Violation> {
    let mut found = Vec::new();
    walk(tree, schema, &Path::default(), &mut found);
    found
}

fn walk(tree: &Tree, schema: &JSONSchemaProps, path: &Path, found: &mut Vec<Violation>) {
    if tree.is_null() && schema.nullable == Some(true) {
        return;
    }
    match &tree.node {
        ValueKind::Map(entries) if schema.type_.as_deref() == Some("object") => {
            map(entries, schema, path, found);
        }
        ValueKind::List(items) if schema.type_.as_deref() == Some("array") => {
            list(items, schema, path, found);
        }
        ValueKind::Scalar(value) => scalar(value, schema, path, found),
        ValueKind::Map(_) => found.push(wrong_type(path, "a map", schema)),
        ValueKind::List(_) => found.push(wrong_type(path, "a list", schema)),
    }
}

fn map(
    entries: &[(String, Tree)],
    schema: &JSONSchemaProps,
    path: &Path,
    found: &mut Vec<Violation>,
) {
    let has_value = |key: &str| {
        entries
            .iter()
            .any(|(name, value)| name == key && !value.is_null())
    };
    for key in schema
        .required
        .iter()
        .flatten()
        .filter(|key| !has_value(key))
    {
        found.push((
            path.clone(),
            format!("{key} is missing"),
            format!("add {key}"),
        ));
    }
    count(
        entries.len(),
        (schema.min_properties, schema.max_properties),
        "entries",
        path,
        found,
    );
    for (key, value) in entries {
        let property = schema
            .properties
            .as_ref()
            .and_then(|properties| properties.get(key));
        match (property, schema.additional_properties.as_ref()) {
            (Some(property), _) => walk(value, property, &path.key(key), found),
            (None, Some(JSONSchemaPropsOrBool::Schema(schema))) => {
                walk(value, schema, &path.key(key), found);
            }
            (None, Some(JSONSchemaPropsOrBool::Bool(true))) => {}
            (None, _) => {
                let known = schema
                    .properties
                    .iter()
                    .flatten()
                    .map(|(name, _)| name.as_str());
                found.push(unknown(path, key, known));
            }
        }
    }
}

fn list(items: &[Tree], schema: &JSONSchemaProps, path: &Path, found: &mut Vec<Violation>) {
    count(
        items.len(),
        (schema.min_items, schema.max_items),
        "items",
        path,
        found,
    );
    let Some(JSONSchemaPropsOrArray::Schema(schema)) = &schema.items else {
        return;
    };
    for (index, item) in items.iter().enumerate() {
        walk(item, schema, &path.at(index), found);
    }
}

fn scalar(value: &Value, schema: &JSONSchemaProps, path: &Path, found: &mut Vec<Violation>) {
    if schema.x_kubernetes_int_or_string == Some(true) {
        let number = value.as_f64();
        // A negative number is a mistake of the quantity, which `check` names.
        if number.is_some_and(|number| number.fract() != 0.0) {
            let text = format!(
                "{value} is a number with a fraction, which the API server accepts only as a text"
            );
            return found.push((
                path.clone(),
                text,
                format!("write it in quotes: \"{value}\""),
            ));
        }
        if value.is_string() || number.is_some() {
            return;
        }
    }
    match (schema.type_.as_deref(), value) {
        (Some("string"), Value::String(text)) => string(text, schema, path, found),
        (Some("string"), Value::Bool(_) | Value::Number(_)) => found.push((
            path.clone(),
            format!("{value} is a {}, but the field needs a text", kind(value)),
            format!("write it in quotes: \"{value}\""),
        )),
        (Some("boolean"), Value::Bool(_)) => {}
        (Some("integer"), Value::Number(number)) => {
            let fits = number.as_i64().is_some_and(|number| {
                let number = number as f64;
                schema.minimum.is_none_or(|least| number >= least)
                    && schema.maximum.is_none_or(|most| number <= most)
            });
            if !fits {
                let (least, most) = (
                    schema.minimum.unwrap_or(0.0),
                    schema.maximum.unwrap_or(f64::INFINITY),
                );
                let fix = format!("write a whole number from {least} to {most}");
                found.push((
                    path.clone(),
                    format!("{number} is not an allowed number"),
                    fix,
                ));
            }
        }
        (Some("integer"), Value::String(text)) if text.parse::<u32>().is_ok() => found.push((
            path.clone(),
            format!("{text:?} is a text, but the field needs a number"),
            format!("write it without quotes: {text}"),
        )),
        _ => found.push(wrong_type(path, kind(value), schema)),
    }
}

/// The violations of a text: a word that is not allowed, and a wrong length.
fn string(text: &str, schema: &JSONSchemaProps, path: &Path, found: &mut Vec<Violation>) {
    if let Some(allowed) = &schema.enum_
        && !allowed
            .iter()
            .any(|allowed| allowed.0.as_str() == Some(text))
    {
        let words: Vec<&str> = allowed
            .iter()
            .filter_map(|allowed| allowed.0.as_str())
            .collect();
        let fix = format!("write one of {}", words.join(", "));
        found.push((path.clone(), format!("{text:?} is not allowed"), fix));
    }
    let bounds = (schema.min_length, schema.max_length);
    count(text.chars().count(), bounds, "characters", path, found);
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "nothing",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "text",
        Value::Array(_) => "list",
        Value::Object(_) => "map",
    }
}

fn wrong_type(path: &Path, seen: &str, schema: &JSONSchemaProps) -> Violation {
    let wanted = match schema.type_.as_deref() {
        Some("object") => "a map",
        Some("array") => "a list",
        Some("string") => "a text",
        Some("integer") => "a whole number",
        Some("boolean") => "true or false",
        _ => "a quantity like 300m, 4Gi or 2",
    };
    (
        path.clone(),
        format!("{seen} is not allowed here"),
        format!("write {wanted}"),
    )
}

fn count(
    length: usize,
    (least, most): (Option<i64>, Option<i64>),
    what: &str,
    path: &Path,
    found: &mut Vec<Violation>,
) {
    let number = i64::try_from(length).unwrap_or(i64::MAX);
    if let Some(least) = least.filter(|&least| number < least) {
        found.push((
            path.clone(),
            format!("there are {length} {what}"),
            format!("write at least {least}"),
        ));
    }
    if let Some(most) = most.filter(|&most| number > most) {
        found.push((
            path.clone(),
            format!("there are {length} {what}"),
            format!("write at most {most}"),
        ));
    }
}

fn unknown<'a>(path: &Path, key: &str, known: impl Iterator<Item = &'a str>) -> Violation {
    let known: Vec<&str> = known.collect();
    let fix = match nearest(key, &known) {
        Some(name) => format!("did you mean {name}?"),
        None => format!(
            "remove the field; the known fields are {}",
            known.join(", ")
        ),
    };
    (path.key(key), format!("the field {key} is unknown"), fix)
}
