//! Texts as values: documents, durations, numbers with units, metrics, drawings, and what is safe on a terminal.

#![warn(clippy::too_many_lines, clippy::excessive_nesting)]

pub mod document;
pub mod duration;
#[cfg(any(feature = "top", feature = "demo", feature = "bench"))]
pub(crate) mod exposition;
#[cfg(any(feature = "bench", feature = "experiments"))]
pub(crate) mod svg;
pub mod terminal;
pub mod units;

pub use units::counted;
