//! The CPU controller's quota, on both cgroup versions.

use std::io::{Error, ErrorKind};
use std::path::{Path, PathBuf};

use cgroups_rs::fs::cpu::CpuController;

use super::model::{CgroupError, Cgroups, Quota, Result, Version};
use crate::host::file::read_value_optional;

// === impl Cgroups ===

impl Cgroups {
    /// Reads the CFS quota of a cgroup; `None` without a CPU controller.
    pub fn quota(&self, path: &str) -> Result<Option<Quota>> {
        let Some(cpu) = &self.cpu else {
            return Ok(None);
        };
        read(&cpu.join(path), self.cpu_version())
    }

    /// Writes the CFS quota of a cgroup.
    pub fn set_quota(&self, path: &str, quota: Quota) -> Result<()> {
        let Some(cpu) = &self.cpu else { return Ok(()) };
        write(&cpu.join(path), self.cpu_version(), quota)
    }
}

/// The file whose existence shows that a cgroup has a quota.
fn file(version: Version) -> &'static str {
    match version {
        Version::V1 => "cpu.cfs_quota_us",
        Version::V2 => "cpu.max",
    }
}

/// Reads the quota of the cgroup at `path`; `None` for a cgroup without a CPU controller.
fn read(path: &Path, version: Version) -> Result<Option<Quota>> {
    // The crate `cgroups-rs` would need three times as many calls, for every cgroup in every reconcile pass.
    let read = |name: &str| {
        read_value_optional(&path.join(name)).map_err(|error| failed("read", path, error))
    };
    let Some(limit) = read(file(version))? else {
        return Ok(None);
    };
    let (quota, period) = match version {
        Version::V1 => (limit, read("cpu.cfs_period_us")?),
        Version::V2 => {
            let mut words = limit.split_whitespace().map(str::to_owned);
            (words.next().unwrap_or_default(), words.next())
        }
    };
    let Some(period) = period.and_then(|period| period.parse().ok()) else {
        return Err(failed("read", path, "it has no period"));
    };
    // "No limit" is −1 on v1 and a word on v2.
    let quota = match quota.as_str() {
        "-1" | "max" => None,
        number => Some(
            number
                .parse()
                .map_err(|error| failed("read", path, error))?,
        ),
    };
    Ok(Some(Quota { quota, period }))
}

/// Writes the quota of the cgroup at `path`.
///
/// The file must exist: `cgroups-rs` would create a missing file, even in a directory without a cgroup.
fn write(path: &Path, version: Version, quota: Quota) -> Result<()> {
    if !path.join(file(version)).exists() {
        return Err(failed("write", path, Error::from(ErrorKind::NotFound)));
    }
    let limit = match quota.quota {
        Some(quota) => i64::try_from(quota).unwrap_or(i64::MAX),
        None => -1,
    };
    // With an empty root, the controller works on exactly the given directory.
    CpuController::new(path.to_owned(), PathBuf::new(), version == Version::V2)
        .set_cfs_quota_and_period(Some(limit), Some(quota.period))
        .map_err(|source| failed("write", path, source))
}

fn failed(
    operation: &'static str,
    path: &Path,
    source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
) -> CgroupError {
    CgroupError::Quota {
        operation,
        path: path.to_owned(),
        is_gone: !path.exists(),
        source: source.into(),
    }
}
