//! The sections of pages that are generated from the code.

use std::fs;

use crate::yaml::here;

const BEGIN: &str =
    "<!-- Generated from the code: PINFOLD_UPDATE_DOCS=1 cargo test --test docs -->\n";
const END: &str = "<!-- The end of the generated section. -->\n";

/// Requires that the generated section of a page is this text. With `PINFOLD_UPDATE_DOCS=1` the page is written instead.
pub(crate) fn same(path: &str, text: &str) {
    let file = here(path);
    let page = fs::read_to_string(&file).unwrap_or_else(|error| panic!("{path}: {error}"));
    let (before, rest) = page
        .split_once(BEGIN)
        .unwrap_or_else(|| panic!("{path} has no line {BEGIN}"));
    let (there, after) = rest
        .split_once(END)
        .unwrap_or_else(|| panic!("{path} has no line {END}"));
    let text = format!("\n{}\n\n", text.trim());
    if std::env::var_os("PINFOLD_UPDATE_DOCS").is_some_and(|value| value == "1") {
        fs::write(&file, format!("{before}{BEGIN}{text}{END}{after}")).unwrap();
        return;
    }
    let differs = there
        .lines()
        .zip(text.lines())
        .position(|(old, new)| old != new);
    let at = differs.unwrap_or_else(|| there.lines().count().min(text.lines().count()));
    let line = |text: &str| {
        text.lines()
            .nth(at)
            .unwrap_or("(the end of the section)")
            .to_owned()
    };
    assert!(
        there == text,
        "{path} differs from the code. Line {} of the generated section:\n- {}\n+ {}\n\
         If the change is intended: PINFOLD_UPDATE_DOCS=1 cargo test --test docs, then look at git diff",
        at + 1,
        line(there),
        line(&text)
    );
}
