//! [`Faults`]: the reasons why no cluster is rendered.

use std::fmt;

/// The reasons why no cluster is rendered: all missing and impossible settings.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Faults(pub(super) Vec<String>);

// === impl Faults ===

impl Faults {
    pub(super) fn say(&mut self, what: String) {
        self.0.push(what);
    }

    /// The faults, in words.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(String::as_str)
    }
}

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join("\n"))
    }
}

impl std::error::Error for Faults {}
