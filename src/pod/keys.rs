//! [`ObjectName`] and [`ContainerKey`]: what maps of objects and of containers are keyed by.

use std::fmt;

use super::PodUid;

/// The namespace and the name of an object, for example of a pod or of a training job.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectName {
    pub namespace: String,
    pub name: String,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ContainerKey {
    pub uid: PodUid,
    pub container: String,
}

// === impl ObjectName ===

impl ObjectName {
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
    pub fn new(uid: &str, container: impl Into<String>) -> Self {
        Self {
            uid: uid.into(),
            container: container.into(),
        }
    }
}
