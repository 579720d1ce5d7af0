//! The process's own use of resources: open files and memory.
#![allow(unsafe_code)]

use std::sync::Once;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use procfs::process::{MMPermissions, MMapPath, Process};

/// Descriptors reserved for other uses: sockets, watches, and files opened only for a moment.
const RESERVED_DESCRIPTORS: u64 = 512;

/// The largest number of cgroup files that stay open. Each costs the kernel some 5 KiB. At most an
/// eighth as many descriptors of entries in /proc stay open.
const MAX_CGROUP_FILES: usize = 8192;
const MAX_PROC_HANDLES: usize = MAX_CGROUP_FILES / 8;

/// How many files may stay open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OpenFileLimits {
    pub cgroups: usize,
    /// Descriptors of entries in /proc.
    pub proc_handles: usize,
}

/// Raises the soft limit to the hard limit, if permitted, and returns how many files may stay open.
/// Half of the limit is left for counters of CPUs.
pub fn raise_open_file_limit() -> OpenFileLimits {
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else {
        return OpenFileLimits::default();
    };
    let raised = setrlimit(Resource::RLIMIT_NOFILE, hard, hard).is_ok();
    let limit = if raised { hard } else { soft };
    let all = usize::try_from((limit / 2).saturating_sub(RESERVED_DESCRIPTORS))
        .unwrap_or(usize::MAX)
        .min(MAX_CGROUP_FILES + MAX_PROC_HANDLES);
    let proc_handles = all / 9;
    OpenFileLimits {
        cgroups: all - proc_handles,
        proc_handles,
    }
}

/// The number of counters that may be open for containers on shared CPUs: half of the descriptors
/// left for counters of CPUs.
pub fn shared_counter_limit() -> usize {
    super::counters::perf::descriptor_limit() / 2
}

/// Keeps the process's memory small: all threads share a heap, which returns free memory to the
/// kernel early. By default each thread gets its own, and memory for a single scrape would then
/// stay with the thread that answered it.
pub fn keep_memory_small() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    for (parameter, value) in [
        (nix::libc::M_ARENA_MAX, 1),
        (nix::libc::M_MMAP_THRESHOLD, 1 << 16),
        (nix::libc::M_TRIM_THRESHOLD, 1 << 16),
    ] {
        // SAFETY: the call sets a number inside the allocator, before any thread is started.
        unsafe { nix::libc::mallopt(parameter, value) };
    }
}

/// Returns free memory between used blocks to the kernel. By default the allocator returns only
/// what lies above all used blocks.
pub fn trim_heap() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: the allocator takes its own lock, and touches no memory in use.
    unsafe {
        nix::libc::malloc_trim(0);
    }
}

/// Drops the program's code from the process's memory once, after the start. Half of it serves only
/// the start, or commands that do not run. When code runs again, the kernel maps it again from the
/// cached copy of the file. With 250 pods, an agent held 27.9 MiB with this step, and 30.3 MiB
/// without it.
pub fn drop_code_pages() {
    static STARTED: Once = Once::new();
    STARTED.call_once(|| {
        let Ok(maps) = Process::myself().and_then(|this| this.maps()) else {
            return;
        };
        let Ok(program) = std::fs::read_link("/proc/self/exe") else {
            return;
        };
        let code = MMPermissions::READ | MMPermissions::EXECUTE | MMPermissions::PRIVATE;
        for map in maps {
            let (start, end) = map.address;
            let own = matches!(&map.pathname, MMapPath::Path(path) if *path == program);
            if let Ok(length) = usize::try_from(end - start)
                && own
                && map.perms == code
            {
                // SAFETY: the mapping is read-only and private. All its pages come from the file,
                // and are read from there again.
                unsafe {
                    nix::libc::madvise(
                        start as *mut nix::libc::c_void,
                        length,
                        nix::libc::MADV_DONTNEED,
                    )
                };
            }
        }
    });
}
