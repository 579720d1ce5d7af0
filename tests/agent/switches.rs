//! Context switches, compared with the count of `perf stat` for the same process in the same time.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use pinfold::host::proc::Proc;
use pinfold::host::spawn::{Launcher, Spawn, Stderr};
use pinfold::metrics::{Format, Sources};

use super::counters::{snapshot, state};
use crate::agent::metric;
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
    let pause = |signal| {
        kill(pid, signal).unwrap();
        std::thread::sleep(Duration::from_millis(100));
    };
    // The process is stopped for both readings, at the start and at the end.
    pause(Signal::SIGSTOP);
    let before = scrape();
    let perf = Command::new("perf")
        .args([
            "stat",
            "-x,",
            "-e",
            "context-switches",
            "-p",
            &pid.to_string(),
            "--",
            "sleep",
            "4",
        ])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("perf is in Debian's package linux-perf");
    std::thread::sleep(Duration::from_millis(1500));
    pause(Signal::SIGCONT);
    std::thread::sleep(Duration::from_secs(1));
    pause(Signal::SIGSTOP);
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
