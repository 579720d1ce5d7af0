//! [`interval`]: the value of the options `--interval` and `--timeout`.

use std::time::Duration;

/// Reads an interval or a timeout from 1 s to 24 h.
pub(super) fn interval(text: &str) -> Result<Duration, String> {
    let seconds = crate::text::duration::read_seconds(text)?;
    if seconds == 0 {
        return Err("write 1s or more".to_owned());
    }
    Ok(Duration::from_secs(seconds.into()))
}
