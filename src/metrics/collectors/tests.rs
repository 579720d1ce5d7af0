//! Collectors on a node that is made up of files.

mod pitfalls;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use super::super::page::Format;
use super::*;
use crate::host::cgroup::Cgroups;
use crate::host::perf;
use crate::host::proc::Proc;
use crate::pin::Enforcement;
use crate::pod::{
    Container, ContainerKind, Entitlement, Pod, Policy, Qos, Role, ThreadPolicy, thread_environment,
};

/// The files of each cgroup that are kept open here: its directory, CPU time, processes, memory, and three of pressure.
const KEPT: usize = 7;

fn write(file: &Path, text: &str) {
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    fs::write(file, text).unwrap();
}

/// A pod with one container, that has one process of one thread and a network of its own.
fn container(root: &Path, number: u32) -> ContainerState {
    let (cgroup, pid) = (format!("kubepods/pod{number}/c1"), 100 + number);
    let dir = root.join("sys/fs/cgroup").join(&cgroup);
    write(&dir.join("cgroup.procs"), &format!("{pid}\n"));
    write(&dir.join("cpu.stat"), "usage_usec 1500000\n");
    write(&dir.join("memory.numa_stat"), "anon N0=4096\nfile N0=0\n");
    for resource in ["cpu", "io", "memory"] {
        write(
            &dir.join(format!("{resource}.pressure")),
            "some total=7\nfull total=5\n",
        );
    }
    let process = root.join(format!("proc/{pid}"));
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
    let (of, none) = (Pod::default(), Container::default());
    ContainerState {
        namespace: "train".to_owned(),
        pod: format!("pod-{number}"),
        container: "main".to_owned(),
        uid: Some(number.to_string()),
        kind: ContainerKind::App,
        role: Role::Other,
        job: None,
        index: None,
        evidence: String::new(),
        qos: Qos::BestEffort,
        host_network: false,
        entitlement: Entitlement::Shared {
            reason: String::new(),
        },
        assigned: None,
        effective: Some("0".parse().unwrap()),
        partition: None,
        numa: None,
        cgroup: Some(cgroup),
        running: true,
        threads: thread_environment(
            &of,
            &none,
            &Policy::default(),
            &ThreadPolicy::default(),
            None,
        ),
        injected: None,
        required: false,
        note: None,
        unpinned_seconds: None,
        refused: None,
        created: true,
        at_start: None,
        repaired: None,
    }
}

fn snapshot(containers: Vec<ContainerState>) -> Snapshot {
    Snapshot {
        enforcement: Enforcement::Observe,
        enforcement_reason: String::new(),
        online: CpuSet::new(),
        reserved: CpuSet::new(),
        shared: CpuSet::new(),
        exclusive: CpuSet::new(),
        lost: CpuSet::new(),
        layout: std::sync::Arc::default(),
        quiet: None,
        containers,
        unknown_owners: Vec::new(),
        drift: Vec::new(),
        unexplained: Vec::new(),
        errors: Vec::new(),
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

/// The same for a node whose own files are there.
fn sources_of(root: &Path) -> Sources {
    Sources::new(
        Cgroups::detect(&root.join("sys/fs/cgroup")).unwrap(),
        Proc::new(root),
        root,
    )
}

#[test]
fn nothing_is_kept_of_pods_that_are_gone() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    let sources = sources(root);
    let kept = || {
        let (switches, timeouts) = (
            lock(&sources.switches).kept(),
            lock(&sources.timeouts).kept(),
        );
        assert_eq!(lock(&sources.ways).open_count(), switches);
        (
            lock(&sources.places).kept(),
            lock(&sources.counters).open_count(),
            switches,
            timeouts,
        )
    };
    let stays = container(root, 0);
    for number in 1..50 {
        let pods = vec![stays.clone(), container(root, number)];
        let text = sources.collect(&snapshot(pods)).text(Format::Text);
        let timeouts = format!(
            "pinfold_pod_tcp_timeouts_total{{namespace=\"train\",pod=\"pod-{number}\"}} 6\n"
        );
        assert!(text.contains(&timeouts), "{text}");
        assert_eq!(kept(), (2, 2 * KEPT, 2, 2));
    }
    sources.collect(&snapshot(vec![stays]));
    assert_eq!(kept(), (1, KEPT, 1, 1));
    sources.collect(&snapshot(Vec::new()));
    assert_eq!(kept(), (0, 0, 0, 0));
}

#[test]
fn a_collector_that_is_late_leaves_out_what_it_has_not_read() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    let sources = sources(root);
    let snapshot = snapshot(vec![container(root, 1), container(root, 2)]);
    let scrape = |until| {
        let subjects = numbered(subjects(&snapshot), &sources);
        Scrape {
            snapshot: &snapshot,
            sources: &sources,
            subjects,
            networks: OnceCell::new(),
            until,
        }
    };
    type Collect = fn(&mut Page, &mut Scrape<'_>) -> Outcome;
    let all: [(&str, Collect); 6] = [
        ("cgroup", cpu::collect),
        ("threads", threads::collect),
        ("pressure", pressure::collect),
        ("memory", memory::collect),
        ("network", network::collect),
        ("tcp", |page, scrape| {
            lock(&scrape.sources.timeouts).collect(page, scrape)
        }),
    ];
    let mut in_time = scrape(Instant::now() + DEADLINE);
    for (name, collect) in all {
        let mut page = Page::default();
        assert_eq!(
            collect(&mut page, &mut in_time),
            Outcome::Complete,
            "{name}"
        );
        let text = page.text(Format::Text);
        assert!(
            text.contains("pod=\"pod-1\"") && text.contains("pod=\"pod-2\""),
            "{name}: {text}"
        );

        let mut late = scrape(Instant::now());
        late.subjects
            .iter_mut()
            .for_each(|subject| subject.processes = Some(vec![101]));
        let mut page = Page::default();
        assert_eq!(collect(&mut page, &mut late), Outcome::Partial, "{name}");
        assert_eq!(page.text(Format::Text), "", "{name}");
    }
}

/// A container that owns a CPU.
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
fn foreign_time_that_is_late_is_told_by_the_next_scrape() {
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
    let scrape = |until| {
        let subjects = numbered(subjects(&snapshot), &sources);
        let scrape = Scrape {
            snapshot: &snapshot,
            sources: &sources,
            subjects,
            networks: OnceCell::new(),
            until,
        };
        let mut page = Page::default();
        let outcome = lock(&sources.foreign).collect(&mut page, &scrape);
        (outcome, page.text(Format::Text))
    };
    assert_eq!(scrape(Instant::now()), (Outcome::Partial, String::new()));
    let (outcome, text) = scrape(Instant::now() + DEADLINE);
    assert_eq!(outcome, Outcome::Complete, "{text}");
    for pod in ["pod-0", "pod-1"] {
        let series = format!(
            "pinfold_container_foreign_cpu_seconds_total{{namespace=\"train\",pod=\"{pod}\""
        );
        assert!(text.contains(&series), "{text}");
    }
}

#[test]
fn a_late_scrape_opens_no_counters() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    let sources = sources(root);
    let events = perf::hardware_events(root);
    let late = |containers, caches: &mut caches::Caches, online: &str| {
        let snapshot = Snapshot {
            online: online.parse().unwrap(),
            ..snapshot(containers)
        };
        let subjects = numbered(subjects(&snapshot), &sources);
        let (networks, until) = (OnceCell::new(), Instant::now());
        let scrape = Scrape {
            snapshot: &snapshot,
            sources: &sources,
            subjects,
            networks,
            until,
        };
        let mut page = Page::default();
        (caches.collect(&mut page, &scrape), page.text(Format::Text))
    };
    let partial = (
        Outcome::LeftOut {
            complete: false,
            reasons: BTreeMap::new(),
        },
        String::new(),
    );
    // Without a CPU that is online nobody asks for a moment what the machine has.
    assert_eq!(
        late(
            vec![owner(root, 0, 0)],
            &mut caches::Caches::new(events, 0),
            ""
        ),
        partial
    );
    // In the shared pool none is left out for a reason: there was no time to ask for its counters.
    assert_eq!(
        late(
            vec![container(root, 1)],
            &mut caches::Caches::new(events, 100),
            ""
        ),
        partial
    );
}
