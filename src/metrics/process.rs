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
    if let Some(count) = fds_by_size().or_else(fds_by_listing) {
        page.add_one(&PROCESS_OPEN_FDS, count);
    }
    if let Ok((soft, _)) = getrlimit(Resource::RLIMIT_NOFILE) {
        page.add_one(&PROCESS_MAX_FDS, soft);
    }
}

/// The number of open file descriptors: the size of `/proc/self/fd` since Linux 6.2. `None` on an
/// earlier kernel. With 250 pods, the agent has 5,500 descriptors, and a listing took 4 ms of a
/// scrape of 38 ms.
fn fds_by_size() -> Option<u64> {
    let size = std::fs::metadata("/proc/self/fd").ok()?.len();
    (size > 0).then_some(size)
}

/// The number of open file descriptors, counted in a listing of `/proc/self/fd`.
fn fds_by_listing() -> Option<u64> {
    let entries = std::fs::read_dir("/proc/self/fd").ok()?.count();
    // The listing itself has a descriptor open.
    u64::try_from(entries).ok()?.checked_sub(1)
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

    /// Other tests of this process open and close files meanwhile, but the two counts are equal at
    /// some moment.
    #[test]
    fn both_counts_of_open_files_are_equal() {
        let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
        let mut numbers = release
            .split('.')
            .map_while(|part| part.parse::<u32>().ok());
        let version = (numbers.next().unwrap(), numbers.next().unwrap());
        if version < (6, 2) {
            assert_eq!(fds_by_size(), None, "{release}");
            return;
        }
        let equal = (0..10_000).any(|_| fds_by_size() == fds_by_listing());
        assert!(equal, "{:?}, {:?}", fds_by_size(), fds_by_listing());
    }

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
