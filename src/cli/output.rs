//! How results are printed: tables for people, JSON for programs, and a quiet end when the reader has seen enough.

use std::io::{self, Write};

use anyhow::Context;
use clap::ValueEnum;
use comfy_table::{ContentArrangement, Table, presets};
use serde::Serialize;

/// The form of a command's output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(crate) enum OutputFormat {
    /// For people: tables and drawings, coloured when the output is a terminal.
    #[default]
    Text,
    /// For programs: a JSON document.
    Json,
}

/// Prints a text with a newline at its end.
pub(crate) fn emit(text: &str) -> anyhow::Result<()> {
    let newline = if text.ends_with('\n') { "" } else { "\n" };
    match write!(io::stdout(), "{text}{newline}") {
        // The reader of a pipe, such as `head`, may close the pipe early.
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(error).context("can't write the output")
        }
        _ => Ok(()),
    }
}

/// Prints a value as a JSON document.
pub(crate) fn json(value: &impl Serialize) -> anyhow::Result<()> {
    emit(&serde_json::to_string(value).context("can't write the answer as JSON")?)
}

/// A plain table with headings.
pub(crate) fn table(headings: &[&str]) -> Table {
    let mut table = Table::new();
    table
        .load_style(presets::NOTHING)
        .set_content_arrangement(ContentArrangement::Dynamic);
    // Piped text has no width limit.
    let width = if console::Term::stdout().is_term() {
        console::Term::stdout().size().1
    } else {
        160
    };
    table.set_width(width);
    table.set_header(headings.to_vec());
    table
}
