//! [`variable_counts`]: which variables of a container's environment decide something.

use super::THREAD_VARIABLES;

/// What TensorFlow's clusters are described in.
pub(super) const TF_CONFIG: &str = "TF_CONFIG";

/// What the variables of torchrun begin with.
pub(super) const TORCHRUN: &str = "PET_";

/// Whether anything that is decided or said here depends on a variable of that name. Of all others it need not even be known
/// that they are there.
pub fn variable_counts(name: &str) -> bool {
    THREAD_VARIABLES.contains(&name)
        || name == TF_CONFIG
        || name.starts_with(TORCHRUN)
        || names_a_hostfile(name)
}

/// Whether a variable's name says that it names a file of hosts, as those of MPI do.
pub(super) fn names_a_hostfile(name: &str) -> bool {
    name.as_bytes()
        .windows(8)
        .any(|part| part.eq_ignore_ascii_case(b"hostfile"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_of_services_and_shells_decide_nothing() {
        for name in [
            "OMP_NUM_THREADS",
            "TF_CONFIG",
            "PET_NNODES",
            "OMPI_MCA_orte_default_hostfile",
            "HostFile",
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
