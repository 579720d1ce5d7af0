//! Names of environment variables, and [`variable_counts`]: which variables affect a decision.

/// The variable that describes a TensorFlow cluster.
pub(super) const TF_CONFIG: &str = "TF_CONFIG";

/// The prefix of torchrun's variables.
pub(super) const TORCHRUN: &str = "PET_";

/// The variable by which torchrun takes the number of processes.
pub(super) const NPROC: &str = "PET_NPROC_PER_NODE";

/// The variables by which Open MPI and Intel MPI take the number of processes for a host of their file of hosts.
pub(super) const MPI_SLOTS: [&str; 2] = ["OMPI_MCA_orte_set_default_slots", "I_MPI_PERHOST"];

/// The workers' addresses, as Volcano's plugin `mpi` gives them to the task that starts the ranks.
pub(super) const MPI_HOSTS: &str = "MPI_HOST";

// Variables that size thread pools, and that several decisions name.
pub(super) const INTRA: &str = "TF_NUM_INTRAOP_THREADS";
pub(super) const INTER: &str = "TF_NUM_INTEROP_THREADS";
pub(super) const OMP: &str = "OMP_NUM_THREADS";
pub(super) const GRPC_QUEUES: &str = "TF_GRPC_WORKER_CACHE_QUEUES";
pub(super) const GRPC_THREADS: &str = "TF_GRPC_WORKER_CACHE_THREADS";

/// The prefix of the variables by which Intel MPI binds ranks to CPUs.
pub(super) const INTEL_PIN: &str = "I_MPI_PIN";

/// The number of worker threads of oneCCL, and the prefix of the variables that say where these run.
pub(super) const CCL_WORKERS: &str = "CCL_WORKER_COUNT";
pub(super) const CCL_WORKER: &str = "CCL_WORKER_";

/// All variables that configure a library's thread pool, including variables that Pinfold never sets.
pub const THREAD_VARIABLES: [&str; 13] = [
    INTRA,
    INTER,
    OMP,
    GRPC_QUEUES,
    GRPC_THREADS,
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "GOTO_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "NUMEXPR_MAX_THREADS",
    "NUMBA_NUM_THREADS",
    "KMP_BLOCKTIME",
    "OMP_THREAD_LIMIT",
];

/// Variables with a list of CPUs, and what precedes the list in the value. OMP_PLACES also takes names such as `cores`, and
/// KMP_AFFINITY a policy such as `compact`.
pub(super) const BINDING_VARIABLES: [(&str, &str); 4] = [
    ("OMP_PLACES", "{"),
    ("GOMP_CPU_AFFINITY", ""),
    ("KMP_AFFINITY", "proclist=["),
    ("I_MPI_PIN_PROCESSOR_LIST", ""),
];

/// Whether a decision or a message depends on a variable with this name. Pinfold need not keep any
/// other.
pub fn variable_counts(name: &str) -> bool {
    THREAD_VARIABLES.contains(&name)
        || [TF_CONFIG, MPI_HOSTS].contains(&name)
        || BINDING_VARIABLES
            .iter()
            .any(|(variable, _)| *variable == name)
        || MPI_SLOTS.contains(&name)
        || [TORCHRUN, INTEL_PIN, CCL_WORKER]
            .iter()
            .any(|prefix| name.starts_with(prefix))
        || names_a_hostfile(name)
}

/// Whether a variable's name stands for a file of hosts, as in MPI.
pub(super) fn names_a_hostfile(name: &str) -> bool {
    // `OMPI_MCA_orte_default_hostfile`, and `HYDRA_HOST_FILE` of MPICH and Intel MPI.
    let is_in = |part: &[u8]| {
        let mut windows = name.as_bytes().windows(part.len());
        windows.any(|window| window.eq_ignore_ascii_case(part))
    };
    is_in(b"hostfile") || is_in(b"host_file")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_of_services_and_shells_decide_nothing() {
        for name in [
            "OMP_NUM_THREADS",
            "TF_CONFIG",
            "PET_NNODES",
            "MPI_HOST",
            "I_MPI_PERHOST",
            "OMPI_MCA_orte_default_hostfile",
            "HostFile",
            "I_MPI_HYDRA_HOST_FILE",
            "OMP_PLACES",
            "I_MPI_PIN",
            "CCL_WORKER_COUNT",
        ] {
            assert!(variable_counts(name), "{name}");
        }
        for name in [
            "PATH",
            "KUBERNETES_SERVICE_HOST",
            "MY_TF_CONFIG",
            "HOSTNAME",
            "host",
            "",
        ] {
            assert!(!variable_counts(name), "{name}");
        }
    }
}
