//! The plugin library with a real runtime: a container gets the plugin's adjustment before the first instruction.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use pinfold::cpu::CpuSet;
use pinfold::nri::{self, Event};
use pinfold::pod::{self, Qos};

use crate::daemon::{PLUGIN_TIME_LIMIT, Runtime, suites};
use crate::kernel::{Kernel, Tree, kernel_tests};
use crate::pods::{Container, ContainerSpec, Pod, PodSpec};
use crate::probe::Report;
use crate::scenarios::{self, Stage, cpus};
use crate::scripted::Serving;

/// Plays a scenario with each runtime and the scripted plugin.
fn with_each(play: impl Fn(Stage<'_>, &Kernel, &Tree<'_>, &Runtime, &Serving)) {
    with_each_within(PLUGIN_TIME_LIMIT, play);
}

/// As `with_each`, with the runtime's time limit for an answer of the plugin.
fn with_each_within(
    time_limit: Duration,
    play: impl Fn(Stage<'_>, &Kernel, &Tree<'_>, &Runtime, &Serving),
) {
    let Some(kernel) = kernel_tests() else { return };
    for suite in suites() {
        let tree = kernel.tree();
        let runtime = Runtime::start_within(&suite, time_limit);
        let plugin = Serving::start(&runtime, "scripted", 20);
        let stage = Stage {
            kernel: &kernel,
            tree: &tree,
            runtime: &runtime,
        };
        play(stage, &kernel, &tree, &runtime, &plugin);
        plugin.stop();
        runtime.stop();
    }
}

/// A worker whose CPU set the plugin sets to `cpus`.
fn worker_on(name: &str, cpus: &CpuSet) -> PodSpec {
    let mut spec = PodSpec::worker(name, 1);
    spec.annotations
        .insert("test/cpus".to_owned(), cpus.to_string());
    spec
}

#[test]
fn cpus_and_variables_are_set_before_the_first_instruction() {
    with_each(|_, kernel, tree, runtime, plugin| {
        let own_cpus = kernel.last();
        let mut spec = worker_on("given", &own_cpus);
        spec.annotations
            .insert("test/env".to_owned(), "TF_NUM_INTRAOP_THREADS=1".to_owned());
        let main = ContainerSpec::new("main", 1).with_env("OTHER", "kept");
        let second = ContainerSpec::new("second", 1).with_env("TF_NUM_INTRAOP_THREADS", "64");
        let pod = Pod::run(kernel, tree, runtime, &spec);
        let container = pod.create(&main, 0).unwrap();
        let report = container.start();
        scenarios::began_in("main", &report, &own_cpus);
        assert_eq!(report.parallelism, own_cpus.len());
        let env = |report: &Report, name: &str| report.env.get(name).cloned();
        assert_eq!(env(&report, "TF_NUM_INTRAOP_THREADS").as_deref(), Some("1"));
        assert_eq!(env(&report, "OTHER").as_deref(), Some("kept"));
        assert_eq!(
            env(&container.exec(), "TF_NUM_INTRAOP_THREADS").as_deref(),
            Some("1"),
            "the environment of exec"
        );
        let report = pod.create(&second, 0).unwrap().start();
        assert_eq!(
            env(&report, "TF_NUM_INTRAOP_THREADS").as_deref(),
            Some("64"),
            "the user's value"
        );

        let neighbour = Pod::run(kernel, tree, runtime, &PodSpec::worker("neighbour", 1));
        let report = neighbour
            .create(&ContainerSpec::new("other", 1), 0)
            .unwrap()
            .start();
        assert_eq!(
            cpus(&report),
            kernel.online,
            "the plugin adjusts only annotated pods"
        );
        neighbour.remove();

        // The pod read from the runtime's messages equals the pod read from the manifest.
        let created = plugin.last(Event::CreateContainer, "main");
        let from_runtime = nri::pod(&created.pod, [&created.container]);
        assert_eq!(
            (from_runtime.namespace.as_str(), from_runtime.name.as_str()),
            ("train", "given")
        );
        assert_eq!(from_runtime.cgroup_uid(), Some("given-uid"));
        assert_eq!(*from_runtime.labels, spec.labels);
        assert_eq!(*from_runtime.annotations, spec.annotations);
        assert!(from_runtime.host_network);
        assert_eq!(from_runtime.qos_reported, Some(Qos::Guaranteed));
        let resources = from_runtime.container("main").unwrap().resources;
        assert_eq!(
            (resources.cpu_request, resources.cpu_limit),
            (Some(1000), Some(1000))
        );
        assert_eq!(resources.memory_limit, Some(128 << 20));
        let from_manifest = pod::parse(&spec.manifest(), "the manifest")
            .unwrap()
            .remove(0);
        assert_eq!(from_manifest.uid, from_runtime.uid);
        assert_eq!(from_manifest.labels, from_runtime.labels);
        // The agent keeps the annotations that a rule uses.
        assert!(from_manifest.annotations.is_empty());
        assert_eq!(
            from_manifest.container("main").unwrap().resources,
            resources
        );
        let started = plugin.last(Event::StartContainer, "main");
        assert_eq!(
            started.container.cgroups_path().trim_start_matches('/'),
            container.cgroup
        );
        assert_ne!(
            started.container.pid, 0,
            "the container's first process waits"
        );
        assert_eq!(
            started.effective,
            Some(own_cpus.clone()),
            "the CPU set is effective before the program begins"
        );

        container.remove();
        pod.remove();
        let events = plugin.events("main");
        let wanted = [
            Event::CreateContainer,
            Event::PostCreateContainer,
            Event::StartContainer,
            Event::PostStartContainer,
            Event::StopContainer,
            Event::RemoveContainer,
        ];
        assert_eq!(events, wanted);
        assert_eq!(plugin.events("")[0], Event::RunPodSandbox);
        assert!(plugin.events("").contains(&Event::RemovePodSandbox));
    });
}

#[test]
fn synchronize_lists_running_containers_after_each_restart() {
    with_each(|_, kernel, tree, runtime, plugin| {
        let spec = worker_on("lasting", &kernel.last());
        let pod = Pod::run(kernel, tree, runtime, &spec);
        let container = pod.create(&spec.containers[0], 0).unwrap();
        container.start();

        // A second plugin connects later and gets the running container.
        let later_plugin = Serving::start(runtime, "late", 30);
        let containers = later_plugin.recording.lock().unwrap().synchronized[0].clone();
        assert_eq!(
            containers
                .iter()
                .map(|container| &container.id)
                .collect::<Vec<_>>(),
            [&container.id]
        );
        later_plugin.stop();

        // A CPU set written directly to the cgroup stays.
        kernel.write_cpus(&container.cgroup, &kernel.first());
        assert_eq!(kernel.effective(&container.cgroup), kernel.first());
        assert_eq!(cpus(&container.exec()), kernel.first());

        for round in 0..2 {
            if round == 0 {
                runtime.restart();
            } else {
                runtime.kill();
                plugin.reaches(runtime, "away");
                runtime.launch();
            }
            let wanted = round + 2;
            runtime.eventually("the plugin is synchronized again", || {
                plugin.recording.lock().unwrap().synchronized.len() >= wanted
            });
            plugin.synchronized(runtime);
            let containers = plugin
                .recording
                .lock()
                .unwrap()
                .synchronized
                .last()
                .unwrap()
                .clone();
            assert_eq!(
                containers
                    .iter()
                    .map(|container| &container.id)
                    .collect::<Vec<_>>(),
                [&container.id]
            );
            assert_eq!(
                kernel.effective(&container.cgroup),
                kernel.first(),
                "a restart moves nothing"
            );
            let next = pod
                .create(&spec.containers[0], 1 + u32::try_from(round).unwrap())
                .unwrap();
            scenarios::began_in("the next container", &next.start(), &kernel.last());
            next.remove();
        }
        pod.remove();
    });
}

#[test]
fn every_container_of_a_pod_stays_on_its_cpus() {
    with_each(|stage, kernel, _, _, plugin| {
        let own_cpus = kernel.last();
        let expected = |_: &str| own_cpus.clone();
        let mut spec = worker_on("whole", &own_cpus);
        spec.init = vec![
            ContainerSpec::new("fetch", 1),
            ContainerSpec::new("unpack", 1),
        ];
        spec.sidecars = vec![ContainerSpec::new("logs", 1)];
        scenarios::whole_pod(stage, &spec, &expected);
        let wider = ContainerSpec::new("main", 1).with_milli(1500);
        scenarios::resized(stage, &worker_on("resized", &own_cpus), &wider, &expected);
        assert!(plugin.events("main").contains(&Event::UpdateContainer));

        let mut spec = worker_on("refused", &own_cpus);
        spec.annotations.insert(
            "test/refuse".to_owned(),
            "no CPU is free for refused".to_owned(),
        );
        scenarios::refused_once(stage, &spec, "no CPU is free for refused", &expected);
    });
}

#[test]
fn restarts_in_the_middle_of_creations() {
    let containers = u32::try_from(scenarios::count("PINFOLD_TEST_DISTURBED", 12)).unwrap();
    let Some(kernel) = kernel_tests() else { return };
    for suite in suites() {
        let tree = kernel.tree();
        let runtime = Runtime::start(&suite);
        let plugin = Serving::start(&runtime, "scripted", 20);
        let own_cpus = kernel.last();
        let spec = worker_on("disturbed", &own_cpus);
        let pod = Pod::run(&kernel, &tree, &runtime, &spec);
        let synchronizations = || plugin.recording.lock().unwrap().synchronized.len();
        // The runtime restarts twice: once after SIGTERM, once after SIGKILL.
        let disturb = || {
            std::thread::sleep(Duration::from_millis(150));
            runtime.restart();
            std::thread::sleep(Duration::from_millis(350));
            runtime.kill();
            std::thread::sleep(Duration::from_millis(50));
            runtime.launch();
        };
        let without_plugin = AtomicU32::new(0);
        let judge = |container: &Container<'_>, report: &Report| {
            let began_on = cpus(report);
            if began_on != own_cpus {
                // The container was created while the plugin was disconnected, so nothing was adjusted.
                assert_eq!(began_on, kernel.online, "{}", container.id);
                without_plugin.fetch_add(1, Ordering::Relaxed);
            }
        };
        let started = scenarios::disturbed(&pod, 0, containers, disturb, judge);
        runtime.eventually("the plugin is synchronized again", || {
            synchronizations() >= 2
        });
        plugin.synchronized(&runtime);
        scenarios::run_containers(&pod, 1_000_000, 2, &|_| own_cpus.clone());
        println!(
            "{} {}: {started} containers while the runtime was restarted and killed, {} of them created without the plugin",
            runtime.suite,
            runtime.version,
            without_plugin.into_inner()
        );
        plugin.stop();
        // A killed runtime forgets unfinished containers. The drop of the runtime removes the leftover cgroups and
        // mounts.
        pod.remove_if_possible();
    }
}

#[test]
fn a_refused_start_fails_the_container() {
    with_each(|_, kernel, tree, runtime, _| {
        let mut spec = worker_on("gated", &kernel.last());
        spec.annotations.insert(
            "test/refuse-start".to_owned(),
            "its CPUs are not in force".to_owned(),
        );
        let pod = Pod::run(kernel, tree, runtime, &spec);
        let container = pod.create(&spec.containers[0], 0).unwrap();
        let refused = container.try_start().unwrap_err();
        assert!(refused.0.contains("its CPUs are not in force"), "{refused}");
        assert!(
            !container.has_reported(),
            "the program of a refused container ran"
        );
        container.remove();
        let again = pod.create(&spec.containers[0], 1).unwrap();
        scenarios::began_in("main", &again.start(), &kernel.last());
        pod.remove();
    });
}

#[test]
fn a_late_answer_loses_the_adjustment_but_keeps_the_plugin_connected() {
    let default_limit = Duration::from_secs(2);
    with_each_within(default_limit, |_, kernel, tree, runtime, plugin| {
        let mut spec = worker_on("late", &kernel.last());
        spec.annotations
            .insert("test/sleep".to_owned(), "30000".to_owned());
        let pod = Pod::run(kernel, tree, runtime, &spec);
        let report = pod.create(&spec.containers[0], 0).unwrap().start();
        assert_eq!(
            cpus(&report),
            kernel.online,
            "the container starts without an adjustment"
        );
        let unanswered = plugin.recording.lock().unwrap().unanswered.clone();
        assert_eq!(unanswered.len(), 1, "{unanswered:?}");
        pod.remove();

        let spec = worker_on("timely", &kernel.last());
        let pod = Pod::run(kernel, tree, runtime, &spec);
        let report = pod.create(&spec.containers[0], 0).unwrap().start();
        scenarios::began_in("main", &report, &kernel.last());
        pod.remove();
        assert_eq!(
            plugin.recording.lock().unwrap().synchronized.len(),
            1,
            "the runtime never disconnected the plugin"
        );
    });
}

#[test]
fn two_plugins_that_set_the_same_cpus_conflict() {
    with_each(|_, kernel, tree, runtime, first| {
        let second = Serving::start(runtime, "second", 50);
        // Both plugins set the container's CPUs, so the runtime refuses the container.
        let spec = worker_on("contended", &kernel.last());
        let pod = Pod::run(kernel, tree, runtime, &spec);
        let Err(refused) = pod.create(&spec.containers[0], 0) else {
            panic!("the runtime accepted two plugins that set one value")
        };
        assert!(
            refused.0.contains("scripted") && refused.0.contains("second"),
            "{refused}"
        );
        second.stop();
        let report = pod.create(&spec.containers[0], 0).unwrap().start();
        scenarios::began_in("main", &report, &kernel.last());
        pod.remove();

        // The scripted plugin leaves this pod alone: the events arrive at both plugins.
        let second = Serving::start(runtime, "second", 50);
        let spec = PodSpec::worker("left-alone", 1);
        let pod = Pod::run(kernel, tree, runtime, &spec);
        let report = pod.create(&spec.containers[0], 0).unwrap().start();
        assert_eq!(cpus(&report), kernel.online);
        let lifecycle = [
            Event::CreateContainer,
            Event::PostCreateContainer,
            Event::StartContainer,
            Event::PostStartContainer,
        ];
        assert_eq!(second.events("main"), lifecycle);
        assert!(first.events("main").ends_with(&lifecycle));
        pod.remove();
        second.stop();
    });
}

#[test]
fn many_containers_all_begin_on_their_cpus() {
    let containers = scenarios::count("PINFOLD_TEST_CONTAINERS", 100);
    with_each(|_, kernel, tree, runtime, _| {
        let (first, last) = (kernel.first(), kernel.last());
        let pods = [worker_on("left", &first), worker_on("right", &last)]
            .map(|spec| Pod::run(kernel, tree, runtime, &spec));
        let each = u32::try_from(containers.div_ceil(2)).unwrap();
        let start = std::time::Instant::now();
        let started: u32 = std::thread::scope(|scope| {
            let threads: Vec<_> = pods
                .iter()
                .zip([&first, &last])
                .map(|(pod, own_cpus)| {
                    scope.spawn(move || {
                        scenarios::run_containers(pod, 0, each, &|_| own_cpus.clone())
                    })
                })
                .collect();
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap())
                .sum()
        });
        println!(
            "{} {}: {started} containers, 0 began on other CPUs, {:.1} s",
            runtime.suite,
            runtime.version,
            start.elapsed().as_secs_f64()
        );
        for pod in pods {
            pod.remove();
        }
    });
}
