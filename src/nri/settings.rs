//! [`PluginSettings`]: the name, the socket and the times of a plugin.

use std::path::PathBuf;
use std::time::Duration;

/// The default path of the runtime's socket.
pub const SOCKET: &str = "/var/run/nri/nri.sock";

/// The identity, the socket and the time limits of a plugin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PluginSettings {
    /// The runtime's socket.
    pub socket: PathBuf,
    /// The plugin's name: letters, digits, `-`, `_` and `.`.
    pub name: String,
    /// The plugin's position among the runtime's plugins, 0 to 99. The runtime calls lower positions first.
    pub index: u8,
    /// How long the runtime may take for the registration, and again for the first request.
    pub registration_timeout: Duration,
    /// How long a runtime waits for an answer, unless the runtime sends a limit. A handler has three quarters of
    /// the limit.
    pub request_timeout: Duration,
    /// The shortest and the longest wait between two attempts. Each wait is twice as long as the previous wait.
    pub backoff: (Duration, Duration),
}

/// Settings that every runtime refuses.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PluginSettingsError {
    /// An empty name, or a name with other characters.
    #[error(
        "{0:?} is not a valid name of an NRI plugin: use letters, digits, - _ and ., at least one"
    )]
    Name(String),
    /// An index with more than two digits.
    #[error("{0} is not a valid index of an NRI plugin: use 0 to 99")]
    Index(u8),
}

// === impl PluginSettings ===

impl PluginSettings {
    /// Settings for a plugin with a name and an index, with NRI's default socket and time limits.
    ///
    /// # Errors
    /// Runtimes refuse the name or the index.
    pub fn new(name: impl Into<String>, index: u8) -> Result<Self, PluginSettingsError> {
        let name = name.into();
        let is_allowed = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
        if name.is_empty() || !name.chars().all(is_allowed) {
            return Err(PluginSettingsError::Name(name));
        }
        if index > 99 {
            return Err(PluginSettingsError::Index(index));
        }
        Ok(Self {
            socket: PathBuf::from(SOCKET),
            name,
            index,
            registration_timeout: Duration::from_secs(5),
            request_timeout: Duration::from_secs(2),
            backoff: (Duration::from_millis(250), Duration::from_secs(5)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_indices_follow_the_rules_of_runtimes() {
        assert!(
            PluginSettings::new("pinfold", 0).is_ok() && PluginSettings::new("a-b_c.9", 99).is_ok()
        );
        for name in ["", "a b", "a/b", "é"] {
            assert_eq!(
                PluginSettings::new(name, 1),
                Err(PluginSettingsError::Name(name.to_owned()))
            );
        }
        assert_eq!(
            PluginSettings::new("pinfold", 100),
            Err(PluginSettingsError::Index(100))
        );
    }
}
