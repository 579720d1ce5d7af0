//! The folder: what is read, what is refused, and what is written.

use std::fs;
use std::path::Path;

use super::made::{self, Made};
use super::report;

/// A small experiment in a folder.
fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let (experiment, runs) = made::with_losses();
    made::write(folder.path(), &experiment, &runs);
    folder
}

#[test]
fn a_folder_is_reported_in_every_form() {
    let folder = folder();
    let (code, markdown, stderr) = report(folder.path(), &[]);
    assert_eq!((code, stderr.as_str()), (0, ""));
    let at = |words: &str| {
        markdown
            .find(words)
            .unwrap_or_else(|| panic!("{words}: {markdown}"))
    };
    assert!(at("## Answers") < at("## What stands out"));
    assert!(at("## What stands out") < at("## Runs that don't count"));
    assert!(markdown.contains("% faster"), "{markdown}");
    let (_, json, _) = report(folder.path(), &["-o", "json"]);
    let (_, yaml, _) = report(folder.path(), &["-o", "yaml"]);
    let (_, html, _) = report(folder.path(), &["-o", "html"]);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["answers"][0]["verdict"], "more");
    assert!(yaml.contains("verdict: more"), "{yaml}");
    assert!(html.starts_with("<!doctype html>") && html.ends_with("</html>\n"));

    let out = folder.path().join("out/deep");
    let (code, _, _) = report(folder.path(), &["--out", out.to_str().unwrap()]);
    assert_eq!(code, 0);
    let read = |name: &str| fs::read_to_string(out.join(name)).unwrap();
    assert_eq!(read("report.md"), markdown);
    assert_eq!(read("report.html"), html);
    let written: serde_json::Value = serde_json::from_str(&read("report.json")).unwrap();
    assert_eq!(written, json);
}

#[test]
fn nothing_that_counts_is_said() {
    let folder = tempfile::tempdir().unwrap();
    made::write(folder.path(), &Made::default().experiment(), &[]);
    let (code, markdown, stderr) = report(folder.path(), &[]);
    assert_eq!(code, 1);
    assert!(
        stderr.contains("no run of") && markdown.contains("Run 2 (repeat 1"),
        "{stderr}"
    );
}

#[test]
fn a_damaged_folder_is_an_error_that_names_the_file() {
    type Damage = fn(&Path);
    fn edit(path: &Path, from: &str, to: &str) {
        let text = fs::read_to_string(path).unwrap();
        assert!(text.contains(from), "{from}");
        fs::write(path, text.replacen(from, to, 1)).unwrap();
    }
    let cases: [(Damage, &[&str]); 12] = [
        (
            |folder| fs::write(folder.join("runs/0007.json"), "{\"form\":1,\"num").unwrap(),
            &["runs/0007.json ends in the middle", "remove the file"],
        ),
        (
            |folder| fs::write(folder.join("runs/0007.json"), "").unwrap(),
            &["runs/0007.json ends in the middle"],
        ),
        (
            |folder| edit(&folder.join("runs/0007.json"), "\"form\":1", "\"form\":2"),
            &["runs/0007.json has form 2", "reads form 1"],
        ),
        (
            |folder| {
                edit(
                    &folder.join("experiment.json"),
                    "\"form\": 1",
                    "\"form\": 99",
                )
            },
            &["experiment.json has form 99"],
        ),
        (
            |folder| fs::write(folder.join("runs/x.json"), "[1]").unwrap(),
            &["runs/x.json"],
        ),
        (
            |folder| fs::write(folder.join("runs/x.json"), "{}").unwrap(),
            &["runs/x.json", "form is missing"],
        ),
        (
            |folder| {
                fs::copy(folder.join("runs/0007.json"), folder.join("runs/7.json")).unwrap();
            },
            &["another file has run 7"],
        ),
        (
            |folder| {
                edit(
                    &folder.join("runs/0007.json"),
                    "\"number\":7",
                    "\"number\":9",
                )
            },
            &["runs/0007.json", "belongs to another experiment"],
        ),
        (
            |folder| {
                edit(
                    &folder.join("runs/0007.json"),
                    "\"stepsPerSecond\":",
                    "\"stepsPerSecond\":-",
                )
            },
            &["runs/0007.json", "below 0"],
        ),
        (
            |folder| {
                edit(
                    &folder.join("experiment.json"),
                    "\"margin\": 1.1",
                    "\"margin\": 0.5",
                )
            },
            &["experiment.json", "the margin 0.5 is no ratio above 1"],
        ),
        (
            |folder| {
                edit(
                    &folder.join("experiment.json"),
                    "\"repeats\": 6",
                    "\"repeats\": 600000000",
                )
            },
            &["experiment.json", "600000000 repeats"],
        ),
        (
            |folder| fs::remove_file(folder.join("experiment.json")).unwrap(),
            &["has no experiment.json", "pinfold scene run --out"],
        ),
    ];
    for (damage, says) in cases {
        let folder = folder();
        damage(folder.path());
        let (code, stdout, stderr) = report(folder.path(), &[]);
        assert_eq!((code, stdout.as_str()), (2, ""), "{says:?}");
        for words in says {
            assert!(stderr.contains(words), "{words}: {stderr}");
        }
    }
    // A file that is just being written doesn't disturb.
    let folder = folder();
    fs::write(folder.path().join("runs/.0099.json.4"), "{").unwrap();
    assert_eq!(report(folder.path(), &[]).0, 0);
}

#[test]
fn options_about_a_prometheus_are_refused_beside_a_folder() {
    let folder = folder();
    for option in [
        ["--job", "x"],
        ["--last", "1h"],
        ["--step-metric", "x_total"],
    ] {
        let (code, _, stderr) = report(folder.path(), &option);
        assert!(
            code == 2 && stderr.contains("cannot be used with"),
            "{stderr}"
        );
    }
    let (code, _, stderr) = report(Path::new("/nonexistent"), &[]);
    assert!(code == 2 && stderr.contains("is not a folder"), "{stderr}");
}
