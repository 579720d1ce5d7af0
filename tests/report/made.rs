//! A simulated experiment with known answers: 20 nodes, two scenes, two cases, four ways, six repeats, and a hot parameter server.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use pinfold::experiment::results::{
    CaseFacts, ClusterFacts, EvidenceSource, Experiment, FORM, GroupFacts, JobFacts, MeasuredRun,
    NodeFacts, PlannedRun, RunRecord, SceneFacts, StepSource, TaskRecord, TaskUsage,
};
use pinfold::experiment::statistics::{Condition, Design, DesignOptions, Way};

/// How long a run lasts, in seconds.
const SECONDS: f64 = 300.0;

/// A step's bytes between a worker and all servers, both directions.
const STEP_BYTES: f64 = 6e6;

/// What is simulated.
#[derive(Debug, Clone)]
pub(crate) struct Made {
    pub(crate) repeats: usize,
    /// The standard deviation of a run's logarithm.
    pub(crate) noise: f64,
    /// The true ratios.
    pub(crate) exclusive: f64,
    pub(crate) sized: f64,
    pub(crate) scene: f64,
    /// Whether the nodes' CPUs are emulated.
    pub(crate) emulated: bool,
    /// Whether each worker exports the job's global step.
    pub(crate) shared_counter: bool,
    pub(crate) job: String,
}

// === impl Made ===

impl Default for Made {
    fn default() -> Self {
        Self {
            repeats: 6,
            noise: 0.02,
            exclusive: 1.22,
            sized: 1.0,
            scene: 1.01,
            emulated: false,
            shared_counter: false,
            job: "wide-deep".to_owned(),
        }
    }
}

impl Made {
    pub(crate) fn experiment(&self) -> Experiment {
        let conditions = Condition::all(2, 2, &Way::ALL);
        let options = DesignOptions {
            repeats: self.repeats,
            ..DesignOptions::default()
        };
        let mut random = fastrand::Rng::with_seed(7);
        let mut order = vec![PlannedRun {
            number: 1,
            block: None,
            condition: conditions[0],
        }];
        for block in 0..self.repeats {
            let mut shuffled = conditions.clone();
            random.shuffle(&mut shuffled);
            for condition in shuffled {
                order.push(PlannedRun {
                    number: u32::try_from(order.len()).unwrap() + 1,
                    block: Some(block),
                    condition,
                });
            }
        }
        let group = |kind: &str, servers, ps, workers| GroupFacts {
            kind: Some(kind.to_owned()),
            servers,
            per_node: [("ps", ps), ("worker", workers)]
                .into_iter()
                .filter(|(_, tasks)| *tasks > 0)
                .map(|(role, tasks)| (role.to_owned(), tasks))
                .collect(),
        };
        let case = |case: &str, workers, groups: Vec<GroupFacts>| CaseFacts {
            case: case.to_owned(),
            servers: groups.iter().map(|group| group.servers).sum(),
            tasks: BTreeMap::from([("ps".to_owned(), 4), ("worker".to_owned(), workers)]),
            groups,
        };
        let scene = |scene: &str, cases| SceneFacts {
            scene: scene.to_owned(),
            cases,
        };
        // In scene 1 the servers have nodes of their own; in scene 2 some workers are beside them.
        let apart = |workers: u32| vec![group("ps", 4, 1, 0), group("worker", workers, 0, 1)];
        let mixed =
            |workers: u32| vec![group("mixed", 4, 1, 1), group("worker", workers - 4, 0, 1)];
        let node = |number: usize| NodeFacts {
            name: format!("node-{number:02}"),
            kernel: Some("6.12.57".to_owned()),
            allocatable_millicpus: Some(16_000),
            enforcement: Some("partition".to_owned()),
            cpu_model: None,
            emulated: Some(self.emulated),
        };
        Experiment {
            form: FORM,
            id: "k3v9x2".to_owned(),
            version: "0.1.0".to_owned(),
            began: "2026-11-28T08:00:00Z".to_owned(),
            cluster: ClusterFacts {
                id: None,
                server: "https://10.0.0.1:6443".to_owned(),
                kubernetes: Some("v1.36.2".to_owned()),
                nodes: (0..20).map(node).collect(),
            },
            plan: "ps-locality".to_owned(),
            namespace: "locality".to_owned(),
            scenes: vec![
                scene("1", vec![case("1", 4, apart(4)), case("2", 16, apart(16))]),
                scene("2", vec![case("1", 4, mixed(4)), case("2", 16, mixed(16))]),
            ],
            job: JobFacts {
                name: self.job.clone(),
                image: "registry.example/wide-deep:1.4".to_owned(),
                command: vec!["python3".to_owned(), "train.py".to_owned()],
                cpus: BTreeMap::from([
                    ("ps".to_owned(), "2".to_owned()),
                    ("worker".to_owned(), "4".to_owned()),
                ]),
                shared_roles: BTreeSet::new(),
                format: "native".to_owned(),
            },
            steps: StepSource::Lines {
                pattern: "^step".to_owned(),
            },
            design: Design::new(conditions, options).unwrap(),
            seed: 7,
            order,
        }
    }

    /// All runs, the warm-up included.
    pub(crate) fn runs(&self, experiment: &Experiment) -> Vec<RunRecord> {
        let mut random = fastrand::Rng::with_seed(11);
        let planned = experiment.order.iter();
        planned
            .map(|planned| self.run(experiment, *planned, &mut random))
            .collect()
    }

    fn run(
        &self,
        experiment: &Experiment,
        planned: PlannedRun,
        random: &mut fastrand::Rng,
    ) -> RunRecord {
        let Condition { scene, case, way } = planned.condition;
        let workers = experiment.scenes[scene].cases[case].tasks["worker"];
        // The hot server holds four times as many workers back.
        let scaled = if case == 0 { 1.0 } else { 0.72 };
        let factor = |is: bool, ratio: f64| if is { ratio } else { 1.0 };
        let rate = 2.5
            * scaled
            * factor(way.exclusive, self.exclusive)
            * factor(way.sized, self.sized)
            * factor(scene == 1, self.scene)
            * (self.noise * normal(random)).exp();
        let tasks = self.tasks(planned, workers, rate, random);
        let steps = tasks.iter().filter_map(|task| task.steps).sum::<f64>();
        RunRecord {
            form: FORM,
            planned,
            attempts: 1,
            failures: Vec::new(),
            failure: None,
            measured: MeasuredRun {
                began: Some("2026-11-28T08:10:00Z".to_owned()),
                ended: Some("2026-11-28T08:15:00Z".to_owned()),
                seconds: Some(SECONDS),
                steps_per_second: Some(steps / SECONDS),
                tasks,
                evidence: Some(EvidenceSource::Agents),
                warnings: Vec::new(),
            },
        }
    }

    fn tasks(
        &self,
        planned: PlannedRun,
        workers: u32,
        rate: f64,
        random: &mut fastrand::Rng,
    ) -> Vec<TaskRecord> {
        let pod = |role: &str, index: u32| format!("{}-{role}-{index}", self.job);
        let shares = [0.64, 0.16, 0.12, 0.08];
        let way = planned.condition.way;
        let mut sent: BTreeMap<(u32, u32), f64> = BTreeMap::new();
        let mut tasks = Vec::new();
        for index in 0..workers {
            // One node is slow where its CPUs are shared.
            let slow = index == 11 && !way.exclusive && planned.block != Some(3);
            let own = rate * (0.01 * normal(random)).exp() * if slow { 0.7 } else { 1.0 };
            let steps = if self.shared_counter {
                (rate * SECONDS).round()
            } else {
                (own * SECONDS).round()
            };
            let mut usage = self.usage(way, 4.0, 3.1 * own / 2.5, index);
            for (server, share) in (0..).zip(shares) {
                let bytes = steps * STEP_BYTES * share / 2.0;
                usage.sent_to.insert(pod("ps", server), bytes);
                sent.insert((server, index), bytes);
            }
            usage.sent_bytes = Some(steps * STEP_BYTES / 2.0);
            usage.received_bytes = usage.sent_bytes;
            tasks.push(TaskRecord {
                role: "worker".to_owned(),
                index: Some(index),
                pod: pod("worker", index),
                node: Some(format!("node-{:02}", 4 + index)),
                steps: Some(steps),
                step_seconds: Some(SECONDS),
                usage,
                ..TaskRecord::default()
            });
        }
        for (index, share) in (0..).zip(shares) {
            let of_server: f64 = (0..workers).map(|worker| sent[&(index, worker)]).sum();
            let mut usage = self.usage(way, 2.0, 2.6 * share * rate / 2.5, 20 + index);
            usage.sent_bytes = Some(of_server);
            usage.received_bytes = Some(of_server);
            for worker in 0..workers {
                usage
                    .sent_to
                    .insert(pod("worker", worker), sent[&(index, worker)]);
            }
            tasks.push(TaskRecord {
                role: "ps".to_owned(),
                index: Some(index),
                pod: pod("ps", index),
                node: Some(format!("node-{index:02}")),
                usage,
                ..TaskRecord::default()
            });
        }
        tasks
    }

    /// The use of a task with this many CPUs.
    fn usage(&self, way: Way, cpus: f64, used: f64, place: u32) -> TaskUsage {
        let threads = if way.sized { cpus } else { 16.0 };
        TaskUsage {
            observed_seconds: Some(SECONDS),
            cpu_seconds: Some(used * SECONDS),
            voluntary_switches: Some(900.0 * SECONDS),
            involuntary_switches: Some(if way.exclusive { 20.0 } else { 400.0 } * SECONDS),
            run_delay_seconds: Some(if way.exclusive { 0.02 } else { 0.6 } * SECONDS),
            quota_periods: (!way.exclusive).then_some(10.0 * SECONDS),
            throttled_periods: (!way.exclusive).then_some(1.1 * SECONDS),
            interference_seconds: way.exclusive.then_some(0.001 * SECONDS),
            exclusive_cpus: Some(if way.exclusive { cpus } else { 0.0 }),
            cpus: way
                .exclusive
                .then(|| format!("{}-{}", place % 4 * 4, place % 4 * 4 + 3)),
            threads: Some(threads),
            threads_expected: Some(cpus),
            threads_verdict: Some(
                if way.sized {
                    "as_expected"
                } else {
                    "more_than_expected"
                }
                .to_owned(),
            ),
            ..TaskUsage::default()
        }
    }
}

/// Writes a results folder as `pinfold scene run` does.
pub(crate) fn write(folder: &Path, experiment: &Experiment, runs: &[RunRecord]) {
    fs::create_dir_all(folder.join("runs")).unwrap();
    let json = serde_json::to_string_pretty(experiment).unwrap();
    fs::write(folder.join("experiment.json"), json).unwrap();
    for run in runs {
        let json = serde_json::to_string(run).unwrap();
        let name = format!("runs/{:04}.json", run.planned.number);
        fs::write(folder.join(name), json).unwrap();
    }
}

/// The 20-node experiment with a failed run and a missing one in the same repeat, one that needed a second attempt, and a doubtful one.
pub(crate) fn with_losses() -> (Experiment, Vec<RunRecord>) {
    let made = Made::default();
    let experiment = made.experiment();
    let mut runs = made.runs(&experiment);
    runs[9].failure = Some("worker 3 was evicted: the node was low on memory".to_owned());
    runs[9].measured.steps_per_second = None;
    runs[30].attempts = 2;
    runs[30].failures = vec!["ps 1 was not scheduled within 10 minutes".to_owned()];
    runs[44].measured.warnings.push(
        "the agent of node-07 gave no metrics for 40 s, so its tasks' figures lack that time"
            .to_owned(),
    );
    runs.remove(12);
    (experiment, runs)
}

/// A normal random number.
fn normal(random: &mut fastrand::Rng) -> f64 {
    let (one, other) = (1.0 - random.f64(), random.f64());
    (-2.0 * one.ln()).sqrt() * (std::f64::consts::TAU * other).cos()
}
