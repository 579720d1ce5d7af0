//! [`ROLE_KEYS`]: the labels by which operators mark their pods.

/// The label with the name of the operator that made the pod.
pub(super) const OPERATOR: &str = "training.kubeflow.org/operator-name";
pub(super) const KUBEFLOW_TYPE: &str = "training.kubeflow.org/replica-type";
pub(super) const KUBEFLOW_INDEX: &str = "training.kubeflow.org/replica-index";
pub(super) const KUBEFLOW_JOB: &str = "training.kubeflow.org/job-name";
/// On all pods of the MPI operator, and with the value `master` on one pod of each job of the training operator.
pub(super) const KUBEFLOW_ROLE: &str = "training.kubeflow.org/job-role";

// The MPI operator before 0.4, with the API `kubeflow.org/v1`.
pub(super) const MPI_ROLE: &str = "mpi-job-role";
pub(super) const MPI_JOB: &str = "mpi-job-name";

/// The number of a pod of an indexed Job.
pub(super) const COMPLETION_INDEX: &str = "batch.kubernetes.io/job-completion-index";

pub(super) const JOBSET_NAME: &str = "jobset.sigs.k8s.io/jobset-name";
pub(super) const JOBSET_JOB: &str = "jobset.sigs.k8s.io/replicatedjob-name";
/// How many Jobs have the name in [`JOBSET_JOB`].
pub(super) const JOBSET_REPLICAS: &str = "jobset.sigs.k8s.io/replicatedjob-replicas";
/// The number of the Job among them.
pub(super) const JOBSET_INDEX: &str = "jobset.sigs.k8s.io/job-index";

/// The container that Kubeflow Trainer configures in the pods of its JobSets. The Trainer's own labels stay on the Jobs, so on a
/// pod only this name shows it.
pub(super) const TRAINER_CONTAINER: &str = "node";

pub(super) const VOLCANO_TASK: &str = "volcano.sh/task-spec";
pub(super) const VOLCANO_INDEX: &str = "volcano.sh/task-index";
pub(super) const VOLCANO_JOB: &str = "volcano.sh/job-name";

pub(super) const LWS_NAME: &str = "leaderworkerset.sigs.k8s.io/name";
pub(super) const LWS_INDEX: &str = "leaderworkerset.sigs.k8s.io/worker-index";

pub(super) const RAY_CLUSTER: &str = "ray.io/cluster";
pub(super) const RAY_TYPE: &str = "ray.io/node-type";
/// On the pods of a RayService alone, whatever the value.
pub(super) const RAY_SERVES: &str = "ray.io/serve";
/// The number of a replica in its group of workers, since KubeRay 1.7.
pub(super) const RAY_INDEX: &str = "ray.io/worker-group-replica-index";
/// The number of a host in its replica, on the pods of replicas that have several hosts.
pub(super) const RAY_HOST: &str = "ray.io/replica-host-index";

/// The group of plain pods that Kueue admits together.
pub(super) const KUEUE_GROUP: &str = "kueue.x-k8s.io/pod-group-name";

/// The keys of labels, and of annotations, that show a role, an index or a job.
pub(super) const ROLE_KEYS: [&str; 36] = [
    OPERATOR,
    KUBEFLOW_TYPE,
    KUBEFLOW_INDEX,
    KUBEFLOW_JOB,
    KUBEFLOW_ROLE,
    MPI_ROLE,
    MPI_JOB,
    COMPLETION_INDEX,
    JOBSET_NAME,
    JOBSET_JOB,
    JOBSET_REPLICAS,
    JOBSET_INDEX,
    VOLCANO_TASK,
    VOLCANO_INDEX,
    VOLCANO_JOB,
    LWS_NAME,
    LWS_INDEX,
    RAY_CLUSTER,
    RAY_TYPE,
    RAY_SERVES,
    RAY_INDEX,
    RAY_HOST,
    KUEUE_GROUP,
    "replica-type",
    "group-name",
    "replica-index",
    "job-name",
    "tf-job-name",
    "tf-replica-type",
    "tf-replica-index",
    "spark-role",
    "spark-exec-id",
    "spark-app-name",
    "name",
    "job",
    "task",
];
