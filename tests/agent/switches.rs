//! Context switches, compared with the count of `perf stat` for the same process in the same time.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use pinfold::host::proc::Proc;
use pinfold::host::spawn::{Launcher, Spawn, Stderr};
use pinfold::metrics::{Format, Sources};

use super::counters::{snapshot, state};
use crate::agent::{metric, patience};
use crate::kernel::kernel_tests;

#[test]
fn context_switches_agree_with_perf() {
    let Some(kernel) = kernel_tests() else { return };
    let tree = kernel.tree();
    let pod = tree.pod("", "switching-uid");
    let main = tree.container(&pod, "main");
    let spawn = Spawn {
        program: "/usr/bin/perl".into(),
        // The process waits for a very short time, again and again.
        args: vec![
            "-e".into(),
            "select(undef, undef, undef, 0.002) while 1".into(),
        ],
        env: BTreeMap::new(),
        cgroup_procs: kernel.cgroups.procs_files(&main),
        netns: None,
        stderr: Stderr::Inherit,
    };
    // Processes of the launcher end with the launcher.
    let launcher = Launcher::new().unwrap();
    let process = launcher.spawn(spawn).unwrap();
    let pid = Pid::from_raw(i32::try_from(process.pid()).unwrap());
    let sources = Sources::new(
        kernel.cgroups.clone(),
        Proc::new(Path::new("/")),
        Path::new("/"),
    );
    let snapshot = snapshot(&kernel, &[state("a", &main, &kernel.online)]);
    let scrape = || {
        let text = sources.collect(&snapshot).text(Format::Text);
        ["voluntary", "involuntary"].map(|kind| {
            let labels = [("pod", "a"), ("kind", kind)];
            metric(&text, "pinfold_container_context_switches_total", &labels).unwrap()
        })
    };
    let wait_for = |what: &str, holds: &dyn Fn() -> bool| {
        let deadline = Instant::now() + patience();
        while !holds() {
            assert!(Instant::now() < deadline, "never seen: {what}");
            std::thread::sleep(Duration::from_millis(10));
        }
    };
    let line = |name: &str| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let value = status.lines().find_map(|line| line.strip_prefix(name));
        value.unwrap().trim().to_owned()
    };
    let stop = || {
        kill(pid, Signal::SIGSTOP).unwrap();
        wait_for("the process is stopped", &|| {
            line("State:").starts_with('T')
        });
        std::thread::sleep(Duration::from_millis(100));
    };
    // The process is stopped for both readings, at the start and at the end.
    stop();
    let before = scrape();
    // Perf starts the command once the counter is there, and counts until the command ends.
    let mut perf = Command::new("perf")
        .args([
            "stat",
            "-x,",
            "-e",
            "context-switches",
            "-p",
            &pid.to_string(),
            "--",
            "sh",
            "-c",
            "echo counting; read end",
        ])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("perf is in Debian's package linux-perf");
    let mut counting = String::new();
    let mut output = BufReader::new(perf.stdout.take().unwrap());
    output.read_line(&mut counting).unwrap();
    assert_eq!(counting, "counting\n");
    // Some versions of perf enable the counter a moment after the start of the command.
    std::thread::sleep(Duration::from_millis(200));
    let switches = || line("voluntary_ctxt_switches:").parse::<u64>().unwrap();
    let first = switches();
    kill(pid, Signal::SIGCONT).unwrap();
    std::thread::sleep(Duration::from_secs(1));
    wait_for("the process waits often", &|| switches() > first + 150);
    stop();
    // The wait also closes the command's input, which ends the command.
    let said = perf.wait_with_output().unwrap();
    let after = scrape();
    let said = String::from_utf8_lossy(&said.stderr);
    let counted: f64 = said
        .split(',')
        .next()
        .unwrap()
        .trim()
        .parse()
        .unwrap_or_else(|_| panic!("{said}"));
    let gained: [f64; 2] = std::array::from_fn(|at| after[at] - before[at]);
    assert_eq!(gained[0] + gained[1], counted, "{gained:?}: {said}");
    assert!(gained[0] > 100.0, "{gained:?}");
}
