//! Users, their RBAC rules, and validating admission policies.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::evaluate::{Policy, Request, Verdict};
use super::kinds::ObjectKind;
use super::status::{self, Answer};

/// The audience of the API server.
pub(crate) const API_AUDIENCE: &str = "https://kubernetes.default.svc";

/// The user behind a token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct User {
    pub(crate) name: String,
    /// The `extra` map of the user info, such as the node of the pod to which the token is bound.
    pub(crate) extra: Value,
    /// The audience of the token.
    pub(crate) audience: &'static str,
}

/// An RBAC rule for one user and one resource.
#[derive(Debug, Clone)]
pub(crate) struct Rule {
    pub(crate) user: String,
    pub(crate) verbs: Vec<String>,
    pub(crate) group: String,
    /// The resource, with a subresource if any: `pods/resize`. A path with a slash at the start is a non-resource URL.
    pub(crate) resource: String,
    /// The allowed object names. Empty for all names.
    pub(crate) names: Vec<String>,
    /// The namespace of a `Role`. `None` for a rule of a `ClusterRole` bound in all namespaces.
    pub(crate) namespace: Option<String>,
}

/// A validating admission policy with its binding.
pub(crate) struct Enforced {
    name: String,
    binding: String,
    rules: Vec<Value>,
    policy: Policy,
}

/// A write, as input of the policies.
pub(crate) struct Write<'a> {
    pub(crate) user: &'a User,
    pub(crate) operation: &'a str,
    pub(crate) kind: &'a ObjectKind,
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
            audience: API_AUDIENCE,
        }
    }

    /// A service account with a token bound to a pod on `node`.
    pub(crate) fn on_node(name: &str, node: &str) -> Self {
        Self {
            name: name.to_owned(),
            extra: json!({"authentication.kubernetes.io/node-name": [node]}),
            audience: API_AUDIENCE,
        }
    }
}

// === impl Rule ===

impl Rule {
    /// The RBAC rules of service accounts, from roles and their bindings.
    pub(crate) fn of_roles(documents: &[Value]) -> Vec<Self> {
        let mut rules = Vec::new();
        for binding in documents {
            let role = match binding["kind"].as_str() {
                Some("ClusterRoleBinding" | "RoleBinding") => &binding["roleRef"],
                _ => continue,
            };
            let bound = documents.iter().find(|document| {
                document["kind"] == role["kind"] && document["metadata"]["name"] == role["name"]
            });
            let bound = bound.unwrap_or_else(|| panic!("no document defines the role {role}"));
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
                    let user = format!("system:serviceaccount:{}:{}", account[0], account[1]);
                    rules.extend(
                        words(&rule["nonResourceURLs"])
                            .into_iter()
                            .map(|path| Self {
                                user: user.clone(),
                                verbs: words(&rule["verbs"]),
                                group: String::new(),
                                resource: path,
                                names: Vec::new(),
                                namespace: None,
                            }),
                    );
                    for (group, resource) in words(&rule["apiGroups"]).iter().flat_map(|group| {
                        words(&rule["resources"])
                            .into_iter()
                            .map(move |resource| (group, resource))
                    }) {
                        rules.push(Self {
                            user: user.clone(),
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
    /// The validating policies among the documents. Each policy needs a binding.
    pub(crate) fn of_documents(documents: &[Value]) -> Vec<Self> {
        let bindings: BTreeMap<&str, &str> = documents
            .iter()
            .filter(|document| document["kind"] == "ValidatingAdmissionPolicyBinding")
            .map(|document| {
                assert_eq!(
                    document["spec"]["validationActions"],
                    json!(["Deny"]),
                    "the fake supports only the action Deny"
                );
                (
                    document["spec"]["policyName"].as_str().unwrap(),
                    document["metadata"]["name"].as_str().unwrap(),
                )
            })
            .collect();
        let policies = documents
            .iter()
            .filter(|document| document["kind"] == "ValidatingAdmissionPolicy");
        policies
            .map(|document| {
                let name = document["metadata"]["name"].as_str().unwrap();
                let binding = bindings
                    .get(name)
                    .unwrap_or_else(|| panic!("no binding names the policy {name}"));
                Self {
                    name: name.to_owned(),
                    binding: (*binding).to_owned(),
                    rules: document["spec"]["matchConstraints"]["resourceRules"]
                        .as_array()
                        .unwrap()
                        .clone(),
                    policy: Policy::new(document).beside(documents),
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
                    .any(|word| word == wanted || word == "*")
            };
            has("apiGroups", &write.kind.group)
                && has("apiVersions", &write.kind.version)
                && has("operations", write.operation)
                && has("resources", &resource)
        })
    }

    /// Evaluates the policy for a write.
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
