//! How results are printed: tables for people, JSON for programs.

use clap::ValueEnum;

/// The form of what a command prints.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(crate) enum Format {
    /// For people: tables and drawings, coloured when the output is a terminal.
    #[default]
    Text,
    /// For programs: one JSON document.
    Json,
}
