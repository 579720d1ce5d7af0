//! The checks of the node's CPUs: which of them pods can use, which are lost, and how many can be exclusive.

use super::check::{CheckResult, bad, good, weak};
use crate::agent::{AgentNode, allocatable};
use crate::cpu::CpuSet;
use crate::pin::{Enforcement, Ledger, Observed, PlacementSource};

/// The CPUs that pods can use, lost CPUs, and CPU sets without an explanation.
pub(super) fn cpus_for_pods(node: &AgentNode, lost: &CpuSet) -> Vec<CheckResult> {
    let Ok((observed, ledger)) = node.observe(&[]) else {
        return Vec::new();
    };
    let mut findings: Vec<CheckResult> = offered(node, &observed, &ledger).into_iter().collect();
    for sentence in ledger.on_withheld_cpus(&observed, &node.topology.online) {
        findings.push(weak(
            "withheld",
            sentence,
            "the CPUs may be meant for other programs; Pinfold moves no running container",
        ));
    }
    if !lost.is_empty() {
        findings.push(weak(
            "lost CPUs",
            format!(
                "the kernel has lost {}: no cgroup can use a lost CPU",
                lost.in_words()
            ),
            "reboot the node: only a reboot brings lost CPUs back",
        ));
    }
    for sentence in ledger.unexplained {
        findings.push(weak(
            "unexplained",
            sentence,
            "find the program that made the setting; pinfold release removes only settings of Pinfold",
        ));
    }
    findings
}

/// How many CPUs the node can give, compared with what the scheduler counts; `None` where Pinfold gives none, because it only
/// observes or because the kubelet chooses them.
pub(super) fn capacity(node: &AgentNode, lost: &CpuSet) -> Option<CheckResult> {
    let is_of_kubelet = node.placement_source == PlacementSource::Kubelet;
    if is_of_kubelet || node.enforcement == Enforcement::Observe {
        return None;
    }
    let (_, ledger) = node.observe(&[]).ok()?;
    let mut node = node.clone();
    node.reserve_beside(&ledger);
    let online = &node.topology.online;
    let allocatable = crate::cli::run::runtime()
        .ok()?
        .block_on(allocatable::find(&node.config, online));
    let capacity = node.capacity(&ledger, lost);
    let finding = capacity.compare(allocatable.as_ref());
    let what = "capacity";
    // Whatever the scheduler counts, no pod gets its CPUs here.
    if capacity.assignable == 0 {
        return Some(bad(what, finding.sentence, &capacity.remedy_without_any()));
    }
    Some(match (finding.promises_too_much, finding.remedy) {
        (Some(false), _) => good(what, finding.sentence),
        (Some(true), Some(remedy)) => weak(what, finding.sentence, &remedy),
        _ => weak(
            what,
            finding.sentence,
            "read it with kubectl get node NODE -o jsonpath='{.status.allocatable.cpu}'",
        ),
    })
}

/// The part of the online CPUs that pods can use; `None` if pods can use them all.
fn offered(node: &AgentNode, observed: &Observed, ledger: &Ledger) -> Option<CheckResult> {
    let online = &node.topology.online;
    let available = ledger.available(online);
    if available == *online {
        return None;
    }
    let trees = observed.surroundings.trees.join(" and ");
    let finding = format!(
        "{trees} offers pods the CPUs {available}; the CPUs {} are withheld",
        online.difference(&available)
    );
    let free = available.difference(&ledger.excluded);
    Some(if free.difference(&node.reserved).is_empty() {
        let advice = format!("give {trees} more CPUs (cpuset.cpus), or reserve fewer CPUs");
        bad("CPUs for pods", finding, &advice)
    } else {
        good("CPUs for pods", finding)
    })
}
