//! The CPUs that are online on the host, whatever a cgroup or an affinity mask leaves of them.

use std::io;
use std::path::{Path, PathBuf};

use crate::cpu::{CpuSet, ParseCpuSetError};

/// Why the host's CPUs could not be told.
#[derive(Debug, thiserror::Error)]
pub enum OnlineError {
    /// The file could not be read.
    #[error("cannot read the host's online CPUs from {}: mount sysfs there", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// The file holds something else than a CPU list.
    #[error("{} does not hold a CPU list", path.display())]
    Parse {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        source: ParseCpuSetError,
    },
}

/// The online CPUs of the host whose sysfs is mounted at `sys` (`/sys` on a running machine).
///
/// # Errors
///
/// The file cannot be read or is not a CPU list.
pub fn online_cpus(sys: &Path) -> Result<CpuSet, OnlineError> {
    let path = sys.join("devices/system/cpu/online");
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(source) => return Err(OnlineError::Read { path, source }),
    };
    text.parse()
        .map_err(|source| OnlineError::Parse { path, source })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sys(text: &str) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("devices/system/cpu");
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join("online"), text).unwrap();
        root
    }

    #[test]
    fn reads_the_list_under_the_given_root() {
        let root = sys("0-3,8\n");
        assert_eq!(online_cpus(root.path()).unwrap().to_string(), "0-3,8");
    }

    #[test]
    fn names_the_file_when_it_is_missing_or_odd() {
        let root = tempfile::tempdir().unwrap();
        assert!(
            online_cpus(root.path())
                .unwrap_err()
                .to_string()
                .contains("devices/system/cpu/online")
        );
        let root = sys("all of them");
        assert!(matches!(
            online_cpus(root.path()),
            Err(OnlineError::Parse { .. })
        ));
    }
}
