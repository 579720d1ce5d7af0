//! Machines of `tests/machines`, unpacked.

use std::fs;
use std::io::Read;
use std::path::PathBuf;

use bzip2::read::BzDecoder;
use tempfile::TempDir;

#[path = "repository.rs"]
pub(crate) mod repository;

/// The names of files that the topology reader may open. The archives hold thousands of others.
const WANTED: [&str; 22] = [
    "online",
    "offline",
    "present",
    "possible",
    "thread_siblings",
    "thread_siblings_list",
    "core_cpus",
    "core_cpus_list",
    "core_siblings",
    "core_siblings_list",
    "package_cpus",
    "package_cpus_list",
    "physical_package_id",
    "level",
    "type",
    "shared_cpu_list",
    "shared_cpu_map",
    "cpulist",
    "cpumap",
    "distance",
    "meminfo",
    "cpu_capacity",
];

/// Where the archives are.
pub(crate) fn archives() -> PathBuf {
    repository::here("tests/machines")
}

/// Unpacks a machine to a folder of its own, which a test may damage.
pub(crate) fn unpack(name: &str) -> TempDir {
    let folder = TempDir::new().unwrap();
    let archive = fs::File::open(archives().join(format!("{name}.tar.bz2"))).unwrap();
    let mut archive = tar::Archive::new(BzDecoder::new(archive));
    let mut files = 0;
    for entry in archive.entries().unwrap() {
        let mut entry = entry.unwrap();
        let path = entry.path().unwrap().into_owned();
        let below = path.components().skip(1).collect::<PathBuf>();
        let is_cpu_file = below.starts_with("sys/devices/system/cpu")
            || below.starts_with("sys/devices/system/node")
            || below
                .to_str()
                .is_some_and(|path| path.starts_with("sys/devices/cpu_"));
        // Folders count by themselves: an offline CPU's may be empty.
        let to = folder.path().join(&below);
        if is_cpu_file && entry.header().entry_type().is_dir() {
            fs::create_dir_all(&to).unwrap();
        } else if is_cpu_file
            && entry.header().entry_type().is_file()
            && WANTED.iter().any(|name| below.ends_with(name))
        {
            let mut content = Vec::new();
            entry.read_to_end(&mut content).unwrap();
            fs::create_dir_all(to.parent().unwrap()).unwrap();
            fs::write(to, content).unwrap();
            files += 1;
        }
    }
    assert!(files > 0, "{name} holds no file that the reader looks at");
    folder
}
