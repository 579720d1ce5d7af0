//! The modules of the crate: which modules each may import, what each never does, and that none has an import cycle.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

#[path = "modules/cycles.rs"]
mod cycles;
#[path = "support/repository.rs"]
mod repository;

use std::fs;
use std::path::{Path, PathBuf};

/// Each module and the modules that each may import. The table in `src/lib.rs` is the same.
const MODULES: [(&str, &[&str]); 16] = [
    ("text", &[]),
    ("cpu", &[]),
    ("pod", &["text", "cpu"]),
    ("scene", &["text"]),
    ("experiment", &["text", "pod", "scene"]),
    ("host", &["cpu"]),
    ("pin", &["cpu", "pod", "host"]),
    ("nri", &["cpu", "pod"]),
    ("cluster", &["text", "pod", "scene"]),
    ("metrics", &["cpu", "pod", "host", "pin"]),
    ("promql", &["experiment", "cluster"]),
    (
        "agent",
        &[
            "text", "cpu", "pod", "scene", "host", "pin", "nri", "cluster", "metrics",
        ],
    ),
    ("client", &["text", "cpu", "pod"]),
    (
        "sandbox",
        &[
            "text",
            "cpu",
            "pod",
            "scene",
            "experiment",
            "host",
            "pin",
            "nri",
            "cluster",
            "metrics",
            "promql",
            "agent",
            "client",
        ],
    ),
    (
        "lab",
        &[
            "text",
            "pod",
            "scene",
            "experiment",
            "cluster",
            "client",
            "promql",
        ],
    ),
    (
        "cli",
        &[
            "text",
            "cpu",
            "pod",
            "scene",
            "experiment",
            "host",
            "pin",
            "nri",
            "cluster",
            "metrics",
            "promql",
            "agent",
            "client",
            "sandbox",
            "lab",
        ],
    ),
];

/// Modules that compute without I/O.
const PURE: [&str; 5] = ["text", "cpu", "pod", "scene", "experiment"];

/// Names that never occur in a module of `PURE`.
const IMPURE: [&str; 10] = [
    "std::fs",
    "std::io::Read",
    "std::net",
    "std::process",
    "std::time::Instant",
    "std::env",
    "rand",
    "fastrand",
    "Instant::now",
    "SystemTime",
];

/// The longest file, in lines.
const LONGEST: usize = 600;

/// A line without the comment. A `//` in a string also ends the line here; no import follows a string.
fn code(line: &str) -> &str {
    line.split("//").next().unwrap_or_default()
}

/// The modules that a text names after `crate::`, also in groups: `use crate::{cpu, pod::Pod};`.
fn imports(text: &str) -> Vec<String> {
    let text: String = text
        .lines()
        .map(|line| format!("{}\n", code(line)))
        .collect();
    let mut found = Vec::new();
    for (at, _) in text.match_indices("crate::") {
        // `pub(in crate::x)` and similar visibilities name no import; `mycrate::` is another crate.
        let before = text[..at].chars().next_back();
        if before.is_some_and(|before| before.is_alphanumeric() || before == '_') {
            continue;
        }
        let rest = &text[at + "crate::".len()..];
        let Some(group) = rest.strip_prefix('{') else {
            found.push(word(rest));
            continue;
        };
        let mut depth = 1;
        let mut start = true;
        for (at, letter) in group.char_indices() {
            match letter {
                '{' => depth += 1,
                '}' => depth -= 1,
                _ => {}
            }
            if depth == 0 {
                break;
            }
            if depth == 1 && start && (letter.is_alphanumeric() || letter == '_') {
                found.push(word(&group[at..]));
                start = false;
            }
            start |= depth == 1 && letter == ',';
        }
    }
    found
}

fn word(text: &str) -> String {
    text.chars()
        .take_while(|letter| letter.is_alphanumeric() || *letter == '_')
        .collect()
}

/// The rules that a file breaks; `path` is relative to `src`.
fn offences(path: &str, text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut offence = |what: String| found.push(format!("src/{path}: {what}"));
    if text.lines().count() > LONGEST {
        offence(format!(
            "{} lines, more than {LONGEST}: split it",
            text.lines().count()
        ));
    }
    if path == "main.rs" && text.lines().count() >= 20 {
        offence("20 lines or more: everything is in the library".to_owned());
    }
    let unsafe_code = |line: &str| {
        code(line)
            .split(|c: char| !c.is_alphanumeric() && c != '_')
            .any(|w| w == "unsafe")
    };
    if !path.starts_with("host/") && text.lines().any(unsafe_code) {
        offence("unsafe code belongs to host".to_owned());
    }
    if matches!(path, "main.rs" | "lib.rs") {
        return found;
    }
    // A program that uses the library would take much of it along.
    if path.starts_with("bin/") {
        if text.contains("pinfold::") {
            offence("uses the library, and must stay small".to_owned());
        }
        return found;
    }
    let module = path.split(['/', '.']).next().unwrap_or_default();
    let Some((_, allowed)) = MODULES.iter().find(|(name, _)| *name == module) else {
        offence(format!("{module} is no module of the table"));
        return found;
    };
    for other in imports(text) {
        if other != module && !allowed.contains(&other.as_str()) {
            offence(format!(
                "imports crate::{other}, and {module} may import {allowed:?}"
            ));
        }
    }
    // A `super` that leaves the module would hide an import: src/module/mod.rs is one level below the crate.
    let depth = path.trim_end_matches("/mod.rs").matches('/').count() + 1;
    let leaves = "super::".repeat(depth);
    let outermost = |line: &&str| line.starts_with("use ") || line.starts_with("pub");
    if text
        .lines()
        .filter(outermost)
        .any(|line| code(line).contains(&leaves))
    {
        offence("leaves its module through super".to_owned());
    }
    if PURE.contains(&module) {
        for line in text.lines() {
            for name in IMPURE {
                let mut at = code(line).match_indices(name);
                let whole = |(at, _): (usize, &str)| {
                    let letter =
                        |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
                    !letter(line[..at].chars().next_back())
                        && !letter(line[at + name.len()..].chars().next())
                };
                if at.any(whole) {
                    offence(format!(
                        "{module} only computes, and this names {name}: {}",
                        line.trim()
                    ));
                }
            }
        }
    }
    found
}

fn sources(folder: &Path, into: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, into);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            into.push(path);
        }
    }
}

fn src() -> PathBuf {
    repository::here("src")
}

/// A guest sees the repository elsewhere than the machine that built the test program, so a path from the build leads nowhere.
#[test]
fn tests_find_files_where_they_run() {
    let mut files = Vec::new();
    sources(&repository::here("tests"), &mut files);
    let built = concat!("CARGO_", "MANIFEST_DIR");
    let wrong: Vec<_> = files
        .into_iter()
        .filter(|file| fs::read_to_string(file).unwrap().contains(built))
        .collect();
    assert!(wrong.is_empty(), "use support/repository.rs: {wrong:?}");
}

/// The text of a file above the test module. Attributes may stand between `#[cfg(test)]` and the module.
fn without_tests(text: &str) -> &str {
    let Some(module) = text.find("\nmod tests {") else {
        return text;
    };
    match text[..=module].rfind("\n#[cfg(test)]\n") {
        Some(start) if !text[start..module].contains(['{', ';']) => &text[..start],
        _ => text,
    }
}

#[test]
fn every_file_keeps_the_rules_of_its_module() {
    let mut files = Vec::new();
    sources(&src(), &mut files);
    let mut found = Vec::new();
    for file in &files {
        let path = file.strip_prefix(src()).unwrap().to_str().unwrap();
        // Tests of a module may read and write files even where the module may not.
        let test = path.ends_with("/tests.rs") || path.contains("/tests/");
        let text = fs::read_to_string(file).unwrap();
        let text = without_tests(&text);
        let mut offences = offences(path, text);
        offences
            .retain(|offence| !test || offence.contains("lines") || offence.contains("no module"));
        found.extend(offences);
    }
    assert!(
        files.len() > 50,
        "{} files only: is this the right folder?",
        files.len()
    );
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn the_documented_table_matches() {
    let text = fs::read_to_string(src().join("lib.rs")).unwrap();
    let mut rows = 0;
    for line in text.lines().filter(|line| line.starts_with("//! | [`")) {
        let cells: Vec<&str> = line
            .trim_start_matches("//! |")
            .split('|')
            .map(str::trim)
            .collect();
        let module = cells[0].trim_matches(['[', ']', '`']);
        let (_, allowed) = MODULES
            .iter()
            .find(|(name, _)| *name == module)
            .unwrap_or_else(|| panic!("{module}?"));
        rows += 1;
        if let Some(excluded) = cells[2].strip_prefix("all above") {
            let excluded: Vec<&str> = excluded.split('`').skip(1).step_by(2).collect();
            assert!(
                excluded.iter().all(|name| !allowed.contains(name)),
                "{line}"
            );
            assert_eq!(allowed.len() + excluded.len(), rows - 1, "{line}");
            continue;
        }
        let named: Vec<&str> = cells[2].split('`').skip(1).step_by(2).collect();
        assert_eq!(&named, allowed, "{line}");
    }
    let public = text
        .lines()
        .filter(|line| line.starts_with("pub mod "))
        .count();
    assert_eq!(rows, public, "every module has its row");
}

#[test]
fn offences_are_found() {
    let clean = "use crate::cpu::CpuSet;\nuse std::collections::BTreeMap; // not std::fs\n/// [`crate::agent`]\n";
    assert_eq!(offences("pod/x.rs", clean), Vec::<String>::new());
    assert_eq!(
        offences("host/x.rs", "unsafe { f() }\nuse crate::cpu::CpuSet;\n"),
        Vec::<String>::new()
    );
    assert_eq!(
        offences("cpu/y/x.rs", "use super::super::set::CpuSet;\n"),
        Vec::<String>::new()
    );
    for (path, text, says) in [
        ("attic/mod.rs", "", "no module"),
        (
            "pod/x.rs",
            "use crate::host::file;\n",
            "imports crate::host",
        ),
        (
            "cpu/x.rs",
            "fn f() { crate::pod::qos() }\n",
            "imports crate::pod",
        ),
        (
            "pin/x.rs",
            "use crate::{cpu::{CpuSet, Cpu}, agent::Agent};\n",
            "imports crate::agent",
        ),
        (
            "pin/x.rs",
            "use crate::{\n    agent,\n    cpu,\n};\n",
            "imports crate::agent",
        ),
        ("metrics/mod.rs", "use crate::cli;\n", "imports crate::cli"),
        ("cpu/x.rs", "use super::super::host;\n", "through super"),
        ("cpu/mod.rs", "use super::host;\n", "through super"),
        ("pin/x.rs", "    unsafe { f() }\n", "unsafe"),
        (
            "cpu/x.rs",
            "    let text = std::fs::read(path)?;\n",
            "std::fs",
        ),
        ("pod/x.rs", "use std::time::Instant;\n", "std::time"),
        ("cpu/x.rs", "use rand::Rng;\n", "rand"),
        ("main.rs", &"\n".repeat(20), "20 lines"),
        ("cli/x.rs", &"\n".repeat(601), "601 lines"),
    ] {
        let found = offences(path, text);
        assert!(
            found.len() == 1 && found[0].contains(says),
            "{path} {text:?}: {found:?}"
        );
    }
}
