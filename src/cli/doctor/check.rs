//! The result of one of the checks, and how it is printed.

use console::Style;
use serde::Serialize;

use crate::cli::Line;

/// How good a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum CheckVerdict {
    Good,
    Weak,
    Bad,
}

/// The result of a check.
#[derive(Debug, Serialize)]
pub(super) struct CheckResult {
    pub(super) what: &'static str,
    pub(super) verdict: CheckVerdict,
    /// The fact and what follows from it.
    pub(super) finding: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) advice: Option<String>,
}

// === impl CheckResult ===

impl CheckResult {
    pub(super) fn lines(&self) -> impl Iterator<Item = Line> {
        let (mark, style) = match self.verdict {
            CheckVerdict::Good => ("good", Style::new().green()),
            CheckVerdict::Weak => ("weak", Style::new().yellow()),
            CheckVerdict::Bad => ("bad ", Style::new().red()),
        };
        let rest = format!("  {:<13} {}", self.what, self.finding);
        let advice = self.advice.iter();
        let advice = advice.map(|advice| format!("      {:<13} → {advice}", "").into());
        std::iter::once(Line::styled(&style, mark, &rest)).chain(advice)
    }
}

pub(super) fn good(what: &'static str, finding: String) -> CheckResult {
    CheckResult {
        what,
        verdict: CheckVerdict::Good,
        finding,
        advice: None,
    }
}

pub(super) fn weak(what: &'static str, finding: String, advice: &str) -> CheckResult {
    CheckResult {
        what,
        verdict: CheckVerdict::Weak,
        finding,
        advice: Some(advice.to_owned()),
    }
}

pub(super) fn bad(what: &'static str, finding: String, advice: &str) -> CheckResult {
    CheckResult {
        what,
        verdict: CheckVerdict::Bad,
        finding,
        advice: Some(advice.to_owned()),
    }
}
