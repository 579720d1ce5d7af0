//! [`Settings`]: the cluster, the nodes and the images of a run, from variables.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};

/// The variable that names the kubeconfig. Without it, every case is skipped.
pub(crate) const KUBECONFIG: &str = "PINFOLD_E2E_KUBECONFIG";

/// The settings of a run.
#[derive(Debug)]
pub(crate) struct Settings {
    /// The kubeconfig of an administrator.
    pub(crate) kubeconfig: PathBuf,
    /// The names of the test nodes; empty if a label selects them.
    pub(crate) nodes: Vec<String>,
    /// The label selector of the test nodes.
    pub(crate) node_label: Option<String>,
    /// The namespace of Pinfold.
    pub(crate) namespace: String,
    /// The name of Pinfold's DaemonSet.
    pub(crate) daemonset: String,
    /// The kustomize folder that the run installs and removes; `None` to test the existing installation.
    pub(crate) install: Option<PathBuf>,
    /// The agent's image in the installed manifests; `None` for the image that the folder names.
    pub(crate) agent_image: Option<String>,
    /// The image of the test pods, with `sh`, `sed`, `env`, `grep`, `find` and `sleep`.
    pub(crate) shell_image: String,
    /// An image that no node can pull.
    pub(crate) missing_image: String,
    /// The command that stops and kills parts of the cluster.
    pub(crate) hook: Option<String>,
    /// The longest wait for a single state.
    pub(crate) deadline: Duration,
    /// The time in which requests at rest are counted.
    pub(crate) rest: Duration,
}

// === impl Settings ===

impl Settings {
    /// Reads the variables. `None` without a kubeconfig.
    ///
    /// # Errors
    /// A variable is missing or has an invalid value.
    pub(crate) fn read(variable: impl Fn(&str) -> Option<String>) -> Result<Option<Self>> {
        let text = |name: &str| variable(name).filter(|value| !value.trim().is_empty());
        let or = |name: &str, default: &str| text(name).unwrap_or_else(|| default.to_owned());
        let Some(kubeconfig) = text(KUBECONFIG) else {
            return Ok(None);
        };
        let nodes: Vec<String> = text("PINFOLD_E2E_NODES")
            .iter()
            .flat_map(|names| names.split(','))
            .map(|name| name.trim().to_owned())
            .filter(|name| !name.is_empty())
            .collect();
        let node_label = text("PINFOLD_E2E_NODE_LABEL");
        match (nodes.is_empty(), &node_label) {
            (true, None) => bail!(
                "no node is named for the tests, which change labels and taints of nodes: set PINFOLD_E2E_NODES=NAME,NAME, or PINFOLD_E2E_NODE_LABEL=KEY=VALUE"
            ),
            (false, Some(_)) => bail!(
                "PINFOLD_E2E_NODES and PINFOLD_E2E_NODE_LABEL are both set: remove one of the two variables"
            ),
            _ => {}
        }
        Ok(Some(Self {
            kubeconfig: kubeconfig.into(),
            nodes,
            node_label,
            namespace: or("PINFOLD_E2E_NAMESPACE", "pinfold"),
            daemonset: or("PINFOLD_E2E_DAEMONSET", "pinfold"),
            install: text("PINFOLD_E2E_INSTALL").map(PathBuf::from),
            agent_image: text("PINFOLD_E2E_AGENT_IMAGE"),
            shell_image: or("PINFOLD_E2E_SHELL_IMAGE", "busybox:1.37"),
            missing_image: or("PINFOLD_E2E_MISSING_IMAGE", "pinfold-e2e.invalid/missing:1"),
            hook: text("PINFOLD_E2E_HOOK"),
            deadline: seconds(
                "PINFOLD_E2E_DEADLINE",
                text("PINFOLD_E2E_DEADLINE").as_deref(),
                // A restarted API server can make an agent list its pods and plans only after 150 s.
                300,
            )?,
            rest: seconds("PINFOLD_E2E_REST", text("PINFOLD_E2E_REST").as_deref(), 180)?,
        }))
    }
}

fn seconds(name: &str, value: Option<&str>, default: u64) -> Result<Duration> {
    let Some(value) = value else {
        return Ok(Duration::from_secs(default));
    };
    let seconds: u64 = value
        .trim()
        .parse()
        .with_context(|| format!("{name}={value} is not a number: write whole seconds"))?;
    if seconds == 0 {
        bail!("{name} is 0: write at least 1 second");
    }
    Ok(Duration::from_secs(seconds))
}
