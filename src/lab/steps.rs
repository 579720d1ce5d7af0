//! [`StepLines`]: the progress of a worker, from the lines that it writes.

use std::fmt;
use std::str::FromStr;

use k8s_openapi::jiff::Timestamp;
use regex_lite::Regex;

/// Matches what the usual programs write: `step 100`, `step = 100`, `global_step: 100`, `"steps":100`.
pub const USUAL_PATTERN: &str = r#"(?i)\b(?:global_?)?steps?"?\s*[:= ]\s*([0-9]+)"#;

/// The part of a worker's lines, by time, that counts as its warm-up.
const WARM_UP: f64 = 0.1;

/// The pattern of a line that names the steps so far.
#[derive(Debug, Clone)]
pub struct StepPattern(Regex);

/// Why a pattern can't be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StepPatternError {
    #[error("the pattern is not a regular expression: {0}")]
    Syntax(String),
    #[error(
        "the pattern has no group: write parentheses around the number of steps, as in 'step=([0-9]+)'"
    )]
    NoGroup,
}

/// The step lines of a worker.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct StepLines {
    /// The time of each line in seconds since 1970, and the steps so far.
    points: Vec<(f64, f64)>,
}

/// How many steps a worker made in how many seconds, its warm-up left out.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Progress {
    pub steps: f64,
    pub seconds: f64,
}

// === impl StepPattern ===

impl FromStr for StepPattern {
    type Err = StepPatternError;

    fn from_str(text: &str) -> Result<Self, StepPatternError> {
        let regex =
            Regex::new(text).map_err(|error| StepPatternError::Syntax(error.to_string()))?;
        // Group 0 is the whole match.
        if regex.captures_len() < 2 {
            return Err(StepPatternError::NoGroup);
        }
        Ok(Self(regex))
    }
}

impl fmt::Display for StepPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.as_str())
    }
}

impl StepPattern {
    /// The number of steps in a line: that of the group `step`, else of the first group that takes part.
    fn read(&self, line: &str) -> Option<f64> {
        let found = self.0.captures(line)?;
        let group = found
            .name("step")
            .or_else(|| (1..found.len()).find_map(|group| found.get(group)))?;
        let steps: f64 = group.as_str().parse().ok()?;
        (steps.is_finite() && steps >= 0.0).then_some(steps)
    }
}

// === impl StepLines ===

impl StepLines {
    /// The step lines of a log, in which the runtime's time (RFC 3339) stands before each line. Other lines are skipped.
    pub(super) fn read(log: &str, pattern: &StepPattern) -> Self {
        let points = log.lines().filter_map(|line| {
            let (time, text) = line.split_once(' ')?;
            let at: Timestamp = time.parse().ok()?;
            Some((at.as_duration().as_secs_f64(), pattern.read(text)?))
        });
        Self {
            points: points.collect(),
        }
    }

    /// The progress between the first line after the warm-up and the last line; `None` with fewer than two such lines, or without
    /// time between them. A count that begins again, as after a restart, loses the steps since the line before.
    pub(super) fn progress(&self) -> Option<Progress> {
        let (first, last) = (self.points.first()?.0, self.points.last()?.0);
        let begin = first + WARM_UP * (last - first);
        let counted: Vec<(f64, f64)> = self
            .points
            .iter()
            .copied()
            .skip_while(|(at, _)| *at < begin)
            .collect();
        let seconds = last - counted.first()?.0;
        let steps: f64 = counted
            .windows(2)
            .filter_map(|pair| Some((pair.last()?.1 - pair.first()?.1).max(0.0)))
            .sum();
        (counted.len() > 1 && seconds > 0.0).then_some(Progress { steps, seconds })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(line: &str) -> Option<f64> {
        USUAL_PATTERN.parse::<StepPattern>().unwrap().read(line)
    }

    #[test]
    fn the_usual_pattern_finds_the_steps_of_usual_programs() {
        for line in [
            "step 101",
            "Step: 101",
            "global_step = 101",
            "INFO:tensorflow:loss = 0.1, step = 101 (3.2 sec)",
            r#"{"role":"worker","index":0,"steps":101,"loss":0.5}"#,
            "steps 101",
        ] {
            assert_eq!(steps(line), Some(101.0), "{line}");
        }
        for line in [
            "global_step/sec: 12.5",
            "stepped 3",
            "footstep 7",
            "epoch 3",
            "",
        ] {
            assert_eq!(steps(line), None, "{line}");
        }
    }

    #[test]
    fn the_warm_up_is_left_out_and_a_new_count_loses_no_more_than_a_line() {
        let line =
            |second: u32, step: u32| format!("2026-11-28T10:00:{second:02}.5Z step {step}\n");
        let log: String = [(0, 0), (1, 1), (10, 100), (20, 200), (30, 5), (40, 105)]
            .map(|(second, step)| line(second, step))
            .concat();
        let pattern = USUAL_PATTERN.parse().unwrap();
        let lines = StepLines::read(
            &format!("no time\n{log}2026-11-28T10:01:00Z done\n"),
            &pattern,
        );
        assert_eq!(lines.points.len(), 6);
        let progress = lines.progress().unwrap();
        assert_eq!(
            progress,
            Progress {
                steps: 200.0,
                seconds: 30.0
            }
        );
        for short in ["", &line(1, 7), &[line(1, 7), line(1, 8)].concat()] {
            assert_eq!(StepLines::read(short, &pattern).progress(), None, "{short}");
        }
    }

    #[test]
    fn a_pattern_needs_a_group() {
        let wrong = |text: &str| text.parse::<StepPattern>().unwrap_err();
        assert_eq!(wrong("step"), StepPatternError::NoGroup);
        assert!(matches!(wrong("("), StepPatternError::Syntax(_)));
        let named: StepPattern = r"(\d+)/(?<step>\d+)".parse().unwrap();
        assert_eq!(named.read("3/9"), Some(9.0));
        assert_eq!(named.read("3/99999999999999999999999999999999"), Some(1e32));
    }
}
