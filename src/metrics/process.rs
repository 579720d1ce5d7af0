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
    if let Some(count) = open_files().or_else(listed_files) {
        page.add_one(&PROCESS_OPEN_FDS, count);
    }
    if let Ok((soft, _)) = getrlimit(Resource::RLIMIT_NOFILE) {
        page.add_one(&PROCESS_MAX_FDS, soft);
    }
}

/// The number of open files, which is the size of the folder since Linux 6.2. With 250 pods, the agent has 5,500 open files:
/// a listing of the folder took 4 of the 38 ms of a scrape.
fn open_files() -> Option<u64> {
    let size = std::fs::metadata("/proc/self/fd").ok()?.len();
    (size > 0).then_some(size)
}

/// The number of open files from a listing.
fn listed_files() -> Option<u64> {
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

    #[test]
    fn the_number_of_open_files_grows_with_each_file() {
        let files = |count: usize| -> Vec<_> {
            (0..count)
                .map(|_| std::fs::File::open("/proc/self/stat").unwrap())
                .collect()
        };
        // Other tests of this process open and close files meanwhile.
        let before = listed_files().unwrap();
        let open = files(500);
        let more = before + 400..before + 600;
        assert!(more.contains(&listed_files().unwrap()), "{more:?}");
        // Before Linux 6.2, the folder has no size.
        if let Some(count) = open_files() {
            assert!(more.contains(&count), "{more:?}: {count}");
        }
        drop(open);
        assert!(!more.contains(&listed_files().unwrap()), "{more:?}");
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
