//! The limits of the README: a first page, not a manual.

use std::fs;

use crate::yaml::here;

const MAX_LINES: usize = 160;
const MAX_WORDS: usize = 1100;
const MAX_CHARACTERS: usize = 120;

#[test]
fn the_readme_keeps_its_limits() {
    let text = fs::read_to_string(here("README.md")).unwrap();
    let (lines, words) = (text.lines().count(), text.split_whitespace().count());
    assert!(
        lines <= MAX_LINES,
        "README.md has {lines} lines: at most {MAX_LINES} are allowed"
    );
    assert!(
        words <= MAX_WORDS,
        "README.md has {words} words: at most {MAX_WORDS} are allowed"
    );
    for (line, number) in text.lines().zip(1..) {
        let characters = line.chars().count();
        assert!(
            characters <= MAX_CHARACTERS,
            "README.md:{number} has {characters} characters: at most {MAX_CHARACTERS} are allowed"
        );
    }
}
