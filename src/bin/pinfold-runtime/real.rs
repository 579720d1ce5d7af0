//! The node's real OCI runtime.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// The symbolic link beside this program that names the real runtime. Without it, the first `runc`, else the first `crun`, of
/// the folders in `PATH` and in [`USUAL`] counts.
pub(crate) const LINK: &str = "pinfold-runtime.real";

/// Folders of runtimes. CRI-O runs a runtime with a `PATH` that may lack them.
const USUAL: &str =
    "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/usr/libexec/crio";

/// The path of the real runtime.
///
/// # Errors
/// There is none, or the link names this program itself.
pub(crate) fn find() -> Result<PathBuf, String> {
    let exe = fs::read_link("/proc/self/exe")
        .map_err(|error| format!("can't find its own folder in /proc/self/exe: {error}"))?;
    let own = installed(&exe);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(std::env::split_paths(USUAL));
    among(&own, &folders.collect::<Vec<_>>())
}

/// The program's path, from what the kernel says about a running program. A new version may have replaced the file since the
/// call began, and is at the same place.
fn installed(exe: &Path) -> PathBuf {
    let path = exe.as_os_str().as_bytes();
    let path = path.strip_suffix(b" (deleted)").unwrap_or(path);
    PathBuf::from(OsStr::from_bytes(path))
}

fn among(own: &Path, folders: &[PathBuf]) -> Result<PathBuf, String> {
    let link = own.with_file_name(LINK);
    if let Ok(target) = fs::canonicalize(&link) {
        return if is_same(&target, own) {
            Err(format!(
                "{} names pinfold-runtime itself: point it to the node's runc or crun",
                link.display()
            ))
        } else {
            Ok(target)
        };
    }
    if fs::symlink_metadata(&link).is_ok() {
        return Err(format!(
            "{} leads nowhere: point it to the node's runc or crun",
            link.display()
        ));
    }
    let named = ["runc", "crun"]
        .iter()
        .flat_map(|name| folders.iter().map(move |folder| folder.join(name)));
    let mut usable = named.filter(|path| path.is_absolute() && is_program(path));
    usable.find(|path| !is_same(path, own)).ok_or_else(|| {
        format!(
            "neither runc nor crun is in the PATH: name the node's OCI runtime (pinfold-runtime install --real, or \
             required.realRuntime of the chart), or make {} a symbolic link to it",
            link.display()
        )
    })
}

fn is_program(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
}

fn is_same(one: &Path, other: &Path) -> bool {
    let identity = |path| fs::metadata(path).ok().map(|file| (file.dev(), file.ino()));
    identity(one).is_some_and(|one| Some(one) == identity(other))
}

/// The sentence for a runtime that can't be executed.
pub(crate) fn cannot_run(real: &Path, error: &io::Error) -> String {
    format!("can't run the node's runtime {}: {error}", real.display())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    fn program(path: &Path) {
        fs::write(path, "").unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    #[test]
    fn a_call_goes_on_while_the_program_is_replaced() {
        for exe in [
            "/opt/pinfold/pinfold-runtime",
            "/opt/pinfold/pinfold-runtime (deleted)",
        ] {
            let own = installed(Path::new(exe));
            assert_eq!(own, Path::new("/opt/pinfold/pinfold-runtime"));
        }
        assert!(fs::metadata(installed(&fs::read_link("/proc/self/exe").unwrap())).is_ok());
    }

    #[test]
    fn the_link_counts_first_and_then_runc_before_crun() {
        let folder = tempfile::tempdir().unwrap();
        let (first, second) = (folder.path().join("first"), folder.path().join("second"));
        for folder in [&first, &second] {
            fs::create_dir(folder).unwrap();
        }
        let own = first.join("pinfold-runtime");
        program(&own);
        let folders = [PathBuf::from("relative"), first.clone(), second.clone()];
        assert!(among(&own, &folders).unwrap_err().contains("PATH"));
        program(&first.join("crun"));
        assert_eq!(among(&own, &folders).unwrap(), first.join("crun"));
        program(&second.join("runc"));
        assert_eq!(among(&own, &folders).unwrap(), second.join("runc"));
        // A node whose `runc` is this program has the real one further on.
        fs::hard_link(&own, first.join("runc")).unwrap();
        assert_eq!(among(&own, &folders).unwrap(), second.join("runc"));
        let link = first.join(LINK);
        std::os::unix::fs::symlink("crun", &link).unwrap();
        assert_eq!(among(&own, &folders).unwrap(), first.join("crun"));
        for (target, says) in [("nothing", "nowhere"), ("pinfold-runtime", "itself")] {
            fs::remove_file(&link).unwrap();
            std::os::unix::fs::symlink(target, &link).unwrap();
            assert!(among(&own, &folders).unwrap_err().contains(says), "{says}");
        }
    }
}
