//! Measured interference, compared with the CPU time of spinning processes according to their
//! cgroups.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use pinfold::cpu::CpuSet;
use pinfold::host::busy::{CpuSample, CpuTimes, Sampler, TICK, UNIT};
use pinfold::host::cgroup::CpuUsage;
use pinfold::host::spawn::{Launcher, Process, Spawn, Stderr};
use pinfold::pin::interference::{Interference, InterferenceTracker};

use super::kernel::{Kernel, kernel_tests};
use super::machine::is_own_guest;

/// How long each case is watched.
const MEASUREMENT_TIME: Duration = Duration::from_secs(4);

fn spin(kernel: &Kernel, launcher: &Launcher, path: &str) -> Process {
    let spawn = Spawn {
        program: "/bin/sh".into(),
        args: vec!["-c".into(), "while :; do :; done".into()],
        env: BTreeMap::new(),
        cgroup_procs: kernel.cgroups.procs_files(path),
        netns: None,
        stderr: Stderr::File("/dev/null".into()),
    };
    launcher.spawn(spawn).unwrap()
}

/// The CPU seconds used on the given CPUs.
fn seconds(usage: &CpuUsage, cpus: &CpuSet) -> f64 {
    match usage {
        CpuUsage::Total(time) => time.as_secs_f64(),
        CpuUsage::PerCpu(times) => cpus
            .iter()
            .map(|cpu| times[cpu as usize].as_secs_f64())
            .sum(),
    }
}

/// The interference of one measurement, and the other times for comparison.
#[derive(Debug)]
struct Measurement {
    interference: Interference,
    owner: f64,
    /// CPU time of the neighbour's cgroup in about the same time.
    neighbour_usage: f64,
    /// Time in which the CPU was not idle, by `/proc/stat`.
    busy: f64,
    stolen: f64,
    wall: f64,
    /// Duration of the first and the last reading together.
    reading: f64,
}

struct Reading {
    interference: Interference,
    usage: CpuUsage,
    neighbour_usage: CpuUsage,
    first: CpuSample,
    second: CpuSample,
}

fn measure(kernel: &Kernel, owner: &str, neighbour: &str, cpus: &CpuSet) -> Measurement {
    let mut sampler = Sampler::new(Path::new("/"));
    let mut times = InterferenceTracker::default();
    let mut note = || {
        sampler.prepare(&kernel.cgroups).unwrap();
        let first = sampler.sample(&kernel.cgroups).unwrap();
        let usage = kernel.cgroups.usage(owner).unwrap().unwrap();
        let neighbour_usage = kernel.cgroups.usage(neighbour).unwrap().unwrap();
        let second = sampler.sample(&kernel.cgroups).unwrap();
        let interference = times.note(owner, cpus, &usage, (&first, &second));
        Reading {
            interference,
            usage,
            neighbour_usage,
            first,
            second,
        }
    };
    let start = note();
    let began = Instant::now();
    let mut last = Interference::default();
    while began.elapsed() < MEASUREMENT_TIME {
        std::thread::sleep(Duration::from_millis(200));
        let now = note().interference;
        assert!(now.seconds >= last.seconds && now.error_seconds >= last.error_seconds);
        last = now;
    }
    let end = note();
    let duration = |reading: &Reading| (reading.second.ended - reading.first.began).as_secs_f64();
    let wall = (end.second.ended - start.second.ended).as_secs_f64();
    let increase = |field: fn(&CpuTimes) -> Duration| {
        let sum = |sample: &CpuSample| {
            cpus.iter()
                .map(|cpu| field(&sample.cpus[&cpu]))
                .sum::<Duration>()
        };
        (sum(&end.second) - sum(&start.second)).as_secs_f64()
    };
    let measurement = Measurement {
        interference: end.interference,
        owner: seconds(&end.usage, cpus) - seconds(&start.usage, cpus),
        neighbour_usage: seconds(&end.neighbour_usage, cpus)
            - seconds(&start.neighbour_usage, cpus),
        busy: wall * cpus.len() as f64 - increase(|clock| clock.idle),
        stolen: increase(|clock| clock.steal),
        wall,
        reading: duration(&start) + duration(&end),
    };
    println!("{measurement:.4?}");
    measurement
}

#[test]
fn interference_counts_the_neighbours_time_and_nothing_else() {
    let Some(kernel) = kernel_tests() else { return };
    let mut tree = kernel.tree();
    let (own, cpus) = (tree.pod("", "own"), kernel.last());
    let owner = tree.container(&own, "0aaa");
    let neighbour_pod = tree.pod("", "foreign");
    let neighbour = tree.container(&neighbour_pod, "0bbb");
    for path in [&owner, &neighbour] {
        kernel.write_cpus(path, &cpus);
    }
    let launcher = Launcher::new().unwrap();
    let sampled = Sampler::new(Path::new("/")).samples_idle();
    let _spinner = spin(&kernel, &launcher, &owner);
    std::thread::sleep(Duration::from_millis(300));
    let alone = measure(&kernel, &owner, &neighbour, &cpus);
    let neighbour_spinner = spin(&kernel, &launcher, &neighbour);
    std::thread::sleep(Duration::from_millis(300));
    let with_neighbour = measure(&kernel, &owner, &neighbour, &cpus);
    drop(neighbour_spinner);
    tree.remove(&neighbour);

    for measurement in [&alone, &with_neighbour] {
        let Interference {
            seconds,
            error_seconds,
        } = measurement.interference;
        // The two ways of counting agree, also with further load: all busy time is the owner's time or interference.
        let expected = measurement.busy - measurement.owner;
        let slack =
            error_seconds + measurement.stolen + measurement.reading + 4.0 * UNIT.as_secs_f64();
        assert!(
            (seconds - expected).abs() <= slack,
            "{measurement:?}: by /proc/stat {expected}"
        );
        // Where the kernel samples idle time, run slices make the idle time uncertain, and a slice may be long.
        let error_limit = if sampled { 0.5 } else { 0.06 };
        assert!(
            error_seconds <= error_limit + measurement.stolen + measurement.reading,
            "{measurement:?}"
        );
        // The interference contains at least the neighbour's time. In a guest the interference is hardly longer.
        let time_apart = measurement.reading + TICK.as_secs_f64();
        assert!(
            measurement.neighbour_usage <= seconds + error_seconds + time_apart,
            "{measurement:?}"
        );
        if is_own_guest() {
            assert!(
                seconds - error_seconds
                    <= measurement.neighbour_usage + 0.02 * measurement.wall + time_apart,
                "{measurement:?}"
            );
        }
    }
    // The machine's host may take most of the time.
    assert!(
        with_neighbour.neighbour_usage > 0.1 * (with_neighbour.wall - with_neighbour.stolen),
        "the neighbour ran: {with_neighbour:?}"
    );
    assert!(alone.neighbour_usage < 0.001, "{alone:?}");
}
