//! [`launched`]: the processes that a container's command line starts side by side.
//!
//! Each launcher is a row of [`LAUNCHERS`]. Its options end at the first word that is neither an
//! option nor an option's value: the program that it starts, whose own options mean something else.
//! The options and the numbers of processes agree with torchrun of PyTorch 2.9, accelerate 1.15,
//! DeepSpeed, Horovod, and with Open MPI 5, MPICH 5 and Intel MPI 2021, which were tried.

pub(super) use self::mpi::MpiRanks;
pub(super) use self::numbers::{Launch, by_slots, by_variable, option_name};
use self::numbers::{Options, accelerate, deepspeed, ranks, short, torchrun};
use self::table::{Kind, LAUNCHERS, Launcher, OPAQUE, TORCHRUN, WRAPPERS};
use super::binding::{self, Binding};
use super::command::{SimpleCommand, base_name, commands, is_shell, script_of, split};
use super::own_counts::OwnCounts;
use super::variables::{CCL_WORKER, INTEL_PIN, NPROC};
use super::{Container, Pod};

mod mpi;
mod numbers;
mod table;

/// The deepest nesting of programs that start programs. Real command lines need 3.
const MAX_DEPTH: usize = 8;

/// Words of a shell before a command.
const KEYWORDS: [&str; 9] = [
    "if", "then", "elif", "else", "while", "until", "do", "{", "!",
];

/// What a search through a container's command line finds.
pub(super) struct Found {
    /// The launches. Parts of a script that only prepare or clean up are no launches.
    pub(super) launches: Vec<Launch>,
    /// The first program that starts other programs with a fresh environment, so that they do not
    /// get the container's variables.
    pub(super) fresh: Option<&'static str>,
    /// The programs that count CPUs on the machine.
    pub(super) bindings: Vec<Binding>,
    /// Whether Python runs a script or a module that is no launcher.
    pub(super) runs_python: bool,
    /// The thread counts that the command line sets itself.
    pub(super) own_counts: OwnCounts,
    /// What is known about the ranks that MPI starts.
    pub(super) mpi: MpiRanks,
    /// Whether the command line sets a variable for the workers of oneCCL.
    pub(super) sets_ccl: bool,
}

pub(super) struct Search<'a> {
    pod: &'a Pod,
    container: &'a Container,
    /// The value that the script gives to [`NPROC`].
    assigned: Option<String>,
    /// The first program that starts others with a fresh environment.
    fresh: Option<&'static str>,
    /// Whether the shell goes on without waiting for the present command.
    background: bool,
    runs_python: bool,
    found: Vec<Launch>,
    bindings: Vec<Binding>,
    own_counts: OwnCounts,
    mpi: MpiRanks,
    sets_ccl: bool,
}

// === impl Search ===

impl<'a> Search<'a> {
    /// Reads a container's command line.
    pub(super) fn of(pod: &'a Pod, container: &'a Container) -> Found {
        let mut search = Self {
            pod,
            container,
            assigned: None,
            fresh: None,
            background: false,
            runs_python: false,
            found: Vec::new(),
            bindings: binding::of_environment(container),
            own_counts: OwnCounts::default(),
            mpi: MpiRanks::None,
            sets_ccl: false,
        };
        search.script(commands(&container.args), 0);
        Found {
            launches: search.found,
            fresh: search.fresh,
            bindings: binding::limited(search.bindings),
            runs_python: search.runs_python,
            own_counts: search.own_counts,
            mpi: search.mpi,
            sets_ccl: search.sets_ccl,
        }
    }

    fn script(&mut self, commands: Vec<SimpleCommand>, depth: usize) {
        let mut loops = 0usize;
        for SimpleCommand { words, background } in commands {
            match words.first().map(String::as_str) {
                Some("for" | "while" | "until") => loops += 1,
                Some("done") => loops = loops.saturating_sub(1),
                _ => {}
            }
            let before = self.found.len();
            self.background = background;
            let program = self.command(&words, depth);
            // Without a launcher, a loop is the launcher. Loops also copy files or wait, so only
            // Python and programs with a path count.
            let computes = |program: &&str| is_python(base_name(program)) || program.contains('/');
            if let Some(program) = program.filter(computes)
                && loops > 0
                && background
                && self.found.len() == before
            {
                self.unclear(format!("a loop of the shell starts {}", short(program)));
            }
        }
    }

    /// Looks for a launcher in a simple command, and returns the program.
    fn command<'w>(&mut self, words: &'w [String], depth: usize) -> Option<&'w str> {
        let mut words = words;
        while let Some((first, rest)) = words.split_first() {
            if let Some((name, value)) = assignment(first) {
                self.assign(name, value);
            } else if !KEYWORDS.contains(&first.as_str()) {
                break;
            }
            words = rest;
        }
        let (program, rest) = words.split_first()?;
        if depth > MAX_DEPTH {
            self.unclear(format!(
                "more than {MAX_DEPTH} programs that start each other"
            ));
            return Some(program);
        }
        let name = base_name(program);
        self.fresh = self.fresh.or_else(|| fresh(name, rest));
        self.bindings.extend(binding::of_command(name, rest));
        if let Some(script) = script_of(words) {
            self.script(split(script), depth + 1);
        } else if matches!(
            name,
            "export" | "declare" | "typeset" | "local" | "readonly"
        ) {
            for (name, value) in rest.iter().filter_map(|word| assignment(word)) {
                self.assign(name, value);
            }
            return None;
        } else if let Some((launcher, options)) = launcher(words) {
            self.launch(launcher, name, options, depth);
        } else if is_opaque(words) {
            self.unclear(format!(
                "{name} starts a number of processes that its options do not tell"
            ));
        } else if serves_sessions(name, rest) && !self.background {
            self.unclear("sshd starts what a launcher elsewhere asks for".to_owned());
        } else if is_python(name) {
            self.python(rest, depth);
        } else if let Some(inner) = wrapped(words) {
            for (name, value) in rest
                .iter()
                .take(rest.len() - inner.len())
                .filter_map(|word| assignment(word))
            {
                self.assign(name, value);
            }
            return self.command(inner, depth + 1);
        } else {
            self.foreign(words, depth);
        }
        Some(program)
    }

    fn assign(&mut self, name: &str, value: &str) {
        if name == NPROC {
            self.assigned = Some(value.to_owned());
        }
        if name.starts_with(INTEL_PIN) {
            self.mpi = MpiRanks::Other;
        }
        self.sets_ccl |= name.starts_with(CCL_WORKER);
        self.own_counts.variable(name, value);
    }

    fn python(&mut self, args: &[String], depth: usize) {
        let mut args = args;
        while let Some((first, rest)) = args.split_first() {
            let Some(letters) = first
                .strip_prefix('-')
                .filter(|letters| !letters.is_empty())
            else {
                break;
            };
            args = rest;
            // Options of one letter may be joined, and a value may follow without a space.
            let Some(at) = letters
                .find(['m', 'c', 'X', 'W'])
                .filter(|_| !letters.starts_with('-'))
            else {
                continue;
            };
            let mut tail = letters.get(at..).unwrap_or_default().chars();
            let (kind, joined) = (tail.next(), tail.as_str());
            let value = match args.split_first() {
                Some((value, rest)) if joined.is_empty() => {
                    args = rest;
                    value.clone()
                }
                _ => joined.to_owned(),
            };
            match kind {
                Some('m') => return self.program(&[&[value][..], args].concat(), depth),
                Some('c') => return,
                _ => {}
            }
        }
        self.program(args, depth);
    }

    /// A script or a module of Python, with its options.
    fn program(&mut self, words: &[String], depth: usize) {
        let Some(program) = words.first() else { return };
        let path = [
            ("torch/distributed/run.py", "torchrun"),
            ("torch/distributed/launch.py", "torchrun"),
        ];
        let known = path.iter().find(|(path, _)| program.ends_with(path));
        let name = known.map_or(base_name(program), |(_, name)| *name);
        let args = words.get(1..).unwrap_or_default();
        self.bindings.extend(binding::of_command(name, args));
        let named = [&[name.to_owned()][..], args].concat();
        if let Some((launcher, options)) = launcher(&named) {
            self.launch(launcher, name, options, depth);
        } else {
            self.runs_python |= name != "pip";
            self.foreign(words, depth);
        }
    }

    /// A program that is no known launcher. If it has an option for the number of processes, it is
    /// one all the same.
    fn foreign(&mut self, words: &[String], depth: usize) {
        self.own_counts.options(words);
        let mut names = words.iter().map(|word| option_name(word));
        let Some(at) = names.position(|name| name.as_deref() == Some("nproc-per-node")) else {
            return;
        };
        match (words.get(at), words.first()) {
            // The program is the image's, which a manifest does not show. Most likely it is
            // torchrun.
            (_, Some(first)) if first.starts_with('-') => {
                self.launch(&TORCHRUN, "torchrun", words, depth);
            }
            (Some(option), Some(program)) => self.unclear(format!(
                "{} of {}, a launcher that Pinfold does not know",
                short(option),
                short(base_name(program))
            )),
            _ => {}
        }
    }

    fn launch(&mut self, launcher: &Launcher, name: &str, words: &[String], depth: usize) {
        match launcher.kind {
            // The options of the program that MPI or Horovod starts are read with it.
            Kind::Mpi => {
                self.own_counts.mpi_options(words);
                let ranks = MpiRanks::of(self.pod, self.container, launcher, words);
                self.mpi = self.mpi.and(ranks);
            }
            Kind::Horovod => self.mpi = self.mpi.and(MpiRanks::Other),
            Kind::Torchrun | Kind::Accelerate | Kind::Deepspeed => self.own_counts.options(words),
        }
        let own = match launcher.kind {
            Kind::Torchrun => {
                let options = Options::read(launcher, words);
                torchrun(&options, self.assigned.as_deref(), self.container)
            }
            Kind::Accelerate => Some(accelerate(&Options::read(launcher, words))),
            Kind::Deepspeed => Some(deepspeed(&Options::read(launcher, words))),
            Kind::Horovod => self.ranks(launcher, name, words, depth),
            Kind::Mpi => {
                // `mpirun -np 2 a : -np 1 b` starts several programs.
                let parts = words.split(|word| word == ":");
                let parts = parts.map(|part| self.ranks(launcher, name, part, depth));
                parts.flatten().reduce(Launch::plus)
            }
        };
        self.found.extend(own);
    }

    /// The processes that MPI or Horovod starts in this container; none if they all start on other
    /// hosts. The program of each process may be a launcher, too.
    fn ranks(
        &mut self,
        launcher: &Launcher,
        name: &str,
        words: &[String],
        depth: usize,
    ) -> Option<Launch> {
        let options = Options::read(launcher, words);
        let own = ranks(self.pod, self.container, name, &options)?;
        let outer = std::mem::take(&mut self.found);
        self.command(options.program, depth + 1);
        let inner = std::mem::replace(&mut self.found, outer);
        Some(inner.into_iter().fold(own, Launch::times))
    }

    fn unclear(&mut self, evidence: String) {
        self.found.push(Launch::Unclear { evidence });
    }
}

/// Finds the launcher that a command begins with, and its options.
fn launcher(words: &[String]) -> Option<(&'static Launcher, &[String])> {
    let (program, rest) = words.split_first()?;
    let name = base_name(program);
    let launcher = LAUNCHERS
        .iter()
        .find(|launcher| launcher.names.contains(&name))?;
    if launcher.subcommand.is_empty() || name != launcher.names.first().copied()? {
        return Some((launcher, rest));
    }
    let rest = rest
        .split_first()
        .filter(|(word, _)| *word == launcher.subcommand);
    rest.map(|(_, options)| (*launcher, options))
}

fn is_opaque(words: &[String]) -> bool {
    let name = words.first().map_or("", |program| base_name(program));
    let next = words.get(1).map_or("", String::as_str);
    OPAQUE.iter().any(|(program, subcommand)| {
        *program == name && (subcommand.is_empty() || *subcommand == next)
    })
}

/// Whether the program is an sshd that stays in the foreground (`-D`). A script that goes on after it has programs of its own.
fn serves_sessions(name: &str, options: &[String]) -> bool {
    // Letters without a value, which may be joined.
    let flags = |letters: &str| {
        letters
            .chars()
            .take_while(|flag| "46DdeGiqTt".contains(*flag))
            .any(|flag| flag == 'D')
    };
    let mut letters = options.iter().filter_map(|word| word.strip_prefix('-'));
    name == "sshd" && letters.any(flags)
}

fn is_python(name: &str) -> bool {
    let version = name
        .strip_prefix("python")
        .or_else(|| name.strip_prefix("pypy"));
    version.is_some_and(|version| {
        version
            .bytes()
            .all(|letter| letter == b'.' || letter.is_ascii_digit())
    })
}

/// The command that a wrapper or an entry point's script starts.
fn wrapped(words: &[String]) -> Option<&[String]> {
    let (program, rest) = words.split_first()?;
    let name = base_name(program);
    if let Some(wrapper) = WRAPPERS
        .iter()
        .find(|wrapper| wrapper.names.contains(&name))
    {
        let mut rest = rest;
        if !wrapper.subcommand.is_empty() {
            rest = rest
                .split_first()
                .filter(|(word, _)| *word == wrapper.subcommand)?
                .1;
        }
        while let Some((word, next)) = rest.split_first() {
            match word
                .strip_prefix('-')
                .map(|name| name.trim_start_matches('-'))
            {
                Some(name) if wrapper.values.contains(&name) => rest = next.get(1..)?,
                Some(_) => rest = next,
                None if assignment(word).is_some() => rest = next,
                None => break,
            }
        }
        return rest.get(wrapper.words..).filter(|inner| !inner.is_empty());
    }
    // Such a script prepares something and becomes the program in its arguments, if a launcher follows.
    let rest = if is_shell(name) {
        let script = rest.iter().position(|word| !word.starts_with('-'))?;
        rest.get(script + 1..)?
    } else if name.ends_with(".sh") || name.contains("entrypoint") || name.contains("entry-point") {
        rest
    } else {
        return None;
    };
    let inner = rest.get(usize::from(rest.first()? == "--")..)?;
    let first = base_name(inner.first()?);
    let starts = is_python(first)
        || is_shell(first)
        || launcher(inner).is_some()
        || is_opaque(inner)
        || WRAPPERS
            .iter()
            .any(|wrapper| wrapper.names.contains(&first));
    starts.then_some(inner)
}

/// The program by a common name, if it starts other programs with a fresh environment.
fn fresh(name: &str, args: &[String]) -> Option<&'static str> {
    let has = |options: &[&str]| args.iter().any(|arg| options.contains(&arg.as_str()));
    let starts_sshd = || {
        args.iter()
            .any(|arg| matches!(arg.as_str(), "ssh" | "sshd"))
    };
    Some(match name {
        "sshd" | "dropbear" => "sshd",
        "service" | "rc-service" if starts_sshd() => "sshd",
        // /etc/init.d/ssh
        "ssh" if has(&["start", "restart"]) => "sshd",
        "su" | "runuser" if has(&["-", "-l", "--login"]) => "a login shell of su",
        "sudo"
            if !args
                .iter()
                .any(|arg| arg == "-E" || arg.starts_with("--preserve-env")) =>
        {
            "sudo"
        }
        "env" if has(&["-", "-i", "--ignore-environment"]) => "env -i",
        "cron" | "crond" => "cron",
        "systemd" | "init" => "the init system",
        "slurmd" => "slurmd",
        _ => return None,
    })
}

/// `NAME=value`, as before a command.
fn assignment(word: &str) -> Option<(&str, &str)> {
    let (name, value) = word.split_once('=')?;
    let is_name = !name.is_empty()
        && !name.starts_with(|letter: char| letter.is_ascii_digit())
        && name
            .bytes()
            .all(|letter| letter == b'_' || letter.is_ascii_alphanumeric());
    is_name.then_some((name, value))
}
