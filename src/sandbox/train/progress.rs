//! The progress of a process of the job: a JSON line a second on standard output.

use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{SigSet, Signal};
use serde::{Deserialize, Serialize};

/// Time between two lines.
pub const PERIOD: Duration = Duration::from_secs(1);

/// The time between two lines with every step's time, for measurements of a few seconds.
pub const SHORT_PERIOD: Duration = Duration::from_millis(250);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ProcessRole {
    /// A parameter server.
    Ps,
    Worker,
    /// Another pod of the node, which has nothing to do with the job.
    Neighbor,
}

/// One line. Steps and bytes count from the start. Loss and times are means or quantiles of the
/// steps since the last line.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ProgressLine {
    pub role: ProcessRole,
    /// The index of the process within the role, from 0.
    pub index: u32,
    /// Steps done: training steps of a worker, requests served by a server, bursts of a neighbor.
    pub steps: u64,
    /// Mean log loss, in nats; null if no step ended since the last line.
    pub loss: Option<f32>,
    /// Median time of a step, in milliseconds; null without a step.
    pub step_ms_p50: Option<f32>,
    /// The time within which 99 of 100 steps end, in milliseconds; null without a step.
    pub step_ms_p99: Option<f32>,
    /// Threads that compute: intra-op threads of a worker, request threads of a server.
    pub threads: usize,
    /// Bytes read from sockets, as the program counts them (without TCP's own).
    pub bytes_in: u64,
    /// Bytes written to sockets.
    pub bytes_out: u64,
    /// Seconds from the process's start to this line, by the process's clock; only on request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds: Option<f64>,
    /// The time of each step since the last line, in milliseconds. Only the flag `--each-step` adds
    /// them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub step_ms: Vec<f32>,
}

/// Counters of a process, shared by the threads.
#[derive(Debug)]
pub struct Progress {
    role: ProcessRole,
    index: u32,
    threads: usize,
    began: Instant,
    each: bool,
    steps: AtomicU64,
    bytes_in: AtomicU64,
    bytes_out: AtomicU64,
    window: Mutex<Window>,
}

#[derive(Debug, Default)]
struct Window {
    millis: Vec<f32>,
    loss: f64,
    losses: u32,
}

// === impl Progress ===

impl Progress {
    /// Nothing done yet.
    pub fn new(role: ProcessRole, index: u32, threads: usize) -> Arc<Self> {
        Self::telling(role, index, threads, false)
    }

    /// Nothing done yet; `each` says whether lines hold every step's time, and come four times a second.
    pub fn telling(role: ProcessRole, index: u32, threads: usize, each: bool) -> Arc<Self> {
        Arc::new(Self {
            role,
            index,
            threads,
            began: Instant::now(),
            each,
            steps: AtomicU64::new(0),
            bytes_in: AtomicU64::new(0),
            bytes_out: AtomicU64::new(0),
            window: Mutex::default(),
        })
    }

    /// Counts a step, and its loss if known.
    pub fn step(&self, took: Duration, loss: Option<f32>) {
        let mut window = self.window.lock().unwrap_or_else(PoisonError::into_inner);
        // The lock keeps the steps and the times of a line consistent.
        self.steps.fetch_add(1, Ordering::Relaxed);
        window.millis.push(took.as_secs_f32() * 1000.0);
        if let Some(loss) = loss {
            window.loss += f64::from(loss);
            window.losses += 1;
        }
    }

    pub fn received(&self, bytes: u64) {
        self.bytes_in.fetch_add(bytes, Ordering::Relaxed);
    }

    pub fn sent(&self, bytes: u64) {
        self.bytes_out.fetch_add(bytes, Ordering::Relaxed);
    }

    /// The next line. The one after it covers the steps from now on.
    pub fn line(&self) -> ProgressLine {
        let (mut window, steps, seconds) = {
            let mut window = self.window.lock().unwrap_or_else(PoisonError::into_inner);
            let steps = self.steps.load(Ordering::Relaxed);
            (
                std::mem::take(&mut *window),
                steps,
                self.began.elapsed().as_secs_f64(),
            )
        };
        window.millis.sort_unstable_by(f32::total_cmp);
        let percentile = |percent: usize| {
            let last = window.millis.len().checked_sub(1)?;
            window.millis.get(last * percent / 100).copied()
        };
        #[expect(clippy::cast_possible_truncation, reason = "rounding is meant")]
        let loss = (window.losses > 0).then(|| (window.loss / f64::from(window.losses)) as f32);
        ProgressLine {
            role: self.role,
            index: self.index,
            steps,
            loss,
            step_ms_p50: percentile(50),
            step_ms_p99: percentile(99),
            threads: self.threads,
            bytes_in: self.bytes_in.load(Ordering::Relaxed),
            bytes_out: self.bytes_out.load(Ordering::Relaxed),
            seconds: self.each.then_some(seconds),
            step_ms: if self.each { window.millis } else { Vec::new() },
        }
    }

    /// Prints the next line.
    ///
    /// # Errors
    ///
    /// Standard output is closed.
    pub fn report(&self) -> io::Result<()> {
        let mut text = serde_json::to_string(&self.line())?;
        text.push('\n');
        let mut out = io::stdout().lock();
        out.write_all(text.as_bytes())?;
        out.flush()
    }

    /// Starts to print a line every [`PERIOD`] (or [`SHORT_PERIOD`]). The process ends with status
    /// 0 on SIGTERM, on SIGINT, and when the reader of the lines is gone, because no state needs
    /// saving.
    ///
    /// The call must come before other threads start, because they inherit the blocked signals,
    /// which only the printing thread may receive.
    ///
    /// # Errors
    ///
    /// The kernel refuses a thread.
    pub fn attend(self: &Arc<Self>) -> io::Result<()> {
        let signals = SigSet::from_iter([Signal::SIGTERM, Signal::SIGINT]);
        signals.thread_block()?;
        let progress = Arc::clone(self);
        thread::Builder::new()
            .name("signals".to_owned())
            .spawn(move || {
                // A failure to wait is as good a reason to end as a signal.
                let _ = signals.wait();
                let _ = progress.report();
                std::process::exit(0);
            })?;
        let progress = Arc::clone(self);
        let period = if self.each { SHORT_PERIOD } else { PERIOD };
        thread::Builder::new()
            .name("progress".to_owned())
            .spawn(move || {
                loop {
                    thread::sleep(period);
                    if progress.report().is_err() {
                        std::process::exit(0);
                    }
                }
            })?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_covers_the_steps_since_the_last_one() {
        let progress = Progress::new(ProcessRole::Worker, 3, 2);
        for millis in 1..=100 {
            progress.step(
                Duration::from_millis(millis),
                Some(if millis % 2 == 0 { 0.5 } else { 0.25 }),
            );
        }
        progress.received(10);
        progress.sent(20);
        let line = progress.line();
        assert_eq!((line.steps, line.loss), (100, Some(0.375)));
        assert_eq!(
            (line.step_ms_p50, line.step_ms_p99),
            (Some(50.0), Some(99.0))
        );
        let text = serde_json::to_string(&progress.line()).unwrap();
        assert_eq!(
            text,
            r#"{"role":"worker","index":3,"steps":100,"loss":null,"step_ms_p50":null,"step_ms_p99":null,"threads":2,"bytes_in":10,"bytes_out":20}"#
        );
        assert_eq!(
            serde_json::from_str::<ProgressLine>(&text).unwrap().threads,
            2
        );
    }

    #[test]
    fn each_step_is_told_where_it_was_asked_for() {
        let progress = Progress::telling(ProcessRole::Worker, 0, 1, true);
        progress.step(Duration::from_millis(3), None);
        progress.step(Duration::from_millis(1), None);
        let line: ProgressLine =
            serde_json::from_str(&serde_json::to_string(&progress.line()).unwrap()).unwrap();
        assert_eq!((line.steps, line.step_ms), (2, vec![1.0, 3.0]));
        assert!(line.seconds.is_some_and(|seconds| seconds >= 0.0));
        assert_eq!(progress.line().step_ms, Vec::<f32>::new());
    }
}
