//! How many CPUs the scheduler counts on this node: [`find`].

use std::path::Path;
use std::time::Duration;

use super::api::ClusterContext;
use super::config::Config;
use super::kubelet_config::KubeletConfig;
use crate::cluster::own_node;
use crate::cpu::CpuSet;
use crate::pod::quantity::cpu_millis;
use crate::pod::{Allocatable, AllocatableSource};

/// How long a command waits for the API server.
const PATIENCE: Duration = Duration::from_secs(3);

/// By the kubelet's configuration file of the machine below `root`, on which `online` CPUs are online; `None` without a readable
/// file.
pub fn of_kubelet_config(root: &Path, online: &CpuSet) -> Option<Allocatable> {
    by_config(&KubeletConfig::find(root)?.1, online)
}

fn by_config(config: &KubeletConfig, online: &CpuSet) -> Option<Allocatable> {
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
            let found = by_config(&KubeletConfig::parse(&text)?, &online)?;
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
    }
}
