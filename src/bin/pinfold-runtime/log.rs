//! The refusal in the runtime's log, from where the container runtime takes the message of the pod's Event.

use std::fs::OpenOptions;
use std::io::Write;

use crate::arguments::Log;

/// Writes a refusal to stderr and to the log. A log that can't be written changes nothing: the exit code still stops the
/// start.
pub(crate) fn refusal(log: &Log, why: &str) {
    let message = format!("pinfold-runtime: {why}");
    let _ = writeln!(std::io::stderr(), "{message}");
    if let Some(file) = &log.file {
        let line = line(&message, &jiff::Timestamp::now().to_string(), log.json);
        let opened = OpenOptions::new().append(true).create(true).open(file);
        let _ = opened.and_then(|mut file| file.write_all(line.as_bytes()));
    }
}

/// A line in the form of runc's log, which the shims of containerd read.
fn line(message: &str, time: &str, json: bool) -> String {
    let quoted = serde_json::Value::from(message);
    if json {
        format!("{{\"level\":\"error\",\"msg\":{quoted},\"time\":\"{time}\"}}\n")
    } else {
        format!("time=\"{time}\" level=error msg={quoted}\n")
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn both_forms_are_those_of_runc() {
        let json = line("a \"b\"\n", "2026-01-02T03:04:05Z", true);
        let read: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(
            read,
            serde_json::json!({"level": "error", "msg": "a \"b\"\n", "time": "2026-01-02T03:04:05Z"})
        );
        let text = line("a \"b\"", "2026-01-02T03:04:05Z", false);
        assert_eq!(
            text,
            "time=\"2026-01-02T03:04:05Z\" level=error msg=\"a \\\"b\\\"\"\n"
        );
    }

    #[test]
    fn a_refusal_is_added_to_the_log() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("log.json");
        let log = Log {
            file: Some(file.clone()),
            json: true,
        };
        refusal(&log, "first");
        refusal(&log, "second");
        let text = std::fs::read_to_string(file).unwrap();
        assert_eq!(text.lines().count(), 2, "{text}");
        assert!(text.lines().all(|line| line.contains("pinfold-runtime: ")));
    }
}
