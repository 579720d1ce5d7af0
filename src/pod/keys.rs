//! [`ObjectName`] and [`ContainerKey`]: what maps of objects and of containers are keyed by.

use std::fmt;

use super::PodUid;

/// The namespace and the name of an object, for example of a pod or of a training job.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectName {
    /// The namespace.
    pub namespace: String,
    /// The name.
    pub name: String,
}

/// A container of a pod.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ContainerKey {
    /// The pod's uid.
    pub uid: PodUid,
    /// The container's name.
    pub container: String,
}

// === impl ObjectName ===

impl ObjectName {
    /// The name of an object in a namespace.
    pub fn new(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self {
            namespace: namespace.into(),
            name: name.into(),
        }
    }
}

impl fmt::Display for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

// === impl ContainerKey ===

impl ContainerKey {
    /// A container of the pod with the uid.
    pub fn new(uid: &str, container: impl Into<String>) -> Self {
        Self {
            uid: uid.into(),
            container: container.into(),
        }
    }
}
