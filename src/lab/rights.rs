//! [`missing_rights`]: what the user may not do, asked before the experiment begins.

use anyhow::Context;
use serde::Deserialize;
use serde_json::json;

use crate::cluster::patient::PatientApi;
use crate::experiment::WorkloadFormat;

const REVIEWS: &str = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";

/// A right that the experiment needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Right {
    verb: &'static str,
    group: &'static str,
    resource: &'static str,
    subresource: &'static str,
    /// `None` for objects without a namespace.
    namespace: Option<String>,
}

/// What the experiment is going to do, as far as rights depend on it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Intent<'a> {
    pub namespace: &'a str,
    pub agent_namespace: &'a str,
    pub format: WorkloadFormat,
    /// Whether a PodGroup is made.
    pub has_gang: bool,
    pub creates_plan: bool,
    pub creates_namespace: bool,
    pub has_claims: bool,
}

#[derive(Deserialize)]
struct Review {
    status: Option<ReviewStatus>,
}

#[derive(Deserialize)]
struct ReviewStatus {
    allowed: bool,
}

/// The rights that an experiment needs.
pub(super) fn needed(intent: Intent<'_>) -> Vec<Right> {
    let right = |namespace: Option<&str>, group, resource, subresource, verbs: &[&'static str]| {
        let of_verb = |verb: &&'static str| Right {
            verb,
            group,
            resource,
            subresource,
            namespace: namespace.map(str::to_owned),
        };
        verbs.iter().map(of_verb).collect::<Vec<_>>()
    };
    let made: &[&'static str] = &["create", "get", "deletecollection"];
    let job = Some(intent.namespace);
    let mut rights = right(None, "", "nodes", "", &["list"]);
    rights.extend(right(
        None,
        "pinfold.io",
        "sceneplans",
        "",
        &["get", "list", "patch"],
    ));
    if intent.creates_plan {
        rights.extend(right(
            None,
            "pinfold.io",
            "sceneplans",
            "",
            &["create", "delete"],
        ));
    }
    if intent.creates_namespace {
        rights.extend(right(
            None,
            "",
            "namespaces",
            "",
            &["get", "create", "delete"],
        ));
    }
    rights.extend(right(job, "", "pods", "", &["list"]));
    rights.extend(right(job, "", "pods", "log", &["get"]));
    for (group, resource) in [
        ("", "services"),
        ("", "configmaps"),
        ("apps", "deployments"),
        ("batch", "jobs"),
    ] {
        rights.extend(right(job, group, resource, "", made));
    }
    let of_operator = match intent.format {
        WorkloadFormat::Native => None,
        WorkloadFormat::Tfjob => Some(("kubeflow.org", "tfjobs")),
        WorkloadFormat::Volcano => Some(("batch.volcano.sh", "jobs")),
        WorkloadFormat::Jobset => Some(("jobset.x-k8s.io", "jobsets")),
    };
    if let Some((group, resource)) = of_operator {
        rights.extend(right(job, group, resource, "", made));
    }
    if intent.has_gang {
        rights.extend(right(job, "scheduling.volcano.sh", "podgroups", "", made));
    }
    if intent.has_claims {
        rights.extend(right(job, "", "persistentvolumeclaims", "", &["create"]));
    }
    // Their pages tell before the start how many CPUs they can give, even where a Prometheus tells of the runs.
    let agents = Some(intent.agent_namespace);
    rights.extend(right(agents, "", "pods", "", &["list"]));
    rights.extend(right(agents, "", "pods", "portforward", &["create", "get"]));
    rights
}

/// The rights that the user lacks, in words.
///
/// # Errors
/// A request fails.
pub(super) async fn missing_rights(
    api: &PatientApi,
    rights: &[Right],
) -> anyhow::Result<Vec<String>> {
    let mut missing = Vec::new();
    for right in rights {
        let review = json!({
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": {
                "verb": right.verb,
                "group": right.group,
                "resource": right.resource,
                "subresource": right.subresource,
                "namespace": right.namespace,
            }},
        });
        let review: Review = api
            .post(REVIEWS, &review)
            .await
            .context("can't ask for your rights")?;
        if !review.status.is_some_and(|status| status.allowed) {
            missing.push(right.to_string());
        }
    }
    Ok(missing)
}

// === impl Right ===

impl std::fmt::Display for Right {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.verb, self.resource)?;
        if !self.subresource.is_empty() {
            write!(f, "/{}", self.subresource)?;
        }
        if !self.group.is_empty() {
            write!(f, " ({})", self.group)?;
        }
        match &self.namespace {
            Some(namespace) => write!(f, " in namespace {namespace}"),
            None => Ok(()),
        }
    }
}
