//! A small training job with parameter servers: real mathematics, real sockets, real threads.
//!
//! `pinfold demo` runs the job in containers. The job has the habit that the demo shows: without
//! thread variables, a process starts a thread for each CPU of the *host*, whatever the cgroup
//! allows.
//!
//! - [`ps`] holds a shard of the parameters and serves pulls and pushes.
//! - [`worker`] trains: pull, forward, backward, push. Workers do not wait for each other (asynchronous SGD). A worker can keep
//!   the parameters itself.
//! - [`neighbor`] is another pod of the node, which keeps CPUs and caches busy.
//!
//! The internal modules: [`data`] makes clicks to learn from, [`model`] is the network with the
//! gradients, [`pool`] holds the intra-op threads, [`wire`] is the protocol, and [`progress`]
//! reports how far a process is.
//!
//! Invariant: results do not depend on the number of threads, bit for bit, because the demo
//! compares thread counts, which must do the same work.
//!
//! A simpler job would not do. With the same multiply-adds in one loop a step, and so with one barrier, right thread counts
//! gave 1.1 to 1.3 times the steps per second, and most intervals included 1. The network, with its nine loops a step, gave
//! 2.2 times in the same hour (bench with `--host-threads 80`, 2 CPUs, twice 5 rounds of each).

pub mod data;
pub mod model;
pub mod neighbor;
pub mod pool;
pub mod progress;
pub mod ps;
pub mod wire;
pub mod worker;

use std::path::Path;

use crate::host::topology::{OnlineError, online_cpus};

/// The most threads of a process of the job, even if the environment asks for more.
pub const MAX_THREADS: usize = 1024;

/// What is trained: known to every process of the job and compared when a worker connects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    /// Categorical features of an example; each has an embedding.
    pub features: u32,
    /// Values that each feature can take; the embedding table has `features * vocabulary` rows.
    pub vocabulary: u32,
    /// Length of an embedding row.
    pub dim: u32,
    /// Units of the first and the second hidden layer.
    pub hidden: [u32; 2],
    /// Where the initial parameters and the data come from.
    pub seed: u64,
}

/// How many threads to use: the first of the variables `names` that is a positive whole number in `environment`,
/// else one for each CPU of the host. At most [`MAX_THREADS`].
///
/// # Errors
///
/// No variable decides and the host's CPUs can't be read.
pub fn threads(
    names: &[&str],
    environment: impl Fn(&str) -> Option<String>,
    sys: &Path,
) -> Result<usize, OnlineError> {
    let chosen = names.iter().find_map(|name| {
        environment(name)?
            .parse()
            .ok()
            .filter(|&count: &usize| count > 0)
    });
    let count = match chosen {
        Some(count) => count,
        None => online_cpus(sys)?.len(),
    };
    Ok(count.clamp(1, MAX_THREADS))
}

impl Geometry {
    /// Rows of the embedding table.
    pub fn rows(&self) -> u32 {
        self.features.saturating_mul(self.vocabulary)
    }

    /// Inputs of the first layer.
    pub fn inputs(&self) -> usize {
        self.features as usize * self.dim as usize
    }

    /// Lengths of the dense tensors, in order: weights and biases of the three layers.
    pub fn tensors(&self) -> [usize; 6] {
        let [first, second] = self.hidden.map(|units| units as usize);
        [
            self.inputs() * first,
            first,
            first * second,
            second,
            second,
            1,
        ]
    }
}

impl Default for Geometry {
    fn default() -> Self {
        Self {
            features: 16,
            vocabulary: 2000,
            dim: 16,
            hidden: [128, 64],
            seed: 1,
        }
    }
}

#[cfg(test)]
mod tests;
