//! Extended attributes of cgroups: the mark of a pod's or container's cgroup, and notes about the whole node. A mark
//! is an assignment record. The kernel keeps an attribute as long as its cgroup.

use super::{CgroupError, Cgroups};

/// The extended attribute of a mark.
const MARK: &str = "trusted.pinfold";

/// The subject of a note. Each subject has its own extended attribute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum About {
    /// The settings from before CPU isolation moved the kernel's own work.
    Quiet,
    /// The node's last slot in a scene.
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

// === impl Cgroups ===

impl Cgroups {
    /// The mark on a cgroup: Pinfold's record; `None` without a record.
    pub fn mark(&self, path: &str) -> Result<Option<String>, CgroupError> {
        self.attribute(path, MARK, "read the mark of")
    }

    /// Sets the mark of a cgroup; `None` removes the mark.
    pub fn set_mark(&self, path: &str, mark: Option<&str>) -> Result<(), CgroupError> {
        self.set_attribute(path, MARK, mark, "mark")
    }

    /// Whether the kernel keeps extended attributes of cgroups. A test attribute is set on the top cgroup, read back
    /// and removed.
    ///
    /// The top cgroup has mode 0555, hence making a cgroup inside needs `CAP_DAC_OVERRIDE`. An attribute needs
    /// `CAP_SYS_ADMIN` alone.
    pub fn keeps_marks(&self) -> Result<bool, CgroupError> {
        let name = format!("{MARK}.probe.{}", std::process::id());
        let tried = (|| {
            xattr::set(&self.cpuset, &name, b"probe")?;
            let kept = xattr::get(&self.cpuset, &name)?;
            xattr::remove(&self.cpuset, &name)?;
            Ok(kept.as_deref() == Some(b"probe".as_slice()))
        })();
        let path = self.cpuset.clone();
        tried.map_err(|source| CgroupError::Directory {
            operation: "mark",
            path,
            source,
        })
    }

    /// The note on a cgroup; `None` without a note.
    ///
    /// # Errors
    /// The cgroup is gone, or its file system keeps no attributes.
    pub fn note(&self, path: &str, about: About) -> Result<Option<String>, CgroupError> {
        self.attribute(path, about.attribute(), "read the note on")
    }

    /// Sets the note on a cgroup; `None` removes the note. The removal of an absent note succeeds.
    ///
    /// # Errors
    /// The cgroup is gone, the note is too long (64 KiB), or the write permission is missing.
    pub fn set_note(
        &self,
        path: &str,
        about: About,
        text: Option<&str>,
    ) -> Result<(), CgroupError> {
        self.set_attribute(path, about.attribute(), text, "put a note on")
    }

    fn attribute(
        &self,
        path: &str,
        name: &str,
        operation: &'static str,
    ) -> Result<Option<String>, CgroupError> {
        let path = self.root().join(path);
        match xattr::get(&path, name) {
            Ok(value) => Ok(value.map(|bytes| String::from_utf8_lossy(&bytes).into_owned())),
            Err(source) => Err(CgroupError::Directory {
                operation,
                path,
                source,
            }),
        }
    }

    fn set_attribute(
        &self,
        path: &str,
        name: &str,
        value: Option<&str>,
        operation: &'static str,
    ) -> Result<(), CgroupError> {
        let path = self.root().join(path);
        let done = match value {
            Some(value) => xattr::set(&path, name, value.as_bytes()),
            None => match xattr::get(&path, name) {
                Ok(None) => Ok(()),
                Ok(Some(_)) => xattr::remove(&path, name),
                Err(error) => Err(error),
            },
        };
        done.map_err(|source| CgroupError::Directory {
            operation,
            path,
            source,
        })
    }
}
