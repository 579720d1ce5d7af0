//! `pinfold doctor`: what this node offers, what it lacks, what follows, what to do.

use std::io::ErrorKind;
use std::process::ExitCode;

use clap::Args;
use console::style;
use serde::Serialize;

use super::Format;
use crate::agent::Node;
use crate::agent::cluster::Asked;
use crate::agent::config::{Config, Overrides, Runtime, Wanted};
use crate::cpu::Topology;
use crate::host::cgroup::{CgroupError, Cgroups, Version, join_host};
use crate::host::topology;
use crate::pin::Enforcement;
use crate::text::counted;

/// Look at this node: what it offers, what it lacks, what follows, what to do.
///
/// To see whether marks can be kept, an attribute of the top cgroup is set and removed again. To see how partitions fare here,
/// a cgroup pinfold-probe gets one free CPU for some milliseconds. Nothing else is changed.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  pinfold doctor
  pinfold doctor -o json

Exit codes: 0 pinning can work here, 1 it can't.")]
pub(super) struct Doctor {
    #[command(flatten)]
    overrides: Overrides,
    /// Form of the output.
    #[arg(short, long, value_enum, value_name = "FORM", default_value_t)]
    output: Format,
}

/// How good a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Verdict {
    Good,
    Weak,
    Bad,
}

/// One thing that was looked at.
#[derive(Debug, Serialize)]
struct Finding {
    what: &'static str,
    verdict: Verdict,
    /// What there is, and what follows.
    finding: String,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    advice: Option<String>,
}

impl Doctor {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let config = Config::load(self.overrides)?;
        let findings = examine(&config);
        let works = findings
            .iter()
            .all(|finding| finding.verdict != Verdict::Bad);
        match self.output {
            Format::Json => {
                super::json(&serde_json::json!({ "canPin": works, "findings": findings }))?;
            }
            Format::Text => {
                for finding in &findings {
                    let mark = match finding.verdict {
                        Verdict::Good => style("good").green(),
                        Verdict::Weak => style("weak").yellow(),
                        Verdict::Bad => style("bad ").red(),
                    };
                    super::emit(&format!("{mark}  {:<13} {}", finding.what, finding.finding))?;
                    if let Some(advice) = &finding.advice {
                        super::emit(&format!("      {:<13} → {advice}", ""))?;
                    }
                }
                super::emit(if works {
                    "pinning can work here"
                } else {
                    "pinning can't work here"
                })?;
            }
        }
        Ok(if works {
            ExitCode::SUCCESS
        } else {
            ExitCode::from(1)
        })
    }
}

fn examine(config: &Config) -> Vec<Finding> {
    let mut findings = vec![rights(config)];
    match topology::read(&config.root_dir) {
        Ok(topology) => findings.extend(machine(&topology)),
        Err(error) => {
            findings.push(bad(
                "CPUs",
                error.to_string(),
                "name the folder that holds sys/ with --root",
            ));
        }
    }
    match Cgroups::detect(&config.cgroup_dir) {
        Ok(cgroups) => {
            findings.extend(controllers(&cgroups));
            findings.push(marks(&cgroups));
            findings.push(trees(config, &cgroups));
        }
        Err(error) => findings.push(bad(
            "cgroups",
            error.to_string(),
            "pinfold can't work without them",
        )),
    }
    findings.push(runtime(&config.runtime));
    match Node::new(config.clone()) {
        Ok(node) => {
            findings.push(enforcement(&node));
            findings.extend(partitions(&node));
            findings.extend(lost(&node));
        }
        Err(error) => findings.push(bad(
            "agent",
            format!("{error:#}"),
            "mend this first; pinfold run would say the same",
        )),
    }
    findings
}

fn good(what: &'static str, finding: String) -> Finding {
    Finding {
        what,
        verdict: Verdict::Good,
        finding,
        advice: None,
    }
}

fn weak(what: &'static str, finding: String, advice: &str) -> Finding {
    Finding {
        what,
        verdict: Verdict::Weak,
        finding,
        advice: Some(advice.to_owned()),
    }
}

fn bad(what: &'static str, finding: String, advice: &str) -> Finding {
    Finding {
        what,
        verdict: Verdict::Bad,
        finding,
        advice: Some(advice.to_owned()),
    }
}

fn rights(config: &Config) -> Finding {
    let what = "rights";
    if !nix::unistd::geteuid().is_root() {
        let advice = "run it with sudo, or as a privileged container";
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
            "root; it leaves the container's own cgroup namespace for the host's".to_owned(),
        ),
        Err(_) if config.enforcement == Wanted::Observe => {
            good(what, "root; observing needs no more".to_owned())
        }
        Err(error) => weak(
            what,
            format!("root, in a cgroup namespace of its own that it can't leave: {error}"),
            "give it CAP_SYS_ADMIN: on cgroup v2 the kernel may else keep it from moving its own container",
        ),
    }
}

/// Whether the container runtime would ask us before a container begins.
fn runtime(runtime: &Runtime) -> Finding {
    let (what, socket) = ("runtime", runtime.socket.display());
    if runtime.nri == Asked::Never {
        return weak(
            what,
            "NRI is not used, by configuration".to_owned(),
            "runtime.nri: auto uses it where it is",
        );
    }
    let advice = "containerd 1.7 and newer: [plugins.'io.containerd.nri.v1.nri'] disable = false in \
                  /etc/containerd/config.toml (the default from 2.0 on); CRI-O 1.26 and newer: [crio.nri] enable_nri = true \
                  (the default from 1.30 on); then restart the runtime. Until then containers are pinned when their status \
                  is known, a second or two after they have begun, and get no variables";
    match std::os::unix::net::UnixStream::connect(&runtime.socket) {
        Ok(_) => good(
            what,
            format!("it has NRI ({socket}): containers are pinned and sized before they begin"),
        ),
        Err(error) => weak(what, format!("no NRI at {socket}: {error}"), advice),
    }
}

fn machine(topology: &Topology) -> Vec<Finding> {
    let cpus = topology.online.len();
    let mut findings = vec![
        if cpus > topology.core_of(topology.online.first().unwrap_or(0)).len() {
            good(
                "CPUs",
                format!(
                    "{cpus} online ({}), {}",
                    topology.online,
                    counted(topology.cores().len(), "core")
                ),
            )
        } else {
            bad(
                "CPUs",
                format!(
                    "{cpus} online, all on one core: the reserved core leaves none to give away"
                ),
                "use a machine with two cores or more",
            )
        },
    ];
    let untold: Vec<&str> = [
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
    .filter_map(|(name, untold)| untold.then_some(name))
    .collect();
    findings.push(if untold.is_empty() {
        let (numa, llcs) = (topology.numa_nodes().len(), topology.llcs().len());
        good("topology", format!("{}, {}", counted(numa, "NUMA node"), counted(llcs, "last-level cache")))
    } else {
        weak(
            "topology",
            format!(
                "the machine doesn't tell its {}: placement ignores what it can't see",
                untold.join(" and ")
            ),
            "nothing to do on most virtual machines; else see the hypervisor's CPU topology settings",
        )
    });
    findings
}

fn controllers(cgroups: &Cgroups) -> Vec<Finding> {
    let root = cgroups.root().display();
    let cpuset = match cgroups.version {
        Version::V1 => weak(
            "cpuset",
            format!(
                "cgroup v1 at {root}: CPU sets are written, and anyone else may write them too"
            ),
            "boot with cgroup v2 (systemd.unified_cgroup_hierarchy=1) on Linux 6.7 or newer",
        ),
        Version::V2 => good("cpuset", format!("cgroup v2 at {root}")),
    };
    let cpu = if cgroups.has_cpu_controller() {
        good(
            "quota",
            "the CPU controller is there: quotas of exclusive containers can be lifted".to_owned(),
        )
    } else {
        weak(
            "quota",
            "no CPU controller: no quotas to lift, no throttling to measure".to_owned(),
            "mount the cpu controller if your kubelet sets CPU limits",
        )
    };
    vec![cpuset, cpu]
}

fn marks(cgroups: &Cgroups) -> Finding {
    match cgroups.supports_attributes() {
        Ok(true) => good(
            "marks",
            "cgroups keep extended attributes: a restart will know every assignment".to_owned(),
        ),
        Ok(false) => bad(
            "marks",
            "an extended attribute was written to a cgroup and is not there".to_owned(),
            "use a kernel with trusted.* attributes on cgroups (Linux 3.16 or newer)",
        ),
        Err(error) => bad(
            "marks",
            format!("{:#}", anyhow::Error::new(error)),
            "CAP_SYS_ADMIN in the first user namespace is needed to mark cgroups, and a cgroup mount that can be written",
        ),
    }
}

fn trees(config: &Config, cgroups: &Cgroups) -> Finding {
    let there: Vec<&str> = config
        .pod_cgroups
        .iter()
        .map(String::as_str)
        .filter(|tree| cgroups.exists(tree))
        .collect();
    if there.is_empty() {
        return weak(
            "pods",
            format!(
                "no cgroup {} yet: they are waited for",
                config.pod_cgroups.join(" or ")
            ),
            "start the kubelet, or name its cgroup with --tree",
        );
    }
    for tree in &there {
        if !matches!(cgroups.has_cpusets_below(tree), Ok(true)) {
            let finding = format!(
                "{tree} does not hand the cpuset controller down: its pods have no CPU sets"
            );
            let advice = format!(
                "echo +cpuset > {}/{tree}/cgroup.subtree_control",
                cgroups.root().display()
            );
            return bad("pods", finding, &advice);
        }
    }
    let pods: usize = there
        .iter()
        .filter_map(|tree| cgroups.scan(tree).ok())
        .map(|pods| pods.len())
        .sum();
    good("pods", format!("{pods} below {}", there.join(" and ")))
}

/// Tries a partition out, with a CPU that nobody owns.
fn partitions(node: &Node) -> Option<Finding> {
    if node.enforcement != Enforcement::Partition {
        return None;
    }
    let what = "partitions";
    let free = match node.observe(&[]) {
        Ok((_, ledger)) => node.topology.online.difference(
            &ledger
                .exclusive()
                .union(&ledger.barred)
                .union(&node.reserved),
        ),
        Err(error) => return Some(bad(what, format!("{error:#}"), "mend this first")),
    };
    let Some(cpu) = free.iter().last() else {
        return Some(weak(
            what,
            "not tried: every CPU that is not reserved is owned".to_owned(),
            "run doctor again when a pod has ended",
        ));
    };
    Some(match node.cgroups.siblings_can_break_partitions(cpu) {
        Ok(false) => good(what, "a partition was made and holds against its neighbours".to_owned()),
        Ok(true) => weak(
            what,
            "this kernel lets a neighbour's CPU set break a partition, and loses the CPUs of one that goes while \
             broken, until the next boot; Pinfold keeps neighbours apart and mends at once"
                .to_owned(),
            "use a newer kernel (Linux 6.12 is like this, 7.2 is not)",
        ),
        // The agent makes no cgroups: it does without the capability, and so does doctor in the agent's pod.
        Err(CgroupError::Directory { source, .. }) if source.kind() == ErrorKind::PermissionDenied => weak(
            what,
            "not tried: without CAP_DAC_OVERRIDE, which the agent does not need, no cgroup for the trial can be made \
             at the top"
                .to_owned(),
            "run doctor on the node itself, outside the agent's pod, to have it tried",
        ),
        Err(error) => bad(
            what,
            format!("a partition could not be made: {:#}", anyhow::Error::new(error)),
            "run as root with CAP_SYS_ADMIN; see which cgroup has cpuset.cpus set, or use --enforcement cpuset",
        ),
    })
}

/// CPUs that the kernel has lost already, and sets that nobody explains.
fn lost(node: &Node) -> Vec<Finding> {
    let Ok((_, ledger)) = node.observe(&[]) else {
        return Vec::new();
    };
    let mut findings = Vec::new();
    if !ledger.lost.is_empty() {
        findings.push(weak(
            "lost CPUs",
            format!(
                "the kernel has lost {}: no cgroup has a lost CPU, and none is used",
                ledger.lost.in_words()
            ),
            "reboot: nothing else brings them back",
        ));
    }
    for sentence in ledger.unexplained {
        findings.push(weak(
            "unexplained",
            sentence,
            "find out who made it; pinfold release undoes its own only",
        ));
    }
    findings
}

fn enforcement(node: &Node) -> Finding {
    let text = format!("{}: {}", node.enforcement.name(), node.enforcement_reason);
    if node.topology.online.is_subset(&node.reserved) {
        let finding = format!(
            "every online CPU is reserved ({}): none is left to give away",
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
            "threads, metrics and plans go on meanwhile",
        ),
    }
}
