//! Foreign time against what spinning processes used by their own cgroups' word.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use pinfold::cpu::CpuSet;
use pinfold::host::busy::{CpuSample, CpuTimes, Sampler, TICK, UNIT};
use pinfold::host::cgroup::Usage;
use pinfold::host::spawn::{Launcher, Process, Spawn, Stderr};
use pinfold::pin::interference::{Interference, InterferenceTracker};

use super::kernel::{Kernel, kernel_tests};
use super::machine::is_ours;

/// How long each case is watched.
const SPELL: Duration = Duration::from_secs(4);

fn spin(kernel: &Kernel, launcher: &Launcher, path: &str) -> Process {
    let spawn = Spawn {
        program: "/bin/sh".into(),
        args: vec!["-c".into(), "while :; do :; done".into()],
        env: BTreeMap::new(),
        cgroup_procs: kernel.cgroups.procs_files(path),
        netns: None,
        stderr: Stderr::Null,
    };
    launcher.spawn(spawn).unwrap()
}

/// CPU seconds on these CPUs.
fn seconds(usage: &Usage, cpus: &CpuSet) -> f64 {
    match usage {
        Usage::Total(time) => time.as_secs_f64(),
        Usage::PerCpu(times) => cpus
            .iter()
            .map(|cpu| times[cpu as usize].as_secs_f64())
            .sum(),
    }
}

/// One watched spell, and what else is known of it.
#[derive(Debug)]
struct Spell {
    foreign: Interference,
    owner: f64,
    /// What the other cgroup used in about the same time.
    other: f64,
    /// Time in which the CPU was not idle, by `/proc/stat`.
    busy: f64,
    stolen: f64,
    wall: f64,
    /// How long reading took, at both ends.
    reading: f64,
}

struct Reading {
    foreign: Interference,
    usage: Usage,
    other: Usage,
    first: CpuSample,
    second: CpuSample,
}

fn watch(kernel: &Kernel, owner: &str, other: &str, cpus: &CpuSet) -> Spell {
    let mut sampler = Sampler::new(Path::new("/"));
    let mut times = InterferenceTracker::default();
    let mut note = || {
        sampler.prepare(&kernel.cgroups).unwrap();
        let first = sampler.sample(&kernel.cgroups).unwrap();
        let usage = kernel.cgroups.usage(owner).unwrap().unwrap();
        let other = kernel.cgroups.usage(other).unwrap().unwrap();
        let second = sampler.sample(&kernel.cgroups).unwrap();
        let foreign = times.note(owner, cpus, &usage, (&first, &second));
        Reading {
            foreign,
            usage,
            other,
            first,
            second,
        }
    };
    let start = note();
    let began = Instant::now();
    let mut last = Interference::default();
    while began.elapsed() < SPELL {
        std::thread::sleep(Duration::from_millis(200));
        let now = note().foreign;
        assert!(now.seconds >= last.seconds && now.error_seconds >= last.error_seconds);
        last = now;
    }
    let end = note();
    let took = |reading: &Reading| (reading.second.ended - reading.first.began).as_secs_f64();
    let wall = (end.second.ended - start.second.ended).as_secs_f64();
    let grown = |of: fn(&CpuTimes) -> Duration| {
        let sum = |look: &CpuSample| {
            cpus.iter()
                .map(|cpu| of(&look.cpus[&cpu]))
                .sum::<Duration>()
        };
        (sum(&end.second) - sum(&start.second)).as_secs_f64()
    };
    let spell = Spell {
        foreign: end.foreign,
        owner: seconds(&end.usage, cpus) - seconds(&start.usage, cpus),
        other: seconds(&end.other, cpus) - seconds(&start.other, cpus),
        busy: wall * cpus.len() as f64 - grown(|clock| clock.idle),
        stolen: grown(|clock| clock.steal),
        wall,
        reading: took(&start) + took(&end),
    };
    println!("{spell:.4?}");
    spell
}

#[test]
fn a_neighbour_on_the_owners_cpu_is_seen_and_nobody_is_not() {
    let Some(kernel) = kernel_tests() else { return };
    let mut tree = kernel.tree();
    let (own, cpus) = (tree.pod("", "own"), kernel.last());
    let owner = tree.container(&own, "0aaa");
    let foreign = tree.pod("", "foreign");
    let other = tree.container(&foreign, "0bbb");
    for path in [&owner, &other] {
        kernel.write_cpus(path, &cpus);
    }
    let launcher = Launcher::new().unwrap();
    let sampled = Sampler::new(Path::new("/")).samples_idle();
    let _spinner = spin(&kernel, &launcher, &owner);
    std::thread::sleep(Duration::from_millis(300));
    let alone = watch(&kernel, &owner, &other, &cpus);
    let neighbour = spin(&kernel, &launcher, &other);
    std::thread::sleep(Duration::from_millis(300));
    let both = watch(&kernel, &owner, &other, &cpus);
    drop(neighbour);
    tree.remove(&other);

    for spell in [&alone, &both] {
        let Interference {
            seconds,
            error_seconds,
        } = spell.foreign;
        // The two ways of counting agree, whoever else runs here: all that was not idle was the owner's or foreign.
        let rest = spell.busy - spell.owner;
        let slack = error_seconds + spell.stolen + spell.reading + 4.0 * UNIT.as_secs_f64();
        assert!(
            (seconds - rest).abs() <= slack,
            "{spell:?}: by the clock {rest}"
        );
        // Where idle time is sampled, turns cast doubt on it, and one may last.
        let doubt = if sampled { 0.5 } else { 0.06 };
        assert!(
            error_seconds <= doubt + spell.stolen + spell.reading,
            "{spell:?}"
        );
        // At least the neighbour's time is foreign, and on a machine of our own hardly more than that.
        let apart = spell.reading + TICK.as_secs_f64();
        assert!(spell.other <= seconds + error_seconds + apart, "{spell:?}");
        if is_ours() {
            assert!(
                seconds - error_seconds <= spell.other + 0.02 * spell.wall + apart,
                "{spell:?}"
            );
        }
    }
    assert!(
        both.other > 0.1 * both.wall,
        "the neighbour had its turn: {both:?}"
    );
    assert!(alone.other < 0.001, "{alone:?}");
}
