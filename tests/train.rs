//! The training job as processes: started as a container runtime does, each in a network namespace of its own.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests may fail the test"
)]

#[path = "support/gate.rs"]
mod gate;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Lines};
use std::net::Ipv4Addr;
use std::process::{ChildStdout, Command};
use std::time::{Duration, Instant};

use pinfold::host::netns::Netns;
use pinfold::host::network_switch::NetworkSwitch;
use pinfold::host::spawn::{Launcher, Process, Spawn, Stderr};
use pinfold::sandbox::train::progress::{ProcessRole, ProgressLine};

const PINFOLD: &str = env!("CARGO_BIN_EXE_pinfold");

fn train(args: &str, env: &[(&str, &str)], netns: Option<Netns>) -> Spawn {
    Spawn {
        program: PINFOLD.into(),
        args: ["train"]
            .into_iter()
            .chain(args.split_whitespace())
            .map(Into::into)
            .collect(),
        env: env
            .iter()
            .map(|&(key, value)| (key.to_owned(), value.to_owned()))
            .collect::<BTreeMap<_, _>>(),
        cgroup_procs: Vec::new(),
        netns,
        stderr: Stderr::Inherit,
    }
}

fn lines(process: &mut Process) -> Lines<BufReader<ChildStdout>> {
    BufReader::new(process.take_stdout().unwrap()).lines()
}

/// The last line, with the last loss of any line. If the line of the last second takes the last
/// steps, the final one has no loss.
fn last(lines: Lines<BufReader<ChildStdout>>) -> ProgressLine {
    let mut loss = None;
    let mut last: Option<ProgressLine> = None;
    for line in lines {
        let line: ProgressLine = serde_json::from_str(&line.unwrap()).unwrap();
        loss = line.loss.or(loss);
        last = Some(line);
    }
    ProgressLine {
        loss,
        ..last.unwrap()
    }
}

/// The time limit for the end of a process after a signal. Only a failure takes so long.
fn soon() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

#[test]
fn a_job_runs_across_namespaces() {
    if !gate::meant_for_this_machine("root, for network namespaces") {
        return;
    }
    let launcher = Launcher::new().unwrap();
    let mut switch = NetworkSwitch::new().unwrap();
    let mut join = |host| Some(switch.join(Ipv4Addr::new(10, 77, 0, host)).unwrap());
    let job = "--ps-hosts 10.77.0.1:2222,10.77.0.2:2222 --vocabulary 100 --hidden 16,8";

    // The first worker starts before the servers, as pods may.
    let env = [("TF_NUM_INTRAOP_THREADS", "2")];
    let first = launcher
        .spawn(train(&format!("worker {job} --steps 30"), &env, join(3)))
        .unwrap();
    let mut servers = [0, 1].map(|index| {
        let args = format!("ps {job} --listen 0.0.0.0:2222 --task-index {index}");
        launcher
            .spawn(train(
                &args,
                &[("TF_NUM_INTEROP_THREADS", "3")],
                join(index + 1),
            ))
            .unwrap()
    });
    let args = format!("worker {job} --task_index 1 --steps 30");
    let second = launcher.spawn(train(&args, &env, join(4))).unwrap();

    let mut sent = 0;
    for (mut worker, index) in [first, second].into_iter().zip(0..) {
        let line = last(lines(&mut worker));
        assert!(worker.wait().unwrap().success());
        assert_eq!(
            (line.role, line.index, line.steps, line.threads),
            (ProcessRole::Worker, index, 30, 2)
        );
        assert!(
            line.loss.is_some_and(|loss| loss > 0.0 && loss < 2.0),
            "{line:?}"
        );
        sent += line.bytes_out;
    }
    let mut received = 0;
    for server in &mut servers {
        let lines = lines(server);
        assert!(
            server.stop_by(soon()).unwrap().success(),
            "SIGTERM is the way to end a server"
        );
        let line = last(lines);
        assert_eq!((line.role, line.threads), (ProcessRole::Ps, 3));
        received += line.bytes_in;
    }
    assert_eq!(received, sent);
}

#[test]
fn a_neighbor_reports_and_ends_on_sigterm() {
    let launcher = Launcher::new().unwrap();
    let mut neighbor = launcher
        .spawn(train("neighbor --threads 2 --task-index 5", &[], None))
        .unwrap();
    let mut lines = lines(&mut neighbor);
    // On a slow machine, the first lines may come before the first step.
    let line = loop {
        let line: ProgressLine = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
        if line.steps > 0 {
            break line;
        }
    };
    assert_eq!(
        (line.role, line.index, line.threads),
        (ProcessRole::Neighbor, 5, 2)
    );
    assert!(
        line.step_ms_p99 >= line.step_ms_p50 && line.loss.is_none(),
        "{line:?}"
    );
    assert!(neighbor.stop_by(soon()).unwrap().success());
}

#[test]
fn bad_arguments_end_with_2_and_a_lost_address_with_1() {
    let run = |args: &str| {
        let output = Command::new(PINFOLD)
            .arg("train")
            .args(args.split_whitespace())
            .output()
            .unwrap();
        (
            output.status.code(),
            String::from_utf8(output.stderr).unwrap(),
        )
    };
    for bad in [
        "worker --batch 0",
        "worker --ps-hosts nowhere",
        "worker --ps-hosts :2222",
        "worker --hidden 3",
        "ps --ps-hosts a:1,b:1 --task-index 2",
        "ps --vocabulary 1000000 --features 256 --dim 256",
        "neighbor --threads 0",
        "chief",
    ] {
        let (code, words) = run(bad);
        assert_eq!(code, Some(2), "{bad}: {words}");
        assert!(!words.is_empty());
    }
    let (code, words) = run("ps --listen 192.0.2.1:2222");
    assert_eq!(code, Some(1), "{words}");
    assert!(words.contains("can't listen on 192.0.2.1:2222"), "{words}");
}
