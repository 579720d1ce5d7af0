//! The images, built from scratch and without a daemon, contain only the binaries, which run in the image.

use std::fs;
use std::process::Command;

use crate::tools::{debian, here, succeed};

/// The lines of a Dockerfile from the first stage of the images on, without comments. Of the line
/// that copies a binary, only the folders of the image are kept.
fn image_stages(path: &str) -> Vec<String> {
    let text = fs::read_to_string(here(path)).unwrap();
    let (_, stages) = text.split_once("\nFROM scratch AS base\n").unwrap();
    stages
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| {
            if line.starts_with("COPY ") {
                assert!(line.contains(" --chmod=0755 "), "{path}: {line}");
                format!("COPY {}", line.rsplit(' ').next().unwrap())
            } else {
                line.to_owned()
            }
        })
        .collect()
}

#[test]
fn both_dockerfiles_make_the_same_images() {
    let built = image_stages("deploy/Dockerfile");
    assert_eq!(built, image_stages("deploy/Dockerfile.prebuilt"));
    let version = format!("ARG VERSION={}", env!("CARGO_PKG_VERSION"));
    assert!(built.contains(&version), "no line {version:?}");
    // `docker build .` reads this link.
    let link = fs::read_link(here("Dockerfile")).unwrap();
    assert_eq!(link.to_str(), Some("deploy/Dockerfile"));
}

#[test]
fn each_image_holds_the_binaries_and_nothing_else() {
    if debian("buildah", "buildah").is_none() {
        return;
    }
    // A test binary consists mostly of symbols, so the test strips the binary. `tests/run` measures the images with the
    // binaries of a release.
    let folder = tempfile::tempdir().unwrap();
    let strip = |name: &str, binary: &str| {
        let stripped = folder.path().join(name);
        succeed(Command::new("strip").arg("-o").arg(&stripped).arg(binary));
        stripped
    };
    let binary = strip("pinfold", env!("CARGO_BIN_EXE_pinfold"));
    let runtime = strip("pinfold-runtime", env!("CARGO_BIN_EXE_pinfold-runtime"));
    let mut script = Command::new(here("tests/deploy/image.sh"));
    let script_output = succeed(script.args([&binary, &binary, &runtime]));
    let content: Vec<&str> = script_output
        .lines()
        .filter(|line| line.starts_with("content: "))
        .collect();
    assert_eq!(
        content,
        [
            "content: /pinfold -rwxr-xr-x",
            "content: /pinfold-runtime -rwxr-xr-x",
            "content: /pinfold -rwxr-xr-x"
        ],
        "{script_output}"
    );
    for image in [
        "image: pinfold user=0:0 entrypoint=[/pinfold] cmd=[run]",
        "image: pinfold-tools user=0:0 entrypoint=[/pinfold] cmd=[--help]",
    ] {
        assert!(script_output.contains(image), "{script_output}");
    }
    assert!(
        script_output.contains("Usage: pinfold-runtime install"),
        "{script_output}"
    );
    assert_labels(&script_output);
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

/// Requires OCI's labels on both images. The script gives the commit and the address of the repository.
fn assert_labels(script_output: &str) {
    let version = format!("version={}", env!("CARGO_PKG_VERSION"));
    let both = [
        "description=Node agent for Kubernetes clusters that train on CPUs",
        "licenses=Apache-2.0",
        "revision=0123abc",
        "source=https://git.example/pinfold",
        version.as_str(),
    ];
    let mut expected = Vec::new();
    for title in ["title=pinfold", "title=pinfold-tools"] {
        let labels = both.iter().copied().chain([title]);
        expected.extend(labels.map(|label| format!("label: org.opencontainers.image.{label}")));
    }
    expected.sort();
    let mut labels: Vec<&str> = script_output
        .lines()
        .filter(|line| line.starts_with("label: "))
        .collect();
    labels.sort_unstable();
    assert_eq!(labels, expected);
}
