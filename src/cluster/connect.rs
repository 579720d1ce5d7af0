//! The configuration of the API client, and this node's name.

use std::path::{Path, PathBuf};
use std::time::Duration;

use hyper::header::{HeaderValue, USER_AGENT};
use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError, LoadDataError};

use super::call::words;
use crate::text::parse_errors;

/// The deadline for opening a connection.
const CONNECT: Duration = Duration::from_secs(10);

/// The User-Agent of every request.
pub(crate) const AGENT: &str = concat!("pinfold/", env!("CARGO_PKG_VERSION"));

/// The variable by which a container finds the API server.
const SERVICE_HOST: &str = "KUBERNETES_SERVICE_HOST";

/// The longest name of a Node, in characters.
const LONGEST_NAME: usize = 253;

/// Why no client for the API server can be created. Every message names the file or the variable.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// Neither a kubeconfig nor a service account is configured.
    #[error(
        "no API server is configured: name a kubeconfig with --kubeconfig or KUBECONFIG, or run in a pod (KUBERNETES_SERVICE_HOST is not set)"
    )]
    Nowhere,
    /// The kubeconfig can't be used.
    #[error("can't use the kubeconfig {origin}: {cause}")]
    Kubeconfig {
        /// The file, and the flag or variable that named it.
        origin: String,
        cause: String,
    },
    /// The service account can't be used.
    #[error(
        "the pod's service account can't be used: {0}: is automountServiceAccountToken off, or is /var/run/secrets/kubernetes.io/serviceaccount not mounted?"
    )]
    InCluster(String),
    /// The configuration is valid, but no client can be created.
    #[error("no client for the API server can be created from {origin}: {cause}")]
    Client {
        /// The source of the configuration.
        origin: String,
        cause: String,
    },
}

/// A client for the API server, and its configuration.
#[derive(Clone)]
pub struct Connection {
    pub client: kube::Client,
    /// The agent's namespace: from the pod, or from the kubeconfig's context.
    pub namespace: String,
    /// The server's address.
    pub server: String,
    /// The source of the configuration, for people.
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

/// Creates a client from the given kubeconfig, else from `KUBECONFIG`, else from the pod's service account.
///
/// The API server may be unreachable: no request is sent.
///
/// # Errors
/// The named configuration can't be used, or no configuration exists.
pub async fn connect(
    kubeconfig: Option<&Path>,
    environment: impl Fn(&str) -> Option<String>,
) -> Result<Connection, ConnectError> {
    let named = kubeconfig.map(Path::to_owned);
    let variable = || environment("KUBECONFIG").filter(|value| !value.is_empty());
    let (config, origin) = if let Some(path) = named {
        let origin = format!(
            "{}, named by --kubeconfig or cluster.kubeconfig",
            path.display()
        );
        (from_files(&[path], None, &origin).await?, origin)
    } else if let Some(value) = variable() {
        let origin = format!("{value}, named by KUBECONFIG");
        (
            from_files(&files_of_variable(&value), None, &origin).await?,
            origin,
        )
    } else if environment(SERVICE_HOST).is_some_and(|host| !host.is_empty()) {
        let config = kube::Config::incluster()
            .map_err(|error| ConnectError::InCluster(error.to_string()))?;
        (config, "the pod's service account".to_owned())
    } else {
        return Err(ConnectError::Nowhere);
    };
    from_config(config, origin)
}

/// Creates a client for a person, as kubectl does: from the given kubeconfig, else from `KUBECONFIG`, else from
/// `~/.kube/config`, else from the pod's service account. `context` names a context of the kubeconfig.
///
/// # Errors
/// The named configuration or context can't be used, or no configuration exists.
pub async fn connect_user(
    kubeconfig: Option<&Path>,
    context: Option<&str>,
    environment: impl Fn(&str) -> Option<String>,
) -> Result<Connection, ConnectError> {
    let value = |name: &str| environment(name).filter(|value| !value.is_empty());
    let (paths, origin) = if let Some(path) = kubeconfig {
        let origin = format!("{}, named by --kubeconfig", path.display());
        (vec![path.to_owned()], origin)
    } else if let Some(value) = value("KUBECONFIG") {
        let origin = format!("{value}, named by KUBECONFIG");
        (files_of_variable(&value), origin)
    } else {
        let default = value("HOME").map(|home| Path::new(&home).join(".kube").join("config"));
        match default.filter(|path| path.exists()) {
            Some(path) => {
                let origin = path.display().to_string();
                (vec![path], origin)
            }
            None => return connect(None, environment).await,
        }
    };
    from_config(from_files(&paths, context, &origin).await?, origin)
}

/// The files that the value of `KUBECONFIG` names.
fn files_of_variable(value: &str) -> Vec<PathBuf> {
    std::env::split_paths(value)
        .filter(|path| path != Path::new(""))
        .collect()
}

/// Creates a client from a loaded configuration.
///
/// # Errors
/// The configuration is not usable for a client.
pub fn from_config(mut config: kube::Config, origin: String) -> Result<Connection, ConnectError> {
    // The callers retry failed requests themselves, because each has its own backoff and counters.
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
            cause: words(&error).replace(
                "auth error: unable to run auth exec",
                "the program that gets its credentials (users[].user.exec.command) can't be run",
            ),
        }),
    }
}

/// Merges kubeconfig files in their order, and selects a context. Without a name, the current context applies.
async fn from_files(
    paths: &[PathBuf],
    context: Option<&str>,
    origin: &str,
) -> Result<kube::Config, ConnectError> {
    let invalid = |error| ConnectError::Kubeconfig {
        origin: origin.to_owned(),
        cause: in_words(&error),
    };
    let mut merged = Kubeconfig::default();
    for path in paths {
        merged = merged
            .merge(Kubeconfig::read_from(path).map_err(invalid)?)
            .map_err(invalid)?;
    }
    let options = KubeConfigOptions {
        context: context.map(str::to_owned),
        ..KubeConfigOptions::default()
    };
    kube::Config::from_custom_kubeconfig(merged, &options)
        .await
        .map_err(invalid)
}

/// Why a kubeconfig can't be used, without the file's name.
fn in_words(error: &KubeconfigError) -> String {
    match error {
        KubeconfigError::CurrentContextNotSet => {
            "it has no current-context: choose one with kubectl config use-context NAME".to_owned()
        }
        KubeconfigError::LoadContext(name) => format!("it has no context {name}"),
        KubeconfigError::LoadClusterOfContext(name) => {
            format!("it has no cluster {name}, which the context names")
        }
        KubeconfigError::ReadConfig(error, _) => error.to_string(),
        KubeconfigError::Parse(error) => {
            let line = error.location().map(|location| location.line());
            let line = line.map_or_else(String::new, |line| format!("line {line}: "));
            format!("{line}{}", parse_errors::yaml(error))
        }
        KubeconfigError::MissingClusterUrl => "the cluster has no server: write its URL".to_owned(),
        KubeconfigError::ParseClusterUrl(_) => {
            "the cluster's server is no URL: write it like https://10.0.0.1:6443".to_owned()
        }
        KubeconfigError::LoadCertificateAuthority(error) => {
            format!(
                "certificate-authority can't be loaded: {}",
                data_in_words(error)
            )
        }
        KubeconfigError::LoadClientCertificate(error) => {
            format!(
                "client-certificate can't be loaded: {}",
                data_in_words(error)
            )
        }
        KubeconfigError::LoadClientKey(error) => {
            format!("client-key can't be loaded: {}", data_in_words(error))
        }
        KubeconfigError::ParseCertificates(_) => {
            "certificate-authority has no certificates in PEM format".to_owned()
        }
        other => other.to_string(),
    }
}

fn data_in_words(error: &LoadDataError) -> String {
    match error {
        LoadDataError::DecodeBase64(_) => "its data is not base64".to_owned(),
        LoadDataError::ReadFile(error, file) => format!("{}: {error}", file.display()),
        LoadDataError::NoBase64DataOrFile => "it has neither data nor a file".to_owned(),
    }
}

/// Why the node name is missing or invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NodeNameError {
    /// The name is not a valid name of a Node.
    #[error(
        "the node name {name:?} from {origin} is invalid: use lower-case letters, digits, '-' and '.', begin and end with a letter or digit, at most 253 characters"
    )]
    Invalid {
        name: String,
        /// The source of the name.
        origin: &'static str,
    },
    /// No source gives a name.
    #[error(
        "this node's name is not known: give it with --node-name, or NODE_NAME from spec.nodeName"
    )]
    Unknown,
}

/// This node's name: from the flag, else from the environment, else the host name in lower case, as the kubelet uses.
///
/// # Errors
/// The name is invalid, or no source gives a name.
pub fn node_name(
    flag: Option<&str>,
    environment: Option<&str>,
    host: Option<&str>,
) -> Result<String, NodeNameError> {
    let host = host.map(|host| host.trim().to_ascii_lowercase());
    let sources = [
        (flag, "--node-name, NODE_NAME or cluster.nodeName"),
        (environment, "NODE_NAME"),
        (host.as_deref(), "the host's name"),
    ];
    let (name, origin) = sources
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

/// The host name, for [`node_name`].
pub fn host_name() -> Option<String> {
    nix::unistd::gethostname().ok()?.into_string().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_flag_wins_and_an_error_names_the_flag() {
        let name = |flag, environment, host| node_name(flag, environment, host);
        assert_eq!(name(Some("n-1"), Some("n-2"), Some("n-3")).unwrap(), "n-1");
        assert_eq!(
            name(None, Some("n-2.example.io"), Some("n-3")).unwrap(),
            "n-2.example.io"
        );
        assert_eq!(name(None, Some(""), Some(" Host-3\n")).unwrap(), "host-3");
        assert_eq!(name(None, None, None), Err(NodeNameError::Unknown));
        let long = "a".repeat(254);
        for invalid in ["Node", "-a", "a-", "a..b", "a_b", "a/b", ".", long.as_str()] {
            let error = name(Some(invalid), None, Some("n-3"))
                .unwrap_err()
                .to_string();
            assert!(error.contains("--node-name"), "{invalid}: {error}");
        }
    }
}
