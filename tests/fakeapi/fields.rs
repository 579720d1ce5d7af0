//! Field managers: the field sets in `metadata.managedFields`, and server-side apply.
//!
//! The rules follow structured-merge-diff as far as the built-in kinds need. Lists with keys are
//! merged by key, while atomic lists and a few atomic maps are replaced as a whole.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::access::User;

/// The path of a field. Elements are written as in `fieldsV1`: `f:metadata`, `k:{"name":"c"}`.
pub(crate) type Path = Vec<String>;

/// The fields of one manager.
pub(crate) type FieldSet = BTreeSet<Path>;

/// An entry of `metadata.managedFields`.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Manager {
    pub(crate) name: String,
    pub(crate) operation: &'static str,
    pub(crate) version: String,
    pub(crate) subresource: String,
    pub(crate) time: String,
    pub(crate) set: FieldSet,
}

/// The difference between two objects.
#[derive(Debug, Default)]
pub(crate) struct Difference {
    /// Fields with a new or changed value.
    pub(crate) changed: FieldSet,
    pub(crate) removed: FieldSet,
}

/// The keys of a list's items. `None` for an atomic list.
fn keys(path: &[String], custom: bool) -> Option<&'static [&'static str]> {
    // Lists of custom resources are atomic by default. No schema in these tests sets `x-kubernetes-list-type`.
    if custom && path.first().is_none_or(|first| first != "f:metadata") {
        return None;
    }
    match path.last()?.as_str() {
        "f:containers" | "f:initContainers" | "f:ephemeralContainers" | "f:env" | "f:volumes" => {
            Some(&["name"])
        }
        "f:volumeMounts" => Some(&["mountPath"]),
        "f:ports" => Some(&["containerPort", "protocol"]),
        "f:conditions" | "f:addresses" => Some(&["type"]),
        "f:ownerReferences" => Some(&["uid"]),
        "f:podIPs" => Some(&["ip"]),
        _ => None,
    }
}

/// Whether the value at the path is atomic.
fn atomic(path: &[String]) -> bool {
    let last = path.last().map_or("", String::as_str);
    let atomic_fields = [
        "f:nodeSelector",
        "f:involvedObject",
        "f:regarding",
        "f:related",
        "f:fieldRef",
    ];
    atomic_fields.contains(&last)
        || (last.starts_with("k:") && path.iter().any(|element| element == "f:ownerReferences"))
}

fn child(path: &[String], element: String) -> Path {
    let mut path = path.to_vec();
    path.push(element);
    path
}

fn key_of(item: &Value, keys: &[&str]) -> String {
    let key: Map<String, Value> = keys
        .iter()
        .filter_map(|key| Some(((*key).to_owned(), item.get(key)?.clone())))
        .collect();
    format!("k:{}", Value::Object(key))
}

/// The children of a value, by path element. `None` for a leaf.
fn children(value: &Value, path: &[String], custom: bool) -> Option<Vec<(String, Value)>> {
    if atomic(path) {
        return None;
    }
    match value {
        Value::Object(map) if !map.is_empty() => Some(
            map.iter()
                .map(|(key, value)| (format!("f:{key}"), value.clone()))
                .collect(),
        ),
        Value::Array(items) if !items.is_empty() => {
            let keys = keys(path, custom)?;
            Some(
                items
                    .iter()
                    .map(|item| (key_of(item, keys), item.clone()))
                    .collect(),
            )
        }
        _ => None,
    }
}

/// The fields set by an applied object.
pub(crate) fn named(value: &Value, custom: bool) -> FieldSet {
    fn walk(value: &Value, path: &[String], custom: bool, set: &mut FieldSet) {
        if path.last().is_some_and(|last| last.starts_with("k:")) {
            set.insert(path.to_vec());
        }
        match children(value, path, custom) {
            Some(children) => {
                for (element, value) in children {
                    walk(&value, &child(path, element), custom, set);
                }
            }
            None => {
                set.insert(path.to_vec());
            }
        }
    }
    let mut set = FieldSet::new();
    walk(value, &[], custom, &mut set);
    strip(set)
}

/// The difference between `old` and `new`.
pub(crate) fn difference(old: &Value, new: &Value, custom: bool) -> Difference {
    fn walk(
        old: Option<&Value>,
        new: Option<&Value>,
        path: &[String],
        custom: bool,
        into: &mut Difference,
    ) {
        if old == new {
            return;
        }
        let children_of =
            |value: Option<&Value>| value.and_then(|value| children(value, path, custom));
        let (before, after) = (children_of(old), children_of(new));
        if !path.is_empty() {
            if old.is_none() {
                into.changed.insert(path.to_vec());
            } else if new.is_none() {
                into.removed.insert(path.to_vec());
            }
        }
        if before.is_none() && after.is_none() {
            if old.is_some() && new.is_some() && !path.is_empty() {
                into.changed.insert(path.to_vec());
            }
            return;
        }
        let (before, after) = (before.unwrap_or_default(), after.unwrap_or_default());
        for (element, value) in &after {
            let other = before
                .iter()
                .find(|(other, _)| other == element)
                .map(|(_, value)| value);
            walk(
                other,
                Some(value),
                &child(path, element.clone()),
                custom,
                into,
            );
        }
        for (element, value) in &before {
            if !after.iter().any(|(other, _)| other == element) {
                walk(
                    Some(value),
                    None,
                    &child(path, element.clone()),
                    custom,
                    into,
                );
            }
        }
    }
    let mut difference = Difference::default();
    walk(Some(old), Some(new), &[], custom, &mut difference);
    difference.changed = strip(difference.changed);
    difference.removed = strip(difference.removed);
    difference
}

/// Removes the fields without a manager, such as name and uid.
fn strip(set: FieldSet) -> FieldSet {
    let unmanaged = [
        "f:name",
        "f:namespace",
        "f:creationTimestamp",
        "f:uid",
        "f:generation",
        "f:managedFields",
        "f:resourceVersion",
        "f:deletionTimestamp",
        "f:deletionGracePeriodSeconds",
    ];
    set.into_iter()
        .filter(|path| match path.as_slice() {
            [] => false,
            [first] => first != "f:apiVersion" && first != "f:kind" && first != "f:metadata",
            [first, second, ..] => first != "f:metadata" || !unmanaged.contains(&second.as_str()),
        })
        .collect()
}

/// Merges `config` into `live`.
pub(crate) fn merge(live: &mut Value, config: &Value, path: &[String], custom: bool) {
    match (&mut *live, config) {
        (Value::Object(live), Value::Object(config)) if !atomic(path) => {
            for (key, value) in config {
                let path = child(path, format!("f:{key}"));
                match live.get_mut(key) {
                    Some(slot) => merge(slot, value, &path, custom),
                    None => {
                        live.insert(key.clone(), value.clone());
                    }
                }
            }
        }
        (Value::Array(items), Value::Array(config)) => match keys(path, custom) {
            Some(keys) => {
                for item in config {
                    let key = key_of(item, keys);
                    match items.iter_mut().find(|other| key_of(other, keys) == key) {
                        Some(slot) => merge(slot, item, &child(path, key), custom),
                        None => items.push(item.clone()),
                    }
                }
            }
            None => items.clone_from(config),
        },
        (live, config) => live.clone_from(config),
    }
}

/// Removes a field, if present.
fn remove(value: &mut Value, path: &[String], custom: bool, at: &[String]) {
    let [element, rest @ ..] = path else { return };
    let here = child(at, element.clone());
    match value {
        Value::Object(map) => {
            let Some(key) = element.strip_prefix("f:") else {
                return;
            };
            if rest.is_empty() {
                map.shift_remove(key);
            } else if let Some(value) = map.get_mut(key) {
                remove(value, rest, custom, &here);
            }
        }
        Value::Array(items) => {
            let Some(keys) = keys(at, custom) else { return };
            let Some(index) = items.iter().position(|item| key_of(item, keys) == *element) else {
                return;
            };
            if rest.is_empty() {
                items.remove(index);
            } else {
                remove(&mut items[index], rest, custom, &here);
            }
        }
        _ => {}
    }
}

/// The entries of `metadata.managedFields`.
pub(crate) fn managers(object: &Value) -> Vec<Manager> {
    let text = |entry: &Value, key: &str| entry[key].as_str().unwrap_or_default().to_owned();
    let entries = object["metadata"]["managedFields"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    entries
        .iter()
        .map(|entry| Manager {
            name: text(entry, "manager"),
            operation: if entry["operation"] == "Apply" {
                "Apply"
            } else {
                "Update"
            },
            version: text(entry, "apiVersion"),
            subresource: text(entry, "subresource"),
            time: text(entry, "time"),
            set: read(&entry["fieldsV1"]),
        })
        .collect()
}

/// Writes `metadata.managedFields`, in the API server's order.
pub(crate) fn set_managers(object: &mut Value, mut managers: Vec<Manager>) {
    managers.retain(|manager| !manager.set.is_empty());
    managers.sort_by(|a, b| {
        (a.operation, &a.time, &a.name, &a.version).cmp(&(
            b.operation,
            &b.time,
            &b.name,
            &b.version,
        ))
    });
    let entries: Vec<Value> = managers
        .iter()
        .map(|manager| {
            let mut entry = json!({
                "manager": manager.name, "operation": manager.operation, "apiVersion": manager.version,
                "time": manager.time, "fieldsType": "FieldsV1", "fieldsV1": write(&manager.set),
            });
            if !manager.subresource.is_empty() {
                entry["subresource"] = json!(manager.subresource);
            }
            if manager.time.is_empty() {
                entry.as_object_mut().unwrap().shift_remove("time");
            }
            entry
        })
        .collect();
    let metadata = object["metadata"].as_object_mut().unwrap();
    if entries.is_empty() {
        metadata.shift_remove("managedFields");
    } else {
        metadata.insert("managedFields".to_owned(), Value::Array(entries));
    }
}

fn read(fields: &Value) -> FieldSet {
    fn walk(value: &Value, path: &[String], set: &mut FieldSet) {
        let Some(map) = value.as_object() else { return };
        if map.is_empty() && !path.is_empty() {
            set.insert(path.to_vec());
        }
        for (key, value) in map {
            if key == "." {
                set.insert(path.to_vec());
            } else {
                walk(value, &child(path, key.clone()), set);
            }
        }
    }
    let mut set = FieldSet::new();
    walk(fields, &[], &mut set);
    set
}

fn write(set: &FieldSet) -> Value {
    let mut root = json!({});
    for path in set {
        let mut at = &mut root;
        for element in path {
            at = at
                .as_object_mut()
                .unwrap()
                .entry(element.clone())
                .or_insert_with(|| json!({}));
        }
        if set
            .iter()
            .any(|other| other.len() > path.len() && other.starts_with(path))
        {
            at["."] = json!({});
        }
    }
    root
}

/// The writer of a request.
#[derive(Debug, Clone)]
pub(crate) struct Writer<'a> {
    pub(crate) manager: &'a str,
    pub(crate) version: &'a str,
    pub(crate) subresource: &'a str,
    pub(crate) now: &'a str,
    /// The user, as input of the admission policies.
    pub(crate) user: &'a User,
    pub(crate) custom: bool,
}

/// Updates `managedFields` after an update. The writer becomes the manager of each changed field.
pub(crate) fn account_update(old: &Value, new: &mut Value, writer: &Writer<'_>) {
    let difference = difference(&bare(old), &bare(new), writer.custom);
    let mut all = managers(old);
    for manager in &mut all {
        let own = manager.operation == "Update"
            && manager.name == writer.manager
            && manager.subresource == writer.subresource;
        manager
            .set
            .retain(|path| !difference.removed.iter().any(|gone| path.starts_with(gone)));
        if !own {
            manager
                .set
                .retain(|path| !difference.changed.contains(path));
        }
    }
    let own = all.iter_mut().find(|manager| {
        manager.operation == "Update"
            && manager.name == writer.manager
            && manager.version == writer.version
            && manager.subresource == writer.subresource
    });
    match own {
        Some(own) => {
            let before = own.set.clone();
            own.set.extend(difference.changed);
            if own.set != before {
                own.time = writer.now.to_owned();
            }
        }
        None => all.push(Manager {
            name: writer.manager.to_owned(),
            operation: "Update",
            version: writer.version.to_owned(),
            subresource: writer.subresource.to_owned(),
            time: writer.now.to_owned(),
            set: difference.changed,
        }),
    }
    set_managers(new, all);
}

/// A field managed by another manager, with another value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Conflict {
    pub(crate) who: String,
    pub(crate) field: String,
}

/// Server-side apply of `config` on `live`.
pub(crate) fn apply(
    live: &Value,
    config: &Value,
    writer: &Writer<'_>,
    force: bool,
) -> Result<Value, Vec<Conflict>> {
    let wanted = named(config, writer.custom);
    let mut all = managers(live);
    let is_own = |manager: &Manager| {
        manager.operation == "Apply"
            && manager.name == writer.manager
            && manager.subresource == writer.subresource
    };
    let mut new = bare(live);
    let mut config = config.clone();
    if let Some(map) = config.as_object_mut() {
        map.shift_remove("apiVersion");
        map.shift_remove("kind");
    }
    merge(&mut new, &config, &[], writer.custom);
    let own = all
        .iter()
        .find(|manager| is_own(manager))
        .map(|own| own.set.clone())
        .unwrap_or_default();
    for path in own.difference(&wanted) {
        let still_wanted = wanted.iter().any(|other| other.starts_with(path));
        let other_manager = all
            .iter()
            .any(|manager| !is_own(manager) && manager.set.contains(path));
        if !still_wanted && !other_manager {
            remove(&mut new, path, writer.custom, &[]);
        }
    }
    let changes = difference(&bare(live), &new, writer.custom);
    let mut conflicts = Vec::new();
    for manager in all.iter_mut().filter(|manager| !is_own(manager)) {
        let contested: Vec<Path> = manager
            .set
            .intersection(&changes.changed)
            .cloned()
            .collect();
        for path in &contested {
            let value = path
                .iter()
                .map(|element| format!(".{}", element.trim_start_matches("f:")));
            let mut who = format!("{:?}", manager.name);
            if !manager.subresource.is_empty() {
                who = format!("{who} with subresource {:?}", manager.subresource);
            }
            if manager.operation == "Update" {
                who = format!("{who} using {}", manager.version);
            }
            conflicts.push(Conflict {
                who,
                field: value.collect(),
            });
            manager.set.remove(path);
        }
        manager
            .set
            .retain(|path| !changes.removed.iter().any(|gone| path.starts_with(gone)));
    }
    if !conflicts.is_empty() && !force {
        return Err(conflicts);
    }
    match all.iter_mut().find(|manager| is_own(manager)) {
        Some(own) if own.set == wanted => {}
        Some(own) => {
            own.set = wanted;
            own.time = writer.now.to_owned();
        }
        None => all.push(Manager {
            name: writer.manager.to_owned(),
            operation: "Apply",
            version: writer.version.to_owned(),
            subresource: writer.subresource.to_owned(),
            time: writer.now.to_owned(),
            set: wanted,
        }),
    }
    set_managers(&mut new, all);
    Ok(new)
}

/// The object without `managedFields`.
pub(crate) fn bare(object: &Value) -> Value {
    let mut object = object.clone();
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.shift_remove("managedFields");
    }
    object
}
