//! A machine's files below `sys` and `proc`: the topology with placements, the knobs, processes, and RDMA ports.
//!
//! An input is a tree of files in the format of `pinfold_fuzz::Tree`. The target reads the process `proc/1` and the
//! device `0000:3b:00.0`.

#![no_main]

use std::cell::RefCell;

use libfuzzer_sys::fuzz_target;
use pinfold::cpu::{Cores, CpuSet, Order, Placer, Request, Topology};
use pinfold::host::knobs::{KnobKind, Knobs};
use pinfold::host::proc::{NetnsHandles, NetnsKey, Proc, Reader};
use pinfold::host::{counters::perf, counters::rdma, pci, topology};
use pinfold_fuzz::{Tree, check_groups, check_places, files, says_why, text};

/// The maximum number of CPUs: reading a file for each of thousands of CPUs would take almost all the time.
const MOST_CPUS: usize = 128;

thread_local! {
    static TREE: RefCell<Tree> = RefCell::new(Tree::new());
}

fuzz_target!(|data: &[u8]| {
    let Some(text) = text(data) else { return };
    let large = |list: &str| {
        list.parse::<CpuSet>()
            .is_ok_and(|cpus| cpus.len() > MOST_CPUS)
    };
    if text
        .lines()
        .filter_map(|line| line.split_once(" = "))
        .any(|(_, content)| large(content))
    {
        return;
    }
    TREE.with_borrow_mut(|tree| {
        tree.set(files(text));
        let root = tree.root();
        match topology::read(root) {
            Ok(topology) => machine(&topology),
            Err(error) => says_why(&error),
        }
        if let Err(error) = topology::online_cpus(&root.join("sys")) {
            says_why(&error);
        }
        knobs(&Knobs::new(root));
        processes(&Proc::new(root));
        let _ = pci::numa_node(root, "0000:3b:00.0");
        let _ = (
            perf::hardware_events(root),
            perf::second_level_cache_events(root),
            rdma::ports(&rdma::directory(root)),
        );
    });
});

fn machine(topology: &Topology) {
    check_groups(topology);
    assert!(!topology.online.is_empty());
    let half = topology.online.len() / 2;
    let numbers = [1, 2, half, half + 1];
    let request = |cpus| Request {
        cpus,
        ..Request::default()
    };
    let mut requests: Vec<Request> = numbers.into_iter().map(request).collect();
    let near = topology
        .numa
        .last()
        .map(|node| node.id)
        .into_iter()
        .collect();
    requests.insert(
        0,
        Request {
            order: Order::Spread,
            near,
            ..request(half / 4)
        },
    );
    requests.insert(
        1,
        Request {
            cores: Cores::Single,
            ..request(1)
        },
    );
    check_places(
        topology,
        &Placer::new(topology),
        &topology.online,
        &requests,
    );
}

fn knobs(knobs: &Knobs) {
    let readings = match knobs.read(&KnobKind::ALL.into_iter().collect()) {
        Ok(readings) => readings,
        Err(error) => return says_why(&error),
    };
    for (knob, cpus) in &readings.values {
        assert_eq!(knobs.get(knob).as_ref(), Ok(&Some(cpus.clone())), "{knob}");
    }
    for (knob, reason) in &readings.unreadable {
        assert!(
            !reason.is_empty() && !readings.values.contains_key(knob),
            "{knob}"
        );
    }
    let _ = (knobs.irq_name(0), knobs.irqbalance_runs());
}

fn processes(proc: &Proc) {
    let mut reader = Reader::default();
    let _ = (proc.threads(1), proc.network_namespace(1), proc.tasks(1));
    let (mut handles, key) = (NetnsHandles::new(0), NetnsKey { pid: 1, number: 0 });
    let _ = handles.traffic(proc, key, &mut reader);
    let _ = handles.segments(proc, key, &mut reader);
    let _ = handles.timeouts(proc, key, &mut reader);
    for name in proc
        .variables(1, &["OMP_NUM_THREADS"])
        .unwrap_or_default()
        .into_keys()
    {
        assert_eq!(
            name, "OMP_NUM_THREADS",
            "nothing else leaves an environment"
        );
    }
    for seconds in [proc.age_seconds(1), proc.cpu_seconds(1)]
        .into_iter()
        .flatten()
    {
        assert!(seconds >= 0.0, "{seconds} seconds");
    }
}
