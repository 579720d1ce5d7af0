//! Patches: merge patch, strategic merge patch, and server-side apply.

use std::sync::Arc;

use serde_json::{Value, json};

use super::access::User;
use super::fields::{self, Writer};
use super::kinds::{ObjectKind, qos};
use super::status::{self, Answer, Mistake};
use super::store::{Owners, Store};

/// A patch request.
#[derive(Debug)]
pub(crate) struct Patch<'a> {
    pub(crate) content_type: &'a str,
    pub(crate) body: &'a [u8],
    pub(crate) manager: Option<&'a str>,
    pub(crate) agent: &'a str,
    pub(crate) force: bool,
    pub(crate) subresource: &'a str,
    /// The user, as input of the admission policies.
    pub(crate) user: &'a User,
    pub(crate) may_create: bool,
}

/// Applies a patch. Returns the object, and whether the patch created it.
pub(crate) fn patch(
    store: &mut Store,
    kind: &ObjectKind,
    namespace: &str,
    name: &str,
    patch: &Patch<'_>,
) -> Answer<(Arc<Value>, bool)> {
    let now = store.now();
    let version = kind.api_version();
    let writer = Writer {
        manager: patch.manager.unwrap_or(patch.agent),
        version: &version,
        subresource: patch.subresource,
        now: &now,
        user: patch.user,
        custom: kind.custom(),
    };
    if patch.content_type == "application/apply-patch+yaml" {
        return apply(store, kind, namespace, name, patch, &writer);
    }
    let change: Value = serde_json::from_slice(patch.body)
        .map_err(|error| status::bad_request(&format!("error decoding patch: {error}")))?;
    let old = store
        .get(kind, namespace, name)
        .ok_or_else(|| status::not_found(kind, name))?;
    let mut new = fields::bare(&old);
    match patch.content_type {
        "application/merge-patch+json" => merge(&mut new, &change),
        "application/strategic-merge-patch+json" if !kind.custom() => strategic(&mut new, &change),
        other => {
            return Err(status::text(
                415,
                &format!("the body of the request was in an unknown format - {other}\n"),
            ));
        }
    }
    if patch.subresource == "resize" && qos(&new) != old["status"]["qosClass"] {
        let words = format!(
            "Invalid value: {}: Pod QOS Class may not change as a result of resizing",
            old["status"]["qosClass"]
        );
        return Err(status::invalid(
            kind,
            name,
            &[Mistake {
                field: "spec",
                reason: "FieldValueInvalid",
                words,
            }],
        ));
    }
    let stored = update(store, kind, namespace, name, new, &writer)?;
    Ok((stored, false))
}

/// Stores a changed object as an update, after the checks of resourceVersion and uid.
pub(crate) fn update(
    store: &mut Store,
    kind: &ObjectKind,
    namespace: &str,
    name: &str,
    mut new: Value,
    writer: &Writer<'_>,
) -> Answer<Arc<Value>> {
    let old = store
        .get(kind, namespace, name)
        .ok_or_else(|| status::not_found(kind, name))?;
    let new_text = |key: &str| new["metadata"][key].as_str().unwrap_or_default().to_owned();
    if !new_text("resourceVersion").is_empty()
        && new["metadata"]["resourceVersion"] != old["metadata"]["resourceVersion"]
    {
        return Err(status::conflict(kind, name, status::MODIFIED));
    }
    if !new_text("uid").is_empty() && new["metadata"]["uid"] != old["metadata"]["uid"] {
        let (wanted, is) = (
            new_text("uid"),
            old["metadata"]["uid"].as_str().unwrap_or_default(),
        );
        let why =
            format!("Precondition failed: UID in precondition: {wanted}, UID in object meta: {is}");
        return Err(status::conflict(kind, name, &why));
    }
    keep_system_fields(kind, &old, &mut new, writer.subresource);
    kind.default(&mut new);
    fields::account_update(&old, &mut new, writer);
    store.replace(kind, namespace, name, new, writer)
}

/// Restores the fields that a writer can't change: identity fields, and `spec` or `status` depending on the subresource.
fn keep_system_fields(kind: &ObjectKind, old: &Value, new: &mut Value, subresource: &str) {
    new["kind"] = json!(kind.kind);
    new["apiVersion"] = json!(kind.api_version());
    if !new["metadata"].is_object() {
        new["metadata"] = json!({});
    }
    for key in [
        "name",
        "namespace",
        "uid",
        "creationTimestamp",
        "generation",
        "resourceVersion",
        "deletionTimestamp",
    ] {
        let metadata = new["metadata"].as_object_mut().expect("made above");
        match old["metadata"].get(key) {
            Some(value) => {
                metadata.insert(key.to_owned(), value.clone());
            }
            None => {
                metadata.shift_remove(key);
            }
        }
    }
    let restore = |new: &mut Value, key: &str| {
        let map = new.as_object_mut().expect("objects are maps");
        match old.get(key) {
            Some(value) => {
                map.insert(key.to_owned(), value.clone());
            }
            None => {
                map.shift_remove(key);
            }
        }
    };
    if subresource == "status" {
        restore(new, "spec");
    } else if kind.has_status() {
        restore(new, "status");
    }
}

fn apply(
    store: &mut Store,
    kind: &ObjectKind,
    namespace: &str,
    name: &str,
    patch: &Patch<'_>,
    writer: &Writer<'_>,
) -> Answer<(Arc<Value>, bool)> {
    if patch.manager.is_none() {
        return Err(status::invalid_of(
            "PatchOptions",
            Some("meta.k8s.io"),
            "",
            &[Mistake {
                field: "fieldManager",
                reason: "FieldValueRequired",
                words: "Required value: is required for apply patch".to_owned(),
            }],
        ));
    }
    let text = String::from_utf8_lossy(patch.body);
    let mut config: Value = serde_json::from_str(&text)
        .or_else(|_| serde_saphyr::from_str(&text))
        .map_err(|error| status::bad_request(&format!("error decoding YAML: {error}")))?;
    if config["kind"] != kind.kind.as_str() || config["apiVersion"] != kind.api_version() {
        return Err(status::bad_request(
            "the kind and apiVersion of the applied object must be those of the request",
        ));
    }
    if config["metadata"]
        .get("managedFields")
        .is_some_and(|fields| !fields.is_null())
    {
        return Err(status::bad_request("metadata.managedFields must be nil"));
    }
    if let Some(mistake) = kind.type_mistake(&config) {
        let version = if kind.group.is_empty() {
            format!("/{}", kind.version)
        } else {
            kind.api_version()
        };
        return Err(status::internal(&format!(
            "failed to create typed patch object ({namespace}/{name}; {version}, Kind={}): {mistake}",
            kind.kind
        )));
    }
    if patch.subresource == "status" {
        config
            .as_object_mut()
            .expect("objects are maps")
            .shift_remove("spec");
    }
    match store.get(kind, namespace, name) {
        None => {
            // An applied uid requires an existing object. An applied resourceVersion does not.
            if let Some(uid) = config["metadata"]["uid"].as_str() {
                let why = format!(
                    "uid mismatch: the provided object specified uid {uid}, and no existing object was found"
                );
                return Err(status::conflict(kind, name, &why));
            }
            if !patch.may_create {
                return Err(status::forbidden(
                    kind,
                    &patch.user.name,
                    "create",
                    namespace,
                    name,
                ));
            }
            config["metadata"]["name"] = json!(name);
            let object = fields::apply(&json!({"metadata": {}}), &config, writer, patch.force)
                .map_err(|conflicts| status::apply_conflict(&conflicts))?;
            let managers = fields::managers(&object);
            let created = store.create(
                kind,
                namespace,
                fields::bare(&object),
                Owners::Applied(managers),
                writer,
            )?;
            Ok((created, true))
        }
        Some(live) => {
            let given = &config["metadata"]["resourceVersion"];
            if given.is_string() && *given != live["metadata"]["resourceVersion"] {
                return Err(status::conflict(kind, name, status::MODIFIED));
            }
            let new = fields::apply(&live, &config, writer, patch.force)
                .map_err(|conflicts| status::apply_conflict(&conflicts))?;
            Ok((store.replace(kind, namespace, name, new, writer)?, false))
        }
    }
}

/// A JSON merge patch (RFC 7386).
fn merge(value: &mut Value, patch: &Value) {
    let Value::Object(changes) = patch else {
        value.clone_from(patch);
        return;
    };
    if !value.is_object() {
        *value = json!({});
    }
    let map = value.as_object_mut().expect("made above");
    for (key, change) in changes {
        if change.is_null() {
            map.shift_remove(key);
        } else {
            merge(map.entry(key.clone()).or_insert(Value::Null), change);
        }
    }
}

/// A strategic merge patch. Lists of objects with names are merged by name. Lists of other values are replaced.
fn strategic(value: &mut Value, patch: &Value) {
    match (&mut *value, patch) {
        (Value::Object(map), Value::Object(changes)) => {
            for (key, change) in changes {
                if change.is_null() {
                    map.shift_remove(key);
                } else {
                    strategic(map.entry(key.clone()).or_insert(Value::Null), change);
                }
            }
        }
        (Value::Array(items), Value::Array(changes))
            if changes.iter().all(|change| change["name"].is_string()) =>
        {
            for change in changes {
                match items.iter_mut().find(|item| item["name"] == change["name"]) {
                    Some(item) => strategic(item, change),
                    None => items.push(change.clone()),
                }
            }
        }
        (value, change) => merge(value, change),
    }
}
