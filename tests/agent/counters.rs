//! Counters of exclusive CPUs, with events that the kernel counts in software. The tests compare
//! the collector of hardware counters with `/proc`, for a real process on the CPU and for the whole
//! machine.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use pinfold::cpu::CpuSet;
use pinfold::host::counters::perf::CounterGroup;
use pinfold::host::proc::Proc;
use pinfold::host::spawn::{Launcher, Process, Spawn, Stderr};
use pinfold::metrics::{Format, Sources};
use pinfold::pin::snapshot::ContainerState;
use pinfold::pin::{Enforcement, EnforcementCause, Snapshot};
use pinfold::pod::{
    ContainerKind, Entitlement, PodRole, Policy, Qos, RecognizedPod, ThreadPolicy,
    thread_environment,
};

use crate::events::SOFTWARE;
use crate::kernel::{Kernel, kernel_tests};

/// How long a process is watched.
const SPELL: Duration = Duration::from_secs(1);

/// Context switches and page faults.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Counts {
    switches: u64,
    faults: u64,
}

/// A shell that starts a program again and again and waits for each; each program has page faults.
fn busy(kernel: &Kernel, launcher: &Launcher, path: &str) -> Process {
    let spawn = Spawn {
        program: "/bin/sh".into(),
        args: vec!["-c".into(), "while :; do /bin/sleep 0.005; done".into()],
        env: BTreeMap::new(),
        cgroup_procs: kernel.cgroups.procs_files(path),
        netns: None,
        stderr: Stderr::File("/dev/null".into()),
    };
    launcher.spawn(spawn).unwrap()
}

/// The kernel's counts for one process.
fn of_process(pid: u32) -> Counts {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let number = |name: &str| -> u64 {
        status
            .lines()
            .find_map(|line| line.strip_prefix(name))
            .unwrap()
            .trim()
            .parse()
            .unwrap()
    };
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    // The tenth field, and the eleventh for the children that have ended; the second is in brackets and may hold anything.
    let fields = stat
        .rsplit_once(')')
        .unwrap()
        .1
        .split_whitespace()
        .skip(7)
        .take(2);
    let faults = fields.map(|field| field.parse::<u64>().unwrap()).sum();
    Counts {
        switches: number("voluntary_ctxt_switches:") + number("nonvoluntary_ctxt_switches:"),
        faults,
    }
}

/// Watches a process for a while. On a slow machine, this goes on until the process has started
/// enough programs.
fn watch(pid: u32, before: Counts) {
    std::thread::sleep(SPELL);
    wait_for_switches(pid, before);
}

fn wait_for_switches(pid: u32, before: Counts) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while of_process(pid).switches < before.switches + 100 {
        assert!(Instant::now() < deadline, "the process does too little");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// The kernel's counts for the whole machine.
fn of_machine() -> Counts {
    let number = |file: &str, name: &str| -> u64 {
        let text = fs::read_to_string(file).unwrap();
        text.lines()
            .find_map(|line| line.strip_prefix(name))
            .unwrap()
            .trim()
            .parse()
            .unwrap()
    };
    Counts {
        switches: number("/proc/stat", "ctxt "),
        faults: number("/proc/vmstat", "pgfault "),
    }
}

pub(crate) fn state(pod: &str, cgroup: &str, cpus: &CpuSet) -> ContainerState {
    let (policy, threads) = (Policy::default(), ThreadPolicy::default());
    ContainerState {
        namespace: "train".to_owned(),
        pod: pod.to_owned(),
        container: "main".to_owned(),
        uid: Some(format!("u-{pod}")),
        kind: ContainerKind::App,
        role: PodRole::Worker,
        job: None,
        index: None,
        evidence: String::new(),
        qos: Qos::Guaranteed,
        host_network: true,
        entitlement: Entitlement::Exclusive {
            cpus: 1,
            reason: String::new(),
        },
        assigned: Some(cpus.clone()),
        effective: Some(cpus.clone()),
        partition: None,
        numa: None,
        memory: None,
        api_uid: None,
        cgroup: Some(cgroup.to_owned()),
        running: true,
        threads: thread_environment(&RecognizedPod::default(), 0, &policy, &threads, None),
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

pub(crate) fn snapshot(kernel: &Kernel, containers: &[ContainerState]) -> Snapshot {
    let none = CpuSet::new;
    Snapshot {
        enforcement: Enforcement::Cpuset,
        enforcement_cause: EnforcementCause::Configuration,
        enforcement_reason: String::new(),
        placement_source: pinfold::pin::PlacementSource::Pinfold,
        online: kernel.online.clone(),
        reserved: none(),
        shared: none(),
        exclusive: none(),
        withheld: none(),
        held_by_others: none(),
        lost: none(),
        layout: std::sync::Arc::default(),
        cpu_isolation: None,
        containers: containers.to_vec(),
        unknown_owners: Vec::new(),
        drift: Vec::new(),
        unexplained: Vec::new(),
        errors: Vec::new(),
        pods_listed: true,
    }
}

/// A page to which the collector has written all series. A collector has one second, which may pass on a busy machine.
pub(crate) fn complete_page(sources: &Sources, snapshot: &Snapshot, collector: &str) -> String {
    let succeeds = format!("pinfold_collector_success{{collector=\"{collector}\"}} 1\n");
    let mut text = String::new();
    for _ in 0..5 {
        text = sources.collect(snapshot).text(Format::Text);
        if text.contains(&succeeds) {
            return text;
        }
    }
    panic!("{text}");
}

/// A pod's counters, and the seconds for which the counters were enabled and ran; `None` where the pod has no series.
fn counters(text: &str, pod: &str) -> Option<(Counts, f64, f64)> {
    let value = |family: &str| {
        let start = format!(
            "pinfold_container_{family}{{namespace=\"train\",pod=\"{pod}\",container=\"main\"}} "
        );
        text.lines().find_map(|line| line.strip_prefix(&start))
    };
    let count = |family: &str| value(family).map(|value| value.parse::<u64>().unwrap());
    let seconds = |family: &str| value(family).map(|value| value.parse::<f64>().unwrap());
    let counts = Counts {
        switches: count("cpu_cycles_total")?,
        faults: count("instructions_total")?,
    };
    Some((
        counts,
        seconds("perf_enabled_seconds_total")?,
        seconds("perf_running_seconds_total")?,
    ))
}

#[test]
fn hardware_counters_of_exclusive_cpus_agree_with_proc() {
    let Some(kernel) = kernel_tests() else { return };
    let tree = kernel.tree();
    let pod = tree.pod("", "counted-uid");
    let [a, b] = ["a1", "b1"].map(|name| tree.container(&pod, name));
    let cpus = kernel.last();
    for path in [&tree.path, &pod, &a] {
        kernel.write_cpus(path, if *path == a { &cpus } else { &kernel.online });
        kernel.write(path, "cpuset.mems", "0");
    }
    let launcher = Launcher::new().unwrap();
    let process = busy(&kernel, &launcher, &a);
    let sources = Sources::new(
        kernel.cgroups.clone(),
        Proc::new(Path::new("/")),
        Path::new("/"),
    )
    .counting(SOFTWARE);
    let scrape = |containers: &[ContainerState]| {
        complete_page(&sources, &snapshot(&kernel, containers), "caches")
    };
    let [of_a, of_b] = [("a", &a), ("b", &b)].map(|(pod, path)| state(pod, path, &cpus));
    let shared = ContainerState {
        assigned: None,
        ..of_b.clone()
    };

    // The readings of the machine enclose the scrapes; the readings of the process lie inside.
    let (start, machine) = (Instant::now(), of_machine());
    let (first, ..) = counters(&scrape(&[of_a.clone(), shared.clone()]), "a").unwrap();
    let (began, before) = (Instant::now(), of_process(process.pid()));
    watch(process.pid(), before);
    let (after, least) = (of_process(process.pid()), began.elapsed().as_secs_f64());
    let text = scrape(&[of_a.clone(), shared]);
    let (machine_after, most) = (of_machine(), start.elapsed().as_secs_f64());
    let (counted, enabled, running) = counters(&text, "a").unwrap();
    let more = Counts {
        switches: counted.switches - first.switches,
        faults: counted.faults - first.faults,
    };
    let own = Counts {
        switches: after.switches - before.switches,
        faults: after.faults - before.faults,
    };
    let all = Counts {
        switches: machine_after.switches - machine.switches,
        faults: machine_after.faults - machine.faults,
    };
    assert!(
        own.switches > 20 && own.faults > 20,
        "the process did too little: {own:?}"
    );
    assert!(
        own.switches <= more.switches && more.switches <= all.switches,
        "{own:?} {more:?} {all:?}"
    );
    // A child that runs when counting begins is counted at its end, with all faults: one child in a hundred.
    let faults = own.faults - own.faults / 20;
    assert!(
        faults <= more.faults && more.faults <= all.faults,
        "{own:?} {more:?} {all:?}"
    );
    assert!(
        enabled >= 0.99 * least && enabled <= 1.01 * most,
        "{least} {enabled} {most}"
    );
    assert!(
        (enabled - running).abs() < 0.01 * enabled,
        "software events take no turns: {enabled} {running}"
    );
    assert_eq!(
        counters(&text, "b"),
        None,
        "a shared container has no such series"
    );

    // A second container gets the CPU. The earlier counts stay out of its counters, and the first container has no series.
    let text = scrape(&[
        ContainerState {
            assigned: None,
            ..of_a.clone()
        },
        of_b.clone(),
    ]);
    let (others, ..) = counters(&text, "b").unwrap();
    assert!(
        others.switches < counted.switches / 2,
        "{others:?} {counted:?}"
    );
    assert_eq!(counters(&text, "a"), None);

    // The first container comes back, and its counters continue.
    let (again, ..) = counters(&scrape(&[of_a]), "a").unwrap();
    assert!(
        again.switches >= counted.switches && again.switches < counted.switches + more.switches / 2
    );
    // The counters end with the container: a new container with the name begins at zero.
    scrape(&[]);
    let (anew, ..) = counters(&scrape(&[state("a", &a, &cpus)]), "a").unwrap();
    assert!(anew.switches < counted.switches / 2, "{anew:?} {counted:?}");
}

#[test]
fn a_missing_cpu_has_no_counters() {
    let Some(kernel) = kernel_tests() else { return };
    let beyond = kernel.online.iter().last().unwrap() + 1;
    CounterGroup::open(beyond, &SOFTWARE).unwrap_err();
    assert!(
        CounterGroup::open(kernel.last().first().unwrap(), &SOFTWARE)
            .unwrap()
            .has()
            .iter()
            .all(|has| *has)
    );
}

/// For a container in the shared pool, the kernel counts the container's own threads on every CPU.
/// One beyond the budget has only the series that says so.
#[test]
fn containers_that_share_their_cpus_are_counted_within_a_budget() {
    let Some(kernel) = kernel_tests() else { return };
    let tree = kernel.tree();
    let pod = tree.pod("", "shared-uid");
    let [a, b] = ["a1", "b1"].map(|name| tree.container(&pod, name));
    for path in [&tree.path, &pod, &a, &b] {
        kernel.write_cpus(path, &kernel.online);
        kernel.write(path, "cpuset.mems", "0");
    }
    let launcher = Launcher::new().unwrap();
    let [of_a, of_b] = [&a, &b].map(|path| busy(&kernel, &launcher, path));
    let budget = kernel.online.len() * SOFTWARE.len();
    let new = |budget| {
        let sources = Sources::new(
            kernel.cgroups.clone(),
            Proc::new(Path::new("/")),
            Path::new("/"),
        );
        sources.counting_shared(SOFTWARE, budget)
    };
    let state = |pod: &str, path: &str, role| ContainerState {
        role,
        assigned: None,
        ..state(pod, path, &kernel.online)
    };
    let containers = [state("b", &b, PodRole::Worker), state("a", &a, PodRole::Ps)];
    let scrape = |sources: &Sources, containers: &[ContainerState]| {
        complete_page(sources, &snapshot(&kernel, containers), "caches")
    };

    // The budget is enough for the server alone.
    let sources = new(budget);
    let machine = of_machine();
    let first = scrape(&sources, &containers);
    let (first, ..) = counters(&first, "a").unwrap();
    let (began, before) = (Instant::now(), of_process(of_a.pid()));
    watch(of_a.pid(), before);
    let (after, least) = (of_process(of_a.pid()), began.elapsed().as_secs_f64());
    let text = scrape(&sources, &containers);
    let machine_after = of_machine();
    let (counted, enabled, _) = counters(&text, "a").unwrap();
    assert_eq!(
        counters(&text, "b"),
        None,
        "a container beyond the budget has no such series"
    );
    let left_out = "pinfold_collector_containers_left_out{collector=\"caches\",reason=\"shared_counter_limit\"} 1\n";
    assert!(text.contains(left_out), "{text}");
    let own = after.switches - before.switches;
    let more = counted.switches - first.switches;
    // The server's children count too, and no further process.
    assert!(own > 20 && own <= more, "{own} {more}");
    assert!(more <= machine_after.switches - machine.switches, "{more}");
    assert!(counted.faults > first.faults, "{counted:?}");
    assert!(
        enabled > 0.0 && enabled < 2.0 * least,
        "the threads mostly wait: {enabled} of {least}"
    );

    // The budget is enough for both containers; each has counters.
    let sources = new(2 * budget);
    scrape(&sources, &containers);
    let before = [&of_a, &of_b].map(|process| of_process(process.pid()));
    std::thread::sleep(SPELL);
    for (process, before) in [&of_a, &of_b].into_iter().zip(before) {
        wait_for_switches(process.pid(), before);
    }
    let text = scrape(&sources, &containers);
    let [(of_a, ..), (of_b, ..)] = ["a", "b"].map(|pod| counters(&text, pod).unwrap());
    assert!(
        of_a.switches > 20 && of_b.switches > 20,
        "{of_a:?} {of_b:?}"
    );
    assert!(!text.contains("containers_left_out"), "{text}");

    // The container gets exclusive CPUs, and the CPUs are counted from then on: the counters continue.
    let owner = ContainerState {
        assigned: Some(kernel.last()),
        effective: Some(kernel.last()),
        ..containers[1].clone()
    };
    let text = scrape(&sources, &[containers[0].clone(), owner]);
    let (again, ..) = counters(&text, "a").unwrap();
    assert!(again.switches >= of_a.switches, "{again:?} {of_a:?}");

    // Without a budget no shared container is counted.
    let text = scrape(&new(0), &containers);
    assert!(
        !text.contains("pinfold_container_cpu_cycles_total"),
        "{text}"
    );
}
