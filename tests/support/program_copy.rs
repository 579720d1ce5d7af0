//! Copies of programs that a test starts at once.

use std::path::Path;
use std::process::Command;

/// Copies a program with `cp`. If this process copied it, the start could fail with "Text file busy": a child that another test's
/// thread starts meanwhile keeps the file open for writing until it runs its own program.
pub(crate) fn copy_program(from: &str, to: &Path) {
    let copied = Command::new("cp").arg(from).arg(to).status().unwrap();
    assert!(copied.success(), "cp {from} {}: {copied}", to.display());
}
