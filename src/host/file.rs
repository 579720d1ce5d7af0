//! Access to kernel files: no file is created or truncated. [`Reader`] also reads files that stay
//! open, which saves opening and closing them.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirEntryExt, FileExt};
use std::path::{Path, PathBuf};

/// The most bytes that the kernel returns in one read. Until the end of a file, it returns at least
/// half as many.
const PAGE: usize = 4096;

/// A kernel file that could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    #[error("can't read {}", path.display())]
    Read {
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// The kernel takes a write whole or not at all.
    #[error("can't write {data:?} to {}", path.display())]
    Write {
        path: PathBuf,
        data: String,
        /// The kernel's error.
        source: io::Error,
    },
}

// === impl FileError ===

impl FileError {
    /// Whether the file, cgroup or process is gone, which happens in normal operation.
    pub fn is_gone(&self) -> bool {
        is_gone(self.kernel_error())
    }

    pub fn kernel_error(&self) -> &io::Error {
        let (Self::Read { source, .. } | Self::Write { source, .. }) = self;
        source
    }

    /// Adds the path to the error of a failed read.
    pub(super) fn reading(path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Read {
            path: path.to_owned(),
            source,
        }
    }
}

/// Reads a whole file, without the white space at its end.
pub fn read(path: &Path) -> Result<String, FileError> {
    let bytes = fs::read(path).map_err(FileError::reading(path))?;
    Ok(trimmed_text(&bytes))
}

fn trimmed_text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).trim_end().to_owned()
}

/// Reads a whole file; `None` if it does not exist.
pub fn read_optional(path: &Path) -> Result<Option<String>, FileError> {
    optional(read(path))
}

/// Reads a file with a single value, as in cgroupfs and sysfs, without the white space at its end.
/// The kernel returns a short file in a single read, so a node with hundreds of cgroups is read
/// with half the calls.
pub fn read_value(path: &Path) -> Result<String, FileError> {
    value(path).map_err(FileError::reading(path))
}

/// Like [`read_value`]; `None` if the file does not exist.
pub fn read_value_optional(path: &Path) -> Result<Option<String>, FileError> {
    optional(read_value(path))
}

fn optional(read: Result<String, FileError>) -> Result<Option<String>, FileError> {
    match read {
        Err(error) if error.is_gone() => Ok(None),
        text => text.map(Some),
    }
}

fn value(path: &Path) -> io::Result<String> {
    let mut buffer = Vec::new();
    let length = fill(&mut buffer, &File::open(path)?)?;
    Ok(trimmed_text(buffer.get(..length).unwrap_or_default()))
}

/// Writes to an existing file in one write call.
///
/// An empty `data` is written as a newline, because the kernel ignores a write of no bytes.
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

#[derive(Debug)]
pub(super) struct DirectoryEntry {
    pub name: String,
    pub inode: u64,
    /// Whether the entry is a directory. A link is no directory.
    pub is_directory: bool,
}

/// The entries of a directory, sorted by name. If it is removed meanwhile, the list ends there.
pub(super) fn list(directory: &Path) -> io::Result<Vec<DirectoryEntry>> {
    let mut entries = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = match entry {
            Err(error) if is_gone(&error) => break,
            entry => entry?,
        };
        entries.push(DirectoryEntry {
            name: entry.file_name().to_string_lossy().into_owned(),
            inode: entry.ino(),
            is_directory: entry.file_type().is_ok_and(|kind| kind.is_dir()),
        });
    }
    entries.sort_unstable_by(|a, b| a.name.cmp(&b.name));
    Ok(entries)
}

pub(super) fn directory_names(entries: Vec<DirectoryEntry>) -> Vec<String> {
    let directories = entries.into_iter().filter(|entry| entry.is_directory);
    directories.map(|entry| entry.name).collect()
}

/// The entries of a directory; empty if there is none with this path.
pub(super) fn list_optional(directory: &Path) -> io::Result<Vec<DirectoryEntry>> {
    match list(directory) {
        Err(error) if is_gone(&error) || error.kind() == io::ErrorKind::NotADirectory => {
            Ok(Vec::new())
        }
        entries => entries,
    }
}

pub(super) fn is_gone(error: &io::Error) -> bool {
    const ENODEV: i32 = nix::errno::Errno::ENODEV as i32;
    const ESRCH: i32 = nix::errno::Errno::ESRCH as i32;
    error.kind() == io::ErrorKind::NotFound || matches!(error.raw_os_error(), Some(ENODEV | ESRCH))
}

/// Reads kernel files into a reused buffer, also files that are kept open.
///
/// A cgroup can be removed while one of its files is open, and reading that file then fails.
#[derive(Debug, Default)]
pub struct Reader {
    buffer: Vec<u8>,
}

// === impl Reader ===

impl Reader {
    /// The text of an open file from its beginning, with the white space at its end.
    ///
    /// # Errors
    /// The file can't be read any more, because its cgroup or process is gone. A new one may have
    /// the same name.
    pub(super) fn read(&mut self, file: &File) -> io::Result<&str> {
        let length = fill(&mut self.buffer, file)?;
        Ok(self.text(length))
    }

    fn text(&self, length: usize) -> &str {
        // The kernel's numbers and words are ASCII, so a text that is not UTF-8 is not understood
        // and counts as empty.
        std::str::from_utf8(self.buffer.get(..length).unwrap_or_default()).unwrap_or_default()
    }

    /// The text of a file opened for this call only, with the white space at its end.
    ///
    /// # Errors
    /// The file can't be opened or read.
    pub(super) fn once(&mut self, path: &Path) -> io::Result<&str> {
        self.read(&File::open(path)?)
    }

    /// Opens a file and reads its text; `None` if it does not exist.
    ///
    /// # Errors
    /// The file exists and can't be read.
    pub(super) fn open(&mut self, path: PathBuf) -> Result<Option<(File, &str)>, FileError> {
        let opened = File::open(&path).and_then(|file| Ok((fill(&mut self.buffer, &file)?, file)));
        match opened {
            Ok((length, file)) => Ok(Some((file, self.text(length)))),
            Err(source) if is_gone(&source) => Ok(None),
            Err(source) => Err(FileError::Read { path, source }),
        }
    }
}

/// Reads a file from beginning to end, and returns its length.
fn fill(buffer: &mut Vec<u8>, file: &File) -> io::Result<usize> {
    let mut length = 0;
    loop {
        if buffer.len() < length + PAGE {
            buffer.resize(length + PAGE.max(length), 0);
        }
        let room = buffer.get_mut(length..).unwrap_or_default();
        let some = match file.read_at(room, length as u64) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            read => read?,
        };
        length += some;
        // The kernel returns at most a page, and only the last read returns less than half of one.
        if some < PAGE / 2 {
            return Ok(length);
        }
    }
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

    #[test]
    fn files_of_all_lengths_are_whole_and_read_anew() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("value");
        let (mut reader, mut kept) = (Reader::default(), None);
        for length in [0, 1, 2047, 2048, 4095, 4096, 4097, 20_000, 3] {
            let expected = "x".repeat(length);
            fs::write(&path, &expected).unwrap();
            let (file, text) = reader.open(path.clone()).unwrap().unwrap();
            assert_eq!(text, expected);
            // The file opened first is read from its beginning again.
            assert_eq!(reader.read(kept.get_or_insert(file)).unwrap(), expected);
        }
    }

    #[test]
    fn a_missing_file_is_none_and_an_unreadable_one_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let mut reader = Reader::default();
        assert!(reader.open(dir.path().join("none")).unwrap().is_none());
        let error = reader.open(dir.path().to_owned()).unwrap_err();
        assert!(
            error.to_string().contains(dir.path().to_str().unwrap()),
            "{error}"
        );
    }
}
