//! The unit: systemd reads it without warnings and scores its exposure. The example configuration
//! is valid for the agent.

use std::process::Command;

use pinfold::agent::config::Config;
use serde_json::json;

use crate::tools::{debian, documents, here, output, succeed};

/// systemd's exposure score in tenths. The remaining exposure belongs to the agent's tasks (cgroups, /proc/irq, root,
/// its network, the kernel's accounting, hardware counters, optional BPF).
const EXPOSURE: u32 = 32;

#[test]
fn systemd_accepts_the_unit_and_its_exposure_score() {
    let Some(analyze) = debian("systemd-analyze", "systemd") else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let unit = std::fs::read_to_string(here("systemd/pinfold.service")).unwrap();
    // `systemd-analyze` looks for the program, which no test installs. The link has a path without spaces, which the unit
    // would need to quote.
    let (installed, built) = ("/usr/local/bin/pinfold", folder.path().join("pinfold"));
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_pinfold"), &built).unwrap();
    let built = built.to_str().unwrap();
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
    let warnings = String::from_utf8_lossy(&verified.stderr);
    assert!(
        verified.status.success() && warnings.is_empty(),
        "{warnings}"
    );

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

    // The check itself finds a unit with a mistake and a unit without protection.
    std::fs::write(
        &file,
        unit.replace(installed, built)
            .replace("WatchdogSec=1min", "WatchdogSec=often"),
    )
    .unwrap();
    let invalid = output(
        Command::new(&analyze)
            .args(["verify", "--man=no"])
            .arg(&file),
    );
    assert!(
        String::from_utf8_lossy(&invalid.stderr).contains("Failed to parse"),
        "{invalid:?}"
    );
    std::fs::write(&file, format!("[Service]\nExecStart={built}\n")).unwrap();
    let mut unprotected = Command::new(&analyze);
    unprotected
        .args(["security", "--offline=yes", "--no-pager"])
        .arg(format!("--threshold={EXPOSURE}"))
        .arg(&file);
    assert!(
        !output(&mut unprotected).status.success(),
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
        .map(|capability| capability.trim_start_matches("CAP_"))
        .collect();
    let pod = &documents("deploy/base/daemonset.yaml")[0]["spec"]["template"]["spec"];
    assert_eq!(
        json!(unit),
        pod["containers"][0]["securityContext"]["capabilities"]["add"]
    );
}

#[test]
fn the_example_configuration_is_valid() {
    let text = std::fs::read_to_string(here("systemd/pinfold.yaml")).unwrap();
    let config = Config::parse(&text).unwrap_or_else(|error| panic!("{error:#}"));
    assert!(config.cpu_isolation.irqs && config.cpu_isolation.workqueues);
    // No list suits every node; without one, the agent reserves the lowest core.
    assert_eq!(config.reserved, None);
}
