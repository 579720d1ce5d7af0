//! `pinfold-runtime` between a real containerd and its runc: containers of `required` pods start on their own CPUs or not at
//! all, whatever happens to the agent.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::agent::Agent;
use crate::daemon::{HANDLER, Runtime, suites};
use crate::kernel::{Kernel, Tree, kernel_tests};
use crate::pinned::{connected, settings, shared, with_each};
use crate::pods::{Container, ContainerSpec, Pod, PodSpec};
use crate::scenarios::{self, began_in, cpus};

/// The runtime's time limit for the answer of an agent that hangs.
const TIME_LIMIT: Duration = Duration::from_secs(3);

/// A worker that requires its CPUs, behind `pinfold-runtime`.
fn required(name: &str) -> PodSpec {
    PodSpec {
        handler: HANDLER.to_owned(),
        ..PodSpec::worker(name, 1).annotated("pinfold.io/cpus", "required")
    }
}

/// Asserts that the container's program has not begun, and that the message says why.
fn refused(container: &Container<'_>, why: &str) {
    let Err(error) = container.begin() else {
        panic!("{} started", container.id);
    };
    assert!(
        error.0.contains("pinfold-runtime: ") && error.0.contains(why),
        "{error}"
    );
    assert!(!container.has_reported());
    container.remove();
}

/// With each runtime, and without an agent at first.
fn with_each_alone(scenario: impl Fn(&Kernel, &Tree<'_>, &Runtime)) {
    let Some(kernel) = kernel_tests() else { return };
    for suite in suites() {
        let tree = kernel.tree();
        let runtime = Runtime::start_within(&suite, TIME_LIMIT);
        scenario(&kernel, &tree, &runtime);
        runtime.stop();
    }
}

fn agent(kernel: &Kernel, tree: &Tree<'_>, runtime: &Runtime) -> Agent {
    let agent = settings(kernel, tree, runtime).start();
    connected(&agent);
    agent
}

#[test]
fn with_an_agent_everything_runs_as_without_the_wrapper() {
    with_each(|stage, agent| {
        let (kernel, runtime) = (stage.kernel, stage.runtime);
        let mut spec = required("whole");
        spec.init.push(ContainerSpec::new("prepare", 1));
        spec.sidecars
            .push(ContainerSpec::new("logs", 1).with_milli(500));
        let pod = Pod::run(kernel, stage.tree, runtime, &spec);
        let prepare = pod.create_init(&spec.init[0], 0).unwrap();
        began_in("prepare", &prepare.start(), &kernel.last());
        runtime.eventually("the init container ends", || {
            prepare.status().state() == crate::messages::State::Exited
        });
        let logs = pod.create(&spec.sidecars[0], 0).unwrap();
        logs.start();
        let main = scenarios::begin(&pod, &spec.containers[0], 0, &|_| kernel.last());
        assert_eq!(cpus(&main.exec()), kernel.last());
        assert_eq!(cpus(&logs.exec()), shared(kernel));
        // Pods that require nothing start behind the wrapper, too.
        let web = PodSpec {
            handler: HANDLER.to_owned(),
            ..PodSpec::new("web", ContainerSpec::without_limits("main"))
        };
        let web = Pod::run(kernel, stage.tree, runtime, &web);
        scenarios::run_containers(&web, 0, 3, &|_| shared(kernel));
        main.remove();
        scenarios::run_containers(&pod, 1, 3, &|_| kernel.last());
        web.remove();
        pod.remove();
        assert_eq!(agent.metric("pinfold_nri_unanswered_total", &[]), Some(0.0));
    });
}

/// The times of a start behind the wrapper and without it, printed for the documentation.
#[test]
fn the_wrapper_costs_little_at_a_start() {
    let starts = u32::try_from(scenarios::count("PINFOLD_TEST_STARTS", 10)).unwrap();
    with_each(|stage, _| {
        let mean = |spec: &PodSpec| {
            let pod = Pod::run(stage.kernel, stage.tree, stage.runtime, spec);
            let mut times: Vec<Duration> = (0..starts)
                .map(|attempt| {
                    let container = pod.create(&spec.containers[0], attempt).unwrap();
                    let before = Instant::now();
                    container.begin().unwrap();
                    let took = before.elapsed();
                    container.remove();
                    took
                })
                .collect();
            pod.remove();
            times.sort_unstable();
            times[times.len() / 2]
        };
        let plain = PodSpec {
            handler: String::new(),
            ..required("plain")
        };
        println!(
            "{} {}: median start {:?} without the wrapper, {:?} with it",
            stage.runtime.suite,
            stage.runtime.version,
            mean(&plain),
            mean(&required("wrapped"))
        );
    });
}

#[test]
fn without_an_agent_only_sandboxes_start() {
    with_each_alone(|kernel, tree, runtime| {
        // Annotations that the author of the pod has written do not help, though this runtime copies all to the container.
        let forged = required("forged")
            .annotated("pinfold.io/start-check", "shared")
            .annotated("io.kubernetes.cri-o.ContainerType", "sandbox")
            .annotated("io.kubernetes.cri-o.SandboxID", "forged")
            .annotated("io.kubernetes.cri.container-type", "sandbox");
        for (spec, why) in [
            (required("absent"), "did not answer"),
            (forged, "did not write for this container"),
        ] {
            let pod = Pod::run(kernel, tree, runtime, &spec);
            let main = pod.create(&spec.containers[0], 0).unwrap();
            refused(&main, why);
            // The next attempt finds an agent.
            let agent = agent(kernel, tree, runtime);
            scenarios::begin(&pod, &spec.containers[0], 1, &|_| kernel.last());
            pod.remove();
            agent.stop();
        }
        // Other pods don't notice the wrapper.
        let other = Pod::run(kernel, tree, runtime, &PodSpec::worker("other", 1));
        other.create(&other.spec.containers[0], 0).unwrap().start();
        other.remove();
    });
}

#[test]
fn an_agent_that_ends_before_the_start_starts_nothing() {
    with_each_alone(|kernel, tree, runtime| {
        let spec = required("killed");
        let pod = Pod::run(kernel, tree, runtime, &spec);
        let killed = agent(kernel, tree, runtime);
        let main = pod.create(&spec.containers[0], 0).unwrap();
        killed.kill();
        refused(&main, "no assignment record");
        // An agent that is there again in time puts the CPUs in force.
        let killed = agent(kernel, tree, runtime);
        let main = pod.create(&spec.containers[0], 1).unwrap();
        killed.kill();
        let agent = agent(kernel, tree, runtime);
        began_in("main", &main.start(), &kernel.last());
        pod.remove();
        agent.stop();
    });
}

/// Lets a stopped agent go on, and waits until it has connected again: the runtime has closed the connection.
fn resume(agent: &Agent, runtime: &Runtime) {
    let synchronized = || agent.log().matches("NRI: synchronized").count();
    let before = synchronized();
    agent.signal(Signal::SIGCONT);
    runtime.eventually("the agent connects again", || synchronized() > before);
    connected(agent);
}

#[test]
fn an_agent_that_hangs_starts_nothing() {
    with_each_alone(|kernel, tree, runtime| {
        let spec = required("hanging");
        let pod = Pod::run(kernel, tree, runtime, &spec);
        let agent = agent(kernel, tree, runtime);
        agent.signal(Signal::SIGSTOP);
        let main = pod.create(&spec.containers[0], 0).unwrap();
        refused(&main, "did not answer");
        resume(&agent, runtime);
        scenarios::begin(&pod, &spec.containers[0], 1, &|_| kernel.last()).remove();

        let main = pod.create(&spec.containers[0], 2).unwrap();
        agent.signal(Signal::SIGSTOP);
        refused(&main, "no assignment record");
        resume(&agent, runtime);
        scenarios::begin(&pod, &spec.containers[0], 3, &|_| kernel.last());
        pod.remove();
        agent.stop();
    });
}
