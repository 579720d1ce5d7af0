//! [`processes`]: the number of a container's processes that compute side by side.
//!
//! N processes with N threads each make N² threads, so thread counts are divided by the number of processes.

use std::num::NonZeroUsize;

use super::launcher::{Found, Launch, Search, by_slots, by_variable};
use super::operator_labels::{JOBSET_JOB, KUBEFLOW_ROLE};
use super::role::{is_mpi_worker, recognise};
use super::variables::names_a_hostfile;
use super::{Container, PROCESSES_ANNOTATION, Pod, PodRole};

/// The number of processes that share a container's CPUs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Processes {
    Known {
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

impl Default for Processes {
    fn default() -> Self {
        Self::Known {
            count: NonZeroUsize::MIN,
            evidence: None,
        }
    }
}

/// The number of the container's processes that compute side by side.
///
/// The first source decides:
///
/// 1. the pod's annotation `pinfold.io/processes`, a positive integer;
/// 2. the launchers in the command line: torchrun, `accelerate launch`, deepspeed, horovodrun, and
///    the commands of MPI. Their numbers may depend on the machine or on files, and several may
///    disagree, which gives [`Processes::Unknown`]. Processes on other hosts run in other pods, and
///    don't count;
/// 3. the variable `PET_NPROC_PER_NODE`, which torchrun reads. Operators set it whatever the command is, so it doesn't count
///    where Python runs a program that is no launcher;
/// 4. in a pod of an MPIJob that runs ranks and its launcher, too, the slots of each host.
///
/// The launcher of an MPIJob starts the processes of the workers, so their number is
/// [`Processes::Unknown`].
///
/// The default is a single process. Processes that only load data do not count, since they wait
/// most of the time.
pub fn processes(pod: &Pod, container: &Container) -> Processes {
    by_launches(
        pod,
        recognise(pod).role,
        container,
        Search::of(pod, container),
    )
}

/// As [`processes`], with the pod's role and what a search through the container's command line found.
pub(super) fn by_launches(
    pod: &Pod,
    role: PodRole,
    container: &Container,
    found: Found,
) -> Processes {
    if let Some(text) = pod.annotations.get(PROCESSES_ANNOTATION) {
        let evidence = format!("annotation {PROCESSES_ANNOTATION}={text}");
        return match text.trim().parse() {
            Ok(count) => Processes::Known {
                count,
                evidence: Some(evidence),
            },
            Err(_) => Processes::Unknown { evidence },
        };
    }
    let mut launches = found.launches;
    if launches.is_empty() {
        let variable = by_variable(container).filter(|_| !found.runs_python);
        launches.extend(variable.or_else(|| by_mpi(pod, role, container)));
    }
    let mut decided: Option<(NonZeroUsize, String)> = None;
    for launch in launches {
        match (launch, &decided) {
            (Launch::Unclear { evidence }, _) => return Processes::Unknown { evidence },
            (Launch::Processes { count, evidence }, Some((other, by))) if count != *other => {
                return Processes::Unknown {
                    evidence: format!("{by}, but {evidence}"),
                };
            }
            (Launch::Processes { count, evidence }, None) => decided = Some((count, evidence)),
            (Launch::Processes { .. }, Some(_)) => {}
        }
    }
    match decided {
        Some((count, evidence)) => Processes::Known {
            count,
            evidence: Some(evidence),
        },
        None => Processes::default(),
    }
}

/// The processes that the launcher of an MPIJob starts in the pod, if the pod runs any.
fn by_mpi(pod: &Pod, role: PodRole, container: &Container) -> Option<Launch> {
    if is_mpi_worker(pod) {
        let evidence = "the launcher of the MPIJob starts them".to_owned();
        return Some(Launch::Unclear { evidence });
    }
    let is_launcher = |key: &str| pod.labels.get(key).is_some_and(|role| role == "launcher");
    let computes =
        role == PodRole::Chief && [KUBEFLOW_ROLE, JOBSET_JOB].into_iter().any(is_launcher);
    if !computes || !container.env.keys().any(|name| names_a_hostfile(name)) {
        return None;
    }
    Some(by_slots(container).unwrap_or_else(|| Launch::Unclear {
        evidence: "the file of hosts names this pod, too".to_owned(),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::EnvSource;

    fn describe(args: Vec<String>, env: &[(&str, Option<&str>)]) -> String {
        let value = |value: Option<&str>| {
            value.map_or(EnvSource::Reference, |value| {
                EnvSource::Value(value.to_owned())
            })
        };
        let container = Container {
            args: args.into(),
            env: env
                .iter()
                .map(|&(name, text)| (name.to_owned(), value(text)))
                .collect(),
            ..Container::default()
        };
        let pod = Pod {
            name: "worker-0".to_owned(),
            ..Pod::default()
        };
        match processes(&pod, &container) {
            Processes::Known {
                count,
                evidence: Some(_),
            } => count.to_string(),
            Processes::Known {
                count,
                evidence: None,
            } => format!("{count} by default"),
            Processes::Unknown { evidence } => format!("? {evidence}"),
        }
    }

    /// The number for a script, `1 by default`, or the evidence for an unknown number.
    fn count(script: &str, env: &[(&str, Option<&str>)]) -> String {
        describe(
            vec!["sh".to_owned(), "-c".to_owned(), script.to_owned()],
            env,
        )
    }

    /// The same for a command line without a shell.
    fn count_args(args: &[&str]) -> String {
        describe(args.iter().map(|&arg| arg.to_owned()).collect(), &[])
    }

    fn check(cases: &[(&str, &str)]) {
        for &(command, expected) in cases {
            assert_eq!(count(command, &[]), expected, "{command}");
        }
    }

    #[test]
    fn torchrun_and_its_relatives() {
        check(&[
            ("python train.py", "1 by default"),
            ("torchrun --nproc_per_node=4 train.py", "4"),
            ("torchrun --nproc-per-node 4 --nnodes 2 train.py", "4"),
            ("torchrun --standalone --nproc_per_node 4 -m my.train", "4"),
            ("torchrun --nproc 4 train.py", "4"),
            ("torchrun --rdzv-id nproc-per-node train.py", "1 by default"),
            (
                "torchrun --no-such-option 4 train.py",
                "? torchrun has the option --no-such-option, which Pinfold does not know",
            ),
            (
                "/opt/conda/bin/torchrun --nproc_per_node=4 train.py --nproc_per_node=16",
                "4",
            ),
            (
                "python -m torch.distributed.run --nproc_per_node='8' x.py",
                "8",
            ),
            (
                "python3.11 -u -mtorch.distributed.launch --use_env --nproc_per_node=8 x.py",
                "8",
            ),
            (
                "python -X dev -um torch.distributed.run --nproc_per_node=8 x.py",
                "8",
            ),
            (
                "python /usr/lib/python3/dist-packages/torch/distributed/run.py --nproc_per_node=8 x.py",
                "8",
            ),
            (
                "torchrun --nproc_per_node=auto train.py",
                "? --nproc_per_node=auto is one for each CPU of the whole machine unless it has accelerators, so write a \
                 number instead",
            ),
            (
                "torchrun --nproc-per-node cpu train.py",
                "? --nproc-per-node cpu is one for each CPU of the whole machine, so write a number instead",
            ),
            (
                "torchrun --nproc_per_node=0 train.py",
                "? --nproc_per_node=0",
            ),
            (
                "torchrun --nproc_per_node=-2 train.py",
                "? --nproc_per_node=-2",
            ),
            (
                "torchrun --nproc_per_node=$N train.py",
                "? --nproc_per_node=$N",
            ),
            (
                "torchrun --nproc_per_node \"$(nproc --all)\" train.py",
                "? --nproc_per_node $(nproc --all)",
            ),
            // No known launcher, but its option tells that it starts processes.
            (
                "python train.py --nproc_per_node=16",
                "? --nproc_per_node=16 of train.py, a launcher that Pinfold does not know",
            ),
            (
                "tune run --nproc_per_node 2 recipe",
                "? --nproc_per_node of tune, a launcher that Pinfold does not know",
            ),
            (
                "python train.py -c 'torchrun --nproc_per_node=4'",
                "1 by default",
            ),
        ]);
    }

    #[test]
    fn mpi_and_horovod() {
        check(&[
            ("mpirun -np 6 --bind-to none python train.py", "6"),
            ("/usr/bin/mpiexec -n 2 python train.py", "2"),
            (
                "mpirun --allow-run-as-root --mca btl self,tcp -x PATH -np 4 python t.py",
                "4",
            ),
            ("mpiexec -genv A=1 -genv B 2 -ppn 4 python t.py", "4"),
            ("mpiexec -ppn 4 -n 8 python t.py", "8"),
            ("mpiexec.hydra -perhost 4 python t.py", "4"),
            ("mpirun -npernode 4 python t.py", "4"),
            ("mpirun -N 4 python t.py", "4"),
            ("mpirun -pernode python t.py", "1"),
            ("mpirun --map-by ppr:4:node:PE=2 python t.py", "4"),
            (
                "mpirun --map-by ppr:4:socket python t.py",
                "? mpirun without -np",
            ),
            ("mpirun python t.py", "? mpirun without -np"),
            ("mpirun -np $N python t.py", "? mpirun -np $N"),
            ("mpirun -np 4 python t.py -n 2000", "4"),
            ("mpirun -np 4 python t.py -f conf.yaml --host 0.0.0.0", "4"),
            ("mpirun -n 4 python -n 2 t.py", "4"),
            ("mpirun -np 2 python a.py : -np 1 python b.py -np 7", "3"),
            (
                "mpirun -np 2 numactl -N 0 torchrun --nproc_per_node=3 t.py",
                "6",
            ),
            ("mpirun -np 2 sh -c 'torchrun --nproc_per_node=3 t.py'", "6"),
            ("horovodrun -np 3 python train.py", "3"),
            (
                "horovodrun --gloo --num-proc 3 -p 22 python train.py -np 9",
                "3",
            ),
            (
                "horovodrun --min-np 2 --host-discovery-script x.sh python t.py",
                "? horovodrun without -np",
            ),
            // Hosts
            ("mpirun -np 16 -H a:4,b:4 python train.py", "1 by default"),
            ("mpirun --host a:4,b:4 python train.py", "1 by default"),
            (
                "mpirun -np 16 --hostfile /etc/mpi/hostfile python train.py",
                "1 by default",
            ),
            ("mpiexec -f hosts -n 16 python train.py", "1 by default"),
            ("mpirun -np 4 -H localhost:4 python t.py", "4"),
            ("mpirun -H 127.0.0.1:4 python t.py", "4"),
            (
                "mpirun --host localhost,localhost,localhost python t.py",
                "3",
            ),
            ("horovodrun -np 4 -H [::1]:4 python t.py", "4"),
            ("mpirun -np 4 -host ::1 python t.py", "4"),
            ("horovodrun -np 4 -H $(hostname):4 python t.py", "4"),
            ("horovodrun -np 4 -H worker-0:4 python t.py", "4"),
            (
                "horovodrun -np 8 -H worker-0.jobs:3,worker-1.jobs:5 python t.py",
                "3",
            ),
        ]);
        let hostfile = |name| count("mpirun -np 8 x", &[(name, Some("/etc/mpi/hostfile"))]);
        for name in [
            "OMPI_MCA_orte_default_hostfile",
            "I_MPI_HYDRA_HOST_FILE",
            "HYDRA_HOST_FILE",
        ] {
            assert_eq!(hostfile(name), "1 by default", "{name}");
        }
    }

    #[test]
    fn other_launchers() {
        check(&[
            (
                "accelerate launch --num_processes 4 t.py --num_processes 9",
                "4",
            ),
            (
                "accelerate launch --cpu --use_fsdp --num-processes=4 t.py",
                "4",
            ),
            (
                "accelerate launch --num_processes 8 --num_machines 2 --machine_rank 0 t.py",
                "4",
            ),
            (
                "accelerate launch --num_processes 8 --num_machines 3 t.py",
                "? --num_processes 8 on 3 machines",
            ),
            (
                "accelerate launch t.py",
                "? accelerate launch without --num_processes",
            ),
            (
                "accelerate launch --config_file c.yaml --num_processes 4 t.py",
                "? the file of accelerate launch may name several machines",
            ),
            (
                "accelerate launch --brand_new t.py --num_processes 9 --num_processes 9",
                "? --num_processes 9",
            ),
            (
                "python -m accelerate.commands.launch --num_processes=4 t.py",
                "4",
            ),
            ("accelerate env", "1 by default"),
            ("deepspeed --num_gpus 4 t.py", "4"),
            (
                "deepspeed --num_nodes=1 --num_gpus=4 --module t --num_gpus 9",
                "4",
            ),
            ("deepspeed --include localhost:0,1,5 t.py", "3"),
            (
                "deepspeed --include localhost:0@worker-1:0 t.py",
                "? --include localhost:0@worker-1:0",
            ),
            (
                "deepspeed t.py",
                "? deepspeed without --num_gpus starts a process for each accelerator",
            ),
            (
                "deepspeed -H hosts --num_gpus 4 t.py",
                "? deepspeed reads the processes from a file of hosts",
            ),
            (
                "ray start --head --num-cpus=4",
                "? ray starts a number of processes that its options do not tell",
            ),
            (
                "srun -n 4 python t.py",
                "? srun starts a number of processes that its options do not tell",
            ),
            (
                "for i in 0 1 2 3; do python t.py --rank $i & done; wait",
                "? a loop of the shell starts python",
            ),
            (
                "for i in 1 2; do curl x; done; tensorboard & python t.py",
                "1 by default",
            ),
        ]);
    }

    #[test]
    fn words_before_and_around_the_launcher() {
        check(&[
            (
                "set -e; export A=1 && cd /x && exec torchrun --nproc_per_node=4 t.py",
                "4",
            ),
            ("OMP_NUM_THREADS=2 torchrun --nproc_per_node=4 t.py", "4"),
            ("PET_NPROC_PER_NODE=4 torchrun t.py", "4"),
            ("export PET_NPROC_PER_NODE=4\ntorchrun t.py", "4"),
            ("env -u A PET_NPROC_PER_NODE=4 torchrun t.py", "4"),
            (
                "timeout -k 5 1h numactl --cpunodebind=0 --membind 0 mpirun -np 4 python t.py",
                "4",
            ),
            ("taskset -c 0-3 nice -n 5 mpirun -np 4 python t.py", "4"),
            (
                "conda run --no-capture-output -n env torchrun --nproc_per_node=4 t.py",
                "4",
            ),
            (
                "if [ -n \"$A\" ]; then torchrun --nproc_per_node=4 a.py; else torchrun --nproc_per_node=4 b.py; fi",
                "4",
            ),
            (
                "mpirun -np 8 prepare; torchrun --nproc_per_node=4 t.py",
                "? mpirun -np 8, but --nproc_per_node=4",
            ),
            // Not commands
            ("python t.py # torchrun --nproc_per_node=4", "1 by default"),
            ("# mpirun -np 8 old.py\npython t.py", "1 by default"),
            ("echo 'run mpirun -np 8 x' && python t.py", "1 by default"),
            (
                "cat >run.txt <<EOF\nmpirun -np 8 x\nEOF\npython t.py",
                "1 by default",
            ),
            (
                "pip install deepspeed horovod && command -v mpirun; python t.py",
                "1 by default",
            ),
            ("sort -n 5 file", "1 by default"),
            (
                "numactl -N 0 ./train -n 2000 --backend mpirun",
                "1 by default",
            ),
        ]);
    }

    #[test]
    fn arguments_that_are_no_script() {
        for (args, expected) in [
            (
                &[
                    "env",
                    "OMP_NUM_THREADS=2",
                    "torchrun",
                    "--nproc_per_node=4",
                    "t.py",
                ][..],
                "4",
            ),
            (
                &[
                    "/opt/nvidia/nvidia_entrypoint.sh",
                    "torchrun",
                    "--nproc_per_node=4",
                    "t.py",
                ],
                "4",
            ),
            (
                &[
                    "tini",
                    "-g",
                    "--",
                    "/entrypoint.sh",
                    "bash",
                    "-lc",
                    "--",
                    "mpirun -np 4 x",
                ],
                "4",
            ),
            (
                &[
                    "bash",
                    "-e",
                    "entrypoint",
                    "torchrun",
                    "--nproc_per_node=4",
                    "t.py",
                ],
                "4",
            ),
            (&["torchrun --nproc_per_node=4 t.py"], "4"),
            (
                &["python", "t.py", "--note", "mpirun -np 4 x"],
                "1 by default",
            ),
            (
                &["bash", "train.sh", "--launcher", "mpirun", "-n", "4"],
                "1 by default",
            ),
            (&["--nproc_per_node=4", "t.py"], "4"),
            (&[], "1 by default"),
        ] {
            assert_eq!(count_args(args), expected, "{args:?}");
        }
    }

    #[test]
    fn variables() {
        for (command, value, expected) in [
            ("torchrun train.py", Some("2"), "2"),
            ("/start-torch", Some("2"), "2"),
            ("tune run full_finetune_distributed", Some("2"), "2"),
            ("python -m pip install x && ./start", Some("2"), "2"),
            // Nobody reads it.
            ("python train.py", Some("2"), "1 by default"),
            (
                "pip install x; python3 -m my.train",
                Some("auto"),
                "1 by default",
            ),
            (
                "./start",
                Some("auto"),
                "? PET_NPROC_PER_NODE=auto is one for each CPU of the whole machine unless it has accelerators, so write a \
                 number instead",
            ),
            ("torchrun --nproc_per_node=4 x", Some("2"), "4"),
            ("mpirun -np 3 torchrun x", Some("2"), "6"),
            ("torchrun x", Some("gpu"), "? PET_NPROC_PER_NODE=gpu"),
            (
                "torchrun x",
                None,
                "? PET_NPROC_PER_NODE has valueFrom, which Pinfold can't read",
            ),
        ] {
            assert_eq!(
                count(command, &[("PET_NPROC_PER_NODE", value)]),
                expected,
                "{command}"
            );
        }
    }

    #[test]
    fn sshd_in_the_foreground_starts_what_others_ask_for() {
        let sessions = "? sshd starts what a launcher elsewhere asks for";
        check(&[
            ("mkdir -p /run/sshd; /usr/sbin/sshd -D", sessions),
            ("exec /usr/sbin/sshd -f /home/me/.sshd_config -De", sessions),
            ("/usr/sbin/sshd; python t.py", "1 by default"),
            ("/usr/sbin/sshd -D & python t.py", "1 by default"),
            (
                "/usr/sbin/sshd -oLogLevel=DEBUG; python t.py",
                "1 by default",
            ),
        ]);
        assert_eq!(count_args(&["/usr/sbin/sshd", "-De"]), sessions);
    }

    #[test]
    fn command_lines_of_any_size_are_read_in_time() {
        let deep = "sh -c ".repeat(50_000);
        assert_eq!(count(&deep, &[]), "1 by default");
        let mut words = vec!["exec".to_owned(); 50_000];
        words.push("mpirun".to_owned());
        let nested = describe(words, &[]);
        assert_eq!(nested, "? more than 8 programs that start each other");
        let long = describe(
            vec!["mpirun".to_owned(), "-np".to_owned(), "é".repeat(1 << 20)],
            &[],
        );
        assert!(long.len() < 1000, "{} bytes of evidence", long.len());
        assert_eq!(count(&"(${`\"'<<".repeat(100_000), &[]), "1 by default");
    }
}
