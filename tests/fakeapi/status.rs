//! The API server's error responses, with the server's own texts.

use serde_json::{Value, json};

use super::fields::Conflict;
use super::kinds::ObjectKind;

/// An error response.
#[derive(Debug, Clone)]
pub(crate) struct Refusal {
    pub(crate) code: u16,
    /// A Status object, or a string for a plain text response.
    pub(crate) body: Value,
    pub(crate) retry_after: Option<u64>,
}

pub(crate) type Answer<T> = Result<T, Box<Refusal>>;

fn failure(code: u16, reason: &str, message: &str, details: Value) -> Box<Refusal> {
    let mut body = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": message,
    });
    if !reason.is_empty() {
        body["reason"] = json!(reason);
    }
    if !details.is_null() {
        body["details"] = details;
    }
    body["code"] = json!(code);
    Box::new(Refusal {
        code,
        body,
        retry_after: None,
    })
}

/// A plain text response, as from the server's handlers without Status objects.
pub(crate) fn text(code: u16, text: &str) -> Box<Refusal> {
    Box::new(Refusal {
        code,
        body: json!(text),
        retry_after: None,
    })
}

fn details(kind: &ObjectKind, name: &str) -> Value {
    let mut details = json!({});
    if !name.is_empty() {
        details["name"] = json!(name);
    }
    if !kind.group.is_empty() {
        details["group"] = json!(kind.group);
    }
    details["kind"] = json!(kind.plural);
    details
}

pub(crate) fn not_found(kind: &ObjectKind, name: &str) -> Box<Refusal> {
    failure(
        404,
        "NotFound",
        &format!("{} {name:?} not found", kind.qualified()),
        details(kind, name),
    )
}

pub(crate) fn no_such_path() -> Box<Refusal> {
    text(404, "404 page not found\n")
}

pub(crate) fn already_exists(kind: &ObjectKind, name: &str) -> Box<Refusal> {
    let message = format!("{} {name:?} already exists", kind.qualified());
    failure(409, "AlreadyExists", &message, details(kind, name))
}

pub(crate) fn conflict(kind: &ObjectKind, name: &str, why: &str) -> Box<Refusal> {
    let message = format!(
        "Operation cannot be fulfilled on {} {name:?}: {why}",
        kind.qualified()
    );
    failure(409, "Conflict", &message, details(kind, name))
}

pub(crate) const MODIFIED: &str =
    "the object has been modified; please apply your changes to the latest version and try again";

pub(crate) fn apply_conflict(conflicts: &[Conflict]) -> Box<Refusal> {
    let causes: Vec<Value> = conflicts
        .iter()
        .map(|conflict| {
            json!({
                "reason": "FieldManagerConflict", "message": format!("conflict with {}", conflict.who),
                "field": conflict.field,
            })
        })
        .collect();
    let message = match conflicts {
        [one] => format!(
            "Apply failed with 1 conflict: conflict with {}: {}",
            one.who, one.field
        ),
        many => {
            let mut lines = Vec::new();
            let mut who: Vec<&str> = many.iter().map(|conflict| conflict.who.as_str()).collect();
            who.sort_unstable();
            who.dedup();
            for who in who {
                lines.push(format!("conflicts with {who}:"));
                let fields = many.iter().filter(|conflict| conflict.who == who);
                lines.extend(fields.map(|conflict| format!("- {}", conflict.field)));
            }
            format!(
                "Apply failed with {} conflicts: {}",
                many.len(),
                lines.join("\n")
            )
        }
    };
    failure(409, "Conflict", &message, json!({"causes": causes}))
}

/// A validation error: field, reason and message.
#[derive(Debug, Clone)]
pub(crate) struct Mistake {
    pub(crate) field: &'static str,
    pub(crate) reason: &'static str,
    pub(crate) words: String,
}

pub(crate) fn invalid(kind: &ObjectKind, name: &str, mistakes: &[Mistake]) -> Box<Refusal> {
    let group =
        (!kind.group.is_empty() && kind.group != "events.k8s.io").then_some(kind.group.as_str());
    invalid_of(&kind.kind, group, name, mistakes)
}

pub(crate) fn invalid_of(
    kind: &str,
    group: Option<&str>,
    name: &str,
    mistakes: &[Mistake],
) -> Box<Refusal> {
    let causes: Vec<Value> = mistakes
        .iter()
        .map(|mistake| json!({"reason": mistake.reason, "message": mistake.words, "field": mistake.field}))
        .collect();
    // Repeated errors appear repeatedly in `causes`, but only once in the message.
    let mut messages: Vec<String> = Vec::new();
    for mistake in mistakes {
        let line = format!("{}: {}", mistake.field, mistake.words);
        if !messages.contains(&line) {
            messages.push(line);
        }
    }
    let message = if messages.len() == 1 {
        messages.remove(0)
    } else {
        format!("[{}]", messages.join(", "))
    };
    let qualified = group.map_or_else(|| kind.to_owned(), |group| format!("{kind}.{group}"));
    let mut details = json!({});
    if !name.is_empty() {
        details["name"] = json!(name);
    }
    if let Some(group) = group {
        details["group"] = json!(group);
    }
    details["kind"] = json!(kind);
    details["causes"] = json!(causes);
    failure(
        422,
        "Invalid",
        &format!("{qualified} {name:?} is invalid: {message}"),
        details,
    )
}

pub(crate) fn bad_request(message: &str) -> Box<Refusal> {
    failure(400, "BadRequest", message, Value::Null)
}

pub(crate) fn internal(message: &str) -> Box<Refusal> {
    failure(500, "", message, Value::Null)
}

pub(crate) fn unauthorized() -> Box<Refusal> {
    failure(401, "Unauthorized", "Unauthorized", Value::Null)
}

pub(crate) fn forbidden(
    kind: &ObjectKind,
    user: &str,
    verb: &str,
    namespace: &str,
    name: &str,
) -> Box<Refusal> {
    let place = match namespace {
        "" => "at the cluster scope".to_owned(),
        namespace => format!("in the namespace {namespace:?}"),
    };
    let object = match name {
        "" => kind.qualified(),
        name => format!("{} {name:?}", kind.qualified()),
    };
    let message = format!(
        "{object} is forbidden: User {user:?} cannot {verb} resource {:?} in API group {:?} {place}",
        kind.plural, kind.group
    );
    failure(403, "Forbidden", &message, details(kind, name))
}

/// A refusal by an admission policy, with the policy's reason.
pub(crate) fn denied(kind: &ObjectKind, name: &str, reason: &str, why: &str) -> Box<Refusal> {
    let message = format!("{} {name:?} is forbidden: {why}", kind.qualified());
    let mut details = details(kind, name);
    details["causes"] = json!([{"message": why}]);
    failure(
        if reason == "Forbidden" { 403 } else { 422 },
        reason,
        &message,
        details,
    )
}

pub(crate) fn expired(message: &str) -> Box<Refusal> {
    failure(410, "Expired", message, Value::Null)
}

pub(crate) fn too_large(revision: u64, current: u64) -> Box<Refusal> {
    let details = json!({
        "causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}],
        "retryAfterSeconds": 1,
    });
    let message = format!("Timeout: Too large resource version: {revision}, current: {current}");
    let mut refusal = failure(504, "Timeout", &message, details);
    refusal.retry_after = Some(1);
    refusal
}

pub(crate) fn budget(name: &str) -> Box<Refusal> {
    let cause = format!("The disruption budget {name} needs 1 healthy pods and has 1 currently");
    failure(
        429,
        "TooManyRequests",
        "Cannot evict pod as it would violate the pod's disruption budget.",
        json!({"causes": [{"reason": "DisruptionBudget", "message": cause}]}),
    )
}

pub(crate) fn success(details: Value, code: Option<u16>) -> Value {
    let mut status =
        json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"});
    if !details.is_null() {
        status["details"] = details;
    }
    if let Some(code) = code {
        status["code"] = json!(code);
    }
    status
}

pub(crate) fn deleted(kind: &ObjectKind, name: &str, uid: &str) -> Value {
    let mut details = details(kind, name);
    details["uid"] = json!(uid);
    success(details, None)
}
