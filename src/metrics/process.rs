//! The build and the process of the agent.

use nix::sys::resource::{Resource, getrlimit};

use super::families::{
    BUILD_INFO, PROCESS_MAX_FDS, PROCESS_OPEN_FDS, PROCESS_RESIDENT_MEMORY_BYTES,
};
use super::page::Page;

/// The commit of the build, from the environment of the compiler.
const COMMIT: Option<&str> = option_env!("PINFOLD_COMMIT");

/// Writes the families. An unreadable value has no series.
pub(super) fn write(page: &mut Page) {
    let commit = COMMIT.unwrap_or_default();
    let labels = [("version", env!("CARGO_PKG_VERSION")), ("commit", commit)];
    page.add_info(&BUILD_INFO, &labels);
    if let Some(bytes) = resident_bytes() {
        page.add_one(&PROCESS_RESIDENT_MEMORY_BYTES, bytes);
    }
    if let Ok(entries) = std::fs::read_dir("/proc/self/fd") {
        // The listing itself has a descriptor open.
        page.add_one(&PROCESS_OPEN_FDS, entries.count().saturating_sub(1));
    }
    if let Ok((soft, _)) = getrlimit(Resource::RLIMIT_NOFILE) {
        page.add_one(&PROCESS_MAX_FDS, soft);
    }
}

/// The resident memory, from the line `VmRSS` in kibibytes.
fn resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes * 1024)
}
