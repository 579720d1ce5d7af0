//! [`RuntimeNumbers`]: the connection to the container runtime.

use super::families::{NRI_RUNTIME_INFO, NRI_SYNCHRONIZED};
use super::page::Page;

/// The connection to the container runtime. An unknown value is empty.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RuntimeNumbers {
    /// Whether the runtime asks Pinfold about every container.
    pub synchronized: bool,
    /// The runtime's name.
    pub name: String,
    /// The runtime's version.
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
