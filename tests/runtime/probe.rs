//! The program that the tests' containers run: its first act is to write down what it was given.
//!
//! `tests/runtime/prepare` builds it as a static program of its own; the tests include this file for [`Report`].
//!
//! - `probe report FILE`: writes a report to a file, then waits for ever.
//! - `probe once FILE`: writes a report and ends, as an init container does.
//! - `probe show`: prints a report and ends.
//! - `probe pause`: waits for ever.

use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// What the program was given when it began.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Report {
    /// The CPUs that it may run on, as a list.
    pub(crate) cpus: String,
    /// The NUMA nodes that it may have memory of, as a list.
    pub(crate) mems: String,
    /// The CPU that it ran on.
    pub(crate) ran_on: u32,
    /// How many threads a program would start by what the system says.
    pub(crate) parallelism: usize,
    /// When, in nanoseconds since 1970.
    pub(crate) at: u128,
    /// Its cgroups, as the kernel writes them.
    pub(crate) cgroup: String,
    /// Its environment.
    pub(crate) env: BTreeMap<String, String>,
}

// === impl Report ===

impl Report {
    /// What this process has now.
    fn now() -> Self {
        // First of all the CPUs: what follows takes time, in which somebody could change them.
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
        let at = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |since| since.as_nanos());
        let list = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            line.unwrap_or_default().trim().to_owned()
        };
        // The 39th field; the second is the program's name, in brackets, and may hold spaces.
        let behind_name = stat.rsplit(") ").next().unwrap_or_default();
        let ran_on = behind_name
            .split(' ')
            .nth(36)
            .and_then(|cpu| cpu.parse().ok());
        Self {
            cpus: list("Cpus_allowed_list:"),
            mems: list("Mems_allowed_list:"),
            ran_on: ran_on.unwrap_or(u32::MAX),
            parallelism: std::thread::available_parallelism().map_or(0, std::num::NonZero::get),
            at,
            cgroup: fs::read_to_string("/proc/self/cgroup").unwrap_or_default(),
            env: std::env::vars().collect(),
        }
    }

    /// As text: a name and a value per line.
    fn text(&self) -> String {
        let Self {
            cpus,
            mems,
            ran_on,
            parallelism,
            at,
            ..
        } = self;
        let mut text = format!(
            "cpus {cpus}\nmems {mems}\nran_on {ran_on}\nparallelism {parallelism}\nat {at}\n"
        );
        for line in self.cgroup.lines() {
            text += &format!("cgroup {line}\n");
        }
        for (name, value) in &self.env {
            text += &format!("env {name}={}\n", value.escape_default());
        }
        text
    }

    /// Reads [`Report::text`]. Environments of tests hold nothing that would be escaped.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let all = |name: &str| {
            let prefix = format!("{name} ");
            text.lines()
                .filter_map(move |line| line.strip_prefix(&prefix).map(str::to_owned))
                .collect()
        };
        let one = |name: &str| -> Option<String> {
            let values: Vec<String> = all(name);
            values.into_iter().next()
        };
        let env: Vec<String> = all("env");
        let pair = |line: &String| {
            line.split_once('=')
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
        };
        Some(Self {
            cpus: one("cpus")?,
            mems: one("mems")?,
            ran_on: one("ran_on")?.parse().ok()?,
            parallelism: one("parallelism")?.parse().ok()?,
            at: one("at")?.parse().ok()?,
            cgroup: all("cgroup").join("\n"),
            env: env.iter().filter_map(pair).collect(),
        })
    }
}

/// Writes to a file that is there only when it is whole.
fn write(path: &str, text: &str) -> std::io::Result<()> {
    let beside = format!("{path}.new");
    fs::write(&beside, text)?;
    fs::rename(beside, path)
}

/// The program.
pub(crate) fn main() {
    let report = Report::now();
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args[..] {
        ["report", path] => {
            if let Err(error) = write(path, &report.text()) {
                eprintln!("probe: can't write {path}: {error}");
                std::process::exit(1);
            }
        }
        ["once", path] => {
            let written = write(path, &report.text());
            std::process::exit(i32::from(written.is_err()));
        }
        ["show"] => {
            print!("{}", report.text());
            std::process::exit(0);
        }
        ["pause"] => {}
        _ => {
            eprintln!("probe: no such act: {args:?}");
            std::process::exit(2);
        }
    }
    loop {
        std::thread::sleep(Duration::from_secs(3600));
    }
}
