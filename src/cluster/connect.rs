//! The way to the API server, and this node's name.

use std::path::{Path, PathBuf};
use std::time::Duration;

use hyper::header::{HeaderValue, USER_AGENT};
use kube::config::{KubeConfigOptions, Kubeconfig};

/// How long a connection may take to come about.
const CONNECT: Duration = Duration::from_secs(10);

/// The User-Agent of every request.
pub(crate) const AGENT: &str = concat!("pinfold/", env!("CARGO_PKG_VERSION"));

/// Where a container finds the API server.
const SERVICE_HOST: &str = "KUBERNETES_SERVICE_HOST";

/// The longest name of a node.
const LONGEST_NAME: usize = 253;

/// Why there is no way to the API server. Every variant names the file or the variable.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// Neither a kubeconfig nor a service account.
    #[error(
        "no way to the API server: name a kubeconfig with --kubeconfig or KUBECONFIG, or run in a pod (KUBERNETES_SERVICE_HOST is not set)"
    )]
    Nowhere,
    /// A kubeconfig that can't be used.
    #[error("the kubeconfig {origin} can't be used")]
    Kubeconfig {
        /// The file and where it was named.
        origin: String,
        /// Why not.
        #[source]
        source: Box<kube::config::KubeconfigError>,
    },
    /// A service account that can't be used.
    #[error(
        "the pod's service account can't be used: is automountServiceAccountToken off, or is /var/run/secrets/kubernetes.io/serviceaccount not mounted?"
    )]
    InCluster(#[source] Box<kube::config::InClusterError>),
    /// A configuration from which no client comes about.
    #[error("no client for the API server comes about from {origin}")]
    Client {
        /// Where the configuration is from.
        origin: String,
        /// Why not.
        #[source]
        source: Box<kube::Error>,
    },
}

/// A way to the API server.
#[derive(Clone)]
pub struct Connection {
    /// The client.
    pub client: kube::Client,
    /// The namespace that the agent lives in: the pod's, or that of the kubeconfig's context.
    pub namespace: String,
    /// The server's address.
    pub server: String,
    /// Where that was found, for people.
    pub origin: String,
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection")
            .field("namespace", &self.namespace)
            .field("server", &self.server)
            .field("origin", &self.origin)
            .finish_non_exhaustive()
    }
}

/// Finds the way: a kubeconfig that is named, then the one in `KUBECONFIG`, then the pod's service account.
///
/// The API server need not be there yet: nothing is asked.
///
/// # Errors
/// What is named can't be used, or nothing is there.
pub async fn connect(
    kubeconfig: Option<&Path>,
    environment: impl Fn(&str) -> Option<String>,
) -> Result<Connection, ConnectError> {
    let named = kubeconfig.map(Path::to_owned);
    let variable = || environment("KUBECONFIG").filter(|value| !value.is_empty());
    let (config, origin) = if let Some(path) = named {
        let origin = format!("{}, named by --kubeconfig", path.display());
        (from_files(&[path], &origin).await?, origin)
    } else if let Some(value) = variable() {
        let origin = format!("{value}, named by KUBECONFIG");
        let paths: Vec<PathBuf> = std::env::split_paths(&value)
            .filter(|path| path != Path::new(""))
            .collect();
        (from_files(&paths, &origin).await?, origin)
    } else if environment(SERVICE_HOST).is_some_and(|host| !host.is_empty()) {
        let config =
            kube::Config::incluster().map_err(|error| ConnectError::InCluster(Box::new(error)))?;
        (config, "the pod's service account".to_owned())
    } else {
        return Err(ConnectError::Nowhere);
    };
    from_config(config, origin)
}

/// A way along a configuration that is there already.
///
/// # Errors
/// No client comes about from it.
pub fn from_config(mut config: kube::Config, origin: String) -> Result<Connection, ConnectError> {
    // What passes is tried again by those who ask, who know how urgent it is and say so.
    config.default_retry = false;
    config.connect_timeout = Some(CONNECT);
    config
        .headers
        .push((USER_AGENT, HeaderValue::from_static(AGENT)));
    let namespace = config.default_namespace.clone();
    let server = config.cluster_url.to_string();
    match kube::Client::try_from(config) {
        Ok(client) => Ok(Connection {
            client,
            namespace,
            server,
            origin,
        }),
        Err(error) => Err(ConnectError::Client {
            origin,
            source: Box::new(error),
        }),
    }
}

async fn from_files(paths: &[PathBuf], origin: &str) -> Result<kube::Config, ConnectError> {
    let wrong = |source| ConnectError::Kubeconfig {
        origin: origin.to_owned(),
        source: Box::new(source),
    };
    let mut whole = Kubeconfig::default();
    for path in paths {
        whole = whole
            .merge(Kubeconfig::read_from(path).map_err(wrong)?)
            .map_err(wrong)?;
    }
    kube::Config::from_custom_kubeconfig(whole, &KubeConfigOptions::default())
        .await
        .map_err(wrong)
}

/// Why this node has no name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NodeNameError {
    /// A name that no Node can have.
    #[error(
        "the node name {name:?} from {origin} is not one: lower-case letters, digits, '-' and '.', beginning and ending with a letter or digit, at most 253 of them"
    )]
    Invalid {
        /// The name.
        name: String,
        /// Where it is from.
        origin: &'static str,
    },
    /// Nobody names one.
    #[error(
        "this node's name is not known: give it with --node-name, or NODE_NAME from spec.nodeName"
    )]
    Unknown,
}

/// This node's name: the flag's, else the environment's, else the host's, which the kubelet takes in lower case.
///
/// # Errors
/// A name that was given is wrong, or there is none.
pub fn node_name(
    flag: Option<&str>,
    environment: Option<&str>,
    host: Option<&str>,
) -> Result<String, NodeNameError> {
    let host = host.map(|host| host.trim().to_ascii_lowercase());
    let given = [
        (flag, "--node-name, NODE_NAME or cluster.nodeName"),
        (environment, "NODE_NAME"),
        (host.as_deref(), "the host's name"),
    ];
    let (name, origin) = given
        .into_iter()
        .find_map(|(name, origin)| Some((name.filter(|name| !name.is_empty())?, origin)))
        .ok_or(NodeNameError::Unknown)?;
    let plain = |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit();
    let part = |part: &str| {
        part.starts_with(plain)
            && part.ends_with(plain)
            && part.chars().all(|letter| plain(letter) || letter == '-')
    };
    if name.len() <= LONGEST_NAME && name.split('.').all(part) {
        Ok(name.to_owned())
    } else {
        Err(NodeNameError::Invalid {
            name: name.to_owned(),
            origin,
        })
    }
}

/// The host's name, for [`node_name`].
pub fn host_name() -> Option<String> {
    nix::unistd::gethostname().ok()?.into_string().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_flag_wins_and_what_is_wrong_is_named() {
        let name = |flag, environment, host| node_name(flag, environment, host);
        assert_eq!(name(Some("n-1"), Some("n-2"), Some("n-3")).unwrap(), "n-1");
        assert_eq!(
            name(None, Some("n-2.example.io"), Some("n-3")).unwrap(),
            "n-2.example.io"
        );
        assert_eq!(name(None, Some(""), Some(" Host-3\n")).unwrap(), "host-3");
        assert_eq!(name(None, None, None), Err(NodeNameError::Unknown));
        let long = "a".repeat(254);
        for wrong in ["Node", "-a", "a-", "a..b", "a_b", "a/b", ".", long.as_str()] {
            let error = name(Some(wrong), None, Some("n-3"))
                .unwrap_err()
                .to_string();
            assert!(error.contains("--node-name"), "{wrong}: {error}");
        }
    }
}
