//! Keys and environment variables of earlier versions. A configuration with such a name is refused, with the new name.

use serde_json::Value;

/// The old and the new name of each renamed key. A dot separates the levels.
const RENAMED: [(&str, &str); 11] = [
    ("root", "rootDir"),
    ("cgroupRoot", "cgroupDir"),
    ("trees", "podCgroups"),
    ("pods", "manifestDir"),
    (
        "reconcileSeconds",
        "reconcileInterval (a duration, like 10s)",
    ),
    ("movesPerHour", "maxMovesPerHour"),
    ("quiet", "cpuIsolation"),
    ("metrics.sharedCounters", "metrics.maxSharedCounters"),
    (
        "metrics.connections",
        "metrics.connectionInterval (a duration, like 30s)",
    ),
    ("metrics.peers", "metrics.maxPeers"),
    ("cpus.near-devices", "cpus.nearDevices"),
];

/// The old and the new name of each renamed environment variable.
const RENAMED_VARIABLES: [(&str, &str); 9] = [
    ("PINFOLD_ROOT", "PINFOLD_ROOT_DIR"),
    ("PINFOLD_CGROUP_ROOT", "PINFOLD_CGROUP_DIR"),
    ("PINFOLD_TREES", "PINFOLD_POD_CGROUPS"),
    ("PINFOLD_PODS", "PINFOLD_MANIFEST_DIR"),
    (
        "PINFOLD_RECONCILE_SECONDS",
        "PINFOLD_RECONCILE_INTERVAL (a duration, like 10s)",
    ),
    ("PINFOLD_SHARED_COUNTERS", "PINFOLD_MAX_SHARED_COUNTERS"),
    (
        "PINFOLD_CONNECTIONS",
        "PINFOLD_CONNECTION_INTERVAL (a duration, like 30s)",
    ),
    ("PINFOLD_PEERS", "PINFOLD_MAX_PEERS"),
    ("PINFOLD_LOG", "PINFOLD_LOG_LEVEL"),
];

/// Refuses an environment that has a renamed variable.
///
/// # Errors
/// The environment has such a variable with a value.
pub(super) fn check_environment() -> anyhow::Result<()> {
    let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    let old: Vec<String> = RENAMED_VARIABLES
        .iter()
        .filter(|(before, _)| is_set(before))
        .map(|(before, after)| format!("the variable {before} has a new name: write {after}"))
        .collect();
    anyhow::ensure!(old.is_empty(), "{}", old.join("; "));
    Ok(())
}

/// Refuses a configuration that has a renamed key.
///
/// # Errors
/// The text has a renamed key. A text that is no YAML passes: the parser of the configuration names the mistake.
pub(super) fn check(text: &str) -> anyhow::Result<()> {
    let Ok(Some(document)) = serde_saphyr::from_str::<Option<Value>>(text) else {
        return Ok(());
    };
    let mut old = Vec::new();
    for (before, after) in RENAMED {
        let pointer = format!("/{}", before.replace('.', "/"));
        if document.pointer(&pointer).is_some() {
            old.push(format!("the key {before} has a new name: write {after}"));
        }
    }
    anyhow::ensure!(old.is_empty(), "{}", old.join("; "));
    Ok(())
}
