//! The unit: systemd reads it without a complaint, scores it, and its example configuration is one that the agent takes.

use std::process::Command;

use pinfold::agent::config::Config;
use serde_json::json;

use crate::tools::{debian, documents, here, output, succeed};

/// systemd's own score of exposure, in tenths: what is left is what the agent is for (cgroups, /proc/irq, root, its network, the
/// kernel's accounting, hardware counters, BPF where it is asked for).
const EXPOSURE: u32 = 32;

#[test]
fn systemd_takes_the_unit_and_scores_it() {
    let Some(analyze) = debian("systemd-analyze", "systemd") else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let unit = std::fs::read_to_string(here("systemd/pinfold.service")).unwrap();
    // It looks for the program, which no test installs.
    let (installed, built) = ("/usr/local/bin/pinfold", env!("CARGO_BIN_EXE_pinfold"));
    assert_eq!(
        unit.matches(&format!("ExecStart={installed} run\n"))
            .count(),
        1
    );
    let file = folder.path().join("pinfold.service");
    std::fs::write(&file, unit.replace(installed, built)).unwrap();
    std::fs::copy(
        here("systemd/pinfold.slice"),
        folder.path().join("pinfold.slice"),
    )
    .unwrap();
    let verified = output(
        Command::new(&analyze)
            .args(["verify", "--man=no", "--recursive-errors=no"])
            .arg(&file),
    );
    let said = String::from_utf8_lossy(&verified.stderr);
    assert!(verified.status.success() && said.is_empty(), "{said}");

    let scored = succeed(
        Command::new(&analyze)
            .args(["security", "--offline=yes", "--no-pager"])
            .arg(format!("--threshold={EXPOSURE}"))
            .arg(&file),
    );
    let score = scored
        .lines()
        .find(|line| line.contains("Overall exposure level"))
        .unwrap();
    println!("{score}");

    // The check itself: a unit with a mistake, and one without protection.
    std::fs::write(
        &file,
        unit.replace(installed, built)
            .replace("WatchdogSec=1min", "WatchdogSec=often"),
    )
    .unwrap();
    let wrong = output(
        Command::new(&analyze)
            .args(["verify", "--man=no"])
            .arg(&file),
    );
    assert!(
        String::from_utf8_lossy(&wrong.stderr).contains("Failed to parse"),
        "{wrong:?}"
    );
    std::fs::write(&file, format!("[Service]\nExecStart={built}\n")).unwrap();
    let mut open = Command::new(&analyze);
    open.args(["security", "--offline=yes", "--no-pager"])
        .arg(format!("--threshold={EXPOSURE}"))
        .arg(&file);
    assert!(
        !output(&mut open).status.success(),
        "an unprotected unit passes the threshold"
    );
}

#[test]
fn the_unit_and_the_daemonset_have_the_same_capabilities() {
    let unit = std::fs::read_to_string(here("systemd/pinfold.service")).unwrap();
    let line = unit
        .lines()
        .find_map(|line| line.strip_prefix("CapabilityBoundingSet="))
        .unwrap();
    let unit: Vec<&str> = line
        .split(' ')
        .map(|one| one.trim_start_matches("CAP_"))
        .collect();
    let pod = &documents("deploy/base/daemonset.yaml")[0]["spec"]["template"]["spec"];
    assert_eq!(
        json!(unit),
        pod["containers"][0]["securityContext"]["capabilities"]["add"]
    );
}

#[test]
fn the_example_is_a_configuration() {
    let text = std::fs::read_to_string(here("systemd/pinfold.yaml")).unwrap();
    let config = Config::parse(&text).unwrap_or_else(|error| panic!("{error:#}"));
    assert!(
        config.cpu_isolation.irqs && config.cpu_isolation.workqueues && config.reserved.is_some()
    );
}
