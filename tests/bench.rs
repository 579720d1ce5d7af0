//! The bench as users run it: the plan, the figures, the refusals, and the cleanup on every kind of
//! end.
//!
//! Most tests need root and a cgroup hierarchy with cpuset, so plain `cargo test` leaves them to
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
#[path = "support/repository.rs"]
mod repository;

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use ran::run;
use serde_json::Value;

/// The time limit for what follows soon. Only a failure takes so long.
const PATIENCE: Duration = Duration::from_secs(60);

/// Benches run one after the other, because each needs all CPUs of the machine.
static ALONE: Mutex<()> = Mutex::new(());

fn kernel_tests() -> Option<MutexGuard<'static, ()>> {
    let meant = gate::meant_for_this_machine("root, cgroups with cpuset and two CPUs");
    meant.then(|| {
        ALONE
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    })
}

fn bench(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pinfold"));
    command
        .arg("bench")
        .args(arguments)
        .env_remove("PINFOLD_LOG_LEVEL");
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

fn report(arguments: &[&str]) -> Value {
    let (code, stdout, stderr) = run(&mut bench(arguments));
    assert_eq!(code, 0, "{stderr}");
    serde_json::from_str(&stdout).unwrap()
}

/// What a bench may leave behind: cgroups, the folder of manifests, processes, links.
#[derive(Debug, PartialEq, Eq)]
struct BenchRemains {
    cgroups: BTreeSet<PathBuf>,
    folder: bool,
    processes: Vec<String>,
    links: BTreeSet<String>,
}

impl BenchRemains {
    /// A process counts if the command line contains `mark` or the program's path.
    fn now(mark: &str) -> Self {
        let mut cgroups = BTreeSet::new();
        find(Path::new("/sys/fs/cgroup"), 2, &mut cgroups);
        let names = |path: &str| -> BTreeSet<String> {
            let entries = fs::read_dir(path).unwrap().flatten();
            entries
                .map(|entry| entry.file_name().to_string_lossy().into_owned())
                .collect()
        };
        let line = |pid: String| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&line).replace('\0', " ")
        };
        let ours = |line: &String| line.contains("pinfold train ") || line.contains(mark);
        Self {
            cgroups,
            folder: Path::new("/run/pinfold-demo").exists(),
            processes: names("/proc").into_iter().map(line).filter(ours).collect(),
            links: names("/sys/class/net"),
        }
    }

    fn is_nothing(&self, links: &BTreeSet<String>) -> bool {
        self.cgroups.is_empty() && !self.folder && self.processes.is_empty() && self.links == *links
    }
}

fn find(dir: &Path, depth: usize, found: &mut BTreeSet<PathBuf>) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() && !path.is_symlink() {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            // Cgroups of a killed test do not belong to a bench.
            if name.starts_with("pinfold-") && !name.starts_with("pinfold-test-") {
                found.insert(path);
            } else if depth > 0 {
                find(&path, depth - 1, found);
            }
        }
    }
}

/// A mark that only one test has in its command lines.
const MARK: &str = "a-command-of-the-bench-test";

fn nothing_left(links: &BTreeSet<String>) {
    let left = BenchRemains::now(MARK);
    assert!(left.is_nothing(links), "{left:?}");
}

fn until_it_runs(child: &mut Child) {
    let deadline = Instant::now() + PATIENCE;
    // The bench's own command line has the mark, too.
    while !BenchRemains::now(MARK)
        .processes
        .iter()
        .any(|line| line.starts_with("/bin/sh -c "))
    {
        assert!(
            Instant::now() < deadline && child.try_wait().unwrap().is_none(),
            "it runs nothing"
        );
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn figure(report: &Value, way: usize, metric: &str) -> f64 {
    report["ways"][way]["figures"][metric]["median"]
        .as_f64()
        .unwrap_or_else(|| panic!("{metric}: {report}"))
}

#[test]
fn the_figures_of_a_short_bench() {
    let Some(_alone) = kernel_tests() else { return };
    let links = BenchRemains::now(MARK).links;
    let folder = tempfile::tempdir().unwrap();
    let picture = folder.path().join("bench.svg");
    let svg = picture.to_str().unwrap();
    let page = folder.path().join("bench.html");
    let report = report(&[
        "--rounds",
        "2",
        "--seconds",
        "1",
        "--host-threads",
        "8",
        "--svg",
        svg,
        "--html",
        page.to_str().unwrap(),
        "-o",
        "json",
    ]);
    let runs = report["runs"].as_array().unwrap();
    assert_eq!(runs.len(), 8);
    // The order is the plan's.
    let planned = report["plan"]["rounds"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|round| round.as_array().unwrap());
    for (run, planned) in runs.iter().zip(planned) {
        assert_eq!(
            (&run["cpus"], &run["threads"]),
            (&planned["cpus"], &planned["threads"])
        );
    }
    for way in 0..4 {
        assert!(figure(&report, way, "stepsPerSecond") > 0.0);
        assert!(figure(&report, way, "contextSwitchesPerStep") > 0.0);
        assert!(figure(&report, way, "stepMsP50") <= figure(&report, way, "stepMsP99"));
    }
    // A pinned pod has no quota that could run out.
    for way in [2, 3] {
        assert_eq!(figure(&report, way, "throttledPeriodsPerSecond"), 0.0);
    }
    // Eight threads each, or as many as CPUs: the job is told, and the agent sees it.
    let threads = |way: usize| report["ways"][way]["threadCount"].as_u64().unwrap();
    assert!(
        threads(0) > threads(1) && threads(2) > threads(3),
        "{report}"
    );
    assert_eq!(report["effects"].as_array().unwrap().len(), 49);
    assert!(
        report["effects"]
            .to_string()
            .contains("too few rounds to tell")
    );
    assert_eq!(report["claims"].as_array().unwrap().len(), 3);
    // The measured interference, of the pinned runs only.
    for run in runs {
        let share = run["interference"]["share"].as_f64();
        let fits = share.is_some_and(|share| (0.0..=1.0).contains(&share));
        assert_eq!(fits, run["cpus"] == "pinned", "{run}");
    }
    assert!(report["interference"]["reliable"].is_boolean(), "{report}");
    assert!(report["compared"].as_array().unwrap().len() > 1, "{report}");
    // Each metric is counted in every way, or has a reason.
    for metric in ["migrationsPerStep", "cacheMissesPerStep"] {
        let counted = (0..4).all(|way| report["ways"][way]["figures"].get(metric).is_some());
        let reason = report["notCounted"][metric].as_str().unwrap_or_default();
        assert_eq!(counted, reason.is_empty(), "{metric}: {report}");
    }
    let svg = fs::read_to_string(&picture).unwrap();
    assert!(
        svg.starts_with("<svg") && svg.matches("<circle").count() >= 16,
        "{svg}"
    );
    let page = fs::read_to_string(&page).unwrap();
    assert!(
        page.starts_with("<!doctype html>") && page.contains("Too few repeats"),
        "{page}"
    );
    nothing_left(&links);
}

#[test]
fn a_command_is_measured_by_its_steps_or_to_its_end() {
    let Some(_alone) = kernel_tests() else { return };
    let links = BenchRemains::now(MARK).links;
    // The shell's children must end with the shell, and the variables must be the agent's.
    let steps = "while :; do sleep 0.01; echo step $TF_NUM_INTRAOP_THREADS; done";
    let usual = [
        "--rounds",
        "1",
        "--seconds",
        "1",
        "--neighbor-pods",
        "1",
        "--neighbor-busy",
        "30",
        "-o",
        "json",
    ];
    let with = |more: &[&str]| -> Value { report(&[&usual[..], more].concat()) };
    let by_steps = with(&["--command", steps, "--steps", "^step"]);
    for way in 0..4 {
        // A step takes at least 10 ms. Delayed lines may arrive together.
        let rate = figure(&by_steps, way, "stepsPerSecond");
        assert!(rate > 0.0 && rate < 1000.0, "{by_steps}");
    }
    // The variables are the agent's where threads are right, and the larger host's where they are not.
    // Each line tells the variable as the duration of the step.
    let told = with(&[
        "--command",
        steps,
        "--steps",
        "^step (?<ms>[0-9]+)",
        "--host-threads",
        "9",
    ]);
    for (way, is_large) in [(0, true), (1, false), (2, true), (3, false)] {
        let threads = figure(&told, way, "stepMsP50");
        assert_eq!((threads - 9.0).abs() < 0.01, is_large, "{told}");
    }
    let whole = with(&["--command", "sleep 0.6; echo done"]);
    for way in 0..4 {
        let millis = figure(&whole, way, "stepMsP50");
        assert!((600.0..60_000.0).contains(&millis), "{whole}");
        assert!(
            figure(&whole, way, "contextSwitchesPerStep") >= 1.0,
            "{whole}"
        );
    }
    assert!(
        whole["notCounted"]["migrationsPerStep"]
            .as_str()
            .unwrap()
            .contains("duration is measured"),
        "{whole}"
    );
    nothing_left(&links);
}

/// Equal containers: the neighbors run the program of the workers, a command again and again.
#[test]
fn a_full_node_runs_the_same_program_in_each_container() {
    let Some(_alone) = kernel_tests() else { return };
    let links = BenchRemains::now(MARK).links;
    let usual = [
        "--full-node",
        "--rounds",
        "1",
        "--seconds",
        "1",
        "-o",
        "json",
    ];
    let with = |more: &[&str]| -> Value { report(&[&usual[..], more].concat()) };
    let built_in = with(&[]);
    let command = format!("sleep 0.5; echo {MARK}");
    let whole = with(&["--command", &command]);
    for report in [&built_in, &whole] {
        let plan = &report["plan"];
        let number = |value: &Value| value.as_u64().unwrap();
        let containers = number(&plan["workers"]) + number(&plan["neighbors"]["count"]);
        let online: pinfold::cpu::CpuSet = plan["online"].as_str().unwrap().parse().unwrap();
        assert_eq!(
            containers * number(&plan["cpus"]),
            online.len() as u64,
            "{report}"
        );
        assert_eq!(plan["fullNode"], true);
        for way in 0..4 {
            assert!(figure(report, way, "stepsPerSecond") > 0.0, "{report}");
        }
    }
    nothing_left(&links);
}

#[test]
fn a_command_that_fails_is_told_with_its_words() {
    let Some(_alone) = kernel_tests() else { return };
    let links = BenchRemains::now(MARK).links;
    let usual = ["--rounds", "1", "--seconds", "1"];
    for (command, says) in [
        (
            &["--command", "echo no such data >&2; exit 3"][..],
            &["exit status: 3", "no such data", "round 1, shared"][..],
        ),
        (
            &["--command", "sleep 0.2; exit 3", "--steps", "^step"],
            &["exit status: 3"],
        ),
        (
            &["--command", "sleep 1; echo done", "--steps", "^step"],
            &["made no step", "--steps"],
        ),
        // A hundred lines are enough for the error: a slow machine prints a hundred lines in time.
        (
            &[
                "--command",
                "while :; do i=$((i + 10000)); echo \"step $i 1\"; done",
                "--steps",
                "^step (?<step>[0-9]+) (?<ms>[0-9]+)",
            ],
            &["too many lines match", "match fewer lines"],
        ),
        (
            &[
                "--command",
                "while echo step 1,5; do sleep 0.1; done",
                "--steps",
                "^step (?<step>.*)",
            ],
            &["1,5"],
        ),
        (
            &["--command", "sleep 60", "--limit", "10"],
            &["not ended within 10 s", "--limit"],
        ),
    ] {
        let (code, stdout, stderr) = run(&mut bench(&[&usual[..], command].concat()));
        assert_eq!((code, stdout.as_str()), (2, ""), "{command:?}: {stderr}");
        for words in says {
            assert!(stderr.contains(words), "{command:?}: {stderr}");
        }
        nothing_left(&links);
    }
}

#[test]
fn a_command_that_ends_in_the_measurement_is_told_of() {
    let Some(_alone) = kernel_tests() else { return };
    let links = BenchRemains::now(MARK).links;
    // On a slow machine, the command ends before the measurement. A longer command then ends in the measurement.
    let in_the_measurement = ["2", "20", "60"].into_iter().any(|seconds| {
        let command = format!("echo step; sleep {seconds}");
        let (code, stdout, stderr) = run(&mut bench(&[
            "--rounds",
            "1",
            "--seconds",
            "1",
            "--command",
            &command,
            "--steps",
            "^step",
        ]));
        assert_eq!((code, stdout.as_str()), (2, ""), "{command}: {stderr}");
        assert!(stderr.contains("the command ended"), "{command}: {stderr}");
        nothing_left(&links);
        stderr.contains("--seconds")
    });
    assert!(in_the_measurement, "each command ended early");
}

#[test]
fn a_signal_in_the_middle_leaves_nothing() {
    let Some(_alone) = kernel_tests() else { return };
    let links = BenchRemains::now(MARK).links;
    let folder = tempfile::tempdir().unwrap();
    let picture = folder.path().join("bench.svg");
    // A shell with a child, both deaf to SIGTERM.
    let deaf = format!("trap '' TERM; while :; do sleep 0.02; echo {MARK}; done");
    for (signal, delay) in [(Signal::SIGTERM, 0), (Signal::SIGINT, 1500)] {
        let arguments = [
            "--command",
            &deaf,
            "--steps",
            "a",
            "--svg",
            picture.to_str().unwrap(),
        ];
        let mut child = bench(&arguments).spawn().unwrap();
        until_it_runs(&mut child);
        std::thread::sleep(Duration::from_millis(delay));
        kill(Pid::from_raw(child.id().cast_signed()), signal).unwrap();
        let output = child.wait_with_output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(130), "{stderr}");
        assert!(
            stderr.contains("interrupted") && !picture.exists(),
            "{stderr}"
        );
        nothing_left(&links);
    }
}

#[test]
fn a_kill_leaves_nothing_a_moment_later() {
    let Some(_alone) = kernel_tests() else { return };
    let links = BenchRemains::now(MARK).links;
    let command = format!("while :; do sleep 0.02; echo {MARK}; done");
    let mut child = bench(&["--command", &command, "--steps", "a"])
        .spawn()
        .unwrap();
    until_it_runs(&mut child);
    child.kill().unwrap();
    child.wait().unwrap();
    let deadline = Instant::now() + PATIENCE;
    while !BenchRemains::now(MARK).is_nothing(&links) {
        assert!(Instant::now() < deadline, "{:?}", BenchRemains::now(MARK));
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_running_agent_is_named_as_the_owner_of_the_cgroups() {
    let Some(_alone) = kernel_tests() else { return };
    let links = BenchRemains::now(MARK).links;
    let mut command = Command::new(env!("CARGO_BIN_EXE_pinfold"));
    let pods = tempfile::tempdir().unwrap();
    command
        .args([
            "run",
            "--listen",
            "127.0.0.1:0",
            "--pod-cgroup",
            "pinfold-none",
            "--manifest-dir",
        ])
        .arg(pods.path());
    let mut agent = command
        .env_remove("PINFOLD_LOG_LEVEL")
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // The agent takes the lock before it serves. The lines of an agent that fails end.
    let mut lines = BufReader::new(agent.stderr.take().unwrap()).lines();
    let serves = lines.any(|line| line.is_ok_and(|line| line.contains("serving http://")));
    let (code, _, said) = run(&mut bench(&[
        "--rounds",
        "1",
        "--seconds",
        "1",
        "--command",
        "sleep 0.5",
    ]));
    kill(Pid::from_raw(agent.id().cast_signed()), Signal::SIGTERM).unwrap();
    agent.wait().unwrap();
    assert!(serves, "the agent ended early");
    assert!(
        code == 2 && said.contains("another pinfold owns the cgroups"),
        "{code}: {said}"
    );
    nothing_left(&links);
}

#[test]
fn a_plan_is_printed_and_nothing_done() {
    let (code, stdout, stderr) = run(&mut bench(&[
        "--dry-run",
        "--rounds",
        "4",
        "--seconds",
        "3",
    ]));
    if std::thread::available_parallelism().unwrap().get() < 2 {
        assert!(
            code == 2 && stderr.contains("no CPU for exclusive use"),
            "{stderr}"
        );
        return;
    }
    assert_eq!(code, 0, "{stderr}");
    for says in [
        "TF_NUM_INTRAOP_THREADS=",
        "round 4:",
        "16 runs of 3 s",
        "for the system",
    ] {
        assert!(stdout.contains(says), "{says}: {stdout}");
    }
    let plan: Value =
        serde_json::from_str(&run(&mut bench(&["--dry-run", "-o", "json"])).1).unwrap();
    assert_eq!(plan["rounds"].as_array().unwrap().len(), 8);
    assert_eq!(plan["work"], "builtIn");
}

#[test]
fn senseless_arguments_are_refused_in_a_sentence() {
    for (arguments, says) in [
        (&["--dry-run", "--rounds", "0"][..], "--rounds"),
        (&["--dry-run", "--seconds", "0"], "--seconds"),
        (&["--dry-run", "--cpus", "1024"], "for exclusive use"),
        (
            &["--dry-run", "--reserved", "4000-4001"],
            "no reserved CPU is online",
        ),
        (&["--dry-run", "--reserved", "0-"], "--reserved"),
        (&["--dry-run", "--steps", "x"], "--command"),
        (
            &["--dry-run", "--command", "x", "--steps", "("],
            "not a regular expression",
        ),
        (
            &["--dry-run", "--command", "x", "--steps", "(?<loss>x)"],
            "the group loss is unknown",
        ),
        (&["--dry-run", "--command", "x", "--ps", "1"], "--ps"),
        (&["--dry-run", "--svg", "x"], "--svg"),
        (&["--dry-run", "--html", "x"], "--html"),
        (&["--dry-run", "--command", " "], "--command is empty"),
        (
            &["--dry-run", "--enforcement", "observe"],
            "nothing to compare",
        ),
        (&["--neighbor-busy", "101"], "--neighbor-busy"),
        (&["--neighbors", "4"], "--neighbors"),
        (
            &["--dry-run", "--full-node", "--neighbor-pods", "1"],
            "cannot be used with",
        ),
        (
            &["--neighbors", "besteffort", "--neighbor-request", "500"],
            "--neighbors besteffort has no --neighbor-request",
        ),
    ] {
        let (code, _, stderr) = run(&mut bench(arguments));
        assert_eq!(code, 2, "{arguments:?}: {stderr}");
        assert!(stderr.contains(says), "{arguments:?}: {stderr}");
    }
    if nix::unistd::geteuid().is_root() {
        let folder = tempfile::tempdir().unwrap();
        let nowhere = folder.path().join("missing/bench.svg");
        let (code, _, stderr) = run(&mut bench(&["--svg", nowhere.to_str().unwrap()]));
        assert!(
            code == 2 && stderr.contains("can't write") && stderr.contains("missing/bench.svg"),
            "{stderr}"
        );
        let (code, _, stderr) = run(&mut bench(&[
            "--cgroup-dir",
            folder.path().to_str().unwrap(),
        ]));
        assert!(
            code == 2 && stderr.contains("no cgroup hierarchy"),
            "{stderr}"
        );
        // The test runs a copy, because other users may have no access to the binary's folder.
        let copy = folder.path().join("pinfold");
        program_copy::copy_program(env!("CARGO_BIN_EXE_pinfold"), &copy);
        fs::set_permissions(
            folder.path(),
            std::os::unix::fs::PermissionsExt::from_mode(0o755),
        )
        .unwrap();
        let (code, _, stderr) = run(Command::new(&copy).arg("bench").uid(65_534).gid(65_534));
        assert!(code == 2 && stderr.contains("needs root"), "{stderr}");
    } else {
        let (code, _, stderr) = run(&mut bench(&[]));
        assert!(code == 2 && stderr.contains("needs root"), "{stderr}");
    }
}

/// The example with a real TensorFlow, at a small size. `PINFOLD_TENSORFLOW` names a Python with TensorFlow.
#[test]
fn tensorflow_is_measured_like_any_command() {
    let Some(python) = std::env::var_os("PINFOLD_TENSORFLOW") else {
        gate::leave(
            "tests/run",
            "PINFOLD_TENSORFLOW, a Python with TensorFlow: tests/tensorflow makes one",
        );
        return;
    };
    let Some(_alone) = kernel_tests() else { return };
    let links = BenchRemains::now(MARK).links;
    let example = repository::here("deploy/examples/bench-tensorflow.py");
    let script = format!("'{}' '{}'", python.to_string_lossy(), example.display());
    let mut command = bench(&[
        "--rounds",
        "1",
        "--seconds",
        "2",
        "--host-threads",
        "8",
        "-o",
        "json",
    ]);
    command.args([
        "--command",
        &script,
        "--steps",
        r"^step (?<step>\d+) (?<ms>[\d.]+) ms",
    ]);
    for (name, value) in [
        ("VOCABULARY", "500"),
        ("DIM", "8"),
        ("HIDDEN", "64,32"),
        ("BATCH", "128"),
    ] {
        command.env(format!("BENCH_{name}"), value);
    }
    let (code, stdout, stderr) = run(&mut command);
    assert_eq!(code, 0, "{stderr}");
    let report: Value = serde_json::from_str(&stdout).unwrap();
    for way in 0..4 {
        assert!(figure(&report, way, "stepsPerSecond") > 1.0, "{report}");
    }
    // TensorFlow took the thread counts from the variables.
    let threads = |way: usize| report["ways"][way]["threadCount"].as_u64().unwrap();
    assert!(
        threads(0) > threads(1) + 4 && threads(2) > threads(3) + 4,
        "{report}"
    );
    nothing_left(&links);
}
