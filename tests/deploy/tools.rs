//! Programs that the tests need.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

pub(crate) use crate::yaml::{documents, here, parse};

/// The document of a kind and name.
pub(crate) fn find<'a>(all: &'a [Value], kind: &str, name: &str) -> &'a Value {
    let found = all
        .iter()
        .find(|one| one["kind"] == kind && one["metadata"]["name"] == name);
    found.unwrap_or_else(|| panic!("no {kind} {name}"))
}

/// kubectl or helm, as `tests/deploy/tools` fetches them; `None` where this machine is not meant for it.
pub(crate) fn program(name: &str) -> Option<PathBuf> {
    let folder = std::env::var_os("PINFOLD_TOOLS")
        .map_or_else(|| "/var/cache/pinfold-tools".into(), PathBuf::from);
    present(folder.join(name), "tests/deploy/tools fetches it")
}

/// A program of a Debian package.
pub(crate) fn debian(name: &str, package: &str) -> Option<PathBuf> {
    let folders = ["/usr/bin", "/usr/sbin", "/bin", "/sbin"];
    let found = folders
        .iter()
        .map(|folder| Path::new(folder).join(name))
        .find(|path| path.exists());
    present(
        found.unwrap_or_else(|| name.into()),
        &format!("it is in Debian's package {package}"),
    )
}

fn present(path: PathBuf, how: &str) -> Option<PathBuf> {
    if path.exists() {
        return Some(path);
    }
    let name = path.display();
    assert!(
        !crate::gate::meant_for_this_machine(&format!("{name}: {how}")),
        "PINFOLD_KERNEL_TESTS=1 wants {name}: {how}"
    );
    None
}

/// Runs a command that must succeed, and returns what it printed.
pub(crate) fn succeed(command: &mut Command) -> String {
    let output = output(command);
    assert!(
        output.status.success(),
        "{command:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}

pub(crate) fn output(command: &mut Command) -> Output {
    command
        .output()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"))
}

/// What `kubectl kustomize` makes of a folder below `deploy`.
pub(crate) fn kustomize(kubectl: &Path, folder: &Path) -> Vec<Value> {
    let text = succeed(Command::new(kubectl).arg("kustomize").arg(folder));
    parse(&text, &folder.display().to_string())
}
