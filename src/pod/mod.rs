//! Pods and their entitlement: QoS, role, CPUs, thread environment.
//!
//! Every function depends on values only. The input is a [`Pod`] from a manifest, the API server or
//! the container runtime, and the output is a decision with a readable reason. The module knows
//! neither free CPUs, nor current assignments, nor the time.
//!
//! The steps, in the order of their dependence:
//!
//! 1. [`parse`] reads manifests of pods, [`Manifests`] also makes the pods of Jobs, Deployments and the
//!    like, and [`Pod::from_k8s`] takes an API object. All give the same [`Pod`], with the API server's form of quantities ([`quantity`]) and with requests defaulted
//!    from limits.
//! 2. [`qos`] computes the QoS class, as the API server does. A reported class is ignored, because
//!    a manifest in a directory has no status, and a decision must not depend on the source of the
//!    pod.
//! 3. [`RecognizedPod`] holds what follows from a pod's texts. [`recognise`] gives the pod's role
//!    in a training job, with the label, variable or argument as evidence.
//! 4. [`entitlement`] decides whether a container gets exclusive CPUs, and how many.
//! 5. [`cpu_preferences`] reads how the pod's owner wants the CPUs to be placed.
//! 6. [`thread_environment`] sizes the container's thread pools from its CPUs.
//! 7. [`rank_environment`] divides the container's CPUs among its processes.
//! 8. [`verdict`] compares a running container's threads with those that the environment explains.
//! 9. [`Capacity`] tells how many CPUs a node can give, and what the kubelet must reserve so that the scheduler counts as many.
//!
//! Three annotations let a pod's owner decide: [`CPUS_ANNOTATION`] and [`THREADS_ANNOTATION`] hold for all containers of the
//! pod, and [`CONTAINER_CPUS_ANNOTATION`] names single ones. [`PROCESSES_ANNOTATION`] gives a number that Pinfold can't read
//! elsewhere, and [`CpuPreferences`] has more annotations; they hold for all containers, too.
//!
//! Invariant: a value that the pod's owner has set wins, from any source. If the owner may have set
//! one where Pinfold can't see it, Pinfold sets none.

#![warn(clippy::too_many_lines, clippy::excessive_nesting)]

mod binding;
mod capacity;
mod command;
mod container_cpus;
mod cpu_preferences;
mod description;
mod entitlement;
mod from_k8s;
mod keys;
mod launcher;
mod manifest;
mod object;
mod operator_labels;
mod own_counts;
mod processes;
mod qos;
pub mod quantity;
mod ranks;
mod recognized;
pub(crate) mod reduced;
mod role;
mod selector;
mod shared;
mod software;
mod threads;
mod uid;
mod unread;
mod variables;
mod verdict;

pub use capacity::{
    Allocatable, AllocatableSource, Capacity, CapacityFinding, CapacityInput, last_shared,
    most_exclusive, stay_shared,
};
pub use container_cpus::{ContainerCpus, ContainerWish};
pub use cpu_preferences::{Balancing, CpuPreferences, MemoryPolicy, cpu_preferences};
pub use description::{Container, ContainerIds, ContainerKind, EnvSource, Pod, Qos, Resources};
pub use entitlement::{
    Entitlement, LONGEST_SHRINK_DELAY, MOST_CPUS, Obstacle, Policy, Training, entitlement,
    is_denied, is_required, training, wants_shared,
};
pub use from_k8s::PodError;
pub use keys::{ContainerKey, ObjectName};
pub use manifest::{MOST_PODS, ManifestError, Manifests, SyntaxError, parse};
pub use object::PodObject;
pub use processes::{Processes, processes};
pub use qos::{guaranteed_obstacle, qos};
pub use ranks::{RANK_CPUS, RankEnvironment, rank_environment};
pub use recognized::{PodList, RecognizedPod, recognized};
pub use role::{PodRole, Recognition, job_label, recognise};
pub use selector::{Selector, SelectorError};
pub use shared::Shared;
pub use software::Software;
pub use threads::{
    BasisOrigin, NoLimit, Profile, Rounding, ThreadBasis, ThreadEnvironment, ThreadPolicy,
    UnknownProfile, thread_environment,
};
pub use uid::{ApiUid, Mirror, PodUid};
pub use variables::{THREAD_VARIABLES, variable_counts};
pub use verdict::{CAUSES, ThreadFacts, ThreadFinding, ThreadStatus, ThreadVerdict, verdict};

/// Whether the pod's containers get exclusive CPUs: `exclusive`, `required` or `shared`.
pub const CPUS_ANNOTATION: &str = "pinfold.io/cpus";

/// Which of the pod's containers get exclusive CPUs: `trainer=exclusive,logger=shared`.
pub const CONTAINER_CPUS_ANNOTATION: &str = "pinfold.io/container-cpus";

/// The thread profile: `limit`, `openmp`, `embedding`, `ps` or `off`.
pub const THREADS_ANNOTATION: &str = "pinfold.io/threads";

/// The number of processes that share a container's CPUs, if the command line doesn't tell: a
/// positive integer.
pub const PROCESSES_ANNOTATION: &str = "pinfold.io/processes";

/// The annotations above. Those of [`CpuPreferences`] come in addition.
const POD_ANNOTATIONS: [&str; 4] = [
    CPUS_ANNOTATION,
    CONTAINER_CPUS_ANNOTATION,
    THREADS_ANNOTATION,
    PROCESSES_ANNOTATION,
];
