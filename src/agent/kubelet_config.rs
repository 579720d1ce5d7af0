//! [`KubeletConfig`]: what the kubelet's configuration file says about CPUs.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use serde::Deserialize;

/// The usual places of the file, below the root: of kubeadm, and of Amazon's images.
const PLACES: [&str; 3] = [
    "var/lib/kubelet/config.yaml",
    "etc/kubernetes/kubelet/config.json",
    "etc/kubernetes/kubelet/kubelet-config.json",
];

/// The longest file that is read, in bytes.
const LONGEST: u64 = 1 << 20;

/// The keys of a KubeletConfiguration that are about CPUs.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", expecting = "a KubeletConfiguration")]
pub struct KubeletConfig {
    kind: String,
    cpu_manager_policy: Option<String>,
    #[serde(rename = "reservedSystemCPUs")]
    pub(super) reserved_system_cpus: Option<String>,
    pub(super) kube_reserved: Option<BTreeMap<String, String>>,
    pub(super) system_reserved: Option<BTreeMap<String, String>>,
}

// === impl KubeletConfig ===

impl KubeletConfig {
    /// The first readable file below `root`, and what it says.
    pub fn find(root: &Path) -> Option<(PathBuf, Self)> {
        PLACES.iter().find_map(|place| {
            let file = root.join(place);
            let config = Self::parse(&read(&file)?)?;
            Some((file, config))
        })
    }

    /// JSON is YAML, too. Another kind of document is no configuration.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let config: Self = serde_saphyr::from_str(text).ok()?;
        (config.kind == "KubeletConfiguration").then_some(config)
    }

    /// Whether the CPU Manager gives containers exclusive CPUs.
    pub fn assigns_cpus(&self) -> bool {
        self.cpu_manager_policy.as_deref() == Some("static")
    }
}

fn read(file: &Path) -> Option<String> {
    // Opening a pipe in place of the file would never end.
    if !file.metadata().ok()?.is_file() {
        return None;
    }
    let mut text = String::new();
    File::open(file)
        .ok()?
        .take(LONGEST)
        .read_to_string(&mut text)
        .ok()?;
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_lies_in_one_of_the_usual_places() {
        let root = tempfile::tempdir().unwrap();
        assert!(KubeletConfig::find(root.path()).is_none());
        let file = root.path().join("etc/kubernetes/kubelet/config.json");
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        let text = r#"{"kind": "KubeletConfiguration", "reservedSystemCPUs": "0", "cpuManagerPolicy": "static"}"#;
        std::fs::write(&file, text).unwrap();
        let (found, config) = KubeletConfig::find(root.path()).unwrap();
        assert_eq!(found, file);
        assert_eq!(config.reserved_system_cpus.as_deref(), Some("0"));
        assert!(config.assigns_cpus());
    }

    #[test]
    fn only_the_policy_static_assigns_cpus() {
        let assigns = |keys: &str| {
            let text = format!("kind: KubeletConfiguration\n{keys}\n");
            KubeletConfig::parse(&text).map(|config| config.assigns_cpus())
        };
        assert_eq!(assigns("cpuManagerPolicy: static"), Some(true));
        assert_eq!(assigns("cpuManagerPolicy: none"), Some(false));
        assert_eq!(assigns(""), Some(false));
        assert_eq!(assigns("cpuManagerPolicy: [static]"), None);
        for text in ["kind: ClusterConfiguration\n", "{", "", "kind: 7"] {
            assert!(KubeletConfig::parse(text).is_none(), "{text}");
        }
    }
}
