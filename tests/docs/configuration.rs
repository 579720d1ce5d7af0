//! The reference of configuration: keys, defaults, flags and variables.

use std::collections::{BTreeMap, BTreeSet};

use pinfold::agent::config::Config;

use crate::generated;
use crate::markdown::{DocumentPage, Row};
use crate::yaml;

const PAGE: &str = "docs/reference/configuration.md";

/// The keys below a key, from the parser's message about an unknown key. A key with a plain value has no keys below.
pub(crate) fn children(path: &[String]) -> Vec<String> {
    let mut text = "unknownKey: 1".to_owned();
    for key in path.iter().rev() {
        text = format!("{key}: {{{text}}}");
    }
    let Err(error) = Config::parse(&text) else {
        return Vec::new();
    };
    let message = format!("{error:#}");
    let names = message.split_once("the key unknownKey is unknown: remove it, or write one of ");
    names.map_or_else(Vec::new, |(_, names)| {
        names
            .split(", ")
            .map(|name| name.trim().to_owned())
            .collect()
    })
}

/// The keys with a plain value, a list or a map of any names below a path, like `cluster.api`.
fn keys(path: &[String], found: &mut BTreeSet<String>) {
    let below = children(path);
    if below.is_empty() {
        found.insert(path.join("."));
    }
    for key in below {
        let mut path = path.to_vec();
        path.push(key);
        keys(&path, found);
    }
}

/// The rows of the tables of the page with this header.
fn rows(header: &[&str]) -> Vec<Row> {
    let tables = DocumentPage::read(PAGE).tables();
    let tables = tables.into_iter().filter(|table| {
        table[0]
            .iter()
            .map(String::as_str)
            .eq(header.iter().copied())
    });
    tables.flat_map(|table| table.into_iter().skip(1)).collect()
}

/// The text of a cell that is a code span.
fn code(cell: &str) -> Option<&str> {
    cell.strip_prefix('`')?.strip_suffix('`')
}

#[test]
fn the_page_has_every_key() {
    let mut expected = BTreeSet::new();
    keys(&[], &mut expected);
    assert!(
        expected.contains("cluster.api") && expected.contains("manifestDir"),
        "the parser's message has changed: {expected:?}"
    );
    let rows = rows(&["key", "default", "meaning"]);
    let named: BTreeSet<String> = rows
        .iter()
        .map(|row| code(&row[0]).unwrap_or(&row[0]).to_owned())
        .collect();
    assert_eq!(named, expected, "{PAGE}: the keys of the tables");
    assert_eq!(named.len(), rows.len(), "{PAGE}: a key is repeated");
}

/// A default in a code span is the printed value, as YAML. A key without a printed value has words instead.
#[test]
fn the_page_has_the_defaults() {
    let defaults = serde_json::to_value(Config::default()).unwrap();
    for row in rows(&["key", "default", "meaning"]) {
        let key = code(&row[0]).unwrap_or(&row[0]);
        let printed = defaults.pointer(&format!("/{}", key.replace('.', "/")));
        let named = code(&row[1]).map(|text| yaml::parse(text, key));
        match (printed, named) {
            (Some(value), Some(named)) => {
                assert_eq!(
                    named,
                    std::slice::from_ref(value),
                    "{PAGE}: the default of {key}"
                );
            }
            (Some(value), None) => panic!("{PAGE}: the default of {key} is {value}"),
            (None, Some(_)) => {
                panic!("{PAGE}: {key} has no default value: describe the default in words")
            }
            (None, None) => {}
        }
    }
}

#[test]
fn the_page_has_the_flags_and_variables() {
    let command = pinfold::cli::command();
    let run = command.find_subcommand("run").unwrap();
    let mut expected = BTreeMap::new();
    // Only options of earlier versions are hidden.
    for argument in run.get_arguments().filter(|one| !one.is_hide_set()) {
        let Some(name) = argument.get_long().filter(|name| *name != "help") else {
            continue;
        };
        let variable = argument.get_env().map(|name| name.to_string_lossy());
        expected.insert(
            format!("--{name}"),
            variable.map(|name| name.into_owned()).unwrap_or_default(),
        );
    }
    let mut known = BTreeSet::new();
    keys(&[], &mut known);
    let mut named = BTreeMap::new();
    for row in rows(&["flag", "variable", "key"]) {
        let text = |cell: &str| code(cell).unwrap_or_default().to_owned();
        if let Some(key) = code(&row[2]) {
            assert!(known.contains(key), "{PAGE}: {key} is not a key");
        }
        named.insert(text(&row[0]), text(&row[1]));
    }
    assert_eq!(named, expected, "{PAGE}: the table of flags");
}

#[test]
fn the_page_has_the_default_file() {
    let text = Config::default().to_yaml().unwrap();
    let page = format!("```yaml\n# /etc/pinfold.yaml\n{}\n```", text.trim_end());
    generated::same(PAGE, &page);
    assert_eq!(Config::parse(&text).unwrap(), Config::default());
}
