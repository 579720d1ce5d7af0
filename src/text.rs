//! Documents out of YAML or JSON text, within limits; and shapes into text (`svg`).
//!
//! What the modules that read objects have in common: which form a text has, how much of it is read, and where in it a mistake
//! is. What the documents mean is theirs.

pub(crate) mod svg;

use std::fmt;

use serde::Deserializer;
use serde::de::{DeserializeOwned, DeserializeSeed, Error, Visitor};

/// How deep lists and maps may stand in each other: what Kubernetes knows stays far below.
const DEPTH: usize = 64;

/// How much anchors may repeat, in parser events.
const REPEATED: usize = 100_000;

/// Bytes of text for each value: real objects have about twice as many.
const BYTES_OF_A_VALUE: usize = 16;

/// A text's form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// JSON, one document behind the other. Its parser is many times faster than that of YAML.
    Json,
    /// YAML, in which a text has to look like one: a label `CASE: 2` is an error that says to quote it, as in Kubernetes.
    Yaml,
    /// YAML in which a text may look like anything; for those who say themselves what is wrong with it.
    PlainYaml,
}

/// What a parser has against a document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mistake {
    /// The document; they count from 1.
    pub document: usize,
    /// The line in the text, where known.
    pub line: Option<u64>,
    /// What is wrong, in the parser's own words.
    pub message: String,
    /// Whether the text has another form altogether.
    other_form: bool,
}

/// All documents of a text, and its form.
///
/// A text that begins with a brace is JSON, or YAML that looks like it. `longest` is what the caller takes, in bytes; the
/// other limits follow from it.
///
/// # Errors
/// The first mistake in it.
pub fn read<T: DeserializeOwned>(text: &str, longest: usize) -> Result<(Vec<T>, Form), Mistake> {
    if !text
        .trim_start_matches('\u{feff}')
        .trim_start()
        .starts_with('{')
    {
        return Ok((read_as(text, Form::Yaml, longest)?, Form::Yaml));
    }
    match read_as(text, Form::Json, longest) {
        Ok(documents) => Ok((documents, Form::Json)),
        Err(mistake) if mistake.other_form => match read_as(text, Form::Yaml, longest) {
            Ok(documents) => Ok((documents, Form::Yaml)),
            Err(_) => Err(mistake),
        },
        Err(mistake) => Err(mistake),
    }
}

/// All documents of a text of a known form.
///
/// # Errors
/// The first mistake in it.
pub fn read_as<T: DeserializeOwned>(
    text: &str,
    form: Form,
    longest: usize,
) -> Result<Vec<T>, Mistake> {
    let text = text.trim_start_matches('\u{feff}');
    let mut documents = Vec::new();
    if form == Form::Json {
        for document in serde_json::Deserializer::from_str(text).into_iter() {
            documents.push(document.map_err(|error| Mistake {
                document: documents.len() + 1,
                line: u64::try_from(error.line()).ok().filter(|&line| line > 0),
                other_form: error.is_syntax(),
                message: error.to_string(),
            })?);
        }
        return Ok(documents);
    }
    let mut bytes = text.as_bytes();
    for document in serde_saphyr::read_with_options(&mut bytes, options(form, longest)) {
        documents.push(document.map_err(|error: serde_saphyr::Error| {
            Mistake {
                document: documents.len() + 1,
                line: error
                    .location()
                    .map(|location| location.line())
                    .filter(|&line| line > 0),
                message: error.render_with_formatter(&serde_saphyr::UserMessageFormatter),
                other_form: false,
            }
        })?);
    }
    Ok(documents)
}

/// The limits that keep a small text from becoming a large value: aliases may repeat what is anchored, but not without end.
fn options(form: Form, longest: usize) -> serde_saphyr::Options {
    serde_saphyr::options! {
        no_schema: form == Form::Yaml,
        with_snippet: false,
        emit_comments: false,
        alias_limits: serde_saphyr::alias_limits! { max_total_replayed_events: REPEATED },
        budget: serde_saphyr::budget! {
            max_reader_input_bytes: Some(longest),
            max_total_scalar_bytes: longest,
            max_depth: DEPTH,
            max_nodes: (longest / BYTES_OF_A_VALUE).saturating_add(REPEATED),
            max_events: (longest / BYTES_OF_A_VALUE).saturating_mul(3).saturating_add(REPEATED),
        },
    }
}

/// A struct of the fields that are read of an API object, each an `Option` that stays `None` where the field is missing or
/// null; everything else in the object is skipped, whatever it holds.
///
/// Serde's own derive would take a list for a struct as well, and makes about three times as much code of it.
macro_rules! part {
    (
        $(#[$about:meta])* $scope:vis struct $name:ident: $expecting:literal {
            $($(#[$says:meta])* $inner:vis $field:ident: $type:ty = $key:literal,)*
        }
    ) => {
        $(#[$about])*
        #[derive(Debug, Clone, Default)]
        $scope struct $name {
            $($(#[$says])* $inner $field: Option<$type>,)*
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct Reader;

                impl<'de> serde::de::Visitor<'de> for Reader {
                    type Value = $name;

                    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                        f.write_str($expecting)
                    }

                    fn visit_map<A: serde::de::MapAccess<'de>>(self, mut map: A) -> Result<$name, A::Error> {
                        let mut read = $name::default();
                        while let Some(key) = map.next_key_seed($crate::text::OneOf(&[$($key),*]))? {
                            match key {
                                $(Some($key) => read.$field = map.next_value()?,)*
                                _ => drop(map.next_value::<serde::de::IgnoredAny>()?),
                            }
                        }
                        Ok(read)
                    }
                }

                deserializer.deserialize_struct(stringify!($name), &[$($key),*], Reader)
            }
        }
    };
}

pub(crate) use part;

/// A number of things: `1 worker`, `3 workers`.
pub fn counted(number: impl fmt::Display, thing: &str) -> String {
    let number = number.to_string();
    let plural = match thing {
        _ if number == "1" => "",
        _ if thing.ends_with('s') => "es",
        _ => "s",
    };
    format!("{number} {thing}{plural}")
}

/// A key that is one of these; `None` for every other.
pub(crate) struct OneOf(pub(crate) &'static [&'static str]);

// === impl OneOf ===

impl<'de> DeserializeSeed<'de> for OneOf {
    type Value = Option<&'static str>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_identifier(self)
    }
}

impl Visitor<'_> for OneOf {
    type Value = Option<&'static str>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a field's name")
    }

    fn visit_str<E: Error>(self, key: &str) -> Result<Self::Value, E> {
        Ok(self.0.iter().find(|known| **known == key).copied())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    part! {
        struct Thing: "a thing" {
            name: String = "name",
            count: u8 = "count",
            inner: Box<Thing> = "inner",
        }
    }

    #[test]
    fn numbers_and_nouns_agree() {
        let all = [
            (0, "worker"),
            (1, "worker"),
            (2, "worker"),
            (1, "process"),
            (3, "process"),
        ];
        let words = all.map(|(number, thing)| counted(number, thing));
        assert_eq!(
            words,
            [
                "0 workers",
                "1 worker",
                "2 workers",
                "1 process",
                "3 processes"
            ]
        );
    }

    fn names(text: &str) -> Result<Vec<Option<String>>, (usize, Option<u64>)> {
        let (things, _) =
            read::<Thing>(text, 1 << 20).map_err(|mistake| (mistake.document, mistake.line))?;
        Ok(things
            .into_iter()
            .map(|thing| thing.inner.map_or(thing.name, |inner| inner.name))
            .collect())
    }

    #[test]
    fn what_is_not_named_is_skipped_and_nothing_is_no_mistake() {
        let a = Some("a".to_owned());
        for text in [
            r#"{"name": "a", "other": [{"name": 7}], "count": null}"#,
            r#"{"other": {"count": "x"}, "inner": {"name": "a", "inner": null}}"#,
            "name: a\nother: {name: [1, 2], 7: x}\ncount:\n",
            "{name: a, other: ~}",
        ] {
            assert_eq!(names(text), Ok(vec![a.clone()]), "{text}");
        }
        assert_eq!(names("{}"), Ok(vec![None]));
        assert_eq!(names("name: a\n---\nname: a\n"), Ok(vec![a.clone(), a]));
    }

    #[test]
    fn mistakes_have_a_place() {
        for (text, place) in [
            // A list of the fields' values is no object, in neither form.
            ("{\"inner\":\n[\"a\", 1]}", (1, Some(2))),
            ("name: a\n---\ninner:\n- a\n", (2, Some(4))),
            ("name: a\ncount: 300\n", (1, Some(2))),
            ("{\"name\":\n7}", (1, Some(2))),
            ("name: 7\n", (1, Some(1))),
        ] {
            assert_eq!(names(text), Err(place), "{text}");
        }
        assert_eq!(
            read_as::<String>("7", Form::PlainYaml, 100),
            Ok(vec!["7".to_owned()])
        );
        assert!(read_as::<String>("7", Form::Yaml, 100).is_err());
        assert!(read_as::<String>(&"a".repeat(101), Form::Yaml, 100).is_err());
    }
}
