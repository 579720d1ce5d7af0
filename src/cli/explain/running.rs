//! What the agent of this node says of a pod.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use serde::Deserialize;
use serde_json::Value;

use super::super::agent::Endpoint;
use crate::agent::config::Overrides;

/// An agent that is well answers sooner.
const PATIENCE: Duration = Duration::from_secs(10);

/// The pod's containers, as `/status` has them.
///
/// # Errors
/// No agent answers, what answers is none, the pod is unknown or not the only one of its name.
pub(super) fn pod(
    agent: Option<SocketAddr>,
    config: Option<PathBuf>,
    pod: &str,
) -> anyhow::Result<Vec<Value>> {
    let endpoint = Endpoint::here(
        agent,
        Overrides {
            config,
            ..Overrides::default()
        },
    )?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let runtime = runtime.context("can't start the runtime for the request")?;
    let url = format!("{endpoint}/status");
    let bodies = runtime
        .block_on(async { tokio::time::timeout(PATIENCE, endpoint.get(&["/status"])).await });
    let body = bodies
        .unwrap_or_else(|_| Err(anyhow::anyhow!("no answer within {} s", PATIENCE.as_secs())))
        .with_context(|| {
            format!(
                "{url} does not tell of pods: start the agent (pinfold run), say with --agent where it listens, or explain a \
                 manifest with --pods"
            )
        })?;
    let status: Value = serde_json::from_slice(&body.concat()).with_context(|| {
        format!("{url} is no status of Pinfold; say with --agent where it listens")
    })?;
    let containers = status.get("containers").and_then(Value::as_array).cloned();
    let containers = containers.with_context(|| {
        format!("{url} tells of no containers; say with --agent where Pinfold listens")
    })?;
    let text = |one: &Value, key: &str| {
        one.get(key)
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned()
    };
    super::only(
        pod,
        containers,
        |one| (text(one, "namespace"), text(one, "pod")),
        "on this node",
    )
}

/// What is told of a container, as far as a person is told it.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Told {
    namespace: String,
    pod: String,
    container: String,
    role: String,
    evidence: String,
    qos: String,
    entitlement: Owed,
    assigned: Option<String>,
    effective: Option<String>,
    partition: Option<String>,
    numa: Option<String>,
    running: bool,
    created: bool,
    threads: Threads,
    injected: Option<Vec<String>>,
    note: Option<String>,
    window_seconds: Option<f64>,
    seen: Option<Seen>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Seen {
    allowed_by_tasks: Option<String>,
    bound: Option<usize>,
    threads: usize,
    /// The thread variables that it was started with.
    variables: Option<BTreeMap<String, String>>,
    verdict: Option<Sentence>,
}

#[derive(Debug, Deserialize)]
struct Sentence {
    sentence: String,
}

#[derive(Debug, Deserialize)]
struct Owed {
    reason: String,
}

#[derive(Debug, Deserialize)]
struct Threads {
    variables: BTreeMap<String, String>,
    kept: Vec<String>,
    reason: String,
}

/// The pod's containers in words.
///
/// # Errors
/// An agent of another version, which tells otherwise.
pub(super) fn in_words(containers: &[Value]) -> anyhow::Result<String> {
    let mut lines = Vec::new();
    for container in containers {
        let one = Told::deserialize(container).context(
            "the agent tells of its containers in another way: use the program of its version, or -o json",
        )?;
        if lines.is_empty() {
            lines.push(format!(
                "Pod {}/{} is {}. Role {}: {}.",
                one.namespace, one.pod, one.qos, one.role, one.evidence
            ));
        }
        lines.push(String::new());
        lines.push(
            match one.absence().or((!one.running).then_some("not running")) {
                Some(state) => format!("Container {}, {state}", one.container),
                None => format!("Container {}", one.container),
            },
        );
        lines.push(format!("  owed     {}", one.entitlement.reason));
        lines.push(format!("  CPUs     {}", one.cpus()));
        lines.extend(one.note.iter().map(|note| format!("           {note}")));
        if let Some(seconds) = one.window_seconds {
            lines.push(match seconds {
                0.0 => {
                    "  window   none: they were in force before its first instruction".to_owned()
                }
                _ => format!(
                    "  window   {:.1} ms from its first instruction until then",
                    1000.0 * seconds
                ),
            });
        }
        lines.push(format!("  threads  {}", one.threads.reason));
        lines.extend(
            one.environment()
                .into_iter()
                .map(|line| format!("           {line}")),
        );
        lines.extend(
            one.seen()
                .into_iter()
                .map(|line| format!("           {line}")),
        );
    }
    Ok(lines.join("\n"))
}

// === impl Told ===

impl Told {
    /// Why there is no container now, if there is none.
    fn absence(&self) -> Option<&'static str> {
        let ended = if self.created {
            "terminated"
        } else {
            "not created yet"
        };
        (!self.running && self.effective.is_none()).then_some(ended)
    }

    fn cpus(&self) -> String {
        let none = if self.created && !self.running {
            "none"
        } else {
            "none yet"
        };
        let in_force = self.effective.as_deref().unwrap_or(none);
        let numa = self
            .numa
            .iter()
            .map(|numa| format!(", NUMA {numa}"))
            .collect::<String>();
        match &self.assigned {
            Some(own) => {
                let kind = match self.partition.as_deref() {
                    Some(kind) => format!(" (partition {kind})"),
                    None => String::new(),
                };
                format!("{own}, its own{numa}; in force: {in_force}{kind}")
            }
            None if self.effective.is_none() => in_force.to_owned(),
            None => format!("{in_force}, shared{numa}"),
        }
    }

    /// What is seen of its threads.
    fn seen(&self) -> Vec<String> {
        let Some(seen) = &self.seen else {
            return Vec::new();
        };
        let mut lines = vec![match &seen.verdict {
            Some(Sentence { sentence }) => sentence.clone(),
            None => format!("{} now, and no number is expected", seen.threads),
        }];
        if let (Some(bound @ 1..), Some(allowed)) = (seen.bound, &seen.allowed_by_tasks) {
            lines.push(format!(
                "{bound} of them bound to less than its CPUs; all together may run on {allowed}"
            ));
        }
        lines
    }

    /// What became of each variable.
    fn environment(&self) -> Vec<String> {
        let mut lines = Vec::new();
        let told = |name: &String| match self.threads.variables.get(name) {
            Some(value) => format!("{name}={value}"),
            None => name.clone(),
        };
        if let Some(injected) = self
            .injected
            .as_ref()
            .filter(|injected| !injected.is_empty())
        {
            lines.push(format!("put into its environment: {}", injected.join(" ")));
        }
        let injected = |name: &str| self.injected.iter().flatten().any(|other| other == name);
        // Who put them there does not matter, once they are.
        let there = self.seen.as_ref().and_then(|seen| seen.variables.as_ref());
        let in_place = |name: &str| {
            there.is_some_and(|there| there.get(name) == self.threads.variables.get(name))
        };
        let others: Vec<&String> = self
            .threads
            .variables
            .keys()
            .filter(|name| !injected(name))
            .collect();
        let (found, missing): (Vec<&String>, Vec<&String>) =
            others.into_iter().partition(|name| in_place(name));
        if !found.is_empty() {
            let found: Vec<String> = found.into_iter().map(told).collect();
            lines.push(format!(
                "in its environment, as computed: {}",
                found.join(" ")
            ));
        }
        let missing: Vec<String> = missing.into_iter().map(told).collect();
        if !missing.is_empty() {
            let why = match (self.absence(), &self.injected) {
                (Some(absence), _) => absence,
                (None, Some(_)) => "not put there when it was created",
                (None, None) => "not put there, because no runtime asks (see pinfold doctor)",
            };
            lines.push(format!("{why}: {}", missing.join(" ")));
        }
        if !self.threads.kept.is_empty() {
            lines.push(format!(
                "left as the pod has them: {}",
                self.threads.kept.join(", ")
            ));
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A container whose program was started with these variables.
    fn started_with(there: &Value) -> Value {
        serde_json::json!({
            "namespace": "train", "pod": "w", "container": "main", "role": "worker", "evidence": "a label",
            "qos": "Guaranteed", "entitlement": {"reason": "CPU limit 2"}, "assigned": "2-3", "effective": "2-3",
            "partition": null, "numa": null, "running": true, "created": true, "injected": null, "note": null,
            "windowSeconds": null,
            "threads": {"variables": {"A_THREADS": "2", "B_THREADS": "2"}, "kept": [], "reason": "profile limit"},
            "seen": {"allowedByTasks": "2", "bound": 3, "threads": 5, "variables": there,
                "verdict": {"finding": "as expected", "cause": "c", "sentence": "as expected: 5 threads"}},
        })
    }

    /// What is said of it.
    fn said(there: &Value) -> String {
        in_words(&[started_with(there)]).unwrap()
    }

    #[test]
    fn a_container_that_is_not_there_is_not_yet_created_or_terminated() {
        for (created, state, cpus) in [
            (false, "not created yet", "none yet"),
            (true, "terminated", "none"),
        ] {
            let mut container = started_with(&Value::Null);
            let changes = serde_json::json!({
                "running": false, "created": created, "effective": null, "assigned": null, "seen": null,
            });
            container
                .as_object_mut()
                .unwrap()
                .extend(changes.as_object().unwrap().clone());
            let text = in_words(&[container]).unwrap();
            assert!(
                text.contains(&format!("Container main, {state}\n")),
                "{text}"
            );
            assert!(
                text.ends_with(&format!("{state}: A_THREADS=2 B_THREADS=2")),
                "{text}"
            );
            assert!(text.contains(&format!("  CPUs     {cpus}\n")), "{text}");
        }
        // Created, and not started yet.
        let mut container = started_with(&Value::Null);
        container["running"] = Value::Bool(false);
        assert!(
            in_words(&[container])
                .unwrap()
                .contains("Container main, not running\n")
        );
    }

    #[test]
    fn what_is_in_the_environment_is_told_whoever_put_it_there() {
        let some = said(&serde_json::json!({"A_THREADS": "2", "B_THREADS": "64"}));
        assert!(
            some.contains("in its environment, as computed: A_THREADS=2\n"),
            "{some}"
        );
        assert!(
            some.contains("no runtime asks (see pinfold doctor): B_THREADS=2\n"),
            "{some}"
        );
        assert!(some.contains("as expected: 5 threads\n"), "{some}");
        assert!(
            some.ends_with("3 of them bound to less than its CPUs; all together may run on 2"),
            "{some}"
        );
        let unread = said(&Value::Null);
        assert!(
            unread.contains("(see pinfold doctor): A_THREADS=2 B_THREADS=2\n"),
            "{unread}"
        );
        let all = said(&serde_json::json!({"A_THREADS": "2", "B_THREADS": "2"}));
        assert!(!all.contains("pinfold doctor"), "{all}");
    }
}
