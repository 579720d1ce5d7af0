//! TokenReviews and SubjectAccessReviews, which the server answers without storing an object.

use serde_json::{Value, json};

use super::SharedState;
use super::access::API_AUDIENCE;
use super::http::Reply;
use super::kinds::ObjectKind;
use super::status::{self, Answer};

/// The kind of a review; `None` for a stored kind.
pub(crate) fn kind(group: &str, version: &str, plural: &str) -> Option<ObjectKind> {
    let name = match (group, version, plural) {
        ("authentication.k8s.io", "v1", "tokenreviews") => "TokenReview",
        ("authorization.k8s.io", "v1", "subjectaccessreviews") => "SubjectAccessReview",
        ("authorization.k8s.io", "v1", "selfsubjectaccessreviews") => "SelfSubjectAccessReview",
        _ => return None,
    };
    Some(ObjectKind {
        group: group.to_owned(),
        version: version.to_owned(),
        plural: plural.to_owned(),
        kind: name.to_owned(),
        namespaced: false,
        cached: false,
        schema: None,
    })
}

/// Answers a created review.
///
/// `is_allowed` answers a user's question about its own rights: verb, group, resource with subresource, namespace.
pub(crate) fn create(
    shared: &SharedState,
    kind: &ObjectKind,
    body: &[u8],
    is_allowed: impl Fn([&str; 4]) -> bool,
) -> Answer<Reply> {
    let mut review: Value = serde_json::from_slice(body).map_err(|error| {
        status::bad_request(&format!("the object provided is unrecognized: {error}"))
    })?;
    if review["kind"] != kind.kind.as_str() || review["apiVersion"] != kind.api_version() {
        return Err(status::bad_request(
            "the API version in the data does not match the expected API version",
        ));
    }
    review["status"] = match kind.kind.as_str() {
        "TokenReview" => token(shared, &review["spec"]),
        "SelfSubjectAccessReview" => {
            let asked = &review["spec"]["resourceAttributes"];
            let text = |key: &str| asked[key].as_str().unwrap_or_default();
            let resource = match text("subresource") {
                "" => text("resource").to_owned(),
                sub => format!("{}/{sub}", text("resource")),
            };
            json!({"allowed": is_allowed([text("verb"), text("group"), &resource, text("namespace")])})
        }
        _ => access(shared, &review["spec"]),
    };
    Ok(Reply::json(201, &review))
}

/// A review without audiences accepts only tokens for the API server.
fn token(shared: &SharedState, spec: &Value) -> Value {
    let token = spec["token"].as_str().unwrap_or_default();
    let ignores = shared.settings.lock().unwrap().ignores_audiences;
    let is_wanted = |audience: &str| match spec["audiences"].as_array() {
        _ if ignores => true,
        Some(wanted) if !wanted.is_empty() => wanted.iter().any(|wanted| *wanted == *audience),
        _ => audience == API_AUDIENCE,
    };
    let tokens = shared.tokens.lock().unwrap();
    match tokens.get(token).filter(|user| is_wanted(user.audience)) {
        Some(user) => json!({
            "authenticated": true,
            "user": {
                "username": user.name, "uid": format!("uid-{}", user.name),
                "groups": ["system:authenticated"], "extra": user.extra,
            },
            "audiences": if ignores { json!(null) } else { json!([user.audience]) },
        }),
        None => json!({"user": {}, "error": "[invalid bearer token, token lookup failed]"}),
    }
}

/// The rules of non-resource URLs have the path as their resource.
fn access(shared: &SharedState, spec: &Value) -> Value {
    let (attributes, user) = (&spec["nonResourceAttributes"], &spec["user"]);
    let is_user = spec["groups"] == json!(["system:authenticated"]) && user.is_string();
    let allowed = is_user
        && (user == "admin"
            || shared.rules.lock().unwrap().iter().any(|rule| {
                *user == *rule.user
                    && attributes["path"] == *rule.resource
                    && rule.verbs.iter().any(|verb| attributes["verb"] == **verb)
            }));
    json!({"allowed": allowed})
}
