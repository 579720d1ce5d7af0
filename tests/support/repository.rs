//! Files of the repository.

use std::path::{Path, PathBuf};

/// A path of the repository. Cargo and the guests' scenarios start a test program in the repository's folder. The folder in
/// which the program was built says nothing: a guest may see the repository elsewhere, and a clone may have been moved.
pub(crate) fn here(path: &str) -> PathBuf {
    assert!(
        Path::new("Cargo.toml").exists(),
        "start the test program in the repository's folder, not in {:?}",
        std::env::current_dir()
    );
    std::env::current_dir().unwrap_or_default().join(path)
}
