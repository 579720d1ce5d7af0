use super::*;
use crate::nri::{
    LinuxContainer, LinuxNamespace, LinuxPodSandbox, LinuxResources, OptionalInt64, OptionalUInt64,
};
use crate::pod::qos;

fn sandbox(cgroup_parent: &str) -> PodSandbox {
    PodSandbox {
        id: "s".to_owned(),
        name: "ps-0".to_owned(),
        uid: "8f0d6986-3554".to_owned(),
        linux: Some(LinuxPodSandbox {
            cgroup_parent: cgroup_parent.to_owned(),
            ..LinuxPodSandbox::default()
        }),
        ..PodSandbox::default()
    }
}

/// A container as the kubelet configures it: request and limit in thousandths of a CPU, memory in
/// bytes; 0 for unset.
fn container(name: &str, request: u64, limit: u64, memory: i64) -> Container {
    let shares = (request * 1024 / 1000).clamp(2, 262_144);
    let quota = if limit == 0 {
        0
    } else {
        (limit * 100).max(1000)
    };
    given(name, shares, i64::try_from(quota).unwrap(), memory)
}

fn given(name: &str, shares: u64, quota: i64, memory: i64) -> Container {
    let cpu = LinuxCpu {
        shares: Some(OptionalUInt64 { value: shares }),
        quota: Some(OptionalInt64 { value: quota }),
        period: Some(OptionalUInt64 { value: 100_000 }),
        ..LinuxCpu::default()
    };
    let memory = LinuxMemory {
        limit: Some(OptionalInt64 { value: memory }),
    };
    let resources = LinuxResources {
        cpu: Some(cpu),
        memory: Some(memory),
    };
    Container {
        id: format!("id-{name}"),
        name: name.to_owned(),
        pod_sandbox_id: "s".to_owned(),
        linux: Some(LinuxContainer {
            resources: Some(resources),
            ..LinuxContainer::default()
        }),
        ..Container::default()
    }
}

fn cpus(container: &pod::Container) -> (Option<u64>, Option<u64>) {
    (
        container.resources.cpu_request,
        container.resources.cpu_limit,
    )
}

const GUARANTEED: &str = "/kubepods/pod8f0d6986-3554";
const BURSTABLE: &str = "/kubepods/burstable/pod8f0d6986-3554";

#[test]
fn both_drivers_name_the_class_and_the_uid() {
    let cases = [
        (
            "/kubepods/pod8f0d6986-3554",
            Some(Qos::Guaranteed),
            Some("8f0d6986-3554"),
        ),
        (
            "/kubepods/burstable/pod8f0d6986-3554",
            Some(Qos::Burstable),
            Some("8f0d6986-3554"),
        ),
        (
            "kubepods/besteffort/pod1/",
            Some(Qos::BestEffort),
            Some("1"),
        ),
        (
            "/kubelet/kubepods/burstable/pod1",
            Some(Qos::Burstable),
            Some("1"),
        ),
        (
            "kubepods-pod8f0d6986_3554.slice",
            Some(Qos::Guaranteed),
            Some("8f0d6986-3554"),
        ),
        (
            "kubepods-burstable-pod8f0d6986_3554.slice",
            Some(Qos::Burstable),
            Some("8f0d6986-3554"),
        ),
        (
            "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod1.slice",
            Some(Qos::BestEffort),
            Some("1"),
        ),
        (
            "kubelet-kubepods-podabc.slice",
            Some(Qos::Guaranteed),
            Some("abc"),
        ),
        ("/kubepods/system/pod1", Some(Qos::Guaranteed), Some("1")),
        (
            "kubepods-system-burstable-pod1.slice",
            Some(Qos::Burstable),
            Some("1"),
        ),
        ("/machine/system/pod1", None, Some("1")),
        ("/k8s.io", None, None),
        ("system.slice", None, None),
        ("/kubepods/pod", None, None),
        ("kubepods-pod.slice", None, None),
        ("", None, None),
        ("/machine/pod1", None, Some("1")),
    ];
    for (parent, class, uid) in cases {
        assert_eq!(
            (qos_class(parent), pod_uid(parent).as_deref()),
            (class, uid),
            "{parent}"
        );
    }
}

#[test]
fn every_request_and_limit_of_the_kubelet_comes_back() {
    for millis in (3..20_000).chain([128_000, 255_998, 255_999]) {
        let sent = container("c", millis, millis, 1 << 30);
        let got = pod(&sandbox(GUARANTEED), [&sent]);
        assert_eq!(cpus(&got.containers[0]), (Some(millis), Some(millis)));
        assert_eq!(qos(&got), Qos::Guaranteed);
    }
    // The largest weight means 256 CPUs or more, so the quota decides. The weight of one thousandth
    // gives no request.
    for millis in [256_000, 512_000] {
        let got = pod(&sandbox(GUARANTEED), [&container("c", millis, millis, 1)]);
        assert_eq!(cpus(&got.containers[0]), (Some(millis), Some(millis)));
    }
}

#[test]
fn every_limit_comes_back_with_any_period() {
    for period in [1000, 5000, 10_000, 99_999, 1_000_000] {
        for millis in [1000, 1500, 7999, 64_000] {
            assert_eq!(
                limit_of_quota(quota_of_limit(millis, period).unwrap(), period),
                Some(millis),
                "{millis} of {period}"
            );
        }
    }
    assert_eq!(limit_of_quota(u64::MAX, 1), None);
    assert_eq!(limit_of_quota(0, 0), Some(0));
}

#[test]
fn without_a_quota_the_weight_gives_the_limit() {
    for quota in [-1, 0] {
        let got = pod(&sandbox(GUARANTEED), [&given("c", 4096, quota, 1 << 30)]);
        assert_eq!(cpus(&got.containers[0]), (Some(4000), Some(4000)));
        assert_eq!(qos(&got), Qos::Guaranteed);
    }
    // The largest weight without a quota gives no request.
    let got = pod(&sandbox(GUARANTEED), [&given("c", 262_144, -1, 1 << 30)]);
    assert_eq!(cpus(&got.containers[0]), (None, None));
}

#[test]
fn a_quota_that_differs_from_the_request_stays() {
    let got = pod(&sandbox(GUARANTEED), [&given("c", 204, 15_000, 1 << 30)]);
    assert_eq!(cpus(&got.containers[0]), (Some(200), Some(150)));
    assert_eq!(qos(&got), Qos::Burstable);
}

#[test]
fn only_the_kubelets_guaranteed_pods_are_guaranteed() {
    let alike = container("c", 2000, 2000, 1 << 30);
    for parent in [BURSTABLE, "/k8s.io", ""] {
        let got = pod(&sandbox(parent), [&alike]);
        assert_eq!(
            cpus(&got.containers[0]),
            (Some(2000), Some(2000)),
            "{parent}"
        );
        assert_eq!(got.containers[0].resources.memory_request, None);
        assert_eq!(qos(&got), Qos::Burstable, "{parent}");
    }
    let nothing = pod(
        &sandbox("/kubepods/besteffort/pod1"),
        [&container("c", 0, 0, 0)],
    );
    assert_eq!(
        (qos(&nothing), nothing.qos_reported),
        (Qos::BestEffort, Some(Qos::BestEffort))
    );
    assert_eq!(nothing.containers[0].resources, Resources::default());
}

#[test]
fn a_debug_container_does_not_change_a_guaranteed_pod() {
    let app = container("c", 2000, 2000, 1 << 30);
    let got = pod(
        &sandbox(GUARANTEED),
        [&app, &container("debugger", 0, 0, 0)],
    );
    assert_eq!(got.containers.len(), 1);
    assert_eq!(qos(&got), Qos::Guaranteed);
    // In all other classes, a container without resources is an ordinary one.
    assert_eq!(
        pod(&sandbox(BURSTABLE), [&app, &container("plain", 0, 0, 0)])
            .containers
            .len(),
        2
    );
}

#[test]
fn stopped_foreign_and_older_containers_are_left_out() {
    let old = container("c", 1000, 1000, 1);
    let mut new = container("c", 1000, 1000, 1);
    new.id = "new".to_owned();
    let mut stopped = container("init", 1000, 1000, 1);
    stopped.state = ContainerState::Stopped as i32;
    let mut stranger = container("stranger", 1000, 1000, 1);
    stranger.pod_sandbox_id = "other".to_owned();
    let nameless = container("", 1000, 1000, 1);
    let got = pod(
        &sandbox(GUARANTEED),
        [&old, &new, &stopped, &stranger, &nameless],
    );
    assert_eq!(got.containers.len(), 1);
    assert_eq!(got.containers[0].runtime_id.as_deref(), Some("new"));
}

#[test]
fn remaining_fields_of_a_pod() {
    let text = |text: &str| text.to_owned();
    let mut sandbox = sandbox(GUARANTEED);
    sandbox.labels = [
        (text("app"), text("ps")),
        (text("io.kubernetes.pod.name"), text("ps-0")),
        (text("io.cri-containerd.kind"), text("sandbox")),
    ]
    .into();
    sandbox.annotations = [
        (text("pinfold.io/cpus"), text("exclusive")),
        (text("kubernetes.io/config.hash"), text("c0ffee")),
        (text("io.kubernetes.cri.sandbox-id"), text("s")),
        (text("io.kubernetes.cri-o.Name"), text("x")),
    ]
    .into();
    let mut sent = container("c", 1000, 1000, 1);
    sent.env = [text("A=1=2"), text("EMPTY="), text("none"), text("A=3")].into();
    sent.args = vec![text("sh"), text("-c")];
    sent.annotations = [(text("io.kubernetes.cri.image-name"), text("tf:2"))].into();
    assert_eq!(
        (
            sent.variable("A"),
            sent.variable("EMPTY"),
            sent.variable("none")
        ),
        (Some("3"), Some(""), None)
    );
    let got = pod(&sandbox, [&sent]);
    assert_eq!(got.to_string(), "default/ps-0");
    assert_eq!(*got.labels, [(text("app"), text("ps"))].into());
    let keys: Vec<&String> = got.annotations.keys().collect();
    assert_eq!(keys, ["pinfold.io/cpus"]);
    assert_eq!(got.cgroup_uid(), Some("8f0d6986-3554"));
    let app = &got.containers[0];
    assert_eq!(
        (app.image.as_str(), app.args.join(" ")),
        ("tf:2", text("sh -c"))
    );
    assert_eq!(app.env.get("A"), Some(&EnvSource::Value(text("3"))));
    assert_eq!(
        (app.env.len(), app.env_from, app.kind),
        (2, false, ContainerKind::App)
    );

    assert!(!got.host_network);
    let of = |kind: &str| LinuxNamespace {
        kind: kind.to_owned(),
    };
    let linux = sandbox.linux.as_mut().unwrap();
    linux.namespaces = vec![of("pid"), of("network")];
    assert!(!pod(&sandbox, []).host_network);
    sandbox.linux.as_mut().unwrap().namespaces = vec![of("pid"), of("mount")];
    assert!(pod(&sandbox, []).host_network);
}

#[test]
fn an_almost_empty_event_is_accepted() {
    let got = pod(
        &PodSandbox::default(),
        [&Container {
            name: "c".to_owned(),
            ..Container::default()
        }],
    );
    assert_eq!(
        (got.uid, got.qos_reported, got.containers.len()),
        (None, None, 1)
    );
    assert_eq!(got.containers[0].resources, Resources::default());
}

/// CRI-O gives each container the annotations of its pod.
#[test]
fn a_pods_author_cannot_say_which_cpus_pinfold_gave() {
    let sandbox_of = |annotated: bool| {
        let mut sandbox = sandbox("/kubepods/pod8f0d6986-3554");
        if annotated {
            let annotations = &mut sandbox.annotations;
            annotations.insert(GIVEN_CPUS_ANNOTATION.to_owned(), "0-7".to_owned());
        }
        sandbox
    };
    let mut main = container("main", 2000, 2000, 1 << 30);
    let annotations = &mut main.annotations;
    annotations.insert(GIVEN_CPUS_ANNOTATION.to_owned(), "0-7".to_owned());
    for (annotated, given) in [(false, Some("0-7".parse().unwrap())), (true, None)] {
        let pod = pod(&sandbox_of(annotated), [&main]);
        assert_eq!(pod.containers[0].given_cpus, given, "{annotated}");
    }
}
