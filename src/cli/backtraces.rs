//! Backtraces of a program without unwind tables.

use std::os::unix::process::CommandExt;
use std::process::Command;

/// Starts the program anew without the variables that ask for backtraces. Without unwind tables, the first backtrace would
/// abort the program, and an error would end without its message.
pub(super) fn switch_off() {
    let variables = ["RUST_BACKTRACE", "RUST_LIB_BACKTRACE"];
    if variables
        .iter()
        .all(|name| std::env::var_os(name).is_none())
    {
        return;
    }
    let mut again = Command::new("/proc/self/exe");
    let mut words = std::env::args_os();
    if let Some(name) = words.next() {
        again.arg0(name);
    }
    again.args(words);
    for name in variables {
        again.env_remove(name);
    }
    // Without /proc, the program goes on as it is: everything but errors works.
    let _ = again.exec();
}
