//! The live files of a pinned container, with the real kernel: a program that looks at its affinity and at its files never runs on
//! a CPU that they do not name.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use pinfold::cpu::CpuSet;
use pinfold::nri::OptionalInt64;

use crate::agent::{Agent, Settings};
use crate::kernel::{allowed, kernel_tests};
use crate::runtime::{EventMessage, Synchronize};
use crate::runtime_requests::{Runtime, alone, event_message, path};

/// The event PostUpdateContainer.
const UPDATED: i32 = 9;

fn text(folder: &Path, name: &str) -> String {
    fs::read_to_string(folder.join(name)).unwrap_or_default()
}

fn cpus(folder: &Path, name: &str) -> CpuSet {
    text(folder, name).trim().parse().unwrap()
}

/// Waits until a file names these CPUs.
fn wait_for(agent: &Agent, folder: &Path, name: &str, wanted: &CpuSet) {
    let what = format!("{name} has {wanted}");
    agent.eventually(&what, |_| cpus(folder, name) == *wanted);
}

fn wait_for_text(agent: &Agent, folder: &Path, name: &str, wanted: &str) {
    let what = format!("{name} has {wanted:?}");
    agent.eventually(&what, |_| text(folder, name) == wanted);
}

/// Compares the affinity of a process with its container's file until `stop`. Returns the number of looks.
fn look(folder: &Path, pid: u32, stop: &AtomicBool) -> usize {
    let mut looks = 0;
    while !stop.load(Ordering::Relaxed) {
        let before = cpus(folder, "cpus");
        let runs_on = allowed(pid);
        let named = before.union(&cpus(folder, "cpus"));
        assert!(
            runs_on.is_subset(&named),
            "{runs_on}, and the file names {named}"
        );
        looks += 1;
        thread::sleep(Duration::from_millis(1));
    }
    looks
}

/// The runtime's description of a container after a resize.
fn resized(description: &EventMessage, millicpus: i64) -> EventMessage {
    let mut resized = description.clone();
    let linux = resized.container.as_mut().unwrap().linux.as_mut().unwrap();
    let cpu = linux.resources.as_mut().unwrap().cpu.as_mut().unwrap();
    cpu.quota = Some(OptionalInt64 {
        value: millicpus * 100,
    });
    resized
}

#[test]
fn a_programs_files_name_its_cpus_before_it_runs_on_them() {
    let Some(kernel) = kernel_tests() else { return };
    let mut tree = kernel.tree();
    let base = tempfile::tempdir().unwrap();
    let mut runtime = Runtime::new();
    let mut settings: Settings = runtime.settings(&alone(&kernel, &tree));
    settings.environment = [
        ("PINFOLD_LIVE_DIR", base.path().to_str().unwrap()),
        ("PINFOLD_SHRINK_DELAY", "1500ms"),
    ]
    .map(|(name, value)| (name.to_owned(), value.to_owned()))
    .to_vec();
    let agent = settings.start();
    runtime.connect(&agent);
    let count = i64::try_from(kernel.online.len() - 1).unwrap().min(3);
    let message = event_message(&tree, "worker", count);
    runtime.change(1, &message);
    let created = runtime.create(&message);
    let own = created.cpus.unwrap();
    let [mount] = created.mounts.as_slice() else {
        panic!("{:?}\n{}", created.mounts, agent.log());
    };
    let folder = base.path().join("containers/worker-uid/main");
    assert_eq!(mount.destination, "/run/pinfold");
    assert_eq!(Path::new(&mount.source), folder);
    // All is there before the program begins.
    for name in ["cpus", "upcoming-cpus"] {
        assert_eq!(cpus(&folder, name), own);
    }
    assert_eq!(text(&folder, "threads"), format!("{count}\n"));
    assert!(!text(&folder, "memory-nodes").trim().is_empty());
    let inode = || fs::metadata(&folder).unwrap().ino();
    let first = inode();
    tree.make(&path(&message));
    let pid = tree.start(&path(&message));
    runtime.change(6, &message);
    agent.eventually("the worker is pinned", |_| allowed(pid) == own);

    let stop = Arc::new(AtomicBool::new(false));
    let watching = thread::spawn({
        let (folder, stop) = (folder.clone(), Arc::clone(&stop));
        move || look(&folder, pid, &stop)
    });
    if count > 1 {
        runtime.change(UPDATED, &resized(&message, 1000 * (count - 1)));
        agent.eventually("the program is told", |_| {
            cpus(&folder, "upcoming-cpus") != own
        });
        let left = cpus(&folder, "upcoming-cpus");
        assert!(
            left.is_subset(&own) && left.len() + 1 == own.len(),
            "{left}"
        );
        agent.eventually("the CPU goes", |_| allowed(pid) == left);
        wait_for(&agent, &folder, "cpus", &left);
        wait_for_text(&agent, &folder, "threads", &format!("{}\n", count - 1));
        runtime.change(UPDATED, &message);
        agent.eventually("the worker grows", |_| allowed(pid).len() == own.len());
        wait_for(&agent, &folder, "cpus", &allowed(pid));
    }
    // To a fraction of a CPU: the program learns first, and the CPUs go later.
    let begun = Instant::now();
    runtime.change(UPDATED, &resized(&message, 500));
    wait_for(&agent, &folder, "upcoming-cpus", &kernel.online);
    assert!(begun.elapsed() > Duration::from_millis(1500) || allowed(pid) == own);
    wait_for(&agent, &folder, "cpus", &kernel.online);
    assert!(
        begun.elapsed() >= Duration::from_millis(1500),
        "{:?}",
        begun.elapsed()
    );
    agent.eventually("the worker is shared", |_| allowed(pid) == kernel.online);
    // And back.
    runtime.change(UPDATED, &message);
    agent.eventually("the worker is pinned again", |_| {
        allowed(pid).len() == own.len()
    });
    let own = allowed(pid);
    wait_for(&agent, &folder, "cpus", &own);

    // A new agent finds the folder, and the mount still leads there.
    agent.kill();
    let agent = settings.start();
    let existing = Synchronize {
        pods: message.pod.clone().into_iter().collect(),
        containers: message.container.clone().into_iter().collect(),
        ..Synchronize::default()
    };
    runtime.synchronize(&agent, 20_000, &existing);
    assert_eq!((inode(), cpus(&folder, "cpus")), (first, own.clone()));
    runtime.change(UPDATED, &resized(&message, 500));
    wait_for(&agent, &folder, "cpus", &kernel.online);
    stop.store(true, Ordering::Relaxed);
    assert!(watching.join().unwrap() > 100);

    // The folder goes with the pod.
    tree.remove(&path(&message));
    [11, 2, 3]
        .into_iter()
        .for_each(|event| runtime.change(event, &message));
    tree.remove(path(&message).rsplit_once('/').unwrap().0);
    agent.eventually("the folder is gone", |_| !folder.exists());
    agent.stop();
}

#[test]
fn a_container_starts_without_a_folder_that_cannot_be_made() {
    let Some(kernel) = kernel_tests() else { return };
    let tree = kernel.tree();
    let mut runtime = Runtime::new();
    let mut settings = runtime.settings(&alone(&kernel, &tree));
    settings.environment = vec![("PINFOLD_LIVE_DIR".to_owned(), "/proc/nowhere".to_owned())];
    let agent = settings.start();
    runtime.connect(&agent);
    let message = event_message(&tree, "worker", 1);
    runtime.change(1, &message);
    let created = runtime.create(&message);
    assert!(created.cpus.is_some() && created.mounts.is_empty());
    agent.eventually("the status says why", |status| {
        status["errors"]
            .to_string()
            .contains("can't write /proc/nowhere")
    });
    assert!(
        agent.log().contains("gets no live files"),
        "{}",
        agent.log()
    );
    agent.stop();
}
