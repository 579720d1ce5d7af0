//! How many CPUs the scheduler counts on this node: [`find`].

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::time::Duration;

use serde::Deserialize;

use super::api::ClusterContext;
use super::config::Config;
use crate::cluster::own_node;
use crate::cpu::CpuSet;
use crate::pod::quantity::cpu_millis;
use crate::pod::{Allocatable, AllocatableSource};

/// The usual places of the kubelet's configuration, below the root: of kubeadm, and of Amazon's images.
const KUBELET_CONFIGS: [&str; 3] = [
    "var/lib/kubelet/config.yaml",
    "etc/kubernetes/kubelet/config.json",
    "etc/kubernetes/kubelet/kubelet-config.json",
];

/// The longest configuration that is read, in bytes.
const LONGEST: u64 = 1 << 20;

/// How long a command waits for the API server.
const PATIENCE: Duration = Duration::from_secs(3);

/// The keys of a KubeletConfiguration that decide about allocatable CPUs.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", expecting = "a KubeletConfiguration")]
struct KubeletConfig {
    kind: Option<String>,
    #[serde(rename = "reservedSystemCPUs")]
    reserved_system_cpus: Option<String>,
    kube_reserved: Option<BTreeMap<String, String>>,
    system_reserved: Option<BTreeMap<String, String>>,
}

/// By the kubelet's configuration file of the machine below `root`, on which `online` CPUs are online; `None` without a readable
/// file.
pub fn of_kubelet_config(root: &Path, online: &CpuSet) -> Option<Allocatable> {
    let files = KUBELET_CONFIGS.iter().map(|path| root.join(path));
    let texts = files.filter_map(|file| read(&file));
    texts.filter_map(|text| by_config(&text, online)).next()
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

fn by_config(text: &str, online: &CpuSet) -> Option<Allocatable> {
    // JSON is YAML, too.
    let config: KubeletConfig = serde_saphyr::from_str(text).ok()?;
    if config.kind.as_deref() != Some("KubeletConfiguration") {
        return None;
    }
    let listed: CpuSet = match config.reserved_system_cpus.as_deref() {
        Some(list) => list.parse().ok()?,
        None => CpuSet::new(),
    };
    let capacity = thousands(online.len());
    let (reserved, source) = if listed.is_empty() {
        let amounts = [&config.kube_reserved, &config.system_reserved];
        let amounts = amounts.into_iter().flatten();
        let cpus = amounts.filter_map(|amounts| amounts.get("cpu"));
        let reserved = cpus.map(|cpu| cpu_millis(cpu).ok()).sum::<Option<u64>>()?;
        (reserved, AllocatableSource::KubeletConfig)
    } else {
        (
            thousands(listed.len()),
            AllocatableSource::ReservedSystemCpus,
        )
    };
    Some(Allocatable {
        millicores: capacity.saturating_sub(reserved),
        capacity: Some(capacity),
        source,
    })
}

fn thousands(cpus: usize) -> u64 {
    u64::try_from(cpus).unwrap_or(u64::MAX).saturating_mul(1000)
}

/// As the API server says if the configuration uses it and it answers soon, else by the kubelet's configuration file.
pub async fn find(config: &Config, online: &CpuSet) -> Option<Allocatable> {
    let ask = async {
        let environment = |name: &str| std::env::var(name).ok();
        let context = ClusterContext::open(config, environment).await.ok()??;
        let node = own_node::read(&context.api, &context.node).await.ok()??;
        node.allocatable()
    };
    match tokio::time::timeout(PATIENCE, ask).await {
        Ok(Some(allocatable)) => Some(allocatable),
        Ok(None) | Err(_) => of_kubelet_config(&config.root_dir, online),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kubelets_configuration_tells_what_it_reserves() {
        let online: CpuSet = "0-39".parse().unwrap();
        let of = |keys: &str| {
            let text = format!(
                "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n{keys}\n"
            );
            let found = by_config(&text, &online)?;
            Some((found.millicores, found.source))
        };
        let amounts = AllocatableSource::KubeletConfig;
        let list = AllocatableSource::ReservedSystemCpus;
        for (keys, allocatable) in [
            ("", Some((40_000, amounts))),
            ("reservedSystemCPUs: \"\"", Some((40_000, amounts))),
            (
                "kubeReserved: {cpu: 100m, memory: 1Gi}\nsystemReserved: {cpu: \"1\"}",
                Some((38_900, amounts)),
            ),
            (
                "reservedSystemCPUs: 0-1,20\nsystemReserved: {cpu: \"9\"}",
                Some((37_000, list)),
            ),
            ("systemReserved: {cpu: \"99\"}", Some((0, amounts))),
            ("systemReserved: {cpu: many}", None),
            ("reservedSystemCPUs: all", None),
        ] {
            assert_eq!(of(keys), allocatable, "{keys}");
        }
        assert_eq!(by_config("kind: ClusterConfiguration\n", &online), None);
        assert_eq!(by_config("{", &online), None);
        assert_eq!(by_config("", &online), None);
    }

    #[test]
    fn the_file_lies_in_one_of_the_usual_places() {
        let root = tempfile::tempdir().unwrap();
        let online: CpuSet = "0-3".parse().unwrap();
        assert_eq!(of_kubelet_config(root.path(), &online), None);
        let folder = root.path().join("etc/kubernetes/kubelet");
        std::fs::create_dir_all(&folder).unwrap();
        let text = r#"{"kind": "KubeletConfiguration", "reservedSystemCPUs": "0"}"#;
        std::fs::write(folder.join("config.json"), text).unwrap();
        let found = of_kubelet_config(root.path(), &online).unwrap();
        assert_eq!(found.millicores, 3000);
    }
}
