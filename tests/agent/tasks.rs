//! Readings of single threads on the real kernel: masks that a program narrows, threads that are moved, threads that want to
//! run on too few CPUs, and the report about them.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::sched::{CpuSet as Mask, sched_setaffinity};
use nix::unistd::Pid;
use pinfold::cpu::CpuSet;
use pinfold::host::proc::Proc;
use pinfold::host::spawn::{Launcher, Process, Spawn, Stderr};
use pinfold::metrics::Sources;
use pinfold::pin::snapshot::ContainerState;
use pinfold::pod::{
    Container, Pod, Policy, ThreadBasis, ThreadEnvironment, ThreadPolicy, ThreadStatus,
    thread_environment,
};

use crate::counters::{complete_page, snapshot, state};
use crate::kernel::{Kernel, kernel_tests};

/// The time limit for a change that a process makes by itself.
const PATIENCE: Duration = Duration::from_secs(30);

fn start(
    kernel: &Kernel,
    launcher: &Launcher,
    path: &str,
    script: &str,
    env: &[(&str, &str)],
) -> Process {
    let spawn = Spawn {
        program: "/bin/sh".into(),
        args: vec!["-c".into(), script.into()],
        env: env
            .iter()
            .map(|(name, value)| ((*name).into(), (*value).into()))
            .collect::<BTreeMap<_, _>>(),
        cgroup_procs: kernel.cgroups.procs_files(path),
        netns: None,
        stderr: Stderr::File("/dev/null".into()),
    };
    launcher.spawn(spawn).unwrap()
}

/// The environment of a worker with the given number of exclusive CPUs.
fn environment(cpus: usize) -> ThreadEnvironment {
    let label = (
        "training.kubeflow.org/replica-type".to_owned(),
        "worker".to_owned(),
    );
    let pod = Pod {
        labels: [label].into(),
        containers: vec![Container::default()],
        ..Pod::default()
    };
    let basis = Some(ThreadBasis::exclusive(cpus, cpus, 1));
    thread_environment(
        &pod.into(),
        0,
        &Policy::default(),
        &ThreadPolicy::default(),
        basis,
    )
}

/// A family's value for the pod, with any further labels.
fn value(text: &str, family: &str) -> Option<f64> {
    let start =
        format!("pinfold_container_{family}{{namespace=\"train\",pod=\"a\",container=\"main\"}} ");
    text.lines()
        .find_map(|line| line.strip_prefix(&start))
        .map(|value| value.parse().unwrap())
}

fn moved(pid: u32) -> u64 {
    let sched = fs::read_to_string(format!("/proc/{pid}/sched")).unwrap();
    let line = sched
        .lines()
        .find_map(|line| line.strip_prefix("se.nr_migrations"))
        .unwrap();
    line.trim_start()
        .trim_start_matches(':')
        .trim()
        .parse()
        .unwrap()
}

fn bind(pid: u32, cpu: u32) {
    let mut mask = Mask::new();
    mask.set(cpu as usize).unwrap();
    sched_setaffinity(Pid::from_raw(i32::try_from(pid).unwrap()), &mask).unwrap();
}

struct Node<'a> {
    kernel: &'a Kernel,
    sources: Sources,
    state: ContainerState,
}

impl Node<'_> {
    fn scrape(&self) -> String {
        let snapshot = snapshot(self.kernel, std::slice::from_ref(&self.state));
        complete_page(&self.sources, &snapshot, "tasks")
    }

    /// Scrapes until a page is as wanted.
    fn eventually(&self, what: &str, wanted: impl Fn(&str) -> bool) -> String {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let text = self.scrape();
            if wanted(&text) {
                return text;
            }
            assert!(Instant::now() < deadline, "{what}: {text}");
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    fn truth(&self) -> Option<ThreadStatus> {
        let snapshot = snapshot(self.kernel, std::slice::from_ref(&self.state));
        self.sources.thread_status(&self.state, &snapshot)
    }

    fn verdict(&self) -> Option<(String, String)> {
        let verdict = self.truth()?.verdict?;
        Some((verdict.finding.name().to_owned(), verdict.sentence))
    }
}

#[test]
fn masks_migrations_and_threads_that_want_to_run() {
    let Some(kernel) = kernel_tests() else { return };
    let tree = kernel.tree();
    let pod = tree.pod("", "looked-at");
    let main = tree.container(&pod, "main");
    let cpus: CpuSet = kernel.online.iter().take(2).collect();
    for path in [&tree.path, &pod, &main] {
        kernel.write_cpus(path, if *path == main { &cpus } else { &kernel.online });
        kernel.write(path, "cpuset.mems", "0");
    }
    let (first, second) = (cpus.first().unwrap(), cpus.iter().last().unwrap());
    let sources = Sources::new(
        kernel.cgroups.clone(),
        Proc::new(Path::new("/")),
        Path::new("/"),
    );
    let mut node = Node {
        kernel: &kernel,
        sources,
        state: state("a", &main, &cpus),
    };
    node.state.threads = environment(2);
    let launcher = Launcher::new().unwrap();

    // One sleeping thread: no thread is bound, and one thread is fewer than the four of the pools.
    let computed = node.state.threads.variables.clone();
    let own = computed
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_str()));
    let env: Vec<_> = own.chain([("TOKEN", "x")]).collect();
    let sleeper = start(&kernel, &launcher, &main, "exec sleep 600", &env);
    // The environment is unknown until the kernel has set up the new program, which may be after the first scrape.
    let variables = || node.truth().and_then(|truth| truth.variables);
    let text = node.eventually("the environment was read", |text| {
        value(text, "threads_bound").is_some() && variables().is_some()
    });
    assert_eq!(
        (
            value(&text, "threads_bound"),
            value(&text, "cpus_allowed_by_tasks")
        ),
        (Some(0.0), Some(2.0))
    );
    let (finding, sentence) = node.verdict().unwrap();
    assert_eq!(finding, "fewer than expected", "{sentence}");
    assert!(
        text.contains("verdict=\"fewer_than_expected\",cause=\"pools_not_started"),
        "{text}"
    );
    let variables = variables().unwrap();
    assert_eq!(variables, computed, "and no secret");

    // The program narrows its own mask, as taskset or a bound OpenMP runtime does.
    bind(sleeper.pid(), second);
    let text = node.eventually("the thread is bound", |text| {
        value(text, "threads_bound") == Some(1.0)
    });
    assert_eq!(value(&text, "cpus_allowed_by_tasks"), Some(1.0));

    // Six spinning threads on two CPUs: more threads than the pools have, and more than two want to run.
    let spinning: Vec<Process> = (0..6)
        .map(|_| start(&kernel, &launcher, &main, "while :; do :; done", &[]))
        .collect();
    std::thread::sleep(Duration::from_millis(300));
    node.scrape();
    // The average since the scrape before: on a busy machine, the first period has less than six threads.
    let deadline = Instant::now() + PATIENCE;
    let text = loop {
        std::thread::sleep(Duration::from_millis(1500));
        let text = node.scrape();
        let runnable = node.truth().unwrap().runnable.unwrap();
        if (4.5..=7.0).contains(&runnable) {
            break text;
        }
        assert!(Instant::now() < deadline, "six want to run: {runnable}");
    };
    let (finding, sentence) = node.verdict().unwrap();
    assert_eq!(finding, "oversubscribed", "{sentence}");
    assert!(
        sentence.contains("on 2 CPUs") && text.contains("verdict=\"oversubscribed\""),
        "{sentence}"
    );

    // Moved threads count as the kernel counts them; an ended thread takes no count back.
    let pid = spinning[0].pid();
    let before = node.eventually("the counter runs", |text| {
        value(text, "cpu_migrations_total").is_some()
    });
    let (before, own) = (value(&before, "cpu_migrations_total").unwrap(), moved(pid));
    for round in 0..20 {
        bind(pid, if round % 2 == 0 { first } else { second });
        std::thread::sleep(Duration::from_millis(20));
    }
    let more = (moved(pid) - own) as f64;
    assert!(more >= 10.0, "the kernel moved the thread {more} times");
    node.eventually("the moves count", |text| {
        value(text, "cpu_migrations_total").is_some_and(|now| now - before >= more)
    });
    let text = node.scrape();
    let total = value(&text, "cpu_migrations_total").unwrap();
    drop(spinning);
    let text = node.eventually("the spinning threads are gone", |text| {
        value(text, "threads") == Some(1.0)
    });
    assert!(
        value(&text, "cpu_migrations_total").unwrap() >= total,
        "{text}"
    );
    let (_, sentence) = node.verdict().unwrap();
    assert!(
        sentence.contains("1 thread (at most 7 so far)"),
        "{sentence}"
    );
}
