//! Scenarios that must hold wherever the placements come from, the scripted plugin or the agent.
//! Each calls a runtime as the kubelet does, and reads the containers' reports.

use std::time::Instant;

use pinfold::cpu::CpuSet;

use crate::agent::patience;
use crate::daemon::Runtime;
use crate::kernel::{Kernel, Tree};
use crate::messages::{ListContainers, State};
use crate::pods::{Container, ContainerSpec, Pod, PodSpec};
use crate::probe::Report;

#[derive(Clone, Copy)]
pub(crate) struct Stage<'a> {
    pub(crate) kernel: &'a Kernel,
    pub(crate) tree: &'a Tree<'a>,
    pub(crate) runtime: &'a Runtime,
}

/// The CPUs on which a container with the given name must run. This is called after the container's
/// start.
pub(crate) type ExpectedCpus<'a> = &'a dyn Fn(&str) -> CpuSet;

/// The CPUs of a report.
pub(crate) fn cpus(report: &Report) -> CpuSet {
    report.cpus.parse().unwrap()
}

/// A repetition count. An environment variable overrides the default.
pub(crate) fn count(name: &str, default: usize) -> usize {
    std::env::var(name).map_or(default, |text| text.parse().unwrap())
}

/// Asserts that a container's program was allowed on, and ran on, the expected CPUs.
pub(crate) fn began_in(what: &str, report: &Report, expected: &CpuSet) {
    assert_eq!(
        &cpus(report),
        expected,
        "{what}: allowed CPUs at the first instruction\n{report:?}"
    );
    assert!(
        expected.contains(report.ran_on),
        "{what}: the CPU of the first instruction\n{report:?}"
    );
}

/// Creates and starts a container, whose program must begin on the expected CPUs.
pub(crate) fn begin<'a>(
    pod: &Pod<'a>,
    spec: &ContainerSpec,
    attempt: u32,
    expected: ExpectedCpus<'_>,
) -> Container<'a> {
    let container = pod
        .create(spec, attempt)
        .unwrap_or_else(|refused| panic!("{}: {refused}", spec.name));
    let report = container.start();
    began_in(&spec.name, &report, &expected(&spec.name));
    container
}

/// Creates, starts and removes a pod's first container `count` times, like a crash loop. Returns `count`.
pub(crate) fn run_containers(
    pod: &Pod<'_>,
    first: u32,
    count: u32,
    expected: ExpectedCpus<'_>,
) -> u32 {
    let main = &pod.spec.containers[0];
    for attempt in first..first + count {
        begin(pod, main, attempt, expected).remove();
    }
    count
}

/// Runs a pod with init containers, sidecars and containers, and executes a program in each of them.
pub(crate) fn whole_pod(stage: Stage<'_>, spec: &PodSpec, expected: ExpectedCpus<'_>) {
    let Stage {
        kernel,
        tree,
        runtime,
    } = stage;
    let pod = Pod::run(kernel, tree, runtime, spec);
    for init in &spec.init {
        let container = pod.create_init(init, 0).unwrap();
        let report = container.start();
        began_in(&init.name, &report, &expected(&init.name));
        runtime.eventually("the init container ends", || {
            container.status().state() == State::Exited
        });
        assert_eq!(container.status().exit_code, 0);
    }
    let long_running = spec.sidecars.iter().chain(&spec.containers);
    let containers: Vec<_> = long_running
        .map(|member| (member, begin(&pod, member, 0, expected)))
        .collect();
    for (member, container) in &containers {
        began_in(
            &format!("exec in {}", member.name),
            &container.exec(),
            &expected(&member.name),
        );
    }
    pod.remove();
}

/// Resizes a pod's first container in place: the resources change, the CPUs stay.
pub(crate) fn resized(
    stage: Stage<'_>,
    spec: &PodSpec,
    resized: &ContainerSpec,
    expected: ExpectedCpus<'_>,
) {
    let pod = Pod::run(stage.kernel, stage.tree, stage.runtime, spec);
    let container = begin(&pod, &spec.containers[0], 0, expected);
    pod.raise_limit(resized.milli.unwrap());
    container.update(resized.resources()).unwrap();
    began_in(
        "exec after a resize",
        &container.exec(),
        &expected(&resized.name),
    );
    assert_eq!(
        stage.kernel.effective(&container.cgroup),
        expected(&resized.name)
    );
    pod.remove();
}

/// A creation that is refused with the given message leaves no container, and the next one
/// succeeds.
pub(crate) fn refused_once(
    stage: Stage<'_>,
    spec: &PodSpec,
    words: &str,
    expected: ExpectedCpus<'_>,
) {
    let pod = Pod::run(stage.kernel, stage.tree, stage.runtime, spec);
    let main = &spec.containers[0];
    let Err(refused) = pod.create(main, 0) else {
        panic!("{} was not refused", spec.name)
    };
    assert!(
        refused.0.contains(words),
        "the kubelet gets the message {words:?}: {refused}"
    );
    let listed = stage.runtime.cri.call(&ListContainers {}).containers;
    assert!(listed.is_empty(), "a refused container remains: {listed:?}");
    // The kubelet retries with the same attempt number.
    begin(&pod, main, 0, expected);
    pod.remove();
}

/// Creates and removes a pod's first container while `disturb` restarts the runtime, the plugin or the agent. A failed
/// creation is retried with the next attempt number, as the kubelet does.
pub(crate) fn disturbed(
    pod: &Pod<'_>,
    first: u32,
    wanted: u32,
    disturb: impl FnOnce() + Send,
    after: impl Fn(&Container<'_>, &Report),
) -> u32 {
    std::thread::scope(|scope| {
        let disturbance = scope.spawn(disturb);
        let (mut started, mut attempt, mut last_start) = (0, first, Instant::now());
        while started < wanted || !disturbance.is_finished() {
            attempt += 1;
            assert!(
                last_start.elapsed() < 12 * patience(),
                "no container starts any more"
            );
            let container = try_to_start(pod, attempt);
            if container.is_none() {
                // A stopped runtime would refuse a thousand calls per second.
                std::thread::sleep(std::time::Duration::from_millis(10));
            }
            if let Some((container, report)) = container {
                after(&container, &report);
                started += 1;
                last_start = Instant::now();
                // The runtime may be restarting.
                while container.try_remove().is_err() {
                    std::thread::sleep(std::time::Duration::from_millis(50));
                }
            }
        }
        disturbance.join().unwrap();
        started
    })
}

/// Creates and starts a container; `None` after a failure.
fn try_to_start<'a>(pod: &Pod<'a>, attempt: u32) -> Option<(Container<'a>, Report)> {
    let container = pod.create(&pod.spec.containers[0], attempt).ok()?;
    match container.try_start() {
        Ok(report) => Some((container, report)),
        Err(_) => {
            while container.try_remove().is_err() {
                std::thread::sleep(std::time::Duration::from_millis(50));
            }
            None
        }
    }
}
