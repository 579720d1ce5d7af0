//! The errors of the YAML and JSON parsers, in words for the person who wrote the text.
//!
//! The parsers speak of scalars, mappings and sequences, and of the types of the program. Such words help nobody to correct a
//! file, so these functions say what stands there and what to write instead.

use std::io;

use serde_saphyr::{Error, MessageFormatter, UserMessageFormatter};

use super::nearest;

/// The longest line that is quoted whole, in characters.
const QUOTED_CHARS: usize = 60;

/// The most known keys that a message lists.
const LISTED_KEYS: usize = 24;

/// Words of the parsers, and what people call the same. A longer text comes before a part of it.
const WORDS: [(&str, &str); 16] = [
    (
        "invalid indentation in multiline quoted scalar",
        "a quote is not closed",
    ),
    (
        "while scanning a plain scalar, found a tab",
        "a tab stands in the indentation: use spaces",
    ),
    (
        "tabs disallowed within this context (block indentation)",
        "a tab stands in the indentation: use spaces",
    ),
    (
        "mapping values are not allowed in this context",
        "a key is not allowed here: check the indentation",
    ),
    (
        "simple key expected ':'",
        "a key has no colon: write key: value",
    ),
    ("unexpected EOF while parsing", "the text ends inside"),
    ("unexpected eof", "the text ends too early"),
    ("did not find expected node content", "a value is missing"),
    ("did not find expected", "there is no"),
    ("flow mapping", "map in braces"),
    ("flow sequence", "list in brackets"),
    ("block mapping", "map"),
    ("block collection", "list"),
    ("mapping", "map"),
    ("sequence", "list"),
    ("plain scalar", "text"),
];

/// The error of reading a file as text, which the standard library puts into words about streams.
pub(crate) fn reading(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::InvalidData => io::Error::other("it is not text in UTF-8"),
        _ => error,
    }
}

/// A YAML parser's error in words, without the place.
pub(crate) fn yaml(error: &Error) -> String {
    match error {
        Error::WithSnippet { error, .. } | Error::AliasError { error, .. } => yaml(error),
        Error::Eof { .. } => "the text ends too early".to_owned(),
        Error::MultipleDocuments { .. } => {
            "there are several documents: keep one, and remove the line ---".to_owned()
        }
        Error::Unexpected { expected, .. } => unexpected(expected),
        Error::InvalidScalar { ty, .. } => format!("write {}", wanted(ty)),
        Error::InvalidBooleanStrict { .. } => "write true or false".to_owned(),
        Error::ExternallyTaggedEnumExpectedScalarOrMapping { .. }
        | Error::ExpectedStringKeyForExternallyTaggedEnum { .. }
        | Error::UnexpectedValueForUnitEnumVariant { .. } => "write a single word here".to_owned(),
        Error::NullIntoString { .. } => {
            "the value is missing: write one, or remove the key".to_owned()
        }
        Error::SerdeInvalidType {
            unexpected: found,
            expected,
            ..
        }
        | Error::SerdeInvalidValue {
            unexpected: found,
            expected,
            ..
        } => instead(found, expected),
        Error::SerdeUnknownVariant {
            variant, expected, ..
        } => unknown_word(variant, expected),
        Error::SerdeUnknownField {
            field, expected, ..
        } => unknown_key(field, expected),
        Error::SerdeMissingField { field, .. } => format!("the key {field} is missing: add it"),
        Error::DuplicateMappingKey { key: Some(key), .. } => {
            format!("the key {key} stands here twice: remove one of them")
        }
        Error::QuotingRequired { value, .. } => {
            format!("{value} is not a text without quotes: write \"{value}\"")
        }
        Error::UnknownAnchor { .. } => {
            "a reference (*name) has no value before it (&name)".to_owned()
        }
        Error::Budget { .. }
        | Error::AliasReplayLimitExceeded { .. }
        | Error::AliasExpansionLimitExceeded { .. }
        | Error::AliasReplayStackDepthExceeded { .. } => {
            "the text is too large, too deep, or repeats too much".to_owned()
        }
        error => replaced(&UserMessageFormatter.format_message(error)),
    }
}

/// A JSON parser's error in words, without the line.
pub(crate) fn json(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let place = format!(" at line {} column {}", error.line(), error.column());
    let text = text.strip_suffix(&place).unwrap_or(&text);
    let of_type = text
        .strip_prefix("invalid type: ")
        .or_else(|| text.strip_prefix("invalid value: "));
    if let Some((found, expected)) = of_type.and_then(|rest| rest.rsplit_once(", expected ")) {
        return instead(found, expected);
    }
    if let Some(key) = text.strip_prefix("missing field `") {
        return format!("the key {} is missing: add it", key.trim_end_matches('`'));
    }
    if text.starts_with("EOF while parsing") {
        return "the text ends too early".to_owned();
    }
    match text {
        "expected value" => "it is not JSON".to_owned(),
        other => other.to_owned(),
    }
}

/// The place of an error: the line with its text, which tells more than a number.
pub(crate) fn place(text: &str, line: u64) -> Option<String> {
    let index = usize::try_from(line.checked_sub(1)?).ok()?;
    let quoted = text.lines().nth(index).map_or("", str::trim);
    if quoted.is_empty() {
        return Some(format!("line {line}"));
    }
    let short: String = quoted.chars().take(QUOTED_CHARS).collect();
    let rest = if short.len() < quoted.len() {
        "…"
    } else {
        ""
    };
    Some(format!("line {line} ({short}{rest})"))
}

fn unexpected(expected: &str) -> String {
    match expected {
        "sequence start" => "write a list here, like [a, b]".to_owned(),
        "mapping start" => "write keys with values here, like {key: value}".to_owned(),
        "string scalar" | "scalar" | "value" => {
            "write a single value here, not a list or a map".to_owned()
        }
        other => format!("there is no {other} here"),
    }
}

/// What stands in the text, and what to write instead.
fn instead(found: &str, expected: &str) -> String {
    let kind = found.split(' ').next().unwrap_or_default();
    let value = found.strip_prefix(kind).unwrap_or_default();
    let value = value.trim().trim_matches('`');
    let found = match kind {
        "integer" | "floating" => {
            format!(
                "the number {}",
                value.trim_start_matches("point").trim().trim_matches('`')
            )
        }
        "boolean" => value.to_owned(),
        "string" => format!("the text {value}"),
        "sequence" => "a list".to_owned(),
        "map" => "a map".to_owned(),
        "null" | "unit" | "Option" => "nothing".to_owned(),
        _ => found.to_owned(),
    };
    format!("{found} stands here: write {}", wanted(expected))
}

/// What a place takes.
fn wanted(expected: &str) -> String {
    let words = match expected {
        "a string" | "string" | "str" => "a text",
        "a boolean" | "boolean" | "bool" => "true or false",
        "a sequence" => "a list, like [a, b]",
        "a map" => "keys with values, like {key: value}",
        "f32" | "f64" | "floating point" => "a number",
        "Quantity" => "an amount, like 500m, 2 or 1.5Gi",
        "u8" => "a whole number from 0 to 255",
        "u16" => "a whole number from 0 to 65535",
        "u32" => "a whole number from 0 to 4294967295",
        "u64" | "usize" => "a whole number, 0 or more",
        "i8" | "i16" | "i32" | "i64" | "isize" => "a whole number",
        expected if expected.starts_with("struct ") => "keys with values, like {key: value}",
        expected => expected,
    };
    words.to_owned()
}

fn unknown_word(word: &str, known: &[&str]) -> String {
    match nearest(word, known) {
        Some(near) => format!("{word} is unknown: did you mean {near}?"),
        None => format!("{word} is unknown: write {}", alternatives(known)),
    }
}

fn unknown_key(key: &str, known: &[&str]) -> String {
    match nearest(key, known) {
        Some(near) => format!("the key {key} is unknown: did you mean {near}?"),
        None if known.len() > LISTED_KEYS => format!("the key {key} is unknown: remove it"),
        None => format!(
            "the key {key} is unknown: remove it, or write one of {}",
            known.join(", ")
        ),
    }
}

/// Words as a choice: `a, b or c`.
fn alternatives(words: &[&str]) -> String {
    match words.split_last() {
        Some((last, [])) => (*last).to_owned(),
        Some((last, rest)) => format!("{} or {last}", rest.join(", ")),
        None => "nothing".to_owned(),
    }
}

fn replaced(message: &str) -> String {
    let words = WORDS.iter();
    words.fold(message.to_owned(), |message, (theirs, ours)| {
        message.replace(theirs, ours)
    })
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Deserialize)]
    #[allow(dead_code, reason = "only errors matter")]
    struct Example {
        name: String,
        #[serde(default)]
        sizes: Vec<u8>,
        #[serde(default)]
        on: bool,
    }

    #[test]
    fn json_errors_say_what_stands_there_and_what_to_write() {
        for (text, words) in [
            (r#"{"name": 7}"#, "the number 7 stands here: write a text"),
            (r#"{"name": null}"#, "nothing stands here: write a text"),
            (
                r#"{"name": "a", "sizes": "b"}"#,
                "the text \"b\" stands here: write a list, like [a, b]",
            ),
            (
                r#"{"name": "a", "sizes": [300]}"#,
                "the number 300 stands here: write a whole number from 0 to 255",
            ),
            (
                r#"{"name": "a", "on": {}}"#,
                "a map stands here: write true or false",
            ),
            ("{}", "the key name is missing: add it"),
            ("{", "the text ends too early"),
            (r#"{"name" "a"}"#, "expected `:`"),
            ("<html>", "it is not JSON"),
        ] {
            let error = serde_json::from_str::<Example>(text).unwrap_err();
            assert_eq!(json(&error), words, "{text}");
        }
    }

    #[test]
    fn yaml_errors_have_no_words_of_the_parser() {
        for (text, words) in [
            ("name: \"a\n", "a quote is not closed"),
            (
                "name: a\n b: c\n",
                "a key is not allowed here: check the indentation",
            ),
            ("name: a\nsizes: [1\n", "unclosed bracket '['"),
            (
                "name:\n\tb: c\n",
                "a tab stands in the indentation: use spaces",
            ),
            ("name: a\non: 3\n", "write true or false"),
            ("name: a\nsizes: {a: 1}\n", "write a list here, like [a, b]"),
            (
                "name: a\nsizes: [x]\n",
                "write a whole number from 0 to 255",
            ),
            (
                "name: *a\n",
                "a reference (*name) has no value before it (&name)",
            ),
            (
                "name: a\n---\nname: b\n",
                "there are several documents: keep one, and remove the line ---",
            ),
        ] {
            let error = serde_saphyr::from_str::<Example>(text).unwrap_err();
            assert_eq!(yaml(&error), words, "{text}");
        }
    }

    #[test]
    fn a_place_quotes_its_line() {
        let text = format!("a: 1\n\n  b: {}\n", "x".repeat(100));
        assert_eq!(place(&text, 1).unwrap(), "line 1 (a: 1)");
        assert_eq!(place(&text, 2).unwrap(), "line 2");
        let long = place(&text, 3).unwrap();
        assert!(
            long.starts_with("line 3 (b: xxx") && long.ends_with("xx…)"),
            "{long}"
        );
        assert_eq!(
            (place(&text, 0), place(&text, 9)),
            (None, Some("line 9".to_owned()))
        );
    }
}
