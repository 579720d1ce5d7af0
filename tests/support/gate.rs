//! Decides which tests run on this machine.

use std::io::Write;

/// Whether `PINFOLD_KERNEL_TESTS=1` allows the calling test on this machine; else a line on stderr names the test.
///
/// On an allowed machine, a missing requirement is a failure, because a skipped check must not look
/// like one that passed.
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

/// Names the calling test on stderr as a test that belongs to another command.
pub(crate) fn leave(to: &str, needs: &str) {
    let thread = std::thread::current();
    let name = thread.name().unwrap_or("a test");
    // Bypasses the test harness, which captures the output of a passing test. A single write keeps the line in one piece:
    // tests write at the same time.
    let line = format!("{name}: left to {to} (it needs {needs})\n");
    let _ = std::io::stderr().write_all(line.as_bytes());
}
