use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::ExitStatusExt;

use super::*;

fn shell(script: &str) -> Spawn {
    Spawn {
        program: "/bin/sh".into(),
        args: vec!["-c".into(), script.into()],
        env: BTreeMap::from([("PATH".to_owned(), "/usr/bin:/bin".to_owned())]),
        cgroup_procs: Vec::new(),
        netns: None,
        stderr: Stderr::Inherit,
    }
}

fn output(process: &mut Process) -> String {
    let mut text = String::new();
    process
        .take_stdout()
        .unwrap()
        .read_to_string(&mut text)
        .unwrap();
    text
}

fn is_alive(pid: u32) -> bool {
    kill(Pid::from_raw(pid.cast_signed()), None).is_ok()
}

#[test]
fn only_the_given_environment_is_passed_on() {
    let launcher = Launcher::new().unwrap();
    let mut spawn = shell("exec env");
    spawn
        .env
        .insert("TF_NUM_INTRAOP_THREADS".to_owned(), "3".to_owned());
    let mut process = launcher.spawn(spawn).unwrap();
    let text = output(&mut process);
    assert!(text.contains("TF_NUM_INTRAOP_THREADS=3\n"), "{text}");
    assert!(
        !text.contains("CARGO"),
        "the test's own environment leaked: {text}"
    );
    assert!(process.wait().unwrap().success());
}

#[test]
fn joins_before_the_first_instruction() {
    // A regular file stands in for `cgroup.procs` and records the child's write before the exec.
    let dir = tempfile::tempdir().unwrap();
    let procs = dir.path().join("cgroup.procs");
    std::fs::write(&procs, "").unwrap();
    let mut spawn = shell(&format!("cat {}", procs.display()));
    spawn.cgroup_procs = vec![procs];
    let mut process = Launcher::new().map(|launcher| {
        let mut process = launcher.spawn(spawn).unwrap();
        process.wait().unwrap();
        process
    });
    assert_eq!(output(process.as_mut().unwrap()), "0");
}

#[test]
fn an_error_names_the_file() {
    let launcher = Launcher::new().unwrap();

    let mut spawn = shell("true");
    spawn.cgroup_procs = vec!["/no/such/cgroup.procs".into()];
    let error = launcher.spawn(spawn).unwrap_err();
    let says = error.to_string();
    assert!(
        says.starts_with("cannot open /no/such/cgroup.procs: the cgroup must exist"),
        "{says}"
    );

    // Opening /dev/full works, but every write fails, as with a cgroup that refuses the process.
    let dir = tempfile::tempdir().unwrap();
    let good = dir.path().join("procs");
    std::fs::write(&good, "").unwrap();
    let mut spawn = shell("true");
    spawn.cgroup_procs = vec![good, "/dev/full".into()];
    let error = launcher.spawn(spawn).unwrap_err();
    assert!(
        error.to_string().contains("into its cgroup by /dev/full: "),
        "{error}"
    );
    assert_eq!(
        error.source.unwrap().raw_os_error(),
        Some(nix::libc::ENOSPC)
    );

    let mut spawn = shell("true");
    spawn.program = "/no/such/program".into();
    let error = launcher.spawn(spawn).unwrap_err();
    assert_eq!(error.to_string(), "cannot start /no/such/program");
}

#[test]
fn standard_error_goes_to_a_file() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    let launcher = Launcher::new().unwrap();
    for _ in 0..2 {
        let mut spawn = shell("echo oops >&2");
        spawn.stderr = Stderr::File(log.clone());
        launcher.spawn(spawn).unwrap().wait().unwrap();
    }
    assert_eq!(std::fs::read_to_string(log).unwrap(), "oops\noops\n");
}

#[test]
fn stops_gently_then_hard() {
    let launcher = Launcher::new().unwrap();
    let mut gentle = launcher.spawn(shell("exec sleep 60")).unwrap();
    assert!(gentle.try_wait().unwrap().is_none());
    assert_eq!(
        gentle
            .stop_by(Instant::now() + Duration::from_secs(60))
            .unwrap()
            .signal(),
        Some(15)
    );
    // The process has been waited for, so a further signal must not reach a new process with the
    // same id.
    gentle.kill(Signal::SIGKILL).unwrap();

    let mut stubborn = launcher
        .spawn(shell("trap '' TERM; echo ready; while :; do sleep 1; done"))
        .unwrap();
    let mut ready = String::new();
    BufReader::new(stubborn.take_stdout().unwrap())
        .read_line(&mut ready)
        .unwrap();
    assert_eq!(
        stubborn
            .stop_by(Instant::now() + Duration::from_millis(100))
            .unwrap()
            .signal(),
        Some(9)
    );
}

#[test]
fn a_process_ends_with_the_launcher_and_not_before() {
    let launcher = Launcher::new().unwrap();
    // The starting thread ends at once. Its end must not trigger the parent-death signal.
    let mut process = thread::scope(|scope| {
        scope
            .spawn(|| launcher.spawn(shell("exec sleep 60")).unwrap())
            .join()
            .unwrap()
    });
    thread::sleep(Duration::from_millis(50));
    assert!(process.try_wait().unwrap().is_none());
    drop(launcher);
    assert_eq!(process.wait().unwrap().signal(), Some(9));
}

#[test]
fn a_dropped_process_is_gone() {
    let launcher = Launcher::new().unwrap();
    let process = launcher.spawn(shell("exec sleep 60")).unwrap();
    let pid = process.pid();
    assert!(is_alive(pid));
    drop(process);
    assert!(!is_alive(pid));
}
