//! [`rank_environment`]: the CPUs of each local process of a container, as variables.
//!
//! | variable | for | when |
//! |---|---|---|
//! | `PINFOLD_RANK_CPUS` | the program, or a wrapper around it | always |
//! | `I_MPI_PIN_DOMAIN` | Intel MPI | mpirun starts all of the processes in this container, and nothing else binds them |
//! | `CCL_WORKER_AFFINITY` | oneCCL | a launcher other than MPI's and Horovod's starts the processes |
//!
//! Intel MPI takes a mask of CPUs for each rank, by the machine's numbers. It needs the prefix `0x`, ignores masks of which there
//! are too many or too few, and prefers them to every other way to bind ranks, even to `-bind-to none`. So they are left out where
//! the user binds ranks, and where the ranks run on several hosts, to which mpirun would hand on the variable. (Tried with Intel MPI
//! 2021.18.)
//!
//! oneCCL takes a CPU for each worker thread of each local process. Without the variable it takes the last CPUs of the machine,
//! which a container with CPUs of its own may not use. Started by Intel MPI, it follows that library's domains by itself. With too
//! few CPUs it ends the program, so the variable is left out where the number of its workers can't be read. (Tried with oneCCL
//! 2021.15, whose default is one worker.)

use std::collections::BTreeMap;

use serde::Serialize;

use super::variables::{CCL_WORKERS, INTEL_PIN};
use super::{Container, ContainerKind, EnvSource, Processes, RecognizedPod};
use crate::cpu::{CpuSet, RankCpus, Topology};
use crate::text::counted;

/// The variable with the CPUs of each local process.
pub const RANK_CPUS: &str = "PINFOLD_RANK_CPUS";

const INTEL_DOMAINS: &str = "I_MPI_PIN_DOMAIN";
const CCL_AFFINITY: &str = "CCL_WORKER_AFFINITY";

/// The longest value in bytes. Linux takes no variable of 128 KiB or more, and would not start the program.
const MOST_BYTES: usize = 65_536;

/// The CPUs of each local process, with the variables that say so.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RankEnvironment {
    /// The CPUs by local rank.
    pub cpus: RankCpus,
    /// The variables to add, none of which the container sets itself.
    pub variables: BTreeMap<String, String>,
    /// How the number of processes is known.
    pub reason: String,
}

/// Divides a container's exclusive CPUs among its processes. `None` for a container in the shared pool, and where the number of
/// processes is 1, unknown, or above the number of CPUs.
pub fn rank_environment(
    pod: &RecognizedPod,
    index: usize,
    cpus: Option<&CpuSet>,
    topology: &Topology,
) -> Option<RankEnvironment> {
    let container = pod.containers.get(index)?;
    let program = pod.program(index)?;
    let Processes::Known { count, evidence } = &program.processes else {
        return None;
    };
    if container.kind != ContainerKind::App {
        return None;
    }
    let ranks = RankCpus::of(cpus?, topology, count.get())?;
    let mut variables = vec![(RANK_CPUS, Some(ranks.to_string()))];
    // With envFrom, the container may set any of the variables that decide here.
    if !container.env_from {
        let sets_pinning = container.env.keys().any(|name| name.starts_with(INTEL_PIN));
        if program.ranks_here == Some(*count) && !sets_pinning {
            variables.push((INTEL_DOMAINS, Some(domains(&ranks))));
        }
        if !program.starts_mpi && !program.sets_ccl {
            variables.push((CCL_AFFINITY, worker_cpus(container, &ranks)));
        }
    }
    let is_set = |name: &str| container.env.contains_key(name);
    let added = variables.into_iter().filter_map(|(name, value)| {
        let value = value.filter(|value| value.len() <= MOST_BYTES && !is_set(name))?;
        Some((name.to_owned(), value))
    });
    let by = evidence
        .as_ref()
        .map_or_else(String::new, |by| format!(" ({by})"));
    Some(RankEnvironment {
        variables: added.collect(),
        reason: format!("{}{by}", counted(count.get(), "process")),
        cpus: ranks,
    })
}

/// A mask for each process, as Intel MPI reads it: `[0xf,0xf0]`.
fn domains(ranks: &RankCpus) -> String {
    let masks: Vec<String> = ranks.slices().iter().map(mask).collect();
    format!("[{}]", masks.join(","))
}

/// A hexadecimal mask without leading zeros.
fn mask(cpus: &CpuSet) -> String {
    let digits = cpus.iter().last().map_or(0, |last| last as usize / 4 + 1);
    let mut nibbles = vec![0u32; digits];
    for cpu in cpus.iter() {
        if let Some(nibble) = digits
            .checked_sub(cpu as usize / 4 + 1)
            .and_then(|at| nibbles.get_mut(at))
        {
            *nibble |= 1 << (cpu % 4);
        }
    }
    let digits = nibbles
        .into_iter()
        .filter_map(|nibble| char::from_digit(nibble, 16));
    format!("0x{}", digits.collect::<String>())
}

/// The CPUs of oneCCL's worker threads: the last ones of each process, which oneCCL would choose, too.
fn worker_cpus(container: &Container, ranks: &RankCpus) -> Option<String> {
    let workers = match container.env.get(CCL_WORKERS) {
        None => 1,
        Some(EnvSource::Value(text)) => text.trim().parse().ok().filter(|&workers| workers > 0)?,
        Some(EnvSource::Reference) => return None,
    };
    let mut cpus = Vec::new();
    for slice in ranks.slices() {
        let first = slice.len().checked_sub(workers)?;
        cpus.extend(slice.iter().skip(first).map(|cpu| cpu.to_string()));
    }
    Some(cpus.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::{Numbering, Shape};
    use crate::pod::Pod;

    fn topology() -> Topology {
        Topology::from_shape(Shape {
            sockets: 1,
            numa_per_socket: 2,
            llcs_per_numa: 1,
            cores_per_llc: 4,
            threads_per_core: 2,
            numbering: Numbering::SiblingsLast,
        })
    }

    /// The variables of a container with these CPUs, `NAME=value` with a space between, or the empty text.
    fn variables(script: &str, env: &[(&str, &str)], cpus: Option<&str>) -> String {
        let value = |(name, value): &(&str, &str)| {
            ((*name).to_owned(), EnvSource::Value((*value).to_owned()))
        };
        let container = Container {
            args: ["sh", "-c", script].map(str::to_owned).to_vec().into(),
            env: env.iter().map(value).collect(),
            ..Container::default()
        };
        let pod = RecognizedPod::from(Pod {
            name: "worker-0".to_owned(),
            containers: vec![container],
            ..Pod::default()
        });
        let cpus: Option<CpuSet> = cpus.map(|cpus| cpus.parse().unwrap());
        let ranks = rank_environment(&pod, 0, cpus.as_ref(), &topology());
        let variables = ranks.map(|ranks| ranks.variables).unwrap_or_default();
        let each: Vec<String> = variables
            .iter()
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        each.join(" ")
    }

    #[test]
    fn torchrun_gets_slices_and_workers_of_oneccl() {
        let torchrun = "torchrun --nproc_per_node=2 t.py";
        let slices = "PINFOLD_RANK_CPUS=0-3,8-11;4-7,12-15";
        let all = Some("0-15");
        assert_eq!(
            variables(torchrun, &[], all),
            format!("CCL_WORKER_AFFINITY=11,15 {slices}")
        );
        let workers = |count| variables(torchrun, &[("CCL_WORKER_COUNT", count)], all);
        assert_eq!(
            workers("2"),
            format!("CCL_WORKER_AFFINITY=10,11,14,15 {slices}")
        );
        for unreadable in ["9", "0", "x", "-1"] {
            assert_eq!(workers(unreadable), slices, "{unreadable}");
        }
        let own = variables(torchrun, &[("CCL_WORKER_AFFINITY", "auto")], all);
        assert_eq!(own, slices);
        assert_eq!(
            variables(torchrun, &[("PINFOLD_RANK_CPUS", "0")], all),
            "CCL_WORKER_AFFINITY=11,15"
        );
    }

    #[test]
    fn ranks_of_mpi_in_this_container_get_domains() {
        let slices = "PINFOLD_RANK_CPUS=0-1,8-9;2-3,10-11";
        let both = format!("I_MPI_PIN_DOMAIN=[0x303,0xc0c] {slices}");
        let of = |script: &str, env: &[(&str, &str)]| variables(script, env, Some("0-3,8-11"));
        for script in [
            "mpirun -np 2 ./t",
            "mpiexec.hydra -n 2 ./t",
            "mpirun -np 1 ./a : -np 1 ./b",
            "mpirun -np 2 -H localhost:2 ./t",
            "./prepare; mpirun -np 2 ./t; mpirun -np 2 ./u",
        ] {
            assert_eq!(of(script, &[]), both, "{script}");
        }
        for script in [
            "mpirun -np 2 --bind-to none ./t",
            "mpirun -np 2 -binding domain=core ./t",
            "mpirun -genv I_MPI_PIN off -np 2 ./t",
            "mpirun -np 2 -env I_MPI_PIN_PROCESSOR_LIST=0 ./t",
            "export I_MPI_PIN_DOMAIN=core; mpirun -np 2 ./t",
            "I_MPI_PIN=0 mpirun -np 2 ./t",
            // Other hosts get the variable, too, and have other CPUs.
            "mpirun -np 4 -H worker-0:2,worker-1:2 ./t",
            "horovodrun -np 2 ./t",
            "export CCL_WORKER_COUNT=4; torchrun --nproc_per_node=2 t.py",
        ] {
            assert_eq!(of(script, &[]), slices, "{script}");
        }
        for name in ["I_MPI_PIN", "I_MPI_PIN_PROCESSOR_LIST", "I_MPI_PIN_DOMAIN"] {
            assert_eq!(of("mpirun -np 2 ./t", &[(name, "1")]), slices, "{name}");
        }
        let nested = "mpirun -np 2 torchrun --nproc_per_node=2 t.py";
        assert_eq!(of(nested, &[]), "PINFOLD_RANK_CPUS=0,8;1,9;2,10;3,11");
    }

    #[test]
    fn shared_containers_and_single_processes_get_none() {
        let all = Some("0-15");
        for (script, cpus) in [
            ("torchrun --nproc_per_node=2 t.py", None),
            ("torchrun --nproc_per_node=1 t.py", all),
            ("torchrun --nproc_per_node=auto t.py", all),
            ("torchrun --nproc_per_node=17 t.py", all),
            ("python t.py", all),
        ] {
            assert_eq!(variables(script, &[], cpus), "", "{script}");
        }
    }

    #[test]
    fn masks_count_on_the_machine() {
        for (cpus, expected) in [
            ("0", "0x1"),
            ("4-7", "0xf0"),
            ("1,64", "0x10000000000000002"),
            ("3,8", "0x108"),
        ] {
            assert_eq!(mask(&cpus.parse().unwrap()), expected, "{cpus}");
        }
    }
}
