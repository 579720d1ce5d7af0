//! Configuration: defaults, then one YAML file, then environment and flags (`clap` merges both).

mod log;
mod renamed_keys;
mod sources;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use serde::{Deserialize, Deserializer, Serialize};

pub use self::log::{Log, LogFormat};
pub use self::sources::{AutoSwitch, Runtime};
use super::api::context;
use crate::cpu::{Cores, CpuSet, SharedMinimum};
use crate::metrics::COLLECTORS;
use crate::pin::cpu_isolation::CpuIsolationOptions;
use crate::pod::{CpuPreferences, LONGEST_SHRINK_DELAY, Policy, ThreadPolicy};
use crate::text::values::whole;
use crate::text::{duration, parse_errors};

/// The configuration file that is read if no file is named.
pub const DEFAULT_FILE: &str = "/etc/pinfold.yaml";

/// The effective configuration of the agent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Config {
    /// The folder that holds `sys` and `proc`.
    pub root_dir: PathBuf,
    /// The mount point of the cgroup hierarchies.
    pub cgroup_dir: PathBuf,
    /// The cgroups above the pods' cgroups. The agent waits for missing cgroups.
    pub pod_cgroups: Vec<String>,
    /// A folder of pod manifests, YAML or JSON.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub manifest_dir: Option<PathBuf>,
    pub cluster: ClusterConfig,
    pub runtime: Runtime,
    /// CPUs that are never exclusive. The default is the lowest core without a CPU isolated at boot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reserved: Option<CpuSet>,
    /// How many CPUs exclusive assignments, with the siblings that they keep idle, leave to everybody else.
    pub shared_minimum: SharedMinimum,
    pub enforcement: EnforcementChoice,
    pub placement: Placement,
    /// The time between two comparisons of the kernel with the ledger.
    #[serde(with = "duration")]
    pub reconcile_interval: Duration,
    /// Where metrics, health and status are served.
    #[serde(deserialize_with = "listen")]
    pub listen: SocketAddr,
    pub metrics: Metrics,
    /// Which pods are entitled to exclusive CPUs.
    pub policy: Policy,
    /// How CPUs are chosen. A pod's annotation `pinfold.io/NAME` overrules each preference.
    pub cpus: CpuPreferences,
    /// How many running containers may move within an hour to avoid splitting a new container's CPUs. Only pods that allow
    /// moves are moved.
    pub max_moves_per_hour: u32,
    /// Which kernel work is kept off exclusive CPUs.
    pub cpu_isolation: CpuIsolationOptions,
    /// How thread counts follow from CPUs.
    pub threads: ThreadPolicy,
    pub log: Log,
}

/// Whether the Kubernetes API is used, and the agent's node name and namespace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ClusterConfig {
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

impl Default for ClusterConfig {
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
    /// The most descriptors that count cycles, instructions and cache misses of containers in the
    /// shared pool. Each container needs four per CPU, and the kernel switches the counters with
    /// the containers.
    pub max_shared_counters: usize,
    /// The time between two reads of the pods' TCP connections; `0s` disables the reads.
    #[serde(with = "duration")]
    pub connection_interval: Duration,
    /// The most peers of a training job for which a pod's traffic is reported; 0 reports no peers.
    pub max_peers: u64,
    /// The collectors to switch off, like `{tcp: false}`. All others are on.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub collectors: BTreeMap<String, bool>,
    /// The namespaces whose pods have series. An empty list means all namespaces.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub namespaces: Vec<String>,
    /// Who may read `/metrics` over the network.
    pub auth: MetricsAuth,
    /// The audiences of the tokens that callers from other hosts may send. An empty list means the
    /// API server's own.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub audiences: Vec<String>,
}

/// Who may read `/metrics` over the network. Callers on this host may always read it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MetricsAuth {
    /// Every caller.
    #[default]
    None,
    /// Callers with a bearer token whose user the API server authorizes to get `/metrics`.
    Kubernetes,
}

// === impl Metrics ===

impl Metrics {
    /// Whether a collector is on.
    pub fn is_enabled(&self, collector: &str) -> bool {
        self.collectors.get(collector) != Some(&false)
    }

    pub fn disabled_collectors(&self) -> impl Iterator<Item = &str> {
        let disabled = self.collectors.iter().filter(|(_, on)| !**on);
        disabled.map(|(name, _)| name.as_str())
    }

    fn check(&self) -> anyhow::Result<()> {
        let interval = self.connection_interval;
        anyhow::ensure!(
            interval.is_zero()
                || (Duration::from_secs(1)..=Duration::from_secs(3600)).contains(&interval),
            "metrics.connectionInterval is {}: use 1s to 1h, or 0s for no reads",
            duration::written(interval)
        );
        anyhow::ensure!(
            self.max_peers <= 1000,
            "metrics.maxPeers is {}: use 0 to 1000",
            self.max_peers
        );
        anyhow::ensure!(
            self.max_peers == 0 || !interval.is_zero(),
            "metrics.maxPeers is {}, but the agent reads no connections: set metrics.connectionInterval \
             (--connection-interval), for example to 30s",
            self.max_peers
        );
        for name in self.collectors.keys() {
            anyhow::ensure!(
                COLLECTORS.contains(&name.as_str()),
                "metrics.collectors has the unknown collector {name}: use {}",
                COLLECTORS.join(", ")
            );
        }
        anyhow::ensure!(
            self.audiences.iter().all(|audience| !audience.is_empty()),
            "metrics.audiences has an empty name: name an audience, like pinfold, or remove the list for the API server's \
             own audiences"
        );
        for namespace in &self.namespaces {
            anyhow::ensure!(
                !namespace.is_empty(),
                "metrics.namespaces has an empty name: name a namespace, or remove the list for all namespaces"
            );
        }
        Ok(())
    }
}

/// The configured enforcement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum EnforcementChoice {
    /// The strongest enforcement that the node supports.
    #[default]
    Auto,
    /// Cpuset partitions: the kernel removes the CPUs from all other cgroups (cgroup v2, Linux 6.7 or newer, or a kernel with
    /// the backport).
    Partition,
    /// CPU sets: the agent writes `cpuset.cpus` of the pods' cgroups.
    Cpuset,
    /// No writes: the agent only measures and reports.
    Observe,
}

/// Who chooses the exclusive CPUs.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Placement {
    pub source: SourceChoice,
}

/// The configured source of placements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum SourceChoice {
    /// The kubelet where its CPU Manager assigns CPUs, else Pinfold.
    #[default]
    Auto,
    /// Pinfold chooses the CPUs. Beside a kubelet that assigns CPUs, it only observes.
    Pinfold,
    /// The kubelet's CPU Manager chooses the CPUs, and the agent keeps exactly these.
    Kubelet,
}

/// What the command line and the environment say; each wins over the file.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct Overrides {
    /// Configuration file (YAML) [default: /etc/pinfold.yaml, if the file exists]
    #[arg(long, value_name = "FILE", env = "PINFOLD_CONFIG")]
    pub config: Option<PathBuf>,
    /// Folder that holds sys and proc [default: /]
    #[arg(long, value_name = "DIR", env = "PINFOLD_ROOT_DIR")]
    pub root_dir: Option<PathBuf>,
    /// Mount point of the cgroup hierarchies [default: /sys/fs/cgroup]
    #[arg(long, value_name = "DIR", env = "PINFOLD_CGROUP_DIR")]
    pub cgroup_dir: Option<PathBuf>,
    /// Cgroup that contains the pods' cgroups; may be repeated [default: kubepods and kubepods.slice]
    #[arg(
        long = "pod-cgroup",
        value_name = "CGROUP",
        env = "PINFOLD_POD_CGROUPS",
        value_delimiter = ','
    )]
    pub pod_cgroups: Vec<String>,
    /// Folder of pod manifests (YAML or JSON)
    #[arg(long, value_name = "DIR", env = "PINFOLD_MANIFEST_DIR")]
    pub manifest_dir: Option<PathBuf>,
    /// Whether the agent reads pods from the Kubernetes API. auto: on if a kubeconfig is configured, or no --manifest-dir
    /// [default: auto]
    #[arg(long, env = "PINFOLD_API")]
    pub api: Option<AutoSwitch>,
    /// Kubeconfig of the API server [default: the file in KUBECONFIG, else the pod's service account]
    #[arg(long, value_name = "FILE", env = "PINFOLD_KUBECONFIG")]
    pub kubeconfig: Option<PathBuf>,
    /// This node's name in the cluster [default: the host's name]
    #[arg(long, value_name = "NAME", env = "NODE_NAME")]
    pub node_name: Option<String>,
    /// Namespace of the agents and of their objects [default: pinfold]
    #[arg(long, value_name = "NAMESPACE", env = "POD_NAMESPACE")]
    pub agent_namespace: Option<String>,
    /// Whether the agent uses the NRI (Node Resource Interface) of the container runtime. auto: on if the folder of the
    /// NRI socket exists [default: auto]
    #[arg(long, env = "PINFOLD_NRI")]
    pub nri: Option<AutoSwitch>,
    /// The container runtime's NRI socket [default: /var/run/nri/nri.sock]
    #[arg(long, value_name = "SOCKET", env = "PINFOLD_NRI_SOCKET")]
    pub nri_socket: Option<PathBuf>,
    /// Whether pinned containers get a folder /run/pinfold with files that name their CPUs, which needs NRI [default: true]
    #[arg(long, value_name = "BOOL", env = "PINFOLD_LIVE_FILES", num_args = 0..=1, default_missing_value = "true", require_equals = true)]
    pub live_files: Option<bool>,
    /// Folder on the node for these files [default: /run/pinfold]
    #[arg(long, value_name = "DIR", env = "PINFOLD_LIVE_DIR")]
    pub live_dir: Option<PathBuf>,
    /// Reserved CPUs, which are never exclusive, like 0-1,32 [default: the lowest core without a CPU isolated at boot]
    #[arg(long, value_name = "LIST", env = "PINFOLD_RESERVED")]
    pub reserved: Option<CpuSet>,
    /// CPUs that exclusive assignments leave to everybody else, reserved ones included: a number, or a share like 10%
    /// [default: 5%]
    #[arg(long, value_name = "MINIMUM", env = "PINFOLD_SHARED_MINIMUM")]
    pub shared_minimum: Option<SharedMinimum>,
    /// Time for which a running container keeps CPUs after a resize to fewer, at most 10s; 0s for no delay [default: 5s]
    #[arg(long, value_name = "DURATION", env = "PINFOLD_SHRINK_DELAY", value_parser = duration::read)]
    pub shrink_delay: Option<Duration>,
    /// How assignments are enforced [default: auto]
    #[arg(long, env = "PINFOLD_ENFORCEMENT")]
    pub enforcement: Option<EnforcementChoice>,
    /// Who chooses the exclusive CPUs. auto: the kubelet where its CPU Manager assigns CPUs, else Pinfold [default: auto]
    #[arg(long, env = "PINFOLD_PLACEMENT_SOURCE")]
    pub placement_source: Option<SourceChoice>,
    /// Time between two checks of all assignments against the kernel, 1s to 1h [default: 10s]
    #[arg(long, value_name = "DURATION", env = "PINFOLD_RECONCILE_INTERVAL", value_parser = duration::read)]
    pub reconcile_interval: Option<Duration>,
    /// Address for metrics, health and status [default: 127.0.0.1:9470]
    #[arg(long, value_name = "ADDRESS", env = "PINFOLD_LISTEN", value_parser = address)]
    pub listen: Option<SocketAddr>,
    /// Whether BPF programs count what the pods' sockets send and receive (cgroup v2) [default: false]
    #[arg(long, value_name = "BOOL", env = "PINFOLD_SOCKETS", num_args = 0..=1, default_missing_value = "true", require_equals = true)]
    pub sockets: Option<bool>,
    /// Maximum number of file descriptors that count cycles, instructions and cache misses of containers on shared CPUs.
    /// A container needs four descriptors for each CPU [default: 0]
    #[arg(long, value_name = "NUMBER", env = "PINFOLD_MAX_SHARED_COUNTERS", value_parser = whole::<usize>(0..=u64::MAX))]
    pub max_shared_counters: Option<usize>,
    /// Time between two reads of the pods' TCP connections, at most 1h; 0s disables the reads [default: 0s]
    #[arg(long, value_name = "DURATION", env = "PINFOLD_CONNECTION_INTERVAL", value_parser = duration::read)]
    pub connection_interval: Option<Duration>,
    /// Maximum number of peers in the training job for which a pod's traffic is reported; needs --connection-interval
    /// [default: 0]
    #[arg(long, value_name = "NUMBER", env = "PINFOLD_MAX_PEERS", value_parser = whole::<u64>(0..=1000))]
    pub max_peers: Option<u64>,
    /// Level of the log: error, warn, info, debug or trace, or a filter by module [default: info]
    #[arg(long, value_name = "LEVEL", env = "PINFOLD_LOG_LEVEL")]
    pub log_level: Option<String>,
    /// Format of the log [default: text]
    #[arg(long, value_name = "FORMAT", env = "PINFOLD_LOG_FORMAT")]
    pub log_format: Option<LogFormat>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            root_dir: PathBuf::from("/"),
            cgroup_dir: PathBuf::from("/sys/fs/cgroup"),
            pod_cgroups: vec!["kubepods".to_owned(), "kubepods.slice".to_owned()],
            manifest_dir: None,
            cluster: ClusterConfig::default(),
            runtime: Runtime::default(),
            reserved: None,
            shared_minimum: SharedMinimum::default(),
            enforcement: EnforcementChoice::Auto,
            placement: Placement::default(),
            reconcile_interval: Duration::from_secs(10),
            listen: SocketAddr::from(([127, 0, 0, 1], 9470)),
            metrics: Metrics::default(),
            policy: Policy::default(),
            cpus: CpuPreferences::default(),
            max_moves_per_hour: 0,
            cpu_isolation: CpuIsolationOptions::default(),
            threads: ThreadPolicy::default(),
            log: Log::default(),
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
        renamed_keys::check_environment()?;
        let mut config = match &overrides.config {
            Some(path) => Self::read(path)?,
            None if Path::new(DEFAULT_FILE).exists() => Self::read(Path::new(DEFAULT_FILE))?,
            None => Self::default(),
        };
        config.apply(overrides);
        config.check()?;
        Ok(config)
    }

    /// Applies the command line and the environment.
    fn apply(&mut self, overrides: Overrides) {
        let Overrides {
            config: _,
            root_dir,
            cgroup_dir,
            pod_cgroups,
            manifest_dir,
            api,
            kubeconfig,
            node_name,
            agent_namespace,
            nri,
            nri_socket,
            live_files,
            live_dir,
            reserved,
            shared_minimum,
            shrink_delay,
            enforcement,
            placement_source,
            reconcile_interval,
            listen,
            sockets,
            max_shared_counters,
            connection_interval,
            max_peers,
            log_level,
            log_format,
        } = overrides;
        let pod_cgroups = Some(pod_cgroups).filter(|cgroups| !cgroups.is_empty());
        set(&mut self.root_dir, root_dir);
        set(&mut self.cgroup_dir, cgroup_dir);
        set(&mut self.pod_cgroups, pod_cgroups);
        set(&mut self.shared_minimum, shared_minimum);
        set(&mut self.policy.shrink_delay, shrink_delay);
        set(&mut self.enforcement, enforcement);
        set(&mut self.placement.source, placement_source);
        set(&mut self.reconcile_interval, reconcile_interval);
        set(&mut self.listen, listen);
        let metrics = &mut self.metrics;
        set(&mut metrics.sockets, sockets);
        set(&mut metrics.max_shared_counters, max_shared_counters);
        set(&mut metrics.connection_interval, connection_interval);
        set(&mut metrics.max_peers, max_peers);
        self.manifest_dir = manifest_dir.or(self.manifest_dir.take());
        let cluster = &mut self.cluster;
        set(&mut cluster.api, api);
        set(&mut cluster.namespace, agent_namespace.filter(has_value));
        cluster.kubeconfig = kubeconfig.or(cluster.kubeconfig.take());
        cluster.node_name = node_name.filter(has_value).or(cluster.node_name.take());
        set(&mut self.runtime.nri, nri);
        set(&mut self.runtime.socket, nri_socket);
        set(&mut self.runtime.live_files, live_files);
        set(&mut self.runtime.live_dir, live_dir);
        self.reserved = reserved.or(self.reserved.take());
        set(&mut self.log.level, log_level.filter(has_value));
        set(&mut self.log.format, log_format);
    }

    fn read(path: &Path) -> anyhow::Result<Self> {
        let text = std::fs::read_to_string(path)
            .map_err(parse_errors::reading)
            .with_context(|| format!("can't read the configuration file {}", path.display()))?;
        Self::parse(&text)
            .with_context(|| format!("the configuration file {} is invalid", path.display()))
    }

    /// Reads the text of a configuration file. An empty text holds the defaults.
    pub fn parse(text: &str) -> anyhow::Result<Self> {
        renamed_keys::check(text)?;
        let parsed: Option<Self> = serde_saphyr::from_str(text).map_err(|error| {
            let words = parse_errors::yaml(&error);
            let line = error.location().map(|location| location.line());
            match line.and_then(|line| parse_errors::place(text, line)) {
                Some(place) => anyhow::anyhow!("{place}: {words}"),
                None => anyhow::anyhow!("{words}"),
            }
        })?;
        let config = parsed.unwrap_or_default();
        config.check()?;
        Ok(config)
    }

    fn check(&self) -> anyhow::Result<()> {
        let hour = Duration::from_secs(3600);
        anyhow::ensure!(
            (Duration::from_secs(1)..=hour).contains(&self.reconcile_interval),
            "reconcileInterval is {}: use 1s to 1h",
            duration::written(self.reconcile_interval)
        );
        self.metrics.check()?;
        anyhow::ensure!(
            !self.pod_cgroups.is_empty(),
            "podCgroups is empty: name the cgroup above the pods' cgroups, like kubepods"
        );
        for cgroup in &self.pod_cgroups {
            let is_plain = cgroup
                .split('/')
                .all(|part| !part.is_empty() && part != "." && part != "..");
            anyhow::ensure!(
                is_plain,
                "podCgroups has {cgroup:?}, which is not a path below the cgroup mount: write kubepods or kubelet/kubepods"
            );
        }
        anyhow::ensure!(
            self.metrics.auth == MetricsAuth::None || self.cluster.api != AutoSwitch::Never,
            "metrics.auth is kubernetes, but cluster.api (--api) is never: allow the API, or set metrics.auth to none"
        );
        anyhow::ensure!(
            self.metrics.audiences.is_empty() || self.cluster.api != AutoSwitch::Never,
            "metrics.audiences needs reviews by the API server, but cluster.api (--api) is never: allow the API, or remove \
             metrics.audiences"
        );
        anyhow::ensure!(
            self.policy.single_cores || self.cpus.cores != Cores::Single,
            "cpus.cores is single, but policy.singleCores is false: allow single cores, or set cpus.cores to preferred or whole"
        );
        let delay = self.policy.shrink_delay;
        anyhow::ensure!(
            delay <= LONGEST_SHRINK_DELAY,
            "policy.shrinkDelay is {}: use 0s to 10s",
            duration::written(delay)
        );
        self.log.filter()?;
        self.runtime.check()?;
        context::check(&self.cluster.namespace, self.cluster.node_name.as_deref())
    }

    /// The configuration as the text of a configuration file.
    pub fn to_yaml(&self) -> anyhow::Result<String> {
        Ok(serde_saphyr::to_string(self)?)
    }
}

/// Reads the address and the port of a server on this host.
///
/// # Errors
/// The text has no port, or a name in place of the address.
pub fn address(text: &str) -> Result<SocketAddr, String> {
    let remedy = "write an IP address and a port, like 127.0.0.1:9470, 0.0.0.0:9470 or [::]:9470";
    text.parse().map_err(|_| remedy.to_owned())
}

fn listen<'de, D: Deserializer<'de>>(deserializer: D) -> Result<SocketAddr, D::Error> {
    address(&String::deserialize(deserializer)?).map_err(serde::de::Error::custom)
}

/// Whether a variable has a value. An empty variable counts as unset.
#[allow(clippy::ptr_arg, reason = "it is the predicate of a filter")]
fn has_value(text: &String) -> bool {
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
    fn a_printed_configuration_reads_back_equal() {
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
            ("reconcileInterval: 0s", "reconcileInterval"),
            ("podCgroups: []", "podCgroups"),
            ("podCgroups: [../x]", "../x"),
            ("reconcileInterval: 10", "reconcileInterval"),
            ("enforcement: maybe", "maybe"),
            ("log: {format: xml}", "xml"),
            ("reconcileSeconds: 10", "reconcileInterval"),
            ("quiet: {irqs: true}", "cpuIsolation"),
            ("cpus: {near-devices: true}", "cpus.nearDevices"),
            ("listen: everywhere", "listen"),
            ("metrics: {socket: true}", "socket"),
            ("metrics: {maxSharedCounters: -1}", "maxSharedCounters"),
            (
                "metrics: {connectionInterval: 3601s}",
                "metrics.connectionInterval",
            ),
            (
                "metrics: {connectionInterval: 30s, maxPeers: 1001}",
                "metrics.maxPeers",
            ),
            ("metrics: {maxPeers: 64}", "--connection-interval"),
            (
                "metrics: {collectors: {tpc: false}}",
                "unknown collector tpc: use state, cgroup",
            ),
            ("metrics: {namespaces: ['']}", "metrics.namespaces"),
            ("metrics: {auth: token}", "token"),
            (
                "{metrics: {auth: kubernetes}, cluster: {api: never}}",
                "metrics.auth",
            ),
            ("metrics: {audiences: ['']}", "metrics.audiences"),
            ("metrics: {audiences: pinfold}", "audiences"),
            (
                "{metrics: {audiences: [pinfold]}, cluster: {api: never}}",
                "metrics.audiences",
            ),
            ("policy: {selector: 'a in (b'}", "a in (b"),
            ("sharedMinimum: 101%", "101%"),
            ("policy: {shrinkDelay: 11s}", "policy.shrinkDelay"),
            ("policy: {shrinkDelay: 5}", "shrinkDelay"),
            ("sharedMinimum: -1", "sharedMinimum"),
            ("sharedMinimum: [1]", "sharedMinimum"),
            (
                "{cpus: {cores: single}, policy: {singleCores: false}}",
                "cpus.cores",
            ),
            ("cluster: {api: 1}", "api"),
            ("cluster: {node: n1}", "node"),
            ("cluster: {nodeName: Node_1}", "Node_1"),
            ("cluster: {namespace: a.b}", "a.b"),
            ("runtime: {index: 100}", "runtime.index"),
            ("runtime: {socket: nri.sock}", "nri.sock"),
            ("runtime: {nri: maybe}", "maybe"),
            ("runtime: {liveDir: run/pinfold}", "runtime.liveDir"),
        ] {
            let error = format!("{:#}", Config::parse(text).unwrap_err());
            assert!(error.contains(named), "{text}: {error}");
        }
    }
}
