//! How many files this process may have open.

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Files that are left for everything else: sockets, watches, whatever is read and closed again.
const OTHERS: u64 = 512;

/// No more than this are kept open: each costs the kernel some 5 KiB.
const MOST: usize = 8192;

/// How many files may be kept open. The limit is raised first, as far as it goes without asking anybody.
pub fn room_for_files() -> usize {
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else { return 0 };
    let raised = setrlimit(Resource::RLIMIT_NOFILE, hard, hard).is_ok();
    let limit = if raised { hard } else { soft };
    usize::try_from(limit.saturating_sub(OTHERS)).unwrap_or(MOST).min(MOST)
}
