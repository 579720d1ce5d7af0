//! Files of the repository, and the documents in them.

use serde_json::Value;

#[path = "repository.rs"]
mod repository;

pub(crate) use repository::here;

/// The documents of a YAML file.
pub(crate) fn documents(path: &str) -> Vec<Value> {
    parse(
        &std::fs::read_to_string(here(path)).unwrap_or_else(|error| panic!("{path}: {error}")),
        path,
    )
}

/// The documents of a YAML text, without empty ones.
pub(crate) fn parse(text: &str, what: &str) -> Vec<Value> {
    let all: Vec<Value> =
        serde_saphyr::from_multiple(text).unwrap_or_else(|error| panic!("{what}: {error}"));
    all.into_iter()
        .filter(|document| !document.is_null())
        .collect()
}
