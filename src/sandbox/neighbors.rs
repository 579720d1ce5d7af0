//! The neighbors of a job: the other pods of the node.
//!
//! On a full node, pods request all CPUs. The kubelet computes CPU weights from requests, so the
//! neighbors' weights together match the sum of their requests. A neighbor's program starts a
//! thread for each CPU of the host, as frameworks do.

use serde::Serialize;
use serde_json::{Value, json};

use crate::text::counted;

/// The fewest neighbors of a full node, because a node seldom has a single other pod.
const FEWEST: u64 = 2;

/// The most neighbors of a full node. On a very large host, each neighbor requests more CPUs.
const MOST: u64 = 64;

/// The usual request of a neighbor, in thousandths of a CPU.
const USUAL_REQUEST: u64 = 4000;

/// The most threads of a neighbor.
const MOST_THREADS: u32 = 1024;

/// The kind of the neighbors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum NeighborKind {
    /// Burstable pods that request the rest of the node, each with as many threads as the host has CPUs.
    #[default]
    Full,
    /// A BestEffort pod, which requests nothing and has the smallest CPU weight.
    #[value(name = "besteffort")]
    BestEffort,
}

/// The pods beside the job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Neighbors {
    /// The number of pods.
    pub count: u32,
    /// The CPU request of each pod, in thousandths of a CPU; 0 is BestEffort.
    pub request_milli_cpus: u64,
    /// The number of threads of each pod.
    pub threads: u32,
    /// The share of a CPU that each thread uses, in percent; null: 100 percent, with short pauses of every second thread.
    pub busy_percent: Option<u8>,
}

// === impl Neighbors ===

impl Neighbors {
    /// The neighbors on a host with `online` CPUs. `rest` is the part of the node that the job does not request, in
    /// thousandths of a CPU.
    pub fn new(kind: NeighborKind, online: usize, rest: u64) -> Self {
        let online = u32::try_from(online).unwrap_or(MOST_THREADS);
        let (count, request, threads) = match kind {
            NeighborKind::Full => {
                let count = rest.div_ceil(USUAL_REQUEST).clamp(FEWEST, MOST);
                (count, rest / count, online)
            }
            NeighborKind::BestEffort => (1, 0, online.saturating_add(1)),
        };
        Self {
            count: u32::try_from(count).unwrap_or(u32::MAX),
            request_milli_cpus: request,
            threads: threads.clamp(1, MOST_THREADS),
            busy_percent: None,
        }
    }

    /// The sum of the neighbors' CPU requests, in thousandths of a CPU.
    pub fn requested(&self) -> u64 {
        u64::from(self.count) * self.request_milli_cpus
    }

    /// The pods and their threads, for example `2 pods with 4 threads each`. `kind` names a pod.
    pub(super) fn in_words(&self, kind: &str) -> String {
        let threads = counted(self.threads, "thread");
        format!("{} with {threads} each", counted(self.count, kind))
    }

    /// What neighbors without requests do, as a sentence. `preferred` names the other side, for
    /// example `the job`.
    pub(super) fn without_requests(&self, preferred: &str) -> String {
        format!(
            "The neighbors ({}) request nothing, so the kernel prefers {preferred}.",
            self.in_words("BestEffort pod")
        )
    }

    /// The arguments of the `pinfold` program in a neighbor.
    pub(super) fn args(&self, index: u32) -> Vec<String> {
        let mut args = vec![
            "train".to_owned(),
            "neighbor".to_owned(),
            "--task-index".to_owned(),
            index.to_string(),
            "--threads".to_owned(),
            self.threads.to_string(),
        ];
        if let Some(percent) = self.busy_percent {
            args.extend(["--busy".to_owned(), percent.to_string()]);
        }
        args
    }

    /// The manifest of a neighbor.
    pub(super) fn manifest(&self, index: u32, namespace: &str, uid: &str) -> Value {
        let resources = match self.request_milli_cpus {
            0 => json!({}),
            millis => json!({ "requests": { "cpu": format!("{millis}m") } }),
        };
        json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": { "name": format!("neighbor-{index}"), "namespace": namespace, "uid": uid },
            "spec": { "containers": [{ "name": "noise", "image": "pinfold", "resources": resources }] },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbors_request_the_rest_of_the_node() {
        for (online, rest, expected) in [
            (2, 1000, (2, 500, 2)),
            (3, 1000, (2, 500, 3)),
            (16, 7000, (2, 3500, 16)),
            (64, 55_000, (14, 3928, 64)),
            (1024, 1_015_000, (64, 15_859, 1024)),
            (2, 0, (2, 0, 2)),
        ] {
            let found = Neighbors::new(NeighborKind::Full, online, rest);
            assert_eq!(
                (found.count, found.request_milli_cpus, found.threads),
                expected,
                "{online} CPUs"
            );
            assert!(rest - found.requested() < u64::from(found.count));
        }
        let old = Neighbors::new(NeighborKind::BestEffort, 2, 1000);
        assert_eq!((old.count, old.request_milli_cpus, old.threads), (1, 0, 3));
    }

    #[test]
    fn a_neighbor_without_a_share_gets_no_argument() {
        let neighbors = Neighbors::new(NeighborKind::Full, 2, 1000);
        assert!(!neighbors.args(1).contains(&"--busy".to_owned()));
        let half = Neighbors {
            busy_percent: Some(50),
            ..neighbors
        };
        assert!(
            half.args(1)
                .ends_with(&["--busy".to_owned(), "50".to_owned()])
        );
    }
}
