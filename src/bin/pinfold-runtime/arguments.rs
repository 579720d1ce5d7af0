//! The command line of an OCI runtime, as containerd's shim, conmon and CRI-O write it for runc and crun.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

/// Where a runtime's errors go.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Log {
    /// `--log`; stderr alone without it.
    pub(crate) file: Option<PathBuf>,
    /// `--log-format json`.
    pub(crate) json: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Call {
    /// Starts a created container.
    Start {
        id: OsString,
        /// The options before the command, without those about logs. They say where the runtime keeps its containers.
        globals: Vec<OsString>,
    },
    /// Starts a container that has not been created before, or may do so.
    Unchecked { command: String },
    /// Starts no container.
    Other,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Invocation {
    pub(crate) call: Call,
    pub(crate) log: Log,
}

/// The options before the command that take a value, of runc and crun.
const WITH_VALUE: [&str; 8] = [
    "log",
    "log-format",
    "log-level",
    "root",
    "rootless",
    "criu",
    "cgroup-manager",
    "config",
];

/// Commands that start no container.
const HARMLESS: [&str; 17] = [
    "checkpoint",
    "create",
    "delete",
    "events",
    "exec",
    "features",
    "help",
    "init",
    "kill",
    "list",
    "mounts",
    "pause",
    "ps",
    "resume",
    "spec",
    "state",
    "update",
];

/// Commands that start a container which has not been created before.
const AT_ONCE: [&str; 2] = ["run", "restore"];

/// The meaning of a command line, without the program's name.
///
/// An unknown option may have a value, which then looks like the command. If a word that starts a container follows, the
/// call counts as one that can't be checked.
pub(crate) fn parse(arguments: &[OsString]) -> Invocation {
    let mut log = Log::default();
    let mut globals = Vec::new();
    let mut rest = arguments.iter();
    let mut command = None;
    while let Some(argument) = rest.next() {
        let Some(option) = option(argument) else {
            command = Some(argument);
            break;
        };
        let (name, inline) = split(option);
        let separate = (inline.is_none() && WITH_VALUE.contains(&name.as_str()))
            .then(|| rest.next())
            .flatten();
        let value = inline.as_deref().or(separate.map(OsString::as_os_str));
        match (name.as_str(), value) {
            ("log", Some(value)) => log.file = Some(PathBuf::from(value)),
            ("log-format", Some(value)) => log.json = value == "json",
            ("log" | "log-format" | "log-level" | "debug", _) => {}
            _ => {
                globals.push(argument.clone());
                globals.extend(separate.cloned());
            }
        }
    }
    let rest: Vec<&OsString> = rest.collect();
    let call = command.map_or(Call::Other, |command| call(command, &rest, globals));
    Invocation { call, log }
}

fn call(command: &OsString, rest: &[&OsString], globals: Vec<OsString>) -> Call {
    let is = |word: &OsStr, among: &[&str]| word.to_str().is_some_and(|word| among.contains(&word));
    if is(command, &HARMLESS) {
        return Call::Other;
    }
    if is(command, &["start"]) {
        let id = rest.iter().find(|word| option(word).is_none());
        return id.map_or(Call::Other, |id| Call::Start {
            id: (*id).clone(),
            globals,
        });
    }
    let starts = std::iter::once(&command)
        .chain(rest)
        .find(|word| is(word, &AT_ONCE) || is(word, &["start"]));
    starts.map_or(Call::Other, |word| Call::Unchecked {
        command: word.to_string_lossy().into_owned(),
    })
}

/// An option without its dashes; `None` for any other word.
fn option(argument: &OsStr) -> Option<&[u8]> {
    let bytes = argument.as_encoded_bytes();
    let name = bytes.strip_prefix(b"-")?;
    let name = name.strip_prefix(b"-").unwrap_or(name);
    (!name.is_empty()).then_some(name)
}

/// The name of an option, and the value after `=`.
fn split(option: &[u8]) -> (String, Option<OsString>) {
    use std::os::unix::ffi::OsStrExt;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    match option.iter().position(|&byte| byte == b'=') {
        Some(at) => {
            let value = OsStr::from_bytes(&option[at + 1..]);
            (text(&option[..at]), Some(value.to_owned()))
        }
        None => (text(option), None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Invocation {
        let words: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
        parse(&words)
    }

    fn start(id: &str, globals: &str) -> Call {
        Call::Start {
            id: id.into(),
            globals: globals.split_whitespace().map(OsString::from).collect(),
        }
    }

    #[test]
    fn the_calls_of_containerd_and_cri_o_are_understood() {
        let of_containerd = parsed(
            "--root /run/containerd/runc/k8s.io --log /b/log.json --log-format json --systemd-cgroup start 0123abcd",
        );
        let globals = "--root /run/containerd/runc/k8s.io --systemd-cgroup";
        assert_eq!(of_containerd.call, start("0123abcd", globals));
        let log = Log {
            file: Some("/b/log.json".into()),
            json: true,
        };
        assert_eq!(of_containerd.log, log);
        let of_cri_o = parsed("--root=/run/crun --systemd-cgroup start 0123");
        assert_eq!(
            of_cri_o.call,
            start("0123", "--root=/run/crun --systemd-cgroup")
        );
        assert_eq!(of_cri_o.log, Log::default());
        let conmon = parsed(
            "--systemd-cgroup --root=/run/runc create --bundle /b --pid-file /b/pidfile start",
        );
        assert_eq!(conmon.call, Call::Other);
    }

    #[test]
    fn options_are_taken_in_each_form() {
        for line in ["-root /r start a", "--debug --root /r start a"] {
            assert!(
                matches!(parsed(line).call, Call::Start { id, .. } if id == "a"),
                "{line}"
            );
        }
        assert_eq!(
            parsed("--log=/l --log-format=text start a").log,
            Log {
                file: Some("/l".into()),
                json: false
            }
        );
        for line in [
            "",
            "--version",
            "start",
            "state start",
            "exec a start",
            "--root",
            "-- -",
            "kill run 9",
        ] {
            assert_eq!(parsed(line).call, Call::Other, "{line}");
        }
    }

    #[test]
    fn what_starts_without_a_creation_is_found() {
        for line in [
            "run a",
            "--root /r restore a",
            "--unknown value start a",
            "--unknown value run a",
        ] {
            assert!(
                matches!(parsed(line).call, Call::Unchecked { .. }),
                "{line}"
            );
        }
    }
}
