//! What a pod keeps while its description is late, poorer or missing.

use super::*;
use ContainerKind::{App, Init, Sidecar};

/// What is known of pod `a` in a test: the source of its description, the containers that the
/// runtime lists, and the CPUs of those that run.
struct Facts {
    description: Description,
    listed: Option<Vec<&'static str>>,
    removed: Vec<&'static str>,
    stopped: Vec<&'static str>,
    running: Vec<(&'static str, CpuSet)>,
}

fn facts(description: Description, running: &[(&'static str, &str)]) -> Facts {
    Facts {
        description,
        listed: Some(running.iter().map(|(name, _)| *name).collect()),
        removed: Vec::new(),
        stopped: Vec::new(),
        running: running
            .iter()
            .map(|(name, cpus)| (*name, set(cpus)))
            .collect(),
    }
}

/// The decisions about `pods`, of which `a` is known as the facts say, and all others are described
/// completely.
fn decided_knowing(pods: &[Pod], claims: &[(&str, &str, &str)], facts: &Facts) -> Decisions {
    let running = facts.running.iter().map(|(name, cpus)| (*name, cpus));
    let known = KnownPod {
        description: facts.description,
        listed: facts
            .listed
            .as_ref()
            .map(|listed| listed.iter().copied().collect()),
        removed: facts.removed.iter().copied().collect(),
        stopped: facts.stopped.iter().copied().collect(),
        running: running.collect(),
        populated: facts.running.iter().map(|(name, _)| *name).collect(),
    };
    let known = [("a", known)].into();
    let node = TestNode::new(machine(), set("0-1"));
    let pods = recognized(pods.iter().cloned());
    let here = ["a", "b"].into();
    let inputs = DecisionInput {
        here: Some(&here),
        known: Some(&known),
        ..node.input(&pods)
    };
    decide(&inputs, &ledger(claims))
}

/// The CPUs of the containers of pod `a` after the decision.
fn owned(decisions: &Decisions) -> Vec<(String, String)> {
    let assignment = decisions.desired.assignment("a");
    let owners = assignment.containers.iter();
    owners
        .map(|(name, cpus)| (name.clone(), cpus.to_string()))
        .collect()
}

fn owners(expected: &[(&str, &str)]) -> Vec<(String, String)> {
    let text = |(name, cpus): &(&str, &str)| ((*name).to_owned(), (*cpus).to_owned());
    expected.iter().map(text).collect()
}

/// A pod as the container runtime describes it: all its containers are app containers.
fn of_runtime(containers: &[(&str, u64)]) -> Pod {
    let containers: Vec<_> = containers
        .iter()
        .map(|&(name, cpus)| (name, App, cpus))
        .collect();
    let mut pod = pod("a", &containers);
    pod.ids = pod::ContainerIds::Runtime;
    pod
}

const MAIN: [(&str, &str, &str); 1] = [("a", "main", "2-5")];

#[test]
fn before_the_list_an_init_container_stays_on_the_cpus_of_its_pod() {
    let pods = [of_runtime(&[("fetch", 2000)])];
    let running = facts(Description::Awaited, &[("fetch", "2-5")]);
    let decisions = decided_knowing(&pods, &MAIN, &running);
    assert_eq!(owned(&decisions), owners(&[("main", "2-5")]));
    assert_eq!(cpus(&decisions), ["2-5"]);
    let plan = &decisions.desired.pods["a"];
    assert_eq!(plan.init_containers, ["fetch"]);
    assert_eq!(plan.name, None, "the record and the pod's quota stay");
}

/// An init container needs no limits if the pod has some, of which the runtime is not told.
#[test]
fn an_init_container_without_limits_stays_on_the_cpus_of_its_pod() {
    let pods = [of_runtime(&[("fetch", 0)])];
    for description in [Description::Awaited, Description::Missing] {
        let running = facts(description, &[("fetch", "2-5")]);
        let decisions = decided_knowing(&pods, &MAIN, &running);
        assert_eq!(owned(&decisions), owners(&[("main", "2-5")]));
        assert_eq!(cpus(&decisions), ["2-5"], "{description:?}");
    }
}

/// No runtime has told the name of the container, so its id stands for it.
#[test]
fn a_container_without_a_name_stays_on_the_cpus_of_its_pod() {
    for pods in [vec![], vec![of_runtime(&[])]] {
        let mut running = facts(Description::Awaited, &[("0a1b", "2-5")]);
        running.listed = None;
        let decisions = decided_knowing(&pods, &MAIN, &running);
        assert_eq!(owned(&decisions), owners(&[("main", "2-5")]));
        assert_eq!(decisions.desired.pods["a"].init_containers, ["0a1b"]);
        // It runs on shared CPUs, like a sandbox.
        running.running = vec![("0a1b", set("0-1,6-15"))];
        let decisions = decided_knowing(&pods, &MAIN, &running);
        assert!(decisions.desired.pods["a"].init_containers.is_empty());
    }
}

#[test]
fn before_the_list_a_crash_loop_keeps_its_cpus() {
    // Nothing of the pod exists, so the runtime lists nothing, and another container asks for CPUs.
    for pods in [vec![of_runtime(&[]), app("b", 12)], vec![app("b", 12)]] {
        let mut nothing = facts(Description::Awaited, &[]);
        for listed in [Some(Vec::new()), None] {
            nothing.listed = listed;
            let decisions = decided_knowing(&pods, &MAIN, &nothing);
            assert_eq!(owned(&decisions), owners(&[("main", "2-5")]));
            assert_eq!(cpus(&decisions), ["shared"]);
        }
    }
    // It comes back to the same CPUs.
    let pods = [of_runtime(&[("main", 4000)])];
    let mut created = facts(Description::Awaited, &[]);
    created.listed = Some(vec!["main"]);
    assert_eq!(cpus(&decided_knowing(&pods, &MAIN, &created)), ["2-5"]);
}

#[test]
fn before_the_list_a_mate_without_a_limit_takes_nothing() {
    let mut pods = [of_runtime(&[("main", 4000), ("log", 0)])];
    let log = pods[0].containers.last_mut().unwrap();
    log.resources = Resources {
        cpu_request: Some(100),
        ..Resources::default()
    };
    for description in [
        Description::Awaited,
        Description::RuntimeOnly,
        Description::Missing,
    ] {
        let running = facts(description, &[("main", "2-5"), ("log", "0-1,6-15")]);
        let decisions = decided_knowing(&pods, &MAIN, &running);
        assert_eq!(cpus(&decisions), ["2-5", "shared"], "{description:?}");
        assert_eq!(decisions.containers[0].refused, None);
    }
    // The same description from the API server says what holds.
    let running = facts(Description::Complete, &[("main", "2-5")]);
    let decisions = decided_knowing(&pods, &MAIN, &running);
    assert_eq!(cpus(&decisions), ["shared", "shared"]);
}

/// The runtime tells of a resize, and nobody else may. To it, the pod does not look Guaranteed
/// beside a container without a limit.
#[test]
fn with_the_runtime_alone_a_resize_takes_only_the_difference() {
    for (limit, expected) in [
        (500, &[][..]),
        (2000, &[("main", "2-3")]),
        (2500, &[]),
        (4000, &[("main", "2-5")]),
    ] {
        for containers in [vec![("main", limit)], vec![("main", limit), ("log", 0)]] {
            let running = facts(Description::RuntimeOnly, &[("main", "2-5")]);
            let decisions = decided_knowing(&[of_runtime(&containers)], &MAIN, &running);
            assert_eq!(owned(&decisions), owners(expected), "{containers:?}");
        }
    }
}

#[test]
fn after_a_list_without_the_pod_only_existing_containers_keep_their_cpus() {
    let claims = [("a", "main", "2-5"), ("a", "side", "6")];
    let missing = |running: &[(&'static str, &str)]| facts(Description::Missing, running);
    let both = [("main", "2-5"), ("side", "6")];
    let pods = [of_runtime(&[("main", 4000), ("side", 1000)])];
    let all = owned(&decided_knowing(&pods, &claims, &missing(&both)));
    assert_eq!(all, owners(&both));
    // A deleted pod whose cgroup lingers, with and without a sandbox of the runtime's.
    for pods in [vec![of_runtime(&[])], vec![]] {
        let none = owned(&decided_knowing(&pods, &claims, &missing(&[])));
        assert_eq!(none, owners(&[]));
        // One of its containers does not end.
        let mut stuck = missing(&[("side", "6")]);
        stuck.listed = None;
        let rest = owned(&decided_knowing(&pods, &claims, &stuck));
        assert_eq!(rest, owners(&[("side", "6")]));
    }
    // An init container runs on the CPUs of a container that is still to come.
    let pods = [of_runtime(&[("fetch", 2000)])];
    let decisions = decided_knowing(&pods, &MAIN, &missing(&[("fetch", "2-5")]));
    assert_eq!(owned(&decisions), owners(&[("main", "2-5")]));
    assert_eq!(cpus(&decisions), ["2-5"]);
}

#[test]
fn with_the_runtime_alone_cpus_stay_until_the_container_is_removed() {
    let pods = [of_runtime(&[])];
    let mut stopped = facts(Description::RuntimeOnly, &[]);
    let kept = owned(&decided_knowing(&pods, &MAIN, &stopped));
    assert_eq!(kept, owners(&[("main", "2-5")]));
    stopped.removed = vec!["main"];
    let freed = owned(&decided_knowing(&pods, &MAIN, &stopped));
    assert_eq!(freed, owners(&[]));
    // A resize in place takes the difference.
    let pods = [of_runtime(&[("main", 2000)])];
    let running = facts(Description::RuntimeOnly, &[("main", "2-5")]);
    let resized = owned(&decided_knowing(&pods, &MAIN, &running));
    assert_eq!(resized, owners(&[("main", "2-3")]));
    let awaited = facts(Description::Awaited, &[("main", "2-5")]);
    let same = owned(&decided_knowing(&pods, &MAIN, &awaited));
    assert_eq!(same, owners(&[("main", "2-5")]));
}

#[test]
fn a_new_container_first_takes_the_cpus_that_its_pod_has() {
    // The init container has ended. Nobody has said that it was one.
    let pods = [of_runtime(&[("main", 4000)])];
    let claims = [("a", "fetch", "10-11"), ("gone", "main", "2-3")];
    for description in [Description::RuntimeOnly, Description::Awaited] {
        let mut created = facts(description, &[]);
        created.listed = Some(vec!["main"]);
        created.stopped = vec!["fetch"];
        let decisions = decided_knowing(&pods, &claims, &created);
        let main = decisions.desired.assignment("a");
        assert_eq!(main.containers.keys().collect::<Vec<_>>(), ["main"]);
        let main = &main.containers["main"];
        assert!(set("10-11").is_subset(main) && main.len() == 4, "{main}");
        // A part is enough: the rest stays with the container that may come back.
        let small = [of_runtime(&[("main", 1000)])];
        let decisions = decided_knowing(&small, &claims, &created);
        let both = owners(&[("fetch", "11"), ("main", "10")]);
        assert_eq!(owned(&decisions), both, "{description:?}");
    }
    // Nobody knows whether the container with the CPUs was there before the agent's start. The new
    // one may be its init container.
    let mut created = facts(Description::Awaited, &[]);
    created.listed = Some(vec!["main"]);
    let decisions = decided_knowing(&pods, &claims, &created);
    assert_eq!(owned(&decisions), owners(&[("fetch", "10-11")]));
    assert_eq!(cpus(&decisions), ["10-11"]);
    // A container that runs already takes nothing from one in back-off while the list is awaited.
    let pods = [of_runtime(&[("other", 2000)])];
    let running = facts(Description::Awaited, &[("other", "0-1,6-15")]);
    let decisions = decided_knowing(&pods, &MAIN, &running);
    let main = &decisions.desired.assignment("a").containers["main"];
    assert_eq!(*main, set("2-5"));
}

/// The runtime's description came first, and the init container got CPUs of its own.
#[test]
fn a_late_description_leaves_a_running_init_container_its_cpus() {
    let late = |main: u64| {
        [pod(
            "a",
            &[("fetch", Init, 4000), ("main", App, main * 1000)],
        )]
    };
    let claims = [("a", "fetch", "2-5")];
    let running = facts(Description::Complete, &[("fetch", "2-5")]);
    for (main, more) in [(2, 0), (4, 0), (6, 2)] {
        let decisions = decided_knowing(&late(main), &claims, &running);
        let own = decisions.desired.assignment("a").containers;
        assert_eq!(own["fetch"], set("2-5"), "{main}");
        let ahead = own.get("main").cloned().unwrap_or_default();
        assert_eq!(ahead.len(), more, "only what the init container lacks");
        assert!(decisions.desired.pods["a"].init_containers.is_empty());
        let note = decisions.containers[1].note.as_deref().unwrap();
        assert!(note.contains("init container when that ends"), "{note}");

        // The init container ends, and the pod keeps the CPUs that it still needs.
        let ahead = ahead.to_string();
        let mut claims = claims.to_vec();
        if more > 0 {
            claims.push(("a", "main", ahead.as_str()));
        }
        let ended = facts(Description::Complete, &[]);
        let decisions = decided_knowing(&late(main), &claims, &ended);
        let after = decisions.desired.assignment("a").containers;
        assert_eq!(after.keys().collect::<Vec<_>>(), ["main"]);
        assert_eq!(after["main"].len() as u64, main);
        let shared_cpus = after["main"].intersection(&set("2-5")).len() as u64;
        assert_eq!(shared_cpus, main.min(4));
    }
    // A new run of the init container runs on the CPUs of the pod, as usual.
    let again = facts(Description::Complete, &[("fetch", "2-5")]);
    let decisions = decided_knowing(&late(4), &MAIN, &again);
    assert_eq!(cpus(&decisions), ["2-5", "2-5"]);
    assert_eq!(decisions.desired.pods["a"].init_containers, ["fetch"]);
}

#[test]
fn a_changed_entitlement_takes_only_the_difference() {
    let claims = [("a", "side", "2-3"), ("a", "main", "4-7")];
    let running = facts(Description::Complete, &[("side", "2-3"), ("main", "4-7")]);
    let described = |side: u64, main: u64| {
        [pod(
            "a",
            &[("side", Sidecar, side * 1000), ("main", App, main * 1000)],
        )]
    };
    let smaller = owned(&decided_knowing(&described(2, 2), &claims, &running));
    assert_eq!(smaller, owners(&[("main", "4-5"), ("side", "2-3")]));
    let larger = decided_knowing(&described(4, 4), &claims, &running);
    let own = larger.desired.assignment("a").containers;
    assert!(set("2-3").is_subset(&own["side"]) && own["side"].len() == 4);
    assert_eq!(own["main"], set("4-7"));
    let mut shared = described(2, 4);
    let annotations = &mut shared[0].annotations;
    annotations.insert(pod::CPUS_ANNOTATION.to_owned(), "shared".to_owned());
    let none = owned(&decided_knowing(&shared, &claims, &running));
    assert_eq!(none, owners(&[]));
}

/// While Pinfold only observes, no record passes CPUs to another container, so no answer may do so either.
#[test]
fn an_observing_agent_passes_no_cpus_on() {
    let pods = [of_runtime(&[("fetch", 2000)])];
    let mut created = facts(Description::Missing, &[]);
    created.listed = Some(vec!["fetch"]);
    let mut decisions = decided_knowing(&pods, &MAIN, &created);
    assert_eq!(cpus(&decisions), ["2-3"]);
    decisions.keep_ledger_assignments(&recognized(pods), &ledger(&MAIN));
    assert_eq!(cpus(&decisions), ["shared"]);
    assert_eq!(owned(&decisions), owners(&[("main", "2-5")]));
}
