//! Extended attributes of cgroups: the assignment record of a pod's or container's cgroup, and notes about the whole
//! node. The kernel keeps an attribute as long as its cgroup.

use super::model::{CgroupError, Cgroups, Result};

/// The extended attribute of an assignment record.
const RECORD: &str = "trusted.pinfold";

/// The subject of a note. Each subject has its own extended attribute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoteSubject {
    /// The settings from before CPU isolation moved the kernel's own work.
    CpuIsolation,
    /// The node's last slot in a scene.
    SceneSlot,
}

// === impl NoteSubject ===

impl NoteSubject {
    fn attribute(self) -> &'static str {
        match self {
            Self::CpuIsolation => "trusted.pinfold.cpu-isolation",
            Self::SceneSlot => "trusted.pinfold.slot",
        }
    }
}

// === impl Cgroups ===

impl Cgroups {
    /// The text of a cgroup's assignment record; `None` without a record.
    pub fn assignment_record(&self, path: &str) -> Result<Option<String>> {
        self.attribute(path, RECORD, "read the assignment record of")
    }

    /// Sets the text of a cgroup's assignment record; `None` removes the record.
    pub fn set_assignment_record(&self, path: &str, record: Option<&str>) -> Result<()> {
        self.set_attribute(path, RECORD, record, "set the assignment record of")
    }

    /// Whether the kernel keeps extended attributes of cgroups. A test attribute is set on the top cgroup, read back
    /// and removed.
    ///
    /// The test makes no cgroup: the top cgroup has mode 0555, so a new cgroup inside would need `CAP_DAC_OVERRIDE`.
    /// An attribute needs `CAP_SYS_ADMIN` alone.
    pub fn supports_attributes(&self) -> Result<bool> {
        let name = format!("{RECORD}.probe.{}", std::process::id());
        let tried = (|| {
            xattr::set(&self.cpuset, &name, b"probe")?;
            let kept = xattr::get(&self.cpuset, &name)?;
            xattr::remove(&self.cpuset, &name)?;
            Ok(kept.as_deref() == Some(b"probe".as_slice()))
        })();
        tried.map_err(CgroupError::directory("set an attribute of", &self.cpuset))
    }

    /// The note on a cgroup; `None` without a note.
    ///
    /// # Errors
    /// The cgroup is gone, or its file system keeps no attributes.
    pub fn note(&self, path: &str, subject: NoteSubject) -> Result<Option<String>> {
        self.attribute(path, subject.attribute(), "read the note on")
    }

    /// Sets the note on a cgroup; `None` removes the note. The removal of an absent note succeeds.
    ///
    /// # Errors
    /// The cgroup is gone, the note is too long (64 KiB), or the write permission is missing.
    pub fn set_note(&self, path: &str, subject: NoteSubject, text: Option<&str>) -> Result<()> {
        self.set_attribute(path, subject.attribute(), text, "put a note on")
    }

    fn attribute(&self, path: &str, name: &str, operation: &'static str) -> Result<Option<String>> {
        let path = self.root().join(path);
        let value = xattr::get(&path, name).map_err(CgroupError::directory(operation, &path))?;
        Ok(value.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()))
    }

    fn set_attribute(
        &self,
        path: &str,
        name: &str,
        value: Option<&str>,
        operation: &'static str,
    ) -> Result<()> {
        let path = self.root().join(path);
        let done = match value {
            Some(value) => xattr::set(&path, name, value.as_bytes()),
            None => xattr::get(&path, name).and_then(|value| match value {
                Some(_) => xattr::remove(&path, name),
                None => Ok(()),
            }),
        };
        done.map_err(CgroupError::directory(operation, &path))
    }
}
