//! What a pod is and is owed: QoS, role, entitlement, thread environment.
//!
//! Everything here is a function of values: a [`Pod`], read from a manifest, from the API server or from the
//! container runtime, goes in, and a decision with a reason that a person can read comes out. Nothing here knows which
//! CPUs are free, what is assigned now, or what time it is.
//!
//! The steps, in the order in which they build on each other:
//!
//! 1. [`parse`] reads manifests and [`Pod::from_k8s`] takes an API object; both give the same [`Pod`], with quantities
//!    as the API server would have kept them ([`quantity`]) and requests defaulted from limits.
//! 2. [`qos`] computes the QoS class, as the API server does. It is computed even where a status tells it, because a
//!    manifest in a folder has none, and a decision must not depend on where the pod was read.
//! 3. [`recognise`] says which part of a training job the pod is, and which label, variable or argument shows it.
//! 4. [`entitlement`] says whether a container gets CPUs of its own, and how many.
//! 5. [`cpu_preferences`] says how the pod's owner wants those CPUs.
//! 6. [`thread_environment`] sizes the container's thread pools from the CPUs it will have.
//! 7. [`verdict`] says, once it runs, whether its threads are those that the environment explains.
//!
//! Two annotations let a pod's owner decide: [`CPUS_ANNOTATION`] and [`THREADS_ANNOTATION`]; [`PROCESSES_ANNOTATION`]
//! tells what cannot be seen from outside; those of [`CpuPreferences`] say how. They are read from the pod, for all its containers.
//!
//! Invariant: a value that the pod's owner has set wins, wherever it comes from. Where the room cannot see whether a
//! value is set, it withholds its own.

mod cpu_preferences;
mod entitlement;
mod from_k8s;
mod manifest;
mod model;
mod object;
mod processes;
mod qos;
pub mod quantity;
mod role;
mod selector;
mod software;
mod threads;
mod uid;
mod variables;
mod verdict;

pub use cpu_preferences::{Balancing, CpuPreferences, MemoryPolicy, cpu_preferences};
pub use entitlement::{
    Entitlement, Policy, Training, entitlement, is_denied, is_required, training,
};
pub use from_k8s::PodError;
pub use manifest::{ManifestError, SyntaxError, parse};
pub use model::{Container, ContainerIds, ContainerKind, EnvSource, Pod, Qos, Resources};
pub use object::Object;
pub use processes::{Processes, processes};
pub use qos::{guaranteed_obstacle, qos};
pub use role::{Recognition, Role, job_label, recognise};
pub use selector::{Selector, SelectorError};
pub use software::{Software, software};
pub use threads::{
    BasisOrigin, NoLimit, Profile, Rounding, THREAD_VARIABLES, ThreadBasis, ThreadEnvironment,
    ThreadPolicy, UnknownProfile, thread_environment,
};
pub use uid::{ApiUid, Mirror, PodUid};
pub use variables::variable_counts;
pub use verdict::{CAUSES, ThreadFacts, ThreadFinding, ThreadVerdict, verdict};

/// Whether the pod's containers get CPUs of their own: `exclusive`, `required` or `shared`.
pub const CPUS_ANNOTATION: &str = "pinfold.io/cpus";

/// The thread profile: `limit`, `openmp`, `embedding`, `ps` or `off`.
pub const THREADS_ANNOTATION: &str = "pinfold.io/threads";

/// How many processes share a container's CPUs, where the command line does not show it: a positive integer.
pub const PROCESSES_ANNOTATION: &str = "pinfold.io/processes";
