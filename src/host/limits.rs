//! What this process takes of the machine: files, memory.
#![allow(unsafe_code)]

use std::sync::Once;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use procfs::process::{MMPermissions, MMapPath, Process};

/// Files that are left for everything else: sockets, watches, whatever is read and closed again.
const OTHERS: u64 = 512;

/// No more files of cgroups than this are kept open, each of which costs the kernel some 5 KiB, nor more places in /proc than an
/// eighth of it.
const MOST: usize = 8192;
const EIGHTH: usize = MOST / 8;

/// How many files may be kept open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Room {
    /// Of cgroups.
    pub cgroups: usize,
    /// Places in /proc.
    pub places: usize,
}

/// How many files may be kept open. The limit is raised first, as far as it goes without asking anybody; half of it is left for
/// counters of CPUs.
pub fn room_for_files() -> Room {
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else {
        return Room::default();
    };
    let raised = setrlimit(Resource::RLIMIT_NOFILE, hard, hard).is_ok();
    let limit = if raised { hard } else { soft };
    let all = usize::try_from((limit / 2).saturating_sub(OTHERS))
        .unwrap_or(usize::MAX)
        .min(MOST + EIGHTH);
    let places = all / 9;
    Room {
        cgroups: all - places,
        places,
    }
}

/// How many counters may be open for containers on shared CPUs, of those that the limit leaves for counters of CPUs.
pub fn room_for_shared_counters() -> usize {
    let limit = getrlimit(Resource::RLIMIT_NOFILE).map_or(0, |(soft, _)| soft);
    usize::try_from(limit / 4).unwrap_or(usize::MAX)
}

/// Keeps the memory of this process small: one heap for all threads, of which what is free goes back to the kernel. By
/// itself each thread gets a heap of its own, and what a scrape needed once stays with the thread that answered it.
pub fn keep_memory_small() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    for (parameter, value) in [
        (nix::libc::M_ARENA_MAX, 1),
        (nix::libc::M_MMAP_THRESHOLD, 1 << 16),
        (nix::libc::M_TRIM_THRESHOLD, 1 << 16),
    ] {
        // SAFETY: sets a number inside the allocator; it is called before there are threads.
        unsafe { nix::libc::mallopt(parameter, value) };
    }
}

/// Gives memory that is free between what is in use back to the kernel, which by itself only happens with what lies above all
/// that is in use.
pub fn give_back_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: the allocator takes its own lock, and touches nothing that is in use.
    unsafe {
        nix::libc::malloc_trim(0);
    }
}

/// Takes the program's own code out of this process once, when it has started: half of it is for the start, and for commands that
/// do not run. What runs again is mapped again from the kernel's copy of the file, which stays.
pub fn give_back_code() {
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
                // SAFETY: the mapping is read-only and private, so all its pages are the file's, and are read from there again.
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
