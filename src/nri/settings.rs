//! [`PluginSettings`]: the name, the socket and the times of a plugin.

use std::path::PathBuf;
use std::time::Duration;

/// The default path of the runtime's socket.
pub const SOCKET: &str = "/var/run/nri/nri.sock";

/// The identity, the socket and the time limits of a plugin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PluginSettings {
    pub socket: PathBuf,
    /// The plugin's name: letters, digits, `-`, `_` and `.`.
    pub name: String,
    /// The plugin's position among the runtime's plugins, 0 to 99. The runtime calls lower positions first.
    pub index: u8,
    /// How long the runtime may take for the registration, and again for the first request.
    pub registration_timeout: Duration,
    /// How long a runtime waits for an answer, unless it sends a limit. A handler has three
    /// quarters of that.
    pub request_timeout: Duration,
    /// The shortest and the longest wait between two attempts. Each wait is twice as long as the
    /// one before.
    pub backoff: (Duration, Duration),
    /// The wait after the plugin has refused the runtime's list repeatedly.
    pub refusal_wait: Duration,
}

// === impl PluginSettings ===

impl PluginSettings {
    /// Settings for a plugin with a name and an index, with NRI's default socket and time limits.
    pub fn new(name: &str, index: u8) -> Self {
        Self {
            socket: PathBuf::from(SOCKET),
            name: name.to_owned(),
            index,
            registration_timeout: Duration::from_secs(5),
            request_timeout: Duration::from_secs(2),
            backoff: (Duration::from_millis(250), Duration::from_secs(5)),
            refusal_wait: Duration::from_secs(120),
        }
    }
}
