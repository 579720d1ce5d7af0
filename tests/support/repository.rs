//! Files of the repository.

use std::path::PathBuf;

/// A path of the repository. Cargo and the guests' scenarios start a test program in the repository's folder. The folder in
/// which the program was built says nothing: a guest may see the repository elsewhere, and a clone may have been moved.
pub(crate) fn here(path: &str) -> PathBuf {
    let folder = std::env::current_dir().unwrap();
    assert!(
        folder.join("Cargo.toml").exists(),
        "start the test program in the repository's folder, not in {}",
        folder.display()
    );
    folder.join(path)
}
