//! The tests that the specification names.

use std::fs;

use crate::yaml::here;

const PAGE: &str = "docs/specification.md";

/// The most promises of the page.
const MOST: usize = 12;

#[test]
fn the_named_tests_exist() {
    let page = fs::read_to_string(here(PAGE)).unwrap();
    let mut named = 0;
    for code in page.split('`').skip(1).step_by(2) {
        let Some((file, function)) = code.split_once("::") else {
            continue;
        };
        if !file.starts_with("tests/") {
            continue;
        }
        named += 1;
        let text = fs::read_to_string(here(file))
            .unwrap_or_else(|error| panic!("{PAGE} names {file}: {error}"));
        assert!(
            text.contains(&format!("fn {function}(")),
            "{PAGE} names {code}: {file} has no such function"
        );
    }
    assert!(named > 0, "{PAGE} names no test");
}

#[test]
fn the_promises_are_few_and_have_a_test_or_are_pending() {
    let page = fs::read_to_string(here(PAGE)).unwrap();
    let promises: Vec<&str> = page.split("\n### ").skip(1).collect();
    assert!(
        (1..=MOST).contains(&promises.len()),
        "{PAGE} has {} promises: at most {MOST} are allowed",
        promises.len()
    );
    for promise in promises {
        let promise = promise.split("\n## ").next().unwrap_or_default();
        let title = promise.lines().next().unwrap_or_default();
        assert!(
            promise.contains("`tests/") || promise.contains("*pending*"),
            "{PAGE}: {title}: name a test, or write *pending*"
        );
    }
}
