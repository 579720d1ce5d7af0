//! [`Draft`]: a file for a result that takes minutes to compute.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;

/// A file for a result that takes minutes to compute. If it can't be written, that is an error at
/// once, and the old content is replaced only when the new text is complete.
#[derive(Debug)]
pub(crate) struct Draft {
    path: PathBuf,
    /// A temporary file beside the target; `None` for a device or a pipe, which is written at the end.
    beside: Option<PathBuf>,
}

// === impl Draft ===

impl Draft {
    /// # Errors
    /// The file can't be written.
    pub(crate) fn new(path: &Path) -> anyhow::Result<Self> {
        let cannot = || format!("can't write {}", path.display());
        anyhow::ensure!(
            !path.is_dir(),
            "{} is a folder: name a file in it",
            path.display()
        );
        if path.exists() && !path.is_file() {
            fs::OpenOptions::new()
                .write(true)
                .open(path)
                .with_context(cannot)?;
            return Ok(Self {
                path: path.to_owned(),
                beside: None,
            });
        }
        // A symbolic link stays, and its target is replaced.
        let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        if path.exists() {
            fs::OpenOptions::new()
                .append(true)
                .open(&path)
                .with_context(cannot)?;
        }
        let mut name = std::ffi::OsString::from(".");
        name.push(path.file_name().with_context(cannot)?);
        name.push(format!(".{}", std::process::id()));
        let beside = path.with_file_name(name);
        fs::File::create_new(&beside).with_context(cannot)?;
        Ok(Self {
            path,
            beside: Some(beside),
        })
    }

    /// Writes the text to the file.
    ///
    /// # Errors
    /// The file can't be written; the old content stays.
    pub(crate) fn write(self, text: &str) -> anyhow::Result<()> {
        let cannot = || format!("can't write {}", self.path.display());
        let Some(beside) = &self.beside else {
            return fs::write(&self.path, text).with_context(cannot);
        };
        fs::write(beside, text).with_context(cannot)?;
        fs::rename(beside, &self.path).with_context(cannot)
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        // After the rename, the temporary file is gone.
        self.beside.as_ref().map(fs::remove_file);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_completely_or_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.svg");
        let names = || fs::read_dir(folder.path()).unwrap().count();
        fs::write(&path, "old").unwrap();
        drop(Draft::new(&path).unwrap());
        assert_eq!(
            (fs::read_to_string(&path).unwrap().as_str(), names()),
            ("old", 1)
        );
        Draft::new(&path).unwrap().write("new").unwrap();
        assert_eq!(
            (fs::read_to_string(&path).unwrap().as_str(), names()),
            ("new", 1)
        );
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        Draft::new(&link).unwrap().write("newer").unwrap();
        assert!(link.is_symlink() && fs::read_to_string(&path).unwrap() == "newer");
        let error = Draft::new(&folder.path().join("no/a.svg"))
            .unwrap_err()
            .to_string();
        assert!(error.contains("no/a.svg"), "{error}");
        let error = Draft::new(folder.path()).unwrap_err().to_string();
        assert!(error.contains("name a file in it"), "{error}");
        // A device is written to, and stays.
        Draft::new(Path::new("/dev/null"))
            .unwrap()
            .write("x")
            .unwrap();
        drop(Draft::new(Path::new("/dev/null")).unwrap());
        assert!(Path::new("/dev/null").exists());
    }
}
