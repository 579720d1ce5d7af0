//! Histories of an agent that lives on and of a runtime that waits for answers: all short ones, and
//! some in which the agent is killed or a node turn yields at every point.

use super::agent::{ModelEnforcement, Setup, Shape, World};
use super::events::{Event, Menu};
use super::kernel::{KINDS, KernelKind, pod_node};
use super::node::Flaw;
use super::requests::{Act, Agent, Request, runs, told};
use super::{ALL, ALL_V1, PLAIN};
use Act::{Appear, Ask, End, Fail, Happen, Reconcile, Run, Unheard};
use Request::{Create, Start};

pub(crate) fn begin<const N: usize>(acts: [Act; N]) -> Vec<Act> {
    let mut all = vec![Reconcile];
    all.extend(acts);
    all
}

pub(crate) fn and(mut acts: Vec<Act>, more: impl IntoIterator<Item = Act>) -> Vec<Act> {
    acts.extend(more);
    acts
}

/// Every history with this number of acts after a start.
pub(crate) fn every(setup: &Setup, start: &[Act], menu: Menu, length: usize) -> usize {
    let mut level = vec![start.to_vec()];
    let mut count = 0;
    for _ in 0..=length {
        let mut next = Vec::new();
        for acts in level {
            count += 1;
            let agent = Agent::after(setup, &acts).unwrap_or_else(|broken| panic!("{broken}"));
            let quiet = agent.quiet();
            quiet.unwrap_or_else(|rule| panic!("{}", told(&rule, &acts, &agent.world)));
            let (own, others) = agent.acts(menu);
            let elapse = setup.delays.then_some(Act::Elapse);
            for act in own
                .into_iter()
                .chain(others)
                .chain([Reconcile])
                .chain(elapse)
            {
                if acts.last() != Some(&act) {
                    next.push(and(acts.clone(), [act]));
                }
            }
            let mut agent = agent;
            let settled = agent.settle();
            settled.unwrap_or_else(|rule| panic!("{}", told(&rule, &acts, &agent.world)));
        }
        level = next;
    }
    count
}

/// Histories that end where a request and a node turn may meet: the start, and the requests then.
fn histories() -> Vec<(Vec<Act>, Vec<Request>)> {
    let one = and(begin([Run(0)]), runs(0, 0));
    let both = and(one.clone(), [Run(1)].into_iter().chain(runs(1, 0)));
    let shared = |acts: Vec<Act>| and(acts, [Run(2)].into_iter().chain(runs(2, 0)));
    let third = and(both.clone(), [Run(3)]);
    vec![
        // A pod is created beside a pod that has just begun.
        (and(one.clone(), [Run(1)]), vec![Create(1, 0), Create(1, 1)]),
        // A shared container runs on the CPUs of a new owner.
        (
            and(shared(begin([Run(0)])), [Ask(Create(0, 0)), Appear(0, 0)]),
            vec![Start(0, 0)],
        ),
        // No request arrived for the first pod: a node turn assigns the CPUs.
        (
            and(begin([Run(0), Run(1)]), [Unheard(0, 0), Appear(0, 0)]),
            vec![Create(1, 0), Start(0, 0)],
        ),
        // An owner has gone: the shared containers get its CPUs, which a creation may want.
        (
            and(
                and(shared(both.clone()), [Reconcile, Run(3)]),
                and(
                    runs(3, 0).to_vec(),
                    [Reconcile, Happen(Event::Remove(1)), Run(1)],
                ),
            ),
            vec![Create(1, 0)],
        ),
        // Owners shrink and grow.
        (
            and(
                third.clone(),
                [Happen(Event::Resize(0)), Happen(Event::Resize(1))],
            ),
            vec![Create(3, 0), Create(1, 1)],
        ),
        // A creation has failed.
        (
            and(third, [Ask(Create(1, 1)), Fail(1, 1), End(1, 0)]),
            vec![Create(3, 0)],
        ),
    ]
}

fn setup(kind: KernelKind) -> Setup {
    let shapes = [
        Shape::One(2),
        Shape::Two(1, 1),
        Shape::Shared,
        Shape::Shared,
    ];
    Setup::new(kind, 8, 2, &shapes)
}

fn ends(setup: &Setup, acts: &[Act]) -> World {
    let mut agent = Agent::after(setup, acts).unwrap_or_else(|broken| panic!("{broken}"));
    let settled = agent.settle();
    settled.unwrap_or_else(|rule| panic!("{}", told(&rule, acts, &agent.world)));
    agent.world
}

#[test]
fn every_short_history_of_requests() {
    let mut count = 0;
    for kind in KINDS {
        let shapes = [Shape::One(1), Shape::Two(1, 1), Shape::Shared];
        let setup = Setup::new(kind, 5, 1, &shapes);
        count += every(&setup, &[Reconcile, Run(0)], PLAIN, 3);
        let start = and(begin([Run(0), Run(2)]), runs(0, 0));
        count += every(&setup, &and(start, runs(2, 0)), PLAIN, 2);
        let start = and(begin([Run(1), Run(0)]), runs(1, 0));
        let menu = if kind == KernelKind::V1 { ALL_V1 } else { ALL };
        count += every(&setup, &start, menu, 1);
        let setup = Setup::new(kind, 4, 1, &[Shape::Init(1), Shape::Sidecar(1)]);
        count += every(&setup, &and(begin([Run(0)]), runs(0, 0)), PLAIN, 2);
    }
    println!("{count} histories");
}

/// A sidecar owns its CPUs while init containers run beside it, one after another, and while the sidecar restarts.
#[test]
fn every_short_history_of_init_containers_beside_a_sidecar() {
    let mut count = 0;
    for kind in KINDS {
        for shape in [Shape::InitBesideSidecar(1), Shape::InitBesideOwner] {
            let setup = Setup::new(kind, 4, 1, &[shape]);
            count += every(&setup, &begin([Run(0)]), PLAIN, 2);
            let sidecar = and(begin([Run(0)]), runs(0, 0));
            count += every(&setup, &sidecar, PLAIN, 2);
            let twice = and(and(sidecar, runs(0, 1)), [End(0, 1)]);
            count += every(&setup, &and(twice, runs(0, 1)), PLAIN, 2);
        }
    }
    println!("{count} histories");
}

/// On a node with too few CPUs, a pod turn answers some creations without CPUs. The next node turns find no CPUs either.
#[test]
fn a_creation_that_lacks_cpus_needs_no_node_turn_if_none_are_free() {
    let mut count = 0;
    for kind in KINDS {
        let shapes = [Shape::One(2), Shape::One(2), Shape::One(1)];
        let setup = Setup::new(kind, 4, 1, &shapes);
        let mut level = vec![and(begin([Run(0), Run(1), Run(2)]), runs(0, 0))];
        for _ in 0..3 {
            let mut next = Vec::new();
            for acts in level {
                let agent = Agent::after(&setup, &acts).unwrap_or_else(|broken| panic!("{broken}"));
                for request in agent.requests() {
                    count += usize::from(lacks_in_the_end(&setup, &acts, request));
                }
                let (own, others) = agent.acts(PLAIN);
                let further = own.into_iter().chain(others).chain([Reconcile]);
                next.extend(further.map(|act| and(acts.clone(), [act])));
            }
            level = next;
        }
    }
    println!("{count} creations lacked CPUs");
    assert!(count > 100, "{count}");
}

/// Whether a creation lacks CPUs after a pod turn. Fails if the next node turns find CPUs for the container.
fn lacks_in_the_end(setup: &Setup, acts: &[Act], request: Request) -> bool {
    let Create(pod, container) = request else {
        return false;
    };
    let mut agent = Agent::after(setup, acts).unwrap_or_else(|broken| panic!("{broken}"));
    let before = agent.served;
    let asked = and(acts.to_vec(), [Ask(request)]);
    let broken =
        |rule: &str, agent: &Agent<'_>| -> ! { panic!("{}", told(rule, &asked, &agent.world)) };
    let went = agent.go(Ask(request));
    went.unwrap_or_else(|rule| broken(&rule, &agent));
    let by_pod_pass = agent.served == [before[0] + 1, before[1]];
    if !by_pod_pass || !agent.lacks(pod, container) {
        return false;
    }
    for _ in 0..2 {
        let went = agent.go(Act::Wake);
        went.unwrap_or_else(|rule| broken(&rule, &agent));
    }
    if agent.owns(pod) {
        broken("the container lacked CPUs that were free", &agent);
    }
    true
}

#[test]
fn an_unanswered_creation_stays_recorded() {
    for kind in KINDS {
        let setup = setup(kind);
        let mut agent = Agent::after(&setup, &begin([Run(0), Unheard(0, 0)])).unwrap();
        assert!(agent.owns(0), "{kind:?}");
        for act in [Reconcile, Appear(0, 0), Ask(Start(0, 0))] {
            agent.go(act).unwrap();
            assert!(agent.owns(0), "{kind:?}: {act}");
        }
    }
}

#[test]
fn a_creation_that_fails_frees_the_cpus() {
    for kind in KINDS {
        let setup = setup(kind);
        for heard in [Ask(Create(0, 0)), Unheard(0, 0)] {
            let mut agent = Agent::after(&setup, &begin([Run(0), heard])).unwrap();
            agent.go(Fail(0, 0)).unwrap();
            agent.go(Reconcile).unwrap();
            assert!(!agent.owns(0), "{kind:?}");
        }
    }
}

#[test]
fn a_node_turn_yields_at_every_point() {
    let mut count = 0;
    let mut served = [0; 2];
    for kind in KINDS {
        let setup = setup(kind);
        for (start, requests) in histories() {
            for request in requests {
                let first = ends(&setup, &and(start.clone(), [Ask(request), Reconcile]));
                let last = ends(&setup, &and(start.clone(), [Reconcile, Ask(request)]));
                for at in 0.. {
                    let acts = and(start.clone(), [Act::Yield(at, request)]);
                    let mut agent = Agent::after(&setup, &start).unwrap();
                    let broken = |rule: &str, world: &World| -> ! {
                        panic!("{kind:?}: {}", told(rule, &acts, world))
                    };
                    let yielded = agent.go(Act::Yield(at, request));
                    let yielded = yielded.unwrap_or_else(|rule| broken(&rule, &agent.world));
                    if !yielded {
                        break;
                    }
                    count += 1;
                    for (sum, one) in served.iter_mut().zip(agent.served) {
                        *sum += one;
                    }
                    let settled = agent.settle();
                    settled.unwrap_or_else(|rule| broken(&rule, &agent.world));
                    if agent.world != first && agent.world != last {
                        broken("another end than without the yield", &agent.world);
                    }
                }
            }
        }
    }
    println!("{count} yields, requests served by pod and node turns: {served:?}");
    assert!(
        count > 100 && served.iter().all(|served| *served > 5),
        "{count} {served:?}"
    );
}

#[test]
fn the_agent_is_killed_after_every_step() {
    let mut count = 0;
    for kind in KINDS {
        let setup = setup(kind);
        for (start, requests) in histories() {
            let kills = requests.into_iter().map(Some).chain([None]);
            for request in kills {
                for steps in 0.. {
                    let act = match request {
                        Some(request) => Act::KillIn(steps, request),
                        None => Act::Kill(steps),
                    };
                    let acts = and(start.clone(), [act]);
                    let mut agent = Agent::after(&setup, &start).unwrap();
                    let broken = |rule: &str, world: &World| -> ! {
                        panic!("{kind:?}: {}", told(rule, &acts, world))
                    };
                    let killed = agent.go(act);
                    let killed = killed.unwrap_or_else(|rule| broken(&rule, &agent.world));
                    count += 1;
                    let quiet = agent.quiet().and_then(|()| agent.settle());
                    quiet.unwrap_or_else(|rule| broken(&rule, &agent.world));
                    if !killed {
                        break;
                    }
                }
            }
        }
    }
    println!("{count} kills");
    assert!(count > 100, "{count}");
}

/// The first broken rule of some acts on a node with a flaw.
fn breaks(setup: &Setup, acts: &[Act]) -> String {
    let agent = Agent::after(setup, acts);
    let quiet = agent.and_then(|agent| agent.quiet());
    match quiet {
        Err(rule) => rule,
        Ok(()) => panic!("the mutant lives"),
    }
}

#[test]
fn mutant_that_writes_no_record_at_a_creation() {
    for kind in KINDS {
        let mut setup = setup(kind);
        setup.flaw = Some(Flaw::NoRecord);
        let says = breaks(&setup, &begin([Run(0), Ask(Create(0, 0))]));
        assert!(says.contains("the record of pod 0 holds"), "{says}");
    }
}

/// A node turn assigns CPUs to a container made without a request, and yields after one of its steps. The mutant's creation
/// then gets CPUs that the node turn has assigned.
#[test]
fn mutant_that_does_not_read_written_owners_again() {
    let acts = begin([Run(0), Run(1), Reconcile]);
    let yields = |setup: &Setup, at: usize| -> Result<bool, String> {
        let mut agent = Agent::after(setup, &acts).unwrap();
        agent.make_unasked(0, 0);
        agent.go(Act::YieldOnly(at, Create(1, 0)))
    };
    for kind in KINDS {
        let mut setup = setup(kind);
        let all = |setup: &Setup| -> Vec<Result<bool, String>> {
            let ends = (0..).map(|at| yields(setup, at));
            ends.take_while(|end| *end != Ok(false)).collect()
        };
        let sound = all(&setup);
        assert!(
            sound.len() > 3 && sound.iter().all(Result::is_ok),
            "{kind:?}: {sound:?}"
        );
        setup.flaw = Some(Flaw::StaleOwners);
        let found: Vec<String> = all(&setup).into_iter().filter_map(Result::err).collect();
        let dies = found.iter().any(|says| says.contains("both"));
        assert!(dies, "{kind:?}: the mutant lives: {found:?}");
    }
}

/// Two shared containers get the CPUs of an owner that has gone. The turn yields between the two,
/// and a creation gets the CPUs. Returns the rule that breaks if the turn yields at the point `at`;
/// `None` if there is no such point.
fn yields_while_shared_containers_widen(setup: &Setup, at: usize) -> Option<Result<(), String>> {
    let start = and(begin([Run(0)]), runs(0, 0));
    let shared = [1, 2].map(|pod| and(vec![Run(pod)], runs(pod, 0)));
    let then = [Reconcile, Run(3), Happen(Event::Remove(0))];
    let acts = and(and(start, shared.concat()), then);
    let mut agent = Agent::after(setup, &acts).unwrap_or_else(|broken| panic!("{broken}"));
    let last = [
        Act::YieldOnly(at, Create(3, 0)),
        Appear(3, 0),
        Ask(Start(3, 0)),
    ];
    for act in last {
        match agent.go(act) {
            Ok(false) if act == last[0] => return None,
            Ok(_) => {}
            Err(rule) => return Some(Err(rule)),
        }
    }
    Some(Ok(()))
}

#[test]
fn mutant_that_does_not_note_its_writes_to_shared_containers() {
    let shapes = [Shape::One(2), Shape::Shared, Shape::Shared, Shape::One(2)];
    for kind in [KernelKind::V1, KernelKind::V2] {
        let mut setup = Setup::new(kind, 8, 2, &shapes);
        let all = |setup: &Setup| -> Vec<Result<(), String>> {
            (0..)
                .map_while(|at| yields_while_shared_containers_widen(setup, at))
                .collect()
        };
        let sound = all(&setup);
        assert!(
            sound.len() > 4 && sound.iter().all(Result::is_ok),
            "{sound:?}"
        );
        setup.flaw = Some(Flaw::UnnotedShares);
        let found: Vec<String> = all(&setup).into_iter().filter_map(Result::err).collect();
        let dies = found.iter().any(|says| says.contains("runs, too"));
        assert!(dies, "{kind:?}: the mutant lives: {found:?}");
    }
}

/// With only its init container left in all descriptions, a pod loses its CPUs. The container gets
/// a set of its own before the pod's cgroup gets all CPUs, because it would otherwise reach the
/// CPUs of another pod's owner.
#[test]
fn a_pod_that_loses_its_cpus_keeps_off_those_of_others() {
    let setup = Setup::new(KernelKind::V2, 8, 2, &[Shape::One(1), Shape::Init(2)]);
    let then = [
        Run(1),
        Unheard(1, 0),
        Reconcile,
        Happen(Event::Forget(1)),
        Appear(1, 0),
    ];
    let acts = and(and(begin([Run(0)]), runs(0, 0)), then);
    let agent = Agent::after(&setup, &acts).unwrap();
    let quiet = agent.quiet();
    quiet.unwrap_or_else(|rule| panic!("{}", told(&rule, &acts, &agent.world)));
}

/// Four pods on each kernel with partitions.
fn setups_with_partitions() -> [Setup; 3] {
    let shapes = [
        Shape::Two(2, 1),
        Shape::Init(2),
        Shape::Sidecar(1),
        Shape::Shared,
    ];
    let kinds = [
        KernelKind::Early612,
        KernelKind::Late612,
        KernelKind::Linux72,
    ];
    kinds.map(|kind| Setup::new(kind, 8, 2, &shapes))
}

/// A foreign program confines a pod to a CPU, in some of the histories to another owner's. The pod
/// then loses its assignment. The plan restores the pod's CPUs before it clears its exclusive CPUs,
/// because the kernel would refuse the opposite order.
#[test]
fn a_pod_confined_to_anothers_cpu_gives_its_cpus_up() {
    for setup in setups_with_partitions() {
        for (cpu, steps) in (0..8).flat_map(|cpu| (0..6).map(move |steps| (cpu, steps))) {
            let then = [
                Ask(Create(0, 1)),
                Ask(Create(2, 0)),
                Happen(Event::Cpus(pod_node(0), 1 << cpu)),
                Act::Kill(steps),
                Fail(0, 1),
            ];
            let acts = and(begin([Run(0), Run(2)]), then);
            let agent = Agent::after(&setup, &acts).unwrap();
            let quiet = agent.quiet();
            quiet.unwrap_or_else(|rule| panic!("{}", told(&rule, &acts, &agent.world)));
        }
    }
}

/// Enforcement changes from `partition` to `cpuset`, and one pod has neither a manifest nor a
/// container. The agent is killed after 0 to 7 steps. The pod's exclusive CPUs return before its
/// record goes.
#[test]
fn a_pod_without_a_record_has_no_exclusive_cpus_after_partitions_end() {
    for setup in setups_with_partitions() {
        for steps in 0..8 {
            let then = [
                Ask(Create(2, 0)),
                Act::KillIn(0, Create(1, 0)),
                Reconcile,
                Happen(Event::Forget(1)),
                Happen(Event::Enforce(ModelEnforcement::Cpuset)),
                Act::KillIn(steps, Create(2, 1)),
            ];
            let acts = and(vec![Run(2), Run(1), Run(3)], then);
            let mut agent = Agent::after(&setup, &acts).unwrap_or_else(|broken| panic!("{broken}"));
            let settled = agent.settle();
            settled.unwrap_or_else(|rule| panic!("{}", told(&rule, &acts, &agent.world)));
        }
    }
}

/// A foreign program writes the set of a pod that is so new that no turn about all pods has seen it. The next turn repairs the set.
#[test]
fn the_set_of_a_new_pod_is_repaired() {
    for setup in setups_with_partitions() {
        for cpu in 0..8 {
            let written = Happen(Event::Cpus(pod_node(2), 1 << cpu));
            let acts = [Run(2), Ask(Create(2, 0)), Run(0), written, Act::Wake];
            let agent = Agent::after(&setup, &acts).unwrap_or_else(|broken| panic!("{broken}"));
            let quiet = agent.quiet();
            quiet.unwrap_or_else(|rule| panic!("{}", told(&rule, &acts, &agent.world)));
        }
    }
}
