//! The runtimes without a plugin: the baseline for the plugin tests, and a check of the test setup.

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
fn a_container_gets_its_requested_resources_and_leaves_no_cgroup() {
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
            "containerd makes the cgroup only at the container's start"
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

        // An in-place resize, then an update as the kubelet's static CPU manager sends.
        let wider = main.clone().with_milli(1500);
        pod.raise_limit(1500);
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
            "the cgroup of the removed container still exists"
        );
        let again = pod.create(&main, 1).unwrap();
        assert_eq!(
            cpus(&again.start()),
            kernel.online,
            "the second container has no settings of the first"
        );
        pod.remove();
        runtime.stop();
    }
}

#[test]
fn containers_survive_a_restart_of_the_daemon() {
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
            "a killed daemon answered"
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
            listed
                .iter()
                .map(|container| &container.id)
                .collect::<Vec<_>>(),
            [&container.id]
        );
        pod.remove();
        runtime.stop();
    }
}
