//! [`RuntimeNumbers`]: how it stands with the container runtime.

use prometheus::proto::MetricFamily;

use super::collect::Board;
use super::families::RUNTIME_FAMILIES;

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
    pub(super) fn gather(&self) -> prometheus::Result<Vec<MetricFamily>> {
        let board = Board::new(RUNTIME_FAMILIES)?;
        board.set("pinfold_nri_synchronized", &[], f64::from(u8::from(self.synchronized)))?;
        if !self.name.is_empty() {
            board.set("pinfold_nri_runtime_info", &[&self.name, &self.version], 1.0)?;
        }
        Ok(board.gather())
    }
}
