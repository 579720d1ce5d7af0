//! [`Report`]: the results of a run as a table in Markdown.

use std::fmt::Write;
use std::time::Duration;

/// The end of a case without a failure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Everything was as expected. The text names what was observed, and may be empty.
    Passed(String),
    /// The case did not run, for this reason.
    Skipped(String),
}

/// A row of the table.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) case: &'static str,
    /// The node; `None` for a case about the whole cluster.
    pub(crate) node: Option<String>,
    /// The verdict, or the failure as a sentence.
    pub(crate) result: Result<Verdict, String>,
    pub(crate) took: Duration,
}

// === impl Row ===

impl Row {
    /// The result in a word.
    pub(crate) fn word(&self) -> &'static str {
        match self.result {
            Ok(Verdict::Passed(_)) => "passed",
            Ok(Verdict::Skipped(_)) => "skipped",
            Err(_) => "FAILED",
        }
    }

    /// The observation, the reason or the failure.
    pub(crate) fn note(&self) -> &str {
        match &self.result {
            Ok(Verdict::Passed(note) | Verdict::Skipped(note)) | Err(note) => note,
        }
    }
}

/// The results of a run.
#[derive(Debug, Default)]
pub(crate) struct Report {
    rows: Vec<Row>,
}

// === impl Report ===

impl Report {
    pub(crate) fn push(&mut self, row: Row) {
        self.rows.push(row);
    }

    /// The number of failed rows.
    pub(crate) fn failures(&self) -> usize {
        self.rows.iter().filter(|row| row.result.is_err()).count()
    }

    /// The table, with the failed rows and the skipped rows counted below.
    pub(crate) fn table(&self) -> String {
        let mut text =
            "| case | node | result | seconds | note |\n|---|---|---|---|---|\n".to_owned();
        for row in &self.rows {
            let (word, node) = (row.word(), row.node.as_deref().unwrap_or("all"));
            let (took, note) = (row.took.as_secs_f64(), cell(row.note()));
            // Writing to a string never fails.
            let _ = writeln!(
                text,
                "| {} | {node} | {word} | {took:.1} | {note} |",
                row.case
            );
        }
        let skipped = self
            .rows
            .iter()
            .filter(|row| row.word() == "skipped")
            .count();
        let failed = self.failures();
        let passed = self.rows.len() - skipped - failed;
        let _ = writeln!(
            text,
            "\n{passed} passed, {failed} failed, {skipped} skipped."
        );
        text
    }
}

/// A text that fits into a cell of a table.
fn cell(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    line.replace('|', "\\|")
}
