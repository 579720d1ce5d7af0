//! How the kubelet and the container runtimes name cgroups.
//!
//! | driver | pod | container |
//! |---|---|---|
//! | cgroupfs | `kubepods[/burstable\|/besteffort]/pod<uid>` | `<id>` |
//! | systemd | `kubepods.slice[/kubepods-burstable.slice]/kubepods-burstable-pod<uid, _ for ->.slice` | `cri-containerd-<id>.scope`, `crio-<id>.scope`, `docker-<id>.scope` |
//!
//! With the kubelet's node partitions (KEP-5894, alpha in Kubernetes 1.37), system pods lie one level deeper, below
//! `kubepods/system` or `kubepods.slice/kubepods-system.slice`, with the same names and QoS classes there.

/// How many levels of cgroups lie between the pods' tree and a pod: the system group and the QoS class.
pub(super) const LEVELS_ABOVE_PODS: usize = 2;

/// The meaning of a cgroup directory below the pods' tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum PodTreeEntry {
    /// The cgroup of a QoS class or of the system pods: pods lie below it.
    Class,
    /// A pod's cgroup.
    Pod {
        /// The pod's uid as the API writes it (or the hash of a static pod).
        uid: String,
    },
    Other,
}

const SYSTEM: &str = "system";

/// How the names of the slices between the pods' tree and pods end.
const SLICES_ABOVE_PODS: [&str; 3] = ["-burstable.slice", "-besteffort.slice", "-system.slice"];

/// Whether the cgroup is the group of the system pods, which has QoS classes of its own.
pub(super) fn is_system_group(name: &str) -> bool {
    name == SYSTEM || name.ends_with("-system.slice")
}

/// The meaning of a directory directly below the pods' tree, or below a QoS class in it.
pub(super) fn entry(name: &str) -> PodTreeEntry {
    if matches!(name, "burstable" | "besteffort" | "guaranteed" | SYSTEM) {
        return PodTreeEntry::Class;
    }
    let uid = match name.strip_suffix(".slice") {
        None => name.strip_prefix("pod").map(str::to_owned),
        // systemd names a slice by its whole path: `kubepods-burstable-pod1234.slice`.
        Some(slice) => slice
            .rsplit_once("-pod")
            .map(|(_, uid)| uid.replace('_', "-")),
    };
    match uid.filter(|uid| !uid.is_empty()) {
        Some(uid) => PodTreeEntry::Pod { uid },
        None if SLICES_ABOVE_PODS.iter().any(|end| name.ends_with(end)) => PodTreeEntry::Class,
        None => PodTreeEntry::Other,
    }
}

/// The possible paths of a pod's cgroup: one for each QoS class, in the naming of the tree's
/// driver.
pub(super) fn pod_paths(tree: &str, uid: &str) -> [String; 3] {
    let name = tree.rsplit_once('/').map_or(tree, |(_, name)| name);
    let classes = ["", "burstable", "besteffort"];
    let Some(base) = name.strip_suffix(".slice") else {
        return classes.map(|class| match class {
            "" => format!("{tree}/pod{uid}"),
            class => format!("{tree}/{class}/pod{uid}"),
        });
    };
    let uid = uid.replace('-', "_");
    classes.map(|class| match class {
        "" => format!("{tree}/{base}-pod{uid}.slice"),
        class => format!("{tree}/{base}-{class}.slice/{base}-{class}-pod{uid}.slice"),
    })
}

/// The runtime's container id in the name of a directory directly below a pod's cgroup.
///
/// `None` for a directory without a container, such as CRI-O's `crio-conmon-<id>.scope` and
/// systemd's own mounts.
pub(super) fn container_id(name: &str) -> Option<&str> {
    if let Some(scope) = name.strip_suffix(".scope") {
        let id = scope.rsplit_once('-').map_or(scope, |(_, id)| id);
        return (!scope.contains("conmon") && !id.is_empty()).then_some(id);
    }
    if let Some(id) = name.strip_prefix("crio-") {
        return (!id.starts_with("conmon-") && !id.is_empty()).then_some(id);
    }
    (!name.contains('.') && !name.is_empty()).then_some(name)
}

/// Whether a path is that of a container's cgroup, directly below a pod's cgroup.
pub(super) fn is_container(path: &str) -> bool {
    let Some((pod, name)) = path.rsplit_once('/') else {
        return false;
    };
    let pod = pod.rsplit_once('/').map_or(pod, |(_, pod)| pod);
    matches!(entry(pod), PodTreeEntry::Pod { .. }) && container_id(name).is_some()
}

/// Whether a cgroup lies below another one.
pub fn is_below(path: &str, above: &str) -> bool {
    path.strip_prefix(above)
        .is_some_and(|rest| rest.starts_with('/'))
}

/// Whether a cgroup is the cgroup `top` or lies below it.
pub fn is_within(path: &str, top: &str) -> bool {
    path == top || is_below(path, top)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_longer_name_is_not_below() {
        for (path, below, within) in [
            ("a/b", true, true),
            ("a/b/c", true, true),
            ("a", false, true),
            ("ab", false, false),
            ("b/a", false, false),
            ("", false, false),
        ] {
            assert_eq!(
                (is_below(path, "a"), is_within(path, "a")),
                (below, within),
                "{path}"
            );
        }
    }

    fn pod(uid: &str) -> PodTreeEntry {
        PodTreeEntry::Pod {
            uid: uid.to_owned(),
        }
    }

    #[test]
    fn both_drivers_name_pods() {
        assert_eq!(entry("burstable"), PodTreeEntry::Class);
        assert_eq!(entry("kubepods-besteffort.slice"), PodTreeEntry::Class);
        for system in [
            "system",
            "kubepods-system.slice",
            "kubepods-system-burstable.slice",
        ] {
            assert_eq!(entry(system), PodTreeEntry::Class, "{system}");
        }
        assert_eq!(entry("kubepods-system-burstable-pod1_2.slice"), pod("1-2"));
        let uid = "8f0d6986-3554-402b-8223-2d69f320df15";
        assert_eq!(entry("pod8f0d6986-3554-402b-8223-2d69f320df15"), pod(uid));
        assert_eq!(
            entry("kubepods-pod8f0d6986_3554_402b_8223_2d69f320df15.slice"),
            pod(uid)
        );
        assert_eq!(
            entry("kubepods-burstable-pod8f0d6986_3554_402b_8223_2d69f320df15.slice"),
            pod(uid)
        );
        assert_eq!(entry("kubelet-kubepods-podabc.slice"), pod("abc"));
        assert_eq!(
            entry("pod1a2b3c4d5e6f77889900aabbccddeeff"),
            pod("1a2b3c4d5e6f77889900aabbccddeeff")
        );
        for other in ["pod", "kubepods-pod.slice", "system.slice", "x", ""] {
            assert_eq!(entry(other), PodTreeEntry::Other, "{other}");
        }
    }

    #[test]
    fn pods_are_found_where_both_drivers_put_them() {
        let uid = "8f0d6986-3554-402b-8223-2d69f320df15";
        for tree in [
            "kubepods",
            "a/kubepods",
            "kubepods.slice",
            "kubelet.slice/kubelet-kubepods.slice",
        ] {
            for path in pod_paths(tree, uid) {
                let below = path.strip_prefix(tree).unwrap().strip_prefix('/').unwrap();
                let (class, name) = below.rsplit_once('/').unzip();
                assert_eq!(
                    class.map_or(PodTreeEntry::Class, entry),
                    PodTreeEntry::Class,
                    "{path}"
                );
                assert_eq!(entry(name.unwrap_or(below)), pod(uid), "{path}");
            }
        }
        let [_, burstable, _] = pod_paths("kubelet.slice/kubelet-kubepods.slice", "1-2");
        assert_eq!(
            burstable,
            "kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice/kubelet-kubepods-burstable-pod1_2.slice"
        );
    }

    #[test]
    fn runtimes_name_containers() {
        for name in [
            "c0ffee",
            "cri-containerd-c0ffee.scope",
            "crio-c0ffee.scope",
            "docker-c0ffee.scope",
            "crio-c0ffee",
        ] {
            assert_eq!(container_id(name), Some("c0ffee"), "{name}");
        }
        for name in [
            "crio-conmon-c0ffee.scope",
            "crio-conmon-c0ffee",
            "dev-hugepages.mount",
            "",
            ".scope",
        ] {
            assert_eq!(container_id(name), None, "{name}");
        }
    }
}
