//! [`AgentNode`]: the machine, its cgroups and the configuration.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;

use super::changes::ChangedCgroups;
use super::config::{Config, EnforcementChoice, SourceChoice};
use crate::cpu::{CpuSet, Layout, Placer, Topology};
use crate::host::cgroup::{CgroupVersion, Cgroups, PodCgroup};
use crate::host::container_files::ContainerFolders;
use crate::host::pod_resources::{CpuManager, PodResources};
use crate::host::topology::{HotplugFiles, HotplugState};
use crate::host::{proc::Proc, topology};
use crate::pin::decide::{DecisionContext, KubeletCpus, default_reserved};
use crate::pin::{
    Enforcement, EnforcementCause, Ledger, Observed, PlacementSource, PodAssignment, Scan,
};
use crate::pod::{
    Capacity, CapacityInput, ObjectName, RecognizedPod, ThreadBasis, ThreadEnvironment,
    ThreadPolicy, thread_environment,
};

/// How long the agent waits at its start for the kubelet's answer.
const FIRST_ANSWER: Duration = Duration::from_secs(2);

/// The node as it was found at the start. A kubelet that assigns CPUs changes the source of
/// placements and the enforcement later.
#[derive(Debug, Clone)]
pub struct AgentNode {
    pub config: Config,
    /// The CPUs and NUMA nodes for which the topology was read.
    pub(super) hotplug_state: HotplugState,
    hotplug_files: HotplugFiles,
    pub topology: Topology,
    placer: Placer,
    /// The present layout, for the snapshot.
    pub(super) layout: Arc<Layout>,
    /// Why the changed topology can't be read, as logged.
    topology_error: Option<String>,
    pub cgroups: Cgroups,
    pub proc: Proc,
    /// The NUMA nodes with memory that pods may use.
    pub memory_nodes: CpuSet,
    /// CPUs that are never exclusive.
    pub reserved: CpuSet,
    pub enforcement: Enforcement,
    pub enforcement_cause: EnforcementCause,
    /// The reason for the enforcement, as a sentence.
    pub enforcement_reason: String,
    /// Who chooses the exclusive CPUs now.
    pub placement_source: PlacementSource,
    /// The enforcement, its cause and its reason for a node without a kubelet that assigns CPUs.
    alone: (Enforcement, EnforcementCause, String),
    /// The last known state of the kubelet's CPU Manager. `None` for cgroups outside any kubelet.
    cpu_manager: Option<CpuManager>,
    /// Why new assignments are suspended, if they are.
    suspended: Option<String>,
    pub(super) changes: Arc<ChangedCgroups>,
    /// The folders of live files; `None` if no container gets any.
    pub(super) live_folders: Option<ContainerFolders>,
}

// === impl AgentNode ===

impl AgentNode {
    /// Reads the node, and asks the kubelet for the CPU Manager's policy.
    ///
    /// # Errors
    /// No topology, no cpuset controller, reserved CPUs that don't exist.
    pub fn new(config: Config) -> anyhow::Result<Self> {
        let mut node = Self::apart(config)?;
        let kubelet = PodResources::new(&node.config.root_dir).with_deadline(FIRST_ANSWER);
        let cpu_manager = kubelet.cpu_manager_blocking();
        node.cpu_manager = Some(cpu_manager);
        node.set_cpu_manager(cpu_manager);
        Ok(node)
    }

    /// Reads the node for pods that no kubelet manages, so a kubelet's CPU Manager has no effect.
    ///
    /// # Errors
    /// The errors of [`AgentNode::new`].
    pub fn apart(config: Config) -> anyhow::Result<Self> {
        // The hotplug state comes first, so that the first tick notices a change that happens while
        // the topology is read.
        let hotplug_state = HotplugFiles::new(&config.root_dir).read();
        let topology = topology::read(&config.root_dir)?;
        let mut cgroups = Cgroups::detect(&config.cgroup_dir)?;
        cgroups.detect_systemd(&config.root_dir.join("run"));
        let reserved = reserved(config.reserved.as_ref(), &topology)?;
        let alone = enforcement(&config, &cgroups)?;
        let (enforcement, enforcement_cause, enforcement_reason) = alone.clone();
        let proc = Proc::new(&config.root_dir);
        let live_dir = config.runtime.live_folder();
        let live_folders = live_dir.map(ContainerFolders::new);
        let mut node = Self {
            // Copies of the node, for readers, never open the files.
            hotplug_files: HotplugFiles::new(&config.root_dir),
            config,
            hotplug_state,
            memory_nodes: CpuSet::new(),
            placer: Placer::new(&topology),
            layout: Arc::new(topology.layout()),
            topology_error: None,
            topology,
            cgroups,
            proc,
            reserved,
            enforcement,
            enforcement_cause,
            enforcement_reason,
            placement_source: PlacementSource::Pinfold,
            alone,
            cpu_manager: None,
            suspended: None,
            changes: Arc::default(),
            live_folders,
        };
        node.read_memory_nodes();
        Ok(node)
    }

    /// Reads which NUMA nodes the cgroups above the pods allow. If they can't be read, all NUMA nodes with memory count.
    pub(super) fn read_memory_nodes(&mut self) {
        let mut nodes = self.topology.memory_nodes();
        match self.cgroups.memory_nodes(&self.config.pod_cgroups) {
            Ok(allowed) => nodes = nodes.intersection(&allowed),
            Err(error) => tracing::debug!(
                "can't read the NUMA nodes of the cgroups above the pods: {:#}",
                anyhow::Error::new(error)
            ),
        }
        self.memory_nodes = nodes;
    }

    /// Which of the configured reserved CPUs are offline, while others are online, as a sentence.
    pub(super) fn offline_reserved(&self) -> Option<String> {
        let configured = self.config.reserved.as_ref()?;
        let online = configured.intersection(&self.topology.online);
        let missing = configured.difference(&online);
        (!online.is_empty() && !missing.is_empty()).then(|| {
            format!(
                "reserved, but not online: {}; for now the reserve is {}, so bring the rest online, or name other CPUs with \
                 --reserved",
                missing.in_words(),
                online.in_words()
            )
        })
    }

    fn has_default_reserved(&self) -> bool {
        self.config.reserved.as_ref().is_none_or(CpuSet::is_empty)
    }

    /// Forgets the default reserved CPUs, so that [`choose_reserved`] takes assigned CPUs into
    /// account.
    pub(super) fn forget_default_reserved(&mut self) {
        if self.has_default_reserved() {
            self.reserved = CpuSet::new();
        }
    }

    /// Chooses the default reserved CPUs like an agent at its start, with the assignments of `ledger`.
    pub fn reserve_beside(&mut self, ledger: &Ledger) {
        self.forget_default_reserved();
        if self.has_default_reserved() {
            choose_reserved(&mut self.reserved, &self.topology, ledger);
        }
    }

    /// How many CPUs the node can give, with the assignments of `ledger` and these lost CPUs.
    pub fn capacity(&self, ledger: &Ledger, lost: &CpuSet) -> Capacity {
        capacity(
            &self.config,
            (&self.topology, &self.reserved),
            (ledger, lost),
        )
    }

    /// The lost CPUs: those that are still missing after a second, as for the agent.
    pub fn lost_cpus(&self) -> anyhow::Result<CpuSet> {
        let first = self.unheld_cpus()?;
        if first.is_empty() {
            return Ok(first);
        }
        std::thread::sleep(Duration::from_secs(1));
        Ok(first.intersection(&self.unheld_cpus()?))
    }

    pub(super) fn cpu_manager(&self) -> Option<CpuManager> {
        self.cpu_manager
    }

    /// Takes the state of the kubelet's CPU Manager: who chooses CPUs follows, and what is enforced.
    /// While a kubelet does not answer, Pinfold makes no new assignments. Returns whether the
    /// source, the enforcement or the suspension changed.
    pub(super) fn set_cpu_manager(&mut self, now: CpuManager) -> bool {
        // The cgroups are outside any kubelet, so the enforcement stays.
        if self.cpu_manager.is_none() {
            return false;
        }
        self.cpu_manager = Some(now);
        let kubelet = PodResources::new(&self.config.root_dir);
        let socket = kubelet.socket().display();
        let source = placement_source(self.config.placement.source, now);
        let (enforcement, cause, reason) = self.enforcement_beside(source, now);
        let suspended = (now == CpuManager::Unanswered).then(|| {
            format!(
                "new assignments are suspended until a kubelet on {socket} reports whether it assigns CPUs, which can take a \
                 minute after its start; remove the socket if this node has no kubelet"
            )
        });
        let before = (
            self.enforcement,
            self.placement_source,
            self.suspended.is_some(),
        );
        self.enforcement = enforcement;
        self.enforcement_cause = cause;
        self.enforcement_reason = reason;
        self.placement_source = source;
        self.suspended = suspended;
        before != (enforcement, source, self.suspended.is_some())
    }

    /// The enforcement, its cause and its reason beside a kubelet whose CPU Manager has this state.
    fn enforcement_beside(
        &self,
        source: PlacementSource,
        now: CpuManager,
    ) -> (Enforcement, EnforcementCause, String) {
        let (enforcement, cause, reason) = self.alone.clone();
        let kubelet = PodResources::new(&self.config.root_dir);
        let socket = kubelet.socket().display();
        let says = match now {
            CpuManager::Assigns => format!(
                "the kubelet's CPU Manager assigns CPUs (policy static, according to {socket})"
            ),
            CpuManager::Disabled => format!(
                "the kubelet's CPU Manager assigns no CPUs (policy none, according to {socket})"
            ),
            CpuManager::NoSocket | CpuManager::Unanswered => {
                format!("no kubelet answers on {socket}")
            }
        };
        match (source, enforcement) {
            (_, Enforcement::Observe) => (enforcement, cause, reason),
            (PlacementSource::Kubelet, Enforcement::Partition) => {
                let consequence = if now == CpuManager::Assigns {
                    "and Pinfold keeps exactly these"
                } else {
                    "and placement.source is kubelet, so nothing is pinned; set it to auto to let Pinfold choose"
                };
                (
                    enforcement,
                    cause,
                    format!("{reason}; {says}, {consequence}"),
                )
            }
            (PlacementSource::Kubelet, _) => (
                Enforcement::Observe,
                EnforcementCause::CpuManager,
                format!(
                    "{says}, and without cpuset partitions Pinfold enforces nothing beside it: it sizes and measures; partitions \
                     need cgroup v2, Linux 6.7 or newer, and enforcement auto or partition"
                ),
            ),
            (PlacementSource::Pinfold, _) if now == CpuManager::Assigns => (
                Enforcement::Observe,
                EnforcementCause::CpuManager,
                format!(
                    "{says}, and placement.source is pinfold; set placement.source to auto to keep the kubelet's CPUs, or the \
                     kubelet's policy to none to let Pinfold choose"
                ),
            ),
            (PlacementSource::Pinfold, _) => (enforcement, cause, reason),
        }
    }

    /// Why new assignments are suspended: the kubelet has not reported the policy of its CPU
    /// Manager.
    pub(super) fn suspended(&self) -> Option<&str> {
        self.suspended.as_deref()
    }

    /// The node as decisions see it, with the NUMA nodes of the pods' devices, and the exclusive CPUs
    /// that the kubelet reports.
    pub(super) fn decision_context<'a>(
        &'a self,
        devices: &'a BTreeMap<ObjectName, CpuSet>,
        kubelet: &'a KubeletCpus,
        ids_settled: bool,
    ) -> DecisionContext<'a> {
        let chooses = self.placement_source == PlacementSource::Kubelet;
        DecisionContext {
            topology: &self.topology,
            placer: &self.placer,
            memory_nodes: &self.memory_nodes,
            reserved: &self.reserved,
            shared_minimum: self.config.shared_minimum,
            policy: &self.config.policy,
            preferences: &self.config.cpus,
            devices,
            ids_settled,
            suspended: self.suspended(),
            enforcement: self.enforcement,
            kubelet: chooses.then_some(kubelet),
        }
    }

    /// Reads the pods' trees, and matches their cgroups with the pods.
    pub fn observe(&self, pods: &[Arc<RecognizedPod>]) -> anyhow::Result<(Observed, Ledger)> {
        let mut scan = Scan::default();
        for (path, uid) in self.pod_paths()? {
            scan.pods.extend(self.pod(path, uid)?);
        }
        scan.surroundings = self.cgroups.surroundings(&self.config.pod_cgroups)?;
        let (observed, ledger) = Observed::new(scan, pods);
        let missing = self
            .cgroups
            .missing_cpus(&self.topology.online, &observed.live())?;
        let ledger = if missing.all.is_empty() {
            ledger
        } else {
            Ledger::read(&observed, missing.all)
        };
        Ok((observed, ledger))
    }

    /// Online CPUs that are missing and not held by a partition. Some may return in a moment.
    pub fn unheld_cpus(&self) -> anyhow::Result<CpuSet> {
        let online = &self.topology.online;
        let missing = self.cgroups.missing_cpus(online, &CpuSet::new())?;
        Ok(missing.unheld())
    }

    /// The path and the uid of each pod's cgroup.
    pub(super) fn pod_paths(&self) -> anyhow::Result<Vec<(String, String)>> {
        let mut paths = Vec::new();
        for tree in &self.config.pod_cgroups {
            let pods = self.cgroups.pods(tree);
            paths.extend(pods.with_context(|| format!("can't read the pods' tree {tree}"))?);
        }
        Ok(paths)
    }

    pub(super) fn find_pod(&self, uid: &str) -> anyhow::Result<Option<String>> {
        for tree in &self.config.pod_cgroups {
            let found = self.cgroups.find_pod(tree, uid);
            if let Some(path) =
                found.with_context(|| format!("can't read the pods' tree {tree}"))?
            {
                return Ok(Some(path));
            }
        }
        Ok(None)
    }

    /// Reads a pod's cgroup; `None` if the cgroup is gone.
    pub(super) fn pod(&self, path: String, uid: String) -> anyhow::Result<Option<PodCgroup>> {
        let unreadable = format!("can't read the pod's cgroup {path}");
        self.cgroups.pod(path, uid).context(unreadable)
    }

    /// Takes changes of the online CPUs and NUMA nodes, and the NUMA nodes that the cgroups above the pods allow.
    pub(super) fn read_topology_changes(&mut self) {
        // The files are opened again, in case /sys was mounted anew.
        self.hotplug_files = HotplugFiles::new(&self.config.root_dir);
        if !self.read_hotplug() {
            self.read_memory_nodes();
        }
    }

    /// Takes changes of the online CPUs and NUMA nodes, and returns whether there was one. Only
    /// then is the rest of the topology read.
    ///
    /// Every turn that decides begins with this comparison, because a CPU that has gone offline must not be assigned. It reads
    /// four small files, which the timer opens.
    pub(super) fn read_hotplug(&mut self) -> bool {
        let root = &self.config.root_dir;
        let hotplug_state = self.hotplug_files.read();
        if hotplug_state == self.hotplug_state {
            return false;
        }
        match topology::read(root) {
            Ok(topology) => {
                tracing::info!(
                    "the topology has changed: online CPUs are now {}",
                    topology.online
                );
                self.placer = Placer::new(&topology);
                self.layout = Arc::new(topology.layout());
                self.topology = topology;
                self.read_memory_nodes();
                self.hotplug_state = hotplug_state;
                self.topology_error = None;
            }
            Err(error) => {
                let error = format!("{:#}", anyhow::Error::new(error));
                if self.topology_error.as_ref() != Some(&error) {
                    tracing::error!(
                        "the topology has changed and can't be read, so the old topology stays in use: {error}"
                    );
                }
                self.topology_error = Some(error);
            }
        }
        true
    }
}

/// How many CPUs a machine with these reserved and lost CPUs can give, with the assignments of `ledger`. The sets of pods with an
/// unreadable record count as owned, because the scheduler counts these pods, too.
pub fn capacity(
    config: &Config,
    (topology, reserved): (&Topology, &CpuSet),
    (ledger, lost): (&Ledger, &CpuSet),
) -> Capacity {
    let all = |of: &dyn Fn(&PodAssignment) -> CpuSet| {
        let cpus = ledger.assignments.values().map(of);
        cpus.fold(CpuSet::new(), |all, cpus| all.union(&cpus))
    };
    let online = &topology.online;
    let available = ledger.available(online).difference(lost);
    let unreadable = ledger.unreadable_sets.iter();
    let unreadable = unreadable.fold(CpuSet::new(), |all, cpus| all.union(cpus));
    let unreadable = unreadable.intersection(&available);
    let idle = all(&|pod| pod.idle.intersection(online)).difference(&unreadable);
    Capacity::new(&CapacityInput {
        online,
        withheld: &online.difference(&ledger.available(online)),
        held_by_others: &ledger.held_by_others.difference(&unreadable),
        lost,
        reserved,
        isolated: &topology.isolated,
        cores: &topology.cores(),
        preference: config.cpus.cores,
        single_cores: config.policy.single_cores,
        shared_minimum: config.shared_minimum,
        owned: &all(&PodAssignment::usable)
            .intersection(online)
            .union(&unreadable),
        idle: &idle,
    })
}

/// Who chooses the exclusive CPUs beside a kubelet whose CPU Manager has this state.
pub(super) fn placement_source(choice: SourceChoice, cpu_manager: CpuManager) -> PlacementSource {
    match choice {
        SourceChoice::Auto if cpu_manager == CpuManager::Assigns => PlacementSource::Kubelet,
        SourceChoice::Kubelet => PlacementSource::Kubelet,
        SourceChoice::Auto | SourceChoice::Pinfold => PlacementSource::Pinfold,
    }
}

/// Chooses the default reserved CPUs at the start, and again when pods can use none of them. It
/// never chooses assigned, excluded or withheld CPUs, because the reserved CPUs are the part of the
/// pods' CPUs that stays shared.
pub(super) fn choose_reserved(reserved: &mut CpuSet, topology: &Topology, ledger: &Ledger) {
    let online = &topology.online;
    if !reserved.is_disjoint(&ledger.available(online)) {
        return;
    }
    let chosen = default_reserved(topology, &ledger.unassignable(online));
    if chosen == *reserved {
        return;
    }
    if chosen.is_empty() {
        tracing::error!(
            "no CPU is reserved: each of the CPUs {} that pods can use is owned",
            ledger.available(online)
        );
    } else {
        tracing::info!("Pinfold reserves {}", chosen.in_words());
    }
    *reserved = chosen;
}

/// The configured reserved CPUs, or else the lowest core without a CPU isolated at boot, whatever
/// is assigned.
///
/// Configured CPUs that are offline stay reserved until they are online again, just as when CPUs go
/// offline while the agent runs.
///
/// # Errors
/// None of the configured CPUs is online.
pub fn reserved(configured: Option<&CpuSet>, topology: &Topology) -> anyhow::Result<CpuSet> {
    let Some(configured) = configured.filter(|configured| !configured.is_empty()) else {
        return Ok(default_reserved(topology, &CpuSet::new()));
    };
    anyhow::ensure!(
        !configured.is_disjoint(&topology.online),
        "no reserved CPU is online: reserved are {configured}, online {}; name online CPUs with --reserved",
        topology.online
    );
    Ok(configured.clone())
}

/// The enforcement, its cause, and its reason as a sentence.
///
/// # Errors
/// The configuration requires partitions, and the kernel does not support them.
fn enforcement(
    config: &Config,
    cgroups: &Cgroups,
) -> anyhow::Result<(Enforcement, EnforcementCause, String)> {
    if config.enforcement == EnforcementChoice::Observe {
        return Ok((
            Enforcement::Observe,
            EnforcementCause::Configuration,
            "set by the configuration".to_owned(),
        ));
    }
    let weaker = if cgroups.uses_systemd() {
        "Pinfold sets the pods' CPUs through systemd (AllowedCPUs), and other tasks may run on exclusive CPUs"
    } else {
        "Pinfold writes cpuset.cpus of the pods' cgroups, and other tasks may run on exclusive CPUs"
    };
    if config.enforcement == EnforcementChoice::Cpuset {
        return Ok((
            Enforcement::Cpuset,
            EnforcementCause::Configuration,
            format!("set by the configuration: {weaker}"),
        ));
    }
    let offered = cgroups
        .offers_partitions()
        .context("can't find out whether the kernel supports cpuset partitions")?;
    if offered {
        let reason =
            "the kernel supports cpuset partitions and keeps other tasks off exclusive CPUs";
        return Ok((
            Enforcement::Partition,
            EnforcementCause::PartitionsSupported,
            reason.to_owned(),
        ));
    }
    let (cause, lacking) = match cgroups.version {
        CgroupVersion::V1 => (
            EnforcementCause::CgroupV1,
            "cgroup v1 does not support cpuset partitions",
        ),
        CgroupVersion::V2 => (
            EnforcementCause::PartitionsUnsupported,
            "this kernel does not support remote cpuset partitions (Linux 6.7 or newer does)",
        ),
    };
    anyhow::ensure!(
        config.enforcement != EnforcementChoice::Partition,
        "enforcement partition is not available: {lacking}; set the enforcement to auto or cpuset, or boot Linux 6.7 or newer \
         with cgroup v2"
    );
    Ok((Enforcement::Cpuset, cause, format!("{lacking}: {weaker}")))
}

/// The thread environment of a container with exclusive `cpus`, or of a container in the shared pool.
pub(super) fn threads(
    node: &AgentNode,
    pod: &RecognizedPod,
    index: usize,
    cpus: Option<&CpuSet>,
    shared: &CpuSet,
) -> ThreadEnvironment {
    let config = &node.config;
    environment(
        pod,
        index,
        cpus,
        shared,
        &node.topology,
        (&config.policy, &config.threads),
    )
}

/// The thread environment of a pod's container, from exclusive CPUs or from a quota in the shared pool.
pub fn environment(
    pod: &RecognizedPod,
    index: usize,
    cpus: Option<&CpuSet>,
    shared: &CpuSet,
    topology: &Topology,
    (policy, threads): (&crate::pod::Policy, &ThreadPolicy),
) -> ThreadEnvironment {
    let missing = crate::pod::Container::default();
    let container = pod.containers.get(index).unwrap_or(&missing);
    let basis = match cpus {
        Some(cpus) => Some(ThreadBasis::of_set(cpus, topology)),
        None => {
            ThreadBasis::of_quota(pod, container, threads).map(|basis| basis.at_most(shared.len()))
        }
    };
    thread_environment(pod, index, policy, threads, basis)
}
