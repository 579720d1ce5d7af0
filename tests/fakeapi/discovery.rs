//! Discovery: the server's version, API groups and resources.

use serde_json::{Value, json};

use super::kinds::ObjectKind;

pub(crate) fn version() -> Value {
    json!({
        "major": "1", "minor": "36", "emulationMajor": "1", "emulationMinor": "36", "minCompatibilityMajor": "1",
        "minCompatibilityMinor": "35", "gitVersion": "v1.36.3", "gitCommit": "ab25d11482f8984db7b860ed44c6955f231cf18f",
        "gitTreeState": "clean", "buildDate": "2026-08-21T00:00:00Z", "goVersion": "go1.26.6", "compiler": "gc",
        "platform": "linux/amd64",
    })
}

/// The answer to a discovery path. `None` for any other path.
pub(crate) fn answer(kinds: &[ObjectKind], path: &[&str]) -> Option<Value> {
    match path {
        ["api"] => Some(
            json!({"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}),
        ),
        ["apis"] => {
            let mut groups: Vec<Value> = Vec::new();
            for kind in kinds.iter().filter(|kind| !kind.group.is_empty()) {
                if groups
                    .iter()
                    .any(|group| group["name"] == kind.group.as_str())
                {
                    continue;
                }
                let version = json!({"groupVersion": kind.api_version(), "version": kind.version});
                groups.push(
                    json!({"name": kind.group, "versions": [version], "preferredVersion": version}),
                );
            }
            Some(json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}))
        }
        ["api", version] => resources(kinds, "", version),
        ["apis", group, version] => resources(kinds, group, version),
        _ => None,
    }
}

fn resources(kinds: &[ObjectKind], group: &str, version: &str) -> Option<Value> {
    let matching: Vec<&ObjectKind> = kinds
        .iter()
        .filter(|kind| kind.group == group && kind.version == version)
        .collect();
    let first = matching.first()?;
    let resources: Vec<Value> = matching
        .iter()
        .map(|kind| {
            json!({
                "name": kind.plural, "singularName": kind.kind.to_lowercase(), "namespaced": kind.namespaced,
                "kind": kind.kind,
                "verbs": ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"],
            })
        })
        .collect();
    Some(json!({
        "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": first.api_version(), "resources": resources,
    }))
}
