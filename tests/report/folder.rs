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

/// What happens to a file.
enum Damage {
    Write(&'static str),
    /// The first text becomes the second.
    Change(&'static str, &'static str),
}

#[test]
fn a_damaged_folder_is_an_error_that_names_the_file() {
    use Damage::{Change, Write};
    for (file, damage, says) in [
        (
            "runs/0007.json",
            Write("{\"form\":1,\"num"),
            "runs/0007.json ends in the middle, so it was not written to its end",
        ),
        (
            "runs/0007.json",
            Write(""),
            "runs/0007.json ends in the middle",
        ),
        (
            "experiment.json",
            Write("{"),
            "experiment.json ends in the middle",
        ),
        (
            "runs/0007.json",
            Change("\"form\":1", "\"form\":2"),
            "runs/0007.json has form 2, and this version of Pinfold reads form 1",
        ),
        (
            "experiment.json",
            Change("\"form\": 1", "\"form\": 99"),
            "experiment.json has form 99",
        ),
        ("runs/x.json", Write("[\"a\"]"), "runs/x.json"),
        (
            "runs/x.json",
            Write("{}"),
            "runs/x.json: the field form is missing",
        ),
        (
            "runs/0007.json",
            Change("\"number\":7", "\"number\":9"),
            "runs/0007.json: experiment.json has no such run 9",
        ),
        (
            "runs/0007.json",
            Change("\"stepsPerSecond\":", "\"stepsPerSecond\":-"),
            "runs/0007.json: stepsPerSecond is below 0",
        ),
        (
            "experiment.json",
            Change("\"margin\": 1.1", "\"margin\": 0.5"),
            "experiment.json: the margin 0.5 is no ratio above 1",
        ),
        (
            "experiment.json",
            Change("\"repeats\": 6", "\"repeats\": 600000000"),
            "experiment.json: 600000000 repeats",
        ),
        (
            "experiment.json",
            Change("\"repeats\": 6", "\"repeats\": 2"),
            "a run of repeat 3, of 2 planned",
        ),
    ] {
        let folder = folder();
        let path = folder.path().join(file);
        match damage {
            Write(text) => fs::write(path, text).unwrap(),
            Change(from, to) => {
                let text = fs::read_to_string(&path).unwrap();
                assert!(text.contains(from), "{from}");
                fs::write(path, text.replacen(from, to, 1)).unwrap();
            }
        }
        let (code, stdout, stderr) = report(folder.path(), &[]);
        assert_eq!((code, stdout.as_str()), (2, ""), "{says}");
        assert!(stderr.contains(says), "{says}: {stderr}");
    }
}

#[test]
fn files_that_are_missing_twice_or_in_the_making() {
    let first = folder();
    let at = |name: &str| first.path().join(name);
    // A file that is just being written doesn't disturb.
    fs::write(at("runs/.0099.json.4"), "{").unwrap();
    assert_eq!(report(first.path(), &[]).0, 0);
    fs::copy(at("runs/0007.json"), at("runs/7.json")).unwrap();
    let (code, _, stderr) = report(first.path(), &[]);
    assert!(
        code == 2 && stderr.contains("another file has run 7"),
        "{stderr}"
    );
    fs::remove_file(at("experiment.json")).unwrap();
    let (code, _, stderr) = report(first.path(), &[]);
    assert!(
        code == 2
            && stderr.contains("has no experiment.json")
            && stderr.contains("pinfold scene run"),
        "{stderr}"
    );
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
    let (code, _, stderr) = report(folder.path(), &["--prometheus", "http://127.0.0.1:9"]);
    assert!(code == 2 && stderr.contains("or --prometheus"), "{stderr}");
    let (code, _, stderr) = report(Path::new("--job=x"), &[]);
    assert!(
        code == 2 && stderr.contains("add the folder of an experiment's results, or --prometheus"),
        "{stderr}"
    );
    let (code, _, stderr) = report(Path::new("/nonexistent"), &[]);
    assert!(code == 2 && stderr.contains("is not a folder"), "{stderr}");
}
