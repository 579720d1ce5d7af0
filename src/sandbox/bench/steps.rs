//! Steps from the lines that a process writes: those of the built-in job, or those of a command by
//! a [`Pattern`].

use std::time::Duration;

use regex_lite::Regex;
use serde::{Serialize, Serializer};

use crate::experiment::statistics::percentile;
use crate::sandbox::train::progress::ProgressLine;

/// The most step times kept per process. A process that prints more floods the bench, and a part of the lines is enough.
const MOST: usize = 1_000_000;

/// If half of the steps seem to take less than this share of the mean, lines come in clumps.
const CLUMP: f64 = 0.05;

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

/// The steps that a line reports.
#[derive(Debug, Clone, PartialEq)]
pub struct StepMark {
    /// When the line came, from a common origin.
    pub at: Duration,
    /// The number of steps since the previous mark.
    pub steps: f64,
    /// The durations of the steps in milliseconds, if the line tells them or the marks imply them.
    pub millis: Vec<f64>,
    /// Whether the line tells the durations.
    pub has_durations: bool,
}

/// Makes marks from lines.
#[derive(Debug, Default)]
pub struct Listener {
    marks: Vec<StepMark>,
    /// The offset of the process's clock, if it tells the time.
    offset: Option<f64>,
    counted: Option<f64>,
    steps: f64,
    held: usize,
    trouble: Option<String>,
}

/// The steps between two moments.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct StepSpan {
    pub steps: f64,
    /// How long the steps took, in seconds.
    pub seconds: f64,
    /// The duration of each step, in milliseconds.
    pub millis: Vec<f64>,
    /// Whether the lines tell every duration.
    pub has_durations: bool,
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
    /// The marks so far, in order.
    pub fn marks(&self) -> &[StepMark] {
        &self.marks
    }

    /// The number of steps so far.
    pub fn steps(&self) -> f64 {
        self.steps
    }

    /// Whether steps exist. The first line of a counting pattern counts as one.
    pub fn has_begun(&self) -> bool {
        self.steps > 0.0 || self.counted.is_some()
    }

    /// Why the lines give no step times.
    pub fn trouble(&self) -> Option<&str> {
        self.trouble.as_deref()
    }

    fn push(&mut self, mark: StepMark) {
        let held = self.held + 1 + mark.millis.len();
        if held > MOST {
            self.trouble.get_or_insert_with(|| {
                "too many lines match: match fewer lines, with the number of steps in (?<step>...)"
                    .to_owned()
            });
            return;
        }
        self.held = held;
        self.steps += mark.steps;
        self.marks.push(mark);
    }

    /// Hears a line of the built-in job, at a moment.
    pub fn job(&mut self, text: &[u8], at: Duration) {
        let Ok(line) = serde_json::from_slice::<ProgressLine>(text) else {
            return;
        };
        // The process's clock decides, because on busy CPUs, a line takes a while to arrive.
        let seconds = line.seconds.unwrap_or_default();
        let offset = *self.offset.get_or_insert(at.as_secs_f64() - seconds);
        let at = Duration::try_from_secs_f64(offset + seconds).unwrap_or(at);
        let millis: Vec<f64> = line
            .step_ms
            .iter()
            .map(|&millis| f64::from(millis))
            .collect();
        self.push(StepMark {
            at,
            steps: millis.len() as f64,
            millis,
            has_durations: true,
        });
    }

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

// === impl StepSpan ===

impl StepSpan {
    /// Whether lines arrived in bursts, as from a full buffer. The time between two of them is then
    /// not the time of a step.
    pub fn is_clumped(&self) -> bool {
        let mean = self.seconds * 1e3 / self.steps;
        !self.has_durations
            && percentile(&self.millis, 50).is_some_and(|median| median < mean * CLUMP)
    }
}

/// The steps between two moments, from the first mark to the last; `None` with fewer than two marks.
pub fn stretch(marks: &[StepMark], from: Duration, to: Duration) -> Option<StepSpan> {
    let mut inside = marks.iter().filter(|mark| (from..=to).contains(&mark.at));
    let first = inside.next()?;
    let mut stretch = StepSpan {
        has_durations: true,
        ..StepSpan::default()
    };
    let mut last = None;
    for mark in inside {
        stretch.steps += mark.steps;
        stretch.has_durations &= mark.has_durations;
        stretch.millis.extend_from_slice(&mark.millis);
        last = Some(mark.at);
    }
    stretch.seconds = (last? - first.at).as_secs_f64();
    (stretch.seconds > 0.0).then_some(stretch)
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn a_stretch_is_between_marks() {
        let mark = |at, steps: f64| StepMark {
            at: millis(at),
            steps,
            millis: vec![1.0],
            has_durations: true,
        };
        let marks = [
            mark(100, 7.0),
            mark(1000, 3.0),
            mark(1500, 2.0),
            mark(3000, 4.0),
            mark(9000, 9.0),
        ];
        let found = stretch(&marks, millis(900), millis(3000)).unwrap();
        assert_eq!(
            found,
            StepSpan {
                steps: 6.0,
                seconds: 2.0,
                millis: vec![1.0, 1.0],
                has_durations: true
            }
        );
        assert_eq!(stretch(&marks, millis(3001), millis(9000)), None);
        assert_eq!(stretch(&[], millis(0), millis(9)), None);
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

    #[test]
    fn the_jobs_lines_are_timed_by_its_own_clock() {
        let line = |seconds: f64| {
            format!(
                r#"{{"role":"worker","index":0,"steps":9,"loss":null,"step_ms_p50":null,"step_ms_p99":null,"threads":1,
                "bytes_in":0,"bytes_out":0,"seconds":{seconds},"step_ms":[2.0,3.0]}}"#
            )
        };
        let mut listener = Listener::default();
        listener.job(line(0.5).as_bytes(), millis(10_000));
        listener.job(b"no line", millis(10_100));
        // The line is half a second late, and the time in it is still a second later.
        listener.job(line(1.5).as_bytes(), millis(11_500));
        let at: Vec<_> = listener
            .marks()
            .iter()
            .map(|mark| (mark.at, mark.steps))
            .collect();
        assert_eq!(at, [(millis(10_000), 2.0), (millis(11_000), 2.0)]);
    }
}
