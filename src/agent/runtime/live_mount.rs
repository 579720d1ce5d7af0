//! [`LiveMounts`]: the mount of a container's live files.

use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use crate::agent::live_files::MOUNT;
use crate::nri::{Container, Mount};

/// How many of the containers that the log has named are remembered. Each is logged once.
const REMEMBERED: usize = 1000;

/// The options of the mount. A change in the container's mounts never reaches the host's, and nothing in the folder can run.
const OPTIONS: [&str; 6] = ["bind", "ro", "nosuid", "nodev", "noexec", "rprivate"];

/// The mounts of live files. Remembers which containers the log has named because they get none.
#[derive(Debug, Default)]
pub(super) struct LiveMounts {
    noted: Mutex<BTreeSet<(String, String)>>,
}

// === impl LiveMounts ===

impl LiveMounts {
    /// The mount of a container's folder, if it has one. A container that has its own volume there gets none: the pod's author
    /// decides what the path means, and the runtime would make a folder in a volume at `/run`.
    pub(super) fn of(&self, container: &Container, folder: Option<&Path>) -> Vec<Mount> {
        let Some(folder) = folder.and_then(Path::to_str) else {
            return Vec::new();
        };
        if let Some(own) = Self::own_volume(container) {
            self.note(container, &own.destination);
            return Vec::new();
        }
        vec![Mount {
            destination: MOUNT.to_owned(),
            kind: "bind".to_owned(),
            source: folder.to_owned(),
            options: OPTIONS.map(str::to_owned).to_vec(),
        }]
    }

    /// The volume that the container has where its folder would be mounted.
    pub(super) fn own_volume(container: &Container) -> Option<&Mount> {
        container.mounts.iter().find(|mount| is_in_the_way(mount))
    }

    /// Logs once that a container of a pod gets no mount, however often it restarts.
    fn note(&self, container: &Container, destination: &str) {
        let mut noted = self.noted.lock().unwrap_or_else(PoisonError::into_inner);
        if noted.len() >= REMEMBERED {
            noted.clear();
        }
        let key = (container.pod_sandbox_id.clone(), container.name.clone());
        if noted.insert(key) {
            tracing::info!(
                "container {} of sandbox {} mounts a volume at {destination}, so it gets no live files at {MOUNT}",
                container.name,
                container.pod_sandbox_id
            );
        }
    }
}

/// Whether a volume is mounted at the folder's path, above it or below it. Some images have a link from `/var/run` to `/run`.
/// A temporary file system at `/run` is the runtime's own, and empty.
fn is_in_the_way(mount: &Mount) -> bool {
    // Kubernetes leaves `//`, `/.` and `/..` in a path.
    let mut at = PathBuf::new();
    for part in Path::new(&mount.destination).components() {
        match part {
            Component::Normal(name) => at.push(name),
            Component::ParentDir => drop(at.pop()),
            _ => {}
        }
    }
    let at = at.strip_prefix("var").unwrap_or(&at);
    let folder = Path::new(MOUNT.trim_start_matches('/'));
    at.starts_with(folder) || at == Path::new("run") && mount.kind != "tmpfs"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mounts(destination: &str, kind: &str) -> Vec<Mount> {
        let own = Mount {
            destination: destination.to_owned(),
            kind: kind.to_owned(),
            ..Mount::default()
        };
        let container = Container {
            name: "main".to_owned(),
            mounts: vec![own],
            ..Container::default()
        };
        let mounts = LiveMounts::default();
        assert_eq!(mounts.of(&container, None), []);
        mounts.of(
            &container,
            Some(Path::new("/run/pinfold/containers/u/main")),
        )
    }

    #[test]
    fn the_folder_is_mounted_without_any_right_to_write() {
        let [mount] = <[Mount; 1]>::try_from(mounts("/data", "bind")).unwrap();
        assert_eq!(mount.destination, "/run/pinfold");
        assert_eq!(mount.source, "/run/pinfold/containers/u/main");
        assert!(mount.options.iter().any(|option| option == "ro"));
    }

    #[test]
    fn a_volume_of_the_pod_wins() {
        for own in [
            "/run/pinfold",
            "/run/pinfold/",
            "/run",
            "/var/run",
            "/run/pinfold/x",
            "/run//pinfold",
            "/run/./pinfold",
            "//run",
            "/x/../run/pinfold",
            "/../run/x/..",
        ] {
            assert_eq!(mounts(own, "bind"), [], "{own}");
        }
        for (other, kind) in [
            ("/run", "tmpfs"),
            ("/var/run/secrets/kubernetes.io/serviceaccount", "bind"),
            ("/run/pinfold2", "bind"),
            ("/runs", "bind"),
            ("/var", "bind"),
            ("/run/pinfold/../x", "bind"),
        ] {
            assert_eq!(mounts(other, kind).len(), 1, "{other}");
        }
    }
}
