//! Notes about the node as a whole, kept by the kernel with a cgroup, as marks are.

use super::{CgroupError, Cgroups};

/// What a note is about; each is an extended attribute of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum About {
    /// What was there before the kernel's own work was moved.
    Quiet,
    /// The place that the node had last in a scene.
    Place,
}

// === impl About ===

impl About {
    fn attribute(self) -> &'static str {
        match self {
            Self::Quiet => "trusted.pinfold.quiet",
            Self::Place => "trusted.pinfold.place",
        }
    }
}

impl Cgroups {
    /// A note on a cgroup, if there is one.
    ///
    /// # Errors
    /// The cgroup is gone, or its file system keeps no attributes.
    pub fn note(&self, path: &str, about: About) -> Result<Option<String>, CgroupError> {
        let path = self.root().join(path);
        match xattr::get(&path, about.attribute()) {
            Ok(value) => Ok(value.map(|bytes| String::from_utf8_lossy(&bytes).into_owned())),
            Err(source) => Err(CgroupError::Directory {
                operation: "read the note on",
                path,
                source,
            }),
        }
    }

    /// Puts a note on a cgroup, or takes it off; one that isn't there is off already.
    ///
    /// # Errors
    /// The cgroup is gone, the note is too long (64 KiB), or the right to write it is missing.
    pub fn set_note(
        &self,
        path: &str,
        about: About,
        text: Option<&str>,
    ) -> Result<(), CgroupError> {
        let path = self.root().join(path);
        let done = match text {
            Some(text) => xattr::set(&path, about.attribute(), text.as_bytes()),
            None => match xattr::get(&path, about.attribute()) {
                Ok(None) => Ok(()),
                Ok(Some(_)) => xattr::remove(&path, about.attribute()),
                Err(error) => Err(error),
            },
        };
        done.map_err(|source| CgroupError::Directory {
            operation: "put a note on",
            path,
            source,
        })
    }
}
