//! Containers that grow and shrink while they run, with an agent that announces a shrink and waits: in every order, also if it is
//! killed after any step, no CPU has two owners, no container is without CPUs, and no program runs on a CPU that its live file
//! does not name.

use pinfold::pin::Step;

use super::PLAIN;
use super::agent::{Setup, Shape};
use super::events::Event;
use super::kernel::{KINDS, KernelKind, leaf_node, node_of, pod_node, set};
use super::node::Flaw;
use super::requests::{Act, Agent, Request, runs, told};
use super::requests_tests::{and, begin, every};
use Act::{Ask, Elapse, Happen, Reconcile, Run};
use Request::Create;

fn setup(kind: KernelKind, shapes: &[Shape]) -> Setup {
    let mut setup = Setup::new(kind, 5, 1, shapes);
    setup.delays = true;
    setup
}

/// A pod of each kind that has grown: the last container has two CPUs.
fn grown(shape: Shape) -> Vec<Act> {
    let mut acts = begin([Run(0)]);
    for at in 0..shape.containers().len() {
        acts.extend(runs(0, at));
    }
    and(acts, [Happen(Event::Resize(0)), Reconcile])
}

const SHAPES: [Shape; 2] = [Shape::One(1), Shape::OneOwner(1)];

#[test]
fn every_short_history_of_resizes() {
    let mut count = 0;
    for kind in KINDS {
        for shape in SHAPES {
            let setup = setup(kind, &[shape, Shape::One(1)]);
            count += every(&setup, &grown(shape), PLAIN, 2);
            let shrinks = and(grown(shape), [Happen(Event::Resize(0)), Reconcile]);
            count += every(&setup, &shrinks, PLAIN, 2);
        }
    }
    println!("{count} histories");
    assert!(count > 500, "{count}");
}

#[test]
fn the_agent_is_killed_after_every_step_of_a_resize() {
    let mut count = 0;
    for kind in KINDS {
        for shape in SHAPES {
            let setup = setup(kind, &[shape, Shape::One(3)]);
            let begins = and(grown(shape), [Run(1)]);
            let shrinks = and(begins.clone(), [Happen(Event::Resize(0)), Reconcile]);
            let grows = begins[..begins.len() - 2].to_vec();
            let elapsed = and(shrinks.clone(), [Elapse]);
            let kill: fn(usize) -> Act = Act::Kill;
            let kill_create: fn(usize) -> Act = |steps| Act::KillIn(steps, Create(1, 0));
            // A growth; a shrink after its delay; one whose delay a creation ends.
            for (start, kill) in [(grows, kill), (elapsed, kill), (shrinks, kill_create)] {
                for steps in 0.. {
                    let acts = and(start.clone(), [kill(steps)]);
                    let mut agent = Agent::after(&setup, &start).unwrap();
                    let broken = |rule: &str, agent: &Agent<'_>| -> ! {
                        panic!("{kind:?}: {}", told(rule, &acts, &agent.world))
                    };
                    let killed = agent.go(kill(steps));
                    let killed = killed.unwrap_or_else(|rule| broken(&rule, &agent));
                    count += 1;
                    let quiet = agent.quiet().and_then(|()| agent.settle());
                    quiet.unwrap_or_else(|rule| broken(&rule, &agent));
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

/// How many CPUs the pods 0 and 1 own after some acts.
fn owned(setup: &Setup, acts: &[Act]) -> (usize, usize) {
    let agent = Agent::after(setup, acts).unwrap_or_else(|broken| panic!("{broken}"));
    (agent.owned(0).len(), agent.owned(1).len())
}

#[test]
fn the_cpus_go_after_the_delay() {
    for kind in KINDS {
        for shape in SHAPES {
            let setup = setup(kind, &[shape, Shape::One(1)]);
            let shrinks = and(
                grown(shape),
                [Happen(Event::Resize(0)), Reconcile, Reconcile],
            );
            assert_eq!(owned(&setup, &shrinks), (2, 0), "{kind:?}");
            let elapsed = and(shrinks.clone(), [Elapse, Reconcile]);
            assert_eq!(owned(&setup, &elapsed), (1, 0), "{kind:?}");
            // A resize that is taken back changes nothing.
            let back = and(shrinks, [Happen(Event::Resize(0)), Elapse, Reconcile]);
            assert_eq!(owned(&setup, &back), (2, 0), "{kind:?}");
        }
    }
}

/// Of the CPUs 1 to 4, two are free while the first pod still has two.
#[test]
fn a_creation_ends_the_delay_only_if_it_needs_the_cpus_and_they_are_enough() {
    for kind in KINDS {
        for shape in SHAPES {
            for (wanted, expected) in [(2, (2, 2)), (3, (1, 3)), (4, (2, 0))] {
                let setup = setup(kind, &[shape, Shape::One(wanted)]);
                let resized = and(grown(shape), [Run(1), Happen(Event::Resize(0))]);
                // With an agent that has announced the shrink, with one that has not even seen it, and with one that has
                // restarted since.
                let announced = and(resized.clone(), [Reconcile]);
                let restarted = and(announced.clone(), [Act::Kill(0)]);
                for acts in [announced, resized, restarted] {
                    let acts = and(acts, [Ask(Create(1, 0))]);
                    assert_eq!(owned(&setup, &acts), expected, "{kind:?} {wanted}");
                }
            }
        }
    }
}

/// The container of pod 2 has ended, and no step that takes back its CPU comes off. Nobody waits for that one for ever.
#[test]
fn a_creation_ends_the_delay_beside_a_release_that_always_fails() {
    fn without_release(mut steps: Vec<Step>) -> Vec<Step> {
        let is_of_pod = |step: &Step| node_of(step.path()) >= pod_node(2);
        let is_end = |step: &Step| matches!(step, Step::Record { record: None, .. });
        if steps.iter().any(|step| is_of_pod(step) && is_end(step)) {
            steps.retain(|step| !is_of_pod(step));
        }
        steps
    }
    for kind in KINDS {
        let shapes = [Shape::One(1), Shape::One(2), Shape::One(1)];
        let mut setup = setup(kind, &shapes);
        (setup.mutate, setup.flaw) = (without_release, Some(Flaw::FailingSteps));
        let acts = and(grown(Shape::One(1)), [Run(2)].into_iter().chain(runs(2, 0)));
        let shrinks = [Act::End(2, 0), Happen(Event::Resize(0)), Reconcile];
        let acts = and(and(acts, shrinks), [Run(1), Ask(Create(1, 0))]);
        assert_eq!(owned(&setup, &acts), (1, 2), "{kind:?}");
    }
}

/// A container is created while the CPUs of another one of the pod are about to go: the record has them until they are gone.
#[test]
fn the_record_names_the_cpus_of_a_shrink_until_it_is_done() {
    for kind in KINDS {
        let setup = setup(kind, &[Shape::Two(1, 1), Shape::One(2)]);
        let shrinks = and(grown(Shape::Two(1, 1)), [Happen(Event::Resize(0))]);
        let restarts = [Reconcile, Act::End(0, 0), Elapse, Ask(Create(0, 0))];
        let acts = and(shrinks, restarts);
        let agent = Agent::after(&setup, &acts).unwrap_or_else(|broken| panic!("{broken}"));
        let effective = set(agent.world.kernel.effective(leaf_node(0, 1, 0)));
        let owned = agent.owned(0);
        assert!(effective.is_subset(&owned), "{kind:?}: {effective} {owned}");
        let agent = agent.then(&[Run(1), Ask(Create(1, 0)), Act::Appear(1, 0)]);
        let mut agent = agent.unwrap_or_else(|broken| panic!("{broken}"));
        agent.settle().unwrap();
        assert_eq!(agent.owned(1).len(), 2, "{kind:?}");
    }
}

#[test]
fn mutant_whose_live_files_stay_as_they_were() {
    for kind in KINDS {
        let mut setup = setup(kind, &[Shape::One(1)]);
        setup.flaw = Some(Flaw::OldFiles);
        let broken = Agent::after(&setup, &grown(Shape::One(1))).err();
        let says = broken.unwrap_or_else(|| panic!("{kind:?}: the mutant lives"));
        assert!(says.contains("its file names"), "{says}");
    }
}
