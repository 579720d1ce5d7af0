//! External programs for the tests.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

pub(crate) use crate::yaml::{documents, here, parse};

/// The document with the kind and name.
pub(crate) fn find<'a>(documents: &'a [Value], kind: &str, name: &str) -> &'a Value {
    let document = documents
        .iter()
        .find(|document| document["kind"] == kind && document["metadata"]["name"] == name);
    document.unwrap_or_else(|| panic!("no {kind} {name}"))
}

/// The path of kubectl or helm, fetched by `tests/deploy/tools`; `None` if the machine is not prepared for these tests.
pub(crate) fn program(name: &str) -> Option<PathBuf> {
    let folder = std::env::var_os("PINFOLD_TOOLS")
        .map_or_else(|| "/var/cache/pinfold-tools".into(), PathBuf::from);
    present(folder.join(name), "tests/deploy/tools fetches the program")
}

/// The path of a program of a Debian package.
pub(crate) fn debian(name: &str, package: &str) -> Option<PathBuf> {
    let folders = ["/usr/bin", "/usr/sbin", "/bin", "/sbin"];
    let existing = folders
        .iter()
        .map(|folder| Path::new(folder).join(name))
        .find(|path| path.exists());
    present(
        existing.unwrap_or_else(|| name.into()),
        &format!("Debian's package {package} has the program"),
    )
}

fn present(path: PathBuf, installation: &str) -> Option<PathBuf> {
    if path.exists() {
        return Some(path);
    }
    let name = path.display();
    assert!(
        !crate::gate::meant_for_this_machine(&format!("{name}: {installation}")),
        "PINFOLD_KERNEL_TESTS=1 wants {name}: {installation}"
    );
    None
}

/// Runs a command that must succeed, and returns what it has printed.
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

/// The objects that `kubectl kustomize` renders from a folder below `deploy`.
pub(crate) fn kustomize(kubectl: &Path, folder: &Path) -> Vec<Value> {
    let text = succeed(Command::new(kubectl).arg("kustomize").arg(folder));
    parse(&text, &folder.display().to_string())
}
