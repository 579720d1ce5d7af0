//! The agent as a state machine: pods come, grow and go, foreign programs write, CPUs go offline, the agent is killed
//! between any two steps. In every order, each CPU has exactly one owner, and running containers stay in place.
//!
//! The turns of the reconciler are the real turns of a node and of a pod, and the kernel is a model
//! that agrees with observations of real ones. An agent either begins anew with each turn, or lives
//! on while the container runtime waits for answers: then a turn yields at every point, and the
//! agent is killed after every step. The tests explore all small histories, and larger ones at
//! random; `PINFOLD_MODEL_EVENTS=5` and `PROPTEST_CASES=4000` go further.
//!
//! | what holds | tests |
//! |---|---|
//! | In every small history, each CPU has one owner and running containers stay. | `explore`, `requests_tests` |
//! | The same in long random histories. | `random` |
//! | Late, poor and missing descriptions take nothing away. | `late` |
//! | Growth and shrinks, with and without a delay, while no partition is refused: each program runs on CPUs that its live file names. | `resize` |
//! | Beside a kubelet that chooses the CPUs, its choice is in force, and nothing moves when it stops. | `kubelet` |
//! | The model agrees with real kernels. | `facts`, `kernel` |
//! | The search finds the mistakes that planners make. | `mutants` |
//! | Steps stay as recorded unless somebody means to change them. | `recorded` |

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

#[path = "model/agent.rs"]
mod agent;
#[path = "model/events.rs"]
mod events;
#[path = "model/explore.rs"]
mod explore;
#[path = "model/facts.rs"]
mod facts;
#[path = "model/kernel.rs"]
mod kernel;
#[path = "model/kubelet.rs"]
mod kubelet;
#[path = "model/machine.rs"]
mod machine;
#[path = "model/mutants.rs"]
mod mutants;
#[path = "model/node.rs"]
mod node;
#[path = "model/random.rs"]
mod random;
#[path = "model/recorded.rs"]
mod recorded;
#[path = "support/repository.rs"]
mod repository;

#[path = "model/late.rs"]
mod late;
#[path = "model/requests.rs"]
mod requests;
#[path = "model/requests_tests.rs"]
mod requests_tests;
#[path = "model/resize.rs"]
mod resize;

use agent::{Setup, Shape};
use events::{Event, Menu};
use explore::{Bounds, explore};
use kernel::KernelKind;
use machine::Move;

const ALL: Menu = Menu {
    foreign: true,
    limits: false,
    hotplug: true,
    configuration: true,
};
/// Only the kubelet acts.
const PLAIN: Menu = Menu {
    foreign: false,
    limits: false,
    hotplug: false,
    configuration: false,
};
/// An administrator limits the pods' tree, too. Only random histories have so many kinds of events.
const WIDE: Menu = Menu {
    limits: true,
    ..ALL
};
/// On cgroup v1 a CPU that was offline returns to its earlier cgroups through notes, which only an agent that lives on can make.
const ALL_V1: Menu = Menu {
    hotplug: false,
    ..ALL
};

/// Existing pods whose containers the status names, and which have their entitlement.
fn running(setup: &Setup, pods: &[usize]) -> Vec<Move> {
    let mut moves = Vec::new();
    for pod in pods {
        moves.push(Move::Happen(Event::Create(*pod)));
        let containers = setup.shapes[*pod].containers();
        for (number, (kind, _)) in containers.iter().enumerate() {
            let done = *kind == pinfold::pod::ContainerKind::Init;
            if !done {
                moves.push(Move::Happen(Event::Appear(*pod, number)));
                moves.push(Move::Happen(Event::Name(*pod, number)));
            }
        }
        moves.push(Move::Reconcile);
    }
    moves
}

fn check(setup: &Setup, starts: &[Vec<Move>], menu: Menu, bounds: Bounds) {
    if let Err(broken) = explore(setup, starts, menu, bounds) {
        let broken: Vec<String> = broken.iter().map(ToString::to_string).collect();
        panic!("{}", broken.join("\n\n"));
    }
}

/// From an empty node, and from two running pods.
fn check_both(kind: KernelKind, shapes: [Shape; 2], menu: Menu) {
    let setup = Setup::new(kind, 4, 1, &shapes);
    let longer = std::env::var("PINFOLD_MODEL_EVENTS")
        .ok()
        .and_then(|number| number.parse().ok());
    check(
        &setup,
        &[vec![]],
        menu,
        Bounds {
            events: longer.unwrap_or(4),
            kills: 1,
            interruptions: 0,
        },
    );
    let last = setup.shapes[0].containers().len() - 1;
    let begins = [
        Event::Create(0),
        Event::Appear(0, last),
        Event::Name(0, last),
    ];
    check(
        &setup,
        &[begins.map(Move::Happen).to_vec()],
        menu,
        Bounds {
            events: 2,
            kills: 1,
            interruptions: 0,
        },
    );
    check(
        &setup,
        &[running(&setup, &[0, 1])],
        menu,
        Bounds {
            events: 2,
            kills: 1,
            interruptions: 1,
        },
    );
}

#[test]
fn linux_6_12_107() {
    check_both(KernelKind::Early612, [Shape::One(1), Shape::Two(1, 1)], ALL);
}

#[test]
fn linux_6_12_117() {
    check_both(KernelKind::Late612, [Shape::Init(1), Shape::Two(1, 1)], ALL);
}

#[test]
fn linux_7_2() {
    check_both(KernelKind::Linux72, [Shape::Sidecar(1), Shape::One(2)], ALL);
}

#[test]
fn linux_6_1() {
    check_both(KernelKind::V2, [Shape::Sidecar(1), Shape::One(2)], ALL);
}

#[test]
fn cgroup_v1() {
    check_both(KernelKind::V1, [Shape::One(1), Shape::Two(1, 1)], ALL_V1);
}

/// Three CPUs: two pods would own all CPUs that are not reserved.
#[test]
fn too_few_cpus() {
    for kind in [KernelKind::V2, KernelKind::Late612] {
        let setup = Setup::new(kind, 3, 1, &[Shape::One(1), Shape::One(1)]);
        let mut start = running(&setup, &[0]);
        start.extend([Event::Resize(0)].map(Move::Happen));
        start.push(Move::Reconcile);
        start.extend(running(&setup, &[1]));
        let menu = Menu {
            hotplug: false,
            configuration: false,
            ..ALL
        };
        check(
            &setup,
            &[start],
            menu,
            Bounds {
                events: 3,
                kills: 1,
                interruptions: 1,
            },
        );
    }
}
