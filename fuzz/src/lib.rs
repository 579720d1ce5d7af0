//! What several fuzz targets share. Each target is a program in `bin`; `fuzz/run` builds and runs them.

mod places;
mod tree;

pub use places::{check_groups, check_places};
pub use tree::{Node, Tree, files};

/// The input as text; `None` for what no file of text holds.
pub fn text(data: &[u8]) -> Option<&str> {
    std::str::from_utf8(data).ok()
}

/// An error must say something, and must not panic while it does.
pub fn says_why(error: &dyn std::error::Error) {
    assert!(!error.to_string().is_empty());
    let mut source = error.source();
    while let Some(inner) = source {
        assert!(!inner.to_string().is_empty());
        source = inner.source();
    }
}
