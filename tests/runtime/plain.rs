//! The runtimes by themselves, without a plugin: what the other tests measure against, and that this bench works at all.

use pinfold::cpu::CpuSet;

use crate::daemon::{Runtime, suites};
use crate::kernel::kernel_tests;
use crate::messages::{ListContainers, State};
use crate::pods::{ContainerSpec, Pod, PodSpec};
use crate::probe::Report;

fn cpus(report: &Report) -> CpuSet {
    report.cpus.parse().unwrap()
}

#[test]
fn a_container_gets_what_it_asks_for_and_leaves_nothing() {
    let Some(kernel) = kernel_tests() else { return };
    for suite in suites() {
        let tree = kernel.tree();
        let runtime = Runtime::start(&suite);
        println!("{suite}: containerd {}", runtime.version);
        let main = ContainerSpec::new("main", 1)
            .with_env("OMP_NUM_THREADS", "7")
            .with_env("EMPTY", "");
        let pod = Pod::run(
            &kernel,
            &tree,
            &runtime,
            &PodSpec::new("plain", main.clone()),
        );
        let container = pod.create(&main, 0).unwrap();
        assert_eq!(container.status().state(), State::Created);
        assert!(
            !kernel.cgroups.exists(&container.cgroup),
            "containerd makes its cgroup when it starts"
        );

        let report = container.start();
        assert_eq!(container.status().state(), State::Running);
        assert_eq!(cpus(&report), kernel.online);
        assert!(kernel.online.contains(report.ran_on));
        assert_eq!(
            report.env.get("OMP_NUM_THREADS").map(String::as_str),
            Some("7")
        );
        assert_eq!(report.env.get("EMPTY").map(String::as_str), Some(""));
        assert_eq!(kernel.quota(&container.cgroup), Some(100_000));
        assert_eq!(cpus(&container.exec()), kernel.online);

        // As an in-place resize, then as the kubelet's static CPU manager.
        let wider = main.clone().with_milli(1500);
        pod.widen(1500);
        container.update(wider.resources()).unwrap();
        assert_eq!(kernel.quota(&container.cgroup), Some(150_000));
        let mut narrow = wider.resources();
        narrow.cpuset_cpus = kernel.last().to_string();
        container.update(narrow).unwrap();
        assert_eq!(kernel.effective(&container.cgroup), kernel.last());
        assert_eq!(cpus(&container.exec()), kernel.last());

        container.remove();
        assert!(
            !kernel.cgroups.exists(&container.cgroup),
            "its cgroup is gone"
        );
        let again = pod.create(&main, 1).unwrap();
        assert_eq!(
            cpus(&again.start()),
            kernel.online,
            "nothing is remembered of the first"
        );
        pod.remove();
        runtime.stop();
    }
}

#[test]
fn containers_outlive_their_daemon() {
    let Some(kernel) = kernel_tests() else { return };
    for suite in suites() {
        let tree = kernel.tree();
        let runtime = Runtime::start(&suite);
        let main = ContainerSpec::without_limits("main");
        let pod = Pod::run(
            &kernel,
            &tree,
            &runtime,
            &PodSpec::new("lasting", main.clone()),
        );
        let container = pod.create(&main, 0).unwrap();
        container.start();
        let before = kernel.cgroups.processes(&container.cgroup).unwrap();
        assert_eq!(before.len(), 1);
        runtime.kill();
        assert!(
            runtime.cri.try_call(&ListContainers {}).is_err(),
            "nobody answers"
        );
        runtime.launch();
        runtime.restart();
        assert_eq!(
            kernel.cgroups.processes(&container.cgroup).unwrap(),
            before,
            "the same process"
        );
        assert_eq!(container.status().state(), State::Running);
        assert_eq!(cpus(&container.exec()), kernel.online);
        let listed = runtime.cri.call(&ListContainers {}).containers;
        assert_eq!(
            listed.iter().map(|one| &one.id).collect::<Vec<_>>(),
            [&container.id]
        );
        pod.remove();
        runtime.stop();
    }
}
