//! Texts as values: documents, durations, numbers with units, metrics, drawings, and what is safe on a terminal.

#![warn(clippy::too_many_lines, clippy::excessive_nesting)]

pub(crate) mod connection;
pub mod document;
pub mod duration;
#[cfg(any(feature = "top", feature = "demo", feature = "bench"))]
pub(crate) mod exposition;
#[cfg(feature = "experiments")]
pub(crate) mod markdown;
mod nearest;
pub(crate) mod parse_errors;
#[cfg(feature = "experiments")]
pub(crate) mod sentence;
#[cfg(feature = "bench")]
pub(crate) mod svg;
pub(crate) mod table;
pub mod terminal;
pub mod units;
pub mod values;

pub use nearest::nearest;
pub use units::counted;
