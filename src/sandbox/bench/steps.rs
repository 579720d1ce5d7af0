//! Steps from the lines that a command writes, by a [`Pattern`].

use std::time::Duration;

use regex_lite::Regex;
use serde::{Serialize, Serializer};

use crate::sandbox::steps::{Listener, StepMark};

/// The pattern of a step in a command's lines.
///
/// Each line that matches is a step. A group named `step` holds the number of steps so far, and a
/// group named `ms` or `s` holds the duration of each new step. Without the latter, a step lasts as
/// long as the time since the previous line.
#[derive(Debug, Clone)]
pub struct Pattern(Regex);

/// Why a pattern can't be used.
#[derive(Debug, Clone, thiserror::Error)]
pub enum PatternError {
    /// The pattern is no valid regular expression.
    #[error("the pattern is not a regular expression: {0}")]
    Syntax(String),
    #[error(
        "the group {0} is unknown: name the group step (steps so far), ms or s (time of a step), or use (?:...)"
    )]
    Group(String),
}

// === impl Pattern ===

impl std::str::FromStr for Pattern {
    type Err = PatternError;

    fn from_str(text: &str) -> Result<Self, PatternError> {
        let regex = Regex::new(text).map_err(|error| PatternError::Syntax(error.to_string()))?;
        for name in regex.capture_names().flatten() {
            if !matches!(name, "step" | "ms" | "s") {
                return Err(PatternError::Group(name.to_owned()));
            }
        }
        Ok(Self(regex))
    }
}

impl std::fmt::Display for Pattern {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(self.0.as_str())
    }
}

impl Serialize for Pattern {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

// === impl Listener ===

impl Listener {
    /// Hears a line of a command, at a moment.
    pub fn command(&mut self, pattern: &Pattern, text: &[u8], at: Duration) {
        let text = String::from_utf8_lossy(text);
        let Some(found) = pattern.0.captures(&text) else {
            return;
        };
        let number = |name: &str| -> Option<f64> {
            let number: f64 = found.name(name)?.as_str().trim().parse().ok()?;
            (number.is_finite() && number >= 0.0).then_some(number)
        };
        let steps = match (number("step"), found.name("step")) {
            // If a count begins again, as in a new epoch, it tells nothing of the steps in between.
            (Some(count), _) => (count - self.counted.replace(count).unwrap_or(count)).max(0.0),
            (None, Some(text)) => {
                let text = text.as_str();
                self.trouble.get_or_insert_with(|| {
                    format!("the group step matched {text:?}, which is not a number")
                });
                return;
            }
            (None, None) => 1.0,
        };
        let duration = number("ms").or_else(|| number("s").map(|seconds| seconds * 1e3));
        let since_last = || Some((at - self.marks.last()?.at.min(at)).as_secs_f64() * 1e3 / steps);
        let each = duration
            .or_else(since_last)
            .filter(|millis| steps >= 1.0 && millis.is_finite());
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "bounded, and at least 1"
        )]
        let millis = each.map_or_else(Vec::new, |millis| vec![millis; steps.min(1e4) as usize]);
        self.push(StepMark {
            at,
            steps,
            millis,
            has_durations: duration.is_some(),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sandbox::steps::{MOST, stretch};

    fn millis(at: u64) -> Duration {
        Duration::from_millis(at)
    }

    fn recorded_steps(pattern: &str, lines: &[(&str, u64)]) -> Vec<(f64, Vec<f64>)> {
        let pattern: Pattern = pattern.parse().unwrap();
        let mut listener = Listener::default();
        for (line, at) in lines {
            listener.command(&pattern, line.as_bytes(), millis(*at));
        }
        listener
            .marks()
            .iter()
            .map(|mark| (mark.steps, mark.millis.clone()))
            .collect()
    }

    #[test]
    fn a_line_that_matches_is_a_step() {
        let lines = [
            ("loading", 5),
            ("step 1", 100),
            ("step 2", 130),
            ("saved", 140),
            ("step 3", 180),
        ];
        assert_eq!(
            recorded_steps("^step", &lines),
            [(1.0, vec![]), (1.0, vec![30.0]), (1.0, vec![50.0])]
        );
    }

    #[test]
    fn groups_count_and_time() {
        let lines = [
            ("10/90 4.5ms", 0),
            ("12/90 6ms", 20),
            ("12/90 6ms", 25),
            ("1/90 7ms", 30),
            ("3/90 1e999ms", 40),
        ];
        assert_eq!(
            recorded_steps(r"^(?<step>\d+)/90 (?<ms>[\d.e]+)ms", &lines),
            [
                (0.0, vec![]),
                (2.0, vec![6.0, 6.0]),
                (0.0, vec![]),
                (0.0, vec![]),
                (2.0, vec![5.0, 5.0])
            ]
        );
        assert_eq!(
            recorded_steps(r"took (?<s>[\d.]+)", &[("took 0.25 s", 3)]),
            [(1.0, vec![250.0])]
        );
        // Lines that are no text, and lines in the wrong order.
        assert_eq!(
            recorded_steps("x", &[("x", 9), ("x", 3)]),
            [(1.0, vec![]), (1.0, vec![0.0])]
        );
        let mut listener = Listener::default();
        listener.command(&"a".parse().unwrap(), b"\xff\xfea", millis(1));
        assert_eq!(listener.marks().len(), 1);
    }

    #[test]
    fn a_pattern_that_is_none_is_told() {
        let error = |text: &str| text.parse::<Pattern>().unwrap_err().to_string();
        assert!(
            error("(").contains("not a regular expression"),
            "{}",
            error("(")
        );
        assert!(
            error("(?<loss>x)").contains("the group loss is unknown"),
            "{}",
            error("(?<loss>x)")
        );
    }

    #[test]
    fn lines_from_a_full_buffer_are_clumps() {
        let clumped = |pattern: &str, line: &str, at: &dyn Fn(u64) -> Duration| {
            let pattern: Pattern = pattern.parse().unwrap();
            let mut listener = Listener::default();
            for number in 0..1000 {
                listener.command(&pattern, line.as_bytes(), at(number));
            }
            stretch(listener.marks(), Duration::ZERO, millis(100_000))
                .unwrap()
                .is_clumped()
        };
        let buffered =
            |number: u64| millis(number / 100 * 100) + Duration::from_micros(number % 100);
        assert!(clumped("x", "x", &buffered));
        assert!(!clumped("x", "x", &millis), "each line by itself");
        assert!(
            !clumped("(?<ms>1)", "1", &buffered),
            "the lines tell the durations"
        );
    }

    #[test]
    fn lines_without_a_usable_step_are_reported() {
        let mut listener = Listener::default();
        listener.command(
            &"(?<step>[0-9,]+)".parse().unwrap(),
            b"1,000 steps",
            millis(1),
        );
        assert!(
            listener
                .trouble()
                .unwrap()
                .contains("\"1,000\", which is not a number")
        );
        assert!(!listener.has_begun() && listener.marks().is_empty());
        let mut listener = Listener::default();
        let pattern: Pattern = "(?<step>[0-9]+) (?<ms>[0-9]+)".parse().unwrap();
        for number in 0..105 {
            listener.command(
                &pattern,
                format!("{} 1", number * 10_000).as_bytes(),
                millis(number),
            );
            assert!(listener.has_begun());
        }
        assert!(listener.trouble().unwrap().contains("match fewer lines"));
        assert!(listener.held <= MOST, "{}", listener.held);
    }
}
