//! Durations as people write them in configurations and options.

use std::time::Duration;

use serde::{Deserialize, Deserializer, Serializer};

/// Reads a duration like `30s`, `500ms` or `1m 30s`.
///
/// # Errors
/// The text has no unit, is negative, or is no duration.
pub fn read(text: &str) -> Result<Duration, String> {
    let parsed = text.parse::<jiff::SignedDuration>();
    let parsed = parsed
        .ok()
        .and_then(|duration| Duration::try_from(duration).ok());
    parsed.ok_or_else(|| "write a duration with a unit, like 30s, 500ms or 5m".to_owned())
}

/// A duration as [`read`] reads it.
pub fn written(duration: Duration) -> String {
    jiff::SignedDuration::try_from(duration).map_or_else(
        |_| format!("{duration:?}"),
        |duration| format!("{duration:#}"),
    )
}

/// Reads a duration of whole seconds, at most a day.
///
/// # Errors
/// As for [`read`]; a part of a second; more than a day.
pub fn read_seconds(text: &str) -> Result<u32, String> {
    let duration = read(text)?;
    let seconds = u32::try_from(duration.as_secs())
        .ok()
        .filter(|seconds| *seconds <= 86_400 && duration.subsec_nanos() == 0);
    seconds.ok_or_else(|| "write whole seconds, minutes or hours, at most 24h".to_owned())
}

/// Reads a duration of a configuration file, for `#[serde(with)]`.
///
/// # Errors
/// As for [`read`]; the value is no text.
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    read(&String::deserialize(deserializer)?).map_err(serde::de::Error::custom)
}

/// Writes a duration into a configuration file, for `#[serde(with)]`.
///
/// # Errors
/// Those of the serializer.
pub fn serialize<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&written(*duration))
}
