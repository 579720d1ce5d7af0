//! Manifests of pods, and every decision that follows from a manifest.

#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use pinfold::cpu::{CpuSet, MAX_CPU};
use pinfold::pod::{
    Container, ContainerKind, ContainerWish, CpuPreferences, Entitlement, NoLimit, Pod, Policy,
    Processes, Profile, Qos, RecognizedPod, Rounding, ThreadBasis, ThreadPolicy, cpu_preferences,
    entitlement, guaranteed_obstacle, parse, processes, qos, recognise, thread_environment,
    training,
};
use pinfold_fuzz::{says_why, text};

static POLICIES: LazyLock<[Policy; 3]> = LazyLock::new(|| {
    [
        Policy::default(),
        Policy {
            selector: "app in (train,x),!none".parse().ok(),
            training_only: true,
            single_cores: false,
            ..Policy::default()
        },
        Policy {
            selector: None,
            training_only: false,
            single_cores: true,
            ..Policy::default()
        },
    ]
});

static THREADS: LazyLock<Vec<ThreadPolicy>> = LazyLock::new(|| {
    let of = |profile| ThreadPolicy {
        profile,
        roles: Default::default(),
        rounding: Rounding::Ceil,
        no_limit: NoLimit::Request,
    };
    [ThreadPolicy::default()]
        .into_iter()
        .chain(
            [
                Profile::Limit,
                Profile::Openmp,
                Profile::Embedding,
                Profile::Ps,
            ]
            .map(of),
        )
        .collect()
});

fuzz_target!(|data: &[u8]| {
    let Some(text) = text(data) else { return };
    let pods = parse(text, "input");
    assert_eq!(pods, parse(text, "input"), "the same text, another answer");
    match pods {
        Ok(pods) => pods.iter().for_each(check),
        Err(error) => says_why(&error),
    }
});

fn check(pod: &Pod) {
    let pod = &RecognizedPod::from(pod.clone());
    assert!(!pod.namespace.is_empty());
    assert_eq!(
        qos(pod) == Qos::Guaranteed,
        guaranteed_obstacle(pod).is_none()
    );
    let (wanted, errors) = cpu_preferences(pod, &CpuPreferences::default());
    assert!(errors.iter().all(|error| !error.is_empty()));
    assert_eq!(wanted.request(3, &CpuSet::new()).cpus, 3);
    let recognition = recognise(pod);
    assert!(!recognition.evidence.is_empty());
    for (index, container) in pod.containers.iter().enumerate() {
        assert!(
            pod.container(&container.name)
                .is_some_and(|named| named.name == container.name)
        );
        if let Processes::Unknown { evidence } = processes(pod, container) {
            assert!(!evidence.is_empty());
        }
        for policy in POLICIES.iter() {
            let granted = entitlement(pod, container, policy);
            check_entitlement(pod, container, policy, &granted);
            for threads in THREADS.iter() {
                let cpus = granted.cpus() as usize;
                let exclusive =
                    (cpus > 0).then(|| ThreadBasis::exclusive(cpus, cpus.div_ceil(2), 1));
                let quota = ThreadBasis::of_quota(pod, container, threads);
                for basis in [exclusive, quota, quota.map(|basis| basis.at_most(8))] {
                    check_threads(pod, index, policy, threads, basis);
                }
            }
        }
    }
}

fn check_entitlement(
    pod: &RecognizedPod,
    container: &Container,
    policy: &Policy,
    granted: &Entitlement,
) {
    assert!(!granted.reason().is_empty());
    match granted {
        Entitlement::Exclusive { cpus, .. } => {
            assert!((1..=MAX_CPU + 1).contains(cpus));
            assert_eq!(container.resources.cpu_limit, Some(u64::from(*cpus) * 1000));
            let wish = pod.container_cpus().wish(&container.name);
            assert!(qos(pod) == Qos::Guaranteed || wish == Some(ContainerWish::Exclusive));
            assert!(training(pod, policy).counts && !pod.finished);
            assert_ne!(container.kind, ContainerKind::Init);
        }
        Entitlement::Inherit { .. } => assert_eq!(container.kind, ContainerKind::Init),
        Entitlement::Shared { .. } => assert_eq!(granted.cpus(), 0),
    }
}

fn check_threads(
    pod: &RecognizedPod,
    index: usize,
    policy: &Policy,
    threads: &ThreadPolicy,
    basis: Option<ThreadBasis>,
) {
    let container = &pod.containers[index];
    let environment = thread_environment(pod, index, policy, threads, basis);
    assert!(!environment.reason.is_empty());
    assert!(environment.variables.iter().all(|(name, value)| {
        !name.is_empty() && !value.is_empty() && !container.env.contains_key(name)
    }));
    assert!(
        environment
            .kept
            .iter()
            .all(|name| container.env.contains_key(name))
    );
    // A pool without a thread would compute nothing.
    assert_ne!(environment.threads, Some(0));
    if environment.profile == Profile::Off {
        assert!(environment.variables.is_empty());
    }
}
