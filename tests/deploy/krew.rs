//! The plugin of kubectl for krew: the archive and the manifest, made from the files of a release.

use std::fs;
use std::process::Command;

use crate::tools::{here, output, succeed};
use crate::yaml::documents;

#[test]
fn the_manifest_describes_the_archive() {
    let release = tempfile::tempdir().unwrap();
    let binary = "pinfold-tools-0.1.0-x86_64-unknown-linux-gnu";
    fs::write(release.path().join(binary), "a program").unwrap();
    for other in [".oci.tar", ".cdx.json"] {
        fs::write(release.path().join(format!("{binary}{other}")), "").unwrap();
    }
    let script = here("deploy/krew/package");
    succeed(
        Command::new(&script)
            .arg("https://files.example/v0.1.0/")
            .arg(release.path()),
    );
    let manifest = release.path().join("pinfold.yaml");
    let manifest = &documents(manifest.to_str().unwrap())[0];
    let archive = "kubectl-pinfold-0.1.0-x86_64-unknown-linux-gnu.tar.gz";
    let bytes = fs::read(release.path().join(archive)).unwrap();
    let digest = ring::digest::digest(&ring::digest::SHA256, &bytes);
    let digest: String = digest
        .as_ref()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let platform = &manifest["spec"]["platforms"][0];
    assert_eq!(manifest["spec"]["version"], "v0.1.0");
    assert_eq!(platform["sha256"], digest.as_str());
    assert_eq!(
        platform["uri"],
        format!("https://files.example/v0.1.0/{archive}").as_str()
    );
    assert_eq!(platform["selector"]["matchLabels"]["arch"], "amd64");
    assert_eq!(platform["bin"], "kubectl-pinfold");

    // The archive has the program under the plugin's name, and a second run makes the same bytes.
    let mut unpack = Command::new("tar");
    unpack.args(["--extract", "--to-stdout", "kubectl-pinfold", "--file"]);
    assert_eq!(
        succeed(unpack.arg(release.path().join(archive))),
        "a program"
    );
    succeed(
        Command::new(&script)
            .arg("https://files.example/v0.1.0")
            .arg(release.path()),
    );
    assert_eq!(fs::read(release.path().join(archive)).unwrap(), bytes);

    let refused = output(
        Command::new(&script)
            .arg("http://files.example")
            .arg(release.path()),
    );
    let said = String::from_utf8(refused.stderr).unwrap();
    assert!(
        !refused.status.success() && said.contains("https"),
        "{said}"
    );
}
