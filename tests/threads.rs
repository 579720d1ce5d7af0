//! Counts of all threads of a process, from the kernel's accounting and from each thread's files.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

#[path = "support/gate.rs"]
#[allow(dead_code, reason = "these tests need a part of it")]
mod gate;

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use pinfold::host::netlink::taskstats::Taskstats;
use pinfold::host::proc::{Proc, SchedulerCounts};

/// The number of waits of each thread.
const WAITS: u64 = 50;
const THREADS: usize = 6;

#[test]
fn the_accounting_agrees_with_the_files_of_each_thread() {
    if !gate::meant_for_this_machine("root and the machine's own process ids") {
        return;
    }
    let (proc, mut taskstats) = (Proc::new(Path::new("/")), Taskstats::open().unwrap());
    let mut child = Command::new("sleep")
        .arg("60")
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let pid = i32::try_from(child.id()).unwrap();
    // The counts stop when the program is loaded and sleeps.
    let agree = || {
        let [(tid, counted)] = proc.threads(pid)[..] else {
            panic!("{:?}", proc.threads(pid))
        };
        (tid == pid && counted.voluntary > 0).then_some(counted)
    };
    let deadline = Instant::now() + Duration::from_secs(40);
    let counted = loop {
        let counted = (agree(), taskstats.of(pid).unwrap());
        if counted.0 == counted.1 || Instant::now() > deadline {
            break counted;
        }
        thread::sleep(Duration::from_millis(20));
    };
    assert_eq!(counted.0, counted.1);
    assert_eq!(proc.thread_count(pid), 1);
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(
        taskstats.of(pid).unwrap(),
        None,
        "the ended process has no counts"
    );
}

#[test]
fn ended_threads_still_count() {
    if !gate::meant_for_this_machine("root and the machine's own process ids") {
        return;
    }
    let own = i32::try_from(std::process::id()).unwrap();
    let (proc, mut taskstats) = (Proc::new(Path::new("/")), Taskstats::open().unwrap());
    let threads: Vec<_> = (0..THREADS).map(|_| waiting()).collect();
    // Each thread has waited `WAITS` times before the answer, and keeps running.
    for (waited, _, _) in &threads {
        waited.recv().unwrap();
    }
    // The kernel counts a thread twice for a moment while it ends, so the accounting is compared
    // with the files of the threads and not with its own earlier counts.
    let files = proc.threads(own);
    assert!(files.len() > THREADS, "{files:?}");
    let sum =
        |count: fn(&SchedulerCounts) -> u64| files.iter().map(|(_, counts)| count(counts)).sum();
    let least = SchedulerCounts {
        voluntary: sum(|counts| counts.voluntary),
        involuntary: sum(|counts| counts.involuntary),
        run_delay: sum(|counts| counts.run_delay),
    };
    // A wait that ends before the thread sleeps is no switch.
    assert!(least.voluntary > THREADS as u64 * WAITS / 2, "{files:?}");
    let mut assert_at_least = |when: &str| {
        let now = taskstats.of(own).unwrap().unwrap();
        assert!(
            now.voluntary >= least.voluntary
                && now.involuntary >= least.involuntary
                && now.run_delay >= least.run_delay,
            "{when}: {now:?}, and {least:?} at least"
        );
    };
    assert_at_least("all threads run");
    for (_, end, thread) in threads {
        drop(end);
        thread.join().unwrap();
    }
    assert_at_least("the threads have ended");
}

/// A thread that waits `WAITS` times, sends a message, and ends on request.
fn waiting() -> (mpsc::Receiver<()>, mpsc::Sender<()>, thread::JoinHandle<()>) {
    let (waited, done) = mpsc::channel();
    let (end, ended) = mpsc::channel::<()>();
    let thread = thread::spawn(move || {
        for _ in 0..WAITS {
            thread::sleep(Duration::from_millis(1));
        }
        waited.send(()).unwrap();
        let _ = ended.recv();
    });
    (done, end, thread)
}
