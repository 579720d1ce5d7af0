//! Steps from the lines that processes write. Those of the built-in job are timed by the process's own clock; the bench adds
//! the lines of any command.

use std::time::Duration;

use super::train::progress::ProgressLine;
use crate::experiment::statistics::percentile;

/// The most step times kept per process. A process that prints more floods the reader, and a part of the lines is enough.
pub(super) const MOST: usize = 1_000_000;

/// If half of the steps seem to take less than this share of the mean, lines come in clumps.
const CLUMP: f64 = 0.05;

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
    pub(super) marks: Vec<StepMark>,
    /// The offset of the process's clock, if it tells the time.
    offset: Option<f64>,
    pub(super) counted: Option<f64>,
    steps: f64,
    pub(super) held: usize,
    pub(super) trouble: Option<String>,
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

    pub(super) fn push(&mut self, mark: StepMark) {
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
