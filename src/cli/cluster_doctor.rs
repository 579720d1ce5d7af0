//! `pinfold doctor --cluster`: the nodes of a cluster that can pin, as the agents report.

use std::process::ExitCode;

use console::Style;
use serde::Serialize;

use super::agents::{ClusterAgents, statuses};
use super::{Line, OutputFormat};
use crate::client::{AgentStatus, full_status};

/// How well a node pins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
enum NodeVerdict {
    Good,
    Weak,
    Bad,
}

#[derive(Debug, Serialize)]
struct NodeFinding {
    node: String,
    verdict: NodeVerdict,
    /// A sentence for each fact.
    findings: Vec<String>,
}

/// Prints the state of each node with an agent.
///
/// # Errors
/// The agents can't be listed.
pub(super) async fn print(
    cluster: &ClusterAgents,
    output: OutputFormat,
) -> anyhow::Result<ExitCode> {
    let targets = cluster.targets().await?;
    let bodies = statuses(&targets).await?;
    let nodes: Vec<NodeFinding> = targets
        .iter()
        .zip(bodies)
        .map(|(target, body)| {
            let (verdict, findings) = examine(body.and_then(|body| AgentStatus::parse(&body)));
            NodeFinding {
                node: target.name.clone(),
                verdict,
                findings,
            }
        })
        .collect();
    let works = nodes.iter().all(|node| node.verdict != NodeVerdict::Bad);
    match output {
        OutputFormat::Text => super::emit(lines(&nodes, works))?,
        form => form.print(&serde_json::json!({ "canPin": works, "nodes": nodes }))?,
    }
    Ok(ExitCode::from(u8::from(!works)))
}

/// The verdict about a node, and the facts.
fn examine(status: anyhow::Result<AgentStatus>) -> (NodeVerdict, Vec<String>) {
    let status = match status {
        Ok(status) => status,
        Err(error) => {
            let finding = format!(
                "{}; read the log of the agent's pod on this node",
                full_status::reason(&error)
            );
            return (NodeVerdict::Bad, vec![finding]);
        }
    };
    let enforcement = status.enforcement.as_str();
    let (by_enforcement, remedy) = match enforcement {
        "partition" => (NodeVerdict::Good, ""),
        "cpuset" => (
            NodeVerdict::Weak,
            "; partitions need Linux 6.7 or newer with cgroup v2",
        ),
        _ => (
            NodeVerdict::Bad,
            "; no CPUs are pinned: run pinfold doctor on the node for the cause",
        ),
    };
    let mut findings = vec![format!("enforcement {enforcement}{remedy}")];
    findings.extend(status.problems());
    findings.extend(status.capacity_warning());
    let by_problems = if findings.len() > 1 {
        NodeVerdict::Weak
    } else {
        NodeVerdict::Good
    };
    (by_enforcement.max(by_problems), findings)
}

fn lines(nodes: &[NodeFinding], works: bool) -> Vec<Line> {
    let width = nodes.iter().map(|node| node.node.len()).max().unwrap_or(0);
    let mut lines = Vec::new();
    for node in nodes {
        let (mark, style) = match node.verdict {
            NodeVerdict::Good => ("good", Style::new().green()),
            NodeVerdict::Weak => ("weak", Style::new().yellow()),
            NodeVerdict::Bad => ("bad ", Style::new().red()),
        };
        for (index, finding) in node.findings.iter().enumerate() {
            lines.push(if index == 0 {
                let rest = format!("  {:<width$}  {finding}", node.node);
                Line::styled(&style, mark, &rest)
            } else {
                format!("      {:<width$}  {finding}", "").into()
            });
        }
    }
    let conclusion = if works {
        "pinning can work on every node with an agent"
    } else {
        "pinning can't work on at least one node with an agent"
    };
    lines.push(conclusion.into());
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(enforcement: &str, errors: &str) -> anyhow::Result<AgentStatus> {
        let text = format!(
            r#"{{"enforcement": "{enforcement}", "online": "0-3", "reserved": "0", "shared": "0", "exclusive": "1-3",
                "containers": [], "errors": [{errors}]}}"#
        );
        AgentStatus::parse(text.as_bytes())
    }

    #[test]
    fn the_verdict_is_the_worst_finding() {
        for (status, verdict, words) in [
            (status("partition", ""), NodeVerdict::Good, "partition"),
            (
                status("partition", r#""drift""#),
                NodeVerdict::Weak,
                "drift",
            ),
            (status("cpuset", ""), NodeVerdict::Weak, "Linux 6.7"),
            (
                status("observe", ""),
                NodeVerdict::Bad,
                "no CPUs are pinned",
            ),
            (Err(anyhow::anyhow!("refused")), NodeVerdict::Bad, "refused"),
        ] {
            let (found, findings) = examine(status);
            assert_eq!(found, verdict, "{findings:?}");
            assert!(findings.concat().contains(words), "{findings:?}");
        }
    }

    #[test]
    fn a_node_to_which_the_scheduler_sends_too_many_pods_is_weak() {
        let text = r#"{"enforcement": "partition", "online": "0-3", "reserved": "0", "shared": "0-3", "exclusive": "",
            "containers": [], "capacity": {"promisesTooMuch": true, "sentence": "counts 4", "remedy": "set 1"}}"#;
        let (verdict, findings) = examine(AgentStatus::parse(text.as_bytes()));
        assert_eq!(verdict, NodeVerdict::Weak);
        assert_eq!(findings[1], "capacity: counts 4; set 1");
    }

    #[test]
    fn a_node_whose_runtime_does_not_ask_is_weak() {
        let text = r#"{"enforcement": "partition", "online": "0-3", "reserved": "0", "shared": "0-3", "exclusive": "",
            "containers": [], "runtime": {"socket": "/nri.sock", "state": "away", "problem": "NRI is off: /nri.sock"}}"#;
        let (verdict, findings) = examine(AgentStatus::parse(text.as_bytes()));
        assert_eq!(verdict, NodeVerdict::Weak);
        assert!(findings[1].starts_with("NRI is off"), "{findings:?}");
    }
}
