//! The build and the process of the agent.

use nix::sys::resource::{Resource, getrlimit};

use super::build;
use super::families::{
    BUILD_INFO, PROCESS_MAX_FDS, PROCESS_OPEN_FDS, PROCESS_RESIDENT_MEMORY_BYTES,
};
use super::page::Page;

/// Writes the families. An unreadable value has no series.
pub(super) fn write(page: &mut Page) {
    let features = build::features();
    let labels = [
        ("version", build::VERSION),
        ("commit", build::COMMIT),
        ("features", features.as_str()),
    ];
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

#[cfg(test)]
mod tests {
    use super::super::page::Format;
    use super::*;

    #[test]
    fn the_build_has_a_version_a_commit_and_features() {
        let mut page = Page::default();
        write(&mut page);
        let (version, commit, features) = (build::VERSION, build::COMMIT, build::features());
        let series = format!(
            "pinfold_build_info{{version=\"{version}\",commit=\"{commit}\",features=\"{features}\"}} 1\n"
        );
        let text = page.text(Format::Text);
        assert!(text.contains(&series), "{text}");
    }
}
