//! [`ContainerFolders`]: for each pinned container, a folder of small text files, which the container runtime mounts into the
//! container.
//!
//! A bind mount follows the folder's inode, so the folder of a container is made once and stays until its pod is gone. A file is
//! replaced by a rename, so a reader sees either the old or the new text, whole.

use std::fs::{self, DirBuilder, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use super::file::{self, DirectoryEntry};

/// The folder below the base that has the pods' folders.
const CONTAINERS: &str = "containers";

/// The name under which a file is written before it gets its own.
const TEMPORARY: &str = ".new";

/// Every user may list the folders, whatever the agent's umask. Only their owner may write to them: the agent runs without
/// `CAP_DAC_OVERRIDE`, so its folders need the owner's write permission.
const FOLDER_MODE: u32 = 0o755;

/// Every user may read the files.
const FILE_MODE: u32 = 0o444;

/// A folder or a file that could not be made, written or removed.
#[derive(Debug, thiserror::Error)]
#[error("can't write {}: {source}", path.display())]
pub struct ContainerFileError {
    pub path: PathBuf,
    /// The kernel's error.
    pub source: io::Error,
}

/// The folders below a base folder: `BASE/containers/POD/CONTAINER`.
#[derive(Debug, Clone)]
pub struct ContainerFolders {
    base: PathBuf,
}

/// The folders that [`ContainerFolders::list`] has found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ListedFolders {
    /// The pods with a folder, and the names of their containers' folders.
    pub pods: Vec<(String, Vec<String>)>,
    /// The folders that can't be read, as sentences.
    pub unreadable: Vec<String>,
}

// === impl ContainerFileError ===

impl ContainerFileError {
    fn at(path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self {
            path: path.to_owned(),
            source,
        }
    }
}

// === impl ContainerFolders ===

impl ContainerFolders {
    pub fn new(base: &Path) -> Self {
        Self {
            base: base.to_owned(),
        }
    }

    /// The folder of a container, on the host.
    ///
    /// # Errors
    /// A name could lead out of the base folder.
    pub fn path(&self, pod: &str, container: &str) -> Result<PathBuf, ContainerFileError> {
        let pods = self.base.join(CONTAINERS);
        for name in [pod, container] {
            let is_plain =
                !name.is_empty() && !name.starts_with('.') && !name.contains(['/', '\0']);
            if !is_plain {
                let error = io::Error::new(
                    ErrorKind::InvalidInput,
                    format!("{name:?} is no name of a folder"),
                );
                return Err(ContainerFileError::at(&pods)(error));
            }
        }
        Ok(pods.join(pod).join(container))
    }

    /// Makes the folder of a container, with all above it. An existing one stays.
    ///
    /// # Errors
    /// A folder can't be made.
    pub fn make(&self, pod: &str, container: &str) -> Result<PathBuf, ContainerFileError> {
        let folder = self.path(pod, container)?;
        let mut missing: Vec<&Path> = folder
            .ancestors()
            .take_while(|above| above.starts_with(&self.base))
            .collect();
        while let Some(next) = missing.pop() {
            make_folder(next).map_err(ContainerFileError::at(next))?;
        }
        Ok(folder)
    }

    /// Writes a file in the folder of a container, or removes it with `None`. A file with the same text is left alone, so that
    /// nobody who watches it wakes up.
    ///
    /// # Errors
    /// The folder is missing, or it can't be written to.
    pub fn write(
        &self,
        (pod, container): (&str, &str),
        name: &str,
        text: Option<&str>,
    ) -> Result<(), ContainerFileError> {
        let folder = self.path(pod, container)?;
        let path = folder.join(name);
        let at = ContainerFileError::at(&path);
        let Some(text) = text else {
            return match fs::remove_file(&path) {
                Err(error) if error.kind() != ErrorKind::NotFound => Err(at(error)),
                _ => Ok(()),
            };
        };
        if fs::read(&path).is_ok_and(|old| old == text.as_bytes()) {
            return Ok(());
        }
        replace(&folder, &path, text).map_err(at)
    }

    /// The folders that exist. A missing base folder has no pods.
    pub fn list(&self) -> ListedFolders {
        listed(&self.base.join(CONTAINERS), file::list_optional)
    }

    /// Removes the folders of a pod's containers, with their files. Whoever still has a mount of a folder then sees an empty one,
    /// and no text that nobody updates.
    ///
    /// # Errors
    /// A file or a folder can't be removed. A missing folder is no error.
    pub fn remove(&self, pod: &str) -> Result<(), ContainerFileError> {
        // The name of a container's folder that is checked with the pod's.
        let any = self.path(pod, "any")?;
        let Some(folder) = any.parent() else {
            return Ok(());
        };
        match fs::remove_dir_all(folder) {
            Err(error) if !file::is_gone(&error) => Err(ContainerFileError::at(folder)(error)),
            _ => Ok(()),
        }
    }

    /// Removes the folders of all containers.
    ///
    /// # Errors
    /// A file or a folder can't be removed. A missing folder is no error.
    pub fn remove_all(&self) -> Result<(), ContainerFileError> {
        let folder = self.base.join(CONTAINERS);
        match fs::remove_dir_all(&folder) {
            Err(error) if !file::is_gone(&error) => Err(ContainerFileError::at(&folder)(error)),
            _ => Ok(()),
        }
    }

    /// Checks that folders and files can be made, without leaving any.
    ///
    /// # Errors
    /// A file can't be made.
    pub fn check(&self) -> Result<(), ContainerFileError> {
        let is_new = !self.base.exists();
        make_folder(&self.base).map_err(ContainerFileError::at(&self.base))?;
        let path = self.base.join(TEMPORARY);
        replace(&self.base, &path, "")
            .and_then(|()| fs::remove_file(&path))
            .and_then(|()| {
                if is_new {
                    fs::remove_dir(&self.base)
                } else {
                    Ok(())
                }
            })
            .map_err(ContainerFileError::at(&path))
    }
}

/// The folders below `pods`, read with `list`. One that can't be read leaves the others.
fn listed(pods: &Path, list: impl Fn(&Path) -> io::Result<Vec<DirectoryEntry>>) -> ListedFolders {
    let mut found = ListedFolders::default();
    let mut names = |path: &Path| match list(path) {
        Ok(entries) => Some(file::directory_names(entries)),
        Err(error) => {
            let line = format!("can't read {}: {error}", path.display());
            found.unreadable.push(line);
            None
        }
    };
    let all = names(pods).unwrap_or_default().into_iter();
    found.pods = all
        .filter_map(|pod| {
            let containers = names(&pods.join(&pod))?;
            Some((pod, containers))
        })
        .collect();
    found
}

fn make_folder(path: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(FOLDER_MODE).create(path) {
        // The umask may have taken permissions away.
        Ok(()) => fs::set_permissions(path, Permissions::from_mode(FOLDER_MODE)),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error),
    }
}

/// Writes a text under a temporary name in the folder, and renames it.
fn replace(folder: &Path, path: &Path, text: &str) -> io::Result<()> {
    let temporary = folder.join(TEMPORARY);
    // An agent that was killed may have left one, which nobody could open for writing.
    match fs::remove_file(&temporary) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(FILE_MODE)
        .open(&temporary)?;
    file.write_all(text.as_bytes())?;
    file.set_permissions(Permissions::from_mode(FILE_MODE))?;
    fs::rename(&temporary, path)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    fn folders(base: &Path) -> ContainerFolders {
        ContainerFolders::new(&base.join("pinfold"))
    }

    #[test]
    fn a_folder_keeps_its_inode_and_its_files_are_replaced_whole() {
        let base = tempfile::tempdir().unwrap();
        let folders = folders(base.path());
        let folder = folders.make("uid", "main").unwrap();
        let inode = |path: &Path| fs::metadata(path).unwrap().ino();
        let key = ("uid", "main");
        let cpus = folder.join("cpus");
        folders.write(key, "cpus", Some("2-3\n")).unwrap();
        let (of_folder, of_file) = (inode(&folder), inode(&cpus));
        // The same text is not written again, and another one is a new file: whoever has the old one open reads it to its end.
        folders.write(key, "cpus", Some("2-3\n")).unwrap();
        assert_eq!(inode(&cpus), of_file);
        let open = fs::File::open(&cpus).unwrap();
        folders.write(key, "cpus", Some("2\n")).unwrap();
        assert_eq!(io::read_to_string(open).unwrap(), "2-3\n");
        assert_eq!(fs::read_to_string(&cpus).unwrap(), "2\n");
        assert_eq!(folders.make("uid", "main").unwrap(), folder);
        assert_eq!(inode(&folder), of_folder);
        let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o7777;
        assert_eq!((mode(&folder), mode(&cpus)), (FOLDER_MODE, FILE_MODE));
        folders.write(key, "cpus", None).unwrap();
        folders.write(key, "cpus", None).unwrap();
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 0);
    }

    #[test]
    fn a_file_left_by_a_killed_agent_is_in_nobodys_way() {
        let base = tempfile::tempdir().unwrap();
        let folders = folders(base.path());
        let folder = folders.make("uid", "main").unwrap();
        fs::write(folder.join(TEMPORARY), "half").unwrap();
        folders.write(("uid", "main"), "cpus", Some("2\n")).unwrap();
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
    }

    #[test]
    fn pods_are_listed_and_removed() {
        let base = tempfile::tempdir().unwrap();
        let folders = folders(base.path());
        assert_eq!(folders.list(), ListedFolders::default());
        folders.remove("uid").unwrap();
        for (pod, container) in [("a", "one"), ("a", "two"), ("b", "one")] {
            folders.make(pod, container).unwrap();
        }
        folders.write(("a", "one"), "cpus", Some("2\n")).unwrap();
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let all: Vec<(String, Vec<String>)> = vec![
            ("a".to_owned(), names(&["one", "two"])),
            ("b".to_owned(), names(&["one"])),
        ];
        assert_eq!(folders.list().pods, all);
        folders.remove("a").unwrap();
        assert_eq!(folders.list().pods, all[1..]);
        folders.remove_all().unwrap();
        folders.remove_all().unwrap();
        assert_eq!(folders.list(), ListedFolders::default());
    }

    #[test]
    fn a_folder_that_cannot_be_read_leaves_those_of_other_pods() {
        let base = tempfile::tempdir().unwrap();
        let folders = folders(base.path());
        for pod in ["a", "b", "c"] {
            folders.make(pod, "main").unwrap();
        }
        let pods = base.path().join("pinfold").join(CONTAINERS);
        let found = listed(&pods, |path| {
            if path.ends_with("b") {
                return Err(io::Error::from(ErrorKind::PermissionDenied));
            }
            file::list_optional(path)
        });
        let names: Vec<&str> = found.pods.iter().map(|(pod, _)| pod.as_str()).collect();
        assert_eq!(names, ["a", "c"]);
        let [line] = <[String; 1]>::try_from(found.unreadable).unwrap();
        assert!(line.contains("/containers/b: permission denied"), "{line}");
    }

    #[test]
    fn no_name_leads_out_of_the_base_folder() {
        let base = tempfile::tempdir().unwrap();
        let folders = folders(base.path());
        for (pod, container) in [
            ("..", "x"),
            ("a/../..", "x"),
            ("", "x"),
            ("a", "../x"),
            ("a", "."),
        ] {
            assert!(folders.make(pod, container).is_err(), "{pod} {container}");
            assert!(folders.write((pod, container), "cpus", Some("1")).is_err());
        }
        assert!(folders.remove("..").is_err() && folders.remove("").is_err());
        assert_eq!(fs::read_dir(base.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_folder_that_cannot_be_written_is_named() {
        let base = tempfile::tempdir().unwrap();
        fs::write(base.path().join("pinfold"), "a file").unwrap();
        let folders = folders(base.path());
        let error = folders.make("uid", "main").unwrap_err().to_string();
        assert!(
            error.contains("can't write") && error.contains("pinfold"),
            "{error}"
        );
        assert!(folders.check().is_err());
        fs::remove_file(base.path().join("pinfold")).unwrap();
        folders.check().unwrap();
        assert_eq!(fs::read_dir(base.path()).unwrap().count(), 0);
    }
}
