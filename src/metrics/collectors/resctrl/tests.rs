use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use super::super::super::Sources;
use super::super::super::page::Format;
use super::super::Collectors;
use super::super::measured::Deadline;
use super::*;
use crate::cpu::CpuSet;
use crate::host::cgroup::Cgroups;
use crate::host::counters::resctrl::tests::tree;
use crate::host::proc::Proc;
use crate::pin::snapshot::ContainerState;
use crate::pin::{Enforcement, EnforcementCause, Snapshot};
use crate::pod::{
    ContainerKind, Entitlement, Policy, Qos, RecognizedPod, ThreadPolicy, thread_environment,
};

fn set(list: &str) -> CpuSet {
    list.parse().unwrap()
}

/// A container with exclusive `cpus`. The kernel has applied the assignment.
fn owner(pod: &str, role: PodRole, cpus: &str) -> ContainerState {
    let (policy, threads) = (Policy::default(), ThreadPolicy::default());
    ContainerState {
        namespace: "train".to_owned(),
        pod: pod.to_owned(),
        container: "main".to_owned(),
        uid: Some(format!("u-{pod}")),
        kind: ContainerKind::App,
        role,
        job: None,
        index: None,
        evidence: String::new(),
        qos: Qos::Guaranteed,
        host_network: true,
        entitlement: Entitlement::Exclusive {
            cpus: 1,
            reason: String::new(),
        },
        assigned: Some(set(cpus)),
        effective: Some(set(cpus)),
        partition: None,
        numa: None,
        memory: None,
        api_uid: None,
        cgroup: Some(format!("kubepods/podu-{pod}/c1")),
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

fn snapshot(containers: &[ContainerState]) -> Snapshot {
    let none = CpuSet::new;
    Snapshot {
        enforcement: Enforcement::Partition,
        enforcement_cause: EnforcementCause::Configuration,
        enforcement_reason: String::new(),
        placement_source: crate::pin::PlacementSource::Pinfold,
        online: set("0-15"),
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

/// A machine with two caches and so many monitors.
struct CacheMachine {
    root: tempfile::TempDir,
    sources: Sources,
}

impl CacheMachine {
    fn new(rmids: usize) -> Self {
        let root = tempfile::tempdir().unwrap();
        let cgroup = root.path().join("sys/fs/cgroup");
        fs::create_dir_all(&cgroup).unwrap();
        fs::write(cgroup.join("cgroup.controllers"), "cpuset cpu memory\n").unwrap();
        let cgroups = Cgroups::detect(&cgroup).unwrap();
        let mut sources = Sources::new(cgroups, Proc::new(root.path()), root.path());
        let collector = ResctrlCollector::with_resctrl(tree(root.path(), rmids));
        sources.pages.get_mut().collectors.put(Box::new(collector));
        Self { root, sources }
    }

    fn groups(&self) -> PathBuf {
        self.root.path().join("sys/fs/resctrl/mon_groups")
    }

    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.groups()).unwrap();
        let mut names: Vec<String> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort_unstable();
        names
    }

    fn put(&self, pod: &str, file: &str, text: &str) {
        let path = self
            .groups()
            .join(format!("pinfold-u-{pod}-main/mon_data"))
            .join(file);
        assert!(path.exists(), "{}", path.display());
        fs::write(path, text).unwrap();
    }

    fn scrape(&self, containers: &[ContainerState]) -> String {
        self.sources
            .collect(&snapshot(containers))
            .text(Format::Text)
    }
}

/// The values of a family, with the labels beside the container's.
fn values(text: &str, family: &str, pod: &str) -> Vec<(String, u64)> {
    let start = format!(
        "pinfold_container_{family}{{namespace=\"train\",pod=\"{pod}\",container=\"main\","
    );
    let of = |line: &str| {
        let (labels, value) = line.strip_prefix(&start)?.split_once("} ")?;
        Some((labels.replace('"', ""), value.parse().unwrap()))
    };
    text.lines().filter_map(of).collect()
}

fn moved(text: &str, pod: &str) -> Vec<u64> {
    values(text, "memory_bandwidth_bytes_total", pod)
        .into_iter()
        .map(|(_, value)| value)
        .collect()
}

/// How many containers are left out for a reason that begins so.
fn left_out(text: &str, reason: &str) -> Option<u64> {
    let start =
        format!("pinfold_collector_containers_left_out{{collector=\"resctrl\",reason=\"{reason}");
    let line = text.lines().find(|line| line.starts_with(&start))?;
    line.rsplit_once(' ')
        .map(|(_, value)| value.parse().unwrap())
}

fn success(text: &str) -> bool {
    text.contains("pinfold_collector_success{collector=\"resctrl\"} 1\n")
}

#[test]
fn a_late_scrape_makes_no_groups_and_writes_no_series() {
    let machine = CacheMachine::new(8);
    let snapshot = snapshot(&[owner("w", PodRole::Worker, "2-3")]);
    let scrape = |until| {
        let mut pages = machine.sources.pages.lock();
        let Collectors { state, enabled } = &mut pages.collectors;
        let namespaces = BTreeSet::new();
        let host = &machine.sources.host;
        let (mut scrape, _) = Scrape::new(&snapshot, host, state, &namespaces, Deadline(until));
        let mut page = Page::default();
        let resctrl = enabled
            .iter_mut()
            .find(|enabled| enabled.collector.name() == "resctrl");
        let outcome = resctrl.unwrap().collector.collect(&mut scrape, &mut page);
        (outcome, page.text(Format::Text), machine.names())
    };
    let outcome = |complete| CollectOutcome::LeftOut {
        complete,
        reasons: BTreeMap::new(),
    };
    assert_eq!(
        scrape(Instant::now()),
        (outcome(false), String::new(), vec![])
    );
    let (complete, text, names) = scrape(Instant::now() + Duration::from_secs(60));
    assert_eq!((complete, names.len()), (outcome(true), 1));
    assert!(text.contains("pod=\"w\""), "{text}");
    let (late, text, names) = scrape(Instant::now());
    assert_eq!((late, text.as_str(), names.len()), (outcome(false), "", 1));
}

#[test]
fn owners_have_groups_on_their_cpus() {
    let machine = CacheMachine::new(8);
    for folder in ["theirs", "pinfold-u-gone-main"] {
        fs::create_dir_all(machine.groups().join(folder)).unwrap();
        fs::write(machine.groups().join(folder).join("cpus_list"), "9\n").unwrap();
    }
    let shared = ContainerState {
        assigned: None,
        ..owner("web", PodRole::Other, "0-1")
    };
    let drifted = ContainerState {
        effective: Some(set("0-15")),
        ..owner("drift", PodRole::Worker, "6-7")
    };
    let offline = ContainerState {
        effective: Some(set("4")),
        ..owner("part", PodRole::Worker, "4-5")
    };
    let text = machine.scrape(&[owner("w", PodRole::Worker, "2-3"), shared, drifted, offline]);
    assert!(success(&text), "{text}");
    assert_eq!(
        machine.names(),
        ["pinfold-u-part-main", "pinfold-u-w-main", "theirs"]
    );
    let cpus = |pod: &str| {
        fs::read_to_string(
            machine
                .groups()
                .join(format!("pinfold-u-{pod}-main/cpus_list")),
        )
        .unwrap()
    };
    assert_eq!((cpus("w").as_str(), cpus("part").as_str()), ("2-3", "4"));
    let tasks = fs::read_to_string(machine.groups().join("pinfold-u-w-main/tasks")).unwrap();
    assert_eq!(tasks, "", "never tasks");

    let worker = owner("w", PodRole::Worker, "2-3");
    machine.put("w", "mon_L3_00/llc_occupancy", "4096\n");
    machine.put("w", "mon_L3_00/mbm_total_bytes", "1000\n");
    machine.put("w", "mon_L3_00/mbm_local_bytes", "900\n");
    let text = machine.scrape(std::slice::from_ref(&worker));
    let domain = |id: &str, value| (format!("l3_domain={id}"), value);
    assert_eq!(
        values(&text, "llc_occupancy_bytes", "w"),
        [domain("0", 4096), domain("1", 0)]
    );
    let scope = |id: &str, scope: &str, value| (format!("l3_domain={id},scope={scope}"), value);
    assert_eq!(
        values(&text, "memory_bandwidth_bytes_total", "w"),
        [
            scope("0", "total", 1000),
            scope("0", "local", 900),
            scope("1", "total", 0),
            scope("1", "local", 0)
        ]
    );
    let text = machine.scrape(&[]);
    assert!(
        success(&text) && values(&text, "llc_occupancy_bytes", "w").is_empty(),
        "{text}"
    );
    assert_eq!(machine.names(), ["theirs"]);
}

#[test]
fn a_missing_value_affects_only_its_cache() {
    let machine = CacheMachine::new(8);
    let worker = [owner("w", PodRole::Worker, "2-3")];
    machine.scrape(&worker);
    machine.put("w", "mon_L3_00/llc_occupancy", "Unavailable\n");
    machine.put("w", "mon_L3_00/mbm_total_bytes", "Error\n");
    machine.put("w", "mon_L3_00/mbm_local_bytes", "Unavailable\n");
    machine.put("w", "mon_L3_01/mbm_total_bytes", "70\n");
    let text = machine.scrape(&worker);
    assert!(
        success(&text),
        "a value that the hardware lacks is not a failure"
    );
    assert_eq!(left_out(&text, "unavailable"), Some(1));
    assert_eq!(
        values(&text, "llc_occupancy_bytes", "w"),
        [("l3_domain=1".to_owned(), 0)]
    );
    assert_eq!(moved(&text, "w"), [70, 0]);
    // No counter assigned: no series, and no failure.
    machine.put("w", "mon_L3_00/llc_occupancy", "5\n");
    machine.put("w", "mon_L3_00/mbm_total_bytes", "Unassigned\n");
    machine.put("w", "mon_L3_00/mbm_local_bytes", "Unassigned\n");
    let text = machine.scrape(&worker);
    assert!(success(&text) && left_out(&text, "").is_none(), "{text}");
    assert_eq!(moved(&text, "w"), [70, 0]);
}

#[test]
fn bandwidth_totals_survive_a_new_mount() {
    let machine = CacheMachine::new(8);
    let worker = [owner("w", PodRole::Worker, "2-3")];
    machine.scrape(&worker);
    machine.put("w", "mon_L3_00/mbm_total_bytes", "1000\n");
    assert_eq!(moved(&machine.scrape(&worker), "w"), [1000, 0, 0, 0]);
    fs::remove_dir_all(machine.groups().join("pinfold-u-w-main")).unwrap();
    assert_eq!(
        moved(&machine.scrape(&worker), "w"),
        [1000, 0, 0, 0],
        "the group is made again"
    );
    machine.put("w", "mon_L3_00/mbm_total_bytes", "1500\n");
    assert_eq!(moved(&machine.scrape(&worker), "w"), [2500, 0, 0, 0]);
    // The same container, with other CPUs; as long a list, since a plain file keeps what a shorter write leaves.
    assert_eq!(
        moved(&machine.scrape(&[owner("w", PodRole::Worker, "5-6")]), "w"),
        [2500, 0, 0, 0]
    );
}

#[test]
fn parameter_servers_get_monitors_first() {
    let machine = CacheMachine::new(3);
    let workers = [
        owner("a", PodRole::Worker, "1"),
        owner("b", PodRole::Worker, "2"),
    ];
    assert!(success(&machine.scrape(&workers)));
    let [a, b] = workers;
    let text = machine.scrape(&[a, b, owner("ps", PodRole::Ps, "3")]);
    assert!(success(&text), "too few monitors are no failure of ours");
    assert_eq!(left_out(&text, "no_monitors"), Some(1));
    assert_eq!(machine.names(), ["pinfold-u-a-main", "pinfold-u-ps-main"]);
    assert_eq!(values(&text, "llc_occupancy_bytes", "ps").len(), 2);
    assert!(values(&text, "llc_occupancy_bytes", "b").is_empty());
}

#[test]
fn monitors_in_limbo_are_tried_again() {
    let machine = CacheMachine::new(3);
    let limbo = machine.root.path().join("sys/fs/resctrl/limbo");
    fs::write(&limbo, "2").unwrap();
    let worker = [owner("w", PodRole::Worker, "2")];
    let text = machine.scrape(&worker);
    assert!(
        success(&text) && values(&text, "llc_occupancy_bytes", "w").is_empty(),
        "{text}"
    );
    assert_eq!(left_out(&text, "no_monitors"), Some(1));
    fs::remove_file(&limbo).unwrap();
    let text = machine.scrape(&worker);
    assert!(
        success(&text) && values(&text, "llc_occupancy_bytes", "w").len() == 2,
        "{text}"
    );
}

#[test]
fn cpus_of_a_other_control_group_stay_in_the_group() {
    let machine = CacheMachine::new(5);
    let both = [
        owner("theirs", PodRole::Ps, "2"),
        owner("ours", PodRole::Worker, "3"),
    ];
    // CPU 2 is in a control group: the kernel refuses it to groups below the root one, and says so.
    let top = machine.root.path().join("sys/fs/resctrl");
    fs::create_dir_all(top.join("gold/mon_groups")).unwrap();
    fs::write(top.join("refused"), "2\n").unwrap();
    fs::write(
        top.join("info/last_cmd_status"),
        "Can only add CPUs to mongroup that belong to parent\n",
    )
    .unwrap();
    for _ in 0..2 {
        let text = machine.scrape(&both);
        assert!(success(&text), "{text}");
        assert_eq!(left_out(&text, "other_control_group"), Some(1));
        assert_eq!(values(&text, "llc_occupancy_bytes", "ours").len(), 2);
        assert!(values(&text, "llc_occupancy_bytes", "theirs").is_empty());
        assert_eq!(
            machine.names(),
            ["pinfold-u-ours-main"],
            "its monitor is given back, and not taken each time"
        );
    }
    // After a change of the CPUs, the next scrape tries again.
    let text = machine.scrape(&[owner("theirs", PodRole::Ps, "5")]);
    assert!(
        left_out(&text, "").is_none() && values(&text, "llc_occupancy_bytes", "theirs").len() == 2,
        "{text}"
    );
}

#[test]
fn without_resctrl_the_reason_is_reported() {
    let machine = CacheMachine::new(3);
    let top: &Path = &machine.root.path().join("sys/fs/resctrl");
    fs::remove_dir_all(top).unwrap();
    fs::create_dir(top).unwrap();
    let text = machine.scrape(&[owner("w", PodRole::Worker, "2")]);
    let reason =
        "pinfold_collector_unsupported{collector=\"resctrl\",reason=\"no_resctrl_monitoring\"}";
    assert!(text.contains(reason), "{text}");
    assert!(success(&text), "missing support is not a failure");
    assert!(
        !text.contains("pinfold_container_llc_occupancy_bytes"),
        "{text}"
    );
}
