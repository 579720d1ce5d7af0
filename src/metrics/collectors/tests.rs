//! Collectors on a node of plain files.

mod wrong_input;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use super::super::Sources;
use super::super::page::Format;
use super::*;
use crate::cpu::CpuSet;
use crate::host::cgroup::Cgroups;
use crate::host::counters::perf;
use crate::host::proc::Proc;
use crate::pin::decide::RefusalSource;
use crate::pin::{Enforcement, EnforcementCause};
use crate::pod::{
    ContainerKind, Entitlement, Obstacle, PodRole, Policy, Qos, RecognizedPod, ThreadPolicy,
    thread_environment,
};

/// The open files of a cgroup: the directory, CPU time, processes, memory, and three files of pressure.
const KEPT: usize = 7;

fn write(file: &Path, text: &str) {
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    fs::write(file, text).unwrap();
}

/// A pod with a container, a process with a single thread, and its own network.
fn container(root: &Path, number: u32) -> ContainerState {
    let (cgroup, pid) = (format!("kubepods/pod{number}/c1"), 100 + number);
    write_cgroup(&root.join("sys/fs/cgroup").join(&cgroup), pid);
    write_process(&root.join(format!("proc/{pid}")), pid, number);
    state(cgroup, number)
}

/// Writes the files of a container's cgroup with the process `pid`.
fn write_cgroup(dir: &Path, pid: u32) {
    write(&dir.join("cgroup.procs"), &format!("{pid}\n"));
    write(&dir.join("cpu.stat"), "usage_usec 1500000\n");
    write(&dir.join("memory.numa_stat"), "anon N0=4096\nfile N0=0\n");
    for resource in ["cpu", "io", "memory"] {
        write(
            &dir.join(format!("{resource}.pressure")),
            "some total=7\nfull total=5\n",
        );
    }
}

/// Writes the files of a process with a single thread. The number distinguishes the network namespaces.
fn write_process(process: &Path, pid: u32, number: u32) {
    let status = "voluntary_ctxt_switches:\t70\nnonvoluntary_ctxt_switches:\t7\n";
    write(&process.join(format!("task/{pid}/status")), status);
    write(&process.join(format!("task/{pid}/schedstat")), "9 5 7\n");
    write(
        &process.join("net/dev"),
        "one\ntwo\neth0: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\n",
    );
    let names = "AttemptFails EstabResets OutSegs RetransSegs OutRsts";
    write(
        &process.join("net/snmp"),
        &format!("Tcp: {names}\nTcp: 1 2 30 4 5\n"),
    );
    write(
        &process.join("net/netstat"),
        "TcpExt: TCPTimeouts\nTcpExt: 6\n",
    );
    fs::create_dir_all(process.join("ns")).unwrap();
    symlink(
        format!("net:[{}]", 4_026_532_000 + number),
        process.join("ns/net"),
    )
    .unwrap();
}

/// The state of a running container of class BestEffort.
fn state(cgroup: String, number: u32) -> ContainerState {
    ContainerState {
        namespace: "train".to_owned(),
        pod: format!("pod-{number}"),
        container: "main".to_owned(),
        uid: Some(number.to_string()),
        kind: ContainerKind::App,
        role: PodRole::Other,
        job: None,
        index: None,
        evidence: String::new(),
        qos: Qos::BestEffort,
        host_network: false,
        entitlement: Entitlement::Shared {
            reason: String::new(),
            obstacle: None,
        },
        assigned: None,
        effective: Some("0".parse().unwrap()),
        partition: None,
        numa: None,
        memory: None,
        api_uid: None,
        cgroup: Some(cgroup),
        running: true,
        threads: thread_environment(
            &RecognizedPod::default(),
            0,
            &Policy::default(),
            &ThreadPolicy::default(),
            None,
        ),
        injected: None,
        required: false,
        note: None,
        bindings: Vec::new(),
        ranks: None,
        unpinned_seconds: None,
        refused: None,
        created: true,
        finished: false,
        at_start: None,
        repaired: None,
        upcoming: None,
        observed: None,
    }
}

fn snapshot(containers: Vec<ContainerState>) -> Snapshot {
    Snapshot {
        enforcement: Enforcement::Observe,
        enforcement_cause: EnforcementCause::Configuration,
        enforcement_reason: String::new(),
        placement_source: crate::pin::PlacementSource::Pinfold,
        online: CpuSet::new(),
        reserved: CpuSet::new(),
        shared: CpuSet::new(),
        exclusive: CpuSet::new(),
        withheld: CpuSet::new(),
        held_by_others: CpuSet::new(),
        lost: CpuSet::new(),
        layout: std::sync::Arc::default(),
        cpu_isolation: None,
        containers,
        unknown_owners: Vec::new(),
        drift: Vec::new(),
        unexplained: Vec::new(),
        errors: Vec::new(),
        pods_listed: true,
    }
}

fn sources(root: &Path) -> Sources {
    write(
        &root.join("sys/fs/cgroup/cgroup.controllers"),
        "cpuset cpu io memory\n",
    );
    write(
        &root.join("sys/fs/cgroup/cpu.pressure"),
        "some total=1\nfull total=1\n",
    );
    write(&root.join("proc/self/schedstat"), "1 1 1\n");
    sources_of(root)
}

/// Sources on a node whose files exist.
fn sources_of(root: &Path) -> Sources {
    Sources::new(
        Cgroups::detect(&root.join("sys/fs/cgroup")).unwrap(),
        Proc::new(root),
        root,
    )
}

/// Runs a collector by itself, with the process ids of an earlier collector if the scrape is late.
fn run(
    sources: &Sources,
    snapshot: &Snapshot,
    until: Instant,
    names: &[&str],
) -> Vec<(CollectOutcome, String)> {
    let mut pages = sources.pages.lock();
    let Collectors { state, enabled } = &mut pages.collectors;
    let (mut scrape, _) = Scrape::new(
        snapshot,
        &sources.host,
        state,
        &sources.namespaces,
        Deadline(until),
    );
    if scrape.deadline.is_over() {
        let containers = scrape.containers.iter_mut();
        containers.for_each(|container| container.processes = Some(vec![101]));
    }
    let mut results = Vec::new();
    for name in names {
        let mut page = Page::default();
        let enabled = enabled
            .iter_mut()
            .find(|enabled| enabled.collector.name() == *name);
        let outcome = enabled.unwrap().collector.collect(&mut scrape, &mut page);
        results.push((outcome, page.text(Format::Text)));
    }
    results
}

fn in_time() -> Instant {
    Instant::now() + COLLECTOR_TIME
}

#[test]
fn no_state_of_deleted_pods_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    let sources = sources(root);
    let kept = || {
        let mut pages = sources.pages.lock();
        let threads = pages.collectors.collector("threads").kept();
        let timeouts = pages.collectors.collector("tcp").kept();
        let state = &pages.collectors.state;
        assert_eq!(state.netns_handles.open_count(), threads);
        (
            state.numbers.kept(),
            state.counters.open_count(),
            threads,
            timeouts,
        )
    };
    let lasting = container(root, 0);
    for number in 1..50 {
        let pods = vec![lasting.clone(), container(root, number)];
        let text = sources.collect(&snapshot(pods)).text(Format::Text);
        let timeouts = format!(
            "pinfold_pod_tcp_timeouts_total{{namespace=\"train\",pod=\"pod-{number}\"}} 6\n"
        );
        assert!(text.contains(&timeouts), "{text}");
        assert_eq!(kept(), (2, 2 * KEPT, 2, 2));
    }
    sources.collect(&snapshot(vec![lasting]));
    assert_eq!(kept(), (1, KEPT, 1, 1));
    sources.collect(&snapshot(Vec::new()));
    assert_eq!(kept(), (0, 0, 0, 0));
}

#[test]
fn a_late_collector_leaves_out_unread_containers() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    let sources = sources(root);
    let snapshot = snapshot(vec![container(root, 1), container(root, 2)]);
    let names = ["cgroup", "threads", "pressure", "memory", "network", "tcp"];
    for (name, (outcome, text)) in names
        .iter()
        .zip(run(&sources, &snapshot, in_time(), &names))
    {
        assert_eq!(outcome, CollectOutcome::Complete, "{name}");
        assert!(
            text.contains("pod=\"pod-1\"") && text.contains("pod=\"pod-2\""),
            "{name}: {text}"
        );
    }
    let late = run(&sources, &snapshot, Instant::now(), &names);
    for (name, result) in names.iter().zip(late) {
        assert_eq!(result, (CollectOutcome::Partial, String::new()), "{name}");
    }
}

#[test]
fn the_collectors_are_in_the_order_of_the_list() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    let sources = sources(root)
        .with_sockets(&root.join("sys/fs/cgroup"), &[])
        .with_connections(&root.join("sys/fs/cgroup"), 0);
    let pages = sources.pages.lock();
    let enabled = pages.collectors.enabled.iter();
    let names: Vec<&str> = enabled.map(|enabled| enabled.collector.name()).collect();
    assert_eq!(names, COLLECTORS);
}

#[test]
fn a_collector_that_is_off_has_no_series() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    let off = ["cgroup", "tcp", "sockets", "connections"].map(str::to_owned);
    let sources = sources(root)
        .without(off)
        .with_sockets(&root.join("sys/fs/cgroup"), &[])
        .with_connections(&root.join("sys/fs/cgroup"), 0);
    let text = sources
        .collect(&snapshot(vec![container(root, 1)]))
        .text(Format::Text);
    for absent in [
        "pinfold_container_cpu_usage_seconds_total",
        "pinfold_pod_tcp_",
        "collector=\"cgroup\"",
        "collector=\"sockets\"",
        "collector=\"connections\"",
    ] {
        assert!(!text.contains(absent), "{absent}: {text}");
    }
    // The other collectors list the processes themselves.
    for present in [
        "pinfold_container_threads{",
        "pinfold_pod_network_receive_bytes_total{",
        "pinfold_collector_success{collector=\"threads\"} 1",
    ] {
        assert!(text.contains(present), "{present}: {text}");
    }
}

#[test]
fn without_thread_counts_the_tasks_are_unsupported() {
    let folder = tempfile::tempdir().unwrap();
    let sources = sources(folder.path()).without(["threads".to_owned()]);
    let text = sources.collect(&snapshot(Vec::new())).text(Format::Text);
    let reason =
        "pinfold_collector_unsupported{collector=\"tasks\",reason=\"needs_threads_collector\"} 1\n";
    assert!(text.contains(reason), "{text}");
}

#[test]
fn only_pods_of_the_chosen_namespaces_have_series() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    let sources = sources(root).in_namespaces(["train".to_owned()]);
    let web = ContainerState {
        namespace: "web".to_owned(),
        ..container(root, 2)
    };
    let pods = snapshot(vec![container(root, 1), web]);
    let text = sources.collect(&pods).text(Format::Text);
    assert!(text.contains("pod=\"pod-1\""), "{text}");
    assert!(!text.contains("pod=\"pod-2\""), "{text}");
}

/// A pod that lacks its exclusive CPUs has a series with the reason. The kubelet's policy `static` pins for itself.
#[test]
fn a_pod_without_its_exclusive_cpus_has_the_reason_as_a_label() {
    let entitled = |refused: Option<RefusalSource>, running: bool| ContainerState {
        entitlement: Entitlement::Exclusive {
            cpus: 2,
            reason: String::new(),
        },
        refused,
        running,
        ..state("c".to_owned(), 1)
    };
    let denied = |obstacle: Obstacle| ContainerState {
        entitlement: Entitlement::Shared {
            reason: "no label".to_owned(),
            obstacle: Some(obstacle),
        },
        refused: Some(RefusalSource::Policy),
        ..state("c".to_owned(), 1)
    };
    let owner = ContainerState {
        assigned: Some("2-3".parse().unwrap()),
        ..entitled(None, true)
    };
    let side = || denied(Obstacle::CpuLimit);
    let enforced = (Enforcement::Cpuset, EnforcementCause::CgroupV1);
    let observed = (Enforcement::Observe, EnforcementCause::Configuration);
    let kubelet = (Enforcement::Observe, EnforcementCause::CpuManager);
    let room = || entitled(Some(RefusalSource::Room), true);
    let waits = || entitled(None, true);
    for (pod, (enforcement, cause), reason) in [
        (vec![side()], enforced, Some("cpu_limit")),
        (
            vec![denied(Obstacle::NotGuaranteed)],
            observed,
            Some("not_guaranteed"),
        ),
        (
            vec![denied(Obstacle::UnknownAnnotation)],
            enforced,
            Some("unknown_annotation"),
        ),
        (vec![side(), room()], enforced, Some("too_few_cpus")),
        (
            vec![owner.clone(), entitled(Some(RefusalSource::Kernel), true)],
            enforced,
            Some("kernel"),
        ),
        (vec![waits()], enforced, Some("waiting")),
        (vec![waits()], observed, Some("observe")),
        (vec![waits()], kubelet, None),
        // Beside a container with exclusive CPUs, another one is meant to share.
        (vec![owner, side()], enforced, None),
        (vec![entitled(None, false)], enforced, None),
        (vec![state("c".to_owned(), 1)], enforced, None),
    ] {
        let snapshot = Snapshot {
            enforcement,
            enforcement_cause: cause,
            ..snapshot(pod)
        };
        let folder = tempfile::tempdir().unwrap();
        let (_, text) = run(&sources(folder.path()), &snapshot, in_time(), &["state"]).remove(0);
        let series = reason.map(|reason| {
            format!(
                "pinfold_pod_not_pinned{{namespace=\"train\",pod=\"pod-1\",reason=\"{reason}\"}} 1\n"
            )
        });
        match series {
            Some(series) => assert!(text.contains(&series), "{series}: {text}"),
            None => assert!(!text.contains("pinfold_pod_not_pinned"), "{text}"),
        }
    }
}

/// A container with an exclusive CPU.
fn owner(root: &Path, number: u32, cpu: u32) -> ContainerState {
    let cpus = Some(cpu.to_string().parse().unwrap());
    let entitlement = Entitlement::Exclusive {
        cpus: 1,
        reason: String::new(),
    };
    ContainerState {
        entitlement,
        assigned: cpus.clone(),
        effective: cpus,
        ..container(root, number)
    }
}

#[test]
fn the_next_scrape_covers_the_interference_of_a_late_scrape() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    write(&root.join("proc/sys/kernel/osrelease"), "6.12.0\n");
    write(
        &root.join("proc/stat"),
        "cpu0 1 0 1 100 0 1 0 0\ncpu1 1 0 1 100 0 1 0 0\n",
    );
    write(&root.join("sys/fs/cgroup/cpu.stat"), "usage_usec 9000000\n");
    let sources = sources(root);
    let snapshot = snapshot(vec![owner(root, 0, 0), owner(root, 1, 1)]);
    let scrape = |until| run(&sources, &snapshot, until, &["interference"]).remove(0);
    assert_eq!(
        scrape(Instant::now()),
        (CollectOutcome::Partial, String::new())
    );
    let (outcome, text) = scrape(in_time());
    assert_eq!(outcome, CollectOutcome::Complete, "{text}");
    for pod in ["pod-0", "pod-1"] {
        let series = format!(
            "pinfold_container_interference_cpu_seconds_total{{namespace=\"train\",pod=\"{pod}\""
        );
        assert!(text.contains(&series), "{text}");
    }
}

#[test]
fn a_late_scrape_opens_no_counters() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    let late = |container, descriptors| {
        let events = perf::hardware_events(root);
        let sources = sources(root).counting_shared(events, descriptors);
        run(
            &sources,
            &snapshot(vec![container]),
            Instant::now(),
            &["caches"],
        )
        .remove(0)
    };
    let complete = false;
    let reasons = BTreeMap::new();
    let partial = (CollectOutcome::LeftOut { complete, reasons }, String::new());
    // The snapshot has no online CPU, so the collector does not probe the hardware.
    assert_eq!(late(owner(root, 0, 0), 0), partial);
    // Without time, no container on shared CPUs is left out for a reason.
    assert_eq!(late(container(root, 1), 100), partial);
}
