//! Notes about the node as a whole, kept by the kernel with a cgroup, as marks are.

use super::{CgroupError, Cgroups};

/// The extended attribute that holds what was there before the kernel's own work was moved.
const QUIET: &str = "trusted.pinfold.quiet";

impl Cgroups {
    /// The note on a cgroup about the kernel's own work, if there is one.
    ///
    /// # Errors
    /// The cgroup is gone, or its file system keeps no attributes.
    pub fn quiet_note(&self, path: &str) -> Result<Option<String>, CgroupError> {
        let path = self.root().join(path);
        match xattr::get(&path, QUIET) {
            Ok(value) => Ok(value.map(|bytes| String::from_utf8_lossy(&bytes).into_owned())),
            Err(source) => Err(CgroupError::Directory { operation: "read the note on", path, source }),
        }
    }

    /// Puts a note on a cgroup, or takes it off; one that isn't there is off already.
    ///
    /// # Errors
    /// The cgroup is gone, the note is too long (64 KiB), or the right to write it is missing.
    pub fn set_quiet_note(&self, path: &str, note: Option<&str>) -> Result<(), CgroupError> {
        let path = self.root().join(path);
        let done = match note {
            Some(note) => xattr::set(&path, QUIET, note.as_bytes()),
            None => match xattr::get(&path, QUIET) {
                Ok(None) => Ok(()),
                Ok(Some(_)) => xattr::remove(&path, QUIET),
                Err(error) => Err(error),
            },
        };
        done.map_err(|source| CgroupError::Directory { operation: "put a note on", path, source })
    }
}
