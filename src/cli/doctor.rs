//! `pinfold doctor`: what this node can do, what it lacks, what follows from that, and the
//! remedies.

mod check;
mod cpus;

use std::io::ErrorKind;
use std::process::ExitCode;

use clap::Args;

use check::{CheckResult, CheckVerdict, bad, good, weak};

use super::{OutputFormat, doctor_required};
#[cfg(feature = "portforward")]
use super::{agents::ClusterArgs, cluster_doctor};
use crate::agent::AgentNode;
#[cfg(feature = "portforward")]
use crate::agent::config::ClusterConfig;
use crate::agent::config::{AutoSwitch, Config, EnforcementChoice, Overrides, Runtime};
use crate::cpu::{CpuSet, Topology};
use crate::host::cgroup::{CgroupError, CgroupVersion, Cgroups, join_host};
use crate::host::container_files::ContainerFolders;
use crate::host::topology;
use crate::pin::Enforcement;
use crate::text::counted;

/// The examples in the help.
const EXAMPLES: &str = if cfg!(feature = "portforward") {
    "Examples:
  pinfold doctor
  pinfold doctor -o json
  pinfold doctor --cluster    ask the agents about the nodes of the cluster

Exit codes: 0 pinning can work here, 1 it can't."
} else {
    "Examples:
  pinfold doctor
  pinfold doctor -o json

Exit codes: 0 pinning can work here, 1 it can't."
};

/// Examine this node: what it can do, what it lacks, what follows from that, and the remedies.
///
/// Three checks have to write: for extended attributes, the command sets and removes an attribute of the top cgroup, for
/// partitions, it gives a free CPU to a cgroup pinfold-probe for some milliseconds, and for live files, it makes and removes a
/// file in their folder. It changes nothing else.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Doctor {
    #[command(flatten)]
    overrides: Overrides,
    #[cfg(feature = "portforward")]
    #[command(flatten)]
    cluster: ClusterArgs,
    /// Output format.
    #[arg(short, long, value_enum, value_name = "FORM", default_value_t)]
    output: OutputFormat,
}

// === impl Doctor ===

impl Doctor {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        #[cfg(feature = "portforward")]
        if self.cluster.is_wanted(false)? {
            let kubeconfig = self.overrides.kubeconfig.as_deref();
            let usual = ClusterConfig::default().namespace;
            let own = self.overrides.agent_namespace.as_ref();
            let namespace = own.filter(|name| !name.is_empty()).unwrap_or(&usual);
            return super::run::runtime()?.block_on(async {
                let cluster = self.cluster.connect(kubeconfig, namespace).await?;
                cluster_doctor::print(&cluster, self.output).await
            });
        }
        let config = Config::load(self.overrides)?;
        let findings = examine(&config);
        let works = findings
            .iter()
            .all(|finding| finding.verdict != CheckVerdict::Bad);
        match self.output {
            OutputFormat::Text => {
                let conclusion = if works {
                    "pinning can work here"
                } else {
                    "pinning can't work here"
                };
                let lines = findings.iter().flat_map(CheckResult::lines);
                super::emit(lines.chain([conclusion.into()]))?;
            }
            form => {
                form.print(&serde_json::json!({ "canPin": works, "findings": findings }))?;
            }
        }
        Ok(if works {
            ExitCode::SUCCESS
        } else {
            ExitCode::from(1)
        })
    }
}

fn examine(config: &Config) -> Vec<CheckResult> {
    let mut findings = vec![rights(config)];
    match topology::read(&config.root_dir) {
        Ok(topology) => findings.extend(machine(&topology, config.reserved.as_ref())),
        Err(error) => {
            findings.push(bad(
                "CPUs",
                error.to_string(),
                "name the folder that holds sys/ with --root-dir",
            ));
        }
    }
    match Cgroups::detect(&config.cgroup_dir) {
        Ok(cgroups) => {
            findings.extend(controllers(&cgroups));
            findings.push(records(&cgroups));
            findings.push(trees(config, &cgroups));
        }
        Err(error) => findings.push(bad(
            "cgroups",
            error.to_string(),
            "mount a cgroup hierarchy, or name the folder with --cgroup-dir",
        )),
    }
    findings.push(runtime(&config.runtime));
    findings.extend(live_files(&config.runtime));
    findings.extend(required(&config.root_dir));
    match AgentNode::new(config.clone()) {
        Ok(node) => {
            findings.push(enforcement(&node));
            findings.extend(partitions(&node));
            let lost = node.lost_cpus().unwrap_or_default();
            findings.extend(cpus::cpus_for_pods(&node, &lost));
            findings.extend(cpus::capacity(&node, &lost));
        }
        Err(error) => findings.push(bad(
            "agent",
            format!("{error:#}"),
            "fix this error first; pinfold run fails with the same error",
        )),
    }
    findings
}

/// What holds for pods that require exclusive CPUs while no agent answers the runtime.
fn required(root: &std::path::Path) -> Option<CheckResult> {
    let finding = doctor_required::examine(root)?;
    Some(CheckResult {
        what: "required",
        verdict: if finding.is_good {
            CheckVerdict::Good
        } else {
            CheckVerdict::Weak
        },
        finding: finding.text,
        advice: finding.advice.map(str::to_owned),
    })
}

fn rights(config: &Config) -> CheckResult {
    let what = "rights";
    if !nix::unistd::geteuid().is_root() {
        let advice = "run the command with sudo, or in a privileged container";
        return bad(
            what,
            "not root: cgroups can't be written".to_owned(),
            advice,
        );
    }
    match join_host(&config.root_dir) {
        Ok(false) => good(what, "root".to_owned()),
        Ok(true) => good(
            what,
            "root; the agent moves from the container's cgroup namespace to the host's".to_owned(),
        ),
        Err(_) if config.enforcement == EnforcementChoice::Observe => {
            good(what, "root, which is enough to observe".to_owned())
        }
        Err(error) => weak(
            what,
            format!("root, but the agent can't leave the container's cgroup namespace: {error}"),
            "give the container CAP_SYS_ADMIN: without this capability, on cgroup v2 the kernel may refuse to move the \
             processes of the agent's own container",
        ),
    }
}

/// Checks whether the container runtime sends a request before a container starts.
fn runtime(runtime: &Runtime) -> CheckResult {
    let (what, socket) = ("runtime", runtime.socket.display());
    if runtime.nri == AutoSwitch::Never {
        return weak(
            what,
            "NRI is switched off in the configuration".to_owned(),
            "set runtime.nri to auto, which uses NRI if the runtime has NRI",
        );
    }
    let advice = "containerd 1.7 and newer: [plugins.'io.containerd.nri.v1.nri'] disable = false in \
                  /etc/containerd/config.toml (the default from 2.0 on); CRI-O 1.26 and newer: [crio.nri] enable_nri = true \
                  (the default from 1.30 on); then restart the runtime. Without NRI, the agent pins a container one or two seconds after the \
                  start, when the pod's status names the container, and sets no variables";
    match std::os::unix::net::UnixStream::connect(&runtime.socket) {
        Ok(_) => good(
            what,
            format!(
                "the runtime has NRI ({socket}): the agent pins and sizes containers before the start"
            ),
        ),
        Err(error) => weak(what, format!("no NRI at {socket}: {error}"), advice),
    }
}

/// Whether the folders of live files can be made; `None` if no container gets any.
fn live_files(runtime: &Runtime) -> Option<CheckResult> {
    let (what, folder) = ("live files", runtime.live_folder()?);
    let shown = folder.display();
    Some(match ContainerFolders::new(folder).check() {
        Ok(()) => good(
            what,
            format!("{shown} can be written: pinned containers find their CPUs in /run/pinfold"),
        ),
        Err(error) => weak(
            what,
            format!("{error}: pinned containers get no folder /run/pinfold with their CPUs"),
            "make the folder writable for root, or mount the node's folder into the agent's pod at the same path; to do without \
             these files, set runtime.liveFiles to false",
        ),
    })
}

/// The machine's CPUs. `reserved` is the configured list, if there is one.
fn online_cpus(topology: &Topology, reserved: Option<&CpuSet>) -> CheckResult {
    let (what, cpus) = ("CPUs", topology.online.len());
    let core = topology.core_of(topology.online.first().unwrap_or(0));
    let configured = reserved.is_some_and(|reserved| !reserved.is_empty());
    if cpus > core.len() || configured && cpus > 1 {
        let cores = counted(topology.cores().len(), "core");
        return good(
            what,
            format!("{cpus} online ({}), {cores}", topology.online),
        );
    }
    let advice = match core.first().filter(|_| cpus > 1) {
        Some(cpu) => format!(
            "use a machine with at least two cores, or reserve only one CPU of this core (reserved: {cpu})"
        ),
        None => "use a machine with at least two cores".to_owned(),
    };
    bad(
        what,
        format!(
            "{cpus} online, all on one core: the core is reserved, and no CPU remains for containers"
        ),
        &advice,
    )
}

fn machine(topology: &Topology, reserved: Option<&CpuSet>) -> Vec<CheckResult> {
    let mut findings = vec![online_cpus(topology, reserved)];
    let unreported: Vec<&str> = [
        ("cores", topology.cpus.iter().any(|cpu| cpu.core.is_none())),
        (
            "last-level caches",
            topology.cpus.iter().any(|cpu| cpu.llc.is_none()),
        ),
        (
            "NUMA nodes",
            topology.cpus.iter().any(|cpu| cpu.numa.is_none()),
        ),
        (
            "sockets",
            topology.cpus.iter().any(|cpu| cpu.socket.is_none()),
        ),
    ]
    .into_iter()
    .filter_map(|(name, is_unreported)| is_unreported.then_some(name))
    .collect();
    findings.push(if unreported.is_empty() {
        let (numa, llcs) = (topology.numa_nodes().len(), topology.llcs().len());
        good("topology", format!("{}, {}", counted(numa, "NUMA node"), counted(llcs, "last-level cache")))
    } else {
        weak(
            "topology",
            format!(
                "the machine does not report {}: placement ignores the missing levels",
                unreported.join(" and ")
            ),
            "most virtual machines can't report more; otherwise check the hypervisor's CPU topology settings",
        )
    });
    findings
}

fn controllers(cgroups: &Cgroups) -> Vec<CheckResult> {
    let root = cgroups.root().display();
    let cpuset = match cgroups.version {
        CgroupVersion::V1 => weak(
            "cpuset",
            format!(
                "cgroup v1 at {root}: the agent writes CPU sets, but other programs can overwrite the sets"
            ),
            "boot with cgroup v2 (systemd.unified_cgroup_hierarchy=1) on Linux 6.7 or newer",
        ),
        CgroupVersion::V2 => good("cpuset", format!("cgroup v2 at {root}")),
    };
    let cpu = if cgroups.has_cpu_controller() {
        good(
            "quota",
            "the CPU controller exists: the agent can lift the quotas of exclusive containers"
                .to_owned(),
        )
    } else {
        weak(
            "quota",
            "no CPU controller: the agent can neither lift quotas nor measure throttling"
                .to_owned(),
            "mount the cpu controller if the kubelet sets CPU limits",
        )
    };
    vec![cpuset, cpu]
}

fn records(cgroups: &Cgroups) -> CheckResult {
    match cgroups.supports_attributes() {
        Ok(true) => good(
            "records",
            "cgroups keep extended attributes: a restarted agent finds every assignment record"
                .to_owned(),
        ),
        Ok(false) => bad(
            "records",
            "a cgroup lost an extended attribute after the write".to_owned(),
            "use a kernel with trusted.* attributes on cgroups (Linux 3.16 or newer)",
        ),
        Err(error) => bad(
            "records",
            format!("{:#}", anyhow::Error::new(error)),
            "assignment records need CAP_SYS_ADMIN in the first user namespace and a writable cgroup mount",
        ),
    }
}

fn trees(config: &Config, cgroups: &Cgroups) -> CheckResult {
    let existing: Vec<&str> = config
        .pod_cgroups
        .iter()
        .map(String::as_str)
        .filter(|tree| cgroups.exists(tree))
        .collect();
    if existing.is_empty() {
        return weak(
            "pods",
            format!(
                "no cgroup {} yet: the agent waits for the cgroup",
                config.pod_cgroups.join(" or ")
            ),
            "start the kubelet, or name its cgroup with --pod-cgroup",
        );
    }
    for tree in &existing {
        if !matches!(cgroups.has_cpusets_below(tree), Ok(true)) {
            let finding = format!(
                "{tree} does not enable the cpuset controller for child cgroups: the pods have no CPU sets"
            );
            let advice = format!(
                "echo +cpuset > {}/{tree}/cgroup.subtree_control",
                cgroups.root().display()
            );
            return bad("pods", finding, &advice);
        }
    }
    let pods: usize = existing
        .iter()
        .filter_map(|tree| cgroups.scan(tree).ok())
        .map(|pods| pods.len())
        .sum();
    good("pods", format!("{pods} below {}", existing.join(" and ")))
}

/// Makes a test partition with a CPU that has no owner.
fn partitions(node: &AgentNode) -> Option<CheckResult> {
    if node.enforcement != Enforcement::Partition {
        return None;
    }
    let what = "partitions";
    let observed = node
        .lost_cpus()
        .and_then(|lost| Ok((lost, node.observe(&[])?.1)));
    let free = match observed {
        Ok((lost, _)) if !lost.is_empty() => {
            return Some(bad(
                what,
                "no test partition is made, because the kernel has lost CPUs and may crash with the next one".to_owned(),
                "reboot the node",
            ));
        }
        Ok((_, ledger)) => {
            let online = &node.topology.online;
            let taken = ledger.unassignable(online).union(&node.reserved);
            online.difference(&taken)
        }
        Err(error) => return Some(bad(what, format!("{error:#}"), "fix this error first")),
    };
    let Some(cpu) = free.iter().last() else {
        return Some(weak(
            what,
            "no test partition could be made, because no CPU is free for it".to_owned(),
            "run doctor again after a pod with exclusive CPUs has ended",
        ));
    };
    Some(match node.cgroups.siblings_can_break_partitions(cpu) {
        Ok(false) => good(what, "a test partition stays valid beside sibling cgroups".to_owned()),
        Ok(true) => weak(
            what,
            "on this kernel, a sibling cgroup's CPU set can make a partition invalid; the kernel loses the CPUs of a removed \
             invalid partition until the next boot; Pinfold keeps siblings apart and repairs an invalid partition at once"
                .to_owned(),
            "use a newer kernel (Linux 6.12 is affected, 7.2 is not)",
        ),
        // The agent makes no cgroups, and needs no CAP_DAC_OVERRIDE. Doctor in the agent's pod
        // lacks it as well.
        Err(CgroupError::Directory { source, .. }) if source.kind() == ErrorKind::PermissionDenied => weak(
            what,
            "no test partition could be made, because doctor runs here without CAP_DAC_OVERRIDE; the agent itself pins without \
             this capability"
                .to_owned(),
            "to try a partition, run doctor as root on the node, outside the agent's pod",
        ),
        Err(error) => bad(
            what,
            format!("the kernel refused a test partition: {:#}", anyhow::Error::new(error)),
            "run as root with CAP_SYS_ADMIN; find the cgroup that has cpuset.cpus set, or use --enforcement cpuset",
        ),
    })
}

fn enforcement(node: &AgentNode) -> CheckResult {
    let text = format!("{}: {}", node.enforcement.name(), node.enforcement_reason);
    if node.topology.online.is_subset(&node.reserved) {
        let finding = format!(
            "every online CPU is reserved ({}): no CPU remains for containers",
            node.reserved
        );
        return bad("reserved", finding, "reserve fewer CPUs with --reserved");
    }
    match node.enforcement {
        Enforcement::Partition => good("enforcement", text),
        Enforcement::Cpuset => weak(
            "enforcement",
            text,
            "boot Linux 6.7 or newer with cgroup v2 for partitions",
        ),
        Enforcement::Observe => bad(
            "enforcement",
            text,
            "no CPUs are pinned; thread sizing, metrics and plans work",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::{Numbering, Shape};

    /// One thread of the only core can be given, if the other one is reserved.
    #[test]
    fn a_machine_of_one_core_can_reserve_one_of_its_threads() {
        let check = |threads_per_core, reserved: Option<&str>| {
            let topology = Topology::from_shape(Shape {
                sockets: 1,
                numa_per_socket: 1,
                llcs_per_numa: 1,
                cores_per_llc: 1,
                threads_per_core,
                numbering: Numbering::SiblingsAdjacent,
            });
            let reserved: Option<CpuSet> = reserved.map(|list| list.parse().unwrap());
            let found = online_cpus(&topology, reserved.as_ref());
            (matches!(found.verdict, CheckVerdict::Good), found.advice)
        };
        let (is_good, advice) = check(2, None);
        assert!(!is_good && advice.unwrap().ends_with("(reserved: 0)"));
        assert!(check(2, Some("0")).0);
        assert!(!check(2, Some("")).0);
        assert!(!check(1, Some("0")).0);
    }
}
