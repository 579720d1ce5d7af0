//! A node of plain files, which is the same on every machine.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::Duration;

use pinfold::agent::{exporter, node_capacity};
use pinfold::cluster::ApiCounters;
use pinfold::cluster::scenes::{Phase, SlotState};
use pinfold::cpu::{Cores, CpuSet, SharedMinimum};
use pinfold::host::cgroup::Cgroups;
use pinfold::host::proc::Proc;
use pinfold::metrics::{AgentMetrics, Page, Sources};
use pinfold::nri::{ConnectionState, RuntimeInfo};
use pinfold::pin::decide::RefusalSource;
use pinfold::pin::snapshot::ContainerState;
use pinfold::pin::{Enforcement, EnforcementCause, Snapshot};
use pinfold::pod::{
    Allocatable, AllocatableSource, Capacity, CapacityInput, ContainerKind, Entitlement, Obstacle,
    PodRole, Policy, Qos, RecognizedPod, ThreadPolicy, thread_environment,
};
use pinfold::scene::Slot;

fn set(text: &str) -> CpuSet {
    text.parse().unwrap()
}

fn write(root: &Path, path: &str, text: &str) {
    let file = root.join(path);
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    fs::write(file, text).unwrap();
}

/// A container with its exclusive CPUs (none in the shared pool), and a process with two threads.
fn container(root: &Path, name: &str, role: PodRole, own: Option<&str>) -> ContainerState {
    let number = u32::try_from(name.len()).unwrap() + u32::from(own.is_some()) * 10;
    let cgroup = format!("kubepods/pod{name}-uid/c1");
    let dir = format!("sys/fs/cgroup/{cgroup}");
    let pid = 100 + number;
    write(root, &format!("{dir}/cgroup.procs"), &format!("{pid}\n"));
    let stat = format!(
        "usage_usec {number}500000\nnr_periods 10{number}\nnr_throttled {number}\nthrottled_usec 250000\n"
    );
    write(root, &format!("{dir}/cpu.stat"), &stat);
    for resource in ["cpu", "io", "memory"] {
        let text =
            format!("some avg10=0.00 total={number}00000\nfull avg10=0.00 total=5{number}\n");
        write(root, &format!("{dir}/{resource}.pressure"), &text);
    }
    write(
        root,
        &format!("{dir}/memory.numa_stat"),
        "anon N0=4096 N1=8192\nfile N0=0 N1=12288\n",
    );
    for thread in [pid, pid + 1000] {
        let task = format!("proc/{pid}/task/{thread}");
        write(
            root,
            &format!("{task}/status"),
            &format!(
                "Cpus_allowed_list:\t{}\nvoluntary_ctxt_switches:\t70\nnonvoluntary_ctxt_switches:\t7\n",
                // The second thread of an owner is bound to the owner's first CPU.
                own.map_or("0-1", |own| if thread > 1000 { &own[..1] } else { own })
            ),
        );
        write(
            root,
            &format!("{task}/sched"),
            &format!("se.nr_migrations   :   {number}\n"),
        );
        write(
            root,
            &format!("{task}/schedstat"),
            "9000000000 1500000000 77\n",
        );
    }
    let size = own.map_or(0, |own| set(own).len());
    write(
        root,
        &format!("proc/{pid}/environ"),
        &format!("PASSWORD=secret\0OMP_NUM_THREADS={size}\0"),
    );
    let head = "Inter-|   Receive                                                |  Transmit\n \
                face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed\n";
    let device =
        format!("  eth0: {number}000 {number} 1 2 0 0 0 0 {number}500 {number} 3 4 0 0 0 0\n");
    write(
        root,
        &format!("proc/{pid}/net/dev"),
        &format!("{head}{device}"),
    );
    fs::create_dir_all(root.join(format!("proc/{pid}/ns"))).unwrap();
    symlink(
        format!("net:[{}]", 4_026_532_000 + number),
        root.join(format!("proc/{pid}/ns/net")),
    )
    .unwrap();
    let cpus = own.map(set);
    let entitlement = match &cpus {
        Some(cpus) => Entitlement::Exclusive {
            cpus: u32::try_from(cpus.len()).unwrap(),
            reason: "CPU limit".to_owned(),
        },
        None => Entitlement::Shared {
            reason: "not a training pod".to_owned(),
            obstacle: None,
        },
    };
    let mut threads = thread_environment(
        &RecognizedPod::default(),
        0,
        &Policy::default(),
        &ThreadPolicy::default(),
        None,
    );
    threads.expected_threads = cpus.as_ref().map(|cpus| cpus.len() + 1);
    ContainerState {
        namespace: "train".to_owned(),
        pod: name.to_owned(),
        container: "main".to_owned(),
        uid: Some(format!("{name}-uid")),
        kind: ContainerKind::App,
        role,
        job: cpus.as_ref().map(|_| "mnist".to_owned()),
        index: cpus.as_ref().map(|_| 0),
        evidence: String::new(),
        qos: if cpus.is_some() {
            Qos::Guaranteed
        } else {
            Qos::BestEffort
        },
        host_network: false,
        entitlement,
        effective: Some(cpus.clone().unwrap_or_else(|| set("0-1"))),
        assigned: cpus,
        partition: None,
        numa: None,
        memory: None,
        api_uid: None,
        cgroup: Some(cgroup),
        running: true,
        threads,
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

/// A port of an RDMA device below a root, as sysfs shows it where each device is in one network namespace.
fn rdma_port(root: &Path, device: &str, bytes: u64) {
    write(root, "sys/module/ib_core/parameters/netns_mode", "N\n");
    let port = format!("sys/class/infiniband/{device}/ports/1");
    for (file, text) in [
        ("state", "4: ACTIVE".to_owned()),
        ("counters/port_xmit_data", (bytes / 4).to_string()),
        ("counters/port_rcv_data", (bytes / 2).to_string()),
        ("counters/port_xmit_packets", "30".to_owned()),
        ("counters/port_rcv_packets", "60".to_owned()),
        ("counters/port_xmit_wait", "5".to_owned()),
        ("counters/link_downed", "1".to_owned()),
        ("counters/VL15_dropped", "N/A (no PMA)".to_owned()),
        ("hw_counters/out_of_sequence", "2".to_owned()),
    ] {
        write(root, &format!("{port}/{file}"), &format!("{text}\n"));
    }
}

/// The page of a node with a server, a worker on the node's network, a BestEffort pod and a worker without exclusive CPUs, with
/// a Kubernetes API and a container runtime.
pub(crate) fn page() -> Page {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    write(
        root,
        "sys/fs/cgroup/cgroup.controllers",
        "cpuset cpu io memory pids\n",
    );
    write(
        root,
        "sys/fs/cgroup/cpu.pressure",
        "some avg10=0.00 total=1\nfull avg10=0.00 total=1\n",
    );
    write(root, "proc/self/schedstat", "1 1 1\n");
    write(root, "proc/self/sched", "se.nr_migrations : 1\n");
    let mut containers = vec![
        container(root, "ps-0", PodRole::Ps, Some("2-3")),
        container(root, "web", PodRole::Other, None),
        container(root, "worker-0", PodRole::Worker, Some("4-7")),
    ];
    containers[2].host_network = true;
    let mut denied = container(root, "denied", PodRole::Worker, None);
    denied.entitlement = Entitlement::Shared {
        reason: "the sentence is no label".to_owned(),
        obstacle: Some(Obstacle::NotGuaranteed),
    };
    denied.refused = Some(RefusalSource::Policy);
    containers.push(denied);
    // The pods' namespaces also show the node's device. A second device is in the server's namespace only.
    rdma_port(&root.join("proc/1/root"), "mlx5_0", 40_000);
    // The devices of the agent's own pod are not the node's devices.
    rdma_port(root, "mlx5_3", 4);
    for device in ["mlx5_0", "mlx5_7"] {
        rdma_port(&root.join("proc/114/root"), device, 8000);
    }
    rdma_port(&root.join("proc/118/root"), "mlx5_9", 8000);
    let snapshot = Snapshot {
        enforcement: Enforcement::Cpuset,
        enforcement_cause: EnforcementCause::PartitionsUnsupported,
        enforcement_reason: "the sentence is no label".to_owned(),
        placement_source: pinfold::pin::PlacementSource::Pinfold,
        online: set("0-7"),
        reserved: set("0"),
        shared: set("0-1"),
        exclusive: set("2-7"),
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
    };
    let cgroups = Cgroups::detect(&root.join("sys/fs/cgroup")).unwrap();
    let sources = Sources::new(cgroups, Proc::new(root), root);
    // The containers come after the agent's first scrape, so that what their tasks have counted is counted.
    let before = Snapshot {
        containers: Vec::new(),
        ..snapshot.clone()
    };
    sources.collect(&before);
    let mut page = sources.collect(&snapshot);
    let agent = AgentMetrics::new().unwrap();
    agent.reconciles.with_label_values(&["timer"]).inc_by(3);
    agent.steps.with_label_values(&["done"]).inc_by(4);
    agent.reconcile_seconds.observe(0.002);
    agent.unpinned_seconds.observe(0.25);
    agent.runtime_call("CreateContainer", Duration::from_millis(3));
    agent.set_cpu_seconds(1.5);
    agent.write(&mut page);
    let capacity = Capacity::new(&CapacityInput {
        online: &snapshot.online,
        withheld: &CpuSet::new(),
        held_by_others: &CpuSet::new(),
        lost: &CpuSet::new(),
        reserved: &snapshot.reserved,
        isolated: &CpuSet::new(),
        cores: &snapshot.layout.cores,
        preference: Cores::Preferred,
        single_cores: true,
        shared_minimum: SharedMinimum::default(),
        owned: &snapshot.exclusive,
        idle: &CpuSet::new(),
    });
    let allocatable = Allocatable {
        millicores: 3920,
        capacity: None,
        source: AllocatableSource::Node,
    };
    node_capacity::write_capacity(&mut page, &capacity, Some(&allocatable));
    exporter::write_requests(&mut page, &ApiCounters::default());
    exporter::write_connection(&mut page, true, [3, 0], Some(1_700_000_000.5));
    let slot = SlotState {
        phase: Phase::Placed,
        plan: Some("plan".to_owned()),
        slot: Some(Slot {
            scene: "scene".to_owned(),
            case: "case".to_owned(),
            kind: Some("ps".to_owned()),
            index: 0,
        }),
        conflicts: vec!["CASE".to_owned()],
        ..SlotState::default()
    };
    exporter::write_slot(&mut page, &slot);
    let runtime = RuntimeInfo {
        name: "containerd".to_owned(),
        version: "v2.2.0".to_owned(),
        request_timeout_ms: None,
    };
    exporter::write_runtime(&mut page, &ConnectionState::Synchronized(runtime), 0);
    page
}
