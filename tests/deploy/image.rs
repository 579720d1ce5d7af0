//! The image: built without a daemon, from nothing, with nothing in it but the binary, which runs from it.

use std::process::Command;

use crate::tools::{debian, here, succeed};

#[test]
fn the_image_holds_the_binary_and_nothing_else() {
    if debian("buildah", "buildah").is_none() {
        return;
    }
    // A test's binary is mostly symbols; the image's size is that of the release binary, which tests/run builds.
    let folder = tempfile::tempdir().unwrap();
    let small = folder.path().join("pinfold");
    succeed(
        Command::new("strip")
            .arg("-o")
            .arg(&small)
            .arg(env!("CARGO_BIN_EXE_pinfold")),
    );
    let said = succeed(Command::new(here("tests/deploy/image.sh")).arg(&small));
    let content: Vec<&str> = said
        .lines()
        .filter(|line| line.starts_with("content: "))
        .collect();
    assert_eq!(content, ["content: /pinfold -rwxr-xr-x"], "{said}");
    assert!(
        said.contains("user=0:0 entrypoint=[/pinfold] cmd=[run]"),
        "{said}"
    );
    let version = format!("pinfold {}", env!("CARGO_PKG_VERSION"));
    assert!(said.lines().any(|line| line == version), "{said}");
}
