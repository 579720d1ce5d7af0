//! The status of a pod's containers in words, for `pinfold explain`.

use std::fmt::Display;

use serde::Deserialize;
use serde_json::Value;

use super::container_status::{SafeText, StatusContainer, StatusVerdict};
use crate::cpu::CpuSet;
use crate::text::{counted, parse_errors, units};

/// The line about an entitlement. `exclusive` is the number of CPUs; `of_pod` is true for an init container.
pub(crate) fn entitlement_line(exclusive: u32, of_pod: bool, reason: &str) -> String {
    match exclusive {
        0 if of_pod => format!("  entitled to the CPUs of its pod: {reason}"),
        0 => format!("  not pinned: {reason}"),
        some => format!("  entitled to {}: {reason}", counted(some, "exclusive CPU")),
    }
}

/// The first line about a pod, of a running agent's status or of a plan. `pod` is its namespace and name.
pub(crate) fn pod_heading(
    pod: (&str, &str),
    qos: &dyn Display,
    role: &dyn Display,
    evidence: &str,
) -> String {
    format!("Pod {}/{} is {qos}. Role {role}: {evidence}.", pod.0, pod.1)
}

/// The line about the NUMA nodes of a container's memory.
pub(crate) fn memory(numa: &CpuSet) -> String {
    let plural = if numa.len() == 1 { "" } else { "s" };
    format!("  memory   from NUMA node{plural} {numa}")
}

/// The line about thread counts in a container's command line, if it has any.
pub(crate) fn set_by_command<T: Display>(counts: &[T]) -> Option<String> {
    let counts: Vec<String> = counts.iter().map(T::to_string).collect();
    let what = counts.join(", ");
    (!counts.is_empty()).then(|| {
        format!("           set by the command, which is stronger than the variables: {what}")
    })
}

/// The lines about the CPUs of each process: how their number is known, and the variables.
pub(crate) fn ranks<N: Display, V: Display>(
    reason: &dyn Display,
    variables: impl Iterator<Item = (N, V)>,
) -> Vec<String> {
    let heading = format!("  ranks    {reason}: each has CPUs of its own");
    let variables = variables.map(|(name, value)| format!("           {name}={value}"));
    [heading].into_iter().chain(variables).collect()
}

/// Puts the containers of a pod into words, as lines.
///
/// # Errors
/// The status does not parse: the agent has another version.
pub(crate) fn describe(containers: &[Value]) -> anyhow::Result<Vec<String>> {
    let mut lines = Vec::new();
    for value in containers {
        let container = StatusContainer::deserialize(value).map_err(|error| {
            anyhow::anyhow!(
                "can't read the container in the agent's status: {}; use the pinfold program of the agent's version, or -o json",
                parse_errors::json(&error)
            )
        })?;
        if lines.is_empty() {
            let pod = (container.namespace.as_str(), container.pod.as_str());
            lines.push(pod_heading(
                pod,
                &container.qos,
                &container.role,
                container.evidence.as_str(),
            ));
        }
        lines.push(String::new());
        lines.extend(container.describe());
    }
    Ok(lines)
}

// === impl StatusContainer ===

impl StatusContainer {
    fn describe(&self) -> Vec<String> {
        let state = self
            .absence()
            .or((!self.running).then_some("not running"))
            .map(|state| format!(", {state}"));
        let mut lines = vec![
            format!("Container {}{}", self.container, state.unwrap_or_default()),
            entitlement_line(
                self.entitlement.cpus,
                self.entitlement.kind.as_str() == "pod",
                self.entitlement.reason.as_str(),
            ),
            format!("  CPUs     {}", self.cpus()),
        ];
        let remarks = self.note.iter().chain(&self.bindings);
        lines.extend(remarks.map(|remark| format!("           {remark}")));
        let bound = self.memory.as_ref().filter(|_| self.assigned.is_some());
        lines.extend(bound.map(memory));
        if let Some(seconds) = self.unpinned_seconds {
            lines.push(match seconds {
                0.0 => "  unpinned 0 ms: the CPUs were in force before the first instruction"
                    .to_owned(),
                _ => format!(
                    "  unpinned {}, from the first instruction until the CPUs were in force",
                    units::seconds(seconds)
                ),
            });
        }
        lines.push(format!("  threads  {}", self.threads.reason));
        let details = self.environment().into_iter().chain(self.threads());
        lines.extend(details.map(|line| format!("           {line}")));
        lines.extend(set_by_command(&self.threads.by_command));
        if let Some(divided) = &self.ranks {
            lines.extend(ranks(&divided.reason, divided.variables.iter()));
        }
        lines
    }

    /// The reason why the container does not exist at the moment.
    fn absence(&self) -> Option<&'static str> {
        let reason = if self.created {
            "terminated"
        } else {
            "not created yet"
        };
        (!self.running && self.effective.is_none()).then_some(reason)
    }

    fn cpus(&self) -> String {
        let none = if self.created && !self.running {
            "none"
        } else {
            "none yet"
        };
        let in_force = self.effective.as_ref();
        let in_force = in_force.map_or_else(|| none.to_owned(), CpuSet::to_string);
        let numa = self.numa.as_ref();
        let numa = numa.map_or_else(String::new, |numa| format!(", NUMA {numa}"));
        match &self.assigned {
            Some(assigned) => {
                let kind = match &self.partition {
                    Some(kind) => format!(" (partition {kind})"),
                    None => String::new(),
                };
                format!("{assigned}, exclusive{numa}; in force: {in_force}{kind}")
            }
            None if self.effective.is_none() => in_force,
            None => format!("{in_force}, shared{numa}"),
        }
    }

    /// The threads of the running program.
    fn threads(&self) -> Vec<String> {
        let Some(observed) = &self.observed else {
            return Vec::new();
        };
        let mut lines = vec![match &observed.verdict {
            Some(StatusVerdict { sentence, .. }) => sentence.to_string(),
            None => {
                let threads = counted(observed.count, "thread");
                format!("{threads} now; the expected number is unknown")
            }
        }];
        if let (Some(bound @ 1..), Some(allowed)) = (observed.bound, &observed.allowed_by_tasks) {
            let threads = match bound {
                1 => "1 thread is".to_owned(),
                many => format!("{many} threads are"),
            };
            lines.push(format!(
                "{threads} bound to a part of the container's CPUs; all threads together may run on {allowed}"
            ));
        }
        lines
    }

    /// The thread variables, grouped by origin.
    fn environment(&self) -> Vec<String> {
        let mut lines = Vec::new();
        let assignment = |name: &&SafeText| match self.threads.variables.get(*name) {
            Some(value) => format!("{name}={value}"),
            None => name.to_string(),
        };
        let list = |names: &[&SafeText]| {
            let assignments: Vec<String> = names.iter().map(assignment).collect();
            assignments.join(" ")
        };
        let injected = self.injected.as_deref().unwrap_or_default();
        if !injected.is_empty() {
            lines.push(format!("added to the environment: {}", injected.join(" ")));
        }
        let actual = self
            .observed
            .as_ref()
            .and_then(|observed| observed.variables.as_ref());
        // A variable with the computed value needs no remark about its origin.
        let is_effective = |name: &SafeText| {
            actual.is_some_and(|actual| actual.get(name) == self.threads.variables.get(name))
        };
        let (effective, missing): (Vec<&SafeText>, Vec<&SafeText>) = self
            .threads
            .variables
            .keys()
            .filter(|name| !injected.contains(name))
            .partition(|name| is_effective(name));
        if !effective.is_empty() {
            lines.push(format!(
                "in the environment, with the computed value: {}",
                list(&effective)
            ));
        }
        if !missing.is_empty() {
            let reason = match (self.absence(), &self.injected) {
                (Some(absence), _) => absence,
                (None, Some(injected)) if injected.is_empty() => {
                    "not added, because no agent did so when the container was created; the pod gets them with its next start"
                }
                (None, Some(_)) => "not added when the container was created",
                (None, None) => {
                    "not added, because the container runtime sends no requests (see pinfold doctor)"
                }
            };
            lines.push(format!("{reason}: {}", list(&missing)));
        }
        if !self.threads.kept.is_empty() {
            let kept = self.threads.kept.join(", ");
            lines.push(format!("set by the pod, unchanged: {kept}"));
        }
        lines.extend(self.threads.caution.iter().map(ToString::to_string));
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The status of a container whose program has these variables.
    fn status(variables: &Value) -> Value {
        serde_json::json!({
            "namespace": "train", "pod": "w", "container": "main", "role": "worker", "evidence": "a label",
            "qos": "Guaranteed", "entitlement": {"reason": "CPU limit 2"}, "assigned": "2-3", "effective": "2-3",
            "partition": null, "numa": null, "running": true, "created": true, "injected": null, "note": null,
            "unpinnedSeconds": null,
            "threads": {"variables": {"A_THREADS": "2", "B_THREADS": "2"}, "kept": [], "reason": "profile limit"},
            "observed": {"allowedByTasks": "2", "bound": 3, "threads": 5, "variables": variables,
                "verdict": {"finding": "as_expected", "cause": "c", "sentence": "as expected: 5 threads"}},
        })
    }

    fn description(variables: &Value) -> String {
        describe(&[status(variables)]).unwrap().join("\n")
    }

    #[test]
    fn an_entitlement_is_plain() {
        let reason = "CPU limit 500m is not a whole number";
        for (cpus, of_pod, line) in [
            (
                0,
                false,
                "  not pinned: CPU limit 500m is not a whole number",
            ),
            (
                0,
                true,
                "  entitled to the CPUs of its pod: CPU limit 500m is not a whole number",
            ),
            (
                1,
                false,
                "  entitled to 1 exclusive CPU: CPU limit 500m is not a whole number",
            ),
            (
                4,
                false,
                "  entitled to 4 exclusive CPUs: CPU limit 500m is not a whole number",
            ),
        ] {
            assert_eq!(entitlement_line(cpus, of_pod, reason), line);
        }
    }

    #[test]
    fn an_absent_container_is_not_yet_created_or_terminated() {
        for (created, state, cpus) in [
            (false, "not created yet", "none yet"),
            (true, "terminated", "none"),
        ] {
            let mut container = status(&Value::Null);
            let changes = serde_json::json!({
                "running": false, "created": created, "effective": null, "assigned": null, "observed": null,
            });
            container
                .as_object_mut()
                .unwrap()
                .extend(changes.as_object().unwrap().clone());
            let text = describe(&[container]).unwrap().join("\n");
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
        // A created container that has not started yet.
        let mut container = status(&Value::Null);
        container["running"] = Value::Bool(false);
        assert!(
            describe(&[container])
                .unwrap()
                .contains(&"Container main, not running".to_owned())
        );
    }

    #[test]
    fn variables_in_the_environment_are_listed_whatever_their_origin() {
        let some = description(&serde_json::json!({"A_THREADS": "2", "B_THREADS": "64"}));
        assert!(
            some.contains("in the environment, with the computed value: A_THREADS=2\n"),
            "{some}"
        );
        assert!(
            some.contains("sends no requests (see pinfold doctor): B_THREADS=2\n"),
            "{some}"
        );
        assert!(some.contains("as expected: 5 threads\n"), "{some}");
        assert!(
            some.ends_with(
                "3 threads are bound to a part of the container's CPUs; all threads together may run on 2"
            ),
            "{some}"
        );
        let mut single = status(&Value::Null);
        single["observed"] = serde_json::json!({
            "allowedByTasks": "2", "bound": 1, "threads": 1, "variables": null, "verdict": null,
        });
        single["threads"]["caution"] = "programs that sshd starts".into();
        let single = describe(&[single]).unwrap();
        for part in [
            "1 thread now;",
            "1 thread is bound to",
            "programs that sshd starts",
        ] {
            assert!(single.iter().any(|line| line.contains(part)), "{single:?}");
        }
        let mut early = status(&Value::Null);
        early["injected"] = serde_json::json!([]);
        let early = describe(&[early]).unwrap().join("\n");
        assert!(
            early.contains(
                "no agent did so when the container was created; the pod gets them with its next start: A_THREADS=2"
            ),
            "{early}"
        );
        let unread = description(&Value::Null);
        assert!(
            unread.contains("(see pinfold doctor): A_THREADS=2 B_THREADS=2\n"),
            "{unread}"
        );
        let all = description(&serde_json::json!({"A_THREADS": "2", "B_THREADS": "2"}));
        assert!(!all.contains("pinfold doctor"), "{all}");
    }
}
