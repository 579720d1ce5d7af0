//! Which container owns which CPUs, and the steps from the observed to the desired state.
//!
//! Pinfold keeps no state file. Each cgroup that it writes to carries an [`AssignmentRecord`]: an
//! extended attribute that the kernel keeps with the cgroup and drops with it. The pod's record
//! says which container owns which CPUs, as long as the pod lives. The container's record holds the
//! container's assignment and earlier settings. A restart reads the cgroups ([`Observed`],
//! [`Ledger`]) and knows everything.
//!
//! [`decide`](decide::decide) turns pods, policy and ledger into the desired owners of CPUs.
//! [`plan`], a pure function, turns the observed and the desired state into [`Step`]s, and into
//! none once the states match. [`apply`] carries the steps out and reads the kernel's values back.
//! [`drift`] reports where the kernel differs from the ledger.
//!
//! With enforcement `partition`, the kernel keeps every other task off an owner's CPUs, tasks
//! outside the pods' cgroups included. The ledger also counts a live partition without a record.
//! With `cpuset`, Pinfold writes the exclusive set on the owner's cgroup and the containers' CPUs
//! on the pod's cgroup, and all other containers get the shared set.

#![warn(clippy::too_many_lines, clippy::excessive_nesting)]

mod apply;
mod assignment;
pub mod cpu_isolation;
pub mod decide;
mod desired;
mod drift;
mod hotplug;
pub mod interference;
mod ledger;
mod offer;
mod record;
pub mod snapshot;
mod steps;

pub use apply::{AppliedStep, StepOutcome, apply, apply_while};
pub use assignment::PodAssignment;
pub use desired::{Desired, Enforcement, EnforcementCause, PlacementSource, PodPlan, Reason, Step};
pub use drift::{Drift, DriftCause, DriftInput, Neighbour, drift};
pub use hotplug::SeenSets;
pub use ledger::{Ledger, Observed, ObservedContainer, ObservedPod, Scan};
pub use record::{AssignmentRecord, EarlierSettings, RecordError};
pub use snapshot::Snapshot;
pub use steps::{plan, release};
