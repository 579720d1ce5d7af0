//! Reading and writing kernel files: opened as they are, never created, never truncated.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

/// What the kernel hands over at once of a file with one value; half of it may be missing where there is more to come.
const PAGE: usize = 4096;

/// A kernel file that could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// Reading failed.
    #[error("can't read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// Writing failed; the kernel takes a write whole or not at all.
    #[error("can't write {data:?} to {}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// What was to be written.
        data: String,
        /// What the kernel said.
        source: io::Error,
    },
}

impl FileError {
    /// Whether the file (or the cgroup or process behind it) is gone, which is an ordinary thing to happen.
    pub fn is_gone(&self) -> bool {
        let (Self::Read { source, .. } | Self::Write { source, .. }) = self;
        is_gone(source)
    }
}

/// Reads a whole file, without the white space at its end.
pub fn read(path: &Path) -> Result<String, FileError> {
    match fs::read(path) {
        Ok(bytes) => Ok(String::from_utf8_lossy(&bytes).trim_end().to_owned()),
        Err(source) => Err(FileError::Read {
            path: path.to_owned(),
            source,
        }),
    }
}

/// Reads a whole file; `None` where there is none.
pub fn read_optional(path: &Path) -> Result<Option<String>, FileError> {
    optional(read(path))
}

/// Reads a file that holds one value, as cgroupfs and sysfs have them, without the white space at its end. The kernel hands
/// such a file over with one read, so that a node with hundreds of cgroups is read with half the calls.
pub fn read_value(path: &Path) -> Result<String, FileError> {
    value(path).map_err(|source| FileError::Read {
        path: path.to_owned(),
        source,
    })
}

/// The same; `None` where there is no such file.
pub fn read_value_optional(path: &Path) -> Result<Option<String>, FileError> {
    optional(read_value(path))
}

fn optional(read: Result<String, FileError>) -> Result<Option<String>, FileError> {
    match read {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.is_gone() => Ok(None),
        Err(error) => Err(error),
    }
}

fn value(path: &Path) -> io::Result<String> {
    let mut file = File::open(path)?;
    let mut start = [0; PAGE];
    let length = loop {
        match file.read(&mut start) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            read => break read?,
        }
    };
    let start = start.get(..length).unwrap_or_default();
    if length < PAGE / 2 {
        return Ok(String::from_utf8_lossy(start).trim_end().to_owned());
    }
    let mut whole = start.to_vec();
    file.read_to_end(&mut whole)?;
    Ok(String::from_utf8_lossy(&whole).trim_end().to_owned())
}

/// Writes to an existing file in one write call.
///
/// An empty `data` is written as a newline: a write of no bytes is no write to the kernel.
pub fn write(path: &Path, data: &str) -> Result<(), FileError> {
    let bytes = if data.is_empty() {
        b"\n"
    } else {
        data.as_bytes()
    };
    OpenOptions::new()
        .write(true)
        .open(path)
        .and_then(|mut file| file.write_all(bytes))
        .map_err(|source| FileError::Write {
            path: path.to_owned(),
            data: data.to_owned(),
            source,
        })
}

fn is_gone(error: &io::Error) -> bool {
    const ENODEV: i32 = nix::errno::Errno::ENODEV as i32;
    const ESRCH: i32 = nix::errno::Errno::ESRCH as i32;
    error.kind() == io::ErrorKind::NotFound || matches!(error.raw_os_error(), Some(ENODEV | ESRCH))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_all_lengths_are_whole() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("value");
        for length in [0, 1, 2047, 2048, 4095, 4096, 4097, 20_000] {
            let text = "x".repeat(length);
            fs::write(&path, format!("{text}\n")).unwrap();
            assert_eq!(read_value(&path).unwrap(), text);
        }
        assert_eq!(read_value_optional(&dir.path().join("none")).unwrap(), None);
        assert!(
            read_value(dir.path())
                .unwrap_err()
                .to_string()
                .contains("can't read")
        );
    }

    #[test]
    fn a_missing_file_is_not_made() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("cpuset.cpus");
        let error = write(&path, "0-1").unwrap_err();
        assert!(error.is_gone());
        assert!(!path.exists());
        assert_eq!(read_optional(&path).unwrap(), None);
    }

    #[test]
    fn the_error_names_file_and_data() {
        let dir = tempfile::tempdir().unwrap();
        let error = write(dir.path(), "0-1").unwrap_err();
        assert!(error.to_string().contains("\"0-1\""), "{error}");
        assert!(
            error.to_string().contains(dir.path().to_str().unwrap()),
            "{error}"
        );
    }
}
