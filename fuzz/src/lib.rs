//! Shared code of the fuzz targets. Each target is a program in `bin`; `fuzz/run` builds and runs the targets.

mod places;
mod tree;

pub use places::{check_groups, check_places};
pub use tree::{Node, Tree, files};

/// The input as text; `None` for input that no text file can hold.
pub fn text(data: &[u8]) -> Option<&str> {
    std::str::from_utf8(data).ok()
}

/// An error's message must not be empty, and formatting must not panic.
pub fn says_why(error: &dyn std::error::Error) {
    assert!(!error.to_string().is_empty());
    let mut source = error.source();
    while let Some(inner) = source {
        assert!(!inner.to_string().is_empty());
        source = inner.source();
    }
}
