//! Which tests this machine is meant for.

use std::io::Write;

/// Whether `PINFOLD_KERNEL_TESTS=1` says that this machine is meant for the calling test; else a line names the test.
///
/// Once it is meant for it, what lacks is a failure: a check that was not made must not look like one that passed.
pub(crate) fn meant_for_this_machine(needs: &str) -> bool {
    if std::env::var_os("PINFOLD_KERNEL_TESTS").is_some_and(|value| value == "1") {
        assert!(
            nix::unistd::geteuid().is_root(),
            "PINFOLD_KERNEL_TESTS=1 wants root: these tests write to the kernel"
        );
        return true;
    }
    leave("tests/run", needs);
    false
}

/// Names the calling test as one that is left to another command.
pub(crate) fn leave(to: &str, needs: &str) {
    let thread = std::thread::current();
    let name = thread.name().unwrap_or("a test");
    // Written past the capture of the test harness, which keeps what a passing test prints to itself.
    // In one piece: other tests write at the same time.
    let line = format!("{name}: left to {to} (it needs {needs})\n");
    let _ = std::io::stderr().write_all(line.as_bytes());
}
