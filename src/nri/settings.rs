//! [`PluginSettings`]: the name, the socket and the times of a plugin.

use std::path::PathBuf;
use std::time::Duration;

/// Where runtimes listen.
pub const SOCKET: &str = "/var/run/nri/nri.sock";

/// How the plugin presents itself, and how patient it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PluginSettings {
    /// The runtime's socket.
    pub socket: PathBuf,
    /// The plugin's name: letters, digits, `-`, `_` and `.`.
    pub name: String,
    /// Its place among the runtime's plugins, 0 to 99: those with a lower one are asked first.
    pub index: u8,
    /// How long the runtime may take for the registration, and then for the first question.
    pub registration_timeout: Duration,
    /// How long a runtime waits for an answer if it does not tell. A handler has three quarters of it.
    pub request_timeout: Duration,
    /// The least and the most time between two attempts; it doubles from one to the other.
    pub backoff: (Duration, Duration),
}

/// Settings that no runtime would accept.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PluginSettingsError {
    /// A name that is none.
    #[error("{0:?} is no name for an NRI plugin: use letters, digits, - _ and ., at least one")]
    Name(String),
    /// An index with more than two digits.
    #[error("{0} is no index for an NRI plugin: use 0 to 99")]
    Index(u8),
}

// === impl PluginSettings ===

impl PluginSettings {
    /// A plugin of this name and place, at the usual socket, with NRI's usual times.
    ///
    /// # Errors
    /// The name or the index is one that runtimes refuse.
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
    fn names_and_places_are_those_that_runtimes_take() {
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
