//! The numbers of processes in the options of the launchers.

use std::num::NonZeroUsize;

use super::super::variables::{MPI_SLOTS, NPROC, names_a_hostfile};
use super::super::{Container, EnvSource, Pod};
use super::table::{Kind, Launcher, MPI_PAIRS};

/// The longest part of a command line in evidence, in characters.
const MAX_EVIDENCE: usize = 80;

/// A program that starts processes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Launch {
    /// The program starts a number of processes in this container.
    Processes {
        count: NonZeroUsize,
        /// The evidence: the launcher's name or its option.
        evidence: String,
    },
    /// The program starts a number of processes that the command line does not tell.
    Unclear { evidence: String },
}

/// An option's name without dashes, with `-` for `_`; none for a word that is no option.
pub(crate) fn option_name(word: &str) -> Option<String> {
    let name = word.strip_prefix('-')?;
    let name = name.strip_prefix('-').unwrap_or(name);
    let name = name.split('=').next().unwrap_or_default();
    (!name.is_empty()).then(|| name.replace('_', "-"))
}

/// A part of the command line as evidence. It is cut, because a pod's author decides its length.
pub(super) fn short(text: &str) -> String {
    match text.char_indices().nth(MAX_EVIDENCE) {
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default()),
        None => text.to_owned(),
    }
}

/// What the options of `torchrun` say. Without the option, torchrun reads a variable, and else
/// starts one process.
pub(super) fn torchrun(
    options: &Options<'_>,
    assigned: Option<&str>,
    container: &Container,
) -> Option<Launch> {
    let names = ["nproc-per-node"];
    if let Some(launch) = options.number("", &names) {
        let value = options.value(&names).map_or("", |(_, value)| value);
        return Some(launch.explained(value));
    }
    if let Some(word) = options.doubtful {
        return Some(Launch::Unclear {
            evidence: format!(
                "torchrun has the option {}, which Pinfold does not know",
                short(word)
            ),
        });
    }
    match assigned {
        Some(value) => Some(Launch::of_torchrun(value)),
        None => by_variable(container),
    }
}

/// The number in the variable that torchrun reads.
pub(crate) fn by_variable(container: &Container) -> Option<Launch> {
    Some(match container.env.get(NPROC)? {
        EnvSource::Value(text) => Launch::of_torchrun(text),
        EnvSource::Reference => Launch::Unclear {
            evidence: format!("{NPROC} has valueFrom, which Pinfold can't read"),
        },
    })
}

/// The number that MPI starts on each host of its file of hosts.
pub(crate) fn by_slots(container: &Container) -> Option<Launch> {
    MPI_SLOTS
        .into_iter()
        .find_map(|name| match container.env.get(name)? {
            EnvSource::Value(text) => Some(Launch::of(text, format!("{name}={}", short(text)))),
            EnvSource::Reference => None,
        })
}

/// `accelerate launch` takes the number for all machines together.
pub(super) fn accelerate(options: &Options<'_>) -> Launch {
    let unclear = |evidence: &str| Launch::Unclear {
        evidence: evidence.to_owned(),
    };
    let machines = match options.number("", &["num-machines"]) {
        Some(Launch::Processes { count, .. }) => count,
        Some(unclear) => return unclear,
        None if options.value(&["config-file", "mpirun-hostfile"]).is_some() => {
            return unclear("the file of accelerate launch may name several machines");
        }
        None => NonZeroUsize::MIN,
    };
    match options.number("", &["num-processes"]) {
        Some(Launch::Processes { count, evidence }) => {
            let (each, rest) = (count.get() / machines, count.get() % machines);
            match NonZeroUsize::new(each).filter(|_| rest == 0) {
                Some(count) if machines == NonZeroUsize::MIN => {
                    Launch::Processes { count, evidence }
                }
                Some(count) => Launch::Processes {
                    count,
                    evidence: format!("{evidence} on {machines} machines"),
                },
                None => Launch::Unclear {
                    evidence: format!("{evidence} on {machines} machines"),
                },
            }
        }
        Some(unclear) => unclear,
        None => unclear("accelerate launch without --num_processes"),
    }
}

/// `deepspeed` takes the number for each machine.
pub(super) fn deepspeed(options: &Options<'_>) -> Launch {
    let unclear = |evidence: &str| Launch::Unclear {
        evidence: evidence.to_owned(),
    };
    if options.value(&["H", "hostfile"]).is_some() {
        return unclear("deepspeed reads the processes from a file of hosts");
    }
    if let Some(launch) = options.number("", &["num-gpus", "num-accelerators"]) {
        return launch;
    }
    let Some((evidence, include)) = options.value(&["i", "include"]) else {
        return unclear("deepspeed without --num_gpus starts a process for each accelerator");
    };
    // `localhost:0,1`: a process for each accelerator of the list.
    let count = include
        .split_once(':')
        .filter(|(_, list)| !list.is_empty() && !list.contains([':', '@']))
        .map(|(_, list)| list.split(',').count());
    Launch::of(&count.unwrap_or(0).to_string(), evidence.to_owned())
}

/// The processes that MPI or Horovod starts in this container; none if they all start on other hosts.
pub(super) fn ranks(
    pod: &Pod,
    container: &Container,
    name: &str,
    options: &Options<'_>,
) -> Option<Launch> {
    let all = options.number(name, &["np", "num-proc", "n", "c"]);
    let each = per_host(name, options);
    if let Some((evidence, list)) = options.value(&["H", "host", "hosts", "machine"]) {
        let hosts = Hosts::read(pod, list);
        let slots = || Launch::of(&hosts.slots_here.to_string(), format!("{name} {evidence}"));
        return match (hosts.slots_here, hosts.are_others) {
            (0, _) => None,
            (_, false) => Some(all.or(each).unwrap_or_else(slots)),
            // Other hosts may take some of all processes.
            (_, true) => Some(each.unwrap_or_else(slots)),
        };
    }
    let files = ["hostfile", "machinefile", "f", "default-hostfile"];
    if options.value(&files).is_some() || container.env.keys().any(|name| names_a_hostfile(name)) {
        return None;
    }
    Some(all.or(each).unwrap_or_else(|| Launch::Unclear {
        evidence: format!("{name} without -np"),
    }))
}

/// Whether MPI starts all ranks in this container, as far as its options and the environment tell.
pub(super) fn are_all_here(pod: &Pod, container: &Container, options: &Options<'_>) -> bool {
    let files = ["hostfile", "machinefile", "f", "default-hostfile"];
    let list = options.value(&["H", "host", "hosts", "machine"]);
    list.is_none_or(|(_, list)| !Hosts::read(pod, list).are_others)
        && options.value(&files).is_none()
        && !container.env.keys().any(|name| names_a_hostfile(name))
}

/// The number of processes on each host.
fn per_host(name: &str, options: &Options<'_>) -> Option<Launch> {
    let per_host = options.number(name, &["npernode", "N", "ppn", "perhost", "grr"]);
    let pernode = || {
        let (evidence, _) = options.value(&["pernode"])?;
        Some(Launch::of("1", format!("{name} {evidence}")))
    };
    // `--map-by ppr:4:node`
    let mapped = || {
        let (evidence, policy) = options.value(&["map-by"])?;
        let mut parts = policy.split(':');
        let count = parts
            .next()
            .filter(|&first| first == "ppr")
            .and(parts.next())?;
        let is_node = parts.next() == Some("node");
        is_node.then(|| Launch::of(count, format!("{name} {evidence}")))
    };
    per_host.or_else(pernode).or_else(mapped)
}

/// The hosts that a launcher's option names.
struct Hosts {
    /// The processes for which this pod's own host has room; 0 if the list does not name it.
    slots_here: usize,
    /// Whether the list names other hosts.
    are_others: bool,
}

// === impl Hosts ===

impl Hosts {
    /// Reads a list like `localhost:4,worker-1:4`. A host without a number has room for one process.
    fn read(pod: &Pod, list: &str) -> Self {
        let mut hosts = Self {
            slots_here: 0,
            are_others: false,
        };
        for host in list
            .split(',')
            .map(str::trim)
            .filter(|host| !host.is_empty())
        {
            let (name, slots) = match host.rsplit_once(':') {
                // An address of IPv6 has colons, too, unless it is in brackets.
                Some((name, _)) if name.contains(':') && !name.ends_with(']') => (host, "1"),
                Some((name, slots)) => (name, slots),
                None => (host, "1"),
            };
            if is_here(pod, name.trim_matches(['[', ']'])) {
                hosts.slots_here = hosts.slots_here.saturating_add(slots.parse().unwrap_or(1));
            } else {
                hosts.are_others = true;
            }
        }
        hosts
    }
}

/// Whether a host's name stands for the pod itself.
fn is_here(pod: &Pod, host: &str) -> bool {
    let own = [
        "localhost",
        "localhost.localdomain",
        "ip6-localhost",
        "::1",
        "0.0.0.0",
    ];
    let commands = [
        "$HOSTNAME",
        "${HOSTNAME}",
        "$(HOSTNAME)",
        "$(hostname)",
        "$(hostname -s)",
        "`hostname`",
    ];
    let first = host.split('.').next().unwrap_or_default();
    own.contains(&host)
        || commands.contains(&host)
        || host.starts_with("127.")
        || !pod.name.is_empty() && first == pod.name
}

// === impl Launch ===

impl Launch {
    fn of(text: &str, evidence: String) -> Self {
        match text.trim().parse() {
            Ok(count) => Self::Processes { count, evidence },
            Err(_) => Self::Unclear { evidence },
        }
    }

    /// What torchrun makes of the value of its variable.
    fn of_torchrun(text: &str) -> Self {
        Self::of(text, format!("{NPROC}={}", short(text))).explained(text)
    }

    /// Adds to an unclear launch what torchrun makes of a word instead of a number: it asks Python for the number of CPUs, which
    /// knows neither the container's affinity nor its quota.
    fn explained(self, word: &str) -> Self {
        let meaning = match word.trim() {
            "auto" => "one for each CPU of the whole machine unless it has accelerators",
            "cpu" => "one for each CPU of the whole machine",
            _ => return self,
        };
        match self {
            Self::Unclear { evidence } => Self::Unclear {
                evidence: format!("{evidence} is {meaning}, so write a number instead"),
            },
            known => known,
        }
    }

    /// Each process of one launch makes another launch.
    pub(super) fn times(self, inner: Self) -> Self {
        match (self, inner) {
            (
                Self::Processes { count, evidence },
                Self::Processes {
                    count: each,
                    evidence: by,
                },
            ) => Self::Processes {
                count: count.saturating_mul(each),
                evidence: format!("{evidence}, each {by}"),
            },
            (Self::Processes { .. }, unclear) => unclear,
            (unclear, _) => unclear,
        }
    }

    /// Two parts of the same launch.
    pub(super) fn plus(self, other: Self) -> Self {
        match (self, other) {
            (
                Self::Processes { count, evidence },
                Self::Processes {
                    count: more,
                    evidence: by,
                },
            ) => Self::Processes {
                count: count.saturating_add(more.get()),
                evidence: format!("{evidence} : {by}"),
            },
            (Self::Processes { .. }, unclear) => unclear,
            (unclear, _) => unclear,
        }
    }
}

/// A launcher's own options, as far as they can be told from its program's.
pub(super) struct Options<'w> {
    /// Each option: its name, its words and its value.
    found: Vec<(String, String, &'w str)>,
    /// The first option that is not known and may have a value.
    doubtful: Option<&'w str>,
    pub(super) program: &'w [String],
}

// === impl Options ===

impl<'w> Options<'w> {
    pub(super) fn read(launcher: &Launcher, words: &'w [String]) -> Self {
        let mut options = Self {
            found: Vec::new(),
            doubtful: None,
            program: words,
        };
        while let Some((word, rest)) = options.program.split_first() {
            if word == "--" {
                options.program = rest;
                break;
            }
            let Some(name) = option_name(word) else { break };
            let name = launcher.full_name(name);
            options.program = rest;
            if let Some((_, value)) = word.split_once('=') {
                options.found.push((name, short(word), value));
                continue;
            }
            let next = rest.first().map(String::as_str);
            let is_mpi = launcher.kind == Kind::Mpi;
            let values = if is_mpi && MPI_PAIRS.contains(&name.as_str()) {
                // Intel MPI also takes `-genv NAME=VALUE`.
                if next.is_some_and(|next| next.contains('=')) {
                    1
                } else {
                    2
                }
            } else if launcher.values.contains(&name.as_str()) {
                1
            } else if launcher.flags.contains(&name.as_str())
                || next.is_none_or(|next| next.starts_with('-'))
            {
                0
            } else {
                options.doubtful = options.doubtful.or(Some(word));
                usize::from(launcher.others_have_values)
            };
            let evidence = match next {
                Some(value) if values == 1 => format!("{} {}", short(word), short(value)),
                _ => short(word),
            };
            options.found.push((
                name,
                evidence,
                next.filter(|_| values == 1).unwrap_or_default(),
            ));
            options.program = rest.get(values..).unwrap_or_default();
        }
        options
    }

    /// The last option of several names, with its value.
    fn value(&self, names: &[&str]) -> Option<(&str, &'w str)> {
        let mut found = self.found.iter().rev();
        let (_, evidence, value) = found.find(|(name, _, _)| names.contains(&name.as_str()))?;
        Some((evidence, value))
    }

    /// The number that the last option of several names has.
    fn number(&self, launcher: &str, names: &[&str]) -> Option<Launch> {
        let (evidence, value) = self.value(names)?;
        let evidence = format!("{launcher} {evidence}").trim_start().to_owned();
        let all = self
            .found
            .iter()
            .filter(|(name, _, _)| names.contains(&name.as_str()));
        // An unknown option may have taken the program for its value, and then the last one is the
        // program's.
        if self.doubtful.is_some() && all.count() > 1 {
            return Some(Launch::Unclear { evidence });
        }
        Some(Launch::of(value, evidence))
    }
}

// === impl Launcher ===

impl Launcher {
    /// The name of an option that may be shortened, as Python's parser allows.
    fn full_name(&self, name: String) -> String {
        let all = || self.values.iter().chain(self.flags);
        if self.kind != Kind::Torchrun || name.len() < 2 || all().any(|option| *option == name) {
            return name;
        }
        let mut longer = all().filter(|option| option.starts_with(&name));
        match (longer.next(), longer.next()) {
            (Some(only), None) => (*only).to_owned(),
            _ => name,
        }
    }
}
