//! The CPU controller's quota, on both cgroup versions.

use std::fmt;
use std::path::{Path, PathBuf};

use cgroups_rs::fs::cpu::CpuController;
use serde::{Deserialize, Serialize};

use super::Version;
use crate::host::file::read_value_optional;

/// A CFS bandwidth limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quota {
    /// CPU time per period in microseconds; `None` for no limit.
    pub quota: Option<u64>,
    /// Length of a period in microseconds.
    pub period: u64,
}

/// The failure of reading or writing a quota.
#[derive(Debug, thiserror::Error)]
#[error("can't {operation} the CPU quota of cgroup {}", path.display())]
pub struct QuotaError {
    /// Whether the cgroup is gone.
    pub(super) gone: bool,
    operation: &'static str,
    path: PathBuf,
    source: Box<dyn std::error::Error + Send + Sync>,
}

impl fmt::Display for Quota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.quota {
            Some(quota) => write!(f, "{quota}/{}", self.period),
            None => f.write_str("none"),
        }
    }
}

/// The file whose existence shows that a cgroup has a quota.
pub(super) fn file(version: Version) -> &'static str {
    match version {
        Version::V1 => "cpu.cfs_quota_us",
        Version::V2 => "cpu.max",
    }
}

/// Reads the quota of the cgroup at `path`; `None` for a cgroup without a CPU controller.
pub(super) fn read(path: &Path, version: Version) -> Result<Option<Quota>, QuotaError> {
    // The library would need three times as many calls, for every cgroup in every reconcile pass.
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
/// The file must exist: the library would create a missing file, even in a directory without a cgroup.
pub(super) fn write(path: &Path, version: Version, quota: Quota) -> Result<(), QuotaError> {
    if !path.join(file(version)).exists() {
        return Err(failed(
            "write",
            path,
            std::io::Error::from(std::io::ErrorKind::NotFound),
        ));
    }
    let limit = match quota.quota {
        Some(quota) => i64::try_from(quota).unwrap_or(i64::MAX),
        None => -1,
    };
    controller(path, version)
        .set_cfs_quota_and_period(Some(limit), Some(quota.period))
        .map_err(|source| failed("write", path, source))
}

fn failed(
    operation: &'static str,
    path: &Path,
    source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
) -> QuotaError {
    QuotaError {
        gone: !path.exists(),
        operation,
        path: path.to_owned(),
        source: source.into(),
    }
}

fn controller(path: &Path, version: Version) -> CpuController {
    // With an empty root, the controller works on exactly the given directory.
    CpuController::new(path.to_owned(), PathBuf::new(), version == Version::V2)
}

/// The quota without its limit, and with the same period.
pub fn lifted(quota: Quota) -> Quota {
    Quota {
        quota: None,
        ..quota
    }
}
