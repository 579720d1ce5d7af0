//! [`Reader`]: kernel files that are read again and again, kept open so that nothing but the read is left.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::file::FileError;

/// What the kernel hands over at once of most files; longer ones need room for more.
const PAGE: usize = 4096;

/// Reads files that may be kept open, into a buffer of its own.
///
/// A file of a cgroup that is kept open keeps nobody from removing the cgroup: it just can't be read any more.
#[derive(Debug)]
pub struct Reader {
    buffer: Vec<u8>,
}

// === impl Reader ===

impl Default for Reader {
    fn default() -> Self {
        Self {
            buffer: vec![0; PAGE],
        }
    }
}

impl Reader {
    /// The text of a file that is open, from its beginning, white space at its end included.
    ///
    /// # Errors
    /// It can't be read any more: what it belongs to is gone, perhaps with another of the same name in its place.
    pub(super) fn read(&mut self, file: &File) -> io::Result<&str> {
        let length = fill(&mut self.buffer, file)?;
        Ok(self.text(length))
    }

    fn text(&self, length: usize) -> &str {
        // The kernel's numbers and words are ASCII; anything else is nothing that could be understood.
        std::str::from_utf8(self.buffer.get(..length).unwrap_or_default()).unwrap_or_default()
    }

    /// The text of a file that is opened for this once, white space at its end included.
    ///
    /// # Errors
    /// It can't be opened or read.
    pub(super) fn once(&mut self, path: &Path) -> io::Result<&str> {
        let length = fill(&mut self.buffer, &File::open(path)?)?;
        Ok(self.text(length))
    }

    /// Opens a file and reads its text; `None` where there is none.
    ///
    /// # Errors
    /// It is there and can't be read.
    pub(super) fn open(&mut self, path: PathBuf) -> Result<Option<(File, &str)>, FileError> {
        let opened = File::open(&path).and_then(|file| Ok((fill(&mut self.buffer, &file)?, file)));
        match opened {
            Ok((length, file)) => Ok(Some((file, self.text(length)))),
            Err(source) => {
                let error = FileError::Read { path, source };
                if error.is_gone() {
                    Ok(None)
                } else {
                    Err(error)
                }
            }
        }
    }
}

/// Reads a file from its beginning to its end; how long it is.
fn fill(buffer: &mut Vec<u8>, file: &File) -> io::Result<usize> {
    let mut length = 0;
    loop {
        let room = buffer.get_mut(length..).unwrap_or_default();
        let some = match file.read_at(room, length as u64) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            read => read?,
        };
        // The kernel hands over a page at most, and less than half of what there is room for only at the end.
        let is_all = some < room.len().min(PAGE) / 2;
        length += some;
        if is_all || some == 0 {
            return Ok(length);
        }
        buffer.resize(length + PAGE.max(length), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

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
            // The one that was opened first is read from its beginning again.
            assert_eq!(reader.read(kept.get_or_insert(file)).unwrap(), expected);
        }
    }

    #[test]
    fn what_is_not_there_is_nothing_and_what_cannot_be_read_is_an_error() {
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
