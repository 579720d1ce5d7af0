//! Who asks, what they may do by RBAC, and what admission policies say to it.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::evaluate::{Policy, Request, Verdict};
use super::kinds::Kind;
use super::status::{self, Answer};

/// Whose a token is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct User {
    pub(crate) name: String,
    /// What the server has found out about the token, such as the node of the pod that it is for.
    pub(crate) extra: Value,
}

/// What a user may do.
#[derive(Debug, Clone)]
pub(crate) struct Rule {
    pub(crate) user: String,
    pub(crate) verbs: Vec<String>,
    pub(crate) group: String,
    /// With its subresource: `pods/resize`.
    pub(crate) resource: String,
    /// All, where there are none.
    pub(crate) names: Vec<String>,
    /// The only namespace that it is for.
    pub(crate) namespace: Option<String>,
}

/// An admission policy that is in force.
pub(crate) struct Enforced {
    name: String,
    binding: String,
    rules: Vec<Value>,
    policy: Policy,
}

/// A write as policies see it.
pub(crate) struct Write<'a> {
    pub(crate) user: &'a User,
    pub(crate) operation: &'a str,
    pub(crate) kind: &'a Kind,
    pub(crate) subresource: &'a str,
    pub(crate) namespace: &'a str,
    pub(crate) name: &'a str,
    pub(crate) object: Option<&'a Value>,
    pub(crate) old: Option<&'a Value>,
}

fn words(value: &Value) -> Vec<String> {
    value
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .map(str::to_owned)
        .collect()
}

// === impl User ===

impl User {
    pub(crate) fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            extra: json!({}),
        }
    }

    /// A service account whose token is bound to a pod on a node.
    pub(crate) fn on_node(name: &str, node: &str) -> Self {
        Self {
            name: name.to_owned(),
            extra: json!({"authentication.kubernetes.io/node-name": [node]}),
        }
    }
}

// === impl Rule ===

impl Rule {
    /// The rules that roles and their bindings give to service accounts.
    pub(crate) fn of_roles(documents: &[Value]) -> Vec<Self> {
        let mut rules = Vec::new();
        for binding in documents {
            let role = match binding["kind"].as_str() {
                Some("ClusterRoleBinding" | "RoleBinding") => &binding["roleRef"],
                _ => continue,
            };
            let bound = documents
                .iter()
                .find(|one| one["kind"] == role["kind"] && one["metadata"]["name"] == role["name"]);
            let bound = bound.unwrap_or_else(|| panic!("there is no {role}"));
            let namespace = (binding["kind"] == "RoleBinding").then(|| {
                binding["metadata"]["namespace"]
                    .as_str()
                    .unwrap()
                    .to_owned()
            });
            for subject in binding["subjects"].as_array().unwrap() {
                assert_eq!(subject["kind"], "ServiceAccount", "{subject}");
                let account =
                    [&subject["namespace"], &subject["name"]].map(|part| part.as_str().unwrap());
                for rule in bound["rules"].as_array().unwrap() {
                    for (group, resource) in words(&rule["apiGroups"]).iter().flat_map(|group| {
                        words(&rule["resources"])
                            .into_iter()
                            .map(move |one| (group, one))
                    }) {
                        rules.push(Self {
                            user: format!("system:serviceaccount:{}:{}", account[0], account[1]),
                            verbs: words(&rule["verbs"]),
                            group: group.clone(),
                            resource,
                            names: words(&rule["resourceNames"]),
                            namespace: namespace.clone(),
                        });
                    }
                }
            }
        }
        rules
    }
}

// === impl Enforced ===

impl Enforced {
    /// The validating policies of some documents that a binding puts into force.
    pub(crate) fn of_documents(documents: &[Value]) -> Vec<Self> {
        let bindings: BTreeMap<&str, &str> = documents
            .iter()
            .filter(|one| one["kind"] == "ValidatingAdmissionPolicyBinding")
            .map(|one| {
                assert_eq!(
                    one["spec"]["validationActions"],
                    json!(["Deny"]),
                    "what the fake can do"
                );
                (
                    one["spec"]["policyName"].as_str().unwrap(),
                    one["metadata"]["name"].as_str().unwrap(),
                )
            })
            .collect();
        let policies = documents
            .iter()
            .filter(|one| one["kind"] == "ValidatingAdmissionPolicy");
        policies
            .map(|one| {
                let name = one["metadata"]["name"].as_str().unwrap();
                let binding = bindings
                    .get(name)
                    .unwrap_or_else(|| panic!("{name} is bound to nothing"));
                Self {
                    name: name.to_owned(),
                    binding: (*binding).to_owned(),
                    rules: one["spec"]["matchConstraints"]["resourceRules"]
                        .as_array()
                        .unwrap()
                        .clone(),
                    policy: Policy::new(one).beside(documents),
                }
            })
            .collect()
    }

    fn concerns(&self, write: &Write<'_>) -> bool {
        let resource = match write.subresource {
            "" => write.kind.plural.clone(),
            subresource => format!("{}/{subresource}", write.kind.plural),
        };
        self.rules.iter().any(|rule| {
            let has = |key: &str, wanted: &str| {
                words(&rule[key])
                    .iter()
                    .any(|one| one == wanted || one == "*")
            };
            has("apiGroups", &write.kind.group)
                && has("apiVersions", &write.kind.version)
                && has("operations", write.operation)
                && has("resources", &resource)
        })
    }

    /// Whether a write may be.
    pub(crate) fn judge(&self, write: &Write<'_>) -> Answer<()> {
        if !self.concerns(write) {
            return Ok(());
        }
        let mut request = json!({
            "operation": write.operation, "name": write.name, "namespace": write.namespace,
            "resource": {"group": write.kind.group, "version": write.kind.version, "resource": write.kind.plural},
            "userInfo": {"username": write.user.name, "extra": write.user.extra},
        });
        if !write.subresource.is_empty() {
            request["subResource"] = json!(write.subresource);
        }
        let request = Request {
            object: write.object.cloned().unwrap_or_default(),
            old: write.old.cloned().unwrap_or_default(),
            request,
        };
        match self.policy.validate(&request) {
            Verdict::NotMatched | Verdict::Allowed => Ok(()),
            Verdict::Denied(message, reason) => {
                let who = format!(
                    "ValidatingAdmissionPolicy '{}' with binding '{}'",
                    self.name, self.binding
                );
                let why = format!("{who} denied request: {message}");
                Err(status::denied(write.kind, write.name, &reason, &why))
            }
        }
    }
}

impl std::fmt::Debug for Enforced {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Enforced")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}
