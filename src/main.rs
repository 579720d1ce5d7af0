//! The `pinfold` program: everything is in the library, see its documentation.

use std::process::ExitCode;

fn main() -> ExitCode {
    #[cfg(no_unwind_tables)]
    without_backtraces();
    pinfold::cli::main()
}

/// Starts the program anew without the variables that ask for backtraces. Without unwind tables, the first backtrace would
/// abort the program, and an error would end without its message.
#[cfg(no_unwind_tables)]
fn without_backtraces() {
    use std::os::unix::process::CommandExt;

    let variables = ["RUST_BACKTRACE", "RUST_LIB_BACKTRACE"];
    if variables
        .iter()
        .all(|name| std::env::var_os(name).is_none())
    {
        return;
    }
    let mut again = std::process::Command::new("/proc/self/exe");
    let mut words = std::env::args_os();
    if let Some(name) = words.next() {
        again.arg0(name);
    }
    again.args(words);
    for name in variables {
        again.env_remove(name);
    }
    // Without /proc, the program goes on as it is: all but errors works.
    let _ = again.exec();
}
