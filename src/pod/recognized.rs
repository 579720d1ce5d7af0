//! [`RecognizedPod`]: a pod with everything that its texts say, read once.
//!
//! Roles, launchers and software are found by reading command lines and variables word by word. A
//! pod's author decides how long these texts are, and each decision about any pod of the node uses
//! the results. So the texts are read when the pod becomes known, and never again for a decision.

use std::ops::Deref;
use std::sync::Arc;

use std::num::NonZeroUsize;

use super::binding::Binding;
use super::launcher::{MpiRanks, Search};
use super::own_counts::OwnCounts;
use super::processes::by_launches;
use super::role::recognise;
use super::software::software;
use super::unread::unread;
use super::{ContainerCpus, Pod, Processes, Qos, Recognition, Software, guaranteed_obstacle, qos};
use crate::cpu::CpuSet;

/// A pod with its role, its QoS class, and the software of each container. It can't be changed: a
/// changed pod is recognized anew, by [`RecognizedPod::from`].
#[derive(Debug, Clone)]
pub struct RecognizedPod {
    pod: Arc<Pod>,
    recognition: Recognition,
    qos: Qos,
    obstacle: Option<String>,
    container_cpus: ContainerCpus,
    unread: Vec<String>,
    programs: Vec<Program>,
}

/// What a container runs, by its command line, environment and image.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Program {
    pub(super) software: Software,
    pub(super) processes: Processes,
    /// The program that starts others with a fresh environment, if any.
    pub(super) fresh: Option<&'static str>,
    bindings: Vec<Binding>,
    /// The thread counts that the command line sets itself.
    pub(super) own_counts: OwnCounts,
    /// Whether MPI starts processes.
    pub(super) starts_mpi: bool,
    /// Whether the command line sets a variable for the workers of oneCCL.
    pub(super) sets_ccl: bool,
    /// How many ranks each launcher of MPI starts, if all of them are in this container and nothing binds them.
    pub(super) ranks_here: Option<NonZeroUsize>,
}

/// All pods that a decision is about, in the order in which they are served.
pub type PodList = Arc<[Arc<RecognizedPod>]>;

/// Reads the texts of pods.
pub fn recognized(pods: impl IntoIterator<Item = Pod>) -> PodList {
    let pods = pods.into_iter();
    pods.map(|pod| Arc::new(RecognizedPod::from(pod))).collect()
}

// === impl RecognizedPod ===

impl RecognizedPod {
    pub fn recognition(&self) -> &Recognition {
        &self.recognition
    }

    /// The pod's QoS class, as [`qos`] computes it.
    pub fn qos(&self) -> Qos {
        self.qos
    }

    /// Why the pod is not Guaranteed, as [`guaranteed_obstacle`] says it.
    pub fn guaranteed_obstacle(&self) -> Option<&str> {
        self.obstacle.as_deref()
    }

    /// What the pod's owner wants for single containers.
    pub fn container_cpus(&self) -> &ContainerCpus {
        &self.container_cpus
    }

    /// What Pinfold's annotations of the pod say in vain, each as a sentence.
    pub fn unread(&self) -> &[String] {
        &self.unread
    }

    /// The pod, without what follows from its texts.
    pub fn pod(&self) -> &Arc<Pod> {
        &self.pod
    }

    pub fn software(&self, container: usize) -> Software {
        self.program(container)
            .map_or(Software::Unknown, |program| program.software)
    }

    /// What the container with this index should do differently on CPUs of its own: each use of the machine's CPU numbers.
    pub fn binding_advice(&self, container: usize, cpus: Option<&CpuSet>) -> Vec<String> {
        let (Some(program), Some(cpus)) = (self.program(container), cpus) else {
            return Vec::new();
        };
        let bindings = program.bindings.iter();
        bindings.map(|binding| binding.advice(cpus)).collect()
    }

    /// What the container with this index runs; `None` for one outside the pod's description.
    pub(super) fn program(&self, container: usize) -> Option<&Program> {
        self.programs.get(container)
    }
}

impl Deref for RecognizedPod {
    type Target = Pod;

    fn deref(&self) -> &Pod {
        &self.pod
    }
}

impl From<Arc<Pod>> for RecognizedPod {
    fn from(pod: Arc<Pod>) -> Self {
        let recognition = recognise(&pod);
        let program = |container| {
            let mut found = Search::of(&pod, container);
            Program {
                software: software(&pod, &recognition, container),
                fresh: found.fresh,
                bindings: std::mem::take(&mut found.bindings),
                own_counts: std::mem::take(&mut found.own_counts),
                starts_mpi: found.mpi != MpiRanks::None,
                sets_ccl: found.sets_ccl,
                ranks_here: found.mpi.here(),
                processes: by_launches(&pod, recognition.role, container, found),
            }
        };
        let container_cpus = ContainerCpus::of(&pod);
        Self {
            qos: qos(&pod),
            obstacle: guaranteed_obstacle(&pod),
            unread: unread(&pod, &container_cpus),
            container_cpus,
            programs: pod.containers.iter().map(program).collect(),
            recognition,
            pod,
        }
    }
}

impl From<Pod> for RecognizedPod {
    fn from(pod: Pod) -> Self {
        Arc::new(pod).into()
    }
}

impl Default for RecognizedPod {
    fn default() -> Self {
        Pod::default().into()
    }
}

/// Everything else follows from the pod.
impl PartialEq for RecognizedPod {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.pod, &other.pod) || self.pod == other.pod
    }
}
