//! Changes that a plugin asks for: [`ContainerAdjustment`] for a new container, [`CpuChange`] for
//! an existing one.

use std::collections::BTreeMap;

use super::proto::{self, Mount, OptionalInt64, OptionalUInt64};
use crate::cpu::CpuSet;

/// Changes to a container's CPUs. `None` and the empty set change nothing.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CpuChange {
    pub cpus: Option<CpuSet>,
    /// The NUMA nodes of the container's memory.
    pub mems: Option<CpuSet>,
    /// The quota. The pod's own cgroup keeps the kubelet's quota, which throttles too.
    pub quota: Option<QuotaChange>,
}

/// A CPU quota for each period.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QuotaChange {
    /// Microseconds of CPU time.
    pub quota: i64,
    /// The period in microseconds.
    pub period: u64,
}

/// Changes to a container that is being created. The default changes nothing.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ContainerAdjustment {
    /// Environment variables. They overwrite the container's, so leave out the names that it has.
    ///
    /// A name with a leading `-` would delete a variable. Such names are left out, for annotations
    /// too.
    pub env: BTreeMap<String, String>,
    /// Annotations of the container at the runtime. Kubernetes does not see them.
    pub annotations: BTreeMap<String, String>,
    /// Mounts that the container gets in addition.
    pub mounts: Vec<Mount>,
    pub cpu: CpuChange,
}

// === impl CpuChange ===

impl CpuChange {
    /// The message that changes an existing container; `None` for an empty change.
    pub(super) fn update_of(&self, container: &str) -> Option<proto::ContainerUpdate> {
        let resources = self.resources()?;
        Some(proto::ContainerUpdate {
            container_id: container.to_owned(),
            linux: Some(proto::LinuxContainerUpdate {
                resources: Some(resources),
            }),
        })
    }

    fn resources(&self) -> Option<proto::LinuxResources> {
        let list = |set: &Option<CpuSet>| set.as_ref().map(CpuSet::to_string).unwrap_or_default();
        let quota = self.quota.map(|limit| OptionalInt64 { value: limit.quota });
        let period = self.quota.map(|limit| OptionalUInt64 {
            value: limit.period,
        });
        let cpu = proto::LinuxCpu {
            quota,
            period,
            cpus: list(&self.cpus),
            mems: list(&self.mems),
            ..proto::LinuxCpu::default()
        };
        (cpu != proto::LinuxCpu::default()).then_some(proto::LinuxResources {
            cpu: Some(cpu),
            memory: None,
        })
    }
}

// === impl ContainerAdjustment ===

impl ContainerAdjustment {
    pub(super) fn into_proto(self) -> proto::ContainerAdjustment {
        let removes = |name: &str| name.starts_with('-');
        let linux = self
            .cpu
            .resources()
            .map(|resources| proto::LinuxContainerAdjustment {
                resources: Some(resources),
            });
        let env = self.env.into_iter().filter(|(key, _)| !removes(key));
        let annotations = self
            .annotations
            .into_iter()
            .filter(|(key, _)| !removes(key));
        proto::ContainerAdjustment {
            annotations: annotations.collect(),
            mounts: self.mounts,
            env: env
                .map(|(key, value)| proto::KeyValue { key, value })
                .collect(),
            linux,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unset_fields_are_not_sent() {
        let empty = CpuChange {
            cpus: Some(CpuSet::new()),
            mems: Some(CpuSet::new()),
            quota: None,
        };
        assert_eq!(CpuChange::default().update_of("1"), None);
        assert_eq!(empty.update_of("1"), None);
        assert_eq!(
            ContainerAdjustment::default().into_proto(),
            proto::ContainerAdjustment::default()
        );
    }

    #[test]
    fn quotas_are_encoded() {
        let quota = Some(QuotaChange {
            quota: 15_000,
            period: 100_000,
        });
        let limited = CpuChange {
            quota,
            ..CpuChange::default()
        };
        let cpu = limited.resources().and_then(|resources| resources.cpu);
        let expected = proto::LinuxCpu {
            quota: Some(OptionalInt64 { value: 15_000 }),
            period: Some(OptionalUInt64 { value: 100_000 }),
            ..proto::LinuxCpu::default()
        };
        assert_eq!(cpu, Some(expected));
    }

    #[test]
    fn names_with_a_leading_dash_are_left_out() {
        let pairs: BTreeMap<String, String> = [("-PATH", "x"), ("A", "1")]
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into();
        let adjustment = ContainerAdjustment {
            env: pairs.clone(),
            annotations: pairs,
            mounts: Vec::new(),
            cpu: CpuChange::default(),
        };
        let sent = adjustment.into_proto();
        assert_eq!(
            (sent.env.len(), sent.annotations.len(), sent.linux),
            (1, 1, None)
        );
        assert_eq!(
            (sent.env[0].key.as_str(), sent.env[0].value.as_str()),
            ("A", "1")
        );
    }
}
