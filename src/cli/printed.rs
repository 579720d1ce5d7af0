//! All that Pinfold prints to people about pods, for checks that no pod's author can reach beyond a
//! line of text.

use std::io::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};

use tracing_subscriber::layer::SubscriberExt as _;

use super::output::{self, Line};
use super::{explain, log, plan};
use crate::agent::config::Config;
use crate::cluster::events;
use crate::cpu::{CpuSet, Topology};
use crate::pin::Ledger;
use crate::text::terminal::escape_json;

/// What people read about the pods of a text, or about the text's mistakes: the output of `plan` and `explain`, the errors of
/// commands, log entries in both formats, and Events.
///
/// Each one has the number of lines that it must have.
pub fn printed(manifests: &str, topology: &Topology) -> Vec<(String, usize)> {
    let pods = match crate::pod::parse(manifests, "input") {
        Ok(pods) => crate::pod::recognized(pods),
        Err(error) => return about(&error.to_string()).to_vec(),
    };
    let config = Config::default();
    let machine = plan::Machine {
        topology,
        memory_nodes: &topology.memory_nodes(),
        reserved: CpuSet::new(),
        lost: CpuSet::new(),
        allocatable: None,
        kubelet_chooses: None,
    };
    let planned = plan::planned(&pods, &machine, &config, Ledger::default());
    let mut all = vec![
        whole(plan::in_table(&planned)),
        whole(explain::describe(&planned)),
    ];
    for container in &planned.containers {
        all.extend(about(container.entitlement.reason()));
        all.extend(about(&container.threads.reason));
    }
    // JSON that can't be written holds nothing.
    let document = serde_json::to_string(&planned).unwrap_or_default();
    all.push((escape_json(&document).into_owned(), 1));
    all
}

/// Lines as `emit` prints them, and their number.
fn whole(lines: Vec<String>) -> (String, usize) {
    let count = lines.len();
    (output::joined(lines.into_iter().map(Line::from)), count)
}

/// A sentence as an error of a command, as a log entry in both formats, and as an Event.
fn about(sentence: &str) -> [(String, usize); 4] {
    let error = anyhow::Error::msg(sentence.to_owned()).context("can't go on");
    let text = logged(sentence, |buffer| {
        tracing_subscriber::registry()
            .with(log::text(move || buffer.clone()))
            .into()
    });
    let json = logged(sentence, |buffer| {
        tracing_subscriber::registry()
            .with(log::json(move || buffer.clone()))
            .into()
    });
    let texts = [
        output::complaint(&error),
        text,
        json,
        events::note(sentence),
    ];
    texts.map(|text| (text, 1))
}

/// The log's lines about a sentence, in a message and in a field.
fn logged(sentence: &str, subscriber: impl FnOnce(Buffer) -> tracing::Dispatch) -> String {
    let buffer = Buffer::default();
    tracing::dispatcher::with_default(&subscriber(buffer.clone()), || {
        tracing::error!(sentence, "about a pod: {sentence}");
    });
    let bytes = buffer.0.lock().unwrap_or_else(PoisonError::into_inner);
    String::from_utf8_lossy(&bytes).into_owned()
}

/// A log's target.
#[derive(Debug, Clone, Default)]
struct Buffer(Arc<Mutex<Vec<u8>>>);

impl Write for Buffer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::terminal::is_unsafe;

    /// Nothing acts on a terminal, and each text has its lines only.
    fn check(manifest: &str) -> Vec<(String, usize)> {
        let topology = Topology::default();
        let all = printed(manifest, &topology);
        for (text, lines) in &all {
            assert!(!text.contains(|c| is_unsafe(c) && c != '\n'), "{text}");
            assert_eq!(text.lines().count(), *lines, "{text}");
        }
        all
    }

    /// A pod whose author wrote `"ODD"` into one place.
    fn manifest(place: &str) -> String {
        let odd =
            r#""4\e]0;title\a\e[2J\e[31mrm\nContainer other\n  entitled by magic \x9b1m\u202e""#;
        let place = place.replace("ODD", odd);
        let (metadata, container) = match place.split_once('|') {
            Some(("container", place)) => (String::new(), place.to_owned()),
            _ => (place, String::new()),
        };
        format!(
            "kind: Pod\napiVersion: v1\nmetadata: {{namespace: lab, name: esc{metadata}}}\nspec: {{containers: [{{name: main, image: i, \
             resources: {{limits: {{cpu: '4', memory: 1Gi}}}}{container}}}]}}\n"
        )
    }

    #[test]
    fn nothing_of_a_pod_acts_on_a_terminal() {
        for place in [
            ", annotations: {pinfold.io/cpus: exclusive, pinfold.io/processes: ODD}",
            ", annotations: {pinfold.io/cpus: exclusive, pinfold.io/threads: ODD}",
            ", annotations: {pinfold.io/cpus: ODD}",
            ", annotations: {pinfold.io/cores: ODD, pinfold.io/near: ODD}",
            ", labels: {training.kubeflow.org/replica-type: ODD, role: ODD}",
            ", labels: {training.kubeflow.org/job-name: ODD}",
            "container|, command: [torchrun, ODD]",
            "container|, command: [mpirun, -np, ODD, x]",
            "container|, command: [ODD, -np, 4]",
            "container|, env: [{name: OMP_NUM_THREADS, value: ODD}, {name: ODD, value: x}]",
            "container|, env: [{name: TF_CONFIG, value: ODD}]",
            "container|, restartPolicy: ODD",
            "container|, resources: {limits: {cpu: ODD}}",
            ", finalizers: ODD, ownerReferences: [{kind: ODD, name: ODD, controller: true}]",
        ] {
            check(&manifest(place));
        }
        // A name that isn't one may be refused or shown.
        check(&manifest("").replace("esc", "\"e\\e[2J\\nPod x\""));
        check("kind: Pod\nspec: {\"a\\e[2Jb\": [}\n");
    }

    proptest::proptest! {
        #[test]
        fn nothing_of_any_text_acts_on_a_terminal(odd in "\\PC{0,3}[\u{0}-\u{1f}\u{7f}-\u{9f}\u{202a}-\u{202e}\u{200b}\n\r]{1,4}\\PC{0,3}") {
            let quoted = serde_json::to_string(&odd).unwrap();
            let text = manifest("container|, command: [torchrun, ODD, ODD]");
            let start = text.find("\"4\\e").unwrap();
            let end = text[start + 1..].find('"').unwrap() + start + 2;
            check(&text.replace(&text[start..end], &quoted));
        }
    }
}
