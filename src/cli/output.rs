//! How results are printed: lines and tables for people, JSON for programs, and a quiet end when the reader has seen enough.
//!
//! All output leaves through this module, and here texts of others become safe: what a pod's
//! author, a file or a server wrote can neither act on the terminal nor look like a line of its
//! own. The rest of the commands needn't think of it.

use std::fmt;
use std::io::{self, IsTerminal, Write};

use anyhow::Context;
use clap::ValueEnum;
use console::Style;
use serde::Serialize;

use crate::text::table::Table;
use crate::text::terminal::{escape, escape_json, escape_lines};

/// The form of a command's output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(crate) enum OutputFormat {
    /// For people: tables and drawings, coloured when the output is a terminal.
    #[default]
    Text,
    /// For programs: a JSON document.
    Json,
    /// The same as YAML.
    Yaml,
}

// === impl OutputFormat ===

impl OutputFormat {
    /// Prints a value for programs: as YAML, or else as JSON.
    pub(crate) fn print(self, value: &impl Serialize) -> anyhow::Result<()> {
        match self {
            Self::Yaml => yaml(value),
            Self::Json | Self::Text => json(value),
        }
    }
}

/// The start of a sequence that sets a colour and ends in `m`.
const COLOUR: &str = "\u{1b}[";

/// A line for people, with its unsafe characters escaped. Only a style that Pinfold itself chose acts on the terminal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Line(String);

// === impl Line ===

impl Line {
    /// A line that begins with a styled text.
    pub(crate) fn styled(style: &Style, start: &str, rest: &str) -> Self {
        Self(style.apply_to(escape(start)).to_string() + &escape(rest))
    }

    /// A line of a drawing, whose colours stay. Texts of others in it are escaped before they are
    /// coloured.
    pub(crate) fn drawn(line: &str) -> Self {
        let (mut safe, mut rest) = (String::new(), line);
        while let Some((text, after)) = rest.split_once(COLOUR) {
            safe += &escape(text);
            let is_number = |c: char| c.is_ascii_digit() || c == ';';
            let end = after.trim_start_matches(is_number);
            (safe, rest) = match end.strip_prefix('m') {
                Some(further) => (
                    safe + COLOUR + after.strip_suffix(further).unwrap_or_default(),
                    further,
                ),
                None => (safe + &escape(COLOUR), after),
            };
        }
        Self(safe + &escape(rest))
    }
}

impl<T: AsRef<str>> From<T> for Line {
    fn from(text: T) -> Self {
        Self(escape(text.as_ref()).into_owned())
    }
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

pub(crate) fn emit<L: Into<Line>>(lines: impl IntoIterator<Item = L>) -> anyhow::Result<()> {
    print(&joined(lines.into_iter().map(Into::into)))
}

/// The text of lines.
pub(super) fn joined(lines: impl IntoIterator<Item = Line>) -> String {
    lines.into_iter().map(|line| line.0 + "\n").collect()
}

/// Prints a document of a format that has lines of its own, such as YAML, with a newline at its end.
///
/// A file or another program gets the document unchanged, because in a script or a manifest each
/// character counts. A terminal gets it with unsafe characters escaped.
pub(crate) fn document(text: &str) -> anyhow::Result<()> {
    let newline = if text.ends_with('\n') { "" } else { "\n" };
    let text = if io::stdout().is_terminal() {
        escape_lines(text)
    } else {
        text.into()
    };
    print(&format!("{text}{newline}"))
}

/// Prints a value as a JSON document.
pub(crate) fn json(value: &impl Serialize) -> anyhow::Result<()> {
    // One type for all values keeps the program small; see `yaml`.
    let value = serde_json::to_value(value).context("can't write the answer as JSON")?;
    let text = serde_json::to_string(&value).context("can't write the answer as JSON")?;
    print(&format!("{}\n", escape_json(&text)))
}

/// Prints a value as a YAML document that holds the same as [`json`].
pub(crate) fn yaml(value: &impl Serialize) -> anyhow::Result<()> {
    // One type for all values keeps the program small: a serializer of YAML is large, and each further type doubles a part of it.
    let value = serde_json::to_value(value).context("can't write the answer as YAML")?;
    document(&serde_saphyr::to_string(&value).context("can't write the answer as YAML")?)
}

fn print(text: &str) -> anyhow::Result<()> {
    match io::stdout().write_all(text.as_bytes()) {
        // The reader of a pipe, such as `head`, may close it early.
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(error).context("can't write the output")
        }
        _ => Ok(()),
    }
}

/// Prints an error, or the end of a command that was interrupted, as a line on standard error.
pub(crate) fn complain(message: impl fmt::Display) {
    // Without standard error, nobody could be told of the failure.
    let _ = writeln!(io::stderr(), "pinfold: {}", escape(&message.to_string()));
}

/// Prints a warning as a line on standard error: the command does its work nevertheless.
pub(crate) fn warn(message: impl fmt::Display) {
    complain(format_args!("warning: {message}"));
}

/// Prints what a long command has done, as a line on standard error. If nobody can read it, the work goes on.
#[cfg(feature = "lab")]
pub(crate) fn progress(message: &str) {
    let _ = writeln!(io::stderr(), "{}", escape(message));
}

/// The text of the error with which a command ends. Of a [`Several`], each mistake gets a line.
pub(super) fn complaint(error: &anyhow::Error) -> String {
    let lines = match error.downcast_ref::<Several>() {
        Some(Several { heading, all }) => {
            let all = all.iter().map(|one| format!("  {one}"));
            std::iter::once(format!("pinfold: {heading}:"))
                .chain(all)
                .collect()
        }
        None => vec![format!("pinfold: {error:#}")],
    };
    joined(lines.into_iter().map(Line::from))
}

/// An error with several mistakes, a line each.
#[derive(Debug, thiserror::Error)]
#[error("{heading}: {}", all.join("; "))]
pub(crate) struct Several {
    /// What they prevent.
    pub(crate) heading: String,
    pub(crate) all: Vec<String>,
}

/// A table for people. Each row stays one row, whatever its cells hold.
#[derive(Debug)]
pub(crate) struct Rows(Table);

/// A plain table with headings.
pub(crate) fn table(headings: &[&str]) -> Rows {
    Rows(Table::new(escaped(headings)))
}

fn escaped<C: AsRef<str>>(cells: impl IntoIterator<Item = C>) -> Vec<String> {
    let cells = cells.into_iter();
    let cells = cells.map(|cell| escape(cell.as_ref()).into_owned());
    cells.collect()
}

// === impl Rows ===

impl Rows {
    pub(crate) fn add_row<C: AsRef<str>>(&mut self, cells: impl IntoIterator<Item = C>) {
        self.0.add_row(escaped(cells));
    }

    /// Puts the cells of some columns, counted from 0, at the right edge.
    #[cfg(any(feature = "demo", feature = "bench"))]
    pub(crate) fn align_right(&mut self, columns: std::ops::Range<usize>) {
        self.0.align_right(columns);
    }

    /// Names the columns, counted from 0, that a narrow terminal does not show, the least important first.
    pub(crate) fn leave_out(&mut self, columns: &[usize]) {
        self.0.leave_out(columns);
    }

    /// The table's lines, for [`emit`]. On a terminal, they are as wide as it is; a file or a pipe has no width.
    pub(crate) fn lines(&self) -> Vec<String> {
        let terminal = console::Term::stdout();
        let width = terminal.is_term().then(|| terminal.size().1.into());
        self.0.lines(width)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_stays_one_line_and_has_only_own_styles() {
        assert_eq!(Line::from("a\nb\u{1b}[2J").to_string(), "a\\nb\\u{1b}[2J");
        let green = Style::new().green().force_styling(true);
        assert_eq!(
            Line::styled(&green, "go\u{7}od", " \u{9b}1m").to_string(),
            "\u{1b}[32mgo\\u{7}od\u{1b}[0m \\u{9b}1m"
        );
        let drawn = Line::drawn("\u{1b}[32;1m0a\u{1b}[0m \u{1b}[2J\u{1b}]0;t\u{7}\u{1b}[");
        assert_eq!(
            drawn.to_string(),
            "\u{1b}[32;1m0a\u{1b}[0m \\u{1b}[2J\\u{1b}]0;t\\u{7}\\u{1b}["
        );
    }

    #[test]
    fn a_row_stays_one_row() {
        let mut rows = table(&["POD", "WHY"]);
        rows.add_row(["w\u{202e}", "no\nforged  row\u{1b}[31m"]);
        let lines = rows.lines();
        assert_eq!(lines.len(), 2, "{lines:?}");
        assert!(
            lines[1].contains("w\\u{202e}") && lines[1].contains("no\\nforged  row\\u{1b}[31m"),
            "{lines:?}"
        );
    }
}
