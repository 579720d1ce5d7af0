//! The plugin library against the real thing: what is asked for in an answer is what containers get, before they begin.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use pinfold::cpu::CpuSet;
use pinfold::nri::{self, Event};
use pinfold::pod::{self, Qos};

use crate::daemon::{Runtime, suites};
use crate::kernel::{Kernel, Tree, kernel_tests};
use crate::pods::{Container, ContainerSpec, Pod, PodSpec};
use crate::probe::Report;
use crate::scenarios::{self, Stage, cpus};
use crate::scripted::Serving;

/// Plays a scenario with each runtime and the scripted plugin.
fn with_each(play: impl Fn(Stage<'_>, &Kernel, &Tree<'_>, &Runtime, &Serving)) {
    let Some(kernel) = kernel_tests() else { return };
    for suite in suites() {
        let tree = kernel.tree();
        let runtime = Runtime::start(&suite);
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

/// A worker that the plugin puts onto these CPUs.
fn on(name: &str, cpus: &CpuSet) -> PodSpec {
    let mut spec = PodSpec::worker(name, 1);
    spec.annotations
        .insert("test/cpus".to_owned(), cpus.to_string());
    spec
}

#[test]
fn cpus_and_variables_are_there_before_the_first_instruction() {
    with_each(|_, kernel, tree, runtime, plugin| {
        let own = kernel.last();
        let mut spec = on("given", &own);
        spec.annotations
            .insert("test/env".to_owned(), "TF_NUM_INTRAOP_THREADS=1".to_owned());
        let main = ContainerSpec::new("main", 1).with_env("OTHER", "kept");
        let second = ContainerSpec::new("second", 1).with_env("TF_NUM_INTRAOP_THREADS", "64");
        let pod = Pod::run(kernel, tree, runtime, &spec);
        let container = pod.create(&main, 0).unwrap();
        let report = container.start();
        scenarios::began_in("main", &report, &own);
        assert_eq!(report.parallelism, own.len());
        let env = |report: &Report, name: &str| report.env.get(name).cloned();
        assert_eq!(env(&report, "TF_NUM_INTRAOP_THREADS").as_deref(), Some("1"));
        assert_eq!(env(&report, "OTHER").as_deref(), Some("kept"));
        assert_eq!(
            env(&container.exec(), "TF_NUM_INTRAOP_THREADS").as_deref(),
            Some("1"),
            "of exec too"
        );
        let report = pod.create(&second, 0).unwrap().start();
        assert_eq!(
            env(&report, "TF_NUM_INTRAOP_THREADS").as_deref(),
            Some("64"),
            "the user's own value"
        );

        let neighbour = Pod::run(kernel, tree, runtime, &PodSpec::worker("neighbour", 1));
        let report = neighbour
            .create(&ContainerSpec::new("other", 1), 0)
            .unwrap()
            .start();
        assert_eq!(cpus(&report), kernel.online, "nothing was asked for it");
        neighbour.remove();

        // What the runtime tells makes the pod that the API server would tell of.
        let created = plugin.last(Event::CreateContainer, "main");
        let known = nri::pod(&created.pod, [&created.container]);
        assert_eq!(
            (known.namespace.as_str(), known.name.as_str()),
            ("train", "given")
        );
        assert_eq!(known.cgroup_uid(), Some("given-uid"));
        assert_eq!(known.labels, spec.labels);
        assert_eq!(known.annotations, spec.annotations);
        assert!(known.host_network);
        assert_eq!(known.qos_reported, Some(Qos::Guaranteed));
        let resources = known.container("main").unwrap().resources;
        assert_eq!(
            (resources.cpu_request, resources.cpu_limit),
            (Some(1000), Some(1000))
        );
        assert_eq!(resources.memory_limit, Some(128 << 20));
        let written = pod::parse(&spec.manifest(), "the manifest")
            .unwrap()
            .remove(0);
        assert_eq!(written.uid, known.uid);
        assert_eq!(
            (&written.labels, &written.annotations),
            (&known.labels, &known.annotations)
        );
        assert_eq!(written.container("main").unwrap().resources, resources);
        let started = plugin.last(Event::StartContainer, "main");
        assert_eq!(
            started.container.cgroups_path().trim_start_matches('/'),
            container.cgroup
        );
        assert_ne!(started.container.pid, 0, "its first process waits");
        assert_eq!(
            started.effective,
            Some(own.clone()),
            "its CPUs are in force before its program begins"
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
fn what_runs_is_told_after_each_restart() {
    with_each(|_, kernel, tree, runtime, plugin| {
        let spec = on("lasting", &kernel.last());
        let pod = Pod::run(kernel, tree, runtime, &spec);
        let container = pod.create(&spec.containers[0], 0).unwrap();
        container.start();

        // Another plugin comes later, and hears of it.
        let late = Serving::start(runtime, "late", 30);
        let containers = late.recording.lock().unwrap().synchronized[0].clone();
        assert_eq!(
            containers.iter().map(|one| &one.id).collect::<Vec<_>>(),
            [&container.id]
        );
        late.stop();

        // A set that somebody writes to the cgroup stays.
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
            runtime.eventually("the plugin is in step again", || {
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
                containers.iter().map(|one| &one.id).collect::<Vec<_>>(),
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
            scenarios::began_in("the next", &next.start(), &kernel.last());
            next.remove();
        }
        pod.remove();
    });
}

#[test]
fn pods_as_wholes_stay_where_they_are_put() {
    with_each(|stage, kernel, _, _, plugin| {
        let own = kernel.last();
        let place = |_: &str| own.clone();
        let mut spec = on("whole", &own);
        spec.init = vec![
            ContainerSpec::new("fetch", 1),
            ContainerSpec::new("unpack", 1),
        ];
        spec.sidecars = vec![ContainerSpec::new("logs", 1)];
        scenarios::whole_pod(stage, &spec, &place);
        let wider = ContainerSpec::new("main", 1).with_milli(1500);
        scenarios::resized(stage, &on("resized", &own), &wider, &place);
        assert!(plugin.events("main").contains(&Event::UpdateContainer));

        let mut spec = on("refused", &own);
        spec.annotations.insert(
            "test/refuse".to_owned(),
            "no CPU is free for refused".to_owned(),
        );
        scenarios::refused_once(stage, &spec, "no CPU is free for refused", &place);
    });
}

#[test]
fn restarts_in_the_middle_of_creations() {
    let lives = u32::try_from(scenarios::count("PINFOLD_TEST_DISTURBED", 12)).unwrap();
    let Some(kernel) = kernel_tests() else { return };
    for suite in suites() {
        let tree = kernel.tree();
        let runtime = Runtime::start(&suite);
        let plugin = Serving::start(&runtime, "scripted", 20);
        let own = kernel.last();
        let spec = on("disturbed", &own);
        let pod = Pod::run(&kernel, &tree, &runtime, &spec);
        let first_answer = || plugin.recording.lock().unwrap().synchronized.len();
        // The runtime goes away and comes back, twice, once without a word.
        let disturb = || {
            std::thread::sleep(Duration::from_millis(150));
            runtime.restart();
            std::thread::sleep(Duration::from_millis(350));
            runtime.kill();
            std::thread::sleep(Duration::from_millis(50));
            runtime.launch();
        };
        let elsewhere = AtomicU32::new(0);
        let judge = |container: &Container<'_>, report: &Report| {
            let place = cpus(report);
            if place != own {
                // It was created while the plugin was not connected: then it is adjusted in nothing.
                assert_eq!(place, kernel.online, "{}", container.id);
                elsewhere.fetch_add(1, Ordering::Relaxed);
            }
        };
        let lived = scenarios::disturbed(&pod, 0, lives, disturb, judge);
        runtime.eventually("the plugin is in step again", || first_answer() >= 2);
        plugin.synchronized(&runtime);
        scenarios::lives(&pod, 10_000, 2, &|_| own.clone());
        println!(
            "{} {}: {lived} containers while it was restarted and killed, {} of them without the plugin",
            runtime.suite,
            runtime.version,
            elsewhere.into_inner()
        );
        plugin.stop();
        // What a runtime had begun when it was killed it knows nothing of any more: its cgroups and mounts go with its files.
        pod.forget();
    }
}

#[test]
fn a_refused_start_fails_the_container() {
    with_each(|_, kernel, tree, runtime, _| {
        let mut spec = on("gated", &kernel.last());
        spec.annotations.insert(
            "test/refuse-start".to_owned(),
            "its CPUs are not in force".to_owned(),
        );
        let pod = Pod::run(kernel, tree, runtime, &spec);
        let container = pod.create(&spec.containers[0], 0).unwrap();
        let refused = container.try_start().unwrap_err();
        assert!(refused.0.contains("its CPUs are not in force"), "{refused}");
        assert!(!container.has_reported(), "its program never ran");
        container.remove();
        let again = pod.create(&spec.containers[0], 1).unwrap();
        scenarios::began_in("main", &again.start(), &kernel.last());
        pod.remove();
    });
}

#[test]
fn a_late_answer_costs_the_adjustment_and_not_the_plugin() {
    with_each(|_, kernel, tree, runtime, plugin| {
        let mut spec = on("late", &kernel.last());
        spec.annotations
            .insert("test/sleep".to_owned(), "30000".to_owned());
        let pod = Pod::run(kernel, tree, runtime, &spec);
        let report = pod.create(&spec.containers[0], 0).unwrap().start();
        assert_eq!(cpus(&report), kernel.online, "it was let go unadjusted");
        let unanswered = plugin.recording.lock().unwrap().unanswered.clone();
        assert_eq!(unanswered.len(), 1, "{unanswered:?}");
        pod.remove();

        let spec = on("timely", &kernel.last());
        let pod = Pod::run(kernel, tree, runtime, &spec);
        let report = pod.create(&spec.containers[0], 0).unwrap().start();
        scenarios::began_in("main", &report, &kernel.last());
        pod.remove();
        assert_eq!(
            plugin.recording.lock().unwrap().synchronized.len(),
            1,
            "it was never thrown out"
        );
    });
}

#[test]
fn two_plugins_that_want_the_same() {
    with_each(|_, kernel, tree, runtime, first| {
        let second = Serving::start(runtime, "second", 50);
        // Both want the same CPUs of the container: the runtime lets nobody win.
        let spec = on("contended", &kernel.last());
        let pod = Pod::run(kernel, tree, runtime, &spec);
        let Err(refused) = pod.create(&spec.containers[0], 0) else {
            panic!("two owners of one value")
        };
        assert!(
            refused.0.contains("scripted") && refused.0.contains("second"),
            "{refused}"
        );
        second.stop();
        let report = pod.create(&spec.containers[0], 0).unwrap().start();
        scenarios::began_in("main", &report, &kernel.last());
        pod.remove();

        // One of them has nothing to say: the other's word counts.
        let second = Serving::start(runtime, "second", 50);
        let spec = PodSpec::worker("left-alone", 1);
        let pod = Pod::run(kernel, tree, runtime, &spec);
        let report = pod.create(&spec.containers[0], 0).unwrap().start();
        assert_eq!(cpus(&report), kernel.online);
        let lived = [
            Event::CreateContainer,
            Event::PostCreateContainer,
            Event::StartContainer,
            Event::PostStartContainer,
        ];
        assert_eq!(second.events("main"), lived);
        assert!(first.events("main").ends_with(&lived));
        pod.remove();
        second.stop();
    });
}

#[test]
fn many_lives_all_begin_where_they_belong() {
    let lives = scenarios::count("PINFOLD_TEST_CONTAINERS", 100);
    with_each(|_, kernel, tree, runtime, _| {
        let (first, last) = (kernel.first(), kernel.last());
        let pods = [on("left", &first), on("right", &last)]
            .map(|spec| Pod::run(kernel, tree, runtime, &spec));
        let each = u32::try_from(lives.div_ceil(2)).unwrap();
        let start = std::time::Instant::now();
        let lived: u32 = std::thread::scope(|scope| {
            let threads: Vec<_> = pods
                .iter()
                .zip([&first, &last])
                .map(|(pod, own)| {
                    scope.spawn(move || scenarios::lives(pod, 0, each, &|_| own.clone()))
                })
                .collect();
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap())
                .sum()
        });
        println!(
            "{} {}: {lived} containers, 0 began elsewhere, {:.1} s",
            runtime.suite,
            runtime.version,
            start.elapsed().as_secs_f64()
        );
        for pod in pods {
            pod.remove();
        }
    });
}
