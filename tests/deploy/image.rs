//! The images, built from scratch and without a daemon, contain only the binary, which runs in the image.

use std::process::Command;

use crate::tools::{debian, here, succeed};

#[test]
fn each_image_holds_the_binary_and_nothing_else() {
    if debian("buildah", "buildah").is_none() {
        return;
    }
    // A test binary consists mostly of symbols, so the test strips the binary. `tests/run` measures the images with the
    // binaries of a release.
    let folder = tempfile::tempdir().unwrap();
    let stripped = folder.path().join("pinfold");
    succeed(
        Command::new("strip")
            .arg("-o")
            .arg(&stripped)
            .arg(env!("CARGO_BIN_EXE_pinfold")),
    );
    let script_output =
        succeed(Command::new(here("tests/deploy/image.sh")).args([&stripped, &stripped]));
    let content: Vec<&str> = script_output
        .lines()
        .filter(|line| line.starts_with("content: "))
        .collect();
    assert_eq!(
        content, ["content: /pinfold -rwxr-xr-x"; 2],
        "{script_output}"
    );
    for image in [
        "image: pinfold user=0:0 entrypoint=[/pinfold] cmd=[run]",
        "image: pinfold-tools user=0:0 entrypoint=[/pinfold] cmd=[--help]",
    ] {
        assert!(script_output.contains(image), "{script_output}");
    }
    let version = format!("pinfold {}", env!("CARGO_PKG_VERSION"));
    assert_eq!(
        script_output
            .lines()
            .filter(|line| *line == version)
            .count(),
        2,
        "{script_output}"
    );
}
