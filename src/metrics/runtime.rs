//! [`RuntimeNumbers`]: how it stands with the container runtime.

use super::families::{NRI_RUNTIME_INFO, NRI_SYNCHRONIZED};
use super::page::Page;

/// How it stands with the container runtime; what it has not said is empty.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RuntimeNumbers {
    /// Whether it asks us about every container.
    pub synchronized: bool,
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: String,
}

// === impl RuntimeNumbers ===

impl RuntimeNumbers {
    pub(super) fn write(&self, page: &mut Page) {
        page.add_one(&NRI_SYNCHRONIZED, self.synchronized);
        if !self.name.is_empty() {
            page.add_info(
                &NRI_RUNTIME_INFO,
                &[("name", &self.name), ("version", &self.version)],
            );
        }
    }
}
