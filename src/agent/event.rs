//! What the owner is told, and what it answers.

use std::collections::BTreeMap;

use tokio::sync::oneshot;

use crate::cpu::CpuSet;
use crate::pod::{Pod, ThreadEnvironment};

/// Who tells of pods. Where both know a pod, the first of these counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    /// The API server.
    Api,
    /// The folder of manifests.
    Folder,
}

/// What the owner is told.
#[derive(Debug)]
pub enum Event {
    /// The pods of a source, all of them, and what could not be read.
    Pods {
        /// Who tells.
        source: Source,
        /// The pods.
        pods: Vec<Pod>,
        /// Files or pods that could not be read, as sentences.
        errors: Vec<String>,
    },
    /// The API server has told nothing so far: what the kernel says is all there is.
    Unheard,
    /// The NUMA nodes of the devices of pods, by namespace and name.
    Devices(BTreeMap<(String, String), CpuSet>),
    /// A runtime is about to create a container.
    Create {
        /// Its pod.
        pod: Box<Pod>,
        /// The container's name.
        container: String,
        /// Where the answer goes.
        reply: oneshot::Sender<Admission>,
    },
}

/// What a runtime is told of a container that it is about to create.
#[derive(Debug, Clone, PartialEq)]
pub struct Admission {
    /// The CPUs it will own; `None` in the shared pool.
    pub cpus: Option<CpuSet>,
    /// NUMA nodes of those CPUs, where the machine tells.
    pub numa: Option<CpuSet>,
    /// The thread environment.
    pub threads: ThreadEnvironment,
}
