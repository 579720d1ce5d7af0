//! What a pod is and is owed: QoS, role, entitlement, thread environment.

mod model;

pub use model::{Container, ContainerKind, EnvSource, Pod, Qos, Resources};
