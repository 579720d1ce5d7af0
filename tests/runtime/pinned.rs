//! The agent with a real container runtime: containers have their CPUs and variables before the first instruction.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use pinfold::cpu::CpuSet;
use serde_json::{Value, json};

use crate::agent::{Agent, Settings, assigned, container};
use crate::daemon::{Runtime, suites};
use crate::kernel::{Kernel, Tree, kernel_tests};
use crate::messages::Resources;
use crate::pods::{ContainerSpec, Pod, PodSpec};
use crate::probe::Report;
use crate::scenarios::{self, Stage, began_in, cpus};

/// Settings of an agent that learns about pods only from the runtime. One CPU can become exclusive.
pub(crate) fn settings(kernel: &Kernel, tree: &Tree<'_>, runtime: &Runtime) -> Settings {
    let socket = runtime.nri().display().to_string();
    let args = [
        "--api=never",
        "--nri=always",
        "--nri-socket",
        &socket,
        "--reconcile-interval=1s",
    ];
    Settings::without_manifests(&tree.path, &kernel.all_but_one()).with(&args)
}

pub(crate) fn connected(agent: &Agent) {
    agent.eventually("the runtime is synchronized", |status| {
        status["runtime"]["state"] == "synchronized"
    });
}

/// The output of `pinfold explain` for a pod.
fn explained(agent: &Agent, pod: &str) -> String {
    let output = crate::agent::pinfold()
        .args(["explain", pod, "--agent", &agent.address.to_string()])
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Runs a scenario with each runtime and an agent that is connected to it.
pub(crate) fn with_each(scenario: impl Fn(Stage<'_>, &Agent)) {
    let Some(kernel) = kernel_tests() else { return };
    for suite in suites() {
        let tree = kernel.tree();
        let runtime = Runtime::start(&suite);
        let agent = settings(&kernel, &tree, &runtime).start();
        connected(&agent);
        scenario(
            Stage {
                kernel: &kernel,
                tree: &tree,
                runtime: &runtime,
            },
            &agent,
        );
        agent.stop();
    }
}

/// The shared CPUs while the worker owns the exclusive CPU.
pub(crate) fn shared(kernel: &Kernel) -> CpuSet {
    kernel.all_but_one()
}

fn injected(status: &Value, pod: &str) -> Vec<String> {
    let names =
        container(status, pod, "main").and_then(|entry| entry["injected"].as_array().cloned());
    names
        .unwrap_or_default()
        .iter()
        .map(|name| name.as_str().unwrap().to_owned())
        .collect()
}

#[test]
fn every_container_begins_on_its_own_cpus() {
    let containers = scenarios::count("PINFOLD_TEST_CONTAINERS", 100);
    with_each(|stage, agent| {
        let Stage {
            kernel,
            tree,
            runtime,
        } = stage;
        let worker = Pod::run(kernel, tree, runtime, &PodSpec::worker("worker", 1));
        let web = PodSpec::new("web", ContainerSpec::without_limits("main"));
        let web = Pod::run(kernel, tree, runtime, &web);
        let each = u32::try_from(containers.div_ceil(2)).unwrap();
        let start = Instant::now();
        // The worker's first container owns the CPU. The web containers come and go, and must begin on the shared CPUs.
        let first = scenarios::begin(&worker, &worker.spec.containers[0], 0, &|_| kernel.last());
        scenarios::run_containers(&web, 0, each, &|_| shared(kernel));
        first.remove();
        scenarios::run_containers(&worker, 1, each, &|_| kernel.last());
        let unpinned_seconds = agent
            .metric("pinfold_container_unpinned_seconds_sum", &[])
            .unwrap();
        let measured = agent
            .metric("pinfold_container_unpinned_seconds_count", &[])
            .unwrap();
        println!(
            "{} {}: {} containers, 0 began on other CPUs, {measured} measured unpinned times of {unpinned_seconds} s together, {:.1} s",
            runtime.suite,
            runtime.version,
            2 * each + 1,
            start.elapsed().as_secs_f64()
        );
        assert!(
            unpinned_seconds == 0.0 && measured >= f64::from(each),
            "{measured} measured unpinned times, {unpinned_seconds} s"
        );
        for call in ["create", "start"] {
            let label = [("call", call)];
            let sum = agent
                .metric("pinfold_nri_call_duration_seconds_sum", &label)
                .unwrap();
            let count = agent
                .metric("pinfold_nri_call_duration_seconds_count", &label)
                .unwrap();
            println!(
                "{} {call}: {count} calls, {:.3} ms each",
                runtime.suite,
                1000.0 * sum / count
            );
        }
        assert_eq!(agent.metric("pinfold_nri_unanswered_total", &[]), Some(0.0));
        worker.remove();
        web.remove();
        agent.eventually("no CPU is exclusive any more", |status| {
            status["exclusive"] == ""
        });
    });
}

#[test]
fn thread_variables_are_injected_and_the_users_value_stays() {
    with_each(
        |Stage {
             kernel,
             tree,
             runtime,
         },
         agent| {
            let main = ContainerSpec::new("main", 1).with_env("OMP_NUM_THREADS", "7");
            let mut spec = PodSpec::worker("worker", 1);
            spec.containers = vec![main];
            let pod = Pod::run(kernel, tree, runtime, &spec);
            let container = pod.create(&spec.containers[0], 0).unwrap();
            let report = container.start();
            began_in("main", &report, &kernel.last());
            let get = |name: &str| report.env.get(name).map(String::as_str);
            assert_eq!(get("OMP_NUM_THREADS"), Some("7"), "the user's value");
            assert_eq!(get("TF_NUM_INTRAOP_THREADS"), Some("1"), "{:?}", report.env);
            assert_eq!(
                get("PINFOLD_CPUS"),
                Some(kernel.last().to_string().as_str())
            );
            assert_eq!(report.parallelism, 1);
            let injected_names = |status: &Value| injected(status, "worker");
            let status = agent.eventually("the status lists the injected variables", |status| {
                !injected_names(status).is_empty()
            });
            let names = injected_names(&status);
            assert!(
                names.iter().any(|name| name == "PINFOLD_CPUS")
                    && !names.contains(&"OMP_NUM_THREADS".to_owned())
            );
            for name in &names {
                assert!(
                    report.env.contains_key(name),
                    "the status lists {name}, but the environment lacks the variable: {:?}",
                    report.env
                );
            }
            let kept =
                self::container(&status, "worker", "main").unwrap()["threads"]["kept"].clone();
            assert_eq!(kept, serde_json::json!(["OMP_NUM_THREADS"]));
            let explanation = explained(agent, "worker");
            let line = |words: &str| {
                explanation
                    .lines()
                    .find(|line| line.contains(words))
                    .unwrap_or_default()
            };
            let put = line("added to the environment: ");
            assert!(
                put.contains("PINFOLD_CPUS") && put.contains("TF_NUM_INTRAOP_THREADS"),
                "{explanation}"
            );
            assert!(
                line("set by the pod, unchanged: ").ends_with("OMP_NUM_THREADS"),
                "{explanation}"
            );
            assert!(
                line("  unpinned ").contains("before the first instruction"),
                "{explanation}"
            );
            // After a restart of the agent, only the runtime can tell injected variables from the user's variables.
            pod.remove();
        },
    );
}

#[test]
fn restarts_of_the_agent_and_the_runtime_move_no_container() {
    let Some(kernel) = kernel_tests() else { return };
    for suite in suites() {
        let tree = kernel.tree();
        let runtime = Runtime::start(&suite);
        let agent = settings(&kernel, &tree, &runtime).start();
        connected(&agent);
        let spec = PodSpec::worker("worker", 1);
        let pod = Pod::run(&kernel, &tree, &runtime, &spec);
        let main = pod.create(&spec.containers[0], 0).unwrap();
        began_in("main", &main.start(), &kernel.last());
        let before = agent.eventually("the status lists the injected variables", |status| {
            !injected(status, "worker").is_empty()
        });
        agent.stop();

        let agent = settings(&kernel, &tree, &runtime).start();
        connected(&agent);
        let after = agent.eventually("the restarted agent knows the assignment", |status| {
            assigned(status, "worker") == Some(kernel.last())
        });
        assert_eq!(
            injected(&after, "worker"),
            injected(&before, "worker"),
            "the injected variables after the restart"
        );
        let threads =
            |status: &Value| container(status, "worker", "main").unwrap()["threads"].clone();
        assert_eq!(threads(&after)["kept"], threads(&before)["kept"]);
        assert_eq!(
            agent
                .metric("pinfold_reconcile_steps_total", &[])
                .unwrap_or(0.0),
            0.0,
            "the agent applied steps: {}",
            agent.log()
        );
        assert_eq!(cpus(&main.exec()), kernel.last());

        runtime.restart();
        connected(&agent);
        assert_eq!(cpus(&main.exec()), kernel.last());
        main.remove();
        began_in(
            "the next container",
            &pod.create(&spec.containers[0], 1).unwrap().start(),
            &kernel.last(),
        );
        pod.remove();
        agent.stop();
    }
}

#[test]
fn a_required_container_without_free_cpus_is_refused_with_the_reason() {
    with_each(
        |Stage {
             kernel,
             tree,
             runtime,
         },
         agent| {
            let first = Pod::run(kernel, tree, runtime, &PodSpec::worker("first", 1));
            let owner = scenarios::begin(&first, &first.spec.containers[0], 0, &|_| kernel.last());
            let mut spec = PodSpec::worker("second", 1);
            spec.annotations =
                BTreeMap::from([("pinfold.io/cpus".to_owned(), "required".to_owned())]);
            let second = Pod::run(kernel, tree, runtime, &spec);
            let Err(refused) = second.create(&spec.containers[0], 0) else {
                panic!("a required container was created without free CPUs")
            };
            assert!(
                refused.0.contains("pinfold.io/cpus=required") && refused.0.contains("free"),
                "{refused}"
            );
            // With a free CPU, the same pod starts.
            owner.remove();
            first.remove();
            agent.eventually("the CPU is free", |status| status["exclusive"] == "");
            scenarios::begin(&second, &spec.containers[0], 0, &|_| kernel.last());
            second.remove();
        },
    );
}

#[test]
fn init_containers_sidecars_and_exec_run_on_the_right_cpus() {
    with_each(|stage, agent| {
        let Stage { kernel, .. } = stage;
        let mut spec = PodSpec::worker("whole", 1);
        spec.init.push(ContainerSpec::new("prepare", 1));
        spec.sidecars
            .push(ContainerSpec::new("logs", 1).with_milli(500));
        let expected = |name: &str| {
            if name == "logs" {
                CpuSet::new()
            } else {
                kernel.last()
            }
        };
        // The sidecar begins before the main container owns the CPU, when all CPUs are shared.
        let pod = Pod::run(kernel, stage.tree, stage.runtime, &spec);
        let prepare = pod.create_init(&spec.init[0], 0).unwrap();
        began_in("prepare", &prepare.start(), &expected("prepare"));
        stage.runtime.eventually("the init container ends", || {
            prepare.status().state() == crate::messages::State::Exited
        });
        let logs = pod.create(&spec.sidecars[0], 0).unwrap();
        logs.start();
        let main = scenarios::begin(&pod, &spec.containers[0], 0, &expected);
        assert_eq!(
            cpus(&logs.exec()),
            shared(kernel),
            "the sidecar runs on the shared CPUs only"
        );
        assert_eq!(cpus(&main.exec()), kernel.last());
        let status = agent.eventually("the status lists the sidecar", |status| {
            container(status, "whole", "logs").is_some()
        });
        assert_eq!(
            container(&status, "whole", "logs").unwrap()["assigned"],
            Value::Null
        );
        pod.remove();
    });
}

#[test]
fn a_resize_keeps_the_containers_cpus() {
    with_each(|stage, _| {
        let spec = PodSpec::worker("grown", 1);
        // Weight and quota grow by half. The new limit is no whole number, so the container gets no more exclusive
        // CPUs.
        let resized = spec.containers[0].clone().with_milli(1000);
        scenarios::resized(stage, &spec, &resized, &|_| stage.kernel.last());
    });
}

/// A worker's container with half a CPU. Only whole CPUs are exclusive, so a worker with the new limit owns none.
fn half(spec: &PodSpec) -> ContainerSpec {
    spec.containers[0].clone().with_milli(500)
}

/// Changes a container's memory limit, as a resize in place does. The runtime then writes everything that it remembers of
/// the container's resources.
fn change_memory(container: &crate::pods::Container<'_>, spec: &ContainerSpec, mebibytes: i64) {
    let resources = Resources {
        memory_limit: mebibytes << 20,
        ..spec.resources()
    };
    container.update(resources).unwrap();
}

#[test]
fn a_container_that_gave_its_cpus_up_does_not_get_them_back_from_the_runtime() {
    with_each(
        |Stage {
             kernel,
             tree,
             runtime,
         },
         agent| {
            let spec = PodSpec::worker("resized", 1);
            let pod = Pod::run(kernel, tree, runtime, &spec);
            let main = scenarios::begin(&pod, &spec.containers[0], 0, &|_| kernel.last());
            let half = half(&spec);
            main.update(half.resources()).unwrap();
            let on_all = |status: &Value| {
                let entry = container(status, "resized", "main").unwrap();
                entry["effective"] == kernel.online.to_string()
            };
            agent.eventually("the container gives its CPU up", on_all);
            for mebibytes in [144, 160] {
                change_memory(&main, &half, mebibytes);
                assert_eq!(cpus(&main.exec()), kernel.online, "{mebibytes} MiB");
            }
            // The CPU has another owner now.
            let other = Pod::run(kernel, tree, runtime, &PodSpec::worker("other", 1));
            let owner = scenarios::begin(&other, &other.spec.containers[0], 0, &|_| kernel.last());
            change_memory(&main, &half, 176);
            assert_eq!(cpus(&main.exec()), shared(kernel));
            assert_eq!(cpus(&owner.exec()), kernel.last());
            other.remove();
            agent.eventually("the container may use all CPUs again", on_all);
            change_memory(&main, &half, 192);
            assert_eq!(cpus(&main.exec()), kernel.online);
            let status = agent.status().unwrap();
            assert_eq!(
                (&status["drift"], &status["errors"]),
                (&json!([]), &json!([]))
            );
            pod.remove();
        },
    );
}

#[test]
fn a_former_owner_that_the_runtime_put_back_is_found() {
    let Some(kernel) = kernel_tests() else { return };
    for suite in suites() {
        let tree = kernel.tree();
        let runtime = Runtime::start(&suite);
        let agent = settings(&kernel, &tree, &runtime).start();
        connected(&agent);
        let spec = PodSpec::worker("former", 1);
        let pod = Pod::run(&kernel, &tree, &runtime, &spec);
        let main = scenarios::begin(&pod, &spec.containers[0], 0, &|_| kernel.last());
        agent.stop();
        released(&tree);
        assert_eq!(cpus(&main.exec()), kernel.online, "after the release");
        // Without an agent, the runtime writes the CPUs that it was given at the container's creation.
        let half = half(&spec);
        change_memory(&main, &half, 144);
        assert_eq!(cpus(&main.exec()), kernel.last());
        let agent = settings(&kernel, &tree, &runtime).start();
        connected(&agent);
        agent.eventually("the container may use all CPUs again", |status| {
            container(status, "former", "main")
                .is_some_and(|entry| entry["effective"] == kernel.online.to_string())
        });
        assert_eq!(
            agent.metric("pinfold_drift_total", &[("cause", "runtime")]),
            Some(1.0),
            "{}",
            agent.log()
        );
        // The answer replaces what the runtime remembers, so the set stays even without an agent.
        change_memory(&main, &half, 160);
        agent.stop();
        change_memory(&main, &half, 176);
        assert_eq!(cpus(&main.exec()), kernel.online);
        pod.remove();
    }
}

#[test]
fn after_a_release_a_set_of_all_cpus_makes_the_runtime_forget() {
    let Some(kernel) = kernel_tests() else { return };
    for suite in suites() {
        let tree = kernel.tree();
        let runtime = Runtime::start(&suite);
        let agent = settings(&kernel, &tree, &runtime).start();
        connected(&agent);
        let spec = PodSpec::worker("left", 1);
        let pod = Pod::run(&kernel, &tree, &runtime, &spec);
        let main = scenarios::begin(&pod, &spec.containers[0], 0, &|_| kernel.last());
        agent.stop();
        released(&tree);
        // As `crictl update --cpuset-cpus` does.
        let all = Resources {
            cpuset_cpus: kernel.online.to_string(),
            ..Resources::default()
        };
        main.update(all).unwrap();
        change_memory(&main, &spec.containers[0], 144);
        assert_eq!(cpus(&main.exec()), kernel.online);
        pod.remove();
    }
}

/// Hands all CPUs back, as before an uninstall.
fn released(tree: &Tree<'_>) {
    let output = crate::agent::pinfold()
        .args(["release", "--pod-cgroup", &tree.path])
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn a_container_created_without_the_agent_is_pinned_at_its_start() {
    let Some(kernel) = kernel_tests() else { return };
    for suite in suites() {
        let tree = kernel.tree();
        let runtime = Runtime::start(&suite);
        let spec = PodSpec::worker("missed", 1);
        let pod = Pod::run(&kernel, &tree, &runtime, &spec);
        let main = pod.create(&spec.containers[0], 0).unwrap();
        let agent = settings(&kernel, &tree, &runtime).start();
        connected(&agent);
        let before_start = Instant::now();
        began_in("main", &main.start(), &kernel.last());
        // The unpinned time counts from the first process: runc's own process until the program begins.
        let status = agent.eventually("the CPU is assigned to the container", |status| {
            assigned(status, "missed") == Some(kernel.last())
        });
        let unpinned = container(&status, "missed", "main").unwrap()["unpinnedSeconds"]
            .as_f64()
            .unwrap_or(0.0);
        // The time before the start does not count, for example that of the agent's own start.
        let since_start = before_start.elapsed().as_secs_f64();
        assert!(unpinned < since_start, "{unpinned} s of {since_start} s");
        pod.remove();
        agent.stop();
    }
}

#[test]
fn containers_start_while_agent_and_runtime_restart() {
    let containers = u32::try_from(scenarios::count("PINFOLD_TEST_DISTURBED", 12)).unwrap();
    let Some(kernel) = kernel_tests() else { return };
    for suite in suites() {
        let tree = kernel.tree();
        let runtime = Runtime::start(&suite);
        let start_agent = || settings(&kernel, &tree, &runtime).start();
        let agent = Mutex::new(Some(start_agent()));
        let with_agent = |act: &dyn Fn(&Agent)| agent.lock().unwrap().as_ref().map(act);
        with_agent(&connected);
        let spec = PodSpec::worker("disturbed", 1);
        let pod = Pod::run(&kernel, &tree, &runtime, &spec);
        // Disturbances in turn: the agent is killed and restarted, then the runtime, then both together.
        let disturb = || {
            let replace = |with_runtime: bool| {
                let before = agent.lock().unwrap().take();
                before.into_iter().for_each(Agent::kill);
                if with_runtime {
                    runtime.kill();
                }
                std::thread::sleep(Duration::from_millis(100));
                let new = start_agent();
                if with_runtime {
                    runtime.launch();
                }
                *agent.lock().unwrap() = Some(new);
                std::thread::sleep(Duration::from_millis(350));
            };
            std::thread::sleep(Duration::from_millis(150));
            replace(false);
            runtime.restart();
            std::thread::sleep(Duration::from_millis(350));
            replace(true);
        };
        let on_shared_cpus = AtomicU32::new(0);
        let judge = |container: &crate::pods::Container<'_>, report: &Report| {
            // A container created without a running agent began on all online CPUs. A new agent that had not been
            // synchronized may have taken the container for an unknown container of the pod: then the container began
            // on the shared CPUs.
            let began_on = cpus(report);
            if began_on != kernel.last() {
                assert!(
                    began_on == kernel.online || began_on == shared(&kernel),
                    "{} began on {began_on}",
                    container.id
                );
                on_shared_cpus.fetch_add(1, Ordering::Relaxed);
            }
        };
        let started = scenarios::disturbed(&pod, 0, containers, disturb, judge);
        with_agent(&connected);
        // After the disturbances, containers begin on their own CPUs again. No earlier container still owns a CPU.
        scenarios::run_containers(&pod, 1_000_000, 3, &|_| kernel.last());
        println!(
            "{} {}: {started} containers while agent and runtime were killed, {} of them began without the agent's answer",
            runtime.suite,
            runtime.version,
            on_shared_cpus.into_inner()
        );
        pod.remove_if_possible();
        with_agent(&|agent| {
            agent.eventually("no CPU is exclusive any more", |status| {
                status["exclusive"] == ""
            });
            assert_eq!(
                agent.metric("pinfold_nri_unanswered_total", &[]),
                Some(0.0),
                "{}",
                agent.log()
            );
        });
        agent
            .into_inner()
            .unwrap()
            .into_iter()
            .for_each(Agent::stop);
    }
}
