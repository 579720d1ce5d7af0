//! What must hold for containers whoever places them: a plugin of a test, or the agent. Each of these drives a runtime as the
//! kubelet would and reads what the containers themselves report.

use pinfold::cpu::CpuSet;

use crate::daemon::Runtime;
use crate::kernel::{Kernel, Tree};
use crate::messages::{ListContainers, State};
use crate::pods::{Container, ContainerSpec, Pod, PodSpec};
use crate::probe::Report;

/// What a scenario plays on.
#[derive(Clone, Copy)]
pub(crate) struct Stage<'a> {
    pub(crate) kernel: &'a Kernel,
    pub(crate) tree: &'a Tree<'a>,
    pub(crate) runtime: &'a Runtime,
}

/// The CPUs that a container of this name must run on; asked when it has begun.
pub(crate) type Place<'a> = &'a dyn Fn(&str) -> CpuSet;

/// The CPUs that a report names.
pub(crate) fn cpus(report: &Report) -> CpuSet {
    report.cpus.parse().unwrap()
}

/// How often something is done: a number from the environment, where tests are to be longer or shorter.
pub(crate) fn count(name: &str, usual: usize) -> usize {
    std::env::var(name).map_or(usual, |text| text.parse().unwrap())
}

/// Requires that a container's program began, and ran, where it must.
pub(crate) fn began_in(what: &str, report: &Report, place: &CpuSet) {
    assert_eq!(
        &cpus(report),
        place,
        "{what}: where its first instruction might run\n{report:?}"
    );
    assert!(
        place.contains(report.ran_on),
        "{what}: where it ran\n{report:?}"
    );
}

/// A container created and started; its program begins where it must.
pub(crate) fn begin<'a>(
    pod: &Pod<'a>,
    spec: &ContainerSpec,
    attempt: u32,
    place: Place<'_>,
) -> Container<'a> {
    let container = pod
        .create(spec, attempt)
        .unwrap_or_else(|refused| panic!("{}: {refused}", spec.name));
    let report = container.start();
    began_in(&spec.name, &report, &place(&spec.name));
    container
}

/// One life after the other of a pod's first container, as if it crashed each time; says how many.
pub(crate) fn lives(pod: &Pod<'_>, first: u32, count: u32, place: Place<'_>) -> u32 {
    let main = &pod.spec.containers[0];
    for life in first..first + count {
        begin(pod, main, life, place).remove();
    }
    count
}

/// A pod as a whole: init containers one after the other, sidecars, containers, and a program executed in each of them.
pub(crate) fn whole_pod(stage: Stage<'_>, spec: &PodSpec, place: Place<'_>) {
    let Stage {
        kernel,
        tree,
        runtime,
    } = stage;
    let pod = Pod::run(kernel, tree, runtime, spec);
    for one in &spec.init {
        let container = pod.create_brief(one, 0).unwrap();
        let report = container.start();
        began_in(&one.name, &report, &place(&one.name));
        runtime.eventually("the init container ends", || {
            container.status().state() == State::Exited
        });
        assert_eq!(container.status().exit_code, 0);
    }
    let staying = spec.sidecars.iter().chain(&spec.containers);
    let containers: Vec<_> = staying
        .map(|one| (one, begin(&pod, one, 0, place)))
        .collect();
    for (one, container) in &containers {
        began_in(
            &format!("exec in {}", one.name),
            &container.exec(),
            &place(&one.name),
        );
    }
    pod.remove();
}

/// An in-place resize of a pod's first container: what it is given changes, where it runs does not.
pub(crate) fn resized(stage: Stage<'_>, spec: &PodSpec, to: &ContainerSpec, place: Place<'_>) {
    let pod = Pod::run(stage.kernel, stage.tree, stage.runtime, spec);
    let container = begin(&pod, &spec.containers[0], 0, place);
    pod.widen(to.milli.unwrap());
    container.update(to.resources()).unwrap();
    began_in("exec after a resize", &container.exec(), &place(&to.name));
    assert_eq!(stage.kernel.effective(&container.cgroup), place(&to.name));
    pod.remove();
}

/// A creation that is refused in these words: nothing of it is left, and nothing is in the way of the next one.
pub(crate) fn refused_once(stage: Stage<'_>, spec: &PodSpec, words: &str, place: Place<'_>) {
    let pod = Pod::run(stage.kernel, stage.tree, stage.runtime, spec);
    let main = &spec.containers[0];
    let Err(refused) = pod.create(main, 0) else {
        panic!("{} was not refused", spec.name)
    };
    assert!(
        refused.0.contains(words),
        "the kubelet is told of {words:?}: {refused}"
    );
    let listed = stage.runtime.cri.call(&ListContainers {}).containers;
    assert!(listed.is_empty(), "a refused container is left: {listed:?}");
    // The kubelet tries again, under the same number.
    begin(&pod, main, 0, place);
    pod.remove();
}

/// Lives of a pod's first container while the runtime and those who place its containers are disturbed; a creation that
/// fails for that is tried again under the next number, as the kubelet does. Returns what each container reported that came
/// to run, for the caller to judge: who was away at that moment has placed nobody.
pub(crate) fn disturbed(
    pod: &Pod<'_>,
    first: u32,
    lives: u32,
    disturb: impl FnOnce() + Send,
    after: impl Fn(&Container<'_>, &Report),
) -> u32 {
    std::thread::scope(|scope| {
        let disturbance = scope.spawn(disturb);
        let (mut lived, mut attempt) = (0, first);
        while lived < lives || !disturbance.is_finished() {
            attempt += 1;
            assert!(
                attempt < first + 100 * lives,
                "nothing comes to run any more"
            );
            let made = tried(pod, attempt);
            if made.is_none() {
                // A runtime that is away refuses a thousand times a second.
                std::thread::sleep(std::time::Duration::from_millis(10));
            }
            if let Some((container, report)) = made {
                after(&container, &report);
                lived += 1;
                // It may be the runtime's turn to be away.
                while container.try_remove().is_err() {
                    std::thread::sleep(std::time::Duration::from_millis(50));
                }
            }
        }
        disturbance.join().unwrap();
        lived
    })
}

/// A container that came to run, if it did.
fn tried<'a>(pod: &Pod<'a>, attempt: u32) -> Option<(Container<'a>, Report)> {
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
