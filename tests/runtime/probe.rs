//! The program in the test containers. The first thing that it does is to report its CPUs and its
//! environment.
//!
//! `tests/runtime/prepare` builds this file as a static program, and the tests include it for
//! [`Report`].
//!
//! - `probe report FILE`: writes a report to a file, then waits forever.
//! - `probe once FILE`: writes a report and ends, as an init container does.
//! - `probe show`: prints a report and ends.
//! - `probe pause`: waits forever.

use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// CPUs, memory nodes, cgroups and environment of the process at its start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Report {
    /// The allowed CPUs, as a list.
    pub(crate) cpus: String,
    /// The NUMA nodes from which the process may get memory, as a list.
    pub(crate) mems: String,
    /// The CPU on which the process ran.
    pub(crate) ran_on: u32,
    /// The number of threads that a program would start from `available_parallelism`.
    pub(crate) parallelism: usize,
    /// The time of the report, in nanoseconds since 1970.
    pub(crate) at: u128,
    /// The cgroups, in the kernel's format.
    pub(crate) cgroup: String,
    /// The environment variables.
    pub(crate) env: BTreeMap<String, String>,
}

// === impl Report ===

impl Report {
    /// The report of the current process.
    fn now() -> Self {
        // The CPUs come first, because the set could change during the later reads.
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
        let at = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |since| since.as_nanos());
        let list = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            line.unwrap_or_default().trim().to_owned()
        };
        // The 39th field. The second field is the program's name in brackets and may contain spaces.
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

    /// The report as text, with a name and a value per line.
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

    /// Parses the output of [`Report::text`]. Test environments contain no characters that need an escape.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let all = |name: &str| {
            let prefix = format!("{name} ");
            text.lines()
                .filter_map(move |line| line.strip_prefix(&prefix).map(str::to_owned))
                .collect()
        };
        let first_value = |name: &str| -> Option<String> {
            let values: Vec<String> = all(name);
            values.into_iter().next()
        };
        let env: Vec<String> = all("env");
        let pair = |line: &String| {
            line.split_once('=')
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
        };
        Some(Self {
            cpus: first_value("cpus")?,
            mems: first_value("mems")?,
            ran_on: first_value("ran_on")?.parse().ok()?,
            parallelism: first_value("parallelism")?.parse().ok()?,
            at: first_value("at")?.parse().ok()?,
            cgroup: all("cgroup").join("\n"),
            env: env.iter().filter_map(pair).collect(),
        })
    }
}

/// Writes a file atomically: first a temporary file, then a rename.
fn write(path: &str, text: &str) -> std::io::Result<()> {
    let temporary = format!("{path}.new");
    fs::write(&temporary, text)?;
    fs::rename(temporary, path)
}

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
            eprintln!("probe: unknown command: {args:?}");
            std::process::exit(2);
        }
    }
    loop {
        std::thread::sleep(Duration::from_secs(3600));
    }
}
