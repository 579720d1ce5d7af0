//! The agent and a real container runtime: containers have what is theirs before their first instruction.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use pinfold::cpu::CpuSet;
use serde_json::Value;

use crate::agent::{Agent, Settings, assigned, container};
use crate::daemon::{Runtime, suites};
use crate::kernel::{Kernel, Tree, kernel_tests};
use crate::pods::{ContainerSpec, Pod, PodSpec};
use crate::probe::Report;
use crate::scenarios::{self, Stage, began_in, cpus};

/// An agent that hears of pods from the runtime alone; one CPU is there to own.
fn settings(kernel: &Kernel, tree: &Tree<'_>, runtime: &Runtime) -> Settings {
    let socket = runtime.nri().display().to_string();
    let args = [
        "--api=never",
        "--nri=always",
        "--nri-socket",
        &socket,
        "--reconcile-seconds=1",
    ];
    Settings::without_manifests(&tree.path, &kernel.all_but_one()).with(&args)
}

fn connected(agent: &Agent) {
    agent.eventually("the runtime asks the agent", |status| {
        status["runtime"]["state"] == "synchronized"
    });
}

/// What a person is told of a pod.
fn explained(agent: &Agent, pod: &str) -> String {
    let output = crate::agent::pinfold()
        .args(["explain", pod, "--agent", &agent.address.to_string()])
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Runs a scenario with each runtime, and an agent that is asked by it.
fn with_each(scenario: impl Fn(Stage<'_>, &Agent)) {
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

/// What everybody may run on who owns nothing, while the worker owns its CPU.
fn shared(kernel: &Kernel) -> CpuSet {
    kernel.all_but_one()
}

fn injected(status: &Value, pod: &str) -> Vec<String> {
    let all = container(status, pod, "main").and_then(|one| one["injected"].as_array().cloned());
    all.unwrap_or_default()
        .iter()
        .map(|name| name.as_str().unwrap().to_owned())
        .collect()
}

#[test]
fn every_container_begins_on_its_own_cpus() {
    let lives = scenarios::count("PINFOLD_TEST_CONTAINERS", 100);
    with_each(|stage, agent| {
        let Stage {
            kernel,
            tree,
            runtime,
        } = stage;
        let worker = Pod::run(kernel, tree, runtime, &PodSpec::worker("worker", 1));
        let web = PodSpec::new("web", ContainerSpec::without_limits("main"));
        let web = Pod::run(kernel, tree, runtime, &web);
        let each = u32::try_from(lives.div_ceil(2)).unwrap();
        let start = std::time::Instant::now();
        // One that stays owns the CPU all the time; the others come and go beside it, and must begin off that CPU.
        let first = scenarios::begin(&worker, &worker.spec.containers[0], 0, &|_| kernel.last());
        scenarios::lives(&web, 0, each, &|_| shared(kernel));
        first.remove();
        scenarios::lives(&worker, 1, each, &|_| kernel.last());
        let windows = agent
            .metric("pinfold_container_unpinned_seconds_sum", &[])
            .unwrap();
        let counted = agent
            .metric("pinfold_container_unpinned_seconds_count", &[])
            .unwrap();
        println!(
            "{} {}: {} containers, 0 began elsewhere, {counted} windows of {windows} s together, {:.1} s",
            runtime.suite,
            runtime.version,
            2 * each + 1,
            start.elapsed().as_secs_f64()
        );
        assert!(
            windows == 0.0 && counted >= f64::from(each),
            "{counted} windows, {windows} s"
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
        agent.eventually("nothing is owned any more", |status| {
            status["exclusive"] == ""
        });
    });
}

#[test]
fn its_environment_is_there_and_the_users_value_stays() {
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
            assert_eq!(get("OMP_NUM_THREADS"), Some("7"), "the user's own");
            assert_eq!(get("TF_NUM_INTRAOP_THREADS"), Some("1"), "{:?}", report.env);
            assert_eq!(
                get("PINFOLD_CPUS"),
                Some(kernel.last().to_string().as_str())
            );
            assert_eq!(report.parallelism, 1);
            let ours = |status: &Value| injected(status, "worker");
            let status = agent.eventually("it says what was injected", |status| {
                !ours(status).is_empty()
            });
            let names = ours(&status);
            assert!(
                names.iter().any(|name| name == "PINFOLD_CPUS")
                    && !names.contains(&"OMP_NUM_THREADS".to_owned())
            );
            for name in &names {
                assert!(
                    report.env.contains_key(name),
                    "{name} is said to be there: {:?}",
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
            let put = line("put into its environment: ");
            assert!(
                put.contains("PINFOLD_CPUS") && put.contains("TF_NUM_INTRAOP_THREADS"),
                "{explanation}"
            );
            assert!(
                line("left as the pod has them: ").ends_with("OMP_NUM_THREADS"),
                "{explanation}"
            );
            assert!(line("window").contains("none"), "{explanation}");
            // After a restart of ours only the runtime can tell what was whose.
            pod.remove();
        },
    );
}

#[test]
fn restarts_of_the_agent_and_the_runtime_move_nothing() {
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
        let before = agent.eventually("it is told of", |status| {
            !injected(status, "worker").is_empty()
        });
        agent.stop();

        let agent = settings(&kernel, &tree, &runtime).start();
        connected(&agent);
        let after = agent.eventually("it is known again", |status| {
            assigned(status, "worker") == Some(kernel.last())
        });
        assert_eq!(
            injected(&after, "worker"),
            injected(&before, "worker"),
            "what was injected is still told apart"
        );
        let one = |status: &Value| container(status, "worker", "main").unwrap()["threads"].clone();
        assert_eq!(one(&after)["kept"], one(&before)["kept"]);
        assert_eq!(
            agent
                .metric("pinfold_reconcile_steps_total", &[])
                .unwrap_or(0.0),
            0.0,
            "nothing is written: {}",
            agent.log()
        );
        assert_eq!(cpus(&main.exec()), kernel.last());

        runtime.restart();
        connected(&agent);
        assert_eq!(cpus(&main.exec()), kernel.last());
        main.remove();
        began_in(
            "the next one",
            &pod.create(&spec.containers[0], 1).unwrap().start(),
            &kernel.last(),
        );
        pod.remove();
        agent.stop();
    }
}

#[test]
fn who_must_have_cpus_and_can_t_is_refused_and_told_why() {
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
                panic!("it has no CPUs to own")
            };
            assert!(
                refused.0.contains("pinfold.io/cpus=required") && refused.0.contains("free"),
                "{refused}"
            );
            // Nothing is in its way once there are some.
            owner.remove();
            first.remove();
            agent.eventually("the CPU is free", |status| status["exclusive"] == "");
            scenarios::begin(&second, &spec.containers[0], 0, &|_| kernel.last());
            second.remove();
        },
    );
}

#[test]
fn init_containers_sidecars_and_what_is_executed() {
    with_each(|stage, agent| {
        let Stage { kernel, .. } = stage;
        let mut spec = PodSpec::worker("whole", 1);
        spec.init.push(ContainerSpec::new("prepare", 1));
        spec.sidecars
            .push(ContainerSpec::new("logs", 1).with_milli(500));
        let place = |name: &str| {
            if name == "logs" {
                CpuSet::new()
            } else {
                kernel.last()
            }
        };
        // The sidecar begins before the container that will own the CPU: everything is shared then.
        let pod = Pod::run(kernel, stage.tree, stage.runtime, &spec);
        let prepare = pod.create_brief(&spec.init[0], 0).unwrap();
        began_in("prepare", &prepare.start(), &place("prepare"));
        stage.runtime.eventually("the init container ends", || {
            prepare.status().state() == crate::messages::State::Exited
        });
        let logs = pod.create(&spec.sidecars[0], 0).unwrap();
        logs.start();
        let main = scenarios::begin(&pod, &spec.containers[0], 0, &place);
        assert_eq!(
            cpus(&logs.exec()),
            shared(kernel),
            "the sidecar has left the container's CPUs"
        );
        assert_eq!(cpus(&main.exec()), kernel.last());
        let status = agent.eventually("both are known", |status| {
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
fn a_resize_leaves_it_where_it_is() {
    with_each(|stage, _| {
        let spec = PodSpec::worker("grown", 1);
        // A weight and a quota of half as much again: no whole number, which nobody owns more CPUs for.
        let to = spec.containers[0].clone().with_milli(1000);
        scenarios::resized(stage, &spec, &to, &|_| stage.kernel.last());
    });
}

#[test]
fn who_was_created_while_nobody_was_asked_is_pinned_at_its_start() {
    let Some(kernel) = kernel_tests() else { return };
    for suite in suites() {
        let tree = kernel.tree();
        let runtime = Runtime::start(&suite);
        let spec = PodSpec::worker("missed", 1);
        let pod = Pod::run(&kernel, &tree, &runtime, &spec);
        let main = pod.create(&spec.containers[0], 0).unwrap();
        let agent = settings(&kernel, &tree, &runtime).start();
        connected(&agent);
        began_in("main", &main.start(), &kernel.last());
        // Counted from its first process, which is the runtime's own until the program begins.
        let status = agent.eventually("it is its own", |status| {
            assigned(status, "missed") == Some(kernel.last())
        });
        let window = container(&status, "missed", "main").unwrap()["windowSeconds"]
            .as_f64()
            .unwrap_or(0.0);
        assert!(window < 0.5, "{window} s");
        pod.remove();
        agent.stop();
    }
}

#[test]
fn restarts_of_agent_and_runtime_in_the_middle_of_creations() {
    let lives = u32::try_from(scenarios::count("PINFOLD_TEST_DISTURBED", 12)).unwrap();
    let Some(kernel) = kernel_tests() else { return };
    for suite in suites() {
        let tree = kernel.tree();
        let runtime = Runtime::start(&suite);
        let begun = || settings(&kernel, &tree, &runtime).start();
        let agent = Mutex::new(Some(begun()));
        let with_agent = |act: &dyn Fn(&Agent)| agent.lock().unwrap().as_ref().map(act);
        with_agent(&connected);
        let spec = PodSpec::worker("disturbed", 1);
        let pod = Pod::run(&kernel, &tree, &runtime, &spec);
        // The agent is killed and comes back, then the runtime, then both at once.
        let disturb = || {
            let replace = |gone: bool| {
                let before = agent.lock().unwrap().take();
                before.into_iter().for_each(Agent::kill);
                if gone {
                    runtime.kill();
                }
                std::thread::sleep(Duration::from_millis(100));
                let new = begun();
                if gone {
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
        let elsewhere = AtomicU32::new(0);
        let judge = |made: &crate::pods::Container<'_>, report: &Report| {
            // One that was created while nobody was there to be asked began where everybody may run, or was taken for a
            // stranger in the pod by an agent that had not been told yet: off its CPUs, for a moment.
            let place = cpus(report);
            if place != kernel.last() {
                assert!(
                    place == kernel.online || place == shared(&kernel),
                    "{} began on {place}",
                    made.id
                );
                elsewhere.fetch_add(1, Ordering::Relaxed);
            }
        };
        let lived = scenarios::disturbed(&pod, 0, lives, disturb, judge);
        with_agent(&connected);
        // All is as it was: they begin on their own CPUs, and nothing was left owned by those before.
        scenarios::lives(&pod, 10_000, 3, &|_| kernel.last());
        println!(
            "{} {}: {lived} containers while agent and runtime were killed, {} of them begun with nobody to ask",
            runtime.suite,
            runtime.version,
            elsewhere.into_inner()
        );
        pod.forget();
        with_agent(&|agent| {
            agent.eventually("nothing is owned any more", |status| {
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
