//! Options of earlier versions. Each is refused, with the option that has taken its place.

use clap::builder::UnknownArgumentValueParser;
use clap::{Arg, Command};

/// An option that commands had.
struct EarlierOption {
    name: &'static str,
    short: Option<char>,
    /// The answer to it, which names the new option.
    answer: &'static str,
    commands: &'static [&'static str],
}

const EARLIER: [EarlierOption; 3] = [
    EarlierOption {
        name: "namespace",
        short: None,
        answer: "--agent-namespace now names the namespace of the agents and of their objects",
        commands: &[
            "run",
            "doctor",
            "release",
            "config",
            "scene check",
            "scene labels",
            "scene status",
            "scene import",
            "scene render",
            "scene simulate",
        ],
    },
    EarlierOption {
        name: "namespace",
        short: Some('n'),
        answer: "--job-namespace now names the namespace of the jobs",
        commands: &["scene reclaim", "scene report"],
    },
    EarlierOption {
        name: "into",
        short: None,
        answer: "--job-namespace now names the namespace of the job's objects",
        commands: &["scene render"],
    },
];

/// The command line with the earlier options, which no help shows.
pub(super) fn refuse_earlier_options(mut command: Command) -> Command {
    add(&mut command, "");
    command
}

/// Adds the earlier options of a command and of its subcommands. `path`: the command without the program's name.
fn add(command: &mut Command, path: &str) {
    for earlier in EARLIER.iter().filter(|one| one.commands.contains(&path)) {
        let option = Arg::new(earlier.name)
            .long(earlier.name)
            .value_name("NAMESPACE")
            .hide(true)
            .value_parser(UnknownArgumentValueParser::suggest(earlier.answer));
        let option = match earlier.short {
            Some(short) => option.short(short),
            None => option,
        };
        *command = std::mem::take(command).arg(option);
    }
    for inner in command.get_subcommands_mut() {
        let path = format!("{path} {}", inner.get_name());
        add(inner, path.trim_start());
    }
}
