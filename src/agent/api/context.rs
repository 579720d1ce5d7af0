//! The values that the tasks of the Kubernetes API share, and the rules for the agent's names.

use crate::cluster::Api;
use crate::cluster::connect;
use crate::cluster::pods::PodCache;

/// In characters.
const LONGEST_NAMESPACE: usize = 63;

/// This node's pods, as the API server describes them. They are incomplete before the first list.
pub type ApiPods = PodCache;

/// The connection to the API, and who the agent is in the cluster. Cheap to clone.
#[derive(Debug, Clone)]
pub struct ClusterContext {
    /// With the counters that all tasks share.
    pub api: Api,
    pub node: String,
    /// The namespace of the agent's own objects.
    pub namespace: String,
    /// Whether the agent labels the Node by the ScenePlans.
    pub scenes: bool,
    pub server: String,
    /// Where the server's address comes from, for people.
    pub origin: String,
}

pub(in crate::agent) fn check(namespace: &str, node: Option<&str>) -> anyhow::Result<()> {
    let plain = |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit();
    anyhow::ensure!(
        namespace.len() <= LONGEST_NAMESPACE
            && namespace.starts_with(plain)
            && namespace.ends_with(plain)
            && namespace
                .chars()
                .all(|letter| plain(letter) || letter == '-'),
        "the namespace {namespace:?} (--agent-namespace, POD_NAMESPACE or cluster.namespace) is invalid: use lower-case letters, digits \
         and '-', begin and end with a letter or digit, at most {LONGEST_NAMESPACE} characters"
    );
    if node.is_some() {
        node_name(node)?;
    }
    Ok(())
}

/// The Node's name: the configured one, or else the host's.
pub(super) fn node_name(configured: Option<&str>) -> Result<String, connect::NodeNameError> {
    // The flags already include NODE_NAME.
    connect::node_name(configured, None, connect::host_name().as_deref())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn invalid_names_are_refused() {
        check("kube-system", Some("node-1.example.io")).unwrap();
        for invalid in ["", "-a", "a-", "a.b", "A", &"a".repeat(64)] {
            let error = check(invalid, None).unwrap_err().to_string();
            assert!(error.contains("--agent-namespace"), "{invalid}");
        }
        let error = check("a", Some("Node")).unwrap_err().to_string();
        assert!(error.contains("--node-name"));
    }
}
