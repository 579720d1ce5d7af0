//! Properties that every version of the reconciler keeps.
//!
//! The tests use the agent from outside: the program, the real kernel, and a scripted container runtime or API server. The
//! table names the tests of each property, here and elsewhere. Tests marked with * need cgroup v2 and run in the guests of
//! `tests/vm`; the other tests run on both versions. A name that begins with `agent` or `host` is a unit test of the library; a
//! name that begins with `model`, `nri` or `runtime` is a test of that program; every other name is a test of this program.
//!
//! | property | tests |
//! |---|---|
//! | 1. The assignment record is written before CreateContainer is answered. | [`a_record_is_written_before_create_is_answered`], [`cpus_given_up_are_assigned_after_the_handover`] (with a node turn) |
//! | 1. The record is compared with the record that was read, which detects a recreated cgroup. | [`a_recreated_pod_cgroup_gets_its_own_record`] |
//! | 2. CPUs that are given up are barred until they are handed back. | [`cpus_given_up_are_assigned_after_the_handover`], `model::random`, `model::recorded` |
//! | 2. `apply` never gives CPUs that could not be taken. | [`cpus_that_could_not_be_taken_are_not_assigned`], `model::mutants::owners_given_their_cpus_before_others_are_off_them` |
//! | 2. `apply` never writes where the record failed. | [`a_cgroup_without_a_record_gets_no_writes`], [`a_pod_whose_record_fails_is_left_unpinned`] |
//! | 3. Running containers move only after a full scan. | [`a_move_makes_room_before_create_is_answered`]*, `partition::preferences::a_running_container_that_allows_it_moves_to_make_room`* |
//! | 3. Partitions that the kernel refused wait for the timer. | [`a_refused_partition_waits_for_the_timer`]*, `partition::others::a_blocking_cpuset_is_named_and_further_pods_are_pinned`* |
//! | 3. CPUs that were just assigned are exempt from drift until the next full scan. | `runtime_requests::cpus_just_assigned_are_exempt_from_drift`, `drift::drift_is_counted_once_and_repaired`, [`turns_that_yield_are_completed_later`] |
//! | 3. A turn that yields restores what it had noted. | [`turns_that_yield_are_completed_later`]; the backoff of released CPUs is not visible from outside |
//! | 4. The deadline is three quarters of the runtime's limit, and time in the queue counts. | [`time_in_the_queue_counts_against_the_deadline`], `nri::scenarios::after_a_timeout_the_plugin_chooses_the_answer` |
//! | 4. A request whose time is over is not carried out. | [`a_request_whose_time_is_over_is_not_carried_out`], `agent::event_queue::a_request_whose_time_is_over_is_not_urgent` |
//! | 4. Handlers stay in order. | `nri::scenarios::calls_are_answered_in_their_order`, [`a_late_stop_or_remove_updates_the_pods`], `agent::runtime::plugin_handler::a_late_end_is_reported_before_a_newer_creation` |
//! | 5. An unanswered creation still records its assignment. | [`an_unanswered_create_still_records_its_assignment`] |
//! | 5. A late stop or remove still updates the store. | [`a_late_stop_or_remove_updates_the_pods`], `agent::runtime::plugin_handler::after_a_timeout_a_stopped_container_still_leaves_the_inventory` |
//! | 5. A `required` container is refused. | [`an_unanswered_request_of_a_required_pod_is_refused`], [`a_required_container_without_cpus_is_refused`], `create_answers::answers_to_creations_are_as_recorded`, `runtime::pinned::a_required_pod_without_cpus_is_refused_with_the_reason` |
//! | 6. NRI serves only after the first snapshot. | [`nri_is_served_after_the_first_snapshot`] |
//! | 6. Synchronize changes nothing. | [`synchronize_changes_nothing`], `runtime::pinned::restarts_of_the_agent_and_the_runtime_move_nothing` |
//! | 6. Nothing is decided before the pods are synced or the wait has ended. | [`no_turn_decides_before_the_pods_are_synced`], `serving::is_not_ready_before_it_has_read_the_manifests`, `agent::schedule::no_turn_runs_before_the_pods_are_synced` |
//! | 7. Workqueues leave, two seconds pass, then the partition is isolated. | [`a_partition_is_isolated_two_seconds_after_workqueues_left`]*, `partition::isolated`*, `agent::isolation_gate` |
//! | 7. The same holds in a pod's scope. | [`a_started_container_is_isolated_two_seconds_after_workqueues_left`]* |
//! | 8. One D-Bus write may wait 500 ms, and StartContainer uses that path. | [`a_start_waits_for_systemd_to_write_the_cpus`]*, [`a_start_waits_half_a_second_for_each_write_of_systemd_at_most`]*, `host::cgroup::systemd` |
//! | 9. A failed turn keeps the last snapshot with its error. | [`a_failed_turn_keeps_the_last_snapshot_with_its_error`] |
//! | 9. Turns that fail again and again make the agent unready, and are counted. | [`turns_that_fail_again_and_again_are_named_and_counted`] |
//! | 9. A failed turn drops the cached state. | [`a_failed_turn_drops_the_cached_state`] |
//! | 9. A CPU counts as lost after 900 ms only. | [`a_missing_cpu_counts_as_lost_after_900_ms`]* |
//! | 10. At shutdown every request that was read is answered. | `runtime_requests::shutdown_answers_every_request_that_was_read`, `nri::scenarios::received_requests_are_answered_after_stop` |
//! | 10. Assignments stay. | `restart::a_restart_moves_no_container`, `runtime_requests::shutdown_answers_every_request_that_was_read` |

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nix::unistd::getpid;
use pinfold::cpu::CpuSet;
use pinfold::host::cgroup::Quota;
use pinfold::nri::ContainerState;
use pinfold::pin::{AssignmentRecord, EarlierSettings, Reason, Step, StepOutcome, apply};
use prost::Message;
use serde_json::Value;

use crate::agent::{
    Agent, Manifests, Settings, best_effort, container, in_force, patience, worker, worker_with,
};
use crate::api::{Cluster, NODE, pod};
use crate::fakeapi::{Fault, FaultScope};
use crate::gate;
use crate::hotplug::Machine;
use crate::kernel::{Kernel, Tree, allowed, kernel_tests};
use crate::kubelet::Root;
use crate::partition::{partition_tests, work_queues};
use crate::runtime::{Changed, EventMessage, Synchronize};
use crate::runtime_requests::{
    CreatedContainer, Runtime, alone, event_message, let_read, path, state_change, wait_for_rest,
};
use crate::systemd::Systemd;

/// NRI's numbers of events in StateChange.
const RUN_POD_SANDBOX: i32 = 1;
const STOP_POD_SANDBOX: i32 = 2;
const REMOVE_POD_SANDBOX: i32 = 3;
const START_CONTAINER: i32 = 6;
const REMOVE_CONTAINER: i32 = 11;

/// The cgroup of a container's pod.
fn pod_of(description: &EventMessage) -> String {
    path(description).rsplit_once('/').unwrap().0.to_owned()
}

/// The CPUs in the assignment record of a cgroup.
fn recorded(kernel: &Kernel, path: &str) -> CpuSet {
    let text = kernel.cgroups.assignment_record(path).unwrap();
    text.map(|text| AssignmentRecord::parse(&text).unwrap().cpus())
        .unwrap_or_default()
}

/// The settings of the cgroups of containers and pods that Pinfold may write.
fn state(kernel: &Kernel, containers: &[&EventMessage]) -> Vec<String> {
    let describe = |path: String| {
        let (cpuset, quota) = (kernel.cgroups.cpuset(&path), kernel.cgroups.quota(&path));
        let record = kernel.cgroups.assignment_record(&path);
        format!(
            "{path}: {:?} {:?} {:?}",
            cpuset.unwrap(),
            quota.unwrap(),
            record.unwrap()
        )
    };
    containers
        .iter()
        .flat_map(|description| [pod_of(description), path(description)])
        .map(describe)
        .collect()
}

/// The description of a pod with an annotation.
fn annotated(mut description: EventMessage, key: &str, value: &str) -> EventMessage {
    let annotations = &mut description.pod.as_mut().unwrap().annotations;
    annotations.insert(key.to_owned(), value.to_owned());
    description
}

/// The description of a pod that must not run without exclusive CPUs.
fn required(description: EventMessage) -> EventMessage {
    annotated(description, "pinfold.io/cpus", "required")
}

/// Settings that leave a single CPU for exclusive assignments. Pods come from the container runtime alone.
fn one_cpu(kernel: &Kernel, tree: &Tree<'_>) -> Settings {
    Settings::without_manifests(&tree.path, &kernel.all_but_one())
        .with(&["--api=never", "--reconcile-interval=3600s"])
}

/// The same, with a root for [`Root::hang`]. The reconciler reads the topology each second.
fn one_cpu_and_root(kernel: &Kernel, tree: &Tree<'_>, root: &Root) -> Settings {
    Settings::without_manifests(&tree.path, &kernel.all_but_one()).with(&[
        "--api=never",
        "--reconcile-interval=1s",
        "--root-dir",
        root.path(),
    ])
}

/// Starts an agent that may assign one CPU, and a runtime. The agent does not connect to the runtime yet.
fn start(kernel: &Kernel, tree: &Tree<'_>) -> (Root, Runtime, Agent) {
    let (root, runtime) = (Root::new(), Runtime::new());
    let settings = one_cpu_and_root(kernel, tree, &root);
    let agent = runtime.settings(&settings).start();
    (root, runtime, agent)
}

/// Connects the runtime. A slow machine has 15 seconds for each answer.
fn connect(runtime: &mut Runtime, agent: &Agent) {
    runtime.connect_with_limit(agent, 20_000);
}

/// Connects the runtime. Each answer has three seconds, after which the runtime gives up.
fn connect_with_short_limit(runtime: &mut Runtime, agent: &Agent) {
    runtime.connect_with_limit(agent, 4000);
}

/// Creates and starts a container. Returns its exclusive CPUs.
fn begin(tree: &mut Tree<'_>, runtime: &mut Runtime, description: &EventMessage) -> Option<CpuSet> {
    runtime.change(RUN_POD_SANDBOX, description);
    let cpus = runtime.create(description).cpus;
    tree.make(&path(description));
    tree.start(&path(description));
    runtime.change(START_CONTAINER, description);
    cpus
}

/// Ends a container and its pod.
fn end(tree: &mut Tree<'_>, runtime: &mut Runtime, description: &EventMessage) {
    runtime
        .call("StopContainer", description.encode_to_vec())
        .unwrap();
    for event in [REMOVE_CONTAINER, STOP_POD_SANDBOX, REMOVE_POD_SANDBOX] {
        runtime.change(event, description);
    }
    tree.remove(&pod_of(description));
}

/// The number of turns of the reconciler for a reason.
fn turns(agent: &Agent, reason: &str) -> f64 {
    let labels = [("trigger", reason)];
    agent
        .metric("pinfold_reconcile_total", &labels)
        .unwrap_or(0.0)
}

/// The number of steps, of all outcomes or of a single outcome.
fn steps(agent: &Agent, labels: &[(&str, &str)]) -> f64 {
    agent
        .metric("pinfold_reconcile_steps_total", labels)
        .unwrap_or(0.0)
}

/// Whether the cpuset controller is in a hierarchy of cgroup v1.
fn is_v1(kernel: &Kernel) -> bool {
    kernel.cgroups.root().ends_with("cpuset")
}

/// The kernel, if it has cgroup v2; see [`kernel_tests`].
fn v2_tests() -> Option<Kernel> {
    let kernel = kernel_tests()?;
    if is_v1(&kernel) {
        gate::leave("tests/vm/run", "cgroup v2");
        return None;
    }
    Some(kernel)
}

/// A cgroup outside the pods' trees, removed with all cgroups below when dropped.
struct Cgroup<'a>(&'a Kernel, String);

impl<'a> Cgroup<'a> {
    fn new(kernel: &'a Kernel, path: String) -> Self {
        kernel.cgroups.create(&path).unwrap();
        Self(kernel, path)
    }
}

impl Drop for Cgroup<'_> {
    fn drop(&mut self) {
        let _ = self.0.cgroups.remove(&self.1);
    }
}

// Property 1: assignment records and CreateContainer.

#[test]
fn a_record_is_written_before_create_is_answered() {
    let Some(kernel) = kernel_tests() else { return };
    let mut tree = kernel.tree();
    let mut runtime = Runtime::new();
    let agent = runtime.settings(&one_cpu(&kernel, &tree)).start();
    connect(&mut runtime, &agent);
    // A record after the answer may arrive in time by chance, but not in each of several rounds.
    for number in 0..5 {
        let worker = event_message(&tree, &format!("worker-{number}"), 1);
        runtime.change(RUN_POD_SANDBOX, &worker);
        let own = runtime.create(&worker).cpus;
        let record = recorded(&kernel, &pod_of(&worker));
        assert_eq!((own, record), (Some(kernel.last()), kernel.last()));
        end(&mut tree, &mut runtime, &worker);
        agent.eventually("the CPU is free", |status| status["exclusive"] == "");
    }
    agent.stop();
}

#[test]
fn a_recreated_pod_cgroup_gets_its_own_record() {
    let Some(kernel) = kernel_tests() else { return };
    let mut tree = kernel.tree();
    let (root, mut runtime, agent) = start(&kernel, &tree);
    connect(&mut runtime, &agent);
    let worker = event_message(&tree, "worker", 1);
    let pod = pod_of(&worker);
    runtime.change(RUN_POD_SANDBOX, &worker);
    assert_eq!(runtime.create(&worker).cpus, Some(kernel.last()));
    assert_eq!(recorded(&kernel, &pod), kernel.last());
    wait_for_rest(&agent);
    let cpus = kernel.written(&pod);
    // The reconciler hangs. The request therefore comes before the turn for the new cgroup.
    let pipe = root.hang();
    tree.remove(&pod);
    tree.make(&pod);
    // Only the record tells the new cgroup from the old cgroup.
    if kernel.written(&pod) != cpus {
        kernel.write_cpus(&pod, &cpus);
    }
    assert_eq!(recorded(&kernel, &pod), CpuSet::new());
    let call = runtime.begin("CreateContainer", worker.encode_to_vec());
    let_read(&agent);
    drop(pipe);
    let created = CreatedContainer::read(&runtime.answer(call).unwrap());
    let record = recorded(&kernel, &pod);
    assert_eq!(
        (created.cpus, record),
        (Some(kernel.last()), kernel.last()),
        "{}",
        agent.log()
    );
    agent.stop();
}

// Property 2: CPUs that change hands, and failed steps.

#[test]
fn cpus_given_up_are_assigned_after_the_handover() {
    let Some(kernel) = kernel_tests() else { return };
    let mut tree = kernel.tree();
    let (pods, root) = (Manifests::new(), Root::new());
    let mut runtime = Runtime::new();
    let settings = Settings {
        pods: Some(pods.path().to_owned()),
        ..one_cpu_and_root(&kernel, &tree, &root)
    };
    let (first, second) = (
        event_message(&tree, "first", 1),
        event_message(&tree, "second", 1),
    );
    pods.put("first.yaml", &worker("first", "first-uid", 1));
    let agent = runtime.settings(&settings).start();
    connect(&mut runtime, &agent);
    let own = begin(&mut tree, &mut runtime, &first).unwrap();
    assert_eq!(kernel.effective(&path(&first)), own);
    runtime.change(RUN_POD_SANDBOX, &second);
    wait_for_rest(&agent);

    // The reconciler hangs while the first pod loses its entitlement and a second container asks for the CPUs.
    let pipe = root.hang();
    let shared = worker_with("first", "first-uid", 1, "pinfold.io/cpus: shared", "");
    pods.put("first.yaml", &shared);
    let_read(&agent);
    let call = runtime.begin("CreateContainer", second.encode_to_vec());
    let_read(&agent);
    let answered = AtomicBool::new(false);
    // The second record is read before the first record, which must be gone by then.
    let records = || [&second, &first].map(|description| recorded(&kernel, &pod_of(description)));
    let created = std::thread::scope(|scope| {
        let observer = scope.spawn(|| {
            let (mut rounds, begun) = (0, Instant::now());
            while !answered.load(Ordering::Relaxed) && begun.elapsed() < patience() {
                let [second, first] = records();
                assert!(
                    first.is_disjoint(&second),
                    "{first} and {second} after {rounds} rounds"
                );
                rounds += 1;
            }
        });
        drop(pipe);
        let answer = runtime.answer(call);
        answered.store(true, Ordering::Relaxed);
        observer.join().unwrap();
        CreatedContainer::read(&answer.unwrap())
    });
    assert_eq!(created.cpus, Some(own.clone()), "{}", agent.log());
    assert_eq!(records(), [own.clone(), CpuSet::new()], "{}", agent.log());
    tree.make(&path(&second));
    tree.start(&path(&second));
    runtime.change(START_CONTAINER, &second);
    assert_eq!(kernel.effective(&path(&second)), own);
    assert!(kernel.effective(&path(&first)).is_disjoint(&own));
    agent.stop();
}

#[test]
fn cpus_that_could_not_be_taken_are_not_assigned() {
    let Some(kernel) = kernel_tests() else { return };
    let tree = kernel.tree();
    let (web_pod, pod) = (tree.pod("besteffort", "web-uid"), tree.pod("", "uid"));
    let (web, main) = (
        tree.container(&web_pod, "web"),
        tree.container(&pod, "main"),
    );
    // The pod of the second container is confined to the CPU that the container should give up.
    kernel.write_cpus(&web, &kernel.last());
    kernel.write_cpus(&web_pod, &kernel.last());
    let before = kernel.written(&main);
    let cpus = |path: &str, cpus: CpuSet, reason| Step::Cpus {
        path: path.to_owned(),
        cpus,
        reason,
    };
    let plan = || {
        vec![
            cpus(&web, kernel.first(), Reason::Narrow),
            cpus(&main, kernel.last(), Reason::Own),
        ]
    };
    let outcomes: Vec<StepOutcome> = apply(plan(), &kernel.cgroups)
        .into_iter()
        .map(|applied| applied.outcome)
        .collect();
    assert!(
        matches!(
            outcomes.as_slice(),
            [StepOutcome::Failed(_) | StepOutcome::NotInForce { .. }, StepOutcome::Blocked { cpus }] if *cpus == kernel.last()
        ),
        "{outcomes:?}"
    );
    assert_eq!(kernel.written(&main), before);

    // The same steps succeed after the pod is wide again.
    kernel.write_cpus(&web_pod, &kernel.online);
    for applied in apply(plan(), &kernel.cgroups) {
        assert!(matches!(applied.outcome, StepOutcome::Done), "{applied:?}");
    }
    assert_eq!(kernel.effective(&main), kernel.last());
}

#[test]
fn a_cgroup_without_a_record_gets_no_writes() {
    let Some(kernel) = kernel_tests() else { return };
    let tree = kernel.tree();
    let pod = tree.pod("", "uid");
    let main = tree.container(&pod, "main");
    kernel.set_quota(&main, 1);
    let before = (kernel.written(&main), kernel.quota(&main));
    // The kernel takes attributes of up to 64 KiB.
    let mut record = AssignmentRecord::new(EarlierSettings::default());
    record.pod = "x".repeat(70_000);
    let plan = vec![
        Step::Record {
            path: pod.clone(),
            record: Some(record),
        },
        Step::Quota {
            path: main.clone(),
            quota: Quota {
                quota: None,
                period: 100_000,
            },
        },
        Step::Cpus {
            path: main.clone(),
            cpus: kernel.last(),
            reason: Reason::Own,
        },
    ];
    let outcomes: Vec<StepOutcome> = apply(plan, &kernel.cgroups)
        .into_iter()
        .map(|applied| applied.outcome)
        .collect();
    assert!(
        matches!(
            outcomes.as_slice(),
            [
                StepOutcome::Failed(_),
                StepOutcome::Unrecorded,
                StepOutcome::Unrecorded
            ]
        ),
        "{outcomes:?}"
    );
    assert_eq!((kernel.written(&main), kernel.quota(&main)), before);
}

#[test]
fn a_pod_whose_record_fails_is_left_unpinned() {
    let Some(kernel) = kernel_tests() else { return };
    let mut tree = kernel.tree();
    let mut runtime = Runtime::new();
    let agent = runtime.settings(&one_cpu(&kernel, &tree)).start();
    connect(&mut runtime, &agent);
    let mut worker = event_message(&tree, "worker", 1);
    // The record names the pod, and the kernel takes attributes of up to 64 KiB.
    worker.pod.as_mut().unwrap().name = "x".repeat(70_000);
    runtime.change(RUN_POD_SANDBOX, &worker);
    runtime.create(&worker);
    tree.make(&path(&worker));
    kernel.set_quota(&path(&worker), 1);
    tree.start(&path(&worker));
    let before = state(&kernel, &[&worker]);
    runtime.change(START_CONTAINER, &worker);
    agent.eventually("the failure is reported", |status| {
        status["errors"].to_string().contains("assignment record")
    });
    assert_eq!(state(&kernel, &[&worker]), before);
    agent.stop();
}

// Property 3: moves, refused partitions, drift and yielding.

#[test]
fn a_move_makes_room_before_create_is_answered() {
    let Some(kernel) = partition_tests() else {
        return;
    };
    let mut tree = kernel.tree();
    let config = tempfile::NamedTempFile::with_suffix(".yaml").unwrap();
    fs::write(config.path(), "maxMovesPerHour: 1\n").unwrap();
    // Two NUMA nodes of four CPUs, of which the first core is reserved: 2-3 and 4-7 can be assigned.
    let reserved: CpuSet = "0-1".parse().unwrap();
    let settings = Settings::without_manifests(&tree.path, &reserved).with(&[
        "--api=never",
        "--reconcile-interval=3600s",
        "--config",
        config.path().to_str().unwrap(),
    ]);
    let mut runtime = Runtime::new();
    let agent = runtime.settings(&settings).start();
    connect(&mut runtime, &agent);
    let free = |name: &str, cpus| {
        annotated(
            event_message(&tree, name, cpus),
            "pinfold.io/memory",
            "free",
        )
    };
    let (first, big) = (free("first", 2), free("big", 4));
    let moving = annotated(free("moving", 2), "pinfold.io/movable", "true");
    let set = |list: &str| -> CpuSet { list.parse().unwrap() };
    assert_eq!(begin(&mut tree, &mut runtime, &first), Some(set("2-3")));
    assert_eq!(begin(&mut tree, &mut runtime, &moving), Some(set("4-5")));
    end(&mut tree, &mut runtime, &first);
    agent.eventually("the first has ended", |status| status["exclusive"] == "4-5");
    runtime.change(RUN_POD_SANDBOX, &big);
    let created = runtime.create(&big).cpus;
    let now = kernel.effective(&path(&moving));
    assert_eq!(
        (created, now),
        (Some(set("4-7")), set("2-3")),
        "{}",
        agent.log()
    );
    assert_eq!(recorded(&kernel, &pod_of(&moving)), set("2-3"));
    assert_eq!(agent.metric("pinfold_moves_total", &[]), Some(1.0));
    agent.stop();
}

#[test]
fn a_refused_partition_waits_for_the_timer() {
    let Some(kernel) = partition_tests() else {
        return;
    };
    // A cgroup outside the pods has a single CPU, which every placement includes. The kernel refuses the partition.
    let foreign = Cgroup::new(&kernel, format!("pinfold-test-other-{}", getpid()));
    assert!(kernel.write(&foreign.1, "cpuset.cpus", &kernel.last().to_string()));
    let mut tree = kernel.tree();
    let pods = Manifests::new();
    let size = kernel.online.len() - 1;
    pods.put("worker.yaml", &worker("worker-0", "worker-uid", size));
    let agent = Settings::new(&tree.path, &pods, &kernel.first())
        .with(&["--reconcile-interval=3600s"])
        .start();
    let pod = tree.pod("", "worker-uid");
    let main = tree.container(&pod, "main1");
    tree.start(&main);
    agent.eventually("the partition is refused", |status| {
        status["errors"].to_string().contains(&foreign.1)
            && container(status, "worker-0", "main")
                .is_some_and(|container| container["note"].is_string())
    });
    wait_for_rest(&agent);
    // The CPUs are free now, so a new attempt would succeed. Passes for other reasons make no attempt.
    drop(foreign);
    for number in 0..3 {
        let earlier_turns = turns(&agent, "cgroups");
        tree.pod("besteffort", &format!("more-{number}"));
        agent.eventually("a turn has run", |_| {
            turns(&agent, "cgroups") > earlier_turns
        });
    }
    assert_eq!(kernel.partition(&main), "member", "{}", agent.log());
    agent.stop();
}

#[test]
fn turns_that_yield_are_completed_later() {
    let Some(kernel) = kernel_tests() else { return };
    let mut tree = kernel.tree();
    // Enough cgroups for turns of several milliseconds.
    let others: Vec<String> = (0..200)
        .map(|number| {
            let pod = tree.pod("besteffort", &format!("other-{number}"));
            tree.container(&pod, &format!("other-{number}"))
        })
        .collect();
    let mut runtime = Runtime::new();
    let agent = runtime.settings(&one_cpu(&kernel, &tree)).start();
    connect(&mut runtime, &agent);
    wait_for_rest(&agent);
    let all_are = |expected: &CpuSet| {
        others
            .iter()
            .all(|path| kernel.effective(path) == *expected)
    };
    for life in ["one", "two"] {
        let worker = event_message(&tree, life, 1);
        runtime.change(RUN_POD_SANDBOX, &worker);
        assert_eq!(runtime.create(&worker).cpus, Some(kernel.last()), "{life}");
        // Each request interrupts the turn that takes the CPU from the shared containers.
        for number in 0..25 {
            std::thread::sleep(Duration::from_millis(6));
            let web = event_message(&tree, &format!("web-{life}-{number}"), 0);
            runtime.change(RUN_POD_SANDBOX, &web);
            assert_eq!(runtime.create(&web).cpus, None);
        }
        tree.make(&path(&worker));
        tree.start(&path(&worker));
        runtime.change(START_CONTAINER, &worker);
        assert_eq!(kernel.effective(&path(&worker)), kernel.last());
        agent.eventually("no other container has the CPU", |_| {
            all_are(&kernel.all_but_one())
        });
        end(&mut tree, &mut runtime, &worker);
        for number in 0..25 {
            std::thread::sleep(Duration::from_millis(6));
            let web = event_message(&tree, &format!("after-{life}-{number}"), 0);
            runtime.change(RUN_POD_SANDBOX, &web);
            assert_eq!(runtime.create(&web).cpus, None);
        }
        agent.eventually("every container has the CPU", |_| all_are(&kernel.online));
    }
    let drift = agent.metric("pinfold_drift_total", &[]);
    assert_eq!(drift, Some(0.0), "{}", agent.log());
    assert_eq!(steps(&agent, &[("outcome", "failed")]), 0.0);
    agent.stop();
}

// Property 4: the deadline of requests.

#[test]
fn time_in_the_queue_counts_against_the_deadline() {
    let Some(kernel) = kernel_tests() else { return };
    let tree = kernel.tree();
    let (root, mut runtime, agent) = start(&kernel, &tree);
    let limit = Duration::from_secs(4);
    connect_with_short_limit(&mut runtime, &agent);
    let (first, second) = (
        event_message(&tree, "first", 1),
        event_message(&tree, "second", 1),
    );
    runtime.change(RUN_POD_SANDBOX, &first);
    runtime.change(RUN_POD_SANDBOX, &second);
    let pipe = root.hang();
    let begun = Instant::now();
    let calls = [&first, &second]
        .map(|description| runtime.begin("CreateContainer", description.encode_to_vec()));
    for call in calls {
        // A container without an answer is created unchanged.
        assert_eq!(runtime.answer(call), Ok(Vec::new()), "{}", agent.log());
        // A deadline that begins at the end of the queue would pass after twice the time. The rest is for a slow machine.
        let (took, deadline) = (begun.elapsed(), limit / 4 * 3);
        assert!(
            took >= deadline && took < 2 * deadline,
            "{took:?}: {}",
            agent.log()
        );
    }
    drop(pipe);
    agent.stop();
}

#[test]
fn a_request_whose_time_is_over_is_not_carried_out() {
    let Some(kernel) = kernel_tests() else { return };
    let mut tree = kernel.tree();
    let (root, mut runtime, agent) = start(&kernel, &tree);
    connect_with_short_limit(&mut runtime, &agent);
    let worker = event_message(&tree, "worker", 1);
    runtime.change(RUN_POD_SANDBOX, &worker);
    let pipe = root.hang();
    assert_eq!(runtime.create(&worker).cpus, None);
    // The runtime goes on without the answers: the program runs.
    tree.make(&path(&worker));
    tree.start(&path(&worker));
    runtime.change(START_CONTAINER, &worker);
    drop(pipe);
    let status = agent.eventually("a turn pins the container", |status| {
        in_force(status, "worker") && kernel.effective(&path(&worker)) == kernel.last()
    });
    // Nobody waits for these turns any more.
    let carried_out = ["create", "start_container"].map(|request| turns(&agent, request));
    assert_eq!(carried_out, [0.0, 0.0], "{}", agent.log());
    // The program began before it was pinned.
    let unpinned = &container(&status, "worker", "main").unwrap()["unpinnedSeconds"];
    assert!(unpinned.as_f64().unwrap() > 0.0, "{status:#}");
    agent.stop();
}

// Property 5: requests that the runtime gives up.

#[test]
fn an_unanswered_create_still_records_its_assignment() {
    let Some(kernel) = kernel_tests() else { return };
    let mut tree = kernel.tree();
    let (root, mut runtime, agent) = start(&kernel, &tree);
    connect_with_short_limit(&mut runtime, &agent);
    let worker = event_message(&tree, "worker", 1);
    runtime.change(RUN_POD_SANDBOX, &worker);
    let pipe = root.hang();
    let created = runtime.create(&worker);
    assert!(
        created.cpus.is_none() && created.env.is_empty(),
        "{created:?}"
    );
    assert_eq!(recorded(&kernel, &pod_of(&worker)), CpuSet::new());
    drop(pipe);
    agent.eventually("the assignment is recorded", |_| {
        recorded(&kernel, &pod_of(&worker)) == kernel.last()
    });
    // The container exists without exclusive CPUs. The start waits for the CPUs.
    tree.make(&path(&worker));
    tree.start(&path(&worker));
    runtime.change(START_CONTAINER, &worker);
    assert_eq!(kernel.effective(&path(&worker)), kernel.last());
    agent.stop();
}

#[test]
fn a_late_stop_or_remove_updates_the_pods() {
    let Some(kernel) = kernel_tests() else { return };
    let late_events = [
        |description: &EventMessage| ("StopContainer", description.encode_to_vec()),
        |description: &EventMessage| ("StateChange", state_change(REMOVE_CONTAINER, description)),
        |description: &EventMessage| ("StateChange", state_change(STOP_POD_SANDBOX, description)),
        |description: &EventMessage| ("StateChange", state_change(REMOVE_POD_SANDBOX, description)),
    ];
    for late_event in late_events {
        let mut tree = kernel.tree();
        let root = Root::new();
        let mut runtime = Runtime::new();
        let settings = one_cpu_and_root(&kernel, &tree, &root);
        let agent = runtime.settings(&settings).start();
        connect_with_short_limit(&mut runtime, &agent);
        let (first, second) = (
            event_message(&tree, "first", 1),
            event_message(&tree, "second", 1),
        );
        let own = begin(&mut tree, &mut runtime, &first).unwrap();
        agent.eventually("the first runs", |status| {
            container(status, "first", "main").is_some_and(|container| container["running"] == true)
        });
        runtime.change(RUN_POD_SANDBOX, &second);
        // A creation without an answer holds the event behind it until the event's deadline has passed.
        let pipe = root.hang();
        let create = runtime.begin("CreateContainer", second.encode_to_vec());
        let (method, message) = late_event(&first);
        let late = runtime.begin(method, message);
        for call in [create, late] {
            assert!(runtime.answer(call).is_ok(), "{}", agent.log());
        }
        tree.remove(&pod_of(&first));
        drop(pipe);
        let what = format!("{method}: the first pod is gone, and the second has the CPU");
        agent.eventually(&what, |status| {
            container(status, "first", "main").is_none()
                && recorded(&kernel, &pod_of(&second)) == own
        });
        agent.stop();
    }
}

#[test]
fn an_unanswered_request_of_a_required_pod_is_refused() {
    let Some(kernel) = kernel_tests() else { return };
    let tree = kernel.tree();
    let (root, mut runtime, agent) = start(&kernel, &tree);
    connect_with_short_limit(&mut runtime, &agent);
    let worker = required(event_message(&tree, "worker", 1));
    runtime.change(RUN_POD_SANDBOX, &worker);
    let pipe = root.hang();
    for refusal in [
        runtime.call("CreateContainer", worker.encode_to_vec()),
        runtime.call("StateChange", state_change(START_CONTAINER, &worker)),
    ] {
        let refusal = refusal.unwrap_err();
        assert!(refusal.contains("could not decide in time"), "{refusal}");
    }
    drop(pipe);
    agent.stop();
}

#[test]
fn a_required_container_without_cpus_is_refused() {
    let Some(kernel) = kernel_tests() else { return };
    let mut tree = kernel.tree();
    let mut runtime = Runtime::new();
    let agent = runtime.settings(&one_cpu(&kernel, &tree)).start();
    connect(&mut runtime, &agent);
    let first = event_message(&tree, "first", 1);
    begin(&mut tree, &mut runtime, &first).unwrap();
    let second = required(event_message(&tree, "second", 1));
    runtime.change(RUN_POD_SANDBOX, &second);
    let refusal = runtime.try_create(&second).unwrap_err();
    assert!(refusal.contains("can't get exclusive CPUs"), "{refusal}");
    // A container from the time without an agent is refused at its start.
    tree.make(&path(&second));
    let start = state_change(START_CONTAINER, &second);
    let refusal = runtime.call("StateChange", start.clone()).unwrap_err();
    assert!(refusal.contains("can't get exclusive CPUs"), "{refusal}");
    // The same container starts once a CPU is free.
    end(&mut tree, &mut runtime, &first);
    agent.eventually("the first has ended", |status| {
        container(status, "first", "main").is_none()
    });
    wait_for_rest(&agent);
    assert_eq!(runtime.call("StateChange", start), Ok(Vec::new()));
    assert_eq!(kernel.effective(&path(&second)), kernel.last());
    agent.stop();
}

// Property 6: the first snapshot, Synchronize, and the wait for pods.

#[test]
fn nri_is_served_after_the_first_snapshot() {
    let Some(kernel) = kernel_tests() else { return };
    let tree = kernel.tree();
    let cluster = Cluster::new();
    cluster
        .fake
        .fail(FaultScope::always().on("pods"), Fault::Hang);
    let mut runtime = Runtime::new();
    let begun = Instant::now();
    let agent = runtime
        .settings(&cluster.settings(&tree, &kernel))
        .start_early();
    // The wait takes three seconds. On a slow machine, the wait may have ended by now.
    let status = agent.status();
    assert!(
        status.is_none() || begun.elapsed() > Duration::from_millis(2500),
        "the agent waits for pods"
    );
    let deadline = Instant::now() + patience();
    while !runtime.is_connected_within(Duration::from_millis(50)) {
        assert!(Instant::now() < deadline, "{}", agent.log());
    }
    assert!(agent.status().is_some(), "{}", agent.log());
    connect(&mut runtime, &agent);
    agent.stop();
}

#[test]
fn synchronize_changes_nothing() {
    let Some(kernel) = kernel_tests() else { return };
    let mut tree = kernel.tree();
    let mut runtime = Runtime::new();
    let agent = runtime.settings(&one_cpu(&kernel, &tree)).start();
    let all = ["worker", "web"].map(|name| {
        let mut description = event_message(&tree, name, i64::from(name == "worker"));
        description.container.as_mut().unwrap().state = ContainerState::Running as i32;
        description
    });
    let mut existing = Synchronize::default();
    for description in &all {
        tree.make(&path(description));
        tree.start(&path(description));
        existing.pods.extend(description.pod.clone());
        existing.containers.extend(description.container.clone());
    }
    let [worker, web] = &all;
    // The worker runs without exclusive CPUs. The answer leaves the worker unchanged; a turn pins the worker afterwards.
    let answer = runtime.synchronize(&agent, 20_000, &existing);
    assert_eq!(answer, Changed::default());
    agent.eventually("the worker is pinned", |_| {
        kernel.effective(&path(worker)) == kernel.last()
            && kernel.effective(&path(web)).is_disjoint(&kernel.last())
    });
    wait_for_rest(&agent);
    let now = || (state(&kernel, &[worker, web]), steps(&agent, &[]));
    let (before, seen) = (now(), turns(&agent, "runtime"));
    let answer = runtime.synchronize(&agent, 20_000, &existing);
    assert_eq!(answer, Changed::default());
    agent.eventually("a turn has read the list", |_| {
        turns(&agent, "runtime") > seen
    });
    assert_eq!(now(), before);
    agent.stop();
}

#[test]
fn no_turn_decides_before_the_pods_are_synced() {
    let Some(kernel) = kernel_tests() else { return };
    let mut tree = kernel.tree();
    let cluster = Cluster::new();
    cluster.put(&pod("worker-0", NODE));
    cluster
        .fake
        .fail(FaultScope::always().on("pods"), Fault::Hang);
    let cgroup = tree.pod("", "worker-0-uid");
    let main = tree.container(&cgroup, "main1");
    let pid = tree.start(&main);
    let begun = Instant::now();
    let agent = cluster.settings(&tree, &kernel).start_early();
    // New cgroups and the timer are triggers of turns. The wait for the API server takes three seconds.
    for number in 0.. {
        tree.pod("besteffort", &format!("more-{number}"));
        std::thread::sleep(Duration::from_millis(100));
        let (status, metrics) = (agent.status(), agent.get("/metrics"));
        if begun.elapsed() > Duration::from_secs(2) {
            break;
        }
        assert!(status.is_none() && metrics.status == 503, "{status:?}");
        assert_eq!(allowed(pid), kernel.online);
        assert_eq!(recorded(&kernel, &cgroup), CpuSet::new());
    }
    // The wait ends without a list: the first turn relies on the kernel's records.
    let status = agent.eventually("the wait has ended", |_| true);
    assert!(begun.elapsed() > Duration::from_millis(2500));
    assert_eq!(status["containers"], Value::Array(Vec::new()));
    assert_eq!(recorded(&kernel, &cgroup), CpuSet::new());
    cluster.fake.heal();
    cluster.fake.cut();
    agent.within(patience() * 9, "the pod is pinned", |status| {
        in_force(status, "worker-0") && allowed(pid) == kernel.last()
    });
    agent.stop();
}

// Property 7: isolated partitions.

/// The time between the end of workqueues on CPUs and the isolation of the partition with these
/// CPUs, at most: it begins with the last look that found workqueues there, and ends a little late.
/// `since` is a moment before the workqueues' end.
fn isolated_after(
    kernel: &Kernel,
    agent: &Agent,
    path: &str,
    own: &CpuSet,
    since: Instant,
) -> Duration {
    let mut not_left = since;
    agent.eventually("the partition is isolated", |_| {
        let (looked, partition) = (Instant::now(), kernel.partition(path));
        if !work_queues().is_disjoint(own) {
            assert_eq!(partition, "root", "workqueues have not left {own}");
            not_left = looked;
        }
        partition == "isolated"
    });
    assert!(work_queues().is_disjoint(own));
    assert_eq!(kernel.effective(path), *own);
    not_left.elapsed()
}

#[test]
fn a_partition_is_isolated_two_seconds_after_workqueues_left() {
    let Some(kernel) = partition_tests() else {
        return;
    };
    let before = work_queues();
    let mut tree = kernel.tree();
    let pods = Manifests::new();
    let agent = Settings::new(&tree.path, &pods, &kernel.first()).start();
    let isolated = "pinfold.io/partition: isolated";
    pods.put(
        "worker.yaml",
        &worker_with("worker-0", "worker-uid", 2, isolated, "main1"),
    );
    let pod = tree.pod("", "worker-uid");
    let main = tree.container(&pod, "main1");
    let since = Instant::now();
    tree.start(&main);
    agent.eventually("the worker is pinned", |status| {
        in_force(status, "worker-0")
    });
    let own = kernel.effective(&main);
    let time = isolated_after(&kernel, &agent, &main, &own, since);
    assert!(time > Duration::from_millis(1500), "{time:?}");
    tree.remove(&pod);
    pods.remove("worker.yaml");
    agent.eventually("workqueues are back", |_| work_queues() == before);
    agent.stop();
}

#[test]
fn a_started_container_is_isolated_two_seconds_after_workqueues_left() {
    let Some(kernel) = partition_tests() else {
        return;
    };
    let before = work_queues();
    let mut tree = kernel.tree();
    let mut runtime = Runtime::new();
    let agent = runtime.settings(&alone(&kernel, &tree)).start();
    connect(&mut runtime, &agent);
    let worker = annotated(
        event_message(&tree, "worker", 2),
        "pinfold.io/partition",
        "isolated",
    );
    let since = Instant::now();
    let own = begin(&mut tree, &mut runtime, &worker).unwrap();
    let main = path(&worker);
    // The program begins on exclusive CPUs, with load balancing. On a slow machine, the two seconds may have passed by now.
    let partition = kernel.partition(&main);
    assert!(
        partition == "root" || since.elapsed() > Duration::from_millis(1500),
        "{partition}"
    );
    assert_eq!(kernel.effective(&main), own);
    let time = isolated_after(&kernel, &agent, &main, &own, since);
    assert!(time > Duration::from_millis(1500), "{time:?}");
    end(&mut tree, &mut runtime, &worker);
    agent.eventually("workqueues are back", |_| work_queues() == before);
    agent.stop();
}

// Property 8: CPUs that systemd writes.

/// A start of a container in systemd's tree.
struct StartInSlice {
    took: Duration,
    own: CpuSet,
    effective: CpuSet,
    /// How often the agent set the CPUs of the container's unit.
    calls: usize,
    /// How often the agent set the CPUs of any unit.
    all_calls: usize,
    log: String,
}

impl StartInSlice {
    /// Starts a container whose CPUs systemd writes after `delay`, or never.
    fn run(kernel: &Kernel, delay: Option<Duration>) -> Self {
        let root = Root::new();
        fs::create_dir_all(Path::new(root.path()).join("run/systemd/system")).unwrap();
        let top = Cgroup::new(kernel, format!("pinfold-test-{}.slice", getpid()));
        let tree = format!("{}/kubepods.slice", top.1);
        let pod = format!("{tree}/kubepods-podworker_uid.slice");
        let unit = "cri-containerd-c0ffee.scope";
        let scope = format!("{pod}/{unit}");
        for path in [&tree, &pod] {
            kernel.cgroups.create(path).unwrap();
        }
        let units = [&top.1, &tree, &pod, &scope].map(|path| kernel.cgroups.root().join(path));
        let systemd = Systemd::start(&units);
        systemd.write_after(delay);
        let plain = kernel.tree();
        let mut worker = event_message(&plain, "worker", 1);
        let (of_pod, of_container) = (
            worker.pod.as_mut().unwrap(),
            worker.container.as_mut().unwrap(),
        );
        of_container.id = "c0ffee".to_owned();
        of_pod.linux.as_mut().unwrap().cgroup_parent = format!("/{pod}");
        of_container.linux.as_mut().unwrap().cgroups_path = format!("/{scope}");

        let mut settings = one_cpu_and_root(kernel, &plain, &root);
        settings
            .more
            .retain(|argument| !argument.starts_with("--enforcement"));
        settings.trees = vec![tree];
        settings.environment = vec![systemd.variable()];
        let mut runtime = Runtime::new();
        let agent = runtime
            .settings(&settings)
            .with(&["--enforcement=cpuset"])
            .start();
        connect(&mut runtime, &agent);
        runtime.change(RUN_POD_SANDBOX, &worker);
        let own = runtime.create(&worker).cpus.unwrap();
        // The reconciler hangs. The request therefore comes before the turn for the new cgroup.
        let pipe = root.hang();
        kernel.cgroups.create(&scope).unwrap();
        let call = runtime.begin("StateChange", state_change(START_CONTAINER, &worker));
        let_read(&agent);
        let before = (systemd.count(unit), systemd.count_all());
        let released = Instant::now();
        drop(pipe);
        assert_eq!(runtime.answer(call), Ok(Vec::new()), "{}", agent.log());
        let (took, effective) = (released.elapsed(), kernel.effective(&scope));
        let calls = systemd.count(unit) - before.0;
        let (all_calls, log) = (systemd.count_all() - before.1, agent.log());
        agent.kill();
        Self {
            took,
            own,
            effective,
            calls,
            all_calls,
            log,
        }
    }
}

#[test]
fn a_start_waits_for_systemd_to_write_the_cpus() {
    let Some(kernel) = v2_tests() else { return };
    let delay = Duration::from_millis(300);
    let mut start = StartInSlice::run(&kernel, Some(delay));
    // On a machine that stands still for a moment, a write may come after the agent's half second. Such a start does not count.
    for _ in 0..4 {
        let calls = u32::try_from(start.all_calls).unwrap();
        let on_time = start.took < (delay + Duration::from_millis(100)) * calls.max(1);
        if start.effective == start.own || on_time {
            break;
        }
        start = StartInSlice::run(&kernel, Some(delay));
    }
    assert_eq!(start.effective, start.own, "{}", start.log);
    assert!(
        start.took >= delay && start.calls > 0,
        "{:?}, {} calls: {}",
        start.took,
        start.calls,
        start.log
    );
}

#[test]
fn a_start_waits_half_a_second_for_each_write_of_systemd_at_most() {
    let Some(kernel) = v2_tests() else { return };
    let start = StartInSlice::run(&kernel, None);
    // The container's program begins all the same, and the next turn tries again.
    assert_ne!(start.effective, start.own);
    let half_seconds = u32::try_from(start.all_calls).unwrap();
    let limit = Duration::from_millis(500) * half_seconds;
    // Without a limit, the wait would end with the deadline of the answer after 15 s. The rest is for a slow machine.
    assert!(
        start.took >= limit && start.took < limit + Duration::from_secs(8) && start.calls > 0,
        "{:?}, {} calls: {}",
        start.took,
        start.all_calls,
        start.log
    );
    assert!(
        start.log.contains("systemd accepted AllowedCPUs"),
        "{}",
        start.log
    );
}

// Property 9: failed turns and lost CPUs.

/// Folders in place of the cgroup hierarchies' top folders, with links to the real cgroups. A
/// second pods' tree in these folders has a pod whose CPUs are in a file of the test. If this file
/// has no CPU set, every turn fails. A change of the file triggers no turn.
struct FailingTree {
    folder: tempfile::TempDir,
    /// The folder of the pod that can't be read.
    pod: PathBuf,
}

impl FailingTree {
    const TREE: &'static str = "failing/kubepods";

    /// Must be made after the cgroups at the top of the hierarchies.
    fn new(kernel: &Kernel) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let real = kernel.cgroups.root();
        let mut top = folder.path().join("cgroup");
        let link_all = |from: &Path, to: &Path| {
            fs::create_dir_all(to).unwrap();
            for entry in fs::read_dir(from).unwrap() {
                let entry = entry.unwrap();
                let place = to.join(entry.file_name());
                symlink(entry.path(), place).unwrap();
            }
        };
        if is_v1(kernel) {
            link_all(real.parent().unwrap(), &top);
            top = top.join("cpuset");
            fs::remove_file(&top).unwrap();
        }
        link_all(real, &top);
        let pod = top.join(Self::TREE).join("podfailing");
        fs::create_dir_all(&pod).unwrap();
        let tree = Self { folder, pod };
        tree.set_fails(false);
        symlink(tree.file("cpus"), tree.pod.join("cpuset.cpus")).unwrap();
        let config = format!("cgroupDir: {}\n", tree.file("cgroup").display());
        fs::write(tree.file("config.yaml"), config).unwrap();
        tree
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Whether reading the pod fails from now on.
    fn set_fails(&self, fails: bool) {
        let text = if fails { "nonsense" } else { "0" };
        fs::write(self.file("cpus"), text).unwrap();
    }

    /// Changes the pod's folder, so that the agent reads the pod again.
    fn touch(&self) {
        fs::write(self.pod.join("touched"), "").unwrap();
    }

    fn settings(&self, settings: &Settings) -> Settings {
        let mut settings = settings.clone();
        settings
            .more
            .retain(|argument| !argument.starts_with("--enforcement"));
        settings.trees.push(Self::TREE.to_owned());
        let config = self.file("config.yaml");
        settings.with(&["--enforcement=cpuset", "--config", config.to_str().unwrap()])
    }
}

/// The part of a status that only a turn changes.
fn decided(status: &Value) -> Vec<Value> {
    let of_node = ["exclusive", "shared", "unknownOwners", "drift"].map(|field| &status[field]);
    let containers = status["containers"].as_array().unwrap().iter();
    let fields = [
        "pod",
        "container",
        "assigned",
        "effective",
        "cgroup",
        "running",
    ];
    let of_containers = containers.flat_map(|container| fields.map(|field| &container[field]));
    of_node.into_iter().chain(of_containers).cloned().collect()
}

/// Whether the last turn has failed, by the errors of the status.
fn has_failed(status: &Value) -> bool {
    let errors = status["errors"].to_string();
    errors.contains("the last turn of the reconciler failed") && errors.contains(FailingTree::TREE)
}

#[test]
fn a_failed_turn_keeps_the_last_snapshot_with_its_error() {
    let Some(kernel) = kernel_tests() else { return };
    let mut tree = kernel.tree();
    let failing = FailingTree::new(&kernel);
    let pods = Manifests::new();
    pods.put("worker.yaml", &worker("worker-0", "worker-uid", 1));
    pods.put("web.yaml", &best_effort("web", "web-uid"));
    let settings =
        Settings::new(&tree.path, &pods, &kernel.all_but_one()).with(&["--reconcile-interval=1s"]);
    let agent = failing.settings(&settings).start();
    let web = tree.pod("besteffort", "web-uid");
    let web = tree.container(&web, "web1");
    tree.start(&web);
    let pod = tree.pod("", "worker-uid");
    let main = tree.container(&pod, "main1");
    let pid = tree.start(&main);
    agent.eventually("the worker is pinned", |status| {
        in_force(status, "worker-0") && kernel.effective(&web) == kernel.all_but_one()
    });
    let timer = turns(&agent, "timer");
    agent.eventually("a turn by the timer", |_| turns(&agent, "timer") > timer);
    let before = agent.status().unwrap();

    failing.set_fails(true);
    let status = agent.eventually("the failure is reported", has_failed);
    assert_eq!(decided(&status), decided(&before));
    // The error remains the only error, however many turns fail.
    let timer = turns(&agent, "timer");
    let status = agent.eventually("more turns have failed", |status| {
        turns(&agent, "timer") >= timer + 2.0 && has_failed(status)
    });
    assert_eq!(status["errors"].as_array().unwrap().len(), 1, "{status:#}");
    assert_eq!(allowed(pid), kernel.last());

    failing.set_fails(false);
    let status = agent.eventually("turns succeed", |status| !has_failed(status));
    assert_eq!(decided(&status), decided(&before));
    agent.stop();
}

#[test]
fn turns_that_fail_again_and_again_are_named_and_counted() {
    let Some(kernel) = kernel_tests() else { return };
    let tree = kernel.tree();
    let failing = FailingTree::new(&kernel);
    let pods = Manifests::new();
    let settings =
        Settings::new(&tree.path, &pods, &kernel.all_but_one()).with(&["--reconcile-interval=1s"]);
    let agent = failing.settings(&settings).start();
    let failures = || agent.metric("pinfold_reconcile_failures_total", &[]);
    assert_eq!(failures(), Some(0.0));
    assert_eq!(agent.get("/readyz").status, 200);
    failing.set_fails(true);
    agent.eventually("three turns have failed", |_| failures() >= Some(3.0));
    let status = agent.eventually("the status has the number of failures", |status| {
        status["errors"].to_string().contains("failed in a row")
    });
    assert!(has_failed(&status), "{status:#}");
    let readiness = agent.get("/readyz");
    assert_eq!(readiness.status, 503, "{}", readiness.body);
    assert!(
        readiness
            .body
            .contains("turns of the reconciler failed in a row"),
        "{}",
        readiness.body
    );
    assert!(
        readiness.body.contains(FailingTree::TREE),
        "{}",
        readiness.body
    );
    // A restart mends nothing.
    assert_eq!(agent.get("/healthz").status, 200);
    failing.set_fails(false);
    agent.eventually("a turn succeeds", |status| !has_failed(status));
    assert_eq!(agent.get("/readyz").status, 200);
    let counted = failures();
    wait_for_rest(&agent);
    assert_eq!(failures(), counted, "{}", agent.log());
    agent.stop();
}

#[test]
fn nothing_read_before_a_failed_turn_counts() {
    let Some(kernel) = kernel_tests() else { return };
    let tree = kernel.tree();
    let failing = FailingTree::new(&kernel);
    let mut runtime = Runtime::new();
    let settings = runtime.settings(&one_cpu(&kernel, &tree));
    let agent = failing.settings(&settings).start();
    connect(&mut runtime, &agent);
    let worker = event_message(&tree, "worker", 1);
    runtime.change(RUN_POD_SANDBOX, &worker);
    wait_for_rest(&agent);
    failing.set_fails(true);
    // While turns fail, another pod gets the CPU. The record comes without a trigger.
    let other = tree.pod("", "other-uid");
    failing.touch();
    agent.eventually("the failure is reported", has_failed);
    wait_for_rest(&agent);
    let mut record = AssignmentRecord::new(EarlierSettings::default());
    let containers = &mut record.assignment.containers;
    containers.insert("main".to_owned(), kernel.last());
    let text = record.text();
    let cgroups = &kernel.cgroups;
    cgroups.set_assignment_record(&other, Some(&text)).unwrap();
    failing.set_fails(false);
    // The state from before the failures would have the CPU free.
    assert_eq!(runtime.create(&worker).cpus, None, "{}", agent.log());
    assert_eq!(recorded(&kernel, &pod_of(&worker)), CpuSet::new());
    agent.stop();
}

#[test]
fn a_missing_cpu_counts_as_lost_after_900_ms() {
    let Some(kernel) = v2_tests() else { return };
    let tree = kernel.tree();
    let (machine, pods) = (Machine::new(&kernel.online), Manifests::new());
    let agent = Settings::new(&tree.path, &pods, &kernel.first())
        .with(&["--root-dir", machine.root.path(), "--reconcile-interval=1s"])
        .start();
    // A CPU comes online that no cgroup has.
    let new = kernel.online.iter().last().unwrap() + 1;
    let missing: CpuSet = [new].into_iter().collect();
    let all = kernel.online.union(&missing).to_string();
    machine.write(
        &format!("cpu/cpu{new}/topology/thread_siblings_list"),
        &new.to_string(),
    );
    machine.write("node/node0/cpulist", &all);
    machine.write("cpu/present", &all);
    // The last moment at which the agent had not reported the CPU as online. The 900 ms begin later.
    let (mut start, mut asked) = (Instant::now(), Instant::now());
    machine.write("cpu/online", &all);
    let mut status = agent.eventually("the CPU is online", |status| {
        let online = status["online"] == all;
        if !online {
            (start, asked) = (asked, Instant::now());
        }
        online
    });
    for number in 0.. {
        assert_eq!(status["lost"], "", "after {:?}", start.elapsed());
        tree.pod("besteffort", &format!("more-{number}"));
        std::thread::sleep(Duration::from_millis(50));
        status = agent.status().unwrap();
        if start.elapsed() > Duration::from_millis(700) {
            break;
        }
    }
    agent.eventually("the CPU is lost", |status| {
        status["lost"] == missing.to_string()
    });
    agent.stop();
}
