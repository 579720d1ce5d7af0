//! Descriptions of pods that come late, are poorer than before, or do not come at all, and agents that restart before the API
//! server's list. No running container moves, and no CPU has two owners.

use super::PLAIN;
use super::agent::{Setup, Shape};
use super::events::Event;
use super::kernel::KINDS;
use super::requests::{Act, Agent, Request, runs, told};
use Act::{
    Appear, Ask, End, Happen, KillIn, List, Reconcile, Remove, RestartBeforeList, Run, RunEarly,
};
use Request::{Create, Start};

fn joined(parts: &[&[Act]]) -> Vec<Act> {
    [&[Reconcile], parts.concat().as_slice()].concat()
}

/// The acts that are possible after a history, with those of the API server.
fn next_acts(agent: &Agent<'_>, pods: usize) -> Vec<Act> {
    let (own, others) = agent.acts(PLAIN);
    let not_changed = |act: &Act| !matches!(act, Happen(Event::Resize(_)) | Act::Unheard(..));
    let early = (0..pods).map(RunEarly).filter(|early| {
        let RunEarly(pod) = early else { return false };
        own.contains(&Run(*pod))
    });
    let early: Vec<Act> = early.collect();
    let all = own.into_iter().chain(others).chain(early);
    let all = all.filter(not_changed);
    all.chain([Reconcile, RestartBeforeList, List]).collect()
}

/// Every history with so many acts after a start. After each, the list comes at last, and the agent settles.
fn every(setup: &Setup, start: &[Act], length: usize) -> usize {
    let mut level = vec![start.to_vec()];
    let mut count = 0;
    for _ in 0..=length {
        let mut next = Vec::new();
        for acts in level {
            count += 1;
            let mut agent = Agent::after(setup, &acts).unwrap_or_else(|broken| panic!("{broken}"));
            let further = next_acts(&agent, setup.shapes.len());
            let settled = agent.settle();
            let settled = settled.and_then(|()| agent.go(List).map(|_| ()));
            let settled = settled.and_then(|()| agent.settle());
            settled.unwrap_or_else(|rule| panic!("{}", told(&rule, &acts, &agent.world)));
            for act in further {
                if acts.last() != Some(&act) {
                    next.push([acts.as_slice(), &[act]].concat());
                }
            }
        }
        level = next;
    }
    count
}

#[test]
fn every_short_history_of_late_descriptions() {
    let mut count = 0;
    for kind in KINDS {
        let setup = Setup::new(kind, 6, 1, &[Shape::Init(2), Shape::One(1)]);
        // The runtime runs a pod before the API server describes it.
        count += every(&setup, &joined(&[&[RunEarly(0)], &runs(0, 0)]), 2);
        // The agent restarts beside a silent API server, with an init container running and with a crash loop.
        let init = joined(&[&[Run(0)], &runs(0, 0), &[RestartBeforeList]]);
        count += every(&setup, &init, 2);
        let main = joined(&[&[Run(0)], &runs(0, 1)]);
        let crashed = [main.as_slice(), &[End(0, 1), RestartBeforeList]].concat();
        count += every(&setup, &crashed, 2);
        let setup = Setup::new(kind, 6, 1, &[Shape::Two(1, 2), Shape::Shared]);
        let both = joined(&[&[Run(0)], &runs(0, 0), &runs(0, 1), &[Run(1)], &runs(1, 0)]);
        count += every(&setup, &both, 2);
    }
    println!("{count} histories");
}

/// The CPUs that records hold after some acts.
fn owned(setup: &Setup, acts: &[Act]) -> usize {
    let agent = Agent::after(setup, acts).unwrap_or_else(|broken| panic!("{broken}"));
    agent.owned(0).len()
}

#[test]
fn a_crash_loop_keeps_its_cpus_until_the_list() {
    for kind in KINDS {
        let setup = Setup::new(kind, 4, 1, &[Shape::Two(1, 1), Shape::One(1)]);
        let pod = joined(&[&[Run(0)], &runs(0, 0), &runs(0, 1), &[Run(1)]]);
        let crashed = [pod.as_slice(), &[End(0, 1), RestartBeforeList]].concat();
        let created = [crashed.as_slice(), &[Reconcile, Ask(Create(1, 0))]].concat();
        assert_eq!(owned(&setup, &created), 2, "{kind:?}");
        let listed = [created.as_slice(), &[List, Reconcile]].concat();
        assert_eq!(owned(&setup, &listed), 2, "{kind:?}");
    }
}

/// The pod is deleted by force, and its cgroup lingers.
#[test]
fn a_pod_that_is_in_no_list_keeps_only_what_runs() {
    for kind in KINDS {
        let setup = Setup::new(kind, 6, 1, &[Shape::Two(1, 2)]);
        let pod = joined(&[&[Run(0)], &runs(0, 0), &runs(0, 1)]);
        for restarts in [false, true] {
            let restart: &[Act] = if restarts { &[RestartBeforeList] } else { &[] };
            let forgotten = [&pod, restart, &[Happen(Event::Forget(0)), Reconcile]].concat();
            assert_eq!(owned(&setup, &forgotten), 3, "{kind:?}");
            let half = [forgotten.as_slice(), &[End(0, 1), Reconcile]].concat();
            let expected = if restarts { 3 } else { 1 };
            assert_eq!(owned(&setup, &half), expected, "{kind:?}");
            let listed = [half.as_slice(), &[List, Reconcile]].concat();
            assert_eq!(owned(&setup, &listed), 1, "{kind:?}");
            let ended = [listed.as_slice(), &[End(0, 0), Reconcile]].concat();
            assert_eq!(owned(&setup, &ended), 0, "{kind:?}");
        }
    }
}

#[test]
fn with_the_runtime_alone_cpus_stay_until_the_container_is_removed() {
    for kind in KINDS {
        let setup = Setup::new(kind, 6, 1, &[Shape::Two(1, 2)]);
        let pod = joined(&[&[Run(0)], &runs(0, 0), &runs(0, 1)]);
        let owned = |more: &[Act]| {
            let agent = Agent::with_runtime_alone(&setup);
            let agent = agent.then(&[pod.as_slice(), more].concat());
            agent
                .unwrap_or_else(|broken| panic!("{broken}"))
                .owned(0)
                .len()
        };
        assert_eq!(owned(&[End(0, 1), Reconcile]), 3, "{kind:?}");
        assert_eq!(owned(&[End(0, 1), Remove(0, 1), Reconcile]), 1, "{kind:?}");
        // After a restart of the agent, the runtime does not tell of what it had removed before.
        let restarted = [End(0, 1), RestartBeforeList, Reconcile];
        assert_eq!(owned(&restarted), 3, "{kind:?}");
    }
}

/// A sidecar is created beside an init container, and the agent is killed in both requests. After the restart, nobody has named
/// their cgroups so far, and each looks like an init container.
#[test]
fn containers_without_a_name_take_no_further_cpus() {
    for kind in KINDS {
        let setup = Setup::new(kind, 8, 2, &[Shape::InitBesideSidecar(1)]);
        let acts = [
            Run(0),
            Ask(Create(0, 1)),
            Appear(0, 1),
            KillIn(0, Start(0, 1)),
            KillIn(0, Create(0, 0)),
            Appear(0, 0),
            RestartBeforeList,
        ];
        let agent = Agent::after(&setup, &acts);
        let mut agent = agent.unwrap_or_else(|broken| panic!("{broken}"));
        let settled = agent.settle().and_then(|()| agent.go(List));
        let settled = settled.and_then(|_| agent.settle());
        settled.unwrap_or_else(|rule| panic!("{}", told(&rule, &acts, &agent.world)));
    }
}
