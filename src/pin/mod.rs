//! Who owns which CPUs, and the steps from what is to what should be.
//!
//! Nothing is kept in a file of ours. Each cgroup that Pinfold writes to carries a [`AssignmentRecord`], an extended attribute that
//! the kernel keeps with the cgroup and drops with it: the pod's says which container owns which CPUs, as long as the
//! pod lives; the container's says what is assigned to it, and what it had before. So a restart reads the cgroups
//! ([`Observed`], [`Ledger`]) and knows everything.
//!
//! [`decide`](decide::decide) turns pods, policy and ledger into who shall own what. [`plan`] turns observed and desired
//! into [`Step`]s; it is a pure function, and on its own result it yields nothing. [`apply`] carries steps out and
//! reads back. [`drift`] says where the kernel was made to differ.
//!
//! With enforcement `partition` the kernel keeps everybody else off an owner's CPUs, tasks outside the pods' tree
//! included, and what it says is in force is the better half of the ledger. With `cpuset` we write the exclusive set on
//! the container's cgroup, what its containers hold on the pod's, and the shared set on every other container.

mod apply;
pub mod cpu_isolation;
pub mod decide;
mod drift;
pub mod interference;
mod ledger;
mod model;
mod record;
pub mod snapshot;
mod steps;

pub use apply::{Applied, Outcome, apply, apply_while};
pub use drift::{Drift, DriftCause, NAMED, Neighbour, drift};
pub use ledger::{Ledger, Observed, ObservedContainer, ObservedPod, Scan};
pub use model::{Desired, Enforcement, PodAssignment, PodPlan, Reason, Step};
pub use record::{AssignmentRecord, EarlierSettings, RecordError};
pub use snapshot::Snapshot;
pub use steps::{plan, release};
