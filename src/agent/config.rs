//! Configuration: defaults, then one YAML file, then environment and flags (`clap` merges both).

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::Context;
use serde::{Deserialize, Serialize};

use super::cluster::model::{self, AutoSwitch};
pub use super::runtime::Runtime;
use crate::cpu::CpuSet;
use crate::metrics::COLLECTORS;
use crate::pin::cpu_isolation::CpuIsolationOptions;
use crate::pod::{CpuPreferences, Policy, ThreadPolicy};

/// The configuration file that is read if no file is named.
pub const DEFAULT_FILE: &str = "/etc/pinfold.yaml";

/// The effective configuration of the agent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Config {
    /// The folder that holds `sys` and `proc`.
    pub root: PathBuf,
    /// Where the cgroup hierarchies are mounted.
    pub cgroup_root: PathBuf,
    /// The cgroups below which pods are found. The agent waits for missing cgroups.
    pub trees: Vec<String>,
    /// A folder of pod manifests, YAML or JSON.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pods: Option<PathBuf>,
    /// The Kubernetes API.
    pub cluster: Cluster,
    /// The container runtime.
    pub runtime: Runtime,
    /// CPUs that are never exclusive. The default is the core of the lowest CPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reserved: Option<CpuSet>,
    /// How assignments are enforced.
    pub enforcement: Wanted,
    /// Seconds between two comparisons of the kernel with the ledger.
    pub reconcile_seconds: u64,
    /// Where metrics, health and status are served.
    pub listen: SocketAddr,
    /// Optional measurements.
    pub metrics: Metrics,
    /// Which pods are entitled to exclusive CPUs.
    pub policy: Policy,
    /// How CPUs are chosen. A pod's annotation `pinfold.io/NAME` overrules each preference.
    pub cpus: CpuPreferences,
    /// How many running containers may move within an hour to avoid splitting a new container's CPUs. Only pods that allow
    /// moves are moved.
    pub moves_per_hour: u32,
    /// Which kernel work is kept off exclusive CPUs.
    pub quiet: CpuIsolationOptions,
    /// How thread counts follow from CPUs.
    pub threads: ThreadPolicy,
}

/// Whether the Kubernetes API is used, and the agent's node name and namespace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Cluster {
    /// Whether the API is used.
    pub api: AutoSwitch,
    /// The kubeconfig of the API server. The default is `KUBECONFIG`, else the pod's service account.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kubeconfig: Option<PathBuf>,
    /// This node's name. The default is the host's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_name: Option<String>,
    /// The namespace of the agent's own objects: the same for all agents of a cluster.
    pub namespace: String,
    /// Whether the agent labels the Node by the ScenePlans.
    pub scenes: bool,
}

impl Default for Cluster {
    fn default() -> Self {
        Self {
            api: AutoSwitch::Auto,
            kubeconfig: None,
            node_name: None,
            namespace: "pinfold".to_owned(),
            scenes: true,
        }
    }
}

/// Optional measurements. Each costs the pods or the node something.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Metrics {
    /// Whether BPF programs count what the pods' sockets send and receive. The programs see each packet (cgroup v2).
    pub sockets: bool,
    /// The most descriptors that count cycles, instructions and cache misses of containers in the shared pool. Each container
    /// needs four descriptors per CPU. The kernel switches the counters with the containers.
    pub shared_counters: usize,
    /// Seconds between two reads of the pods' TCP connections; 0 disables the reads.
    pub connections: u64,
    /// The most peers of a training job for which a pod's traffic is reported; 0 reports no peers.
    pub peers: u64,
    /// The collectors to switch off, like `{tcp: false}`. A missing collector is on.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub collectors: BTreeMap<String, bool>,
    /// The namespaces whose pods have series. An empty list means all namespaces.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub namespaces: Vec<String>,
}

// === impl Metrics ===

impl Metrics {
    /// Whether a collector is on.
    pub fn is_enabled(&self, collector: &str) -> bool {
        self.collectors.get(collector) != Some(&false)
    }

    /// The collectors that are switched off.
    pub fn disabled_collectors(&self) -> impl Iterator<Item = &str> {
        let disabled = self.collectors.iter().filter(|(_, on)| !**on);
        disabled.map(|(name, _)| name.as_str())
    }

    fn check(&self) -> anyhow::Result<()> {
        for name in self.collectors.keys() {
            anyhow::ensure!(
                COLLECTORS.contains(&name.as_str()),
                "metrics.collectors has the unknown collector {name}: use {}",
                COLLECTORS.join(", ")
            );
        }
        for namespace in &self.namespaces {
            anyhow::ensure!(
                !namespace.is_empty(),
                "metrics.namespaces has an empty name: name a namespace, or leave the list out for all namespaces"
            );
        }
        Ok(())
    }
}

/// The configured enforcement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Wanted {
    /// The strongest that the node offers.
    #[default]
    Auto,
    /// Cpuset partitions, by which the kernel keeps everybody else off (cgroup v2, Linux 6.7 or newer).
    Partition,
    /// Write `cpuset.cpus` of the pods' cgroups.
    Cpuset,
    /// Write nothing.
    Observe,
}

/// What the command line and the environment say; each wins over the file.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct Overrides {
    /// Configuration file (YAML) [default: /etc/pinfold.yaml if there is one]
    #[arg(long, value_name = "FILE", env = "PINFOLD_CONFIG")]
    pub config: Option<PathBuf>,
    /// Folder that holds sys and proc [default: /]
    #[arg(long, value_name = "DIR", env = "PINFOLD_ROOT")]
    pub root: Option<PathBuf>,
    /// Folder where the cgroup hierarchies are mounted [default: /sys/fs/cgroup]
    #[arg(long, value_name = "DIR", env = "PINFOLD_CGROUP_ROOT")]
    pub cgroup_root: Option<PathBuf>,
    /// Cgroup below which pods are found; may be repeated [default: kubepods and kubepods.slice]
    #[arg(
        long = "tree",
        value_name = "CGROUP",
        env = "PINFOLD_TREES",
        value_delimiter = ','
    )]
    pub trees: Vec<String>,
    /// Folder of pod manifests (YAML or JSON)
    #[arg(long, value_name = "DIR", env = "PINFOLD_PODS")]
    pub pods: Option<PathBuf>,
    /// Whether pods come from the Kubernetes API [default: auto]
    #[arg(long, env = "PINFOLD_API")]
    pub api: Option<AutoSwitch>,
    /// Kubeconfig that leads to the API server [default: the one in KUBECONFIG, else the pod's service account]
    #[arg(long, value_name = "FILE", env = "PINFOLD_KUBECONFIG")]
    pub kubeconfig: Option<PathBuf>,
    /// This node's name in the cluster [default: the host's name]
    #[arg(long, value_name = "NAME", env = "NODE_NAME")]
    pub node_name: Option<String>,
    /// Namespace of the agent's own objects [default: pinfold]
    #[arg(long, value_name = "NAME", env = "POD_NAMESPACE")]
    pub namespace: Option<String>,
    /// Whether the container runtime's NRI is used [default: auto]
    #[arg(long, env = "PINFOLD_NRI")]
    pub nri: Option<AutoSwitch>,
    /// The container runtime's NRI socket [default: /var/run/nri/nri.sock]
    #[arg(long, value_name = "SOCKET", env = "PINFOLD_NRI_SOCKET")]
    pub nri_socket: Option<PathBuf>,
    /// CPUs that no container is given, like 0-1,32 [default: the core of the lowest CPU]
    #[arg(long, value_name = "LIST", env = "PINFOLD_RESERVED")]
    pub reserved: Option<CpuSet>,
    /// How assignments are enforced [default: auto]
    #[arg(long, env = "PINFOLD_ENFORCEMENT")]
    pub enforcement: Option<Wanted>,
    /// Seconds between two comparisons of the kernel with the ledger [default: 10]
    #[arg(long, value_name = "SECONDS", env = "PINFOLD_RECONCILE_SECONDS", value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub reconcile_seconds: Option<u64>,
    /// Address for metrics, health and status [default: 127.0.0.1:9470]
    #[arg(long, value_name = "ADDRESS", env = "PINFOLD_LISTEN")]
    pub listen: Option<SocketAddr>,
    /// Whether BPF programs count what the pods' sockets send and receive (cgroup v2) [default: false]
    #[arg(long, value_name = "BOOL", env = "PINFOLD_SOCKETS", num_args = 0..=1, default_missing_value = "true", require_equals = true)]
    pub sockets: Option<bool>,
    /// Descriptors for counting cycles and the like of containers that share their CPUs, four for each on each CPU [default: 0]
    #[arg(long, value_name = "NUMBER", env = "PINFOLD_SHARED_COUNTERS")]
    pub shared_counters: Option<usize>,
    /// Seconds between two looks at the pods' TCP connections; 0 for none [default: 0]
    #[arg(long, value_name = "SECONDS", env = "PINFOLD_CONNECTIONS", value_parser = clap::value_parser!(u64).range(0..=3600))]
    pub connections: Option<u64>,
    /// With how many others of its job, at most, it is told how much a training pod exchanges; wants --connections [default: 0]
    #[arg(long, value_name = "NUMBER", env = "PINFOLD_PEERS", value_parser = clap::value_parser!(u64).range(0..=1000))]
    pub peers: Option<u64>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            root: PathBuf::from("/"),
            cgroup_root: PathBuf::from("/sys/fs/cgroup"),
            trees: vec!["kubepods".to_owned(), "kubepods.slice".to_owned()],
            pods: None,
            cluster: Cluster::default(),
            runtime: Runtime::default(),
            reserved: None,
            enforcement: Wanted::Auto,
            reconcile_seconds: 10,
            listen: SocketAddr::from(([127, 0, 0, 1], 9470)),
            metrics: Metrics::default(),
            policy: Policy::default(),
            cpus: CpuPreferences::default(),
            moves_per_hour: 0,
            quiet: CpuIsolationOptions::default(),
            threads: ThreadPolicy::default(),
        }
    }
}

// === impl Config ===

impl Config {
    /// Combines the layers and checks the result.
    ///
    /// # Errors
    /// A named file can't be read, a key is unknown, or a value has the wrong kind. Each error states the place.
    pub fn load(overrides: Overrides) -> anyhow::Result<Self> {
        let mut config = match &overrides.config {
            Some(path) => Self::read(path)?,
            None if Path::new(DEFAULT_FILE).exists() => Self::read(Path::new(DEFAULT_FILE))?,
            None => Self::default(),
        };
        let Overrides {
            config: _,
            root,
            cgroup_root,
            trees,
            pods,
            api,
            kubeconfig,
            node_name,
            namespace,
            nri,
            nri_socket,
            reserved,
            enforcement,
            reconcile_seconds,
            listen,
            sockets,
            shared_counters,
            connections,
            peers,
        } = overrides;
        set(&mut config.root, root);
        set(&mut config.cgroup_root, cgroup_root);
        set(
            &mut config.trees,
            Some(trees).filter(|trees| !trees.is_empty()),
        );
        set(&mut config.enforcement, enforcement);
        set(&mut config.reconcile_seconds, reconcile_seconds);
        set(&mut config.listen, listen);
        set(&mut config.metrics.sockets, sockets);
        set(&mut config.metrics.shared_counters, shared_counters);
        set(&mut config.metrics.connections, connections);
        set(&mut config.metrics.peers, peers);
        config.pods = pods.or(config.pods);
        set(&mut config.cluster.api, api);
        set(&mut config.cluster.namespace, namespace.filter(given));
        set(&mut config.runtime.nri, nri);
        set(&mut config.runtime.socket, nri_socket);
        config.cluster.kubeconfig = kubeconfig.or(config.cluster.kubeconfig);
        config.cluster.node_name = node_name.filter(given).or(config.cluster.node_name);
        config.reserved = reserved.or(config.reserved);
        config.check()?;
        Ok(config)
    }

    fn read(path: &Path) -> anyhow::Result<Self> {
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("can't read the configuration file {}", path.display()))?;
        Self::parse(&text)
            .with_context(|| format!("the configuration file {} is wrong", path.display()))
    }

    /// Reads the text of a configuration file. An empty text holds the defaults.
    pub fn parse(text: &str) -> anyhow::Result<Self> {
        // The parser's full error repeats the message around an excerpt. The formatter for users prints the message once.
        let parsed: Option<Self> = serde_saphyr::from_str(text).map_err(|error| {
            anyhow::anyhow!(
                "{}",
                error.render_with_formatter(&serde_saphyr::UserMessageFormatter)
            )
        })?;
        let config = parsed.unwrap_or_default();
        config.check()?;
        Ok(config)
    }

    fn check(&self) -> anyhow::Result<()> {
        anyhow::ensure!(
            (1..=3600).contains(&self.reconcile_seconds),
            "reconcileSeconds is {}: use 1 to 3600",
            self.reconcile_seconds
        );
        anyhow::ensure!(
            self.metrics.connections <= 3600,
            "metrics.connections is {}: use 0 to 3600",
            self.metrics.connections
        );
        anyhow::ensure!(
            self.metrics.peers <= 1000,
            "metrics.peers is {}: use 0 to 1000",
            self.metrics.peers
        );
        anyhow::ensure!(
            self.metrics.peers == 0 || self.metrics.connections > 0,
            "metrics.peers is {}, and nobody looks at connections: say with metrics.connections (--connections) how often, \
             for example every 30 seconds",
            self.metrics.peers
        );
        self.metrics.check()?;
        anyhow::ensure!(
            !self.trees.is_empty(),
            "trees is empty: name the cgroup below which pods are, like kubepods"
        );
        for tree in &self.trees {
            let plain = tree
                .split('/')
                .all(|part| !part.is_empty() && part != "." && part != "..");
            anyhow::ensure!(
                plain,
                "tree {tree:?} is not a cgroup path: write it like kubepods or kubelet/kubepods"
            );
        }
        self.runtime.check()?;
        model::check(&self.cluster.namespace, self.cluster.node_name.as_deref())
    }

    /// The configuration as the text of a configuration file.
    pub fn to_yaml(&self) -> anyhow::Result<String> {
        Ok(serde_saphyr::to_string(self)?)
    }
}

/// Whether a variable has a value. An empty variable counts as unset.
#[allow(clippy::ptr_arg, reason = "it is the predicate of a filter")]
fn given(text: &String) -> bool {
    !text.is_empty()
}

fn set<T>(slot: &mut T, value: Option<T>) {
    if let Some(value) = value {
        *slot = value;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_printed_can_be_read() {
        let config = Config {
            reserved: Some("0,64".parse().unwrap()),
            ..Config::default()
        };
        assert_eq!(Config::parse(&config.to_yaml().unwrap()).unwrap(), config);
        assert_eq!(Config::parse("").unwrap(), Config::default());
    }

    #[test]
    fn mistakes_are_named() {
        for (text, named) in [
            ("reservd: 0", "reservd"),
            ("reserved: 3-1", "3-1"),
            ("reconcileSeconds: 0", "reconcileSeconds"),
            ("trees: []", "trees"),
            ("trees: [../x]", "../x"),
            ("enforcement: maybe", "maybe"),
            ("listen: everywhere", "listen"),
            ("metrics: {socket: true}", "socket"),
            ("metrics: {sharedCounters: -1}", "sharedCounters"),
            ("metrics: {connections: 3601}", "metrics.connections"),
            ("metrics: {connections: 30, peers: 1001}", "metrics.peers"),
            ("metrics: {peers: 64}", "--connections"),
            (
                "metrics: {collectors: {tpc: false}}",
                "unknown collector tpc: use state, cgroup",
            ),
            ("metrics: {namespaces: ['']}", "metrics.namespaces"),
            ("policy: {selector: 'a in (b'}", "a in (b"),
            ("cluster: {api: 1}", "api"),
            ("cluster: {node: n1}", "node"),
            ("cluster: {nodeName: Node_1}", "Node_1"),
            ("cluster: {namespace: a.b}", "a.b"),
            ("runtime: {index: 100}", "runtime.index"),
            ("runtime: {socket: nri.sock}", "nri.sock"),
            ("runtime: {nri: maybe}", "maybe"),
        ] {
            let error = format!("{:#}", Config::parse(text).unwrap_err());
            assert!(error.contains(named), "{text}: {error}");
        }
    }
}
