//! [`processes`]: the number of a container's processes that compute side by side.
//!
//! N processes with N threads each make N² threads, so thread counts are divided by the number of processes.

use std::num::NonZeroUsize;

use super::role::{option, words};
use super::variables::names_a_hostfile;
use super::{Container, EnvSource, PROCESSES_ANNOTATION, Pod};

/// The number of processes that share a container's CPUs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Processes {
    /// A known number.
    Known {
        /// The number of processes.
        count: NonZeroUsize,
        /// The evidence, as the middle of a sentence; `None` for the default of a single process.
        evidence: Option<String>,
    },
    /// A number that is invalid, or that Pinfold can't see.
    Unknown {
        /// The evidence, as the middle of a sentence.
        evidence: String,
    },
}

/// The number of the container's processes that compute side by side.
///
/// The first source decides:
///
/// 1. the pod's annotation `pinfold.io/processes`, a positive integer;
/// 2. torchrun's `--nproc_per_node` or `--nproc-per-node`, a number; `auto`, `cpu` and `gpu` depend on the machine
///    and give [`Processes::Unknown`];
/// 3. the variable `PET_NPROC_PER_NODE`, which torchrun reads;
/// 4. the `-np` or `-n` of mpirun, mpiexec or horovodrun, unless the command line or the environment names hosts:
///    with named hosts, the processes run in other pods.
///
/// The default is a single process. Processes that only load data do not count, since loaders wait most of the
/// time.
pub fn processes(pod: &Pod, container: &Container) -> Processes {
    if let Some(text) = pod.annotations.get(PROCESSES_ANNOTATION) {
        return number(text, format!("annotation {PROCESSES_ANNOTATION}={text}"));
    }
    let words = words(&container.args);
    if let Some(text) = option(&words, &["nproc_per_node", "nproc-per-node"]) {
        return number(text, format!("--nproc_per_node={text}"));
    }
    match container.env.get("PET_NPROC_PER_NODE") {
        Some(EnvSource::Value(text)) => return number(text, format!("PET_NPROC_PER_NODE={text}")),
        Some(EnvSource::Reference) => {
            return Processes::Unknown {
                evidence: "PET_NPROC_PER_NODE has valueFrom, which Pinfold can't read".to_owned(),
            };
        }
        None => {}
    }
    let starter = |word: &&str| {
        matches!(
            word.rsplit('/').next(),
            Some("mpirun" | "mpiexec" | "horovodrun")
        )
    };
    if let Some(at) = words.iter().position(starter)
        && let Some(text) = option(words.get(at..).unwrap_or_default(), &["np", "n"])
        && !names_hosts(container, &words)
    {
        return number(
            text,
            format!("{} -np {text}", words.get(at).copied().unwrap_or_default()),
        );
    }
    Processes::Known {
        count: NonZeroUsize::MIN,
        evidence: None,
    }
}

fn number(text: &str, evidence: String) -> Processes {
    match text.trim().parse() {
        Ok(count) => Processes::Known {
            count,
            evidence: Some(evidence),
        },
        Err(_) => Processes::Unknown { evidence },
    }
}

/// Whether an MPI command starts processes on named hosts, which are other pods.
fn names_hosts(container: &Container, words: &[&str]) -> bool {
    let options = ["H", "host", "hosts", "hostfile", "machinefile", "f"];
    option(words, &options).is_some() || container.env.keys().any(|name| names_a_hostfile(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The number for a command, `1 by default`, or the evidence for an unknown number.
    fn count(command: &str, env: &[(&str, Option<&str>)]) -> String {
        let value = |value: Option<&str>| {
            value.map_or(EnvSource::Reference, |value| {
                EnvSource::Value(value.to_owned())
            })
        };
        let container = Container {
            args: vec!["sh".to_owned(), "-c".to_owned(), command.to_owned()],
            env: env
                .iter()
                .map(|&(name, text)| (name.to_owned(), value(text)))
                .collect(),
            ..Container::default()
        };
        match processes(&Pod::default(), &container) {
            Processes::Known {
                count,
                evidence: Some(_),
            } => count.to_string(),
            Processes::Known {
                count,
                evidence: None,
            } => format!("{count} by default"),
            Processes::Unknown { evidence } => evidence,
        }
    }

    #[test]
    fn commands() {
        let cases = [
            ("python train.py", "1 by default"),
            ("torchrun --nproc_per_node=4 train.py", "4"),
            ("torchrun --nproc-per-node 4 --nnodes 2 train.py", "4"),
            (
                "python -m torch.distributed.run --nproc_per_node='8' x.py",
                "8",
            ),
            (
                "torchrun --nproc_per_node=auto train.py",
                "--nproc_per_node=auto",
            ),
            ("torchrun --nproc_per_node=0 train.py", "--nproc_per_node=0"),
            (
                "torchrun --nproc_per_node=-2 train.py",
                "--nproc_per_node=-2",
            ),
            (
                "torchrun --nproc_per_node=$N train.py",
                "--nproc_per_node=$N",
            ),
            ("mpirun -np 6 --bind-to none python train.py", "6"),
            ("/usr/bin/mpiexec -n 2 python train.py", "2"),
            ("horovodrun -np 3 python train.py", "3"),
            ("mpirun -np 16 -H a:4,b:4 python train.py", "1 by default"),
            (
                "mpirun -np 16 --hostfile /etc/mpi/hostfile python train.py",
                "1 by default",
            ),
            ("sort -n 5 file", "1 by default"),
        ];
        for (command, expected) in cases {
            assert_eq!(count(command, &[]), expected, "{command}");
        }
    }

    #[test]
    fn variables() {
        assert_eq!(
            count("torchrun train.py", &[("PET_NPROC_PER_NODE", Some("2"))]),
            "2"
        );
        assert_eq!(
            count(
                "torchrun --nproc_per_node=4 x",
                &[("PET_NPROC_PER_NODE", Some("2"))]
            ),
            "4"
        );
        assert_eq!(
            count("torchrun x", &[("PET_NPROC_PER_NODE", None)]),
            "PET_NPROC_PER_NODE has valueFrom, which Pinfold can't read"
        );
        assert_eq!(
            count(
                "mpirun -np 8 x",
                &[("OMPI_MCA_orte_default_hostfile", Some("/etc/mpi/hostfile"))]
            ),
            "1 by default"
        );
    }
}
