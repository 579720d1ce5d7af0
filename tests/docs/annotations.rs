//! The reference of annotations and labels.

use std::collections::BTreeSet;
use std::fs;

use crate::configuration::children;
use crate::markdown::find;
use crate::yaml::here;

const PAGE: &str = "docs/reference/annotations.md";

/// The prefix of Pinfold's annotations, labels and taints.
const PREFIX: &str = "pinfold.io/";

/// The names after the prefix.
fn names(text: &str) -> BTreeSet<String> {
    let name = |rest: &str| -> String {
        rest.chars()
            .take_while(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || *c == '-')
            .collect()
    };
    let names = text.split(PREFIX).skip(1).map(name);
    names.filter(|name| !name.is_empty()).collect()
}

/// The names in the code, without the unit tests.
fn names_in_the_code() -> BTreeSet<String> {
    let mut paths = Vec::new();
    find("src", "rs", &mut paths);
    let mut found = BTreeSet::new();
    for path in paths {
        if path.ends_with("/tests.rs") || path.contains("/tests/") {
            continue;
        }
        let text = fs::read_to_string(here(&path)).unwrap();
        let code = text.split("#[cfg(test)]").next().unwrap_or_default();
        found.extend(names(code));
    }
    found
}

/// A configuration key as an annotation's name: `nearDevices` is `near-devices`.
fn kebab(key: &str) -> String {
    let mut name = String::new();
    for c in key.chars() {
        if c.is_ascii_uppercase() {
            name.push('-');
        }
        name.push(c.to_ascii_lowercase());
    }
    name
}

#[test]
fn the_page_has_the_names_of_the_code() {
    let page = names(&fs::read_to_string(here(PAGE)).unwrap());
    let mut code = names_in_the_code();
    assert!(code.contains("cpus"), "{code:?}");
    code.extend(children(&["cpus".to_owned()]).iter().map(|key| kebab(key)));
    let missing: Vec<&String> = code.difference(&page).collect();
    assert!(missing.is_empty(), "{PAGE} lacks {missing:?}");
    let unknown: Vec<&String> = page.difference(&code).collect();
    assert!(unknown.is_empty(), "src has no {unknown:?} of {PAGE}");
}
