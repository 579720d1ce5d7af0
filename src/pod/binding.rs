//! [`Binding`]: a part of a container's command line or environment that names CPUs by the machine's numbers, or counts all
//! CPUs of the machine. Within the container's CPU set it fails, or is ignored.
//!
//! The program is the user's, so Pinfold changes nothing: `pinfold explain` and an Event say what to write instead.

use super::variables::BINDING_VARIABLES;
use super::{Container, EnvSource};
use crate::cpu::CpuSet;

/// How many bindings of a container are kept, and how many bytes of a word are shown. A pod's author chooses the command line.
const MOST: (usize, usize) = (4, 60);

/// A use of the machine's CPU numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Binding {
    /// The words, as the user wrote them.
    found: String,
    by: BoundBy,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BoundBy {
    /// `numactl -C`, which also takes numbers within the set.
    NumactlCpus,
    /// `numactl -N` or `-m`: NUMA nodes.
    NumactlNodes,
    Taskset,
    /// `torch.backends.xeon.run_cpu`, which reads the cores of the machine.
    RunCpu,
    /// `ipexrun`, likewise.
    Ipexrun,
    /// `mpirun --cpu-set` and its older names.
    MpiCpuSet,
    /// `mpirun --bind-to core` without a number of CPUs for each rank.
    MpiSingleCores,
    /// A variable of OpenMP or MPI with CPU numbers.
    Variable(&'static str),
}

/// The bindings of a program that is called with these arguments. `name` is the program's, without its folder, or a module's.
pub(super) fn of_command(name: &str, args: &[String]) -> Vec<Binding> {
    let of = |by, words: &[&str]| Binding {
        found: shown(&[&[name], words].concat().join(" ")),
        by,
    };
    match name {
        "numactl" => numactl(args, of),
        "taskset" => taskset(args, of),
        "torch.backends.xeon.run_cpu" | "run_cpu.py" => {
            // Its lists are numbers of the machine, too, so a list of the user's is no better.
            vec![of(BoundBy::RunCpu, &[])]
        }
        "ipexrun" | "intel_extension_for_pytorch.cpu.launch" => vec![of(BoundBy::Ipexrun, &[])],
        "mpirun" | "mpiexec" | "mpiexec.hydra" | "orterun" | "prterun" => mpi(args, of),
        _ => Vec::new(),
    }
}

/// The bindings in a container's environment.
pub(super) fn of_environment(container: &Container) -> Vec<Binding> {
    let found = BINDING_VARIABLES.iter().filter_map(|(name, before)| {
        let EnvSource::Value(value) = container.env.get(*name)? else {
            return None;
        };
        let (_, list) = value.split_once(before)?;
        list.starts_with(|first: char| first.is_ascii_digit())
            .then(|| Binding {
                found: shown(&format!("{name}={value}")),
                by: BoundBy::Variable(name),
            })
    });
    found.collect()
}

/// The words, cut.
pub(super) fn shown(words: &str) -> String {
    match words.get(..words.floor_char_boundary(MOST.1)) {
        Some(begin) if begin.len() < words.len() => format!("{begin}…"),
        _ => words.to_owned(),
    }
}

/// The options of numactl end at the program that it starts.
fn numactl(args: &[String], of: impl Fn(BoundBy, &[&str]) -> Binding) -> Vec<Binding> {
    let mut found = Vec::new();
    let mut args = args.iter().map(String::as_str);
    while let Some(option) = args.next().filter(|word| word.starts_with('-')) {
        let (name, joined) = match option.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (option, None),
        };
        let by = match name {
            "-C" | "--physcpubind" => BoundBy::NumactlCpus,
            "-N" | "--cpunodebind" | "-m" | "--membind" => BoundBy::NumactlNodes,
            "-i" | "--interleave" | "-p" | "--preferred" | "-P" | "--preferred-many" => {
                // They fall back to memory that the container may use.
                let _ = joined.or_else(|| args.next());
                continue;
            }
            _ => continue,
        };
        let Some(value) = joined.or_else(|| args.next()) else {
            break;
        };
        if is_absolute(value) {
            match joined {
                Some(_) => found.push(of(by, &[option])),
                None => found.push(of(by, &[option, value])),
            }
        }
    }
    found
}

/// Whether a list of numactl counts on the machine. One that begins with `+` counts within the set, and a word such as `all`
/// or a variable of the shell is none.
fn is_absolute(list: &str) -> bool {
    let list = list.strip_prefix('!').unwrap_or(list);
    list.starts_with(|first: char| first.is_ascii_digit())
}

/// taskset takes its options, then the list or the mask.
fn taskset(args: &[String], of: impl Fn(BoundBy, &[&str]) -> Binding) -> Vec<Binding> {
    let mut options = Vec::new();
    let mut args = args.iter().map(String::as_str);
    for word in args.by_ref() {
        options.push(word);
        if !word.starts_with('-') {
            break;
        }
    }
    let list = options.last().copied().unwrap_or_default();
    // `taskset -p PID` only shows.
    let shows = options
        .iter()
        .any(|option| option.starts_with('-') && !option.starts_with("--") && option.contains('p'));
    let is_number = list.starts_with(|first: char| first.is_ascii_hexdigit());
    if shows || !is_number || args.next().is_none() {
        return Vec::new();
    }
    vec![of(BoundBy::Taskset, &options)]
}

fn mpi(args: &[String], of: impl Fn(BoundBy, &[&str]) -> Binding) -> Vec<Binding> {
    let value_of = |names: &[&str]| {
        let at = args
            .iter()
            .position(|word| names.contains(&word.trim_start_matches('-')))?;
        Some((args.get(at)?.as_str(), args.get(at + 1)?.as_str()))
    };
    let mut found = Vec::new();
    if let Some((option, list)) = value_of(&["cpu-set", "cpu-list", "slot-list"])
        && is_absolute(list)
    {
        found.push(of(BoundBy::MpiCpuSet, &[option, list]));
    }
    let has_several = args
        .iter()
        .any(|word| word.to_ascii_lowercase().contains("pe="))
        || value_of(&["cpus-per-proc", "cpus-per-rank"]).is_some();
    if let Some((option, what @ ("core" | "hwthread"))) = value_of(&["bind-to"])
        && !has_several
    {
        found.push(of(BoundBy::MpiSingleCores, &[option, what]));
    }
    found
}

/// At most as many bindings as are kept.
pub(super) fn limited(mut found: Vec<Binding>) -> Vec<Binding> {
    found.truncate(MOST.0);
    found
}

// === impl Binding ===

impl Binding {
    /// What happens in a container with these CPUs, and what to write instead, as a sentence.
    pub(super) fn advice(&self, cpus: &CpuSet) -> String {
        let Self { found, by } = self;
        let last = cpus.len().saturating_sub(1);
        let relative = if last == 0 {
            "+0".to_owned()
        } else {
            format!("+0-{last}")
        };
        let machine =
            format!("{found} counts on the machine, and this container has the CPUs {cpus}");
        match by {
            BoundBy::NumactlCpus => format!(
                "{machine}; write numactl -C {relative}, which counts within them, or leave it out"
            ),
            BoundBy::NumactlNodes => format!(
                "{found} names NUMA nodes of the machine, and fails where the container may not use them; leave it out, because \
                 Pinfold places CPUs and memory"
            ),
            BoundBy::Taskset => {
                format!("{machine}; write taskset -c \"$PINFOLD_CPUS\" in a shell, or leave it out")
            }
            BoundBy::RunCpu => format!(
                "{found} uses all cores of the machine unless told otherwise; start the program without it, or give it the \
                 container's CPUs, which differ from pod to pod: now --core_list {} --ncores_per_instance N",
                comma_list(cpus)
            ),
            BoundBy::Ipexrun => format!(
                "{found} uses all cores of the machine unless told otherwise; add --cores-list \"$PINFOLD_CPUS\" in a shell (now \
                 {cpus}), or start the program without it"
            ),
            BoundBy::MpiCpuSet => format!(
                "{machine}; write mpirun --cpu-set \"$PINFOLD_CPUS\" in a shell, or leave it out"
            ),
            BoundBy::MpiSingleCores => format!(
                "{found} gives each rank a single core of the CPUs {cpus}; for ranks with several threads, write --map-by \
                 slot:PE=N --bind-to core, where N is the number of cores of a rank"
            ),
            BoundBy::Variable(name) => format!(
                "{found} counts on the machine, and is ignored or fails on the CPUs {cpus}; leave {name} out, and the threads \
                 stay on the container's CPUs"
            ),
        }
    }
}

/// The CPUs one by one, for a program that reads no ranges.
fn comma_list(cpus: &CpuSet) -> String {
    let each: Vec<String> = cpus.iter().map(|cpu| cpu.to_string()).collect();
    each.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::{Pod, RecognizedPod};

    fn advice(args: &[&str], env: &[(&str, &str)]) -> Vec<String> {
        let value = |(name, value): &(&str, &str)| {
            ((*name).to_owned(), EnvSource::Value((*value).to_owned()))
        };
        let container = Container {
            args: args
                .iter()
                .map(|arg| (*arg).to_owned())
                .collect::<Vec<_>>()
                .into(),
            env: env.iter().map(value).collect(),
            ..Container::default()
        };
        let pod = RecognizedPod::from(Pod {
            containers: vec![container],
            ..Pod::default()
        });
        pod.binding_advice(0, Some(&"4-6,9".parse().unwrap_or_default()))
    }

    #[test]
    fn commands_that_count_on_the_machine_are_found() {
        for (args, found, instead) in [
            (
                &["numactl", "-C", "0-3", "python", "t.py"][..],
                "numactl -C 0-3 ",
                "numactl -C +0-3,",
            ),
            (
                &["numactl", "--physcpubind=0", "t"],
                "numactl --physcpubind=0 ",
                "numactl -C +0-3,",
            ),
            (
                &["numactl", "-m", "0", "t"],
                "numactl -m 0 ",
                "leave it out",
            ),
            (
                &["taskset", "-c", "0,1", "python", "t.py"],
                "taskset -c 0,1 ",
                "taskset -c \"$PINFOLD_CPUS\"",
            ),
            (&["taskset", "0x3", "t"], "taskset 0x3 ", "taskset -c"),
            (
                &["sh", "-c", "cd /w && exec taskset -c 0 ./t"],
                "taskset -c 0 ",
                "taskset -c",
            ),
            (
                &["python", "-m", "torch.backends.xeon.run_cpu", "t.py"],
                "torch.backends.xeon.run_cpu ",
                "--core_list 4,5,6,9 ",
            ),
            (
                &["python3", "/l/torch/backends/xeon/run_cpu.py", "t.py"],
                "run_cpu.py ",
                "--core_list",
            ),
            (
                &["ipexrun", "--ninstances", "2", "t.py"],
                "ipexrun ",
                "--cores-list \"$PINFOLD_CPUS\"",
            ),
            (
                &["mpirun", "-np", "2", "--cpu-set", "0,1", "t"],
                "mpirun --cpu-set 0,1 ",
                "--cpu-set \"$PINFOLD_CPUS\"",
            ),
            (
                &["mpirun", "-np", "2", "--bind-to", "core", "t"],
                "mpirun --bind-to core ",
                "slot:PE=N",
            ),
            (
                &["mpirun", "-np", "1", "numactl", "-C", "2", "t"],
                "numactl -C 2 ",
                "numactl -C",
            ),
        ] {
            let says = advice(args, &[]);
            assert_eq!(says.len(), 1, "{args:?}: {says:?}");
            assert!(
                says.iter()
                    .all(|says| says.starts_with(found) && says.contains(instead)),
                "{args:?}: {says:?}"
            );
        }
    }

    #[test]
    fn commands_that_count_within_the_container_are_not() {
        for args in [
            &["numactl", "-C", "+0-3", "t"][..],
            &["numactl", "-C", "all", "t"],
            &["numactl", "--interleave=all", "t"],
            &["numactl", "-i", "0", "t", "-C", "0"],
            &["numactl", "--hardware"],
            &["sh", "-c", "taskset -c \"$PINFOLD_CPUS\" ./t"],
            &["taskset", "-p", "1"],
            &["taskset", "-cp", "0", "17"],
            &[
                "mpirun",
                "-np",
                "2",
                "--map-by",
                "slot:PE=4",
                "--bind-to",
                "core",
                "t",
            ],
            &["mpirun", "--bind-to", "none", "t"],
            &["python", "t.py", "taskset"],
            &["numactl", "-C"],
            &[],
        ] {
            assert_eq!(advice(args, &[]), [""; 0], "{args:?}");
        }
    }

    #[test]
    fn variables_with_cpu_numbers_are_found() {
        for (name, value, is_found) in [
            ("OMP_PLACES", "{0},{1}", true),
            ("OMP_PLACES", "{0:4}", true),
            ("OMP_PLACES", "cores", false),
            ("OMP_PLACES", "threads(4)", false),
            ("GOMP_CPU_AFFINITY", "0-3", true),
            (
                "KMP_AFFINITY",
                "granularity=fine,proclist=[0,1],explicit",
                true,
            ),
            ("KMP_AFFINITY", "granularity=fine,compact,1,0", false),
            ("I_MPI_PIN_PROCESSOR_LIST", "0-3", true),
            ("I_MPI_PIN_PROCESSOR_LIST", "allcores", false),
        ] {
            let says = advice(&["t"], &[(name, value)]);
            assert_eq!(
                says.len(),
                usize::from(is_found),
                "{name}={value}: {says:?}"
            );
        }
    }

    /// What a manifest says reaches the advice, although most variables are left out of a pod.
    #[test]
    fn a_manifest_keeps_the_variables() {
        let manifest = r#"{apiVersion: v1, kind: Pod, metadata: {name: p}, spec: {containers: [{name: c, image: i,
            env: [{name: A, value: "1"}, {name: OMP_PLACES, value: "{0},{1}"}]}]}}"#;
        let pods = crate::pod::parse(manifest, "p").unwrap_or_default();
        let pod = RecognizedPod::from(pods.into_iter().next().unwrap_or_default());
        let says = pod.binding_advice(0, Some(&"4-6,9".parse().unwrap_or_default()));
        assert_eq!(says.len(), 1, "{says:?}");
        assert!(
            says.iter()
                .all(|says| says.starts_with("OMP_PLACES={0},{1} ")),
            "{says:?}"
        );
    }

    /// A pod's author chooses the command line.
    #[test]
    fn long_lists_and_many_commands_are_shortened() {
        let long = "0,".repeat(1000);
        let script = format!("taskset -c {long} t;").repeat(50);
        let says = advice(&["sh", "-c", &script], &[]);
        assert_eq!(says.len(), MOST.0);
        assert!(says.iter().all(|says| says.len() < 300), "{says:?}");
    }
}
