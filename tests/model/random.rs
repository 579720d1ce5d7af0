//! Longer random histories on a larger machine; proptest shrinks a history that breaks a rule.

use pinfold::pin::Step;
use proptest::prelude::*;
use proptest::test_runner::{RngAlgorithm, TestError, TestRng, TestRunner};

use super::agent::{Setup, Shape};
use super::events::Menu;
use super::kernel::{KINDS, KernelKind};
use super::machine::{Move, describe};
use super::mutants::trimmed_first;
use super::requests::{Act, Agent, told};
use super::{ALL, PLAIN, WIDE};

/// The choice of the next move among the possible moves.
#[derive(Debug, Clone, Copy)]
enum Choice {
    /// Something by the kubelet's hand.
    Live(u16),
    Happen(u16),
    Reconcile,
    Wake,
    Kill(u8),
    Interrupt(u8, u16),
    /// The agent is killed after this number of steps for a request.
    KillIn(u8, u16),
    /// A node turn yields to a request.
    Yield(u8, u16),
    /// A pod's sandbox runs before the API server describes the pod.
    Early(u16),
    /// The agent restarts before the API server's list.
    BeforeList,
    List,
}

/// A quarter of the usual cases: each is a long history. `PROPTEST_CASES` asks for more.
fn config() -> ProptestConfig {
    let usual = ProptestConfig::default();
    ProptestConfig {
        cases: usual.cases / 4,
        failure_persistence: None,
        ..usual
    }
}

fn choice() -> impl Strategy<Value = Choice> {
    prop_oneof![
        8 => any::<u16>().prop_map(Choice::Live),
        3 => any::<u16>().prop_map(Choice::Happen),
        4 => Just(Choice::Reconcile),
        1 => Just(Choice::Wake),
        2 => any::<u8>().prop_map(Choice::Kill),
        2 => (any::<u8>(), any::<u16>()).prop_map(|(after, event)| Choice::Interrupt(after, event)),
    ]
}

/// Choices for an agent that lives on, and for a runtime that waits for answers.
fn choice_of_requests() -> impl Strategy<Value = Choice> {
    prop_oneof![
        10 => any::<u16>().prop_map(Choice::Live),
        3 => any::<u16>().prop_map(Choice::Happen),
        3 => Just(Choice::Reconcile),
        1 => Just(Choice::Wake),
        1 => (0_u8..8).prop_map(Choice::Kill),
        2 => (0_u8..8, any::<u16>()).prop_map(|(after, request)| Choice::KillIn(after, request)),
        3 => (0_u8..24, any::<u16>()).prop_map(|(at, request)| Choice::Yield(at, request)),
    ]
}

/// The same with an API server that is slower than the runtime.
fn choice_of_late_descriptions() -> impl Strategy<Value = Choice> {
    prop_oneof![
        12 => choice_of_requests(),
        2 => any::<u16>().prop_map(Choice::Early),
        1 => Just(Choice::BeforeList),
        1 => Just(Choice::List),
    ]
}

fn run_requests(mut agent: Agent<'_>, menu: Menu, choices: &[Choice]) -> Result<(), TestCaseError> {
    fn one<T: Copy>(all: &[T], number: u16) -> Option<T> {
        let at = usize::from(number).checked_rem(all.len())?;
        all.get(at).copied()
    }
    let mut acts: Vec<Act> = Vec::new();
    for choice in choices {
        let (own, others) = agent.acts(menu);
        let requests = agent.requests();
        let act = match choice {
            Choice::Live(number) => one(&own, *number),
            Choice::Happen(number) => one(&others, *number),
            Choice::Kill(after) => Some(Act::Kill(usize::from(*after))),
            Choice::KillIn(after, number) => {
                one(&requests, *number).map(|request| Act::KillIn(usize::from(*after), request))
            }
            Choice::Yield(at, number) => {
                one(&requests, *number).map(|request| Act::Yield(usize::from(*at), request))
            }
            Choice::Wake => Some(Act::Wake),
            Choice::Early(number) => {
                let runs = own.iter().filter_map(|act| match act {
                    Act::Run(pod) => Some(Act::RunEarly(*pod)),
                    _ => None,
                });
                one(&runs.collect::<Vec<_>>(), *number)
            }
            Choice::BeforeList => Some(Act::RestartBeforeList),
            Choice::List => Some(Act::List),
            _ => None,
        };
        let act = act.unwrap_or(Act::Reconcile);
        acts.push(act);
        let went = agent.go(act).and_then(|_| agent.quiet());
        went.map_err(|rule| TestCaseError::fail(told(&rule, &acts, &agent.world)))?;
    }
    let settled = agent.settle();
    settled.map_err(|rule| TestCaseError::fail(told(&rule, &acts, &agent.world)))
}

fn setup_of_requests(kind: KernelKind) -> Setup {
    let shapes = [
        Shape::Two(2, 1),
        Shape::Init(2),
        Shape::InitBesideSidecar(1),
        Shape::Shared,
    ];
    Setup::new(kind, 8, 2, &shapes)
}

fn run_requests_on(kind: KernelKind, menu: Menu, choices: &[Choice]) -> Result<(), TestCaseError> {
    let setup = setup_of_requests(kind);
    let run = run_requests(Agent::new(&setup), menu, choices);
    run.map_err(|error| TestCaseError::fail(format!("{kind:?}: {error}")))
}

fn run(
    kind: KernelKind,
    menu: Menu,
    mutate: fn(Vec<Step>) -> Vec<Step>,
    choices: &[Choice],
) -> Result<(), TestCaseError> {
    let shapes = [
        Shape::Two(2, 1),
        Shape::Init(2),
        Shape::Sidecar(1),
        Shape::Shared,
    ];
    let mut setup = Setup::new(kind, 8, 2, &shapes);
    setup.mutate = mutate;
    let mut world = setup.world();
    let mut moves: Vec<Move> = Vec::new();
    for choice in choices {
        let events = world.events(&setup, menu);
        let steps = setup.plan(&world).steps.len();
        let event = |number: u16| events[usize::from(number) % events.len()];
        let after = |number: u8| 1 + usize::from(number) % (steps - 1);
        let step = match choice {
            Choice::Live(number) => {
                let events = world.events(&setup, PLAIN);
                Move::Happen(events[usize::from(*number) % events.len()])
            }
            Choice::Happen(number) => Move::Happen(event(*number)),
            Choice::Kill(number) if steps > 1 => Move::Kill(after(*number)),
            Choice::Interrupt(number, what) if steps > 1 => {
                Move::Interrupt(after(*number), event(*what))
            }
            Choice::Wake => Move::Wake,
            _ => Move::Reconcile,
        };
        moves.push(step);
        let before = world.clone();
        let broken = setup
            .go(&mut world, step)
            .and_then(|_| setup.check_settled(&world));
        if let Err(rule) = broken {
            let moves: Vec<String> = moves.iter().map(|step| format!("  {step}")).collect();
            let (moves, before) = (moves.join("\n"), describe(&before));
            return Err(TestCaseError::fail(format!(
                "{kind:?}: {rule}\n{moves}\nbefore the last:\n{before}"
            )));
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn histories_on_kernels_with_partitions(choices in prop::collection::vec(choice(), 1..60)) {
        for kind in [KernelKind::Early612, KernelKind::Late612, KernelKind::Linux72] {
            run(kind, WIDE, |steps| steps, &choices)?;
        }
    }

    #[test]
    fn histories_on_kernels_without(choices in prop::collection::vec(choice(), 1..60)) {
        let without_hotplug = Menu { hotplug: false, ..WIDE };
        run(KernelKind::V1, without_hotplug, |steps| steps, &choices)?;
        run(KernelKind::V2, WIDE, |steps| steps, &choices)?;
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn requests_on_kernels_with_partitions(
        choices in prop::collection::vec(choice_of_requests(), 1..40)
    ) {
        for kind in [KernelKind::Early612, KernelKind::Late612, KernelKind::Linux72] {
            run_requests_on(kind, WIDE, &choices)?;
        }
    }

    #[test]
    fn requests_on_kernels_without(
        choices in prop::collection::vec(choice_of_requests(), 1..40)
    ) {
        run_requests_on(KernelKind::V1, WIDE, &choices)?;
        run_requests_on(KernelKind::V2, WIDE, &choices)?;
    }

    /// Nobody but the kubelet and the runtime does anything: each start is held to the strictest rules.
    #[test]
    fn requests_without_foreign_writes(
        choices in prop::collection::vec(choice_of_requests(), 1..40)
    ) {
        for kind in KINDS {
            run_requests_on(kind, PLAIN, &choices)?;
        }
    }
}

proptest! {
    #![proptest_config(config())]

    /// Only the kubelet, the runtime and a slow API server act.
    #[test]
    fn late_descriptions(choices in prop::collection::vec(choice_of_late_descriptions(), 1..40)) {
        for kind in KINDS {
            run_requests_on(kind, PLAIN, &choices)?;
        }
    }

    /// The same without an API server: nothing but the runtime describes the pods.
    #[test]
    fn descriptions_of_the_runtime_alone(
        choices in prop::collection::vec(choice_of_late_descriptions(), 1..40)
    ) {
        for kind in KINDS {
            let setup = setup_of_requests(kind);
            let run = run_requests(Agent::with_runtime_alone(&setup), PLAIN, &choices);
            run.map_err(|error| TestCaseError::fail(format!("{kind:?}: {error}")))?;
        }
    }
}

/// A foreign program confined pod 2 to a CPU of pod 1, so the kernel refuses pod 1's CPUs. The
/// first reconcile frees a CPU, the second gives it to pod 2 and so ends the block, and the third
/// gives pod 1 its CPUs.
#[test]
fn a_block_that_a_reconcile_ends() {
    use Choice::{Happen, Kill, Live, Reconcile};
    let choices = [
        Live(41666),
        Live(27042),
        Live(21472),
        Kill(67),
        Live(33462),
        Happen(20793),
        Live(52553),
        Live(23223),
        Live(30915),
        Reconcile,
        Live(1045),
    ];
    run(KernelKind::Early612, ALL, |steps| steps, &choices).unwrap();
}

/// A foreign program wrote all CPUs to another container of the pod, then a CPU went offline. The new set contained the offline CPU,
/// which the next plan removed again.
#[test]
fn offline_cpus_are_not_written_to_be_taken_away() {
    use Choice::{Happen, Interrupt, Live, Reconcile};
    let choices = [
        Live(21910),
        Live(11591),
        Live(1256),
        Live(19497),
        Live(22871),
        Live(29480),
        Live(26936),
        Live(34441),
        Live(655),
        Happen(57956),
        Live(18839),
        Live(6323),
        Live(29293),
        Reconcile,
        Live(34987),
        Happen(19046),
        Live(32008),
        Interrupt(164, 53626),
        Live(35122),
        Happen(21276),
        Reconcile,
        Live(49025),
        Live(63329),
        Live(52397),
    ];
    run(KernelKind::Early612, ALL, |steps| steps, &choices).unwrap();
}

/// A foreign program cleared the top cgroup's exclusive CPUs below a live partition and wrote all
/// CPUs to the pod. If the partition ended before the exclusive CPUs are back, its CPUs would be
/// lost until the next boot.
#[test]
fn exclusive_cpus_return_before_a_partition_ends() {
    use Choice::{Happen, Live, Reconcile};
    let choices = [
        Live(27144),
        Live(11867),
        Happen(46420),
        Reconcile,
        Live(28196),
        Happen(36580),
        Happen(7057),
        Happen(52180),
    ];
    run(KernelKind::Early612, ALL, |steps| steps, &choices).unwrap();
}

/// A foreign program narrowed the pod of a container without a record. The container may not run on the CPUs of a later container of the pod.
#[test]
fn a_foreign_set_of_a_pod_leaves_its_containers_apart() {
    use Choice::{Happen, Interrupt, Live, Reconcile};
    let choices = [
        Live(32150),
        Reconcile,
        Live(43024),
        Live(30591),
        Happen(37880),
        Interrupt(0, 10704),
        Live(14441),
        Happen(14114),
        Live(19205),
        Live(34169),
        Live(0),
    ];
    run(KernelKind::V2, ALL, |steps| steps, &choices).unwrap();
}

/// If a planner trims cgroups above partitions before those below, a short history shows it.
#[test]
fn a_mutant_is_detected_and_shrunk() {
    let histories = prop::collection::vec(choice(), 1..60);
    let mut runner =
        TestRunner::new_with_rng(config(), TestRng::deterministic_rng(RngAlgorithm::ChaCha));
    match runner.run(&histories, |choices| {
        run(KernelKind::Early612, PLAIN, trimmed_first, &choices)
    }) {
        Err(TestError::Fail(_, choices)) => assert!(choices.len() < 12, "{choices:?}"),
        other => panic!("the mutant lives: {other:?}"),
    }
}
