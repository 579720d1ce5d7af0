//! The environment variables of options: an error names the variable that holds a wrong value, and a variable that no option
//! has gets a warning.

use std::ffi::{OsStr, OsString};

use clap::error::{ContextKind, ContextValue};
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command};

use crate::text::nearest;

/// What the names of Pinfold's variables begin with.
const PREFIX: &str = "PINFOLD_";

/// The variables, without the prefix, that no option has: of builds and tests, and those that Pinfold sets for others.
const OF_OTHERS: [&str; 18] = [
    "BENCH_INDEX",
    "COMMIT",
    "CPUS",
    "FUZZ_SECONDS",
    "LOG_LEVEL",
    "MODEL_EVENTS",
    "PROMETHEUS",
    "PYTORCH",
    "RANK_CPUS",
    "RECORD",
    "RELEASE_TOOLS",
    "RENEW",
    "RUNC",
    "STUMBLED",
    "TENSORFLOW",
    "TOOLS",
    "UPDATE_DOCS",
    "WRAPPER",
];

/// Groups of such variables: what their names begin and end with.
const GROUPS_OF_OTHERS: [(&str, &str); 4] =
    [("TEST_", ""), ("E2E_", ""), ("VM_", ""), ("", "_TESTS")];

/// A variable of an option, and its value.
pub(super) type Variable = (String, OsString);

/// The variables whose values the options of a command line have, because the command line does not name these options.
pub(super) fn used(mut command: &Command, mut matches: &ArgMatches) -> Vec<Variable> {
    let mut used = Vec::new();
    loop {
        let arguments = command.get_arguments().filter(|argument| {
            matches.value_source(argument.get_id().as_str()) == Some(ValueSource::EnvVariable)
        });
        used.extend(arguments.filter_map(variable));
        let Some((name, of_subcommand)) = matches.subcommand() else {
            return used;
        };
        let Some(subcommand) = command.find_subcommand(name) else {
            return used;
        };
        (command, matches) = (subcommand, of_subcommand);
    }
}

fn variable(argument: &Arg) -> Option<Variable> {
    let name = argument.get_env()?;
    let value = std::env::var_os(name)?;
    Some((name.to_string_lossy().into_owned(), value))
}

/// Which of the variables an error is about: those whose values it names. The text goes after the error.
pub(super) fn behind(error: &str, variables: &[Variable]) -> String {
    let behind = variables.iter().filter_map(|(name, value)| {
        let value = value.to_str().filter(|value| !value.is_empty())?;
        // A single letter occurs by chance, so it must stand in quotes.
        let is_named = match value.len() {
            1 => error.contains(&format!("{value:?}")),
            _ => error.contains(value),
        };
        let is_meant = is_named && !error.contains(name);
        is_meant.then(|| format!("{name}={value}"))
    });
    let behind: Vec<String> = behind.collect();
    match behind.as_slice() {
        [] => String::new(),
        [one] => format!(" ({one} is set in the environment)"),
        several => format!(" ({} are set in the environment)", several.join(" and ")),
    }
}

/// Puts the name of a variable into an error about its value, which otherwise names the option.
pub(super) fn named(mut error: clap::Error, command: &Command) -> clap::Error {
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.clone()),
        _ => None,
    };
    let (Some(option), Some(value)) = (
        text(ContextKind::InvalidArg),
        text(ContextKind::InvalidValue),
    ) else {
        return error;
    };
    let mut command = command.clone();
    command.build();
    let mut variables = Vec::new();
    collect(&command, &mut |argument: &Arg| {
        if argument.to_string() == option && !is_given(argument) {
            variables.extend(variable(argument));
        }
    });
    let is_wrong = |(_, set): &&Variable| set.to_str() == Some(value.as_str());
    if let Some((name, _)) = variables.iter().find(is_wrong) {
        let name = ContextValue::String(name.clone());
        error.insert(ContextKind::InvalidArg, name);
    }
    error
}

/// Whether this process's command line has the option.
fn is_given(argument: &Arg) -> bool {
    let Some(long) = argument.get_long() else {
        return false;
    };
    std::env::args_os().any(|given| {
        let given = given.to_string_lossy();
        let rest = given
            .strip_prefix("--")
            .and_then(|given| given.strip_prefix(long));
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('='))
    })
}

fn collect(command: &Command, with: &mut impl FnMut(&Arg)) {
    command.get_arguments().for_each(&mut *with);
    for subcommand in command.get_subcommands() {
        collect(subcommand, with);
    }
}

/// A sentence for each variable of this process that looks like one of Pinfold's, and that no option has.
pub(super) fn unknown(command: &Command) -> Vec<String> {
    let names = std::env::vars_os().map(|(name, _)| name);
    unknown_of(command, names)
}

fn unknown_of(command: &Command, names: impl Iterator<Item = OsString>) -> Vec<String> {
    let mut known = Vec::new();
    collect(command, &mut |argument: &Arg| {
        known.extend(
            argument
                .get_env()
                .and_then(OsStr::to_str)
                .map(str::to_owned),
        );
    });
    known.sort_unstable();
    known.dedup();
    let known: Vec<&str> = known.iter().map(String::as_str).collect();
    let mut unknown: Vec<String> = names
        .filter_map(|name| name.into_string().ok())
        .filter(|name| !known.contains(&name.as_str()))
        .filter(|name| {
            name.strip_prefix(PREFIX)
                .is_some_and(|rest| !is_of_others(rest))
        })
        .collect();
    unknown.sort_unstable();
    let sentence = |name: &String| match nearest(name, &known) {
        Some(near) => {
            format!("the environment variable {name} has no effect: did you mean {near}?")
        }
        None => format!(
            "the environment variable {name} has no effect: pinfold run --help names the variables"
        ),
    };
    unknown.iter().map(sentence).collect()
}

/// Whether a variable, without the prefix, belongs to something other than the options.
fn is_of_others(name: &str) -> bool {
    let groups = GROUPS_OF_OTHERS.iter();
    let mut groups = groups.map(|(start, end)| name.starts_with(start) && name.ends_with(end));
    OF_OTHERS.contains(&name) || groups.any(|is_member| is_member) || is_of_service(name)
}

/// Whether the kubelet sets the variable, without the prefix, for a Service whose name begins with `pinfold`: for example
/// `SERVICE_HOST`, `METRICS_SERVICE_PORT` or `PORT_9470_TCP_ADDR`.
fn is_of_service(name: &str) -> bool {
    let mut words = name.split('_').peekable();
    while let Some(word) = words.next() {
        let next = words.peek().copied();
        match (word, next) {
            ("SERVICE", Some("HOST" | "PORT")) | ("PORT", None) => return true,
            ("PORT", Some(next)) if next.bytes().all(|letter| letter.is_ascii_digit()) => {
                return true;
            }
            _ => {}
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unknown_names(names: &[&str]) -> Vec<String> {
        let command = crate::cli::command();
        unknown_of(&command, names.iter().map(OsString::from))
    }

    #[test]
    fn a_variable_that_no_option_has_is_named_with_the_nearest() {
        assert_eq!(
            unknown_names(&[
                "PINFOLD_RESERVE",
                "PATH",
                "PINFOLD_COLOUR",
                "PINFOLD_RESERVED"
            ]),
            [
                "the environment variable PINFOLD_COLOUR has no effect: pinfold run --help names the variables",
                "the environment variable PINFOLD_RESERVE has no effect: did you mean PINFOLD_RESERVED?",
            ]
        );
    }

    #[test]
    fn variables_of_a_service_are_no_mistakes() {
        let of_service = [
            "PINFOLD_SERVICE_HOST",
            "PINFOLD_SERVICE_PORT_METRICS",
            "PINFOLD_RECLAIM_SERVICE_PORT",
            "PINFOLD_PORT",
            "PINFOLD_PORT_9470_TCP",
            "PINFOLD_PORT_9470_TCP_ADDR",
        ];
        assert_eq!(unknown_names(&of_service), [""; 0]);
        assert_eq!(
            unknown_names(&["PINFOLD_SERVICE", "PINFOLD_PORTS"]).len(),
            2
        );
    }

    #[test]
    fn an_error_names_the_variables_that_hold_its_values() {
        let set = |name: &str, value: &str| (name.to_owned(), OsString::from(value));
        let variables = [
            set("PINFOLD_RECONCILE_INTERVAL", "0s"),
            set("PINFOLD_CONFIG", "/etc/p.yaml"),
            set("PINFOLD_ROOT_DIR", "/"),
            set("PINFOLD_NRI_SOCKET", "a"),
        ];
        let behind = |error| behind(error, &variables);
        assert_eq!(
            behind("reconcileInterval is 0s: use 1s to 1h"),
            " (PINFOLD_RECONCILE_INTERVAL=0s is set in the environment)"
        );
        assert_eq!(
            behind("/etc/p.yaml has 0s"),
            " (PINFOLD_RECONCILE_INTERVAL=0s and PINFOLD_CONFIG=/etc/p.yaml are set in the environment)"
        );
        assert_eq!(behind("PINFOLD_CONFIG names /etc/p.yaml"), "");
        assert_eq!(
            behind("runtime.socket \"a\" is no absolute path"),
            " (PINFOLD_NRI_SOCKET=a is set in the environment)"
        );
    }
}
