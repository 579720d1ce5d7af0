//! The steps of thirty histories, compared with recorded steps: six histories on five models of the kernel.
//!
//! The files in `tests/data/steps` name the effect of each step on the kernel. They contain no
//! names from the code, so renames leave them unchanged. `PINFOLD_RECORD=1` writes them anew, and a
//! reviewer then reads the difference.

use std::fmt::Write as _;

use pinfold::pin::Step;

use super::agent::{ModelEnforcement, Setup, Shape};
use super::events::Event;
use super::kernel::{KernelKind, State, leaf_node, path, pod_node, set};
use super::machine::Move;

const KERNELS: [(KernelKind, &str); 5] = [
    (KernelKind::V1, "cgroup-v1"),
    (KernelKind::V2, "linux-6.1"),
    (KernelKind::Early612, "linux-6.12.107"),
    (KernelKind::Late612, "linux-6.12.117"),
    (KernelKind::Linux72, "linux-7.2"),
];

/// Two containers with 2 and 1 CPUs; an init container with 2 CPUs before a container; a sidecar beside a container with 1
/// CPU; half a CPU.
const SHAPES: [Shape; 4] = [
    Shape::Two(2, 1),
    Shape::Init(2),
    Shape::Sidecar(1),
    Shape::Shared,
];

fn compare(name: &str, histories: impl Fn(KernelKind) -> Vec<Move>) {
    let folder = crate::repository::here("tests/data/steps");
    let mut wrong = Vec::new();
    for (kind, kernel) in KERNELS {
        let file = folder.join(format!("{name}.{kernel}.txt"));
        let now = record(kind, &histories(kind));
        if std::env::var_os("PINFOLD_RECORD").is_some() {
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(&file, &now).unwrap();
            continue;
        }
        let before = std::fs::read_to_string(&file)
            .unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        if before != now {
            wrong.push(format!("{}:\n{now}", file.display()));
        }
    }
    assert!(
        wrong.is_empty(),
        "the steps differ from the recorded ones\n{}",
        wrong.join("\n")
    );
}

/// The text of a history: each event, and the steps of each reconcile.
fn record(kind: KernelKind, moves: &[Move]) -> String {
    let setup = Setup::new(kind, 8, 2, &SHAPES);
    let mut world = setup.world();
    let mut text = String::new();
    for to in moves {
        writeln!(text, "{}", said(to)).unwrap();
        if !matches!(to, Move::Wake) {
            world.refused.clear();
        }
        let planned = setup.plan(&world);
        if let Err(broken) = setup.go_with(&mut world, *to, &planned) {
            panic!("{broken}\nafter\n{text}");
        }
        if !matches!(to, Move::Happen(_)) {
            let most = if let Move::Kill(most) = to {
                *most
            } else {
                usize::MAX
            };
            for step in planned.steps.iter().take(most) {
                writeln!(text, "    {}", operation(step)).unwrap();
            }
        }
    }
    writeln!(text, "effective in the end").unwrap();
    for node in world.kernel.there() {
        let cpus = set(world.kernel.effective(node));
        let state = match world.kernel.get(node).unwrap().state {
            State::Member => "member".to_owned(),
            State::Live(kind) => kind.to_string(),
            State::Invalid(reason) => format!("invalid ({reason})"),
        };
        writeln!(text, "    {} {cpus} {state}", path(node)).unwrap();
    }
    text
}

fn said(to: &Move) -> String {
    match to {
        Move::Happen(event) => format!("{event:?}"),
        Move::Reconcile => "reconcile".to_owned(),
        Move::Wake => "reconcile without the timer".to_owned(),
        Move::Kill(steps) => format!("reconcile, killed after {steps} steps"),
        Move::Interrupt(steps, event) => format!("reconcile, and after {steps} steps {event:?}"),
    }
}

/// A step as an operation on the kernel.
fn operation(step: &Step) -> String {
    match step {
        Step::Make { path } => format!("mkdir {path}"),
        Step::Remove { path } => format!("rmdir {path}"),
        Step::Record { path, record: None } => format!("removexattr {path}"),
        Step::Record {
            path,
            record: Some(mark),
        } => {
            let owners = mark
                .assignment
                .entries()
                .map(|(name, cpus)| format!(" {}={cpus}", name.unwrap_or("idle")));
            let quota = mark.before.quota.map(|quota| format!(" quota {quota}"));
            format!(
                "setxattr {path}{}, before: cpus {:?}{}",
                owners.collect::<String>(),
                mark.before.cpus.to_string(),
                quota.unwrap_or_default()
            )
        }
        Step::Cpus { path, cpus, .. } => format!("{path} cpuset.cpus={cpus}"),
        Step::Exclusive {
            path,
            cpus,
            in_force,
        } => {
            let effective = in_force.as_ref().map(|cpus| format!(", effective {cpus}"));
            format!(
                "{path} cpuset.cpus.exclusive={cpus}{}",
                effective.unwrap_or_default()
            )
        }
        Step::Partition {
            path,
            kind,
            in_force,
        } => {
            let effective = in_force.as_ref().map(|cpus| format!(", effective {cpus}"));
            format!(
                "{path} cpuset.cpus.partition={kind}{}",
                effective.unwrap_or_default()
            )
        }
        Step::Narrowed { path, earlier } => {
            let earlier = earlier.as_ref().map(ToString::to_string);
            format!("{path} earlier {}", earlier.unwrap_or_default())
        }
        Step::Memory { path, numa } => format!("{path} cpuset.mems={numa}"),
        Step::Quota { path, quota } => format!("{path} cpu.max={quota}"),
    }
}

/// A container's cgroup appears, and the pod's status names the container.
fn begins(pod: usize, container: usize) -> [Move; 2] {
    [Event::Appear(pod, container), Event::Name(pod, container)].map(Move::Happen)
}

fn happen<const N: usize>(events: [Event; N]) -> [Move; N] {
    events.map(Move::Happen)
}

/// Both containers of the first pod run on the assigned CPUs.
fn one_pod_runs() -> Vec<Move> {
    let mut moves = happen([Event::Create(0)]).to_vec();
    moves.extend(begins(0, 0));
    moves.extend(begins(0, 1));
    moves.push(Move::Reconcile);
    moves
}

#[test]
fn pods_come_and_go() {
    compare("pods-come-and-go", |_| {
        let mut moves = happen([Event::Create(0)]).to_vec();
        for container in [0, 1] {
            moves.extend(begins(0, container));
            moves.push(Move::Reconcile);
        }
        moves.extend(happen([Event::Create(3)]));
        moves.extend(begins(3, 0));
        moves.push(Move::Reconcile);
        for event in [Event::End(0, 0), Event::Remove(0), Event::Forget(3)] {
            moves.extend([Move::Happen(event), Move::Reconcile]);
        }
        moves
    });
}

#[test]
fn an_init_container_and_the_next_container() {
    compare("init-container", |_| {
        let mut moves = happen([Event::Create(1)]).to_vec();
        moves.extend(begins(1, 0));
        moves.push(Move::Reconcile);
        moves.extend(happen([Event::End(1, 0)]));
        moves.extend(begins(1, 1));
        moves.extend([
            Move::Reconcile,
            Move::Happen(Event::Remove(1)),
            Move::Reconcile,
        ]);
        moves
    });
}

#[test]
fn a_container_beside_a_sidecar_begins_anew() {
    compare("sidecar", |_| {
        let mut moves = happen([Event::Create(2)]).to_vec();
        moves.extend(begins(2, 0));
        moves.extend(begins(2, 1));
        moves.push(Move::Reconcile);
        moves.extend([Move::Happen(Event::End(2, 1)), Move::Reconcile]);
        // The cgroup exists before the pod's status names the container.
        for to in begins(2, 1) {
            moves.extend([to, Move::Wake]);
        }
        moves.push(Move::Reconcile);
        moves
    });
}

#[test]
fn a_resize_up_and_down() {
    compare("resize", |_| {
        let mut moves = one_pod_runs();
        for _ in 0..2 {
            moves.extend([Move::Happen(Event::Resize(0)), Move::Reconcile]);
        }
        moves
    });
}

#[test]
fn foreign_writes_and_a_killed_agent() {
    compare("writes-of-others", |_| {
        let mut moves = one_pod_runs();
        let leaf = leaf_node(0, 0, 0);
        for event in [
            Event::Cpus(leaf, 0xff),
            Event::Member(leaf),
            Event::Clear(pod_node(0)),
        ] {
            moves.extend([Move::Happen(event), Move::Wake, Move::Reconcile]);
        }
        moves.extend(happen([Event::Create(2)]));
        moves.extend(begins(2, 0));
        moves.extend(begins(2, 1));
        moves.extend([Move::Kill(2), Move::Kill(4), Move::Reconcile]);
        moves.extend(happen([Event::Create(3)]));
        moves.extend(begins(3, 0));
        moves.push(Move::Happen(Event::Resize(0)));
        moves.extend([Move::Interrupt(1, Event::End(0, 1)), Move::Reconcile]);
        moves
    });
}

#[test]
fn cpus_and_configurations_that_change() {
    compare("hotplug-and-configuration", |kind| {
        let mut moves = one_pod_runs();
        // With cgroup v1 the kernel does not give a CPU that was offline back to the earlier cgroups.
        if kind != KernelKind::V1 {
            for event in [Event::Offline(7), Event::Online(7)] {
                moves.extend([Move::Happen(event), Move::Reconcile]);
            }
        }
        let usual = if kind.has_partitions() {
            ModelEnforcement::Partition
        } else {
            ModelEnforcement::Cpuset
        };
        for wanted in [ModelEnforcement::Observe, ModelEnforcement::Cpuset, usual] {
            moves.extend([Move::Happen(Event::Enforce(wanted)), Move::Reconcile]);
        }
        moves.extend([Move::Happen(Event::Reserve), Move::Reconcile]);
        moves
    });
}

#[test]
fn recorded_histories_contain_every_kind_of_step() {
    let folder = crate::repository::here("tests/data/steps");
    for (_, kernel) in KERNELS {
        let files = std::fs::read_dir(&folder)
            .unwrap()
            .map(|entry| entry.unwrap().path());
        let ends = format!(".{kernel}.txt");
        let all: String = files
            .filter(|file| file.to_string_lossy().ends_with(&ends))
            .map(|file| std::fs::read_to_string(file).unwrap())
            .collect();
        for word in ["setxattr ", "cpuset.cpus=", "cpu.max="] {
            assert!(all.contains(word), "{kernel}: {word}");
        }
        let partitions = kernel.starts_with("linux-6.12") || kernel.starts_with("linux-7");
        assert_eq!(
            all.contains("cpuset.cpus.partition=root"),
            partitions,
            "{kernel}"
        );
    }
}
