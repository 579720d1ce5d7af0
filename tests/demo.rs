//! The demo as users run it: the figures, the proof, and the cleanup on every kind of end.
//!
//! The tests need root and a cgroup hierarchy with cpuset, so plain `cargo test` leaves them to
//! `tests/run`.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that cannot go on ends"
)]

#[path = "support/gate.rs"]
mod gate;
#[path = "support/program_copy.rs"]
mod program_copy;
#[path = "support/ran.rs"]
mod ran;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use ran::run;

/// The time limit for what follows soon. Only a failure takes so long.
const PATIENCE: Duration = Duration::from_secs(60);

/// Demos run one after the other, because each owns a tree of cgroups.
static ALONE: Mutex<()> = Mutex::new(());

/// The right to run demos, on a machine with root and cpusets.
fn kernel_tests() -> Option<MutexGuard<'static, ()>> {
    let meant = gate::meant_for_this_machine("root, cgroups with cpuset and two CPUs");
    meant.then(|| {
        ALONE
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    })
}

fn pinfold() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pinfold"));
    command.env_remove("PINFOLD_LOG_LEVEL");
    command
}

fn demo(arguments: &[&str]) -> Command {
    let mut command = pinfold();
    command
        .arg("demo")
        .args(["--listen", "127.0.0.1:0"])
        .args(arguments);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// What a demo may leave behind: cgroups, processes, manifests, network namespaces, links.
#[derive(Debug, PartialEq, Eq)]
struct DemoRemains {
    cgroups: BTreeSet<PathBuf>,
    processes: BTreeSet<String>,
    folder: bool,
    links: BTreeSet<String>,
}

impl DemoRemains {
    fn now() -> Self {
        let mut cgroups = BTreeSet::new();
        find("pinfold-demo", Path::new("/sys/fs/cgroup"), 2, &mut cgroups);
        let names = |path: &str| -> BTreeSet<String> {
            fs::read_dir(path)
                .unwrap()
                .flatten()
                .map(|entry| entry.file_name().to_string_lossy().into_owned())
                .collect()
        };
        let trains = |pid: &String| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let line = String::from_utf8_lossy(&line).replace('\0', " ");
            line.contains("pinfold train ")
        };
        Self {
            cgroups,
            processes: names("/proc").into_iter().filter(trains).collect(),
            folder: Path::new("/run/pinfold-demo").exists(),
            links: names("/sys/class/net"),
        }
    }

    fn nothing(links: &BTreeSet<String>) -> Self {
        Self {
            cgroups: BTreeSet::new(),
            processes: BTreeSet::new(),
            folder: false,
            links: links.clone(),
        }
    }
}

fn find(name: &str, dir: &Path, depth: usize, found: &mut BTreeSet<PathBuf>) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() && !path.is_symlink() {
            if entry.file_name().to_string_lossy().starts_with(name) {
                found.insert(path);
            } else if depth > 0 {
                find(name, &path, depth - 1, found);
            }
        }
    }
}

/// Waits until a demo has made what a condition asks for.
fn until(child: &mut Child, what: &str, wanted: impl Fn(&DemoRemains) -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !wanted(&DemoRemains::now()) {
        assert!(
            Instant::now() < deadline && child.try_wait().unwrap().is_none(),
            "the demo made no {what}"
        );
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn send(child: &Child, signal: Signal) {
    kill(Pid::from_raw(child.id().cast_signed()), signal).unwrap();
}

#[test]
fn the_figures_of_a_short_demo() {
    let Some(_alone) = kernel_tests() else { return };
    let before = DemoRemains::now();
    let begun = Instant::now();
    // The shortest time with enough rounds for an interval.
    let (code, stdout, stderr) = run(&mut demo(&["--seconds", "10", "-o", "json"]));
    let took = begun.elapsed().as_secs_f64();
    assert_eq!(code, 0, "{stderr}");
    let last = stdout.lines().last().unwrap();
    let report: serde_json::Value = serde_json::from_str(last).unwrap();
    assert_eq!(report["enforcement"], "cpuset");
    assert!(report["seconds"].as_f64().unwrap() > 9.5, "{report}");
    let rounds = report["rounds"].as_array().unwrap();
    assert_eq!(rounds.len(), 5, "{report}");
    for way in ["shared", "pinned"] {
        for figures in rounds.iter().chain([&report]) {
            let figure = |name: &str| figures[way][name].as_f64().unwrap();
            assert!(figure("steps_per_second") > 0.0, "{report}");
            assert!(figure("step_ms_p99") > 0.0, "{report}");
            assert!(figure("used_cpus") > 0.0, "{report}");
            let switches = figure("context_switches_per_step");
            assert!(switches > 0.0, "{report}");
            assert!(
                figure("involuntary_switches_per_step") <= switches,
                "{report}"
            );
        }
    }
    let ratio = &report["effects"]["steps_per_second"]["ratio"];
    assert_eq!(ratio["values"], 5, "{report}");
    assert_eq!(ratio["confidence"], 0.95, "{report}");
    assert!(
        ratio["low"].as_f64().unwrap() < ratio["high"].as_f64().unwrap(),
        "{report}"
    );
    assert!(
        report["conclusion"].as_str().unwrap().contains("95 %"),
        "{report}"
    );
    proof_of_a_cpuset(&report);
    assert!(
        report["compared"].as_array().unwrap().len() > 2 && report["neighbors"] == "full",
        "{report}"
    );
    // The share decides, whatever runs beside the test.
    let interference = &report["interference"];
    let share = interference["share"].as_f64().unwrap();
    assert!((0.0..=1.0).contains(&share), "{report}");
    assert_eq!(interference["reliable"], share <= 0.05, "{report}");
    let pods = report["pods"].as_array().unwrap();
    let worker = pods.iter().find(|pod| pod["pod"] == "worker-0").unwrap();
    assert_eq!(worker["exclusive"], true, "{worker}");
    // A slice takes a tenth of the time.
    assert!(
        worker["unpinned_seconds"].as_f64().unwrap() < took / 10.0,
        "{took} s: {worker}"
    );
    let own: pinfold::cpu::CpuSet = worker["cpus"].as_str().unwrap().parse().unwrap();
    assert_eq!(
        worker["env"]["TF_NUM_INTRAOP_THREADS"],
        own.len().to_string(),
        "{worker}"
    );
    for other in pods.iter().filter(|pod| pod["pod"] != "worker-0") {
        let theirs: pinfold::cpu::CpuSet = other["cpus"].as_str().unwrap().parse().unwrap();
        assert!(theirs.is_disjoint(&own), "{other}");
    }
    let neighbors: Vec<_> = pods
        .iter()
        .filter(|pod| pod["pod"].as_str().unwrap().starts_with("neighbor-"))
        .collect();
    let online = std::thread::available_parallelism().unwrap().get() as u64;
    assert!(neighbors.len() > 1, "{report}");
    for neighbor in neighbors {
        assert_eq!(neighbor["qos"], "Burstable", "{neighbor}");
        assert!(neighbor["threads"].as_u64().unwrap() > online, "{neighbor}");
    }
    assert_eq!(DemoRemains::now(), DemoRemains::nothing(&before.links));
}

/// On cgroup v1 the kernel keeps a neighbor's own request off the exclusive CPU, and the agent repairs a foreign write.
fn proof_of_a_cpuset(report: &serde_json::Value) {
    let proof = &report["proof"];
    let attempts = proof["attempts"].as_array().unwrap();
    let outcomes: Vec<&str> = attempts
        .iter()
        .map(|attempt| attempt["outcome"]["name"].as_str().unwrap())
        .collect();
    assert_eq!(outcomes, ["refused", "repaired"], "{proof}");
    let cpu = u32::try_from(proof["cpu"].as_u64().unwrap()).unwrap();
    let may_run = |list: &serde_json::Value| {
        let list: pinfold::cpu::CpuSet = list.as_str().unwrap().parse().unwrap();
        list.contains(cpu)
    };
    assert!(may_run(&proof["allowed_while_shared"]), "{proof}");
    for attempt in attempts {
        assert!(
            !may_run(&attempt["before"]) && !may_run(&attempt["after"]),
            "{proof}"
        );
    }
    // The agent may be faster than the demo can look.
    let at_once = &attempts[1]["at_once"];
    assert!(
        may_run(at_once) || at_once == &attempts[1]["before"],
        "{proof}"
    );
}

#[test]
fn a_demo_with_a_server_beside_a_besteffort_pod() {
    let Some(_alone) = kernel_tests() else { return };
    let links = DemoRemains::now().links;
    let arguments = ["--seconds", "2", "--ps", "1", "--neighbors", "besteffort"];
    let (code, stdout, stderr) = run(demo(&arguments).args(["-o", "json"]));
    assert_eq!(code, 0, "{stderr}");
    let report: serde_json::Value = serde_json::from_str(stdout.lines().last().unwrap()).unwrap();
    let pods = report["pods"].as_array().unwrap();
    let pod = |name: &str| pods.iter().find(|pod| pod["pod"] == name).unwrap();
    // The job's traffic passes the pods' networks, where the agent counts the traffic.
    for name in ["worker-0", "ps-0"] {
        let received = &pod(name)["receive_bytes_per_second"];
        assert!(received.as_f64().unwrap() > 0.0, "{report}");
    }
    assert_eq!(pod("neighbor-0")["qos"], "BestEffort", "{report}");
    assert_eq!(report["neighbors"], "besteffort");
    assert_eq!(DemoRemains::now(), DemoRemains::nothing(&links));
}

/// The text for people, from the comparison to the next steps. A failure would come before everything else.
#[test]
fn the_summary_says_what_is_compared_and_proved() {
    let Some(_alone) = kernel_tests() else { return };
    let (code, stdout, stderr) = run(&mut demo(&["--seconds", "2"]));
    assert_eq!(code, 0, "{stderr}");
    assert!(
        !stderr.contains("ERROR") && !stdout.contains("FAILED"),
        "{stderr}{stdout}"
    );
    let order = [
        "Round 1 of 1: shared CPUs",
        "Round 1 of 1: exclusive CPUs",
        "What is compared",
        "The job is ",
        "What changed",
        "steps/s, all workers",
        "1 round can't tell a difference from noise: use --seconds 10 or more.",
        "Programs outside the pods used",
        "Cpus_allowed_list of neighbor-0",
        "taskset -pc",
        "refused by the kernel: Invalid argument",
        "repaired by the agent after",
        "nothing is left behind",
        "What to do next",
    ];
    let places: Vec<usize> = order
        .iter()
        .map(|words| {
            stdout
                .find(words)
                .unwrap_or_else(|| panic!("{words}: {stdout}"))
        })
        .collect();
    assert!(places.is_sorted(), "{places:?}: {stdout}");
    assert!(
        !stdout.contains('\u{1b}'),
        "a pipe gets no control characters: {stdout}"
    );
}

#[test]
fn ten_kills_and_a_rerun_that_finds_nothing_left() {
    let Some(_alone) = kernel_tests() else { return };
    let links = DemoRemains::now().links;
    let seed = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap()
        .subsec_nanos();
    eprintln!("seed {seed}");
    let mut random = u64::from(seed) | 1;
    for round in 0..10 {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let delay = Duration::from_millis((random >> 33) % 8000);
        let mut child = demo(&["--seconds", "4", "-o", "json"]).spawn().unwrap();
        std::thread::sleep(delay);
        // The demo may have ended already, which the test allows.
        let _ = kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGKILL);
        child.wait().unwrap();
        // The processes end with the demo; the kernel needs a moment.
        let deadline = Instant::now() + PATIENCE;
        while !DemoRemains::now().processes.is_empty() {
            assert!(
                Instant::now() < deadline,
                "round {round}, killed after {delay:?}: {:?}",
                DemoRemains::now()
            );
            std::thread::sleep(Duration::from_millis(20));
        }
        assert_eq!(
            DemoRemains::now().links,
            links,
            "round {round}, killed after {delay:?}"
        );
    }
    let (code, _, stderr) = run(&mut demo(&["--seconds", "2", "-o", "json"]));
    assert_eq!(code, 0, "{stderr}");
    assert_eq!(DemoRemains::now(), DemoRemains::nothing(&links));
}

#[test]
fn an_interrupt_cleans_up() {
    let Some(_alone) = kernel_tests() else { return };
    let links = DemoRemains::now().links;
    // The one signal comes in the middle, the other signal before the first process or soon afterwards.
    for (signal, is_early) in [(Signal::SIGINT, false), (Signal::SIGTERM, true)] {
        let mut child = demo(&["--seconds", "60"]).spawn().unwrap();
        until(&mut child, "cgroup", |made| !made.cgroups.is_empty());
        if !is_early {
            until(&mut child, "process", |made| !made.processes.is_empty());
            std::thread::sleep(Duration::from_millis(2500));
        }
        send(&child, signal);
        let output = child.wait_with_output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(130), "{stderr}");
        assert!(stderr.contains("interrupted"), "{stderr}");
        assert_eq!(DemoRemains::now(), DemoRemains::nothing(&links), "{signal}");
    }
}

#[test]
fn a_second_demo_is_told_of_the_first() {
    let Some(_alone) = kernel_tests() else { return };
    let mut first = demo(&["--seconds", "60"]).spawn().unwrap();
    until(&mut first, "process", |made| !made.processes.is_empty());
    let (code, _, stderr) = run(&mut demo(&["--seconds", "2"]));
    send(&first, Signal::SIGINT);
    let ended = first.wait_with_output().unwrap();
    assert_eq!(code, 2, "{stderr}");
    assert!(
        stderr.contains("another pinfold demo or bench is running"),
        "{stderr}"
    );
    assert_eq!(
        ended.status.code(),
        Some(130),
        "the first was disturbed: {}",
        String::from_utf8_lossy(&ended.stderr)
    );
}

/// A frame of `pinfold top` with a pod with exclusive CPUs, while a demo runs; `None` if the demo ended before.
fn frame_beside_a_demo(seconds: u64) -> Option<String> {
    // Connections come from 127.0.0.1, so no connection takes the port of this address in the meantime.
    let port = std::net::TcpListener::bind("127.0.0.78:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let address = format!("127.0.0.78:{port}");
    let mut child = pinfold()
        // The job has traffic only with a parameter server.
        .args(["demo", "--ps", "1", "--listen", &address, "--seconds"])
        .arg(seconds.to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let node = format!("here={address}");
    let arguments = [
        "top",
        "--once",
        "--interval",
        "1s",
        "--width",
        "120",
        "--node",
        &node,
    ];
    let frame = loop {
        let (code, frame, complaint) = run(pinfold().args(arguments).stdin(Stdio::null()));
        let line = frame.lines().find(|line| line.contains("worker-0"));
        // The first sample may precede the first byte.
        if code == 0 && line.is_some_and(|line| !line.split_whitespace().any(|cell| cell == "-")) {
            break Some(frame);
        }
        if child.try_wait().unwrap().is_some() {
            eprintln!("{seconds} s: no owner is shown: {code}\n{frame}\n{complaint}");
            break None;
        }
        std::thread::sleep(Duration::from_millis(100));
    };
    if frame.is_some() {
        send(&child, Signal::SIGINT);
    }
    let ended = child.wait_with_output().unwrap();
    // The demo may have ended before the signal.
    assert!(
        matches!(ended.status.code(), Some(0 | 130)),
        "{}",
        String::from_utf8_lossy(&ended.stderr)
    );
    frame
}

#[test]
fn top_shows_what_the_demo_does() {
    let Some(_alone) = kernel_tests() else { return };
    let links = DemoRemains::now().links;
    // A pod must live for more than two samples of `top`, which a slow machine takes longer for.
    let frame = [60, 240, 1800].into_iter().find_map(frame_beside_a_demo);
    let frame = frame.unwrap_or_else(|| panic!("no owner is shown"));
    let worker = frame
        .lines()
        .find(|line| line.contains("worker-0"))
        .unwrap();
    let cells: Vec<&str> = worker.split_whitespace().collect();
    let own: pinfold::cpu::CpuSet = cells[3].parse().unwrap_or_else(|_| panic!("{frame}"));
    // a demo/worker-0 worker 1 0.9 3/1 1.0 0.3% 10ms 17.6Mi 18.8Mi
    assert_eq!(
        (cells[0], cells[2], cells.len()),
        ("a", "worker", 11),
        "{frame}"
    );
    assert!(
        cells[5].ends_with(&format!("/{}", own.len())) && cells[9].ends_with('i'),
        "{frame}"
    );
    // A warning below the table begins with the pod's name and a colon.
    let pods: Vec<&str> = frame
        .split_whitespace()
        .filter(|cell| cell.starts_with("demo/") && !cell.ends_with(':'))
        .collect();
    let names: BTreeSet<&str> = pods.iter().copied().collect();
    assert_eq!(names.len(), pods.len(), "pods of another slice:\n{frame}");
    let signs = frame.lines().nth(1).unwrap().matches('a').count();
    assert_eq!(
        signs,
        own.len(),
        "each of its CPUs has its sign on the map:\n{frame}"
    );
    assert_eq!(DemoRemains::now(), DemoRemains::nothing(&links));
}

#[test]
fn missing_cgroups_and_rights_are_named_with_exit_code_2() {
    let empty = tempfile::tempdir().unwrap();
    let root = empty.path().to_str().unwrap();
    if nix::unistd::geteuid().is_root() {
        let (code, _, stderr) = run(&mut demo(&["--cgroup-dir", root]));
        assert_eq!(code, 2, "{stderr}");
        assert!(
            stderr.contains("no cgroup hierarchy with the cpuset controller"),
            "{stderr}"
        );
        use std::os::unix::process::CommandExt;
        // The test runs a copy, because other users may have no access to the binary's folder.
        let copy = empty.path().join("pinfold");
        program_copy::copy_program(env!("CARGO_BIN_EXE_pinfold"), &copy);
        fs::set_permissions(
            empty.path(),
            std::os::unix::fs::PermissionsExt::from_mode(0o755),
        )
        .unwrap();
        let (code, _, stderr) = run(Command::new(&copy).arg("demo").uid(65_534).gid(65_534));
        assert_eq!(code, 2, "{stderr}");
        assert!(stderr.contains("needs root"), "{stderr}");
    } else {
        let (code, _, stderr) = run(&mut demo(&[]));
        assert_eq!(code, 2, "{stderr}");
        assert!(stderr.contains("needs root"), "{stderr}");
    }
    let (code, _, stderr) = run(&mut demo(&["--seconds", "0"]));
    assert_eq!(code, 2, "{stderr}");
    assert!(stderr.contains("--seconds"), "{stderr}");
}

#[test]
fn a_port_that_is_taken_leaves_nothing() {
    let Some(_alone) = kernel_tests() else { return };
    let links = DemoRemains::now().links;
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let (code, _, stderr) = run(pinfold()
        .args(["demo", "--listen", &address])
        .stdin(Stdio::null()));
    assert_eq!(code, 2, "{stderr}");
    assert!(
        stderr.contains("can't listen on") && stderr.contains(&address),
        "{stderr}"
    );
    assert_eq!(DemoRemains::now(), DemoRemains::nothing(&links));
}
