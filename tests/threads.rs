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
use std::time::Duration;

use pinfold::host::proc::{Proc, SchedulerCounts};
use pinfold::host::taskstats::Taskstats;

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
    let mut counted = (None, taskstats.of(pid).unwrap());
    for _ in 0..100 {
        counted = (agree(), taskstats.of(pid).unwrap());
        if counted.0 == counted.1 {
            break;
        }
        thread::sleep(Duration::from_millis(20));
    }
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
    let mut counted = || taskstats.of(own).unwrap().unwrap();
    let before = counted();
    let threads: Vec<_> = (0..THREADS).map(|_| waiting()).collect();
    // Each thread has waited `WAITS` times before the answer, and keeps running.
    let tids: Vec<i32> = threads
        .iter()
        .map(|(waited, _, _)| waited.recv().unwrap())
        .collect();
    assert!(proc.thread_count(own) > THREADS);
    // A wait that ends before the thread sleeps is no switch, so the files of the threads say how
    // many switches there were.
    let switches: Vec<u64> = proc
        .threads(own)
        .into_iter()
        .filter(|(tid, _)| tids.contains(tid))
        .map(|(_, counts)| counts.voluntary)
        .collect();
    assert!(
        switches.len() == THREADS && switches.iter().all(|count| *count > 0),
        "{switches:?}"
    );
    let least = before.voluntary + switches.iter().sum::<u64>();
    let now = counted();
    assert!(
        now.voluntary >= least,
        "{now:?} after {before:?}, and {least} at least"
    );
    for (_, end, thread) in threads {
        drop(end);
        thread.join().unwrap();
    }
    let SchedulerCounts {
        voluntary,
        involuntary,
        run_delay,
    } = counted();
    assert!(
        voluntary >= now.voluntary && involuntary >= now.involuntary && run_delay >= now.run_delay,
        "nothing goes back"
    );
}

/// A thread that waits `WAITS` times, sends its id, and ends on request.
fn waiting() -> (
    mpsc::Receiver<i32>,
    mpsc::Sender<()>,
    thread::JoinHandle<()>,
) {
    let (waited, done) = mpsc::channel();
    let (end, ended) = mpsc::channel::<()>();
    let thread = thread::spawn(move || {
        for _ in 0..WAITS {
            thread::sleep(Duration::from_millis(1));
        }
        waited.send(nix::unistd::gettid().as_raw()).unwrap();
        let _ = ended.recv();
    });
    (done, end, thread)
}
