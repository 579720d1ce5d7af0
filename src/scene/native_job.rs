//! The labels, annotations and roles by which the objects of a native training job are known.

/// The label by which a native job asks for the reclaim of its parameter servers. The value is [`PS`].
pub const RECLAIM_LABEL: &str = "pinfold.io/reclaim";

/// The annotation with the number of the job's workers, on each worker and each object that may be reclaimed.
pub const WORKERS: &str = "pinfold.io/workers";

/// The annotation with the seconds to wait after the last worker, if the job sets them.
pub const RECLAIM_AFTER: &str = "pinfold.io/reclaim-after";

/// The annotation with the job's success policy, if it sets one: [`ALL_WORKERS`].
pub const SUCCESS_POLICY: &str = "pinfold.io/success-policy";

/// The success policy by which all workers have to succeed, even in a job with a chief.
pub const ALL_WORKERS: &str = "AllWorkers";

/// The labels of each task's objects: the job's name, the role, the task's number.
pub const TASK_LABELS: [&str; 3] = ["name", "job", "task"];

/// The label with the name of the plan: on claims, for administrators, and on each object and pod of a rendered job. A name that
/// is too long for a label's value has none.
pub const PLAN_LABEL: &str = "pinfold.io/plan";

/// The label with the scene of the plan.
pub const SCENE_LABEL: &str = "pinfold.io/scene";

/// The label with the case of the scene.
pub const CASE_LABEL: &str = "pinfold.io/case";

/// The label with the id of the experiment, if the job is a run of one.
pub const EXPERIMENT_LABEL: &str = "pinfold.io/experiment";

/// The label with how the run's pods get CPUs and threads: usual, sized, exclusive or both.
pub const WAY_LABEL: &str = "pinfold.io/way";

/// The label with the number of the run in its experiment, from 1.
pub const RUN_LABEL: &str = "pinfold.io/run";

/// The role of parameter servers, which run until a person or the reclaimer ends them.
pub const PS: &str = "ps";

/// The role of the coordinating task. The chief's success ends the job, unless the job sets a success policy.
pub const CHIEF: &str = "chief";

/// The role of tasks that evaluate checkpoints. No task talks to an evaluator, and no job waits for
/// one.
pub const EVALUATOR: &str = "evaluator";
