use super::*;
use crate::cpu::Cpu;
use crate::pod::{Resources, THREAD_VARIABLES};

fn pod(role: &str) -> Pod {
    let key = "training.kubeflow.org/replica-type".to_owned();
    Pod {
        labels: [(key, role.to_owned())].into(),
        containers: vec![container("main")],
        ..Pod::default()
    }
}

fn container(name: &str) -> Container {
    Container {
        name: name.to_owned(),
        ..Container::default()
    }
}

fn set(container: &mut Container, name: &str, value: &str) {
    container
        .env
        .insert(name.to_owned(), EnvSource::Value(value.to_owned()));
}

fn environment(pod: &Pod, basis: ThreadBasis) -> ThreadEnvironment {
    thread_environment(
        &pod.clone().into(),
        0,
        &Policy::default(),
        &ThreadPolicy::default(),
        Some(basis),
    )
}

fn written(environment: &ThreadEnvironment) -> String {
    let short = |name: &str| {
        let name = name
            .replace("TF_GRPC_WORKER_CACHE_", "GRPC_")
            .replace("_NUM_THREADS", "");
        name.replace("TF_NUM_", "")
            .replace("_THREADS", "")
            .to_lowercase()
    };
    let pairs: Vec<_> = environment
        .variables
        .iter()
        .map(|(name, value)| format!("{}={value}", short(name)))
        .collect();
    pairs.join(" ")
}

#[test]
fn profiles() {
    let basis = ThreadBasis::exclusive(8, 4, 2);
    let cases = [
        (
            "limit",
            "numba=8 omp=8 interop=8 intraop=8",
            Some(8),
            Some(16),
        ),
        (
            "openmp",
            "kmp_blocktime=1 numba=8 numexpr=8 omp=4 interop=2 intraop=4",
            Some(4),
            Some(8),
        ),
        (
            "embedding",
            "numba=8 numexpr=8 omp=1 interop=8 intraop=1",
            Some(1),
            Some(9),
        ),
        (
            "ps",
            "numba=8 numexpr=8 omp=4 grpc_queues=8 grpc=8 interop=8 intraop=4",
            Some(4),
            Some(28),
        ),
        ("off", "", None, None),
        ("Limit", "", None, None),
    ];
    for (profile, variables, threads, expected) in cases {
        let mut pod = pod("worker");
        pod.annotations
            .insert(THREADS_ANNOTATION.to_owned(), profile.to_owned());
        let found = environment(&pod, basis);
        assert_eq!(written(&found), variables, "{profile}");
        // Only variables of this list are kept when a pod is read. An owner's value of another one would be overwritten.
        for name in found.variables.keys() {
            assert!(THREAD_VARIABLES.contains(&name.as_str()), "{name}");
        }
        assert_eq!(
            (found.threads, found.expected_threads),
            (threads, expected),
            "{profile}"
        );
        assert_eq!(
            found.profile.to_string(),
            if threads.is_some() { profile } else { "off" }
        );
    }
}

/// A worker of TensorFlow with one inter-op thread makes no step.
#[test]
fn one_cpu_has_two_inter_op_threads() {
    let basis = ThreadBasis::exclusive(1, 1, 1);
    for (profile, expected) in [("limit", 2), ("openmp", 1), ("embedding", 2), ("ps", 7)] {
        let mut pod = pod("worker");
        pod.annotations
            .insert(THREADS_ANNOTATION.to_owned(), profile.to_owned());
        let found = environment(&pod, basis);
        assert_eq!(
            (
                found.variables["TF_NUM_INTEROP_THREADS"].as_str(),
                found.variables["TF_NUM_INTRAOP_THREADS"].as_str(),
                found.variables["OMP_NUM_THREADS"].as_str()
            ),
            ("2", "1", "1"),
            "{profile}"
        );
        assert_eq!(found.expected_threads, Some(expected), "{profile}");
        // Several processes have a pool each.
        pod.annotations
            .insert(PROCESSES_ANNOTATION.to_owned(), "3".to_owned());
        let found = environment(&pod, ThreadBasis::exclusive(4, 4, 1));
        assert_eq!(found.variables["TF_NUM_INTEROP_THREADS"], "2", "{profile}");
    }
}

#[test]
fn roles_choose_profiles() {
    let basis = ThreadBasis::exclusive(2, 2, 1);
    let ps = environment(&pod("ps"), basis);
    assert_eq!(ps.profile, Profile::Ps);
    assert_eq!(ps.variables["TF_GRPC_WORKER_CACHE_QUEUES"], "4");
    assert_eq!(ps.variables["TF_NUM_INTRAOP_THREADS"], "1");
    assert_eq!(ps.reason, "profile ps, by role ps: 2 exclusive CPUs");
    assert_eq!(environment(&pod("worker"), basis).profile, Profile::Limit);
    assert_eq!(
        environment(&pod("ps"), ThreadBasis::exclusive(64, 32, 2)).variables["TF_GRPC_WORKER_CACHE_QUEUES"],
        "16"
    );

    let mut stranger = pod("worker");
    stranger.labels.clear();
    let none = environment(&stranger, basis);
    assert!(
        none.variables.is_empty() && none.reason.starts_with("not a training pod"),
        "{}",
        none.reason
    );
    stranger
        .annotations
        .insert(THREADS_ANNOTATION.to_owned(), "limit".to_owned());
    assert_eq!(environment(&stranger, basis).variables.len(), 4);
}

#[test]
fn containers_without_variables() {
    let basis = ThreadBasis::exclusive(2, 2, 1);
    let reason = |change: fn(&mut Container)| {
        let mut pod = pod("worker");
        change(&mut pod.containers[0]);
        let found = environment(&pod, basis);
        assert!(found.variables.is_empty());
        assert_eq!(
            (found.profile, found.threads, found.expected_threads),
            (Profile::Off, None, None)
        );
        found.reason
    };
    assert_eq!(
        reason(|c| c.kind = ContainerKind::Init),
        "only the pod's app containers get thread counts"
    );
    assert_eq!(
        reason(|c| c.kind = ContainerKind::Sidecar),
        "only the pod's app containers get thread counts"
    );
    assert_eq!(
        reason(|c| c.name = "istio-proxy".to_owned()),
        "Istio's proxy sizes its own pools"
    );
    assert_eq!(
        reason(|c| c.name = "linkerd-proxy".to_owned()),
        "Linkerd's proxy sizes its own pools"
    );
    assert_eq!(
        reason(|c| c.image = "example.com:5000/x/pause:3.9".to_owned()),
        "the pod's sandbox sizes its own pools"
    );
    assert!(reason(|c| c.env_from = true).starts_with("envFrom may set any variable"));
    assert!(
        reason(|c| c.args = vec!["--nproc_per_node=auto".to_owned()].into())
            .contains("(--nproc_per_node=auto is one for each CPU of the whole machine")
    );
    let without = pod("worker");
    let found = thread_environment(
        &without.clone().into(),
        0,
        &Policy::default(),
        &ThreadPolicy::default(),
        None,
    );
    assert_eq!(
        found.reason,
        "the container has no CPU limit to compute a thread count from"
    );
}

#[test]
fn the_owners_values_win() {
    let basis = ThreadBasis::exclusive(4, 4, 1);
    let with = |names: &[&str]| {
        let mut pod = pod("worker");
        names
            .iter()
            .for_each(|name| set(&mut pod.containers[0], name, "3"));
        environment(&pod, basis)
    };
    let found = with(&["TF_NUM_INTRAOP_THREADS"]);
    assert_eq!(written(&found), "numba=4 omp=4 interop=4");
    assert_eq!(found.kept, ["TF_NUM_INTRAOP_THREADS"]);
    assert_eq!(found.expected_threads, Some(7));
    // Variables that libraries prefer to `OMP_NUM_THREADS` would overrule the owner's value.
    let found = with(&["OMP_NUM_THREADS"]);
    assert_eq!(written(&found), "numba=4 interop=4 intraop=4");
    assert_eq!(found.kept, ["OMP_NUM_THREADS"]);
    let found = with(&[
        "GOTO_NUM_THREADS",
        "MKL_NUM_THREADS",
        "NUMEXPR_MAX_THREADS",
        "UNRELATED",
    ]);
    // numexpr would run one thread with the 4 of `OMP_NUM_THREADS`.
    assert_eq!(
        written(&found),
        "numba=4 numexpr=3 omp=4 interop=4 intraop=4"
    );
    assert_eq!(
        found.kept,
        ["GOTO_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_MAX_THREADS"]
    );

    let mut hidden = pod("worker");
    hidden.containers[0]
        .env
        .insert("TF_NUM_INTEROP_THREADS".to_owned(), EnvSource::Reference);
    let found = environment(&hidden, basis);
    assert_eq!(found.kept, ["TF_NUM_INTEROP_THREADS"]);
    assert_eq!(found.expected_threads, None);
}

/// numexpr runs a single thread if it is told more than its maximum, by its own variable or by
/// `OMP_NUM_THREADS`.
#[test]
fn numexpr_is_never_told_more_than_it_takes() {
    let numexpr = |cpus: usize, profile: &str, own: &[(&str, Option<&str>)]| {
        let mut pod = pod("worker");
        pod.annotations
            .insert(THREADS_ANNOTATION.to_owned(), profile.to_owned());
        for &(name, value) in own {
            let source = value.map_or(EnvSource::Reference, |value| {
                EnvSource::Value(value.to_owned())
            });
            pod.containers[0].env.insert(name.to_owned(), source);
        }
        let found = environment(&pod, ThreadBasis::exclusive(cpus, cpus, 1));
        found
            .variables
            .get("NUMEXPR_NUM_THREADS")
            .map(|number| number.parse::<usize>().unwrap())
    };
    assert_eq!(numexpr(64, "limit", &[]), None);
    assert_eq!(numexpr(65, "limit", &[]), Some(64));
    assert_eq!(numexpr(384, "openmp", &[]), Some(64));
    assert_eq!(numexpr(384, "embedding", &[]), Some(64));
    assert_eq!(numexpr(130, "ps", &[]), Some(64));
    assert_eq!(numexpr(128, "ps", &[]), None);
    let own = |value| numexpr(96, "limit", &[("NUMEXPR_MAX_THREADS", value)]);
    assert_eq!((own(Some("128")), own(Some("32"))), (None, Some(32)));
    assert_eq!(
        (own(None), own(Some("x")), own(Some("0"))),
        (None, None, None)
    );
    assert_eq!(
        numexpr(96, "limit", &[("OMP_NUM_THREADS", Some("96"))]),
        None
    );
    assert_eq!(
        numexpr(96, "limit", &[("NUMEXPR_NUM_THREADS", Some("70"))]),
        None
    );
}

#[test]
fn programs_with_a_fresh_environment_are_named() {
    let caution = |args: &[&str]| {
        let mut pod = pod("worker");
        pod.containers[0].args = args.iter().map(|&arg| arg.to_owned()).collect();
        pod.annotations
            .insert(PROCESSES_ANNOTATION.to_owned(), "1".to_owned());
        environment(&pod, ThreadBasis::exclusive(4, 4, 1)).caution
    };
    for args in [
        &["/usr/sbin/sshd", "-De"][..],
        &["sh", "-c", "mkdir -p /run/sshd && exec /usr/sbin/sshd -D"],
        &["bash", "-c", "service ssh start; sleep infinity"],
        &["/etc/init.d/ssh", "start"],
        &["tini", "--", "/usr/sbin/sshd", "-De"],
    ] {
        let caution = caution(args).unwrap();
        assert!(
            caution.contains("mpirun -x") && caution.contains("SetEnv"),
            "{args:?}: {caution}"
        );
    }
    for (args, program) in [
        (
            &["su", "-", "train", "-c", "python t.py"][..],
            "a login shell of su",
        ),
        (&["sudo", "-u", "train", "python", "t.py"], "sudo"),
        (&["env", "-i", "PATH=/bin", "python", "t.py"], "env -i"),
        (&["sh", "-c", "cron && sleep infinity"], "cron"),
        (&["/sbin/init"], "the init system"),
    ] {
        let caution = caution(args).unwrap();
        assert!(
            caution.starts_with(&format!("programs that {program} starts ")),
            "{args:?}: {caution}"
        );
    }
    for args in [
        &["python", "t.py", "--host", "sshd"][..],
        &["bash", "-lc", "python t.py # sshd"],
        &["su", "train", "-c", "python t.py"],
        &["sudo", "-E", "python", "t.py"],
        &["ssh", "worker-0", "python"],
    ] {
        assert_eq!(caution(args), None, "{args:?}");
    }
    let mut alone = pod("worker");
    alone.containers[0].args = vec!["sshd".to_owned()].into();
    alone
        .annotations
        .insert(THREADS_ANNOTATION.to_owned(), "off".to_owned());
    assert_eq!(
        environment(&alone, ThreadBasis::exclusive(4, 4, 1)).caution,
        None
    );
}

#[test]
fn containers_share_the_pods_own_limit() {
    let cpus = |whole: u64, limits: &[(&str, Option<u64>)]| {
        let each = limits.iter().map(|&(name, cpu_limit)| Container {
            resources: Resources {
                cpu_limit,
                ..Resources::default()
            },
            ..container(name)
        });
        let pod = Pod {
            resources: Resources {
                cpu_limit: Some(whole),
                ..Resources::default()
            },
            containers: each.collect(),
            ..Pod::default()
        };
        let basis = |container| ThreadBasis::of_quota(&pod, container, &ThreadPolicy::default());
        pod.containers
            .iter()
            .map(|container| basis(container).unwrap().cpus)
            .collect::<Vec<_>>()
    };
    assert_eq!(cpus(16_000, &[("a", None)]), [16]);
    assert_eq!(cpus(16_000, &[("a", None), ("b", None)]), [8, 8]);
    assert_eq!(cpus(16_000, &[("a", None), ("b", Some(1500))]), [14, 1]);
    assert_eq!(
        cpus(16_000, &[("a", None), ("b", Some(0)), ("c", Some(6000))]),
        [5, 5, 6]
    );
    assert_eq!(cpus(4000, &[("a", None), ("b", Some(4000))]), [1, 4]);
    // A proxy sizes its own pools.
    assert_eq!(cpus(16_000, &[("a", None), ("istio-proxy", None)])[0], 16);
}

#[test]
fn processes_share() {
    let basis = ThreadBasis::exclusive(8, 4, 2);
    let with = |change: fn(&mut Pod)| {
        let mut pod = pod("worker");
        change(&mut pod);
        let found = environment(&pod, basis);
        (found.threads, found.expected_threads)
    };
    assert_eq!(with(|_| ()), (Some(8), Some(16)));
    let annotated = |text: &str| {
        let mut pod = pod("worker");
        pod.annotations
            .insert(PROCESSES_ANNOTATION.to_owned(), text.to_owned());
        let found = environment(&pod, basis);
        (found.threads, found.expected_threads)
    };
    assert_eq!(annotated("4"), (Some(2), Some(16)));
    assert_eq!(annotated("3"), (Some(2), Some(12)));
    assert_eq!(annotated("99"), (Some(1), Some(198)));
    assert_eq!(annotated("0"), (None, None));
    assert_eq!(
        with(|pod| set(&mut pod.containers[0], "PET_NPROC_PER_NODE", "2")),
        (Some(4), Some(16))
    );
}

#[test]
fn quotas() {
    let with =
        |limit: Option<u64>, request: Option<u64>, whole: Option<u64>, policy: &ThreadPolicy| {
            let resources = Resources {
                cpu_limit: limit,
                cpu_request: request,
                ..Resources::default()
            };
            let container = Container {
                resources,
                ..container("main")
            };
            let resources = Resources {
                cpu_limit: whole,
                ..Resources::default()
            };
            let pod = Pod {
                resources,
                ..Pod::default()
            };
            ThreadBasis::of_quota(&pod, &container, policy).map(|basis| (basis.cpus, basis.origin))
        };
    let floor = ThreadPolicy::default();
    let ceil = ThreadPolicy {
        rounding: Rounding::Ceil,
        no_limit: NoLimit::Request,
        ..ThreadPolicy::default()
    };
    assert_eq!(
        with(Some(2500), None, None, &floor),
        Some((2, BasisOrigin::Limit))
    );
    assert_eq!(
        with(Some(2500), None, None, &ceil),
        Some((3, BasisOrigin::Limit))
    );
    assert_eq!(
        with(Some(300), None, None, &floor),
        Some((1, BasisOrigin::Limit))
    );
    assert_eq!(
        with(Some(2000), None, Some(8000), &ceil),
        Some((2, BasisOrigin::Limit))
    );
    assert_eq!(
        with(None, Some(1000), Some(8000), &ceil),
        Some((8, BasisOrigin::Limit))
    );
    assert_eq!(with(Some(0), None, None, &ceil), None);
    assert_eq!(with(None, Some(1500), None, &floor), None);
    assert_eq!(
        with(None, Some(1500), None, &ceil),
        Some((2, BasisOrigin::Request))
    );
    let basis = ThreadBasis::exclusive(8, 4, 2).at_most(3);
    assert_eq!((basis.cpus, basis.cores), (3, 3));
    assert_eq!(ThreadBasis::exclusive(8, 4, 2).at_most(0).cpus, 1);
}

#[test]
fn basis_of_a_cpu_set() {
    // CPUs 0 to 7: two threads to a core, four CPUs to a NUMA node. The topology of CPU 8 is unknown.
    let known = |id: u32| Cpu {
        id,
        core: Some(id / 2),
        socket: Some(0),
        numa: Some(id / 4),
        llc: None,
        kind: None,
    };
    let unknown = Cpu {
        id: 8,
        core: None,
        socket: None,
        numa: None,
        llc: None,
        kind: None,
    };
    let cpus: Vec<_> = (0..8).map(known).chain([unknown]).collect();
    let topology = Topology {
        online: "0-8".parse().unwrap(),
        cpus,
        ..Topology::default()
    };
    let counts = |set: &str| {
        let basis = ThreadBasis::of_set(&set.parse().unwrap(), &topology);
        (basis.cpus, basis.cores, basis.numa)
    };
    assert_eq!(counts("0-3"), (4, 2, 1));
    assert_eq!(counts("0,2,4,6"), (4, 4, 2));
    assert_eq!(counts("3-4"), (2, 2, 2));
    assert_eq!(counts("0-1,8"), (3, 2, 1));
    assert_eq!(counts("8"), (1, 1, 1));
    assert_eq!(counts("20"), (1, 1, 1));
}

#[test]
fn names_of_profiles() {
    for profile in PROFILES {
        assert_eq!(profile.to_string().parse(), Ok(profile));
        assert_eq!(serde_json::to_value(profile).unwrap(), profile.to_string());
    }
    let error = "fast".parse::<Profile>().unwrap_err();
    assert_eq!(
        error.to_string(),
        "\"fast\" is not a thread profile: write limit, openmp, embedding, ps or off"
    );
}

/// A library may prefer a variable of Pinfold's to `OMP_NUM_THREADS` of the command line, and then it is not set.
#[test]
fn counts_of_the_command_line_win_and_are_reported() {
    let of = |script: &str, profile: Profile| {
        let container = Container {
            args: ["sh", "-c", script].map(str::to_owned).to_vec().into(),
            ..Container::default()
        };
        let pod = RecognizedPod::from(Pod {
            annotations: [(THREADS_ANNOTATION.to_owned(), profile.to_string())].into(),
            containers: vec![container],
            ..Pod::default()
        });
        let basis = Some(ThreadBasis::exclusive(8, 4, 1));
        thread_environment(&pod, 0, &Policy::default(), &ThreadPolicy::default(), basis)
    };
    let numexpr = |script| of(script, Profile::Openmp).variables.contains_key(NUMEXPR);
    assert!(numexpr("python t.py"));
    assert!(!numexpr("OMP_NUM_THREADS=2 python t.py"));
    let limit = |script| of(script, Profile::Limit);
    let own = limit("TF_NUM_INTRAOP_THREADS=3 OMP_NUM_THREADS=12 python t.py --nthread 2");
    assert_eq!(
        own.by_command,
        [
            "TF_NUM_INTRAOP_THREADS=3",
            "OMP_NUM_THREADS=12 (more than 8 CPUs)",
            "--nthread 2"
        ]
    );
    assert_eq!(own.expected_threads, Some(3 + 8));
    assert_eq!(
        limit("TF_NUM_INTRAOP_THREADS=$N python t.py").expected_threads,
        None
    );
    assert_eq!(limit("python t.py").by_command, [""; 0]);
}

/// `import torch` with one of these narrows the main thread, and with it the data loaders, to a single CPU.
#[test]
fn no_profile_binds_threads() {
    for profile in PROFILES {
        let sizes = PoolSizes::of(profile, ThreadBasis::exclusive(8, 4, 2), 1);
        let none = (&Container::default(), &OwnCounts::default());
        let (variables, _) = variables(profile, &sizes, none);
        let binds = |name: &String| {
            name.contains("AFFINITY") || name.contains("BIND") || name.contains("PLACES")
        };
        assert!(!variables.keys().any(binds), "{profile}: {variables:?}");
    }
}
