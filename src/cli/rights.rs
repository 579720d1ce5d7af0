//! Checks the rights that a command needs to see the node as it is.

use crate::agent::config::Config;
use crate::host::proc::Proc;

/// What commands that change the node need the rights for.
pub(super) const READ_AND_WRITE: &str = "read assignment records and to write to cgroups";

/// Checks the rights to read assignment records and to write to cgroups. Only a process with
/// CAP_SYS_ADMIN sees the records; to any other, every container would seem unpinned.
///
/// # Errors
/// A missing right; `command` names what needs it and for what, and `remedy` says what to do.
pub(super) fn check(
    config: &Config,
    (command, purpose): (&str, &str),
    remedy: &str,
) -> anyhow::Result<()> {
    let lacks = if !nix::unistd::geteuid().is_root() {
        "root"
    } else if !Proc::new(&config.root_dir).may_administer() {
        "CAP_SYS_ADMIN"
    } else {
        return Ok(());
    };
    anyhow::bail!("{command} needs {lacks} to {purpose}: {remedy}")
}
