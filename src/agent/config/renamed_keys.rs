//! Keys of earlier versions. A configuration with such a key is refused, with the name of the new key.

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
