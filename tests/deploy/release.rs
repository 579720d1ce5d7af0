//! The release script and the workflow of a release.

use std::fs;
use std::process::Command;

use serde_json::Value;

use crate::yaml::{here, parse};

/// Variables that lead the compilers and linkers to different files, or choose a different toolchain.
const REMOVED: [&str; 8] = [
    "CPATH",
    "C_INCLUDE_PATH",
    "CPLUS_INCLUDE_PATH",
    "LIBRARY_PATH",
    "LD_LIBRARY_PATH",
    "LDFLAGS",
    "RUSTUP_TOOLCHAIN",
    "RUSTFLAGS",
];

fn bash(script: &str) -> Command {
    let mut bash = Command::new("bash");
    bash.args(["-e", "-c", script]);
    bash
}

#[test]
fn the_release_script_removes_variables_that_change_binaries() {
    let script = fs::read_to_string(here("deploy/release")).unwrap();
    let begin = script.find("for name in $(compgen -e); do").unwrap();
    let end = script[begin..].find("\ndone\n").unwrap();
    let clean = &script[begin..begin + end + "\ndone\n".len()];
    let mut run = bash(&format!("{clean}env"));
    run.envs(REMOVED.map(|name| (name, "/nowhere")));
    run.env("CARGO_HOME", "/kept");
    let result = run.output().unwrap();
    let left = String::from_utf8(result.stdout).unwrap();
    assert!(result.status.success(), "{left}");
    assert!(left.contains("CARGO_HOME=/kept\n"), "{left}");
    for name in REMOVED {
        let line = format!("{name}=");
        assert!(!left.lines().any(|have| have.starts_with(&line)), "{left}");
    }
}

#[test]
fn the_workflow_refuses_a_tag_that_differs_from_the_version() {
    let path = ".github/workflows/release.yml";
    // In YAML 1.1, a plain `on` is a boolean.
    let text = fs::read_to_string(here(path)).unwrap();
    let workflow = parse(&text.replace("\non:", "\nevents:"), path);
    let steps = workflow[0]["jobs"]["release"]["steps"].as_array().unwrap();
    let runs = |text: &str| {
        let position = steps.iter().position(|step| {
            let run = step["run"].as_str();
            run.is_some_and(|run| run.contains(text))
        });
        position.unwrap_or_else(|| panic!("no step with {text}"))
    };
    let compare = runs("GITHUB_REF_NAME");
    assert!(compare < runs("deploy/release --verify"));
    let script = steps[compare]["run"].as_str().unwrap();
    for (tag, right) in [
        (concat!("v", env!("CARGO_PKG_VERSION")), true),
        ("v9.9.9", false),
        ("v", false),
    ] {
        let mut run = bash(script);
        run.current_dir(here("")).env("GITHUB_REF_NAME", tag);
        assert_eq!(run.output().unwrap().status.success(), right, "{tag}");
    }
    // An artifact loses the modes of files, so the workflow uploads an archive.
    let upload = steps.iter().find(|step| {
        let action = step["uses"].as_str();
        action.is_some_and(|action| action.starts_with("actions/upload-artifact"))
    });
    let path = &upload.unwrap()["with"]["path"];
    assert_eq!(*path, Value::from("build/pinfold.tar"));
    runs("tar --create --file build/pinfold.tar");
}
