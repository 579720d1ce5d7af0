//! [`Finding`]: a mistake in a plan, with the place and the correction.

use std::fmt;

use serde::Serialize;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// The plan can't be carried out as it stands.
    Error,
    /// The plan can be carried out, but may differ from the author's intention.
    Warning,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    pub severity: Severity,
    #[serde(flatten)]
    pub place: SourcePlace,
    /// The mistake, in a sentence.
    pub text: String,
    pub fix: String,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct SourcePlace {
    /// The file, or another name for the source.
    pub file: String,
    /// The line, where known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<u64>,
    /// The plan's name.
    pub plan: String,
    /// The field, like `spec.scenes[1].cases[0].totals.worker`.
    pub path: String,
}

/// Functions that read and write quantities. Callers supply the grammar, which is no part of this module.
#[derive(Debug, Clone, Copy)]
pub struct Amounts {
    /// The amount of a resource, in thousandths of a CPU for `cpu` and in single units for all others, or what is wrong
    /// with the text.
    pub read: fn(resource: &str, text: &str) -> Result<u64, String>,
    /// An amount as a text.
    pub write: fn(resource: &str, amount: u64) -> String,
}

// === impl Finding ===

impl Finding {
    pub(crate) fn error(place: SourcePlace, text: String, fix: String) -> Self {
        Self {
            severity: Severity::Error,
            place,
            text,
            fix,
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.place.file)?;
        if let Some(line) = self.place.line {
            write!(f, "{line}:")?;
        }
        let path = if self.place.path.is_empty() {
            "the plan"
        } else {
            &self.place.path
        };
        write!(f, " {}: {path}: {}; {}", self.severity, self.text, self.fix)
    }
}

// === impl Severity ===

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Error => "error",
            Self::Warning => "warning",
        })
    }
}
